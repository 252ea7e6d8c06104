from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.expressions.visitors import inclusive_projection
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from sparkmeta.errors import CorruptFileError, ValidationError
from sparkmeta.spec.partitioning import (
    UnknownTransform,
    partition_spec_from_json,
    partition_spec_to_json,
    partition_type,
    sort_order_from_json,
    sort_order_to_json,
    spec_partition_type,
    with_unique_ids,
)

OLD = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    NestedField(2, "at", TimestampType()),
    NestedField(3, "name", StringType()),
    schema_id=0,
)
NEW = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "at", TimestampType()), schema_id=1)


def field(source_id: int, field_id: int, transform: Any, name: str) -> PartitionField:
    return PartitionField(source_id, field_id, transform, name)


def spec(spec_id: int, *fields: PartitionField) -> PartitionSpec:
    return PartitionSpec(*fields, spec_id=spec_id)


def read(transform: str, **sources: Any) -> Any:
    entry = {"name": "p", "transform": transform, "field-id": 1000} | {
        k.replace("_", "-"): v for k, v in sources.items()
    }
    return partition_spec_from_json({"spec-id": 0, "fields": [entry]}).fields[0]


@pytest.mark.parametrize(
    ("text", "transform"),
    [
        ("identity", IdentityTransform()),
        ("Identity", IdentityTransform()),
        ("BUCKET[16]", BucketTransform(16)),
        ("truncate[4]", TruncateTransform(4)),
        ("day", DayTransform()),
        ("void", VoidTransform()),
    ],
)
def test_known_transforms(text: str, transform: Any) -> None:
    assert type(read(text, source_id=1).transform) is type(transform)
    assert read(text, source_id=1).transform == transform


@pytest.mark.parametrize("text", ["zorder(3)", "bucket", "bucket[x]", "truncate[-1]", "years", "bucketV2[4]"])
def test_unknown_transforms_are_kept_and_project_to_nothing(text: str) -> None:
    unknown = read(text, source_id=1)
    assert unknown.transform == UnknownTransform(text)
    assert str(unknown.transform) == text
    assert unknown.transform != UnknownTransform("other")
    partitioned = spec(0, unknown)
    assert str(inclusive_projection(NEW, partitioned)(EqualTo("id", 7))) == "AlwaysTrue()"
    assert spec_partition_type(partitioned, [NEW]).fields[0].field_type == StringType()


def test_source_columns() -> None:
    assert read("bucket[4]", source_ids=[2]).transform == BucketTransform(4)
    several = read("bucket[4]", source_ids=[2, 1])
    assert (several.source_id, str(several.transform)) == (2, "bucket[4]")
    assert isinstance(several.transform, UnknownTransform)
    assert spec_partition_type(spec(0, several), [NEW]).fields[0].field_type == IntegerType()
    unknown = read("truncate[4]", source_ids=[2, 1])
    assert spec_partition_type(spec(0, unknown), [NEW]).fields[0].field_type == StringType()
    assert read("void", source_ids=[2, 1]).transform == VoidTransform()


def test_a_spec_is_kept_as_it_was() -> None:
    document = {
        "spec-id": 3,
        "x": [1],
        "fields": [{"name": "p", "transform": "Bucket[4]", "source-ids": [1], "field-id": 1000, "y": None}],
    }
    table_spec = partition_spec_from_json(document)
    assert table_spec == spec(3, field(1, 1000, BucketTransform(4), "p"))
    for same in (table_spec, pickle.loads(pickle.dumps(table_spec)), copy.deepcopy(table_spec)):
        assert partition_spec_to_json(same) == document
    assert partition_spec_to_json(table_spec.model_copy(update={"spec_id": 4})) == {
        "spec-id": 4,
        "fields": [{"name": "p", "transform": "bucket[4]", "source-id": 1, "field-id": 1000}],
    }


def test_a_sort_order_is_kept_as_it_was() -> None:
    document = {
        "order-id": 1,
        "x": 1,
        "fields": [{"transform": "zip", "source-ids": [1, 2], "direction": "desc", "null-order": "nulls-last", "y": 1}],
    }
    order = sort_order_from_json(document)
    assert sort_order_to_json(order) == document
    assert sort_order_to_json(order.model_copy(update={"order_id": 2})) == {
        "order-id": 2,
        "fields": [{"transform": "zip", "source-ids": [1, 2], "direction": "desc", "null-order": "nulls-last"}],
    }


