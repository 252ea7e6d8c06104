"""Read ORC timestamps that are out of the range of Arrow's ORC reader, which uses 64-bit nanoseconds.

ORC stores the seconds of a timestamp in one stream of its column and the nanoseconds in another. Arrow reads the
seconds, also of nested columns, if the file's footer declares them as longs. The nanoseconds are decoded here (ORC
Specification v1: File Tail, Stripes, Run Length Encoding version 2).

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import orc

from sparkmeta.errors import CorruptFileError, UnsupportedError

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class _Field(NamedTuple):
    """A field of a protobuf message: a number if the wire type is 0, else bytes."""

    number: int
    wire_type: int
    value: Any


_VARINT, _BYTES = 0, 2
_FIXED_SIZES: Final = {1: 8, 5: 4}

# Kinds of types, streams and column encodings in ORC.
_LONG: Final = 4
_TIMESTAMP, _INSTANT = 9, 18
_SECONDARY: Final = 5
_DIRECT_V2: Final = 2
_NO_CODEC, _ZLIB, _SNAPPY, _ZSTD = 0, 1, 2, 5

_UTC: Final = ("", "UTC", "GMT", "Etc/UTC")
# ORC timestamps count seconds from the beginning of 2015.
_EPOCH: Final = 1_420_070_400
# The last second whose microseconds fit into 64 bits.
_LAST_SECOND: Final = 9_223_372_036_853
_WIDTHS: Final = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)


class OrcSeconds:
    """An ORC file whose timestamps are read as seconds and nanoseconds."""

    def __init__(self, source: pa.NativeFile, location: str) -> None:
        """Read the file's footer.

        Args:
            source: The open file.
            location: The file, for error messages.
        """
        self._source, self._location = source, location
        size = source.size()
        script_size = self._bytes(size - 1, 1)[0]
        script = _fields(self._bytes(size - 1 - script_size, script_size))
        values = {field.number: field.value for field in script}
        self._codec = values.get(2, _NO_CODEC)
        footer_start = size - 1 - script_size - values[1]
        self._footer = _fields(self._plain(self._bytes(footer_start, values[1])))
        footer = self._stored(_encoded(map(_with_longs, self._footer)), values.get(3, 1 << 18))
        script = [field._replace(value=len(footer)) if field.number == 1 else field for field in script]
        tail = footer + _encoded(script) + bytes([len(_encoded(script))])
        self._file = orc.ORCFile(pa.PythonFile(_Patched(source, footer_start, tail), mode="r"))

    def read_stripe(self, number: int, names: list[str], schema: pa.Schema) -> pa.RecordBatch:
        """Read columns of a stripe.

        Args:
            number: The index of the stripe.
            names: The names of the columns.
            schema: The Arrow schema of the file.

        Raises:
            CorruptFileError: The stripe is damaged.
            UnsupportedError: Timestamps have an encoding that current writers don't use.
        """
        batch = self._file.read_stripe(number, names)
        nanos = _Nanos(self, [field.value for field in self._footer if field.number == 3][number], self._location)
        first_ids = dict(zip(schema.names, _first_ids(schema, 1), strict=True))
        fields = [schema.field(name) for name in batch.schema.names]
        columns = [
            nanos.restored(column, field.type, first_ids[field.name])
            for column, field in zip(batch.columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def stripe_part(self, start: int, size: int) -> bytes:
        """Return decompressed bytes of a stripe."""
        return self._plain(self._bytes(start, size))

    def _bytes(self, start: int, size: int) -> bytes:
        self._source.seek(start)
        data: bytes = self._source.read(size)
        if len(data) < size:
            raise CorruptFileError(self._location, "length", start + len(data), f"{size} bytes begin at {start}")
        return data

    def _plain(self, data: bytes) -> bytes:
        """Decode chunks, each of which may be compressed, to plain bytes."""
        if self._codec == _NO_CODEC:
            return data
        parts, place = [], 0
        while place < len(data):
            header = int.from_bytes(data[place : place + 3], "little")
            chunk = data[place + 3 : place + 3 + (header >> 1)]
            parts.append(chunk if header & 1 else self._inflated(chunk))
            place += 3 + len(chunk)
        return b"".join(parts)

    def _inflated(self, chunk: bytes) -> bytes:
        if self._codec == _ZLIB:
            return zlib.decompress(chunk, -15)
        if self._codec == _ZSTD:
            with pa.CompressedInputStream(pa.BufferReader(chunk), "zstd") as stream:
                inflated: bytes = stream.read()
            return inflated
        if self._codec == _SNAPPY:
            size, _ = _varint(chunk, 0)
            return bytes(pa.decompress(chunk, size, codec="snappy", asbytes=True))
        raise UnsupportedError(
            f"{self._location}: timestamps out of Arrow's range, compressed by ORC's codec {self._codec}"
        )

    def _stored(self, data: bytes, most: int) -> bytes:
        """Encode the footer as uncompressed chunks."""
        if self._codec == _NO_CODEC:
            return data
        chunks = [data[start : start + most] for start in range(0, len(data), most)]
        return b"".join((len(chunk) << 1 | 1).to_bytes(3, "little") + chunk for chunk in chunks)


class _Patched(io.RawIOBase):
    """A file whose end is replaced."""

    def __init__(self, source: pa.NativeFile, end: int, tail: bytes) -> None:
        self._source, self._end, self._tail = source, end, tail
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._end + len(self._tail)}
        self._place = starts[whence] + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        last = self._end + len(self._tail)
        stop = last if size < 0 else min(self._place + size, last)
        start, self._place = self._place, max(self._place, stop)
        self._source.seek(min(start, self._end))
        data: bytes = self._source.read(max(0, min(stop, self._end) - start))
        return data + self._tail[max(0, start - self._end) : max(0, stop - self._end)]


class _Nanos:
    """The nanoseconds in a stripe."""

    def __init__(self, file: OrcSeconds, stripe: bytes, location: str) -> None:
        self._file, self._location = file, location
        values = {field.number: field.value for field in _fields(stripe)}
        start, index, data, footer = (values.get(number, 0) for number in (1, 2, 3, 4))
        fields = _fields(file.stripe_part(start + index + data, footer))
        self._encodings = [_value(field.value, 1) for field in fields if field.number == 2]
        self._zone = next((field.value.decode() for field in fields if field.number == 3), "")
        self._places: dict[int, tuple[int, int]] = {}
        for field in fields:
            if field.number == 1:
                size = _value(field.value, 3)
                if _value(field.value, 1) == _SECONDARY:
                    self._places[_value(field.value, 2)] = (start, size)
                start += size

    def restored(self, array: pa.Array, kind: pa.DataType, type_id: int) -> pa.Array:
        """Return an array with seconds replaced by timestamps.

        Args:
            array: The array with seconds.
            kind: Its Arrow type, with timestamps.
            type_id: The id of the type in the file. Types are numbered in pre-order from the root.
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
            how = f"encoding {self._encodings[type_id]} and zone {self._zone!r}"
            raise UnsupportedError(f"{self._location}: timestamps out of Arrow's range, of {how}")
        valid = np.asarray(array.is_valid())
        seconds = np.asarray(array.drop_null(), np.int64) + _EPOCH
        nanos = _nanoseconds(self._file.stripe_part(*self._places.get(type_id, (0, 0))), len(seconds))
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
    return [kind.field(place) for place in range(kind.num_fields)]


