"""Transactions on V4 trees, by public methods: the planned files, the root's entries, and the written files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, StringType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.manifests.v4.root import version
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StringType()))
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "s"), PartitionField(1, 1001, BucketTransform(4), "id_bucket")
)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    return catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)


def files(spark: SparkSession, *ids: int, part: str | None = "a", records: int = 10) -> DataFrame:
    """Return data files `/data/f<id>` whose column id has the values [id * 10, id * 10 + 9]."""
    rows = [
        {
            "content": 0,
            "file_path": f"/data/f{number}",
            "file_format": "PARQUET",
            "record_count": records,
            "file_size_in_bytes": 1000,
            "partition": {"s": part, "id_bucket": number % 4},
            "value_counts": [(1, records)],
            "null_value_counts": [(1, 0)],
            "lower_bounds": [(1, (number * 10).to_bytes(8, "little"))],
            "upper_bounds": [(1, (number * 10 + 9).to_bytes(8, "little"))],
        }
        for number in ids
    ]
    counts, bounds = pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int32(), pa.binary())
    schema = pa.schema(
        [
            ("content", pa.int32()),
            ("file_path", pa.string()),
            ("file_format", pa.string()),
            ("record_count", pa.int64()),
            ("file_size_in_bytes", pa.int64()),
            ("partition", pa.struct([("s", pa.string()), ("id_bucket", pa.int32())])),
            ("value_counts", counts),
            ("null_value_counts", counts),
            ("lower_bounds", bounds),
            ("upper_bounds", bounds),
        ]
    )
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def vectors(spark: SparkSession, folder: Path, name: str, **positions: list[int]) -> DataFrame:
    """Return deletion vectors in one real Puffin file, from positions by the number of the data file."""
    bitmaps = {f"/data/{data_file}": PositionBitmap.of(places) for data_file, places in positions.items()}
    blobs = [
        deletion_vector_blob(write_deletion_vector(bitmap), path, bitmap.cardinality)
        for path, bitmap in bitmaps.items()
    ]
    written = write_puffin(blobs)
    (folder / name).write_bytes(written.data)
    rows = [
        {
            "content": 1,
            "file_path": str(folder / name),
            "file_format": "PUFFIN",
            "record_count": bitmap.cardinality,
            "file_size_in_bytes": len(written.data),
            "partition": {"s": "a", "id_bucket": int(path.removeprefix("/data/f")) % 4},
            "referenced_data_file": path,
            "content_offset": blob.offset,
            "content_size_in_bytes": blob.length,
        }
        for (path, bitmap), blob in zip(bitmaps.items(), written.blobs, strict=True)
    ]
    schema = "content int, file_path string, file_format string, record_count bigint, file_size_in_bytes bigint, "
    schema += "partition struct<s: string, id_bucket: int>, referenced_data_file string, content_offset bigint, "
    return spark.createDataFrame([tuple(row.values()) for row in rows], schema + "content_size_in_bytes bigint")


def commit(table: sm.Table, change: Callable[[Any], Any]) -> sm.Table:
    with table.transaction() as tx:
        change(tx)
    return tx.commit()


def live(table: sm.Table, row_filter: str | None = None) -> list[str]:
    scan = table.scan(row_filter) if row_filter else table.scan()
    return sorted(
        row.file_path.removeprefix("file://").removeprefix("/data/")
        for row in scan.plan_files().select("file_path").collect()
    )


def root(table: sm.Table) -> list[tuple[int, str | None, int]]:
    """Return (content type, name, status) of the root's entries."""
    assert table.state.tree is not None
    rows = table.state.tree.root.table
    statuses = version(rows, "status").to_pylist()
    names = [
        None if location is None else location.rpartition("/")[2] for location in rows.column("location").to_pylist()
    ]
    return list(zip(rows.column("content_type").to_pylist(), names, statuses, strict=True))


def written(table: sm.Table) -> set[str]:
    return {path.name for path in (Path(table.location()) / "metadata").iterdir()}


