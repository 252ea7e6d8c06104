"""Puffin files as other libraries write them, compressed or not, and every way in which one can be wrong."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec import puffin
from sparkmeta.spec.puffin import MAGIC, BlobMetadata, read_blob, read_footer

FIRST = {"type": "some-blob", "fields": [1], "snapshot-id": 2, "sequence-number": 1, "offset": 4, "length": 9}
SECOND = {"type": "other", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 13, "length": 5}


def made(
    blobs: list[dict[str, Any]], contents: bytes = b"abcdefghi01234", *, lz4: bool = False, flags: int = 0, **more: Any
) -> bytes:
    payload = json.dumps({"blobs": blobs, **more}).encode()
    if lz4:
        payload, flags = pa.compress(payload, "lz4", asbytes=True), 1
    return MAGIC + contents + MAGIC + payload + struct.pack("<iI", len(payload), flags) + MAGIC


@pytest.mark.parametrize("lz4", [True, False])
def test_footer(lz4: bool) -> None:
    data = made([FIRST, SECOND | {"properties": {"a": "b"}}], lz4=lz4, properties={"created-by": "me"})
    footer = read_footer(data, "p")
    assert footer.properties == {"created-by": "me"}
    assert footer.blobs[0] == BlobMetadata("some-blob", (1,), 2, 1, 4, 9, None, {})
    assert [read_blob(data, blob, "p") for blob in footer.blobs] == [b"abcdefghi", b"01234"]
    assert footer.blobs[1].properties == {"a": "b"}


def test_smallest_file() -> None:
    data = MAGIC + MAGIC + b'{"blobs":[]}' + struct.pack("<iI", 12, 0) + MAGIC
    assert len(data) == 32
    assert read_footer(data, "p").blobs == ()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_blobs(codec: str) -> None:
    packed = pa.compress(b"x" * 3000, codec, asbytes=True)
    data = made([FIRST | {"length": len(packed), "compression-codec": codec}], packed)
    blob = read_footer(data, "p").blobs[0]
    assert read_blob(data, blob, "p") == b"x" * 3000
    with pytest.raises(CorruptFileError, match=codec):
        read_blob(data.replace(packed, packed[:-1] + b"\0" if codec == "zstd" else b"\0" * len(packed)), blob, "p")


def test_what_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puffin, "MAX_INFLATED_BYTES", 100)
    packed = pa.compress(b"x" * 3000, "zstd", asbytes=True)
    data = made([FIRST | {"length": len(packed), "compression-codec": "zstd"}], packed)
    with pytest.raises(CorruptFileError, match="unpacks"):
        read_blob(data, read_footer(data, "p").blobs[0], "p")


def test_what_is_not_known() -> None:
    with pytest.raises(UnsupportedError, match="0x00000002"):
        read_footer(made([], flags=2), "p")
    data = made([FIRST | {"compression-codec": "brotli"}])
    with pytest.raises(UnsupportedError, match="brotli"):
        read_blob(data, read_footer(data, "p").blobs[0], "p")


GOOD = made([FIRST])


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (b"", "length"),
        (GOOD[1:], "magic"),
        (GOOD[:-1] + b"2", "trailing magic"),
        (GOOD.replace(b"34" + MAGIC, b"34PFA2"), "footer magic"),
        (GOOD[:-12] + struct.pack("<i", -1) + GOOD[-8:], "footer payload size"),
        (GOOD[:-12] + struct.pack("<i", 1 << 30) + GOOD[-8:], "footer payload size"),
        (GOOD.replace(b"{", b"["), "footer"),
        (GOOD.replace(b'"blobs"', b'"blabs"'), "footer.blobs"),
        (made([FIRST | {"offset": 3}]), "offset"),
        (made([FIRST | {"length": 15}]), "offset"),
        (made([FIRST | {"length": -1}]), "offset"),
        (made([FIRST | {"length": "9"}]), r"blobs\[0\].length"),
        (made([FIRST | {"fields": ["a"]}]), r"blobs\[0\].fields"),
        (made([FIRST | {"properties": {"a": 1}}]), "properties"),
        (made([FIRST, {"type": "t"}]), r"blobs\[1\]"),
        (made(["x"]), r"blobs\[0\]"),  # type: ignore[list-item]
        (made([], properties=[]), "footer.properties"),
    ],
)
def test_what_is_no_puffin_file(bad: bytes, field: str) -> None:
    with pytest.raises(CorruptFileError, match=field):
        read_footer(bad, "s3://b/x.puffin")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.integers(0, len(GOOD)))
def test_damage_ends_in_one_error(place: int, change: int, end: int) -> None:
    damaged = bytearray(GOOD)
    damaged[place] ^= change
    for bad in (bytes(damaged), GOOD[:end]):
        try:
            for blob in read_footer(bad, "p").blobs:
                read_blob(bad, blob, "p")
        except (CorruptFileError, UnsupportedError):
            continue
