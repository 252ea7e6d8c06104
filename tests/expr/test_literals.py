from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.expressions.literals import literal

from sparkmeta.expr.types import Place, place_literal
from sparkmeta.spec.iso_times import iso_date, iso_time, iso_timestamp

INT, LONG, FLOAT, DOUBLE = t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType()
DATE, TIME, TS, TSTZ, NS = t.DateType(), t.TimeType(), t.TimestampType(), t.TimestamptzType(), t.TimestampNanoType()
DEC = t.DecimalType(9, 2)
AT, JUST_ABOVE, ABOVE, BELOW = Place.AT, Place.JUST_ABOVE, Place.ABOVE_MAX, Place.BELOW_MIN


@pytest.mark.parametrize(
    ("value", "primitive", "expected"),
    [
        (2**31 - 1, INT, 2**31 - 1),
        (7, LONG, 7),
        ("7", LONG, 7),
        (Decimal("7.00"), INT, 7),
        (7, DOUBLE, 7.0),
        (0.1, FLOAT, float(np.float32(0.1))),
        (math.inf, FLOAT, math.inf),
        (Decimal("0.1"), DOUBLE, 0.1),
        (7, DEC, Decimal("7.00")),
        (Decimal("1.5"), DEC, Decimal("1.50")),
        (1.005, DEC, Decimal("1.01")),
        (-1.005, DEC, Decimal("-1.01")),
        (-1, DATE, -1),
        ("1969-12-31", DATE, -1),
        ("+12000-01-01", DATE, 3_663_382),
        (date(1970, 1, 3), DATE, 2),
        (datetime(1969, 12, 31, 23, 59, tzinfo=UTC), DATE, -1),
        ("10:00", TIME, 36_000_000_000),
        (time(0, 0, 0, 5), TIME, 5),
        (5, TS, 5),
        (5, NS, 5000),
        ("1969-12-31T23:59:59.999999", TS, -1),
        ("1970-01-02", TS, 86_400_000_000),
        ("1970-01-01 00:00:01", TS, 1_000_000),
        ("1970-01-01T00:00:00.000000001", NS, 1),
        ("1970-01-01T05:45:00+05:45", TSTZ, 0),
        ("1970-01-01T00:00:00Z", TSTZ, 0),
        ("1970-01-01T00:00:00-0100", TSTZ, 3_600_000_000),
        ("1970-01-01T18:00:00+18:00", TSTZ, 0),
        (datetime(1970, 1, 1, tzinfo=UTC), NS, 0),
        ("TRUE", t.BooleanType(), True),
        (uuid.UUID(int=1), t.UUIDType(), bytes(15) + b"\x01"),
        (str(uuid.UUID(int=1)), t.UUIDType(), bytes(15) + b"\x01"),
        ("aB01", t.FixedType(2), b"\xab\x01"),
        ("", t.BinaryType(), b""),
    ],
)
def test_converts(value: Any, primitive: t.PrimitiveType, expected: Any) -> None:
    placed = place_literal(literal(value), primitive)
    assert placed == (expected, AT)
    assert type(placed.value) is type(expected)
    if isinstance(expected, Decimal):
        assert placed.value.as_tuple() == expected.as_tuple()


@pytest.mark.parametrize(
    ("value", "primitive", "place", "floor"),
    [
        (2**31, INT, ABOVE, None),
        (-(2**31) - 1, INT, BELOW, None),
        (2**63, LONG, ABOVE, None),
        (1.5, INT, None, None),
        (Decimal("1.5"), INT, JUST_ABOVE, 1),
        (Decimal("-1.5"), INT, JUST_ABOVE, -2),
        (Decimal("1e400"), LONG, ABOVE, None),
        (1e39, FLOAT, ABOVE, None),
        (-1e39, FLOAT, BELOW, None),
        (10**400, DOUBLE, ABOVE, None),
        (Decimal("1.005"), DEC, JUST_ABOVE, Decimal("1.00")),
        (Decimal("-1.005"), DEC, JUST_ABOVE, Decimal("-1.01")),
        (10**7, DEC, ABOVE, None),
        (math.inf, DEC, ABOVE, None),
        (2**31, DATE, ABOVE, None),
        ("-9999999-01-01", DATE, BELOW, None),
        (2**63, TS, ABOVE, None),
        (2**62, NS, ABOVE, None),
        ("2300-01-01T00:00:00", NS, ABOVE, None),
        ("1969-12-31T23:59:59.9999995", TS, JUST_ABOVE, -1),
        ("10:00:00.0000001", TIME, JUST_ABOVE, 36_000_000_000),
    ],
)
def test_literals_between_and_beyond_the_values_of_a_type(
    value: Any, primitive: t.PrimitiveType, place: Place | None, floor: Any
) -> None:
    if place is None:
        with pytest.raises(ValueError, match="does not convert"):
            place_literal(literal(value), primitive)
        return
    placed = place_literal(literal(value), primitive)
    assert placed.place is place
    assert place is not JUST_ABOVE or placed.value == floor


@pytest.mark.parametrize(
    ("value", "primitive", "problem"),
    [
        (True, INT, "does not convert"),
        (date(2020, 1, 1), TS, "does not convert"),
        ("a", LONG, "not a number"),
        ("nan", DOUBLE, "NaN"),
        ("2020-02-30", DATE, "day"),
        ("2020-01-01T25:00:00", TS, "hours go up to 23"),
        ("2020-01-01T00:00:00", TSTZ, "offset"),
        ("2020-01-01", TSTZ, "offset"),
        ("2020-01-01T00:00:00+00:00", TS, "no offset"),
        ("2020-01-01T00:00:00+18:01", TSTZ, "is not a timestamp"),
        ("2020-01-01T00:00:00+01:60", TSTZ, "is not a timestamp"),
        ("x", t.UUIDType(), "UUID"),
        ("abc", t.BinaryType(), "does not convert"),
        (b"1", t.FixedType(2), "1 bytes, not 2"),
        (b"1", t.UUIDType(), "does not convert"),
        ("\ud800", t.StringType(), "Unicode"),
        (5, t.StringType(), "does not convert"),
        (5, t.UnknownType(), "can't be compared"),
        (b"x", t.GeometryType(), "can't be compared"),
    ],
)
def test_refuses(value: Any, primitive: t.PrimitiveType, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        place_literal(literal(value), primitive)


@given(st.integers(-(2**31), 2**31 - 1))
def test_dates_read_back(days: int) -> None:
    assert place_literal(literal(iso_date(days)), DATE) == (days, AT)


@given(st.integers(-(2**63), 2**63 - 1))
def test_timestamps_read_back(ticks: int) -> None:
    assert place_literal(literal(iso_timestamp(ticks)), TS) == (ticks, AT)
    assert place_literal(literal(iso_timestamp(ticks, 10**9)), NS) == (ticks, AT)


def test_iso_texts() -> None:
    assert iso_date(-719_529) == "-0001-12-31"
    assert iso_date(2_932_897) == "+10000-01-01"
    assert iso_time(36_000_500_000) == "10:00:00.5"
    assert iso_timestamp(-1) == "1969-12-31T23:59:59.999999"
