"""Read parts of ORC files that Arrow's reader does not expose, such as timestamps out of its range.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import orc

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec.varints import decoded_varint, encoded_varint

# -- Parts of ORC files (ORC Specification v1) ------------------------------------------------------------------------
# Spark tasks import this module, so it imports little.


Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Field(NamedTuple):
    """A field of a protobuf message: a number if the wire type is 0, else bytes."""

    number: int
    wire_type: int
    value: Any


_VARINT, BYTES = 0, 2
_FIXED_SIZES: Final = {1: 8, 5: 4}

# Kinds of types and of streams.
TIMESTAMPS: Final = (9, 18)
SECONDARY: Final = 5
_NO_CODEC, _ZLIB, _SNAPPY, _LZ4, _ZSTD = 0, 1, 2, 4, 5
# An LZ4 frame without checksums, which ORC's blocks lack.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x70\x73"
_LZ4_END: Final = bytes(4)

_WIDTHS: Final = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
_MOST_IN_RUN: Final = 512


class OrcParts:
    """The tail of an ORC file, and its bytes.

    Attributes:
        script: the fields of the postscript.
        footer: the fields of the footer.
        footer_start: the offset of the footer in the file.
    """

    def __init__(self, source: pa.NativeFile, location: str) -> None:
        """Read the tail.

        Args:
            source: the open file.
            location: the file, for error messages.
        """
        self._source, self._location = source, location
        size = source.size()
        script_size = self.read(size - 1, 1)[0]
        self.script = parsed(self.read(size - 1 - script_size, script_size))
        values = {field.number: field.value for field in self.script}
        self._codec, self._block = values.get(2, _NO_CODEC), values.get(3, 1 << 18)
        self.footer_start = size - 1 - script_size - values[1]
        self.footer = parsed(self.decoded(self.read(self.footer_start, values[1])))

    def read(self, start: int, size: int) -> bytes:
        """Return stored bytes of the file, without decoding them."""
        self._source.seek(start)
        data: bytes = self._source.read(size)
        if len(data) < size:
            raise CorruptFileError(self._location, "length", start + len(data), f"{size} bytes begin at {start}")
        return data

    def decoded(self, data: bytes) -> bytes:
        """Decode chunks, which may be compressed, to plain bytes."""
        if self._codec == _NO_CODEC:
            return data
        parts, offset = [], 0
        while offset < len(data):
            header = int.from_bytes(data[offset : offset + 3], "little")
            chunk = data[offset + 3 : offset + 3 + (header >> 1)]
            parts.append(chunk if header & 1 else self._inflated(chunk))
            offset += 3 + len(chunk)
        return b"".join(parts)

    def _inflated(self, chunk: bytes) -> bytes:
        if self._codec == _ZLIB:
            return zlib.decompress(chunk, -15)
        if self._codec == _ZSTD:
            return _read_compressed(chunk, "zstd")
        if self._codec == _LZ4:
            return _read_compressed(_LZ4_HEADER + len(chunk).to_bytes(4, "little") + chunk + _LZ4_END, "lz4")
        if self._codec == _SNAPPY:
            size, _ = decoded_varint(chunk, 0)
            return bytes(pa.decompress(chunk, size, codec="snappy", asbytes=True))
        raise UnsupportedError(f"{self._location}: timestamps that are compressed by ORC's codec {self._codec}")

    def stored(self, data: bytes) -> bytes:
        """Encode plain bytes as uncompressed chunks."""
        if self._codec == _NO_CODEC:
            return data
        chunks = [data[start : start + self._block] for start in range(0, len(data), self._block)]
        return b"".join((len(chunk) << 1 | 1).to_bytes(3, "little") + chunk for chunk in chunks)

    def tail(self, footer: Sequence[Field], metadata_size: int | None = None) -> bytes:
        """Return a footer and the postscript after it.

        Args:
            footer: the fields of the footer.
            metadata_size: the size of the section before the footer; None for the size in this file.
        """
        stored = self.stored(encoded(footer))
        sizes = {1: len(stored)} if metadata_size is None else {1: len(stored), 5: metadata_size}
        script = encoded(field._replace(value=sizes.get(field.number, field.value)) for field in self.script)
        return stored + script + bytes([len(script)])


def _read_compressed(data: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        decompressed: bytes = stream.read()
    return decompressed


# -- Protocol buffers -------------------------------------------------------------------------------------------------


def parsed(data: bytes) -> list[Field]:
    """Decode the fields of a message."""
    fields, offset = [], 0
    while offset < len(data):
        key, offset = decoded_varint(data, offset)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, offset = decoded_varint(data, offset)
            fields.append(Field(number, wire_type, value))
            continue
        size = _FIXED_SIZES.get(wire_type)
        if size is None:
            size, offset = decoded_varint(data, offset)
        fields.append(Field(number, wire_type, data[offset : offset + size]))
        offset += size
    return fields


def number_in(message: bytes, number: int) -> int:
    """Return the number in a field of a message; 0 if the message lacks the field."""
    return next((int(field.value) for field in parsed(message) if field.number == number), 0)


def encoded(fields: Iterable[Field]) -> bytes:
    """Encode the fields of a message."""
    parts = []
    for number, wire_type, value in fields:
        parts.append(encoded_varint(number << 3 | wire_type))
        if wire_type == _VARINT:
            parts.append(encoded_varint(value))
        else:
            parts += [encoded_varint(len(value))] * (wire_type == BYTES) + [value]
    return b"".join(parts)


def with_numbers(message: bytes, numbers: dict[int, int]) -> bytes:
    """Return a message with other numbers in some of its fields."""
    return encoded(field._replace(value=numbers.get(field.number, field.value)) for field in parsed(message))


# -- Run length encoding ----------------------------------------------------------------------------------------------


def decoded_runs(data: bytes) -> Iterator[Numbers]:
    """Yield the runs of unsigned numbers."""
    offset = 0
    while offset < len(data):
        header = data[offset]
        if header >> 6 == 0:
            size = (header >> 3 & 7) + 1
            value = int.from_bytes(data[offset + 1 : offset + 1 + size], "big")
            yield np.full((header & 7) + 3, value, np.uint64).astype(np.int64)
            offset += 1 + size
            continue
        code, count = header >> 1 & 31, ((header & 1) << 8 | data[offset + 1]) + 1
        run, offset = _LONG_RUNS[header >> 6](data, offset + 2, code, count)
        yield run


def encoded_runs(values: Numbers) -> bytes:
    """Encode non-negative numbers, in runs of numbers of equal width."""
    parts = []
    for start in range(0, len(values), _MOST_IN_RUN):
        run = values[start : start + _MOST_IN_RUN]
        code = next(code for code, width in enumerate(_WIDTHS) if int(run.max()) < 1 << width)
        bits = run[:, np.newaxis] >> np.arange(_WIDTHS[code] - 1, -1, -1) & 1
        length_code = len(run) - 1
        parts.append(
            bytes([0x40 | code << 1 | length_code >> 8, length_code & 0xFF])
            + np.packbits(bits.astype(np.uint8)).tobytes()
        )
    return b"".join(parts)


def _direct(data: bytes, offset: int, code: int, count: int) -> tuple[Numbers, int]:
    return _unpacked(data, offset, _WIDTHS[code], count)


def _patched(data: bytes, offset: int, code: int, count: int) -> tuple[Numbers, int]:
    width, patch_width = _WIDTHS[code], _WIDTHS[data[offset] & 31]
    base_size, gap_width, patches = (data[offset] >> 5) + 1, (data[offset + 1] >> 5) + 1, data[offset + 1] & 31
    offset += 2
    base = int.from_bytes(data[offset : offset + base_size], "big")
    values, offset = _unpacked(data, offset + base_size, width, count)
    entry_width = next(fixed for fixed in _WIDTHS if fixed >= gap_width + patch_width)
    entries, offset = _unpacked(data, offset, entry_width, patches)
    position = 0
    for entry in entries.tolist():
        position += entry >> patch_width
        values[position] |= (entry & ((1 << patch_width) - 1)) << width
    return values + base, offset


def _deltas(data: bytes, offset: int, code: int, count: int) -> tuple[Numbers, int]:
    base, offset = decoded_varint(data, offset)
    zigzag, offset = decoded_varint(data, offset)
    delta = (zigzag >> 1) ^ -(zigzag & 1)
    steps = np.full(count, delta, np.int64)
    steps[0] = np.uint64(base).astype(np.int64)
    if code:
        sizes, offset = _unpacked(data, offset, _WIDTHS[code], count - 2)
        steps[2:] = -sizes if delta < 0 else sizes
    return np.cumsum(steps), offset


_LONG_RUNS: Final = {1: _direct, 2: _patched, 3: _deltas}


def _unpacked(data: bytes, offset: int, width: int, count: int) -> tuple[Numbers, int]:
    """Decode numbers of `width` bits, highest bit first. Return them and the end of their bytes."""
    end = offset + -(-width * count // 8)
    bits = np.unpackbits(np.frombuffer(data[offset:end], np.uint8))[: width * count].reshape(count, width)
    powers = np.left_shift(np.uint64(1), np.arange(width - 1, -1, -1, dtype=np.uint64))
    return (bits @ powers).astype(np.int64), end


# -- Timestamps beyond 64-bit nanoseconds -----------------------------------------------------------------------------
# ORC stores the seconds of a timestamp in one stream of its column and the nanoseconds in another. Arrow reads the
# seconds, also of nested columns, if the file's footer declares them as longs. The nanoseconds are decoded here.
#
# Spark tasks import this module, so it imports little.


# The kind of the type long, and a kind of column encoding, in ORC.
_LONG: Final = 4
_DIRECT_V2: Final = 2

_UTC: Final = ("", "UTC", "GMT", "Etc/UTC")
# ORC timestamps count seconds from the beginning of 2015.
_EPOCH: Final = 1_420_070_400
# The last second whose microseconds fit into 64 bits.
_LAST_SECOND: Final = 9_223_372_036_853


class OrcSeconds:
    """An ORC file whose timestamps are read as seconds and nanoseconds."""

    def __init__(self, source: pa.NativeFile, location: str) -> None:
        """Read the file's footer.

        Args:
            source: the open file.
            location: the file, for error messages.
        """
        self._parts, self._location = OrcParts(source, location), location
        tail = self._parts.tail([*map(_with_longs, self._parts.footer)])
        self._file = orc.ORCFile(pa.PythonFile(_Patched(source, self._parts.footer_start, tail), mode="r"))

    def read_stripe(self, number: int, names: list[str], schema: pa.Schema) -> pa.RecordBatch:
        """Read columns of a stripe.

        Args:
            number: the index of the stripe.
            names: the names of the columns.
            schema: the Arrow schema of the file.

        Raises:
            CorruptFileError: the stripe is damaged.
            UnsupportedError: timestamps have an encoding that current writers don't use.
        """
        batch = self._file.read_stripe(number, names)
        nanos = _Nanos(
            self._parts, [field.value for field in self._parts.footer if field.number == 3][number], self._location
        )
        first_ids = dict(zip(schema.names, _first_ids(schema, 1), strict=True))
        fields = [schema.field(name) for name in batch.schema.names]
        columns = [
            nanos.restored(column, field.type, first_ids[field.name])
            for column, field in zip(batch.columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _Patched(io.RawIOBase):
    """A file whose end is replaced."""

    def __init__(self, source: pa.NativeFile, end: int, tail: bytes) -> None:
        self._source, self._end, self._tail = source, end, tail
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end + len(self._tail)}
        self._position = starts[whence] + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        total_size = self._end + len(self._tail)
        stop = total_size if size < 0 else min(self._position + size, total_size)
        start, self._position = self._position, max(self._position, stop)
        self._source.seek(min(start, self._end))
        data: bytes = self._source.read(max(0, min(stop, self._end) - start))
        return data + self._tail[max(0, start - self._end) : max(0, stop - self._end)]


class _Nanos:
    """The nanoseconds in a stripe."""

    def __init__(self, parts: OrcParts, stripe: bytes, location: str) -> None:
        self._parts, self._location = parts, location
        values = {field.number: field.value for field in parsed(stripe)}
        start, index_length, data_length, footer_length = (values.get(number, 0) for number in (1, 2, 3, 4))
        fields = parsed(parts.decoded(parts.read(start + index_length + data_length, footer_length)))
        self._encodings = [number_in(field.value, 1) for field in fields if field.number == 2]
        self._zone = next((field.value.decode() for field in fields if field.number == 3), "")
        self._streams: dict[int, tuple[int, int]] = {}
        for field in fields:
            if field.number == 1:
                size = number_in(field.value, 3)
                if number_in(field.value, 1) == SECONDARY:
                    self._streams[number_in(field.value, 2)] = (start, size)
                start += size

    def restored(self, array: pa.Array, kind: pa.DataType, type_id: int) -> pa.Array:
        """Replace the seconds in an array with timestamps.

        Args:
            array: the array with seconds.
            kind: its Arrow type, with timestamps.
            type_id: the id of the type in the file. Types are numbered in pre-order from the root.
        """
        if pa.types.is_timestamp(kind):
            return self._timestamps(array, kind, type_id)
        if not array.type.num_fields or array.type == kind:
            return array
        ids = _first_ids(_children(kind), type_id + 1)
        kinds = [field.type for field in _children(kind)]
        children = [
            self.restored(child, child_kind, child_id)
            for child, child_kind, child_id in zip(_arrays(array), kinds, ids, strict=True)
        ]
        mask = array.is_null()
        if pa.types.is_struct(kind):
            return pa.StructArray.from_arrays(children, [field.name for field in kind], mask=mask)
        offsets = array.offsets
        if pa.types.is_map(kind):
            return pa.MapArray.from_arrays(offsets, *children, mask=mask)
        return pa.ListArray.from_arrays(offsets, *children, mask=mask)

    def _timestamps(self, array: pa.Int64Array, kind: pa.TimestampType, type_id: int) -> pa.TimestampArray:
        if self._encodings[type_id] != _DIRECT_V2 or (kind.tz is None and self._zone not in _UTC):
            properties = f"encoding {self._encodings[type_id]} and zone {self._zone!r}"
            raise UnsupportedError(f"{self._location}: timestamps out of Arrow's range, of {properties}")
        valid = np.asarray(array.is_valid())
        seconds = np.asarray(array.drop_null(), np.int64) + _EPOCH
        stream = self._parts.decoded(self._parts.read(*self._streams.get(type_id, (0, 0))))
        nanos = _nanoseconds(stream, len(seconds))
        if len(nanos) != len(seconds):
            problem = f"there are {len(seconds)} values"
            raise CorruptFileError(self._location, f"nanoseconds of type {type_id}", len(nanos), problem)
        # ORC writers round seconds towards zero.
        seconds -= (seconds < 0) & (nanos > 999_999)
        if len(seconds) and max(seconds.max(), -seconds.min()) > _LAST_SECOND:
            raise CorruptFileError(self._location, f"seconds of type {type_id}", seconds.max(), "out of range")
        is_micros = not (nanos % 1000).any()
        values = np.zeros(len(array), np.int64)
        values[valid] = seconds * 1_000_000 + nanos // 1000 if is_micros else _exact_nanos(seconds, nanos)
        stamps = pa.array(values, mask=~valid)
        return stamps.view(pa.timestamp("us" if is_micros else "ns", kind.tz))


def _exact_nanos(seconds: Numbers, nanos: Numbers) -> Numbers:
    if np.abs(seconds).max() >= 1 << 33:
        raise ValueError("timestamps of nanoseconds are out of range")
    return seconds * 1_000_000_000 + nanos


def _arrays(array: pa.Array) -> list[pa.Array]:
    """Return the child arrays of a nested array."""
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    return [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(index) for index in range(kind.num_fields)]


def _first_ids(fields: Iterable[pa.Field], first: int) -> list[int]:
    """Return the type ids of consecutive fields."""
    ids = []
    for field in fields:
        ids.append(first)
        first += _type_count(field.type)
    return ids


def _type_count(kind: pa.DataType) -> int:
    return 1 + sum(_type_count(field.type) for field in _children(kind))


def _with_longs(field: Field) -> Field:
    """Return a field of the footer, with timestamp types changed to longs."""
    if field.number != 4 or number_in(field.value, 1) not in TIMESTAMPS:
        return field
    return field._replace(value=with_numbers(field.value, {1: _LONG}))


def _nanoseconds(stream: bytes, count: int) -> Numbers:
    """Decode a stream of nanoseconds. It stores each number without trailing decimal zeros, and the count of these."""
    runs = list(decoded_runs(stream))
    stored = np.concatenate(runs)[:count] if runs else np.zeros(0, np.int64)
    zeros = stored & 7
    return (stored >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)
