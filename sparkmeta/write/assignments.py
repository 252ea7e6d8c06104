"""Convert the values that users assign to columns to the table's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.types import PrimitiveType, StructType
from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError, SparkRuntimeException
from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkmeta.checks import OPTIONS
from sparkmeta.columns import sql
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import ValidationError, shown
from sparkmeta.write.input import check_type, nested_value, place_names, way_to

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from sparkmeta.columns.sql import Sql


def assigned_values(
    assignments: Mapping[str, Column | Any],
    frame: DataFrame,
    schema: Schema,
    table: str,
    before: str | None,
) -> dict[str, Column]:
    """Return the new values of columns, converted to their types.

    Primitive values are cast; whatever the session's ANSI mode is, a value that does not fit fails when the rows are
    written. Struct fields are matched by name, also inside lists and maps.

    A field of a struct is assigned by its path, such as `address.zip`. The struct keeps its other fields, which are
    null in one that was null, as in Spark SQL.

    Args:
        assignments: column name or path -> Column or value.
        frame: an empty DataFrame with the columns that values may refer to.
        schema: the table's.
        table: the table, for errors.
        before: what qualifies the names of columns with the values before. None for new rows, of which only whole
            columns are assigned.

    Raises:
        ValidationError: there is no assignment, or two of the same field; the table does not have a column; a value
            can't be evaluated, or a nested value is of another type.
    """
    OPTIONS.check(f"{table}: assignments", assignments)
    if not assignments:
        raise ValidationError(f"{table}: an update or insert takes at least one assignment")
    ways = {name: _way(name, schema, table, by_path=before is not None) for name in assignments}
    _refuse_overlaps(ways, table)
    values: dict[str, Column] = {}
    parts: dict[str, dict[tuple[str, ...], Column]] = {}
    for name, way in ways.items():
        column = _assigned(frame, assignments[name], way, table)
        if len(way) == 1:
            values[name] = column
        else:
            parts.setdefault(way[0].name, {})[tuple(field.name for field in way[1:])] = column
    for name, assigned in parts.items():
        values[name] = _with_fields(F.col(f"{before}{sql.quoted(name)}"), schema.find_field(name).field_type, assigned)
    return values


def _way(name: str, schema: Schema, table: str, *, by_path: bool) -> tuple[NestedField, ...]:
    """Return the fields from the top of the schema to an assigned one."""
    top = next((field for field in schema.fields if field.name == name), None)
    if top is not None:
        return (top,)
    if name not in schema._name_to_id:
        raise ValidationError(f"{table}: assigned column {name} is not in the table")
    way = tuple(way_to(schema, schema._name_to_id[name]))
    if not by_path:
        problem = f"assigned column {name} is a field of {way[0].name}: an insert assigns whole columns"
        raise ValidationError(f"{table}: {problem}")
    for parent in way[:-1]:
        if not isinstance(parent.field_type, StructType):
            problem = f"assigned column {name} is inside {parent.name}, which is no struct: assign all of it"
            raise ValidationError(f"{table}: {problem}")
    return way


def _refuse_overlaps(ways: Mapping[str, tuple[NestedField, ...]], table: str) -> None:
    names = {way[-1].field_id: name for name, way in ways.items()}
    for name, way in ways.items():
        for parent in way[:-1]:
            if parent.field_id in names:
                raise ValidationError(f"{table}: {names[parent.field_id]} and {name}, a field of it, are both assigned")


def _assigned(frame: DataFrame, value: Column | Any, way: Sequence[NestedField], table: str) -> Column:
    """Return an assigned value in the type of its field."""
    path, wanted = tuple(field.name for field in way), way[-1].field_type
    what = f"{table}: {'.'.join(path)}"
    column, kind = _evaluated(frame, value, what)
    if not isinstance(wanted, PrimitiveType):
        check_type(kind, wanted, path, table)
        return nested_value(column, kind, wanted)
    written = spark_type(wanted)
    is_constant = value is not None and not isinstance(value, Column)
    if is_constant and kind != written and not _fits(frame.sparkSession, value, written):
        problem = f"{shown(value)} does not fit {wanted}; an expression is a Column, such as F.expr('n + 1')"
        raise ValidationError(f"{what}: {problem}")
    return column if kind == written else _converted(frame, column, written, what)


def _with_fields(value: Column, kind: IcebergType, assigned: Mapping[tuple[str, ...], Column]) -> Column:
    """Return a struct with new values of some fields, given by their paths in it."""
    assert isinstance(kind, StructType)
    fields = []
    for field in kind.fields:
        inside = {path[1:]: column for path, column in assigned.items() if path[0] == field.name}
        new = inside.get((), value.getField(field.name))
        if inside and () not in inside:
            new = _with_fields(new, field.field_type, inside)
        fields.append(new.alias(field.name))
    return F.struct(*fields)


def evaluated_type(frame: DataFrame, column: Column | str, what: str) -> DataType:
    """Return the type of a Column or SQL expression over a DataFrame.

    Args:
        frame: the rows.
        column: the Column or expression.
        what: the table and the value, for errors.

    Raises:
        ValidationError: it can't be evaluated for each row, as an aggregate or a window function can't.
    """
    try:
        of_row = F.when(F.lit(True), F.expr(column) if isinstance(column, str) else column)
        kind = frame.select("*", of_row.alias("value")).schema[-1].dataType
        _ = frame.where(of_row.isNotNull()).schema  # a WHERE takes no window functions
    except (AnalysisException, SparkRuntimeException) as error:
        problem = next(iter(str(error).strip().splitlines()), "")
        raise ValidationError(f"{what}: {problem}") from error
    return kind


def _evaluated(frame: DataFrame, value: Column | Any, what: str) -> tuple[Column, DataType]:
    try:
        column = value if isinstance(value, Column) else F.lit(value)
    except (AttributeError, PySparkTypeError, PySparkValueError) as error:
        problem = f"{shown(value)} is of type {type(value).__name__}, which Spark has no literal of: pass a Column"
        raise ValidationError(f"{what}: {problem}") from error
    return column, evaluated_type(frame, column, what)


def _converted(frame: DataFrame, column: Column, kind: DataType, what: str) -> Column:
    """Return a column cast to a type, which fails, when it runs, for a value that does not fit.

    Raises:
        ValidationError: no value of the column's type can be cast.
    """
    cast = column.try_cast(kind)
    evaluated_type(frame, cast, what)
    problem = F.concat(F.lit(f"{what}: "), column.cast("string"), F.lit(f" does not fit {kind.simpleString()}"))
    return F.when(column.isNull() | cast.isNotNull(), cast).otherwise(F.raise_error(problem).cast(kind))


def _fits(spark: SparkSession, value: Any, kind: DataType) -> bool:
    """Return whether a constant can be cast to a type."""
    return spark.sql("SELECT 1").select(F.lit(value).try_cast(kind).isNotNull()).toArrow().column(0)[0].as_py() is True


def with_values(
    rows: DataFrame, values: Mapping[str, Column], lineage: Sequence[str], where: Sql | None = None
) -> DataFrame:
    """Return rows with values assigned to columns. The last updated sequence number of changed rows becomes null.

    Args:
        rows: the rows, with the columns of `lineage`.
        values: what `assigned_values` returned.
        lineage: the metadata columns that rows keep.
        where: which rows change, of rows with columns named by `place_names`; None for all.
    """
    values = dict(values)
    if lineage:
        values[lineage[1]] = F.lit(None).cast("bigint")
    names, places = rows.columns, place_names(rows.columns)
    # No column has this name.
    changes = max(names, key=len) + "_"
    flag = F.lit(True) if where is None else where.column()
    # The values refer to columns by their names, the rest to places.
    flagged = rows.toDF(*places).select("*", flag).toDF(*names, changes)
    assigned = [F.when(F.col(sql.quoted(changes)), value) for value in values.values()]
    computed = flagged.select("*", *assigned).toDF(*place_names([*names, changes, *values]))
    changed, *news = place_names(computed.columns)[len(names) :]
    by_name = dict(zip(values, news, strict=True))
    columns = [
        F.when(F.col(changed), F.col(by_name[name])).otherwise(F.col(place)) if name in by_name else F.col(place)
        for name, place in zip(names, places, strict=True)
    ]
    return computed.select(*columns).toDF(*names)
