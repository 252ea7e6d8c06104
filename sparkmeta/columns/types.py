"""Iceberg types as Spark types, and Iceberg literals as Spark literals."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, PrimitiveType, StructType
from pyspark.sql import types as spark

from sparkmeta.columns import sql
from sparkmeta.columns.literals import iso_timestamp
from sparkmeta.columns.sql import Sql

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
_UUID: Final = "^(.{8})(.{4})(.{4})(.{4})(.{12})$"


def spark_type(iceberg_type: IcebergType) -> spark.DataType:
    """The Spark type in which Iceberg's Spark integration shows a type.

    What Spark has no type for: UUIDs are strings; times and nanosecond timestamps are 64-bit integers of their own
    unit; fixed, geometry and geography are binary. Raises ValueError for a type that is none of Iceberg's.
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
    """The Spark type of values and bounds inside the engine: as ``spark_type``, but UUIDs and variants are binary."""
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
    """A literal in bound form, exact over the type's whole range and the same in every session time zone.

    Args:
        value: as pyiceberg's bound literals hold it: days for dates, micros (or nanos) for times and timestamps,
            bytes for UUIDs, fixed and binary, a Decimal, or a Python value. A Sql is given back as it is.
        primitive: the Iceberg type that the value is of.

    Returns a foldable Sql of ``bound_type(primitive)``. Raises ArithmeticError for a Decimal of a finer scale.
    """
    return value if isinstance(value, Sql) else Sql(literal_sql(value, primitive))


def literal_array(rows: Iterable[Sequence[tuple[Any, PrimitiveType]]]) -> Sql:
    """A foldable array: of literals where the rows have one value each, else of structs of them, ``_0`` and so on."""
    texts = [[literal_sql(value, primitive) for value, primitive in row] for row in rows]
    elements = [row[0] if len(row) == 1 else f"named_struct({_named(row)})" for row in texts]
    return Sql(f"array({', '.join(elements)})")


def _named(texts: Sequence[str]) -> str:
    return ", ".join(f"'_{place}', {text}" for place, text in enumerate(texts))


def literal_sql(value: Any, primitive: PrimitiveType) -> str:
    """``typed_literal`` as SQL, which no session setting reads differently."""
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
    """A value in bound form as ``spark_type`` shows it: UUIDs as text."""
    if str(primitive) == "uuid":
        return sql.call("regexp_replace", sql.call("lower", sql.call("hex", column)), _UUID, "$1-$2-$3-$4-$5")
    return column
