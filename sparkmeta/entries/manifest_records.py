"""Turn records of v1 to v3 manifests into content entries. Without Spark: tasks import this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, PARTITION, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import kept_rows, whole, with_plain_types
from sparkmeta.expr.bounds import (
    Source,
    as_numbers,
    bound_arrow_type,
    decode_bounds,
    encode_bounds,
    known_bounds,
    ordered_bounds,
    promoted_days,
)
from sparkmeta.spec.entry import (
    BOUNDS,
    CONTENT_ENTRY,
    DELETION_VECTOR,
    FILE_FORMATS,
    METRICS_MAP_IDS,
    METRICS_MAPS,
    STATS_SOURCES,
    V3_ENTRY_PATHS,
    VERSION_INFO,
    ContentType,
    Status,
)

# -- Metrics maps and `content_stats` ---------------------------------------------------------------------------------


# Metrics map -> the corresponding child of `content_stats`. V4 has no column_sizes.
MAP_CHILDREN = {METRICS_MAPS[map_id][0]: child for child, map_id in STATS_SOURCES.items()}


VALUE_SIZES = "avg_value_sizes"
"""A column of new files beside the metrics maps: field id -> average size in memory of the column's values in bytes."""

VALUE_SIZES_TYPE = pa.map_(pa.int32(), pa.field("value", pa.int32(), nullable=False))


def map_type(name: str) -> pa.MapType:
    """Return the Arrow type of a metrics map."""
    return pa.map_(pa.int32(), pa.field("value", METRICS_MAPS[METRICS_MAP_IDS[name]][1], nullable=False))


def has_metrics_maps(projection: EntryProjection) -> bool:
    """Return whether a projection names metrics maps."""
    return not METRICS_MAP_IDS.keys().isdisjoint(projection.columns)


def stats_for_maps(projection: EntryProjection, column_types: Mapping[int, str]) -> EntryProjection:
    """Return a projection with the stats of all columns instead of its metrics maps."""
    stats = {**column_types, **dict(projection.stats)}
    columns = tuple(name for name in projection.columns if name not in METRICS_MAP_IDS)
    return replace(projection, columns=columns, stats=tuple(sorted(stats.items())), entry_filter=None)


