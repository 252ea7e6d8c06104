"""Compaction of manifests: readers see the same table, in fewer, larger and better ordered leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, InvalidFilterError, ValidationError
from tests.commit.test_transaction import SCHEMA, SPEC, commit, files, vectors
from tests.trees import BY_PART, TreeTable, data

EAGER = {"write.tree.direct-files": "1", "write.tree.affiliated-deletes": "2"}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> sm.Table:
    return new_table(spark, tmp_path)


def new_table(spark: SparkSession, folder: Path) -> sm.Table:
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(folder))
    table: sm.Table = catalog.create_table("db.t", SCHEMA, SPEC, properties=EAGER, format_version=4, spark=spark)
    return table


def append(table: sm.Table, *ids: int, part: str | None = "a") -> sm.Table:
    frame = files(table.state.spark, *ids, part=part)
    return commit(table, lambda tx: tx.update_snapshot().append(frame))


def delete(table: sm.Table, *ids: int) -> sm.Table:
    gone = table.state.spark.createDataFrame([(f"/data/f{number}",) for number in ids], "file_path string")
    return commit(table, lambda tx: tx.update_snapshot().delete(gone))


def mask_rows(table: sm.Table, folder: Path, name: str, **positions: list[int]) -> sm.Table:
    deletes = vectors(table.state.spark, folder, name, **positions)
    return commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=deletes))


def seen(table: sm.Table, snapshot_id: int | None = None) -> list[Any]:
    """Return all planned columns of every live file, including deletes and row ids."""
    planned = table.scan(snapshot_id=snapshot_id).plan_files().drop("manifest_path", "manifest_pos")
    rows = planned.selectExpr("*", "transform(deletes, d -> struct(d.file_path, d.content_offset)) AS dvs")
    return sorted(map(str, rows.drop("deletes").collect()))


def history(table: sm.Table) -> dict[int, tuple[list[Any], list[str]]]:
    """Return the files and the changes of each snapshot."""
    by_snapshot = {}
    for snapshot in table.snapshots():
        changes = table.file_changes(snapshot.parent_snapshot_id, snapshot.snapshot_id).drop(
            "manifest_path", "manifest_pos"
        )
        by_snapshot[snapshot.snapshot_id] = seen(table, snapshot.snapshot_id), sorted(map(str, changes.collect()))
    return by_snapshot


def compacted(table: sm.Table, *, everything: bool = False, **options: Any) -> sm.Table:
    """Compact a table, and check that readers see no difference.

    Args:
        everything: whether to compare all snapshots and their changes.
    """
    before, parent = history(table) if everything else {}, table.current_snapshot()
    after = table.maintenance.compact_manifests(**options).commit()
    assert after.check().collect() == []
    new = after.current_snapshot()
    assert new is not None
    assert parent is not None
    assert (new.operation, new.parent_snapshot_id) == ("replace", parent.snapshot_id)
    assert seen(after) == seen(table)
    assert changes(after) == []
    assert not everything or {key: value for key, value in history(after).items() if key in before} == before
    return after


def leaves(table: sm.Table, content: int = 0) -> list[Any]:
    return table.inspect.manifests().where(f"content = {content}").collect()


def test_small_leaves_become_one(table: sm.Table) -> None:
    for number in range(4):
        table = append(table, 10 * number, 10 * number + 1)
    table = delete(table, 1, 20)
    plan = table.maintenance.compact_manifests()
    rows = plan.to_df().collect()
    assert [(row.content, row.group, row.masked_entries > 0) for row in rows].count(("data leaf", 0, True)) == 2
    assert {reason for row in rows for reason in row.reasons} == {"small", "masked"}
    table = compacted(table, everything=True)
    assert len(leaves(table)) == 1
    assert not table.state.tree.root.manifest_dvs
    summary = table.current_snapshot().summary.additional_properties
    counts = {key: summary[key] for key in ("manifests-created", "manifests-replaced", "entries-processed")}
    assert counts == {"manifests-created": "1", "manifests-replaced": "4", "entries-processed": "6"}
    again = table.maintenance.compact_manifests()
    assert again.summary().is_empty
    assert again.commit() is table


def test_leaves_are_put_in_order(table: sm.Table) -> None:
    """Every leaf contains files of all ids, so that a needle opens each. After the compaction, it opens one."""
    for number in range(6):
        table = append(table, *range(number, 120, 6))
    table = delete(table, 7, 60, 61)
    target = leaves(table)[0].length // 2
    plan = table.maintenance.compact_manifests(cluster_by=["id"], target_leaf_bytes=target, max_overlap=1)
    assert plan.summary().overlaps == 5.0
    assert plan.summary().reasons["overlap"] == 6
    before = table.scan("id = 465").report()
    table = compacted(table, cluster_by=["id"], target_leaf_bytes=target, max_overlap=1)
    after = table.scan("id = 465").report()
    assert (before.data_entries.planned, after.data_entries.planned) == (1, 1)
    assert (before.data_manifests.scanned, after.data_manifests.scanned) == (6, 1)
    assert len(leaves(table)) > 6
    assert table.maintenance.compact_manifests(cluster_by=["id"]).summary().overlaps == 0.0


def test_deletion_vectors_follow_their_files(table: sm.Table, tmp_path: Path) -> None:
    for number in range(4):
        table = append(table, *range(number, 40, 4))
    table = mask_rows(table, tmp_path, "a.puffin", f0=[1], f4=[2], f8=[3])
    table = mask_rows(table, tmp_path, "b.puffin", f1=[1], f2=[2], f3=[3], f5=[4])
    owners = [row["referenced_file"] for row in delete_leaves(table)]
    assert len([owner for owner in owners if owner is not None]) == 2
    options = {
        "cluster_by": ["id"],
        "target_leaf_bytes": leaves(table)[0].length,
        "max_overlap": 0,
        "max_root_files": 0,
    }
    table = compacted(table, **options)
    data = {row.path for row in leaves(table)}
    rows = delete_leaves(table)
    owners = [row["referenced_file"] for row in rows]
    assert data.intersection(owners)
    assert len([owner for owner in owners if owner is None]) <= 1
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
    assert len(plan.to_df().collect()) == 5
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


@pytest.fixture(scope="module")
def untouched(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    return append(new_table(spark, tmp_path_factory.mktemp("untouched")), 1, 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cluster_by": ["nope"]}, "no column or partition field 'nope' with bounds"),
        ({"cluster_by": []}, "cluster_by is"),
        ({"cluster_by": "id"}, "cluster_by is 'id'"),
        ({"target_leaf_bytes": 0}, "target_leaf_bytes is 0"),
        ({"max_entries": -1}, "max_entries is -1"),
        ({"max_bytes": 0.5}, "max_bytes is 0.5"),
        ({"min_masked_ratio": 0}, "min_masked_ratio is 0"),
        ({"min_leaf_ratio": 2}, "min_leaf_ratio is 2"),
        ({"max_overlap": -1}, "max_overlap is -1"),
        ({"max_root_files": True}, "max_root_files is True"),
        ({"branch": "nope"}, "has no branch 'nope'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_touched(
    untouched: sm.Table, options: dict[str, Any], problem: str
) -> None:
    before = sorted(Path(untouched.location()).rglob("*"))
    with pytest.raises(ValidationError, match=problem):
        untouched.maintenance.compact_manifests(**options)
    with pytest.raises(InvalidFilterError):
        untouched.maintenance.compact_manifests("nope = 1")
    assert sorted(Path(untouched.location()).rglob("*")) == before


def test_only_leaves_that_the_filter_may_match(table: sm.Table) -> None:
    for number in range(3):
        table = append(table, 10 * number, 10 * number + 1, part="a")
        table = append(table, 10 * number + 2, 10 * number + 3, part="b")
    plan = table.maintenance.compact_manifests("s = 'b'")
    assert {row.lower for row in _summaries(table, plan)} == {"b"}
    assert plan.summary().data_leaves == 3
    table = compacted(table, row_filter="s = 'b'")
    assert len(leaves(table)) == 4


def _summaries(table: sm.Table, plan: Any) -> list[Any]:
    paths = table.inspect.manifests().selectExpr("path file_path", "partition_summaries[0].lower_bound lower")
    return plan.to_df().select("file_path").join(paths, "file_path").collect()


def test_files_of_the_root_become_a_leaf(table: sm.Table, tmp_path: Path) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.direct-files": "100"}))
    table = append(table, *range(6))
    table = mask_rows(table, tmp_path, "v.puffin", f1=[1], f2=[2], f3=[5])
    assert leaves(table) == []
    table = compacted(table, max_root_files=2)
    data = leaves(table)
    assert [row["referenced_file"] for row in delete_leaves(table)] == [data[0].path]
    assert table.state.tree is not None
    assert len(table.state.tree.root.table) == 2


def test_another_compaction_was_first(table: sm.Table) -> None:
    for number in range(3):
        table = append(table, 10 * number, 10 * number + 1)
    first, second = table.maintenance.compact_manifests(), table.maintenance.compact_manifests()
    assert first.summary().data_leaves == 3
    after = first.commit()
    with pytest.raises(CommitConflictError, match="plan again"):
        second.commit()
    assert seen(after.refresh()) == seen(table)


def test_writers_that_a_compaction_overtakes(table: sm.Table, tmp_path: Path) -> None:
    """Retries of the writers find their files in the new leaves. Vectors that were only moved are not conflicts."""
    spark = table.state.spark
    table = append(table, 0, 1)
    table = append(table, 10, 11)
    table = mask_rows(table, tmp_path, "one.puffin", f0=[1], f1=[1], f10=[2])
    stale = table
    table.maintenance.compact_manifests().commit()
    deleted = delete(stale, 11)
    assert {row.file_path for row in deleted.scan().plan_files().collect()} == {"/data/f0", "/data/f1", "/data/f10"}
    replaced = mask_rows(stale, tmp_path, "two.puffin", f0=[1, 2])
    counts = {row.file_path: row.deletes[0].record_count for row in replaced.scan().plan_files().collect()}
    assert counts == {"/data/f0": 2, "/data/f1": 1, "/data/f10": 1}
    assert replaced.check().collect() == []
    frame = files(spark, 3)

    def strict(tx: Any) -> None:
        tx.update_snapshot().append(frame).validate_no_conflicts("s = 'a'")

    with pytest.raises(CommitConflictError):
        commit(stale, strict)


def test_a_validation_looks_into_compacted_leaves(table: sm.Table) -> None:
    table = append(table, 0, 1)
    stale, frame = table, files(table.state.spark, 3)
    table = append(table, 10, 11)
    table.maintenance.compact_manifests().commit()
    with pytest.raises(CommitConflictError, match=r"added data that may match: /data/f1[01]"):
        commit(stale, lambda tx: tx.update_snapshot().append(frame).validate_no_conflicts())


def test_vectors_that_are_many_for_a_leaf_belong_to_it(table: sm.Table, tmp_path: Path) -> None:
    table = append(table, 0, 1, 2)
    table = append(table, 10, 11, 12)
    table = append(table, 20, 21, 22)
    table = mask_rows(table, tmp_path, "all.puffin", f0=[1], f10=[1], f20=[1])
    assert [row["referenced_file"] for row in delete_leaves(table)] == [None]
    table = mask_rows(table, tmp_path, "many.puffin", f0=[1, 2], f1=[1], f2=[1], f21=[1])
    owner = table.scan("id < 10").plan_files().collect()[0].manifest_path
    assert [row["referenced_file"] for row in delete_leaves(table)] == [None, owner]
    assert table.check().collect() == []
    counts = {row.file_path: len(row.deletes) for row in table.scan().plan_files().collect()}
    assert {path.removeprefix("/data/") for path, count in counts.items() if count} == {
        "f0",
        "f1",
        "f2",
        "f10",
        "f20",
        "f21",
    }
    assert max(counts.values()) == 1


def test_vectors_that_a_flush_moved_come_to_belong_to_their_leaf(table: sm.Table, tmp_path: Path) -> None:
    """A compaction affiliates the vectors, and the next one leaves their leaves alone."""
    table = commit(table, lambda tx: tx.set_properties({"write.tree.flush-delete-files": "2"}))
    table = append(table, 1, 2, 3, 4)
    for number in range(1, 5):
        table = mask_rows(table, tmp_path, f"v{number}", **{f"f{number}": [number]})
    assert [leaf["referenced_file"] for leaf in delete_leaves(table)] == [None]
    after = compacted(table, max_root_files=None)
    owner = leaves(after)[0].path
    assert [leaf["referenced_file"] for leaf in delete_leaves(after)] == [owner]
    assert after.maintenance.compact_manifests(max_root_files=None).summary().is_empty


def test_commits_merge_leaves_by_the_way(table: sm.Table) -> None:
    table = commit(table, lambda tx: tx.set_properties({"write.tree.compact-entries": "100"}))
    for number in range(8):
        table = append(table, 10 * number, 10 * number + 1)
    assert len(leaves(table)) == 8
    before = seen(table)
    after = append(table, 100, 101)
    assert len(leaves(after)) == 2
    assert [row.change_type for row in changes(after)] == ["added", "added"]
    assert set(before) < set(seen(after))
    assert after.check().collect() == []
    snapshot = after.current_snapshot()
    assert snapshot is not None
    assert snapshot.operation == "append"


@pytest.mark.parametrize("leaf_names", [("m", "m"), ("m", "n")], ids=["by one leaf", "by two leaves"])
def test_a_file_with_a_vector_that_is_listed_twice(
    spark: SparkSession, tmp_path: Path, leaf_names: tuple[str, str]
) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    files_of: dict[str, list[dict[str, Any]]] = {}
    for name in leaf_names:
        files_of.setdefault(name, [data("file:///data/d2" + name)]).append(data("file:///data/d1"))
    data_leaves = [tree.leaf(name, *entries) for name, entries in files_of.items()]
    tree.snapshot(added=data_leaves)
    vectors_of = [tree.leaf("x1", tree.vector("file:///data/d1", {1, 2}))]
    tree.snapshot(existing=data_leaves, added=vectors_of)
    others = tree.leaf("x2", tree.vector("file:///data/d2m", {3}))
    tree.snapshot(existing=[*data_leaves, *vectors_of], added=[others])
    table = tree.load(spark)
    table = commit(table, lambda tx: tx.set_properties({"write.tree.affiliated-deletes": "1"}))
    after = table.maintenance.compact_manifests().commit()
    assert seen(after) == seen(table)
    assert after.inspect.delete_files().count() == 2
