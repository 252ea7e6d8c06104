"""`Scan`: an immutable description of the rows to read from a table, with plans as DataFrames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

from sparkmeta.columns.predicate import bind_filter, parse_filter
from sparkmeta.errors import NoSuchSnapshotError, ValidationError
from sparkmeta.plan.choose import Choice, choose
from sparkmeta.plan.files import count_files, plan_files, plan_schema
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import PrunedManifests, prune_manifests
from sparkmeta.plan.report import ScanReport, scan_report
from sparkmeta.plan.task_json import PARTITION_JSON, partition_json, task_json
from sparkmeta.plan.tasks import SplitPlanning, plan_tasks
from sparkmeta.rows.appended import read_appended
from sparkmeta.rows.changelog import Changelog, fields_of_rows, read_changelog
from sparkmeta.rows.count import count_rows
from sparkmeta.rows.file_rows import METADATA_COLUMNS
from sparkmeta.rows.read import RowScan, read_rows

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, Row

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.state import TableState

ALL_FIELDS = ("*",)

# Iceberg's read options, and the table properties that they override.
_SPLIT_OPTIONS = {
    "target_size": ("split-size", "read.split.target-size"),
    "lookback": ("lookback", "read.split.planning-lookback"),
    "open_file_cost": ("file-open-cost", "read.split.open-file-cost"),
}


@dataclass(frozen=True)
class Scan:
    """A description of the rows to read from a table. Methods that refine it return a new scan.

    Attributes:
        state: the table.
        row_filter: a filter expression.
        selected_fields: the columns to read.
        case_sensitive: how names in the filter and the columns are looked up.
        snapshot_id: None for the current snapshot.
        ref: the branch or tag that named the snapshot.
        options: Iceberg's read options `split-size`, `lookback`, `file-open-cost`.
        row_limit: how many rows to read at most; None for all.
    """

    state: TableState
    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    selected_fields: tuple[str, ...] = ALL_FIELDS
    case_sensitive: bool = True
    snapshot_id: int | None = None
    ref: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    row_limit: int | None = None

    # -- refining ---------------------------------------------------------------------------------------------------

    def filter(self, row_filter: str | BooleanExpression) -> Scan:
        """Return this scan with a further condition.

        Raises:
            InvalidFilterError: the filter is invalid.
        """
        return replace(self, row_filter=And(self.row_filter, parse_filter(row_filter)))

    def select(self, *field_names: str) -> Scan:
        """Return this scan with only the given columns of those that it has."""
        if self.selected_fields == ALL_FIELDS:
            return replace(self, selected_fields=field_names)
        common = tuple(name for name in self.selected_fields if name in field_names)
        return replace(self, selected_fields=common)

    def with_case_sensitive(self, case_sensitive: bool = True) -> Scan:
        """Return this scan with case-sensitive or case-insensitive names."""
        return replace(self, case_sensitive=case_sensitive)

    def limit(self, rows: int) -> Scan:
        """Return this scan of at most so many rows, whichever Spark reads first.

        Raises:
            ValidationError: the number is negative.
        """
        if rows < 0:
            raise ValidationError(f"limit is {rows}: it takes a whole number from 0")
        return replace(self, row_limit=rows if self.row_limit is None else min(rows, self.row_limit))

    def use_ref(self, name: str) -> Scan:
        """Return this scan of a branch's head or of a tag.

        Raises:
            NoSuchSnapshotError: the table has no such ref.
            ValidationError: the scan has a snapshot already.
        """
        self._refuse_second("a ref")
        return replace(self, ref=name, snapshot_id=self.state.metadata_ref(name).snapshot_id)

    def as_of(self, timestamp: datetime | int) -> Scan:
        """Return this scan of the snapshot that was current at a time.

        Args:
            timestamp: a datetime with zone, or milliseconds since 1970.

        Raises:
            NoSuchSnapshotError: the table's log does not go back as far.
            ValidationError: the scan has a snapshot already.
        """
        self._refuse_second("a time")
        return replace(self, snapshot_id=self.state.snapshot_id_at(timestamp))

    def _refuse_second(self, choice: str) -> None:
        if self.snapshot_id is not None:
            raise ValidationError(f"the scan has snapshot {self.snapshot_id} already: it can't take {choice} too")

    # -- what it means ----------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """Return the snapshot to read; None for an empty table.

        Raises:
            NoSuchSnapshotError: the table does not have the scan's snapshot.
        """
        if self.snapshot_id is None:
            return self.state.metadata.current_snapshot()
        snapshot = self.state.metadata.snapshot_by_id(self.snapshot_id)
        if snapshot is None:
            raise NoSuchSnapshotError(f"{self.state.metadata.location} has no snapshot {self.snapshot_id}")
        return snapshot

    def schema(self) -> Schema:
        """Return the schema of the scan: that of a given snapshot or tag, or else the table's."""
        by_branch = self.ref is not None and self.state.metadata_ref(self.ref).snapshot_ref_type == "branch"
        if self.snapshot_id is None or by_branch:
            return self.state.metadata.schema()
        return self.state.at(self.snapshot()).types.snapshot_schema

    def projection(self) -> Schema:
        """Return the schema of the rows to read, without metadata columns.

        Raises:
            ValueError: the schema has no such column.
        """
        if ALL_FIELDS[0] in self.selected_fields:
            return self.schema()
        names = [name for name in self.selected_fields if name not in self.metadata_columns]
        return self.schema().select(*names, case_sensitive=self.case_sensitive)

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The selected metadata columns: `_file`, `_pos`, `_partition`, `_spec_id`, `_deleted`, `_row_id`,
        `_last_updated_sequence_number`. A column of the table of such a name hides them."""
        columns = {field.name for field in self.schema().fields}
        return tuple(name for name in self.selected_fields if name in METADATA_COLUMNS and name not in columns)

    @cached_property
    def _filter(self) -> ScanFilter:
        schema = self.schema()
        self.projection()
        bound = bind_filter(self.row_filter, schema, self.case_sensitive)
        return ScanFilter(self.state.at(self.snapshot()), bound, schema)

    @cached_property
    def _pruned(self) -> PrunedManifests:
        return prune_manifests(self._filter)

    @cached_property
    def _choice(self) -> Choice:
        return choose(self._pruned)

    @property
    def _rows(self) -> RowScan:
        return RowScan(self._filter, self.projection(), self.metadata_columns)

    # -- rows -------------------------------------------------------------------------------------------------------

    def to_df(self) -> DataFrame:
        """Return the rows that match the filter, without deleted ones: the selected columns, then metadata columns.

        The plan runs at once (see `rows.read`), the rows are read when the DataFrame runs. With `_deleted` selected
        deleted rows are there too, and it tells which they are.

        Raises:
            ValidationError: metadata or deletes contradict each other.
            NotFoundError: a manifest or file of deletes is missing.
        """
        rows = read_rows(self._rows, self._choice)
        return rows if self.row_limit is None else rows.limit(self.row_limit)

    def count(self) -> int:
        """Count the rows that match the filter and are not deleted; see `rows.count`.

        Raises:
            ValidationError: as `to_df`.
        """
        rows = count_rows(self._choice)
        return rows if self.row_limit is None else min(rows, self.row_limit)

    def to_arrow(self) -> pa.Table:
        """Return the rows of `to_df` as an Arrow table in memory."""
        return self.to_df().toArrow()

    def to_pandas(self) -> Any:
        """Return the rows of `to_df` as a pandas DataFrame in memory."""
        return self.to_arrow().to_pandas()

    def create_temp_view(self, name: str) -> None:
        """Name the rows of `to_df` for Spark SQL, in place of any temporary view of that name.

        The view shows the table as it is now, whatever is committed later.
        """
        self.to_df().createOrReplaceTempView(name)

    # -- plans ------------------------------------------------------------------------------------------------------

    def plan_files(self) -> DataFrame:
        """Plan the data files to read: a row for each, with its deletes and residual filter.

        See `plan.files` for the columns. When this is called, the driver reads the manifest list and small manifests
        (see the setting `driver_manifest_bytes`). Everything else is lazy, and done by Spark.
        """
        return plan_files(self._choice)

    def count_files(self) -> int:
        """Count the rows of `plan_files`, without reading or checking deletes.

        Without a filter, no manifest is opened that has counts, which only v1 manifests may lack. With a filter, the
        entries of manifests that may match are counted.
        """
        return count_files(self._pruned)

    def iter_files(self) -> Iterator[Row]:
        """Yield the rows of `plan_files`, for callers that need Python objects.

        Spark sends one partition after the other; the driver holds at most two of them.
        """
        return self.plan_files().toLocalIterator(prefetchPartitions=True)

    def plan_tasks(self) -> DataFrame:
        """Cut the planned files into splits and pack them into tasks, lazily; see `plan.tasks.plan_tasks`.

        Sizes come from the options, or else from the table properties read.split.*.
        """
        return plan_tasks(self.plan_files(), plan_schema(self._filter.state), self._splitting())

    def plan_task_json(self) -> DataFrame:
        """Return splits as File Scan Task JSON for Iceberg's libraries, lazily: a row per split, a column `task`."""
        state = self._filter.state
        named = partition_json(state).alias(PARTITION_JSON)
        planned = plan_files(self._choice, named)
        packed = plan_tasks(planned, plan_schema(state).add(PARTITION_JSON, "string"), self._splitting())
        return task_json(packed.selectExpr("inline(tasks)"), state, self.projection())

    def report(self) -> ScanReport:
        """Report what the plan of this scan reads and skips, and why. Runs Spark jobs, including the plan itself."""
        return scan_report(self._choice)

    def _splitting(self) -> SplitPlanning:
        chosen: dict[str, int] = {}
        for name, keys in _SPLIT_OPTIONS.items():
            for source, key in zip((self.options, self.state.metadata.properties), keys, strict=True):
                if key in source and name not in chosen:
                    chosen[name] = _positive(key, source[key])
        return SplitPlanning(**chosen)

    def __repr__(self) -> str:
        shown = {"row_filter": self.row_filter, "snapshot_id": self.snapshot_id, "ref": self.ref}
        text = ", ".join(f"{name}={value}" for name, value in shown.items() if value is not None)
        return f"Scan({self.state.metadata.location}, {text})"

    def _repr_html_(self) -> str:
        """Describe the scan in a notebook, without a job."""
        return f"<code>{escape(repr(self)[:500])}</code>"


