"""Puffin files as other libraries write them, compressed or not, and every way in which one can be wrong."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile as IcebergPuffinFile

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec import puffin
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.puffin import (
    MAGIC,
    Blob,
    FooterBlob,
    PuffinFile,
    deletion_vector_blob,
    read_blob,
    read_footer,
    write_puffin,
)

FIRST = {"type": "some-blob", "fields": [1], "snapshot-id": 2, "sequence-number": 1, "offset": 4, "length": 9}
SECOND = {"type": "other", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 13, "length": 5}


def puffin_file(
    blobs: list[dict[str, Any]], contents: bytes = b"abcdefghi01234", *, lz4: bool = False, flags: int = 0, **more: Any
) -> bytes:
    payload = json.dumps({"blobs": blobs, **more}).encode()
    if lz4:
        payload, flags = pa.compress(payload, "lz4", asbytes=True), 1
    return MAGIC + contents + MAGIC + payload + struct.pack("<iI", len(payload), flags) + MAGIC


@pytest.mark.parametrize("lz4", [True, False])
def test_footer(lz4: bool) -> None:
    data = puffin_file([FIRST, SECOND | {"properties": {"a": "b"}}], lz4=lz4, properties={"created-by": "me"})
    footer = read_footer(data, "p")
    assert footer.properties == {"created-by": "me"}
    assert footer.blobs[0] == FooterBlob("some-blob", (1,), 2, 1, 4, 9, None, {})
    assert [read_blob(data, blob, "p") for blob in footer.blobs] == [b"abcdefghi", b"01234"]
    assert footer.blobs[1].properties == {"a": "b"}


def test_smallest_file() -> None:
    data = MAGIC + MAGIC + b'{"blobs":[]}' + struct.pack("<iI", 12, 0) + MAGIC
    assert len(data) == 32
    assert read_footer(data, "p").blobs == ()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_blobs(codec: str) -> None:
    packed = pa.compress(b"x" * 3000, codec, asbytes=True)
    data = puffin_file([FIRST | {"length": len(packed), "compression-codec": codec}], packed)
    blob = read_footer(data, "p").blobs[0]
    assert read_blob(data, blob, "p") == b"x" * 3000
    with pytest.raises(CorruptFileError, match=codec):
        read_blob(data.replace(packed, packed[:-1] + b"\0" if codec == "zstd" else b"\0" * len(packed)), blob, "p")


def test_blobs_that_decompress_to_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puffin, "MAX_INFLATED_BYTES", 100)
    packed = pa.compress(b"x" * 3000, "zstd", asbytes=True)
    data = puffin_file([FIRST | {"length": len(packed), "compression-codec": "zstd"}], packed)
    with pytest.raises(CorruptFileError, match="it decompresses to more than 100 bytes"):
        read_blob(data, read_footer(data, "p").blobs[0], "p")


def test_unknown_flags_and_codecs() -> None:
    with pytest.raises(UnsupportedError, match="0x00000002"):
        read_footer(puffin_file([], flags=2), "p")
    data = puffin_file([FIRST | {"compression-codec": "brotli"}])
    with pytest.raises(UnsupportedError, match="brotli"):
        read_blob(data, read_footer(data, "p").blobs[0], "p")


GOOD = puffin_file([FIRST])


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
        (puffin_file([FIRST | {"offset": 3}]), "offset"),
        (puffin_file([FIRST | {"length": 15}]), "offset"),
        (puffin_file([FIRST | {"length": -1}]), "offset"),
        (puffin_file([FIRST | {"length": "9"}]), r"blobs\[0\].length"),
        (puffin_file([FIRST | {"fields": ["a"]}]), r"blobs\[0\].fields"),
        (puffin_file([FIRST | {"properties": {"a": 1}}]), "properties"),
        (puffin_file([FIRST, {"type": "t"}]), r"blobs\[1\]"),
        (puffin_file(["x"]), r"blobs\[0\]"),  # type: ignore[list-item]
        (puffin_file([], properties=[]), "footer.properties"),
    ],
)
def test_invalid_puffin_files(bad: bytes, field: str) -> None:
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


JAVA = (
    b"PFA1abcdefghi"
    b"some blob \x00 binary data \xf0\x9f\xa4\xaf that is not very very very very very very long, is it?PFA1"
    b'{"blobs":[{"type":"some-blob","fields":[1],"snapshot-id":2,"sequence-number":1,"offset":4,"length":9},'
    b'{"type":"some-other-blob","fields":[2],"snapshot-id":2,"sequence-number":1,"offset":13,"length":83}],'
    b'"properties":{"created-by":"Test 1234"}}\xf3\x00\x00\x00\x00\x00\x00\x00PFA1'
)


def test_written_as_java_does() -> None:
    blobs = [Blob("some-blob", JAVA[4:13], (1,), 2, 1), Blob("some-other-blob", JAVA[13:96], (2,), 2, 1)]
    file = write_puffin(blobs, {"created-by": "Test 1234"})
    assert file.data == JAVA
    assert file.footer_size == len(JAVA) - 96


def read_back(file: PuffinFile) -> list[bytes]:
    footer = read_footer(file.data, "p")
    assert footer.blobs == file.blobs
    assert file.data[-file.footer_size :][:4] == MAGIC
    return [read_blob(file.data, blob, "p") for blob in footer.blobs]


some_blobs = st.builds(
    Blob,
    st.text(),
    st.binary(max_size=300) | st.integers(1, 100_000).map(lambda length: b"ab" * length),
    st.lists(st.integers(0, 1 << 31)).map(tuple),
    st.integers(-1, 1 << 63),
    st.integers(-1, 1 << 63),
    st.sampled_from([None, "lz4", "zstd"]),
    st.dictionaries(st.text(), st.text()),
)


@given(st.lists(some_blobs, max_size=4), st.dictionaries(st.text(), st.text()), st.booleans())
def test_what_is_written_is_read(blobs: list[Blob], properties: dict[str, str], compressed: bool) -> None:
    file = write_puffin(blobs, properties, compress_footer=compressed)
    assert read_back(file) == [blob.content for blob in blobs]
    footer = read_footer(file.data, "p")
    assert footer.properties.items() >= properties.items()
    assert footer.properties["created-by"].startswith("sparkmeta") or "created-by" in properties
    for blob, placed in zip(blobs, footer.blobs, strict=True):
        assert (placed.type, placed.fields, placed.snapshot_id) == (blob.type, blob.fields, blob.snapshot_id)
        assert (placed.sequence_number, placed.compression_codec) == (blob.sequence_number, blob.compression_codec)
        assert placed.properties == blob.properties


@given(st.sets(st.integers(0, 1 << 40), min_size=1, max_size=50), st.sampled_from([None, "zstd"]))
def test_pyiceberg_reads_it(positions: set[int], codec: str | None) -> None:
    vector = write_deletion_vector(PositionBitmap.of(positions))
    file = write_puffin(
        [deletion_vector_blob(vector, "s3://b/data.parquet", len(positions)), Blob("x", b"y" * 99, (), 7, 8, codec)]
    )
    theirs = IcebergPuffinFile(file.data)
    first, second = theirs.footer.blobs
    assert first.model_dump(by_alias=True) == {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(vector),
        "properties": {"referenced-data-file": "s3://b/data.parquet", "cardinality": str(len(positions))},
    }
    assert theirs.get_blob_payload(first) == vector
    assert theirs.get_blob_payload(second) == b"y" * 99
    theirs.footer.blobs.remove(second)
    (read,) = deletion_vectors_from_puffin_file(theirs)
    assert read.referenced_data_file == "s3://b/data.parquet"
    assert {at + (key << 32) for key, bitmap in enumerate(read._bitmaps) for at in bitmap} == positions


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000])
def test_lz4_frames_say_their_size(size: int, tmp_path: Path) -> None:
    content = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    file = write_puffin([Blob("t", content, compression_codec="lz4")])
    (placed,) = file.blobs
    frame = file.data[4 : 4 + placed.length]
    assert frame[4] & 8
    assert struct.unpack("<Q", frame[6:14]) == (size,)
    assert read_back(file) == [content]
    with pytest.raises(OSError, match=r"(?i)checksum"):  # the header's, which Arrow's own LZ4 checks
        pa.CompressedInputStream(pa.BufferReader(frame[:14] + bytes([frame[14] ^ 1]) + frame[15:]), "lz4").read()
    if tool := shutil.which("lz4"):
        (tmp_path / "x.lz4").write_bytes(frame)
        done = subprocess.run([tool, "-dc", tmp_path / "x.lz4"], capture_output=True, check=True)
        assert done.stdout == content


def test_a_codec_that_is_not_known_is_not_written() -> None:
    with pytest.raises(UnsupportedError, match="'snappy' is not one of lz4, zstd"):
        write_puffin([Blob("t", b"", compression_codec="snappy")])
