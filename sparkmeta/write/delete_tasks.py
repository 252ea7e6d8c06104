"""Tasks that find the rows to delete, and read and write masks of data files. No Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from sparkmeta.entries.manifest_records import map_type
from sparkmeta.errors import UnsupportedError
from sparkmeta.manifests.sorted_manifests import task_rows
from sparkmeta.rows.delete_rows import deleted_positions
from sparkmeta.rows.file_rows import MatchingRows
from sparkmeta.spec.bitmap import PositionBitmap, read_deletion_vector, write_deletion_vector
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID
from sparkmeta.spec.locations import Locations
from sparkmeta.spec.puffin import Blob, deletion_vector_blob, write_puffin
from sparkmeta.storage.content import read_ranges
from sparkmeta.storage.encryption import KEY_METADATA, Decrypting, Stream, encrypted
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.files import Files
from sparkmeta.storage.location import join
from sparkmeta.storage.vectors import vector_of, vector_range
from sparkmeta.storage.writing import discard
from sparkmeta.write.partition_file import PositionFile

# -- Read deletes as masks, and write masks as deletion vectors -------------------------------------------------------


MASK_SCHEMA = pa.schema(
    [
        pa.field("delete_path", pa.string()),
        pa.field("data_path", pa.string()),
        pa.field("vector", pa.binary()),
        pa.field("positions", pa.int64()),
    ]
)
"""The positions of a data file that a delete file deletes, as the blob of a deletion vector, and their number.

`delete_path` is null for positions that come from no delete file.
"""

VECTOR_SCHEMA = pa.schema(
    [
        pa.field("referenced_data_file", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("file_size_in_bytes", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field(KEY_METADATA, pa.binary()),
    ]
)
"""New deletion vectors, with columns of `inspect.files`, and the greatest sequence number of their masks."""

# Rows per batch; each row holds a bitmap.
_BATCH_ROWS = 1024
# Maximum number of positions that a task converts to bitmaps at a time.
_MAX_POSITIONS = 4_000_000


def read_masks(
    reader: ExecutorReader | Files, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read delete files and yield rows of `MASK_SCHEMA`.

    Args:
        reader: opens files.
        locations: resolves the paths in position delete files.
        batches: rows of `location`, `file_format` and `vectors`, the deletion vectors of a Puffin file as a list of
            struct<referenced_file, offset, size_in_bytes, record_count>. Rows of encrypted tables have `key_metadata`.
    """
    for row in task_rows(batches):
        location, key = row["location"], row.get(KEY_METADATA)
        opened = reader if key is None else _decrypting(reader, row, key)
        masks = _vectors(opened, row) if row["file_format"] == "PUFFIN" else _positions(opened, locations, row)
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
Reader = ExecutorReader | Files | Decrypting


def _decrypting(reader: ExecutorReader | Files, row: Mapping[str, Any], key: bytes) -> Decrypting:
    """Return a reader of an encrypted delete file.

    Raises:
        UnsupportedError: it is a Parquet file.
    """
    if row["file_format"].upper() == "PARQUET":
        raise UnsupportedError(f"{row['location']}: encrypted position delete files of format Parquet can't be merged")
    return Decrypting(reader, Stream.of(row["location"], key))


def _vectors(reader: Reader, row: dict[str, Any]) -> Iterator[_Mask]:
    """Yield the deletion vectors of a Puffin file. Only their checksums are verified."""
    vectors = row["vectors"]
    ranges = [vector_range(row["location"], vector["offset"], vector["size_in_bytes"]) for vector in vectors]
    for index, blob in read_ranges(reader, ranges):
        count = vectors[index]["record_count"]
        vector_of(blob, ranges[index], count)
        yield vectors[index]["referenced_file"], blob, count


def _positions(reader: Reader, locations: Locations, row: dict[str, Any]) -> Iterator[_Mask]:
    """Yield the deleted positions of each data file in a position delete file."""
    by_path: dict[str, list[np.ndarray[Any, Any]]] = {}
    location, content = row["location"], reader.read(row["location"])
    for paths, positions in deleted_positions(content, row["file_format"], location, locations):
        for path, part in _split_by_path(paths, positions):
            by_path.setdefault(path, []).append(part)
    for path, parts in by_path.items():
        bitmap = PositionBitmap.of(np.concatenate(parts))
        yield path, write_deletion_vector(bitmap), bitmap.cardinality


