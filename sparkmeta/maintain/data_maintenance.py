"""`DataMaintenance`: the maintenance operations for data files and their deletes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from pyiceberg.expressions import AlwaysTrue

from sparkmeta.operations.base_table import TableT
from sparkmeta.rewrite.dangling_deletes.plan import DanglingDeletesPlan, plan_removal
from sparkmeta.rewrite.data_files.options import DataRewriteOptions
from sparkmeta.rewrite.data_files.plan import DataRewritePlan, plan_data_rewrite
from sparkmeta.rewrite.position_deletes.options import DeleteRewriteOptions
from sparkmeta.rewrite.position_deletes.plan import DeleteRewritePlan, plan_delete_rewrite
from sparkmeta.spec.summary import summary_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table.sorting import SortOrder


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
