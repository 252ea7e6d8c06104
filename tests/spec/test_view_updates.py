"""Changes of view metadata, by examples and against a small model of Iceberg's rules."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.spec.view_metadata import (
    OtherRepresentation,
    SQLViewRepresentation,
    ViewMetadata,
    ViewVersion,
    new_view,
    parse_view_metadata,
    replace_view,
    roll_back_view,
    serialize_view_metadata,
    set_view_properties,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REQUIRED = Schema(NestedField(7, "id", LongType(), required=True), identifier_field_ids=[7])
SCHEMAS = (
    Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType(), doc="of the user")),
    Schema(NestedField(1, "id", LongType())),
    REQUIRED,
)
LOCATION = "file:///warehouse/db/v"


def version(timestamp_ms: int, **queries: str) -> ViewVersion:
    sql = tuple(SQLViewRepresentation(query, dialect) for dialect, query in queries.items())
    return ViewVersion(0, 0, timestamp_ms, {"engine-name": "test"}, sql, ("db",))


def view(properties: Mapping[str, str] | None = None, **queries: str) -> ViewMetadata:
    return new_view(LOCATION, SCHEMAS[0], version(1, **queries or {"spark": "select 1"}), properties or {})


def log(metadata: ViewMetadata) -> list[tuple[int, int]]:
    return [(entry.timestamp_ms, entry.version_id) for entry in metadata.version_log]


def test_a_new_view() -> None:
    metadata = view({"comment": "c"}, spark="select 1", trino="select 2")
    assert metadata.view_uuid is not None
    assert (metadata.current_version_id, log(metadata)) == (1, [(1, 1)])
    assert (metadata.current_version().schema_id, metadata.schema().fields) == (0, SCHEMAS[0].fields)
    assert parse_view_metadata(serialize_view_metadata(metadata).encode(), "v1") == metadata


def test_equal_versions_and_schemas_keep_their_ids() -> None:
    metadata = replace_view(view(), SCHEMAS[1], version(2, spark="select 2"))
    assert (metadata.current_version_id, metadata.current_version().schema_id) == (2, 1)
    metadata = replace_view(metadata, SCHEMAS[0], version(3, spark="select 1"), {"a": "b"})
    assert (metadata.current_version_id, metadata.current_version().timestamp_ms) == (1, 1)
    assert (len(metadata.versions), len(metadata.schemas), metadata.properties) == (2, 2, {"a": "b"})
    assert log(metadata) == [(1, 1), (2, 2), (3, 1)]
    assert replace_view(metadata, SCHEMAS[0], version(4, spark="select 1")) == metadata


def test_any_difference_makes_another_version() -> None:
    metadata = view()
    first = version(2, spark="select 1")
    for other in (
        replace(first, summary={}),
        replace(first, default_namespace=("x",)),
        replace(first, default_catalog="x"),
        version(2, spark="select 1 "),
        version(2, spark="select 1", trino="select 1"),
    ):
        assert replace_view(metadata, SCHEMAS[0], other).current_version_id == 2
    for schema in (SCHEMAS[1], Schema(*REQUIRED.fields)):
        assert (
            replace_view(
                new_view(LOCATION, REQUIRED, version(1, spark="select 1"), {}), schema, first
            ).current_version_id
            == 2
        )


def test_rollback() -> None:
    metadata = roll_back_view(replace_view(view(), SCHEMAS[1], version(2, spark="select 2")), 1, 9)
    assert (metadata.current_version_id, log(metadata)) == (1, [(1, 1), (2, 2), (9, 1)])
    assert roll_back_view(metadata, 1, 10) == metadata
    with pytest.raises(ValidationError, match=rf"{LOCATION}: there is no version 3, only \[1, 2\]"):
        roll_back_view(metadata, 3, 10)


def test_dialects_are_not_lost_by_accident() -> None:
    metadata = view(spark="select 1", Trino="select 1")
    with pytest.raises(ValidationError, match=r"lacks the dialects \['trino'\].*replace.drop-dialect.allowed"):
        replace_view(metadata, SCHEMAS[0], version(2, spark="select 2"))
    allowed = {"replace.drop-dialect.allowed": "True"}
    assert replace_view(metadata, SCHEMAS[0], version(2, spark="select 2"), allowed).current_version_id == 2
    more = replace_view(metadata, SCHEMAS[0], version(2, SPARK="x", trino="y", duckdb="z"))
    with pytest.raises(ValidationError, match="duckdb"):
        roll_back_view(more, 1, 3)


def test_invalid_changes() -> None:
    with pytest.raises(ValidationError, match="a view needs a query"):
        new_view(LOCATION, SCHEMAS[0], version(1), {})
    with pytest.raises(ValidationError, match="two queries have the dialect 'spark'"):
        new_view(LOCATION, SCHEMAS[0], version(1, spark="a", SPARK="b"), {})
    for value in ("0", "-1", "ten"):
        with pytest.raises(ValidationError, match=f"version.history.num-entries is '{value}'"):
            set_view_properties(view(), {"version.history.num-entries": value})
    plan = replace(version(1, spark="a"), representations=(OtherRepresentation("ir", {}),))
    with pytest.raises(UnsupportedError, match="a representation of type 'ir' can't be written"):
        replace_view(view(), SCHEMAS[0], plan)


def test_invalid_retries_are_refused_wherever_properties_are_set() -> None:
    retries = {"commit.retry.num-retries": "many"}
    changes: list[Callable[[], ViewMetadata]] = [
        lambda: view(retries),
        lambda: replace_view(view(), SCHEMAS[0], version(2, spark="select 2"), retries),
        lambda: set_view_properties(view(), retries),
    ]
    for change in changes:
        with pytest.raises(ValidationError, match=r"property commit.retry.num-retries is 'many'"):
            change()


def test_old_versions_expire() -> None:
    metadata = view({"version.history.num-entries": "2"})
    for n in (2, 3, 4):
        metadata = replace_view(metadata, SCHEMAS[0], version(n, spark=f"select {n}"))
    assert [known.version_id for known in metadata.versions] == [3, 4]
    assert log(metadata) == [(3, 3), (4, 4)]
    metadata = roll_back_view(metadata, 3, 5)
    metadata = set_view_properties(metadata, {"version.history.num-entries": "1"}, ["absent"])
    assert [known.version_id for known in metadata.versions] == [3]
    assert log(metadata) == [(5, 3)]
    # Ids are not used again while a later version is known, and the default keeps ten.
    metadata = set_view_properties(metadata, {}, ["version.history.num-entries"])
    for n in range(20):
        metadata = replace_view(metadata, SCHEMAS[0], version(n, spark=f"select {n} again"))
    assert [known.version_id for known in metadata.versions] == list(range(14, 24))


@dataclass
class Model:
    """Return a view's history: its current versions with their times, and the definitions by their ids."""

    definitions: dict[int, tuple[str, int]] = field(default_factory=dict)
    log: list[tuple[int, int]] = field(default_factory=list)
    current: int = 0

    def make_current(self, version_id: int, time: int, keep: int) -> None:
        if version_id != self.current:
            self.log.append((time, version_id))
            self.current = version_id
        while len(self.definitions) > keep:
            del self.definitions[min(self.definitions.keys() - {self.current})]
            while {logged for _, logged in self.log} - self.definitions.keys():
                self.log.pop(0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), max_size=25), st.integers(1, 4))
