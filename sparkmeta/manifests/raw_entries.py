"""Read entries of v1 to v3 manifests as bytes, for a new manifest that keeps live entries or marks them as DELETED.

A rewrite changes only the fields before an entry's data_file, and the first row id. The encoded data_file is copied if
the writer's schema encodes it like the new manifest; missing fields at its end become null. Entries of other schemas
are decoded by fastavro and encoded again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Data, read_header
from sparkmeta.avro.decode import (
    BATCH_RECORDS,
    AvroRecords,
    as_text,
    compiler,
    map_items,
    part_blocks,
    program_of,
    record_batches,
    refuse_foreign_tuples,
    writer_schema,
)
from sparkmeta.avro.schema import ManifestSchema, field_id_of, fixed_sizes, parse, record_of
from sparkmeta.avro.write import ENTRY, REQUIRED_DEFAULTS, ManifestFormat, with_version_info
from sparkmeta.entries.live import is_live
from sparkmeta.entries.manifest_records import EntryBuilder, ManifestPart
from sparkmeta.entries.projection import ORDINAL, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import day_units
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, METRICS_MAPS, PARTITION_FIELD_ID, Status

_ROW_ID = 142


@dataclass(frozen=True)
class RemovedEntries:
    """The entries of a manifest that a snapshot removes, which become DELETED entries of that snapshot."""

    ordinals: PositionBitmap
    snapshot_id: int

    def marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the entries, with the status and snapshot id of the removal in the `version_info` of removed ones."""
        is_removed = pa.array(is_among(batch.column(ORDINAL), self.ordinals))
        info = batch.column("version_info")
        values = {"status": int(Status.DELETED), "snapshot_id": self.snapshot_id}
        fields = {
            name: pc.if_else(is_removed, pa.scalar(value, info.type.field(name).type), pc.struct_field(info, name))
            for name, value in values.items()
        }
        return with_version_info(batch, **fields)


def is_among(ordinals: pa.Array, bitmap: PositionBitmap) -> np.ndarray[Any, Any]:
    """Return which ordinals are in a bitmap."""
    return np.isin(ordinals.to_numpy(), np.concatenate([np.empty(0, np.int64), *bitmap.positions()]))


