from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as t
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    In,
    IsNaN,
    IsNull,
    LessThan,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
    StartsWith,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.schema import Schema
from pyspark.sql import functions as F

from sparkmeta.errors import InvalidFilterError
from sparkmeta.expr import sql
from sparkmeta.expr.conditions import depth
from sparkmeta.expr.predicate import (
    MAX_DEPTH,
    bind_filter,
    expression_to_json,
    parse_filter,
    referenced_ids,
    row_predicate,
)
from sparkmeta.spec.schema import VariantType

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(
    t.NestedField(1, "id", t.LongType(), required=True),
    t.NestedField(2, "x", t.IntegerType(), required=False),
    t.NestedField(3, "name", t.StringType(), required=False),
    t.NestedField(
        4,
        "s",
        t.StructType(
            t.NestedField(5, "must", t.IntegerType(), required=True),
            t.NestedField(6, "may", t.FloatType(), required=False),
        ),
        required=False,
    ),
    t.NestedField(7, "r", t.StructType(t.NestedField(8, "must", t.IntegerType(), required=True)), required=True),
    t.NestedField(9, "l", t.ListType(10, t.IntegerType()), required=False),
    t.NestedField(11, "m", t.MapType(12, t.StringType(), 13, t.IntegerType()), required=False),
    t.NestedField(14, "u", t.UnknownType(), required=False),
    t.NestedField(15, "v", VariantType(), required=False),
    t.NestedField(16, "Case", t.IntegerType(), required=False),
    t.NestedField(17, "uuid", t.UUIDType(), required=False),
    t.NestedField(
        18,
        "ls",
        t.ListType(19, t.StructType(t.NestedField(20, "amount", t.IntegerType(), required=False))),
        required=False,
    ),
)


def bound(
    row_filter: str | BooleanExpression, case_sensitive: bool = True, two_valued: bool = False
) -> BooleanExpression:
    return bind_filter(parse_filter(row_filter), SCHEMA, case_sensitive, two_valued=two_valued)


def as_json(row_filter: str | BooleanExpression, two_valued: bool = False) -> Any:
    return json.loads(expression_to_json(bound(row_filter, two_valued=two_valued)))


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "1 < x",
        "x in (1, 2) and not (y is null or z like 'a%')",
        "x between 1 and 2 and y = 3 or z = 'and (or'",
        "a.b is not nan or not c not in ('it''s', ')')",
        "((x = 1))",
        'x == -0.5 and "a b".c <> true',
        "NOT x LIKE 'a' AND y IS NOT NULL",
        "not not x = 1",
    ],
)
def test_reads_what_pyiceberg_reads(text: str) -> None:
    assert parse_filter(text) == parse(text)


@pytest.mark.parametrize("row_filter", [None, True, 1, b"x = 1", ["x = 1"]])
def test_filters_are_texts_or_expressions(row_filter: Any) -> None:
    with pytest.raises(InvalidFilterError, match="expected a filter string or an expression of pyiceberg") as refused:
        parse_filter(row_filter)
    assert str(refused.value).startswith(f"the filter is {row_filter!r}: ")


def test_constants_within_a_filter() -> None:
    assert parse_filter("true and x = 1") == EqualTo("x", 1)
    assert parse_filter("not (false or not true)") == AlwaysTrue()
    assert parse_filter(EqualTo("x", 1)) == EqualTo("x", 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at its end"),
        ("x = ", "not a predicate"),
        ("x = 1 and", "at its end"),
        ("(x = 1", "without its )"),
        ("x = 1)", "without its ("),
        ("x = 'a", "quote"),
        ("and x = 1", "before AND"),
        ("x = 1 or or y = 1", "before OR"),
        ("x = 1 (y = 2)", "not a predicate"),
        ("(x = 1) (y = 2)", "expected AND or OR"),
        ("x like 'a%b%'", "wildcard"),
        ("day(ts) = 1", "not a predicate"),
        ("x in ()", "not a predicate"),
        ("()", "before )"),
    ],
)
def test_unreadable_filters_are_named(text: str, problem: str) -> None:
    with pytest.raises(InvalidFilterError) as refused:
        parse_filter(text)
    assert problem in str(refused.value)
    assert repr(text) in str(refused.value)


