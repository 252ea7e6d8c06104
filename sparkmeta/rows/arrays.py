"""Convert Arrow arrays of a data file to the shape of the projected columns.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import default_scalar
from sparkmeta.rows.resolve import Column, FromDefault, FromFile, FromPartition, Source

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_HYPHENS = (8, 13, 18, 23)
_UUID_BYTES = 16
_UUID_DIGITS = [place for place in range(36) if place not in _HYPHENS]


Partition = Mapping[int | None, pa.Scalar | None]
"""The identity partition values of a file, by the ids of the columns; None for those that the plan does not have."""


@dataclass(frozen=True)
class Leaf:
    """A field that a filter or equality delete uses.

    Attributes:
        id: The field's id.
        column: The field, or the top-level struct that contains it, with no other fields.
        kind: The Arrow type of `column`.
    """

    id: int
    column: Column
    kind: pa.DataType

    def alone(self) -> Leaf:
        """Return the leaf without its enclosing structs."""
        column, kind = self.column, self.kind
        while column.id != self.id:
            column, kind = column.children[0], kind.field(0).type
        return Leaf(self.id, column, kind)

    def values(self, array: pa.Array) -> pa.Array:
        """Extract the field's values from values of `column`."""
        column = self.column
        while column.id != self.id:
            array, column = array.flatten()[0], column.children[0]
        return array


def column_values(batch: pa.RecordBatch, source: Source, kind: pa.DataType, partition: Partition) -> pa.Array:
    """Return the values of a projected column in a batch of a file; see `projected_array`."""
    array = batch.column(source.physical.name) if isinstance(source, FromFile) else None
    values = projected_array(array, source, kind, partition, len(batch))
    refuse_nulls(values, source.column)
    return values


def projected_array(
    array: pa.Array | None, source: Source, kind: pa.DataType, partition: Partition, length: int
) -> pa.Array:
    """Return the values of a projected column.

    Args:
        array: The file's column as read by Arrow, if the source is one.
        source: Where the values come from.
        kind: The Arrow type of the projected column.
        partition: The identity partition values of the file.
        length: The number of rows.

    Raises:
        ValueError: A value does not fit the type, or a required field is null.
    """
    match source:
        case FromFile():
            assert array is not None
            return _from_file(array, source, kind, partition)
        case FromPartition():
            value = partition[source.column.id]
            if value is None:
                raise ValueError(f"column {source.column.name} was dropped, and its partition values are not planned")
            return pa.repeat(value.cast(kind), length)
        case FromDefault():
            return pa.repeat(default_scalar(source.column.default, kind), length)
    return pa.nulls(length, kind)


def _from_file(array: pa.Array, source: FromFile, kind: pa.DataType, partition: Partition) -> pa.Array:
    stored = _stored(array)
    if pa.types.is_null(stored.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    match source.column.type:
        case "struct":
            return _struct(stored, source, kind, partition)
        case "list":
            return _list(stored, source, kind, partition)
        case "map":
            return _map(stored, source, kind, partition)
        case "variant":
            return _variant(stored, kind)
    return _primitive(stored, source.column.type, kind)


def _stored(array: pa.Array) -> pa.Array:
    """Return the plain values of a dictionary or extension array."""
    if isinstance(array, pa.ExtensionArray):
        return _stored(array.storage)
    return _stored(array.dictionary_decode()) if isinstance(array, pa.DictionaryArray) else array


def _struct(array: pa.StructArray, source: FromFile, kind: pa.StructType, partition: Partition) -> pa.StructArray:
    stored = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = []
    for child, field in zip(source.children, kind, strict=True):
        values = stored[child.physical.name] if isinstance(child, FromFile) else None
        children.append(projected_array(values, child, field.type, partition, len(array)))
        refuse_nulls(children[-1], child.column, array)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def refuse_nulls(values: pa.Array, column: Column, parent: pa.Array | None = None) -> None:
    """Check that a required column has no nulls.

    Args:
        values: The values of the column.
        column: The column.
        parent: The enclosing structs. Values may be null where these are null.

    Raises:
        ValueError: A value is null.
    """
    if column.required and values.null_count and (parent is None or values.null_count > parent.null_count):
        raise ValueError(f"column {column.name} (field id {column.id}) is required, and has nulls")


def _list(array: pa.Array, source: FromFile, kind: pa.ListType, partition: Partition) -> pa.ListArray:
    variable = array.cast(pa.list_(array.type.value_type)) if pa.types.is_fixed_size_list(array.type) else array
    offsets, start, end = _offsets(variable)
    values = _child(variable.values.slice(start, end - start), source.children[0], kind.value_type, partition)
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.MapArray, source: FromFile, kind: pa.MapType, partition: Partition) -> pa.MapArray:
    offsets, start, end = _offsets(array)
    keys, items = (values.slice(start, end - start) for values in (array.keys, array.items))
    of_keys, of_items = source.children
    keys = _child(keys, of_keys, kind.key_type, partition)
    if keys.null_count:
        raise ValueError(f"map {source.column.name} (field id {source.column.id}) has a null for a key")
    items = _child(items, of_items, kind.item_type, partition)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())


