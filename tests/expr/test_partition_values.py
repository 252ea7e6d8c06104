"""Partition values in Spark SQL equal pyiceberg's transforms, for random values and the edges of types."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sparkmeta.expr import sql
from sparkmeta.expr.transforms import partition_value

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.transforms import Transform
    from pyspark.sql import SparkSession

RANDOM = np.random.default_rng(20261124)
LONGS = [0, -1, 1, 2**63 - 1, -(2**63), -(2**63) + 5, *RANDOM.integers(-(2**63), 2**63 - 1, 40).tolist()]
INTS = [0, -1, 1, 2**31 - 1, -(2**31), -(2**31) + 3, *RANDOM.integers(-(2**31), 2**31 - 1, 40).tolist()]
DAYS = [0, -1, 1, -719_162, 2_932_896, 58, 59, 60, *RANDOM.integers(-700_000, 2_900_000, 40).tolist()]
MICROS = [0, -1, 1, -3_600_000_001, *RANDOM.integers(-6 * 10**16, 2 * 10**17, 40).tolist()]
NANOS = [0, -1, 1, 2**63 - 1, -(2**63), -(2**63) + 5, *RANDOM.integers(-(2**62), 2**62, 40).tolist()]
TEXTS = ["", "a", "abcd", "\U0001f600\U0001f600x", "zürich", "日本語日本語"]
DECIMALS = [Decimal(int(n)).scaleb(-2) for n in RANDOM.integers(-(10**8), 10**8, 40)] + [
    Decimal("0.00"),
    Decimal("-0.01"),
]
UUIDS = [RANDOM.bytes(16) for _ in range(20)] + [bytes(16), b"\xff" * 16]

# For each type its values as pyiceberg's transforms take them, and the array that Spark is given.
VALUES: dict[IcebergType, tuple[list[Any], pa.Array]] = {
    IntegerType(): (INTS, pa.array(INTS, pa.int32())),
    LongType(): (LONGS, pa.array(LONGS, pa.int64())),
    DateType(): (DAYS, pa.array(DAYS, pa.int32()).cast(pa.date32())),
    TimeType(): ([abs(n) % 86_400_000_000 for n in LONGS], pa.array([abs(n) % 86_400_000_000 for n in LONGS])),
    TimestampType(): (MICROS, pa.array(MICROS).cast(pa.timestamp("us"))),
    TimestamptzType(): (MICROS, pa.array(MICROS).cast(pa.timestamp("us", "UTC"))),
    TimestampNanoType(): (NANOS, pa.array(NANOS)),
    TimestamptzNanoType(): (NANOS, pa.array(NANOS)),
    StringType(): (TEXTS, pa.array(TEXTS)),
    BinaryType(): ([text.encode() for text in TEXTS], pa.array([text.encode() for text in TEXTS])),
    DecimalType(10, 2): (DECIMALS, pa.array(DECIMALS, pa.decimal128(10, 2))),
    FixedType(8): ([value[:8] for value in UUIDS], pa.array([value[:8] for value in UUIDS])),
    UUIDType(): (UUIDS, pa.array([str(UUID(bytes=value)) for value in UUIDS])),
}
TRANSFORMS = [BucketTransform(1), BucketTransform(16), BucketTransform(1_000_003), TruncateTransform(1),
              TruncateTransform(7), TruncateTransform(1000), YearTransform(), MonthTransform(), DayTransform(),
              HourTransform()]  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_are_those_of_pyiceberg(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        compared = 0
        for kind, (values, array) in VALUES.items():
            named = {
                f"v{place}": (transform, column)
                for place, transform in enumerate(TRANSFORMS)
                if transform.can_transform(kind)
                and (column := partition_value(transform, kind, sql.col("value"))) is not None
            }
            # Spark optimizes expressions over files in ways that it does not for data of the driver.
            values_and_null = pa.table({"value": pa.concat_arrays([array, pa.nulls(1, array.type)])})
            pq.write_table(values_and_null, tmp_path / f"{compared}.parquet")
            frame = spark.read.parquet(f"file://{tmp_path}/{compared}.parquet")
            rows = frame.selectExpr(*(column.alias(name).selected for name, (_, column) in named.items())).collect()
            for name, (transform, _) in named.items():
                expected = [_wrapped(transform, kind, value) for value in values]
                assert [_plain(row[name]) for row in rows] == [*expected, None], (transform, kind)
                compared += 1
        assert compared > 35
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def _wrapped(transform: Transform[Any, Any], kind: IcebergType, value: Any) -> Any:
    """Return pyiceberg's value, which does not wrap around for the least integers as Java's does."""
    result = transform.transform(kind)(value)
    bits = {"int": 32, "long": 64}.get(str(kind), 0)
    if isinstance(transform, TruncateTransform) and bits and result < -(1 << (bits - 1)):
        result += 1 << bits
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - date(1970, 1, 1)).days
    return bytes(value) if isinstance(value, bytearray) else value
