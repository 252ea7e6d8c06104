"""Compare the rewrite of position deletes with Iceberg's procedure: `python -m tests.benchmarks.position_deletes`.

Position delete files of partitions name every data file of their partition. `vectors` are the files of a table that was
upgraded to version 3, which become deletion vectors; `files` are the files of version 2, which become a file for each
partition. Data files do not exist, since neither contender reads them. Each run starts from the same files. Print a
table and write build/bench/position-deletes-<time>.json.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.write.partition_file import PositionFile
from tests.benchmarks.expiry import restored
from tests.benchmarks.memory import MIB, Workers, heap_use, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import timed
from tests.benchmarks.workload import BUILD

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SHAPES = {"vectors": 3, "files": 2}
_PARTITIONS, _DATA_ROWS = 10, 1_000_000
_CATALOG = "position_deletes"

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Rewrite:
    """A run of a contender.

    Attributes:
        positions: the deleted positions.
        files: the delete files before.
        after: the deletion vectors or delete files afterwards.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
        workers: the peak of the sum over all Python workers, in MiB.
        heap_after: the JVM's heap after a garbage collection, in MiB.
    """

    contender: str
    shape: str
    positions: int
    files: int
    after: int
    seconds: float
    driver_python: int
    workers: int
    heap_after: int


@click.command()
@click.option("--data-files", type=int, default=200, show_default=True, help="Data files of each of 10 partitions.")
@click.option("--delete-files", type=int, default=50, show_default=True, help="Delete files of each partition.")
@click.option(
    "--positions", type=int, default=100, show_default=True, help="Positions of a data file in a delete file."
)
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Runs of each contender; the JSON has all.")
def main(data_files: int, delete_files: int, positions: int, heap: str, repeats: int) -> None:
    """Rewrite ten million position deletes with Iceberg's procedure and with sparkmeta."""
    spark = bench_session(heap)
    warehouse = BUILD / "position-deletes" / f"{data_files}-{delete_files}-{positions}"
    _set_catalog(spark, warehouse)
    contenders = {"Iceberg rewrite_position_delete_files": _by_java, "sparkmeta": _by_spark}
    results: list[Rewrite] = []
    for shape, version in SHAPES.items():
        table = warehouse / "db" / shape
        if not (table / "done").exists():
            _generate(spark, table, version, data_files, delete_files, positions)
        # The first run of each warms up.
        for repeat in range(repeats + 1):
            for name, rewrite in contenders.items():
                with restored(table / "metadata"), restored(table / "data"):
                    sizes = (_PARTITIONS * data_files * delete_files * positions, _PARTITIONS * delete_files)
                    run = _measured(spark, name, shape, sizes, table, partial(rewrite, spark, table))
                console.print(f"{name}, {shape}: {run.seconds:.1f} s")
                results += [run] if repeat else []
    _show(results)
    console.print(f"written: {write_runs(BUILD, 'position-deletes', results)}")


def _set_catalog(spark: SparkSession, warehouse: Path) -> None:
    catalog = f"spark.sql.catalog.{_CATALOG}"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for option, value in {"type": "hadoop", "warehouse": warehouse.as_uri(), "cache-enabled": "false"}.items():
        spark.conf.set(f"{catalog}.{option}", value)


def _generate(
    spark: SparkSession, folder: Path, version: int, data_files: int, delete_files: int, positions: int
) -> None:
    """Create a table with Java, and position delete files."""
    shutil.rmtree(folder, ignore_errors=True)
    properties = "'format-version'='2', 'write.delete.granularity'='partition'"
    columns = "(id BIGINT, part INT) USING iceberg PARTITIONED BY (part)"
    spark.sql(f"CREATE TABLE {_CATALOG}.db.{folder.name} {columns} TBLPROPERTIES ({properties})")
    jvm: Any = spark._jvm
    iceberg = jvm.org.apache.iceberg
    table = iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration()).load(folder.as_uri())  # type: ignore[attr-defined]
    (folder / "data").mkdir(exist_ok=True)
    paths = [
        [f"{folder.as_uri()}/data/part={part}/{number:05}.parquet" for number in range(data_files)]
        for part in range(_PARTITIONS)
    ]
    append = table.newFastAppend()
    for part, of_part in enumerate(paths):
        for path in of_part:
            file = iceberg.DataFiles.builder(table.spec()).withPath(path).withFileSizeInBytes(100 * MIB)
            append.appendFile(
                file.withRecordCount(_DATA_ROWS).withPartitionPath(f"part={part}").withFormat("parquet").build()
            )
    append.commit()
    chance = np.random.default_rng(7)
    delta = table.newRowDelta()
    for part, of_part in enumerate(paths):
        for number in range(delete_files):
            content = PositionFile("zstd")
            for path in of_part:
                content.add(path, PositionBitmap.of(np.unique(chance.integers(0, _DATA_ROWS, positions))))
            data = content.close()
            location = folder / "data" / f"{part}-{number}-deletes.parquet"
            location.write_bytes(data)
            deletes = iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofPositionDeletes()
            deletes = deletes.withPath(location.as_uri()).withFileSizeInBytes(len(data)).withFormat("parquet")
            delta.addDeletes(deletes.withRecordCount(content.records).withPartitionPath(f"part={part}").build())
    delta.commit()
    table.updateProperties().set("format-version", str(version)).commit()
    (folder / "done").touch()


def _by_java(spark: SparkSession, table: Path) -> None:
    options = "options => map('rewrite-all', 'true')"
    spark.sql(f"CALL {_CATALOG}.system.rewrite_position_delete_files(table => 'db.{table.name}', {options})").collect()


def _by_spark(spark: SparkSession, table: Path) -> None:
    sm.load_table(table.as_uri(), spark=spark).maintenance.rewrite_position_delete_files(rewrite_all=True).commit()


def _measured(
    spark: SparkSession, name: str, shape: str, sizes: tuple[int, int], table: Path, rewrite: Callable[[], None]
) -> Rewrite:
    spark._jvm.System.gc()  # type: ignore[union-attr]
    with Workers() as workers:
        seconds = timed(rewrite)
    after = sm.load_table(table.as_uri(), spark=spark).inspect.delete_files().count()
    memory = peak_resident_set(), workers.together, heap_use(spark)[1]
    return Rewrite(name, shape, *sizes, after, seconds, *(size // MIB for size in memory))


def _show(results: list[Rewrite]) -> None:
    title = f"{results[0].positions:,} deletes in {results[0].files:,} files"
    shown = RichTable(title=title, title_justify="left")
    for name in ("contender", "shape", "files after", "seconds", "times faster", "driver MiB", "workers MiB"):
        shown.add_column(name, justify="left" if name in ("contender", "shape") else "right")
    java = {run.shape: run.seconds for run in results if run.contender.startswith("Iceberg")}
    for run in results:
        times = f"{java[run.shape] / run.seconds:.1f}x"
        shown.add_row(
            run.contender, run.shape, f"{run.after:,}", f"{run.seconds:.1f}", times, f"{run.driver_python}",
            f"{run.workers}",
        )  # fmt: skip
    console.print(shown)


if __name__ == "__main__":
    main()
