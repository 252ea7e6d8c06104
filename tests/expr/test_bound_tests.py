"""Tests of bounds that a filter implies, which Arrow and SQL evaluate alike."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from sparkmeta.expr import sql
from sparkmeta.expr.bounds import AllOf, AnyOf, BoundTest
from sparkmeta.expr.conditions import as_column
from sparkmeta.expr.implied_tests import FEW, leaf_tests, partition_tests, stats_tests
from sparkmeta.expr.predicate import bind_filter, parse_filter
from sparkmeta.expr.skipping import ColumnStats, FieldStats
from tests.frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
BOUNDS = (None, 1, 2, 3)
ABOVE, BELOW = "upper_bound", "lower_bound"


def bound(row_filter: str) -> Any:
    return bind_filter(parse_filter(row_filter), SCHEMA)


def shape(tests: AllOf | None) -> Any:
    """Return a test as (field id, operation, limit)."""
    assert tests is not None
    return [
        [shape(choice) for choice in test.choices]
        if isinstance(test, AnyOf)
        else (test.field_id, test.operation.__name__, test.limit)
        for test in tests.tests
    ]


@pytest.mark.parametrize("row_filter", ["id = 2", "id < 2", "id <= 2", "id > 2", "id >= 2", "id in (2, 3)"])
def test_arrow_and_sql_pass_the_same_bounds(spark: SparkSession, row_filter: str) -> None:
    pairs = [*itertools.product(BOUNDS, BOUNDS)]
    table = pa.table({BELOW: pa.array([lower for lower, _ in pairs], pa.int64()), ABOVE: [upper for _, upper in pairs]})
    tests = leaf_tests(bound(row_filter))
    assert tests
    by_arrow = AllOf(tests).passes(lambda source, *_: table.column(source).combine_chunks())
    stats = ColumnStats(FieldStats(sql.col(BELOW), sql.col(ABOVE), None, None, None), sql.lit(1), LongType())
    conditions = [as_column(stats.passes(test)).alias(str(place)) for place, test in enumerate(tests)]
    rows = local_frame(spark, table).selectExpr(*sql.texts(conditions)).collect()
    assert by_arrow is not None
    assert by_arrow.to_pylist() == [all(row) for row in rows]
    assert 0 < sum(by_arrow.to_pylist()) < len(pairs)


def test_and_tests_the_tightest_limit_of_each_bound() -> None:
    tests = stats_tests(bound("id > 0 and id > 3 and id >= 3 and id < 9 and id <= 9 and name = 'x'"))
    assert shape(tests) == [(1, "gt", 3), (1, "lt", 9), (2, "le", "x"), (2, "ge", "x")]


@pytest.mark.parametrize("count", [FEW, FEW + 1])
def test_or_of_many_tests_the_loosest_limits(count: int) -> None:
    tests = stats_tests(bound(" or ".join(f"(id >= {number} and id < {number + 5})" for number in range(count))))
    each = [[(1, "ge", number), (1, "lt", number + 5)] for number in range(count)]
    assert shape(tests) == ([each] if count <= FEW else [(1, "ge", 0), (1, "lt", count + 4)])


def test_or_with_a_predicate_that_bounds_say_nothing_of() -> None:
    assert stats_tests(bound("id = 1 or name is null")) == AllOf()
    assert partition_tests(bound("id = 1 or name is null")) == AllOf()


def test_a_file_without_a_lower_bound_is_not_judged_by_an_in() -> None:
    lower, upper = leaf_tests(bound("id in (4, 7)"))
    assert (lower.source, lower.limit, lower.waived_by) == (BELOW, 7, None)
    assert (upper.source, upper.limit, upper.waived_by) == (ABOVE, 4, BELOW)
    assert leaf_tests(bound(f"id in ({', '.join(map(str, range(201)))})")) == ()


def test_a_limit_of_another_type_decides_nothing() -> None:
    test = BoundTest(BELOW, 1, "long", upward=False, inclusive=True, limit="no number")
    assert test.passes(lambda *_: pa.array([1, 2])) is None
    assert AllOf((test,)).passes(lambda *_: None) is None
