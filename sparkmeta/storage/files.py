"""Files, read and written: by Python on this machine, by a pyiceberg FileIO, or read by Spark with its credentials.

Light: Spark tasks import this for ``ExecutorReader``.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from sparkmeta.errors import NotFoundError, UnsupportedError
from sparkmeta.storage import listing, writing
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import (
    PATH_KEY,
    escape_glob,
    file_name,
    is_local,
    join,
    local_path,
    path_of,
    spark_name_key,
    spark_path_key,
)
from sparkmeta.storage.reading import MISSING, read_binary, refuse_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyarrow import RecordBatch
    from pyiceberg.io import FileIO
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

# Stores answer a deletion in some 20 ms, and take many at a time.
_DELETERS = 16


class DeleteFailure(NamedTuple):
    """A file that could not be deleted, and why."""

    location: str
    reason: str


class Files(Protocol):
    """Where the driver reads and writes files. What is to be read and is not there raises NotFoundError.

    A file that is written appears whole or not at all: what a crash leaves behind has a name that
    ``writing.is_temporary`` knows (a store without such a step, HDFS, may show a part of it under its own name).
    Where a write raises anything but FileAlreadyExistsError or UnsupportedError, it may have taken place.
    """

    def read(self, location: str) -> bytes:
        """The whole content."""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Bytes from an offset on; fewer where the file ends before."""

    def exists(self, location: str) -> bool:
        """Whether there is a file."""

    def length(self, location: str) -> int:
        """The length in bytes."""

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        """The files right in a folder whose names match; a name takes ``*`` and ``?`` for patterns."""

    def glob(self, folder: str, pattern: str) -> Sequence[str]:
        """Locations of the files below a folder at a path of names, of which any takes patterns (``*/metadata/*``)."""

    def write_new(self, location: str, data: bytes) -> None:
        """Writes a file under a name that nobody else uses, such as one with a UUID in it."""

    def publish(self, location: str, data: bytes) -> None:
        """Writes a file under a name that others may be about to take: of all who publish there, one succeeds.

        Raises FileAlreadyExistsError where there is a file: another's, or one's own, where a store's client repeats a
        request whose answer was lost. UnsupportedError where the store, or its client, has no such write.
        """

    def overwrite(self, location: str, data: bytes) -> None:
        """Writes a file in the place of the one that may be there; readers see either, whole."""

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        """Deletes the files that are there, in order on a disk; tries each, and tells which are still there and why."""


