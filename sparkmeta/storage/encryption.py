"""Decrypt and encrypt files: AES GCM streams, and the keys of Parquet's modular encryption. Light: tasks import this.

The parent of an encrypted file stores its key metadata: a manifest entry for data and delete files, a manifest list for
manifests, and the table's metadata for manifest lists (`storage/keys.py`). Parquet files use Parquet's own encryption.
All other files are encrypted as streams (`format/gcm-stream-spec.md` of Iceberg).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sparkmeta.errors import EncryptionError, UnsupportedError
from sparkmeta.spec.varints import decoded_long, encoded_long

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_METADATA = "key_metadata"
"""The column with the key metadata of files."""

MAGIC = b"AGS1"
BLOCK = 1 << 20
_NONCE, _TAG = 12, 16
_SEALED = BLOCK + _NONCE + _TAG
_HEADER = MAGIC + struct.pack("<i", BLOCK)

_VERSION = 1
KEY_LENGTHS = (16, 24, 32)
_AAD_LENGTH = 16


# -- AES GCM ----------------------------------------------------------------------------------------------------------


def cipher(key: bytes) -> AESGCM:
    """Return the cipher of a key.

    Raises:
        UnsupportedError: the package cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UnsupportedError("encrypted tables need the package cryptography: sparkmeta[encryption]") from None
    return AESGCM(key)


def sealed(aes: AESGCM, content: bytes | memoryview, aad: bytes | None) -> bytes:
    """Encrypt bytes under a new nonce, which precedes them."""
    nonce = os.urandom(_NONCE)
    return nonce + aes.encrypt(nonce, content, aad)


def unsealed(aes: AESGCM, content: bytes | memoryview, aad: bytes | None, what: str) -> bytes:
    """Decrypt bytes that `sealed` encrypted.

    Args:
        aes: the cipher.
        content: the nonce and the encrypted bytes.
        aad: the additional authenticated data.
        what: names the bytes in errors.

    Raises:
        EncryptionError: the key is wrong, or the bytes were changed.
    """
    from cryptography.exceptions import InvalidTag

    try:
        return aes.decrypt(bytes(content[:_NONCE]), content[_NONCE:], aad)
    except (InvalidTag, ValueError):
        raise EncryptionError(f"{what}: the key is wrong, or the bytes were changed: AES GCM's tag differs") from None


