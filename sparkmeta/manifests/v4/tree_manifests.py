"""A V4 root in the forms that the engine knows: manifests to prune, and the entries of those that are left.

The files that stand in the root itself are treated as manifests of their own, one of data and one of deletes, which are
never opened: their entries are on the driver already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import encode_bounds
from sparkmeta.manifests.arrays import narrowed, whole
from sparkmeta.manifests.deletion_vectors import manifest_dvs
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST
from sparkmeta.manifests.v4.root import Root, read_root, version
from sparkmeta.manifests.v4.types import TreeTypes, TupleSources, stats_of_fields
from sparkmeta.spec.entry import LAYOUT_REVISION_KEY, MANIFEST_STATS, ContentType, Status

IN_ROOT = "ROOT"
"""The file format of the manifests that are the root's own entries."""

UPGRADED_KEY = "sparkmeta.upgraded-sequence-number"
"""Key-value metadata of a root: manifests of this sequence number and older ones have the layout of v1-v3."""

FOREIGN_KEY = "sparkmeta.foreign-sequence-number"
"""Key-value metadata of a root: leaves of this sequence number and older ones, if not older than the tree, may be of
another library, which names their statistics in its own way."""

MASKED = "masked"

FILE_TYPES = {
    ContentType.DATA_MANIFEST: (ContentType.DATA,),
    ContentType.DELETE_MANIFEST: (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES),
}


@dataclass(frozen=True)
class Tree:
    """A root, and where the partition values of its entries stand."""

    root: Root
    sources: TupleSources

    @cached_property
    def upgraded_sequence_number(self) -> int:
        """Manifests up to this sequence number were written before the table became a tree; -1: none."""
        return int(self.root.properties.get(UPGRADED_KEY, -1))

    @property
    def is_upgraded(self) -> bool:
        """Whether some of the manifests may be older than the tree."""
        return self.upgraded_sequence_number >= 0

    @cached_property
    def foreign_sequence_number(self) -> int:
        """Leaves up to this sequence number may be of another library; -1: none. Roots of ours name their layout."""
        properties = self.root.properties
        ours = LAYOUT_REVISION_KEY in properties or UPGRADED_KEY in properties
        return int(properties.get(FOREIGN_KEY, -1 if ours else sys.maxsize))

    @cached_property
    def manifest_dvs(self) -> pa.Table:
        """The live deletion vectors of the leaves, as `DV_SCHEMA`."""
        return manifest_dvs(self.root)

    def has_tree_layout(self, leaves: pa.Table) -> pa.Array:
        """Which leaves, rows of `leaf_manifests`, are V4 ones of our layout, which Spark reads by the names in it.

        Others are older than the tree, foreign, or the root's own files.
        """
        return self._is_parquet(leaves, max(self.upgraded_sequence_number, self.foreign_sequence_number), sys.maxsize)

    def is_foreign(self, leaves: pa.Table) -> pa.Array:
        """Which leaves, rows of `leaf_manifests`, are V4 ones that may be of another library."""
        return self._is_parquet(leaves, self.upgraded_sequence_number, self.foreign_sequence_number)

    def _is_parquet(self, leaves: pa.Table, after: int, until: int) -> pa.Array:
        parquet, sequence = pc.equal(leaves.column("file_format"), "PARQUET"), version(leaves, "sequence_number")
        between = pc.and_(pc.greater(sequence, after), pc.less_equal(sequence, until))
        return pc.fill_null(pc.and_(parquet, between), False)

    def root_id(self, content: ContentType) -> int:
        """The small id of the root's own entries of one content, behind those of all leaves."""
        return len(self.root.table) + int(content) - int(ContentType.DATA_MANIFEST)


