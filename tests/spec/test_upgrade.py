"""The upgrade of table metadata to version 4: everything stays, and every spec gets expressions."""

from __future__ import annotations

import copy
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.errors import ValidationError
from sparkmeta.spec.metadata import TableMetadata, TableMetadataV4, parse_table_metadata, serialize_table_metadata
from sparkmeta.spec.upgrade import upgrade_metadata
from tests.spec.table_metadata import LOCATION, VERSIONS, encoded, v1, v2, v3, v4

if TYPE_CHECKING:
    from collections.abc import Callable

UUID = uuid.UUID("9c12d441-03fe-4693-9a96-a0705ddf69c1")
GIVEN = uuid.UUID("00000000-0000-4000-8000-000000000001")


def parse(document: dict[str, Any]) -> TableMetadata:
    return parse_table_metadata(encoded(document), LOCATION)


def upgraded(document: dict[str, Any]) -> tuple[TableMetadataV4, dict[str, Any]]:
    """Return the upgraded metadata and its JSON, which must be read as equal metadata."""
    metadata = upgrade_metadata(parse(document), GIVEN)
    text = serialize_table_metadata(metadata)
    assert serialize_table_metadata(parse_table_metadata(text.encode(), LOCATION)) == text
    return metadata, json.loads(text)


def example() -> dict[str, Any]:
    """Return the first state of the V4 document's example 18."""
    fields = [(9, "ts", "timestamp"), (11, "str", "string"), (2, "a", "int"), (3, "b", "int")]
    return v3() | {
        "last-column-id": 11,
        "current-schema-id": 0,
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": i, "name": name, "required": False, "type": kind} for i, name, kind in fields],
            }
        ],
        "default-spec-id": 0,
        "partition-specs": [
            {
                "spec-id": 0,
                "fields": [
                    {"field-id": 1000, "source-id": 9, "transform": "day", "name": "ts_day"},
                    {"field-id": 1001, "source-ids": [2, 3], "transform": "bucket[16]", "name": "bucket_a_b"},
                ],
            }
        ],
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
    }


def test_the_documents_example() -> None:
    metadata, document = upgraded(example())
    assert document["partition-specs"] == [{"spec-id": 0, "fields": [{"expr-id": 12}, {"expr-id": 13}]}]
    assert document["expressions"] == [
        {"expr-id": 12, "expr": {"source-id": 9, "transform": "day", "name": "ts_day"}, "partition-field-id": 1000},
        {
            "expr-id": 13,
            "expr": {"source-ids": [2, 3], "transform": "bucket[16]", "name": "bucket_a_b"},
            "partition-field-id": 1001,
        },
    ]
    assert document["last-column-id"] == 13
    assert metadata.spec() == parse(example()).spec()


def v4_with_lists() -> dict[str, Any]:
    """Return metadata of version 4 without a tree, as Iceberg 1.12.0 writes it."""
    return {key: value for key, value in v3().items() if key != "location"} | {"format-version": 4}


CHANGED = {"format-version", "last-column-id", "partition-specs", "expressions", "tree-layout-revision"}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_all_else_stays(version: int) -> None:
    before = {2: v2, 3: v3, 4: v4_with_lists}[version]()
    metadata, after = upgraded(before)
    assert isinstance(metadata, TableMetadataV4)
    assert (after["format-version"], after["tree-layout-revision"]) == (4, 2)
    assert {key: value for key, value in after.items() if key in before.keys() - CHANGED} == {
        key: value for key, value in before.items() if key not in CHANGED
    }
    filled = {2: {"next-row-id": 0}, 3: {}, 4: {}}[version]
    assert {key: after[key] for key in after.keys() - before.keys() - CHANGED} == filled
    assert metadata.table_uuid == UUID
    assert metadata.partition_specs == parse(before).partition_specs
    assert [str(spec) for spec in metadata.partition_specs] == [str(spec) for spec in parse(before).partition_specs]
    assert [snapshot.manifest_list for snapshot in metadata.snapshots] == [
        snapshot.manifest_list for snapshot in parse(before).snapshots
    ]


@pytest.mark.parametrize("make", [v2, v3, v4_with_lists])
def test_every_spec_has_expressions(make: Callable[[], dict[str, Any]]) -> None:
    document = make()
    older = {"name": "b", "transform": "bucket[16]", "source-id": 1, "field-id": 1000}
    renamed = older | {"name": "c"}
    void = {"name": "v", "transform": "void", "source-id": 2, "field-id": 1003}
    identity = {"name": "i", "transform": "identity", "source-id": 2, "field-id": 1004}
    document["partition-specs"].append({"spec-id": 7, "fields": [renamed, older | {"field-id": 1005}, void, identity]})
    document["partition-specs"].append({"spec-id": 8, "fields": [older, void]})
    metadata, after = upgraded(document)
    refs = [[field["expr-id"] for field in spec.get("fields", [])] for spec in after["partition-specs"]]
    first = list(range(31, 31 + len(document["partition-specs"][1]["fields"])))
    fresh = first[-1] + 1
    assert refs == [[], first, [fresh, fresh + 1, fresh + 2, fresh + 3], [first[0], fresh + 2]]
    assert after["partition-specs"][1]["fields"][0] == {"expr-id": 31, "x-partition": 1}
    assert after["partition-specs"][1]["x-spec"] == "kept"
    assert metadata.last_column_id == fresh + 3
    spec = metadata.specs()[7]
    assert [metadata.stats_field_id(spec, field) for field in spec.fields] == [fresh, fresh + 1, None, 2]


