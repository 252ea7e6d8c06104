"""Convert Iceberg types and literals to Spark's."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, PrimitiveType, StructType
from pyspark.sql import types as spark

from sparkmeta.columns import sql
from sparkmeta.columns.literals import bound_value
from sparkmeta.columns.sql import Sql
from sparkmeta.spec.iso_times import iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SPARK_TYPES: Final[dict[str, spark.DataType]] = {
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "date": spark.DateType(),
    "time": spark.LongType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
    "timestamp_ns": spark.LongType(),
    "timestamptz_ns": spark.LongType(),
    "string": spark.StringType(),
    "uuid": spark.StringType(),
    "binary": spark.BinaryType(),
    "variant": spark.VariantType(),
    "unknown": spark.NullType(),
}
_BOUND_TYPES: Final[dict[str, spark.DataType]] = _SPARK_TYPES | {
    "uuid": spark.BinaryType(),
    "variant": spark.BinaryType(),
}

_EXACT: Final = Context(prec=76, traps=[Inexact, InvalidOperation])
UUID_DIGITS: Final = "^(.{8})(.{4})(.{4})(.{4})(.{12})$"
"""The 32 hexadecimal digits of a UUID, as a regular expression."""
UUID_TEXT: Final = "$1-$2-$3-$4-$5"
"""What takes the place of `UUID_DIGITS`."""


def spark_type(iceberg_type: IcebergType) -> spark.DataType:
    """Return the Spark type that Iceberg's Spark integration uses for a type.

    UUIDs are strings, times and nanosecond timestamps 64-bit integers, and fixed, geometry and geography binary, since
    Spark has no types for these.

    Raises:
        ValueError: not an Iceberg type.
    """
    match iceberg_type:
        case StructType():
            return spark.StructType(
                [
                    spark.StructField(field.name, spark_type(field.field_type), not field.required)
                    for field in iceberg_type.fields
                ]
            )
        case ListType():
            return spark.ArrayType(spark_type(iceberg_type.element_type), not iceberg_type.element_required)
        case MapType():
            return spark.MapType(
                spark_type(iceberg_type.key_type), spark_type(iceberg_type.value_type), not iceberg_type.value_required
            )
    return _primitive(iceberg_type, _SPARK_TYPES)


def bound_type(primitive: PrimitiveType) -> spark.DataType:
    """Return the Spark type of values in bound form: ``spark_type``, but binary for UUIDs and variants."""
    return _primitive(primitive, _BOUND_TYPES)


def _primitive(primitive: IcebergType, types: dict[str, spark.DataType]) -> spark.DataType:
    if isinstance(primitive, DecimalType):
        return spark.DecimalType(primitive.precision, primitive.scale)
    name = str(primitive)
    if name.startswith(("fixed", "geometry", "geography")):
        return spark.BinaryType()
    if name not in types:
        raise ValueError(f"{name!r} is not a type of Iceberg")
    return types[name]


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
    return value if isinstance(value, Sql) else Sql(literal_sql(value, primitive))


def default_literal(value: Any, primitive: PrimitiveType) -> Sql:
    """Return a default value of a column, as pyiceberg has it, as a literal; see `typed_literal`."""
    return typed_literal(bound_value(value), primitive)


def literal_array(rows: Iterable[Sequence[tuple[Any, PrimitiveType]]]) -> Sql:
    """Return a foldable array of literals, or of structs ``_0``, ``_1``, ... if rows have several values."""
    texts = [[literal_sql(value, primitive) for value, primitive in row] for row in rows]
    elements = [row[0] if len(row) == 1 else f"named_struct({_named(row)})" for row in texts]
    return Sql(f"array({', '.join(elements)})")


def _named(texts: Sequence[str]) -> str:
    return ", ".join(f"'_{place}', {text}" for place, text in enumerate(texts))


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
        return sql.call("regexp_replace", sql.call("lower", sql.call("hex", column)), UUID_DIGITS, UUID_TEXT)
    return column
