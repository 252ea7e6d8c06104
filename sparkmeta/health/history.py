"""Measure the table metadata: snapshots, branches and tags, files of metadata and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH

from sparkmeta.spec.expiry import GC_ENABLED, Expired, ExpiryRules, choose_expired, without_expired
from sparkmeta.spec.metadata import ancestors_of
from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from sparkmeta.operations.base_table import BaseTable
    from sparkmeta.spec.metadata import Snapshot, TableMetadata

_DAY_MS = 86_400_000
_MOST_POINTS = 160


@dataclass(frozen=True)
class SnapshotPoint:
    """A snapshot in a picture of the history.

    Attributes:
        bytes: the bytes of its live files; None if its summary does not say.
        expires: whether `expire_snapshots` removes it.
    """

    timestamp_ms: int
    files: int | None
    bytes: int | None
    expires: bool


@dataclass(frozen=True)
class History:
    """The snapshots of a table in numbers.

    Attributes:
        snapshots: the number of all snapshots.
        expired: the number of those that expire by the table's properties.
        expired_refs: the branches and tags that expire with them.
        pinned_bytes: the bytes of data files that only expired snapshots of main need, estimated from summaries.
        old_refs: branches and tags, other than main, whose snapshot is older than `max_ref_age_days`.
        kept_by_refs: the number of snapshots that would expire without these.
        unused_schemas: the number of schemas that no remaining snapshot uses, if all partition specs stay.
        may_expire: whether the table property `gc.enabled` permits it.
        metadata_json_bytes: the size of the current metadata file.
        statistics_bytes: the bytes of statistics files.
        points: snapshots by time, evenly chosen of many.
    """

    snapshots: int
    expired: int
    expired_refs: tuple[str, ...]
    pinned_bytes: int
    old_refs: tuple[str, ...]
    kept_by_refs: int
    unused_schemas: int
    may_expire: bool
    metadata_json_bytes: int
    statistics_bytes: int
    points: tuple[SnapshotPoint, ...]


def measure_history(table: BaseTable, max_ref_age_days: int, now_ms: int) -> History:
    """Measure the history of a table, without a job.

    Raises:
        ValidationError: a table property has an invalid value.
    """
    metadata = table.metadata
    may_expire = metadata.properties.get(GC_ENABLED, "true").lower() == "true"
    permitted = metadata.model_copy(update={"properties": {**metadata.properties, GC_ENABLED: "true"}})
    rules = ExpiryRules(now_ms)
    expired = choose_expired(permitted, rules)
    old = _old_refs(permitted, expired, now_ms - max_ref_age_days * _DAY_MS)
    others = {name: ref for name, ref in permitted.refs.items() if name not in old}
    without = choose_expired(permitted.model_copy(update={"refs": others}), rules) if old else expired
    gone = {snapshot.snapshot_id for snapshot in expired.snapshots}
    # Snapshots of trees do not tell which specs they use, so that expiry keeps all specs and schemas with them.
    specs = None if table.state.has_trees else {spec.spec_id for spec in metadata.partition_specs}
    remaining = without_expired(permitted, expired, specs, now_ms)
    statistics = [*metadata.statistics, *metadata.partition_statistics]
    return History(
        snapshots=len(metadata.snapshots),
        expired=len(gone),
        expired_refs=expired.refs,
        pinned_bytes=_pinned_bytes(metadata, gone),
        old_refs=old,
        kept_by_refs=len(without.snapshots) - len(gone),
        unused_schemas=len(metadata.schemas) - len(remaining.schemas),
        may_expire=may_expire,
        metadata_json_bytes=table.state.files.length(table.metadata_location),
        statistics_bytes=sum(file.file_size_in_bytes for file in statistics),
        points=tuple(_points(metadata.snapshots, gone)),
    )


def _old_refs(metadata: TableMetadata, expired: Expired, oldest_ms: int) -> tuple[str, ...]:
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshots}
    return tuple(
        name
        for name, ref in sorted(metadata.refs.items())
        if name not in (MAIN_BRANCH, *expired.refs) and times.get(ref.snapshot_id, oldest_ms) < oldest_ms
    )


def _pinned_bytes(metadata: TableMetadata, expired: set[int]) -> int:
    """Return the bytes of files that were removed by snapshots of main whose parents expire."""
    history = ancestors_of(metadata, metadata.current_snapshot_id)
    return sum(
        summary_number(snapshot, "removed-files-size") or 0
        for snapshot in history
        if snapshot.parent_snapshot_id in expired
    )


def _points(snapshots: Sequence[Snapshot], expired: set[int]) -> list[SnapshotPoint]:
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    step = max(1, -(-len(ordered) // _MOST_POINTS))
    # Counted from the end, so that the newest snapshot is shown.
    return [
        SnapshotPoint(
            snapshot.timestamp_ms,
            summary_number(snapshot, "total-data-files"),
            summary_number(snapshot, "total-files-size"),
            snapshot.snapshot_id in expired,
        )
        for snapshot in ordered[::-1][::step][::-1]
    ]
