"""Hand over Parquet data files to Spark, each with a number chosen by the caller that is available in its rows.

Spark lists files that are given as paths, which takes longer than planning them. It does not list files in the log of a
streaming sink: a file `_spark_metadata/0` in a folder, with one line of JSON per data file. The log also has a
modification time for each file. Spark only exposes it as `_metadata.file_modification_time`, so it can carry the
number. Spark reads the log when the DataFrame is created; the folder is removed right after.

The log and the column `_tmp_metadata_row_index` are Spark internals, which `understands_logs` tests. If they do not
work, or on Spark Connect, whose server need not see this machine's folders, files are given as paths, numbers are
joined by path, and positions come from the public `_metadata.row_index`.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sparkmeta.columns.sql import quoted
from sparkmeta.errors import SettingError
from sparkmeta.session import is_connect, local_frame
from sparkmeta.settings import PREFIX
from sparkmeta.storage.location import spark_path_key, spark_uri
from sparkmeta.storage.reading import STRICT_PARQUET, failing_if_skipped, read_parquet, spelled

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.settings import Settings

NUMBER: Final = "number"
POSITION: Final = "pos"

FILES: Final = pa.schema(
    [pa.field("file_path", pa.string()), pa.field("file_size_in_bytes", pa.int64()), pa.field(NUMBER, pa.int64())]
)
"""Files to hand over, with numbers from 0 to 2**53 - 1."""

# Before numbers are joined, the column has the path.
_EXTRA_TYPES: Final = {NUMBER: StringType(), POSITION: LongType()}

_LAST_NUMBER: Final = (1 << 53) - 1

ROW_INDEX: Final = "_tmp_metadata_row_index"
"""Spark's name for the position of a row: it reads no column of a file that has this name."""

_LOG: Final = "_spark_metadata"
# If Spark ignores the log and reads the folder, this file causes an error instead of an empty result.
_DECOY: Final = "the-log-was-not-read.parquet"
# Spellings of a path on a local disk.
_LOCAL: Final = r"^(file:)?/([^/])"
_S3_STORE: Final = r"^(?P<store>s3[an]?://[^/]+)/"
# Paths that need no escaping in JSON or as URIs.
_PLAIN: Final = r"^[a-z][a-z0-9]*://[A-Za-z0-9_./=:@+,-]*$"


def column_name(place: int) -> str:
    """Return the name of a column of `read_files` by its index in the schema."""
    return f"c{place}"


def read_files(
    spark: SparkSession,
    files: pa.Table,
    schema: StructType,
    settings: Settings,
    extra: Collection[str] = (),
    *,
    filtered: bool = False,
) -> DataFrame:
    """Return the rows of Parquet files.

    Columns: `c0`, `c1` ... (the schema's fields), `number` (the file's) and `pos` (the row's position in the file).

    Args:
        spark: the session.
        files: rows of `FILES`, without duplicate paths or names that Spark ignores.
        schema: columns with their names in the files, none of them `ROW_INDEX`. Columns that a file lacks are null.
        settings: the settings of the session.
        extra: which of `NUMBER` and `POSITION` to add. They have a cost even if they are not selected.
        filtered: whether a filter uses all of `extra`, regardless of what is selected. This makes positions cheaper.

    Raises:
        NotFoundError: a file is missing. With a log, Spark raises its own error when the DataFrame runs.
        SettingError: the setting asks for a log with Spark Connect.
    """
    way = settings.file_handover
    if way == "log" and is_connect(spark):
        raise SettingError(f"{PREFIX}file-handover is log: a Spark Connect server need not see a log of its client")
    by_log = way == "log" or (way == "auto" and understands_logs(spark, files))
    if not by_log:
        return _by_paths(spark, files, schema, extra)
    return _by_log(spark, files, schema, extra, internal_index=filtered or NUMBER not in extra)


def understands_logs(spark: SparkSession, files: pa.Table) -> bool:
    """Return whether the session reads files of a log with correct numbers and positions.

    Runs a job that reads three rows of the first file, and remembers a conclusive result for the session. Returns False
    if the test is inconclusive because the file has no rows or can't be read.
    """
    if is_connect(spark) or not len(files):
        return False
    if spark not in _understood and (rows := _first_rows(spark, files)):
        _understood[spark] = rows == [(_LAST_NUMBER, place) for place in range(len(rows))]
    return _understood.get(spark, False)


_understood: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def _first_rows(spark: SparkSession, files: pa.Table) -> list[tuple[int, int]]:
    place = FILES.get_field_index(NUMBER)
    first = files.slice(0, 1).set_column(place, FILES.field(NUMBER), pa.array([_LAST_NUMBER], pa.int64()))
    try:
        frame = _by_log(spark, first, StructType(), (NUMBER, POSITION), internal_index=True)
        rows = frame.where(f"{NUMBER} + {POSITION} >= 0").limit(3).collect()
    except Exception:  # noqa: BLE001  whatever fails, paths may do
        return []
    return [(row[NUMBER], row[POSITION]) for row in rows]


