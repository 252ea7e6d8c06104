"""Write the snapshot of a commit as a manifest list of Avro manifests, for tables of format versions 1 to 3."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit.listed_files import ListedFiles
from sparkmeta.commit.listed_table import ListedTable
from sparkmeta.commit.listed_writer import ListedFileWriter
from sparkmeta.commit.table_deletes import refuse_deletes, refuse_other_deletes
from sparkmeta.edit.list_options import ListOptions
from sparkmeta.edit.lists import NewList, is_new
from sparkmeta.edit.manifest_merge import merge_bins
from sparkmeta.edit.new_manifests import write_added
from sparkmeta.edit.new_snapshot import SnapshotNames
from sparkmeta.edit.rewritten_manifests import ManifestRewriter
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.entries.counts import may_be_live
from sparkmeta.spec.bitmap import write_deletion_vector
from sparkmeta.spec.metadata import has_tree, lacks_definitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.named import Searches
    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.removal import Removal
    from sparkmeta.spec.bitmap import PositionBitmap
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState

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
    _of_rows: pa.Table | None = None
    # Written manifests, by the manifests and changes that they were made from.
    _successors: dict[tuple[str, int | None, bytes], pa.Table] = field(default_factory=dict)
    _merged: dict[tuple[tuple[str, int | None], ...], pa.Table] = field(default_factory=dict)

    @property
    def state(self) -> TableState:
        """The state that the attempt edits."""
        assert self._state is not None
        return self._state

    def fits(self, head: TableState) -> bool:
        """See `SnapshotWriter.fits`.

        The format version and snapshot id, which manifests contain, must be the same. The table must still have the
        partition specs and schemas by which readers understand the manifests.
        """
        if self._written_for is None or has_tree(head.metadata):
            return not has_tree(head.metadata)
        snapshot_id, written_for = self._written_for
        is_same = (written_for.format_version, snapshot_id) == (head.metadata.format_version, self.names.snapshot_id)
        return is_same and not lacks_definitions(head.metadata, written_for)

    def begin(self, head: TableState) -> TableState:
        """See `SnapshotWriter.begin`."""
        self._written_for = (self.names.snapshot_id, head.metadata)
        self._state = head
        return head

    def add(
        self, files: DataFrame, allowed: Collection[int], added: NewFiles, sequence_number: int | None = None
    ) -> NewFiles:
        """See `SnapshotWriter.add`."""
        writer = ListedFileWriter(self.state, self.names, self._options, sequence_number)
        return writer.add(files, allowed, added.on_driver)

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:  # noqa: ARG002
        """See `SnapshotWriter.add_table`."""
        table = self._table(source)
        if with_deletes:
            refuse_other_deletes(table.source, self.state)
        else:
            refuse_deletes(table.source, self.state)
        return table.data_files()

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:  # noqa: ARG002
        """See `SnapshotWriter.add_vectors`."""
        return self._table(source).vectors()

    def _table(self, source: TableState) -> ListedTable:
        return ListedTable(replace(source, session=self.state.session), self.state, self.names, self._options)

    @property
    def _options(self) -> ListOptions:
        return ListOptions.of(self.state.metadata)

    @property
    def _rewriter(self) -> ManifestRewriter:
        return ManifestRewriter(self.state, self.names.snapshot_id, self.names.file("m"), self._options.target_bytes)

    def commit(self, added: NewFiles, removal: Removal, summary: Callable[[ManifestCounts], Summary]) -> TableMetadata:
        """See `SnapshotWriter.commit`.

        The list contains the commit's new data manifests, the other data manifests, then delete manifests in the same
        order (semantics 9.7). Manifests without live files are dropped unless the commit has written them.
        """
        options = self._options
        new = self._new_manifests(added)
        existing, replaced = self._without(removal.masks)
        listed = []
        for content in (_DATA, _DELETES):
            rows = pa.concat_tables([_of_content(new, content), _of_content(existing, content)])
            merged, count = self._merge(rows.filter(pc.or_(is_new(rows), may_be_live(rows))), options)
            listed.append(merged)
            replaced += count
        manifests = pa.concat_tables(listed).combine_chunks()
        created = pc.sum(is_new(manifests)).as_py() or 0
        counts = ManifestCounts(created, len(manifests) - created, replaced)
        return NewList(self.state, self.branch, self.names).commit(manifests, summary(counts))

    def _new_manifests(self, added: NewFiles) -> pa.Table:
        """Return the manifests with new files, writing those for files that are still rows."""
        if self._of_rows is None:
            target = self._options.target_bytes
            self._of_rows = MANIFEST_FILE_SCHEMA.empty_table()
            if added.rows is not None and len(added.rows):
                name = self.names.file("m")
                self._of_rows = write_added(self.state, added.rows, self.names.snapshot_id, name, target)
            self._note(self._of_rows)
        return self._of_rows if added.leaves is None else pa.concat_tables([self._of_rows, added.leaves])

    def _without(self, removed: Mapping[str, PositionBitmap]) -> tuple[pa.Table, int]:
        """Return the head's manifests, with those that have removed entries replaced, and the number replaced."""
        listed = self.state.manifest_files
        if not removed:
            return listed, 0
        paths, row_ids = (listed.column(name).to_pylist() for name in ("manifest_path", "first_row_id"))
        keys = {
            place: (path, row_ids[place], write_deletion_vector(removed[path]))
            for place, path in enumerate(paths)
            if path in removed
        }
        fresh = [place for place, key in keys.items() if key not in self._successors]
        written = self._rewriter.without_entries(listed.take(pa.array(fresh, pa.int64())), removed)
        self._note(written)
        self._successors |= {keys[place]: written.slice(row, 1) for row, place in enumerate(fresh)}
        rows = [
            self._successors[keys[place]] if place in keys else listed.slice(place, 1) for place in range(len(paths))
        ]
        return pa.concat_tables(rows), len(keys)

    def _merge(self, manifests: pa.Table, options: ListOptions) -> tuple[pa.Table, int]:
        """Merge small manifests of one content. Return the manifests and the number of older ones replaced."""
        bins = merge_bins(manifests, options)
        groups = {each.places: manifests.take(pa.array(each.places, pa.int64())) for each in bins if each.is_merged}
        # Keys include first row ids: another commit may have assigned other ones, which entries inherit.
        keys = {places: tuple(_sources(group)) for places, group in groups.items()}
        fresh = [places for places in groups if keys[places] not in self._merged]
        written = self._rewriter.merged([groups[places] for places in fresh])
        self._note(written)
        self._merged |= {keys[places]: written.slice(row, 1) for row, places in enumerate(fresh)}
        rows = [
            self._merged[keys[each.places]] if each.is_merged else manifests.take(pa.array(each.places, pa.int64()))
            for each in bins
        ]
        replaced = sum(len(group) - (pc.sum(is_new(group)).as_py() or 0) for group in groups.values())
        return pa.concat_tables([manifests.slice(0, 0), *rows]), replaced

    def _note(self, written: pa.Table) -> None:
        self.names.written.update(written.column("manifest_path").to_pylist())


def _sources(manifests: pa.Table) -> Iterable[tuple[str, int | None]]:
    """Return the path and first row id of each manifest."""
    columns = (manifests.column(name).to_pylist() for name in ("manifest_path", "first_row_id"))
    return zip(*columns, strict=True)


def _of_content(manifests: pa.Table, content: int) -> pa.Table:
    return manifests.filter(pc.equal(manifests.column("content"), content))
