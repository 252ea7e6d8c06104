"""Encrypted tables of Iceberg's Java library, and tables that Java reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.java import java_home
from tests.conftest import configured, iceberg_jar
from tests.master_keys import NAME
from tests.peers import encrypted_tables
from tests.peers.encrypted_tables import FILTERS, RESULT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.classic, pytest.mark.together]

FORMATS = {"parquet": 16, "avro": 32}
KEYS = {"encryption.kms-impl": NAME}


@dataclass
class JavaProcess:
    """Iceberg's Java library in a process of its own (tests/peers/encrypted_tables.py)."""

    process: subprocess.Popen[str]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(RESULT):
                answer: dict[str, Any] = json.loads(line.removeprefix(RESULT))
                return answer
        raise AssertionError("the process has ended")


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    jar = iceberg_jar()
    javac = Path(java_home()) / "bin" / "javac"
    if jar is None or not javac.is_file():
        pytest.skip("no Iceberg runtime (`make jars`), or no Java compiler")
    folder = tmp_path_factory.mktemp("hive")
    source, classes = Path(encrypted_tables.__file__).parent / "MasterKeys.java", folder / "classes"
    subprocess.run([javac, "-nowarn", "-d", classes, "-cp", jar, source], check=True, capture_output=True)
    command = [sys.executable, "-m", encrypted_tables.__name__, str(folder), str(jar), str(classes)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
            env=_environment(),
        )  # fmt: skip
    with process:
        yield JavaProcess(process)
        assert process.stdin is not None
        process.stdin.close()


def _environment() -> dict[str, str]:
    import os

    without = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return without | {"PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture(scope="module")
def tables(java: JavaProcess) -> dict[str, dict[str, Any]]:
    return {name: java.ask(name=name, file_format=name, key_length=length) for name, length in FORMATS.items()}


@pytest.fixture(params=["alone", "driver", "tasks", "joined", "colocated"])
def way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    ways = {
        "tasks": {"driver-manifest-bytes": "1"},
        "joined": {"driver-manifest-bytes": "1", "planning": "join"},
        "colocated": {"driver-manifest-bytes": "1", "planning": "colocated"},
    }
    settings = {f"spark.sparkmeta.{name}": value for name, value in ways.get(request.param, {}).items()}
    with configured(spark, settings):
        yield request.param


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_plans_are_javas(spark: SparkSession, tables: dict[str, dict[str, Any]], name: str, way: str) -> None:
    expected = tables[name]
    table = sm.load_table(expected["location"], spark, properties=KEYS)
    rows = table.scan().to_arrow() if way == "alone" else table.scan().to_df().toArrow()
    assert [[*row.values()] for row in rows.sort_by("id").to_pylist()] == expected["rows"]
    assert table.scan().count() == len(expected["rows"])
    for row_filter, plan in zip(FILTERS, expected["plans"], strict=True):
        scan = table.scan() if row_filter is None else table.scan(row_filter)
        files = scan.arrow.plan_files().to_pylist() if way == "alone" else scan.plan_files().toArrow().to_pylist()
        planned = [[row["file_path"], sorted(delete["file_path"] for delete in row["deletes"])] for row in files]
        assert sorted(planned) == plan, row_filter
        assert all(row["key_metadata"] for row in files)
    assert not table.check().collect()
    assert table.inspect.all_entries().count() == len(table.inspect.arrow.all_entries())
    assert table.inspect.position_deletes().count() == 12
    assert len(table.inspect.arrow.position_deletes()) == 12


@pytest.mark.parametrize("name", FORMATS)
def test_java_reads_what_is_written(
    spark: SparkSession,
    java: JavaProcess,
    tables: dict[str, dict[str, Any]],
    tmp_path: Path,
    name: str,
    either_way: None,
) -> None:
    catalog = sm.load_catalog("ours", type="sql", uri=f"sqlite:///{tmp_path}/c.db", **KEYS)
    catalog.create_namespace("db")
    location = tables[name]["location"]
    catalog.register_table(f"db.{name}", location)
    columns = {
        "id": pa.array(range(1000, 1010)),
        "data": ["ours"] * 10,
        "p": pa.array([i % 3 for i in range(10)], pa.int32()),
    }
    catalog.load_table(f"db.{name}", spark).append(pa.table(columns))
    catalog.load_table(f"db.{name}", spark).delete("id = 1001 or id = 20 or id = 445")
    keys = pa.table({"id": [1002, 30], "p": pa.array([2, 0], pa.int32())})
    table = catalog.load_table(f"db.{name}", spark)
    table.equality_delete(keys, equality_cols=["id"])
    table = catalog.load_table(f"db.{name}", spark)
    gone = {20, 445, 1001, 1002, 30}
    expected = [row for row in tables[name]["rows"] if row[0] not in gone]
    expected += [[i, "ours", i % 1000 % 3] for i in range(1000, 1010) if i not in gone]
    assert [[*row.values()] for row in table.scan().to_arrow().sort_by("id").to_pylist()] == expected
    answer = java.ask(name=f"ours_{name}", location=table.metadata_location)
    assert answer["rows"] == expected
    planned = [
        [row["file_path"], sorted(delete["file_path"] for delete in row["deletes"])]
        for row in table.scan().arrow.plan_files().to_pylist()
    ]
    assert sorted(planned) == answer["plans"][0]

    # Java goes on with the table, and this library with Java's.
    changes = ("INSERT INTO {} VALUES (2000, 'java', 1)", "DELETE FROM {} WHERE id = 1003 OR id = 21")
    answer = java.ask(name=f"ours_{name}", sql=changes)
    table = sm.load_table(answer["location"], spark, properties=KEYS)
    assert [[*row.values()] for row in table.scan().to_arrow().sort_by("id").to_pylist()] == answer["rows"]
    expected = [row for row in expected if row[0] not in (1003, 21)] + [[2000, "java", 1]]
    assert answer["rows"] == expected
    assert not table.check().collect()
    shutil.rmtree(tmp_path)