def encoded_entries(
    data: Data,
    part: ManifestPart,
    projection: EntryProjection,
    form: ManifestFormat,
    removed: RemovedEntries | None = None,
    changed_by: int | None = None,
    left_out: PositionBitmap | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the live entries of a manifest's part in physical order: rows of the projection, and `entry`.

    Inheritance is applied, and `entry` is EXISTING, or DELETED if it is removed, with its numbers (table spec, Sequence
    Number Inheritance, First Row ID Inheritance).

    Args:
        projection: the projection of `form`, and more columns.
        removed: the entries that the new manifest's snapshot removes.
        changed_by: a snapshot whose ADDED and DELETED entries keep their status.
        left_out: ordinals of entries to leave out.

    Raises:
        CorruptFileError: see `decode_manifest`; also a value that the new manifest can't hold.
        UnsupportedError: an unsupported Avro codec.
    """
    header = read_header(data, part.location)
    schema = writer_schema(data, part, header, projection)
    refuse_foreign_tuples(data, part, header, schema, projection)
    blocks = part_blocks(data, part, header)
    builder = EntryBuilder(part, projection)
    copying = _copying(schema, form, part.location) if compiler.pays_for(len(data) // part.parts) else None
    if copying is not None and (program := program_of(schema, projection, copying.marks)) is not None:
        from sparkmeta.avro.program import compiled_records

        for first_ordinal, records in compiled_records(data, blocks, header, program, part.location, BATCH_RECORDS):
            batch, indices = _entries_to_write(builder, first_ordinal, records, removed, changed_by, left_out)
            numbers = _numbers(batch, form)
            entries = records.copied(indices, numbers, divided=copying.divided, zeros=copying.zeros)
            yield batch.append_column(ENTRY, _with_status(entries, batch))
        return
    encoder = _Encoder(schema, form, part.location)
    for first_ordinal, rows in record_batches(data, blocks, header, schema, None, part.location):
        avro_records = AvroRecords(rows, schema, part.location, few_keys=True)
        batch, indices = _entries_to_write(builder, first_ordinal, avro_records, removed, changed_by, left_out)
        entries = encoder.entries([rows[index] for index in indices], _numbers(batch, form))
        yield batch.append_column(ENTRY, _with_status(entries, batch))


def _entries_to_write(
    builder: EntryBuilder,
    first_ordinal: int,
    records: Any,
    removed: RemovedEntries | None,
    changed_by: int | None,
    left_out: PositionBitmap | None,
) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
    """Return the entries for the new manifest, with their status in it, and their indices among the records."""
    batch = builder.batch(pa.array(np.arange(first_ordinal, first_ordinal + len(records))), records)
    info = batch.column("version_info")
    status = pc.struct_field(info, "status")
    is_changed = pc.fill_null(pc.equal(pc.struct_field(info, "snapshot_id"), changed_by), False)
    is_written = pc.or_(is_live(batch), is_changed).to_numpy(False)
    if left_out is not None:
        is_written = is_written & ~is_among(batch.column(ORDINAL), left_out)
    indices = np.flatnonzero(is_written)
    status = pc.if_else(is_changed, status, pa.scalar(int(Status.EXISTING), pa.int32()))
    batch = with_version_info(batch, status=status)
    chosen = batch if len(indices) == len(batch) else batch.take(pa.array(indices))
    return chosen if removed is None else removed.marked(chosen), indices


def _with_status(entries: pa.BinaryArray, batch: pa.RecordBatch) -> pa.BinaryArray:
    """Return encoded EXISTING entries with the status in `version_info`."""
    status = pc.struct_field(batch.column("version_info"), "status").to_numpy(zero_copy_only=False)
    is_other = status != int(Status.EXISTING)
    if not is_other.any():
        return entries
    _, offsets, data = entries.buffers()
    starts = np.frombuffer(offsets, np.int32)[entries.offset : entries.offset + len(entries)]
    content = np.frombuffer(data, np.uint8).copy()
    # The first byte of an entry encodes its status, in Avro's zigzag form.
    content[starts[is_other]] = status[is_other] << 1
    return pa.Array.from_buffers(pa.binary(), len(entries), [None, offsets, pa.py_buffer(content)], 0, entries.offset)


_NUMBERS = {1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number"}


def _numbers(batch: pa.RecordBatch, form: ManifestFormat) -> list[pa.Array]:
    """Return the numbers before each data_file, and its first row id."""
    info = batch.column("version_info")
    return [*(pc.struct_field(info, _NUMBERS[field_id]) for field_id in form.numbers), batch.column("first_row_id")]


class _Copying(NamedTuple):
    """How a data_file is copied.

    Attributes:
        marks: the indices of fields at which it is divided (`compile_program`).
        divided: whether a row id is inserted.
        zeros: the number of null fields to append.
    """

    marks: tuple[int, int, int, int]
    divided: bool
    zeros: int


def _copying(schema: ManifestSchema, form: ManifestFormat, location: str) -> _Copying | None:
    """Return how to copy a data_file; None if the writer's schema encodes it differently from the new manifest."""
    if _day_units(schema, form):
        return None
    new_fields, old_fields = (_shapes(entry, location) for entry in (form.encoded, schema.entry))
    new_ids, old_ids = [field_id for field_id, _ in new_fields], [field_id for field_id, _ in old_fields]
    divided = _ROW_ID in new_ids
    row_id_index = new_ids.index(_ROW_ID) if divided else len(old_fields)
    next_index = row_id_index + (old_ids[row_id_index : row_id_index + 1] == [_ROW_ID])
    without_row_id = [field for field in new_fields if field[0] != _ROW_ID]
    appended = without_row_id[len(old_fields) - (next_index - row_id_index) :]
    copied = [*old_fields[:row_id_index], *old_fields[next_index:]]
    is_prefix = len(old_fields) >= row_id_index and without_row_id[: len(copied)] == copied
    if not is_prefix or any(not _is_optional(kind) for _, kind in appended):
        return None
    return _Copying((0, row_id_index, next_index, len(old_fields)), divided, len(appended))


def _day_units(schema: ManifestSchema, form: ManifestFormat) -> dict[str, int]:
    """Return the names of partition fields with dates that were promoted -> units in a day of the new type."""
    promoted = ((field_id, name) for field_id, name in form.partition if schema.holds_days(field_id, name))
    return {f"f{field_id}": units for field_id, name in promoted if (units := day_units(name)) is not None}


def _shapes(entry: Mapping[str, Any], location: str) -> list[tuple[int, Any]]:
    """Return the ids of a data_file's fields, and a comparable form of their encodings."""
    record, sizes = record_of(entry, DATA_FILE_FIELD_ID, location), fixed_sizes(entry)
    assert record is not None
    return [(field_id_of(field), _shape(field["type"], sizes)) for field in record["fields"]]


def _shape(kind: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(kind, list):
        return [_shape(branch, sizes) for branch in kind]
    if not isinstance(kind, dict):
        return sizes.get(kind) or {"int": "long"}.get(kind, kind)
    if kind["type"] == "record":
        return [(field["name"], _shape(field["type"], sizes)) for field in kind["fields"]]
    if kind["type"] == "fixed":
        return kind["size"]
    return kind["type"], _shape(kind.get("items", kind.get("values")), sizes)


def _is_optional(shape: Any) -> bool:
    """Return whether the byte 0 encodes null."""
    return isinstance(shape, list) and shape[0] == "null"


class _Encoder:
    """Encodes entries that fastavro decoded with the new manifest's schema."""

    def __init__(self, schema: ManifestSchema, form: ManifestFormat, location: str) -> None:
        self._location = location
        self._numbers = [f"f{field_id}" for field_id in form.numbers]
        self._writer = parse(form.encoded, location)
        record = record_of(form.encoded, DATA_FILE_FIELD_ID, location)
        assert record is not None
        self._fields = [field_id_of(field) for field in record["fields"]]
        partition = next(field["type"] for field in record["fields"] if field_id_of(field) == PARTITION_FIELD_ID)
        sizes = fixed_sizes(form.encoded)
        self._partition = {field["name"]: _fixed_size(field["type"], sizes) for field in partition["fields"]}
        self._day_units = _day_units(schema, form)
        # This includes values whose type is lost: see `TableTypes.unwritable_fields`.
        self._texts = {field["name"] for field in partition["fields"] if "string" in field["type"]}

    def entries(self, records: Sequence[Mapping[str, Any]], numbers: Sequence[pa.Array]) -> pa.BinaryArray:
        columns = [column.to_pylist() for column in numbers]
        return pa.array([self._entry(*row) for row in zip(records, *columns, strict=True)], pa.binary())

    def _entry(self, record: Mapping[str, Any], *numbers: int | None) -> bytes:
        values = dict(zip(self._numbers, numbers, strict=False))
        stream = io.BytesIO()
        try:
            entry = {"f0": int(Status.EXISTING), **values, "f2": self._data_file(record["f2"], numbers[-1])}
            fastavro.schemaless_writer(stream, self._writer, entry)
        except Exception as error:
            problem = f"can't be encoded: {type(error).__name__} {error}"[:200]
            raise CorruptFileError(self._location, "data_file", record["f2"].get("f100"), problem) from error
        return stream.getvalue()

    def _data_file(self, file: Mapping[str, Any], row_id: int | None) -> dict[str, Any]:
        return {f"f{field_id}": self._value(field_id, file, row_id) for field_id in self._fields}

    def _value(self, field_id: int, file: Mapping[str, Any], row_id: int | None) -> Any:
        value = file.get(f"f{field_id}")
        if field_id == _ROW_ID:
            return row_id
        if field_id in METRICS_MAPS:
            items = map_items(value)
            return items if items is None else [{"k": key, "v": item} for key, item in items]
        if field_id == PARTITION_FIELD_ID:
            values = value or {}
            return {name: self._partition_value(name, values.get(name)) for name in self._partition}
        return REQUIRED_DEFAULTS.get(field_id) if value is None else value

    def _partition_value(self, name: str, value: Any) -> Any:
        if value is not None and name in self._texts:
            return as_text(value)
        if value is not None and name in self._day_units:
            return value * self._day_units[name]
        return _widened(value, self._partition[name])


def _fixed_size(kind: Any, sizes: Mapping[str, int]) -> int | None:
    for branch in kind if isinstance(kind, list) else [kind]:
        shape = _shape(branch, sizes)
        if isinstance(shape, int):
            return shape
    return None


def _widened(value: Any, size: int | None) -> Any:
    """Return a value of a fixed type with `size` bytes. Decimals of lower precision are extended."""
    if size is None or not isinstance(value, bytes) or len(value) >= size:
        return value
    return (b"\xff" if value[:1] >= b"\x80" else b"\0") * (size - len(value)) + value
