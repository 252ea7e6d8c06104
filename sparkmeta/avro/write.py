"""Encode entries in Avro, and write them as manifests of versions 1 to 3. Without Spark: tasks import this."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import SYNC_SIZE, container_blocks, container_header, deflater, packed_blocks
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.avro.schema import (
    by_field_ids,
    bytes_for_fixed,
    field_id_of,
    fixed_sizes,
    named_once,
    parse,
    record_of,
    with_partition_ids,
)
from sparkmeta.entries.live import manifest_counts
from sparkmeta.entries.manifest_records import metrics_map
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION, EntryProjection, SpecTuples
from sparkmeta.errors import ValidationError, shown
from sparkmeta.expr.arrays import compact_lists, extremes, whole
from sparkmeta.expr.bounds import as_numbers, encode_bounds
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, METRICS_MAPS, PARTITION_FIELD_ID, V3_ENTRY_PATHS
from sparkmeta.spec.table_properties import choice_property
from sparkmeta.spec.varints import encoded_long
from sparkmeta.storage.encryption import KEY_METADATA, encrypted
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import StructType

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.executors import ExecutorWriter


# -- Encode Arrow columns ---------------------------------------------------------------------------------------------
# Columns are encoded one by one, as arrays of bytes, and joined row by row in Arrow. There is no Python object per
# row, except for few rows: this makes a commit of one file ten times as fast.


_EMPTY = b""
_NULL, _PRESENT, _END = b"\x00", b"\x02", b"\x00"


class ColumnEncoder:
    """An encoder of columns by their Avro types.

    Attributes:
        sizes: the sizes of fixed types, by name.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def records(self, fields: Sequence[Mapping[str, Any]], columns: Sequence[pa.Array], rows: int) -> pa.BinaryArray:
        """Return records whose fields have the values of columns."""
        return joined(
            [self.encoded(field["type"], column) for field, column in zip(fields, columns, strict=True)], rows
        )

    def encoded(self, kind: Any, values: pa.Array) -> pa.BinaryArray:
        """Encode each value. A null is encoded as null if the type is a union with null.

        A column of nulls may have any Arrow type: a void partition field has the type of its values in other specs.
        """
        if len(values) <= _MAX_PYTHON_ROWS and _is_simple(values.type):
            return pa.array([_encoding(kind, value) for value in values.to_pylist()], pa.binary())
        if isinstance(kind, list):
            if values.null_count == len(values):
                return pa.repeat(pa.scalar(_NULL, pa.binary()), len(values))
            encoded_values = self.encoded(next(branch for branch in kind if branch != "null"), values)
            if not values.null_count:
                return _joined(_PRESENT, encoded_values)
            return pc.if_else(values.is_valid(), _joined(_PRESENT, encoded_values), _NULL)
        if isinstance(kind, dict) and kind["type"] != "fixed":
            return self._complex(kind, values)
        return self._primitive(kind, values)

    def _primitive(self, kind: Any, values: pa.Array) -> pa.BinaryArray:
        if kind == "null":
            return pa.array([_EMPTY] * len(values), pa.binary())
        if kind in ("int", "long"):
            return _numbers(as_numbers(values))
        if kind in ("boolean", "float", "double"):
            return _filled(encode_bounds(values))
        if kind in ("bytes", "string"):
            content = _filled(values.cast(pa.binary()))
            return _joined(_numbers(pc.binary_length(content)), content)
        size = self.sizes[kind if isinstance(kind, str) else kind["name"]]
        return _fixed_decimals(values, size) if pa.types.is_decimal(values.type) else _filled(values.cast(pa.binary()))

    def _complex(self, kind: Mapping[str, Any], values: pa.Array) -> pa.BinaryArray:
        match kind["type"]:
            case "record":
                return self.records(kind["fields"], values.flatten(), len(values))
            case "array":
                return self._lists(kind["items"], values)
            case "map":
                return self._lists({"fields": [{"type": "string"}, {"type": kind["values"]}]}, values)
        return self.encoded(kind["type"], values)

    def _lists(self, items: Any, values: pa.Array) -> pa.BinaryArray:
        """Encode lists, or maps as lists of pairs: a block of items, unless there are none, and then the end."""
        offsets, elements = compact_lists(values)
        if pa.types.is_map(values.type):
            encoded = self.records(items["fields"], elements.flatten(), len(elements))
        else:
            encoded = self.encoded(items, elements)
        counts = pc.subtract(offsets.slice(1), offsets.slice(0, len(values)))
        blocks = pc.binary_join(pa.ListArray.from_arrays(offsets, encoded), _EMPTY)
        return pc.if_else(pc.greater(counts, 0), _joined(_numbers(counts), blocks, _END), _END)


