"""Choose how files are opened on the driver and in Spark tasks."""

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
    """Return the driver's access to a location: Python for local files, else ``io`` if given, else Spark.

    With Spark Connect, local files are on the server, so Spark reads them.
    """
    if is_local(location) and not is_connect(spark):
        return LocalFiles()
    return SparkFiles(spark) if io is None or is_local(location) else IOFiles(io)


def executor_reader(files: Files) -> ExecutorReader | None:
    """Return the reader of the same files in Spark tasks; None if only Spark's own sources can read them."""
    if isinstance(files, LocalFiles):
        return ExecutorReader()
    return ExecutorReader(_io_properties(files.io)) if isinstance(files, IOFiles) else None


def executor_writer(files: Files) -> ExecutorWriter:
    """Return the writer of files in Spark tasks.

    Raises:
        UnsupportedError: only Spark's own sources can access the files, and these can't write single files.
    """
    reader = executor_reader(files)
    if reader is None:
        raise UnsupportedError("this table's files can be read by Spark only: open it through a catalog to write")
    return ExecutorWriter(reader.io_properties)


def _io_properties(io: FileIO) -> dict[str, str]:
    """Return the properties that create the same FileIO in another process."""
    texts = {key: value for key, value in io.properties.items() if isinstance(value, str)}
    return texts | {"py-io-impl": f"{type(io).__module__}.{type(io).__qualname__}"}


@dataclass(frozen=True)
class FileAccess:
    """The access to a table's files, by the session's settings.

    Attributes:
        files: opens any file on the driver, by a job if necessary.
        tasks: opens files in Spark tasks; None if only Spark's own sources may.
        driver: opens files on the driver without a job; None if Spark should read them.
    """

    files: Files
    tasks: ExecutorReader | None
    driver: Files | None

    @staticmethod
    def of(files: Files, settings: Settings) -> FileAccess:
        """Return the access to the files that `files` opens."""
        tasks = None if settings.executor_reads == "spark" else executor_reader(files)
        if tasks is None and settings.executor_reads == "direct":
            tasks = ExecutorReader({})
        by_spark = tasks is None or isinstance(files, SparkFiles) or not settings.driver_manifest_bytes
        return FileAccess(files, tasks, None if by_spark else files)
