"""Convert new files to entries of Avro manifests: few stay on the driver, others are written by Spark tasks.

Tasks read many files once. They encode them, and Spark keeps the encoded entries until they are sorted and written.
Where Spark can't keep them, on serverless sessions, each of these steps reads and encodes the files again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit.converters import listed_rows
from sparkmeta.commit.file_rows import FILE_COLUMNS, refuse_kinds
from sparkmeta.commit.file_tasks import (
    CONTENT,
    FILES_PER_KEY,
    KEYS,
    KINDS,
    PLACE,
    ROWS,
    SPEC_ID,
    TUPLES,
    FileTasks,
    cut_rows,
    read_keys,
)
from sparkmeta.commit.listed_files import ListedFiles
from sparkmeta.commit.removal import partitions_of
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.edit.range_sort import sampled_bounds, sorted_among_tasks
from sparkmeta.edit.sorted_manifests import SortedManifests, file_count, key_schema, range_count
from sparkmeta.edit.tally import KindCount, Tally, sums_by_kind, tally_of
from sparkmeta.entries.projection import PARTITION
from sparkmeta.errors import ValidationError, translated_errors
from sparkmeta.session import map_arrow, materialize
from sparkmeta.spec.entry import ContentType, FileKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.avro.write import ManifestFormat
    from sparkmeta.commit.listed_rows import ListedRows
    from sparkmeta.edit.list_options import ListOptions
    from sparkmeta.edit.new_snapshot import SnapshotNames
    from sparkmeta.edit.tally import PartitionKey
    from sparkmeta.state import TableState

# Maximum number of new files that a commit encodes on the driver.
MOST_ON_DRIVER = 10_000
# Maximum number of partitions of new files that the summary counts.
_MOST_PARTITIONS = 10_000
_MANIFEST_PATH = "manifest_path"
_CONTENTS = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)


@dataclass(frozen=True)
class ListedFileWriter:
    """Converts the new files of a commit to entries: up to `MOST_ON_DRIVER` as rows, the rest in manifests.

    Files get the data sequence number `sequence_number`, or that of the commit if it is None.
    """

    state: TableState
    names: SnapshotNames
    options: ListOptions
    sequence_number: int | None = None

    @cached_property
    def _rows(self) -> ListedRows:
        return replace(listed_rows(self.state), sequence_number=self.sequence_number)

    def add(self, files: DataFrame, allowed: Collection[int], on_driver: int) -> ListedFiles:
        """See `SnapshotWriter.add`.

        Args:
            on_driver: the number of files that the commit has as rows so far.
        """
        columns = [name for name in FILE_COLUMNS if name in files.columns]
        hinted = [_MANIFEST_PATH] if _MANIFEST_PATH in files.columns and int(ContentType.DATA) not in allowed else []
        room = max(0, MOST_ON_DRIVER - on_driver)
        head = files.select(*columns, *hinted).limit(room + 1).toArrow()
        if len(head) > room:
            with translated_errors():
                return self._in_manifests(files.select(*columns), allowed)
        entries = self._rows.entries(head)
        refuse_kinds(entries, allowed, self.state.metadata.location)
        named = frozenset(head.column(_MANIFEST_PATH).drop_null().to_pylist()) if hinted else frozenset[str]()
        if not len(entries):
            return ListedFiles(named=named)
        return ListedFiles(entries, None, Tally(tally_of(entries), partitions_of(entries, self.state)), named)

    # -- many -------------------------------------------------------------------------------------------------------

    def _in_manifests(self, files: DataFrame, allowed: Collection[int]) -> ListedFiles:
        tasks = FileTasks(self._rows, self._forms, frozenset(allowed), self.names.snapshot_id)
        placed = files.withColumn(PLACE, F.monotonically_increasing_id())
        encoded = materialize(map_arrow(placed, tasks.encode, tasks.schema))
        counts = encoded.select(CONTENT, SPEC_ID, F.inline(KINDS)).groupBy(CONTENT, SPEC_ID, "kind")
        sums = counts.agg(*(F.sum(name).alias(name) for name in ("files", "records", "size"))).collect()
        of_form = dict.fromkeys(sorted((row.content, row.spec_id) for row in sums), 0)
        for row in sums:
            of_form[row.content, row.spec_id] += row.files
        by_kind = sums_by_kind((FileKind(row.kind), KindCount(row.files, row.records, row["size"])) for row in sums)
        written = [self._write(encoded, *key, count) for key, count in of_form.items()]
        partitions = self._partitions(encoded, sorted({spec_id for _, spec_id in of_form}))
        return ListedFiles(leaves=pa.concat_tables(written), tally=Tally(by_kind, partitions))

    @cached_property
    def _forms(self) -> dict[tuple[int, int], ManifestFormat]:
        """The formats of new manifests by content and partition spec, without specs that tasks refuse."""
        name, target = self.names.file("m"), self.options.target_bytes
        known = self.state.specs.keys() - self.state.types.unwritable_fields.keys()
        return {
            (content, spec_id): manifest_format(self.state, kind, spec_id, name, target)
            for content, kind in enumerate(_CONTENTS)
            for spec_id in sorted(known)
        }

    def _write(self, encoded: DataFrame, content: int, spec_id: int, count: int) -> pa.Table:
        """Write the files of one manifest content and spec, sorted by partition, then in their original order."""
        form = self._forms[content, spec_id]
        of_form = encoded.where((F.col(CONTENT) == content) & (F.col(SPEC_ID) == spec_id))
        keys = tuple(field_id for field_id, _ in form.partition)
        ranges = range_count(count, len(self.state.types.column_types), self.options.target_bytes)
        bounds = self._bounds(of_form.select(KEYS), form, count, ranges)
        tasks = SortedManifests(form, keys)
        cut = partial(cut_rows, tasks, bounds)
        written = sorted_among_tasks(of_form.select(ROWS), cut, tasks.write_ranges, MANIFEST_FILE_SCHEMA, ranges)
        table = written.toArrow().cast(MANIFEST_FILE_SCHEMA)
        self.names.written.update(table.column("manifest_path").to_pylist())
        if (written_count := file_count(table)) != count:
            raise ValidationError(
                f"{self.state.metadata.location}: {written_count} files of partition spec {spec_id} were written, and "
                f"{count} were counted before: the files to add have changed meanwhile"
            )
        return table

    def _bounds(self, keys: DataFrame, form: ManifestFormat, count: int, ranges: int) -> pa.Table:
        """Return the last keys of the ranges. If there are several, runs a job that samples the keys."""
        schema = key_schema(dict(form.partition), [field_id for field_id, _ in form.partition])
        sample = map_arrow(keys, partial(read_keys, schema), schema)
        return sampled_bounds(sample, schema.empty_table(), -(-count // FILES_PER_KEY), ranges)

    def _partitions(self, encoded: DataFrame, spec_ids: Collection[int]) -> frozenset[PartitionKey] | None:
        """Return the partitions of the files; None if they are too many."""
        if TUPLES not in encoded.columns:
            return frozenset((spec_id, ()) for spec_id in spec_ids)
        tuples = encoded.select(SPEC_ID, F.explode(TUPLES).alias(PARTITION)).distinct()
        head = tuples.limit(_MOST_PARTITIONS + 1).toArrow().rename_columns(["partition_spec_id", PARTITION])
        return None if len(head) > _MOST_PARTITIONS else partitions_of(head, self.state)
