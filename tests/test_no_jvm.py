from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmeta.java import java_version
from tests.no_jvm import JavaTrap, without_jvm

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Case:
    fixturenames: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()

    def get_closest_marker(self, name: str) -> bool:
        return name in self.markers


def test_tests_that_start_a_jvm_are_left_out() -> None:
    chosen: list[Any] = [Case(("tmp_path",)), Case((), ("java",))]
    others: list[Any] = [Case(("run", "spark")), Case(("rest_uri",)), Case((), ("jvm",))]
    assert without_jvm([*others, *chosen]) == chosen


def test_attempts_to_start_a_jvm_are_recorded(tmp_path: Path) -> None:
    trap = JavaTrap(tmp_path / "java's home")
    assert java_version(trap.home) == 21
    assert trap.starts() == []
    process = subprocess.run([trap.home / "bin" / "java", "-cp", "a:b", "Main"], capture_output=True, check=False)
    assert process.returncode == 1
    assert trap.starts() == ["java -cp a:b Main"]
    assert trap.starts() == []