def test_small_append_writes_a_root_and_a_metadata_file(table: sm.Table, spark: SparkSession) -> None:
    before = written(table)
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    new = written(table) - before
    assert len([name for name in new if "root" in name]) == 1
    assert {name for name in new if "root" not in name} - {"version-hint.text"} == {"v2.metadata.json"}
    assert root(table) == [(0, "f1", 1), (0, "f2", 1)]
    assert live(table) == ["f1", "f2"]
    summary = table.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert summary["added-records"] == "20"
    assert summary["changed-partition-count"] == "2"
    assert summary["total-data-files"] == "2"


@pytest.mark.parametrize("value", ["many", "-1", "9" * 5000])
def test_limits_that_can_not_be(table: sm.Table, spark: SparkSession, value: str) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": value}))
    before = written(table)
    with pytest.raises(sm.ValidationError, match=r"write.tree.direct-files is '.* expected a whole number"):
        commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    assert written(table) == before


def test_the_largest_limit(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "9" * 18}))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    assert live(table) == ["f1"]


def test_an_update_is_a_block(table: sm.Table, spark: SparkSession) -> None:
    with table.transaction() as tx, tx.update_snapshot() as update:
        update.append(files(spark, 1))
    assert live(table.refresh()) == ["f1"]
    with pytest.raises(ZeroDivisionError), table.transaction() as tx, tx.update_snapshot() as update:
        update.append(files(spark, 2)).append(files(spark, 1 // 0))
    assert live(table.refresh()) == ["f1"]


def test_filters_prune_by_partition_and_stats(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "1"}))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, 3)))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 9, part=None)))
    assert live(table, "s = 'a'") == ["f1", "f2", "f3"]
    assert live(table, "s is null") == ["f9"]
    assert live(table, "id >= 30 and id < 95") == ["f3", "f9"]
    assert live(table, "id = 11 and s = 'b'") == []
    assert live(table, "id < 25 and s = 'a'") == ["f1", "f2"]
    assert live(table, "id < 25 and s in ('a', 'c')") == ["f1", "f2"]


def test_leaves_are_masked_and_roots_keep_tombstones_once(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "2"}))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, 3)))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 4)))
    gone = spark.sql("SELECT '/data/f2' file_path UNION ALL SELECT '/data/f4'")
    before = written(table)
    table = commit(table, lambda tx: tx.update_snapshot().delete(gone))
    assert len(written(table) - before - {"version-hint.text"}) == 2
    assert [(kind, status) for kind, _, status in root(table)] == [(3, 0), (5, 1), (0, 2)]
    assert live(table) == ["f1", "f3"]
    planned = table.scan("id < 15").plan_files()
    table = commit(table, lambda tx: tx.update_snapshot().delete(planned))
    assert [(kind, status) for kind, _, status in root(table)] == [(3, 0), (5, 2), (5, 1)]
    assert live(table) == ["f3"]
    assert table.current_snapshot().summary.additional_properties["deleted-data-files"] == "1"  # type: ignore[union-attr]


def test_row_ids_go_on_from_commit_to_commit(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "1"}))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 3)))
    ids = {row.file_path: row.first_row_id for row in table.scan().plan_files().collect()}
    assert sorted(ids.values()) == [0, 10, 20]
    assert ids["/data/f3"] == 20
    assert table.metadata.next_row_id == 30  # type: ignore[union-attr]
    flushed = commit(table, lambda tx: tx.set_properties({"write.tree.flush-data-files": "0"}))
    flushed = commit(flushed, lambda tx: tx.update_snapshot().append(files(spark, 4)))
    assert [(kind, status) for kind, _, status in root(flushed)] == [(3, 0), (3, 0), (0, 1)]
    assert {row.file_path: row.first_row_id for row in flushed.scan().plan_files().collect()} == {**ids, "/data/f4": 30}


