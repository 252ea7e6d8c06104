"""Theta sketches of Apache DataSketches, which Iceberg's table statistics hold (Puffin spec, blob types).

A sketch keeps the smallest hashes of a set of values, at most `MOST_HASHES`, and all that are below its theta. Sketches
of this module depend on the set of values only, not on their order or on how sketches of parts were merged. Hashes have
DataSketches' default seed, so that its libraries, and Iceberg's in Java, merge them with their own.

numpy hashes whole arrays of values; DataSketches' package for Python takes single values, and no bytes.
Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

BLOB_TYPE = "apache-datasketches-theta-v1"
NDV = "ndv"
"""The property of a blob that holds the estimated number of distinct values."""

MOST_HASHES = 4096
"""The nominal number of entries that Iceberg's writers use."""

_SEED = 9001
# The low bits of the seed's own hash, by which libraries recognize sketches that can be merged.
_SEED_HASH = 0x93CC
_ALL = (1 << 63) - 1
_COMPACT_FAMILY, _SERIAL_VERSION = 3, 3
_READ_ONLY, _EMPTY, _COMPACT, _ORDERED, _SINGLE = 2, 4, 8, 16, 32
_HEADER = struct.Struct("<BBBBBBH")
_WORD = 8
_BLOCK = 16


@dataclass(frozen=True)
class ThetaSketch:
    """A compact, ordered theta sketch.

    Attributes:
        hashes: the hashes below theta, ascending, without repeats.
        theta: the bound of the hashes, as a fraction of 2^63; the largest value if the sketch has them all.
    """

    hashes: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    theta: int = _ALL

    def with_hashes(self, hashes: Words) -> ThetaSketch:
        """Return the sketch with further values, given by their hashes in any order; 0 is not a hash."""
        ascending = np.sort(np.concatenate([self.hashes, hashes[hashes < self.theta]]))
        ascending = ascending[ascending.searchsorted(1) :]
        is_first = np.ones(len(ascending), bool)
        is_first[1:] = ascending[1:] != ascending[:-1]
        return _limited(ascending[is_first], self.theta)

    def union(self, other: ThetaSketch) -> ThetaSketch:
        """Return the sketch of the values of both."""
        lower, higher = (self, other) if self.theta <= other.theta else (other, self)
        return lower.with_hashes(higher.hashes)

    @cached_property
    def estimate(self) -> float:
        """The estimated number of distinct values, exact for at most `MOST_HASHES`."""
        return len(self.hashes) if self.theta == _ALL else len(self.hashes) / (self.theta / (1 << 63))

    def to_bytes(self) -> bytes:
        """Return the sketch in DataSketches' serial form, version 3."""
        count, is_exact = len(self.hashes), self.theta == _ALL
        flags = _READ_ONLY | _COMPACT | _ORDERED
        preamble = b""
        if is_exact and count == 0:
            flags |= _EMPTY
        elif is_exact and count == 1:
            flags |= _SINGLE
        else:
            preamble = struct.pack("<If", count, 1.0) + (b"" if is_exact else struct.pack("<Q", self.theta))
        words = 1 + len(preamble) // _WORD
        header = _HEADER.pack(words, _SERIAL_VERSION, _COMPACT_FAMILY, 0, 0, flags, _SEED_HASH)
        return header + preamble + self.hashes.astype("<u8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> ThetaSketch:
        """Return a compact sketch that was serialized.

        Raises:
            ValueError: the bytes are not an ordered compact sketch of version 3 with the default seed.
        """
        if len(data) < _HEADER.size:
            raise ValueError(f"a theta sketch of {len(data)} bytes")
        words, version, family, _, _, flags, seed = _HEADER.unpack_from(data)
        words &= 0x3F
        if (version, family) != (_SERIAL_VERSION, _COMPACT_FAMILY) or not flags & _ORDERED or words not in (1, 2, 3):
            raise ValueError(f"not an ordered compact theta sketch of version {_SERIAL_VERSION}: {data[:8].hex()}")
        if flags & _EMPTY:
            return ThetaSketch()
        if seed != _SEED_HASH:
            raise ValueError(f"a theta sketch with the seed hash {seed:#x}, not the default one")
        count = 1 if words == 1 else struct.unpack_from("<I", data, _WORD)[0]
        theta = struct.unpack_from("<Q", data, 2 * _WORD)[0] if words == 3 else _ALL
        if len(data) < _WORD * (words + count):
            raise ValueError(f"a theta sketch of {count} hashes in {len(data)} bytes")
        return ThetaSketch(np.frombuffer(data, "<u8", count, _WORD * words).astype(np.uint64), theta)


def _limited(hashes: Words, theta: int) -> ThetaSketch:
    if len(hashes) <= MOST_HASHES:
        return ThetaSketch(hashes, theta)
    return ThetaSketch(hashes[:MOST_HASHES].copy(), int(hashes[MOST_HASHES]))


# -- hashes: the first half of MurmurHash3_x64_128, without its lowest bit --------------------------------------------

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
# The bits of a word of which the first bytes are there.
_PRESENT = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


def hash_numbers(values: np.ndarray[Any, Any]) -> Words:
    """Return the hashes of numbers of at most 8 bytes, by their little-endian bytes."""
    width = values.dtype.itemsize
    words = np.ascontiguousarray(values).view(f"<u{width}").astype(np.uint64)
    start = np.full(len(words), _SEED, np.uint64)
    return _finished(start ^ _mixed_first(words), start.copy(), np.uint64(width))


def hash_bytes(
    data: np.ndarray[Any, np.dtype[np.uint8]], starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]
) -> Words:
    """Return the hashes of byte strings.

    Args:
        data: the bytes of all strings.
        starts: where each string begins in `data`.
        ends: where each string ends.
    """
    lengths = (ends - starts).astype(np.int64)
    padded = np.concatenate([data, np.zeros(_BLOCK, np.uint8)])
    first = np.full(len(lengths), _SEED, np.uint64)
    second = first.copy()
    blocks = lengths // _BLOCK
    # The longest strings first, so that those with a block of some number are a slice.
    order = np.argsort(-blocks, kind="stable")
    counts = blocks[order]
    for number in range(int(counts[0]) if len(counts) else 0):
        having = order[: np.searchsorted(-counts, -number, side="left")]
        words = _words(padded, starts[having] + number * _BLOCK)
        first[having], second[having] = _with_block(first[having], second[having], *words)
    tail = _words(padded, starts + blocks * _BLOCK)
    rest = lengths % _BLOCK
    second ^= _mixed_second(tail[1] & _PRESENT[np.clip(rest - _WORD, 0, _WORD)])
    first ^= _mixed_first(tail[0] & _PRESENT[np.clip(rest, 0, _WORD)])
    return _finished(first, second, lengths.astype(np.uint64))


