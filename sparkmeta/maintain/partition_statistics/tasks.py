"""The task that writes a partition statistics file. Without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.entries.arrays import whole
from sparkmeta.errors import CorruptFileError
from sparkmeta.maintain.partition_statistics.sums import PartitionSums
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.location import join

WRITTEN = pa.schema(
    [pa.field("location", pa.string()), pa.field("length", pa.int64()), pa.field("partitions", pa.int64())]
)
"""The file that was written."""

_ROW_GROUP_ROWS = 100_000


@dataclass(frozen=True)
class StatisticsWriter:
    """Writes all rows of statistics to one Parquet file. Picklable.

    Attributes:
        sums: merges the sums of other tasks.
        folder: the folder of the file.
        name: how the name of the file begins.
        schema: the file's schema, with field ids.
        base: the statistics file that the rows were computed from, for errors; None for a full computation.
    """

    writer: ExecutorWriter
    sums: PartitionSums
    folder: str
    name: str
    schema: pa.Schema
    base: str | None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a file of the rows of `SUMS`, and yield a row of `WRITTEN`. No file is written for no rows."""
        sums = self.sums.merged(batches)
        if not len(sums):
            return
        # The file is held in memory, compressed: stores take it as a whole.
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink, self.schema, compression="zstd", store_schema=False, write_page_checksum=True
        ) as file:
            for start in range(0, len(sums), _ROW_GROUP_ROWS):
                file.write_table(self._converted(sums.slice(start, _ROW_GROUP_ROWS)), row_group_size=_ROW_GROUP_ROWS)
        data = sink.getvalue()
        location = join(self.folder, f"{self.name}-{uuid.uuid4()}.parquet")
        self.writer.write_new(location, data.to_pybytes())
        yield pa.RecordBatch.from_arrays([[location], [data.size], [len(sums)]], schema=WRITTEN)

    def _converted(self, sums: pa.Table) -> pa.Table:
        partition = self.schema.field("partition")
        values = zip(self.sums.partition_values(sums), partition.type, strict=True)
        tuples = [_file_values(column, field.type) for column, field in values]
        columns = [pa.StructArray.from_arrays(tuples, fields=list(partition.type))]
        for field in list(self.schema)[1:]:
            known = field.name in sums.column_names
            column = whole(sums.column(field.name)).cast(field.type) if known else pa.nulls(len(sums), field.type)
            if (
                field.name.endswith(("_count", "_bytes"))
                and (least := pc.min(column).as_py()) is not None
                and least < 0
            ):
                where = self.base or self.folder
                raise CorruptFileError(where, field.name, least, "more files were removed from a partition than it had")
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.schema)


def _file_values(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return partition values in bound form as the file has them."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array.cast(kind.storage_type))
    return array.cast(kind)
