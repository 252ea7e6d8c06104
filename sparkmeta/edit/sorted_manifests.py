"""Sort the entries of a partition spec with Spark and write them to Avro manifests.

Entries stay in Arrow, with their Avro encoding as a column: Spark shuffles them as blobs of many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.write import ENTRY, ManifestFormat, packed_size, write_manifest
from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.edit.range_sort import cut, ordered, range_tables
from sparkmeta.entries.counts import live_count
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.manifests.v4.write import leaf_count, pieces, put_behind

# Estimated bytes of a manifest entry: without metrics, and per column with metrics.
_ENTRY_BYTES, _COLUMN_BYTES = 100, 12
# Maximum number of ranges into which a task cuts its entries.
_MOST_RANGES = 16_384
# Bytes of entries that a task cuts into ranges at once.
_CUT_BYTES = 64 << 20


@dataclass(frozen=True)
class SortedManifests:
    """Sorts and writes the entries of one partition spec. Picklable, for tasks.

    Attributes:
        keys: ids of the partition fields by which entries are sorted, before sequence numbers and original positions.
    """

    form: ManifestFormat
    keys: tuple[int, ...]

    def cut_entries(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut entries with the column `entry` into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        for table in _joined(batches):
            yield from cut(table, key_table(table, self.keys), bounds)

    def write_ranges(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write ranges (adjacent rows of `RANGE_SCHEMA`) to manifests and yield rows of `MANIFEST_FILE_SCHEMA`."""
        written = ((None, write_manifest(entries, self.form)) for entries in self._manifests(batches))
        for _, row in put_behind(written, self.form.writer, "manifest_path"):
            yield from row.to_batches()

    def _manifests(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        for table in range_tables(batches):
            yield from manifest_pieces(ordered(table, key_table(table, self.keys)), self.form)


def manifest_pieces(entries: pa.Table, form: ManifestFormat) -> Iterator[pa.Table]:
    """Yield entries with the column `entry`, in one chunk, in parts of about the target size of a manifest."""
    yield from pieces(entries, leaf_count(len(entries), packed_size(entries, form), form.target_bytes))


def range_count(entries: int, columns: int, target_bytes: int) -> int:
    """Return the number of ranges of about the target size of a manifest.

    Args:
        entries: the number of entries.
        columns: the approximate number of columns with metrics.
        target_bytes: the target size of a manifest.
    """
    return max(1, min(_MOST_RANGES, entries * (_ENTRY_BYTES + _COLUMN_BYTES * columns) // target_bytes))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merge batches of entries into larger tables."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.column(ENTRY).nbytes
        if size >= _CUT_BYTES:
            yield pa.Table.from_batches(pending).combine_chunks()
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending).combine_chunks()


def key_table(entries: pa.Table, keys: Sequence[int]) -> pa.Table:
    """Return the sort keys of entries: partition values `k0`, `k1`, ..., sequence number and original position."""
    tuples = entries.column(PARTITION) if keys else None
    columns = {f"k{place}": pc.struct_field(tuples, [str(key)]) for place, key in enumerate(keys)}
    columns["sequence_number"] = pc.struct_field(entries.column("version_info"), "sequence_number")
    return pa.table({**columns, MANIFEST: entries.column(MANIFEST), ORDINAL: entries.column(ORDINAL)})


def key_schema(partition: Mapping[int, str], keys: Sequence[int]) -> pa.Schema:
    """Return the schema of `key_table`.

    Args:
        partition: partition field id -> type name.
    """
    fields = [pa.field(f"k{place}", bound_arrow_type(partition[key])) for place, key in enumerate(keys)]
    numbers = [pa.field("sequence_number", pa.int64()), pa.field(MANIFEST, pa.int32()), pa.field(ORDINAL, pa.int64())]
    return pa.schema([*fields, *numbers])


def file_count(written: pa.Table) -> int:
    """Return the number of live files in written manifests, rows of `MANIFEST_FILE_SCHEMA`."""
    return live_count(written) or 0
