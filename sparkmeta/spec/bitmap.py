"""Read and write deletion vectors: `deletion-vector-v1` blobs (Puffin spec, Blob types).

A blob consists of its length, a magic number, Roaring bitmaps and a CRC-32. There is a 32-bit bitmap for each value of
the positions' upper 32 bits. Every length is checked before memory is allocated or the bitmap library is called.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkmeta.errors import CorruptFileError, ValidationError

if TYPE_CHECKING:
    from pyroaring import BitMap

MAGIC = b"\xd1\xd3\x39\x64"
MAX_KEY = (1 << 31) - 2
"""The largest key that Iceberg's readers accept."""
MAX_POSITION = (MAX_KEY << 32) | 0x80000000
"""The largest position that Iceberg's Java library supports."""

_FRAME_BYTES = 4 + len(MAGIC) + 4
_CHUNK = 1 << 20
_WINDOW = 1 << 24
# Up to this key, keys without positions are written as empty bitmaps of 12 bytes. Iceberg's Java library writes empty
# bitmaps for all missing keys.
_FILLED_TO = 1 << 10

# Cookies and thresholds of the Roaring format specification.
_WITH_RUNS = 12347
_WITHOUT_RUNS = 12346
_OFFSETS_FROM = 4
_ARRAY_MAX = 4096
_BITSET_BYTES = 8192
_MAX_CONTAINERS = 1 << 16


