"""Convert Iceberg types and literals to Spark's, exactly or not at all."""

from __future__ import annotations

import enum
import math
import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pyiceberg.expressions.literals import (
    BinaryLiteral,
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FixedLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimeLiteral,
    TimestampLiteral,
    UUIDLiteral,
)
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    MapType,
    PrimitiveType,
    StringType,
    StructType,
)

from sparkmeta.errors import shown
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.spec.iso_times import DAY_MICROS, EPOCH_DAY, iso_days, iso_nanos, iso_nanos_of_day, iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import types as spark


# -- Filter literals as values of a column's type ---------------------------------------------------------------------


_INT: Final = (-(2**31), 2**31 - 1)
_LONG: Final = (-(2**63), 2**63 - 1)
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_DOUBLE_MAX: Final = int(np.finfo(np.float64).max)
_UNBOUNDED: Final = Context(prec=1000)


class Place(enum.Enum):
    """The place of a literal among the values of a column's type."""

    AT = enum.auto()
    JUST_ABOVE = enum.auto()
    """Between the value and the next greater one of the type."""
    ABOVE_MAX = enum.auto()
    BELOW_MIN = enum.auto()


class Placed(NamedTuple):
    """A value of a type, as in pyiceberg's literals, and the place of a literal relative to it."""

    value: Any
    place: Place = Place.AT


def place_literal(literal: Literal[Any], primitive: PrimitiveType) -> Placed:
    """Return a literal's place among the values of a column's type.

    Conversions are Iceberg's: numbers to numbers, integers to dates (days), times and timestamps (micros), timestamps
    to dates, ISO 8601 strings to dates, times and timestamps (with an offset for timestamptz, without one for
    timestamp), hexadecimal strings to fixed and binary. Floating point literals are rounded to the scale of a decimal
    and to the precision of a float. Integers and decimals are never rounded, but placed between values.

    Raises:
        ValueError: the literal can't be converted to the type.
    """
    convert = _CONVERSIONS.get(_kind(primitive))
    if convert is None:
        raise ValueError(f"values of type {primitive} can't be compared")
    placed = convert(literal, primitive)
    if placed is None:
        hint = "; text has single quotes" if isinstance(primitive, StringType) else ""
        raise ValueError(f"{shown(literal.value)} does not convert to {primitive}{hint}")
    return placed


def _kind(primitive: PrimitiveType) -> str:
    return str(primitive).partition("(")[0].partition("[")[0]


