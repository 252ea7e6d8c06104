"""The Spark jobs that write the entries of leaves to Avro manifests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.edit.range_sort import sampled_bounds, sorted_among_tasks
from sparkmeta.edit.sorted_manifests import file_count, key_schema, manifest_format
from sparkmeta.errors import ValidationError, translated_errors
from sparkmeta.maintain.downgrade.heads import refuse_unknown_transforms
from sparkmeta.maintain.downgrade.tasks import EntryTasks
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.manifests.projection import FILE_COLUMNS, MANIFEST, ORDINAL, PARTITION
from sparkmeta.spec.downgrade import LIST_VERSION
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.maintain.downgrade.heads import LeafGroup

# Estimated bytes of an entry in a manifest: without metrics, and of each column.
_ENTRY_BYTES, _COLUMN_BYTES = 100, 12
# Most ranges into which a task cuts its entries.
_MOST_RANGES = 16_384


@dataclass(frozen=True)
class GroupJob:
    """Writes the entries of a group of leaves.

    Attributes:
        name: the beginning of the names of new manifests.
        target_bytes: the target size of a manifest.
    """

    group: LeafGroup
    name: str
    target_bytes: int

    def run(self) -> pa.Table:
        """Write the manifests, and return their rows of `MANIFEST_FILE_SCHEMA`.

        Raises:
            UnsupportedError: tasks can't open the table's files, or a transform is not known.
            CorruptFileError: a leaf is damaged.
            ValidationError: the leaves changed while they were read.
        """
        with translated_errors():
            specs = self._specs().collect()
            refuse_unknown_transforms(self.group.state, (row.spec_id for row in specs))
            written = [self._write(**row.asDict()) for row in specs]
        return pa.concat_tables([MANIFEST_FILE_SCHEMA.empty_table(), *written])

    def _specs(self) -> DataFrame:
        """Return a row for each content and partition spec of the live entries."""
        frame = self._live(self.group.manifests, ("content_type", "partition_spec_id", "first_row_id"))
        content = F.when(F.col("content_type") == int(ContentType.DATA), 0).otherwise(1).alias("content")
        return frame.groupBy(content, F.col("partition_spec_id").alias("spec_id")).agg(
            F.count("*").alias("entries"),
            F.count("first_row_id").alias("with_row_ids"),
            F.min("first_row_id").alias("first_row_id"),
        )

    def _write(self, content: int, spec_id: int, entries: int, with_row_ids: int, first_row_id: int | None) -> pa.Table:
        state, types = self.group.state, self.group.state.types
        kind = ContentType.DELETE_MANIFEST if content else ContentType.DATA_MANIFEST
        form = manifest_format(state, kind, spec_id, self.name, self.target_bytes, LIST_VERSION)
        keys = tuple(field_id for field_id, _ in form.partition)
        snapshot = state.snapshot
        assert snapshot is not None
        tasks = EntryTasks(form, keys, snapshot.snapshot_id)
        entry_bytes = _ENTRY_BYTES + _COLUMN_BYTES * len(types.column_types)
        ranges = max(1, min(_MOST_RANGES, entries * entry_bytes // self.target_bytes))
        manifests = self._of_content[content]
        bounds = self._bounds(manifests, spec_id, keys, entries, ranges)
        stats = {*types.column_types, *([DELETE_FILE_PATH_ID] if content else [])}
        frame = self._live(manifests, FILE_COLUMNS, stats).where(F.col("partition_spec_id") == spec_id)
        written = sorted_among_tasks(
            frame, partial(tasks.cut_rows, bounds), tasks.write_ranges, MANIFEST_FILE_SCHEMA, ranges
        )
        table = written.toArrow().cast(MANIFEST_FILE_SCHEMA)
        if (count := file_count(table)) != entries:
            raise ValidationError(
                f"{state.metadata.location}: partition spec {spec_id} has {entries} live files in snapshot "
                f"{snapshot.snapshot_id}: {count} were written"
            )
        return _stamped(
            table, snapshot.snapshot_id, snapshot.sequence_number or 0,
            first_row_id if content == 0 and with_row_ids == entries else None,
        )  # fmt: skip

    @cached_property
    def _of_content(self) -> tuple[pa.Table, pa.Table]:
        """The leaves of data files, and those of deletes."""
        manifests = self.group.manifests
        is_data = pc.equal(manifests.column("content_type"), int(ContentType.DATA_MANIFEST))
        return manifests.filter(is_data), manifests.filter(pc.invert(is_data))

    def _live(self, manifests: pa.Table, columns: Any, stats: Any = ()) -> DataFrame:
        state = self.group.state
        frame = state.entries(manifests, state.projection({*columns, "version_info"}, stats))
        return frame.where(F.col("version_info.status") != int(Status.DELETED))

    def _bounds(self, manifests: pa.Table, spec_id: int, keys: tuple[int, ...], entries: int, ranges: int) -> pa.Table:
        """Return the last keys of the ranges. If there are several, runs a job that reads only keys."""
        frame = self._live(manifests, ("partition_spec_id",)).where(F.col("partition_spec_id") == spec_id)
        columns = [F.col(f"{PARTITION}.`{key}`").alias(f"k{place}") for place, key in enumerate(keys)]
        sequence_number = F.col("version_info.sequence_number").alias("sequence_number")
        no_keys = key_schema(dict(self.group.state.types.spec_fields[spec_id]), keys).empty_table()
        return sampled_bounds(frame.select(*columns, sequence_number, MANIFEST, ORDINAL), no_keys, entries, ranges)


def _stamped(manifests: pa.Table, snapshot_id: int, sequence_number: int, first_row_id: int | None) -> pa.Table:
    """Return manifests as those of a snapshot. All entries with row ids have their own."""
    known = {
        "added_snapshot_id": snapshot_id,
        "sequence_number": sequence_number,
        "first_row_id": first_row_id,
    }
    for name, number in known.items():
        values = pa.repeat(pa.scalar(number, pa.int64()), len(manifests))
        manifests = manifests.set_column(manifests.schema.get_field_index(name), name, values)
    return manifests.cast(MANIFEST_FILE_SCHEMA)
