"""Decode Avro manifests to Arrow batches of content entries, without a Python object per entry."""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa

from sparkmeta.avro.container import Block, Data, Header, inflate, read_blocks, read_header, schema_json
from sparkmeta.avro.schema import (
    ManifestSchema,
    bytes_for_fixed,
    canonical_schema,
    manifest_fields,
    manifest_schema,
    with_partition_ids,
)
from sparkmeta.entries.manifest_records import (
    EntryBuilder,
    ManifestPart,
    RawRecords,
    field_name,
    projected_fields,
    promoted_values,
    typed_values,
)
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import ANY, bound_arrow_type
from sparkmeta.spec.entry import METRICS_MAP_IDS, Status

if TYPE_CHECKING:
    from sparkmeta.avro.program import Program

# A program (`program`), executed by code that numba compiles (`machine`), turns bytes into Arrow columns. Since numba
# takes a while to load, fastavro decodes small manifests, some thousand records at a time. It also decodes the few
# types that no program supports. Both skip fields that are not projected, and read only projected keys of metrics maps.


BATCH_RECORDS = 8192
# Inflated bytes that fastavro decodes at once. Its Python objects take up to forty times as much memory.
BATCH_BYTES = 4 << 20

# Compressed bytes that fastavro decodes in the time that loading or compiling the machine takes.
LOADING_BYTES = 1 << 20
COMPILING_BYTES = 24 << 20
# fastavro decodes manifests below this size before a program could be compiled for them.
SMALL_BYTES = 4096

# Maximum keys for which searching the pairs of a map is faster than making a dict.
FEW_KEYS = 4


class Compiler:
    """The choice between fastavro and a compiled program to decode manifests in this process.

    Importing numba and loading compiled code takes as long as fastavro needs for `LOADING_BYTES`; compiling, which
    happens once per machine, as long as for `COMPILING_BYTES`. A process uses compiled programs once it has had that
    many bytes to decode, so decoding takes at most twice the optimal time.
    """

    def __init__(self) -> None:
        self._bytes_seen = 0
        self._ready: bool | None = None
        self._lock = Lock()

    def pays_for(self, size: int) -> bool:
        """Return whether to decode `size` bytes with a compiled program. If so, the machine is loaded."""
        with self._lock:
            self._bytes_seen += size
            if self._ready is None and self._bytes_seen >= LOADING_BYTES:
                self._ready = self._prepared()
        return bool(self._ready) and size >= SMALL_BYTES

    def _prepared(self) -> bool | None:
        """Load the machine, and return whether it works; None if loading it may pay off later."""
        try:
            from sparkmeta.avro import machine
        except ImportError:
            return False
        if self._bytes_seen < COMPILING_BYTES and not machine.is_cached():
            return None
        machine.prepare()
        return True


compiler = Compiler()


def decode_manifest(data: Data, part: ManifestPart, projection: EntryProjection) -> Iterator[pa.RecordBatch]:
    """Yield the projected entries of a manifest's part in physical order, with inheritance applied.

    Raises:
        CorruptFileError: the file is not a valid v1 to v3 manifest.
        UnsupportedError: an unsupported Avro codec.
    """
    builder = EntryBuilder(part, projection)
    for ordinals, records in decode_records(data, part, projection):
        batch = builder.batch(ordinals, records)
        if len(batch):
            yield batch


def decode_records(
    data: Data, part: ManifestPart, projection: EntryProjection
) -> Iterator[tuple[pa.Int64Array, RawRecords]]:
    """Yield the ordinals and raw records of a manifest's part. Records are valid until the next iteration.

    Raises:
        CorruptFileError: see `decode_manifest`.
        UnsupportedError: an unsupported Avro codec.
    """
    header = read_header(data, part.location)
    schema = writer_schema(data, part, header, projection)
    refuse_foreign_tuples(data, part, header, schema, projection)
    for first_ordinal, records in _records(data, part, header, schema, projection):
        yield pa.array(np.arange(first_ordinal, first_ordinal + len(records))), records


def writer_schema(data: Data, part: ManifestPart, header: Header, projection: EntryProjection) -> ManifestSchema:
    """Return the schema of a manifest with unique ids of partition fields.

    It is the declared schema, or its `bytes_for_fixed` if only that matches the blocks. The first block that matches
    only one of them decides. Blocks whose partition values are null match both.
    """
    declared = _Declared(header.metadata["avro.schema"], projection.tuple_of(part.spec_id), part.location)
    candidates = _candidates(declared)
    for block in read_blocks(data, header, part.location) if len(candidates) > 1 else ():
        inflated = inflate(data, block, header, part.location)
        fitting = [candidate for candidate in candidates if _fits(candidate, inflated, block)]
        if len(fitting) < len(candidates):
            return (fitting or candidates)[0]
    return candidates[0]


