"""Changes of metadata as updates and requirements of the REST protocol."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    TableRequirement,
)

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.spec.expiry import without_expired
from sparkmeta.spec.metadata import TableMetadata, parse_table_metadata, serialize_table_metadata
from sparkmeta.spec.updates import changed_parts, has_changes, requirements_of, update_table_metadata, updates_of
from sparkmeta.spec.upgrade import upgrade_metadata
from tests.spec.table_metadata import LOCATION, VERSIONS, encoded
from tests.spec.test_updates import FIRST, NEW_FIELD, UPDATES, added, branch, expired, snapshot

NAMES = sorted((UPDATES.keys() - {"add-schema"}) | {"evolve", "append", "remove-snapshots"})
WITHOUT_REQUIREMENT = {
    *("set-location", "set-properties", "remove-properties", "statistics", "partition-statistics"),
    *("remove-snapshots", "add-sort-order"),
}


def applied(name: str, before: TableMetadata) -> TableMetadata:
    """Return the metadata after a change."""
    if name == "evolve":
        schema = Schema(*before.schema().fields, NEW_FIELD, schema_id=7)
        updates = [AddSchemaUpdate.model_validate({"schema": schema}), SetCurrentSchemaUpdate(schema_id=-1)]
    elif name == "append":
        number = 0 if before.format_version == 1 else 35
        new = snapshot(root_manifest=None, manifest_list="s3://list", sequence_number=number)
        updates = [added(new), branch("main", 99)]
    elif name == "remove-snapshots":
        return without_expired(before, expired(before, FIRST), None, before.last_updated_ms)
    else:
        updates = [UPDATES[name][0]]
    return update_table_metadata(before, updates)


def parse(version: int) -> TableMetadata:
    return parse_table_metadata(encoded(VERSIONS[version]()), LOCATION)


def executed(  # noqa: C901  a case for each action
    before: TableMetadata, updates: list[dict[str, Any]], after: TableMetadata
) -> TableMetadata:
    """Return the metadata that a catalog builds from updates; `after` contains the values that it derives itself."""
    derived = {"current-snapshot-id", "last-column-id", "last-partition-id", "last-sequence-number", "next-row-id"}
    document = json.loads(serialize_table_metadata(before.model_copy(update={"location": before.location})))
    document |= {key: value for key, value in json.loads(serialize_table_metadata(after)).items() if key in derived}
    for update in updates:
        action, rest = update["action"], {key: value for key, value in update.items() if key != "action"}
        match action.split("-", 1):
            case ["add", "schema"]:
                assert rest.pop("last-column-id") == after.last_column_id
                document["schemas"].append(rest["schema"])
            case ["add", what]:
                document[{"spec": "partition-specs"}.get(what, f"{what}s")].append(*rest.values())
            case ["set", "properties"]:
                document["properties"] |= rest["updates"]
            case ["remove", "properties"]:
                document["properties"] = {k: v for k, v in document["properties"].items() if k not in rest["removals"]}
            case ["set", "snapshot-ref"]:
                document["refs"][rest.pop("ref-name")] = rest
            case ["remove", "snapshot-ref"]:
                del document["refs"][rest["ref-name"]]
            case ["remove", "snapshots"]:
                document["snapshots"] = [
                    s for s in document["snapshots"] if s["snapshot-id"] not in rest["snapshot-ids"]
                ]
            case [verb, ("statistics" | "partition-statistics") as what]:
                others = [file for file in document.get(what, []) if file["snapshot-id"] != rest["snapshot-id"]]
                document[what] = others + ([rest[what]] if verb == "set" else [])
            case ["set", "current-schema" | "default-spec" as what]:
                listed, key = ("schemas", "schema-id") if "schema" in what else ("partition-specs", "spec-id")
                selected = document[listed][-1][key] if rest[key] == -1 else rest[key]
                document[f"{what}-id"] = selected
            case _:
                assert action == "set-location"
                document |= rest
    return parse_table_metadata(json.dumps(document).encode(), LOCATION)


@given(version=st.sampled_from([1, 2, 3]), names=st.lists(st.sampled_from(NAMES), max_size=5, unique=True))
def test_updates_make_the_same_metadata(version: int, names: list[str]) -> None:
    before = parse(version)
    after = before
    for name in names:
        with suppress(ValidationError):  # of one that does not fit the table
            after = applied(name, after)
    changes = changed_parts(before, after)
    assert changed_parts(after, executed(before, updates_of(changes, after), after)) == {}
    assert has_changes(after, changes)
    assert has_changes(before, changes) == (not changes)
    for requirement in TypeAdapter(list[TableRequirement]).validate_python(requirements_of(before, changes)):
        requirement.validate(before)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [(98, 99), (99, 98)])
def test_snapshots_are_added_in_their_order(ids: tuple[int, int]) -> None:
    before = after = parse(2)
    for number, snapshot_id in enumerate(ids, 35):
        parts = {
            "snapshot_id": snapshot_id,
            "sequence_number": number,
            "root_manifest": None,
            "manifest_list": "s3://l",
        }
        after = update_table_metadata(after, [added(snapshot(**parts)), branch("main", snapshot_id)])
    updates = updates_of(changed_parts(before, after), after)
    assert [update["snapshot"]["snapshot-id"] for update in updates if "snapshot" in update] == [*ids]


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_REQUIREMENT))
def test_requirements_are_of_what_changes(name: str) -> None:
    before = parse(3)
    required = requirements_of(before, changed_parts(before, applied(name, before)))
    assert len(required) >= 2, "of the UUID, and of what changes"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sort_orders": []}, "sort-orders can't be removed"),
    ],
)
def test_changes_without_an_update_in_the_protocol(change: dict[str, Any], problem: str) -> None:
    before = parse(3)
    after = before.model_copy(update=change)
    with pytest.raises(UnsupportedError, match=problem):
        updates_of(changed_parts(before, after), after)


def test_encryption_keys() -> None:
    before = parse(3)
    (old,) = before.encryption_keys  # type: ignore[union-attr]
    new = {"key-id": "k2", "encrypted-key-metadata": "AAAA", "encrypted-by-id": "k1"}
    changes = changed_parts(before, before.model_copy(update={"encryption_keys": [old, new]}))
    assert updates_of(changes, before) == [{"action": "add-encryption-key", "encryption-key": new}]
    changes = changed_parts(before, before.model_copy(update={"encryption_keys": []}))
    assert updates_of(changes, before) == [{"action": "remove-encryption-key", "key-id": "k1"}]


def test_a_tree() -> None:
    before = parse(3)
    after = upgrade_metadata(before)
    with pytest.raises(UnsupportedError, match=r"no update that changes (expressions|tree-layout-revision)"):
        updates_of(changed_parts(before, after), after)
