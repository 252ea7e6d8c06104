"""A V4 root in the forms that the engine knows: manifests to prune, and the entries of those that are left.

The files that stand in the root itself are treated as manifests of their own, one of data and one of deletes, which are
never opened: their entries are on the driver already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns import sql
from sparkmeta.columns.bounds import encode_bounds
from sparkmeta.manifests.arrays import narrowed, whole
from sparkmeta.manifests.avro.read import spark_schema
from sparkmeta.manifests.deletion_vectors import (
    MASK,
    few_masks,
    leaf_masks,
    leaf_vectors,
    mask_bytes,
    masked_by_tasks,
    masked_ordinals,
)
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.manifests.metrics_maps import with_metrics_maps
from sparkmeta.manifests.parts import leaf_units
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.manifests.v4.root import Root, version
from sparkmeta.manifests.v4.spark import TupleSources, entry_columns, read_fields, read_leaf_entries
from sparkmeta.spec.entry import LAYOUT_REVISION_KEY, MANIFEST_STATS, METRICS_MAP_IDS, ContentType, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.storage.files import ExecutorReader, Files

IN_ROOT = "ROOT"
"""The file format of the manifests that are the root's own entries."""

UPGRADED_KEY = "sparkmeta.upgraded-sequence-number"
"""Key-value metadata of a root: manifests of this sequence number and older ones have the layout of v1-v3."""

FOREIGN_KEY = "sparkmeta.foreign-sequence-number"
"""Key-value metadata of a root: leaves of this sequence number and older ones, if not older than the tree, may be of
another library, which names their statistics in its own way."""

MASKED = "masked"
_MASKED_LEAF = "_masked_leaf"

OWN_ENTRIES = {
    ContentType.DATA_MANIFEST: (ContentType.DATA,),
    ContentType.DELETE_MANIFEST: (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES),
}
# Masks up to this many bytes, a bit for each entry of a masked leaf, are broadcast.
_BROADCAST_MASKS = 256 << 20


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
    def vectors(self) -> pa.Table:
        """The live deletion vectors of the leaves, as `VECTOR_SCHEMA`."""
        return leaf_vectors(self.root)

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

    def own_id(self, content: ContentType) -> int:
        """The small id of the root's own entries of one content, behind those of all leaves."""
        return len(self.root.table) + int(content) - int(ContentType.DATA_MANIFEST)


@dataclass(frozen=True)
class TreeReader:
    """What it takes to read a tree's entries.

    files: opens what is small on the driver; None where Spark had better. reader: opens files on executors; None where
    only Spark's sources can.
    column_types: every column of the table that has metrics -> its Iceberg type.
    manifest_entries: reads manifests of the v1-v3 layout, which upgraded trees have. foreign_entries: leaves that may
    be of another library.
    """

    spark: SparkSession
    tree: Tree
    files: Files | None
    reader: ExecutorReader | None
    column_types: Mapping[int, str]
    manifest_entries: Callable[[pa.Table, EntryProjection], DataFrame]
    foreign_entries: Callable[[pa.Table, EntryProjection], DataFrame]

    def entries(self, manifests: pa.Table, projection: EntryProjection) -> DataFrame:
        """The entries of manifests (rows of `tree_manifests`) that no deletion vector masks, DELETED ones included.

        Few small deletion vectors are read at once, and raise at once what is wrong with them; all else is lazy.
        """
        mapped = frozenset(METRICS_MAP_IDS).intersection(projection.columns)
        if mapped:
            return self._with_maps(manifests, projection)
        frames = [*self._leaf_frames(manifests, projection), *self._own_frames(manifests, projection)]
        if not frames:
            from sparkmeta.session import local_frame

            return local_frame(self.spark, projection.schema.empty_table())
        return reduce(lambda left, right: left.unionByName(right), frames)

    def _leaf_frames(self, manifests: pa.Table, projection: EntryProjection) -> list[DataFrame]:
        leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
        vectors, ids = self.tree.vectors, leaves.column(MANIFEST).combine_chunks()
        vectors = vectors.filter(pc.is_in(vectors.column(MANIFEST), ids))
        if not len(vectors):
            return self.physical_frames(leaves, projection)
        if few_masks(vectors, self.files):  # one relation is planned sooner than two
            return [self._without_masked(vectors, one) for one in self.physical_frames(leaves, projection)]
        masked = pc.is_in(ids, vectors.column(MANIFEST).combine_chunks())
        frames = self.physical_frames(leaves.filter(pc.invert(masked)), projection)
        of_masked = self.physical_frames(leaves.filter(masked), projection)
        return [*frames, *(self._unmasked(vectors, one) for one in of_masked)]

    def physical_frames(self, leaves: pa.Table, projection: EntryProjection) -> list[DataFrame]:
        """Every entry of some leaves (rows of `leaf_manifests`), masked and DELETED ones included: a frame a layout.

        Without metrics maps: these are made of stats (`plain_projection`, `with_metrics_maps`).
        """
        is_ours, is_foreign = self.tree.has_tree_layout(leaves), self.tree.is_foreign(leaves)
        frames = []
        v4, foreign = leaves.filter(is_ours), leaves.filter(is_foreign)
        older = leaves.filter(pc.invert(pc.or_(is_ours, is_foreign)))
        if len(v4):
            frames.append(read_leaf_entries(self.spark, leaf_units(v4), projection, self.tree.sources))
        if len(foreign):
            frames.append(self.foreign_entries(foreign, projection))
        if len(older):
            frames.append(self.manifest_entries(older, projection))
        return frames

    def _unmasked(self, vectors: pa.Table, entries: DataFrame) -> DataFrame:
        """Without the entries that many deletion vectors mask: an anti-join on (manifest, ordinal).

        Tasks open the masks that they need, where they can. Filters of entries come before this, and before
        `_without_masked`.
        """
        by_tasks = None if self.reader is None else masked_by_tasks(self.spark, vectors, self.reader)
        if by_tasks is not None:
            return entries.where(~by_tasks)
        if mask_bytes(vectors) > _BROADCAST_MASKS:
            masked = masked_ordinals(self.spark, vectors, self.reader)
            return entries.join(masked, [MANIFEST, ORDINAL], "left_anti")
        return self._without_masked(vectors, entries)

    def _without_masked(self, vectors: pa.Table, entries: DataFrame) -> DataFrame:
        """As `_unmasked`: masks as bits are looked up rather than joined, one row a leaf, which is broadcast."""
        from pyspark.sql import functions as F

        masks = leaf_masks(self.spark, vectors, self.reader, self.files).withColumnRenamed(MANIFEST, _MASKED_LEAF)
        found = entries.join(F.broadcast(masks), F.expr(f"{MANIFEST} = {_MASKED_LEAF}"), "left")
        bit = f"bit_get(get({MASK}, CAST({ORDINAL} >> 6 AS INT)), CAST({ORDINAL} & 63 AS INT))"
        return found.where(f"coalesce({bit}, 0) = 0").drop(MASK, _MASKED_LEAF)

    def _own_frames(self, manifests: pa.Table, projection: EntryProjection) -> list[DataFrame]:
        from sparkmeta.session import local_frame

        own = manifests.filter(pc.equal(manifests.column("file_format"), IN_ROOT))
        frames = []
        columns = sql.texts(entry_columns(projection, self.tree.sources, None))
        for kind in own.column("content_type").to_pylist():
            rows = own_rows(self.tree, ContentType(kind), projection)
            frames.append(local_frame(self.spark, rows).selectExpr(*columns))
        return frames

    def _with_maps(self, manifests: pa.Table, projection: EntryProjection) -> DataFrame:
        """Entries with metrics maps, which are made of the stats of all columns."""
        plain = plain_projection(projection, self.column_types)
        fill = partial(with_metrics_maps, projection, frozenset(self.column_types))
        return self.entries(manifests, plain).mapInArrow(fill, spark_schema(projection))


