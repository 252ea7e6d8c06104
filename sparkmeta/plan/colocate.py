"""Co-planning: a data manifest and the delete manifests beside it are read by one task, masked, and joined in Arrow.

No entry is shuffled, and none of a delete manifest crosses into the JVM but beside its data file (V4 proposal,
Affinity). What stands beside a data leaf of a tree is affiliated to it; what stands beside an Avro manifest has deletes
of the same partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns import sql
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.arrays import kept_rows, whole
from sparkmeta.manifests.cache.read import CACHED_LEAF, decode_part
from sparkmeta.manifests.deletion_vectors import VECTOR_SCHEMA, inlined, unmasked
from sparkmeta.manifests.entries import wanted_rows
from sparkmeta.manifests.parts import PART_SCHEMA, leaf_units, manifest_parts, part_of
from sparkmeta.manifests.projection import MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.manifests.v4.decode import TreeContext, tree_entries
from sparkmeta.manifests.v4.root import is_live
from sparkmeta.plan.deletes import DELETES_TYPE, TWO_VECTORS, is_vector, vector_projection
from sparkmeta.plan.rows import manifest_path
from sparkmeta.session import map_units
from sparkmeta.spec.entry import VERSION_INFO, ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.columns.sql import Sql
    from sparkmeta.manifests.cache.write import CacheWriter
    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.plan.prune import ScanFilter
    from sparkmeta.plan.strategy import Colocation
    from sparkmeta.state import TableState
    from sparkmeta.storage.files import ExecutorReader, Files

# What a task tells of the deletion vector beside a data entry, flat: nested columns are slow to bring into the JVM, and
# so are those that may be null. Where there is no vector its location is null, and what is never null is 0.
_VECTOR = pa.schema(
    [
        pa.field("vector_location", pa.string()),
        pa.field("vector_file_size", pa.int64(), nullable=False),
        pa.field("vector_offset", pa.int64()),
        pa.field("vector_size", pa.int64()),
        pa.field("vector_records", pa.int64(), nullable=False),
        pa.field("vector_sequence", pa.int64(), nullable=False),
        pa.field("vector_manifest", pa.int32(), nullable=False),
        pa.field("vector_ordinal", pa.int64(), nullable=False),
    ]
)
# Every entry that a task reads has these.
_PLACE = (MANIFEST, ORDINAL)
# What of `version_info` plans need.
_VERSION = tuple(field.arrow for field in VERSION_INFO if field.name in ("status", "sequence_number"))
_MANIFEST_TYPE = pa.struct(
    [*PART_SCHEMA, pa.field("mask", pa.struct(list(VECTOR_SCHEMA))), pa.field(CACHED_LEAF, pa.string())]
)
_UNITS = pa.schema([pa.field("data", _MANIFEST_TYPE), pa.field("deletes", pa.list_(_MANIFEST_TYPE))])

# So many entries of an Avro manifest look for their vectors at once: each time a table of all vectors is made for it.
_JOINED_AT_ONCE = 1 << 16
# The masks of so many data leaves, and of the delete leaves beside them, are read together.
_MASKED_AT_ONCE = 64


@dataclass(frozen=True)
class _Task:
    """What a task needs besides its manifests; it travels to executors.

    context: of a tree's leaves; None for Avro manifests. reader: opens the table's files. cached: opens leaves of the
    manifest cache. writer: of that; None where manifests are not kept.
    """

    data: EntryProjection
    deletes: EntryProjection
    context: TreeContext | None
    reader: ExecutorReader | Files
    cached: ExecutorReader | Files
    writer: CacheWriter | None = None

    @property
    def schema(self) -> pa.Schema:
        """The rows that it makes."""
        data = self.data.schema
        info = data.get_field_index("version_info")
        fields = list(data.set(info, data.field(info).with_type(pa.struct(_VERSION))))
        return pa.schema([*(one.with_nullable(False) if one.name in _PLACE else one for one in fields), *_VECTOR])


def colocated_entries(scan_filter: ScanFilter, groups: Colocation, data: EntryProjection) -> DataFrame:
    """The live entries of data manifests, each with its deletion vector from the delete manifests that stand beside.

    data: what to read of data entries.

    Columns: those of `data`, and what `with_vector` makes the deletes of.

    Raises, when it runs (at once, where few manifests are read on the driver):
        ValidationError: two DVs for one file, a DV older than its file or of another partition, a DV in a delete leaf
            whose data leaf does not have the file. A DV in an Avro manifest that has none of its file's partition does
            not apply (table spec, Scan Planning), and is not seen; nor are those beside a data manifest that has no
            file for the filter.
        CorruptFileError: a manifest or a bitmap that is none.
    """
    state = scan_filter.state
    here = groups.vectors is not None or (
        state.tree is not None and state.fit_driver(pa.concat_tables([groups.data, groups.deletes]), data)
    )
    reader = state.files if here else state.reader
    assert reader is not None
    context = state.tree_context if state.tree is not None else None
    task = _Task(data, vector_projection(scan_filter), context, reader, reader)
    if state.tree is None and (cache := state.manifest_cache) is not None:
        task = replace(task, cached=cache.files) if here else replace(task, writer=cache.writer)
    if groups.vectors is not None:
        parts = state.with_leaves(state.whole_parts(groups.data, data), groups.data, data)
        join = partial(_join_here, task, _one_a_file(groups.vectors))
        return map_units(state.spark, parts, join, task.schema, here=True)
    rows = _leaf_units(state.tree, groups) if state.tree is not None else _manifest_units(state, groups, task)
    units = pa.Table.from_pylist(rows, schema=_UNITS)
    return map_units(state.spark, units, partial(_join_manifests, task), task.schema, here=here)


def with_vector(own: Sql, deletes: pa.Table) -> Sql:
    """The deletes of a data entry: `own`, those from other delete manifests, and the vector of `colocated_entries`.

    own: of the type of `deletes` in `plan_files`. deletes: the delete manifests that were read with them.
    """
    vector = sql.struct(
        sql.lit(int(ContentType.POSITION_DELETES)).alias("content"),
        sql.col("vector_location").alias("file_path"),
        sql.lit("PUFFIN").alias("file_format"),
        sql.col("vector_file_size").alias("file_size_in_bytes"),
        sql.col("location").alias("referenced_data_file"),
        sql.col("vector_offset").alias("content_offset"),
        sql.col("vector_size").alias("content_size_in_bytes"),
        sql.col("vector_records").alias("record_count"),
        sql.col("vector_sequence").alias("data_sequence_number"),
        sql.lit(None).cast("array<int>").alias("equality_ids"),
        manifest_path(deletes, sql.col("vector_manifest")).alias("manifest_path"),
        sql.col("vector_ordinal").alias("manifest_pos"),
    )
    one = sql.array(vector)
    second = sql.exists(own, lambda delete: delete["file_format"] == "PUFFIN")
    twice = sql.raise_error(sql.concat(TWO_VECTORS, sql.col("location"))).cast(DELETES_TYPE)
    equality = sql.filter(own, lambda delete: delete["content"] == int(ContentType.EQUALITY_DELETES))
    merged = sql.when(sql.size(own) == 0, one).when(second, twice).otherwise(sql.concat(equality, one))
    return sql.when(sql.col("vector_location").isNull(), own).otherwise(merged)


def _leaf_units(tree: Tree, groups: Colocation) -> list[dict[str, Any]]:
    """A row a data leaf, as `_UNITS`."""
    masks = {row[MANIFEST]: row for row in tree.vectors.to_pylist()}

    def leaves(manifests: pa.Table) -> list[dict[str, Any]]:
        return [{**row, "mask": masks.get(row[MANIFEST])} for row in leaf_units(manifests).to_pylist()]

    deletes = {one[MANIFEST]: one for one in leaves(groups.deletes)}
    return [
        {"data": leaf, "deletes": [deletes[one] for one in groups.beside[leaf[MANIFEST]]]}
        for leaf in leaves(groups.data)
    ]


def _manifest_units(state: TableState, groups: Colocation, task: _Task) -> list[dict[str, Any]]:
    """A row a part of a data manifest, as `_UNITS`, in the order in which neighbours share delete manifests."""

    def by_manifest(
        parts: pa.Table, manifests: pa.Table, projection: EntryProjection
    ) -> dict[int, list[dict[str, Any]]]:
        found: dict[int, list[dict[str, Any]]] = {}
        for row in state.with_leaves(parts, manifests, projection).to_pylist():
            found.setdefault(row[MANIFEST], []).append(row)
        return found

    split = manifest_parts(groups.data, task.data, state.settings.split_manifest_bytes)
    parts = by_manifest(split, groups.data, task.data)
    deletes = by_manifest(state.whole_parts(groups.deletes, task.deletes), groups.deletes, task.deletes)
    return [
        {"data": part, "deletes": [row for other in others for row in deletes[other]]}
        for one, others in groups.beside.items()
        for part in parts[one]
    ]


def _join_manifests(task: _Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    join = _join_leaves if task.context is not None else _join_avro
    vectors = _Vectors(task)
    for batch in batches:
        units = batch.to_pylist()
        for start in range(0, len(units), _MASKED_AT_ONCE):
            for unit in _with_masks(units[start : start + _MASKED_AT_ONCE], task):
                yield from join(task, unit["data"], partial(vectors.of, unit["deletes"]))


def _with_masks(units: Sequence[dict[str, Any]], task: _Task) -> Sequence[dict[str, Any]]:
    """Rows of `_UNITS` with the bitmaps of their masks inline."""
    masked = [leaf for unit in units for leaf in (unit["data"], *unit["deletes"]) if leaf["mask"] is not None]
    masks = {mask[MANIFEST]: mask for mask in inlined([leaf["mask"] for leaf in masked], task.reader)}
    for leaf in masked:
        leaf["mask"] = masks[leaf[MANIFEST]]
    return units


def _join_here(task: _Task, vectors: pa.Table, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in parts:
        for part in batch.to_pylist():
            yield from _join_avro(task, part, lambda: vectors)


def _join_leaves(task: _Task, leaf: Mapping[str, Any], vectors: Callable[[], pa.Table]) -> Iterator[pa.RecordBatch]:
    data, found = _read_whole(task, leaf, task.data), vectors()
    places = _places(data, found)
    # Each vector has its file, and none has another's, where all of them are found: what else there is, they say.
    if pc.count_distinct(places).as_py() < len(found):
        _one_a_file(found)
        _refuse_unknown(data, found, leaf["location"])
    live = _live(_beside(task, data, found, places), leaf)
    yield from wanted_rows(live, task.data).to_batches()


def _join_avro(task: _Task, part: Mapping[str, Any], vectors: Callable[[], pa.Table]) -> Iterator[pa.RecordBatch]:
    """Vectors are read only where some entry is left."""
    pending: list[pa.RecordBatch] = []
    for batch in _read(task, part, task.data):
        if len(batch):
            pending.append(batch)
        if sum(map(len, pending)) >= _JOINED_AT_ONCE:
            yield from _matched(task, _table(pending, task.data), vectors()).to_batches()
            pending = []
    if pending:
        yield from _matched(task, _table(pending, task.data), vectors()).to_batches()


def _matched(task: _Task, data: pa.Table, vectors: pa.Table) -> pa.Table:
    return _beside(task, data, vectors, _places(data, vectors))


def _beside(task: _Task, data: pa.Table, vectors: pa.Table, places: pa.Array) -> pa.Table:
    info = _one(data, "version_info")
    version = pa.StructArray.from_arrays([info.field(one.name) for one in _VERSION], fields=_VERSION)
    columns = [version if name == "version_info" else data.column(name) for name in data.column_names]
    return pa.Table.from_arrays([*columns, *_vectors_of(data, vectors, places)], schema=task.schema)


def _places(data: pa.Table, vectors: pa.Table) -> pa.Array:
    """Which of the vectors is of each data entry; null where none is."""
    return pc.index_in(_one(data, "location"), _one(vectors, "referenced_file"))


def _read(task: _Task, manifest: Mapping[str, Any], projection: EntryProjection) -> Iterable[pa.RecordBatch]:
    """The entries of an Avro manifest that the projection wants."""
    return decode_part(manifest, projection, task.cached, task.reader, task.writer)


def _read_whole(task: _Task, manifest: Mapping[str, Any], projection: EntryProjection) -> pa.Table:
    """Every entry of a tree's leaf; of an Avro manifest as `_read`."""
    if task.context is None:
        return _table(_read(task, manifest, projection), projection)
    content = task.reader.read(manifest["location"])
    return tree_entries(content, part_of(manifest), projection, task.context)


