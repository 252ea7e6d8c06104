"""Few small Avro manifests are decoded by threads of the driver, others by tasks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta import session
from sparkmeta.manifests import placement, reader
from sparkmeta.plan import filter as plan_filter
from sparkmeta.service.rest_tasks import to_rest_tasks
from tests.handmade import HandmadeTable, data, deletion_vector, long_bounds
from tests.plans import optimized_plan
from tests.trees import BY_PART, TreeTable
from tests.trees import data as tree_data
from tests.trees import stats as tree_stats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FILES = 40
DRIVER, TASKS = "driver", "tasks"
BYTES, PLANNING = "spark.sparkmeta.driver-manifest-bytes", "spark.sparkmeta.planning"


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> Iterator[HandmadeTable]:
    table = HandmadeTable(tmp_path, summaries=True)
    for part in "ab":
        files = (
            data(f"file:///t/{part}{number}", partition={"part": part}, **long_bounds(number, number))
            for number in range(FILES // 2)
        )
        table.add(0, 1, *files)
    table.specs = (table.specs[1],) * 2
    yield table
    for setting in (BYTES, PLANNING):
        spark.conf.unset(setting)


def decoded(frame: DataFrame) -> str:
    return TASKS if "MapInArrow" in optimized_plan(frame) else DRIVER


def scanned(table: HandmadeTable, spark: SparkSession, row_filter: str = "true") -> tuple[str, int]:
    planned = sm.load_table(table.write(), spark=spark).scan(row_filter).plan_files()
    return decoded(planned), len(planned.collect())


def limit_entries(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(placement, "MOST_ENTRIES", limit)
    monkeypatch.setattr(reader, "MOST_WIDE_ENTRIES", limit)


def test_the_setting_limits_the_bytes_that_the_driver_decodes(table: HandmadeTable, spark: SparkSession) -> None:
    assert scanned(table, spark) == (DRIVER, FILES)
    size = sum(path.stat().st_size for path in (table.folder / "metadata").glob("m*.avro"))
    for limit, placement_of_plan in ((0, TASKS), (size - 1, TASKS), (size, DRIVER)):
        spark.conf.set(BYTES, str(limit))
        assert scanned(table, spark) == (placement_of_plan, FILES)


def test_manifests_that_spark_reads_are_not_decoded_by_the_driver(table: HandmadeTable, spark: SparkSession) -> None:
    spark.conf.set("spark.sparkmeta.executor-reads", "spark")
    try:
        assert scanned(table, spark) == (TASKS, FILES)
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")


def test_tasks_decode_many_entries(table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_entries(monkeypatch, FILES // 2 - 1)
    assert scanned(table, spark) == (TASKS, FILES)
    assert scanned(table, spark, "part = 'a' and id = 3") == (TASKS, 1)
    limit_entries(monkeypatch, FILES // 2)
    assert scanned(table, spark) == (TASKS, FILES)
    assert scanned(table, spark, "part = 'a' and id = 3") == (DRIVER, 1)
    assert scanned(table, spark, "part = 'a'") == (DRIVER, FILES // 2)


def test_only_bytes_count_where_entries_are_not_counted(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_entries(monkeypatch, FILES - 1)
    assert scanned(table, spark) == (TASKS, FILES)
    table.summaries = False  # then there are no counts either
    assert scanned(table, spark) == (DRIVER, FILES)
    size = sum(path.stat().st_size for path in (table.folder / "metadata").glob("m*.avro"))
    spark.conf.set(BYTES, str(size))
    assert scanned(table, spark) == (DRIVER, FILES)
    spark.conf.set(BYTES, str(size - 1))
    assert scanned(table, spark) == (TASKS, FILES)


def test_deletes_and_data_are_counted_together(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set(PLANNING, "auto")
    table.add(1, 1, deletion_vector("file:///t/a1", partition={"part": "a"}))
    assert scanned(table, spark) == (DRIVER, FILES)
    limit_entries(monkeypatch, FILES)
    assert scanned(table, spark) == (TASKS, FILES)


def test_tasks_compute_columns_of_many_rows(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan() -> tuple[str, list[str]]:
        planned = sm.load_table(table.write(), spark=spark).scan().plan_files()
        text = optimized_plan(planned)
        return text, sorted(row.file_path for row in planned.collect())

    few, expected = plan()
    assert few.startswith("LocalRelation")
    monkeypatch.setattr(session, "_INTERPRETED_ROWS", FILES - 1)
    many, paths = plan()
    assert many.startswith("Repartition")
    assert paths == expected


def test_an_unreadable_manifest_is_named(table: HandmadeTable, spark: SparkSession) -> None:
    location = table.write()
    (table.folder / "metadata" / "m1.avro").unlink()
    with pytest.raises(sm.NotFoundError, match=r"m1\.avro"):
        sm.load_table(location, spark=spark).scan().plan_files()


def test_tasks_have_the_partitions_of_files_that_the_driver_plans(spark: SparkSession, tmp_path: Path) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    tree.snapshot(added=[tree.leaf("m", tree_data("x:1", "a")), tree_data("x:2", "b")])
    tasks = [json.loads(row.task) for row in tree.load(spark).scan().plan_task_json().collect()]
    parts = {task["data-file"]["file-path"]: task["data-file"]["partition"] for task in tasks}
    assert parts == {"x:1": {"1000": "a"}, "x:2": {"1000": "b"}}


def test_rest_tasks_have_the_stats_of_files_in_the_root(spark: SparkSession, tmp_path: Path) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    files = [tree_data(f"x:{low}", content_stats=tree_stats("a", (low, low + 5))) for low in (1, 2)]
    tree.snapshot(added=[tree.leaf("m", files[0]), files[1]])
    tasks = [json.loads(row.task) for row in to_rest_tasks(tree.load(spark).scan(), stats_fields=["id"]).collect()]
    bounds = {task["data-file"]["file-path"]: task["data-file"]["lower-bounds"] for task in tasks}
    assert bounds == {f"x:{low}": {"keys": [1], "values": [f"0{low}".ljust(16, "0")]} for low in (1, 2)}


def test_a_long_residual_is_not_copied_for_each_of_many_files(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_filter, "_COPIES", 1000)
    long = " or ".join(f"id = {number}" for number in range(40))
    scan = sm.load_table(table.write(), spark=spark).scan(f"({long}) or id > 0")
    planned = scan.plan_files()
    assert "Join" in optimized_plan(planned)
    assert sorted(row.residual for row in planned.collect()) == sorted(scan.arrow.plan_files()["residual"].to_pylist())
