"""Avro data files as Arrow batches, one for each block of the file.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.manifests.avro.container import Data, inflate, read_blocks, read_header
from sparkmeta.rows.file_schema import PARQUET_ID

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# Values of these are read as numbers, which Arrow takes, since Python's dates end in the year 9999.
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_INSTANTS = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}
_DEEPEST = 64


class AvroFile:
    """An Avro data file.

    Attributes:
        schema: The columns as Arrow's, with field ids where Arrow's Parquet reader puts them.
    """

    def __init__(self, data: Data, location: str) -> None:
        """Read the header.

        Args:
            data: The bytes of the file, possibly read window by window.
            location: The file, for error messages.

        Raises:
            CorruptFileError: The file has no valid header.
            UnsupportedError: A column has a type that Iceberg does not have.
        """
        self._data, self._location = data, location
        self._header = read_header(data, location)
        try:
            self._writer_schema = fastavro.parse_schema(_raw(self._header.schema))
            columns = _Types(location).of(self._header.schema)
        except (KeyError, TypeError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            raise CorruptFileError(location, "avro.schema", type(error).__name__, str(error)[:200]) from error
        self.schema = pa.schema(list(columns.kind))
        self._converted = columns.convert

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns, block by block.

        Raises:
            CorruptFileError: A block is damaged.
        """
        schema = pa.schema([self.schema.field(name) for name in names])
        for block in read_blocks(self._data, self._header, self._location):
            stream = io.BytesIO(inflate(self._data, block, self._header, self._location))
            try:
                records = [fastavro.schemaless_reader(stream, self._writer_schema, None) for _ in range(block.count)]
            except Exception as error:
                problem = f"a record can't be decoded: {type(error).__name__} {error}"[:200]
                raise CorruptFileError(self._location, "block", block.offset, problem) from error
            if stream.read(1):
                raise CorruptFileError(self._location, "block", block.offset, "bytes are left after its last record")
            rows: list[Any] = list(map(self._converted, records)) if self._converted else records
            columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Type(NamedTuple):
    """The Arrow type of an Avro type, and how values that fastavro reads become values that Arrow takes."""

    kind: pa.DataType
    convert: Callable[[Any], Any] | None = None


class _Types:
    """Avro types as Arrow types. Named types that a schema refers to by name are those that it defined before."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._named: dict[str, _Type] = {}

    def of(self, schema: Any, depth: int = 0) -> _Type:
        if depth > _DEEPEST:
            raise CorruptFileError(self._location, "avro.schema", depth, "its types are nested too deeply")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            return self._named[schema] if schema in self._named else _Type(_PRIMITIVES[schema])
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, depth + 1)
        made = self._complex(kind, schema, depth)
        if "name" in schema:
            self._named[schema["name"]] = made
        return made

    def _complex(self, kind: str, schema: dict[str, Any], depth: int) -> _Type:
        match kind:
            case "record":
                return self._record(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "map":
                values = self.of(schema["values"], depth + 1)
                keys = _field("key", pa.string(), schema.get("key-id"), nullable=False)
                pairs = pa.map_(keys, _field("value", values.kind, schema.get("value-id")))
                return _Type(pairs, _of_map(values.convert) if values.convert else None)
            case "enum":
                return _Type(pa.string())
        if schema.get("logicalType") == "decimal":
            return _Type(pa.decimal128(schema["precision"], schema.get("scale", 0)))
        if kind == "fixed":
            return _Type(pa.binary(schema["size"]))
        return _Type(_logical(kind, schema))

    def _union(self, branches: list[Any], depth: int) -> _Type:
        others = [branch for branch in branches if branch != "null"]
        if len(others) > 1:
            raise UnsupportedError(f"{self._location}: a column is a union of {len(others)} Avro types")
        made = self.of(others[0] if others else "null", depth + 1)
        return made._replace(convert=_of_optional(made.convert)) if made.convert else made

    def _record(self, schema: dict[str, Any], depth: int) -> _Type:
        types = {field["name"]: self.of(field["type"], depth + 1) for field in schema["fields"]}
        fields = [_field(field["name"], types[field["name"]].kind, field.get("field-id")) for field in schema["fields"]]
        converted = {name: made.convert for name, made in types.items() if made.convert}
        return _Type(pa.struct(fields), _of_record(converted) if converted else None)

    def _array(self, schema: dict[str, Any], depth: int) -> _Type:
        """An array; or a map whose keys are not strings, as an array of pairs."""
        items = self.of(schema["items"], depth + 1)
        if schema.get("logicalType") == "map":
            key, value = items.kind.field("key"), items.kind.field("value")
            return _Type(pa.map_(key.with_nullable(False), value), _of_pairs(items.convert))
        element = _field("element", items.kind, schema.get("element-id"))
        return _Type(pa.list_(element), _of_list(items.convert) if items.convert else None)


def _field(name: str, kind: pa.DataType, field_id: int | None, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable, None if field_id is None else {PARQUET_ID: str(field_id)})


def _logical(kind: str, schema: dict[str, Any]) -> pa.DataType:
    logical = schema.get("logicalType")
    if kind == "long" and logical in _INSTANTS:
        return pa.timestamp(_INSTANTS[logical], "UTC" if schema.get("adjust-to-utc", True) else None)
    return _LOGICAL.get((kind, str(logical)), _PRIMITIVES[kind])


def _raw(schema: Any) -> Any:
    """Return a schema without logical types but decimals, so that fastavro gives numbers and bytes."""
    if isinstance(schema, list):
        return list(map(_raw, schema))
    if not isinstance(schema, dict):
        return schema
    dropped = () if schema.get("logicalType") == "decimal" else ("logicalType",)
    return {key: _raw(value) if key in _PARTS else value for key, value in schema.items() if key not in dropped}


_PARTS = ("type", "items", "values", "fields")


def _of_optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _of_list(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: list(map(convert, values))


def _of_map(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda pairs: {key: convert(value) for key, value in pairs.items()}


def _of_record(converted: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda record: record | {name: convert(record[name]) for name, convert in converted.items()}


def _of_pairs(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def pairs(records: list[Any]) -> list[Any]:
        converted = map(convert, records) if convert else records
        return [(record["key"], record["value"]) for record in converted]

    return pairs
