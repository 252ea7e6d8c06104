"""Few Avro manifests are decoded on the driver, by threads; many, and large ones, by tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta import session
from sparkmeta.manifests import placement
from tests.handmade import HandmadeTable, data, deletion_vector, long_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FILES = 40
HERE, TASKS = "here", "tasks"
BYTES, PLANNING = "spark.sparkmeta.driver-manifest-bytes", "spark.sparkmeta.planning"


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> Iterator[HandmadeTable]:
    made = HandmadeTable(tmp_path, summaries=True)
    for part in "ab":
        of = {"partition": {"part": part}}
        made.add(0, 1, *(data(f"file:///t/{part}{one}", **of, **long_bounds(one, one)) for one in range(FILES // 2)))
    made.specs = (made.specs[1],) * 2
    yield made
    for setting in (BYTES, PLANNING):
        spark.conf.unset(setting)


def decoded(frame: DataFrame) -> str:
    return TASKS if "MapInArrow" in frame._jdf.queryExecution().optimizedPlan().toString() else HERE  # type: ignore[operator]


def scanned(table: HandmadeTable, spark: SparkSession, row_filter: str = "true") -> tuple[str, int]:
    planned = sm.load_table(table.write(), spark=spark).scan(row_filter).plan_files()
    return decoded(planned), len(planned.collect())


def test_the_setting_says_how_many_bytes(table: HandmadeTable, spark: SparkSession) -> None:
    assert scanned(table, spark) == (HERE, FILES)
    size = sum(one.stat().st_size for one in (table.folder / "metadata").glob("m*.avro"))
    for most, where in ((0, TASKS), (size - 1, TASKS), (size, HERE)):
        spark.conf.set(BYTES, str(most))
        assert scanned(table, spark) == (where, FILES)


def test_what_spark_is_to_read_is_not_read_here(table: HandmadeTable, spark: SparkSession) -> None:
    spark.conf.set("spark.sparkmeta.executor-reads", "spark")
    try:
        assert scanned(table, spark) == (TASKS, FILES)
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")


def test_many_entries_are_for_tasks_but_where_stats_leave_few(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOST_ENTRIES", FILES // 2 - 1)
    monkeypatch.setattr(placement, "MOST_TESTED_ENTRIES", FILES // 2)
    assert scanned(table, spark) == (TASKS, FILES)
    assert scanned(table, spark, "id = 3") == (TASKS, 2)
    assert scanned(table, spark, "part = 'a'") == (TASKS, FILES // 2)  # partitions have told all of that
    assert scanned(table, spark, "part = 'a' and id = 3") == (HERE, 1)
    monkeypatch.setattr(placement, "MOST_ENTRIES", FILES // 2)
    assert scanned(table, spark, "part = 'a'") == (HERE, FILES // 2)


def test_large_entries_and_uncounted_ones_count_for_more(table: HandmadeTable, spark: SparkSession) -> None:
    files = sm.load_table(table.write(), spark=spark).inspect.files()
    size = sum(one.stat().st_size for one in (table.folder / "metadata").glob("m*.avro"))
    assert (decoded(files), files.count()) == (HERE, FILES)
    for times, of_files, of_plan, uncounted in (
        (15, TASKS, HERE, HERE),
        (16, HERE, HERE, HERE),
        (7, TASKS, HERE, TASKS),
    ):
        spark.conf.set(BYTES, str(times * size))
        table.summaries = True
        assert decoded(sm.load_table(table.write(), spark=spark).inspect.files()) == of_files
        assert scanned(table, spark)[0] == of_plan
        table.summaries = False  # nor are there counts then
        assert scanned(table, spark)[0] == uncounted


def test_deletes_and_data_are_counted_together(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set(PLANNING, "auto")
    table.add(1, 1, deletion_vector("file:///t/a1", partition={"part": "a"}))
    assert scanned(table, spark) == (HERE, FILES)
    monkeypatch.setattr(placement, "MOST_ENTRIES", FILES)
    assert scanned(table, spark) == (TASKS, FILES)


def test_what_is_selected_of_many_rows_is_computed_by_tasks(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan() -> tuple[str, list[str]]:
        planned = sm.load_table(table.write(), spark=spark).scan().plan_files()
        text = planned._jdf.queryExecution().optimizedPlan().toString()  # type: ignore[operator]
        return text, sorted(row.file_path for row in planned.collect())

    few, expected = plan()
    assert few.startswith("LocalRelation")
    monkeypatch.setattr(session, "_INTERPRETED_ROWS", FILES - 1)
    many, found = plan()
    assert many.startswith("Project")
    assert found == expected


def test_a_manifest_that_can_not_be_read_is_named(table: HandmadeTable, spark: SparkSession) -> None:
    location = table.write()
    (table.folder / "metadata" / "m1.avro").unlink()
    with pytest.raises(sm.NotFoundError, match=r"m1\.avro"):
        sm.load_table(location, spark=spark).scan().plan_files()
