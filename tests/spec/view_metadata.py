"""The examples of the view spec: of its first draft and of its current text."""

from __future__ import annotations

from typing import Any

LOCATION = "file:///warehouse/db/v/metadata/v1.metadata.json"


def _draft_version(version_id: int, operation: str, engine: str, timestamp_ms: int, sql: str) -> dict[str, Any]:
    return {
        "version-id": version_id,
        "parent-version-id": version_id - 1 or -1,
        "timestamp-ms": timestamp_ms,
        "summary": {"operation": operation, "engineVersion": engine},
        "representations": [
            {
                "type": "sql",
                "sql": sql,
                "dialect": engine.partition("-")[0],
                "schema-id": version_id,
                "default-catalog": "iceberg",
                "default-namespace": ["anorwood"],
            }
        ],
    }


def _field(field_id: int, name: str, kind: str, doc: str | None = "") -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": False, "type": kind} | ({} if doc is None else {"doc": doc})


def draft_example(versions: int) -> dict[str, Any]:
    """Return the example of the first draft after its third or fourth step, with one version or two."""
    sql = ("SELECT *\nFROM\n  base_tab\n", 'SELECT "count"(*) my_cnt\nFROM\n  base_tab\n')
    times = (1573518431292, 1573518440265)
    known = [
        _draft_version(1, "create", "presto-350", times[0], sql[0]),
        _draft_version(2, "replace", "spark-2.4.4", times[1], sql[1]),
    ]
    known[0] |= {"properties": {}} if versions == 2 else {}
    fields = [[_field(0, "c1", "int"), _field(1, "c2", "string")], [_field(0, "my_cnt", "long")]]
    comment = ("View captures all the data from the table", "View captures count of the data from the table")
    return {
        "format-version": 1,
        "location": "s3n://my_company/my/warehouse/anorwood.db/common_view",
        "current-version-id": versions,
        "properties": {"comment": comment[versions - 1]},
        "versions": known[:versions],
        "version-log": [{"timestamp-ms": times[n], "version-id": n + 1} for n in range(versions)],
        "schemas": [{"schema-id": n + 1, "type": "struct", "fields": fields[n]} for n in range(versions)],
        "current-schema-id": versions,
    }


def _version(version_id: int, timestamp_ms: int, sql: str) -> dict[str, Any]:
    return {
        "version-id": version_id,
        "timestamp-ms": timestamp_ms,
        "schema-id": 1,
        "default-catalog": "prod",
        "default-namespace": ["default"],
        "summary": {"engine-name": "Spark", "engineVersion": "3.3.2"},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
    }


def example(versions: int) -> dict[str, Any]:
    """Return the example of the current spec, with one version or two."""
    known = [
        _version(1, 1573518431292, "SELECT\n    COUNT(1), CAST(event_ts AS DATE)\nFROM events\nGROUP BY 2"),
        _version(
            2, 1573518981593, "SELECT\n    COUNT(1), CAST(event_ts AS DATE)\nFROM prod.default.events\nGROUP BY 2"
        ),
    ]
    fields = [_field(1, "event_count", "int", "Count of events"), _field(2, "event_date", "date", None)]
    return {
        "view-uuid": "fa6506c3-7681-40c8-86dc-e36561f83385",
        "format-version": 1,
        "location": "s3://bucket/warehouse/default.db/event_agg",
        "current-version-id": versions,
        "properties": {"comment": "Daily event counts"},
        "versions": known[:versions],
        "schemas": [{"schema-id": 1, "type": "struct", "fields": fields}],
        "version-log": [
            {"timestamp-ms": version["timestamp-ms"], "version-id": version["version-id"]}
            for version in known[:versions]
        ],
    }
