"""Compare a snapshot's root with its parent's: the changed files of the root, and the leaves to open for the others.

The cost is proportional to the change: leaves that were carried over are never opened. No Spark, no I/O.
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
from sparkmeta.manifests.v4.root import FILES, LEAVES, MANIFEST_DVS, Root, one_of, version
from sparkmeta.spec.entry import LAYOUT_REVISION_KEY, Status

ParentRoot = Callable[[], Root | None]
"""Returns the parent snapshot's root, or None if it has none. Raises NoSuchSnapshotError if it has expired."""
Row = Mapping[str, Any]


class LeafKind(StrEnum):
    """Which entries of a leaf to read.

    Attributes:
        ADDED: ADDED entries that `old` does not mask.
        MASKED: live entries that `new` masks and `old` does not.
        DROPPED: live entries that `old` does not mask.
        UNMADE: DELETED entries of a leaf that the snapshot added.
        CARRIED: EXISTING entries, which are not changes even if another manifest held them before.
    """

    ADDED = "added"
    MASKED = "masked"
    DROPPED = "dropped"
    UNMADE = "unmade"
    CARRIED = "carried"


@dataclass(frozen=True)
class LeafChange:
    """A leaf to open.

    Attributes:
        kind: the entries to read.
        row: the leaf's row in the root.
        leaf: the root's entry for it.
        new: the manifest DVs that the snapshot added for it.
        old: its earlier manifest DVs.
    """

    kind: LeafKind
    row: int
    leaf: Row
    new: tuple[Row, ...] = ()
    old: tuple[Row, ...] = ()


@dataclass(frozen=True)
class RootChanges:
    """The changes of a snapshot.

    Attributes:
        files: the ADDED and DELETED files of the root itself, rows of `tree_schema`.
        existing: the EXISTING files of the root itself if removed files may be among them, else no rows.
        leaves: the leaves to open.
    """

    files: pa.Table
    existing: pa.Table
    leaves: tuple[LeafChange, ...]


def root_changes(root: Root, snapshot_id: int, parent: ParentRoot, *, lenient: bool = False) -> RootChanges:
    """Return the changes of a snapshot by its root (semantics 18.1).

    Args:
        lenient: accept roots that strict readers refuse (semantics 18.3): with several live DVs of one leaf, which are
            merged, or with an added leaf that has DELETED entries.

    Raises:
        CorruptFileError: the root contradicts itself.
        ValidationError: manifest DVs of the parent are needed, but it has expired (semantics 18.2).
    """
    if not lenient:
        _ = root.manifest_dvs  # raises for two of one leaf
    leaves = tuple(_Finder(root, snapshot_id, parent, lenient).changes())
    is_file, is_existing = one_of(root.table, FILES), pc.equal(version(root.table, "status"), int(Status.EXISTING))
    files = root.table.filter(pc.and_not(is_file, is_existing))
    existing = root.table.filter(pc.and_(is_file, is_existing))
    moves = any(change.kind in (LeafKind.DROPPED, LeafKind.CARRIED) for change in leaves)
    return RootChanges(files, existing if moves else existing.schema.empty_table(), leaves)


@dataclass(frozen=True)
class _Finder:
    root: Root
    snapshot_id: int
    parent: ParentRoot
    lenient: bool

    def changes(self) -> Iterable[LeafChange]:
        leaves = flat_rows(self.root.table, LEAVES)
        self._refuse_lost_dvs({leaf["location"] for _, leaf in leaves})
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
    def _dvs(self) -> dict[str, list[Row]]:
        return manifest_dvs_by_leaf(self.root)

    def _of_added(self, row: int, leaf: Row) -> Iterable[LeafChange]:
        live = tuple(dv for dv in self._dvs.get(leaf["location"], ()) if dv["status"] != Status.DELETED)
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
        """Return the change of a removed leaf.

        If a vector is added to it, only the entries that the vector masks are removed (semantics 16.16).
        """
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
        return tuple(row for row in self._dvs.get(leaf["location"], ()) if row["status"] == Status.ADDED)

    def _old(self, leaf: Row, *, dropped: bool) -> tuple[Row, ...]:
        """Return a leaf's earlier DVs: those that this root carries over or replaces, or else those of the parent."""
        location = leaf["location"]
        earlier = tuple(row for row in self._dvs.get(location, ()) if row["status"] != Status.ADDED)
        if earlier:
            return earlier
        try:
            parent = self.parent()
        except NoSuchSnapshotError as error:
            # Roots that name their layout always keep a replaced DV, so there was none.
            if LAYOUT_REVISION_KEY in self.root.properties and not dropped:
                return ()
            raise ValidationError(f"{self.root.location}: what was removed from {location} before: {error}") from error
        dvs = manifest_dvs_by_leaf(parent).get(location, ()) if parent is not None else ()
        return tuple(row for row in dvs if row["status"] != Status.DELETED)

    def _refuse_lost_dvs(self, leaves: set[str]) -> None:
        for location, dvs in self._dvs.items():
            if location not in leaves and any(row["status"] == Status.ADDED for row in dvs):
                problem = "a deletion vector was added to a manifest that the root does not have"
                raise CorruptFileError(self.root.location, "referenced_file", location, problem)


def manifest_dvs_by_leaf(root: Root) -> dict[str, list[Row]]:
    """Return all manifest DVs, DELETED ones included, by the leaf that they mask."""
    by_leaf: dict[str, list[Row]] = {}
    for _, row in flat_rows(root.table, MANIFEST_DVS):
        by_leaf.setdefault(row["referenced_file"], []).append(row)
    return by_leaf


_COLUMNS = ["content_type", "location", "deletion_vector", "record_count", "referenced_file"]


def flat_rows(table: pa.Table, kinds: Iterable[Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries of the given content types as flat rows, with their row in the root."""
    places = pc.indices_nonzero(one_of(table, kinds))
    some = table.take(places)
    flat = some.select(_COLUMNS)
    for name in ("status", "snapshot_id"):
        flat = flat.append_column(name, version(some, name))
    for name in ("existing_files_count", "deleted_files_count"):
        flat = flat.append_column(name, pc.struct_field(some.column("manifest_stats"), name))
    return list(zip(places.to_pylist(), flat.to_pylist(), strict=True))
