from __future__ import annotations

import gzip
import json
import pickle
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)
from pyiceberg.types import NestedField, StringType

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec.expiry import ExpiryRules, choose_expired
from sparkmeta.spec.metadata import (
    Snapshot,
    TableMetadata,
    ancestors_of,
    parse_table_metadata,
    serialize_table_metadata,
)
from sparkmeta.spec.schema import TableSchema, VariantType
from tests.spec.table_metadata import LOCATION, VERSIONS, changed, encoded, v1, v2, v3, v4, without

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("error")
versions = pytest.mark.parametrize("version", VERSIONS)


def parse(metadata: dict[str, Any]) -> TableMetadata:
    return parse_table_metadata(encoded(metadata), LOCATION)


def written(metadata: TableMetadata) -> Any:
    return json.loads(serialize_table_metadata(metadata))


@versions
def test_nothing_is_lost(version: int) -> None:
    document = VERSIONS[version]()
    metadata = parse(document)
    assert metadata.format_version == version
    assert written(metadata) == document


@pytest.mark.parametrize("refs", [{}, without(v2(), "refs", "main")["refs"], None])
def test_the_branch_main_may_be_missing(refs: dict[str, Any] | None) -> None:
    """Iceberg's Java library reads such metadata, and pyiceberg adds the branch as we do."""
    document = changed(v2(), refs, "refs")
    metadata = parse(document)
    assert set(metadata.refs) == {"main", *(refs or {})}
    assert metadata.refs["main"].snapshot_id == metadata.current_snapshot_id == document["current-snapshot-id"]
    edited = update_table_metadata(metadata, (SetPropertiesUpdate(updates={"a": "b"}),))  # type: ignore[arg-type]
    again = parse_table_metadata(serialize_table_metadata(edited).encode(), LOCATION)  # type: ignore[arg-type]
    assert again.refs == metadata.refs
    assert written(edited).get("refs", {}).items() >= (refs or {}).items()  # type: ignore[arg-type]


@versions
def test_a_change_leaves_all_else(version: int) -> None:
    document = VERSIONS[version]()
    metadata = parse(document)
    schema = TableSchema(
        *metadata.schema().fields, NestedField(99, "new", StringType()), NestedField(100, "more", VariantType())
    )
    changed = update_table_metadata(
        metadata,  # type: ignore[arg-type]
        (
            SetPropertiesUpdate(updates={"a": "b"}),
            SetSnapshotRefUpdate(ref_name="t", type="tag", snapshot_id=metadata.current_snapshot_id),
            AddSchemaUpdate(schema=schema.model_copy(update={"schema_id": 5})),
        ),
    )
    after = written(changed)  # type: ignore[arg-type]
    assert after["properties"] == document["properties"] | {"a": "b"}
    assert after["refs"]["t"]["snapshot-id"] == document["current-snapshot-id"]
    assert after["refs"].items() >= document.get("refs", {}).items()
    assert after["schemas"][-1]["schema-id"] == 5
    assert after["schemas"][-1]["fields"][-1] == {"id": 100, "name": "more", "required": False, "type": "variant"}
    assert after["schemas"][:-1] == document.get("schemas", [document.get("schema")])
    changed_keys = {"properties", "refs", "schemas", "last-updated-ms", "last-column-id"}
    assert {key: value for key, value in after.items() if key in document.keys() - changed_keys} == {
        key: value for key, value in document.items() if key not in changed_keys
    }


@versions
def test_a_copy_knows_its_own_snapshots(version: int) -> None:
    metadata = parse(VERSIONS[version]())
    first, second = metadata.snapshots
    assert metadata.snapshot_by_id(second.snapshot_id) is second
    fewer = metadata.model_copy(update={"snapshots": [first]})
    assert fewer.snapshot_by_id(second.snapshot_id) is None
    assert metadata.snapshot_by_id(second.snapshot_id) is second


def test_version_1_is_completed() -> None:
    metadata = parse(v1())
    assert metadata.table_uuid is None
    assert [schema.schema_id for schema in metadata.schemas] == [0]
    assert [(f.field_id, str(f.transform)) for f in metadata.spec().fields] == [(1000, "identity"), (1001, "day")]
    assert metadata.last_partition_id == 1001
    assert metadata.sort_order().is_unsorted
    assert {name: (ref.snapshot_id, ref.snapshot_ref_type) for name, ref in metadata.refs.items()} == {
        "main": (7, "branch")
    }
    assert metadata.last_sequence_number == 0
    inline, listed = metadata.snapshots
    assert (inline.manifest_list, inline.inline_manifests) == (None, ["s3://bucket/m1.avro", "s3://bucket/m2.avro"])
    assert (inline.sequence_number, inline.operation, listed.operation) == (0, None, None)


