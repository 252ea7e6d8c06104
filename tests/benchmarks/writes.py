"""`python -m tests.benchmarks.writes`: rows written by sparkmeta and by Iceberg's Spark runtime, in turns.

Rows of 11 columns come from Parquet files and go into tables of 30 partitions: of format version 3 by Iceberg, into
metadata trees by sparkmeta. Each run appends to a new table, deletes 1 % of its rows by deletion vectors, and upserts
as many rows as 1 %. Nine in ten have the key of a row. `MERGE INTO` replaces rows of the same key; `upsert` compares
them first, and replaces those that differ. The same rows are then merged by `merge`, which does what `MERGE INTO` does.
Spark's own Parquet writer, which makes neither metrics nor a commit, is measured beside the appends. Before the tables
are thrown away both must have the same rows. Existing files are added as well, see `existing_files`. Prints Iceberg's
seconds, wall and CPU, divided by ours, and writes build/bench/writes-<time>.json.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.benchmarks.existing_files import FILES, add_existing
from tests.benchmarks.report import write_runs
from tests.benchmarks.rows import COLUMNS, Measured, console, measured_run, session, show
from tests.benchmarks.workload import BUILD
from tests.peers.java import Java
from tests.peers.workshop import MERGE_ON_READ, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000_000
PARTITIONS = 30
FOLDER = BUILD / "rows" / "writes"
# What deletes find: the filter can't be decided by metrics.
DELETED = "n < 1000"


def source(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows to write, from Parquet files that are made once."""
    folder = BUILD / "rows" / f"source-{rows}"
    if not (folder / "_SUCCESS").exists():
        columns = COLUMNS | {"grp": ("INT", f"CAST(pmod(xxhash64(id, 1), {PARTITIONS}) AS INT)")}
        values = [f"{value} AS {name}" for name, (_, value) in columns.items()]
        spark.range(0, rows, 1, 8).selectExpr(*values).write.mode("overwrite").parquet(str(folder))
    return spark.read.parquet(str(folder))


