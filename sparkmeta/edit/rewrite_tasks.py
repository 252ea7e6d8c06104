"""The tasks that rewrite Avro manifests without some of their entries, or merge them. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from sparkmeta.avro.container import manifest_data
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.avro.write import ManifestFormat, write_manifest
from sparkmeta.edit.range_sort import task_rows
from sparkmeta.entries.parts import PART_SCHEMA, part_of
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.manifests.raw_entries import RemovedEntries, encoded_entries
from sparkmeta.manifests.v4.write import put_behind
from sparkmeta.spec.bitmap import read_inline_vector
from sparkmeta.storage.executors import ExecutorReader

GROUP, REMOVED = "group", "removed"
_SOURCE = pa.struct([*PART_SCHEMA, pa.field(REMOVED, pa.binary())])
# A manifest to write and the manifests that its entries come from.
UNIT_SCHEMA = pa.schema(
    [
        pa.field(GROUP, pa.int32()),
        pa.field("content", pa.int32()),
        pa.field("spec_id", pa.int32()),
        pa.field("sources", pa.list_(_SOURCE)),
    ]
)
WRITTEN_SCHEMA = MANIFEST_FILE_SCHEMA.append(pa.field(GROUP, pa.int32()))


@dataclass(frozen=True)
class RewriteTasks:
    """Rewrites manifests without Spark. Picklable.

    Attributes:
        forms: content and spec id -> the format of new manifests.
        snapshot_id: the snapshot that changes entries.
    """

    reader: ExecutorReader
    forms: Mapping[tuple[int, int], ManifestFormat]
    snapshot_id: int

    def rewrite(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a manifest for each row of `UNIT_SCHEMA`, and yield rows of `WRITTEN_SCHEMA`."""
        writer = next(iter(self.forms.values())).writer
        for place, row in put_behind(map(self._written, task_rows(batches)), writer, "manifest_path"):
            column = pa.array([place], pa.int32())
            yield from row.append_column(WRITTEN_SCHEMA.field(GROUP), column).to_batches()

    def _written(self, unit: Mapping[str, Any]) -> tuple[int, tuple[bytes, pa.Table]]:
        form = self.forms[unit["content"], unit["spec_id"]]
        read = partial(self._entries, form, form.projection)
        batches = [batch for source in unit["sources"] for batch in read(source)]
        return unit[GROUP], write_manifest(pa.Table.from_batches(batches), form)

    def _entries(
        self, form: ManifestFormat, projection: EntryProjection, source: Mapping[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        vector = source[REMOVED]
        removed = None
        if vector is not None:
            removed = RemovedEntries(read_inline_vector(vector, source["location"]), self.snapshot_id)
        data = manifest_data(self.reader, source)
        return encoded_entries(data, part_of(source), projection, form, removed, self.snapshot_id)
