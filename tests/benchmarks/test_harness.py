"""The benchmark's arithmetic. A run must fail if contenders disagree."""

from __future__ import annotations

import pytest
from rich.console import Console

from tests.benchmarks.contenders import Pyiceberg, Totals
from tests.benchmarks.report import plan_table
from tests.benchmarks.timing import Clock, Plan, UnequalPlansError, require_equal
from tests.benchmarks.workload import QUERIES, Workload

NO_FILTER, MIN_MAX, PARTITION, BOTH = QUERIES
DVS = Workload(3, "dv", 0.001)
POSITION_DELETES = Workload(2, "partition", 0.001)


def test_expected_counts_files_and_their_deletes() -> None:
    assert [DVS.expected(query) for query in QUERIES] == [(1530, 1500), (30, 0), (51, 50), (1, 0)]
    assert [POSITION_DELETES.expected(query)[1] for query in QUERIES] == [76500, 1500, 2550, 50]
    assert Workload(2, "none", 1.0).expected(NO_FILTER) == (1_500_030, 0)


def test_equal_plans_pass() -> None:
    require_equal({"a": Totals(30, 0, 7, 0), "b": Totals(30, 0, 7, 0)}, DVS, MIN_MAX)


@pytest.mark.parametrize(
    "totals",
    [
        pytest.param({"a": Totals(30, 0, 7, 0), "b": Totals(30, 0, 8, 0)}, id="other records"),
        pytest.param({"a": Totals(30, 0, 7, 0), "b": Totals(29, 0, 7, 0)}, id="one misses a file"),
        pytest.param({"a": Totals(29, 0, 7, 0), "b": Totals(29, 0, 7, 0)}, id="all miss a file"),
        pytest.param({"a": Totals(30, 1, 7, 9)}, id="a delete too many"),
    ],
)
def test_unequal_plans_raise(totals: dict[str, Totals]) -> None:
    with pytest.raises(UnequalPlansError, match="min/max"):
        require_equal(totals, DVS, MIN_MAX)


def test_table_shows_medians_and_how_many_times_ours_a_peer_takes() -> None:
    totals = Totals(1, 0, 7, 0)
    plans = [
        Plan(DVS, BOTH, "Iceberg Java, local", (4.0, 1.0, 3.0), totals),
        Plan(DVS, BOTH, "sparkmeta", (1.5, 1.0, 9.0), totals),
    ]
    with (console := Console(width=120)).capture() as captured:
        console.print(plan_table("a table", plans))
    row = next(line for line in captured.get().splitlines() if "partition, min/max" in line)
    assert "3.000 (2x)" in row
    assert "1.500 " in row


def test_json_keeps_every_measurement() -> None:
    plan = Plan(DVS, PARTITION, "pyiceberg", (2.0, 1.0), Totals(51, 50, 7, 3)).to_json()
    assert plan["seconds"] == [2.0, 1.0]
    assert (plan["median"], plan["files"], plan["totals"]["deletes"]) == (1.5, 1530, 50)


@pytest.mark.parametrize(
    ("seconds", "limit", "expected"),
    [([], None, 3), ([19.0], None, 3), ([31.0], None, 1), ([20.0], 2, 2), ([31.0], 2, 1)],
)
def test_long_plans_are_measured_less_often(seconds: list[float], limit: int | None, expected: int) -> None:
    planner = Pyiceberg()
    planner.max_repeats = limit
    assert Clock(planner, "", BOTH, seconds).allowed_runs(repeats=3, budget=60.0) == expected
