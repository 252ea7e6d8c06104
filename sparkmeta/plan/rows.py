"""Shared expressions over entry rows: stats, partition values, the public partition tuple, paths and long texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from sparkmeta.columns import sql
from sparkmeta.columns.field_stats import FieldStats
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import public_value, spark_type
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION
from sparkmeta.session import local_frame

if TYPE_CHECKING:
    from pyiceberg.types import PrimitiveType
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.state import TableState

DELETES = "deletes"
DELETES_TYPE = ArrayType(
    StructType(
        [
            StructField("content", IntegerType()),
            StructField("file_path", StringType()),
            StructField("file_format", StringType()),
            StructField("file_size_in_bytes", LongType()),
            StructField("referenced_data_file", StringType()),
            StructField("content_offset", LongType()),
            StructField("content_size_in_bytes", LongType()),
            StructField("record_count", LongType()),
            StructField("data_sequence_number", LongType()),
            StructField("equality_ids", ArrayType(IntegerType())),
            StructField("manifest_path", StringType()),
            StructField("manifest_pos", LongType()),
        ]
    )
)
NO_DELETES = sql.empty_array(sql.lit(None).cast(DELETES_TYPE.elementType))

_SEPARATOR = "\x00"

_LONG_TEXTS = "long_texts"
# Number of characters from which a text is worth a join.
_LONG = 10_000


def entry_stats(field_id: int) -> FieldStats:
    """Return the stats of a column in an entry's content_stats."""
    return stats_in(sql.col(CONTENT_STATS), field_id)


def stats_in(stats: Sql, field_id: int) -> FieldStats:
    """Return the stats of a column in a `content_stats`."""
    return FieldStats(*(stats[str(field_id)][name] for name in FieldStats._fields))


def partition_value(field_id: int) -> Sql:
    """Return a field of an entry's partition tuple."""
    return sql.col(f"{PARTITION}.`{field_id}`")


def public_partition(state: TableState) -> Sql:
    """Return the partition tuple as in metadata tables, with Iceberg's names and Iceberg's types in Spark."""
    return sql.struct(
        *(
            public_value(partition_value(field.field_id), cast("PrimitiveType", field.field_type)).alias(field.name)
            for field in state.types.partition_type.fields
        )
    )


def full_partition(state: TableState) -> Sql:
    """Return the partition tuple with the fields of all specs, as commits take it; see `partition_field_names`."""
    names = state.types.partition_field_names
    return sql.struct(*(partition_value(field_id).alias(name) for field_id, name in names.items()))


def public_partition_type(state: TableState) -> StructType:
    """Return the Spark type of `public_partition`."""
    return StructType(
        [StructField(field.name, spark_type(field.field_type)) for field in state.types.partition_type.fields]
    )


def manifest_path(manifests: pa.Table, manifest: Sql) -> Sql:
    """Return the location of a manifest by its small id.

    This is one literal that Spark folds into an array: it needs no join and stays small for any number of manifests.
    """
    paths = dict(zip(manifests.column("manifest").to_pylist(), manifests.column("location").to_pylist(), strict=True))
    listed = _SEPARATOR.join(paths.get(small_id, "") for small_id in range(max(paths, default=-1) + 1))
    return sql.call("split", listed, _SEPARATOR)[manifest]


def public_delete(delete: Sql, manifests: pa.Table) -> Sql:
    """Return a delete of a group in the form of plans. `manifests` are those of the deletes."""
    return sql.struct(
        delete["content_type"].alias("content"),
        delete["location"].alias("file_path"),
        delete["file_format"].alias("file_format"),
        delete["file_size_in_bytes"].alias("file_size_in_bytes"),
        delete["referenced_file"].alias("referenced_data_file"),
        delete["offset"].alias("content_offset"),
        delete["size_in_bytes"].alias("content_size_in_bytes"),
        delete["record_count"].alias("record_count"),
        delete["sequence_number"].alias("data_sequence_number"),
        delete["equality_ids"].alias("equality_ids"),
        manifest_path(manifests, delete["manifest"]).alias("manifest_path"),
        delete["ordinal"].alias("manifest_pos"),
    )


def shown_deletes(deletes: Sql) -> str:
    """Return an array of `DELETES_TYPE` in the form of plans. Avoids a cast, which would copy each delete."""
    return deletes.alias(DELETES).selected


class SharedTexts:
    """Constant texts of a plan's rows. Long texts are in a broadcast relation with a single row.

    As literals, they would occur in each plan description that Spark builds and keeps. For a few local rows, Spark's
    optimizer would also compute all results at once, each with a copy.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []

    def literal(self, text: str) -> Sql:
        """Return an expression for a text, to be selected from the rows of `joined_to`."""
        if len(text) <= _LONG:
            return sql.lit(text)
        if text not in self._texts:
            self._texts.append(text)
        return sql.call("get", sql.col(_LONG_TEXTS), self._texts.index(text))

    def joined_to(self, rows: DataFrame, spark: SparkSession) -> DataFrame:
        """Add the long texts to rows in one more column."""
        if not self._texts:
            return rows
        texts = pa.table({_LONG_TEXTS: pa.array([self._texts], pa.list_(pa.string()))})
        return rows.crossJoin(F.broadcast(local_frame(spark, texts)))
