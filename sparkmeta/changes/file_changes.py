"""Find the files and entries that snapshots added and removed, from roots and leaves.

The cost is proportional to the change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from sparkmeta.arrow_types import spark_schema
from sparkmeta.checks import WHOLE
from sparkmeta.entries.live import is_live, is_live_entry
from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart, stats_for_maps, with_metrics_maps
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.entries.relation import at_most_one, where, with_columns
from sparkmeta.errors import CommitConflictError, CorruptFileError, NoSuchSnapshotError, ValidationError
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import indices_where
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, arrow_udf, dv_row, mask_flags, masked_ordinals
from sparkmeta.manifests.placement import MOST_ENTRIES
from sparkmeta.manifests.v4.decode import entries_of_rows
from sparkmeta.manifests.v4.root import FILES, LEAVES, MANIFEST_DVS, Root, one_of, version
from sparkmeta.manifests.v4.spark import narrowed_rows, read_rows
from sparkmeta.manifests.v4.tree_manifests import FILE_TYPES, leaf_manifests
from sparkmeta.plan.file_columns import files_selection
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType, Status
from sparkmeta.spec.locations import LAYOUT_REVISION_KEY
from sparkmeta.spec.metadata import Snapshot, TableMetadata, ancestors_of, snapshot_of
from sparkmeta.storage.content import read_ranges
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.reading import binary_files
from sparkmeta.storage.vectors import stored_vector, vector_of, vector_range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.plan.file_columns import Selection
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.bitmap import PositionBitmap
    from sparkmeta.storage.executors import ExecutorReader


# -- The history of snapshots -----------------------------------------------------------------------------------------


def snapshots_since(head: TableState, start: int | None) -> list[Snapshot]:
    """Return the snapshots of the head's history after `start`, newest first.

    Raises:
        CommitConflictError: the history does not go back to it, for example because the branch was rolled back.
    """
    snapshots: list[Snapshot] = []
    if head.snapshot is None:
        return snapshots
    for snapshot in ancestors_of(head.metadata, head.snapshot.snapshot_id):
        if snapshot.snapshot_id == start:
            return snapshots
        snapshots.append(snapshot)
    if snapshots[-1].parent_snapshot_id != start:
        raise CommitConflictError(
            f"{head.metadata.location}: can't tell what was committed since snapshot {start}: the history of "
            f"{snapshots[0].snapshot_id} ends at {snapshots[-1].snapshot_id}"
        )
    return snapshots


def snapshots_between(metadata: TableMetadata, from_exclusive: int | None, to_inclusive: int | None) -> list[Snapshot]:
    """Return the snapshots of a range, oldest first.

    Args:
        from_exclusive: None for the whole history. It may have expired if its child has not.
        to_inclusive: None for the current snapshot.

    Raises:
        NoSuchSnapshotError: the table does not have one of the snapshots.
        ValidationError: the first is not an ancestor of the second, the history between them has expired, or an id is
            not a whole number.
    """
    if from_exclusive is not None:
        WHOLE.check("from_snapshot_id_exclusive", from_exclusive)
    if to_inclusive is None:
        last = metadata.current_snapshot()
    else:
        last = snapshot_of(metadata, to_inclusive, "to_snapshot_id_inclusive")
    if last is None:
        if from_exclusive is None:
            return []
        raise NoSuchSnapshotError(f"{metadata.location} has no snapshot {from_exclusive}")
    snapshots: list[Snapshot] = []
    for snapshot in ancestors_of(metadata, last.snapshot_id):
        if snapshot.snapshot_id == from_exclusive:
            return snapshots[::-1]
        snapshots.append(snapshot)
    oldest_parent = snapshots[-1].parent_snapshot_id
    if oldest_parent != from_exclusive:
        raise _not_in_history(metadata, from_exclusive, last.snapshot_id, oldest_parent)
    return snapshots[::-1]


def _not_in_history(metadata: TableMetadata, start: int | None, end: int, lost: int | None) -> Exception:
    if start is not None:
        snapshot_of(metadata, start)
    if lost is None:
        return ValidationError(f"{metadata.location}: snapshot {start} is not an ancestor of snapshot {end}")
    since = "the table was empty" if start is None else f"snapshot {start}"
    return ValidationError(f"{metadata.location}: snapshot {lost} has expired: the changes since {since} are unknown")


# -- Compare a root with its parent's ---------------------------------------------------------------------------------
# The cost is proportional to the change: leaves that were carried over are never opened. No Spark, no I/O.


ParentRoot = Callable[[], Root | None]
"""Returns the parent snapshot's root, or None if it has none. Raises NoSuchSnapshotError if it has expired."""
Row = Mapping[str, Any]


