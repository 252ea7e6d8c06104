"""`python -m tests.benchmarks.streams`: batches of 1,000 rows into tables and out of them, by sparkmeta and by Iceberg.

One stream of files, a file a batch, goes into a tree and a table of version 3 by sparkmeta's sink, and into a table of
version 3 by Iceberg's, in turns. Then streams of their rows, a file a batch, go out of the same tables, in turns. Each
table begins with the metadata of as many files as `--files` says. The time of a batch is that of Spark's progress
(`triggerExecution`). The first batch after each start of a query is not measured. Prints medians and p99, and Iceberg's
divided by ours, and what Spark's phases take. Writes build/bench/streams-<time>.json.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

ROWS = 1000
BATCHES = 200
WARM = 10
TURN = 25
ONE_FILE = {"streaming-max-files-per-micro-batch": "1"}
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
COLUMNS = "id BIGINT, part INT, amount DOUBLE, note STRING"
VALUES = ("id", "CAST(id % 10 AS INT) AS part", "id / 7 AS amount", "concat('note ', id) AS note")
FOLDER = BUILD / "streams"


@dataclass
class Stream:
    """A sink or a source and its table, and the milliseconds of its batches by Spark's phases.

    Attributes:
        direction: `in` or `out`.
        name: its name in the report.
        target: the table, as its format takes it.
        location: the location of the table.
        folder: has the checkpoint.
        options: options of a source.
        batches: the milliseconds of batches by Spark's phases, without the first batch after each start.
        batch_count: the number of all batches.
    """

    direction: str
    name: str
    target: str
    location: str
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    batches: list[dict[str, int]] = field(default_factory=list)
    batch_count: int = 0

    @property
    def format(self) -> str:
        return "iceberg" if self.name.startswith("Iceberg") else "sparkmeta"

    @property
    def checkpoint(self) -> str:
        return str(self.folder / f"{self.direction}-{self.name.replace(' ', '-')}")

    @property
    def times(self) -> list[int]:
        """The milliseconds of the measured batches."""
        return [each["triggerExecution"] for each in self.batches[WARM:]]

    def write(self, spark: SparkSession, source: Path) -> None:
        """Take the files that have come since the last run, one a batch."""
        rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))
        sink = rows.writeStream.format(self.format).trigger(availableNow=True)
        sink = sink.option("checkpointLocation", self.checkpoint)
        query = sink.toTable(self.target) if self.format == "iceberg" else sink.start(self.target)
        query.awaitTermination()
        self.add_batches(query.recentProgress)

    def read(self, spark: SparkSession, batches: int) -> None:
        """Read on until as many batches were read in all, or until there are no more."""
        source = spark.readStream.format(self.format).options(**ONE_FILE, **self.options).load(self.target)
        sink = source.writeStream.format("noop").option("checkpointLocation", self.checkpoint)
        query = sink.trigger(processingTime="0 seconds").start()
        while query.isActive and self.batch_count + len(busy(query.recentProgress)) < batches:
            if (last := query.lastProgress) is not None and not last.numInputRows:
                break
            time.sleep(0.1)
        query.stop()
        if (error := query.exception()) is not None:
            raise error
        self.add_batches(query.recentProgress)

    def add_batches(self, progress: Sequence[StreamingQueryProgress]) -> None:
        """Add the batches of a run, except the first one, which starts the processes of the query."""
        self.batch_count += len(busy(progress))
        self.batches += [each.durationMs for each in busy(progress)[1:]]

    def percentile(self, share: float) -> float:
        """Return the time below which a share of the measured batches is."""
        measured = sorted(self.times)
        return float(measured[min(int(len(measured) * share), len(measured) - 1)])


def busy(progress: Sequence[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
    """Return the batches that have rows."""
    return [each for each in progress if each.numInputRows]


def add_files(table: sm.Table, count: int) -> None:
    """Append the metadata of files that do not exist."""
    if count:
        paths = [f"{table.location()}/data/made-up-{number}.parquet" for number in range(count)]
        files = {"file_path": paths, "file_format": ["PARQUET"] * count, "spec_id": pa.array([0] * count, pa.int32())}
        numbers = {"record_count": pa.array([1] * count), "file_size_in_bytes": pa.array([1000] * count)}
        with table.transaction() as tx:
            tx.update_snapshot().append(pa.table(files | numbers))


def new_sinks(spark: SparkSession, folder: Path, files: int) -> list[Stream]:
    """Create the tables, and return their sinks, Iceberg's first."""
    sinks = []
    for name in ("Iceberg, v3", "sparkmeta, v3", "sparkmeta, tree"):
        shop = Workshop(Java(spark), f"s{uuid.uuid4().hex[:8]}", catalog_name="bench")
        shop.create(COLUMNS, version=3)
        table = sm.load_table(f"file://{shop.folder}", spark=spark)
        if name == "sparkmeta, tree":
            catalog = sm.load_catalog("streams", type="hadoop", warehouse=str(folder))
            catalog.create_namespace("db")
            table = catalog.create_table("db.tree", table.schema(), format_version=4, spark=spark)
        add_files(table, files)
        target = shop.sql_name.replace("`", "") if name.startswith("Iceberg") else table.location()
        sinks.append(Stream("in", name, target, table.location(), folder))
    return sinks


