"""The relations of a metadata tree that `check` examines: leaves, masked entries and live files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.changes.root_changes import Row, flat_rows, manifest_dvs_by_leaf
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, checked_ordinals, dv_row
from sparkmeta.manifests.v4.root import FILES, LEAVES, Root, version
from sparkmeta.manifests.v4.spark import read_rows
from sparkmeta.manifests.v4.tree_manifests import Tree, leaf_manifests
from sparkmeta.plan.filter import is_live
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

ENTRY_COLUMNS = ("content_type", "location", "version_info", "deletion_vector", "referenced_file", "partition_spec_id")
UNBOUND, IS_MASKED = "_unbound", "_masked"
COUNTED = {Status.ADDED: "added", Status.EXISTING: "existing", Status.DELETED: "deleted"}

_LEAF_SCHEMA = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("path", pa.string()),
        pa.field("kind", pa.int32()),
        pa.field("status", pa.int32()),
        pa.field("owner", pa.string()),
        pa.field("tree_layout", pa.bool_()),
        *(pa.field(name, pa.int64()) for name in ("records", *COUNTED.values())),
    ]
)


@dataclass(frozen=True)
class CheckedTree:
    """A tree to check. Its root's entries are known to have the required fields; nothing else is assumed."""

    state: TableState
    root: Root

    # -- on the driver ----------------------------------------------------------------------------------------------

    @cached_property
    def leaf_entries(self) -> list[Row]:
        """The root's entries for leaves."""
        return [row for _, row in flat_rows(self.root.table, LEAVES)]

    @cached_property
    def leaf_by_location(self) -> dict[str, Row]:
        """The root's entries for leaves by location; a live one takes precedence over a DELETED one."""
        rows = sorted(self.leaf_entries, key=lambda row: row["status"] != Status.DELETED)
        return {row["location"]: row for row in rows}

    @cached_property
    def masks_by_leaf(self) -> dict[str, list[Row]]:
        """The manifest DVs, DELETED ones included, by the leaf that they mask."""
        return manifest_dvs_by_leaf(self.root)

    @cached_property
    def manifests(self) -> pa.Table:
        """The live leaves as manifests, with their row in the root as `manifest`."""
        leaves = self.root.leaves
        return leaf_manifests(leaves, leaves.column("ordinal").cast(pa.int32()))

    @cached_property
    def masks(self) -> pa.Table:
        """All live manifest DVs of live leaves, even several per leaf, as `DV_SCHEMA`."""
        locations, ids = (self.manifests.column(name).to_pylist() for name in ("location", MANIFEST))
        id_of = dict(zip(locations, ids, strict=True))
        rows = [
            dv_row(id_of[leaf], self.leaf_by_location[leaf], mask)
            for leaf, masks in self.masks_by_leaf.items()
            for mask in masks
            if leaf in id_of and mask["status"] != Status.DELETED
        ]
        return pa.Table.from_pylist(rows, schema=DV_SCHEMA)

    @property
    def tree(self) -> Tree:
        """The snapshot's metadata tree."""
        assert self.state.tree is not None
        return self.state.tree

    # -- in Spark ---------------------------------------------------------------------------------------------------

    @cached_property
    def leaves(self) -> DataFrame:
        """The root's entries for the live leaves, as `_LEAF_SCHEMA`."""
        stats = self.manifests.column("manifest_stats")
        columns: dict[str, Any] = {
            MANIFEST: self.manifests.column(MANIFEST),
            "path": self.manifests.column("location"),
            "kind": self.manifests.column("content_type"),
            "status": version(self.manifests, "status"),
            "owner": self.manifests.column("referenced_file"),
            "tree_layout": self.tree.has_tree_layout(self.manifests),
            "records": self.manifests.column("record_count"),
            **{name: pc.struct_field(stats, f"{name}_files_count") for name in COUNTED.values()},
        }
        arrays = [columns[field.name].cast(field.type) for field in _LEAF_SCHEMA]
        return local_frame(self.state.spark, pa.Table.from_arrays(arrays, schema=_LEAF_SCHEMA))

    @cached_property
    def bound_types(self) -> dict[int, str]:
        """The ids of the stats that hold partition values -> Iceberg types."""
        ids = {source for fields in self.state.types.tuple_sources.values() for _, source in fields}
        return {field_id: self.state.types.stats_types[field_id] for field_id in sorted(ids)}

    def physical_entries(self, manifests: pa.Table) -> DataFrame:
        """Return every physical entry of leaves: `ENTRY_COLUMNS`, `manifest`, `ordinal` and `UNBOUND`.

        UNBOUND is the id of the first stats of a partition value that the entry lacks.
        """
        of_tree = self.tree.has_tree_layout(manifests)
        layouts: list[tuple[pa.Table, dict[int, str]]] = [
            (manifests.filter(of_tree), self.bound_types),
            (manifests.filter(pc.invert(of_tree)), {}),
        ]
        frames = [
            self._narrow(frame, projection)
            for leaves, stats in layouts
            if len(leaves)
            for projection in [EntryProjection.of(ENTRY_COLUMNS, None, stats)]
            for frame in self.state.reader.physical_frames(leaves, projection)
        ]
        return union(frames) if frames else self.root_entries(FILES).where("false")

    def root_entries(self, kinds: Collection[ContentType]) -> DataFrame:
        """Return the files of the root itself with the columns of `physical_entries`, without a manifest."""
        projection = EntryProjection.of(ENTRY_COLUMNS, None, self.bound_types)
        files = self.root.of(kinds, live=False)
        rows = files.append_column(MANIFEST, pa.nulls(len(files), pa.int32()))
        frame = read_rows(self.state.spark, rows, projection, self.state.types.tuple_sources)
        return self._narrow(frame, projection)

    def _narrow(self, frame: DataFrame, projection: EntryProjection) -> DataFrame:
        unbound = self._unbound() if projection.stats else F.lit(None).cast("int")
        return frame.select(*ENTRY_COLUMNS, MANIFEST, ORDINAL, unbound.alias(UNBOUND))

    def _unbound(self) -> Column:
        """Return the id of the spec's first stats that are missing, or have an upper bound but no lower one."""
        cases = []
        for spec_id, fields in self.state.types.tuple_sources.items():
            for _, source in fields:
                stats = F.col(f"{CONTENT_STATS}.`{source}`")
                lacks = stats.isNull() | (stats.lower_bound.isNull() & stats.upper_bound.isNotNull())
                cases.append(F.when((F.col("partition_spec_id") == spec_id) & lacks, source))
        return F.coalesce(*cases).cast("int")

    @cached_property
    def leaf_files(self) -> DataFrame:
        """Every physical entry of the live leaves."""
        return self.physical_entries(self.manifests)

    @cached_property
    def ordinals(self) -> DataFrame:
        """The ordinals that are masked, and the problems of masks, as `CHECKED_SCHEMA`."""
        return checked_ordinals(self.state.spark, self.masks, self.state.access.tasks)

    @cached_property
    def masked_ordinals(self) -> DataFrame:
        return self.ordinals.where("problem IS NULL").select(MANIFEST, ORDINAL).distinct()

    @cached_property
    def marked(self) -> DataFrame:
        """The entries of leaves with `IS_MASKED`."""
        if not len(self.masks):
            return self.leaf_files.withColumn(IS_MASKED, F.lit(False))
        masked = self.masked_ordinals.withColumn(IS_MASKED, F.lit(True))
        marked = self.leaf_files.join(masked, [MANIFEST, ORDINAL], "left")
        return marked.withColumn(IS_MASKED, F.coalesce(IS_MASKED, F.lit(False)))

    @cached_property
    def live(self) -> DataFrame:
        """The live files, as readers see them."""
        in_leaves = self.marked.where(is_live().column() & ~F.col(IS_MASKED)).drop(IS_MASKED)
        return in_leaves.unionByName(self.root_entries(FILES).where(is_live().text))


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of frames with the same columns."""
    return reduce(lambda left, right: left.unionByName(right), frames)
