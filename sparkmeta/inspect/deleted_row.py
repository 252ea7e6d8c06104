"""Convert the deleted rows in position delete files to the table's current schema. Light: Spark tasks import this.

Columns are resolved by field id (table spec, Column Projection): missing ones have their initial default or null, and
promoted ones are widened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkmeta.entries.arrays import default_scalar
from sparkmeta.entries.field_ids import field_id


@dataclass(frozen=True)
class RowField:
    """A field of the table's schema.

    Attributes:
        type: the name of a primitive type, or `struct`, `list` or `map`.
    """

    id: int
    type: str
    children: tuple[RowField, ...] = ()
    default: Any = None


def projected(array: pa.Array, target: RowField, kind: pa.DataType) -> pa.Array:
    """Convert an array from a file to a field of Arrow type `kind`. Raises ValueError if values don't fit."""
    if pa.types.is_null(array.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    shape = {"struct": _struct, "list": _list, "map": _map}.get(target.type)
    return _primitive(array, target.type, kind) if shape is None else shape(array, target, kind)


def _struct(array: pa.StructArray, target: RowField, kind: pa.StructType) -> pa.StructArray:
    by_id = {field_id(field): child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        projected(by_id[child.id], child, field.type) if child.id in by_id else _default(child, field.type, len(array))
        for child, field in zip(target.children, kind, strict=True)
    ]
    if not children:
        return pa.array([None if valid is None else {} for valid in array.is_valid().to_pylist()], kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _default(target: RowField, kind: pa.DataType, length: int) -> pa.Array:
    return pa.nulls(length, kind) if target.default is None else pa.repeat(default_scalar(target.default, kind), length)


def _list(array: pa.ListArray, target: RowField, kind: pa.ListType) -> pa.ListArray:
    values = projected(array.values, target.children[0], kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.Array, target: RowField, kind: pa.MapType) -> pa.MapArray:
    """Convert a map, or a list of pairs."""
    keys, items = array.values.flatten() if pa.types.is_list(array.type) else (array.keys, array.items)
    of_keys, of_items = target.children
    pairs = projected(keys, of_keys, kind.key_type), projected(items, of_items, kind.item_type)
    return pa.MapArray.from_arrays(array.offsets, *pairs, type=kind, mask=array.is_null())


def _primitive(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    if type_name == "variant":
        raise ValueError("deleted rows with variants can't be shown")
    if type_name == "uuid":
        return _uuid_texts(array.cast(pa.binary()))
    if type_name.startswith("timestamp") and (pa.types.is_date(array.type) or pa.types.is_int32(array.type)):
        days = array.cast(pa.date32())  # dates from before a promotion
        array = days.cast(pa.timestamp("ns" if type_name.endswith("_ns") else "us"))
    if pa.types.is_integer(kind) and not pa.types.is_integer(array.type):
        return array.cast(pa.int64())  # times and nanoseconds
    return array.cast(kind)


def _uuid_texts(array: pa.BinaryArray) -> pa.StringArray:
    from uuid import UUID

    return pa.array([None if value is None else str(UUID(bytes=value)) for value in array.to_pylist()], pa.string())
