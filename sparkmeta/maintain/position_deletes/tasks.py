"""The tasks that rewrite position deletes: read delete files, and write others. Without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sparkmeta.edit.range_sort import task_rows
from sparkmeta.inspect.delete_rows import deleted_positions
from sparkmeta.maintain.position_deletes.position_file import PositionFile
from sparkmeta.spec.bitmap import PositionBitmap, read_deletion_vector, write_deletion_vector
from sparkmeta.spec.puffin import Blob, deletion_vector_blob, write_puffin
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.location import join
from sparkmeta.storage.ranges import FileRange, read_ranges

MASK_SCHEMA = pa.schema(
    [
        pa.field("delete_path", pa.string()),
        pa.field("data_path", pa.string()),
        pa.field("vector", pa.binary()),
        pa.field("positions", pa.int64()),
    ]
)
"""The positions that a delete file deletes of a data file, as the blob of a deletion vector, and their number."""

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

# Rows of a batch; each has a bitmap.
_BATCH_ROWS = 1024


def read_masks(reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read delete files, and yield rows of `MASK_SCHEMA`.

    Args:
        batches: rows of location, file_format, and `vectors`, the deletion vectors of a Puffin file: a list of
            struct<referenced_file, offset, size_in_bytes, record_count>.
    """
    for row in task_rows(batches):
        location = row["location"]
        masks = _vectors(reader, row) if row["file_format"] == "PUFFIN" else _positions(reader, row)
        columns: list[list[Any]] = [[], [], [], []]
        for mask in masks:
            for column, value in zip(columns, (location, *mask), strict=True):
                column.append(value)
            if len(columns[0]) == _BATCH_ROWS:
                yield pa.RecordBatch.from_arrays(columns, schema=MASK_SCHEMA)
                columns = [[], [], [], []]
        if columns[0]:
            yield pa.RecordBatch.from_arrays(columns, schema=MASK_SCHEMA)


_Mask = tuple[str, bytes, int]


def _vectors(reader: ExecutorReader, row: dict[str, Any]) -> Iterator[_Mask]:
    """Yield the deletion vectors of a Puffin file, of which only the checksums are looked at."""
    vectors = row["vectors"]
    ranges = [FileRange(row["location"], each["offset"], each["size_in_bytes"]) for each in vectors]
    for place, blob in read_ranges(reader, ranges):
        count = vectors[place]["record_count"]
        read_deletion_vector(blob, row["location"], count)
        yield vectors[place]["referenced_file"], blob, count


def _positions(reader: ExecutorReader, row: dict[str, Any]) -> Iterator[_Mask]:
    """Yield the deleted positions of each data file in a position delete file."""
    by_path: dict[str, list[np.ndarray[Any, Any]]] = {}
    for paths, positions in deleted_positions(reader.read(row["location"]), row["file_format"], row["location"]):
        codes, numbers, names = paths.indices.to_numpy(), positions.to_numpy(), paths.dictionary.to_pylist()
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        for code, part in zip(present, np.split(numbers[order], starts[1:]), strict=True):
            by_path.setdefault(names[code], []).append(part)
    for path, parts in by_path.items():
        bitmap = PositionBitmap.of(np.concatenate(parts))
        yield path, write_deletion_vector(bitmap), bitmap.cardinality


class WriteTasks(Protocol):
    """Merges masks and writes them to delete files. Picklable."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge masks, and yield rows of `WRITTEN_SCHEMA`.

        Args:
            batches: rows of `MASK_SCHEMA` and `sequence_number`, ordered by `group`, if there is one, and `data_path`.
        """


@dataclass(frozen=True)
class VectorTasks:
    """Writes deletion vectors to Puffin files. Picklable.

    Attributes:
        folder: the folder of the files.
        target_bytes: the target size of a file.
    """

    writer: ExecutorWriter
    folder: str
    target_bytes: int

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `WriteTasks`."""
        blobs: list[tuple[str, Blob, int, int | None]] = []
        size = 0
        for path, rows in groupby(task_rows(batches), key=lambda row: row["data_path"]):
            masks = list(rows)
            vector, count = _merged(masks)
            if blobs and size + len(vector) > self.target_bytes:
                yield self._file(blobs)
                blobs, size = [], 0
            blobs.append((path, deletion_vector_blob(vector, path, count), count, _newest(masks)))
            size += len(vector)
        if blobs:
            yield self._file(blobs)

    def _file(self, blobs: list[tuple[str, Blob, int, int | None]]) -> pa.RecordBatch:
        file = write_puffin([blob for _, blob, _, _ in blobs])
        location = join(self.folder, f"{uuid.uuid4()}-deletes.puffin")
        self.writer.write_new(location, file.data)
        paths, _, counts, sequence_numbers = zip(*blobs, strict=True)
        columns = {
            "file_path": [location] * len(blobs),
            "file_format": ["PUFFIN"] * len(blobs),
            "data_path": paths,
            "referenced_data_file": paths,
            "content_offset": [placed.offset for placed in file.blobs],
            "content_size_in_bytes": [placed.length for placed in file.blobs],
            "record_count": counts,
            "file_size_in_bytes": [len(file.data)] * len(blobs),
            "sequence_number": sequence_numbers,
        }
        return _written(columns, len(blobs))


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
        newest = []
        for path, of_path in groupby(rows, key=lambda row: row["data_path"]):
            masks = list(of_path)
            file.add(path, _union(masks))
            newest.append(_newest(masks))
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
            "sequence_number": max((number for number in newest if number is not None), default=None),
            "first_path": file.first_path,
            "last_path": file.last_path,
            "first_position": file.first_position,
            "last_position": file.last_position,
        }
        return _written({name: [value] for name, value in columns.items()}, 1)


def _written(columns: dict[str, Sequence[Any]], rows: int) -> pa.RecordBatch:
    arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in WRITTEN_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN_SCHEMA)


def _newest(masks: list[dict[str, Any]]) -> int | None:
    return max((mask["sequence_number"] for mask in masks if mask["sequence_number"] is not None), default=None)


def _merged(masks: list[dict[str, Any]]) -> tuple[bytes, int]:
    """Return the union of the masks of a data file as a blob, and its number of positions."""
    if len(masks) == 1:
        return masks[0]["vector"], masks[0]["positions"]
    bitmap = _union(masks)
    return write_deletion_vector(bitmap), bitmap.cardinality


def _union(masks: list[dict[str, Any]]) -> PositionBitmap:
    bitmaps = (read_deletion_vector(mask["vector"], mask["delete_path"]) for mask in masks)
    return reduce(PositionBitmap.union, bitmaps)
