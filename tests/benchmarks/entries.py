"""`python -m tests.benchmarks.entries`: the files of a table appended to a table of version 2, by both libraries.

The source is the version 2 table of the workload, with 120 Avro manifests and 23 columns of stats. In turns, each into
a new table: Iceberg's Java library, which holds all files in memory and writes the manifests on the driver; an append
of the table; and an append of a DataFrame of its files. Prints seconds, wall and CPU, and memory, and writes
build/bench/entries-<time>.json.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import sparkmeta as sm
from tests.benchmarks.conversion import Prepared, console, measured, show
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.workload import BUILD, QUERIES, Workload, metadata_location
from tests.local_files import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA, TABLE, ROWS = "Iceberg newAppend", "append of the table", "append of a DataFrame"
FOLDER = BUILD / "entries"


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="Of the workload: 1 is 1.5 million files.")
@click.option("--heap", default="12g", show_default=True, help="Heap of the JVM: Java's library takes 5 KB a file.")
@click.option("--repeats", type=int, default=2, show_default=True, help="Runs after one that warms up.")
def main(scale: float, heap: str, repeats: int) -> None:
    """Append the files of a table to a table of version 2, with Iceberg's Java library and with sparkmeta."""
    workload = Workload(2, "none", scale)
    location = metadata_location(workload)
    spark = bench_session(heap)
    shutil.rmtree(FOLDER, ignore_errors=True)
    runs = []
    for repeat in range(repeats + 1):
        for name in (JAVA, TABLE, ROWS):
            run, folder = measured(spark, name, workload, _prepared(spark, name, location))
            runs += [run] if repeat else []
            _require_all_files(spark, folder, workload)
            shutil.rmtree(folder)
    show(runs)
    console.print(f"written: {write_runs(BUILD, 'entries', runs)}")


def _prepared(spark: SparkSession, name: str, location: str) -> Prepared:
    source = sm.load_table(location, spark=spark)
    catalog = sm.load_catalog("bench", type="hadoop", warehouse=(FOLDER / str(uuid.uuid4())).as_uri())
    target = catalog.create_table("db.t", source.schema(), source.spec(), format_version=2, spark=spark)
    folder = Path(local_path(target.location()))
    if name == JAVA:
        jvm: Any = spark._jvm
        tables = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration())  # type: ignore[attr-defined]
        of_source = jvm.org.apache.iceberg.StaticTableOperations(
            location, jvm.org.apache.iceberg.hadoop.HadoopFileIO(spark._jsc.hadoopConfiguration())
        )  # type: ignore[attr-defined]
        read = jvm.org.apache.iceberg.BaseTable(of_source, location)
        return lambda: jvm.EntryAppender.append(read, tables.load(folder.as_uri())), folder

    def append() -> None:
        with target.transaction() as tx:
            tx.update_snapshot().append(source.inspect.data_files() if name == ROWS else source)

    return append, folder


def _require_all_files(spark: SparkSession, folder: Path, workload: Workload) -> None:
    table = sm.load_table(folder.as_uri(), spark=spark)
    for query in QUERIES:
        count, expected = table.scan(query.row_filter).plan_files().count(), workload.expected(query)[0]
        assert count == expected, (folder, query.name, count, expected)


if __name__ == "__main__":
    main()
