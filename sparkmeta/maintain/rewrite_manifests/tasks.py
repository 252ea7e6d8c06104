"""The tasks that rewrite Avro manifests: read live entries as bytes, sort them, and write manifests. Without Spark.

Entries stay in Arrow: Spark shuffles them as blobs of many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.edit.range_sort import cut, ordered, range_tables, task_rows
from sparkmeta.manifests.avro.container import manifest_data
from sparkmeta.manifests.avro.raw_entries import COLUMNS, encoded_entries
from sparkmeta.manifests.avro.write import ENTRY, ManifestFormat, packed_size, write_manifest
from sparkmeta.manifests.parts import part_of
from sparkmeta.manifests.projection import MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.manifests.v4.write import leaf_count, pieces, put_behind
from sparkmeta.storage.executors import ExecutorReader

# Bytes of entries that a task cuts into ranges at once.
_CUT_BYTES = 64 << 20


@dataclass(frozen=True)
class ManifestTasks:
    """Reads, sorts and writes the entries of one partition spec. Picklable.

    Attributes:
        keys: ids of the partition fields by which entries are sorted, before sequence numbers and former places.
    """

    reader: ExecutorReader
    form: ManifestFormat
    keys: tuple[int, ...]

    def cut_parts(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut the live entries of parts of manifests, rows of `PART_SCHEMA`, into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        projection = EntryProjection.of(COLUMNS, dict(self.form.partition), {})
        for row in task_rows(batches):
            entries = encoded_entries(manifest_data(self.reader, row), part_of(row), projection, self.form)
            for table in _joined(entries):
                yield from cut(table, key_table(table, self.keys), bounds)

    def write_ranges(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write ranges, adjacent rows of `RANGE_SCHEMA`, to manifests, and yield rows of `MANIFEST_FILE_SCHEMA`."""
        written = ((None, write_manifest(entries, self.form)) for entries in self._manifests(batches))
        for _, row in put_behind(written, self.form.writer, "manifest_path"):
            yield from row.to_batches()

    def _manifests(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        for table in range_tables(batches):
            by_keys = ordered(table, key_table(table, self.keys))
            size = packed_size(by_keys, self.form)
            yield from pieces(by_keys, leaf_count(len(by_keys), size, self.form.target_bytes))


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
    """Return the sort keys of entries: partition values `k0`, `k1`, ..., then their former place."""
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
