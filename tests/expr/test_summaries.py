from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.expressions import In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyspark.sql.types import BooleanType, StructField, StructType

from sparkmeta.expr import sql
from sparkmeta.expr.predicate import bind_filter, parse_filter
from sparkmeta.expr.skipping import FieldSummary, summary_might_match
from sparkmeta.expr.transforms import inclusive_projection
from sparkmeta.expr.types import bound_type

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import SparkSession

SPEC = PartitionSpec(PartitionField(1, 1000, tr.IdentityTransform(), "v"))
INT, TEXT, DOUBLE = t.IntegerType(), t.StringType(), t.DoubleType()


def keeps(spark: SparkSession, kind: t.PrimitiveType, row_filter: str | BooleanExpression, *summary: Any) -> bool:
    schema = Schema(t.NestedField(1, "v", kind, required=False))
    projected = inclusive_projection(bind_filter(parse_filter(row_filter), schema, two_valued=True), SPEC)
    bound = bound_type(kind)
    fields = zip(FieldSummary._fields, (BooleanType(), BooleanType(), bound, bound), strict=True)
    frame = spark.createDataFrame([summary], StructType([StructField(name, field) for name, field in fields]))
    row = frame.selectExpr(
        summary_might_match(
            projected, lambda _field_id: FieldSummary(*(sql.col(name) for name in FieldSummary._fields))
        ).text
    ).first()
    assert row is not None
    assert isinstance(row[0], bool)
    return row[0]


RANGE = (False, False, 10, 20)
NULLS = (True, False, None, None)


@pytest.mark.parametrize(
    ("row_filter", "summary", "expected"),
    [
        ("v < 10", RANGE, False),
        ("v <= 10", RANGE, True),
        ("v > 20", RANGE, False),
        ("v >= 20", RANGE, True),
        ("v = 9", RANGE, False),
        ("v = 21", RANGE, False),
        ("v = 10", RANGE, True),
        ("v in (8, 9, 21)", RANGE, False),
        ("v in (8, 15)", RANGE, True),
        ("v is null", RANGE, False),
        ("v is null", (True, False, 10, 20), True),
        ("v is not null", NULLS, False),
        ("v is not null", (True, False, 10, 20), True),
        ("v <> 10", RANGE, True),
        ("v <> 10", (False, False, 10, 10), False),
        ("v <> 10", (True, False, 10, 10), True),
        ("v not in (10, 11)", (False, False, 10, 10), False),
        ("v not in (10, 11)", (False, False, 12, 12), True),
        *((f"v {test}", NULLS, False) for test in ("< 5", "<= 5", "> 5", ">= 5", "= 5", "in (5, 6)")),
        ("v <> 5", NULLS, True),
        ("v < 5", (None, None, None, None), True),
        ("v is null", (None, None, None, None), True),
        ("v <> 5", (None, None, None, None), True),
        ("v < 10 or v is null", RANGE, False),
        ("v < 11 and v > 25", RANGE, False),
    ],
)
def test_integers(spark: SparkSession, row_filter: str, summary: tuple[Any, ...], expected: bool) -> None:
    assert keeps(spark, INT, row_filter, *summary) is expected


@pytest.mark.parametrize(("count", "expected"), [(200, False), (201, True)])
def test_long_in_lists(spark: SparkSession, count: int, expected: bool) -> None:
    """Without bounds, an IN of any length is refused."""
    around = [*range(5), *range(30, 25 + count)]
    assert keeps(spark, INT, In("v", around), *RANGE) is expected
    assert keeps(spark, INT, In("v", around), *NULLS) is False


@pytest.mark.parametrize(
    ("row_filter", "summary", "expected"),
    [
        ("v is nan", (False, False, 1.0, 2.0), False),
        ("v is nan", (False, None, 1.0, 2.0), True),
        ("v is nan", (True, False, None, None), False),
        ("v is not nan", (False, True, None, None), False),
        ("v is not nan", (True, True, None, None), True),
        ("v is not nan", (False, True, 1.0, 2.0), True),
        ("v is not null", (True, None, None, None), True),
        ("v is not null", (True, True, None, None), True),
        ("v is not null", (True, False, None, None), False),
        ("v <> 1.0", (False, None, 1.0, 1.0), True),
        ("v <> 1.0", (False, False, 1.0, 1.0), False),
        ("v <> 0.0", (False, False, -0.0, 0.0), False),
        ("v = 0.0", (False, False, -0.0, -0.0), True),
        ("v = 5.0", (False, True, math.nan, math.nan), True),
        ("v > 5.0", (False, True, None, None), False),
    ],
)
def test_floating_point(spark: SparkSession, row_filter: str, summary: tuple[Any, ...], expected: bool) -> None:
    assert keeps(spark, DOUBLE, row_filter, *summary) is expected


@pytest.mark.parametrize(
    ("row_filter", "summary", "expected"),
    [
        ("v like 'b%'", (False, False, "a", "c"), True),
        ("v like 'b%'", (False, False, "c", "d"), False),
        ("v like 'b%'", (False, False, "a", "az"), False),
        ("v like 'ü%'", (False, False, "üa", "üb"), True),
        ("v like 'b%'", NULLS, False),
        ("v not like 'b%'", (False, False, "ba", "bc"), False),
        ("v not like 'b%'", (True, False, "ba", "bc"), True),
        ("v not like 'b%'", (False, False, "ba", "c"), True),
        ("v not like 'b%'", NULLS, True),
    ],
)
def test_prefixes(spark: SparkSession, row_filter: str, summary: tuple[Any, ...], expected: bool) -> None:
    assert keeps(spark, TEXT, row_filter, *summary) is expected