def joined(parts: Sequence[pa.BinaryArray], rows: int) -> pa.BinaryArray:
    """Return the concatenated parts of each row."""
    return _joined(*parts) if parts else pa.array([_EMPTY] * rows, pa.binary())


# With more rows, Arrow is faster.
_MAX_PYTHON_ROWS = 32


def _is_simple(kind: pa.DataType) -> bool:
    """Return whether a type consists of integers, text and bytes, in lists and maps."""
    if pa.types.is_map(kind):
        return _is_simple(kind.key_type) and _is_simple(kind.item_type)
    if pa.types.is_list(kind):
        return _is_simple(kind.value_type)
    return any(is_of(kind) for is_of in (pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_null))


def _encoding(kind: Any, value: Any) -> bytes:
    """Return the encoding of a value of a simple type; see `ColumnEncoder.encoded`."""
    if isinstance(kind, list):
        return _NULL if value is None else _PRESENT + _encoding(next(each for each in kind if each != "null"), value)
    if isinstance(kind, dict):
        match kind["type"]:
            case "array":
                return _block([_encoding(kind["items"], item) for item in value or ()])
            case "map":
                return _block([_encoding("string", key) + _encoding(kind["values"], item) for key, item in value or ()])
            case "record":  # a pair of a map with keys of another type
                pairs = zip(kind["fields"], value, strict=True)
                return b"".join(_encoding(field["type"], item) for field, item in pairs)
            case "fixed":
                return bytes(value or _EMPTY)
        return _encoding(kind["type"], value)
    if kind in ("int", "long"):
        return encoded_long(value or 0)
    content: bytes = value.encode() if isinstance(value, str) else value or _EMPTY
    return encoded_long(len(content)) + content if kind in ("bytes", "string") else content


def _block(items: Sequence[bytes]) -> bytes:
    return encoded_long(len(items)) + b"".join(items) + _END if items else _END


def _joined(*parts: Any) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _filled(values: pa.Array) -> pa.BinaryArray:
    return pc.fill_null(values, _EMPTY) if values.null_count else values


# The least numbers of two bytes, of three, and so on.
_LONGER = np.uint64(1) << np.arange(7, 64, 7, dtype=np.uint64)


def _numbers(values: pa.Array) -> pa.BinaryArray:
    """Return numbers in Avro's zigzag form, seven bits a byte; null as 0."""
    integers = values.cast(pa.int64())
    signed = (pc.fill_null(integers, 0) if values.null_count else integers).to_numpy(zero_copy_only=False)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    lengths = 1 + np.searchsorted(_LONGER, zigzag, side="right")
    longest = int(lengths.max(initial=1))
    digits = np.empty((len(zigzag), longest), np.uint8)
    for column in range(longest):
        digits[:, column] = (zigzag >> np.uint64(7 * column)) & np.uint64(0x7F)
    indices = np.arange(longest)
    digits[indices < lengths[:, None] - 1] |= 0x80
    data = digits[indices < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(zigzag), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _fixed_decimals(values: pa.Array, size: int) -> pa.BinaryArray:
    """Return the unscaled values in big-endian two's complement with a fixed number of bytes; null as zeros."""
    wide = pc.fill_null(values.cast(pa.decimal128(38, values.type.scale)), 0)
    rows = np.frombuffer(wide.buffers()[1], np.uint8).reshape(-1, 16)[wide.offset : wide.offset + len(wide)]
    data = np.ascontiguousarray(rows[:, ::-1][:, 16 - size :])
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(wide), [None, pa.py_buffer(data)])
    return fixed.cast(pa.binary())


# -- Write manifests --------------------------------------------------------------------------------------------------
# Layouts and field orders are the same as in Iceberg's Java library (semantics 9.1, 9.2).