@dataclass(frozen=True)
class PositionBitmap:
    """An immutable set of row positions.

    Attributes:
        bitmaps: 32-bit bitmaps of the positions' lower bits, by their upper 32 bits. No bitmap is empty.
    """

    bitmaps: dict[int, BitMap]

    @classmethod
    def of(cls, positions: Iterable[int] | np.ndarray[Any, np.dtype[Any]]) -> PositionBitmap:
        """Return the bitmap of some positions.

        Args:
            positions: Integers in any order, with or without duplicates. A numpy array of an integer type is fastest.

        Raises:
            ValidationError: A position is not an integer between 0 and MAX_POSITION.
        """
        values = _checked(positions if isinstance(positions, np.ndarray) else np.array(list(positions)))
        if len(values) and values.max() >> 32 == 0:
            return cls({0: _bitmap_of(values)})
        keys = values >> 32
        return cls({int(key): _bitmap_of(values[keys == key]) for key in np.unique(keys)})

    @property
    def cardinality(self) -> int:
        return sum(map(len, self.bitmaps.values()))

    def union(self, other: PositionBitmap) -> PositionBitmap:
        """Return the positions that are in either bitmap."""
        shared = {key: self.bitmaps[key] | other.bitmaps[key] for key in self.bitmaps.keys() & other.bitmaps.keys()}
        return PositionBitmap(self.bitmaps | other.bitmaps | shared)

    def difference(self, other: PositionBitmap) -> PositionBitmap:
        """Return the positions that are in this bitmap and not in the other."""
        shared = {key: self.bitmaps[key] - other.bitmaps[key] for key in self.bitmaps.keys() & other.bitmaps.keys()}
        return PositionBitmap({key: bitmap for key, bitmap in (self.bitmaps | shared).items() if bitmap})

    def intersects(self, other: PositionBitmap) -> bool:
        """Return whether the bitmaps have a position in common."""
        shared = self.bitmaps.keys() & other.bitmaps.keys()
        return any(self.bitmaps[key].intersect(other.bitmaps[key]) for key in shared)

    def contains(self, position: int) -> bool:
        return position & 0xFFFFFFFF in self.bitmaps.get(position >> 32, ())

    def flags(self, start: int, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return whether each of the `length` positions from `start` on is in the bitmap."""
        from pyroaring import BitMap

        flags = np.zeros(length, np.bool_)
        for key in range(start >> 32, (start + length - 1 >> 32) + 1):
            offset = start - (key << 32)
            window = BitMap(range(max(offset, 0), min(offset + length, 1 << 32)))
            values = np.frombuffer((self.bitmaps.get(key, BitMap()) & window).to_array(), np.uint32)
            flags[values.astype(np.int64) - offset] = True
        return flags

    def max(self) -> int | None:
        """Return the largest position, or None if the bitmap is empty."""
        key = max(self.bitmaps, default=None)
        return None if key is None else (key << 32) + self.bitmaps[key].max()

    def positions(self) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
        """Yield the positions in ascending order, as int64 arrays of limited size."""
        for key, bitmap in sorted(self.bitmaps.items()):
            for values in _values(bitmap):
                for start in range(0, len(values), _CHUNK):
                    yield values[start : start + _CHUNK].astype(np.int64) + (key << 32)


def read_deletion_vector(blob: bytes, location: str, record_count: int | None = None) -> PositionBitmap:
    """Return the positions in a `deletion-vector-v1` blob.

    Args:
        blob: The bytes at the delete file's content_offset, content_size_in_bytes long.
        location: The file, for error messages.
        record_count: The delete file's record_count, which must equal the number of positions. None skips the check.

    Raises:
        CorruptFileError: The length, magic number, CRC, a key, a bitmap or the cardinality is wrong.
    """
    if len(blob) < _FRAME_BYTES + 8:
        raise CorruptFileError(location, "content_size_in_bytes", len(blob), "too short for a deletion vector")
    length = int.from_bytes(blob[:4], "big")
    if length != len(blob) - 8:
        raise CorruptFileError(location, "deletion vector length", length, f"the blob has room for {len(blob) - 8}")
    if blob[4:8] != MAGIC:
        raise CorruptFileError(location, "deletion vector magic", blob[4:8].hex(), f"expected {MAGIC.hex()}")
    checksum, expected = zlib.crc32(blob[4:-4]), int.from_bytes(blob[-4:], "big")
    if checksum != expected:
        raise CorruptFileError(location, "deletion vector CRC-32", f"{expected:08x}", f"the bytes have {checksum:08x}")
    bitmap = read_bitmap(blob[8:-4], location)
    _check_cardinality(bitmap, location, record_count)
    return bitmap


def _check_cardinality(bitmap: PositionBitmap, location: str, record_count: int | None) -> None:
    if record_count is not None and bitmap.cardinality != record_count:
        problem = f"the deletion vector has {bitmap.cardinality} positions"
        raise CorruptFileError(location, "record_count", record_count, problem)


def read_inline_vector(blob: bytes, location: str, record_count: int | None = None) -> PositionBitmap:
    """Return the positions in the inline_content of a manifest deletion vector (semantics 16.14).

    Args:
        blob: A `deletion-vector-v1` blob, recognized by its magic number, or bare 64-bit Roaring bitmaps.
        location: The root and the entry, for error messages.
        record_count: The entry's record_count, which must equal the number of positions. None skips the check.

    Raises:
        CorruptFileError: The content is invalid, see read_deletion_vector and read_bitmap.
    """
    if blob[4:8] == MAGIC:  # in bare bitmaps, these bytes are the upper half of the bitmap count, which is always zero
        return read_deletion_vector(blob, location, record_count)
    bitmap = read_bitmap(blob, location)
    _check_cardinality(bitmap, location, record_count)
    return bitmap


def write_deletion_vector(bitmap: PositionBitmap) -> bytes:
    """Return the `deletion-vector-v1` blob of the positions, with the same bytes that Iceberg's Java library writes.

    There is one difference: missing keys above 1,024 (positions above 2^42) are left out, which readers accept. Java
    writes empty bitmaps for them.
    """
    framed = MAGIC + write_bitmap(bitmap)
    return len(framed).to_bytes(4, "big") + framed + zlib.crc32(framed).to_bytes(4, "big")


def write_bitmap(bitmap: PositionBitmap) -> bytes:
    """Serialize positions as 64-bit Roaring bitmaps, in the portable format.

    Keys are in ascending order. A bitmap uses run containers where they are smaller.
    """
    from pyroaring import BitMap

    filled = range(min(max(bitmap.bitmaps, default=-1), _FILLED_TO) + 1)
    keys = sorted({*bitmap.bitmaps, *filled})
    parts = [len(keys).to_bytes(8, "little")]
    for key in keys:
        optimized = BitMap(bitmap.bitmaps.get(key, ()), optimize=True)
        parts += [key.to_bytes(4, "little"), optimized.serialize()]
    return b"".join(parts)


def read_bitmap(data: bytes, location: str) -> PositionBitmap:
    """Return the positions of 64-bit Roaring bitmaps in the portable format.

    Args:
        data: The serialized bitmaps. Keys need not be consecutive.
        location: The file, for error messages.

    Raises:
        CorruptFileError: A key is out of order or out of range, a bitmap is invalid, or bytes are missing or left over.
    """
    count, position, last_key = _uint(data, 0, 8, "bitmap count", location), 8, -1
    if count > len(data) // 4:
        raise CorruptFileError(location, "bitmap count", count, f"{len(data)} bytes can't hold as many")
    bitmaps: dict[int, BitMap] = {}
    for _ in range(count):
        key = _uint(data, position, 4, "bitmap key", location)
        if not last_key < key <= MAX_KEY:
            raise CorruptFileError(location, "bitmap key", key, f"not in ascending order up to {MAX_KEY}")
        length = _bitmap_length(data, position + 4, location)
        if bitmap := _bitmap(_take(data, position + 4, length, "bitmap", location), location):
            bitmaps[key] = bitmap
        position, last_key = position + 4 + length, key
    if position != len(data):
        raise CorruptFileError(location, "bitmap length", len(data), f"the bitmaps end at byte {position}")
    return PositionBitmap(bitmaps)


def _checked(values: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    if not len(values):
        return values.astype(np.int64)
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise ValidationError(f"row positions of type {values.dtype}: they are whole numbers of at most {MAX_POSITION}")
    for extreme in (int(values.min()), int(values.max())):
        if not 0 <= extreme <= MAX_POSITION:
            raise ValidationError(f"row position {extreme}: a position is at least 0 and at most {MAX_POSITION}")
    return values.astype(np.int64, copy=False)


def _bitmap_of(values: np.ndarray[Any, np.dtype[np.int64]]) -> BitMap:
    from pyroaring import BitMap

    return BitMap(array("I", (values & 0xFFFFFFFF).astype(np.uint32).tobytes()), optimize=False)


def _bitmap(data: bytes, location: str) -> BitMap:
    from pyroaring import BitMap

    try:
        return BitMap.deserialize(data)
    except ValueError as error:
        raise CorruptFileError(location, "bitmap", data[:8].hex(), f"not a Roaring bitmap: {error}") from error


def _values(bitmap: BitMap) -> Iterator[np.ndarray[Any, np.dtype[np.uint32]]]:
    """Yield a bitmap's values: in one array, or window by window if the bitmap has more than _WINDOW values."""
    from pyroaring import BitMap

    if len(bitmap) <= _WINDOW:
        yield np.frombuffer(bitmap.to_array(), np.uint32)
        return
    for start in range(bitmap.min() // _WINDOW * _WINDOW, bitmap.max() + 1, _WINDOW):
        yield np.frombuffer((bitmap & BitMap(range(start, start + _WINDOW))).to_array(), np.uint32)


def _bitmap_length(data: bytes, start: int, location: str) -> int:
    """Return the size in bytes of the 32-bit bitmap at `start`, computed from its header (Roaring format spec)."""
    runs, header = _run_flags(data, start, location)
    containers = len(runs)
    with_offsets = containers >= _OFFSETS_FROM or _uint(data, start, 2, "bitmap cookie", location) == _WITHOUT_RUNS
    descriptions = np.frombuffer(_take(data, header, 4 * containers, "bitmap containers", location), "<u2")
    position = header + (8 if with_offsets else 4) * containers
    cardinalities = descriptions[1::2].astype(np.int64) + 1
    sizes = np.where(cardinalities <= _ARRAY_MAX, 2 * cardinalities, _BITSET_BYTES)
    for size, is_run in zip(sizes.tolist(), runs.tolist(), strict=True):
        position += _run_length(data, position, location) if is_run else size
    return position - start


def _run_flags(data: bytes, start: int, location: str) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], int]:
    """Return whether each container is a run container, and the offset of the container descriptions."""
    cookie = _uint(data, start, 4, "bitmap cookie", location)
    if cookie & 0xFFFF == _WITH_RUNS:
        containers = (cookie >> 16) + 1
        flags = _take(data, start + 4, -(-containers // 8), "bitmap run flags", location)
        bits = np.unpackbits(np.frombuffer(flags, np.uint8), count=containers, bitorder="little")
        return bits.astype(bool), start + 4 + len(flags)
    if cookie != _WITHOUT_RUNS:
        raise CorruptFileError(location, "bitmap cookie", cookie, "not a Roaring bitmap")
    containers = _uint(data, start + 4, 4, "bitmap size", location)
    if containers > _MAX_CONTAINERS:
        raise CorruptFileError(
            location, "bitmap size", containers, f"a bitmap has at most {_MAX_CONTAINERS} containers"
        )
    return np.zeros(containers, bool), start + 8


def _run_length(data: bytes, position: int, location: str) -> int:
    return 2 + 4 * _uint(data, position, 2, "bitmap runs", location)


def _uint(data: bytes, start: int, size: int, field: str, location: str) -> int:
    return int.from_bytes(_take(data, start, size, field, location), "little")


def _take(data: bytes, start: int, size: int, field: str, location: str) -> bytes:
    if start + size > len(data):
        raise CorruptFileError(location, field, size, f"only {max(0, len(data) - start)} bytes are left")
    return data[start : start + size]