def test_deletion_vectors_replace_each_other(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    first = vectors(spark, tmp_path, "one.puffin", f1=[0, 5], f2=[1])
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=first))
    second = vectors(spark, tmp_path, "two.puffin", f1=[0, 5, 7])
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=second))
    deletes = {row.file_path: row.deletes for row in table.scan().plan_files().collect()}
    assert [(delete.record_count, delete.file_path) for delete in deletes["/data/f1"]] == [
        (3, str(tmp_path / "two.puffin"))
    ]
    assert [delete.record_count for delete in deletes["/data/f2"]] == [1]
    table = commit(table, lambda tx: tx.update_snapshot().delete(spark.sql("SELECT '/data/f1' file_path")))
    assert live(table) == ["f2"]
    assert sorted((kind, status) for kind, _, status in root(table)) == [(0, 0), (0, 2), (1, 0), (1, 2)]
    missing = vectors(spark, tmp_path, "three.puffin", f1=[1])
    with pytest.raises(CommitConflictError, match="/data/f1, of a new deletion vector, is not a live file"):
        commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=missing))


def test_delete_by_filter_takes_whole_files_only(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 3, part="b")))
    with pytest.raises(ValidationError, match="some of its rows may not match id < 15"):
        commit(table, lambda tx: tx.update_snapshot().delete(row_filter="id < 15"))
    table = commit(table, lambda tx: tx.update_snapshot().delete(row_filter="s = 'a' and id < 20"))
    assert live(table) == ["f2", "f3"]
    table = commit(table, lambda tx: tx.update_snapshot().overwrite(files(spark, 7), row_filter="s = 'b'"))
    assert live(table) == ["f2", "f7"]
    assert table.current_snapshot().operation == "overwrite"  # type: ignore[union-attr]


def test_replace_partitions(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, 5)))
    table = commit(table, lambda tx: tx.update_snapshot().replace_partitions(files(spark, 9)))
    assert live(table) == ["f2", "f9"]
    assert table.current_snapshot().summary.additional_properties["replace-partitions"] == "true"  # type: ignore[union-attr]


@pytest.mark.parametrize(("version", "few"), [(2, 20_000), (4, 20_000), (4, 0)])
def test_partitions_of_floats_are_equal_by_their_bits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, few: int
) -> None:
    """Spark groups -0.0 with 0.0, and Python distinguishes one NaN from another."""
    monkeypatch.setattr("sparkmeta.entries.relation.FEW_ROWS", few)
    schema, spec = (
        Schema(NestedField(1, "x", DoubleType())),
        PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x")),
    )
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("db.t", schema, spec, format_version=version, spark=spark)

    def in_partitions(**values: float) -> DataFrame:
        rows = [(f"/data/{name}", "PARQUET", 1, 10, (value,)) for name, value in values.items()]
        kinds = "file_path string, file_format string, record_count long, file_size_in_bytes long"
        kinds = f"{kinds}, partition struct<x: double>"
        return spark.createDataFrame(rows, kinds)

    nan = float("nan")
    first = in_partitions(plus=0.0, minus=-0.0, nan=nan, other_nan=nan, third_nan=nan, one=1.0)
    table = commit(table, lambda tx: tx.update_snapshot().append(first))
    assert table.current_snapshot().summary["changed-partition-count"] == "4"  # type: ignore[union-attr,index]
    new = in_partitions(new_minus=-0.0, new_nan=nan)
    table = commit(table, lambda tx: tx.update_snapshot().replace_partitions(new))
    assert live(table) == ["new_minus", "new_nan", "one", "plus"]


def test_replacing_an_unpartitioned_table_takes_files_of_older_specs(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, part="b")))
    table = commit(table, lambda tx: tx.update_spec().remove_field("s").remove_field("id_bucket").commit())
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 3).drop("partition")))
    replaced = commit(table, lambda tx: tx.update_snapshot().replace_partitions(files(spark, 9).drop("partition")))
    assert live(table) == ["f1", "f2", "f3"]
    assert live(replaced) == ["f9"]


