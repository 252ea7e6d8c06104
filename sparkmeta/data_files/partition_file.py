"""A data file that a task writes, and the rows that wait for it. Spark tasks import this module."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from sparkmeta.data_files.metrics import FileMetrics, Leaf
from sparkmeta.data_files.parquet_file import Written

if TYPE_CHECKING:
    from sparkmeta.data_files.options import WriteOptions
    from sparkmeta.storage.executors import ExecutorWriter

_log = logging.getLogger(__name__)

MOST_BUFFERED: Final = 512 << 20
"""Maximum Arrow bytes that the files of a task have buffered, together."""

# The bytes of a column of buffered rows besides its values.
_COLUMN_OVERHEAD: Final = 600
_BATCH_OVERHEAD: Final = 1 << 12
# Rows between checks of the file size, as in Java.
_LEAST_ROWS: Final = 1000


class Output(Protocol):
    """A data file that is being written."""

    @property
    def size(self) -> int:
        """The bytes written so far."""

    def write(self, table: pa.Table) -> None:
        """Write rows."""

    def close(self) -> Written:
        """Finish the file."""

    def abort(self) -> None:
        """Release the file without finishing it."""


class FileOpener(Protocol):
    """What is common to the files of a write."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def options(self) -> WriteOptions:
        """The sizes of files and row groups."""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The columns with metrics."""

    @property
    def writer(self) -> ExecutorWriter:
        """Writes files in tasks."""

    def open(self, location: str) -> Output:
        """Begin a file."""


@dataclass
class ClosedFile:
    """A file that is written."""

    location: str
    key: tuple[pa.Scalar, ...]
    written: Written
    metrics: FileMetrics


@dataclass(eq=False)
class PartitionFile:
    """The rows of a partition that are not written yet, and the file to which they go.

    Attributes:
        opener: opens the file.
        key: the partition values.
        location: the file.
        output: the file, if it is open.
        ratio: the expected ratio of the file's bytes to the Arrow bytes of its rows.
        value_bytes: the Arrow bytes of the values of the buffered rows.
    """

    opener: FileOpener
    key: tuple[pa.Scalar, ...]
    location: str = ""
    output: Output | None = None
    ratio: float = 1.0
    value_bytes: int = 0
    _metrics: FileMetrics | None = None
    _buffered: list[pa.Table] = field(default_factory=list)

    @property
    def memory(self) -> int:
        """The bytes that the buffered rows take."""
        return self.value_bytes + len(self._buffered) * len(self.opener.schema) * _COLUMN_OVERHEAD

    def room(self) -> float:
        """Return how many more Arrow bytes fit into the row group or file."""
        options = self.opener.options
        written = self.output.size if self.output is not None else 0
        left = max(options.target_bytes - written, 1)
        return min(options.group_bytes / self.ratio, MOST_BUFFERED, left / self.ratio) - self.value_bytes

    def buffer(self, rows: pa.Table) -> pa.Table:
        """Buffer the first rows, up to the end of the row group or file, and return the others."""
        # For a slice, `nbytes` counts only the bytes of its rows.
        size, room = rows.nbytes, max(self.room(), 0.0)
        count = len(rows) if size <= room else min(max(int(len(rows) * room / size), _LEAST_ROWS), len(rows))
        part = rows.slice(0, count)
        self._buffered.append(part)
        self.value_bytes += part.nbytes
        return rows.slice(count)

    def flush(self, new_location: Callable[[tuple[pa.Scalar, ...]], str]) -> None:
        """Write the buffered rows as a row group, to a new file if none is open.

        Args:
            new_location: returns the location of a new file of a partition.
        """
        if not self._buffered:
            return
        table = pa.concat_tables(self._buffered)
        if self.output is None:
            self.location = new_location(self.key)
            self.output = self.opener.open(self.location)
            self._metrics = FileMetrics(self.opener.leaves)
        assert self._metrics is not None
        before = self.output.size
        self.output.write(table)
        self._metrics.add(table)
        grown = self.output.size - before
        if self.value_bytes > _BATCH_OVERHEAD and grown:
            self.ratio = min(max(grown / self.value_bytes, 0.01), 4.0)
        self._buffered, self.value_bytes = [], 0

    def close(self) -> ClosedFile:
        """Finish the open file."""
        assert self.output is not None
        assert self._metrics is not None
        closed = ClosedFile(self.location, self.key, self.output.close(), self._metrics)
        self.output = self._metrics = None
        self.opener.writer.sync(self.location)
        return closed

    def abort(self) -> None:
        """Release the file, if it is open."""
        if self.output is None:
            return
        output, self.output = self.output, None
        try:
            output.abort()
        except Exception as error:  # noqa: BLE001  the file is deleted next
            _log.warning("%s: not closed: %s", self.location, error)
