"""Find the entries that a range of snapshots added and removed.

The driver compares roots; Spark reads only leaves that a snapshot added or masked (semantics 18.1), so the cost is
proportional to the change. For snapshots with a manifest list, Spark reads the manifests that they added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType

from sparkmeta.arrow_types import spark_schema
from sparkmeta.changes.root_changes import LeafChange, LeafKind, RootChanges, root_changes
from sparkmeta.entries.metrics_maps import stats_for_maps, with_metrics_maps
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.errors import NoSuchSnapshotError
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, dv_row, masked_ordinals
from sparkmeta.manifests.v4.root import Root, one_of, version
from sparkmeta.manifests.v4.spark import narrowed_rows, read_rows
from sparkmeta.manifests.v4.tree_manifests import FILE_TYPES, leaf_manifests
from sparkmeta.plan.filter import is_live
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.state import TableState

ADDED = "added"
REMOVED = "removed"
CHANGE, SNAPSHOT = "_change", "_snapshot"
"""Columns in addition to an entry's: ADDED or REMOVED, and the id of the snapshot."""
FILE_LOCATION, FILE_OFFSET = "_location", "_offset"

_UNIT = "_unit"
# Columns that identify changes and deletion vectors; they are always read.
_NEEDED = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "record_count",
    "referenced_file",
)
_STATUS = {LeafKind.ADDED: Status.ADDED, LeafKind.UNMADE: Status.DELETED, LeafKind.CARRIED: Status.EXISTING}
# Masked ordinals up to this many are broadcast; more are joined by hash.
_BROADCAST_ORDINALS = 1_000_000


@dataclass(frozen=True)
class _Unit:
    """A leaf to open for one snapshot.

    Attributes:
        manifest: the small id of the leaf.
    """

    id: int
    snapshot_id: int
    manifest: int
    content: ContentType
    change: LeafChange


