"""Write the snapshot of a commit as the next root of a V4 tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sparkmeta.commit.file_writer import FileWriter
from sparkmeta.commit.new_files import NewFiles
from sparkmeta.compact.choose import choose_merges
from sparkmeta.compact.options import CompactionOptions, scope_of
from sparkmeta.compact.rebase import Rebased, rebase
from sparkmeta.compact.rewrite import rewrite
from sparkmeta.edit.base_root import BaseRoot, base_root
from sparkmeta.edit.flush import Flush, flush_of
from sparkmeta.edit.leaves import leaf_format
from sparkmeta.edit.new_snapshot import NewSnapshot, SnapshotNames, blob_loader, with_root
from sparkmeta.edit.next_root import TreeChange, same_manifest_dv, spent_leaves, without_owners
from sparkmeta.edit.options import TreeOptions
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.spec.metadata import has_tree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkmeta.commit.named import Searches
    from sparkmeta.commit.removal import Removal
    from sparkmeta.compact.job import Rewritten
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState


@dataclass
class TreeWriter:
    """See `SnapshotWriter`.

    Attributes:
        flush: the files moved from the root into leaves.
        compacted: the leaves that a compaction wrote.
        masks: the manifest DVs of affiliated data leaves at the time their delete leaves were written.
    """

    nothing: ClassVar[NewFiles] = NewFiles()

    branch: str | None
    names: SnapshotNames
    searches: Searches
    flush: Flush | None = None
    compacted: list[Rewritten] | None = None
    masks: Mapping[str, Mapping[str, Any] | None] | None = None
    _base: BaseRoot = field(default_factory=lambda: BaseRoot(None))
    _state: TableState | None = None

    @property
    def state(self) -> TableState:
        """The state that the attempt edits."""
        assert self._state is not None
        return self._state

    def fits(self, head: TableState) -> bool:
        """See `SnapshotWriter.fits`. Stats of partitions, which files are written with, must have the same ids."""
        return has_tree(head.metadata) and (self._state is None or head.types.has_tuples_of(self._state.types))

    def begin(self, head: TableState) -> TableState:
        """See `SnapshotWriter.begin`."""
        self._base = base_root(head)
        self._state = with_root(head, self._base)
        return self._state

    def add(
        self, files: DataFrame, allowed: Collection[int], added: NewFiles, sequence_number: int | None = None
    ) -> NewFiles:
        """See `SnapshotWriter.add`."""
        return replace(self._files, sequence_number=sequence_number).add(files, allowed, added.on_driver)

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:
        """See `SnapshotWriter.add_table`."""
        return self._files.add_table(source, added.on_driver, with_deletes=with_deletes)

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:
        """See `SnapshotWriter.add_vectors`."""
        return self._files.add_vectors(source, added)

    @property
    def _files(self) -> FileWriter:
        options = self._options
        form = leaf_format(self.state, self.names.file("leaf"), options.leaf_target_bytes)
        return FileWriter(self.state, form, options, self.searches)

    @property
    def _options(self) -> TreeOptions:
        return TreeOptions.of(self.state.metadata)

    def commit(self, added: NewFiles, removal: Removal, summary: Callable[[ManifestCounts], Summary]) -> TableMetadata:
        """See `SnapshotWriter.commit`."""
        state, base, options = self.state, self._base, self._options
        leaves = self._still_affiliated(added.leaves, removal)
        change = TreeChange(added.rows, leaves, removal.keys, removal.masks)
        if self.flush is None or not self.flush.fits(base.root, change):
            self.flush = flush_of(base.root, change, state, options, self.names.file("flush"))
        flush = self.flush
        compacted = self._compacted(change, options)
        manifests = _manifest_counts(base, added, flush, compacted)
        new = NewSnapshot(state, base, self.branch, self.names)
        edit = compacted.into(flush.into(change)) if compacted else flush.into(change)
        return new.commit(edit, lambda: summary(manifests))

    def _still_affiliated(self, leaves: pa.Table | None, removal: Removal) -> pa.Table | None:
        """Return the new leaves, dropping the affinity of delete leaves if files of their data leaf were removed since.

        A removed file may have been added again in another manifest.
        """
        root = self._base.root
        if leaves is None or root is None or leaves.column("referenced_file").null_count == len(leaves):
            return leaves
        owners = leaves.column("referenced_file").drop_null().to_pylist()
        masks = {owner: root.manifest_dv_of.get(owner) for owner in owners}
        if self.masks is None:
            self.masks = masks
        changed = {owner for owner in owners if not same_manifest_dv(self.masks[owner], masks[owner])}
        return without_owners(leaves, changed.union(removal.masks))

    def _compacted(self, change: TreeChange, options: TreeOptions) -> Rebased | None:
        """Return the compaction that the table's properties request, of leaves that the change does not touch."""
        root, state = self._base.root, self.state
        if root is None or not options.compact_entries:
            return None
        if self.compacted is None:
            compaction = CompactionOptions(max_entries=options.compact_entries)
            scope = scope_of(state, root, compaction, change.masks)
            self.compacted = rewrite(state, scope, choose_merges(scope), self.names.file("compact"))
            self.names.written.update(*(each.new_leaves.column("location").to_pylist() for each in self.compacted))
        if not self.compacted:
            return None
        return rebase(state, root, self.compacted, blob_loader(state), change.masks)


def _manifest_counts(base: BaseRoot, added: NewFiles, flush: Flush, compacted: Rebased | None) -> ManifestCounts:
    new = sum(len(leaves) for leaves in (added.leaves, flush.leaves) if leaves is not None)
    carried = 0 if base.root is None else len(base.root.leaves) - len(spent_leaves(base.root))
    return (ManifestCounts() if compacted is None else compacted.counts).plus(ManifestCounts(new, carried))
