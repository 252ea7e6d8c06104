"""Convert new files to entries of Avro manifests: few stay on the driver, others are written by Spark tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.commit.file_rows import FILE_COLUMNS
from sparkmeta.commit.file_writer import refuse_kinds
from sparkmeta.commit.listed_files import ListedFiles
from sparkmeta.commit.listed_rows import listed_rows
from sparkmeta.commit.removal import partitions_of
from sparkmeta.edit.new_manifests import PLACE, AddedTasks
from sparkmeta.edit.range_sort import range_bounds, sampled, sorted_among_tasks
from sparkmeta.edit.sorted_manifests import file_count, key_schema, key_table, manifest_format
from sparkmeta.edit.summary import KindCount, Tally, file_kind, tally_of
from sparkmeta.errors import ValidationError, translated_errors
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.manifests.metrics_maps import plain_batch
from sparkmeta.manifests.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.session import map_arrow, materialize
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.listed_rows import ListedRows
    from sparkmeta.edit.list_options import ListOptions
    from sparkmeta.edit.new_snapshot import SnapshotNames
    from sparkmeta.state import TableState

# Maximum number of new files that a commit encodes on the driver.
MOST_ON_DRIVER = 10_000
# Maximum number of partitions of new files that the summary counts.
_MOST_PARTITIONS = 10_000
# Estimated bytes of a manifest entry: without metrics, and per column with metrics.
_ENTRY_BYTES, _COLUMN_BYTES = 100, 12
# Maximum number of ranges into which a task cuts its entries.
_MOST_RANGES = 16_384
_MANIFEST_PATH = "manifest_path"


@dataclass(frozen=True)
class ListedFileWriter:
    """Converts the new files of a commit to entries: up to `MOST_ON_DRIVER` as rows, the rest in manifests.

    Files get the data sequence number `sequence_number`, or that of the commit if it is None.
    """

    state: TableState
    names: SnapshotNames
    options: ListOptions
    sequence_number: int | None = None

    @property
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
            # Refuse missing columns before a query refers to them.
            self._rows.entries(head.slice(0, 1))
            with translated_errors():
                return self._in_manifests(files.select(*columns), allowed)
        entries = self._rows.entries(head)
        refuse_kinds(entries, allowed, self.state)
        named = frozenset(head.column(_MANIFEST_PATH).drop_null().to_pylist()) if hinted else frozenset[str]()
        if not len(entries):
            return ListedFiles(named=named)
        return ListedFiles(entries, None, Tally(tally_of(entries), partitions_of(entries, self.state)), named)

    # -- many -------------------------------------------------------------------------------------------------------

    def _in_manifests(self, files: DataFrame, allowed: Collection[int]) -> ListedFiles:
        rows = self._rows
        placed = _with_defaults(files, rows).withColumn(PLACE, F.monotonically_increasing_id())
        groups = _counted(placed)
        self._refuse(groups, placed, allowed)
        written = [self._write(placed, rows, *group) for group in _by_spec(groups)]
        return ListedFiles(leaves=pa.concat_tables(written), tally=self._tally(groups, rows))

    def _refuse(self, groups: DataFrame, files: DataFrame, allowed: Collection[int]) -> None:
        """Refuse files of kinds that the operation may not add, and files of unknown specs."""
        state = self.state
        for content, spec_id in groups.select("content", "spec_id").distinct().collect():
            if content not in set(allowed) or spec_id not in state.specs:
                of_group = (F.col("content") == content) & (F.col("spec_id") == spec_id)
                file = (
                    files.select(*(name for name in files.columns if name != PLACE)).where(of_group).limit(1).toArrow()
                )
                refuse_kinds(listed_rows(state).entries(file), allowed, state)

    def _write(self, files: DataFrame, rows: ListedRows, content: int, spec_id: int, count: int) -> pa.Table:
        """Write the files of one manifest content and spec, sorted by partition, then in their original order."""
        state = self.state
        kind = ContentType.DATA_MANIFEST if content == _DATA else ContentType.DELETE_MANIFEST
        form = manifest_format(state, kind, spec_id, self.names.file("m"), self.options.target_bytes)
        keys = tuple(field_id for field_id, _ in form.partition)
        of_spec = files.where(_manifest_content() == content).where(F.col("spec_id") == spec_id)
        entry_bytes = _ENTRY_BYTES + _COLUMN_BYTES * len(state.types.column_types)
        ranges = max(1, min(_MOST_RANGES, count * entry_bytes // self.options.target_bytes))
        bounds = self._bounds(of_spec, rows, spec_id, keys, count, ranges)
        tasks = AddedTasks(form, keys, rows.entries, self.names.snapshot_id)
        cut = partial(tasks.cut_rows, bounds)
        written = sorted_among_tasks(of_spec, cut, tasks.write_ranges, MANIFEST_FILE_SCHEMA, ranges)
        table = written.toArrow().cast(MANIFEST_FILE_SCHEMA)
        self.names.written.update(table.column("manifest_path").to_pylist())
        if (written_count := file_count(table)) != count:
            raise ValidationError(
                f"{state.metadata.location}: {written_count} files of partition spec {spec_id} were written, and "
                f"{count} were counted before: the files to add have changed meanwhile"
            )
        return table

    def _bounds(
        self, files: DataFrame, rows: ListedRows, spec_id: int, keys: tuple[int, ...], count: int, ranges: int
    ) -> pa.Table:
        """Return the last keys of the ranges. If there are several, runs a job that samples the files' partitions."""
        schema = key_schema(dict(self.state.types.spec_fields[spec_id]), keys)
        if ranges < 2:
            return schema.empty_table()
        names = [name for name in ("file_path", "spec_id", PARTITION, PLACE) if name in files.columns]
        sample = sampled(files.select(*names), count, ranges)
        return range_bounds(map_arrow(sample, partial(_keys, rows, keys), schema).toArrow().cast(schema), ranges)

    def _tally(self, groups: DataFrame, rows: ListedRows) -> Tally:
        """Return the counts by kind, with the partitions unless there are too many."""
        totals = groups.groupBy("content", "file_format").agg(*(F.sum(name).alias(name) for name in _SUMS))
        tally = Tally()
        for row in totals.collect():
            count = KindCount(row["files"], row["records"], row["size"])
            tally = tally.plus(Tally({file_kind(row["content"], row["file_format"]): count}))
        names = [name for name in ("spec_id", PARTITION) if name in groups.columns]
        head = groups.select(F.lit("").alias("file_path"), *names).distinct().limit(_MOST_PARTITIONS + 1).toArrow()
        if len(head) > _MOST_PARTITIONS:
            return Tally(tally.counts, None)
        return Tally(tally.counts, partitions_of(rows.placed(head), self.state))


