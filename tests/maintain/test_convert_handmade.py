"""Conversion of manifests of format versions 1 to 3: their layout, and concurrent commits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, ValidationError
from tests.frames import local_frame
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds, position_deletes
from tests.maintain.test_commands import command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EAGER = {"write.tree.affiliated-deletes": "2", "write.tree.direct-files": "1"}
A, B = ({"partition": {"part": value}} for value in "ab")


def loaded(spark: SparkSession, table: HandmadeTable) -> sm.Table:
    table.write()
    return sm.load_table(f"file://{table.folder}", spark=spark)


def with_deletes(folder: Path) -> HandmadeTable:
    """Return two data manifests, deletion vectors of both in one delete manifest, and other deletes in three more."""
    table = HandmadeTable(folder, properties=EAGER, summaries=True, row_ids=False)
    table.add(0, 1, *(data(f"x:a{i}", 1, status=2 if i == 1 else 1, **long_bounds(i, i + 9), **A) for i in range(4)))
    table.add(0, 1, *(data(f"x:b{i}", 1, status=0, **B) for i in range(3)))
    table.add(
        1,
        1,
        *(
            deletion_vector(of, 2, content_offset=4 + 40 * i, file_size_in_bytes=999, **part)
            for i, (of, part) in enumerate(VECTORS)
        ),
    )
    table.add(1, 1, equality_deletes("x:e0", 3, **A))
    table.add(1, 0, equality_deletes("x:e1", 3, **long_bounds(0, 4)))
    return table.add(1, 1, position_deletes("x:p0", 3, **A), equality_deletes("x:e2", 3, **B))


VECTORS = (("x:a0", A), ("x:b0", B), ("x:a3", A), ("x:b2", B))


def seen(table: sm.Table, **options: Any) -> list[str]:
    """Return a plan without the positions of entries."""
    return placeless(table.scan(**options))


def placeless(scan: sm.Scan) -> list[str]:
    rows = [row.asDict(recursive=True) for row in scan.plan_files().collect()]
    for row in rows:
        for entry in (row, *row["deletes"]):
            del entry["manifest_path"], entry["manifest_pos"]
        row["deletes"].sort(key=str)
    return sorted(json.dumps(row, default=str) for row in rows)


def deleted(table: sm.Table, *paths: str) -> sm.Table:
    with table.transaction() as tx:
        tx.update_snapshot().delete(local_frame(table.state.spark, pa.table({"file_path": list(paths)})))
    return table.refresh()


def test_an_upgrade_that_compacts(spark: SparkSession, tmp_path: Path) -> None:
    """One commit converts data and deletes to the tree's layout, affiliated.

    Position delete files stay, and are named.
    """
    expected = loaded(spark, with_deletes(tmp_path / "expected")).maintenance.upgrade(4).commit()
    expected = deleted(expected, "x:b1")
    table = loaded(spark, with_deletes(tmp_path / "t"))
    before = seen(table)
    plan = table.maintenance.upgrade(4, compact=True)
    compaction = plan.summary().compaction
    assert compaction is not None
    assert (compaction.data_leaves, compaction.delete_leaves, compaction.converted_leaves) == (2, 3, 5)
    remaining = f"{table.location()}/metadata/m5.avro"
    assert compaction.position_deletes == {remaining: 1}
    assert f"1 position delete files of version 2 stay in 1 manifests: {remaining}" in str(plan.summary())
    assert "5 leaves have the layout of versions 1 to 3" in command(table.location(), "--compact", name="upgrade")
    assert "with the option compact" not in str(plan.summary())
    assert "with the option compact" in str(table.maintenance.upgrade(4).summary())
    upgraded = plan.commit()
    (old, new) = upgraded.snapshots()
    assert (upgraded.format_version, new.parent_snapshot_id, new.operation) == (4, old.snapshot_id, "replace")
    assert len(upgraded.metadata.metadata_log) == 1
    assert upgraded.check().collect() == []
    assert upgraded.file_changes(old.snapshot_id, new.snapshot_id).collect() == []
    assert seen(upgraded, snapshot_id=old.snapshot_id) == before
    assert upgraded.state.tree is not None
    leaves = upgraded.state.tree.root.leaves.to_pylist()
    assert {row["location"] for row in leaves if row["file_format"] == "avro"} == {remaining}
    owners = {row["referenced_file"] for row in leaves if row["content_type"] == 4} - {None}
    assert owners == {row["location"] for row in leaves if row["content_type"] == 3}
    assert len(owners) == 1
    again = upgraded.maintenance.compact_manifests().summary()
    assert (again.converted_leaves, again.position_deletes) == (0, {remaining: 1})
    table = deleted(upgraded, "x:b1")
    assert seen(table) == seen(expected)
    assert seen(table, row_filter="id > 11") == seen(expected, row_filter="id > 11")
    assert len(seen(table, row_filter="id > 11")) == len(seen(table)) - 2
    assert table.check().collect() == []


def test_commits_that_come_first(spark: SparkSession, tmp_path: Path) -> None:
    """Entries that they remove from manifests are masked in the new leaves. New row ids of manifests are a conflict."""
    table = loaded(spark, with_deletes(tmp_path / "t")).maintenance.upgrade(4).commit()
    plan = table.maintenance.compact_manifests()
    other = deleted(table, "x:a3", "x:b1")
    after = plan.commit()
    assert seen(after) == seen(other)
    assert after.check().collect() == []
    table = loaded(spark, with_deletes(tmp_path / "branched")).maintenance.upgrade(4).commit()
    table.manage_snapshots().create_branch(10, "other").commit()
    plan = table.refresh().maintenance.compact_manifests()
    with table.refresh().transaction() as tx:
        tx.update_snapshot(branch="other")
    after = plan.commit()
    assert after.maintenance.compact_manifests().summary().data_leaves == 2
    again = after.maintenance.compact_manifests().commit()
    assert again.check().collect() == []
    assert [row_id(row) for row in seen(again)] == [row_id(row) for row in seen(after)]
    assert min(row_id(row) for row in seen(again)) > max(
        row_id(row) for row in placeless(after.scan().use_ref("other"))
    )


def row_id(row: str) -> int:
    return int(json.loads(row)["first_row_id"])


def test_columns_that_are_added_before_the_upgrade(spark: SparkSession, tmp_path: Path) -> None:
    """The upgrade assigns other ids to expressions than the ids in the written leaves."""
    handmade = with_deletes(tmp_path / "t")
    handmade.specs = ((), ({"source-id": 2, "field-id": 1000, "name": "short", "transform": "truncate[10]"},))
    table = loaded(spark, handmade)
    plan = table.maintenance.upgrade(4, compact=True)
    assert plan.summary().compaction is not None
    table.operations.commit(table.version, table.metadata.model_copy(update={"last_column_id": 200}))
    with pytest.raises(CommitConflictError, match="gives its expressions other ids by now: plan again"):
        plan.commit()
    assert table.refresh().maintenance.upgrade(4, compact=True).commit().check().collect() == []


def test_large_manifests_are_sorted_among_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """They are sorted by a column whose bounds only manifests contain. Each new leaf has a range of it."""
    table = HandmadeTable(tmp_path, summaries=True)
    for start in (0, 1):
        table.add(0, 0, *(data(f"x:f{i}", 1, **long_bounds(7 * i % 1009, 7 * i % 1009)) for i in range(start, 900, 2)))
    upgraded = loaded(spark, table).maintenance.upgrade(4).commit()
    plan = upgraded.maintenance.compact_manifests(cluster_by=["id"], target_leaf_bytes=200)
    assert {tuple(row.reasons) for row in plan.to_df().collect()} == {("layout",)}
    before, after = seen(upgraded), plan.commit()
    assert seen(after) == before
    assert after.state.tree is not None
    stats = after.state.tree.root.leaves.column("content_stats").combine_chunks().field("1")
    ranges = sorted(zip(stats.field("lower_bound").to_pylist(), stats.field("upper_bound").to_pylist(), strict=True))
    assert len(ranges) > 9
    assert all(left[1] <= right[0] for left, right in pairwise(ranges))


def test_entries_that_a_tree_cannot_hold(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path, summaries=True)
    table.add(0, 0, data("x:f0", 1), data("x:f1", None, status=0))
    upgraded = loaded(spark, table).maintenance.upgrade(4).commit()
    problem = r"m0\.avro: version_info.sequence_number is None: the entry of x:f1 has none"
    with pytest.raises(ValidationError, match=problem):
        upgraded.maintenance.compact_manifests().commit()
