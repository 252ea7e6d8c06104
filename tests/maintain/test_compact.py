"""Compaction of manifests: readers see the same table, in fewer, smaller and better ordered leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkmeta as sm
from tests.commit.test_transaction import SCHEMA, SPEC, commit, files, vectors

EAGER = {"write.tree.direct-files": "1", "write.tree.affiliated-deletes": "2"}


@pytest.fixture
def table(spark_session: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    return catalog.create_table("db.t", SCHEMA, SPEC, properties=EAGER, format_version=4, spark=spark_session)


def append(table: sm.Table, *ids: int, part: str | None = "a") -> sm.Table:
    frame = files(table.state.spark, *ids, part=part)
    return commit(table, lambda tx: tx.update_snapshot().append(frame))


def delete(table: sm.Table, *ids: int) -> sm.Table:
    gone = table.state.spark.createDataFrame([(f"/data/f{one}",) for one in ids], "file_path string")
    return commit(table, lambda tx: tx.update_snapshot().delete(gone))


def mask_rows(table: sm.Table, folder: Path, name: str, **positions: list[int]) -> sm.Table:
    deletes = vectors(table.state.spark, folder, name, **positions)
    return commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=deletes))


def seen(table: sm.Table, snapshot_id: int | None = None) -> list[Any]:
    """What a reader sees of every live file, its deletes and row ids included."""
    planned = table.scan(snapshot_id=snapshot_id).plan_files().drop("manifest_path", "manifest_pos")
    rows = planned.selectExpr("*", "transform(deletes, d -> struct(d.file_path, d.content_offset)) AS dvs")
    return sorted(map(str, rows.drop("deletes").collect()))


def history(table: sm.Table) -> dict[int, tuple[list[Any], list[str]]]:
    """What each snapshot holds, and what it changed."""
    found = {}
    for one in table.snapshots():
        changes = table.file_changes(one.parent_snapshot_id, one.snapshot_id).drop("manifest_path", "manifest_pos")
        found[one.snapshot_id] = seen(table, one.snapshot_id), sorted(map(str, changes.collect()))
    return found


def compacted(table: sm.Table, **options: Any) -> sm.Table:
    """The table after a compaction, which no reader has noticed."""
    before, parent = history(table), table.current_snapshot()
    after = table.maintenance.compact_manifests(**options).commit()
    assert after.check().collect() == []
    new = after.current_snapshot()
    assert new is not None
    assert parent is not None
    assert (new.operation, new.parent_snapshot_id) == ("replace", parent.snapshot_id)
    known = history(after)
    assert known.pop(new.snapshot_id) == (seen(table), [])
    assert known == before
    return after


def leaves(table: sm.Table, content: int = 0) -> list[Any]:
    return table.inspect.manifests().where(f"content = {content}").collect()


def test_small_leaves_become_one(table: sm.Table) -> None:
    for number in range(4):
        table = append(table, 10 * number, 10 * number + 1)
    table = delete(table, 1, 20)
    plan = table.maintenance.compact_manifests()
    rows = plan.files().collect()
    assert [(row.content, row.group, row.masked_entries > 0) for row in rows].count(("data leaf", 0, True)) == 2
    assert {reason for row in rows for reason in row.reasons} == {"small", "masked"}
    table = compacted(table)
    assert len(leaves(table)) == 1
    assert not table.state.tree.root.vectors
    summary = table.current_snapshot().summary.additional_properties
    kept = {key: summary[key] for key in ("manifests-created", "manifests-replaced", "entries-processed")}
    assert kept == {"manifests-created": "1", "manifests-replaced": "4", "entries-processed": "6"}
    again = table.maintenance.compact_manifests()
    assert again.summary().is_empty
    assert again.commit() is table


def test_leaves_are_put_in_order(table: sm.Table) -> None:
    """Every leaf holds files of all ids: a needle opens each of them, and one after the compaction."""
    for number in range(6):
        table = append(table, *range(number, 120, 6))
    table = delete(table, 7, 60, 61)
    target = leaves(table)[0].length // 2
    plan = table.maintenance.compact_manifests(cluster_by=["id"], target_leaf_bytes=target, max_overlap=1)
    assert plan.summary().depth == 6.0
    assert plan.summary().reasons["overlap"] == 6
    before = table.scan("id = 605").report()
    table = compacted(table, cluster_by=["id"], target_leaf_bytes=target, max_overlap=1)
    after = table.scan("id = 605").report()
    assert (before.data_manifests.scanned, after.data_manifests.scanned) == (6, 1)
    assert len(leaves(table)) > 6
    assert table.maintenance.compact_manifests(cluster_by=["id"], max_overlap=1).summary().depth == 1.0


def test_deletion_vectors_follow_their_files(table: sm.Table, tmp_path: Path) -> None:
    for number in range(4):
        table = append(table, *range(number, 40, 4))
    table = mask_rows(table, tmp_path, "a.puffin", f0=[1], f4=[2], f8=[3])
    table = mask_rows(table, tmp_path, "b.puffin", f1=[1], f2=[2], f3=[3], f5=[4])
    owners = [row["referenced_file"] for row in delete_leaves(table)]
    assert len([one for one in owners if one is not None]) == 2
    options = {"cluster_by": ["id"], "target_leaf_bytes": leaves(table)[0].length, "max_overlap": 0, "root_files": 0}
    table = compacted(table, **options)
    data = {row.path for row in leaves(table)}
    found = delete_leaves(table)
    assert found
    assert all(row["referenced_file"] in data for row in found)
    assert table.maintenance.compact_manifests(**options).summary().is_empty


def delete_leaves(table: sm.Table) -> list[dict[str, Any]]:
    assert table.state.tree is not None
    rows = table.state.tree.root.leaves.to_pylist()
    return [row for row in rows if row["content_type"] == 4]


def test_what_others_do_meanwhile_stays(table: sm.Table, tmp_path: Path) -> None:
    for number in range(5):
        table = append(table, 10 * number, 10 * number + 1, 10 * number + 2)
    table = delete(table, 1)
    plan = table.maintenance.compact_manifests()
    assert len(plan.files().collect()) == 5
    other = append(table, 100, 101)
    other = delete(other, 11, 21)
    other = mask_rows(other, tmp_path, "v.puffin", f20=[1])
    other = append(other, 200)
    expected = seen(other)
    after = plan.commit()
    assert seen(after) == expected
    assert after.check().collect() == []
    assert changes(after) == []


def changes(table: sm.Table) -> list[Any]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return table.file_changes(snapshot.parent_snapshot_id, snapshot.snapshot_id).collect()
