"""`python -m tests.benchmarks.limits`: what a commit and a plan take with how much in the root.

The measurement behind the defaults of `write.tree.flush-data-files` and `write.tree.inline-vectors-bytes`: a tree of
the workload's files is given a root with so many data files in it, then one that masks so many entries of the leaves,
by inline vectors and by vectors in a Puffin file. Each is committed to by appends of one file, and planned. Prints two
tables, writes build/bench/limits-<time>.json.
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
# Nothing leaves the root.
_ALL = "1000000000"
KEPT = dict.fromkeys(("write.tree.direct-files", "write.tree.flush-data-files"), _ALL)
INLINE = dict.fromkeys(("write.tree.inline-vector-bytes", "write.tree.inline-vectors-bytes"), _ALL)
IN_PUFFIN = {"write.tree.inline-vectors-bytes": "0"}

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass(frozen=True)
class Measured:
    """A tree whose root holds `files` data files, and masks `masked` entries of leaves by vectors of `kind`.

    root_bytes: of the root before the commits. commit_bytes: of all that an append of one file writes. Seconds are
    medians: of the append, of a plan of few files, of one of all.
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
@click.option("--heap", default="4g", show_default=True, help="Of the one JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=5, show_default=True, help="Commits and plans of each; after two more.")
def main(scale: float, heap: str, repeats: int) -> None:
    """Commit to trees with more and more in the root, and plan them."""
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
        table = with_properties(spark, location, folder, KEPT)
        if count:
            append(table, others(files, count, "carried"))
        results.append(measured(table, folder, files, (count, 0, ""), repeats))
    for count in MASKED:
        for kind, properties in kinds:
            table = with_properties(spark, location, folder, KEPT | properties)
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
    """Data files like the table's own, at other paths."""
    return files.limit(count).withColumn("file_path", F.concat("file_path", F.lit(f".{name}")))


def measured(table: sm.Table, folder: Path, files: DataFrame, what: tuple[int, int, str], repeats: int) -> Measured:
    """Plans first, then commits. what: data files in the root, masked entries, and the vectors' kind."""
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
    """Two tables: by files in the root, by masked entries."""
    for title, rows in (
        ("data files in the root", [one for one in results if not one.kind]),
        ("masked entries of leaves", [one for one in results if one.kind]),
    ):
        shown = RichTable(title=title, title_justify="left")
        for name in ("count", "vectors", "root bytes", "bytes of a commit", "commit", "plan of few files", "of all"):
            shown.add_column(name, justify="right")
        for one in rows:
            counts = f"{one.masked if one.kind else one.files:,}", one.kind, f"{one.root_bytes:,}"
            times = (f"{each:.2f} s" for each in (one.commit_seconds, one.needle_seconds, one.plan_seconds))
            shown.add_row(*counts, f"{one.commit_bytes:,}", *times)
        console.print(shown)


if __name__ == "__main__":
    main()
