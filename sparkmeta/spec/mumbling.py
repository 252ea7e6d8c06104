"""Mumbling bitmaps: the positions of manifest deletion vectors in the Iceberg project's trees (docs/layout.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np

from sparkmeta.errors import CorruptFileError

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Positions = np.ndarray[Any, np.dtype[np.int64]]

_VERSION: Final = 1
_HEADER_BYTES: Final = 6
_CONTAINER: Final = 256
"""The number of positions that a container covers."""
_DENSE: Final = 0x20
"""The descriptor of a container with a bit for each position. A smaller descriptor is the number of its positions."""
_DENSE_BYTES: Final = _CONTAINER // 8
_MAX_CONTAINERS: Final = 8192
_CHUNK: Final = 256
"""The number of values in a chunk of packed numbers."""
_CHUNK_HEADER_BYTES: Final = 3
_BYTE_BITS: Final = 8

MOST_POSITIONS: Final = _MAX_CONTAINERS * _CONTAINER


def read_mumbling(data: bytes, location: str, field: str) -> _Positions:
    """Return the positions of a bitmap, in ascending order.

    Args:
        data: the bitmap.
        location: the file that contains it, for errors.
        field: the field that contains it, for errors.

    Raises:
        CorruptFileError: the bytes are truncated, are followed by others, or break a rule of the format.
    """
    source = _Source(np.frombuffer(data, np.uint8), location, field)
    header = source.take(0, _HEADER_BYTES)
    if header[0] != _VERSION:
        source.refuse(int(header[0]), f"the version of a Mumbling bitmap is {_VERSION}")
    cardinality, count = int.from_bytes(header[1:4], "little"), int.from_bytes(header[4:6], "little")
    if count > _MAX_CONTAINERS:
        source.refuse(count, f"a Mumbling bitmap has at most {_MAX_CONTAINERS} containers")
    descriptors, start = _unpacked(source, count)
    if (wrong := descriptors > _DENSE).any():
        source.refuse(int(descriptors[wrong][0]), "the descriptor of a container is at most 32")
    sizes = descriptors.astype(np.int64)
    ends = start + np.cumsum(sizes)
    end = int(ends[-1]) if count else start
    if end != len(data):
        source.refuse(len(data), f"the Mumbling bitmap has {end} bytes by its containers")
    is_dense = descriptors == _DENSE
    sparse = _sparse_positions(source, np.flatnonzero(~is_dense), sizes, ends - sizes)
    dense = _dense_positions(source, np.flatnonzero(is_dense), ends - sizes)
    positions = np.sort(np.concatenate([sparse, dense]))
    if len(positions) != cardinality:
        source.refuse(cardinality, f"the Mumbling bitmap has {len(positions)} positions")
    return positions


def write_mumbling(positions: _Positions) -> bytes:
    """Encode distinct positions below `MOST_POSITIONS` as a bitmap."""
    ordered = np.sort(np.asarray(positions, np.int64))
    count = int(ordered[-1]) // _CONTAINER + 1 if len(ordered) else 0
    if count > _MAX_CONTAINERS or (len(ordered) and (ordered[0] < 0 or (np.diff(ordered) == 0).any())):
        raise ValueError(f"positions of a Mumbling bitmap are distinct and below {MOST_POSITIONS}")
    containers, offsets = ordered // _CONTAINER, (ordered % _CONTAINER).astype(np.uint8)
    counts = np.bincount(containers, minlength=count)
    is_dense = counts >= _DENSE
    descriptors = np.where(is_dense, _DENSE, counts).astype(np.uint8)
    bits = np.zeros((count, _CONTAINER), np.bool_)
    bits[containers, offsets] = True
    starts = np.cumsum(counts) - counts
    contents = [
        np.packbits(bits[index]).tobytes()
        if is_dense[index]
        else offsets[starts[index] : starts[index] + counts[index]].tobytes()
        for index in range(count)
    ]
    header = bytes([_VERSION]) + len(ordered).to_bytes(3, "little") + count.to_bytes(2, "little")
    return b"".join([header, _packed(descriptors), *contents])


def _sparse_positions(source: _Source, indices: _Positions, sizes: _Positions, starts: _Positions) -> _Positions:
    counts = sizes[indices]
    containers = np.repeat(indices, counts)
    within = np.arange(len(containers)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions: _Positions = containers * _CONTAINER + source.data[starts[containers] + within]
    descending = np.flatnonzero(np.diff(positions) <= 0)
    if len(descending):
        source.refuse(int(positions[descending[0] + 1]), "the positions of a container don't ascend")
    return positions


def _dense_positions(source: _Source, indices: _Positions, starts: _Positions) -> _Positions:
    blocks = source.data[starts[indices][:, None] + np.arange(_DENSE_BYTES)]
    rows, offsets = np.nonzero(np.unpackbits(blocks, axis=1))
    counts = np.bincount(rows, minlength=len(indices))
    if (wrong := counts < _DENSE).any():
        source.refuse(
            int(counts[wrong][0]), f"a container with a bit for each position has at least {_DENSE} positions"
        )
    return indices[rows] * _CONTAINER + offsets


# -- Packed numbers ---------------------------------------------------------------------------------------------------
# A chunk stores the minimum of its values, the low bits of the differences from it, and the higher bits of exceptions.


def _unpacked(source: _Source, count: int) -> tuple[_Bytes, int]:
    """Return `count` packed values that follow the header, and the index of the byte after them."""
    start, chunks = _HEADER_BYTES, []
    for first in range(0, count, _CHUNK):
        values, start = _unpacked_chunk(source, start, min(_CHUNK, count - first))
        chunks.append(values)
    return np.concatenate([np.empty(0, np.uint8), *chunks]), start


def _unpacked_chunk(source: _Source, start: int, count: int) -> tuple[_Bytes, int]:
    widths, exceptions, minimum = (int(byte) for byte in source.take(start, _CHUNK_HEADER_BYTES))
    low, high = widths & 0xF, widths >> 4
    if low > _BYTE_BITS or low + high > _BYTE_BITS or exceptions > count:
        source.refuse(widths, "the bits of packed numbers exceed a byte, or there are more exceptions than numbers")
    start += _CHUNK_HEADER_BYTES
    values, start = _bits(source, start, count, low)
    exception_indices = source.take(start, exceptions)
    start += exceptions
    if exceptions and int(exception_indices.max()) >= count:
        source.refuse(int(exception_indices.max()), f"the chunk has {count} packed numbers")
    higher, start = _bits(source, start, exceptions, high)
    np.bitwise_or.at(values, exception_indices, higher << low)
    values = values + minimum
    if len(values) and int(values.max()) > 0xFF:
        source.refuse(int(values.max()), "a packed number exceeds a byte")
    return values.astype(np.uint8), start


def _bits(source: _Source, start: int, count: int, width: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Return `count` numbers of `width` bits each, and the index of the byte after them."""
    size = -(-count * width // _BYTE_BITS)
    bits = np.unpackbits(source.take(start, size))[: count * width].reshape(count, width).astype(np.int64)
    weights = 1 << np.arange(width - 1, -1, -1)
    return bits @ weights if width else np.zeros(count, np.int64), start + size


def _packed(values: _Bytes) -> bytes:
    return b"".join(_packed_chunk(values[first : first + _CHUNK]) for first in range(0, len(values), _CHUNK))


def _packed_chunk(values: _Bytes) -> bytes:
    """Pack values into a chunk without exceptions."""
    minimum = int(values.min())
    differences = values - minimum
    width = int(differences.max()).bit_length()
    bits = np.unpackbits(differences[:, None], axis=1)[:, _BYTE_BITS - width :]
    return bytes([width, 0, minimum]) + np.packbits(bits.ravel()).tobytes()


@dataclass(frozen=True)
class _Source:
    """The bytes of a bitmap.

    Attributes:
        data: the bytes.
        location: the file that contains the bitmap.
        field: the field that contains the bitmap.
    """

    data: _Bytes
    location: str
    field: str

    def take(self, start: int, size: int) -> _Bytes:
        """Return `size` bytes from `start` on. Raise CorruptFileError if there are fewer."""
        if start + size > len(self.data):
            self.refuse(len(self.data), "the Mumbling bitmap is cut")
        return self.data[start : start + size]

    def refuse(self, value: Any, problem: str) -> NoReturn:
        """Raise CorruptFileError."""
        raise CorruptFileError(self.location, self.field, value, problem)
