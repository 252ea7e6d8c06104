"""Derive a filter that every row with one of the given keys satisfies. It prunes files and limits conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, IsNull, LessThanOrEqual, Or
from pyiceberg.expressions.literals import DateLiteral
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, StringType
from pyspark.sql import functions as F

from sparkmeta.columns.sql import quoted

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import Column, DataFrame

# Key types whose minimum and maximum prune files.
_RANGED: Final = (IntegerType, LongType, StringType, DateType)


def count_and_range(
    rows: DataFrame, schema: Schema, keys: Sequence[str], *, null_is_a_key: bool = False
) -> tuple[int, BooleanExpression]:
    """Return the number of rows, and a filter that every table row with one of their keys satisfies. Runs a job.

    Args:
        rows: the rows, with the columns of the key.
        schema: the table's.
        keys: the key columns, all top-level.
        null_is_a_key: whether a null in a key equals null.
    """
    ranged = [name for name in keys if isinstance(schema.find_field(name).field_type, _RANGED)]
    kinds = {name: schema.find_field(name).field_type for name in ranged}
    ends = [
        end(_comparable(quoted(name), kinds[name])).alias(f"{end.__name__}{place}")
        for place, name in enumerate(ranged)
        for end in (F.min, F.max, F.count)
    ]
    values = rows.agg(F.count("*").alias("count"), *ends).toArrow().to_pylist()[0]
    row_filter: BooleanExpression = AlwaysTrue()
    for place, name in enumerate(ranged):
        least, most = values[f"min{place}"], values[f"max{place}"]
        is_null = IsNull(name)  # type: ignore[arg-type, call-arg]
        if least is None:
            if null_is_a_key:
                row_filter = And(row_filter, is_null)
            continue
        if isinstance(kinds[name], DateType):
            least, most = DateLiteral(least), DateLiteral(most)
        at_least = GreaterThanOrEqual(name, least)  # type: ignore[arg-type, call-arg]
        at_most = LessThanOrEqual(name, most)  # type: ignore[arg-type, call-arg]
        in_range: BooleanExpression = And(at_least, at_most)
        if null_is_a_key and values[f"count{place}"] < values["count"]:
            in_range = Or(in_range, is_null)
        row_filter = And(row_filter, in_range)
    return values["count"], row_filter


def _comparable(name: str, kind: IcebergType) -> Column:
    """Return a key column with the order of the table's values, which a collation of the rows may lack."""
    if isinstance(kind, DateType):
        return F.unix_date(name)  # Python has no dates after the year 9999.
    return F.col(name).cast("string") if isinstance(kind, StringType) else F.col(name)