@dataclass(frozen=True)
class _RangeScan(ABC):
    """What a range of snapshots did. Every method that changes it returns another one.

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

    @abstractmethod
    def to_df(self) -> DataFrame:
        """Return the rows."""

    def create_temp_view(self, name: str) -> None:
        """Name the rows of `to_df` for Spark SQL; see `Scan.create_temp_view`."""
        self.to_df().createOrReplaceTempView(name)


@dataclass(frozen=True)
class IncrementalScan(_RangeScan):
    """What snapshots appended."""

    def to_df(self) -> DataFrame:
        """Return the rows that snapshots of the operation `append` appended, whether they were deleted since or not.

        As in Iceberg's Java library, other operations are passed over: nothing that an overwrite or a compaction wrote
        is a new row. Planned at once, as `Scan.to_df`; lazy.

        Raises:
            NoSuchSnapshotError: the table does not have one of the snapshots.
            ValidationError: the first is no ancestor of the second, or the history between them has expired.
        """
        return read_appended(self.scan._rows, self.from_exclusive, self.to_inclusive)


@dataclass(frozen=True)
class ChangelogScan(_RangeScan):
    """The rows that snapshots inserted and deleted. Conditions are on old and new rows.

    Whether a row has changed rests on all columns, selected or not.

    Attributes:
        net_changes: leave out rows that come and go within the range.
        identifier_columns: columns by which a deleted and an inserted row are an update; none for no updates.
    """

    net_changes: bool = False
    identifier_columns: tuple[str, ...] = ()

    def to_df(self) -> DataFrame:
        """Return the changes of rows: the columns, `_change_type`, `_change_ordinal`, `_commit_snapshot_id`.

        The ordinal counts the snapshots of the range from 0, without those of the operation `replace`. The plans are
        made at once, rows are read when the DataFrame runs; see `rows.changed_files`.

        Raises:
            NoSuchSnapshotError: the table does not have one of the snapshots; or one of them removed files or changed
                deletes, and its parent has expired.
            ValidationError: the first is no ancestor of the second, or the history between them has expired. If the
                DataFrame raises it when it runs, several changes of a snapshot have the same identifier.
        """
        scan = self.scan
        if scan.metadata_columns:
            raise ValidationError(f"a changelog has no column {scan.metadata_columns[0]}")
        ids = tuple(self._field_id(name) for name in self.identifier_columns)
        return read_changelog(Changelog(scan._rows, self.from_exclusive, self.to_inclusive, self.net_changes, ids))

    def _field_id(self, name: str) -> int:
        schema = self.scan.schema()
        try:
            field_id = schema.find_field(name, self.scan.case_sensitive).field_id
        except ValueError as error:
            raise ValidationError(f"identifier column {name}: {error}") from error
        if field_id not in fields_of_rows(schema):
            raise ValidationError(f"identifier column {name}: it is inside of a list or a map")
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
        raise ValidationError("net changes have no updates: give either net_changes or identifier_columns")
    return ChangelogScan(scan, from_exclusive, to_inclusive, net_changes, names)


def table_scan(
    state: TableState,
    row_filter: str | BooleanExpression,
    selected_fields: tuple[str, ...],
    case_sensitive: bool,
    snapshot_id: int | None,
    options: Mapping[str, Any],
) -> Scan:
    """Return the scan that `Table.scan` starts from."""
    settings = {key: str(value) for key, value in options.items()}
    scan = Scan(state, parse_filter(row_filter), tuple(selected_fields), case_sensitive, snapshot_id, None, settings)
    scan.snapshot()
    return scan


def _positive(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) <= 0:
        raise ValidationError(f"{name} is {text!r}: it takes a whole number above 0")
    return int(text)
