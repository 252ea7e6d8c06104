"""Changes of rows: `RowTransaction` makes several in one commit, `RowTable` makes each in a separate commit."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.checks import NAME
from sparkmeta.commit.conflicts import ISOLATION
from sparkmeta.commit.options import check_snapshot_options
from sparkmeta.commit.transaction import Transaction
from sparkmeta.commit.write_target import write_target
from sparkmeta.errors import UnsupportedError, ValidationError, shown, translated_errors
from sparkmeta.operations.table_operations import BaseTable, TableT
from sparkmeta.spec.summary import last_version
from sparkmeta.spec.table_properties import choice_property
from sparkmeta.write.add_files import AddNameMapping, describe_files
from sparkmeta.write.deletes import KeyDeletes, write_deletes
from sparkmeta.write.files import lineage_columns, write_files
from sparkmeta.write.input import assigned_values, with_values
from sparkmeta.write.matching import FILE, Matching, masks_of
from sparkmeta.write.merge import Merge, merged_rows, upsert_of
from sparkmeta.write.tasks import delete_written, deleted_on_failure

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.conflicts import Isolation
    from sparkmeta.commit.snapshot_update import SnapshotUpdate
    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState
    from sparkmeta.write.matching import Masks
    from sparkmeta.write.merge import MergedRows

_log = logging.getLogger(__name__)

_MODES = ("copy-on-write", "merge-on-read")
_ISOLATIONS = ("serializable", "snapshot")


class RowChanges(ABC):
    """Methods that change rows.

    A table commits each change and returns the table after the commit. A transaction writes the files of each change
    immediately and returns itself; the changes become part of the table when it commits.
    """

    @abstractmethod
    def _change_rows(
        self,
        make: Callable[[RowChange], object],
        branch: str | None,
        properties: Mapping[str, str] | None,
        key: tuple[str, int] | None,
        isolation: Isolation | None = None,
        *,
        reads: bool = False,
        writes: bool = True,
    ) -> Self:
        """Make a change of rows, unless the branch has recorded its idempotency key.

        Args:
            make: makes the change.
            branch: the branch; None for the session's.
            properties: extra properties for the snapshot's summary.
            key: the idempotency key. A change with a key makes a snapshot even if there is nothing to change.
            isolation: the isolation level, if the caller gave it.
            reads: whether the change depends on the branch's rows, so that no earlier step may change them.
            writes: whether the change writes all files that it adds, so that none can be in the table already.
        """

    def append(
        self,
        df: DataFrame,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
    ) -> Self:
        """Append rows: `table = table.append(df)`. Tasks write them to data files, which one commit adds.

        Columns are matched by name. Missing columns get the schema's write default, or null. Narrower integers, floats
        and decimals are promoted to the table's types.

        Args:
            df: the rows. It is computed once.
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
        return self._change_rows(lambda change: change.append(df), branch, snapshot_properties, idempotency_key)

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
        column or the partition field, or else from column bounds, which must prove that all rows are in one partition.
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
            ValidationError: a file is listed twice, is already in the table, belongs to another table, has a column
                that does not fit the schema, or has rows of several partitions or folders whose values would be lost.
                The message names the file. Nothing is written.
            NotFoundError: a file is missing.
            UnsupportedError: the table can't be committed to, or tasks can't open the files.
        """
        return self._change_rows(
            lambda change: change.add_files(paths, duplicates=check_duplicate_files, other_tables=check_other_tables),
            branch,
            snapshot_properties,
            idempotency_key,
            writes=False,
        )

    def overwrite(
        self,
        df: DataFrame,
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
                `SnapshotUpdate.validate_no_conflicts`). Defaults to "serializable" if files have to be read
                and rows are replaced, and otherwise to no check.

        Raises:
            CommitConflictError: another commit changed the files that this overwrite replaces.
            ValidationError: as `append`.
        """
        return self._change_rows(
            lambda change: change.overwrite(df, overwrite_filter),
            branch,
            snapshot_properties,
            idempotency_key,
            isolation,
            reads=True,
        )

    def dynamic_partition_overwrite(
        self,
        df: DataFrame,
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
            lambda change: change.replace_partitions(df), branch, snapshot_properties, idempotency_key, isolation
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

        Files whose rows all match, as partitions and metrics prove, are removed without being opened. Rows in other
        files are deleted by the mode in the table property `write.delete.mode`: `copy-on-write` rewrites the files;
        `merge-on-read` writes deletion vectors, or position delete files in format version 2.

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
            lambda change: change.delete(delete_filter),
            branch,
            snapshot_properties,
            idempotency_key,
            isolation,
            reads=True,
        )

    def equality_delete(
        self,
        df: DataFrame,
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
            lambda change: change.delete_keys(df, equality_cols),
            branch,
            snapshot_properties,
            idempotency_key,
            isolation,
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
            lambda change: change.assign(assignments, where),
            branch,
            snapshot_properties,
            idempotency_key,
            isolation,
            reads=True,
        )

    def upsert(  # noqa: PLR0913  keyword arguments
        self,
        df: DataFrame,
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
            lambda change: change.upsert(df, join_cols, updates=updates, inserts=inserts),
            branch,
            snapshot_properties,
            idempotency_key,
            isolation,
            reads=True,
        )

    def merge(
        self,
        source: DataFrame,
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

        `when_matched(condition)` takes `update(assignments)`, `update_all()` or `delete()`; `when_not_matched` takes
        `insert(values)` or `insert_all()`; `when_not_matched_by_source` takes `update(assignments)` or `delete()`.
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

        def run(merge: Merge[Self]) -> Self:
            return self._change_rows(
                lambda change: change.merge(merge), branch, snapshot_properties, idempotency_key, isolation, reads=True
            )

        return Merge(source, on, run)


@dataclass
class RowChange:
    """A change of rows in progress.

    Attributes:
        transaction: the transaction that it is part of.
        update: the update for its snapshot.
        head: the table at the branch's head.
        isolation: the isolation level, if the caller gave it.
        dropped: whether it was dropped because there was nothing to change.
    """

    transaction: RowTransaction[Any]
    update: SnapshotUpdate
    head: TableState
    isolation: Isolation | None
    dropped: bool = False

    # -- The changes ------------------------------------------------------------------------------------------------

    def append(self, df: DataFrame) -> None:
        self.update.append(self._write(df))

    def add_files(self, paths: Sequence[str] | DataFrame, *, duplicates: bool, other_tables: bool) -> None:
        added = describe_files(self.head, paths, check_duplicates=duplicates, check_other_tables=other_tables)
        if added.needs_mapping:
            self.transaction._add(AddNameMapping.of(self._metadata))
        self.update.append(added.files)
        if duplicates:
            self.update.validate_new_paths()

    def overwrite(self, df: DataFrame, overwrite_filter: BooleanExpression | str) -> None:
        matching = Matching(self.head, overwrite_filter)
        if matching.has_parts:
            self.update.append(self._write(df))
            if self._replace(matching, self.isolation or "serializable"):
                return
        else:
            self.update.overwrite(self._write(df), row_filter=overwrite_filter)
        if self.isolation is not None:
            self.update.validate_no_conflicts(overwrite_filter, isolation=self.isolation)

    def replace_partitions(self, df: DataFrame) -> None:
        if self._metadata.spec().is_unpartitioned():
            raise ValidationError(
                f"{self.transaction.table.full_name}: it has no partitions to overwrite: overwrite replaces all"
            )
        self.update.replace_partitions(self._write(df))
        if self.isolation is not None:
            self.update.validate_no_conflicts(isolation=self.isolation)

    def delete(self, delete_filter: BooleanExpression | str) -> None:
        matching = Matching(self.head, delete_filter)
        if matching.has_parts:
            masks, level = self._merges_on_read("delete"), self._isolation("delete")
            self.dropped = not self._replace(matching, level, masks=masks)
        elif matching.has_whole_files:
            self.update.delete(row_filter=delete_filter)
            if self.isolation == "serializable":
                self.update.validate_no_conflicts(delete_filter, ignore_deletes=True)
        else:
            self.dropped = True

    def delete_keys(self, df: DataFrame, equality_cols: Sequence[str] | None) -> None:
        deletes = KeyDeletes.of(self.head, df, equality_cols)
        for files in deletes.write():
            self.transaction._written.append(files)
            self.update.row_delta(deletes=files)
        if deletes.limited_to is not None:
            self.update.validate_partition_specs(deletes.limited_to)
        self.dropped = deletes.is_empty
        if self.isolation is not None and not self.dropped:
            self.update.validate_no_conflicts(deletes.row_filter, isolation=self.isolation, ignore_deletes=True)

    def assign(self, assignments: Mapping[str, Column | Any], where: BooleanExpression | str) -> None:
        matching = Matching(self.head, where, by_rows=True)
        without_rows = self.head.spark.createDataFrame([], matching.row_type)
        metadata = self._metadata
        assigned = assigned_values(assignments, without_rows, metadata.schema(), metadata.location, before="")
        level, masks = self._isolation("update"), self._merges_on_read("update")
        self.dropped = not self._replace(matching, level, assigned, masks=masks)

    def upsert(self, df: DataFrame, join_cols: Sequence[str] | None, *, updates: bool, inserts: bool) -> None:
        schema, table = self._metadata.schema(), self._metadata.location
        merge = upsert_of(df, join_cols, schema, table, updates=updates, inserts=inserts)
        if not merge.clauses:
            self.dropped = True
            return
        rows = merged_rows(self.head, merge, self._lineage)
        if rows.source.duplicate is not None:
            raise ValidationError(f"{table}: two of the rows have the key {shown(rows.source.duplicate)}")
        self._merge(rows)

    def merge(self, merge: Merge[Any]) -> None:
        self._merge(merged_rows(self.head, merge, self._lineage))

    # -- Replacement of rows ------------------------------------------------------------------------------------------

    def _merge(self, rows: MergedRows) -> None:
        """Write new versions of rows and let the commit replace or delete the old ones."""
        level, lineage = self._isolation("merge"), bool(self._lineage)
        paths = rows.changed_files
        if not len(paths) and not rows.has_new_rows:
            self.dropped = True
            return
        if not len(paths):
            self.update.append(self._write(rows.new_rows, lineage=lineage))
        else:
            files = rows.matching.planned(paths)
            if self._merges_on_read("merge"):
                added = self._write(rows.new_rows, lineage=lineage) if rows.has_new_rows else None
                masks = masks_of(rows.positions.repartition(FILE), files, self.head)
                self._delete_rows(masks, files, added, with_deletes=True)
            else:
                added = self._write(rows.rewritten(files), lineage=lineage)
                self.update.row_delta(added=added, removed=rows.matching.named(paths))
        # Other commits may delete or rewrite the rows that new rows were compared with.
        only_adds = not len(paths)
        self.update.validate_no_conflicts(rows.matching.row_filter, isolation=level, ignore_deletes=only_adds)

    def _replace(
        self,
        matching: Matching,
        isolation: Isolation,
        assigned: Mapping[str, Column] | None = None,
        *,
        masks: bool = False,
    ) -> bool:
        """Delete or update matching rows in partly matching files, and remove files whose rows all match.

        Args:
            masks: whether rows are deleted by delete files instead of by rewriting their files.

        Returns:
            Whether any row matches. If none does, the update is not modified.
        """
        paths = matching.affected_paths(masks=masks)
        if not len(paths) and not matching.has_whole_files:
            return False
        if len(paths):
            (self._mask if masks else self._rewrite)(matching, paths, assigned)
        if matching.has_whole_files:
            self.update.delete(matching.whole_files)
        only_deletes = masks and assigned is None
        self.update.validate_no_conflicts(matching.row_filter, isolation=isolation, ignore_deletes=only_deletes)
        return True

    def _rewrite(self, matching: Matching, paths: pa.Array, assigned: Mapping[str, Column] | None) -> None:
        """Rewrite files without their matching rows, or with new versions of these rows."""
        lineage = self._lineage
        rows = matching.rows(matching.planned(paths), lineage, matches=False if assigned is None else None)
        if assigned is not None:
            rows = with_values(rows, assigned, lineage, matching.is_matching_row)
        self.update.row_delta(added=self._write(rows, lineage=bool(lineage)), removed=matching.named(paths))

    def _mask(self, matching: Matching, paths: pa.Array, assigned: Mapping[str, Column] | None) -> None:
        """Delete the matching rows of files by delete files and, for an update, append their new versions."""
        files = matching.planned(paths)
        added = None
        if assigned is not None:
            lineage = self._lineage
            rows = matching.rows(files, lineage, matches=True)
            added = self._write(with_values(rows, assigned, lineage), lineage=bool(lineage))
        # Updated rows must still exist; deleted rows may already be gone.
        self._delete_rows(matching.masks, files, added, with_deletes=assigned is not None)

    def _delete_rows(self, masks: Masks, files: PlannedFiles, added: DataFrame | None, *, with_deletes: bool) -> None:
        """Delete rows by deletion vectors or position delete files, and add the data files with their new versions.

        Args:
            masks: the rows; see `masks_of`.
            files: the data files that contain them.
            added: the new data files.
            with_deletes: whether it is a conflict if a concurrent delete removed the data files.
        """
        deletes = write_deletes(self.head, masks, files)
        self.transaction._written.append(deletes.files)
        self.update.row_delta(added=added, deletes=deletes.files, superseded=deletes.superseded)
        if deletes.data_files is not None:
            self.update.validate_data_files_exist(deletes.data_files, with_deletes=with_deletes)

    def _write(self, df: DataFrame, *, lineage: bool = False) -> DataFrame:
        state = replace(self.transaction.table.state, metadata=self._metadata)
        files = write_files(state, df, lineage=lineage)
        self.transaction._written.append(files)
        return files

    # -- Properties -------------------------------------------------------------------------------------------------

    @property
    def _metadata(self) -> TableMetadata:
        return self.transaction.table_metadata

    @property
    def _lineage(self) -> tuple[str, ...]:
        """The metadata columns that rows keep when they move to another file."""
        return lineage_columns(self._metadata)

    def _merges_on_read(self, command: str) -> bool:
        """Return whether a command deletes rows by delete files. Version 1 does not support these."""
        return self._property(f"write.{command}.mode", _MODES) == _MODES[1] and self._metadata.format_version > 1

    def _isolation(self, command: str) -> Isolation:
        if self.isolation is not None:
            return self.isolation
        level = self._property(f"write.{command}.isolation-level", _ISOLATIONS)
        return "serializable" if level == _ISOLATIONS[0] else "snapshot"

    def _property(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a table property; the first of the allowed values is the default."""
        return choice_property(self._metadata.properties, name, allowed, location=self.transaction.table.full_name)


@dataclass
class RowTransaction(Transaction[TableT], RowChanges):
    """A transaction with methods that change rows.

    Each change writes its files immediately; they become part of the table when the transaction commits. If the
    transaction is known to have failed, the files are deleted.
    """

    _written: list[DataFrame] = field(default_factory=list)
    _failure: BaseException | None = None

    def _change_rows(
        self,
        make: Callable[[RowChange], object],
        branch: str | None,
        properties: Mapping[str, str] | None,
        key: tuple[str, int] | None,
        isolation: Isolation | None = None,
        *,
        reads: bool = False,
        writes: bool = True,
    ) -> Self:
        """Make a change of rows. If it fails, drop it from the transaction and delete its files."""
        if self._repeats(branch, properties, key):
            return self
        self.table.refuse_read_only()
        if isolation is not None:
            ISOLATION.check("isolation", isolation)
        check_snapshot_options(self.table_metadata)
        if reads and any(hasattr(step, "names") for step in self._steps):
            problem = "an earlier change of the transaction makes a snapshot, whose rows this change would not see"
            raise UnsupportedError(f"{self.table.full_name}: {problem}: commit it first")
        update, before = self.update_snapshot(branch, properties, idempotency_key=key), len(self._written)
        try:
            with translated_errors():
                if writes:
                    update.assume_new_files()
                change = RowChange(self, update, update.head, isolation)
                make(change)
        except BaseException:
            self._forget(update, before)
            raise
        if change.dropped and update.key is None:
            _log.info("%s: no row matches, so there is nothing to change", self.table.full_name)
            self._forget(update, before)
        return self

    def _repeats(self, branch: str | None, properties: Mapping[str, str] | None, key: tuple[str, int] | None) -> bool:
        """Return whether the transaction commits nothing, since the branch has recorded its idempotency key."""
        self._refuse_committed()
        if self.repetition_of is None:
            update = self._new_update(branch, properties, key)
            update.repeats(self.table_metadata)
            self.repetition_of = update.repetition_of
        return self.repetition_of is not None

    def _forget(self, update: SnapshotUpdate, before: int) -> None:
        """Remove a change from the transaction, and delete the files that it wrote."""
        self._steps[:] = [step for step in self._steps if step is not update]
        self._delete_written(before)

    def commit(self) -> TableT:
        """Make all changes in one commit and return the resulting table; see `Transaction.commit`."""
        if self._failure is not None:
            raise self._failure
        written, self._written = self._written, []
        try:
            with deleted_on_failure(self.table.state, written):
                done = super().commit()
        except BaseException as error:
            # Calling `commit` again would commit deleted files, or commit files twice.
            self._failure = error if written else None
            raise
        if self.repetition_of is not None:
            self._delete(written)
        return done

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._delete_written()
        super().__exit__(kind, error, trace)

    def _delete_written(self, start: int = 0) -> None:
        """Delete the files of uncommitted changes."""
        self._delete(self._written[start:])
        del self._written[start:]

    def _delete(self, written: Sequence[DataFrame]) -> None:
        for files in written:
            delete_written(self.table.state, files)


@dataclass(frozen=True)
class RowTable(BaseTable, RowChanges):
    """A table with methods that change rows. Each method commits and returns the table after the commit."""

    def transaction(self) -> RowTransaction[Self]:
        """Begin a transaction, which commits several changes at once: `with table.transaction() as tx: tx.append(df)`.

        This object does not change. `refresh()`, or the transaction's `commit()`, returns the new version.
        """
        return RowTransaction(self)

    def committed_version(self, application: str, *, branch: str | None = None) -> int | None:
        """Return the highest version of an application that snapshots of a branch have recorded by idempotency keys.

        The result is None if there is none. Expired snapshots don't count.
        """
        NAME.check("application", application)
        return last_version(write_target(self.state, branch).history(self.metadata), application)

    def _change_rows(self, *args: Any, **options: Any) -> Self:
        return self.transaction()._change_rows(*args, **options).commit()