def test_an_unpartitioned_file_among_many_partitions_replaces_everything(
    table: sm.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkmeta.entries.relation.FEW_ROWS", 1)
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, part="other")))
    table = commit(table, lambda tx: tx.update_spec().remove_field("s").remove_field("id_bucket").commit())
    unpartitioned = table.spec().spec_id
    new = [files(spark, n, part=f"p{n}").withColumn("spec_id", F.lit(0)) for n in range(3, 9)]
    new.append(files(spark, 9, part=None).withColumn("spec_id", F.lit(unpartitioned)))
    everything = reduce(DataFrame.unionByName, new)
    table = commit(table, lambda tx: tx.update_snapshot().replace_partitions(everything))
    assert live(table) == [f"f{n}" for n in range(3, 10)]


def test_a_delete_of_nothing_from_an_empty_table(table: sm.Table, spark: SparkSession) -> None:
    nothing = files(spark, 1).select("file_path").where("false")
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)).delete(nothing))
    assert live(table) == ["f1"]


def test_one_transaction_holds_several_changes(table: sm.Table, spark: SparkSession) -> None:
    with table.transaction() as tx:
        tx.set_properties({"owner": "me"})
        tx.update_snapshot().append(files(spark, 1))
        tx.update_schema().add_column("n", IntegerType()).commit()
        tx.update_snapshot(snapshot_properties={"note": "second"}).append(files(spark, 2))
    table = table.refresh()
    assert table.metadata_location.endswith("v2.metadata.json")
    assert table.properties["owner"] == "me"
    assert table.schema().find_field("n").field_id not in {
        expression.expr_id for expression in table.metadata.expressions
    }  # type: ignore[union-attr]
    assert len(table.snapshots()) == 2
    assert [entry.snapshot_id for entry in table.history()] == [table.current_snapshot().snapshot_id]  # type: ignore[union-attr]
    assert live(table) == ["f1", "f2"]
    assert table.current_snapshot().summary.additional_properties["note"] == "second"  # type: ignore[union-attr]


LATE: dict[str, Callable[[Any, DataFrame], Any]] = {
    "update_snapshot": lambda tx, new: tx.update_snapshot().append(new),
    "set_properties": lambda tx, _: tx.set_properties(x="y"),
    "remove_properties": lambda tx, _: tx.remove_properties("x"),
    "update_schema": lambda tx, _: tx.update_schema().add_column("late", LongType()).commit(),
    "update_spec": lambda tx, _: tx.update_spec().add_field("id", "identity").commit(),
    "update_sort_order": lambda tx, _: tx.update_sort_order().asc("id", IdentityTransform()).commit(),
    "create_tag": lambda tx, _: tx.manage_snapshots().create_tag(tx.table_metadata.current_snapshot_id, "t").commit(),
    "fast_forward": lambda tx, _: tx.manage_snapshots().fast_forward("b", "main").commit(),
    "rows": lambda tx, _: tx.delete("id = 1"),
}
LATE_FILES: dict[str, Callable[[Any, DataFrame], Any]] = {
    "append": lambda update, new: update.append(new),
    "delete": lambda update, new: update.delete(new),
    "overwrite": lambda update, new: update.overwrite(new, new),
    "row_delta": lambda update, new: update.row_delta(new),
    "rewrite": lambda update, new: update.rewrite(new),
    "replace_partitions": lambda update, new: update.replace_partitions(new),
    "validate_no_conflicts": lambda update, _: update.validate_no_conflicts(),
    "validate_data_files_exist": lambda update, new: update.validate_data_files_exist(new),
    "validate_new_paths": lambda update, _: update.validate_new_paths(),
    "assume_new_files": lambda update, _: update.assume_new_files(),
}


