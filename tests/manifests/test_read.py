"""Manifests read by Spark tasks: who opens them, how they are shared out, and what reaches the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.avro import container
from sparkmeta.avro.container import Windows
from sparkmeta.entries.manifest_records import _scattered
from sparkmeta.storage.files import LocalFiles
from tests.handmade import HandmadeTable, data, long_bounds
from tests.plans import optimized_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

HOSTILE = "a b%20c[d]{e}?*=ü+'#"


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[object]:
    changed: list[str] = []

    def change(name: str, value: str) -> None:
        changed.append(f"spark.sparkmeta.{name}")
        spark.conf.set(changed[-1], value)

    yield change
    for name in changed:
        spark.conf.unset(name)


def planned(location: str, spark: SparkSession) -> list[tuple[str, int, int]]:
    frame = sm.load_table(location, spark=spark).scan().plan_files()
    return sorted((row.file_path, row.manifest_pos, row.first_row_id) for row in frame.collect())


def test_python_and_spark_read_the_same_whatever_the_names(
    tmp_path: Path, spark: SparkSession, setting: object
) -> None:
    table = HandmadeTable(tmp_path / HOSTILE)
    for number in range(3):
        table.add(0, 0, *(data(f"file:///t/{number}-{n}") for n in range(4)))
    location = table.write()
    on_driver = planned(location, spark)
    assert len(on_driver) == 12
    setting("driver-manifest-bytes", "0")  # type: ignore[operator]
    direct = planned(location, spark)
    assert direct == on_driver
    setting("executor-reads", "spark")  # type: ignore[operator]
    assert planned(location, spark) == direct
    setting("split-manifest-bytes", "100")  # type: ignore[operator]
    assert planned(location, spark) == direct


def test_a_large_manifest_is_decoded_by_several_tasks(tmp_path: Path, spark: SparkSession, setting: object) -> None:
    table = HandmadeTable(tmp_path, version=2, block_bytes=2_000)
    table.add(0, 0, *(data(f"file:///t/{n}") for n in range(2_000)))
    location = table.write()
    setting("driver-manifest-bytes", "0")  # type: ignore[operator]
    setting("split-manifest-bytes", "1k")  # type: ignore[operator]
    frame = sm.load_table(location, spark=spark).scan().plan_files()
    by_task = frame.groupBy(F.spark_partition_id()).count().collect()
    assert len(by_task) == 2
    assert sum(row["count"] for row in by_task) == 2_000
    assert min(row["count"] for row in by_task) > 500
    assert [row.manifest_pos for row in frame.orderBy("manifest_pos").collect()] == list(range(2_000))


def test_a_long_manifest_is_not_read_as_a_whole(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = HandmadeTable(tmp_path, version=2, block_bytes=2_000)
    table.add(0, 0, *(data(f"file:///t/{n}") for n in range(500)))
    location = table.write()
    whole = LocalFiles.read

    def read(self: LocalFiles, path: str) -> bytes:
        assert not path.endswith("m0.avro")
        return whole(self, path)

    expected = planned(location, spark)
    monkeypatch.setattr(container, "_LONG_BYTES", 1_000)
    monkeypatch.setattr(Windows, "SIZE", 5_000)
    monkeypatch.setattr(LocalFiles, "read", read)
    assert planned(location, spark) == expected
    assert len(expected) == 500


def test_a_missing_manifest_is_named(tmp_path: Path, spark: SparkSession) -> None:
    location = HandmadeTable(tmp_path).add(0, 0, data("file:///t/a")).write()
    (tmp_path / "metadata" / "m0.avro").unlink()
    with pytest.raises(Exception, match=r"m0\.avro: there is no such file"):
        sm.load_table(location, spark=spark).scan().plan_files().collect()


def test_a_broken_manifest_is_named_with_field_and_value(tmp_path: Path, spark: SparkSession) -> None:
    location = HandmadeTable(tmp_path).add(0, 0, data("file:///t/a", status=5)).write()
    with pytest.raises(Exception, match=r"m0\.avro: .*status is 5: not one of 0, 1, 2"):
        sm.load_table(location, spark=spark).scan().plan_files().collect()


def test_planning_brings_no_entries_to_the_driver(tmp_path: Path, spark: SparkSession, setting: object) -> None:
    """If tasks read manifests, the driver sends and collects as much for a plan of 10 entries as for one of 5,000."""
    setting("driver-manifest-bytes", "0")  # type: ignore[operator]
    sizes = []
    for entries in (10, 5_000):
        table = HandmadeTable(tmp_path / str(entries), version=2)
        table.add(0, 0, *(data(f"file:///t/{n}", **long_bounds(n, n)) for n in range(entries)))
        frame = sm.load_table(table.write(), spark=spark).scan("id < 7").plan_files()
        plan = optimized_plan(frame)
        sizes.append(len(plan.replace(str(tmp_path / str(entries)), "")))
        assert plan.count("LocalRelation") == 1
    assert abs(sizes[0] - sizes[1]) < 50


@pytest.mark.parametrize("size", [0, 1, 2, 7, 120, 1000])
def test_neighbours_sample_the_whole_range(size: int) -> None:
    order = _scattered(size)
    assert sorted(order) == list(range(size))
    if size >= 100:
        halves = [sum(order[: size // 2]), sum(order[size // 2 :])]
        assert abs(halves[0] - halves[1]) < 0.05 * sum(order)
