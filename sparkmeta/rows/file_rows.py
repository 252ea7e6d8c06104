"""Read rows of planned data files in a Spark task: resolve columns by field id and apply deletes.

A task holds a batch of one file's rows (`data_file`), the bitmap of the file's deleted positions and the keys of its
equality deletes, and cached positions and keys of delete files that the next file may need (`file_deletes`).

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.rows.arrays import Leaf, Partition, column_values
from sparkmeta.rows.data_file import DataFile, open_data_file, refuse_other_count
from sparkmeta.rows.file_deletes import DeleteReader, FileDeletes
from sparkmeta.rows.resolve import Column, MappedName, Source, resolve
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.read_errors import translated_read_errors

METADATA_COLUMNS = {
    column.name: column
    for column in (
        Column("_file", 2147483646, "string"),
        Column("_pos", 2147483645, "long"),
        Column("_deleted", 2147483644, "boolean"),
        Column("_spec_id", 2147483643, "int"),
        Column("_partition", 2147483642, "struct"),
        Column("_row_id", 2147483540, "long"),
        Column("_last_updated_sequence_number", 2147483539, "long"),
    )
}
"""Metadata columns, with their field ids (table spec, Reserved Field IDs)."""

CHANGE_COLUMNS = {
    column.name: column
    for column in (
        Column("_change_type", 2147483543, "string"),
        Column("_change_ordinal", 2147483542, "int"),
        Column("_commit_snapshot_id", 2147483541, "long"),
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
"""A second array of deletes: only rows that these delete, and `deletes` do not, are read of the file."""


@dataclass(frozen=True)
class FileRows:
    """The rows to read and how to read them.

    Attributes:
        reader: Opens files.
        locations: Resolves the paths in position delete files.
        columns: The projected columns, including metadata columns.
        leaves: Fields used by a filter, which follow the columns in the result.
        keys: The columns that equality deletes compare.
        schema: The Arrow schema of the result.
        names: The table's name mapping.
        identities: Spec id -> column id -> the index of its identity partition field in the tuple; None if the tuple
            lacks it.
    """

    reader: ExecutorReader
    locations: Locations
    columns: tuple[Column, ...]
    leaves: tuple[Leaf, ...]
    keys: tuple[Leaf, ...]
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
            batches: One row per part of a data file: columns of `plan_files`, and its `start` and `end` (see
                `DataFile.batches`).

        Raises:
            CorruptFileError: A data file or delete file is damaged.
            NotFoundError: One is missing.
        """
        deletes = DeleteReader(self.reader, self.locations, self.keys)
        for batch in batches:
            for index in range(len(batch)):
                part = _Part(batch.slice(index, 1))
                with translated_read_errors(part.location):
                    yield from self._rows(part, deletes)

    def _rows(self, part: _Part, deletes: DeleteReader) -> Iterator[pa.RecordBatch]:
        file = open_data_file(self.reader, part.location, part["file_format"])
        if file.rows is not None:
            refuse_other_count(part.location, part["record_count"], file.rows)
        open_deletes = partial(deletes.deletes_of, part.location, part["record_count"])
        selecting = open_deletes(part[SELECTED_BY]) if SELECTED_BY in part else None
        read = _FileRead(self, part, file, open_deletes(part["deletes"]), selecting)
        rows = 0
        for first, batch in file.batches(read.sources, part[START], part[STOP]):
            yield read.output(first, batch)
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
    """Converts the rows of a file to those of the result."""

    def __init__(
        self, rows: FileRows, part: _Part, file: DataFile, deletes: FileDeletes, selecting: FileDeletes | None
    ) -> None:
        self._rows, self._part, self._file, self._deletes, self._selecting = rows, part, file, deletes, selecting
        self._columns = self._resolve(column for column in rows.columns if not _is_virtual(column))
        self._leaves = self._resolve(leaf.column for leaf in rows.leaves)
        compared = {field_id for each in (deletes, selecting) if each for ids, _ in each.keys for field_id in ids}
        self._keys = [leaf for leaf in rows.keys if leaf.id in compared]
        self._key_ids = [leaf.id for leaf in self._keys]
        self._key_sources = self._resolve(leaf.column for leaf in self._keys)

    @property
    def sources(self) -> list[Source]:
        """All sources to read."""
        return [*self._columns, *self._leaves, *self._key_sources]

    @cached_property
    def _partition(self) -> Partition:
        places = self._rows.identities[self._part["spec_id"]]
        if not any(place is not None for place in places.values()):
            return dict.fromkeys(places)
        values = self._part.row.column("partition").flatten()
        return {column_id: None if place is None else values[place][0] for column_id, place in places.items()}

    def _resolve(self, columns: Iterable[Column]) -> tuple[Source, ...]:
        return resolve(
            self._file.columns,
            columns,
            self._part.location,
            names=self._rows.names,
            partition_ids=self._partition.keys(),
            by_position=self._part["file_format"].upper() == "PARQUET",
        )

    def output(self, first: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the file to rows of the result. `first` is the position of the first row."""
        keys = dict(zip(self._key_ids, self._values(batch, self._keys, self._key_sources), strict=True))
        flags = self._deletes.deleted(first, len(batch), keys)
        if self._selecting is not None:
            flags |= ~self._selecting.deleted(first, len(batch), keys)
        deleted = pa.array(flags)
        sources = iter(self._columns)
        columns = []
        for column, kind in zip(self._rows.columns, self._rows.schema.types, strict=False):
            if column == _DELETED:
                columns.append(deleted)
            elif _is_virtual(column):
                columns.append(self._of_the_file(column, kind, first, len(batch)))
            else:
                columns.append(
                    self._inherited(column, column_values(batch, next(sources), kind, self._partition), first)
                )
        columns += self._values(batch, self._rows.leaves, self._leaves)
        result = pa.RecordBatch.from_arrays(columns, schema=self._rows.schema)
        return result if self._rows.shows_deleted or not flags.any() else result.filter(pc.invert(deleted))

    def _values(self, batch: pa.RecordBatch, leaves: Iterable[Leaf], sources: Iterable[Source]) -> list[pa.Array]:
        return [
            leaf.values(column_values(batch, source, leaf.kind, self._partition))
            for leaf, source in zip(leaves, sources, strict=True)
        ]

    def _of_the_file(self, column: Column, kind: pa.DataType, first: int, length: int) -> pa.Array:
        """Compute a metadata column that files don't store."""
        if column == _POS:
            return pa.array(np.arange(first, first + length))
        if column == _PARTITION:
            return self._part.row.column("partition").take(pa.array(np.zeros(length, np.int64))).cast(kind)
        return pa.repeat(pa.scalar(self._part[_PLANNED_NAMES.get(column.name, column.name)], kind), length)

    def _inherited(self, column: Column, stored: pa.Array, first: int) -> pa.Array:
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
        return pc.coalesce(stored, pa.array(np.arange(len(stored)) + (first_row_id + first)))


def _is_virtual(column: Column) -> bool:
    """Return whether the column is a metadata column that no file stores."""
    return column in _VIRTUAL
