"""Change the locations in Avro files of a table's metadata, and copy everything else unchanged.

Bytes of entries are copied around the changed values if a program can be compiled for the manifest. fastavro decodes
and encodes small manifests, manifest lists and position delete files. Without Spark: tasks import this.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Header, block_records, container_blocks, deflater, read_blocks, read_header
from sparkmeta.avro.decode import BATCH_RECORDS, AvroRecords, compiler, program_of, record_batches, writer_schema
from sparkmeta.avro.schema import (
    LIST_FIELDS,
    ManifestSchema,
    by_field_ids,
    canonical_schema,
    field_id_of,
    parse,
    record_of,
    refuse_unions,
)
from sparkmeta.entries.locations import relocated, relocated_bounds
from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart, RawRecords
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import (
    DATA_FILE_FIELD_ID,
    DELETE_FILE_PATH_ID,
    DELETE_FILE_POS_ID,
    STATS_SOURCES,
    ContentType,
    Status,
)
from sparkmeta.spec.locations import Relocation

_LOCATION, _SIZE, _REFERENCED_FILE, _CONTENT, _STATUS = 100, 104, 143, 134, 0
_LOWER, _UPPER = STATS_SOURCES["lower_bound"], STATS_SOURCES["upper_bound"]
_MANIFEST_PATH, _MANIFEST_LENGTH = 500, 501
_DELETE_FIELDS = {None: {"file_path": DELETE_FILE_PATH_ID, "pos": DELETE_FILE_POS_ID}}

SizesOf = Callable[[pa.Array], pa.Array]
"""A function from the old locations of files to their new sizes in bytes; null for missing files."""


def with_sizes(sizes: pa.Array, are_changed: pa.Array, new_sizes: pa.Array) -> pa.Array:
    """Return sizes of files with the changed ones replaced by `new_sizes`, except where these are null."""
    old_sizes = sizes.filter(are_changed)
    return pc.replace_with_mask(sizes, are_changed, pc.coalesce(new_sizes.cast(sizes.type), old_sizes))


@dataclass(frozen=True)
class _Values:
    """New values in records. Other fields of the records stay.

    Attributes:
        texts: field id -> its new text, or (id of a metrics map, key of its item) -> the new value of the item.
        sizes: the new sizes of the files; None if they stay.
    """

    texts: dict[int | tuple[int, int], pa.Array]
    sizes: pa.Array | None


@dataclass(frozen=True)
class _ManifestChange:
    """The change of locations in a manifest.

    Attributes:
        relocation: the change of locations.
        sizes_of: see `SizesOf`; for live position delete files and deletion vectors.
        is_delete_manifest: whether the manifest is a delete manifest.
    """

    relocation: Relocation
    sizes_of: SizesOf
    is_delete_manifest: bool

    @property
    def projection(self) -> EntryProjection:
        """The columns and stats of entries that the change needs."""
        if not self.is_delete_manifest:
            return EntryProjection.of({"location"})
        columns = {"location", "file_size_in_bytes", "referenced_file", "content_type"}
        return EntryProjection.of(columns, stats={DELETE_FILE_PATH_ID: "string"})

    def values(self, records: RawRecords) -> _Values:
        """Return the new values of records."""
        locations = records.values(_LOCATION, pa.string())
        texts: dict[int | tuple[int, int], pa.Array] = {_LOCATION: relocated(locations, self.relocation)}
        if not self.is_delete_manifest:
            return _Values(texts, None)
        texts[_REFERENCED_FILE] = relocated(records.values(_REFERENCED_FILE, pa.string()), self.relocation)
        bounds = [records.metric(field_id, DELETE_FILE_PATH_ID, pa.binary()) for field_id in (_LOWER, _UPPER)]
        keys = ((_LOWER, DELETE_FILE_PATH_ID), (_UPPER, DELETE_FILE_PATH_ID))
        texts |= dict(zip(keys, relocated_bounds(bounds[0], bounds[1], self.relocation), strict=True))
        is_deleted = pc.equal(records.values(_STATUS, pa.int32()), int(Status.DELETED))
        is_position = pc.equal(records.values(_CONTENT, pa.int32()), int(ContentType.POSITION_DELETES))
        is_changed = pc.fill_null(pc.and_not(is_position, is_deleted), False)
        sizes = records.values(_SIZE, pa.int64())
        return _Values(texts, with_sizes(sizes, is_changed, self.sizes_of(locations.filter(is_changed))))


def relocated_manifest(data: bytes, location: str, relocation: Relocation, sizes_of: SizesOf) -> bytes:
    """Return a v1 to v3 manifest with other locations.

    Args:
        data: the content of the manifest.
        location: the manifest, for errors.
        relocation: the change of locations.
        sizes_of: see `SizesOf`; called for live position delete files and deletion vectors.

    Raises:
        CorruptFileError: see `decode_manifest`.
        UnsupportedError: an unsupported Avro codec.
    """
    header = read_header(data, location)
    part = ManifestPart(0, location, 0, ManifestContext(None, None, None))
    change = _ManifestChange(relocation, sizes_of, header.metadata.get("content") == b"deletes")
    schema = writer_schema(data, part, header, change.projection)
    records: Iterable[pa.BinaryArray] | None = None
    if compiler.pays_for(len(data)):
        records = _spliced(data, header, schema, change, location)
    if records is None:
        refuse_unions(schema.entry, location)
        records = _encoded(data, header, schema, change, location)
    return _file(data, header, records)


def relocated_list(data: bytes, location: str, relocation: Relocation, lengths_of: SizesOf) -> bytes:
    """Return a manifest list with other locations; see `relocated_manifest`.

    Args:
        lengths_of: returns the new lengths of manifests.
    """
    header = read_header(data, location)
    schema = _schema(header, LIST_FIELDS, location)

    def change(records: list[dict[str, Any]]) -> None:
        paths = pa.array([record[f"f{_MANIFEST_PATH}"] for record in records], pa.string())
        lengths = lengths_of(paths).to_pylist()
        for record, path, length in zip(records, relocated(paths, relocation).to_pylist(), lengths, strict=True):
            record |= {f"f{_MANIFEST_PATH}": path, f"f{_MANIFEST_LENGTH}": length}

    return _file(data, header, _with_records(data, header, schema, change, location))


def relocated_position_deletes(data: bytes, location: str, relocation: Relocation) -> bytes:
    """Return an Avro file of position deletes with other locations of data files. See `relocated_manifest`."""
    header = read_header(data, location)
    schema = _schema(header, _DELETE_FIELDS, location)
    name = f"f{DELETE_FILE_PATH_ID}"
    if all(field["name"] != name for field in schema["fields"]):
        raise CorruptFileError(location, "file_path", None, "a position delete file must have it")

    def change(records: list[dict[str, Any]]) -> None:
        for record in records:
            record[name] = relocation.of(record[name])

    return _file(data, header, _with_records(data, header, schema, change, location))


def _schema(header: Header, names: Any, location: str) -> dict[str, Any]:
    return by_field_ids(canonical_schema(header.schema, location, names), location)


def _file(data: bytes, header: Header, records: Iterable[pa.BinaryArray]) -> bytes:
    """Return a container file with the header of another one, and encoded records."""
    pack = deflater(header.codec, None)
    blocks = (block for batch in records for block in container_blocks(batch, pack, header.sync))
    return b"".join([data[: header.end], *blocks])


# -- Decode and encode with fastavro ----------------------------------------------------------------------------------


def _with_records(
    data: bytes,
    header: Header,
    schema: dict[str, Any],
    change: Callable[[list[dict[str, Any]]], None],
    location: str,
) -> Iterator[pa.BinaryArray]:
    """Yield the records of a file's blocks, changed in place and encoded again."""
    writer = parse(schema, location)
    for block in read_blocks(data, header, location):
        records = [*block_records(data, block, header, writer, location)]
        change(records)
        yield pa.array([_bytes(record, writer) for record in records], pa.binary())


