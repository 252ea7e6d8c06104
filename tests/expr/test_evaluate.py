"""Expressions have the same values in Arrow and in Spark. `properties/` tries random filters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sparkmeta.errors import ValidationError
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.sql import Sql
from sparkmeta.plan.tasks import json_object
from tests.frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTS = pa.array([[1, 2], None, [], [3, None], [2]], pa.list_(pa.int64()))
# The third list is null and has values, as a slice of another one may.
NULL_WITH_VALUES = pa.ListArray.from_arrays(
    pa.array([0, 2, 2, 4, 5, 5], pa.int32()),
    pa.array([1, 2, 9, 9, 3], pa.int64()),
    mask=pa.array([False, False, True, False, False]),
)
TABLE = pa.table(
    {
        "n": pa.array([1, None, 3, 0, -1], pa.int64()),
        "i": pa.array([1, 2, None, 0, 4], pa.int32()),
        "s": ["x", "yy", None, "", "é"],
        "f": [math.nan, 1.5, -0.0, None, 0.0],
        "b": [True, None, False, True, False],
        "l": LISTS,
        "m": NULL_WITH_VALUES,
        "d": pa.array([{"p": 1, "q": "u"}, None, {"p": None, "q": "v"}, {"p": 1, "q": None}, {"p": 2, "q": "u"}],
                      pa.struct([("p", pa.int64()), ("q", pa.string())])),
        "x": pa.array([b"ab", None, b"", b"c", b"d"], pa.binary()),
        "k": pa.array([[(1, b"a"), (2, None)], None, [], [(3, b"cd")], [(1, b"")]], pa.map_(pa.int32(), pa.binary())),
    }
)  # fmt: skip
n, i, s, f, b, lists, under, d, x, k = (sql.col(name) for name in TABLE.column_names)
NO_TEXT = sql.lit(None).cast("string")

EXPRESSIONS: dict[str, Sql] = {
    "compared": (n > 1) | (i <= 2),
    "compared to null": n == sql.lit(None),
    "null safe": n.eqNullSafe(None) & ~n.eqNullSafe(i),
    "NaN is equal": (f == sql.coalesce(f, 0.0)) & ~(f < 1.0),
    "NaN is greatest": f > 1e300,
    "zeros are equal": f == 0.0,
    "isnan": sql.isnan(f),
    "structs": d.eqNullSafe(sql.struct(sql.lit(1).cast("bigint").alias("p"), sql.lit("u").alias("q"))),
    "a field": d["q"],
    "in": n.isin([1, 3, None]),
    "case": sql.when(n > 1, "many").when(b, s),
    "case of no row": sql.when(n > 99, n).otherwise(None),
    "case of all rows": sql.when(n.isNull() | n.isNotNull(), s).when(b, "b").otherwise("-"),
    "case of several types": sql.when(b, 1).otherwise(n),
    "case of structs": sql.when(b, sql.struct(NO_TEXT.alias("v"))).otherwise(sql.struct(s.alias("v"))),
    "coalesce": sql.coalesce(n, i, -5),
    "sum": n + 1,
    "difference": n - 1,
    "quotient": n / sql.lit(4),
    "whole quotient": (n - 2) // 2,
    "remainder": n % 2,
    "logarithm": sql.call("floor", sql.call("log2", sql.call("greatest", n, 1)) + 0.5),
    "least": sql.call("least", n, i),
    "length": sql.call("length", x),
    "keys": sql.call("map_keys", k),
    "entries": sql.transform(sql.call("map_entries", k), lambda e: sql.call("length", e["value"])),
    "total": sql.total(under, lambda e: e + 1),
    "cast": sql.lit(None).cast("array<int>"),
    "concat": sql.concat("<", s, ">"),
    "nested concat": sql.concat("<", sql.concat(s, sql.concat("-", s)), ">"),
    "concatenated lists": sql.concat(lists, under, lists),
    "elements of a list that is null": sql.exists(sql.concat(lists, under), lambda e: e > 0),
    "array": sql.array(n, i, 7),
    "no elements": sql.empty_array(n),
    "contains": sql.array_contains(lists, 3),
    "contains in lists with values under a null": sql.array_contains(under, 9),
    "size": sql.size(lists),
    "get": sql.call("get", lists, 1),
    "get at a column": sql.call("get", under, i),
    "exists": sql.exists(lists, lambda e: e == n),
    "forall": sql.forall(under, lambda e: e < 3),
    "filter": sql.filter(lists, lambda e: e >= n),
    "transform": sql.transform(under, lambda e: sql.struct(e.alias("e"), s.alias("s"))),
    "nested": sql.filter(lists, lambda e: sql.exists(under, lambda o: o == e)),
    "let": sql.let(sql.struct((n + 1).alias("v")), lambda v: v["v"] + v["v"]),
    "fold": sql.aggregate(sql.array(s, sql.lit("-"), s), sql.lit(""), sql.concat),
    "lookup": sql.lookup(["a", "", "c"], i),
    "startswith": s.startswith("y"),
    "substring": sql.call("substring", sql.concat(s, "abc"), 1, 2),
    "lower": sql.call("lower", sql.concat(s, "ABC")),
    "greatest": sql.call("greatest", n, sql.lit(0).cast("bigint")),
    "abs": sql.call("abs", f) < sql.lit(math.inf),
    "joined": sql.call("array_join", sql.transform(under, lambda e: e.cast("string")), ","),
    "JSON": json_object([n.alias('a "name"'), sql.concat(s, '"\\\t\x01/').alias("s"), f.alias("f"), b.alias("b")]),
    "nested JSON": json_object([lists.alias("l"), d.alias("d"), under.alias("m")]),
    "JSON of nulls": json_object([sql.transform(lists, lambda _: sql.struct(NO_TEXT.alias("x"))).alias("l")]),
    "translate": sql.call("translate", s, "xy", "ab"),
}  # fmt: skip


def test_values_are_those_of_spark(spark: SparkSession) -> None:
    columns = [value.alias(name) for name, value in EXPRESSIONS.items()]
    rows = [TABLE, TABLE.slice(1, 3), TABLE.slice(0, 0)]
    for part in rows:
        expected = local_frame(spark, part).selectExpr(*sql.texts(columns)).toArrow()
        values = evaluate.select(part, columns)
        for name in EXPRESSIONS:
            assert values.column(name).to_pylist() == expected.column(name).to_pylist(), name


def test_an_error_is_raised_for_the_rows_that_reach_it() -> None:
    raised = sql.raise_error(sql.concat("no ", s)).cast("bigint")
    assert evaluate.select(TABLE, [sql.when(n > 99, raised).otherwise(n).alias("v")]).column("v") == TABLE.column("n")
    assert len(evaluate.where(TABLE.slice(0, 0), raised == 1)) == 0
    with pytest.raises(ValidationError, match=r"^no yy$"):
        evaluate.select(TABLE, [sql.coalesce(n, raised).alias("v")])


def test_only_true_rows_pass() -> None:
    assert evaluate.where(TABLE, b).column("s").to_pylist() == ["x", ""]
    assert len(evaluate.where(TABLE, sql.lit(None))) == 0
    assert evaluate.where(TABLE, sql.lit(True)) is TABLE