ENTRY = "entry"
"""A column in addition to an entry's: the entry encoded with a `ManifestFormat`'s schema."""

COLUMNS = ("version_info", "record_count", "first_row_id")
"""The columns that are needed to encode entries, in addition to the partition tuple."""

REQUIRED_DEFAULTS = {134: 0, 105: 67_108_864}
"""The values of required fields of data_file that a writer may not know: content and block size (semantics 9.2)."""

# The fields of data_file in the order in which they are written, by format version.
_V2 = (134, 100, 101, 102, 103, 104, 108, 109, 110, 137, 125, 128, 131, 132, 135, 140)
_FILE_FIELDS = {
    1: (100, 101, 102, 103, 104, 105, 108, 109, 110, 137, 125, 128, 131, 132, 140),
    2: (*_V2, 143),
    3: (*_V2, 142, 143, 144, 145),
}
_ENTRY_FIELDS = {1: (0, 1), 2: (0, 1, 3, 4), 3: (0, 1, 3, 4)}

_LEVEL = re.compile(r"-?[0-9]{1,3}")
_CODEC = "write.manifest.compression-codec"
_CODECS = {"gzip": "deflate", "uncompressed": "null", "snappy": "snappy", "zstd": "zstandard"}


@lru_cache(maxsize=64)
def entry_schema(format_version: int, partition: StructType) -> dict[str, Any]:
    """Return the Avro schema of entries with a partition tuple (table spec, Manifests)."""
    from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, ListType, NestedField, StructType
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    file_fields = {field.field_id: field for version in (1, 3) for field in DATA_FILE_TYPE[version].fields}
    file_fields[102] = file_fields[102].model_copy(update={"field_type": partition})
    ids = ListType(element_id=136, element=IntegerType(), element_required=True)  # pyiceberg's are longs
    file_fields[135] = file_fields[135].model_copy(update={"field_type": ids})
    data_file = StructType(*(file_fields[field_id] for field_id in _FILE_FIELDS[format_version]))
    entry_fields = {field.field_id: field for field in MANIFEST_ENTRY_SCHEMAS[3].fields}
    fields = [entry_fields[field_id] for field_id in _ENTRY_FIELDS[format_version]]
    iceberg_schema = Schema(*fields, NestedField(2, "data_file", data_file, required=True))
    schema: dict[str, Any] = named_once(AvroSchemaConversion().iceberg_to_avro(iceberg_schema, "manifest_entry"))
    parse(by_field_ids(schema, "manifest_entry"), "manifest_entry")
    return schema


@dataclass(frozen=True)
class ManifestFormat:
    """The format of the manifests of one partition spec. Picklable.

    Attributes:
        content: 0 (data) or 1 (deletes).
        partition: (partition field id, type name) of the spec's fields, in order.
        schema: the Avro schema of entries.
        properties: key-value metadata of the files.
        codec: the codec's name in table properties.
        level: the compression level; None for a fast one.
        folder: the folder of the files.
        name: the prefix of the files' names.
        target_bytes: the target size of a manifest.
        writer: writes the files.
        spec_tuples: see `EntryProjection`.
        data_key_length: the length of the keys of encrypted manifests in bytes; None if manifests are not encrypted.
    """

    format_version: int
    content: int
    spec_id: int
    partition: tuple[tuple[int, str], ...]
    schema: Mapping[str, Any]
    properties: Mapping[str, str]
    codec: str
    level: int | None
    folder: str
    name: str
    target_bytes: int
    writer: ExecutorWriter
    spec_tuples: SpecTuples = ()
    data_key_length: int | None = None

    @property
    def projection(self) -> EntryProjection:
        """The projection of entries to encode."""
        return EntryProjection.of(COLUMNS, dict(self.partition), {}, self.spec_tuples)

    @property
    def written_schema(self) -> dict[str, Any]:
        """The schema in the files: partition fields have their ids in the spec."""
        ids = {unique_id: id_in_spec for id_in_spec, unique_id in self.projection.unique_ids(self.spec_id).items()}
        return with_partition_ids(dict(self.schema), ids)

    @property
    def encoded(self) -> dict[str, Any]:
        """The schema of encoded entries, by field ids. Fixed values are bytes, as in Java's library."""
        return _encoded_schema(json.dumps(self.schema))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The ids of the entry's fields between its status and its data_file."""
        return _ENTRY_FIELDS[self.format_version][1:]


