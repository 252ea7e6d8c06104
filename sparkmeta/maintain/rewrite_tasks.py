"""Tasks of rewrites: pack files, and write rows. Spark tasks import this module."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import SparkmetaError
from sparkmeta.rows.file_rows import RowReader
from sparkmeta.write.tasks import PARTITION_COLUMN, DataFileTasks, partition_codes

# -- The tasks that pack data files into groups. Without Spark --------------------------------------------------------


# The numbers of a task's groups begin at the task's number, shifted by this.
_GROUP_BITS = 40


@dataclass(frozen=True)
class Packing:
    """Packs files into groups of one partition by next fit, in their order, as Iceberg's action does. Picklable.

    Attributes:
        keys: the columns that distinguish partitions. Files of a partition are adjacent.
        most_bytes: the maximum size of a group of several files.
        most_files: the maximum number of files of a group; None for any number.
    """

    keys: tuple[str, ...]
    most_bytes: int
    most_files: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the files with the number of their group in an additional column."""
        groups = _Groups(self.most_bytes, self.most_files or sys.maxsize, _task_number() << _GROUP_BITS)
        last_keys: list[pa.Array] | None = None
        for batch in batches:
            if not len(batch):
                continue
            keys = [batch.column(name) for name in self.keys]
            previous_keys = keys if last_keys is None else last_keys
            joined = [
                pa.concat_arrays([previous.slice(0, 1), current])
                for previous, current in zip(previous_keys, keys, strict=True)
            ]
            runs = _run_starts(joined, len(batch) + 1)
            # The first row comes from the last batch; there is no run before the first batch.
            starts = [start - 1 for start in runs if start > 0]
            if last_keys is None and (not starts or starts[0]):
                starts = [0, *starts]
            numbers = groups.of(batch.column("file_size_in_bytes").to_numpy(zero_copy_only=False), starts)
            last_keys = [key.slice(len(batch) - 1, 1) for key in keys]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(numbers)], names=[*batch.schema.names, "group"])


def _run_starts(values: Sequence[pa.Array], rows: int) -> list[int]:
    """Return the first row of each run of equal partition values.

    Args:
        values: the values of each partition field.
        rows: the number of rows, at least 1.
    """
    changes = np.zeros(rows, np.bool_)
    changes[0] = True
    for array in values:
        codes = partition_codes(array)
        changes[1:] |= codes[1:] != codes[:-1]
    starts: list[int] = np.flatnonzero(changes).tolist()
    return starts


@dataclass
class _Groups:
    """The open group of a task.

    Attributes:
        most_bytes: see `Packing`.
        most_files: see `Packing`.
        number: the number of the open group.
    """

    most_bytes: int
    most_files: int
    number: int
    _bytes: int = field(default=0, init=False)
    _files: int = field(default=0, init=False)

    def of(self, sizes: np.ndarray[Any, Any], starts: list[int]) -> np.ndarray[Any, Any]:
        """Return the group of each file.

        Args:
            sizes: the bytes of the files.
            starts: the index of the first file of each partition.
        """
        numbers = np.empty(len(sizes), np.int64)
        ends = np.cumsum(sizes)
        edges = sorted({0, *starts, len(sizes)})
        for start, end in pairwise(edges):
            if start in starts:
                self._open()
            row = start
            while row < end:
                bytes_before = int(ends[row - 1]) if row else 0
                fitting = int(np.searchsorted(ends, bytes_before + self.most_bytes - self._bytes, side="right"))
                next_row = min(end, fitting, row + self.most_files - self._files)
                if next_row <= row and self._files:
                    self._open()
                    continue
                next_row = max(next_row, row + 1)
                numbers[row:next_row] = self.number
                self._bytes += int(ends[next_row - 1]) - bytes_before
                self._files += next_row - row
                row = next_row
        return numbers

    def _open(self) -> None:
        if self._files:
            self.number, self._bytes, self._files = self.number + 1, 0, 0


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


# -- The z-order of rows ----------------------------------------------------------------------------------------------
# A z-order interleaves the bits of the ranks of the columns' values. A rank is the position of a value among the values
# of a sample. So each column has equal weight, regardless of its type and the distribution of its values.


MOST_COLUMNS: Final = 31
"""Maximum number of columns of a z-order: each has at least two bits."""

_MOST_BITS: Final = 10
_ALL_BITS: Final = 63


Path: TypeAlias = tuple[int | str, *tuple[str, ...]]
"""A column by its name or index, and the names of the fields inside."""


