"""Delete the rows that are older than a time, by a column of dates or timestamps: the retention of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.expressions import LessThan
from pyiceberg.types import DateType, TimestampNanoType, TimestampType, TimestamptzNanoType, TimestamptzType

from sparkmeta.checks import NAME, described, option
from sparkmeta.commit.new_snapshot import branch_head
from sparkmeta.commit.options import BranchOptions
from sparkmeta.entries.relation import collected, frame_of, grouped, names, select
from sparkmeta.errors import ValidationError, shown, translated_errors
from sparkmeta.expr import sql
from sparkmeta.maintain.expire_snapshots import to_millis
from sparkmeta.maintain.plans import SnapshotPlan, SnapshotPlanSummary
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.progress import planning
from sparkmeta.spec.summary import summary_number
from sparkmeta.write.matching import ALL_MATCH, Matching
from sparkmeta.write.transaction import RowTransaction

if TYPE_CHECKING:
    from typing import Any

    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import collected, frame_of, grouped, names, select

_ZONED, _LOCAL = (TimestamptzType, TimestamptzNanoType), (TimestampType, TimestampNanoType)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUMS = ("record_count", "file_size_in_bytes")
_COUNTS = ("deleted-data-files", "deleted-records", "added-position-deletes")


# -- The options and numbers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowExpiryOptions(BranchOptions):
    """See `Maintenance.expire_rows`."""

    column: str = field(metadata=described("the column of dates or timestamps that says how old a row is.", NAME))
    older_than: datetime | int = field(metadata=described("delete only rows with an earlier date or time."))
    whole_files: bool = option(
        False, "remove only files whose rows are all older, as partitions and metrics prove, without reading any."
    )

    def check(self) -> None:
        """See `Options.check`."""
        super().check()
        self._time()

    def bound(self, schema: Schema) -> str:
        """Return the date or time as text for the column's type. Dates and local times are in UTC.

        Raises:
            ValidationError: the table has no such column, or it has another type.
        """
        try:
            kind = schema.find_field(self.column).field_type
        except ValueError as error:
            raise ValidationError(f"column is {shown(self.column)}: the table has no such column") from error
        time = self._time()
        if isinstance(kind, DateType):
            return time.date().isoformat()
        if not isinstance(kind, _ZONED + _LOCAL):
            raise ValidationError(f"column is {shown(self.column)}, of type {kind}: expected a date or timestamp")
        return (time if isinstance(kind, _ZONED) else time.replace(tzinfo=None)).isoformat()

    def _time(self) -> datetime:
        """Return `older_than` in UTC. Raises ValidationError if it is not a time, or beyond the range of datetimes."""
        milliseconds = to_millis(self.older_than)
        try:
            if isinstance(self.older_than, datetime):
                return self.older_than.astimezone(UTC)
            return _EPOCH + timedelta(milliseconds=milliseconds)
        except OverflowError as error:
            raise ValidationError(f"older_than is {shown(self.older_than)}: expected a year from 1 to 9999") from error


@dataclass(frozen=True)
class RowExpirySummary(SnapshotPlanSummary):
    """The old rows of a branch in numbers; `str` formats them.

    Attributes:
        column: the column that says how old a row is.
        bound: the date or time before which rows are deleted.
        files: the number of files that are removed, since all of their rows are older.
        records: the number of rows in these files, including deleted ones.
        bytes: the size of these files.
        other_files: the number of files that may contain both older and newer rows.
        other_bytes: the size of these files.
        reads_files: whether these files are read, and their older rows are deleted.
    """

    column: str
    bound: str
    files: int
    records: int
    bytes: int
    other_files: int
    other_bytes: int
    reads_files: bool

    @property
    def is_empty(self) -> bool:
        return not self.files and not (self.reads_files and self.other_files)

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: no rows to delete where {self.column} < {self.bound}"
        lines = [
            f"{self.table}: rows are deleted where {self.column} < {self.bound}",
            f"  {self.files} files with {self.records} rows and {self.bytes} bytes are removed",
        ]
        if self.other_files:
            outcome = "are read for such rows" if self.reads_files else "stay, since they have newer rows"
            lines.append(f"  {self.other_files} other files {outcome}")
        return "\n".join(lines)


# -- The plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowExpiryPlan(SnapshotPlan[TableT]):
    """A plan to delete old rows, carried out by `commit`.

    Attributes:
        options: the options.
        bound: the date or time before which rows are deleted.
    """

    _doing = "Deleting rows"

    options: RowExpiryOptions
    bound: str

    @cached_property
    def _matching(self) -> Matching:
        """The files of the branch that may contain older rows."""
        row_filter = LessThan(self.options.column, self.bound)  # type: ignore[arg-type, call-arg]
        return Matching(self._state, row_filter)

    def to_df(self) -> DataFrame:
        """Return one row for each file that may contain rows to delete. May run jobs.

        Columns: file_path, partition (if the table has partition fields), record_count, file_size_in_bytes, all_rows
        (whether all rows are deleted, so that the file is removed without being read).
        """
        files = self._matching.candidates
        shown = [name for name in ("file_path", "partition", *_SUMS) if name in names(files)]
        columns = [*(sql.col(name).alias(name) for name in shown), sql.col(ALL_MATCH).alias("all_rows")]
        return frame_of(select(files, columns), self._state)

    @planning
    def summary(self) -> RowExpirySummary:
        """Return the plan in numbers. May run jobs."""
        figures = {"files": sql.call("sum", 1)} | {name: sql.call("sum", sql.col(name)) for name in _SUMS}
        with translated_errors():
            rows = collected(grouped(self._matching.candidates, sql.columns(ALL_MATCH), sql.named(figures))).to_pylist()
        by_kind = {row[ALL_MATCH]: row for row in rows}
        removed, others = ({**dict.fromkeys(figures, 0), **by_kind.get(is_whole, {})} for is_whole in (True, False))
        return RowExpirySummary(
            self.table.full_name,
            self._snapshot_id,
            self.options.column,
            self.bound,
            removed["files"],
            removed["record_count"],
            removed["file_size_in_bytes"],
            others["files"],
            others["file_size_in_bytes"],
            not self.options.whole_files,
        )

    def _commit(self) -> TableT:
        if self.summary().is_empty:
            return self.table
        transaction, options = RowTransaction(self.table), self.options
        if options.whole_files:
            update = transaction.update_snapshot(options.branch, options.snapshot_properties)
            update.delete(self._matching.whole_files)
        else:
            row_filter, properties = self._matching.row_filter, options.snapshot_properties
            transaction.delete(row_filter, branch=options.branch, snapshot_properties=properties)
        return transaction.commit()

    def _outcome(self) -> dict[str, Any] | None:
        if not self._committed:
            return None
        head = self._committed[0].metadata.snapshot_by_name(self.options.branch)
        if head is None or head.snapshot_id == self._snapshot_id:
            return None
        counts = {name: summary_number(head, name) or 0 for name in _COUNTS}
        return {"snapshot_id": head.snapshot_id} | {name.replace("-", "_"): count for name, count in counts.items()}


def plan_row_expiry(table: TableT, options: RowExpiryOptions) -> RowExpiryPlan[TableT]:
    """See `Maintenance.expire_rows`."""
    options.check()
    refuse_read_only(table)
    state = branch_head(table.state, options.branch)
    return RowExpiryPlan(table, state, options, options.bound(state.metadata.schema()))
