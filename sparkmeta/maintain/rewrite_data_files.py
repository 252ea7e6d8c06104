"""Rewrite data files: the plan, its sort order, its commits, and the jobs that write the rows."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.new_snapshot import branch_head
from sparkmeta.commit.options import BranchOptions, check_snapshot_options
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.entries.relation import frame_of, some_columns, union, where
from sparkmeta.errors import CommitConflictError, CommitStateUnknownError, SparkmetaError, ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.maintain.dangling_deletes import plan_removal, refuse_rewrite
from sparkmeta.maintain.file_groups import NUMBER, PLAN_ORDER, SORT, DataRewriteOptions, FileGroups
from sparkmeta.maintain.plans import RewritePlan, SnapshotPlanSummary
from sparkmeta.maintain.rewrite_tasks import MOST_COLUMNS, PARTS, Curve, PackTasks, Path
from sparkmeta.manifests.sorted_manifests import most_tasks
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.progress import planning, tracked
from sparkmeta.rows.arrow_reader import PART_BYTES, PLANNED, parts, parts_table, task_rows
from sparkmeta.rows.file_rows import START, STOP
from sparkmeta.rows.planned import PARTITION, PlannedFiles, RowPlan
from sparkmeta.rows.read import RowScan, rows_of
from sparkmeta.session import map_arrow, tasks_of_work
from sparkmeta.spec.schema import path_to, pruned
from sparkmeta.spec.summary import summary_number
from sparkmeta.spec.transform_text import CALL, Terms, parts_of
from sparkmeta.spec.transforms import field_sources
from sparkmeta.storage.files import executor_writer
from sparkmeta.text import byte_size
from sparkmeta.write.few_rows import files_of
from sparkmeta.write.files import (
    CURVE_COLUMN,
    LINEAGE,
    Arrangement,
    data_file_tasks,
    lineage_columns,
    write_files,
    written_files,
)
from sparkmeta.write.input import refuse_types
from sparkmeta.write.tasks import delete_written, deleted_on_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.types import NestedField
    from pyspark.sql import DataFrame

    from sparkmeta.commit.attempts import Step
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata


# -- Write the rows of groups of data files to new files --------------------------------------------------------------
# Rows that stay in their partition and need no order go from file to file in Arrow (`PackTasks`). Other rows pass
# through a DataFrame, which Spark distributes and sorts (`write/files.py`).


_TARGET: Final = "write.target-file-size-bytes"
# The number of sampled rows that determine the bounds of a z-order.
_SAMPLED: Final = 100_000
_UNSORTED: Final = SortOrder(order_id=0)


@dataclass(frozen=True)
class Rewrite:
    """Writes the rows of groups to new files.

    Attributes:
        groups: the groups.
        order: the order of rows; None to keep the order of reading.
    """

    groups: FileGroups
    order: RowOrder | None

    @property
    def state(self) -> TableState:
        return self.groups.state

    @cached_property
    def target(self) -> TableState:
        """The table, with the partition spec and the size of new files."""
        metadata = self.state.metadata
        properties = {**metadata.properties, _TARGET: str(self.groups.sizes.written)}
        update = {"default_spec_id": self.groups.output_spec, "properties": properties}
        return replace(self.state, metadata=metadata.model_copy(update=update))

    @cached_property
    def schema(self) -> Schema:
        """The columns of new files."""
        fields = self.state.metadata.schema().fields
        return Schema(*fields, *(LINEAGE if self._lineage else ()))

    @property
    def _lineage(self) -> tuple[str, ...]:
        return lineage_columns(self.state.metadata)

    def write(self, start: int, end: int) -> list[Relation]:
        """Write the rows of the groups from one `NUMBER` to before another.

        Returns:
            Rows that describe the new files, as from `write_files`.

        Raises:
            ValidationError: a row does not fit the table.
            UnsupportedError: tasks can't open or write the table's files.
            CorruptFileError: a data file or a delete file is damaged.
        """
        written: list[Relation] = []
        try:
            group_limit = self.groups.options.max_concurrent_file_group_rewrites or end - start
            starts = range(start, end, max(group_limit, 1))
            for first in tracked(starts, "Writing data files", self.state.sessions):
                self._write(first, min(first + group_limit, end), written)
        except BaseException:
            for files in written:
                delete_written(self.state, files)
            raise
        return written

    def _write(self, start: int, end: int, written: list[Relation]) -> None:
        groups = self.groups.groups.slice(start, end - start)
        live_groups = groups.filter(pc.field("files") > pc.field("dead_files"))
        files, is_packed = where(self.groups.files(start, end), ~sql.col("is_dead")), sql.col("stays")
        stays = live_groups.column("stays").to_pylist()
        outputs = live_groups.column("outputs").to_pylist()
        if self.order is None:
            if any(stays):
                written.append(self._pack(where(files, is_packed), live_groups.filter(live_groups.column("stays"))))
            if not all(stays):
                moved = sum(count for count, stay in zip(outputs, stays, strict=True) if not stay)
                written.append(self._arrange(where(files, ~is_packed), _UNSORTED, moved))
            return
        # Ranges would divide small groups, although a single task can sort their rows.
        for by_range, condition in ((False, sql.col("outputs") == 1), (True, sql.col("outputs") > 1)):
            count = sum(count for count in outputs if (count > 1) == by_range)
            if count:
                order = self.order.order
                written.append(self._arrange(where(files, condition), order, count, by_range=by_range))

    # -- From file to file --------------------------------------------------------------------------------------------

    def _pack(self, files: Relation, groups: pa.Table) -> Relation:
        """Write the rows of groups to files of the same partition and spec. A task writes several small files."""
        schema = self.state.metadata.schema()
        rows = task_rows(self.state, schema, self._lineage)
        tasks = replace(data_file_tasks(self.target, self.schema), sort_order_id=_UNSORTED.order_id)
        names = {field.field_id: field.name for field in self.state.types.partition_type.fields}
        fields = tuple(names[field.field_id] for field in self.target.metadata.spec().fields)
        pack = PackTasks(rows, tuple(field.name for field in self.schema.fields), tasks, fields)
        outputs, count, size = (pc.sum(groups.column(name)).as_py() for name in ("outputs", "files", "bytes"))
        if isinstance(files, pa.Table) and size <= PART_BYTES:
            return files_of(tasks, pack.write([_outputs_on_driver(files)]), self.state.metadata.location)
        needed = min(outputs, tasks_of_work(count, size), most_tasks(self.state.spark))
        placed = self._outputs(frame_of(files, self.state)).repartition(max(1, needed))
        return written_files(self.state, map_arrow(placed, pack.write, tasks.result_schema), tasks.name)

    def _outputs(self, files: DataFrame) -> DataFrame:
        """Return a row for each new file with `PARTS`, the parts of files whose rows go to the new file, in order."""
        tuples = [PARTITION] if PARTITION in files.columns else []
        cut = parts(files, *tuples, *PLAN_ORDER, NUMBER, "file_size_in_bytes", "live_bytes", "outputs", "group_bytes")
        share = f"(coalesce({STOP}, file_size_in_bytes) - {START}) / greatest(file_size_in_bytes, 1)"
        weighed = cut.withColumn("weight", F.expr(f"live_bytes * {share}"))
        cumulative = Window.partitionBy(NUMBER).orderBy(*PLAN_ORDER, START).rowsBetween(Window.unboundedPreceding, 0)
        middle = F.sum("weight").over(cumulative) - F.col("weight") / 2
        output_number = F.floor(middle * F.col("outputs") / F.greatest("group_bytes", F.lit(1)))
        assigned = weighed.withColumn("output", F.least(output_number, F.col("outputs") - 1))
        part = F.struct(*PLAN_ORDER, START, STOP, *PLANNED, *tuples)
        listed = assigned.groupBy(NUMBER, "output").agg(F.sort_array(F.collect_list(part)).alias(PARTS))
        return listed.select(PARTS)

    # -- With Spark ---------------------------------------------------------------------------------------------------

    def _arrange(self, files: Relation, order: SortOrder, outputs: int, *, by_range: bool = False) -> DataFrame:
        """Write the rows of files to new files, distributed by partition, and sorted."""
        planned = PlannedFiles.of([RowPlan(frame_of(files, self.state), self.groups.plan.deletes)], self.state)
        curve = None if self.order is None or not self.order.curve else self._curve(planned)
        tasks = max(1, min(outputs, most_tasks(self.state.spark)))
        rows = rows_of(self._scan(self.state.metadata.schema(), self._lineage), planned)
        arrangement = Arrangement(order, tasks, by_range, curve)
        return write_files(self.target, rows, lineage=bool(self._lineage), arrangement=arrangement)

    def _scan(self, projection: Schema, metadata_columns: tuple[str, ...] = ()) -> RowScan:
        return RowScan(ScanFilter.of(self.state, AlwaysTrue()), projection, metadata_columns)

    def _curve(self, files: PlannedFiles) -> Curve:
        """Return the z-order of files' rows. Reads some of the rows."""
        assert self.order is not None
        schema, columns = self.state.metadata.schema(), self.order.curve
        field_paths = [path_to(schema, column.field_id) for column in columns]
        paths: list[Path] = [
            (field_path[0].name, *(field.name for field in field_path[1:])) for field_path in field_paths
        ]
        curve_schema = pruned(schema, {column.field_id for column in columns})
        count = sum(files.numbers("record_count").tolist())
        rows = rows_of(self._scan(curve_schema), files)
        sample = rows.sample(min(1.0, _SAMPLED / max(count, 1)), seed=7).limit(2 * _SAMPLED).toArrow()
        of_rows: list[Path] = [
            (schema.fields.index(field_path[0]), *path[1:]) for field_path, path in zip(field_paths, paths, strict=True)
        ]
        return replace(Curve.of(CURVE_COLUMN, paths, sample), paths=tuple(of_rows))


