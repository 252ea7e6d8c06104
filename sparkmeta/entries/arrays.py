"""Helpers for Arrow columns and tables. Without Spark."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.literals import bound_value
from sparkmeta.errors import shown

UUID_BYTES: Final = 16

_UUID_TEXT: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_DIGITS: Final = [place for place in range(_UUID_TEXT) if place not in _HYPHENS]
_UUID_PATTERN: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def whole(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return all values of a column as one array, even if it has no chunk."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, values.type)


def with_plain_types(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """Return rows with UTC and small offsets, as in this package's schemas; session settings may change both."""
    return rows.cast(pa.schema([field.with_type(_plain(field.type)) for field in rows.schema]))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def kept_rows(table: pa.Table, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows that a mask selects; the table itself if these are all."""
    return table if pc.all(rows, skip_nulls=False).as_py() else table.filter(rows)


def extremes(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the least and the greatest value; null if there is none.

    Iceberg orders -0.0 before 0.0, which Arrow takes for equal: a zero is -0.0 as the least and 0.0 as the greatest.
    """
    both = pc.min_max(values)
    least, greatest = both["min"], both["max"]
    if pa.types.is_floating(values.type):
        least, greatest = (
            pa.scalar(zero, values.type) if extreme.as_py() == 0 else extreme
            for extreme, zero in ((least, -0.0), (greatest, 0.0))
        )
    return least, greatest


def narrowed(values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column. Of structs, only children that the type has are kept, by name."""
    return _narrow(whole(values), kind)


def _narrow(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(kind):
        return values.cast(kind)
    names = [field.name for field in values.type]
    flat = values.flatten()
    children = [
        _narrow(flat[names.index(field.name)], field.type) if field.name in names else pa.nulls(len(values), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())


def default_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a default value of a column, as pyiceberg has it, as a scalar of an Arrow type; UUIDs as text or bytes."""
    if pa.types.is_string(kind):
        return pa.scalar(str(value), kind)
    number = bound_value(value)
    if pa.types.is_temporal(kind):
        return pa.array([number], pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)[0]
    return pa.scalar(number, kind)


def compact_lists(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets of lists from 0 on, and the values in them only; of maps, structs of a key and a value.

    An array may be a slice, and may have values under its nulls.
    """
    if pa.types.is_map(array.type):
        # Arrow casts no struct whose fields are not nullable and that has nulls.
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        buffers = array.buffers()[:2]
        array = pa.Array.from_buffers(
            pa.list_(entries.type), len(array), buffers, offset=array.offset, children=[entries]
        )
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.array(offsets), pc.list_flatten(array)


def uuid_bytes(texts: pa.StringArray) -> pa.Array:
    """Convert textual UUIDs to 16 bytes, vectorized.

    Raises:
        ValueError: a text is not a UUID with hyphens.
    """
    wrong = pc.fill_null(pc.invert(pc.match_substring_regex(texts, _UUID_PATTERN)), False)
    for value in texts.filter(wrong).slice(0, 1).to_pylist():
        raise ValueError(f"{shown(value)} is not a UUID")
    blank = pa.scalar("00000000-0000-0000-0000-000000000000")
    filled = pc.fill_null(texts, blank)
    _, offsets, content = filled.buffers()
    start = int(np.frombuffer(offsets, np.int32)[filled.offset]) if len(filled) else 0
    data = np.frombuffer(content or b"", np.uint8)[start : start + len(filled) * _UUID_TEXT]
    digits = data.reshape(len(filled), _UUID_TEXT)[:, _DIGITS]
    # '0'-'9' are 0x30-0x39, 'A'-'F' and 'a'-'f' 0x41-0x46 and 0x61-0x66.
    halves = (digits & 15) + np.where(digits > ord("9"), 9, 0).astype(np.uint8)
    packed = (halves[:, 0::2] << 4) | halves[:, 1::2]
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(UUID_BYTES), len(filled), [None, pa.py_buffer(packed.tobytes())]
    )
    return pc.if_else(texts.is_valid(), fixed, pa.scalar(None, fixed.type))