def test_changes_after_the_commit_are_refused(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    with table.transaction() as tx:
        schema = tx.update_schema().add_column("late", LongType())
        update = tx.update_snapshot().append(files(spark, 2))
        table = tx.commit()
    assert tx.commit() is table
    late = files(spark, 3)
    for name, change in LATE.items():
        with pytest.raises(ValidationError, match="the transaction is committed"):
            pytest.fail(f"{name} is lost: {change(tx, late)}")
    for name, change in LATE_FILES.items():
        with pytest.raises(ValidationError, match="the transaction is committed"):
            pytest.fail(f"{name} is lost: {change(update, late)}")
    with pytest.raises(ValidationError, match="the transaction is committed"):
        schema.commit()
    assert table.refresh().metadata_location == table.metadata_location


def test_a_builder_that_has_committed_takes_no_more_changes(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manage = table.manage_snapshots().create_tag(snapshot.snapshot_id, "first")
    manage.commit()
    with pytest.raises(ValidationError, match="the transaction is committed"):
        manage.create_tag(snapshot.snapshot_id, "second").commit()
    assert sorted(table.refresh().refs()) == ["first", "main"]


def test_branches_have_trees_of_their_own(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    first = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    table = commit(table, lambda tx: tx.manage_snapshots().create_branch(first, "audit").commit())
    table = commit(table, lambda tx: tx.update_snapshot("audit").append(files(spark, 2)))
    assert live(table) == ["f1"]
    branch = table.scan().use_ref("audit").plan_files().select("file_path").collect()
    assert sorted(row.file_path for row in branch) == ["/data/f1", "/data/f2"]
    with pytest.raises(ValidationError, match="has no branch 'nope'"):
        commit(table, lambda tx: tx.update_snapshot("nope").append(files(spark, 3)))


def test_large_vectors_leave_the_root(table: sm.Table, spark: SparkSession) -> None:
    limits = {"write.tree.direct-files": "1", "write.tree.inline-vector-bytes": "10"}
    table = commit(table, lambda tx: tx.set_properties(limits))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, 3, 4)))
    for number in (2, 3):
        gone = spark.sql(f"SELECT '/data/f{number}' file_path")
        table = commit(table, lambda tx, gone=gone: tx.update_snapshot().delete(gone))
    assert table.state.tree is not None
    vector = table.state.tree.manifest_dvs.to_pylist()[0]
    assert vector["location"].endswith(".puffin")
    assert vector["inline_content"] is None
    assert live(table) == ["f1", "f4"]


def test_writers_that_meet_both_win(table: sm.Table, spark: SparkSession) -> None:
    stale = table
    commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    merged = commit(stale, lambda tx: tx.update_snapshot().append(files(spark, 2)))
    assert live(merged) == ["f1", "f2"]
    sequences = [snapshot.sequence_number for snapshot in merged.snapshots()]
    assert sequences == [1, 2]
    stale = merged
    gone = spark.sql("SELECT '/data/f1' file_path")
    commit(merged, lambda tx: tx.update_snapshot().delete(gone))
    with pytest.raises(ValidationError, match="/data/f1 is not a live file of the table"):
        commit(stale, lambda tx: tx.update_snapshot().delete(gone))
    nameless = spark.sql("SELECT CAST(NULL AS STRING) file_path")
    for bad, problem in ((gone.union(gone), "is to be removed twice"), (nameless, "file to remove is None")):
        with pytest.raises(ValidationError, match=f"{problem}$") as caught:
            commit(stale, lambda tx, bad=bad: tx.update_snapshot().delete(bad))
        assert not isinstance(caught.value, CommitConflictError)


def test_threads_commit_one_after_the_other(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.set_properties({"commit.retry.num-retries": "20"}))
    frames = {number: files(spark, number) for number in range(4)}
    failures: list[BaseException] = []

    def append(number: int) -> None:
        try:
            commit(table, lambda tx: tx.update_snapshot().append(frames[number]))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert live(table.refresh()) == ["f0", "f1", "f2", "f3"]


