"""Open a data file and read its schema and columns, in batches with the position of the first row.

Memory is bounded: for Parquet by some pages per column and `BATCH_BYTES` of decoded rows, for ORC by a stripe, for Avro
by a block.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from sparkmeta.avro.container import Windows
from sparkmeta.avro.rows_file import AvroFile
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.rows.file_schema import file_columns
from sparkmeta.rows.orc_timestamps import OrcSeconds
from sparkmeta.rows.resolve import Column, FromFile, Source
from sparkmeta.storage.read_errors import translated_read_errors

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorReader

BATCH_ROWS = 1 << 16
BATCH_BYTES = 32 << 20

_PAGE_BUFFER = 1 << 20
# Maximum size of an Avro file that is held in memory as a whole.
_WHOLE_BYTES = 32 << 20


class DataFile(Protocol):
    """An open data file.

    Attributes:
        columns: Its schema.
        rows: The number of rows; None if it is known only after reading.
        schema: The schema in the terms of the format: Arrow's schema, for Avro the JSON object.
    """

    columns: tuple[Column, ...]
    schema: Any
    rows: int | None

    def batches(self, sources: Sequence[Source], start: int, end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows of a part of the file.

        Args:
            sources: What to read. Batches have the file columns that these need, and possibly others.
            start: The byte offset of the part: row groups that begin there or later are read. In formats without random
                access by bytes, all rows are in the part that begins at 0.
            end: The byte offset of the next part; None for the last part.

        Yields:
            The position of the first row in the file, and the rows.
        """


def open_data_file(reader: ExecutorReader, location: str, file_format: str) -> DataFile:
    """Open a data file or a delete file.

    Raises:
        NotFoundError: There is no such file.
        CorruptFileError: The file is not of the format, or is truncated.
        UnsupportedError: The format is not Parquet, ORC or Avro.
    """
    with translated_read_errors(location):
        match file_format.upper():
            case "PARQUET":
                return _ParquetFile(reader, location)
            case "ORC":
                return _OrcFile(reader, location)
            case "AVRO":
                return _AvroDataFile(reader, location)
    raise UnsupportedError(f"{location}: data files of format {file_format} can't be read")


def refuse_other_count(location: str, record_count: int, rows: int) -> None:
    """Compare a file's number of rows with its record count in the manifest, which may be unknown (-1).

    Raises:
        CorruptFileError: they differ.
    """
    if rows != record_count >= 0:
        raise CorruptFileError(location, "record_count", record_count, f"the file has {rows} rows")


class _ParquetFile:
    def __init__(self, reader: ExecutorReader, location: str) -> None:
        self._location = location
        self._file = pq.ParquetFile(
            reader.open(location),
            buffer_size=_PAGE_BUFFER,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
        self.schema: Any = self._file.schema_arrow
        self.columns = file_columns(self.schema)
        self.rows: int | None = self._file.metadata.num_rows

    def batches(self, sources: Sequence[Source], start: int, end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        leaves = sorted(set(_selected_leaves(self.columns, sources, 0)))
        position = 0
        for number in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(number)
            first, position = position, position + group.num_rows
            begin = row_group_start(group)
            if not group.num_rows or begin < start or (end is not None and begin >= end):
                continue
            size = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(size, 1)))
            # ParquetFile.iter_batches takes dotted names, which are ambiguous.
            for batch in self._file.reader.iter_batches(rows, [number], column_indices=leaves, use_threads=False):
                yield first, batch
                first += len(batch)
            if first != position:
                raise CorruptFileError(self._location, f"row group {number}", group.num_rows, "it has fewer rows")


def row_group_start(group: pq.RowGroupMetaData) -> int:
    """Return the byte offset of a row group in the file."""
    if not group.num_columns:
        return 0
    column = group.column(0)
    pages = column.dictionary_page_offset if column.has_dictionary_page else None
    return int(column.data_page_offset if pages is None else min(pages, column.data_page_offset))


def _selected_leaves(columns: Sequence[Column], sources: Iterable[Source], start: int) -> Iterator[int]:
    """Yield the indices of the leaf columns that sources need.

    Args:
        columns: The columns of the file, or the fields of a struct.
        sources: Sources from these.
        start: The index of the first leaf.
    """
    ends = accumulate(map(_leaf_count, columns), initial=start)
    starts = dict(zip((column.name for column in columns), ends, strict=False))
    for source in sources:
        if isinstance(source, FromFile):
            yield from _leaves(source, starts[source.physical.name])


def _leaves(source: FromFile, start: int) -> list[int]:
    physical = source.physical
    if not source.children:
        return list(range(start, start + _leaf_count(physical)))
    # Any leaf of a struct suffices to tell where the struct is null.
    return list(_selected_leaves(physical.children, source.children, start)) or [start]


def _leaf_count(column: Column) -> int:
    return sum(map(_leaf_count, column.children)) if column.children else 1


class _OrcFile:
    def __init__(self, reader: ExecutorReader, location: str) -> None:
        self._reader, self._location = reader, location
        self._file = orc.ORCFile(reader.open(location))
        self.schema: Any = self._file.schema
        self.columns = file_columns(self.schema)
        self.rows: int | None = self._file.nrows

    def batches(self, sources: Sequence[Source], start: int, _end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        if start:
            return
        first = 0
        for stripe in range(self._file.nstripes):
            batch = self._stripe(stripe, sources)
            for place in range(0, len(batch), BATCH_ROWS):
                yield first + place, batch.slice(place, BATCH_ROWS)
            first += len(batch)
        if first != self.rows:
            raise CorruptFileError(self._location, "number of rows", self.rows, f"the stripes have {first}")

    def _stripe(self, stripe: int, sources: Sequence[Source]) -> pa.RecordBatch:
        """Read whole columns, because Arrow's reader aborts the process when reading part of a map."""
        names = _names(self.columns, sources)
        try:
            return self._file.read_stripe(stripe, names)
        except pa.ArrowInvalid as error:
            if "out of range for nanosecond" not in str(error):
                raise
        return self._with_seconds.read_stripe(stripe, names, self._file.schema)

    @cached_property
    def _with_seconds(self) -> OrcSeconds:
        return OrcSeconds(self._reader.open(self._location), self._location)


class _AvroDataFile:
    def __init__(self, reader: ExecutorReader, location: str) -> None:
        length = reader.length(location)
        windows = Windows(partial(reader.read_range, location), length, location)
        self._file = AvroFile(windows if length > _WHOLE_BYTES else reader.read(location), location)
        self.schema: Any = self._file.avro_schema
        self.columns = file_columns(self._file.schema)
        self.rows: int | None = None

    def batches(self, sources: Sequence[Source], start: int, _end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        if start:
            return
        first = 0
        for batch in self._file.batches(_names(self.columns, sources)):
            yield first, batch
            first += len(batch)


def _names(columns: Sequence[Column], sources: Iterable[Source]) -> list[str]:
    """Return the names of the columns that sources need. At least one, since a batch without columns has no rows."""
    names = {source.physical.name: None for source in sources if isinstance(source, FromFile)}
    return list(names) or [column.name for column in columns[:1]]
