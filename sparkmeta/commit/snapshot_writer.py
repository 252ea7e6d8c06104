"""Write a change set as a snapshot: the next root of a tree, or the next manifest list."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit.base_root import BaseRoot, base_root
from sparkmeta.commit.compaction import CompactionOptions, scope_of
from sparkmeta.commit.compaction_groups import choose_merges
from sparkmeta.commit.compaction_job import Rebased, rebase, rewrite
from sparkmeta.commit.file_writer import FileWriter, ListedFileWriter
from sparkmeta.commit.leaves import Flush, flush_of, leaf_format
from sparkmeta.commit.lists import MOST_MERGED, ManifestRewriter, NewList, is_new, merge_bins, write_added
from sparkmeta.commit.moved_files import with_moves
from sparkmeta.commit.new_files import ListedFiles, NewFiles
from sparkmeta.commit.new_snapshot import LeafCounts, NewSnapshot, SnapshotNames, blob_loader, with_root
from sparkmeta.commit.next_root import TreeChange, spent_leaves, without_owners
from sparkmeta.commit.options import ListOptions, TreeOptions
from sparkmeta.commit.other_table import ListedTable, new_vectors, refuse_deletes, refuse_other_deletes
from sparkmeta.entries.live import may_be_live
from sparkmeta.manifests.v4.root import in_files, same_manifest_dv
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.spec.bitmap import write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import has_tree, lacks_definitions
from sparkmeta.storage.keys import data_key_length

if TYPE_CHECKING:
    from sparkmeta.commit.compaction_job import Rewritten
    from sparkmeta.commit.removed_files import Removal, Searches
    from sparkmeta.entries.relation import Relation
    from sparkmeta.manifests.v4.write import LeafFormat
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.bitmap import PositionBitmap
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import Summary


# -- `SnapshotWriter`, the protocol of both writers -------------------------------------------------------------------


class SnapshotWriter(Protocol):
    """Writes the snapshot of a commit. Attempts share the writer, and the files that earlier attempts have written."""

    @property
    def nothing(self) -> NewFiles:
        """An empty set of new files."""

    def fits(self, head: TableState) -> bool:
        """Return whether the files of earlier attempts can be used for a commit onto `head`."""

    def begin(self, head: TableState) -> TableState:
        """Begin an attempt onto a branch's head and return the state that the commit edits."""

    def add(self, files: Relation, allowed: Collection[int], added: NewFiles) -> NewFiles:
        """Convert new files to entries. If there are many, jobs write them to manifests.

        Args:
            files: columns of `inspect.files`. Rows of deletion vectors may have the `manifest_path` of their data file.
            allowed: the content types that the operation may add.
            added: the new files of the commit so far.

        Raises:
            ValidationError: a row does not describe a file of this table.
        """

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:
        """Convert the live data files of another table to entries. If there are many, jobs write them to manifests.

        Args:
            source: the other table.
            added: the new files of the commit so far.
            with_deletes: whether the commit adds the table's deletes too.

        Raises:
            ValidationError: the files mean something else in this table, or have deletes that are not or can't be
                added.
            UnsupportedError: tasks can't open the table's files.
        """

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:
        """Convert the deletion vectors of another table to entries. `added` contains its data files.

        Raises:
            ValidationError: a deletion vector is older than its data file.
            UnsupportedError: tasks can't open the table's files.
        """

    def write(self, added: NewFiles, removal: Removal, summary: Callable[[LeafCounts], Summary]) -> TableMetadata:
        """Write the snapshot and return the table's metadata with it."""


# -- Write a manifest list --------------------------------------------------------------------------------------------


_DATA, _DELETES = 0, 1


