"""A checked run, warm-ups, then rounds in which every contender runs once: a machine's slow minute meets them all."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.benchmarks.contenders import Contender, Totals
    from tests.benchmarks.workload import Query, Workload


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def consume(frame: DataFrame) -> None:
    """Every column of every row, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


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


@dataclass
class Clock:
    """One contender's runs of one query."""

    contender: Contender
    location: str
    query: Query
    seconds: list[float] = field(default_factory=list)
    first: float = 0.0

    def check(self) -> Totals:
        """The plan's totals; its time, with all that a first run pays for, is kept apart."""
        start = time.perf_counter()
        totals = self.contender.totals(self.location, self.query)
        self.first = time.perf_counter() - start
        return totals

    def measure(self) -> None:
        start = time.perf_counter()
        self.contender.plan(self.location, self.query)
        self.seconds.append(time.perf_counter() - start)

    def runs_wanted(self, repeats: int, budget: float) -> int:
        """No more than the contender's own limit, and but one where the next would exceed the budget."""
        spent = sum(self.seconds) + (self.seconds[-1] if self.seconds else 0.0)
        return min(self.contender.max_repeats or repeats, repeats if spent <= budget else 1)


@dataclass(frozen=True)
class Timer:
    """Times contenders; the heap is collected before every measured run.

    budget: seconds that one contender's measured runs of one query may take together. One run is measured whatever it
    takes, and plans longer than a quarter of the budget have no warm-up but the run that is checked.
    """

    spark: SparkSession
    warmups: int
    repeats: int
    budget: float = 60.0

    def compare(self, contenders: Sequence[Contender], workload: Workload, location: str, query: Query) -> list[Plan]:
        """One plan a contender. Raises UnequalPlansError unless all of them plan what the table was made with.

        Contenders that keep nothing take turns; then each that keeps something has its runs alone, so that what it
        keeps burdens nobody else's heap.
        """
        plans = self._take_turns([one for one in contenders if not one.keeps], workload, location, query)
        long = {plan.contender for plan in plans if plan.median > self.budget / 4}
        for keeper in [one for one in contenders if one.keeps and one.saves_opening not in long]:
            plans += self._take_turns([keeper], workload, location, query)
            keeper.release()
        require_equal({plan.contender: plan.totals for plan in plans}, workload, query)
        return plans

    def _take_turns(
        self, contenders: Sequence[Contender], workload: Workload, location: str, query: Query
    ) -> list[Plan]:
        clocks = [Clock(one, location, query) for one in contenders]
        totals = [clock.check() for clock in clocks]
        require_equal({clock.contender.name: one for clock, one in zip(clocks, totals, strict=True)}, workload, query)
        for clock in clocks:
            self._warm_up(clock)
        for repeat in range(self.repeats):
            for clock in clocks:
                if repeat < clock.runs_wanted(self.repeats, self.budget):
                    self._collect()
                    clock.measure()
        return [
            Plan(workload, query, clock.contender.name, tuple(clock.seconds), one)
            for clock, one in zip(clocks, totals, strict=True)
        ]

    def _warm_up(self, clock: Clock) -> None:
        if clock.contender.max_repeats is None and clock.first < self.budget / 4:
            for _ in range(self.warmups):
                clock.contender.plan(clock.location, clock.query)

    def _collect(self) -> None:
        jvm: Any = self.spark._jvm
        jvm.System.gc()
        gc.collect()


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
