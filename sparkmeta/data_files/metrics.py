"""Compute metrics of a data file as Java's writers do: counts and possibly truncated bounds (table spec, Metrics).

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type, encode_bounds
from sparkmeta.data_files.file_schema import written
from sparkmeta.rows.resolve import Column
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, FULL, NO_METRICS

_LEAST_SURROGATE: Final = 0xD800
_MOST_SURROGATE: Final = 0xDFFF
_MOST_CODE_POINT: Final = 0x10FFFF
_SHAPES: Final = ("geometry", "geography")
_TRUNCATED: Final = ("string", "binary")


@dataclass(frozen=True)
class Leaf:
    """A primitive column with metrics, which is not inside a list or map.

    Attributes:
        id: the field id.
        type: the Iceberg type name.
        path: the field indices from the top-level struct down.
        length: the maximum length of a bound in characters or bytes, or a mode of `metrics_modes`.
    """

    id: int
    type: str
    path: tuple[int, ...]
    length: int


def metric_leaves(columns: Sequence[Column], modes: Mapping[int, int]) -> tuple[Leaf, ...]:
    """Return the columns with metrics. Columns inside lists and maps have none."""

    def leaves(children: Sequence[Column], path: tuple[int, ...]) -> Iterator[Leaf]:
        for place, column in enumerate(written(children)):
            if column.type == "struct":
                yield from leaves(column.children, (*path, place))
            elif column.type not in ("list", "map"):
                assert column.id is not None
                if (length := modes[column.id]) != NO_METRICS:
                    yield Leaf(column.id, column.type, (*path, place), length)

    return tuple(leaves(columns, ()))


def sized_leaves(columns: Sequence[Column], modes: Mapping[int, int]) -> tuple[int | None, ...]:
    """Return the ids of all primitive columns in file order; None for those without metrics."""

    def leaves(children: Sequence[Column]) -> Iterator[int | None]:
        for column in written(children):
            if column.children:
                yield from leaves(column.children)
            else:
                assert column.id is not None
                yield column.id if modes[column.id] != NO_METRICS else None

    return tuple(leaves(columns))


def leaf_ids(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the ids of the primitive columns outside of lists and maps, in file order."""
    return tuple(leaf.id for leaf in metric_leaves(columns, defaultdict(int)))