@pytest.mark.parametrize("sources", [{}, {"source_ids": []}, {"source_id": "1"}, {"source_ids": 1}])
def test_bad_sources(sources: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError, match=r"spec: fields\[0\]\.source-ids?"):
        read("identity", **sources)


def test_the_type_of_a_spec() -> None:
    partitioned = spec(
        0,
        field(1, 1000, IdentityTransform(), "id"),
        field(2, 1001, DayTransform(), "at_day"),
        field(3, 1002, VoidTransform(), "name"),
        field(1, 1003, BucketTransform(4), "id_bucket"),
        field(9, 1004, IdentityTransform(), "never"),
    )
    kind = spec_partition_type(partitioned, [OLD, NEW])
    assert kind == StructType(
        NestedField(1000, "id", LongType(), required=False),
        NestedField(1001, "at_day", DateType(), required=False),
        NestedField(1002, "name", StringType(), required=False),
        NestedField(1003, "id_bucket", IntegerType(), required=False),
        NestedField(1004, "never", StringType(), required=False),
    )
    assert spec_partition_type(partitioned, [NEW, OLD]) == kind
    assert spec_partition_type(partitioned, [OLD, NEW], OLD).fields[0].field_type == IntegerType()


def test_the_type_of_all_specs() -> None:
    specs = [
        spec(0, field(1, 1000, BucketTransform(4), "id_bucket"), field(3, 1001, BucketTransform(8), "name")),
        spec(2, field(1, 1000, BucketTransform(4), "renamed"), field(3, 1001, VoidTransform(), "gone")),
        spec(1, field(2, 1002, DayTransform(), "at_day"), field(1, 1000, VoidTransform(), "dropped")),
    ]
    expected = [
        NestedField(1000, "renamed", IntegerType(), required=False),
        NestedField(1001, "gone", IntegerType(), required=False),
        NestedField(1002, "at_day", DateType(), required=False),
    ]
    assert list(partition_type(specs, [OLD, NEW]).fields) == expected
    assert list(partition_type(reversed(specs), [OLD, NEW], NEW).fields) == expected
    active = partition_type(specs, [OLD, NEW], NEW, active_only=True)
    assert list(active.fields) == [expected[0], expected[2]]


def test_a_field_that_is_void_everywhere_keeps_the_type_of_its_source() -> None:
    kind = partition_type([spec(0, field(2, 1000, VoidTransform(), "at"))], [NEW])
    assert kind.fields == (NestedField(1000, "at", TimestampType(), required=False),)


@pytest.mark.parametrize("other", [(2, IdentityTransform()), (1, BucketTransform(8)), (2, VoidTransform())])
def test_one_id_for_two_fields(other: tuple[int, Any]) -> None:
    source_id, transform = other
    specs = [
        spec(0, field(1, 1000, BucketTransform(4), "a")),
        spec(1, field(source_id, 1000, transform, "b")),
    ]
    with pytest.raises(ValidationError, match=r"partition field id 1000 is given to both 1000: b: .* and 1000: a: "):
        partition_type(specs, [NEW])


def test_ids_that_are_unique_over_all_specs() -> None:
    specs = {
        0: spec(0, field(1, 1000, BucketTransform(4), "a"), field(3, 1001, BucketTransform(8), "name")),
        1: spec(1, field(2, 1000, DayTransform(), "day"), field(3, 1001, VoidTransform(), "name")),
        2: spec(2, field(1, 1000, BucketTransform(4), "b")),
        3: spec(3, field(1, 1000, VoidTransform(), "c"), field(2, 1001, DayTransform(), "day")),
    }

    def ids(default: int) -> list[list[int]]:
        return [[field.field_id for field in spec.fields] for spec in with_unique_ids(specs, default).values()]

    assert ids(3) == ids(2) == [[1000, 1003], [1002, 1003], [1000], [1000, 1001]]
    assert ids(1) == [[1002, 1001], [1000, 1001], [1002], [1002, 1003]]
    for spec_id, unique in with_unique_ids(specs, 1).items():
        assert partition_spec_to_json(unique) == partition_spec_to_json(specs[spec_id])
    assert len(partition_type(with_unique_ids(specs, 1).values(), [NEW, OLD]).fields) == 4


def test_no_partition_field() -> None:
    assert partition_type([spec(0)], [NEW]) == StructType()
