"""Relations of entries: few are an Arrow table on the driver, many a DataFrame, with the same operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns import sql
from sparkmeta.entries import evaluate
from sparkmeta.entries.arrays import whole
from sparkmeta.session import selectable_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.columns.sql import Aliased, Sql

Relation: TypeAlias = "pa.Table | DataFrame"
Rows = TypeVar("Rows", bound="Relation")


class HasSession(Protocol):
    """An object that has or starts a session, such as a `TableState`."""

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


def grouped(rows: Rows, keys: Sequence[Aliased], aggregates: Sequence[Aliased]) -> Rows:
    """Return a row for each group of rows with equal keys.

    Args:
        rows: the rows.
        keys: the keys. Nulls are equal.
        aggregates: calls of `sum`, `min`, `max`, `first` and `collect_list`.
    """
    if isinstance(rows, pa.Table):
        return cast("Rows", evaluate.grouped(rows, keys, aggregates))
    by_key = rows.groupBy(*(key.column() for key in keys))
    return cast("Rows", by_key.agg(*(aggregate.column() for aggregate in aggregates)))


def beside(rows: Relation, others: Relation, left: str, right: str) -> Relation:
    """Return the rows with the columns of the other row whose key is equal, or with nulls.

    Args:
        rows: the rows.
        others: rows of other columns with unique keys. They are few if `rows` are.
        left: the key of `rows`.
        right: the key of `others`.
    """
    if not isinstance(rows, pa.Table):
        from pyspark.sql import functions as F

        return rows.join(others, F.col(left) == F.col(right), "left")
    assert isinstance(others, pa.Table)
    matches = others.take(pc.index_in(whole(rows.column(left)), whole(others.column(right))))
    return pa.table({name: table.column(name) for table in (rows, matches) for name in table.column_names})


def pairs(rows: Relation, others: Relation, key: str) -> Relation:
    """Return the pairs of rows with equal keys, which are texts, with the columns of both. Null equals no key.

    Args:
        rows: the rows.
        others: rows of other columns, except for the key. They are few if `rows` are.
        key: the column to compare.
    """
    if not isinstance(rows, pa.Table):
        return rows.join(others, key)
    assert isinstance(others, pa.Table)
    sides = {"left": rows, "right": others}
    keyed_rows = [
        pa.table({key: table.column(key), name: pa.array(range(len(table)), pa.int64())})
        for name, table in sides.items()
    ]
    matches = keyed_rows[0].join(keyed_rows[1], key, join_type="inner")
    return pa.table(
        {
            column: table.column(column).take(matches.column(name))
            for name, table in sides.items()
            for column in table.column_names
        }
    )


def head(rows: Relation, count: int) -> pa.Table:
    """Return the first rows in memory. For many rows, runs a job."""
    return rows.slice(0, count) if isinstance(rows, pa.Table) else rows.limit(count).toArrow()


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
