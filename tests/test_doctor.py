"""The command `doctor`: what it finds in order, and what it says mends the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import sparkmeta.cli.doctor as module
from sparkmeta.cli import main
from tests.small_table import write_small_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def findings(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The findings by their parts."""
    result = CliRunner().invoke(main, ["doctor", *arguments, "--output", "json"])
    assert result.exit_code == code, result.output + repr(result.exception)
    return {finding["part"]: finding for finding in json.loads(result.stdout)}


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_table(tmp_path_factory.mktemp("doctor")).metadata_location


def test_all_in_order(spark: SparkSession, location: str) -> None:
    reported = findings(location)
    assert {finding["status"] for part, finding in reported.items() if part != "catalogs"} == {"ok"}
    assert reported["pyspark"]["detail"] == spark.version
    assert reported["Spark"]["detail"].startswith(spark.version)
    assert reported["sparkmeta of executors"]["detail"] == reported["sparkmeta"]["detail"]
    assert "snapshots" in reported[f"table {location}"]["detail"]


def test_text_has_a_line_for_each_finding() -> None:
    result = CliRunner().invoke(main, ["doctor", "--no-spark"])
    assert len(result.stdout.splitlines()) == len(findings("--no-spark"))


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sparkmeta.java.util.find_spec", lambda _: None)
    reported = findings("--no-spark", code=1)
    assert reported["Java"]["status"] == "fails"
    assert "sparkmeta[java]" in reported["Java"]["detail"]
    assert [part for part, finding in reported.items() if finding["status"] == "fails"] == ["Java"]


def test_packages_that_are_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"numba": None, "fastavro": None, "starlette": None, "pyarrow": "9.0.1", "pyspark": "4.99.0"}
    real = module.metadata.version

    def version(name: str) -> str:
        if (value := known.get(name, "")) is None:
            raise module.metadata.PackageNotFoundError(name)
        return value or real(name)

    monkeypatch.setattr(module.metadata, "version", version)
    reported = findings("--no-spark", code=1)
    assert {part: reported[part]["status"] for part in known} == {
        "numba": "absent", "fastavro": "fails", "starlette": "absent", "pyarrow": "fails", "pyspark": "fails",
    }  # fmt: skip
    assert reported["starlette"]["mend"] == "pip install 'sparkmeta[serve]'"
    assert reported["pyarrow"]["detail"].startswith("9.0.1 is not >=")


def test_another_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert findings("--no-spark", code=1)["SPARK_HOME"]["detail"] == f"{tmp_path} has no Spark"
    (jars / "spark-core_2.13-3.5.1.jar").touch()
    assert "pyspark==3.5.1" in findings("--no-spark", code=1)["SPARK_HOME"]["mend"]


def test_a_table_and_a_catalog_that_are_missing(tmp_path: Path) -> None:
    reported = findings("--no-spark", str(tmp_path / "nosuch"), code=1)
    assert str(tmp_path / "nosuch") in reported[f"table {tmp_path / 'nosuch'}"]["detail"]
    assert findings("--no-spark", "--catalog", "nosuch", code=1)["catalog nosuch"]["status"] == "fails"


def test_executors_with_another_version(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.metadata.version
    monkeypatch.setattr(module.metadata, "version", lambda name: "9.9" if name == "sparkmeta" else real(name))
    finding = findings(code=1)["sparkmeta of executors"]
    assert finding["status"] == "fails"
    assert "the driver has 9.9" in finding["detail"]


def test_no_spark_contradicts_options_of_sessions() -> None:
    result = CliRunner().invoke(main, ["doctor", "--no-spark", "--remote", "sc://nowhere"])
    assert result.exit_code == 2
    assert "--no-spark" in result.stderr
