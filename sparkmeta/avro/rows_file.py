"""Read Avro files of rows as Arrow batches, one per block: data files, delete files and partition statistics.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa

from sparkmeta.avro.canonical import expanded_schema
from sparkmeta.avro.container import Data, inflate, read_blocks, read_header
from sparkmeta.avro.schema import ARROW_PRIMITIVES, by_field_ids
from sparkmeta.entries.field_ids import field_id, with_field_id
from sparkmeta.errors import CorruptFileError, SparkmetaError, UnsupportedError

# Logical types whose values are read as numbers, since Python's dates end in the year 9999.
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
}
_DEEPEST = 64


class AvroFile:
    """An Avro file of rows.

    Attributes:
        schema: The Arrow schema, with field ids where Arrow's Parquet reader puts them.
        avro_schema: The schema in the header, with named types written out.
    """

    def __init__(self, data: Data, location: str) -> None:
        """Read the header.

        Args:
            data: The bytes of the file, which may be read in windows.
            location: The file, for error messages.

        Raises:
            CorruptFileError: The file has no valid header.
            UnsupportedError: A column has a type that Iceberg does not have.
        """
        self._data, self._location = data, location
        self._header = read_header(data, location)
        try:
            self.avro_schema: Any = expanded_schema(self._header.schema, location)
            self._writer_schema = fastavro.parse_schema(_raw(self.avro_schema))
            self.schema = pa.schema(list(_Types(location).of(self.avro_schema)))
        except SparkmetaError:
            raise
        except Exception as error:
            raise CorruptFileError(location, "avro.schema", type(error).__name__, str(error)[:200]) from error

    def refuse_without_ids(self) -> None:
        """Raise CorruptFileError if a field of a record lacks an id or shares it, or an array's items take no bytes."""
        by_field_ids(self.avro_schema, self._location)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns, block by block.

        Raises:
            CorruptFileError: A block is damaged.
        """
        schema = pa.schema([self.schema.field(name) for name in names])
        for block in read_blocks(self._data, self._header, self._location):
            stream = io.BytesIO(inflate(self._data, block, self._header, self._location))
            try:
                records: list[Any] = [
                    fastavro.schemaless_reader(stream, self._writer_schema, None) for _ in range(block.count)
                ]
            except Exception as error:
                problem = f"a record can't be decoded: {type(error).__name__} {error}"[:200]
                raise CorruptFileError(self._location, "block", block.offset, problem) from error
            if stream.read(1):
                raise CorruptFileError(self._location, "block", block.offset, "bytes are left after its last record")
            columns = [pa.array([record[field.name] for record in records], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def records_with_ids(data: bytes, location: str, ids: Collection[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in which every field must have an id, such as a position delete file.

    Args:
        data: the bytes of the file.
        location: the file, for error messages.
        ids: the ids of the columns to read, by default all.

    Raises:
        CorruptFileError: a field of a record lacks an id or shares it, or a block is damaged.
        UnsupportedError: a column has a type that Iceberg does not have.
    """
    file = AvroFile(data, location)
    file.refuse_without_ids()
    yield from file.batches([field.name for field in file.schema if ids is None or field_id(field) in ids])


class _Types:
    """Converts Avro types of an expanded schema to Arrow types."""

    def __init__(self, location: str) -> None:
        self._location = location

    def of(self, schema: Any, depth: int = 0) -> pa.DataType:
        if depth > _DEEPEST:
            raise CorruptFileError(self._location, "avro.schema", depth, "its types are nested too deeply")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            return ARROW_PRIMITIVES[schema]
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, depth + 1)
        return self._complex(kind, schema, depth)

    def _complex(self, kind: str, schema: dict[str, Any], depth: int) -> pa.DataType:
        match kind:
            case "record":
                fields = [self._field(field, depth) for field in schema["fields"]]
                if len({field.name for field in fields}) < len(fields):
                    problem = "two fields have one name"
                    raise CorruptFileError(self._location, "avro.schema", schema.get("name"), problem)
                return pa.struct(fields)
            case "array":
                return self._array(schema, depth)
            case "map":
                key = with_field_id(pa.field("key", pa.string(), nullable=False), schema.get("key-id"))
                value = self.of(schema["values"], depth + 1)
                return pa.map_(key, with_field_id(pa.field("value", value), schema.get("value-id")))
            case "enum":
                return pa.string()
        if schema.get("logicalType") == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind == "fixed":
            return pa.binary(schema["size"])
        logical = str(schema.get("logicalType"))
        if schema.get("adjust-to-utc") is False and logical.startswith("timestamp-"):
            logical = f"local-{logical}"
        return _LOGICAL.get((kind, logical), ARROW_PRIMITIVES[kind])

    def _union(self, branches: list[Any], depth: int) -> pa.DataType:
        others = [branch for branch in branches if branch != "null"]
        if len(others) > 1:
            raise UnsupportedError(f"{self._location}: a column is a union of {len(others)} Avro types")
        return self.of(others[0] if others else "null", depth + 1)

    def _array(self, schema: dict[str, Any], depth: int) -> pa.DataType:
        """Return the type of an array, or of a map stored as an array of pairs because its keys are not strings."""
        items = self.of(schema["items"], depth + 1)
        if schema.get("logicalType") == "map":
            return pa.map_(items.field("key").with_nullable(False), items.field("value"))
        return pa.list_(with_field_id(pa.field("element", items), schema.get("element-id")))

    def _field(self, field: dict[str, Any], depth: int) -> pa.Field:
        return with_field_id(pa.field(field["name"], self.of(field["type"], depth + 1)), field.get("field-id"))


def _raw(schema: Any) -> Any:
    """Return a schema without logical types except decimals, so that fastavro returns numbers and bytes."""
    if isinstance(schema, list):
        return list(map(_raw, schema))
    if not isinstance(schema, dict):
        return schema
    dropped = () if schema.get("logicalType") == "decimal" else ("logicalType",)
    return {key: _raw(value) if key in _PARTS else value for key, value in schema.items() if key not in dropped}


_PARTS = ("type", "items", "values", "fields")
