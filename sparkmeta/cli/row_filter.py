"""Conditions in Spark SQL that Arrow can evaluate: comparisons of columns with literals, joined by AND, OR and NOT."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from sparkmeta.errors import InvalidArgumentError, InvalidFilterError, hint_at, shown
from sparkmeta.expr import sql
from sparkmeta.expr.predicate import bind_filter, parse_filter, referenced_names, row_predicate
from sparkmeta.spec.functions import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.types import IcebergType

    from sparkmeta.expr.sql import Sql

# Syntax that filters and Spark SQL read differently, or that only filters have.
_OTHERWISE: Final = re.compile(
    rf"[\"\\`]|\bis\s+(?:not\s+)?nan\b|\blike\s*'(?:[^']|'')*_|\b(?:{'|'.join(NAMES)})\s*\(", re.IGNORECASE
)
# Without float, whose values Spark converts to double before it compares them with literals.
_TYPES: Final[dict[pa.DataType, IcebergType]] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}


def arrow_condition(where: str, rows: pa.Schema) -> Sql | None:
    """Return a condition in Spark SQL as an expression for Arrow; None if only Spark can evaluate it.

    Args:
        where: the condition.
        rows: the schema of the rows.

    Raises:
        InvalidArgumentError: the condition is simple, but on a column that the rows do not have.
    """
    if _OTHERWISE.search(where):
        return None
    try:
        condition = parse_filter(where)
    except InvalidFilterError:
        return None
    refuse_unknown(referenced_names(condition), rows.names)
    columns: dict[int, Sql] = {}
    schema = Schema(*_fields(rows, None, columns, count(1)))
    try:
        bound = bind_filter(condition, schema, case_sensitive=False)
    except InvalidFilterError:
        return None
    return row_predicate(bound, columns.__getitem__)


def refuse_unknown(named: Iterable[str], columns: list[str]) -> None:
    """Raise InvalidArgumentError for a name that begins with the name of no column."""
    known = [column.lower() for column in columns]
    for name in named:
        if not any(f"{name.lower()}.".startswith(f"{column}.") for column in known):
            raise InvalidArgumentError(f"no column {shown(name)} in the rows{hint_at(name, columns)}")


def _fields(
    fields: Iterable[pa.Field], above: Sql | None, columns: dict[int, Sql], ids: Iterator[int]
) -> Iterator[NestedField]:
    """Yield the fields that conditions can compare, and add their expressions to `columns` by the ids they get."""
    for field in fields:
        number = next(ids)
        columns[number] = sql.col(sql.quoted(field.name)) if above is None else above[field.name]
        kind = _TYPES.get(field.type)
        if pa.types.is_decimal(field.type):
            kind = DecimalType(field.type.precision, field.type.scale)
        elif pa.types.is_struct(field.type):
            kind = StructType(*_fields(field.type, columns[number], columns, ids))
        if kind is not None:
            yield NestedField(number, field.name, kind, required=False)
