"""Build a new snapshot of a V4 tree: the files that it adds and removes, and its root."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

from sparkmeta.commit.conflicts import Isolation, Operation, Validation, refuse_new_deletes, validate
from sparkmeta.commit.duplicates import refuse_duplicates
from sparkmeta.commit.file_writer import FileWriter
from sparkmeta.commit.filtered import FilteredFiles, ReplacedFiles
from sparkmeta.commit.named import Searches, find_files
from sparkmeta.commit.new_files import NewFiles
from sparkmeta.commit.removal import Removal
from sparkmeta.commit.vector_targets import replaced_deletes
from sparkmeta.compact.choose import choose_merges
from sparkmeta.compact.job import Rewritten
from sparkmeta.compact.options import CompactionOptions, scope_of
from sparkmeta.compact.rebase import Rebased, rebase
from sparkmeta.compact.rewrite import rewrite
from sparkmeta.edit.base_root import BaseRoot, base_root
from sparkmeta.edit.flush import Flush, flush_of
from sparkmeta.edit.leaves import leaf_format
from sparkmeta.edit.new_snapshot import NewSnapshot, SnapshotNames, blob_loader, branch_head, with_root
from sparkmeta.edit.next_root import TreeChange, same_manifest_dv, spent_leaves, without_owners
from sparkmeta.edit.options import TreeOptions
from sparkmeta.edit.summary import ManifestCounts, snapshot_summary
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.summary import FileKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState

_DATA = (int(ContentType.DATA),)
_DELETES = (int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES))


@dataclass
class SnapshotUpdate:
    """Collects changes of files, which become one snapshot when the transaction commits. Methods can be chained.

    Files are DataFrames with the columns of `inspect.files`. To remove a file, `file_path` is enough, with
    `content_offset` for a deletion vector. Rows of `plan_files` are found faster, by their `manifest_path`.
    """

    _started: TableState
    _branch: str
    _properties: dict[str, str]
    _added: list[tuple[DataFrame, tuple[int, ...]]] = field(default_factory=list)
    _removed: list[DataFrame] = field(default_factory=list)
    _filters: list[FilteredFiles] = field(default_factory=list)
    _partitions_of: list[ReplacedFiles] = field(default_factory=list)
    _rewrites: bool = False
    _overwrites: bool = False
    _replaced: list[DataFrame] = field(default_factory=list)
    _validations: list[Validation] = field(default_factory=list)
    _progress: _Progress = field(default_factory=lambda: _Progress())  # noqa: PLW0108  defined below

    # -- operations -------------------------------------------------------------------------------------------------

    def append(self, files: DataFrame) -> Self:
        """Add data files."""
        self._added.append((files, _DATA))
        return self

    def delete(self, files: DataFrame | None = None, row_filter: BooleanExpression | str | None = None) -> Self:
        """Remove the given data and delete files, or the data files of which all rows match a filter.

        The commit raises ValidationError if some rows of a file match and others may not.
        """
        if (files is None) == (row_filter is None):
            raise ValidationError("delete takes either files or a row_filter")
        if files is not None:
            self._removed.append(files)
        if row_filter is not None:
            self._filters.append(FilteredFiles(row_filter))
        return self

    def overwrite(
        self,
        added: DataFrame,
        removed: DataFrame | None = None,
        row_filter: BooleanExpression | str | None = None,
    ) -> Self:
        """Replace the given files, or the data files of which all rows match a filter, with new data files."""
        self._overwrites = True
        self.append(added)
        return self.delete(removed, row_filter)

    def row_delta(
        self, added: DataFrame | None = None, deletes: DataFrame | None = None, removed: DataFrame | None = None
    ) -> Self:
        """Add data files, deletion vectors and equality deletes, and remove files.

        A deletion vector replaces an earlier one of its data file, and must contain all of its positions.
        """
        if added is not None:
            self.append(added)
        if deletes is not None:
            self._added.append((deletes, _DELETES))
        if removed is not None:
            self._removed.append(removed)
            self._replaced.append(removed)
        return self

    def rewrite(self, removed: DataFrame, added: DataFrame | None = None, deletes: DataFrame | None = None) -> Self:
        """Replace files with others that hold the same rows, so that readers see no change.

        `deletes` are deletion vectors that delete the same rows as removed deletes.

        The commit raises CommitConflictError if others deleted rows of the replaced files meanwhile.
        """
        self._rewrites = True
        self._removed.append(removed)
        self._replaced.append(removed)
        if added is not None:
            self._added.append((added, (*_DATA, *_DELETES)))
        if deletes is not None:
            self._added.append((deletes, _DELETES))
        return self

    def replace_partitions(self, files: DataFrame) -> Self:
        """Add data files, and remove all other files of their partitions, or of an unpartitioned table."""
        self._overwrites = True
        self._partitions_of.append(ReplacedFiles(files))
        return self.append(files)

    def validate_no_conflicts(
        self,
        row_filter: BooleanExpression | str | None = None,
        *,
        from_snapshot_id: int | None = None,
        isolation: Isolation = "serializable",
    ) -> Self:
        """Fail the commit if other commits changed the data that this one is based on (semantics 4.7-4.9).

        Conflicts are:

        - new deletes that apply to files which this update removes by name;
        - new deletes of rows that may match, unless this update removes files by name only and adds no deletes;
        - removed data files that may match, if this update removes files by a filter or by partitions, or neither
          removes files by name nor adds deletes;
        - added data files that may match, if `isolation` is "serializable".

        Args:
            row_filter: the rows that were read to make this change; only changes that may match it are conflicts.
                Defaults to the filters or partitions that the update replaces, or to the whole table if there are none.
                Added data defaults to the whole table also if the update removes files by name or adds deletes.
            from_snapshot_id: the snapshot that was read. Defaults to the branch's head when the transaction began.
            isolation: "serializable" or "snapshot".

        Raises:
            ValidationError: an unknown isolation.
        """
        if isolation not in ("serializable", "snapshot"):
            raise ValidationError(f"isolation is {isolation!r}: it is serializable or snapshot")
        start = from_snapshot_id if from_snapshot_id is not None else self._start
        self._validations.append(Validation(start, row_filter, isolation))
        return self

    @property
    def _start(self) -> int | None:
        head = self._started.metadata.snapshot_by_name(self._branch)
        return None if head is None else head.snapshot_id

    @property
    def _conflicting(self) -> Operation:
        """The parts of this update that decide what conflicts with it."""
        adds_deletes = any(kinds == _DELETES for _, kinds in self._added)
        filters = [matching.row_filter for matching in self._filters]
        partitions_of = [replaced.files for replaced in self._partitions_of]
        return Operation(filters, partitions_of, bool(self._removed), adds_deletes)

    # -- the commit -------------------------------------------------------------------------------------------------

    def apply(self, state: TableState) -> TableMetadata:
        """Write the root and its new leaves. Return the table's metadata with the snapshot. For `Transaction`."""
        if self.names.discarded:
            self._progress = _Progress()
        return _Attempt(self, branch_head(state, self._branch)).apply()

    @property
    def names(self) -> SnapshotNames:
        """The names of the files that the update writes. For `Transaction`."""
        return self._progress.names

    @property
    def operation(self) -> str:
        """The operation of the snapshot's summary (semantics 3.2-6)."""
        if self._rewrites:
            return "replace"
        adds_data = any(_DATA[0] in kinds for _, kinds in self._added)
        adds_deletes = any(_DATA[0] not in kinds for _, kinds in self._added)
        removes = bool(self._removed or self._filters or self._partitions_of)
        if self._partitions_of or (self._overwrites and removes) or (adds_data and (adds_deletes or removes)):
            return "overwrite"
        return "append" if adds_data else "delete"


