"""Tables written by hand, file by file: what no healthy writer makes, and what a test wants exactly so."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.avro.avro_files import LONG, SEQUENCES, avro_file, data_file, entry_schema, pairs
from tests.avro.avro_files import entry as avro_entry
from tests.avro.avro_files import field as avro_field
from tests.avro.test_manifest_list import V2

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = ["null", "int"]
ROW_COUNTS = {"existing_rows_count": 513, "added_rows_count": 512, "deleted_rows_count": 514}
SNAPSHOT_ID = 10
SEQUENCE = 5

COLUMNS = (
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "part", "required": False, "type": "string"},
    {"id": 3, "name": "ratio", "required": False, "type": "double"},
)
BY_PART = ({"source-id": 2, "field-id": 1000, "name": "part", "transform": "identity"},)
BY_RATIO = ({"source-id": 3, "field-id": 1001, "name": "ratio", "transform": "identity"},)
BY_DAY_AND_BUCKET = (
    {"source-id": 4, "field-id": 1002, "name": "ts_day", "transform": "day"},
    {"source-id": 1, "field-id": 1003, "name": "id_bucket", "transform": "bucket[4]"},
)
# As of a table of version 1: its specs count the ids of their fields from 1000 on, each for itself.
BY_ID = ({"source-id": 1, "field-id": 1000, "name": "id", "transform": "identity"},)
DATE = {"type": "int", "logicalType": "date"}

_FILE_FIELDS = (
    avro_field("content", 134, "int"),
    avro_field("value_counts", 109, pairs(119, 120, "long")),
    avro_field("null_value_counts", 110, pairs(121, 122, "long")),
    avro_field("lower_bounds", 125, pairs(126, 127, "bytes")),
    avro_field("upper_bounds", 128, pairs(129, 130, "bytes")),
    avro_field("equality_ids", 135, ["null", {"type": "array", "items": "int", "element-id": 136}]),
    avro_field("first_row_id", 142, LONG),
    avro_field("referenced_data_file", 143, ["null", "string"]),
    avro_field("content_offset", 144, LONG),
    avro_field("content_size_in_bytes", 145, LONG),
)
_PARTITIONS = {
    0: [],
    1: [avro_field("part", 1000, ["null", "string"])],
    2: [avro_field("ratio", 1001, ["null", "double"])],
    3: [avro_field("ts_day", 1002, ["null", DATE]), avro_field("id_bucket", 1003, ["null", "int"])],
    4: [avro_field("id", 1000, ["null", "long"])],
}


def _summary(spec_id: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The partition summary of a spec's only field."""
    values = [next(iter(entry["data_file"]["partition"].values())) for entry in entries]
    known = sorted(value for value in values if value is not None and str(value) != "nan")

    def bound(value: Any) -> bytes:
        return str(value).encode() if spec_id == 1 else struct.pack("<q" if spec_id == 4 else "<d", value)

    return {
        "contains_null": None in values,
        "contains_nan": len(known) + values.count(None) < len(values),
        "lower_bound": bound(known[0]) if known else None,
        "upper_bound": bound(known[-1]) if known else None,
    }


def _ids(node: Any) -> Iterator[int]:
    """The ids of columns and of what is inside them."""
    if isinstance(node, dict):
        yield from (node[name] for name in ("id", "element-id", "key-id", "value-id") if name in node)
        node = tuple(node.values())
    if isinstance(node, tuple | list):
        for child in node:
            yield from _ids(child)


def _rows(entries: list[dict[str, Any]], status: int) -> int:
    return sum(entry["data_file"]["record_count"] for entry in entries if entry["status"] == status)


def data(path: str, sequence: int | None = 1, **values: Any) -> dict[str, Any]:
    """A data file's entry."""
    status = values.pop("status", 1)
    numbers = {"sequence_number": sequence, "file_sequence_number": sequence}
    return avro_entry(0, status, **{"file_path": path, "content": 0, **numbers, **values})


def deletion_vector(of: str, sequence: int | None = 2, **values: Any) -> dict[str, Any]:
    """A DV's entry."""
    place = {"referenced_data_file": of, "content_offset": 4, "content_size_in_bytes": 40}
    return data("file:///t/dvs.puffin", sequence, **{"content": 1, "file_format": "puffin", **place, **values})


def position_deletes(path: str, sequence: int = 2, **values: Any) -> dict[str, Any]:
    """A position delete file's entry."""
    return data(path, sequence, **{"content": 1, **values})


def equality_deletes(path: str, sequence: int = 2, ids: tuple[int, ...] = (1,), **values: Any) -> dict[str, Any]:
    """An equality delete file's entry."""
    return data(path, sequence, **{"content": 2, "equality_ids": list(ids), **values})


