"""Convert equality deletes to deletion vectors, or to position deletes in version 2: the options, the plan, its jobs.

    chosen equality deletes -> data files that they apply to -> rows that they delete -> new deletes, by position

The last two steps share code with other operations: changelogs find the rows that deletes remove in the same way, and
`Table.delete` writes its deletes in the same way.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema

from sparkmeta.checks import at_least, option
from sparkmeta.commit.options import BranchOptions
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.entries.live import is_kind, is_live_entry
from sparkmeta.entries.relation import collected, count, distinct, grouped, totals, where
from sparkmeta.expr import sql
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.maintain.dangling_deletes import ENTRY_COLUMNS, public_rows
from sparkmeta.maintain.plans import SnapshotPlanSummary
from sparkmeta.maintain.rewrite_position_deletes import NewDeletesPlan, head_for_deletes
from sparkmeta.operations.table_operations import TableT
from sparkmeta.plan.choose import choose
from sparkmeta.plan.deletes.rules import SEQUENCE
from sparkmeta.plan.filter import DELETES, ScanFilter, tuple_matches
from sparkmeta.plan.match import match_deletes, read_entries
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.progress import planning
from sparkmeta.rows.planned import PlannedFiles, plan_of_entries
from sparkmeta.rows.read import RowScan, are_few, rows_of, rows_of_few
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.spec.entry import ContentType
from sparkmeta.write.deletes import delete_target_bytes, write_deletes
from sparkmeta.write.matching import FILE, POSITION, masks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.attempts import Step
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.rows.planned import RowPlan
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.write.deletes import WrittenDeletes


_EQUALITY = ContentType.EQUALITY_DELETES
_IS_EQUALITY = is_kind(_EQUALITY)


@dataclass(frozen=True)
class EqualityConversionOptions(BranchOptions):
    """See `Maintenance.convert_equality_deletes`."""

    row_filter: BooleanExpression | str = option(
        AlwaysTrue(), "convert only deletes of partitions that may hold matching rows."
    )
    _: KW_ONLY
    max_files: int | None = option(
        None, "the maximum number of equality delete files to convert, oldest first.", at_least(1)
    )
    max_bytes: int | None = option(
        None, "the maximum bytes of equality delete files to convert, oldest first.", at_least(1)
    )

    def check(self) -> None:
        """See `Options.check`. Raises InvalidFilterError for a filter that is not valid."""
        super().check()
        parse_filter(self.row_filter)


@dataclass(frozen=True)
class EqualityConversionSummary(SnapshotPlanSummary):
    """The equality deletes to convert, in numbers.

    Attributes:
        equality_delete_files: the number of equality delete files to convert.
        records: the number of deleted keys.
        bytes: the bytes of these files.
        data_files: the number of data files that they may apply to, whose key columns are read.
        data_bytes: the bytes of these data files.
        other_files: the number of equality delete files that stay.
    """

    equality_delete_files: int
    records: int
    bytes: int
    data_files: int
    data_bytes: int
    other_files: int

    @property
    def is_empty(self) -> bool:
        return not self.equality_delete_files

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: there are no equality deletes to convert"
        files = f"{self.equality_delete_files} equality delete files with {self.records} keys in {self.bytes} bytes"
        return "\n".join(
            [
                f"{self.table}: {files} are converted, {self.other_files} stay",
                f"  they may apply to {self.data_files} data files with {self.data_bytes} bytes",
            ]
        )


@dataclass(frozen=True)
class EqualityConversion:
    """The equality deletes of a snapshot that are to be converted.

    A chosen delete file is converted for all data files that it applies to, so that it can be removed. Deletes are
    chosen by sequence number: a limit selects the oldest ones, and repeated runs convert all of them.

    Attributes:
        state: the snapshot.
        options: the options.
    """

    state: TableState
    options: EqualityConversionOptions

    @cached_property
    def live_entries(self) -> Relation:
        """The entries of all equality deletes."""
        state = self.state
        entries = state.relation(live_manifests(state.delete_manifests), state.projection(ENTRY_COLUMNS))
        return where(entries, is_live_entry() & _IS_EQUALITY)

    @property
    def _is_in_filter(self) -> Sql:
        return tuple_matches(ScanFilter.of(self.state, self.options.row_filter))

    @cached_property
    def _last_sequence_number(self) -> int | None:
        """The sequence number of the newest deletes within the limits; None without limits. May run a job.

        The deletes of the oldest commit are always within the limits.
        """
        limits = {"files": self.options.max_files, "bytes": self.options.max_bytes}
        if all(limit is None for limit in limits.values()):
            return None
        figures = {"files": sql.call("sum", 1), "bytes": sql.call("sum", sql.col("file_size_in_bytes"))}
        key = sql.col(SEQUENCE).alias("number")
        in_filter = where(self.live_entries, self._is_in_filter)
        by_number = collected(grouped(in_filter, [key], sql.named(figures))).sort_by("number")
        if not len(by_number):
            return None
        fits = np.ones(len(by_number), np.bool_)
        for name, limit in limits.items():
            if limit is not None:
                fits &= np.cumsum(by_number.column(name).to_numpy()) <= limit
        last: int = by_number.column("number")[max(int(fits.sum()), 1) - 1].as_py()
        return last

    @property
    def _is_chosen(self) -> Sql:
        last = self._last_sequence_number
        return self._is_in_filter if last is None else self._is_in_filter & (sql.col(SEQUENCE) <= last)

    @cached_property
    def entries(self) -> Relation:
        """The entries of the equality deletes to convert. May run a job."""
        return where(self.live_entries, self._is_chosen)

    @cached_property
    def files(self) -> PlannedFiles:
        """The data files that the deletes may apply to, with these deletes and all position deletes. Runs jobs."""
        return PlannedFiles.of([self._plan], self.state)

    @property
    def _plan(self) -> RowPlan:
        state = self.state
        entries = read_entries(choose(prune_manifests(ScanFilter.of(state, AlwaysTrue()))))
        deletes = entries.deletes
        if deletes.entries is not None:
            deletes = replace(deletes, entries=where(deletes.entries, ~_IS_EQUALITY | self._is_chosen))
        matched = match_deletes(replace(entries, deletes=deletes))
        has_chosen = sql.exists(sql.col(DELETES), lambda delete: delete["content"] == int(_EQUALITY))
        return plan_of_entries(where(matched.rows, has_chosen), state, deletes=deletes)

    def write(self) -> WrittenDeletes | None:
        """Write position deletes for the rows that the chosen deletes remove; return None if there are none. Runs jobs.

        The new deletes of a data file include its older position deletes, as after `Table.delete`.
        """
        state, files = self.state, self.files
        if not len(files):
            return None
        scan = RowScan(ScanFilter.of(state, AlwaysTrue()), Schema(), (FILE, POSITION))
        selecting = files.selected_by(_EQUALITY)
        read = rows_of_few if are_few(scan, [selecting]) else rows_of
        masks = masks_of(read(scan, selecting), files, state)
        paths = distinct(masks, ["data_path"]).column(0)
        if not len(paths):
            return None
        is_affected = np.asarray(pc.is_in(files.table.column("file_path"), paths.combine_chunks()))
        return write_deletes(state, masks, files.without(_EQUALITY).filter(is_affected))


@dataclass(frozen=True)
class EqualityConversionPlan(NewDeletesPlan[TableT, EqualityConversionOptions]):
    """A plan to convert equality deletes, carried out by `commit`.

    New deletes are written once, and deleted if the commit fails. `commit` raises CommitConflictError if another commit
    removed a converted delete file, removed a data file whose rows it deletes, or added a deletion vector for such a
    data file. New data files and new equality deletes of other commits do not conflict.
    """

    _doing = "Converting equality deletes"

    @cached_property
    def _conversion(self) -> EqualityConversion:
        return EqualityConversion(self._state, self.options)

    def to_df(self) -> DataFrame:
        """Return a row for each equality delete file to convert.

        Columns: the columns of `inspect.delete_files`, data_sequence_number, manifest_path and manifest_pos.
        """
        return public_rows(self._conversion.entries, self._state)

    @planning
    def summary(self) -> EqualityConversionSummary:
        """Return the plan in numbers. Runs jobs, once."""
        return self._summary

    @cached_property
    def _summary(self) -> EqualityConversionSummary:
        conversion = self._conversion
        figures = {
            "equality_delete_files": sql.call("sum", 1),
            "records": sql.call("sum", sql.col("record_count")),
            "bytes": sql.call("sum", sql.col("file_size_in_bytes")),
        }
        chosen = totals(conversion.entries, sql.named(figures))
        counts = {name: chosen[name] or 0 for name in figures}
        files = conversion.files if counts["equality_delete_files"] else None
        live = count(conversion.live_entries)
        return EqualityConversionSummary(
            self.table.full_name,
            self._snapshot_id,
            **counts,
            data_files=0 if files is None else len(files),
            data_bytes=0 if files is None else int(files.numbers("file_size_in_bytes").sum()),
            other_files=live - counts["equality_delete_files"],
        )

    def step(self) -> Step | None:
        """See `RewritePlan.step`. Writes the new deletes."""
        if self.summary().is_empty:
            return None
        if not self._written and (new := self._conversion.write()) is not None:
            self._written.append(new)
        step = SnapshotStep(self.table.state, WriteTarget(self.branch), dict(self.properties))
        update = SnapshotUpdate(step)
        removed = self.to_df().select("file_path", "manifest_path")
        if not self._written:
            update.rewrite(removed)
            return step
        (written,) = self._written
        update.rewrite(removed, deletes=written.files)
        if written.superseded is not None:
            update.row_delta(superseded=written.superseded)
        if written.data_files is not None:
            update.validate_data_files_exist(written.data_files, with_deletes=True)
        return step


def plan_equality_conversion(table: TableT, options: EqualityConversionOptions) -> EqualityConversionPlan[TableT]:
    """See `Maintenance.convert_equality_deletes`."""
    options.check()
    state = head_for_deletes(table, options.branch)
    delete_target_bytes(table.metadata.properties)
    return EqualityConversionPlan(table, state, options)