def test_rows_that_others_deleted_do_not_come_back(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    """A rewrite began before a deletion vector was added: its new file contains the deleted rows."""
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 5)))
    stale = table
    table = commit(
        table, lambda tx: tx.update_snapshot().row_delta(deletes=vectors(spark, tmp_path, "v.puffin", f1=[3]))
    )
    replaced = spark.sql("SELECT '/data/f1' file_path")
    with pytest.raises(CommitConflictError, match="deleted rows of a file to replace"):
        commit(stale, lambda tx: tx.update_snapshot().rewrite(replaced, files(spark, 9)))
    again = commit(table, lambda tx: tx.update_snapshot().rewrite(replaced, files(spark, 9, records=9)))
    assert live(again) == ["f5", "f9"]
    other = spark.sql("SELECT '/data/f5' file_path")
    late = commit(stale, lambda tx: tx.update_snapshot().rewrite(other, files(spark, 13)))
    assert live(late) == ["f13", "f9"]


@pytest.mark.parametrize("place", ["root", "leaf"])
def test_a_vector_that_is_removed_and_replaced_by_one_commit_counts_once(
    table: sm.Table, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "0" if place == "leaf" else "9"}))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 5, 9)))
    old = vectors(spark, tmp_path, "old.puffin", f1=[3, 4], f5=[1], f9=[7])
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=old))
    assert ({row.content for row in table.inspect.manifests().collect()} == {0, 1}) == (place == "leaf")
    new = vectors(spark, tmp_path, "new.puffin", f1=[3, 4], f5=[1, 2])
    named = old.where("referenced_data_file = '/data/f1'").select("file_path", "content_offset")
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=new, removed=named))
    summary = table.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    counts = {name: summary.get(name) for name in ("added-dvs", "removed-dvs", "removed-position-deletes")}
    assert counts == {"added-dvs": "2", "removed-dvs": "2", "removed-position-deletes": "3"}
    assert summary["total-position-deletes"] == "5"
    planned = {
        row.file_path: [delete.record_count for delete in row.deletes] for row in table.scan().plan_files().collect()
    }
    assert planned == {"/data/f1": [2], "/data/f5": [2], "/data/f9": [1]}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_vector_of_a_file_that_came_back_elsewhere_is_found(
    table: sm.Table, spark: SparkSession, tmp_path: Path, at_once: bool
) -> None:
    """The file left its leaf, by the same commit or another. A delete leaf of that leaf would hide the vector."""
    limits = {"write.tree.direct-files": "0", "write.tree.affiliated-deletes": "1"}
    table = commit(table, lambda tx: tx.set_properties(limits))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 5, 9)))
    removed, again = spark.sql("SELECT '/data/f1' file_path"), files(spark, 1, records=8)
    deletes = vectors(spark, tmp_path, "v.puffin", f1=[3], f5=[1, 2])
    if at_once:
        table = commit(table, lambda tx: tx.update_snapshot().row_delta(again, deletes=deletes, removed=removed))
    else:
        stale = table
        commit(table, lambda tx: tx.update_snapshot().rewrite(removed, again))
        table = commit(stale, lambda tx: tx.update_snapshot().row_delta(deletes=deletes))
    planned = {
        row.file_path: [delete.record_count for delete in row.deletes] for row in table.scan().plan_files().collect()
    }
    assert planned == {"/data/f1": [1], "/data/f5": [2], "/data/f9": []}
    assert [row.asDict() for row in table.check().collect()] == []


@pytest.mark.parametrize(("filters", "conflicts"), [("s = 'a'", True), ("s = 'z'", False), ("id > 1000", False)])
def test_serializable_isolation(table: sm.Table, spark: SparkSession, filters: str, conflicts: bool) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    stale = table
    other = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 2))).current_snapshot()

    def overwrite(tx: Any) -> None:
        tx.update_snapshot().append(files(spark, 7, part="z")).validate_no_conflicts(filters)

    if conflicts:
        who = f"snapshot {other.snapshot_id}, of another commit or an earlier change of this transaction,"  # type: ignore[union-attr]
        with pytest.raises(CommitConflictError, match=f"{who} added data that may match: /data/f2"):
            commit(stale, overwrite)
    else:
        assert live(commit(stale, overwrite)) == ["f1", "f2", "f7"]


