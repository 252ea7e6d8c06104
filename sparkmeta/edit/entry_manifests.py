"""Write entries with typed stats to Avro manifests, sorted by partition, with Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.edit.entry_tasks import EntryTasks
from sparkmeta.edit.range_sort import sampled_bounds, sorted_among_tasks
from sparkmeta.edit.sorted_manifests import file_count, key_schema, range_count
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.errors import ValidationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkmeta.avro.write import ManifestFormat
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class EntryManifests:
    """Writes live entries of one content and partition spec to Avro manifests.

    Attributes:
        snapshot_id: the manifests' snapshot. Files that it added are ADDED, all others EXISTING.
        count: the number of entries.
        columns: the approximate number of columns with stats.
    """

    state: TableState
    form: ManifestFormat
    snapshot_id: int
    count: int
    columns: int

    def write(self, entries: DataFrame, keys: DataFrame) -> pa.Table:
        """Write the manifests and return their rows of `MANIFEST_FILE_SCHEMA`. Runs jobs.

        Args:
            entries: all columns of content entries, `partition` and `content_stats`, with inheritance applied.
            keys: the same entries with `partition`, `version_info`, `manifest` and `ordinal`, by which they are sorted.

        Raises:
            ValidationError: the number of entries differs from `count`.
        """
        bounds = self._bounds(keys)
        tasks = EntryTasks(self.form, self._keys, self.snapshot_id)
        written = sorted_among_tasks(
            entries, partial(tasks.cut_rows, bounds), tasks.write_ranges, MANIFEST_FILE_SCHEMA, self._ranges
        )
        table = written.toArrow().cast(MANIFEST_FILE_SCHEMA)
        if (count := file_count(table)) != self.count:
            raise ValidationError(
                f"{self.state.metadata.location}: partition spec {self.form.spec_id} has {self.count} live files in "
                f"snapshot {self.snapshot_id}: {count} were written"
            )
        return table

    @property
    def _keys(self) -> tuple[int, ...]:
        return tuple(field_id for field_id, _ in self.form.partition)

    @cached_property
    def _ranges(self) -> int:
        return range_count(self.count, self.columns, self.form.target_bytes)

    def _bounds(self, keys: DataFrame) -> pa.Table:
        """Return the last keys of the ranges. Runs a job if there are several ranges."""
        columns = [F.col(f"{PARTITION}.`{key}`").alias(f"k{place}") for place, key in enumerate(self._keys)]
        sequence_number = F.col("version_info.sequence_number").alias("sequence_number")
        no_keys = key_schema(dict(self.state.types.spec_fields[self.form.spec_id]), self._keys).empty_table()
        narrow = keys.select(*columns, sequence_number, MANIFEST, ORDINAL)
        return sampled_bounds(narrow, no_keys, self.count, self._ranges)
