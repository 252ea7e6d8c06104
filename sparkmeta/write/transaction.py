"""`RowTransaction`: several changes of rows in one commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from sparkmeta.commit.conflicts import ISOLATION
from sparkmeta.commit.options import check_snapshot_options
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.transaction import Transaction
from sparkmeta.errors import UnsupportedError, ValidationError, shown, translated_errors
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.rows.arrow_reader import ALONE_BYTES
from sparkmeta.spec.table_properties import choice_property
from sparkmeta.write.add_files import AddNameMapping, describe_files
from sparkmeta.write.changes import RequestedChange, RowChanges, WrittenRows
from sparkmeta.write.deletes import KeyDeletes, write_deletes
from sparkmeta.write.few_rows import write_rows
from sparkmeta.write.few_upserts import few_upsert
from sparkmeta.write.files import lineage_columns
from sparkmeta.write.input import assigned_values, with_values
from sparkmeta.write.input_rows import input_frame, input_rows
from sparkmeta.write.matching import Matching
from sparkmeta.write.merge import merged_rows, upsert_of
from sparkmeta.write.tasks import delete_written, deleted_on_failure

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.conflicts import Isolation
    from sparkmeta.entries.relation import Relation
    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.write.changes import Rows
    from sparkmeta.write.few_upserts import FewUpsert
    from sparkmeta.write.matching import Masks
    from sparkmeta.write.merge import MergedRows, MergeRequest

_log = logging.getLogger(__name__)

_MODES = ("copy-on-write", "merge-on-read")
_ISOLATIONS = ("serializable", "snapshot")


@dataclass
class RowChange:
    """A change of rows in progress.

    Attributes:
        transaction: the transaction that the change is part of.
        update: the update that makes the snapshot.
        head: the table at the branch's head.
        isolation: the isolation level, if the caller gave it.
        dropped: whether the change was dropped because there was nothing to change.
    """

    transaction: RowTransaction[Any]
    update: SnapshotUpdate
    head: TableState
    isolation: Isolation | None
    dropped: bool = False

    # -- The changes ------------------------------------------------------------------------------------------------

    def append(self, rows: Rows) -> None:
        self.update.append(self._write(self._rows_to_write(rows)))

    def add_files(self, paths: Sequence[str] | DataFrame, *, duplicates: bool, other_tables: bool) -> None:
        added = describe_files(self.head, paths, check_duplicates=duplicates, check_other_tables=other_tables)
        if added.needs_mapping:
            self.transaction._add(AddNameMapping.of(self._metadata))
        self.update.append(added.files)
        if duplicates:
            self.update.validate_new_paths()

    def overwrite(self, df: Rows, overwrite_filter: BooleanExpression | str) -> None:
        matching, rows = Matching(self.head, overwrite_filter), self._rows_to_write(df)
        if matching.has_parts:
            level = self.isolation or "serializable"
            self.update.append(self._write(rows))
            if not self._replace(matching, level):
                self.update.validate_no_conflicts(overwrite_filter, isolation=level, ignore_deletes=True)
            return
        self.update.overwrite(self._write(rows), row_filter=overwrite_filter)
        if self.isolation is not None:
            self.update.validate_no_conflicts(overwrite_filter, isolation=self.isolation)

    def replace_partitions(self, rows: Rows) -> None:
        if self._metadata.spec().is_unpartitioned():
            raise ValidationError(
                f"{self.transaction.table.full_name}: it has no partitions to overwrite: overwrite replaces all"
            )
        self.update.replace_partitions(self._write(self._rows_to_write(rows)))
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

    def delete_keys(self, rows: Rows, equality_cols: Sequence[str] | None) -> None:
        deletes = KeyDeletes.of(self.head, self._rows_to_write(rows), equality_cols)
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

    def upsert(
        self, df: Rows, join_cols: Sequence[str] | None, *, updates: bool, inserts: bool, masks: bool = False
    ) -> None:
        rows = self._rows_to_write(df)
        if isinstance(rows, pa.Table):
            rewrites = not self._merges_on_read("merge", masks=masks)
            options = {"updates": updates, "inserts": inserts, "rewrites": rewrites}
            few_rows = few_upsert(self.head, rows, join_cols, self._lineage, **options)
            if few_rows.matching.reads_on_driver:
                self._upsert(few_rows, few_rows.duplicate, masks=masks)
                return
            if self.head.access.alone:
                problem = f"the keys may be in files of more than {ALONE_BYTES >> 20} MiB, which take jobs of Spark"
                instead = "use table.upsert(df, ...), in foreachBatch for a stream"
                raise UnsupportedError(f"{self._metadata.location}: {problem}: {instead}")
        frame, schema = input_frame(df, self._state), self._metadata.schema()
        merge = upsert_of(frame, join_cols, schema, self._metadata.location, updates=updates, inserts=inserts)
        if not merge.clauses:
            self.dropped = True
            return
        merged = merged_rows(self.head, merge, self._lineage)
        self._upsert(merged, merged.source.duplicate, masks=masks)

    def _upsert(self, rows: FewUpsert | MergedRows, duplicate: dict[str, object] | None, *, masks: bool) -> None:
        if duplicate is not None:
            raise ValidationError(f"{self._metadata.location}: two of the rows have the key {shown(duplicate)}")
        self._merge(rows, masks=masks)

    def merge(self, merge: MergeRequest) -> None:
        source = input_frame(merge.source, self._state)
        self._merge(merged_rows(self.head, replace(merge, source=source), self._lineage))

    # -- Replacement of rows ------------------------------------------------------------------------------------------

    def _merge(self, rows: FewUpsert | MergedRows, *, masks: bool = False) -> None:
        """Write new versions of rows and let the commit replace or delete the old ones.

        Args:
            rows: the rows.
            masks: whether delete files delete the old versions, unless the table has the property `write.merge.mode`.
        """
        level, lineage = self._isolation("merge"), bool(self._lineage)
        paths = rows.changed_files
        if not len(paths) and not rows.has_new_rows:
            self.dropped = True
            return
        if not len(paths):
            self.update.append(self._write(rows.new_rows, lineage=lineage))
        else:
            files = rows.matching.planned(paths)
            if self._merges_on_read("merge", masks=masks):
                added = self._write(rows.new_rows, lineage=lineage) if rows.has_new_rows else None
                self._delete_rows(rows.masks(files), files, added, with_deletes=True)
            else:
                added = self._write(rows.rewritten(files), lineage=lineage)
                self.update.row_delta(added=added, removed=rows.matching.named(paths))
        self.update.validate_no_conflicts(
            rows.matching.row_filter,
            isolation=level,
            ignore_deletes=not len(paths),
            depends_on_rows=level == "serializable" and rows.depends_on_rows,
        )

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
        lineage, files = self._lineage, matching.planned(paths)
        if assigned is None:
            rows = matching.rows(files, lineage, matches=False)
        else:
            rows = with_values(matching.frame(files, lineage), assigned, lineage, matching.is_matching_row)
        self.update.row_delta(added=self._write(rows, lineage=bool(lineage)), removed=matching.named(paths))

    def _mask(self, matching: Matching, paths: pa.Array, assigned: Mapping[str, Column] | None) -> None:
        """Delete the matching rows of files by delete files and, for an update, append their new versions."""
        files = matching.planned(paths)
        added = None
        if assigned is not None:
            lineage = self._lineage
            rows = matching.frame(files, lineage, matches=True)
            added = self._write(with_values(rows, assigned, lineage), lineage=bool(lineage))
        # Updated rows must still exist; deleted rows may already be gone.
        self._delete_rows(matching.masks, files, added, with_deletes=assigned is not None)

    def _delete_rows(self, masks: Masks, files: PlannedFiles, added: Relation | None, *, with_deletes: bool) -> None:
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

    def _rows_to_write(self, rows: Rows) -> Relation:
        return rows if isinstance(rows, WrittenRows) else input_rows(rows, self._state)

    def _write(self, rows: Relation, *, lineage: bool = False) -> Relation:
        files = rows.files if isinstance(rows, WrittenRows) else write_rows(self._state, rows, lineage=lineage)
        self.transaction._written.append(files)
        return files

    # -- Properties -------------------------------------------------------------------------------------------------

    @property
    def _metadata(self) -> TableMetadata:
        return self.transaction.table_metadata

    @property
    def _state(self) -> TableState:
        """The table with the metadata that rows are written for."""
        state: TableState = self.transaction.table.state
        return replace(state, metadata=self._metadata)

    @property
    def _lineage(self) -> tuple[str, ...]:
        """The metadata columns that rows keep when they move to another file."""
        return lineage_columns(self._metadata)

    def _merges_on_read(self, command: str, *, masks: bool = False) -> bool:
        """Return whether a command deletes rows by delete files. Version 1 has no delete files.

        Args:
            command: the command.
            masks: whether the command uses delete files by default.
        """
        mode = self._property(f"write.{command}.mode", _MODES[::-1] if masks else _MODES)
        return mode == _MODES[1] and self._metadata.format_version > 1

    def _isolation(self, command: str) -> Isolation:
        if self.isolation is not None:
            return self.isolation
        level = self._property(f"write.{command}.isolation-level", _ISOLATIONS)
        return "serializable" if level == _ISOLATIONS[0] else "snapshot"

    def _property(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a table property; the first of the allowed values is the default."""
        return choice_property(self._metadata.properties, name, allowed, location=self.transaction.table.full_name)


