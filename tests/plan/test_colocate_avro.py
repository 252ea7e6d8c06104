"""Deletion vectors in Avro manifests: joined by Spark, by tasks that read what shares partitions, or on the driver, the
plan is the same, and what is contradictory is an error."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.plan import coplan_tasks
from tests.costs import limit
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds, position_deletes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

PLANNING, DRIVER_BYTES = "spark.sparkmeta.planning", "spark.sparkmeta.driver-manifest-bytes"
CACHE, SPLIT = "spark.sparkmeta.manifest-cache", "spark.sparkmeta.split-manifest-bytes"
WAYS = {
    "joined": ("join", "0"),
    "read together": ("colocated", "0"),
    "of few": ("auto", "0"),
    "on the driver": ("auto", "1g"),
}


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    return HandmadeTable(tmp_path, summaries=True)


@pytest.fixture(autouse=True)
def _settings(spark: SparkSession) -> Iterator[None]:
    yield
    for name in (PLANNING, DRIVER_BYTES, CACHE, SPLIT):
        spark.conf.unset(name)


def path(name: str) -> str:
    return f"file:///t/{name}.parquet"


def scan(location: str, spark: SparkSession, way: str, row_filter: str = "true") -> sm.Scan:
    for name, value in zip((PLANNING, DRIVER_BYTES), WAYS[way], strict=True):
        spark.conf.set(name, value)
    return sm.load_table(location, spark=spark).scan(row_filter)


def plan(table: HandmadeTable, spark: SparkSession, row_filter: str = "true") -> dict[str, list[dict[str, Any]]]:
    """Data file -> its deletes; the same in every way."""
    location, by_way = table.write(), {}
    for way in WAYS:
        rows = scan(location, spark, way, row_filter).plan_files().collect()
        assert len({row["file_path"] for row in rows}) == len(rows)
        by_way[way] = {row["file_path"]: row.asDict(recursive=True) for row in rows}
    for way, rows in by_way.items():
        assert rows == by_way["joined"], way
    return {file_path: row["deletes"] for file_path, row in by_way["joined"].items()}


def strategies(table: HandmadeTable, spark: SparkSession) -> dict[str, str]:
    location = table.write()
    return {way: scan(location, spark, way).plan.choice.strategy for way in WAYS}


def of(part: str | None) -> dict[str, Any]:
    return {"partition": {"part": part}}


def test_vectors_stand_beside_their_files(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(0, 1, data(path("a1"), **of("a")), data(path("a2"), **of("a")), data(path("gone"), status=2, **of("a")))
    table.add(0, 1, data(path("b1"), **of("b")), data(path("n1"), **of(None)))
    table.add(0, 1, data(path("c1"), **of("c")))
    table.add(0, 0, data(path("u1")), data(path("u2")))
    table.add(1, 1, deletion_vector(path("a2"), record_count=7, **of("a")), deletion_vector(path("b1"), 4, **of("b")))
    table.add(1, 1, deletion_vector(path("n1"), **of(None)), deletion_vector(path("a1"), status=2, **of("a")))
    table.add(1, 0, deletion_vector(path("u1")), deletion_vector(path("gone long ago")))
    planned = plan(table, spark)
    targets = {
        file_path: [delete["referenced_data_file"] for delete in deletes] for file_path, deletes in planned.items()
    }
    assert targets == {path(name): [path(name)] if name in ("a2", "b1", "n1", "u1") else []
                       for name in ("a1", "a2", "b1", "n1", "c1", "u1", "u2")}  # fmt: skip
    (vector,) = planned[path("a2")]
    assert vector["manifest_path"].endswith("/m4.avro")
    assert (vector["record_count"], vector["content_offset"], vector["data_sequence_number"]) == (7, 4, 2)
    assert planned[path("n1")][0]["manifest_pos"] == 0
    assert strategies(table, spark) == {
        "joined": "join: the setting planning says so",
        "read together": "colocated: 5 deletion vectors are read beside the data manifests of their partitions",
        "of few": "colocated: 5 deletion vectors are read beside the data manifests of their partitions",
        "on the driver": "colocated: 5 deletion vectors are few enough for the driver to read",
    }


def test_filters_leave_out_files_and_the_vectors_of_others(table: HandmadeTable, spark: SparkSession) -> None:
    low, high = long_bounds(1, 5), long_bounds(6, 9)
    table.add(0, 1, data(path("a1"), **low, **of("a")), data(path("a2"), **high, **of("a")))
    table.add(0, 1, data(path("b1"), **high, **of("b")))
    table.add(1, 1, *(deletion_vector(path(name), **of(name[0])) for name in ("a1", "a2", "b1")))
    for row_filter, names in {
        "id > 7": ["a2", "b1"],
        "part = 'a'": ["a1", "a2"],
        "part = 'a' and id < 3": ["a1"],
    }.items():
        planned = plan(table, spark, row_filter)
        assert {file_path: len(deletes) for file_path, deletes in planned.items()} == {path(name): 1 for name in names}


@pytest.mark.parametrize("split", ["1k", "32m"])
def test_vectors_and_files_from_the_manifest_cache(table: HandmadeTable, spark: SparkSession, split: str) -> None:
    """Tasks and the driver read what tasks have cached, and don't open the manifests themselves."""
    low, high = long_bounds(1, 5), long_bounds(6, 9)
    table.add(0, 1, data(path("a1"), **low, **of("a")), data(path("a2"), **high, **of("a")))
    table.add(0, 1, data(path("b1"), None, **low, **of("b")), data(path("gone"), status=2, **low, **of("b")))
    table.add(0, 0, data(path("u1"), **low))
    gone = deletion_vector(path("gone"), **of("b"))
    table.add(1, 1, *(deletion_vector(path(name), **of(name[0])) for name in ("a1", "a2")), gone)
    table.add(1, 0, deletion_vector(path("u1")))
    location, filters = table.write(), ("true", "id > 4", "part = 'a' and id < 3")
    assert all(1_000 < manifest.stat().st_size < 10_000 for manifest in table.folder.glob("metadata/m*.avro"))
    spark.conf.set(SPLIT, split)

    def planned(way: str) -> list[list[dict[str, Any]]]:
        frames = [scan(location, spark, way, row_filter).plan_files() for row_filter in filters]
        return [sorted((row.asDict(recursive=True) for row in frame.collect()), key=str) for frame in frames]

    expected = planned("joined")
    assert [len(rows) for rows in expected] == [4, 4, 2]
    spark.conf.set(CACHE, f"{table.folder}/cache")
    assert planned("on the driver") == expected
    reason = scan(location, spark, "of few").plan.choice.strategy
    assert reason == "colocated: 4 deletion vectors are read beside the data manifests of their partitions"
    contents = {manifest: manifest.read_bytes() for manifest in table.folder.glob("metadata/m*.avro")}
    for manifest, content in contents.items():
        manifest.write_bytes(bytes(len(content)))
    for way in ("of few", "on the driver"):
        assert planned(way) == expected, way
    scanned = scan(location, spark, "on the driver")
    reason = "colocated: 4 deletion vectors are few enough for the driver to read"
    assert scanned.plan.choice.strategy == reason
    # A leaf may be gone before it is read.
    for manifest, content in contents.items():
        manifest.write_bytes(content)
    lazily = scan(location, spark, "of few").plan_files()
    shutil.rmtree(table.folder / "cache")
    assert len(lazily.collect()) == 4


