"""The oracle answers, and the corpus is what it says it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyiceberg.expressions import And, EqualTo, GreaterThan, In, IsNull, Not, NotEqualTo, Or
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, NestedField, StringType, TimestamptzType

from tests.peers.corpus import RECIPES, names
from tests.peers.expressions import equivalent, filter_json, with_null_tests
from tests.peers.filters import filters
from tests.peers.java import At
from tests.peers.values import comparable, python_value

if TYPE_CHECKING:
    from tests.peers.corpus import Corpus

SCHEMA = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    NestedField(2, "s", StringType(), required=False),
    NestedField(3, "ts", TimestamptzType(), required=False),
    NestedField(4, "dec", DecimalType(9, 2), required=False),
)


@pytest.mark.java
def test_plan_of_a_known_table(corpus: Corpus) -> None:
    table = corpus.table("identity_s_v2")
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
def test_files_table(corpus: Corpus, name: str) -> None:
    table = corpus.table(name)
    files = {row.file_path for row in table.java.metadata_table("files").collect()}
    assert files == set(table.java.paths())
    assert table.schema.find_field("st.deep.y").field_type == StringType()


@pytest.mark.java
def test_deletes_of_every_time(corpus: Corpus) -> None:
    table = corpus.table("upgraded_with_deletes_v4")
    deletes = [each for row in table.java.plan() for each in row["deletes"]]
    assert {(each["content"], each["file_format"]) for each in deletes} == {
        (1, "PARQUET"),
        (1, "PUFFIN"),
        (2, "PARQUET"),
    }
    assert all(each["referenced_data_file"] and each["content_offset"] for each in deletes if "PUFFIN" in each.values())
    first = table.java.plan(at=At(snapshot_id=table.java.snapshot_ids[0]))
    assert [row["first_row_id"] for row in first] == [None] * len(first)
    assert table.java.metadata_table("files", At(snapshot_id=table.java.snapshot_ids[0])).count() == len(first)


@pytest.mark.java
def test_all_void_and_dropped_partitions(corpus: Corpus) -> None:
    assert corpus.table("equality_void_v2").java.plan()[0]["partition"].keys() == {"id_void", "s"}
    dropped = corpus.table("spec_dropped_source_v2").java.plan()
    assert {row["spec_id"] for row in dropped} == {0, 1, 2}
    assert all(row["partition"].keys() == {"ts_day", "s"} for row in dropped)


@pytest.mark.java
@pytest.mark.parametrize("name", ["unknown_counts_v1", "identity_u_v2"])
def test_what_java_refuses(corpus: Corpus, name: str) -> None:
    table = corpus.table(name)
    with pytest.raises(Exception, match=r"counts are missing|UUID"):
        table.java.metadata_table("files").collect()
    assert "files" in table.refused
    assert "snapshots" not in table.refused


@pytest.mark.java
def test_tasks_are_packed(corpus: Corpus) -> None:
    table = corpus.table("splits_v2")
    tasks = table.java.tasks()
    assert len(tasks) > 10
    whole = sum(row["file_size_in_bytes"] for row in table.java.plan())
    assert sum(length for task in tasks for _, _, length in task) < whole
    assert len(table.java.tasks(options={"read.split.target-size": str(2**31)})) < len(tasks)


@pytest.mark.java
@pytest.mark.parametrize("name", ["types_v2", "hostile_columns_v2", "java_types_v3"])
def test_java_reads_every_filter(corpus: Corpus, name: str) -> None:
    table = corpus.table(name)
    chosen = filters(table, 60)
    assert len({each.name for each in chosen}) == 60
    assert [each.name for each in filters(table, 60)] == [each.name for each in chosen]
    counts = [len(table.java.paths(each.expression, case_sensitive=each.case_sensitive)) for each in chosen]
    assert min(counts) < max(counts)


def test_names_by_tag() -> None:
    assert all(RECIPES[name].doc.endswith(".") for name in names())
    assert "types_v3" in names("types", "v3")
    assert not set(names("v1")) & set(names("v2"))


def test_equivalence() -> None:
    expression = Or(And(EqualTo("s", "a"), Not(IsNull("s"))), EqualTo("id", 3))
    other = (
        '{"type":"or","left":{"type":"in","term":"id","values":[3]},"right":{"type":"not","child":{"type":"or",'
        '"left":{"type":"not-eq","term":"s","value":"a"},"right":{"type":"is-null","term":"s"}}}}'
    )
    assert equivalent(filter_json(expression), other, SCHEMA)
    assert not equivalent(filter_json(expression), other.replace("[3]", "[3, 4]"), SCHEMA)
    assert equivalent(
        filter_json(And(EqualTo("s", "a"), Or(EqualTo("s", "a"), EqualTo("id", 1)))), leaf("s", "a"), SCHEMA
    )
    assert equivalent(leaf("ts", "1969-12-31T23:59:59.999999+00:00"), leaf("ts", -1), SCHEMA)
    assert equivalent(leaf("dec", "1.50"), leaf("dec", 1.5), SCHEMA)
    assert not equivalent(leaf("dec", "1.50"), leaf("dec", 1.6), SCHEMA)
    assert equivalent(leaf("id", 2**31, "lt"), "true", SCHEMA)
    assert equivalent('{"type":"is-null","term":"id"}', "false", SCHEMA)
    assert equivalent(filter_json(In("S", ("a",))), leaf("s", "a"), SCHEMA, case_sensitive=False)
    other_or_null = Or(IsNull("s"), NotEqualTo("s", "a"))
    assert equivalent(filter_json(with_null_tests(other_or_null)), filter_json(other_or_null), SCHEMA)
    assert not equivalent(filter_json(with_null_tests(Not(EqualTo("s", "a")))), leaf("s", "a", "not-eq"), SCHEMA)


def leaf(term: str, value: object, operation: str = "eq") -> str:
    return json.dumps({"type": operation, "term": term, "value": value})


def test_values() -> None:
    assert str(python_value("1969-12-31T23:59:59.999999+00:00", TimestamptzType())) == "1969-12-31 23:59:59.999999"
    assert comparable(float("nan")) == comparable(float("nan"))
    assert comparable(-0.0) != comparable(0.0)
    assert comparable({"a": [1.0]}) == comparable({"a": (1.0,)})
