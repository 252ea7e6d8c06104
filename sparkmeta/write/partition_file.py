"""Files that tasks write: position delete files (table spec, Position Delete Files), and data files. Without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.expr.arrays import with_field_id
from sparkmeta.rows.data_file import row_group_start
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID
from sparkmeta.write.formats import Written
from sparkmeta.write.metrics import FileMetrics, MeasuredColumn

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.write.options import WriteOptions

_PATH = pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False)
_POS = pa.field("pos", pa.int64(), nullable=False)
_SCHEMA = pa.schema([with_field_id(_PATH, DELETE_FILE_PATH_ID), with_field_id(_POS, DELETE_FILE_POS_ID)])
# Rows per row group.
_GROUP_ROWS = 1 << 20
_POSITION_BYTES = 8


class PositionFile:
    """A position delete file in memory. Data files are added in order of their paths.

    Attributes:
        records: the number of positions.
        first_path: the first data file.
        last_path: the last data file.
        first_position: the lowest position of any data file.
        last_position: the highest position of any data file.
        split_offsets: the offsets of row groups, known when the file is closed.
        column_sizes: the size in bytes of each column by field id, known when the file is closed.
    """

    def __init__(self, codec: str) -> None:
        self._sink = pa.BufferOutputStream()
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink,
            _SCHEMA,
            compression=codec,
            use_dictionary=["file_path"],
            store_schema=False,
            write_page_index=True,
            metadata_collector=self._footers,
        )
        self._writer.add_key_value_metadata({"delete-type": "position"})
        self._paths: list[str] = []
        self._positions: list[np.ndarray[Any, Any]] = []
        self._pending = 0
        self.records = 0
        self.first_path: str | None = None
        self.last_path: str | None = None
        self.first_position: int | None = None
        self.last_position: int | None = None
        self.split_offsets: list[int] = []
        self.column_sizes: dict[int, int] = {}

    @property
    def size(self) -> int:
        """The approximate size of the file in bytes. Uncompressed positions count in full."""
        return int(self._sink.tell()) + self._pending * _POSITION_BYTES

    def add(self, path: str, positions: PositionBitmap) -> None:
        """Add the deleted positions of a data file."""
        for part in positions.positions():
            if not len(part):
                continue
            lowest, highest = int(part[0]), int(part[-1])
            self.first_position = lowest if self.first_position is None else min(lowest, self.first_position)
            self.last_position = highest if self.last_position is None else max(highest, self.last_position)
            self._paths.append(path)
            self._positions.append(part)
            self._pending += len(part)
            if self._pending >= _GROUP_ROWS:
                self._flush()
        self.first_path = path if self.first_path is None else self.first_path
        self.last_path = path

    def close(self) -> bytes:
        """Return the bytes of the file."""
        self._flush()
        self._writer.close()
        (footer,) = self._footers
        for group in map(footer.row_group, range(footer.num_row_groups)):
            self.split_offsets.append(row_group_start(group))
            for index, field_id in enumerate((DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID)):
                size = group.column(index).total_compressed_size
                self.column_sizes[field_id] = self.column_sizes.get(field_id, 0) + size
        data: bytes = self._sink.getvalue().to_pybytes()
        return data

    def _flush(self) -> None:
        if not self._pending:
            return
        names = list(dict.fromkeys(self._paths))
        code_of = {name: code for code, name in enumerate(names)}
        codes = np.repeat([code_of[path] for path in self._paths], [*map(len, self._positions)]).astype(np.int32)
        paths = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))
        positions = pa.array(np.concatenate(self._positions), pa.int64())
        self._writer.write_table(pa.Table.from_arrays([paths, positions], schema=_SCHEMA), row_group_size=_GROUP_ROWS)
        self.records += self._pending
        self._paths, self._positions, self._pending = [], [], 0


# -- A data file that a task writes, and its waiting rows -------------------------------------------------------------


_log = logging.getLogger(__name__)

MOST_BUFFERED: Final = 512 << 20
"""Maximum total of Arrow bytes that the files of a task buffer."""

# The bytes that each column of buffered rows takes in addition to its values.
_COLUMN_OVERHEAD: Final = 600
_BATCH_OVERHEAD: Final = 1 << 12
# Rows between checks of the file size, as in Java.
_MIN_ROWS: Final = 1000


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
    """Opens the files of a write, with the settings that they share."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def options(self) -> WriteOptions:
        """The sizes of files and row groups."""

    @property
    def leaves(self) -> tuple[MeasuredColumn, ...]:
        """The columns with metrics."""

    @property
    def writer(self) -> ExecutorWriter:
        """Writes files in tasks."""

    def open(self, location: str) -> Output:
        """Begin a file."""


@dataclass
class ClosedFile:
    """A finished file."""

    location: str
    key: tuple[pa.Scalar, ...]
    written: Written
    metrics: FileMetrics


@dataclass(eq=False)
class PartitionFile:
    """The rows of a partition that are not written yet, and the file for them.

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
        """The bytes of memory that the buffered rows occupy."""
        return self.value_bytes + len(self._buffered) * len(self.opener.schema) * _COLUMN_OVERHEAD

    def room(self) -> float:
        """Return how many more Arrow bytes fit into the row group or file."""
        options = self.opener.options
        written = self.output.size if self.output is not None else 0
        remaining = max(options.target_bytes - written, 1)
        return min(options.group_bytes / self.ratio, MOST_BUFFERED, remaining / self.ratio) - self.value_bytes

    def buffer(self, rows: pa.Table) -> pa.Table:
        """Buffer the first rows, up to the end of the row group or file, and return the others."""
        # For a slice, `nbytes` counts only the bytes of its rows.
        size, room = rows.nbytes, max(self.room(), 0.0)
        count = len(rows) if size <= room else min(max(int(len(rows) * room / size), _MIN_ROWS), len(rows))
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
        written = self.output.close()
        self._metrics.add_written(written)
        closed = ClosedFile(self.location, self.key, written, self._metrics)
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
