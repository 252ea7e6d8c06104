"""The metadata tables of table metadata, as Arrow. They need no Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.errors import NoSuchSnapshotError
from sparkmeta.spec.metadata import lineage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot

TIMESTAMPTZ = pa.timestamp("us", "UTC")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_SNAPSHOTS = pa.schema(
    [
        _required("committed_at", TIMESTAMPTZ),
        _required("snapshot_id", pa.int64()),
        pa.field("parent_id", pa.int64()),
        pa.field("operation", pa.string()),
        pa.field("manifest_list", pa.string()),
        pa.field("summary", pa.map_(pa.string(), _required("value", pa.string()))),
    ]
)
_HISTORY = pa.schema(
    [
        _required("made_current_at", TIMESTAMPTZ),
        _required("snapshot_id", pa.int64()),
        pa.field("parent_id", pa.int64()),
        _required("is_current_ancestor", pa.bool_()),
    ]
)
_REFS = pa.schema(
    [
        _required("name", pa.string()),
        _required("type", pa.string()),
        _required("snapshot_id", pa.int64()),
        pa.field("max_reference_age_in_ms", pa.int64()),
        pa.field("min_snapshots_to_keep", pa.int32()),
        pa.field("max_snapshot_age_in_ms", pa.int64()),
    ]
)
_METADATA_LOG_ENTRIES = pa.schema(
    [
        _required("timestamp", TIMESTAMPTZ),
        _required("file", pa.string()),
        pa.field("latest_snapshot_id", pa.int64()),
        pa.field("latest_schema_id", pa.int32()),
        pa.field("latest_sequence_number", pa.int64()),
    ]
)


# Converting many more snapshots at once would take a lot of memory.
_SNAPSHOTS_AT_ONCE = 1_000


def snapshots(state: TableState) -> pa.Table:
    """Return a row for each snapshot that has not expired."""
    starts = range(0, len(state.metadata.snapshots), _SNAPSHOTS_AT_ONCE)
    parts = [_snapshots(state.metadata.snapshots[start : start + _SNAPSHOTS_AT_ONCE]) for start in starts]
    return pa.concat_tables([_SNAPSHOTS.empty_table(), *parts])


def _snapshots(batch: Sequence[Snapshot]) -> pa.Table:
    rows = (
        {
            "committed_at": _micros(snapshot.timestamp_ms),
            "snapshot_id": snapshot.snapshot_id,
            "parent_id": snapshot.parent_snapshot_id,
            "operation": snapshot.operation,
            "manifest_list": snapshot.manifests_location,
            "summary": list(snapshot.summary.additional_properties.items()) if snapshot.summary else None,
        }
        for snapshot in batch
    )
    return pa.Table.from_pylist(list(rows), _SNAPSHOTS)


def history(state: TableState) -> pa.Table:
    """Return a row for each change of the current snapshot. parent_id is null for expired snapshots.

    Raises:
        CorruptFileError: a snapshot is its own ancestor.
    """
    ancestors = {snapshot.snapshot_id for snapshot in lineage_of(state.metadata, state.metadata.current_snapshot_id)}
    rows = []
    for entry in state.metadata.snapshot_log:
        snapshot = state.metadata.stored_by_id.get(entry.snapshot_id)
        rows.append(
            {
                "made_current_at": _micros(entry.timestamp_ms),
                "snapshot_id": entry.snapshot_id,
                "parent_id": snapshot.parent_snapshot_id if snapshot else None,
                "is_current_ancestor": entry.snapshot_id in ancestors,
            }
        )
    return pa.Table.from_pylist(list(rows), _HISTORY)


def refs(state: TableState) -> pa.Table:
    """Return a row for each branch or tag. Its retention is null if the table's retention applies."""
    rows = (
        {
            "name": name,
            "type": ref.snapshot_ref_type.upper(),
            "snapshot_id": ref.snapshot_id,
            "max_reference_age_in_ms": ref.max_ref_age_ms,
            "min_snapshots_to_keep": ref.min_snapshots_to_keep,
            "max_snapshot_age_in_ms": ref.max_snapshot_age_ms,
        }
        for name, ref in state.metadata.refs.items()
    )
    return pa.Table.from_pylist(list(rows), _REFS)


def metadata_log_entries(state: TableState, metadata_location: str) -> pa.Table:
    """Return a row for each metadata file, the current one last, with the snapshot that was current at its time."""
    logged = [(entry.timestamp_ms, entry.metadata_file) for entry in state.metadata.metadata_log]
    rows = []
    for timestamp_ms, file in [*logged, (state.metadata.last_updated_ms, metadata_location)]:
        snapshot_id = _snapshot_id_at(state, timestamp_ms)
        snapshot = None if snapshot_id is None else state.metadata.snapshot_by_id(snapshot_id)
        rows.append(
            {
                "timestamp": _micros(timestamp_ms),
                "file": file,
                "latest_snapshot_id": snapshot_id,
                "latest_schema_id": snapshot.schema_id if snapshot else None,
                "latest_sequence_number": (snapshot.sequence_number or 0) if snapshot else None,
            }
        )
    return pa.Table.from_pylist(list(rows), _METADATA_LOG_ENTRIES)


def table_of(name: str, state: TableState, metadata_location: str) -> pa.Table:
    """Return the metadata table of a name."""
    tables = {"snapshots": snapshots, "history": history, "refs": refs}
    return tables[name](state) if name in tables else metadata_log_entries(state, metadata_location)


def _snapshot_id_at(state: TableState, timestamp_ms: int) -> int | None:
    try:
        return state.snapshot_id_at(timestamp_ms)
    except NoSuchSnapshotError:
        return None


def _micros(milliseconds: int) -> int:
    return milliseconds * 1000
