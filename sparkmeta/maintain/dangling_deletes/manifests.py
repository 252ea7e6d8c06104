"""Write the delete manifests of a v1 to v3 table again without entries that a snapshot removes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from sparkmeta.edit.range_sort import spread, task_reader, task_rows
from sparkmeta.edit.sorted_manifests import manifest_format
from sparkmeta.errors import from_spark
from sparkmeta.maintain.rewrite_manifests.groups import ManifestRewriteOptions, refuse_rewrite, target_bytes
from sparkmeta.manifests.avro.container import manifest_data
from sparkmeta.manifests.avro.raw_entries import COLUMNS, RemovedEntries, encoded_entries
from sparkmeta.manifests.avro.write import ManifestFormat, write_manifest
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.manifests.parts import PART_SCHEMA, part_of, whole_manifests
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.manifests.v4.write import put_behind
from sparkmeta.session import map_arrow
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter

if TYPE_CHECKING:
    from sparkmeta.state import TableState

_REMOVED = "removed"
_UNIT_SCHEMA = PART_SCHEMA.append(pa.field(_REMOVED, pa.binary()))


def without_entries(state: TableState, removed: Mapping[str, PositionBitmap], snapshot_id: int, name: str) -> pa.Table:
    """Write delete manifests again, with entries removed, and return their rows of `MANIFEST_FILE_SCHEMA`.

    A removed entry becomes a DELETED entry of the snapshot, and all other live ones EXISTING, as in Iceberg's Java
    library. Each manifest has one successor. Runs a job.

    Args:
        removed: manifest location -> ordinals of the entries to remove.
        snapshot_id: the snapshot that removes them.
        name: the beginning of the names of new manifests.

    Raises:
        UnsupportedError: a manifest can't be rewritten, or tasks can't open the table's files.
        CorruptFileError: a manifest is damaged.
    """
    manifests = state.delete_manifests
    manifests = manifests.filter(pc.is_in(manifests.column("location"), pa.array([*removed], pa.string())))
    forms, target = {}, target_bytes(state.metadata, ManifestRewriteOptions())
    for spec_id in manifests.column("partition_spec_id").unique().to_pylist():
        refuse_rewrite(manifests.filter(pc.equal(manifests.column("partition_spec_id"), spec_id)), spec_id, state)
        forms[spec_id] = manifest_format(state, ContentType.DELETE_MANIFEST, spec_id, name, target)
    units = whole_manifests(manifests)
    vectors = [write_deletion_vector(removed[location]) for location in units.column("location").to_pylist()]
    units = units.append_column(_UNIT_SCHEMA.field(_REMOVED), pa.array(vectors, pa.binary()))
    tasks = _RemovalTasks(task_reader(state), forms, snapshot_id)
    try:
        written = map_arrow(spread(state.spark, units), tasks.rewrite, MANIFEST_FILE_SCHEMA).toArrow()
    except PySparkException as error:
        raise from_spark(error) or error from error
    return written.cast(MANIFEST_FILE_SCHEMA)


@dataclass(frozen=True)
class _RemovalTasks:
    """Rewrites manifests without Spark. Picklable.

    Attributes:
        forms: spec id -> the format of its manifests.
        snapshot_id: the snapshot that removes entries.
    """

    reader: ExecutorReader
    forms: Mapping[int, ManifestFormat]
    snapshot_id: int

    def rewrite(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a manifest for each row of `_UNIT_SCHEMA`, and yield rows of `MANIFEST_FILE_SCHEMA`."""
        for _, row in put_behind(self._written(batches), self._writer, "manifest_path"):
            yield from row.to_batches()

    @property
    def _writer(self) -> ExecutorWriter:
        return next(iter(self.forms.values())).writer

    def _written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[None, tuple[bytes, pa.Table]]]:
        for row in task_rows(batches):
            form = self.forms[row["partition_spec_id"]]
            projection = EntryProjection.of(COLUMNS, dict(form.partition), {})
            removed = RemovedEntries(read_inline_vector(row[_REMOVED], row["location"]), self.snapshot_id)
            data = manifest_data(self.reader, row)
            entries = pa.Table.from_batches(encoded_entries(data, part_of(row), projection, form, removed))
            yield None, write_manifest(entries, form)
