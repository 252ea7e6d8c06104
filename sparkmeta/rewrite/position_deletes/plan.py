"""The plan to rewrite position deletes, and its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparkmeta.commit.snapshot_update import SnapshotUpdate
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.edit.attempts import commit_steps
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.new_snapshot import branch_head, with_root
from sparkmeta.edit.options import check_snapshot_options
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.edit.rewrite_plan import RewritePlan, RewriteSummary
from sparkmeta.operations.base_table import TableT
from sparkmeta.rewrite.dangling_deletes.plan import refuse_rewrite
from sparkmeta.rewrite.dangling_deletes.search import public_rows
from sparkmeta.rewrite.position_deletes.entries import public_files
from sparkmeta.rewrite.position_deletes.options import DeleteRewriteOptions
from sparkmeta.rewrite.position_deletes.rewrite import DeleteRewrite
from sparkmeta.rewrite.position_deletes.step import DeleteRewriteStep
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.summary import summary_number
from sparkmeta.write.cleanup import deleted_on_failure
from sparkmeta.write.delete_options import delete_codec, delete_granularity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.edit.attempts import Step


@dataclass(frozen=True)
class DeleteRewriteSummary(RewriteSummary):
    """The position deletes to rewrite, in numbers.

    Attributes:
        file_format: the format of the new files: PUFFIN, or PARQUET in tables of version 2.
        position_delete_files: the number of position delete files.
        puffin_files: the number of small Puffin files of which deletion vectors move to others.
        deletion_vectors: the number of these deletion vectors.
        records: the number of deleted positions.
        bytes: the bytes of the files, of Puffin files those of the deletion vectors.
    """

    file_format: str
    position_delete_files: int
    puffin_files: int
    deletion_vectors: int
    records: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.position_delete_files or self.deletion_vectors)

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its position deletes need no rewrite"
        files = f"{self.position_delete_files} position delete files"
        vectors = f"{self.deletion_vectors} deletion vectors of {self.puffin_files} small Puffin files move"
        makes_vectors = self.file_format == "PUFFIN"
        what = f"{files} become deletion vectors, {vectors}" if makes_vectors else f"{files} are rewritten"
        return f"{self.table}: {what}\n  {self.records} deletes in {self.bytes} bytes"


@dataclass(frozen=True)
class DeleteRewritePlan(RewritePlan[TableT]):
    """A plan to rewrite position deletes, carried out by `commit`."""

    options: DeleteRewriteOptions
    _written: list[DataFrame] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def _rewrite(self) -> DeleteRewrite:
        return DeleteRewrite(self._state, self.options)

    def files(self) -> DataFrame:
        """Return a row for each position delete file and deletion vector to rewrite.

        The columns are those of `inspect.delete_files`, with data_sequence_number, manifest_path and manifest_pos.
        """
        return public_rows(self._rewrite.entries, self._state)

    def summary(self) -> DeleteRewriteSummary:
        """Return the plan in numbers. Runs a job, once."""
        return self._summary

    @cached_property
    def _summary(self) -> DeleteRewriteSummary:
        is_vector = F.col("file_format") == "PUFFIN"
        size = F.coalesce("deletion_vector.size_in_bytes", "file_size_in_bytes")
        figures = self._rewrite.entries.agg(
            F.count_if(~is_vector).alias("position_delete_files"),
            F.count_distinct(F.when(is_vector, F.col("location"))).alias("puffin_files"),
            F.count_if(is_vector).alias("deletion_vectors"),
            F.coalesce(F.sum("record_count"), F.lit(0)).alias("records"),
            F.coalesce(F.sum(size), F.lit(0)).alias("bytes"),
        )
        (row,) = figures.toArrow().to_pylist()
        head = self._state.snapshot
        snapshot_id = head.snapshot_id if head else None
        file_format = "PUFFIN" if self._rewrite.makes_vectors else "PARQUET"
        return DeleteRewriteSummary(self.table.full_name, snapshot_id, file_format, **row)

    def step(self) -> Step | None:
        """See `RewritePlan.step`. Writes the new delete files."""
        if self.summary().is_empty:
            return None
        if not self._written:
            self._written.append(self._rewrite.write())
        if not has_tree(self.table.metadata):
            return DeleteRewriteStep(self.branch, self.properties, self._rewrite, self._written[0])
        removed = self.files().where("file_format != 'PUFFIN'").select("file_path", "manifest_path")
        update = SnapshotUpdate(self.table.state, WriteTarget(self.branch), dict(self.properties))
        return update.rewrite(removed, deletes=public_files(self._written[0], self._state))

    def commit(self) -> TableT:
        """Write the new delete files, and commit a snapshot with them. Return the new table, or the same if empty.

        Other commits stay valid. The delete files are written once; they are deleted if the commit fails.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitConflictError: another commit removed a delete file or, of deletion vectors, a data file, or added a
                deletion vector for one of the data files, or changed the format version: plan again.
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            CorruptFileError: a delete file is damaged.
            ValidationError: the branch was set back to an earlier snapshot.
        """
        if not self._committed:
            self._committed.append(self._commit())
        return self._committed[0]

    def result(self) -> dict[str, Any]:
        """See `RewritePlan.result`. The counts include the new delete files and their bytes."""
        result = super().result()
        if result["committed"] is not None:
            after = self._committed[0].metadata.snapshot_by_name(self.branch)
            names = {"added_delete_files": "added-delete-files", "added_bytes": "added-files-size"}
            result["committed"] |= {name: summary_number(after, key) or 0 for name, key in names.items()}
        return result

    def _commit(self) -> TableT:
        step = self.step()
        if step is None:
            return self.table
        written, self._written[:] = [*self._written], []
        with deleted_on_failure(self._state, written):
            return commit_steps(self.table, [step])


def plan_delete_rewrite(
    table: TableT, options: DeleteRewriteOptions, branch: str, properties: Mapping[str, str]
) -> DeleteRewritePlan[TableT]:
    """See `Maintenance.rewrite_position_delete_files`."""
    table.refuse_read_only()
    metadata = table.metadata
    refuse_rewrite(metadata)
    check_snapshot_options(metadata)
    head = branch_head(table.state, branch)
    state = with_root(head, base_root(head)) if has_tree(metadata) else head
    options.check()
    options.sizes(metadata.properties)
    delete_granularity(metadata.properties)
    delete_codec(metadata.properties)
    task_reader(state)
    return DeleteRewritePlan(table, branch, properties, state, options)
