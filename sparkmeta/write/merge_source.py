"""Check the source of a merge, compute it once, and derive a filter that every row matched by key satisfies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType, StringType, UUIDType
from pyspark.sql import functions as F

from sparkmeta.columns.sql import quoted
from sparkmeta.errors import ValidationError
from sparkmeta.rows.projected import type_name
from sparkmeta.write.files import checkpointed
from sparkmeta.write.input import check_columns, nested_value, require_frame
from sparkmeta.write.key_range import count_and_range
from sparkmeta.write.merge import Action, When

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import Column, DataFrame

    from sparkmeta.write.merge import Merge

SOURCE_ROW: Final = "_merge_source_row"
"""A number for each row of the source."""

_ROWS: Final = "_merge_rows"


@dataclass(frozen=True)
class MergeSource:
    """The rows of the source.

    Attributes:
        rows: the rows with `SOURCE_ROW`, checkpointed.
        keys: the key columns; None if rows match by a condition.
        count: the number of rows.
        range: a filter that every matching row of the table satisfies.
        duplicate: a key that several rows have; None if keys are unique or there are none.
    """

    rows: DataFrame
    keys: tuple[str, ...] | None
    count: int
    range: BooleanExpression
    duplicate: dict[str, object] | None

    @property
    def is_unique(self) -> bool:
        """Whether no row of the table can match two rows of the source."""
        return self.keys is not None and self.duplicate is None


def merge_source(merge: Merge[Any], schema: Schema, table: str) -> MergeSource:
    """Check the source of a merge against a table and compute its rows. Runs jobs.

    Args:
        merge: the merge.
        schema: the table's.
        table: the table, for errors.

    Raises:
        ValidationError: a column that the merge uses has a different type; or a key is not in both.
        UnsupportedError: a column has a type that can't be written; or the session can't checkpoint rows.
    """
    source = merge.source
    require_frame(source, table)
    keys = _keys(merge, schema, table)
    if any(clause.takes_all for clause in merge.clauses):
        _check(merge, schema, table)
        source = _as_in_table(source, schema)
    elif keys is not None:
        names = set(keys)
        of_keys = Schema(*(field for field in schema.fields if field.name in names))
        check_columns(source.select(*map(quoted, keys)), of_keys, table)
        # UUIDs may have any notation, and strings a collation.
        converted = (field for field in of_keys.fields if isinstance(field.field_type, UUIDType | StringType))
        source = _as_in_table(source, Schema(*converted))
    rows = checkpointed(source.withColumn(SOURCE_ROW, F.monotonically_increasing_id()))
    count, row_filter = count_and_range(rows, schema, keys or ())
    duplicate = None
    if keys is not None:
        columns = [F.col(quoted(name)) for name in keys]
        counts = rows.dropna(subset=list(map(quoted, keys))).groupBy(*columns).agg(F.count("*").alias(_ROWS))
        several = counts.where(F.col(_ROWS) > 1).limit(1)
        duplicate = next(iter(several.select(*map(_shown, several.drop(_ROWS).dtypes)).toArrow().to_pylist()), None)
    return MergeSource(rows, keys, count, row_filter, duplicate)


def _shown(column: tuple[str, str]) -> Column:
    """Return a key column, given as (name, type), for an error message. Python has no dates after the year 9999."""
    name, kind = column
    value = F.col(quoted(name))
    return value.cast("string").alias(name) if kind.startswith(("date", "timestamp")) else value


def _keys(merge: Merge[Any], schema: Schema, table: str) -> tuple[str, ...] | None:
    """Return the names of the key columns; None if rows match by a condition."""
    on, tops = merge.on, {field.name: field for field in schema.fields}
    if isinstance(on, str):
        if on not in tops:
            return None
        on = (on,)
    elif not isinstance(on, Sequence):
        return None
    if not on:
        raise ValidationError(f"{table}: a merge takes at least one column to match by")
    for name in on:
        if name not in merge.source.columns or name not in tops:
            raise ValidationError(f"{table}: column {name} of the key is not in both the rows and the table")
        if not isinstance(tops[name].field_type, PrimitiveType):
            kind = type_name(tops[name].field_type)
            raise ValidationError(f"{table}: key column {name} is of type {kind}: keys must be primitive")
    return tuple(on)


def _check(merge: Merge[Any], schema: Schema, table: str) -> None:
    """Check the source's columns that are in the table. Clauses that insert rows need all required columns."""
    source = merge.source
    inserts = any(clause.takes_all and clause.when == When.NOT_MATCHED for clause in merge.clauses)
    common = [field for field in schema.fields if field.name in source.columns]
    if not common:
        action = Action.INSERT if inserts else Action.UPDATE
        raise ValidationError(f"{table}: the source has no column of the table: {action}_all has no value to take")
    rows = source.select(*(quoted(field.name) for field in common))
    check_columns(rows, schema if inserts else Schema(*common), table)


def _as_in_table(source: DataFrame, schema: Schema) -> DataFrame:
    """Return the source, with columns that are in the schema converted to the table's types."""
    row_type, values = source.schema, {}
    for field in schema.fields:
        if field.name in source.columns:
            value = F.col(quoted(field.name))
            values[field.name] = nested_value(value, row_type[field.name].dataType, field.field_type)
    return source.select(*(values.get(name, F.col(quoted(name))).alias(name) for name in source.columns))
