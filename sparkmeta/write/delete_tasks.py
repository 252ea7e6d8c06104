"""Tasks that write masks of data files to delete files. No Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol

import pyarrow as pa

from sparkmeta.data_files.position_file import PositionFile
from sparkmeta.edit.range_sort import task_rows
from sparkmeta.entries.metrics_maps import map_type
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.files import Files
from sparkmeta.storage.location import join
from sparkmeta.write.vector_tasks import VectorTasks, deleted_on_error, newest, union

ENDS: Final = ("first_path", "last_path", "first_position", "last_position")
"""The least and greatest values of the columns of a position delete file."""
BOUNDS: Final = ("lower_bounds", "upper_bounds")

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
        pa.field("split_offsets", pa.list_(pa.int64())),
        *(pa.field(name, map_type(name)) for name in ("column_sizes", *BOUNDS)),
        pa.field("sequence_number", pa.int64()),
        pa.field("first_path", pa.string()),
        pa.field("last_path", pa.string()),
        pa.field("first_position", pa.int64()),
        pa.field("last_position", pa.int64()),
    ]
)
"""The new deletion vectors and position delete files, with columns of `inspect.files`.

Also a data file whose positions they delete, the greatest sequence number of the deletes that they replace, and `ENDS`
of position delete files. As Java's, only those about a single data file have `BOUNDS`, and none have counts.
"""


class WriteTasks(Protocol):
    """Merges masks and writes them to delete files. Picklable."""

    @property
    def name(self) -> str:
        """The prefix of the files' names, unique to this write."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge masks and yield rows of `WRITTEN_SCHEMA`. On error, delete the files already written.

        Args:
            batches: rows of `MASK_SCHEMA`, ordered by `group` (if present) and `data_path`. They may have a
                `sequence_number`.
        """


@dataclass(frozen=True)
class VectorFileTasks:
    """Writes deletion vectors to Puffin files. Picklable."""

    vectors: VectorTasks

    @property
    def name(self) -> str:
        """See `WriteTasks`."""
        return self.vectors.name

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `WriteTasks`."""
        for batch in self.vectors.write(batches):
            columns = {name: batch.column(name) for name in batch.schema.names}
            paths = columns["referenced_data_file"]
            yield _written({**columns, "data_path": paths, "file_format": ["PUFFIN"] * len(paths)}, len(paths))


@dataclass(frozen=True)
class PositionFileTasks:
    """Writes position delete files, at least one for each group of data files. Picklable.

    Attributes:
        folder: the folder of the files.
        codec: PyArrow's name of the compression codec.
        target_bytes: the size at which a new file begins. The deletes of one data file stay together.
        name: see `WriteTasks`.
    """

    writer: ExecutorWriter | Files
    folder: str
    codec: str
    target_bytes: int
    name: str = field(default_factory=lambda: str(uuid.uuid4()))

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `WriteTasks`."""
        with deleted_on_error(self.writer) as write_new:
            for _, rows in groupby(task_rows(batches), key=lambda row: row["group"]):
                yield from self._files(rows, write_new)

    def _files(
        self, rows: Iterable[dict[str, Any]], write_new: Callable[[str, bytes], None]
    ) -> Iterator[pa.RecordBatch]:
        file, newest_of_paths = PositionFile(self.codec), list[int]()
        for path, of_path in groupby(rows, key=lambda row: row["data_path"]):
            if file.size >= self.target_bytes:
                yield self._written(file, newest_of_paths, write_new)
                file, newest_of_paths = PositionFile(self.codec), []
            masks = list(of_path)
            file.add(path, union(masks))
            if (number := newest(masks)) is not None:
                newest_of_paths.append(number)
        yield self._written(file, newest_of_paths, write_new)

    def _written(
        self, file: PositionFile, sequence_numbers: Sequence[int], write_new: Callable[[str, bytes], None]
    ) -> pa.RecordBatch:
        location = join(self.folder, f"{self.name}-{uuid.uuid4()}-deletes.parquet")
        data = file.close()
        write_new(location, data)
        columns: dict[str, Any] = {
            "file_path": location,
            "file_format": "PARQUET",
            "data_path": file.first_path,
            "referenced_data_file": file.first_path if file.first_path == file.last_path else None,
            "record_count": file.records,
            "file_size_in_bytes": len(data),
            "split_offsets": file.split_offsets,
            "column_sizes": sorted(file.column_sizes.items()),
            "sequence_number": max(sequence_numbers, default=None),
            "first_path": file.first_path,
            "last_path": file.last_path,
            "first_position": file.first_position,
            "last_position": file.last_position,
        }
        if columns["referenced_data_file"] is not None:
            for name, position in zip(BOUNDS, (file.first_position, file.last_position), strict=True):
                columns[name] = _bounds(file.first_path, position)
        return _written({name: [value] for name, value in columns.items()}, 1)


def _bounds(path: str | None, position: int | None) -> list[tuple[int, bytes]]:
    assert path is not None
    assert position is not None
    return [(DELETE_FILE_POS_ID, position.to_bytes(8, "little")), (DELETE_FILE_PATH_ID, path.encode())]


def _written(columns: dict[str, Sequence[Any]], rows: int) -> pa.RecordBatch:
    arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in WRITTEN_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN_SCHEMA)