def _first_ids(fields: Iterable[pa.Field], first: int) -> list[int]:
    """Return the type ids of consecutive fields."""
    ids = []
    for field in fields:
        ids.append(first)
        first += _type_count(field.type)
    return ids


def _type_count(kind: pa.DataType) -> int:
    return 1 + sum(_type_count(field.type) for field in _children(kind))


# -- protobuf ---------------------------------------------------------------------------------------------------------


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Decode a varint at `place`. Return the number and the end of its bytes."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _fields(data: bytes) -> list[_Field]:
    fields, place = [], 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, place = _varint(data, place)
            fields.append(_Field(number, wire_type, value))
            continue
        size = _FIXED_SIZES.get(wire_type)
        if size is None:
            size, place = _varint(data, place)
        fields.append(_Field(number, wire_type, data[place : place + size]))
        place += size
    return fields


def _value(message: bytes, number: int) -> int:
    return next((int(field.value) for field in _fields(message) if field.number == number), 0)


def _encoded(fields: Iterable[_Field]) -> bytes:
    parts = []
    for number, wire_type, value in fields:
        parts.append(_encoded_varint(number << 3 | wire_type))
        if wire_type == _VARINT:
            parts.append(_encoded_varint(value))
        else:
            parts += [_encoded_varint(len(value))] * (wire_type == _BYTES) + [value]
    return b"".join(parts)


