"""The maintenance of a table by name: `table.maintenance.upgrade(4)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from pyiceberg.expressions import AlwaysTrue

from sparkmeta.compact.options import CompactionOptions
from sparkmeta.compact.plan import CompactionPlan, plan_compaction
from sparkmeta.maintain.leaf_map import LeafMap, leaf_map
from sparkmeta.maintain.rewrite_manifests.groups import ManifestRewriteOptions
from sparkmeta.maintain.rewrite_manifests.plan import ManifestRewritePlan, plan_rewrite
from sparkmeta.maintain.undo_upgrade import UndoUpgradePlan, plan_undo_upgrade
from sparkmeta.maintain.upgrade import UpgradePlan, plan_upgrade
from sparkmeta.operations.base_table import TableT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.expressions import BooleanExpression


@dataclass(frozen=True)
class Maintenance(Generic[TableT]):
    """What can be done to keep a table in shape. Every method gives a plan: nothing happens before its `commit()`."""

    table: TableT

    def compact_manifests(  # noqa: PLR0913  every one by name
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        cluster_by: Sequence[str] | None = None,
        target_leaf_bytes: int | None = None,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        min_masked_ratio: float = 0.1,
        min_leaf_ratio: float = 0.5,
        max_overlap: int = 3,
        max_root_files: int | None = 100,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> CompactionPlan[TableT]:
        """Plan a compaction of the tree's manifests: leaves are merged, freed of masked entries and put in order.

        Readers see the same table, with the same changes in every snapshot. Only what is worth it is rewritten; a
        tree in good shape has none, and its plan commits nothing.

        Args:
            row_filter: only leaves that may hold files for it are rewritten, and files of the root that match it.
            cluster_by: columns and partition fields by which entries are ordered; by default a spec's partition fields,
                then the columns of the table's sort order.
            target_leaf_bytes: of a leaf's file; by default the table's `write.tree.leaf-target-bytes`.
            max_entries: of data leaves that one run rewrites. What saves most goes first.
            max_bytes: likewise.
            min_masked_ratio: a leaf is rewritten where this share of its entries is masked.
            min_leaf_ratio: neighbouring leaves smaller than this share of the target are merged.
            max_overlap: leaves are put in order where one overlaps more others than this.
            max_root_files: files of a kind, data or deletes, that may stay in the root; where there are more, they move
                into leaves. None: they stay.
            branch: to commit to.
            snapshot_properties: further keys of the snapshot's summary.

        Raises:
            ValidationError: an option that is out of range, a column that the table does not have, or a branch.
            InvalidFilterError: a filter that does not fit the table.
            UnsupportedError: a table that is no metadata tree, or that was opened read-only.
        """
        options = CompactionOptions(
            row_filter, cluster_by, target_leaf_bytes, max_entries, max_bytes, min_masked_ratio, min_leaf_ratio,
            max_overlap, max_root_files,
        )  # fmt: skip
        return plan_compaction(self.table, options, branch, dict(snapshot_properties or {}))

    def rewrite_manifests(
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        spec_id: int | None = None,
        sort_by: Sequence[str] | None = None,
        target_manifest_bytes: int | None = None,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> ManifestRewritePlan[TableT]:
        """Plan to sort the Avro manifests of a v1-v3 table by partition, and to bring them to the right size.

        Data and delete manifests of each partition spec by themselves. Live files keep their snapshot ids, sequence
        numbers and row ids; entries of files that are gone are left out. Where one rewriting made all manifests of a
        spec in the order and size that are asked for, and no other commit has added to them, there is nothing to do.

        Args:
            row_filter: only manifests that may hold files for it are rewritten, by their partition summaries.
            spec_id: only those of this partition spec.
            sort_by: names of partition fields by which files are sorted; by default a spec's, in its order.
            target_manifest_bytes: of a manifest; by default the table's `commit.manifest.target-size-bytes` (8 MiB).
            branch: to commit to.
            snapshot_properties: further keys of the snapshot's summary.

        Raises:
            ValidationError: an option that is out of range, a spec, partition field or branch that is not there.
            InvalidFilterError: a filter that does not fit the table.
            UnsupportedError: a table of version 4, or encrypted, or of a transform that is not known, or one that was
                opened read-only.
        """
        options = ManifestRewriteOptions(row_filter, spec_id, sort_by, target_manifest_bytes)
        return plan_rewrite(self.table, options, branch, dict(snapshot_properties or {}))

    def leaf_map(self, cluster_by: Sequence[str] | None = None, branch: str = "main") -> LeafMap:
        """Return where the data leaves of the table's spec lie in the order of the clustering columns, and overlap.

        A notebook shows it as a picture; it has `.svg` and `.save(path)`. Reads the root only. cluster_by: as of
        `compact_manifests`.

        Raises:
            ValidationError: a column that the table does not have, or a branch.
            UnsupportedError: a table that is no metadata tree.
        """
        return leaf_map(self.table, cluster_by, branch)

    def upgrade(self, format_version: int) -> UpgradePlan[TableT]:
        """Plan the upgrade of a table with manifest lists, of format version 1 to 4, to the metadata tree.

        In place: no manifest and no manifest list is written anew, and readers see the same table. From then on
        Iceberg's Java library refuses it.

        Raises:
            ValidationError: a format version other than 4, or a table that has the tree already.
            UnsupportedError: a table that is encrypted, or that was opened read-only.
        """
        return plan_upgrade(self.table, format_version)

    def undo_upgrade(self, format_version: int | None = None) -> UndoUpgradePlan[TableT]:
        """Plan the way back from the metadata tree, until the first commit of a snapshot makes a root.

        The table is of the version that it had before the upgrade, and Iceberg's Java library reads and writes it.
        Changes of its schema, specs and properties since stay.

        Args:
            format_version: of the table before the upgrade; by default what the newest metadata file before it says.

        Raises:
            ValidationError: a table that has no tree, a snapshot that has a root, or a column or partition field that
                the version has no place for.
            UnsupportedError: a table that was opened read-only.
        """
        return plan_undo_upgrade(self.table, format_version)