def _boolean(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
    match literal:
        case BooleanLiteral():
            return Placed(literal.value)
        case StringLiteral() if literal.value.lower() in ("true", "false"):
            return Placed(literal.value.lower() == "true")
    return None


def _integer(low: int, high: int) -> Callable[[Literal[Any], PrimitiveType], Placed | None]:
    def convert(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
        if isinstance(literal, LongLiteral) and low <= literal.value <= high:
            return Placed(literal.value)
        if isinstance(literal, LongLiteral | DecimalLiteral | StringLiteral):
            placed = _on_grid(_number(literal), 0, low, high)
            return placed._replace(value=int(placed.value))
        return None

    return convert


def _on_grid(number: Decimal, scale: int, low: int, high: int) -> Placed:
    """Place a number among the multiples of 10^-scale with an unscaled value from low to high."""
    if number > (top := _scaled(high, scale)):
        return Placed(top, Place.ABOVE_MAX)
    if number < (bottom := _scaled(low, scale)):
        return Placed(bottom, Place.BELOW_MIN)
    floor = number.quantize(Decimal((0, (1,), -scale)), ROUND_FLOOR, _UNBOUNDED)
    return Placed(floor, Place.AT if floor == number else Place.JUST_ABOVE)


def _scaled(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, _UNBOUNDED)


def _number(literal: Literal[Any]) -> Decimal:
    try:
        number = Decimal(literal.value)
    except InvalidOperation as problem:
        raise ValueError(f"{shown(literal.value)} is not a number") from problem
    if number.is_nan():
        raise ValueError("NaN can't be compared; use IS NAN")
    return number


def _decimal(literal: Literal[Any], primitive: PrimitiveType) -> Placed | None:
    assert isinstance(primitive, DecimalType)
    limit = 10**primitive.precision - 1
    match literal:
        case LongLiteral() | DecimalLiteral() | StringLiteral():
            return _on_grid(_number(literal), primitive.scale, -limit, limit)
        case FloatLiteral() | DoubleLiteral():
            number = Decimal(repr(literal.value))
            if number.is_finite():
                number = number.quantize(Decimal((0, (1,), -primitive.scale)), ROUND_HALF_UP, _UNBOUNDED)
            return _on_grid(number, primitive.scale, -limit, limit)
    return None


def _double(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
    if isinstance(literal, LongLiteral | DecimalLiteral | StringLiteral):
        number = _number(literal)
        placed = _in_range(number, -_DOUBLE_MAX, _DOUBLE_MAX) if number.is_finite() else Placed(number)
        return placed._replace(value=float(placed.value))
    if isinstance(literal, FloatLiteral | DoubleLiteral):
        return Placed(literal.value)
    return None


def _float(literal: Literal[Any], primitive: PrimitiveType) -> Placed | None:
    placed = _double(literal, primitive)
    if placed is None:
        return None
    if math.isfinite(placed.value):
        placed = _in_range(placed.value, -_FLOAT_MAX, _FLOAT_MAX)
    return placed._replace(value=float(np.float32(placed.value)))


def _in_range(number: Any, low: float, high: float) -> Placed:
    """Place a number among the values of a type from low to high. Beyond them, the value is the nearest one."""
    if number > high:
        return Placed(high, Place.ABOVE_MAX)
    return Placed(low, Place.BELOW_MIN) if number < low else Placed(number)


def _date(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
    match literal:
        case LongLiteral() | DateLiteral():
            return _in_range(literal.value, *_INT)
        case TimestampLiteral():
            return _in_range(literal.value // DAY_MICROS, *_INT)
        case StringLiteral():
            return _in_range(iso_days(literal.value), *_INT)
    return None


def _time(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
    match literal:
        case LongLiteral() | TimeLiteral():
            return _in_range(literal.value, 0, DAY_MICROS - 1)
        case StringLiteral():
            return _on_tick(iso_nanos_of_day(literal.value), 1000)
    return None


def _timestamp(nanos_per_tick: int, zoned: bool) -> Callable[[Literal[Any], PrimitiveType], Placed | None]:
    def convert(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
        match literal:
            case LongLiteral() | TimestampLiteral():
                return _in_range(literal.value * 1000 // nanos_per_tick, *_LONG)
            case StringLiteral():
                return _on_tick(iso_nanos(literal.value, zoned), nanos_per_tick)
        return None

    return convert


def _on_tick(nanos: int, nanos_per_tick: int) -> Placed:
    ticks, remainder = divmod(nanos, nanos_per_tick)
    placed = _in_range(ticks, *_LONG)
    return Placed(ticks, Place.JUST_ABOVE) if remainder and placed.place is Place.AT else placed


def _string(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
    if not isinstance(literal, StringLiteral):
        return None
    try:
        literal.value.encode()
    except UnicodeEncodeError as problem:
        raise ValueError("it is not valid Unicode") from problem
    return Placed(literal.value)


def _uuid(literal: Literal[Any], _type: PrimitiveType) -> Placed | None:
    match literal:
        case UUIDLiteral() | FixedLiteral() | BinaryLiteral() if len(literal.value) == 16:
            return Placed(literal.value)
        case StringLiteral():
            return Placed(uuid.UUID(literal.value).bytes)
    return None


def _binary(literal: Literal[Any], primitive: PrimitiveType) -> Placed | None:
    match literal:
        case UUIDLiteral() | FixedLiteral() | BinaryLiteral():
            value = literal.value
        case StringLiteral() if re.fullmatch("(?:[0-9a-fA-F]{2})*", literal.value):
            value = bytes.fromhex(literal.value)
        case _:
            return None
    if isinstance(primitive, FixedType) and len(value) != len(primitive):
        raise ValueError(f"it has {len(value)} bytes, not {len(primitive)}")
    return Placed(value)


_CONVERSIONS: Final[dict[str, Callable[[Literal[Any], PrimitiveType], Placed | None]]] = {
    "boolean": _boolean,
    "int": _integer(*_INT),
    "long": _integer(*_LONG),
    "float": _float,
    "double": _double,
    "decimal": _decimal,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp(1000, zoned=False),
    "timestamptz": _timestamp(1000, zoned=True),
    "timestamp_ns": _timestamp(1, zoned=False),
    "timestamptz_ns": _timestamp(1, zoned=True),
    "string": _string,
    "uuid": _uuid,
    "fixed": _binary,
    "binary": _binary,
}


def bound_value(value: Any) -> Any:
    """Convert a value of pyiceberg or Arrow to bound form: dates and times to numbers, UUIDs to bytes."""
    match value:
        case datetime():
            since = value.replace(tzinfo=value.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            return since // datetime.resolution
        case date():
            return value.toordinal() - EPOCH_DAY
        case time():
            return bound_value(datetime.combine(date(1970, 1, 1), value))
        case uuid.UUID():
            return value.bytes
    return value


# -- Iceberg types and literals in Spark ------------------------------------------------------------------------------


# The names of Spark's classes, which are imported when a type is needed.
_SPARK_TYPES: Final[dict[str, str]] = {
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "date": "DateType",
    "time": "LongType",
    "timestamp": "TimestampNTZType",
    "timestamptz": "TimestampType",
    "timestamp_ns": "LongType",
    "timestamptz_ns": "LongType",
    "string": "StringType",
    "uuid": "StringType",
    "binary": "BinaryType",
    "variant": "VariantType",
    "unknown": "NullType",
}
_BOUND_TYPES: Final[dict[str, str]] = _SPARK_TYPES | {
    "uuid": "BinaryType",
    "variant": "BinaryType",
}

_EXACT: Final = Context(prec=76, traps=[Inexact, InvalidOperation])
UUID_DIGITS: Final = "^(.{8})(.{4})(.{4})(.{4})(.{12})$"
"""The 32 hexadecimal digits of a UUID, as a regular expression."""
UUID_TEXT: Final = "$1-$2-$3-$4-$5"
"""The replacement for matches of `UUID_DIGITS`."""


def spark_type(iceberg_type: IcebergType) -> spark.DataType:
    """Return the Spark type that Iceberg's Spark integration uses for a type.

    UUIDs are strings, times and nanosecond timestamps 64-bit integers, and fixed, geometry and geography binary, since
    Spark has no types for these. All fields in it are nullable, as in what Spark reads from files: a required field is
    null where its optional struct is.

    Raises:
        ValueError: not an Iceberg type.
    """
    from pyspark.sql import types as spark

    match iceberg_type:
        case StructType():
            return spark.StructType(
                [spark.StructField(field.name, spark_type(field.field_type)) for field in iceberg_type.fields]
            )
        case ListType():
            return spark.ArrayType(spark_type(iceberg_type.element_type))
        case MapType():
            return spark.MapType(spark_type(iceberg_type.key_type), spark_type(iceberg_type.value_type))
    return _primitive(iceberg_type, _SPARK_TYPES)


def bound_type(primitive: PrimitiveType) -> spark.DataType:
    """Return the Spark type of values in bound form: ``spark_type``, but binary for UUIDs and variants."""
    return _primitive(primitive, _BOUND_TYPES)


def _primitive(primitive: IcebergType, types: Mapping[str, str]) -> spark.DataType:
    from pyspark.sql import types as spark

    if isinstance(primitive, DecimalType):
        return spark.DecimalType(primitive.precision, primitive.scale)
    name = str(primitive)
    if name.startswith(("fixed", "geometry", "geography")):
        return spark.BinaryType()
    if name not in types:
        raise ValueError(f"{name!r} is not a type of Iceberg")
    kind: spark.DataType = getattr(spark, types[name])()
    return kind


def typed_literal(value: Any, primitive: PrimitiveType) -> Sql:
    """Return a literal in bound form, exact over the type's whole range, and independent of the session time zone.

    Args:
        value: a value as in pyiceberg's bound literals: days for dates, micros (or nanos) for times and timestamps,
            bytes for UUIDs, fixed and binary, a Decimal, or a Python value. A Sql is returned unchanged.
        primitive: the value's Iceberg type.

    Returns:
        A foldable Sql of ``bound_type(primitive)``.

    Raises:
        ArithmeticError: a Decimal has a finer scale than the type.
    """
    if isinstance(value, Sql):
        return value
    return Sql("typed literal", value, primitive, text=literal_sql(value, primitive))


def default_literal(value: Any, primitive: PrimitiveType) -> Sql:
    """Convert a default value of a column, in pyiceberg's form, to a literal; see `typed_literal`."""
    return typed_literal(bound_value(value), primitive)


def literal_array(rows: Iterable[Sequence[tuple[Any, PrimitiveType]]]) -> Sql:
    """Return a foldable array of literals, or of structs ``_0``, ``_1``, ... if rows have several values."""
    literals = [[typed_literal(value, primitive) for value, primitive in row] for row in rows]
    return sql.array(*(row[0] if len(row) == 1 else _numbered(row) for row in literals))


def _numbered(values: Sequence[Sql]) -> Sql:
    return sql.struct(*(value.alias(f"_{index}") for index, value in enumerate(values)))


def literal_sql(value: Any, primitive: PrimitiveType) -> str:
    """Return ``typed_literal`` as SQL that does not depend on session settings."""
    if isinstance(primitive, DecimalType):
        exact = value.quantize(Decimal((0, (1,), -primitive.scale)), context=_EXACT)
        return f"CAST('{exact:f}' AS DECIMAL({primitive.precision}, {primitive.scale}))"
    name = str(primitive)
    return _LITERALS[name](value) if name in _LITERALS else f"X'{value.hex()}'"


def _bigint(value: int) -> str:
    return f"{value}L"


_LITERALS: Final[dict[str, Callable[[Any], str]]] = {
    "boolean": str,
    "int": str,
    "long": _bigint,
    "float": lambda value: f"CAST('{value!r}' AS FLOAT)",
    "double": lambda value: f"CAST('{value!r}' AS DOUBLE)",
    "date": lambda days: f"date_from_unix_date({days})",
    "time": _bigint,
    "timestamp": lambda micros: f"TIMESTAMP_NTZ'{iso_timestamp(micros)}'",
    "timestamptz": lambda micros: f"timestamp_micros({micros}L)",
    "timestamp_ns": _bigint,
    "timestamptz_ns": _bigint,
    "string": lambda text: f"CAST(X'{text.encode().hex()}' AS STRING)",
}


def public_value(column: Sql, primitive: PrimitiveType) -> Sql:
    """Convert a value in bound form to ``spark_type``: UUIDs to text."""
    if str(primitive) == "uuid":
        text = sql.call("regexp_replace", sql.call("lower", sql.call("hex", column)), UUID_DIGITS, UUID_TEXT)
        return sql.spelled(text, "uuid text", column)
    return column


def uuid_value(text: Sql) -> Sql:
    """Convert the text of a UUID to bound form."""
    return sql.spelled(sql.call("unhex", sql.call("replace", text, "-", "")), "uuid bytes", text)
