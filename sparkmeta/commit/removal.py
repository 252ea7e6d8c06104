"""The entries that a commit removes: in manifests by ordinal, in the root of a tree by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.commit.candidates import root_manifests
from sparkmeta.commit.search import rows_by_manifest
from sparkmeta.edit.next_root import FileKey
from sparkmeta.edit.tally import KindCount, PartitionKey, Tally, partition_keys, sums_by_kind, tally_of
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.errors import ValidationError
from sparkmeta.session import local_frame, materialize
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import FileKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

# One row per manifest and `FileKind` that entries are removed from.
_GROUPS = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("files", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("ordinals", pa.binary()),
    ]
)

_KEY_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
)


@dataclass(frozen=True)
class Removal:
    """The entries that a commit removes.

    Attributes:
        masks: manifest location -> ordinals of its removed entries.
        keys: the removed files of the root itself.
        tally: counts of the removed files, for the snapshot's summary.
    """

    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    keys: frozenset[FileKey] = frozenset()
    tally: Tally = field(default_factory=Tally)

    def plus(self, other: Removal) -> Removal:
        """Return the entries of both. Raises ValidationError for an entry that is in both."""
        masks = dict(self.masks)
        for leaf, bitmap in other.masks.items():
            if leaf in masks and masks[leaf].intersects(bitmap):
                raise ValidationError(f"{leaf}: a file is removed twice in one commit")
            masks[leaf] = masks[leaf].union(bitmap) if leaf in masks else bitmap
        for key in self.keys & other.keys:
            raise ValidationError(f"{key.location} is removed twice in one commit")
        return Removal(masks, self.keys | other.keys, self.tally.plus(other.tally))


def without(entries: DataFrame, removal: Removal, state: TableState) -> DataFrame:
    """Return entries of `SEARCH_COLUMNS` without those in a small removal."""
    masked, keys = _removed_rows(removal, state)
    left = entries.join(F.broadcast(local_frame(state.spark, masked)), [MANIFEST, ORDINAL], "left_anti")
    named = F.broadcast(local_frame(state.spark, keys)).alias("removed")
    same = (F.col("entry.location") == F.col("removed.location")) & F.col("entry.deletion_vector.offset").eqNullSafe(
        F.col("removed.offset")
    )
    return left.alias("entry").join(named, same, "left_anti")


def _removed_rows(removal: Removal, state: TableState) -> tuple[pa.Table, pa.Table]:
    """Return removed entries of leaves as `manifest`, `ordinal`, and those of the root as `location`, `offset`."""
    ids = {location: manifest for manifest, location in _locations(state).items()}
    ordinals = {ids[leaf]: np.concatenate(list(bitmap.positions())) for leaf, bitmap in removal.masks.items()}
    masked = pa.table(
        {
            MANIFEST: pa.array(np.repeat([*ordinals], [*map(len, ordinals.values())]), pa.int32()),
            ORDINAL: pa.array(np.concatenate([*ordinals.values(), np.empty(0, np.int64)]), pa.int64()),
        }
    )
    keys = [{"location": key.location, "offset": key.offset} for key in removal.keys]
    schema = pa.schema([pa.field("location", pa.string()), pa.field("offset", pa.int64())])
    return masked, pa.Table.from_pylist(keys, schema)


def without_rows(entries: pa.Table, removal: Removal, state: TableState) -> pa.Table:
    """Do the same as `without` for entries on the driver."""
    if not len(entries) or not (removal.masks or removal.keys):
        return entries
    locations = _locations(state)
    places = zip(entries.column(MANIFEST).to_pylist(), entries.column(ORDINAL).to_pylist(), strict=True)
    stays = []
    for key, (manifest, ordinal) in zip(_keys(entries), places, strict=True):
        mask = removal.masks.get(locations[manifest])
        stays.append(FileKey(*key) not in removal.keys and (mask is None or not mask.contains(ordinal)))
    return entries.filter(pa.array(stays, pa.bool_()))


def removal_of(entries: DataFrame, state: TableState) -> Removal:
    """Return the removal of many entries of `SEARCH_COLUMNS`. Runs jobs."""
    in_root = F.col(MANIFEST).isin(_root_ids(state).to_pylist())
    narrow = materialize(entries.select(MANIFEST, ORDINAL, *_KEY_COLUMNS))
    rows = narrow.where(in_root).toArrow()
    of_leaves = narrow.where(~in_root)
    groups = of_leaves.groupBy(MANIFEST).applyInArrow(_grouped, spark_schema(_GROUPS)).toArrow()
    return _removal(groups, rows, state)


def removal_of_rows(rows: pa.Table, state: TableState) -> Removal:
    """Return the removal of entries on the driver, with their partitions in the tally."""
    in_root = pc.is_in(rows.column(MANIFEST), _root_ids(state))
    leaves = [_grouped(group) for group in rows_by_manifest(rows.filter(pc.invert(in_root))).values()]
    removal = _removal(pa.concat_tables(leaves or [_GROUPS.empty_table()]), rows.filter(in_root), state)
    return replace(removal, tally=replace(removal.tally, partitions=partitions_of(rows, state)))


def _root_ids(state: TableState) -> pa.Array:
    return root_manifests(state).column(MANIFEST).combine_chunks().cast(pa.int32())


def _grouped(rows: pa.Table) -> pa.Table:
    """Group the entries of one manifest to rows of `_GROUPS`, the first of which has all ordinals."""
    groups: list[dict[str, Any]] = []
    ordinals = np.asarray(rows.column(ORDINAL).to_numpy(), np.int64)
    for kind, count in tally_of(rows).items():
        groups.append(
            {
                MANIFEST: rows.column(MANIFEST)[0].as_py(),
                "kind": kind.value,
                "files": count.files,
                "records": count.records,
                "size": count.size,
                "ordinals": None if groups else write_deletion_vector(PositionBitmap.of(ordinals)),
            }
        )
    return pa.Table.from_pylist(groups, schema=_GROUPS)


def _removal(groups: pa.Table, in_root: pa.Table, state: TableState) -> Removal:
    masks: dict[str, PositionBitmap] = {}
    counts = [*tally_of(in_root).items()]
    locations = _locations(state)
    for row in groups.to_pylist():
        if row["ordinals"] is not None:
            location = locations[row[MANIFEST]]
            masks[location] = read_inline_vector(row["ordinals"], location)
        counts.append((FileKind(row["kind"]), KindCount(row["files"], row["records"], row["size"])))
    tally = Tally(sums_by_kind(counts), None)
    return Removal(masks, frozenset(FileKey(*key) for key in _keys(in_root)), tally)


def _locations(state: TableState) -> dict[int, str]:
    """Return the locations of manifests by their small ids."""
    return dict(zip(*(state.manifests.column(name).to_pylist() for name in (MANIFEST, "location")), strict=True))


def _keys(entries: pa.Table) -> Iterable[tuple[int, str, int | None]]:
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    return zip(entries.column("content_type").to_pylist(), entries.column("location").to_pylist(), offsets, strict=True)


def partitions_of(rows: pa.Table, state: TableState) -> frozenset[PartitionKey]:
    """Return the partitions of entries that are on the driver."""
    values = {
        field_id: pc.struct_field(rows.column(PARTITION), str(field_id)).to_pylist()
        for field_id in state.types.partition_fields
    }
    return partition_keys(rows.column("partition_spec_id").to_pylist(), values, state.types.spec_fields)
