"""Write files atomically, and publish a file only if it is absent. Light: Spark tasks import this."""

from __future__ import annotations

import errno
import logging
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from sparkmeta.errors import FileAlreadyExistsError, NotFoundError, SparkmetaError, UnsupportedError
from sparkmeta.storage.content import client_location, fsspec_store, requested
from sparkmeta.storage.location import file_name, join, local_path, scheme, store_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.io import FileIO

_log = logging.getLogger(__name__)

REQUESTS = 16
"""Concurrent requests to delete files or list folders. Stores need about 20 ms for each, and accept many at a time."""

# The maximum number of objects that S3 deletes in one request.
_BATCH = 1_000

# The unique name of a file that a crash may leave. No leading _ or . hides it, and it does not look like metadata.
TEMPORARY_NAME = "{}.tmp"
TEMPORARY_PATTERN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp"
_TEMPORARY = re.compile(TEMPORARY_PATTERN)

# Errors of file systems without hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

CONDITIONAL_CLIENTS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "adlfs"),
}
"""Scheme of a store -> its fsspec client, which supports a PUT that fails if the object exists.

The condition is If-None-Match: * on S3 and Azure, and ifGenerationMatch=0 on Google Cloud Storage.
"""

# Buckets that are known to refuse a second PUT. Stores compatible with S3 may ignore the header.
_proven: set[str] = set()


class DeleteFailure(NamedTuple):
    """A file that could not be deleted, and why."""

    location: str
    reason: str


class Deleter(Protocol):
    """An object that deletes files."""

    def delete_many(self, locations: Sequence[str]) -> Sequence[DeleteFailure]:
        """See `Files.delete_many`."""


def discard(files: Deleter, locations: Sequence[str]) -> None:
    """Delete files that nothing references. Failures are logged; such files become orphans."""
    try:
        for failed in files.delete_many(locations) if locations else ():
            _log.warning("%s: not deleted: %s", *failed)
    except Exception as error:  # noqa: BLE001 - deleting is best effort
        _log.warning("%s: not deleted: %s", ", ".join(locations), error)


def failures(outcomes: Iterable[tuple[str, Exception | None]]) -> list[DeleteFailure]:
    """Return the failures among the results of `delete_local` or `delete_io`."""
    return [
        DeleteFailure(location, str(error).removeprefix(f"{location}: "))
        for location, error in outcomes
        if error is not None
    ]


def is_temporary(location: str) -> bool:
    """Return whether a file has the name of an unfinished write. Such a file is not a part of a table."""
    return _TEMPORARY.fullmatch(file_name(location)) is not None


def write_new_local(location: str, data: bytes, *, syncs_name: bool = True) -> None:
    """Write a new file and sync it to disk; see `Files.write_new`. Raises FileAlreadyExistsError if it exists."""
    target = Path(local_path(location))
    with _temporary(target, data) as temporary:
        try:
            _link(temporary, target, location)
        except UnsupportedError:
            if target.exists():
                raise FileAlreadyExistsError(f"{location}: the file already exists") from None
            temporary.replace(target)
        if syncs_name:
            _sync(target.parent)


def open_new_local(location: str) -> Any:
    """Begin a file with a unique name, for Arrow's writers. Call `sync_local` at its end."""
    import pyarrow as pa

    target = Path(local_path(location))
    _make_folder(target.parent)
    return pa.OSFile(str(target), "wb")


def sync_local(location: str) -> None:
    """Sync a file and its name to disk."""
    target = Path(local_path(location))
    _sync(target)
    _sync(target.parent)


def publish_local(location: str, data: bytes) -> None:
    """Write a file only if it is absent, and sync it to disk. If several publish at once, only one succeeds.

    Raises:
        FileAlreadyExistsError: the file exists.
        UnsupportedError: the file system has no hard links.
    """
    target = Path(local_path(location))
    with _temporary(target, data) as temporary:
        _link(temporary, target, location)
        _sync(target.parent)


def overwrite_local(location: str, data: bytes, *, syncs: bool = True) -> None:
    """Write a file, replacing an existing one, and sync it to disk unless a crash of the machine may tear it."""
    target = Path(local_path(location))
    with _temporary(target, data, syncs=syncs) as temporary:
        temporary.replace(target)
        if syncs:
            _sync(target.parent)


def delete_local(location: str) -> tuple[str, Exception | None]:
    """Delete a file. Return its location, and the error if it could not be deleted; a missing file is not an error."""
    try:
        Path(local_path(location)).unlink(missing_ok=True)
    except OSError as error:
        return location, error
    return location, None


def write_io(io: FileIO, location: str, data: bytes) -> None:
    """Write a file through a FileIO, replacing an existing one."""
    requested(io, location, partial(_overwrite, io, client_location(io, location), data))


def open_new_io(io: FileIO, location: str) -> Any:
    """Begin a file with a unique name through a FileIO, which sends it to the store in parts."""
    return requested(io, location, partial(_begin, io, client_location(io, location)))


def _begin(io: FileIO, location: str) -> Any:
    return io.new_output(location).create(overwrite=True)


def publish_io(io: FileIO, location: str, data: bytes) -> None:
    """Write a new object by a conditional PUT; see ``Files.publish``."""
    store = _conditional_store(io, location)
    bucket = store_of(location)
    if bucket not in _proven:
        requested(io, location, partial(_prove, store, client_location(io, location)), repeat=False)
        _proven.add(bucket)
    requested(io, location, partial(_put_absent, store, client_location(io, location), data), repeat=False)


