"""Convert Iceberg's manifests to a tree and back, beside its Spark action: `python -m tests.benchmarks.conversion`.

The table is the workload's, of format version 2 with 120 Avro manifests. In turns, on a clone of it each time:
Iceberg's `rewrite_manifests`; `upgrade(4, compact=True)`; an append of the table to a new tree. Then the converted tree
is downgraded, and once the table's files are appended to another tree as a DataFrame. Full and filtered plans of the
converted tree and of that other tree follow in turns. Print tables and write build/bench/conversion-<time>.json.
"""

from __future__ import annotations

import gc
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.deletes import cloned
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.rows import cpu_seconds
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import consume
from tests.benchmarks.workload import BUILD, QUERIES, Workload, metadata_location
from tests.local_files import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA, CONVERT, APPEND = "Iceberg rewrite_manifests", "upgrade(4, compact=True)", "append of the table"
DOWNGRADE, BY_ROWS = "downgrade(3)", "append of a DataFrame"
CONVERTED, OTHER = "plans of the converted tree", "plans of the tree of a DataFrame"

FOLDER = BUILD / "conversion"

console = Console(width=None if sys.stdout.isatty() else 150)

# What is measured, and the folder of the table that it changes.
Prepared = tuple[Callable[[], Any], Path]


@dataclass
class Run:
    """A run.

    Attributes:
        files: the number of data files.
        cpu: the seconds of CPU of the driver, the JVM and the workers.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
        workers: the peak of the sum over all Python workers, in MiB.
        heap_after: the JVM's heap after a garbage collection, in MiB.
    """

    name: str
    files: int
    seconds: float
    cpu: float
    driver_python: int
    workers: int
    heap_after: int


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="Of the workload: 1 is 1.5 million files.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=2, show_default=True, help="Runs after one that warms up.")
@click.option("--no-java", is_flag=True, help="Leave out Iceberg, to look at the memory of sparkmeta's driver.")
@click.option("--no-rows", is_flag=True, help="Leave out the append of a DataFrame, which takes minutes.")
def main(scale: float, heap: str, repeats: int, no_java: bool, no_rows: bool) -> None:
    """Convert the manifests of a table of 1.5 million files with Iceberg's Spark action and with sparkmeta."""
    workload = Workload(2, "none", scale)
    location = metadata_location(workload)
    spark = bench_session(heap)
    shutil.rmtree(FOLDER, ignore_errors=True)
    contenders = {JAVA: _by_java, CONVERT: _conversion, APPEND: _append}
    runs: list[Run] = []
    converted = Path()
    for repeat in range(repeats + 1):
        for name in [*contenders][1 if no_java else 0 :]:
            run, folder = measured(spark, name, workload, contenders[name](spark, location))
            runs += [run] if repeat else []
            # The last conversion is planned and downgraded.
            if name == CONVERT and repeat == repeats:
                converted = folder
            else:
                shutil.rmtree(folder)
    trees = {CONVERTED: converted}
    if not no_rows:
        run, trees[OTHER] = measured(spark, BY_ROWS, workload, _append(spark, location, by_rows=True))
        runs.append(run)
    runs += _plans(spark, trees, workload, repeats)
    runs.append(measured(spark, DOWNGRADE, workload, _downgrade(spark, converted))[0])
    _require_all_files(spark, [*trees.values()], workload)
    shutil.rmtree(FOLDER)
    show(runs)
    console.print(f"written: {write_runs(BUILD, 'conversion', runs)}")


def _by_java(spark: SparkSession, location: str) -> Prepared:
    folder = cloned(location, FOLDER / str(uuid.uuid4()))
    jvm: Any = spark._jvm
    table = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration()).load(folder.as_uri())  # type: ignore[attr-defined]
    action = jvm.org.apache.iceberg.spark.actions.SparkActions.get().rewriteManifests(table)
    return action.execute, folder


def _conversion(spark: SparkSession, location: str) -> Prepared:
    folder = cloned(location, FOLDER / str(uuid.uuid4()))
    return lambda: _opened(spark, folder).maintenance.upgrade(4, compact=True).commit(), folder


def _append(spark: SparkSession, location: str, *, by_rows: bool = False) -> Prepared:
    source = sm.load_table(location, spark=spark)
    catalog = sm.load_catalog("bench", type="hadoop", warehouse=(FOLDER / str(uuid.uuid4())).as_uri())
    table = catalog.create_table("db.t", source.schema(), partition_spec=source.spec(), format_version=4, spark=spark)

    def append() -> None:
        with table.transaction() as tx:
            tx.update_snapshot().append(source.inspect.data_files() if by_rows else source)

    return append, Path(local_path(table.location()))


def _downgrade(spark: SparkSession, folder: Path) -> Prepared:
    return lambda: _opened(spark, folder).maintenance.downgrade(3).commit(), folder


def _opened(spark: SparkSession, folder: Path) -> sm.Table:
    return sm.load_table(folder.as_uri(), spark=spark)


def _plans(spark: SparkSession, trees: dict[str, Path], workload: Workload, repeats: int) -> list[Run]:
    """Plan trees in turns, each query after one run that warms up."""
    runs: list[Run] = []
    for query in QUERIES:
        for repeat in range(repeats + 1):
            for name, folder in trees.items():

                def plan(folder: Path = folder, row_filter: str = query.row_filter) -> None:
                    consume(_opened(spark, folder).scan(row_filter).plan_files())

                run, _ = measured(spark, f"{name}: {query.name}", workload, (plan, folder))
                runs += [run] if repeat else []
    return runs


def _require_all_files(spark: SparkSession, folders: list[Path], workload: Workload) -> None:
    for folder in folders:
        for query in QUERIES:
            count, expected = (
                _opened(spark, folder).scan(query.row_filter).plan_files().count(),
                workload.expected(query)[0],
            )
            assert count == expected, (folder, query.name, count, expected)


def measured(spark: SparkSession, name: str, workload: Workload, prepared: Prepared) -> tuple[Run, Path]:
    """Return the figures of a run, and the folder of its table."""
    work, folder = prepared
    gc.collect()
    spark._jvm.System.gc()  # type: ignore[union-attr]
    with Workers() as workers:
        cpu, started = cpu_seconds(), time.perf_counter()
        work()
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    sizes = peak_resident_set(), workers.together, heap_use(spark)[1]
    console.print(f"{name}: {seconds:.1f} s, {cpu:.1f} s CPU")
    return Run(name, workload.files, seconds, cpu, *(size // MIB for size in sizes)), folder


def show(runs: list[Run]) -> None:
    """Print the best time, the median CPU and the largest memory of each name's runs."""
    shown = RichTable(title=f"{runs[0].files:,} files", title_justify="left")
    for name in ("", "best, s", "median CPU, s", "driver MiB", "workers MiB", "heap after, MiB"):
        shown.add_column(name, justify="right" if name else "left")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    for name, group in groups.items():
        sizes = (f"{max(getattr(run, size) for run in group)}" for size in ("driver_python", "workers", "heap_after"))
        seconds = f"{min(run.seconds for run in group):.2f}", f"{median(run.cpu for run in group):.1f}"
        shown.add_row(name, *seconds, *sizes)
    console.print(shown)


if __name__ == "__main__":
    main()
