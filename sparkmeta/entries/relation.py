"""Relations of entries: few are an Arrow table on the driver, many a DataFrame, with the same operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from sparkmeta.columns import sql
from sparkmeta.entries import evaluate
from sparkmeta.session import selectable_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.columns.sql import Aliased, Sql

Relation: TypeAlias = pa.Table | DataFrame
Rows = TypeVar("Rows", bound=Relation)


class HasSession(Protocol):
    """What has a session, or starts one: a `TableState`."""

    @property
    def spark(self) -> SparkSession: ...


def frame_of(rows: Relation, source: HasSession) -> DataFrame:
    """Return the rows as a DataFrame."""
    return selectable_frame(source.spark, rows) if isinstance(rows, pa.Table) else rows


def where(rows: Rows, condition: Sql) -> Rows:
    """Return the rows for which a condition is true."""
    if isinstance(rows, pa.Table):
        return cast("Rows", evaluate.where(rows, condition))
    return cast("Rows", rows.where(condition.text))


def select(rows: Rows, columns: Sequence[Aliased]) -> Rows:
    """Return columns that are computed from rows, by their names."""
    if isinstance(rows, pa.Table):
        return cast("Rows", evaluate.select(rows, columns))
    return cast("Rows", rows.selectExpr(*sql.texts(columns)))


def with_columns(rows: Rows, *columns: Aliased) -> Rows:
    """Return rows with further columns."""
    if isinstance(rows, pa.Table):
        return cast("Rows", evaluate.with_columns(rows, *columns))
    return cast("Rows", rows.selectExpr("*", *sql.texts(columns)))


def names(rows: Relation) -> list[str]:
    """Return the names of the columns."""
    return list(rows.column_names if isinstance(rows, pa.Table) else rows.columns)


def count(rows: Relation) -> int:
    """Count the rows. For many rows, runs a job."""
    return len(rows) if isinstance(rows, pa.Table) else rows.count()


def union(left: Relation, right: Relation, source: HasSession) -> Relation:
    """Return the rows of two relations. A column that only one of them has is null in rows of the other."""
    if isinstance(left, pa.Table) and isinstance(right, pa.Table):
        return pa.concat_tables([left, right], promote_options="default")
    return frame_of(left, source).unionByName(frame_of(right, source), allowMissingColumns=True)