def position_masks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert positions to a few rows of `MASK_SCHEMA` per data file.

    Args:
        batches: rows of a data file's path and a position in it, in any order.
    """
    by_path: dict[str, list[np.ndarray[Any, Any]]] = {}
    count = 0
    for batch in batches:
        for path, positions in _split_by_path(batch.column(0), batch.column(1)):
            by_path.setdefault(path, []).append(positions)
        count += len(batch)
        if count >= _MAX_POSITIONS:
            yield _masks_of(by_path)
            by_path, count = {}, 0
    if by_path:
        yield _masks_of(by_path)


def _split_by_path(paths: pa.Array, positions: pa.Array) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    coded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
    codes, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
    order = np.argsort(codes, kind="stable")
    distinct_codes, starts = np.unique(codes[order], return_index=True)
    for code, part in zip(distinct_codes, np.split(positions.to_numpy()[order], starts[1:]), strict=True):
        yield names[code], part


def _masks_of(by_path: Mapping[str, list[np.ndarray[Any, Any]]]) -> pa.RecordBatch:
    bitmaps = [PositionBitmap.of(np.concatenate(parts)) for parts in by_path.values()]
    vectors, counts = map(write_deletion_vector, bitmaps), [bitmap.cardinality for bitmap in bitmaps]
    columns = [[None] * len(bitmaps), [*by_path], [*vectors], counts]
    return pa.RecordBatch.from_arrays([*map(pa.array, columns, MASK_SCHEMA.types)], schema=MASK_SCHEMA)


@contextmanager
def deleted_on_error(writer: ExecutorWriter | Files) -> Iterator[Callable[[str, bytes], None]]:
    """Yield a function that writes new files, which are deleted if the block fails or its task is killed."""
    locations: list[str] = []

    def write_new(location: str, data: bytes) -> None:
        locations.append(location)
        writer.write_new(location, data)

    try:
        yield write_new
    except BaseException:
        discard(writer, locations)
        raise


@dataclass(frozen=True)
class VectorTasks:
    """Writes deletion vectors to Puffin files. Picklable.

    Attributes:
        folder: the folder of the files.
        target_bytes: the target size of a file.
        data_key_length: the length of the keys of encrypted files in bytes; None if files are not encrypted.
        name: the prefix of the files' names, unique to this write.
    """

    writer: ExecutorWriter | Files
    folder: str
    target_bytes: int
    data_key_length: int | None
    name: str = field(default_factory=lambda: str(uuid.uuid4()))

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge masks and yield rows of `VECTOR_SCHEMA`. On error, delete the files already written.

        Args:
            batches: rows of `MASK_SCHEMA`, ordered by `data_path`. They may have a `sequence_number`.
        """
        blobs: list[tuple[str, Blob, int, int | None]] = []
        size = 0
        with deleted_on_error(self.writer) as write_new:
            for path, rows in groupby(task_rows(batches), key=lambda row: row["data_path"]):
                masks = list(rows)
                vector, count = _merged(masks)
                if blobs and size + len(vector) > self.target_bytes:
                    yield self._file(blobs, write_new)
                    blobs, size = [], 0
                blobs.append((path, deletion_vector_blob(vector, path, count), count, newest(masks)))
                size += len(vector)
            if blobs:
                yield self._file(blobs, write_new)

    def _file(
        self, blobs: list[tuple[str, Blob, int, int | None]], write_new: Callable[[str, bytes], None]
    ) -> pa.RecordBatch:
        file = write_puffin([blob for _, blob, _, _ in blobs])
        location = join(self.folder, f"{self.name}-{uuid.uuid4()}-deletes.puffin")
        data, key_metadata = encrypted(file.data, self.data_key_length)
        write_new(location, data)
        paths, _, counts, sequence_numbers = zip(*blobs, strict=True)
        columns = [
            paths,
            [location] * len(blobs),
            [stored.offset for stored in file.blobs],
            [stored.length for stored in file.blobs],
            counts,
            [len(data)] * len(blobs),
            sequence_numbers,
            [key_metadata] * len(blobs),
        ]
        return pa.RecordBatch.from_arrays([*map(pa.array, columns, VECTOR_SCHEMA.types)], schema=VECTOR_SCHEMA)


def newest(masks: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the highest sequence number of masks; None if no mask has one."""
    return max((number for mask in masks if (number := mask.get("sequence_number")) is not None), default=None)


def union(masks: Iterable[Mapping[str, Any]]) -> PositionBitmap:
    """Return the union of one data file's masks, rows of `MASK_SCHEMA`."""
    return reduce(PositionBitmap.union, (read_deletion_vector(mask["vector"], mask["delete_path"]) for mask in masks))


def _merged(masks: list[dict[str, Any]]) -> tuple[bytes, int]:
    """Return the union of a data file's masks as a blob, and its number of positions."""
    if len(masks) == 1:
        return masks[0]["vector"], masks[0]["positions"]
    bitmap = union(masks)
    return write_deletion_vector(bitmap), bitmap.cardinality


# -- Write masks of data files to delete files ------------------------------------------------------------------------


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
        pa.field(KEY_METADATA, pa.binary()),
    ]
)
"""New deletion vectors and position delete files, with columns of `inspect.files`.

`data_path` is a data file whose positions the file deletes. `sequence_number` is the greatest sequence number of the
deletes that the file replaces. All position delete files have `BOUNDS`.
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
        for path, path_rows in groupby(rows, key=lambda row: row["data_path"]):
            if file.size >= self.target_bytes:
                yield self._written(file, newest_of_paths, write_new)
                file, newest_of_paths = PositionFile(self.codec), []
            masks = list(path_rows)
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
            "lower_bounds": _bounds(file.first_path, file.first_position),
            "upper_bounds": _bounds(file.last_path, file.last_position),
        }
        return _written({name: [value] for name, value in columns.items()}, 1)


def _bounds(path: str | None, position: int | None) -> list[tuple[int, bytes]]:
    assert path is not None
    assert position is not None
    return [(DELETE_FILE_POS_ID, position.to_bytes(8, "little")), (DELETE_FILE_PATH_ID, path.encode())]


def _written(columns: dict[str, Sequence[Any]], row_count: int) -> pa.RecordBatch:
    arrays = [pa.array(columns.get(field.name, [None] * row_count), field.type) for field in WRITTEN_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN_SCHEMA)


# -- Find the rows of data files to delete ----------------------------------------------------------------------------


def matching_masks(rows: MatchingRows, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield masks of the rows of files that match a filter, rows of `MASK_SCHEMA`.

    Rows stay in Arrow: Spark sees only the files to read and the masks.

    Args:
        rows: reads the file path and row position of rows that match.
        batches: parts of data files; see `FileRows.read`.
    """
    return position_masks(rows.read(batches))
