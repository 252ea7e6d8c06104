"""Turn records of v1 to v3 manifests into content entries: type and check raw columns, and apply inheritance.

The reader of a format provides `RawRecords`, columns by field id; `EntryBuilder` makes batches from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bound_tests import Source
from sparkmeta.columns.bounds import bound_arrow_type, decode_bounds, known_bounds, ordered_bounds, promoted_days
from sparkmeta.entries.arrays import kept_rows, whole
from sparkmeta.entries.inherit import (
    RowIdCounter,
    inherited_sequence_numbers,
    inherited_snapshot_ids,
)
from sparkmeta.entries.parts import ManifestPart
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import (
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
from sparkmeta.spec.stats import BOUNDS

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

    def taken(self, places: np.ndarray[Any, Any]) -> RawRecords:
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
    """Makes batches of content entries from a manifest's records, which must come in physical order."""

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
        if (places := self._matching_places(records)) is not None:
            records, ordinals = records.taken(places), ordinals.take(pa.array(places))
            row_ids = row_ids.take(pa.array(places)) if row_ids is not None else None
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
        unknown = values.filter(pc.invert(pc.is_in(values, pa.array(allowed, values.type))))
        if len(unknown):
            known = ", ".join(str(getattr(value, "value", value)) for value in allowed)
            raise CorruptFileError(self.part.location, field, unknown[0].as_py(), f"not one of {known}")
        return values

    def _required(self, field_id: int, kind: pa.DataType, records: RawRecords) -> pa.Array:
        values = records.values(field_id, kind)
        if values.null_count:
            raise CorruptFileError(self.part.location, field_name(field_id), None, "the field is required")
        return values

    def _matching_places(self, records: RawRecords) -> np.ndarray[Any, Any] | None:
        """Return the indices of entries that pass the projection's filter; None if all do."""
        if self.projection.entry_filter is None:
            return None

        pairs: dict[int, dict[str, pa.Array]] = {}

        def values(source: Source, field_id: int, type_name: str) -> pa.Array:
            if source == PARTITION:
                return records.partition(field_id, type_name)
            if field_id not in pairs:
                pairs[field_id] = _ordered(self._bounds(records, field_id, type_name), type_name)
            return pairs[field_id][source]

        status, spec_ids = self._status(records), self.partition_spec_id(records)
        mask = _matching(self.projection, values, status, spec_ids, lambda: self.record_count(records))
        places = mask.to_numpy(zero_copy_only=False)
        return None if places.all() else np.flatnonzero(places)

    def _stats(self, records: RawRecords) -> pa.Array:
        """Return `content_stats`: a struct per projected field, with null children for unknown values."""
        structs = []
        for field_id, type_name in self.projection.stats:
            bounds = self._bounds(records, field_id, type_name)
            known = bounds if self.projection.as_written else _ordered(bounds, type_name)
            children = [
                known[child] if child in known else records.metric(map_id, field_id, pa.int64())
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
    """Return which entries pass the filter of a projection.

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
        of_spec = pc.equal(spec_ids, spec_id)
        if pc.any(of_spec).as_py() and (passed := tests.passes(columns)) is not None:
            matching = pc.and_(matching, pc.or_(passed, pc.invert(of_spec)))
    return matching


def as_numbers(values: pa.Array) -> pa.Array:
    """Return dates and times as the numbers that represent them."""
    if not pa.types.is_temporal(values.type):
        return values
    return values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())


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