def test_long_and_deep_filters() -> None:
    started = time.perf_counter()
    wide = parse_filter(" or ".join(f"x = {value}" for value in range(3000)))
    assert depth(bind_filter(wide, SCHEMA)) == 1
    assert parse_filter("(" * 5000 + "x = 1" + ")" * 5000) == EqualTo("x", 1)
    assert parse_filter("not " * 5001 + "x = 1") == Not(EqualTo("x", 1))
    chain: BooleanExpression = EqualTo("x", 0)
    for value in range(3000):
        chain = And(chain, NotEqualTo("x", value))
    assert bind_filter(Not(chain), SCHEMA).__class__ is Or
    assert time.perf_counter() - started < 60


def test_too_deep_a_filter_is_refused() -> None:
    deep = "x = 0"
    for level in range(2 * MAX_DEPTH):
        deep = f"({deep}) {'and' if level % 2 else 'or'} x = {level}"
    with pytest.raises(InvalidFilterError, match="200 levels"):
        bound(deep)


def both(left: Any, right: Any) -> Any:
    return {"type": "and", "left": left, "right": right}


def either(left: Any, right: Any) -> Any:
    return {"type": "or", "left": left, "right": right}


IS_NULL, NOT_NULL = ({"type": kind, "term": "x"} for kind in ("is-null", "not-null"))
OVER_5 = {"type": "gt", "term": "x", "value": 5}
NOT_7 = {"type": "not-eq", "term": "id", "value": 7}
NOT_A = {"type": "not-starts-with", "term": "name", "value": "a"}


@pytest.mark.parametrize(
    ("row_filter", "expected"),
    [
        ("id is null", False),
        ("id is not null", True),
        ("r.must is null", False),
        ("s.must is null", {"type": "is-null", "term": "s.must"}),
        ("s.must is not null", {"type": "not-null", "term": "s.must"}),
        ("u is null", True),
        ("u is not null", False),
        ("s is null", {"type": "is-null", "term": "s"}),
        ("l is not null", {"type": "not-null", "term": "l"}),
        ("v is null", {"type": "is-null", "term": "v"}),
        ("s.may is nan", {"type": "is-nan", "term": "s.may"}),
        ("not s.may is nan", {"type": "not-nan", "term": "s.may"}),
        ("x < 2147483648", {"type": "not-null", "term": "x"}),
        ("x <= 2147483648", {"type": "not-null", "term": "x"}),
        ("x <> 2147483648", NOT_NULL),
        ("x > 2147483648", False),
        ("x >= 2147483648", False),
        ("x = 2147483648", False),
        ("x < -2147483649", False),
        ("x <> -2147483649", NOT_NULL),
        ("x > -2147483649", {"type": "not-null", "term": "x"}),
        ("x in (1, 2147483648)", {"type": "eq", "term": "x", "value": 1}),
        ("x not in (1, 2147483648)", both(NOT_NULL, {"type": "not-eq", "term": "x", "value": 1})),
        ("x in (2147483648, 2147483649)", False),
        ("x not in (2147483648, 2147483649)", NOT_NULL),
        ("x < 1.5", {"type": "lt-eq", "term": "x", "value": 1}),
        ("x <= 1.5", {"type": "lt-eq", "term": "x", "value": 1}),
        ("x > -1.5", {"type": "gt", "term": "x", "value": -2}),
        ("x >= -1.5", {"type": "gt", "term": "x", "value": -2}),
        ("x = 1.5", False),
        ("x <> 1.5", NOT_NULL),
        ("not x >= 5", {"type": "lt", "term": "x", "value": 5}),
        ("id <> 7", {"type": "not-eq", "term": "id", "value": 7}),
        ("not (id = 7 or r.must in (1, 2))", both(NOT_7, {"type": "not-in", "term": "r.must", "values": [1, 2]})),
        ("name not like 'a%'", both({"type": "not-null", "term": "name"}, NOT_A)),
        ("name not like 'a%' and x is null", both(both({"type": "not-null", "term": "name"}, NOT_A), IS_NULL)),
        ("name is null or name not like 'a%'", either({"type": "is-null", "term": "name"}, NOT_A)),
        (
            "name is not null or name not like 'a%'",
            either({"type": "not-null", "term": "name"}, both({"type": "not-null", "term": "name"}, NOT_A)),
        ),
        ("x is null or name not like 'a%'", either(IS_NULL, both({"type": "not-null", "term": "name"}, NOT_A))),
        ("name is not null and not name like 'a%'", both({"type": "not-null", "term": "name"}, NOT_A)),
        ("not (name like 'a%' or name is null)", both(NOT_A, {"type": "not-null", "term": "name"})),
        ("x is null or (x is not null and x > 5)", either(IS_NULL, both(NOT_NULL, OVER_5))),
        ("x > 5 and x is not null", both(OVER_5, NOT_NULL)),
        ("s.must <> 1", both({"type": "not-null", "term": "s.must"}, {"type": "not-eq", "term": "s.must", "value": 1})),
        (
            "not (x = 1 or x = 2)",
            both(
                both(NOT_NULL, {"type": "not-eq", "term": "x", "value": 1}), {"type": "not-eq", "term": "x", "value": 2}
            ),
        ),
        ("not x <> 1", {"type": "eq", "term": "x", "value": 1}),
        ("not (x is null and s.may is not nan)", either(NOT_NULL, {"type": "is-nan", "term": "s.may"})),
        (In("id", []), False),
        (NotIn("id", []), True),
    ],
)
def test_binds(row_filter: str | BooleanExpression, expected: Any) -> None:
    assert as_json(row_filter) == expected


