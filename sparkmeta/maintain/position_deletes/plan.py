"""The plan to rewrite position deletes as deletion vectors, and its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.commit.snapshot_update import SnapshotUpdate
from sparkmeta.edit.attempts import commit_steps, discard
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.new_snapshot import branch_head, with_root
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.edit.rewrite_plan import RewritePlan, RewriteSummary
from sparkmeta.errors import CommitStateUnknownError
from sparkmeta.maintain.dangling_deletes.search import public_rows
from sparkmeta.maintain.position_deletes.vectors import DeleteRewrite, DeleteRewriteOptions
from sparkmeta.maintain.upgrade import refuse_encrypted
from sparkmeta.operations.base_table import TableT
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.plan.rows import manifest_path, public_partition
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.edit.attempts import Step
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class DeleteRewriteSummary(RewriteSummary):
    """The position deletes to rewrite, in numbers.

    Attributes:
        position_delete_files: the number of files that become deletion vectors.
        puffin_files: the number of small Puffin files of which deletion vectors move to others.
        deletion_vectors: the number of these deletion vectors.
        records: the number of deleted positions.
        bytes: the bytes of the files, of Puffin files those of the deletion vectors.
    """

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
        vectors = f"{self.deletion_vectors} deletion vectors of {self.puffin_files} small Puffin files move"
        return "\n".join(
            [
                f"{self.table}: {self.position_delete_files} position delete files become deletion vectors, {vectors}",
                f"  {self.records} deletes in {self.bytes} bytes",
            ]
        )


@dataclass(frozen=True)
class DeleteRewritePlan(RewritePlan[TableT]):
    """A plan to rewrite position deletes as deletion vectors, carried out by `commit`."""

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
        return DeleteRewriteSummary(self.table.full_name, head.snapshot_id if head else None, **row)

    def step(self) -> Step | None:
        """See `RewritePlan.step`. Writes the deletion vectors."""
        if self.summary().is_empty:
            return None
        if not self._written:
            self._written.append(self._rewrite.write())
        removed = self.files().where("file_format != 'PUFFIN'").select("file_path", "manifest_path")
        update = SnapshotUpdate(self.table.state, self.branch, dict(self.properties))
        return update.rewrite(removed, deletes=_as_files(self._written[0], self._state))

    def commit(self) -> TableT:
        """Write the deletion vectors, and commit a snapshot with them. Return the new table, or the same if empty.

        Other commits stay valid. The Puffin files are written once; they are deleted if the commit fails.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitConflictError: another commit removed a delete file or a data file, or added a deletion vector for
                one of the data files: plan again.
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            CorruptFileError: a delete file is damaged.
        """
        if not self._committed:
            self._committed.append(self._commit())
        return self._committed[0]

    def _commit(self) -> TableT:
        try:
            step = self.step()
            return self.table if step is None else commit_steps(self.table, [step])
        except CommitStateUnknownError:
            raise
        except Exception:
            for vectors in self._written:
                discard(self._state.files, vectors.select("file_path").distinct().toArrow()["file_path"].to_pylist())
            self._written.clear()
            raise


def _as_files(vectors: DataFrame, state: TableState) -> DataFrame:
    """Return deletion vectors with the partitions of their data files, as in `inspect.files`."""
    columns = {
        "content": sql.lit(int(ContentType.POSITION_DELETES)),
        "file_format": sql.lit("PUFFIN"),
        "spec_id": sql.col("partition_spec_id"),
        **({"partition": public_partition(state)} if state.types.partition_type.fields else {}),
        "manifest_path": manifest_path(state.data_manifests, sql.col("manifest")),
        "data_path": sql.col("location"),
    }
    manifests = live_manifests(state.data_manifests)
    projection = state.projection(("version_info", "location", "partition_spec_id"))
    data = state.entries(manifests, projection).where(is_live().text)
    named = data.selectExpr(*sql.texts(value.alias(name) for name, value in columns.items()))
    return vectors.join(named, F.col("referenced_data_file") == F.col("data_path")).drop("data_path")


def plan_delete_rewrite(
    table: TableT, options: DeleteRewriteOptions, branch: str, properties: Mapping[str, str]
) -> DeleteRewritePlan[TableT]:
    """See `Maintenance.rewrite_position_delete_files`."""
    table.refuse_read_only()
    table.refuse_lists()
    head = branch_head(table.state, branch)
    state = with_root(head, base_root(head))
    options.target_bytes(state)
    refuse_encrypted(table.metadata, "whose deletes can't be rewritten")
    task_reader(state)
    return DeleteRewritePlan(table, branch, properties, state, options)
