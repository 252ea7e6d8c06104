"""Metadata files that Spark's own sources read: strictly, whatever the session's settings let other reads pass over.

Every read by Spark of a file that metadata names goes through here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkmeta.errors import CorruptFileError, NotFoundError, UnsupportedError
from sparkmeta.storage.location import escape_glob, file_name, is_local, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MISSING = ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")
"""The conditions of Spark's errors for a file that is not there."""

# Options win over the settings of the session, which may pass over files and what is damaged in them.
_STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
# Dates and timestamps before 1582 are of the proleptic Gregorian calendar, whoever wrote them.
_STRICT_PARQUET = {
    **_STRICT,
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_parquet(spark: SparkSession, locations: Iterable[str], schema: StructType | str) -> DataFrame:
    """The rows of Parquet files, lazily; files are resolved by the names in `schema`.

    Raises NotFoundError where one is missing (with Spark Connect: an error of Spark's when the DataFrame is used),
    CorruptFileError for an empty one on a disk of this machine, UnsupportedError for a name that begins with ``_`` or
    ``.``.
    """
    from sparkmeta.session import is_connect

    paths = list(locations)
    refuse_hidden(paths)
    if not is_connect(spark):
        _refuse_empty(paths)
    reader = spark.read.format("parquet").options(**_STRICT_PARQUET).schema(schema)
    return _loaded(lambda: reader.load([escape_glob(path) for path in paths]))


def read_binary(spark: SparkSession, paths: Iterable[str], pattern: str = "*") -> DataFrame:
    """Files as Spark's binaryFile source shows them, lazily.

    Args:
        spark: the session.
        paths: of files or folders, as Spark takes them (``escape_glob``).
        pattern: of the names of the files to read.

    Raises NotFoundError as `read_parquet` does.
    """
    options = {**_STRICT, "recursiveFileLookup": "true", "pathGlobFilter": pattern}
    return _loaded(lambda: spark.read.format("binaryFile").options(**options).load([*paths]))


def refuse_hidden(locations: Iterable[str]) -> None:
    """UnsupportedError for a file that Spark's sources pass over by its name."""
    for location in locations:
        if file_name(location).startswith(("_", ".")):
            raise UnsupportedError(f"{location}: Spark reads no file whose name begins with _ or .")


def _refuse_empty(locations: Iterable[str]) -> None:
    """Spark has no row for an empty file, and no error. A crash leaves such ones on disks; stores have files whole."""
    for location in locations:
        if is_local(location) and (path := Path(local_path(location))).exists() and not path.stat().st_size:
            raise CorruptFileError(location, "length", 0, "an empty file is no Parquet file")


def _loaded(load: Callable[[], DataFrame]) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return load()
    except AnalysisException as error:
        if error.getCondition() in MISSING:
            raise NotFoundError(str(error)) from None
        raise