def source_of(sink: Stream, files: int) -> Stream:
    """Return the source of the rows that a sink has written."""
    first = sm.load_table(sink.location).snapshots()[1 if files else 0]
    options = {"stream-from-timestamp": str(first.timestamp_ms)}
    return Stream("out", sink.name, sink.target, sink.location, sink.folder, options)


def require_equal_rows(sinks: Iterable[Stream], rows: int) -> None:
    """Compare what the streams have written; made-up files can't be read."""
    for sink in sinks:
        live = sm.load_table(sink.location).inspect.arrow.data_files()
        counts = zip(live.column("file_path").to_pylist(), live.column("record_count").to_pylist(), strict=True)
        assert sum(count for path, count in counts if "made-up" not in path) == rows, sink.name


@click.command()
@click.option("--batches", type=int, default=BATCHES, show_default=True, help="Batches of each sink and source.")
@click.option("--files", type=int, default=1000, show_default=True, help="Files of each table before the stream.")
@click.option("--heap", default="3g", show_default=True, help="Of the one JVM, e.g. 4g.")
def main(batches: int, files: int, heap: str) -> None:
    """Stream batches of 1,000 rows into tables, and out of them."""
    spark, folder = session(heap), FOLDER / uuid.uuid4().hex[:8]
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    sm.register(spark)
    incoming = folder / "source"
    incoming.mkdir(parents=True)
    sinks, count = new_sinks(spark, folder, files), batches + WARM
    turns = range(0, count, TURN)
    for turn in turns:
        for number in range(turn, min(turn + TURN, count)):
            rows = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1).selectExpr(*VALUES).toArrow()
            path = incoming / f"{number:06}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (1_700_000_000 + number,) * 2)
        for sink in sinks:
            sink.write(spark, incoming)
    require_equal_rows(sinks, count * ROWS)
    sources = [source_of(sink, files) for sink in sinks]
    for turn in turns:
        for source in sources:
            source.read(spark, min(turn + TURN, count))
    assert all(source.batch_count >= count for source in sources), [source.batch_count for source in sources]
    measured = []
    for streams in (sinks, sources):
        show(streams, files)
        measured += [
            Measured(f"{files} files", f"{ROWS} rows {each.direction}", ROWS, each.name, _seconds(each), [])
            for each in streams
        ]
    console.print(f"written: {write_runs(BUILD, 'streams', measured)}")
    shutil.rmtree(folder)


def _seconds(stream: Stream) -> list[float]:
    return [milliseconds / 1000 for milliseconds in stream.times]


def show(streams: Sequence[Stream], files: int) -> None:
    """Print medians and p99 in milliseconds, and the medians of Spark's phases."""
    title = f"{ROWS} rows {streams[0].direction}, {files} files"
    shown = RichTable("stream", "batches", "median", "p99", "Iceberg / this: median", "p99", *PHASES, title=title)
    theirs = streams[0]
    for each in streams:
        median, last = each.percentile(0.5), each.percentile(0.99)
        phases = (statistics.median(batch.get(phase, 0) for batch in each.batches[WARM:]) for phase in PHASES)
        shown.add_row(
            each.name, str(len(each.times)), f"{median:.0f}", f"{last:.0f}", f"{theirs.percentile(0.5) / median:.2f}",
            f"{theirs.percentile(0.99) / last:.2f}", *(f"{phase:.0f}" for phase in phases),
        )  # fmt: skip
    console.print(shown)


if __name__ == "__main__":
    main()
