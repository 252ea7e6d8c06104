"""Which files a range of snapshots added and removed: the driver decides from the roots, Spark reads what is left.

Only leaves that a snapshot added or newly masked are opened (semantics 8.5 B), so that the cost follows the size of the
change. Snapshots of a manifest list say it by the manifests that they added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from sparkmeta.columns import sql
from sparkmeta.commit.root_changes import LeafChange, LeafKind, RootChanges, root_changes
from sparkmeta.errors import CorruptFileError, NoSuchSnapshotError, ValidationError
from sparkmeta.inspect.files import files_selection
from sparkmeta.manifests.avro.read import spark_schema
from sparkmeta.manifests.deletion_vectors import VECTOR_SCHEMA, arrow_udf, masked_ordinals, vector_row
from sparkmeta.manifests.metrics_maps import with_metrics_maps
from sparkmeta.manifests.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.manifests.v4.root import Root, one_of, version
from sparkmeta.manifests.v4.spark import entry_columns
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests, narrowed_rows, plain_projection
from sparkmeta.plan.filter import is_live
from sparkmeta.session import local_frame
from sparkmeta.spec.bitmap import read_deletion_vector
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType, Status
from sparkmeta.storage.files import binary_files
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.ranges import FileRange, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.inspect.files import Selection
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.state import TableState
    from sparkmeta.storage.files import ExecutorReader

ADDED = "added"
REMOVED = "removed"
CHANGE_TYPE = "change_type"
ADDED_POSITIONS = "added_positions"

_CHANGE, _SNAPSHOT, _UNIT, _POSITIONS = "_change", "_snapshot", "_unit", "_positions"
_LOCATION, _OFFSET = "_location", "_offset"
# What changes are told apart by, and deletion vectors read by, whatever is shown.
_NEEDED = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "record_count",
    "referenced_file",
)
_CONTENTS = {
    ContentType.DATA_MANIFEST: (ContentType.DATA,),
    ContentType.DELETE_MANIFEST: (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES),
}
_STATUS = {LeafKind.ADDED: Status.ADDED, LeafKind.UNMADE: Status.DELETED, LeafKind.CARRIED: Status.EXISTING}
# Masked ordinals up to this many are broadcast; more are joined by hash.
_BROADCAST_ORDINALS = 1_000_000


def file_changes(
    state: TableState,
    from_snapshot_id: int | None,
    to_snapshot_id: int | None,
    columns: Sequence[str] | None = None,
    *,
    lenient: bool = False,
) -> DataFrame:
    """The files that the snapshots of a range added and removed, as `Table.file_changes` says."""
    selection = files_selection(state, columns)
    changes = EntryChanges(state, selection.projection, lenient)
    for snapshot in snapshots_between(state.metadata, from_snapshot_id, to_snapshot_id):
        changes.add(snapshot)
    return _shown(changes, selection)


def _shown(changes: EntryChanges, selection: Selection) -> DataFrame:
    """All changes as `Table.file_changes` shows them, lazy."""
    state = changes.state
    data, deletes = changes.of_content(ContentType.DATA_MANIFEST), changes.of_content(ContentType.DELETE_MANIFEST)
    frames = [frame.withColumn(ADDED_POSITIONS, F.lit(None).cast("array<bigint>")) for frame in _union(data)]
    frames += [_with_added_positions(state, frame) for frame in _union(deletes)]
    if not frames:
        schema = spark_schema(changes._projection).add(_CHANGE, StringType()).add(_SNAPSHOT, LongType())
        frames = [state.spark.createDataFrame([], schema.add(ADDED_POSITIONS, _positions_type()))]
    shown = [F.col(_CHANGE).alias(CHANGE_TYPE), F.col(_SNAPSHOT).alias("snapshot_id")]
    shown += [*selection.file_columns(), *selection.metrics_columns(), F.col(ADDED_POSITIONS)]
    return _union(frames)[0].select(*shown)


def snapshots_between(metadata: TableMetadata, from_exclusive: int | None, to_inclusive: int | None) -> list[Snapshot]:
    """The snapshots after one up to another along the parents, oldest first.

    from_exclusive: None for all since the table was empty; it may have expired if the one after it is there.
    to_inclusive: None for the current one.

    Raises:
        NoSuchSnapshotError: a snapshot that the table does not have.
        ValidationError: the first is no ancestor of the second, or the history between them has expired.
    """
    last = metadata.current_snapshot() if to_inclusive is None else metadata.snapshot_by_id(to_inclusive)
    if last is None:
        if to_inclusive is None and from_exclusive is None:
            return []
        missing = from_exclusive if to_inclusive is None else to_inclusive
        raise NoSuchSnapshotError(f"{metadata.location} has no snapshot {missing}")
    by_id = {one.snapshot_id: one for one in metadata.snapshots}
    found: list[Snapshot] = []
    place: int | None = last.snapshot_id
    while place != from_exclusive:
        if place is None or place not in by_id:
            raise _not_in_history(metadata, from_exclusive, last.snapshot_id, place)
        found.append(by_id[place])
        if len(found) > len(by_id):
            raise CorruptFileError(metadata.location, "parent-snapshot-id", place, "the snapshot is its own ancestor")
        place = by_id[place].parent_snapshot_id
    return found[::-1]


def _not_in_history(metadata: TableMetadata, start: int | None, end: int, lost: int | None) -> Exception:
    if start is not None and metadata.snapshot_by_id(start) is None:
        return NoSuchSnapshotError(f"{metadata.location} has no snapshot {start}")
    if lost is None:
        return ValidationError(f"{metadata.location}: snapshot {start} is no ancestor of snapshot {end}")
    since = "the table was empty" if start is None else f"snapshot {start}"
    return ValidationError(
        f"{metadata.location}: snapshot {lost} has expired: what changed since {since} is not known any more"
    )


@dataclass(frozen=True)
class _Unit:
    """A leaf to open for one snapshot. id: of the unit. manifest: small id of the leaf."""

    id: int
    snapshot_id: int
    manifest: int
    content: ContentType
    change: LeafChange


@dataclass
class EntryChanges:
    """The entries that snapshots added and removed: collects, snapshot by snapshot, what to read, and opens no more.

    The roots themselves are not kept.

    shown: what is read of the entries. keep: the leaves, of rows of `leaf_manifests`, that may hold what is looked for.
    """

    state: TableState
    shown: EntryProjection
    lenient: bool = False
    keep: Callable[[pa.Table], pa.Table] | None = None
    _units: list[_Unit] = field(default_factory=list)
    _manifests: dict[str, int] = field(default_factory=dict)
    _leaves: list[pa.Table] = field(default_factory=list)
    _own: list[tuple[int, RootChanges]] = field(default_factory=list)
    _listed: list[pa.Table] = field(default_factory=list)
    _last: tuple[int, Root | None] | None = None
    _newest: TableState | None = None

    def add(self, snapshot: Snapshot) -> None:
        """The changes of one snapshot, whose parent was added before or is the one that the range begins after."""
        is_own = self.state.snapshot is not None and self.state.snapshot.snapshot_id == snapshot.snapshot_id
        state = self.state if is_own else self.state.at(snapshot)
        if state.tree is None:
            manifests = state.manifests
            self._listed.append(manifests.filter(pc.equal(version(manifests, "snapshot_id"), snapshot.snapshot_id)))
            self._last = (snapshot.snapshot_id, None)
            return
        root, own_id = state.tree.root, snapshot.snapshot_id
        changes = root_changes(root, own_id, partial(self._parent, snapshot), lenient=self.lenient)
        for change in changes.leaves:
            self._add_leaf(root, own_id, change)
        self._own.append((own_id, changes))
        self._last, self._newest = (own_id, root), state

    def of_snapshots(self, snapshot_ids: Collection[int]) -> EntryChanges:
        """The changes of some of the snapshots."""
        units = [unit for unit in self._units if unit.snapshot_id in snapshot_ids]
        in_roots = [(snapshot_id, changes) for snapshot_id, changes in self._own if snapshot_id in snapshot_ids]
        chosen = pa.array(sorted(snapshot_ids), pa.int64())
        listed = [manifests.filter(pc.is_in(version(manifests, "snapshot_id"), chosen)) for manifests in self._listed]
        return replace(self, _units=units, _own=in_roots, _listed=listed)

    def _add_leaf(self, root: Root, snapshot_id: int, change: LeafChange) -> None:
        location = change.leaf["location"]
        if location not in self._manifests:
            self._manifests[location] = len(self._leaves)
            self._leaves.append(root.table.slice(change.row, 1))
        content = ContentType(change.leaf["content_type"])
        self._units.append(_Unit(len(self._units), snapshot_id, self._manifests[location], content, change))

    def _parent(self, snapshot: Snapshot) -> Root | None:
        parent_id = snapshot.parent_snapshot_id
        if parent_id is None:
            return None
        if self._last is not None and self._last[0] == parent_id:
            return self._last[1]
        parent = self.state.metadata.snapshot_by_id(parent_id)
        if parent is None:
            raise NoSuchSnapshotError(f"{self.state.metadata.location} has no snapshot {parent_id} any more")
        tree = self.state.at(parent).tree
        return None if tree is None else tree.root

    # -- the result -------------------------------------------------------------------------------------------------

    @cached_property
    def _projection(self) -> EntryProjection:
        shown = self.shown
        return EntryProjection.of({*shown.columns, *_NEEDED}, dict(shown.partition), dict(shown.stats))

    @cached_property
    def _column_types(self) -> dict[int, str]:
        return {one: str(column.field_type) for one, column in self.state.primitive_fields.items()}

    @property
    def _maps(self) -> bool:
        return any(name in METRICS_MAP_IDS for name in self._projection.columns)

    @cached_property
    def _read(self) -> EntryProjection:
        """What trees are read with."""
        return plain_projection(self._projection, self._column_types) if self._maps else self._projection

    def of_content(self, content: ContentType) -> list[DataFrame]:
        """All changes of files of one content, DATA_MANIFEST's or DELETE_MANIFEST's, with what each is."""
        frames = [frame.withColumn(_CHANGE, F.lit(ADDED)) for frame in self._tree_added(content)]
        frames += [frame.withColumn(_CHANGE, F.lit(REMOVED)) for frame in self._tree_removed(content)]
        of_trees = [self._with_maps(frame) if self._maps else frame for frame in _union(frames)]
        listed = F.when(F.col("version_info.status") == int(Status.ADDED), ADDED).otherwise(REMOVED)
        return [*of_trees, *(frame.withColumn(_CHANGE, listed) for frame in self._listed_entries(content))]

    def added(self, content: ContentType) -> list[DataFrame]:
        """The entries of files that were added, one frame for each way to read them; without metrics maps."""
        listed = F.col("version_info.status") == int(Status.ADDED)
        return [*self._tree_added(content), *(frame.where(listed) for frame in self._listed_entries(content))]

    def removed(self, content: ContentType) -> list[DataFrame]:
        """As `added`, of files that were removed."""
        listed = F.col("version_info.status") == int(Status.DELETED)
        return [*self._tree_removed(content), *(frame.where(listed) for frame in self._listed_entries(content))]

    def _tree_added(self, content: ContentType) -> list[DataFrame]:
        return [*self._own_frames(content, Status.ADDED), *self._unmasked(content, LeafKind.ADDED)]

    def _tree_removed(self, content: ContentType) -> list[DataFrame]:
        removed = [*self._own_frames(content, Status.DELETED), *self._masked(content)]
        removed += self._by_status(content, LeafKind.UNMADE) + self._unmasked(content, LeafKind.DROPPED)
        return [self._really_removed(frame, content) for frame in _union(removed)]

    def _with_maps(self, frame: DataFrame) -> DataFrame:
        """The changes with the metrics maps that are shown."""
        fill = partial(_fill_maps, self._projection, frozenset(self._column_types))
        names = [*self._read.schema.names, _CHANGE, _SNAPSHOT]
        schema = spark_schema(self._projection).add(_CHANGE, StringType()).add(_SNAPSHOT, LongType())
        return frame.select(*names).mapInArrow(fill, schema)

    def _really_removed(self, removed: DataFrame, content: ContentType) -> DataFrame:
        """Without files that the snapshot carried elsewhere; and each once, where a leaf says so as well."""
        carried = [*self._by_status(content, LeafKind.CARRIED), *self._own_frames(content, Status.EXISTING)]
        for keys in _union(carried):
            wanted = keys.select(*_file_key())
            removed = removed.withColumns(_key_columns()).join(wanted, [_SNAPSHOT, _LOCATION, _OFFSET], "left_anti")
            removed = removed.drop(_LOCATION, _OFFSET)
        if any(one.change.kind is LeafKind.UNMADE for one in self._units):
            removed = removed.withColumns(_key_columns()).dropDuplicates([_SNAPSHOT, _LOCATION, _OFFSET])
            removed = removed.drop(_LOCATION, _OFFSET)
        return removed

    def _own_frames(self, content: ContentType, status: Status) -> list[DataFrame]:
        """Files that stand in the roots themselves, of one status."""
        tables = []
        for snapshot_id, changes in self._own:
            table = changes.kept if status == Status.EXISTING else changes.files
            rows = table.filter(pc.and_(one_of(table, _CONTENTS[content]), pc.equal(version(table, "status"), status)))
            if len(rows):
                narrow = narrowed_rows(rows, self._read, self.state.tuple_sources)
                ids = pa.repeat(pa.scalar(snapshot_id, pa.int64()), len(rows))
                tables.append(narrow.append_column(_SNAPSHOT, ids))
        if not tables:
            return []
        table = pa.concat_tables(tables)
        table = table.append_column(MANIFEST, pa.nulls(len(table), pa.int32()))
        table = table.append_column(ORDINAL, pa.nulls(len(table), pa.int64()))
        columns = sql.texts(entry_columns(self._read, self.state.tuple_sources, None))
        return [local_frame(self.state.spark, table).selectExpr(*columns, _SNAPSHOT)]

    # -- leaves -----------------------------------------------------------------------------------------------------

    def _of(self, content: ContentType, kind: LeafKind) -> list[_Unit]:
        units = (unit for unit in self._units if unit.content == content and unit.change.kind is kind)
        return [unit for unit in units if unit.manifest in self._leaves_to_open]

    @cached_property
    def _leaves_to_open(self) -> set[int]:
        """The leaves that may hold what is looked for."""
        if self.keep is None or not self._leaves:
            return set(range(len(self._leaves)))
        return set(self.keep(self._leaf_manifests(range(len(self._leaves)))).column(MANIFEST).to_pylist())

    def _leaf_manifests(self, ids: Sequence[int]) -> pa.Table:
        """Leaves by their small ids, as rows of `leaf_manifests`."""
        return leaf_manifests(pa.concat_tables([self._leaves[manifest] for manifest in ids]), pa.array(ids, pa.int32()))

    def _physical(self, units: Sequence[_Unit]) -> DataFrame:
        """Every entry of the units' leaves, each leaf once."""
        newest = self._newest
        assert newest is not None
        assert newest.tree_reader is not None
        manifests = self._leaf_manifests(sorted({unit.manifest for unit in units}))
        reader = replace(newest.tree_reader, column_types=self._column_types)
        return _union(reader.physical_frames(manifests, self._read))[0]

    def _places(self, units: Sequence[_Unit]) -> DataFrame:
        rows = [{_UNIT: one.id, MANIFEST: one.manifest, _SNAPSHOT: one.snapshot_id} for one in units]
        return F.broadcast(local_frame(self.state.spark, pa.Table.from_pylist(rows, schema=_PLACES)))

    def _by_status(self, content: ContentType, kind: LeafKind) -> list[DataFrame]:
        units = self._of(content, kind)
        if not units:
            return []
        chosen = self._physical(units).where(F.col("version_info.status") == int(_STATUS[kind]))
        return [chosen.join(self._places(units), MANIFEST).drop(_UNIT)]

    def _unmasked(self, content: ContentType, kind: LeafKind) -> list[DataFrame]:
        """The ADDED entries of leaves that were added, or the live ones of leaves that were dropped, but for masked."""
        units = self._of(content, kind)
        if not units:
            return []
        wanted = F.col("version_info.status") == int(Status.ADDED) if kind is LeafKind.ADDED else is_live().column()
        placed = self._physical(units).where(wanted).join(self._places(units), MANIFEST)
        for masked in self._ordinals(units, "old"):
            placed = placed.join(masked, [_UNIT, ORDINAL], "left_anti")
        return [placed.drop(_UNIT)]

    def _masked(self, content: ContentType) -> list[DataFrame]:
        """The entries that were masked newly: by the snapshot's own deletion vectors, and by no earlier ones."""
        units = self._of(content, LeafKind.MASKED)
        if not units:
            return []
        wanted = self._ordinals(units, "new")[0].distinct()
        for masked in self._ordinals(units, "old"):
            wanted = wanted.join(masked, [_UNIT, ORDINAL], "left_anti")
        wanted = wanted.join(self._places(units), _UNIT).select(MANIFEST, ORDINAL, _SNAPSHOT)
        few = sum(vector["record_count"] for one in units for vector in one.change.new) <= _BROADCAST_ORDINALS
        entries = self._physical(units).where(is_live().text)
        return [entries.join(F.broadcast(wanted) if few else wanted, [MANIFEST, ORDINAL])]

    def _ordinals(self, units: Sequence[_Unit], which: str) -> list[DataFrame]:
        """(unit, ordinal) of the units' `new` or `old` deletion vectors; nothing where there are none."""
        rows = [vector_row(one.id, one.change.leaf, row) for one in units for row in getattr(one.change, which)]
        if not rows:
            return []
        vectors = pa.Table.from_pylist(rows, schema=VECTOR_SCHEMA)
        found = masked_ordinals(self.state.spark, vectors, self.state.reader)
        return [found.withColumnRenamed(MANIFEST, _UNIT)]

    # -- manifest lists ---------------------------------------------------------------------------------------------

    def _listed_entries(self, content: ContentType) -> list[DataFrame]:
        """What manifests of the v1-v3 layout say of the snapshots that added them."""
        if not self._listed:
            return []
        manifests = pa.concat_tables(self._listed)
        manifests = manifests.filter(one_of(manifests, [content]))
        if not len(manifests):
            return []
        index = manifests.column_names.index(MANIFEST)
        manifests = manifests.set_column(index, MANIFEST, pa.array(range(len(manifests)), pa.int32()))
        manifests = manifests if self.keep is None else self.keep(manifests)
        owners = pa.table({MANIFEST: manifests.column(MANIFEST), _SNAPSHOT: version(manifests, "snapshot_id")})
        entries = self.state.manifest_entries(manifests, self._projection)
        placed = entries.join(F.broadcast(local_frame(self.state.spark, owners)), MANIFEST)
        status = F.col("version_info.status")
        return [
            placed.where((F.col("version_info.snapshot_id") == F.col(_SNAPSHOT)) & (status != int(Status.EXISTING)))
        ]


