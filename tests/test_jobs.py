"""The shipped jobs: each in a separate process, with the configuration in conf/, and in this process."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click import Context
from click.testing import CliRunner
from pyarrow import parquet
from pyiceberg.exceptions import NoSuchTableError

import sparkmeta as sm
from sparkmeta import Table, ValidationError, load_table
from sparkmeta.cli import main as cli
from sparkmeta.cli.job import job_parser, run_job
from tests.conftest import iceberg_jar
from tests.maintain.test_compact import append, new_table
from tests.rewrite.test_rewrite_data_files import only_the_first_commit_wins
from tests.small_table import IDENTIFIER, LOADS, ROWS, write_small_table
from tests.write.test_changes import frame as rows_frame
from tests.write.test_changes import new_table as rows_table
from tests.write.test_changes import ordinary, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table as PyIcebergTable
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
JOBS = ROOT / "jobs"
SUBMIT = Path(sys.executable).parent / "spark-submit"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> PyIcebergTable:
    return write_small_table(tmp_path_factory.mktemp("jobs"))


def submit(job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = ["--master", "local[2]", "--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
    command = [str(SUBMIT), *settings, str(JOBS / job), *arguments]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def main_of(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[list[str]], int]]:
    """The function `main` of a job's file, which then runs in this process, in its session."""
    monkeypatch.syspath_prepend(str(JOBS))
    return lambda name: runpy.run_path(str(JOBS / name))["main"]


def test_plan_as_parquet(spark: SparkSession, written: PyIcebergTable, tmp_path: Path):
    output = str(tmp_path / "plan")
    done = submit(
        "plan_table.py",
        "--table",
        written.metadata_location,
        "--filter",
        "id < 12 and country = 'NO'",
        "--output",
        output,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["files"], result["records"], result["deletes"]) == (2, 10, 0)
    assert result["snapshot_id"] == str(written.current_snapshot().snapshot_id)
    assert result["report"]["data_entries"]["planned"] == 2
    assert result["seconds"]["plan_and_write"] > 0
    plan = spark.read.parquet(output)
    expected = load_table(written.metadata_location, spark=spark).scan("id < 12 and country = 'NO'").plan_files()
    assert plan.schema.simpleString() == expected.schema.simpleString()
    assert sorted(plan.collect()) == sorted(expected.collect())
    assert result["bytes"] == sum(row.file_size_in_bytes for row in plan.collect())


TREE_JOBS: dict[str, tuple[list[str], Callable[[dict[str, Any]], bool]]] = {
    "compact_manifests.py": ([], lambda result: result["committed"]["manifests_created"] == 1),
    "downgrade.py": ([], lambda result: "metadata_location" in result["committed"]),
    "expire_snapshots.py": (["--older-than", "2100-01-01"], lambda result: result["plan"]["snapshots"] == 1),
    "remove_dangling_deletes.py": ([], lambda result: result["plan"]["manifests"] == 0),
    "remove_orphan_files.py": ([], lambda result: result["plan"]["files"] == {}),
    "convert_equality_deletes.py": ([], lambda result: result["plan"]["equality_delete_files"] == 0),
    "repair.py": (["--kinds", "lost-data-files"], lambda result: result["plan"]["damage"] == {}),
    "rewrite_position_delete_files.py": ([], lambda result: result["plan"]["position_delete_files"] == 0),
}


@pytest.mark.parametrize("job", TREE_JOBS)
def test_a_job_on_a_tree(spark: SparkSession, tmp_path: Path, soak: bool, job: str) -> None:
    if not soak:
        pytest.skip("the slice submits one job of maintenance")
    table = append(append(new_table(spark, tmp_path), 1, 2), 3, 4)
    options, is_right = TREE_JOBS[job]
    done = submit(job, "--table", table.location(), *options, "--commit")
    assert done.returncode == 0, done.stderr
    assert is_right(json.loads(done.stdout.splitlines()[-1])), done.stdout


def test_a_rewrite_of_data_files(spark: SparkSession, tmp_path: Path, soak: bool) -> None:
    if not soak:
        pytest.skip("the slice submits one job of maintenance")
    table = rows_table(spark, tmp_path)
    table = table.append(rows_frame(spark, ordinary(0, 10))).append(rows_frame(spark, ordinary(10, 20)))
    options = ["--min-input-files", "2", "--strategy", "sort", "--sort-order", "zorder(id, n)"]
    done = submit("rewrite_data_files.py", "--table", table.location(), *options, "--commit")
    assert done.returncode == 0, done.stderr
    committed = json.loads(done.stdout.splitlines()[-1])["committed"]
    assert (committed["rewritten_data_files"], committed["added_data_files"]) == (8, 4)
    assert rows_of(table.refresh()) == sorted(ordinary(0, 20), key=repr)


