"""Read and write files on the driver: local ones, with a pyiceberg FileIO, or read-only with Spark's credentials.

`sparkmeta.storage.executors` opens the same files in Spark tasks.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from sparkmeta.errors import NotFoundError, UnsupportedError
from sparkmeta.session import in_use, is_connect
from sparkmeta.storage import listing, writing
from sparkmeta.storage.content import (
    io_exists,
    io_length,
    local_length,
    missing,
    read_io,
    read_io_range,
    read_local,
    read_local_range,
    within,
)
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import (
    escape_glob,
    file_name,
    is_local,
    join,
    local_path,
    path_of,
    spark_name_key,
)
from sparkmeta.storage.reading import naming_errors, read_binary, refuse_hidden
from sparkmeta.storage.requests import requested
from sparkmeta.storage.vended import VendedIO
from sparkmeta.storage.writing import REQUESTS, DeleteFailure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.io import FileIO
    from pyspark.sql import Row, SparkSession

LOCAL_IS_READ_ONLY = "with Spark Connect, tables on disks that client and server don't share are read-only: use a store"
"""Why files of a Connect server's machine are not written."""


class Files(Protocol):
    """The driver's access to files. Reading a missing file raises NotFoundError.

    Writes are atomic. A crash leaves only files for which ``writing.is_temporary`` is true, except on stores without
    atomic writes, such as HDFS. After a write that raises anything but FileAlreadyExistsError or UnsupportedError, the
    file may exist.
    """

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

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        """Return the locations of files below a folder whose relative path matches (``*/metadata/*``).

        Args:
            folder: the folder.
            pattern: the pattern.
            leaf: folders below which a file matches this pattern (``metadata/*``) are leaves: a wildcard matches no
                folder in them. Spark lists these nevertheless.
        """

    def write_new(self, location: str, data: bytes) -> None:
        """Write a file with a unique name, such as one with a UUID."""

    def publish(self, location: str, data: bytes) -> None:
        """Write a file only if it is absent. Of concurrent publishers, only one succeeds.

        Raises:
            FileAlreadyExistsError: the file exists. It may be this writer's, if a store's client repeated a request
                whose answer was lost.
            UnsupportedError: the store, or its client, has no such write.
        """

    def overwrite(self, location: str, data: bytes) -> None:
        """Write a file atomically, replacing an existing one."""

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        """Delete files, in order on a disk. Missing ones are ignored. Return those that could not be deleted."""


@dataclass(frozen=True)
class LocalFiles:
    """Local files."""

    def read(self, location: str) -> bytes:
        return read_local(location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return read_local_range(location, offset, size)

    def exists(self, location: str) -> bool:
        return Path(local_path(location)).is_file()

    def length(self, location: str) -> int:
        return local_length(location)

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        try:
            with os.scandir(local_path(folder)) as entries:
                files = [_file_status(folder, entry) for entry in entries if fnmatchcase(entry.name, pattern)]
                return [status for status in files if status is not None]
        except (FileNotFoundError, NotADirectoryError):
            missing(folder)

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        return listing.glob(folder, pattern, leaf, _local_folders, partial(_matching, self))

    def write_new(self, location: str, data: bytes) -> None:
        writing.write_new_local(location, data)

    def publish(self, location: str, data: bytes) -> None:
        writing.publish_local(location, data)

    def overwrite(self, location: str, data: bytes) -> None:
        writing.overwrite_local(location, data)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return writing.failures(map(writing.delete_local, locations))


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

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        """See `Files.glob`. Lists each folder on the way, several at a time."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            return listing.glob(folder, pattern, leaf, self._folders, partial(_matching, self), pool.map)

    def _folders(self, folder: str) -> Sequence[str]:
        with suppress(NotFoundError):
            return requested(self.io, folder, partial(listing.folders_by_client(self.io, folder), folder))
        return []

    def write_new(self, location: str, data: bytes) -> None:
        writing.write_io(self.io, location, data)

    def publish(self, location: str, data: bytes) -> None:
        writing.publish_io(self.io, location, data)

    def overwrite(self, location: str, data: bytes) -> None:
        writing.write_io(self.io, location, data)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return writing.delete_io_many(self.io, locations)


@dataclass(frozen=True)
class SparkFiles:
    """Files that Spark's binaryFile source reads, with Spark's credentials, also on Spark Connect.

    Spark's sources have no rows for empty files: ``list`` and ``glob`` omit these, other methods handle them.
    """

    spark: SparkSession

    def read(self, location: str) -> bytes:
        row = self._only(location, "content")
        return bytes(row.content) if row else b""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        content = self.read(location)
        start, end = within(offset, size, len(content))
        return content[start:end]

    def exists(self, location: str) -> bool:
        try:
            self._only(location, "length")
        except NotFoundError:
            return False
        return True

    def length(self, location: str) -> int:
        row = self._only(location, "length")
        return int(row.length) if row else 0

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        columns = ("path", "length", "unix_millis(modificationTime) AS modified_ms")
        rows = self._rows(escape_glob(folder), *columns, pattern=pattern)
        return [
            FileStatus(join(folder, file_name(row.path)), row.length, row.modified_ms)
            for row in rows
            if path_of(row.path) == path_of(join(folder, file_name(row.path)))
        ]

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:  # noqa: ARG002
        try:
            rows = self._rows(f"{escape_glob(folder)}/{pattern}", "path")
        except NotFoundError:
            return []
        above = pattern.count("/") + 1
        return [join(folder, "/".join(row.path.rsplit("/", above)[1:])) for row in rows]

    def write_new(self, location: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse_write(location)

    def publish(self, location: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse_write(location)

    def overwrite(self, location: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse_write(location)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(location, "Spark's sources delete no files") for location in locations]

    def _refuse_write(self, location: str) -> NoReturn:
        if is_local(location) and is_connect(self.spark):
            raise UnsupportedError(f"{location}: {LOCAL_IS_READ_ONLY}")
        raise UnsupportedError(
            f"{location}: Spark's sources write no single file: open the table through a catalog, whose FileIO does"
        )

    def _only(self, location: str, column: str) -> Row | None:
        """Return the row of a file; None if it is empty."""
        refuse_hidden([location])
        name = spark_name_key(location)
        rows = self._rows(escape_glob(location), "_metadata.file_name", column)
        row = next((row for row in rows if row.file_name == name), None)
        if rows and row is None:
            missing(location)
        return row

    def _rows(self, path: str, *columns: str, pattern: str = "*") -> Sequence[Row]:
        try:
            with naming_errors(path):
                return read_binary(in_use(self.spark), [path], pattern).selectExpr(*columns).collect()
        except NotFoundError:
            where = ""
            if is_local(path) and is_connect(self.spark):
                where = " on the Spark Connect server, which does not see the files of its client's machine"
            raise NotFoundError(f"{path}: there is no such file{where}") from None


def _file_status(folder: str, entry: os.DirEntry[str]) -> FileStatus | None:
    """Return the status of a directory entry; None if it is not a file, or was deleted after the folder was read."""
    try:
        if not entry.is_file():
            return None
        stat = entry.stat()
    except FileNotFoundError:
        return None
    return FileStatus(join(folder, entry.name), stat.st_size, stat.st_mtime_ns // 1_000_000)
