"""Warm-ups, then rounds in which every contender runs once, so that a machine's slow minute meets them all."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tests.benchmarks.contenders import Contender, Totals
    from tests.benchmarks.workload import Query, Workload


@dataclass(frozen=True)
class Plan:
    """What one contender took for one query on one table: seconds of the measured runs, and the plan's totals."""

    workload: Workload
    query: Query
    contender: str
    seconds: tuple[float, ...]
    totals: Totals

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.workload.name,
            "files": self.workload.files,
            "query": self.query.name,
            "contender": self.contender,
            "seconds": [round(one, 4) for one in self.seconds],
            "median": round(self.median, 4),
            "totals": self.totals._asdict(),
        }


class UnequalPlansError(AssertionError):
    """Two contenders planned different files."""


@dataclass(frozen=True)
class Timer:
    """Times contenders; the heap is collected before every measured run."""

    spark: SparkSession
    warmups: int
    repeats: int

    def compare(self, contenders: Sequence[Contender], workload: Workload, location: str, query: Query) -> list[Plan]:
        """One plan a contender. Raises UnequalPlansError unless all of them plan what the table was made with."""
        totals = {one.name: one.totals(location, query) for one in contenders}
        require_equal(totals, workload, query)
        for one in contenders:
            for _ in range(self.warmups if one.max_repeats is None else 0):
                one.plan(location, query)
        seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
        for repeat in range(self.repeats):
            for one in contenders:
                if repeat < (one.max_repeats or self.repeats):
                    seconds[one.name].append(self._time(one, location, query))
        return [Plan(workload, query, one.name, tuple(seconds[one.name]), totals[one.name]) for one in contenders]

    def _time(self, contender: Contender, location: str, query: Query) -> float:
        jvm: Any = self.spark._jvm
        jvm.System.gc()
        gc.collect()
        start = time.perf_counter()
        contender.plan(location, query)
        return time.perf_counter() - start


def require_equal(totals: dict[str, Totals], workload: Workload, query: Query) -> None:
    """Raises UnequalPlansError unless all totals are equal and what the table was made with."""
    expected = workload.expected(query)
    wrong = {name: one for name, one in totals.items() if (one.files, one.deletes) != expected}
    if wrong or len(set(totals.values())) > 1:
        seen = "; ".join(f"{name}: {tuple(one)}" for name, one in totals.items())
        raise UnequalPlansError(
            f"{workload.name}, {query.name}: expected (files, deletes) {expected}; "
            f"planned (files, deletes, records, deleted records) {seen}"
        )
