"""The tasks that pack data files into groups. Without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from sparkmeta.write.tasks import partition_codes

# Groups of one task have numbers from its own number shifted by this.
_GROUP_BITS = 40


@dataclass(frozen=True)
class Packing:
    """Packs files into groups of one partition, next fit in their order, as Iceberg's action. Picklable.

    Attributes:
        keys: the columns that tell partitions apart; files of a partition come together.
        most_bytes: a group of several files is no larger.
        most_files: a group has no more files; None for any number.
    """

    keys: tuple[str, ...]
    most_bytes: int
    most_files: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the files with the number of their group in one more column."""
        groups = _Groups(self.most_bytes, self.most_files or sys.maxsize, _task_number() << _GROUP_BITS)
        last: list[pa.Array] | None = None
        for batch in batches:
            if not len(batch):
                continue
            keys = [batch.column(name) for name in self.keys]
            before = keys if last is None else last
            joined = [pa.concat_arrays([old.slice(0, 1), new]) for old, new in zip(before, keys, strict=True)]
            runs = _run_starts(joined, len(batch) + 1)
            # The first row is that of the last batch; there is no run before the first batch.
            starts = [start - 1 for start in runs if start > 0]
            if last is None and (not starts or starts[0]):
                starts = [0, *starts]
            numbers = groups.of(batch.column("file_size_in_bytes").to_numpy(zero_copy_only=False), starts)
            last = [key.slice(len(batch) - 1, 1) for key in keys]
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
        most_files: the most files of a group.
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
            starts: where partitions begin among them.
        """
        numbers = np.empty(len(sizes), np.int64)
        ends = np.cumsum(sizes)
        edges = sorted({0, *starts, len(sizes)})
        for start, end in pairwise(edges):
            if start in starts:
                self._open()
            place = start
            while place < end:
                before = int(ends[place - 1]) if place else 0
                fitting = int(np.searchsorted(ends, before + self.most_bytes - self._bytes, side="right"))
                following = min(end, fitting, place + self.most_files - self._files)
                if following <= place and self._files:
                    self._open()
                    continue
                following = max(following, place + 1)
                numbers[place:following] = self.number
                self._bytes += int(ends[following - 1]) - before
                self._files += following - place
                place = following
        return numbers

    def _open(self) -> None:
        if self._files:
            self.number, self._bytes, self._files = self.number + 1, 0, 0


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())