def test_any_changes(changes: list[tuple[int, int, int]], keep: int) -> None:
    metadata = new_view(LOCATION, SCHEMAS[0], version(0, spark="q0"), {"version.history.num-entries": str(keep)})
    model = Model({1: ("q0", 0)})
    model.make_current(1, 0, keep)
    for time, (query, schema, kind) in enumerate(changes, 1):
        if kind == 0:
            version_id = sorted(model.definitions)[query % len(model.definitions)]
            metadata = roll_back_view(metadata, version_id, time)
        else:
            definition = (f"q{query}", schema)
            ids = [known for known, defined in model.definitions.items() if defined == definition]
            version_id = ids[0] if ids else max(model.definitions) + 1
            model.definitions[version_id] = definition
            metadata = replace_view(metadata, SCHEMAS[schema], version(time, spark=f"q{query}"))
        model.make_current(version_id, time, keep)
        assert log(metadata) == model.log
        assert described(metadata) == model.definitions
        assert metadata.current_version_id == model.current
    document: Any = json.loads(serialize_view_metadata(metadata))
    assert parse_view_metadata(json.dumps(document).encode(), "v") == metadata


def described(metadata: ViewMetadata) -> dict[int, tuple[str, int]]:
    fields = [schema.fields for schema in SCHEMAS]
    return {
        known.version_id: (known.sql_representations[0].sql, fields.index(metadata.schema(known).fields))
        for known in metadata.versions
    }
