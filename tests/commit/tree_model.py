"""A reader of V4 trees in plain Python, which follows the rules literally: live files, and changes of snapshots.

Leaves are Arrow tables in memory, by their locations. The reader is slow and obvious, to compare the engine with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from sparkmeta.commit.next_root import FileKey
from sparkmeta.spec.bitmap import read_inline_vector
from sparkmeta.spec.entry import ContentType, Status

Row = dict[str, Any]

FILES = (ContentType.DATA, ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)
LEAVES = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
MDV = ContentType.MANIFEST_DELETION_VECTOR
EXISTING, ADDED, DELETED = Status.EXISTING, Status.ADDED, Status.DELETED


class Seen(NamedTuple):
    """A live file as a reader sees it, after inheritance.

    Attributes:
        bound: the lower bound of column 1.
    """

    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None
    record_count: int
    referenced_file: str | None = None
    bound: int | None = None


class Place(NamedTuple):
    """The position of an entry: a leaf and its ordinal, or no leaf for the root."""

    leaf: str | None
    ordinal: int


def status(row: Row) -> int:
    return int(row["version_info"]["status"])


def key_of(row: Row) -> FileKey:
    return FileKey(row["content_type"], row["location"], (row["deletion_vector"] or {}).get("offset"))


@dataclass
class Store:
    """The files that roots name: leaves by location, and blobs of Puffin files by location and offset."""

    leaves: dict[str, pa.Table] = field(default_factory=dict)
    blobs: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _rows: dict[str, list[Row]] = field(default_factory=dict)

    def load(self, location: str, offset: int, size: int) -> bytes:
        blob = self.blobs[location, offset]
        assert len(blob) == size
        return blob

    def rows(self, location: str) -> list[Row]:
        if location not in self._rows:
            self._rows[location] = self.leaves[location].to_pylist()
        return self._rows[location]


@dataclass(frozen=True)
class Reading:
    """A root as rows, with the store that contains its leaves and blobs.

    Attributes:
        lenient: whether several live deletion vectors of a leaf count as their union (semantics 18.3).
    """

    root: list[Row]
    store: Store
    lenient: bool = False

    def of(self, *kinds: ContentType, statuses: tuple[int, ...] = (EXISTING, ADDED)) -> list[Row]:
        return [row for row in self.root if row["content_type"] in kinds and status(row) in statuses]

    def mask(self, leaf: str, statuses: tuple[int, ...] = (EXISTING, ADDED)) -> set[int]:
        vectors = [row for row in self.of(MDV, statuses=statuses) if row["referenced_file"] == leaf]
        assert self.lenient or len(vectors) < 2 or statuses != (EXISTING, ADDED), f"two vectors mask {leaf}"
        return {ordinal for row in vectors for ordinal in ordinals(row, self.store.load)}

    def has_mask(self, leaf: str, statuses: tuple[int, ...]) -> bool:
        return any(row["referenced_file"] == leaf for row in self.of(MDV, statuses=statuses))

    def live(self) -> dict[FileKey, Seen]:
        """Return every live file. A location that is live twice is an error."""
        files: dict[FileKey, Seen] = {}
        for key, seen, _ in self._entries():
            assert key not in files, f"{key} is live twice"
            files[key] = seen
        return files

    def places(self) -> dict[FileKey, Place]:
        return {key: place for key, _, place in self._entries()}

    def _entries(self) -> list[tuple[FileKey, Seen, Place]]:
        entries = [
            (key_of(row), seen_of(row), Place(None, position))
            for position, row in enumerate(self.root)
            if row["content_type"] in FILES and status(row) != DELETED
        ]
        for manifest in self.of(*LEAVES):
            masked = self.mask(manifest["location"])
            for ordinal, row in enumerate(inherited(manifest, self.store.rows(manifest["location"]))):
                if ordinal not in masked and status(row) != DELETED:
                    entries.append((key_of(row), seen_of(row), Place(manifest["location"], ordinal)))
        return entries


def ordinals(vector: Row, load: Callable[[str, int, int], bytes]) -> set[int]:
    """Return the ordinals that a row of content type 5 masks."""
    stored = vector["deletion_vector"]
    inline = stored["inline_content"]
    assert (inline is None) == (stored["offset"] is not None)
    blob = inline if inline is not None else load(vector["location"], stored["offset"], stored["size_in_bytes"])
    bitmap = read_inline_vector(blob, "a vector", vector["record_count"])
    return {int(ordinal) for part in bitmap.positions() for ordinal in part}


def inherited(manifest: Row, rows: list[Row]) -> list[Row]:
    """Return all rows of a leaf, with the values that they inherit from its root entry (semantics 16.8, 16.10)."""
    from_root = manifest["version_info"]
    next_id = manifest["first_row_id"]
    filled = []
    for row in rows:
        written = row["version_info"]
        version = dict(written)
        if written["snapshot_id"] is None:
            version["snapshot_id"] = from_root["snapshot_id"]
        for name in ("sequence_number", "file_sequence_number"):
            if written[name] is None:
                assert written["status"] == ADDED, f"{row['location']} has no {name} to inherit"
                version[name] = from_root["sequence_number"]
        first_row_id = row["first_row_id"]
        is_data = row["content_type"] == ContentType.DATA
        if is_data and first_row_id is None and written["status"] != DELETED and next_id is not None:
            first_row_id, next_id = next_id, next_id + row["record_count"]
        filled.append({**row, "version_info": version, "first_row_id": first_row_id})
    return filled


def seen_of(row: Row) -> Seen:
    version = row["version_info"]
    stats = (row["content_stats"] or {}).get("1")
    return Seen(
        version["snapshot_id"],
        version["sequence_number"],
        version["file_sequence_number"],
        row["first_row_id"],
        row["record_count"],
        row["referenced_file"],
        None if stats is None else stats["lower_bound"],
    )


class Changes(NamedTuple):
    """The files that a snapshot added and removed."""

    added: frozenset[FileKey]
    removed: frozenset[FileKey]


def change_set(now: Reading, parent: Reading | None) -> Changes:
    """Return the changes of a snapshot from its root, as in semantics 18.1."""
    added: set[FileKey] = set()
    removed: set[FileKey] = set()
    carried: set[FileKey] = set()
    for row in now.of(*FILES, statuses=(ADDED,)):
        added.add(key_of(row))
    for row in now.of(*FILES, statuses=(DELETED,)):
        removed.add(key_of(row))
    for manifest in now.of(*LEAVES, statuses=(ADDED,)):
        for entry, kind in _unmasked(now, manifest["location"], now.mask(manifest["location"])):
            {ADDED: added, DELETED: removed, EXISTING: carried}[Status(kind)].add(entry)
    statuses = {row["location"]: status(row) for row in now.of(*LEAVES, statuses=(EXISTING, ADDED, DELETED))}
    masked_now: dict[str, set[int]] = defaultdict(set)
    for vector in now.of(MDV, statuses=(ADDED,)):
        if statuses[vector["referenced_file"]] != ADDED:
            masked_now[vector["referenced_file"]] |= ordinals(vector, now.store.load)
    for leaf, new in masked_now.items():
        removed |= _at(now, leaf, new - _old_mask(now, parent, leaf, (DELETED, EXISTING)))
    for manifest in now.of(*LEAVES, statuses=(DELETED,)):
        leaf = manifest["location"]
        if leaf not in masked_now:
            old = _old_mask(now, parent, leaf, (DELETED,))
            removed |= {entry for entry, kind in _unmasked(now, leaf, old) if kind != DELETED}
    return Changes(frozenset(added), frozenset(removed - carried))


def _unmasked(now: Reading, leaf: str, masked: set[int]) -> list[tuple[FileKey, int]]:
    rows = enumerate(now.store.rows(leaf))
    return [(key_of(row), status(row)) for ordinal, row in rows if ordinal not in masked]


def _at(now: Reading, leaf: str, chosen: set[int]) -> set[FileKey]:
    rows = now.store.rows(leaf)
    return {key_of(rows[ordinal]) for ordinal in chosen if status(rows[ordinal]) != DELETED}


def _old_mask(now: Reading, parent: Reading | None, leaf: str, statuses: tuple[int, ...]) -> set[int]:
    if now.has_mask(leaf, statuses):
        return now.mask(leaf, statuses)
    return parent.mask(leaf) if parent is not None else set()


def vector_changes(
    changes: Changes, rows: Mapping[FileKey, Row], positions: Callable[[Row], set[int]]
) -> dict[str, set[int]]:
    """Return the newly deleted positions by data file, from the vectors that a snapshot added and removed."""
    old: dict[str, set[int]] = defaultdict(set)
    for key in changes.removed:
        if key.content_type == ContentType.POSITION_DELETES:
            old[rows[key]["referenced_file"]] |= positions(rows[key])
    return {
        rows[key]["referenced_file"]: positions(rows[key]) - old[rows[key]["referenced_file"]]
        for key in changes.added
        if key.content_type == ContentType.POSITION_DELETES
    }
