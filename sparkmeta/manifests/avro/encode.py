"""Encode entries of any manifest as entries of a new v1 to v3 manifest. Without Spark: tasks import this.

Columns are encoded one by one, as arrays of bytes, and joined row by row in Arrow. There is no Python object per entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import encode_bounds
from sparkmeta.manifests.arrays import whole
from sparkmeta.manifests.avro.schema import field_id_of, fixed_sizes, record_of
from sparkmeta.manifests.avro.write import REQUIRED_DEFAULTS, ManifestFormat
from sparkmeta.manifests.entries import as_numbers
from sparkmeta.manifests.metrics_maps import metrics_map
from sparkmeta.manifests.projection import CONTENT_STATS, PARTITION
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, METRICS_MAPS, PARTITION_FIELD_ID, V3_ENTRY_PATHS

_NOTHING = b""
_NULL, _PRESENT, _END = b"\x00", b"\x02", b"\x00"


def encode_entries(entries: pa.RecordBatch, form: ManifestFormat) -> pa.BinaryArray:
    """Return entries encoded with a format's schema.

    Args:
        entries: all columns of content entries and `partition`, with inheritance applied. Metrics maps are columns, or
            are made of `content_stats`.
    """
    values = {field_id: _value(entries, path) for field_id, path in V3_ENTRY_PATHS.items()}
    values |= {field_id: pa.repeat(pa.scalar(value), len(entries)) for field_id, value in REQUIRED_DEFAULTS.items()
               if field_id not in values}  # fmt: skip
    encoder = _Encoder(fixed_sizes(form.encoded), len(entries))
    record = record_of(form.encoded, DATA_FILE_FIELD_ID, "data_file")
    assert record is not None
    encoded = [
        encoder.encoded(field["type"], values[field_id_of(field)])
        for field in form.encoded["fields"]
        if field_id_of(field) != DATA_FILE_FIELD_ID
    ]
    stats = _columns_by_id(entries, CONTENT_STATS)
    for field in record["fields"]:
        field_id, kind = field_id_of(field), field["type"]
        if field_id == PARTITION_FIELD_ID:
            encoded.append(_tuples(encoder, record, _columns_by_id(entries, PARTITION)))
        elif field_id in METRICS_MAPS:
            name = METRICS_MAPS[field_id][0]
            given = name in entries.schema.names
            maps = whole(entries.column(name)) if given else metrics_map(name, stats, len(entries))
            encoded.append(encoder.encoded(kind, maps))
        else:
            encoded.append(encoder.encoded(kind, values[field_id]))
    return encoder.joined(encoded)


def _value(entries: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    column, *child = path
    values = whole(entries.column(column))
    return pc.struct_field(values, child) if child else values


def _columns_by_id(entries: pa.RecordBatch, name: str) -> dict[int, pa.Array]:
    """Return the children of a struct whose fields are named by ids."""
    if name not in entries.schema.names:
        return {}
    parent = whole(entries.column(name))
    return {int(field.name): pc.struct_field(parent, [field.name]) for field in parent.type}


def _tuples(encoder: _Encoder, record: Mapping[str, Any], values: Mapping[int, pa.Array]) -> pa.BinaryArray:
    tuple_record = record_of(record, PARTITION_FIELD_ID, "partition")
    assert tuple_record is not None
    return encoder.joined(
        [encoder.encoded(field["type"], values[field_id_of(field)]) for field in tuple_record["fields"]]
    )


class _Encoder:
    """Encodes columns by the Avro types of `by_field_ids`.

    Attributes:
        sizes: the sizes of fixed types, by name.
        rows: the length of the columns.
    """

    def __init__(self, sizes: Mapping[str, int], rows: int) -> None:
        self.sizes = sizes
        self.rows = rows

    def joined(self, parts: list[pa.BinaryArray]) -> pa.BinaryArray:
        """Return the concatenated parts of each row."""
        return _joined(*parts) if parts else pa.array([_NOTHING] * self.rows, pa.binary())

    def encoded(self, kind: Any, values: pa.Array) -> pa.BinaryArray:
        """Return the encoding of each value. A null encodes as null if the type is a union with it."""
        if isinstance(kind, list):
            of_values = self.encoded(next(branch for branch in kind if branch != "null"), values)
            return pc.if_else(values.is_valid(), _joined(_PRESENT, of_values), _NULL)
        if kind == "null":
            return pa.array([_NOTHING] * len(values), pa.binary())
        if kind in ("int", "long"):
            return _numbers(as_numbers(values))
        if kind in ("boolean", "float", "double"):
            return _filled(encode_bounds(values))
        if kind in ("bytes", "string"):
            content = _filled(values.cast(pa.binary()))
            return _joined(_numbers(pc.binary_length(content)), content)
        if isinstance(kind, Mapping) and kind["type"] == "array":
            return self._lists(kind["items"], values)
        size = self.sizes[kind if isinstance(kind, str) else kind["name"]]
        return _fixed_decimals(values, size) if pa.types.is_decimal(values.type) else _filled(values)

    def _lists(self, items: Any, values: pa.Array) -> pa.BinaryArray:
        """Return lists, or maps as lists of pairs: a block of items, unless there are none, and the end."""
        if pa.types.is_map(values.type):
            kinds = [field["type"] for field in items["fields"]]
            pairs = zip(kinds, (values.keys, values.items), strict=True)
            encoded = _joined(*(self.encoded(kind, side) for kind, side in pairs))
        else:
            encoded = self.encoded(items, values.values)
        offsets = values.offsets.cast(pa.int32())
        counts = pc.subtract(offsets.slice(1), offsets.slice(0, len(values)))
        blocks = pc.binary_join(pa.ListArray.from_arrays(offsets, encoded), _NOTHING)
        return pc.if_else(pc.greater(counts, 0), _joined(_numbers(counts), blocks, _END), _END)


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
