"""Table metadata JSON of every format version, made for the tests: each has something unknown in every place."""

from __future__ import annotations

import copy
import json
from typing import Any

LOCATION = "s3://bucket/db/events/metadata/00003-aaaa.metadata.json"

FIELDS = [
    {"id": 1, "name": "id", "required": True, "type": "long", "doc": "key"},
    {"id": 2, "name": "at", "required": False, "type": "timestamptz"},
    {
        "id": 3,
        "name": "where",
        "required": False,
        "type": {
            "type": "struct",
            "fields": [
                {"id": 4, "name": "lat", "required": False, "type": "double", "x-field": [1]},
                {"id": 5, "name": "price", "required": False, "type": "decimal(9,2)"},
            ],
        },
        "x-field": {"a": None},
    },
    {
        "id": 6,
        "name": "tags",
        "required": False,
        "type": {"type": "list", "element-id": 7, "element": "string", "element-required": False, "x-list": 1},
    },
    {
        "id": 8,
        "name": "counts",
        "required": False,
        "type": {
            "type": "map",
            "key-id": 9,
            "key": "string",
            "value-id": 10,
            "value": "fixed[16]",
            "value-required": True,
        },
    },
]
V3_FIELDS = [
    {"id": 20, "name": "v", "required": False, "type": "variant"},
    {"id": 21, "name": "u", "required": False, "type": "unknown"},
    {"id": 22, "name": "g", "required": False, "type": "geometry(srid:4326)"},
    {"id": 23, "name": "gg", "required": False, "type": "geography(srid:4326, karney)"},
    {"id": 24, "name": "n", "required": False, "type": "timestamptz_ns"},
    {
        "id": 25,
        "name": "d",
        "required": True,
        "type": "timestamp_ns",
        "initial-default": "2024-02-29T10:00:00.123456789",
        "write-default": "2024-02-29T10:00:00.000000001",
    },
    {"id": 26, "name": "e", "required": False, "type": "decimal(9, 2)", "initial-default": "14.20"},
    {"id": 27, "name": "f", "required": False, "type": "date", "write-default": "1969-12-31"},
    {
        "id": 28,
        "name": "h",
        "required": False,
        "type": {"type": "struct", "fields": []},
        "initial-default": {},
    },
]


def v1() -> dict[str, Any]:
    """Return metadata of the earliest writers: one schema, one spec, no ids of lists, no refs, manifests inline."""
    return {
        "format-version": 1,
        "location": "s3://bucket/db/events",
        "last-updated-ms": 1602638573874,
        "last-column-id": 10,
        "schema": {"type": "struct", "fields": copy.deepcopy(FIELDS), "x-schema": 1},
        "partition-spec": [
            {"name": "id", "transform": "identity", "source-id": 1, "x-partition": 1},
            {"name": "at_day", "transform": "day", "source-id": 2},
        ],
        "properties": {"owner": "me", "ü": "é"},
        "current-snapshot-id": 7,
        "snapshots": [
            {
                "snapshot-id": 6,
                "timestamp-ms": 1515100955770,
                "manifests": ["s3://bucket/m1.avro", "s3://bucket/m2.avro"],
            },
            {"snapshot-id": 7, "timestamp-ms": 1555100955770, "manifest-list": "s3://bucket/s.avro", "summary": {}},
        ],
        "x-table": {"nested": [1, {"a": None}]},
    }


