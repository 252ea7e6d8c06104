"""Read ORC timestamps that are out of the range of Arrow's ORC reader, which uses 64-bit nanoseconds.

ORC stores the seconds of a timestamp in one stream of its column and the nanoseconds in another. Arrow reads the
seconds, also of nested columns, if the file's footer declares them as longs. The nanoseconds are decoded here.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import orc

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.rows.orc_format import (
    SECONDARY,
    TIMESTAMPS,
    Field,
    Numbers,
    OrcParts,
    decoded_runs,
    number_in,
    parsed,
    with_numbers,
)

# A kind of types and one of column encodings in ORC.
_LONG: Final = 4
_DIRECT_V2: Final = 2

_UTC: Final = ("", "UTC", "GMT", "Etc/UTC")
# ORC timestamps count seconds from the beginning of 2015.
_EPOCH: Final = 1_420_070_400
# The last second whose microseconds fit into 64 bits.
_LAST_SECOND: Final = 9_223_372_036_853


class OrcSeconds:
    """An ORC file whose timestamps are read as seconds and nanoseconds."""

    def __init__(self, source: pa.NativeFile, location: str) -> None:
        """Read the file's footer.

        Args:
            source: The open file.
            location: The file, for error messages.
        """
        self._parts, self._location = OrcParts(source, location), location
        tail = self._parts.tail([*map(_with_longs, self._parts.footer)])
        self._file = orc.ORCFile(pa.PythonFile(_Patched(source, self._parts.footer_start, tail), mode="r"))

    def read_stripe(self, number: int, names: list[str], schema: pa.Schema) -> pa.RecordBatch:
        """Read columns of a stripe.

        Args:
            number: The index of the stripe.
            names: The names of the columns.
            schema: The Arrow schema of the file.

        Raises:
            CorruptFileError: The stripe is damaged.
            UnsupportedError: Timestamps have an encoding that current writers don't use.
        """
        batch = self._file.read_stripe(number, names)
        nanos = _Nanos(
            self._parts, [field.value for field in self._parts.footer if field.number == 3][number], self._location
        )
        first_ids = dict(zip(schema.names, _first_ids(schema, 1), strict=True))
        fields = [schema.field(name) for name in batch.schema.names]
        columns = [
            nanos.restored(column, field.type, first_ids[field.name])
            for column, field in zip(batch.columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _Patched(io.RawIOBase):
    """A file whose end is replaced."""

    def __init__(self, source: pa.NativeFile, end: int, tail: bytes) -> None:
        self._source, self._end, self._tail = source, end, tail
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._end + len(self._tail)}
        self._place = starts[whence] + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        last = self._end + len(self._tail)
        stop = last if size < 0 else min(self._place + size, last)
        start, self._place = self._place, max(self._place, stop)
        self._source.seek(min(start, self._end))
        data: bytes = self._source.read(max(0, min(stop, self._end) - start))
        return data + self._tail[max(0, start - self._end) : max(0, stop - self._end)]


class _Nanos:
    """The nanoseconds in a stripe."""

    def __init__(self, parts: OrcParts, stripe: bytes, location: str) -> None:
        self._parts, self._location = parts, location
        values = {field.number: field.value for field in parsed(stripe)}
        start, index, data, footer = (values.get(number, 0) for number in (1, 2, 3, 4))
        fields = parsed(parts.plain(parts.read(start + index + data, footer)))
        self._encodings = [number_in(field.value, 1) for field in fields if field.number == 2]
        self._zone = next((field.value.decode() for field in fields if field.number == 3), "")
        self._places: dict[int, tuple[int, int]] = {}
        for field in fields:
            if field.number == 1:
                size = number_in(field.value, 3)
                if number_in(field.value, 1) == SECONDARY:
                    self._places[number_in(field.value, 2)] = (start, size)
                start += size

    def restored(self, array: pa.Array, kind: pa.DataType, type_id: int) -> pa.Array:
        """Return an array with seconds replaced by timestamps.

        Args:
            array: The array with seconds.
            kind: Its Arrow type, with timestamps.
            type_id: The id of the type in the file. Types are numbered in pre-order from the root.
        """
        if pa.types.is_timestamp(kind):
            return self._timestamps(array, kind, type_id)
        if not array.type.num_fields or array.type == kind:
            return array
        ids = _first_ids(_children(kind), type_id + 1)
        kinds = [field.type for field in _children(kind)]
        children = [
            self.restored(child, child_kind, child_id)
            for child, child_kind, child_id in zip(_arrays(array), kinds, ids, strict=True)
        ]
        mask = array.is_null()
        if pa.types.is_struct(kind):
            return pa.StructArray.from_arrays(children, [field.name for field in kind], mask=mask)
        offsets = array.offsets
        if pa.types.is_map(kind):
            return pa.MapArray.from_arrays(offsets, *children, mask=mask)
        return pa.ListArray.from_arrays(offsets, *children, mask=mask)

    def _timestamps(self, array: pa.Int64Array, kind: pa.TimestampType, type_id: int) -> pa.TimestampArray:
        if self._encodings[type_id] != _DIRECT_V2 or (kind.tz is None and self._zone not in _UTC):
            how = f"encoding {self._encodings[type_id]} and zone {self._zone!r}"
            raise UnsupportedError(f"{self._location}: timestamps out of Arrow's range, of {how}")
        valid = np.asarray(array.is_valid())
        seconds = np.asarray(array.drop_null(), np.int64) + _EPOCH
        stream = self._parts.plain(self._parts.read(*self._places.get(type_id, (0, 0))))
        nanos = _nanoseconds(stream, len(seconds))
        if len(nanos) != len(seconds):
            problem = f"there are {len(seconds)} values"
            raise CorruptFileError(self._location, f"nanoseconds of type {type_id}", len(nanos), problem)
        # ORC writers round seconds towards zero.
        seconds -= (seconds < 0) & (nanos > 999_999)
        if len(seconds) and max(seconds.max(), -seconds.min()) > _LAST_SECOND:
            raise CorruptFileError(self._location, f"seconds of type {type_id}", seconds.max(), "out of range")
        is_micros = not (nanos % 1000).any()
        values = np.zeros(len(array), np.int64)
        values[valid] = seconds * 1_000_000 + nanos // 1000 if is_micros else _exact_nanos(seconds, nanos)
        stamps = pa.array(values, mask=~valid)
        return stamps.view(pa.timestamp("us" if is_micros else "ns", kind.tz))


def _exact_nanos(seconds: Numbers, nanos: Numbers) -> Numbers:
    if np.abs(seconds).max() >= 1 << 33:
        raise ValueError("timestamps of nanoseconds are out of range")
    return seconds * 1_000_000_000 + nanos


def _arrays(array: pa.Array) -> list[pa.Array]:
    """Return the child arrays of a nested array."""
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    return [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]


def _first_ids(fields: Iterable[pa.Field], first: int) -> list[int]:
    """Return the type ids of consecutive fields."""
    ids = []
    for field in fields:
        ids.append(first)
        first += _type_count(field.type)
    return ids


def _type_count(kind: pa.DataType) -> int:
    return 1 + sum(_type_count(field.type) for field in _children(kind))


def _with_longs(field: Field) -> Field:
    """Return a field of the footer, with timestamp types changed to longs."""
    if field.number != 4 or number_in(field.value, 1) not in TIMESTAMPS:
        return field
    return field._replace(value=with_numbers(field.value, {1: _LONG}))


def _nanoseconds(stream: bytes, count: int) -> Numbers:
    """Decode a stream of nanoseconds, which stores numbers without trailing decimal zeros and the counts of these."""
    runs = list(decoded_runs(stream))
    stored = np.concatenate(runs)[:count] if runs else np.zeros(0, np.int64)
    zeros = stored & 7
    return (stored >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)
