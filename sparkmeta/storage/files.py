"""Read and write files on the driver, and choose how files are opened there and in tasks."""

from __future__ import annotations

import os
import platform
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol
from weakref import WeakKeyDictionary

from sparkmeta.errors import NotFoundError, UnsupportedError, translated_errors
from sparkmeta.session import is_connect, map_arrow
from sparkmeta.storage import listing, writing
from sparkmeta.storage.content import (
    VendedIO,
    io_exists,
    io_length,
    local_length,
    missing,
    read_io,
    read_io_range,
    read_local,
    read_local_range,
    requested,
    secrets_in,
    within,
)
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import (
    escape_glob,
    file_name,
    is_local,
    join,
    local_path,
    path_of,
    scheme,
    spark_name_key,
)
from sparkmeta.storage.writing import CONDITIONAL_CLIENTS, REQUESTS, DeleteFailure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyspark.sql import Row, SparkSession

    from sparkmeta.session import SessionSource
    from sparkmeta.settings import Settings
    from sparkmeta.storage.keys import TableKeys


# -- Do a Spark Connect server and its client share files? ------------------------------------------------------------


# Linux's id of a running kernel, which containers share.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# By default, a range has a partition for each core of the server's executors, up to this number.
_ROWS = 10_000


def shares_disk(spark: SparkSession, location: str) -> bool:
    """Return whether this process and a session's tasks see the same file or folder at a local path.

    Runs a task for each core, and caches the answer for the session. If the path does not exist, the deepest
    existing folder above it counts. A network folder counts as different, since its device and inode may differ between
    machines. A folder or file that this process may not read counts as different too.
    """
    identity = _identity(location, readable=True)
    if identity is None:
        return False
    answers = _answers.setdefault(spark, {})
    if identity not in answers:
        with translated_errors():
            rows = map_arrow(spark.range(_ROWS), partial(_identities, location), "identity string").collect()
        answers[identity] = {row.identity for row in rows} == {identity}
    return answers[identity]


_answers: WeakKeyDictionary[SparkSession, dict[str, bool]] = WeakKeyDictionary()


def _identities(location: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([_identity(location)], pa.string())], ["identity"])


def _identity(location: str, *, readable: bool = False) -> str | None:
    """Return an identity of the file at a path, or of the deepest existing folder above it, across machines.

    It is None if this process lacks access to the path or, if `readable` is set, may not read the file or folder.
    """
    path = Path(local_path(location)).absolute()
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        status = path.stat()
    except OSError:
        return None
    if readable and not os.access(path, os.R_OK):
        return None
    return f"{_machine()} {status.st_dev} {status.st_ino} {path}"


def _machine() -> str:
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return f"{platform.node()} {uuid.getnode()}"


# -- Files on the driver ----------------------------------------------------------------------------------------------
# `sparkmeta.storage.executors` opens the same files in Spark tasks.


LOCAL_IS_READ_ONLY = "with Spark Connect, tables on disks that client and server don't share are read-only: use a store"
"""Why files of a Connect server's machine are not written."""


