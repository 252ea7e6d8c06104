"""Compare stats of equality deletes and data files: can they have a value of a column in common?"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyiceberg.types import DoubleType, FloatType, IcebergType, UUIDType

from sparkmeta.columns import sql
from sparkmeta.entries.projection import CONTENT_STATS

if TYPE_CHECKING:
    from sparkmeta.columns.sql import Sql
    from sparkmeta.state import TableState


def may_share_values(delete: Sql, field_id: int, state: TableState) -> Sql:
    """Return false only if stats of a column prove that the files have no value, including null, in common.

    Args:
        delete: a delete of a group. The data file's stats are columns of the row.
        field_id: the column.
        state: the table.
    """
    required, kind = state.types.always_required(field_id), state.types.primitive_fields[field_id].field_type
    data, deleted = data_stats(field_id), delete[CONTENT_STATS][str(field_id)]
    null_in_data = _may_be_null(data, sql.col("record_count"), required)
    null_in_delete = _may_be_null(deleted, delete["record_count"], required)
    both_null = null_in_data & null_in_delete
    apart = (_all_null(data, required) & ~null_in_delete) | (_all_null(deleted, required) & ~null_in_data)
    if _is_ordered(kind):
        apart = apart | _disjoint(data, deleted, isinstance(kind, FloatType | DoubleType))
    return both_null | ~apart


def data_stats(field_id: int) -> Sql:
    """Return the stats of a column in a data entry."""
    return sql.col(f"{CONTENT_STATS}.`{field_id}`")


def extremes_decide(deletes: Sql, field_id: int, state: TableState) -> Sql:
    """Return whether `extreme_bounds` of deletes is as selective as their own stats."""
    if isinstance(state.types.primitive_fields[field_id].field_type, FloatType | DoubleType):
        return ~sql.exists(deletes, lambda _: sql.lit(True))
    required = state.types.always_required(field_id)
    return ~sql.exists(deletes, lambda delete: _all_null(delete[CONTENT_STATS][str(field_id)], required))


def extreme_bounds(deletes: Sql, field_id: int, state: TableState) -> Sql:
    """Return struct<lower, upper> with the greatest lower and least upper bound of the deletes that have both.

    Null if bounds prove nothing.
    """
    if not _is_ordered(state.types.primitive_fields[field_id].field_type):
        return sql.struct(sql.lit(None).alias("lower"), sql.lit(None).alias("upper"))

    def bound(name: str) -> Callable[[Sql], Sql]:
        return lambda delete: delete[CONTENT_STATS][str(field_id)][name]

    lower, upper = bound("lower_bound"), bound("upper_bound")
    bounded = sql.filter(deletes, lambda delete: lower(delete) <= upper(delete))
    greatest = sql.call("array_max", sql.transform(bounded, lower))
    least = sql.call("array_min", sql.transform(bounded, upper))
    return sql.struct(greatest.alias("lower"), least.alias("upper"))


def meets_all(extremes: Sql, field_id: int, state: TableState) -> list[Sql]:
    """Return conditions, all true if a data file may share values with every delete, given their extreme bounds."""
    data = data_stats(field_id)
    conditions = [~_all_null(data, state.types.always_required(field_id))]
    if _is_ordered(state.types.primitive_fields[field_id].field_type):
        apart = (data["lower_bound"] > extremes["upper"]) | (extremes["lower"] > data["upper_bound"])
        inverted = data["lower_bound"] > data["upper_bound"]
        conditions.append(~sql.coalesce(apart & ~sql.coalesce(inverted, False), False))
    return conditions


def _is_ordered(kind: IcebergType) -> bool:
    """Return whether ranges of bounds are meaningful. Java and Parquet order UUIDs differently."""
    return not isinstance(kind, UUIDType)


def _may_be_null(stats: Sql, record_count: Sql, required: bool) -> Sql:
    """Return whether a row may be null. Rows with a null parent struct are null, and may be missing in the counts."""
    uncounted = sql.coalesce(stats["value_count"] < record_count, False)
    return sql.lit(False) if required else ~stats["null_value_count"].eqNullSafe(0) | uncounted


def _all_null(stats: Sql, required: bool) -> Sql:
    nulls = stats["null_value_count"]
    return sql.lit(False) if required else sql.coalesce((nulls == stats["value_count"]) & (nulls >= 0), False)


def _disjoint(data: Sql, deleted: Sql, floating: bool) -> Sql:
    bounds = [stats[name] for stats in (data, deleted) for name in ("lower_bound", "upper_bound")]
    lower, upper, deleted_lower, deleted_upper = bounds
    apart = (lower > deleted_upper) | (deleted_lower > upper)
    known = reduce(and_, (bound.isNotNull() & ~sql.isnan(bound) if floating else bound.isNotNull() for bound in bounds))
    ordered = (lower <= upper) & (deleted_lower <= deleted_upper)
    return sql.coalesce(known & ordered & apart, False)