def long_bounds(lower: int, upper: int, nulls: int | None = 0, field_id: int = 1) -> dict[str, Any]:
    """Stats of a column of longs."""

    def metrics_map(value: Any) -> Any:
        return [{"key": field_id, "value": value}]

    stats = {
        "lower_bounds": metrics_map(lower.to_bytes(8, "little", signed=True)),
        "upper_bounds": metrics_map(upper.to_bytes(8, "little", signed=True)),
        "value_counts": metrics_map(10),
    }
    return stats | ({} if nulls is None else {"null_value_counts": metrics_map(nulls)})


@dataclass
class HandmadeTable:
    """A table of one snapshot. Each manifest is (content 0 or 1, spec id, entries); spec ids as in `_PARTITIONS`.

    summaries: the manifest list has partition summaries, and counts of every status.
    schemas: the columns of each schema; the last is the current one.
    tuples: the partition fields of manifests, by number, that have others than `_PARTITIONS`.
    """

    folder: Path
    version: int = 3
    specs: tuple[tuple[dict[str, Any], ...], ...] = ((), BY_PART, BY_RATIO)
    properties: dict[str, str] = field(default_factory=dict)
    manifests: list[tuple[int, int, list[dict[str, Any]]]] = field(default_factory=list)
    block_bytes: int = 16_000
    summaries: bool = False
    row_ids: bool = True
    schemas: tuple[tuple[dict[str, Any], ...], ...] = (COLUMNS,)
    tuples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, content: int, spec_id: int, *entries: dict[str, Any]) -> HandmadeTable:
        self.manifests.append((content, spec_id, list(entries)))
        return self

    def write(self) -> str:
        """The location of the metadata file, every file written."""
        (self.folder / "metadata").mkdir(parents=True, exist_ok=True)
        rows = [self._manifest(number, *manifest) for number, manifest in enumerate(self.manifests)]
        counts = [avro_field("existing_files_count", 505, COUNT), avro_field("deleted_files_count", 506, COUNT)]
        counts += [avro_field(name, field_id, LONG) for name, field_id in ROW_COUNTS.items()]
        numbers = [avro_field("min_sequence_number", 516, "long"), avro_field("first_row_id", 520, LONG)]
        fields = [*V2, *numbers, *counts]
        schema = {"type": "record", "name": "manifest_file", "fields": fields}
        self._write("snap.avro", avro_file(schema, rows))
        return self._write("v1.metadata.json", json.dumps(self.metadata()).encode())

    def _manifest(self, number: int, content: int, spec_id: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
        empty = {field["name"]: None for field in _FILE_FIELDS}
        for entry in entries:
            entry["data_file"] = empty | entry["data_file"]
        fields = self.tuples.get(number, _PARTITIONS[spec_id])
        schema = entry_schema(data_file(*_FILE_FIELDS, partition=fields), *SEQUENCES)
        bytes_ = avro_file(schema, entries, block_bytes=self.block_bytes)
        return {
            "manifest_path": self._write(f"m{number}.avro", bytes_),
            "manifest_length": len(bytes_),
            "partition_spec_id": spec_id,
            "added_snapshot_id": SNAPSHOT_ID,
            "added_data_files_count": sum(entry["status"] == 1 for entry in entries)
            if self.summaries
            else len(entries),
            "existing_files_count": sum(entry["status"] == 0 for entry in entries) if self.summaries else None,
            "deleted_files_count": sum(entry["status"] == 2 for entry in entries) if self.summaries else None,
            **{name: _rows(entries, place) if self.summaries else None for place, name in enumerate(ROW_COUNTS)},
            "partitions": [_summary(spec_id, entries)] if self.summaries and spec_id else None,
            "content": content,
            "sequence_number": SEQUENCE,
            "min_sequence_number": 0,
            "first_row_id": 0 if self.version > 2 and content == 0 and self.row_ids else None,
        }

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / "metadata" / name
        path.write_bytes(content)
        return f"file://{path}"

    def metadata(self) -> dict[str, Any]:
        return {
            "format-version": self.version,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": f"file://{self.folder}",
            "last-sequence-number": SEQUENCE,
            "last-updated-ms": 1,
            "last-column-id": max(_ids(self.schemas)),
            "next-row-id": 1000,
            "schemas": [
                {"type": "struct", "schema-id": number, "fields": list(fields)}
                for number, fields in enumerate(self.schemas)
            ],
            "current-schema-id": len(self.schemas) - 1,
            "partition-specs": [
                {"spec-id": number, "fields": list(fields)} for number, fields in enumerate(self.specs)
            ],
            "default-spec-id": 0,
            "last-partition-id": 1001,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": self.properties,
            "current-snapshot-id": SNAPSHOT_ID,
            "snapshots": [
                {
                    "snapshot-id": SNAPSHOT_ID,
                    "sequence-number": SEQUENCE,
                    "timestamp-ms": 1,
                    "manifest-list": f"file://{self.folder}/metadata/snap.avro",
                    "summary": {"operation": "append"},
                    "schema-id": len(self.schemas) - 1,
                }
            ],
            "refs": {"main": {"snapshot-id": SNAPSHOT_ID, "type": "branch"}},
        }