def v2() -> dict[str, Any]:
    return {
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "s3://bucket/db/events",
        "last-sequence-number": 34,
        "last-updated-ms": 1602638573590,
        "last-column-id": 30,
        "current-schema-id": 1,
        "schemas": [
            {"type": "struct", "schema-id": 0, "fields": copy.deepcopy(FIELDS[:1])},
            {
                "type": "struct",
                "schema-id": 1,
                "identifier-field-ids": [1],
                "fields": copy.deepcopy(FIELDS),
                "x-schema": True,
            },
        ],
        "default-spec-id": 1,
        "partition-specs": [
            {"spec-id": 0, "fields": []},
            {
                "spec-id": 1,
                "fields": [
                    {"name": "b", "transform": "bucket[16]", "source-id": 1, "field-id": 1000, "x-partition": 1},
                    {"name": "z", "transform": "zorder(3)", "source-id": 1, "field-id": 1001},
                ],
                "x-spec": "kept",
            },
        ],
        "last-partition-id": 1001,
        "default-sort-order-id": 3,
        "sort-orders": [
            {
                "order-id": 3,
                "fields": [
                    {
                        "transform": "identity",
                        "source-id": 1,
                        "direction": "asc",
                        "null-order": "nulls-first",
                        "x-sort": 1,
                    }
                ],
                "x-order": 1,
            }
        ],
        "properties": {"read.split.target.size": "134217728"},
        "current-snapshot-id": 3055729675574597004,
        "snapshots": [
            {
                "snapshot-id": 3051729675574597004,
                "timestamp-ms": 1515100955770,
                "sequence-number": 0,
                "summary": {"added-records": "1", "self": "x"},
                "manifest-list": "s3://a/b/1.avro",
            },
            {
                "snapshot-id": 3055729675574597004,
                "parent-snapshot-id": 3051729675574597004,
                "timestamp-ms": 1555100955770,
                "sequence-number": 1,
                "summary": {"operation": "vacuum", "x-summary": "1"},
                "manifest-list": "s3://a/b/2.avro",
                "schema-id": 1,
                "x-snapshot": [1],
            },
        ],
        "snapshot-log": [
            {"snapshot-id": 3051729675574597004, "timestamp-ms": 1515100955770, "x-log": 1},
            {"snapshot-id": 3055729675574597004, "timestamp-ms": 1555100955770},
        ],
        "metadata-log": [{"metadata-file": "s3://a/v1.json", "timestamp-ms": 1515100, "x-log": 1}],
        "refs": {
            "main": {"snapshot-id": 3055729675574597004, "type": "branch", "x-ref": 1},
            "audit": {"snapshot-id": 3051729675574597004, "type": "tag", "max-ref-age-ms": 10},
        },
        "statistics": [
            {
                "snapshot-id": 3055729675574597004,
                "statistics-path": "s3://a/b/stats.puffin",
                "file-size-in-bytes": 413,
                "file-footer-size-in-bytes": 42,
                "x-statistics": 1,
                "blob-metadata": [
                    {"type": "of-tomorrow", "snapshot-id": 1, "sequence-number": 1, "fields": [1], "x-blob": 1}
                ],
            }
        ],
        "partition-statistics": [
            {
                "snapshot-id": 3055729675574597004,
                "statistics-path": "s3://a/b/partition-stats.parquet",
                "file-size-in-bytes": 43,
                "x-statistics": 1,
            }
        ],
        "x-table": {"nested": [1, {"a": None}]},
    }


def v3() -> dict[str, Any]:
    metadata = v2() | {
        "format-version": 3,
        "next-row-id": 1375,
        "encryption-keys": [{"key-id": "k1", "encrypted-key-metadata": "AAAA", "x-key": 1}],
    }
    metadata["schemas"][1]["fields"] += copy.deepcopy(V3_FIELDS)
    metadata["partition-specs"][1]["fields"] += [
        {"name": "m", "transform": "bucket[4]", "source-ids": [1, 2], "field-id": 1002}
    ]
    metadata["sort-orders"][0]["fields"] += [
        {"transform": "bucket[4]", "source-ids": [1, 2], "direction": "desc", "null-order": "nulls-last"}
    ]
    metadata["snapshots"][1] |= {"first-row-id": 1000, "added-rows": 375, "key-id": "k1"}
    return metadata


def v4() -> dict[str, Any]:
    metadata = v3() | {"format-version": 4}
    del metadata["location"]
    metadata["snapshots"][1]["root-manifest"] = "s3://a/b/root.parquet"
    del metadata["snapshots"][1]["manifest-list"]
    return metadata


VERSIONS = {1: v1, 2: v2, 3: v3, 4: v4}


def encoded(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata).encode()


def without(document: dict[str, Any], *path: str | int) -> dict[str, Any]:
    """Return the document without the value at a path."""
    *above, last = path
    place: Any = document
    for step in above:
        place = place[step]
    del place[last]
    return document


def changed(document: dict[str, Any], value: Any, *path: str | int) -> dict[str, Any]:
    """Return the document with another value at a path."""
    *above, last = path
    place: Any = document
    for step in above:
        place = place[step]
    place[last] = value
    return document
