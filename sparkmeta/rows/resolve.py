"""Resolve the source of each column of a scan in a data file (table spec, Column Projection).

The file's schema and the projection are trees of `IcebergColumn`. Columns are looked up by field id, never by name. The
source of a missing column is the first available of: the identity partition value, a column that the name mapping
assigns the id to, the initial default, null.

Pure functions. Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.bounds import reads_as

NESTED = ("struct", "list", "map")

TYPE_OF_COLUMN = "type of column "
"""The beginning of `CorruptFileError.field` if a file's column can't be read as the table's."""


@dataclass(frozen=True)
class IcebergColumn:
    """A column, or a field, element, key or value inside one.

    Attributes:
        name: the name; `element` in a list, `key` and `value` in a map.
        id: the field id; None if the file has none.
        type: the Iceberg name of a primitive type, or one of `NESTED`. File types that Iceberg lacks have other names.
        children: the fields of a struct, the element of a list, or the key and value of a map.
        required: whether it is required. Always False for file columns.
        default: the initial default; see `column_default` of `spec/schema.py`.
    """

    name: str
    id: int | None
    type: str
    children: tuple[IcebergColumn, ...] = ()
    required: bool = False
    default: Any = None


@dataclass(frozen=True)
class MappedName:
    """An entry of a name mapping (table spec, Column Projection): names for a field id in files without ids."""

    names: tuple[str, ...]
    id: int | None
    children: tuple[MappedName, ...] = ()


@dataclass(frozen=True)
class FromFile:
    """Values of a column of the file, widened to the projected type.

    Attributes:
        column: the projected column.
        physical: the column of the file.
        children: the sources of the projected column's children, in order.
    """

    column: IcebergColumn
    physical: IcebergColumn
    children: tuple[Source, ...] = ()


@dataclass(frozen=True)
class FromPartition:
    """The value of the column's identity partition field, in all rows. It may be null."""

    column: IcebergColumn


@dataclass(frozen=True)
class FromDefault:
    """The column's initial default, in all rows.

    Attributes:
        column: the projected column.
        children: for a struct, the sources of its fields. A field that the struct's default lacks has its own default.
    """

    column: IcebergColumn
    children: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Null:
    """Null, in all rows."""

    column: IcebergColumn


Source = FromFile | FromPartition | FromDefault | Null


def resolve(
    file_columns: Sequence[IcebergColumn],
    projected: Iterable[IcebergColumn],
    location: str,
    *,
    names: Sequence[MappedName] | None = None,
    partition_ids: Collection[int | None] = (),
    by_position: bool = False,
) -> tuple[Source, ...]:
    """Return the source of each projected column in a file.

    Args:
        file_columns: the columns of the file.
        projected: the columns to read.
        location: the file, for error messages.
        names: the table's name mapping, for columns without ids. If it is None and no column has an id, Iceberg's
            fallback applies: names of the projected columns, or their positions.
        partition_ids: the ids of columns with an identity partition field in the file's spec.
        by_position: whether the fallback assigns the ids 1, 2, 3 ... to the file's columns, as for Parquet.

    Raises:
        CorruptFileError: the file contradicts the schema: it has an id twice, a column type that can't be promoted to
            the projected one, or lacks a required column that has no default.
        UnsupportedError: the fallback is by position, and a nested field is projected.
    """
    wanted = tuple(projected)
    is_fallback = names is None and not has_ids(file_columns)
    if is_fallback:
        numbered = enumerate(file_columns, 1)
        names = (
            [MappedName((column.name,), position) for position, column in numbered]
            if by_position
            else own_names(wanted)
        )
    resolution = _Resolution(location, frozenset(partition_ids), is_fallback and by_position)
    return resolution.fields(file_columns, wanted, names or (), ())


def has_ids(columns: Iterable[IcebergColumn]) -> bool:
    """Return whether any column, including nested ones, has a field id."""
    return any(column.id is not None or has_ids(column.children) for column in columns)


def own_names(columns: Iterable[IcebergColumn]) -> tuple[MappedName, ...]:
    """Return the name mapping in which each column has its own name."""
    return tuple(MappedName((column.name,), column.id, own_names(column.children)) for column in columns)