def test_version_1_with_lists_writes_the_current_schema_and_spec_where_early_readers_look() -> None:
    document = v1()
    document |= {
        "schemas": [document["schema"], document["schema"] | {"schema-id": 1, "fields": []}],
        "current-schema-id": 1,
        "partition-specs": [{"spec-id": 0, "fields": document["partition-spec"]}, {"spec-id": 1, "fields": []}],
        "default-spec-id": 0,
    }
    del document["schema"]
    metadata = parse(document)
    assert len(metadata.schema()) == 0
    assert written(metadata) == document
    after = written(metadata.model_copy(update={"default_spec_id": 1}))
    assert after["partition-spec"] == []
    assert after["schema"] == document["schemas"][1]
    assert written(metadata.model_copy(update={"current_schema_id": 0}))["schema"] == document["schemas"][0]


def test_version_1_without_a_snapshot_is_written_as_minus_1() -> None:
    document = v2() | {"current-snapshot-id": -1, "snapshots": [], "refs": {}}
    metadata = parse(document)
    assert metadata.current_snapshot() is None
    assert written(metadata) == document
    newer = v3() | {"current-snapshot-id": None, "snapshots": [], "refs": {}}
    assert written(parse(newer)) == newer


def test_summaries() -> None:
    no_operation, unknown = parse(v2()).snapshots
    assert no_operation.summary is not None
    assert unknown.summary is not None
    assert no_operation.summary.operation is None
    assert no_operation.operation == "overwrite"
    assert no_operation.summary.additional_properties == {"added-records": "1", "self": "x"}
    assert no_operation.summary["added-records"] == "1"
    assert (unknown.summary.operation, unknown.operation) == ("vacuum", "vacuum")
    document = v2()
    document["snapshots"][1]["summary"] = {"operation": "append"}
    known = parse(document).snapshots[1]
    assert known.summary is not None
    assert known.summary.operation is Operation.APPEND
    assert known.operation == "append"


def test_a_snapshot_of_version_3_and_4() -> None:
    snapshot = parse(v3()).snapshots[1]
    assert (snapshot.first_row_id, snapshot.added_rows, snapshot.key_id) == (1000, 375, "k1")
    assert parse(v4()).snapshots[1].root_manifest == "s3://a/b/root.parquet"


def test_version_4_lies_above_its_metadata_folder() -> None:
    assert parse(v4()).location == "s3://bucket/db/events"
    assert parse(v4() | {"location": "s3://elsewhere"}).location == "s3://elsewhere"


@pytest.mark.parametrize("log", ["snapshot-log", "metadata-log"])
def test_null_is_an_empty_log(log: str) -> None:
    """Iceberg's Java library reads such metadata."""
    assert parse(changed(v2(), None, log)) == parse(without(v2(), log))


@pytest.mark.parametrize("kind", ["BRANCH", "Branch"])
def test_types_of_refs_are_not_case_sensitive(kind: str) -> None:
    assert parse(changed(v2(), kind, "refs", "main", "type")).refs == parse(v2()).refs


@pytest.mark.parametrize("level", [0, 9])
def test_gzip(level: int) -> None:
    assert written(parse_table_metadata(gzip.compress(encoded(v2()), level), LOCATION)) == v2()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_unicode_with_and_without_a_byte_order_mark(encoding: str) -> None:
    data = encoded(v2()).decode().encode(encoding)
    assert written(parse_table_metadata(data, LOCATION)) == v2()
    assert written(parse_table_metadata(gzip.compress(data), LOCATION)) == v2()