@dataclass
class Writers:
    """The contenders, each with a table of its own for each run."""

    java: Java
    rows: DataFrame
    shops: list[Workshop] = field(default_factory=list)
    tables: list[sm.Table] = field(default_factory=list)

    @property
    def spark(self) -> SparkSession:
        return self.java.spark

    def new_iceberg(self) -> Workshop:
        """Create an empty table with Iceberg's runtime, with its defaults for writes."""
        shop = Workshop(self.java, f"w{uuid.uuid4().hex[:8]}", catalog_name="bench")
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        options = MERGE_ON_READ | {"format-version": "3"}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in options.items())
        shop.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg PARTITIONED BY (grp) TBLPROPERTIES ({listed})")
        self.shops.append(shop)
        return shop

    def new_tree(self) -> sm.Table:
        """Create an empty metadata tree with the same schema, spec and properties."""
        like = sm.load_table(self.new_iceberg().metadata_location, spark=self.spark)
        catalog = sm.load_catalog("writes", type="hadoop", warehouse=str(FOLDER))
        if ("db",) not in catalog.list_namespaces():
            catalog.create_namespace("db")
        name, properties = f"db.w{uuid.uuid4().hex[:8]}", dict(MERGE_ON_READ)
        table = catalog.create_table(
            name, like.schema(), like.spec(), format_version=4, properties=properties, spark=self.spark
        )
        self.tables.append(table)
        return table

    def append_by_iceberg(self) -> None:
        self.rows.writeTo(self.new_iceberg().sql_name).append()

    def append_by_sparkmeta(self) -> None:
        self.tables[-1:] = [self.new_tree().append(self.rows)]

    def write_by_spark(self) -> None:
        rows = self.rows.hint("rebalance", "grp").sortWithinPartitions("grp")
        folder = FOLDER / "spark"
        options = {"compression": "zstd"}
        rows.write.mode("overwrite").options(**options).partitionBy("grp").parquet(str(folder))
        shutil.rmtree(folder)

    def delete_by_iceberg(self) -> None:
        self.shops[-1].sql(f"DELETE FROM {{t}} WHERE {DELETED}")

    def delete_by_sparkmeta(self) -> None:
        self.tables[-1:] = [self.tables[-1].delete(DELETED)]

    def merge_by_iceberg(self) -> None:
        self.changes.createOrReplaceTempView("changes")
        self.shops[-1].sql(
            """MERGE INTO {t} t USING changes s ON t.id = s.id
               WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
        )

    def upsert_by_sparkmeta(self) -> None:
        self.tables[-1:] = [self.tables[-1].upsert(self.changes, ["id"])]

    def merge_by_sparkmeta(self) -> None:
        merge = self.tables[-1].merge(self.changes, "id")
        self.tables[-1:] = [merge.when_matched().update_all().when_not_matched().insert_all().merge()]

    @cached_property
    def changes(self) -> DataFrame:
        """One row in a hundred with another value, and a tenth of them with a new key."""
        count = self.rows.count()
        key = F.when(F.col("id") % 1000 == 0, F.col("id") + count).otherwise(F.col("id"))
        changed = self.rows.where("id % 100 = 0").withColumn("id", key).withColumn("n", F.col("n") + 1)
        folder = BUILD / "rows" / f"changes-{count}"
        changed.write.mode("overwrite").parquet(str(folder))
        return self.spark.read.parquet(str(folder))

    def require_equal_rows(self) -> None:
        """Compare the newest tables of both."""
        shop = next(shop for shop in reversed(self.shops) if shop.table.currentSnapshot() is not None)
        theirs, ours = shop.sql("SELECT count(*), sum(n) FROM {t}").first(), self.tables[-1].scan().to_df()
        assert tuple(ours.selectExpr("count(*)", "sum(n)").first()) == tuple(theirs)

    def throw_away(self) -> None:
        """Delete the files of all tables."""
        for shop in self.shops:
            folder = shop.folder
            shop.sql("DROP TABLE {t}")
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(FOLDER, ignore_errors=True)
        self.shops, self.tables = [], []


@click.command()
@click.option("--rows", type=int, default=ROWS, show_default=True, help="Rows to append.")
@click.option("--rounds", type=int, default=3, show_default=True, help="Measured runs of each contender.")
@click.option("--files", type=int, default=FILES, show_default=True, help="Existing files to add; 0 for none.")
@click.option("--heap", default="3g", show_default=True, help="Of the one JVM, e.g. 4g.")
def main(rows: int, rounds: int, files: int, heap: str) -> None:
    """Write rows with Iceberg's Spark runtime and with sparkmeta, in one run."""
    spark = session(heap)
    writers = Writers(Java(spark), source(spark, rows))
    writers.changes.count()
    names = ("Iceberg", "sparkmeta")
    appends = [Measured("30 partitions", "append", rows, name, [], []) for name in names]
    deletes = [Measured("30 partitions", "delete of 1 %", rows, name, [], []) for name in names]
    upserts = [Measured("30 partitions", "upsert of 1 %", rows, name, [], []) for name in names]
    merges = [Measured("30 partitions", "merge of 1 %", rows, name, [], []) for name in names]
    by_spark = Measured("30 partitions", "append", rows, "Spark's Parquet", [], [])
    works = (
        (appends[0], writers.append_by_iceberg),
        (deletes[0], writers.delete_by_iceberg),
        (upserts[0], writers.merge_by_iceberg),
        (merges[0], writers.merge_by_iceberg),
        (appends[1], writers.append_by_sparkmeta),
        (deletes[1], writers.delete_by_sparkmeta),
        (upserts[1], writers.upsert_by_sparkmeta),
        (merges[1], writers.merge_by_sparkmeta),
        (by_spark, writers.write_by_spark),
    )
    for number in range(rounds + 1):
        for result, work in works:
            measured_run(result, work, writers.java, counts=bool(number))
        writers.require_equal_rows()
        writers.throw_away()
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
    show(appends)
    show(deletes)
    show(upserts)
    show(merges)
    show([by_spark, appends[1]])
    added = add_existing(writers.java, files, rounds) if files else []
    console.print(f"written: {write_runs(BUILD, 'writes', [*appends, *deletes, *upserts, *merges, by_spark, *added])}")


if __name__ == "__main__":
    main()