@lru_cache(maxsize=64)
def _encoded_schema(text: str) -> dict[str, Any]:
    schema = json.loads(text)
    return by_field_ids(bytes_for_fixed(schema) or schema, "manifest_entry")


_CONTENTS = ("data", "deletes")


def manifest_properties(format_version: int, schema: Schema, spec: PartitionSpec, content: int) -> dict[str, str]:
    """Return the key-value metadata of a manifest (semantics 8.8)."""
    from sparkmeta.spec.partitioning import partition_spec_to_json
    from sparkmeta.spec.schema import schema_to_json

    fields = partition_spec_to_json(spec)["fields"]
    properties = {
        "schema": json.dumps(schema_to_json(schema)),
        "partition-spec": json.dumps(fields),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(format_version),
    }
    return properties if format_version == 1 else {**properties, "content": _CONTENTS[content]}


def manifest_codec(metadata: TableMetadata) -> tuple[str, int | None]:
    """Return the table properties `write.manifest.compression-codec` and `write.manifest.compression-level`.

    Raises:
        ValidationError: an unknown codec, or an invalid level.
    """
    properties, location, key = metadata.properties, metadata.location, "write.manifest.compression-level"
    codec = choice_property(properties, _CODEC, tuple(_CODECS), location=location)
    text = properties.get(key)
    if text is None:
        return codec, None
    levels = {"gzip": range(-1, 10), "zstd": range(-7, 23)}.get(codec, range(-100, 100))
    if not _LEVEL.fullmatch(text) or int(text) not in levels:
        raise ValidationError(f"{location}: the table property {key} is {shown(text)}: it is not a level of {codec}")
    return codec, int(text)


def write_manifest(entries: pa.Table, form: ManifestFormat) -> tuple[bytes, pa.Table]:
    """Encode entries as a manifest. Return its bytes, and its row in the manifest list with a new location.

    The commit sets the row's sequence number, snapshot id and first row id, and the least sequence number if no
    live entry has one.

    Args:
        entries: sorted entries with `entry`, `record_count`, `version_info` and `partition` (a struct by partition
            field id).
    """
    table = entries.combine_chunks()
    sync = os.urandom(SYNC_SIZE)
    header = container_header(form.written_schema, _CODECS[form.codec], form.properties, sync)
    data = b"".join([header, *container_blocks(table.column(ENTRY).combine_chunks(), _packer(form), sync)])
    data, key_metadata = encrypted(data, form.data_key_length)
    location = join(form.folder, f"{form.name}-{uuid.uuid4()}.avro")
    row = {
        "manifest_path": location,
        "manifest_length": len(data),
        "partition_spec_id": form.spec_id,
        "content": form.content,
        **manifest_counts(table),
        "partitions": _summaries(table, form),
        KEY_METADATA: key_metadata,
    }
    return data, pa.Table.from_pylist([row], schema=MANIFEST_FILE_SCHEMA)


def _packer(form: ManifestFormat) -> Callable[[Any], bytes]:
    return deflater(_CODECS[form.codec], form.level)


def with_version_info(entries: pa.RecordBatch, **values: pa.Array) -> pa.RecordBatch:
    """Return entries with other values of fields of `version_info`."""
    index = entries.schema.get_field_index("version_info")
    info = entries.column(index)
    children = dict(zip(info.type.names, info.flatten(), strict=True)) | values
    version_info = pa.StructArray.from_arrays([*children.values()], fields=list(info.type))
    return entries.set_column(index, entries.schema.field(index), version_info)


def packed_size(entries: pa.Table, form: ManifestFormat) -> int:
    """Estimate the bytes that entries take in a manifest from the first block."""
    lengths = pc.binary_length(entries.column(ENTRY)).to_numpy()
    count, data = next(packed_blocks(entries.column(ENTRY).chunk(0), _packer(form)))
    return int(lengths.sum() * len(data) / lengths[:count].sum())


