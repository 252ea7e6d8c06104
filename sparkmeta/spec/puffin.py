"""Read and write Puffin files (Puffin spec, format version 1), and the theta sketches in them."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sparkmeta.errors import CorruptFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


# -- Theta sketches (Puffin spec, blob types) -------------------------------------------------------------------------
# A sketch keeps the smallest hashes of a set of values, at most `MOST_HASHES`, and every hash below its theta. Sketches
# of this module depend only on the set of values, not on their order or on how partial sketches were merged. Hashes use
# DataSketches' default seed, so that its libraries, and Iceberg's in Java, can merge them with their own.
#
# numpy hashes whole arrays of values; DataSketches' package for Python accepts only single values, and no bytes. Spark
# tasks import this module, so it imports little.


Words = np.ndarray[Any, np.dtype[np.uint64]]

BLOB_TYPE = "apache-datasketches-theta-v1"
NDV = "ndv"
"""The property of a blob that holds the estimated number of distinct values."""

MOST_HASHES = 4096
"""The nominal number of entries that Iceberg's writers use."""

_SEED = 9001
# The low bits of the seed's own hash. Libraries merge only sketches with equal seed hashes.
_SEED_HASH = 0x93CC
_ALL = (1 << 63) - 1
_COMPACT_FAMILY, _SERIAL_VERSION = 3, 3
_READ_ONLY, _EMPTY, _COMPACT, _ORDERED, _SINGLE = 2, 4, 8, 16, 32
_HEADER = struct.Struct("<BBBBBBH")
_WORD = 8
_BLOCK = 16


@dataclass(frozen=True)
class ThetaSketch:
    """A compact, ordered theta sketch.

    Attributes:
        hashes: the hashes below theta, ascending, without repeats.
        theta: the bound of the hashes, as a fraction of 2^63; the largest value if the sketch has them all.
    """

    hashes: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    theta: int = _ALL

    def with_hashes(self, hashes: Words) -> ThetaSketch:
        """Return the sketch with further values, passed as hashes in any order; 0 is not a hash."""
        ascending = np.sort(np.concatenate([self.hashes, hashes[hashes < self.theta]]))
        ascending = ascending[ascending.searchsorted(1) :]
        is_first = np.ones(len(ascending), bool)
        is_first[1:] = ascending[1:] != ascending[:-1]
        return _limited(ascending[is_first], self.theta)

    def union(self, other: ThetaSketch) -> ThetaSketch:
        """Return the sketch of the values of both sketches."""
        lower, higher = (self, other) if self.theta <= other.theta else (other, self)
        return lower.with_hashes(higher.hashes)

    @cached_property
    def estimate(self) -> float:
        """The estimated number of distinct values, exact for at most `MOST_HASHES`."""
        return len(self.hashes) if self.theta == _ALL else len(self.hashes) / (self.theta / (1 << 63))

    def to_bytes(self) -> bytes:
        """Return the sketch in DataSketches' serial form, version 3."""
        count, is_exact = len(self.hashes), self.theta == _ALL
        flags = _READ_ONLY | _COMPACT | _ORDERED
        preamble = b""
        if is_exact and count == 0:
            flags |= _EMPTY
        elif is_exact and count == 1:
            flags |= _SINGLE
        else:
            preamble = struct.pack("<If", count, 1.0) + (b"" if is_exact else struct.pack("<Q", self.theta))
        words = 1 + len(preamble) // _WORD
        header = _HEADER.pack(words, _SERIAL_VERSION, _COMPACT_FAMILY, 0, 0, flags, _SEED_HASH)
        return header + preamble + self.hashes.astype("<u8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> ThetaSketch:
        """Return a compact sketch that was serialized.

        Raises:
            ValueError: the bytes are not an ordered compact sketch of version 3 with the default seed.
        """
        if len(data) < _HEADER.size:
            raise ValueError(f"a theta sketch of {len(data)} bytes")
        words, version, family, _, _, flags, seed = _HEADER.unpack_from(data)
        words &= 0x3F
        if (version, family) != (_SERIAL_VERSION, _COMPACT_FAMILY) or not flags & _ORDERED or words not in (1, 2, 3):
            raise ValueError(f"not an ordered compact theta sketch of version {_SERIAL_VERSION}: {data[:8].hex()}")
        if flags & _EMPTY:
            return ThetaSketch()
        if seed != _SEED_HASH:
            raise ValueError(f"a theta sketch with the seed hash {seed:#x}, not the default one")
        count = 1 if words == 1 else struct.unpack_from("<I", data, _WORD)[0]
        theta = struct.unpack_from("<Q", data, 2 * _WORD)[0] if words == 3 else _ALL
        if len(data) < _WORD * (words + count):
            raise ValueError(f"a theta sketch of {count} hashes in {len(data)} bytes")
        return ThetaSketch(np.frombuffer(data, "<u8", count, _WORD * words).astype(np.uint64), theta)


def _limited(hashes: Words, theta: int) -> ThetaSketch:
    if len(hashes) <= MOST_HASHES:
        return ThetaSketch(hashes, theta)
    return ThetaSketch(hashes[:MOST_HASHES].copy(), int(hashes[MOST_HASHES]))


# -- Hashes: the first half of MurmurHash3_x64_128 --------------------------------------------------------------------

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
# Number of bytes -> mask of their bits in a word.
_PRESENT = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


def hash_numbers(values: np.ndarray[Any, Any]) -> Words:
    """Return the hashes of numbers of at most 8 bytes, by their little-endian bytes."""
    width = values.dtype.itemsize
    words = np.ascontiguousarray(values).view(f"<u{width}").astype(np.uint64)
    start = np.full(len(words), _SEED, np.uint64)
    return _finished(start ^ _mixed_first(words), start.copy(), np.uint64(width))


def hash_bytes(
    data: np.ndarray[Any, np.dtype[np.uint8]], starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]
) -> Words:
    """Return the hashes of byte strings.

    Args:
        data: the bytes of all strings.
        starts: where each string begins in `data`.
        ends: where each string ends.
    """
    lengths = (ends - starts).astype(np.int64)
    padded = np.concatenate([data, np.zeros(_BLOCK, np.uint8)])
    first = np.full(len(lengths), _SEED, np.uint64)
    second = first.copy()
    blocks = lengths // _BLOCK
    # The longest strings come first, so that the strings with an n-th block are a slice.
    order = np.argsort(-blocks, kind="stable")
    counts = blocks[order]
    for number in range(int(counts[0]) if len(counts) else 0):
        with_block = order[: np.searchsorted(-counts, -number, side="left")]
        words = _words(padded, starts[with_block] + number * _BLOCK)
        first[with_block], second[with_block] = _with_block(first[with_block], second[with_block], *words)
    tail = _words(padded, starts + blocks * _BLOCK)
    tail_lengths = lengths % _BLOCK
    second ^= _mixed_second(tail[1] & _PRESENT[np.clip(tail_lengths - _WORD, 0, _WORD)])
    first ^= _mixed_first(tail[0] & _PRESENT[np.clip(tail_lengths, 0, _WORD)])
    return _finished(first, second, lengths.astype(np.uint64))


