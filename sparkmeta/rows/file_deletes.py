"""Open the deletes of a data file in the task that reads it: positions as a bitmap, equality deletes as keys.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import CorruptFileError
from sparkmeta.inspect.delete_rows import data_paths
from sparkmeta.rows.arrays import Leaf, column_values
from sparkmeta.rows.data_file import open_data_file
from sparkmeta.rows.resolve import Column, FromFile, resolve
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID, ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.read_errors import translated_read_errors
from sparkmeta.storage.vectors import stored_vector

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorReader

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Delete = Mapping[str, Any]
"""An element of `deletes` in a row of `plan_files`."""

_POSITION_LEAVES = (
    Leaf(DELETE_FILE_PATH_ID, Column("file_path", DELETE_FILE_PATH_ID, "string", required=True), pa.string()),
    Leaf(DELETE_FILE_POS_ID, Column("pos", DELETE_FILE_POS_ID, "long", required=True), pa.int64()),
)
# Maximum number of positions and keys that a task caches for the next data files.
_KEPT_ROWS = 4_000_000


class KeySet:
    """A set of equality delete keys, which are rows of a few columns. Null equals null.

    Keys are encoded as numbers, column by column: the index of a value among the column's distinct values is combined
    with the number for the previous columns.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        """Build a set from rows.

        Args:
            columns: The columns of the keys, at least one, with at least one row.
        """
        self._values = [pc.unique(column) for column in columns]
        self._pairs: list[np.ndarray[Any, Any]] = []
        numbers = _places(columns[0], self._values[0])
        for column, values in zip(columns[1:], self._values[1:], strict=True):
            pairs = numbers * len(values) + _places(column, values)
            self._pairs.append(np.unique(pairs))
            numbers = np.searchsorted(self._pairs[-1], pairs)

    def contains(self, columns: Sequence[pa.Array]) -> Flags:
        """Return which rows are in the set.

        Args:
            columns: The rows' columns, with the types of the keys' columns.
        """
        numbers = _places(columns[0], self._values[0])
        for column, values, known in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            places = _places(column, values)
            pairs = np.where((numbers < 0) | (places < 0), -1, numbers * len(values) + places)
            at = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
            numbers = np.where(known[at] == pairs, at, -1)
        present: Flags = numbers >= 0
        return present


