"""Parse and write dates and times in ISO 8601, with years of any number of digits."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final

from sparkmeta.errors import shown

EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
DAY_MICROS: Final = 86_400_000_000
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097

_DATE: Final = r"(?P<year>[+-]?\d{4,9})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
# From -18:00 to +18:00, as in Java.
_OFFSET: Final = r"(?P<offset>[zZ]|[+-](?:(?:0\d|1[0-7]):?[0-5]\d|18:?00))"
_ISO_DATE: Final = re.compile(_DATE, re.ASCII)
_ISO_TIME: Final = re.compile(_TIME, re.ASCII)
_ISO_TIMESTAMP: Final = re.compile(f"{_DATE}(?:[T ]{_TIME}{_OFFSET}?)?", re.ASCII)


def iso_days(text: str) -> int:
    """Return the number of days from 1970-01-01 to a date."""
    return _days(_matched(_ISO_DATE, text, "a date, YYYY-MM-DD"))


def iso_nanos_of_day(text: str) -> int:
    """Return the nanoseconds of a time of day."""
    return _nanos_of_day(_matched(_ISO_TIME, text, "a time, HH:MM[:SS[.ffffff]]"))


def iso_nanos(text: str, zoned: bool) -> int:
    """Return the nanoseconds from 1970-01-01T00:00:00 to a timestamp, which has an offset from UTC if `zoned`."""
    parts = _matched(_ISO_TIMESTAMP, text, "a timestamp, YYYY-MM-DDTHH:MM[:SS[.ffffff]]")
    if zoned and not parts["offset"]:
        raise ValueError("a timestamptz needs its offset from UTC, as in 2026-01-31T00:00:00+00:00")
    if not zoned and parts["offset"]:
        raise ValueError("a timestamp without time zone has no offset")
    return _days(parts) * DAY_MICROS * 1000 + _nanos_of_day(parts) - _offset_nanos(parts["offset"])


def _matched(pattern: re.Pattern[str], text: str, expected: str) -> dict[str, str | None]:
    if not (match := pattern.fullmatch(text)):
        raise ValueError(f"{shown(text)} is not {expected}")
    return match.groupdict()


def _days(parts: dict[str, str | None]) -> int:
    year, month, day = (int(parts[unit] or 0) for unit in ("year", "month", "day"))
    cycles, year_of_cycle = divmod(year - 2000, _CYCLE_YEARS)
    return date(2000 + year_of_cycle, month, day).toordinal() - EPOCH_DAY + cycles * _CYCLE_DAYS


def _nanos_of_day(parts: dict[str, str | None]) -> int:
    hour, minute, second = (int(parts[unit] or 0) for unit in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("hours go up to 23, minutes and seconds up to 59")
    return (hour * 3600 + minute * 60 + second) * 1_000_000_000 + int((parts["fraction"] or "").ljust(9, "0"))


def _offset_nanos(offset: str | None) -> int:
    if not offset or offset in "zZ":
        return 0
    minutes = int(offset[1:3]) * 60 + int(offset[-2:])
    return (-minutes if offset[0] == "-" else minutes) * 60_000_000_000


def iso_date(days: int) -> str:
    """Return the date of a number of days since 1970-01-01 in ISO 8601. Years before 0 and after 9999 have a sign."""
    cycles, day_of_cycle = divmod(days + EPOCH_DAY - date(2000, 1, 1).toordinal(), _CYCLE_DAYS)
    date_in_cycle = date.fromordinal(date(2000, 1, 1).toordinal() + day_of_cycle)
    year = date_in_cycle.year + cycles * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{date_in_cycle.month:02}-{date_in_cycle.day:02}"


def iso_time(ticks: int, per_second: int = 1_000_000) -> str:
    """Return the time of day in ISO 8601, with as few digits of the second as possible."""
    seconds, fraction = divmod(ticks, per_second)
    digits = f"{fraction:0{len(str(per_second)) - 1}}".rstrip("0")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (f".{digits}" if digits else "")


def iso_timestamp(ticks: int, per_second: int = 1_000_000) -> str:
    """Return the timestamp of a number of ticks since 1970-01-01T00:00:00 in ISO 8601."""
    days, ticks_of_day = divmod(ticks, 86_400 * per_second)
    return f"{iso_date(days)}T{iso_time(ticks_of_day, per_second)}"


def moment_of(text: str) -> datetime:
    """Return the time of an ISO 8601 text. A date or time without a zone is in UTC.

    Raises:
        ValueError: the text is not a date or time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO 8601 time such as 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