def _words(padded: np.ndarray[Any, np.dtype[np.uint8]], starts: np.ndarray[Any, Any]) -> tuple[Words, Words]:
    """Return the two words that begin at each of the offsets."""
    block = padded[starts[:, None] + np.arange(_BLOCK)].view("<u8").astype(np.uint64, copy=False)
    return block[:, 0], block[:, 1]


def _with_block(first: Words, second: Words, low: Words, high: Words) -> tuple[Words, Words]:
    first = _rotated_words(first ^ _mixed_first(low), 27) + second
    first = first * np.uint64(5) + np.uint64(0x52DCE729)
    second = _rotated_words(second ^ _mixed_second(high), 31) + first
    return first, second * np.uint64(5) + np.uint64(0x38495AB5)


def _mixed_first(words: Words) -> Words:
    return _rotated_words(words * _C1, 31) * _C2


def _mixed_second(words: Words) -> Words:
    return _rotated_words(words * _C2, 33) * _C1


def _finished(first: Words, second: Words, lengths: Words | np.uint64) -> Words:
    first, second = first ^ lengths, second ^ lengths
    first = first + second
    second = second + first
    return (_avalanched(first) + _avalanched(second)) >> np.uint64(1)


def _avalanched(words: Words) -> Words:
    words = (words ^ words >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ words >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ words >> np.uint64(33)


def _rotated_words(words: Words, bits: int) -> Words:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)


# -- Puffin files (Puffin spec, format version 1) ---------------------------------------------------------------------


MAGIC = b"PFA1"
DELETION_VECTOR = "deletion-vector-v1"

MAX_INFLATED_BYTES = 1 << 30
"""The largest footer or blob, uncompressed, that is read."""

_TAIL_BYTES = 4 + 4 + len(MAGIC)
_CHUNK_BYTES = 1 << 20
_COMPRESSED = 1
_CREATED_BY = "created-by"
_ROW_POSITION = 2147483645  # the reserved field id that Iceberg's Java library names in deletion vectors
_CODECS = {"lz4": "lz4", "zstd": "zstd"}  # Arrow's lz4 is the frame format, as Puffin's is


