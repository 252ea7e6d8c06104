"""Write times before 1970 to ORC files. Spark tasks import this module.

ORC stores a time as seconds, rounded up if the nanoseconds of the next lower second are more than 999999, and these
nanoseconds. Arrow's writer rounds seconds towards zero, so that it stores negative nanoseconds for times before 1970
that have a fraction of a second. Arrow's reader understands them; Java reads most of these times one second early.

So other times are given to Arrow, whose seconds and negated nanoseconds are those to store. The nanoseconds are then
negated in the finished file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import ValidationError
from sparkmeta.rows.orc_format import (
    BYTES,
    SECONDARY,
    TIMESTAMPS,
    Field,
    Numbers,
    OrcParts,
    decoded_runs,
    encoded,
    encoded_runs,
    number_in,
    parsed,
    with_numbers,
)

_SECOND: Final = {"us": 10**6, "ns": 10**9}
# ORC readers take a negative second for rounded up if there are at least this many nanoseconds.
_LEAST_ROUNDED: Final = 10**6
# Kinds of streams that are part of a stripe's index.
_INDEXES: Final = (6, 7, 8)
_TIMESTAMP_STATISTICS: Final = 9


def has_times(kind: pa.DataType) -> bool:
    """Return whether a type is of times, or has such types in it."""
    return pa.types.is_timestamp(kind) or any(has_times(kind.field(place).type) for place in range(kind.num_fields))


# -- before writing ---------------------------------------------------------------------------------------------------


@dataclass
class TimesBefore1970:
    """Rows as they are given to Arrow's writer.

    Attributes:
        table: the table, for errors.
        seen: whether any time was changed, so that the file is to be copied by `copy_negated`.
    """

    table: str
    seen: bool = field(default=False, init=False)

    def replaced(self, table: pa.Table) -> pa.Table:
        """Return rows with other times.

        Raises:
            ValidationError: ORC can't store a time.
        """
        for place, column in enumerate(table.schema):
            if has_times(column.type):
                chunks = [self._replaced(chunk, column.type, column.name) for chunk in table.column(place).chunks]
                table = table.set_column(place, column, pa.chunked_array(chunks, column.type))
        return table

    def _replaced(self, array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        if pa.types.is_timestamp(kind):
            return self._times(array, name)
        if not has_times(kind):
            return array
        mask = array.is_null()
        if pa.types.is_struct(kind):
            children = [
                self._replaced(child, part.type, f"{name}.{part.name}")
                for child, part in zip(array.flatten(), kind, strict=True)
            ]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
        if pa.types.is_map(kind):
            keys = self._replaced(array.keys, kind.key_type, f"{name}.key")
            items = self._replaced(array.items, kind.item_type, f"{name}.value")
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
        values = self._replaced(array.values, kind.value_type, f"{name}.element")
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)

    def _times(self, array: pa.TimestampArray, name: str) -> pa.TimestampArray:
        values = np.asarray(pc.fill_null(array.view(pa.int64()), 0))
        second = _SECOND[array.type.unit]
        seconds, fractions = np.divmod(values, second)
        places = np.flatnonzero((seconds < 0) & (fractions > 0))
        if not len(places):
            return array
        self.seen = True
        seconds, fractions = seconds[places], fractions[places]
        seconds += fractions * (10**9 // second) >= _LEAST_ROUNDED
        # Seconds of 0 would be read as those of a time after 1970.
        unfit = places[(seconds == 0) | (values[places] < np.iinfo(np.int64).min + second)]
        if len(unfit):
            shown = array[unfit[0]].cast(pa.string())
            problem = "ORC readers would take it for another time; Parquet and Avro can store it (write.format.default)"
            raise ValidationError(f"{self.table}: column {name} has the time {shown}: {problem}")
        changed = values.copy()
        changed[places] = seconds * second - fractions
        return pa.array(changed, mask=np.asarray(array.is_null())).view(array.type)


# -- after writing ----------------------------------------------------------------------------------------------------


def copy_negated(source: pa.NativeFile, sink: IO[bytes], table: str) -> None:
    """Copy a file with negative nanoseconds made positive, and without indexes and statistics of times.

    Args:
        source: the file that Arrow wrote.
        sink: the copy.
        table: the table, for errors.
    """
    parts = OrcParts(source, table)
    kinds = [number_in(part.value, 1) for part in parts.footer if part.number == 4]
    copy = _Copy(parts, sink, tuple(place for place, kind in enumerate(kinds) if kind in TIMESTAMPS))
    copy.put(parts.read(0, 3))  # the magic bytes
    stripes = iter([copy.stripe(part.value) for part in parts.footer if part.number == 3])
    size, metadata_size = copy.size, next(part.value for part in parts.script if part.number == 5)
    metadata = parsed(parts.plain(parts.read(parts.footer_start - metadata_size, metadata_size)))
    stored = parts.stored(encoded(each._replace(value=_without_times(each.value, 1)) for each in metadata))
    copy.put(stored)
    footer = []
    for part in parsed(_without_times(encoded(parts.footer), 7)):
        values = {2: size, 8: 0}  # the length of all stripes, and the rows between entries of an index: none
        value = next(stripes) if part.number == 3 else values.get(part.number, part.value)
        footer.append(part._replace(value=value))
    copy.put(parts.tail(footer, len(stored)))


@dataclass
class _Copy:
    parts: OrcParts
    sink: IO[bytes]
    times: tuple[int, ...]
    size: int = 0

    def put(self, data: bytes) -> None:
        self.sink.write(data)
        self.size += len(data)

    def stripe(self, described: bytes) -> bytes:
        """Copy a stripe. Return its description for the footer."""
        start, index, data, size = (number_in(described, number) for number in (1, 2, 3, 4))
        place, new_start, streams = start, self.size, []
        footer = parsed(self.parts.plain(self.parts.read(start + index + data, size)))
        for part in footer:
            if part.number != 1:
                continue
            kind, column, length = (number_in(part.value, number) for number in (1, 2, 3))
            if kind not in _INDEXES:
                stream = self.parts.read(place, length)
                if kind == SECONDARY and column in self.times:
                    stream = self._negated(stream)
                self.put(stream)
                streams.append(part._replace(value=with_numbers(part.value, {3: len(stream)})))
            place += length
        new_data = self.size - new_start
        new_footer = self.parts.stored(encoded([*streams, *(part for part in footer if part.number != 1)]))
        self.put(new_footer)
        return with_numbers(described, {1: new_start, 2: 0, 3: new_data, 4: len(new_footer)})

    def _negated(self, stream: bytes) -> bytes:
        """Return a stream of nanoseconds without negative ones."""
        runs = [*decoded_runs(self.parts.plain(stream))]
        values: Numbers = np.concatenate(runs) if runs else np.zeros(0, np.int64)
        if not (values < 0).any():
            return stream
        # The last three bits count decimal zeros that are left out.
        return self.parts.stored(encoded_runs(np.where(values < 0, -(values >> 3) << 3 | values & 7, values)))


def _without_times(message: bytes, number: int) -> bytes:
    """Return a message whose column statistics, in fields of this number, have no bounds of times."""
    return encoded(_plain_statistics(part) if part.number == number else part for part in parsed(message))


def _plain_statistics(part: Field) -> Field:
    assert part.wire_type == BYTES
    return part._replace(value=encoded(each for each in parsed(part.value) if each.number != _TIMESTAMP_STATISTICS))
