"""Methods of tables and transactions that change rows. They import the engine when they are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.conflicts import Isolation
    from sparkmeta.write.merge import Merge


class ArrowStream(Protocol):
    """Rows in memory: an Arrow table, a DataFrame of pandas or polars, or another object with an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


@dataclass(frozen=True)
class WrittenRows:
    """Rows that tasks have written to data files of the table.

    Attributes:
        files: the files, as `write_rows` returns them.
    """

    files: pa.Table


Rows: TypeAlias = "DataFrame | ArrowStream | WrittenRows"
"""Rows to write: a Spark DataFrame, or rows in memory; or rows that are written already."""


@dataclass(frozen=True)
class RequestedChange:
    """A change of rows that a caller asks for.

    Attributes:
        make: makes the change with the methods of a `RowChange`.
        branch: the branch; None for the session's.
        properties: extra properties for the snapshot's summary.
        key: the idempotency key. A change with a key makes a snapshot even if there is nothing to change.
        isolation: the isolation level, if the caller gave it.
        reads: whether the change depends on the branch's rows, so that no earlier step may change them.
        writes: whether the change writes all files that it adds, so that none can be in the table already.
    """

    make: Callable[[Any], object]
    branch: str | None
    properties: Mapping[str, str] | None
    key: tuple[str, int] | None
    isolation: Isolation | None = None
    reads: bool = False
    writes: bool = True


