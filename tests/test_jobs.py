"""The jobs as they are shipped: run by spark-submit or Python, with the configuration in conf/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmeta import load_table
from tests.conftest import iceberg_jar
from tests.small_table import ROWS, write_small_table

if TYPE_CHECKING:
    from pyiceberg.table import Table as PyIcebergTable
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
SUBMIT = Path(sys.executable).parent / "spark-submit"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> PyIcebergTable:
    return write_small_table(tmp_path_factory.mktemp("jobs"))


def submit(*arguments: str) -> subprocess.CompletedProcess[str]:
    settings = ["--master", "local[2]", "--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
    command = [str(SUBMIT), *settings, str(ROOT / "jobs" / "plan_table.py"), *arguments]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_plan_as_parquet(spark: SparkSession, written: PyIcebergTable, tmp_path: Path):
    output = str(tmp_path / "plan")
    done = submit("--table", written.metadata_location, "--filter", "id < 12 and country = 'NO'", "--output", output)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["files"], result["records"], result["deletes"]) == (2, 10, 0)
    assert result["snapshot_id"] == written.current_snapshot().snapshot_id
    assert result["report"]["data_entries"]["planned"] == 2
    assert result["seconds"]["plan_and_write"] > 0
    plan = spark.read.parquet(output)
    expected = load_table(written.metadata_location, spark=spark).scan("id < 12 and country = 'NO'").plan_files()
    assert plan.schema.simpleString() == expected.schema.simpleString()
    assert sorted(plan.collect()) == sorted(expected.collect())
    assert result["bytes"] == sum(row.file_size_in_bytes for row in plan.collect())


def test_plan_of_a_tag_as_json_tasks(spark: SparkSession, written: PyIcebergTable, tmp_path: Path):
    output = tmp_path / "plan"
    done = submit(
        "--table", written.metadata_location, "--ref", "first", "--tasks", "--format", "json",
        "--output", str(output), "--no-report",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    tasks = [json.loads(line) for part in output.glob("part-*.json") for line in part.read_text().splitlines()]
    assert result["tasks"] == len(tasks)
    assert sum(split["record_count"] for task in tasks for split in task["tasks"]) == ROWS
    assert result["bytes"] == sum(task["size_in_bytes"] for task in tasks)
    assert result["report"] is None
    assert "sort_order_id" in tasks[0]["tasks"][0]


def test_errors_are_one_line(written: PyIcebergTable, tmp_path: Path):
    done = submit("--table", str(tmp_path / "nothing"), "--output", str(tmp_path / "plan"))
    # spark-submit sends a script's stderr to its own stdout.
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert len(lines) == 1
    assert lines[0].startswith("plan_table: ")
    assert "nothing" in lines[0]
    assert not (tmp_path / "plan").exists()


def test_wrong_arguments(tmp_path: Path):
    done = submit("--table", "t", "--output", str(tmp_path), "--ref", "a", "--snapshot-id", "1")
    assert done.returncode == 2


def demo(folder: Path, jars: Path) -> str:
    command = [sys.executable, str(ROOT / "jobs" / "demo.py"), "--folder", str(folder), "--jars", str(jars)]
    done = subprocess.run([*command, "--months", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "an append of 48 files: they stand in a leaf" in done.stdout
    assert "masks {0} of M1" in done.stdout
    return done.stdout


def test_demo_without_jars(tmp_path: Path):
    told = demo(tmp_path / "demo", tmp_path)
    # 31 days in 8 countries, but for three days that are deleted.
    assert "8,960 records in 224 data files" in told
    assert "no delete files" in told
    assert "planned 224" in told


@pytest.mark.java
def test_demo_with_iceberg_java(tmp_path: Path):
    jar = iceberg_jar()
    assert jar is not None
    told = demo(tmp_path / "demo", jar.parent)
    assert "9,920 records in 248 data files" in told
    assert "position delete files" in told
    assert "files_with_deletes: 2" in told