@dataclass(frozen=True)
class FooterBlob:
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

    blobs: tuple[FooterBlob, ...]
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
        blobs: The blobs with their offsets in the file, in the order in which they were passed.
        footer_size: The size of the footer in bytes.
    """

    data: bytes
    blobs: tuple[FooterBlob, ...]
    footer_size: int


def deletion_vector_blob(content: bytes, referenced_file: str, cardinality: int) -> Blob:
    """Return the blob of a deletion vector, with the properties that the Puffin spec requires (semantics 13.8).

    Args:
        content: The result of write_deletion_vector.
        referenced_file: The data file or manifest whose rows the vector masks.
        cardinality: The number of positions.
    """
    properties = {_REFERENCED_FILE: referenced_file, "cardinality": str(cardinality)}
    return Blob(DELETION_VECTOR, content, (_ROW_POSITION,), properties=properties)


def write_puffin(
    blobs: Iterable[Blob], properties: Mapping[str, str] | None = None, *, compress_footer: bool = False
) -> PuffinFile:
    """Return a Puffin file that contains the blobs (semantics 13.6).

    Args:
        blobs: The blobs.
        properties: The properties of the file. The default of ``created-by`` is this library.
        compress_footer: Compress the footer with LZ4, which neither pyiceberg nor Iceberg's Java library can read.

    Raises:
        UnsupportedError: A codec is neither lz4 nor zstd.
    """
    parts, footer_blobs, offset = [MAGIC], [], len(MAGIC)
    for blob in blobs:
        stored = blob.content if blob.compression_codec is None else _deflate(blob.content, blob.compression_codec)
        footer_blobs.append(_footer_blob(blob, offset, len(stored)))
        parts.append(stored)
        offset += len(stored)
    content = {
        "blobs": list(map(_blob_json, footer_blobs)),
        "properties": {_CREATED_BY: _library(), **(properties or {})},
    }
    payload = json.dumps(content, separators=(",", ":")).encode()
    if compress_footer:
        payload = _deflate(payload, "lz4")
    footer = [MAGIC, payload, struct.pack("<iI", len(payload), _COMPRESSED if compress_footer else 0), MAGIC]
    return PuffinFile(b"".join(parts + footer), tuple(footer_blobs), sum(map(len, footer)))


_REFERENCED_FILE = "referenced-data-file"


def with_referenced_files(data: bytes, change: Callable[[str], str], location: str) -> bytes:
    """Return a Puffin file whose deletion vectors name changed locations of their data files. Blobs stay in place.

    Args:
        data: The whole file.
        change: Takes the location of a data file, and returns another one.
        location: The file, for error messages.

    Raises:
        CorruptFileError, UnsupportedError: See read_footer.
    """
    payload, start = _payload(data, location)
    _footer(payload, location, start)
    content = json.loads(payload)
    for blob in content["blobs"]:
        properties = blob.get("properties") or {}
        if _REFERENCED_FILE in properties:
            properties[_REFERENCED_FILE] = change(properties[_REFERENCED_FILE])
    changed = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return b"".join([data[:start], MAGIC, changed, struct.pack("<iI", len(changed), 0), MAGIC])


def read_footer(data: bytes, location: str) -> PuffinFooter:
    """Return the footer of a Puffin file.

    Args:
        data: The whole file.
        location: The file, for error messages.

    Raises:
        CorruptFileError: A magic number, a length or the JSON is wrong, or a blob is outside of the file.
        UnsupportedError: An unknown flag is set.
    """
    payload, start = _payload(data, location)
    return _footer(payload, location, start)


def _payload(data: bytes, location: str) -> tuple[bytes, int]:
    """Return the JSON of a footer, and the offset at which the footer begins."""
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
    return _inflate(payload, "lz4", location) if flags else payload, start - len(MAGIC)


def read_blob(data: bytes, blob: FooterBlob, location: str) -> bytes:
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


def _footer_blob(blob: Blob, offset: int, length: int) -> FooterBlob:
    return FooterBlob(
        type=blob.type,
        fields=tuple(blob.fields),
        snapshot_id=blob.snapshot_id,
        sequence_number=blob.sequence_number,
        offset=offset,
        length=length,
        compression_codec=blob.compression_codec,
        properties=dict(blob.properties),
    )


def _blob_json(blob: FooterBlob) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
    }
    if blob.compression_codec is not None:
        document["compression-codec"] = blob.compression_codec
    return document | ({"properties": blob.properties} if blob.properties else {})


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
    blocks = frame[7 + (8 if frame[4] & 8 else 0) :]
    return frame[:4] + descriptor + bytes([_xxh32_short(descriptor) >> 8 & 0xFF]) + blocks


def _xxh32_short(data: bytes) -> int:
    """Return the xxHash32 with seed 0 of fewer than 16 bytes."""
    primes = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
    mask, word_bytes = 0xFFFFFFFF, len(data) // 4 * 4
    result = primes[4] + len(data)
    for (word,) in struct.iter_unpack("<I", data[:word_bytes]):
        result = _rotated(result + word * primes[2] & mask, 17) * primes[3] & mask
    for byte in data[word_bytes:]:
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
    chunks: list[bytes] = []
    with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
        while limit > 0 and (chunk := stream.read(min(limit, _CHUNK_BYTES))):
            chunks.append(chunk)
            limit -= len(chunk)
    return b"".join(chunks)


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


def _blob(blob: Any, path: str, location: str, end: int) -> FooterBlob:
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
    return FooterBlob(
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
