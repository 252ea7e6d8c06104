"""Convert the schemas of data files to trees of `Column`.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.entries.field_ids import field_id
from sparkmeta.rows.resolve import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

_TYPES = {
    pa.null(): "unknown",
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}


def file_columns(fields: Iterable[pa.Field]) -> tuple[Column, ...]:
    """Return the columns of a Parquet or ORC file, given its Arrow fields.

    A type that Iceberg lacks keeps Arrow's name.
    """
    return tuple(_column(field.name, field) for field in fields)


def _column(name: str, field: pa.Field) -> Column:
    type_name, children = _type(_storage(field.type))
    return Column(name, field_id(field), type_name, children)


def _type(kind: pa.DataType) -> tuple[str, tuple[Column, ...]]:
    if pa.types.is_struct(kind):
        return "struct", file_columns(kind)
    if pa.types.is_map(kind):
        return "map", (_column("key", kind.key_field), _column("value", kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "list", (_column("element", kind.value_field),)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})", ()
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]", ()
    if pa.types.is_timestamp(kind):
        zone = "timestamp" if kind.tz is None else "timestamptz"
        return f"{zone}_ns" if kind.unit == "ns" else zone, ()
    return _TYPES.get(kind, str(kind)), ()


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary type or the storage type of an extension type; else the type itself."""
    if pa.types.is_dictionary(kind):
        return _storage(kind.value_type)
    return _storage(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind
