"""What a snapshot changed by its root, and which leaves hold the rest of the answer. No Spark, no I/O.

The cost follows the size of the change: a leaf that was carried over is never opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import CorruptFileError, NoSuchSnapshotError, ValidationError
from sparkmeta.manifests.v4.root import FILES, LEAVES, VECTORS, Root, one_of, version
from sparkmeta.spec.entry import LAYOUT_REVISION_KEY, Status

ParentRoot = Callable[[], Root | None]
"""Returns the parent snapshot's root, None where it has none. Raises NoSuchSnapshotError where it has expired."""
Row = Mapping[str, Any]


class LeafKind(StrEnum):
    """Which entries of a leaf to read.

    Attributes:
        ADDED: the ADDED ones that `old` does not mask.
        MASKED: the live ones that `new` masks, and `old` does not.
        DROPPED: the live ones that `old` does not mask.
        UNMADE: the DELETED ones of a leaf that the snapshot added.
        CARRIED: the EXISTING ones, which are no change, wherever they were before.
    """

    ADDED = "added"
    MASKED = "masked"
    DROPPED = "dropped"
    UNMADE = "unmade"
    CARRIED = "carried"


@dataclass(frozen=True)
class LeafChange:
    """A leaf to open. row: its place in the root. new, old: its deletion vectors, entries of content type 5."""

    kind: LeafKind
    row: int
    leaf: Row
    new: tuple[Row, ...] = ()
    old: tuple[Row, ...] = ()


@dataclass(frozen=True)
class RootChanges:
    """What a snapshot changed.

    Attributes:
        files: the ADDED and DELETED files of the root itself, rows of `tree_schema`.
        existing: the EXISTING files of the root itself where removed files may be among them, else no rows.
        leaves: the leaves to open.
    """

    files: pa.Table
    existing: pa.Table
    leaves: tuple[LeafChange, ...]


def root_changes(root: Root, snapshot_id: int, parent: ParentRoot, *, lenient: bool = False) -> RootChanges:
    """Find the changes of a snapshot by its root (semantics 8.5 B).

    Args:
        lenient: read also what strict readers refuse (semantics C51): several live deletion vectors of one leaf, as if
            they were one, and a leaf that was added with entries that it removes.

    Raises:
        CorruptFileError: a root that contradicts itself.
        ValidationError: the parent's deletion vectors are needed, and the parent has expired (semantics C52).
    """
    if not lenient:
        _ = root.vectors  # refuses two for one leaf
    leaves = tuple(_Finder(root, snapshot_id, parent, lenient).changes())
    is_file, is_existing = one_of(root.table, FILES), pc.equal(version(root.table, "status"), int(Status.EXISTING))
    files = root.table.filter(pc.and_not(is_file, is_existing))
    existing = root.table.filter(pc.and_(is_file, is_existing))
    moves = any(change.kind in (LeafKind.DROPPED, LeafKind.CARRIED) for change in leaves)
    return RootChanges(files, existing if moves else existing.slice(0, 0), leaves)