@dataclass
class FileMetrics:
    """Collects the metrics of the rows of one file.

    Attributes:
        leaves: the columns that have metrics.
        rows: the number of rows.
    """

    leaves: tuple[Leaf, ...]
    rows: int = 0
    _nulls: dict[int, int] = field(default_factory=dict)
    _nans: dict[int, int] = field(default_factory=dict)
    _least: dict[int, pa.Scalar] = field(default_factory=dict)
    _most: dict[int, pa.Scalar] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)

    def add(self, table: pa.Table) -> None:
        """Add rows in the schema of the file."""
        self.rows += len(table)
        for leaf in self.leaves:
            values = _leaf_values(table, leaf.path)
            self._nulls[leaf.id] = self._nulls.get(leaf.id, 0) + values.null_count
            if leaf.type in _TRUNCATED:
                self._bytes[leaf.id] = self._bytes.get(leaf.id, 0) + (pc.sum(pc.binary_length(values)).as_py() or 0)
            has_bounds = leaf.length != COUNTS_ONLY and not leaf.type.startswith(_SHAPES)
            if pa.types.is_floating(values.type):
                is_nan = pc.is_nan(values)
                self._nans[leaf.id] = self._nans.get(leaf.id, 0) + (pc.sum(is_nan).as_py() or 0)
                least, most = _float_extremes(values) if has_bounds else (None, None)
            else:
                least, most = _extremes(values) if has_bounds else (None, None)
            if least is not None and most is not None:
                self._widen(self._least, leaf.id, least, 0)
                self._widen(self._most, leaf.id, most, 1)

    def _widen(self, bounds: dict[int, pa.Scalar], field_id: int, value: pa.Scalar, side: int) -> None:
        known = bounds.get(field_id)
        if known is not None:
            both = pa.concat_arrays([pa.repeat(known, 1), pa.repeat(value, 1)])
            extremes = _float_extremes(both) if pa.types.is_floating(known.type) else _extremes(both)
            value = extremes[side]
        bounds[field_id] = value

    def counts(self) -> dict[str, dict[int, int]]:
        """Return value_counts, null_value_counts and nan_value_counts."""
        return {
            "value_counts": {leaf.id: self.rows for leaf in self.leaves},
            "null_value_counts": dict(self._nulls),
            "nan_value_counts": dict(self._nans),
        }

    def value_sizes(self) -> dict[int, int]:
        """Return the average size in memory of the values of strings and binaries in bytes, rounded up."""
        values = {field_id: self.rows - self._nulls[field_id] for field_id in self._bytes}
        return {field_id: -(-size // values[field_id]) for field_id, size in self._bytes.items() if values[field_id]}

    def nulls(self, field_id: int) -> int:
        """Return the number of nulls in a column."""
        return self._nulls.get(field_id, 0)

    def nans(self, field_id: int) -> int | None:
        """Return the number of NaNs in a column; None if it is not floating-point."""
        return self._nans.get(field_id)

    def extremes(self, field_id: int) -> tuple[pa.Scalar | None, pa.Scalar | None]:
        """Return the minimum and maximum of a column; None if there is none."""
        return self._least.get(field_id), self._most.get(field_id)

    def bounds(self) -> dict[str, dict[int, bytes]]:
        """Return lower_bounds and upper_bounds, serialized."""
        lower, upper = {}, {}
        for leaf in self.leaves:
            if leaf.id not in self._least:
                continue
            least, most = (bound_of(bounds[leaf.id]) for bounds in (self._least, self._most))
            least, most = truncated_bounds(leaf, least, most)
            lower[leaf.id] = _encoded(least, leaf.type)
            if most is not None:
                upper[leaf.id] = _encoded(most, leaf.type)
        return {"lower_bounds": lower, "upper_bounds": upper}


def _leaf_values(table: pa.Table, path: tuple[int, ...]) -> pa.ChunkedArray:
    """Return the values of a column; null where an enclosing struct is null."""
    values = table.column(path[0])
    for place in path[1:]:
        values = pa.chunked_array([chunk.flatten()[place] for chunk in values.chunks], values.type.field(place).type)
    if isinstance(values.type, pa.BaseExtensionType):
        storage = values.type.storage_type
        return pa.chunked_array([chunk.storage for chunk in values.chunks], storage)
    return values


_Extremes = tuple[pa.Scalar | None, pa.Scalar | None]


def _extremes(values: pa.ChunkedArray | pa.Array) -> _Extremes:
    if values.null_count == len(values):
        return None, None
    extremes = pc.min_max(values)
    return extremes["min"], extremes["max"]


def _float_extremes(values: pa.ChunkedArray | pa.Array) -> _Extremes:
    """Return the minimum and maximum, ignoring NaN. -0.0 is less than 0.0."""
    least, most = _extremes(values)
    if least is None or most is None or np.isnan(least.as_py()):
        return None, None
    if least.as_py() == 0 or most.as_py() == 0:
        signs = np.signbit(np.asarray(pc.filter(values, pc.equal(values, 0))))
        if least.as_py() == 0:
            least = pa.scalar(-0.0 if signs.any() else 0.0, values.type)
        if most.as_py() == 0:
            most = pa.scalar(-0.0 if signs.all() else 0.0, values.type)
    return least, most


def bound_of(value: pa.Scalar | None) -> Any:
    """Return a bound for `_encoded`. Dates and times become numbers, since Python's dates end in the year 9999."""
    if value is None:
        return None
    kind = value.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return value.value
    return value.as_py()


def truncated_bounds(leaf: Leaf, least: Any, most: Any) -> tuple[Any, Any]:
    """Return the bounds of a column whose values are from `least` to `most`.

    Those of text and binary are truncated. The upper one is None if no truncated value is above `most`.
    """
    if leaf.type not in _TRUNCATED:
        return least, most
    return _cut(least, leaf.length), _cut_up(most, leaf.length)


def _encoded(value: Any, type_name: str) -> bytes:
    kind = bound_arrow_type(type_name)
    if pa.types.is_date(kind):
        array = pa.array([value], pa.int32())
    elif pa.types.is_timestamp(kind):
        array = pa.array([value], pa.int64())
    else:
        array = pa.array([value], kind)
    encoded: bytes = encode_bounds(array)[0].as_py()
    return encoded


def _cut(value: str | bytes, length: int) -> str | bytes:
    """Truncate text or bytes to a lower bound of the value."""
    return value[:length] if length < FULL else value


def _cut_up(value: str | bytes, length: int) -> str | bytes | None:
    """Truncate text or bytes to an upper bound of the value; None if there is none."""
    if len(value) <= length:
        return value
    return _next_text(value[:length]) if isinstance(value, str) else _next_bytes(value[:length])


def _next_text(text: str) -> str | None:
    for place in range(len(text) - 1, -1, -1):
        code = ord(text[place]) + 1
        if _LEAST_SURROGATE <= code <= _MOST_SURROGATE:
            code = _MOST_SURROGATE + 1
        if code <= _MOST_CODE_POINT:
            return text[:place] + chr(code)
    return None


def _next_bytes(data: bytes) -> bytes | None:
    stripped = data.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
