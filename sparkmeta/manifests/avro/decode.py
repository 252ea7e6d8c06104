"""Avro manifest blocks to Arrow record batches of content entries, by either of two decoders.

A compiled program (`program`, `execute`, `columnar`) makes Arrow columns of the bytes; numba stands behind it, which
takes a while to load. So fastavro decodes where there is little to decode, and the few types that no program reads:
some thousand records at a time, whose columns become Arrow arrays before the next are read. Either passes over fields
that nobody asked for, and of the metrics maps only the wanted keys become columns.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa

from sparkmeta.columns.bounds import ANY, bound_arrow_type
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.avro.container import Block, Data, Header, inflate, read_blocks, read_header
from sparkmeta.manifests.avro.schema import ManifestSchema, bytes_for_fixed, manifest_schema
from sparkmeta.manifests.entries import EntryBuilder, RawRecords, field_name, projected_fields, typed_values
from sparkmeta.manifests.parts import ManifestPart
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.spec.entry import METRICS_MAP_IDS

if TYPE_CHECKING:
    from sparkmeta.manifests.avro.program import Program

BATCH_RECORDS = 8192
# Of inflated records that fastavro makes Python objects of, which take up to forty times as much.
BATCH_BYTES = 4 << 20

# Bytes of manifests, as they are in files, that fastavro decodes while the machine of `execute` is loaded, or compiled.
LOADING_BYTES = 1 << 20
COMPILING_BYTES = 24 << 20
# Below this, fastavro is done before a program is compiled.
SMALL_BYTES = 4096

# Up to so many keys, searching the pairs of a map for each is quicker than a dict of them.
FEW_KEYS = 4


class Compiler:
    """Decides who decodes a manifest in this process: fastavro, or a compiled program.

    Importing numba and loading what it compiled takes as long as fastavro takes for `LOADING_BYTES`; compiling, which
    is done once on a machine, as long as for `COMPILING_BYTES`. So a process pays that when it has been given as much
    to decode: never for a few small manifests, at once for a large one, and at most double what was best.
    """

    def __init__(self) -> None:
        self._given = 0
        self._ready: bool | None = None
        self._lock = Lock()

    def pays_for(self, size: int) -> bool:
        """Whether to decode so many bytes with a compiled program; if so, everything for that is loaded."""
        with self._lock:
            self._given += size
            if self._ready is None and self._given >= LOADING_BYTES:
                self._ready = self._prepared()
        return bool(self._ready) and size >= SMALL_BYTES

    def _prepared(self) -> bool | None:
        """None where it may pay later; never where numba is not installed, or does not work here."""
        try:
            from sparkmeta.manifests.avro import execute
        except ImportError:
            return False
        if self._given < COMPILING_BYTES and not execute.is_kept():
            return None
        execute.prepare()
        return True


compiler = Compiler()


def decode_manifest(data: Data, part: ManifestPart, projection: EntryProjection) -> Iterator[pa.RecordBatch]:
    """The entries of a manifest's part, as batches of `projection.schema`, in physical order, inheritance applied: all
    that the projection wants.

    Raises:
        CorruptFileError: bytes, lengths, types or enum values that no v1-v3 manifest has.
        UnsupportedError: an Avro codec that is not supported.
    """
    builder = EntryBuilder(part, projection)
    for ordinals, records in decode_records(data, part, projection):
        batch = builder.batch(ordinals, records)
        if len(batch):
            yield batch


def decode_records(
    data: Data, part: ManifestPart, projection: EntryProjection
) -> Iterator[tuple[pa.Int64Array, RawRecords]]:
    """As `decode_manifest`, before anything is made of the records: their ordinals, and the fields of the projection.

    Records are valid until the next are asked for.
    """
    header = read_header(data, part.location)
    schema = schema_that_fits(data, header, part.location)
    for first, records in _records(data, part, header, schema, projection):
        yield pa.array(np.arange(first, first + len(records))), records


def schema_that_fits(data: Data, header: Header, location: str) -> ManifestSchema:
    """The writer's schema, or where its first block is not of it, the one with bytes for fixed partition values."""
    schema = manifest_schema(header.schema, location)
    other = bytes_for_fixed(header.schema)
    block = next(read_blocks(data, header, location), None) if other is not None else None
    if other is None or block is None:
        return schema
    inflated = inflate(data, block, header, location)
    for one in (schema, manifest_schema(other, location)):
        try:
            deque(_decode_block(inflated, block, one, None), maxlen=0)
        except CorruptFileError:
            continue
        return one
    return schema


