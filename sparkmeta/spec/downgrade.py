"""Turn the metadata of a table with metadata trees into metadata of format version 3 with manifest lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import ValidationError
from sparkmeta.spec.expiry import Expired, without_expired
from sparkmeta.spec.metadata_model import TableMetadataV4
from sparkmeta.spec.snapshot import Snapshot
from sparkmeta.spec.upgrade import undo_upgrade

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata

LIST_VERSION = 3
"""The newest format version without metadata trees."""

TREE_PROPERTIES = "write.tree."
"""The beginning of the names of table properties that only metadata trees have."""

_WITHOUT_REMOVALS = ("append", "replace")
# Beginnings of the names in a summary that count changes.
_CHANGES = ("added-", "changed-", "deleted-", "removed-", "manifests-", "entries-", "replace-partitions")


@dataclass(frozen=True)
class TreeSnapshots:
    """The snapshots with a root, in the order of their sequence numbers.

    Attributes:
        heads: those that branches and tags refer to, which get manifest lists.
        others: those that leave the table.
    """

    heads: tuple[Snapshot, ...]
    others: tuple[Snapshot, ...]


def tree_snapshots(metadata: TableMetadata) -> TreeSnapshots:
    """Return the snapshots of a table that have a root."""
    referenced = {ref.snapshot_id for ref in metadata.refs.values()}
    with_roots = sorted(
        (snapshot for snapshot in metadata.snapshots if snapshot.has_root),
        key=lambda snapshot: snapshot.sequence_number or 0,
    )
    return TreeSnapshots(
        tuple(snapshot for snapshot in with_roots if snapshot.snapshot_id in referenced),
        tuple(snapshot for snapshot in with_roots if snapshot.snapshot_id not in referenced),
    )


def tree_metadata(metadata: TableMetadata) -> TableMetadataV4:
    """Return the metadata of a table with a tree.

    Raises:
        ValidationError: the table has none.
    """
    if not isinstance(metadata, TableMetadataV4) or metadata.layout_revision is None:
        raise ValidationError(
            f"{metadata.location}: the table has no metadata tree, but manifest lists of format version "
            f"{metadata.format_version}: there is nothing to downgrade"
        )
    return metadata


def keeps_changes(snapshot: Snapshot) -> bool:
    """Return whether a manifest list of live files tells all changes of a snapshot: it removed no file."""
    return snapshot.operation in _WITHOUT_REMOVALS


def downgraded_metadata(
    metadata: TableMetadataV4, lists: Mapping[int, str], next_row_id: int, now_ms: int
) -> TableMetadata:
    """Return the metadata in format version 3.

    Heads keep their ids, times and statistics. A head that removed files becomes a `replace` without a parent, because
    its manifest list does not name them: scans of changes must not miss them silently.

    Args:
        metadata: the metadata of a tree.
        lists: snapshot id -> manifest list of each of `TreeSnapshots.heads`.
        next_row_id: the table's next row id.
        now_ms: the time of the change, in milliseconds since 1970.
    """
    gone = tree_snapshots(metadata).others
    remaining = without_expired(metadata, Expired(gone, ()), None, now_ms)
    snapshots = [
        _with_list(snapshot, lists[snapshot.snapshot_id]) if snapshot.has_root else snapshot
        for snapshot in remaining.snapshots
    ]
    properties = {key: text for key, text in metadata.properties.items() if not key.startswith(TREE_PROPERTIES)}
    changes = {"snapshots": snapshots, "properties": properties, "next_row_id": next_row_id}
    return undo_upgrade(tree_metadata(remaining.model_copy(update=changes)), LIST_VERSION)


def _with_list(snapshot: Snapshot, location: str) -> Snapshot:
    document: dict[str, Any] = snapshot.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    document.pop("root-manifest", None)
    document["manifest-list"] = location
    if not keeps_changes(snapshot):
        document.pop("parent-snapshot-id", None)
        summary = document.get("summary", {})
        document["summary"] = {key: text for key, text in summary.items() if not key.startswith(_CHANGES)}
        document["summary"]["operation"] = "replace"
    return Snapshot.model_validate(document)
