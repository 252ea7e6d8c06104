"""Cut planned files into splits and pack them into tasks of similar size, without collecting them on the driver.

Each Spark task packs the files that it holds with Iceberg's bin packing (first fit among a few open bins), so its last
bins may stay partly filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.session import map_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

SPLIT_COLUMNS = ("start", "length")


@dataclass(frozen=True)
class SplitPlanning:
    """Table properties `read.split.*`: bytes per task, open bins to look back at, cost of opening a file in bytes."""

    target_size: int = 128 * 1024 * 1024
    lookback: int = 10
    open_file_cost: int = 4 * 1024 * 1024


def plan_tasks(planned: DataFrame, row_type: StructType, splitting: SplitPlanning) -> DataFrame:
    """Pack rows of `plan_files`, which have type `row_type`, into combined tasks, lazily. Returns one row per task.

    Columns: size_in_bytes (data bytes to read), files_count, tasks (array of structs with start and length in bytes and
    the columns of `plan_files`). Contiguous splits of a file in one task are merged.
    """
    from pyspark.sql import functions as F

    row = F.struct(F.lit(0).cast("bigint").alias("start"), F.col("file_size_in_bytes").alias("length"), "*")
    whole = planned.select(
        F.lit(0).cast("bigint").alias("size_in_bytes"),
        F.lit(0).cast("bigint").alias("files_count"),
        F.array(row).alias("tasks"),
    )
    return map_arrow(whole, partial(_pack_partition, splitting), task_type(row_type))


def task_type(row_type: StructType) -> StructType:
    """Return the row type of `plan_tasks` over rows of `row_type`."""
    from pyspark.sql.types import ArrayType, LongType, StructField, StructType

    ranges = [StructField(name, LongType()) for name in SPLIT_COLUMNS]
    tasks = ArrayType(StructType([*ranges, *row_type.fields]))
    return StructType([StructField("size_in_bytes", LongType()), StructField("files_count", LongType()),
                       StructField("tasks", tasks)])  # fmt: skip


def _pack_partition(splitting: SplitPlanning, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    packer = _Packer(splitting)
    for batch in batches:
        files = pa.RecordBatch.from_struct_array(batch.column("tasks").flatten())
        yield from packer.add(files)
    yield from packer.finish()


@dataclass
class _Bin:
    weight: int = 0
    splits: list[int] = field(default_factory=list)


@dataclass
class _Splits:
    """The splits of a batch's files: the file's row, first byte, length in bytes, and weight."""

    row: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any]
    length: np.ndarray[Any, Any]
    weight: np.ndarray[Any, Any]


class _Packer:
    """First-fit packing of a stream of splits. `_rows` has the rows of splits in open bins."""

    def __init__(self, splitting: SplitPlanning) -> None:
        self.splitting = splitting
        self._open: list[_Bin] = []
        self._rows: pa.Table | None = None

    def add(self, files: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        splits = cut(files, self.splitting)
        new = _with_ranges(files, splits)
        base = 0 if self._rows is None else len(self._rows)
        self._rows = new if self._rows is None else pa.concat_tables([self._rows, new])
        closed = [done for i, w in enumerate(splits.weight.tolist()) if (done := self._place(base + i, w))]
        if closed:
            yield self._emit(closed)
            self._forget()

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._open:
            yield self._emit(self._open)

    def _place(self, split: int, weight: int) -> _Bin | None:
        """Put a split into the first open bin that it fits, or a new one. Return the bin that this closes, if any."""
        for open_bin in self._open:
            if open_bin.weight + weight <= self.splitting.target_size:
                open_bin.weight += weight
                open_bin.splits.append(split)
                return None
        self._open.append(_Bin(weight, [split]))
        if len(self._open) <= self.splitting.lookback:
            return None
        heaviest = max(self._open, key=lambda open_bin: open_bin.weight)
        self._open.remove(heaviest)
        return heaviest

    def _emit(self, bins: list[_Bin]) -> pa.RecordBatch:
        assert self._rows is not None
        merged = [self._merged(closed.splits) for closed in bins]
        tasks = pa.concat_tables(merged).combine_chunks().to_struct_array()
        sizes = [len(rows) for rows in merged]
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        flat = pa.concat_arrays(tasks.chunks) if isinstance(tasks, pa.ChunkedArray) else tasks
        lengths = [pc.sum(rows.column("length")).as_py() for rows in merged]
        counts = [pc.count_distinct(rows.column("file_path")).as_py() for rows in merged]
        columns = [pa.array(lengths, pa.int64()), pa.array(counts, pa.int64()), pa.ListArray.from_arrays(offsets, flat)]
        return pa.RecordBatch.from_arrays(columns, names=["size_in_bytes", "files_count", "tasks"])

    def _merged(self, splits: list[int]) -> pa.Table:
        """Return the rows of a bin's splits, with contiguous splits of a file merged into a single row."""
        assert self._rows is not None
        rows = self._rows.take(pa.array(splits))
        start, length = (rows.column(name).to_numpy() for name in SPLIT_COLUMNS)
        path = rows.column("file_path").combine_chunks()
        same = pc.equal(path.slice(1), path.slice(0, len(path) - 1)).to_numpy(False)
        goes_on = np.concatenate([[False], same & (start[1:] == start[:-1] + length[:-1])])
        if not goes_on.any():
            return rows
        groups = np.cumsum(~goes_on) - 1
        total = np.bincount(groups, weights=length).astype(np.int64)
        firsts = rows.filter(pa.array(~goes_on))
        return firsts.set_column(firsts.schema.get_field_index("length"), "length", pa.array(total))

    def _forget(self) -> None:
        """Keep only the rows of splits in open bins and renumber them."""
        assert self._rows is not None
        splits = [split for open_bin in self._open for split in open_bin.splits]
        self._rows = self._rows.take(pa.array(splits, pa.int64())).combine_chunks()
        numbers = iter(range(len(splits)))
        for open_bin in self._open:
            open_bin.splits = [next(numbers) for _ in open_bin.splits]


