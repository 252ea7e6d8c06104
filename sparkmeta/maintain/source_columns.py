"""The columns of data files and of the folders above them, from which a table is made. Spark tasks import this."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import MapType, NestedField, StructType

from sparkmeta.commit.partition_folders import NULL_FOLDERS, assignments, readings
from sparkmeta.errors import CorruptFileError, ValidationError
from sparkmeta.rows.data_file import file_columns, open_data_file
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.schema import list_of, type_from_json
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.write.existing_tasks import FILE_PATH, FOLDERS, format_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.types import IcebergType

# -- In tasks ---------------------------------------------------------------------------------------------------------


_SHAPE: Final = "shape"
SHAPES = pa.schema([pa.field(_SHAPE, pa.string()), pa.field(FILE_PATH, pa.string())])
"""What some files have in common, as JSON, and the first of their paths; see `Shape`."""

_UNKNOWN, _STRING, _INSTANT = "unknown", "string", "timestamptz"
_INT96: Final = "INT96"
_SPARK_TYPE, _LOCAL_TIME = b"spark.sql.catalyst.type", "timestamp_ntz"
# The fields of a variant in a file, of the type binary.
_VARIANT: Final = frozenset({"metadata", "value"})
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_LIMITS: Final = {"int": 1 << 31, "long": 1 << 63}
_NUMBER: Final = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class ShapeReader:
    """Returns the shapes of files, rows of `FILE_PATH` and `FOLDERS`. Picklable.

    Attributes:
        reader: opens the files.
        opens: whether to open the files; otherwise their shapes have only the columns of folders.
    """

    reader: ExecutorReader
    opens: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            paths: dict[str, str] = {}
            for path, folders in zip(*(batch.column(name).to_pylist() for name in (FILE_PATH, FOLDERS)), strict=True):
                columns = _file_columns(self.reader, path) if self.opens else ()
                text = json.dumps([_parts(columns), _parts(_folder_columns(folders))])
                paths[text] = min(path, paths.get(text, path))
            yield pa.RecordBatch.from_pydict({_SHAPE: [*paths], FILE_PATH: [*paths.values()]}, SHAPES)


def _parts(columns: Iterable[IcebergColumn]) -> list[Any]:
    return [[column.name, column.type, _parts(column.children)] for column in columns]


def _file_columns(reader: ExecutorReader, path: str) -> tuple[IcebergColumn, ...]:
    with translated_read_errors(path):
        file_format = format_of(reader, path)
        if file_format == "PARQUET":
            with reader.open(path) as file:
                return _parquet_columns(pq.read_metadata(file).schema)
        file = open_data_file(reader, path, file_format)
        return _orc_columns(file.columns, file.schema) if file_format == "ORC" else file.columns


def _parquet_columns(schema: pq.ParquetSchema) -> tuple[IcebergColumn, ...]:
    """Return the columns of a Parquet file. Values of the type INT96 are instants, as for Spark and Hive."""
    leaves = iter(range(len(schema)))

    def typed(column: IcebergColumn) -> IcebergColumn:
        if column.children:
            return replace(column, children=tuple(map(typed, column.children)))
        return replace(column, type=_INSTANT) if schema.column(next(leaves)).physical_type == _INT96 else column

    return tuple(map(typed, file_columns(schema.to_arrow_schema())))


def _orc_columns(columns: Iterable[IcebergColumn], fields: Iterable[pa.Field]) -> tuple[IcebergColumn, ...]:
    """Return the columns of an ORC file. The format does not say how precise its times are."""
    return tuple(_orc_column(column, orc_field) for column, orc_field in zip(columns, fields, strict=True))


def _orc_column(column: IcebergColumn, orc_field: pa.Field) -> IcebergColumn:
    kind, name = orc_field.type, column.type
    if (orc_field.metadata or {}).get(_SPARK_TYPE) == _LOCAL_TIME.encode():
        # Spark writes numbers.
        name = f"{_LOCAL_TIME} in ORC"
    elif name.startswith("timestamp"):
        name = name.removesuffix("_ns")
    if pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
    else:
        fields = [kind.field(index) for index in range(kind.num_fields)]
    return replace(column, type=name, children=_orc_columns(column.children, fields))


def _folder_columns(folders: str) -> Iterator[IcebergColumn]:
    """Yield the columns in a path of folders `name=value`, with the types that Spark infers, except for times.

    Spark writes times in the zone of a session, which the name of the folder does not contain.
    """
    for names, text in assignments(folders):
        yield IcebergColumn(names[0], None, _type_of(readings(text)[0]))


def _type_of(text: str) -> str:
    if text == NULL_FOLDERS[1]:
        return _UNKNOWN
    if _WHOLE.fullmatch(text):
        return next((kind for kind, limit in _LIMITS.items() if -limit <= int(text) < limit), _STRING)
    if _NUMBER.fullmatch(text):
        return "double"
    if _DAY.fullmatch(text):
        with suppress(ValueError):
            date.fromisoformat(text)
            return "date"
    return _STRING


# -- On the driver ----------------------------------------------------------------------------------------------------


_WIDER: Final = (("int", "long"), ("float", "double"))
_NUMBERS: Final = ("int", "long", "double")
_DECIMAL: Final = re.compile(r"decimal\((\d+), (\d+)\)")


@dataclass(frozen=True)
class Shape:
    """What some files have in common.

    Attributes:
        columns: the columns in the files.
        folders: the columns in the folders above them.
        path: a file, for errors.
    """

    columns: tuple[IcebergColumn, ...]
    folders: tuple[IcebergColumn, ...]
    path: str

    @staticmethod
    def of(row: dict[str, Any]) -> Shape:
        """Return a row of `SHAPES`."""
        columns, folders = json.loads(row[_SHAPE])
        return Shape(_columns(columns), _columns(folders), row[FILE_PATH])

    def with_files(self, other: Shape) -> Shape:
        """Return the columns of these files and of others.

        Raises:
            ValidationError: a column has types of which none can be promoted to the other, or the folders of the files
                name other columns.
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
        return Shape(_merged(self.columns, other.columns, "", other.path), folders, self.path)

    def schema(self) -> Schema:
        """Return a schema of the columns, all optional. Columns of folders come last, unless files have them.

        Raises:
            ValidationError: Iceberg has no type for a column.
        """
        names = {column.name for column in self.columns}
        in_folders = [
            replace(column, type=_STRING) if column.type == _UNKNOWN else column
            for column in self.folders
            if column.name not in names
        ]
        return Schema(*_fields((*self.columns, *in_folders), count(1).__next__, self.path))