_REMOVED: Final = ("file_path", "manifest_path", "spec_id", PARTITION)
"""The columns with which a commit finds the replaced files."""


def _outputs_on_driver(files: pa.Table) -> pa.RecordBatch:
    """Return what `Rewrite._outputs` does, for a few files on the driver, in the order of their groups."""
    order = (NUMBER, *PLAN_ORDER, START)
    cut, _ = parts_table(files, *PLAN_ORDER, NUMBER, "file_size_in_bytes", "live_bytes", "outputs", "group_bytes")
    cut = cut.sort_by([(name, "ascending") for name in order]).combine_chunks()
    names = (NUMBER, "file_size_in_bytes", "live_bytes", "outputs", "group_bytes", START)
    number, size, live, outputs, group_bytes, start = (cut.column(name).to_numpy() for name in names)
    stop = pc.coalesce(cut.column(STOP), cut.column("file_size_in_bytes")).to_numpy()
    weight = live * (stop - start) / np.maximum(size, 1)
    group_starts = np.flatnonzero(np.diff(number, prepend=-1))
    before = np.concatenate([[0.0], np.cumsum(weight)])[:-1]
    middle = before - np.repeat(before[group_starts], np.diff([*group_starts, len(number)])) + weight / 2
    output = np.minimum(np.floor(middle * outputs / np.maximum(group_bytes, 1)), outputs - 1)
    starts = np.flatnonzero((np.diff(number, prepend=-1) != 0) | (np.diff(output, prepend=-1) != 0))
    offsets = pa.array([*starts, len(number)], pa.int32())
    (rows,) = cut.to_batches()
    return pa.RecordBatch.from_arrays([pa.ListArray.from_arrays(offsets, rows.to_struct_array())], [PARTS])


# -- Sort orders of a rewrite -----------------------------------------------------------------------------------------
# A sort order is an object, or text in the form of Iceberg's procedure, such as `id DESC NULLS LAST, bucket(16, name)`
# or `zorder(x, y)`.


_ZORDER: Final = "zorder"


@dataclass(frozen=True)
class RowOrder:
    """The order of the rows of new files.

    Attributes:
        order: the sort order; unsorted if there are curve columns. Its id is 0 unless the table has the same order.
        curve: the columns of a z-order, except for columns that are constant in a partition.
    """

    order: SortOrder
    curve: tuple[NestedField, ...] = ()


def row_order(metadata: TableMetadata, wanted: SortOrder | str | None) -> RowOrder:
    """Return the order that an option of a rewrite names; None is the table's sort order.

    Raises:
        ValidationError: the table has no sort order, or the order has another type or does not fit the table's columns.
    """
    if wanted is None:
        order = metadata.sort_order()
        if not order.fields:
            problem = "the table has no sort order: give sort_order, or use the strategy binpack"
            raise ValidationError(f"{metadata.location}: {problem}")
        return RowOrder(order)
    if isinstance(wanted, SortOrder):
        return RowOrder(_checked(metadata, wanted))
    if not isinstance(wanted, str):
        raise ValidationError(f"sort_order is {shown(wanted)}: expected text, or a SortOrder of pyiceberg")
    terms, texts = Terms(metadata.schema(), f"sort_order is {shown(wanted)}"), list(parts_of(wanted))
    calls = [CALL.fullmatch(term) for term in texts]
    curves = [call for call in calls if call is not None and call["name"].lower() == _ZORDER]
    if not curves:
        return RowOrder(_known_order(metadata, tuple(map(terms.sort_field, texts))))
    if len(texts) > 1:
        raise ValidationError(f"{terms.where}: zorder(...) can't be combined with other columns")
    columns = [terms.column(name) for name in parts_of(curves[0]["arguments"])]
    if len(set(columns)) < len(columns):
        raise ValidationError(f"{terms.where}: a column occurs twice")
    identities = {field.source_id for field in metadata.spec().fields if isinstance(field.transform, IdentityTransform)}
    curve_columns = tuple(column for column in columns if column.field_id not in identities)
    if not 0 < len(curve_columns) <= MOST_COLUMNS:
        problem = f"expected 1 to {MOST_COLUMNS} columns that are not the source of an identity partition field"
        raise ValidationError(f"{terms.where}: {problem}")
    return RowOrder(SortOrder(order_id=0), curve_columns)


