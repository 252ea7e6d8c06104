"""Read the rows of planned data files in a task: resolve columns by field id, and apply deletes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import narrowed
from sparkmeta.expr.evaluate import where
from sparkmeta.expr.sql import Sql
from sparkmeta.rows.data_file import (
    ComparedField,
    DataFile,
    Partition,
    column_values,
    open_data_file,
    refuse_other_count,
)
from sparkmeta.rows.delete_rows import data_paths
from sparkmeta.rows.resolve import FromFile, IcebergColumn, MappedName, Source, resolve
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID, ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.vectors import stored_vector

# -- The deletes of a data file ---------------------------------------------------------------------------------------
# Spark tasks import this module, so it imports little.


Flags = np.ndarray[Any, np.dtype[np.bool_]]
Delete = Mapping[str, Any]
"""An element of `deletes` in a row of `plan_files`."""

_POSITION_LEAVES = (
    ComparedField(
        DELETE_FILE_PATH_ID, IcebergColumn("file_path", DELETE_FILE_PATH_ID, "string", required=True), pa.string()
    ),
    ComparedField(DELETE_FILE_POS_ID, IcebergColumn("pos", DELETE_FILE_POS_ID, "long", required=True), pa.int64()),
)
# Maximum number of positions and keys that a task caches for the next data files.
_CACHED_ROWS = 4_000_000


class KeySet:
    """A set of equality delete keys, which are rows of a few columns. Null equals null.

    Keys are encoded as numbers, column by column: the index of a value among the column's distinct values is combined
    with the number for the previous columns.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        """Build a set from rows.

        Args:
            columns: the columns of the keys, at least one, with at least one row.
        """
        self._values = [pc.unique(column) for column in columns]
        self._pairs: list[np.ndarray[Any, Any]] = []
        numbers = _value_indices(columns[0], self._values[0])
        for column, values in zip(columns[1:], self._values[1:], strict=True):
            pairs = numbers * len(values) + _value_indices(column, values)
            self._pairs.append(np.unique(pairs))
            numbers = np.searchsorted(self._pairs[-1], pairs)

    def contains(self, columns: Sequence[pa.Array]) -> Flags:
        """Return which rows are in the set.

        Args:
            columns: the rows' columns, with the types of the keys' columns.
        """
        numbers = _value_indices(columns[0], self._values[0])
        for column, values, known_pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            indices = _value_indices(column, values)
            pairs = np.where((numbers < 0) | (indices < 0), -1, numbers * len(values) + indices)
            positions = np.minimum(np.searchsorted(known_pairs, pairs), len(known_pairs) - 1)
            numbers = np.where(known_pairs[positions] == pairs, positions, -1)
        is_member: Flags = numbers >= 0
        return is_member