_PLACES = pa.schema([pa.field(_UNIT, pa.int32()), pa.field(MANIFEST, pa.int32()), pa.field(_SNAPSHOT, pa.int64())])


def _union(frames: Sequence[DataFrame]) -> list[DataFrame]:
    """At most one DataFrame: all rows."""
    return [reduce(lambda left, right: left.unionByName(right), frames)] if frames else []


def _key_columns() -> dict[str, Column]:
    """What a file is known by; a deletion vector by its offset too. Nulls are equal to nothing in a join."""
    return {_LOCATION: F.col("location"), _OFFSET: F.coalesce(F.col("deletion_vector.offset"), F.lit(-1))}


def _file_key() -> list[Column]:
    return [F.col(_SNAPSHOT), *(column.alias(name) for name, column in _key_columns().items())]


def _fill_maps(projection: EntryProjection, columns: frozenset[int], batches: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for filled in with_metrics_maps(projection, columns, [batch]):
            marks = batch.select([_CHANGE, _SNAPSHOT])
            schema = pa.schema([*filled.schema, *marks.schema])
            yield pa.RecordBatch.from_arrays([*filled.columns, *marks.columns], schema=schema)


# -- positions ------------------------------------------------------------------------------------------------------


def _positions_type() -> Any:
    from pyspark.sql.types import ArrayType

    return ArrayType(LongType())


def _with_added_positions(state: TableState, deletes: DataFrame) -> DataFrame:
    """Changes of delete files with the positions that each added deletion vector has and the removed one had not.

    A column that is not asked for is not computed: no deletion vector is read for it. Where only Spark's sources reach
    the store, a job lists the vectors' files at once.
    """
    is_vector = F.col("deletion_vector.offset").isNotNull()
    with_positions = _positions(state, deletes, is_vector)
    pair = Window.partitionBy(_SNAPSHOT, F.coalesce("referenced_file", "location"))
    before = F.flatten(F.collect_list(F.when(F.col(_CHANGE) == REMOVED, F.col(_POSITIONS))).over(pair))
    added = is_vector & (F.col(_CHANGE) == ADDED)
    positions = F.when(added, F.array_except(F.col(_POSITIONS), before))
    return with_positions.withColumn(ADDED_POSITIONS, positions).drop(_POSITIONS)


def _positions(state: TableState, deletes: DataFrame, is_vector: Column) -> DataFrame:
    if state.reader is None:
        return _positions_by_file(state, deletes, is_vector)
    reader = _PositionReader(state.reader)
    read = arrow_udf(state.spark, reader.of_batches, _positions_type()) or F.udf(
        reader.of_row, _positions_type(), useArrow=True
    )
    place = ("location", "deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
    return deletes.withColumn(_POSITIONS, F.when(is_vector, read(*place)))


@dataclass(frozen=True)
class _PositionReader:
    """Reads the positions of deletion vectors in a Spark task."""

    reader: ExecutorReader

    # PySpark tells by the annotations what kind of function it is.
    def of_batches(self, batches: Iterator[tuple[pa.Array, pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        """Positions by location, offset, size and cardinality; null where there is no offset."""
        for batch in batches:
            rows = [*zip(*(column.to_pylist() for column in batch), strict=True)]
            vectors = {place: _Vector(*row) for place, row in enumerate(rows) if row[1] is not None}
            places = [*vectors]
            ranges = [FileRange(vector.location, vector.offset, vector.size or 0) for vector in vectors.values()]
            positions: list[pa.Array | None] = [None] * len(rows)
            for number, blob in read_ranges(self.reader, ranges):
                place = places[number]
                positions[place] = vectors[place].positions(blob)
            yield pa.array(positions, pa.list_(pa.int64()))

    def of_row(self, location: str, offset: int | None, size: int | None, count: int) -> list[int] | None:
        """As `of_batches`, of one row."""
        if offset is None:
            return None
        blob = self.reader.read_range(location, offset, size or 0)
        positions: list[int] = _Vector(location, offset, size, count).positions(blob).tolist()
        return positions


class _Vector(NamedTuple):
    """A deletion vector of a data file: where it stands, and its cardinality."""

    location: str
    offset: int
    size: int | None
    cardinality: int

    def positions(self, blob: bytes) -> np.ndarray[Any, Any]:
        """Raises CorruptFileError for a blob that is not the vector."""
        if self.offset < 0 or len(blob) != self.size:
            problem = f"{self.size} bytes there are not all in the file"
            raise CorruptFileError(self.location, "content_offset", self.offset, problem)
        return np.concatenate([*read_deletion_vector(blob, self.location, self.cardinality).positions(), _NO_POSITIONS])


_NO_POSITIONS = np.empty(0, np.int64)


def _positions_by_file(state: TableState, deletes: DataFrame, is_vector: Column) -> DataFrame:
    """As `_positions`, where only Spark reads files: each file once, with all of its vectors."""
    vector = F.struct("deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
    by_file = deletes.where(is_vector).groupBy("location").agg(F.collect_set(vector).alias("vectors"))
    locations = by_file.select("location").toArrow().column("location").to_pylist()
    paths = pa.array([spark_path_key(location) for location in locations], pa.string())
    keys = pa.table({"location": locations, "path": paths})
    contents = binary_files(state.spark, locations).join(F.broadcast(local_frame(state.spark, keys)), "path")
    read = by_file.join(contents, "location").select("location", "vectors", "content")
    schema = StructType().add(_LOCATION, StringType()).add(_OFFSET, LongType()).add(_POSITIONS, _positions_type())
    # As the keys are distinct, Spark leaves the join out where nobody asks for positions.
    positions = read.mapInArrow(_positions_in_files, schema).dropDuplicates([_LOCATION, _OFFSET])
    joined = deletes.withColumns(_key_columns()).join(positions, [_LOCATION, _OFFSET], "left")
    return joined.drop(_LOCATION, _OFFSET)


def _positions_in_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for location, vectors, contents in zip(*batch.columns, strict=True):
            path, content = location.as_py(), contents.as_buffer()
            for offset, size, count in (row.values() for row in vectors.as_py()):
                blob = content[offset : offset + (size or 0)].to_pybytes()
                positions = pa.array([_Vector(path, offset, size, count).positions(blob)], pa.list_(pa.int64()))
                columns = [pa.array([path]), pa.array([offset], pa.int64()), positions]
                yield pa.RecordBatch.from_arrays(columns, [_LOCATION, _OFFSET, _POSITIONS])
