"""Read partition statistics files in tasks. Light: Spark tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.avro.container import records_with_ids
from sparkmeta.errors import CorruptFileError
from sparkmeta.rows.delete_rows import BATCH_ROWS, RowField, projected
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.executors import ExecutorReader

# The columns that every statistics file contains.
_REQUIRED = ("partition", "spec_id", "data_record_count", "data_file_count")


@dataclass(frozen=True)
class StatisticsRows:
    """Reads the rows of statistics files. Picklable.

    Attributes:
        schema: the schema of the result.
        row: its columns as the fields of a struct. Their ids identify the file's columns.
    """

    schema: pa.Schema
    row: RowField

    def read(self, reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files, given by their `location`, which the task opens."""
        for batch in batches:
            for location in batch.column("location").to_pylist():
                if _is_avro(location):
                    yield from self._rows(records_with_ids(reader.read(location), location), location)
                else:
                    yield from self._rows(_parquet_statistics(reader.open(location)), location)

    def read_contents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files that have their bytes as `content`."""
        for batch in batches:
            for location, content in zip(batch.column("location").to_pylist(), batch.column("content"), strict=True):
                data = content.as_buffer()
                is_avro = _is_avro(location)
                read = (
                    records_with_ids(data.to_pybytes(), location)
                    if is_avro
                    else _parquet_statistics(pa.BufferReader(data))
                )
                yield from self._rows(read, location)

    def _rows(self, batches: Iterable[pa.RecordBatch], location: str) -> Iterator[pa.RecordBatch]:
        kind = pa.struct(list(self.schema))
        with translated_read_errors(location, "partition statistics"):
            for batch in batches:
                stored = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
                columns = projected(stored, self.row, kind).flatten()
                rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
                for name in _REQUIRED:
                    if rows.column(name).null_count:
                        raise CorruptFileError(location, name, None, "a partition statistics file must have it")
                yield rows


def _is_avro(location: str) -> bool:
    return location.lower().endswith(".avro")


def _parquet_statistics(file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    yield from pq.ParquetFile(file, page_checksum_verification=True).iter_batches(BATCH_ROWS)