def test_old_rows_go(spark: SparkSession, tmp_path: Path, soak: bool) -> None:
    if not soak:
        pytest.skip("the slice submits one job of maintenance")
    rows = spark.sql("SELECT id, date_add(DATE'2026-01-01', CAST(id AS INT)) AS day FROM range(10)")
    catalog = sm.load_catalog("jobs", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("db.days", rows.schema, partition_by=["day"], spark=spark).append(rows)
    options = ["--column", "day", "--older-than", "2026-01-05"]
    done = submit("expire_rows.py", "--table", table.location(), *options, "--commit")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["committed"]["deleted_data_files"] == 4
    assert table.refresh().scan().count() == 6


def test_a_table_moves(spark: SparkSession, tmp_path: Path, soak: bool) -> None:
    if not soak:
        pytest.skip("the slice submits one job of maintenance")
    table = append(append(new_table(spark, tmp_path / "old"), 1, 2), 3, 4)
    prefixes = ["--source-prefix", f"file://{tmp_path}/old", "--target-prefix", f"file://{tmp_path}/new"]
    done = submit("rewrite_table_path.py", "--table", table.location(), *prefixes, "--commit")
    assert done.returncode == 0, done.stderr
    committed = json.loads(done.stdout.splitlines()[-1])["committed"]
    assert committed["listed"] > committed["rewritten"] > 0
    assert committed["copied"] is None


@pytest.mark.jvm
@pytest.mark.parametrize("job", ["rewrite_manifests.py", "compute_partition_stats.py", "compute_table_stats.py"])
def test_a_job_on_a_table_of_a_catalog(tmp_path: Path, soak: bool, job: str) -> None:
    if not soak:
        pytest.skip("the slice submits one job of maintenance")
    table = write_small_table(tmp_path)
    properties = ["type=sql", f"uri=sqlite:///{tmp_path}/catalog.db", f"warehouse={tmp_path.as_uri()}"]
    of_catalog = [argument for text in properties for argument in ("--property", text)]
    done = submit(job, "--table", IDENTIFIER, "--catalog", "shop", *of_catalog, "--commit")
    assert done.returncode == 0, done.stderr
    committed = json.loads(done.stdout.splitlines()[-1])["committed"]
    if job == "rewrite_manifests.py":
        assert (committed["manifests_replaced"], committed["manifests_created"]) == (LOADS, 1)
        assert len(table.refresh().snapshots()) == LOADS + 1
    else:
        assert Path(committed["statistics_path"].removeprefix("file://")).exists()


def test_maintenance_of_a_configuration(spark: SparkSession, tmp_path: Path) -> None:
    table = append(append(new_table(spark, tmp_path), 1, 2), 3, 4)
    config = tmp_path / "maintenance.toml"
    config.write_text(f"[jobs.compact_manifests]\n[[tables]]\nlocations = [{table.location()!r}]\n")
    done = submit("maintain.py", "--config", str(config), "--commit")
    assert done.returncode == 0, done.stderr
    result, report = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (report["job"], report["plan"]["after"]["manifests"]) == ("report", 1)
    assert (result["job"], result["status"]) == ("compact_manifests", "committed")
    assert (result["findings"], result["committed"]["manifests_created"]) == (["small_manifests"], 1)
    assert "compact_manifests: committed" in done.stdout  # spark-submit joins both streams of Python


def test_every_job_is_submitted() -> None:
    of_catalogs = {"rewrite_manifests.py", "compute_partition_stats.py", "compute_table_stats.py"}
    elsewhere = {"serve.py"}  # tests/service/test_command.py
    alone = {"plan_table.py", "maintain.py", "rewrite_data_files.py", "rewrite_table_path.py", "expire_rows.py"}
    submitted = {*TREE_JOBS, *of_catalogs, *elsewhere, *alone}
    assert {path.name for path in JOBS.glob("*.py")} - submitted == {"demo.py", "demo_table.py", "demo_tree.py"}


# The options of a session, and those for the rows that a command prints.
OF_COMMANDS = {"--files", "--output", "--columns", "--where", "--limit", "--conf", "--remote", "--spark", "--verbose"}
COMMANDS = {path.name: path.stem.replace("_", "-") for path in JOBS.glob("*.py")} | {"compact_manifests.py": "compact"}
OTHERS = {"demo.py", "demo_table.py", "demo_tree.py", "plan_table.py"}


@pytest.mark.parametrize("job", sorted(COMMANDS.keys() - OTHERS))
def test_a_job_has_the_options_of_its_command(job: str, main_of, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main_of(job)(["--help"])
    of_job = set(re.findall(r"--[a-z-]+", capsys.readouterr().out.partition("\n\n")[0])) - {"--table"}
    command = cli.commands[COMMANDS[job]]
    options = [param for param in command.get_params(Context(command)) if param.opts[0].startswith("--")]
    of_command = {max(param.secondary_opts or param.opts, key=len) for param in options} - {"--help"}
    assert of_job <= of_command
    assert of_command - of_job <= OF_COMMANDS


def test_help_says_which_properties_decide_about_snapshots(main_of, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit):
        main_of("expire_snapshots.py")(["--help"])
    of_command = " ".join(CliRunner().invoke(cli, ["expire-snapshots", "--help"]).output.split())
    for text in (" ".join(capsys.readouterr().out.split()), of_command):
        assert "history.expire.max-snapshot-age-ms, or else 5 days ago" in text
        assert "history.expire.min-snapshots-to-keep, or else 1" in text


def test_plan_of_a_tag_as_json_tasks(main_of, written: PyIcebergTable, tmp_path: Path, capsys):
    output = tmp_path / "plan"
    arguments = ["--table", written.metadata_location, "--ref", "first", "--tasks", "--format", "json"]
    assert main_of("plan_table.py")([*arguments, "--output", str(output), "--no-report"]) == 0
    result = json.loads(capsys.readouterr().out)
    tasks = [json.loads(line) for part in output.glob("part-*.json") for line in part.read_text().splitlines()]
    assert result["tasks"] == len(tasks)
    assert sum(split["record_count"] for task in tasks for split in task["tasks"]) == ROWS
    assert result["bytes"] == sum(task["size_in_bytes"] for task in tasks)
    assert result["report"] is None
    assert "sort_order_id" in tasks[0]["tasks"][0]


def test_errors_are_one_line(main_of, tmp_path: Path, capsys):
    arguments = ["--table", str(tmp_path / "nothing"), "--output", str(tmp_path / "plan")]
    assert main_of("plan_table.py")(arguments) == 1
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert len(errors.splitlines()) == 1
    assert errors.startswith("plan_table: ")
    assert "nothing" in errors
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("output", ["nosuch://x/y", "/proc/x/y"])
def test_an_error_of_the_jvm_is_one_line(output: str, main_of, written: PyIcebergTable, capsys) -> None:
    assert main_of("plan_table.py")(["--table", written.metadata_location, "--output", output, "--no-report"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plan_table: ")
    assert output.partition(":")[0].removesuffix("/y") in line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("the disk is full"), "the disk is full"),
        (OSError(), "OSError"),
        (NoSuchTableError("no\nsuch"), "no"),
        (ValidationError("\x1b[31mred"), "\\x1b[31mred"),
    ],
)
def test_errors_of_a_plan_are_one_line(
    error: Exception, line: str, spark: SparkSession, written: PyIcebergTable, capsys
) -> None:
    def plan(_: Table) -> Any:
        raise error

    assert run_job(job_parser("some_job.py", "Some job."), plan, ["--table", written.metadata_location]) == 1
    assert capsys.readouterr().err == f"some_job: {line}\n"


def test_an_empty_filter_is_an_error(main_of, written: PyIcebergTable, tmp_path: Path, capsys) -> None:
    arguments = ["--table", written.metadata_location, "--filter", "", "--output", str(tmp_path / "plan")]
    assert main_of("plan_table.py")(arguments) == 1
    assert capsys.readouterr().err.startswith("plan_table: can't read the filter ''")


def test_parts_that_were_committed_before_a_conflict(
    spark: SparkSession, main_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    table = rows_table(spark, tmp_path, commit__retry__num_retries="0")
    table = table.append(rows_frame(spark, ordinary(0, 10))).append(rows_frame(spark, ordinary(10, 20)))
    limits = {"partial-progress-max-commits": "2", "partial-progress-max-failed-commits": "0"}
    options = [
        "--rewrite-all",
        "--partial-progress-enabled",
        *(text for k, v in limits.items() for text in (f"--{k}", v)),
    ]
    with monkeypatch.context() as patch:
        only_the_first_commit_wins(patch)
        assert main_of("rewrite_data_files.py")(["--table", table.location(), *options, "--commit"]) == 3
    printed, errors = capsys.readouterr()
    after = table.refresh().current_snapshot().snapshot_id
    committed = json.loads(printed)["committed"]
    assert (committed["commits"], committed["failed_commits"], committed["snapshot_id"]) == (1, 1, str(after))
    assert errors.splitlines()[-1] == "rewrite_data_files: another commit came first"

    config = tmp_path / "maintenance.toml"
    lines = [f"{name.replace('-', '_')} = {value}" for name, value in limits.items()]
    job = [
        "[jobs.rewrite_data_files]",
        "always = true",
        "rewrite_all = true",
        "partial_progress_enabled = true",
        *lines,
    ]
    config.write_text("\n".join([*job, "[[tables]]", f"locations = [{table.location()!r}]"]))
    with monkeypatch.context() as patch:
        only_the_first_commit_wins(patch)
        assert main_of("maintain.py")(["--config", str(config), "--commit"]) == 3
    result = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (result["status"], result["error"]) == ("conflict", "another commit came first")
    assert (result["committed"]["commits"], result["committed"]["failed_commits"]) == (1, 1)


def test_wrong_arguments(main_of, tmp_path: Path, capsys):
    with pytest.raises(SystemExit) as exited:
        main_of("plan_table.py")(["--table", "t", "--output", str(tmp_path), "--ref", "a", "--snapshot-id", "1"])
    assert exited.value.code == 2
    assert "not allowed with argument --ref" in capsys.readouterr().err


def test_a_table_of_a_catalog(main_of, written: PyIcebergTable, tmp_path: Path, capsys):
    database = Path(written.location().removeprefix("file://")).parents[1] / "catalog.db"
    table = [
        "--table",
        IDENTIFIER,
        "--catalog",
        "shop",
        "--property",
        "type=sql",
        "--property",
        f"uri=sqlite:///{database}",
    ]
    assert main_of("plan_table.py")([*table, "--output", str(tmp_path / "plan"), "--no-report"]) == 0
    assert json.loads(capsys.readouterr().out)["table"] == written.location()
    assert main_of("rewrite_manifests.py")(table) == 0
    printed, errors = capsys.readouterr()
    assert json.loads(printed)["committed"] is None
    assert errors.startswith(f"{IDENTIFIER}: ")
    assert main_of("rewrite_manifests.py")([*table[:2], *table[4:]]) == 1
    assert capsys.readouterr().err == "rewrite_manifests: --property needs --catalog\n"
    with pytest.raises(SystemExit):
        main_of("rewrite_manifests.py")([*table, "--property", "no-value"])


@pytest.mark.parametrize(
    ("job", "option", "value", "expected"),
    [
        ("expire_snapshots.py", "--older-than", "yesterday", "'yesterday' is not an ISO 8601 time such as 2026-01-31"),
        ("remove_orphan_files.py", "--older-than", "yesterday", "'yesterday' is not an ISO 8601 time"),
        ("remove_orphan_files.py", "--equal-scheme", "s3a", "'s3a' is not of the form key=value"),
        ("plan_table.py", "--as-of", "now", "'now' is not an ISO 8601 time"),
        ("serve.py", "--property", "uri", "'uri' is not of the form key=value"),
    ],
)
def test_wrong_values_have_the_message_of_the_command_line(main_of, capsys, job, option, value, expected) -> None:
    needed = {"serve.py": [], "plan_table.py": ["--table", "t", "--output", "o"]}.get(job, ["--table", "t"])
    with pytest.raises(SystemExit) as exited:
        main_of(job)([*needed, option, value])
    assert exited.value.code == 2
    assert f"argument {option}: {expected}" in capsys.readouterr().err


def demo_arguments(folder: Path, jars: Path) -> list[str]:
    return ["--folder", str(folder), "--jars", str(jars), "--months", "1"]


def test_demo_without_jars(main_of, tmp_path: Path, capsys):
    assert main_of("demo.py")(demo_arguments(tmp_path / "demo", tmp_path)) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert "an append of 48 files: their entries are in a leaf" in printed
    # 31 days in 8 countries, but for three days that are deleted.
    assert "8,960 records in 224 data files" in printed
    assert "no delete files" in printed
    assert "planned 224" in printed
    orders = parquet.read_table(tmp_path / "demo" / "trees" / "shop" / "orders" / "data").to_pylist()
    swedish = sum(row["order_id"] < 3000 and row["country"] == "SE" for row in orders)
    assert swedish
    assert f"pyiceberg read {swedish} rows where order_id < 3000 and country = 'SE'" in printed


@pytest.mark.java
@pytest.mark.jvm
def test_demo_with_iceberg_java(tmp_path: Path):
    jar = iceberg_jar()
    assert jar is not None
    command = [sys.executable, str(JOBS / "demo.py"), *demo_arguments(tmp_path / "demo", jar.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "an append of 48 files: their entries are in a leaf" in done.stdout
    assert "masks {0} of M1" in done.stdout
    assert "9,920 records in 248 data files" in done.stdout
    assert "position delete files" in done.stdout
    assert "files_with_deletes: 2" in done.stdout
