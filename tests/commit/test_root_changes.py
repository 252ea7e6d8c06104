"""Change sets of random commits, without Spark: leaves are lists of names."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.changes.file_changes import LeafKind, RootChanges, root_changes
from sparkmeta.commit.next_root import FileKey, Stamp, TreeChange, next_root
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.root import Root
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector
from sparkmeta.spec.entry import Status
from sparkmeta.spec.locations import LAYOUT_REVISION_KEY
from tests.trees import STATS, Entry, data

SCHEMA = tree_schema(STATS)


@dataclass
class Model:
    """A table whose files are names. A leaf is a list of entries and a set of masked positions."""

    random: Random
    root: Root | None = None
    leaves: dict[str, list[tuple[Status, str]]] = field(default_factory=dict)
    masked: dict[str, set[int]] = field(default_factory=dict)
    in_root: set[str] = field(default_factory=set)
    snapshot: int = 0
    names: int = 0

    @property
    def live(self) -> set[str]:
        in_leaves = {name for leaf in self.masked for _, name in self._live_entries(leaf)}
        return in_leaves | self.in_root

    def commit(self) -> tuple[set[str], set[str], set[str]]:
        """Make a random commit.

        Returns:
            The added and the removed files, and the leaves that must be opened to find them.
        """
        self.snapshot += 1
        # The next root omits leaves without live entries.
        self.masked = {leaf: masked for leaf, masked in self.masked.items() if self._live_entries(leaf)}
        removed_in_root = self._some(self.in_root)
        masks = {leaf: ordinals for leaf in sorted(self.masked)
                 if (ordinals := self._some({ordinal for ordinal, _ in self._live_entries(leaf)}, 0.15))}  # fmt: skip
        dropped = self._some(set(self.masked) - set(masks), 0.2)
        moved = self._some(self.in_root - removed_in_root, 0.2)
        carried = sorted({name for leaf in dropped for _, name in self._live_entries(leaf)} | moved)
        new, in_leaf = self._new(), self._new()
        existing = self._leaf([data(name).existing() for name in carried]) if carried else None
        added = self._leaf([data(name) for name in in_leaf]) if in_leaf else None
        change = TreeChange(
            added=_table([data(name) for name in new]),
            added_leaves=None if added is None else added[1],
            removed=frozenset(FileKey(0, name) for name in removed_in_root),
            masks={leaf: PositionBitmap.of(sorted(ordinals)) for leaf, ordinals in masks.items()},
            dropped=frozenset(dropped),
            moved=frozenset(FileKey(0, name) for name in moved),
            existing=None if existing is None else existing[1],
        )
        if self.root is None and not (new or in_leaf):
            return self.commit()
        stamp = Stamp(self.snapshot, self.snapshot, 0)
        new_root = next_root(self.root, change, stamp, SCHEMA, lambda *_: b"")
        gone = {
            name
            for leaf, ordinals in masks.items()
            for ordinal, name in self._live_entries(leaf)
            if ordinal in ordinals
        }
        self.root = Root(f"root{self.snapshot}", new_root.table, {LAYOUT_REVISION_KEY: "1"})
        for leaf, ordinals in masks.items():
            self.masked[leaf] |= ordinals
        for leaf in dropped:
            del self.masked[leaf]
        for written in (existing, added):
            if written is not None:
                self.masked[written[0]] = set()
        self.in_root = (self.in_root - removed_in_root - moved) | set(new)
        opened = {*masks, *([] if added is None else [added[0]])}
        return {*new, *in_leaf}, gone | removed_in_root, opened

    def _live_entries(self, leaf: str) -> list[tuple[int, str]]:
        return [
            (ordinal, name) for ordinal, (_, name) in enumerate(self.leaves[leaf]) if ordinal not in self.masked[leaf]
        ]

    def _some(self, of: set[Any], chance: float = 0.3) -> set[Any]:
        return {member for member in sorted(of) if self.random.random() < chance}

    def _new(self) -> list[str]:
        count = self.random.choice([0, 0, 1, 3])
        self.names += count
        return [f"f{self.names - offset}" for offset in range(count)]

    def _leaf(self, entries: list[Entry]) -> tuple[str, pa.Table]:
        location = f"leaf{len(self.leaves)}"
        self.leaves[location] = [(entry.status, entry.location) for entry in entries]
        return location, leaf_row(_table(entries), location, 100, [])


def _table(entries: list[Entry]) -> pa.Table:
    rows = [{**entry.row, "version_info": {"status": int(entry.status), **entry.version}} for entry in entries]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def change_set(changes: RootChanges, leaves: dict[str, list[tuple[Status, str]]]) -> tuple[set[str], set[str]]:
    """Return the added and removed files by the changes of the root, with each leaf read as its kind requires."""
    added: set[str] = set()
    removed: set[str] = set()
    carried = set(changes.existing.column("location").to_pylist())
    for row in changes.files.select(["location", "version_info"]).to_pylist():
        (added if row["version_info"]["status"] == Status.ADDED else removed).add(row["location"])
    for change in changes.leaves:
        new, old = ({position for row in rows for position in _positions(row)} for rows in (change.new, change.old))
        for ordinal, (status, name) in enumerate(leaves[change.leaf["location"]]):
            match change.kind:
                case LeafKind.ADDED if status == Status.ADDED and ordinal not in old:
                    added.add(name)
                case LeafKind.MASKED if status != Status.DELETED and ordinal in new - old:
                    removed.add(name)
                case LeafKind.DROPPED if status != Status.DELETED and ordinal not in old:
                    removed.add(name)
                case LeafKind.CARRIED if status == Status.EXISTING:
                    carried.add(name)
    return added, removed - carried


def _positions(row: Any) -> set[int]:
    bitmap = read_inline_vector(row["deletion_vector"]["inline_content"], "test", row["record_count"])
    return {int(ordinal) for part in bitmap.positions() for ordinal in part}


@pytest.mark.parametrize("seed", range(40))
def test_random_commits(seed: int) -> None:
    """Change sets equal the commits, and open only added or masked leaves. Compaction is not a change."""
    model = Model(Random(seed))
    replayed: set[str] = set()
    for _ in range(25):
        before = model.root
        added, removed, opened = model.commit()
        assert model.root is not None
        changes = root_changes(model.root, model.snapshot, lambda before=before: before)
        assert change_set(changes, model.leaves) == (added, removed)
        assert {change.leaf["location"] for change in changes.leaves} == opened
        replayed = (replayed - removed) | added
        assert replayed == model.live
