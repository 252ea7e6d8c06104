"""Who opens files: on the driver, and in Spark tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.errors import UnsupportedError
from sparkmeta.session import is_connect
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.files import Files, IOFiles, LocalFiles, SparkFiles
from sparkmeta.storage.location import is_local

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

    from sparkmeta.settings import Settings


def files_for(spark: SparkSession, location: str, io: FileIO | None = None) -> Files:
    """Who reads a location for the driver: Python what is local, ``io`` where a catalog gave one, else Spark.

    With Spark Connect what is local lies on the server, so there Spark reads it.
    """
    if is_local(location) and not is_connect(spark):
        return LocalFiles()
    return SparkFiles(spark) if io is None or is_local(location) else IOFiles(io)


def executor_reader(files: Files) -> ExecutorReader | None:
    """Who reads the same files in a Spark task; None where only Spark's own sources can."""
    if isinstance(files, LocalFiles):
        return ExecutorReader()
    return ExecutorReader(_io_properties(files.io)) if isinstance(files, IOFiles) else None


def executor_writer(files: Files) -> ExecutorWriter:
    """Who writes files in a Spark task.

    Raises UnsupportedError where only Spark's own sources reach the store: they write no single file.
    """
    reader = executor_reader(files)
    if reader is None:
        raise UnsupportedError("this table's files can be read by Spark only: open it through a catalog to write")
    return ExecutorWriter(reader.io_properties)


def _io_properties(io: FileIO) -> dict[str, str]:
    """What makes the same FileIO in another process."""
    texts = {key: value for key, value in io.properties.items() if isinstance(value, str)}
    return texts | {"py-io-impl": f"{type(io).__module__}.{type(io).__qualname__}"}


@dataclass(frozen=True)
class FileAccess:
    """Who opens the files of a table, by the session's settings.

    Args:
        files: opens any file on the driver, if need be by a job.
        tasks: opens files in Spark tasks; None where only Spark's own sources may.
        driver: opens files on the driver in less time than a job takes; None where Spark should read them.
    """

    files: Files
    tasks: ExecutorReader | None
    driver: Files | None

    @staticmethod
    def of(files: Files, settings: Settings) -> FileAccess:
        """Return who opens what `files` opens."""
        tasks = None if settings.executor_reads == "spark" else executor_reader(files)
        if tasks is None and settings.executor_reads == "direct":
            tasks = ExecutorReader({})
        by_spark = tasks is None or isinstance(files, SparkFiles) or not settings.driver_manifest_bytes
        return FileAccess(files, tasks, None if by_spark else files)
