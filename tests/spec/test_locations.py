"""Relative locations: each resolution, in Python and in Arrow, and the errors of earlier format versions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.entries.locations import resolved, written_locations
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.locations import Locations, place_of
from sparkmeta.spec.metadata import table_metadata_from_json
from tests.spec.table_metadata import VERSIONS

PATHS = [
    "",
    "/",
    "a",
    "a/b",
    "/a",
    "//a",
    "a:b",
    "a/b:c",
    ":a",
    "é+x:y",
    "s3a+x:y",
    "C:/a",
    "../a",
    "s3://b/t",
    "s3://b/t/",
]
TEXTS = st.sampled_from(PATHS) | st.text("a/:.+é", max_size=6)
TABLES = st.sampled_from(["s3://b/t", "s3://b/t/", "file:/t", "/t", "/t/"])


@pytest.mark.parametrize(
    ("table", "revision", "written", "expected"),
    [
        ("s3://b/t", None, "data/a", "s3://b/t/data/a"),
        ("s3://b/t/", None, "data//./a", "s3://b/t/data//./a"),
        ("s3://b/t", None, "/data/a", "s3://b/t//data/a"),
        ("s3://b/t", None, "C:/a", "C:/a"),
        ("s3://b/t", None, "a/b:c", "s3://b/t/a/b:c"),
        ("s3://b/t", None, ":a", "s3://b/t/:a"),
        ("s3://b/t", None, "", ""),
        ("/t", None, "/data/a", "/data/a"),
        ("/t", None, "data/a", "/t/data/a"),
        ("s3://b/t", 1, "/data/a", "/data/a"),
        ("s3://b/t", 2, "/data/a", "s3://b/t//data/a"),
    ],
)
def test_what_a_location_of_version_4_names(table: str, revision: int | None, written: str, expected: str) -> None:
    locations = Locations.of(table, 4, revision)
    assert locations.resolve(written, "f", "location") == expected
    assert resolved(pa.array([written]), locations, "f", "location").to_pylist() == [expected]


def test_paths_in_older_files_of_a_table_gain_a_scheme() -> None:
    older = Locations.of("s3://b/t", 4).before_version_4
    assert [older.resolve(path, "f", "location") for path in ("/a", "a", "s3://a")] == [
        "file:///a",
        "s3://b/t/a",
        "s3://a",
    ]


@given(table=TABLES, version=st.sampled_from([3, 4]), values=st.lists(st.none() | TEXTS), coded=st.booleans())
def test_arrow_resolves_as_python_does(table: str, version: int, values: list[str | None], coded: bool) -> None:
    locations = Locations.of(table, version)

    def expected() -> list[str | None]:
        return [value if value is None else locations.resolve(value, "f", "x") for value in values]

    def arrow() -> list[Any]:
        array = pa.array(values, pa.string())
        return resolved(array.dictionary_encode() if coded else array, locations, "f", "x").to_pylist()  # type: ignore[no-any-return]

    try:
        absolute = expected()
    except CorruptFileError as error:
        with pytest.raises(CorruptFileError, match=r"^f: x is .*a location is absolute in a table of format version 3"):
            arrow()
        assert error.field == "x"  # noqa: PT017  both fail, or none
        return
    assert arrow() == absolute
    again = [value if value is None else locations.resolve(value, "f", "x") for value in absolute]
    assert again == absolute


@given(table=TABLES, location=TEXTS.filter(bool))
def test_a_relativized_location_resolves_to_the_same(table: str, location: str) -> None:
    locations = Locations.of(table, 4)
    absolute = locations.resolve(location, "f", "x")
    written = locations.relativize(absolute)
    assert locations.resolve(written, "f", "x") == absolute
    assert len(written) <= len(absolute)


FIELDS = {
    "snapshots": ("manifest-list", {"snapshot-id": 1, "timestamp-ms": 1, "sequence-number": 0}),
    "statistics": (
        "statistics-path",
        {"snapshot-id": 1, "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []},
    ),
    "partition-statistics": ("statistics-path", {"snapshot-id": 1, "file-size-in-bytes": 1}),
    "metadata-log": ("metadata-file", {"timestamp-ms": 1}),
}


@pytest.mark.parametrize("array", FIELDS)
@pytest.mark.parametrize("version", [2, 3, 4])
def test_locations_in_table_metadata(array: str, version: int) -> None:
    field, element = FIELDS[array]
    document: dict[str, Any] = VERSIONS[version]() | {"location": "s3://b/t", array: [element | {field: "a/b"}]}
    document |= {"current-snapshot-id": None, "refs": {}, "snapshot-log": []}
    document = {key: value for key, value in document.items() if key == array or key not in FIELDS}
    if version < 4:
        with pytest.raises(
            CorruptFileError, match=rf"^file: {array}\[0\]\.{field} is 'a/b': a location is absolute in a table"
        ):
            table_metadata_from_json(JsonNode(document, "file"))
        return
    metadata = table_metadata_from_json(JsonNode(document, "file"))
    (read,) = getattr(metadata, array.replace("-", "_"))
    assert getattr(read, field.replace("-", "_")) == "s3://b/t/a/b"


def test_the_location_of_a_table_is_absolute() -> None:
    document = VERSIONS[4]() | {"location": "t"}
    with pytest.raises(CorruptFileError, match=r"^file: location is 't': the location of a table is absolute"):
        table_metadata_from_json(JsonNode(document, "file"))


@given(table=TABLES, relative=st.booleans(), values=st.lists(st.none() | TEXTS.filter(bool)))
def test_arrow_writes_as_python_does(table: str, relative: bool, values: list[str | None]) -> None:
    locations = Locations.of(table, 4, 2, writes_relative=relative)
    absolute = [value if value is None else locations.resolve(value, "f", "x") for value in values]
    nothing = pa.nulls(len(absolute), pa.string())
    written = written_locations(
        pa.table({"location": pa.array(absolute, pa.string()), "referenced_file": nothing}), locations
    )
    assert written.column("location").to_pylist() == [
        each if each is None else locations.written(each) for each in absolute
    ]
    read = [
        each if each is None else locations.resolve(each, "f", "x") for each in written.column("location").to_pylist()
    ]
    assert read == absolute


@pytest.mark.parametrize(
    ("folder", "recorded", "expected"),
    [
        ("/a/t", "/a/t", "/a/t"),
        ("file:///a/t", "/a/t/", "/a/t/"),
        ("file:///b/t", "/a/t", "/b/t"),
        ("/b/t", "file:/a/t", "file:///b/t"),
        ("/a/t", "file:/a/t", "file:/a/t"),
        ("s3a://b/t", "s3://b/t", "s3://b/t"),
        ("s3a://c/t", "s3://b/t", "s3a://c/t"),
        ("/b/t", "s3://b/t", "/b/t"),
    ],
)
def test_the_place_of_a_moved_table(folder: str, recorded: str, expected: str) -> None:
    assert place_of(folder, recorded) == expected