@dataclass(repr=False)
class RowTransaction(Transaction[TableT], RowChanges):
    """A transaction with methods that change rows.

    Each change writes its files immediately; they become part of the table when the transaction commits. If the
    transaction is known to have failed, the files are deleted.
    """

    _written: list[Relation] = field(default_factory=list)
    _failure: BaseException | None = None

    def _change_rows(self, change: RequestedChange) -> Self:
        """Make a change of rows. If it fails, drop it from the transaction and delete its files."""
        if self._is_repeated(change.branch, change.properties, change.key):
            return self
        refuse_read_only(self.table)
        if change.isolation is not None:
            ISOLATION.check("isolation", change.isolation)
        check_snapshot_options(self.table_metadata)
        if change.reads and any(hasattr(step, "names") for step in self._steps):
            problem = "an earlier change of the transaction makes a snapshot, whose rows this change would not see"
            raise UnsupportedError(f"{self.table.full_name}: {problem}: commit it first")
        written_before = len(self._written)
        step = self._snapshot_step(change.branch, change.properties, change.key)
        update = SnapshotUpdate(step)
        try:
            with translated_errors():
                if change.writes:
                    update.assume_new_files()
                writer = RowChange(self, update, step.head, change.isolation)
                change.make(writer)
        except BaseException:
            self._forget(step, written_before)
            raise
        if writer.dropped and step.key is None:
            _log.info("%s: no row matches, so there is nothing to change", self.table.full_name)
            self._forget(step, written_before)
        return self

    def _upsert_few(
        self, rows: pa.Table, join_cols: Sequence[str] | None, branch: str | None, properties: Mapping[str, str]
    ) -> Self:
        """Upsert rows as `upsert` does, by delete files unless the property `write.merge.mode` says otherwise."""

        def change(change: RowChange) -> None:
            change.upsert(rows, join_cols, updates=True, inserts=True, masks=True)

        return self._change_rows(RequestedChange(change, branch, properties, None, reads=True))

    def _is_repeated(
        self, branch: str | None, properties: Mapping[str, str] | None, key: tuple[str, int] | None
    ) -> bool:
        """Return whether the transaction commits nothing, since the branch has recorded its idempotency key."""
        self._refuse_committed()
        if self.repetition_of is None:
            step = self._new_step(branch, properties, key)
            step.repeats(self.table_metadata)
            self.repetition_of = step.repetition_of
        return self.repetition_of is not None

    def _forget(self, change: SnapshotStep, written_before: int) -> None:
        """Remove a change from the transaction, and delete the files that it wrote."""
        self._steps[:] = [step for step in self._steps if step is not change]
        self._delete_written(written_before)

    def commit(self) -> TableT:
        """Make all changes in one commit and return the resulting table; see `Transaction.commit`."""
        if self._failure is not None:
            raise self._failure
        written, self._written = self._written, []
        try:
            with deleted_on_failure(self.table.state, written):
                table = super().commit()
        except BaseException as error:
            # Calling `commit` again would commit deleted files, or commit files twice.
            self._failure = error if written else None
            raise
        if self.repetition_of is not None:
            self._delete(written)
        return table

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

    def _delete(self, written: Sequence[Relation]) -> None:
        for files in written:
            delete_written(self.table.state, files)