def cut(files: pa.RecordBatch, splitting: SplitPlanning) -> _Splits:
    """Cut planned files into splits: at their split offsets if these are usable, otherwise by the target size."""
    sizes = files.column("file_size_in_bytes").to_pylist()
    offsets = files.column("split_offsets").to_pylist()
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for number, (size, at) in enumerate(zip(sizes, offsets, strict=True)):
        first = at if _usable(at, size) else range(0, size, splitting.target_size)
        rows += [number] * len(first)
        starts += first
        ends += [*first[1:], size] if len(first) else []
    row, start = np.array(rows, np.int64), np.array(starts, np.int64)
    length = np.array(ends, np.int64) - start
    extra, count = _delete_weights(files)
    weight = np.maximum(length + extra[row], (1 + count[row]) * splitting.open_file_cost)
    return _Splits(row, start, length, weight)


def _usable(offsets: list[int] | None, size: int) -> bool:
    """Return whether offsets are strictly ascending and within the file. Wrong ones are ignored."""
    if not offsets or offsets[-1] >= size:
        return False
    return all(a < b for a, b in pairwise(offsets))


def _delete_weights(files: pa.RecordBatch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the bytes and number of each file's deletes. A DV counts its own bytes, not those of its Puffin file."""
    deletes = files.column("deletes")
    flat = deletes.flatten()
    size = pc.coalesce(pc.struct_field(flat, "content_size_in_bytes"), pc.struct_field(flat, "file_size_in_bytes"))
    count = pc.fill_null(pc.list_value_length(deletes), 0).to_numpy(False).astype(np.int64)
    ends = np.cumsum(count)
    running = np.concatenate([[0], np.cumsum(size.to_numpy(False))]) if len(flat) else np.zeros(1, np.int64)
    return (running[ends] - running[ends - count]).astype(np.int64), count


def _with_ranges(files: pa.RecordBatch, splits: _Splits) -> pa.Table:
    table = pa.Table.from_batches([files]).take(pa.array(splits.row))
    for name in SPLIT_COLUMNS:
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(getattr(splits, name)))
    return table
