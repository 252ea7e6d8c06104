"""`check` of a table with manifest lists names each contradiction, and nothing if there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from sparkmeta import Table, load_table
from sparkmeta.errors import NoSuchSnapshotError, SparkmetaError
from tests.avro.avro_files import field
from tests.conftest import configured
from tests.handmade import (
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    long_bounds,
    position_deletes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

Broken = tuple[str, str, str]
PART = [field("part", 1000, ["null", "string"])]
SWAPPED = long_bounds(9, 2)


def violations(table: Table) -> set[Broken]:
    """Return (rule, last part of the location, value) of each violation. The driver and tasks find the same."""
    rows = table.arrow.check().to_pylist()
    assert all(row["problem"] for row in rows)
    with configured(table.state.spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        by_tasks = load_table(table.metadata_location, table.state.spark).check().collect()
    assert sorted(map(str, rows)) == sorted(str(row.asDict()) for row in by_tasks)
    return {(row["rule"], row["location"].rpartition("/")[2], row["value"]) for row in rows}


def handmade(folder: Path, version: int = 3) -> HandmadeTable:
    return HandmadeTable(folder / "t", version, summaries=True)


def sound(folder: Path, version: int = 3) -> HandmadeTable:
    table = handmade(folder, version)
    table.add(0, 0, data("x:d0", **long_bounds(1, 5)), data("x:d1", status=0), data("x:gone", None, status=2))
    table.add(0, 1, data("x:d2", None, partition={"part": "a"}), data("x:d3", partition={"part": None}))
    values: dict[str, Any] = {"partition": {"part": "a"}}
    deletes = position_deletes("x:p0", **values) if version == 2 else deletion_vector("x:d2", 5, **values)
    return table.add(1, 1, deletes, equality_deletes("x:e0", partition={"part": "b"}))


@pytest.mark.parametrize("version", [2, 3])
def test_a_sound_list(version: int, tmp_path: Path, spark: SparkSession) -> None:
    table = load_table(sound(tmp_path, version).write(), spark)
    assert violations(table) == set()
    assert table.check().columns == ["rule", "location", "value", "problem"]
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 11"):
        table.check(11)


def listed(table: HandmadeTable, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the rows of the manifest list."""
    written = table._manifest
    table.__dict__["_manifest"] = lambda *of: (row := written(*of), change([row]))[0]


def wrong_counts(table: HandmadeTable) -> Broken:
    listed(table, lambda rows: rows[0].update(added_data_files_count=7))
    table.add(0, 0, data("x:d0"))
    return "manifest-counts", "m0.avro", "added_files_count is 7"


def wrong_length(table: HandmadeTable) -> Broken:
    listed(table, lambda rows: rows[0].update(manifest_length=rows[0]["manifest_length"] - 1))
    table.add(0, 0, data("x:d0"))
    return "manifest-length", "m0.avro", "manifest_length is "


def newer_than_the_snapshot(table: HandmadeTable) -> Broken:
    listed(table, lambda rows: rows[0].update(sequence_number=9))
    table.add(0, 0, data("x:d0"))
    return "sequence-numbers", "m0.avro", "sequence_number is 9"


def lower_least_sequence(table: HandmadeTable) -> Broken:
    listed(table, lambda rows: rows[0].update(min_sequence_number=4))
    table.add(0, 0, data("x:d0", 2))
    return "sequence-numbers", "m0.avro", "min_sequence_number is 4"


def entry_above_its_manifest(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("x:d0", 8))
    return "sequence-numbers", "m0.avro", "sequence_number of x:d0 is 8"


def unnumbered(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("x:d0", None, status=0))
    return "sequence-numbers", "m0.avro", "sequence_number of x:d0 is None"


def deletes_among_data(table: HandmadeTable) -> Broken:
    table.add(0, 0, position_deletes("x:p0"))
    return "leaf-content", "m0.avro", "content of x:p0 is 1"


def another_spec(table: HandmadeTable) -> Broken:
    table.tuples = {0: PART}
    table.add(0, 0, data("x:d0", partition={"part": "a"}))
    return "partition-spec", "m0.avro", "partition.1000 of x:d0 is 'a'"


def swapped(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("x:d0", **SWAPPED))
    return "bounds-order", "m0.avro", "lower_bounds[1] of x:d0 is 9"


def short(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("x:d0", **(SWAPPED | {"lower_bounds": [{"key": 1, "value": b"abc"}]})))
    return "bounds-value", "m0.avro", "lower_bounds[1] of x:d0 is b'abc'"


def swapped_summary(table: HandmadeTable) -> Broken:
    table.add(0, 1, *(data(f"x:{part}", partition={"part": part}) for part in "ab"))
    listed(table, lambda rows: rows[0]["partitions"][0].update(lower_bound=b"b", upper_bound=b"a"))
    return "bounds-order", "m0.avro", "partitions.1000.lower_bound is 'b'"