def _table(batches: Iterable[pa.RecordBatch], projection: EntryProjection) -> pa.Table:
    return pa.Table.from_batches(batches, projection.schema).combine_chunks()


class _Vectors:
    """The live vectors of the delete manifests beside the data manifest that a task is at. What stands beside the next
    one too is not read twice."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._held: dict[tuple[int, int], pa.Table] = {}
        self._all = task.deletes.schema.empty_table()

    def of(self, manifests: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Raises ValidationError for a delete that is no vector; of Avro manifests, for two vectors of one file too."""
        wanted = {(one[MANIFEST], one["part"]): one for one in manifests}
        if [*wanted] != [*self._held]:
            held = {one: table for one, table in self._held.items() if one in wanted}
            self._held, self._all = {}, self._all.slice(0, 0)
            for one, manifest in wanted.items():
                known = held.get(one)
                self._held[one] = self._decoded(manifest) if known is None else known
            found = pa.concat_tables(self._held.values())
            # Where a leaf has its own vectors, the join with it tells whether two are of one file.
            self._all = _only_vectors(found) if self._task.context is not None else _one_a_file(found)
        return self._all

    def _decoded(self, manifest: Mapping[str, Any]) -> pa.Table:
        task = self._task
        return _live(_read_whole(task, manifest, task.deletes), manifest)


