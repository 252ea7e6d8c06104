"""The tasks that write rewritten position deletes. Without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa

from sparkmeta.edit.range_sort import task_rows
from sparkmeta.maintain.position_deletes.position_file import PositionFile
from sparkmeta.rows.write.vector_tasks import VectorTasks, newest, union
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.location import join

WRITTEN_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("data_path", pa.string()),
        pa.field("referenced_data_file", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("file_size_in_bytes", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("first_path", pa.string()),
        pa.field("last_path", pa.string()),
        pa.field("first_position", pa.int64()),
        pa.field("last_position", pa.int64()),
    ]
)
"""The new deletion vectors and position delete files, with columns of `inspect.files`.

Also a data file whose positions they delete, the greatest sequence number of the deletes that they replace, and bounds
of position delete files.
"""


class WriteTasks(Protocol):
    """Merges masks and writes them to delete files. Picklable."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge masks, and yield rows of `WRITTEN_SCHEMA`.

        Args:
            batches: rows of `MASK_SCHEMA` and `sequence_number`, ordered by `group`, if there is one, and `data_path`.
        """


@dataclass(frozen=True)
class VectorFileTasks:
    """Writes deletion vectors to Puffin files. Picklable."""

    vectors: VectorTasks

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `WriteTasks`."""
        for batch in self.vectors.write(batches):
            columns = {name: batch.column(name) for name in batch.schema.names}
            paths = columns["referenced_data_file"]
            yield _written({**columns, "data_path": paths, "file_format": ["PUFFIN"] * len(paths)}, len(paths))


@dataclass(frozen=True)
class PositionFileTasks:
    """Writes a position delete file for each group of data files. Picklable.

    Attributes:
        folder: the folder of the files.
        codec: the compression codec, by PyArrow's name.
    """

    writer: ExecutorWriter
    folder: str
    codec: str

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `WriteTasks`."""
        for _, rows in groupby(task_rows(batches), key=lambda row: row["group"]):
            yield self._file(rows)

    def _file(self, rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
        file = PositionFile(self.codec)
        newest_of_paths = []
        for path, of_path in groupby(rows, key=lambda row: row["data_path"]):
            masks = list(of_path)
            file.add(path, union(masks))
            newest_of_paths.append(newest(masks))
        location = join(self.folder, f"{uuid.uuid4()}-deletes.parquet")
        data = file.close()
        self.writer.write_new(location, data)
        columns = {
            "file_path": location,
            "file_format": "PARQUET",
            "data_path": file.first_path,
            "referenced_data_file": file.first_path if file.first_path == file.last_path else None,
            "record_count": file.records,
            "file_size_in_bytes": len(data),
            "sequence_number": max((number for number in newest_of_paths if number is not None), default=None),
            "first_path": file.first_path,
            "last_path": file.last_path,
            "first_position": file.first_position,
            "last_position": file.last_position,
        }
        return _written({name: [value] for name, value in columns.items()}, 1)


def _written(columns: dict[str, Sequence[Any]], rows: int) -> pa.RecordBatch:
    arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in WRITTEN_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN_SCHEMA)