def _places(column: pa.Array, values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the index of each value in an array of distinct values; -1 if it is not there."""
    places = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(places, np.int64)


@dataclass(frozen=True)
class FileDeletes:
    """The deletes that apply to a data file.

    Attributes:
        positions: The deleted positions.
        keys: The sets of deleted keys, each with the ids of its columns.
    """

    positions: PositionBitmap | None
    keys: tuple[tuple[tuple[int, ...], KeySet], ...]

    def deleted(self, start: int, length: int, columns: Mapping[int, pa.Array]) -> Flags:
        """Return which of some consecutive rows are deleted.

        Args:
            start: The position of the first row.
            length: The number of rows.
            columns: The key columns of these rows by field id.
        """
        flags = np.zeros(length, np.bool_) if self.positions is None else self.positions.flags(start, length)
        for ids, keys in self.keys:
            flags |= keys.contains([columns[field_id] for field_id in ids])
        return flags

    def __bool__(self) -> bool:
        return self.positions is not None or bool(self.keys)


V = TypeVar("V")


@dataclass
class _Recent(Generic[V]):
    """A cache of the most recent values, limited by their total number of rows. It keeps at least one value."""

    most: int
    _values: OrderedDict[Any, tuple[V, int]] = field(default_factory=OrderedDict)

    def get(self, key: Any, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value of a key. If it is not cached, call `make`, which returns it with its number of rows."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > 1 and sum(rows for _, rows in self._values.values()) > self.most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key][0]


class DeleteReader:
    """Opens delete files and caches some of their content, since the next data file may have the same ones."""

    def __init__(self, reader: ExecutorReader, locations: Locations, keys: Iterable[Leaf]) -> None:
        """Create a reader for a task.

        Args:
            reader: Opens files.
            locations: Resolves the paths in position delete files.
            keys: The columns that equality deletes compare.
        """
        self._reader = reader
        self._locations = locations
        self._leaves = {leaf.id: leaf for leaf in keys}
        self._positions: _Recent[dict[str, PositionBitmap]] = _Recent(_KEPT_ROWS)
        self._keys: _Recent[list[pa.Array]] = _Recent(_KEPT_ROWS)
        self._key_sets: _Recent[KeySet | None] = _Recent(_KEPT_ROWS)

    def deletes_of(self, location: str, rows: int, deletes: Iterable[Delete]) -> FileDeletes:
        """Open the deletes of a data file.

        Args:
            location: The data file.
            rows: Its number of rows; -1 if unknown.
            deletes: Its deletes in the plan.

        Raises:
            CorruptFileError: A delete file or deletion vector is damaged.
            NotFoundError: One is missing.
        """
        bitmaps: list[PositionBitmap] = []
        by_ids: dict[tuple[int, ...], list[Delete]] = {}
        for delete in deletes:
            if delete["content"] == ContentType.EQUALITY_DELETES:
                by_ids.setdefault(tuple(sorted(delete["equality_ids"])), []).append(delete)
            else:
                is_vector = delete["file_format"].upper() == "PUFFIN"
                bitmaps.append(self._vector(delete) if is_vector else self._deleted_positions(delete, location))
                last = bitmaps[-1].max()
                if last is not None and 0 <= rows <= last:
                    raise CorruptFileError(delete["file_path"], "position", last, f"{location} has {rows} rows")
        sets = [(ids, self._key_set(ids, files)) for ids, files in by_ids.items()]
        keys = tuple((ids, keys) for ids, keys in sets if keys is not None)
        return FileDeletes(reduce(PositionBitmap.union, bitmaps) if bitmaps else None, keys)

    def _vector(self, delete: Delete) -> PositionBitmap:
        names = ("file_path", "content_offset", "content_size_in_bytes", "record_count")
        return stored_vector(self._reader, *(delete[name] for name in names))

    def _deleted_positions(self, delete: Delete, data_file: str) -> PositionBitmap:
        by_path = self._positions.get(delete["file_path"], lambda: self._read_positions(delete))
        return by_path.get(data_file, PositionBitmap({}))

    def _read_positions(self, delete: Delete) -> tuple[dict[str, PositionBitmap], int]:
        location, referenced = delete["file_path"], delete["referenced_data_file"]
        by_path: dict[str, PositionBitmap] = {}
        rows = 0
        for paths, positions in self._batches(delete, _POSITION_LEAVES):
            rows += len(paths)
            for path, of_path in _by_path(data_paths(paths, location, self._locations), positions):
                if referenced is not None and path != referenced:
                    problem = f"the manifest says that all deletes are of {referenced}"
                    raise CorruptFileError(location, "file_path", path, problem)
                bitmap = PositionBitmap.of(of_path)
                by_path[path] = by_path[path].union(bitmap) if path in by_path else bitmap
        return by_path, rows

    def _key_set(self, ids: tuple[int, ...], deletes: Sequence[Delete]) -> KeySet | None:
        def make() -> tuple[KeySet | None, int]:
            files = [
                self._keys.get((ids, delete["file_path"]), partial(self._read_keys, ids, delete)) for delete in deletes
            ]
            columns = [pa.concat_arrays(parts) for parts in zip(*files, strict=True)]
            return (KeySet(columns) if len(columns[0]) else None), len(columns[0])

        return self._key_sets.get((ids, *(delete["file_path"] for delete in deletes)), make)

    def _read_keys(self, ids: tuple[int, ...], delete: Delete) -> tuple[list[pa.Array], int]:
        if unknown := set(ids) - self._leaves.keys():
            problem = "no schema of the table has such a primitive column"
            raise CorruptFileError(delete["file_path"], "equality_ids", min(unknown), problem)
        leaves = [self._leaves[field_id] for field_id in ids]
        batches = self._batches(delete, leaves)
        empty = [pa.nulls(0, leaf.alone().kind) for leaf in leaves]
        columns = [pa.concat_arrays(parts) for parts in zip(empty, *batches, strict=True)]
        return columns, len(columns[0])

    def _batches(self, delete: Delete, leaves: Sequence[Leaf]) -> Iterator[list[pa.Array]]:
        """Yield columns of a delete file, batch by batch."""
        location = delete["file_path"]
        file = open_data_file(self._reader, location, delete["file_format"])
        at_top = {column.id for column in file.columns}
        leaves = [leaf.alone() if leaf.id in at_top else leaf for leaf in leaves]
        columns = [leaf.column for leaf in leaves]
        sources = resolve(file.columns, columns, location)
        for leaf, source in zip(leaves, sources, strict=True):
            if not isinstance(source, FromFile):
                raise CorruptFileError(location, f"column {leaf.column.name}", None, "a delete file must have it")
        with translated_read_errors(location):
            for _, batch in file.batches(sources, 0, None):
                yield [
                    leaf.values(column_values(batch, source, leaf.kind, {}))
                    for leaf, source in zip(leaves, sources, strict=True)
                ]


def _by_path(paths: pa.StringArray, positions: pa.Int64Array) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield each path with its positions."""
    encoded = paths.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    yield from zip(encoded.dictionary.to_pylist(), np.split(positions.to_numpy()[order], ends[:-1]), strict=True)
