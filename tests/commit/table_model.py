"""What a table holds, in plain Python: its files, which deletes apply to which, and what each snapshot changed.

It knows nothing of manifests: rules are those of Iceberg's table spec (semantics 1.7, 3.2, 3.3, 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

DATA, POSITION, EQUALITY = 0, 1, 2

_COUNTED = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


class Key(NamedTuple):
    content: int
    path: str
    offset: int | None = None


@dataclass(frozen=True)
class File:
    """A data or delete file. offset, size of blob, positions: of a deletion vector.

    part: the value of column s in all rows. ids: the least and the greatest value of column id; None: unknown.
    of: the data file that position deletes are of; None: of any in the partition.
    """

    content: int
    path: str
    records: int
    size: int
    spec_id: int
    partition: tuple[tuple[str, Any], ...]
    part: str | None = None
    ids: tuple[int, int] | None = None
    of: str | None = None
    offset: int | None = None
    blob: int | None = None
    positions: frozenset[int] = frozenset()
    sequence: int = 0

    @property
    def key(self) -> Key:
        return Key(self.content, self.path, self.offset)

    @property
    def is_vector(self) -> bool:
        return self.offset is not None


Files = Mapping[Key, File]


class Delete(NamedTuple):
    """As a plan shows it."""

    path: str
    offset: int | None
    records: int
    sequence: int


class Planned(NamedTuple):
    """A data file as a plan shows it, but for its row ids."""

    records: int
    size: int
    sequence: int
    spec_id: int
    partition: tuple[tuple[str, Any], ...]
    deletes: frozenset[Delete]


class Change(NamedTuple):
    """As `file_changes` shows it."""

    change_type: str
    content: int
    path: str
    offset: int | None
    added_positions: tuple[int, ...] | None


def plan(files: Files) -> dict[str, Planned]:
    """Data file -> what a plan without a filter says of it."""
    deletes = [one for one in files.values() if one.content != DATA]
    found = {}
    for one in files.values():
        if one.content == DATA:
            applied = frozenset(Delete(each.path, each.offset, each.records, each.sequence)
                                for each in applying(one, deletes))  # fmt: skip
            found[one.path] = Planned(one.records, one.size, one.sequence, one.spec_id, one.partition, applied)
    return found


def applying(data: File, deletes: Iterable[File]) -> list[File]:
    """The deletes of a data file: a deletion vector takes the place of all other position deletes."""
    found = [one for one in deletes if one.content == EQUALITY and one.sequence > data.sequence
             and (not one.partition or same_partition(one, data))]  # fmt: skip
    positions = [one for one in deletes if one.content == POSITION and one.sequence >= data.sequence
                 and (one.of == data.path if one.of else same_partition(one, data))]  # fmt: skip
    vectors = [one for one in positions if one.is_vector]
    assert len(vectors) < 2, f"two vectors of {data.path}"
    return found + (vectors or positions)


def same_partition(one: File, other: File) -> bool:
    return (one.spec_id, one.partition) == (other.spec_id, other.partition)


def deletes_that_go_with(paths: set[str], files: Files) -> dict[Key, File]:
    """The deletion vectors of data files that are removed."""
    return {key: one for key, one in files.items() if one.is_vector and one.of in paths}


def deletes_replaced(paths: set[str], files: Files) -> dict[Key, File]:
    """The deletes whose place new deletion vectors take: all of position that are of one of these files alone."""
    return {key: one for key, one in files.items() if one.content == POSITION and one.of in paths}


@dataclass(frozen=True)
class Snapshot:
    """files: the live ones after it. few: whether what it adds is little enough for its partitions to be counted."""

    snapshot_id: int
    parent: Snapshot | None
    sequence: int
    operation: str | None
    added: Files
    removed: Files
    files: Files
    few: bool = True

    def changes(self) -> set[Change]:
        old = {one.of: one.positions for one in self.removed.values() if one.is_vector}
        found = {Change("removed", *key, None) for key in self.removed}
        for key, one in self.added.items():
            new = tuple(sorted(one.positions - old.get(one.of, frozenset()))) if one.is_vector else None
            found.add(Change("added", *key, new))
        return found

    def summary(self, before: Mapping[str, str]) -> dict[str, str]:
        """The counts that its summary must have, given its parent's summary."""
        counts = _counts("added", self.added.values()) + _counts("removed", self.removed.values())
        known = {key: str(count) for key, count in counts.items() if count}
        for total, (plus, minus) in _COUNTED.items():
            start = "0" if self.parent is None else before.get(total)
            if start is not None:
                known[total] = str(int(start) + counts[plus] - counts[minus])
        if self.few:
            changed = [*self.added.values(), *self.removed.values()]
            known["changed-partition-count"] = str(len({(one.spec_id, one.partition) for one in changed}))
        return known


def _counts(change: str, files: Iterable[File]) -> Counter[str]:
    counts: Counter[str] = Counter()
    of_data = "deleted" if change == "removed" else change
    for one in files:
        counts[f"{change}-files-size"] += one.blob or one.size
        if one.content == DATA:
            counts.update({f"{of_data}-data-files": 1, f"{of_data}-records": one.records})
            continue
        counts[f"{change}-delete-files"] += 1
        kind = "equality" if one.content == EQUALITY else "position"
        counts[f"{change}-{kind}-deletes"] += one.records
        counts[f"{change}-dvs" if one.is_vector else f"{change}-{kind}-delete-files"] += 1
    return counts


@dataclass
class Draft:
    """A snapshot in the making: what an operation adds to the live files and removes from them."""

    live: dict[Key, File]
    added: dict[Key, File] = field(default_factory=dict)
    removed: dict[Key, File] = field(default_factory=dict)

    def data(self) -> list[File]:
        return [one for one in self.live.values() if one.content == DATA and one.key not in self.removed]

    def add(self, files: Iterable[File]) -> None:
        self.added |= {one.key: one for one in files}

    def remove(self, files: Iterable[File]) -> None:
        """Data files go with their deletion vectors."""
        gone = {one.key: one for one in files}
        gone |= deletes_that_go_with({one.path for one in gone.values() if one.content == DATA}, self.live)
        self.removed |= gone

    def finished(self, sequence: int) -> tuple[dict[Key, File], dict[Key, File]]:
        """What is added, with its sequence number; and the live files after it."""
        added = {key: replace(one, sequence=sequence) for key, one in self.added.items()}
        return added, {key: one for key, one in self.live.items() if key not in self.removed} | added


def matches(one: File, part: str | None, below: int | None) -> str:
    """How many rows of a data file match ``s = part and id < below``, where None leaves a condition out."""
    if part is not None and one.part != part:
        return "none"
    if below is None:
        return "all"
    if one.ids is None:
        return "some"
    return "all" if one.ids[1] < below else "some" if one.ids[0] < below else "none"
