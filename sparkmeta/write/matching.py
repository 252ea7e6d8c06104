"""Find the files and rows of a snapshot that match a filter: whole files by metadata, rows in the other files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sparkmeta.entries.live import is_kind
from sparkmeta.entries.relation import distinct, few_or_many, has_rows, matching, names, select, some_columns, where
from sparkmeta.errors import translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.predicate import row_predicate
from sparkmeta.expr.types import spark_type
from sparkmeta.plan.choose import choose
from sparkmeta.plan.filter import ScanFilter, all_rows_match, manifest_path, matching_entries, public_partition
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.rows.arrow_reader import (
    few_planned,
    matching_rows,
    planned_parts,
    read_on_driver,
)
from sparkmeta.rows.planned import PlannedFiles, RowPlan, plan_rows
from sparkmeta.rows.read import RowScan, rows_of
from sparkmeta.session import map_arrow, materialize, read_tasks
from sparkmeta.snapshot.search import live_relation
from sparkmeta.spec.entry import ContentType
from sparkmeta.write.delete_tasks import MASK_SCHEMA, matching_masks, position_masks
from sparkmeta.write.input import field_value, positional_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState

    Keep = Callable[[pa.RecordBatch], pa.RecordBatch]

FILE, POSITION = "_file", "_pos"
ALL_MATCH: Final = "all_match"
"""The column of `Matching.candidates` that says whether all rows of a file match, as its metadata proves."""
# Up to this many rows, all masks together take at most about 16 MiB, so the driver collects them at once.
_FEW_ROWS: Final = 8 * (16 << 20)
# Bytes of data files that a task searches, and the minimum number of tasks.
_TASK_BYTES: Final = 64 << 20
_MIN_TASKS: Final = 4
Masks: TypeAlias = pa.Table | DataFrame
"""Rows of `MASK_SCHEMA`: a table on the driver if there are few, otherwise a DataFrame that Spark keeps."""
_SAME_PATH: Final = {"file_path": "file_path"}
_SIZES: Final = ("record_count", "file_size_in_bytes")
_ENTRY_COLUMNS: Final = ("version_info", "content_type", "location", "partition_spec_id", *_SIZES)


def masks_of(rows: DataFrame, files: PlannedFiles, state: TableState) -> Masks:
    """Convert the `FILE` and `POSITION` of rows to masks of their data files. Runs a job.

    Each task makes masks of its own rows, so a file has several masks if several tasks read its rows.

    Args:
        rows: the rows.
        files: the data files that they may be in.
        state: the table.
    """
    return _computed(map_arrow(rows.select(FILE, POSITION), position_masks, MASK_SCHEMA), files, state)


def _computed(masks: DataFrame, files: PlannedFiles, state: TableState) -> Masks:
    counts = files.numbers("record_count")
    with translated_errors():
        if state.access.driver is not None and counts.min(initial=0) >= 0 and counts.sum() <= _FEW_ROWS:
            table: Any = masks.toArrow().cast(MASK_SCHEMA)
            return table
        return materialize(masks)


@dataclass(frozen=True)
class Matching:
    """Finds the files and rows of a snapshot that match a filter.

    Attributes:
        state: the table at the snapshot.
        row_filter: the filter.
        by_rows: whether all matching rows have to be read, so that no file counts as a whole match.
    """

    state: TableState
    row_filter: BooleanExpression | str
    by_rows: bool = False

    @cached_property
    def scan(self) -> ScanFilter:
        """The filter, bound to the table's schema."""
        return ScanFilter.of(self.state, self.row_filter)

    @cached_property
    def candidates(self) -> Relation:
        """The data files that may match: `file_path`, search hints, sizes, and whether all rows match (`ALL_MATCH`).

        If there are few, they are a table on the driver; otherwise, this runs jobs.
        """
        state, scan = self.state, self.scan
        manifests, projection = prune_manifests(scan).data, state.projection(_ENTRY_COLUMNS, scan.filter_ids)
        columns = {
            "file_path": sql.col("location"),
            "spec_id": sql.col("partition_spec_id"),
            **({"partition": public_partition(state)} if state.types.partition_type.fields else {}),
            "manifest_path": manifest_path(state.data_manifests, sql.col("manifest")),
            "record_count": sql.col("record_count"),
            "file_size_in_bytes": sql.col("file_size_in_bytes"),
            ALL_MATCH: sql.lit(False) if self.by_rows else all_rows_match(scan),
        }
        data = where(matching_entries(live_relation(state, manifests, projection), scan), is_kind(ContentType.DATA))
        return few_or_many(select(data, sql.named(columns)), state)

    def _files(self, *, all_match: bool) -> Relation:
        files = where(self.candidates, sql.col(ALL_MATCH) == sql.lit(all_match))
        return some_columns(files, [name for name in names(files) if name not in (ALL_MATCH, *_SIZES)])

    def _has_files(self, *, all_match: bool) -> bool:
        return has_rows(self._files(all_match=all_match))

    @property
    def whole_files(self) -> Relation:
        """The files whose rows all match: `file_path` and search hints."""
        return self._files(all_match=True)

    @property
    def _partial(self) -> Relation:
        return self._files(all_match=False)

    @cached_property
    def has_parts(self) -> bool:
        """Whether there may be files with matching and other rows."""
        return bool(len(self.partial_files)) if self.by_rows else self._has_files(all_match=False)

    @cached_property
    def has_whole_files(self) -> bool:
        """Whether there are files whose rows all match. They need not be read."""
        return not self.by_rows and self._has_files(all_match=True)

    @cached_property
    def partial_plan(self) -> RowPlan:
        """The plan of the partly matching files."""
        plan = plan_rows(choose(prune_manifests(replace(self.scan, reads_all_rows=True))))
        if not self.has_whole_files:
            return plan
        return replace(plan, rows=matching(plan.rows, self._partial, _SAME_PATH))

    @cached_property
    def partial_files(self) -> PlannedFiles:
        """The partly matching files with their deletes. Runs jobs unless the driver makes the plan."""
        return PlannedFiles.of([self.partial_plan], self.state)

    @cached_property
    def _few_planned(self) -> pa.Table | None:
        """The partly matching files if the driver plans and reads them."""
        return few_planned(self.partial_plan.rows, self.state)

    @property
    def reads_on_driver(self) -> bool:
        """Whether the driver plans and reads the partly matching files."""
        return self._few_planned is not None

    def _read(self, files: PlannedFiles, scan: RowScan, *, matches: bool = True, keep: Keep | None = None) -> pa.Table:
        """Read the rows of files that match the filter of a scan, or the rows that don't, on the driver."""
        rows_of_files = matching(self._few_planned, files.table, _SAME_PATH)
        columns = scan.projection, scan.metadata_columns
        return read_on_driver(scan.filter, rows_of_files, *columns, matches=matches, keep=keep)

    @property
    def positions(self) -> DataFrame:
        """The `FILE` and `POSITION` of the matching rows in partly matching files."""
        return rows_of(RowScan(self.scan, Schema(), (FILE, POSITION)), self.partial_files)

    @cached_property
    def masks(self) -> Masks:
        """The rows of `positions` as masks; see `masks_of`. Runs a job.

        The driver reads few files. If tasks can open the others, they read the filter's columns with Arrow. Equality
        deletes are joined by Spark, since there may be many.
        """
        state, files, scan = self.state, self.partial_files, self.scan
        if self.reads_on_driver:
            rows = self._read(files, RowScan(scan, Schema(), (FILE, POSITION)))
            return pa.Table.from_batches(position_masks(rows.to_batches()), MASK_SCHEMA)
        if state.access.tasks is None or files.have(ContentType.EQUALITY_DELETES).any():
            return masks_of(self.positions, files, state)
        matches = matching_rows(scan, Schema(), (FILE, POSITION)).with_dictionary(0)
        size = int(files.numbers("file_size_in_bytes").sum())
        tasks = min(read_tasks(state.spark), len(files), max(_MIN_TASKS, size // _TASK_BYTES))
        parts = planned_parts(files.frame(state.spark)).repartition(max(tasks, 1))
        return _computed(map_arrow(parts, partial(matching_masks, matches), MASK_SCHEMA), files, state)

    def affected_paths(self, *, masks: bool) -> pa.Array:
        """Return the paths of partly matching files that have matching rows. Runs jobs.

        Args:
            masks: whether the caller also needs the masks of these rows.
        """
        if not self.has_parts:
            return pa.array([], pa.string())
        if masks or self.reads_on_driver:
            return whole(distinct(self.masks, ["data_path"]).column(0))
        return whole(distinct(self.positions, [FILE]).column(0))

    def planned(self, paths: pa.Array) -> PlannedFiles:
        """Return some of the partly matching files with their deletes."""
        files = self.partial_files
        return files.filter(np.asarray(pc.is_in(files.table.column("file_path"), paths)))

    def named(self, paths: pa.Array) -> Relation:
        """Return some of the partly matching files as rows in the form of `whole_files`."""
        return matching(self._partial, pa.table({"file_path": paths}), _SAME_PATH)

    def rows(self, files: PlannedFiles, lineage: tuple[str, ...], *, matches: bool) -> Relation:
        """Return the rows of `frame`, as a table if the driver reads the files."""
        if not self.reads_on_driver:
            return self.frame(files, lineage, matches=matches)
        return self._read(files, RowScan(self.scan, self.scan.schema, lineage), matches=matches)

    def every_row(self, metadata: tuple[str, ...], keep: Keep | None = None) -> pa.Table:
        """Return the live rows of all partly matching files, which the driver reads, with some metadata columns.

        Args:
            metadata: the metadata columns.
            keep: selects the rows of a batch to return; None for all.
        """
        all_rows = ScanFilter.of(self.state, AlwaysTrue())
        return self._read(self.partial_files, RowScan(all_rows, self.scan.schema, metadata), keep=keep)

    def frame(self, files: PlannedFiles, lineage: tuple[str, ...], *, matches: bool | None = None) -> DataFrame:
        """Return live rows of some of the partly matching files.

        Args:
            files: the files.
            lineage: metadata columns to read.
            matches: whether to return only rows that match, or only rows that don't; None for both.
        """
        all_rows = ScanFilter.of(self.state, AlwaysTrue())
        rows = rows_of(RowScan(all_rows, self.scan.schema, lineage), files)
        if matches is None:
            return rows
        condition = self.is_matching_row if matches else ~self.is_matching_row
        return rows.toDF(*positional_names(rows.columns)).where(condition.text).toDF(*rows.columns)

    @property
    def is_matching_row(self) -> Sql:
        """Whether a row of `frame`, with columns named by `positional_names`, matches; never null."""
        return row_predicate(self.scan.row_filter, self._bound_value)

    def _bound_value(self, field_id: int) -> Sql:
        value = field_value(self.row_type, self.scan.schema, field_id, positional_names(self.row_type.names))
        is_uuid = isinstance(self.scan.schema.find_type(field_id), UUIDType)
        return sql.call("unhex", sql.call("replace", value, "-", "")) if is_uuid else value

    @cached_property
    def row_type(self) -> StructType:
        """The Spark type of the table's rows."""
        row_type = spark_type(self.scan.schema.as_struct())
        assert isinstance(row_type, StructType)
        return row_type
