"""The ranges of leaves along their clustering columns, compared with counts by hand."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkmeta.commit.compaction_groups import LeafRanges, leaf_ranges
from sparkmeta.maintain.health_measures import placed_bars
from sparkmeta.manifests.v4.layout import tree_schema

SCHEMA = tree_schema({1: "long", 2: "string"})


def stats(lower: Any, upper: Any, nulls: int | None = 0, values: int | None = 10) -> dict[str, Any]:
    return {"lower_bound": lower, "upper_bound": upper, "value_count": values, "null_value_count": nulls}


def ranges(
    *leaves: dict[str, Any], keys: tuple[int, ...] = (1, 2), sources: frozenset[int] = frozenset()
) -> LeafRanges:
    rows = [{"content_type": 3, "file_format": "parquet", "content_stats": content_stats} for content_stats in leaves]
    return leaf_ranges(pa.Table.from_pylist(rows, schema=SCHEMA), keys, sources)


def overlap(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    return left[0] < right[1] and right[0] < left[1]


def pairs(spans: LeafRanges) -> set[tuple[int, int]]:
    """Return the pairs of leaves that overlap, by comparing every two intervals."""
    both = list(zip(spans.lower.tolist(), spans.upper.tolist(), strict=True))
    return {(i, j) for i, j in combinations(range(len(both)), 2) if overlap(both[i], both[j])}


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_those_of_all_pairs(seed: int) -> None:
    rng = random.Random(seed)
    bounds = [sorted((rng.randrange(12), rng.randrange(12))) for _ in range(rng.randrange(1, 15))]
    lower, upper = (np.array([pair[side] for pair in bounds], np.int64) for side in (0, 1))
    spans = LeafRanges(lower, upper, np.zeros(len(bounds), bool))
    count = [sum(overlap(pair, other) for at, other in enumerate(bounds) if at != index)
             for index, pair in enumerate(bounds)]  # fmt: skip
    assert spans.overlaps.tolist() == count
    assert spans.mean_overlaps() == sum(count) / len(count)
    # A map shows the same overlaps, and bars in a row don't overlap.
    bars = {(bar.start, bar.end, bar.place): bar for bar in placed_bars(spans, 100)}
    of_map = {bar.place: [other for span, other in bars.items() if other is not bar and overlap(at, span)]
              for at, bar in bars.items()}  # fmt: skip
    assert [len(of_map[place]) for place in range(len(count))] == count
    assert not [bar for bar in bars.values() if bar.row in {other.row for other in of_map[bar.place]}]
    assert max(bar.end for bar in bars.values()) == 1
    together = {frozenset(component.tolist()) for component in spans.components()}
    assert sorted(row for component in together for row in component) == list(range(len(bounds)))
    apart = {row: number for number, component in enumerate(together) for row in component}
    assert all(apart[i] == apart[j] for i, j in pairs(spans))
    for component in together:
        reached = {min(component)}
        while more := {j for i in reached for j in component if overlap(bounds[i], bounds[j])} - reached:
            reached |= more
        assert reached == component


def test_the_second_column_counts_where_the_first_has_one_value() -> None:
    a, b = stats(1, 1), stats(1, 1)
    assert pairs(ranges({"1": a, "2": stats("a", "m")}, {"1": b, "2": stats("c", "z")})) == {(0, 1)}
    assert pairs(ranges({"1": a, "2": stats("a", "c")}, {"1": b, "2": stats("c", "z")})) == set()
    wide = {"1": stats(0, 5), "2": stats("q", "q")}
    assert pairs(ranges({"1": a, "2": stats("a", "c")}, wide)) == {(0, 1)}
    assert pairs(ranges({"1": stats(5, 5), "2": stats("a", "c")}, wide)) == {(0, 1)}


def test_leaves_that_touch_do_not_overlap() -> None:
    assert pairs(ranges({"1": stats(0, 5)}, {"1": stats(5, 9)}, {"1": stats(9, 9)}, keys=(1,))) == set()
    assert pairs(ranges({"1": stats(0, 6)}, {"1": stats(5, 9)}, {"1": stats(7, 7)}, keys=(1,))) == {(0, 1), (1, 2)}
    equal = ranges({"1": stats(3, 3)}, {"1": stats(3, 3)}, keys=(1,))
    assert equal.overlaps.tolist() == [0, 0]


def test_unknown_bounds_reach_to_the_ends() -> None:
    spans = ranges({"1": stats(None, None, None)}, {"1": stats(1, 2)}, {"1": stats(8, None)}, {}, keys=(1,))
    assert spans.unknown.tolist() == [True, False, True, True]
    assert pairs(spans) == {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)}


@pytest.mark.parametrize("seed", range(10))
def test_inverted_bounds_are_unknown(seed: int) -> None:
    """Files of other writers may have them, such as UUIDs that were compared as signed numbers."""
    rng = random.Random(seed)
    bounds = [(rng.randrange(6), rng.randrange(6)) for _ in range(8)]
    spans = ranges(*({"1": stats(lower, upper)} for lower, upper in bounds), keys=(1,))
    assert spans.unknown.tolist() == [lower > upper for lower, upper in bounds]
    reach = [(lower, upper) if lower <= upper else (float("-inf"), float("inf")) for lower, upper in bounds]
    assert pairs(spans) == {(i, j) for i, j in combinations(range(8), 2) if overlap(reach[i], reach[j])}
    assert spans.overlaps.tolist() == [sum(i in pair for pair in pairs(spans)) for i in range(8)]


def test_null_is_a_partition_behind_all_others() -> None:
    by_part = {"keys": (2,), "sources": frozenset({2})}
    spans = ranges({"2": stats(None, None, 10)}, {"2": stats("a", "z")}, {"2": stats("y", "y", 2)}, **by_part)
    assert spans.unknown.tolist() == [False, False, False]
    assert pairs(spans) == {(1, 2)}
    assert spans.order.tolist() == [1, 2, 0]


def test_without_keys_nothing_overlaps() -> None:
    assert ranges({"1": stats(0, 9)}, {"1": stats(0, 9)}, keys=()).overlaps.tolist() == [0, 0]
    assert ranges({"1": stats(0, 9)}, keys=(77,)).mean_overlaps() == 0.0
    assert ranges(keys=(1,)).components() == []
