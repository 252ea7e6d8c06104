"""The Avro object container: headers and compressed blocks, with every length checked, and rows as Arrow batches."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from sparkmeta.avro.schema import ARROW_PRIMITIVES, by_field_ids, expanded_schema
from sparkmeta.errors import CorruptFileError, SparkmetaError, UnsupportedError
from sparkmeta.expr.arrays import field_id, with_field_id
from sparkmeta.spec.varints import encoded_long
from sparkmeta.storage.encryption import KEY_METADATA, Stream, decrypted

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


# -- Read the container: header, frames and blocks --------------------------------------------------------------------
# Blocks are found without decoding records, so that tasks can decode parts of a large manifest, and know the ordinals
# of their records from the counts of the preceding blocks.


class Windows:
    """The bytes of a file that is too large for memory, read sequentially in windows.

    Args:
        read: returns the bytes at an offset.
    """

    SIZE = 8 << 20

    def __init__(self, read: Callable[[int, int], bytes], length: int, location: str) -> None:
        self._read, self._length, self._location = read, length, location
        self._start, self._window = 0, memoryview(b"")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int | slice) -> Any:
        """Return a byte, or a slice as a memoryview. Raises CorruptFileError if the file has become shorter."""
        if isinstance(key, int):
            return self._slice(key, key + 1)[0]
        start, end, _ = key.indices(self._length)
        return self._slice(start, max(start, end))

    def _slice(self, start: int, end: int) -> memoryview:
        if start < self._start or end > self._start + len(self._window):
            size = min(max(end - start, self.SIZE), self._length - start)
            content = self._read(start, size)
            if len(content) < size:
                raise CorruptFileError(self._location, "file", start + len(content), f"it had {self._length} bytes")
            self._start, self._window = start, memoryview(content)
        return self._window[start - self._start : end - self._start]


Data = bytes | memoryview | Windows

# Longer manifests are read in windows.
_LONG_BYTES = 32 << 20


def manifest_data(files: Files | ExecutorReader, part: Mapping[str, Any]) -> Data:
    """Return the bytes of a manifest, a row of `PART_SCHEMA`, decrypted; `Windows` for a long Avro manifest."""
    location, key = part["location"], part.get(KEY_METADATA)
    if part["file_format"] == "PARQUET" or (part["file_size_in_bytes"] or 0) <= _LONG_BYTES:
        return decrypted(files.read(location), location, key)
    read = partial(files.read_range, location)
    if key is None:
        return Windows(read, files.length(location), location)
    stream = Stream.of(location, key)
    return Windows(partial(stream.read_range, read), stream.length, location)


MAGIC = b"Obj\x01"
SYNC_SIZE = 16
MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""Maximum inflated bytes of a block. Iceberg's writers close a block at 64 KB."""

_MAX_VARINT_BYTES = 10

# The maximum compression ratio of deflate: 258 bytes for two bits.
_MAX_DEFLATE_RATIO = 1032
_DEFLATE_BUFFER = 72 * 1024


def _fastest_zlib() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _libdeflate() -> tuple[Callable[[Any, int], bytearray] | None, type[Exception]]:
    """Return libdeflate's function to inflate blocks of limited size, which is faster than zlib's, and its error."""
    try:
        from deflate import DeflateError, deflate_decompress
    except ImportError:
        return None, ValueError
    return deflate_decompress, DeflateError


_ZLIB = _fastest_zlib()
_INFLATE, _InflateError = _libdeflate()


@dataclass(frozen=True)
class Header:
    """The container's header.

    Attributes:
        schema: the writer's schema, as JSON.
        metadata: user metadata.
        sync: the sync marker.
        end: the offset of the first block.
    """

    schema: dict[str, Any]
    codec: str
    metadata: dict[str, bytes]
    sync: bytes
    end: int


@dataclass(frozen=True)
class Block:
    """The frame of a block.

    Attributes:
        offset: the offset of its compressed bytes.
        size: the size of its compressed bytes.
        count: the number of its records.
        first_ordinal: the ordinal of its first record.
    """

    offset: int
    size: int
    count: int
    first_ordinal: int


