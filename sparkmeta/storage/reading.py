"""Metadata files that Spark's own sources read: strictly, whatever the session's settings let other reads pass over.

Every read by Spark of a file that metadata names goes through here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from sparkmeta.errors import CorruptFileError, NotFoundError, UnsupportedError
from sparkmeta.session import is_connect, local_frame
from sparkmeta.storage.location import PATH_KEY, escape_glob, file_name, is_local, local_path, spark_path_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
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
    try:
        return load()
    except AnalysisException as error:
        if error.getCondition() in MISSING:
            raise NotFoundError(str(error)) from None
        raise


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


def with_content(spark: SparkSession, files: pa.Table) -> DataFrame:
    """Return rows for files, with a column `location`, together with `path` and `content`, read by `binary_files`.

    An outer join: a file whose path Spark spells in a way that matches no row is seen, with nulls, not dropped.
    """
    locations = files.column("location").to_pylist()
    keys = pa.array([spark_path_key(location) for location in locations], pa.string())
    rows = F.broadcast(local_frame(spark, files.append_column("path", keys)))
    return binary_files(spark, list(dict.fromkeys(locations))).select("path", "content").join(rows, "path", "left")


def passed_over(spark: SparkSession, locations: Sequence[str], schema: StructType | str) -> DataFrame:
    """No rows of ``schema``, to be united with what Spark read of these files; an error, when it runs, that names a
    file for which Spark's sources have no row although they were asked for it: an empty one.

    Costs a listing, and reads no file. Python raises the error, where no optimizer moves a filter past it.
    """
    asked = spark.createDataFrame(pa.table({"path": sorted({*map(spark_path_key, locations)})}))
    missing = asked.join(_listed(spark, locations).select(_path_key()), "path", "left_anti")
    return missing.mapInArrow(_refuse_passed_over, schema)


def _refuse_passed_over(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column("path").to_pylist():
            raise NotFoundError(f"{path}: the file is empty, or is not there")
    yield from ()


def _listed(spark: SparkSession, locations: Sequence[str]) -> DataFrame:
    refuse_hidden(locations)
    return read_binary(spark, [escape_glob(location) for location in dict.fromkeys(locations)])


def _path_key() -> Column:
    return F.expr(PATH_KEY).alias("path")
