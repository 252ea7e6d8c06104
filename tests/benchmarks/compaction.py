"""`python -m tests.benchmarks.compaction`: manifests compacted, beside Iceberg's Spark action on the same files.

A table of format version 2 (see `workload`) is rewritten by Iceberg's `rewrite_manifests` and by ours; the same files
as a V4 tree by `compact_manifests`, in two shapes: `in order`, small leaves that have to be merged only, and `random`,
leaves with files in random order and 5 % of the entries masked, which have to be sorted. Before and after it a query
for one file is planned. Each rewriting has a fresh table. Prints a table, writes build/bench/compaction-<time>.json.

    python -m tests.benchmarks.compaction --grown 100000000

sorts a tree of so many entries instead (see `growth`; 5 % are masked), by a column that is spread over all leaves, and
says what memory that took.
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
from sparkmeta.commit.file_rows import file_rows
from sparkmeta.edit.attempts import commit_steps
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.leaves import leaf_format
from sparkmeta.edit.new_snapshot import NewSnapshot, SnapshotNames
from sparkmeta.edit.next_root import TreeChange
from sparkmeta.edit.summary import ManifestCounts, Tally, snapshot_summary
from sparkmeta.manifests.v4.write import write_leaves
from sparkmeta.session import spark_schema
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

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

MASKED_SHARE = 20

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Measured:
    """One rewriting. needle: a plan for one file of one partition, the leaves that it opens and its seconds."""

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
    """In MiB: peaks of the driver's Python, of one worker, of all workers at a time, and of the JVM's heap, and what
    was left of that after a collection. In local mode the heap is that of driver and executors."""

    driver_python: int
    worker: int
    workers: int
    heap_peak: int
    heap_after: int


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--leaves", type=int, default=1_000, show_default=True, help="Leaves of the tree before.")
@click.option("--heap", default="4g", show_default=True, help="Of the one JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Rewritings of each; all are written down.")
@click.option("--grown", type=int, help="Sort a tree of so many entries, and nothing else.")
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
    """Iceberg's RewriteManifestsSparkAction with its defaults, on a table of its own that shares the manifests."""
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
    """`rewrite_manifests` with its defaults, on a table of its own that shares the manifests."""
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
    """The files as a V4 tree in a folder of its own, written anew each time."""
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
    """A commit that adds all files of another table as so many leaves, in order or not."""

    source: sm.Table
    leaves: int
    shape: str
    names: SnapshotNames | None = None

    def apply(self, state: TableState) -> TableMetadata:
        names = SnapshotNames()
        names.next_attempt(state.metadata)
        made = self._written(state, names.file("leaf"))
        counts = ManifestCounts(created=len(made))

        def summary() -> Any:
            return snapshot_summary("append", Tally(), Tally(), state.snapshot, {}, counts)

        return NewSnapshot(state, base_root(state), "main", names).commit(TreeChange(added_leaves=made), summary)

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
    """One compaction. query: that of the needle. options: of the compaction, its defaults otherwise."""
    before, count = needle(table, query), len(table.state.manifests)
    with Workers() as workers:
        seconds = timed(lambda: table.maintenance.compact_manifests(**options).commit())
    memory, after = _memory(table.state.spark, workers), table.refresh()
    found = needle(after, query)
    counts = count, len(after.state.manifests)
    needles = before[0], found[0], before[1], found[1]
    return Measured("sparkmeta compact_manifests", shape, entries, seconds, *counts, *needles, memory)


def sort_grown(spark: SparkSession, entries: int) -> Measured:
    """A tree of `growth`, masked, is clustered by a column that has nothing to do with the order it is in."""
    growth = Growth(entries, masked=True)
    growth.location()
    growth.rewind()
    table = sm.load_table(f"file://{growth.folder}", spark=spark)
    query = questions(growth)["needle, unclustered"][0]
    found = compact(table, "masked, sorted anew", entries, query, cluster_by=["needle"])
    growth.rewind()
    return found


def _memory(spark: SparkSession, workers: Workers) -> Memory:
    peak, after = heap_use(spark)
    found = peak_resident_set(), workers.largest, workers.together, peak, after
    return Memory(*(one // MIB for one in found))


def needle(table: sm.Table, row_filter: str) -> tuple[int, float]:
    """The leaves that a plan for a few files opens, and its seconds."""
    scan = table.scan(row_filter)
    scan.plan_files().count()
    seconds = timed(lambda: consume(scan.plan_files()))
    return scan.report().data_manifests.scanned, seconds


def show(results: list[Measured]) -> None:
    java = next((one.seconds for one in results if one.contender.startswith("Iceberg")), None)
    shown = RichTable(title=f"{results[0].entries:,} entries", title_justify="left")
    names = ("contender", "shape", "seconds", "times faster", "manifests", "needle opens", "needle seconds", "MiB")
    for name in names:
        shown.add_column(name, justify="left" if name in ("contender", "shape") else "right")
    for one in results:
        opens = f"{one.needle_leaves_before} -> {one.needle_leaves_after}" if one.needle_leaves_before else ""
        took = f"{one.needle_seconds_before:.2f} -> {one.needle_seconds_after:.2f}" if one.needle_seconds_after else ""
        manifests = f"{one.manifests_before} -> {one.manifests_after}"
        times = f"{java / one.seconds:.1f}x" if java else ""
        memory = ", ".join(f"{name} {size}" for name, size in asdict(one.memory).items()) if one.memory else ""
        shown.add_row(one.contender, one.shape, f"{one.seconds:.1f}", times, manifests, opens, took, memory)
    console.print(shown)


if __name__ == "__main__":
    main()