def test_delete_manifests_of_other_partitions_are_not_opened(table: HandmadeTable, spark: SparkSession) -> None:
    """A task does not read a delete manifest twice either."""
    for part in "abc":
        table.add(0, 1, data(path(f"{part}1"), **of(part)))
        table.add(0, 1, data(path(f"{part}2"), **of(part)))
        table.add(1, 1, deletion_vector(path(f"{part}2"), **of(part)))
    table.add(1, 1, deletion_vector(path("gone"), **of("d")))
    manifests = scan(table.write(), spark, "read together").plan.choice.coplanned
    assert {number: list(others) for number, others in manifests.partners.items()} == {
        0: [2], 1: [2], 3: [5], 4: [5], 6: [8], 7: [8]}  # fmt: skip
    assert manifests.deletes.column("manifest").to_pylist() == [2, 5, 8]
    neighbours = list(manifests.partners.values())
    assert sum(left != right for left, right in itertools.pairwise(neighbours)) == 2
    assert {file_path: len(deletes) for file_path, deletes in plan(table, spark).items()} == {
        path(f"{part}{number}"): number - 1 for part in "abc" for number in (1, 2)
    }


def test_a_task_reads_a_manifest_once() -> None:
    class Task:
        deletes = EntryProjection.of(("location", "referenced_file", "content_type", "file_format"))

    read: list[int] = []

    class Counted(coplan_tasks.HeldDvs):
        def _decoded(self, manifest: Any) -> Any:
            read.append(manifest["manifest"])
            row = {
                "location": "v",
                "referenced_file": str(manifest["manifest"]),
                "content_type": 1,
                "file_format": "PUFFIN",
            }
            rows = [row | {"manifest": 0, "ordinal": 0}]
            return self._task.deletes.schema.empty_table().from_pylist(rows, schema=self._task.deletes.schema)

    vectors = Counted(Task())  # type: ignore[arg-type]
    for chosen in ([1, 2], [1, 2], [2, 3], [3], [1]):
        held = vectors.of([{"manifest": number, "part": 0, "file_format": "AVRO"} for number in chosen])
        assert held.column("referenced_file").to_pylist() == list(map(str, chosen))
    assert read == [1, 2, 3, 1]


