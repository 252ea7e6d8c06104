"""Branches are merged by fast-forward and cherry-pick, with Java's outcome for the same history."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, NoSuchSnapshotError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.spec.metadata import SnapshotRef
from sparkmeta.storage.files import LocalFiles
from tests.commit.operations import BASE, SCHEMA, SPEC, Change, JavaPeer, Pointer, apply, planned, rows
from tests.commit.tables import appended, new_table
from tests.peers.java import Java
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

# The slice has one of this many histories.
SHARE = 4
AUDIT = "audit"
PICKED = ("append", "replace_partitions", "overwrite_files", "overwrite_filter", "delete_files", "vector", "rewrite")
ON_MAIN = (
    None,
    Change("append", "a1", "y"),
    Change("append", "b1", "y"),
    Change("replace_partitions", "a1", "y"),
    Change("replace_partitions", "b1", "y"),
    Change("delete_files", "a1", "y"),
    Change("delete_files", "b1", "y"),
    Change("rewrite", "a2", "y"),
    Change("vector", "a1", "y"),
    Change("equality", "a1", "y"),
)
SHOWN = ("operation", "source-snapshot-id", "published-wap-id", "replace-partitions", "added-data-files",
         "deleted-data-files", "added-records", "deleted-records", "total-records", "total-data-files")  # fmt: skip


def histories() -> list[tuple[Change, Change | None, str | None]]:
    """Return the branch's change, main's change, and the branch's wap.id of each history."""
    everything = [
        (Change(operation, "a1", "x"), other, "w1" if other is None or other.target == "b1" else None)
        for operation, other in product(PICKED, ON_MAIN)
    ]
    return (
        everything
        if SOAK
        else [case for case in everything if zlib.crc32(f"{case[0]} {case[1]}".encode()) % SHARE == 0]
    )


def history_id(case: tuple[Change, Change | None, str | None]) -> str:
    change, other, _ = case
    return f"{change}-{other and f'{other}-{other.target}'}"


def snapshot_of(table: sm.Table, ref: str = "main") -> int:
    snapshot = table.snapshot_by_name(ref)
    assert snapshot is not None
    return snapshot.snapshot_id


def commit(table: sm.Table, change: Any) -> sm.Table:
    with table.transaction() as tx:
        change(tx)
    return tx.commit()


def fast_forward(table: sm.Table, branch: str, to: str) -> sm.Table:
    return commit(table, lambda tx: tx.manage_snapshots().fast_forward(branch, to).commit())


def cherry_pick(table: sm.Table, snapshot_id: int) -> sm.Table:
    return commit(table, lambda tx: tx.manage_snapshots().cherry_pick(snapshot_id).commit())


def summary(table: sm.Table) -> Mapping[str, str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return {"operation": str(snapshot.operation), **snapshot.summary.additional_properties}


@pytest.fixture(scope="module")
def base(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    """Return a table with the files of `BASE` on main and on the branch `audit`, which tests change in memory."""
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path_factory.mktemp("branches")))
    table = catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)
    for files in BASE:
        table = commit(table, lambda tx, files=files: tx.update_snapshot().append(rows(spark, files)))
    return commit(table, lambda tx: tx.manage_snapshots().create_branch(snapshot_of(table), AUDIT).commit())


@pytest.fixture
def table(base: sm.Table) -> sm.Table:
    return replace(base, operations=Pointer(base.version))


# -- beside Java ----------------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.parametrize("history", histories(), ids=history_id)
def test_cherry_picks_are_those_of_java(
    history: tuple[Change, Change | None, str | None], table: sm.Table, spark: SparkSession
) -> None:
    change, other, wap_id = history
    peer = JavaPeer.in_memory(Java(spark))
    expected = of_java(peer, change, other, wap_id)
    table = apply(table, change, AUDIT, **({"wap.id": wap_id} if wap_id else {}))
    if other is not None:
        table = apply(table, other)
    picked = snapshot_of(table, AUDIT)
    before = len(table.snapshots())
    try:
        table = cherry_pick(table, picked)
    except ValidationError:
        assert expected is None
        return
    assert expected is not None
    planned_by_java, java_summary, is_new = expected
    assert planned(table) == planned_by_java
    assert len(table.snapshots()) - before == is_new
    ours = {name: value for name, value in summary(table).items() if name in SHOWN}
    assert ours.pop("source-snapshot-id", None) == (str(picked) if is_new else None)
    assert ours == java_summary
    assert table.check().collect() == []
    with pytest.raises(ValidationError, match=r"is published already|on main already|an ancestor of main already"):
        cherry_pick(table, picked)


