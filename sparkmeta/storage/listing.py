"""List folders through a pyiceberg FileIO, in Spark tasks too. Light: Spark tasks import this."""

from __future__ import annotations

import logging
import os
import re
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import FileAccessError, NotFoundError, UnsupportedError
from sparkmeta.storage.content import client_location, fsspec_store, requested
from sparkmeta.storage.location import file_name, join, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.io.fsspec import FsspecFileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO


# -- List a folder ----------------------------------------------------------------------------------------------------


T = TypeVar("T")

# Names of the modification time in s3fs, gcsfs, adlfs and fsspec's own file systems.
_MODIFIED = ("LastModified", "mtime", "updated", "last_modified", "created")


class FileStatus(NamedTuple):
    """A file in a folder; ``modified_ms`` is milliseconds since 1970."""

    location: str
    length: int
    modified_ms: int


def glob(
    folder: str,
    pattern: str,
    leaf: str | None,
    folders_in: Callable[[str], Sequence[str]],
    files_in: Callable[[str, str], Sequence[str]],
    apply: Callable[[Callable[[str], Sequence[str]], Sequence[str]], Iterable[Sequence[str]]] = map,
) -> list[str]:
    """Return the files below a folder whose relative path matches a pattern; see `Files.glob`.

    Args:
        folder: where to begin.
        pattern: the pattern.
        leaf: see `Files.glob`.
        folders_in: returns the folders directly in a folder.
        files_in: returns the files directly in a folder whose names match a pattern, given both.
        apply: applies a function to folders, possibly several at a time.
    """

    def below(parent: str) -> Sequence[str]:
        folders = folders_in(parent)
        if leaf is not None:
            name, _, files = leaf.rpartition("/")
            if any(file_name(each) == name for each in folders) and files_in(join(parent, name), files):
                return []
        return folders

    *levels, last = pattern.split("/")
    folders: list[str] = [folder]
    for level in levels:
        if re.search(r"[*?\[]", level):
            inner = chain.from_iterable(apply(below, folders))
            folders = [name for name in inner if fnmatchcase(file_name(name), level)]
        else:
            folders = [join(name, level) for name in folders]
    return [*chain.from_iterable(apply(lambda each: files_in(each, last), folders))]


def by_client(io: FileIO, folder: str) -> Callable[[str, str], list[FileStatus]]:
    """Return the function of folder and pattern that lists files with a FileIO's client: `by_pyarrow` or `by_fsspec`.

    Raises:
        UnsupportedError: the FileIO has another client.
    """
    return _of_client(io, folder, by_pyarrow, by_fsspec)


def folders_by_client(io: FileIO, folder: str) -> Callable[[str], list[str]]:
    """Return the function that lists folders with a FileIO's client; see `by_client`."""
    return _of_client(io, folder, folders_by_pyarrow, folders_by_fsspec)


def _of_client(
    io: FileIO, folder: str, with_pyarrow: Callable[..., T], with_fsspec: Callable[..., T]
) -> Callable[..., T]:
    from pyiceberg.io.fsspec import FsspecFileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, FsspecFileIO | PyArrowFileIO):
        raise UnsupportedError(f"{folder}: {type(io).__name__} lists no folders")
    return partial(with_fsspec if isinstance(io, FsspecFileIO) else with_pyarrow, io)