def _checked(metadata: TableMetadata, wanted: SortOrder) -> SortOrder:
    """Return an order. Raises ValidationError if one of its fields is not in the table's rows."""
    terms = Terms(metadata.schema(), f"sort_order is {shown(', '.join(map(str, wanted.fields)))}")
    if not wanted.fields:
        raise ValidationError("sort_order is unsorted: it has no fields")
    for sort_field in wanted.fields:
        for source in field_sources(sort_field):
            try:
                column = terms.schema.find_field(source)
            except ValueError:
                raise ValidationError(f"{terms.where}: the table has no column with the id {source}") from None
            terms.check(column, sort_field.transform)
    return _known_order(metadata, tuple(wanted.fields))


def _known_order(metadata: TableMetadata, fields: tuple[SortField, ...]) -> SortOrder:
    """Return the table's sort order with these fields, or else an order with the id that unsorted files have."""
    for order in metadata.sort_orders:
        if [*order.fields] == [*fields]:
            return order
    return SortOrder(*fields, order_id=0)


# -- The plan to rewrite data files, and its commits ------------------------------------------------------------------


_log = logging.getLogger(__name__)

# Names of figures in `result` -> the counts in a snapshot's summary.
_COUNTED = {
    "added_data_files": "added-data-files",
    "added_bytes": "added-files-size",
    "removed_delete_files": "removed-delete-files",
}


