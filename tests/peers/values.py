"""Single values in Iceberg's JSON form, as the Python values that Spark shows for them."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny, TypeAdapter
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def nanos(text: str) -> int:
    """Nanoseconds from 1970 of an ISO timestamp, with or without an offset, with up to nine decimals."""
    parts = re.fullmatch(r"(.{10}T[0-9:]+)(?:\.([0-9]+))?(Z|[+-][0-9:]+)?", text)
    assert parts, text
    moment = dt.datetime.fromisoformat(parts[1] + (parts[3] or "+00:00"))
    return (moment - EPOCH) // dt.timedelta(seconds=1) * 10**9 + int((parts[2] or "0").ljust(9, "0")[:9])


def timestamp(value: Any) -> dt.datetime:
    """A timestamp as `collect()` gives it where the process's time zone is UTC: without a zone."""
    micros = value if isinstance(value, int) else nanos(value) // 1000
    return (EPOCH + dt.timedelta(microseconds=micros)).replace(tzinfo=None)


def micros_of_day(value: Any) -> int:
    if isinstance(value, int):
        return value
    clock, _, fraction = value.partition(".")
    hours, minutes, seconds = [*(int(part) for part in clock.split(":")), 0, 0][:3]
    return ((hours * 60 + minutes) * 60 + seconds) * 10**6 + int(fraction.ljust(6, "0")[:6] or 0)


def date(value: Any) -> dt.date:
    return EPOCH.date() + dt.timedelta(days=value) if isinstance(value, int) else dt.date.fromisoformat(value)


def identity(value: Any) -> Any:
    return value


READERS: Mapping[type[IcebergType], Callable[[Any], Any]] = {
    BooleanType: identity,
    IntegerType: int,
    LongType: int,
    FloatType: float,
    DoubleType: float,
    DateType: date,
    TimeType: micros_of_day,
    TimestampType: timestamp,
    TimestamptzType: timestamp,
    TimestampNanoType: lambda value: value if isinstance(value, int) else nanos(value),
    TimestamptzNanoType: lambda value: value if isinstance(value, int) else nanos(value),
    DecimalType: lambda value: Decimal(str(value)),
    StringType: identity,
    UUIDType: lambda value: value.lower(),
    FixedType: bytes.fromhex,
    BinaryType: bytes.fromhex,
    UnknownType: identity,
}


def java_type(text: str) -> IcebergType:
    """The primitive type whose `toString` in Java is this text."""
    names = {"timestamp_ns": TimestampNanoType(), "timestamptz_ns": TimestamptzNanoType(), "unknown": UnknownType()}
    return names.get(text) or TypeAdapter(SerializeAsAny[IcebergType]).validate_python(text.replace(" ", ""))


def python_value(value: Any, field_type: IcebergType) -> Any:
    """A JSON single value (the table spec, "JSON single-value serialization") as Spark's `collect()` shows it.

    uuid is text, time and nanosecond timestamps are integers, timestamps carry no zone.
    """
    return None if value is None else READERS[type(field_type)](value)


def comparable(value: Any) -> Any:
    """The same value in a form whose == tells -0.0 from 0.0, holds for NaN, and can be hashed."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else repr(value))
    if isinstance(value, bytes | bytearray):
        return ("bytes", bytes(value).hex())
    if isinstance(value, Decimal):
        return ("decimal", str(value))
    if hasattr(value, "asDict"):
        value = value.asDict(recursive=False)
    if isinstance(value, dict):
        return tuple(sorted(((str(key), comparable(item)) for key, item in value.items()), key=repr))
    if isinstance(value, list | tuple):
        return ("list", *(comparable(item) for item in value))
    return value
