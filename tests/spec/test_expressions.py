"""Expressions of V4 metadata: JSON of expressions and of the specs that refer to them, and ids of stats."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform, VoidTransform

from sparkmeta.errors import CorruptFileError, UnsupportedError, ValidationError
from sparkmeta.spec.metadata import (
    LAYOUT_REVISION,
    LAYOUT_REVISION_KEY,
    TableMetadataV4,
    add_expressions,
    parse_table_metadata,
    serialize_table_metadata,
)
from sparkmeta.spec.partitioning import (
    Expression,
    UnknownTransform,
    expression_from_json,
    expression_to_json,
    partition_spec_to_json,
)
from tests.spec.table_metadata import LOCATION, changed, encoded, v4, without

FIELDS = [
    {"id": 2, "name": "a", "required": False, "type": "int"},
    {"id": 3, "name": "b", "required": False, "type": "int"},
    {"id": 9, "name": "ts", "required": False, "type": "timestamp"},
    {"id": 11, "name": "str", "required": False, "type": "string"},
]


def example() -> dict[str, Any]:
    """Return the last state of the V4 document's example 18: expressions 101 and 104, and the virtual 102."""
    return {
        "format-version": 4,
        "tree-layout-revision": 1,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "s3://bucket/db/events",
        "last-sequence-number": 0,
        "last-updated-ms": 1602638573590,
        "last-column-id": 104,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": copy.deepcopy(FIELDS)}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": [{"expr-id": 101}, {"expr-id": 104, "x-field": 1}], "x-spec": 1}],
        "expressions": [
            {
                "expr-id": 101,
                "expr": {"source-id": 9, "transform": "day", "name": "ts_day"},
                "partition-field-id": 1000,
            },
            {"expr-id": 102, "expr": {"source-id": 11, "transform": "lower", "name": "lower_str", "x-expr": [1]}},
            {
                "expr-id": 104,
                "expr": {
                    "source-ids": [2, 3],
                    "transform": "bucket[16]",
                    "name": "bucket_a_b",
                    "partition-field-id": 1001,
                },
                "x-expression": {"a": None},
            },
            {"expr-id": 103, "expr": {"apply": ["f", {"ref": 9}]}},
        ],
        "last-partition-id": 1001,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "next-row-id": 0,
    }


def parse(document: dict[str, Any]) -> TableMetadataV4:
    metadata = parse_table_metadata(encoded(document), LOCATION)
    assert isinstance(metadata, TableMetadataV4)
    return metadata


def written(metadata: TableMetadataV4) -> Any:
    return json.loads(serialize_table_metadata(metadata))


def test_the_documents_example() -> None:
    metadata = parse(example())
    day, bucket = metadata.spec().fields
    assert day == PartitionField(9, 1000, DayTransform(), "ts_day")
    assert (bucket.source_id, bucket.field_id, bucket.name) == (2, 1001, "bucket_a_b")
    assert isinstance(bucket.transform, UnknownTransform)
    assert metadata.expressions == [
        Expression(expr_id=101, source_ids=(9,), transform="day", name="ts_day", partition_field_id=1000),
        Expression(expr_id=102, source_ids=(11,), transform="lower", name="lower_str"),
        Expression(expr_id=104, source_ids=(2, 3), transform="bucket[16]", name="bucket_a_b", partition_field_id=1001),
        Expression(expr_id=103),
    ]
    assert [metadata.stats_field_id(metadata.spec(), field) for field in metadata.spec().fields] == [101, 104]
    assert partition_spec_to_json(metadata.spec()) == {
        "spec-id": 0,
        "fields": [
            {"name": "ts_day", "transform": "day", "source-id": 9, "field-id": 1000},
            {"name": "bucket_a_b", "transform": "bucket[16]", "source-ids": [2, 3], "field-id": 1001, "x-field": 1},
        ],
        "x-spec": 1,
    }


