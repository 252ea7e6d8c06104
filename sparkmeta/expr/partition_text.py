"""Format partition values for people, like Iceberg's Java library. Light: Spark tasks import this."""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from sparkmeta.expr.bounds import known_bounds

NULL = "null"

_DAY_MICROS: Final = 86_400_000_000


def human_strings(values: pa.BinaryArray, transform: str, type_name: str) -> pa.StringArray:
    """Format single-value serialized partition values as text: `null` for nulls, and for invalid bytes.

    Args:
        transform: the name of the partition field's transform.
        type_name: the Iceberg type of its result.
    """
    decoded = known_bounds(values, type_name)
    if (storage := _STORAGE.get(decoded.type.id)) is not None:
        decoded = decoded.cast(storage)  # Python's dates end with the year 9999
    show = _BY_TRANSFORM.get(transform) or _shown_as(type_name)
    return pa.array([NULL if value is None else show(value) for value in decoded.to_pylist()], pa.string())


def _shown_as(type_name: str) -> Callable[[Any], str]:
    return _BY_TYPE.get(type_name.partition("[")[0], str)


def _year(ordinal: int) -> str:
    return f"{1970 + ordinal:04d}"


def _month(ordinal: int) -> str:
    return f"{1970 + ordinal // 12:04d}-{1 + ordinal % 12:02d}"


def _day(ordinal: int) -> str:
    return "{:04d}-{:02d}-{:02d}".format(*_civil(ordinal))


def _hour(ordinal: int) -> str:
    return f"{_day(ordinal // 24)}-{ordinal % 24:02d}"


def _time(micros: int) -> str:
    """Format a time like java.time.LocalTime: seconds only if not zero, decimals in groups of three."""
    clock, seconds, fraction = _clock(micros)
    if not seconds and not fraction:
        return clock
    digits = f"{fraction:06d}"
    decimals = "" if not fraction else f".{digits.removesuffix('000')}"
    return f"{clock}:{seconds:02d}{decimals}"


def _timestamp(micros: int) -> str:
    return _iso(micros, f"{micros % 1_000_000:06d}")


def _timestamptz(micros: int) -> str:
    return f"{_timestamp(micros)}+00:00"


def _timestamp_ns(nanos: int) -> str:
    return _iso(nanos // 1000, f"{nanos % 1_000_000_000:09d}")


def _timestamptz_ns(nanos: int) -> str:
    return f"{_timestamp_ns(nanos)}+00:00"


def java_double(value: float) -> str:
    """Format a number like java.lang.Double: shortest round-trip digits, scientific below 0.001 and from 10^7."""
    return _number(value, repr(value))


def java_float(value: float) -> str:
    """Format a number like java.lang.Float; see `java_double`."""
    return _number(value, str(np.float32(value)))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=value))


def _binary(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _iso(micros: int, fraction: str) -> str:
    """Format as ISO-8601 with seconds and without trailing zeros. Years beyond 9999 have a sign."""
    year_number, month_number, day_number = _civil(micros // _DAY_MICROS)
    sign = "+" if year_number > 9999 else "-" if year_number < 0 else ""
    clock, seconds, _ = _clock(micros % _DAY_MICROS)
    decimals = f".{fraction}".rstrip("0").rstrip(".")
    return f"{sign}{abs(year_number):04d}-{month_number:02d}-{day_number:02d}T{clock}:{seconds:02d}{decimals}"


def _clock(micros: int) -> tuple[str, int, int]:
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}", seconds % 60, fraction


def _civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day in the proleptic Gregorian calendar, for days since 1970-01-01."""
    cycle, day_of_cycle = divmod(days + 719_468, 146_097)
    year_of_cycle = (day_of_cycle - day_of_cycle // 1460 + day_of_cycle // 36_524 - day_of_cycle // 146_096) // 365
    day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle // 4 - year_of_cycle // 100)
    shifted = (5 * day_of_year + 2) // 153  # months counted from March
    month_number = shifted + 3 if shifted < 10 else shifted - 9
    return cycle * 400 + year_of_cycle + (month_number <= 2), month_number, day_of_year - (153 * shifted + 2) // 5 + 1


def _number(value: float, shortest: str) -> str:
    if shortest in _NOT_FINITE:
        return _NOT_FINITE[shortest]
    number = Decimal(shortest)
    if len(number.as_tuple().digits) == 1:  # Java shows two digits at least, the nearest ones
        number = Decimal(f"{value:.1e}")
    number = number.normalize()
    if not number or -3 <= number.adjusted() < 7:
        text = f"{number:f}"
        return text if "." in text else f"{text}.0"
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{number.adjusted()}"


_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_STORAGE: Final = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}
_BY_TRANSFORM: Final[dict[str, Callable[[Any], str]]] = {"year": _year, "month": _month, "day": _day, "hour": _hour}
_BY_TYPE: Final[dict[str, Callable[[Any], str]]] = {
    "boolean": _boolean,
    "float": java_float,
    "double": java_double,
    "date": _day,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "timestamp_ns": _timestamp_ns,
    "timestamptz_ns": _timestamptz_ns,
    "uuid": _uuid,
    "fixed": _binary,
    "binary": _binary,
}
