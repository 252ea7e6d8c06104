"""A new snapshot of a branch: its root, made of the branch's root and a change, and the metadata that names it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from sparkmeta.commit.flush import spill_vectors
from sparkmeta.commit.options import TreeOptions
from sparkmeta.commit.tree import LoadBlob, Stamp, TreeChange, next_root
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.layout import tree_schema
from sparkmeta.manifests.root import write_root
from sparkmeta.spec.snapshot import Snapshot
from sparkmeta.spec.updates import update_table_metadata
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.commit.base_root import BaseRoot
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState


@dataclass
class SnapshotNames:
    """The id of a snapshot that is being made, which all attempts share, and the names of an attempt's files."""

    snapshot_id: int = 0
    attempts: int = 0

    def next_attempt(self, metadata: TableMetadata) -> None:
        """A new attempt on these metadata; with another id where they have a snapshot of this one."""
        self.attempts += 1
        if not self.snapshot_id or metadata.snapshot_by_id(self.snapshot_id) is not None:
            self.snapshot_id = _new_snapshot_id(metadata)

    def file(self, what: str) -> str:
        """A name for this attempt's files; unique, since no two attempts may share one."""
        return f"{self.snapshot_id}-{self.attempts}-{what}-{uuid.uuid4()}"


@dataclass(frozen=True)
class NewSnapshot:
    """Where a snapshot is made: on `base`, the root of `state`, as the head of a branch."""

    state: TableState
    base: BaseRoot
    branch: str
    names: SnapshotNames

    def commit(self, change: TreeChange, summary: Callable[[], Summary]) -> TableMetadata:
        """Writes the root that the change makes; the table's metadata with the snapshot of it."""
        state, base, metadata = self.state, self.base, self.state.metadata
        options = TreeOptions.of(metadata.properties)
        first_row_id = next_row_id(metadata)
        stamp = Stamp(self.names.snapshot_id, metadata.last_sequence_number + 1, first_row_id + base.assigned_row_ids)
        new = next_root(base.root, change, stamp, tree_schema(state.stats_types), blob_loader(state))
        table = spill_vectors(new.table, state, options, self.names.file("vectors"))
        location = join(join(metadata.location, "metadata"), f"{self.names.file('root')}.parquet")
        state.files.write_new(location, write_root(table, base.properties))
        fields = {
            "snapshot-id": stamp.snapshot_id,
            "sequence-number": stamp.sequence_number,
            "root-manifest": location,
            "summary": summary(),
            "first-row-id": first_row_id,
            "added-rows": base.assigned_row_ids + new.assigned_row_ids,
        }
        return with_snapshot(state, self.branch, fields)


def with_snapshot(state: TableState, branch: str, fields: dict[str, Any]) -> TableMetadata:
    """The table's metadata with a new snapshot as the head of a branch, whose head so far is that of the state.

    fields: of the snapshot, as in JSON, without its parent, time and schema.
    """
    metadata, parent = state.metadata, state.snapshot
    own: dict[str, Any] = {
        "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
        "schema-id": metadata.current_schema_id,
    }
    if parent is not None:
        own["parent-snapshot-id"] = parent.snapshot_id
    snapshot = Snapshot.model_validate(fields | own)
    set_ref = branch_update(metadata, branch, snapshot.snapshot_id)
    return update_table_metadata(metadata, (AddSnapshotUpdate(snapshot=snapshot), set_ref))


def branch_update(metadata: TableMetadata, branch: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """What makes a snapshot the head of a branch, which keeps its retention; a new branch where there is none."""
    ref = metadata.refs.get(branch)
    retention = {} if ref is None else ref.model_dump(exclude={"snapshot_id", "snapshot_ref_type"}, exclude_none=True)
    return SetSnapshotRefUpdate(**{**retention, "ref_name": branch, "type": "branch", "snapshot_id": snapshot_id})


def branch_head(state: TableState, branch: str) -> TableState:
    """The state at a branch's head. Raises ValidationError for a branch that is not there, but main."""
    head = state.at(state.metadata.snapshot_by_name(branch))
    if head.snapshot is None and branch != "main" and state.metadata.current_snapshot() is not None:
        raise ValidationError(f"{state.metadata.location} has no branch {branch!r}")
    return head


def with_root(head: TableState, base: BaseRoot) -> TableState:
    """The state with the root that a commit edits as its own."""
    return head if base.root is None else replace(head, root=base.root)


def blob_loader(state: TableState) -> LoadBlob:
    """What reads the blobs of deletion vectors of manifests."""

    def load(location: str, offset: int, size: int) -> bytes:
        return state.files.read_range(location, offset, size)

    return load


def _new_snapshot_id(metadata: TableMetadata) -> int:
    """A random positive 63-bit id that no snapshot has (semantics 3.3-1)."""
    while True:
        bits = uuid.uuid4().int
        found = ((bits >> 64) ^ bits) & ((1 << 63) - 1)
        if found and metadata.snapshot_by_id(found) is None:
            return found


def next_row_id(metadata: TableMetadata) -> int:
    """The first row id that no row of the table has yet."""
    return int(getattr(metadata, "next_row_id", None) or 0)
