"""`RowTransaction`: a transaction that also writes and deletes rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.commit.conflicts import ISOLATION
from sparkmeta.commit.options import check_snapshot_options
from sparkmeta.commit.transaction import Transaction
from sparkmeta.errors import UnsupportedError, ValidationError, shown, translated_errors
from sparkmeta.operations.table_operations import TableT
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
    from sparkmeta.state import TableState
    from sparkmeta.write.matching import Masks
    from sparkmeta.write.merge import MergedRows

_log = logging.getLogger(__name__)

_MODES = ("copy-on-write", "merge-on-read")
_ISOLATIONS = ("serializable", "snapshot")


@dataclass
class RowTransaction(Transaction[TableT]):
    """A transaction with methods that change rows.

    Each change writes its files at once; they become part of the table when the transaction commits. If the transaction
    is known not to have been committed, the files are deleted.
    """

    _written: list[DataFrame] = field(default_factory=list)
    _failure: BaseException | None = None

    # -- changes of rows --------------------------------------------------------------------------------------------

    def append(
        self,
        df: DataFrame,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
    ) -> Self:
        """Add rows; see `Table.append`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        with self._change(branch, snapshot_properties, idempotency_key) as change:
            change.update.append(self._write(df))
        return self

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
        """Replace the rows that match a filter; see `Table.overwrite`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        with self._change(branch, snapshot_properties, idempotency_key, isolation, reads=True) as change:
            matching = Matching(change.head, overwrite_filter)
            if matching.has_parts:
                change.update.append(self._write(df))
                replaces = self._replace(change, matching, isolation or "serializable")
                if not replaces and isolation is not None:
                    change.update.validate_no_conflicts(matching.row_filter, isolation=isolation)
            else:
                change.update.overwrite(self._write(df), row_filter=overwrite_filter)
                if isolation is not None:
                    change.update.validate_no_conflicts(overwrite_filter, isolation=isolation)
        return self

    def dynamic_partition_overwrite(
        self,
        df: DataFrame,
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Replace only the partitions that have new rows; see `Table.dynamic_partition_overwrite`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        if self.table_metadata.spec().is_unpartitioned():
            raise ValidationError(f"{self.table.full_name}: it has no partitions to overwrite: overwrite replaces all")
        with self._change(branch, snapshot_properties, idempotency_key, isolation) as change:
            change.update.replace_partitions(self._write(df))
            if isolation is not None:
                change.update.validate_no_conflicts(isolation=isolation)
        return self

    def delete(
        self,
        delete_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Delete the rows that match a filter; see `Table.delete`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        with self._change(branch, snapshot_properties, idempotency_key, isolation, reads=True) as change:
            matching = Matching(change.head, delete_filter)
            if matching.has_parts:
                masks, level = self._merges_on_read("delete"), self._isolation("delete", isolation)
                if not self._replace(change, matching, level, masks=masks):
                    change.drop()
            elif matching.has_whole_files:
                change.update.delete(row_filter=delete_filter)
                if isolation == "serializable":
                    change.update.validate_no_conflicts(delete_filter, ignore_deletes=True)
            else:
                change.drop()
        return self

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
        """Delete the rows that have given keys, without reading them; see `Table.equality_delete`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        with self._change(branch, snapshot_properties, idempotency_key, isolation) as change:
            deletes = KeyDeletes.of(change.head, df, equality_cols)
            for files in deletes.write():
                self._written.append(files)
                change.update.row_delta(deletes=files)
            if deletes.limited_to is not None:
                change.update.validate_partition_specs(deletes.limited_to)
            if deletes.is_empty:
                change.drop()
            elif isolation is not None:
                change.update.validate_no_conflicts(deletes.row_filter, isolation=isolation, ignore_deletes=True)
        return self

    def update(
        self,
        assignments: Mapping[str, Column | Any],
        where: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        idempotency_key: tuple[str, int] | None = None,
        isolation: Isolation | None = None,
    ) -> Self:
        """Update the rows that match a filter; see `Table.update`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        with self._change(branch, snapshot_properties, idempotency_key, isolation, reads=True) as change:
            matching = Matching(change.head, where, by_rows=True)
            without_rows = change.head.spark.createDataFrame([], matching.row_type)
            metadata = self.table_metadata
            assigned = assigned_values(assignments, without_rows, metadata.schema(), metadata.location, before="")
            level = self._isolation("update", isolation)
            if not self._replace(change, matching, level, assigned, masks=self._merges_on_read("update")):
                change.drop()
        return self

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
        """Update the rows whose keys are in the given rows, and insert the others; see `Table.upsert`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        schema, table = self.table_metadata.schema(), self.table_metadata.location
        updates, inserts = when_matched_update_all, when_not_matched_insert_all
        with self._change(branch, snapshot_properties, idempotency_key, isolation, reads=True) as change:
            merge = upsert_of(df, join_cols, schema, table, updates=updates, inserts=inserts)
            if merge.clauses:
                rows = merged_rows(change.head, merge, self._lineage)
                if rows.source.duplicate is not None:
                    raise ValidationError(f"{table}: two of the rows have the key {shown(rows.source.duplicate)}")
                self._merge(change, rows, isolation)
            else:
                change.drop()
        return self

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
        """Begin a merge; see `Table.merge`. Its `merge()` returns this transaction."""

        def run(merge: Merge[Self]) -> Self:
            if self._repeats(branch, snapshot_properties, idempotency_key):
                return self
            with self._change(branch, snapshot_properties, idempotency_key, isolation, reads=True) as change:
                self._merge(change, merged_rows(change.head, merge, self._lineage), isolation)
            return self

        return Merge(source, on, run)

    def _merge(self, change: _Change, rows: MergedRows, isolation: Isolation | None) -> None:
        """Write new versions of rows and let the commit replace or delete the old ones."""
        level, lineage = self._isolation("merge", isolation), bool(self._lineage)
        paths = rows.changed_files
        if not len(paths) and not rows.has_new_rows:
            change.drop()
            return
        if not len(paths):
            change.update.append(self._write(rows.new_rows, lineage=lineage))
        else:
            files = rows.matching.planned(paths)
            if self._merges_on_read("merge"):
                added = self._write(rows.new_rows, lineage=lineage) if rows.has_new_rows else None
                masks = masks_of(rows.positions.repartition(FILE), files, change.head)
                self._delete_rows(change, masks, files, added, with_deletes=True)
            else:
                added = self._write(rows.rewritten(files), lineage=lineage)
                change.update.row_delta(added=added, removed=rows.matching.named(paths))
        # Others may delete or rewrite the rows that new ones were compared with.
        only_adds = not len(paths)
        change.update.validate_no_conflicts(rows.matching.row_filter, isolation=level, ignore_deletes=only_adds)

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
        """Add existing data files; see `Table.add_files`."""
        if self._repeats(branch, snapshot_properties, idempotency_key):
            return self
        with self._change(branch, snapshot_properties, idempotency_key, writes=False) as change:
            added = describe_files(
                change.head, paths, check_duplicates=check_duplicate_files, check_other_tables=check_other_tables
            )
            if added.needs_mapping:
                self._add(AddNameMapping.of(self.table_metadata))
            change.update.append(added.files)
            if check_duplicate_files:
                change.update.validate_new_paths()
        return self

    # -- how rows are replaced --------------------------------------------------------------------------------------

    def _replace(
        self,
        change: _Change,
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
            Whether any row matches. If none does, the change is not modified.
        """
        paths = matching.affected_paths(masks=masks)
        if not len(paths) and not matching.has_whole_files:
            return False
        if len(paths):
            (self._mask if masks else self._rewrite)(change, matching, paths, assigned)
        if matching.has_whole_files:
            change.update.delete(matching.whole_files)
        only_deletes = masks and assigned is None
        change.update.validate_no_conflicts(matching.row_filter, isolation=isolation, ignore_deletes=only_deletes)
        return True

    def _rewrite(
        self, change: _Change, matching: Matching, paths: pa.Array, assigned: Mapping[str, Column] | None
    ) -> None:
        """Rewrite files without their matching rows, or with these updated."""
        lineage = self._lineage
        rows = matching.rows(matching.planned(paths), lineage, matches=False if assigned is None else None)
        if assigned is not None:
            rows = with_values(rows, assigned, lineage, matching.is_matching_row)
        change.update.row_delta(added=self._write(rows, lineage=bool(lineage)), removed=matching.named(paths))

    def _mask(
        self, change: _Change, matching: Matching, paths: pa.Array, assigned: Mapping[str, Column] | None
    ) -> None:
        """Delete the matching rows of files by delete files and, for an update, append their new versions."""
        files = matching.planned(paths)
        added = None
        if assigned is not None:
            lineage = self._lineage
            rows = matching.rows(files, lineage, matches=True)
            added = self._write(with_values(rows, assigned, lineage), lineage=bool(lineage))
        # Updated rows must still exist; deleted rows may already be gone.
        self._delete_rows(change, matching.masks, files, added, with_deletes=assigned is not None)

    def _delete_rows(
        self, change: _Change, masks: Masks, files: PlannedFiles, added: DataFrame | None, *, with_deletes: bool
    ) -> None:
        """Delete rows by deletion vectors or position delete files, and add the data files with their new versions.

        Args:
            masks: the rows; see `masks_of`.
            files: the data files that contain them.
            added: the new data files.
            with_deletes: whether it is a conflict if a concurrent delete removed the data files.
        """
        deletes = write_deletes(change.head, masks, files)
        self._written.append(deletes.files)
        change.update.row_delta(added=added, deletes=deletes.files, superseded=deletes.superseded)
        if deletes.data_files is not None:
            change.update.validate_data_files_exist(deletes.data_files, with_deletes=with_deletes)

    def _write(self, df: DataFrame, *, lineage: bool = False) -> DataFrame:
        files = write_files(replace(self.table.state, metadata=self.table_metadata), df, lineage=lineage)
        self._written.append(files)
        return files

    @property
    def _lineage(self) -> tuple[str, ...]:
        """The metadata columns that rows keep when they move to another file."""
        return lineage_columns(self.table_metadata)

    # -- properties -------------------------------------------------------------------------------------------------

    def _merges_on_read(self, command: str) -> bool:
        """Return whether a command deletes rows by delete files, which version 1 does not support."""
        return self._property(f"write.{command}.mode", _MODES) == _MODES[1] and self.table_metadata.format_version > 1

    def _isolation(self, command: str, given: Isolation | None) -> Isolation:
        if given is not None:
            return given
        level = self._property(f"write.{command}.isolation-level", _ISOLATIONS)
        return "serializable" if level == _ISOLATIONS[0] else "snapshot"

    def _property(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a table property; the first of the allowed values is the default."""
        return choice_property(self.table_metadata.properties, name, allowed, location=self.table.full_name)

    # -- steps and their end ----------------------------------------------------------------------------------------

    @contextmanager
    def _change(
        self,
        branch: str | None,
        properties: Mapping[str, str] | None,
        key: tuple[str, int] | None,
        isolation: Isolation | None = None,
        *,
        reads: bool = False,
        writes: bool = True,
    ) -> Iterator[_Change]:
        """Begin a change of rows. If it fails, drop it from the transaction and delete its files.

        Args:
            branch: the branch; None for the session's.
            properties: extra properties for the snapshot's summary.
            key: the idempotency key. A change with a key makes a snapshot even if there is nothing to change.
            isolation: the isolation level, if the caller gave it.
            reads: whether the change depends on the branch's rows, so that no earlier step may change them.
            writes: whether the change writes all files that it adds, so that none can be in the table already.
        """
        self._refuse_committed()
        self.table.refuse_read_only()
        if isolation is not None:
            ISOLATION.check("isolation", isolation)
        check_snapshot_options(self.table_metadata)
        if reads and any(hasattr(step, "names") for step in self._steps):
            problem = "an earlier change of the transaction makes a snapshot, of which this one would not see the rows"
            raise UnsupportedError(f"{self.table.full_name}: {problem}: commit it first")
        update, before = self.update_snapshot(branch, properties, idempotency_key=key), len(self._written)
        try:
            with translated_errors():
                if writes:
                    update.assume_new_files()
                change = _Change(update, update.head)
                yield change
        except BaseException:
            self._forget(update, before)
            raise
        if change.dropped and update.key is None:
            _log.info("%s: no row matches, so there is nothing to change", self.table.full_name)
            self._forget(update, before)

    def _repeats(self, branch: str | None, properties: Mapping[str, str] | None, key: tuple[str, int] | None) -> bool:
        """Return whether the transaction commits nothing, since the branch has recorded its idempotency key."""
        self._refuse_committed()
        if self.repetition_of is None:
            update = self._new_update(branch, properties, key)
            update.repeats(self.table_metadata)
            self.repetition_of = update.repetition_of
        return self.repetition_of is not None

    def _forget(self, update: SnapshotUpdate, before: int) -> None:
        """Take back a change and delete the files that it wrote."""
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


@dataclass
class _Change:
    """A change of rows in progress.

    Attributes:
        update: the snapshot that it makes.
        head: the table at the branch's head.
        dropped: whether there turned out to be nothing to change.
    """

    update: SnapshotUpdate
    head: TableState
    dropped: bool = False

    def drop(self) -> None:
        """Make no snapshot."""
        self.dropped = True
