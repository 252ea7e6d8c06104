"""The z-order of rows: ranks of the columns' values, with their bits interleaved. Spark tasks import this module.

A rank says between which values of a sample a value lies. So each column has equal weight, whatever its
type and the distribution of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_COLUMNS: Final = 31
"""Most columns of a z-order: each has two bits at least."""

_MOST_BITS: Final = 10
_ALL_BITS: Final = 63


Path: TypeAlias = tuple[int | str, *tuple[str, ...]]
"""A column by its name, or by its place, and the names of the fields inside."""


@dataclass(frozen=True)
class Curve:
    """Adds the place of each row on the curve as a column. Picklable.

    Attributes:
        name: of the new column.
        paths: the columns.
        bounds: for each column the values between ranks, ascending.
        bits: of a rank.
    """

    name: str
    paths: tuple[Path, ...]
    bounds: tuple[pa.Array, ...]
    bits: int

    @staticmethod
    def of(name: str, paths: Sequence[Path], sample: pa.Table) -> Curve:
        """Return the curve through the values of a sample.

        Args:
            name: of the new column.
            paths: see above.
            sample: rows with the columns.
        """
        bits = min(_MOST_BITS, _ALL_BITS // len(paths))
        rows = sample.combine_chunks().to_batches()
        bounds = [_bounds(values_of(rows[0], path), (1 << bits) - 2) if rows else pa.array([]) for path in paths]
        return Curve(name, tuple(paths), tuple(bounds), bits)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ranks = [
                _ranks(values_of(batch, path), bounds) for path, bounds in zip(self.paths, self.bounds, strict=True)
            ]
            names = [*batch.schema.names, self.name]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(_interleaved(ranks, self.bits))], names=names)


def values_of(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """Return the values of a column; null where a struct around it is null."""
    values = batch.column(path[0])
    for name in path[1:]:
        values = pc.struct_field(values, name)
    return values


def _bounds(values: pa.Array, count: int) -> pa.Array:
    """Return at most this many distinct values that cut the values into equal shares."""
    known = values.drop_null()
    ordered = known.take(pc.array_sort_indices(known))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).astype(np.int64))
    return ordered.take(pa.array(places)).unique()


def _ranks(values: pa.Array, bounds: pa.Array) -> np.ndarray[Any, Any]:
    """Return 0 for null, else 1 and the number of bounds that are not greater."""
    bounds = bounds.cast(values.type)
    order = pc.array_sort_indices(pa.concat_arrays([bounds, values])).to_numpy()
    is_bound = order < len(bounds)
    ranks = np.empty(len(values), np.int64)
    # The sort is stable: a bound comes before the values that equal it.
    ranks[order[~is_bound] - len(bounds)] = np.cumsum(is_bound)[~is_bound]
    return np.where(values.is_null().to_numpy(zero_copy_only=False), 0, ranks + 1)


def _interleaved(ranks: Sequence[np.ndarray[Any, Any]], bits: int) -> np.ndarray[Any, Any]:
    """Return numbers with the highest bit of each rank first, then the second highest of each, and so on."""
    result = np.zeros(len(ranks[0]), np.int64)
    for bit in range(bits - 1, -1, -1):
        for values in ranks:
            result = (result << 1) | ((values >> bit) & 1)
    return result
