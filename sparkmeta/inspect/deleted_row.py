"""The deleted rows that a position delete file may keep, in the shape of the table's present schema.

Columns are resolved by field id, as the table spec's Column Projection has it: a missing one is its initial default or
null, a promoted one is widened. Light: Spark tasks import this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkmeta.columns.bounds import decode_bounds

# Where readers find a field's id: Parquet's own, and the attribute that Iceberg gives ORC columns.
_ID_KEYS = (b"PARQUET:field_id", b"iceberg.id", b"ICEBERG:iceberg.id")


@dataclass(frozen=True)
class RowField:
    """A field of the table's schema: of a primitive type its name, else `struct`, `list` or `map` and its children."""

    id: int
    type: str
    children: tuple[RowField, ...] = ()
    default: Any = None


def projected(array: pa.Array, wanted: RowField, kind: pa.DataType) -> pa.Array:
    """Return an array as it was read, as `kind`, which is the Arrow type of the wanted field.

    Raises ValueError for values that don't fit.
    """
    if pa.types.is_null(array.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    shape = {"struct": _struct, "list": _list, "map": _map}.get(wanted.type)
    return _primitive(array, wanted.type, kind) if shape is None else shape(array, wanted, kind)


def field_id(field: pa.Field) -> int | None:
    """Return the id that a file gives one of its fields, if it does; Avro's records are read with ids for names."""
    metadata = field.metadata or {}
    stored = next((metadata[key] for key in _ID_KEYS if key in metadata), None)
    if stored is not None:
        return int(stored)
    return int(field.name[1:]) if field.name[:1] == "f" and field.name[1:].isdecimal() else None


def _struct(array: pa.StructArray, wanted: RowField, kind: pa.StructType) -> pa.StructArray:
    there = {field_id(field): child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        projected(there[child.id], child, field.type) if child.id in there else _default(child, field.type, len(array))
        for child, field in zip(wanted.children, kind, strict=True)
    ]
    if not children:
        return pa.array([None if valid is None else {} for valid in array.is_valid().to_pylist()], kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _default(wanted: RowField, kind: pa.DataType, length: int) -> pa.Array:
    return pa.nulls(length, kind) if wanted.default is None else pa.repeat(pa.scalar(wanted.default, kind), length)


def _list(array: pa.ListArray, wanted: RowField, kind: pa.ListType) -> pa.ListArray:
    values = projected(array.values, wanted.children[0], kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.Array, wanted: RowField, kind: pa.MapType) -> pa.MapArray:
    """Return a map, or Avro's list of pairs that stands for one."""
    keys, items = array.values.flatten() if pa.types.is_list(array.type) else (array.keys, array.items)
    of_keys, of_items = wanted.children
    pairs = projected(keys, of_keys, kind.key_type), projected(items, of_items, kind.item_type)
    return pa.MapArray.from_arrays(array.offsets, *pairs, type=kind, mask=array.is_null())


def _primitive(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    if type_name == "variant":
        raise ValueError("deleted rows with variants can't be shown")
    if type_name == "uuid":
        return _uuid_texts(array.cast(pa.binary()))
    if pa.types.is_decimal(kind) and pa.types.is_binary(array.type):
        return decode_bounds(array, type_name)  # Avro's, in the same form as bounds
    if pa.types.is_date(kind) and pa.types.is_integer(array.type):
        return array.cast(pa.int32()).cast(kind)
    if pa.types.is_integer(kind) and not pa.types.is_integer(array.type):
        return array.cast(pa.int64())  # times and nanoseconds
    return array.cast(kind)


def _uuid_texts(array: pa.BinaryArray) -> pa.StringArray:
    from uuid import UUID

    return pa.array([None if value is None else str(UUID(bytes=value)) for value in array.to_pylist()], pa.string())
