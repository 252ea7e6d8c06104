"""Run the Spark jobs of a compaction, and rebase their result on a newer root."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.commit.compaction_groups import Group, Scope
from sparkmeta.commit.compaction_tasks import (
    BIN_SCHEMA,
    CUT_ENTRIES,
    GROUP_LEAF_SCHEMA,
    Rewriting,
    key_schema,
    key_table,
)
from sparkmeta.commit.leaves import (
    DELETE_ENTRY_BYTES,
    changed_vectors,
    data_keys,
    existing,
    leaf_format,
    leaf_frame,
    leaf_parts,
    live_owners,
    named_owners,
    partition_columns,
    with_owners,
    write_affiliated,
)
from sparkmeta.commit.new_snapshot import LeafCounts, blob_loader
from sparkmeta.commit.next_root import (
    FileKey,
    LoadBlob,
    TreeChange,
    file_keys,
    file_versions,
    manifest_dv_bitmap,
    without_owners,
)
from sparkmeta.entries.live import is_live
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.expr.arrays import from_stream, to_stream, whole
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, dv_row, masked_ordinals
from sparkmeta.manifests.sorted_manifests import sampled_bounds, sorted_among_tasks, spread
from sparkmeta.manifests.v4.colocated import with_vectors
from sparkmeta.manifests.v4.root import Root, in_files, one_of, same_manifest_dv, version
from sparkmeta.manifests.v4.write import leaf_count, write_leaves, write_owned_leaves
from sparkmeta.progress import tracked
from sparkmeta.session import local_frame, map_arrow, materialize
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.compaction_groups import CompactionGroups
    from sparkmeta.manifests.v4.convert import Adoption
    from sparkmeta.manifests.v4.write import LeafFormat
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.executors import ExecutorReader


# -- Rewrite groups of leaves and files as EXISTING entries -----------------------------------------------------------


# Maximum number of ranges that a task cuts its entries into.
_MAX_RANGES = 1_024
# Maximum bytes of leaves, with at most `CUT_ENTRIES`, that a task cuts into ranges at once. Leaves take several times
# their size in memory, and very compressible ones have many entries in few bytes.
_CUT_BYTES = 64 << 20


@dataclass(frozen=True)
class Rewritten:
    """A rewritten group.

    Attributes:
        leaves: location of a replaced leaf -> its manifest DV when it was read, or None.
        first_row_ids: location of a replaced leaf -> its first row id, which determines the row ids of its entries.
        files: the replaced files of the root, with their file sequence numbers.
        vectors: deletion vectors among `files` that go into the entry of their data file -> the data file.
        new_leaves: the root's entries for the new leaves.
    """

    leaves: Mapping[str, Mapping[str, Any] | None]
    first_row_ids: Mapping[str, int | None]
    files: Mapping[FileKey, int]
    new_leaves: pa.Table
    vectors: Mapping[FileKey, FileKey] = field(default_factory=dict)


@dataclass(frozen=True)
class RewriteJob:
    """The jobs of one compaction.

    Attributes:
        name: the beginning of the names of new leaves.
        left_out: location of a leaf -> ordinals of entries that are not written.
        adoption: converts the entries to entries of another table, whose leaves have the format `adopted`.
        adopted: the format of the other table's leaves.
    """

    state: TableState
    scope: Scope
    reader: ExecutorReader
    name: str
    left_out: Mapping[str, PositionBitmap] = field(default_factory=dict, kw_only=True)
    adoption: Adoption | None = field(default=None, kw_only=True)
    adopted: LeafFormat | None = field(default=None, kw_only=True)

    @property
    def root(self) -> pa.Table:
        return self.scope.root.table

    def data(self, groups: Sequence[Group]) -> list[Rewritten]:
        """Rewrite groups of data leaves."""
        bin_numbers = [number for number, group in enumerate(groups) if not group.exchanged]
        leaves_by_group: dict[int, list[pa.Table]] = {}
        if bin_numbers:
            rows = [self._bin(number, groups[number], groups[number].leaves) for number in bin_numbers]
            leaves_by_group = self._write_bins(rows)
        exchanged = [number for number, group in enumerate(groups) if group.exchanged]
        for number in tracked(exchanged, "Sorting leaves", self.state.sessions):
            leaves_by_group[number] = self._exchange(groups[number])
        return [self.rewritten(group, leaves_by_group.get(number, [])) for number, group in enumerate(groups)]

    def rewritten(self, group: Group, new_leaves: Sequence[pa.Table]) -> Rewritten:
        """Return the rewritten form of a group, given the root's entries for its new leaves."""
        leaves = self.root.take(pa.array(group.leaves, pa.int64()))
        locations = leaves.column("location").to_pylist()
        vectors = self._vectors(group)
        files = pa.concat_tables([self.root.take(pa.array(group.files, pa.int64())), vectors])
        sequences = version(files, "file_sequence_number").to_pylist()
        return Rewritten(
            {location: self.scope.root.manifest_dv_of.get(location) for location in locations},
            dict(zip(locations, leaves.column("first_row_id").to_pylist(), strict=True)),
            dict(zip(file_keys(files), sequences, strict=True)),
            pa.concat_tables([self.form.schema.empty_table(), *new_leaves]),
            dict(zip(file_keys(vectors), data_keys(vectors.column("referenced_file").to_pylist()), strict=True)),
        )

    def rewriting(self, ordinals: Sequence[int]) -> Rewriting:
        """Return the parameters of tasks that rewrite leaves."""
        types, size = self.state.types, self.entry_bytes(ordinals)
        return Rewriting(
            self.reader, self.form, types.tree_types, types.locations, self.scope.keys, size, self.adoption
        )

    @cached_property
    def form(self) -> LeafFormat:
        """The format of the new leaves."""
        if self.adopted is not None:
            return self.adopted
        return leaf_format(self.state, self.name, self.scope.limits.target_bytes)

    def entry_bytes(self, ordinals: Sequence[int]) -> float:
        """Return the mean size of an entry in leaves, or an estimate if there are none."""
        leaves = self.root.take(pa.array(ordinals, pa.int64()))
        entries = pc.sum(leaves.column("record_count")).as_py() or 0
        sizes = np.asarray(leaves.column("file_size_in_bytes").to_pylist(), np.int64)
        size = int(self.scope.tree_bytes(np.asarray(ordinals, np.int64), sizes).sum())
        return size / entries if entries else 40.0 + 8 * len(self.state.types.stats_types)

    # -- Bins -------------------------------------------------------------------------------------------------------

    def _leaf_sources(self, ordinals: Sequence[int]) -> list[dict[str, Any]]:
        """Return leaves as structs of `BIN_SCHEMA`."""
        leaves, dvs = self.root.take(pa.array(ordinals, pa.int64())), self.scope.root.manifest_dv_of
        parts = leaf_parts(leaves).append_column("record_count", leaves.column("record_count"))
        sources: list[dict[str, Any]] = parts.to_pylist()
        for ordinal, leaf in zip(ordinals, sources, strict=True):
            dv = self._mask(leaf["location"], dvs.get(leaf["location"]))
            leaf["dv"] = None if dv is None else dv_row(leaf[MANIFEST], leaf, dv)
            if ordinal not in self.scope.old:
                leaf["file_format"] = None
        return sources

    def _mask(self, leaf: str, dv: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the manifest DV of a leaf, with the entries that are left out."""
        if not (left_out := self.left_out.get(leaf)):
            return dv
        masked = left_out if dv is None else manifest_dv_bitmap(dv, blob_loader(self.state)).union(left_out)
        vector = {"offset": None, "size_in_bytes": None, "inline_content": write_deletion_vector(masked)}
        return {"location": None, "deletion_vector": vector, "record_count": masked.cardinality}

    def _bin(self, number: int, group: Group, leaves: Sequence[int], *, files: bool = True) -> dict[str, Any]:
        return {
            "group": number,
            "spec_id": group.spec_id,
            "parts": group.parts,
            "leaves": self._leaf_sources(leaves),
            "files": to_stream(self.files(group)) if files and group.files else None,
        }

    def files(self, group: Group) -> pa.Table:
        """Return the group's files of the root as EXISTING entries of leaves."""
        files = existing(self.root.take(pa.array(group.files, pa.int64())))
        return with_vectors(files, existing(self._vectors(group))) if self.form.layout.colocates else files

    def _vectors(self, group: Group) -> pa.Table:
        """Return the deletion vectors in the root that go into the entries of the group's files."""
        if not self.form.layout.colocates:
            return self.root.slice(0, 0)
        paths = self.root.column("location").take(pa.array(group.files, pa.int64()))
        is_vector = pc.and_(one_of(self.root, [ContentType.POSITION_DELETES]), is_live(self.root))
        return self.root.filter(pc.and_(is_vector, pc.is_in(self.root.column("referenced_file"), whole(paths))))

    def entries(self, group: Group) -> DataFrame:
        """Return the live entries of a group as rows of the state's `tree_schema`."""
        rewriting = self.rewriting([])
        return map_arrow(self._frame(self._chunks(group)), rewriting.read_bins, rewriting.schema)

    def write_entries(self, entries: DataFrame, ordinals: Sequence[int]) -> pa.Table:
        """Write entries to leaves in the order of their partitions and paths.

        Args:
            entries: rows of the state's `tree_schema`.
            ordinals: the row numbers of leaves with entries of the same size.

        Returns:
            The root's entries for the leaves.
        """
        form, materialized = self.form, materialize(entries)
        count = materialized.count()
        if not count:
            return form.schema.empty_table()
        keys = ["content_type", "partition_spec_id", *partition_columns(self.state), "location"]
        leaves = leaf_count(count, int(count * self.entry_bytes(ordinals)), form.target_bytes)
        return write_leaves(materialized.repartitionByRange(leaves, *keys).sortWithinPartitions(*keys), form)

    def _frame(self, rows: list[dict[str, Any]]) -> DataFrame:
        """Return bins as a DataFrame with one bin per task."""
        return spread(self.state.spark, pa.Table.from_pylist(rows, schema=BIN_SCHEMA))

    def _write_bins(self, rows: list[dict[str, Any]]) -> dict[int, list[pa.Table]]:
        written = map_arrow(self._frame(rows), self.rewriting([]).write_bins, GROUP_LEAF_SCHEMA)
        return written_leaves(written)

    # -- Sort entries across tasks ------------------------------------------------------------------------------------

    def _exchange(self, group: Group) -> list[pa.Table]:
        """Sort a group by its clustering columns. Spark shuffles a blob of entries for each bin and range."""
        assert group.spec_id is not None
        rewriting = self.rewriting(group.leaves)
        ranges = min(group.parts, _MAX_RANGES)
        bounds = self._bounds(group, ranges)
        written = sorted_among_tasks(
            self._frame(self._chunks(group)),
            partial(rewriting.cut_bins, group.spec_id, bounds),
            partial(rewriting.write_ranges, group.spec_id),
            GROUP_LEAF_SCHEMA,
            ranges,
        )
        return written_leaves(written).get(0, [])

    def _chunks(self, group: Group) -> list[dict[str, Any]]:
        """Return the group's leaves in bins, each small enough for a task to process at once."""
        names = ("file_size_in_bytes", "record_count")
        sizes, counts = (self.root.column(name).take(pa.array(group.leaves, pa.int64())).to_pylist() for name in names)
        chunks: list[list[int]] = [[]]
        size = entries = 0
        for ordinal, leaf_bytes, leaf_entries in zip(group.leaves, sizes, counts, strict=True):
            if chunks[-1] and (size + leaf_bytes > _CUT_BYTES or entries + leaf_entries > CUT_ENTRIES):
                chunks.append([])
                size = entries = 0
            chunks[-1].append(ordinal)
            size, entries = size + leaf_bytes, entries + leaf_entries
        return [self._bin(0, group, leaves, files=not index) for index, leaves in enumerate(chunks)]

    def _bounds(self, group: Group, ranges: int) -> pa.Table:
        """Return the last keys of the ranges. Runs a job that reads only keys."""
        assert group.spec_id is not None
        keys, stats = self.scope.keys[group.spec_id], self.state.types.stats_types
        schema = key_schema(keys, stats)
        file_keys = key_table(self.files(group), keys).cast(schema)
        frames = []
        others = self.scope.old | self.scope.foreign
        if leaves := [ordinal for ordinal in group.leaves if ordinal not in others]:
            projection = EntryProjection.of(("location",), None, {key: stats[key] for key in keys})
            columns = [
                F.col(f"{CONTENT_STATS}.`{key}`.lower_bound").alias(f"k{index}") for index, key in enumerate(keys)
            ]
            rows = self.root.take(pa.array(leaves, pa.int64()))
            frames.append(leaf_frame(self.state, rows, projection).select(*columns, "location"))
        if other_leaves := [ordinal for ordinal in group.leaves if ordinal in others]:
            bins = self._frame([self._bin(0, group, [ordinal], files=False) for ordinal in other_leaves])
            frames.append(map_arrow(bins, partial(self.rewriting([]).read_keys, group.spec_id), schema))
        entries = pc.sum(self.root.column("record_count").take(pa.array(group.leaves, pa.int64()))).as_py()
        return sampled_bounds(reduce(lambda left, right: left.unionByName(right), frames), file_keys, entries, ranges)


def written_leaves(written: DataFrame) -> dict[int, list[pa.Table]]:
    """Run the job that writes leaves, and return the root's entries for them by group."""
    rows = written.toArrow()
    by_group: dict[int, list[pa.Table]] = {}
    for group, leaf in zip(rows.column("group").to_pylist(), rows.column("leaf"), strict=True):
        by_group.setdefault(group, []).append(from_stream(leaf.as_buffer()))
    return by_group


# -- Rebase a compaction on a newer root ------------------------------------------------------------------------------
# Changes of other commits take precedence, entry by entry.


@dataclass(frozen=True)
class Rebased:
    """The part of a compaction that fits a root, with fields of `TreeChange`.

    Attributes:
        left_out: the number of groups that don't fit.
    """

    dropped: frozenset[str]
    moved: frozenset[FileKey]
    existing: pa.Table
    masks: Mapping[str, PositionBitmap]
    affinity: Mapping[str, str | None]
    left_out: int = 0

    @property
    def counts(self) -> LeafCounts:
        """The numbers of leaves. `unchanged` is negative: it subtracts the dropped leaves."""
        entries = pc.sum(self.existing.column("record_count")).as_py() or 0
        return LeafCounts(len(self.existing), -len(self.dropped), len(self.dropped), entries)

    def into(self, change: TreeChange) -> TreeChange:
        """Return the change with the compaction added to it."""
        tables = [table for table in (change.existing, self.existing) if table is not None]
        return replace(
            change,
            dropped=change.dropped | self.dropped,
            moved=change.moved | self.moved,
            existing=pa.concat_tables(tables, promote_options="none"),
            existing_masks={**change.existing_masks, **self.masks},
            affinity={**change.affinity, **self.affinity},
        )


def rebase(
    state: TableState, base: Root, rewritten: Sequence[Rewritten], load: LoadBlob, busy: Collection[str] = ()
) -> Rebased:
    """Return the groups that fit `base`, the root of `state`.

    Entries that have been removed from their leaves since, and files that have left the root, are masked in the new
    leaves, by path (semantics 12.10). A group is left out if one of its leaves is gone, as after another compaction. It
    is also left out if a leaf has regained masked entries, as after a rollback, since the new leaves lack these
    entries.

    A data file that has left the root may have moved to a leaf of another commit, while its deletion vector has not.
    New delete leaves are then not affiliated with the data leaf that masks the file.

    Args:
        busy: leaves that are not replaced, since the commit itself removes entries from them.
    """
    leaves = {row["location"]: row for row in _leaf_rows(base)}
    versions = file_versions(base)
    fitting: list[Rewritten] = []
    moved: set[FileKey] = set()
    removed_ordinals: dict[str, PositionBitmap] = {}
    lost_files: list[FileKey] = []
    disowned: set[str] = set()
    for group in rewritten:
        if any(leaf not in leaves or leaf in busy for leaf in group.leaves):
            continue
        if any(leaves[leaf]["first_row_id"] != first_row_id for leaf, first_row_id in group.first_row_ids.items()):
            continue
        changes = {leaf: _changes(dv, base.manifest_dv_of.get(leaf), load) for leaf, dv in group.leaves.items()}
        if any(regained.cardinality for _, regained in changes.values()):
            continue
        fitting.append(group)
        removed_ordinals |= {
            leaf: newly_masked for leaf, (newly_masked, _) in changes.items() if newly_masked.cardinality
        }
        missing = {key for key, sequence in group.files.items() if versions.get(key) != sequence}
        if base.layout.colocates and group.files:
            missing |= _with_other_vectors(base, group, missing)
        moved |= group.files.keys() - missing
        lost_files += missing
        if any(key.content_type == ContentType.DATA for key in missing):
            disowned.update(group.new_leaves.column("location").to_pylist())
    new_leaves = pa.concat_tables([group.new_leaves for group in fitting] or [rewritten[0].new_leaves.slice(0, 0)])
    masks = _masks(state, new_leaves, removed_ordinals, lost_files) if removed_ordinals or lost_files else {}
    new_leaves = without_owners(new_leaves, disowned.intersection(masks))
    dropped = frozenset(leaf for group in fitting for leaf in group.leaves)
    return Rebased(
        dropped, frozenset(moved), new_leaves, masks, _affinity(fitting, leaves), len(rewritten) - len(fitting)
    )


def _leaf_rows(base: Root) -> list[dict[str, Any]]:
    names = ["location", "referenced_file", "first_row_id"]
    rows: list[dict[str, Any]] = in_files(base.leaves).select(names).to_pylist()
    return rows


def _with_other_vectors(base: Root, group: Rewritten, missing: Collection[FileKey]) -> set[FileKey]:
    """Return the data files of a group that have other deletion vectors in a newer root, and their old vectors."""
    lost = {data for vector, data in group.vectors.items() if vector in missing}
    lost |= changed_vectors(base, TreeChange(), group.files) & group.files.keys()
    return lost | {vector for vector, data in group.vectors.items() if data in lost}


def _changes(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, load: LoadBlob
) -> tuple[PositionBitmap, PositionBitmap]:
    """Return the ordinals of a leaf that only its new manifest DV masks, and that only its old one masks."""
    nothing = PositionBitmap({})
    if same_manifest_dv(old, new):
        return nothing, nothing
    before, after = (nothing if dv is None else manifest_dv_bitmap(dv, load) for dv in (old, new))
    return after.difference(before), before.difference(after)


def _affinity(fitting: Sequence[Rewritten], leaves: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the new data leaves of remaining delete leaves whose data leaves were merged."""
    dropped = {leaf for group in fitting for leaf in group.leaves}
    merged_into = {
        leaf: group.new_leaves.column("location")[0].as_py()
        for group in fitting
        if group.new_leaves.column("content_type").to_pylist() == [ContentType.DATA_MANIFEST]
        for leaf in group.leaves
    }
    return {
        location: merged_into[row["referenced_file"]]
        for location, row in leaves.items()
        if row["referenced_file"] in merged_into and location not in dropped
    }


# -- Entries by path --------------------------------------------------------------------------------------------------

_KEY = ("content_type", "location", "deletion_vector")
_BITMAPS = pa.schema([pa.field(MANIFEST, pa.int32()), pa.field("ordinals", pa.binary())])


def _masks(
    state: TableState,
    new_leaves: pa.Table,
    removed_ordinals: Mapping[str, PositionBitmap],
    lost_files: Sequence[FileKey],
) -> dict[str, PositionBitmap]:
    """Return the ordinals of removed entries in the new leaves. Runs a job over their paths."""
    frames = [
        *([_removed_keys(state, removed_ordinals)] if removed_ordinals else []),
        *([_lost_keys(state, lost_files)] if lost_files else []),
    ]
    keys = reduce(lambda left, right: left.unionByName(right), frames)
    entries = leaf_frame(state, new_leaves, EntryProjection.of(_KEY))
    masked = entries.select(*_key_columns(), MANIFEST, ORDINAL).join(keys, ["kind", "path", "offset"], "left_semi")
    blobs = masked.select(MANIFEST, ORDINAL).groupBy(MANIFEST).applyInArrow(_bitmap, spark_schema(_BITMAPS)).toArrow()
    locations = new_leaves.column("location")
    return {
        location: read_inline_vector(row["ordinals"], location)
        for row in blobs.to_pylist()
        if (location := locations[row[MANIFEST]].as_py())
    }


def _key_columns() -> list[Any]:
    offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long"))
    return [F.col("content_type").alias("kind"), F.col("location").alias("path"), offset.alias("offset")]


def _removed_keys(state: TableState, removed_ordinals: Mapping[str, PositionBitmap]) -> DataFrame:
    """Return the keys of entries that were removed from the rewritten leaves."""
    manifests = state.manifests.filter(
        pc.is_in(state.manifests.column("location"), pa.array(sorted(removed_ordinals), pa.string()))
    )
    rows = []
    for leaf in manifests.select([MANIFEST, "location", "record_count"]).to_pylist():
        bitmap = removed_ordinals[leaf["location"]]
        blob = {"offset": None, "size_in_bytes": None, "inline_content": write_deletion_vector(bitmap)}
        dv = {"location": None, "deletion_vector": blob, "record_count": bitmap.cardinality}
        rows.append(dv_row(leaf[MANIFEST], leaf, dv))
    ordinals = masked_ordinals(state.spark, pa.Table.from_pylist(rows, schema=DV_SCHEMA), None)
    frames = state.reader.physical_frames(manifests, EntryProjection.of(_KEY))
    entries = reduce(lambda left, right: left.unionByName(right), frames)
    return entries.join(ordinals, [MANIFEST, ORDINAL], "left_semi").select(*_key_columns())


def _lost_keys(state: TableState, lost_files: Sequence[FileKey]) -> DataFrame:
    columns = {
        "kind": pa.array([key.content_type for key in lost_files], pa.int32()),
        "path": pa.array([key.location for key in lost_files], pa.string()),
        "offset": pa.array([-1 if key.offset is None else key.offset for key in lost_files], pa.int64()),
    }
    return local_frame(state.spark, pa.table(columns))


def _bitmap(rows: pa.Table) -> pa.Table:
    """Return the ordinals of one leaf's entries as a bitmap."""
    blob = write_deletion_vector(PositionBitmap.of(rows.column(ORDINAL).to_numpy()))
    return pa.table({MANIFEST: rows.column(MANIFEST).slice(0, 1), "ordinals": pa.array([blob], pa.binary())})


# -- Write the leaves of a compaction ---------------------------------------------------------------------------------
# Data leaves are written first, then delete leaves affiliated with the data leaves of their files. If the files of a
# data leaf have few deletion vectors, these go to unaffiliated leaves, like equality deletes.


def rewrite(state: TableState, scope: Scope, choice: CompactionGroups, name: str) -> list[Rewritten]:
    """Write the leaves of all groups. Runs jobs.

    Args:
        name: the beginning of the files' names.

    Raises:
        UnsupportedError: tasks can't open the table's files.
    """
    job = RewriteJob(state, scope, task_reader(state), name)
    data = job.data(choice.data)
    if choice.deletes is None:
        return data
    return [*data, job.rewritten(choice.deletes, _rewrite_deletes(job, choice.deletes, data))]


def _rewrite_deletes(job: RewriteJob, group: Group, data: Sequence[Rewritten]) -> list[pa.Table]:
    """Write the deletes of a group to new leaves, and return the root's entries for them. Runs jobs.

    Args:
        data: the rewritten data leaves of the same compaction.
    """
    owners = _owners(job, group, data)
    entries = materialize(with_owners(job.entries(group), owners))
    size = job.entry_bytes(group.leaves) if group.leaves else DELETE_ENTRY_BYTES
    unaffiliated, new_leaves = write_affiliated(entries, job.form, job.scope.limits.affiliated_deletes, size)
    count = unaffiliated.count()
    parts = leaf_count(count, int(count * size), job.scope.limits.target_bytes)
    if parts:
        keys = ["content_type", "partition_spec_id", *partition_columns(job.state)]
        ordered = unaffiliated.repartitionByRange(parts, *keys, F.col("referenced_file")).sortWithinPartitions(
            *keys, "referenced_file", "location"
        )
        new_leaves = pa.concat_tables([new_leaves, write_owned_leaves(ordered, job.form, size)])
    return [new_leaves]


def _owners(job: RewriteJob, group: Group, data: Sequence[Rewritten]) -> DataFrame:
    """Return the live files of the new and remaining data leaves that deletes may be affiliated with."""
    state = job.state
    projection = EntryProjection.of(("location", "version_info"))
    new_leaves = pa.concat_tables([job.form.schema.empty_table(), *(rewritten.new_leaves for rewritten in data)])
    remaining = _remaining(job, group, {location for rewritten in data for location in rewritten.leaves})
    frames = [live_owners(state, remaining)]
    if len(new_leaves):
        locations = dict(enumerate(new_leaves.column("location").to_pylist()))
        frames.append(named_owners(state, leaf_frame(state, new_leaves, projection), locations))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _remaining(job: RewriteJob, group: Group, dropped: set[str]) -> pa.Table:
    """Return the remaining data leaves that may hold files of the group's deletes, rows of `state.manifests`.

    These are the data leaves of affiliated delete leaves, or all if there are unaffiliated deletes.
    """
    leaves = job.state.data_manifests
    leaves = leaves.filter(pc.is_in(leaves.column(MANIFEST), pa.array(sorted(job.scope.owners), pa.int32())))
    leaves = leaves.filter(pc.invert(pc.is_in(leaves.column("location"), pa.array(sorted(dropped), pa.string()))))
    owners = job.root.column("referenced_file").take(pa.array(group.leaves, pa.int64()))
    if group.files or owners.null_count:
        return leaves
    return leaves.filter(pc.is_in(leaves.column("location"), owners.combine_chunks()))