class Cursor:
    """A reader of Avro primitives from bytes. Reading past the end raises `CorruptFileError`."""

    def __init__(self, data: Data, location: str, position: int = 0) -> None:
        self.data = data
        self.location = location
        self.position = position

    def long(self, field: str) -> int:
        result = shift = 0
        for _ in range(_MAX_VARINT_BYTES):
            if self.position >= len(self.data):
                raise CorruptFileError(self.location, field, self.position, "the file ends inside a number")
            byte = self.data[self.position]
            self.position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7
        raise CorruptFileError(self.location, field, self.position, "a number longer than 10 bytes")

    def text(self, field: str) -> bytes:
        """Read a length and that many bytes, as Avro encodes bytes and strings."""
        size = self.long(field)
        if size > MAX_BLOCK_BYTES:
            raise CorruptFileError(self.location, field, size, f"more than {MAX_BLOCK_BYTES} bytes")
        return self.take(size, field)

    def take(self, size: int, field: str) -> bytes:
        if size < 0 or size > len(self.data) - self.position:
            raise CorruptFileError(self.location, field, size, f"only {len(self.data) - self.position} bytes are left")
        start, self.position = self.position, self.position + size
        return bytes(self.data[start : self.position])


def read_header(data: Data, location: str) -> Header:
    """Read the header of an Avro container file.

    Raises:
        CorruptFileError: not an Avro container, a truncated header, or a schema that is not JSON.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptFileError(location, "magic", bytes(data[: len(MAGIC)]).hex(), "not an Avro container file")
    cursor = Cursor(data, location, len(MAGIC))
    metadata = dict(_metadata_items(cursor))
    sync = cursor.take(SYNC_SIZE, "sync marker")
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    return Header(_schema_json(metadata, location), codec, metadata, sync, cursor.position)


def _metadata_items(cursor: Cursor) -> Iterator[tuple[str, bytes]]:
    while count := cursor.long("header metadata"):
        if count < 0:
            cursor.long("header metadata")
        for _ in range(abs(count)):
            key = cursor.text("header metadata key")
            yield key.decode("utf-8", "replace"), cursor.text("header metadata value")


def _schema_json(metadata: dict[str, bytes], location: str) -> dict[str, Any]:
    text = metadata.get("avro.schema")
    if text is None:
        raise CorruptFileError(location, "avro.schema", None, "the header has no schema")
    try:
        schema = schema_json(text)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(location, "avro.schema", text[:80].decode("utf-8", "replace"), str(error)) from error
    if not isinstance(schema, dict):
        raise CorruptFileError(location, "avro.schema", schema, "not a record schema")
    return schema


@lru_cache(maxsize=64)
def schema_json(text: bytes) -> Any:
    """Parse the JSON of a schema. Manifests of a table share few schemas, and no caller modifies them."""
    return json.loads(text)


def read_blocks(data: Data, header: Header, location: str) -> Iterator[Block]:
    """Yield the frames of all blocks in order.

    Raises:
        CorruptFileError: an impossible count or size, a wrong sync marker, or a truncated block.
    """
    cursor = Cursor(data, location, header.end)
    ordinal = 0
    while cursor.position < len(data):
        count = cursor.long("block record count")
        size = cursor.long("block size")
        if count < 0 or size < 0 or size > len(data) - cursor.position:
            raise CorruptFileError(location, "block", (count, size), f"no such block at byte {cursor.position}")
        yield Block(cursor.position, size, count, ordinal)
        cursor.position += size
        sync = cursor.take(SYNC_SIZE, "sync marker")
        if sync != header.sync:
            raise CorruptFileError(location, "sync marker", sync.hex(), f"expected {header.sync.hex()}")
        ordinal += count


def inflate(data: Data, block: Block, header: Header, location: str) -> bytes | bytearray:
    """Return the uncompressed records of a block.

    Raises:
        CorruptFileError: invalid compressed data, more than `MAX_BLOCK_BYTES`, or fewer bytes than records.
        UnsupportedError: a codec other than null, deflate, snappy, zstandard, bzip2 and xz.
    """
    if block.size > MAX_BLOCK_BYTES:
        raise CorruptFileError(location, "block size", block.size, f"more than {MAX_BLOCK_BYTES} bytes")
    content = data if isinstance(data, Windows) else memoryview(data)
    packed = content[block.offset : block.offset + block.size]
    try:
        inflated: bytes | bytearray = _inflaters(header.codec, location)(packed)
    except (zlib.error, lzma.LZMAError, _ZLIB.error, OSError, ValueError, EOFError) as error:
        raise CorruptFileError(location, "block", block.offset, f"not {header.codec} data: {error}") from error
    if len(inflated) > MAX_BLOCK_BYTES:
        raise CorruptFileError(location, "block size", block.offset, f"inflates to more than {MAX_BLOCK_BYTES} bytes")
    if block.count > len(inflated):
        raise CorruptFileError(location, "block record count", block.count, f"the block has {len(inflated)} bytes")
    return inflated


def block_records(data: Data, block: Block, header: Header, schema: Any, location: str) -> Iterator[Any]:
    """Yield the records of a block, as fastavro decodes them.

    Args:
        schema: the writer's schema, parsed by fastavro.

    Raises:
        CorruptFileError: see `inflate`; also a record that does not match the schema.
        UnsupportedError: see `inflate`.
    """
    stream = io.BytesIO(inflate(data, block, header, location))
    for _ in range(block.count):
        try:
            record = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:
            problem = f"a record can't be decoded: {type(error).__name__} {error}"[:200]
            raise CorruptFileError(location, "block", block.offset, problem) from error
        yield record


def _inflaters(codec: str, location: str) -> Any:
    try:
        return _INFLATERS[codec]
    except KeyError:
        raise UnsupportedError(f"{location}: avro.codec '{codec}' is not supported") from None


def deflater(codec: str, level: int | None) -> Callable[[Any], bytes]:
    """Return a function that compresses blocks with an Avro codec.

    Args:
        level: the compression level of deflate and zstandard. Defaults to a fast one, for deflate in a faster library.
    """
    if codec == "deflate":
        if level is None and _ZLIB is not zlib:
            return lambda data: bytes(_ZLIB.compress(data, _QUICK_LEVEL, -15))
        return lambda data: zlib.compress(data, -1 if level is None else level, -15)
    if codec == "snappy":
        return lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")
    if codec == "zstandard":
        packer = pa.Codec("zstd", 1 if level is None else level)
        return lambda data: bytes(packer.compress(data, asbytes=True))
    packers: dict[str, Callable[[Any], bytes]] = {"bzip2": bz2.compress, "xz": lzma.compress}
    return packers.get(codec, bytes)


# Ten times as fast as level 9 of zlib, which Iceberg's Java library uses, for 2 % more bytes.
_QUICK_LEVEL = 2


def _deflate(packed: memoryview) -> bytes | bytearray:
    if _INFLATE is not None and len(packed) <= _DEFLATE_BUFFER:
        with suppress(_InflateError):  # too large for libdeflate, or invalid: zlib decides
            return _INFLATE(packed, _DEFLATE_BUFFER)
    if len(packed) * _MAX_DEFLATE_RATIO <= MAX_BLOCK_BYTES:
        data: bytes = _ZLIB.decompress(packed, -15, _DEFLATE_BUFFER)
        return data
    stream = _ZLIB.decompressobj(-15)
    inflated: bytes = stream.decompress(packed, MAX_BLOCK_BYTES + 1)
    if not stream.eof and len(inflated) <= MAX_BLOCK_BYTES:
        raise ValueError("the compressed data ends early")
    return inflated


def _snappy(packed: memoryview) -> bytes:
    """Inflate snappy data, followed by a CRC-32 of the inflated bytes (Avro specification, snappy codec)."""
    if len(packed) < 5:
        raise ValueError("too short")
    body, checksum = packed[:-4], int.from_bytes(packed[-4:], "big")
    size = _snappy_length(body)
    if size > MAX_BLOCK_BYTES:
        return bytes(MAX_BLOCK_BYTES + 1)
    inflated: bytes = pa.decompress(pa.py_buffer(body), size, codec="snappy", asbytes=True)
    if zlib.crc32(inflated) != checksum:
        raise ValueError("CRC-32 differs")
    return inflated


def _snappy_length(body: memoryview) -> int:
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size
        shift += 7
    raise ValueError("no length")


def _zstd(packed: memoryview) -> bytes:
    return _stream(packed, "zstd")


def _bzip2(packed: memoryview) -> bytes:
    return _stream(packed, "bz2")


def _xz(packed: memoryview) -> bytes:
    return lzma.LZMADecompressor().decompress(packed, MAX_BLOCK_BYTES + 1)


def _stream(packed: memoryview, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), codec) as stream:
        inflated: bytes = stream.read(MAX_BLOCK_BYTES + 1)
    return inflated


_INFLATERS: dict[str, Callable[[memoryview], bytes | bytearray]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstd,
    "bzip2": _bzip2,
    "xz": _xz,
}


# -- Write the container ----------------------------------------------------------------------------------------------


# Inflated bytes of a block, as in Java's library. Readers split a file at its blocks.
_BLOCK_BYTES: Final = 64_000


def container_header(schema: Mapping[str, Any], codec: str, properties: Mapping[str, str], sync: bytes) -> bytes:
    """Return the header of a file.

    Args:
        schema: the Avro schema of its records.
        codec: the name of the codec in Avro.
        properties: more key-value metadata.
        sync: the sync marker, 16 random bytes.
    """
    pairs = {"avro.schema": json.dumps(schema), "avro.codec": codec, **properties}
    texts = (_text(text) for pair in pairs.items() for text in pair)
    return MAGIC + encoded_long(len(pairs)) + b"".join(texts) + encoded_long(0) + sync


def container_blocks(records: pa.BinaryArray, pack: Callable[[Any], bytes], sync: bytes) -> Iterator[bytes]:
    """Yield the blocks of encoded records.

    Args:
        records: the records.
        pack: compresses a block; see `deflater`.
        sync: the sync marker of the header.
    """
    for count, packed in packed_blocks(records, pack):
        yield encoded_long(count) + encoded_long(len(packed)) + packed + sync


def packed_blocks(records: pa.BinaryArray, pack: Callable[[Any], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of records in each block, and their compressed bytes, which are adjacent in Arrow."""
    offsets = np.frombuffer(records.buffers()[1], np.int32)[records.offset : records.offset + len(records) + 1]
    data = memoryview(records.buffers()[2])
    start = 0
    while start < len(records):
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + _BLOCK_BYTES, "right")) - 1)
        yield end - start, pack(data[offsets[start] : offsets[end]])
        start = end


