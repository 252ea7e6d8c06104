"""Arrange overlapping manifests as stacked bars in the order of the clustering columns."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta.compact.ranges import LeafRanges


class PlacedBar(NamedTuple):
    """A manifest in a map of overlaps.

    Attributes:
        place: its row in the ranges.
        start: its start in the order, from 0 to 1.
        end: its end in the order, from 0 to 1.
        row: the row in which it is drawn, where no other bar overlaps it.
    """

    place: int
    start: float
    end: float
    row: int


def placed_bars(ranges: LeafRanges, most: int) -> Iterator[PlacedBar]:
    """Yield the bars of manifests. If there are more than `most`, choose an even sample."""
    order = ranges.order
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    longest = max(int(ranges.upper.max(initial=0)), 1)
    ends: list[tuple[float, int]] = []
    for place in order.tolist():
        start, end = int(ranges.lower[place]), int(ranges.upper[place])
        row = heapq.heappop(ends)[1] if ends and ends[0][0] <= start else len(ends)
        heapq.heappush(ends, (max(end, start + 0.5), row))
        yield PlacedBar(place, start / longest, end / longest, row)
