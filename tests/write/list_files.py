"""The files of a table with manifest lists, by its metadata and its folder, read without sparkmeta's readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro

from tests.local_files import local_path
from tests.maintain.test_expire import files_below

if TYPE_CHECKING:
    import sparkmeta as sm


def avro_records(location: str) -> list[Any]:
    """Return the records of a manifest or manifest list."""
    with Path(local_path(location)).open("rb") as file:
        return list(fastavro.reader(file))


def reached_files(table: sm.Table) -> set[str]:
    """Return the paths of the files that a table's metadata names, after checking that each has its recorded size."""
    reached = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    sizes: dict[str, int] = {}
    for snapshot in table.snapshots():
        assert snapshot.manifest_list is not None
        reached.add(snapshot.manifest_list)
        for manifest in avro_records(snapshot.manifest_list):
            if manifest["manifest_path"] in sizes:
                continue
            sizes[manifest["manifest_path"]] = manifest["manifest_length"]
            for entry in avro_records(manifest["manifest_path"]):
                sizes[entry["data_file"]["file_path"]] = entry["data_file"]["file_size_in_bytes"]
    for location, size in sizes.items():
        assert Path(local_path(location)).stat().st_size == size, location
    paths = {local_path(location) for location in reached | sizes.keys()}
    assert all(Path(path).exists() for path in paths)
    return paths


def unreached_files(table: sm.Table) -> set[str]:
    """Return the paths of all other files in a table's folder, except for the hint."""
    folder = Path(local_path(table.location()))
    return files_below(folder) - reached_files(table) - {f"{folder}/metadata/version-hint.text"}