def _text(value: str) -> bytes:
    return encoded_long(len(value.encode())) + value.encode()


# -- Avro files of rows as Arrow batches ------------------------------------------------------------------------------
# Spark tasks import this module, so it imports little.


# Logical types whose values are read as numbers, since Python's dates end in the year 9999.
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
}
_MAX_DEPTH = 64


class AvroFile:
    """An Avro file of rows.

    Attributes:
        schema: The Arrow schema, with field ids where Arrow's Parquet reader puts them.
        avro_schema: The schema in the header, with named types written out.
    """

    def __init__(self, data: Data, location: str) -> None:
        """Read the header.

        Args:
            data: The bytes of the file, which may be read in windows.
            location: The file, for error messages.

        Raises:
            CorruptFileError: The file has no valid header.
            UnsupportedError: A column has a type that Iceberg does not have.
        """
        self._data, self._location = data, location
        self._header = read_header(data, location)
        try:
            self.avro_schema: Any = expanded_schema(self._header.schema, location)
            self._writer_schema = fastavro.parse_schema(_raw(self.avro_schema))
            self.schema = pa.schema(list(_Types(location).of(self.avro_schema)))
        except SparkmetaError:
            raise
        except Exception as error:
            raise CorruptFileError(location, "avro.schema", type(error).__name__, str(error)[:200]) from error

    def refuse_without_ids(self) -> None:
        """Raise CorruptFileError if fields of a record lack ids or share them, or an array's items take no bytes."""
        by_field_ids(self.avro_schema, self._location)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns, block by block.

        Raises:
            CorruptFileError: A block is damaged.
        """
        schema = pa.schema([self.schema.field(name) for name in names])
        for block in read_blocks(self._data, self._header, self._location):
            stream = io.BytesIO(inflate(self._data, block, self._header, self._location))
            try:
                records: list[Any] = [
                    fastavro.schemaless_reader(stream, self._writer_schema, None) for _ in range(block.count)
                ]
            except Exception as error:
                problem = f"a record can't be decoded: {type(error).__name__} {error}"[:200]
                raise CorruptFileError(self._location, "block", block.offset, problem) from error
            if stream.read(1):
                raise CorruptFileError(self._location, "block", block.offset, "bytes are left after its last record")
            columns = [pa.array([record[field.name] for record in records], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def records_with_ids(data: bytes, location: str, ids: Collection[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in which every field must have an id, such as a position delete file.

    Args:
        data: the bytes of the file.
        location: the file, for error messages.
        ids: the ids of the columns to read, by default all.

    Raises:
        CorruptFileError: a field of a record lacks an id or shares it, or a block is damaged.
        UnsupportedError: a column has a type that Iceberg does not have.
    """
    file = AvroFile(data, location)
    file.refuse_without_ids()
    yield from file.batches([field.name for field in file.schema if ids is None or field_id(field) in ids])


