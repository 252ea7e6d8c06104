"""Compare the examination of a table's health with two full plans of it: `python -m tests.benchmarks.health`.

The tables are the workload's, and trees of the same files. Runs alternate: a plan, all of whose columns are written to
Spark's `noop` sink, then `health()` with its page. Both open the table anew. Print a table and write
build/bench/health-<time>.json.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import timed
from tests.benchmarks.trees import tree_location
from tests.benchmarks.workload import BUILD, WORKLOADS, Workload, metadata_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Examined:
    """The runs on a table.

    Attributes:
        plans: seconds of full plans.
        healths: seconds of examinations.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
        workers: the peak of the sum over all Python workers during examinations, in MiB.
        heap_after: the JVM's heap after a garbage collection, in MiB.
        page_bytes: the size of the page.
    """

    table: str
    files: int
    plans: list[float]
    healths: list[float]
    driver_python: int
    workers: int
    heap_after: int
    page_bytes: int

    @property
    def ratio(self) -> float:
        """The median of the examinations, in plans."""
        return median(self.healths) / median(self.plans)


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="Of the workload: 1 is 1.5 million files.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Runs after one that warms up.")
@click.option("--only", multiple=True, help="Tables whose names contain this text. Repeatable.")
def main(scale: float, heap: str, repeats: int, only: tuple[str, ...]) -> None:
    """Examine the health of tables of 1.5 million files, and plan them."""
    spark = bench_session(heap)
    results = []
    for format_version, deletes in WORKLOADS:
        workload = Workload(format_version, deletes, scale)
        places: dict[str, Callable[[], str]] = {
            f"{workload.name}, list": partial(metadata_location, workload),
            f"{workload.name}, tree": partial(tree_location, spark, workload),
        }
        for name, locate in places.items():
            if not only or any(text in name for text in only):
                results.append(_examined(spark, name, workload.files, locate(), repeats))
                console.print(f"{name}: {results[-1].ratio:.2f} plans")
    _show(results)
    console.print(f"written: {write_runs(BUILD, 'health', results)}")


def _examined(spark: SparkSession, name: str, files: int, location: str, repeats: int) -> Examined:
    plans, healths, pages, worker_bytes = [], [], list[str](), 0
    for repeat in range(repeats + 1):
        spark._jvm.System.gc()  # type: ignore[union-attr]
        plan = timed(lambda: _plan(spark, location))
        spark._jvm.System.gc()  # type: ignore[union-attr]
        with Workers() as workers:
            health = timed(lambda: pages.append(_health(spark, location, files)))
        if repeat:
            plans.append(plan)
            healths.append(health)
            worker_bytes = max(worker_bytes, workers.together)
    sizes = (size // MIB for size in (peak_resident_set(), worker_bytes, heap_use(spark)[1]))
    return Examined(name, files, plans, healths, *sizes, len(pages[-1]))


def _plan(spark: SparkSession, location: str) -> None:
    planned: Any = sm.load_table(location, spark=spark).scan().plan_files()
    planned.write.format("noop").mode("overwrite").save()


def _health(spark: SparkSession, location: str, files: int) -> str:
    report = sm.load_table(location, spark=spark).maintenance.health()
    assert report.entries.files == files, (report.entries.files, files)
    return report.html


def _show(results: list[Examined]) -> None:
    shown = RichTable(title="Health beside full plans", title_justify="left")
    for name in ("table", "files", "plan, s", "health, s", "in plans", "driver MiB", "workers MiB", "page, KiB"):
        shown.add_column(name, justify="left" if name == "table" else "right")
    for run in results:
        seconds = f"{median(run.plans):.1f}", f"{median(run.healths):.1f}", f"{run.ratio:.2f}"
        memory = f"{run.driver_python}", f"{run.workers}", f"{run.page_bytes >> 10}"
        shown.add_row(run.table, f"{run.files:,}", *seconds, *memory)
    console.print(shown)


if __name__ == "__main__":
    main()