def test_nothing_is_lost() -> None:
    metadata = parse(example())
    assert written(metadata) == example()
    changed_elsewhere = written(metadata.model_copy(update={"properties": {"a": "b"}}, deep=True))
    assert {key: changed_elsewhere[key] for key in example()} == example()


def test_specs_written_in_full_stay_so() -> None:
    metadata = parse(v4())
    assert (metadata.expressions, metadata.layout_revision) == ([], None)
    copied = written(metadata.model_copy(update={"properties": {}}))
    assert copied["partition-specs"] == v4()["partition-specs"]
    assert copied.keys().isdisjoint({"expressions", LAYOUT_REVISION_KEY, "location"})
    moved = written(metadata.model_copy(update={"location": "s3://elsewhere"}))
    assert moved["location"] == "s3://elsewhere"


def test_a_spec_may_refer_for_some_of_its_fields() -> None:
    document = example()
    full = {"name": "a", "transform": "identity", "source-id": 2, "field-id": 1002}
    document["partition-specs"][0]["fields"].append(full)
    metadata = parse(document)
    assert metadata.spec().fields[2].name == "a"
    assert written(metadata) == document


def test_a_reference_may_repeat_what_the_expression_says() -> None:
    document = example()
    document["partition-specs"][0]["fields"] = [
        {"expr-id": 101, "name": "ts_day", "transform": "day", "source-ids": [9], "field-id": 1000},
        {"expr-id": 104, "source-ids": [2, 3]},
    ]
    metadata = parse(document)
    assert [field.field_id for field in metadata.spec().fields] == [1000, 1001]
    assert written(metadata)["partition-specs"][0]["fields"] == [{"expr-id": 101}, {"expr-id": 104}]


SPEC_FIELD = ("partition-specs", 0, "fields", 0)
BAD: list[tuple[dict[str, Any], str]] = [
    (changed(example(), {}, "expressions"), "expressions is {}: an array is expected"),
    (changed(example(), [7], "expressions"), "expressions[0] is 7: an object is expected"),
    (without(example(), "expressions", 0, "expr-id"), "expressions[0].expr-id is None: it is required"),
    (without(example(), "expressions", 1, "expr"), "expressions[1].expr is None: it is required"),
    (changed(example(), "101", "expressions", 0, "expr-id"), "expressions[0].expr-id is '101': a whole number"),
    (changed(example(), 101, "expressions", 1, "expr-id"), "expressions[1] is {"),
    (changed(example(), 101, "expressions", 1, "expr-id"), "expr-id 101 is given twice"),
    (changed(example(), "1000", "expressions", 0, "partition-field-id"), "partition-field-id is '1000': a whole"),
    (without(example(), "expressions", 0, "expr", "transform"), "expressions[0].expr.transform is None: it is req"),
    (without(example(), "expressions", 0, "expr", "source-id"), "expressions[0].expr.source-id is None: it is req"),
    (without(example(), "expressions", 0, "expr", "name"), "expressions[0].expr.name is None: it is required"),
    (changed(example(), "bucket[0]", "expressions", 0, "expr", "transform"), "transform is 'bucket[0]': its width"),
    (changed(example(), [], "expressions", 1, "expr", "source-ids"), "expressions[1].expr.source-ids is []"),
    (changed(example(), 7, "expressions", 1, "expr", "name"), "expressions[1].expr.name is 7: a string"),
    (changed(example(), 9, "expressions", 1, "expr-id"), "expressions[1].expr-id is 9: a column has the same id"),
    (changed(example(), 103, "last-column-id"), "expressions[2].expr-id is 104: last-column-id is only 103"),
    (
        changed(example(), example()["expressions"][0] | {"expr-id": 100}, "expressions", 3),
        "it equals expression 101",
    ),
    (changed(example(), {"expr-id": 9}, *SPEC_FIELD), "fields[0].expr-id is 9: there is no such expression"),
    (changed(example(), {"expr-id": "9"}, *SPEC_FIELD), "fields[0].expr-id is '9': a whole number"),
    (changed(example(), {"expr-id": 102}, *SPEC_FIELD), "fields[0].expr-id is 102: this expression has no partit"),
    (changed(example(), {"expr-id": 104}, *SPEC_FIELD), "partition field id 1001 is given twice"),
    (changed(example(), {"expr-id": 101, "name": "x"}, *SPEC_FIELD), "fields[0].name is 'x': expression 101 has 'ts_"),
    (changed(example(), {"expr-id": 101, "transform": "hour"}, *SPEC_FIELD), "transform is 'hour': expression 101"),
    (changed(example(), {"expr-id": 101, "field-id": 1002}, *SPEC_FIELD), "field-id is 1002: expression 101"),
    (changed(example(), {"expr-id": 101, "source-id": 2}, *SPEC_FIELD), "expression 101 has the source columns [9]"),
    (changed(example(), 0, "tree-layout-revision"), "tree-layout-revision is 0: there is no such layout"),
    (changed(example(), "1", "tree-layout-revision"), "tree-layout-revision is '1': a whole number is expected"),
]


