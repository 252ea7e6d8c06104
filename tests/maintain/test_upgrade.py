"""A table that another library wrote is upgraded in place: it reads the same before, after, and after commits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmeta.commit.next_root import manifest_dv_bitmap
from sparkmeta.spec.entry import ContentType
from tests.frames import local_frame
from tests.inspect.comparison import collected
from tests.maintain.clones import clone
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    import sparkmeta as sm
    from tests.peers.filters import Filter

    Plan = dict[tuple[str, str, int], dict[str, Any]]

pytestmark = pytest.mark.java

CHOSEN = ["unknown_counts_v1", "spec_dropped_source_v2", "upgraded_with_deletes_v3", "upgraded_with_deletes_v4"]
FILTERS = None if SOAK else 2
NOW = "now"


@pytest.mark.parametrize("name", peers.names() if SOAK else CHOSEN)
def test_a_table_reads_the_same(name: str, corpus: peers.Corpus, tmp_path: Path) -> None:
    """The plans are the same before the upgrade, after it, and after a commit without changes.

    Removed files are missing.
    """
    peer = corpus.table(name)
    before = clone(peer, tmp_path / "t")
    upgraded = before.maintenance.upgrade(4).commit()
    assert snapshots_of(upgraded) == snapshots_of(before)
    after = committed(upgraded)
    places = [NOW, *peer.java.snapshot_ids[: None if SOAK else 1]]
    chosen = filters(peer, FILTERS)
    by_plan: dict[Any, Any] = collected(
        {("before", snapshot_id): plan for snapshot_id, plan in plans(before, places, chosen).items()}
        | {("upgraded", snapshot_id): plan for snapshot_id, plan in plans(upgraded, places).items()}
        | {("committed", snapshot_id): plan for snapshot_id, plan in plans(after, places, chosen).items()}
    )
    planned = {key: by_entry(rows) for key, rows in by_plan.items()}
    for snapshot_id in places:
        assert planned["upgraded", snapshot_id] == planned["before", snapshot_id], snapshot_id
    for snapshot_id in places[1:]:
        assert planned["committed", snapshot_id] == planned["before", snapshot_id], snapshot_id
    for key in (NOW, *(row_filter.name for row_filter in chosen)):
        assert_same_but_for_row_ids(planned["committed", key], planned["before", key])
    assert_row_ids_are_apart(planned["committed", NOW], after)
    assert_files_are_deleted(after, planned["committed", NOW])
    if "no_counts" in peer.recipe.tags:
        now = planned["before", NOW]
        assert max(deleted_before(row, now) for row in now.values()) > 0, "DELETED entries are what ordinals count too"


def committed(table: sm.Table) -> sm.Table:
    """Return the table with one more snapshot, of the same files."""
    with table.transaction() as tx:
        tx.update_snapshot()
    fresh = table.refresh()
    assert fresh.state.tree is not None
    return fresh


def snapshots_of(table: sm.Table) -> list[tuple[Any, ...]]:
    return [
        (
            snapshot.snapshot_id,
            snapshot.sequence_number,
            snapshot.manifest_list,
            snapshot.inline_manifests,
            snapshot.root_manifest,
        )
        for snapshot in table.snapshots()
    ]


def plans(table: sm.Table, places: Sequence[Any], chosen: Sequence[Filter] = ()) -> dict[Any, DataFrame]:
    """Return plans of the current snapshot, of some others, and with filters."""
    scans = {snapshot_id: table.scan(snapshot_id=None if snapshot_id == NOW else snapshot_id) for snapshot_id in places}
    scans |= {
        row_filter.name: table.scan(row_filter.expression, case_sensitive=row_filter.case_sensitive)
        for row_filter in chosen
    }
    return {snapshot_id: scan.plan_files() for snapshot_id, scan in scans.items()}


def by_entry(rows: list[dict[str, Any]]) -> Plan:
    keyed = {(row["file_path"], row["manifest_path"], row["manifest_pos"]): row for row in rows}
    assert len(keyed) == len(rows)
    return keyed


def assert_same_but_for_row_ids(ours: Plan, expected: Plan) -> None:
    """Assert that the files and manifests are the same, and files without row ids have received some."""
    assert ours.keys() == expected.keys()
    for key, row in expected.items():
        row_id = row["first_row_id"]
        assert ours[key] == row | {"first_row_id": ours[key]["first_row_id"] if row_id is None else row_id}, key


def assert_row_ids_are_apart(planned: Plan, table: sm.Table) -> None:
    spans = sorted((row["first_row_id"], row["first_row_id"] + row["record_count"]) for row in planned.values())
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert not spans or spans[-1][1] <= table.metadata.next_row_id  # type: ignore[union-attr]


def assert_files_are_deleted(table: sm.Table, planned: Plan) -> None:
    """Remove files, and assert that the ordinals of their entries and vectors are masked, and others stay.

    Position delete files of version 2 stay where they are (semantics 12.2).
    """
    paths = Counter(row["file_path"] for row in planned.values())
    victims = [row for row in planned.values() if paths[row["file_path"]] == 1]
    with_vectors = [row for row in victims if vectors_of(row)]
    scoped = [row for row in victims if any(delete["referenced_data_file"] for delete in row["deletes"])]
    behind = sorted(victims, key=lambda row: deleted_before(row, planned))
    chosen = {row["file_path"]: row for row in [*with_vectors[-1:], *scoped[:1], *behind[-1:]]}
    if not chosen:
        return
    with table.transaction() as tx:
        tx.update_snapshot().delete(local_frame(table.state.spark, pa.table({"file_path": list(chosen)})))
    after = table.refresh()
    masked: dict[str, set[int]] = {}
    for row in chosen.values():
        for entry in [row, *vectors_of(row)]:
            masked.setdefault(entry["manifest_path"], set()).add(entry["manifest_pos"])
    assert masks_of(after) == masked
    left = by_entry(collected({"now": after.scan().plan_files()})["now"])
    assert left == {key: row for key, row in planned.items() if row["file_path"] not in chosen}


def deleted_before(row: dict[str, Any], planned: Plan) -> int:
    """Return the number of DELETED entries that precede a file's entry in its manifest."""
    before = [entry for entry in planned.values() if entry["manifest_path"] == row["manifest_path"]]
    return int(row["manifest_pos"] - sum(entry["manifest_pos"] < row["manifest_pos"] for entry in before))


