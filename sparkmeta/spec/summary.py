"""Build snapshot summaries: what a commit adds and removes, and the key that makes it idempotent (semantics 10.1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.table.snapshots import Operation

from sparkmeta.checks import Rule, is_whole, string_map
from sparkmeta.errors import ValidationError, shown
from sparkmeta.spec.file_kind import FileKind
from sparkmeta.spec.metadata_model import Summary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkmeta.spec.metadata_model import Snapshot


# -- Snapshot summaries (semantics 10.1) ------------------------------------------------------------------------------


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
    """Return a number in a snapshot's summary that is not negative, or None if there is no such number."""
    number = long_of(summary_of(snapshot).get(key))
    return number if number is not None and number >= 0 else None


def long_of(text: str | None) -> int | None:
    """Return the number in a text of a summary; None if it is not a 64-bit integer."""
    number = int(text) if text is not None and _LONG.fullmatch(text) else None
    return number if number is not None and -_LONG_MAX <= number <= _LONG_MAX else None


def summary_properties(properties: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return a copy of properties for snapshot summaries.

    Raises:
        ValidationError: a key or value is not a string, or a key belongs to a computed property.
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
            size_in_bytes: Their size. The size of a deletion vector is the length of its blob.

        Raises:
            ValidationError: A number is negative.
        """
        self._count(*_ADDED[kind], "added", kind, (files, records, size_in_bytes))

    def remove_files(self, kind: FileKind, files: int, records: int, size_in_bytes: int) -> None:
        """Count removed files. Arguments and errors are the same as for add_files."""
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

    They start at 0 if there is no parent. A total is left out if the parent's summary lacks it, if it is not a number,
    or if it is negative before or after the change.

    Args:
        summary: The summary of the change.
        parent: The head of the branch before the commit.
    """
    after = {}
    for total_key, added_key, removed_key in _TOTALS:
        before = 0 if parent is None else summary_number(parent, total_key)
        if before is not None:
            after[total_key] = before + int(summary.get(added_key, 0)) - int(summary.get(removed_key, 0))
    return {total_key: str(number) for total_key, number in after.items() if number >= 0}


# -- Idempotency keys -------------------------------------------------------------------------------------------------


_APPLICATION, _VERSION = "idempotency.application", "idempotency.version"
# Properties of the summary that record a key: the caller's own, or the ones of Iceberg's streaming writer.
STREAM, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_NAMES = ((_APPLICATION, _VERSION), (STREAM, EPOCH))


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_application(value[0]) and _is_version(value[1])


def _is_application(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_version(value: Any) -> bool:
    return is_whole(value) and 0 <= value <= _LONG_MAX


_KEY = Rule(f"a tuple of an application's name and a version, a whole number from 0 to {_LONG_MAX}", _is_pair)


class IdempotencyKey(NamedTuple):
    """The key that identifies a commit of an application. Later commits of the application have higher versions."""

    application: str
    version: int

    def __str__(self) -> str:
        return shown(tuple(self))

    def recorded_by(self, snapshots: Iterable[Snapshot]) -> Snapshot | None:
        """Return the first snapshot that records this version of the application or a later one, or None."""
        for snapshot in snapshots:
            if any(key.application == self.application and key.version >= self.version for key in recorded(snapshot)):
                return snapshot
        return None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a snapshot's summary that record the key."""
        return {_APPLICATION: self.application, _VERSION: str(self.version)}


def key_of(key: Any, properties: Mapping[str, str]) -> IdempotencyKey | None:
    """Return the key of a commit: the caller's, or the one that properties of its snapshot contain.

    Args:
        key: the application and the version, or None.
        properties: the properties. A query and an epoch of Spark's streaming are a key, as for Iceberg's own sink.

    Raises:
        ValidationError: the key is invalid, or there are two different ones.
    """
    if key is not None:
        _KEY.check("idempotency_key", key)
    keys = [] if key is None else [IdempotencyKey(*key)]
    for application, version in _NAMES:
        if application in properties and version in properties:
            name, text = properties[application], properties[version]
            is_number = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _LONG_MAX
            if not is_number:
                problem = f"snapshot_properties[{shown(version)}] is {shown(text)}: expected a whole number from 0 to"
                raise ValidationError(
                    f"{problem} {_LONG_MAX}, since it is an idempotency key together with {application}"
                )
            keys.append(IdempotencyKey(name, int(text)))
    if len(set(keys)) > 1:
        raise ValidationError(
            f"idempotency_key is {keys[0]}, and snapshot_properties contain the key {keys[1]}: expected one key"
        )
    return keys[0] if keys else None


def recorded(snapshot: Snapshot) -> list[IdempotencyKey]:
    """Return the keys that a snapshot records."""
    summary = summary_of(snapshot)
    pairs = ((summary.get(application), summary_number(snapshot, version)) for application, version in _NAMES)
    return [IdempotencyKey(name, version) for name, version in pairs if name is not None and version is not None]


def recording_properties(snapshot: Snapshot) -> dict[str, str]:
    """Return the properties in which a snapshot records keys."""
    summary = summary_of(snapshot)
    return {name: summary[name] for pair in _NAMES for name in pair if name in summary}


def last_version(snapshots: Iterable[Snapshot], application: str) -> int | None:
    """Return the highest version of an application that snapshots record, or None."""
    keys = (key for snapshot in snapshots for key in recorded(snapshot))
    return max((key.version for key in keys if key.application == application), default=None)
