"""The columns of data files and of the folders above them. Spark tasks import this module."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.commit.partition_folders import NULL_FOLDERS, assignments, readings
from sparkmeta.rows.data_file import file_columns, open_data_file
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.write.existing_tasks import FILE_PATH, FOLDERS, format_of

SHAPE: Final = "shape"
SHAPES = pa.schema([pa.field(SHAPE, pa.string()), pa.field(FILE_PATH, pa.string())])
"""The merged columns of some files, as JSON, and the first of their paths; see `Shape`."""

UNKNOWN, STRING, _INSTANT = "unknown", "string", "timestamptz"
_INT96: Final = "INT96"
_SPARK_TYPE, _LOCAL_TIME = b"spark.sql.catalyst.type", "timestamp_ntz"
_WHOLE: Final = re.compile(r"-?[0-9]+")
_LIMITS: Final = {"int": 1 << 31, "long": 1 << 63}
_NUMBER: Final = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class ShapeReader:
    """Reads the shapes of files, rows of `FILE_PATH` and `FOLDERS`. Picklable.

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
            yield pa.RecordBatch.from_pydict({SHAPE: [*paths], FILE_PATH: [*paths.values()]}, SHAPES)


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
    """Return the columns of an ORC file. The format does not record the precision of times."""
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
        return UNKNOWN
    if _WHOLE.fullmatch(text):
        return next((kind for kind, limit in _LIMITS.items() if -limit <= int(text) < limit), STRING)
    if _NUMBER.fullmatch(text):
        return "double"
    if _DAY.fullmatch(text):
        with suppress(ValueError):
            date.fromisoformat(text)
            return "date"
    return STRING