def vectors_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [delete for delete in row["deletes"] if delete["content_offset"] is not None]


def masks_of(table: sm.Table) -> dict[str, set[int]]:
    """Return the ordinals that the live deletion vector of each manifest masks."""
    assert table.state.tree is not None
    masks = {}
    for row in table.state.tree.root.manifest_dvs.drop_columns(["ordinal"]).to_pylist():
        bitmap = manifest_dv_bitmap(
            row, lambda location, offset, size: table.state.files.read(location)[offset:][:size]
        )
        masks[row["referenced_file"]] = {int(ordinal) for part in bitmap.positions() for ordinal in part}
    return masks


def test_each_branch_has_its_own_first_root(corpus: peers.Corpus, tmp_path: Path) -> None:
    """A branch keeps its list until the first commit to it, also after commits to main. Tags keep their lists."""
    peer = corpus.table("branches_and_tags_v3")
    before = clone(peer, tmp_path / "t")
    refs = {name: ref.snapshot_id for name, ref in before.refs().items()}
    branches = [name for name, ref in before.refs().items() if ref.snapshot_ref_type == "branch" and name != "main"]
    table = committed(before.maintenance.upgrade(4).commit())
    others = {name: snapshot_id for name, snapshot_id in refs.items() if name != "main"}
    assert {name: table.refs()[name].snapshot_id for name in others} == others
    assert all(table.snapshot_by_name(name).root_manifest is None for name in others)  # type: ignore[union-attr]
    branch = branches[0]
    with table.transaction() as tx:
        tx.update_snapshot(branch=branch)
    table = table.refresh()
    head = table.snapshot_by_name(branch)
    assert head is not None
    assert head.parent_snapshot_id == refs[branch]
    assert head.root_manifest is not None
    by_plan: dict[Any, Any] = collected(
        {
            (when, name): version.scan().use_ref(name).plan_files()
            for when, version in (("before", before), ("after", table))
            for name in refs
        }
    )
    for name in refs:
        assert_same_but_for_row_ids(by_entry(by_plan["after", name]), by_entry(by_plan["before", name]))


def test_row_ids_of_a_table_that_had_none(corpus: peers.Corpus, tmp_path: Path) -> None:
    """The first commit assigns ids to the manifests in the order of the list, and then to its own files."""
    peer = corpus.table("upgraded_appends_v2")
    before = clone(peer, tmp_path / "t")
    manifests = before.state.manifest_files.to_pylist()
    rows = [manifest["added_rows_count"] + manifest["existing_rows_count"] for manifest in manifests]
    table = before.maintenance.upgrade(4).commit()
    assert table.metadata.next_row_id == 0  # type: ignore[union-attr]
    new = {"file_path": ["x:new.parquet"], "file_format": ["PARQUET"], "record_count": [7], "file_size_in_bytes": [1]}
    with table.transaction() as tx:
        files = pa.table(new | {"partition": [{"p": "z"}]})
        tx.update_snapshot().append(local_frame(table.state.spark, files))
    table = table.refresh()
    assert table.state.tree is not None
    root = table.state.tree.root
    starts = [sum(rows[:i]) for i in range(len(rows))]
    assert root.leaves.column("first_row_id").to_pylist() == starts
    assert root.of([ContentType.DATA]).column("first_row_id").to_pylist() == [sum(rows)]
    head = table.current_snapshot()
    assert head is not None
    assert (head.first_row_id, head.added_rows) == (0, sum(rows) + 7)
    assert table.metadata.next_row_id == sum(rows) + 7  # type: ignore[union-attr]