@pytest.mark.parametrize(("document", "problem"), BAD, ids=[problem[:60] for _, problem in BAD])
def test_bad_expressions(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parse(document)
    assert str(caught.value).startswith(f"{LOCATION}: ")
    assert problem in str(caught.value)


def test_a_newer_layout_of_the_tree() -> None:
    newer = LAYOUT_REVISION + 1
    with pytest.raises(
        UnsupportedError, match=rf"00003-aaaa\.metadata\.json: tree-layout-revision is {newer}: .* {LAYOUT_REVISION}$"
    ):
        parse(changed(example(), newer, LAYOUT_REVISION_KEY))


def test_earlier_versions_have_no_expressions() -> None:
    document = example() | {"format-version": 3, "tree-layout-revision": 7, "expressions": "x"}
    document["partition-specs"] = [{"spec-id": 0, "fields": []}]
    assert json.loads(serialize_table_metadata(parse_table_metadata(encoded(document), LOCATION))) == document


def test_a_spec_without_fields_is_what_earlier_readers_refuse() -> None:
    document = example() | {LAYOUT_REVISION_KEY: 1, "partition-specs": [{"spec-id": 0, "fields": [], "x-spec": 1}]}
    metadata = parse(document)
    assert written(metadata)["partition-specs"] == [{"spec-id": 0, "x-spec": 1}]
    assert parse(written(metadata)).specs() == metadata.specs()
    list_based = document | {LAYOUT_REVISION_KEY: None}
    assert written(parse(list_based))["partition-specs"] == list_based["partition-specs"]
    list_based["partition-specs"] = [{"spec-id": 0}]
    with pytest.raises(CorruptFileError, match=r"partition-specs\[0\]\.fields is None"):
        parse(list_based)


DAY = PartitionField(9, 1000, DayTransform(), "ts_day")


def test_the_id_of_a_fields_stats() -> None:
    spec = PartitionSpec(
        DAY,
        PartitionField(2, 1002, IdentityTransform(), "a"),
        PartitionField(3, 1003, VoidTransform(), "b"),
        PartitionField(11, 1004, TruncateTransform(4), "s"),
        spec_id=1,
    )
    metadata = add_expressions(parse(example()), spec)
    assert [metadata.stats_field_id(spec, field) for field in spec.fields] == [101, 2, None, 107]
    assert parse(example()).stats_field_id(spec, spec.fields[1]) == 2
    with pytest.raises(ValidationError, match=r"partition field 1004 \(s\) of spec 1: .* no expression"):
        parse(example()).stats_field_id(spec, spec.fields[3])
    with pytest.raises(ValidationError, match=r"partition field 1004 \(s\) of spec 0: "):
        metadata.stats_field_id(metadata.spec(), spec.fields[3])


def test_new_expressions_are_numbered_above_the_columns() -> None:
    document = example()
    spec = PartitionSpec(DAY, PartitionField(2, 1002, IdentityTransform(), "a"), spec_id=1)
    before = parse(document)
    after = add_expressions(before, spec)
    assert after.expressions == [
        *before.expressions,
        Expression(expr_id=105, source_ids=(2,), transform="identity", name="a", partition_field_id=1002),
    ]
    assert after.last_column_id == 105
    assert (len(before.expressions), before.last_column_id) == (4, 104)
    assert add_expressions(after, spec) is after
    assert written(after)["expressions"] == [
        *document["expressions"],
        {
            "expr-id": 105,
            "expr": {"source-id": 2, "transform": "identity", "name": "a"},
            "partition-field-id": 1002,
        },
    ]


@pytest.mark.parametrize(
    "other",
    [
        PartitionField(3, 1000, DayTransform(), "ts_day"),
        PartitionField(9, 1007, DayTransform(), "ts_day"),
        PartitionField(9, 1000, DayTransform(), "day"),
        PartitionField(9, 1000, BucketTransform(4), "ts_day"),
        PartitionField(2, 1001, BucketTransform(16), "bucket_a_b"),  # of one of the two sources
    ],
)
def test_an_expression_serves_only_where_all_agrees(other: PartitionField) -> None:
    after = add_expressions(parse(example()), PartitionSpec(other, spec_id=1))
    assert [expression.expr_id for expression in after.expressions] == [101, 102, 104, 103, 105]
    assert after.stats_field_id(PartitionSpec(other, spec_id=1), other) == 105


def test_a_transform_in_other_letters_is_the_same() -> None:
    document = changed(example(), "DAY", "expressions", 0, "expr", "transform")
    metadata = parse(document)
    assert add_expressions(metadata, PartitionSpec(DAY, spec_id=1)) is metadata
    assert written(metadata) == document


def test_ids_are_above_columns_that_last_column_id_misses() -> None:
    document = changed(v4(), 5, "last-column-id")
    metadata = add_expressions(parse(document), PartitionSpec(PartitionField(1, 1007, DayTransform(), "d"), spec_id=9))
    assert metadata.expressions[0].expr_id == metadata.last_column_id == 29


def test_no_id_that_statistics_have_no_room_for() -> None:
    metadata = parse(changed(example(), 999_948, "last-column-id"))
    first = PartitionField(9, 1002, BucketTransform(2), "b2")
    second = PartitionField(9, 1003, BucketTransform(3), "b3")
    assert add_expressions(metadata, PartitionSpec(first, spec_id=1)).last_column_id == 999_949
    with pytest.raises(UnsupportedError, match=r"field b3 would get id 999950"):
        add_expressions(metadata, PartitionSpec(first, second, spec_id=1))
    without_stats = PartitionSpec(first, PartitionField(2, 1004, IdentityTransform(), "a"), spec_id=1)
    assert add_expressions(metadata, without_stats).last_column_id == 999_950


@given(
    st.builds(
        Expression,
        expr_id=st.integers(0, 1 << 31),
        source_ids=st.lists(st.integers(0, 1 << 31), min_size=1, max_size=3).map(tuple),
        transform=st.sampled_from(["day", "void", "bucket[7]", "zorder(2)", "Ü"]),
        name=st.text(),
        partition_field_id=st.none() | st.integers(0, 1 << 31),
    )
)
def test_an_expression_comes_back(expression: Expression) -> None:
    document = expression_to_json(expression)
    assert json.loads(json.dumps(document)) == document
    assert expression_from_json(document) == expression
    assert hash(expression_from_json(document)) == hash(expression)
    renamed = expression_from_json(document).model_copy(update={"name": f"{expression.name}!"})
    assert expression_to_json(renamed)["expr"]["name"] == f"{expression.name}!"
    assert renamed != expression
