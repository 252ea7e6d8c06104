"""Tables in the layout of the Iceberg project, whose data entries hold deletion vectors: real files, in every place."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

import sparkmeta as sm
from sparkmeta.errors import ValidationError
from tests.conftest import configured
from tests.local_files import local_path
from tests.service.serving import Client, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "ts", TimestampType())
)
SPECS = {
    "unpartitioned": PartitionSpec(),
    "identity": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part")),
    "bucket and day": PartitionSpec(
        PartitionField(1, 1000, BucketTransform(4), "bucket"), PartitionField(3, 1001, DayTransform(), "day")
    ),
}
OLDER = [100, 101]


def rows(*ids: int) -> pa.Table:
    columns = {
        "id": pa.array(ids, pa.int64()),
        "part": pa.array(["ab"[number % 2] for number in ids]),
        "ts": pa.array([datetime.fromisoformat(f"2024-01-0{1 + number % 3}") for number in ids], pa.timestamp("us")),
    }
    return pa.table(columns)


def new_table(folder: Path, spec: str, layout: str, spark: Any = None, direct_files: int = 1) -> sm.Table:
    """Return an empty table. The layout `lists` is format version 3."""
    properties = {"write.delete.mode": "merge-on-read", "write.tree.direct-files": str(direct_files)}
    properties |= {} if layout == "lists" else {"write.tree.layout": layout}
    catalog: Any = sm.load_catalog("entries", type="hadoop", warehouse=folder.as_uri())
    version = 3 if layout == "lists" else 4
    table: sm.Table = catalog.create_table(
        "db.t", SCHEMA, SPECS[spec], properties=properties, format_version=version, spark=spark
    )
    return table


def with_vectors(table: sm.Table) -> sm.Table:
    """Return a table with files whose vectors changed twice."""
    table = table.append(rows(*range(24))).append(rows(*range(24, 36)))
    return table.delete("id in (1, 2, 25)").delete("id in (3, 4, 30)")


LEFT = sorted({*range(36)} - {1, 2, 3, 4, 25, 30})


def ids_of(table: sm.Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def files_of(table: sm.Table) -> set[str]:
    return {str(path) for path in Path(local_path(table.location())).rglob("*") if path.is_file()}


def of_content(table: sm.Table, *contents: int) -> pa.Table:
    files = table.inspect.arrow.files()
    return files.filter(pc.is_in(files["content"], pa.array(contents, pa.int32())))


ORDERS = [("bucket and day", order) for order in ("files first", "vectors first", "in turn")]


@pytest.mark.parametrize("direct_files", [1, 12, 100])
@pytest.mark.parametrize(("spec", "order"), [*((spec, "together") for spec in SPECS), *ORDERS])
def test_new_files_with_their_vectors(tmp_path: Path, spec: str, direct_files: int, order: str) -> None:
    """Each vector is in the entry of its file, wherever the commit writes the entry."""
    source = with_vectors(new_table(tmp_path / "source", spec, "iceberg"))
    table = new_table(tmp_path / "table", spec, "iceberg", direct_files=direct_files).append(rows(*OLDER))
    data, vectors = of_content(source, 0), of_content(source, 1)
    with table.transaction() as transaction:
        update: Any = transaction.update_snapshot()
        if order == "together":
            update.row_delta(added=data, deletes=vectors)
        elif order == "files first":
            update.row_delta(added=data).row_delta(deletes=vectors)
        elif order == "vectors first":
            update.row_delta(deletes=vectors).row_delta(added=data)
        else:
            update.row_delta(added=data, deletes=vectors.slice(0, 1)).row_delta(deletes=vectors.slice(1))
    table = table.refresh()
    assert ids_of(table) == LEFT + OLDER
    assert table.arrow.check().num_rows == 0
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties["added-dvs"] == str(len(vectors))
    listed = {local_path(path) for path in table.inspect.arrow.manifests()["path"].to_pylist()}
    assert {path for path in files_of(table) if "-leaf-" in path} <= listed, "a leaf is left over"


def test_leaves_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """The driver plans without a job if the leaves fit its limit, whose vectors are in the same files."""
    table = with_vectors(new_table(tmp_path, "identity", "iceberg", spark))
    leaves = {row["path"]: row["length"] for row in table.inspect.arrow.manifests().to_pylist()}
    jobs = spark.sparkContext.statusTracker()
    for limit, on_driver in [(sum(leaves.values()), True), (max(leaves.values()) - 1, False)]:
        spark.sparkContext.setJobGroup(f"limit {limit}", "")
        with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": str(limit)}):
            planned = sm.load_table(table.metadata_location, spark=spark).scan().arrow.plan_files()
        assert sum(map(len, planned["deletes"].to_pylist())) == len(of_content(table, 1))
        assert bool(jobs.getJobIdsForGroup(f"limit {limit}")) != on_driver
    spark.sparkContext.setJobGroup("", "")


@pytest.mark.parametrize("direct_files", [1, 100])
def test_two_vectors_of_a_new_file(tmp_path: Path, direct_files: int) -> None:
    source = with_vectors(new_table(tmp_path / "source", "unpartitioned", "iceberg"))
    table = new_table(tmp_path / "table", "unpartitioned", "iceberg", direct_files=direct_files)
    data, vectors = of_content(source, 0), of_content(source, 1)
    before = files_of(table)
    with (
        pytest.raises(ValidationError, match="gets two deletion vectors in one commit"),
        table.transaction() as transaction,
    ):
        transaction.update_snapshot().row_delta(added=data, deletes=vectors).row_delta(deletes=vectors)
    assert files_of(table) == before


@pytest.mark.parametrize(
    ("source_layout", "layout", "spec", "direct_files"),
    [
        ("iceberg", "iceberg", "bucket and day", 1),
        ("iceberg", "iceberg", "unpartitioned", 100),
        ("iceberg", "proposal", "bucket and day", 1),
        ("iceberg", "lists", "bucket and day", 1),
        ("proposal", "iceberg", "identity", 1),
        ("lists", "iceberg", "bucket and day", 1),
    ],
)
def test_tables_with_vectors_are_added(
    spark: SparkSession, tmp_path: Path, source_layout: str, layout: str, spec: str, direct_files: int
) -> None:
    """The vectors in leaves and in the root of another table are added with its files, or nothing is."""
    source = with_vectors(new_table(tmp_path / "source", spec, source_layout, spark))
    if source_layout != "lists":
        source = source.maintenance.compact_manifests(max_root_files=0).commit().delete("id = 5")
    table = new_table(tmp_path / "table", spec, layout, spark, direct_files).append(rows(*OLDER))
    before = files_of(table)
    with pytest.raises(ValidationError, match="has deletes"), table.transaction() as transaction:
        transaction.update_snapshot().append(source)
    assert files_of(table) == before
    with table.transaction() as transaction:
        transaction.update_snapshot().row_delta(added=source, deletes=source)
    table = table.refresh()
    assert ids_of(table) == ids_of(source) + OLDER
    assert table.arrow.check().num_rows == 0


def test_metadata_tables_of_all_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    """Vectors are delete files of the snapshots that have them, without statistics, wherever tables are read."""
    sm.register(spark)
    for spec in ("unpartitioned", "bucket and day"):
        table = with_vectors(new_table(tmp_path / spec.replace(" ", "_"), spec, "iceberg", spark))
        table = table.maintenance.compact_manifests(max_root_files=0).commit().delete("id = 5")
        by_source = spark.read.format("sparkmeta")
        for name in ("data_files", "delete_files"):
            expected = {
                (row["content"], row["file_path"])
                for snapshot in table.snapshots()
                for row in getattr(table.inspect.arrow, name)(snapshot_id=snapshot.snapshot_id).to_pylist()
            }
            ways = {
                "driver": getattr(table.inspect.arrow, f"all_{name}")().to_pylist(),
                "source": by_source.option("table", f"all_{name}").load(table.location()).collect(),
            }
            for way, found_rows in ways.items():
                assert {(row["content"], row["file_path"]) for row in found_rows} == expected, (way, name)
        for row in table.inspect.arrow.delete_files().to_pylist():
            assert row["file_size_in_bytes"] >= row["content_offset"] + row["content_size_in_bytes"]
            for column in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
                assert row[column] is None, column


@pytest.mark.parametrize("spec", ["unpartitioned", "bucket and day"])
def test_puffin_files_are_reachable(spark: SparkSession, tmp_path: Path, spec: str) -> None:
    """Orphan removal and expiry leave the Puffin files of live entries, and a purge deletes all of them."""
    table = with_vectors(new_table(tmp_path, spec, "iceberg", spark))
    table = table.maintenance.compact_manifests(max_root_files=0).commit()
    orphan = Path(local_path(table.location())) / "data" / "orphan.puffin"
    orphan.write_bytes(b"x")
    for path in files_of(table):
        os.utime(path, (time.time() - 864_000,) * 2)
    before = files_of(table)
    table.maintenance.remove_orphan_files().commit()
    assert before - files_of(table) == {str(orphan)}
    table.maintenance.expire_snapshots(older_than=int(time.time() * 1000) + 60_000, retain_last=1).commit()
    table = table.refresh()
    needed = {local_path(path) for path in table.inspect.arrow.delete_files()["file_path"].to_pylist()}
    assert {path for path in files_of(table) if path.endswith(".puffin")} == needed
    assert ids_of(table) == LEFT
    table = table.delete("id = 5")
    other = Path(local_path(table.location())) / "data" / "other.puffin"
    other.write_bytes(b"x")
    catalog: Any = sm.load_catalog("entries", type="hadoop", warehouse=tmp_path.as_uri())
    catalog.purge_table("db.t").commit()
    assert {str(path) for path in tmp_path.rglob("*") if path.is_file()} == {str(other)}


def test_served_plans(spark: SparkSession, tmp_path: Path) -> None:
    """A service answers as for the same table in the layout of the proposal."""
    for spec in ("unpartitioned", "bucket and day"):
        folder = tmp_path / spec.replace(" ", "_")
        table = with_vectors(new_table(folder, spec, "iceberg", spark))
        table = table.maintenance.compact_manifests(max_root_files=0).commit().delete("id = 5")
        filters = [{}, {"filter": {"type": "lt", "term": "id", "value": 6}}]
        filters.append({"filter": {"type": "eq", "term": "part", "value": "a"}})
        answers = []
        for _ in range(2):
            with served({"t": table.location()}, spark) as service:
                client: Any = Client(service)
                answers.append([planned(client.planned("t", **options)) for options in filters])
            if len(answers) == 1:
                table = table.maintenance.convert_tree("proposal").commit()
        assert answers[0] == answers[1]
        assert any(deletes for _, _, deletes in answers[0][0])


def planned(tasks: list[Any]) -> list[Any]:
    """Return the paths, counts and deletes of planned tasks."""
    return sorted(
        (
            task["data-file"]["file-path"],
            task["data-file"]["record-count"],
            [
                tuple(delete[name] for name in ("file-path", "content-offset", "content-size-in-bytes", "record-count"))
                for delete in task.get("deletes", ())
            ],
        )
        for task in tasks
    )
