"""The deletion vector codec: what Iceberg's Java library writes, and every way in which a blob can be wrong."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from sparkmeta.errors import CorruptFileError
from sparkmeta.spec import bitmap
from sparkmeta.spec.bitmap import MAGIC, MAX_KEY, PositionBitmap, read_bitmap, read_deletion_vector

# The deletion vector of no positions, as the Puffin spec's rules give it.
EMPTY = bytes.fromhex("0000000c d1d33964 0000000000000000 bf18480c")


def vector(bitmaps: dict[int, BitMap]) -> bytes:
    """The portable serialization of 64-bit bitmaps."""
    parts = [struct.pack("<I", key) + one.serialize() for key, one in bitmaps.items()]
    return struct.pack("<Q", len(bitmaps)) + b"".join(parts)


def blob(content: bytes) -> bytes:
    framed = MAGIC + content
    return struct.pack(">I", len(framed)) + framed + struct.pack(">I", zlib.crc32(framed))


def positions(read: PositionBitmap) -> list[int]:
    chunks = list(read.positions())
    return [int(one) for one in np.concatenate(chunks)] if chunks else []


def optimized(values: range | list[int]) -> BitMap:
    made = BitMap(values)
    made.run_optimize()
    return made


@given(
    st.sets(st.integers(0, (MAX_KEY << 32) | 0xFFFFFFFF), max_size=30), st.integers(0, 1 << 40), st.integers(0, 9000)
)
def test_positions_come_back(scattered: set[int], start: int, length: int) -> None:
    wanted = sorted(scattered | set(range(start, start + length)))
    by_key: dict[int, BitMap] = {}
    for position in wanted:
        by_key.setdefault(position >> 32, BitMap()).add(position & 0xFFFFFFFF)
    for one in by_key.values():
        one.run_optimize()
    read = read_deletion_vector(blob(vector(by_key)), "dv", len(wanted))
    assert positions(read) == wanted
    assert read.cardinality == len(wanted)


@pytest.mark.parametrize(
    "values",
    [
        [7],
        list(range(0, 20_000, 2)),  # a bitset
        list(range(5000)),
        [*range(0, 1 << 20, 1 << 16)],  # 16 containers
        [*range(100), *range(1 << 17, (1 << 17) + 5000, 2), 1 << 31],
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_every_kind_of_container(values: list[int], runs: bool) -> None:
    one = optimized(values) if runs else BitMap(values)
    assert positions(read_bitmap(vector({0: one, 5: one}), "dv")) == [*values, *(value + (5 << 32) for value in values)]


def test_bitmaps_between_keys_may_be_there_or_not() -> None:
    sparse, dense = (
        vector({0: BitMap([1]), 3: BitMap([2])}),
        vector({0: BitMap([1]), 1: BitMap(), 2: BitMap(), 3: BitMap([2])}),
    )
    assert positions(read_bitmap(sparse, "dv")) == positions(read_bitmap(dense, "dv")) == [1, 2 + (3 << 32)]


def test_empty() -> None:
    assert blob(vector({})) == EMPTY
    assert positions(read_deletion_vector(EMPTY, "dv", 0)) == []


def test_long_runs_are_unfolded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitmap, "_WINDOW", 1 << 10)
    monkeypatch.setattr(bitmap, "_CHUNK", 1 << 8)
    chunks = list(read_bitmap(vector({0: optimized(range(500, 5000))}), "dv").positions())
    assert max(map(len, chunks)) <= 1 << 8
    assert np.concatenate(chunks).tolist() == list(range(500, 5000))


GOOD = blob(vector({0: BitMap([1, 5, 9])}))


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (b"", "content_size_in_bytes"),
        (GOOD[:-1], "length"),
        (GOOD + b"\0", "length"),
        (b"\xff" + GOOD[1:], "length"),
        (GOOD[:4] + b"\0" + GOOD[5:], "magic"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "CRC-32"),
        (GOOD[:20] + bytes([GOOD[20] ^ 1]) + GOOD[21:], "CRC-32"),
        (blob(vector({0: BitMap([1])}) + b"\0"), "bitmap length"),
        (blob(struct.pack("<Q", 1 << 60)), "bitmap count"),
        (blob(struct.pack("<Q", 2) + vector({0: BitMap([1])})[8:]), "bitmap key"),
        (blob(vector({4: BitMap([1]), 3: BitMap([1])})), "bitmap key"),
        (blob(vector({3: BitMap([1])}) + vector({3: BitMap([1])})[8:]), "bitmap"),
        (blob(struct.pack("<Q", 1) + struct.pack("<I", MAX_KEY + 1) + BitMap([1]).serialize()), "bitmap key"),
        (blob(struct.pack("<QII", 1, 0, 77)), "bitmap cookie"),
        (blob(struct.pack("<QIII", 1, 0, 12346, 1 << 17)), "bitmap size"),
        (blob(struct.pack("<QIII", 1, 0, 12346, 3)), "bitmap containers"),
        (blob(struct.pack("<QIIIHHIHH", 1, 0, 12346, 1, 0, 1, 16, 5, 3)), "bitmap"),  # 5 before 3
    ],
)
def test_what_is_no_deletion_vector(bad: bytes, field: str) -> None:
    with pytest.raises(CorruptFileError, match=field) as caught:
        read_deletion_vector(bad, "s3://b/dv.puffin")
    assert caught.value.location == "s3://b/dv.puffin"


def test_cardinality_is_that_of_the_entry() -> None:
    assert read_deletion_vector(GOOD, "dv", 3).cardinality == 3
    with pytest.raises(CorruptFileError, match="record_count is 4"):
        read_deletion_vector(GOOD, "dv", 4)


@given(st.binary(max_size=200), st.integers(0, 60), st.integers(1, 255))
def test_any_bytes_end_in_one_error(noise: bytes, place: int, change: int) -> None:
    content = bytearray(vector({0: optimized(range(100)), 1: BitMap([1, 5, 9])}))
    content[place % len(content)] ^= change
    for bad in (noise, blob(noise), blob(bytes(content))):
        try:
            found = positions(read_deletion_vector(bad, "dv"))
        except CorruptFileError:
            continue
        assert found == sorted(set(found))
