"""Each rule of skipping by itself; random filters and stats are in tests/properties."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as t
from pyiceberg.expressions import EqualTo, In, NotIn
from pyiceberg.schema import Schema
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from sparkmeta.expr import sql
from sparkmeta.expr.predicate import bind_filter, parse_filter
from sparkmeta.expr.skipping import FieldStats, might_match, must_match
from sparkmeta.expr.types import bound_type
from tests.plans import physical_plan

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame, SparkSession

INT, TEXT, DOUBLE = t.IntegerType(), t.StringType(), t.DoubleType()
TOP, NESTED = 1, 3


def schema_of(kind: t.PrimitiveType) -> Schema:
    struct = t.StructType(t.NestedField(NESTED, "n", kind, required=False))
    return Schema(t.NestedField(TOP, "v", kind, required=False), t.NestedField(2, "s", struct, required=False))


def stats_frame(spark: SparkSession, kind: t.PrimitiveType, *stats: Any) -> DataFrame:
    lower, upper, values, nulls, nans, records = stats
    bound = bound_type(kind)
    fields = [StructField("lower_bound", bound), StructField("upper_bound", bound)]
    fields += [
        StructField(name, LongType()) for name in ("value_count", "null_value_count", "nan_value_count", "records")
    ]
    return spark.createDataFrame([(lower, upper, values, nulls, nans, records)], StructType(fields))


def column_stats(_field_id: int) -> FieldStats:
    return FieldStats(*(sql.col(name) for name in FieldStats._fields))


def decide(
    spark: SparkSession, kind: t.PrimitiveType, row_filter: str | BooleanExpression, *stats: Any
) -> tuple[bool, bool]:
    bound = bind_filter(parse_filter(row_filter), schema_of(kind), two_valued=True)
    columns = [
        might_match(bound, column_stats, sql.col("records")),
        must_match(bound, column_stats, sql.col("records"), {TOP, 2}),
    ]
    row = stats_frame(spark, kind, *stats).selectExpr(*(condition.text for condition in columns)).first()
    assert row is not None
    return row[0], row[1]


KEEP, SKIP, ALL = (True, False), (False, False), (True, True)
FULL = (10, 20, 5, 0, None, 5)


@pytest.mark.parametrize(
    ("row_filter", "expected"),
    [
        ("v < 10", SKIP),
        ("v < 11", KEEP),
        ("v < 21", ALL),
        ("v <= 9", SKIP),
        ("v <= 20", ALL),
        ("v > 20", SKIP),
        ("v > 9", ALL),
        ("v >= 21", SKIP),
        ("v >= 10", ALL),
        ("v = 9", SKIP),
        ("v = 21", SKIP),
        ("v = 15", KEEP),
        ("v <> 15", KEEP),
        ("v <> 9", ALL),
        ("v in (8, 9, 21)", SKIP),
        ("v in (9, 20)", KEEP),
        ("v not in (8, 9, 21)", ALL),
        ("v not in (9, 20)", KEEP),
        ("v is null", SKIP),
        ("v is not null", ALL),
        ("true", ALL),
        ("false", SKIP),
        ("v < 10 or v > 20", SKIP),
        ("v < 12 and v > 18", KEEP),
        # Nothing but NaN tests is proven within a struct.
        ("s.n < 21", KEEP),
        ("s.n is not null", KEEP),
    ],
)
def test_bounds_and_counts(spark: SparkSession, row_filter: str, expected: tuple[bool, bool]) -> None:
    assert decide(spark, INT, row_filter, *FULL) == expected


@pytest.mark.parametrize(
    ("row_filter", "stats", "expected"),
    [
        ("v < 10", (None, 20, 5, 0, None, 5), KEEP),
        ("v > 20", (10, None, 5, 0, None, 5), KEEP),
        ("v = 21", (None, 20, 5, 0, None, 5), SKIP),
        ("v in (21, 22)", (None, 20, 5, 0, None, 5), KEEP),
        ("v in (30, 31)", (10, None, 5, 0, None, 5), KEEP),
        ("v in (1, 2)", (10, None, 5, 0, None, 5), SKIP),
        ("v < 5", (None, None, 5, 5, None, 5), SKIP),
        ("v in (1, 2)", (None, None, 5, 5, None, 5), SKIP),
        ("v <> 5", (None, None, 5, 5, None, 5), ALL),
        ("v is null", (None, None, 5, 5, None, 5), ALL),
        ("v is not null", (None, None, 5, 5, None, 5), SKIP),
        ("v is null", (10, 20, 5, None, None, 5), KEEP),
        ("v is not null", (10, 20, 5, None, None, 5), KEEP),
        ("v > 9", (10, 20, 5, None, None, 5), KEEP),
        ("v > 9", (10, 20, 5, 1, None, 5), KEEP),
        ("v <> 7", (7, 7, 5, 0, None, 5), SKIP),
        ("v not in (7, 8)", (7, 7, 5, 0, None, 5), SKIP),
        ("v <> 7", (7, 7, 5, 1, None, 5), KEEP),
        ("v <> 7", (7, 7, 5, None, None, 5), KEEP),
        ("v = 7", (7, 7, 5, 0, None, 5), ALL),
        ("v in (7, 8)", (7, 7, 5, 0, None, 5), ALL),
        # Rows whose parent is null are not counted, and are null.
        ("s.n is null", (7, 7, 4, 0, None, 5), KEEP),
        ("s.n <> 7", (7, 7, 4, 0, None, 5), KEEP),
        ("s.n is not null", (None, None, 0, 0, None, 5), SKIP),
        # No rows; an unknown number of rows.
        ("v = 15", (10, 20, 5, 0, None, 0), (False, True)),
        ("true", (10, 20, 5, 0, None, 0), (False, True)),
        ("v = 9", (10, 20, 5, 0, None, -1), KEEP),
        ("v = 9", (10, 20, 5, 0, None, None), KEEP),
        ("v > 9", (10, 20, 5, 0, None, -1), KEEP),
        ("v is null", (None, None, -1, -1, None, 5), KEEP),
        ("v is not null", (None, None, -1, -1, None, 5), KEEP),
    ],
)
def test_missing_stats(
    spark: SparkSession, row_filter: str, stats: tuple[Any, ...], expected: tuple[bool, bool]
) -> None:
    assert decide(spark, INT, row_filter, *stats) == expected


@pytest.mark.parametrize(
    ("row_filter", "stats", "expected"),
    [
        ("v < 1.0", (math.nan, math.nan, 5, 0, 1, 5), KEEP),
        ("v > 9.0", (1.0, math.nan, 5, 0, 1, 5), KEEP),
        ("v > 9.0", (1.0, 5.0, 5, 0, 1, 5), SKIP),
        ("v = 9.0", (math.nan, 5.0, 5, 0, 1, 5), SKIP),
        ("v in (9.0, 10.0)", (math.nan, 5.0, 5, 0, 1, 5), KEEP),
        ("v in (9.0, 10.0)", (1.0, math.nan, 5, 0, 1, 5), KEEP),
        ("v < 9.0", (1.0, 5.0, 5, 0, 0, 5), ALL),
        ("v < 9.0", (1.0, 5.0, 5, 0, None, 5), KEEP),
        ("v > 0.5", (math.nan, math.nan, 5, 0, 0, 5), KEEP),
        ("v < 1.0", (None, None, 5, 0, 5, 5), SKIP),
        ("v <> 1.0", (None, None, 5, 0, 5, 5), ALL),
        ("v <> 1.0", (1.0, 1.0, 5, 0, 1, 5), KEEP),
        ("v <> 1.0", (1.0, 1.0, 5, 0, 0, 5), SKIP),
        ("v <> 7.0", (math.nan, 5.0, 5, 0, 1, 5), KEEP),
        ("v is nan", (1.0, 5.0, 5, 0, 0, 5), SKIP),
        ("v is nan", (None, None, 5, 5, None, 5), SKIP),
        ("v is nan", (None, None, 5, 0, 5, 5), ALL),
        ("v is not nan", (None, None, 5, 0, 5, 5), SKIP),
        ("v is not nan", (None, None, 5, 5, None, 5), ALL),
        ("v is not nan", (1.0, 5.0, 5, 0, None, 5), KEEP),
        ("s.n is nan", (None, None, 5, 0, 5, 5), ALL),
        ("s.n is not nan", (1.0, 2.0, 5, 0, 0, 5), ALL),
        # Counted values are all NaN, rows with null parents are not.
        ("s.n is not nan", (None, None, 4, 0, 4, 5), KEEP),
        ("s.n is nan", (None, None, 4, 0, 4, 5), KEEP),
        # Both zeros are one number.
        ("v < 0.0", (-0.0, 5.0, 5, 0, 0, 5), SKIP),
        ("v = 0.0", (-0.0, -0.0, 5, 0, 0, 5), ALL),
        ("v <> 0.0", (-0.0, 0.0, 5, 0, 0, 5), SKIP),
        ("v <= -0.0", (0.0, 5.0, 5, 0, 0, 5), KEEP),
        ("v in (-0.0, 9.0)", (-3.0, 0.0, 5, 0, 0, 5), KEEP),
    ],
)
def test_nan_and_zeros(
    spark: SparkSession, row_filter: str, stats: tuple[Any, ...], expected: tuple[bool, bool]
) -> None:
    assert decide(spark, DOUBLE, row_filter, *stats) == expected


@pytest.mark.parametrize(
    ("row_filter", "stats", "expected"),
    [
        ("v like 'b%'", ("ba", "bz", 5, 0, None, 5), ALL),
        ("v like 'b%'", ("ba", "c", 5, 0, None, 5), KEEP),
        ("v like 'bb%'", ("b", "b\U0010ffff", 5, 0, None, 5), KEEP),
        ("v like 'a%'", ("ba", "bz", 5, 0, None, 5), SKIP),
        ("v like 'c%'", ("ba", "bz", 5, 0, None, 5), SKIP),
        ("v like 'c%'", (None, "bz", 5, 0, None, 5), KEEP),
        ("v like 'a%'", ("ba", None, 5, 0, None, 5), SKIP),
        ("v like 'b%'", (None, None, 5, 5, None, 5), SKIP),
        ("v like '%'", ("a", "b", 5, 0, None, 5), ALL),
        ("v not like 'b%'", ("ba", "bz", 5, 0, None, 5), SKIP),
        ("v not like 'b%'", ("ba", "bz", 5, 1, None, 5), KEEP),
        ("v not like 'b%'", ("ba", "bz", 5, None, None, 5), KEEP),
        ("v not like 'b%'", ("ba", None, 5, 0, None, 5), KEEP),
        ("v not like 'bb%'", ("b", "bbz", 5, 0, None, 5), KEEP),
        ("v not like 'a%'", ("ba", "bz", 5, None, None, 5), ALL),
        ("v not like 'c%'", ("ba", "bz", 5, None, None, 5), ALL),
        ("v not like 'b%'", (None, None, 5, 5, None, 5), ALL),
        # U+1F600 is greater than U+FFFF, though its first UTF-16 unit is less.
        ("v > '\uffff'", ("\U0001f600", "\U0001f600", 5, 0, None, 5), ALL),
        ("v like '\ud7ff%'", ("\ue000", "\ue001", 5, 0, None, 5), SKIP),
    ],
)
def test_prefixes(spark: SparkSession, row_filter: str, stats: tuple[Any, ...], expected: tuple[bool, bool]) -> None:
    assert decide(spark, TEXT, row_filter, *stats) == expected


@pytest.mark.parametrize(("count", "expected"), [(200, SKIP), (201, KEEP)])
def test_long_in_lists_are_not_looked_at(spark: SparkSession, count: int, expected: tuple[bool, bool]) -> None:
    around = [*range(5), *range(30, 25 + count)]
    assert decide(spark, INT, In("v", around), *FULL) == expected
    assert decide(spark, INT, NotIn("v", around), *FULL) == ALL


@pytest.mark.parametrize(
    ("operation", "halves", "bounds", "expected"),
    [
        ("<", ("15", "00"), ("10", "20"), KEEP),
        (">", ("90", "00"), ("10", "20"), SKIP),
        ("<", ("90", "00"), ("10", "20"), ALL),
        ("=", ("30", "00"), ("10", "20"), SKIP),
        ("!=", ("30", "00"), ("10", "20"), ALL),
        # Only unsigned bounds are a range from 7f... to 80....
        (">", ("90", "00"), ("7f", "80"), SKIP),
        ("=", ("90", "00"), ("7f", "80"), SKIP),
        # Signed bounds from 90... up over ff... and 00... to 10...
        (">", ("f0", "00"), ("90", "10"), KEEP),
        ("<", ("05", "00"), ("90", "10"), KEEP),
        (">=", ("00", "00"), ("90", "10"), KEEP),
        ("=", ("50", "00"), ("90", "10"), SKIP),
        ("=", ("f0", "00"), ("90", "10"), KEEP),
        ("=", ("05", "00"), ("90", "10"), KEEP),
        ("!=", ("50", "00"), ("90", "10"), KEEP),
        # A bound does not tell the order.
        ("<", ("05", "00"), ("10", None), KEEP),
        (">", ("90", "00"), (None, "20"), KEEP),
        ("=", ("05", "00"), ("10", None), KEEP),
        # The second half of a bound may be signed, too.
        ("<", ("10", "80"), ("10", "20"), KEEP),
        (">=", ("10", "00"), ("10", "20"), KEEP),
        ("=", ("20", "01"), ("10", "20"), KEEP),
    ],
)
def test_bounds_of_uuids(
    spark: SparkSession,
    operation: str,
    halves: tuple[str, str],
    bounds: tuple[str | None, str | None],
    expected: tuple[bool, bool],
) -> None:
    """Bounds may be in the order of unsigned bytes, or of java.util.UUID, which compares two signed halves."""
    literal = "".join(half.ljust(16, "0") for half in halves)
    lower, upper = (None if bound is None else bytes.fromhex(bound).ljust(16, b"\0") for bound in bounds)
    row_filter = f"v {operation} '{literal}'"
    assert decide(spark, t.UUIDType(), row_filter, lower, upper, 5, 0, None, 5) == expected


def test_stats_that_are_not_there_at_all(spark: SparkSession) -> None:
    def nothing(_field_id: int) -> FieldStats:
        return FieldStats(None, None, None, None, None)

    filters = ["v = 1", "v is null", "v not in (1, 2)", "v < 5 or v > 7", "v in (1, 2)", "v <> 1", "v is not null"]
    bounds = [bind_filter(parse_filter(text), schema_of(INT), two_valued=True) for text in filters]
    might = [might_match(bound, nothing, sql.lit(5)) for bound in bounds]
    must = [must_match(bound, nothing, sql.lit(5), {TOP}) for bound in bounds]
    row = spark.range(1).selectExpr(*(condition.text for condition in (*might, *must))).first()
    assert row is not None
    assert list(row) == [True] * len(filters) + [False] * len(filters)


def test_wide_filters_skip_as_narrow_ones(spark: SparkSession) -> None:
    files = spark.range(500).select(
        F.struct(
            (F.col("id") * 10).cast("int").alias("lower_bound"),
            (F.col("id") * 10 + 3).cast("int").alias("upper_bound"),
            *(
                F.lit(count).cast("long").alias(name)
                for name, count in zip(FieldStats._fields[2:], (5, 0, 0), strict=True)
            ),
        ).alias("1")
    )

    def stats(field_id: int) -> FieldStats:
        return FieldStats(*(sql.col(f"`{field_id}`.{name}") for name in FieldStats._fields))

    values = range(1, 3000, 7)
    wide = bind_filter(parse_filter(" or ".join(f"v = {value}" for value in values)), schema_of(INT))
    started = time.perf_counter()
    count = files.where(might_match(wide, stats, sql.lit(5)).text).count()
    assert count == sum(any(10 * file <= value <= 10 * file + 3 for value in values) for file in range(500))
    narrow = bind_filter(parse_filter(" and ".join(f"v <> {value}" for value in range(0, 5000, 10))), schema_of(INT))
    assert files.where(might_match(narrow, stats, sql.lit(5)).text).count() == 500
    assert files.where(must_match(narrow, stats, sql.lit(5), {TOP}).text).count() == 0
    assert time.perf_counter() - started < 60


# Pushdown into Parquet


PUSHED: dict[t.PrimitiveType, tuple[Any, pa.DataType, list[Any]]] = {
    t.IntegerType(): ("v <= 5", pa.int32(), [1, 9]),
    t.LongType(): ("v <= 5", pa.int64(), [1, 9]),
    t.StringType(): ("v <= 'm'", pa.string(), ["a", "z"]),
    t.DateType(): ("v <= '2020-01-01'", pa.date32(), [date(2019, 1, 1), date(2021, 1, 1)]),
    t.TimestampType(): ("v <= '2020-01-01T00:00:00'", pa.timestamp("us"), [datetime(2019, 1, 1), datetime(2021, 1, 1)]),  # noqa: DTZ001
    t.TimestamptzType(): (
        "v <= '2020-01-01T00:00:00+00:00'",
        pa.timestamp("us", "UTC"),
        [datetime(2019, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)],
    ),
    t.DecimalType(9, 2): ("v <= 1.50", pa.decimal128(9, 2), [Decimal("1.00"), Decimal("2.00")]),
    t.TimeType(): ("v <= '10:00'", pa.int64(), [0, 80_000_000_000]),
}


def leaf_manifest(path: Path, kind: pa.DataType, bounds: list[Any]) -> str:
    stats = pa.StructArray.from_arrays(
        [
            pa.array(bounds, kind),
            pa.array(bounds, kind),
            *(pa.array([count] * len(bounds), pa.int64()) for count in (5, 0, 0)),
        ],
        list(FieldStats._fields),
    )
    content = pa.StructArray.from_arrays([stats], ["1"])
    pq.write_table(pa.table({"content_stats": content, "record_count": pa.array([5] * len(bounds), pa.int64())}), path)
    return str(path)


def content_stats(field_id: int) -> FieldStats:
    return FieldStats(*(sql.col(f"content_stats.`{field_id}`.{name}") for name in FieldStats._fields))


def pushed_filters(frame: DataFrame, monkeypatch: pytest.MonkeyPatch) -> str:
    session = frame.sparkSession
    session.conf.set("spark.sql.maxMetadataStringLength", "10000")
    try:
        match = re.search(r"PushedFilters: \[(.*?)\], ReadSchema", physical_plan(frame), re.DOTALL)
    finally:
        session.conf.unset("spark.sql.maxMetadataStringLength")
    assert match is not None
    return match[1]


@pytest.mark.parametrize("kind", list(PUSHED), ids=str)
def test_bounds_are_pushed_into_parquet(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: t.PrimitiveType
) -> None:
    text, arrow, bounds = PUSHED[kind]
    leaves = spark.read.parquet(leaf_manifest(tmp_path / "leaf.parquet", arrow, bounds))
    for row_filter in (text, f"{text} or {text.replace('<=', '=')}", f"{text} and v is not null"):
        bound = bind_filter(parse_filter(row_filter), schema_of(kind))
        matching = leaves.where(might_match(bound, content_stats, sql.col("record_count")).text)
        pushed = pushed_filters(matching, monkeypatch)
        assert "IsNull(content_stats.`1`.lower_bound)" in pushed
        assert "LessThanOrEqual(content_stats.`1`.lower_bound," in pushed
        assert matching.count() == 1


def test_one_range_of_a_wide_filter_is_pushed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = spark.read.parquet(leaf_manifest(tmp_path / "leaf.parquet", pa.int32(), [1, 9]))
    bound = bind_filter(parse_filter(" or ".join(f"v = {value}" for value in range(5, 300))), schema_of(INT))
    matching = leaves.where(might_match(bound, content_stats, sql.col("record_count")).text)
    pushed = pushed_filters(matching, monkeypatch)
    assert "GreaterThanOrEqual(content_stats.`1`.upper_bound,5)" in pushed
    assert "LessThanOrEqual(content_stats.`1`.lower_bound,299)" in pushed
    assert matching.count() == 1


@pytest.mark.parametrize("kind", [t.FloatType(), t.DoubleType()], ids=str)
def test_floating_point_is_not_pushed(spark: SparkSession, tmp_path: Path, kind: t.PrimitiveType) -> None:
    """Parquet's statistics omit NaN and distinguish -0.0 from 0.0: files with such bounds would be lost."""
    arrow = pa.float32() if isinstance(kind, t.FloatType) else pa.float64()
    for name, bounds in (("nan", [1.0, math.nan]), ("zero", [-0.0, -0.0])):
        leaves = spark.read.parquet(leaf_manifest(tmp_path / f"{name}.parquet", arrow, bounds))
        for row_filter in ("v > 7.0", "v >= 7.0 or v = 0.0", "v = 0.0", "v >= 0.0", "v in (0.0, 7.0)"):
            bound = bind_filter(parse_filter(row_filter), schema_of(kind))
            matching = leaves.where(might_match(bound, content_stats, sql.col("record_count")).text)
            read = physical_plan(matching).split("FileScan")[1]
            assert "bound" not in re.sub(r"DataFilters.*?Format|ReadSchema.*", "", read)
            assert matching.count() >= (1 if name == "nan" or "0.0" in row_filter.replace("7.0", "") else 0)


