"""Mumbling bitmaps, the positions of manifest deletion vectors in the Iceberg project's trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.mumbling import MOST_POSITIONS, read_mumbling, write_mumbling

# Written by Iceberg 1.12's own encoder: a dense container, an empty one, and a sparse one.
OF_ICEBERG = "015a00000300060000800100" + "924924" * 10 + "9249" + "081c3044"
OF_ICEBERG_POSITIONS = [*range(0, 256, 3), 520, 540, 560, 580]
# The packed descriptors of the format's examples, whose containers follow.
EXCEPTIONS = "8002000407fffe"  # 0, 0, 0, 0, 255, 0, 0, 254: no descriptors, since 255 is not one


def read(data: bytes) -> list[int]:
    return read_mumbling(data, "file:///root", "manifest_info.dv").tolist()


def test_bytes_of_iceberg() -> None:
    assert read(bytes.fromhex(OF_ICEBERG)) == OF_ICEBERG_POSITIONS
    assert write_mumbling(np.array(OF_ICEBERG_POSITIONS)).hex() == OF_ICEBERG
    assert read(bytes.fromhex("0102000001000000020103")) == [1, 3]
    assert read(bytes.fromhex("010000000000")) == []


def test_packed_numbers_with_exceptions() -> None:
    """Descriptors 6, 0, 8, 7 with an exception: the format's example for 6, 34, 8, 7, with 34 as no descriptor."""
    header = bytes.fromhex("010000000400")
    with pytest.raises(CorruptFileError, match="is 34: the descriptor of a container is at most 32"):
        read(header + bytes.fromhex("3201060901e0"))
    with pytest.raises(CorruptFileError, match="is 255: the descriptor"):
        read(bytes.fromhex("010000000800") + bytes.fromhex(EXCEPTIONS))
    # Two bits each of 1, 0, 3, 2, and an exception that makes the first one 1 | 1 << 2.
    packed = bytes([0x12, 1, 0, 0b01001110, 0, 0b10000000])
    contents = bytes([9, 10, 11, 12, 13, 1, 2, 3, 4, 5])
    assert read(bytes.fromhex("010a00000400") + packed + contents) == [9, 10, 11, 12, 13, 513, 514, 515, 772, 773]


@given(st.sets(st.integers(0, 3_000), max_size=600), st.integers(0, 40))
def test_positions_survive(positions: set[int], far: int) -> None:
    expected = sorted(position * (1 + far) for position in positions)
    assert read(write_mumbling(np.array(expected, np.int64))) == expected


def test_all_positions() -> None:
    expected = np.arange(MOST_POSITIONS)
    data = write_mumbling(expected)
    assert read(data[:1] + data[1:]) == expected.tolist()
    with pytest.raises(ValueError, match="distinct and below"):
        write_mumbling(np.array([MOST_POSITIONS]))
    with pytest.raises(ValueError, match="distinct and below"):
        write_mumbling(np.array([1, 1]))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("02" + OF_ICEBERG[2:], "is 2: the version"),
        ("015b" + OF_ICEBERG[4:], "is 91: the Mumbling bitmap has 90 positions"),
        (OF_ICEBERG + "00", "the Mumbling bitmap has 48 bytes by its containers"),
        (OF_ICEBERG[:-2], "the Mumbling bitmap has 48 bytes by its containers"),
        (OF_ICEBERG[:-8] + "1c083044", "is 520: the positions of a container don't ascend"),
        (OF_ICEBERG[:-8] + "08081c30", "is 520: the positions of a container don't ascend"),
        ("010100000100000020" + "80" + "00" * 31, "is 1: a container with a bit for each position has at least 32"),
        ("010000000120", "at most 8192 containers"),
        ("01000000010009000000", "the bits of packed numbers exceed a byte"),
        ("010000000100100200", "more exceptions than numbers"),
        ("0100000001001801000105ff", "the bits of packed numbers exceed a byte"),
    ],
)
def test_broken_bitmaps(data: str, problem: str) -> None:
    with pytest.raises(CorruptFileError, match=f"^file:///root: manifest_info.dv .*{problem}"):
        read(bytes.fromhex(data))


def test_cut_bitmaps() -> None:
    data = bytes.fromhex(OF_ICEBERG)
    for size in range(len(data)):
        with pytest.raises(CorruptFileError, match=r"^file:///root: manifest_info\.dv"):
            read(data[:size])


@given(st.binary(max_size=60))
def test_any_bytes(content: bytes) -> None:
    """Any bytes are refused, or read as ascending positions."""
    try:
        positions = read(b"\x01" + content)
    except CorruptFileError:
        return
    assert positions == sorted(set(positions))
