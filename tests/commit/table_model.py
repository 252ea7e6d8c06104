"""A model of a table in plain Python: its files, the deletes that apply to them, and the changes of each snapshot.

It has no manifests, and follows only the rules of Iceberg's table spec (docs/semantics.md).
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
    """A data or delete file.

    Attributes:
        part: the value of the column s in all rows.
        ids: the least and the greatest value of the column id; None if they are unknown.
        of: the data file of position deletes; None for any file in the partition.
        offset: the offset of a deletion vector; `blob` is its size.
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
    """A delete file of a planned data file."""

    path: str
    offset: int | None
    records: int
    sequence: int


class Planned(NamedTuple):
    """A data file in a plan, without its row ids."""

    records: int
    size: int
    sequence: int
    spec_id: int
    partition: tuple[tuple[str, Any], ...]
    deletes: frozenset[Delete]


class Change(NamedTuple):
    """A row of `file_changes`."""

    change_type: str
    content: int
    path: str
    offset: int | None
    added_positions: tuple[int, ...] | None


def plan(files: Files) -> dict[str, Planned]:
    """Return the rows of a plan without a filter, by data file."""
    deletes = [file for file in files.values() if file.content != DATA]
    planned = {}
    for file in files.values():
        if file.content == DATA:
            applied = frozenset(Delete(delete.path, delete.offset, delete.records, delete.sequence)
                                for delete in applying(file, deletes))  # fmt: skip
            planned[file.path] = Planned(file.records, file.size, file.sequence, file.spec_id, file.partition, applied)
    return planned


def applying(data: File, deletes: Iterable[File]) -> list[File]:
    """Return the deletes of a data file. A deletion vector replaces all other position deletes."""
    equality = [delete for delete in deletes if delete.content == EQUALITY and delete.sequence > data.sequence
             and (not delete.partition or same_partition(delete, data))]  # fmt: skip
    positions = [delete for delete in deletes if delete.content == POSITION and delete.sequence >= data.sequence
                 and (delete.of == data.path if delete.of else same_partition(delete, data))]  # fmt: skip
    vectors = [delete for delete in positions if delete.is_vector]
    assert len(vectors) < 2, f"two vectors of {data.path}"
    return equality + (vectors or positions)


def same_partition(file: File, other: File) -> bool:
    return (file.spec_id, file.partition) == (other.spec_id, other.partition)


def deletes_that_go_with(paths: set[str], files: Files) -> dict[Key, File]:
    """Return the deletion vectors of data files that are removed."""
    return {key: file for key, file in files.items() if file.is_vector and file.of in paths}


def deletes_replaced(paths: set[str], files: Files) -> dict[Key, File]:
    """Return the position deletes that new deletion vectors replace: files for a single one of these data files."""
    return {key: file for key, file in files.items() if file.content == POSITION and file.of in paths}


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the model.

    Attributes:
        files: the live files of the snapshot.
        few: whether it adds few enough files that its partitions are counted.
    """

    snapshot_id: int
    parent: Snapshot | None
    sequence: int
    operation: str | None
    added: Files
    removed: Files
    files: Files
    few: bool = True

    def changes(self) -> set[Change]:
        old = {file.of: file.positions for file in self.removed.values() if file.is_vector}
        changes = {Change("removed", *key, None) for key in self.removed}
        for key, file in self.added.items():
            new = tuple(sorted(file.positions - old.get(file.of, frozenset()))) if file.is_vector else None
            changes.add(Change("added", *key, new))
        return changes

    def summary(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the counts that the summary must have, given its parent's summary."""
        counts = _counts("added", self.added.values()) + _counts("removed", self.removed.values())
        known = {key: str(count) for key, count in counts.items() if count}
        for total, (plus, minus) in _COUNTED.items():
            start = "0" if self.parent is None else before.get(total)
            if start is not None:
                known[total] = str(int(start) + counts[plus] - counts[minus])
        if self.few:
            changed = [*self.added.values(), *self.removed.values()]
            known["changed-partition-count"] = str(len({(file.spec_id, file.partition) for file in changed}))
        return known


def _counts(change: str, files: Iterable[File]) -> Counter[str]:
    counts: Counter[str] = Counter()
    of_data = "deleted" if change == "removed" else change
    for file in files:
        counts[f"{change}-files-size"] += file.blob or file.size
        if file.content == DATA:
            counts.update({f"{of_data}-data-files": 1, f"{of_data}-records": file.records})
            continue
        counts[f"{change}-delete-files"] += 1
        kind = "equality" if file.content == EQUALITY else "position"
        counts[f"{change}-{kind}-deletes"] += file.records
        counts[f"{change}-dvs" if file.is_vector else f"{change}-{kind}-delete-files"] += 1
    return counts


@dataclass
class Draft:
    """A snapshot in the making: the files that an operation adds to the live files and removes from them."""

    live: dict[Key, File]
    added: dict[Key, File] = field(default_factory=dict)
    removed: dict[Key, File] = field(default_factory=dict)

    def data(self) -> list[File]:
        return [file for file in self.live.values() if file.content == DATA and file.key not in self.removed]

    def add(self, files: Iterable[File]) -> None:
        self.added |= {file.key: file for file in files}

    def remove(self, files: Iterable[File]) -> None:
        """Remove files. Data files go with their deletion vectors."""
        gone = {file.key: file for file in files}
        gone |= deletes_that_go_with({file.path for file in gone.values() if file.content == DATA}, self.live)
        self.removed |= gone

    def finished(self, sequence: int) -> tuple[dict[Key, File], dict[Key, File]]:
        """Return the added files, with their sequence number, and the live files of the snapshot."""
        added = {key: replace(file, sequence=sequence) for key, file in self.added.items()}
        return added, {key: file for key, file in self.live.items() if key not in self.removed} | added


def matches(file: File, part: str | None, below: int | None) -> str:
    """Return whether ``s = part and id < below`` matches all, some or no rows of a file.

    A None leaves out a condition.
    """
    if part is not None and file.part != part:
        return "none"
    if below is None:
        return "all"
    if file.ids is None:
        return "some"
    return "all" if file.ids[1] < below else "some" if file.ids[0] < below else "none"
