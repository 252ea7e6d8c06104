"""Sort entries with Spark and write them to Avro manifests. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.avro.write import ENTRY, ManifestFormat, encode_entries, packed_size, with_version_info, write_manifest
from sparkmeta.entries.live import live_count
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.expr.arrays import from_stream, to_stream, with_plain_types
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.manifests.v4.write import leaf_count, pieces, put_behind
from sparkmeta.session import in_tasks, local_frame, map_arrow, map_on_driver, read_tasks, tasks_of_work
from sparkmeta.spec.entry import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    Cut = Callable[[pa.Table, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


# -- Sort entries with Spark ------------------------------------------------------------------------------------------
# Tasks cut entries into key ranges, then other tasks write whole ranges. Entries stay in Arrow: Spark shuffles them as
# blobs of many rows.


T = TypeVar("T")

RANGE_SCHEMA = pa.schema([pa.field("range", pa.int32()), pa.field("rows", pa.binary())])
"""Entries of one range, as an Arrow IPC stream."""


def task_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the units of work of a task, one per row."""
    for batch in batches:
        yield from batch.to_pylist()


def combined(tables: Iterable[pa.Table]) -> pa.Table:
    """Concatenate tables into one chunk, since `take` is twice as slow on many chunks."""
    return pa.concat_tables(tables).combine_chunks()