class LeafKind(StrEnum):
    """Which entries of a leaf to read.

    Attributes:
        ADDED: ADDED entries that `old` does not mask.
        MASKED: live entries that `new` masks and `old` does not.
        DROPPED: live entries that `old` does not mask.
        UNMADE: DELETED entries of a leaf that the snapshot added.
        CARRIED: EXISTING entries, which are not changes even if another manifest held them before.
    """

    ADDED = "added"
    MASKED = "masked"
    DROPPED = "dropped"
    UNMADE = "unmade"
    CARRIED = "carried"


@dataclass(frozen=True)
class LeafChange:
    """A leaf to open.

    Attributes:
        kind: the entries to read.
        row: the leaf's row in the root.
        leaf: the root's entry for it.
        new: the manifest DVs that the snapshot added for it.
        old: its earlier manifest DVs.
    """

    kind: LeafKind
    row: int
    leaf: Row
    new: tuple[Row, ...] = ()
    old: tuple[Row, ...] = ()


@dataclass(frozen=True)
class RootChanges:
    """The changes of a snapshot.

    Attributes:
        files: the ADDED and DELETED files of the root itself, rows of `tree_schema`.
        existing: the EXISTING files of the root itself if removed files may be among them, else no rows.
        leaves: the leaves to open.
    """

    files: pa.Table
    existing: pa.Table
    leaves: tuple[LeafChange, ...]


def root_changes(root: Root, snapshot_id: int, parent: ParentRoot, *, lenient: bool = False) -> RootChanges:
    """Return the changes of a snapshot by its root (semantics 18.1).

    Args:
        lenient: accept roots that strict readers refuse (semantics 18.3): with several live DVs of one leaf, which are
            merged, or with an added leaf that has DELETED entries.

    Raises:
        CorruptFileError: the root contradicts itself.
        ValidationError: manifest DVs of the parent are needed, but it has expired (semantics 18.2).
    """
    if not lenient:
        _ = root.manifest_dvs  # raises for two of one leaf
    if not root.layout.is_strict:
        root = _without_changes_of_others(root, snapshot_id)
    leaves = tuple(_Finder(root, snapshot_id, parent, lenient).changes())
    is_file, is_existing = one_of(root.table, FILES), pc.equal(version(root.table, "status"), int(Status.EXISTING))
    files = root.table.filter(pc.and_not(is_file, is_existing))
    existing = root.table.filter(pc.and_(is_file, is_existing))
    moves = any(change.kind in (LeafKind.DROPPED, LeafKind.CARRIED) for change in leaves)
    return RootChanges(files, existing if moves else existing.schema.empty_table(), leaves)


def _without_changes_of_others(root: Root, snapshot_id: int) -> Root:
    """Return a root without the changes of other snapshots.

    In the layout of the Iceberg project, a snapshot that changes nothing has the root of its parent.
    """
    is_change = pc.not_equal(version(root.table, "status"), int(Status.EXISTING))
    is_of_other = pc.not_equal(version(root.table, "snapshot_id"), snapshot_id)
    return replace(root, table=root.table.filter(pc.invert(pc.and_(is_change, is_of_other))))


