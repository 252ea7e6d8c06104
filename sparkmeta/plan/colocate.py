"""Co-planning: a data leaf and the delete leaves affiliated to it are read by one task, masked, and joined in Arrow.

No entry is shuffled, and none of a delete leaf crosses into the JVM but beside its data file (V4 proposal, Affinity).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns import sql
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.avro.read import PART_SCHEMA, part_of, schema_of
from sparkmeta.manifests.entries import as_numbers
from sparkmeta.manifests.layout import whole
from sparkmeta.manifests.leaf_bytes import TreeContext, decode_tree_manifest
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryFilter, EntryProjection
from sparkmeta.manifests.tree import leaf_units
from sparkmeta.manifests.vectors import VECTOR_SCHEMA, vector_ordinals
from sparkmeta.plan.deletes import BROADCAST_DELETES, DELETES_TYPE, TWO_VECTORS, VECTOR_COLUMNS, live_count
from sparkmeta.plan.rows import manifest_path
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.columns.array_tests import Source
    from sparkmeta.columns.sql import Sql
    from sparkmeta.plan.prune import ScanFilter
    from sparkmeta.state import TableState
    from sparkmeta.storage.files import ExecutorReader

# Vectors that are few enough to be broadcast are joined where they stand beside many data entries: a task that reads
# leaves together takes longer for each entry than Spark's reader does, and the join longer for each vector and at all.
_FEW_ENTRIES = 250_000
_ENTRIES_A_VECTOR = 10

# What a task tells of the deletion vector beside a data entry, flat: nested columns are slow to bring into the JVM.
_VECTOR = pa.schema(
    [
        pa.field("vector_location", pa.string()),
        pa.field("vector_file_size", pa.int64()),
        pa.field("vector_offset", pa.int64()),
        pa.field("vector_size", pa.int64()),
        pa.field("vector_records", pa.int64()),
        pa.field("vector_sequence", pa.int64()),
        pa.field("vector_manifest", pa.int32()),
        pa.field("vector_ordinal", pa.int64()),
    ]
)
_LEAF = pa.struct([*PART_SCHEMA, pa.field("mask", pa.struct(list(VECTOR_SCHEMA)))])
_UNITS = pa.schema([pa.field("data", _LEAF), pa.field("deletes", pa.list_(_LEAF))])


@dataclass(frozen=True)
class _Task:
    """What a task needs besides its leaves; it travels to executors."""

    data: EntryProjection
    deletes: EntryProjection
    context: TreeContext
    reader: ExecutorReader

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.data.schema, *_VECTOR])


@dataclass(frozen=True)
class Colocation:
    """Which of a scan's manifests tasks read together, and why.

    data, deletes: leaves that belong together; none where the vectors are joined by Spark. other_data, other_deletes:
    the rest. reason: of the choice, for the report.
    """

    data: pa.Table
    deletes: pa.Table
    other_data: pa.Table
    other_deletes: pa.Table
    reason: str

    @property
    def used(self) -> bool:
        return len(self.deletes) > 0


def consumed_deletes(deletes: pa.Table, data: pa.Table, state: TableState) -> pa.Table:
    """The delete manifests without those that are affiliated to data leaves which a scan does not open.

    One that is affiliated to no live leaf is as good as unaffiliated (semantics of the V4 proposal: affinity is a hint
    of the writer's, and a lost one must not bring rows back).
    """
    if state.tree is None or not len(deletes):
        return deletes
    target = deletes.column("referenced_file")
    leaves = state.tree.root.leaves
    live = leaves.filter(pc.equal(leaves.column("content_type"), int(ContentType.DATA_MANIFEST))).column("location")
    opened = data.column("location")
    pruned = pc.and_(pc.is_in(target, live.combine_chunks()), pc.invert(pc.is_in(target, opened.combine_chunks())))
    return deletes.filter(pc.invert(pc.fill_null(pruned, False)))


def colocation(scan_filter: ScanFilter, data: pa.Table, deletes: pa.Table) -> Colocation:
    """Which of the manifests that a scan opens to read together: see the setting `planning`."""
    nothing = Colocation(data.slice(0, 0), deletes.slice(0, 0), data, deletes, "")
    state = scan_filter.state
    asked = state.settings.planning
    if state.tree is None or not len(deletes):
        return replace(nothing, reason="join: the scan opens no delete leaf of a tree")
    beside = _affiliated(state, data, deletes)
    if not pc.any(beside).as_py():
        return replace(nothing, reason="join: no delete leaf is affiliated to a data leaf that the scan opens")
    chosen = deletes.filter(beside)
    vectors = live_count(chosen) or 0
    if asked == "join":
        return replace(nothing, reason="join: the setting planning says so")
    if state.reader is None:
        return replace(nothing, reason="join: executors can't open files themselves")
    together = pc.is_in(data.column("location"), chosen.column("referenced_file").combine_chunks())
    beside_them = live_count(data.filter(together))
    many = beside_them is None or beside_them > _FEW_ENTRIES + _ENTRIES_A_VECTOR * vectors
    if asked == "auto" and vectors <= BROADCAST_DELETES and many:
        return replace(nothing, reason=f"join: {vectors:,} deletion vectors are few enough to be broadcast")
    why = f"colocated: {vectors:,} deletion vectors stand in {len(chosen):,} delete leaves affiliated to data leaves"
    return Colocation(
        data.filter(together), chosen, data.filter(pc.invert(together)), deletes.filter(pc.invert(beside)), why
    )


def _affiliated(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Array:
    """Which delete leaves belong to a data leaf that is opened, both in the layout of trees."""
    assert state.tree is not None
    targets = data.filter(state.tree.has_tree_layout(data)).column("location").combine_chunks()
    return pc.and_(state.tree.has_tree_layout(deletes), pc.is_in(deletes.column("referenced_file"), targets))


def colocated_entries(state: TableState, data: pa.Table, deletes: pa.Table, projection: EntryProjection) -> DataFrame:
    """The live entries of data leaves, each with its deletion vector from the delete leaves affiliated to the leaf.

    data, deletes: rows of `tree_roots`; every one of `deletes` refers to one of `data`.

    Columns: those of `projection`, and what `with_vector` makes the deletes of.

    Raises, when it runs:
        ValidationError: two DVs for one file, a DV older than its file or of another partition, a DV in a delete leaf
            whose data leaf does not have the file.
        CorruptFileError: a leaf or a bitmap that is none.
    """
    context, reader = state.tree_context, state.reader
    assert context is not None
    assert reader is not None
    task = _Task(projection, state.projection(VECTOR_COLUMNS), context, reader)
    units = local_frame(state.spark, _units(state, data, deletes))
    return units.mapInArrow(partial(_join_leaves, task), schema_of(task.schema))


def with_vector(own: Sql, deletes: pa.Table) -> Sql:
    """The deletes of a data entry: `own`, those from other delete leaves, and the vector from the affiliated one.

    own: of the type of `deletes` in `plan_files`. deletes: the roots of the affiliated leaves.
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
    one = sql.array(vector).cast(DELETES_TYPE)
    second = sql.exists(own, lambda delete: delete["file_format"] == "PUFFIN")
    twice = sql.raise_error(sql.concat(TWO_VECTORS, sql.col("location"))).cast(DELETES_TYPE)
    equality = sql.filter(own, lambda delete: delete["content"] == int(ContentType.EQUALITY_DELETES))
    merged = sql.when(sql.size(own) == 0, one).when(second, twice).otherwise(sql.concat(equality, one))
    return sql.when(sql.col("vector_location").isNull(), own).otherwise(merged)


def _units(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Table:
    """A row a data leaf, as `_UNITS`."""
    tree = state.tree
    assert tree is not None
    masks = {row[MANIFEST]: row for row in tree.vectors.to_pylist()}

    def leaves(roots: pa.Table) -> list[dict[str, Any]]:
        return [{**row, "mask": masks.get(row[MANIFEST])} for row in leaf_units(roots).to_pylist()]

    affiliated: dict[str, list[dict[str, Any]]] = {}
    for leaf, target in zip(leaves(deletes), deletes.column("referenced_file").to_pylist(), strict=True):
        affiliated.setdefault(target, []).append(leaf)
    rows = [{"data": leaf, "deletes": affiliated.get(leaf["location"], [])} for leaf in leaves(data)]
    return pa.Table.from_pylist(rows, schema=_UNITS)


def _join_leaves(task: _Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for unit in batch.to_pylist():
            data = _read(task, unit["data"], task.data)
            vectors = pa.concat_tables([_live(_read(task, one, task.deletes), task, one) for one in unit["deletes"]])
            found = _vectors_of(data, vectors, unit["data"]["location"])
            joined = pa.Table.from_arrays([*data.columns, *found], schema=task.schema)
            live = _live(joined, task, unit["data"])
            yield from (live if task.data.wanted is None else _wanted(live, task.data, task.data.wanted)).to_batches()


def _read(task: _Task, leaf: Mapping[str, Any], projection: EntryProjection) -> pa.Table:
    """Every entry of a leaf."""
    batches = decode_tree_manifest(task.reader.read(leaf["location"]), part_of(dict(leaf)), projection, task.context)
    return pa.Table.from_batches(batches, projection.schema).combine_chunks()


def _live(entries: pa.Table, task: _Task, leaf: Mapping[str, Any]) -> pa.Table:
    """Without DELETED and masked entries; `entries` are all of the leaf's."""
    kept = pc.not_equal(pc.struct_field(entries.column("version_info"), "status"), int(Status.DELETED))
    if leaf["mask"] is not None:
        unmasked = np.ones(len(entries), np.bool_)
        for ordinals in vector_ordinals(leaf["mask"], task.reader):
            unmasked[ordinals.to_numpy()] = False
        kept = pc.and_(kept, pa.chunked_array([pa.array(unmasked)]))
    return entries.filter(kept)


def _wanted(entries: pa.Table, projection: EntryProjection, wanted: EntryFilter) -> pa.Table:
    """The entries that a filter has a use for, as far as quick tests tell; Spark's predicates have the last word."""
    types = {"partition": dict(projection.partition)}

    def columns(source: Source, field_id: int, type_name: str) -> pa.Array | None:
        if types.get(source, dict(projection.stats)).get(field_id) != type_name:
            return None
        path = [str(field_id)] if source == "partition" else [str(field_id), source]
        return as_numbers(pc.struct_field(_one(entries, PARTITION if source == "partition" else CONTENT_STATS), path))

    kept = pa.repeat(True, len(entries))
    by_stats = wanted.stats.passes(columns)
    if by_stats is not None:
        kept = pc.or_(by_stats, pc.less(_one(entries, "record_count"), 0))
    for spec_id, tests in wanted.partitions:
        passed = tests.passes(columns)
        if passed is not None:
            kept = pc.and_(kept, pc.or_(passed, pc.not_equal(_one(entries, "partition_spec_id"), spec_id)))
    return entries.filter(kept)


def _vectors_of(data: pa.Table, vectors: pa.Table, leaf: str) -> Sequence[pa.Array]:
    """The vector of each data entry, as `_VECTOR`; null where it has none."""
    paths, targets = (pc.fill_null(one, "") for one in (_one(data, "location"), _one(vectors, "referenced_file")))
    _require_vectors(vectors)
    problem = f"a deletion vector in a delete manifest affiliated to {leaf}, which does not have the file"
    _refuse(targets, pc.invert(pc.is_in(targets, paths)), problem)
    if pc.count_distinct(targets).as_py() < len(targets):
        counts = pc.value_counts(targets)
        _refuse(counts.field("values"), pc.greater(counts.field("counts"), 1), TWO_VECTORS.strip())
    places = pc.index_in(paths, targets)
    _check(data, vectors, places, paths)
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
    return [column.take(places) for column in columns]


def _require_vectors(vectors: pa.Table) -> None:
    kinds, formats = _one(vectors, "content_type"), _one(vectors, "file_format")
    other = pc.or_(pc.not_equal(kinds, int(ContentType.POSITION_DELETES)), pc.not_equal(formats, "PUFFIN"))
    _refuse(_one(vectors, "location"), other, "an affiliated delete manifest holds a delete file that is no vector")


def _check(data: pa.Table, vectors: pa.Table, places: pa.Array, paths: pa.Array) -> None:
    """ValidationError where a live data entry and its vector contradict each other."""
    info = _one(data, "version_info")
    live = pc.and_(places.is_valid(), pc.not_equal(info.field("status"), int(Status.DELETED)))
    sequence = _one(vectors, "version_info").field("sequence_number").take(places)
    own = info.field("sequence_number")
    for values in (sequence, own):
        _refuse(paths, pc.and_(live, values.is_null()), "no sequence number is known for the file or its vector")
    _refuse(paths, pc.and_(live, pc.less(sequence, own)), "a deletion vector is older than its data file")
    same = pc.equal(_one(vectors, "partition_spec_id").take(places), _one(data, "partition_spec_id"))
    if PARTITION in data.column_names:
        theirs = _one(vectors, PARTITION).take(places)
        for one, other in zip(_one(data, PARTITION).flatten(), theirs.flatten(), strict=True):
            same = pc.and_(same, _same(one, other))
    problem = "a delete file has another partition spec or partition than its data file"
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
        raise ValidationError(f"{problem}: {paths[found[0].as_py()]}")


def _one(table: pa.Table, name: str) -> pa.Array:
    return whole(table.column(name))
