"""Read metadata files with Spark's own sources, strictly, and compare locations in columns."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import NullType, StructField, StructType

from sparkmeta.errors import (
    CorruptFileError,
    NotFoundError,
    SparkmetaError,
    UnsupportedError,
    from_spark,
    lacks_file_system,
)
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.session import is_connect, local_frame, map_arrow
from sparkmeta.storage.location import (
    PATH_KEY,
    S3_SCHEMES,
    escape_glob,
    file_name,
    is_local,
    local_path,
    normalize,
    parts_of,
    path_of,
    scheme,
    spark_path_key,
    store_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType


# -- Locations in columns ---------------------------------------------------------------------------------------------


# Scheme, authority and path of a location, for Java's regular expressions.
_PARTS: Final = r"(?s)^(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)$"
# Finds paths that are not in their comparable form.
_ODD: Final = r"^(?!/)|//|/\.|/$"


def of_text(value: Sql, text: Sql, convert: Callable[[str], Any], kind: pa.DataType | None = None) -> Sql:
    """Return an expression of a text that Spark evaluates as SQL, and the driver by a function with the same results.

    Args:
        value: the expression for Spark.
        text: the argument of the function.
        convert: the function.
        kind: the type of its results. Defaults to string.
    """
    return sql.spelled(value, "by value", text, convert, kind or pa.string())


def _part_of(location: Sql, group: int) -> Sql:
    return sql.call("regexp_extract", location, _PARTS, group)


def scheme_of(location: Sql) -> Sql:
    """Return the schemes of locations, not normalized, or empty strings."""
    return of_text(_part_of(location, 1), location, lambda text: parts_of(text)[0])


def authority_of(location: Sql) -> Sql:
    """Return the authorities of locations, not normalized, or empty strings."""
    return of_text(_part_of(location, 2), location, lambda text: parts_of(text)[1])


def path_key(location: Sql) -> Sql:
    """Return the comparable paths of files, without scheme and authority; see `storage.location.path_of`."""
    path = _part_of(location, 3)

    def joined(names: Sql, name: Sql) -> Sql:
        parents = sql.call("slice", names, 1, sql.call("greatest", sql.size(names) - 1, 0))
        cases = sql.when(name.isin(("", ".")), names).when(name == "..", parents)
        return cases.otherwise(sql.concat(names, sql.array(name)))

    segments = sql.aggregate(sql.call("split", path, "/"), sql.spark_only("CAST(array() AS array<string>)"), joined)
    changed = sql.concat("/", sql.call("array_join", segments, "/"))
    key = sql.when(sql.call("rlike", path, _ODD), changed).otherwise(path)
    return of_text(key, location, path_of)


def location_key(location: Sql) -> Sql:
    """Return a form that is equal for all locations of a file; see `storage.location.normalize`."""
    written = sql.call("lower", _part_of(location, 1))
    scheme = sql.when(written == "", "file").when(written.isin(sorted(S3_SCHEMES)), "s3").otherwise(written)
    authority = _part_of(location, 2)
    has_host = (authority != "") & (scheme != "file")
    host = sql.when(has_host, sql.concat("//", authority)).otherwise("")
    return of_text(sql.concat(scheme, ":", host, path_key(location)), location, normalize)


# -- Read files with Spark's sources ----------------------------------------------------------------------------------
# Spark reads all files that metadata names through this module.


# The conditions of Spark's errors for missing files.
_MISSING = ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")

# Options take precedence over session settings, which may ignore missing or damaged files.
STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options with which Spark's sources skip no file that is listed, unless it is empty."""

