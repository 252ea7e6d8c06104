from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyspark.sql import functions as F

from sparkmeta.expr import sql
from sparkmeta.expr.predicate import MAX_DEPTH, bind_filter, expression_to_json, parse_filter
from sparkmeta.expr.residual import residual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(
    t.NestedField(1, "ts", t.TimestampType(), required=False),
    t.NestedField(2, "id", t.LongType(), required=False),
    t.NestedField(3, "x", t.DoubleType(), required=False),
    t.NestedField(4, "other", t.LongType(), required=False),
)
SPEC = PartitionSpec(
    PartitionField(1, 1000, tr.DayTransform(), "day"),
    PartitionField(2, 1001, tr.BucketTransform(4), "bucket"),
    PartitionField(3, 1002, tr.IdentityTransform(), "x"),
)
# These filters are bound with SQL's meaning of null, others with the meaning of Iceberg's expressions.
SQL = ("x <> 1.0 and id <> 34", "not (other = 5 or id = 34)")
EVENT = "ts >= '2026-01-02T12:00:00' and ts < '2026-01-04T00:00:00'"


def left(spark: SparkSession, text: str, day: int | None, bucket: int | None, x: float | None) -> Any:
    """Return the residual of a filter in the partition (days after 2026-01-01, bucket, x)."""
    bound = bind_filter(parse_filter(text), SCHEMA, two_valued=text not in SQL)
    frame = spark.createDataFrame([(day, bucket, x)], "day int, bucket int, x double").select(
        F.date_add(F.lit("2026-01-01").cast("date"), F.col("day")).alias("1000"),
        F.col("bucket").alias("1001"),
        F.col("x").alias("1002"),
    )
    row = frame.selectExpr(residual(bound, SPEC, partition).text).first()
    assert row is not None
    return json.loads(row[0])


def partition(field_id: int) -> sql.Sql:
    return sql.col(f"`{field_id}`")


def predicate(kind: str, term: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "term": term, "value": value}


NOT_NULL = {"type": "not-null", "term": "other"}
FROM = predicate("gt-eq", "ts", "2026-01-02T12:00:00")


@pytest.mark.parametrize(("day", "expected"), [(0, False), (1, FROM), (2, True), (3, False), (None, False)])
def test_days_within_before_and_after(spark: SparkSession, day: int | None, expected: Any) -> None:
    assert left(spark, EVENT, day, 0, None) == expected


@pytest.mark.parametrize(
    ("text", "partition", "expected"),
    [
        ("other = 5", (0, 0, 1.0), predicate("eq", "other", 5)),
        ("id = 34", (0, 3, 1.0), predicate("eq", "id", 34)),
        ("id = 34", (0, 2, 1.0), False),
        ("id <> 34", (0, 2, 1.0), True),
        ("id <> 34", (0, 3, 1.0), predicate("not-eq", "id", 34)),
        ("id is null", (0, None, 1.0), True),
        ("id is null", (0, 2, 1.0), False),
        ("id < 5", (0, 2, 1.0), predicate("lt", "id", 5)),
        ("x <> 1.0", (0, 2, None), True),
        ("x < 1.0", (0, 2, None), False),
        (SQL[0], (0, 2, None), False),
        (SQL[0], (0, None, 2.0), False),
        (SQL[0], (0, 2, 2.0), True),
        (SQL[0], (0, 3, 2.0), predicate("not-eq", "id", 34)),
        (SQL[1], (0, 2, None), {"type": "and", "left": NOT_NULL, "right": predicate("not-eq", "other", 5)}),
        (SQL[1], (0, None, None), False),
        ("x is nan", (0, 2, float("nan")), True),
        ("x = 0.0", (0, 2, -0.0), True),
        # Whether NaN is greater than a number is left to whoever reads the rows.
        ("x > 1.0", (0, 2, float("nan")), predicate("gt", "x", 1.0)),
        ("x < 1.0", (0, 2, float("nan")), False),
        ("other = 5 or id = 34", (0, 2, 1.0), predicate("eq", "other", 5)),
        ("other = 5 or x = 1.0", (0, 2, 1.0), True),
        ("other = 5 and x = 1.0", (0, 2, 1.0), predicate("eq", "other", 5)),
        ("other = 5 and x = 1.0", (0, 2, 2.0), False),
        (
            "other = 5 and (id = 34 or x = 2.0) and other <> 6",
            (0, 3, 1.0),
            {
                "type": "and",
                "left": {"type": "and", "left": predicate("eq", "other", 5), "right": predicate("eq", "id", 34)},
                "right": predicate("not-eq", "other", 6),
            },
        ),
    ],
)
def test_partitions_decide_what_they_can(
    spark: SparkSession, text: str, partition: tuple[Any, ...], expected: Any
) -> None:
    assert 2017239379 % 4 == 3
    assert left(spark, text, *partition) == expected


def test_without_partition_nothing_changes(spark: SparkSession) -> None:
    bound = bind_filter(parse_filter(f"{EVENT} or x is nan"), SCHEMA)
    void = PartitionSpec(PartitionField(1, 1000, tr.VoidTransform(), "day"))
    for spec in (UNPARTITIONED_PARTITION_SPEC, void):
        row = spark.range(1).selectExpr(residual(bound, spec, partition).text).first()
        assert row is not None
        assert row[0] == expression_to_json(bound)


def test_size_is_linear_in_the_filter() -> None:
    def size(count: int, shape: str) -> int:
        text = " or ".join(shape.format(value) for value in range(count))
        return len(residual(bind_filter(parse_filter(text), SCHEMA), SPEC, partition).text)

    for shape in ("(id = {0} and other = {0})", "(x = {0}.0 and (id = {0} or other = {0}))"):
        assert size(80, shape) < 2.5 * size(40, shape)


def test_wide_and_deep_filters(spark: SparkSession) -> None:
    wide = " or ".join(f"(id = {value} and other = {value})" for value in range(150))
    residual = left(spark, wide, 0, 3, 1.0)
    assert residual["type"] == "or"
    text = " or ".join(f"id = {value}" for value in range(3000))
    assert residual != left(spark, text, 0, 3, 1.0)
    assert left(spark, deep(19), 0, 3, 1000.0) is False
    whole = left(spark, deep(MAX_DEPTH - 1), 0, 3, 1000.0)
    assert whole == json.loads(expression_to_json(bind_filter(parse_filter(deep(MAX_DEPTH - 1)), SCHEMA)))


def deep(levels: int) -> str:
    text = "other = 0"
    for level in range(levels):
        text = f"({text}) {'or' if level % 2 else 'and'} x = {level}.0"
    return text if levels % 2 else f"({text}) and x = -1.0"