@dataclass
class EntryChanges:
    """The entries that snapshots added and removed.

    `add` compares the roots of a snapshot and its parent; the other methods return lazy DataFrames.

    Attributes:
        shown: the columns and stats to return of entries.
        lenient: see `root_changes`.
        keep: filters rows of `leaf_manifests` to leaves that may hold relevant entries.
    """

    state: TableState
    shown: EntryProjection
    lenient: bool = False
    keep: Callable[[pa.Table], pa.Table] | None = None
    _units: list[_Unit] = field(default_factory=list)
    _manifests: dict[str, int] = field(default_factory=dict)
    _leaves: list[pa.Table] = field(default_factory=list)
    _in_roots: list[tuple[int, RootChanges]] = field(default_factory=list)
    _listed: list[pa.Table] = field(default_factory=list)
    _last: tuple[int, Root | None] | None = None
    _newest: TableState | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Add the changes of a snapshot. Snapshots are added in the order of their history."""
        is_current = self.state.snapshot is not None and self.state.snapshot.snapshot_id == snapshot.snapshot_id
        state = self.state if is_current else self.state.at(snapshot)
        if state.tree is None:
            manifests = state.manifests
            self._listed.append(manifests.filter(pc.equal(version(manifests, "snapshot_id"), snapshot.snapshot_id)))
            self._last = (snapshot.snapshot_id, None)
            return
        root, snapshot_id = state.tree.root, snapshot.snapshot_id
        changes = root_changes(root, snapshot_id, partial(self._parent, snapshot), lenient=self.lenient)
        self._add_leaves(root, snapshot_id, changes.leaves)
        self._in_roots.append((snapshot_id, changes))
        self._last, self._newest = (snapshot_id, root), state

    def of_snapshots(self, snapshot_ids: Collection[int]) -> EntryChanges:
        """Return the changes of some of the snapshots."""
        units = [unit for unit in self._units if unit.snapshot_id in snapshot_ids]
        in_roots = [(snapshot_id, changes) for snapshot_id, changes in self._in_roots if snapshot_id in snapshot_ids]
        chosen = pa.array(sorted(snapshot_ids), pa.int64())
        listed = [manifests.filter(pc.is_in(version(manifests, "snapshot_id"), chosen)) for manifests in self._listed]
        return replace(self, _units=units, _in_roots=in_roots, _listed=listed)

    def manifests(self) -> pa.Table:
        """Return the manifests that the changes are read from: content_type, location, file_size_in_bytes."""
        names = ["content_type", "location", "file_size_in_bytes"]
        tables = [manifests.select(names) for manifests in (*self._leaves, *self._listed)]
        return pa.concat_tables(tables).combine_chunks() if tables else _LISTED.empty_table()

    def _add_leaves(self, root: Root, snapshot_id: int, changes: Sequence[LeafChange]) -> None:
        rows: list[int] = []
        for change in changes:
            location = change.leaf["location"]
            if location not in self._manifests:
                self._manifests[location] = len(self._manifests)
                rows.append(change.row)
            content = ContentType(change.leaf["content_type"])
            self._units.append(_Unit(len(self._units), snapshot_id, self._manifests[location], content, change))
        # Copies: slices of the root would keep all of it in memory.
        leaves = root.table.take(pa.array(rows, pa.int64()))
        self._leaves += [leaves.slice(place, 1) for place in range(len(leaves))]

    def _parent(self, snapshot: Snapshot) -> Root | None:
        parent_id = snapshot.parent_snapshot_id
        if parent_id is None:
            return None
        if self._last is not None and self._last[0] == parent_id:
            return self._last[1]
        parent = self.state.metadata.snapshot_by_id(parent_id)
        if parent is None:
            raise NoSuchSnapshotError(f"{self.state.metadata.location} no longer has snapshot {parent_id}")
        tree = self.state.at(parent).tree
        return None if tree is None else tree.root

    # -- the result -------------------------------------------------------------------------------------------------

    @cached_property
    def projection(self) -> EntryProjection:
        """The columns that are returned: `shown`, and those that identify changes."""
        shown = self.shown
        needed = {*shown.columns, *_NEEDED}
        return EntryProjection.of(needed, dict(shown.partition), dict(shown.stats), shown.spec_tuples)

    @cached_property
    def _column_types(self) -> dict[int, str]:
        return {field_id: str(column.field_type) for field_id, column in self.state.types.primitive_fields.items()}

    @property
    def _maps(self) -> bool:
        return any(name in METRICS_MAP_IDS for name in self.projection.columns)

    @cached_property
    def _read(self) -> EntryProjection:
        """The projection with which trees are read."""
        return stats_for_maps(self.projection, self._column_types) if self._maps else self.projection

    def of_content(self, content: ContentType) -> list[DataFrame]:
        """Return all changes of data files (DATA_MANIFEST) or delete files (DELETE_MANIFEST), with `CHANGE`."""
        frames = [frame.withColumn(CHANGE, F.lit(ADDED)) for frame in self._tree_added(content)]
        frames += [frame.withColumn(CHANGE, F.lit(REMOVED)) for frame in self._tree_removed(content)]
        of_trees = [self._with_maps(frame) if self._maps else frame for frame in at_most_one(frames)]
        listed = F.when(F.col("version_info.status") == int(Status.ADDED), ADDED).otherwise(REMOVED)
        return [*of_trees, *(frame.withColumn(CHANGE, listed) for frame in self._listed_entries(content))]

    def added(self, content: ContentType) -> list[DataFrame]:
        """Return the entries of added files without metrics maps, in a DataFrame for each way to read them."""
        listed = F.col("version_info.status") == int(Status.ADDED)
        return [*self._tree_added(content), *(frame.where(listed) for frame in self._listed_entries(content))]

    def removed(self, content: ContentType) -> list[DataFrame]:
        """Return the entries of removed files, like `added`."""
        listed = F.col("version_info.status") == int(Status.DELETED)
        return [*self._tree_removed(content), *(frame.where(listed) for frame in self._listed_entries(content))]

    def _tree_added(self, content: ContentType) -> list[DataFrame]:
        return [*self._root_frames(content, Status.ADDED), *self._unmasked(content, LeafKind.ADDED)]

    def _tree_removed(self, content: ContentType) -> list[DataFrame]:
        removed = [*self._root_frames(content, Status.DELETED), *self._masked(content)]
        removed += self._by_status(content, LeafKind.UNMADE) + self._unmasked(content, LeafKind.DROPPED)
        return [self._really_removed(frame, content) for frame in at_most_one(removed)]

    @property
    def schema(self) -> StructType:
        """The Spark schema of `of_content`."""
        schema: StructType = spark_schema(self.projection.schema)
        return schema.add(CHANGE, StringType()).add(SNAPSHOT, LongType())

    def _with_maps(self, frame: DataFrame) -> DataFrame:
        """Add the metrics maps that `shown` has."""
        fill = partial(_fill_maps, self.projection, frozenset(self._column_types))
        return map_arrow(frame.select(*self._read.schema.names, CHANGE, SNAPSHOT), fill, self.schema)

    def _really_removed(self, removed: DataFrame, content: ContentType) -> DataFrame:
        """Drop files that only moved to another manifest, and duplicates of files removed by both a leaf and a DV."""
        carried = [*self._by_status(content, LeafKind.CARRIED), *self._root_frames(content, Status.EXISTING)]
        for keys in at_most_one(carried):
            carried_keys = keys.select(SNAPSHOT, *(column.alias(name) for name, column in file_key().items()))
            removed = removed.withColumns(file_key()).join(carried_keys, _FILE_KEY, "left_anti")
            removed = removed.drop(FILE_LOCATION, FILE_OFFSET)
        if any(unit.change.kind is LeafKind.UNMADE for unit in self._units):
            removed = removed.withColumns(file_key()).dropDuplicates(_FILE_KEY)
            removed = removed.drop(FILE_LOCATION, FILE_OFFSET)
        return removed

    def _root_frames(self, content: ContentType, status: Status) -> list[DataFrame]:
        """Return the roots' own files with one status."""
        tables = []
        for snapshot_id, changes in self._in_roots:
            table = changes.existing if status == Status.EXISTING else changes.files
            rows = table.filter(pc.and_(one_of(table, FILE_TYPES[content]), pc.equal(version(table, "status"), status)))
            if len(rows):
                narrow = narrowed_rows(rows, self._read, self.state.types.tuple_sources)
                ids = pa.repeat(pa.scalar(snapshot_id, pa.int64()), len(rows))
                tables.append(narrow.append_column(SNAPSHOT, ids))
        if not tables:
            return []
        table = pa.concat_tables(tables)
        table = table.append_column(MANIFEST, pa.nulls(len(table), pa.int32()))
        table = table.append_column(ORDINAL, pa.nulls(len(table), pa.int64()))
        return [read_rows(self.state.spark, table, self._read, self.state.types.tuple_sources, SNAPSHOT)]

    # -- leaves -----------------------------------------------------------------------------------------------------

    def _of(self, content: ContentType, kind: LeafKind) -> list[_Unit]:
        units = (unit for unit in self._units if unit.content == content and unit.change.kind is kind)
        return [unit for unit in units if unit.manifest in self._leaves_to_open]

    @cached_property
    def _leaves_to_open(self) -> set[int]:
        """The small ids of leaves that may hold relevant entries."""
        if self.keep is None or not self._leaves:
            return set(range(len(self._leaves)))
        return set(self.keep(self._leaf_manifests(range(len(self._leaves)))).column(MANIFEST).to_pylist())

    def _leaf_manifests(self, ids: Sequence[int]) -> pa.Table:
        """Return leaves by their small ids, as rows of `leaf_manifests`."""
        return leaf_manifests(pa.concat_tables([self._leaves[manifest] for manifest in ids]), pa.array(ids, pa.int32()))

    def _physical(self, units: Sequence[_Unit]) -> DataFrame:
        """Return every entry of the units' leaves. Each leaf is read once."""
        assert self._newest is not None
        manifests = self._leaf_manifests(sorted({unit.manifest for unit in units}))
        return at_most_one(self._newest.reader.physical_frames(manifests, self._read))[0]

    def _places(self, units: Sequence[_Unit]) -> DataFrame:
        rows = [{_UNIT: unit.id, MANIFEST: unit.manifest, SNAPSHOT: unit.snapshot_id} for unit in units]
        return F.broadcast(local_frame(self.state.spark, pa.Table.from_pylist(rows, schema=_PLACES)))

    def _by_status(self, content: ContentType, kind: LeafKind) -> list[DataFrame]:
        units = self._of(content, kind)
        if not units:
            return []
        chosen = self._physical(units).where(F.col("version_info.status") == int(_STATUS[kind]))
        return [chosen.join(self._places(units), MANIFEST).drop(_UNIT)]

    def _unmasked(self, content: ContentType, kind: LeafKind) -> list[DataFrame]:
        """Return unmasked entries: the ADDED ones of added leaves, or the live ones of dropped leaves."""
        units = self._of(content, kind)
        if not units:
            return []
        of_status = F.col("version_info.status") == int(Status.ADDED) if kind is LeafKind.ADDED else is_live().column()
        placed = self._physical(units).where(of_status).join(self._places(units), MANIFEST)
        for masked in self._ordinals(units, "old"):
            placed = placed.join(masked, [_UNIT, ORDINAL], "left_anti")
        return [placed.drop(_UNIT)]

    def _masked(self, content: ContentType) -> list[DataFrame]:
        """Return the entries that the snapshot's own manifest DVs mask, and earlier ones don't."""
        units = self._of(content, LeafKind.MASKED)
        if not units:
            return []
        newly_masked = self._ordinals(units, "new")[0].distinct()
        for masked in self._ordinals(units, "old"):
            newly_masked = newly_masked.join(masked, [_UNIT, ORDINAL], "left_anti")
        newly_masked = newly_masked.join(self._places(units), _UNIT).select(MANIFEST, ORDINAL, SNAPSHOT)
        few = sum(vector["record_count"] for unit in units for vector in unit.change.new) <= _BROADCAST_ORDINALS
        entries = self._physical(units).where(is_live().text)
        return [entries.join(F.broadcast(newly_masked) if few else newly_masked, [MANIFEST, ORDINAL])]

    def _ordinals(self, units: Sequence[_Unit], which: str) -> list[DataFrame]:
        """Return (unit, ordinal) of the units' `new` or `old` manifest DVs, in at most one DataFrame."""
        rows = [dv_row(unit.id, unit.change.leaf, row) for unit in units for row in getattr(unit.change, which)]
        if not rows:
            return []
        vectors = pa.Table.from_pylist(rows, schema=DV_SCHEMA)
        return [masked_ordinals(self.state.spark, vectors, self.state.access.tasks).withColumnRenamed(MANIFEST, _UNIT)]

    # -- manifest lists ---------------------------------------------------------------------------------------------

    def _listed_entries(self, content: ContentType) -> list[DataFrame]:
        """Return the changes that manifests of versions 1 to 3 record for the snapshots that added them."""
        if not self._listed:
            return []
        manifests = pa.concat_tables(self._listed)
        manifests = manifests.filter(one_of(manifests, [content]))
        if not len(manifests):
            return []
        index = manifests.column_names.index(MANIFEST)
        manifests = manifests.set_column(index, MANIFEST, pa.array(range(len(manifests)), pa.int32()))
        manifests = manifests if self.keep is None else self.keep(manifests)
        owners = pa.table({MANIFEST: manifests.column(MANIFEST), SNAPSHOT: version(manifests, "snapshot_id")})
        entries = self.state.reader.without_tree().entries(manifests, self.projection)
        placed = entries.join(F.broadcast(local_frame(self.state.spark, owners)), MANIFEST)
        status = F.col("version_info.status")
        return [placed.where((F.col("version_info.snapshot_id") == F.col(SNAPSHOT)) & (status != int(Status.EXISTING)))]


_LISTED = pa.schema(
    [
        pa.field("content_type", pa.int32()),
        pa.field("location", pa.string()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
_PLACES = pa.schema([pa.field(_UNIT, pa.int32()), pa.field(MANIFEST, pa.int32()), pa.field(SNAPSHOT, pa.int64())])


def at_most_one(frames: Sequence[DataFrame]) -> list[DataFrame]:
    """Return the union of frames as a list; empty for no frames."""
    return [reduce(lambda left, right: left.unionByName(right), frames)] if frames else []


_FILE_KEY = [SNAPSHOT, FILE_LOCATION, FILE_OFFSET]


def file_key() -> dict[str, Column]:
    """Return the columns that identify a file: location, and offset (-1 if null, since nulls don't join)."""
    return {FILE_LOCATION: F.col("location"), FILE_OFFSET: F.coalesce(F.col("deletion_vector.offset"), F.lit(-1))}


def _fill_maps(projection: EntryProjection, columns: frozenset[int], batches: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for filled in with_metrics_maps(projection, columns, [batch]):
            marks = batch.select([CHANGE, SNAPSHOT])
            schema = pa.schema([*filled.schema, *marks.schema])
            yield pa.RecordBatch.from_arrays([*filled.columns, *marks.columns], schema=schema)
