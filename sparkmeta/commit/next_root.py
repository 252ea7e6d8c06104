"""Compute the next root of a V4 tree from a root and a change, without Spark or I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import LIVE_ROWS, is_live, live_counts, sums
from sparkmeta.errors import CommitConflictError, CorruptFileError
from sparkmeta.expr.arrays import whole
from sparkmeta.manifests.v4.fields import with_version
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.layout import conform
from sparkmeta.manifests.v4.root import FILES, LEAVES, Root, one_of, version
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType, Status

# -- Compute the next root from a root and a change -------------------------------------------------------------------
# A commit edits the previous root (proposal, "Single file commits"). Its changes of table data are ADDED or DELETED
# entries; all other entries are carried over as EXISTING. DELETED entries are kept for one snapshot.


# Loads the stored bytes of a manifest DV: (location, offset, size) -> blob.
LoadBlob = Callable[[str, int, int], bytes]


@dataclass(frozen=True)
class Stamp:
    """The version that a commit assigns to its entries.

    Attributes:
        first_row_id: the first row id that the commit assigns.
    """

    snapshot_id: int
    sequence_number: int
    first_row_id: int


@dataclass(frozen=True)
class FileKey:
    """The identity of a live file in the root. Deletion vectors, which share Puffin files, also have an offset."""

    content_type: int
    location: str
    offset: int | None = None


@dataclass(frozen=True)
class TreeChange:
    """The changes of a tree in one commit. Tables have rows of `tree_schema`.

    Attributes:
        added: new files for the root (content types 0, 1 and 2). The commit sets `version_info` and first row ids.
        added_leaves: new leaves with ADDED entries. The commit sets `version_info` and first row ids.
        removed: files of the root to remove.
        masks: leaf location -> ordinals of entries to remove.
        dropped: leaves that a compaction replaces.
        moved: files of the root that a flush or compaction moves into leaves.
        existing: the leaves with EXISTING entries that replace `dropped` and `moved`.
        affinity: location of a carried-over delete manifest -> its new affiliated data manifest, or None.
        existing_masks: location of a leaf in `existing` -> ordinals of entries that concurrent commits removed.
        moved_out: data files that leave their leaves because their deletion vectors change, with version and row ids.
            Only the layout of the Iceberg project has them.
        replaced: leaf location -> the ordinals in `masks` of files that leave the leaf.
    """

    added: pa.Table | None = None
    added_leaves: pa.Table | None = None
    removed: frozenset[FileKey] = frozenset()
    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    moved: frozenset[FileKey] = frozenset()
    existing: pa.Table | None = None
    affinity: Mapping[str, str | None] = field(default_factory=dict)
    existing_masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    moved_out: pa.Table | None = None
    replaced: Mapping[str, PositionBitmap] = field(default_factory=dict)


def union_of_masks(
    masks: Mapping[str, PositionBitmap], others: Mapping[str, PositionBitmap]
) -> dict[str, PositionBitmap]:
    """Return the union of two sets of masks, by leaf."""
    union = dict(masks)
    for leaf, bitmap in others.items():
        union[leaf] = union[leaf].union(bitmap) if leaf in union else bitmap
    return union


@dataclass(frozen=True)
class NextRoot:
    """The root after a commit, and the number of row ids that the commit assigned."""

    table: pa.Table
    assigned_row_ids: int


def next_root(base: Root | None, change: TreeChange, stamp: Stamp, schema: pa.Schema, load: LoadBlob) -> NextRoot:
    """Return the root that results from a change of the base root.

    Args:
        base: None for an empty table.
        schema: the `tree_schema` of the new root.
        load: reads manifest DVs from Puffin files.

    Raises:
        CommitConflictError: a file, leaf or entry of the change is not live in the base.
        CorruptFileError: the base root contradicts itself.
    """
    parts: list[pa.Table] = []
    if base is not None:
        parts += _edited(base, change, stamp, schema, load)
    elif change.removed or change.masks or change.dropped or change.moved:
        raise CommitConflictError("the table is empty: there is nothing to remove from it")
    assigned_ids = 0
    if change.existing is not None and len(change.existing):
        parts.append(_of_commit(conform(change.existing, schema), stamp, Status.EXISTING))
        parts.append(_manifest_dvs_of_existing(change, stamp, schema))
    if change.moved_out is not None:
        parts.append(restamped(conform(change.moved_out, schema), status=Status.EXISTING))
    for new_entries in (change.added, change.added_leaves):
        if new_entries is not None and len(new_entries):
            rows = _added(_inheriting(conform(new_entries, schema), stamp), stamp)
            rows, count = _row_ids(rows, stamp.first_row_id + assigned_ids)
            parts.append(rows)
            assigned_ids += count
    table = pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()
    _check_locations(table)
    return NextRoot(in_order(_without_lost_owners(table)), assigned_ids)


def in_order(table: pa.Table) -> pa.Table:
    """Sort the entries of a root: leaves, then their deletion vectors, then files. The sort is stable."""
    rank = pa.array([_RANK[kind] for kind in table.column("content_type").to_pylist()], pa.int32())
    order = np.argsort(rank.to_numpy(), kind="stable")
    return table.take(pa.array(order))


# Content type -> rank in the order of a root.
_RANK = {3: 0, 4: 1, 5: 2, 0: 3, 2: 4, 1: 5}


# -- Edits of the base root -----------------------------------------------------------------------------------------


def _edited(base: Root, change: TreeChange, stamp: Stamp, schema: pa.Schema, load: LoadBlob) -> list[pa.Table]:
    in_file = pc.not_equal(base.table.column("file_format"), VECTORS)
    live = conform(base.table.filter(pc.and_(is_live(base.table), in_file)), schema)
    spent = spent_leaves(base).difference(change.masks)
    change = replace(change, dropped=change.dropped | spent)
    files = live.filter(one_of(live, FILES))
    leaves = live.filter(one_of(live, LEAVES))
    manifest_dvs = conform(base.manifest_dvs.drop_columns(["ordinal"]), schema)
    return [
        _edited_leaves(leaves, change),
        *_edited_manifest_dvs(leaves, manifest_dvs, change, stamp, load),
        *_edited_files(files, change, stamp),
    ]


def _edited_leaves(leaves: pa.Table, change: TreeChange) -> pa.Table:
    """Return the leaves that a compaction does not replace."""
    locations = leaves.column("location")
    for location in sorted({*change.dropped, *change.masks} - set(locations.to_pylist())):
        raise CommitConflictError(f"{location} is no longer a live manifest of the table")
    for location in sorted(change.dropped.intersection(change.masks)):
        raise CommitConflictError(f"{location} is compacted and deleted from in one commit")
    if change.dropped:
        leaves = leaves.filter(pc.invert(pc.is_in(locations, pa.array(sorted(change.dropped), pa.string()))))
    return restamped(_reaffiliated(leaves, change.affinity), status=Status.EXISTING)


def _reaffiliated(leaves: pa.Table, affinity: Mapping[str, str | None]) -> pa.Table:
    if not affinity:
        return leaves
    pairs = zip(leaves.column("location").to_pylist(), leaves.column("referenced_file").to_pylist(), strict=True)
    new_owners = [affinity.get(location, owner) for location, owner in pairs]
    index = leaves.column_names.index("referenced_file")
    return leaves.set_column(index, "referenced_file", pa.array(new_owners, pa.string()))


def without_owners(leaves: pa.Table, owners: Collection[str]) -> pa.Table:
    """Return the root's entries for leaves without affinity to the given data leaves.

    A plan reads an affiliated delete leaf only with its data leaf, so the affinity must be dropped if a file may be in
    another leaf.
    """
    return _disowned(leaves, pc.is_in(leaves.column("referenced_file"), pa.array(sorted(owners), pa.string())))


def _without_lost_owners(table: pa.Table) -> pa.Table:
    """Return the root's entries without affinity to data manifests that are not in the root (semantics 16.13)."""
    owners = table.column("referenced_file")
    data_manifests = table.filter(pc.and_(one_of(table, [ContentType.DATA_MANIFEST]), is_live(table))).column(
        "location"
    )
    has_lost_owner = pc.and_(
        one_of(table, [ContentType.DELETE_MANIFEST]), pc.invert(pc.is_in(owners, data_manifests.combine_chunks()))
    )
    return _disowned(table, has_lost_owner)


