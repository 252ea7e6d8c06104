"""`Scan`: an immutable description of the rows to read from a table, whose plans are DataFrames.

Readers of rows are imported when they are used, so that a scan is planned quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.table.refs import MAIN_BRANCH

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.checks import NAMES, OPTIONS, TEXT, Rule, are_texts, between
from sparkmeta.entries.relation import frame_of
from sparkmeta.errors import (
    InvalidArgumentError,
    InvalidFilterError,
    ValidationError,
    first_line,
    shown,
    translated_errors,
)
from sparkmeta.expr.filter_text import as_text
from sparkmeta.expr.predicate import bind_filter, parse_filter, referenced_ids
from sparkmeta.expr.predicate_terms import SchemaFields, measured
from sparkmeta.plan.files import in_memory, plan_files, plan_files_arrow, plan_schema
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.tasks import (
    task_type,
)
from sparkmeta.progress import progress
from sparkmeta.reports import SCAN, failures_reported
from sparkmeta.scan_plan import SPLIT_OPTIONS, ScanPlan
from sparkmeta.spec.metadata import snapshot_of
from sparkmeta.spec.schema import path_to, pruned
from sparkmeta.text import code

if TYPE_CHECKING:
    from datetime import datetime

    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, Row

    from sparkmeta.plan.report import ScanReport
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot

ALL_FIELDS = ("*",)
# The limits of a DataFrame.
_ROWS = between(0, 2**31 - 1)
_SELECTION = Rule("each name as an argument", are_texts)


P = ParamSpec("P")
PlannerT = TypeVar("PlannerT", bound="Planner")
ResultT = TypeVar("ResultT")


class Planner(Protocol):
    """A scan of a snapshot, or of a range of snapshots."""

    @property
    def state(self) -> TableState: ...


def plans(method: Callable[Concatenate[PlannerT, P], ResultT]) -> Callable[Concatenate[PlannerT, P], ResultT]:
    """Wrap a method of a scan that plans: show its progress, and report its failures."""

    @wraps(method)
    def reporting(self: PlannerT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        state = self.state
        failing = failures_reported(state.reports, state.sessions.settings, SCAN)
        with failing, progress("Planning", state.sessions):
            return method(self, *args, **kwargs)

    return reporting


@dataclass(frozen=True)
class Scan:
    """A description of the rows to read from a table. Methods that refine it return a new scan.

    Attributes:
        state: the table.
        row_filter: a filter expression.
        selected_fields: the columns to read.
        case_sensitive: whether column names in the filter and the selection are case-sensitive.
        snapshot_id: the snapshot to read; None for the current one.
        ref: the branch or tag through which the snapshot was chosen.
        options: Iceberg's read options `split-size`, `lookback`, `file-open-cost`.
        row_limit: the maximum number of rows to read; None for all.
        table_schema: whether to read a chosen snapshot with the table's schema, as for a branch, instead of its own.
        session_branch: the branch to read if no snapshot is chosen; None for main.
        two_valued: whether the filter has the meaning of Iceberg's expressions and REST protocol, where a null
            satisfies `!=`, NOT IN and NOT LIKE, instead of SQL's.
    """

    state: TableState
    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    selected_fields: tuple[str, ...] = ALL_FIELDS
    case_sensitive: bool = True
    snapshot_id: int | None = None
    ref: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    row_limit: int | None = None
    table_schema: bool = False
    session_branch: str | None = None
    two_valued: bool = False

    # -- refining ---------------------------------------------------------------------------------------------------

    def filter(self, row_filter: str | BooleanExpression) -> Scan:
        """Return this scan with a further condition.

        Raises:
            InvalidFilterError: the filter is invalid, or fits neither the scan's schema nor another one of the table.
        """
        condition = parse_filter(row_filter)
        self._refuse_unfit(condition)
        return replace(self, row_filter=And(self.row_filter, condition))

    def select(self, *field_names: str) -> Scan:
        """Return this scan with its columns restricted to some of them.

        If the scan selects columns already, the new scan reads what both selections have in common:
        `select("s").select("s.a")` and `select("s.a").select("s")` read `s.a`.

        Args:
            field_names: full names of columns, of struct fields (`s.a`), and names of metadata columns.

        Raises:
            InvalidArgumentError: there are no names, or none is among the selected columns.
            ValidationError: a name is not a string.
        """
        _SELECTION.check("select", field_names)
        if not field_names:
            raise InvalidArgumentError("select names no column")
        if self.selected_fields == ALL_FIELDS:
            return replace(self, selected_fields=field_names)
        common = self.selected_fields if ALL_FIELDS[0] in field_names else tuple(self._common(field_names))
        if not common:
            names, selected = (", ".join(map(shown, each)) for each in (field_names, self.selected_fields))
            raise InvalidArgumentError(f"{self.state.metadata.location}: {names} is not among the columns {selected}")
        return replace(self, selected_fields=common)

    def _common(self, field_names: Iterable[str]) -> Iterator[str]:
        """Yield the names of the fields that a further selection and this scan's selection have in common."""
        key = str if self.case_sensitive else str.lower
        by_key, schema = {key(name): name for name in self.selected_fields}, self.schema()
        fields = SchemaFields(schema, self.case_sensitive)

        def path(name: str) -> list[int]:
            """Return the ids of a field and its parents; none for a name that is not a field's."""
            try:
                return [field.field_id for field in path_to(schema, fields.field_id(name))]
            except InvalidArgumentError:
                return []

        reads_all, paths = ALL_FIELDS[0] in by_key, {name: path(name) for name in self.selected_fields}
        for name in field_names:
            inner = path(name)
            is_inside = any(outer and outer[-1] in inner for outer in paths.values())
            if key(name) in by_key:
                yield by_key[key(name)]
            elif (inner and reads_all) or is_inside:
                yield name
            elif inner:
                yield from (selected for selected, outer in paths.items() if inner[-1] in outer)

    def with_case_sensitive(self, case_sensitive: bool = True) -> Scan:
        """Return this scan with case-sensitive or case-insensitive names, also for its selection and later filters."""
        return replace(self, case_sensitive=case_sensitive)

    def limit(self, rows: int) -> Scan:
        """Return this scan limited to a number of rows, whichever Spark reads first.

        Raises:
            ValidationError: `rows` is not a whole number from 0 to 2147483647.
        """
        _ROWS.check("limit", rows)
        return replace(self, row_limit=rows if self.row_limit is None else min(rows, self.row_limit))

    def use_ref(self, name: str) -> Scan:
        """Return this scan at a tag or the head of a branch. The branch main of an empty table has no rows.

        Raises:
            NoSuchSnapshotError: the table has no such ref.
            ValidationError: the scan has a snapshot already, or the name is not a string.
        """
        TEXT.check("use_ref", name)
        self._refuse_second("a ref")
        if name == MAIN_BRANCH and name not in self.state.metadata.refs:
            return replace(self, session_branch=None)
        return replace(self, ref=name, snapshot_id=self.state.metadata_ref(name).snapshot_id)

    def as_of(self, timestamp: datetime | str | int) -> Scan:
        """Return this scan at the snapshot that was current at a time.

        Args:
            timestamp: a datetime with a time zone, text such as `2026-01-31T12:00:00Z` (in UTC without a zone), or
                milliseconds since 1970.

        Raises:
            NoSuchSnapshotError: the table's snapshot log does not go back that far.
            ValidationError: the scan has a snapshot already.
        """
        self._refuse_second("a time")
        return replace(self, snapshot_id=self.state.snapshot_id_at(timestamp))

    def with_table_schema(self, table_schema: bool = True) -> Scan:
        """Return this scan with the table's schema or, if False, with the schema of its chosen snapshot."""
        return replace(self, table_schema=table_schema)

    def _refuse_unfit(self, condition: BooleanExpression) -> None:
        """Raise InvalidFilterError for a condition that can't be bound for any snapshot of the table.

        A scan may get another schema later, with its ref, time or `with_table_schema`.
        """
        if isinstance(condition, AlwaysTrue):
            return
        metadata = self.state.metadata
        try:
            schema = self.schema()
        except ValidationError:  # the metadata lacks the snapshot's schema
            schema = metadata.schema()
        try:
            self._bind(condition, schema)
        except InvalidFilterError as error:
            if not any(self._fits(condition, other) for other in metadata.schemas if other is not schema):
                raise error.with_traceback(None) from None

    def _fits(self, condition: BooleanExpression, schema: Schema) -> bool:
        try:
            self._bind(condition, schema)
        except InvalidFilterError:
            return False
        return True

    def _bind(self, condition: BooleanExpression, schema: Schema) -> BooleanExpression:
        return bind_filter(condition, schema, self.case_sensitive, transforms=True, two_valued=self.two_valued)

    def _refuse_second(self, choice: str) -> None:
        if self.snapshot_id is not None:
            raise ValidationError(f"the scan has snapshot {self.snapshot_id} already: it can't take {choice} too")

    # -- what it means ----------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """Return the snapshot to read; None for an empty table.

        Raises:
            NoSuchSnapshotError: the table does not have the scan's snapshot.
            ValidationError: `snapshot_id` is not a whole number.
        """
        if self.snapshot_id is None and self.session_branch is not None:
            return self.state.metadata.snapshot_by_name(self.session_branch)
        if self.snapshot_id is None:
            return self.state.metadata.current_snapshot()
        return snapshot_of(self.state.metadata, self.snapshot_id)

    def schema(self) -> Schema:
        """Return the scan's schema: the schema of a chosen snapshot or tag, otherwise the table's.

        See `with_table_schema`.

        Raises:
            ValidationError: the table's metadata does not have the schema of the chosen snapshot.
        """
        by_branch = self.ref is not None and self.state.metadata_ref(self.ref).snapshot_ref_type == "branch"
        if self.snapshot_id is None or by_branch or self.table_schema:
            return self.state.metadata.schema()
        return self.state.at(self.snapshot()).types.snapshot_schema

    def projection(self) -> Schema:
        """Return the schema of the rows to read, without metadata columns.

        Raises:
            InvalidArgumentError: the schema has no such column.
        """
        if ALL_FIELDS[0] in self.selected_fields:
            return self.schema()
        schema, metadata = self.schema(), set(self.metadata_columns)
        fields = SchemaFields(schema, self.case_sensitive)
        names = [name for name in self.selected_fields if self._metadata_name(name) not in metadata]
        try:
            return pruned(schema, set(map(fields.field_id, names)))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self.state.metadata.location}: {error}") from None

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The selected metadata columns: `_file`, `_pos`, `_partition`, `_spec_id`, `_deleted`, `_row_id`,
        `_last_updated_sequence_number`. A table column of the same name hides them."""
        from sparkmeta.rows.file_rows import METADATA_COLUMNS

        columns = {self._metadata_name(field.name) for field in self.schema().fields}
        names = dict.fromkeys(map(self._metadata_name, self.selected_fields))
        return tuple(name for name in names if name in METADATA_COLUMNS and name not in columns)

    def _metadata_name(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()

    @cached_property
    def plan(self) -> ScanPlan:
        """How the scan is planned, which the modules of sparkmeta share.

        Raises:
            InvalidFilterError: the filter does not fit the schema.
            InvalidArgumentError: a selected column is not in the schema.
            ValidationError: the files of a branch have another type than the schema for a column of the filter.
        """
        schema, projection = self.schema(), self.projection()
        bound = self._bind(self.row_filter, schema)
        state = self.state.at(self.snapshot())
        state = state.for_plan(referenced_ids(measured(bound, state.types.expressions)))
        scan_filter = ScanFilter(state, bound, schema)
        columns, reports = self.metadata_columns, self.state.reports
        return ScanPlan(scan_filter, self.row_filter, projection, columns, self.options, reports)

    @property
    def arrow(self) -> ArrowPlans:
        """The plans of the scan as Arrow tables in memory, without Spark if the scan opens few manifests."""
        return ArrowPlans(self)

    # -- rows -------------------------------------------------------------------------------------------------------

    @plans
    def to_df(self) -> DataFrame:
        """Return the live rows that match the filter: the selected columns, then the selected metadata columns.

        Planning runs at once (see `rows.read`); rows are read when the DataFrame runs. If `_deleted` is selected,
        deleted rows are included and flagged by it.

        Raises:
            ValidationError: metadata or deletes contradict each other.
            NotFoundError: a manifest or delete file is missing.
        """
        from sparkmeta.rows.read import read_rows

        with translated_errors():
            rows = read_rows(self.plan.rows, self.plan.choice)
        return rows if self.row_limit is None else rows.limit(self.row_limit)

    @plans
    def count(self) -> int:
        """Count the live rows that match the filter; see `rows.read`.

        Raises:
            ValidationError: as `to_df`.
        """
        from sparkmeta.rows.read import count_rows

        _ = self.plan.rows
        rows = count_rows(self.plan.choice)
        return rows if self.row_limit is None else min(rows, self.row_limit)

    @plans
    def to_arrow(self) -> pa.Table:
        """Return the rows of `to_df` as an Arrow table in memory, without Spark if they are in few small files.

        See docs/rows.md for the limits.

        Raises:
            ValidationError: as `to_df`.
        """
        from sparkmeta.rows.read import read_rows_arrow

        with translated_errors():
            return read_rows_arrow(self.plan.rows, self.plan.choice, self.row_limit)

    @plans
    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows of `to_df`, for streams of any length.

        Planning runs at once. The driver reads the files one after another, as the caller asks for batches.

        Raises:
            UnsupportedError: the driver can't open the table's files in this session.
            ValidationError: as `to_df`.
        """
        from sparkmeta.rows.read import read_rows_in_batches

        with translated_errors():
            return read_rows_in_batches(self.plan.rows, self.plan.choice, self.row_limit)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows of `to_arrow_batch_reader` by Arrow's PyCapsule interface, which many libraries accept.

        Planning runs when the first batch is read, since some libraries open a stream only for its schema.
        """
        from sparkmeta.rows.arrow_reader import row_type

        scan = self.plan.rows
        schema = arrow_schema(row_type(scan.state, scan.projection, scan.metadata_columns))

        def batches() -> Iterator[pa.RecordBatch]:
            yield from self.to_arrow_batch_reader()

        return pa.RecordBatchReader.from_batches(schema, batches()).__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the rows of `to_arrow` as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows of `to_arrow` as a polars DataFrame.

        Raises:
            UnsupportedError: polars is not installed.
        """
        from sparkmeta.rows.engines import imported

        return imported("polars", "to_polars").from_arrow(self.to_arrow())

    def to_duckdb(self, table_name: str, connection: Any = None) -> Any:
        """Return a DuckDB connection with a view of the rows, which each query reads as a stream.

        Args:
            table_name: the view's name.
            connection: the connection; by default a new one to a database in memory.

        Raises:
            UnsupportedError: DuckDB is not installed, or older than 1.5. Queries fail as `to_arrow_batch_reader` does.
            ValidationError: the name is not a string.
        """
        from sparkmeta.rows.engines import duckdb_view

        TEXT.check("table_name", table_name)
        return duckdb_view(self, table_name, connection)

    @plans
    def to_daft(self) -> Any:
        """Return a Daft DataFrame of the rows. Planning runs at once; Daft's tasks read the files when it runs.

        Raises:
            UnsupportedError: Daft is not installed, or tasks can't open the table's files.
            ValidationError: as `to_df`.
        """
        from sparkmeta.rows.engines import daft_frame

        with translated_errors():
            return daft_frame(self.plan.rows, self.plan.choice, self.row_limit)

    @plans
    def to_ray(self) -> Any:
        """Return a Ray Dataset of the rows. Planning runs at once; Ray's tasks read the files when the dataset runs.

        Raises:
            UnsupportedError: Ray is not installed, or tasks can't open the table's files.
            ValidationError: as `to_df`.
        """
        from sparkmeta.rows.engines import ray_dataset

        with translated_errors():
            return ray_dataset(self.plan.rows, self.plan.choice, self.row_limit)

    def create_temp_view(self, name: str) -> None:
        """Register the rows of `to_df` as a temporary view, replacing any of that name.

        The view shows the current state of the table; later commits do not change it.

        Raises:
            InvalidArgumentError: Spark refuses the name.
            ValidationError: the name is not a string.
        """
        register_view(self.to_df(), name, self.state.metadata.location)

    # -- plans ------------------------------------------------------------------------------------------------------

    @plans
    def plan_files(self) -> DataFrame:
        """Plan the data files to read: one row per file, with its deletes and residual filter.

        See `plan.files` for the columns. The call itself reads the manifest list and small manifests on the driver (see
        the setting `driver-manifest-bytes`). Everything else is lazy and done by Spark.
        """
        return plan_files(self.plan.choice)

    @plans
    def count_files(self) -> int:
        """Count the rows of `plan_files` without reading or checking deletes.

        Without a filter, it adds up the counts in the manifest list or root, and opens only manifests without counts,
        which v1 tables may have. With a filter, it counts the entries of manifests that may match.
        """
        return self.plan.count_files()

    def iter_files(self) -> Iterator[Row]:
        """Yield the rows of `plan_files`, for callers that need Python objects.

        Spark sends one partition at a time; the driver holds at most two.
        """
        return self.plan_files().toLocalIterator(prefetchPartitions=True)

    def plan_tasks(self) -> DataFrame:
        """Cut the planned files into splits and pack them into tasks; see `plan.tasks.plan_tasks`.

        Sizes come from the scan's options, or else from the table properties `read.split.*`. The driver packs the files
        that it plans; others are packed lazily.
        """
        return frame_of(self.plan.tasks(), self.state)

    def plan_task_json(self) -> DataFrame:
        """Return splits as File Scan Task JSON for Iceberg's libraries: one row per split in column `task`.

        The DataFrame is lazy, except for files that the driver plans.
        """
        return frame_of(self.plan.task_json(), self.state)

    @plans
    def report(self) -> ScanReport:
        """Report which files this scan reads and skips, and why.

        This plans the scan, without Spark if the scan opens few manifests.
        """
        from sparkmeta.plan.report import scan_report

        return scan_report(self.plan.choice, as_text(self.row_filter))

    def __repr__(self) -> str:
        ref = self.ref or self.session_branch
        attributes = {"row_filter": as_text(self.row_filter), "snapshot_id": self.snapshot_id, "ref": ref}
        text = ", ".join(f"{name}={value}" for name, value in attributes.items() if value is not None)
        return f"Scan({self.state.metadata.location}, {text})"

    def _repr_html_(self) -> str:
        """Describe the scan in a notebook. Runs no job."""
        return code(self)


@dataclass(frozen=True)
class ArrowPlans:
    """The plans of a scan as Arrow tables in memory, without Spark if the scan opens few manifests.

    Attributes:
        scan: the scan.
    """

    scan: Scan

    @property
    def state(self) -> TableState:
        """The table."""
        return self.scan.state

    @plans
    def plan_files(self) -> pa.Table:
        """Return the rows of `Scan.plan_files`.

        Raises:
            ValidationError: deletes contradict each other or their data files.
        """
        return plan_files_arrow(self.scan.plan.choice)

    @plans
    def plan_tasks(self) -> pa.Table:
        """Return the rows of `Scan.plan_tasks`.

        Raises:
            ValidationError: as `plan_files`.
        """
        return in_memory(self.scan.plan.tasks(), task_type(plan_schema(self.scan.plan.filter.state)))

    @plans
    def plan_task_json(self) -> pa.Table:
        """Return the rows of `Scan.plan_task_json`.

        Raises:
            ValidationError: as `plan_files`.
        """
        from pyspark.sql.types import StructType

        return in_memory(self.scan.plan.task_json(), StructType().add("task", "string"))


def register_view(rows: DataFrame, name: str, location: str) -> None:
    """Register rows of a table as a temporary view; see `Scan.create_temp_view`."""
    from pyspark.errors import AnalysisException

    TEXT.check("name", name)
    try:
        rows.createOrReplaceTempView(name)
    except AnalysisException as error:
        problem = f"{shown(name)} can't be the name of a view: {first_line(error)}"
        raise InvalidArgumentError(f"{location}: {problem}") from error


def table_scan(
    state: TableState,
    row_filter: str | BooleanExpression,
    selected_fields: tuple[str, ...],
    case_sensitive: bool,
    snapshot_id: int | None,
    options: Mapping[str, Any],
) -> Scan:
    """Return the scan that `Table.scan` starts from."""
    NAMES.check("selected_fields", selected_fields)
    OPTIONS.check("options", options)
    names = [option for option, _ in SPLIT_OPTIONS.values()]
    if unknown := sorted(options.keys() - names):
        raise ValidationError(f"options has {shown(unknown[0])}: expected {', '.join(names)}")
    settings = {key: str(value) for key, value in options.items()}
    scan = Scan(state, parse_filter(row_filter), tuple(selected_fields), case_sensitive, snapshot_id, None, settings)
    scan.snapshot()
    scan._refuse_unfit(scan.row_filter)
    return scan
