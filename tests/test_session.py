from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from sparkmeta import session
from sparkmeta.errors import SessionError
from sparkmeta.session import is_connect, java_home, java_version, local_session, materialize, resolve_session

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version: str, *, code: int = 0) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {code}\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def machine_without_java(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(session.shutil, "which", lambda _: None)
    monkeypatch.setattr(session.util, "find_spec", lambda _: None)
    return monkeypatch


@pytest.mark.parametrize(("version", "feature"), [("1.8.0_392", 8), ("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_version(tmp_path: Path, version: str, feature: int) -> None:
    assert java_version(fake_java(tmp_path / "java", version)) == feature


def test_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) == 0
    assert java_version(fake_java(tmp_path / "java", "17", code=1)) == 0


def test_java_home_comes_first(tmp_path: Path, machine_without_java: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "java", "17.0.1")
    machine_without_java.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_an_old_java_is_passed_over(tmp_path: Path, machine_without_java: pytest.MonkeyPatch) -> None:
    machine_without_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    new = fake_java(tmp_path / "new", "21.0.8")
    machine_without_java.setattr(session.shutil, "which", lambda _: str(new / "bin" / "java"))
    assert java_home() == new


def test_no_java_says_what_to_install(tmp_path: Path, machine_without_java: pytest.MonkeyPatch) -> None:
    machine_without_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(SessionError, match=r"Java 17 or newer.*old \(version 11\).*sparkmeta\[java\]"):
        java_home()


@pytest.mark.connect
def test_local_session_is_the_one_that_runs(spark: SparkSession) -> None:
    assert local_session(config={"spark.sparkmeta.discovery-parallelism": "4"}) is spark
    assert spark.conf.get("spark.sparkmeta.discovery-parallelism") == "4"
    spark.conf.unset("spark.sparkmeta.discovery-parallelism")


def test_resolve_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_session(spark) is spark
    assert resolve_session(None) is spark
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(SessionError, match="local_session"):
        resolve_session(None)


@pytest.mark.connect
def test_is_connect(spark: SparkSession, pytestconfig: pytest.Config) -> None:
    assert is_connect(spark) is bool(pytestconfig.option.spark_connect_url)


@pytest.mark.connect
def test_materialize_keeps_rows_and_recomputes_nothing(spark: SparkSession) -> None:
    random = spark.range(100).selectExpr("id", "uuid() AS value")
    kept = materialize(random)
    assert kept.collect() == kept.collect()
    assert kept.count() == 100