def test_snapshot_isolation(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    stale = table
    table = commit(
        table, lambda tx: tx.update_snapshot().row_delta(deletes=vectors(spark, tmp_path, "v.puffin", f1=[3]))
    )
    with pytest.raises(CommitConflictError, match="added deletes of rows that may match"):
        commit(
            stale, lambda tx: tx.update_snapshot().append(files(spark, 3)).validate_no_conflicts(isolation="snapshot")
        )
    removed = commit(table, lambda tx: tx.update_snapshot().delete(spark.sql("SELECT '/data/f2' file_path")))
    with pytest.raises(CommitConflictError, match="removed a data file that may match: /data/f2"):
        commit(
            table, lambda tx: tx.update_snapshot().append(files(spark, 3)).validate_no_conflicts(isolation="snapshot")
        )
    done = commit(removed, lambda tx: tx.update_snapshot().append(files(spark, 3)).validate_no_conflicts())
    assert live(done) == ["f1", "f3"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"file_path": None}, "file_path of file None is None: it is missing"),
        ({"record_count": -1}, "record_count of file /data/f1 is -1: it is negative"),
        ({"file_format": "CSV"}, "file_format of file /data/f1 is 'csv': a data entry has one of"),
        ({"content": 7}, "content of file /data/f1 is 7: this is the type of a manifest's entry"),
        ({"partition": None}, "partition of file /data/f1 has no field s"),
    ],
)
def test_bad_files_are_refused(table: sm.Table, spark: SparkSession, change: dict[str, Any], problem: str) -> None:
    good = files(spark, 1).toArrow()
    name, value = next(iter(change.items()))
    index = good.column_names.index(name)
    bad = good.set_column(index, name, pa.array([value], good.schema.field(name).type))
    before = written(table)
    with pytest.raises(ValidationError, match=problem):
        commit(table, lambda tx: tx.update_snapshot().append(spark.createDataFrame(bad)))
    assert written(table) == before


@pytest.mark.parametrize("format_version", [2, 3])
def test_tables_with_lists(spark: SparkSession, tmp_path: Path, format_version: int) -> None:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    stale = catalog.create_table("db.old", SCHEMA, SPEC, format_version=format_version, spark=spark)
    commit(stale, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    commit(stale, lambda tx: tx.update_snapshot().append(files(spark, 3)))
    table = commit(stale.refresh(), lambda tx: tx.update_snapshot().delete(named(spark, "/data/f1")))
    assert live(table) == ["f2", "f3"]
    before = written(table)
    with pytest.raises(ValidationError, match="/data/f2 is in the table already"):
        commit(table, lambda tx: tx.update_snapshot().append(files(spark, 2)))
    assert written(table) == before


def named(spark: SparkSession, path: str) -> DataFrame:
    return spark.sql(f"SELECT '{path}' AS file_path")


def test_tables_of_sql_catalogs(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sm.load_catalog("sql", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.pyiceberg.create_namespace("db")  # type: ignore[attr-defined]
    table = catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)  # type: ignore[attr-defined]
    stale = table
    commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))
    commit(stale, lambda tx: tx.update_snapshot().append(files(spark, 2)))
    assert live(catalog.load_table("db.t", spark)) == ["f1", "f2"]
    assert live(stale.refresh()) == ["f1", "f2"]


