"""Compare the compaction of manifests with Iceberg's Spark action: `python -m tests.benchmarks.compaction`.

Rewrite the manifests of a table of format version 2 (see `workload`) with `rewrite_manifests` of Iceberg and sparkmeta,
and the same files as a V4 tree with `compact_manifests`. The tree has two shapes: `in order`, with small leaves that
only need to be merged, and `random`, with files in random order and 5 % of the entries masked, which need to be sorted.
Plan a query for one file before and after. Each run rewrites a new table. Print a table and write
build/bench/compaction-<time>.json.

    python -m tests.benchmarks.compaction --grown 100000000

sorts a masked tree of 100 million entries (see `growth`) by a column that is spread over all leaves, and shows the
memory that this takes.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from sparkmeta.arrow_types import spark_schema
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.leaves import leaf_format
from sparkmeta.commit.new_files import file_rows
from sparkmeta.commit.new_snapshot import LeafCounts, NewSnapshot, SnapshotNames, snapshot_summary
from sparkmeta.commit.next_root import TreeChange
from sparkmeta.entries.tally import Tally
from sparkmeta.manifests.v4.write import write_leaves
from tests.benchmarks.deletes import cloned
from tests.benchmarks.growth import Growth, questions
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import consume, timed
from tests.benchmarks.workload import BUILD, NEEDLE, Workload, metadata_location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

MASKED_SHARE = 20

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Measured:
    """A rewrite of manifests; the leaves and seconds of a plan for one file (`needle`) before and after it."""

    contender: str
    shape: str
    entries: int
    seconds: float
    manifests_before: int
    manifests_after: int
    needle_leaves_before: int | None = None
    needle_leaves_after: int | None = None
    needle_seconds_before: float | None = None
    needle_seconds_after: float | None = None
    memory: Memory | None = None


@dataclass
class Memory:
    """Memory of a rewrite in MiB.

    Attributes:
        driver_python: Peak resident set of the driver's Python process.
        worker: Peak resident set of a single Python worker.
        workers: Peak of the sum over all Python workers.
        heap_peak: Peak of the JVM's heap, which driver and executors share in local mode.
        heap_after: The JVM's heap after a garbage collection.
    """

    driver_python: int
    worker: int
    workers: int
    heap_peak: int
    heap_after: int


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--leaves", type=int, default=1_000, show_default=True, help="Leaves of the tree before the compaction.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Runs of each rewrite; the JSON has all.")
@click.option("--grown", type=int, help="Only sort a tree of this many entries.")
def main(scale: float, leaves: int, heap: str, repeats: int, grown: int | None) -> None:
    """Rewrite the manifests of a table of 1.5 million files with Iceberg's Spark action and with sparkmeta."""
    if grown is not None:
        finish([sort_grown(bench_session(heap), grown)])
        return
    workload = Workload(2, "none", scale)
    location = metadata_location(workload)
    spark = bench_session(heap)
    results: list[Measured] = []
    for _ in range(repeats):
        results.append(rewrite_by_java(spark, location, workload))
        results.append(rewrite_by_spark(spark, location, workload))
        for shape in ("in order", "random"):
            table = tree(spark, location, workload, leaves, shape)
            results.append(compact(table, shape, workload.files, NEEDLE))
    finish(results)


def finish(results: list[Measured]) -> None:
    show(results)
    console.print(f"written: {write_runs(BUILD, 'compaction', results)}")


def rewrite_by_java(spark: SparkSession, location: str, workload: Workload) -> Measured:
    """Run Iceberg's RewriteManifestsSparkAction with its defaults on a clone of the table."""
    folder = cloned(location, BUILD / "clones" / str(uuid.uuid4()))
    jvm: Any = spark._jvm
    table = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration()).load(folder.as_uri())  # type: ignore[attr-defined]
    before = table.currentSnapshot().allManifests(table.io()).size()
    action = jvm.org.apache.iceberg.spark.actions.SparkActions.get().rewriteManifests(table)
    seconds = timed(action.execute)
    table.refresh()
    after = table.currentSnapshot().allManifests(table.io()).size()
    shutil.rmtree(folder)
    return Measured("Iceberg rewrite_manifests", "in order", workload.files, seconds, before, after)


def rewrite_by_spark(spark: SparkSession, location: str, workload: Workload) -> Measured:
    """Run sparkmeta's `rewrite_manifests` with its defaults on a clone of the table."""
    folder = cloned(location, BUILD / "clones" / str(uuid.uuid4()))
    table = sm.load_table(folder.as_uri(), spark=spark)
    before, plan = len(table.state.manifests), table.maintenance.rewrite_manifests()
    with Workers() as workers:
        seconds = timed(plan.commit)
    after = len(plan.commit().state.manifests)
    memory = _memory(spark, workers)
    shutil.rmtree(folder)
    return Measured("sparkmeta rewrite_manifests", "in order", workload.files, seconds, before, after, memory=memory)


