"""Check rows to write against the table's schema by name, and compute the values that distribute and sort them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, cast

from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UnknownType,
    UUIDType,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from sparkmeta.columns import sql
from sparkmeta.columns.types import UUID_DIGITS, UUID_TEXT, default_literal, public_value, spark_type
from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.rows.projected import child_fields, type_name
from sparkmeta.rows.resolve import Column
from sparkmeta.session import in_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.schema import Schema
    from pyspark.sql import Column as SparkColumn

    from sparkmeta.columns.sql import Sql

# Types that PySpark or Arrow's writers can't carry.
_REFUSED: Final = ("variant", "geometry", "geography")
_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType)
# Maximum number of columns in an error message.
_NAMED: Final = 20


def written_columns(schema: Schema) -> tuple[Column, ...]:
    """Return the columns of a schema for writers, with write defaults as their defaults."""
    return tuple(_written_column(field) for field in schema.fields)


def _written_column(field: NestedField) -> Column:
    children = tuple(map(_written_column, child_fields(field.field_type)))
    kind = type_name(field.field_type)
    return Column(field.name, field.field_id, kind, children, field.required, field.write_default)


def require_frame(rows: object, table: str) -> None:
    """Raise ValidationError for rows that are not a DataFrame of Spark, such as one of pandas, or are a stream."""
    if not isinstance(rows, DataFrame):
        kind = f"{type(rows).__module__.partition('.')[0]}.{type(rows).__name__}".removeprefix("builtins.")
        raise ValidationError(f"{table}: the rows are a {kind}, not a Spark DataFrame: use spark.createDataFrame(rows)")
    in_use(rows.sparkSession)
    if rows.isStreaming:
        raise ValidationError(f"{table}: the rows are a stream: write each batch, in a function for foreachBatch")


def check_columns(rows: DataFrame, schema: Schema, table: str) -> None:
    """Check the columns of rows against a table's schema, by name.

    A column of the rows may have a type that is promoted without loss: a smaller integer, float for double, or a
    decimal of lower precision and the same scale. UUIDs may be text or bytes, times integers of microseconds since
    midnight, and nanosecond timestamps integers. Missing columns get the write default, or null.

    Args:
        rows: the rows; their schema is analyzed.
        schema: the table's.
        table: the table, for errors.

    Raises:
        ValidationError: the rows are not a Spark DataFrame; or a column is unknown, ambiguous or of a different type,
            or a required one is missing.
        UnsupportedError: the table has a column of a type that can't be written.
    """
    require_frame(rows, table)
    refuse_types(schema, table)
    _check_struct(rows.schema, schema.as_struct(), (), table)


def refuse_types(schema: Schema, table: str) -> None:
    """Raise UnsupportedError for a schema with a type that can't be written.

    Columns of type unknown are not written. Files and structs need at least one column that is, and lists and maps need
    elements that are.
    """

    def refuse(field: NestedField, path: tuple[str, ...]) -> None:
        inside = (*path, field.name)
        kind = str(field.field_type)
        if kind.startswith(_REFUSED):
            problem = f"column {'.'.join(inside)} is of type {kind}, which Arrow's writers can't write"
            raise UnsupportedError(f"{table}: {problem}")
        children = child_fields(field.field_type)
        unknown = [isinstance(child.field_type, UnknownType) for child in children]
        if isinstance(field.field_type, StructType) and all(unknown):
            problem = f"column {'.'.join(inside)} is a struct without fields that a file can have"
            raise UnsupportedError(f"{table}: {problem}")
        if isinstance(field.field_type, ListType | MapType) and any(unknown):
            raise UnsupportedError(f"{table}: column {'.'.join(inside)} is of type {kind}, which files can't have")
        for child in children:
            refuse(child, inside)

    for field in schema.fields:
        refuse(field, ())
    if all(isinstance(field.field_type, UnknownType) for field in schema.fields):
        raise UnsupportedError(f"{table}: the table has no column that a file can have")


def _check_struct(rows: spark.StructType, struct: StructType, path: tuple[str, ...], table: str) -> None:
    names = [field.name for field in rows.fields]
    known = {field.name: field for field in struct.fields}
    _refuse_names(names, known, path, table)
    types = {field.name: field.dataType for field in rows.fields}
    for name, field in known.items():
        if name in types:
            check_type(types[name], field.field_type, (*path, name), table)
        elif field.required and field.write_default is None:
            problem = f"column {_path(path, name)} is required and has no write default, and the rows lack it"
            raise ValidationError(f"{table}: {problem}")
        elif field.write_default is not None and not isinstance(field.field_type, PrimitiveType):
            raise UnsupportedError(f"{table}: column {_path(path, name)} has a write default of a nested type")


def check_some(rows: spark.StructType, schema: Schema, field_ids: Iterable[int], table: str) -> frozenset[int]:
    """Check some columns of rows. Other columns only have to be in the table.

    Args:
        rows: the type of the rows.
        schema: the table's.
        field_ids: the primitive fields to check, none of them inside a list or map.
        table: the table, for errors.

    Returns:
        The ids of these fields that the rows have.

    Raises:
        ValidationError: a column is unknown, ambiguous or of a different type.
    """
    known = {field.name: field for field in schema.fields}
    _refuse_names(rows.names, known, (), table)
    return frozenset(field_id for field_id in field_ids if _has(rows, way_to(schema, field_id), table))


def _has(rows: spark.StructType, way: Sequence[NestedField], table: str) -> bool:
    kind: spark.DataType = rows
    for field in way:
        if not isinstance(kind, spark.StructType) or field.name not in kind.names:
            return False
        kind = kind[field.name].dataType
    check_type(kind, way[-1].field_type, tuple(field.name for field in way), table)
    return True


def _refuse_names(names: Sequence[str], known: Mapping[str, NestedField], path: tuple[str, ...], table: str) -> None:
    for name in names:
        if name not in known:
            raise ValidationError(f"{table}: column {_path(path, name)} is not in the table{_hint(name, known)}")
        if names.count(name) > 1:
            raise ValidationError(f"{table}: the rows have column {_path(path, name)} twice")


def _path(path: tuple[str, ...], name: str) -> str:
    return ".".join((*path, name))


def _hint(name: str, known: Mapping[str, Any]) -> str:
    near = [other for other in known if other.lower() == name.lower()] or get_close_matches(name, known)
    if near:
        return f": did you mean {' or '.join(map(shown, near))}?"
    more = f" and {len(known) - _NAMED:,} more" if len(known) > _NAMED else ""
    return f", which has {', '.join(map(shown, list(known)[:_NAMED]))}{more}"


def check_type(kind: spark.DataType, wanted: IcebergType, path: tuple[str, ...], table: str) -> None:
    """Check the type of a column of rows, matching struct fields by name; see `check_columns`.

    Args:
        kind: the column's type.
        wanted: the type of the table's column.
        path: the names from the top of the schema to the column.
        table: the table, for errors.

    Raises:
        ValidationError: the types differ.
        UnsupportedError: a field of a nested type has a write default.
    """
    match kind, wanted:
        case spark.StructType(), StructType():
            _check_struct(kind, wanted, path, table)
        case spark.ArrayType(), ListType():
            check_type(kind.elementType, wanted.element_type, (*path, "element"), table)
        case spark.MapType(), MapType():
            check_type(kind.keyType, wanted.key_type, (*path, "key"), table)
            check_type(kind.valueType, wanted.value_type, (*path, "value"), table)
        case _:
            if not _fits(kind, wanted):
                raise ValidationError(
                    f"{table}: column {'.'.join(path)} of the rows is {kind.simpleString()}: the table has type "
                    f"{wanted}, which takes {_taken(wanted)}"
                )


_ACCEPTED: Final[dict[type[IcebergType], tuple[type[spark.DataType], ...]]] = {
    BooleanType: (spark.BooleanType,),
    IntegerType: _INTEGERS,
    LongType: (*_INTEGERS, spark.LongType),
    FloatType: (spark.FloatType,),
    DoubleType: (spark.FloatType, spark.DoubleType),
    StringType: (spark.StringType,),
    UUIDType: (spark.StringType, spark.BinaryType),
    FixedType: (spark.BinaryType,),
}


def _fits(kind: spark.DataType, wanted: IcebergType) -> bool:
    if isinstance(kind, spark.NullType):
        return True
    if isinstance(wanted, DecimalType):
        return isinstance(kind, spark.DecimalType) and kind.scale == wanted.scale and kind.precision <= wanted.precision
    if (accepted := _ACCEPTED.get(type(wanted))) is not None:
        return isinstance(kind, accepted)
    return isinstance(wanted, PrimitiveType) and str(wanted) != "unknown" and kind == spark_type(wanted)


def _taken(wanted: IcebergType) -> str:
    if not isinstance(wanted, PrimitiveType):
        return type_name(wanted)
    match wanted:
        case UUIDType():
            return "string or binary"
        case DecimalType():
            return f"decimals of at most {wanted.precision} digits and the scale {wanted.scale}"
        case LongType():
            return "bigint or a smaller integer"
        case IntegerType():
            return "int or a smaller integer"
        case DoubleType():
            return "double or float"
    if str(wanted) == "unknown":
        return "nulls only"
    return spark_type(wanted).simpleString()


def field_value(rows: spark.StructType, schema: Schema, field_id: int, names: Sequence[str] | None = None) -> Sql:
    """Return the value of a field in rows, in the field's `spark_type`.

    A field that the rows lack has its write default, except in null structs.

    Args:
        rows: the type of the rows, which `check_columns` has accepted.
        schema: the table's.
        field_id: the id of a primitive field that is not inside a list or map.
        names: what the columns of the rows are called instead, in their order.
    """
    way = way_to(schema, field_id)
    wanted = way[-1].field_type
    assert isinstance(wanted, PrimitiveType)
    value, kind = sql.Sql(""), cast("spark.DataType", rows)
    for depth, field in enumerate(way):
        if not isinstance(kind, spark.StructType) or field.name not in kind.names:
            default = _default_value(field, wanted)
            return sql.when(value.isNotNull(), default) if depth else default
        if depth:
            value = value[field.name]
        else:
            name = field.name if names is None else names[kind.names.index(field.name)]
            value = sql.col(sql.quoted(name))
        kind = kind[field.name].dataType
    if isinstance(wanted, UUIDType):
        return public_value(value, wanted) if isinstance(kind, spark.BinaryType) else sql.call("lower", value)
    return value if kind == spark_type(wanted) else value.cast(spark_type(wanted))


def place_names(columns: Sequence[object]) -> list[str]:
    """Return names of columns by their place: those of a table may differ only in case, and Spark confuses them."""
    return [f"_column_{place}" for place in range(len(columns))]


def nested_value(value: SparkColumn, kind: spark.DataType, wanted: IcebergType) -> SparkColumn:
    """Return a value in the `spark_type` of a table's type, with struct fields matched by name.

    Args:
        value: the value.
        kind: its type, which `check_type` has accepted.
        wanted: the table's type.
    """
    target = spark_type(wanted)
    # UUIDs may be in upper case and have to be normalized.
    if kind.simpleString() == target.simpleString() and "uuid" not in str(wanted):
        return value
    match kind, wanted:
        case spark.StructType(), StructType():
            fields = [_nested_field(value, kind, field).alias(field.name) for field in wanted.fields]
            return F.when(value.isNotNull(), F.struct(*fields))
        case spark.ArrayType(), ListType():
            element_type = kind.elementType
            return F.transform(value, lambda element: nested_value(element, element_type, wanted.element_type))
        case spark.MapType(), MapType():
            key_type, value_type = kind.keyType, kind.valueType
            value = F.transform_keys(value, lambda key, _: nested_value(key, key_type, wanted.key_type))
            return F.transform_values(value, lambda _, item: nested_value(item, value_type, wanted.value_type))
        case spark.BinaryType(), UUIDType():
            return F.regexp_replace(F.lower(F.hex(value)), UUID_DIGITS, UUID_TEXT)
        case _, UUIDType():
            return F.lower(value)
    return value.cast(target)


def _nested_field(value: SparkColumn, kind: spark.StructType, field: NestedField) -> SparkColumn:
    if field.name in kind.names:
        return nested_value(value.getField(field.name), kind[field.name].dataType, field.field_type)
    if isinstance(field.field_type, PrimitiveType):
        return _default_value(field, field.field_type).column()
    return F.lit(None).cast(spark_type(field.field_type))


def way_to(schema: Schema, field_id: int) -> list[NestedField]:
    """Return the fields from the top of a schema to one of its fields."""
    parents = schema._lazy_id_to_parent
    ids = [field_id]
    while ids[-1] in parents:
        ids.append(parents[ids[-1]])
    return [schema.find_field(each) for each in reversed(ids)]


def _default_value(field: NestedField, wanted: PrimitiveType) -> Sql:
    if field.write_default is None:
        return sql.Sql("NULL").cast(spark_type(wanted))
    return public_value(default_literal(field.write_default, wanted), wanted)
