"""Move data files out of their leaves when their deletion vectors change.

In the layout of the Iceberg project, the entry of a data file holds its deletion vector. A commit that changes the
vector masks the entry in its leaf, and writes the entry with the new vector to the root. Many such entries are written
to new leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.arrow_types import spark_schema
from sparkmeta.commit.compaction_tasks import physical_entries
from sparkmeta.commit.next_root import restamped, union_of_masks
from sparkmeta.entries.manifest_records import PART_SCHEMA, whole_manifests
from sparkmeta.entries.projection import MANIFEST, ORDINAL
from sparkmeta.entries.relation import collected
from sparkmeta.errors import ValidationError
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import from_stream, indices_where, to_stream, whole
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.manifests.sorted_manifests import combined, task_rows
from sparkmeta.manifests.v4.colocated import VECTOR, VECTOR_TYPE
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests
from sparkmeta.manifests.v4.write import LEAF_SCHEMA, encode_leaf, leaf_count, pieces, put_behind, written_rows
from sparkmeta.session import local_frame
from sparkmeta.snapshot.search import rows_by_manifest
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.next_root import TreeChange
    from sparkmeta.commit.removed_files import Removal
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.manifests.v4.layout import TreeTypes
    from sparkmeta.manifests.v4.write import LeafFormat
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.locations import Locations
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


# -- Read and write the entries that move -----------------------------------------------------------------------------


# A leaf, and its entries that move: an Arrow stream of their ordinals and new deletion vectors. whole: whether the
# other entries move as well.
UNIT_SCHEMA = pa.schema(
    [
        *PART_SCHEMA,
        pa.field("record_count", pa.int64()),
        pa.field("entries", pa.binary()),
        pa.field("whole", pa.bool_()),
    ]
)

_ROWS = pa.schema([pa.field("rows", pa.binary())])
_CHOSEN = pa.schema([pa.field(ORDINAL, pa.int64()), pa.field(VECTOR, VECTOR_TYPE)])


@dataclass(frozen=True)
class Moving:
    """Reads entries that move, and writes them with their new vectors. Picklable.

    Attributes:
        reader: opens leaves.
        types: the types of the table's V4 manifests.
        locations: resolves the locations in the table's manifests.
        form: the format of new leaves.
    """

    reader: ExecutorReader | Files
    types: TreeTypes
    locations: Locations
    form: LeafFormat

    def read(self, units: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of units, rows of `UNIT_SCHEMA`, as Arrow streams."""
        for unit in task_rows(units):
            yield pa.RecordBatch.from_pydict({"rows": [to_stream(self._entries(unit))]}, schema=_ROWS)

    def write(self, units: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the entries of units to leaves, and yield the root's entries for the leaves, rows of `LEAF_SCHEMA`."""
        leaves = ((None, encode_leaf(piece, self.form)) for piece in self._pieces(units))
        for _, row in put_behind(leaves, self.form.writer):
            yield pa.RecordBatch.from_pydict({"leaf": [to_stream(row)]}, schema=LEAF_SCHEMA)

    def _pieces(self, units: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the entries of each leaf to write, without mixing specs, or whole leaves with partial ones."""
        open_pieces: dict[tuple[int, bool], list[pa.Table]] = {}
        sizes: dict[tuple[int, bool], float] = {}
        for unit in task_rows(units):
            entries, key = self._entries(unit), (unit["partition_spec_id"], unit["whole"])
            open_pieces.setdefault(key, []).append(entries)
            size = unit["file_size_in_bytes"] / max(unit["record_count"], 1)
            sizes[key] = sizes.get(key, 0.0) + size * len(entries)
            if sizes[key] >= self.form.target_bytes:
                yield from self._cut(open_pieces.pop(key), sizes.pop(key))
        for key, tables in open_pieces.items():
            yield from self._cut(tables, sizes[key])

    def _cut(self, tables: list[pa.Table], size: float) -> Iterator[pa.Table]:
        table = combined(tables)
        return pieces(table, leaf_count(len(table), int(size), self.form.target_bytes))

    def _entries(self, unit: Mapping[str, Any]) -> pa.Table:
        table = combined(physical_entries(self.reader, unit, self.types, self.locations, colocated=True))
        chosen = from_stream(unit["entries"])
        ordinals, vectors = whole(chosen.column(ORDINAL)), whole(chosen.column(VECTOR))
        index = table.column_names.index(VECTOR)
        if unit["whole"]:
            rows = pc.index_in(pa.array(np.arange(len(table)), pa.int64()), ordinals)
            return table.set_column(index, table.schema.field(index), self._beside(table, vectors.take(rows), unit))
        moved = restamped(table.take(ordinals), status=Status.EXISTING)
        return moved.set_column(index, moved.schema.field(index), vectors)

    @staticmethod
    def _beside(table: pa.Table, vectors: pa.StructArray, unit: Mapping[str, Any]) -> pa.Array:
        """Return the new vector of each entry, or its current one if it gets no new vector."""
        before = whole(table.column(VECTOR))
        for row in indices_where(pc.and_(before.is_valid(), vectors.is_valid())).to_pylist():
            path = table.column("location")[row].as_py()
            raise ValidationError(f"{unit['location']}: {path} gets two deletion vectors in one commit")
        return pc.if_else(vectors.is_valid(), vectors, before)


def moved_rows(state: TableState, positions: Mapping[str, PositionBitmap], form: LeafFormat) -> pa.Table:
    """Return data files in leaves as rows of `tree_schema`, without their deletion vectors.

    Args:
        state: the table.
        positions: leaf location -> ordinals of the files.
        form: the format of the table's leaves.
    """
    if not positions:
        return form.schema.empty_table()
    manifests = state.data_manifests
    chosen = manifests.filter(pc.is_in(manifests.column("location"), pa.array(sorted(positions), pa.string())))
    leaf_ids = zip(*(chosen.column(name).to_pylist() for name in (MANIFEST, "location")), strict=True)
    entries = {manifest: to_stream(_ordinals(positions[location])) for manifest, location in leaf_ids}
    units = _units(leaf_units(state, chosen), entries)
    rows = collected(mapped_files(units, lambda files: _moving(state, files, form).read, _ROWS, state))
    tables = [from_stream(stream) for stream in rows.column("rows").to_pylist()]
    return pa.concat_tables([form.schema.empty_table(), *(table.drop_columns([VECTOR]) for table in tables)])


def _moving(state: TableState, files: Files | None, form: LeafFormat) -> Moving:
    return Moving(files or task_reader(state), state.types.tree_types, state.types.locations, form)


def _ordinals(bitmap: PositionBitmap) -> pa.Table:
    ordinals = pa.array(np.concatenate([np.empty(0, np.int64), *bitmap.positions()]).astype(np.int64))
    return pa.Table.from_arrays([ordinals, pa.nulls(len(ordinals), VECTOR_TYPE)], schema=_CHOSEN)


def _units(parts: pa.Table, entries: Mapping[int, bytes], *, whole: bool = False) -> pa.Table:
    """Return entries of leaves as units of work.

    Args:
        parts: the leaves, as the first columns of `UNIT_SCHEMA`.
        entries: the entries by the small id of their leaf.
        whole: whether the other entries of the leaves move as well.
    """
    streams = [entries[manifest] for manifest in parts.column(MANIFEST).to_pylist()]
    columns = {"entries": pa.array(streams, pa.binary()), "whole": pa.repeat(whole, len(parts))}
    for name, values in columns.items():
        parts = parts.append_column(UNIT_SCHEMA.field(name), values)
    return parts


def leaf_units(state: TableState, manifests: pa.Table) -> pa.Table:
    """Return leaves, rows of `state.manifests`, as the first columns of `UNIT_SCHEMA`.

    `file_format` is null for leaves in the root's layout.
    """
    assert state.tree is not None
    return _leaf_units(manifests, state.tree.has_old_layout(manifests))


def _leaf_units(manifests: pa.Table, is_old: pa.Array) -> pa.Table:
    parts = whole_manifests(manifests)
    formats = pc.if_else(is_old, whole(manifests.column("file_format")), pa.scalar(None, pa.string()))
    rows = pc.index_in(whole(parts.column(MANIFEST)), whole(manifests.column(MANIFEST)).cast(pa.int32()))
    index = parts.column_names.index("file_format")
    parts = parts.set_column(index, parts.schema.field(index), whole(formats).take(rows))
    return parts.append_column("record_count", whole(manifests.column("record_count")).take(rows))


# -- Write many files with new deletion vectors to leaves -------------------------------------------------------------


def write_moved(state: TableState, placed: Relation, form: LeafFormat) -> pa.Table:
    """Write data files with new deletion vectors to leaves, and return the root's entries for the leaves.

    A few files are written on the driver.

    Args:
        state: the table.
        placed: the positions of the files in leaves, `manifest` and `ordinal`, with their new vector in `vector`.
        form: the format of the new leaves.
    """
    return _written(state, placed, leaf_units(state, state.data_manifests), form)


def write_beside(state: TableState, placed: Relation, leaves: pa.Table, form: LeafFormat) -> pa.Table:
    """Rewrite new leaves with deletion vectors in their entries, and return the root's entries for the results.

    A few files are written on the driver.

    Args:
        state: the table.
        placed: the positions of data files, `manifest` and `ordinal`, with their vector in `vector`. `manifest` is
            an index in `leaves`.
        leaves: the root's entries for the new leaves. Leaves without a position in `placed` are not rewritten.
        form: the format of the leaves.

    Raises:
        ValidationError: a data file has a vector already.
    """
    manifests = leaf_manifests(leaves, pa.array(range(len(leaves)), pa.int32()))
    parts = _leaf_units(manifests, pa.repeat(False, len(leaves)))
    return _written(state, placed, parts, form, whole=True)


def _written(
    state: TableState, placed: Relation, parts: pa.Table, form: LeafFormat, *, whole: bool = False
) -> pa.Table:
    """Write entries of leaves; see `write_moved` and `_units`."""
    units: Relation
    if isinstance(placed, pa.Table):
        by_manifest = {manifest: to_stream(_chosen(rows)) for manifest, rows in rows_by_manifest(placed).items()}
        chosen = parts.filter(pc.is_in(parts.column(MANIFEST), pa.array([*by_manifest], pa.int32())))
        units = _units(chosen, by_manifest, whole=whole)
    else:
        units = _units_of(state, placed, parts, whole=whole)
    rows = mapped_files(units, lambda files: _moving(state, files, form).write, LEAF_SCHEMA, state, runs=True)
    return written_rows(collected(rows), form)


def _chosen(rows: pa.Table) -> pa.Table:
    return rows.select(_CHOSEN.names).cast(_CHOSEN).combine_chunks()


def _units_of(state: TableState, placed: DataFrame, parts: pa.Table, *, whole: bool) -> DataFrame:
    """Return the positions of many files as units of work; see `_units`."""
    from pyspark.sql import functions as F

    kind = pa.schema([UNIT_SCHEMA.field(name) for name in (MANIFEST, "entries")])
    grouped = placed.select(MANIFEST, ORDINAL, VECTOR).groupBy(MANIFEST).applyInArrow(_as_unit, spark_schema(kind))
    leaves = F.broadcast(local_frame(state.spark, parts))
    return leaves.join(grouped, MANIFEST).withColumn("whole", F.lit(whole)).select(*UNIT_SCHEMA.names)


def _as_unit(rows: pa.Table) -> pa.Table:
    """Return the files of one leaf as a unit without the leaf's columns and `whole`."""
    ordered = rows.sort_by(ORDINAL)
    stream = to_stream(_chosen(ordered))
    manifest = rows.column(MANIFEST)[0].as_py()
    return pa.table({MANIFEST: pa.array([manifest], pa.int32()), "entries": pa.array([stream], pa.binary())})


VECTOR_PATH = "vector_path"
"""The path of the data file of a deletion vector, beside the column `vector`."""


def vector_columns(status: Status, snapshot_id: Sql) -> list[Aliased]:
    """Return expressions of `vector` and `VECTOR_PATH` over entries of deletion vectors.

    Args:
        status: the status of the vectors.
        snapshot_id: the snapshot that has added them.
    """
    fields = {
        "status": sql.lit(int(status)),
        "snapshot_id": snapshot_id,
        "location": sql.col("location"),
        "offset": sql.col("deletion_vector.offset"),
        "size_in_bytes": sql.col("deletion_vector.size_in_bytes"),
        "record_count": sql.col("record_count"),
    }
    vector = sql.struct(*(value.alias(name) for name, value in fields.items()))
    return [sql.col("referenced_file").alias(VECTOR_PATH), vector.alias(VECTOR)]


# -- The moves of a commit --------------------------------------------------------------------------------------------


def with_moves(change: TreeChange, state: TableState, removal: Removal, form: LeafFormat) -> TreeChange:
    """Return a change with the data files that leave their leaves because their deletion vectors change.

    Args:
        change: the change of a tree in the layout of the Iceberg project.
        state: the table.
        removal: the removed files and vectors, and the files that get vectors.
        form: the format of the table's leaves.
    """
    replaced = _without(union_of_masks(removal.vectors, removal.gaining), removal.masks)
    rows = moved_rows(state, _without(replaced, removal.rewritten), form)
    return replace(change, masks=union_of_masks(removal.masks, replaced), replaced=replaced, moved_out=rows)


def _without(masks: Mapping[str, PositionBitmap], others: Mapping[str, PositionBitmap]) -> dict[str, PositionBitmap]:
    nothing = PositionBitmap({})
    differences = {leaf: bitmap.difference(others.get(leaf, nothing)) for leaf, bitmap in masks.items()}
    return {leaf: bitmap for leaf, bitmap in differences.items() if bitmap.cardinality}