# Dates and timestamps before 1582 are in the proleptic Gregorian calendar, whatever the writer.
STRICT_PARQUET = {
    **STRICT,
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_parquet(spark: SparkSession, locations: Iterable[str], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files, lazily. Columns are resolved by the names in `schema`.

    Fields of type void are always null, since Spark before version 4.1 can't read them from Parquet.

    Raises:
        NotFoundError: a file is missing. With Spark Connect, Spark raises an error when the DataFrame is used.
        CorruptFileError: a local file is empty; on classic sessions only.
        UnsupportedError: a name begins with ``_`` or ``.``.
    """
    paths = list(locations)
    refuse_hidden(paths)
    if not is_connect(spark):
        _refuse_empty(paths)
    stored_type = _without_voids(schema)
    reader = spark.read.format("parquet").options(**STRICT_PARQUET).schema(stored_type)
    frame = _loaded(spark, reader, [escape_glob(path) for path in paths])
    if stored_type == schema:
        return frame
    columns = (_with_voids(sql.col(sql.quoted(field.name)), field.dataType).alias(field.name) for field in schema)
    return frame.selectExpr(*sql.texts(columns))


def _without_voids(kind: StructType) -> StructType:
    """Return a type without fields of type void, and without structs that have no other fields."""
    fields = []
    for field in kind:
        stored_type = _without_voids(field.dataType) if isinstance(field.dataType, StructType) else field.dataType
        if not isinstance(stored_type, NullType) and stored_type != StructType():
            fields.append(StructField(field.name, stored_type, field.nullable, field.metadata))
    return StructType(fields)


def _with_voids(column: Sql, kind: DataType) -> Sql:
    """Add the fields of type void to a column that was read without them."""
    if isinstance(kind, NullType):
        return sql.lit(None)
    if not isinstance(kind, StructType) or (stored_type := _without_voids(kind)) == kind:
        return column
    struct = sql.struct(*(_with_voids(column[field.name], field.dataType).alias(field.name) for field in kind))
    return sql.when(column.isNotNull(), struct) if stored_type.fields else struct


def read_binary(spark: SparkSession, paths: Iterable[str], pattern: str = "*") -> DataFrame:
    """Return the rows of Spark's binaryFile source, lazily.

    Args:
        spark: the session.
        paths: escaped paths of files or folders (``escape_glob``).
        pattern: the pattern of the names of files to read.

    Raises:
        NotFoundError: see `read_parquet`.
    """
    options = {**STRICT, "recursiveFileLookup": "true", "pathGlobFilter": pattern}
    reader = spark.read.format("binaryFile").options(**options)
    return _loaded(spark, reader, list(paths))


def spark_opens(spark: SparkSession, location: str) -> bool:
    """Return whether Spark's sources can open a file: they have a file system for its scheme, and credentials.

    The first file of each store decides for the whole session.
    """
    store = store_of(location)
    answers = _opened.setdefault(spark, {})
    if store not in answers:
        error = _error_of(spark, spelled(spark, escape_glob(location)))
        answers[store] = error is None or _is_missing(error)
    return answers[store]


def spelled(spark: SparkSession, path: str) -> str:
    """Return an escaped path of S3 with a scheme for which Spark has a file system, and other paths unchanged.

    Hadoop's own client has only the scheme s3a, but metadata may name the same files by s3.
    """
    named_scheme = scheme(path)
    if named_scheme not in S3_SCHEMES:
        return path
    store, path_after_scheme = store_of(path), path.partition(":")[2]
    schemes = _schemes.setdefault(spark, {})
    if store not in schemes:
        probe = f"{store_of(path_after_scheme)}/sparkmeta-no-such-file"
        # Hadoop's class for s3n only raises an error.
        kinds = [kind for kind in (named_scheme, "s3a", "s3") if kind != "s3n"]
        schemes[store] = next((kind for kind in kinds if _has_file_system(spark, f"{kind}:{probe}")), named_scheme)
    return f"{schemes[store]}:{path_after_scheme}"


# Session -> store (scheme and authority) -> whether Spark opens its files, and with which scheme of S3.
_opened: WeakKeyDictionary[SparkSession, dict[str, bool]] = WeakKeyDictionary()
_schemes: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()


def _has_file_system(spark: SparkSession, path: str) -> bool:
    error = _error_of(spark, path)
    return error is None or not lacks_file_system(str(error))


def _error_of(spark: SparkSession, path: str) -> Exception | None:
    """Return the error that Spark raises when it looks for a file."""
    try:
        # With Spark Connect, it looks only when the columns are needed.
        assert spark.read.format("binaryFile").options(**STRICT).load(path).columns
    except Exception as error:  # noqa: BLE001 - each file system has its own errors
        return error
    return None


def _is_missing(error: Exception) -> bool:
    return isinstance(error, PySparkException) and error.getCondition() in _MISSING


def refuse_hidden(locations: Iterable[str]) -> None:
    """Raise UnsupportedError for a file that Spark's sources ignore because of its name."""
    for location in locations:
        if file_name(location).startswith(("_", ".")):
            raise UnsupportedError(f"{location}: Spark reads no file whose name begins with _ or .")


def _refuse_empty(locations: Iterable[str]) -> None:
    """Raise CorruptFileError for an empty local file, which a crash may leave, and which Spark ignores."""
    for location in locations:
        if is_local(location) and (path := Path(local_path(location))).exists() and not path.stat().st_size:
            raise CorruptFileError(location, "length", 0, "an empty file is not a Parquet file")


def _loaded(spark: SparkSession, reader: DataFrameReader, paths: list[str]) -> DataFrame:
    with naming_errors(paths[0]):
        return reader.load([spelled(spark, path) for path in paths])


@contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Translate errors that Spark raises when it opens a file (`from_spark`), and name the file in them."""
    try:
        yield
    except SparkmetaError:
        raise
    except Exception as error:
        if (translated := from_spark(error)) is None:
            raise
        if isinstance(translated, NotFoundError):
            raise translated from None
        # Without the cause, which has hundreds of lines of Java's traceback.
        raise type(translated)(f"{path}: {translated}") from None


def binary_files(spark: SparkSession, locations: Sequence[str]) -> DataFrame:
    """Return a row for each file with its content, by Spark's binaryFile source.

    Columns: path string (``spark_path_key`` of the location), length long, content binary. The DataFrame fails, when it
    runs, for a file that Spark skips silently, such as an empty one.

    Raises:
        NotFoundError: a file is missing. With Spark Connect, it is raised when the DataFrame is used.
        UnsupportedError: a name begins with ``_`` or ``.``.
    """
    if not locations:
        return spark.range(0).selectExpr("'' AS path", "id AS length", "X'' AS content")
    files = _listed(spark, locations).select(_path_key(), "length", "content")
    return files.unionByName(passed_over(spark, locations, "path string, length bigint, content binary"))


def with_content(spark: SparkSession, files: pa.Table) -> DataFrame:
    """Join rows that have a `location` with `path` and `content` from `binary_files`.

    A file whose path matches no row has nulls.
    """
    locations = files.column("location").to_pylist()
    keys = pa.array([spark_path_key(location) for location in locations], pa.string())
    rows = F.broadcast(local_frame(spark, files.append_column("path", keys)))
    return binary_files(spark, list(dict.fromkeys(locations))).select("path", "content").join(rows, "path", "left")


def passed_over(spark: SparkSession, locations: Sequence[str], schema: StructType | str) -> DataFrame:
    """Return a DataFrame without rows that fails, when it runs, if Spark's sources skip a file because it is empty.

    Add it by a union to the rows that Spark reads from the files. It lists the files, but reads none. Python raises the
    error, so that the optimizer can't move a filter past it.
    """
    expected = spark.createDataFrame(pa.table({"path": sorted({*map(spark_path_key, locations)})}))
    skipped = expected.join(_listed(spark, locations).select(_path_key()), "path", "left_anti")
    return map_arrow(skipped, _refuse_passed_over, schema)


def failing_if_skipped(
    spark: SparkSession, rows: DataFrame, locations: Sequence[str], schema: StructType | str
) -> DataFrame:
    """Return rows that `read_parquet` read. Running them fails if Spark skipped one of the files.

    On a classic session, `read_parquet` itself refuses empty local files.

    Args:
        spark: the session.
        rows: the rows, without Spark's hidden metadata column.
        locations: the files.
        schema: the schema of the rows.
    """
    if not is_connect(spark) and all(map(is_local, locations)):
        return rows
    return rows.union(passed_over(spark, locations, schema))


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
