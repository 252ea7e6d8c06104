"""View metadata files: what is read, kept, written and refused."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.errors import CorruptFileError, NoSuchTableError, NoSuchViewError, UnsupportedError
from sparkmeta.spec.metadata import parse_table_metadata
from sparkmeta.spec.view_metadata import (
    OtherRepresentation,
    ViewMetadata,
    parse_view_metadata,
    serialize_view_metadata,
    set_view_properties,
)
from tests.spec.table_metadata import v2
from tests.spec.view_metadata import LOCATION, draft_example, example

if TYPE_CHECKING:
    from collections.abc import Callable


def parse(document: dict[str, Any]) -> ViewMetadata:
    return parse_view_metadata(json.dumps(document).encode(), LOCATION)


def written(metadata: ViewMetadata) -> Any:
    return json.loads(serialize_view_metadata(metadata))


@pytest.mark.parametrize("versions", [1, 2])
def test_the_example_of_the_spec(versions: int) -> None:
    document = example(versions)
    metadata = parse(document)
    assert written(metadata) == document
    assert written(parse_view_metadata(gzip.compress(json.dumps(document).encode()), LOCATION)) == document
    version = metadata.current_version()
    assert version.version_id == versions
    assert (version.default_catalog, version.default_namespace) == ("prod", ("default",))
    sql = version.sql_for("SPARK")
    assert sql is not None
    assert ("prod.default.events" in sql.sql) == (versions == 2)
    assert version.sql_for("trino") is None
    assert [(field.name, field.doc) for field in metadata.schema().fields] == [
        ("event_count", "Count of events"),
        ("event_date", None),
    ]


@pytest.mark.parametrize("versions", [1, 2])
def test_the_example_of_the_first_draft(versions: int) -> None:
    document = draft_example(versions)
    metadata = parse(document)
    assert metadata.view_uuid is None
    version = metadata.current_version()
    assert (version.schema_id, version.default_catalog, version.default_namespace) == (
        versions,
        "iceberg",
        ("anorwood",),
    )
    assert version.summary["operation"] == ("create", "replace")[versions - 1]
    assert version.unknown["parent-version-id"] == (-1, 1)[versions - 1]
    assert [field.name for field in metadata.schema().fields] == (["c1", "c2"], ["my_cnt"])[versions - 1]
    # A commit writes the form of the spec, with everything that the draft had.
    new = written(set_view_properties(metadata, {"a": "b"}))
    assert new.pop("view-uuid")
    assert "current-schema-id" not in new
    for known in new["versions"]:
        assert known.pop("schema-id") == known["version-id"]
        assert (known.pop("default-catalog"), known.pop("default-namespace")) == ("iceberg", ["anorwood"])
    del document["current-schema-id"]
    document["properties"]["a"] = "b"
    assert new == document


def test_a_draft_without_the_optional_fields() -> None:
    document = draft_example(1)
    del document["schemas"], document["properties"]
    for key in ("schema-id", "default-catalog", "default-namespace"):
        del document["versions"][0]["representations"][0][key]
    metadata = parse(document)
    assert metadata.current_version().default_namespace == ()
    assert metadata.current_version().schema_id == 1
    with pytest.raises(CorruptFileError, match=r"schema-id is 1: schemas has only \[\]"):
        metadata.schema()


def draft_without_ids(versions: int) -> dict[str, Any]:
    """The first draft's example, which names no schema."""
    document = draft_example(versions)
    del document["current-schema-id"]
    for version in document["versions"]:
        del version["representations"][0]["schema-id"]
    return document


def test_a_draft_without_schema_ids() -> None:
    document = draft_without_ids(1)
    assert [field.name for field in parse(document).schema().fields] == ["c1", "c2"]
    del document["schemas"]
    metadata = parse(document)
    assert [sql.dialect for sql in metadata.current_version().sql_representations] == ["presto"]
    with pytest.raises(CorruptFileError, match=r"schema-id is 0: schemas has only \[\]"):
        metadata.schema()
    with pytest.raises(CorruptFileError, match=r"versions\[0\].schema-id is None: it is required"):
        parse(draft_without_ids(2))


