"""Merge the columns of data files and of the folders above them into the columns of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.schema import Schema, index_by_name
from pyiceberg.types import MapType, NestedField, StructType

from sparkmeta.errors import CorruptFileError, ValidationError
from sparkmeta.maintain.take_in_tasks import SHAPE, STRING, UNKNOWN
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.schema import list_of, type_from_json
from sparkmeta.write.existing_tasks import FILE_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.types import IcebergType

# The fields of a variant in a file, of the type binary.
_VARIANT: Final = frozenset({"metadata", "value"})
_WIDER: Final = (("int", "long"), ("float", "double"))
_NUMBERS: Final = ("int", "long", "double")
_DECIMAL: Final = re.compile(r"decimal\((\d+), (\d+)\)")


@dataclass(frozen=True)
class Shape:
    """The columns that some files have in common.

    Attributes:
        columns: the columns in the files.
        folders: the columns in the folders above them.
        path: a file, for errors.
        case_sensitive: whether names of columns may differ only in case.
    """

    columns: tuple[IcebergColumn, ...]
    folders: tuple[IcebergColumn, ...]
    path: str
    case_sensitive: bool

    @staticmethod
    def of(row: dict[str, Any], *, case_sensitive: bool) -> Shape:
        """Return a row of `SHAPES`.

        Args:
            row: the row.
            case_sensitive: whether names of columns may differ only in case.

        Raises:
            ValidationError: two columns have the same name, or a folder has no name.
        """
        columns, folders = json.loads(row[SHAPE])
        shape = Shape(_columns(columns), _columns(folders), row[FILE_PATH], case_sensitive)
        if any(not column.name for column in shape.folders):
            raise ValidationError(f"{shape.path}: a folder above it has no name before the =")
        shape._refuse_repeated(shape.path)
        return shape

    def with_files(self, other: Shape) -> Shape:
        """Return the merged columns of these files and of other files.

        Raises:
            ValidationError: a column has two types, and neither can be promoted to the other; or the folders of the
                files name other columns; or names of columns differ only in case.
        """
        names, other_names = ([column.name for column in shape.folders] for shape in (self, other))
        if names != other_names:
            differing = " and ".join(
                "/".join(f"{name}=..." for name in side) or "none" for side in (names, other_names)
            )
            raise ValidationError(f"{self.path} and {other.path}: the folders above them differ: {differing}")
        folders = tuple(
            replace(column, type=_folder_type(column.type, further.type))
            for column, further in zip(self.folders, other.folders, strict=True)
        )
        columns = _merged(self.columns, other.columns, "", other.path)
        shape = replace(self, columns=columns, folders=folders)
        if columns != self.columns:
            shape._refuse_repeated(other.path)
        return shape

    def _refuse_repeated(self, path: str) -> None:
        """Raise ValidationError, which names a file, if columns have one name. Files may have columns of folders."""
        names = {column.name for column in self.columns}
        _refuse_repeated(self.columns, "", path, case_sensitive=self.case_sensitive)
        _refuse_repeated(self.folders, "", path, case_sensitive=self.case_sensitive)
        further = [column for column in self.folders if column.name not in names]
        _refuse_repeated((*self.columns, *further), "", path, case_sensitive=self.case_sensitive)

    def schema(self) -> Schema:
        """Return a schema of the columns, all optional. Columns of folders come last, unless files have them.

        Raises:
            ValidationError: Iceberg has no type for a column.
        """
        names = {column.name for column in self.columns}
        in_folders = [
            replace(column, type=STRING) if column.type == UNKNOWN else column
            for column in self.folders
            if column.name not in names
        ]
        fields = _fields((*self.columns, *in_folders), count(1).__next__, self.path)
        try:
            schema = Schema(*fields)
            index_by_name(schema)
        except ValueError as error:
            # For example, a column `a.b` beside a struct `a`.
            raise ValidationError(f"{self.path}: {error}") from None
        return schema


def _columns(parts: Iterable[Any]) -> tuple[IcebergColumn, ...]:
    return tuple(IcebergColumn(name, None, kind, _columns(children)) for name, kind, children in parts)


def _refuse_repeated(columns: Iterable[IcebergColumn], above: str, path: str, *, case_sensitive: bool) -> None:
    names: dict[str, str] = {}
    for column in columns:
        key = column.name if case_sensitive else column.name.lower()
        other_name = names.get(key)
        if other_name == column.name:
            raise ValidationError(f"{path}: two columns have the name {above}{column.name}")
        if other_name is not None:
            raise ValidationError(
                f"{path}: the names of columns {above}{other_name} and {above}{column.name} differ only in case: "
                "spark.sql.caseSensitive=true permits it"
            )
        names[key] = column.name
        _refuse_repeated(column.children, f"{above}{column.name}.", path, case_sensitive=case_sensitive)


def _merged(
    columns: Sequence[IcebergColumn], others: Sequence[IcebergColumn], above: str, path: str
) -> tuple[IcebergColumn, ...]:
    """Merge columns with the columns of another file. New columns come last."""
    others_by_name = {column.name: column for column in others}
    merged = [
        _merged_column(column, others_by_name.pop(column.name), f"{above}{column.name}", path)
        if column.name in others_by_name
        else column
        for column in columns
    ]
    return (*merged, *others_by_name.values())


def _merged_column(column: IcebergColumn, other: IcebergColumn, name: str, path: str) -> IcebergColumn:
    kind = _merged_type(column.type, other.type)
    if kind is None:
        raise ValidationError(
            f"{path}: column {name} is of the type {other.type}, but of {column.type} in other files: "
            "neither can be promoted to the other"
        )
    nested = other if column.type == UNKNOWN else column
    children = _merged(column.children, other.children, f"{name}.", path)
    return replace(nested, type=kind, children=children)


def _merged_type(kind: str, other: str) -> str | None:
    """Return the type that values of both types can be promoted to; None if there is none."""
    if other in (kind, UNKNOWN):
        return kind
    if kind == UNKNOWN:
        return other
    decimals = _DECIMAL.fullmatch(kind), _DECIMAL.fullmatch(other)
    if decimals[0] and decimals[1] and decimals[0][2] == decimals[1][2]:
        return max(kind, other, key=lambda text: int(text[len("decimal(") : text.index(",")]))
    return next((pair[1] for pair in _WIDER if {kind, other} == {*pair}), None)


def _folder_type(kind: str, other: str) -> str:
    """Return the type of values in folders. Types that don't combine become text."""
    if UNKNOWN in (kind, other):
        return other if kind == UNKNOWN else kind
    if kind in _NUMBERS and other in _NUMBERS:
        return max(kind, other, key=_NUMBERS.index)
    return kind if kind == other else STRING


def _fields(columns: Iterable[IcebergColumn], next_id: Callable[[], int], path: str) -> list[NestedField]:
    return [NestedField(next_id(), column.name, _type(column, next_id, path), required=False) for column in columns]


def _type(column: IcebergColumn, next_id: Callable[[], int], path: str) -> IcebergType:
    match column.type:
        case "struct" if {child.name for child in column.children if child.type == "binary"} >= _VARIANT:
            raise ValidationError(f"{path}: column {column.name}: variants can't be taken in")
        case "struct":
            return StructType(*_fields(column.children, next_id, path))
        case "list":
            return list_of(next_id(), _type(column.children[0], next_id, path), element_required=False)
        case "map":
            key, value = (_type(child, next_id, path) for child in column.children)
            return MapType(next_id(), key, next_id(), value, value_required=False)
    try:
        return type_from_json(JsonNode(column.type, path))
    except CorruptFileError:
        raise ValidationError(f"{path}: column {column.name}: Iceberg has no type for {column.type}") from None
