"""Rebase a compaction on a newer root. Changes of other commits take precedence, entry by entry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.compact.job import Rewritten
from sparkmeta.edit.leaves import leaf_frame
from sparkmeta.edit.next_root import (
    FileKey,
    LoadBlob,
    TreeChange,
    file_versions,
    manifest_dv_bitmap,
    same_manifest_dv,
    without_owners,
)
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, dv_row, masked_ordinals
from sparkmeta.manifests.v4.root import Root
from sparkmeta.session import local_frame
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState


@dataclass(frozen=True)
class Rebased:
    """The part of a compaction that fits a root, with fields of `TreeChange`.

    Attributes:
        left_out: the number of groups that don't fit.
    """

    dropped: frozenset[str]
    moved: frozenset[FileKey]
    existing: pa.Table
    masks: Mapping[str, PositionBitmap]
    affinity: Mapping[str, str | None]
    left_out: int = 0

    @property
    def counts(self) -> ManifestCounts:
        """The numbers of leaves. `kept` is negative, for the dropped leaves."""
        entries = pc.sum(self.existing.column("record_count")).as_py() or 0
        return ManifestCounts(len(self.existing), -len(self.dropped), len(self.dropped), entries)

    def into(self, change: TreeChange) -> TreeChange:
        """Return the change with the compaction added to it."""
        tables = [table for table in (change.existing, self.existing) if table is not None]
        return replace(
            change,
            dropped=change.dropped | self.dropped,
            moved=change.moved | self.moved,
            existing=pa.concat_tables(tables, promote_options="none"),
            existing_masks={**change.existing_masks, **self.masks},
            affinity={**change.affinity, **self.affinity},
        )


def rebase(
    state: TableState, base: Root, done: Sequence[Rewritten], load: LoadBlob, busy: Collection[str] = ()
) -> Rebased:
    """Return the groups that fit `base`, the root of `state`.

    Entries that have been removed from their leaves since, and files that have left the root, are masked in the new
    leaves, by path (semantics 12.10). A group is left out if one of its leaves is gone, as after another compaction, or
    has regained entries that were masked, as after a rollback, since the new leaves lack these.

    A data file that has left the root may have moved to a leaf of another commit, while its deletion vector has not.
    New delete leaves are then not affiliated with the data leaf in which the file is masked.

    Args:
        busy: leaves that the commit itself removes entries from, and which are not replaced.
    """
    leaves = {row["location"]: row for row in _leaf_rows(base)}
    versions = file_versions(base)
    fit: list[Rewritten] = []
    moved: set[FileKey] = set()
    gone: dict[str, PositionBitmap] = {}
    lost: list[FileKey] = []
    disowned: set[str] = set()
    for group in done:
        if any(leaf not in leaves or leaf in busy for leaf in group.leaves):
            continue
        if any(leaves[leaf]["first_row_id"] != first_row_id for leaf, first_row_id in group.first_row_ids.items()):
            continue
        changes = {leaf: _changes(dv, base.manifest_dv_of.get(leaf), load) for leaf, dv in group.leaves.items()}
        if any(back.cardinality for _, back in changes.values()):
            continue
        fit.append(group)
        gone |= {leaf: removed for leaf, (removed, _) in changes.items() if removed.cardinality}
        left = [key for key, sequence in group.files.items() if versions.get(key) != sequence]
        moved |= group.files.keys() - left
        lost += left
        if any(key.content_type == ContentType.DATA for key in left):
            disowned.update(group.new_leaves.column("location").to_pylist())
    new_leaves = pa.concat_tables([group.new_leaves for group in fit] or [done[0].new_leaves.slice(0, 0)])
    masks = _masks(state, new_leaves, gone, lost) if gone or lost else {}
    new_leaves = without_owners(new_leaves, disowned.intersection(masks))
    dropped = frozenset(leaf for group in fit for leaf in group.leaves)
    return Rebased(dropped, frozenset(moved), new_leaves, masks, _affinity(fit, leaves), len(done) - len(fit))


def _leaf_rows(base: Root) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = base.leaves.select(["location", "referenced_file", "first_row_id"]).to_pylist()
    return rows


def _changes(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, load: LoadBlob
) -> tuple[PositionBitmap, PositionBitmap]:
    """Return the ordinals that only the new manifest DV of a leaf masks, and those that only the old one does."""
    nothing = PositionBitmap({})
    if same_manifest_dv(old, new):
        return nothing, nothing
    before, after = (nothing if dv is None else manifest_dv_bitmap(dv, load) for dv in (old, new))
    return after.difference(before), before.difference(after)


def _affinity(fit: Sequence[Rewritten], leaves: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the new data leaves of remaining delete leaves whose data leaves were merged."""
    dropped = {leaf for group in fit for leaf in group.leaves}
    merged = {
        leaf: group.new_leaves.column("location")[0].as_py()
        for group in fit
        if group.new_leaves.column("content_type").to_pylist() == [ContentType.DATA_MANIFEST]
        for leaf in group.leaves
    }
    return {
        location: merged[row["referenced_file"]]
        for location, row in leaves.items()
        if row["referenced_file"] in merged and location not in dropped
    }