@dataclass
class _Progress:
    """The results of an attempt that the next one reuses.

    Attributes:
        names: the snapshot id, and the files that have been written.
        searches: the results of searches, by leaf.
        added: the entries and leaves of new files.
        replaced: identifies the deletes that the new deletion vectors replaced in the first attempt.
        flush: the files moved from the root into leaves.
        compacted: the leaves that a compaction wrote.
        masks: the manifest DVs of affiliated data leaves when their delete leaves were written.
    """

    names: SnapshotNames = field(default_factory=SnapshotNames)
    searches: Searches = field(default_factory=Searches)
    added: NewFiles | None = None
    replaced: Any = None
    flush: Flush | None = None
    compacted: list[Rewritten] | None = None
    masks: Mapping[str, Mapping[str, Any] | None] | None = None


@dataclass
class _Attempt:
    """An attempt to make the snapshot on one state of the table."""

    update: SnapshotUpdate
    head: TableState

    @property
    def progress(self) -> _Progress:
        return self.update._progress

    def apply(self) -> TableMetadata:
        progress, metadata = self.progress, self.head.metadata
        for validation in self.update._validations:
            validate(self.head, validation, self.update._conflicting)
        progress.names.next_attempt(metadata)
        base = base_root(self.head)
        state = with_root(self.head, base)
        options = TreeOptions.of(metadata.properties)
        if progress.added is None:
            progress.added = self._add(state, options)
        added = progress.added
        removal = self._removal(state, added)
        refuse_duplicates(state, added, removal, progress.searches)
        leaves = self._still_affiliated(added.leaves, base, removal)
        change = TreeChange(added.rows, leaves, removal.keys, removal.masks)
        if progress.flush is None or not progress.flush.fits(base.root, change):
            progress.flush = flush_of(base.root, change, state, options, progress.names.file("flush"))
        flush = progress.flush
        compacted = self._compacted(base, state, change, options)
        manifests = _manifest_counts(base, added, flush, compacted)
        new = NewSnapshot(state, base, self.update._branch, progress.names)
        edit = compacted.into(flush.into(change)) if compacted else flush.into(change)
        return new.commit(edit, lambda: self._summary(added, removal, manifests))

    def _add(self, state: TableState, options: TreeOptions) -> NewFiles:
        form = leaf_format(state, self.progress.names.file("leaf"), options.leaf_target_bytes)
        writer = FileWriter(state, form, options, self.progress.searches)
        added = NewFiles()
        for files, kinds in self.update._added:
            added = added.plus(writer.add(files, kinds, added.in_root))
        return added

    def _still_affiliated(self, leaves: pa.Table | None, base: BaseRoot, removal: Removal) -> pa.Table | None:
        """Return the new leaves, with delete leaves unaffiliated if files of their data leaf have been removed since.

        A removed file may have been added again in another manifest.
        """
        if leaves is None or base.root is None or leaves.column("referenced_file").null_count == len(leaves):
            return leaves
        owners = leaves.column("referenced_file").drop_null().to_pylist()
        masks = {owner: base.root.manifest_dv_of.get(owner) for owner in owners}
        if self.progress.masks is None:
            self.progress.masks = masks
        changed = {owner for owner in owners if not same_manifest_dv(self.progress.masks[owner], masks[owner])}
        return without_owners(leaves, changed.union(removal.masks))

    def _compacted(self, base: BaseRoot, state: TableState, change: TreeChange, options: TreeOptions) -> Rebased | None:
        """Return the compaction that the table's properties request, of leaves that the change does not touch."""
        progress = self.progress
        if base.root is None or not options.compact_entries:
            return None
        if progress.compacted is None:
            compaction = CompactionOptions(max_entries=options.compact_entries)
            scope = scope_of(state, base.root, compaction, change.masks)
            progress.compacted = rewrite(state, scope, choose_merges(scope), progress.names.file("compact"))
            progress.names.written.update(
                *(each.new_leaves.column("location").to_pylist() for each in progress.compacted)
            )
        if not progress.compacted:
            return None
        return rebase(state, base.root, progress.compacted, blob_loader(state), change.masks)

    def _removal(self, state: TableState, added: NewFiles) -> Removal:
        update, searches = self.update, self.progress.searches
        parts = [self._named(state, files) for files in update._removed]
        parts += [matching.find(state, searches) for matching in update._filters]
        parts += [replaced.find(state, searches) for replaced in update._partitions_of]
        removal = reduce(Removal.plus, parts, Removal())
        if FileKind.DELETION_VECTOR not in added.tally.counts:
            return removal
        deletes = replaced_deletes(state, added, removal, searches)
        if self.progress.replaced is not None and self.progress.replaced != deletes.names:
            raise CommitConflictError(
                f"{state.metadata.location}: another commit has added a deletion vector for the same data file"
            )
        self.progress.replaced = deletes.names
        return removal.plus(deletes.removal)

    def _named(self, state: TableState, files: DataFrame) -> Removal:
        """Find files by name. Raises CommitConflictError if others deleted rows of files that are replaced."""
        update, removal = self.update, find_files(state, files, self.progress.searches)
        if any(files is replaced for replaced in update._replaced):
            refuse_new_deletes(state, files, removal, update._start)
        for validation in update._validations:
            refuse_new_deletes(state, files, removal, validation.start, validation.row_filter)
        return removal

    def _summary(self, added: NewFiles, removal: Removal, manifests: ManifestCounts) -> Summary:
        update = self.update
        return snapshot_summary(
            update.operation,
            added.tally,
            removal.tally,
            self.head.snapshot,
            update._properties,
            manifests,
            replaces_partitions=bool(update._partitions_of),
        )


def _manifest_counts(base: BaseRoot, added: NewFiles, flush: Flush, compacted: Rebased | None) -> ManifestCounts:
    new = sum(len(leaves) for leaves in (added.leaves, flush.leaves) if leaves is not None)
    carried = 0 if base.root is None else len(base.root.leaves) - len(spent_leaves(base.root))
    return (ManifestCounts() if compacted is None else compacted.counts).plus(ManifestCounts(new, carried))
