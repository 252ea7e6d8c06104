from __future__ import annotations

import json
import re

import pytest
from pyiceberg import expressions as e
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType

from sparkmeta.errors import InvalidFilterError, UnsupportedError
from sparkmeta.expr.expression_json import expression_from_json, expression_to_json
from sparkmeta.expr.predicate import bind_filter
from sparkmeta.expr.predicate_terms import TransformedColumn
from tests.peers.expressions import filter_json

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "day", DateType()),
)
FILTERS = (
    e.AlwaysTrue(),
    e.AlwaysFalse(),
    e.And(e.EqualTo("id", 7), e.Not(e.Or(e.LessThan("id", 3), e.IsNull("name")))),
    e.In("name", {"a", "NaN"}),
    e.NotIn("id", {1, 2, 3}),
    e.StartsWith("name", "a"),
    e.NotStartsWith("name", ""),
    e.GreaterThanOrEqual("ts", 1_700_000_000_000_000),
    e.LessThanOrEqual("day", "2026-01-31"),
    e.NotEqualTo("id", -1),
    e.NotNull("day"),
    e.GreaterThan("id", 5),
)


@pytest.mark.parametrize("expression", FILTERS, ids=str)
def test_expressions_that_clients_send(expression: e.BooleanExpression):
    parsed = expression_from_json(json.loads(filter_json(expression)))
    assert expression_to_json(bind_filter(parsed, SCHEMA)) == expression_to_json(bind_filter(expression, SCHEMA))


def test_all_spellings():
    seven = e.EqualTo("id", 7)
    reference, literal = {"type": "reference", "term": "id"}, {"type": "literal", "value": 7}
    for node in (
        {"type": "eq", "term": "id", "value": 7},
        {"type": "EQ", "term": reference, "value": literal},
        {"type": "eq", "left": {"type": "reference", "name": "id"}, "right": literal},
        {"type": "eq", "left": 7, "right": {"type": "reference", "name": "id"}},
    ):
        assert expression_from_json(node) == seven
    backwards = expression_from_json({"type": "lt", "left": 7, "right": {"type": "reference", "name": "id"}})
    assert backwards == e.GreaterThan("id", 7)
    assert expression_from_json({"type": "is_null", "child": {"type": "reference", "name": "id"}}) == e.IsNull("id")
    assert expression_from_json({"type": "literal", "value": False}) == e.AlwaysFalse()
    assert expression_from_json({"type": "true"}) == e.AlwaysTrue()


def test_transforms():
    term = {"type": "transform", "transform": "day", "term": {"type": "reference", "term": "ts"}}
    day = expression_from_json({"type": "eq", "term": term, "value": 20_000})
    assert day.term == TransformedColumn(DayTransform(), "ts")
    bound = bind_filter(day, SCHEMA, transforms=True)
    expected = {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "ts"}, "value": "2024-10-04"}
    assert json.loads(expression_to_json(bound)) == expected
    bucket = {"type": "transform", "transform": "bucket[16]", "term": "name"}
    parsed = expression_from_json({"type": "not", "child": {"type": "in", "term": bucket, "values": [1, 3]}})
    assert parsed == e.Not(e.In(TransformedColumn(BucketTransform(16), "name"), {1, 3}))
    not_in = {"type": "not-in", "term": bucket, "values": [1, 3]}
    tested = {"type": "and", "left": {"type": "not-null", "term": bucket}, "right": not_in}
    for two_valued, expected in ((True, not_in), (False, tested)):
        text = expression_to_json(bind_filter(parsed, SCHEMA, transforms=True, two_valued=two_valued))
        assert json.loads(text) == expected
    with pytest.raises(InvalidFilterError, match="not a predicate that could be bound"):
        bind_filter(parsed, SCHEMA)


@pytest.mark.parametrize("transform", ["bucket[0]", "truncate[0]", "bucket[99999999999999]", "shuffle[3]"])
def test_unknown_transforms(transform: str):
    term = {"type": "transform", "transform": transform, "term": "name"}
    with pytest.raises(InvalidFilterError, match=rf"transform .*{re.escape(transform)}"):
        expression_from_json({"type": "is-null", "term": term})


def test_the_case_of_transforms():
    term = {"type": "transform", "transform": "BUCKET[16]", "term": "name"}
    parsed = expression_from_json({"type": "eq", "term": term, "value": 3})
    assert "bucket[16](name)" in str(parsed)


@pytest.mark.parametrize(
    ("transform", "column"), [("hour", "day"), ("shuffle[3]", "id"), ("void", "id"), ("bucket[16]", "nothing")]
)
def test_transforms_that_do_not_fit_the_column(transform: str, column: str):
    term = {"type": "transform", "transform": transform, "term": column}
    with pytest.raises(InvalidFilterError, match=r"transform|no column"):
        bind_filter(expression_from_json({"type": "is-null", "term": term}), SCHEMA, transforms=True)


@pytest.mark.parametrize(
    "node",
    [
        None,
        7,
        "id = 7",
        [],
        {},
        {"type": 7},
        {"type": "near", "term": "id", "value": 7},
        {"type": "eq", "term": "id"},
        {"type": "eq", "value": 7},
        {"type": "eq", "term": 7, "value": 7},
        {"type": "eq", "term": "id", "value": None},
        {"type": "eq", "term": "id", "value": [7]},
        {"type": "eq", "term": "id", "value": 7, "values": [7]},
        {"type": "in", "term": "id", "values": 7},
        {"type": "in", "term": "id", "value": 7},
        {"type": "is-null", "term": "id", "value": 7},
        {"type": "and", "left": True},
        {"type": "not"},
        {"type": "literal", "value": "true"},
        {"type": "starts-with", "left": "a", "right": {"type": "reference", "name": "name"}},
        {"type": "eq", "term": {"type": "transform", "transform": "bucket[x]", "term": "id"}, "value": 7},
    ],
    ids=str,
)
def test_invalid_expressions(node: object):
    with pytest.raises(InvalidFilterError, match="can't read the filter"):
        expression_from_json(node)


@pytest.mark.parametrize(
    "node",
    [
        {"type": "eq", "left": {"type": "reference", "id": 1}, "right": 7},
        {"type": "eq", "left": {"type": "reference", "name": "id"}, "right": {"type": "reference", "name": "id"}},
        {"type": "is-null", "child": {"type": "apply", "function": "upper", "arguments": []}},
        {"type": "eq", "term": "id", "value": {"type": "literal", "value": 7, "data-type": "int"}},
        {"type": "in", "term": "id", "values": {"type": "literals", "values": [7], "data-type": "int"}},
    ],
    ids=str,
)
def test_unsupported_comparisons(node: object):
    with pytest.raises(UnsupportedError):
        expression_from_json(node)


def test_deep_and_long_filters():
    deep: object = {"type": "eq", "term": "id", "value": 1}
    for value in range(5_000):
        deep = {"type": "or", "left": deep, "right": {"type": "eq", "term": "id", "value": value}}
    assert expression_to_json(bind_filter(expression_from_json(deep), SCHEMA)).count('"eq"') == 5_001
