"""Compute partition values of rows in Spark SQL (table spec, Partition Transforms)."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import spark_type

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform

# Spark's hash is 32-bit Murmur3 with the seed 42, and the hash of a value is the seed of the next one. The hash of
# this int is 0, the seed that Iceberg takes. Spark hashes bytes beyond a multiple of 4 in its own way.
_SEED: Final = sql.call("int", -1693959553)
_WORD_BYTES: Final = 4
_UUID_BYTES: Final = 16

_LEAST_LONG: Final = sql.lit(-(1 << 63))
_MOST_LONG: Final = sql.lit((1 << 63) - 1)
_HOUR_MICROS: Final = 3_600_000_000
_DAY_MICROS: Final = 24 * _HOUR_MICROS
_MOST_DIGITS: Final = 38
# Spark takes digits of the scale from results with too many digits, but leaves this many.
_KEPT_SCALE: Final = 6


def partition_value(transform: Transform[Any, Any], source: IcebergType, value: Sql) -> Sql | None:
    """Return the transform of a value; None if Spark SQL has no exact form of it, see `python_transform`.

    Args:
        transform: a transform of the spec, not an unknown one.
        source: the type of the column.
        value: a value of `spark_type(source)`.

    Returns:
        A value of the `spark_type` of the transform's result. It does not depend on the session's time zone. Truncated
        decimals with more digits than their type has are null.
    """
    match transform:
        case IdentityTransform():
            return value
        case VoidTransform():
            return Sql("NULL").cast(spark_type(source))
        case BucketTransform():
            hashed = _hashed(source, value)
            return None if hashed is None else sql.when(value.isNotNull(), _bucket(hashed, transform.num_buckets))
        case TruncateTransform():
            return _truncated(source, value, transform.width)
        case TimeTransform():
            return _period(transform, source, value)
    raise ValueError(f"{transform} is not a transform of Iceberg")


def _bucket(hashed: Sql, count: int) -> Sql:
    return Sql(f"(({hashed.text} & 2147483647) % {count})")


def _hashed(source: IcebergType, value: Sql) -> Sql | None:
    match source:
        case IntegerType() | LongType() | TimeType():
            return _hash(value.cast("BIGINT"))
        case DateType():
            return _hash(sql.call("unix_date", value).cast("BIGINT"))
        case TimestampType() | TimestamptzType():
            return _hash(value)
        case TimestampNanoType() | TimestamptzNanoType():
            return _hash(_floor_div(value, 1000))
        case UUIDType():
            return _hash(sql.call("unhex", sql.call("replace", value, "-", "")))
        case FixedType() if len(source) % _WORD_BYTES == 0:
            return _hash(value)
    return None


def _hash(value: Sql) -> Sql:
    return sql.call("hash", _SEED, value)


def _floor_div(value: Sql, unit: int) -> Sql:
    """Return a bigint divided by a unit and rounded down."""
    return Sql(f"({value.text} div {unit} - CAST({value.text} % {unit} < 0 AS BIGINT))")


def _truncated(source: IcebergType, value: Sql, width: int) -> Sql | None:
    match source:
        case StringType() | BinaryType():
            return sql.call("substring", value, 1, width)
        case IntegerType():
            # As in Java, values below the least int wrap around.
            wide = value.cast("BIGINT")
            return sql.let(
                wide - sql.call("pmod", wide, sql.lit(width).cast("BIGINT")),
                lambda cut: sql.when(cut < -(1 << 31), cut + (1 << 32)).otherwise(cut).cast("INT"),
            )
        case LongType():
            return sql.let(value, lambda number: _truncated_long(number, sql.lit(width).cast("BIGINT")))
        case DecimalType() if source.precision < _MOST_DIGITS or source.scale <= _KEPT_SCALE:
            step = Decimal(width).scaleb(-source.scale)
            kind = f"DECIMAL({source.precision}, {source.scale})"
            wide = Sql(f"CAST('{step:f}' AS DECIMAL({_MOST_DIGITS}, {source.scale}))")
            rest = Sql(f"CAST({sql.call('pmod', value, wide).text} AS {kind})")
            if step >= 10 ** (source.precision - source.scale):
                return None
            return Sql(f"TRY_CAST({sql.call('try_subtract', value, rest).text} AS {kind})")
    return None


def _truncated_long(number: Sql, width: Sql) -> Sql:
    rest = sql.call("pmod", number, width)
    # As in Java, values below the least long wrap around. No intermediate result may, nor a sum of literals, which the
    # optimizer computes even if no row needs it.
    above_least = number - _LEAST_LONG
    return sql.when(number < _LEAST_LONG + rest, _MOST_LONG - (rest - above_least - 1)).otherwise(number - rest)


def _period(transform: TimeTransform[Any], source: IcebergType, value: Sql) -> Sql:
    if isinstance(transform, HourTransform):
        if isinstance(source, TimestampType):
            days = sql.call("unix_date", value.cast("DATE"))
            return Sql(f"({days.text} * 24 + {sql.call('hour', value).text})")
        return _floor_div(_micros(source, value), _HOUR_MICROS).cast("INT")
    day = _day(source, value)
    match transform:
        case DayTransform():
            return day
        case MonthTransform():
            return sql.let(day, lambda date: Sql(f"((year({date.text}) - 1970) * 12 + month({date.text}) - 1)"))
        case YearTransform():
            return Sql(f"(year({day.text}) - 1970)")
    raise ValueError(f"{transform} is not a transform of Iceberg")


def _day(source: IcebergType, value: Sql) -> Sql:
    """Return the date in UTC."""
    if isinstance(source, DateType):
        return value
    if isinstance(source, TimestampType):
        return value.cast("DATE")
    return sql.call("date_from_unix_date", _floor_div(_micros(source, value), _DAY_MICROS).cast("INT"))


def _micros(source: IcebergType, value: Sql) -> Sql:
    if isinstance(source, TimestamptzType):
        return sql.call("unix_micros", value)
    return _floor_div(value, 1000)
