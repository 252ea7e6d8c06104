"""Comparisons of columns in bound form with literals, which are safe for Spark to push into Parquet."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.types import DoubleType, FloatType, IcebergType

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import bound_type, typed_literal

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyiceberg.types import PrimitiveType

Comparison = Callable[[Any, Any], Any]

# Spark passes dates and instants to Parquet as java.sql.Date and Timestamp, whose calendar skips ten days of 1582 and
# overflows near the ends of the range. Before 1900, a pushed comparison may drop rows or fail.
_PUSHED_FROM_DAY: Final = -25_567
_DAY_MICROS: Final = 86_400_000_000

_HEX: Final = "0123456789ABCDEF"
_SIGNED_HEX: Final = "89ABCDEF01234567"
_LAST_BEFORE_SURROGATES: Final = 0xD7FF
_FIRST_AFTER_SURROGATES: Final = 0xE000
_LAST_CODE_POINT: Final = 0x10FFFF


def unpushed(column: Sql) -> Sql:
    """Return the value of a column as an expression that Spark can't push into Parquet, and does not simplify.

    Spark writes a pushed literal with the precision that a decimal has in the file. A file from before the column was
    widened may have a lower one, with which literals overflow: Spark then skips row groups with matches, or fails.
    """
    return sql.call("greatest", column, None)


def is_floating(field_type: IcebergType) -> bool:
    """Return whether values of a type may be NaN."""
    return isinstance(field_type, FloatType | DoubleType)


def compare(
    operation: Comparison,
    column: Sql,
    value: Any,
    primitive: PrimitiveType,
    *,
    strict: bool = False,
) -> Sql:
    """Compare a column in bound form with a literal or another column, by a function of the operator module.

    The result is null if the column is null. Floating point numbers are ordered as in Spark: NaN is the greatest, and
    -0.0 equals 0.0. Two orders of UUIDs are in use, by unsigned bytes and by the two signed halves of java.util.UUID:
    the result is true if the comparison holds in either order, or with ``strict`` in both.
    """
    left, (right,) = _sides(column, [value], primitive)
    compared: Sql = operation(left, right)
    if str(primitive) != "uuid" or operation is operator.eq:
        return compared
    signed: Sql = operation(_signed(column), sql.lit(_signed_text(value)))
    return compared & signed if strict else compared | signed


def compare_signed(operation: Comparison, left: Sql, right: Sql) -> Sql:
    """Compare two columns of UUIDs by their signed halves, the order of java.util.UUID."""
    compared: Sql = operation(_signed(left), _signed(right))
    return compared


def one_of(column: Sql, values: Collection[Any], primitive: PrimitiveType) -> Sql:
    """Return whether a column in bound form equals one of the literals; null if the column is null."""
    left, literals = _sides(column, values, primitive)
    return left.isin(literals)


def _sides(column: Sql, values: Collection[Any], primitive: PrimitiveType) -> tuple[Sql, list[Sql]]:
    """Return a column and the literals, written so that Spark pushes comparisons into Parquet only if that is safe."""
    if any(isinstance(value, Sql) for value in values):
        return _unsigned_zero(column, primitive) if is_floating(primitive) else column, list(values)
    match str(primitive):
        case "date" if min(values) < _PUSHED_FROM_DAY:
            return sql.call("unix_date", column), [sql.lit(value) for value in values]
        case "timestamptz" if min(values) < _PUSHED_FROM_DAY * _DAY_MICROS:
            return sql.call("unix_micros", column), [sql.lit(value).cast("bigint") for value in values]
    if is_floating(primitive):
        return _unsigned_zero(column, primitive), [typed_literal(value + 0.0, primitive) for value in values]
    return column, [typed_literal(value, primitive) for value in values]


def _unsigned_zero(column: Sql, primitive: PrimitiveType) -> Sql:
    """Replace -0.0 by 0.0, which also keeps Spark from using Parquet statistics, which ignore NaN and order zeros."""
    return column + sql.lit(0.0).cast(bound_type(primitive))


def _signed(column: Sql) -> Sql:
    """Return a text that sorts like java.util.UUID."""
    digits = sql.call("hex", column)
    return sql.concat(
        *(
            part
            for start in (1, 17)
            for part in (
                sql.call("translate", sql.call("substring", digits, start, 1), _HEX, _SIGNED_HEX),
                sql.call("substring", digits, start + 1, 15),
            )
        )
    )


def _signed_text(value: bytes) -> str:
    digits = value.hex().upper()
    flip = str.maketrans(_HEX, _SIGNED_HEX)
    return digits[0].translate(flip) + digits[1:16] + digits[16].translate(flip) + digits[17:]


def prefix_end(prefix: str) -> str | None:
    """Return the least string that is greater than every string with a prefix; None if there is none."""
    for end in range(len(prefix), 0, -1):
        code_point = ord(prefix[end - 1])
        if code_point < _LAST_CODE_POINT:
            following = _FIRST_AFTER_SURROGATES if code_point == _LAST_BEFORE_SURROGATES else code_point + 1
            return prefix[: end - 1] + chr(following)
    return None
