"""Compactions that are committed after concurrent commits, entry by entry, on the model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sparkmeta.commit.compaction_groups import CompactionGroups, CompactionLimits, Group, Reason, Scope
from sparkmeta.commit.next_root import FileKey, Stamp, TreeChange, next_root
from sparkmeta.manifests.v4.root import LEAVES, Root
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import ContentType, Status
from tests.commit.compact.local_job import local_fold, local_rewrite
from tests.commit.test_tree import VERSION, Writer, data_entry, entry, rows_of, with_status
from tests.commit.tree_model import Changes, Reading, change_set

LIMITS = CompactionLimits(1_000, 0.1, 0.5, 3, 0, 1)
NAMES = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def _no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkmeta.commit.leaves.executor_writer", lambda _: None)


class Table:
    """A table with a leaf of the files a to d, and the files e and f in the root."""

    def __init__(self) -> None:
        self.writer = Writer(random.Random(0))
        self.leaf = self.writer.leaf([data_entry(name, 3) for name in NAMES])
        self.commit(added=[data_entry("e", 4), data_entry("f", 5)], added_leaves=[self.leaf])

    @property
    def root(self) -> Root:
        assert self.writer.root is not None
        return self.writer.root

    def commit(self, **change: Any) -> None:
        tables = {name: self.writer.table(change.pop(name)) for name in ("added", "added_leaves") if name in change}
        self.apply(TreeChange(**tables, **change))

    def apply(self, change: TreeChange) -> Changes:
        writer, before = self.writer, self.writer.reading
        writer.snapshot += 1
        stamp = Stamp(1000 + writer.snapshot, writer.snapshot, writer.next_row_id)
        new = next_root(writer.root, change, stamp, writer.schema, writer.store.load)
        writer.next_row_id += new.assigned_row_ids
        writer.root = Root("root", new.table)
        return change_set(Reading(rows_of(new.table), writer.store), before)

    def compaction(self) -> list[Any]:
        """Return a compaction of everything, as one group of data, and one of deletes if there are any."""
        leaves, files, vectors = (
            tuple(self.root.of(kinds).column("ordinal").to_pylist())
            for kinds in (LEAVES, [ContentType.DATA], [ContentType.POSITION_DELETES])
        )
        scope = Scope(self.root, frozenset([*leaves, *files]), frozenset(leaves), {0: (1,)}, {0: frozenset()}, LIMITS)
        groups = [Group(ContentType.DATA_MANIFEST, 0, leaves, files)]
        groups += [Group(ContentType.DELETE_MANIFEST, None, (), vectors)] if vectors else []
        choice = CompactionGroups(tuple(groups), dict.fromkeys([*leaves, *files, *vectors], (Reason.SMALL,)))
        return local_rewrite(scope, choice, self.writer.store, self.writer.stats, self.writer.name("c"))

    def live(self) -> dict[str, int]:
        """Return names and sequence numbers of the live files."""
        live = self.writer.reading.live()
        return {key.location.rpartition("/")[2]: seen.sequence_number for key, seen in live.items()}


def file_key(name: str) -> FileKey:
    return FileKey(ContentType.DATA, f"/t/data/{name}")


def test_entries_that_were_removed_stay_removed() -> None:
    table = Table()
    leaf = table.leaf["location"]
    table.commit(masks={leaf: PositionBitmap.of([0])})
    done = table.compaction()
    table.commit(masks={leaf: PositionBitmap.of([2])}, removed=frozenset({file_key("e")}))
    before = table.writer.reading.live()
    rebased = local_fold(table.root, done, table.writer.store)
    assert [mask.cardinality for mask in rebased.masks.values()] == [2]
    assert table.apply(rebased.into(TreeChange())) == Changes(frozenset(), frozenset())
    assert table.writer.reading.live() == before
    assert set(table.live()) == {"b", "d", "f"}


def test_a_file_that_came_back_is_another_one() -> None:
    table = Table()
    done = table.compaction()
    table.commit(removed=frozenset({file_key("e")}))
    table.commit(added=[data_entry("e", 4)])
    rebased = local_fold(table.root, done, table.writer.store)
    assert rebased.moved == {file_key("f")}
    table.apply(rebased.into(TreeChange()))
    assert table.live() == dict.fromkeys([*NAMES, "f"], 1) | {"e": 3}


def test_untouched_leaves_have_no_masks() -> None:
    table = Table()
    table.commit(masks={table.leaf["location"]: PositionBitmap.of([0])})
    done = table.compaction()
    table.commit(added=[data_entry("g", 1)])
    assert local_fold(table.root, done, table.writer.store).masks == {}


def test_a_group_of_a_leaf_that_is_gone_is_left_out() -> None:
    table = Table()
    first, second = table.compaction(), table.compaction()
    table.apply(local_fold(table.root, first, table.writer.store).into(TreeChange()))
    late = local_fold(table.root, second, table.writer.store)
    assert (late.left_out, len(late.existing), late.dropped, late.moved) == (1, 0, frozenset(), frozenset())


def test_a_group_whose_removed_entries_live_again_is_left_out() -> None:
    """After a rollback, for example, the new leaves lack those entries."""
    table = Table()
    leaf, before = table.leaf["location"], table.root
    table.commit(masks={leaf: PositionBitmap.of([0])})
    done = table.compaction()
    rebased = local_fold(before, done, table.writer.store)
    assert (rebased.left_out, len(rebased.existing), rebased.dropped, rebased.moved) == (1, 0, frozenset(), frozenset())


def test_a_leaf_that_the_commit_deletes_from_is_left_alone() -> None:
    table = Table()
    done = table.compaction()
    busy = [table.leaf["location"]]
    assert local_fold(table.root, done, table.writer.store, busy).left_out == 1


def test_a_vector_of_a_file_that_others_put_into_a_leaf_belongs_to_no_leaf() -> None:
    """The compaction has written the file e too, but it is masked there: a vector beside that leaf would be lost."""
    table = Table()
    vector = {"offset": 4, "size_in_bytes": 40, "inline_content": None}
    owned, other = (
        entry(ContentType.POSITION_DELETES, "v.puffin", 1, deletion_vector=vector | {"offset": offset},
              referenced_file=f"/t/data/{name}")
        for offset, name in ((4, "e"), (50, "a"))
    )  # fmt: skip
    table.commit(added=[owned, other])
    done = table.compaction()
    (data,) = (
        row["location"] for rewritten in done for row in rewritten.new_leaves.to_pylist() if row["content_type"] == 3
    )
    assert {row["referenced_file"] for rewritten in done for row in rewritten.new_leaves.to_pylist()} == {None, data}
    flushed = table.writer.leaf([with_status(data_entry("e", 4, version_info=VERSION), Status.EXISTING)])
    moved = TreeChange(moved=frozenset({file_key("e")}), existing=table.writer.table([flushed]))
    assert table.apply(moved) == Changes(frozenset(), frozenset())
    rebased = local_fold(table.root, done, table.writer.store)
    assert table.apply(rebased.into(TreeChange())) == Changes(frozenset(), frozenset())
    deletes = [row for row in table.writer.reading.of(*LEAVES) if row["content_type"] == ContentType.DELETE_MANIFEST]
    assert [row["referenced_file"] for row in deletes] == [None]
