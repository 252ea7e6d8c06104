"""`python -m tests.benchmarks.compaction`: manifests compacted, beside Iceberg's Spark action on the same files.

A table of format version 2 (see `workload`) is rewritten by Iceberg's `rewrite_manifests`; the same files as a V4 tree
by `compact_manifests`, in two shapes: `in order`, small leaves that have to be merged only, and `random`, leaves with
files in random order and 5 % of the entries masked, which have to be sorted. Before and after it a query for one file
is planned. Each rewriting has a fresh table. Prints a table, writes build/bench/compaction-<time>.json.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from sparkmeta.commit.addition import file_rows, leaf_format
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.new_snapshot import NewSnapshot, SnapshotNames
from sparkmeta.commit.summary import ManifestCounts, Tally, snapshot_summary
from sparkmeta.commit.transaction import commit_steps
from sparkmeta.commit.tree import TreeChange
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.leaf_writer import write_leaves
from tests.benchmarks.memory import MIB, peak_resident_set
from tests.benchmarks.report import machine
from tests.benchmarks.session import bench_session
from tests.benchmarks.workload import BUILD, Workload, metadata_location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

NEEDLE = "ss_ticket_number = 10 and ss_sold_date_sk = 5"
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
    driver_python_mib: int | None = None


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--leaves", type=int, default=1_000, show_default=True, help="Leaves of the tree before.")
@click.option("--heap", default="4g", show_default=True, help="Of the one JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Rewritings of each; all are written down.")
def main(scale: float, leaves: int, heap: str, repeats: int) -> None:
    """Rewrite the manifests of a table of 1.5 million files with Iceberg's Spark action and with sparkmeta."""
    workload = Workload(2, "none", scale)
    location = metadata_location(workload)
    spark = bench_session(heap)
    results: list[Measured] = []
    for _ in range(repeats):
        results.append(rewrite_by_java(spark, location, workload))
        for shape in ("in order", "random"):
            table = tree(spark, location, workload, leaves, shape)
            results.append(compact(table, shape, workload))
    show(results)
    path = BUILD / f"compaction-{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    path.write_text(json.dumps({"machine": machine(), "runs": [asdict(one) for one in results]}, indent=1) + "\n")
    console.print(f"written: {path}")


def rewrite_by_java(spark: SparkSession, location: str, workload: Workload) -> Measured:
    """Iceberg's RewriteManifestsSparkAction with its defaults, on a table of its own that shares the manifests."""
    folder = BUILD / "clones" / str(uuid.uuid4())
    (folder / "metadata").mkdir(parents=True)
    metadata = json.loads(Path(location.removeprefix("file:")).read_text()) | {"location": folder.as_uri()}
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(metadata))
    jvm: Any = spark._jvm
    table = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration()).load(folder.as_uri())  # type: ignore[attr-defined]
    before = table.currentSnapshot().allManifests(table.io()).size()
    start = time.perf_counter()
    jvm.org.apache.iceberg.spark.actions.SparkActions.get().rewriteManifests(table).execute()
    seconds = time.perf_counter() - start
    table.refresh()
    after = table.currentSnapshot().allManifests(table.io()).size()
    shutil.rmtree(folder)
    return Measured("Iceberg rewrite_manifests", "in order", workload.files, seconds, before, after)


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
        entries = self.source.inspect.files().mapInArrow(rows.batches, schema_of(rows.schema))
        if self.shape == "random":
            shuffled = entries.repartition(self.leaves, F.xxhash64("location"))
        else:
            keys = [f"content_stats.`{source}`.lower_bound" for _, source in state.tuple_sources[0]]
            shuffled = entries.repartitionByRange(self.leaves, *keys, "location").sortWithinPartitions(
                *keys, "location"
            )
        return write_leaves(shuffled, leaf_format(state, name, 1 << 30))


def compact(table: sm.Table, shape: str, workload: Workload) -> Measured:
    """One compaction with its defaults."""
    before = needle(table)
    count = len(table.state.roots)
    start = time.perf_counter()
    after = table.maintenance.compact_manifests().commit()
    seconds = time.perf_counter() - start
    found = needle(after)
    return Measured(
        "sparkmeta compact_manifests",
        shape,
        workload.files,
        seconds,
        count,
        len(after.state.roots),
        before[0],
        found[0],
        before[1],
        found[1],
        peak_resident_set() // MIB,
    )


def needle(table: sm.Table) -> tuple[int, float]:
    """The leaves that a plan for a few files opens, and its seconds."""
    scan = table.scan(NEEDLE)
    scan.plan_files().count()
    start = time.perf_counter()
    scan.plan_files().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - start
    return scan.report().data_manifests.scanned, seconds


def show(results: list[Measured]) -> None:
    java = next(one.seconds for one in results if one.contender.startswith("Iceberg"))
    shown = RichTable(title=f"{results[0].entries:,} entries", title_justify="left")
    for name in ("contender", "shape", "seconds", "times faster", "manifests", "needle opens", "needle seconds"):
        shown.add_column(name, justify="left" if name in ("contender", "shape") else "right")
    for one in results:
        opens = f"{one.needle_leaves_before} -> {one.needle_leaves_after}" if one.needle_leaves_before else ""
        took = f"{one.needle_seconds_before:.2f} -> {one.needle_seconds_after:.2f}" if one.needle_seconds_after else ""
        manifests = f"{one.manifests_before} -> {one.manifests_after}"
        shown.add_row(
            one.contender, one.shape, f"{one.seconds:.1f}", f"{java / one.seconds:.1f}x", manifests, opens, took
        )
    console.print(shown)


if __name__ == "__main__":
    main()