_DATA, _DELETES = 0, 1
_SUMS = ("files", "records", "size")


def _manifest_content() -> Any:
    return F.when(F.col("content") == int(ContentType.DATA), _DATA).otherwise(_DELETES)


def _with_defaults(files: DataFrame, rows: ListedRows) -> DataFrame:
    """Fill in default values of `content` and `spec_id`.

    The frame fails when it runs if values are not whole numbers.
    """
    defaults = {"content": int(ContentType.DATA), "spec_id": rows.default_spec}
    return files.withColumns(
        {
            name: F.coalesce(_integer(rows.table, name), F.lit(value)) if name in files.columns else F.lit(value)
            for name, value in defaults.items()
        }
    )


def _integer(table: str, name: str) -> Column:
    """Return a column as an integer. Other values fail regardless of Spark's ANSI mode."""
    column = F.col(name)
    number = column.try_cast("int")
    message = F.concat(
        F.lit(f"{table}: {name} of file "), "file_path", F.lit(" is "), column.cast("string"),
        F.lit(": expected a whole number"),
    )  # fmt: skip
    return F.when(column.isNotNull() & number.isNull(), F.raise_error(message).cast("int")).otherwise(number)


def _counted(files: DataFrame) -> DataFrame:
    """Return the number of files, their records and bytes by content, format, spec and partition. Runs a job."""
    named = [name for name in ("content", "file_format", "spec_id", PARTITION) if name in files.columns]
    # Tasks refuse values that are not numbers.
    records, size = (F.col(name).try_cast("bigint") for name in ("record_count", "file_size_in_bytes"))
    if "content_size_in_bytes" in files.columns:
        size = F.coalesce(F.col("content_size_in_bytes").try_cast("bigint"), size)
    sums = [F.count("*").alias("files"), F.sum(records).alias("records"), F.sum(size).alias("size")]
    return materialize(files.groupBy(*named).agg(*sums))


def _by_spec(groups: DataFrame) -> list[tuple[int, int, int]]:
    """Return the number of files by manifest content and spec."""
    totals = groups.groupBy(_manifest_content().alias("content"), "spec_id").agg(F.sum("files").alias("files"))
    return [tuple(row) for row in totals.orderBy("content", "spec_id").collect()]


def _keys(rows: ListedRows, keys: tuple[int, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for raw in batches:
        files = pa.Table.from_batches([plain_batch(raw)])
        placed = rows.placed(files)
        columns = {
            "version_info": pa.array([{"sequence_number": None}] * len(files), _NO_VERSION),
            MANIFEST: pa.repeat(pa.scalar(0, pa.int32()), len(files)),
            ORDINAL: files.column(PLACE),
        }
        for name, values in columns.items():
            placed = placed.append_column(name, values)
        yield from key_table(placed, keys).to_batches()


_NO_VERSION = pa.struct([pa.field("sequence_number", pa.int64())])
