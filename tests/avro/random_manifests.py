"""Manifests of random writer schemas with random records: field orders, unions, encodings and extra fields that no one
writer combines, encoded here since fastavro writes no sized blocks and no maps in several blocks."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.spec.entry import METRICS_MAPS
from tests.avro import avro_files
from tests.avro.test_container import varint

SYNC = bytes(range(16))

# Iceberg type of a partition field -> the Avro types that writers give it.
PARTITION_TYPES: dict[str, list[Any]] = {
    "boolean": ["boolean"],
    "int": ["int"],
    "long": ["long", "int"],
    "float": ["float"],
    "double": ["double", "float"],
    "date": [{"type": "int", "logicalType": "date"}, "int"],
    "time": [{"type": "long", "logicalType": "time-micros"}],
    "timestamp": [{"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}, "long"],
    "timestamptz": [{"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}],
    "timestamp_ns": ["long"],
    "string": ["string"],
    "binary": ["bytes"],
    "fixed[3]": [{"type": "fixed", "name": "fixed_3", "size": 3}, "bytes"],
    "uuid": [{"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}],
    "decimal(4, 2)": [
        {"type": "fixed", "name": "d4", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    ],
}

# Field id of a column with stats -> its Iceberg type, and what a bound of it can be.
STATS_TYPES = {1: "long", 2: "string", 3: "binary", 70: "int", -4: "boolean", 2147483546: "string"}

_SCALARS: dict[int, tuple[str, list[Any]]] = {
    134: ("content", ["int"]),
    140: ("sort_order_id", ["int"]),
    131: ("key_metadata", ["bytes"]),
    132: ("split_offsets", [{"type": "array", "items": "long"}, {"type": "array", "items": "int"}]),
    135: ("equality_ids", [{"type": "array", "items": "int"}]),
    142: ("first_row_id", ["long"]),
    143: ("referenced_data_file", ["string"]),
    144: ("content_offset", ["long"]),
    145: ("content_size_in_bytes", ["long", "int"]),
}
_SIMPLE = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


@dataclass
class Writer:
    """A generator of a random schema and of its records."""

    chance: Random
    names: int = 0
    partition: dict[int, str] = field(default_factory=dict)

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def schema(self) -> dict[str, Any]:
        file = self.shuffled([*self.file_fields(), *self.extras(2000)])
        outer = [
            avro_files.field("status", 0, "int"),
            avro_files.field("snapshot_id", 1, self.optional("long")),
            *self.some([avro_files.field("s", 3, self.optional("long"))]),
            *self.some([avro_files.field("f", 4, self.optional("long"))]),
            *self.extras(3000),
        ]
        record = {"type": "record", "name": "r2", "fields": file}
        outer.append(avro_files.field("data_file", 2, self.chance.choice([record, ["null", record], [record, "null"]])))
        return {"type": "record", "name": "manifest_entry", "fields": self.shuffled(outer)}

    def file_fields(self) -> list[dict[str, Any]]:
        maps = [
            avro_files.field(
                name, map_id, self.maybe_optional(self.map_type("bytes" if value == pa.binary() else "long"))
            )
            for map_id, (name, value) in METRICS_MAPS.items()
        ]
        scalars = [
            avro_files.field(name, field_id, self.maybe_optional(self.chance.choice(types)))
            for field_id, (name, types) in _SCALARS.items()
        ]
        return [
            avro_files.field("file_path", 100, "string"),
            avro_files.field("file_format", 101, "string"),
            avro_files.field("record_count", 103, self.chance.choice(["long", "int"])),
            avro_files.field("file_size_in_bytes", 104, "long"),
            *self.some(scalars),
            *self.some(maps),
            *self.some([avro_files.field("partition", 102, self.maybe_optional(self.tuple_type()))]),
        ]

    def tuple_type(self) -> dict[str, Any]:
        fields = []
        for place, (name, types) in enumerate(self.some(list(PARTITION_TYPES.items()))):
            self.partition[1000 + place] = name
            fields.append(avro_files.field(f"p{place}", 1000 + place, self.maybe_optional(self.chance.choice(types))))
        fields = self.shuffled(fields)
        return {"type": "record", "name": "r102", "fields": fields}

    def map_type(self, value: str) -> dict[str, Any]:
        if value == "long" and self.chance.random() < 0.2:
            value = "int"
        if self.chance.random() < 0.4:
            return {"type": "map", "values": value}
        fields = [avro_files.field("key", 1, "int"), avro_files.field("value", 2, value)]
        pair = {"type": "record", "name": self.name(), "fields": fields}
        return {"type": "array", "logicalType": "map", "items": pair}

    def extras(self, first_id: int) -> list[dict[str, Any]]:
        """Return unknown fields of any type."""
        count = self.chance.randrange(4)
        return [avro_files.field(f"x{number}", first_id + number, self.any_type(3)) for number in range(count)]

    def any_type(self, depth: int) -> Any:
        kind = self.chance.choice([*_SIMPLE, *(["record", "array", "map", "union", "fixed", "enum"] * (depth > 0))])
        if kind == "record":
            fields = [avro_files.field(f"f{i}", i, self.any_type(depth - 1)) for i in range(self.chance.randrange(3))]
            return {"type": kind, "name": self.name(), "fields": fields}
        if kind == "array":
            items = self.any_type(depth - 1)
            return {"type": kind, "items": items if takes_bytes(items) else "boolean"}
        if kind == "map":
            return {"type": kind, "values": self.any_type(depth - 1)}
        if kind == "union":
            return self.chance.sample(["null", "int", "string", "double", {"type": "array", "items": "bytes"}], 3)
        if kind == "fixed":
            return {"type": kind, "name": self.name(), "size": self.chance.randrange(1, 20)}
        if kind == "enum":
            return {"type": kind, "name": self.name(), "symbols": ["A", "B", "C"]}
        return kind

    def optional(self, kind: Any) -> list[Any]:
        return self.chance.choice([["null", kind], [kind, "null"]])

    def maybe_optional(self, kind: Any) -> Any:
        return self.chance.choice([kind, ["null", kind], [kind, "null"]])

    def some(self, items: list[Any]) -> list[Any]:
        return [item for item in items if self.chance.random() < 0.7]

    def shuffled(self, items: list[Any]) -> list[Any]:
        return self.chance.sample(items, len(items)) if self.chance.random() < 0.5 else items

    # Records

    def record(self, kind: Any, name: str = "", key: int | None = None) -> bytes:
        """Return an encoded random value of a type.

        Args:
            kind: the Avro type.
            name: the name of the value's field.
            key: the key of the value in a metrics map.
        """
        if isinstance(kind, list):
            branch = self.chance.randrange(len(kind))
            if name == "data_file":
                branch = kind.index(next(branch_type for branch_type in kind if branch_type != "null"))
            return varint(branch) + self.record(kind[branch], name)
        if isinstance(kind, dict):
            return self.structured(kind, name)
        return self.simple(kind, name, key)

    def structured(self, kind: dict[str, Any], name: str) -> bytes:
        if kind["type"] == "record":
            return b"".join(self.record(field["type"], field["name"]) for field in kind["fields"])
        if kind["type"] == "array":
            return self.blocks([self.item(kind["items"], name, key) for key in self.keys(name)])
        if kind["type"] == "map":
            keys = self.keys(name)
            return self.blocks([text(str(key).encode()) + self.record(kind["values"], name, key) for key in keys])
        if kind["type"] == "fixed":
            size = kind["size"]
            return self.number_bytes(size) if "decimal" in kind.values() else self.chance.randbytes(size)
        if kind["type"] == "enum":
            return varint(self.chance.randrange(3))
        if kind.get("logicalType") == "decimal":
            return text(self.number_bytes(self.chance.choice([1, 2, 5])))
        return self.simple(kind["type"], name, None)

    def item(self, items: Any, name: str, key: int) -> bytes:
        if isinstance(items, dict) and [field["name"] for field in items.get("fields", ())] == ["key", "value"]:
            return varint(key) + self.record(items["fields"][1]["type"], name, key)
        return self.record(items)

    def keys(self, name: str) -> list[int]:
        """Return distinct keys: fastavro and Arrow disagree about a map with a repeated key."""
        known = [*STATS_TYPES, 4, 5, 63, 64, -1, 2**31 - 1, -(2**31)]
        return self.chance.sample(known, self.chance.randrange(len(known)))

    def number_bytes(self, size: int) -> bytes:
        edge = 9999 if size > 1 else 99
        return self.chance.randint(-edge, edge).to_bytes(size, "big", signed=True)

    def blocks(self, items: list[bytes]) -> bytes:
        """Return the items in one or more Avro blocks. Some blocks state their size in bytes."""
        encoded = b""
        while items:
            count = self.chance.randrange(1, len(items) + 1) if self.chance.random() < 0.3 else len(items)
            body = b"".join(items[:count])
            sized = self.chance.random() < 0.3
            encoded += (varint(-count) + varint(len(body)) if sized else varint(count)) + body
            items = items[count:]
        return encoded + b"\x00"

    def simple(self, kind: str, name: str, key: int | None) -> bytes:
        if kind == "null":
            return b""
        if kind == "boolean":
            return bytes([self.chance.randrange(2)])
        if kind in {"float", "double"}:
            value = self.chance.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), self.chance.uniform(-9, 9)])
            return struct.pack("<f" if kind == "float" else "<d", value)
        if kind in {"int", "long"}:
            return varint(self.number(kind, name))
        return text(self.bytes(kind, name, key))

    def number(self, kind: str, name: str) -> int:
        if name in {"status", "content"}:
            return self.chance.randrange(3)
        edge = 2**31 if kind == "int" else 2**63
        return self.chance.choice([0, -1, 63, 64, -65, 8191, 8192, edge - 1, -edge, self.chance.randrange(-edge, edge)])

    def bytes(self, kind: str, name: str, key: int | None) -> bytes:
        if name == "file_format":
            return self.chance.choice([b"PARQUET", b"avro", b"Orc", b"puffin"])
        if kind == "bytes" and key in STATS_TYPES:
            size = {"long": 8, "int": 4, "boolean": 1}.get(STATS_TYPES[key])
            if size:
                return self.chance.randbytes(size)
        if kind == "string" or STATS_TYPES.get(key or 0) == "string":
            return "".join(self.chance.choices("aé%/=\u20ac\U0001f600", k=self.chance.choice([0, 3, 40]))).encode()
        return self.chance.randbytes(self.chance.choice([0, 1, 9, 63, 64, 100]))

    def projection(self) -> EntryProjection:
        columns = self.some([*FILE_COLUMNS, *(name for name, _ in METRICS_MAPS.values())])
        stats = dict(self.some(list(STATS_TYPES.items()))) if self.chance.random() < 0.6 else {}
        return EntryProjection.of(columns, dict(self.some(list(self.partition.items()))), stats)


def text(value: bytes) -> bytes:
    return varint(len(value)) + value


def takes_bytes(kind: Any) -> bool:
    if isinstance(kind, dict) and kind["type"] == "record":
        return any(takes_bytes(field["type"]) for field in kind["fields"])
    return kind != "null"


def container(schema: dict[str, Any], blocks: list[tuple[int, bytes]]) -> bytes:
    """An uncompressed file of (number of records, bytes) blocks."""
    head = b"Obj\x01" + varint(1) + text(b"avro.schema") + text(json.dumps(schema).encode()) + b"\x00" + SYNC
    return head + b"".join(varint(count) + varint(len(body)) + body + SYNC for count, body in blocks)


@dataclass(frozen=True)
class RandomManifest:
    """A manifest's schema and its blocks, (number of records, bytes), and a projection to read it with."""

    schema: dict[str, Any]
    blocks: list[tuple[int, bytes]]
    projection: EntryProjection

    @property
    def data(self) -> bytes:
        return container(self.schema, self.blocks)


def random_manifest(chance: Random, most_blocks: int = 3, most_records: int = 5) -> RandomManifest:
    writer = Writer(chance)
    schema = writer.schema()
    counts = [chance.randrange(most_records + 1) for _ in range(chance.randrange(most_blocks + 1))]
    blocks = [(count, b"".join(writer.record(schema) for _ in range(count))) for count in counts]
    return RandomManifest(schema, blocks, writer.projection())
