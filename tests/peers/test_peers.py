"""The oracle answers, and the corpus is what it says it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyiceberg.expressions import And, EqualTo, GreaterThan, In, IsNull, Not, Or
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, NestedField, StringType, TimestamptzType

from tests.peers.corpus import corpus, names
from tests.peers.expressions import equivalent, filter_json
from tests.peers.values import comparable, python_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    NestedField(2, "s", StringType(), required=False),
    NestedField(3, "ts", TimestamptzType(), required=False),
    NestedField(4, "dec", DecimalType(9, 2), required=False),
)


@pytest.mark.java
def test_plan_of_a_known_table(spark: SparkSession, java_warehouse: str) -> None:
    table = corpus(spark, java_warehouse).table("identity_s_v2")
    assert len(table.java.plan()) == 10
    planned = table.java.plan(And(EqualTo("s", "abc"), GreaterThan("id", 5)))
    assert [row["partition"] for row in planned] == [{"s": "abc"}, {"s": "abc"}]
    assert all(equivalent(row["residual"], filter_json(GreaterThan("id", 5)), table.schema) for row in planned)
    assert table.java.paths(EqualTo("s", "abc")) == [row["file_path"] for row in planned]
    first, second = table.java.snapshot_ids[:2]
    assert table.java.metadata_table("snapshots").count() == 3
    assert first != second


@pytest.mark.java
@pytest.mark.parametrize("name", ["types_v1", "types_v4"])
def test_files_table(spark: SparkSession, java_warehouse: str, name: str) -> None:
    table = corpus(spark, java_warehouse).table(name)
    files = {row.file_path for row in table.java.metadata_table("files").collect()}
    assert files == set(table.java.paths())
    assert table.schema.find_field("st.deep.y").field_type == StringType()


def test_names_by_tag() -> None:
    assert "types_v3" in names("types", "v3")
    assert not set(names("v1")) & set(names("v2"))


def test_equivalence() -> None:
    one = Or(And(EqualTo("s", "a"), Not(IsNull("s"))), EqualTo("id", 3))
    other = (
        '{"type":"or","left":{"type":"in","term":"id","values":[3]},"right":{"type":"not","child":{"type":"or",'
        '"left":{"type":"not-eq","term":"s","value":"a"},"right":{"type":"is-null","term":"s"}}}}'
    )
    assert equivalent(filter_json(one), other, SCHEMA)
    assert not equivalent(filter_json(one), other.replace("[3]", "[3, 4]"), SCHEMA)
    assert equivalent(
        filter_json(And(EqualTo("s", "a"), Or(EqualTo("s", "a"), EqualTo("id", 1)))), leaf("s", "a"), SCHEMA
    )
    assert equivalent(leaf("ts", "1969-12-31T23:59:59.999999+00:00"), leaf("ts", -1), SCHEMA)
    assert equivalent(leaf("dec", "1.50"), leaf("dec", 1.5), SCHEMA)
    assert not equivalent(leaf("dec", "1.50"), leaf("dec", 1.6), SCHEMA)
    assert equivalent(leaf("id", 2**31, "lt"), "true", SCHEMA)
    assert equivalent('{"type":"is-null","term":"id"}', "false", SCHEMA)
    assert equivalent(filter_json(In("S", ("a",))), leaf("s", "a"), SCHEMA, case_sensitive=False)


def leaf(term: str, value: object, operation: str = "eq") -> str:
    return json.dumps({"type": operation, "term": term, "value": value})


def test_values() -> None:
    assert str(python_value("1969-12-31T23:59:59.999999+00:00", TimestamptzType())) == "1969-12-31 23:59:59.999999"
    assert comparable(float("nan")) == comparable(float("nan"))
    assert comparable(-0.0) != comparable(0.0)
    assert comparable({"a": [1.0]}) == comparable({"a": (1.0,)})
