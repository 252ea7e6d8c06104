"""Parquet manifests whose locations change: of versions 1 to 3, and of trees."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import with_field_id
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.manifests.relocate import MetadataRelocation
from sparkmeta.manifests.v4.layout import DELETE, ROOT, read_manifest, tree_schema, write_manifest
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from sparkmeta.spec.locations import Locations, Relocation

OLD, NEW = "s3://old/t", "gs://new/place"
PATHS = [f"{OLD}/a", f"s3a{OLD[2:]}/b", f"{OLD}2/c"]
NEW_PATHS = [f"{NEW}/a", f"{NEW}/b", f"{OLD}2/c"]


def sizes_of(paths: pa.Array) -> pa.Array:
    return pc.add(pc.binary_length(paths), 1000).cast(pa.int64())


def lengths_of(paths: pa.Array) -> pa.Array:
    return pc.add(pc.binary_length(paths), 2000).cast(pa.int64())


MOVED = MetadataRelocation(Relocation(OLD, NEW), Locations.of(OLD, 4, 1), sizes_of, lengths_of)


def field(name: str, number: int, kind: pa.DataType, *, required: bool = False) -> pa.Field:
    return with_field_id(pa.field(name, kind, nullable=not required), number)


def bounds_map(first_id: int) -> pa.MapType:
    return pa.map_(field("key", first_id, pa.int32(), required=True), field("value", first_id + 1, pa.binary()))


ENTRY = pa.schema(
    [
        field("status", 0, pa.int32(), required=True),
        field(
            "data_file",
            2,
            pa.struct(
                [
                    field("content", 134, pa.int32()),
                    field("file_path", 100, pa.string(), required=True),
                    field("file_size_in_bytes", 104, pa.int64(), required=True),
                    field("lower_bounds", 125, bounds_map(126)),
                    field("upper_bounds", 128, bounds_map(129)),
                    field("referenced_data_file", 143, pa.string()),
                ]
            ),
            required=True,
        ),
    ]
)


def test_entries_of_version_3() -> None:
    """As Iceberg 1.12 writes them in format version 4."""

    def bounds(path: str | None) -> list[tuple[int, bytes]]:
        return [(1, b"s3://old/t/x"), *([(DELETE_FILE_PATH_ID, path.encode())] if path is not None else []), (2, b"")]

    files: list[dict[str, Any]] = [
        {"lower_bounds": bounds(path), "upper_bounds": bounds(path), "referenced_data_file": path} for path in PATHS
    ]
    files[2] |= {"lower_bounds": bounds(OLD[:5]), "upper_bounds": bounds(PATHS[0]), "referenced_data_file": None}
    files.append({"lower_bounds": None, "upper_bounds": bounds(None), "referenced_data_file": None})
    rows = [
        {"status": status, "data_file": file | {"content": content, "file_path": path, "file_size_in_bytes": 5}}
        for status, content, path, file in zip((0, 1, 2, 1), (1, 1, 1, 0), [*PATHS, PATHS[0]], files, strict=True)
    ]
    table = pa.Table.from_pylist(rows, ENTRY)
    data = MOVED.manifest(parquet_bytes(table, {"schema": "s", "format-version": "4"}), "m")
    read = pq.ParquetFile(pa.BufferReader(data))
    assert {key: value for key, value in read.metadata.metadata.items() if key != b"ARROW:schema"} == {
        b"schema": b"s", b"format-version": b"4"
    }  # fmt: skip
    new = read.read()
    assert new.schema.equals(pq.read_schema(pa.BufferReader(parquet_bytes(table, {}))), check_metadata=False)
    files = [row["data_file"] for row in new.to_pylist()]
    assert [file["file_path"] for file in files] == [*NEW_PATHS, NEW_PATHS[0]]
    assert [file["file_size_in_bytes"] for file in files] == [1000 + len(PATHS[0]), 1000 + len(PATHS[1]), 5, 5]
    assert [file["referenced_data_file"] for file in files] == [*NEW_PATHS[:2], None, None]
    lower, upper = ([file[name] for file in files] for name in ("lower_bounds", "upper_bounds"))
    assert lower[:2] == upper[:2] == [bounds(path) for path in NEW_PATHS[:2]]
    assert (lower[2], upper[2]) == (bounds(""), bounds("\U0010ffff"))
    assert (lower[3], upper[3]) == (None, bounds(None))


@pytest.mark.parametrize("content", [DELETE, ROOT])
def test_entries_of_trees(content: str) -> None:
    stats = {DELETE_FILE_PATH_ID: "string", 1: "long"}
    rows: list[dict[str, Any]] = []
    for place, path in enumerate(PATHS):
        bounds = {"lower_bound": path, "upper_bound": path if place else f"{path}z"}
        kind = 4 if content == ROOT and place == 1 else 1
        rows.append(
            {
                "content_type": kind, "location": path, "file_format": "PARQUET", "partition_spec_id": 0,
                "version_info": {"status": place, "snapshot_id": 1, "sequence_number": 1}, "record_count": 1,
                "file_size_in_bytes": 7, "referenced_file": path if place else None,
                "content_stats": {str(DELETE_FILE_PATH_ID): bounds, "1": {"lower_bound": place}},
            }
        )  # fmt: skip
    table = pa.Table.from_pylist(rows, tree_schema(stats))
    data = MOVED.manifest(write_manifest(table, content, {"more": "x"}), "m")
    new, properties = read_manifest(data, stats, "m")
    assert properties["more"] == "x"
    assert new.column("location").to_pylist() == NEW_PATHS
    assert new.column("referenced_file").to_pylist() == [None, *NEW_PATHS[1:]]
    second = (2000 if content == ROOT else 1000) + len(PATHS[1])
    assert new.column("file_size_in_bytes").to_pylist() == [1000 + len(PATHS[0]), second, 7]
    of_paths = [row[str(DELETE_FILE_PATH_ID)] for row in new.column("content_stats").to_pylist()]
    assert [row["lower_bound"] for row in of_paths] == NEW_PATHS
    assert [row["upper_bound"] for row in of_paths] == [f"{NEW}/az", *NEW_PATHS[1:]]
    assert [row["1"]["lower_bound"] for row in new.column("content_stats").to_pylist()] == [0, 1, 2]


def test_a_file_that_is_damaged() -> None:
    with pytest.raises(CorruptFileError, match="m: file"):
        MOVED.manifest(b"PAR1 and no more", "m")