@dataclass(frozen=True)
class _Declared:
    """A schema in the header of manifests.

    Attributes:
        text: the schema.
        partition: the fields of the manifests' partition spec; see `SpecTuples`.
        location: a manifest with the schema, for errors.
    """

    text: bytes
    partition: tuple[tuple[int, int, str], ...]
    location: str = field(compare=False)


@lru_cache(maxsize=64)
def _candidates(declared: _Declared) -> tuple[ManifestSchema, ...]:
    """Return the declared schema, and its `bytes_for_fixed` if that differs. Resolving them takes a millisecond."""
    ids_by_name = {name: id_in_spec for id_in_spec, _, name in declared.partition}
    schema = canonical_schema(schema_json(declared.text), declared.location, manifest_fields(ids_by_name))
    unique_ids = {id_in_spec: unique_id for id_in_spec, unique_id, _ in declared.partition}
    schema = with_partition_ids(schema, unique_ids)
    schemas = (schema, bytes_for_fixed(schema))
    return tuple(manifest_schema(candidate, declared.location) for candidate in schemas if candidate is not None)


def refuse_foreign_tuples(
    data: Data, part: ManifestPart, header: Header, schema: ManifestSchema, projection: EntryProjection
) -> None:
    """Refuse live entries with values of partition fields that the manifest's spec does not have.

    A writer that labels tuples of an earlier spec with a later one creates files of unknown partitions, and deletes
    that apply to unknown files. Fields without values, and missing fields, are harmless.

    Raises:
        CorruptFileError: there is such an entry.
    """
    ids = {unique for _, unique, _ in projection.tuple_of(part.spec_id)}
    foreign = sorted(schema.partition_fields - ids)
    if not foreign or part.spec_id not in dict(projection.spec_tuples):
        return
    reader_schema, blocks = (
        schema.projected({0, 100}.__contains__, foreign.__contains__),
        part_blocks(data, part, header),
    )
    for _, records in record_batches(data, blocks, header, schema, reader_schema, part.location):
        for record in records:
            file = record["f2"]
            values = (file and file["f102"]) or {}
            wrong = [field_id for field_id in foreign if values.get(f"f{field_id}") is not None]
            if wrong and record.get("f0") != int(Status.DELETED):
                field, spec_fields = f"partition.{wrong[0]} of {file.get('f100')}", ", ".join(map(str, sorted(ids)))
                problem = (
                    f"the manifest is of partition spec {part.spec_id}, which has the fields {spec_fields or 'none'}: "
                    "the file was written for another spec; remove it, and write it again with the table's present spec"
                )
                raise CorruptFileError(part.location, field, as_text(values[f"f{wrong[0]}"]), problem)


def _fits(schema: ManifestSchema, inflated: bytes | bytearray, block: Block) -> bool:
    try:
        deque(_decode_block(inflated, block, schema, None, ""), maxlen=0)
    except CorruptFileError:
        return False
    return True