class RowChanges(ABC):
    """Methods that change rows.

    A table commits each change and returns the table after the commit. A transaction writes the files of each change
    immediately and returns itself; the changes become part of the table when it commits.
    """

    @abstractmethod
    def _change_rows(self, change: RequestedChange) -> Self:
        """Make a change of rows, unless the branch has recorded its idempotency key."""

    def append(
        self,
        df: Rows,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
    ) -> Self:
        """Append rows: `table = table.append(df)`. Tasks write them to data files, which one commit adds.

        Up to 384 MB of rows in memory, such as an Arrow table or a DataFrame of pandas or polars, are written without
        Spark. Their timestamps may have any unit. Times and timestamps of nanoseconds may have Arrow's types.

        Columns are matched by name. Missing columns get the schema's write default, or null. Narrower integers, floats
        and decimals are promoted to the table's types.

        Args:
            df: the rows: a DataFrame of Spark, which is computed once, of pandas or of polars; or an Arrow table.
            branch: the branch to commit to. Defaults to main, or in tables with `write.wap.enabled` to the session's
                `spark.wap.branch`. With `spark.wap.id`, the snapshot is staged and no branch moves.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: an application and a version, such as `("loader", 7)`, which the snapshot records. If a
                snapshot of the branch has recorded this version of the application or a later one, nothing is
                committed and a warning is logged.

        Returns:
            The table after the commit, or the transaction.

        Raises:
            ValidationError: the rows don't fit the schema: an unknown column, a different type, or a null in a required
                column. Nothing is committed and no data file is left behind.
            UnsupportedError: the table can't be committed to, or has a type, transform or format that can't be written.
            CommitFailedError: all attempts lost to concurrent commits.
            CommitStateUnknownError: the commit may have succeeded; no file is deleted.
        """
        return self._change_rows(
            RequestedChange(lambda change: change.append(df), branch, snapshot_properties, idempotency_key)
        )

    def add_files(
        self,
        paths: Sequence[str] | DataFrame,
        *,
        check_duplicate_files: bool = True,
        check_other_tables: bool = True,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
    ) -> Self:
        """Add existing Parquet, ORC or Avro files: `table.add_files(["s3://bucket/day=2026-01-31/1.parquet"])`.

        Executors read the footers. Partition values come from folders such as `day=2026-01-31`, with the name of the
        column or the partition field. Without a folder, column bounds must prove that all rows are in one partition.
        Types that Iceberg's Java readers misread or can't read are refused. If files have no field ids and the table
        has no name mapping, the table gets one. The table owns the files afterwards: expiry may delete them.

        Args:
            paths: the files, or a DataFrame with their paths in a column `file_path` or `path`, or as its only column.
            check_duplicate_files: whether to look for the files among all files of the table. Otherwise they are
                compared only with files of the same partition, by exact path.
            check_other_tables: whether to refuse files in the folder of another Iceberg table, which would still own
                them.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.

        Returns:
            The table after the commit, or the transaction.

        Raises:
            ValidationError: a file is listed twice, is already in the table, or belongs to another table; a column does
                not fit the schema; a file has rows of several partitions, or values of a folder would be lost. The
                message names the file. Nothing is written.
            NotFoundError: a file is missing.
            UnsupportedError: the table can't be committed to, or tasks can't open the files.
        """
        return self._change_rows(
            RequestedChange(
                lambda change: change.add_files(
                    paths, duplicates=check_duplicate_files, other_tables=check_other_tables
                ),
                branch,
                snapshot_properties,
                idempotency_key,
                writes=False,
            )
        )

    def overwrite(
        self,
        df: Rows,
        overwrite_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Replace the rows that match a filter, by default all rows, with new rows in one snapshot.

        Files whose rows all match are removed without being opened. Files with some matching rows are rewritten without
        them.

        Args:
            df: the new rows; see `append`. They need not match the filter.
            overwrite_filter: which rows to remove.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.
            isolation: "serializable" or "snapshot" fails the commit if concurrent commits changed matching data (see
                `SnapshotUpdate.validate_no_conflicts`). Defaults to "serializable" if files have to be read, and
                otherwise to no check.

        Raises:
            CommitConflictError: another commit changed the files that this overwrite replaces.
            ValidationError: as `append`.
        """
        return self._change_rows(
            RequestedChange(
                lambda change: change.overwrite(df, overwrite_filter),
                branch,
                snapshot_properties,
                idempotency_key,
                isolation,
                reads=True,
            )
        )

    def dynamic_partition_overwrite(
        self,
        df: Rows,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Replace only the partitions that have new rows.

        Arguments are as for `overwrite`.

        Raises:
            ValidationError: the table is not partitioned; or as `append`.
        """
        return self._change_rows(
            RequestedChange(
                lambda change: change.replace_partitions(df), branch, snapshot_properties, idempotency_key, isolation
            )
        )

    def delete(
        self,
        delete_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Delete the rows that match a filter, by default all rows. If no row matches, no snapshot is created.

        As in SQL, a null matches neither `!=` nor `not in` nor `not like`.

        Files whose rows all match, as partitions and metrics prove, are removed without being opened. If the other
        files are few, they are read and written without Spark. Rows in them are deleted by the mode in the table
        property `write.delete.mode`: `copy-on-write` rewrites the files; `merge-on-read` writes deletion vectors, or
        position delete files in format version 2.

        Args:
            delete_filter: which rows to delete.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.
            isolation: "serializable" or "snapshot". Defaults to the table property `write.delete.isolation-level`, and
                for deletes of whole files to "snapshot".

        Raises:
            CommitConflictError: another commit changed the data that this delete is based on.
            InvalidFilterError: the filter is invalid.
            UnsupportedError: as `append`.
        """
        return self._change_rows(
            RequestedChange(
                lambda change: change.delete(delete_filter),
                branch,
                snapshot_properties,
                idempotency_key,
                isolation,
                reads=True,
            )
        )

    def equality_delete(
        self,
        df: Rows,
        equality_cols: Sequence[str] | None = None,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Delete the rows whose keys are in `df`, without reading them: `table.equality_delete(keys, ["id"])`.

        Tasks write the keys to equality delete files. Readers apply them to all rows with lower sequence numbers,
        including rows that concurrent commits add before this delete. A null equals null. `delete` and `merge` leave
        less work to readers and count the deleted rows.

        If the table is partitioned, `df` also needs the partition source columns: a key deletes rows only in its own
        partition. Without these columns, the deletes apply to all partitions if the table has an unpartitioned spec;
        otherwise they are refused.

        Args:
            df: the keys. It is computed once, or twice if `isolation` is given. Columns that are not in the key and do
                not determine partitions are ignored.
            equality_cols: the key columns, of any primitive type except float and double. Defaults to the schema's
                identifier fields. Struct fields ("address.zip") are allowed, but Iceberg 1.12 for Java applies such
                deletes wrongly if a query does not read the struct.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.
            isolation: "serializable" fails the commit if concurrent commits added rows that may have one of the keys,
                since these would be deleted as well. By default nothing conflicts.

        Raises:
            ValidationError: a column is missing, unknown or of another type, or can't be compared; or the partition of
                a key can't be known.
            UnsupportedError: the table has format version 1; or as `append`.
        """
        return self._change_rows(
            RequestedChange(
                lambda change: change.delete_keys(df, equality_cols),
                branch,
                snapshot_properties,
                idempotency_key,
                isolation,
            )
        )

    def update(
        self,
        assignments: Mapping[str, Any],
        where: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Update the rows that match a filter: `table.update({"price": F.col("price") * 2}, "day = '2026-01-31'")`.

        The table properties `write.update.mode` and `write.update.isolation-level` apply as for `delete`. In tables
        with row lineage, rows keep their `_row_id`.

        Args:
            assignments: column name -> value, or Column over the table's columns. Values are cast to the column's type.
                The name of a struct's field is its path: `{"address.zip": "0150"}`.
            where: which rows to update.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.
            isolation: as for `delete`.

        Raises:
            ValidationError: there is no such column; or as `append`.
        """
        return self._change_rows(
            RequestedChange(
                lambda change: change.assign(assignments, where),
                branch,
                snapshot_properties,
                idempotency_key,
                isolation,
                reads=True,
            )
        )

    def upsert(  # noqa: PLR0913  keyword arguments
        self,
        df: Rows,
        join_cols: Sequence[str] | None = None,
        *,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Update the table's rows whose keys are in `df`, and insert the rows of `df` whose keys are new.

        A row is updated only if a value differs. Columns that `df` lacks keep their values. A null in a key equals
        nothing. The table properties `write.merge.mode` and `write.merge.isolation-level` apply as for `delete`.

        Args:
            df: the rows; see `append`. It is computed once.
            join_cols: the key columns. Defaults to the schema's identifier fields.
            when_matched_update_all: whether to update existing rows.
            when_not_matched_insert_all: whether to insert new rows.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.
            isolation: as for `delete`.

        Raises:
            ValidationError: there is no key, or two rows of `df` have the same key; or as `append`.
            CommitConflictError: another commit changed the data that this upsert is based on.
        """
        updates, inserts = when_matched_update_all, when_not_matched_insert_all
        return self._change_rows(
            RequestedChange(
                lambda change: change.upsert(df, join_cols, updates=updates, inserts=inserts),
                branch,
                snapshot_properties,
                idempotency_key,
                isolation,
                reads=True,
            )
        )

    def merge(
        self,
        source: Rows,
        on: str | Sequence[str] | Column,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Merge[Self]:
        """Begin a merge of a source's rows into the table, which is committed as one snapshot.

            table = (
                table.merge(changes, on=["id"])
                .when_matched("source.op = 'delete'").delete()
                .when_matched().update_all()
                .when_not_matched("source.op != 'delete'").insert_all()
                .merge()
            )

        `when_matched(condition)` is followed by `update(assignments)`, `update_all()` or `delete()`, `when_not_matched`
        by `insert(values)` or `insert_all()`, and `when_not_matched_by_source` by `update(assignments)` or `delete()`.
        Columns are `target.<column>` and `source.<column>`. Among clauses of one kind, the first whose condition holds
        applies. Nothing runs before `merge()`.

        In tables with row lineage, updated rows keep their `_row_id`. The table properties `write.merge.mode` and
        `write.merge.isolation-level` apply as for `delete`. If no row changes, no snapshot is created.

        Args:
            source: the rows. It is computed once.
            on: names of key columns that are equal in matching rows, where a null equals nothing; or a condition over
                `target` and `source`, a Column or SQL text, which requires reading every row of the table.
            branch: the branch to commit to; see `append`.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: as for `append`.
            isolation: as for `delete`.
        """
        from sparkmeta.write.merge import Merge, MergeRequest

        def requested(merge: MergeRequest) -> RequestedChange:
            return RequestedChange(
                lambda change: change.merge(merge),
                branch,
                snapshot_properties,
                idempotency_key,
                isolation,
                reads=True,
            )

        request = MergeRequest(source, on)  # type: ignore[arg-type]
        return Merge(request, lambda merge: self._change_rows(requested(merge)))
