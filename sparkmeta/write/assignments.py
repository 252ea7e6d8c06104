"""New values of columns, as users assign them, in the types of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from sparkmeta.columns import sql
from sparkmeta.errors import ValidationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.columns.sql import Sql


def assigned_values(assignments: Mapping[str, Column | Any], row_type: StructType, table: str) -> dict[str, Column]:
    """Return a Column for each assignment, a Column or a value, cast to the type of its column.

    Args:
        assignments: column name -> Column or value.
        row_type: the type of the table's rows in Spark.
        table: the table, for errors.

    Raises:
        ValidationError: there is no assignment, or the table does not have a column.
    """
    types = {field.name: field.dataType for field in row_type.fields}
    if not assignments:
        raise ValidationError(f"{table}: an update or insert takes at least one assignment")
    for name in assignments:
        if name not in types:
            raise ValidationError(f"{table}: assigned column {name} is not in the table")
    columns = {name: value if hasattr(value, "cast") else F.lit(value) for name, value in assignments.items()}
    # A cast of structs goes by position; they are found by name when they are written.
    nested = (StructType, ArrayType, MapType)
    return {
        name: value if isinstance(types[name], nested) else value.cast(types[name]) for name, value in columns.items()
    }


def with_values(
    rows: DataFrame, values: Mapping[str, Column], lineage: Sequence[str], where: Sql | None = None
) -> DataFrame:
    """Return rows with values assigned to columns; changed rows have no sequence number of a last change.

    Args:
        rows: the rows, with the columns of `lineage`.
        values: what `assigned_values` returned.
        lineage: the metadata columns that rows keep.
        where: which rows change; None: all.
    """
    values = dict(values)
    if lineage:
        values[lineage[1]] = F.lit(None).cast("bigint")
    condition = None if where is None else where.column()
    columns = []
    for name in rows.columns:
        old = F.col(sql.quoted(name))
        new = values.get(name, old)
        if name in values and condition is not None:
            new = F.when(condition, new).otherwise(old)
        columns.append(new.alias(name))
    return rows.select(*columns)
