"""AES GCM streams and key metadata, as `format/gcm-stream-spec.md` of Iceberg specifies them."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.errors import EncryptionError
from sparkmeta.storage.encryption import (
    BLOCK,
    EncryptingSink,
    FileKey,
    FileKeys,
    Stream,
    cipher,
    decrypted,
    encrypted,
    sealed,
    unsealed,
)

KEY = b"sixteen secrets."
PREFIX = b"the file's prefix"
LENGTHS = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5]


def stream_of(content: bytes, location: str = "t/f.avro") -> tuple[bytes, Stream]:
    data, metadata = encrypted(content, 16)
    assert metadata is not None
    return data, Stream.of(location, metadata)


def test_the_bytes_of_key_metadata() -> None:
    """Iceberg's Java library has written the longer ones."""
    metadata = b"\x01" + bytes([2 * len(KEY)]) + KEY + b"\x02" + bytes([2 * len(PREFIX)]) + PREFIX + b"\x02\x80\x0c"
    key = FileKey.parse(metadata, "t/f")
    assert (key.key, key.aad_prefix, key.length) == (KEY, PREFIX, 768)
    assert key.metadata() == metadata
    short = b"\x01" + bytes([2 * len(KEY)]) + KEY + b"\x00\x00"
    assert FileKey.parse(short, "t/f") == FileKey(KEY, b"", None)


@given(st.sampled_from([16, 24, 32]), st.none() | st.integers(0, 1 << 62))
def test_key_metadata_is_parsed_as_it_is_written(length: int, file_length: int | None) -> None:
    key = FileKey.new(length)
    key = key if file_length is None else key.with_length(file_length)
    assert FileKey.parse(key.metadata(), "t/f") == key


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (b"", "no version"),
        (b"\x02\x20" + KEY, "version 2: only version 1 is known"),
        (b"\x01\x20" + KEY, "ends too early"),
        (b"\x01\x20" + KEY[:5], "ends too early"),
        (b"\x01\x0a" + KEY[:5] + b"\x00\x00", "a key of 5 bytes, not of 16, 24 or 32"),
    ],
)
def test_invalid_key_metadata(metadata: bytes, problem: str) -> None:
    with pytest.raises(EncryptionError, match=rf"^t/f: .*{problem}") as error:
        FileKey.parse(metadata, "t/f")
    assert "sixteen" not in str(error.value)


def test_no_text_of_a_key_shows_it() -> None:
    data, metadata = encrypted(b"rows", 16)
    assert metadata is not None
    stream = Stream.of("t/f", metadata)
    assert str(stream.key.key) not in repr(stream)
    assert "key=" not in repr(stream.key).replace("FileKey", "")
    assert "prefix" not in repr(stream.key)
    assert len(data) == stream.key.length


@pytest.mark.parametrize("length", LENGTHS)
def test_streams(length: int) -> None:
    content = bytes(range(256)) * (length // 256 + 1)
    content = content[:length]
    data, stream = stream_of(content)
    assert data[:8] == b"AGS1" + struct.pack("<i", 1 << 20)
    blocks = max(1, -(-length // BLOCK))
    assert len(data) == 8 + length + 28 * blocks
    assert stream.length == length
    assert stream.decrypted(data) == content
    for offset, size in ((0, 10), (length // 2, BLOCK), (length - 3, 10), (length, 5), (0, length), (-1, 5)):
        read = stream.read_range(lambda start, count: data[start : start + count], offset, size)
        assert read == (content[offset : offset + size] if offset >= 0 else b"")


def test_only_the_blocks_of_a_range_are_read() -> None:
    data, stream = stream_of(bytes(5 * BLOCK))
    requests: list[int] = []

    def read(start: int, count: int) -> bytes:
        requests.append(count)
        return data[start : start + count]

    assert stream.read_range(read, 3 * BLOCK + 10, 100) == bytes(100)
    assert requests == [BLOCK + 28]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sink_writes_the_same_stream(length: int) -> None:
    target, key = io.BytesIO(), FileKey.new(32)
    sink = EncryptingSink(target, key)
    content = bytes(length)
    for start in range(0, length, 300_000):
        sink.write(content[start : start + 300_000])
    expected_length = sink.tell()
    stored = sink.finish()
    assert stored == expected_length == len(target.getvalue())
    metadata = key.with_length(stored).metadata()
    assert decrypted(target.getvalue(), "t/f", metadata) == content


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "block 0: the key is wrong, or the bytes were"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "block 2: the key is wrong, or the bytes were changed"),
        (lambda data: data[: 8 + BLOCK + 28], "has 1048612 bytes, but 2097249 by its key_metadata"),
        (lambda data: data + b"more", "has 2097253 bytes, but 2097249 by its key_metadata"),
        (lambda data: b"PAR1" + data[4:], "the file is not encrypted, though it has a key_metadata"),
        # The blocks change places.
        (lambda data: data[:8] + data[8 + BLOCK + 28 : 8 + 2 * BLOCK + 56] + data[8 : 8 + BLOCK + 28] + data[-33:],
         "block 0: the key is wrong"),
    ],
)  # fmt: skip
def test_changed_files(change: object, problem: str) -> None:
    data, stream = stream_of(bytes(2 * BLOCK + 5))
    with pytest.raises(EncryptionError, match=rf"^t/f.avro: .*{problem}"):
        stream.decrypted(change(data))  # type: ignore[operator]


def test_another_key() -> None:
    data, metadata = encrypted(b"rows", 16)
    assert metadata is not None
    other = FileKey(KEY, FileKey.parse(metadata, "f").aad_prefix, len(data)).metadata()
    with pytest.raises(EncryptionError, match=r"^t/f.avro: block 0: the key is wrong") as error:
        decrypted(data, "t/f.avro", other)
    assert "sixteen" not in str(error.value)
    assert error.value.__cause__ is None


def test_a_stream_without_a_trusted_length() -> None:
    with pytest.raises(EncryptionError, match=r"^t/f: its key_metadata has no file length"):
        decrypted(encrypted(b"rows", 16)[0], "t/f", FileKey(KEY, PREFIX).metadata())
    for length in (8, 20, 8 + BLOCK + 28 + 10):
        with pytest.raises(EncryptionError, match=rf"^t/f: its key_metadata has the length {length} of no stream"):
            _ = Stream("t/f", FileKey(KEY, PREFIX, length)).length


def test_additional_data_is_authenticated() -> None:
    aes = cipher(KEY)
    assert unsealed(aes, sealed(aes, b"content", b"aad"), b"aad", "it") == b"content"
    with pytest.raises(EncryptionError, match=r"^it: the key is wrong"):
        unsealed(aes, sealed(aes, b"content", b"aad"), b"other", "it")
    with pytest.raises(EncryptionError, match=r"^it: the key is wrong"):
        unsealed(aes, b"short", b"aad", "it")


def test_learned_keys() -> None:
    keys, metadata = FileKeys(), FileKey.new(16).metadata()
    keys.learn("t/a.parquet", "PARQUET", metadata)
    keys.learn("t/b.avro", "AVRO", metadata)
    keys.learn("t/c.avro", "AVRO", None)
    assert keys.stream_of("t/a.parquet") is None
    assert keys.stream_of("t/b.avro") is not None
    assert keys.stream_of("t/c.avro") is None
    assert keys.parquet_decryption("t/a.parquet") is not None
    assert keys.parquet_decryption("t/b.avro") is None