def _one_a_file(vectors: pa.Table) -> pa.Table:
    """The deletes, if all are vectors and no two of one data file; else a ValidationError."""
    vectors = _only_vectors(vectors)
    targets = _one(vectors, "referenced_file")
    if pc.count_distinct(targets).as_py() < len(targets):
        counts = pc.value_counts(targets)
        _refuse(counts.field("values"), pc.greater(counts.field("counts"), 1), TWO_VECTORS)
    return vectors


def _only_vectors(deletes: pa.Table) -> pa.Table:
    problem = "a delete manifest of deletion vectors holds a delete file that is no vector: "
    _refuse(_one(deletes, "location"), pc.invert(is_vector(deletes)), problem)
    return deletes.combine_chunks()


def _live(entries: pa.Table, leaf: Mapping[str, Any]) -> pa.Table:
    """Without DELETED and masked entries; `entries` are all that a leaf has."""
    kept = is_live(entries)
    if leaf.get("mask") is not None:
        kept = pc.and_(kept, unmasked(len(entries), leaf["mask"]))
    return kept_rows(entries, kept)


def _vectors_of(data: pa.Table, vectors: pa.Table, places: pa.Array) -> Sequence[pa.Array]:
    """The vector of each data entry, as `_VECTOR`; null where it has none. places: see `_places`."""
    _check(data, vectors, places, _one(data, "location"))
    location = _one(vectors, "deletion_vector")
    columns = [
        _one(vectors, "location"),
        _one(vectors, "file_size_in_bytes"),
        location.field("offset"),
        location.field("size_in_bytes"),
        _one(vectors, "record_count"),
        _one(vectors, "version_info").field("sequence_number"),
        _one(vectors, MANIFEST),
        _one(vectors, ORDINAL),
    ]
    found = [column.take(places) for column in columns]
    return [one if field.nullable else pc.fill_null(one, 0) for field, one in zip(_VECTOR, found, strict=True)]


