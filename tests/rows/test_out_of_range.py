"""Filters with literals beyond the range of the column's type, or infinite ones, select the same rows as row by row."""

from __future__ import annotations

import math
import operator
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, FloatType, IntegerType, LongType, NestedField

import sparkmeta as sm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "price", DecimalType(5, 2)),
    NestedField(4, "f", FloatType()),
    NestedField(5, "d", DateType()),
)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
LITERALS = {"n": (3_000_000_000, -3_000_000_000), "price": (1000, -1000.5), "f": (10**39, -(10**39))}
FILTERS = [
    (column, sign, number, negated)
    for column, numbers in LITERALS.items()
    for number in numbers
    for sign in COMPARISONS
    for negated in (False, True)
]
ROWS: list[tuple[Any, ...]] = [
    (1, 5, 1.25, 1.5),
    (2, None, None, None),
    (3, -7, -2.5, 0.5),
    (4, 2**31 - 1, 999.99, math.inf),
    (5, -(2**31), -999.99, -math.inf),
]
# Bounds leave NaN out, so files are pruned by comparisons that it would satisfy (semantics 2.5).
NAN = (6, 0, 0.5, math.nan)
DAY = date(2026, 1, 31)


def matching(column: str, sign: str, number: float, *, negated: bool) -> list[int]:
    """Return the ids of the matching rows. A null satisfies no comparison."""
    position = 1 + list(LITERALS).index(column)
    opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
    sign = opposite[sign] if negated else sign
    return sorted(row[0] for row in ROWS if row[position] is not None and COMPARISONS[sign](row[position], number))


def text_of(column: str, sign: str, number: float, *, negated: bool) -> str:
    text = f"{column} {sign} {number}"
    return f"not ({text})" if negated else text


@pytest.fixture(scope="module", params=["one file", "files", "partitions"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    """Return a table whose rows are in one file, or in a file each."""
    folder: Path = tmp_path_factory.mktemp("out-of-range")
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    by_n = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "n"))
    spec = by_n if request.param == "partitions" else PartitionSpec()
    table = catalog.create_table("db.t", SCHEMA, spec, format_version=2, spark=spark)
    rows = spark.createDataFrame(ROWS, "id BIGINT, n INT, price DOUBLE, f FLOAT")
    rows = rows.selectExpr("id", "n", "CAST(price AS DECIMAL(5, 2)) AS price", "f", "CAST(NULL AS DATE) AS d")
    return table.append(rows.repartition(5, "id") if request.param == "files" else rows.coalesce(1))


@pytest.mark.parametrize("column", LITERALS)
def test_rows_and_counts(table: sm.Table, column: str) -> None:
    for name, sign, number, negated in FILTERS:
        if name != column:
            continue
        text, expected = (make(name, sign, number, negated=negated) for make in (text_of, matching))
        scan = table.scan(text)
        assert sorted(row.id for row in scan.to_df().collect()) == expected, text
        assert scan.count() == len(expected), text


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("price < 1000", [2]),
        ("n < 3000000000", [2]),
        ("not (n > 3000000000)", [2]),
        (f"f > -{10**39}", [2, 5]),
        (f"f <= {10**39}", [2, 4, 6]),
        (f"f > {10**39}", [1, 2, 3, 5]),
        ("n > 3000000000", [1, 2, 3, 4, 5, 6]),
        ("n != 3000000000", [2]),
        ("d < '9999999-01-01'", [2, 4]),
    ],
)
def test_deletes(spark: SparkSession, tmp_path: Path, mode: str, text: str, left: list[int]) -> None:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    properties = {"write.delete.mode": mode}
    table = catalog.create_table("db.t", SCHEMA, format_version=2, properties=properties, spark=spark)
    values = [(*row, None if row[0] in {2, 4} else DAY) for row in (*ROWS, NAN)]
    rows = spark.createDataFrame(values, "id BIGINT, n INT, price DOUBLE, f FLOAT, d DATE")
    table = table.append(rows.withColumn("price", rows.price.cast("DECIMAL(5, 2)")).coalesce(1))
    assert sorted(row.id for row in table.delete(text).scan().to_df().collect()) == left
