"""Puffin files: footer and blobs (Puffin spec, format version 1). Light: Spark tasks import this."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkmeta.errors import CorruptFileError, UnsupportedError

MAGIC = b"PFA1"
DELETION_VECTOR = "deletion-vector-v1"

MAX_INFLATED_BYTES = 1 << 30
"""A footer or blob that unpacks to more than this is refused."""

_TAIL_BYTES = 4 + 4 + len(MAGIC)
_PART_BYTES = 1 << 20
_COMPRESSED = 1
_CODECS = {"lz4": "lz4", "zstd": "zstd"}  # Arrow's lz4 is the frame format, as Puffin's is


@dataclass(frozen=True)
class BlobMetadata:
    """What the footer says of one blob. offset and length are where it stands in the file, as it is stored."""

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
    """The file's blobs, in the footer's order, and its properties."""

    blobs: tuple[BlobMetadata, ...]
    properties: dict[str, str]


def read_footer(data: bytes, location: str) -> PuffinFooter:
    """The footer of a whole Puffin file.

    Raises:
        CorruptFileError: wrong magic numbers, lengths or JSON, blobs outside of the file.
        UnsupportedError: a flag that is not known.
    """
    if len(data) < 2 * len(MAGIC) + _TAIL_BYTES:
        raise CorruptFileError(location, "length", len(data), "too short for a Puffin file")
    size = int.from_bytes(data[-12:-8], "little", signed=True)
    start = len(data) - _TAIL_BYTES - size
    if size < 0 or start < 2 * len(MAGIC):
        raise CorruptFileError(location, "footer payload size", size, f"the file has {len(data)} bytes")
    for field, at in (("magic", 0), ("footer magic", start - len(MAGIC)), ("trailing magic", len(data) - len(MAGIC))):
        if data[at : at + len(MAGIC)] != MAGIC:
            raise CorruptFileError(location, field, data[at : at + len(MAGIC)].hex(), f"expected {MAGIC.hex()}")
    flags = int.from_bytes(data[-8:-4], "little")
    if flags & ~_COMPRESSED:
        raise UnsupportedError(f"{location}: footer flags {flags:#010x} are not known")
    payload = data[start : start + size]
    return _footer(_inflate(payload, "lz4", location) if flags else payload, location, start - len(MAGIC))


def read_blob(data: bytes, blob: BlobMetadata, location: str) -> bytes:
    """One blob of a whole Puffin file, unpacked.

    Raises:
        CorruptFileError: bytes that its codec can't read. UnsupportedError: another codec than lz4 and zstd.
    """
    stored = data[blob.offset : blob.offset + blob.length]
    return stored if blob.compression_codec is None else _inflate(stored, blob.compression_codec, location)


def _inflate(packed: bytes, codec: str, location: str) -> bytes:
    if codec.lower() not in _CODECS:
        raise UnsupportedError(f"{location}: compression-codec {codec!r} is none of {', '.join(_CODECS)}")
    try:
        inflated = _read_up_to(MAX_INFLATED_BYTES + 1, packed, _CODECS[codec.lower()])
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(location, "compressed data", packed[:8].hex(), f"not {codec}: {error}") from error
    if len(inflated) > MAX_INFLATED_BYTES:
        raise CorruptFileError(location, "compressed data", len(packed), f"unpacks to over {MAX_INFLATED_BYTES} bytes")
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
        raise CorruptFileError(location, "footer.blobs", blobs, "it is no list")
    return PuffinFooter(
        tuple(_blob(blob, f"footer.blobs[{index}]", location, end) for index, blob in enumerate(blobs)),
        _texts(content.get("properties"), "footer.properties", location),
    )


def _blob(blob: Any, path: str, location: str, end: int) -> BlobMetadata:
    if not isinstance(blob, dict):
        raise CorruptFileError(location, path, blob, "it is no object")

    def of(name: str, kind: type) -> Any:
        value = blob.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CorruptFileError(location, f"{path}.{name}", value, f"it is no {kind.__name__}")
        return value

    offset, length, fields = of("offset", int), of("length", int), of("fields", list)
    if offset < len(MAGIC) or length < 0 or offset + length > end:
        raise CorruptFileError(location, f"{path}.offset", offset, f"{length} bytes from there are not all blobs'")
    if not all(type(field) is int for field in fields):
        raise CorruptFileError(location, f"{path}.fields", fields, "they are no field ids")
    codec = None if blob.get("compression-codec") is None else of("compression-codec", str)
    properties = _texts(blob.get("properties"), f"{path}.properties", location)
    return BlobMetadata(
        type=of("type", str),
        fields=tuple(fields),
        snapshot_id=of("snapshot-id", int),
        sequence_number=of("sequence-number", int),
        offset=offset,
        length=length,
        compression_codec=codec,
        properties=properties,
    )


def _texts(value: Any, path: str, location: str) -> dict[str, str]:
    texts = {} if value is None else value
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise CorruptFileError(location, path, value, "it is no object of strings")
    return texts