def tree(spark: SparkSession, location: str, workload: Workload, leaves: int, shape: str) -> sm.Table:
    """Write the table's files as a new V4 tree."""
    folder = BUILD / "trees" / f"{shape.replace(' ', '-')}-{workload.files}"
    shutil.rmtree(folder, ignore_errors=True)
    source = sm.load_table(location, spark=spark)
    catalog: Any = sm.load_catalog("bench", type="hadoop", warehouse=folder.as_uri())
    table: sm.Table = catalog.create_table("db.t", source.schema(), source.spec(), format_version=4, spark=spark)
    with console.status(f"making a tree of {leaves} leaves, {shape}"):
        table = commit_steps(table, [_Leaves(source, leaves, shape)])
        if shape == "random":
            gone = source.inspect.files().where(F.expr(f"pmod(xxhash64(file_path), {MASKED_SHARE}) = 0"))
            with table.transaction() as tx:
                tx.update_snapshot().delete(gone.select("file_path"))
            table = tx.commit()
    return table


@dataclass
class _Leaves:
    """A commit that adds all files of another table in a given number of leaves."""

    source: sm.Table
    leaves: int
    shape: str
    names: SnapshotNames | None = None

    def apply(self, state: TableState) -> TableMetadata:
        names = SnapshotNames()
        names.next_attempt(state.metadata)
        leaves = self._written(state, names.file("leaf"))
        counts = LeafCounts(created=len(leaves))

        def summary() -> Any:
            return snapshot_summary("append", Tally(), Tally(), state.snapshot, {}, counts)

        return NewSnapshot(state, base_root(state), "main", names).write(TreeChange(added_leaves=leaves), summary)

    def _written(self, state: TableState, name: str) -> pa.Table:
        rows = file_rows(state)
        entries = self.source.inspect.files().mapInArrow(rows.batches, spark_schema(rows.schema))
        if self.shape == "random":
            shuffled = entries.repartition(self.leaves, F.xxhash64("location"))
        else:
            keys = [f"content_stats.`{source}`.lower_bound" for _, source in state.types.tuple_sources[0]]
            shuffled = entries.repartitionByRange(self.leaves, *keys, "location").sortWithinPartitions(
                *keys, "location"
            )
        return write_leaves(shuffled, leaf_format(state, name, 1 << 30))


def compact(table: sm.Table, shape: str, entries: int, query: str, **options: Any) -> Measured:
    """Compact the manifests of a tree with `options`; plan `query` before and after."""
    before, manifests_before = needle(table, query), len(table.state.manifests)
    with Workers() as workers:
        seconds = timed(lambda: table.maintenance.compact_manifests(**options).commit())
    memory, compacted = _memory(table.state.spark, workers), table.refresh()
    after = needle(compacted, query)
    counts = manifests_before, len(compacted.state.manifests)
    needles = before[0], after[0], before[1], after[1]
    return Measured("sparkmeta compact_manifests", shape, entries, seconds, *counts, *needles, memory)


def sort_grown(spark: SparkSession, entries: int) -> Measured:
    """Cluster a masked tree of `growth` by a column whose values are random with respect to the tree's order."""
    growth = Growth(entries, masked=True)
    growth.location()
    growth.rewind()
    table = sm.load_table(f"file://{growth.folder}", spark=spark)
    query = questions(growth)["needle, unclustered"][0]
    measured = compact(table, "masked, sorted anew", entries, query, cluster_by=["needle"])
    growth.rewind()
    return measured


def _memory(spark: SparkSession, workers: Workers) -> Memory:
    peak, after = heap_use(spark)
    sizes = peak_resident_set(), workers.largest, workers.together, peak, after
    return Memory(*(size // MIB for size in sizes))


def needle(table: sm.Table, row_filter: str) -> tuple[int, float]:
    """Return the number of leaves that a plan of a few files opens, and its seconds."""
    scan = table.scan(row_filter)
    scan.plan_files().count()
    seconds = timed(lambda: consume(scan.plan_files()))
    return scan.report().data_manifests.scanned, seconds


def show(results: list[Measured]) -> None:
    java = next((run.seconds for run in results if run.contender.startswith("Iceberg")), None)
    shown = RichTable(title=f"{results[0].entries:,} entries", title_justify="left")
    names = ("contender", "shape", "seconds", "times faster", "manifests", "needle opens", "needle seconds", "MiB")
    for name in names:
        shown.add_column(name, justify="left" if name in ("contender", "shape") else "right")
    for run in results:
        opens = f"{run.needle_leaves_before} -> {run.needle_leaves_after}" if run.needle_leaves_before else ""
        took = f"{run.needle_seconds_before:.2f} -> {run.needle_seconds_after:.2f}" if run.needle_seconds_after else ""
        manifests = f"{run.manifests_before} -> {run.manifests_after}"
        times = f"{java / run.seconds:.1f}x" if java else ""
        memory = ", ".join(f"{name} {size}" for name, size in asdict(run.memory).items()) if run.memory else ""
        shown.add_row(run.contender, run.shape, f"{run.seconds:.1f}", times, manifests, opens, took, memory)
    console.print(shown)


if __name__ == "__main__":
    main()
