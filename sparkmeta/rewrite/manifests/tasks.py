"""The tasks that read live entries of Avro manifests as bytes, to sort them and write other manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkmeta.avro.container import manifest_data
from sparkmeta.edit.range_sort import task_rows
from sparkmeta.edit.sorted_manifests import SortedManifests
from sparkmeta.entries.parts import part_of
from sparkmeta.manifests.raw_entries import encoded_entries
from sparkmeta.storage.executors import ExecutorReader


@dataclass(frozen=True)
class ManifestTasks(SortedManifests):
    """Reads, sorts and writes the entries of one partition spec. Picklable."""

    reader: ExecutorReader

    def cut_parts(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut the live entries of parts of manifests, rows of `PART_SCHEMA`, into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        projection = self.form.projection
        for row in task_rows(batches):
            entries = encoded_entries(manifest_data(self.reader, row), part_of(row), projection, self.form)
            yield from self.cut_entries(bounds, entries)
