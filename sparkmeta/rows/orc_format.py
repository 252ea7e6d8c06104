"""The parts of ORC files that Arrow does not show (ORC Specification v1: File Tail, Stripes, Run Length Encoding).

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sparkmeta.errors import CorruptFileError, UnsupportedError

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
        footer_start: where the footer begins in the file.
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
        self.footer = parsed(self.plain(self.read(self.footer_start, values[1])))

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the file as they are stored."""
        self._source.seek(start)
        data: bytes = self._source.read(size)
        if len(data) < size:
            raise CorruptFileError(self._location, "length", start + len(data), f"{size} bytes begin at {start}")
        return data

    def plain(self, data: bytes) -> bytes:
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
            return _read_compressed(chunk, "zstd")
        if self._codec == _LZ4:
            return _read_compressed(_LZ4_HEADER + len(chunk).to_bytes(4, "little") + chunk + _LZ4_END, "lz4")
        if self._codec == _SNAPPY:
            size, _ = _varint(chunk, 0)
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
            metadata_size: the size of the section before the footer; None if it is as in this file.
        """
        stored = self.stored(encoded(footer))
        sizes = {1: len(stored)} if metadata_size is None else {1: len(stored), 5: metadata_size}
        script = encoded(field._replace(value=sizes.get(field.number, field.value)) for field in self.script)
        return stored + script + bytes([len(script)])


def _read_compressed(data: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        plain: bytes = stream.read()
    return plain


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


def parsed(data: bytes) -> list[Field]:
    """Decode the fields of a message."""
    fields, place = [], 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, place = _varint(data, place)
            fields.append(Field(number, wire_type, value))
            continue
        size = _FIXED_SIZES.get(wire_type)
        if size is None:
            size, place = _varint(data, place)
        fields.append(Field(number, wire_type, data[place : place + size]))
        place += size
    return fields


def number_in(message: bytes, number: int) -> int:
    """Return the number in a field of a message; 0 if it is not there."""
    return next((int(field.value) for field in parsed(message) if field.number == number), 0)


def encoded(fields: Iterable[Field]) -> bytes:
    """Encode the fields of a message."""
    parts = []
    for number, wire_type, value in fields:
        parts.append(_encoded_varint(number << 3 | wire_type))
        if wire_type == _VARINT:
            parts.append(_encoded_varint(value))
        else:
            parts += [_encoded_varint(len(value))] * (wire_type == BYTES) + [value]
    return b"".join(parts)


def with_numbers(message: bytes, numbers: dict[int, int]) -> bytes:
    """Return a message with other numbers in some of its fields."""
    return encoded(field._replace(value=numbers.get(field.number, field.value)) for field in parsed(message))


def _encoded_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


# -- run length encoding ----------------------------------------------------------------------------------------------


def decoded_runs(data: bytes) -> Iterator[Numbers]:
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


def encoded_runs(values: Numbers) -> bytes:
    """Encode numbers of which none is negative, in runs of numbers of equal width."""
    parts = []
    for start in range(0, len(values), _MOST_IN_RUN):
        run = values[start : start + _MOST_IN_RUN]
        code = next(code for code, width in enumerate(_WIDTHS) if int(run.max()) < 1 << width)
        bits = run[:, np.newaxis] >> np.arange(_WIDTHS[code] - 1, -1, -1) & 1
        most = len(run) - 1
        parts.append(bytes([0x40 | code << 1 | most >> 8, most & 0xFF]) + np.packbits(bits.astype(np.uint8)).tobytes())
    return b"".join(parts)


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
