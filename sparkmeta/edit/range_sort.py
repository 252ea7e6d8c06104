"""Sort entries with Spark: tasks cut them into key ranges, then other tasks write whole ranges.

Entries stay in Arrow: Spark shuffles them as blobs of many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import UnsupportedError
from sparkmeta.manifests.v4.write import read_rows_stream, rows_stream
from sparkmeta.session import local_frame, map_arrow, read_tasks
from sparkmeta.storage.access import executor_reader, how_tasks_can
from sparkmeta.storage.executors import ExecutorReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.state import TableState

    Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

RANGE_SCHEMA = pa.schema([pa.field("range", pa.int32()), pa.field("rows", pa.binary())])
"""Entries of one range, as an Arrow IPC stream."""


def task_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the units of work of a task, one per row."""
    for batch in batches:
        yield from batch.to_pylist()


def combined(tables: Iterable[pa.Table]) -> pa.Table:
    """Concatenate tables into one chunk, since `take` is twice as slow on many chunks."""
    return pa.concat_tables(tables).combine_chunks()


def ordered(table: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows sorted by the columns of `keys`."""
    order = pc.sort_indices(keys, sort_keys=_sort_keys(keys))
    return table if pc.all(pc.equal(order, np.arange(len(table)))).as_py() else table.take(order)


def range_bounds(sample: pa.Table, ranges: int) -> pa.Table:
    """Return the last keys of all ranges but the last, so that each range holds an equal share of a key sample."""
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
        blob = rows_stream(by_keys.slice(start, end - start), compression="lz4")
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


def spread(spark: SparkSession, units: pa.Table) -> DataFrame:
    """Return units of work as a DataFrame with one unit per task, or several per task if there are many."""
    return local_frame(spark, units).repartition(min(len(units), most_tasks(spark)))


def most_tasks(spark: SparkSession) -> int:
    """Return the maximum number of tasks of a job. A task with several manifests writes one while reading the next."""
    return 8 * read_tasks(spark)


def task_reader(state: TableState) -> ExecutorReader:
    """Return the reader with which tasks open the table's files.

    Raises:
        UnsupportedError: tasks can't open them.
    """
    reader = executor_reader(state.files)
    if reader is None:
        raise UnsupportedError(
            f"{state.metadata.location}: its executors can't open its files: {how_tasks_can(state.files)}"
        )
    return reader


def range_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the unsorted rows of each range. The blobs of a range must be adjacent."""
    for _, blobs in groupby(_blobs(batches), key=lambda row: row[0]):
        yield combined(read_rows_stream(blob) for _, blob in blobs)


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    for batch in batches:
        numbers = batch.column("range").to_pylist()
        for number, blob in zip(numbers, batch.column("rows"), strict=True):
            yield number, blob.as_buffer()


def _sort_keys(keys: pa.Table) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in keys.column_names]
