"""Partition values as text are what Iceberg's Java library makes of them."""

from __future__ import annotations

import random
import struct
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sparkmeta.expr.partition_text import human_strings
from tests.peers.java import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400_000_000


def shown(value: Any, kind: PrimitiveType, transform: str = "identity") -> str:
    raw = None if value is None else value if isinstance(value, bytes) else to_bytes(kind, value)
    [text] = human_strings(pa.array([raw], pa.binary()), transform, str(kind)).to_pylist()
    return str(text)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (IntegerType(), None, "null"),
        (BooleanType(), True, "true"),
        (BooleanType(), False, "false"),
        (IntegerType(), -5, "-5"),
        (LongType(), struct.pack("<i", 7), "7"),  # written before the column was promoted
        (FloatType(), 0.1, "0.1"),
        (DoubleType(), -0.0, "-0.0"),
        (DoubleType(), 1e7, "1.0E7"),
        (DoubleType(), 9_999_999.0, "9999999.0"),
        (DoubleType(), 0.001, "0.001"),
        (DoubleType(), 0.00099, "9.9E-4"),
        (DoubleType(), 100.0, "100.0"),
        (DoubleType(), 1.5e300, "1.5E300"),
        (DoubleType(), 5e-324, "4.9E-324"),
        (DoubleType(), float("nan"), "NaN"),
        (FloatType(), float("-inf"), "-Infinity"),
        (DecimalType(9, 2), Decimal("-14.20"), "-14.20"),
        (DecimalType(38, 10), Decimal("0E-10"), "0E-10"),
        (DateType(), -1, "1969-12-31"),
        (DateType(), struct.pack("<i", 3_000_000), "10183-09-21"),
        (DateType(), struct.pack("<i", -800_000), "-221-09-04"),
        (TimeType(), 0, "00:00"),
        (TimeType(), 61_500_000, "00:01:01.500"),
        (TimeType(), 1, "00:00:00.000001"),
        (TimestampType(), 0, "1970-01-01T00:00:00"),
        (TimestampType(), -1, "1969-12-31T23:59:59.999999"),
        (TimestamptzType(), 500_000, "1970-01-01T00:00:00.5+00:00"),
        (TimestampType(), 3_000_000 * DAY, "+10183-09-21T00:00:00"),
        (TimestampNanoType(), 1, "1970-01-01T00:00:00.000000001"),
        (StringType(), "null", "null"),
        (UUIDType(), bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (BinaryType(), b"\x01\xff", "Af8="),
    ],
)
def test_identity(kind: PrimitiveType, value: Any, text: str) -> None:
    assert shown(value, kind) == text


@pytest.mark.parametrize(
    ("transform", "value", "text"),
    [("year", 54, "2024"), ("year", -1971, "-001"), ("month", -1, "1969-12"), ("hour", -1, "1969-12-31-23")],
)
def test_time_transforms(transform: str, value: int, text: str) -> None:
    assert shown(value, IntegerType(), transform) == text
    assert shown(None, IntegerType(), transform) == "null"


def test_every_day_of_the_calendar() -> None:
    days = range(-719_162, 2_932_896, 97)
    texts = human_strings(pa.array([struct.pack("<i", day) for day in days], pa.binary()), "identity", "date")
    assert texts.to_pylist() == [(date(1970, 1, 1) + timedelta(day)).isoformat() for day in days]


def test_malformed_bytes() -> None:
    assert human_strings(pa.array([b"\x01"], pa.binary()), "identity", "int").to_pylist() == ["null"]


@pytest.mark.java
@pytest.mark.parametrize("kind", [DoubleType(), FloatType(), TimestampType(), TimestamptzType(), DateType()])
def test_equal_to_java(spark: SparkSession, kind: PrimitiveType) -> None:
    java = Java(spark)
    transform = java.iceberg.transforms.Transforms.fromString("identity")
    kind_of_java = java.iceberg.types.Types.fromPrimitiveString(str(kind))
    conversions, buffers = java.iceberg.types.Conversions, java.jvm.java.nio.ByteBuffer
    chosen = random.Random(7)
    for _ in range(40):
        raw = _random_bytes(kind, chosen)
        value = conversions.fromByteBuffer(kind_of_java, buffers.wrap(raw))
        ours, theirs = shown(raw, kind), transform.toHumanString(kind_of_java, value)
        assert ours == theirs or _same_number(ours, theirs, raw, kind), raw.hex()


def _same_number(ours: str, theirs: str, raw: bytes, kind: PrimitiveType) -> bool:
    """Java before 19 shows some numbers with a digit more than it takes to tell them apart."""
    if not isinstance(kind, FloatType | DoubleType) or len(ours) > len(theirs):
        return False
    return all(to_bytes(kind, float(text)) == raw for text in (ours, theirs))


def _random_bytes(kind: PrimitiveType, chosen: random.Random) -> bytes:
    if isinstance(kind, DoubleType):
        return struct.pack("<d", chosen.choice([chosen.random(), chosen.uniform(-1e9, 1e9), chosen.random() * 1e-5]))
    if isinstance(kind, FloatType):
        return struct.pack("<f", chosen.choice([chosen.random(), chosen.uniform(-1e9, 1e9)]))
    if isinstance(kind, DateType):
        return struct.pack("<i", chosen.randint(-(1 << 22), 1 << 22))
    return struct.pack("<q", chosen.randint(-(1 << 58), 1 << 58) // chosen.choice([1, 1000]))