def plain_projection(projection: EntryProjection, column_types: Mapping[int, str]) -> EntryProjection:
    """A projection with the stats of all columns in the place of its metrics maps, which are made of them."""
    stats = {**column_types, **dict(projection.stats)}
    columns = tuple(name for name in projection.columns if name not in METRICS_MAP_IDS)
    return EntryProjection(columns, projection.partition, tuple(sorted(stats.items())))


def own_rows(tree: Tree, content: ContentType, projection: EntryProjection) -> pa.Table:
    """The root's own files of one content, with the fields that a projection needs, `manifest` and `ordinal`."""
    files = tree.root.of(OWN_ENTRIES[content], live=False)
    table = narrowed_rows(files, projection, tree.sources)
    manifests = pa.repeat(pa.scalar(tree.own_id(content), pa.int32()), len(files))
    return table.append_column(MANIFEST, manifests).append_column(ORDINAL, files.column("ordinal"))


def narrowed_rows(files: pa.Table, projection: EntryProjection, sources: TupleSources) -> pa.Table:
    """Rows of `tree_schema` with the fields only that a projection needs, for `entry_columns`."""
    schema = read_fields(projection, sources)
    columns = [narrowed(files.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def tree_manifests(tree: Tree) -> pa.Table:
    """The manifests of a tree as `manifests_of_list` gives those of a manifest list, so that planning takes both.

    Columns: those of `manifests_of_list`, with `content_stats` for partition summaries, and `masked`, how
    many entries a deletion vector masks. The root's own files are a manifest of data and one of deletes, of format
    `IN_ROOT`.
    """
    leaves = tree.root.leaves
    masked = dict(
        zip(tree.vectors.column(MANIFEST).to_pylist(), tree.vectors.column("record_count").to_pylist(), strict=True)
    )
    ordinals = leaves.column("ordinal").to_pylist()
    of_leaves = leaf_manifests(leaves, leaves.column("ordinal").cast(pa.int32()))
    table = of_leaves.append_column(MASKED, pa.array([masked.get(one, 0) for one in ordinals], pa.int64()))
    own = [_own_row(tree, content) for content in OWN_ENTRIES]
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
    files = tree.root.of(OWN_ENTRIES[content], live=False)
    if not len(files):
        return None
    return {
        MANIFEST: tree.own_id(content),
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
    rows = [_own_file(root, content) for content in OWN_ENTRIES] if own else []
    return pa.concat_tables([table, pa.Table.from_pylist([row for row in rows if row], schema=MANIFEST_FILE_SCHEMA)])


def _own_file(root: Root, content: ContentType) -> dict[str, Any] | None:
    files = root.of(OWN_ENTRIES[content], live=False)
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