def test_vectors_are_read_where_a_file_is_left() -> None:
    class Decoder:
        def entries(self, _: Any, projection: EntryProjection) -> list[pa.RecordBatch]:
            return [pa.RecordBatch.from_pylist([], projection.schema)]

    class Task:
        data = EntryProjection.of(("location",))
        decoder = Decoder()

    def vectors() -> Any:
        raise AssertionError("no file needs them")

    assert list(coplan_tasks._join_part(Task(), {}, vectors)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [equality_deletes("x:eq"), position_deletes("x:pos"), position_deletes("x:of a", referenced_data_file=path("a"))],
    ids=["equality", "positions", "of a file"],
)
def test_other_deletes_among_vectors_are_joined(
    table: HandmadeTable, spark: SparkSession, other: dict[str, Any]
) -> None:
    table.add(0, 0, data(path("a")), data(path("b"))).add(1, 0, deletion_vector(path("b")), other)
    planned = plan(table, spark)
    assert len(planned[path("a")]) == 1
    assert all(strategy.startswith("join:") for strategy in strategies(table, spark).values())


def test_partitions_that_tell_too_little_are_joined(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.add(0, 0, data(path("a"))).add(0, 0, data(path("b")))
    table.add(1, 0, deletion_vector(path("a")), deletion_vector(path("b")))
    limit(monkeypatch, held_dvs=1)
    by_way = strategies(table, spark)
    assert by_way["of few"] == "join: partitions don't tell well where 2 deletion vectors belong"
    assert by_way["read together"].startswith("colocated")
    assert all(len(deletes) == 1 for deletes in plan(table, spark).values())


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([deletion_vector(path("a")), deletion_vector(path("a"), 3)], f"two deletion vectors for.*{path('a')}"),
        ([deletion_vector(path("a"), 0)], f"a deletion vector is older than its data file.*{path('a')}"),
        ([deletion_vector(path("a"), None, status=0)], "no sequence number is known for"),
        ([deletion_vector(path("a"), **of("y"))], f"another partition spec or partition.*{path('a')}"),
    ],
    ids=["two", "older", "no number", "partition"],
)
def test_vectors_that_contradict_each_other(
    table: HandmadeTable, spark: SparkSession, way: str, vectors: list[dict[str, Any]], message: str
) -> None:
    for vector in vectors:
        vector["data_file"]["partition"] = vector["data_file"]["partition"] or {"part": "x"}
    table.add(0, 1, data(path("a"), **of("x"))).add(1, 1, *vectors, deletion_vector(path("gone"), **of("x")))
    location = table.write()
    with pytest.raises(Exception, match=message):
        scan(location, spark, way).plan_files().collect()


def test_a_vector_of_another_partition_applies_nowhere(table: HandmadeTable, spark: SparkSession) -> None:
    """If the partitions of manifests rule the vector out, its manifest is not read, and there is no error."""
    table.add(0, 1, data(path("a"), **of("x"))).add(1, 1, deletion_vector(path("a"), **of("y")))
    location = table.write()
    for way in ("read together", "of few"):
        planned = scan(location, spark, way)
        assert [row.deletes for row in planned.plan_files().collect()] == [[]]
        assert planned.plan.choice.strategy == "join: no deletion vector is in a partition that is read"
    with pytest.raises(Exception, match="another partition spec or partition"):
        scan(location, spark, "on the driver").plan_files()


def test_a_data_manifest_in_parts(table: HandmadeTable, spark: SparkSession) -> None:
    """Where no row ids are assigned, tasks decode parts of a manifest, and each reads the vectors of its files."""
    names = [str(number) for number in range(2000)]
    table.add(0, 0, *(data(path(name), status=0) for name in names))
    table.add(1, 0, *(deletion_vector(path(name)) for name in names[::2]))
    spark.conf.set(SPLIT, "4k")
    rows = scan(without_row_ids(table), spark, "of few").plan_files().selectExpr("file_path", "size(deletes) AS n")
    counts = {row["file_path"]: row["n"] for row in rows.collect()}
    assert counts == {path(name): int(name) % 2 == 0 for name in names}


def without_row_ids(table: HandmadeTable) -> str:
    """Write a table that was upgraded to version 3 and not committed to since."""
    table.row_ids = False
    return table.write()


def test_many_entries_are_joined_piece_by_piece(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coplan_tasks, "_JOINED_AT_ONCE", 1)
    table.add(0, 0, *(data(path(str(number))) for number in range(9000)))
    table.add(1, 0, *(deletion_vector(path(str(number))) for number in range(0, 9000, 3)))
    rows = (
        scan(table.write(), spark, "on the driver").plan_files().selectExpr("file_path", "size(deletes) AS n").collect()
    )
    assert sorted(row["file_path"] for row in rows if row["n"] == 1) == sorted(
        path(str(number)) for number in range(0, 9000, 3)
    )
    assert len(rows) == 9000