@dataclass(frozen=True)
class _Finder:
    """Finds the leaves to open for the changes of a snapshot; see `root_changes`."""

    root: Root
    snapshot_id: int
    parent: ParentRoot
    lenient: bool

    def changes(self) -> Iterable[LeafChange]:
        leaves = flat_rows(self.root.table, LEAVES)
        self._refuse_lost_dvs({leaf["location"] for _, leaf in leaves})
        drops = any(self._is_dropped(leaf) for _, leaf in leaves)
        for row, leaf in leaves:
            match leaf["status"]:
                case Status.ADDED:
                    yield from self._of_added(row, leaf)
                case Status.DELETED:
                    yield self._of_deleted(row, leaf)
                case _:
                    yield from self._of_existing(row, leaf, drops)

    @cached_property
    def _dvs(self) -> dict[str, list[Row]]:
        return manifest_dvs_by_leaf(self.root)

    def _of_added(self, row: int, leaf: Row) -> Iterable[LeafChange]:
        live = tuple(dv for dv in self._dvs.get(leaf["location"], ()) if dv["status"] != Status.DELETED)
        yield LeafChange(LeafKind.ADDED, row, leaf, old=live)
        if leaf["existing_files_count"]:
            yield LeafChange(LeafKind.CARRIED, row, leaf)
        if leaf["deleted_files_count"]:
            if not self.lenient and self.root.layout.is_strict:
                problem = f"{leaf['location']} was added: only lenient readers know what it removes"
                value = leaf["deleted_files_count"]
                raise CorruptFileError(self.root.location, "manifest_stats.deleted_files_count", value, problem)
            yield LeafChange(LeafKind.UNMADE, row, leaf)

    def _of_deleted(self, row: int, leaf: Row) -> LeafChange:
        """Return the change of a removed leaf.

        If a vector is added to it, only the entries that the vector masks are removed (semantics 16.16).
        """
        new = self._new(leaf)
        if new:
            return LeafChange(LeafKind.MASKED, row, leaf, new=new)
        return LeafChange(LeafKind.DROPPED, row, leaf, old=self._old(leaf, dropped=True))

    def _of_existing(self, row: int, leaf: Row, drops: bool) -> Iterable[LeafChange]:
        new = self._new(leaf)
        if new:
            yield LeafChange(LeafKind.MASKED, row, leaf, new=new, old=self._old(leaf, dropped=False))
        elif drops and leaf["snapshot_id"] == self.snapshot_id:
            yield LeafChange(LeafKind.CARRIED, row, leaf)

    def _is_dropped(self, leaf: Row) -> bool:
        return leaf["status"] == Status.DELETED and not self._new(leaf)

    def _new(self, leaf: Row) -> tuple[Row, ...]:
        return tuple(row for row in self._dvs.get(leaf["location"], ()) if row["status"] == Status.ADDED)

    def _old(self, leaf: Row, *, dropped: bool) -> tuple[Row, ...]:
        """Return a leaf's earlier DVs: the DVs that this root carries over or replaces, or else the parent's DVs."""
        location = leaf["location"]
        earlier = tuple(row for row in self._dvs.get(location, ()) if row["status"] != Status.ADDED)
        if earlier:
            return earlier
        try:
            parent = self.parent()
        except NoSuchSnapshotError as error:
            # Roots that name their layout always keep a replaced DV, so there was none.
            if LAYOUT_REVISION_KEY in self.root.properties and not dropped:
                return ()
            raise ValidationError(f"{self.root.location}: what was removed from {location} before: {error}") from error
        dvs = manifest_dvs_by_leaf(parent).get(location, ()) if parent is not None else ()
        return tuple(row for row in dvs if row["status"] != Status.DELETED)

    def _refuse_lost_dvs(self, leaves: set[str]) -> None:
        for location, dvs in self._dvs.items():
            if location not in leaves and any(row["status"] == Status.ADDED for row in dvs):
                problem = "a deletion vector was added to a manifest that the root does not have"
                raise CorruptFileError(self.root.location, "referenced_file", location, problem)


def manifest_dvs_by_leaf(root: Root) -> dict[str, list[Row]]:
    """Return all manifest DVs, DELETED ones included, by the leaf that they mask."""
    by_leaf: dict[str, list[Row]] = {}
    for _, row in flat_rows(root.table, MANIFEST_DVS):
        by_leaf.setdefault(row["referenced_file"], []).append(row)
    return by_leaf


_COLUMNS = ["content_type", "location", "deletion_vector", "record_count", "referenced_file"]