@dataclass
class ListWriter:
    """See `SnapshotWriter`. Retries rewrite only the list and manifests that other commits have changed."""

    nothing: ClassVar[NewFiles] = ListedFiles()

    branch: str | None
    names: SnapshotNames
    searches: Searches
    _state: TableState | None = None
    _written_for: tuple[int, TableMetadata] | None = None
    _row_manifests: pa.Table | None = None
    # Written manifests, by the manifests and changes that they result from.
    _successors: dict[tuple[str, int | None, bytes], pa.Table] = field(default_factory=dict)
    _merged: dict[tuple[tuple[str, int | None], ...], pa.Table] = field(default_factory=dict)

    @property
    def state(self) -> TableState:
        """The state that the attempt edits."""
        assert self._state is not None
        return self._state

    def fits(self, head: TableState) -> bool:
        """See `SnapshotWriter.fits`.

        The format version and snapshot id must be the same, since manifests contain them. The folder must be the same,
        since writing the list there makes the names of manifests durable. Manifests and their list must be encrypted
        alike. The table must still have the partition specs and schemas that readers need to understand the manifests.
        """
        if self._written_for is None or has_tree(head.metadata):
            return not has_tree(head.metadata)
        snapshot_id, written_for = self._written_for
        new, old = head.metadata, written_for
        required = (old.format_version, snapshot_id, metadata_folder(old), data_key_length(old))
        is_same = required == (new.format_version, self.names.snapshot_id, metadata_folder(new), data_key_length(new))
        return is_same and not lacks_definitions(head.metadata, written_for)

    def begin(self, head: TableState) -> TableState:
        """See `SnapshotWriter.begin`."""
        self._written_for = (self.names.snapshot_id, head.metadata)
        self._state = head
        return head

    def add(self, files: Relation, allowed: Collection[int], added: NewFiles) -> NewFiles:
        """See `SnapshotWriter.add`."""
        return ListedFileWriter(self.state, self.names).add(files, allowed, added.on_driver)

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:  # noqa: ARG002
        """See `SnapshotWriter.add_table`."""
        source = replace(source, sessions=self.state.sessions)
        if with_deletes:
            refuse_other_deletes(source, self.state)
        else:
            refuse_deletes(source, self.state)
        return ListedTable(source, self.state, self.names).data_files()

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:
        """See `SnapshotWriter.add_vectors`."""
        rows = new_vectors(replace(source, sessions=self.state.sessions), self.state)
        return self.nothing if rows is None else self.add(rows, (int(ContentType.POSITION_DELETES),), added)

    @property
    def _rewriter(self) -> ManifestRewriter:
        return ManifestRewriter(self.state, self.names)

    def write(self, added: NewFiles, removal: Removal, summary: Callable[[LeafCounts], Summary]) -> TableMetadata:
        """See `SnapshotWriter.write`.

        The list contains the commit's new data manifests, the other data manifests, then delete manifests in the same
        order (semantics 9.7). Manifests without live files are dropped unless the commit has written them.
        """
        options = ListOptions.of(self.state.metadata)
        new_manifests = self._new_manifests(added)
        existing, replaced = self._without_entries(removal.masks)
        listed = []
        for content in (_DATA, _DELETES):
            rows = pa.concat_tables([_of_content(new_manifests, content), _of_content(existing, content)])
            merged, count = self._merge(rows.filter(pc.or_(is_new(rows), may_be_live(rows))), options)
            listed.append(merged)
            replaced += count
        manifests = pa.concat_tables(listed).combine_chunks()
        created = pc.sum(is_new(manifests)).as_py() or 0
        counts = LeafCounts(created, len(manifests) - created, replaced)
        return NewList(self.state, self.branch, self.names).write(manifests, summary(counts))

    def _new_manifests(self, added: NewFiles) -> pa.Table:
        """Return the manifests with new files. Files that are still rows are written to manifests first."""
        if self._row_manifests is None:
            self._row_manifests = MANIFEST_FILE_SCHEMA.empty_table()
            if added.rows is not None and len(added.rows):
                self._row_manifests = write_added(self.state, added.rows, self.names)
        return self._row_manifests if added.leaves is None else pa.concat_tables([self._row_manifests, added.leaves])

    def _without_entries(self, removed: Mapping[str, PositionBitmap]) -> tuple[pa.Table, int]:
        """Replace manifests with removed entries. Return the head's manifests and the number of replaced ones."""
        listed = self.state.manifest_files
        if not removed:
            return listed, 0
        paths, row_ids = (listed.column(name).to_pylist() for name in ("manifest_path", "first_row_id"))
        keys = {
            index: (path, row_ids[index], write_deletion_vector(removed[path]))
            for index, path in enumerate(paths)
            if path in removed
        }
        unwritten = [index for index, key in keys.items() if key not in self._successors]
        new_manifests = self._rewriter.without_entries(listed.take(pa.array(unwritten, pa.int64())), removed)
        self._successors |= {keys[index]: new_manifests.slice(row, 1) for row, index in enumerate(unwritten)}
        rows = list(range(len(listed)))
        for row, index in enumerate(keys, len(listed)):
            rows[index] = row
        return _rows_at([listed, *(self._successors[key] for key in keys.values())], rows), len(keys)

    def _merge(self, manifests: pa.Table, options: ListOptions) -> tuple[pa.Table, int]:
        """Merge small manifests of one content. Return the manifests and the number of older ones replaced."""
        bins = merge_bins(manifests, options, MOST_MERGED if self.state.access.alone else None)
        groups = {pack.indices: manifests.take(pa.array(pack.indices, pa.int64())) for pack in bins if pack.is_merged}
        # Keys include first row ids: entries inherit them, and another commit may have assigned others.
        keys = {indices: tuple(_sources(group)) for indices, group in groups.items()}
        unwritten = [indices for indices in groups if keys[indices] not in self._merged]
        new_manifests = self._rewriter.merged([groups[indices] for indices in unwritten])
        self._merged |= {keys[indices]: new_manifests.slice(row, 1) for row, indices in enumerate(unwritten)}
        merged_rows = itertools.count(len(manifests))
        rows = [row for pack in bins for row in ([next(merged_rows)] if pack.is_merged else pack.indices)]
        replaced = sum(len(group) - (pc.sum(is_new(group)).as_py() or 0) for group in groups.values())
        return _rows_at([manifests, *(self._merged[keys[indices]] for indices in groups)], rows), replaced


