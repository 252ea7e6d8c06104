"""Build snapshot summaries: the files, rows and bytes that a commit adds and removes (semantics 10.1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.table.snapshots import Operation

from sparkmeta.checks import string_map
from sparkmeta.errors import ValidationError
from sparkmeta.spec.entry import FileKind
from sparkmeta.spec.snapshot import Summary

if TYPE_CHECKING:
    from sparkmeta.spec.snapshot import Snapshot

_PARTITION_PREFIX = "partitions."

_CHANGED_PARTITIONS = "changed-partition-count"
_ENTRIES_PROCESSED = "entries-processed"
# key of the total, key of what is added to it, key of what is subtracted from it
_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)
_LONG = re.compile(r"[+-]?[0-9]{1,19}")
_LONG_MAX = (1 << 63) - 1


# The keys that count files and rows of a kind. Delete files of all kinds are also counted together.
_ADDED = {
    FileKind.DATA: ("added-data-files", "added-records"),
    FileKind.POSITION_DELETES: ("added-position-delete-files", "added-position-deletes"),
    FileKind.EQUALITY_DELETES: ("added-equality-delete-files", "added-equality-deletes"),
    FileKind.DELETION_VECTOR: ("added-dvs", "added-position-deletes"),
}
_REMOVED = {
    FileKind.DATA: ("deleted-data-files", "deleted-records"),
    FileKind.POSITION_DELETES: ("removed-position-delete-files", "removed-position-deletes"),
    FileKind.EQUALITY_DELETES: ("removed-equality-delete-files", "removed-equality-deletes"),
    FileKind.DELETION_VECTOR: ("removed-dvs", "removed-position-deletes"),
}
_COMPUTED = {
    *(key for keys in (*_ADDED.values(), *_REMOVED.values(), *_TOTALS) for key in keys),
    *("manifests-created", "manifests-kept", "manifests-replaced"),
    *(_CHANGED_PARTITIONS, _ENTRIES_PROCESSED, "operation"),
    # keys of other writers' summaries
    *("partition-summaries-included", "deleted-duplicate-files"),
}


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """Return a snapshot's summary without its operation; empty if there is none."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties


def summary_number(snapshot: Snapshot | None, key: str) -> int | None:
    """Return a natural number of a snapshot's summary, or None if it has no such number."""
    text = summary_of(snapshot).get(key, "")
    number = int(text) if _LONG.fullmatch(text) else -1
    return number if 0 <= number <= _LONG_MAX else None


def summary_properties(properties: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return a copy of properties for snapshot summaries.

    Raises:
        ValidationError: a key or value is not a string, or a key is that of a computed property.
    """
    texts = string_map("snapshot_properties", properties)
    for key in texts:
        if key in _COMPUTED or key.startswith(_PARTITION_PREFIX):
            raise ValidationError(f"snapshot summary: property {key} is computed and can't be set")
    return texts


@dataclass
class UpdateMetrics:
    """The number of files, rows and bytes that a change adds and removes.

    Attributes:
        counts: The numbers by their key in the summary.
    """

    counts: Counter[str] = field(default_factory=Counter)

    def add_files(self, kind: FileKind, files: int, records: int, size_in_bytes: int) -> None:
        """Count added files.

        Args:
            kind: The kind of the files.
            files: The number of files.
            records: The number of their records.
            size_in_bytes: Their size. The size of a deletion vector is that of its blob.

        Raises:
            ValidationError: A number is negative.
        """
        self._count(*_ADDED[kind], "added", kind, (files, records, size_in_bytes))

    def remove_files(self, kind: FileKind, files: int, records: int, size_in_bytes: int) -> None:
        """Count removed files. Arguments and errors are those of add_files."""
        self._count(*_REMOVED[kind], "removed", kind, (files, records, size_in_bytes))

    def to_dict(self) -> dict[str, str]:
        """Return the keys and values of the summary that are above 0."""
        return {key: str(count) for key, count in self.counts.items() if count > 0}

    def _count(self, files_key: str, rows_key: str, change: str, kind: FileKind, counted: tuple[int, int, int]) -> None:
        files, records, size_in_bytes = counted
        self._increase({files_key: files, rows_key: records, f"{change}-files-size": size_in_bytes})
        if kind is not FileKind.DATA:
            self.counts[f"{change}-delete-files"] += files

    def _increase(self, counts: Mapping[str, int]) -> None:
        for key, count in counts.items():
            if count < 0:
                raise ValidationError(f"snapshot summary: {key} of {count}: a count is not negative")
        self.counts.update(counts)


@dataclass
class SnapshotSummaryBuilder:
    """A builder of a snapshot's summary.

    Attributes:
        metrics: The numbers of the change.
        changed_partition_count: The number of partitions that have files added or removed, 1 if an unpartitioned table
            is changed. None if it is not known.
        manifests_created: The number of new manifests. For a metadata tree, this and the next two count leaves.
        manifests_kept: The number of manifests that are carried over.
        manifests_replaced: The number of manifests that are rewritten.
        entries_processed: The number of entries that a rewrite of manifests has read. None for other commits.
        properties: Other keys of the summary, such as ``replace-partitions``, ``wap.id`` and the user's own.
    """

    metrics: UpdateMetrics = field(default_factory=UpdateMetrics)
    changed_partition_count: int | None = 0
    manifests_created: int = 0
    manifests_kept: int = 0
    manifests_replaced: int = 0
    entries_processed: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def build(self, operation: Operation | str, parent: Snapshot | None) -> Summary:
        """Return the summary.

        Args:
            operation: The operation of the snapshot.
            parent: The head of the branch before the commit.

        Raises:
            ValidationError: ``properties`` has a key that is computed, or a replace adds more rows than it removes.
        """
        summary = {**summary_properties(self.properties), **self.metrics.to_dict(), **self._commit_counts()}
        name = operation.value if isinstance(operation, Operation) else operation
        if name == Operation.REPLACE.value and (surplus := self._surplus()) > 0:
            raise ValidationError(f"snapshot summary: a replace adds {surplus} records more than it removes")
        return Summary(operation=name, **summary, **totals(summary, parent))

    def _commit_counts(self) -> dict[str, str]:
        counts = {
            "manifests-created": self.manifests_created,
            "manifests-kept": self.manifests_kept,
            "manifests-replaced": self.manifests_replaced,
        }
        if self.entries_processed is not None:
            counts[_ENTRIES_PROCESSED] = self.entries_processed
        if self.changed_partition_count is not None:
            counts[_CHANGED_PARTITIONS] = self.changed_partition_count
        return {key: str(count) for key, count in counts.items()}

    def _surplus(self) -> int:
        return self.metrics.counts["added-records"] - self.metrics.counts["deleted-records"]


def totals(summary: Mapping[str, str], parent: Snapshot | None) -> dict[str, str]:
    """Return the totals after a change.

    They start at 0 if there is no parent. A total is left out if the parent's summary lacks it, or if it is not a
    number, or negative before or after the change.

    Args:
        summary: The summary of the change.
        parent: The head of the branch before the commit.
    """
    after = {}
    for total, added, removed in _TOTALS:
        before = 0 if parent is None else summary_number(parent, total)
        if before is not None:
            after[total] = before + int(summary.get(added, 0)) - int(summary.get(removed, 0))
    return {total: str(number) for total, number in after.items() if number >= 0}
