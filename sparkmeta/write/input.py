"""Check rows to write against the table's schema, convert assigned values, and distribute and sort rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
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
from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError, SparkRuntimeException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from sparkmeta.checks import OPTIONS
from sparkmeta.errors import UnsupportedError, ValidationError, hint_at, shown
from sparkmeta.expr import sql
from sparkmeta.expr.types import UUID_DIGITS, UUID_TEXT, default_literal, public_value, spark_type
from sparkmeta.rows.columns import child_fields, type_name
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.session import in_use
from sparkmeta.spec.schema import column_default, id_of_column, path_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.schema import Schema
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from sparkmeta.expr.sql import Sql


# -- Check rows against the table's schema by name --------------------------------------------------------------------
# The values that distribute and sort the rows are computed too.


_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType)


def written_columns(schema: Schema) -> tuple[IcebergColumn, ...]:
    """Return the columns of a schema for writers, with write defaults as their defaults."""
    return tuple(_written_column(field) for field in schema.fields)


def _written_column(field: NestedField) -> IcebergColumn:
    children = tuple(map(_written_column, child_fields(field.field_type)))
    kind = type_name(field.field_type)
    default = column_default(field.field_type, field.write_default)
    return IcebergColumn(field.name, field.field_id, kind, children, field.required, default)


def require_frame(rows: object, table: str) -> None:
    """Raise ValidationError for rows that are a stream, or not a Spark DataFrame (but one of pandas, for example)."""
    if not isinstance(rows, DataFrame):
        kind = f"{type(rows).__module__.partition('.')[0]}.{type(rows).__name__}".removeprefix("builtins.")
        problem = "expected a DataFrame of Spark, pandas or polars, or an Arrow table"
        raise ValidationError(f"{table}: the rows are a {kind}: {problem}")
    in_use(rows.sparkSession)
    if rows.isStreaming:
        raise ValidationError(f"{table}: the rows are a stream: write each batch, in a function for foreachBatch")


def check_columns(rows: DataFrame, schema: Schema, table: str) -> None:
    """Check the columns of a DataFrame against a table's schema; see `check_schema`.

    Raises:
        ValidationError: the rows are not a Spark DataFrame; or as `check_schema`.
        UnsupportedError: as `check_schema`.
    """
    require_frame(rows, table)
    check_schema(rows.schema, schema, table)


def check_schema(rows: spark.StructType, schema: Schema, table: str) -> None:
    """Check the columns of rows against a table's schema, by name.

    A column of the rows may have a type that is promoted without loss: a smaller integer, float for double, or a
    decimal of lower precision and the same scale. UUIDs may be text or bytes. Times may be integers of microseconds
    since midnight, and nanosecond timestamps may be integers. Missing columns get the write default, or null.

    Args:
        rows: the type of the rows.
        schema: the table's schema.
        table: the table, for errors.

    Raises:
        ValidationError: a column is unknown, ambiguous or of a different type, or a required one is missing.
        UnsupportedError: the table has a column of a type that can't be written.
    """
    refuse_types(schema, table)
    _check_struct(rows, schema.as_struct(), (), table)


def refuse_types(schema: Schema, table: str) -> None:
    """Raise UnsupportedError for a schema with a type that can't be written.

    Columns of type unknown are not written. Files and structs need at least one written column, and lists and maps need
    written elements.
    """

    def refuse(field: NestedField, path: tuple[str, ...]) -> None:
        inside = (*path, field.name)
        kind = str(field.field_type)
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


def refuse_kinds(schema: Schema, table: str, pattern: str, problem: str) -> None:
    """Raise UnsupportedError for a schema with a column of some types.

    Args:
        schema: the schema.
        table: the table, for the error.
        pattern: a regular expression that the beginnings of the types' names match.
        problem: the end of the error's text.
    """
    for field_id in sorted(schema.field_ids):
        kind = str(schema.find_type(field_id))
        if re.match(pattern, kind):
            raise UnsupportedError(f"{table}: column {schema.find_column_name(field_id)} is of type {kind}, {problem}")


def _check_struct(rows: spark.StructType, struct: StructType, path: tuple[str, ...], table: str) -> None:
    names = [field.name for field in rows.fields]
    table_fields = {field.name: field for field in struct.fields}
    _refuse_names(names, table_fields, path, table)
    types = {field.name: field.dataType for field in rows.fields}
    for name, field in table_fields.items():
        if name in types:
            check_type(types[name], field.field_type, (*path, name), table)
        else:
            _check_default(field, _write_default(field), (*path, name), table)


def _check_default(field: NestedField, default: Any, path: tuple[str, ...], table: str) -> None:
    """Raise ValidationError if a field that the rows lack, or one inside its default, is required without a default."""
    if default is None:
        if field.required:
            problem = f"column {'.'.join(path)} is required and has no write default, and the rows lack it"
            raise ValidationError(f"{table}: {problem}")
    elif isinstance(field.field_type, StructType):
        for child, value in _defaults_inside(field.field_type, default):
            _check_default(child, value, (*path, child.name), table)


def _write_default(field: NestedField) -> Any:
    return column_default(field.field_type, field.write_default)


def _defaults_inside(struct: StructType, default: Any) -> list[tuple[NestedField, Any]]:
    """Return the fields of a struct with their values in a default of the struct."""
    values = dict(default)
    return [(child, values.get(child.field_id, _write_default(child))) for child in struct.fields]


def check_some(rows: spark.StructType, schema: Schema, field_ids: Iterable[int], table: str) -> frozenset[int]:
    """Check some columns of rows. Other columns only have to be in the table.

    Args:
        rows: the type of the rows.
        schema: the table's schema.
        field_ids: the primitive fields to check, none of them inside a list or map.
        table: the table, for errors.

    Returns:
        The ids of the checked fields that the rows have.

    Raises:
        ValidationError: a column is unknown, ambiguous or of a different type.
    """
    table_fields = {field.name: field for field in schema.fields}
    _refuse_names(rows.names, table_fields, (), table)
    return frozenset(field_id for field_id in field_ids if _has(rows, path_to(schema, field_id), table))


def _has(rows: spark.StructType, field_path: Sequence[NestedField], table: str) -> bool:
    kind: spark.DataType = rows
    for field in field_path:
        if not isinstance(kind, spark.StructType) or field.name not in kind.names:
            return False
        kind = kind[field.name].dataType
    check_type(kind, field_path[-1].field_type, tuple(field.name for field in field_path), table)
    return True


def _refuse_names(
    names: Sequence[str], table_fields: Mapping[str, NestedField], path: tuple[str, ...], table: str
) -> None:
    for name in names:
        if name not in table_fields:
            raise ValidationError(
                f"{table}: column {_path(path, name)} is not in the table{hint_at(name, table_fields)}"
            )
        if names.count(name) > 1:
            raise ValidationError(f"{table}: the rows have column {_path(path, name)} twice")


def _path(path: tuple[str, ...], name: str) -> str:
    return ".".join((*path, name))


def check_type(kind: spark.DataType, wanted: IcebergType, path: tuple[str, ...], table: str) -> None:
    """Check the type of a column of rows, matching struct fields by name; see `check_columns`.

    Args:
        kind: the column's type.
        wanted: the type of the table's column.
        path: the names from the top of the schema to the column.
        table: the table, for errors.

    Raises:
        ValidationError: the types differ.
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
                    f"{wanted}, which takes {_accepted_types(wanted)}"
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


