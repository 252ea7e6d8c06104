"""The life of a table: every kind of change and every maintenance job, each checked against a model in plain Python.

`python -m tests.table_life master folder` leads some lives on a cluster, and prints the hosts of its
tasks and the lives.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.fleet.jobs import BY_NAME, NOTHING, Check
from sparkmeta.session import map_arrow, prepare_environment
from tests.frames import local_frame
from tests.local_files import local_path
from tests.maintain.test_expire import files_below, soon

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

Row = tuple[str, datetime | None, float | None]

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "price", DoubleType()),
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")), pa.field("price", pa.float64()),
    ]
)  # fmt: skip
BY_DAY = PartitionSpec(PartitionField(3, 1000, DayTransform(), "at_day"))
START = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
COPY, MERGE = "copy-on-write", "merge-on-read"
PROPOSAL, ICEBERG = "proposal", "iceberg"
LIVES = [
    (2, "parquet", MERGE, PROPOSAL), (3, "orc", MERGE, PROPOSAL), (3, "avro", COPY, ICEBERG),
    (4, "parquet", MERGE, PROPOSAL), (4, "parquet", MERGE, ICEBERG),
]  # fmt: skip
"""Format version, file format, the mode of changes, and the layout of trees."""
ON_CLUSTERS = [(2, "orc", MERGE, PROPOSAL), (3, "avro", MERGE, PROPOSAL), (4, "parquet", MERGE, PROPOSAL)]

# The jobs, with options that make them do something, in an order in which there is something to do.
JOBS: dict[str, list[dict[str, Any]]] = {
    "rewrite_position_delete_files": [{"rewrite_all": True}],
    "convert_equality_deletes": [{}],
    "rewrite_data_files": [{"rewrite_all": True}, {"strategy": "sort", "sort_order": "at DESC", "rewrite_all": True}],
    "remove_dangling_deletes": [{}],
    "rewrite_manifests": [{}],
    "compact_manifests": [{"cluster_by": ["at_day"]}],
    "compute_partition_stats": [{}],
    "compute_table_stats": [{}],
    "expire_snapshots": [{"retain_last": 1}],
    "remove_orphan_files": [{"force": True}],
}


def ordinary(start: int, stop: int) -> dict[int, Row]:
    """Rows of three days by id, some of whose values are null."""
    return {
        i: (f"n{i}", None if i % 10 == 7 else START + timedelta(days=i % 3, seconds=i), None if i % 7 == 0 else i / 8)
        for i in range(start, stop)
    }


class Life:
    """A table, and the rows that it must have."""

    def __init__(self, spark: SparkSession, folder: Path, version: int, form: str, mode: str, layout: str) -> None:
        self.spark, self.version, self.mode = spark, version, mode
        self.catalog = sm.load_catalog("lives", type="hadoop", warehouse=folder.as_uri())
        self.catalog.create_namespace("db")
        properties = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
        properties |= {"write.format.default": form, "write.tree.layout": layout}
        self.table = self.catalog.create_table(
            "db.t", SCHEMA, BY_DAY, format_version=version, properties=properties, spark=spark
        )
        self.rows: dict[int, Row] = {}

    def frame(self, rows: Mapping[int, Row]) -> DataFrame:
        records = [dict(zip(ARROW.names, (i, *row), strict=True)) for i, row in rows.items()]
        table = pa.Table.from_pylist(records, ARROW)
        return local_frame(self.spark, table).repartition(2)

    def step(self, table: sm.Table, **changes: Row | None) -> None:
        """Check the rows of the table after a change of the rows of some ids; None removes one."""
        changed = {int(key[1:]): row for key, row in changes.items()}
        self.table = table
        self.rows = {i: row for i, row in {**self.rows, **changed}.items() if row is not None}
        self.check()

    def check(self) -> None:
        read = self.table.scan().to_arrow()
        assert {row["id"]: (row["name"], row["at"], row["price"]) for row in read.to_pylist()} == self.rows
        assert read.num_rows == len(self.rows) == self.table.scan().count()
        assert read.schema.field("at").type == pa.timestamp("us", "UTC")
        if (snapshot := self.table.current_snapshot()) and snapshot.has_root:
            assert not self.table.check().collect()

    def lead(self) -> None:
        self.change()
        self.plan()
        self.maintain()
        self.migrate()
        location = local_path(self.table.location())
        self.catalog.purge_table("db.t", self.spark).commit()
        assert not self.catalog.table_exists("db.t")
        assert not files_below(Path(location, "data"))

    def change(self) -> None:
        for start, stop in ((0, 40), (40, 60)):
            self.step(self.table.append(self.frame(ordinary(start, stop))), **named(ordinary(start, stop)))
        first, before = self.table.current_snapshot(), dict(self.rows)
        assert first is not None
        gone = [i for i, (_, at, _) in self.rows.items() if at and at < START + timedelta(seconds=30)]
        self.step(self.table.delete("at < '2026-01-01T00:00:30.123456+00:00'"), **named(dict.fromkeys(gone)))
        later = {i: (n, at and at + timedelta(days=1), p) for i, (n, at, p) in self.rows.items() if i < 12}
        self.step(self.table.update({"at": F.col("at") + F.expr("INTERVAL 1 DAY")}, "id < 12"), **named(later))
        merged = {i: (f"merged {i}", START, 0.5) for i in (20, 23, 70, 71)}
        merge = self.table.merge(self.frame(merged), on=["id"]).when_matched().update_all().when_not_matched()
        self.step(merge.insert_all().merge(), **named(merged))
        self.step(self.table.upsert(self.frame(ordinary(58, 64)), ["id"]), **named(ordinary(58, 64)))
        keys = {i: self.rows[i] for i in (41, 44)}
        self.step(self.table.equality_delete(self.frame(keys), ["id"]), **named(dict.fromkeys(keys)))
        changelog = self.table.changelog(first.snapshot_id, net_changes=True).to_df()
        told = Counter(
            (row["_change_type"], row["id"], row["name"], row["at"], row["price"])
            for row in changelog.toArrow().to_pylist()
        )
        was, now = ({(i, *row) for i, row in rows.items()} for rows in (before, self.rows))
        assert told == Counter([("DELETE", *row) for row in was - now] + [("INSERT", *row) for row in now - was])

    def plan(self) -> None:
        planned = self.table.scan("at >= '2026-01-02T00:00:00+00:00' and at < '2026-01-03T00:00:00+00:00'").plan_files()
        files, every = planned.count(), self.table.scan().plan_files().count()
        assert 0 < files < every == self.table.inspect.data_files().count()
        deletes = self.table.inspect.position_deletes()
        assert (deletes.count() > 0) == (self.mode == MERGE)
        assert self.table.scan("price = 0.5").count() == sum(price == 0.5 for _, _, price in self.rows.values())

    def maintain(self) -> None:
        assert {*JOBS, "expire_rows", "check", "upgrade", "downgrade"} == set(BY_NAME), "a job that no life has"
        self.table.maintenance.health().findings().collect()
        limit = START + timedelta(days=1, seconds=20)
        gone = [i for i, (_, at, _) in self.rows.items() if at and at < limit]
        assert gone
        self.table.maintenance.expire_rows("at", limit).commit()
        self.step(self.table.refresh(), **named(dict.fromkeys(gone)))
        orphan = Path(local_path(self.table.location()), "data", "left.parquet")
        orphan.write_bytes(b"left")
        for name, calls in JOBS.items():
            for options in calls:
                if BY_NAME[name].suits(self.table, options):
                    times = {"older_than": soon()} if name in ("expire_snapshots", "remove_orphan_files") else {}
                    getattr(self.table.maintenance, name)(**options, **times).commit()
                    self.step(self.table.refresh())
        assert not orphan.exists()
        assert Check().outcome(self.table) == {"status": NOTHING}
        assert len(self.table.snapshots()) == 1
        assert self.table.inspect.delete_files().count() == 0
        days = {at and at.date() for _, at, _ in self.rows.values()}
        assert self.table.inspect.partition_statistics().count() == len(days)
        (statistics,) = self.table.metadata.statistics
        distinct = {tuple(blob.fields): blob.properties["ndv"] for blob in statistics.blob_metadata}
        assert distinct[1,] == str(len(self.rows))

    def migrate(self) -> None:
        if self.version == 4:
            self.table.maintenance.downgrade(3).commit()
            self.step(self.table.refresh())
            return
        for version in range(self.version + 1, 5):
            self.table.maintenance.upgrade(version).commit()
            self.step(self.table.refresh())
        self.table.maintenance.undo_upgrade().commit()
        self.step(self.table.refresh())
        self.step(self.table.append(self.frame(ordinary(80, 83))), **named(ordinary(80, 83)))


def named(rows: Mapping[int, Row | None]) -> dict[str, Row | None]:
    """Changes of rows as arguments of `Life.step`."""
    return {f"i{i}": row for i, row in rows.items()}


def hosts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the hosts of tasks."""
    for _ in batches:
        yield pa.record_batch({"host": [os.environ["SPARK_LOCAL_IP"]]})


def main(master: str, folder: Path) -> None:
    prepare_environment()
    # Only what a cluster needs to find this package.
    builder = SparkSession.builder.master(master).config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    spark = builder.config("spark.speculation", "true").getOrCreate()
    ran: set[str] = set()
    while len(ran) < 2:  # until both workers have an executor
        used = map_arrow(spark.range(0, 8, 1, 8), hosts, pa.schema([("host", pa.string())]))
        ran.update(used.toArrow().column(0).to_pylist())
    print(*sorted(ran))  # noqa: T201
    for number, life in enumerate(ON_CLUSTERS):
        Life(spark, folder / str(number), *life).lead()
        print(*life, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
