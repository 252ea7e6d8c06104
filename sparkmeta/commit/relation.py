"""Relations of files in a commit: how many are few, and operations that compare them. Few files start no Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.entries import relation
from sparkmeta.entries.relation import frame_of, where
from sparkmeta.plan.deletes.rules import partition_key
from sparkmeta.session import materialize

if TYPE_CHECKING:
    from sparkmeta.columns.sql import Sql
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.entry import ContentType


# Maximum number of files that are collected on the driver.
FEW_FILES = 20_000

_MATCHES = "entries_with_the_key"
_COUNT = "rows_with_the_key"


def is_few(count: int) -> bool:
    """Return whether this number of files is collected on the driver."""
    return count <= FEW_FILES


def few(rows: Relation, state: TableState) -> pa.Table | None:
    """Return rows as a table; None if there are many, unless there is no Spark. For a DataFrame, runs a job."""
    if isinstance(rows, pa.Table) and state.access.alone:
        return rows
    head = relation.head(rows, FEW_FILES + 1)
    return head if is_few(len(head)) else None


def few_or_many(rows: Relation, state: TableState) -> Relation:
    """Return rows as a table if there are few; otherwise compute them once. For a DataFrame, runs jobs."""
    head = few(rows, state)
    return materialize(frame_of(rows, state)) if head is None else head


def some_columns(rows: Relation, names: Iterable[str]) -> Relation:
    """Return the columns with the given names, without the names that the rows lack."""
    present_names = [name for name in names if name in relation.names(rows)]
    return rows.select(present_names) if isinstance(rows, pa.Table) else rows.select(*present_names)


def has_rows(rows: Relation) -> bool:
    """Return whether there are rows. Uses `collect`, which starts no job for local rows such as a root's."""
    return bool(len(rows) if isinstance(rows, pa.Table) else rows.select(rows.columns[0]).limit(1).collect())


def is_kind(kind: ContentType) -> Sql:
    """Return the condition that an entry has a content type."""
    return sql.col("content_type") == int(kind)


def first(rows: Relation, condition: Sql | None = None) -> dict[str, Any] | None:
    """Return a row that satisfies a condition; None if there is none. For many rows, runs a job."""
    matching = rows if condition is None else where(rows, condition)
    return next(iter(relation.head(matching, 1).to_pylist()), None)


def nothing(rows: Relation) -> Relation:
    """Return an empty relation with the same columns."""
    return rows.slice(0, 0) if isinstance(rows, pa.Table) else rows.limit(0)


def union(left: Relation, right: Relation) -> Relation:
    """Return the rows of two relations that are both few, or both many."""
    if isinstance(left, pa.Table):
        return pa.concat_tables([left, right]).combine_chunks()
    return left.unionByName(right)


def select(rows: Relation, columns: Mapping[str, str]) -> Relation:
    """Return columns: new name -> path."""
    return relation.select(rows, [sql.col(path).alias(name) for name, path in columns.items()])


def with_partition_key(rows: Relation, name: str, state: TableState) -> Relation:
    """Return entries with their partition as a column of comparable values."""
    return relation.with_columns(rows, partition_key(state).alias(name))


def repeated(rows: Relation, names: Sequence[str]) -> dict[str, Any] | None:
    """Return a key that several rows have; None if there is none. For many rows, runs jobs.

    Args:
        rows: the rows. Many are computed twice.
        names: the columns of the key.
    """
    if isinstance(rows, pa.Table):
        counts = rows.group_by(list(names)).aggregate([([], "count_all")])
        return first(counts.filter(pc.greater(counts.column("count_all"), 1)).drop_columns(["count_all"]))
    # Spark shuffles hashes much faster than paths, and few keys are left to compare.
    hashes = rows.select(F.xxhash64(*names).alias(_MATCHES))
    suspects = F.broadcast(hashes.groupBy(_MATCHES).agg(F.count("*").alias(_COUNT)).where(f"{_COUNT} > 1"))
    suspected = rows.select(*names).join(suspects, F.xxhash64(*names) == F.col(_MATCHES), "left_semi")
    counted = suspected.groupBy(*names).agg(F.count("*").alias(_COUNT))
    return first(counted.where(f"{_COUNT} > 1").drop(_COUNT))