# -- by path --------------------------------------------------------------------------------------------------------

_KEY = ("content_type", "location", "deletion_vector")
_BITMAPS = pa.schema([pa.field(MANIFEST, pa.int32()), pa.field("ordinals", pa.binary())])


def _masks(
    state: TableState, new_leaves: pa.Table, gone: Mapping[str, PositionBitmap], lost: Sequence[FileKey]
) -> dict[str, PositionBitmap]:
    """Return the ordinals of removed entries in the new leaves. Runs a job over their paths."""
    frames = [*([_gone_keys(state, gone)] if gone else []), *([_lost_keys(state, lost)] if lost else [])]
    keys = reduce(lambda left, right: left.unionByName(right), frames)
    entries = leaf_frame(state, new_leaves, EntryProjection.of(_KEY))
    masked = entries.select(*_key_columns(), MANIFEST, ORDINAL).join(keys, ["kind", "path", "offset"], "left_semi")
    blobs = masked.select(MANIFEST, ORDINAL).groupBy(MANIFEST).applyInArrow(_bitmap, spark_schema(_BITMAPS)).toArrow()
    locations = new_leaves.column("location")
    return {
        location: read_inline_vector(row["ordinals"], location)
        for row in blobs.to_pylist()
        if (location := locations[row[MANIFEST]].as_py())
    }


def _key_columns() -> list[Any]:
    offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long"))
    return [F.col("content_type").alias("kind"), F.col("location").alias("path"), offset.alias("offset")]


def _gone_keys(state: TableState, gone: Mapping[str, PositionBitmap]) -> DataFrame:
    """Return the keys of entries that were removed from the rewritten leaves."""
    manifests = state.manifests.filter(
        pc.is_in(state.manifests.column("location"), pa.array(sorted(gone), pa.string()))
    )
    rows = []
    for leaf in manifests.select([MANIFEST, "location", "record_count"]).to_pylist():
        bitmap = gone[leaf["location"]]
        place = {"offset": None, "size_in_bytes": None, "inline_content": write_deletion_vector(bitmap)}
        dv = {"location": None, "deletion_vector": place, "record_count": bitmap.cardinality}
        rows.append(dv_row(leaf[MANIFEST], leaf, dv))
    ordinals = masked_ordinals(state.spark, pa.Table.from_pylist(rows, schema=DV_SCHEMA), None)
    frames = state.reader.physical_frames(manifests, EntryProjection.of(_KEY))
    entries = reduce(lambda left, right: left.unionByName(right), frames)
    return entries.join(ordinals, [MANIFEST, ORDINAL], "left_semi").select(*_key_columns())


def _lost_keys(state: TableState, lost: Sequence[FileKey]) -> DataFrame:
    columns = {
        "kind": pa.array([key.content_type for key in lost], pa.int32()),
        "path": pa.array([key.location for key in lost], pa.string()),
        "offset": pa.array([-1 if key.offset is None else key.offset for key in lost], pa.int64()),
    }
    return local_frame(state.spark, pa.table(columns))


def _bitmap(rows: pa.Table) -> pa.Table:
    """Return the ordinals of one leaf's entries as a bitmap."""
    blob = write_deletion_vector(PositionBitmap.of(rows.column(ORDINAL).to_numpy()))
    return pa.table({MANIFEST: rows.column(MANIFEST).slice(0, 1), "ordinals": pa.array([blob], pa.binary())})