def _words(padded: np.ndarray[Any, np.dtype[np.uint8]], places: np.ndarray[Any, Any]) -> tuple[Words, Words]:
    """Return the two words at each place."""
    block = padded[places[:, None] + np.arange(_BLOCK)].view("<u8").astype(np.uint64, copy=False)
    return block[:, 0], block[:, 1]


def _with_block(first: Words, second: Words, low: Words, high: Words) -> tuple[Words, Words]:
    first = _rotated(first ^ _mixed_first(low), 27) + second
    first = first * np.uint64(5) + np.uint64(0x52DCE729)
    second = _rotated(second ^ _mixed_second(high), 31) + first
    return first, second * np.uint64(5) + np.uint64(0x38495AB5)


def _mixed_first(words: Words) -> Words:
    return _rotated(words * _C1, 31) * _C2


def _mixed_second(words: Words) -> Words:
    return _rotated(words * _C2, 33) * _C1


def _finished(first: Words, second: Words, lengths: Words | np.uint64) -> Words:
    first, second = first ^ lengths, second ^ lengths
    first = first + second
    second = second + first
    return (_avalanched(first) + _avalanched(second)) >> np.uint64(1)


def _avalanched(words: Words) -> Words:
    words = (words ^ words >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ words >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ words >> np.uint64(33)


def _rotated(words: Words, bits: int) -> Words:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
