"""Scans of the changes of a range of snapshots: `IncrementalScan` and `ChangelogScan`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from sparkmeta.changes.changed_files import read_appended
from sparkmeta.changes.changelog import Changelog, fields_of_rows, read_changelog
from sparkmeta.errors import ValidationError
from sparkmeta.expr.predicate_terms import SchemaFields
from sparkmeta.reports import ScanResult
from sparkmeta.scan import Scan, plans, register_view
from sparkmeta.text import code

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.snapshot.state import TableState


@dataclass(frozen=True, repr=False)
class _RangeScan(ABC):
    """A scan of the changes of a range of snapshots. Immutable: its methods return new scans.

    Attributes:
        scan: the columns to read, and the filter, of the table's schema.
        from_exclusive: the snapshot to begin after; None for the whole history.
        to_inclusive: the last snapshot; None for the current one.
    """

    scan: Scan
    from_exclusive: int | None
    to_inclusive: int | None

    def filter(self, row_filter: str | BooleanExpression) -> Self:
        """Return this scan with a further condition on rows; see `Scan.filter`."""
        return replace(self, scan=self.scan.filter(row_filter))

    def select(self, *field_names: str) -> Self:
        """Return this scan of only these columns; see `Scan.select`."""
        return replace(self, scan=self.scan.select(*field_names))

    def __repr__(self) -> str:
        shown = {"from_exclusive": self.from_exclusive, "to_inclusive": self.to_inclusive}
        ends = ", ".join(f"{name}={snapshot_id}" for name, snapshot_id in shown.items() if snapshot_id is not None)
        return f"{type(self).__name__}({self.scan!r}{ends and ', '}{ends})"

    def _repr_html_(self) -> str:
        """Describe the scan in a notebook. Runs no job."""
        return code(self)

    @property
    def state(self) -> TableState:
        """The table."""
        return self.scan.state

    @abstractmethod
    def to_df(self) -> DataFrame:
        """Return the rows."""

    def _report(self, started: float, files: Iterable[PlannedFiles]) -> None:
        """Send a report on a plan of files. `started` is the time when planning began, by `time.perf_counter`."""
        metadata = self.scan.state.metadata
        end = metadata.current_snapshot() if self.to_inclusive is None else metadata.snapshot_by_id(self.to_inclusive)
        seconds = time.perf_counter() - started
        total = partial(ScanResult.total, (planned.result for planned in files))
        self.scan.plan.report_changes(total, seconds, self.from_exclusive, end)

    def create_temp_view(self, name: str) -> None:
        """Name the rows of `to_df` for Spark SQL; see `Scan.create_temp_view`."""
        register_view(self.to_df(), name, self.scan.state.metadata.location)


@dataclass(frozen=True, repr=False)
class IncrementalScan(_RangeScan):
    """A scan of the files that snapshots appended."""

    @plans
    def to_df(self) -> DataFrame:
        """Return the rows that snapshots of the operation `append` appended, whether they were deleted since or not.

        As in Iceberg's Java library, other operations are skipped: rows that an overwrite or a compaction wrote do not
        count as new. The plan runs at once, as in `Scan.to_df`; rows are read lazily.

        Raises:
            NoSuchSnapshotError: the table does not have one of the snapshots.
            ValidationError: the first is not an ancestor of the second, or the history between them has expired.
        """
        report = partial(self._report, time.perf_counter())
        return read_appended(self.scan.plan.rows, self.from_exclusive, self.to_inclusive, report)


@dataclass(frozen=True, repr=False)
class ChangelogScan(_RangeScan):
    """The rows that snapshots inserted and deleted. Conditions are on old and new rows.

    Whether a row has changed depends on all columns, selected or not.

    Attributes:
        net_changes: whether to leave out rows that are both inserted and deleted within the range.
        identifier_columns: columns that identify a deleted and an inserted row as an update; empty for no updates.
    """

    net_changes: bool = False
    identifier_columns: tuple[str, ...] = ()

    @plans
    def to_df(self) -> DataFrame:
        """Return the changes of rows: the columns, `_change_type`, `_change_ordinal`, `_commit_snapshot_id`.

        The ordinal counts the snapshots of the range from 0, leaving out snapshots of the operation `replace`. The
        plans run at once; rows are read when the DataFrame runs. See `rows.changed_files`.

        Raises:
            NoSuchSnapshotError: the table does not have one of the snapshots; or one of them removed files or changed
                deletes, and its parent has expired.
            ValidationError: the first is not an ancestor of the second, or the history between them has expired. If the
                DataFrame raises it when it runs, several changes of a snapshot have the same identifier.
        """
        scan, ids = self.scan.plan.rows, tuple(self._field_id(name) for name in self.identifier_columns)
        report = partial(self._report, time.perf_counter())
        return read_changelog(Changelog(scan, self.from_exclusive, self.to_inclusive, self.net_changes, ids), report)

    def _field_id(self, name: str) -> int:
        schema = self.scan.schema()
        field_id = SchemaFields(schema, self.scan.case_sensitive).field_id(name)
        if field_id not in fields_of_rows(schema):
            raise ValidationError(f"identifier column {name}: it is inside a list or map")
        return field_id


def changelog_scan(
    scan: Scan,
    from_exclusive: int | None,
    to_inclusive: int | None,
    net_changes: bool,
    compute_updates: bool,
    identifier_columns: Iterable[str],
) -> ChangelogScan:
    """Return the scan that `Table.changelog` starts from."""
    names = (identifier_columns,) if isinstance(identifier_columns, str) else tuple(identifier_columns)
    if not names and compute_updates:
        names = tuple(sorted(scan.schema().identifier_field_names()))
        if not names:
            raise ValidationError("updates need identifier_columns: the table's schema names no identifier fields")
    if names and net_changes:
        raise ValidationError("net_changes and identifier_columns can't be combined")
    return ChangelogScan(scan, from_exclusive, to_inclusive, net_changes, names)
