"""Compare inserted and deleted rows in memory, in a task, as `changelog` does in Spark.

A task that reads a part of a snapshot's rows keeps only the rows in its bucket. Equal rows are in one bucket.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import VariantVal

from sparkmeta.arrow_types import is_variant
from sparkmeta.changes.changed_files import INSERT
from sparkmeta.expr.arrays import compact_lists, narrowed, whole
from sparkmeta.rows.file_rows import CHANGE_COLUMNS, MatchingRows

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Codes = np.ndarray[Any, np.dtype[np.int64]]

_LONG: Final = 8
_INT_BITS: Final = 32
# An odd multiplier that spreads hashes over all bits.
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ComparedRows:
    """Reads the rows of a snapshot's files, without rows that the snapshot both inserted and deleted.

    Attributes:
        rows: reads all columns of the table, then the columns of changes.
        schema: the columns to return, which may lack nested fields.
    """

    rows: MatchingRows
    schema: pa.Schema

    def read(self, parts: Iterable[pa.RecordBatch], bucket: int, buckets: int) -> pa.Table:
        """Return the changed rows of one bucket."""
        batches, compared = [self.rows.schema.empty_table()], len(self.rows.schema) - len(CHANGE_COLUMNS)
        for batch in self.rows.read(parts):
            table = pa.Table.from_batches([batch])
            if buckets > 1:
                hashes = row_hashes([whole(column) for column in table.columns[:compared]])
                table = table.filter(pa.array(hashes % np.uint64(buckets) == bucket))
            batches.append(table)
        rows = pa.concat_tables(batches)
        inserted = np.asarray(pc.equal(rows.column(compared), INSERT))
        codes = row_codes([whole(column) for column in rows.columns[:compared]])
        changed = rows.filter(pa.array(remaining(codes, inserted)))
        columns = [narrowed(changed.column(field.name), field.type) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)


def remaining(codes: Codes, inserted: Flags) -> Flags:
    """Return which rows remain if an inserted and a deleted row with the same code cancel each other out."""
    if not len(codes):
        return np.zeros(0, np.bool_)
    net = np.bincount(codes, np.where(inserted, 1.0, -1.0)).astype(np.int64)[codes]
    kinds = codes * 2 + inserted
    order = np.argsort(kinds, kind="stable")
    starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    earlier = np.empty(len(codes), np.int64)
    earlier[order] = np.arange(len(codes)) - np.repeat(starts, np.diff(starts, append=len(codes)))
    flags: Flags = (inserted == (net > 0)) & (earlier < np.abs(net))
    return flags


def row_codes(columns: Sequence[pa.Array]) -> Codes:
    """Return a number for each row, equal for equal rows.

    Nulls are equal, NaN equals NaN, and -0.0 does not equal 0.0. The entries of a map have no order.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = _paired(codes, _codes(column))
    return codes


def _paired(codes: Codes, other_codes: Codes) -> Codes:
    numbers: Codes = np.unique(codes * (other_codes.max(initial=0) + 1) + other_codes, return_inverse=True)[1].reshape(
        -1
    )
    return numbers


def _codes(values: pa.Array) -> Codes:
    kind = values.type
    if is_variant(kind):
        return _codes(pa.array([None if value is None else _text(value) for value in values.to_pylist()], pa.string()))
    if not pa.types.is_nested(kind):
        return np.asarray(_exact(values).dictionary_encode("encode").indices, np.int64)
    codes = np.asarray(values.is_valid(), np.int64)
    if pa.types.is_struct(kind):
        for child in values.flatten():
            codes = _paired(codes, _codes(child))
        return codes
    offsets, elements = compact_lists(values)
    lengths = np.diff(offsets.to_numpy())
    element_codes, owners = _codes(elements), np.repeat(np.arange(len(lengths)), lengths)
    if pa.types.is_map(kind):
        element_codes = element_codes[np.lexsort((element_codes, owners))]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) * _LONG
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(element_codes))]
    texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
    return _paired(codes, np.asarray(texts.dictionary_encode().indices, np.int64))


def _exact(values: pa.Array) -> pa.Array:
    """Convert values to types that Python represents exactly.

    Floating-point numbers become their bits, with one NaN. Dates and times become integers. Other values are unchanged.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), kind), values)
    elif not pa.types.is_temporal(kind):
        return values
    return values.view(pa.int32() if kind.bit_width == _INT_BITS else pa.int64())


def _text(variant: dict[str, bytes]) -> str:
    return repr(VariantVal(variant["value"], variant["metadata"]).toPython())


def row_hashes(columns: Sequence[pa.Array]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a hash of each row, equal for equal rows in all processes. Nested columns are left out."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        if not pa.types.is_nested(column.type):
            encoded = _exact(column).dictionary_encode("encode")
            distinct = [zlib.crc32(repr(value).encode()) for value in encoded.dictionary.to_pylist()]
            hashes = (hashes * _SPREAD) ^ np.array(distinct, np.uint64)[np.asarray(encoded.indices)]
    return (hashes * _SPREAD) >> np.uint64(32)