def _value_indices(column: pa.Array, values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the index of each value in an array of distinct values; -1 for a value that is not in the array."""
    indices = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(indices, np.int64)


@dataclass(frozen=True)
class FileDeletes:
    """The deletes that apply to a data file.

    Attributes:
        positions: the deleted positions.
        keys: the sets of deleted keys, each with the ids of its columns.
    """

    positions: PositionBitmap | None
    keys: tuple[tuple[tuple[int, ...], KeySet], ...]

    def deleted(self, start: int, length: int, columns: Mapping[int, pa.Array]) -> Flags:
        """Return which of some consecutive rows are deleted.

        Args:
            start: the position of the first row.
            length: the number of rows.
            columns: the key columns of these rows by field id.
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
    """A cache of the most recent values, limited by their total number of rows. It never drops its only value."""

    max_rows: int
    _values: OrderedDict[Any, tuple[V, int]] = field(default_factory=OrderedDict)

    def get(self, key: Any, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value of a key. If it is not cached, call `make`, which returns it with its number of rows."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > 1 and sum(rows for _, rows in self._values.values()) > self.max_rows:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key][0]


class DeleteReader:
    """Opens delete files and caches some of their content, since the next data file may have the same deletes."""

    def __init__(self, reader: ExecutorReader, locations: Locations, keys: Iterable[ComparedField]) -> None:
        """Create a reader for a task.

        Args:
            reader: opens files.
            locations: resolves the paths in position delete files.
            keys: the columns that equality deletes compare.
        """
        self._reader = reader
        self._locations = locations
        self._leaves = {leaf.id: leaf for leaf in keys}
        self._positions: _Recent[dict[str, PositionBitmap]] = _Recent(_CACHED_ROWS)
        self._keys: _Recent[list[pa.Array]] = _Recent(_CACHED_ROWS)
        self._key_sets: _Recent[KeySet | None] = _Recent(_CACHED_ROWS)

    def deletes_of(self, location: str, rows: int, deletes: Iterable[Delete]) -> FileDeletes:
        """Open the deletes of a data file.

        Args:
            location: the data file.
            rows: the number of rows of the data file; -1 if unknown.
            deletes: the file's deletes in the plan.

        Raises:
            CorruptFileError: a delete file or deletion vector is damaged.
            NotFoundError: a data file or delete file is missing.
        """
        bitmaps: list[PositionBitmap] = []
        by_ids: dict[tuple[int, ...], list[Delete]] = {}
        for delete in deletes:
            if delete["content"] == ContentType.EQUALITY_DELETES:
                by_ids.setdefault(tuple(sorted(delete["equality_ids"])), []).append(delete)
            else:
                is_vector = delete["file_format"].upper() == "PUFFIN"
                bitmaps.append(self._vector(delete) if is_vector else self._deleted_positions(delete, location))
                last_position = bitmaps[-1].max()
                if last_position is not None and 0 <= rows <= last_position:
                    raise CorruptFileError(
                        delete["file_path"], "position", last_position, f"{location} has {rows} rows"
                    )
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
            for path, path_positions in _by_path(data_paths(paths, location, self._locations), positions):
                if referenced is not None and path != referenced:
                    problem = f"the manifest says that all deletes are of {referenced}"
                    raise CorruptFileError(location, "file_path", path, problem)
                bitmap = PositionBitmap.of(path_positions)
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
        empty_columns = [pa.nulls(0, leaf.unnested().kind) for leaf in leaves]
        columns = [pa.concat_arrays(parts) for parts in zip(empty_columns, *batches, strict=True)]
        return columns, len(columns[0])

    def _batches(self, delete: Delete, leaves: Sequence[ComparedField]) -> Iterator[list[pa.Array]]:
        """Yield columns of a delete file, batch by batch."""
        location = delete["file_path"]
        file = open_data_file(self._reader, location, delete["file_format"])
        top_level_ids = {column.id for column in file.columns}
        leaves = [leaf.unnested() if leaf.id in top_level_ids else leaf for leaf in leaves]
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


# -- The rows of planned files ----------------------------------------------------------------------------------------
# A task holds a batch of one file's rows (`data_file`), the bitmap of the file's deleted positions and the keys of its
# equality deletes, and cached positions and keys of delete files that the next file may need.
#
# Spark tasks import this module, so it imports little.


METADATA_COLUMNS = {
    column.name: column
    for column in (
        IcebergColumn("_file", 2147483646, "string"),
        IcebergColumn("_pos", 2147483645, "long"),
        IcebergColumn("_deleted", 2147483644, "boolean"),
        IcebergColumn("_spec_id", 2147483643, "int"),
        IcebergColumn("_partition", 2147483642, "struct"),
        IcebergColumn("_row_id", 2147483540, "long"),
        IcebergColumn("_last_updated_sequence_number", 2147483539, "long"),
    )
}
"""Metadata columns, with their field ids (table spec, Reserved Field IDs)."""

CHANGE_COLUMNS = {
    column.name: column
    for column in (
        IcebergColumn("_change_type", 2147483543, "string"),
        IcebergColumn("_change_ordinal", 2147483542, "int"),
        IcebergColumn("_commit_snapshot_id", 2147483541, "long"),
    )
}
"""Metadata columns of changelogs."""

ALL_METADATA_COLUMNS = METADATA_COLUMNS | CHANGE_COLUMNS

_, _POS, _DELETED, _, _PARTITION, _ROW_ID, _LAST_UPDATED = METADATA_COLUMNS.values()
_STORED = (_ROW_ID, _LAST_UPDATED)
_VIRTUAL = tuple(column for column in ALL_METADATA_COLUMNS.values() if column not in _STORED)
# Virtual columns -> the differently named columns of planned files that they show.
_PLANNED_NAMES = {"_file": "file_path", "_spec_id": "spec_id"}

START, STOP = "start", "stop"
SELECTED_BY = "selected_by"
"""A second array of deletes: only rows that it deletes, and `deletes` does not, are read from the file."""


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of planned data files, and applies deletes.

    Attributes:
        reader: opens files.
        locations: resolves the paths in position delete files.
        columns: the projected columns, including metadata columns.
        leaves: fields used by a filter, which follow the columns in the result.
        keys: the columns that equality deletes compare.
        schema: the Arrow schema of the result.
        names: the table's name mapping.
        identities: spec id -> column id -> the index of its identity partition field in the tuple; None if the tuple
            lacks it.
    """

    reader: ExecutorReader
    locations: Locations
    columns: tuple[IcebergColumn, ...]
    leaves: tuple[ComparedField, ...]
    keys: tuple[ComparedField, ...]
    schema: pa.Schema
    names: tuple[MappedName, ...] | None
    identities: Mapping[int, Mapping[int, int | None]]

    @property
    def shows_deleted(self) -> bool:
        """Whether the result includes deleted rows."""
        return _DELETED in self.columns

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of data files, or all rows if `_deleted` is projected.

        Args:
            batches: one row per part of a data file: columns of `plan_files`, and the part's `start` and `stop`, which
                are the arguments `start` and `end` of `DataFile.batches`.

        Raises:
            CorruptFileError: a data file or delete file is damaged.
            NotFoundError: a data file or delete file is missing.
        """
        deletes = DeleteReader(self.reader, self.locations, self.keys)
        for batch in batches:
            for index in range(len(batch)):
                part = _Part(batch.slice(index, 1))
                self._learn_keys(part)
                with translated_read_errors(part.location):
                    yield from self._rows(part, deletes)

    def _learn_keys(self, part: _Part) -> None:
        """Pass the keys of a data file and its deletes to the reader, if the table is encrypted."""
        if KEY_METADATA not in part:
            return
        self.reader.keys.learn(part.location, part["file_format"], part[KEY_METADATA])
        for name in {"deletes", SELECTED_BY}.intersection(part.row.schema.names):
            for delete in part[name]:
                self.reader.keys.learn(delete["file_path"], delete["file_format"], delete[KEY_METADATA])

    def _rows(self, part: _Part, deletes: DeleteReader) -> Iterator[pa.RecordBatch]:
        file = open_data_file(self.reader, part.location, part["file_format"])
        if file.rows is not None:
            refuse_other_count(part.location, part["record_count"], file.rows)
        open_deletes = partial(deletes.deletes_of, part.location, part["record_count"])
        selecting = open_deletes(part[SELECTED_BY]) if SELECTED_BY in part else None
        read = _FileRead(self, part, file, open_deletes(part["deletes"]), selecting)
        rows = 0
        for first_row, batch in file.batches(read.sources, part[START], part[STOP]):
            yield read.output(first_row, batch)
            rows += len(batch)
        if file.rows is None and part[START] == 0:
            refuse_other_count(part.location, part["record_count"], rows)


@dataclass(frozen=True)
class _Part:
    """A part of a planned data file: a batch of one row."""

    row: pa.RecordBatch

    def __getitem__(self, name: str) -> Any:
        return self.row.column(name)[0].as_py()

    def __contains__(self, name: str) -> bool:
        return name in self.row.schema.names

    @property
    def location(self) -> str:
        return str(self["file_path"])


class _FileRead:
    """Converts the rows of a file to rows of the result."""

    def __init__(
        self, rows: RowReader, part: _Part, file: DataFile, deletes: FileDeletes, selecting: FileDeletes | None
    ) -> None:
        self._rows, self._part, self._file, self._deletes, self._selecting = rows, part, file, deletes, selecting
        self._columns = self._resolve(column for column in rows.columns if not _is_virtual(column))
        self._leaves = self._resolve(leaf.column for leaf in rows.leaves)
        compared = {
            field_id
            for file_deletes in (deletes, selecting)
            if file_deletes
            for ids, _ in file_deletes.keys
            for field_id in ids
        }
        self._keys = [leaf for leaf in rows.keys if leaf.id in compared]
        self._key_ids = [leaf.id for leaf in self._keys]
        self._key_sources = self._resolve(leaf.column for leaf in self._keys)

    @property
    def sources(self) -> list[Source]:
        """All sources to read."""
        return [*self._columns, *self._leaves, *self._key_sources]

    @cached_property
    def _partition(self) -> Partition:
        indices = self._rows.identities[self._part["spec_id"]]
        if not any(index is not None for index in indices.values()):
            return dict.fromkeys(indices)
        values = self._part.row.column("partition").flatten()
        return {column_id: None if index is None else values[index][0] for column_id, index in indices.items()}

    def _resolve(self, columns: Iterable[IcebergColumn]) -> tuple[Source, ...]:
        return resolve(
            self._file.columns,
            columns,
            self._part.location,
            names=self._rows.names,
            partition_ids=self._partition.keys(),
            by_position=self._part["file_format"].upper() == "PARQUET",
        )

    def output(self, first_row: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the file to rows of the result. `first_row` is the position of the first row."""
        keys = dict(zip(self._key_ids, self._values(batch, self._keys, self._key_sources), strict=True))
        flags = self._deletes.deleted(first_row, len(batch), keys)
        if self._selecting is not None:
            flags |= ~self._selecting.deleted(first_row, len(batch), keys)
        deleted = pa.array(flags)
        sources = iter(self._columns)
        columns = []
        for column, kind in zip(self._rows.columns, self._rows.schema.types, strict=False):
            if column == _DELETED:
                columns.append(deleted)
            elif _is_virtual(column):
                columns.append(self._virtual_values(column, kind, first_row, len(batch)))
            else:
                columns.append(
                    self._inherited(column, column_values(batch, next(sources), kind, self._partition), first_row)
                )
        columns += self._values(batch, self._rows.leaves, self._leaves)
        result = pa.RecordBatch.from_arrays(columns, schema=self._rows.schema)
        return result if self._rows.shows_deleted or not flags.any() else result.filter(pc.invert(deleted))

    def _values(
        self, batch: pa.RecordBatch, leaves: Iterable[ComparedField], sources: Iterable[Source]
    ) -> list[pa.Array]:
        return [
            leaf.values(column_values(batch, source, leaf.kind, self._partition))
            for leaf, source in zip(leaves, sources, strict=True)
        ]

    def _virtual_values(self, column: IcebergColumn, kind: pa.DataType, first_row: int, length: int) -> pa.Array:
        """Compute a metadata column that files don't store."""
        if column == _POS:
            return pa.array(np.arange(first_row, first_row + length))
        if column == _PARTITION:
            return self._part.row.column("partition").take(pa.array(np.zeros(length, np.int64))).cast(kind)
        return pa.repeat(pa.scalar(self._part[_PLANNED_NAMES.get(column.name, column.name)], kind), length)

    def _inherited(self, column: IcebergColumn, stored: pa.Array, first_row: int) -> pa.Array:
        """Replace nulls in a row lineage column with inherited values (table spec, Row Lineage).

        Other columns are returned as stored.
        """
        if column not in _STORED:
            return stored
        first_row_id = self._part["first_row_id"]
        if first_row_id is None:
            return pa.nulls(len(stored), stored.type)
        if column == _LAST_UPDATED:
            return pc.fill_null(stored, self._part["data_sequence_number"])
        return pc.coalesce(stored, pa.array(np.arange(len(stored)) + (first_row_id + first_row)))


def _is_virtual(column: IcebergColumn) -> bool:
    """Return whether the column is a metadata column that no file stores."""
    return column in _VIRTUAL


@dataclass(frozen=True)
class MatchingRows:
    """Reads the live rows of planned files that match a filter.

    Attributes:
        rows: reads the rows.
        condition: the filter, on the columns that `rows` reads for it.
        schema: the Arrow schema of the result.
    """

    rows: RowReader
    condition: Sql
    schema: pa.Schema

    def select(self, names: Iterable[str]) -> MatchingRows:
        """Return a reader of only the named columns, in the order of the schema.

        It reads at least one column, since a batch without columns has no rows. A reader that shows deleted rows is
        returned unchanged.
        """
        if self.rows.shows_deleted:
            return self
        wanted_names = set(names)
        indices = [index for index, name in enumerate(self.schema.names) if name in wanted_names] or [0]
        read_schema, leaves = self.rows.schema, range(len(self.schema), len(self.rows.schema))
        columns = tuple(self.rows.columns[index] for index in indices)
        rows = replace(
            self.rows,
            columns=columns,
            schema=pa.schema([read_schema.field(field_index) for field_index in (*indices, *leaves)]),
        )
        return replace(self, rows=rows, schema=pa.schema([self.schema.field(index) for index in indices]))

    def with_dictionary(self, index: int) -> MatchingRows:
        """Return a reader that dictionary-encodes a text column that repeats in many rows, such as a path."""
        field = self.schema.field(index).with_type(pa.dictionary(pa.int32(), pa.string()))
        rows = replace(self.rows, schema=self.rows.schema.set(index, field))
        return replace(self, rows=rows, schema=self.schema.set(index, field))

    def read(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts of files; see `RowReader.read`."""
        for batch in self.rows.read(parts):
            matching = where(pa.Table.from_batches([batch]), self.condition)
            columns = [
                column if column.type == field.type else narrowed(column, field.type)
                for column, field in zip(matching.columns, self.schema, strict=False)
            ]
            yield from pa.Table.from_arrays(columns, schema=self.schema).to_batches()
