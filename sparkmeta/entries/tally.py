"""Count files, rows, bytes and partitions of a commit. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.file_kind import FileKind

# A partition: its spec's id, and the values of the spec's fields as (partition field id, value).
PartitionKey = tuple[int, tuple[tuple[int, Any], ...]]


@dataclass(frozen=True)
class KindCount:
    """The number of files of one kind, and their records and bytes. The bytes of a deletion vector are its blob's."""

    files: int = 0
    records: int = 0
    size: int = 0

    def plus(self, other: KindCount) -> KindCount:
        """Return the sum of these counts and the other counts."""
        return KindCount(self.files + other.files, self.records + other.records, self.size + other.size)


@dataclass(frozen=True)
class Tally:
    """Counts of files by kind, and the files' partitions; None if there are too many files to collect them."""

    counts: Mapping[FileKind, KindCount] = field(default_factory=dict)
    partitions: frozenset[PartitionKey] | None = frozenset()

    def plus(self, other: Tally) -> Tally:
        """Return the sum of these counts and the other counts."""
        counts = sums_by_kind([*self.counts.items(), *other.counts.items()])
        unknown = self.partitions is None or other.partitions is None
        return Tally(counts, None if unknown else (self.partitions or frozenset()) | (other.partitions or frozenset()))


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
    """Return the bytes of each file, or of the blob for a deletion vector."""
    blobs = pc.struct_field(entries.column("deletion_vector"), "size_in_bytes")
    return pc.coalesce(blobs, entries.column("file_size_in_bytes"))