def _rows_at(tables: Sequence[pa.Table], rows: Sequence[int]) -> pa.Table:
    """Return rows of the concatenated tables. A list may have many thousands, so one `take` returns them all."""
    return pa.concat_tables(tables).combine_chunks().take(pa.array(rows, pa.int64()))


def _sources(manifests: pa.Table) -> Iterable[tuple[str, int | None]]:
    """Return the path and first row id of each manifest."""
    columns = (manifests.column(name).to_pylist() for name in ("manifest_path", "first_row_id"))
    return zip(*columns, strict=True)


def _of_content(manifests: pa.Table, content: int) -> pa.Table:
    return manifests.filter(pc.equal(manifests.column("content"), content))


# -- Write the snapshot of a commit as the next root of a V4 tree -----------------------------------------------------


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
        """See `SnapshotWriter.fits`. Written files have stats of partitions, whose ids must be the same."""
        if not has_tree(head.metadata):
            return False
        earlier = self._state
        return earlier is None or (head.layout == earlier.layout and head.types.has_tuples_of(earlier.types))

    def begin(self, head: TableState) -> TableState:
        """See `SnapshotWriter.begin`."""
        self._base = base_root(head)
        self._state = with_root(head, self._base)
        return self._state

    def add(self, files: Relation, allowed: Collection[int], added: NewFiles) -> NewFiles:
        """See `SnapshotWriter.add`."""
        return self._noted(self._files.add(files, allowed, added))

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:
        """See `SnapshotWriter.add_table`."""
        return self._files.add_table(source, added, with_deletes=with_deletes)

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:
        """See `SnapshotWriter.add_vectors`."""
        return self._noted(self._files.add_vectors(source, added))

    def _noted(self, added: NewFiles) -> NewFiles:
        """Note the leaves that no root will reference, so that they are deleted."""
        self.names.written.update(added.superseded)
        return added

    @property
    def _files(self) -> FileWriter:
        return FileWriter(self.state, self._form, self._options, self.searches, self.names.snapshot_id)

    @property
    def _form(self) -> LeafFormat:
        return leaf_format(self.state, self.names.file("leaf"), self._options.leaf_target_bytes)

    @property
    def _options(self) -> TreeOptions:
        return TreeOptions.of(self.state.metadata)

    def write(self, added: NewFiles, removal: Removal, summary: Callable[[LeafCounts], Summary]) -> TableMetadata:
        """See `SnapshotWriter.write`."""
        state, base, options = self.state, self._base, self._options
        leaves = self._still_affiliated(added.leaves, removal)
        change = TreeChange(added.rows, leaves, removal.keys, removal.masks, existing=added.moved)
        if state.layout.colocates:
            new_leaves = None if leaves is None else in_files(leaves)
            change = with_moves(replace(change, added_leaves=new_leaves), state, removal, self._form)
        if self.flush is None or not self.flush.fits(base.root, change):
            self.flush = flush_of(base.root, change, state, options, self.names.file("flush"))
        flush = self.flush
        compacted = self._compacted(change, options)
        manifests = _manifest_counts(base, added, flush, compacted)
        new = NewSnapshot(state, base, self.branch, self.names)
        edit = compacted.into(flush.into(change)) if compacted else flush.into(change)
        return new.write(edit, lambda: summary(manifests))

    def _still_affiliated(self, leaves: pa.Table | None, removal: Removal) -> pa.Table | None:
        """Return the new leaves. Delete leaves lose their affinity if files of their data leaf were removed since.

        A removed file may have been added again in another manifest.
        """
        root = self._base.root
        if leaves is None or root is None or leaves.column("referenced_file").null_count == len(leaves):
            return leaves
        owners = leaves.column("referenced_file").drop_null().to_pylist()
        masks = {owner: root.manifest_dv_of.get(owner) for owner in owners}
        if self.masks is None:
            self.masks = masks
        changed_owners = {owner for owner in owners if not same_manifest_dv(self.masks[owner], masks[owner])}
        return without_owners(leaves, changed_owners.union(removal.masks))

    def _compacted(self, change: TreeChange, options: TreeOptions) -> Rebased | None:
        """Return the compaction that the table's properties request, of leaves that the change does not touch."""
        root, state = self._base.root, self.state
        if root is None or not options.compact_entries:
            return None
        if self.compacted is None:
            compaction = CompactionOptions(max_entries=options.compact_entries)
            scope = scope_of(state, root, compaction, change.masks)
            self.compacted = rewrite(state, scope, choose_merges(scope), self.names.file("compact"))
            self.names.written.update(*(group.new_leaves.column("location").to_pylist() for group in self.compacted))
        if not self.compacted:
            return None
        return rebase(state, root, self.compacted, blob_loader(state), change.masks)


def _manifest_counts(base: BaseRoot, added: NewFiles, flush: Flush, compacted: Rebased | None) -> LeafCounts:
    new = (added.leaves, added.moved, flush.leaves)
    created = sum(len(in_files(leaves)) for leaves in new if leaves is not None)
    unchanged = 0 if base.root is None else len(in_files(base.root.leaves)) - len(spent_leaves(base.root))
    return (LeafCounts() if compacted is None else compacted.counts).plus(LeafCounts(created, unchanged))
