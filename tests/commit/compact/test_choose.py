"""The choice of leaves to compact, from roots written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.commit.compaction_groups import CompactionGroups, CompactionLimits, Reason, Scope, choose, choose_merges
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.root import Root
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector

SCHEMA = tree_schema({1: "long"})
LIMITS = CompactionLimits(
    target_bytes=1_000, min_masked_ratio=0.1, min_leaf_ratio=0.5, max_overlap=2, max_root_files=3,
    affiliated_deletes=10,
)  # fmt: skip
VERSION = {"status": 0, "snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1}


def leaf(
    name: str, size: int, lower: int | None, upper: int | None, entries: int = 100, masked: int = 0, **values: Any
) -> list[dict[str, Any]]:
    """Return a data leaf, and its deletion vector if some of it is masked."""
    added = values.pop("added", True)
    counts = {"added_files_count": entries * added, "existing_files_count": entries * (not added)}
    bounds = {"lower_bound": lower, "upper_bound": upper, "value_count": entries, "null_value_count": 0}
    row = {
        "content_type": 3,
        "location": name,
        "file_format": "parquet",
        "version_info": VERSION,
        "partition_spec_id": 0,
        "record_count": entries,
        "file_size_in_bytes": size,
        "manifest_stats": {**counts, "deleted_files_count": 0},
        "content_stats": {"1": bounds},
    }
    return [row | values, *([vector(name, masked)] if masked else [])]


def vector(name: str, masked: int) -> dict[str, Any]:
    blob = write_deletion_vector(PositionBitmap.of(list(range(masked))))
    base = {"content_type": 5, "file_format": "puffin", "version_info": VERSION, "partition_spec_id": 0}
    return base | {"record_count": masked, "referenced_file": name, "deletion_vector": {"inline_content": blob}}


def deletes(name: str, size: int, owner: str | None, entries: int = 100, masked: int = 0) -> list[dict[str, Any]]:
    return leaf(name, size, None, None, entries, masked, content_type=4, referenced_file=owner)


def file(name: str, kind: int = 0) -> list[dict[str, Any]]:
    row = {"content_type": kind, "location": name, "file_format": "parquet", "version_info": VERSION}
    return [row | {"partition_spec_id": 0, "record_count": 1, "file_size_in_bytes": 10}]


def scope(*parts: list[dict[str, Any]], **limits: Any) -> Scope:
    rows = [row for part in parts for row in part]
    root = Root("root", pa.Table.from_pylist(rows, schema=SCHEMA))
    places = frozenset(index for index, row in enumerate(rows) if row["content_type"] != 5)
    owners = frozenset(index for index, row in enumerate(rows) if row["content_type"] == 3)
    return Scope(root, places, owners, {0: (1,)}, {0: frozenset()}, CompactionLimits(**{**vars(LIMITS), **limits}))


def groups_of(tree: Scope, choice: CompactionGroups) -> list[tuple[list[str], int, bool]]:
    """Return the leaves and files, the number of new leaves, and whether tasks exchange entries, of each group."""
    names = tree.root.table.column("location").to_pylist()
    return [([names[ordinal] for ordinal in (*group.leaves, *group.files)], group.parts, group.exchanged)
            for group in choice.groups]  # fmt: skip


def reasons_of(tree: Scope, choice: CompactionGroups) -> Mapping[str, tuple[Reason, ...]]:
    names = tree.root.table.column("location").to_pylist()
    return {names[ordinal]: reasons for ordinal, reasons in choice.reasons.items()}


def test_a_tree_in_good_shape() -> None:
    tree = scope(*(leaf(f"m{number}", 1_000, 10 * number, 10 * number + 10) for number in range(5)), file("f"))
    assert choose(tree) == CompactionGroups()


def test_small_neighbours_are_merged() -> None:
    tree = scope(leaf("c", 400, 20, 29), leaf("a", 300, 0, 9), leaf("b", 300, 10, 19), leaf("big", 900, 30, 39),
                  leaf("z", 100, 40, 49))  # fmt: skip
    choice = choose(tree)
    assert groups_of(tree, choice) == [(["a", "b", "c"], 1, False)]
    assert set(reasons_of(tree, choice).values()) == {(Reason.SMALL,)}


def test_masked_leaves_are_rewritten_and_dead_ones_dropped() -> None:
    tree = scope(
        leaf("a", 1_000, 0, 9, masked=20), leaf("b", 1_000, 10, 19, masked=9), leaf("c", 1_000, 20, 29, masked=100)
    )
    choice = choose(tree)
    assert sorted(groups_of(tree, choice)) == [(["a"], 1, False), (["c"], 0, False)]
    assert reasons_of(tree, choice) == {"a": (Reason.MASKED,), "c": (Reason.MASKED,)}


def test_leaves_that_overlap_are_sorted_together() -> None:
    wide = [leaf(f"w{number}", 1_000, 0, 100 + number) for number in range(4)]
    tree = scope(*wide, leaf("apart", 1_000, 200, 300))
    choice = choose(tree)
    assert [(len(names), parts, exchanged) for names, parts, exchanged in groups_of(tree, choice)] == [(4, 4, True)]
    assert choose(scope(*wide[:3], leaf("apart", 1_000, 200, 300))) == CompactionGroups()


def test_leaves_without_bounds_that_a_compaction_wrote_stay() -> None:
    rest = [leaf(f"m{number}", 1_000, 10 * number, 10 * number + 10, added=False) for number in range(5)]
    unknown = scope(*rest, leaf("nulls", 1_000, None, None, added=False))
    assert choose(unknown) == CompactionGroups()
    assert len(choose(scope(*rest, leaf("nulls", 1_000, None, None))).groups) == 1


@pytest.mark.parametrize(("entries", "count"), [(400, 4), (399, 3), (200, 2), (199, 0)])
def test_the_cap_takes_part_of_what_overlaps(entries: int, count: int) -> None:
    tree = scope(*(leaf(f"w{number}", 1_000, 0, 100 + number) for number in range(4)), max_entries=entries)
    assert sum(len(group.leaves) for group in choose(tree).groups) == count


def test_the_cap_prefers_what_saves_most() -> None:
    small = [leaf(f"s{number}", 10, number, number + 1, entries=1) for number in range(10)]
    tree = scope(*small, leaf("m", 1_000, 20, 29, masked=50), max_entries=20)
    assert [len(names) for names, _, _ in groups_of(tree, choose(tree))] == [10]
    both = scope(*small, leaf("m", 1_000, 20, 29, masked=50), max_entries=60)
    assert [len(names) for names, _, _ in groups_of(both, choose(both))] == [11]
    assert [len(group.leaves) for group in choose(scope(*small, max_bytes=99)).groups] == [9]


def test_a_full_root() -> None:
    files = [entry for number in range(4) for entry in file(f"f{number}")]
    tree = scope(files, file("eq", 2))
    assert groups_of(tree, choose(tree)) == [(["f0", "f1", "f2", "f3"], 1, False)]
    assert choose(scope(files[:3])) == CompactionGroups()
    assert choose(scope(files, max_root_files=None)) == CompactionGroups()


def test_deletes_of_a_leaf_that_is_divided_follow() -> None:
    wide = [leaf(f"w{number}", 1_000, 0, 100 + number) for number in range(4)]
    tree = scope(*wide, deletes("x", 900, "w1"), deletes("y", 900, "other"))
    choice = choose(tree)
    assert reasons_of(tree, choice)["x"] == (Reason.AFFINITY,)
    assert "y" not in reasons_of(tree, choice)
    merged = scope(leaf("a", 400, 0, 9), leaf("b", 400, 10, 19), deletes("x", 900, "a"))
    assert groups_of(merged, choose(merged)) == [(["a", "b"], 1, False)]


def test_scattered_deletes_get_owners_where_they_must() -> None:
    data = [leaf(f"m{number}", 1_000, 10 * number, 10 * number + 10) for number in range(3)]
    assert choose(scope(*data, deletes("x", 900, None, entries=29))) == CompactionGroups()
    tree = scope(*data, deletes("x", 900, None, entries=30))
    assert reasons_of(tree, choose(tree)) == {"x": (Reason.AFFINITY,)}


def test_scattered_deletes_of_a_flush_get_owners_and_those_of_a_compaction_have_had_their_turn() -> None:
    data = [leaf(f"m{number}", 1_000, 10 * number, 10 * number + 10) for number in range(3)]
    carried = leaf("x", 900, None, None, 30, content_type=4, added=False)
    assert choose(scope(*data, carried)) == CompactionGroups()
    flushed_scope = replace(scope(*data, carried), flushed=frozenset(["x"]))
    assert reasons_of(flushed_scope, choose(flushed_scope)) == {"x": (Reason.AFFINITY,)}


def test_what_commits_merge_by_the_way() -> None:
    small = [leaf(f"s{number}", 10, number, number + 1) for number in range(8)]
    tree = scope(*small, leaf("m", 1_000, 20, 29, masked=50), deletes("x", 10, None), deletes("y", 10, None))
    assert sorted(len(names) for names, _, _ in groups_of(tree, choose_merges(tree))) == [9]
    few = scope(*small[1:], *(leaf(f"w{number}", 1_000, 50, 100 + number) for number in range(4)))
    assert choose_merges(few) == CompactionGroups()