@pytest.mark.parametrize(
    ("row_filter", "expected"),
    [
        ("x <> 2147483648", True),
        ("not x in (2147483648, 2147483649)", True),
        ("x not in (1, 2147483648)", {"type": "not-eq", "term": "x", "value": 1}),
        ("not name like 'a%'", NOT_A),
        ("x is null or (x is not null and x <> 7)", either(IS_NULL, both(NOT_NULL, NOT_7 | {"term": "x"}))),
    ],
)
def test_two_valued_filters_get_no_null_test(row_filter: str, expected: Any) -> None:
    assert as_json(row_filter, two_valued=True) == expected


@pytest.mark.parametrize(
    ("row_filter", "problem"),
    [
        ("nope = 1", "no column 'nope' in the schema, which has 'id', "),
        ("ID = 1", "no column 'ID' in the schema: did you mean 'id'?"),
        ("nam = 'a'", "no column 'nam' in the schema: did you mean 'name'?"),
        ("x is nan", "x IS NAN: column x has type int: values of type int are never NaN"),
        ("not x is nan", "x IS NAN: column x has type int: values of type int are never NaN"),
        ("x is not nan", "x IS NOT NAN: column x has type int: values of type int are never NaN"),
        ("x like 'a%'", "x LIKE 'a%': column x has type int: values of type int have no prefix"),
        ("x not like 'it''s%'", "x NOT LIKE 'it''s%': column x"),
        ("x in (1, 'a')", "x in (1, 'a')"),
        (In("x", {"a"}), "x = 'a': column x"),
        (In("x", {"a", "b"}), "x IN ('a', 'b'): column x has type int"),
        (NotIn("name", {7, 5}), "name NOT IN (5, 7): column name has type string"),
        (In("name", set(range(100))), "name IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...): column name has type string"),
        ("s in (1, 2)", "s IN (1, 2): column s has type"),
        ("x = 'a'", "x = 'a': column x has type int: 'a' is not a number"),
        ("name = 5", "name = 5: column name has type string: 5 does not convert to string; text has single quotes"),
        ("s = 1", "only be tested for null"),
        ("l.element = 1", "inside list l"),
        ("ls.element.amount = 1", "inside list ls"),
        ("m.value = 1", "inside map m"),
        ("v = 1", "can't be compared"),
        ("u = 1", "can't be compared"),
        (bound("x = 1"), "not a predicate that could be bound"),
    ],
)
def test_refuses_to_bind(row_filter: str | BooleanExpression, problem: str) -> None:
    with pytest.raises(InvalidFilterError) as refused:
        bound(row_filter)
    assert problem in str(refused.value)


def test_names_regardless_of_case() -> None:
    assert as_json("Case = 1")["term"] == "Case"
    assert json.loads(expression_to_json(bound("cASE = 1 and S.MUST = 2", case_sensitive=False)))["left"] == {
        "type": "eq",
        "term": "Case",
        "value": 1,
    }
    twins = Schema(t.NestedField(1, "a", t.LongType()), t.NestedField(2, "A", t.LongType()))
    assert referenced_ids(bind_filter(EqualTo("A", 1), twins)) == {2}
    with pytest.raises(InvalidFilterError, match=r"ambiguous: a \(id 1\), A \(id 2\)"):
        bind_filter(EqualTo("A", 1), twins, case_sensitive=False)


