"""The plan to rewrite data files, and its commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.commit.snapshot_update import SnapshotUpdate
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.edit.attempts import commit_steps
from sparkmeta.edit.new_snapshot import branch_head
from sparkmeta.edit.options import check_snapshot_options
from sparkmeta.edit.rewrite_plan import RewritePlan, RewriteSummary
from sparkmeta.errors import CommitConflictError, CommitStateUnknownError, SparkmetaError
from sparkmeta.inspect.units import byte_size
from sparkmeta.operations.base_table import TableT
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.rewrite.dangling_deletes.plan import plan_removal, refuse_rewrite
from sparkmeta.rewrite.data_files.groups import NUMBER, FileGroups
from sparkmeta.rewrite.data_files.options import SORT
from sparkmeta.rewrite.data_files.order import row_order
from sparkmeta.rewrite.data_files.rewrite import Rewrite
from sparkmeta.rows.planned import PARTITION
from sparkmeta.spec.summary import summary_number
from sparkmeta.storage.access import executor_writer
from sparkmeta.write.cleanup import deleted_on_failure
from sparkmeta.write.files import lineage_columns
from sparkmeta.write.input import refuse_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from sparkmeta.edit.attempts import Step
    from sparkmeta.rewrite.data_files.options import DataRewriteOptions
    from sparkmeta.rewrite.data_files.order import RowOrder
    from sparkmeta.spec.metadata import Snapshot

_log = logging.getLogger(__name__)

# What a snapshot's summary counts, and the names in `result`.
_COUNTED = {
    "added_data_files": "added-data-files",
    "added_bytes": "added-files-size",
    "removed_delete_files": "removed-delete-files",
}


@dataclass(frozen=True)
class DataRewriteSummary(RewriteSummary):
    """The data files to rewrite, in numbers.

    Attributes:
        strategy: binpack or sort.
        groups: the number of groups of files that are rewritten together.
        data_files: the number of files to rewrite.
        bytes: their bytes.
        records: their rows, deleted ones included.
        deleted_files: how many of them have only deleted rows. They are not read.
        new_files: about how many files replace them.
        commits: the number of commits.
    """

    strategy: str
    groups: int
    data_files: int
    bytes: int
    records: int
    deleted_files: int
    new_files: int
    commits: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.groups

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its data files need no rewrite"
        what = f"{self.data_files} data files in {self.groups} groups become about {self.new_files}"
        commits = f", in {self.commits} commits" if self.commits > 1 else ""
        gone = f", {self.deleted_files} files have only deleted rows" if self.deleted_files else ""
        return f"{self.table}: {what} ({self.strategy}){commits}\n  {self.records} rows, {byte_size(self.bytes)}{gone}"


@dataclass
class _Done:
    """What a plan's commits did.

    Attributes:
        snapshot_id: the snapshot of the last one.
    """

    snapshot_id: int | None = None
    commits: int = 0
    failed_commits: int = 0
    rewritten_data_files: int = 0
    rewritten_bytes: int = 0
    failed_data_files: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))


@dataclass(frozen=True)
class DataRewritePlan(RewritePlan[TableT]):
    """A plan to rewrite data files, carried out by `commit`."""

    options: DataRewriteOptions
    order: RowOrder | None
    _done: _Done = field(default_factory=_Done, init=False, repr=False, compare=False)

    @cached_property
    def _groups(self) -> FileGroups:
        return FileGroups(self._state, self.options, self.options.sizes(self._state.metadata))

    @cached_property
    def _rewrite(self) -> Rewrite:
        return Rewrite(self._groups, self.order)

    def files(self) -> DataFrame:
        """Return a row for each data file to rewrite, with the number of its group.

        Columns: file_group, file_path, file_format, spec_id, partition (where the table has any), record_count,
        file_size_in_bytes, data_sequence_number, delete_files (how many apply to it), deleted_records (by deletes
        that name the file), manifest_path, manifest_pos. Runs jobs, once.
        """
        frame = self._groups.files()
        tuples = [PARTITION] if PARTITION in frame.columns else []
        return frame.selectExpr(
            f"{NUMBER} AS file_group", "file_path", "file_format", "spec_id", *tuples, "record_count",
            "file_size_in_bytes", "data_sequence_number", "size(deletes) AS delete_files", "deleted_records",
            "manifest_path", "manifest_pos",
        )  # fmt: skip

    def summary(self) -> DataRewriteSummary:
        """Return the plan in numbers. Runs jobs, once."""
        groups, head = self._groups.groups, self._state.snapshot
        total = {name: pc.sum(groups.column(name)).as_py() or 0 for name in ("files", "bytes", "records", "dead_files")}
        live = groups.filter(pc.field("files") > pc.field("dead_files"))
        return DataRewriteSummary(
            table=self.table.full_name,
            snapshot_id=None if head is None else head.snapshot_id,
            strategy=self.options.strategy,
            groups=len(groups),
            data_files=total["files"],
            bytes=total["bytes"],
            records=total["records"],
            deleted_files=total["dead_files"],
            new_files=pc.sum(live.column("outputs")).as_py() or 0,
            commits=len(list(self._parts)),
        )

    @property
    def _parts(self) -> Iterator[tuple[int, int]]:
        """Yield the groups of each commit: from one `NUMBER` to before another.

        If the first commit assigns row ids, it is the only one: the rows of later ones would be read without theirs.
        """
        count, head = len(self._groups.groups), self._state.snapshot
        has_no_ids = head is not None and head.first_row_id is None
        assigns_ids = has_no_ids and bool(lineage_columns(self.table.metadata))
        is_partial = self.options.partial_progress_enabled and not assigns_ids
        commits = self.options.partial_progress_max_commits if is_partial else 1
        size = max(1, -(-count // commits))
        for start in range(0, count, size):
            yield start, min(start + size, count)

    # -- the commits ------------------------------------------------------------------------------------------------

    def step(self) -> Step | None:
        """See `RewritePlan.step`. Writes the new data files of all groups."""
        count = len(self._groups.groups)
        return self._step(self._rewrite.write(0, count), 0, count) if count else None

    def _step(self, written: list[DataFrame], start: int, end: int) -> Step:
        chosen = self._groups.files(start, end)
        names = [name for name in ("file_path", "manifest_path", "spec_id", PARTITION) if name in chosen.columns]
        added = reduce(lambda left, right: left.unionByName(right), written) if written else None
        number, head = None, self._state.snapshot
        if self.options.use_starting_sequence_number and head is not None and self.table.metadata.format_version > 1:
            number = head.sequence_number
        update = SnapshotUpdate(self.table.state, WriteTarget(self.branch), dict(self.properties))
        return update.rewrite(chosen.select(*names), added, data_sequence_number=number)

    def commit(self) -> TableT:
        """Write the new data files, and commit them. Return the new table, or the same if there is nothing to do.

        Other commits stay valid. With partial progress, groups are committed one part after another; a part that fails
        is logged, and the others go on. After an error, `is_partly_committed` says whether parts were committed, and
        `result` what they did.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitConflictError: another commit removed one of the files or deleted rows of it, or a part of this plan
                was committed before an error: plan again.
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            CorruptFileError: a data file or a delete file is damaged.
            ValidationError: a row does not fit the table, or the branch was set back to an earlier snapshot.
        """
        if not self._committed:
            if self.is_partly_committed:
                problem = "parts of the plan were committed before an error: plan again"
                raise CommitConflictError(f"{self.table.metadata.location}: {problem}")
            self._committed.append(self._commit())
        return self._committed[0]

    @property
    def is_partly_committed(self) -> bool:
        """Whether `commit` raised an error after it had committed a part of the plan."""
        return not self._committed and self._done.commits > 0

    def _commit(self) -> TableT:
        table, done = self.table, self._done
        done.failed_commits = done.failed_data_files = 0
        errors: list[SparkmetaError] = []
        for start, end in self._parts:
            groups = self._groups.groups.slice(start, end - start)
            try:
                table = self._commit_part(table, start, end)
            except CommitStateUnknownError:
                raise
            except SparkmetaError as error:
                errors.append(error)
                done.failed_commits += 1
                done.failed_data_files += _sum(groups, "files")
                most = self.options.partial_progress_max_failed_commits
                if not self.options.partial_progress_enabled or (most is not None and len(errors) > most):
                    raise
                which = f"file group {start} was" if end - start == 1 else f"file groups {start} to {end - 1} were"
                _log.warning("%s: %s not rewritten: %s", table.full_name, which, error)
                continue
            done.commits += 1
            done.rewritten_data_files += _sum(groups, "files")
            done.rewritten_bytes += _sum(groups, "bytes")
            self._count(table.metadata.snapshot_by_name(self.branch))
        if errors and not done.commits:
            raise errors[-1]
        if self.options.remove_dangling_deletes and done.commits and table.metadata.format_version > 1:
            before = table.metadata.snapshot_by_name(self.branch)
            table = plan_removal(table, self.branch, self.properties).commit()
            after = table.metadata.snapshot_by_name(self.branch)
            if after != before:
                self._count(after)
        return table

    def _commit_part(self, table: TableT, start: int, end: int) -> TableT:
        written = self._rewrite.write(start, end)
        with deleted_on_failure(self._state, written):
            return commit_steps(table, [self._step(written, start, end)])

    def _count(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            return
        self._done.snapshot_id = snapshot.snapshot_id
        for name, key in _COUNTED.items():
            self._done.counts[name] += summary_number(snapshot, key) or 0

    def result(self) -> dict[str, Any]:
        """Return the summary and the counts of the commits, null before them, as for JSON."""
        done, committed = self._done, None
        if done.commits:
            committed = {
                "snapshot_id": done.snapshot_id,
                "commits": done.commits,
                "failed_commits": done.failed_commits,
                "rewritten_data_files": done.rewritten_data_files,
                "rewritten_bytes": done.rewritten_bytes,
                "failed_data_files": done.failed_data_files,
                **done.counts,
            }
        return {"table": self.table.metadata.location, "plan": self.summary().to_dict(), "committed": committed}


def _sum(groups: pa.Table, column: str) -> int:
    return int(pc.sum(groups.column(column)).as_py() or 0)


def plan_data_rewrite(
    table: TableT, options: DataRewriteOptions, branch: str, properties: Mapping[str, str]
) -> DataRewritePlan[TableT]:
    """See `Maintenance.rewrite_data_files`."""
    table.refuse_read_only()
    metadata = table.metadata
    refuse_rewrite(metadata)
    check_snapshot_options(metadata)
    head = branch_head(table.state, branch)
    refuse_types(metadata.schema(), metadata.location)
    executor_writer(head.files)
    options.check_for(metadata)
    ScanFilter.of(head, options.row_filter)
    order = row_order(metadata, options.sort_order) if options.strategy == SORT else None
    return DataRewritePlan(table, branch, properties, head, options, order)