def of_java(
    peer: JavaPeer, change: Change, other: Change | None, wap_id: str | None
) -> tuple[dict[str, list[str]], dict[str, str], bool] | None:
    """Return Java's planned files after the pick, the current snapshot's summary, and whether that snapshot is new.

    None if Java refuses.
    """
    java = peer.table
    start = java.currentSnapshot().snapshotId()
    java.manageSnapshots().createBranch(AUDIT, start).commit()
    staged = peer.update(change, start).toBranch(AUDIT)
    (staged.set("wap.id", wap_id) if wap_id else staged).commit()
    if other is not None:
        peer.update(other, start).commit()
    java.refresh()
    picked = java.snapshot(AUDIT)
    if not peer.commits(lambda: java.manageSnapshots().cherrypick(picked.snapshotId()).commit()):
        return None
    files = peer.planned()
    current = java.currentSnapshot()
    known = {"operation": current.operation(), **{name: current.summary().get(name) for name in SHOWN[1:]}}
    is_new = known.pop("source-snapshot-id") is not None
    assert is_new == (current.snapshotId() != picked.snapshotId())
    return files, {name: value for name, value in known.items() if value is not None}, is_new


@pytest.mark.java
@pytest.mark.parametrize("other", [None, "append"])
def test_fast_forwards_are_those_of_java(other: str | None, table: sm.Table, spark: SparkSession) -> None:
    change, on_main = Change("append", "a1", "x"), Change("append", "b1", "y")
    peer = JavaPeer.in_memory(Java(spark))
    java = peer.table
    start = java.currentSnapshot().snapshotId()
    java.manageSnapshots().createBranch(AUDIT, start).commit()
    peer.update(change, start).toBranch(AUDIT).commit()
    if other:
        peer.update(on_main, start).commit()
    table = apply(table, change, AUDIT)
    table = apply(table, on_main) if other else table
    if other:
        with pytest.raises(Exception, match="Cannot fast-forward: main is not an ancestor of audit"):
            java.manageSnapshots().fastForwardBranch("main", AUDIT).commit()
        with pytest.raises(ValidationError, match=r"fast-forward 'main' to 'audit': its head .* is not an ancestor"):
            fast_forward(table, "main", AUDIT)
        return
    java.manageSnapshots().fastForwardBranch("main", AUDIT).commit()
    table = fast_forward(table, "main", AUDIT)
    assert planned(table) == peer.planned()
    assert snapshot_of(table) == snapshot_of(table, AUDIT)
    assert table.check().collect() == []


# -- cases without a counterpart in Java, or with another outcome ----------------------------------------------------


def test_a_fast_forward_keeps_retention_and_creates_branches(table: sm.Table) -> None:
    head = snapshot_of(table)
    table = commit(table, lambda tx: tx.manage_snapshots().create_branch(head, "old", max_ref_age_ms=7).commit())
    table = apply(table, Change("append", "a1", "x"))
    table = commit(table, lambda tx: tx.manage_snapshots().create_tag(snapshot_of(table), "t").commit())
    table = commit(table, lambda tx: tx.manage_snapshots().fast_forward("old", "t").fast_forward("new", "t").commit())
    assert snapshot_of(table, "old") == snapshot_of(table, "new") == snapshot_of(table)
    assert table.refs()["old"].max_ref_age_ms == 7
    same = fast_forward(table, "new", "main")
    assert same.metadata.refs == table.metadata.refs
    with pytest.raises(ValidationError, match="'t' is a tag: only branches"):
        fast_forward(table, "t", "main")
    with pytest.raises(ValidationError, match="has no branch or tag 'nope'"):
        fast_forward(table, "main", "nope")


def test_a_fast_forward_goes_by_the_branches_as_they_are_when_it_commits(table: sm.Table) -> None:
    table = apply(table, Change("append", "a1", "x"), AUDIT)
    stale = table
    table = apply(table, Change("append", "a1", "z"), AUDIT)
    moved = fast_forward(stale, "main", AUDIT)
    assert snapshot_of(moved) == snapshot_of(table, AUDIT)
    apply(moved, Change("append", "b1", "y"))
    apply(moved.refresh(), Change("append", "a1", "w"), AUDIT)
    with pytest.raises(ValidationError, match="can't fast-forward"):
        fast_forward(moved, "main", AUDIT)


