"""Changes of table metadata by pyiceberg's update models: what they change, and that nothing else is."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import update as iceberg
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField, StringType

from sparkmeta.errors import SparkmetaError, ValidationError
from sparkmeta.spec.expiry import Expired, without_expired
from sparkmeta.spec.metadata import Snapshot, TableMetadata, parse_table_metadata, serialize_table_metadata
from sparkmeta.spec.metadata_model import PartitionStatisticsFile, StatisticsFile
from sparkmeta.spec.transforms import UnknownTransform
from sparkmeta.spec.updates import UpdateSpec, update_table_metadata
from sparkmeta.spec.upgrade import upgrade_metadata
from tests.spec.table_metadata import LOCATION, VERSIONS, encoded, v1, v2, v3, v4

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = 3055729675574597004
FIRST = 3051729675574597004


def parse(document: dict[str, Any]) -> TableMetadata:
    return parse_table_metadata(encoded(document), LOCATION)


def tree() -> TableMetadata:
    """A V4 table of ours."""
    return upgrade_metadata(parse(v3()))


def written(metadata: TableMetadata) -> Any:
    text = serialize_table_metadata(metadata)
    document = json.loads(text)
    assert json.loads(serialize_table_metadata(parse_table_metadata(text.encode(), LOCATION))) == document
    return document


def snapshot(snapshot_id: int = 99, **changes: Any) -> Snapshot:
    known = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": HEAD,
        "sequence-number": 35,
        "timestamp-ms": 1800000000000,
        "root-manifest": "s3://r",
        "first-row-id": 1375,
        "added-rows": 5,
        "summary": {"operation": "append"},
        "x-snapshot": [1],
    }
    return Snapshot.model_validate(known | {key.replace("_", "-"): value for key, value in changes.items()})


def added(snapshot: Snapshot) -> Any:
    return iceberg.AddSnapshotUpdate(snapshot=snapshot)


def branch(name: str, snapshot_id: int, **retention: int) -> Any:
    return iceberg.SetSnapshotRefUpdate.model_validate(
        {"action": "set-snapshot-ref", "ref-name": name, "type": "branch", "snapshot-id": snapshot_id, **retention}
    )


def expired(metadata: TableMetadata, snapshot_id: int) -> Expired:
    """Return the expiry of a snapshot, and of the branches and tags at it."""
    refs = tuple(name for name, ref in metadata.refs.items() if ref.snapshot_id == snapshot_id)
    return Expired(tuple(each for each in metadata.snapshots if each.snapshot_id == snapshot_id), refs)


def changes(before: TableMetadata, after: TableMetadata) -> dict[str, Any]:
    """Return the keys whose values differ, with the new values, except the time of the change."""
    old, new = written(before), written(after)
    assert old.keys() <= new.keys()
    return {key: new[key] for key in new if new[key] != old.get(key) and key != "last-updated-ms"}


def test_a_commit_changes_what_it_says() -> None:
    before = tree()
    new = snapshot()
    after = update_table_metadata(before, [added(new), branch("main", 99)])
    old = written(before)
    assert changes(before, after) == {
        "current-snapshot-id": 99,
        "last-sequence-number": 35,
        "next-row-id": 1380,
        "snapshots": [*old["snapshots"], new.model_dump(by_alias=True, exclude_unset=True)],
        "snapshot-log": [*old["snapshot-log"], {"snapshot-id": 99, "timestamp-ms": 1800000000000}],
        "refs": old["refs"] | {"main": {"snapshot-id": 99, "type": "branch", "x-ref": 1}},
    }
    assert after.last_updated_ms == 1800000000000
    assert written(before) == old


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_share_the_parts_that_stay(version: int) -> None:
    """A copy of 10,000 snapshots takes most of a second."""
    before = parse(VERSIONS[version]())
    after = update_table_metadata(before, [branch("b", before.snapshots[0].snapshot_id)])
    for part in ("schemas", "partition_specs", "sort_orders", "stored_snapshots", "snapshot_log", "statistics"):
        assert list(map(id, getattr(after, part))) == list(map(id, getattr(before, part))), part


PATHS = {"statistics-path": "s3://s", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}
MORE_PATHS = {"statistics-path": "s3://p", "file-size-in-bytes": 1}
NEW_FIELD = NestedField(99, "new", StringType(), required=False)
UPDATES: dict[str, tuple[Any, set[str]]] = {
    "set-properties": (iceberg.SetPropertiesUpdate(updates={"a": "b"}), {"properties"}),
    "remove-properties": (iceberg.RemovePropertiesUpdate(removals=["read.split.target.size"]), {"properties"}),
    "set-location": (iceberg.SetLocationUpdate(location="s3://elsewhere"), {"location"}),
    "add-schema": (
        iceberg.AddSchemaUpdate.model_validate({"schema": Schema(NEW_FIELD, schema_id=7)}),
        {"schemas", "last-column-id"},
    ),
    "add-spec": (
        iceberg.AddPartitionSpecUpdate(
            spec=PartitionSpec(PartitionField(1, 1007, IdentityTransform(), "i"), spec_id=7)
        ),
        {"partition-specs", "last-partition-id"},
    ),
    "set-default-spec": (iceberg.SetDefaultSpecUpdate.model_validate({"spec-id": 0}), {"default-spec-id"}),
    "add-sort-order": (
        iceberg.AddSortOrderUpdate.model_validate({"sort-order": SortOrder(order_id=9)}),
        {"sort-orders"},
    ),
    "tag": (
        iceberg.SetSnapshotRefUpdate.model_validate({"ref-name": "t", "type": "tag", "snapshot-id": FIRST}),
        {"refs"},
    ),
    "remove-ref": (iceberg.RemoveSnapshotRefUpdate.model_validate({"ref-name": "audit"}), {"refs"}),
    "statistics": (
        iceberg.SetStatisticsUpdate.model_validate(
            {"statistics": StatisticsFile.model_validate({"snapshot-id": FIRST} | PATHS)}
        ),
        {"statistics"},
    ),
    "partition-statistics": (
        iceberg.SetPartitionStatisticsUpdate.model_validate(
            {"partition-statistics": PartitionStatisticsFile.model_validate({"snapshot-id": FIRST} | MORE_PATHS)}
        ),
        {"partition-statistics"},
    ),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("version", [2, 3, 4, "tree"])
def test_each_update_changes_its_part_alone(name: str, version: Any) -> None:
    before = tree() if version == "tree" else update_table_metadata(parse(VERSIONS[version]()), [])
    update, keys = UPDATES[name]
    after = changes(before, update_table_metadata(before, [update]))
    if version == "tree" and name == "add-spec":
        keys = keys | {"expressions", "last-column-id"}
    assert after.keys() == keys
    for key in keys & {"schemas", "partition-specs", "sort-orders", "statistics", "partition-statistics"}:
        assert after[key][:-1] == written(before)[key]


def test_a_new_spec_of_a_tree_has_expressions() -> None:
    fields = (PartitionField(1, 1000, BucketTransform(16), "b"), PartitionField(2, 1007, DayTransform(), "d"))
    update = iceberg.AddPartitionSpecUpdate(spec=PartitionSpec(*fields, spec_id=7))
    after = update_table_metadata(tree(), [update])
    assert written(after)["partition-specs"][-1] == {"spec-id": 7, "fields": [{"expr-id": 31}, {"expr-id": 34}]}
    assert after.last_column_id == 34
    updated = update_table_metadata(parse(v4()), [update])
    assert [field["source-id"] for field in written(updated)["partition-specs"][-1]["fields"]] == [1, 2]


def test_new_columns_are_numbered_above_expressions() -> None:
    before = tree()
    builder = UpdateSchema(SimpleNamespace(table_metadata=before))  # type: ignore[arg-type]
    updates, _ = builder.add_column("new", LongType())._commit()
    after = update_table_metadata(before, updates)
    assert after.schema().find_field("new").field_id == before.last_column_id + 1 == 34
    clash = Schema(NestedField(31, "new", LongType(), required=False), schema_id=7)
    with pytest.raises(ValidationError, match=r"expressions\[0\].expr-id is 31: a column has the same id"):
        update_table_metadata(before, [iceberg.AddSchemaUpdate.model_validate({"schema": clash})])


def test_specs_are_built_with_the_ids_of_earlier_fields() -> None:
    for before in (parse(v2()), parse(v3()), parse(v4()), tree()):
        emptied = update_table_metadata(before, [iceberg.SetDefaultSpecUpdate.model_validate({"spec-id": 0})])
        builder = UpdateSpec(SimpleNamespace(table_metadata=emptied))  # type: ignore[arg-type]
        builder.add_field("id", BucketTransform(16), "b").add_field("id", BucketTransform(8), "b8")
        updates, _ = builder.add_field("at", "day", "at_day")._commit()
        after = update_table_metadata(emptied, updates)
        first_new = max(spec.last_assigned_field_id for spec in before.partition_specs) + 1
        assert [field.field_id for field in after.spec().fields] == [1000, first_new, first_new + 1]
        assert after.default_spec_id == 2
    builder = UpdateSpec(SimpleNamespace(table_metadata=emptied))  # type: ignore[arg-type]
    assert builder.add_field("id", BucketTransform(16), "c")._apply().fields[0].field_id == first_new
    assert UpdateSpec(builder._transaction).add_field("id", BucketTransform(16))._apply().fields[0].name == "b"


@pytest.mark.parametrize("before", [update_table_metadata(parse(v1()), []), parse(v2()), parse(v3()), tree()])
@pytest.mark.parametrize(("name", "problem"), [("p", "there are several of this name"), ("", "its name is empty")])
def test_partition_fields_have_names_of_their_own(before: TableMetadata, name: str, problem: str) -> None:
    fields = PartitionField(1, 1007, IdentityTransform(), "p"), PartitionField(1, 1008, BucketTransform(4), name)
    update = iceberg.AddPartitionSpecUpdate(spec=PartitionSpec(*fields, spec_id=7))
    with pytest.raises(ValidationError, match=rf"^s3://bucket/db/events: partition field '{name}': {problem}"):
        update_table_metadata(before, [update])


def names_after(before: TableMetadata, change: Callable[[UpdateSpec], UpdateSpec]) -> list[tuple[str, str]]:
    """Return the names and transforms of the default partition spec after a change."""
    builder = change(UpdateSpec(SimpleNamespace(table_metadata=before)))  # type: ignore[arg-type]
    spec = update_table_metadata(before, builder._commit()[0]).spec()
    return [(field.name, str(field.transform)) for field in spec.fields]


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.rename_field("i", "b"),
        lambda spec: spec.remove_field("i").add_field("id", IdentityTransform(), "b"),
    ],
)
def test_a_void_field_of_version_1_loses_its_name(change: Callable[[UpdateSpec], UpdateSpec]) -> None:
    fields = PartitionField(1, 1001, VoidTransform(), "b"), PartitionField(1, 1002, IdentityTransform(), "i")
    added = iceberg.AddPartitionSpecUpdate(spec=PartitionSpec(*fields, spec_id=7))
    before = update_table_metadata(parse(v1()), [added, iceberg.SetDefaultSpecUpdate.model_validate({"spec-id": 7})])
    assert names_after(before, change) == [("b_1001", "void"), ("b", "identity")]


def test_a_partition_field_is_not_renamed_to_nothing() -> None:
    builder = UpdateSpec(SimpleNamespace(table_metadata=parse(v3())))  # type: ignore[arg-type]
    name = parse(v3()).spec().fields[0].name
    with pytest.raises(ValidationError, match=f"partition field {name} can't have an empty name"):
        builder.rename_field(name, "")


@pytest.mark.parametrize("before", [parse(v3()), parse(v4()), tree()])
def test_a_field_of_several_columns_keeps_them(before: TableMetadata) -> None:
    builder = UpdateSpec(SimpleNamespace(table_metadata=before))  # type: ignore[arg-type]
    updates, _ = builder.add_field("at", "day", "at_day").rename_field("m", "mm")._commit()
    after = update_table_metadata(before, updates)
    entries = [field for field in after.spec().fields if isinstance(field.transform, UnknownTransform)]
    assert [field.name for field in entries] == ["z", "mm"]
    document = written(after)
    written_field = document["partition-specs"][-1]["fields"][2]
    if "expr-id" in written_field:
        named = {expression["expr-id"]: expression for expression in document["expressions"]}
        written_field = named[written_field["expr-id"]]["expr"]
        assert len(document["expressions"]) == 5  # "mm" and "at_day" are new
    assert (written_field["source-ids"], written_field["name"]) == ([1, 2], "mm")


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"sequence_number": 34}, "snapshot 99 has sequence number 34, and the table's last is 34"),
        ({"sequence_number": None}, "snapshot 99 has sequence number 0, and the table's last is 34"),
        ({"first_row_id": 1374}, "snapshot 99 has first-row-id 1374, and the table's next-row-id is 1375"),
        ({"first_row_id": None}, "snapshot 99 has first-row-id None"),
        ({"added_rows": None}, "snapshot 99 has first-row-id 1375 and added-rows None"),
        ({"added_rows": -1}, "snapshot 99 has first-row-id 1375 and added-rows -1"),
        ({"snapshot_id": HEAD}, f"Snapshot with id {HEAD} already exists"),
    ],
)
@pytest.mark.parametrize("before", [parse(v3()), parse(v4()), tree()])
def test_counters_do_not_go_back(before: TableMetadata, bad: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=f"s3://bucket/db/events: {problem}"):
        update_table_metadata(before, [added(snapshot(**bad))])


def test_each_snapshot_goes_on_from_the_one_before() -> None:
    second = snapshot(100, sequence_number=36, first_row_id=1390, added_rows=0)
    after = update_table_metadata(tree(), [added(snapshot()), added(second)])
    assert (after.last_sequence_number, after.next_row_id) == (36, 1390)  # type: ignore[union-attr]
    for wrong in ({"sequence_number": 35}, {"first_row_id": 1379}):
        with pytest.raises(ValidationError, match="snapshot 100 has"):
            update_table_metadata(
                tree(),
                [added(snapshot()), added(snapshot(100, **{"sequence_number": 36, "first_row_id": 1380} | wrong))],
            )


def test_a_snapshot_without_parent_may_be_older() -> None:
    orphan = snapshot(parent_snapshot_id=None, sequence_number=3)
    assert update_table_metadata(tree(), [added(orphan)]).last_sequence_number == 34
    v2_orphan = snapshot(parent_snapshot_id=None, sequence_number=3, first_row_id=None, added_rows=None)
    after = update_table_metadata(parse(v2()), [added(v2_orphan)])
    assert after.last_sequence_number == 34
    assert "next-row-id" not in written(after)


@pytest.mark.parametrize("version", [1, 2])
def test_early_versions_have_fewer_counters(version: int) -> None:
    before = update_table_metadata(parse(VERSIONS[version]()), [])
    parent, sequence = (7, 0) if version == 1 else (HEAD, 35)
    numbers: dict[str, Any] = {"sequence_number": sequence, "first_row_id": None, "added_rows": None}
    new = snapshot(parent_snapshot_id=parent, manifest_list="s3://l", **numbers)
    updated = update_table_metadata(before, [added(new), branch("main", 99)])
    assert not [key for key in written(updated) if "_" in key]
    after = changes(before, updated)
    expected = {"current-snapshot-id", "snapshots", "snapshot-log", "refs"}
    assert after.keys() == expected | ({"last-sequence-number"} if version == 2 else set())


def test_only_what_was_current_is_in_the_log() -> None:
    second = snapshot(100, parent_snapshot_id=99, sequence_number=36, first_row_id=1380, timestamp_ms=1800000000001)
    updates = [added(snapshot()), branch("main", 99), added(second), branch("main", 100)]
    log = written(update_table_metadata(tree(), updates))["snapshot-log"]
    assert [entry["snapshot-id"] for entry in log] == [FIRST, HEAD, 100]
    staged = update_table_metadata(tree(), [added(snapshot()), branch("audit", 99)])
    assert staged.snapshot_log == tree().snapshot_log
    rolled_back = update_table_metadata(tree(), [branch("main", FIRST)])
    assert [entry.snapshot_id for entry in rolled_back.snapshot_log] == [FIRST, HEAD, FIRST]


def test_times_do_not_go_back() -> None:
    """The clock of an earlier writer was ahead, so that its snapshot is later than now."""
    ahead = 4_000_000_000_000
    before = update_table_metadata(tree(), [added(snapshot(timestamp_ms=ahead)), branch("main", 99)])
    tagged = update_table_metadata(before, [iceberg.SetPropertiesUpdate(updates={"a": "b"})])
    rolled_back = update_table_metadata(tagged, [branch("main", FIRST)])
    for after in (before, tagged, rolled_back):
        times = [entry.timestamp_ms for entry in after.snapshot_log]
        assert times == sorted({*times}), "time travel would find only the first snapshot of a time"
        assert after.last_updated_ms == times[-1] == ahead + (after is rolled_back)
    assert [entry.snapshot_id for entry in rolled_back.snapshot_log] == [FIRST, HEAD, 99, FIRST]


def test_retention_of_a_ref_is_what_the_update_says() -> None:
    after = written(update_table_metadata(tree(), [branch("main", FIRST, **{"min-snapshots-to-keep": 3})]))
    expected = {"snapshot-id": FIRST, "type": "branch", "min-snapshots-to-keep": 3, "x-ref": 1}
    assert after["refs"]["main"] == expected


def test_snapshots_that_expire_take_along_what_is_theirs() -> None:
    before = update_table_metadata(tree(), [added(snapshot()), branch("main", 99)])
    after = written(without_expired(before, expired(before, HEAD), None, 0))
    assert [(entry["snapshot-id"], entry.get("parent-snapshot-id")) for entry in after["snapshots"]] == [
        (FIRST, None),
        (99, HEAD),
    ]
    assert (after["statistics"], after["partition-statistics"]) == ([], [])
    assert [entry["snapshot-id"] for entry in after["snapshot-log"]] == [99]
    after = written(without_expired(before, expired(before, FIRST), None, 0))
    assert [entry["snapshot-id"] for entry in after["snapshot-log"]] == [HEAD, 99]
    assert after["refs"].keys() == {"main"}
    assert len(after["partition-statistics"]) == 1


def test_existing_specs_schemas_and_orders_are_not_added_again() -> None:
    before = update_table_metadata(tree(), [iceberg.AddPartitionSpecUpdate(spec=tree().spec())])
    assert len(before.partition_specs) == 2
    same: list[Any] = [
        iceberg.AddPartitionSpecUpdate(spec=before.spec()),
        iceberg.AddSchemaUpdate.model_validate({"schema": before.schema()}),
        iceberg.AddSortOrderUpdate.model_validate({"sort-order": before.sort_order()}),
    ]
    assert changes(before, update_table_metadata(before, same)) == {}
    other = Schema(NEW_FIELD, schema_id=before.current_schema_id)
    with pytest.raises(ValidationError, match="schemas already has a different item with id 1"):
        update_table_metadata(before, [iceberg.AddSchemaUpdate.model_validate({"schema": other})])


def test_models_of_pyiceberg_become_ours() -> None:
    after = update_table_metadata(tree(), [added(snapshot()), branch("main", 99), UPDATES["statistics"][0]])
    for models in (after.snapshots, after.snapshot_log, after.statistics, [*after.refs.values()]):
        assert {type(model).__module__ for model in models} == {"sparkmeta.spec.metadata_model"}


BAD: list[tuple[Any, type[SparkmetaError], str]] = [
    (iceberg.SetDefaultSpecUpdate.model_validate({"spec-id": 77}), ValidationError, "77"),
    (iceberg.SetDefaultSpecUpdate(), ValidationError, "no partition spec has been added"),
    (branch("b", 12345), ValidationError, "unknown snapshot 12345"),
    (
        iceberg.SetPropertiesUpdate(updates={"commit.status-check.max-wait-ms": "1s"}),
        ValidationError,
        "the table property commit.status-check.max-wait-ms is '1s': expected a whole number",
    ),
]


@pytest.mark.parametrize(("bad", "kind", "problem"), BAD)
def test_updates_that_do_not_fit(bad: Any, kind: type[SparkmetaError], problem: str) -> None:
    with pytest.raises(kind, match=rf"^s3://bucket/db/events: .*{problem}"):
        update_table_metadata(tree(), [bad])
