"""Deal long tests among the runs of `make test`: a run takes some of them, and all runs together take every one."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

# Seconds of a case of each test function, as `--record-durations` writes them.
DURATIONS = Path(__file__).parent / "durations.json"

# Seconds that the cases of a function take in a run, on average over all runs, of `make test` and of `make quick`.
# Cases that take less than half of it run each time.
SHARE, QUICK_SHARE = 1.0, 0.2


def function_of(nodeid: str) -> str:
    """Return the node id of a test's function, which all its cases share."""
    return nodeid.partition("[")[0]


def dealt(items: Iterable[pytest.Item], seed: int, share: float = SHARE) -> list[pytest.Item]:
    """Return the tests of one run.

    The long cases of a function are dealt in turn to as many runs as keep each to its share. Tests of a file that is
    marked `together` are dealt as one case. Tests that are marked `core`, and tests without a recorded duration, are in
    every run.

    Args:
        items: all tests, in their order.
        seed: the number of the run. Consecutive numbers go through all cases.
        share: the seconds of a function's cases in a run, on average.
    """
    cases: dict[str, list[list[pytest.Item]]] = defaultdict(list)
    for item in items:
        together = item.get_closest_marker("together")
        group = cases[item.nodeid.partition("::")[0] if together else function_of(item.nodeid)]
        if together and group:
            group[0].append(item)
        else:
            group.append([item])
    chosen = {item for name, group in cases.items() for case in _turn(name, group, seed, share) for item in case}
    return [item for item in items if item in chosen]


def _turn(name: str, cases: list[list[pytest.Item]], seed: int, share: float) -> list[list[pytest.Item]]:
    functions = {function_of(item.nodeid) for item in cases[0]}
    seconds = sum(recorded().get(function, 0) for function in functions) / len(functions)
    runs = math.ceil(len(cases) * seconds / share)
    if seconds < share / 2 or runs < 2 or cases[0][0].get_closest_marker("core"):
        return cases
    # Functions begin at different turns, so that the runs have about the same length.
    first = seed + zlib.crc32(name.encode())
    return [case for number, case in enumerate(cases) if (first + number) % runs == 0]


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the time that their file takes, so that no process is left alone with a long one at the end."""
    seconds, files = recorded(), Counter[Path]()
    for item in items:
        files[item.path] += seconds.get(function_of(item.nodeid), 0)  # type: ignore[assignment]
    items.sort(key=lambda item: -files[item.path])


@cache
def recorded() -> dict[str, float]:
    """Return the seconds of a case of each function whose duration was recorded."""
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    return seconds


def record(reports: Iterable[pytest.TestReport], *, whole: bool) -> None:
    """Write the durations of a run.

    Args:
        reports: set-up, call and tear-down of each test.
        whole: whether all tests ran: then functions that have no report are forgotten.
    """
    total, cases = Counter[str](), defaultdict[str, set[str]](set)
    for report in reports:
        function = function_of(report.nodeid)
        total[function] += report.duration  # type: ignore[assignment]
        cases[function].add(report.nodeid)
    means = {function: round(total[function] / len(cases[function]), 1) for function in total}
    merged = ({} if whole else recorded()) | means
    DURATIONS.write_text(json.dumps(dict(sorted((f, s) for f, s in merged.items() if s)), indent=0) + "\n")