@dataclass(frozen=True)
class DataRewriteSummary(SnapshotPlanSummary):
    """The data files to rewrite, in numbers.

    Attributes:
        strategy: binpack or sort.
        groups: the number of groups of files that are rewritten together.
        data_files: the number of files to rewrite.
        bytes: the bytes of these files.
        records: the rows of these files, including deleted rows.
        deleted_files: the number of these files that have only deleted rows. They are not read.
        new_files: the approximate number of new files.
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
        return not self.groups

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its data files need no rewrite"
        text = f"{self.data_files} data files in {self.groups} groups become about {self.new_files}"
        commits = f", in {self.commits} commits" if self.commits > 1 else ""
        deleted_text = f", {self.deleted_files} files have only deleted rows" if self.deleted_files else ""
        rows = f"{self.records} rows, {byte_size(self.bytes)}{deleted_text}"
        return f"{self.table}: {text} ({self.strategy}){commits}\n  {rows}"


@dataclass
class _Progress:
    """The outcome of a plan's commits so far.

    Attributes:
        snapshot_id: the snapshot of the last commit.
    """

    snapshot_id: int | None = None
    commits: int = 0
    failed_commits: int = 0
    rewritten_data_files: int = 0
    rewritten_bytes: int = 0
    failed_data_files: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))


@dataclass(frozen=True)
class DataRewritePlan(RewritePlan[TableT, DataRewriteOptions]):
    """A plan to rewrite data files, carried out by `commit`.

    With partial progress, groups are committed one part after another. If a part fails, the error is logged and the
    other parts continue. After an error, `is_partly_committed` says whether parts were committed, and `result` has
    their changes.
    """

    _doing = "Rewriting data files"

    order: RowOrder | None
    _progress: _Progress = field(default_factory=_Progress, init=False, repr=False, compare=False)

    @cached_property
    def _groups(self) -> FileGroups:
        order_id = 0 if self.order is None else self.order.order.order_id
        return FileGroups(self._state, self.options, self.options.sizes(self._state.metadata), order_id)

    @cached_property
    def _rewrite(self) -> Rewrite:
        return Rewrite(self._groups, self.order)

    def to_df(self) -> DataFrame:
        """Return a row for each data file to rewrite, with the number of its group.

        Columns: file_group, file_path, file_format, spec_id, partition (where the table has any), record_count,
        file_size_in_bytes, data_sequence_number, delete_files (the number of deletes that apply to the file),
        deleted_records (by deletes that name the file), manifest_path, manifest_pos. Runs jobs, once.
        """
        frame = frame_of(self._groups.files(), self._state)
        tuples = [PARTITION] if PARTITION in frame.columns else []
        return frame.selectExpr(
            f"{NUMBER} AS file_group", "file_path", "file_format", "spec_id", *tuples, "record_count",
            "file_size_in_bytes", "data_sequence_number", "size(deletes) AS delete_files", "deleted_records",
            "manifest_path", "manifest_pos",
        )  # fmt: skip

    @planning
    def summary(self) -> DataRewriteSummary:
        """Return the plan in numbers. Runs jobs, once."""
        groups = self._groups.groups
        total = {name: pc.sum(groups.column(name)).as_py() or 0 for name in ("files", "bytes", "records", "dead_files")}
        return DataRewriteSummary(
            table=self.table.full_name,
            snapshot_id=self._snapshot_id,
            strategy=self.options.strategy,
            groups=len(groups),
            data_files=total["files"],
            bytes=total["bytes"],
            records=total["records"],
            deleted_files=total["dead_files"],
            new_files=self._groups.new_files,
            commits=len(list(self._parts)),
        )

    @property
    def _parts(self) -> Iterator[tuple[int, int]]:
        """The groups of each commit: from one `NUMBER` to before another.

        If the first commit assigns row ids, it is the only commit: later commits would read rows without row ids.
        """
        count, head = len(self._groups.groups), self._state.snapshot
        has_no_ids = head is not None and head.first_row_id is None
        assigns_ids = has_no_ids and bool(lineage_columns(self.table.metadata))
        is_partial = self.options.partial_progress_enabled and not assigns_ids
        commits = self.options.partial_progress_max_commits if is_partial else 1
        size = max(1, -(-count // commits))
        for start in range(0, count, size):
            yield start, min(start + size, count)

    # -- The commits ------------------------------------------------------------------------------------------------

    def step(self) -> Step | None:
        """See `RewritePlan.step`. Writes the new data files of all groups."""
        count = len(self._groups.groups)
        return self._step(self._rewrite.write(0, count), 0, count) if count else None

    def _step(self, written: list[Relation], start: int, end: int) -> Step:
        replaced_files = self._groups.files(start, end)
        new_files = reduce(lambda left, right: union(left, right, self._state), written) if written else None
        number, head = None, self._state.snapshot
        if self.options.use_starting_sequence_number and head is not None and self.table.metadata.format_version > 1:
            number = head.sequence_number
        step = SnapshotStep(self.table.state, WriteTarget(self.branch), dict(self.properties))
        removed = some_columns(replaced_files, _REMOVED)
        SnapshotUpdate(step).rewrite(removed, new_files, data_sequence_number=number)
        return step

    def commit(self) -> TableT:
        """See `Plan.commit`.

        Raises:
            CommitConflictError: another commit removed one of the files or deleted rows of it, or a part of this plan
                was committed before an error. Make a new plan.
        """
        if self.is_partly_committed:
            problem = "parts of the plan were committed before an error: plan again"
            raise CommitConflictError(f"{self.table.metadata.location}: {problem}")
        return super().commit()

    @property
    def is_partly_committed(self) -> bool:
        """See `Plan.is_partly_committed`."""
        return not self._committed and self._progress.commits > 0

    def _commit(self) -> TableT:
        table, progress = self.table, self._progress
        progress.failed_commits = progress.failed_data_files = 0
        errors: list[SparkmetaError] = []
        for start, end in tracked([*self._parts], self._doing, table.state.sessions):
            groups = self._groups.groups.slice(start, end - start)
            try:
                table = self._commit_part(table, start, end)
            except CommitStateUnknownError:
                raise
            except SparkmetaError as error:
                errors.append(error)
                progress.failed_commits += 1
                progress.failed_data_files += _sum(groups, "files")
                limit = self.options.partial_progress_max_failed_commits
                if not self.options.partial_progress_enabled or (limit is not None and len(errors) > limit):
                    raise
                groups_text = (
                    f"file group {start} was" if end - start == 1 else f"file groups {start} to {end - 1} were"
                )
                _log.warning("%s: %s not rewritten: %s", table.full_name, groups_text, error)
                continue
            progress.commits += 1
            progress.rewritten_data_files += _sum(groups, "files")
            progress.rewritten_bytes += _sum(groups, "bytes")
            self._count(table.metadata.snapshot_by_name(self.branch))
        if errors and not progress.commits:
            raise errors[-1]
        if self.options.remove_dangling_deletes and progress.commits and table.metadata.format_version > 1:
            before = table.metadata.snapshot_by_name(self.branch)
            table = plan_removal(table, BranchOptions(branch=self.branch, snapshot_properties=self.properties)).commit()
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
        self._progress.snapshot_id = snapshot.snapshot_id
        for name, key in _COUNTED.items():
            self._progress.counts[name] += summary_number(snapshot, key) or 0

    def _outcome(self) -> dict[str, Any] | None:
        outcome = asdict(self._progress)
        counts = outcome.pop("counts")
        return {**outcome, **counts} if self._progress.commits else None


def _sum(groups: pa.Table, column: str) -> int:
    return int(pc.sum(groups.column(column)).as_py() or 0)


def plan_data_rewrite(table: TableT, options: DataRewriteOptions) -> DataRewritePlan[TableT]:
    """See `Maintenance.rewrite_data_files`."""
    refuse_read_only(table)
    metadata = table.metadata
    refuse_rewrite(metadata)
    check_snapshot_options(metadata)
    head = branch_head(table.state, options.branch)
    refuse_types(metadata.schema(), metadata.location)
    executor_writer(head.files)
    options.check_for(metadata)
    ScanFilter.of(head, options.row_filter)
    order = row_order(metadata, options.sort_order) if options.strategy == SORT else None
    if options.only_old_orders and (order is None or not order.order.order_id):
        raise ValidationError(
            "only_old_orders is true: the table does not have the order, so that no file can be in it"
        )
    return DataRewritePlan(table, head, options, order)