BAD_FILES: list[tuple[bytes, str]] = [
    (b"", "document is b'': not valid JSON"),
    (encoded(v2())[:-20], "not valid JSON"),
    (encoded(v2())[1:], "not valid JSON"),
    (b"\xff\xfe{}", "not valid JSON"),
    (b"[]", "document is []: an object is expected"),
    (b"7", "document is 7: an object is expected"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"format-version": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    (gzip.compress(encoded(v2()))[:-9], "not a complete gzip file"),
    (b"\x1f\x8bnonsense", "not a complete gzip file"),
]


@pytest.mark.parametrize(("data", "problem"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_no_metadata_file(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parse_table_metadata(data, LOCATION)
    assert str(caught.value).startswith(f"{LOCATION}: ")
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 700


def nested(depth: int) -> Any:
    kind: Any = "int"
    for i in range(depth):
        kind = {"type": "list", "element-id": 1000 + i, "element": kind, "element-required": True}
    return kind


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    (without(v2(), "format-version"), "format-version is None: it is required"),
    (changed(v2(), "2", "format-version"), "format-version is '2': a whole number is expected"),
    (changed(v2(), 0, "format-version"), "format-version is 0: there is no such version"),
    (changed(v2(), True, "format-version"), "format-version is True: a whole number is expected"),
    (without(v2(), "table-uuid"), "table-uuid is None: it is required"),
    (changed(v2(), "no-uuid", "table-uuid"), "table-uuid is 'no-uuid': not a UUID"),
    (without(v2(), "location"), "location is None: it is required"),
    (changed(v2(), 7, "location"), "location is 7: "),
    (without(v2(), "last-sequence-number"), "last-sequence-number is None: it is required"),
    (changed(v2(), "34", "last-sequence-number"), "last-sequence-number is '34': "),
    (changed(v2(), 1 << 63, "last-sequence-number"), "last-sequence-number is 9223372036854775808: "),
    (without(v2(), "last-column-id"), "last-column-id is None: it is required"),
    (changed(v2(), 1.5, "last-column-id"), "last-column-id is 1.5: "),
    (without(v3(), "next-row-id"), "next-row-id is None: it is required"),
    (without(v2(), "schemas"), "schemas is None: it is required"),
    (without(v2(), "partition-specs"), "partition-specs is None: it is required"),
    (without(v2(), "sort-orders"), "sort-orders is None: it is required"),
    (without(v2(), "last-partition-id"), "last-partition-id is None: it is required"),
    (changed(v2(), {}, "schemas"), "schemas is {}: an array is expected"),
    (changed(v2(), [7], "schemas"), "schemas[0] is 7: an object is expected"),
    (changed(v2(), 9, "current-schema-id"), "current-schema-id is 9: schemas has only [0, 1]"),
    (without(v2(), "current-schema-id"), "current-schema-id is None: it is required"),
    (changed(v2(), 0, "schemas", 1, "schema-id"), "id 0 is given twice"),
    (changed(v2(), 1, "schemas", 1, "fields", 1, "id"), "schemas[1].fields[1].id is 1: field id 1 is given twice"),
    (changed(v2(), 1, "schemas", 1, "fields", 3, "type", "element-id"), "type.element-id is 1: field id 1 is given"),
    (changed(v2(), "id", "schemas", 1, "fields", 1, "name"), "schemas[1] is {"),
    (changed(v2(), "money", "schemas", 1, "fields", 1, "type"), "fields[1].type is 'money': not a type"),
    (changed(v2(), "decimal(39,2)", "schemas", 1, "fields", 1, "type"), "fields[1].type is 'decimal(39,2)'"),
    (changed(v2(), "decimal(3,4)", "schemas", 1, "fields", 1, "type"), "fields[1].type is 'decimal(3,4)'"),
    (changed(v2(), nested(150), "schemas", 1, "fields", 1, "type"), "nested too deeply"),
    (changed(v2(), nested(250), "schemas", 1, "fields", 1, "type"), "nested too deeply"),
    (changed(v2(), [2], "schemas", 1, "identifier-field-ids"), "schemas[1] is {"),
    (
        changed(v3(), "1,5", "schemas", 1, "fields", 11, "initial-default"),
        "initial-default is '1,5': not a valid default",
    ),
    (changed(v3(), 7, "schemas", 1, "fields", 11, "initial-default"), "initial-default is 7: not a valid default"),
    (changed(v2(), 9, "default-spec-id"), "default-spec-id is 9: partition-specs has only [0, 1]"),
    (changed(v2(), 0, "partition-specs", 1, "spec-id"), "partition-specs[1] is {"),
    (changed(v2(), "bucket[0]", "partition-specs", 1, "fields", 0, "transform"), "transform is 'bucket[0]'"),
    (changed(v2(), 1000, "partition-specs", 1, "fields", 1, "field-id"), "partition field id 1000 is given twice"),
    (
        without(v2(), "partition-specs", 1, "fields", 1, "field-id"),
        "some of its fields have a field-id and some do not",
    ),
    (without(v2(), "partition-specs", 1, "fields", 1, "source-id"), "fields[1].source-id is None: it is required"),
    (changed(v2(), 9, "default-sort-order-id"), "default-sort-order-id is 9: sort-orders has only [3]"),
    (changed(v2(), "up", "sort-orders", 0, "fields", 0, "direction"), "direction is 'up': "),
    (changed(v2(), 1, "properties", "a"), "properties.a is 1: "),
    (changed(v2(), None, "properties"), "properties is None: "),
    (changed(v2(), 5, "current-snapshot-id"), "current-snapshot-id is 5: there is no such snapshot"),
    (changed(v2(), "5", "current-snapshot-id"), "current-snapshot-id is '5': "),
    (
        changed(v2(), 5, "snapshots", 0, "snapshot-id"),
        "refs.audit.snapshot-id is 3051729675574597004: there is no such",
    ),
    (changed(v2(), True, "snapshots", 0, "snapshot-id"), "snapshots[0].snapshot-id is True: "),
    (without(v2(), "snapshots", 0, "timestamp-ms"), "snapshots[0].timestamp-ms is None: it is required"),
    (without(v2(), "snapshots", 0, "manifest-list"), "snapshots[0] is {"),
    (changed(v2(), {"a": 1}, "snapshots", 0, "summary"), "snapshots[0].summary is "),
    (changed(v2(), {"operation": ["append"]}, "snapshots", 0, "summary"), "snapshots[0].summary is "),
    (changed(v2(), [], "snapshots", 0, "summary"), "snapshots[0].summary is []: "),
    (
        changed(v2(), "b/1.avro", "snapshots", 0, "manifest-list"),
        "snapshots[0].manifest-list is 'b/1.avro': a location",
    ),
    (changed(v2(), 1 << 63, "snapshots", 0, "timestamp-ms"), "snapshots[0].timestamp-ms is 9223372036854775808: "),
    (changed(v2(), 1 << 31, "snapshots", 0, "schema-id"), "snapshots[0].schema-id is 2147483648: "),
    (
        changed(v2(), 3055729675574597004, "snapshots", 0, "snapshot-id"),
        "snapshots[1].snapshot-id is 30557296755745970",
    ),
    (
        changed(v2(), 35, "snapshots", 1, "sequence-number"),
        "snapshots[1].sequence-number is 35: last-sequence-number is",
    ),
    (changed(v1(), 1, "snapshots", 1, "sequence-number"), "snapshots[1].sequence-number is 1: last-sequence-number is"),
    (changed(v2(), 3051729675574597004, "refs", "main", "snapshot-id"), "refs.main.snapshot-id is 30517296755745970"),
    (changed(v2(), "twig", "refs", "audit", "type"), "refs.audit.type is 'twig': "),
    (changed(v2(), 3, "refs", "audit", "min-snapshots-to-keep"), "refs is {"),
    (changed(v2(), [1], "refs"), "refs is [1]: "),
    (without(v1(), "schema"), "schema is None: it is required"),
    (without(v1(), "partition-spec"), "partition-spec is None: it is required"),
]


@pytest.mark.parametrize(("document", "problem"), BAD_FIELDS, ids=[problem[:60] for _, problem in BAD_FIELDS])
def test_bad_metadata(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parse(document)
    message = str(caught.value)
    assert message.startswith(f"{LOCATION}: ")
    assert problem in message
    assert len(message) < 1000


def test_a_newer_format_version() -> None:
    with pytest.raises(
        UnsupportedError, match=r"00003-aaaa\.metadata\.json: format-version is 5: the newest known is 4"
    ):
        parse(v4() | {"format-version": 5})


@pytest.mark.parametrize("make", [v1, v2, v3])
def test_every_truncation_is_one_error(make: Callable[[], dict[str, Any]]) -> None:
    data = encoded(make())
    for length in range(0, len(data) - 1, 97):
        with pytest.raises(CorruptFileError):
            parse_table_metadata(data[:length], LOCATION)


def many_snapshots(count: int) -> dict[str, Any]:
    summary = {"operation": "append"} | {f"total-of-key-{key}": "1234567" for key in range(14)}
    snapshots = [
        {
            "snapshot-id": i,
            "parent-snapshot-id": i - 1,
            "sequence-number": i,
            "timestamp-ms": 1700000000000 + i,
            "manifest-list": f"s3://bucket/warehouse/db/table/metadata/snap-{i}-1-0d3b7f6c-1234-4321-9999.avro",
            "schema-id": 0,
            "summary": summary,
        }
        for i in range(1, count + 1)
    ]
    log = [{"snapshot-id": i, "timestamp-ms": 1700000000000 + i} for i in range(1, count + 1)]
    return v2() | {
        "last-sequence-number": count,
        "current-snapshot-id": count,
        "snapshots": snapshots,
        "snapshot-log": log,
        "refs": {"main": {"snapshot-id": count, "type": "branch"}},
    }


def test_100_000_snapshots_take_seconds() -> None:
    data = encoded(many_snapshots(100_000))
    start = time.process_time()
    metadata = parse_table_metadata(data, LOCATION)
    assert all(metadata.snapshot_by_id(i) is not None for i in range(1, 100_001))
    assert time.process_time() - start < 30  # 4 s


def test_many_snapshots_take_little_more_memory_than_their_text() -> None:
    """Their models would take several times as much. A commit needs no model of an earlier snapshot."""
    document = many_snapshots(5_001)
    new = Snapshot.model_validate(document["snapshots"].pop())
    data = encoded(document | {"current-snapshot-id": 5_000, "refs": {}})
    tracemalloc.start()
    metadata = parse_table_metadata(data, LOCATION)
    snapshots = metadata.snapshots + [new]  # type: ignore[operator]  # noqa: RUF005  as pyiceberg's updates do
    after = metadata.model_copy(update={"snapshots": snapshots})
    text = serialize_table_metadata(after)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held - len(text) < 2.5 * len(data)
    assert json.loads(text)["snapshots"] == many_snapshots(5_001)["snapshots"]
    assert (after.snapshot_by_id(5_001), metadata.snapshot_by_id(5_001)) == (new, None)


def test_the_text_of_snapshots_is_written_again() -> None:
    spelling = '"manifest-list" :"s3://a/b/1.avro", "x-number": 1.50'
    text = encoded(v2()).decode().replace('"manifest-list": "s3://a/b/1.avro"', spelling)
    metadata = parse_table_metadata(text.encode(), LOCATION)
    changed = metadata.model_copy(update={"properties": {"a": "b"}})
    for version in (metadata, changed, pickle.loads(pickle.dumps(metadata))):
        assert spelling in serialize_table_metadata(version)
        assert version.snapshots == metadata.snapshots == [*metadata.snapshots]
    assert metadata.snapshots[0].model_extra == {"x-number": 1.5}


def test_an_unknown_field_may_have_the_name_of_the_snapshots() -> None:
    document = changed(v2(), [], "schemas", 0, "snapshots")
    assert json.loads(serialize_table_metadata(parse(document)))["snapshots"] == document["snapshots"]


def with_parents(parents: dict[int, int]) -> TableMetadata:
    """Return metadata of three snapshots, whose parents are their predecessors unless `parents` names others."""
    metadata = many_snapshots(3)
    for snapshot in metadata["snapshots"]:
        snapshot["parent-snapshot-id"] = parents.get(snapshot["snapshot-id"], snapshot["parent-snapshot-id"])
    return parse_table_metadata(encoded(metadata), LOCATION)


def test_ancestors_end_with_the_oldest_snapshot_that_the_table_has() -> None:
    assert [snapshot.snapshot_id for snapshot in ancestors_of(with_parents({}), 3)] == [3, 2, 1]
    assert [snapshot.snapshot_id for snapshot in ancestors_of(with_parents({2: 77}), 3)] == [3, 2]
    assert [*ancestors_of(with_parents({}), None)] == [*ancestors_of(with_parents({}), 77)] == []


@pytest.mark.parametrize(("parents", "again"), [({3: 3}, 3), ({1: 3}, 3), ({1: 2}, 2)])
def test_a_snapshot_that_is_its_own_ancestor(parents: dict[int, int], again: int) -> None:
    metadata = with_parents(parents)
    says = f"parent-snapshot-id is {again}: the snapshot is its own ancestor"
    with pytest.raises(CorruptFileError, match=says):
        list(ancestors_of(metadata, 3))
    with pytest.raises(CorruptFileError, match=says):
        choose_expired(metadata, ExpiryRules(now_ms=0))


def test_metadata_in_use_is_not_parsed_again() -> None:
    metadata, text = parse(v2()), encoded(v2())
    assert parse_table_metadata(text, LOCATION) is metadata
    assert parse_table_metadata(text, f"{LOCATION}.json") is not metadata
    assert parse(v2() | {"last-updated-ms": 7}).last_updated_ms == 7