@dataclass(frozen=True)
class Curve:
    """Adds the position of each row on the curve as a column. Picklable.

    Attributes:
        name: the name of the new column.
        paths: the columns.
        bounds: for each column, the values between ranks in ascending order.
        bits: the number of bits of a rank.
    """

    name: str
    paths: tuple[Path, ...]
    bounds: tuple[pa.Array, ...]
    bits: int

    @staticmethod
    def of(name: str, paths: Sequence[Path], sample: pa.Table) -> Curve:
        """Return the curve through the values of a sample.

        Args:
            name: the name of the new column.
            paths: see `Curve`.
            sample: rows with the columns.
        """
        bits = min(_MOST_BITS, _ALL_BITS // len(paths))
        rows = sample.combine_chunks().to_batches()
        bounds = [_bounds(values_of(rows[0], path), (1 << bits) - 2) if rows else pa.array([]) for path in paths]
        return Curve(name, tuple(paths), tuple(bounds), bits)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ranks = [
                _ranks(values_of(batch, path), bounds) for path, bounds in zip(self.paths, self.bounds, strict=True)
            ]
            names = [*batch.schema.names, self.name]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(_interleaved(ranks, self.bits))], names=names)


def values_of(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """Return the values of a column; null where a struct around it is null."""
    values = batch.column(path[0])
    for name in path[1:]:
        values = pc.struct_field(values, name)
    return values


def _bounds(values: pa.Array, count: int) -> pa.Array:
    """Return at most `count` distinct values that divide the values into shares of equal size."""
    not_null = values.drop_null()
    ordered = not_null.take(pc.array_sort_indices(not_null))
    rows = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).astype(np.int64))
    return ordered.take(pa.array(rows)).unique()


def _ranks(values: pa.Array, bounds: pa.Array) -> np.ndarray[Any, Any]:
    """Return 0 for a null, otherwise 1 plus the number of bounds that are not greater."""
    bounds = bounds.cast(values.type)
    order = pc.array_sort_indices(pa.concat_arrays([bounds, values])).to_numpy()
    is_bound = order < len(bounds)
    ranks = np.empty(len(values), np.int64)
    # The sort is stable: a bound comes before the values that equal it.
    ranks[order[~is_bound] - len(bounds)] = np.cumsum(is_bound)[~is_bound]
    return np.where(values.is_null().to_numpy(zero_copy_only=False), 0, ranks + 1)


def _interleaved(ranks: Sequence[np.ndarray[Any, Any]], bits: int) -> np.ndarray[Any, Any]:
    """Return numbers that begin with the highest bit of each rank, then the second highest bit of each, and so on."""
    result = np.zeros(len(ranks[0]), np.int64)
    for bit in range(bits - 1, -1, -1):
        for values in ranks:
            result = (result << 1) | ((values >> bit) & 1)
    return result


# -- Rewrite the data files of a group --------------------------------------------------------------------------------


PARTS = "parts"
"""The column of an output that lists the parts of files whose rows go to the output."""


@dataclass(frozen=True)
class PackTasks:
    """Reads parts of data files of one partition, and writes their rows to files of this partition. Picklable.

    The rows stay in Arrow: Spark sees only the files to read and the written files.

    Attributes:
        rows: reads the files.
        names: the names of the columns of `rows` in the table.
        files: writes the new files.
        fields: the names of the partition fields in `partition`, in the order of the spec.
    """

    rows: RowReader
    names: tuple[str, ...]
    files: DataFileTasks
    fields: tuple[str, ...]

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each new file, as `DataFileTasks.write`.

        Args:
            batches: a row for each output with the column `PARTS`.
        """
        return self.files.write_apart(self._outputs(batches))

    def _outputs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
        for batch in batches:
            for parts in batch.column(PARTS):
                yield self._rows(pa.RecordBatch.from_struct_array(parts.values))

    def _rows(self, parts: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values = [self._value(parts, field) for field in self.fields]
        names = [*self.names, *(PARTITION_COLUMN.format(index) for index in range(len(values)))]
        for batch in self.rows.read([parts]):
            constants = [value.take(pa.array(np.zeros(len(batch), np.int64))) for value in values]
            yield pa.RecordBatch.from_arrays([*batch.columns, *constants], names=names)

    def _value(self, parts: pa.RecordBatch, field: str) -> pa.Array:
        """Return the partition value that all parts share, as an array of length 1."""
        column = parts.column("partition")
        values = column.field(column.type.get_field_index(field))
        if len(values.dictionary_encode("encode").dictionary) > 1:
            raise SparkmetaError(f"files of one group differ in the partition field {field}")
        return values.slice(0, 1)