def packed(items: Iterable[T], limit: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Pack neighbours into lists of at most a total size. A larger item gets a list of its own."""
    pack: list[T] = []
    total = 0
    for item in items:
        if pack and total + size(item) > limit:
            yield pack
            pack, total = [], 0
        pack.append(item)
        total += size(item)
    if pack:
        yield pack


def ordered(table: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows sorted by the columns of `keys`."""
    order = pc.sort_indices(keys, sort_keys=_sort_keys(keys))
    return table if pc.all(pc.equal(order, np.arange(len(table)))).as_py() else table.take(order)


def range_bounds(sample: pa.Table, ranges: int) -> pa.Table:
    """Return the last keys of all ranges but the last. Each range holds an equal share of a sample of keys."""
    by_keys = ordered(sample, sample)
    ends = sorted({len(by_keys) * number // ranges - 1 for number in range(1, ranges)} - {-1})
    return by_keys.take(pa.array(ends, pa.int64()))


def sampled_bounds(keys: DataFrame, more_keys: pa.Table, entries: int, ranges: int) -> pa.Table:
    """Return the last keys of all ranges but the last. Runs a job that samples the keys.

    Args:
        keys: the keys of entries in manifests.
        more_keys: the keys of entries on the driver, with the same schema.
        entries: the approximate number of `keys`.
    """
    if ranges < 2:
        return more_keys.schema.empty_table()
    sample = sampled(keys, entries, ranges).toArrow().cast(more_keys.schema)
    return range_bounds(pa.concat_tables([sample, more_keys]), ranges)


def sampled(rows: DataFrame, count: int, ranges: int) -> DataFrame:
    """Return a sample of rows, large enough for `range_bounds`.

    Args:
        count: the approximate number of rows.
    """
    share = min(_LARGEST_SAMPLE, max(_LEAST_SAMPLE, ranges * _SAMPLED)) / max(count, 1)
    return rows.sample(min(1.0, share), seed=7)


# Sampled keys per range, and their minimum and maximum total.
_SAMPLED = 60
_LEAST_SAMPLE, _LARGEST_SAMPLE = 2_000, 100_000


_IS_BOUND = "is_bound"


def cut(table: pa.Table, keys: pa.Table, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
    """Sort rows and split them at the bounds into rows of `RANGE_SCHEMA`. Bounds are inclusive upper bounds."""
    rows = len(table)
    if not rows:
        return
    merged = pa.concat_tables([keys.cast(bounds.schema), bounds])
    marked = merged.append_column(_IS_BOUND, pa.array(np.arange(len(merged)) >= rows).cast(pa.int8()))
    order = pc.sort_indices(marked, sort_keys=_sort_keys(marked)).to_numpy()
    is_bound = order >= rows
    numbers = np.cumsum(is_bound)[~is_bound]
    by_keys = table.take(pa.array(order[~is_bound]))
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1, [rows]])
    for start, end in pairwise(starts.tolist()):
        blob = to_stream(by_keys.slice(start, end - start), compression="lz4")
        yield pa.RecordBatch.from_pydict({"range": [int(numbers[start])], "rows": [blob]}, schema=RANGE_SCHEMA)


def sorted_among_tasks(
    units: DataFrame, cut_units: Task, write_ranges: Task, written: pa.Schema, ranges: int
) -> DataFrame:
    """Sort the entries of units of work among tasks and write them range by range.

    Args:
        cut_units: reads units and returns rows of `RANGE_SCHEMA`.
        write_ranges: writes rows of `RANGE_SCHEMA`, grouped by range, and returns rows of `written`.
    """
    blobs = map_arrow(units, cut_units, RANGE_SCHEMA)
    by_range = blobs.repartition(min(ranges, most_tasks(units.sparkSession)), "range").sortWithinPartitions("range")
    return map_arrow(by_range, write_ranges, written)


def spread(spark: SparkSession, units: pa.Table, size: int | None = None) -> DataFrame:
    """Return units of work as a DataFrame with one unit per task, or several per task if there are many.

    Args:
        spark: the session.
        units: the units.
        size: the bytes of metadata to decode. If the units are small, a task gets several.
    """
    tasks = len(units) if size is None else tasks_of_work(len(units), size)
    return in_tasks(local_frame(spark, units), min(tasks, most_tasks(spark)))


def most_tasks(spark: SparkSession) -> int:
    """Return the maximum number of tasks of a job. A task with several manifests writes one while it reads the next."""
    return 8 * read_tasks(spark)


def range_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the unsorted rows of each range. The blobs of a range must be adjacent."""
    for _, blobs in groupby(_blobs(batches), key=lambda row: row[0]):
        yield combined(from_stream(blob) for _, blob in blobs)


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    for batch in batches:
        numbers = batch.column("range").to_pylist()
        for number, blob in zip(numbers, batch.column("rows"), strict=True):
            yield number, blob.as_buffer()


def _sort_keys(keys: pa.Table) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in keys.column_names]


# -- Sort and write encoded entries of a partition spec ---------------------------------------------------------------
# Entries stay in Arrow, with their Avro encoding as a column: Spark shuffles them as blobs of many rows.


# Estimated bytes of a manifest entry: without metrics, and per column with metrics.
_ENTRY_BYTES, _COLUMN_BYTES = 100, 12
MOST_RANGES = 16_384
"""Maximum number of ranges that a task cuts its entries into."""
# Bytes of entries that a task cuts into ranges at once.
_CUT_BYTES = 64 << 20


@dataclass(frozen=True)
class SortedManifests:
    """Sorts and writes the entries of one partition spec. Picklable, for tasks.

    Attributes:
        keys: ids of partition fields. Entries are sorted by these, then by sequence number and original position.
    """

    form: ManifestFormat
    keys: tuple[int, ...]

    def run(self, units: DataFrame, cut_units: Cut, keys: DataFrame, count: int, ranges: int) -> pa.Table:
        """Sort entries among tasks, write them, and return the manifests' rows of `MANIFEST_FILE_SCHEMA`. Runs jobs.

        Args:
            units: units of work of `cut_units`.
            cut_units: called with the last keys of the ranges and with units; returns entries as rows of
                `RANGE_SCHEMA`.
            keys: keys of entries, as `key_table`. They are sampled if there are several ranges.
            count: the approximate number of `keys`.
            ranges: the number of ranges.
        """
        bounds = sampled_bounds(keys, key_schema(dict(self.form.partition), self.keys).empty_table(), count, ranges)
        written = sorted_among_tasks(units, partial(cut_units, bounds), self.write_ranges, MANIFEST_FILE_SCHEMA, ranges)
        return written.toArrow().cast(MANIFEST_FILE_SCHEMA)

    def run_on_driver(self, units: pa.Table, cut_units: Cut) -> pa.Table:
        """Sort the entries of few units in this process, and write them; see `run`."""
        bounds = key_schema(dict(self.form.partition), self.keys).empty_table()
        blobs = map_on_driver(units, partial(cut_units, bounds), RANGE_SCHEMA)
        return pa.Table.from_batches(self.write_ranges(blobs.to_batches()), MANIFEST_FILE_SCHEMA)

    def cut_entries(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut entries with the column `entry` into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        for table in map(combined, packed(tables, _CUT_BYTES, lambda table: table.column(ENTRY).nbytes)):
            yield from cut(table, key_table(table, self.keys), bounds)

    def write_ranges(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write ranges (adjacent rows of `RANGE_SCHEMA`) to manifests and yield rows of `MANIFEST_FILE_SCHEMA`."""
        written = ((None, write_manifest(entries, self.form)) for entries in self._manifests(batches))
        for _, row in put_behind(written, self.form.writer, "manifest_path"):
            yield from row.to_batches()

    def _manifests(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        for table in range_tables(batches):
            yield from manifest_pieces(ordered(table, key_table(table, self.keys)), self.form)


def manifest_pieces(entries: pa.Table, form: ManifestFormat) -> Iterator[pa.Table]:
    """Yield entries with the column `entry`, in one chunk, in parts of about the target size of a manifest."""
    yield from pieces(entries, leaf_count(len(entries), packed_size(entries, form), form.target_bytes))


def range_count(entries: int, columns: int, target_bytes: int) -> int:
    """Return the number of ranges of about the target size of a manifest.

    Args:
        entries: the number of entries.
        columns: the approximate number of columns with metrics.
        target_bytes: the target size of a manifest.
    """
    return max(1, min(MOST_RANGES, entries * (_ENTRY_BYTES + _COLUMN_BYTES * columns) // target_bytes))


def key_table(entries: pa.Table, keys: Sequence[int]) -> pa.Table:
    """Return the sort keys of entries: partition values `k0`, `k1`, ..., sequence number and original position."""
    tuples = entries.column(PARTITION) if keys else None
    columns = {f"k{index}": pc.struct_field(tuples, [str(key)]) for index, key in enumerate(keys)}
    columns["sequence_number"] = pc.struct_field(entries.column("version_info"), "sequence_number")
    return pa.table({**columns, MANIFEST: entries.column(MANIFEST), ORDINAL: entries.column(ORDINAL)})


def key_columns(entries: DataFrame, keys: Sequence[int]) -> DataFrame:
    """Return the sort keys of entries, as `key_table`."""
    columns = [F.col(f"{PARTITION}.`{key}`").alias(f"k{index}") for index, key in enumerate(keys)]
    number = F.col("version_info.sequence_number").alias("sequence_number")
    return entries.select(*columns, number, MANIFEST, ORDINAL)


def key_schema(partition: Mapping[int, str], keys: Sequence[int]) -> pa.Schema:
    """Return the schema of `key_table`.

    Args:
        partition: partition field id -> type name.
    """
    fields = [pa.field(f"k{index}", bound_arrow_type(partition[key])) for index, key in enumerate(keys)]
    numbers = [pa.field("sequence_number", pa.int64()), pa.field(MANIFEST, pa.int32()), pa.field(ORDINAL, pa.int64())]
    return pa.schema([*fields, *numbers])


def file_count(written: pa.Table) -> int:
    """Return the number of live files in written manifests, rows of `MANIFEST_FILE_SCHEMA`."""
    return live_count(written) or 0


# -- Encode entries for Avro manifests --------------------------------------------------------------------------------


_SORTED = ("version_info", "record_count", PARTITION, MANIFEST, ORDINAL, ENTRY)


@dataclass(frozen=True)
class EntryTasks(SortedManifests):
    """Encodes, sorts and writes the entries of one partition spec. Picklable.

    Attributes:
        snapshot_id: the manifests' snapshot. Files that it added are ADDED, all others EXISTING.
    """

    snapshot_id: int

    def cut_rows(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut live entries with typed stats into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        yield from self.cut_entries(bounds, map(self._encoded, batches))

    def _encoded(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        batch = with_plain_types(raw)
        info = batch.column("version_info")
        is_added = pc.and_(
            pc.equal(pc.struct_field(info, "status"), int(Status.ADDED)),
            pc.equal(pc.struct_field(info, "snapshot_id"), self.snapshot_id),
        )
        status = pc.if_else(is_added, int(Status.ADDED), int(Status.EXISTING)).cast(pa.int32())
        entries = with_version_info(batch, status=status)
        return _with_entry(entries, self.form)


def added_entries(entries: pa.RecordBatch, form: ManifestFormat, snapshot_id: int) -> pa.RecordBatch:
    """Return new files as ADDED entries of a snapshot, with the column `entry` (semantics 9.4).

    Args:
        entries: all columns of content entries, metrics maps, `partition`, `manifest` and `ordinal`.
    """
    rows = len(entries)
    status = pa.repeat(pa.scalar(int(Status.ADDED), pa.int32()), rows)
    stamped = with_version_info(entries, status=status, snapshot_id=pa.repeat(pa.scalar(snapshot_id, pa.int64()), rows))
    return _with_entry(stamped, form)


def existing_entries(entries: pa.RecordBatch, form: ManifestFormat) -> pa.RecordBatch:
    """Return live entries as EXISTING entries that keep their numbers, with the column `entry`; see `added_entries`."""
    status = pa.repeat(pa.scalar(int(Status.EXISTING), pa.int32()), len(entries))
    return _with_entry(with_version_info(entries, status=status), form)


def _with_entry(entries: pa.RecordBatch, form: ManifestFormat) -> pa.RecordBatch:
    names = [name for name in _SORTED if name in entries.schema.names]
    return entries.select(names).append_column(ENTRY, encode_entries(entries, form))
