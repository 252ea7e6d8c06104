"""Match deletes in tasks: read a data manifest with its delete manifests, apply masks, and join them in Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import is_live
from sparkmeta.entries.manifest_records import PART_SCHEMA, matching_rows
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.arrays import kept_rows, whole
from sparkmeta.manifests.decoder import CACHED_LEAF, EntryDecoder
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, inlined, unmasked_entries
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.plan.deletes.rules import (
    DATA_WITHOUT_SEQUENCE,
    DELETE_WITHOUT_SEQUENCE,
    FOREIGN_DELETE,
    NOT_A_DV,
    OLDER_DV,
    TWO_DVS,
    UNKNOWN_FILE,
    arrow_partition_key,
    entry_view,
    repeated_paths,
)
from sparkmeta.spec.entry import VERSION_INFO
from sparkmeta.storage.encryption import KEY_METADATA

# The deletion vector of a data entry, flattened because nested and nullable columns are slow to transfer to the JVM.
# Without a deletion vector, the location is null and non-nullable columns are 0.
DV_OF_ENTRY = pa.schema(
    [
        pa.field("dv_location", pa.string()),
        pa.field("dv_file_size", pa.int64(), nullable=False),
        pa.field("dv_offset", pa.int64()),
        pa.field("dv_size", pa.int64()),
        pa.field("dv_records", pa.int64(), nullable=False),
        pa.field("dv_sequence", pa.int64(), nullable=False),
        pa.field("dv_manifest", pa.int32(), nullable=False),
        pa.field("dv_ordinal", pa.int64(), nullable=False),
    ]
)
DV_KEY = pa.field("dv_key_metadata", pa.binary())
"""The key metadata of the deletion vector, if the table is encrypted."""
# Columns that are never null in the output, although the types of entries allow nulls.
_ENTRY_ID = (MANIFEST, ORDINAL)
# The fields of `version_info` that plans need.
_VERSION = tuple(field.arrow for field in VERSION_INFO if field.name in ("status", "sequence_number"))
_MANIFEST_TYPE = pa.struct(
    [*PART_SCHEMA, pa.field("mask", pa.struct(list(DV_SCHEMA))), pa.field(CACHED_LEAF, pa.string())]
)
# A data manifest, or part of one, and its delete manifests.
UNITS = pa.schema([pa.field("data", _MANIFEST_TYPE), pa.field("deletes", pa.list_(_MANIFEST_TYPE))])

# The number of entries of an Avro manifest to join with DVs at a time. Each join builds a hash table of all DVs.
_JOINED_AT_ONCE = 1 << 16
# The number of data leaves whose masks are read together, along with the masks of their delete leaves.
_MASKED_AT_ONCE = 64


@dataclass(frozen=True)
class CoplanTask:
    """The inputs of a task, except for its manifests. Picklable.

    Attributes:
        data: the projection of data entries.
        deletes: the projection of deletes.
        decoder: decodes manifests.
    """

    data: EntryProjection
    deletes: EntryProjection
    decoder: EntryDecoder

    @property
    def schema(self) -> pa.Schema:
        """The schema of the task's output."""
        data = self.data.schema
        info = data.get_field_index("version_info")
        fields = list(data.set(info, data.field(info).with_type(pa.struct(_VERSION))))
        always = [field.with_nullable(False) if field.name in _ENTRY_ID else field for field in fields]
        return pa.schema([*always, *DV_OF_ENTRY, *([DV_KEY] if KEY_METADATA in self.deletes.columns else [])])


