from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from sparkmeta import java
from sparkmeta.errors import SessionError
from sparkmeta.java import java_home, java_version, spark_java_home

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version: str, *, code: int = 0) -> Path:
    (home / "bin").mkdir(parents=True)
    launcher = home / "bin" / "java"
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {code}\n")
    launcher.chmod(0o755)
    return home


@pytest.fixture
def machine_without_java(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    monkeypatch.setattr(java.util, "find_spec", lambda _: None)
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
    machine_without_java.setattr(java.shutil, "which", lambda _: str(new / "bin" / "java"))
    assert java_home() == new


def test_no_java_says_what_to_install(tmp_path: Path, machine_without_java: pytest.MonkeyPatch) -> None:
    machine_without_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(SessionError, match=r"Java 17 or newer.*old \(version 11\).*sparkmeta\[java\]"):
        java_home()


def echoing_java(home: Path, modules: str) -> Path:
    launcher = fake_java(home, "21.0.8") / "bin" / "java"
    launcher.write_text('#!/bin/sh\necho "version \\"21\\"" >&2\nprintf "%s\\n" "$@"\n')
    (home / "release").write_text(f'JAVA_VERSION="21.0.8"\nMODULES="{modules}"\n')
    return home


def test_a_whole_java_is_spark_s(tmp_path: Path, machine_without_java: pytest.MonkeyPatch) -> None:
    home = echoing_java(tmp_path / "java", "java.base jdk.incubator.vector")
    machine_without_java.setenv("JAVA_HOME", str(home))
    assert spark_java_home() == home
    (home / "release").unlink()
    assert spark_java_home() == home


def test_a_java_of_few_modules_is_not_asked_for_more(tmp_path: Path, machine_without_java: pytest.MonkeyPatch) -> None:
    home = echoing_java(tmp_path / "ja va", "java.base java.sql")
    machine_without_java.setenv("JAVA_HOME", str(home))
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "$x 'y'"]
    done = subprocess.run([spark_java_home() / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["-Da=b c", "", "$x 'y'"]