def changed(change: Callable[[dict[str, Any]], object], versions: int = 2) -> dict[str, Any]:
    document = example(versions)
    change(document)
    return document


def repeated(values: list[Any]) -> None:
    values.append(values[0])


REFUSED: dict[str, Callable[[dict[str, Any]], object]] = {
    "format-version is None: it is required": lambda d: d.pop("format-version"),
    "format-version is 0: there is no such version": lambda d: d.update({"format-version": 0}),
    "format-version is 'one': a whole number is expected": lambda d: d.update({"format-version": "one"}),
    "view-uuid is 'x': not a UUID": lambda d: d.update({"view-uuid": "x"}),
    "location is None: it is required": lambda d: d.pop("location"),
    "location is 3: a string is expected": lambda d: d.update(location=3),
    "current-version-id is None: it is required": lambda d: d.pop("current-version-id"),
    "current-version-id is True: a whole number": lambda d: d.update({"current-version-id": True}),
    "versions is None: it is required": lambda d: d.pop("versions"),
    "versions is {}: an array is expected": lambda d: d.update(versions={}),
    "version-log is None: it is required": lambda d: d.pop("version-log"),
    "schemas is None: it is required": lambda d: d.pop("schemas"),
    "properties.comment is 7: a string is expected": lambda d: d["properties"].update(comment=7),
    r"schemas\[0\].fields\[0\].type is 'nothing': not a type": lambda d: d["schemas"][0]["fields"][0].update(
        type="nothing"
    ),
    r"schemas\[1\] is .*: schema-id 1 is given twice": lambda d: repeated(d["schemas"]),
    r"versions\[2\] is .*: version-id 1 is given twice": lambda d: repeated(d["versions"]),
    r"versions\[0\].version-id is None: it is req": lambda d: d["versions"][0].pop("version-id"),
    r"versions\[0\].timestamp-ms is None: it is req": lambda d: d["versions"][0].pop("timestamp-ms"),
    r"versions\[0\].schema-id is None: it is req": lambda d: d["versions"][0].pop("schema-id"),
    r"versions\[1\].summary is None: it is req": lambda d: d["versions"][1].pop("summary"),
    r"versions\[1\].summary.n is 1: a string": lambda d: d["versions"][1]["summary"].update(n=1),
    r"versions\[0\].representations is None: it is req": lambda d: d["versions"][0].pop("representations"),
    r"versions\[0\].default-namespace is None: it is req": lambda d: d["versions"][0].pop("default-namespace"),
    r"versions\[0\].default-namespace\[0\] is 5: a string": lambda d: d["versions"][0].update(
        {"default-namespace": [5]}
    ),
    r"versions\[0\].default-catalog is 5: a string": lambda d: d["versions"][0].update({"default-catalog": 5}),
    r"versions\[0\].representations\[0\].type is None": lambda d: d["versions"][0]["representations"][0].pop("type"),
    r"versions\[0\].representations\[0\].sql is None": lambda d: d["versions"][0]["representations"][0].pop("sql"),
    r"versions\[0\].representations\[0\].dialect is None": lambda d: d["versions"][0]["representations"][0].pop(
        "dialect"
    ),
    r"versions\[0\].representations\[1\].dialect is 'SPARK': the dialect spark is given twice": lambda d: d["versions"][
        0
    ]["representations"].append({"type": "sql", "sql": "select 1", "dialect": "SPARK"}),
    r"version-log\[1\].timestamp-ms is None: it is req": lambda d: d["version-log"][1].pop("timestamp-ms"),
    r"version-log\[1\].version-id is None: it is req": lambda d: d["version-log"][1].pop("version-id"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_metadata_that_breaks_a_rule_is_refused(message: str) -> None:
    with pytest.raises(CorruptFileError, match=f"^{LOCATION}: {message}"):
        parse(changed(REFUSED[message]))


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=f"{LOCATION}: format-version is 2: the newest known of views is 1"):
        parse(changed(lambda document: document.update({"format-version": 2})))


def test_tables_and_views_are_told_apart() -> None:
    with pytest.raises(NoSuchViewError, match="it is a table: load it with load_table"):
        parse(v2())
    with pytest.raises(NoSuchTableError, match="it is a view: load it with load_view"):
        parse_table_metadata(json.dumps(example(1)).encode(), LOCATION)


def test_a_missing_current_version_is_found_when_it_is_asked_for() -> None:
    metadata = parse(changed(lambda document: document.update({"current-version-id": 7})))
    with pytest.raises(CorruptFileError, match=r"event_agg: current-version-id is 7: versions has only \[1, 2\]"):
        metadata.current_version()
    metadata = parse(changed(lambda document: document["versions"][1].update({"schema-id": 3})))
    with pytest.raises(CorruptFileError, match=r"schema-id is 3: schemas has only \[1\]"):
        metadata.schema()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=5,
)
TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