def tree_manifests(tree: Tree) -> pa.Table:
    """The manifests of a tree as `manifests_of_list` gives those of a manifest list, so that planning takes both.

    Columns: those of `manifests_of_list`, with `content_stats` for partition summaries, and `masked`, how
    many entries a deletion vector masks. The root's own files are a manifest of data and one of deletes, of format
    `IN_ROOT`.
    """
    leaves = tree.root.leaves
    masked = dict(
        zip(
            tree.manifest_dvs.column(MANIFEST).to_pylist(),
            tree.manifest_dvs.column("record_count").to_pylist(),
            strict=True,
        )
    )
    ordinals = leaves.column("ordinal").to_pylist()
    of_leaves = leaf_manifests(leaves, leaves.column("ordinal").cast(pa.int32()))
    table = of_leaves.append_column(MASKED, pa.array([masked.get(one, 0) for one in ordinals], pa.int64()))
    own = [_own_row(tree, content) for content in FILE_TYPES]
    rows = [row for row in own if row is not None]
    return pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)]).combine_chunks()


def leaf_manifests(leaves: pa.Table, ids: Any) -> pa.Table:
    """Leaves, rows of `tree_schema`, as manifests with these small ids: `tree_manifests` without `masked`."""
    columns: dict[str, Any] = {
        MANIFEST: ids,
        "content_type": leaves.column("content_type"),
        "location": leaves.column("location"),
        "file_format": pc.utf8_upper(leaves.column("file_format")),
        "version_info": leaves.column("version_info"),
        "partition_spec_id": leaves.column("partition_spec_id"),
        "record_count": leaves.column("record_count"),
        "file_size_in_bytes": leaves.column("file_size_in_bytes"),
        "manifest_stats": leaves.column("manifest_stats"),
        "key_metadata": leaves.column("key_metadata"),
        "first_row_id": leaves.column("first_row_id"),
        "referenced_file": leaves.column("referenced_file"),
        CONTENT_STATS: leaves.column(CONTENT_STATS),
    }
    return pa.table(columns)


def _own_row(tree: Tree, content: ContentType) -> dict[str, Any] | None:
    files = tree.root.of(FILE_TYPES[content], live=False)
    if not len(files):
        return None
    return {
        MANIFEST: tree.root_id(content),
        "content_type": int(content),
        "location": tree.root.location,
        "file_format": IN_ROOT,
        "partition_spec_id": files.column("partition_spec_id")[0].as_py(),
        "record_count": len(files),
        "file_size_in_bytes": 0,
        "manifest_stats": _own_counts(files),
        MASKED: 0,
    }


def _own_counts(files: pa.Table) -> dict[str, int]:
    status, records = version(files, "status"), files.column("record_count")
    stats: dict[str, int] = {"min_sequence_number": pc.min(version(files, "sequence_number")).as_py()}
    for one in Status:
        mask = pc.equal(status, int(one))
        stats[f"{one.name.lower()}_files_count"] = pc.sum(mask).as_py() or 0
        stats[f"{one.name.lower()}_rows_count"] = pc.sum(records.filter(mask)).as_py() or 0
    return stats


# -- as a manifest list ---------------------------------------------------------------------------------------------


def tree_manifest_files(
    root: Root, spec_fields: Mapping[int, Sequence[tuple[int, str]]], sources: TupleSources, *, own: bool = False
) -> pa.Table:
    """The live leaves of a root as rows of a manifest list: `MANIFEST_FILE_SCHEMA`.

    own: with the root itself as one more data or delete manifest, where files stand in it.
    """
    leaves = root.leaves
    stats = leaves.column("manifest_stats")
    columns: dict[str, Any] = {
        "manifest_path": leaves.column("location"),
        "manifest_length": leaves.column("file_size_in_bytes"),
        "partition_spec_id": leaves.column("partition_spec_id"),
        "content": pc.subtract(leaves.column("content_type"), int(ContentType.DATA_MANIFEST)).cast(pa.int32()),
        "sequence_number": version(leaves, "sequence_number"),
        "added_snapshot_id": version(leaves, "snapshot_id"),
        "partitions": _partitions(leaves, spec_fields, sources),
        "key_metadata": leaves.column("key_metadata"),
        "first_row_id": leaves.column("first_row_id"),
        **{field.name: pc.struct_field(stats, field.name) for field in MANIFEST_STATS},
    }
    arrays = [narrowed(columns[field.name], field.type) for field in MANIFEST_FILE_SCHEMA]
    table = pa.Table.from_arrays(arrays, schema=MANIFEST_FILE_SCHEMA)
    rows = [_own_file(root, content) for content in FILE_TYPES] if own else []
    return pa.concat_tables([table, pa.Table.from_pylist([row for row in rows if row], schema=MANIFEST_FILE_SCHEMA)])


