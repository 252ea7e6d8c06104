"""`python -m tests.benchmarks.existing_files`: existing Parquet files added by sparkmeta, pyiceberg and the procedure.

The files have 11 columns and a row group of few rows, and are in one folder for each of 30 partitions. Each run adds
all of them to a new table of format version 2. Prints seconds, wall and CPU, and writes
build/bench/existing-files-<time>.json.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

import sparkmeta as sm
from tests.benchmarks.report import write_runs
from tests.benchmarks.rows import COLUMNS, Measured, console, measured_run, session, show
from tests.benchmarks.workload import BUILD
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 10_000
PARTITIONS = 30
FOLDER = BUILD / "rows" / "existing"


def source(spark: SparkSession, files: int) -> list[str]:
    """Return the paths of the files, which are made once."""
    folder = FOLDER / f"files-{files}"
    if not (folder / "_SUCCESS").exists():
        values = [f"{value} AS {name}" for name, (_, value) in COLUMNS.items() if name != "grp"]
        rows = spark.range(0, 100).selectExpr(*values).toArrow()
        for number in range(files):
            path = folder / f"grp={number % PARTITIONS}" / f"{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            ids = pa.array(range(number * 100, number * 100 + 100), rows.schema.field(0).type)
            pq.write_table(rows.set_column(0, rows.schema.field(0), ids), path)
        (folder / "_SUCCESS").touch()
    return sorted(str(path) for path in folder.rglob("*.parquet"))


class Adders:
    """The contenders, each with a new table for each run."""

    def __init__(self, java: Java, paths: list[str]) -> None:
        self.java, self.paths = java, paths
        self.counts: list[int] = []

    def new_table(self, *, partitioned: bool = True) -> Workshop:
        shop = Workshop(self.java, f"e{uuid.uuid4().hex[:8]}", catalog_name="bench")
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items() if partitioned or name != "grp")
        by = "PARTITIONED BY (grp)" if partitioned else ""
        shop.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {by} TBLPROPERTIES ('format-version'='2')")
        return shop

    def by_sparkmeta(self) -> None:
        """Add to a partitioned table."""
        shop = self.new_table()
        warehouse = f"file://{shop.folder.parents[1]}"
        catalog = sm.load_catalog("bench", type="hadoop", warehouse=warehouse, spark=self.java.spark)
        table = catalog.load_table(f"peers.{shop.name}").add_files(self.paths)
        self.counts.append(int(table.current_snapshot().summary["total-data-files"]))

    def by_procedure(self) -> None:
        """Add to a partitioned table."""
        shop = self.new_table()
        shop.call("add_files", f"source_table => '`parquet`.`{Path(self.paths[0]).parents[1]}`'")
        self.counts.append(int(shop.sql("SELECT count(*) FROM {t}.files").first()[0]))

    def by_pyiceberg(self) -> None:
        """Add to a table without partitions, since pyiceberg takes no partition values from folders."""
        folder = FOLDER / "pyiceberg"
        shutil.rmtree(folder, ignore_errors=True)
        schema = sm.load_table(self.new_table(partitioned=False).metadata_location, spark=self.java.spark).schema()
        catalog = SqlCatalog("bench", uri="sqlite://", warehouse=f"file://{folder}")
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", schema)
        table.add_files(self.paths)
        self.counts.append(int(table.current_snapshot().summary["total-data-files"]))


def add_existing(java: Java, files: int, rounds: int) -> list[Measured]:
    """Add files with each contender in turns, and show the results."""
    adders = Adders(java, source(java.spark, files))
    works = {"pyiceberg": adders.by_pyiceberg, "Iceberg": adders.by_procedure, "sparkmeta": adders.by_sparkmeta}
    results = {name: Measured("30 partitions", "add_files", files, name, [], []) for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            # pyiceberg has nothing to warm up.
            if number or name != "pyiceberg":
                measured_run(results[name], work, java, counts=bool(number))
    assert set(adders.counts) == {files}
    show([results["pyiceberg"], results["sparkmeta"]])
    show([results["Iceberg"], results["sparkmeta"]])
    return [*results.values()]


@click.command()
@click.option("--files", type=int, default=FILES, show_default=True, help="Files to add.")
@click.option("--rounds", type=int, default=2, show_default=True, help="Measured runs of each contender.")
@click.option("--heap", default="3g", show_default=True, help="Of the one JVM, e.g. 4g.")
def main(files: int, rounds: int, heap: str) -> None:
    """Add existing files with sparkmeta, pyiceberg and Iceberg's procedure, in one run."""
    spark = session(heap)
    results = add_existing(Java(spark), files, rounds)
    console.print(f"written: {write_runs(BUILD, 'existing-files', results)}")


if __name__ == "__main__":
    main()
