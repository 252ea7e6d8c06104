"""`RowTable`: a table whose rows can be changed, each change in a commit of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.operations.base_table import BaseTable
from sparkmeta.write.merge import Merge
from sparkmeta.write.transaction import RowTransaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.conflicts import Isolation


@dataclass(frozen=True)
class RowTable(BaseTable):
    """A table with changes of rows. Each method commits, and returns the table after the commit."""

    def transaction(self) -> RowTransaction[Self]:
        """Begin changes that one commit makes: `with table.transaction() as tx: tx.append(df)`.

        This object does not change. `refresh()` or `commit()` returns the new version.
        """
        return RowTransaction(self)

    def append(
        self, df: DataFrame, *, branch: str = "main", snapshot_properties: Mapping[str, str] | None = None
    ) -> Self:
        """Add rows: `table = table.append(df)`. Tasks write them to data files, and one commit adds these.

        Columns are found by name. Those that the rows lack are null or have the write default of the schema, and a
        smaller integer, float or decimal may stand for a wider type.

        Args:
            df: the rows. It is computed once.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.

        Returns:
            The table after the commit.

        Raises:
            ValidationError: the rows don't fit the schema: an unknown column, another type, or a null in a required
                column. Nothing is committed, and no data file stays.
            UnsupportedError: the table can't be committed to, or has a type, transform or format that is not written.
            CommitFailedError: all attempts lost to concurrent commits.
            CommitStateUnknownError: the commit may have succeeded; no file is deleted.
        """
        return self.transaction().append(df, branch=branch, snapshot_properties=snapshot_properties).commit()

    def add_files(
        self,
        paths: Sequence[str] | DataFrame,
        *,
        check_duplicate_files: bool = True,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> Self:
        """Add existing Parquet, ORC or Avro files as they are: `table.add_files(["s3://bucket/day=2026-01-31/1.parquet"])`.

        Executors read the footers. Partition values come from folders such as `day=2026-01-31`, or else from the bounds
        of columns, which must prove that all rows are of one partition. If files have no field ids and the table has no
        name mapping, it gets one. The files belong to the table afterwards: expiry may delete them.

        Args:
            paths: the files, or a DataFrame with their paths in a column `file_path` or `path`, or as its only column.
            check_duplicate_files: whether to look for the files among all files of the table. Otherwise only files of
                the same partition are compared, by their exact paths.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.

        Returns:
            The table after the commit.

        Raises:
            ValidationError: a file is there twice or in the table already, has a column that does not fit the schema,
                or rows of several partitions. The message names the file. Nothing is written.
            NotFoundError: a file is missing.
            UnsupportedError: the table can't be committed to, or tasks can't open the files.
        """
        return (
            self.transaction()
            .add_files(
                paths,
                check_duplicate_files=check_duplicate_files,
                branch=branch,
                snapshot_properties=snapshot_properties,
            )
            .commit()
        )

    def overwrite(
        self,
        df: DataFrame,
        overwrite_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Replace the rows that match a filter by others, by default all rows, in one snapshot.

        Files of which all rows match are removed without being opened; others are written again without these rows.

        Args:
            df: the new rows; see `append`. They need not match the filter.
            overwrite_filter: which rows to remove.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.
            isolation: "serializable" or "snapshot" fail the commit if others changed matching data meanwhile (see
                `SnapshotUpdate.validate_no_conflicts`). By default only deletes of rewritten files do.

        Raises:
            CommitConflictError: another commit changed the files that this one replaces.
            ValidationError: as `append`.
        """
        return self.transaction().overwrite(
            df, overwrite_filter, branch=branch, snapshot_properties=snapshot_properties, isolation=isolation
        ).commit()  # fmt: skip

    def dynamic_partition_overwrite(
        self,
        df: DataFrame,
        *,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Replace the partitions that have new rows, and no others.

        Arguments are as for `overwrite`.

        Raises:
            ValidationError: the table is not partitioned; or as `append`.
        """
        return self.transaction().dynamic_partition_overwrite(
            df, branch=branch, snapshot_properties=snapshot_properties, isolation=isolation
        ).commit()  # fmt: skip

    def delete(
        self,
        delete_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Delete the rows that match a filter, by default all rows. Without such rows, there is no snapshot.

        Files of which all rows match, as partitions and metrics prove, are removed without being opened. Of other files
        the rows are deleted as the table property `write.delete.mode` says: `copy-on-write` writes the files again,
        `merge-on-read` writes deletion vectors, or position delete files in tables of format version 2.

        Args:
            delete_filter: which rows to delete.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.
            isolation: "serializable" or "snapshot"; by default the table property `write.delete.isolation-level`.

        Raises:
            CommitConflictError: another commit changed the data that this delete is based on.
            InvalidFilterError: the filter is invalid.
            UnsupportedError: as `append`.
        """
        return self.transaction().delete(
            delete_filter, branch=branch, snapshot_properties=snapshot_properties, isolation=isolation
        ).commit()  # fmt: skip

    def equality_delete(
        self,
        df: DataFrame,
        equality_cols: Sequence[str] | None = None,
        *,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Delete the rows that have given keys, without reading them: `table.equality_delete(keys, ["id"])`.

        Tasks write the keys to equality delete files, which readers apply to all rows of older snapshots: also to
        those that others commit before this delete. A null equals null. `delete` and `merge` make less work for
        readers, and count what they delete.

        If the table is partitioned, `df` also needs the columns that partitions are made from: a key deletes rows of
        its partition only. Without these columns the deletes apply to all partitions, if the table has an unpartitioned
        spec; else they are refused.

        Args:
            df: the keys. It is computed once, or twice for `isolation`. Columns of the table that are neither in the
                key nor in partitions are ignored.
            equality_cols: the columns of the key, of any primitive type but float and double. Defaults to the schema's
                identifier fields. Fields of structs ("address.zip") may be among them, but Iceberg 1.12 for Java
                applies these deletes wrongly if a query does not read the struct.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.
            isolation: "serializable" fails the commit if others added rows that may have one of the keys meanwhile,
                which would be deleted as well. By default nothing conflicts.

        Raises:
            ValidationError: a column is missing, unknown or of another type, or can't be compared; or the partition of
                a key can't be known.
            UnsupportedError: the table has format version 1; or as `append`.
        """
        return self.transaction().equality_delete(
            df, equality_cols, branch=branch, snapshot_properties=snapshot_properties, isolation=isolation
        ).commit()  # fmt: skip

    def update(
        self,
        assignments: Mapping[str, Any],
        where: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Change the rows that match a filter: `table.update({"price": F.col("price") * 2}, "day = '2026-01-31'")`.

        Table properties `write.update.mode` and `write.update.isolation-level` are as for `delete`. Rows keep their
        `_row_id` in tables that have row lineage.

        Args:
            assignments: a Column over the table's columns, or a value, for each column to change; cast to its type.
            where: which rows to change.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.
            isolation: as for `delete`.

        Raises:
            ValidationError: there is no such column; or as `append`.
        """
        return self.transaction().update(
            assignments, where, branch=branch, snapshot_properties=snapshot_properties, isolation=isolation
        ).commit()  # fmt: skip

    def upsert(
        self,
        df: DataFrame,
        join_cols: Sequence[str] | None = None,
        *,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Change the rows that have the keys of given rows, and add the given rows whose keys no row has.

        A row changes only if a value differs. Its columns that the given rows lack stay as they are. A null in a key
        equals nothing. Table properties `write.merge.mode` and `write.merge.isolation-level` are as for `delete`.

        Args:
            df: the rows; see `append`. It is computed once.
            join_cols: the columns of the key. Defaults to the schema's identifier fields.
            when_matched_update_all: whether rows change.
            when_not_matched_insert_all: whether rows are added.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.
            isolation: as for `delete`.

        Raises:
            ValidationError: there is no key, or two given rows have the same one; or as `append`.
            CommitConflictError: another commit changed the data that this upsert is based on.
        """
        return (
            self.transaction()
            .upsert(
                df,
                join_cols,
                when_matched_update_all=when_matched_update_all,
                when_not_matched_insert_all=when_not_matched_insert_all,
                branch=branch,
                snapshot_properties=snapshot_properties,
                isolation=isolation,
            )
            .commit()
        )

    def merge(
        self,
        source: DataFrame,
        on: str | Sequence[str] | Column,
        *,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
    ) -> Merge[Self]:
        """Begin a merge of rows of a source into the table, of which one commit makes a snapshot.

            table = (
                table.merge(changes, on=["id"])
                .when_matched("source.op = 'delete'").delete()
                .when_matched().update_all()
                .when_not_matched("source.op != 'delete'").insert_all()
                .merge()
            )

        `when_matched(condition)` takes `update(assignments)`, `update_all()` or `delete()`; `when_not_matched` takes
        `insert(values)` or `insert_all()`; `when_not_matched_by_source` takes `update(assignments)` or `delete()`.
        Columns are `target.<column>` and `source.<column>`. Of several clauses of a kind, the first whose condition
        holds applies. Nothing happens before `merge()`, or `commit()`, which does the same.

        Changed rows keep their `_row_id` in tables that have row lineage. Table properties `write.merge.mode` and
        `write.merge.isolation-level` are as for `delete`. Without a row that changes there is no snapshot.

        Args:
            source: the rows. It is computed once.
            on: names of columns that are equal in matching rows, of which a null equals nothing; or a condition over
                `target` and `source`, a Column or SQL text, with which every row of the table has to be read.
            branch: the branch to commit to.
            snapshot_properties: go into the snapshot's summary.
            isolation: as for `delete`.
        """

        def run(merge: Merge[Self]) -> Self:
            transaction = self.transaction()
            properties = snapshot_properties
            started = transaction.merge(source, on, branch=branch, snapshot_properties=properties, isolation=isolation)
            return replace(started, clauses=merge.clauses).merge().commit()

        return Merge(source, on, run)