def test_negation_is_pushed_to_the_predicates() -> None:
    row_filter = Not(And(Or(LessThan("x", 1), Not(IsNull("x"))), Not(In("id", [1, 2]))))
    assert as_json(row_filter) == {
        "type": "or",
        "left": {
            "type": "and",
            "left": {"type": "gt-eq", "term": "x", "value": 1},
            "right": {"type": "is-null", "term": "x"},
        },
        "right": {"type": "in", "term": "id", "values": [1, 2]},
    }
    assert bound("x = 1 or true") is AlwaysTrue()
    assert bound("x = 1 and id is null") is AlwaysFalse()
    assert referenced_ids(bound(row_filter)) == {1, 2}


def test_json_of_every_type() -> None:
    kinds = {
        "b": (t.BooleanType(), "true", True),
        "f": (t.FloatType(), "0.1", 0.1),
        "d": (t.DoubleType(), "5.0", 5.0),
        "dec": (t.DecimalType(9, 2), "1.5", "1.50"),
        "day": (t.DateType(), "'1969-12-31'", "1969-12-31"),
        "at": (t.TimeType(), "'22:31:08.5'", "22:31:08.5"),
        "ts": (t.TimestampType(), "'2026-01-01T00:00:00.000001'", "2026-01-01T00:00:00.000001"),
        "tz": (t.TimestamptzType(), "'2026-01-01T02:00:00+02:00'", "2026-01-01T00:00:00+00:00"),
        "ns": (t.TimestampNanoType(), "'2026-01-01T00:00:00.000000001'", "2026-01-01T00:00:00.000000001"),
        "u": (t.UUIDType(), "'f79c3e09-677c-4bbd-a479-3f349cb785e7'", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        "x": (t.FixedType(2), "'ab01'", "AB01"),
        "bin": (t.BinaryType(), "'ab'", "AB"),
        "t": (t.StringType(), "'\"ü\\'", '"ü\\'),
    }
    schema = Schema(*(t.NestedField(place, name, kind[0]) for place, (name, kind) in enumerate(kinds.items(), 1)))
    for name, (_, text, value) in kinds.items():
        if name == "t":
            expression: BooleanExpression = EqualTo("t", value)
        else:
            expression = parse_filter(f"{name} = {text}")
        document = json.loads(expression_to_json(bind_filter(expression, schema)))
        assert document == {"type": "eq", "term": name, "value": value}
        assert type(document["value"]) is type(value)


VALUES = pa.table(
    {
        "2": pa.array([1, 5, None], pa.int32()),
        "3": pa.array(["ab", "b", None], pa.string()),
        "6": pa.array([float("nan"), -0.0, None], pa.float32()),
        "17": pa.array([bytes([0x80]) + bytes(15), bytes(16), None], pa.binary()),
    }
)
MIDDLE = "'40000000-0000-0000-0000-000000000000'"


@pytest.mark.parametrize(
    ("row_filter", "expected", "certain"),
    [
        ("x < 5", [True, False, False], None),
        ("x >= 5", [False, True, False], None),
        ("x = 5", [False, True, False], None),
        ("x <> 5", [True, False, False], None),
        ("x in (1, 9)", [True, False, False], None),
        ("x not in (1, 9)", [False, True, False], None),
        ("x is null", [False, False, True], None),
        ("x is not null", [True, True, False], None),
        ("name like 'a%'", [True, False, False], None),
        ("name not like 'a%'", [False, True, False], None),
        ("s.may is nan", [True, False, False], None),
        ("s.may is not nan", [False, True, True], None),
        ("s.may = 0.0", [False, True, False], None),
        ("s.may in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0)", [False, True, False], None),
        ("s.may > 3.0", [True, False, False], [False, False, False]),
        ("s.may < 3.0", [False, True, False], None),
        ("x = 1 or x = 5", [True, True, False], None),
        ("x > 1 and name > 'a'", [False, True, False], None),
        # 80... is the greatest byte by byte, and the least as java.util.UUID.
        (f"uuid > {MIDDLE}", [True, False, False], None),
        (f"uuid < {MIDDLE}", [False, True, False], None),
        ("true", [True, True, True], None),
        ("false", [False, False, False], None),
    ],
)
def test_rows(spark: SparkSession, row_filter: str, expected: list[bool], certain: list[bool] | None) -> None:
    """A NaN satisfies `>` of a user's filter; in an expression with Iceberg's meaning, this is uncertain."""
    values = spark.createDataFrame(VALUES)
    sql_filter, expression = bound(row_filter), bound(row_filter, two_valued=True)
    tests = [row_predicate(sql_filter, column), row_predicate(sql_filter, column, strict=True)]
    tests.append(row_predicate(And(sql_filter, expression), column, strict=True))
    rows = values.selectExpr(*(test.text for test in tests)).collect()
    assert [list(results) for results in zip(*rows, strict=True)] == [expected, expected, certain or expected]


def test_parquet_does_not_lose_zeros_or_nan(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet's statistics distinguish -0.0 from 0.0 and omit NaN: comparisons of such columns must not be pushed."""
    for place, value in enumerate([-0.0, 0.0, float("nan")]):
        pq.write_table(pa.table({"6": pa.array([value, 1.0], pa.float32())}), tmp_path / f"{place}.parquet")
    values = spark.read.parquet(str(tmp_path))
    for row_filter, count in (
        ("s.may = 0.0", 2),
        ("s.may <= -0.0", 2),
        ("s.may in (-0.0, 7.0)", 2),
        ("s.may > 3.0", 1),
        ("s.may <> 1.0", 3),
    ):
        assert values.where(row_predicate(bound(row_filter), column).text).count() == count, row_filter


def column(field_id: int) -> sql.Sql:
    return sql.col(f"`{field_id}`")


def test_wide_filters_are_evaluated_as_narrow_ones(spark: SparkSession) -> None:
    """Operands of the same form become a lambda over an array: the same result from an expression of constant size."""
    values = spark.range(200).select(
        (F.col("id") - 100).cast("int").alias("2"),
        F.when(F.col("id") % 7 != 0, (F.col("id") % 10).cast("string")).alias("3"),
        F.when(F.col("id") % 3 != 0, F.col("id").cast("float") - 50).alias("6"),
    )
    pairs = [(value, value % 10) for value in range(-40, 40)]
    any_pair = " or ".join(f"(x = {number} and name = '{digit}' and s.may > {number}.5)" for number, digit in pairs)
    no_pair = " and ".join(f"(x <> {number} or name >= '{digit}' or s.may is null)" for number, digit in pairs)
    ranges = " or ".join(f"x = {number} or s.may < -{number + 30}.0" for number in range(20))
    for text in (any_pair, no_pair, ranges, f"({ranges}) and ({no_pair})"):
        expression = bound(text)
        condition = row_predicate(expression, column).text
        expected = values.where(F.expr(spark_text(text))).count()
        assert values.where(condition).count() == expected
        assert 0 < expected < 200
        assert any(function in condition for function in ("exists(", "forall("))


def test_twenty_times_the_same(spark: SparkSession) -> None:
    same = bound(" or ".join(["x is null"] * 20 + ["x = 1"] * 20 + ["name like 'b%'"] * 20))
    assert spark.createDataFrame(VALUES).where(row_predicate(same, column).text).count() == 3


def spark_text(text: str) -> str:
    """A filter as Spark SQL, for columns named by field ids."""
    for name, field_id in (("s.may", 6), ("name", 3), ("x ", 2)):
        text = text.replace(name, f"`{field_id}` ")
    return " ".join(text.split())


def test_a_thousand_mixed_predicates_are_quick(spark: SparkSession) -> None:
    text = " or ".join(f"(x = {value} and name = 'n{value}')" for value in range(2000))
    started = time.perf_counter()
    assert spark.createDataFrame(VALUES).where(row_predicate(bound(text), column).text).count() == 0
    assert time.perf_counter() - started < 60


def test_deepest_filter_that_is_accepted_runs(spark: SparkSession) -> None:
    deep = "x = 0"
    for level in range(MAX_DEPTH):
        deep = f"({deep}) {'and' if level % 2 else 'or'} x <> {level}"
    for two_valued, count in ((False, 2), (True, 3)):
        expression = bound(deep, two_valued=two_valued)
        assert depth(expression) == MAX_DEPTH + (not two_valued)
        assert spark.createDataFrame(VALUES).where(row_predicate(expression, column).text).count() == count


def test_predicates_of_users_keep_their_kind() -> None:
    assert as_json(And(GreaterThan("x", 1), StartsWith("name", "a"), IsNaN("s.may"), NotNull("x")))["type"] == "and"
