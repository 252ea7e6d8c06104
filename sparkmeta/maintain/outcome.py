"""What a plan that rewrites manifests has done, by the summary of the snapshot that it made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkmeta.spec.snapshot import Snapshot

_COUNTS = ("manifests_created", "manifests_replaced", "manifests_kept", "entries_processed")


def committed_counts(before: Snapshot | None, after: Snapshot | None) -> dict[str, Any] | None:
    """The new head of a branch, by its id, and what it did with manifests, for JSON; None where there is none."""
    if after is None or after.summary is None or (before is not None and after.snapshot_id == before.snapshot_id):
        return None
    counts = {name: int(after.summary.additional_properties[name.replace("_", "-")]) for name in _COUNTS}
    return {"snapshot_id": after.snapshot_id, **counts}
