"""Manifest lists of v1-v3: defaults of old ones, typed partition summaries, and errors that name the list."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.avro.manifest_list import decode_manifest_list, inline_manifest_list, manifests_of_list
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.locations import Locations
from tests.avro.avro_files import LONG, avro_file, field

SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        field("contains_null", 509, "boolean"),
        field("contains_nan", 518, ["null", "boolean"]),
        field("lower_bound", 510, ["null", "bytes"]),
        field("upper_bound", 511, ["null", "bytes"]),
    ],
}
V1 = [
    field("manifest_path", 500, "string"),
    field("manifest_length", 501, "long"),
    field("partition_spec_id", 502, "int"),
    field("added_snapshot_id", 503, LONG),
    field("added_data_files_count", 504, ["null", "int"]),
    field("partitions", 507, ["null", {"type": "array", "items": SUMMARY, "element-id": 508}]),
]
V2 = [*V1, field("content", 517, "int"), field("sequence_number", 515, "long")]


def listed(fields: list[dict[str, Any]], *rows: dict[str, Any]) -> bytes:
    base = {"manifest_path": "file:///m0.avro", "manifest_length": 10, "partition_spec_id": 0, "added_snapshot_id": 5}
    empty = {field["name"]: None for field in fields}
    return avro_file(
        {"type": "record", "name": "manifest_file", "fields": fields}, [{**empty, **base, **row} for row in rows]
    )


def rows_of(data: bytes, specs: dict[int, list[tuple[int, str]]]) -> list[dict[str, Any]]:
    batch = decode_manifest_list(data, "file:///snap.avro", Locations("file:///t", 2))
    rows: list[dict[str, Any]] = manifests_of_list(
        pa.Table.from_batches([batch]), specs, "file:///snap.avro"
    ).to_pylist()
    return rows


def test_a_version_1_list_is_of_data_manifests_of_sequence_number_0_with_unknown_counts() -> None:
    (row,) = rows_of(listed(V1, {}), {0: []})
    assert row["content_type"] == 3
    assert row["version_info"] == {"snapshot_id": 5, "sequence_number": 0}
    assert set(row["manifest_stats"].values()) == {None, 0}
    assert row["manifest_stats"]["added_files_count"] is None
    assert (row["manifest"], row["location"], row["file_format"]) == (0, "file:///m0.avro", "AVRO")


def test_delete_manifests_and_parquet_manifests_are_told_apart() -> None:
    data = listed(V2, {"content": 1, "sequence_number": 3, "manifest_path": "s3://b/X.PARQUET"})
    (row,) = rows_of(data, {0: []})
    assert (row["content_type"], row["file_format"], row["version_info"]["sequence_number"]) == (4, "PARQUET", 3)


def test_summaries_are_typed_by_the_spec_of_their_manifest() -> None:
    def summary(lower: bytes | None, upper: bytes | None, null: bool = False) -> dict[str, Any]:
        return {"contains_null": null, "contains_nan": None, "lower_bound": lower, "upper_bound": upper}

    day = (-1).to_bytes(4, "little", signed=True)
    data = listed(
        V2,
        {"content": 0, "sequence_number": 1, "partitions": [summary(b"a", b"b"), summary(day, day)]},
        {"content": 0, "sequence_number": 1, "partition_spec_id": 1, "partitions": [summary(None, None, True)]},
        {"content": 0, "sequence_number": 1, "partition_spec_id": 1},
    )
    first, second, third = (
        row["partition_summaries"]
        for row in rows_of(data, {0: [(1000, "string"), (1001, "date")], 1: [(1001, "date")]})
    )
    assert (first["1000"]["lower_bound"], first["1000"]["upper_bound"]) == ("a", "b")
    assert first["1001"]["lower_bound"] == dt.date(1969, 12, 31)
    assert second["1000"] is None
    assert second["1001"] == {"contains_null": True, "contains_nan": None, "lower_bound": None, "upper_bound": None}
    assert third == {"1000": None, "1001": None}


def test_inline_manifests_of_version_1() -> None:
    batch = inline_manifest_list(["file:///a.avro", "file:///b.avro"], [3, 4], 9)
    first, second = manifests_of_list(pa.Table.from_batches([batch]), {0: []}, "snapshot 9").to_pylist()
    assert (first["file_size_in_bytes"], second["file_size_in_bytes"]) == (3, 4)
    assert second["version_info"] == {"snapshot_id": 9, "sequence_number": 0}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"content": 2, "sequence_number": 1}, "content is 2"),
        ({"content": 0, "sequence_number": 1, "partition_spec_id": 8}, "partition_spec_id is 8"),
        ({"content": 0, "sequence_number": 1, "partitions": []}, "partitions is '0 field summaries'"),
    ],
)
def test_contradictions_name_the_list_field_and_value(row: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptFileError, match=f"file:///snap.avro: {message}"):
        rows_of(listed(V2, row), {0: [(1000, "string")]})


def test_a_required_field_that_is_null() -> None:
    fields = [{**V1[0], "type": ["null", "string"]}, *V1[1:]]
    with pytest.raises(CorruptFileError, match=r"file:///snap\.avro: manifest_path is None"):
        rows_of(listed(fields, {"manifest_path": None}), {0: []})
