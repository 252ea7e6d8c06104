"""The tasks that read the data files of a group and write their rows to new ones. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkmeta.errors import SparkmetaError
from sparkmeta.rows.file_rows import FileRows
from sparkmeta.write.tasks import PARTITION_COLUMN, DataFileTasks

PARTS = "parts"
"""The column of an output that lists the parts of files whose rows go there."""


@dataclass(frozen=True)
class PackTasks:
    """Reads parts of data files of one partition, and writes their rows to files of this partition. Picklable.

    The rows stay in Arrow: Spark sees only which files are read and which were written.

    Attributes:
        rows: reads the files.
        names: the names of its columns in the table.
        files: writes the new files.
        fields: the names of the partition fields in `partition`, in the order of the spec.
    """

    rows: FileRows
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
        names = [*self.names, *(PARTITION_COLUMN.format(place) for place in range(len(values)))]
        for batch in self.rows.read([parts]):
            constants = [value.take(pa.array(np.zeros(len(batch), np.int64))) for value in values]
            yield pa.RecordBatch.from_arrays([*batch.columns, *constants], names=names)

    def _value(self, parts: pa.RecordBatch, field: str) -> pa.Array:
        """Return the partition value that all parts have, as an array of one."""
        column = parts.column("partition")
        values = column.field(column.type.get_field_index(field))
        if len(values.dictionary_encode("encode").dictionary) > 1:
            raise SparkmetaError(f"files of one group differ in the partition field {field}")
        return values.slice(0, 1)
