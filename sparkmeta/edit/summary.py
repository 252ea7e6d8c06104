"""Build the summary of a commit's snapshot from the files that it adds and removes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.summary import FileKind, SnapshotSummaryBuilder, UpdateMetrics

if TYPE_CHECKING:
    from sparkmeta.spec.snapshot import Snapshot, Summary

# A partition: its spec's id, and the values of the spec's fields as (partition field id, value).
PartitionKey = tuple[int, tuple[tuple[int, Any], ...]]

_REPLACE_PARTITIONS = {"replace-partitions": "true"}


@dataclass(frozen=True)
class KindCount:
    """The number of files of one kind, their records and their bytes. For deletion vectors, the bytes of the blobs."""

    files: int = 0
    records: int = 0
    size: int = 0

    def plus(self, other: KindCount) -> KindCount:
        """Return the sum of both."""
        return KindCount(self.files + other.files, self.records + other.records, self.size + other.size)


@dataclass(frozen=True)
class Tally:
    """Counts of files by kind, and their partitions. The partitions are None if there are too many files to tell."""

    counts: Mapping[FileKind, KindCount] = field(default_factory=dict)
    partitions: frozenset[PartitionKey] | None = frozenset()

    def plus(self, other: Tally) -> Tally:
        """Return the sum of both."""
        counts = sums_by_kind([*self.counts.items(), *other.counts.items()])
        unknown = self.partitions is None or other.partitions is None
        return Tally(counts, None if unknown else (self.partitions or frozenset()) | (other.partitions or frozenset()))


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


def file_kind(content_type: int, file_format: str) -> FileKind:
    """Return the kind that a file counts as."""
    if content_type == ContentType.DATA:
        return FileKind.DATA
    if content_type == ContentType.EQUALITY_DELETES:
        return FileKind.EQUALITY_DELETES
    return FileKind.DELETION_VECTOR if file_format.lower() == "puffin" else FileKind.POSITION_DELETES


def tally_of(rows: pa.Table) -> dict[FileKind, KindCount]:
    """Count entries by kind."""
    counts = []
    keys = rows.select(["content_type", "file_format"]).group_by(["content_type", "file_format"]).aggregate([])
    for key in keys.to_pylist():
        same = pc.and_(*(pc.equal(rows.column(name), key[name]) for name in ("content_type", "file_format")))
        counts.append((file_kind(**key), _count(rows.filter(same))))
    return sums_by_kind(counts)


def sums_by_kind(counts: Iterable[tuple[FileKind, KindCount]]) -> dict[FileKind, KindCount]:
    """Return the sums of counts by kind."""
    sums: dict[FileKind, KindCount] = {}
    for kind, count in counts:
        sums[kind] = sums.get(kind, KindCount()).plus(count)
    return sums


def _count(rows: pa.Table) -> KindCount:
    records, size = (pc.sum(values).as_py() or 0 for values in (rows.column("record_count"), file_sizes(rows)))
    return KindCount(len(rows), records, size)


def file_sizes(entries: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Return the bytes of each file; of a deletion vector, those of its blob."""
    blobs = pc.struct_field(entries.column("deletion_vector"), "size_in_bytes")
    return pc.coalesce(blobs, entries.column("file_size_in_bytes"))


def partition_keys(
    spec_ids: list[int], values: Mapping[int, list[Any]], fields: Mapping[int, Sequence[tuple[int, str]]]
) -> frozenset[PartitionKey]:
    """Return the distinct partitions of files.

    Args:
        spec_ids: the partition spec of each file.
        values: partition field id -> the value of each file.
        fields: spec id -> (partition field id, type name) of its fields.
    """
    return frozenset(
        (spec_id, tuple((field_id, values[field_id][row]) for field_id, _ in fields[spec_id]))
        for row, spec_id in enumerate(spec_ids)
    )


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
    """Return the summary (semantics 3.2).

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
