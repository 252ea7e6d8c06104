"""Each long test is in some run of `make test`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests import dealing
from tests.dealing import SHARE, dealt

SECONDS = {"t.py::slow": 11.0, "t.py::many": 1.0, "t.py::quick": 0.1, "t.py::core": 9.0, "u.py::together_a": 6.0}
CASES = {"t.py::slow": 1, "t.py::many": 20, "t.py::quick": 50, "t.py::core": 4, "t.py::unrecorded": 4}
TOGETHER = {"u.py::together_a": 2, "u.py::together_b": 1}


@dataclass(frozen=True)
class Case:
    nodeid: str

    def get_closest_marker(self, name: str) -> bool:
        return name in self.nodeid


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(dealing, "recorded", lambda: SECONDS)
    return [Case(f"{function}[{number}]") for function, count in (CASES | TOGETHER).items() for number in range(count)]


def test_consecutive_runs_take_every_case(cases: list[Any]) -> None:
    runs = [dealt(cases, 40 + seed) for seed in range(30)]
    assert {*cases} == {case for run in runs for case in run}
    assert all(run == [case for case in cases if case in run] for run in runs)
    counts = Counter(case.nodeid.partition("[")[0] for run in runs for case in run)
    assert counts == {
        "t.py::slow": 3,
        "t.py::many": 30,
        "t.py::quick": 50 * 30,
        "t.py::core": 4 * 30,
        "t.py::unrecorded": 4 * 30,
        **{function: count * 10 for function, count in TOGETHER.items()},
    }
    assert {sum("together" in case.nodeid for case in run) for run in runs} == {0, 3}


def test_a_function_takes_its_share(cases: list[Any]) -> None:
    runs = [dealt(cases, seed) for seed in range(30)]
    many = [sum(SECONDS[case.nodeid.partition("[")[0]] for case in run if "many" in case.nodeid) for run in runs]
    assert {*many} == {SHARE}
