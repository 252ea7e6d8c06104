"""Encode Arrow columns in Avro's binary form. Without Spark: tasks import this.

Columns are encoded one by one, as arrays of bytes, and joined row by row in Arrow. There is no Python object per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import encode_bounds
from sparkmeta.entries.arrays import compact_lists
from sparkmeta.entries.records import as_numbers

_NOTHING = b""
_NULL, _PRESENT, _END = b"\x00", b"\x02", b"\x00"


class ColumnEncoder:
    """Encodes columns by their Avro types.

    Attributes:
        sizes: the sizes of fixed types, by name.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def records(self, fields: Sequence[Mapping[str, Any]], columns: Sequence[pa.Array], rows: int) -> pa.BinaryArray:
        """Return records whose fields have the values of columns."""
        return joined([self.encoded(each["type"], column) for each, column in zip(fields, columns, strict=True)], rows)

    def encoded(self, kind: Any, values: pa.Array) -> pa.BinaryArray:
        """Return the encoding of each value. A null encodes as null if the type is a union with it.

        A column of nulls may have any Arrow type then: a void partition field has that of its values in other specs.
        """
        if isinstance(kind, list):
            if values.null_count == len(values):
                return pa.repeat(pa.scalar(_NULL, pa.binary()), len(values))
            of_values = self.encoded(next(branch for branch in kind if branch != "null"), values)
            return pc.if_else(values.is_valid(), _joined(_PRESENT, of_values), _NULL)
        if isinstance(kind, Mapping) and kind["type"] != "fixed":
            return self._complex(kind, values)
        return self._primitive(kind, values)

    def _primitive(self, kind: Any, values: pa.Array) -> pa.BinaryArray:
        if kind == "null":
            return pa.array([_NOTHING] * len(values), pa.binary())
        if kind in ("int", "long"):
            return _numbers(as_numbers(values))
        if kind in ("boolean", "float", "double"):
            return _filled(encode_bounds(values))
        if kind in ("bytes", "string"):
            content = _filled(values.cast(pa.binary()))
            return _joined(_numbers(pc.binary_length(content)), content)
        size = self.sizes[kind if isinstance(kind, str) else kind["name"]]
        return _fixed_decimals(values, size) if pa.types.is_decimal(values.type) else _filled(values.cast(pa.binary()))

    def _complex(self, kind: Mapping[str, Any], values: pa.Array) -> pa.BinaryArray:
        match kind["type"]:
            case "record":
                return self.records(kind["fields"], values.flatten(), len(values))
            case "array":
                return self._lists(kind["items"], values)
            case "map":
                return self._lists({"fields": [{"type": "string"}, {"type": kind["values"]}]}, values)
        return self.encoded(kind["type"], values)

    def _lists(self, items: Any, values: pa.Array) -> pa.BinaryArray:
        """Return lists, or maps as lists of pairs: a block of items, unless there are none, and the end."""
        offsets, inside = compact_lists(values)
        if pa.types.is_map(values.type):
            encoded = self.records(items["fields"], inside.flatten(), len(inside))
        else:
            encoded = self.encoded(items, inside)
        counts = pc.subtract(offsets.slice(1), offsets.slice(0, len(values)))
        blocks = pc.binary_join(pa.ListArray.from_arrays(offsets, encoded), _NOTHING)
        return pc.if_else(pc.greater(counts, 0), _joined(_numbers(counts), blocks, _END), _END)


def joined(parts: Sequence[pa.BinaryArray], rows: int) -> pa.BinaryArray:
    """Return the concatenated parts of each row."""
    return _joined(*parts) if parts else pa.array([_NOTHING] * rows, pa.binary())


def _joined(*parts: Any) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _filled(values: pa.Array) -> pa.BinaryArray:
    return pc.fill_null(values, _NOTHING)


def _numbers(values: pa.Array) -> pa.BinaryArray:
    """Return numbers in Avro's zigzag form, seven bits a byte; null as 0."""
    signed = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    shifts = range(0, 64, 7)
    lengths = 1 + sum((zigzag >> np.uint64(shift) > 0).astype(np.int32) for shift in shifts[1:])
    longest = int(lengths.max(initial=1))
    digits = np.empty((len(zigzag), longest), np.uint8)
    for place, shift in enumerate(shifts[:longest]):
        digits[:, place] = (zigzag >> np.uint64(shift)) & np.uint64(0x7F)
    places = np.arange(longest)
    digits[places < lengths[:, None] - 1] |= 0x80
    data = digits[places < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(zigzag), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _fixed_decimals(values: pa.Array, size: int) -> pa.BinaryArray:
    """Return the unscaled values in big-endian two's complement with a fixed number of bytes; null as zeros."""
    wide = pc.fill_null(values.cast(pa.decimal128(38, values.type.scale)), 0)
    rows = np.frombuffer(wide.buffers()[1], np.uint8).reshape(-1, 16)[wide.offset : wide.offset + len(wide)]
    data = np.ascontiguousarray(rows[:, ::-1][:, 16 - size :])
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(wide), [None, pa.py_buffer(data)])
    return fixed.cast(pa.binary())