def join_units(task: CoplanTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read units of work (rows of `UNITS`) and yield their data entries, each with its DV."""
    held = HeldDvs(task)
    for batch in batches:
        units = batch.to_pylist()
        for start in range(0, len(units), _MASKED_AT_ONCE):
            for unit in _with_masks(units[start : start + _MASKED_AT_ONCE], task):
                yield from _join_function(unit)(task, unit["data"], partial(held.of, unit["deletes"]))


def join_known_dvs(task: CoplanTask, dvs: pa.Table, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read parts of Avro manifests and yield their data entries, each with its DV among `dvs`."""
    for batch in parts:
        for part in batch.to_pylist():
            yield from _join_part(task, part, lambda: dvs)


def _with_masks(units: Sequence[dict[str, Any]], task: CoplanTask) -> Sequence[dict[str, Any]]:
    """Read the bitmaps of the units' masks, and return the units with them."""
    masked = [leaf for unit in units for leaf in (unit["data"], *unit["deletes"]) if leaf["mask"] is not None]
    masks = {mask[MANIFEST]: mask for mask in inlined([leaf["mask"] for leaf in masked], task.decoder.files)}
    for leaf in masked:
        leaf["mask"] = masks[leaf[MANIFEST]]
    return units


def _join_function(unit: Mapping[str, Any]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return the function that joins the data manifest of a unit with its DVs."""
    data, deletes = unit["data"], unit["deletes"]
    if not _is_leaf(data):
        return _join_part
    are_inside = all(each["file_format"] == VECTORS and each["location"] == data["location"] for each in deletes)
    return _join_inside if are_inside else _join_leaf


def _join_inside(task: CoplanTask, leaf: Mapping[str, Any], load: Callable[[], pa.Table]) -> Iterator[pa.RecordBatch]:
    """Join a leaf with the DVs in its entries, which are loaded only if any live entries match."""
    data = _live(task.decoder.table(leaf, task.data), leaf, task.data)
    if len(data):
        dvs = load()
        dv_indices = pc.index_in(_array(data, ORDINAL), _array(dvs, ORDINAL))
        yield from _with_dvs(task, data, dvs, dv_indices).to_batches()


def _join_leaf(task: CoplanTask, leaf: Mapping[str, Any], load: Callable[[], pa.Table]) -> Iterator[pa.RecordBatch]:
    # Each DV must have its file, whether or not the file passes the filter.
    unfiltered = replace(task.data, entry_filter=None)
    data, dvs = task.decoder.table(leaf, unfiltered), load()
    dv_indices = _dv_indices(data, dvs)
    # If every DV matches an entry, no two DVs share a data file, and no data file is unknown.
    if pc.count_distinct(dv_indices).as_py() < len(dvs):
        one_dv_a_file(dvs)
        _refuse_unknown_files(data, dvs)
    live = _live(_with_dvs(task, data, dvs, dv_indices), leaf, unfiltered)
    yield from matching_rows(live, task.data).to_batches()


def _join_part(task: CoplanTask, part: Mapping[str, Any], load: Callable[[], pa.Table]) -> Iterator[pa.RecordBatch]:
    """Join a part with its DVs, which are loaded only if any entries match."""
    pending: list[pa.RecordBatch] = []
    for batch in task.decoder.entries(part, task.data):
        if len(batch):
            pending.append(batch)
        if sum(map(len, pending)) >= _JOINED_AT_ONCE:
            yield from _joined(task, pending, load())
            pending = []
    if pending:
        yield from _joined(task, pending, load())


def _joined(task: CoplanTask, batches: Iterable[pa.RecordBatch], dvs: pa.Table) -> Iterator[pa.RecordBatch]:
    data = pa.Table.from_batches(batches, task.data.schema).combine_chunks()
    yield from _with_dvs(task, data, dvs, _dv_indices(data, dvs)).to_batches()


def _dv_indices(data: pa.Table, dvs: pa.Table) -> pa.Array:
    """Return the index of each data entry's DV; null if the entry has none."""
    return pc.index_in(_array(data, "location"), _array(dvs, "referenced_file"))


def _with_dvs(task: CoplanTask, data: pa.Table, dvs: pa.Table, dv_indices: pa.Array) -> pa.Table:
    _check(data, dvs, dv_indices)
    info = _array(data, "version_info")
    version = pa.StructArray.from_arrays([info.field(field.name) for field in _VERSION], fields=_VERSION)
    columns = [version if name == "version_info" else data.column(name) for name in data.column_names]
    bitmap = _array(dvs, "deletion_vector")
    dv_values = [
        _array(dvs, "location"),
        _array(dvs, "file_size_in_bytes"),
        bitmap.field("offset"),
        bitmap.field("size_in_bytes"),
        _array(dvs, "record_count"),
        _array(dvs, "version_info").field("sequence_number"),
        _array(dvs, MANIFEST),
        _array(dvs, ORDINAL),
    ]
    for field, values in zip(DV_OF_ENTRY, dv_values, strict=True):
        matched = values.take(dv_indices)
        columns.append(matched if field.nullable else pc.fill_null(matched, 0))
    if KEY_METADATA in task.deletes.columns:
        columns.append(_array(dvs, KEY_METADATA).take(dv_indices))
    return pa.Table.from_arrays(columns, schema=task.schema)


class HeldDvs:
    """The live DVs in the delete manifests of a task's current unit. The next unit reuses manifests that both share."""

    def __init__(self, task: CoplanTask) -> None:
        self._task = task
        self._by_manifest: dict[tuple[int, int], pa.Table] = {}
        self._all = task.deletes.schema.empty_table()

    def of(self, manifests: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return the DVs of the manifests.

        Raises:
            ValidationError: a delete is not a DV, or Avro manifests have two DVs for one file.
        """
        parts = {(manifest[MANIFEST], manifest["part"]): manifest for manifest in manifests}
        if [*parts] != [*self._by_manifest]:
            known = {part: dvs for part, dvs in self._by_manifest.items() if part in parts}
            self._by_manifest, self._all = {}, self._all.slice(0, 0)
            for part, manifest in parts.items():
                self._by_manifest[part] = known[part] if part in known else self._decoded(manifest)
            dvs = pa.concat_tables(self._by_manifest.values())
            # For leaves, the join with the data leaf detects two DVs for one file.
            self._all = _refuse_others(dvs) if all(map(_is_leaf, manifests)) else one_dv_a_file(dvs)
        return self._all

    def _decoded(self, manifest: Mapping[str, Any]) -> pa.Table:
        deletes = self._task.deletes
        return _live(self._task.decoder.table(manifest, deletes), manifest, deletes)


def _is_leaf(manifest: Mapping[str, Any]) -> bool:
    """Return whether a manifest is a leaf of a tree, not an Avro manifest."""
    return manifest["file_format"] in ("PARQUET", VECTORS)


def _live(entries: pa.Table, leaf: Mapping[str, Any], projection: EntryProjection) -> pa.Table:
    """Return the entries of a leaf, read for a projection, that are neither DELETED nor masked."""
    mask, some = leaf.get("mask"), leaf["file_format"] == VECTORS or projection.entry_filter is not None
    unmasked = entries if mask is None else unmasked_entries(entries, mask, some=some)
    return kept_rows(unmasked, is_live(unmasked))


# -- Contradictions ---------------------------------------------------------------------------------------------------


def one_dv_a_file(deletes: pa.Table) -> pa.Table:
    """Return the deletes. Raises ValidationError unless all are DVs of different data files."""
    deletes = _refuse_others(deletes)
    repeated = repeated_paths(_array(deletes, "referenced_file"))
    TWO_DVS.refuse(repeated.is_valid(), lambda row: (repeated[row],))
    return deletes


def _refuse_others(deletes: pa.Table) -> pa.Table:
    broken = evaluate.values(deletes, NOT_A_DV.broken({}, entry_view()))
    NOT_A_DV.refuse(broken, lambda row: (deletes.column("location")[row],))
    return deletes.combine_chunks()


def _refuse_unknown_files(data: pa.Table, dvs: pa.Table) -> None:
    targets, paths = _array(dvs, "referenced_file"), _array(data, "location")
    rows = pa.table({"location": paths.take(pc.index_in(targets, paths))})
    broken = evaluate.values(rows, UNKNOWN_FILE.broken({"location": sql.col("location")}, {}))
    UNKNOWN_FILE.refuse(broken, lambda row: (targets[row], dvs.column("location")[row]))


def _check(data: pa.Table, dvs: pa.Table, dv_indices: pa.Array) -> None:
    """Raise ValidationError if a live data entry and its DV contradict each other."""
    if dv_indices.null_count == len(dv_indices):
        return
    matched = pc.and_(dv_indices.is_valid(), whole(is_live(data)))
    dv_of_entry = {name: values.take(dv_indices) for name, values in _compared(dvs).items()}
    sides = {"data": _compared(data), "dv": dv_of_entry | {"is_dv": matched}}
    pairs = pa.table({f"{side}_{name}": values for side, columns in sides.items() for name, values in columns.items()})
    data_sql, dv_sql = ({name: sql.col(f"{side}_{name}") for name in columns} for side, columns in sides.items())

    def locations(row: int) -> tuple[Any, ...]:
        return data.column("location")[row], dvs.column("location")[dv_indices[row].as_py()]

    for rule in (DATA_WITHOUT_SEQUENCE, DELETE_WITHOUT_SEQUENCE, OLDER_DV, FOREIGN_DELETE):
        rule.refuse(pc.and_kleene(matched, evaluate.values(pairs, rule.broken(data_sql, dv_sql))), locations)


def _compared(entries: pa.Table) -> dict[str, pa.Array]:
    """Return the columns of data files or DVs that rules compare."""
    sequence = pc.struct_field(_array(entries, "version_info"), "sequence_number")
    return {"sequence_number": sequence, "partition_key": arrow_partition_key(entries)}


def _array(table: pa.Table, name: str) -> pa.Array:
    return whole(table.column(name))