ANCIENT = [-(2**31), -719_163, *range(-141_440, -141_420), -25_568, 0, 2_932_897, 2**31 - 1]


def test_ancient_dates_and_instants_survive_pushdown(spark: SparkSession, tmp_path: Path) -> None:
    """Spark hands literals to Parquet through java.sql.Date and Timestamp, which have no 5 to 14 October 1582."""
    micros = [-(2**63), *(day * 86_400_000_000 for day in ANCIENT[1:-1]), 2**63 - 1]
    for kind, values in ((t.DateType(), ANCIENT), (t.TimestamptzType(), micros), (t.TimestampType(), micros)):
        folder = tmp_path / str(kind)
        folder.mkdir()
        raw, arrow = (pa.int32(), pa.date32()) if kind == t.DateType() else (pa.int64(), bound_arrow(kind))
        for place, value in enumerate(values):
            leaf_manifest_of(folder / f"{place}.parquet", pa.array([value], raw).cast(arrow))
        leaves = spark.read.parquet(str(folder))
        for value in values:
            bound = bind_filter(EqualTo("v", value), schema_of(kind))
            assert leaves.where(might_match(bound, content_stats, sql.col("record_count")).text).count() == 1, (
                kind,
                value,
            )


def bound_arrow(kind: t.PrimitiveType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if kind == t.TimestamptzType() else pa.timestamp("us")


def leaf_manifest_of(path: Path, bounds: pa.Array) -> None:
    counts = [pa.array([count], pa.int64()) for count in (5, 0, 0)]
    stats = pa.StructArray.from_arrays([bounds, bounds, *counts], list(FieldStats._fields))
    content = pa.StructArray.from_arrays([stats], ["1"])
    pq.write_table(pa.table({"content_stats": content, "record_count": pa.array([5], pa.int64())}), path)


@pytest.mark.parametrize("junction", ["and", "or"])
def test_conditions_on_many_columns_are_not_nested_deeper(junction: str) -> None:
    """Spark's parser takes seconds and hundreds of megabytes for nested parentheses."""

    def levels(columns: int) -> int:
        schema = Schema(*(t.NestedField(number, f"c{number}", INT, required=False) for number in range(columns)))
        filters = f" {junction} ".join(f"c{number} >= {number}" for number in range(columns))
        stats = [
            FieldStats(*(sql.col(f"c{number}.{name}") for name in FieldStats._fields)) for number in range(columns)
        ]
        text = might_match(bind_filter(parse_filter(filters), schema), stats.__getitem__, sql.col("records")).text
        depths = [text[:place].count("(") - text[:place].count(")") for place in range(len(text))]
        return max(depths)

    assert levels(4) == levels(40)