def flat_rows(table: pa.Table, kinds: Iterable[Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries of the given content types as flat rows, with their row in the root."""
    indices = indices_where(one_of(table, kinds))
    entries = table.take(indices)
    flat = entries.select(_COLUMNS)
    for name in ("status", "snapshot_id"):
        flat = flat.append_column(name, version(entries, name))
    for name in ("existing_files_count", "deleted_files_count"):
        flat = flat.append_column(name, pc.struct_field(entries.column("manifest_stats"), name))
    return list(zip(indices.to_pylist(), flat.to_pylist(), strict=True))


# -- Entries that snapshots added and removed -------------------------------------------------------------------------
# The driver compares roots; Spark reads only leaves that a snapshot added or masked (semantics 18.1), so the cost is
# proportional to the change. For snapshots with a manifest list, Spark reads the manifests that they added.


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


def _has_status(status: Status) -> Sql:
    """Return whether an entry has a status."""
    return sql.col("version_info.status") == int(status)


@dataclass
class EntryChanges:
    """The entries that snapshots added and removed.

    `add` compares the roots of a snapshot and its parent; the other methods return lazy DataFrames.

    Attributes:
        shown: the columns and stats of entries to return.
        lenient: see `root_changes`.
        keep: filters rows of `leaf_manifests` to leaves that may hold relevant entries.
    """

    state: TableState
    shown: EntryProjection
    lenient: bool = False
    keep: Callable[[pa.Table], pa.Table] | None = None
    _units: list[_Unit] = field(default_factory=list)
    _manifests: dict[tuple[str, ContentType], int] = field(default_factory=dict)
    _leaves: list[pa.Table] = field(default_factory=list)
    _in_roots: list[tuple[int, RootChanges]] = field(default_factory=list)
    _listed: list[pa.Table] = field(default_factory=list)
    _last: tuple[int, Root | None] | None = None
    _newest: TableState | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Add the changes of a snapshot. Snapshots are added in the order of their history."""
        is_current = self.state.snapshot is not None and self.state.snapshot.snapshot_id == snapshot.snapshot_id
        state = self.state.whole if is_current else self.state.at(snapshot)
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
            content = ContentType(change.leaf["content_type"])
            key = (change.leaf["location"], content)
            if key not in self._manifests:
                self._manifests[key] = len(self._manifests)
                rows.append(change.row)
            self._units.append(_Unit(len(self._units), snapshot_id, self._manifests[key], content, change))
        # Copies: slices of the root would keep all of it in memory.
        leaves = root.table.take(pa.array(rows, pa.int64()))
        self._leaves += [leaves.slice(index, 1) for index in range(len(leaves))]

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
        """The columns of the result: `shown`, and the columns that identify changes."""
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
        tree_frames = [self._with_maps(frame) if self._maps else frame for frame in at_most_one(frames)]
        listed = sql.when(_has_status(Status.ADDED), ADDED).otherwise(REMOVED).alias(CHANGE)
        return [*tree_frames, *(with_columns(frame, listed) for frame in self._listed_entries(content))]

    def added(self, content: ContentType) -> list[Relation]:
        """Return the entries of added files, in a relation for each way to read them.

        Entries of trees lack metrics maps.
        """
        return [self.few_added(content)] if self.is_few else [*self._many_added(content)]

    def removed(self, content: ContentType) -> list[Relation]:
        """Return the entries of removed files, like `added`."""
        return [self.few_removed(content)] if self.is_few else [*self._many_removed(content)]

    def _many_added(self, content: ContentType) -> list[DataFrame]:
        frames = self._listed_entries(content)
        return [*self._tree_added(content), *(where(frame, _has_status(Status.ADDED)) for frame in frames)]

    def _many_removed(self, content: ContentType) -> list[DataFrame]:
        frames = self._listed_entries(content)
        return [*self._tree_removed(content), *(where(frame, _has_status(Status.DELETED)) for frame in frames)]

    def _tree_added(self, content: ContentType) -> list[DataFrame]:
        return [*self._root_frames(content, Status.ADDED), *self._unmasked(content, LeafKind.ADDED)]

    def _tree_removed(self, content: ContentType) -> list[DataFrame]:
        removed = [*self._root_frames(content, Status.DELETED), *self._masked(content)]
        removed += self._by_status(content, LeafKind.UNMADE) + self._unmasked(content, LeafKind.DROPPED)
        return [self._without_moved(frame, content) for frame in at_most_one(removed)]

    @property
    def schema(self) -> StructType:
        """The Spark schema of `of_content`."""
        schema: StructType = spark_schema(self.projection.schema)
        return schema.add(CHANGE, StringType()).add(SNAPSHOT, LongType())

    def _with_maps(self, frame: DataFrame) -> DataFrame:
        """Add the metrics maps that `shown` contains."""
        fill = partial(_fill_maps, self.projection, frozenset(self._column_types))
        return map_arrow(frame.select(*self._read.schema.names, CHANGE, SNAPSHOT), fill, self.schema)

    def _without_moved(self, removed: DataFrame, content: ContentType) -> DataFrame:
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

    def _units_of(self, content: ContentType, kind: LeafKind) -> list[_Unit]:
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

    def _unit_rows(self, units: Sequence[_Unit]) -> DataFrame:
        rows = [{_UNIT: unit.id, MANIFEST: unit.manifest, SNAPSHOT: unit.snapshot_id} for unit in units]
        return F.broadcast(local_frame(self.state.spark, pa.Table.from_pylist(rows, schema=_UNIT_SCHEMA)))

    def _by_status(self, content: ContentType, kind: LeafKind) -> list[DataFrame]:
        units = self._units_of(content, kind)
        if not units:
            return []
        chosen = self._physical(units).where(F.col("version_info.status") == int(_STATUS[kind]))
        return [chosen.join(self._unit_rows(units), MANIFEST).drop(_UNIT)]

    def _unmasked(self, content: ContentType, kind: LeafKind) -> list[DataFrame]:
        """Return unmasked entries: ADDED entries of added leaves, or live entries of dropped leaves."""
        units = self._units_of(content, kind)
        if not units:
            return []
        has_status = _has_status(Status.ADDED) if kind is LeafKind.ADDED else is_live_entry()
        placed = self._physical(units).where(has_status.text).join(self._unit_rows(units), MANIFEST)
        for masked in self._ordinals(units, "old"):
            placed = placed.join(masked, [_UNIT, ORDINAL], "left_anti")
        return [placed.drop(_UNIT)]

    def _masked(self, content: ContentType) -> list[DataFrame]:
        """Return the entries that the snapshot's own manifest DVs mask, and earlier ones don't."""
        units = self._units_of(content, LeafKind.MASKED)
        if not units:
            return []
        newly_masked = self._ordinals(units, "new")[0].distinct()
        for masked in self._ordinals(units, "old"):
            newly_masked = newly_masked.join(masked, [_UNIT, ORDINAL], "left_anti")
        newly_masked = newly_masked.join(self._unit_rows(units), _UNIT).select(MANIFEST, ORDINAL, SNAPSHOT)
        is_small = sum(vector["record_count"] for unit in units for vector in unit.change.new) <= _BROADCAST_ORDINALS
        entries = self._physical(units).where(is_live_entry().text)
        return [entries.join(F.broadcast(newly_masked) if is_small else newly_masked, [MANIFEST, ORDINAL])]

    def _ordinals(self, units: Sequence[_Unit], which: str) -> list[DataFrame]:
        """Return (unit, ordinal) of the units' `new` or `old` manifest DVs, in at most one DataFrame."""
        rows = [dv_row(unit.id, unit.change.leaf, row) for unit in units for row in getattr(unit.change, which)]
        if not rows:
            return []
        vectors = pa.Table.from_pylist(rows, schema=DV_SCHEMA)
        return [masked_ordinals(self.state.spark, vectors, self.state.access.tasks).withColumnRenamed(MANIFEST, _UNIT)]

    # -- manifest lists ---------------------------------------------------------------------------------------------

    def _listed_manifests(self, contents: Iterable[ContentType]) -> pa.Table | None:
        """Return the manifests of some contents that may hold relevant entries; None if there are none."""
        if not self._listed:
            return None
        manifests = pa.concat_tables(self._listed)
        manifests = manifests.filter(one_of(manifests, contents))
        index = manifests.column_names.index(MANIFEST)
        manifests = manifests.set_column(index, MANIFEST, pa.array(range(len(manifests)), pa.int32()))
        manifests = manifests if self.keep is None else self.keep(manifests)
        return manifests if len(manifests) else None

    def _listed_entries(self, content: ContentType) -> list[DataFrame]:
        """Return the changes that manifests of versions 1 to 3 record for the snapshots that added them."""
        manifests = self._listed_manifests([content])
        if manifests is None:
            return []
        owners = pa.table({MANIFEST: manifests.column(MANIFEST), SNAPSHOT: version(manifests, "snapshot_id")})
        entries = self.state.reader.without_tree().entries(manifests, self.projection)
        placed = entries.join(F.broadcast(local_frame(self.state.spark, owners)), MANIFEST)
        status = F.col("version_info.status")
        return [placed.where((F.col("version_info.snapshot_id") == F.col(SNAPSHOT)) & (status != int(Status.EXISTING)))]

    # -- few changes, which the driver reads ------------------------------------------------------------------------

    @cached_property
    def is_few(self) -> bool:
        """Whether the driver reads all changes, so that `few_added` and `few_removed` can be used."""
        if self.state.access.driver is None or self.state.access.alone:
            return self.state.access.alone
        listed, allowed = self._listed_manifests(MANIFESTS), MOST_ENTRIES
        if listed is not None and not self.state.reader.without_tree().driver_reads(listed, self.projection, allowed):
            return False
        if self._newest is None or not self._leaves_to_open:
            return True
        leaves = self._leaf_manifests(sorted(self._leaves_to_open))
        return self._newest.reader.fits_driver(leaves, allowed)

    def few_added(self, content: ContentType) -> pa.Table:
        """Return the entries of `added` as a table."""
        in_trees = [*self._few_in_roots(content, Status.ADDED), *self._few_units(content, [LeafKind.ADDED])]
        return self._concat([*in_trees, *self._few_listed(content, Status.ADDED)])

    def few_removed(self, content: ContentType) -> pa.Table:
        """Return the entries of `removed` as a table."""
        kinds = [LeafKind.MASKED, LeafKind.UNMADE, LeafKind.DROPPED]
        removed = self._concat([*self._few_in_roots(content, Status.DELETED), *self._few_units(content, kinds)])
        moved = [*self._few_in_roots(content, Status.EXISTING), *self._few_units(content, [LeafKind.CARRIED])]
        # Files that only moved to another manifest, and a second entry of a file, are left out.
        known, is_new = {*self._few_keys(self._concat(moved))}, []
        for key in self._few_keys(removed):
            is_new.append(key not in known)
            known.add(key)
        return self._concat([removed.filter(pa.array(is_new, pa.bool_())), *self._few_listed(content, Status.DELETED)])

    def _concat(self, tables: Sequence[pa.Table]) -> pa.Table:
        schema = self.projection.schema.append(pa.field(SNAPSHOT, pa.int64()))
        return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()

    def _few_keys(self, entries: pa.Table) -> Iterator[tuple[Any, ...]]:
        offsets = pc.struct_field(entries.column("deletion_vector"), "offset")
        columns = (entries.column(SNAPSHOT), entries.column("location"), offsets)
        return zip(*(column.to_pylist() for column in columns), strict=True)

    def _few_in_roots(self, content: ContentType, status: Status) -> Iterator[pa.Table]:
        """Yield the roots' own files with one status."""
        part, types = ManifestPart(-1, "", 0, ManifestContext(None, None, None)), self.state.types
        for snapshot_id, changes in self._in_roots:
            table = changes.existing if status == Status.EXISTING else changes.files
            rows = table.filter(pc.and_(one_of(table, FILE_TYPES[content]), pc.equal(version(table, "status"), status)))
            rows, no_ordinals = narrowed_rows(rows, self._read, types.tuple_sources), pa.nulls(len(rows), pa.int64())
            yield _of_snapshot(entries_of_rows(rows, no_ordinals, part, self._read, types.tree_types), snapshot_id)

    def _few_units(self, content: ContentType, kinds: Iterable[LeafKind]) -> Iterator[pa.Table]:
        """Yield the chosen entries of leaves."""
        units = [unit for kind in kinds for unit in self._units_of(content, kind)]
        if not units or self._newest is None:
            return
        manifests = self._leaf_manifests(sorted({unit.manifest for unit in units}))
        entries = self._newest.reader.physical_table(manifests, self._read)
        for unit in units:
            leaf_entries = entries.filter(pc.equal(entries.column(MANIFEST), unit.manifest))
            yield _of_snapshot(leaf_entries.filter(pa.array(self._is_chosen(unit, leaf_entries))), unit.snapshot_id)

    def _is_chosen(self, unit: _Unit, entries: pa.Table) -> np.ndarray[Any, Any]:
        """Return which entries of a leaf are changes; see `LeafKind`."""
        kind, ordinals = unit.change.kind, entries.column(ORDINAL).to_numpy()
        status = _STATUS.get(kind)
        is_status = is_live(entries) if status is None else pc.equal(version(entries, "status"), int(status))
        chosen: np.ndarray[Any, Any] = np.asarray(is_status)
        if kind in (LeafKind.UNMADE, LeafKind.CARRIED):
            return chosen

        def masked(vectors: Iterable[Row]) -> np.ndarray[Any, Any]:
            rows = [dv_row(unit.id, unit.change.leaf, vector) for vector in vectors]
            flags = [mask_flags(row, self.state.files)[ordinals] for row in rows]
            return np.logical_or.reduce(flags, initial=False) if flags else np.zeros(len(ordinals), np.bool_)

        chosen = chosen & ~masked(unit.change.old)
        return chosen & masked(unit.change.new) if kind is LeafKind.MASKED else chosen

    def _few_listed(self, content: ContentType, status: Status) -> Iterator[pa.Table]:
        manifests = self._listed_manifests([content])
        if manifests is None:
            return
        entries = self.state.reader.without_tree().table(manifests, self.projection)
        owners = dict(
            zip(manifests.column(MANIFEST).to_pylist(), version(manifests, "snapshot_id").to_pylist(), strict=True)
        )
        for manifest, snapshot_id in owners.items():
            is_change = pc.and_(
                pc.equal(version(entries, "snapshot_id"), snapshot_id),
                pc.equal(version(entries, "status"), int(status)),
            )
            chosen = pc.and_(is_change, pc.equal(entries.column(MANIFEST), manifest))
            yield _of_snapshot(entries.filter(chosen), snapshot_id)


def _of_snapshot(entries: pa.Table, snapshot_id: int) -> pa.Table:
    return entries.append_column(SNAPSHOT, pa.repeat(pa.scalar(snapshot_id, pa.int64()), len(entries)))


MANIFESTS = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
_LISTED = pa.schema(
    [
        pa.field("content_type", pa.int32()),
        pa.field("location", pa.string()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
_UNIT_SCHEMA = pa.schema([pa.field(_UNIT, pa.int32()), pa.field(MANIFEST, pa.int32()), pa.field(SNAPSHOT, pa.int64())])


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


# -- Positions that a new deletion vector adds ------------------------------------------------------------------------


ADDED_POSITIONS = "added_positions"
POSITIONS_TYPE = ArrayType(LongType())

_POSITIONS = "_positions"


def with_added_positions(state: TableState, deletes: DataFrame) -> DataFrame:
    """Add `added_positions` to changes of delete files.

    Spark computes the column, and reads deletion vectors for it, only if it is selected. If only Spark's own sources
    can read the files, a job lists them when this is called.
    """
    is_vector = F.col("deletion_vector.offset").isNotNull()
    with_positions = _positions(state, deletes, is_vector)
    pair = Window.partitionBy(SNAPSHOT, F.coalesce("referenced_file", "location"))
    before = F.flatten(F.collect_list(F.when(F.col(CHANGE) == REMOVED, F.col(_POSITIONS))).over(pair))
    added = is_vector & (F.col(CHANGE) == ADDED)
    positions = F.when(added, F.array_except(F.col(_POSITIONS), before))
    return with_positions.withColumn(ADDED_POSITIONS, positions).drop(_POSITIONS)


def _positions(state: TableState, deletes: DataFrame, is_vector: Column) -> DataFrame:
    if state.is_encrypted:
        problem = f"{state.metadata.location}: the table is encrypted, so that added_positions can't be computed"
        return deletes.withColumn(_POSITIONS, F.when(is_vector, F.raise_error(F.lit(problem)).cast(POSITIONS_TYPE)))
    if state.access.tasks is None:
        return _positions_by_file(state, deletes, is_vector)
    reader = _PositionReader(state.access.tasks)
    read = arrow_udf(state.spark, reader.of_batches, POSITIONS_TYPE) or F.udf(
        reader.of_row, POSITIONS_TYPE, useArrow=True
    )
    vector = ("location", "deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
    return deletes.withColumn(_POSITIONS, F.when(is_vector, read(*vector)))


@dataclass(frozen=True)
class _PositionReader:
    """Reads the positions of deletion vectors in Spark tasks."""

    reader: ExecutorReader

    # PySpark infers the kind of function from the annotations.
    def of_batches(self, batches: Iterator[tuple[pa.Array, pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        """Return positions, given location, offset, size and cardinality; null without an offset."""
        for batch in batches:
            rows = [*zip(*(column.to_pylist() for column in batch), strict=True)]
            vector_rows = [index for index, row in enumerate(rows) if row[1] is not None]
            ranges = [vector_range(*rows[index][:3]) for index in vector_rows]
            positions: list[pa.Array | None] = [None] * len(rows)
            for number, blob in read_ranges(self.reader, ranges):
                index = vector_rows[number]
                positions[index] = _values(vector_of(blob, ranges[number], rows[index][3]))
            yield pa.array(positions, pa.list_(pa.int64()))

    def of_row(self, location: str, offset: int | None, size: int | None, count: int) -> list[int] | None:
        """Return the positions of one deletion vector; None without an offset."""
        if offset is None:
            return None
        positions: list[int] = _values(stored_vector(self.reader, location, offset, size, count)).tolist()
        return positions


def _values(vector: PositionBitmap) -> np.ndarray[Any, Any]:
    return np.concatenate([*vector.positions(), _NO_POSITIONS])


_NO_POSITIONS = np.empty(0, np.int64)


def _positions_by_file(state: TableState, deletes: DataFrame, is_vector: Column) -> DataFrame:
    """Add positions that Spark's own source reads, joined by location and offset. Each file is read once."""
    vector = F.struct("deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
    by_file = deletes.where(is_vector).groupBy("location").agg(F.collect_set(vector).alias("vectors"))
    locations = by_file.select("location").toArrow().column("location").to_pylist()
    paths = pa.array([spark_path_key(location) for location in locations], pa.string())
    keys = pa.table({"location": locations, "path": paths})
    contents = binary_files(state.spark, locations).join(F.broadcast(local_frame(state.spark, keys)), "path")
    read = by_file.join(contents, "location").select("location", "vectors", "content")
    schema = StructType().add(FILE_LOCATION, StringType()).add(FILE_OFFSET, LongType()).add(_POSITIONS, POSITIONS_TYPE)
    # The keys are distinct, so Spark drops the join where nothing selects the positions.
    positions = map_arrow(read, _positions_in_files, schema).dropDuplicates([FILE_LOCATION, FILE_OFFSET])
    joined = deletes.withColumns(file_key()).join(positions, [FILE_LOCATION, FILE_OFFSET], "left")
    return joined.drop(FILE_LOCATION, FILE_OFFSET)


def _positions_in_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for location, vectors, contents in zip(*batch.columns, strict=True):
            path, content = location.as_py(), contents.as_buffer()
            for offset, size, count in (row.values() for row in vectors.as_py()):
                blob_range = vector_range(path, offset, size)
                vector = vector_of(content[offset : offset + size].to_pybytes(), blob_range, count)
                positions = pa.array([_values(vector)], pa.list_(pa.int64()))
                columns = [pa.array([path]), pa.array([offset], pa.int64()), positions]
                yield pa.RecordBatch.from_arrays(columns, [FILE_LOCATION, FILE_OFFSET, _POSITIONS])


# -- `Table.file_changes` ---------------------------------------------------------------------------------------------


CHANGE_TYPE = "change_type"


def file_changes(
    state: TableState,
    from_snapshot_id: int | None,
    to_snapshot_id: int | None,
    columns: Sequence[str] | None = None,
    *,
    lenient: bool = False,
) -> DataFrame:
    """Return the files that a range of snapshots added and removed; see `Table.file_changes`."""
    snapshots = list(snapshots_between(state.metadata, from_snapshot_id, to_snapshot_id))
    # The range may be of a table that was replaced by one with other types.
    state = state.at(snapshots[-1]) if snapshots else state
    selection = files_selection(state, columns)
    changes = EntryChanges(state, selection.projection, lenient)
    for snapshot in snapshots:
        changes.add(snapshot)
    return _shown(changes, selection)


def _shown(changes: EntryChanges, selection: Selection) -> DataFrame:
    """Return all changes with the columns of `Table.file_changes`, lazily."""
    state = changes.state
    data, deletes = changes.of_content(ContentType.DATA_MANIFEST), changes.of_content(ContentType.DELETE_MANIFEST)
    frames = [frame.withColumn(ADDED_POSITIONS, F.lit(None).cast(POSITIONS_TYPE)) for frame in at_most_one(data)]
    frames += [with_added_positions(state, frame) for frame in at_most_one(deletes)]
    frames = frames or [state.spark.createDataFrame([], changes.schema.add(ADDED_POSITIONS, POSITIONS_TYPE))]
    shown = [F.col(CHANGE).alias(CHANGE_TYPE), F.col(SNAPSHOT).alias("snapshot_id")]
    shown += [column.column() for column in (*selection.file_columns(), *selection.metrics_columns())]
    shown.append(F.col(ADDED_POSITIONS))
    return at_most_one(frames)[0].select(*shown)