def by_pyarrow(io: PyArrowFileIO, folder: str, pattern: str) -> list[FileStatus]:
    """Return the files directly in a folder whose names match. Raises FileNotFoundError if the folder is missing."""
    from pyarrow.fs import FileSelector, FileType

    kind, authority, path = io.parse_location(client_location(io, folder), io.properties)
    infos = io.fs_by_scheme(kind, authority).get_file_info(FileSelector(path))
    return [
        FileStatus(join(folder, info.base_name), info.size, (info.mtime_ns or 0) // 1_000_000)
        for info in infos
        if info.type == FileType.File and fnmatchcase(info.base_name, pattern)
    ]


def folders_by_pyarrow(io: PyArrowFileIO, folder: str) -> list[str]:
    """Return the locations of the folders directly in a folder. Raises FileNotFoundError if it is missing."""
    from pyarrow.fs import FileSelector, FileType

    kind, authority, path = io.parse_location(client_location(io, folder), io.properties)
    infos = io.fs_by_scheme(kind, authority).get_file_info(FileSelector(path))
    return [join(folder, info.base_name) for info in infos if info.type == FileType.Directory]


def folders_by_fsspec(io: FsspecFileIO, folder: str) -> list[str]:
    """Return the locations of the folders directly in a folder. Raises FileNotFoundError if it is missing."""
    store: Any = io.new_input(join(folder, "x"))._fs
    store.invalidate_cache()
    infos: list[dict[str, Any]] = store.ls(client_location(io, folder), detail=True)
    return [join(folder, file_name(info["name"].rstrip("/"))) for info in infos if info["type"] == "directory"]


def by_fsspec(io: FsspecFileIO, folder: str, pattern: str) -> list[FileStatus]:
    """Return the files directly in a folder whose names match, listing only names with the pattern's prefix.

    Raises:
        FileNotFoundError: the folder is missing.
    """
    store: Any = io.new_input(join(folder, "x"))._fs
    # fsspec caches listings in this process.
    store.invalidate_cache()
    beginning = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    prefix = {"prefix": beginning} if beginning else {"maxdepth": 1}
    opened = client_location(io, folder)
    infos: dict[str, dict[str, Any]] = store.find(opened, detail=True, **prefix)
    root = store._strip_protocol(opened).rstrip("/")
    if not infos and not store.exists(opened):
        raise FileNotFoundError(folder)
    return [
        FileStatus(join(folder, file_name(path)), int(info["size"] or 0), modified_ms(info) or 0)
        for path, info in infos.items()
        if path.rpartition("/")[0] == root and fnmatchcase(file_name(path), pattern)
    ]


def modified_ms(info: dict[str, Any]) -> int | None:
    """Return when a file was modified, from its fsspec info; None if that does not say."""
    when = next((info[key] for key in _MODIFIED if info.get(key) is not None), None)
    if when is None:
        return None
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return int((when.timestamp() if isinstance(when, datetime) else when) * 1000)


# -- Walk a folder in a Spark task ------------------------------------------------------------------------------------
# A walk skips files that are deleted meanwhile, and does not follow links to folders.


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
    """Return local files with their lengths and times, except for those that are gone.

    Args:
        files: `path`, `length` and `modified_ms`, in any order and with others.
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
    beginning, remaining = pa.scalar(join(folder, "")), iter(items)
    while chunk := list(islice(remaining, _BATCH_ROWS)):
        names, lengths, times, folders = zip(*chunk, strict=True)
        paths = pc.binary_join_element_wise(beginning, pa.array(names, pa.string()), "")
        columns = [paths, pa.array(lengths, pa.int64()), pa.array(times, pa.int64()), pa.array(folders, pa.bool_())]
        yield pa.RecordBatch.from_arrays(columns, schema=WALKED)


def _local_items(root: str, recursive: bool) -> Iterator[_Item]:
    pending = [""]
    while pending:
        above = pending.pop()
        try:
            with os.scandir(os.path.join(root, above)) as entries:  # noqa: PTH118  without an object for each name
                for entry in entries:
                    name = f"{above}{entry.name}"
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
            raise FileAccessError(f"{join(root, above)}: can't be listed: {error.strerror}") from error


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
    for kind, each in _s3_pages(io, folder, partial(call, Prefix=prefix, **({} if recursive else {"Delimiter": "/"}))):
        if kind == "Contents":
            yield from _s3_file(each, prefix)
        elif name := each["Prefix"][len(prefix) : -1]:
            yield name, None, None, True
        else:
            # The empty name in `a//b` can't be a folder of its own, so its files belong to the folder above.
            for _, nested in _s3_pages(io, folder, partial(call, Prefix=each["Prefix"])):
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
    from pyarrow.fs import FileSelector, FileType

    kind, authority, path = io.parse_location(folder, io.properties)
    infos = io.fs_by_scheme(kind, authority).get_file_info(FileSelector(path, recursive=recursive))
    start = len(join(path, ""))
    items: list[_Item] = [
        (info.path[start:], info.size, None if info.mtime_ns is None else info.mtime_ns // 1_000_000, False)
        for info in infos
        if info.type == FileType.File and not info.path.endswith("/")
    ]
    if not recursive:
        items += [(file_name(info.path), None, None, True) for info in infos if info.type == FileType.Directory]
    return items
