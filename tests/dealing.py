"""Deal long tests among the runs of `make test`: a run takes some of them, and all runs together take every one."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

# Seconds of a case of each test function, as `--record-durations` writes them.
DURATIONS = Path(__file__).parent / "durations.json"

# Cases that take this many seconds, or more, are dealt. Shorter ones run each time.
LONG = 0.5
# Seconds that the cases of a function take in a run, on average over all runs.
SHARE = 1.0


def function_of(nodeid: str) -> str:
    """Return the node id of a test's function, which all its cases share."""
    return nodeid.partition("[")[0]


def dealt(items: Iterable[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the tests of one run.

    The long cases of a function are dealt in turn to as many runs as keep each to SHARE seconds. Tests that are marked
    `core`, and tests without a recorded duration, are in every run.

    Args:
        items: all tests, in their order.
        seed: the number of the run. Consecutive numbers go through all cases.
    """
    seconds = recorded()
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[function_of(item.nodeid)].append(item)
    chosen = {item for function, group in cases.items() for item in _turn(group, seconds.get(function, 0), seed)}
    return [item for item in items if item in chosen]


def _turn(group: list[pytest.Item], seconds: float, seed: int) -> Iterator[pytest.Item]:
    runs = math.ceil(len(group) * seconds / SHARE)
    if seconds < LONG or runs < 2 or group[0].get_closest_marker("core"):
        yield from group
        return
    # Functions begin at different turns, so that the runs have about the same length.
    first = seed + zlib.crc32(function_of(group[0].nodeid).encode())
    for number, item in enumerate(group):
        if (first + number) % runs == 0:
            yield item


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the time that their file takes, so that no process is left alone with a long one at the end."""
    seconds, files = recorded(), Counter[Path]()
    for item in items:
        files[item.path] += seconds.get(function_of(item.nodeid), 0)  # type: ignore[assignment]
    items.sort(key=lambda item: -files[item.path])


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