def _records(
    data: Data, part: ManifestPart, header: Header, schema: ManifestSchema, projection: EntryProjection
) -> Iterator[tuple[int, RawRecords]]:
    """(ordinal of the first, records), some thousands at a time."""
    blocks = part_blocks(data, part, header)
    compiled = None
    if compiler.pays_for(len(data) // part.parts):
        compiled = _compiled_records(data, blocks, header, schema, projection)
    yield from compiled or _fastavro_records(data, blocks, header, schema, projection)


def _compiled_records(
    data: Data, blocks: Iterator[Block], header: Header, schema: ManifestSchema, projection: EntryProjection
) -> Iterator[tuple[int, RawRecords]] | None:
    """None where the schema has a type that can't be compiled."""
    from sparkmeta.manifests.avro.columnar import compiled_records

    program = program_of(schema, projection)
    if program is None:
        return None
    return compiled_records(data, blocks, header, program, schema.location, BATCH_RECORDS)


def program_of(schema: ManifestSchema, projection: EntryProjection, marks: Sequence[int] = ()) -> Program | None:
    """See `compile_program`; None where the schema has a type that can't be compiled."""
    from sparkmeta.manifests.avro.program import NotCompilable, compile_program

    try:
        return compile_program(schema, projection, marks)
    except NotCompilable:
        return None


def _fastavro_records(
    data: Data, blocks: Iterator[Block], header: Header, schema: ManifestSchema, projection: EntryProjection
) -> Iterator[tuple[int, RawRecords]]:
    reader_schema = None if _decodes_maps(projection) else _narrow_schema(schema, projection)
    few_keys = len(projection.stats) <= FEW_KEYS
    for first, records in record_batches(data, blocks, header, schema, reader_schema):
        yield first, AvroRecords(records, schema, few_keys)


def _decodes_maps(projection: EntryProjection) -> bool:
    """Whether metrics maps are wanted: fastavro resolves those against a reader schema slower than it reads all."""
    return bool(projection.stats) or not METRICS_MAP_IDS.keys().isdisjoint(projection.columns)


def _narrow_schema(schema: ManifestSchema, projection: EntryProjection) -> dict[str, Any]:
    """The reader schema of only the wanted fields; the rest is skipped without being made."""
    ids = projected_fields(projection)
    partition_ids = {field_id for field_id, _ in projection.partition}
    return schema.projected(ids.__contains__, partition_ids.__contains__)


class AvroRecords:
    """`RawRecords` over what fastavro decoded. few_keys: maps are searched for a key, not made into dicts first."""

    def __init__(self, records: list[dict[str, Any]], schema: ManifestSchema, few_keys: bool) -> None:
        self._records = records
        self._files = [record["f2"] for record in records]
        if None in self._files:
            raise CorruptFileError(schema.location, "data_file", None, "the field is required")
        self._schema = schema
        self._few_keys = few_keys
        self._lookups = cache(self._lookup)

    def __len__(self) -> int:
        return len(self._records)

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        key = f"f{field_id}"
        if field_id in self._schema.fields:
            return self._array([record[key] for record in self._records], kind, field_name(field_id))
        if field_id in self._schema.file_fields:
            return self._array([file[key] for file in self._files], kind, field_name(field_id))
        return pa.nulls(len(self), kind)

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        kind, name = bound_arrow_type(type_name), f"partition.{field_id}"
        if field_id not in self._schema.partition_fields:
            return pa.nulls(len(self), kind)
        key = f"f{field_id}"
        values = [file["f102"] and file["f102"][key] for file in self._files]
        if type_name == ANY:
            values = [value if value is None else _as_text(value) for value in values]
        if pa.types.is_decimal(kind):
            return typed_values(self._array(values, pa.binary(), name), type_name, self._schema.location, name)
        storage = _STORAGE.get(kind.id)
        return self._array(values, storage, name).view(kind) if storage else self._array(values, kind, name)

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        if map_id not in self._schema.file_fields:
            return pa.nulls(len(self), kind)
        return self._array(self._maps(map_id), kind, field_name(map_id))

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        if map_id not in self._schema.file_fields:
            return pa.nulls(len(self), kind)
        if self._few_keys:
            values = [_value_of(file[f"f{map_id}"], key) for file in self._files]
        else:
            values = [one.get(key) for one in self._lookups(map_id)]
        return self._array(values, kind, f"{field_name(map_id)}[{key}]")

    def taken(self, places: np.ndarray[Any, Any]) -> AvroRecords:
        records = [self._records[place] for place in places.tolist()]
        return AvroRecords(records, self._schema, self._few_keys)

    def _lookup(self, map_id: int) -> list[dict[int, Any]]:
        return [dict(items or ()) for items in self._maps(map_id)]

    def _maps(self, map_id: int) -> list[list[tuple[int, Any]] | None]:
        try:
            return [map_items(file[f"f{map_id}"]) for file in self._files]
        except ValueError as error:
            raise CorruptFileError(self._schema.location, field_name(map_id), str(error), "a key is no int") from error

    def _array(self, values: list[Any], kind: pa.DataType, field: str) -> pa.Array:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            wrong = next((value for value in values if value is not None), None)
            raise CorruptFileError(self._schema.location, field, wrong, f"not {kind}: {error}"[:200]) from error


# Avro's plain numbers behind types that Arrow would otherwise build from Python dates and times.
_STORAGE = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _value_of(value: Any, key: int) -> Any:
    """One key's value in a metrics map of either encoding; None where it has none."""
    if isinstance(value, dict):
        return value.get(str(key))
    return next((pair["v"] for pair in reversed(value or ()) if pair["k"] == key), None)


def map_items(value: Any) -> list[tuple[int, Any]] | None:
    """The items of a metrics map in either of Avro's encodings: an array of pairs, or a map with decimal keys."""
    if value is None:
        return None
    if isinstance(value, dict):
        return [(int(key), item) for key, item in value.items()]
    return [(pair["k"], pair["v"]) for pair in value]


def record_batches(
    data: Data, blocks: Iterable[Block], header: Header, schema: ManifestSchema, reader_schema: dict[str, Any] | None
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(ordinal of the first, records), neighbouring small blocks joined: some writers make a block of every record."""
    ordinal = size = 0
    pending: list[dict[str, Any]] = []
    for block in blocks:
        if not pending:
            ordinal, size = block.first_ordinal, 0
        inflated = inflate(data, block, header, schema.location)
        size += len(inflated)
        records = _decode_block(inflated, block, schema, reader_schema)
        while chunk := list(itertools.islice(records, BATCH_RECORDS - len(pending))):
            pending.extend(chunk)
            if len(pending) == BATCH_RECORDS:
                yield ordinal, pending
                ordinal, pending = ordinal + BATCH_RECORDS, []
        if pending and size >= BATCH_BYTES:
            yield ordinal, pending
            pending = []
    if pending:
        yield ordinal, pending


def part_blocks(data: Data, part: ManifestPart, header: Header) -> Iterator[Block]:
    """The blocks that begin in the part's share of the file."""
    start, end = (len(data) * edge // part.parts for edge in (part.part, part.part + 1))
    until = itertools.takewhile(lambda block: block.offset < end, read_blocks(data, header, part.location))
    return (block for block in until if start <= block.offset)


def _decode_block(
    inflated: bytes | bytearray, block: Block, schema: ManifestSchema, reader_schema: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    stream = io.BytesIO(inflated)
    try:
        for _ in range(block.count):
            yield fastavro.schemaless_reader(stream, schema.writer, reader_schema)  # type: ignore[misc]
    except GeneratorExit:
        raise
    except Exception as error:
        problem = f"a record can't be decoded: {type(error).__name__} {error}"[:200]
        raise CorruptFileError(schema.location, "block", block.offset, problem) from error
    if stream.tell() != len(inflated):
        problem = f"{len(inflated) - stream.tell()} bytes after its last record"
        raise CorruptFileError(schema.location, "block", block.offset, problem)
