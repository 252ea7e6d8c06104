"""Arrow columns and tables: field ids, types, sorting, and rows as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import shown
from sparkmeta.expr.types import bound_value

# -- Field ids in Arrow schemas ---------------------------------------------------------------------------------------


_FIELD_ID_KEY = b"PARQUET:field_id"
# The first key is for Parquet files, the others for the column attributes that Iceberg writes in ORC.
_KEYS = (_FIELD_ID_KEY, b"iceberg.id", b"ICEBERG:iceberg.id")


def field_id(field: pa.Field) -> int | None:
    """Return the id of a field of a file, or None if it has none."""
    metadata = field.metadata or {}
    text = next((metadata[key] for key in _KEYS if key in metadata), None)
    return None if text is None else int(text)


def with_field_id(field: pa.Field, number: int | None) -> pa.Field:
    """Return the field with an id under the key that Parquet's writer reads, and without other metadata.

    Without an id, the field is unchanged.
    """
    return field if number is None else field.with_metadata({_FIELD_ID_KEY: str(number).encode()})


# -- Arrow columns and tables -----------------------------------------------------------------------------------------


UUID_BYTES: Final = 16

_UUID_TEXT: Final = 36
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_HYPHENS: Final = (8, 13, 18, 23)
_DIGITS: Final = [index for index in range(_UUID_TEXT) if index not in _HYPHENS]
_UUID_PATTERN: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def whole(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return all values of a column as one array, even if it has no chunk."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, values.type)


def indices_where(flags: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the indices of flags that are true. Arrow before version 26 crashes on a column without chunks."""
    return pc.indices_nonzero(whole(flags))


def with_plain_types(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """Return rows in UTC and with 32-bit offsets, as in this package's schemas. Session settings may change both."""
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
    """Return the rows that a mask selects. If these are all or none, nothing is copied."""
    count = whole(rows).true_count
    return table.filter(rows) if 0 < count < len(table) else table.slice(0, count)


def sorted_indices(keys: Sequence[tuple[pa.Array, bool, bool]]) -> pa.Array:
    """Return the indices of rows in the order of keys; equal rows keep their order. As in Spark, NaN is the greatest.

    Args:
        keys: for each key its values, whether they ascend, and whether nulls come first.
    """
    ranks = []
    for values, ascends, nulls_first in keys:
        coded = values.dictionary_encode()
        distinct = coded.dictionary
        rank_of = np.empty(len(distinct) + 1, np.int64)
        rank_of[pc.sort_indices(distinct).to_numpy()] = np.arange(len(distinct))
        if not ascends:
            rank_of = len(distinct) - rank_of
        rank_of[-1] = -1 if nulls_first else len(distinct) + 1
        ranks.append(rank_of[pc.fill_null(coded.indices, len(distinct)).to_numpy()])
    return pa.array(np.lexsort(ranks[::-1]))


def identities(values: pa.Array) -> pa.Array:
    """Return values that are equal if partition values are: floats as bits, so -0.0 is not 0.0, and NaN equals NaN."""
    if not pa.types.is_floating(values.type):
        return values
    nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, values).view(identity_type(values.type))


def identity_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of `identities`."""
    return {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(kind, kind)


def extremes(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the least and the greatest value; null if there is none.

    Iceberg orders -0.0 before 0.0, but they are equal in Arrow. Therefore a zero is -0.0 as the least value, and 0.0 as
    the greatest.
    """
    min_max = pc.min_max(values)
    least, greatest = min_max["min"], min_max["max"]
    if pa.types.is_floating(values.type):
        least, greatest = (
            pa.scalar(zero, values.type) if extreme.as_py() == 0 else extreme
            for extreme, zero in ((least, -0.0), (greatest, 0.0))
        )
    return least, greatest


def narrowed(values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column, at every depth. Structs keep only the children that the type has, by name.

    The nulls of structs are carried into their children, and null lists have no elements. Arrow's own cast refuses null
    structs with required fields.
    """
    return _narrow(whole(values), kind)


def _narrow(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind)
    if pa.types.is_list(kind):
        offsets, elements = compact_lists(values)
        elements = _narrow(elements, kind.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=_mask(values))
    if pa.types.is_map(kind):
        offsets, pairs = compact_lists(values)
        keys, items = pairs.flatten()
        parts = _narrow(keys, kind.key_type), _narrow(items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, *parts, type=kind, mask=_mask(values))
    if not pa.types.is_struct(kind):
        return values if values.type == kind else values.cast(kind)
    names = [field.name for field in values.type]
    flat = values.flatten()
    children = [
        _narrow(flat[names.index(field.name)], field.type) if field.name in names else pa.nulls(len(values), field.type)
        for field in kind
    ]
    if not children:
        return values.cast(kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=_mask(values))


def _mask(values: pa.Array) -> pa.BooleanArray | None:
    return values.is_null() if values.null_count else None


def default_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Convert a default value of a column, in pyiceberg's form, to a scalar of an Arrow type.

    UUIDs become text or bytes.
    """
    if pa.types.is_string(kind):
        return pa.scalar(str(value), kind)
    number = bound_value(value)
    if pa.types.is_temporal(kind):
        return pa.array([number], pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)[0]
    return pa.scalar(number, kind)


def compact_lists(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets of lists, beginning at 0, and their values.

    The values of maps are structs of a key and a value. The array may be a slice, and may have values under its nulls.
    """
    if pa.types.is_map(array.type):
        # Arrow can't cast a struct with nulls whose fields are not nullable.
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


def uuid_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Convert 16-byte UUIDs to text, vectorized."""
    filled = pc.fill_null(values, bytes(UUID_BYTES)).cast(pa.binary(UUID_BYTES))
    start = filled.offset * UUID_BYTES
    data = np.frombuffer(filled.buffers()[1], np.uint8)[start : start + len(values) * UUID_BYTES]
    texts = np.full((len(values), _UUID_TEXT), ord("-"), np.uint8)
    texts[:, _DIGITS] = _HEX[np.stack([data >> 4, data & 15], -1)].reshape(len(values), 32)
    buffers = [None, pa.py_buffer(texts.tobytes())]
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_UUID_TEXT), len(values), buffers)
    return pc.if_else(values.is_valid(), fixed.cast(pa.binary()), pa.scalar(None, pa.binary())).cast(pa.string())


# -- Tables as bytes --------------------------------------------------------------------------------------------------


def to_stream(rows: pa.Table, compression: str | None = None) -> bytes:
    """Serialize a table as an Arrow IPC stream, for other processes, or for Spark to carry without a schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_stream(data: bytes | pa.Buffer) -> pa.Table:
    """Return the table in an Arrow IPC stream."""
    return pa.ipc.open_stream(data).read_all()
