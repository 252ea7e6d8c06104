"""Read and write Puffin files (Puffin spec, format version 1).

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.errors import CorruptFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAGIC = b"PFA1"
DELETION_VECTOR = "deletion-vector-v1"

MAX_INFLATED_BYTES = 1 << 30
"""The largest footer or blob, uncompressed, that is read."""

_TAIL_BYTES = 4 + 4 + len(MAGIC)
_PART_BYTES = 1 << 20
_COMPRESSED = 1
_CREATED_BY = "created-by"
_ROW_POSITION = 2147483645  # the reserved field id that Iceberg's Java library names in deletion vectors
_CODECS = {"lz4": "lz4", "zstd": "zstd"}  # Arrow's lz4 is the frame format, as Puffin's is


@dataclass(frozen=True)
class BlobMetadata:
    """A blob as the footer describes it.

    Attributes:
        offset: Where the blob begins in the file.
        length: The size of the blob in the file, compressed if it has a codec.
    """

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression_codec: str | None
    properties: dict[str, str]


@dataclass(frozen=True)
class PuffinFooter:
    """The blobs of a file, in the footer's order, and the properties of the file."""

    blobs: tuple[BlobMetadata, ...]
    properties: dict[str, str]


@dataclass(frozen=True)
class Blob:
    """A blob to write.

    Attributes:
        content: The uncompressed content.
        compression_codec: None, ``lz4`` or ``zstd``.
    """

    type: str
    content: bytes
    fields: tuple[int, ...] = ()
    snapshot_id: int = -1
    sequence_number: int = -1
    compression_codec: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PuffinFile:
    """A Puffin file in memory.

    Attributes:
        data: The bytes of the file.
        blobs: The blobs with their places in the file, in the order in which they were passed.
        footer_size: The size of the footer in bytes.
    """

    data: bytes
    blobs: tuple[BlobMetadata, ...]
    footer_size: int


def deletion_vector_blob(content: bytes, referenced_file: str, cardinality: int) -> Blob:
    """Return the blob of a deletion vector, with the properties that the Puffin spec requires (semantics 13.8).

    Args:
        content: The result of write_deletion_vector.
        referenced_file: The data file or manifest whose rows the vector masks.
        cardinality: The number of positions.
    """
    properties = {"referenced-data-file": referenced_file, "cardinality": str(cardinality)}
    return Blob(DELETION_VECTOR, content, (_ROW_POSITION,), properties=properties)


def write_puffin(
    blobs: Iterable[Blob], properties: Mapping[str, str] | None = None, *, compress_footer: bool = False
) -> PuffinFile:
    """Return a Puffin file with some blobs (semantics 13.6).

    Args:
        blobs: The blobs.
        properties: The properties of the file. The default of ``created-by`` is this library.
        compress_footer: Compress the footer with LZ4, which neither pyiceberg nor Iceberg's Java library can read.

    Raises:
        UnsupportedError: A codec is neither lz4 nor zstd.
    """
    parts, placed, offset = [MAGIC], [], len(MAGIC)
    for blob in blobs:
        stored = blob.content if blob.compression_codec is None else _deflate(blob.content, blob.compression_codec)
        placed.append(_placed(blob, offset, len(stored)))
        parts.append(stored)
        offset += len(stored)
    content = {"blobs": list(map(_blob_json, placed)), "properties": {_CREATED_BY: _library(), **(properties or {})}}
    payload = json.dumps(content, separators=(",", ":")).encode()
    if compress_footer:
        payload = _deflate(payload, "lz4")
    footer = [MAGIC, payload, struct.pack("<iI", len(payload), _COMPRESSED if compress_footer else 0), MAGIC]
    return PuffinFile(b"".join(parts + footer), tuple(placed), sum(map(len, footer)))


def read_footer(data: bytes, location: str) -> PuffinFooter:
    """Return the footer of a Puffin file.

    Args:
        data: The whole file.
        location: The file, for error messages.

    Raises:
        CorruptFileError: A magic number, a length or the JSON is wrong, or a blob is outside of the file.
        UnsupportedError: An unknown flag is set.
    """
    if len(data) < 2 * len(MAGIC) + _TAIL_BYTES:
        raise CorruptFileError(location, "length", len(data), "too short for a Puffin file")
    size = int.from_bytes(data[-12:-8], "little", signed=True)
    start = len(data) - _TAIL_BYTES - size
    if size < 0 or start < 2 * len(MAGIC):
        raise CorruptFileError(location, "footer payload size", size, f"the file has {len(data)} bytes")
    offsets = {"magic": 0, "footer magic": start - len(MAGIC), "trailing magic": len(data) - len(MAGIC)}
    for field_name, offset in offsets.items():
        if (magic := data[offset : offset + len(MAGIC)]) != MAGIC:
            raise CorruptFileError(location, field_name, magic.hex(), f"expected {MAGIC.hex()}")
    flags = int.from_bytes(data[-8:-4], "little")
    if flags & ~_COMPRESSED:
        raise UnsupportedError(f"{location}: footer flags {flags:#010x} are not known")
    payload = data[start : start + size]
    return _footer(_inflate(payload, "lz4", location) if flags else payload, location, start - len(MAGIC))


def read_blob(data: bytes, blob: BlobMetadata, location: str) -> bytes:
    """Return the uncompressed content of a blob.

    Args:
        data: The whole file.
        blob: The blob, as read_footer returns it.
        location: The file, for error messages.

    Raises:
        CorruptFileError: The codec can't decompress the bytes.
        UnsupportedError: The codec is neither lz4 nor zstd.
    """
    stored = data[blob.offset : blob.offset + blob.length]
    return stored if blob.compression_codec is None else _inflate(stored, blob.compression_codec, location)