# -- Key metadata -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileKey:
    """The key of a file (Iceberg's standard key metadata, version 1).

    Attributes:
        key: the AES key.
        aad_prefix: the beginning of the additional authenticated data, which identifies the file.
        length: the length of the encrypted file; None if the file's format itself reveals missing bytes.
    """

    key: bytes = field(repr=False)
    aad_prefix: bytes = field(repr=False)
    length: int | None = None

    @staticmethod
    def new(data_key_length: int) -> FileKey:
        """Return a new random key."""
        return FileKey(os.urandom(data_key_length), os.urandom(_AAD_LENGTH))

    @staticmethod
    def parse(metadata: bytes, location: str) -> FileKey:
        """Return the key in the key metadata of a file.

        Raises:
            EncryptionError: the bytes are not standard key metadata of version 1.
        """
        if metadata[:1] != bytes([_VERSION]):
            version = f"version {metadata[0]}" if metadata else "no version"
            raise EncryptionError(f"{location}: its key_metadata has {version}: only version {_VERSION} is known")
        try:
            record = _Record(metadata)
            key = record.bytes()
            has_aad_prefix = record.long() == 1
            aad_prefix = record.bytes() if has_aad_prefix else b""
            has_length = record.long() == 1
            length = record.long() if has_length else None
        except IndexError:
            raise EncryptionError(f"{location}: its key_metadata ends too early") from None
        if len(key) not in KEY_LENGTHS:
            raise EncryptionError(f"{location}: its key_metadata has a key of {len(key)} bytes, not of 16, 24 or 32")
        return FileKey(key, aad_prefix, length)

    def metadata(self) -> bytes:
        """Return the key metadata."""
        values = [_bytes(self.key), encoded_long(1), _bytes(self.aad_prefix)]
        values += [encoded_long(0)] if self.length is None else [encoded_long(1), encoded_long(self.length)]
        return bytes([_VERSION]) + b"".join(values)

    def with_length(self, length: int) -> FileKey:
        """Return the key with the length of its encrypted file."""
        return replace(self, length=length)

    def encrypted(self, content: bytes) -> bytes:
        """Encrypt a file as a stream. The stream of an empty file has one empty block."""
        aes, view = cipher(self.key), memoryview(content)
        starts = range(0, max(len(content), 1), BLOCK)
        blocks = (sealed(aes, view[start : start + BLOCK], self._aad(start // BLOCK)) for start in starts)
        return b"".join((_HEADER, *blocks))

    def _aad(self, block: int) -> bytes:
        return self.aad_prefix + struct.pack("<i", block)


class _Record:
    """A reader of an Avro record of bytes and longs. It raises IndexError past the record's end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 1

    def long(self) -> int:
        value, self._position = decoded_long(self._data, self._position)
        return value

    def bytes(self) -> bytes:
        length = self.long()
        self._position += length
        if length < 0 or self._position > len(self._data):
            raise IndexError
        return self._data[self._position - length : self._position]


def _bytes(value: bytes) -> bytes:
    return encoded_long(len(value)) + value


# -- Decrypt streams --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """An encrypted stream in a file.

    Attributes:
        location: the file.
        key: its key.
    """

    location: str
    key: FileKey

    @staticmethod
    def of(location: str, metadata: bytes) -> Stream:
        """Return the stream in a file with key metadata."""
        return Stream(location, FileKey.parse(metadata, location))

    @property
    def length(self) -> int:
        """The length of the decrypted file.

        Raises:
            EncryptionError: the key metadata lacks a valid length, without which a truncated stream would go unnoticed.
        """
        stored = self._stored_length
        blocks, rest = divmod(stored - len(_HEADER), _SEALED)
        if 0 < rest < _NONCE + _TAG or stored < len(_HEADER) + _NONCE + _TAG:
            raise EncryptionError(f"{self.location}: its key_metadata has the length {stored} of no stream")
        return blocks * BLOCK + max(rest - _NONCE - _TAG, 0)

    @property
    def _stored_length(self) -> int:
        if self.key.length is None:
            raise EncryptionError(f"{self.location}: its key_metadata has no file length, by which a stream is checked")
        return self.key.length

    def decrypted(self, content: bytes | memoryview) -> bytes:
        """Decrypt the whole file.

        Raises:
            EncryptionError: the file is not encrypted, has the wrong length or was changed, or the key is wrong.
        """
        self._check_header(content)
        if len(content) != self._stored_length:
            raise EncryptionError(
                f"{self.location}: the file has {len(content)} bytes, but {self._stored_length} by its key_metadata"
            )
        return self._blocks(memoryview(content)[len(_HEADER) :], 0)

    def read_range(self, read: Callable[[int, int], bytes], offset: int, size: int) -> bytes:
        """Read a range of the decrypted file, up to its end. Only the blocks that overlap the range are read.

        Args:
            read: reads a range of the encrypted file.
            offset: the start of the range.
            size: the length of the range.
        """
        length = self.length
        start = min(max(offset, 0), length)
        end = min(start + max(size, 0), length) if offset >= 0 else start
        if end <= start:
            return b""
        first, last = start // BLOCK, (end - 1) // BLOCK
        # The header is checked with the first block.
        begin = 0 if first == 0 else len(_HEADER) + first * _SEALED
        stored = self._stored_length
        stop = min(len(_HEADER) + (last + 1) * _SEALED, stored)
        content = memoryview(read(begin, stop - begin))
        if len(content) != stop - begin:
            raise EncryptionError(f"{self.location}: the file has fewer bytes than {stored}, its key_metadata's")
        if first == 0:
            self._check_header(content)
            content = content[len(_HEADER) :]
        return self._blocks(content, first)[start - first * BLOCK : end - first * BLOCK]

    def _check_header(self, content: bytes | memoryview) -> None:
        if bytes(content[: len(_HEADER)]) != _HEADER:
            raise EncryptionError(f"{self.location}: the file is not encrypted, though it has a key_metadata")

    def _blocks(self, content: memoryview, first: int) -> bytes:
        aes = cipher(self.key.key)
        blocks = []
        for index, start in enumerate(range(0, len(content), _SEALED), first):
            block, aad = content[start : start + _SEALED], self.key._aad(index)
            blocks.append(unsealed(aes, block, aad, f"{self.location}: block {index}"))
        return b"".join(blocks)


class RangeSource(Protocol):
    """A reader of files: `Files` on the driver, `ExecutorReader` in tasks."""

    def read(self, location: str) -> bytes: ...

    def read_range(self, location: str, offset: int, size: int) -> bytes: ...


@dataclass(frozen=True)
class Decrypting:
    """A reader that decrypts a file with an encrypted stream."""

    source: RangeSource
    stream: Stream

    def read(self, location: str) -> bytes:
        """Return the content of the file."""
        return self.stream.decrypted(self.source.read(location))

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Return a range of the file, up to its end."""
        return self.stream.read_range(partial(self.source.read_range, location), offset, size)


def decrypted(content: bytes, location: str, key_metadata: bytes | None) -> bytes:
    """Return the bytes of a file, decrypted as a stream if the file has key metadata."""
    return content if key_metadata is None else Stream.of(location, key_metadata).decrypted(content)


# -- Encrypt streams --------------------------------------------------------------------------------------------------


def encrypted(content: bytes, data_key_length: int | None) -> tuple[bytes, bytes | None]:
    """Encrypt a file as a stream under a new key. Return the stream and its key metadata.

    Args:
        content: the file.
        data_key_length: the length of the key in bytes; None to return the file unencrypted, without key metadata.
    """
    if data_key_length is None:
        return content, None
    key = FileKey.new(data_key_length)
    stream = key.encrypted(content)
    return stream, key.with_length(len(stream)).metadata()


class EncryptingSink:
    """An output stream that encrypts a file block by block."""

    def __init__(self, sink: Any, key: FileKey) -> None:
        self._sink, self._key, self._aes = sink, key, cipher(key.key)
        self._pending = bytearray()
        self._blocks = 0
        sink.write(_HEADER)

    def tell(self) -> int:
        """Return the length that the encrypted file would have if it ended here."""
        return int(self._sink.tell()) + _NONCE + len(self._pending) + _TAG

    def write(self, data: bytes) -> None:
        """Write bytes."""
        self._pending += data
        while len(self._pending) > BLOCK:
            self._write_block(self._pending[:BLOCK])
            del self._pending[:BLOCK]

    def finish(self) -> int:
        """Write the last block, and return the length of the encrypted file."""
        self._write_block(self._pending)
        self._pending.clear()
        return int(self._sink.tell())

    def close(self) -> None:
        """Close the stream. Its last block is missing unless `finish` wrote it."""
        self._sink.close()

    def _write_block(self, block: bytearray) -> None:
        self._sink.write(sealed(self._aes, bytes(block), self._key._aad(self._blocks)))
        self._blocks += 1


# -- Parquet ----------------------------------------------------------------------------------------------------------


def parquet_encryption(key: FileKey) -> Any:
    """Return pyarrow's properties for writing an encrypted Parquet file."""
    create = _arrow_function("create_encryption_properties")
    return create(key.key, aad_prefix=key.aad_prefix, store_aad_prefix=False)


def _arrow_function(name: str) -> Any:
    """Return a function of pyarrow's encryption module. Raises UnsupportedError if the installed pyarrow lacks it."""
    import pyarrow as pa

    try:
        from pyarrow.parquet import encryption

        return getattr(encryption, name)
    except (ImportError, AttributeError):
        raise UnsupportedError(
            f"encrypted Parquet files need a newer pyarrow than {pa.__version__}: no {name}"
        ) from None


# -- The keys of files that a task opens ------------------------------------------------------------------------------


class FileKeys:
    """The keys of a reader's files, which it learns from the rows that name the files. They are not pickled with it."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._parquet: dict[str, bytes] = {}

    def learn(self, location: str, file_format: str, metadata: bytes | None) -> None:
        """Remember the key metadata of a file, if it has any.

        Raises:
            EncryptionError: the key metadata is invalid.
        """
        if metadata is None:
            return
        if file_format.upper() == "PARQUET":
            self._parquet[location] = metadata
        else:
            self._streams[location] = Stream.of(location, metadata)

    def stream_of(self, location: str) -> Stream | None:
        """Return the stream in a file; None if the file has none."""
        return self._streams.get(location)

    def parquet_decryption(self, location: str) -> Any:
        """Return pyarrow's properties for reading a Parquet file; None if it is not encrypted."""
        metadata = self._parquet.get(location)
        if metadata is None:
            return None
        key = FileKey.parse(metadata, location)
        return _arrow_function("create_decryption_properties")(key.key, aad_prefix=key.aad_prefix or None)
