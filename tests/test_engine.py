"""What a notebook does, on a classic session and on Spark Connect: open a table, look at it, plan scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds, position_deletes

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

PART = {"partition": {"part": "x"}}


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> sm.Table:
    handmade = HandmadeTable(tmp_path / "a b%20[c]{d}")
    handmade.add(0, 1, *(data(f"file:///t/{n}.parquet", 1, **PART, **long_bounds(n, n + 9)) for n in range(0, 40, 10)))
    handmade.add(0, 0, data("file:///t/other.parquet", 1, **long_bounds(0, 99)))
    handmade.add(1, 1, deletion_vector("file:///t/20.parquet", 2, **PART), position_deletes("x:pos", 2, **PART))
    handmade.add(1, 0, equality_deletes("x:eq", 3, **long_bounds(30, 35)))
    return sm.load_table(handmade.write(), spark=spark)


def test_files_with_their_deletes(table: sm.Table) -> None:
    planned = {row.file_path: row for row in table.scan("id >= 15 and part = 'x'").plan_files().collect()}
    assert {path: [delete.file_path for delete in row.deletes] for path, row in planned.items()} == {
        "file:///t/10.parquet": ["x:pos"],
        "file:///t/20.parquet": ["file:///t/dvs.puffin"],
        "file:///t/30.parquet": ["x:eq", "x:pos"],
        "file:///t/other.parquet": ["x:eq"],
    }
    assert planned["file:///t/10.parquet"].residual == '{"type":"gt-eq","term":"id","value":15}'
    assert planned["file:///t/10.parquet"].partition.part == "x"
    assert planned["file:///t/other.parquet"].partition.part is None


def test_tasks_hold_every_file_once(table: sm.Table) -> None:
    tasks = table.scan().plan_tasks().collect()
    splits = [(split.file_path, split.start, split.length) for task in tasks for split in task.tasks]
    assert sorted(splits) == [(f"file:///t/{n}.parquet", 0, 100) for n in (0, 10, 20, 30)] + [
        ("file:///t/other.parquet", 0, 100)
    ]


def test_the_report_says_what_was_skipped_and_why(table: sm.Table) -> None:
    report = table.scan("id >= 15 and part = 'x'").report()
    counts = report.data_entries
    assert (counts.scanned, counts.skipped_by_partition, counts.skipped_by_stats, counts.planned) == (5, 0, 1, 4)
    assert (report.data_manifests.scanned, report.delete_manifests.scanned) == (2, 2)
    assert (report.files_with_deletes, report.delete_files) == (4, 5)
    assert "skipped_by_stats 1" in str(report)


def test_a_filter_that_no_partition_matches_scans_no_entry_of_it(table: sm.Table) -> None:
    assert [row.file_path for row in table.scan("part = 'y'").plan_files().collect()] == ["file:///t/other.parquet"]


@pytest.mark.parametrize("name", ["files", "entries", "manifests", "partitions", "snapshots", "refs", "history"])
def test_metadata_tables(table: sm.Table, name: str) -> None:
    counts = {"files": 8, "entries": 8, "manifests": 4, "partitions": 2, "snapshots": 1, "refs": 1, "history": 0}
    assert len(getattr(table.inspect, name)().collect()) == counts[name]
