"""Compile a manifest's writer schema and a projection to a program for the `machine`, and decode blocks with it.

Each field has one or several instructions, in the order of the schema. Instructions of projected fields store values in
the slots of a column; others skip bytes. A union jumps to the instructions of its branch. Each projected key of a
metrics map has a separate column.

Types that the machine does not support raise `NotCompilable`; fastavro decodes such manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro import machine
from sparkmeta.avro.container import Block, Data, Header, inflate
from sparkmeta.avro.schema import ManifestSchema, field_id_of, fixed_sizes, smallest_size
from sparkmeta.entries.manifest_records import field_name, field_type, projected_fields, promoted_values, typed_values
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import bound_arrow_type, day_units
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, METRICS_MAP_IDS, METRICS_MAPS, PARTITION_FIELD_ID, STATS_SOURCES

_WORD = 8

_FIXED_SIZES = {"boolean": 1, "float": 4, "double": 8}
_NUMBERS = frozenset({"int", "long"})
_BYTES = frozenset({"bytes", "string"})

# Avro types that can be read as an Arrow type, by Arrow's type id.
_READABLE: dict[int, frozenset[str]] = {
    pa.int32().id: _NUMBERS,
    pa.int64().id: _NUMBERS,
    pa.date32().id: _NUMBERS,
    pa.timestamp("us").id: _NUMBERS,
    pa.bool_().id: frozenset({"boolean"}),
    pa.float32().id: frozenset({"float"}),
    pa.float64().id: frozenset({"float", "double"}),
    pa.string().id: frozenset({"string"}),
    pa.binary().id: frozenset({"bytes", "fixed"}),
    pa.decimal128(1).id: frozenset({"bytes", "fixed"}),
}


class NotCompilable(Exception):  # noqa: N818  not an error, since the caller has an alternative
    """A type that the machine does not support."""


class ProjectedColumn(NamedTuple):
    """The column of a projected value.

    Attributes:
        slot: the row of its slots.
        avro: the Avro type of the values; `map` for maps in either encoding.
        kinds: the kinds of a map's keys and values.
    """

    slot: int
    avro: str
    kinds: int = 0


@dataclass(frozen=True)
class Program:
    """The code for `machine.run`, and the columns that it fills.

    Attributes:
        columns: the number of columns.
        smallest_record: the least size of a record in bytes.
        fields: field id -> column.
        partition: partition field id -> column.
        metrics: (map id, key) -> column.
        marks: the columns of marks; see `compile_program`.
    """

    code: np.ndarray[Any, Any]
    columns: int
    smallest_record: int
    fields: dict[int, ProjectedColumn]
    partition: dict[int, ProjectedColumn]
    metrics: dict[tuple[int, int], ProjectedColumn]
    marks: tuple[int, ...]


RECORD = -1
"""The mark of where a record begins."""


def compile_program(schema: ManifestSchema, projection: EntryProjection, marks: Sequence[int] = ()) -> Program:
    """Return the program that reads the values that `EntryBuilder` needs.

    Args:
        marks: ascending: `RECORD`, indices of fields of the data_file, or the number of its fields. The slots of
            `Program.marks` have the offsets at which these begin, or at which the data_file ends.

    Raises:
        NotCompilable: the machine does not support the type of a projected field.
    """
    return _Compiler(schema, projection, marks).program()


class _Compiler:
    """A compiler that emits instructions for one type after the other, and tables after the last instruction."""

    def __init__(self, schema: ManifestSchema, projection: EntryProjection, marks: Sequence[int]) -> None:
        self._schema = schema
        self._requested_marks = marks
        self._marks: list[int] = []
        projected = projected_fields(projection)
        self._entry_fields = projected & schema.fields - METRICS_MAPS.keys()
        self._file_fields = projected - self._entry_fields
        self._keys = [field_id for field_id, _ in projection.stats]
        self._whole = {METRICS_MAP_IDS[name] for name in projection.columns if name in METRICS_MAP_IDS}
        self._partition_types = {field_id: bound_arrow_type(name) for field_id, name in projection.partition}
        self._sizes = fixed_sizes(schema.entry)
        self._code: list[list[int]] = []
        self._tables: list[tuple[int, list[int]]] = []
        self._columns = 0
        self._fields: dict[int, ProjectedColumn] = {}
        self._partition: dict[int, ProjectedColumn] = {}
        self._metrics: dict[tuple[int, int], ProjectedColumn] = {}

    def program(self) -> Program:
        self._mark(RECORD)
        for field in self._schema.entry["fields"]:
            self._entry_field(field_id_of(field), field["type"])
        self._emit(machine.END)
        smallest = smallest_size(self._schema.entry, self._sizes)
        by_field = (self._fields, self._partition, self._metrics, tuple(self._marks))
        return Program(self._linked(), self._columns, smallest, *by_field)

    def _linked(self) -> np.ndarray[Any, Any]:
        """Return the code followed by its tables."""
        flat = [word for instruction in self._code for word in instruction]
        for number, table in self._tables:
            index = number * machine.WIDTH
            flat[index + 2] = (len(flat) - index) * _WORD
            flat += table
        return np.array(flat, np.int64)

    def _emit(self, op: int, *operands: int) -> int:
        """Append an instruction, and return its number."""
        self._code.append([op, *operands, *[0] * (machine.WIDTH - 1 - len(operands))])
        return len(self._code) - 1

    def _set_targets(self, *numbers: int) -> None:
        for number in numbers:
            self._code[number][1] = _distance(number, len(self._code))

    def _column(self) -> int:
        self._columns += 1
        return self._columns - 1

    # Projected fields, from the outside to the inside

    def _entry_field(self, field_id: int, kind: Any) -> None:
        if field_id in self._entry_fields:
            self._field(field_id, kind)
        elif field_id == DATA_FILE_FIELD_ID:
            self._union_or(kind, self._data_file, machine.NULL_FILE)
        else:
            self._skip(kind)

    def _data_file(self, record: Any) -> None:
        for index, field in enumerate(record["fields"]):
            self._mark(index)
            field_id, kind = field_id_of(field), field["type"]
            if field_id == PARTITION_FIELD_ID:
                self._union_or(kind, self._partition_tuple)
            elif field_id in METRICS_MAPS and field_id in self._file_fields:
                self._union_or(kind, partial(self._metrics_map, field_id))
            elif field_id in self._file_fields:
                self._field(field_id, kind)
            else:
                self._skip(kind)
        self._mark(len(record["fields"]))

    def _mark(self, index: int) -> None:
        for _ in range(self._requested_marks.count(index)):
            self._marks.append(self._column())
            self._emit(machine.READ_FIXED, self._marks[-1], 0)

    def _partition_tuple(self, record: Any) -> None:
        for field in record["fields"]:
            field_id, kind = field_id_of(field), field["type"]
            if field_id in self._partition_types:
                self._partition[field_id] = self._value(kind, self._partition_types[field_id])
            else:
                self._skip(kind)

    def _field(self, field_id: int, kind: Any) -> None:
        self._fields[field_id] = self._value(kind, field_type(field_id))

    def _value(self, kind: Any, arrow: pa.DataType) -> ProjectedColumn:
        column = self._new_column(_present(kind), arrow)
        self._union_or(kind, lambda branch: self._read(branch, column))
        return column

    def _new_column(self, kind: Any, arrow: pa.DataType) -> ProjectedColumn:
        avro = self._name(kind)
        if pa.types.is_list(arrow):
            if avro != "array" or self._name(kind["items"]) not in _NUMBERS:
                raise NotCompilable(kind)
            return ProjectedColumn(self._column(), avro)
        if avro not in _READABLE.get(arrow.id, ()):
            raise NotCompilable(kind)
        return ProjectedColumn(self._column(), avro)

    def _read(self, kind: Any, column: ProjectedColumn) -> None:
        if column.avro in _NUMBERS:
            self._emit(machine.READ_NUMBER, column.slot)
        elif column.avro in _FIXED_SIZES:
            self._emit(machine.READ_BITS, column.slot, _FIXED_SIZES[column.avro])
        elif column.avro in _BYTES:
            self._emit(machine.READ_BYTES, column.slot)
        elif column.avro == "fixed":
            self._emit(machine.READ_FIXED, column.slot, self._size(kind))
        else:
            self._emit(machine.READ_ITEMS, column.slot, machine.NUMBERS, 1)

    def _metrics_map(self, map_id: int, kind: Any) -> None:
        avro, value = self._pair(kind)
        if value not in (_NUMBERS if METRICS_MAPS[map_id][1] == pa.int64() else {"bytes"}):
            raise NotCompilable(kind)
        kinds = (machine.TEXT_KEY if avro == "map" else 0) | (machine.BYTES_VALUE if value == "bytes" else 0)
        keyed = self._keys if map_id in STATS_SOURCES.values() else []
        if map_id in self._whole:
            column = self._fields[map_id] = ProjectedColumn(self._column(), "map", kinds)
            self._emit(machine.READ_ITEMS, column.slot, machine.PAIRS, kinds)
            if keyed:
                self._emit(machine.BACK, column.slot)
        if keyed:
            self._read_keys(map_id, keyed, kinds)

    def _pair(self, kind: Any) -> tuple[str, str]:
        avro = self._name(kind)
        if avro == "map":
            return avro, self._name(kind["values"])
        return avro, self._name(kind["items"]["fields"][1]["type"])

    def _read_keys(self, map_id: int, keys: list[int], kinds: int) -> None:
        value = "bytes" if kinds & machine.BYTES_VALUE else "long"
        columns = {key: self._column() for key in keys}
        self._metrics.update({(map_id, key): ProjectedColumn(index, value) for key, index in columns.items()})
        size = 8
        while size < 4 * len(keys):
            size *= 2
        number = self._emit(machine.READ_KEYS, size - 1, 0, kinds)
        self._tables.append((number, _hash_table(columns, size)))

    # Any type

    def _union_or(self, kind: Any, read: Callable[[Any], object], null: int = 0) -> None:
        """Emit the reading of a type, or of a union of it and null."""
        _present(kind)
        if isinstance(kind, list):
            self._union(kind, read, null)
        else:
            read(kind)

    def _union(self, branches: list[Any], emit: Callable[[Any], object], null: int = 0) -> None:
        """Emit a union.

        Args:
            emit: emits a branch.
            null: the reason to fail in the null branch; 0 to continue.
        """
        number = self._emit(machine.UNION, len(branches))
        targets = [-1] * len(branches)
        jumps: list[int] = []
        emitted = [index for index, branch in enumerate(branches) if branch != "null" or null]
        for index in emitted:
            if index != emitted[0]:
                jumps.append(self._emit(machine.JUMP))
            targets[index] = len(self._code)
            if branches[index] == "null":
                self._emit(machine.FAIL, null)
            else:
                emit(branches[index])
        self._set_targets(*jumps)
        end = len(self._code)
        self._tables.append((number, [_distance(number, end if target < 0 else target) for target in targets]))

    def _skip(self, kind: Any) -> None:
        avro = self._name(kind)
        if avro in _NUMBERS:
            self._emit(machine.SKIP_NUMBER)
        elif avro in _BYTES:
            self._emit(machine.SKIP_BYTES)
        elif avro == "union":
            self._union(kind, self._skip)
        elif avro == "record":
            for field in kind["fields"]:
                self._skip(field["type"])
        elif avro in {"array", "map"}:
            self._skip_items(["string", kind["values"]] if avro == "map" else [kind["items"]])
        elif size := self._size(kind):
            self._emit(machine.SKIP_FIXED, size)

    def _skip_items(self, item: list[Any]) -> None:
        leaves = [self._name(leaf) for kind in item for leaf in _leaves(kind)]
        if all(leaf in _NUMBERS for leaf in leaves):
            self._emit(machine.SKIP_ITEMS, machine.NUMBERS, len(leaves))
        elif len(leaves) == 2 and all(leaf in _NUMBERS | _BYTES for leaf in leaves):
            kinds = machine.TEXT_KEY * (leaves[0] in _BYTES) | machine.BYTES_VALUE * (leaves[1] in _BYTES)
            self._emit(machine.SKIP_ITEMS, machine.PAIRS, kinds)
        elif all(leaf == "fixed" or leaf in _FIXED_SIZES for leaf in leaves):
            size = sum(self._size(leaf) for kind in item for leaf in _leaves(kind))
            self._emit(machine.SKIP_ITEMS, machine.FIXED, size)
        else:
            self._skip_loop(item)

    def _skip_loop(self, item: list[Any]) -> None:
        loop = self._emit(machine.LOOP, 0, sum(smallest_size(kind, self._sizes) for kind in item))
        for kind in item:
            self._skip(kind)
        self._emit(machine.LOOP_END, _distance(len(self._code), loop))
        self._set_targets(loop)

    def _name(self, kind: Any) -> str:
        if isinstance(kind, list):
            return "union"
        if isinstance(kind, dict):
            return str(kind["type"])
        return "fixed" if kind in self._sizes else str(kind)

    def _size(self, kind: Any) -> int:
        """Return the size of a type of fixed size; 0 for null."""
        if isinstance(kind, dict):
            return int(kind["size"])
        return _FIXED_SIZES.get(kind) or self._sizes.get(kind, 0)


def _distance(number: int, target: int) -> int:
    """Return the distance from one instruction to another in bytes."""
    return (target - number) * machine.WIDTH * _WORD


def _present(kind: Any) -> Any:
    """Return the type, or the branch of a union that is not null."""
    if not isinstance(kind, list):
        return kind
    branches = [branch for branch in kind if branch != "null"]
    if len(branches) != 1 or len(kind) > 2:
        raise NotCompilable(kind)
    return branches[0]


def _leaves(kind: Any) -> Iterator[Any]:
    """Yield the types of a type's values in order, with records replaced by their fields."""
    if isinstance(kind, dict) and kind["type"] == "record":
        for field in kind["fields"]:
            yield from _leaves(field["type"])
    else:
        yield kind