@dataclass(frozen=True)
class _Finder:
    root: Root
    snapshot_id: int
    parent: ParentRoot
    lenient: bool

    def changes(self) -> Iterable[LeafChange]:
        leaves = flat_rows(self.root.table, LEAVES)
        self._refuse_lost_vectors({leaf["location"] for _, leaf in leaves})
        drops = any(self._is_dropped(leaf) for _, leaf in leaves)
        for row, leaf in leaves:
            match leaf["status"]:
                case Status.ADDED:
                    yield from self._of_added(row, leaf)
                case Status.DELETED:
                    yield self._of_deleted(row, leaf)
                case _:
                    yield from self._of_existing(row, leaf, drops)

    @cached_property
    def _vectors(self) -> dict[str, list[Row]]:
        return vectors_by_leaf(self.root)

    def _of_added(self, row: int, leaf: Row) -> Iterable[LeafChange]:
        live = tuple(vector for vector in self._vectors.get(leaf["location"], ()) if vector["status"] != Status.DELETED)
        yield LeafChange(LeafKind.ADDED, row, leaf, old=live)
        if leaf["existing_files_count"]:
            yield LeafChange(LeafKind.CARRIED, row, leaf)
        if leaf["deleted_files_count"]:
            if not self.lenient:
                problem = f"{leaf['location']} was added: what it removes is known to lenient readers only"
                value = leaf["deleted_files_count"]
                raise CorruptFileError(self.root.location, "manifest_stats.deleted_files_count", value, problem)
            yield LeafChange(LeafKind.UNMADE, row, leaf)

    def _of_deleted(self, row: int, leaf: Row) -> LeafChange:
        """Return the change of a leaf that goes; a vector added to it masks what goes, and nothing else (C11)."""
        new = self._new(leaf)
        if new:
            return LeafChange(LeafKind.MASKED, row, leaf, new=new)
        return LeafChange(LeafKind.DROPPED, row, leaf, old=self._old(leaf, dropped=True))

    def _of_existing(self, row: int, leaf: Row, drops: bool) -> Iterable[LeafChange]:
        new = self._new(leaf)
        if new:
            yield LeafChange(LeafKind.MASKED, row, leaf, new=new, old=self._old(leaf, dropped=False))
        elif drops and leaf["snapshot_id"] == self.snapshot_id:
            yield LeafChange(LeafKind.CARRIED, row, leaf)

    def _is_dropped(self, leaf: Row) -> bool:
        return leaf["status"] == Status.DELETED and not self._new(leaf)

    def _new(self, leaf: Row) -> tuple[Row, ...]:
        return tuple(row for row in self._vectors.get(leaf["location"], ()) if row["status"] == Status.ADDED)

    def _old(self, leaf: Row, *, dropped: bool) -> tuple[Row, ...]:
        """Return the earlier vectors: those that this root carries or replaces, else those of the parent."""
        location = leaf["location"]
        earlier = tuple(row for row in self._vectors.get(location, ()) if row["status"] != Status.ADDED)
        if earlier:
            return earlier
        try:
            parent = self.parent()
        except NoSuchSnapshotError as error:
            # Roots that name their layout always keep the vector that was replaced: there was none.
            if LAYOUT_REVISION_KEY in self.root.properties and not dropped:
                return ()
            raise ValidationError(f"{self.root.location}: what was removed from {location} before: {error}") from error
        vectors = vectors_by_leaf(parent).get(location, ()) if parent is not None else ()
        return tuple(row for row in vectors if row["status"] != Status.DELETED)

    def _refuse_lost_vectors(self, leaves: set[str]) -> None:
        for location, vectors in self._vectors.items():
            if location not in leaves and any(row["status"] == Status.ADDED for row in vectors):
                problem = "a deletion vector was added to a manifest that the root does not have"
                raise CorruptFileError(self.root.location, "referenced_file", location, problem)


def vectors_by_leaf(root: Root) -> dict[str, list[Row]]:
    """Return all deletion vectors of manifests, DELETED ones included, by the leaf that they mask."""
    by_leaf: dict[str, list[Row]] = {}
    for _, row in flat_rows(root.table, VECTORS):
        by_leaf.setdefault(row["referenced_file"], []).append(row)
    return by_leaf


_COLUMNS = ["content_type", "location", "deletion_vector", "record_count", "referenced_file"]


def flat_rows(table: pa.Table, kinds: Iterable[Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries of some content types as flat rows, each with its place in the root."""
    places = pc.indices_nonzero(one_of(table, kinds))
    some = table.take(places)
    flat = some.select(_COLUMNS)
    for name in ("status", "snapshot_id"):
        flat = flat.append_column(name, version(some, name))
    for name in ("existing_files_count", "deleted_files_count"):
        flat = flat.append_column(name, pc.struct_field(some.column("manifest_stats"), name))
    return list(zip(places.to_pylist(), flat.to_pylist(), strict=True))