def _placed(blob: Blob, offset: int, length: int) -> BlobMetadata:
    return BlobMetadata(
        type=blob.type,
        fields=tuple(blob.fields),
        snapshot_id=blob.snapshot_id,
        sequence_number=blob.sequence_number,
        offset=offset,
        length=length,
        compression_codec=blob.compression_codec,
        properties=dict(blob.properties),
    )


def _blob_json(blob: BlobMetadata) -> dict[str, Any]:
    written: dict[str, Any] = {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
    }
    if blob.compression_codec is not None:
        written["compression-codec"] = blob.compression_codec
    return written | ({"properties": blob.properties} if blob.properties else {})


def _library() -> str:
    try:
        return f"sparkmeta {version('sparkmeta')}"
    except PackageNotFoundError:  # imported from a checkout that is not installed
        return "sparkmeta"


def _deflate(content: bytes, codec: str) -> bytes:
    if codec not in _CODECS:
        raise UnsupportedError(f"compression-codec {codec!r} is not one of {', '.join(_CODECS)}")
    packed: bytes = pa.compress(content, codec=_CODECS[codec], asbytes=True)
    return _with_content_size(packed, len(content)) if codec == "lz4" else packed


def _with_content_size(frame: bytes, size: int) -> bytes:
    """Add the size of the content to an LZ4 frame, which Puffin requires and Arrow does not write.

    A frame begins with a magic number (4 bytes) and a descriptor: flags, block size, the size of the content if flag 8
    is set. A checksum of the descriptor follows.
    """
    descriptor = bytes([frame[4] | 8, frame[5]]) + struct.pack("<Q", size)
    rest = frame[7 + (8 if frame[4] & 8 else 0) :]
    return frame[:4] + descriptor + bytes([_xxh32_short(descriptor) >> 8 & 0xFF]) + rest


def _xxh32_short(data: bytes) -> int:
    """Return the xxHash32 with seed 0 of less than 16 bytes."""
    primes = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
    mask, whole = 0xFFFFFFFF, len(data) // 4 * 4
    result = primes[4] + len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        result = _rotated(result + word * primes[2] & mask, 17) * primes[3] & mask
    for byte in data[whole:]:
        result = _rotated(result + byte * primes[4] & mask, 11) * primes[0] & mask
    result = (result ^ result >> 15) * primes[1] & mask
    result = (result ^ result >> 13) * primes[2] & mask
    return result ^ result >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & 0xFFFFFFFF


def _inflate(packed: bytes, codec: str, location: str) -> bytes:
    if codec.lower() not in _CODECS:
        raise UnsupportedError(f"{location}: compression-codec {codec!r} is not one of {', '.join(_CODECS)}")
    try:
        inflated = _read_up_to(MAX_INFLATED_BYTES + 1, packed, _CODECS[codec.lower()])
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(location, "compressed data", packed[:8].hex(), f"not {codec}: {error}") from error
    if len(inflated) > MAX_INFLATED_BYTES:
        raise CorruptFileError(
            location, "compressed data", len(packed), f"it decompresses to more than {MAX_INFLATED_BYTES} bytes"
        )
    return inflated


def _read_up_to(limit: int, packed: bytes, codec: str) -> bytes:
    parts: list[bytes] = []
    with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
        while limit > 0 and (part := stream.read(min(limit, _PART_BYTES))):
            parts.append(part)
            limit -= len(part)
    return b"".join(parts)


def _footer(payload: bytes, location: str, end: int) -> PuffinFooter:
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(location, "footer", payload, f"not JSON: {error}") from error
    blobs = content.get("blobs") if isinstance(content, dict) else None
    if not isinstance(blobs, list):
        raise CorruptFileError(location, "footer.blobs", blobs, "not a list")
    return PuffinFooter(
        tuple(_blob(blob, f"footer.blobs[{index}]", location, end) for index, blob in enumerate(blobs)),
        _texts(content.get("properties"), "footer.properties", location),
    )


def _blob(blob: Any, path: str, location: str, end: int) -> BlobMetadata:
    if not isinstance(blob, dict):
        raise CorruptFileError(location, path, blob, "not an object")

    def required(name: str, kind: type) -> Any:
        value = blob.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CorruptFileError(location, f"{path}.{name}", value, f"not of type {kind.__name__}")
        return value

    offset, length, fields = required("offset", int), required("length", int), required("fields", list)
    if offset < len(MAGIC) or length < 0 or offset + length > end:
        raise CorruptFileError(location, f"{path}.offset", offset, f"a blob of {length} bytes does not fit there")
    if not all(type(number) is int for number in fields):
        raise CorruptFileError(location, f"{path}.fields", fields, "not field ids")
    codec = None if blob.get("compression-codec") is None else required("compression-codec", str)
    properties = _texts(blob.get("properties"), f"{path}.properties", location)
    return BlobMetadata(
        type=required("type", str),
        fields=tuple(fields),
        snapshot_id=required("snapshot-id", int),
        sequence_number=required("sequence-number", int),
        offset=offset,
        length=length,
        compression_codec=codec,
        properties=properties,
    )


def _texts(value: Any, path: str, location: str) -> dict[str, str]:
    texts = {} if value is None else value
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise CorruptFileError(location, path, value, "not an object of strings")
    return texts
