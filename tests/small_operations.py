"""Operations of the library on a table of 100 files, and the Spark tasks and seconds that each takes.

`python -m tests.small_operations` runs them on a standalone cluster of two workers, in a session with Spark's defaults.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.session import prepare_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

PARTITIONS, COMMITS = 10, 10
ROOT = Path(__file__).parent.parent
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", LongType(), required=False),
    NestedField(3, "name", StringType(), required=False),
)
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
_METADATA_TABLES = (
    "entries", "files", "data_files", "delete_files", "manifests", "partitions", "position_deletes", "snapshots",
    "history", "refs", "metadata_log_entries", "all_manifests", "all_files", "all_entries",
)  # fmt: skip
_groups = itertools.count()


@dataclass(frozen=True)
class Cost:
    """What an operation took.

    Attributes:
        tasks: the Spark tasks that it ran.
        seconds: by the clock.
    """

    tasks: int
    seconds: float


def costs(spark: SparkSession, folder: Path, version: int) -> Iterator[tuple[str, Cost]]:
    """Yield the cost of each operation on a table of 100 files and some deletes, by its name."""
    table = _table(spark, folder, version)
    for name, operation in _operations(spark, version):
        yield name, _cost(spark, lambda operation=operation: operation(table.refresh()))  # type: ignore[misc]


def _cost(spark: SparkSession, action: Callable[[], object]) -> Cost:
    group, context = f"small {next(_groups)}", spark.sparkContext
    context.setJobGroup(group, "")
    begin = time.perf_counter()
    try:
        action()
    finally:
        seconds = time.perf_counter() - begin
        context.setJobGroup("", "")
    tracker, tasks = context.statusTracker(), 0
    for job in tracker.getJobIdsForGroup(group):
        if (jobs := tracker.getJobInfo(job)) is not None:
            stages = map(tracker.getStageInfo, jobs.stageIds)
            tasks += sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return Cost(tasks, seconds)


def _rows(spark: SparkSession, start: int, stop: int) -> DataFrame:
    rows = spark.range(start, stop, 1, 1)
    return rows.select("id", (F.col("id") % PARTITIONS).alias("part"), F.concat(F.lit("n"), "id").alias("name"))


def _table(spark: SparkSession, folder: Path, version: int) -> sm.Table:
    catalog = sm.load_catalog("small", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    properties = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
    table = catalog.create_table("db.t", SCHEMA, BY_PART, format_version=version, properties=properties, spark=spark)
    for commit in range(COMMITS):
        table = table.append(_rows(spark, commit * 100, commit * 100 + 100))
    return table.delete("id in (7, 107, 207, 318, 429)")


def _operations(spark: SparkSession, version: int) -> Iterator[tuple[str, Callable[[sm.Table], Any]]]:
    """Yield operations in an order in which each has something to do."""
    later = datetime.now(UTC) + timedelta(days=1)
    yield "plan_files", lambda table: table.scan().plan_files().collect()
    yield "plan_files of a filter", lambda table: table.scan("part = 3 and id < 500").plan_files().collect()
    yield "count_files", lambda table: table.scan("part = 3").count_files()
    yield "plan_tasks", lambda table: table.scan().plan_tasks().collect()
    yield "plan_task_json", lambda table: table.scan().plan_task_json().collect()
    yield "report", lambda table: table.scan("part = 3").report()
    yield "count", lambda table: table.scan("part = 3").count()
    yield "to_df", lambda table: table.scan("part = 3").to_df().collect()
    yield "incremental", lambda table: table.incremental(_oldest(table)).to_df().collect()
    yield "changelog", lambda table: table.changelog(_oldest(table)).to_df().collect()
    yield "changelog, net", lambda table: table.changelog(_oldest(table), net_changes=True).to_df().collect()
    yield "file_changes", lambda table: table.file_changes(_oldest(table)).collect()
    yield "check", lambda table: table.check().collect()
    for name in _METADATA_TABLES:
        yield f"inspect.{name}", lambda table, name=name: getattr(table.inspect, name)().collect()
    yield "health", lambda table: table.maintenance.health().findings().collect()
    yield "append", lambda table: table.append(_rows(spark, 1000, 1100))
    yield "overwrite", lambda table: table.overwrite(_rows(spark, 1000, 1010), "id >= 1000")
    yield "delete", lambda table: table.delete("id = 15")
    yield "delete of a partition", lambda table: table.delete("part = 9")
    yield "update", lambda table: table.update({"name": "x"}, "id in (21, 22)")
    yield "merge", _merge(spark)
    yield "upsert", lambda table: table.upsert(_rows(spark, 38, 48), ["id"])
    yield "equality_delete", lambda table: table.equality_delete(_rows(spark, 53, 54).select("id", "part"), ["id"])
    yield "compute_partition_stats", lambda table: table.maintenance.compute_partition_stats().commit()
    yield "compute_table_stats", lambda table: table.maintenance.compute_table_stats().commit()
    if version < 4:
        yield "rewrite_manifests", lambda table: table.maintenance.rewrite_manifests().commit()
        yield (
            "rewrite_position_delete_files",
            (lambda table: table.maintenance.rewrite_position_delete_files(rewrite_all=True).commit()),
        )
    else:
        yield "leaf_map", lambda table: table.maintenance.leaf_map()
        yield "compact_manifests", lambda table: table.maintenance.compact_manifests().commit()
    yield "rewrite_data_files", lambda table: table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    yield "remove_dangling_deletes", lambda table: table.maintenance.remove_dangling_deletes().commit()
    yield (
        "expire_snapshots",
        (lambda table: table.maintenance.expire_snapshots(retain_last=1, older_than=later).commit()),
    )
    yield (
        "remove_orphan_files",
        (lambda table: table.maintenance.remove_orphan_files(older_than=later, force=True).commit()),
    )
    if version < 4:
        yield "upgrade", lambda table: table.maintenance.upgrade(4).commit()
    yield "downgrade", lambda table: table.maintenance.downgrade(3).commit()


def _oldest(table: sm.Table) -> int:
    return table.snapshots()[0].snapshot_id


def _merge(spark: SparkSession) -> Callable[[sm.Table], object]:
    def merge(table: sm.Table) -> object:
        merge = table.merge(_rows(spark, 31, 36), on=["id"]).when_matched().update_all()
        return merge.when_not_matched().insert_all().merge()

    return merge


def main(master: str) -> None:
    """Print the cost of each operation, after a first run that warms the session, on a cluster."""
    prepare_environment()
    builder = SparkSession.builder.master(master).config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    spark = builder.getOrCreate()
    for version in (2, 3, 4):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("warm", "timed"):
                for operation, cost in costs(spark, Path(folder, name), version):
                    if name == "timed":
                        print(f"v{version} {operation:40}{cost.tasks:5} tasks {cost.seconds:6.2f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from tests.cluster import standalone_cluster

        with tempfile.TemporaryDirectory() as workers, standalone_cluster(Path(workers)) as cluster:
            command = [sys.executable, "-m", "tests.small_operations", cluster.master]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
