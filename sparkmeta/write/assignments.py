"""Convert the values that users assign to columns to the table's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.types import PrimitiveType
from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError, SparkRuntimeException
from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkmeta.checks import OPTIONS
from sparkmeta.columns import sql
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import ValidationError, shown
from sparkmeta.write.input import check_type, nested_value, place_names

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from sparkmeta.columns.sql import Sql


def assigned_values(
    assignments: Mapping[str, Column | Any], frame: DataFrame, schema: Schema, table: str
) -> dict[str, Column]:
    """Return a Column for each assignment, converted to the type of the assigned column.

    Primitive values are cast; whatever the session's ANSI mode is, a value that does not fit fails when the rows are
    written. Struct fields are matched by name, also inside lists and maps.

    Args:
        assignments: column name -> Column or value.
        frame: an empty DataFrame with the columns that values may refer to.
        schema: the table's.
        table: the table, for errors.

    Raises:
        ValidationError: there is no assignment, the table does not have a column, a value can't be evaluated, or a
            nested value is of another type.
    """
    OPTIONS.check(f"{table}: assignments", assignments)
    fields = {field.name: field for field in schema.fields}
    if not assignments:
        raise ValidationError(f"{table}: an update or insert takes at least one assignment")
    for name in assignments:
        if name not in fields:
            raise ValidationError(f"{table}: assigned column {name} is not in the table")
    values = {}
    for name, value in assignments.items():
        wanted = fields[name].field_type
        column, kind = _evaluated(frame, value, f"{table}: {name}")
        if isinstance(wanted, PrimitiveType):
            written, what = spark_type(wanted), f"{table}: {name}"
            is_constant = value is not None and not isinstance(value, Column)
            if is_constant and kind != written and not _fits(frame.sparkSession, value, written):
                problem = f"{shown(value)} does not fit {wanted}; an expression is a Column, such as F.expr('n + 1')"
                raise ValidationError(f"{what}: {problem}")
            values[name] = column if kind == written else _converted(frame, column, written, what)
        else:
            check_type(kind, wanted, (name,), table)
            values[name] = nested_value(column, kind, wanted)
    return values


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
