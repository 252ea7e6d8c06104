"""Filters that Arrow evaluates on rows: as Spark SQL does, for every operator and type that Arrow is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from sparkmeta.columns import sql
from sparkmeta.columns.predicate import bind_filter, parse_filter, row_predicate
from sparkmeta.columns.row_tests import row_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "d", DoubleType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "ts", TimestampType()),
    NestedField(6, "tz", TimestamptzType()),
    NestedField(7, "s", StringType()),
    NestedField(8, "b", BooleanType()),
    NestedField(9, "f", FloatType()),
)
ROWS = """
    SELECT * FROM VALUES
        (1, -9223372036854775808L, double('NaN'), date'1500-02-03', timestamp_ntz'1969-12-31 23:59:59.999999',
         timestamp_micros(-1L), 'a', true, float(1)),
        (2, 9223372036854775807L, -0.0D, date'9999-12-31', timestamp_ntz'2020-01-01 00:00:00', timestamp_micros(0L),
         'ab', false, float('NaN')),
        (-3, 0L, 0.0D, date'1970-01-01', timestamp_ntz'0001-01-01 00:00:00', timestamp_micros(253402300799999999L),
         '\U0001f600', null, null),
        (4, 7L, double('-Infinity'), date'2020-01-01', null, null, '\uffff', true, float(-2)),
        (null, null, null, null, null, null, null, null, null),
        (5, 8L, 1.5D, null, timestamp_ntz'1500-06-07 01:02:03', timestamp_micros(-14817600000000000L), '', false,
         float(3))
    AS t(i, l, d, day, ts, tz, s, b, f)
"""
LITERALS = {
    "i": (2, -3), "l": (-9223372036854775808, 7), "d": (0.0, 1.5, -12345.678), "day": ("'1970-01-01'", "'1500-02-03'"),
    "ts": ("'2020-01-01T00:00:00'", "'1500-06-07T01:02:03'"),
    "tz": ("'1970-01-01T00:00:00+00:00'", "'9999-12-31T23:59:59.999999+00:00'"), "s": ("'ab'", "'\uffff'", "''"),
}  # fmt: skip
FILTERS = [
    *(f"{name} {operator} {value}" for name, values in LITERALS.items() for value in values
      for operator in ("<", "<=", ">", ">=", "=", "!=")),
    *(f"{name} {operator} ({', '.join(map(str, values))})" for name, values in LITERALS.items()
      for operator in ("in", "not in")),
    *(f"{field.name} is {test}" for field in SCHEMA.fields for test in ("null", "not null")),
    "s like 'a%'", "s not like 'a%'", "i > 1 and (l < 5 or s = 'a') and not (day is null or d > 0)",
    "i = 2 or (i > 3 and not i in (4, 7))", "i > 99999999999",
    "l < 99999999999999999999 or i = 1", "not (i = 1 or l = 7)",
    "d is nan", "d is not nan", "d > 1 and i > 0",
]  # fmt: skip
ONLY_IN_SPARK = ("b = true", "f > 1", "i = 1 or f < 0")


def test_rows_that_pass_are_those_of_spark(spark: SparkSession) -> None:
    frame = spark.sql(ROWS).coalesce(1)
    names = {field.field_id: field.name for field in SCHEMA.fields}
    bound = {
        f"{text}, {two_valued=}": bind_filter(parse_filter(text), SCHEMA, two_valued=two_valued)
        for text in FILTERS
        for two_valued in (False, True)
    }
    tests = [row_predicate(each, lambda field_id: sql.col(names[field_id])).text for each in bound.values()]
    rows = frame.selectExpr("*", *(f"{test} AS t{place}" for place, test in enumerate(tests))).toArrow()
    batch = rows.combine_chunks()
    for place, (text, each) in enumerate(bound.items()):
        arrow_tests = row_tests(each)
        assert arrow_tests is not None, text
        passed: Any = arrow_tests.passes(lambda field_id: batch.column(names[field_id]).chunk(0))
        if isinstance(passed, bool):
            passed = pa.array([passed] * len(rows))
        assert passed.to_pylist() == rows.column(f"t{place}").to_pylist(), text


@pytest.mark.parametrize("text", ONLY_IN_SPARK)
def test_what_only_spark_evaluates(text: str) -> None:
    assert row_tests(bind_filter(parse_filter(text), SCHEMA)) is None