def _by_log(
    spark: SparkSession, files: pa.Table, schema: StructType, extra: Collection[str], *, internal_index: bool
) -> DataFrame:
    """Read the files of a log.

    Spark refuses a query with both its internal row index and the public one. If a query uses none of the selected
    metadata columns, Spark reads all file metadata, including the public index.
    """
    index = [StructField(ROW_INDEX, LongType())] if POSITION in extra and internal_index else []
    with tempfile.TemporaryDirectory(prefix="sparkmeta-rows-") as folder:
        (Path(folder) / _LOG).mkdir()
        (Path(folder) / _DECOY).write_bytes(b"no Parquet file")
        (Path(folder) / _LOG / "0").write_bytes(b"v1" + _log_lines(_spelled_for(spark, files)))
        reader = spark.read.options(**STRICT_PARQUET, recursiveFileLookup="true")
        frame = reader.schema(StructType([*schema.fields, *index])).parquet(Path(folder).as_uri())
    position = F.col(ROW_INDEX) if index else _metadata(frame, "row_index")
    values = {NUMBER: F.unix_millis(_metadata(frame, "file_modification_time")), POSITION: position}
    return _named(frame, schema, {name: values[name] for name in extra})


def _by_paths(spark: SparkSession, files: pa.Table, schema: StructType, extra: Collection[str]) -> DataFrame:
    locations = files.column("file_path").to_pylist()
    frame = read_parquet(spark, locations, schema)
    path = F.regexp_replace(_metadata(frame, "file_path"), "^s3[an]:", "s3:")
    values = {NUMBER: path, POSITION: _metadata(frame, "row_index")}
    named = _named(frame, schema, {name: values[name] for name in extra})
    columns = [StructField(column_name(place), field.dataType) for place, field in enumerate(schema.fields)]
    row_type = StructType([*columns, *(StructField(name, _EXTRA_TYPES[name]) for name in extra)])
    named = failing_if_skipped(spark, named, locations, row_type)
    if NUMBER not in extra:
        return named
    keys = pa.table({"path": [*map(spark_path_key, locations)], "of_path": files.column(NUMBER)})
    joined = named.join(F.broadcast(local_frame(spark, keys)), F.col(NUMBER) == F.col("path"), "left")
    unknown = F.raise_error(F.concat(F.col(NUMBER), F.lit(": Spark read a file that no plan names"))).cast("bigint")
    return joined.withColumn(NUMBER, F.coalesce("of_path", unknown)).drop("path", "of_path")


def _named(frame: DataFrame, schema: StructType, extra: Mapping[str, Column]) -> DataFrame:
    # `coalesce` only drops column metadata, such as field ids, from the result.
    columns = [
        F.coalesce(F.col(quoted(name))).alias(column_name(place)) for place, name in enumerate(schema.fieldNames())
    ]
    return frame.select(*columns, *(value.alias(name) for name, value in extra.items()))


def _metadata(frame: DataFrame, field: str) -> Column:
    """Return a field of Spark's file metadata, even if a column of the files has the same name."""
    return frame.metadataColumn("_metadata").getField(field)


def _spelled_for(spark: SparkSession, files: pa.Table) -> pa.Table:
    """Return the files with paths in schemes for which Spark has a file system."""
    paths = files.column("file_path")
    for store in pc.unique(pc.struct_field(pc.extract_regex(paths, _S3_STORE), "store")).drop_null().to_pylist():
        paths = pc.replace_substring_regex(paths, f"^{re.escape(store)}/", f"{spelled(spark, store)}/")
    return files.set_column(0, FILES.field(0), paths)


def _log_lines(files: pa.Table) -> bytes:
    """Return the lines of a log. Python objects are created only for paths that need escaping."""
    if not len(files):
        return b""
    paths, sizes, numbers = (column.combine_chunks() for column in files.select(FILES.names).columns)
    paths = pc.replace_substring_regex(paths, _LOCAL, r"file:///\2")
    is_odd = pc.invert(pc.match_substring_regex(paths, _PLAIN))
    uris = pa.array(map(spark_uri, paths.filter(is_odd).to_pylist()), pa.string())
    paths = pc.replace_with_mask(paths, is_odd, uris)
    parts = ('\n{"path":"', paths, '","size":', sizes.cast(pa.string()), ',"isDir":false,"modificationTime":',
             numbers.cast(pa.string()), ',"blockReplication":1,"blockSize":134217728,"action":"add"}')  # fmt: skip
    lines = pc.binary_join_element_wise(*parts, "")
    return bytes(lines.buffers()[2])  # the data buffer: all strings concatenated