@dataclass(frozen=True)
class _Candidates:
    """The columns of one struct of a file, by field id.

    Attributes:
        by_id: the columns with ids in the file.
        mapped: the columns to which the name mapping assigns ids.
        names: the name mapping of children, by column name.
    """

    by_id: dict[int, IcebergColumn] = field(default_factory=dict)
    mapped: dict[int, IcebergColumn] = field(default_factory=dict)
    names: dict[str, Sequence[MappedName]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Resolution:
    location: str
    partition_ids: frozenset[int | None]
    by_position: bool

    def fields(
        self,
        file_columns: Sequence[IcebergColumn],
        wanted: Sequence[IcebergColumn],
        names: Sequence[MappedName],
        path: tuple[str, ...],
    ) -> tuple[Source, ...]:
        """Resolve the fields of a struct.

        Args:
            file_columns: the fields of the struct in the file.
            wanted: the projected fields.
            names: the name mapping of the fields.
            path: the names of the struct and its enclosing columns.
        """
        candidates = self._candidates(file_columns, names)
        return tuple(self._field(column, candidates, path) for column in wanted)

    def _candidates(self, file_columns: Sequence[IcebergColumn], names: Sequence[MappedName]) -> _Candidates:
        by_name = {name: entry for entry in names for name in entry.names}
        candidates = _Candidates()
        for column in file_columns:
            if column.name in candidates.names:
                raise CorruptFileError(self.location, "column name", column.name, "two columns have this name")
            entry = by_name.get(column.name)
            candidates.names[column.name] = entry.children if entry else ()
            if column.id is not None:
                self._add(candidates.by_id, column.id, column)
            elif entry is not None and entry.id is not None:
                self._add(candidates.mapped, entry.id, column)
        return candidates

    def _add(self, columns: dict[int, IcebergColumn], field_id: int, column: IcebergColumn) -> None:
        if (earlier := columns.setdefault(field_id, column)) is not column:
            raise CorruptFileError(
                self.location, f"field id of column {column.name}", field_id, f"column {earlier.name} has the same id"
            )

    def _field(self, column: IcebergColumn, candidates: _Candidates, path: tuple[str, ...]) -> Source:
        assert column.id is not None
        if (physical := candidates.by_id.get(column.id)) is not None:
            return self._from_file(column, physical, candidates.names[physical.name], path)
        if column.id in self.partition_ids:
            return FromPartition(column)
        if (physical := candidates.mapped.get(column.id)) is not None:
            return self._from_file(column, physical, candidates.names[physical.name], path)
        if column.default is not None:
            return self._default(column, path)
        if column.required:
            name = ".".join((*path, column.name))
            problem = f"the file lacks this required column (field id {column.id}), which has no default"
            raise CorruptFileError(self.location, f"column {name}", None, problem)
        return Null(column)

    def _default(self, column: IcebergColumn, path: tuple[str, ...]) -> FromDefault:
        inside = (*path, column.name)
        if column.type != "struct":
            return FromDefault(column)
        values = dict(column.default)
        children = [
            replace(child, default=values[child.id], required=False) if child.id in values else child
            for child in column.children
        ]
        return FromDefault(column, self.fields((), children, (), inside))

    def _from_file(
        self, column: IcebergColumn, physical: IcebergColumn, names: Sequence[MappedName], path: tuple[str, ...]
    ) -> FromFile:
        inside = (*path, column.name)
        if not can_read(physical.type, column.type):
            problem = f"the table has type {column.type} (field id {column.id})"
            raise CorruptFileError(self.location, f"{TYPE_OF_COLUMN}{'.'.join(inside)}", physical.type, problem)
        if column.type not in NESTED or physical.type == "unknown":
            return FromFile(column, physical)
        if column.type == "struct":
            if self.by_position and not has_ids(physical.children):
                raise UnsupportedError(
                    f"{self.location}: the fields of column {'.'.join(inside)} have no ids in the file, and the table "
                    "has no name mapping: set schema.name-mapping.default"
                )
            return FromFile(column, physical, self.fields(physical.children, column.children, names, inside))
        # Elements, keys and values are unambiguous and need no id.
        entries = {name: entry.children for entry in names for name in entry.names}
        children = tuple(
            self._from_file(child, physical_child, entries.get(child.name, ()), inside)
            for child, physical_child in zip(column.children, physical.children, strict=True)
        )
        return FromFile(column, physical, children)


_TIMESTAMPS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_LENGTHS = ("fixed", "uuid")
_SAME = frozenset({("binary", "string"), ("long", "time"), ("time32[ms]", "time"), ("struct", "variant")})


def can_read(file_type: str, type_name: str) -> bool:
    """Return whether values of a file's type can be read as a table's type.

    They can if the types are the same, or if the file's type can be promoted (table spec, Schema Evolution). They also
    can if the format or writer has fewer types than Iceberg, and so stores strings, UUIDs, fixed values and shapes as
    bytes, times as longs or in milliseconds, or timestamps in another unit or without the time zone. Reading a value
    that does not fit raises an error.
    """
    if reads_as(file_type, type_name) or (file_type, type_name) in _SAME:
        return True
    if file_type in _TIMESTAMPS:
        return type_name in _TIMESTAMPS
    if file_type == "binary" or file_type.startswith(_LENGTHS):
        return type_name.startswith(("binary", *_LENGTHS, "geometry", "geography"))
    return False
