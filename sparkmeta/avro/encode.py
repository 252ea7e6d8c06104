"""Encode entries of any manifest as entries of a new v1 to v3 manifest. Without Spark: tasks import this.

There is no Python object per entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.column_encoder import ColumnEncoder, joined
from sparkmeta.avro.schema import field_id_of, fixed_sizes, record_of
from sparkmeta.avro.write import REQUIRED_DEFAULTS, ManifestFormat
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.metrics_maps import metrics_map
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, METRICS_MAPS, PARTITION_FIELD_ID, V3_ENTRY_PATHS


def encode_entries(entries: pa.RecordBatch, form: ManifestFormat) -> pa.BinaryArray:
    """Return entries encoded with a format's schema.

    Args:
        entries: all columns of content entries and `partition`, with inheritance applied. Metrics maps are columns, or
            are made of `content_stats`.
    """
    values = {field_id: _value(entries, path) for field_id, path in V3_ENTRY_PATHS.items()}
    values |= {field_id: pa.repeat(pa.scalar(value), len(entries)) for field_id, value in REQUIRED_DEFAULTS.items()
               if field_id not in values}  # fmt: skip
    encoder = ColumnEncoder(fixed_sizes(form.encoded))
    record = record_of(form.encoded, DATA_FILE_FIELD_ID, "data_file")
    assert record is not None
    encoded = [
        encoder.encoded(field["type"], values[field_id_of(field)])
        for field in form.encoded["fields"]
        if field_id_of(field) != DATA_FILE_FIELD_ID
    ]
    stats = _columns_by_id(entries, CONTENT_STATS)
    for field in record["fields"]:
        field_id, kind = field_id_of(field), field["type"]
        if field_id == PARTITION_FIELD_ID:
            encoded.append(_tuples(encoder, record, _columns_by_id(entries, PARTITION), len(entries)))
        elif field_id in METRICS_MAPS:
            name = METRICS_MAPS[field_id][0]
            given = name in entries.schema.names
            maps = whole(entries.column(name)) if given else metrics_map(name, stats, len(entries))
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
