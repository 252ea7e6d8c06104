"""The history of a table's snapshots, along their parents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkmeta.checks import WHOLE
from sparkmeta.errors import CommitConflictError, NoSuchSnapshotError, ValidationError
from sparkmeta.spec.metadata import Snapshot, TableMetadata, ancestors_of, snapshot_of

if TYPE_CHECKING:
    from sparkmeta.state import TableState


def snapshots_since(head: TableState, start: int | None) -> list[Snapshot]:
    """Return the snapshots of the head's history after `start`, newest first.

    Raises:
        CommitConflictError: the history does not go back to it, for example because the branch was rolled back.
    """
    snapshots: list[Snapshot] = []
    if head.snapshot is None:
        return snapshots
    for snapshot in ancestors_of(head.metadata, head.snapshot.snapshot_id):
        if snapshot.snapshot_id == start:
            return snapshots
        snapshots.append(snapshot)
    if snapshots[-1].parent_snapshot_id != start:
        raise CommitConflictError(
            f"{head.metadata.location}: can't tell what was committed since snapshot {start}: the history of "
            f"{snapshots[0].snapshot_id} ends at {snapshots[-1].snapshot_id}"
        )
    return snapshots


def snapshots_between(metadata: TableMetadata, from_exclusive: int | None, to_inclusive: int | None) -> list[Snapshot]:
    """Return the snapshots after one up to another, oldest first.

    Args:
        from_exclusive: None for the whole history. It may have expired if its child has not.
        to_inclusive: None for the current snapshot.

    Raises:
        NoSuchSnapshotError: the table does not have one of the snapshots.
        ValidationError: the first is not an ancestor of the second, the history between them has expired, or an id is
            not a whole number.
    """
    if from_exclusive is not None:
        WHOLE.check("from_snapshot_id_exclusive", from_exclusive)
    if to_inclusive is None:
        last = metadata.current_snapshot()
    else:
        last = snapshot_of(metadata, to_inclusive, "to_snapshot_id_inclusive")
    if last is None:
        if from_exclusive is None:
            return []
        raise NoSuchSnapshotError(f"{metadata.location} has no snapshot {from_exclusive}")
    snapshots: list[Snapshot] = []
    for snapshot in ancestors_of(metadata, last.snapshot_id):
        if snapshot.snapshot_id == from_exclusive:
            return snapshots[::-1]
        snapshots.append(snapshot)
    oldest_parent = snapshots[-1].parent_snapshot_id
    if oldest_parent != from_exclusive:
        raise _not_in_history(metadata, from_exclusive, last.snapshot_id, oldest_parent)
    return snapshots[::-1]


def _not_in_history(metadata: TableMetadata, start: int | None, end: int, lost: int | None) -> Exception:
    if start is not None:
        snapshot_of(metadata, start)
    if lost is None:
        return ValidationError(f"{metadata.location}: snapshot {start} is not an ancestor of snapshot {end}")
    since = "the table was empty" if start is None else f"snapshot {start}"
    return ValidationError(
        f"{metadata.location}: snapshot {lost} has expired: what changed since {since} is no longer known"
    )
