"""`Maintenance`: the maintenance operations of a table, `table.maintenance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from sparkmeta.checks import takes_options
from sparkmeta.commit.compaction import CompactionOptions
from sparkmeta.commit.options import BranchOptions
from sparkmeta.maintain.compact_manifests import CompactionPlan, plan_compaction
from sparkmeta.maintain.convert_equality_deletes import (
    EqualityConversionOptions,
    EqualityConversionPlan,
    plan_equality_conversion,
)
from sparkmeta.maintain.convert_tree import ConversionPlan, ConvertTreeOptions, plan_conversion
from sparkmeta.maintain.dangling_deletes import DanglingDeletesPlan, plan_removal
from sparkmeta.maintain.downgrade import DowngradeOptions, DowngradePlan, plan_downgrade
from sparkmeta.maintain.expire_rows import RowExpiryOptions, RowExpiryPlan, plan_row_expiry
from sparkmeta.maintain.expire_snapshots import ExpiryOptions, ExpiryPlan, plan_expiry
from sparkmeta.maintain.file_groups import DataRewriteOptions
from sparkmeta.maintain.health import HealthReport, examine
from sparkmeta.maintain.health_findings import HealthOptions
from sparkmeta.maintain.leaf_map import LeafMap, leaf_map
from sparkmeta.maintain.orphans import OrphanOptions, OrphanPlan, plan_orphans
from sparkmeta.maintain.partition_statistics import PartitionStatsOptions, PartitionStatsPlan, plan_partition_stats
from sparkmeta.maintain.repair import RepairOptions, RepairPlan, plan_repair
from sparkmeta.maintain.rewrite_data_files import DataRewritePlan, plan_data_rewrite
from sparkmeta.maintain.rewrite_manifests import ManifestRewriteOptions, ManifestRewritePlan, plan_rewrite
from sparkmeta.maintain.rewrite_position_deletes import DeleteRewriteOptions, DeleteRewritePlan, plan_delete_rewrite
from sparkmeta.maintain.rewrite_table_path import PathOptions, PathPlan, plan_table_path
from sparkmeta.maintain.table_statistics import TableStatsOptions, TableStatsPlan, plan_table_stats
from sparkmeta.maintain.upgrade import UndoUpgradePlan, UpgradeOptions, UpgradePlan, plan_undo_upgrade, plan_upgrade
from sparkmeta.operations.table_operations import TableT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkmeta.checks import Options


@dataclass(frozen=True)
class Maintenance(Generic[TableT]):
    """The maintenance operations of a table. Each operation returns a plan; nothing changes before its `commit()`.

    The arguments of a method are the fields of its options class. `help` describes them. The command line and the jobs
    accept them as options.

    Attributes:
        table: the table.
    """

    table: TableT

    @takes_options(DataRewriteOptions)
    def rewrite_data_files(self, options: DataRewriteOptions) -> DataRewritePlan[TableT]:
        """Plan to rewrite data files in a suitable size, without deleted rows, and optionally sorted.

        Options have the names of Iceberg's procedure `rewrite_data_files` and choose the same files. Files are grouped
        by partition. Rows stay the same, including their `_row_id` and `_last_updated_sequence_number`. A file whose
        rows are all deleted by a deletion vector is removed without being read. Executors read and write the files; the
        driver does so if they are few and stay in their partitions. `sort_order` is a string or pyiceberg's SortOrder.

        Raises:
            ValidationError: an option or table property is out of range, or a column or branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is encrypted or read-only, has manifest lists of format version 4 or a type that
                can't be written, or tasks can't write its files.
        """
        return plan_data_rewrite(self.table, options)

    @takes_options(BranchOptions)
    def remove_dangling_deletes(self, options: BranchOptions) -> DanglingDeletesPlan[TableT]:
        """Plan to remove delete files and deletion vectors that apply to no live data file of a branch.

        These are equality deletes that are not newer than any data file of their partition, or of the table if their
        spec is unpartitioned; position delete files that are older than all data files of their partition, or than the
        file that they name; and deletion vectors and position delete files whose data file is gone.

        Only metadata is written: the delete manifests of a v1 to v3 table that list them, or the root of a tree. Rows
        stay the same. The files themselves are deleted when the snapshots that need them expire.

        Raises:
            ValidationError: the branch is unknown.
            UnsupportedError: the table is encrypted or read-only, or has manifest lists of format version 4.
        """
        return plan_removal(self.table, options)

    @takes_options(DeleteRewriteOptions)
    def rewrite_position_delete_files(self, options: DeleteRewriteOptions) -> DeleteRewritePlan[TableT]:
        """Plan to merge small position delete files, or to replace them with deletion vectors from version 3 on.

        From format version 3 on, every position delete file becomes a deletion vector for each data file that it
        applies to, merged with the file's other position deletes. Deletion vectors in small Puffin files move to larger
        ones. In version 2, position delete files of unsuitable sizes become Parquet files per data file or partition,
        according to `write.delete.granularity` (default `file`). Positions in data files that a delete file does not
        apply to are dropped, and so are the deleted rows that delete files may store. The table's rows stay the same.
        Executors read and write the files.

        Raises:
            ValidationError: an option or table property is out of range, or the branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is encrypted or read-only, has manifest lists of format version 4, or only
                Spark's sources can open its files.
        """
        return plan_delete_rewrite(self.table, options)

    @takes_options(EqualityConversionOptions)
    def convert_equality_deletes(self, options: EqualityConversionOptions) -> EqualityConversionPlan[TableT]:
        """Plan to replace equality deletes with deletion vectors, or with position delete files in version 2.

        Executors read the key columns of the data files that the deletes may apply to, judging by partition, sequence
        number and statistics, and write deletes of the rows that have these keys. Converted delete files are removed.
        Rows and data files stay the same. `max_files` and `max_bytes` limit a run to the oldest deletes. At least the
        deletes of one commit are converted, so that repeated runs convert all. New data files and new equality deletes
        of other commits do not conflict.

        Raises:
            ValidationError: an option or table property is out of range, or the branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is encrypted or read-only, has manifest lists of format version 4, or only
                Spark's sources can open its files.
        """
        return plan_equality_conversion(self.table, options)

    @takes_options(HealthOptions)
    def health(self, options: HealthOptions) -> HealthReport:
        """Measure the table's metadata and report what maintenance it needs: `print(table.maintenance.health())`.

        Each manifest of the current snapshot is read once, by the driver without Spark if there are few, otherwise by
        executors. Nothing changes. The plans of `compact_manifests` (for trees), `rewrite_manifests` and
        `expire_snapshots` decide what these operations would do. Other thresholds are table properties:
        `commit.manifest.min-count-to-merge` (100), the minimum number of manifests that a rewrite must save;
        `write.target-file-size-bytes` (512 MiB); `history.expire.*`; and `write.metadata.metrics.*`.

        Raises:
            ValidationError: an option or table property is out of range, or a column is unknown.
            EncryptionError: the table is encrypted, and a key is missing, refused or wrong.
            CorruptFileError: a manifest is damaged.
        """
        return examine(self.table, options)

    @takes_options(CompactionOptions)
    def compact_manifests(self, options: CompactionOptions) -> CompactionPlan[TableT]:
        """Plan a compaction of a tree's manifests, which merges leaves, drops masked entries and sorts entries.

        The table's rows and the changes of every snapshot stay the same. Only leaves that benefit are rewritten; if
        there are none, the plan commits nothing. Manifests from before an upgrade become leaves in tree layout, except
        for manifests with position delete files of version 2. The summary names these.

        Raises:
            ValidationError: an option is out of range, or a column or branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table has no metadata tree, or is read-only.
        """
        return plan_compaction(self.table, options)

    @takes_options(ManifestRewriteOptions)
    def rewrite_manifests(self, options: ManifestRewriteOptions) -> ManifestRewritePlan[TableT]:
        """Plan to sort the Avro manifests of a v1 to v3 table by partition and rewrite them in a target size.

        Data and delete manifests of each partition spec are rewritten separately. Live files keep their snapshot ids,
        sequence numbers and row ids; DELETED entries are dropped. A spec's manifests are left alone if a single rewrite
        has written all of them in the same order and size, and no other commit has added any.

        Raises:
            ValidationError: an option is out of range, or a spec, partition field or branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is of version 4, encrypted or read-only, or a transform is unknown.
        """
        return plan_rewrite(self.table, options)

    @takes_options(ExpiryOptions)
    def expire_snapshots(self, options: ExpiryOptions) -> ExpiryPlan[TableT]:
        """Plan to remove old snapshots, branches and tags from the table and to delete files that only they need.

        For each branch, snapshots are kept from its head back to the first old one. The snapshots of tags are kept, and
        so are recent snapshots that no branch or tag leads to. A branch or tag, except main, expires after its
        `max-ref-age-ms` or the table's `history.expire.max-ref-age-ms`. A branch's own `max-snapshot-age-ms` and
        `min-snapshots-to-keep` take precedence over the arguments.

        The plan shows the files and their sizes before anything is committed. Executors read lists and manifests, and
        delete the files after the commit. `older_than` is a datetime with a time zone, or milliseconds since 1970.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: a branch or tag refers to one of `snapshot_ids`, an argument or property is out of range,
                or the table property `gc.enabled` is false.
            UnsupportedError: the table is read-only, or only Spark's sources can open its files.
        """
        return plan_expiry(self.table, options)

    @takes_options(RowExpiryOptions)
    def expire_rows(self, options: RowExpiryOptions) -> RowExpiryPlan[TableT]:
        """Plan to delete the rows that are older than a time: `maintenance.expire_rows("sold_at", a_year_ago)`.

        Files whose rows are all older, as partitions and metrics prove, are removed without being opened. The older
        rows of other files are deleted as by `table.delete`, by the mode in the property `write.delete.mode`. A row
        without a value is never deleted. `older_than` is a datetime with a time zone, or milliseconds since 1970. For a
        column of dates or of timestamps without a zone, it is taken in UTC.

        Raises:
            ValidationError: an option is out of range, the column or branch is unknown, or the column has another type.
            UnsupportedError: the table is encrypted or read-only, or has manifest lists of format version 4.
        """
        return plan_row_expiry(self.table, options)

    @takes_options(OrphanOptions)
    def remove_orphan_files(self, options: OrphanOptions) -> OrphanPlan[TableT]:
        """Plan to delete files in the table's folder that the table does not need, such as files of failed commits.

        The table needs the files that its snapshots reach, its statistics, its current metadata file and the metadata
        files in its log. Hidden files and folders, whose names begin with `_` or a dot, are kept, except folders of
        partition fields with such names. Folders of other tables are kept too. Executors list folders, read manifests
        and delete files. `older_than` is a datetime with a time zone, or milliseconds since 1970.

        Raises:
            ValidationError: an argument is out of range or of the wrong type, or the table property `gc.enabled` is
                false.
            UnsupportedError: the table is read-only, or only Spark's sources can open its files.
        """
        return plan_orphans(self.table, options)

    @takes_options(RepairOptions)
    def repair(self, options: RepairOptions) -> RepairPlan[TableT]:
        """Plan to mend damage: files that are gone, and entries that contradict their files or each other.

        Without `kinds`, the plan says what is wrong and what would be lost, and mends nothing. With `kinds`, it looks
        for these only, and its `commit` mends them. Executors ask the store for each file. For unreadable-data-files,
        wrong-counts and wrong-statistics, they read the footers of Parquet files, and all of ORC and Avro files.

        - lost-manifests: manifests, lists and roots of any snapshot that are gone or unreadable. A manifest of the
          branch's head leaves the table with its files. If the head's list or root is lost, the branch goes back to the
          newest earlier snapshot that is complete. Other damaged snapshots leave the table, unless a branch or tag
          refers to them.
        - lost-data-files, unreadable-data-files: their rows are lost.
        - lost-delete-files: the rows that they delete come back.
        - wrong-sizes, wrong-counts, wrong-statistics: entries that contradict their files, or have inverted bounds.
        - repeated-files: files with several entries, whose rows are read several times.
        - dangling-deletes: see `remove_dangling_deletes`.
        - wrong-manifest-counts: manifests with other counts, lengths or partition summaries than the list or root says.
        - version-hint: the hint file of a table in a folder names another version.

        Raises:
            ValidationError: an option is out of range, or the branch is unknown.
            UnsupportedError: the table is encrypted or read-only, has manifest lists of format version 4, or only
                Spark's sources can open its files.
        """
        return plan_repair(self.table, options)

    @takes_options(PartitionStatsOptions)
    def compute_partition_stats(self, options: PartitionStatsOptions) -> PartitionStatsPlan[TableT]:
        """Plan to compute the partition statistics of a snapshot, as Iceberg's procedure of that name does.

        They are a Parquet file with one row per partition: the numbers of its data files, deletes and rows, and its
        last update. `table.inspect.partition_statistics()` reads it. If an ancestor of the snapshot has such a file,
        only manifests written by later snapshots are read. If the snapshot itself has one, the plan is empty.

        Raises:
            NoSuchSnapshotError: the table does not have the snapshot.
            ValidationError: the table has no partitions.
            UnsupportedError: a transform is unknown, the table is encrypted or read-only, or tasks can't open its
                files.
        """
        return plan_partition_stats(self.table, options)

    @takes_options(TableStatsOptions)
    def compute_table_stats(self, options: TableStatsOptions) -> TableStatsPlan[TableT]:
        """Plan to count the distinct values of columns in a snapshot, as Iceberg's procedure of that name does.

        The statistics are a Puffin file with a theta sketch per column, which replaces the snapshot's existing file.
        Spark's optimizer uses the counts, and the sketches can be merged with Java's sketches. The snapshot's rows are
        read.

        Raises:
            NoSuchSnapshotError: the table does not have the snapshot.
            ValidationError: a column is unknown.
            UnsupportedError: distinct values of a column's type can't be counted, or the table is encrypted or
                read-only.
        """
        return plan_table_stats(self.table, options)

    def leaf_map(self, cluster_by: Sequence[str] | None = None, branch: str = "main") -> LeafMap:
        """Map the data leaves of the default spec and their overlaps, for a notebook. Reads only the root.

        The result has the property `svg` and the method `save(path)`.

        Args:
            cluster_by: see `compact_manifests`.

        Raises:
            ValidationError: a column or branch is unknown.
            UnsupportedError: the table has no metadata tree.
        """
        return leaf_map(self.table, cluster_by, branch)

    @takes_options(UpgradeOptions)
    def upgrade(self, options: UpgradeOptions) -> UpgradePlan[TableT]:
        """Plan the upgrade of a table with manifest lists to format version 2 or 3, or to the metadata tree of 4.

        The table's rows stay the same, and snapshots keep their manifest lists. A table can't return to version 1 or 2.
        In version 3, the next commit to a branch assigns row ids to the files of its head. After an upgrade to a tree,
        only `compact_manifests` rewrites manifests, and Iceberg's Java library refuses the table.

        Raises:
            ValidationError: the format version is not allowed, or the table has this or a later one already.
            UnsupportedError: an encrypted table can't have a tree, or the table is read-only.
        """
        return plan_upgrade(self.table, options)

    @takes_options(DowngradeOptions)
    def downgrade(self, options: DowngradeOptions) -> DowngradePlan[TableT]:
        """Plan to downgrade a table with metadata trees to format version 3, which Iceberg's Java library supports.

        Every snapshot with a tree that a branch or tag refers to gets a manifest list of its live files and keeps its
        id, time and statistics. Other snapshots with a tree are removed. Snapshots from before the upgrade are kept.
        Executors write Avro manifests of the trees' entries, which keep their sequence numbers and row ids. Avro
        manifests without removed files are listed unchanged. No file is deleted.

        Raises:
            ValidationError: the format version is not 3, the table has no tree, or a table property is invalid.
            UnsupportedError: a transform is unknown, the table is read-only, or tasks can't open its files.
        """
        return plan_downgrade(self.table, options)

    @takes_options(ConvertTreeOptions)
    def convert_tree(self, options: ConvertTreeOptions) -> ConversionPlan[TableT]:
        """Plan to convert the metadata tree to the layout of the proposal, or to the Iceberg project's layout.

        The head of each branch gets a snapshot with a tree in the new layout. Entries keep their sequence numbers and
        row ids. Earlier snapshots keep their trees, which stay readable for this package; no other engine reads both
        layouts. Data files are not read. Manifests in the layout of versions 1 to 3 stay unchanged.

        Raises:
            ValidationError: the layout is unknown, the table has it already or has no tree, or its location has no
                scheme.
            UnsupportedError: the tree has an old revision, the table is read-only, or tasks can't open its files.
        """
        return plan_conversion(self.table, options)

    @takes_options(PathOptions)
    def rewrite_table_path(self, options: PathOptions) -> PathPlan[TableT]:
        """Plan to write the table's metadata for another location: another store, bucket or folder.

        The commit writes rewritten metadata and position deletes to a staging folder, with a list of the source and
        target of each file to copy. The table itself does not change. Its snapshots, branches and tags are kept. With
        `start_version`, only files that later versions need are rewritten and listed. Executors read and write the
        files. After the copy, `Catalog.register_table` gives the table a name in a catalog.

        Raises:
            ValidationError: an option is out of range, the table's location does not begin with the prefix, or a
                version is not in the table's log.
            UnsupportedError: the table is encrypted, or only Spark's own sources can open its files.
        """
        return plan_table_path(self.table, options)

    def undo_upgrade(self, format_version: int | None = None) -> UndoUpgradePlan[TableT]:
        """Plan to revert an upgrade to the metadata tree, if no snapshot with a root has been committed.

        The table gets its previous format version, so that Iceberg's Java library can read and write it. Later changes
        of schema, specs and properties are kept.

        Args:
            format_version: the version before the upgrade. Defaults to the version of the newest metadata file before
                it.

        Raises:
            ValidationError: the table has no tree, a snapshot has a root, or the version does not support a column or
                partition field.
            UnsupportedError: the table is read-only.
        """
        return plan_undo_upgrade(self.table, format_version)


def options_of(operation: str) -> type[Options]:
    """Return the class of the options of a method of `Maintenance`."""
    kind: type[Options] = getattr(Maintenance, operation).options
    return kind
