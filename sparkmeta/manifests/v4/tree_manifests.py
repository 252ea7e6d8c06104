"""Convert a V4 root to rows of manifests, as planning and metadata tables use them.

The root's own files are represented as one data and one delete manifest. These are never opened, since their entries
are on the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.entries.live import manifest_counts
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST
from sparkmeta.expr.arrays import narrowed, whole
from sparkmeta.expr.bounds import encode_bounds
from sparkmeta.manifests.deletion_vectors import manifest_dvs
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.layout import TreeTypes, TupleSources
from sparkmeta.manifests.v4.root import Root, read_root, version
from sparkmeta.spec.entry import MANIFEST_STATS, ContentType
from sparkmeta.spec.locations import LAYOUT_REVISION_KEY, Locations

IN_ROOT = "ROOT"
"""The file format of manifests that represent the root's own files."""

UPGRADED_KEY = "sparkmeta.upgraded-sequence-number"
"""Key-value metadata of a root: manifests up to this sequence number have the layout of versions 1 to 3."""

FOREIGN_KEY = "sparkmeta.foreign-sequence-number"
"""Key-value metadata of a root: another library, which may name statistics differently, may have written leaves up to
this sequence number."""

MASKED = "masked"

# Content type of a manifest -> content types of its files.
FILE_TYPES = {
    ContentType.DATA_MANIFEST: (ContentType.DATA,),
    ContentType.DELETE_MANIFEST: (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES),
}


@dataclass(frozen=True)
class Tree:
    """The metadata tree of a snapshot.

    Attributes:
        sources: the stats that hold partition values.
        whole: returns the root with the stats of all columns; None if `root` has them.
    """

    root: Root
    sources: TupleSources
    whole: Callable[[], Root] | None = None

    def root_with(self, stats: Collection[int]) -> Root:
        """Return the root with the stats of columns."""
        known = {int(child.name) for child in self.root.table.schema.field(CONTENT_STATS).type}
        return self.root if self.whole is None or known.issuperset(stats) else self.whole()

    @cached_property
    def upgraded_sequence_number(self) -> int:
        """Manifests up to this sequence number were written before the upgrade to a tree; -1 for none."""
        return int(self.root.properties.get(UPGRADED_KEY, -1))

    @property
    def is_upgraded(self) -> bool:
        """Whether manifests may be older than the tree."""
        return self.upgraded_sequence_number >= 0

    @cached_property
    def foreign_sequence_number(self) -> int:
        """Leaves up to this sequence number may be written by another library; -1 for none."""
        if not self.root.layout.spark_reads:
            return sys.maxsize
        properties = self.root.properties
        names_layout = LAYOUT_REVISION_KEY in properties or UPGRADED_KEY in properties
        return int(properties.get(FOREIGN_KEY, -1 if names_layout else sys.maxsize))

    @cached_property
    def manifest_dvs(self) -> pa.Table:
        """The live manifest DVs, as `DV_SCHEMA`."""
        return manifest_dvs(self.root)

    def has_tree_layout(self, leaves: pa.Table) -> pa.Array:
        """Return which leaves, rows of `leaf_manifests`, have this package's V4 layout, which Spark reads by name.

        Others are older than the tree, foreign, or the root's own files.
        """
        return self._is_parquet(leaves, max(self.upgraded_sequence_number, self.foreign_sequence_number), sys.maxsize)

    def is_foreign(self, leaves: pa.Table) -> pa.Array:
        """Return which leaves, rows of `leaf_manifests`, are V4 leaves that another library may have written."""
        return self._is_parquet(leaves, self.upgraded_sequence_number, self.foreign_sequence_number)

    def has_layout_of_root(self, leaves: pa.Table) -> pa.Array:
        """Return which leaves, rows of `leaf_manifests`, have the layout of the root.

        Only these may name a data leaf, or be named by a delete leaf, and fields can be found in them by their ids.
        """
        return self.has_tree_layout(leaves) if self.root.layout.spark_reads else self.is_foreign(leaves)

    def has_old_layout(self, leaves: pa.Table) -> pa.Array:
        """Return which leaves, rows of `leaf_manifests`, are Avro or Parquet manifests in the layout of versions 1 to
        3."""
        is_v4 = pc.or_(self.has_tree_layout(leaves), self.is_foreign(leaves))
        return pc.invert(pc.or_(is_v4, pc.equal(leaves.column("file_format"), IN_ROOT)))

    def _is_parquet(self, leaves: pa.Table, after: int, until: int) -> pa.Array:
        parquet = pc.is_in(leaves.column("file_format"), pa.array(["PARQUET", VECTORS]))
        sequence = version(leaves, "sequence_number")
        between = pc.and_(pc.greater(sequence, after), pc.less_equal(sequence, until))
        return pc.fill_null(pc.and_(parquet, between), False)

    def root_id(self, content: ContentType) -> int:
        """Return the small id of the manifest that represents the root's own files of one content."""
        return len(self.root.table) + int(content) - int(ContentType.DATA_MANIFEST)


