"""What needs no Spark session: metadata, commits of metadata, drawings and most commands, on a machine without Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import without_java
from tests.conftest import configured
from tests.small_table import write_small_table
from tests.trees import TreeTable, data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    for name in ("orders", "changed", "changed_with_session", "upgraded"):
        write_small_table(folder, f"shop.{name}")
    tree = TreeTable(folder / "tree")
    leaf = tree.leaf("leaf", *(data(name) for name in "abc"))
    tree.snapshot(added=[leaf, data("d"), tree.mask(leaf, [1])])
    tree.load(None)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that finds no Java."""
    environment = os.environ | {"JAVA_HOME": f"{folder}/no-java", "PATH": str(folder), "COLUMNS": "160"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Any]:
    process = run(folder, "-m", "tests.without_java", str(folder))
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def test_no_process_starts(done: dict[str, Any]) -> None:
    assert done["started"] == []


def test_metadata_and_commits_are_the_same_with_a_session(
    done: dict[str, Any], folder: Path, spark: SparkSession
) -> None:
    both = without_java.catalogs(folder)
    table = both["sql"].load_table("shop.orders", spark)
    assert done["known"] == without_java.known(table)
    # Then Spark reads the leaves.
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        assert done["drawn"] == without_java.tree(folder).draw().text
        for of_table, each in zip(done["inspected"], (table, without_java.tree(folder)), strict=True):
            assert {name: sorted(rows) for name, rows in without_java.inspected(each.refresh()).items()} == {
                name: sorted(rows) for name, rows in of_table.items()
            }
    changed = without_java.change(both["sql"].load_table("shop.changed_with_session", spark))
    assert done["changed"] == json.loads(json.dumps(changed))
    assert [each["version"] for each in changed] == [2, 3, 4]


def test_scans_read_the_same_with_spark(
    done: dict[str, Any], folder: Path, spark: SparkSession, by_spark: None
) -> None:
    assert done["read"] == without_java.read(without_java.catalogs(folder)["sql"].load_table("shop.orders", spark))


def test_a_service_plans_few_files_before_spark_is_up(done: dict[str, Any]) -> None:
    assert done["served"] == [503, 2, [6, 2, 0]]


def test_commands_print_the_same_with_a_session(
    done: dict[str, Any], folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for arguments, printed in zip(without_java.READING, done["printed"], strict=True):
        assert printed == without_java.command((*arguments, "--spark"), folder), arguments
    for arguments, printed in zip(without_java.REFUSED, done["refused"], strict=True):
        assert printed.startswith("error: no column 'nothing' in the "), arguments
    assert "written: " in done["tree"][0]
    assert "manifest list" in done["tree"][1]


def test_a_lake(done: dict[str, Any]) -> None:
    changes, namespaces, tables, views, exists = done["lake"]
    assert [[each["version"] for each in versions] for versions in changes[:2]] == [[1, 2, 3, 4], [4]]
    assert (changes[2], exists, namespaces, tables, views) == (True, True, [["db"]], [["db", "v4"]], [["db", "view"]])


def test_changes_of_rows(done: dict[str, Any]) -> None:
    """What each of them writes is compared with Spark's in tests/write/test_both_ways.py."""
    conflict = "added data that may match"
    assert done["rows"] == [conflict, "10", conflict, "13", conflict, "10", conflict, "13"]


# What a process loads for a command takes most of its time.
HEAVY = ("pandas", "pyspark", "pyarrow", "numpy", "pyiceberg.table", "pydantic")
LOADED = f"""
import atexit, sys
atexit.register(lambda: print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr))
from sparkmeta.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        ("--help", set()),
        ("describe nothing", {"pyiceberg.table", "pydantic"}),
        ("describe TABLE", {"pyiceberg.table", "pydantic"}),
        ("snapshots TABLE", {"pyiceberg.table", "pydantic", "pyarrow", "numpy"}),
    ],
)
def test_commands_load_little(folder: Path, arguments: str, loaded: set[str]) -> None:
    location = max((folder / "shop" / "orders" / "metadata").glob("*.json"))
    command = arguments.replace("TABLE", str(location)).split()
    process = run(folder, "-c", LOADED, *command)
    assert {*process.stderr.splitlines()[-1].split()} == loaded, process.stderr
