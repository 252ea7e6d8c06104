"""The steps that mend damage: they write manifests, or forget what is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction import CompactionOptions, scope_of
from sparkmeta.commit.compaction_groups import Group
from sparkmeta.commit.compaction_job import RewriteJob, Rewritten, rebase
from sparkmeta.commit.leaves import partition_stats
from sparkmeta.commit.lists import ManifestRewriter, NewList, manifest_format, without_manifests
from sparkmeta.commit.new_snapshot import (
    LeafCounts,
    NewSnapshot,
    blob_loader,
    branch_update,
    snapshot_summary,
    with_root,
)
from sparkmeta.commit.next_root import FileKey, TreeChange, file_keys, union_of_masks
from sparkmeta.entries.live import LIVE_ROWS, is_live_entry, may_be_live, sums
from sparkmeta.entries.projection import FILE_COLUMNS
from sparkmeta.entries.relation import (
    beside,
    collected,
    computed,
    distinct_rows,
    frame_of,
    grouped,
    mapped,
    matching,
    select,
    where,
)
from sparkmeta.entries.tally import KindCount, Tally, file_kind, sums_by_kind
from sparkmeta.errors import CommitConflictError, UnsupportedError
from sparkmeta.expr import sql
from sparkmeta.maintain.compact_manifests import old_layout
from sparkmeta.maintain.plans import RewriteStep, rewritten_by_others
from sparkmeta.maintain.repair_tasks import (
    CORRECTIONS,
    CorrectedEntries,
    CorrectedRows,
    Corrections,
    Damage,
)
from sparkmeta.maintain.rewrite_manifests import inherited
from sparkmeta.manifests.manifest_tasks import ExistingTasks
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.manifests.v4.root import in_files, one_of
from sparkmeta.session import map_arrow, read_tasks
from sparkmeta.snapshot.search import live_files
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType
from sparkmeta.spec.expiry import Expired, without_expired
from sparkmeta.spec.file_kind import FileKind
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.updates import update_table_metadata
from sparkmeta.write.add_files import measured_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.maintain.damage import DamageSearch
    from sparkmeta.manifests.v4.root import Root
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import Summary

_COUNTS = sql.named(
    {
        "files": sql.call("sum", sql.lit(1).cast("bigint")),
        "records": sql.call("sum", sql.col("record_count")),
        "size": sql.call("sum", sql.coalesce(sql.col("deletion_vector.size_in_bytes"), sql.col("file_size_in_bytes"))),
    }
)
_DELETE_KINDS = (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)


# -- Entries to correct -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corrected:
    """Entries to correct or to leave out, and manifests to rewrite. Rows are `FINDINGS`.

    Attributes:
        search: the search that found them.
        entries: entries whose files are measured.
        repeated: entries to leave out.
        miscounted: manifests.
    """

    search: DamageSearch
    entries: Relation
    repeated: Relation
    miscounted: Relation

    @staticmethod
    def of(search: DamageSearch, entries: Relation, repeated: Relation, miscounted: Relation) -> Corrected:
        """Return the corrections to make. Repeated entries are not measured."""
        position = {"manifest_path": "manifest_path", "manifest_pos": "manifest_pos"}
        measured = computed(matching(entries, repeated, position, absent=True))
        return Corrected(search, measured, repeated, miscounted)

    @property
    def state(self) -> TableState:
        """The table at the head of a branch."""
        return self.search.state

    @cached_property
    def left_out(self) -> dict[str, PositionBitmap]:
        """The location of a manifest or root -> the ordinals of its repeated entries."""
        return _bitmaps(self.repeated)

    @cached_property
    def measured(self) -> dict[str, PositionBitmap]:
        """The location of a manifest or root -> the ordinals of its entries whose files are measured."""
        return _bitmaps(self.entries)

    @cached_property
    def manifests(self) -> frozenset[str]:
        """The manifests and the root to rewrite."""
        miscounted = collected(self.miscounted).column("file_path").to_pylist()
        return frozenset([*self.left_out, *self.measured, *miscounted])

    @cached_property
    def tally(self) -> Tally:
        """The counts of the repeated entries."""
        if not self.left_out:
            return Tally()
        position = {"manifest_path": "manifest_path", "ordinal": "manifest_pos"}
        entries = matching(self.search.entries(), self.repeated, position)
        counted = [
            (file_kind(row["content_type"], row["file_format"]), KindCount(row["files"], row["records"], row["size"]))
            for row in collected(grouped(entries, sql.columns("content_type", "file_format"), _COUNTS)).to_pylist()
        ]
        return Tally(sums_by_kind(counted), None)

    @cached_property
    def corrections(self) -> Relation:
        """The measured files, as `CORRECTIONS`. May run a job."""
        is_measured = (sql.col("damage") != Damage.SIZES.value).cast("int")
        files = grouped(self.entries, sql.columns("file_path"), [sql.call("max", is_measured).alias("measured")])
        rows = select(files, [sql.col("file_path").alias("file_path"), (sql.col("measured") == 1).alias("is_measured")])
        corrections = Corrections(measured_files(self.state, full_bounds=False))
        return computed(mapped_files(rows, lambda _: corrections, CORRECTIONS, self.state, tasks=read_tasks))


def _bitmaps(entries: Relation) -> dict[str, PositionBitmap]:
    """Return the positions of entries by manifest."""
    rows = collected(distinct_rows(entries, ["manifest_path", "manifest_pos"]))
    positions: dict[str, list[int]] = {}
    for path, position in zip(*(rows.column(index).to_pylist() for index in range(2)), strict=True):
        positions.setdefault(path, []).append(position)
    return {path: PositionBitmap.of(np.asarray(ordinals, np.int64)) for path, ordinals in positions.items()}


# -- Manifest lists ---------------------------------------------------------------------------------------------------


@dataclass
class ListRepair(RewriteStep):
    """Rewrites damaged manifests. Each attempt adds the new ones to the newest manifest list."""

    corrected: Corrected
    _written: pa.Table | None = field(default=None, init=False)

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        planned_on, replaced = self.corrected.state, self.corrected.manifests
        planned, current = inherited(planned_on), inherited(head)
        same_version = head.metadata.format_version == planned_on.metadata.format_version
        if not same_version or any(current.get(path) != planned[path] for path in replaced):
            raise rewritten_by_others(head)
        if self._written is None:
            self._written = pa.concat_tables([self._rewritten(), self.names.noted(self._corrected_manifests())])
        written = self._written
        unchanged = without_manifests(head.manifest_files, replaced)
        counts = LeafCounts(len(written), len(unchanged), len(replaced))
        listed = pa.concat_tables([written, unchanged]).sort_by("content")
        summary = self.summary(head, counts, removed=self.corrected.tally)
        return NewList(head, self.branch, self.names).write(listed, summary())

    def _rewritten(self) -> pa.Table:
        """Write the manifests without the entries that are left out or measured."""
        state, corrected = self.corrected.state, self.corrected
        listed = state.manifest_files
        damaged = listed.filter(pc.is_in(listed.column("manifest_path"), pa.array(sorted(corrected.manifests))))
        left_out = union_of_masks(corrected.left_out, corrected.measured)
        written = ManifestRewriter(state, self.names).corrected(damaged, left_out)
        return written.filter(may_be_live(written))

    def _corrected_manifests(self) -> pa.Table:
        """Write the measured entries to new manifests."""
        state, measured = self.corrected.state, self.corrected.measured
        if not measured:
            return MANIFEST_FILE_SCHEMA.empty_table()
        manifests = state.manifests
        damaged = manifests.filter(pc.is_in(manifests.column("location"), pa.array(sorted(measured))))
        projection = state.projection((*FILE_COLUMNS, *METRICS_MAP_IDS))
        entries = where(state.relation(damaged, projection), is_live_entry())
        chosen = matching(entries, self._measured_positions(damaged), {"manifest": "manifest", "ordinal": "ordinal"})
        corrected = beside(chosen, self.corrected.corrections, "location", "corrected_path")
        name = self.names.file("m")
        forms = {
            (int(content - ContentType.DATA_MANIFEST), spec_id): manifest_format(state, content, spec_id, name)
            for content in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
            for spec_id in set(damaged.column("partition_spec_id").to_pylist())
        }
        tasks = CorrectedEntries(ExistingTasks(forms))
        return collected(mapped(corrected, tasks, MANIFEST_FILE_SCHEMA)).cast(MANIFEST_FILE_SCHEMA)

    def _measured_positions(self, manifests: pa.Table) -> pa.Table:
        """Return the `manifest` and `ordinal` of the measured entries."""
        ids = dict(zip(manifests.column("location").to_pylist(), manifests.column("manifest").to_pylist(), strict=True))
        parts = [
            pa.table({"manifest": pa.repeat(pa.scalar(ids[path], pa.int32()), len(ordinals)), "ordinal": ordinals})
            for path, bitmap in self.corrected.measured.items()
            for ordinals in map(pa.array, bitmap.positions())
        ]
        return pa.concat_tables(parts)


# -- Trees ------------------------------------------------------------------------------------------------------------


@dataclass
class TreeRepair(RewriteStep):
    """Rewrites damaged leaves, and moves damaged files of the root into leaves. Each attempt rebases them."""

    corrected: Corrected
    _written: list[Rewritten] | None = field(default=None, init=False)

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        if not head.types.has_tuples_of(self.corrected.state.types):
            location = head.metadata.location
            raise CommitConflictError(f"{location}: its upgrade gives its expressions other ids by now: plan again")
        if self._written is None:
            self._written = [self._rewritten(group) for group in self._groups]
            self.names.written.update(*(group.new_leaves.column("location").to_pylist() for group in self._written))
        base = base_root(head)
        if base.root is None:
            raise CommitConflictError(f"{head.metadata.location}: the branch no longer has a snapshot")
        state = with_root(head, base)
        counts, change = LeafCounts(unchanged=len(in_files(base.root.leaves))), TreeChange(moved=self._repeated_in_root)
        if self._written:
            rebased = rebase(state, base.root, self._written, blob_loader(head))
            if rebased.left_out:
                raise rewritten_by_others(head)
            counts, change = rebased.counts.plus(counts), rebased.into(change)
        summary = self.summary(head, counts, removed=self.corrected.tally)
        return NewSnapshot(state, base, self.branch, self.names).write(change, summary)

    @cached_property
    def _repeated_in_root(self) -> frozenset[FileKey]:
        """The files of the root that leaves also list.

        Raises:
            UnsupportedError: the root has several entries of a file.
        """
        ordinals = self._in_root(self.corrected.left_out)
        keys = file_keys(self._job.scope.root.table)
        repeated = {keys[ordinal] for ordinal in ordinals.tolist()}
        for key in sorted(repeated, key=str):
            if keys.count(key) > 1:
                problem = f"{key.location} has several entries in the root itself"
                raise UnsupportedError(f"{self.corrected.state.metadata.location}: {problem}, which can't be mended")
        return frozenset(repeated)

    def _in_root(self, places: Mapping[str, PositionBitmap]) -> np.ndarray[Any, Any]:
        """Return the row numbers of entries that are in the root itself."""
        leaf_paths = set(self._job.scope.root.leaves.column("location").to_pylist())
        ordinals = [ordinals for path in places.keys() - leaf_paths for ordinals in places[path].positions()]
        return np.concatenate([np.empty(0, np.int64), *ordinals])

    @cached_property
    def _job(self) -> RewriteJob:
        state = self.corrected.state
        assert state.tree is not None
        convertible = old_layout(state).convertible
        root = self._counted(state.tree.root)
        scope = scope_of(state, root, CompactionOptions(max_root_files=None), convertible=convertible)
        name = self.names.file("repair")
        return RewriteJob(state, scope, task_reader(state), name, left_out=self.corrected.left_out)

    def _counted(self, root: Root) -> Root:
        """Return the root with the true entry counts of miscounted leaves, since readers compare these counts."""
        paths = root.table.column("location").to_pylist()
        counts = root.table.column("record_count").to_pylist()
        miscounted = {*collected(self.corrected.miscounted).column("file_path").to_pylist()}
        reader = task_reader(self.corrected.state)
        for row, path in enumerate(paths):
            if path in miscounted and path.endswith(".parquet"):
                with reader.open(path) as file:
                    counts[row] = pq.read_metadata(file).num_rows
        index = root.table.column_names.index("record_count")
        column = root.table.schema.field(index)
        return replace(root, table=root.table.set_column(index, column, pa.array(counts, column.type)))

    @property
    def _groups(self) -> list[Group]:
        """The damaged leaves and files of the root, by content."""
        root = self._job.scope.root
        damaged = pa.array(sorted(self.corrected.manifests), pa.string())
        leaves = in_files(root.leaves)
        leaves = leaves.filter(pc.is_in(leaves.column("location"), damaged))
        self._refuse_old(leaves)
        ordinals = self._in_root(self.corrected.measured)
        kinds_in_root = root.table.column("content_type").take(pa.array(ordinals)).to_numpy()
        groups = []
        for content, kinds in (
            (ContentType.DATA_MANIFEST, (ContentType.DATA,)),
            (ContentType.DELETE_MANIFEST, _DELETE_KINDS),
        ):
            of_content = leaves.filter(one_of(leaves, [content])).column("ordinal").to_pylist()
            of_kind = ordinals[np.isin(kinds_in_root, kinds)].tolist()
            if of_content or of_kind:
                groups.append(Group(content, None, tuple(of_content), tuple(of_kind)))
        return groups

    def _refuse_old(self, leaves: pa.Table) -> None:
        state, job = self.corrected.state, self._job
        assert state.tree is not None
        old_leaves = state.manifests.filter(state.tree.has_old_layout(state.manifests)).column("manifest").to_pylist()
        for row in leaves.select(["ordinal", "location"]).to_pylist():
            if row["ordinal"] in old_leaves and row["ordinal"] not in job.scope.old:
                problem = "it has the layout of versions 1 to 3, and deletes or transforms that trees don't have"
                raise UnsupportedError(f"{row['location']} can't be written again: {problem}")

    def _rewritten(self, group: Group) -> Rewritten:
        return self._job.rewritten(group, [self._job.write_entries(self._entries(group), group.leaves)])

    def _entries(self, group: Group) -> DataFrame:
        """Return the entries of a group, corrected where their files are measured."""
        state, job = self.corrected.state, self._job
        entries = job.entries(group)
        if not self.corrected.measured:
            return entries
        corrections = frame_of(self.corrected.corrections, state)
        joined = entries.join(corrections, F.col("location") == F.col("corrected_path"), "left")
        rows = CorrectedRows(
            state.metadata.location, job.rewriting([]).schema, state.types.stats_types, partition_stats(state)
        )
        return map_arrow(joined, rows, rows.schema)


# -- Lost manifests and snapshots -------------------------------------------------------------------------------------


@dataclass
class LostManifests(RewriteStep):
    """Removes lost manifests from the head of a branch. Manifests of other commits stay."""

    lost: frozenset[str]

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        if has_tree(head.metadata):
            base = base_root(head)
            if base.root is None:
                raise CommitConflictError(f"{head.metadata.location}: the branch no longer has a snapshot")
            leaves = in_files(base.root.leaves)
            lost = leaves.filter(pc.is_in(leaves.column("location"), pa.array(sorted(self.lost), pa.string())))
            counts = LeafCounts(unchanged=len(leaves) - len(lost), replaced=len(lost))
            new = NewSnapshot(with_root(head, base), base, self.branch, self.names)
            change = TreeChange(dropped=frozenset(lost.column("location").to_pylist()))
            return new.write(change, lambda: self._summary(head, self._tally(head), counts))
        listed = without_manifests(head.manifest_files, self.lost)
        counts = LeafCounts(unchanged=len(listed), replaced=len(head.manifest_files) - len(listed))
        summary = self._summary(head, self._tally(head), counts)
        return NewList(head, self.branch, self.names).write(listed, summary)

    def _tally(self, head: TableState) -> Tally:
        """Return the counts of the data files in the lost manifests, as the list or root says."""
        manifests = in_files(head.data_manifests)
        lost = manifests.filter(pc.is_in(manifests.column("location"), pa.array(sorted(self.lost), pa.string())))
        files, rows = (int(pc.sum(values).as_py() or 0) for values in (live_files(lost), sums(lost, LIVE_ROWS)))
        return Tally({FileKind.DATA: KindCount(files, rows)}, None) if files else Tally(partitions=None)

    def _summary(self, head: TableState, lost: Tally, counts: LeafCounts) -> Summary:
        return snapshot_summary("delete", Tally(), lost, head.snapshot, self.properties, counts)


@dataclass(frozen=True)
class Rollback:
    """Moves a branch back to an ancestor of its head, whose list or root is lost."""

    branch: str
    lost_id: int
    snapshot_id: int

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`. Raises CommitConflictError if others have moved the branch."""
        head = state.metadata.snapshot_by_name(self.branch)
        if head is None or head.snapshot_id != self.lost_id:
            raise CommitConflictError(f"{state.metadata.location}: others have moved branch {self.branch}: plan again")
        return update_table_metadata(state.metadata, (branch_update(state.metadata, self.branch, self.snapshot_id),))


@dataclass(frozen=True)
class LostSnapshots:
    """Removes snapshots that can't be read, except the ones that branches and tags refer to."""

    ids: frozenset[int]

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        metadata = state.metadata
        referenced = {ref.snapshot_id for ref in metadata.refs.values()}
        lost = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in self.ids - referenced]
        return without_expired(metadata, Expired(tuple(lost), ()), None, int(time.time() * 1000))
