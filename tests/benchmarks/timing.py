"""Time contenders in rounds, in which each runs once, so that a slow minute of the machine affects all of them."""

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
    """Return the seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def consume(frame: DataFrame) -> None:
    """Compute every column of every row and discard the rows."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class Plan:
    """A contender's plan of a query: the seconds of each measured run, and the totals of the plan."""

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
            "seconds": [round(run, 4) for run in self.seconds],
            "median": round(self.median, 4),
            "totals": self.totals._asdict(),
        }


class UnequalPlansError(AssertionError):
    """Two contenders planned different files."""


@dataclass
class Clock:
    """The runs of a query by one contender.

    Attributes:
        seconds: Seconds of each measured run.
        first: Seconds of the first run, which computes the totals and is not measured.
    """

    contender: Contender
    location: str
    query: Query
    seconds: list[float] = field(default_factory=list)
    first: float = 0.0

    def check(self) -> Totals:
        """Run the query for the first time and return its totals."""
        start = time.perf_counter()
        totals = self.contender.totals(self.location, self.query)
        self.first = time.perf_counter() - start
        return totals

    def measure(self) -> None:
        start = time.perf_counter()
        self.contender.plan(self.location, self.query)
        self.seconds.append(time.perf_counter() - start)

    def allowed_runs(self, repeats: int, budget: float) -> int:
        """Return the number of measured runs: the contender's limit at most, one if another would exceed the budget."""
        spent = sum(self.seconds) + (self.seconds[-1] if self.seconds else 0.0)
        return min(self.contender.max_repeats or repeats, repeats if spent <= budget else 1)


@dataclass(frozen=True)
class Timer:
    """Times contenders. The JVM's heap is collected before every measured run.

    Attributes:
        warmups: Runs of each plan before the measured runs.
        repeats: Measured runs of each plan.
        budget: Seconds that a contender's measured runs of a query may take in total. One run is always measured.
            Plans that take longer than a quarter of the budget have no warm-ups.
    """

    spark: SparkSession
    warmups: int
    repeats: int
    budget: float = 60.0

    def compare(self, contenders: Sequence[Contender], workload: Workload, location: str, query: Query) -> list[Plan]:
        """Return a plan of each contender.

        Contenders that keep nothing take turns. The others run alone, so that what they keep does not fill the heap of
        the next contender.

        Raises:
            UnequalPlansError: A contender did not plan the files that the table was written with.
        """
        plans = self._take_turns([other for other in contenders if not other.keeps], workload, location, query)
        long = {plan.contender for plan in plans if plan.median > self.budget / 4}
        for keeper in [other for other in contenders if other.keeps and other.saves_opening not in long]:
            plans += self._take_turns([keeper], workload, location, query)
            keeper.release()
        require_equal({plan.contender: plan.totals for plan in plans}, workload, query)
        return plans

    def _take_turns(
        self, contenders: Sequence[Contender], workload: Workload, location: str, query: Query
    ) -> list[Plan]:
        clocks = [Clock(contender, location, query) for contender in contenders]
        totals = {clock.contender.name: clock.check() for clock in clocks}
        require_equal(totals, workload, query)
        for clock in clocks:
            self._warm_up(clock)
        for repeat in range(self.repeats):
            for clock in clocks:
                if repeat < clock.allowed_runs(self.repeats, self.budget):
                    self._collect()
                    clock.measure()
        seconds = {clock.contender.name: tuple(clock.seconds) for clock in clocks}
        return [Plan(workload, query, name, seconds[name], totals[name]) for name in totals]

    def _warm_up(self, clock: Clock) -> None:
        if clock.contender.max_repeats is None and clock.first < self.budget / 4:
            for _ in range(self.warmups):
                clock.contender.plan(clock.location, clock.query)

    def _collect(self) -> None:
        jvm: Any = self.spark._jvm
        jvm.System.gc()
        gc.collect()


def require_equal(totals: dict[str, Totals], workload: Workload, query: Query) -> None:
    """Raise UnequalPlansError unless all totals are equal and match the files that the table was written with."""
    expected = workload.expected(query)
    wrong = {name: planned for name, planned in totals.items() if (planned.files, planned.deletes) != expected}
    if wrong or len(set(totals.values())) > 1:
        seen = "; ".join(f"{name}: {tuple(planned)}" for name, planned in totals.items())
        raise UnequalPlansError(
            f"{workload.name}, {query.name}: expected (files, deletes) {expected}; "
            f"planned (files, deletes, records, deleted records) {seen}"
        )
