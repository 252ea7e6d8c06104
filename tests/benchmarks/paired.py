"""`python -m tests.benchmarks.paired CHECKOUT`: plans of another checkout and of this one, in turns.

Each checkout plans in a process of its own, with its own Spark. Both plan the same tables of `workload`. The processes
take turns, so that a slow minute of the machine slows both.
"""

from __future__ import annotations

import json
import os
import runpy
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Printed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.contenders import Totals
    from tests.benchmarks.workload import Query, Workload

VARIANTS = ("cold", "cached", "tree")
LONG = 2.0
"""Seconds from which a plan is repeated two times less, without further warm-up."""


@dataclass(frozen=True)
class Pair:
    """Seconds of one plan by both checkouts, one pair for each round."""

    plan: str
    other: tuple[float, ...]
    this: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast this checkout plans as the other one, by their medians."""
        return statistics.median(self.other) / statistics.median(self.this)


class Planner:
    """A process that plans with the package of a checkout.

    Args:
        checkout: the folder of the checkout.
        heap: of its JVM, such as `4g`.
        patch: a Python file to run first in the process, to plan with something replaced.
    """

    def __init__(self, checkout: Path, heap: str, patch: Path | None) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", heap, *([str(patch)] if patch else [])]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self.process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cache = str(checkout / "build" / "bench" / f"cache-{self.process.pid}")

    def ask(self, action: str, variant: str, location: str, tree: str, query: Query) -> Any:
        """Return the seconds of a plan (`measure`), or its totals (`check`)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = [action, variant, location, tree, self.cache, query.row_filter]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise SystemExit(f"the planner of {self.process.args} has ended")


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--scale", default=1.0, help="1 is 1.5 million data files.")
@click.option("--warmups", default=3, help="Runs of each plan before it is measured.")
@click.option("--repeats", default=5, help="Measured runs of each plan; the median counts.")
@click.option("--heap", default="4g", help="Of each JVM.")
@click.option("--only", default="", help="Measure only plans whose name contains this text.")
@click.option(
    "--patch", type=click.Path(exists=True, path_type=Path), help="A Python file that the other checkout runs first."
)
def main(other: Path, scale: float, warmups: int, repeats: int, heap: str, only: str, patch: Path | None) -> None:
    """Compare the speed of plans between the checkout in the folder OTHER and this one."""
    from tests.benchmarks.workload import QUERIES, ROOT, WORKLOADS, Workload

    console = Console(width=None if sys.stdout.isatty() else 150)
    workloads = [Workload(version, deletes, scale) for version, deletes in WORKLOADS]
    tables = _tables([workload for workload in workloads if _selected(only, workload)], heap)
    planners = Planner(other.resolve(), heap, patch), Planner(ROOT, heap, None)
    pairs: list[Pair] = []
    for (workload, location, tree), query, variant in (
        (table, query, variant) for table in tables for query in QUERIES for variant in VARIANTS
    ):
        name = f"{workload.name}, {query.name}, {variant}"
        if only in name:
            pairs.append(_measure(planners, name, (variant, location, tree, query), warmups, repeats))
            console.print(f"{pairs[-1].ratio:.2f}x  {name}: {_seconds(pairs[-1].other)} -> {_seconds(pairs[-1].this)}")
    printed = Printed(title="Speed as a multiple of the other checkout's", title_justify="left")
    for column in ("variant", "geometric mean", "slowest", "plan"):
        printed.add_column(column)
    for variant in (*VARIANTS, ""):
        if group := [pair for pair in pairs if pair.plan.endswith(variant)]:
            slowest = min(group, key=lambda pair: pair.ratio)
            mean = statistics.geometric_mean(pair.ratio for pair in group)
            printed.add_row(variant or "all", f"{mean:.3f}x", f"{slowest.ratio:.2f}x", slowest.plan)
    console.print(printed)


def _selected(only: str, workload: Workload) -> bool:
    from tests.benchmarks.workload import QUERIES

    return any(only in f"{workload.name}, {query.name}, {variant}" for query in QUERIES for variant in VARIANTS)


def _tables(workloads: list[Workload], heap: str) -> list[tuple[Workload, str, str]]:
    """Return the workloads with the metadata JSON of their tables and of their trees."""
    from tests.benchmarks.session import bench_session
    from tests.benchmarks.trees import tree_location
    from tests.benchmarks.workload import metadata_location

    spark = bench_session(heap)
    tables = [(workload, metadata_location(workload), tree_location(spark, workload)) for workload in workloads]
    spark.stop()
    return tables


def _measure(
    planners: tuple[Planner, Planner], name: str, plan: tuple[str, str, str, Query], warmups: int, repeats: int
) -> Pair:
    totals = [planner.ask("check", *plan) for planner in planners]
    if totals[0] != totals[1]:
        raise SystemExit(f"{name}: the other checkout plans {totals[0]}, this one {totals[1]}")
    first = max(planner.ask("measure", *plan) for planner in planners)
    if first > LONG:
        warmups, repeats = 1, max(repeats - 2, 1)
    for _ in range(warmups - 1):
        for planner in planners:
            planner.ask("measure", *plan)
    seconds: tuple[list[float], list[float]] = [], []
    for repeat in range(repeats):
        for side in _turns(repeat):
            seconds[side].append(planners[side].ask("measure", *plan))
    return Pair(name, tuple(seconds[0]), tuple(seconds[1]))


def _turns(repeat: int) -> Iterator[int]:
    yield from (0, 1) if repeat % 2 == 0 else (1, 0)


def _seconds(seconds: tuple[float, ...]) -> str:
    return f"{statistics.median(seconds):.2f} s"


def serve(heap: str, patch: str | None) -> None:
    """Answer requests of standard input, with the package and the contenders of the checkout in `PYTHONPATH`."""
    from tests.benchmarks.session import bench_session

    if patch is not None:
        runpy.run_path(patch)
    spark = bench_session(heap)
    for line in sys.stdin:
        sys.stdout.write(f"answer {json.dumps(_answer(spark, *json.loads(line)))}\n")
        sys.stdout.flush()


def _answer(
    spark: Any, action: str, variant: str, location: str, tree: str, cache: str, row_filter: str
) -> float | Totals:
    from tests.benchmarks import contenders
    from tests.benchmarks.timing import timed
    from tests.benchmarks.workload import Query

    query = Query("", row_filter, "")
    if variant == "cold":
        planner = contenders.Sparkmeta(spark)
    elif variant == "cached":
        planner = contenders.SparkmetaCached(spark, cache)
    else:
        planner = contenders.SparkmetaTree(spark, {location: tree})
    if action == "check":
        return planner.totals(location, query)
    spark._jvm.System.gc()
    return timed(lambda: planner.plan(location, query))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.path.pop(0)  # this folder, or Python would import `session` from it
        serve(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    else:
        main()
