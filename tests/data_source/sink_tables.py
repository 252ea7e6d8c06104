"""Tables for the sink of the data source, and a stream of files into them.

`python -m tests.data_source.sink_tables` runs a stream of files into a table, and out of it into a copy.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType
from pyspark.errors import StreamingQueryException
from pyspark.sql import Window
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.local_files import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "part", StringType(), required=False),
    NestedField(3, "notes", ListType(4, StringType(), element_required=False), required=False),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "part"), PartitionField(1, 1001, BucketTransform(2), "bucket")
)
COLUMNS = "id BIGINT, part STRING, notes ARRAY<STRING>"
UPSERT = {"mode": "upsert", "keys": "id"}


def row(number: int | None, part: str | None, *notes: str | None) -> dict[str, Any]:
    return {"id": number, "part": part, "notes": list(notes) or None}


def arrow(*rows: dict[str, Any]) -> pa.Table:
    kind = pa.schema([("id", pa.int64()), ("part", pa.string()), ("notes", pa.list_(pa.string()))])
    return pa.Table.from_pylist(list(rows), kind)


def rows_of(table: sm.Table) -> list[dict[str, Any]]:
    return sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda each: each["id"])


def data_files(table: sm.Table) -> set[str]:
    """The data files in the table's folder."""
    return {str(path) for path in Path(local_path(table.location()), "data").rglob("*.parquet")}


def live_files(table: sm.Table) -> set[str]:
    """The data files of the current snapshot."""
    return {local_path(path) for path in table.refresh().inspect.arrow.data_files().column("file_path").to_pylist()}


@dataclass
class Batches:
    """A stream of files, one a batch, into a table."""

    spark: SparkSession
    folder: Path
    location: str

    @property
    def table(self) -> sm.Table:
        return sm.load_table(self.location)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def count(self) -> int:
        return len([*self.source.iterdir()]) if self.source.exists() else 0

    def add(self, *rows: dict[str, Any]) -> None:
        self.source.mkdir(exist_ok=True)
        number = self.count
        path = self.folder / f"{number:04}.parquet"
        pq.write_table(arrow(*rows), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes the oldest one first
        path.rename(self.source / path.name)

    def run(self, output: str = "append", **options: str) -> None:
        """Run the stream until it has no more rows. Raises StreamingQueryException."""
        self.start(output, **options).awaitTermination()

    def start(self, output: str = "append", **options: str) -> StreamingQuery:
        """Start the stream, which ends when it has no more rows."""
        source = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        rows = source.parquet(str(self.source))
        if output == "complete":
            rows = rows.groupBy("part").agg(F.count("*").alias("id"))
        sink = rows.writeStream.format("sparkmeta").outputMode(output).trigger(availableNow=True)
        sink = sink.options(**{"checkpointLocation": str(self.folder / "checkpoint")} | options)
        return sink.start(self.location)

    def start_copy(self, location: str) -> StreamingQuery:
        """Start a stream that applies the table's changelog to a table with the same columns."""

        def apply(batch: DataFrame, batch_id: int) -> None:
            last = Window.partitionBy("id").orderBy(F.desc("_change_ordinal"), F.desc("_change_type"))
            changes = batch.withColumn("place", F.row_number().over(last)).where("place = 1")
            copy = sm.load_table(location, spark=batch.sparkSession)
            key = {"spark.sql.streaming.queryId": "copy", "spark.sql.streaming.epochId": str(batch_id)}
            merge = copy.merge(changes, "id", snapshot_properties=key)
            merge = merge.when_matched("source._change_type = 'DELETE'").delete().when_matched().update_all()
            merge.when_not_matched("source._change_type = 'INSERT'").insert_all().merge()

        changes = self.spark.readStream.format("sparkmeta").option("table", "changelog").load(self.location)
        sink = changes.writeStream.foreachBatch(apply).trigger(processingTime="1 second")
        return sink.option("checkpointLocation", str(self.copied)).start()

    @property
    def copied(self) -> Path:
        """The checkpoint of the stream into the copy."""
        return self.folder / "copied"

    def forget(self) -> None:
        """Make Spark repeat the last batch, as if it had died after its commit."""
        for name in (f"{self.count - 1}", f".{self.count - 1}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    @property
    def query(self) -> str:
        name: str = json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"]
        return name


def main(folder: str, location: str, copy: str, options: str) -> None:
    """Run a stream of files into a table, and out of it into a copy, in a new session."""
    spark = sm.local_session("stream", memory="2g")
    sm.register(spark)
    batches = Batches(spark, Path(folder), location)
    copying = batches.start_copy(copy)
    batches.start(**json.loads(options))
    try:
        spark.streams.awaitAnyTermination()
        copying.processAllAvailable()
    except StreamingQueryException:
        traceback.print_exc()
        os._exit(1)  # the other query is in the middle of something
    copying.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