def _bytes(record: dict[str, Any], schema: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


def _encoded(
    data: bytes, header: Header, schema: ManifestSchema, change: _ManifestChange, location: str
) -> Iterator[pa.BinaryArray]:
    """Yield the changed entries of a manifest, decoded and encoded."""
    blocks = read_blocks(data, header, location)
    for _, entries in record_batches(data, blocks, header, schema, None, location):
        values = change.values(AvroRecords(entries, schema, location, few_keys=True))
        sizes = [None] * len(entries) if values.sizes is None else values.sizes.to_pylist()
        for entry, size in zip(entries, sizes, strict=True):
            entry["f2"] |= {} if size is None else {f"f{_SIZE}": size}
        for key, texts in values.texts.items():
            for entry, text in zip(entries, texts.to_pylist(), strict=True):
                if text is not None:
                    _set(entry["f2"], key, text)
        yield pa.array([_bytes(entry, schema.writer) for entry in entries], pa.binary())


def _set(file: dict[str, Any], key: int | tuple[int, int], value: Any) -> None:
    """Set a field of a data_file, or the value of an item in one of its metrics maps, which must contain the item."""
    if isinstance(key, int):
        file[f"f{key}"] = value
        return
    items = file[f"f{key[0]}"]
    if isinstance(items, dict):
        items[str(key[1])] = value
        return
    for item in items:
        if item["k"] == key[1]:
            item["v"] = value


# -- Copy the bytes around the values ---------------------------------------------------------------------------------


_NO_EDIT = -1


def _spliced(
    data: bytes, header: Header, schema: ManifestSchema, change: _ManifestChange, location: str
) -> list[pa.BinaryArray] | None:
    """Return the changed entries of a manifest; None if fastavro has to encode them.

    fastavro encodes them if the schema can't be compiled, if a value in a metrics map changes, whose block may state
    its size in bytes, or if a number takes more bytes than necessary.
    """
    record = record_of(schema.entry, DATA_FILE_FIELD_ID, location)
    assert record is not None
    order = [field_id_of(field) for field in record["fields"]]
    if field_id_of(schema.entry["fields"][-1]) != DATA_FILE_FIELD_ID or _SIZE not in order:
        return None
    from sparkmeta.avro.program import RECORD, compiled_records

    program = program_of(schema, change.projection, (RECORD, order.index(_SIZE) + 1, len(order)))
    if program is None:
        return None
    batches = compiled_records(data, read_blocks(data, header, location), header, program, location, BATCH_RECORDS)
    result = []
    for _, batch in batches:
        values = change.values(batch)
        in_maps = (texts for key, texts in values.texts.items() if isinstance(key, tuple))
        if any(texts.null_count < len(texts) for texts in in_maps):
            return None
        if (records := _Splice(batch, order).records(values)) is None:
            return None
        result.append(records)
    return result


class _Splice:
    """The replacement of values in records that a compiled program has located.

    Args:
        batch: the records, of a program with marks of where they begin, where the field after the size begins, and
            where they end.
        order: the ids of the data_file's fields.
    """

    def __init__(self, batch: Any, order: list[int]) -> None:
        self._batch = batch
        self._order = order

    def records(self, values: _Values) -> pa.BinaryArray | None:
        """Return the encoded records with other values of fields; None if a number is not encoded as usual."""
        from sparkmeta.avro import machine

        batch, texts = self._batch, {key: value for key, value in values.texts.items() if isinstance(key, int)}
        begin, after_size, end = (batch.slots_of(mark)[0] for mark in batch.program.marks)
        edits: dict[int, np.ndarray[Any, Any] | None] = {}
        used = 0
        for field_id, new in texts.items():
            if (column := batch.program.fields.get(field_id)) is not None:
                start, size = batch.slots_of(column.slot)
                lengths = pc.fill_null(pc.binary_length(new), 0).to_numpy().astype(np.int64)
                positions = used + np.cumsum(lengths) - lengths
                edits[field_id] = self._edit(start, size, size >= 0, (start + size, lengths, positions, lengths))
            used += int(pc.sum(pc.binary_length(new)).as_py() or 0)
        if values.sizes is not None:
            old, valid = batch.slots_of(batch.program.fields[_SIZE].slot)
            zeros = np.zeros_like(old)
            new_values = after_size, values.sizes.to_numpy(), zeros, zeros
            edits[_SIZE] = self._edit(after_size, old, valid >= 0, new_values)
        ordered = [edits[field_id] for field_id in self._order if field_id in edits]
        if any(edit is None for edit in ordered):
            return None
        words = np.ascontiguousarray(np.stack(ordered))  # type: ignore[arg-type]
        room = int((end - begin).sum()) + used + machine.NUMBER_BYTES * len(ordered) * len(batch) + machine.PADDING
        output, offsets = np.empty(room, np.uint8), np.empty(len(batch) + 1, np.int64)
        source = np.concatenate([*map(_content, texts.values()), np.zeros(machine.PADDING, np.uint8)])
        machine.splice(batch.data, np.ascontiguousarray(np.stack([begin, end])), words, source, output, offsets)
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(output[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), len(batch), buffers)

    def _edit(self, end: Any, numbers: Any, is_valid: Any, words: tuple[Any, ...]) -> np.ndarray[Any, Any] | None:
        """Return an edit for `machine.splice`; None if a number takes more bytes than necessary.

        Args:
            end: where the numbers end that are replaced: lengths of texts, or sizes.
            numbers: the numbers.
            is_valid: whether each record has the value.
            words: the other words of the edit.
        """
        width, last = _encoding(numbers)
        if (is_valid & (self._batch.data[np.maximum(end - 1, 0)] != last)).any():
            return None
        return np.stack([np.where(is_valid, end - width, _NO_EDIT), *words])


def _content(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Return the bytes of all texts, one after the other."""
    content = pa.concat_arrays([texts.cast(pa.binary()).fill_null(b"")])
    offsets = np.frombuffer(content.buffers()[1], np.int32)[content.offset : content.offset + len(content) + 1]
    return np.frombuffer(content.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]


def _encoding(numbers: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return how many bytes Avro's zigzag form of each number takes, and its last byte."""
    remaining = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    width = np.ones(len(numbers), np.int64)
    while (is_long := remaining > 0x7F).any():
        remaining = np.where(is_long, remaining >> np.uint64(7), remaining)
        width += is_long
    return width, remaining.astype(np.uint8)
