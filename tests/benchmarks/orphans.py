"""Compare the search for orphan files with Iceberg's procedure: `python -m tests.benchmarks.orphans`.

A table of the workload gets its files, all empty, and one in a hundred more, which are orphans. Find these with
Iceberg's `remove_orphan_files`, and with sparkmeta by a listing and by an inventory, in turns. Each run opens the
table, and deletes no file. Print a table and write build/bench/orphans-<time>.json.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from sparkmeta.session import map_arrow
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.workload import BUILD, Workload, metadata_location
from tests.local_files import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ORPHANS_PER_FILE = 0.01
_AGE = 10 * 24 * 3600

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Search:
    """A search.

    Attributes:
        listed: the number of files below the table's folder.
        orphans: the number of orphans.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
        workers: the peak of the sum over all Python workers, in MiB.
        heap_after: the JVM's heap after a garbage collection, in MiB.
    """

    contender: str
    listed: int
    orphans: int
    seconds: float
    driver_python: int
    workers: int
    heap_after: int


@click.command()
@click.option("--scale", type=float, default=0.66, show_default=True, help="1 is 1.5 million data files.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Runs of each contender; the JSON has all.")
def main(scale: float, heap: str, repeats: int) -> None:
    """Find the orphans among a million files with Iceberg's procedure and with sparkmeta."""
    workload = Workload(2, "partition", scale)
    location = metadata_location(workload).rpartition("/metadata/")[0]
    spark = bench_session(heap)
    listed = _create_files(spark, location)
    inventory = _inventory(spark, Path(local_path(location)))
    contenders = {
        "Iceberg remove_orphan_files": lambda: _by_java(spark, location),
        "sparkmeta, by a listing": lambda: _by_spark(spark, location),
        "sparkmeta, by an inventory": lambda: _by_spark(spark, location, spark.read.parquet(inventory)),
    }
    results: list[Search] = []
    for repeat in range(repeats + 1):
        for name, search in contenders.items():
            spark._jvm.System.gc()  # type: ignore[union-attr]
            with Workers() as workers:
                started = time.perf_counter()
                orphans = search()
                seconds = time.perf_counter() - started
            sizes = peak_resident_set(), workers.together, heap_use(spark)[1]
            # The first run of each warms up.
            if repeat or not repeats:
                results.append(Search(name, listed, orphans, seconds, *(size // MIB for size in sizes)))
            console.print(f"{name}: {seconds:.1f} s")
    _show(results)
    console.print(f"written: {write_runs(BUILD, 'orphans', results)}")


def _by_java(spark: SparkSession, location: str) -> int:
    catalog = "spark.sql.catalog.orphans"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    warehouse, namespace, name = location.rsplit("/", 2)
    for option, value in {"type": "hadoop", "warehouse": warehouse, "cache-enabled": "false"}.items():
        spark.conf.set(f"{catalog}.{option}", value)
    arguments = f"table => '`{namespace}`.`{name}`', dry_run => true"
    return spark.sql(f"CALL orphans.system.remove_orphan_files({arguments})").count()


def _by_spark(spark: SparkSession, location: str, inventory: DataFrame | None = None) -> int:
    table = sm.load_table(location, spark=spark)
    return table.maintenance.remove_orphan_files(files=inventory).to_df().count()


def _create_files(spark: SparkSession, location: str) -> int:
    """Create the files of a table and some orphans, empty and old, and return the number of all."""
    folder = Path(local_path(location))
    done = folder.parent / "files.txt"
    if not done.exists():
        frame = sm.load_table(location, spark=spark).inspect.files().select("file_path")
        count = map_arrow(frame, _create, pa.schema([pa.field("files", pa.int64())])).agg(F.sum("files")).first()[0]  # type: ignore[index]
        for path in [*(folder / "metadata").iterdir()]:
            os.utime(path, (time.time() - _AGE,) * 2)
        done.write_text(str(count + len([*(folder / "metadata").iterdir()])))
    return int(done.read_text())


def _create(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    old = time.time() - _AGE
    for batch in batches:
        paths = [local_path(location) for location in batch.column("file_path").to_pylist()]
        orphans = [f"{Path(path).parent}/{uuid.uuid4()}.parquet" for path in paths[:: round(1 / _ORPHANS_PER_FILE)]]
        for folder in {os.path.dirname(path) for path in paths}:  # noqa: PTH120
            Path(folder).mkdir(parents=True, exist_ok=True)
        for path in [*paths, *orphans]:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            os.utime(path, (old, old))
        yield pa.RecordBatch.from_pydict({"files": [len(paths) + len(orphans)]})


def _inventory(spark: SparkSession, folder: Path) -> str:
    """Write an inventory of all files in a folder and return its location."""
    written = folder.parent / "inventory"
    if not (written / "_SUCCESS").exists():
        names = pa.array(f"file://{path}/{name}" for path, _, names in os.walk(folder) for name in names)
        rows = spark.createDataFrame(pa.table({"file_path": names})).withColumn(
            "last_modified", F.timestamp_seconds(F.lit(int(time.time() - _AGE)))
        )
        rows.write.mode("overwrite").parquet(str(written))
    return str(written)


def _show(results: list[Search]) -> None:
    java = next(run.seconds for run in results)
    shown = RichTable(title=f"{results[0].listed:,} files", title_justify="left")
    for name in ("contender", "orphans", "seconds", "times faster", "driver's Python", "workers", "heap after"):
        shown.add_column(name, justify="left" if name == "contender" else "right")
    for run in results:
        sizes = [f"{size} MiB" for size in (run.driver_python, run.workers, run.heap_after)]
        shown.add_row(run.contender, f"{run.orphans:,}", f"{run.seconds:.1f}", f"{java / run.seconds:.1f}x", *sizes)
    console.print(shown)


if __name__ == "__main__":
    main()
