"""The deletion vector codec: byte for byte what Iceberg's Java library writes, and every way to be wrong."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap

from sparkmeta.errors import CorruptFileError, ValidationError
from sparkmeta.spec import bitmap
from sparkmeta.spec.bitmap import (
    MAGIC,
    MAX_KEY,
    MAX_POSITION,
    PositionBitmap,
    read_bitmap,
    read_deletion_vector,
    read_inline_vector,
    write_bitmap,
    write_deletion_vector,
)

# The deletion vector of no positions, as the Puffin spec's rules give it.
EMPTY = bytes.fromhex("0000000c d1d33964 0000000000000000 bf18480c")


def vector(bitmaps: dict[int, BitMap]) -> bytes:
    """Return the portable serialization of 64-bit bitmaps."""
    parts = [struct.pack("<I", key) + roaring.serialize() for key, roaring in bitmaps.items()]
    return struct.pack("<Q", len(bitmaps)) + b"".join(parts)


def blob(content: bytes) -> bytes:
    framed = MAGIC + content
    return struct.pack(">I", len(framed)) + framed + struct.pack(">I", zlib.crc32(framed))


def positions(read: PositionBitmap) -> list[int]:
    chunks = list(read.positions())
    return [int(position) for position in np.concatenate(chunks)] if chunks else []


def optimized(values: range | list[int]) -> BitMap:
    roaring = BitMap(values)
    roaring.run_optimize()
    return roaring


@given(
    st.sets(st.integers(0, (MAX_KEY << 32) | 0xFFFFFFFF), max_size=30), st.integers(0, 1 << 40), st.integers(0, 9000)
)
def test_positions_come_back(scattered: set[int], start: int, length: int) -> None:
    expected = sorted(scattered | set(range(start, start + length)))
    by_key: dict[int, BitMap] = {}
    for position in expected:
        by_key.setdefault(position >> 32, BitMap()).add(position & 0xFFFFFFFF)
    for roaring in by_key.values():
        roaring.run_optimize()
    read = read_deletion_vector(blob(vector(by_key)), "dv", len(expected))
    assert positions(read) == expected
    assert read.cardinality == len(expected)


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
    roaring = optimized(values) if runs else BitMap(values)
    assert positions(read_bitmap(vector({0: roaring, 5: roaring}), "dv")) == [
        *values,
        *(value + (5 << 32) for value in values),
    ]


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
def test_invalid_deletion_vectors(bad: bytes, field: str) -> None:
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
            read = positions(read_deletion_vector(bad, "dv"))
        except CorruptFileError:
            continue
        assert read == sorted(set(read))


# Deletion vectors as Iceberg's Java library serializes them.
JAVA = [
    (EMPTY.hex(), []),
    (
        "0000002ad1d339640100000000000000000000003a30000001000000000004001000000001000300050007000900b3fb20be",
        [1, 3, 5, 7, 9],
    ),
    (
        (
            "00000030d1d339640100000000000000000000003a300000020000000000010000800100180000001c000000"
            "640065006300640015eb1c7c"
        ),
        [100, 101, (1 << 31) + 99, (1 << 31) + 100],
    ),
    (
        (
            "00000056d1d339640200000000000000000000003b30020006000001000100e6030200fdff0500070001000100e60301000100"
            "fdff010000003b30020006000001000100e9010200fdff0a00140001000a00e90101000100fdffc89be397"
        ),
        [
            *(5, 7),
            *range((1 << 16) + 1, (1 << 16) + 1000),
            *range((2 << 16) + 1, (3 << 16) - 1),
            *((1 << 32) + 10, (1 << 32) + 20),
            *range((1 << 32) + (1 << 16) + 10, (1 << 32) + (1 << 16) + 500),
            *range((1 << 32) + (2 << 16) + 1, (1 << 32) + (3 << 16) - 1),
        ],
    ),
]


@pytest.mark.parametrize(("java", "values"), JAVA)
def test_written_as_java_does(java: str, values: list[int]) -> None:
    assert write_deletion_vector(PositionBitmap.of(values)) == bytes.fromhex(java)
    assert positions(read_deletion_vector(bytes.fromhex(java), "dv")) == values
    assert read_deletion_vector(bytes.fromhex(java), "dv") == PositionBitmap.of(values)


near = st.integers(0, 200) | st.integers((1 << 16) - 100, (1 << 16) + 100) | st.integers((2 << 32) - 9, (2 << 32) + 9)
far = st.integers(0, MAX_POSITION)


@given(st.lists(near | far, max_size=60), st.integers(0, 1 << 34), st.integers(0, 9000))
def test_what_is_written_is_read(scattered: list[int], start: int, length: int) -> None:
    values = scattered + list(range(start, start + length))
    dv = PositionBitmap.of(values)
    assert positions(dv) == sorted(set(values))
    blob_of_it = write_deletion_vector(dv)
    assert read_deletion_vector(blob_of_it, "dv", len(set(values))) == dv
    assert read_inline_vector(blob_of_it, "root", len(set(values))) == dv
    assert read_inline_vector(write_bitmap(dv), "root", len(set(values))) == dv
    assert PositionBitmap.of(np.array(values, np.int64)) == dv
    assert PositionBitmap.of(iter(values)) == dv


@given(st.sets(st.integers(0, 1 << 20) | st.integers(1 << 33, (1 << 33) + 50), min_size=1), st.booleans())
def test_pyiceberg_reads_it(values: set[int], dense: bool) -> None:
    dv = PositionBitmap.of(values | set(range(9000)) if dense else values)
    content = write_deletion_vector(dv)
    footer = (
        f'{{"blobs":[{{"type":"deletion-vector-v1","fields":[],"snapshot-id":-1,"sequence-number":-1,"offset":4,'
        f'"length":{len(content)},"properties":{{"referenced-data-file":"a"}}}}]}}'
    ).encode()
    file = b"PFA1" + content + b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1"
    (vector,) = deletion_vectors_from_puffin_file(PuffinFile(file))
    read = [position + (key << 32) for key, theirs in enumerate(vector._bitmaps) for position in theirs]
    assert read == positions(dv)


@given(st.sets(near | far, max_size=40), st.sets(near | far, max_size=40), near | far)
def test_set_algebra(left: set[int], right: set[int], position: int) -> None:
    a, b = PositionBitmap.of(left), PositionBitmap.of(right)
    assert a.union(b) == PositionBitmap.of(left | right)
    assert a.difference(b) == PositionBitmap.of(left - right)
    assert a.union(b).difference(b) == PositionBitmap.of(left - right)
    assert a.intersects(b) == bool(left & right)
    assert a.contains(position) == (position in left)
    assert a.max() == max(left, default=None)
    assert (a, b) == (PositionBitmap.of(left), PositionBitmap.of(right))  # unchanged
    assert all(a.contains(position) for position in left)


def test_a_bitmap_is_left_as_it_was() -> None:
    dv = PositionBitmap.of(range(100))
    before = dv.bitmaps[0].serialize()
    write_deletion_vector(dv)
    dv.union(PositionBitmap.of([7, 200]))
    assert dv.bitmaps[0].serialize() == before


def test_negative_positions_are_in_no_bitmap() -> None:
    assert not PositionBitmap.of([0xFFFFFFFF, MAX_POSITION]).contains(-1)


def test_a_gap_of_keys_that_would_take_megabytes_stays_open() -> None:
    assert len(write_deletion_vector(PositionBitmap.of([1000 << 32]))) > 12_000
    assert len(write_deletion_vector(PositionBitmap.of([MAX_POSITION]))) < 20_000


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([3, -1], "row position -1"),
        ([MAX_POSITION + 1], f"row position {MAX_POSITION + 1}"),
        (np.array([1 << 63], np.uint64), "row position 9223372036854775808"),
        ([1 << 70], "object"),
        ([1.0], "float64"),
        (np.array([True]), "bool"),
        (["1"], "<U1"),
        (np.array([[1]]), "int64"),
    ],
)
def test_invalid_positions(bad: list[int], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PositionBitmap.of(bad)


def test_inline_vectors_are_checked_in_both_forms() -> None:
    for good in (GOOD, GOOD[8:-4]):
        assert positions(read_inline_vector(good, "root", 3)) == [1, 5, 9]
        with pytest.raises(CorruptFileError, match="record_count is 2"):
            read_inline_vector(good, "root", 2)
        with pytest.raises(CorruptFileError, match=r"^s3://root: "):
            read_inline_vector(good[:-1], "s3://root")
    for bad in (b"", GOOD[:4], GOOD[:4] + b"\0\0\0\0" + GOOD[8:]):
        with pytest.raises(CorruptFileError):
            read_inline_vector(bad, "root")


# Bytes of a bitmap by rows and density (V4 document, "Manifest deletion vectors").
DENSITIES = (0.01, 0.05, 0.1, 0.2)
TABLE = {
    1_000: (36, 116, 216, 416),
    10_000: (216, 1016, 2016, 4016),
    100_000: (2024, 10024, 15340, 16408),
    1_000_000: (20136, 100136, 126440, 129918),
}
BY_DRAW = {(100_000, 0.1), (1_000_000, 0.1), (1_000_000, 0.2)}


@pytest.mark.parametrize(("rows", "density"), [(rows, density) for rows in TABLE for density in DENSITIES])
def test_size_by_density(rows: int, density: float) -> None:
    drawn = np.random.default_rng(rows).choice(rows, round(rows * density), replace=False)
    dv = PositionBitmap.of(drawn)
    size = len(write_bitmap(dv)) - 12  # count and key are of the 64-bit form
    cardinalities = np.bincount(drawn >> 16, minlength=-(-rows // (1 << 16))).tolist()
    law = 8 + 8 * len(cardinalities) + sum(2 * count if count <= 4096 else 8192 for count in cardinalities)
    stated = TABLE[rows][DENSITIES.index(density)]
    assert size == law
    assert size == (pytest.approx(stated, rel=0.02) if (rows, density) in BY_DRAW else stated)
    assert len(write_deletion_vector(dv)) == law + 24
