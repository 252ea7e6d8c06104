"""Decode Avro manifest blocks to Arrow columns by a compiled program, without a Python object per entry.

Neighbouring blocks are inflated into one buffer. The program fills the slots of a batch from it, and the slots become
Arrow arrays. A large block fills the slots more than once, so arrays copy their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro import execute, machine
from sparkmeta.avro.container import Block, Data, Header, inflate
from sparkmeta.avro.program import Column, Program
from sparkmeta.columns.bounds import bound_arrow_type, day_units
from sparkmeta.entries.records import field_name, promoted_values, typed_values
from sparkmeta.errors import CorruptFileError

BATCH_BYTES = 4 * 1024 * 1024
"""Inflated bytes of a batch, without its last record. A batch holds at most as much in addition to its blocks."""

SLOT_BYTES = 32 * 1024 * 1024
_SLOT = 16
_LEAST_RECORDS = 64

_Array = np.ndarray[Any, Any]


def compiled_records(
    data: Data, blocks: Iterable[Block], header: Header, program: Program, location: str, batch_records: int
) -> Iterator[tuple[int, ColumnarRecords]]:
    """Yield (ordinal of the first record, records) of adjacent blocks. Records are valid until the next iteration.

    Raises:
        CorruptFileError: a block can't be inflated, or does not match the writer's schema.
    """
    most = max(_LEAST_RECORDS, min(batch_records, SLOT_BYTES // (_SLOT * max(1, program.columns))))
    for group, ends, inflated in _groups(data, blocks, header, program, location, most):
        ordinal = group[0].first_ordinal
        for records in _run(inflated, np.array(ends, np.int64), group, program, most, location):
            yield ordinal, records
            ordinal += len(records)


def _groups(
    data: Data, blocks: Iterable[Block], header: Header, program: Program, location: str, most: int
) -> Iterator[tuple[list[Block], list[int], _Array]]:
    """Yield groups of adjacent blocks that fill a batch, with their ends and their inflated bytes.

    Some writers write a block per record. The bytes are valid until the next iteration.
    """
    buffer = np.empty(0, np.uint8)
    group: list[Block] = []
    ends: list[int] = []
    records = size = 0
    for block in blocks:
        inflated = inflate(data, block, header, location)
        if block.count * program.smallest_record > len(inflated):
            problem = f"the block has {len(inflated)} bytes"
            raise CorruptFileError(location, "block record count", block.count, problem)
        if group and (records + block.count > most or size + len(inflated) > BATCH_BYTES):
            yield group, ends, _readable(buffer, size)
            group, ends, records, size = [], [], 0, 0
        buffer = _with_room(buffer, size, size + len(inflated) + machine.PADDING)
        buffer[size : size + len(inflated)] = np.frombuffer(inflated, np.uint8)
        size += len(inflated)
        records += block.count
        group.append(block)
        ends.append(size)
    if group:
        yield group, ends, _readable(buffer, size)


def _with_room(buffer: _Array, used: int, size: int) -> _Array:
    if size <= len(buffer):
        return buffer
    larger = np.empty(max(size, 2 * len(buffer)), np.uint8)
    larger[:used] = buffer[:used]
    return larger


def _readable(buffer: _Array, size: int) -> _Array:
    """Return bytes of the buffer with the padding that the machine may read."""
    buffer[size : size + machine.PADDING] = 0
    data = buffer[: size + machine.PADDING]
    data.flags.writeable = False
    return data


def _run(
    data: _Array, ends: _Array, blocks: list[Block], program: Program, most: int, location: str
) -> Iterator[ColumnarRecords]:
    counts = np.array([block.count for block in blocks], np.int64)
    state = np.array([0, 0, counts[0], 0], np.int64)
    code = program.code.copy()  # loops count in it
    slots = np.empty((program.columns, 2, min(most, int(counts.sum()))), np.int64)
    while state[execute.BLOCK] < len(blocks):
        slots[:, 0], slots[:, 1] = 0, -1
        until = int(state[execute.POSITION]) + BATCH_BYTES
        records = execute.run(code, data, ends, counts, state, until, slots)
        if reason := int(state[execute.REASON]):
            problem = execute.PROBLEMS.get(reason, "a record can't be decoded")
            raise CorruptFileError(location, "block", blocks[state[execute.BLOCK]].offset, problem)
        if records:
            yield ColumnarRecords(program, data, slots, records, location)


class ColumnarRecords:
    """`RawRecords` over the slots of a batch."""

    def __init__(self, program: Program, data: _Array, slots: _Array, records: int, location: str) -> None:
        self._program = program
        self._data = data
        self._slots = slots
        self._records = records
        self._location = location

    def __len__(self) -> int:
        return self._records

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        return self._array(self._program.fields.get(field_id), kind, field_name(field_id))

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        kind, name, column = bound_arrow_type(type_name), f"partition.{field_id}", self._program.partition.get(field_id)
        if pa.types.is_decimal(kind):
            return typed_values(self._array(column, pa.binary(), name), type_name, self._location, name)
        if column is not None and column.avro == "int" and day_units(type_name) is not None:
            return promoted_values(self._array(column, pa.date32(), name), type_name, self._location, name)
        return self._array(column, kind, name)

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        return self._array(self._program.fields.get(map_id), kind, field_name(map_id))

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        return self._array(self._program.metrics.get((map_id, key)), kind, f"{field_name(map_id)}[{key}]")

    def taken(self, places: _Array) -> ColumnarRecords:
        slots = np.take(self._slots, places, axis=2)
        return ColumnarRecords(self._program, self._data, slots, len(places), self._location)

    def copied(self, places: _Array, numbers: Sequence[pa.Array], *, divided: bool, zeros: int) -> pa.BinaryArray:
        """Return records as EXISTING entries with their encoded data_file copied (`copy_entries`).

        The program must have four marks.

        Args:
            places: the indices of the records.
            numbers: the numbers before the data_file of each record, and the one to insert into it if `divided`.
        """
        marks = np.ascontiguousarray(self._slots[list(self._program.marks), 0][:, places])
        slots = [
            (pc.fill_null(column, 0).to_numpy(), -column.is_null().to_numpy(False).astype(np.int64))
            for column in numbers
        ]
        added_bytes = len(places) * (machine.ENTRY_BYTES + machine.NUMBER_BYTES * len(numbers) + zeros)
        taken = np.empty(int((marks[3] - marks[0]).sum()) + added_bytes + machine.PADDING, np.uint8)
        offsets = np.empty(len(places) + 1, np.int64)
        machine.copy_entries(self._data, marks, np.array(slots, np.int64), int(divided), zeros, taken, offsets)
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(taken[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), len(places), buffers)

    def _array(self, column: Column | None, kind: pa.DataType, field: str) -> pa.Array:
        if column is None:
            return pa.nulls(self._records, kind)
        try:
            if column.avro in {"array", "map"}:
                return self._items(column, kind)
            return self._scalars(column, kind)
        except ValueError as error:
            raise CorruptFileError(self._location, field, None, f"not {kind}: {error}"[:200]) from error

    def _scalars(self, column: Column, kind: pa.DataType) -> pa.Array:
        words, sizes = self._slots[column.slot, :, : self._records]
        valid = _bitmap(sizes)
        if column.avro in {"int", "long"}:
            return _numbers(words, valid, kind)
        if column.avro == "boolean":
            return _fixed_width(kind, len(words), valid, np.packbits(words != 0, bitorder="little"))
        if column.avro in {"float", "double"}:
            return _fixed_width(kind, len(words), valid, _floats(words, column.avro, kind))
        return self._bytes(words, sizes, kind)

    def _bytes(self, starts: _Array, sizes: _Array, kind: pa.DataType) -> pa.Array:
        offsets = _offsets(sizes)
        taken = np.empty(int(offsets[-1]) + machine.PADDING, np.uint8)
        machine.take_bytes(self._data, starts, sizes, taken)
        buffers = [_bitmap(sizes), pa.py_buffer(offsets), pa.py_buffer(taken)]
        array = pa.Array.from_buffers(kind, len(starts), buffers)
        if pa.types.is_string(kind):
            array.validate(full=True)
        return array

    def _items(self, column: Column, kind: pa.DataType) -> pa.Array:
        starts, sizes = self._slots[column.slot, :, : self._records]
        offsets = _offsets(sizes)
        words = np.empty(int(offsets[-1]), np.int64)
        if column.avro == "array":
            taken = machine.take_numbers(self._data, starts, sizes, words)
            _check_taken(taken, words)
            items = _numbers(words, None, kind.value_type)
        else:
            keys, lengths = np.empty_like(words), np.empty_like(words)
            taken = machine.take_pairs(self._data, starts, sizes, column.kinds, keys, words, lengths)
            _check_taken(taken, words)
            of_bytes = column.kinds & machine.BYTES_VALUE
            values = self._bytes(words, lengths, kind.item_type) if of_bytes else _numbers(words, None, kind.item_type)
            fields = [pa.field("key", kind.key_type, nullable=False), kind.item_field]
            items = pa.StructArray.from_arrays([_numbers(keys, None, kind.key_type), values], fields=fields)
        buffers = [_bitmap(sizes), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(kind, len(starts), buffers, children=[items])


def _bitmap(sizes: _Array) -> pa.Buffer | None:
    """Return Arrow's validity bitmap of slots from their second words, which are negative for null."""
    valid = sizes >= 0
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _check_taken(taken: int, places: _Array) -> None:
    """Raise ValueError if not all items were taken."""
    if taken != len(places):
        raise ValueError("a key that is not a number, or a number longer than 10 bytes")


def _offsets(sizes: _Array) -> _Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    return offsets


def _fixed_width(kind: pa.DataType, length: int, valid: pa.Buffer | None, values: _Array) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [valid, pa.py_buffer(values)])


def _numbers(words: _Array, valid: pa.Buffer | None, kind: pa.DataType) -> pa.Array:
    """Return numbers as a type of 64 or 32 bits. Raises ArrowInvalid for a number that does not fit."""
    if kind.bit_width == 64:
        return _fixed_width(kind, len(words), valid, words.copy())
    return _fixed_width(pa.int64(), len(words), valid, words).cast(pa.int32()).view(kind)


def _floats(words: _Array, avro: str, kind: pa.DataType) -> _Array:
    if avro == "double":
        return words.copy()
    floats = words.astype(np.uint32).view(np.float32)
    if pa.types.is_float32(kind):
        return floats
    with np.errstate(invalid="ignore"):  # some NaN values
        return floats.astype(np.float64)