class _Types:
    """A converter of Avro types of an expanded schema to Arrow types."""

    def __init__(self, location: str) -> None:
        self._location = location

    def of(self, schema: Any, depth: int = 0) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise CorruptFileError(self._location, "avro.schema", depth, "its types are nested too deeply")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            return ARROW_PRIMITIVES[schema]
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, depth + 1)
        return self._complex(kind, schema, depth)

    def _complex(self, kind: str, schema: dict[str, Any], depth: int) -> pa.DataType:
        match kind:
            case "record":
                fields = [self._field(field, depth) for field in schema["fields"]]
                if len({field.name for field in fields}) < len(fields):
                    problem = "two fields have one name"
                    raise CorruptFileError(self._location, "avro.schema", schema.get("name"), problem)
                return pa.struct(fields)
            case "array":
                return self._array(schema, depth)
            case "map":
                key = with_field_id(pa.field("key", pa.string(), nullable=False), schema.get("key-id"))
                value = self.of(schema["values"], depth + 1)
                return pa.map_(key, with_field_id(pa.field("value", value), schema.get("value-id")))
            case "enum":
                return pa.string()
        if schema.get("logicalType") == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind == "fixed":
            return pa.binary(schema["size"])
        logical = str(schema.get("logicalType"))
        if schema.get("adjust-to-utc") is False and logical.startswith("timestamp-"):
            logical = f"local-{logical}"
        return _LOGICAL.get((kind, logical), ARROW_PRIMITIVES[kind])

    def _union(self, branches: list[Any], depth: int) -> pa.DataType:
        non_null = [branch for branch in branches if branch != "null"]
        if len(non_null) > 1:
            raise UnsupportedError(f"{self._location}: a column is a union of {len(non_null)} Avro types")
        return self.of(non_null[0] if non_null else "null", depth + 1)

    def _array(self, schema: dict[str, Any], depth: int) -> pa.DataType:
        """Return the type of an array, or of a map stored as an array of pairs because its keys are not strings."""
        items = self.of(schema["items"], depth + 1)
        if schema.get("logicalType") == "map":
            return pa.map_(items.field("key").with_nullable(False), items.field("value"))
        return pa.list_(with_field_id(pa.field("element", items), schema.get("element-id")))

    def _field(self, field: dict[str, Any], depth: int) -> pa.Field:
        return with_field_id(pa.field(field["name"], self.of(field["type"], depth + 1)), field.get("field-id"))


def _raw(schema: Any) -> Any:
    """Return a schema without logical types except decimals, so that fastavro returns numbers and bytes."""
    if isinstance(schema, list):
        return list(map(_raw, schema))
    if not isinstance(schema, dict):
        return schema
    dropped_keys = () if schema.get("logicalType") == "decimal" else ("logicalType",)
    return {key: _raw(value) if key in _PARTS else value for key, value in schema.items() if key not in dropped_keys}


_PARTS = ("type", "items", "values", "fields")
