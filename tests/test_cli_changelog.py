"""The command `changelog`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.command_line import invoke

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "note": ["a", "b"]})


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    """An append of the rows 1 and 2, the removal of 1, and another note for 2; the tag `first` is on the append."""
    catalog = sm.load_catalog("local", type="hadoop", warehouse=str(tmp_path_factory.mktemp("changes")))
    table = catalog.create_table("db.t", ROWS.schema, spark=spark).append(ROWS)
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "first").commit()
    return table.refresh().delete("id = 1").update({"note": "c"}, "id = 2")


def run(*arguments: object, code: int = 0) -> str:
    result = invoke(["changelog", *map(str, arguments)], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def changes(table: sm.Table, *arguments: object) -> set[tuple[str, int, int, str]]:
    rows = map(json.loads, run(table.location(), "-o", "json", *arguments).splitlines())
    return {(row["_change_type"], row["_change_ordinal"], row["id"], row["note"]) for row in rows}


INSERTED = {("INSERT", 0, 1, "a"), ("INSERT", 0, 2, "b")}


def test_rows_and_ranges(table: sm.Table) -> None:
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    later = {("DELETE", 0, 1, "a"), ("DELETE", 1, 2, "b"), ("INSERT", 1, 2, "c")}
    everything = INSERTED | {(kind, ordinal + 1, number, note) for kind, ordinal, number, note in later}
    assert changes(table) == changes(table, "--to", "main") == changes(table, "--to", "2999-01-01") == everything
    assert changes(table, "--to", "first") == changes(table, "--to", ids[0]) == INSERTED
    assert changes(table, "--from", "first") == changes(table, "--from", ids[0]) == later
    assert changes(table, "--from", ids[0], "--to", ids[1]) == {("DELETE", 0, 1, "a")}
    assert changes(table, "--filter", "id = 1") == {("INSERT", 0, 1, "a"), ("DELETE", 1, 1, "a")}
    assert {change[2:] for change in changes(table, "--net-changes")} == {(2, "c")}
    updates = changes(table, "--from", ids[1], "--identifier-columns", "id")
    assert updates == {("UPDATE_BEFORE", 0, 2, "b"), ("UPDATE_AFTER", 0, 2, "c")}


def test_formats(table: sm.Table) -> None:
    ids = [str(snapshot.snapshot_id) for snapshot in table.snapshots()]
    heading, *lines = [line.split() for line in run(table.location()).splitlines()]
    assert heading == ["_change_type", "_change_ordinal", "_commit_snapshot_id", "id", "note"]
    assert [line[1:3] for line in lines] == [["0", ids[0]]] * 2 + [["1", ids[1]]] + [["2", ids[2]]] * 2
    rows = [json.loads(line) for line in run(table.location(), "-o", "json", "--limit", 1).splitlines()]
    assert [row["_commit_snapshot_id"] for row in rows] == [ids[0]]
    chosen = run(table.location(), "-o", "json", "--columns", "id", "--where", "_change_type = 'DELETE' and id = 1")
    assert chosen == '{"id":1}\n'


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--from", "nobody"],
            "the table has no snapshot 'nobody': expected an id, a branch or tag, or an ISO 8601 time",
        ),
        (["--to", "5"], "5"),
        (["--to", "2001-01-01"], "2001-01-01"),
        (["--from", "main", "--to", "first"], "is not an ancestor of"),
        (["--filter", "nothing = 1"], "no column 'nothing' in the schema"),
        (["--compute-updates"], "no identifier fields"),
        (["--net-changes", "--identifier-columns", "id"], "can't be combined"),
    ],
)
def test_errors(table: sm.Table, arguments: list[str], problem: str) -> None:
    (line,) = run(table.location(), *arguments, code=1).splitlines()
    assert line.startswith("Error: ")
    assert problem in line


def test_a_reader_that_stops_sees_no_trace(table: sm.Table, tmp_path: Path) -> None:
    """Tasks in Python end with the process, whose output nobody reads."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sparkmeta", "changelog", table.location(), "-o", "json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
