"""Commits to tables with manifest lists: of many files, merged, tried again, and with faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.commit import listed_writer
from sparkmeta.errors import CommitFailedError, CommitStateUnknownError, FileAccessError, UnsupportedError
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.storage.files import LocalFiles
from tests.commit.operations import SCHEMA, SPEC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.operations.table_operations import TableVersion

QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}


def new_table(spark: SparkSession, folder: Path, version: int = 2, **properties: str) -> sm.Table:
    catalog = sm.load_catalog("lists", type="hadoop", warehouse=str(folder))
    named = QUICK | {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return catalog.create_table("db.t", SCHEMA, SPEC, properties=named, format_version=version, spark=spark)


def data_files(spark: SparkSession, start: int, stop: int) -> DataFrame:
    """Files of 10 rows in partitions a to e."""
    part = F.element_at(F.array(*map(F.lit, "abcde")), (F.col("id") % 5 + 1).cast("int"))
    return spark.range(start, stop).select(
        F.concat(F.lit("/data/f"), "id").alias("file_path"),
        F.lit("parquet").alias("file_format"),
        F.lit(0).alias("spec_id"),
        F.struct(part.alias("s")).alias("partition"),
        F.lit(10).cast("long").alias("record_count"),
        F.lit(100).cast("long").alias("file_size_in_bytes"),
        F.create_map(F.lit(1), F.lit(10).cast("long")).alias("value_counts"),
    )


def named(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(f"/data/f{number}",) for number in ids], "file_path string")


def change(table: sm.Table, added: DataFrame | None = None, removed: DataFrame | None = None) -> sm.Table:
    with table.transaction() as tx:
        update = tx.update_snapshot()
        if added is not None:
            update.append(added)
        if removed is not None:
            update.delete(removed)
    return table.refresh()


def live(table: sm.Table) -> set[int]:
    paths = table.scan().plan_files().select("file_path").toArrow().column(0).to_pylist()
    assert len(paths) == len(set(paths))
    return {int(path.removeprefix("/data/f")) for path in paths}


def left_over(table: sm.Table, folder: Path) -> set[str]:
    """The metadata files that no snapshot, and no version of the table, names."""
    used = {"version-hint.text"}
    for entry in (table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)):
        used.add(entry.rpartition("/")[2])
    for snapshot in table.snapshots():
        manifests = table.state.at(snapshot).manifest_files.column("manifest_path").to_pylist()
        used |= {path.rpartition("/")[2] for path in (snapshot.manifest_list, *manifests)}
    written = {path.name for path in (folder / "db" / "t" / "metadata").iterdir() if not path.name.startswith(".")}
    return written - used


@pytest.mark.parametrize("version", [2, 3])
def test_many_files_are_written_by_tasks(
    spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Several manifests of the target size, sorted by partition; then a file of each is removed."""
    monkeypatch.setattr(listed_writer, "MOST_ON_DRIVER", 2_000)
    table = new_table(spark_session, tmp_path, version, commit__manifest__target_size_bytes="20000")
    table = change(table, data_files(spark_session, 0, 3000))
    assert live(table) == {*range(3000)}
    manifests = table.inspect.manifests().collect()
    assert len(manifests) > 3
    assert sum(row["added_data_files_count"] for row in manifests) == 3000
    assert {row["added_snapshot_id"] for row in manifests} == {table.current_snapshot().snapshot_id}  # type: ignore[union-attr]
    one_partition = table.scan("s = 'c'")
    assert one_partition.plan_files().count() == 600
    assert one_partition.report().to_dict()["data_manifests"]["scanned"] < len(manifests)
    entries = table.inspect.entries()
    assert entries.where("status <> 1 OR sequence_number <> 1").isEmpty()
    if version == 3:
        row_ids = table.scan().plan_files().select("first_row_id").toArrow().column(0).to_pylist()
        assert sorted(row_ids) == [*range(0, 30_000, 10)]
    removed = [*range(0, 3000, 300)]
    table = change(table, removed=named(spark_session, *removed))
    assert live(table) == {*range(3000)}.difference(removed)
    statuses = {row["status"]: row["count"] for row in table.inspect.entries().groupBy("status").count().collect()}
    assert statuses[2] == len(removed)
    if version == 3:
        row_ids = table.scan().plan_files().select("first_row_id").toArrow().column(0).to_pylist()
        assert len({*row_ids}) == 3000 - len(removed)