def test_metadata_tables_of_all_snapshots(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "1"}))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2)))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 3)))
    table = commit(table, lambda tx: tx.update_snapshot().delete(spark.sql("SELECT '/data/f1' file_path")))
    inspect = table.inspect
    assert {row.file_path for row in inspect.all_files().collect()} == {"/data/f1", "/data/f2", "/data/f3"}
    assert [row.file_path for row in inspect.files().orderBy("file_path").collect()] == ["/data/f2", "/data/f3"]
    leaf, everywhere = inspect.manifests().collect()[0], inspect.all_manifests().collect()
    assert (leaf.content, leaf.added_data_files_count) == (0, 2)
    assert [(summary.lower_bound, summary.upper_bound) for summary in leaf.partition_summaries] == [
        ("a", "a"),
        ("1", "2"),
    ]
    assert [row.path for row in everywhere] == [leaf.path] * 3
    assert [row.manifest_list for row in inspect.snapshots().collect()] == [
        snapshot.root_manifest for snapshot in table.snapshots()
    ]
    everything = inspect.all_entries().select("status", "data_file.file_path", "data_file.partition.s").collect()
    assert {row.s for row in everything} == {"a"}
    narrow, wide = table.scan().plan_files(), inspect.entries().orderBy("data_file.file_path").collect()
    assert {row.manifest_path for row in narrow.collect()} == {leaf.path, table.current_snapshot().root_manifest}  # type: ignore[union-attr]
    assert [row.data_file.lower_bounds[1] for row in wide] == [(20).to_bytes(8, "little"), (30).to_bytes(8, "little")]


def test_files_of_one_table_are_appended_to_another_as_they_are(
    table: sm.Table, spark: SparkSession, tmp_path: Path
) -> None:
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, 3)))
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    other = catalog.create_table("db.other", SCHEMA, SPEC, format_version=4, spark=spark)  # type: ignore[attr-defined]
    other = commit(other, lambda tx: tx.update_snapshot().append(table.inspect.files()))
    left, right = (
        sorted(either.inspect.files().drop("first_row_id").collect(), key=lambda row: row.file_path)
        for either in (table, other)
    )
    assert left == right


@pytest.mark.parametrize("format_version", [2, 4])
def test_a_new_column_gets_no_id_that_another_commit_has_assigned(
    spark: SparkSession, tmp_path: Path, format_version: int
) -> None:
    """The schema is the same again, but files contain the dropped column under the id that the new one would get."""
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("db.ids", SCHEMA, format_version=format_version, spark=spark)
    transaction = table.transaction()
    transaction.update_schema().add_column("n", IntegerType()).commit()
    table.update_schema().add_column("n", IntegerType()).commit()
    table.refresh().append(spark.sql("SELECT 1L id, 'a' s, 4444 n"))
    table.refresh().update_schema().delete_column("n").commit()
    assert table.refresh().schema() == table.schema()
    with pytest.raises(CommitConflictError, match="last assigned field id has changed"):
        transaction.commit()
    table = table.refresh()
    table.update_schema().add_column("n", IntegerType()).commit()
    assert table.refresh().scan().to_df().collect() == [(1, "a", None)]


def test_a_column_and_an_expression_that_meet(table: sm.Table) -> None:
    """The expressions of a tree's partition spec get ids of columns."""
    transaction = table.transaction()
    transaction.update_schema().add_column("n", IntegerType()).commit()
    table.update_spec().add_field("id", "truncate[10]").commit()
    with pytest.raises(CommitConflictError, match="last assigned field id has changed"):
        transaction.commit()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (IntegerType(), 2**31),
        (LongType(), -(2**63) - 1),
        (FloatType(), 1e300),
        (FloatType(), float("inf")),
        (DoubleType(), float("-inf")),
        (DoubleType(), float("nan")),
    ],
)
def test_default_values_that_are_out_of_range(table: sm.Table, kind: Any, value: float) -> None:
    problem = f"the default value of n is .*: it is out of the range of {kind}"
    with pytest.raises(ValidationError, match=problem):
        table.update_schema().add_column("n", kind, default_value=value).commit()
    table.update_schema().add_column("n", kind).commit()
    table = table.refresh()
    with pytest.raises(ValidationError, match=problem):
        table.update_schema().set_default_value("n", value).commit()
    table.update_schema().set_default_value("n", 7).commit()
    assert table.refresh().schema().find_field("n").write_default == 7
