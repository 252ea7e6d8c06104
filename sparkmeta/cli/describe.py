"""Describe a table by its metadata file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sparkmeta.cli.output import timestamp
from sparkmeta.inspect.units import byte_size
from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.table import Table

_TOTALS = {
    "records": "total-records",
    "data_files": "total-data-files",
    "data_file_bytes": "total-files-size",
    "delete_files": "total-delete-files",
    "position_deletes": "total-position-deletes",
    "equality_deletes": "total-equality-deletes",
}
_REFS_SHOWN = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def description(table: Table) -> dict[str, Any]:
    """Return the description of a table for `--output json`.

    Totals are from the summary of the current snapshot, and None if it lacks them.
    """
    metadata = table.metadata
    return {
        "name": table.full_name,
        "location": table.location(),
        "format_version": table.format_version,
        "table_uuid": str(metadata.table_uuid),
        "metadata_location": table.metadata_location,
        "last_updated_at": time_text(metadata.last_updated_ms),
        "schema": columns(table.schema()),
        "partition_spec": [str(part) for part in _partition_fields(table)],
        "sort_order": [str(field) for field in table.sort_order().fields],
        "current_snapshot": _snapshot(table.current_snapshot()),
        "totals": _totals(table.current_snapshot()),
        "snapshots": len(table.snapshots()),
        "refs": {
            name: {"type": str(ref.snapshot_ref_type), "snapshot_id": ref.snapshot_id}
            for name, ref in table.refs().items()
        },
        "properties": dict(table.properties),
    }


def facts(table: Table) -> dict[str, object]:
    """Return the description for text output: a line or a list of lines by label."""
    known = description(table)
    return {
        "location": known["location"],
        "metadata file": known["metadata_location"],
        "format version": known["format_version"],
        "uuid": known["table_uuid"],
        "last updated": known["last_updated_at"],
        "current snapshot": _snapshot_line(known["current_snapshot"]),
        "holds": _totals_line(known["totals"]),
        "snapshots": known["snapshots"],
        "refs": _limited([f"{name} ({ref['type']}) -> {ref['snapshot_id']}" for name, ref in known["refs"].items()]),
        "partitioned by": known["partition_spec"] or "nothing",
        "sorted by": known["sort_order"] or "nothing",
        "columns": [column_line(column) for column in known["schema"]],
        "properties": property_lines(known["properties"]),
    }


def columns(schema: Schema) -> list[dict[str, Any]]:
    """Return the columns of a schema for `--output json`."""
    return [
        {"id": field.field_id, "name": field.name, "type": str(field.field_type), "required": field.required}
        for field in schema.fields
    ]


def column_line(column: Mapping[str, Any]) -> str:
    """Return the line of a column for text output."""
    return f"{column['id']:>3}  {column['name']}: {column['type']}{' required' if column['required'] else ''}"


def property_lines(properties: Mapping[str, str]) -> list[str] | str:
    """Return the lines of properties for text output."""
    return [f"{name} = {value}" for name, value in sorted(properties.items())] or "none"


def time_text(milliseconds: int) -> str:
    """Return a time in milliseconds since 1970 as text."""
    try:
        return timestamp(_EPOCH + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return f"{milliseconds} ms after 1970"


def _partition_fields(table: Table) -> list[str]:
    schema = table.schema()
    return [
        f"{field.name} = {field.transform}({schema.find_column_name(field.source_id) or field.source_id})"
        for field in table.spec().fields
    ]


def _snapshot(snapshot: Snapshot | None) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": time_text(snapshot.timestamp_ms),
        "operation": snapshot.operation,
    }


def _totals(snapshot: Snapshot | None) -> dict[str, int | None]:
    return {name: summary_number(snapshot, key) for name, key in _TOTALS.items()}


def _snapshot_line(snapshot: Mapping[str, Any] | None) -> str:
    if snapshot is None:
        return "none: the table is empty"
    return f"{snapshot['snapshot_id']} ({snapshot['operation'] or 'unknown operation'} at {snapshot['committed_at']})"


def _totals_line(totals: Mapping[str, int | None]) -> str:
    shown = {name: "an unknown number of" if count is None else f"{count:,}" for name, count in totals.items()}
    data = totals["data_file_bytes"]
    weight = "" if data is None else f" ({byte_size(data)})"
    deletes = f"{shown['delete_files']} delete files" if totals["delete_files"] != 0 else "no delete files"
    return f"{shown['records']} records in {shown['data_files']} data files{weight}; {deletes}"


def _limited(lines: list[str]) -> list[str]:
    more = len(lines) - _REFS_SHOWN
    return lines if more <= 0 else [*lines[:_REFS_SHOWN], f"... {more:,} more"]