def test_a_retry_writes_only_the_list(spark_session: SparkSession, tmp_path: Path) -> None:
    """Another commit comes first: manifests are used again, unless that commit changed what they were made of."""
    table = change(new_table(spark_session, tmp_path), data_files(spark_session, 0, 20))
    with table.transaction() as tx:
        tx.update_snapshot().append(data_files(spark_session, 20, 30)).delete(named(spark_session, 3))
        change(table, data_files(spark_session, 30, 40), named(spark_session, 4))
    after = table.refresh()
    assert live(after) == {*range(40)} - {3, 4}
    assert left_over(after, tmp_path) == set()
    parent = after.snapshot_by_id(after.current_snapshot().parent_snapshot_id)  # type: ignore[union-attr,arg-type]
    assert parent is not None
    assert live_at(after, parent.snapshot_id) == {*range(20), *range(30, 40)} - {4}


def live_at(table: sm.Table, snapshot_id: int) -> set[int]:
    paths = table.scan(snapshot_id=snapshot_id).plan_files().select("file_path").collect()
    return {int(row[0].removeprefix("/data/f")) for row in paths}


@pytest.mark.parametrize("known", [True, False])
def test_a_commit_that_fails(
    spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Its files are deleted if it is known not to have been committed; after an unknown outcome all stay."""
    table = change(new_table(spark_session, tmp_path, commit__retry__num_retries="0"), data_files(spark_session, 0, 5))
    before = {path.name for path in (tmp_path / "db" / "t" / "metadata").iterdir()}

    def publish(files: LocalFiles, location: str, data: bytes) -> None:
        raise FileExistsError(location) if known else OSError(f"{location}: no answer")

    read = LocalFiles.read

    def unreadable(files: LocalFiles, location: str) -> bytes:
        if location.endswith("/v3.metadata.json"):
            raise OSError(f"{location}: no answer")
        return read(files, location)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "publish", publish)
        if not known:
            patch.setattr(LocalFiles, "read", unreadable)
        with pytest.raises(CommitFailedError if known else CommitStateUnknownError):
            change(table, data_files(spark_session, 5, 9))
    written = {path.name for path in (tmp_path / "db" / "t" / "metadata").iterdir()} - before
    assert live(table.refresh()) == {*range(5)}
    assert bool([name for name in written if name.endswith(".avro")]) == (not known)


def change_file(table: sm.Table, **fields: object) -> None:
    """Publish the next version of a table's metadata with other fields, as another library may."""
    file = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(file.read_text()) | {name.replace("_", "-"): value for name, value in fields.items()}
    number = int(file.name.removeprefix("v").removesuffix(".metadata.json"))
    file.with_name(f"v{number + 1}.metadata.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"format_version": 4}, "it is a table of format version 4 with manifest lists"),
        ({"encryption_keys": [{"key-id": "k", "encrypted-key-metadata": "AA=="}]}, "the table is encrypted"),
    ],
)
def test_a_table_that_can_not_be_committed_to_any_more(
    spark_session: SparkSession, tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    """The first attempt meets the table's new version, which is no longer one of ours."""
    table = change(new_table(spark_session, tmp_path, 3), data_files(spark_session, 0, 2))
    transaction = table.transaction()
    transaction.update_snapshot().append(data_files(spark_session, 2, 4))
    change_file(table, **fields)
    with pytest.raises(UnsupportedError, match=problem):
        transaction.commit()
    assert left_over(table.refresh(), tmp_path) <= {Path(table.metadata_location).name}


def test_a_table_that_is_gone_when_a_commit_is_tried_again(
    spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = change(new_table(spark_session, tmp_path), data_files(spark_session, 0, 2))
    stale = table
    table = change(table, data_files(spark_session, 2, 4))
    transaction = stale.transaction()
    transaction.update_snapshot().append(data_files(spark_session, 4, 6))

    def refresh(_: object) -> TableVersion:
        raise FileAccessError("the store does not respond")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystemOperations, "refresh", refresh)
        with pytest.raises(FileAccessError, match="does not respond"):
            transaction.commit()
    assert left_over(table.refresh(), tmp_path) == set()
