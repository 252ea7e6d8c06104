"""Encode entries for Avro manifests. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.encode import encode_entries
from sparkmeta.avro.write import ENTRY, ManifestFormat, with_version_info
from sparkmeta.edit.sorted_manifests import SortedManifests
from sparkmeta.entries.arrays import with_plain_types
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.spec.entry import Status

_SORTED = ("version_info", "record_count", PARTITION, MANIFEST, ORDINAL, ENTRY)


@dataclass(frozen=True)
class EntryTasks(SortedManifests):
    """Encodes, sorts and writes the entries of one partition spec. Picklable.

    Attributes:
        snapshot_id: the manifests' snapshot. Files that it added are ADDED, all others EXISTING.
    """

    snapshot_id: int

    def cut_rows(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut live entries with typed stats into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        yield from self.cut_entries(bounds, map(self._encoded, batches))

    def _encoded(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        batch = with_plain_types(raw)
        info = batch.column("version_info")
        is_added = pc.and_(
            pc.equal(pc.struct_field(info, "status"), int(Status.ADDED)),
            pc.equal(pc.struct_field(info, "snapshot_id"), self.snapshot_id),
        )
        status = pc.if_else(is_added, int(Status.ADDED), int(Status.EXISTING)).cast(pa.int32())
        entries = with_version_info(batch, status=status)
        return _with_entry(entries, self.form)


def added_entries(entries: pa.RecordBatch, form: ManifestFormat, snapshot_id: int) -> pa.RecordBatch:
    """Return new files as ADDED entries of a snapshot, with the column `entry` (semantics 9.4).

    Args:
        entries: all columns of content entries, metrics maps, `partition`, `manifest` and `ordinal`.
    """
    rows = len(entries)
    status = pa.repeat(pa.scalar(int(Status.ADDED), pa.int32()), rows)
    stamped = with_version_info(entries, status=status, snapshot_id=pa.repeat(pa.scalar(snapshot_id, pa.int64()), rows))
    return _with_entry(stamped, form)


def _with_entry(entries: pa.RecordBatch, form: ManifestFormat) -> pa.RecordBatch:
    names = [name for name in _SORTED if name in entries.schema.names]
    return entries.select(names).append_column(ENTRY, encode_entries(entries, form))