def _encoded_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _with_longs(field: _Field) -> _Field:
    """Return a field of the footer, with timestamp types changed to longs."""
    if field.number != 4 or _value(field.value, 1) not in (_TIMESTAMP, _INSTANT):
        return field
    kinds = [part._replace(value=_LONG) if part.number == 1 else part for part in _fields(field.value)]
    return field._replace(value=_encoded(kinds))


# -- run length encoding ----------------------------------------------------------------------------------------------


def _nanoseconds(stream: bytes, count: int) -> Numbers:
    """Decode a stream of nanoseconds, which stores numbers without trailing decimal zeros and the counts of these."""
    runs = list(_runs(stream))
    stored = np.concatenate(runs)[:count] if runs else np.zeros(0, np.int64)
    zeros = stored & 7
    return (stored >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)


def _runs(data: bytes) -> Iterator[Numbers]:
    """Yield the runs of unsigned numbers."""
    place = 0
    while place < len(data):
        first = data[place]
        if first >> 6 == 0:
            size = (first >> 3 & 7) + 1
            value = int.from_bytes(data[place + 1 : place + 1 + size], "big")
            yield np.full((first & 7) + 3, value, np.uint64).astype(np.int64)
            place += 1 + size
            continue
        code, count = first >> 1 & 31, ((first & 1) << 8 | data[place + 1]) + 1
        run, place = _LONG_RUNS[first >> 6](data, place + 2, code, count)
        yield run


def _direct(data: bytes, place: int, code: int, count: int) -> tuple[Numbers, int]:
    return _unpacked(data, place, _WIDTHS[code], count)


def _patched(data: bytes, place: int, code: int, count: int) -> tuple[Numbers, int]:
    width, patch_width = _WIDTHS[code], _WIDTHS[data[place] & 31]
    base_size, gap_width, patches = (data[place] >> 5) + 1, (data[place + 1] >> 5) + 1, data[place + 1] & 31
    place += 2
    base = int.from_bytes(data[place : place + base_size], "big")
    values, place = _unpacked(data, place + base_size, width, count)
    entry_width = next(fixed for fixed in _WIDTHS if fixed >= gap_width + patch_width)
    entries, place = _unpacked(data, place, entry_width, patches)
    position = 0
    for entry in entries.tolist():
        position += entry >> patch_width
        values[position] |= (entry & ((1 << patch_width) - 1)) << width
    return values + base, place


def _deltas(data: bytes, place: int, code: int, count: int) -> tuple[Numbers, int]:
    base, place = _varint(data, place)
    zigzag, place = _varint(data, place)
    delta = (zigzag >> 1) ^ -(zigzag & 1)
    steps = np.full(count, delta, np.int64)
    steps[0] = np.uint64(base).astype(np.int64)
    if code:
        sizes, place = _unpacked(data, place, _WIDTHS[code], count - 2)
        steps[2:] = -sizes if delta < 0 else sizes
    return np.cumsum(steps), place


_LONG_RUNS: Final = {1: _direct, 2: _patched, 3: _deltas}


def _unpacked(data: bytes, place: int, width: int, count: int) -> tuple[Numbers, int]:
    """Decode numbers of `width` bits, highest bit first. Return them and the end of their bytes."""
    end = place + -(-width * count // 8)
    bits = np.unpackbits(np.frombuffer(data[place:end], np.uint8))[: width * count].reshape(count, width)
    powers = np.left_shift(np.uint64(1), np.arange(width - 1, -1, -1, dtype=np.uint64))
    return (bits @ powers).astype(np.int64), end
