"""Compare partition statistics with Iceberg's Spark action: `python -m tests.benchmarks.statistics`.

A table of 1.5 million data files in 100,000 partitions, each file with bounds and counts of 23 columns, exists as a
tree and, downgraded, as a table of version 3 with Avro manifests; entries are sorted by partition. All entries are
counted, by the action on the table of version 3, and by sparkmeta on both. Each run starts from the same files, and
contenders take turns.
Print a table and write build/bench/statistics-<time>.json.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import timed
from tests.benchmarks.workload import BUILD
from tests.local_files import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

NAME = "bench.t"
_FILES_PER_PARTITION = 15
_COLUMNS = 23
_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Run:
    """A run of a contender.

    Attributes:
        table: `v3` or `tree`.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
        workers: the peak of the sum over all Python workers, in MiB.
        heap_after: the JVM's heap after a garbage collection, in MiB.
    """

    contender: str
    table: str
    files: int
    partitions: int
    seconds: float
    driver_python: int
    workers: int
    heap_after: int


@click.command()
@click.option("--files", type=int, default=1_500_000, show_default=True, help="Data files, 15 in each partition.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Measured runs of each contender.")
@click.option("--no-java", is_flag=True, help="Leave out Iceberg, to look at the memory of sparkmeta's driver.")
def main(files: int, heap: str, repeats: int, no_java: bool) -> None:
    """Compute the partition statistics of a table with Iceberg's Spark action and with sparkmeta."""
    spark = bench_session(heap)
    tables = _tables(spark, files)
    contenders: list[tuple[str, str, Callable[[SparkSession, Path], int]]] = [
        ("Iceberg computePartitionStats", "v3", _by_java),
        ("sparkmeta compute_partition_stats", "v3", _by_spark),
        ("sparkmeta compute_partition_stats", "tree", _by_spark),
    ]
    results: list[Run] = []
    # The first round warms up.
    for repeat in range(repeats + 1):
        for name, table, compute in contenders[1 if no_java else 0 :]:
            with _restored(tables[table] / "metadata"):
                run = _measured(spark, name, table, files, partial(compute, spark, tables[table]))
            console.print(f"{name}, {table}: {run.seconds:.1f} s")
            results += [run] if repeat else []
    _show(results)
    console.print(f"written: {write_runs(BUILD, 'statistics', results)}")


def _tables(spark: SparkSession, files: int) -> dict[str, Path]:
    """Return the folders of the tables; write them if they do not exist yet."""
    folder = BUILD / "statistics" / str(files)
    tables = {kind: folder / kind / NAME.replace(".", "/") for kind in ("tree", "v3")}
    done = folder / "done"
    if done.exists():
        return tables
    shutil.rmtree(folder, ignore_errors=True)
    fields = [NestedField(1, "part", LongType()), *(NestedField(n, f"c{n}", IntegerType()) for n in _stats_ids())]
    catalog = sm.load_catalog("bench", type="hadoop", warehouse=(folder / "tree").as_uri())
    table = catalog.create_table(NAME, Schema(*fields), partition_spec=_SPEC, format_version=4, spark=spark)
    with table.transaction() as tx:
        tx.update_snapshot().append(_files(spark, files))
    # The other table begins with the same tree, whose files stay where they are.
    metadata = json.loads(Path(local_path(table.refresh().metadata_location)).read_bytes())
    (tables["v3"] / "metadata").mkdir(parents=True)
    copied = json.dumps(metadata | {"location": tables["v3"].as_uri()})
    (tables["v3"] / "metadata" / "v1.metadata.json").write_text(copied)
    sm.load_table(tables["v3"].as_uri(), spark=spark).maintenance.downgrade(3).commit()
    done.touch()
    return tables


def _stats_ids() -> range:
    return range(2, _COLUMNS + 1)


def _files(spark: SparkSession, files: int) -> DataFrame:
    """Return data files as `append` takes them."""
    ids = f"sequence(1, {_COLUMNS})"
    number = "reverse(unhex(lpad(hex((id + i) % 1000000), 8, '0')))"
    bound = f"IF(i = 1, CAST(NULL AS BINARY), CAST({number} AS BINARY))"
    counts = f"map_from_arrays({ids}, transform({ids}, i -> 1000L))"
    bounds = f"map_filter(map_from_arrays({ids}, transform({ids}, i -> {bound})), (k, v) -> v IS NOT NULL)"
    return spark.range(files).selectExpr(
        "0 AS content", "concat('/data/part-', id, '-', uuid(), '.parquet') AS file_path", "'PARQUET' AS file_format",
        f"named_struct('part', id div {_FILES_PER_PARTITION}) AS partition", "1000L AS record_count",
        "id + 1000 AS file_size_in_bytes", f"{counts} AS value_counts", f"{counts} AS null_value_counts",
        f"{bounds} AS lower_bounds", f"{bounds} AS upper_bounds",
    )  # fmt: skip


@contextmanager
def _restored(folder: Path) -> Iterator[None]:
    """Put the files of a folder back on leaving the context."""
    links = folder.with_name(f"{folder.name}-{uuid.uuid4()}")
    shutil.copytree(folder, links, copy_function=os.link)
    try:
        yield
    finally:
        shutil.rmtree(folder)
        links.rename(folder)


def _by_java(spark: SparkSession, table: Path) -> int:
    iceberg: Any = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
    handle = iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration()).load(table.as_uri())  # type: ignore[attr-defined]
    file = iceberg.spark.actions.SparkActions.get().computePartitionStats(handle).execute().statisticsFile()
    return int(file.fileSizeInBytes())


def _by_spark(spark: SparkSession, table: Path) -> int:
    plan = sm.load_table(table.as_uri(), spark=spark).maintenance.compute_partition_stats()
    plan.commit()
    return int(plan.result()["committed"]["file_size_in_bytes"])


def _measured(spark: SparkSession, name: str, table: str, files: int, compute: Callable[[], int]) -> Run:
    spark._jvm.System.gc()  # type: ignore[union-attr]
    with Workers() as workers:
        seconds = timed(compute)
    sizes = peak_resident_set(), workers.together, heap_use(spark)[1]
    return Run(name, table, files, files // _FILES_PER_PARTITION, seconds, *(size // MIB for size in sizes))


def _show(results: list[Run]) -> None:
    first = results[0]
    title = f"{first.files:,} files in {first.partitions:,} partitions"
    shown = RichTable(title=title, title_justify="left")
    for name in ("contender", "table", "seconds, median", "times faster", "driver MiB", "workers MiB"):
        shown.add_column(name, justify="left" if name in ("contender", "table") else "right")
    runs: dict[tuple[str, str], list[Run]] = {}
    for run in results:
        runs.setdefault((run.contender, run.table), []).append(run)
    base = next(iter(runs.values()))
    for (contender, table), group in runs.items():
        ratios = [java.seconds / ours.seconds for java, ours in zip(base, group, strict=True)]
        seconds = statistics.median(run.seconds for run in group)
        memory = (f"{max(getattr(run, name) for run in group)}" for name in ("driver_python", "workers"))
        shown.add_row(contender, table, f"{seconds:.1f}", f"{statistics.median(ratios):.1f}x", *memory)
    console.print(shown)


if __name__ == "__main__":
    main()
