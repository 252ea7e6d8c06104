"""Avro manifests and manifest lists made by fastavro, as other writers would lay them out."""

from __future__ import annotations

import bz2
import io
import json
import lzma
from collections.abc import Mapping
from typing import Any

import fastavro

from sparkmeta.avro.container import deflater

LONG = ["null", "long"]


def field(name: str, field_id: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": field_id}


def pairs(key_id: int, value_id: int, value: str) -> list[Any]:
    """An int-keyed map as Iceberg writes it: an array of key-value records."""
    record = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [field("key", key_id, "int"), field("value", value_id, value)],
    }
    return ["null", {"type": "array", "items": record, "logicalType": "map"}]


def plain_map(value: str) -> list[Any]:
    """The other encoding: Avro's own map, whose keys are text."""
    return ["null", {"type": "map", "values": value}]


def data_file(*extra: dict[str, Any], partition: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    fields = [
        field("file_path", 100, "string"),
        field("file_format", 101, "string"),
        field("partition", 102, {"type": "record", "name": "r102", "fields": partition or []}),
        field("record_count", 103, "long"),
        field("file_size_in_bytes", 104, "long"),
        *extra,
    ]
    return field("data_file", 2, {"type": "record", "name": "r2", "fields": fields})


def entry_schema(file: dict[str, Any], *extra: dict[str, Any]) -> dict[str, Any]:
    fields = [field("status", 0, "int"), field("snapshot_id", 1, LONG), *extra, file]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


SEQUENCES = (field("sequence_number", 3, LONG), field("file_sequence_number", 4, LONG))


def entry(number: int = 0, status: int = 1, **values: Any) -> dict[str, Any]:
    file = {
        "file_path": f"file:///t/{number}.parquet",
        "file_format": "parquet",
        "partition": {},
        "record_count": 10 + number,
        "file_size_in_bytes": 100 + number,
    }
    outer = {
        name: values.pop(name) for name in ("snapshot_id", "sequence_number", "file_sequence_number") if name in values
    }
    return {"status": status, "snapshot_id": None, **outer, "data_file": {**file, **values}}


def mislabelled_file(
    declared: dict[str, Any],
    written: dict[str, Any],
    *blocks: list[dict[str, Any]],
    codec: str = "null",
    notes: Mapping[str, bytes] | None = None,
) -> bytes:
    """A file whose header declares another schema than the records in its blocks have.

    Args:
        notes: further values of the header.
    """
    stream = io.BytesIO()
    meta = {"avro.schema": json.dumps(declared).encode(), "avro.codec": codec.encode(), **(notes or {})}
    fastavro.schemaless_writer(stream, _HEADER, {"magic": b"Obj\x01", "meta": meta, "sync": bytes(16)})
    for records in blocks:
        body = io.BytesIO()
        for record in records:
            fastavro.schemaless_writer(body, written, record)
        packed = _PACK.get(codec, deflater(codec, None))(body.getvalue())
        for number in (len(records), len(packed)):
            fastavro.schemaless_writer(stream, {"type": "long"}, number)
        stream.write(packed + bytes(16))
    return stream.getvalue()


_PACK = {"bzip2": bz2.compress, "xz": lzma.compress}

_HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}


def avro_file(
    schema: dict[str, Any], records: list[dict[str, Any]], codec: str = "deflate", block_bytes: int = 16_000
) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, schema, records, codec=codec, sync_interval=block_bytes)
    return stream.getvalue()