def _disowned(table: pa.Table, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
    owners = pc.if_else(rows, pa.scalar(None, pa.string()), table.column("referenced_file"))
    index = table.column_names.index("referenced_file")
    return table.set_column(index, table.schema.field("referenced_file"), owners)


def _manifest_dvs_of_existing(change: TreeChange, stamp: Stamp, schema: pa.Schema) -> pa.Table:
    """Return EXISTING manifest DVs that mask entries removed by earlier commits."""
    if not change.existing_masks or change.existing is None:
        return schema.empty_table()
    rows = {row["location"]: row for row in change.existing.select(_LEAF_COLUMNS).to_pylist()}
    nothing = PositionBitmap({})
    dvs = [_merged(rows[leaf], nothing, mask, stamp) for leaf, mask in sorted(change.existing_masks.items())]
    return _of_commit(pa.Table.from_pylist(dvs, schema=schema), stamp, Status.EXISTING)


def _edited_manifest_dvs(
    leaves: pa.Table, dvs: pa.Table, change: TreeChange, stamp: Stamp, load: LoadBlob
) -> list[pa.Table]:
    """Return the manifest DVs of the next root: carried over, merged with new masks, or dropped with their leaf."""
    targets = dvs.column("referenced_file").to_pylist()
    carried_rows = [
        index for index, target in enumerate(targets) if target not in change.masks and target not in change.dropped
    ]
    replaced_rows = {target: index for index, target in enumerate(targets) if target in change.masks}
    tombstones = dvs.take(pa.array(list(replaced_rows.values()), pa.int64()))
    parts = [
        restamped(dvs.take(pa.array(carried_rows, pa.int64())), status=Status.EXISTING),
        restamped(tombstones, status=Status.DELETED, snapshot_id=stamp.snapshot_id),
    ]
    if change.masks:
        rows = {row["location"]: row for row in leaves.select(_LEAF_COLUMNS).to_pylist()}
        merged_dvs = [
            _merged(rows[leaf], _bitmap(dvs, replaced_rows.get(leaf), load), new_mask, stamp)
            for leaf, new_mask in sorted(change.masks.items())
        ]
        parts.append(pa.Table.from_pylist(merged_dvs, schema=dvs.schema))
    return parts


_LEAF_COLUMNS = ["location", "record_count", "partition_spec_id"]


def _merged(leaf: Mapping[str, Any], old: PositionBitmap, new: PositionBitmap, stamp: Stamp) -> dict[str, Any]:
    """Return the entry of a manifest DV that combines the ordinals of the old DV with newly removed ones."""
    if not new.cardinality:
        raise ValueError(f"{leaf['location']}: nothing is removed from it")
    if (new.max() or 0) >= leaf["record_count"]:
        problem = f"the manifest has {leaf['record_count']} entries"
        raise CorruptFileError(leaf["location"], "ordinal", (new.max() or 0), problem)
    if old.intersects(new):
        raise CommitConflictError(f"{leaf['location']}: an entry that is to be removed was removed already")
    merged = old.union(new)
    return {
        "content_type": int(ContentType.MANIFEST_DELETION_VECTOR),
        "location": None,
        "file_format": "puffin",
        "version_info": _new_version(stamp),
        "deletion_vector": {"offset": None, "size_in_bytes": None, "inline_content": write_deletion_vector(merged)},
        "partition_spec_id": leaf["partition_spec_id"],
        "record_count": merged.cardinality,
        "referenced_file": leaf["location"],
    }


def _bitmap(dvs: pa.Table, index: int | None, load: LoadBlob) -> PositionBitmap:
    return PositionBitmap({}) if index is None else manifest_dv_bitmap(dvs.slice(index, 1).to_pylist()[0], load)


def manifest_dv_bitmap(row: Mapping[str, Any], load: LoadBlob) -> PositionBitmap:
    """Return the ordinals of a manifest DV, an entry of content type 5."""
    dv = row["deletion_vector"]
    blob = dv["inline_content"]
    if blob is None:
        blob = load(row["location"], dv["offset"], dv["size_in_bytes"])
    name = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    return read_inline_vector(blob, name, row["record_count"])


def _edited_files(files: pa.Table, change: TreeChange, stamp: Stamp) -> list[pa.Table]:
    keys = file_keys(files)
    leaving = change.removed | change.moved
    for key in sorted(leaving.difference(keys), key=str):
        raise CommitConflictError(f"{key.location} is no longer a live file of the table's root")
    carried_rows = [index for index, key in enumerate(keys) if key not in leaving]
    removed_rows = [index for index, key in enumerate(keys) if key in change.removed]
    return [
        restamped(files.take(pa.array(carried_rows, pa.int64())), status=Status.EXISTING),
        restamped(files.take(pa.array(removed_rows, pa.int64())), status=Status.DELETED, snapshot_id=stamp.snapshot_id),
    ]


def file_keys(files: pa.Table) -> list[FileKey]:
    """Return the keys of file entries."""
    kinds = files.column("content_type").to_pylist()
    offsets = pc.struct_field(files.column("deletion_vector"), "offset").to_pylist()
    rows = zip(kinds, files.column("location").to_pylist(), offsets, strict=True)
    return [FileKey(*row) for row in rows]


def file_versions(base: Root) -> dict[FileKey, int]:
    """Return the file sequence numbers of the root's own live files."""
    files = base.table.filter(pc.and_(one_of(base.table, FILES), is_live(base.table)))
    return dict(zip(file_keys(files), version(files, "file_sequence_number").to_pylist(), strict=True))


def spent_leaves(base: Root) -> frozenset[str]:
    """Return the leaves of a root whose entries are all masked or DELETED.

    The next commit drops these leaves. The commit that masked the last entry has recorded the removal.
    """
    leaves = base.leaves
    masked = {target: dv["record_count"] for target, dv in base.manifest_dv_of.items()}
    rows = zip(leaves.column("location").to_pylist(), live_counts(leaves).to_pylist(), strict=True)
    return frozenset(location for location, count in rows if count is not None and count <= masked.get(location, 0))


# -- Versions -------------------------------------------------------------------------------------------------------


def _new_version(stamp: Stamp) -> dict[str, int]:
    sequence = stamp.sequence_number
    return {
        "status": int(Status.ADDED),
        "snapshot_id": stamp.snapshot_id,
        "sequence_number": sequence,
        "file_sequence_number": sequence,
    }


def restamped(table: pa.Table, *, status: Status, snapshot_id: int | None = None) -> pa.Table:
    """Return the rows with another status and, if given, snapshot id. Sequence numbers stay the same."""
    old_ids = version(table, "snapshot_id")
    ids = old_ids if snapshot_id is None else pa.repeat(pa.scalar(snapshot_id, pa.int64()), len(table))
    numbers = [version(table, name) for name in ("sequence_number", "file_sequence_number")]
    return with_version(table, [pa.repeat(pa.scalar(int(status), pa.int32()), len(table)), ids, *numbers])


def _of_commit(table: pa.Table, stamp: Stamp, status: Status) -> pa.Table:
    """Return the rows with a status and the commit's snapshot id and sequence number."""
    numbers = (stamp.snapshot_id, stamp.sequence_number, stamp.sequence_number)
    children = [pa.repeat(pa.scalar(number, pa.int64()), len(table)) for number in numbers]
    return with_version(table, [pa.repeat(pa.scalar(int(status), pa.int32()), len(table)), *children])


def _added(table: pa.Table, stamp: Stamp) -> pa.Table:
    """Return the rows as ADDED by the commit. Files keep their own data sequence number if they have one."""
    rows = _of_commit(table, stamp, Status.ADDED)
    numbers = pc.coalesce(version(table, "sequence_number"), version(rows, "sequence_number"))
    status, snapshot_id, file_number = (
        version(rows, name) for name in ("status", "snapshot_id", "file_sequence_number")
    )
    return with_version(rows, [status, snapshot_id, numbers, file_number])


def _inheriting(table: pa.Table, stamp: Stamp) -> pa.Table:
    """Set `min_sequence_number` of leaves whose entries inherit the commit's sequence number."""
    stats = whole(table.column("manifest_stats"))
    names = [field.name for field in stats.type]
    children = stats.flatten()
    index = names.index("min_sequence_number")
    filled = pc.coalesce(children[index], pa.scalar(stamp.sequence_number, pa.int64()))
    children[index] = pc.if_else(stats.is_valid(), filled, pa.scalar(None, pa.int64()))
    struct = pa.StructArray.from_arrays(children, fields=list(stats.type), mask=stats.is_null())
    return table.set_column(table.column_names.index("manifest_stats"), table.schema.field("manifest_stats"), struct)


def _row_ids(table: pa.Table, start: int) -> tuple[pa.Table, int]:
    """Assign first row ids to data files and data leaves. Return the rows and the number of assigned ids."""
    kinds = table.column("content_type")
    is_file, is_leaf = one_of(table, [ContentType.DATA]), one_of(table, [ContentType.DATA_MANIFEST])
    rows = pc.fill_null(sums(table, LIVE_ROWS), 0)
    ids_needed = pc.if_else(is_file, table.column("record_count"), pc.if_else(is_leaf, rows, 0))
    counts = whole(ids_needed).to_numpy(zero_copy_only=False)
    starts = pa.array(start + np.cumsum(counts) - counts, pa.int64())
    none = pa.scalar(None, pa.int64())
    ids = pc.if_else(pc.is_in(kinds, pa.array([0, 3], pa.int32())), starts, none)
    index = table.column_names.index("first_row_id")
    return table.set_column(index, "first_row_id", ids), int(counts.sum())


def _check_locations(table: pa.Table) -> None:
    """Raise CommitConflictError if a file or leaf has two live entries."""
    live = table.filter(is_live(table))
    files = live.filter(one_of(live, [*FILES, *LEAVES]))
    keys = [
        key for key, kind in zip(file_keys(files), files.column("content_type").to_pylist(), strict=True) if kind < 5
    ]
    names = [(key.location, key.offset) for key in keys]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise CommitConflictError(f"{duplicate[0]} is in the table already")