def with_metrics_maps(
    projection: EntryProjection, columns: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Convert batches of entries with stats of `columns` to batches of `projection.schema`, with its metrics maps."""
    for raw in batches:
        batch = with_plain_types(raw)
        stats = batch.column(CONTENT_STATS)
        by_id = {int(field.name): values for field, values in zip(stats.type, stats.flatten(), strict=True)}
        mapped = {field_id: by_id[field_id] for field_id in sorted(columns)}
        arrays = []
        for field in projection.schema:
            if field.name in METRICS_MAP_IDS:
                arrays.append(metrics_map(field.name, mapped, len(batch)))
            elif field.name == CONTENT_STATS:
                structs = [by_id[field_id] for field_id, _ in projection.stats]
                arrays.append(pa.StructArray.from_arrays(structs, fields=list(field.type)))
            else:
                arrays.append(batch.column(field.name))
        yield pa.RecordBatch.from_arrays(arrays, schema=projection.schema)


def metrics_map(name: str, stats: Mapping[int, pa.StructArray], rows: int) -> pa.Array:
    """Return the map of one metric over all columns; null if a file has no value of it."""
    child, kind = MAP_CHILDREN.get(name), map_type(name)
    if child is None or not stats:
        return pa.nulls(rows, kind)
    columns = {field_id: pc.struct_field(values, child) for field_id, values in stats.items()}
    if kind.item_type == pa.binary():
        columns = {field_id: encode_bounds(values) for field_id, values in columns.items()}
    present = np.stack([values.is_valid().to_numpy(zero_copy_only=False) for values in columns.values()], axis=1)
    ids = np.fromiter(columns, np.int32)
    # From values by column to values by row.
    order = np.arange(len(ids) * rows).reshape(len(ids), rows).T[present]
    items = pa.concat_arrays(list(columns.values())).take(pa.array(order))
    keys = np.broadcast_to(ids, (rows, len(ids)))[present]
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    maps = pa.MapArray.from_arrays(pa.array(offsets), pa.array(keys, pa.int32()), items)
    is_empty = ~present.any(axis=1)
    return _masked(maps.cast(kind), np.asarray(is_empty))


def _masked(maps: pa.MapArray, is_empty: np.ndarray[Any, Any]) -> pa.Array:
    return pc.if_else(pa.array(~is_empty), maps, pa.scalar(None, maps.type)) if is_empty.any() else maps


def stats_of_maps(
    maps: Mapping[str, pa.Array], types: Mapping[int, str], rows: int, location: str, *, lenient: bool = False
) -> dict[int, dict[str, pa.Array]]:
    """Return metrics maps as typed stats: column id -> child of `content_stats` -> values.

    Columns without any metrics are left out.

    Args:
        maps: metrics maps by name.
        types: the ids of the columns to return, and their Iceberg types.
        location: the location of the metrics, for errors.
        lenient: whether a bound that is not a value of its column's type is null.

    Raises:
        CorruptFileError: a bound is not a value of its column's type, unless `lenient`.
    """
    stats: dict[int, dict[str, pa.Array]] = {}
    for name, values in maps.items():
        if (child := MAP_CHILDREN.get(name)) is None:
            continue
        is_bound = child in BOUNDS
        for field_id, raw in column_metric(values, types, rows):
            metric = raw
            if is_bound:
                metric = _decoded(raw, types[field_id], f"{location}: {name}[{field_id}]", lenient=lenient)
            stats.setdefault(field_id, {})[child] = metric
    return stats


def derived_stats(metrics: Mapping[str, pa.Array], type_name: str, sizes: pa.Array | None) -> dict[str, pa.Array]:
    """Return the children of `content_stats` that metrics maps lack.

    Bounds of types that writers never truncate are tight.

    Args:
        metrics: the metrics of a column.
        type_name: its Iceberg type name.
        sizes: the average sizes of its values in memory; None if they are unknown.
    """
    derived = {}
    if all(bound in metrics for bound in BOUNDS) and type_name.startswith(_NEVER_TRUNCATED):
        derived["tight_bounds"] = true_where(pc.and_(*(metrics[bound].is_valid() for bound in BOUNDS)))
    if sizes is not None and type_name in _VARIABLE_WIDTH:
        derived["avg_value_size_in_bytes"] = pc.if_else(pc.greater_equal(sizes, 0), sizes, None)
    return derived


def column_metric(maps: pa.MapArray, types: Mapping[int, str], rows: int) -> Iterator[tuple[int, pa.Array]]:
    """Yield the values of a metrics map for each column that has any."""
    if maps.null_count == len(maps):
        return
    keys, items, row_of_item = _flat(maps)
    for field_id in np.unique(keys).tolist():
        if field_id in types:
            items_of_field = np.flatnonzero(keys == field_id)
            item_of_row = np.full(rows, -1, np.int64)
            item_of_row[row_of_item[items_of_field]] = items_of_field
            yield field_id, items.take(pa.array(item_of_row, mask=item_of_row < 0))


_VARIABLE_WIDTH = ("string", "binary")
# Types whose bounds no writer changes. Bounds of floats may be zeros of the other sign.
_NEVER_TRUNCATED = ("boolean", "int", "long", "date", "time", "decimal")


def true_where(mask: pa.Array) -> pa.Array:
    """Return true where the mask is true, else null."""
    return pc.if_else(mask, pa.scalar(True), pa.scalar(None, pa.bool_()))


def _flat(maps: pa.MapArray) -> tuple[np.ndarray[Any, Any], pa.Array, np.ndarray[Any, Any]]:
    """Return the keys and items of a map array, and the row of each."""
    offsets = maps.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    sizes = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    if sizes.sum() != end - start:
        return _flat(maps.take(pa.array(range(len(maps)))))
    keys = maps.keys.slice(start, end - start).to_numpy(zero_copy_only=False)
    return keys, maps.items.slice(start, end - start), np.repeat(np.arange(len(maps)), sizes)


def _decoded(raw: pa.Array, type_name: str, source: str, *, lenient: bool) -> pa.Array:
    try:
        decode = known_bounds if lenient else decode_bounds
        return decode(raw.cast(pa.binary()), type_name).cast(bound_arrow_type(type_name))
    except ValueError as error:
        value = next((scalar.as_py() for scalar in raw if scalar.is_valid), None)
        raise CorruptFileError(source, "value", value, str(error)) from error


# -- Inheritance from the manifest ------------------------------------------------------------------------------------
# The table spec calls it Sequence Number Inheritance and First Row ID Inheritance.
# Inheritance precedes any filter, since first row ids depend on all preceding physical rows.


@dataclass(frozen=True)
class ManifestContext:
    """The values of a manifest's row in the manifest list that entries inherit; None for no value.

    A manifest that is not committed yet has no sequence number.
    """

    snapshot_id: int | None
    sequence_number: int | None
    first_row_id: int | None


def inherited_snapshot_ids(snapshot_id: pa.Array, context: ManifestContext) -> pa.Array:
    """Replace null snapshot ids with the manifest's added snapshot id, for entries of any status."""
    if context.snapshot_id is None:
        return snapshot_id
    return pc.fill_null(snapshot_id, pa.scalar(context.snapshot_id, pa.int64()))


def inherited_sequence_numbers(sequence_number: pa.Array, status: pa.Array, context: ManifestContext) -> pa.Array:
    """Replace null sequence numbers with the manifest's, for ADDED entries and in manifests of sequence number 0 (v1).

    Other nulls, which come from older writers, stay unknown.
    """
    if context.sequence_number is None:
        return sequence_number
    inherited = pa.scalar(context.sequence_number, pa.int64())
    if context.sequence_number == 0:
        return pc.fill_null(sequence_number, inherited)
    is_added = pc.equal(status, int(Status.ADDED))
    return pc.coalesce(sequence_number, pc.if_else(is_added, inherited, pa.scalar(None, pa.int64())))


def with_inherited_version(info: pa.StructArray, context: ManifestContext) -> pa.StructArray:
    """Return `version_info` with inheritance applied."""
    fields = dict(zip(info.type.names, info.flatten(), strict=True))
    fields["snapshot_id"] = inherited_snapshot_ids(fields["snapshot_id"], context)
    for name in ("sequence_number", "file_sequence_number"):
        fields[name] = inherited_sequence_numbers(fields[name], fields["status"], context)
    return pa.StructArray.from_arrays([*fields.values()], fields=list(info.type))


class RowIdCounter:
    """A counter that assigns first row ids to the entries of one manifest, in physical order.

    The counter starts at the manifest's first row id. Every entry that is not DELETED and has no first row id gets the
    counter, which then advances by its record count. If the manifest has no first row id, no entry has one, unless the
    manifest is not committed yet.
    """

    def __init__(self, first_row_id: int | None, *, is_committed: bool = True) -> None:
        self._next = first_row_id
        self._is_committed = is_committed

    def assign(self, first_row_id: pa.Array, status: pa.Array, record_count: pa.Array) -> pa.Array:
        """Return the first row ids of the next entries (int64)."""
        if self._next is None:
            return pa.nulls(len(status), pa.int64()) if self._is_committed else first_row_id
        assigned = first_row_id.is_null().to_numpy(False) & (status.to_numpy(False) != Status.DELETED)
        counts = np.where(assigned, pc.fill_null(record_count, 0).to_numpy(False), 0)
        starts = self._next + np.cumsum(counts) - counts
        self._next += int(counts.sum())
        return pc.if_else(pa.array(assigned), pa.array(starts, pa.int64()), first_row_id)


# -- Parts of manifests -----------------------------------------------------------------------------------------------


PART_SCHEMA = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("location", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("partition_spec_id", pa.int32()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        pa.field("part", pa.int32()),
        pa.field("parts", pa.int32()),
        pa.field("file_size_in_bytes", pa.int64()),
        pa.field("key_metadata", pa.binary()),
    ]
)


@dataclass(frozen=True)
class ManifestPart:
    """A task's share of a manifest, part `part` of `parts`, and the values that its entries inherit."""

    manifest: int
    location: str
    spec_id: int
    context: ManifestContext
    part: int = 0
    parts: int = 1


def part_of(row: Mapping[str, Any]) -> ManifestPart:
    """Return the part that a row of `PART_SCHEMA` describes."""
    context = ManifestContext(row["snapshot_id"], row["sequence_number"], row["first_row_id"])
    return ManifestPart(row[MANIFEST], row["location"], row["partition_spec_id"], context, row["part"], row["parts"])


def whole_manifests(manifests: pa.Table) -> pa.Table:
    """Return manifests, rows of `TableState.manifests`, as rows of `PART_SCHEMA`, one per manifest."""
    rows = np.arange(len(manifests))
    return _parts(manifests, rows, np.zeros_like(rows), np.ones_like(rows))


def manifest_parts(manifests: pa.Table, projection: EntryProjection, split_bytes: int | None) -> pa.Table:
    """Split manifests, rows of `TableState.manifests`, into parts for tasks: rows of `PART_SCHEMA`.

    An Avro manifest longer than `split_bytes` is split into parts that decode different blocks. It is not split if its
    first row ids are read, since they are counted over the whole manifest. Rows are ordered so that any run of rows
    contains large and small manifests, since Spark assigns runs of rows to tasks.
    """
    sizes = manifests.column("file_size_in_bytes").to_numpy()
    counts = np.ones(len(manifests), np.int64)
    if split_bytes:
        splits = pc.equal(manifests.column("file_format"), "AVRO")
        if "first_row_id" in projection.columns:
            splits = pc.and_(splits, manifests.column("first_row_id").is_null())
        counts = np.where(splits.to_numpy(), np.maximum(1, -(-sizes // split_bytes)), 1)
    order = np.argsort(-sizes, kind="stable")
    rows = np.repeat(order, counts[order])
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts[order]) - counts[order], counts[order])
    scattered = _scattered(len(rows))
    return _parts(manifests, rows[scattered], numbers[scattered], counts)


def part_bytes(split_bytes: int | None) -> int:
    """Return the maximum bytes of a part; 0 and None mean that manifests are not split."""
    return split_bytes or sys.maxsize


def _parts(manifests: pa.Table, rows: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> pa.Table:
    """Return parts of manifests as rows of `PART_SCHEMA`.

    Args:
        manifests: the manifests.
        rows: the index of the manifest of each part.
        numbers: the number of each part within its manifest.
        counts: the number of parts of each manifest.
    """
    version, indices = manifests.column("version_info"), pa.array(rows)
    columns: dict[str, Any] = {
        **{name: pc.struct_field(version, name).take(indices) for name in ("snapshot_id", "sequence_number")},
        "part": pa.array(numbers, pa.int32()),
        "parts": pa.array(counts[rows], pa.int32()),
    }
    arrays = [columns[name] if name in columns else manifests.column(name).take(indices) for name in PART_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=PART_SCHEMA)


def _scattered(size: int) -> list[int]:
    """Return 0..size-1 in bit-reversed order, so that every run samples the whole range evenly."""
    width = max(1, (size - 1).bit_length())
    reversed_bits = (int(format(index, f"0{width}b")[::-1], 2) for index in range(1 << width))
    return [index for index in reversed_bits if index < size]


# -- Build content entries from raw records ---------------------------------------------------------------------------
# The reader of a format provides `RawRecords`, columns by field id; `EntryBuilder` builds batches from them.


_IDS_BY_COLUMN: dict[str, tuple[int, ...]] = {}
for _id, _path in V3_ENTRY_PATHS.items():
    _IDS_BY_COLUMN[_path[0]] = (*_IDS_BY_COLUMN.get(_path[0], ()), _id)

_COLUMN_TYPES = {field.name: field.type for field in CONTENT_ENTRY}


class RawRecords(Protocol):
    """Adjacent records of one manifest in physical order, by field id.

    Methods return arrays of `len()` values, nulls if the file has no such field. They raise CorruptFileError for values
    that don't fit the type.
    """

    def __len__(self) -> int: ...

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        """Return a field of the entry or of its data_file."""

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        """Return a field of the partition tuple, with the `bound_arrow_type` of the Iceberg type."""

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        """Return a whole metrics map."""

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        """Return the values of one key of a metrics map."""

    def take(self, indices: np.ndarray[Any, Any]) -> RawRecords:
        """Return the records at the given indices."""


def projected_fields(projection: EntryProjection) -> frozenset[int]:
    """Return the ids of fields of the entry and data_file that a projection needs."""
    ids = {0, *(METRICS_MAP_IDS[name] for name in projection.columns if name in METRICS_MAP_IDS)}
    for column in projection.columns:
        ids.update(_IDS_BY_COLUMN.get(column, ()))
    if "first_row_id" in projection.columns or projection.entry_filter is not None:
        ids.add(103)
    if projection.stats:
        ids.update(STATS_SOURCES.values())
    return frozenset(ids)


def field_name(field_id: int) -> str:
    """Return a field's name for an error message."""
    return METRICS_MAPS[field_id][0] if field_id in METRICS_MAPS else ".".join(V3_ENTRY_PATHS[field_id])


def field_type(field_id: int) -> pa.DataType:
    """Return the Arrow type in which `EntryBuilder` reads a field that is not a metrics map."""
    column, *child = V3_ENTRY_PATHS[field_id]
    kind = _COLUMN_TYPES[column]
    return kind.field(child[0]).type if child else kind


def typed_values(raw: pa.Array, type_name: str, location: str, field: str) -> pa.Array:
    """Decode single-value serialized binaries (table spec, appendix D).

    Raises:
        CorruptFileError: a malformed value.
    """
    try:
        return decode_bounds(raw, type_name)
    except ValueError as error:
        value = next((scalar.as_py() for scalar in raw if scalar.is_valid), None)
        raise CorruptFileError(location, field, value, str(error)) from error


def promoted_values(values: pa.Array, type_name: str, location: str, field: str) -> pa.Array:
    """Return partition values as the `bound_arrow_type` of a type that they may have been promoted to.

    Raises:
        CorruptFileError: a value does not fit the type, or values of the array's type are not promoted to it.
    """
    kind = bound_arrow_type(type_name)
    try:
        return promoted_days(values, type_name).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptFileError(location, field, str(values.type), f"not {kind}: {error}"[:200]) from error


class EntryBuilder:
    """A builder of batches of content entries from a manifest's records, which must come in physical order."""

    def __init__(self, part: ManifestPart, projection: EntryProjection) -> None:
        self.part = part
        self.projection = projection
        context = part.context
        self.row_ids = RowIdCounter(context.first_row_id, is_committed=context.sequence_number is not None)

    def batch(self, ordinals: pa.Array, records: RawRecords) -> pa.RecordBatch:
        """Return the records that pass the projection's filter as a batch of `projection.schema`.

        Args:
            ordinals: the records' ordinals in the manifest.

        Raises:
            CorruptFileError: an unknown status, content or format, or a missing required value.
        """
        row_ids = self._first_row_ids(records) if "first_row_id" in self.projection.columns else None
        if (indices := self._matching_indices(records)) is not None:
            records, ordinals = records.take(indices), ordinals.take(pa.array(indices))
            row_ids = row_ids.take(pa.array(indices)) if row_ids is not None else None
        columns = [
            row_ids if name == "first_row_id" else self._column(name, records) for name in self.projection.columns
        ]
        if self.projection.partition:
            columns.append(self._partition(records))
        if self.projection.stats:
            columns.append(self._stats(records))
        columns += [pa.repeat(pa.scalar(self.part.manifest, pa.int32()), len(records)), ordinals]
        return pa.RecordBatch.from_arrays(columns, schema=self.projection.schema)

    def _column(self, name: str, records: RawRecords) -> pa.Array:
        if name in _BUILDERS:
            return _BUILDERS[name](self, records)
        kind = self.projection.schema.field(name).type
        if name in METRICS_MAP_IDS:
            return records.metrics_map(METRICS_MAP_IDS[name], kind)
        return records.values(_IDS_BY_COLUMN[name][0], kind)

    def version_info(self, records: RawRecords) -> pa.Array:
        status, context = self._status(records), self.part.context
        children = [
            status,
            inherited_snapshot_ids(records.values(1, pa.int64()), context),
            inherited_sequence_numbers(records.values(3, pa.int64()), status, context),
            inherited_sequence_numbers(records.values(4, pa.int64()), status, context),
        ]
        return pa.StructArray.from_arrays(children, fields=[field.arrow for field in VERSION_INFO])

    def content_type(self, records: RawRecords) -> pa.Array:
        content = pc.fill_null(records.values(134, pa.int32()), int(ContentType.DATA))
        return self._checked(content, "content", (0, 1, 2))

    def file_format(self, records: RawRecords) -> pa.Array:
        return self._checked(pc.utf8_upper(records.values(101, pa.string())), "file_format", FILE_FORMATS)

    def location(self, records: RawRecords) -> pa.Array:
        return self._required(100, pa.string(), records)

    def record_count(self, records: RawRecords) -> pa.Array:
        return self._required(103, pa.int64(), records)

    def file_size_in_bytes(self, records: RawRecords) -> pa.Array:
        return self._required(104, pa.int64(), records)

    def deletion_vector(self, records: RawRecords) -> pa.Array:
        offset, size = records.values(144, pa.int64()), records.values(145, pa.int64())
        children = [offset, size, pa.nulls(len(records), pa.binary())]
        fields = [field.arrow for field in DELETION_VECTOR]
        return pa.StructArray.from_arrays(children, fields=fields, mask=offset.is_null())

    def partition_spec_id(self, records: RawRecords) -> pa.Array:
        return pa.repeat(pa.scalar(self.part.spec_id, pa.int32()), len(records))

    def _first_row_ids(self, records: RawRecords) -> pa.Array:
        ids, counts = records.values(142, pa.int64()), records.values(103, pa.int64())
        return self.row_ids.assign(ids, self._status(records), counts)

    def _status(self, records: RawRecords) -> pa.Array:
        return self._checked(records.values(0, pa.int32()), "status", tuple(Status))

    def _checked(self, values: pa.Array, field: str, allowed: Sequence[Any]) -> pa.Array:
        """Return the values. Raises CorruptFileError for one that is not allowed."""
        invalid = values.filter(pc.invert(pc.is_in(values, pa.array(allowed, values.type))))
        if len(invalid):
            names = ", ".join(str(getattr(value, "value", value)) for value in allowed)
            raise CorruptFileError(self.part.location, field, invalid[0].as_py(), f"not one of {names}")
        return values

    def _required(self, field_id: int, kind: pa.DataType, records: RawRecords) -> pa.Array:
        values = records.values(field_id, kind)
        if values.null_count:
            raise CorruptFileError(self.part.location, field_name(field_id), None, "the field is required")
        return values

    def _matching_indices(self, records: RawRecords) -> np.ndarray[Any, Any] | None:
        """Return the indices of entries that pass the projection's filter; None if all do."""
        if self.projection.entry_filter is None:
            return None

        bounds_by_field: dict[int, dict[str, pa.Array]] = {}

        def values(source: Source, field_id: int, type_name: str) -> pa.Array:
            if source == PARTITION:
                return records.partition(field_id, type_name)
            if field_id not in bounds_by_field:
                bounds_by_field[field_id] = _ordered(self._bounds(records, field_id, type_name), type_name)
            return bounds_by_field[field_id][source]

        status, spec_ids = self._status(records), self.partition_spec_id(records)
        mask = _matching(self.projection, values, status, spec_ids, lambda: self.record_count(records))
        flags = mask.to_numpy(zero_copy_only=False)
        return None if flags.all() else np.flatnonzero(flags)

    def _stats(self, records: RawRecords) -> pa.Array:
        """Return `content_stats`: a struct per projected field, with null children for unknown values."""
        structs = []
        for field_id, type_name in self.projection.stats:
            bounds = self._bounds(records, field_id, type_name)
            valid_bounds = bounds if self.projection.as_written else _ordered(bounds, type_name)
            children = [
                valid_bounds[child] if child in valid_bounds else records.metric(map_id, field_id, pa.int64())
                for child, map_id in STATS_SOURCES.items()
            ]
            structs.append(_struct(children, self.projection.stats_type.field(str(field_id)).type))
        return _struct(structs, self.projection.stats_type)

    def _bounds(self, records: RawRecords, field_id: int, type_name: str) -> dict[str, pa.Array]:
        """Return a column's bounds, null where bytes are not a value of the type."""
        raw = {name: records.metric(STATS_SOURCES[name], field_id, pa.binary()) for name in BOUNDS}
        return {name: known_bounds(values, type_name) for name, values in raw.items()}

    def _partition(self, records: RawRecords) -> pa.Array:
        children = [records.partition(*field) for field in self.projection.partition]
        return _struct(children, self.projection.partition_type)


def matching_rows(entries: pa.Table, projection: EntryProjection) -> pa.Table:
    """Return the entries, rows of the projection's schema, that pass its filter.

    If there is a filter, they must have `version_info`, `record_count` and `partition_spec_id`.
    """
    if projection.entry_filter is None:
        return entries
    parents = {name: whole(entries.column(name)) for name in (PARTITION, CONTENT_STATS) if name in entries.column_names}

    def values(source: Source, field_id: int, _: str) -> pa.Array:
        if source == PARTITION:
            return pc.struct_field(parents[PARTITION], [str(field_id)])
        return pc.struct_field(parents[CONTENT_STATS], [str(field_id), source])

    status = pc.struct_field(entries.column("version_info"), "status")
    spec_ids = entries.column("partition_spec_id")
    return kept_rows(entries, _matching(projection, values, status, spec_ids, lambda: entries.column("record_count")))


def _matching(
    projection: EntryProjection,
    values: Callable[[Source, int, str], pa.Array],
    status: pa.Array,
    spec_ids: pa.Array,
    record_counts: Callable[[], pa.Array],
) -> pa.Array:
    """Return whether each entry passes the filter of a projection.

    Args:
        values: returns the values of a partition field, or a column's bounds.
    """
    compared: dict[tuple[str, int], pa.Array] = {}

    def columns(source: Source, field_id: int, type_name: str) -> pa.Array | None:
        if (field_id, type_name) not in (projection.partition if source == PARTITION else projection.stats):
            return None
        if (source, field_id) not in compared:
            compared[source, field_id] = as_numbers(values(source, field_id, type_name))
        return compared[source, field_id]

    assert projection.entry_filter is not None
    matching = pc.not_equal(status, int(Status.DELETED))
    by_stats = projection.entry_filter.stats.passes(columns)
    if by_stats is not None:
        # Stats of a file with a negative record count are unknown.
        matching = pc.and_(matching, pc.or_(by_stats, pc.less(record_counts(), 0)))
    for spec_id, tests in projection.entry_filter.partitions:
        has_spec = pc.equal(spec_ids, spec_id)
        if pc.any(has_spec).as_py() and (passed := tests.passes(columns)) is not None:
            matching = pc.and_(matching, pc.or_(passed, pc.invert(has_spec)))
    return matching


def _ordered(bounds: Mapping[str, pa.Array], type_name: str) -> dict[str, pa.Array]:
    lower, upper = (bounds[name] for name in BOUNDS)
    return dict(zip(BOUNDS, ordered_bounds(lower, upper, type_name), strict=True))


def _struct(children: list[pa.Array], kind: pa.StructType) -> pa.StructArray:
    return pa.StructArray.from_arrays(children, fields=list(kind))


_BUILDERS: dict[str, Callable[[EntryBuilder, RawRecords], pa.Array]] = {
    build.__name__: build
    for build in (
        EntryBuilder.version_info,
        EntryBuilder.content_type,
        EntryBuilder.file_format,
        EntryBuilder.location,
        EntryBuilder.record_count,
        EntryBuilder.file_size_in_bytes,
        EntryBuilder.deletion_vector,
        EntryBuilder.partition_spec_id,
    )
}
