"""Compare the rewrite of a table's paths with Iceberg's Spark action: `python -m tests.benchmarks.table_path`.

Write the metadata of a table of format version 3 with 1.5 million data files (see `workload`) for another place, with
`rewrite_table_path` of Iceberg and of sparkmeta, in turns. Both list the files to copy, and copy none. Print a table
and write build/bench/table_path-<time>.json.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.memory import MIB, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import timed
from tests.benchmarks.workload import BUILD, Workload, metadata_location
from tests.peers.java import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = "s3://elsewhere/bench"
UNIFORM = BUILD / "uniform"

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Run:
    """A rewrite of all paths: its seconds, and the files and bytes that it wrote."""

    contender: str
    files: int
    seconds: float
    written: int
    written_bytes: int


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--repeats", type=int, default=2, show_default=True, help="Runs of each; medians are shown.")
def main(scale: float, heap: str, repeats: int) -> None:
    """Rewrite the paths of a table of 1.5 million files with Iceberg's Spark action and with sparkmeta."""
    workload = Workload(3, "none", scale)
    location = metadata_location(workload)
    spark = bench_session(heap)
    location = in_one_spelling(spark, location)
    runs: list[Run] = []
    for _ in range(repeats):
        runs.append(by_java(spark, location, workload))
        runs.append(by_sparkmeta(spark, location, workload))
    shutil.rmtree(UNIFORM)
    show(runs)
    console.print(f"peak of the driver: {peak_resident_set() // MIB} MiB")
    console.print(f"written: {write_runs(BUILD, 'table_path', runs)}")


def in_one_spelling(spark: SparkSession, location: str) -> str:
    """Write the metadata with `file:///` in all locations, and return its file. The action refuses mixtures."""
    plan = sm.load_table(location, spark=spark).maintenance.rewrite_table_path(
        BUILD.as_uri(), UNIFORM.as_uri(), staging_location=UNIFORM.as_uri()
    )
    return plan.commit().metadata_location


def by_java(spark: SparkSession, location: str, workload: Workload) -> Run:
    """Run Iceberg's RewriteTablePathSparkAction."""
    jvm: Any = spark._jvm
    staging = new_staging()
    action = jvm.org.apache.iceberg.spark.actions.SparkActions.get().rewriteTablePath(Java(spark).table(location).table)
    action = action.rewriteLocationPrefix(UNIFORM.as_uri(), TARGET).stagingLocation(f"{staging.as_uri()}/")
    return finished("Iceberg rewrite_table_path", workload, timed(action.execute), staging)


def by_sparkmeta(spark: SparkSession, location: str, workload: Workload) -> Run:
    """Run sparkmeta's `rewrite_table_path`."""
    staging = new_staging()
    plan = sm.load_table(location, spark=spark).maintenance.rewrite_table_path(
        UNIFORM.as_uri(), TARGET, staging_location=staging.as_uri()
    )
    return finished("sparkmeta rewrite_table_path", workload, timed(plan.commit), staging)


def new_staging() -> Path:
    return BUILD / "staging" / str(uuid.uuid4())


def finished(contender: str, workload: Workload, seconds: float, staging: Path) -> Run:
    files = [path for path in staging.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    size = sum(path.stat().st_size for path in files)
    shutil.rmtree(staging)
    return Run(contender, workload.files, seconds, len(files), size)


def show(runs: list[Run]) -> None:
    printed = RichTable(title="Rewrite of a table's paths", title_justify="left")
    for column in ("contender", "files", "seconds", "written files", "written MiB"):
        printed.add_column(column)
    for contender in dict.fromkeys(run.contender for run in runs):
        of_contender = [run for run in runs if run.contender == contender]
        seconds = statistics.median(run.seconds for run in of_contender)
        last = of_contender[-1]
        printed.add_row(
            contender, f"{last.files:,}", f"{seconds:.1f}", f"{last.written}", f"{last.written_bytes // MIB}"
        )
    console.print(printed)


if __name__ == "__main__":
    main()