def _accepted_types(wanted: IcebergType) -> str:
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
        schema: the table's schema.
        field_id: the id of a primitive field that is not inside a list or map.
        names: the actual names of the rows' columns, in order; None for the names in `rows`.
    """
    field_path = path_to(schema, field_id)
    wanted = field_path[-1].field_type
    assert isinstance(wanted, PrimitiveType)
    value, kind = sql.spark_only(""), cast("spark.DataType", rows)
    for depth, field in enumerate(field_path):
        if not isinstance(kind, spark.StructType) or field.name not in kind.names:
            default = _default_at(field_path[depth:])
            literal = _primitive_default(default, wanted)
            return sql.when(value.isNotNull(), literal) if depth else literal
        if depth:
            value = value[field.name]
        else:
            name = field.name if names is None else names[kind.names.index(field.name)]
            value = sql.col(sql.quoted(name))
        kind = kind[field.name].dataType
    if isinstance(wanted, UUIDType):
        return public_value(value, wanted) if isinstance(kind, spark.BinaryType) else sql.call("lower", value)
    return value if kind == spark_type(wanted) else value.cast(spark_type(wanted))


def positional_names(columns: Sequence[object]) -> list[str]:
    """Return unique names of columns by position. A table's names may differ only in case, which Spark ignores."""
    return [f"_column_{index}" for index in range(len(columns))]


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
    return default_column(field)


def default_column(field: NestedField) -> SparkColumn:
    """Return the write default of a field, or null, in its `spark_type`."""
    return _default_value(field.field_type, _write_default(field))


