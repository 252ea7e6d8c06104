"""Entries that are sorted among Spark's tasks: cut into ranges of their keys, and moved as blobs of many rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.manifests.v4.write import read_rows_stream, rows_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RANGE_SCHEMA = pa.schema([pa.field("range", pa.int32()), pa.field("rows", pa.binary())])
"""Entries of one range, as an Arrow stream."""


def task_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """What a task has to do, a row a piece of work."""
    for batch in batches:
        yield from batch.to_pylist()


def combined(tables: Iterable[pa.Table]) -> pa.Table:
    """The rows of all in one chunk: it takes twice as long to take rows of many."""
    return pa.concat_tables(tables).combine_chunks()


def ordered(table: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows in the order of their keys, the columns of the other table from the first to the last."""
    order = pc.sort_indices(keys, sort_keys=_sort_keys(keys))
    return table if pc.all(pc.equal(order, np.arange(len(table)))).as_py() else table.take(order)


def range_bounds(sample: pa.Table, ranges: int) -> pa.Table:
    """The keys that end each range but the last, so that ranges hold equal shares of a sample of keys."""
    by_keys = ordered(sample, sample)
    ends = sorted({len(by_keys) * one // ranges - 1 for one in range(1, ranges)} - {-1})
    return by_keys.take(pa.array(ends, pa.int64()))


_IS_BOUND = "is_bound"


def cut(table: pa.Table, keys: pa.Table, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows sorted, and split at the bounds, as rows of `RANGE_SCHEMA`. What equals a bound is in the range it ends."""
    rows = len(table)
    if not rows:
        return
    both = pa.concat_tables([keys.cast(bounds.schema), bounds])
    marked = both.append_column(_IS_BOUND, pa.array(np.arange(len(both)) >= rows).cast(pa.int8()))
    order = pc.sort_indices(marked, sort_keys=_sort_keys(marked)).to_numpy()
    is_bound = order >= rows
    numbers = np.cumsum(is_bound)[~is_bound]
    by_keys = table.take(pa.array(order[~is_bound]))
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1, [rows]])
    for start, end in pairwise(starts.tolist()):
        blob = rows_stream(by_keys.slice(start, end - start), compression="lz4")
        yield pa.RecordBatch.from_pydict({"range": [int(numbers[start])], "rows": [blob]}, schema=RANGE_SCHEMA)


def exchanged(found: DataFrame, tasks: int) -> DataFrame:
    """Rows of `RANGE_SCHEMA`, those of a range together, in one of so many tasks."""
    return found.repartition(tasks, "range").sortWithinPartitions("range")


def range_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of one range after the other, in any order; the blobs of a range stand together."""
    for _, blobs in groupby(_blobs(batches), key=lambda row: row[0]):
        yield combined(read_rows_stream(blob) for _, blob in blobs)


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    for batch in batches:
        numbers = batch.column("range").to_pylist()
        for number, blob in zip(numbers, batch.column("rows"), strict=True):
            yield number, blob.as_buffer()


def _sort_keys(keys: pa.Table) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in keys.column_names]
