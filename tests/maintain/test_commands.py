"""The commands and the job that change metadata: a plan without --commit, a JSON result, exit codes."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkmeta as sm
from tests.command_line import invoke
from tests.handmade import HandmadeTable
from tests.maintain.test_compact import SCHEMA, SPEC, append, new_table

JOB = Path(__file__).parents[2] / "jobs" / "compact_manifests.py"


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    """Return a table with three small leaves, which no test rewrites: each looks at the plan, or copies the table."""
    return filled_table(spark, tmp_path_factory.mktemp("commands"))


def filled_table(spark: SparkSession, folder: Path) -> sm.Table:
    table = new_table(spark, folder)
    for number in range(3):
        table = append(table, 10 * number, 10 * number + 1)
    return table


def command(*arguments: str, code: int = 0, name: str = "compact") -> str:
    result = invoke([name, *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def job(*arguments: str) -> int:
    code: int = runpy.run_path(str(JOB))["main"](list(arguments))
    return code


def test_a_plan_changes_nothing(table: sm.Table, capsys: pytest.CaptureFixture[str]) -> None:
    text = command(table.location())
    assert "3 data leaves, 0 delete leaves and 0 root files become about 1 leaves" in text
    assert "nothing is changed without --commit" in text
    rows = [json.loads(line) for line in command(table.location(), "--files", "-o", "json").splitlines()]
    assert [row["reasons"] for row in rows] == [["small"]] * 3
    assert job("--table", table.location(), "--max-entries", "4") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["plan"]["data_leaves"] == 2
    assert result["committed"] is None
    assert table.refresh().metadata_location == table.metadata_location


def test_commit(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = filled_table(spark, tmp_path)
    extra = ("--snapshot-property", "by=night", "--snapshot-property", "of=us")
    result = json.loads(command(table.location(), "--max-entries", "4", *extra, "--commit", "-o", "json"))
    written = table.refresh().current_snapshot()
    assert written is not None
    assert written.summary is not None
    assert (written.summary["by"], written.summary["of"]) == ("night", "us")
    counts = {key: value for key, value in result["committed"].items() if key != "snapshot_id"}
    assert counts == {"manifests_created": 1, "manifests_replaced": 2, "manifests_kept": 1, "entries_processed": 4}
    assert job("--table", table.location(), "--cluster-by", "id,s", "--commit") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    current = table.refresh().current_snapshot()
    assert current is not None
    assert result["committed"]["snapshot_id"] == str(current.snapshot_id)
    assert result["seconds"]["commit"] > 0
    assert "need no compaction" in command(table.location(), "--commit")


def test_files_and_result_are_lines_of_json(spark: SparkSession, tmp_path: Path) -> None:
    table = filled_table(spark, tmp_path)
    printed = command(table.location(), "--files", "--commit", "--output", "json")
    *rows, result = map(json.loads, printed.splitlines())
    assert [row["reasons"] for row in rows] == [["small"]] * 3
    assert result["committed"]["manifests_replaced"] == 3


def without_reader(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process whose output is closed."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, *arguments], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    return done


def test_a_reader_that_stops_does_not_keep_a_plan_from_its_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = filled_table(spark, tmp_path)
    location, before = table.location(), table.metadata_location
    done = without_reader("-m", "sparkmeta", "compact", location, "--files", "--commit", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert (after := table.refresh()).metadata_location != before
    assert after.maintenance.compact_manifests().summary().is_empty
    assert without_reader(str(JOB), "--table", location, "--commit").returncode == 0


def test_a_reader_that_stops_does_not_keep_tables_from_their_jobs(spark: SparkSession, tmp_path: Path) -> None:
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    tables = [catalog.create_table(f"db.{name}", SCHEMA, SPEC, format_version=2, spark=spark) for name in "ab"]
    locations = [f"{tmp_path}/nowhere", *(table.location() for table in tables)]
    (tmp_path / "c.toml").write_text(f"[jobs.upgrade]\nformat_version = 3\n[[tables]]\nlocations = {locations!r}\n")
    done = without_reader("-m", "sparkmeta", "maintain", "--config", str(tmp_path / "c.toml"), "--commit")
    assert (done.returncode, "BrokenPipe" in done.stderr, "NoSuchTableError" in done.stderr) == (1, False, True)
    assert [table.refresh().format_version for table in tables] == [3, 3]


def test_errors_are_one_line(table: sm.Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no column or partition field 'nope'" in command(table.location(), "--cluster-by", "nope", code=1)
    assert job("--table", table.location(), "--max-entries", "-1") == 1
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith("compact_manifests: ")] == [
        "compact_manifests: max_entries is -1: expected a whole number of 1 or more"
    ]


COMMANDS_WITH_FILTERS = ("compact", "rewrite-manifests", "rewrite-data-files", "rewrite-position-delete-files", "plan")


@pytest.mark.parametrize("name", COMMANDS_WITH_FILTERS)
def test_an_empty_filter_is_an_error(name: str, table: sm.Table, tmp_path: Path) -> None:
    """A shell makes it from an unset variable, so that it must not mean all rows."""
    HandmadeTable(tmp_path / "lists").write()
    of_command = str(tmp_path / "lists") if name == "rewrite-manifests" else table.location()
    assert "Error: can't read the filter ''" in command(of_command, "--filter", "", code=1, name=name)


def test_an_empty_list_of_columns_is_an_error(table: sm.Table) -> None:
    assert "no column or partition field ''" in command(table.location(), "--cluster-by", "", code=1)


def test_an_upgrade(spark: SparkSession, tmp_path: Path) -> None:
    upgrade = partial(command, name="upgrade")
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    version_2: sm.Table = catalog.create_table("db.t", SCHEMA, SPEC, format_version=2, spark=spark)
    location = version_2.location()
    text = upgrade(location)
    assert "format version 2 becomes 4, with a metadata tree\n2 new expressions for 1 partition specs" in text
    assert text.endswith("nothing is changed without --commit\n")
    assert "format version 2 becomes 3\n0 snapshots keep" in upgrade(location, "--format-version", "3", "--commit")
    assert version_2.refresh().format_version == 3
    refused = command(location, code=1)
    assert "`sparkmeta rewrite-manifests`" in refused
    assert "sparkmeta upgrade" in refused
    result = json.loads(upgrade(location, "--commit", "-o", "json"))
    upgraded = version_2.refresh()
    assert upgraded.format_version == 4
    assert result["committed"] == upgraded.metadata_location
    assert [expression["name"] for expression in result["plan"]["expressions"]] == [field.name for field in SPEC.fields]
    assert "has the metadata tree of format version 4 already" in upgrade(location, "--commit", code=1)
    assert "format_version is 1: expected 2, 3 or 4" in upgrade(location, "--format-version", "1", code=1)