def _default_value(kind: IcebergType, default: Any) -> SparkColumn:
    target = spark_type(kind)
    if default is None:
        return F.lit(None).cast(target)
    match kind:
        case StructType():
            inside = _defaults_inside(kind, default)
            return F.struct(*(_default_value(child.field_type, value).alias(child.name) for child, value in inside))
        case ListType():
            return F.array(*(_default_value(kind.element_type, value) for value in default)).cast(target)
        case MapType():
            types = kind.key_type, kind.value_type
            parts = (part for pair in default for part in zip(types, pair, strict=True))
            return F.create_map(*(_default_value(*part) for part in parts)).cast(target)
    return _primitive_default(default, cast("PrimitiveType", kind)).column()


def _default_at(field_path: Sequence[NestedField]) -> Any:
    """Return the value that the last field of a path has in rows that lack the first."""
    default = _write_default(field_path[0])
    for field, child in pairwise(field_path):
        if default is None:
            return None
        defaults = _defaults_inside(cast("StructType", field.field_type), default)
        default = next(value for nested, value in defaults if nested.field_id == child.field_id)
    return default


def _primitive_default(default: Any, wanted: PrimitiveType) -> Sql:
    if default is None:
        return sql.lit(None).cast(spark_type(wanted))
    return public_value(default_literal(default, wanted), wanted)


# -- Convert assigned values to the table's types ---------------------------------------------------------------------


def assigned_values(
    assignments: Mapping[str, Column | Any],
    frame: DataFrame,
    schema: Schema,
    table: str,
    before: str | None,
) -> dict[str, Column]:
    """Return the new values of columns, converted to their types.

    Primitive values are cast. In every ANSI mode, a value that does not fit fails when the rows are written. Struct
    fields are matched by name, also inside lists and maps.

    A field of a struct is assigned by its path, such as `address.zip`. The struct keeps its other fields. As in Spark
    SQL, they are null if the struct was null.

    Args:
        assignments: column name or path -> Column or value.
        frame: an empty DataFrame with the columns that values may refer to.
        schema: the table's schema.
        table: the table, for errors.
        before: the qualifier of columns with the values before the change. None for new rows, which are assigned whole
            columns only.

    Raises:
        ValidationError: there is no assignment, or two of the same field; the table does not have a column; a value
            can't be evaluated, or a nested value is of another type.
    """
    OPTIONS.check(f"{table}: assignments", assignments)
    if not assignments:
        raise ValidationError(f"{table}: an update or insert takes at least one assignment")
    field_paths = {name: _field_path(name, schema, table, by_path=before is not None) for name in assignments}
    _refuse_overlaps(field_paths, table)
    values: dict[str, Column] = {}
    parts: dict[str, dict[tuple[str, ...], Column]] = {}
    for name, field_path in field_paths.items():
        column = _assigned(frame, assignments[name], field_path, table)
        if len(field_path) == 1:
            values[name] = column
        else:
            parts.setdefault(field_path[0].name, {})[tuple(field.name for field in field_path[1:])] = column
    for name, assigned in parts.items():
        values[name] = _with_fields(F.col(f"{before}{sql.quoted(name)}"), schema.find_field(name).field_type, assigned)
    return values


def _field_path(name: str, schema: Schema, table: str, *, by_path: bool) -> tuple[NestedField, ...]:
    """Return the fields from the top of the schema to an assigned field."""
    top = next((field for field in schema.fields if field.name == name), None)
    if top is not None:
        return (top,)
    if (field_id := id_of_column(schema, name)) is None:
        raise ValidationError(
            f"{table}: assigned column {name} is not in the table{hint_at(name, schema.column_names)}"
        )
    field_path = tuple(path_to(schema, field_id))
    if not by_path:
        problem = f"assigned column {name} is a field of {field_path[0].name}: an insert assigns whole columns"
        raise ValidationError(f"{table}: {problem}")
    for parent in field_path[:-1]:
        if not isinstance(parent.field_type, StructType):
            problem = f"assigned column {name} is inside {parent.name}, which is no struct: assign all of it"
            raise ValidationError(f"{table}: {problem}")
    return field_path


def _refuse_overlaps(field_paths: Mapping[str, tuple[NestedField, ...]], table: str) -> None:
    names = {field_path[-1].field_id: name for name, field_path in field_paths.items()}
    for name, field_path in field_paths.items():
        for parent in field_path[:-1]:
            if parent.field_id in names:
                raise ValidationError(f"{table}: {names[parent.field_id]} and {name}, a field of it, are both assigned")