def _refuse_unknown(data: pa.Table, vectors: pa.Table, leaf: str) -> None:
    """ValidationError for a vector of a file that the data leaf, whose delete leaf has it, does not have."""
    targets = _one(vectors, "referenced_file")
    problem = f"a deletion vector in a delete manifest affiliated to {leaf}, which does not have the file: "
    _refuse(targets, pc.invert(pc.is_in(targets, _one(data, "location"))), problem)


def _check(data: pa.Table, vectors: pa.Table, places: pa.Array, paths: pa.Array) -> None:
    """ValidationError where a live data entry and its vector contradict each other."""
    info = _one(data, "version_info")
    live = pc.and_(places.is_valid(), pc.not_equal(info.field("status"), int(Status.DELETED)))
    sequence = _one(vectors, "version_info").field("sequence_number").take(places)
    own = info.field("sequence_number")
    for values, what in ((own, "data file"), (sequence, "the deletion vector of")):
        _refuse(paths, pc.and_(live, values.is_null()), f"no sequence number is known for {what} ")
    _refuse(paths, pc.and_(live, pc.less(sequence, own)), "a deletion vector is older than its data file: ")
    same = pc.equal(_one(vectors, "partition_spec_id").take(places), _one(data, "partition_spec_id"))
    if PARTITION in data.column_names:
        theirs = _one(vectors, PARTITION).take(places)
        for one, other in zip(_one(data, PARTITION).flatten(), theirs.flatten(), strict=True):
            same = pc.and_(same, _same(one, other))
    problem = "a delete file has another partition spec or partition than its data file: "
    _refuse(paths, pc.and_(live, pc.invert(same)), problem)


def _same(one: pa.Array, other: pa.Array) -> pa.Array:
    """Null equals null; floats are compared by their bits, as -0.0 and 0.0 are different partitions."""
    if pa.types.is_floating(one.type):
        bits = pa.int32() if pa.types.is_float32(one.type) else pa.int64()
        one, other = one.view(bits), other.view(bits)
    return pc.or_(pc.and_(one.is_null(), other.is_null()), pc.fill_null(pc.equal(one, other), False))


def _refuse(paths: pa.Array, wrong: pa.Array, problem: str) -> None:
    found = pc.indices_nonzero(pc.fill_null(wrong, False))
    if len(found):
        raise ValidationError(f"{problem}{paths[found[0].as_py()]}")


def _one(table: pa.Table, name: str) -> pa.Array:
    return whole(table.column(name))