def _records(
    data: Data, part: ManifestPart, header: Header, schema: ManifestSchema, projection: EntryProjection
) -> Iterator[tuple[int, RawRecords]]:
    """Yield (ordinal of the first record, records), some thousands at a time."""
    blocks = part_blocks(data, part, header)
    compiled = None
    if compiler.pays_for(len(data) // part.parts):
        compiled = _compiled_records(data, blocks, header, schema, projection, part.location)
    yield from compiled or _fastavro_records(data, blocks, header, schema, projection, part.location)


def _compiled_records(
    data: Data,
    blocks: Iterator[Block],
    header: Header,
    schema: ManifestSchema,
    projection: EntryProjection,
    location: str,
) -> Iterator[tuple[int, RawRecords]] | None:
    """Return the records that a compiled program decodes; None if the schema can't be compiled."""
    from sparkmeta.avro.program import compiled_records

    program = program_of(schema, projection)
    if program is None:
        return None
    return compiled_records(data, blocks, header, program, location, BATCH_RECORDS)


@lru_cache(maxsize=64)
def program_of(schema: ManifestSchema, projection: EntryProjection, marks: tuple[int, ...] = ()) -> Program | None:
    """Return the compiled program; None if the schema can't be compiled. See `compile_program`."""
    from sparkmeta.avro.program import NotCompilable, compile_program

    try:
        return compile_program(schema, projection, marks)
    except NotCompilable:
        return None


def _fastavro_records(
    data: Data,
    blocks: Iterator[Block],
    header: Header,
    schema: ManifestSchema,
    projection: EntryProjection,
    location: str,
) -> Iterator[tuple[int, RawRecords]]:
    reader_schema = None if _decodes_maps(projection) else _narrow_schema(schema, projection)
    few_keys = len(projection.stats) <= FEW_KEYS
    for first_ordinal, records in record_batches(data, blocks, header, schema, reader_schema, location):
        yield first_ordinal, AvroRecords(records, schema, location, few_keys)


def _decodes_maps(projection: EntryProjection) -> bool:
    """Return whether metrics maps are projected, for which fastavro is slower with a reader schema than without."""
    return bool(projection.stats) or not METRICS_MAP_IDS.keys().isdisjoint(projection.columns)


def _narrow_schema(schema: ManifestSchema, projection: EntryProjection) -> dict[str, Any]:
    """Return the reader schema with only the projected fields, so that fastavro skips the others."""
    ids = projected_fields(projection)
    partition_ids = {field_id for field_id, _ in projection.partition}
    return schema.projected(ids.__contains__, partition_ids.__contains__)


class AvroRecords:
    """`RawRecords` over records of fastavro.

    Args:
        location: the manifest, for errors.
        few_keys: whether to search maps for keys instead of making dicts.
    """

    def __init__(self, records: list[dict[str, Any]], schema: ManifestSchema, location: str, few_keys: bool) -> None:
        self._records = records
        self._files = [record["f2"] for record in records]
        if None in self._files:
            raise CorruptFileError(location, "data_file", None, "the field is required")
        self._schema = schema
        self._location = location
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
            values = [value if value is None else as_text(value) for value in values]
        if pa.types.is_decimal(kind):
            return typed_values(self._array(values, pa.binary(), name), type_name, self._location, name)
        if self._schema.holds_days(field_id, type_name):
            days = self._array(values, pa.int32(), name).view(pa.date32())
            return promoted_values(days, type_name, self._location, name)
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
            values = [lookup.get(key) for lookup in self._lookups(map_id)]
        return self._array(values, kind, f"{field_name(map_id)}[{key}]")

    def take(self, indices: np.ndarray[Any, Any]) -> AvroRecords:
        records = [self._records[index] for index in indices.tolist()]
        return AvroRecords(records, self._schema, self._location, self._few_keys)

    def _lookup(self, map_id: int) -> list[dict[int, Any]]:
        return [dict(items or ()) for items in self._maps(map_id)]

    def _maps(self, map_id: int) -> list[list[tuple[int, Any]] | None]:
        try:
            return [map_items(file[f"f{map_id}"]) for file in self._files]
        except ValueError as error:
            raise CorruptFileError(self._location, field_name(map_id), str(error), "a key is not an int") from error

    def _array(self, values: list[Any], kind: pa.DataType, field: str) -> pa.Array:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            wrong = next((value for value in values if value is not None), None)
            raise CorruptFileError(self._location, field, wrong, f"not {kind}: {error}"[:200]) from error


# The number types of Avro dates and times, so that Arrow does not build these from Python objects.
_STORAGE = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}


def as_text(value: Any) -> str:
    """Return a decoded partition value of type `ANY`."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _value_of(value: Any, key: int) -> Any:
    """Return the value of a key in a metrics map of either encoding; None if it is missing."""
    if isinstance(value, dict):
        return value.get(str(key))
    return next((pair["v"] for pair in reversed(value or ()) if pair["k"] == key), None)


def map_items(value: Any) -> list[tuple[int, Any]] | None:
    """Return the items of a metrics map in either encoding: an array of pairs, or a map with decimal keys."""
    if value is None:
        return None
    if isinstance(value, dict):
        return [(int(key), item) for key, item in value.items()]
    return [(pair["k"], pair["v"]) for pair in value]


def record_batches(
    data: Data,
    blocks: Iterable[Block],
    header: Header,
    schema: ManifestSchema,
    reader_schema: dict[str, Any] | None,
    location: str,
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield (ordinal of the first record, records). Small blocks are joined: some writers write a block per record."""
    ordinal = size = 0
    pending: list[dict[str, Any]] = []
    for block in blocks:
        if not pending:
            ordinal, size = block.first_ordinal, 0
        inflated = inflate(data, block, header, location)
        size += len(inflated)
        records = _decode_block(inflated, block, schema, reader_schema, location)
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
    """Yield the blocks that begin in the part's share of the file."""
    start, end = (len(data) * edge // part.parts for edge in (part.part, part.part + 1))
    blocks = itertools.takewhile(lambda block: block.offset < end, read_blocks(data, header, part.location))
    return (block for block in blocks if start <= block.offset)


def _decode_block(
    inflated: bytes | bytearray,
    block: Block,
    schema: ManifestSchema,
    reader_schema: dict[str, Any] | None,
    location: str,
) -> Iterator[dict[str, Any]]:
    stream = io.BytesIO(inflated)
    try:
        for _ in range(block.count):
            yield fastavro.schemaless_reader(stream, schema.writer, reader_schema)  # type: ignore[misc]
    except GeneratorExit:
        raise
    except Exception as error:
        problem = f"a record can't be decoded: {type(error).__name__} {error}"[:200]
        raise CorruptFileError(location, "block", block.offset, problem) from error
    if stream.tell() != len(inflated):
        problem = f"{len(inflated) - stream.tell()} bytes after its last record"
        raise CorruptFileError(location, "block", block.offset, problem)
