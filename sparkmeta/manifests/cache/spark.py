"""Read leaves of the manifest cache with Spark's Parquet reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.arrow_types import spark_schema
from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.entries.locations import ENTRY_LOCATIONS
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.manifests.decoder import CACHED_LEAF
from sparkmeta.manifests.v4.spark import read_leaves, resolved, version_info
from sparkmeta.spec.entry import ROW_ID_OFFSET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.spec.locations import Locations


def read_cached_entries(
    spark: SparkSession, parts: pa.Table, projection: EntryProjection, locations: Locations
) -> DataFrame:
    """Return every physical entry of parts, rows of `PART_SCHEMA` with their `CACHED_LEAF`, as a lazy DataFrame.

    For a leaf that was damaged after it was written, Spark raises an error that names it.

    Args:
        spark: the session.
        parts: the parts.
        projection: the columns to return.
        locations: resolves the locations in manifests. Those in leaves are absolute, but may lack a scheme.
    """
    leaves = parts.set_column(parts.column_names.index("location"), "location", parts.column(CACHED_LEAF))
    read = read_leaves(spark, leaves, spark_schema(_read_schema(projection)), ORDINAL)
    older = locations.before_version_4
    columns = [_column(name, read.inherited, older).alias(name) for name in projection.columns]
    for name, fields in ((PARTITION, projection.partition), (CONTENT_STATS, projection.stats)):
        if fields:
            columns.append(
                sql.struct(*(sql.col(f"{name}.`{field_id}`").alias(str(field_id)) for field_id, _ in fields)).alias(
                    name
                )
            )
    return read.frame.selectExpr(*sql.texts([*columns, read.manifest.alias(MANIFEST)]), ORDINAL)


def _read_schema(projection: EntryProjection) -> pa.Schema:
    read = EntryProjection.of({*projection.columns, "version_info"}, dict(projection.partition), dict(projection.stats))
    fields = [field.with_nullable(True) for field in read.schema if field.name != MANIFEST]
    if "first_row_id" in projection.columns:
        fields.append(pa.field(ROW_ID_OFFSET.name, ROW_ID_OFFSET.type))
    return pa.schema(fields)


def _column(name: str, inherited: Sql, locations: Locations) -> Sql:
    if name in ENTRY_LOCATIONS and locations.rooted:
        return resolved(sql.col(name), locations)
    if name == "version_info":
        return version_info(inherited, of_version_1=True)
    return _row_id(inherited) if name == "first_row_id" else sql.col(name)


def _row_id(inherited: Sql) -> Sql:
    """Return the first row id that `RowIdCounter` assigns: null if the manifest has none."""
    start, offset = inherited["first_row_id"], sql.col(ROW_ID_OFFSET.name)
    return sql.when(start.isNotNull(), sql.coalesce(sql.col("first_row_id"), start + offset))
