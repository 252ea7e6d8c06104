"""`maintenance.expire_rows`: rows leave by their age, and files without newer rows leave unopened."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from tests.command_line import invoke

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 24 * 6
INSTANT = pa.timestamp("us", tz="UTC")
TYPES = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": INSTANT,
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
}
SPECS: dict[str, list[str]] = {"unpartitioned": [], "day": ["day(at)"], "two": ["month(at)", "bucket(4, id)"]}
CASES = [
    (version, kind, spec)
    for version in (1, 2, 3, 4)
    for kind in TYPES
    for spec in SPECS
    if version > 2 or not kind.endswith("_ns")
]


def rows_by_hour(kind: pa.DataType, rng: random.Random) -> pa.Table:
    """A row for each hour, and rows without a time, in random order."""
    rows: list[tuple[int, datetime | None]] = [(hour, BEGIN + timedelta(hours=hour)) for hour in range(HOURS)]
    rows += [(HOURS + place, None) for place in range(3)]
    rng.shuffle(rows)
    ids, times = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "at": pa.array(times, INSTANT).cast(kind, safe=False)})


def new_table(folder: Path, version: int, kind: str, spec: Sequence[str], mode: str, rng: random.Random) -> sm.Table:
    """A table of rows by hour, with recent rows in one commit and others in two."""
    rows = rows_by_hour(TYPES[kind], rng)
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(folder))
    properties = {"write.delete.mode": mode}
    table = catalog.create_table("db.t", rows.schema, partition_by=spec, format_version=version, properties=properties)
    ordered = rows.sort_by("at")
    # Rows without a time are last in order.
    for part in (ordered.slice(0, HOURS // 3), ordered.slice(HOURS), ordered.slice(HOURS // 3, HOURS - HOURS // 3)):
        table = table.append(part)
    return table


def is_older(value: Any, kind: str, bound: datetime) -> bool:
    """Whether a value is before a time, in UTC."""
    limit = pa.array([bound], INSTANT).cast(TYPES[kind], safe=False)[0].as_py()
    return value is not None and value < limit


@pytest.mark.parametrize(("version", "kind", "spec"), CASES)
def test_rows_before_a_time(tmp_path: Path, version: int, kind: str, spec: str) -> None:
    rng = random.Random(f"{version} {kind} {spec}")
    mode = rng.choice(["copy-on-write", "merge-on-read"])
    table = new_table(tmp_path, version, kind, SPECS[spec], mode, rng)
    bound = BEGIN + timedelta(hours=rng.randrange(24, HOURS))
    expected, whole_files, whole_rows = set(), set(), 0
    for file in table.inspect.arrow.files().to_pylist():
        rows = pq.read_table(file["file_path"].removeprefix("file:")).to_pylist()
        remaining = {row["id"] for row in rows if not is_older(row["at"], kind, bound)}
        expected |= remaining
        if not remaining:
            whole_files.add(file["file_path"])
            whole_rows += len(rows)

    plan = table.maintenance.expire_rows("at", bound)
    summary = plan.summary()
    assert (summary.files, summary.records) == (len(whole_files), whole_rows)
    assert table.refresh().metadata_location == table.metadata_location
    after = plan.commit()
    assert set(after.scan().to_arrow().column("id").to_pylist()) == expected
    assert not whole_files & set(after.inspect.arrow.files().column("file_path").to_pylist())
    assert not after.arrow.check().to_pylist()
    assert plan.result()["committed"]["snapshot_id"] == after.current_snapshot().snapshot_id

    again = after.maintenance.expire_rows("at", bound)
    assert again.summary().files == 0
    assert again.commit().metadata_location == after.metadata_location
    assert again.result()["committed"] is None


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_only_whole_files(tmp_path: Path, version: int) -> None:
    """Files with newer rows stay, with all rows; no file is opened."""
    table = new_table(tmp_path, version, "timestamptz", ["day(at)"], "merge-on-read", random.Random(version))
    bound = BEGIN + timedelta(hours=60)
    plan = table.maintenance.expire_rows("at", bound, whole_files=True)
    summary = plan.summary()
    assert (summary.records, summary.reads_files) == (48, False)
    for path in table.inspect.arrow.files().column("file_path").to_pylist():
        Path(path.removeprefix("file:")).rename(f"{tmp_path}/{Path(path).name}")
    after = plan.commit()
    for path in table.inspect.arrow.files().column("file_path").to_pylist():
        (tmp_path / Path(path).name).rename(path.removeprefix("file:"))
    assert sorted(after.scan().to_arrow().column("id").to_pylist()) == [*range(48, HOURS + 3)]
    assert plan.result()["committed"]["added_position_deletes"] == 0
    again = after.maintenance.expire_rows("at", bound, whole_files=True)
    assert again.summary().is_empty
    assert again.commit() is after


@pytest.mark.usefixtures("by_spark")
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("whole_files", [False, True])
def test_tasks_read_the_manifests(spark: SparkSession, tmp_path: Path, version: int, whole_files: bool) -> None:
    table = new_table(tmp_path, version, "date", ["day(at)"], "merge-on-read", random.Random(version))
    table = sm.load_table(table.metadata_location, spark)
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(tmp_path))
    plan = catalog.load_table("db.t", spark).maintenance.expire_rows(
        "at", BEGIN + timedelta(days=3), whole_files=whole_files
    )
    files = plan.to_df().collect()
    assert {row.all_rows for row in files} == {True}
    assert sum(row.record_count for row in files) == 72
    assert plan.commit().scan().count() == table.scan().count() - 72


def test_a_branch(tmp_path: Path) -> None:
    table = new_table(tmp_path, 3, "timestamp", [], "copy-on-write", random.Random(1))
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.current_snapshot().snapshot_id, "old")
    table = table.refresh()
    plan = table.maintenance.expire_rows(
        "at", BEGIN + timedelta(days=2), branch="old", snapshot_properties={"by": "us"}
    )
    after = plan.commit()
    assert after.scan().to_arrow().num_rows == HOURS + 3
    assert after.scan().use_ref("old").to_arrow().num_rows == HOURS + 3 - 48
    assert after.metadata.snapshot_by_name("old").summary["by"] == "us"


def test_times_are_exact(tmp_path: Path) -> None:
    """Microseconds before and after 1970 count; a time in milliseconds is exact."""
    rows = pa.schema([("id", pa.int64()), ("at", INSTANT)])
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(tmp_path))
    for number, moment in enumerate(
        (datetime(1969, 12, 31, 23, 59, 59, 999100, UTC), BEGIN + timedelta(microseconds=7))
    ):
        table = catalog.create_table(f"db.t{number}", rows)
        moments = [moment + timedelta(microseconds=micros) for micros in (-1, 0, 1)]
        table = table.append(pa.table({"id": [-1, 0, 1], "at": moments}, rows))
        after = table.maintenance.expire_rows("at", moment).commit()
        assert after.scan().to_arrow().column("id").to_pylist() == [0, 1]
        floor = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        assert after.maintenance.expire_rows("at", floor).commit().scan().to_arrow().num_rows == 2
        assert after.maintenance.expire_rows("at", floor + 1).commit().scan().to_arrow().num_rows == 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"column": "other"}, "column is 'other': the table has no such column"),
    ({"column": "id"}, "column is 'id', of type long: expected a date or timestamp"),
    ({"older_than": datetime(2026, 1, 1)}, "older_than is "),  # noqa: DTZ001
    ({"older_than": "7d"}, "older_than is '7d'"),
    ({"older_than": 10**16}, "older_than is 10000000000000000: expected a year from 1 to 9999"),
    ({"branch": "no"}, "no"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    table = new_table(tmp_path, 3, "timestamptz", [], "copy-on-write", random.Random(1))
    with pytest.raises(sm.ValidationError, match=problem):
        table.maintenance.expire_rows(**{"column": "at", "older_than": BEGIN, **options})


def test_the_command(tmp_path: Path) -> None:
    table = new_table(tmp_path, 3, "timestamptz", ["day(at)"], "merge-on-read", random.Random(2))
    arguments = ["expire-rows", table.location(), "--column", "at", "--older-than", "2026-01-03T06:00:00Z"]
    planned = json.loads(invoke([*arguments, "--output", "json"]).stdout)
    assert (planned["plan"]["records"], planned["committed"]) == (48, None)
    shown = invoke([*arguments, "--commit"])
    assert "2 files with 48 rows" in shown.stdout, shown.output
    assert "2 data files removed; deleted: 48 rows of removed files, 6 by deletes of positions" in shown.stdout
    assert table.refresh().scan().to_arrow().num_rows == HOURS + 3 - 54