@pytest.mark.parametrize("change", ["limit", "move", "rename", "fast-forward", "append"])
def test_a_branch_keeps_the_retention_that_others_set_meanwhile(table: sm.Table, change: str) -> None:
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().set_max_snapshot_age_ms(AUDIT, 5).set_max_ref_age_ms(AUDIT, 6).commit()
    stale = apply(table.refresh(), Change("append", "a1", "m"))
    stale.manage_snapshots().set_min_snapshots_to_keep(AUDIT, 7).set_max_snapshot_age_ms(AUDIT, 8).commit()
    name = "new" if change == "rename" else AUDIT
    builder = stale.manage_snapshots()
    if change == "limit":
        builder.set_max_ref_age_ms(AUDIT, 9).commit()
    elif change == "move":
        builder.replace_branch(AUDIT, first).commit()
    elif change == "rename":
        builder.rename_branch(AUDIT, name).commit()
    elif change == "fast-forward":
        builder.fast_forward(AUDIT, "main").commit()
    else:
        apply(stale, Change("append", "a1", "x"), AUDIT)
    refs = table.refresh().refs()
    branch = refs[name]
    age = 9 if change == "limit" else 6
    assert (branch.min_snapshots_to_keep, branch.max_snapshot_age_ms, branch.max_ref_age_ms) == (7, 8, age)
    assert set(refs) == {"main", name}


def test_a_tag_keeps_the_retention_that_others_set_meanwhile(table: sm.Table) -> None:
    stale = commit(table, lambda tx: tx.manage_snapshots().create_tag(snapshot_of(table), "t").commit())
    stale.manage_snapshots().set_max_ref_age_ms("t", 7).commit()
    stale.manage_snapshots().replace_tag("t", stale.snapshots()[0].snapshot_id).commit()
    tag = table.refresh().refs()["t"]
    assert (tag.snapshot_id, tag.max_ref_age_ms) == (stale.snapshots()[0].snapshot_id, 7)


def test_a_tag_takes_no_commits(table: sm.Table, spark: SparkSession) -> None:
    table = commit(table, lambda tx: tx.manage_snapshots().create_tag(snapshot_of(table), "t").commit())
    problem = "'t' is a tag, not a branch"
    with pytest.raises(ValidationError, match=problem):
        table.transaction().update_snapshot("t")
    with pytest.raises(ValidationError, match=problem):
        table.append(spark.createDataFrame([(1, "x")], "id long, p string"), branch="t")
    with pytest.raises(ValidationError, match=problem):
        table.maintenance.compact_manifests(branch="t")
    assert table.refresh().metadata == table.metadata


@pytest.mark.parametrize("name", ["", 7])
def test_a_branch_has_a_name(table: sm.Table, spark: SparkSession, name: Any) -> None:
    frame = spark.createDataFrame([(1, "x")], "id long, p string")
    for change in (
        lambda: table.transaction().update_snapshot(name),
        lambda: table.append(frame, branch=name),
        lambda: table.maintenance.compact_manifests(branch=name),
    ):
        with pytest.raises(ValidationError, match=f"branch is {name!r}: expected a name"):
            change()


def test_a_branch_that_becomes_a_tag_meanwhile_takes_no_commits(table: sm.Table) -> None:
    stale = table

    def become_a_tag(tx: Any) -> None:
        tx.manage_snapshots().remove_branch(AUDIT).create_tag(snapshot_of(table), AUDIT).commit()

    table = commit(table, become_a_tag)
    with pytest.raises(ValidationError, match=f"'{AUDIT}' is a tag, not a branch"):
        apply(stale, Change("append", "a1", "z"), AUDIT)
    assert table.refresh().metadata == table.metadata


