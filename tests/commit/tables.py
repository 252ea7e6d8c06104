"""Tables whose commits count, and add snapshots without files: enough for tests of the swap."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

from sparkmeta.spec.metadata import Snapshot, SnapshotRef, TableMetadata, parse_table_metadata
from tests.spec.table_metadata import VERSIONS, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

# A test of an unknown outcome should not wait as long as a user.
QUICK = {"commit.status-check.min-wait-ms": "1"}


def new_table(
    location: str, properties: Mapping[str, str] = {}, version: int = 2, table_uuid: uuid.UUID | None = None
) -> TableMetadata:
    """Return the first version of a table, with one column and no snapshot."""
    source = VERSIONS[version]()
    known = {key: source[key] for key in ("format-version", "last-updated-ms", "next-row-id") if key in source}
    metadata = {
        "table-uuid": str(table_uuid or uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
            }
        ],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {**QUICK, **properties},
        "snapshots": [],
        "refs": {},
    }
    if version == 1:
        metadata |= {"schema": metadata["schemas"][0], "partition-spec": []}  # type: ignore[index]
        del metadata["last-sequence-number"]
    return parse_table_metadata(encoded(known | metadata), location)


def appended(base: TableMetadata, max_snapshots: int = 30, **properties: str) -> TableMetadata:
    """Return metadata with one more snapshot and changed properties. Only the newest older snapshots stay."""
    snapshot_id = random.SystemRandom().randrange(1 << 62)
    parent = base.current_snapshot()
    sequence_number = base.last_sequence_number + 1
    updated = max(base.last_updated_ms + 1, 1_700_000_000_000)
    location_field = "root-manifest" if base.format_version == 4 else "manifest-list"
    lineage = {"first-row-id": 0, "added-rows": 0} if base.format_version >= 3 else {}
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent.snapshot_id if parent else None,
            "sequence-number": sequence_number if base.format_version > 1 else 0,
            "timestamp-ms": updated,
            location_field: f"{base.location}/metadata/{snapshot_id}",
            "summary": {"operation": "append", **properties},
            "schema-id": 0,
            **lineage,
        }
    )
    changed = {} if base.format_version == 1 else {"last_sequence_number": sequence_number}
    return base.model_copy(
        update={
            "snapshots": [*base.snapshots[-max_snapshots + 1 :], snapshot],
            "current_snapshot_id": snapshot_id,
            "refs": {"main": SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": "branch"})},
            "last_updated_ms": updated,
            "properties": {**base.properties, **properties},
            **changed,
        }
    )


def with_properties(base: TableMetadata, **properties: str) -> TableMetadata:
    """Return metadata with changed properties, and no other change."""
    return base.model_copy(
        update={"properties": {**base.properties, **properties}, "last_updated_ms": base.last_updated_ms + 1}
    )