@dataclass(frozen=True)
class LocalFiles:
    """Files on a disk of this machine."""

    def read(self, location: str) -> bytes:
        return _read_local(location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return _read_local_range(location, offset, size)

    def exists(self, location: str) -> bool:
        return Path(local_path(location)).is_file()

    def length(self, location: str) -> int:
        return _local_length(location)

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        try:
            with os.scandir(local_path(folder)) as entries:
                files = [_file_status(folder, entry) for entry in entries if fnmatchcase(entry.name, pattern)]
                return [status for status in files if status is not None]
        except (FileNotFoundError, NotADirectoryError):
            _missing(folder)

    def glob(self, folder: str, pattern: str) -> Sequence[str]:
        root = Path(local_path(folder))
        return [join(folder, str(path.relative_to(root))) for path in root.glob(pattern) if path.is_file()]

    def write_new(self, location: str, data: bytes) -> None:
        writing.write_new_local(location, data)

    def publish(self, location: str, data: bytes) -> None:
        writing.publish_local(location, data)

    def overwrite(self, location: str, data: bytes) -> None:
        writing.overwrite_local(location, data)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return _failures(writing.delete_local(location) for location in locations)


@dataclass(frozen=True)
class IOFiles:
    """Files that a FileIO of pyiceberg's opens, with the credentials that a catalog gave it."""

    io: FileIO

    def read(self, location: str) -> bytes:
        return _read_io(self.io, location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return _read_io_range(self.io, location, offset, size)

    def exists(self, location: str) -> bool:
        return self.io.new_input(location).exists()

    def length(self, location: str) -> int:
        return _io_length(self.io, location)

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        from pyiceberg.io.fsspec import FsspecFileIO
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if isinstance(self.io, FsspecFileIO):
            return listing.by_fsspec(self.io, folder, pattern)
        if isinstance(self.io, PyArrowFileIO):
            return listing.by_pyarrow(self.io, folder, pattern)
        raise UnsupportedError(f"{folder}: {type(self.io).__name__} lists no folders")

    def glob(self, folder: str, pattern: str) -> Sequence[str]:
        raise UnsupportedError(f"{join(folder, pattern)}: {type(self.io).__name__} finds no files by a pattern")

    def write_new(self, location: str, data: bytes) -> None:
        writing.write_io(self.io, location, data)

    def publish(self, location: str, data: bytes) -> None:
        writing.publish_io(self.io, location, data)

    def overwrite(self, location: str, data: bytes) -> None:
        writing.write_io(self.io, location, data)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        with ThreadPoolExecutor(_DELETERS) as pool:
            return _failures(pool.map(partial(writing.delete_io, self.io), locations))


@dataclass(frozen=True)
class SparkFiles:
    """Files that Spark's binaryFile source reads: with Spark's credentials, and on Spark Connect as well.

    Spark's sources have no row for an empty file: ``list`` and ``glob`` leave it out, the others know of it.
    """

    spark: SparkSession

    def read(self, location: str) -> bytes:
        row = self._only(location, "content")
        return bytes(row.content) if row else b""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        content = self.read(location)
        start, end = _within(offset, size, len(content))
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

    def glob(self, folder: str, pattern: str) -> Sequence[str]:
        try:
            rows = self._rows(f"{escape_glob(folder)}/{pattern}", "path")
        except NotFoundError:
            return []
        above = pattern.count("/") + 1
        return [join(folder, "/".join(row.path.rsplit("/", above)[1:])) for row in rows]

    def write_new(self, location: str, data: bytes) -> None:  # noqa: ARG002
        _refuse_write(location)

    def publish(self, location: str, data: bytes) -> None:  # noqa: ARG002
        _refuse_write(location)

    def overwrite(self, location: str, data: bytes) -> None:  # noqa: ARG002
        _refuse_write(location)

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(location, "Spark's sources delete no files") for location in locations]

    def _only(self, location: str, column: str) -> Row | None:
        """The row of a file; None for one that is there, and empty."""
        refuse_hidden([location])
        name = spark_name_key(location)
        rows = self._rows(escape_glob(location), "_metadata.file_name", column)
        row = next((row for row in rows if row.file_name == name), None)
        if rows and row is None:
            _missing(location)
        return row

    def _rows(self, path: str, *columns: str, pattern: str = "*") -> Sequence[Row]:
        from pyspark.errors import PySparkException

        try:
            return read_binary(self.spark, [path], pattern).selectExpr(*columns).collect()
        except (NotFoundError, PySparkException) as error:
            if isinstance(error, NotFoundError) or error.getCondition() in MISSING:
                _missing(path)
            raise


@dataclass(frozen=True)
class ExecutorReader:
    """Reads a file inside a Spark task: a local one by ``open``, others by a FileIO of these properties."""

    io_properties: dict[str, str] | None = None
    _io: list[Any] = field(default_factory=list, repr=False, compare=False)

    def read(self, location: str) -> bytes:
        """The whole content. Raises NotFoundError."""
        return _read_local(location) if is_local(location) else _read_io(self._opened(location), location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Bytes from an offset on; fewer where the file ends before. Raises NotFoundError."""
        if is_local(location):
            return _read_local_range(location, offset, size)
        return _read_io_range(self._opened(location), location, offset, size)

    def length(self, location: str) -> int:
        """The length in bytes. Raises NotFoundError."""
        return _local_length(location) if is_local(location) else _io_length(self._opened(location), location)

    def __reduce__(self) -> tuple[type[ExecutorReader], tuple[dict[str, str] | None]]:
        return ExecutorReader, (self.io_properties,)

    def _opened(self, location: str) -> FileIO:
        if not self._io:
            from pyiceberg.io import load_file_io

            self._io.append(load_file_io(self.io_properties or {}, location))
        io: FileIO = self._io[0]
        return io


@dataclass(frozen=True)
class ExecutorWriter:
    """Writes files inside a Spark task."""

    io_properties: dict[str, str] | None = None

    def write_new(self, location: str, data: bytes) -> None:
        """The whole file, under a name that nobody else uses; what a crash leaves behind has a name that
        ``writing.is_temporary`` knows."""
        from sparkmeta.storage import writing

        if is_local(location):
            writing.write_new_local(location, data)
        else:
            writing.write_io(self._io(location), location, data)

    def overwrite(self, location: str, data: bytes) -> None:
        """The whole file, in the place of the one that may be there; readers see either."""
        from sparkmeta.storage import writing

        if is_local(location):
            writing.overwrite_local(location, data)
        else:
            writing.write_io(self._io(location), location, data)

    def _io(self, location: str) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(self.io_properties or {}, location)


def executor_writer(files: Files) -> ExecutorWriter:
    """Who writes files in a Spark task.

    Raises UnsupportedError where only Spark's own sources reach the store: they write no single file.
    """
    reader = executor_reader(files)
    if reader is None:
        raise UnsupportedError("this table's files can be read by Spark only: open it through a catalog to write")
    return ExecutorWriter(reader.io_properties)


def files_for(spark: SparkSession, location: str, io: FileIO | None = None) -> Files:
    """Who reads a location for the driver: Python what is local, ``io`` where a catalog gave one, else Spark.

    With Spark Connect what is local lies on the server, so there Spark reads it.
    """
    from sparkmeta.session import is_connect

    if is_local(location) and not is_connect(spark):
        return LocalFiles()
    return SparkFiles(spark) if io is None or is_local(location) else IOFiles(io)


def executor_reader(files: Files) -> ExecutorReader | None:
    """Who reads the same files in a Spark task; None where only Spark's own sources can."""
    if isinstance(files, LocalFiles):
        return ExecutorReader()
    return ExecutorReader(_io_properties(files.io)) if isinstance(files, IOFiles) else None


def binary_files(spark: SparkSession, locations: Sequence[str]) -> DataFrame:
    """Whole files by Spark's binaryFile source, one row each.

    Columns: path string (``spark_path_key`` of the location), length long, content binary. A file that Spark passes
    over in silence, such as an empty one, raises an error that names it when the DataFrame is used.
    Raises NotFoundError where one is missing (with Spark Connect: when the DataFrame is used), UnsupportedError for a
    name that begins with ``_`` or ``.``.
    """
    if not locations:
        return spark.range(0).selectExpr("'' AS path", "id AS length", "X'' AS content")
    found = _listed(spark, locations).select(_path_key(), "length", "content")
    return found.unionByName(passed_over(spark, locations, "path string, length bigint, content binary"))


def passed_over(spark: SparkSession, locations: Sequence[str], schema: StructType | str) -> DataFrame:
    """No rows of ``schema``, to be united with what Spark read of these files; an error, when it runs, that names a
    file for which Spark's sources have no row although they were asked for it: an empty one.

    Costs a listing, and reads no file. Python raises the error, where no optimizer moves a filter past it.
    """
    import pyarrow as pa

    asked = spark.createDataFrame(pa.table({"path": sorted({*map(spark_path_key, locations)})}))
    missing = asked.join(_listed(spark, locations).select(_path_key()), "path", "left_anti")
    return missing.mapInArrow(_refuse_passed_over, schema)


def _refuse_passed_over(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    for batch in batches:
        for path in batch.column("path").to_pylist():
            raise NotFoundError(f"{path}: the file is empty, or is not there")
    yield from ()


def _listed(spark: SparkSession, locations: Sequence[str]) -> DataFrame:
    refuse_hidden(locations)
    return read_binary(spark, [escape_glob(location) for location in dict.fromkeys(locations)])


def _path_key() -> Column:
    from pyspark.sql import functions as F

    return F.expr(PATH_KEY).alias("path")


def _io_properties(io: FileIO) -> dict[str, str]:
    """What makes the same FileIO in another process."""
    texts = {key: value for key, value in io.properties.items() if isinstance(value, str)}
    return texts | {"py-io-impl": f"{type(io).__module__}.{type(io).__qualname__}"}


def _refuse_write(location: str) -> NoReturn:
    raise UnsupportedError(
        f"{location}: Spark's sources write no single file: open the table through a catalog, whose FileIO does"
    )


def _failures(outcomes: Iterable[tuple[str, Exception | None]]) -> list[DeleteFailure]:
    return [DeleteFailure(location, str(error)) for location, error in outcomes if error is not None]


def _file_status(folder: str, entry: os.DirEntry[str]) -> FileStatus | None:
    """None for what is no file, and for one that was deleted since the folder was read."""
    try:
        if not entry.is_file():
            return None
        stat = entry.stat()
    except FileNotFoundError:
        return None
    return FileStatus(join(folder, entry.name), stat.st_size, stat.st_mtime_ns // 1_000_000)


def _read_local(location: str) -> bytes:
    try:
        return Path(local_path(location)).read_bytes()
    except FileNotFoundError:
        _missing(location)


def _read_local_range(location: str, offset: int, size: int) -> bytes:
    try:
        with Path(local_path(location)).open("rb") as file:
            start, end = _within(offset, size, os.fstat(file.fileno()).st_size)
            file.seek(start)
            return file.read(end - start)
    except FileNotFoundError:
        _missing(location)


def _local_length(location: str) -> int:
    try:
        return Path(local_path(location)).stat().st_size
    except FileNotFoundError:
        _missing(location)


def _io_length(io: FileIO, location: str) -> int:
    try:
        return len(io.new_input(location))
    except FileNotFoundError:
        _missing(location)


def _read_io(io: FileIO, location: str) -> bytes:
    try:
        with io.new_input(location).open(seekable=False) as stream:
            return stream.read()
    except FileNotFoundError:
        _missing(location)


def _read_io_range(io: FileIO, location: str, offset: int, size: int) -> bytes:
    try:
        file = io.new_input(location)
        start, end = _within(offset, size, len(file))
        with file.open() as stream:
            stream.seek(start)
            return stream.read(end - start)
    except FileNotFoundError:
        _missing(location)


def _within(offset: int, size: int, length: int) -> tuple[int, int]:
    """The part of a range that the file has, whatever numbers metadata gives; empty where there is none."""
    start = min(max(offset, 0), length)
    return (start, min(start + max(size, 0), length)) if offset >= 0 else (0, 0)


def _missing(location: str) -> NoReturn:
    raise NotFoundError(f"{location}: there is no such file")
