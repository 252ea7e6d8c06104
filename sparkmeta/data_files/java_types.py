"""Find columns of existing files that Iceberg's Java readers misread or can't read. Spark tasks import this module.

The rules are what the readers of Iceberg 1.12 do: its generic reader, and Spark's readers of rows and of vectors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.errors import UnsupportedError
from sparkmeta.rows.resolve import Column

# Promotions and other conversions of the table spec that the readers of no format have.
_UNPROMOTED: Final = frozenset({("date", "timestamp"), ("date", "timestamp_ns"), ("string", "binary")})
_UNPROMOTED_BINARY: Final = _UNPROMOTED | {("binary", "string")}
_ORC_INTS: Final = {pa.int8(): "tinyint", pa.int16(): "smallint"}
_SPARK_READS: Final = {
    "PARQUET": "spark.read.parquet({!r})",
    "ORC": "spark.read.orc({!r})",
    "AVRO": "spark.read.format('avro').load({!r})",
}


def refuse(location: str, file_format: str, column: str, kind: str, type_name: str) -> NoReturn:
    """Raise UnsupportedError for a column of a file that Java's readers misread or can't read."""
    problem = f"Iceberg's Java readers misread it as {type_name}, or can't read it"
    raise UnsupportedError(f"{location}: column {column} is {kind}: {problem}: {conversion(location, file_format)}")


def conversion(location: str, file_format: str) -> str:
    """Return how to convert a file whose types do not fit."""
    rows = _SPARK_READS[file_format].format(location)
    return f"convert the file with Spark, by table.append({rows}), with casts where the types are still others"


def parquet_kind(leaf: pq.ColumnSchema, file_type: str, type_name: str) -> str | None:
    """Describe a column of a Parquet file if Java's readers misread it as a type, or can't read it.

    Args:
        leaf: the primitive column.
        file_type: its Iceberg type.
        type_name: the type of the table's column.
    """
    logical = json.loads(leaf.logical_type.to_json())
    match logical["Type"]:
        case "Int" if not logical["isSigned"]:
            return f"an unsigned integer of {logical['bitWidth']} bits"
        case "Timestamp" if logical["timeUnit"] == "milliseconds":
            # Spark's reader of vectors takes the numbers for microseconds.
            return "a timestamp in milliseconds"
        case "Null":
            return "of the type null"
    return file_type if (file_type, type_name) in _UNPROMOTED else None


def orc_kind(kind: pa.DataType, file_type: str, type_name: str) -> str | None:
    """Describe a column of an ORC file, given its Arrow type; see `parquet_kind`."""
    if kind in _ORC_INTS and type_name == "long":
        return f"a {_ORC_INTS[kind]}"
    if pa.types.is_timestamp(kind) and (kind.tz is None) == type_name.startswith("timestamptz"):
        return f"a timestamp {'without' if kind.tz is None else 'with'} time zone"
    return file_type if (file_type, type_name) in _UNPROMOTED_BINARY else None


def avro_kind(schema: Mapping[str, Any], file_type: str, type_name: str) -> str | None:
    """Describe a column of an Avro file, given its schema as `avro_leaves` yields it; see `parquet_kind`."""
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if kind == "enum":
        return "an enum"
    is_nanos = logical == "timestamp-nanos" and not type_name.endswith("_ns")
    if is_nanos or logical == "time-millis" or logical.startswith("local-timestamp-"):
        return f"of the logical type {logical}"
    if kind == "string" and logical == "uuid":
        return "a UUID as text"
    if type_name == "uuid" and logical != "uuid":
        return f"{file_type} without the logical type uuid"
    if type_name == "time" and not logical.startswith("time-"):
        return f"{kind} without a logical type"
    return file_type if (file_type, type_name) in _UNPROMOTED_BINARY else None


def avro_leaves(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the primitive columns of an Avro file in file order, each as an object with a type."""
    named: dict[str, Any] = {}

    def leaves(part: Any) -> Iterator[Mapping[str, Any]]:
        if isinstance(part, list):
            part = next((branch for branch in part if branch != "null"), "null")
        if isinstance(part, str):
            part = named.get(part, {"type": part})
        if "name" in part:
            named[part["name"]] = part
        match part["type"]:
            case "record":
                for field in part["fields"]:
                    yield from leaves(field["type"])
            case "array":
                yield from leaves(part["items"])
            case "map":
                yield {"type": "string"}
                yield from leaves(part["values"])
            case dict() | list() as inner:
                yield from leaves(inner)
            case _:
                yield part

    return leaves(schema)


def leaf_names(columns: Sequence[Column]) -> Iterator[str]:
    """Yield the full names of primitive columns in file order."""
    for column in columns:
        if not column.children:
            yield column.name
        for name in leaf_names(column.children):
            yield f"{column.name}.{name}"
