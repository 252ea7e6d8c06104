"""The Spark jobs that write the entries of leaves to Avro manifests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.edit.entry_manifests import EntryManifests
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.entries.projection import FILE_COLUMNS
from sparkmeta.errors import translated_errors
from sparkmeta.maintain.downgrade.heads import refuse_unknown_transforms
from sparkmeta.spec.downgrade import LIST_VERSION
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.maintain.downgrade.heads import LeafGroup


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
            UnsupportedError: tasks can't open the table's files, or partition values can't be written.
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
        snapshot = state.snapshot
        assert snapshot is not None
        manifests = self._of_content[content]
        stats = {*types.column_types, *([DELETE_FILE_PATH_ID] if content else [])}
        of_spec = F.col("partition_spec_id") == spec_id
        frame = self._live(manifests, FILE_COLUMNS, stats).where(of_spec)
        keys = self._live(manifests, ("partition_spec_id",)).where(of_spec)
        writer = EntryManifests(state, form, snapshot.snapshot_id, entries, len(types.column_types))
        table = writer.write(frame, keys)
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