class Files(Protocol):
    """The driver's access to files. Reading a missing file raises NotFoundError.

    Writes are atomic. A crash leaves only files for which ``writing.is_temporary`` is true, except on stores without
    atomic writes, such as HDFS. After a write that raises anything but FileAlreadyExistsError or UnsupportedError, the
    file may exist.
    """

    @property
    def keys(self) -> TableKeys | None:
        """The keys of encrypted tables; None if no key client is configured."""

    def read(self, location: str) -> bytes:
        """Return the content of a file."""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Return a range of a file, up to its end."""

    def exists(self, location: str) -> bool:
        """Return whether a file exists."""

    def length(self, location: str) -> int:
        """Return the length of a file in bytes."""

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        """Return the files directly in a folder whose names match a pattern with ``*`` and ``?``."""

    def names(self, folder: str, pattern: str) -> Sequence[str]:
        """Return the names of the files that ``list`` returns. On a disk, this is faster than ``list``."""

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        """Return the locations of files below a folder whose relative path matches (``*/metadata/*``).

        Args:
            folder: the folder.
            pattern: the pattern.
            leaf: folders below which a file matches this pattern (``metadata/*``) are leaves: a wildcard matches no
                folder in them. Spark's sources ignore this, and list such folders.
        """

    def write_new(self, location: str, data: bytes, *, syncs_name: bool = True) -> None:
        """Write a file with a unique name, such as one with a UUID.

        Without `syncs_name`, a crash of the machine may lose the name until a later name in its folder is synced.
        """

    def publish(self, location: str, data: bytes) -> None:
        """Write a file only if it is absent. If several publish at once, only one succeeds.

        Raises:
            FileAlreadyExistsError: the file exists. It may be this writer's own file, if a store's client repeated a
                request after losing the response.
            UnsupportedError: the store, or its client, does not support this.
        """

    def overwrite(self, location: str, data: bytes, *, syncs: bool = True) -> None:
        """Write a file atomically, replacing an existing one. Without `syncs`, a crash of the machine may tear it."""

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        """Delete files, in order on a disk, and return the failures. Missing files are ignored."""


@dataclass(frozen=True)
class LocalFiles:
    """Local files."""

    keys: TableKeys | None = field(default=None, repr=False, compare=False, kw_only=True)

    def read(self, location: str) -> bytes:
        return read_local(location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return read_local_range(location, offset, size)

    def exists(self, location: str) -> bool:
        return Path(local_path(location)).is_file()

    def length(self, location: str) -> int:
        return local_length(location)

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        statuses = [_file_status(folder, entry) for entry in _entries(folder, pattern)]
        return [status for status in statuses if status is not None]

    def names(self, folder: str, pattern: str) -> Sequence[str]:
        return [entry.name for entry in _entries(folder, pattern) if entry.is_file()]

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        return listing.glob(folder, pattern, leaf, _local_folders, partial(_matching, self))

    def write_new(self, location: str, data: bytes, *, syncs_name: bool = True) -> None:
        writing.write_new_local(location, data, syncs_name=syncs_name)

    def publish(self, location: str, data: bytes) -> None:
        writing.publish_local(location, data)

    def overwrite(self, location: str, data: bytes, *, syncs: bool = True) -> None:
        writing.overwrite_local(location, data, syncs=syncs)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return writing.failures(map(writing.delete_local, locations))


def _entries(folder: str, pattern: str) -> list[os.DirEntry[str]]:
    matches = re.compile(translate(pattern)).match
    try:
        with os.scandir(local_path(folder)) as entries:
            return [entry for entry in entries if matches(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        missing(folder)


def _local_folders(folder: str) -> Sequence[str]:
    try:
        with os.scandir(local_path(folder)) as entries:
            return [join(folder, entry.name) for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _matching(files: Files, folder: str, pattern: str) -> Sequence[str]:
    """Return the files directly in a folder whose names match; none if the folder is missing."""
    with suppress(NotFoundError):
        return [status.location for status in files.list(folder, pattern)]
    return []


@dataclass(frozen=True)
class IOFiles:
    """Files of a pyiceberg FileIO, with the credentials of its catalog."""

    source: FileIO | VendedIO
    keys: TableKeys | None = field(default=None, repr=False, compare=False)

    @property
    def io(self) -> FileIO:
        """The FileIO, with credentials that have not expired if the catalog vends new ones."""
        return self.source.current() if isinstance(self.source, VendedIO) else self.source

    def read(self, location: str) -> bytes:
        return read_io(self.io, location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return read_io_range(self.io, location, offset, size)

    def exists(self, location: str) -> bool:
        return io_exists(self.io, location)

    def length(self, location: str) -> int:
        return io_length(self.io, location)

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        return requested(self.io, folder, partial(listing.by_client(self.io, folder), folder, pattern))

    def names(self, folder: str, pattern: str) -> Sequence[str]:
        return [file_name(status.location) for status in self.list(folder, pattern)]

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        """See `Files.glob`. Lists each folder on the way, several at a time."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            return listing.glob(folder, pattern, leaf, self._folders, partial(_matching, self), pool.map)

    def _folders(self, folder: str) -> Sequence[str]:
        with suppress(NotFoundError):
            return requested(self.io, folder, partial(listing.folders_by_client(self.io, folder), folder))
        return []

    def write_new(self, location: str, data: bytes, *, syncs_name: bool = True) -> None:  # noqa: ARG002
        writing.write_io(self.io, location, data)

    def publish(self, location: str, data: bytes) -> None:
        writing.publish_io(self.io, location, data)

    def overwrite(self, location: str, data: bytes, *, syncs: bool = True) -> None:  # noqa: ARG002
        writing.write_io(self.io, location, data)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return writing.delete_io_many(self.io, locations)


@dataclass(frozen=True)
class SparkFiles:
    """Files that Spark's binaryFile source reads, with Spark's credentials, also on Spark Connect.

    Spark's sources have no rows for empty files: ``list`` and ``glob`` omit these, other methods handle them.
    """

    sessions: SessionSource
    keys: TableKeys | None = field(default=None, repr=False, compare=False)

    def read(self, location: str) -> bytes:
        row = self._row_of(location, "content")
        return bytes(row.content) if row else b""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        content = self.read(location)
        start, end = within(offset, size, len(content))
        return content[start:end]

    def exists(self, location: str) -> bool:
        try:
            self._row_of(location, "length")
        except NotFoundError:
            return False
        return True

    def length(self, location: str) -> int:
        row = self._row_of(location, "length")
        return int(row.length) if row else 0

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        columns = ("path", "length", "unix_millis(modificationTime) AS modified_ms")
        rows = self._rows(escape_glob(folder), *columns, pattern=pattern)
        return [
            FileStatus(join(folder, file_name(row.path)), row.length, row.modified_ms)
            for row in rows
            if path_of(row.path) == path_of(join(folder, file_name(row.path)))
        ]

    def names(self, folder: str, pattern: str) -> Sequence[str]:
        return [file_name(status.location) for status in self.list(folder, pattern)]

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:  # noqa: ARG002
        try:
            rows = self._rows(f"{escape_glob(folder)}/{pattern}", "path")
        except NotFoundError:
            return []
        levels = pattern.count("/") + 1
        return [join(folder, "/".join(row.path.rsplit("/", levels)[1:])) for row in rows]

    def write_new(self, location: str, data: bytes, *, syncs_name: bool = True) -> None:  # noqa: ARG002
        self._refuse_write(location)

    def publish(self, location: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse_write(location)

    def overwrite(self, location: str, data: bytes, *, syncs: bool = True) -> None:  # noqa: ARG002
        self._refuse_write(location)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(location, "Spark's sources delete no files") for location in locations]

    @property
    def on_connect(self) -> bool:
        """Whether a Spark Connect server opens the files."""
        session = self.sessions.running()
        return session is not None and is_connect(session)

    def _refuse_write(self, location: str) -> NoReturn:
        if is_local(location) and self.on_connect:
            raise UnsupportedError(f"{location}: {LOCAL_IS_READ_ONLY}")
        raise UnsupportedError(
            f"{location}: Spark's sources write no single file: open the table through a catalog, whose FileIO does"
        )

    def _row_of(self, location: str, column: str) -> Row | None:
        """Return the row of a file; None if it is empty."""
        from sparkmeta.storage.reading import refuse_hidden

        refuse_hidden([location])
        name = spark_name_key(location)
        rows = self._rows(escape_glob(location), "_metadata.file_name", column)
        row = next((row for row in rows if row.file_name == name), None)
        if rows and row is None:
            missing(location)
        return row

    def _rows(self, path: str, *columns: str, pattern: str = "*") -> Sequence[Row]:
        from sparkmeta.storage.reading import naming_errors, read_binary

        try:
            with naming_errors(path):
                return read_binary(self.sessions.get(), [path], pattern).selectExpr(*columns).collect()
        except NotFoundError:
            machine = ""
            if is_local(path) and self.on_connect:
                machine = " on the Spark Connect server, which does not see the files of its client's machine"
            raise NotFoundError(f"{path}: there is no such file{machine}") from None


def _file_status(folder: str, entry: os.DirEntry[str]) -> FileStatus | None:
    """Return the status of a directory entry; None if it is not a file, or was deleted after the folder was read."""
    try:
        if not entry.is_file():
            return None
        stat = entry.stat()
    except FileNotFoundError:
        return None
    return FileStatus(join(folder, entry.name), stat.st_size, stat.st_mtime_ns // 1_000_000)


# -- Choose how files are opened --------------------------------------------------------------------------------------


IO_PROPERTIES = ("py-io-impl", "s3.", "client.", "gcs.", "adls.", "hdfs.", "oss.")
"""The prefixes of a FileIO's properties in pyiceberg's configuration."""


def files_for(
    sessions: SessionSource, location: str, io: FileIO | VendedIO | None = None, keys: TableKeys | None = None
) -> Files:
    """Return the driver's access to a location: Python for local files, else ``io`` if it is not None, else Spark.

    With Spark Connect, local files are the server's. Python opens the files that the client sees too; Spark reads
    others. Nothing here starts a session.

    Args:
        sessions: where the session comes from.
        location: the location.
        io: the FileIO.
        keys: the keys of encrypted tables.

    Raises:
        SessionError: the caller's session was stopped.
    """
    session = sessions.running()
    if is_local(location) and (session is None or not is_connect(session) or shares_disk(session, location)):
        return LocalFiles(keys=keys)
    return SparkFiles(sessions, keys) if io is None or is_local(location) else IOFiles(io, keys)


def warehouse_io(properties: Mapping[str, str], location: str) -> FileIO | None:
    """Return the FileIO for the tables in a folder of a store; None if no property is a FileIO's.

    If the properties don't name a FileIO (`py-io-impl`), a store with conditional writes gets fsspec's, since commits
    need these.
    """
    if is_local(location) or not any(name.startswith(IO_PROPERTIES) for name in properties):
        return None
    from pyiceberg.io import FSSPEC_FILE_IO, load_file_io

    client = CONDITIONAL_CLIENTS.get(scheme(location))
    preferred = {"py-io-impl": FSSPEC_FILE_IO} if client is not None and find_spec(client) is not None else {}
    return load_file_io(preferred | dict(properties), location)


def executor_reader(files: Files) -> ExecutorReader | None:
    """Return the reader of the same files in Spark tasks; None if only Spark's own sources can read them."""
    if isinstance(files, LocalFiles):
        return ExecutorReader()
    return ExecutorReader(_io_properties(files.io)) if isinstance(files, IOFiles) else None


def executor_writer(files: Files) -> ExecutorWriter:
    """Return the writer of files in Spark tasks.

    Raises:
        UnsupportedError: only Spark's own sources can access the files, and they can't write single files.
    """
    reader = executor_reader(files)
    if reader is None:
        raise UnsupportedError(f"this table's files can be read by Spark only: {how_tasks_can(files)}")
    return ExecutorWriter(reader.io_properties)


def how_tasks_can(files: Files) -> str:
    """Return a hint on how to let tasks open and write files that only Spark's own sources can open."""
    on_connect = isinstance(files, SparkFiles) and files.on_connect
    advice = "open the table through a catalog, whose FileIO tasks can use"
    return f"{advice}; {LOCAL_IS_READ_ONLY}" if on_connect else advice


def _io_properties(io: FileIO) -> dict[str, str]:
    """Return the properties that create the same FileIO in another process, without credentials of the catalog.

    Requests that the catalog signs (`s3.signer`) need its token.
    """
    signing_keys = ("uri", "token") if "s3.signer" in io.properties else ()
    texts = {
        key: value
        for key, value in io.properties.items()
        if isinstance(value, str)
        and (key.startswith(IO_PROPERTIES) or key in signing_keys or not secrets_in({key: value}))
    }
    return texts | {"py-io-impl": f"{type(io).__module__}.{type(io).__qualname__}"}


# More than any amount of work, but small enough that 1 can be added as a 64-bit integer.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class FileAccess:
    """The access to a table's files, according to the session's settings.

    Attributes:
        files: opens any file on the driver, by a job if necessary.
        executor_reads: the setting of this name.
        driver: opens files on the driver without a job; None if Spark should read them.
        sessions: the source of the session that may open the files; None if only `tasks` and `driver` may.
        alone: whether `driver` opens all files, however many, since there is no Spark.
    """

    files: Files
    executor_reads: str
    driver: Files | None
    sessions: SessionSource | None
    alone: bool = False

    @staticmethod
    def of(sessions: SessionSource, files: Files, settings: Settings) -> FileAccess:
        """Return the access to the files that `files` opens."""
        reads = settings.executor_reads
        by_spark = reads == "spark" or isinstance(files, SparkFiles) or not settings.driver_manifest_bytes
        is_direct = reads == "direct" and isinstance(files, IOFiles)
        return FileAccess(files, reads, None if by_spark else files, None if is_direct else sessions, sessions.alone)

    def limit(self, usual: int) -> int:
        """Return the maximum amount of work that the driver does: `usual`, or any amount without Spark."""
        return _UNLIMITED if self.alone else usual

    def driver_opens(self, are_few: bool) -> bool:
        """Return whether the driver opens files without a job: if they are few and small, or there is no Spark."""
        return self.driver is not None and (self.alone or are_few)

    @property
    def tasks(self) -> ExecutorReader | None:
        """The opener of files in Spark tasks, with current credentials; None if only Spark's own sources may read."""
        if self.executor_reads == "spark":
            return None
        return executor_reader(self.files) or (ExecutorReader({}) if self.executor_reads == "direct" else None)

    def spark_opens(self, location: str) -> bool:
        """Return whether Spark's own sources can open a file; if not, `tasks` can.

        They may lack a file system for its scheme, or credentials that only a catalog's FileIO has.
        """
        if self.sessions is None:
            return False
        from sparkmeta.storage.reading import spark_opens

        return not isinstance(self.files, IOFiles) or self.tasks is None or spark_opens(self.sessions.get(), location)
