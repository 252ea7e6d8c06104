"""Trees that sparkmeta writes in the layout of the Iceberg project, as Iceberg's own reader shows them.

SPARKMETA_SOAK=1 writes more tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema

from sparkmeta.spec.bitmap import read_deletion_vector
from tests.conformance.random_trees import RandomTree, scanned, texts
from tests.conformance.test_manifest_reader import rows_in_memory
from tests.peers.file_maker import local_path
from tests.peers.slices import SOAK
from tests.peers.v4_comparison import assert_same_entries, assert_same_manifests, assert_same_stats, decoded
from tests.peers.v4_entries import LIVE, MANIFESTS, TableToRead, read_trees
from tests.peers.values import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import sparkmeta as sm
    from tests.peers.v4_entries import Entry, Tree

pytestmark = [pytest.mark.java, pytest.mark.jvm]

STEPS = 12


def make(seed: int, folder: Path, spark: SparkSession, **properties: str) -> RandomTree:
    tree = RandomTree.create(Random(seed), folder, spark, 4, **properties)
    for _ in range(STEPS):
        tree.step()
    return tree


@pytest.mark.parametrize("seed", range(100 if SOAK else 4))
def test_trees(seed: int, tmp_path: Path, interpreted: SparkSession) -> None:
    check(make(seed, tmp_path, interpreted))


@pytest.mark.parametrize("is_relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("seed", range(1000, 1030 if SOAK else 1001))
def test_locations(seed: int, is_relative: bool, tmp_path: Path, interpreted: SparkSession) -> None:
    tree = make(seed, tmp_path, interpreted, write__tree__relative_locations=str(is_relative).lower())
    check(tree)
    manifests = [*(tmp_path / "db" / "t" / "metadata").glob("*.parquet")]
    locations = [each for path in manifests for each in pq.read_table(path, columns=["location"])[0].to_pylist()]
    assert manifests
    assert {":" in location for location in locations} == {not is_relative}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(2000, 2030 if SOAK else 2001))
def test_upgraded_tables(seed: int, version: int, tmp_path: Path, interpreted: SparkSession) -> None:
    tree = RandomTree.create(Random(seed), tmp_path, interpreted, version)
    for _ in range(STEPS // 3):
        tree.step()
    tree.table = tree.table.maintenance.upgrade(4).commit()
    for _ in range(STEPS):
        tree.step()
    check(tree)


# -- Checks ------------------------------------------------------------------------------------------------------------


def check(tree: RandomTree) -> None:
    """Compare a table's trees with what Iceberg's reader shows, and its rows with the model."""
    table = tree.table
    assert_same_rows(tree)
    location = table.location()
    to_read = TableToRead(Path(local_path(table.metadata_location)), location=location)
    [trees] = read_trees([to_read])
    before: dict[int, Read] = {}
    for each in trees:
        assert not table.arrow.check(each.snapshot_id).to_pylist(), each.snapshot_id
        assert_same_manifests(each.root, table.inspect.arrow.manifests(each.snapshot_id))
        if each.is_whole:
            assert_same_entries(each.entries(), table.inspect.arrow.entries(each.snapshot_id), to_read.json)
        for leaf, entries in each.leaves.items():
            assert_same_stats(entries, rows_in_memory(leaf, entries), to_read.json)
        read = Read(each, table)
        read.assert_counts()
        read.assert_files()
        if each.is_whole:
            parent = table.snapshot_by_id(each.snapshot_id).parent_snapshot_id  # type: ignore[union-attr]
            read.assert_row_ids()
            if parent is None or parent in before:
                read.assert_changes(before.get(parent or 0))
            before[each.snapshot_id] = read


def assert_same_rows(tree: RandomTree) -> None:
    table = tree.table
    names = [column.name for column in table.schema().fields]
    assert texts(scanned(table.scan().to_arrow()), names) == texts(tree.rows, names)
    for snapshot_id, (columns, rows) in tree.snapshots.items():
        of_snapshot = scanned(table.scan(snapshot_id=snapshot_id).to_arrow())
        assert texts(of_snapshot, columns) == texts(rows, columns), snapshot_id


@dataclass(frozen=True)
class Read:
    """A tree as Iceberg's reader shows it, and its table."""

    tree: Tree
    table: sm.Table

    @cached_property
    def files(self) -> dict[str, Entry]:
        """The live files by their location."""
        live = [entry for entry in self.tree.entries() if entry["status"] in LIVE]
        files = {entry["location"]: entry for entry in live}
        assert len(files) == len(live)
        return files

    def assert_counts(self) -> None:
        """Assert that leaves have as many entries and rows as the root tells."""
        for entry in self.tree.leaf_entries:
            entries, info = self.tree.leaves[entry["location"]], entry["manifest_info"]
            assert entry["record_count"] == len(entries)
            files, rows = Counter[str](), Counter[str]()
            for in_leaf in entries:
                status = "existing" if in_leaf["status"] == "MODIFIED" else in_leaf["status"].lower()
                files[status] += 1
                rows[status] += in_leaf["record_count"]
            for status in ("added", "existing", "deleted", "replaced"):
                counts = info[f"{status}_files_count"], info[f"{status}_rows_count"]
                assert counts == (files[status], rows[status]), (entry["location"], status)
            numbers = [each["sequence_number"] for each in entries if each["status"] in LIVE]
            assert info["min_sequence_number"] == min(numbers, default=entry["sequence_number"])

    def assert_files(self) -> None:
        """Compare live entries with the files themselves: partition values, sizes, rows, bounds and vectors."""
        for location, entry in self.files.items():
            path = Path(local_path(location))
            assert entry["file_size_in_bytes"] == path.stat().st_size
            assert entry["record_count"] == pq.ParquetFile(path).metadata.num_rows
            self._assert_partition(entry)
            if (vector := entry["deletion_vector"]) is not None:
                with Path(local_path(vector["location"])).open("rb") as file:
                    file.seek(vector["offset"])
                    positions = read_deletion_vector(file.read(vector["size_in_bytes"]), vector["location"])
                assert positions.cardinality == vector["cardinality"]

    def _assert_partition(self, entry: Entry) -> None:
        """Compare partition values with the transforms of a row."""
        if entry["content_type"] != "DATA":
            return
        columns = columns_by_id(pq.read_table(local_path(entry["location"])).slice(0, 1))
        spec = self.table.specs()[entry["spec_id"] or 0]
        values = entry["partition"] or {}
        expected = {}
        for part in spec.fields:
            column = columns.get(part.source_id)
            value = None if column is None else internal(column)
            value = part.transform.transform(self._types[part.source_id])(value)
            expected[part.field_id] = value if value is None or not isinstance(value, UUID) else str(value)
        actual = {int(number): decoded(part["value"], part["type"]) for number, part in values.items()}
        of_spec = {number: actual.get(number) for number in expected}
        assert comparable(of_spec) == comparable(expected), (entry["location"], spec)
        assert not [number for number in actual.keys() - expected.keys() if actual[number] is not None]

    @cached_property
    def _types(self) -> dict[int, Any]:
        """The types of the columns by their ids, as the schema has them now."""
        schemas = self.table.schemas()
        columns = [Schema(*schemas[number].fields) for number in sorted(schemas)]
        return {number: schema.find_type(number) for schema in columns for number in schema.field_ids}

    def assert_changes(self, parent: Read | None) -> None:
        """Compare what statuses and bitmaps tell of the snapshot's changes with the live files before it."""
        before = {} if parent is None else parent.files
        changes = self._changes()
        assert changes["ADDED"] == sorted(self.files.keys() - before.keys())
        assert changes["DELETED"] == sorted(before.keys() - self.files.keys())
        assert changes["REPLACED"] == changes["MODIFIED"]
        both = self.files.keys() & before.keys()
        vector = "deletion_vector"
        assert changes["MODIFIED"] == sorted(
            place for place in both if self.files[place][vector] != before[place][vector]
        )
        for place in both:
            file, old = self.files[place], before[place]
            names = ["snapshot_id", "sequence_number", "file_sequence_number"]
            # Java gives row ids to delete files as well.
            names += ["first_row_id"] if file["content_type"] == "DATA" else []
            names += ["dv_snapshot_id"] if file["status"] != "MODIFIED" else []
            for name in names:
                assert file[name] == old[name], (place, name)

    def _changes(self) -> dict[str, list[str]]:
        """Return the locations of entries that changed in this snapshot by the status that tells so."""
        snapshot_id, changes = self.tree.snapshot_id, defaultdict[str, list[str]](list)
        for entry in self._changed():
            changes[entry["status"]].append(entry["location"])
            assert entry["status"] != "MODIFIED" or entry["dv_snapshot_id"] in (snapshot_id, None)
        for leaf in self.tree.leaf_entries:
            entries = {entry["position"]: entry["location"] for entry in self.tree.leaves[leaf["location"]]}
            for status, name in (("DELETED", "deleted_positions"), ("REPLACED", "replaced_positions")):
                changes[status] += [entries[position] for position in leaf[name] or ()]
                assert not leaf[name] or (leaf["status"], leaf["dv_snapshot_id"]) == ("MODIFIED", snapshot_id)
        return defaultdict(list, {status: sorted(places) for status, places in changes.items()})

    def _changed(self) -> list[Entry]:
        """Return the entries of files in manifests of this snapshot that changed in it."""
        snapshot_id = self.tree.snapshot_id
        entries = [entry for entry in self.tree.root if entry["content_type"] not in MANIFESTS]
        for leaf in self.tree.leaf_entries:
            if leaf["snapshot_id"] == snapshot_id:
                entries += self.tree.leaves[leaf["location"]]
        return [
            entry
            for entry in entries
            if snapshot_id in (entry["snapshot_id"], entry["dv_snapshot_id"]) and entry["status"] != "EXISTING"
        ]

    def assert_row_ids(self) -> None:
        """Compare the ids of rows with those that follow from the files' first ids."""
        data = {place: entry for place, entry in self.files.items() if entry["content_type"] == "DATA"}
        # Files that were written anew store ids of their rows.
        with_ids = {place for place in data if "_row_id" in pq.read_schema(local_path(place)).names}
        selected = ("_file", "_pos", "_row_id", "_last_updated_sequence_number")
        rows = self.table.scan(snapshot_id=self.tree.snapshot_id, selected_fields=selected).to_arrow().to_pylist()
        for row in rows:
            entry = data[row["_file"]]
            if row["_file"] not in with_ids:
                assert row["_row_id"] == entry["first_row_id"] + row["_pos"]
                assert row["_last_updated_sequence_number"] == entry["sequence_number"]
        ids = sorted((entry["first_row_id"], entry["record_count"]) for entry in data.values())
        assert all(first + count <= following for (first, count), (following, _) in pairwise(ids))
        next_row_id = self.table.metadata.next_row_id  # type: ignore[union-attr]
        assert not ids or sum(ids[-1]) <= next_row_id


def columns_by_id(table: pa.Table) -> dict[int, pa.Array]:
    """Return the columns of a data file outside lists and maps by field id."""
    columns: dict[int, pa.Array] = {}

    def add(field: pa.Field, values: pa.Array) -> None:
        columns[int(field.metadata[b"PARQUET:field_id"])] = values
        if pa.types.is_struct(field.type):
            for child, each in zip(field.type, values.flatten(), strict=True):
                add(child, each)

    for field, values in zip(table.schema, table.columns, strict=True):
        add(field, values.combine_chunks())
    return columns


def internal(values: pa.Array) -> Any:
    """Return a value as transforms take it: dates and times as numbers."""
    kind = values.type
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    return values[0].as_py()