def _assigned(frame: DataFrame, value: Column | Any, field_path: Sequence[NestedField], table: str) -> Column:
    """Return an assigned value, converted to the type of its field."""
    path, wanted = tuple(field.name for field in field_path), field_path[-1].field_type
    subject = f"{table}: {'.'.join(path)}"
    column, kind = _evaluated(frame, value, subject)
    if not isinstance(wanted, PrimitiveType):
        check_type(kind, wanted, path, table)
        return nested_value(column, kind, wanted)
    written = spark_type(wanted)
    is_constant = value is not None and not isinstance(value, Column)
    if is_constant and kind != written and not _holds(frame.sparkSession, value, written):
        problem = f"{shown(value)} does not fit {wanted}; an expression is a Column, such as F.expr('n + 1')"
        raise ValidationError(f"{subject}: {problem}")
    return column if kind == written else _converted(frame, column, written, subject)


def _with_fields(value: Column, kind: IcebergType, assigned: Mapping[tuple[str, ...], Column]) -> Column:
    """Return a struct with new values of some fields, given by their paths in it."""
    assert isinstance(kind, StructType)
    fields = []
    for field in kind.fields:
        inside = {path[1:]: column for path, column in assigned.items() if path[0] == field.name}
        new_value = inside.get((), value.getField(field.name))
        if inside and () not in inside:
            new_value = _with_fields(new_value, field.field_type, inside)
        fields.append(new_value.alias(field.name))
    return F.struct(*fields)


def evaluated_type(frame: DataFrame, column: Column | str, subject: str) -> DataType:
    """Return the type of a Column or SQL expression over a DataFrame.

    Args:
        frame: the rows.
        column: the Column or expression.
        subject: the table and the value, for errors.

    Raises:
        ValidationError: it can't be evaluated for each row. For example, it is an aggregate or a window function.
    """
    try:
        row_value = F.when(F.lit(True), F.expr(column) if isinstance(column, str) else column)
        kind = frame.select("*", row_value.alias("value")).schema[-1].dataType
        _ = frame.where(row_value.isNotNull()).schema  # a WHERE clause allows no window functions
    except (AnalysisException, SparkRuntimeException) as error:
        problem = next(iter(str(error).strip().splitlines()), "")
        raise ValidationError(f"{subject}: {problem}") from error
    return kind


def _evaluated(frame: DataFrame, value: Column | Any, subject: str) -> tuple[Column, DataType]:
    try:
        column = value if isinstance(value, Column) else F.lit(value)
    except (AttributeError, PySparkTypeError, PySparkValueError) as error:
        problem = f"{shown(value)} is of type {type(value).__name__}, which Spark has no literal of: pass a Column"
        raise ValidationError(f"{subject}: {problem}") from error
    return column, evaluated_type(frame, column, subject)


def _converted(frame: DataFrame, column: Column, kind: DataType, subject: str) -> Column:
    """Return a column cast to a type. The query fails for a value that does not fit.

    Raises:
        ValidationError: no value of the column's type can be cast.
    """
    cast = column.try_cast(kind)
    evaluated_type(frame, cast, subject)
    problem = F.concat(F.lit(f"{subject}: "), column.cast("string"), F.lit(f" does not fit {kind.simpleString()}"))
    return F.when(column.isNull() | cast.isNotNull(), cast).otherwise(F.raise_error(problem).cast(kind))


def _holds(spark: SparkSession, value: Any, kind: DataType) -> bool:
    """Return whether a constant can be cast to a type."""
    return spark.sql("SELECT 1").select(F.lit(value).try_cast(kind).isNotNull()).toArrow().column(0)[0].as_py() is True


def with_values(
    rows: DataFrame, values: Mapping[str, Column], lineage: Sequence[str], where: Sql | None = None
) -> DataFrame:
    """Return rows with values assigned to columns. The last updated sequence number of changed rows becomes null.

    Args:
        rows: the rows, with the columns of `lineage`.
        values: the result of `assigned_values`.
        lineage: the metadata columns that rows keep.
        where: a condition for the rows that change, over columns named by `positional_names`; None for all rows.
    """
    values = dict(values)
    if lineage:
        values[lineage[1]] = F.lit(None).cast("bigint")
    names, positions = rows.columns, positional_names(rows.columns)
    # No column has this name.
    changes = max(names, key=len) + "_"
    flag = F.lit(True) if where is None else where.column()
    # The values refer to columns by name, the other expressions by position.
    flagged = rows.toDF(*positions).select("*", flag).toDF(*names, changes)
    assigned = [F.when(F.col(sql.quoted(changes)), value) for value in values.values()]
    computed = flagged.select("*", *assigned).toDF(*positional_names([*names, changes, *values]))
    changed, *new_names = positional_names(computed.columns)[len(names) :]
    by_name = dict(zip(values, new_names, strict=True))
    columns = [
        F.when(F.col(changed), F.col(by_name[name])).otherwise(F.col(position)) if name in by_name else F.col(position)
        for name, position in zip(names, positions, strict=True)
    ]
    return computed.select(*columns).toDF(*names)