def _columns(parts: Iterable[Any]) -> tuple[IcebergColumn, ...]:
    return tuple(IcebergColumn(name, None, kind, _columns(children)) for name, kind, children in parts)


def _merged(
    columns: Sequence[IcebergColumn], others: Sequence[IcebergColumn], above: str, path: str
) -> tuple[IcebergColumn, ...]:
    """Return columns with the columns of another file, which come last if they are new."""
    others_by_name = {column.name: column for column in others}
    both = [
        _merged_column(column, others_by_name.pop(column.name), f"{above}{column.name}", path)
        if column.name in others_by_name
        else column
        for column in columns
    ]
    return (*both, *others_by_name.values())


def _merged_column(column: IcebergColumn, other: IcebergColumn, name: str, path: str) -> IcebergColumn:
    kind = _merged_type(column.type, other.type)
    if kind is None:
        raise ValidationError(
            f"{path}: column {name} is of the type {other.type}, but of {column.type} in other files: expected types "
            "of which one can be promoted to the other"
        )
    nested = other if column.type == _UNKNOWN else column
    children = _merged(column.children, other.children, f"{name}.", path)
    return replace(nested, type=kind, children=children)


def _merged_type(kind: str, other: str) -> str | None:
    """Return the type that values of both types can be promoted to; None if there is none."""
    if other in (kind, _UNKNOWN):
        return kind
    if kind == _UNKNOWN:
        return other
    decimals = _DECIMAL.fullmatch(kind), _DECIMAL.fullmatch(other)
    if decimals[0] and decimals[1] and decimals[0][2] == decimals[1][2]:
        return max(kind, other, key=lambda text: int(text[len("decimal(") : text.index(",")]))
    return next((pair[1] for pair in _WIDER if {kind, other} == {*pair}), None)


def _folder_type(kind: str, other: str) -> str:
    """Return the type of values in folders. Any other combination is text."""
    if _UNKNOWN in (kind, other):
        return other if kind == _UNKNOWN else kind
    if kind in _NUMBERS and other in _NUMBERS:
        return max(kind, other, key=_NUMBERS.index)
    return kind if kind == other else _STRING


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