def test_version_1_is_completed() -> None:
    before = v1()
    metadata, after = upgraded(before)
    assert after.keys().isdisjoint({"schema", "partition-spec"})
    assert after["table-uuid"] == str(GIVEN)
    assert after["schemas"] == [before["schema"] | {"schema-id": 0}]
    assert after["partition-specs"] == [
        {"spec-id": 0, "fields": [{"expr-id": 11, "x-partition": 1}, {"expr-id": 12}]},
    ]
    assert [expression["partition-field-id"] for expression in after["expressions"]] == [1000, 1001]
    assert after["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert {
        key: after[key] for key in ("last-sequence-number", "next-row-id", "last-partition-id", "last-column-id")
    } == {
        "last-sequence-number": 0,
        "next-row-id": 0,
        "last-partition-id": 1001,
        "last-column-id": 12,
    }
    assert after["refs"] == {"main": {"snapshot-id": 7, "type": "branch"}}
    assert after["snapshots"] == before["snapshots"]
    assert after["x-table"] == before["x-table"]
    assert after["properties"] == before["properties"]
    assert [snapshot.inline_manifests for snapshot in metadata.snapshots] == [
        ["s3://bucket/m1.avro", "s3://bucket/m2.avro"],
        None,
    ]


def test_version_1_with_lists_keeps_them() -> None:
    lists = v2() | {"format-version": 1, "schema": v2()["schemas"][1], "partition-spec": []}
    del lists["last-sequence-number"]
    del lists["snapshots"][1]["sequence-number"]
    _, after = upgraded(lists)
    same = (
        "schemas",
        "current-schema-id",
        "default-spec-id",
        "last-partition-id",
        "sort-orders",
        "default-sort-order-id",
    )
    assert {key: after[key] for key in same} == {key: v2()[key] for key in same}
    assert after["table-uuid"] == str(UUID)


def test_version_1_without_uuid_needs_one() -> None:
    with pytest.raises(ValidationError, match=r"s3://bucket/db/events: table-uuid is None"):
        upgrade_metadata(parse(v1()))


def test_no_snapshot_is_null_from_version_3_on() -> None:
    _, after = upgraded(v2() | {"current-snapshot-id": -1, "snapshots": [], "refs": {}, "statistics": []})
    assert after.get("current-snapshot-id", "absent") in (None, "absent")
    assert after["refs"] == {}


def test_a_table_without_partitions_has_an_empty_list_of_expressions() -> None:
    _, after = upgraded(v2() | {"default-spec-id": 0, "partition-specs": v2()["partition-specs"][:1]})
    assert (after["expressions"], after["last-column-id"]) == ([], 30)


def test_a_location_left_to_the_file_stays_so() -> None:
    metadata, after = upgraded(v4())
    assert metadata.location == "s3://bucket/db/events"
    assert "location" not in after


@pytest.mark.parametrize("version", VERSIONS)
def test_pure_and_done_once(version: int) -> None:
    document = VERSIONS[version]()
    before = parse(document)
    once = upgrade_metadata(before, GIVEN)
    assert json.loads(serialize_table_metadata(before)) == document
    assert serialize_table_metadata(upgrade_metadata(once)) == serialize_table_metadata(once)
    assert serialize_table_metadata(upgrade_metadata(before, GIVEN)) == serialize_table_metadata(once)


transforms = st.sampled_from(["identity", "bucket[4]", "bucket[8]", "truncate[3]", "void", "zorder(1)", "day"])
partition_fields = st.builds(
    lambda source, transform, name: {"source-id": source, "transform": transform, "name": name},
    st.sampled_from([1, 2, 4]),
    transforms,
    st.sampled_from(["p", "q", "r", "s", "t"]),
)
SPECS = st.lists(st.lists(partition_fields, max_size=4, unique_by=lambda field: field["name"]), min_size=1, max_size=5)


@given(SPECS, st.integers(1000, 1003))
def test_any_specs(specs: list[list[dict[str, Any]]], first: int) -> None:
    document = v3() | {"default-spec-id": 0, "partition-specs": []}
    for spec_id, fields in enumerate(specs):
        numbered = [field | {"field-id": first + i} for i, field in enumerate(fields)]
        document["partition-specs"].append({"spec-id": spec_id, "fields": copy.deepcopy(numbered)})
    metadata, after = upgraded(document)
    assert metadata.partition_specs == parse(document).partition_specs
    ids = [expression.expr_id for expression in metadata.expressions]
    assert ids == list(range(31, 31 + len(ids)))
    distinct = {json.dumps(field, sort_keys=True) for spec in document["partition-specs"] for field in spec["fields"]}
    assert len(ids) == len(distinct)
    assert metadata.last_column_id == 30 + len(ids)
    assert all(list(field) == ["expr-id"] for spec in after["partition-specs"] for field in spec.get("fields", []))
