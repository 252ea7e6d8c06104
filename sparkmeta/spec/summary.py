"""Snapshot summaries: what a commit says of the files, rows and bytes that it added and removed (semantics 3.2)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation

from sparkmeta.errors import ValidationError
from sparkmeta.spec.snapshot import Summary

if TYPE_CHECKING:
    from sparkmeta.spec.snapshot import Snapshot

PARTITION_PREFIX = "partitions."

_CHANGED_PARTITIONS = "changed-partition-count"
_PARTITIONS_INCLUDED = "partition-summaries-included"
_ENTRIES_PROCESSED = "entries-processed"
_DUPLICATES = "deleted-duplicate-files"
# total, what adds to it, what takes from it
_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)
_UNKNOWN_OF_DELETE_MANIFESTS = {key for _, *keys in _TOTALS[3:] for key in keys}
_LONG = re.compile(r"[+-]?[0-9]{1,19}")
_LONGEST = (1 << 63) - 1


class FileKind(Enum):
    """The kinds of files that summaries tell apart. A deletion vector is a file of its own, as large as its blob."""

    DATA = "data"
    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"
    DELETION_VECTOR = "deletion-vector"


# What counts files, and what counts rows; delete files of all kinds are counted besides.
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
    *(_CHANGED_PARTITIONS, _PARTITIONS_INCLUDED, _ENTRIES_PROCESSED, _DUPLICATES, "operation"),
}


@dataclass
class UpdateMetrics:
    """What a change adds and removes, of the whole table or of one partition.

    counts: by summary key. manifests: whether some of it is known by the counts of manifests alone. sizes_known: False
    once a delete manifest is among those, which says neither bytes nor rows of its kinds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    manifests: bool = False
    sizes_known: bool = True

    def add_files(self, kind: FileKind, files: int, records: int, size_in_bytes: int) -> None:
        """Count files that are added; of deletion vectors the sizes of their blobs. ValidationError if negative."""
        self._count(*_ADDED[kind], "added", kind, (files, records, size_in_bytes))

    def remove_files(self, kind: FileKind, files: int, records: int, size_in_bytes: int) -> None:
        """Count files that are removed, likewise."""
        self._count(*_REMOVED[kind], "removed", kind, (files, records, size_in_bytes))

    def add_data_manifest(self, added_files: int, added_rows: int, deleted_files: int, deleted_rows: int) -> None:
        """Count what a data manifest that is appended as it is says of itself."""
        self.manifests = True
        counted = (added_files, added_rows, deleted_files, deleted_rows)
        self._increase(dict(zip((*_ADDED[FileKind.DATA], *_REMOVED[FileKind.DATA]), counted, strict=True)))

    def add_delete_manifest(self, added_files: int, deleted_files: int) -> None:
        """Count what a delete manifest that is appended as it is says of itself."""
        self.manifests, self.sizes_known = True, False
        self._increase({"added-delete-files": added_files, "removed-delete-files": deleted_files})

    def merge(self, other: UpdateMetrics) -> None:
        """Count what the other one has as well."""
        self.counts.update(other.counts)
        self.manifests |= other.manifests
        self.sizes_known &= other.sizes_known

    def to_dict(self) -> dict[str, str]:
        """The summary keys of all that is known and above 0."""
        unknown = set() if self.sizes_known else _UNKNOWN_OF_DELETE_MANIFESTS
        return {key: str(count) for key, count in self.counts.items() if count > 0 and key not in unknown}

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
    """A snapshot's summary out of numbers that were aggregated elsewhere; holds nothing that grows with the table.

    Args:
        metrics: of the whole change.
        changed_partition_count: how many partitions have files added or removed; 1 for a change of an unpartitioned
            table. None where it is not known.
        partitions: metrics by partition path (``a=1/b=x``; "" where there are no partitions), all of them where
            there are at most ``partition_limit``, else unused.
        partition_limit: the table's ``write.summary.partition-limit``.
        manifests_created, manifests_kept, manifests_replaced: leaf manifests, always written.
        entries_processed: by a rewrite of manifests.
        deleted_duplicate_files: files that were asked to be removed more than once.
        properties: what else shall stand in the summary: the user's and the engine's keys, ``replace-partitions``,
            ``wap.id``, ``source-snapshot-id`` ...
    """

    metrics: UpdateMetrics = field(default_factory=UpdateMetrics)
    changed_partition_count: int | None = 0
    partitions: Mapping[str, UpdateMetrics] = field(default_factory=dict)
    partition_limit: int = 0
    manifests_created: int = 0
    manifests_kept: int = 0
    manifests_replaced: int = 0
    entries_processed: int | None = None
    deleted_duplicate_files: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    def build(self, operation: Operation | str, parent: Snapshot | None) -> Summary:
        """The summary of a snapshot whose branch had ``parent`` for its head.

        Raises ValidationError for properties that are computed, partitions that are missing, and a replace that adds
        more rows than it removes.
        """
        if taken := sorted(key for key in self.properties if key in _COMPUTED or key.startswith(PARTITION_PREFIX)):
            raise ValidationError(f"snapshot summary: property {taken[0]} is computed and can't be set")
        summary = {**self.properties, **self.metrics.to_dict(), **self._operational(), **self._partitions()}
        name = operation.value if isinstance(operation, Operation) else operation
        if name == Operation.REPLACE.value and (surplus := self._surplus()) > 0:
            raise ValidationError(f"snapshot summary: a replace adds {surplus} records more than it removes")
        return Summary(operation=name, **summary, **totals(summary, parent))

    def _operational(self) -> dict[str, str]:
        counts = {
            "manifests-created": self.manifests_created,
            "manifests-kept": self.manifests_kept,
            "manifests-replaced": self.manifests_replaced,
        }
        if self.entries_processed is not None:
            counts[_ENTRIES_PROCESSED] = self.entries_processed
        if self.deleted_duplicate_files > 0:
            counts[_DUPLICATES] = self.deleted_duplicate_files
        return {key: str(count) for key, count in counts.items()}

    def _partitions(self) -> dict[str, str]:
        count = self.changed_partition_count
        if count is None or self.metrics.manifests:
            return {}
        counted = {_CHANGED_PARTITIONS: str(count)}
        if not 0 < count <= self.partition_limit:
            return counted
        if len(self.partitions) != count:
            raise ValidationError(f"snapshot summary: {len(self.partitions)} of {count} changed partitions are given")
        named = {PARTITION_PREFIX + path: _joined(metrics) for path, metrics in self.partitions.items() if path}
        return counted | {_PARTITIONS_INCLUDED: "true"} | named

    def _surplus(self) -> int:
        return self.metrics.counts["added-records"] - self.metrics.counts["deleted-records"]


