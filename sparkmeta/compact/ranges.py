"""The ranges of leaves in the order of their clustering columns, by the bounds in the root. No Spark, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import CONTENT_STATS

_Longs = np.ndarray[Any, np.dtype[np.int64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]
_LEAST, _MOST = -1, 1 << 40


@dataclass(frozen=True)
class LeafRanges:
    """Leaves as intervals of ranks in the lexicographic order of the clustering columns.

    A leaf with equal ranks is a point. Intervals that only touch, and equal points, don't overlap, since no order of
    the files would separate them.

    Attributes:
        lower: rank of each leaf's lower bounds.
        upper: rank of each leaf's upper bounds.
        unknown: whether a leaf extends to an end of the order because some of its files have no bounds.
    """

    lower: _Longs
    upper: _Longs
    unknown: _Bools

    def of(self, rows: _Longs) -> LeafRanges:
        """Return the ranges of the given rows."""
        return LeafRanges(self.lower[rows], self.upper[rows], self.unknown[rows])

    @cached_property
    def order(self) -> _Longs:
        """The rows sorted by the beginning of their intervals."""
        return np.lexsort((self.upper, self.lower))

    @cached_property
    def overlaps(self) -> _Longs:
        """The number of other leaves that each leaf overlaps."""
        starts, ends = np.sort(self.lower), np.sort(self.upper)
        after = len(starts) - np.searchsorted(starts, self.upper, "left")
        before = np.searchsorted(ends, self.lower, "right")
        is_point = self.lower == self.upper
        points = np.sort(self.lower[is_point])
        same = np.searchsorted(points, self.lower, "right") - np.searchsorted(points, self.lower, "left")
        # A point is neither before nor after equal points and itself, but has been counted as both.
        overlaps = len(starts) - after - before + np.where(is_point, same, 0)
        return np.where(is_point, overlaps, overlaps - 1)

    def components(self) -> list[_Longs]:
        """Return groups of leaves that overlap no leaf of another group; groups and leaves are sorted."""
        if not len(self.lower):
            return []
        order = self.order
        reach = np.maximum.accumulate(self.upper[order])
        begins = self.lower[order][1:] >= reach[:-1]
        return np.split(order, np.flatnonzero(begins) + 1)

    def mean_overlaps(self) -> float:
        """Return the mean number of other leaves that a leaf overlaps; 0.0 without leaves."""
        return float(np.mean(self.overlaps)) if len(self.lower) else 0.0


def leaf_ranges(leaves: pa.Table, keys: Sequence[int], sources: frozenset[int] = frozenset()) -> LeafRanges:
    """Return the ranges of a root's entries for leaves.

    Args:
        keys: ids of the stats by which leaves are clustered.
        sources: ids of stats that hold partition values, of which null is a value after all others.
    """
    stats = leaves.column(CONTENT_STATS)
    bounds = [_ranks(_children(stats, key), key in sources) for key in keys if _has(stats, key)]
    if not bounds:
        nothing = np.zeros(len(leaves), np.int64)
        return LeafRanges(nothing, nothing, nothing.astype(bool))
    lower, upper = (np.stack(part, axis=1) for part in zip(*bounds, strict=True))
    apart = lower != upper
    first = np.where(apart.any(axis=1), apart.argmax(axis=1), len(bounds))
    behind = np.arange(len(bounds)) > first[:, None]
    unknown = (((lower == _LEAST) | (upper == _MOST)) & ~behind).any(axis=1)
    lower, upper = np.where(behind, _LEAST, lower), np.where(behind, _MOST, upper)
    ranks = _tuple_ranks(np.concatenate([lower, upper]))
    return LeafRanges(ranks[: len(leaves)], ranks[len(leaves) :], unknown)


def _has(stats: pa.ChunkedArray, key: int) -> bool:
    return bool(stats.type.get_field_index(str(key)) >= 0)


def _children(stats: pa.ChunkedArray, key: int) -> Mapping[str, pa.Array]:
    values = whole(pc.struct_field(stats, str(key)))
    return dict(zip((child.name for child in values.type), values.flatten(), strict=True))


def _ranks(stats: Mapping[str, pa.Array], is_source: bool) -> tuple[_Longs, _Longs]:
    """Return ranks of the lower and upper bounds among all bounds. Unknown bounds extend to the ends."""
    lower, upper = stats["lower_bound"], stats["upper_bound"]
    nulls, values = stats["null_value_count"], stats["value_count"]
    known = pc.unique(pa.concat_arrays([lower, upper])).drop_null()
    ordered = known.take(pc.sort_indices(known))
    rows = len(lower)
    low = pc.fill_null(pc.index_in(lower, ordered), _LEAST).to_numpy(zero_copy_only=False).astype(np.int64)
    high = pc.index_in(upper, ordered).cast(pa.int64())
    high = pc.fill_null(high, _MOST).to_numpy(zero_copy_only=False).astype(np.int64)
    end = len(ordered)
    only_null = pc.fill_null(pc.and_(pc.equal(nulls, values), pc.greater(values, 0)), False)
    only_null = pc.and_(only_null, lower.is_null()).to_numpy(zero_copy_only=False)
    low, high = np.where(only_null, end, low), np.where(only_null, end, high)
    if is_source:
        some = pc.fill_null(pc.greater(nulls, 0), True).to_numpy(zero_copy_only=False)
        high = np.where(some & (high < end), end, high)
    assert len(low) == rows
    return low, high


def _tuple_ranks(rows: np.ndarray[Any, np.dtype[np.int64]]) -> _Longs:
    """Return dense ranks of rows in lexicographic order."""
    if not len(rows):
        return np.zeros(0, np.int64)
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    steps = np.concatenate([[0], np.any(ordered[1:] != ordered[:-1], axis=1).cumsum()])
    ranks = np.empty(len(rows), np.int64)
    ranks[order] = steps
    return ranks
