"""Walk a folder in a Spark task. Light: Spark tasks import this.

A walk skips files that are deleted in the meantime, and does not follow links to folders.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import FileAccessError, NotFoundError, UnsupportedError
from sparkmeta.storage.content import client_location, fsspec_store, requested
from sparkmeta.storage.listing import modified_ms, pyarrow_infos
from sparkmeta.storage.location import file_name, join, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.io import FileIO

_log = logging.getLogger(__name__)

WALKED = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("length", pa.int64()),  # null for a folder, and for a local file
        pa.field("modified_ms", pa.int64()),  # since 1970; null as the length, and if the store does not say
        pa.field("is_folder", pa.bool_()),
    ]
)

_BATCH_ROWS = 10_000

# The name below the folder, the length and the time of modification, as in `WALKED`, and whether it is a folder.
_Item = tuple[str, int | None, int | None, bool]


def walk_local(folder: str, *, recursive: bool) -> Iterator[pa.RecordBatch]:
    """Yield the files in a local folder as `WALKED`: on all levels, or on the first level with its folders.

    Lengths and times would need a system call for each file: see `with_status`.

    Raises:
        FileAccessError: a folder can't be read.
    """
    return _batches(folder, _local_items(local_path(folder), recursive))


def walk_io(io: FileIO, folder: str, *, recursive: bool) -> Iterator[pa.RecordBatch]:
    """Yield the files in a folder of a FileIO as `WALKED`, like `walk_local`.

    On S3, s3fs gets pages of 1,000 names, and holds one page in memory. Other clients hold all names.

    Raises:
        FileAccessError: the store refused a request, or did not respond.
        UnsupportedError: the FileIO lists no folders.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    store, opened = fsspec_store(io, join(folder, "x")), client_location(io, folder)
    if hasattr(store, "call_s3"):
        return _batches(folder, _s3_items(io, store, opened, recursive))
    if store is not None:
        return _batches(folder, _requested(io, folder, partial(_fsspec_items, store, opened, recursive)))
    if isinstance(io, PyArrowFileIO):
        return _batches(folder, _requested(io, folder, partial(_pyarrow_items, io, opened, recursive)))
    raise UnsupportedError(f"{folder}: {type(io).__name__} lists no folders")


def with_status(files: pa.RecordBatch) -> pa.RecordBatch:
    """Return local files with their lengths and times, without files that have been deleted.

    Args:
        files: rows with the columns `path`, `length` and `modified_ms`, and possibly others.
    """
    statuses = [_status(local_path(path)) for path in files.column("path").to_pylist()]
    rows = files.filter(pa.array([status is not None for status in statuses], pa.bool_()))
    present = [status for status in statuses if status is not None]
    values = {
        "length": pa.array([status.st_size for status in present], pa.int64()),
        "modified_ms": pa.array([status.st_mtime_ns // 1_000_000 for status in present], pa.int64()),
    }
    columns = [values.get(name, rows.column(name)) for name in files.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=files.schema)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116  without an object for each name
    except FileNotFoundError:
        return None


def _batches(folder: str, items: Iterable[_Item]) -> Iterator[pa.RecordBatch]:
    prefix, remaining = pa.scalar(join(folder, "")), iter(items)
    while chunk := list(islice(remaining, _BATCH_ROWS)):
        names, lengths, times, folders = zip(*chunk, strict=True)
        paths = pc.binary_join_element_wise(prefix, pa.array(names, pa.string()), "")
        columns = [paths, pa.array(lengths, pa.int64()), pa.array(times, pa.int64()), pa.array(folders, pa.bool_())]
        yield pa.RecordBatch.from_arrays(columns, schema=WALKED)


def _local_items(root: str, recursive: bool) -> Iterator[_Item]:
    pending = [""]
    while pending:
        parent = pending.pop()
        try:
            with os.scandir(os.path.join(root, parent)) as entries:  # noqa: PTH118  without an object for each name
                for entry in entries:
                    name = f"{parent}{entry.name}"
                    if not _is_text(name):
                        _log.warning("%r: not listed: its name is not UTF-8", os.path.join(root, name))  # noqa: PTH118
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if recursive:
                            pending.append(f"{name}/")
                        else:
                            yield name, None, None, True
                    elif entry.is_file():
                        yield name, None, None, False
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FileAccessError(f"{join(root, parent)}: can't be listed: {error.strerror}") from error


def _is_text(name: str) -> bool:
    """Return whether a local name can be encoded in UTF-8. Names with surrogates can't."""
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False


def _s3_items(io: FileIO, store: Any, folder: str, recursive: bool) -> Iterator[_Item]:
    bucket, key, _ = store.split_path(join(folder, ""))
    prefix = f"{key.rstrip('/')}/" if key else ""
    call = partial(store.call_s3, "list_objects_v2", Bucket=bucket)
    for kind, item in _s3_pages(io, folder, partial(call, Prefix=prefix, **({} if recursive else {"Delimiter": "/"}))):
        if kind == "Contents":
            yield from _s3_file(item, prefix)
        elif name := item["Prefix"][len(prefix) : -1]:
            yield name, None, None, True
        else:
            # The empty name in `a//b` can't be a folder of its own, so its files belong to the parent folder.
            for _, nested in _s3_pages(io, folder, partial(call, Prefix=item["Prefix"])):
                yield from _s3_file(nested, prefix)


def _s3_file(item: Mapping[str, Any], prefix: str) -> Iterator[_Item]:
    # A name that ends with a slash marks an empty folder.
    if not item["Key"].endswith("/"):
        yield item["Key"][len(prefix) :], item["Size"], int(item["LastModified"].timestamp() * 1000), False


def _s3_pages(io: FileIO, folder: str, call: partial[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the content of a listing's pages: folders as `CommonPrefixes`, and files as `Contents`."""
    request: dict[str, str] = {}
    while True:
        page = requested(io, folder, partial(call, **request))
        for kind in ("CommonPrefixes", "Contents"):
            for item in page.get(kind, ()):
                yield kind, item
        if not page.get("IsTruncated"):
            return
        request["ContinuationToken"] = page["NextContinuationToken"]


def _requested(io: FileIO, folder: str, items: partial[list[_Item]]) -> Iterable[_Item]:
    try:
        return requested(io, folder, items)
    except NotFoundError:
        return ()


def _fsspec_items(store: Any, folder: str, recursive: bool) -> list[_Item]:
    # fsspec caches listings in this process.
    store.invalidate_cache()
    infos = store.find(folder, detail=True).values() if recursive else store.ls(folder, detail=True)
    start = len(join(store._strip_protocol(folder), ""))
    return [
        (info["name"][start:].rstrip("/"), None, None, True) if info["type"] == "directory"
        else (info["name"][start:], int(info["size"] or 0), modified_ms(info), False)
        for info in infos
        if info["name"][start:]
    ]  # fmt: skip


def _pyarrow_items(io: Any, folder: str, recursive: bool) -> list[_Item]:
    from pyarrow.fs import FileType

    path, infos = pyarrow_infos(io, folder, recursive=recursive)
    start = len(join(path, ""))
    items: list[_Item] = [
        (info.path[start:], info.size, None if info.mtime_ns is None else info.mtime_ns // 1_000_000, False)
        for info in infos
        if info.type == FileType.File and not info.path.endswith("/")
    ]
    if not recursive:
        items += [(file_name(info.path), None, None, True) for info in infos if info.type == FileType.Directory]
    return items
