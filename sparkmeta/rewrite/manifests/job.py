"""The Spark jobs that rewrite a group of Avro manifests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.edit.range_sort import sampled_bounds, sorted_among_tasks, spread, task_reader
from sparkmeta.edit.sorted_manifests import file_count, key_schema
from sparkmeta.entries.counts import live_count
from sparkmeta.entries.parts import manifest_parts
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.errors import ValidationError, translated_errors
from sparkmeta.rewrite.manifests.groups import CONTENTS, target_bytes, total_bytes
from sparkmeta.rewrite.manifests.tasks import ManifestTasks
from sparkmeta.spec.entry import Status

if TYPE_CHECKING:
    from sparkmeta.avro.write import ManifestFormat
    from sparkmeta.rewrite.manifests.groups import ManifestGroup, ManifestRewriteOptions
    from sparkmeta.state import TableState

# Most ranges into which a task cuts its entries.
_MOST_RANGES = 16_384
# Estimated bytes of an entry, for manifests without counts.
_ENTRY_BYTES = 200


@dataclass(frozen=True)
class ManifestJob:
    """The Spark jobs that rewrite a group.

    Attributes:
        name: the beginning of the names of new manifests.
    """

    state: TableState
    group: ManifestGroup
    options: ManifestRewriteOptions
    name: str

    def run(self) -> pa.Table:
        """Write the manifests, and return their rows of `MANIFEST_FILE_SCHEMA`.

        Raises:
            UnsupportedError: tasks can't open the table's files.
            CorruptFileError: a manifest is damaged.
            ValidationError: the manifests don't hold as many files as the manifest list says.
        """
        state, group = self.state, self.group
        tasks = ManifestTasks(self._form, group.keys, task_reader(state))
        ranges = min(group.parts, _MOST_RANGES)
        bounds = self._bounds(ranges)
        projection = state.projection(("first_row_id",))
        units = spread(state.spark, manifest_parts(group.manifests, projection, state.settings.split_manifest_bytes))
        cut = partial(tasks.cut_parts, bounds)
        written = sorted_among_tasks(units, cut, tasks.write_ranges, MANIFEST_FILE_SCHEMA, ranges)
        with translated_errors():
            manifests = written.toArrow().cast(MANIFEST_FILE_SCHEMA)
        self._check_count(manifests)
        return manifests

    def _check_count(self, written: pa.Table) -> None:
        known, count = live_count(self.group.manifests), file_count(written)
        if known is not None and known != count:
            raise ValidationError(
                f"{self.state.metadata.location}: the manifest list says that the {CONTENTS[self.group.content]} "
                f"manifests of partition spec {self.group.spec_id} have {known} live files: they have {count}"
            )

    @cached_property
    def _form(self) -> ManifestFormat:
        target = target_bytes(self.state.metadata, self.options)
        return manifest_format(self.state, self.group.content, self.group.spec_id, self.name, target)

    def _bounds(self, ranges: int) -> pa.Table:
        """Return the last keys of the ranges. Runs a job that reads only keys."""
        state, group = self.state, self.group
        frame = state.entries(group.manifests, state.projection(("version_info",)))
        live = frame.where(F.col("version_info.status") != int(Status.DELETED))
        columns = [F.col(f"{PARTITION}.`{key}`").alias(f"k{place}") for place, key in enumerate(group.keys)]
        keys = live.select(*columns, F.col("version_info.sequence_number").alias("sequence_number"), MANIFEST, ORDINAL)
        entries = live_count(group.manifests)
        entries = total_bytes(group.manifests) // _ENTRY_BYTES if entries is None else entries
        no_keys = key_schema(dict(state.types.spec_fields[group.spec_id]), group.keys).empty_table()
        return sampled_bounds(keys, no_keys, entries, ranges)
