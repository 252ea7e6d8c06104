"""`python -m tests.benchmarks.stream_in`: batches of 1,000 rows of a stream into tables, by sparkmeta and by Iceberg.

One stream of files, a file a batch, goes into a tree and a table of version 3 by sparkmeta's sink, and into a table of
version 3 by Iceberg's, in turns. Each table begins with the metadata of as many files as `--files` says. The time of a
batch is that of Spark's progress (`triggerExecution`). Afterwards all tables must have the same number of rows. Prints
medians and p99, and Iceberg's divided by ours, and writes build/bench/stream-in-<time>.json.
"""

from __future__ import annotations

import os
import shutil
import statistics
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.report import write_runs
from tests.benchmarks.rows import Measured, console, session
from tests.benchmarks.workload import BUILD
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = 1000
BATCHES = 200
WARM = 10
TURN = 25
COLUMNS = "id BIGINT, part INT, amount DOUBLE, note STRING"
VALUES = ("id", "CAST(id % 10 AS INT) AS part", "id / 7 AS amount", "concat('note ', id) AS note")
FOLDER = BUILD / "streams"


@dataclass
class Contender:
    """A sink and its table, and the milliseconds of its batches."""

    name: str
    format: str
    target: str
    location: str
    folder: Path
    batches: list[int] = field(default_factory=list)

    def run(self, spark: SparkSession, source: Path) -> None:
        """Take the files that have come since the last run, one a batch."""
        rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))
        sink = rows.writeStream.format(self.format).trigger(availableNow=True)
        sink = sink.option("checkpointLocation", str(self.folder / f"checkpoint-{self.name.replace(' ', '-')}"))
        query = sink.toTable(self.target) if self.format == "iceberg" else sink.start(self.target)
        query.awaitTermination()
        self.batches += [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]

    def p(self, share: float) -> float:
        """Return the time below which a share of the measured batches is."""
        measured = sorted(self.batches[WARM:])
        return float(measured[min(int(len(measured) * share), len(measured) - 1)])


def add_files(table: sm.Table, count: int) -> None:
    """Append the metadata of files that do not exist."""
    if count:
        paths = [f"{table.location()}/data/made-up-{number}.parquet" for number in range(count)]
        files = {"file_path": paths, "file_format": ["PARQUET"] * count, "spec_id": pa.array([0] * count, pa.int32())}
        numbers = {"record_count": pa.array([1] * count), "file_size_in_bytes": pa.array([1000] * count)}
        with table.transaction() as tx:
            tx.update_snapshot().append(pa.table(files | numbers))


def contenders(spark: SparkSession, folder: Path, files: int) -> list[Contender]:
    """Create the tables."""
    contenders = []
    for name in ("Iceberg, v3", "sparkmeta, v3", "sparkmeta, tree"):
        shop = Workshop(Java(spark), f"s{uuid.uuid4().hex[:8]}", catalog_name="bench")
        shop.create(COLUMNS, version=3)
        location = f"file://{shop.folder}"
        table = sm.load_table(location, spark=spark)
        if name == "sparkmeta, tree":
            catalog = sm.load_catalog("streams", type="hadoop", warehouse=str(folder))
            catalog.create_namespace("db")
            table = catalog.create_table("db.tree", table.schema(), format_version=4, spark=spark)
        add_files(table, files)
        by_iceberg = name.startswith("Iceberg")
        target = shop.sql_name.replace("`", "") if by_iceberg else table.location()
        contenders.append(Contender(name, "iceberg" if by_iceberg else "sparkmeta", target, table.location(), folder))
    return contenders


def require_equal_rows(spark: SparkSession, tables: list[Contender], rows: int) -> None:
    """Compare what the stream has written; made-up files can't be read."""
    for each in tables:
        live = sm.load_table(each.location, spark=spark).inspect.arrow.data_files()
        counts = zip(live.column("file_path").to_pylist(), live.column("record_count").to_pylist(), strict=True)
        assert sum(count for path, count in counts if "made-up" not in path) == rows, each.name


@click.command()
@click.option("--batches", type=int, default=BATCHES, show_default=True, help="Measured batches of each sink.")
@click.option("--files", type=int, default=1000, show_default=True, help="Files of each table before the stream.")
@click.option("--heap", default="3g", show_default=True, help="Of the one JVM, e.g. 4g.")
def main(batches: int, files: int, heap: str) -> None:
    """Stream batches of 1,000 rows into tables."""
    spark, folder = session(heap), FOLDER / uuid.uuid4().hex[:8]
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    sm.register(spark)
    source = folder / "source"
    source.mkdir(parents=True)
    tables, count = contenders(spark, folder, files), 0
    for turn in range(0, batches + WARM, TURN):
        for number in range(turn, min(turn + TURN, batches + WARM)):
            rows = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1).selectExpr(*VALUES).toArrow()
            path = source / f"{number:06}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (1_700_000_000 + number,) * 2)
            count += 1
        for each in tables:
            each.run(spark, source)
    require_equal_rows(spark, tables, count * ROWS)
    show(tables, files)
    runs = [Measured(f"{files} files", f"{ROWS} rows in", ROWS, each.name, _seconds(each), []) for each in tables]
    console.print(f"written: {write_runs(BUILD, 'stream-in', runs)}")
    shutil.rmtree(folder)


def _seconds(each: Contender) -> list[float]:
    return [milliseconds / 1000 for milliseconds in each.batches[WARM:]]


def show(tables: list[Contender], files: int) -> None:
    """Print medians and p99 in milliseconds."""
    shown = RichTable("sink", "median", "p99", "Iceberg / this: median", "p99", title=f"{files} files")
    theirs: Any = tables[0]
    for each in tables:
        median, last = statistics.median(each.batches[WARM:]), each.p(0.99)
        ratios = f"{theirs.p(0.5) / median:.2f}", f"{theirs.p(0.99) / last:.2f}"
        shown.add_row(each.name, f"{median:.0f}", f"{last:.0f}", *ratios)
    console.print(shown)


if __name__ == "__main__":
    main()