def _child(array: pa.Array, source: Source, kind: pa.DataType, partition: Partition) -> pa.Array:
    values = projected_array(array, source, kind, partition, len(array))
    refuse_nulls(values, source.column)
    return values


def _offsets(array: pa.Array) -> tuple[pa.Int32Array, int, int]:
    """Return the offsets of a list or map array from 0, and the start and end of its values in the child array."""
    offsets = array.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    return pa.array((offsets - start).astype(np.int32)), start, end


def _variant(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    stored = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    if stored.keys() != {"metadata", "value"}:
        raise ValueError(f"a variant of the fields {', '.join(stored)}: only those that are not shredded can be read")
    children = [pc.fill_null(stored[field.name].cast(pa.binary()), b"") for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _primitive(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    if type_name.startswith("timestamp"):
        return _timestamp(array, type_name, kind)
    if type_name == "time" and pa.types.is_time(array.type):
        return array.cast(pa.time64("us")).cast(kind)
    if type_name == "uuid":
        return _uuid_texts(_of_length(array, _UUID_BYTES))
    if type_name.startswith("fixed"):
        return _of_length(array, int(type_name[len("fixed[") : -1]))
    return array.cast(kind)


def _timestamp(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    """Convert timestamps, or dates promoted to timestamps, to the unit of the type. The zone is only a label."""
    unit = "ns" if type_name.endswith("_ns") else "us"
    if pa.types.is_date(array.type):
        return array.cast(pa.timestamp(unit)).view(kind)
    plain = array.view(pa.int64()).view(pa.timestamp(array.type.unit))
    return plain.cast(pa.timestamp(unit)).view(kind)


def _of_length(array: pa.Array, length: int) -> pa.BinaryArray:
    values = array.cast(pa.binary())
    lengths = pc.min_max(pc.binary_length(values)).as_py()
    if any(extreme not in (None, length) for extreme in lengths.values()):
        raise ValueError(f"values have {lengths['min']} to {lengths['max']} bytes, not {length}")
    return values


def _uuid_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Convert 16-byte UUIDs to text, vectorized."""
    filled = pc.fill_null(values, bytes(_UUID_BYTES)).cast(pa.binary(_UUID_BYTES))
    start = filled.offset * _UUID_BYTES
    data = np.frombuffer(filled.buffers()[1], np.uint8)[start : start + len(values) * _UUID_BYTES]
    texts = np.full((len(values), 36), ord("-"), np.uint8)
    texts[:, _UUID_DIGITS] = _HEX[np.stack([data >> 4, data & 15], -1)].reshape(len(values), 32)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(36), len(values), [None, pa.py_buffer(texts.tobytes())])
    return pc.if_else(values.is_valid(), fixed.cast(pa.binary()), pa.scalar(None, pa.binary())).cast(pa.string())