def _hash_table(columns: dict[int, int], size: int) -> list[int]:
    """Return a hash table of (key, column) pairs by a key's lowest bits, with linear probing; -1 for no column."""
    table = [0, -1] * size
    for key, column in columns.items():
        index = key & (size - 1)
        while table[2 * index + 1] >= 0:
            index = (index + 1) & (size - 1)
        table[2 * index : 2 * index + 2] = [key, column]
    return table


# -- Decode blocks with a compiled program ----------------------------------------------------------------------------
# Neighbouring blocks are inflated into one buffer. The program fills the slots of a batch from it, and the slots
# become Arrow arrays. A large block fills the slots more than once, so arrays copy their values.


BATCH_BYTES = 4 << 20
"""Maximum inflated bytes of a batch, without its last record. A batch needs at most as much again for its columns."""

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
    max_records = max(_LEAST_RECORDS, min(batch_records, SLOT_BYTES // (_SLOT * max(1, program.columns))))
    for group, ends, inflated in _groups(data, blocks, header, program, location, max_records):
        ordinal = group[0].first_ordinal
        for records in _run(inflated, np.array(ends, np.int64), group, program, max_records, location):
            yield ordinal, records
            ordinal += len(records)


def _groups(
    data: Data, blocks: Iterable[Block], header: Header, program: Program, location: str, max_records: int
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
        if group and (records + block.count > max_records or size + len(inflated) > BATCH_BYTES):
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
    data: _Array, ends: _Array, blocks: list[Block], program: Program, max_records: int, location: str
) -> Iterator[ColumnarRecords]:
    counts = np.array([block.count for block in blocks], np.int64)
    state = np.array([0, 0, counts[0], 0], np.int64)
    code = program.code.copy()  # loops store their counters in it
    slots = np.empty((program.columns, 2, min(max_records, int(counts.sum()))), np.int64)
    while state[machine.BLOCK] < len(blocks):
        slots[:, 0], slots[:, 1] = 0, -1
        until = int(state[machine.POSITION]) + BATCH_BYTES
        records = machine.run(code, data, ends, counts, state, until, slots)
        if reason := int(state[machine.REASON]):
            problem = machine.PROBLEMS.get(reason, "a record can't be decoded")
            raise CorruptFileError(location, "block", blocks[state[machine.BLOCK]].offset, problem)
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

    @property
    def program(self) -> Program:
        """The program that has filled the slots."""
        return self._program

    @property
    def data(self) -> _Array:
        """The bytes of the records' blocks, with padding."""
        return self._data

    def slots_of(self, slot: int) -> _Array:
        """Return both words of a column's slots: for bytes, the position and the size, which is negative for null."""
        slots: _Array = self._slots[slot, :, : self._records]
        return slots

    def take(self, indices: _Array) -> ColumnarRecords:
        slots = np.take(self._slots, indices, axis=2)
        return ColumnarRecords(self._program, self._data, slots, len(indices), self._location)

    def copied(self, indices: _Array, numbers: Sequence[pa.Array], *, divided: bool, zeros: int) -> pa.BinaryArray:
        """Return records as EXISTING entries with their encoded data_file copied (`copy_entries`).

        The program must have four marks.

        Args:
            indices: the indices of the records.
            numbers: the numbers before the data_file of each record, and the one to insert into it if `divided`.
        """
        marks = np.ascontiguousarray(self._slots[list(self._program.marks), 0][:, indices])
        slots = [
            (pc.fill_null(column, 0).to_numpy(), -column.is_null().to_numpy(False).astype(np.int64))
            for column in numbers
        ]
        added_bytes = len(indices) * (machine.ENTRY_BYTES + machine.NUMBER_BYTES * len(numbers) + zeros)
        content = np.empty(int((marks[3] - marks[0]).sum()) + added_bytes + machine.PADDING, np.uint8)
        offsets = np.empty(len(indices) + 1, np.int64)
        machine.copy_entries(self._data, marks, np.array(slots, np.int64), int(divided), zeros, content, offsets)
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), len(indices), buffers)

    def _array(self, column: ProjectedColumn | None, kind: pa.DataType, field: str) -> pa.Array:
        if column is None:
            return pa.nulls(self._records, kind)
        try:
            if column.avro in {"array", "map"}:
                return self._items(column, kind)
            return self._scalars(column, kind)
        except ValueError as error:
            raise CorruptFileError(self._location, field, None, f"not {kind}: {error}"[:200]) from error

    def _scalars(self, column: ProjectedColumn, kind: pa.DataType) -> pa.Array:
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
        content = np.empty(int(offsets[-1]) + machine.PADDING, np.uint8)
        machine.take_bytes(self._data, starts, sizes, content)
        buffers = [_bitmap(sizes), pa.py_buffer(offsets), pa.py_buffer(content)]
        array = pa.Array.from_buffers(kind, len(starts), buffers)
        if pa.types.is_string(kind):
            array.validate(full=True)
        return array

    def _items(self, column: ProjectedColumn, kind: pa.DataType) -> pa.Array:
        starts, sizes = self._slots[column.slot, :, : self._records]
        offsets = _offsets(sizes)
        words = np.empty(int(offsets[-1]), np.int64)
        if column.avro == "array":
            count = machine.take_numbers(self._data, starts, sizes, words)
            _check_count(count, words)
            items = _numbers(words, None, kind.value_type)
        else:
            keys, lengths = np.empty_like(words), np.empty_like(words)
            count = machine.take_pairs(self._data, starts, sizes, column.kinds, keys, words, lengths)
            _check_count(count, words)
            has_bytes = column.kinds & machine.BYTES_VALUE
            values = self._bytes(words, lengths, kind.item_type) if has_bytes else _numbers(words, None, kind.item_type)
            fields = [pa.field("key", kind.key_type, nullable=False), kind.item_field]
            items = pa.StructArray.from_arrays([_numbers(keys, None, kind.key_type), values], fields=fields)
        buffers = [_bitmap(sizes), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(kind, len(starts), buffers, children=[items])


def _bitmap(sizes: _Array) -> pa.Buffer | None:
    """Return Arrow's validity bitmap of slots from their second words, which are negative for null."""
    valid = sizes >= 0
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _check_count(count: int, words: _Array) -> None:
    """Raise ValueError if not all items were copied."""
    if count != len(words):
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
