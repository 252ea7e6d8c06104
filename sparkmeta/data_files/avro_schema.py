"""The Avro schema of data files (table spec, Avro). Spark tasks import this module, so it imports little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sparkmeta.data_files.file_schema import written
from sparkmeta.rows.resolve import Column
from sparkmeta.spec.avro_name import avro_name

_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    "uuid": {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"},
}


def avro_schema(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the Avro schema of rows. Named types, such as fixed, are defined at each occurrence.

    Args:
        columns: the columns of the table.
    """
    return {"type": "record", "name": "table", "fields": [_field(column) for column in written(columns)]}


def _field(column: Column) -> dict[str, Any]:
    name = avro_name(column.name)
    field = {"name": name, "type": _type(column), "field-id": column.id}
    if not column.required:
        field["default"] = None
    return field if name == column.name else {**field, "iceberg-field-name": column.name}


def _type(column: Column) -> Any:
    kind = _value_type(column)
    return kind if column.required else ["null", kind]


def _value_type(column: Column) -> Any:
    match column.type:
        case "struct":
            return {"type": "record", "name": f"r{column.id}", "fields": list(map(_field, written(column.children)))}
        case "list":
            (element,) = column.children
            return {"type": "array", "items": _type(element), "element-id": element.id}
        case "map":
            return _map(*column.children)
    if column.type.startswith("decimal"):
        precision, scale = map(int, column.type[len("decimal(") : -1].split(","))
        known = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {"type": "fixed", "name": f"decimal_{precision}_{scale}", "size": _decimal_bytes(precision), **known}
    if column.type.startswith("fixed"):
        size = int(column.type[len("fixed[") : -1])
        return {"type": "fixed", "name": f"fixed_{size}", "size": size}
    return _PRIMITIVES[column.type]


def _map(key: Column, value: Column) -> dict[str, Any]:
    """Return the schema of a map, or of an array of pairs if its keys are not strings."""
    if key.type == "string":
        return {"type": "map", "values": _type(value), "key-id": key.id, "value-id": value.id}
    pair = {"type": "record", "name": f"k{key.id}_v{value.id}", "fields": [_field(key), _field(value)]}
    return {"type": "array", "items": pair, "logicalType": "map"}


def _decimal_bytes(precision: int) -> int:
    """Return the minimum number of bytes of a signed integer with `precision` digits."""
    digits: int = 10**precision
    return digits.bit_length() // 8 + 1