def delete_io(io: FileIO, location: str) -> tuple[str, Exception | None]:
    """Delete a file through a FileIO, like ``delete_local``."""
    try:
        requested(io, location, partial(_delete, io, client_location(io, location)))
    except NotFoundError:
        return location, None
    except SparkmetaError as error:
        return location, error
    return location, None


def delete_io_many(io: FileIO, locations: Iterable[str]) -> list[DeleteFailure]:
    """Delete files through a FileIO, several at a time, and return the failures."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        remaining = pool.map(partial(_delete_batch, io), _batches(locations))
        return failures(pool.map(partial(delete_io, io), chain.from_iterable(remaining)))


def _batches(locations: Iterable[str]) -> Iterator[Sequence[str]]:
    """Yield the files of each bucket in batches of as many as a request can delete."""
    buckets: dict[str, list[str]] = {}
    for location in locations:
        buckets.setdefault(store_of(location), []).append(location)
    for bucket in buckets.values():
        yield from (bucket[start : start + _BATCH] for start in range(0, len(bucket), _BATCH))


def _delete_batch(io: FileIO, locations: Sequence[str]) -> Sequence[str]:
    """Delete files of one bucket by one request, if the client supports it. Return the files that are left.

    Stores compatible with S3 may refuse the request, or some of its files: these are deleted one by one.
    """
    store = fsspec_store(io, locations[0])
    if len(locations) == 1 or not hasattr(store, "call_s3"):
        return locations
    opened = [client_location(io, location) for location in locations]
    keys = {store.split_path(path)[1]: location for path, location in zip(opened, locations, strict=True)}
    objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
    bucket = store.split_path(opened[0])[0]
    request = partial(store.call_s3, "delete_objects", Bucket=bucket, Delete=objects)
    try:
        response = requested(io, locations[0], request)
    except SparkmetaError:
        return locations
    for folder in {path.rpartition("/")[0] for path in opened}:
        store.invalidate_cache(folder)
    return [keys[error["Key"]] for error in response.get("Errors", ())]


def _delete(io: FileIO, location: str) -> None:
    if (store := fsspec_store(io, location)) is not None:
        # FsspecFileIO.delete treats * ? [ in a location as patterns, and deletes all matches.
        store.rm_file(location)
    else:
        io.delete(location)


def _overwrite(io: FileIO, location: str, data: bytes) -> None:
    # With overwrite=False, a FileIO checks before it writes, which excludes no concurrent writer.
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(data)


@contextmanager
def _temporary(target: Path, data: bytes, *, syncs: bool = True) -> Iterator[Path]:
    """Write a temporary file next to the target. It is deleted at the end."""
    _make_folder(target.parent)
    temporary = target.parent / TEMPORARY_NAME.format(uuid.uuid4())
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if syncs:
                os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _link(temporary: Path, target: Path, location: str) -> None:
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise FileAlreadyExistsError(f"{location}: the file already exists") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _refuse(location, f"its file system has no hard links ({error.strerror})")


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    """Sync a file to disk, or the names in a folder, which syncing a file does not include."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _conditional_store(io: FileIO, location: str) -> Any:
    """Return the fsspec file system of a store with conditional PUTs. Raises UnsupportedError for others."""
    from inspect import signature

    from pyiceberg.io import FSSPEC_FILE_IO

    if (client := CONDITIONAL_CLIENTS.get(scheme(location))) is None:
        _refuse(location, f"conditional writes to {scheme(location) or 'file'}: are not supported")
    if (store := fsspec_store(io, location)) is None:
        _refuse(
            location, f"{type(io).__name__} has no conditional writes: use py-io-impl={FSSPEC_FILE_IO} and {client}"
        )
    if not {"mode", "overwrite"} & set(signature(store._pipe_file).parameters):
        _refuse(location, f"{type(store).__module__} has no conditional writes: upgrade it")
    return store


def _prove(store: Any, location: str) -> None:
    probe = join(location.rpartition("/")[0], TEMPORARY_NAME.format(uuid.uuid4()))
    try:
        _put_absent(store, probe, b"first")
        _put_absent(store, probe, b"second")
    except FileAlreadyExistsError:
        return
    finally:
        with suppress(Exception):
            store.rm_file(probe)
    _refuse(location, "its store ignores the condition of a conditional PUT")


def _put_absent(store: Any, location: str, data: bytes) -> None:
    try:
        store.pipe_file(location, data, mode="create")
    except Exception as error:
        if _says_exists(error):
            raise FileAlreadyExistsError(f"{location}: the file already exists") from error
        raise


def _says_exists(error: BaseException) -> bool:
    """Return whether an error means that the object exists. s3fs has no class for it, but wraps botocore's error."""
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return isinstance(error, FileExistsError) or code in {"PreconditionFailed", "412"}


def _refuse(location: str, reason: str) -> NoReturn:
    raise UnsupportedError(
        f"{location}: can't be written only if it is absent, as a commit to a file system table must: {reason}. "
        "Tables of a SQL catalog (type sql: sqlite, PostgreSQL) take commits wherever their files are"
    )