def _summaries(entries: pa.Table, form: ManifestFormat) -> list[dict[str, Any]] | None:
    """Return the summaries of the partition fields; None if readers may order a field's UUIDs differently."""
    summaries = []
    for field_id, kind in form.partition:
        values = pc.struct_field(entries.column(PARTITION), [str(field_id)]).combine_chunks()
        if kind == "uuid" and not _have_one_order(values):
            return None
        summaries.append(_summary(values))
    return summaries


def _have_one_order(uuids: pa.BinaryArray) -> bool:
    """Return whether UUIDs have the same order by bytes and by two signed numbers, as Java compares them."""
    halves = ((value[0] & 0x80, value[8] & 0x80) for value in uuids.unique().drop_null().to_pylist())
    return len(set(halves)) < 2


def _summary(values: pa.Array) -> dict[str, Any]:
    """Return a partition field's summary (table spec, Manifest Lists, field_summary)."""
    present = values.drop_null()
    if not len(present):
        return {"contains_null": True, "contains_nan": False, "lower_bound": None, "upper_bound": None}
    nan = pc.is_nan(present) if pa.types.is_floating(values.type) else None
    bounds = extremes(present if nan is None else present.filter(pc.invert(nan)))
    lower, upper = encode_bounds(pa.array([bound.as_py() for bound in bounds], values.type)).to_pylist()
    contains_nan = nan is not None and bool(pc.any(nan).as_py())
    return {
        "contains_null": values.null_count > 0,
        "contains_nan": contains_nan,
        "lower_bound": lower,
        "upper_bound": upper,
    }


# -- Encode entries ---------------------------------------------------------------------------------------------------
# There is no Python object per entry.


def encode_entries(entries: pa.RecordBatch, form: ManifestFormat) -> pa.BinaryArray:
    """Return entries encoded with a format's schema.

    Args:
        entries: all columns of content entries and `partition`, with inheritance applied. Metrics maps are columns, or
            are derived from `content_stats`.
    """
    values = {field_id: _value(entries, path) for field_id, path in V3_ENTRY_PATHS.items()}
    values |= {field_id: pa.repeat(pa.scalar(value), len(entries)) for field_id, value in REQUIRED_DEFAULTS.items()
               if field_id not in values}  # fmt: skip
    schema = form.encoded
    encoder = ColumnEncoder(fixed_sizes(schema))
    record = record_of(schema, DATA_FILE_FIELD_ID, "data_file")
    assert record is not None
    encoded = [
        encoder.encoded(field["type"], values[field_id_of(field)])
        for field in schema["fields"]
        if field_id_of(field) != DATA_FILE_FIELD_ID
    ]
    stats = _columns_by_id(entries, CONTENT_STATS)
    for field in record["fields"]:
        field_id, kind = field_id_of(field), field["type"]
        if field_id == PARTITION_FIELD_ID:
            encoded.append(_tuples(encoder, record, _columns_by_id(entries, PARTITION), len(entries)))
        elif field_id in METRICS_MAPS:
            name = METRICS_MAPS[field_id][0]
            has_map = name in entries.schema.names
            maps = whole(entries.column(name)) if has_map else metrics_map(name, stats, len(entries))
            encoded.append(encoder.encoded(kind, maps))
        else:
            encoded.append(encoder.encoded(kind, values[field_id]))
    return joined(encoded, len(entries))


def _value(entries: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    column, *child = path
    values = whole(entries.column(column))
    return pc.struct_field(values, child) if child else values


def _columns_by_id(entries: pa.RecordBatch, name: str) -> dict[int, pa.Array]:
    """Return the children of a struct whose fields are named by ids."""
    if name not in entries.schema.names:
        return {}
    parent = whole(entries.column(name))
    return {int(field.name): pc.struct_field(parent, [field.name]) for field in parent.type}


def _tuples(
    encoder: ColumnEncoder, record: Mapping[str, Any], values: Mapping[int, pa.Array], rows: int
) -> pa.BinaryArray:
    tuple_record = record_of(record, PARTITION_FIELD_ID, "partition")
    assert tuple_record is not None
    fields = tuple_record["fields"]
    return encoder.records(fields, [values[field_id_of(field)] for field in fields], rows)