def tree_manifests(tree: Tree) -> pa.Table:
    """Return the manifests of a tree, with columns as in `manifests_of_list`.

    `content_stats` replaces partition summaries, and `masked` counts the entries that a deletion vector masks. The
    root's own files are a data and a delete manifest of format `IN_ROOT`.
    """
    leaves = tree.root.leaves
    masked = dict(
        zip(
            tree.manifest_dvs.column(MANIFEST).to_pylist(),
            tree.manifest_dvs.column("record_count").to_pylist(),
            strict=True,
        )
    )
    counts = [masked.get(ordinal, 0) for ordinal in leaves.column("ordinal").to_pylist()]
    of_leaves = leaf_manifests(leaves, leaves.column("ordinal").cast(pa.int32()))
    table = of_leaves.append_column(MASKED, pa.array(counts, pa.int64()))
    of_root = [row for content in FILE_TYPES if (row := _root_row(tree, content)) is not None]
    return pa.concat_tables([table, pa.Table.from_pylist(of_root, schema=table.schema)]).combine_chunks()


def leaf_manifests(leaves: pa.Table, ids: Any) -> pa.Table:
    """Return leaves, rows of `tree_schema`, as rows of `tree_manifests` with the given small ids, without `masked`."""
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


def _root_row(tree: Tree, content: ContentType) -> dict[str, Any] | None:
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
        "manifest_stats": manifest_counts(files),
        MASKED: 0,
    }


# -- Roots as manifest lists ------------------------------------------------------------------------------------------


def tree_manifest_files(
    root: Root, spec_fields: Mapping[int, Sequence[tuple[int, str]]], sources: TupleSources, *, with_root: bool = False
) -> pa.Table:
    """Return the live leaves of a root as rows of a manifest list, `MANIFEST_FILE_SCHEMA`.

    Args:
        with_root: whether to add the root itself as a data or delete manifest if it has files.
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
    rows = [_root_file(root, content) for content in FILE_TYPES] if with_root else []
    return pa.concat_tables([table, pa.Table.from_pylist([row for row in rows if row], schema=MANIFEST_FILE_SCHEMA)])


def listed_root(
    data: bytes, location: str, snapshot: tuple[int, int], types: TreeTypes, locations: Locations
) -> pa.RecordBatch:
    """Return a root as rows of a manifest list: its leaves, and the root itself if it has files.

    Args:
        data: the content of the file.
        location: the file's location.
        snapshot: the id and sequence number of the root's snapshot.
        types: the types of the table's V4 manifests.
        locations: resolves the locations in the root.

    Raises:
        CorruptFileError: not a root.
    """
    root = read_root(data, types, location, (*snapshot, None), locations)
    table = tree_manifest_files(root, types.spec_fields, types.sources, with_root=True)
    return table.combine_chunks().to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], table.schema)


def _root_file(root: Root, content: ContentType) -> dict[str, Any] | None:
    files = root.of(FILE_TYPES[content], live=False)
    if not len(files):
        return None
    return {
        "manifest_path": root.location,
        "manifest_length": 0,
        "partition_spec_id": files.column("partition_spec_id")[0].as_py(),
        "content": int(content) - int(ContentType.DATA_MANIFEST),
        "sequence_number": pc.max(version(files, "sequence_number")).as_py(),
        **manifest_counts(files),
    }


def _partitions(
    leaves: pa.Table, spec_fields: Mapping[int, Sequence[tuple[int, str]]], sources: TupleSources
) -> pa.Array:
    """Return the partition summaries of leaves, in the order of their spec's fields."""
    stats = leaves.column(CONTENT_STATS)
    flat = whole(stats)
    by_id = {int(field.name): values for field, values in zip(stats.type, flat.flatten(), strict=True)}
    encoded: dict[tuple[int, str], list[bytes | None]] = {}
    source_ids = {source for fields in sources.values() for _, source in fields}
    for source in source_ids.intersection(by_id):
        for name in ("lower_bound", "upper_bound"):
            encoded[source, name] = encode_bounds(pc.struct_field(by_id[source], name)).to_pylist()
    counts = {source: by_id[source].to_pylist() if source in by_id else None for source in source_ids}
    rows = []
    for row, spec_id in enumerate(leaves.column("partition_spec_id").to_pylist()):
        sources_of_fields = dict(sources[spec_id])
        rows.append(
            [_summary(row, sources_of_fields.get(field_id), counts, encoded) for field_id, _ in spec_fields[spec_id]]
        )
    return pa.array(rows, MANIFEST_FILE_SCHEMA.field("partitions").type)


def _summary(
    row: int,
    source: int | None,
    counts: Mapping[int, list[Any] | None],
    encoded: Mapping[tuple[int, str], list[bytes | None]],
) -> dict[str, Any]:
    column = counts.get(source) if source is not None else None
    stats = column[row] if column is not None else None
    if source is None or stats is None:
        return {"contains_null": True, "contains_nan": None, "lower_bound": None, "upper_bound": None}
    nulls, nans = stats["null_value_count"], stats["nan_value_count"]
    return {
        "contains_null": nulls is None or nulls > 0,
        "contains_nan": None if nans is None else nans > 0,
        "lower_bound": encoded[source, "lower_bound"][row],
        "upper_bound": encoded[source, "upper_bound"][row],
    }