def cut_summary(table: HandmadeTable) -> Broken:
    table.add(0, 1, *(data(f"x:{part}", partition={"part": part}) for part in "ab"))
    listed(table, lambda rows: rows[0]["partitions"][0].update(upper_bound=b"b\xc3"))
    return "bounds-value", "m0.avro", "partitions.1000.upper_bound is b'b\\xc3'"


def without_columns(table: HandmadeTable) -> Broken:
    table.add(1, 0, equality_deletes("x:e0", ids=()))
    return "entry-fields", "m0.avro", "equality_ids of x:e0 is []"


def twice(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("file:///x/d0")).add(0, 0, data("file:///x/d0"))
    return "one-entry-per-file", "d0", "2"


def two_vectors(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("x:d0")).add(1, 0, deletion_vector("x:d0"), deletion_vector("x:d0", content_offset=60))
    return "one-vector-per-file", "x:d0", "2"


def older_vector(table: HandmadeTable) -> Broken:
    table.add(0, 0, data("x:d0", 3)).add(1, 0, deletion_vector("x:d0", 2))
    return "vector-target", "dvs.puffin", "x:d0"


def foreign_vector(table: HandmadeTable) -> Broken:
    table.add(0, 1, data("x:d0", partition={"part": "a"})).add(1, 1, deletion_vector("x:d0", partition={"part": "b"}))
    return "vector-target", "dvs.puffin", "x:d0"


CASES = (
    wrong_counts, wrong_length, newer_than_the_snapshot, lower_least_sequence, entry_above_its_manifest, unnumbered,
    deletes_among_data, another_spec, swapped, short, swapped_summary, cut_summary, without_columns, twice, two_vectors,
    older_vector, foreign_vector,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_contradiction(case: Callable[[HandmadeTable], Broken], tmp_path: Path, spark: SparkSession) -> None:
    table = handmade(tmp_path)
    rule, location, value = case(table)
    broken = violations(load_table(table.write(), spark))
    assert [
        violation for violation in broken if violation[:2] == (rule, location) and violation[2].startswith(value)
    ], broken
    assert {violation[0] for violation in broken} == {rule}, broken


def test_damaged_manifests_and_lists_are_violations_too(tmp_path: Path, spark: SparkSession) -> None:
    """The other manifests are checked nevertheless."""
    table = handmade(tmp_path).add(0, 0, data("x:d0")).add(0, 0, data("x:d1", **SWAPPED)).add(0, 0, data("x:d2"))
    location, folder = table.write(), tmp_path / "t" / "metadata"
    whole = (folder / "m0.avro").read_bytes()
    (folder / "m0.avro").write_bytes(whole[:-20] + bytes(20))
    (folder / "m2.avro").unlink()
    broken = violations(load_table(location, spark))
    assert {violation[:2] for violation in broken} == {
        ("manifest-content", "m0.avro"),
        ("manifest-content", "m2.avro"),
        ("bounds-order", "m1.avro"),
    }
    metadata = json.loads(Path(location.removeprefix("file://")).read_text())
    metadata["partition-specs"], metadata["default-spec-id"] = [{"spec-id": 5, "fields": []}], 5
    Path(location.removeprefix("file://")).write_text(json.dumps(metadata))
    ((rule, name, value),) = violations(load_table(location, spark))
    assert (rule, name, value) == ("manifest-list", "snap.avro", "partition_spec_id is 0")
    (folder / "snap.avro").write_bytes(b"no list")
    ((rule, name, _),) = violations(load_table(location, spark))
    assert (rule, name) == ("manifest-list", "snap.avro")


def test_deletes_of_another_spec_are_refused_in_every_version(tmp_path: Path, spark: SparkSession) -> None:
    """The manifest names the new spec, but tuples have the old one's field, as DuckDB writes them."""
    for version in (2, 3):
        deletes = position_deletes("x:p0", partition={"part": "a"})
        table = handmade(tmp_path / str(version), version).add(0, 1, data("x:d0", partition={"part": "a"}))
        table.tuples = {1: PART}
        if version == 3:
            deletes = deletion_vector("x:d0", partition={"part": "a"})
        opened = load_table(table.add(1, 0, deletes).write(), spark)
        for limit in ("64m", "0"):  # decoded on the driver, or by tasks
            spark.conf.set("spark.sparkmeta.driver-manifest-bytes", limit)
            try:
                with pytest.raises(
                    (SparkmetaError, PySparkException),
                    match=r"m1.avro: partition.1000 of .* is 'a': .* partition spec 0",
                ):
                    opened.scan().plan_files().collect()
            finally:
                spark.conf.unset("spark.sparkmeta.driver-manifest-bytes")
        (violation,) = violations(opened)
        assert violation[:2] == ("partition-spec", "m1.avro")
