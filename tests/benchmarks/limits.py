"""Measure commits and plans by the size of the root: `python -m tests.benchmarks.limits`.

The defaults of `write.tree.flush-data-files` and `write.tree.inline-vectors-bytes` come from this measurement. It plans
a tree of the workload's files and appends single files to it: with more and more data files in the root, then with more
and more masked entries of the leaves, whose manifest deletion vectors are inline or in a Puffin file. It prints two
tables and writes build/bench/limits-<time>.json.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.deletes import added_files, cloned
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import consume, timed
from tests.benchmarks.trees import tree_location
from tests.benchmarks.workload import BUILD, NEEDLE, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FILES = (0, 500, 1_000, 2_000, 4_000, 16_000)
MASKED = (0, 10_000, 150_000)
_NO_LIMIT = "1000000000"
FILES_IN_ROOT = dict.fromkeys(("write.tree.direct-files", "write.tree.flush-data-files"), _NO_LIMIT)
INLINE = dict.fromkeys(("write.tree.inline-vector-bytes", "write.tree.inline-vectors-bytes"), _NO_LIMIT)
IN_PUFFIN = {"write.tree.inline-vectors-bytes": "0"}

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass(frozen=True)
class Measured:
    """Sizes of one tree, and medians of the seconds of its commits and plans.

    Attributes:
        files: Number of data files in the root.
        masked: Number of entries of leaves that the root masks.
        kind: Where the manifest deletion vectors are: `inline`, `Puffin`, or empty without masks.
        root_bytes: Size of the root before the commits.
        commit_bytes: Bytes of all files that an append of one file writes.
        needle_seconds: Seconds of a plan of a few files.
        plan_seconds: Seconds of a plan of all files.
    """

    files: int
    masked: int
    kind: str
    root_bytes: int
    commit_bytes: int
    commit_seconds: float
    needle_seconds: float
    plan_seconds: float


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=5, show_default=True, help="Commits and plans, after two warm-ups.")
def main(scale: float, heap: str, repeats: int) -> None:
    """Commit to trees with larger and larger roots, and plan them."""
    spark = bench_session(heap)
    location = tree_location(spark, Workload(2, "none", scale))
    folder = BUILD / "limits"
    source = sm.load_table(location, spark=spark)
    files = source.inspect.data_files().limit(max(FILES)).localCheckpoint()
    gone = source.inspect.files(columns=["file_path"]).orderBy(F.xxhash64("file_path")).limit(max(MASKED))
    gone = gone.localCheckpoint()
    kinds: tuple[tuple[str, Mapping[str, str]], ...] = (("inline", INLINE), ("Puffin", IN_PUFFIN))
    results = []
    for count in FILES:
        table = with_properties(spark, location, folder, FILES_IN_ROOT)
        if count:
            append(table, others(files, count, "carried"))
        results.append(measured(table, folder, files, (count, 0, ""), repeats))
    for count in MASKED:
        for kind, properties in kinds:
            table = with_properties(spark, location, folder, FILES_IN_ROOT | properties)
            if count:
                with table.transaction() as tx:
                    tx.update_snapshot().delete(gone.limit(count))
            results.append(measured(table, folder, files, (0, count, kind), repeats))
    shutil.rmtree(folder)
    show(results)
    console.print(f"written: {write_runs(BUILD, 'limits', results)}")


def with_properties(spark: SparkSession, location: str, folder: Path, properties: Mapping[str, str]) -> sm.Table:
    shutil.rmtree(folder, ignore_errors=True)
    table = sm.load_table(f"file://{cloned(location, folder)}", spark=spark)
    with table.transaction() as tx:
        tx.set_properties(dict(properties))
    return table.refresh()


def others(files: DataFrame, count: int, name: str) -> DataFrame:
    """Return `count` of the table's data files with new paths."""
    return files.limit(count).withColumn("file_path", F.concat("file_path", F.lit(f".{name}")))


def measured(table: sm.Table, folder: Path, files: DataFrame, what: tuple[int, int, str], repeats: int) -> Measured:
    """Plan the table, then commit to it. what: `files`, `masked` and `kind` of `Measured`."""
    table = table.refresh()
    assert table.state.tree is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.root_manifest is not None
    root = table.state.files.length(snapshot.root_manifest)
    needle, whole = (plan_seconds(table, row_filter, repeats) for row_filter in (NEEDLE, ""))
    seconds, written = [], {}
    for number in range(repeats + 2):
        commit = partial(append, table, others(files, 1, f"new-{number}"))
        written = added_files(folder, lambda commit=commit: seconds.append(timed(commit)))  # type: ignore[misc]
        table = table.refresh()
    console.print(f"{what[0]:,} files, {what[1]:,} masked {what[2]}", style="dim")
    commit_seconds = statistics.median(seconds[2:])
    return Measured(*what, root, sum(written.values()), commit_seconds, needle, whole)


def append(table: sm.Table, files: DataFrame) -> None:
    with table.transaction() as tx:
        tx.update_snapshot().append(files)


def plan_seconds(table: sm.Table, row_filter: str, repeats: int) -> float:
    def plan() -> None:
        opened = sm.load_table(table.metadata_location, spark=table.state.spark)
        scan = opened.scan(row_filter) if row_filter else opened.scan()
        consume(scan.plan_files())

    return statistics.median([timed(plan) for _ in range(repeats + 2)][2:])


def show(results: list[Measured]) -> None:
    """Print a table by files in the root and a table by masked entries."""
    for title, rows in (
        ("data files in the root", [run for run in results if not run.kind]),
        ("masked entries of leaves", [run for run in results if run.kind]),
    ):
        shown = RichTable(title=title, title_justify="left")
        for name in ("count", "vectors", "root bytes", "bytes of a commit", "commit", "plan of few files", "of all"):
            shown.add_column(name, justify="right")
        for run in rows:
            counts = f"{run.masked if run.kind else run.files:,}", run.kind, f"{run.root_bytes:,}"
            times = (f"{seconds:.2f} s" for seconds in (run.commit_seconds, run.needle_seconds, run.plan_seconds))
            shown.add_row(*counts, f"{run.commit_bytes:,}", *times)
        console.print(shown)


if __name__ == "__main__":
    main()
