"""Charts: what the axes of times show."""

from __future__ import annotations

import re

import pytest

from sparkmeta.charts import Moment, timeline

_BEGIN = 1_795_910_399_900  # the last second of a day
_SECOND, _DAY = 1000, 86_400_000
SPANS = [
    1, 2, 3, 900, _SECOND, 3 * _SECOND, 59 * _SECOND, 60 * _SECOND, 3_600 * _SECOND, 8 * 3_600 * _SECOND,
    _DAY - 1, _DAY, 2 * _DAY, 3 * _DAY, 40 * _DAY, 366 * _DAY, 8_000 * _DAY,
]  # fmt: skip


def labels(*times: int) -> list[str]:
    drawn = timeline([Moment(time, 1, None) for time in times])
    return re.findall(r">(\d{4}-[^<]*)</text>", drawn)


@pytest.mark.parametrize("offset", [0, 101, _DAY // 3])
@pytest.mark.parametrize("span", SPANS)
def test_times_on_an_axis_differ(span: int, offset: int) -> None:
    """From milliseconds to years, times increase, fit beside each other and have one form."""
    begin = _BEGIN + offset
    shown = labels(begin, begin + span // 2, begin + span)
    assert len(shown) == (3 if span > 2 else 2)
    assert shown == sorted(set(shown))
    assert len(set(map(len, shown))) == 1
    assert sum(map(len, shown)) < 70


def test_one_time_and_times_that_no_date_has() -> None:
    assert labels(_BEGIN) == labels(_BEGIN, _BEGIN) == ["2026-11-28 23:59"]
    assert labels(-5, -1) == ["1970-01-01 00:00:00.000"]
    assert labels(1 << 60, 1 << 61) == ["9999-12-31"]
