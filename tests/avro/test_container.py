"""Avro container framing: blocks are found and inflated, and nothing that a file claims is believed unchecked."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.avro import container
from sparkmeta.avro.container import Windows, inflate, read_blocks, read_header
from sparkmeta.errors import CorruptFileError, UnsupportedError
from tests.avro.avro_files import avro_file

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string", "field-id": 1}]}
RECORDS = [{"a": f"value {number}" * 20} for number in range(500)]


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def with_block(data: bytes, count: int, size: int, body: bytes) -> bytes:
    """The file with one block in place of its own."""
    header = read_header(data, "f")
    return data[: header.end] + varint(count) + varint(size) + body + header.sync


class File:
    """A file that serves ranges of bytes and records the requests."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []

    def read_range(self, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return self.content[offset : offset + size]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_long_file_is_read_in_windows(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are read once, unless a block crosses the edge of a window. No request exceeds a window or a block."""
    monkeypatch.setattr(Windows, "SIZE", 700)
    data = avro_file(SCHEMA, RECORDS, codec)
    file = File(data)
    windows = Windows(file.read_range, len(data), "f")
    header = read_header(windows, "f")
    assert header == read_header(data, "f")
    blocks = list(read_blocks(data, header, "f"))
    largest = max(block.size for block in blocks)
    read = [(block, inflate(windows, block, header, "f")) for block in read_blocks(windows, header, "f")]
    assert read == [(block, inflate(data, block, header, "f")) for block in blocks]
    assert max(size for _, size in file.asked) <= max(700, largest)
    assert sum(size for _, size in file.asked) < 2 * len(data) + 1400
    assert len(file.asked) > 3


@given(st.binary(max_size=50), st.lists(st.tuples(st.integers(-60, 60), st.integers(-60, 60))), st.integers(1, 60))
def test_windows_are_as_bytes(content: bytes, slices: list[tuple[int, int]], size: int) -> None:
    windows = Windows(File(content).read_range, len(content), "f")
    windows.SIZE = size
    assert len(windows) == len(content)
    for start, end in slices:
        assert bytes(windows[start:end]) == content[start:end]
    for place in range(len(content)):
        assert windows[place] == content[place]


def test_a_file_that_becomes_shorter_is_refused() -> None:
    data = avro_file(SCHEMA, RECORDS, "null")
    windows = Windows(File(data[:-100]).read_range, len(data), "file:///m.avro")
    with pytest.raises(CorruptFileError, match=rf"file:///m.avro: file is {len(data) - 100}.*{len(data)} bytes"):
        read_header(windows, "file:///m.avro")


def test_a_block_that_is_longer_than_any_is_not_read() -> None:
    """The frame of the block may claim as many bytes as the file has."""
    size = 1 << 40
    head = with_block(avro_file(SCHEMA, [], "null"), 0, 0, b"")
    header = read_header(head, "f")
    start = head[: header.end] + varint(1) + varint(size)
    file = File(start)
    windows = Windows(lambda offset, length: file.read_range(offset, length).ljust(length), len(start) + size, "f")
    with pytest.raises(CorruptFileError, match=rf"block size is {size}"):
        inflate(windows, next(read_blocks(windows, header, "f")), header, "f")
    assert max(length for _, length in file.asked) <= Windows.SIZE


def test_a_header_that_is_longer_than_any_is_not_read() -> None:
    size = 1 << 30
    start = container.MAGIC + varint(1) + varint(3) + b"key" + varint(size)
    file = File(start)
    windows = Windows(lambda offset, length: file.read_range(offset, length).ljust(length), len(start) + size, "f")
    with pytest.raises(CorruptFileError, match=rf"header metadata value is {size}"):
        read_header(windows, "f")
    assert max(length for _, length in file.asked) <= Windows.SIZE


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_blocks_tile_the_file_and_number_its_records(codec: str) -> None:
    data = avro_file(SCHEMA, RECORDS, codec)
    header = read_header(data, "f")
    blocks = list(read_blocks(data, header, "f"))
    assert len(blocks) > 3
    assert [block.first_ordinal for block in blocks] == [sum(b.count for b in blocks[:i]) for i in range(len(blocks))]
    assert sum(block.count for block in blocks) == len(RECORDS)
    inflated = b"".join(inflate(data, block, header, "f") for block in blocks)
    assert inflated == b"".join(varint(len(r["a"])) + r["a"].encode() for r in RECORDS)


def test_snappy_and_zstd_blocks_as_their_libraries_write_them() -> None:
    import pyarrow as pa

    original = b"abc" * 1000
    snappy = pa.compress(original, codec="snappy", asbytes=True) + zlib.crc32(original).to_bytes(4, "big")
    for codec, body in (("snappy", snappy), ("zstandard", pa.compress(original, codec="zstd", asbytes=True))):
        data = avro_file(SCHEMA, RECORDS[:1], "null").replace(
            varint(10) + b"avro.codec" + varint(4) + b"null",
            varint(10) + b"avro.codec" + varint(len(codec)) + codec.encode(),
        )
        data = with_block(data, 1, len(body), body)
        header = read_header(data, "f")
        assert [inflate(data, block, header, "f") for block in read_blocks(data, header, "f")] == [original]
        broken = with_block(data, 1, len(body), body[:-1] + bytes([body[-1] ^ 1]))
        if codec == "snappy":
            with pytest.raises(CorruptFileError, match="CRC-32"):
                [inflate(broken, block, header, "f") for block in read_blocks(broken, header, "f")]


def test_an_unknown_codec_is_refused_by_name() -> None:
    data = avro_file(SCHEMA, RECORDS[:1], "null").replace(b"null", b"lzma")
    header = read_header(data, "file:///m.avro")
    with pytest.raises(UnsupportedError, match=r"file:///m.avro.*lzma"):
        inflate(data, next(iter(read_blocks(data, header, "f"))), header, "file:///m.avro")


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 1 << 40), (-1, 4), (1, -4), (1 << 62, 4)],
    ids=["long", "negative count", "negative", "many"],
)
def test_lying_block_headers(count: int, size: int) -> None:
    data = with_block(avro_file(SCHEMA, RECORDS[:1], "null"), count, size, b"\x06abc")
    header = read_header(data, "file:///m.avro")
    with pytest.raises(CorruptFileError, match=r"file:///m.avro: block"):
        [inflate(data, block, header, "file:///m.avro") for block in read_blocks(data, header, "file:///m.avro")]


def test_a_bomb_is_stopped_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_BLOCK_BYTES", 1000)
    squeeze = zlib.compressobj(wbits=-15)
    body = squeeze.compress(bytes(100_000)) + squeeze.flush()
    data = with_block(avro_file(SCHEMA, RECORDS[:1], "deflate"), 1, len(body), body)
    header = read_header(data, "f")
    with pytest.raises(CorruptFileError, match="more than 1000 bytes"):
        inflate(data, next(iter(read_blocks(data, header, "f"))), header, "f")


@pytest.mark.parametrize("size", [10, 60_000, 100_000], ids=["at once", "a block of Java's", "as a stream"])
@pytest.mark.parametrize("library", ["deflate", "isal.isal_zlib", "zlib"])
def test_deflated_blocks_by_each_library(library: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(library)
    if library != "deflate":
        monkeypatch.setattr(container, "_ZLIB", module)
        monkeypatch.setattr(container, "_INFLATE", None)
    monkeypatch.setattr(container, "MAX_BLOCK_BYTES", 200_000)
    original = random.Random(1).randbytes(size)
    squeeze = zlib.compressobj(wbits=-15)
    body = squeeze.compress(original) + squeeze.flush()
    manifest = avro_file(SCHEMA, RECORDS[:1], "deflate")
    header = read_header(manifest, "f")
    for packed, good in ((body, True), (body[:-3], False), (b"\xff" * len(body), False), (b"", False)):
        data = with_block(manifest, 1, len(packed), packed)
        (block,) = read_blocks(data, header, "f")
        if good:
            assert inflate(data, block, header, "f") == original
        else:
            with pytest.raises(CorruptFileError, match="not deflate data"):
                inflate(data, block, header, "f")


def test_every_truncation_is_an_error() -> None:
    data = avro_file(SCHEMA, RECORDS, "deflate")
    header = read_header(data, "f")
    edges = {block.offset + block.size + container.SYNC_SIZE for block in read_blocks(data, header, "f")}
    for size in range(0, len(data), 7):
        if size in edges or size == header.end:
            continue
        with pytest.raises(CorruptFileError):
            list(read_blocks(data[:size], read_header(data[:size], "f"), "f"))


def test_a_foreign_sync_marker_is_an_error() -> None:
    data = avro_file(SCHEMA, RECORDS, "deflate")
    changed = data[:-1] + bytes([data[-1] ^ 0xFF])
    with pytest.raises(CorruptFileError, match="sync marker"):
        list(read_blocks(changed, read_header(changed, "f"), "f"))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "magic"),
        (b"PAR1....", "magic"),
        (b"Obj\x01", "header metadata"),
        (b"Obj\x01\x00" + b"x" * 16, "avro.schema"),
    ],
)
def test_no_container(data: bytes, field: str) -> None:
    with pytest.raises(CorruptFileError, match=f"f: {field}"):
        read_header(data, "f")
