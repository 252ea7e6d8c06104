"""Compute buckets of Arrow arrays. Spark tasks import this."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.spec.transforms import hashed_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyiceberg.types import IcebergType

_MAX_HASH: Final = (1 << 31) - 1
_WORD: Final = 4
# Longer values are hashed alone, since a batch takes as many steps as its longest value has words.
_MAX_BATCHED_BYTES: Final = 256
_FIRST, _SECOND, _ADDED = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)


def buckets(num_buckets: int, columns: Sequence[tuple[pa.Array, IcebergType]]) -> pa.Array:
    """Return the buckets of rows, by the hash of one column or of several; null where all columns are null.

    Args:
        num_buckets: the number of buckets.
        columns: the values, and their Iceberg types. UUIDs are bytes.
    """
    parts = [_bytes(values, kind) for values, kind in columns]
    # Arrow leaves out rows of nulls if it skips nulls.
    joined = pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")
    results = (murmur3(joined) & np.uint32(_MAX_HASH)) % np.uint32(num_buckets)
    has_value = reduce(pc.or_, (part.is_valid() for part in parts))
    return pc.if_else(has_value, pa.array(results.astype(np.int32)), pa.scalar(None, pa.int32()))


def _bytes(values: pa.Array, kind: IcebergType) -> pa.Array:
    """Return the bytes from which the bucket of each value is computed (table spec, Appendix B)."""
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    if pa.types.is_decimal(values.type):
        coded = values.dictionary_encode("encode")
        distinct = [hashed_bytes(value, kind) for value in coded.dictionary.to_pylist()]
        return pa.array(distinct, pa.binary()).take(coded.indices)
    if not pa.types.is_integer(values.type):
        return values.cast(pa.binary())
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
    if str(kind).endswith("_ns"):
        numbers //= 1000
    longs = pa.Array.from_buffers(pa.binary(8), len(numbers), [None, pa.py_buffer(numbers.tobytes())])
    return pc.if_else(values.is_valid(), longs.cast(pa.binary()), pa.scalar(None, pa.binary()))


def murmur3(values: pa.BinaryArray) -> NDArray[np.uint32]:
    """Return the 32-bit Murmur3 hash, x86 variant, with the seed 0, of values without nulls."""
    if not len(values):
        return np.zeros(0, np.uint32)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    # Padded, so that no value ends less than four bytes before the end.
    data = np.concatenate([np.frombuffer(data_buffer or b"", np.uint8)[: offsets[-1]], np.zeros(_WORD, np.uint8)])
    hashes = np.zeros(len(values), np.uint32)
    rows, offset = np.flatnonzero(lengths <= _MAX_BATCHED_BYTES), 0
    while len(rows := rows[lengths[rows] >= offset + _WORD]):
        mixed = hashes[rows] ^ _scrambled(_words(data, starts[rows] + offset))
        hashes[rows] = _rotated(mixed, 13) * np.uint32(5) + _ADDED
        offset += _WORD
    rest = lengths % _WORD
    tails = _words(data, starts + lengths - rest) & ((np.uint32(1) << (8 * rest).astype(np.uint32)) - np.uint32(1))
    hashes ^= _scrambled(tails) ^ lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ hashes >> np.uint32(shift)) * np.uint32(factor)
    hashes ^= hashes >> np.uint32(16)
    for row in np.flatnonzero(lengths > _MAX_BATCHED_BYTES).tolist():
        hashes[row] = mmh3.hash(values[row].as_py(), signed=False)
    return hashes


def _words(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the four bytes at each offset as a number, with the least significant byte first."""
    return sum(  # type: ignore[return-value]
        data[starts + offset].astype(np.uint32) << np.uint32(8 * offset) for offset in range(_WORD)
    )


def _scrambled(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _rotated(words * _FIRST, 15) * _SECOND


def _rotated(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)
