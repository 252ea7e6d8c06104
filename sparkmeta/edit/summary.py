"""Build the summary of a commit's snapshot from the files that it adds and removes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.spec.summary import SnapshotSummaryBuilder, UpdateMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.edit.tally import Tally
    from sparkmeta.spec.snapshot import Snapshot, Summary

_REPLACE_PARTITIONS = {"replace-partitions": "true"}


@dataclass(frozen=True)
class ManifestCounts:
    """The numbers of leaves that a commit created, kept and replaced.

    Attributes:
        entries: entries in leaves that a compaction wrote; None without a compaction.
    """

    created: int = 0
    kept: int = 0
    replaced: int = 0
    entries: int | None = None

    def plus(self, other: ManifestCounts) -> ManifestCounts:
        """Return the sum of both."""
        known = [count for count in (self.entries, other.entries) if count is not None]
        counts = (self.created + other.created, self.kept + other.kept, self.replaced + other.replaced)
        return ManifestCounts(*counts, sum(known) if known else None)


def snapshot_summary(
    operation: str,
    added: Tally,
    removed: Tally,
    parent: Snapshot | None,
    properties: Mapping[str, str],
    manifests: ManifestCounts,
    *,
    replaces_partitions: bool = False,
) -> Summary:
    """Return the summary (semantics 10.1).

    Raises:
        ValidationError: a property has the name of a computed one, or a rewrite adds more rows than it removes.
    """
    metrics = UpdateMetrics()
    for kind, count in added.counts.items():
        metrics.add_files(kind, count.files, count.records, count.size)
    for kind, count in removed.counts.items():
        metrics.remove_files(kind, count.files, count.records, count.size)
    changed = added.plus(removed).partitions
    builder = SnapshotSummaryBuilder(
        metrics,
        changed_partition_count=None if changed is None else len(changed),
        manifests_created=manifests.created,
        manifests_kept=manifests.kept,
        manifests_replaced=manifests.replaced,
        entries_processed=manifests.entries,
        properties={**properties, **(_REPLACE_PARTITIONS if replaces_partitions else {})},
    )
    return builder.build(operation, parent)
