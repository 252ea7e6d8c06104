"""Theta sketches beside Apache DataSketches' own library: the same hashes, and sketches that merge with its own."""

from __future__ import annotations

import random
import struct
from typing import Any

import datasketches
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.spec.puffin import MOST_HASHES, ThetaSketch, hash_bytes, hash_numbers


def of_numbers(*values: int) -> ThetaSketch:
    return ThetaSketch().with_hashes(hash_numbers(np.array(values, np.int64)))


def of_texts(texts: list[bytes]) -> ThetaSketch:
    ends = np.cumsum([0, *map(len, texts)])
    data = np.frombuffer(b"".join(texts), np.uint8)
    return ThetaSketch().with_hashes(hash_bytes(data, ends[:-1], ends[1:]))


def by_library(values: Any) -> Any:
    sketch = datasketches.update_theta_sketch()
    for value in values:
        sketch.update(value)
    return sketch.compact()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_numbers(values: list[int]) -> None:
    assert of_numbers(*values).hashes.tolist() == list(by_library(values))


@given(st.lists(st.text(min_size=1, max_size=70), max_size=40))
def test_texts(values: list[str]) -> None:
    """The lengths cover whole blocks and parts of blocks."""
    assert of_texts([value.encode() for value in values]).hashes.tolist() == list(by_library(values))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_numbers_are_hashed_by_their_bytes(width: int) -> None:
    values = np.array([0, 1, 77, (1 << 8 * width - 1) - 1], f"<u{width}")
    ends = np.arange(len(values) + 1) * width
    assert hash_numbers(values).tolist() == hash_bytes(values.view(np.uint8), ends[:-1], ends[1:]).tolist()


@pytest.mark.parametrize("count", [0, 1, 2, MOST_HASHES, MOST_HASHES + 1, 100_000])
def test_serial_form(count: int) -> None:
    sketch = of_numbers(*range(count))
    data = sketch.to_bytes()
    read = datasketches.compact_theta_sketch.deserialize(data)
    assert list(read) == sketch.hashes.tolist()
    assert read.get_estimate() == sketch.estimate
    assert (read.is_empty(), read.is_ordered(), read.is_estimation_mode()) == (not count, True, count > MOST_HASHES)
    assert ThetaSketch.from_bytes(data).to_bytes() == data
    assert abs(sketch.estimate - count) <= 0.05 * count
    if count <= MOST_HASHES:
        assert sketch.estimate == count
        theirs = by_library(range(count)).serialize()
        assert ThetaSketch.from_bytes(theirs).hashes.tolist() == sketch.hashes.tolist()


def test_sketches_depend_on_the_values_only() -> None:
    """The order, splits and merges of values do not matter, and the library's union has the same estimate."""
    rng = random.Random(5)
    values = [rng.randrange(60_000) for _ in range(100_000)]
    whole = of_numbers(*values)
    parts = [of_numbers(*values[start : start + 7_000]) for start in range(0, len(values), 7_000)]
    rng.shuffle(parts)
    merged, union = ThetaSketch(), datasketches.theta_union()
    for part in parts:
        merged = merged.union(part)
        union.update(datasketches.compact_theta_sketch.deserialize(part.to_bytes()))
    assert merged.to_bytes() == whole.to_bytes()
    assert list(union.get_result()) == whole.hashes.tolist()
    assert union.get_result().get_estimate() == whole.estimate
    assert ThetaSketch().union(whole).to_bytes() == whole.union(ThetaSketch()).to_bytes() == whole.to_bytes()


def test_zero_is_no_hash() -> None:
    assert ThetaSketch().with_hashes(np.array([0, 5, 5, 0], np.uint64)).hashes.tolist() == [5]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "a theta sketch of 0 bytes"),
        (of_numbers(1, 2, 3).to_bytes()[:-1], "of 3 hashes in 39 bytes"),
        (b"\x02\x02" + of_numbers(1, 2).to_bytes()[2:], "not an ordered compact theta sketch"),
        (of_numbers(1, 2).to_bytes()[:6] + struct.pack("<H", 7) + of_numbers(1, 2).to_bytes()[8:], "seed hash 0x7"),
    ],
)
def test_other_bytes(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ThetaSketch.from_bytes(data)