def totals(summary: Mapping[str, str], parent: Snapshot | None) -> dict[str, str]:
    """The totals after a change: those of the branch's head before it, with what the change's summary adds and removes.

    Without a head they start at 0. A total that the head's summary does not have, or that is no number of 0 or more
    before and after, is left out.
    """
    if parent is None:
        known = dict.fromkeys((total for total, _, _ in _TOTALS), "0")
    else:
        known = {} if parent.summary is None else parent.summary.additional_properties
    after = {}
    for total, added, removed in _TOTALS:
        before = _number(known.get(total))
        if before is not None and before >= 0:
            after[total] = before + int(summary.get(added, 0)) - int(summary.get(removed, 0))
    return {total: str(number) for total, number in after.items() if number >= 0}


def overwrite_operation(*, adds: bool, removes: bool) -> Operation:
    """The operation of an overwrite. removes: also where a row filter was given that matched nothing (3.2-6)."""
    if removes and not adds:
        return Operation.DELETE
    return Operation.APPEND if adds and not removes else Operation.OVERWRITE


def row_delta_operation(*, adds_data: bool, removes_data: bool, adds_deletes: bool) -> Operation:
    """The operation of a row delta, by whether it adds and removes data files and adds delete files (3.2-6)."""
    if adds_data and not adds_deletes and not removes_data:
        return Operation.APPEND
    return Operation.DELETE if adds_deletes and not adds_data else Operation.OVERWRITE


def _joined(metrics: UpdateMetrics) -> str:
    return ",".join(f"{key}={value}" for key, value in metrics.to_dict().items())


def _number(text: str | None) -> int | None:
    """The 64-bit number in a text, as Iceberg's Java library reads it; None where there is none."""
    if text is None or not _LONG.fullmatch(text) or abs(int(text)) > _LONGEST:
        return None
    return int(text)