def test_steps_of_one_transaction_see_each_other(table: sm.Table, spark: SparkSession) -> None:
    with table.transaction() as tx:
        tx.update_snapshot(AUDIT).append(rows(spark, [Change("append", "a1", "x").added]))
        tx.manage_snapshots().fast_forward("main", AUDIT).create_branch(snapshot_of(table), "old").commit()
    table = tx.commit()
    assert snapshot_of(table) == snapshot_of(table, AUDIT) != snapshot_of(table, "old")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_tables_of_every_version_are_fast_forwarded(version: int, spark: SparkSession, tmp_path: Path) -> None:
    folder = f"file://{tmp_path}/db/t"
    first = appended(new_table(folder, version=version))
    second, old = appended(first), first.current_snapshot_id
    refs = {**second.refs, "old": SnapshotRef.model_validate({"snapshot-id": old, "type": "branch"})}
    FileSystemOperations(LocalFiles(), folder, None).commit(None, second.model_copy(update={"refs": refs}))
    table = sm.load_table(folder, spark=spark)
    table = fast_forward(table, "old", "main")
    assert snapshot_of(table.refresh(), "old") == snapshot_of(table) != old
    assert table.format_version == version
    with pytest.raises(ValidationError, match="is an ancestor of main already"):
        cherry_pick(table, snapshot_of(table))


def test_a_pick_of_what_the_table_does_not_have(table: sm.Table) -> None:
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 17"):
        cherry_pick(table, 17)


def test_a_wap_id_is_published_once(table: sm.Table) -> None:
    """Of two branches with one wap.id, the second is refused, although the first was fast-forwarded."""
    head = snapshot_of(table)
    table = commit(table, lambda tx: tx.manage_snapshots().create_branch(head, "again").commit())
    table = apply(table, Change("append", "a1", "x"), AUDIT, **{"wap.id": "w1"})
    table = apply(table, Change("append", "a1", "y"), "again", **{"wap.id": "w1"})
    table = cherry_pick(table, snapshot_of(table, AUDIT))
    assert snapshot_of(table) == snapshot_of(table, AUDIT)
    with pytest.raises(ValidationError, match=r"has the wap.id 'w1': it is published already"):
        cherry_pick(table, snapshot_of(table, "again"))


def test_a_pick_is_tried_again_on_what_another_commit_left(table: sm.Table) -> None:
    """On the first try, main could be fast-forwarded; on the second, the files are copied. Another pick is refused."""
    table = apply(table, Change("append", "a1", "x"), AUDIT)
    stale = table
    table = apply(table, Change("append", "b1", "y"))
    picked = snapshot_of(table, AUDIT)
    table = cherry_pick(stale, picked)
    assert {path for path in planned(table) if path[-1] in "xy"} == {"/data/a1x", "/data/b1y"}
    assert summary(table)["source-snapshot-id"] == str(picked)
    assert snapshot_of(table) != picked
    with pytest.raises(ValidationError, match="is on main already, as snapshot"):
        cherry_pick(table, picked)


def test_a_dynamic_overwrite_of_changed_partitions(table: sm.Table) -> None:
    table = apply(table, Change("replace_partitions", "a1", "x"), AUDIT)
    table = apply(table, Change("append", "a2", "y"))
    with pytest.raises(CommitConflictError, match="added data to a partition that is overwritten: /data/a2y"):
        cherry_pick(table, snapshot_of(table, AUDIT))


def test_a_dynamic_overwrite_of_a_removed_file(table: sm.Table) -> None:
    table = apply(table, Change("replace_partitions", "a1", "x"), AUDIT)
    table = apply(table, Change("delete_files", "a1", "y"))
    with pytest.raises(CommitConflictError, match="/data/a1 is not a live file of the table any more"):
        cherry_pick(table, snapshot_of(table, AUDIT))


def test_names_and_limits_that_can_not_be(table: sm.Table) -> None:
    head, refs = snapshot_of(table), table.manage_snapshots()
    for change, problem in (
        (lambda: refs.create_tag(head, ""), "the name of a branch or tag is empty"),
        (lambda: refs.create_branch(head, ""), "the name of a branch or tag is empty"),
        (lambda: refs.rename_branch(AUDIT, ""), "the name of a branch or tag is empty"),
        (lambda: refs.create_tag(head, "t", max_ref_age_ms=0), "max_ref_age_ms is 0: expected a whole number"),
        (lambda: refs.create_branch(head, "b", max_ref_age_ms=-1), "max_ref_age_ms is -1: expected a whole number"),
        (lambda: refs.create_branch(head, "b", max_snapshot_age_ms=0), "max_snapshot_age_ms is 0: expected a whole"),
        (
            lambda: refs.create_branch(head, "b", min_snapshots_to_keep=0),
            "min_snapshots_to_keep is 0: expected a whole",
        ),
        (lambda: refs.set_min_snapshots_to_keep(AUDIT, "3"), "min_snapshots_to_keep is '3': expected a whole number"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValidationError, match=problem) as caught:
            change()
        assert len(str(caught.value).splitlines()) == 1
