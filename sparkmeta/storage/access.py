"""Choose how files are opened on the driver and in Spark tasks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyiceberg.io import FSSPEC_FILE_IO, load_file_io

from sparkmeta.errors import UnsupportedError
from sparkmeta.session import is_connect
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.files import LOCAL_IS_READ_ONLY, Files, IOFiles, LocalFiles, SparkFiles
from sparkmeta.storage.location import is_local, scheme
from sparkmeta.storage.reading import spark_opens
from sparkmeta.storage.secrets import secrets_in
from sparkmeta.storage.shared_disk import shares_disk
from sparkmeta.storage.writing import CONDITIONAL_CLIENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

    from sparkmeta.settings import Settings
    from sparkmeta.storage.vended import VendedIO

IO_PROPERTIES = ("py-io-impl", "s3.", "client.", "gcs.", "adls.", "hdfs.", "oss.")
"""The beginnings of the names of a FileIO's properties in pyiceberg's configuration."""


def files_for(spark: SparkSession, location: str, io: FileIO | VendedIO | None = None) -> Files:
    """Return the driver's access to a location: Python for local files, else ``io`` if given, else Spark.

    With Spark Connect, local files are the server's. Python opens those that the client sees too, Spark reads others.
    """
    if is_local(location) and (not is_connect(spark) or shares_disk(spark, location)):
        return LocalFiles()
    return SparkFiles(spark) if io is None or is_local(location) else IOFiles(io)


def warehouse_io(properties: Mapping[str, str], location: str) -> FileIO | None:
    """Return the FileIO for the tables in a folder of a store; None if the properties are none of a FileIO's.

    Unless they name one (`py-io-impl`), it is fsspec's for a store with conditional writes, which commits need.
    """
    if is_local(location) or not any(name.startswith(IO_PROPERTIES) for name in properties):
        return None
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
        UnsupportedError: only Spark's own sources can access the files, and these can't write single files.
    """
    reader = executor_reader(files)
    if reader is None:
        raise UnsupportedError(f"this table's files can be read by Spark only: {how_tasks_can(files)}")
    return ExecutorWriter(reader.io_properties)


def how_tasks_can(files: Files) -> str:
    """Return how tasks can open and write files that now only Spark's own sources can open."""
    on_connect = isinstance(files, SparkFiles) and is_connect(files.spark)
    advice = "open the table through a catalog, whose FileIO tasks can use"
    return f"{advice}; {LOCAL_IS_READ_ONLY}" if on_connect else advice


def _io_properties(io: FileIO) -> dict[str, str]:
    """Return the properties that create the same FileIO in another process, without credentials of the catalog.

    Requests that the catalog signs (`s3.signer`) need its token.
    """
    needed = ("uri", "token") if "s3.signer" in io.properties else ()
    texts = {
        key: value
        for key, value in io.properties.items()
        if isinstance(value, str) and (key.startswith(IO_PROPERTIES) or key in needed or not secrets_in({key: value}))
    }
    return texts | {"py-io-impl": f"{type(io).__module__}.{type(io).__qualname__}"}


@dataclass(frozen=True)
class FileAccess:
    """The access to a table's files, by the session's settings.

    Attributes:
        files: opens any file on the driver, by a job if necessary.
        executor_reads: the setting.
        driver: opens files on the driver without a job; None if Spark should read them.
        spark: the session whose sources may open the files too; None if only `tasks` and `driver` may.
    """

    files: Files
    executor_reads: str
    driver: Files | None
    spark: SparkSession | None

    @staticmethod
    def of(spark: SparkSession, files: Files, settings: Settings) -> FileAccess:
        """Return the access to the files that `files` opens."""
        reads = settings.executor_reads
        by_spark = reads == "spark" or isinstance(files, SparkFiles) or not settings.driver_manifest_bytes
        is_direct = reads == "direct" and isinstance(files, IOFiles)
        return FileAccess(files, reads, None if by_spark else files, None if is_direct else spark)

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
        if self.spark is None:
            return False
        return not isinstance(self.files, IOFiles) or self.tasks is None or spark_opens(self.spark, location)
