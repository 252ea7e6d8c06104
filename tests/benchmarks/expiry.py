"""Compare the expiry of snapshots with Iceberg's Spark action: `python -m tests.benchmarks.expiry`.

A thousand appends of 1,500 files leave a thousand snapshots that share a thousand manifests; all but the last expire.
The table has three shapes: `shared` is that one, so that only manifest lists expire. In `deleted`, a hundredth of the
partitions is deleted, so that their manifests expire with their data files. In `rewritten`, a tenth is deleted and all
manifests are rewritten afterwards, so that the thousand manifests expire too. Data files do not exist: to delete one
costs a request that finds nothing.
Each run starts from the same files. Print a table and write build/bench/expiry-<time>.json.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import timed
from tests.benchmarks.workload import BUILD, generate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

SHAPES = ("shared", "deleted", "rewritten")
_FILES_PER_SNAPSHOT = 1_500
_DELETED_SHARES = {"deleted": 100, "rewritten": 10}
_LATER_MS = 4_000_000_000_000

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Expiry:
    """A run of a contender.

    Attributes:
        entries: the data files that were ever appended.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
        workers: the peak of the sum over all Python workers, in MiB.
        heap_after: the JVM's heap after a garbage collection, in MiB.
    """

    contender: str
    shape: str
    snapshots: int
    entries: int
    deleted: int
    seconds: float
    driver_python: int
    workers: int
    heap_after: int


@click.command()
@click.option("--snapshots", type=int, default=1_000, show_default=True, help="Appends of 1,500 files each.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Runs of each contender; the JSON has all.")
def main(snapshots: int, heap: str, repeats: int) -> None:
    """Expire the snapshots of a table of 1.5 million files with Iceberg's Spark action and with sparkmeta."""
    folder = BUILD / "expiry" / str(snapshots)
    if not (folder / "states.txt").exists():
        sizes = (snapshots, _FILES_PER_SNAPSHOT - 1)
        generate(folder, folder / "states.txt", 2, sizes, "none", 128 << 20)
    spark = bench_session(heap)
    contenders = {"Iceberg expireSnapshots": _by_java, "sparkmeta expire_snapshots": _by_spark}
    results: list[Expiry] = []
    table = folder / "table"
    for shape in SHAPES:
        with restored(table / "metadata"):
            if shape != "shared":
                _delete(spark, table, max(1, snapshots // _DELETED_SHARES[shape]))
            if shape == "rewritten":
                _actions(spark).rewriteManifests(_java_table(spark, table)).execute()
            # The first run of each warms up.
            for repeat in range(repeats + 1):
                for name, expire in contenders.items():
                    with restored(table / "metadata"):
                        run = _measured(spark, name, shape, snapshots, partial(expire, spark, table))
                    console.print(f"{name}, {shape}: {run.seconds:.1f} s")
                    results += [run] if repeat else []
    _show(results)
    console.print(f"written: {write_runs(BUILD, 'expiry', results)}")


@contextmanager
def restored(folder: Path) -> Iterator[None]:
    """Put the files of a folder back on leaving the context."""
    links = folder.with_name(f"{folder.name}-{uuid.uuid4()}")
    shutil.copytree(folder, links, copy_function=os.link)
    try:
        yield
    finally:
        shutil.rmtree(folder)
        links.rename(folder)


def _java_table(spark: SparkSession, table: Path) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration()).load(table.as_uri())  # type: ignore[attr-defined]


def _actions(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get()


def _delete(spark: SparkSession, table: Path, partitions: int) -> None:
    jvm: Any = spark._jvm
    column = jvm.org.apache.iceberg.expressions.Expressions.ref("ss_ticket_number")
    gone = jvm.org.apache.iceberg.expressions.Expressions.lessThan(column, partitions)
    _java_table(spark, table).newDelete().deleteFromRowFilter(gone).commit()


def _by_java(spark: SparkSession, table: Path) -> int:
    action = _actions(spark).expireSnapshots(_java_table(spark, table)).expireOlderThan(_LATER_MS).retainLast(1)
    result = action.execute()
    kinds = ("DataFiles", "Manifests", "ManifestLists")
    return sum(getattr(result, f"deleted{kind}Count")() for kind in kinds)


def _by_spark(spark: SparkSession, table: Path) -> int:
    plan = sm.load_table(table.as_uri(), spark=spark).maintenance.expire_snapshots(older_than=_LATER_MS)
    plan.commit()
    return sum(plan.result()["committed"]["files"].values())


def _measured(spark: SparkSession, name: str, shape: str, snapshots: int, expire: Callable[[], int]) -> Expiry:
    spark._jvm.System.gc()  # type: ignore[union-attr]
    deleted: list[int] = []
    with Workers() as workers:
        seconds = timed(lambda: deleted.append(expire()))
    sizes = peak_resident_set(), workers.together, heap_use(spark)[1]
    entries = snapshots * _FILES_PER_SNAPSHOT
    return Expiry(name, shape, snapshots, entries, *deleted, seconds, *(size // MIB for size in sizes))


def _show(results: list[Expiry]) -> None:
    shown = RichTable(title=f"{results[0].snapshots:,} snapshots, {results[0].entries:,} files", title_justify="left")
    for name in ("contender", "shape", "deleted files", "seconds", "times faster", "driver MiB", "workers MiB"):
        shown.add_column(name, justify="left" if name in ("contender", "shape") else "right")
    java = {run.shape: run.seconds for run in results if run.contender.startswith("Iceberg")}
    for run in results:
        times = f"{java[run.shape] / run.seconds:.1f}x"
        memory = f"{run.driver_python}", f"{run.workers}"
        shown.add_row(run.contender, run.shape, f"{run.deleted:,}", f"{run.seconds:.1f}", times, *memory)
    console.print(shown)


if __name__ == "__main__":
    main()
