"""Read and write the manifest lists of v1 to v3 snapshots, with typed partition summaries for pruning.

Without Spark: tasks import this to read the lists of many snapshots.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Header, block_records, read_blocks, read_header
from sparkmeta.avro.schema import LIST_FIELDS, by_field_ids, canonical_schema, parse
from sparkmeta.entries.locations import resolved
from sparkmeta.entries.projection import MANIFEST
from sparkmeta.errors import CorruptFileError, UnsupportedError, ValidationError
from sparkmeta.expr.bounds import ANY, bound_arrow_type, inverted, known_bounds
from sparkmeta.spec.entry import BOUNDS, MANIFEST_STATS, ContentType, FieldSpec
from sparkmeta.spec.locations import Locations

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

SUMMARIES = "partition_summaries"

SUMMARY_TYPE = pa.struct(
    [
        pa.field("contains_null", pa.bool_()),
        pa.field("contains_nan", pa.bool_()),
        pa.field("lower_bound", pa.binary()),
        pa.field("upper_bound", pa.binary()),
    ]
)

# The manifest_file struct of the table spec, in the order of format version 3.
MANIFEST_FILE = (
    FieldSpec(500, "manifest_path", pa.string(), required=True),
    FieldSpec(501, "manifest_length", pa.int64(), required=True),
    FieldSpec(502, "partition_spec_id", pa.int32(), required=True),
    FieldSpec(517, "content", pa.int32()),
    FieldSpec(515, "sequence_number", pa.int64()),
    FieldSpec(516, "min_sequence_number", pa.int64()),
    FieldSpec(503, "added_snapshot_id", pa.int64()),
    FieldSpec(504, "added_files_count", pa.int32()),
    FieldSpec(505, "existing_files_count", pa.int32()),
    FieldSpec(506, "deleted_files_count", pa.int32()),
    FieldSpec(512, "added_rows_count", pa.int64()),
    FieldSpec(513, "existing_rows_count", pa.int64()),
    FieldSpec(514, "deleted_rows_count", pa.int64()),
    FieldSpec(507, "partitions", pa.list_(SUMMARY_TYPE)),
    FieldSpec(519, "key_metadata", pa.binary()),
    FieldSpec(520, "first_row_id", pa.int64()),
)
MANIFEST_FILE_SCHEMA = pa.schema([field.arrow for field in MANIFEST_FILE])

# The key of the format version in a list's key-value metadata.
_FORMAT_VERSION = "format-version"
# Values that v1 lists omit (table spec, Manifest Lists).
_DEFAULTS = {"content": 0, "sequence_number": 0, "min_sequence_number": 0}
_SUMMARY_KEYS = {"f509": "contains_null", "f518": "contains_nan", "f510": "lower_bound", "f511": "upper_bound"}


def decode_manifest_list(data: bytes, location: str, locations: Locations) -> pa.RecordBatch:
    """Return the rows of a manifest list as `MANIFEST_FILE_SCHEMA`, with v1 defaults; unknown counts are null.

    Args:
        data: the content of the file.
        location: the file's location.
        locations: resolves the locations in the list.

    Raises:
        CorruptFileError: not a manifest list, a required field is null, an unknown content, or a relative location
            before format version 4.
    """
    header = read_header(data, location)
    records = list(_records(data, header, location))
    columns = [_column(field, records, location) for field in MANIFEST_FILE]
    is_new = header.metadata.get(_FORMAT_VERSION) == b"4"
    columns[0] = resolved(columns[0], locations if is_new else locations.before_version_4, location, "manifest_path")
    batch = pa.RecordBatch.from_arrays(columns, schema=MANIFEST_FILE_SCHEMA)
    for value in batch.column("content").unique().to_pylist():
        if value not in (0, 1):
            raise CorruptFileError(location, "content", value, "not one of 0 (data), 1 (deletes)")
    return batch


def inline_manifest_list(paths: Sequence[str], lengths: Sequence[int], snapshot_id: int) -> pa.RecordBatch:
    """Return the rows of a v1 snapshot whose manifests the table metadata lists: spec 0, unknown counts."""
    values = {
        "manifest_path": list(paths),
        "manifest_length": list(lengths),
        "partition_spec_id": [0] * len(paths),
        "added_snapshot_id": [snapshot_id] * len(paths),
        **{name: [default] * len(paths) for name, default in _DEFAULTS.items()},
    }
    columns = [pa.array(values.get(field.name, [None] * len(paths)), field.type) for field in MANIFEST_FILE]
    return pa.RecordBatch.from_arrays(columns, schema=MANIFEST_FILE_SCHEMA)


# The fields of a list in the order in which they are written, by format version (semantics 9.3).
_V2 = (500, 501, 502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514, 507, 519)
_LIST_FIELDS = {1: (500, 501, 502, 503, 504, 505, 506, 507, 512, 513, 514, 519), 2: _V2, 3: (*_V2, 520)}


def write_manifest_list(
    manifests: pa.Table, format_version: int, properties: Mapping[str, str], location: str
) -> bytes:
    """Encode rows of `MANIFEST_FILE_SCHEMA`, in their order, as a manifest list.

    Args:
        properties: the file's key-value metadata.
        location: the file's location, for errors.

    Raises:
        ValidationError: a manifest lacks a value that the format version requires, such as its counts.
    """
    fields, avro_schema = _written_fields(format_version)
    rows = manifests.to_pylist()
    for field in fields:
        for row in rows if field.required else ():
            if row[field.name] is None:
                problem = f"format version {format_version} requires it of {row['manifest_path']}"
                raise ValidationError(f"{location}: {field.name} is not known: {problem}")
    stream = io.BytesIO()
    fastavro.writer(stream, avro_schema, rows, codec="deflate", metadata=dict(properties))
    return stream.getvalue()


@cache
def _written_fields(format_version: int) -> tuple[Sequence[NestedField], Any]:
    """Return the fields of the lists of a format version in the order in which they are written, and their schema."""
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
    from pyiceberg.schema import Schema
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    fields_by_id = {field.field_id: field for field in MANIFEST_LIST_FILE_SCHEMAS[format_version].fields}
    schema = Schema(*(fields_by_id[field_id] for field_id in _LIST_FIELDS[format_version]))
    return schema.fields, fastavro.parse_schema(AvroSchemaConversion().iceberg_to_avro(schema, "manifest_file"))


def _records(data: bytes, header: Header, location: str) -> Iterator[dict[str, Any]]:
    canonical = canonical_schema(header.schema, location, LIST_FIELDS)
    schema = parse(by_field_ids(canonical, location), location)
    for block in read_blocks(data, header, location):
        yield from block_records(data, block, header, schema, location)


def _column(field: FieldSpec, records: list[dict[str, Any]], location: str) -> pa.Array:
    values = [record.get(f"f{field.id}") for record in records]
    if field.name in _DEFAULTS:
        values = [_DEFAULTS[field.name] if value is None else value for value in values]
    if field.name == "partitions":
        values = [value and [_summary(record) for record in value] for value in values]
    if field.required and None in values:
        raise CorruptFileError(location, field.name, None, "the field is required")
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        wrong = next((value for value in values if value is not None), None)
        raise CorruptFileError(location, field.name, wrong, f"not {field.type}: {error}"[:200]) from error


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(key) for key, name in _SUMMARY_KEYS.items()}


def manifests_of_list(
    manifests: pa.Table, spec_fields: Mapping[int, Sequence[tuple[int, str]]], location: str
) -> pa.Table:
    """Return the manifests of a snapshot as content entries of types 3 and 4, with typed partition summaries.

    Args:
        manifests: rows of `MANIFEST_FILE_SCHEMA`.
        spec_fields: spec id -> (partition field id, type name) of its fields in the spec's order, since summaries are
            positional.
        location: the list's location, for errors.

    Returns:
        The columns manifest (small id: the row's position), content_type, location, file_format,
        version_info<snapshot_id, sequence_number>, partition_spec_id, file_size_in_bytes, manifest_stats, key_metadata,
        first_row_id, and partition_summaries: a struct with a struct<contains_null, contains_nan, lower_bound,
        upper_bound> per partition field id, null if the manifest has no summaries or its spec has no such field.

    Raises:
        CorruptFileError: the table does not have a manifest's spec, or summaries don't fit the spec.
    """
    _check_specs(manifests, spec_fields, location)
    paths = manifests.column("manifest_path")
    content = pc.add(manifests.column("content"), int(ContentType.DATA_MANIFEST)).cast(pa.int32())
    stats = [manifests.column(field.name).combine_chunks() for field in MANIFEST_STATS]
    version = [manifests.column(name).combine_chunks() for name in ("added_snapshot_id", "sequence_number")]
    parquet = pc.ends_with(pc.utf8_lower(paths), ".parquet")
    columns: dict[str, Any] = {
        MANIFEST: pa.array(range(len(manifests)), pa.int32()),
        "content_type": content,
        "location": paths,
        "file_format": pc.if_else(parquet, "PARQUET", "AVRO"),
        "version_info": pa.StructArray.from_arrays(version, names=["snapshot_id", "sequence_number"]),
        "partition_spec_id": manifests.column("partition_spec_id"),
        "file_size_in_bytes": manifests.column("manifest_length"),
        "manifest_stats": pa.StructArray.from_arrays(stats, fields=[field.arrow for field in MANIFEST_STATS]),
        "key_metadata": manifests.column("key_metadata"),
        "first_row_id": manifests.column("first_row_id"),
    }
    summaries = _summaries(manifests, spec_fields, location)
    if summaries is not None:
        columns[SUMMARIES] = summaries
    return pa.table(columns)


def refuse_encrypted_parquet(manifests: pa.Table | pa.RecordBatch, location: str) -> None:
    """Raise UnsupportedError if a manifest, a row of `MANIFEST_FILE_SCHEMA`, is an encrypted Parquet file."""
    paths = manifests.column("manifest_path")
    encrypted = pc.and_(manifests.column("key_metadata").is_valid(), pc.ends_with(pc.utf8_lower(paths), ".parquet"))
    if pc.any(encrypted).as_py():
        path = paths.filter(encrypted)[0].as_py()
        raise UnsupportedError(f"{location}: manifest {path} is an encrypted Parquet file, which can't be read")


def _check_specs(manifests: pa.Table, spec_fields: Mapping[int, Any], location: str) -> None:
    for spec_id in manifests.column("partition_spec_id").unique().to_pylist():
        if spec_id not in spec_fields:
            raise CorruptFileError(location, "partition_spec_id", spec_id, "the table has no such partition spec")


def _summaries(
    manifests: pa.Table, spec_fields: Mapping[int, Sequence[tuple[int, str]]], location: str
) -> pa.StructArray | None:
    types = {field_id: name for fields in spec_fields.values() for field_id, name in fields}
    if not types:
        return None
    partitions = manifests.column("partitions").combine_chunks()
    spec_ids = manifests.column("partition_spec_id").to_numpy()
    sizes = pc.list_value_length(partitions)
    present = partitions.is_valid().to_numpy(False)
    starts = partitions.offsets.to_numpy()[:-1]
    item_of_row = {field_id: np.full(len(manifests), -1, np.int64) for field_id in types}
    for spec_id, fields in spec_fields.items():
        rows = np.flatnonzero(present & (spec_ids == spec_id))
        _check_sizes(sizes.take(pa.array(rows)), len(fields), spec_id, location)
        for position, (field_id, _) in enumerate(fields):
            item_of_row[field_id][rows] = starts[rows] + position
    children = [_typed_summary(partitions.values, item_of_row[field_id], types[field_id]) for field_id in sorted(types)]
    return pa.StructArray.from_arrays(children, names=[str(field_id) for field_id in sorted(types)])


def _check_sizes(sizes: pa.Array, expected: int, spec_id: int, location: str) -> None:
    for size in sizes.unique().to_pylist():
        if size != expected:
            problem = f"partition spec {spec_id} has {expected} fields"
            raise CorruptFileError(location, "partitions", f"{size} field summaries", problem)


def _typed_summary(values: pa.StructArray, indices: np.ndarray[Any, Any], type_name: str) -> pa.StructArray:
    """Return a field's summaries with typed bounds; null if there is no summary, or if its bounds prove nothing."""
    summaries = values.take(pa.array(indices, mask=indices < 0))
    raw = [summaries.field(name) for name in BOUNDS]
    lower, upper = (known_bounds(bound, type_name) for bound in raw)
    is_unknown = pa.array(indices < 0)
    if type_name != ANY:
        for raw_bound, bound in zip(raw, (lower, upper), strict=True):
            is_unknown = pc.or_(is_unknown, pc.and_(raw_bound.is_valid(), bound.is_null()))
    if (wrong := inverted(lower, upper, type_name)) is not None:
        is_unknown = pc.or_(is_unknown, pc.fill_null(wrong, False))
    children = [summaries.field("contains_null"), summaries.field("contains_nan"), lower, upper]
    typed = [pc.if_else(is_unknown, pa.scalar(None, child.type), child) for child in children]
    bound_type = bound_arrow_type(type_name)
    fields = [*list(SUMMARY_TYPE)[:2], *(pa.field(name, bound_type) for name in BOUNDS)]
    return pa.StructArray.from_arrays(typed, fields=fields, mask=is_unknown)
