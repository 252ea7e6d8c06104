"""The tasks that compute theta sketches of columns from batches of rows. Without Spark.

As in Iceberg's Spark action, the hash of a value is the hash of its single-value serialization (table spec, Appendix D)
in the type by which Spark represents it. UUIDs are text in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.spec.puffin import ThetaSketch, Words, hash_bytes, hash_numbers

SKETCH_SCHEMA = pa.schema([pa.field("field_id", pa.int32()), pa.field("sketch", pa.binary())])
"""A sketch of a column, from some of the rows."""

# Maximum number of hashes that are collected before they are added to a sketch.
_PENDING = 1 << 16
_DECIMAL_BYTES = 16


@dataclass
class _Column:
    """The sketch of a column so far, and hashes to add to it."""

    sketch: ThetaSketch = field(default_factory=ThetaSketch)
    pending: list[Words] = field(default_factory=list)
    waiting: int = 0

    def add(self, hashes: Words) -> None:
        below = hashes[hashes < self.sketch.theta]
        self.pending.append(below)
        self.waiting += len(below)
        if self.waiting > _PENDING:
            self.fold()

    def fold(self) -> ThetaSketch:
        if self.pending:
            self.sketch = self.sketch.with_hashes(np.concatenate(self.pending))
            self.pending, self.waiting = [], 0
        return self.sketch


@dataclass(frozen=True)
class ColumnSketches:
    """Sketches the columns of rows. Picklable.

    Attributes:
        field_ids: the field ids of the columns, in their order.
    """

    field_ids: tuple[int, ...]

    def sketch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row of `SKETCH_SCHEMA` for each column."""
        columns = [_Column() for _ in self.field_ids]
        for batch in batches:
            for column, values in zip(columns, batch.columns, strict=True):
                column.add(value_hashes(values))
        sketches = [column.fold().to_bytes() for column in columns]
        yield pa.RecordBatch.from_arrays([pa.array(self.field_ids, pa.int32()), sketches], schema=SKETCH_SCHEMA)


def merge_sketches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge rows of `SKETCH_SCHEMA` into one for each column."""
    merged: dict[int, ThetaSketch] = {}
    for batch in batches:
        for field_id, sketch in zip(batch.column("field_id").to_pylist(), batch.column("sketch"), strict=True):
            part = ThetaSketch.from_bytes(sketch.as_py())
            merged[field_id] = merged[field_id].union(part) if field_id in merged else part
    for field_id, sketch in merged.items():
        yield pa.RecordBatch.from_arrays([[field_id], [sketch.to_bytes()]], schema=SKETCH_SCHEMA)


def value_hashes(values: pa.Array) -> Words:
    """Return the hashes of the values of a column, in any order and without nulls and empty strings.

    Raises:
        TypeError: the values have no single-value serialization.
    """
    # Only distinct values are hashed: strings cost more to hash than to compare.
    not_null = values.drop_null()
    kind = not_null.type
    if pa.types.is_boolean(kind):
        return hash_numbers(not_null.cast(pa.uint8()).to_numpy())
    if pa.types.is_decimal(kind):
        return hash_bytes(*_decimal_bytes(not_null.unique().cast(pa.decimal128(kind.precision, kind.scale))))
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        texts = not_null.unique().cast(pa.large_binary())
        return hash_bytes(*_bytes(texts.filter(pc.greater(pc.binary_length(texts), 0))))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return hash_numbers(not_null.to_numpy())
    if pa.types.is_date32(kind):
        return hash_numbers(not_null.cast(pa.int32()).to_numpy())
    if pa.types.is_timestamp(kind):
        return hash_numbers(not_null.cast(pa.int64()).to_numpy())
    raise TypeError(f"values of type {kind} have no distinct values to count")


_Strings = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def _bytes(texts: pa.LargeBinaryArray) -> _Strings:
    """Return the bytes of all strings, and the beginning and end of each string."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8) if len(texts) else np.zeros(1, np.int64)
    return np.frombuffer(data or b"", np.uint8), ends[:-1], ends[1:]


def _decimal_bytes(decimals: pa.Decimal128Array) -> _Strings:
    """Return the shortest big-endian two's complement of unscaled values, as `_bytes` does."""
    if not len(decimals):
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    stored = np.frombuffer(
        decimals.buffers()[1], np.uint8, len(decimals) * _DECIMAL_BYTES, decimals.offset * _DECIMAL_BYTES
    )
    big_endian = np.ascontiguousarray(stored.reshape(-1, _DECIMAL_BYTES)[:, ::-1])
    sign = np.where(big_endian[:, :1] >= 128, 255, 0).astype(np.uint8)
    # A leading byte is left out if it only repeats the sign of the next byte.
    omitted = (big_endian[:, :-1] == sign) & ((big_endian[:, 1:] >= 128) == (sign == 255))
    skipped = np.logical_and.accumulate(omitted, axis=1).sum(axis=1)
    starts = np.arange(len(big_endian), dtype=np.int64) * _DECIMAL_BYTES
    return big_endian.reshape(-1), starts + skipped, starts + _DECIMAL_BYTES
