"""`Maintenance`: the maintenance operations of a table, `table.maintenance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from pyiceberg.expressions import AlwaysTrue

from sparkmeta.commit.compaction import CompactionOptions, CompactionPlan, plan_compaction
from sparkmeta.maintain.dangling_deletes import DanglingDeletesPlan, plan_removal
from sparkmeta.maintain.downgrade import DowngradePlan, plan_downgrade
from sparkmeta.maintain.expire_snapshots import ALL, ExpiryOptions, ExpiryPlan, listed, plan_expiry
from sparkmeta.maintain.file_groups import DataRewriteOptions
from sparkmeta.maintain.health import HealthReport, examine
from sparkmeta.maintain.health_findings import HealthOptions
from sparkmeta.maintain.leaf_map import LeafMap, leaf_map
from sparkmeta.maintain.orphans import ERROR, OrphanOptions, OrphanPlan, plan_orphans
from sparkmeta.maintain.partition_statistics import PartitionStatsPlan, plan_partition_stats
from sparkmeta.maintain.rewrite_data_files import DataRewritePlan, plan_data_rewrite
from sparkmeta.maintain.rewrite_manifests import ManifestRewriteOptions, ManifestRewritePlan, plan_rewrite
from sparkmeta.maintain.rewrite_position_deletes import DeleteRewriteOptions, DeleteRewritePlan, plan_delete_rewrite
from sparkmeta.maintain.table_statistics import TableStatsPlan, plan_table_stats
from sparkmeta.maintain.upgrade import UndoUpgradePlan, UpgradePlan, plan_undo_upgrade, plan_upgrade
from sparkmeta.operations.table_operations import TableT
from sparkmeta.spec.summary import summary_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table.sorting import SortOrder
    from pyspark.sql import DataFrame


# -- `DataMaintenance`: the maintenance operations for data files and their deletes -----------------------------------


@dataclass(frozen=True)
class DataMaintenance(Generic[TableT]):
    """The operations that rewrite data files or deletes. Each returns a plan, and nothing changes before `commit()`."""

    table: TableT

    def rewrite_data_files(  # noqa: PLR0913  keyword arguments
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        strategy: str = "binpack",
        sort_order: SortOrder | str | None = None,
        target_file_size_bytes: int | None = None,
        min_file_size_bytes: int | None = None,
        max_file_size_bytes: int | None = None,
        min_input_files: int = 5,
        delete_file_threshold: int | None = None,
        delete_ratio_threshold: float = 0.3,
        rewrite_all: bool = False,
        max_file_group_size_bytes: int = 100 << 30,
        max_concurrent_file_group_rewrites: int | None = None,
        rewrite_job_order: str = "none",
        partial_progress_enabled: bool = False,
        partial_progress_max_commits: int = 10,
        partial_progress_max_failed_commits: int | None = None,
        use_starting_sequence_number: bool = True,
        remove_dangling_deletes: bool = False,
        output_spec_id: int | None = None,
        compression_factor: float = 1.0,
        max_file_group_input_files: int | None = None,
        max_files_to_rewrite: int | None = None,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> DataRewritePlan[TableT]:
        """Plan to rewrite data files in a suitable size, without deleted rows, and optionally sorted.

        Options have the names of Iceberg's procedure `rewrite_data_files` and choose the same files. Files are grouped
        by partition. Rows stay the same, including their `_row_id` and `_last_updated_sequence_number`. A file whose
        rows are all deleted by a deletion vector is removed without being read. Executors read and write the files.

        Args:
            row_filter: rewrite only files that may hold matching rows, judging by partitions and metrics.
            strategy: `binpack` keeps the order of rows; `sort` sorts the rows of each partition.
            sort_order: the order for `sort`: text such as `id DESC NULLS LAST, bucket(16, name)` or `zorder(x, y)`, or
                pyiceberg's SortOrder. Defaults to the table's sort order.
            target_file_size_bytes: the size of new files. Defaults to the table's `write.target-file-size-bytes`.
            min_file_size_bytes: smaller files are rewritten. Defaults to three quarters of the target size.
            max_file_size_bytes: larger files are rewritten. Defaults to 1.8 times the target size.
            min_input_files: the minimum number of files in a group, unless they are larger than the target size.
            delete_file_threshold: rewrite files with at least this number of delete files and deletion vectors.
            delete_ratio_threshold: rewrite files of which at least this share of rows is deleted, by deletion vectors
                and position delete files that name the file.
            rewrite_all: rewrite all files.
            max_file_group_size_bytes: the maximum size of a group; a larger partition has several.
            max_concurrent_file_group_rewrites: the maximum number of groups that a Spark job rewrites. Defaults to all
                groups of a commit.
            rewrite_job_order: the order of groups: `bytes-asc`, `bytes-desc`, `files-asc`, `files-desc` or `none`.
            partial_progress_enabled: commit groups in several commits, some of which may fail.
            partial_progress_max_commits: the maximum number of commits.
            partial_progress_max_failed_commits: how many of them may fail. Defaults to all but one.
            use_starting_sequence_number: give new files the sequence number of the snapshot whose files they replace,
                so that equality deletes of later snapshots apply to them and do not conflict.
            remove_dangling_deletes: after a rewrite, also remove deletes that apply to no data file.
            output_spec_id: the partition spec of new files. Defaults to the table's.
            compression_factor: the expected ratio of the size of new files to the bytes that they replace.
            max_file_group_input_files: the maximum number of files in a group; a partition with more has several.
            max_files_to_rewrite: the maximum number of files to rewrite. The last group may be cut short.
            branch: the branch to commit to.
            snapshot_properties: extra properties for the snapshots' summaries.

        Raises:
            ValidationError: an option or table property is out of range, or a column or branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is encrypted or read-only, has manifest lists of format version 4 or a type that
                can't be written, or tasks can't write its files.
        """
        options = DataRewriteOptions(
            row_filter, strategy, sort_order, target_file_size_bytes, min_file_size_bytes, max_file_size_bytes,
            min_input_files, delete_file_threshold, delete_ratio_threshold, rewrite_all, max_file_group_size_bytes,
            max_concurrent_file_group_rewrites, rewrite_job_order, partial_progress_enabled,
            partial_progress_max_commits, partial_progress_max_failed_commits, use_starting_sequence_number,
            remove_dangling_deletes, output_spec_id, compression_factor, max_file_group_input_files,
            max_files_to_rewrite,
        )  # fmt: skip
        return plan_data_rewrite(self.table, options, branch, summary_properties(snapshot_properties))

    def remove_dangling_deletes(
        self, *, branch: str = "main", snapshot_properties: Mapping[str, str] | None = None
    ) -> DanglingDeletesPlan[TableT]:
        """Plan to remove delete files and deletion vectors that apply to no live data file of a branch.

        These are equality deletes that are not newer than any data file of their partition, or of the table if their
        spec is unpartitioned; position delete files that are older than all data files of their partition, or than the
        file that they name; and deletion vectors and position delete files whose data file is gone.

        Only metadata is written: the delete manifests of a v1 to v3 table that list them, or the root of a tree. Rows
        stay the same. The files themselves are deleted when the snapshots that need them expire.

        Args:
            branch: the branch to commit to.
            snapshot_properties: extra properties for the snapshot's summary.

        Raises:
            ValidationError: the branch is unknown.
            UnsupportedError: the table is encrypted or read-only, or has manifest lists of format version 4.
        """
        return plan_removal(self.table, branch, summary_properties(snapshot_properties))

    def rewrite_position_delete_files(  # noqa: PLR0913  keyword arguments
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),  # noqa: B008  an immutable singleton
        *,
        target_file_size_bytes: int | None = None,
        min_file_size_bytes: int | None = None,
        max_file_size_bytes: int | None = None,
        min_input_files: int = 5,
        rewrite_all: bool = False,
        branch: str = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> DeleteRewritePlan[TableT]:
        """Plan to merge small position delete files, or to replace them with deletion vectors from version 3 on.

        From format version 3 on, every position delete file becomes a deletion vector for each data file that it
        applies to, merged with the file's other position deletes. Deletion vectors in small Puffin files move to larger
        ones. In version 2, position delete files of unsuitable sizes become Parquet files per data file or partition,
        according to `write.delete.granularity` (default `file`). Positions in data files that a delete file does not
        apply to are dropped, and so are copies of deleted rows. The table's rows stay the same. Executors read and
        write the files.

        Args:
            row_filter: rewrite only deletes of partitions that may hold matching rows.
            target_file_size_bytes: target size of delete files. Defaults to the table's
                `write.delete.target-file-size-bytes` (64 MiB).
            min_file_size_bytes: smaller files are merged. For Puffin files, only live deletion vectors count. Defaults
                to three quarters of the target size.
            max_file_size_bytes: larger position delete files that cover several data files are split. Defaults to 1.8
                times the target size.
            min_input_files: the minimum number of small Puffin files, or of files in a partition, to merge.
            rewrite_all: rewrite all position deletes.
            branch: the branch to commit to.
            snapshot_properties: extra properties for the snapshot's summary.

        Raises:
            ValidationError: an option or table property is out of range, or the branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is encrypted or read-only, has manifest lists of format version 4, or only
                Spark's sources can open its files.
        """
        options = DeleteRewriteOptions(
            row_filter, target_file_size_bytes, min_file_size_bytes, max_file_size_bytes, min_input_files, rewrite_all
        )
        return plan_delete_rewrite(self.table, options, branch, summary_properties(snapshot_properties))


# -- `Maintenance`: the maintenance operations of a table, `table.maintenance` ----------------------------------------


@dataclass(frozen=True)
class Maintenance(DataMaintenance[TableT]):
    """The maintenance operations of a table. Each returns a plan, and nothing changes before its `commit()`."""

    def health(  # noqa: PLR0913  keyword arguments
        self,
        *,
        columns: Sequence[str] | None = None,
        max_overlap: int = 3,
        min_small_files: int = 5,
        small_file_ratio: float = 0.25,
        max_deleted_ratio: float = 0.3,
        max_excess_stats_ratio: float = 0.1,
        max_ref_age_days: int = 30,
        max_metadata_json_bytes: int = 5 << 20,
    ) -> HealthReport:
        """Measure the table's metadata and report what maintenance it needs: `print(table.maintenance.health())`.

        Executors read each manifest of the current snapshot once; nothing changes. The plans of `compact_manifests`
        (for trees), `rewrite_manifests` and `expire_snapshots` decide what these operations would do. Other thresholds
        are table properties: `commit.manifest.min-count-to-merge` (100), the minimum number of manifests that a rewrite
        must save; `write.target-file-size-bytes` (512 MiB); `history.expire.*`; and `write.metadata.metrics.*`.

        Args:
            columns: columns whose overlaps between manifests are measured, in addition to partition fields. Defaults to
                the columns of the sort order.
            max_overlap: report manifests if one overlaps more than this number of others on average.
            min_small_files: report a partition with at least this number of small data files.
            small_file_ratio: data files below this share of the target size are small.
            max_deleted_ratio: report a partition if deletes that name their data files delete this share of its rows or
                more.
            max_excess_stats_ratio: report if, in a sample of manifests, more than this share of metrics exceeds what
                the table's properties keep.
            max_ref_age_days: report branches and tags, except main, that are older than this number of days.
            max_metadata_json_bytes: report a metadata file that is larger than this.

        Raises:
            ValidationError: an option or table property is out of range, or a column is unknown.
            UnsupportedError: the table is encrypted.
            CorruptFileError: a manifest is damaged.
        """
        options = HealthOptions(
            columns, max_overlap, min_small_files, small_file_ratio, max_deleted_ratio, max_excess_stats_ratio,
            max_ref_age_days, max_metadata_json_bytes,
        )  # fmt: skip
        return examine(self.table, options)

    def compact_manifests(  # noqa: PLR0913  keyword arguments
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
        """Plan a compaction of a tree's manifests, which merges leaves, drops masked entries and sorts entries.

        The table's rows and the changes of every snapshot stay the same. Only leaves that benefit are rewritten; if
        there are none, the plan commits nothing. Manifests from before an upgrade become leaves in tree layout, except
        those with position delete files of version 2, which the summary names.

        Args:
            row_filter: rewrite only leaves that may hold matching files, and matching files of the root.
            cluster_by: columns and partition fields by which entries are sorted. Defaults to a spec's partition fields
                and the columns of the table's sort order.
            target_leaf_bytes: target size of a leaf. Defaults to the table's `write.tree.leaf-target-bytes`.
            max_entries: maximum entries of data leaves to rewrite. Groups that save the most leaves come first.
            max_bytes: maximum bytes of data leaves to rewrite.
            min_masked_ratio: rewrite leaves with at least this share of masked entries.
            min_leaf_ratio: merge neighbouring leaves that are smaller than this share of the target size.
            max_overlap: sort leaves if one overlaps more than this number of others.
            max_root_files: maximum files of a kind (data or deletes) in the root; more are moved into leaves. None to
                move no files.
            branch: the branch to commit to.
            snapshot_properties: extra properties for the snapshot's summary.

        Raises:
            ValidationError: an option is out of range, or a column or branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table has no metadata tree, or is read-only.
        """
        options = CompactionOptions(
            row_filter, cluster_by, target_leaf_bytes, max_entries, max_bytes, min_masked_ratio, min_leaf_ratio,
            max_overlap, max_root_files,
        )  # fmt: skip
        return plan_compaction(self.table, options, branch, summary_properties(snapshot_properties))

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
        """Plan to sort the Avro manifests of a v1 to v3 table by partition and rewrite them in a target size.

        Data and delete manifests of each partition spec are rewritten separately. Live files keep their snapshot ids,
        sequence numbers and row ids; DELETED entries are dropped. A spec's manifests are left alone if a single rewrite
        has written all of them in the same order and size, and no other commit has added any.

        Args:
            row_filter: rewrite only manifests that may hold matching files, by their partition summaries.
            spec_id: rewrite only manifests of this partition spec.
            sort_by: names of partition fields by which files are sorted. Defaults to a spec's fields.
            target_manifest_bytes: target size of a manifest. Defaults to the table's
                `commit.manifest.target-size-bytes` (8 MiB).
            branch: the branch to commit to.
            snapshot_properties: extra properties for the snapshot's summary.

        Raises:
            ValidationError: an option is out of range, or a spec, partition field or branch is unknown.
            InvalidFilterError: the filter is not valid for the table.
            UnsupportedError: the table is of version 4, encrypted or read-only, or a transform is unknown.
        """
        options = ManifestRewriteOptions(row_filter, spec_id, sort_by, target_manifest_bytes)
        return plan_rewrite(self.table, options, branch, summary_properties(snapshot_properties))

    def expire_snapshots(
        self,
        *,
        older_than: datetime | int | None = None,
        retain_last: int | None = None,
        snapshot_ids: Iterable[int] = (),
        clean_expired_metadata: bool = False,
        cleanup: str = ALL,
    ) -> ExpiryPlan[TableT]:
        """Plan to remove old snapshots, branches and tags from the table and to delete files that only they need.

        For each branch, snapshots are kept from its head back to the first old one. The snapshots of tags are kept, and
        so are recent snapshots that no branch or tag leads to. A branch or tag, except main, expires after its
        `max-ref-age-ms` or the table's `history.expire.max-ref-age-ms`. A branch's own `max-snapshot-age-ms` and
        `min-snapshots-to-keep` take precedence over the arguments.

        The plan shows the files and their sizes before anything is committed. Executors read lists and manifests, and
        delete the files after the commit.

        Args:
            older_than: expire snapshots from before this time: a datetime with a time zone, or milliseconds since 1970.
                Defaults to the age `history.expire.max-snapshot-age-ms` (5 days).
            retain_last: the number of newest snapshots of a branch to keep regardless of age. Defaults to the table's
                `history.expire.min-snapshots-to-keep` (1).
            snapshot_ids: snapshots to expire regardless of age.
            clean_expired_metadata: also remove schemas and partition specs that no remaining snapshot uses. Schemas
                with columns that equality deletes may compare are kept. All are kept if a snapshot has a metadata tree.
            cleanup: which files to delete: `all`, only those of `metadata` (lists, roots, manifests and statistics), or
                `none`.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: a branch or tag refers to one of `snapshot_ids`, an argument or property is out of range,
                or the table property `gc.enabled` is false.
            UnsupportedError: the table is encrypted or read-only, or only Spark's sources can open its files.
        """
        ids = listed(snapshot_ids)
        ExpiryOptions(older_than, retain_last, ids, clean_expired_metadata, cleanup).check()
        return plan_expiry(self.table, older_than, retain_last, ids, clean_expired_metadata, cleanup)

    def remove_orphan_files(  # noqa: PLR0913  keyword arguments
        self,
        *,
        older_than: datetime | int | None = None,
        location: str | None = None,
        files: DataFrame | None = None,
        prefix_mismatch_mode: str = ERROR,
        equal_schemes: Mapping[str, str] | None = None,
        equal_authorities: Mapping[str, str] | None = None,
        force: bool = False,
        shared_location: bool = False,
    ) -> OrphanPlan[TableT]:
        """Plan to delete files in the table's folder that the table does not need, such as those of failed commits.

        The table needs the files that its snapshots reach, its statistics, its current metadata file and those in its
        metadata log. Hidden files and folders, whose names begin with `_` or a dot, are kept, except folders of
        partition fields with such names. Folders of other tables are kept too. Executors list folders, read manifests
        and delete files.

        Args:
            older_than: delete only files modified before this time: a datetime with a time zone, or milliseconds since
                1970. Defaults to 3 days ago.
            location: the folder to search instead of the table's.
            files: an inventory to use instead of listing files: a DataFrame with file_path (string), last_modified
                (timestamp) and, if known, size (bigint). Files outside the location are ignored.
            prefix_mismatch_mode: what to do if the table has a file's path with another scheme or authority: `error`
                raises an error, `ignore` keeps the file, `delete` deletes it.
            equal_schemes: schemes -> the scheme that they equal. `{"s3a,s3n": "s3"}` is built in.
            equal_authorities: authorities, such as buckets or hosts -> the authority that they equal.
            force: allow `older_than` to be less than 24 hours ago, which may delete files of running commits.
            shared_location: allow the location to have metadata files of another table, such as a dropped one. The
                other table's files are then deleted.

        Raises:
            ValidationError: an argument is out of range or of the wrong type, or the table property `gc.enabled` is
                false.
            UnsupportedError: the table is encrypted or read-only, or only Spark's sources can open its files.
        """
        options = OrphanOptions(
            older_than, location, prefix_mismatch_mode, equal_schemes, equal_authorities, force, shared_location
        )
        return plan_orphans(self.table, options, files)

    def compute_partition_stats(
        self, snapshot_id: int | None = None, *, full: bool = False
    ) -> PartitionStatsPlan[TableT]:
        """Plan to compute the partition statistics of a snapshot, as Iceberg's procedure of that name does.

        They are a Parquet file with one row per partition: the numbers of its data files, deletes and rows, and its
        last update. `table.inspect.partition_statistics()` reads it. If an ancestor of the snapshot has such a file,
        only manifests written by later snapshots are read. If the snapshot itself has one, the plan is empty.

        Args:
            snapshot_id: the snapshot. Defaults to the current one.
            full: compute everything from the snapshot's entries and replace the snapshot's file, if any.

        Raises:
            NoSuchSnapshotError: the table does not have the snapshot.
            ValidationError: the table has no partitions.
            UnsupportedError: a transform is unknown, the table is encrypted or read-only, or tasks can't open its
                files.
        """
        return plan_partition_stats(self.table, snapshot_id, full)

    def compute_table_stats(
        self, snapshot_id: int | None = None, columns: Sequence[str] | None = None
    ) -> TableStatsPlan[TableT]:
        """Plan to count the distinct values of columns in a snapshot, as Iceberg's procedure of that name does.

        The statistics are a Puffin file with a theta sketch per column, which replaces the snapshot's existing file.
        Spark's optimizer uses the counts, and the sketches can be merged with those that Java writes. The snapshot's
        rows are read.

        Args:
            snapshot_id: the snapshot. Defaults to the current one.
            columns: names of columns in the snapshot's schema, with dots for struct fields. Defaults to all top-level
                columns of primitive types.

        Raises:
            NoSuchSnapshotError: the table does not have the snapshot.
            ValidationError: a column is unknown.
            UnsupportedError: distinct values of a column's type can't be counted, or the table is encrypted or
                read-only.
        """
        return plan_table_stats(self.table, snapshot_id, columns)

    def leaf_map(self, cluster_by: Sequence[str] | None = None, branch: str = "main") -> LeafMap:
        """Map the data leaves of the default spec and their overlaps, for a notebook. Reads only the root.

        The result has `.svg` and `.save(path)`.

        Args:
            cluster_by: see `compact_manifests`.

        Raises:
            ValidationError: a column or branch is unknown.
            UnsupportedError: the table has no metadata tree.
        """
        return leaf_map(self.table, cluster_by, branch)

    def upgrade(self, format_version: int, *, compact: bool = False) -> UpgradePlan[TableT]:
        """Plan the upgrade of a table with manifest lists to format version 2 or 3, or to the metadata tree of 4.

        The table's rows stay the same, and snapshots keep their manifest lists. A table can't return to version 1 or 2.
        In version 3, the next commit to a branch assigns row ids to the files of its head. After an upgrade to a tree,
        only `compact_manifests` rewrites manifests, and Iceberg's Java library refuses the table.

        Args:
            format_version: 2, 3 or 4.
            compact: also compact the manifests of the main branch of a tree, in the same commit. `undo_upgrade` is
                impossible after that.

        Raises:
            ValidationError: the format version is not allowed, or the table has this or a later one already.
            UnsupportedError: an encrypted table can't have a tree, or the table is read-only.
        """
        return plan_upgrade(self.table, format_version, compact=compact)

    def downgrade(self, format_version: int) -> DowngradePlan[TableT]:
        """Plan to downgrade a table with metadata trees to format version 3, which Iceberg's Java library supports.

        Every snapshot with a tree that a branch or tag refers to gets a manifest list of its live files and keeps its
        id, time and statistics. Other snapshots with a tree are removed. Snapshots from before the upgrade are kept.
        Executors write Avro manifests of the trees' entries, which keep their sequence numbers and row ids. Avro
        manifests without removed files are listed unchanged. No file is deleted.

        Raises:
            ValidationError: the format version is not 3, the table has no tree, or a table property is invalid.
            UnsupportedError: a transform is unknown, the table is read-only, or tasks can't open its files.
        """
        return plan_downgrade(self.table, format_version)

    def undo_upgrade(self, format_version: int | None = None) -> UndoUpgradePlan[TableT]:
        """Plan to revert an upgrade to the metadata tree, if no snapshot with a root has been committed.

        The table gets its previous format version, so that Iceberg's Java library can read and write it. Later changes
        of schema, specs and properties are kept.

        Args:
            format_version: the version before the upgrade. Defaults to that of the newest metadata file before it.

        Raises:
            ValidationError: the table has no tree, a snapshot has a root, or the version does not support a column or
                partition field.
            UnsupportedError: the table is read-only.
        """
        return plan_undo_upgrade(self.table, format_version)