def listed_root(data: bytes, location: str, snapshot: tuple[int, int], types: TreeTypes) -> pa.RecordBatch:
    """Return a root as rows of a manifest list: its leaves, and itself for the files that are in it.

    Args:
        data: the file.
        location: of the file.
        snapshot: the id and the sequence number of the snapshot that names it.
        types: of the table's V4 manifests.

    Raises:
        CorruptFileError: it is no root.
    """
    root = read_root(data, types.stats, types.spec_fields, location, snapshot, stats_of_fields(types.sources))
    table = tree_manifest_files(root, types.spec_fields, types.sources, own=True)
    return table.combine_chunks().to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], table.schema)


def _own_file(root: Root, content: ContentType) -> dict[str, Any] | None:
    files = root.of(FILE_TYPES[content], live=False)
    if not len(files):
        return None
    return {
        "manifest_path": root.location,
        "manifest_length": 0,
        "partition_spec_id": files.column("partition_spec_id")[0].as_py(),
        "content": int(content) - int(ContentType.DATA_MANIFEST),
        "sequence_number": pc.max(version(files, "sequence_number")).as_py(),
        **_own_counts(files),
    }


def _partitions(
    leaves: pa.Table, spec_fields: Mapping[int, Sequence[tuple[int, str]]], sources: TupleSources
) -> pa.Array:
    """Partition summaries by leaf, in the order of its spec's fields."""
    stats = leaves.column(CONTENT_STATS)
    flat = whole(stats)
    by_id = {int(field.name): values for field, values in zip(stats.type, flat.flatten(), strict=True)}
    encoded: dict[tuple[int, str], list[bytes | None]] = {}
    for source in {one for fields in sources.values() for _, one in fields if one in by_id}:
        for name in ("lower_bound", "upper_bound"):
            encoded[source, name] = encode_bounds(pc.struct_field(by_id[source], name)).to_pylist()
    counts = {
        one: by_id[one].to_pylist() if one in by_id else None
        for one in {source for fields in sources.values() for _, source in fields}
    }
    rows = []
    for row, spec_id in enumerate(leaves.column("partition_spec_id").to_pylist()):
        places = dict(sources[spec_id])
        rows.append([_summary(row, places.get(field_id), counts, encoded) for field_id, _ in spec_fields[spec_id]])
    return pa.array(rows, MANIFEST_FILE_SCHEMA.field("partitions").type)


def _summary(
    row: int,
    source: int | None,
    counts: Mapping[int, list[Any] | None],
    encoded: Mapping[tuple[int, str], list[bytes | None]],
) -> dict[str, Any]:
    known = counts.get(source) if source is not None else None
    stats = known[row] if known is not None else None
    if source is None or stats is None:
        return {"contains_null": True, "contains_nan": None, "lower_bound": None, "upper_bound": None}
    nulls, nans = stats["null_value_count"], stats["nan_value_count"]
    return {
        "contains_null": nulls is None or nulls > 0,
        "contains_nan": None if nans is None else nans > 0,
        "lower_bound": encoded[source, "lower_bound"][row],
        "upper_bound": encoded[source, "upper_bound"][row],
    }
