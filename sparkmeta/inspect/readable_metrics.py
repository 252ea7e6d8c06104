"""The column readable_metrics: the metrics of every leaf column of the table's schema, with typed bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.types import NestedField, PrimitiveType
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from sparkmeta.columns import sql
from sparkmeta.columns.types import public_value, spark_type
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.spec.schema import VariantType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql import Column

READABLE_METRICS = "readable_metrics"
SOURCE = "column_sizes"
"""The column that is read in addition to content_stats of the leaf columns."""

_COUNTS = ("column_size", "value_count", "null_value_count", "nan_value_count")
_BOUNDS = ("lower_bound", "upper_bound")


def leaf_columns(schema: Schema) -> dict[str, NestedField]:
    """Return the columns that have metrics, by full name, in the order of Java's strings (UTF-16 code units)."""
    names = index_name_by_id(schema)
    leaves = {
        names[field_id]: field
        for field_id, field in index_by_id(schema).items()
        if isinstance(field.field_type, PrimitiveType) and not isinstance(field.field_type, VariantType)
    }
    return dict(sorted(leaves.items(), key=lambda item: item[0].encode("utf-16-be", "surrogatepass")))


def readable_metrics(leaves: Mapping[str, NestedField]) -> Column:
    """Return a struct with a struct for each leaf column, from an entry's stats and `column_sizes`."""
    metrics = F.struct(*(_metrics(field).alias(name) for name, field in leaves.items()))
    # Iceberg declares the column as optional, though it is never null.
    return F.when(F.col("location").isNotNull(), metrics.cast(_type(leaves))).alias(READABLE_METRICS)


def _metrics(field: NestedField) -> Column:
    stats = f"{CONTENT_STATS}.`{field.field_id}`"
    size = F.try_element_at(F.col(SOURCE), F.lit(field.field_id))
    counts = (F.col(f"{stats}.{name}") for name in _COUNTS[1:])
    kind = cast("PrimitiveType", field.field_type)
    bounds = (public_value(sql.col(f"{stats}.{name}"), kind).column() for name in _BOUNDS)
    return F.struct(size, *counts, *bounds)


def _type(leaves: Mapping[str, NestedField]) -> StructType:
    metrics = StructType()
    for name, field in leaves.items():
        kind = spark_type(field.field_type)
        of_column = StructType()
        for count in _COUNTS:
            of_column.add(count, LongType())
        for bound in _BOUNDS:
            of_column.add(bound, kind)
        metrics.add(name, of_column)
    return metrics