def unknown() -> st.SearchStrategy[dict[str, Any]]:
    """Generate keys that no spec defines."""
    return st.dictionaries(st.text(max_size=5).map("x-{}".format), JSON, max_size=2)


@st.composite
def objects(draw: st.DrawFn, **fields: Any) -> dict[str, Any]:
    return {key.replace("_", "-"): draw(values) for key, values in fields.items()} | draw(unknown())


@st.composite
def versions(draw: st.DrawFn, version_id: int) -> dict[str, Any]:
    version = draw(
        objects(
            version_id=st.just(version_id),
            schema_id=st.integers(0, 3),
            timestamp_ms=st.integers(0, 1 << 60),
            summary=TEXTS,
            default_namespace=st.lists(st.text(max_size=5), max_size=3),
        )
    )
    dialects = draw(st.lists(st.sampled_from(["spark", "Trino", "x y"]), unique=True, max_size=3))
    representations = [draw(objects(type=st.just("sql"), sql=st.text(), dialect=st.just(each))) for each in dialects]
    others = draw(st.lists(objects(type=st.sampled_from(["ir", "SQL"]), sql=JSON), max_size=2))
    version["representations"] = draw(st.permutations([*representations, *others]))
    return version | draw(st.sampled_from([{}, {"default-catalog": "c"}]))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw view metadata with any content that the spec allows, and with unknown keys at every level."""
    document = draw(
        objects(
            view_uuid=st.uuids().map(str),
            format_version=st.just(1),
            location=st.text(),
            current_version_id=st.integers(1, 5),
            version_log=st.lists(objects(timestamp_ms=st.integers(0, 1 << 60), version_id=st.integers(1, 9))),
        )
    )
    ids = draw(st.lists(st.integers(1, 99), unique=True, max_size=4))
    document["versions"] = [draw(versions(version_id)) for version_id in ids]
    document["schemas"] = [example(1)["schemas"][0] | {"schema-id": n} for n in range(draw(st.integers(0, 3)))]
    properties = draw(TEXTS)
    return document | ({"properties": properties} if properties else {})


@given(documents())
def test_nothing_is_lost(document: dict[str, Any]) -> None:
    metadata = parse(document)
    assert written(metadata) == document
    assert parse_view_metadata(serialize_view_metadata(metadata).encode(), LOCATION) == metadata


def test_representations_of_other_types_are_kept() -> None:
    ir = {"type": "ir", "plan": [1, {"a": None}]}
    document = changed(lambda document: document["versions"][0]["representations"].insert(0, ir))
    metadata = parse(document)
    first = metadata.versions[0].representations[0]
    assert isinstance(first, OtherRepresentation)
    assert first.type == "ir"
    assert written(metadata) == document
