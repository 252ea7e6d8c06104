"""The work of `df.write` and `df.writeStream`, in processes without a session.

One process on the driver plans: it opens the table and checks the schema of the rows. Tasks write data files, by the
functions of `Table.append`, or send the rows of an upsert. Another process on the driver opens the newest version of
the table and commits what tasks report.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from sparkmeta.checks import one_of
from sparkmeta.commit.write_target import SESSION_WAP, refuse_session_wap, write_target
from sparkmeta.data_source.options import PROPERTY, SourceOptions, option
from sparkmeta.errors import (
    CommitConflictError,
    InvalidArgumentError,
    SparkmetaError,
    UnsupportedError,
    ValidationError,
    shown,
)
from sparkmeta.expr.filter_text import listed_names
from sparkmeta.operations.table_operations import refuse_read_only
from sparkmeta.session import NoSession, TaskFunction
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.summary import EPOCH, STREAM, summary_properties
from sparkmeta.storage.files import LocalFiles
from sparkmeta.storage.writing import discard
from sparkmeta.write.changes import WrittenRows
from sparkmeta.write.few_rows import arranged
from sparkmeta.write.files import data_file_tasks, refuse_transforms
from sparkmeta.write.input import check_schema
from sparkmeta.write.merge import key_names, upsert_keys
from sparkmeta.write.tasks import PROBLEM, named_on_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from pyspark.sql.types import StructType

    from sparkmeta.data_source.options import Catalogs
    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.table import Table
    from sparkmeta.write.tasks import DataFileTasks
    from sparkmeta.write.transaction import RowTransaction

_log = logging.getLogger(__name__)

# The query of a task, as Spark names it in the task's context.
_QUERY: Final = "sql.streaming.queryId"
UPSERT: Final = "upsert"
# The total number of attempts of an upsert if other commits change the rows that it was compared with.
_UPSERTS: Final = 4
DYNAMIC: Final = "dynamic"
# Maximum Arrow bytes of the rows of an upsert, which the driver holds.
MOST_UPSERTED: Final = 256 << 20


@dataclass(frozen=True)
class SinkOptions(SourceOptions):
    """The options of a write."""

    path: str = option("path", "The table, as for reads.", "")
    catalog: str | None = option("catalog", "A catalog, as for reads.")
    branch: str | None = option("branch", "The branch to commit to.")
    mode: str = option("mode", "Whether rows are appended or upserted.", "append", one_of("append", UPSERT))
    keys: str | None = option("keys", "The key columns of an upsert, with commas between them.")
    overwrite_mode: str = option(
        "overwrite-mode", "Whether to replace all rows or partitions.", "static", one_of("static", DYNAMIC)
    )
    properties: dict[str, str] = field(default_factory=dict, repr=False, metadata={"prefix": PROPERTY})
    snapshot_properties: dict[str, str] = field(default_factory=dict, metadata={"prefix": "snapshot-property."})
    _kind = " of writes"
    _example = "save"
    _ignored = ("checkpointlocation", "queryname")  # Spark passes its own options on

    def __post_init__(self) -> None:
        summary_properties(self.snapshot_properties)
        if self.keys is not None and self.mode != UPSERT:
            raise InvalidArgumentError(f"keys is {shown(self.keys)}, which is for the mode {UPSERT}")

    @property
    def key_columns(self) -> list[str] | None:
        """The key columns of an upsert; None for the schema's identifier fields."""
        return None if self.keys is None else listed_names(self.keys)


# -- What tasks do ----------------------------------------------------------------------------------------------------


@dataclass
class Report(WriterCommitMessage):
    """What a task reports.

    Attributes:
        table: the id of the table.
        conf: the parts of the session's configuration that the task knows, and the query.
        rows: descriptions of its data files; or the rows of an upsert, None if there are none.
        writer: the writer of its data files, whose names contain `name`; None for an upsert.
        name: the common part of the names of all data files of the write.
        problem: why its rows can't be written; it has deleted its files then.
    """

    table: UUID | None
    conf: dict[str, str]
    rows: pa.Table | None
    writer: ExecutorWriter | None = None
    name: str = ""
    problem: SparkmetaError | None = None

    def discard(self) -> None:
        """Delete the data files."""
        if self.writer is not None and self.rows is not None:
            discard(self.writer, self.rows.column("file_path").to_pylist())


@dataclass(frozen=True)
class SinkTasks:
    """Writes the rows of a task, in another process.

    Attributes:
        state: the table, without its snapshots.
        names: the columns of the rows.
        files: writes the data files; None if the rows are sent to the driver.
    """

    state: TableState
    names: tuple[str, ...]
    files: DataFileTasks | None

    @staticmethod
    def of(options: SinkOptions, table: Table, schema: StructType, *, overwrites: bool) -> SinkTasks:
        """Check a write before anything is written.

        Raises:
            ValidationError: the rows don't fit the table, or an option does not.
            UnsupportedError: the table can't be committed to, or has a type, transform or format that can't be written.
        """
        metadata, location = table.metadata, table.location()
        refuse_read_only(table)
        table.transaction().update_snapshot(options.branch, options.snapshot_properties)
        write_target(table.state, options.branch).head(table.state)
        check_schema(schema, metadata.schema(), location)
        if options.mode == UPSERT and overwrites:
            raise ValidationError(f"{location}: mode is {UPSERT}, which replaces rows by keys: expected append")
        if options.mode == UPSERT:
            if options.keys is None and not metadata.schema().identifier_field_ids:
                raise ValidationError(f"{location}: keys is missing, and the schema names no identifier fields")
            keys = upsert_keys(options.key_columns, metadata.schema(), location)
            key_names(keys, schema.names, metadata.schema(), location)
        elif overwrites and options.overwrite_mode == DYNAMIC and metadata.spec().is_unpartitioned():
            raise ValidationError(f"{location}: overwrite-mode is {DYNAMIC}, and the table has no partitions")
        refuse_transforms(table.state, metadata.sort_order())
        files = None if options.mode == UPSERT else data_file_tasks(table.state, metadata.schema())
        return SinkTasks(_without_history(table), tuple(schema.names), files)

    def report(self, batches: Iterable[pa.RecordBatch]) -> Report:
        """Write the rows of a task, or collect them for an upsert."""
        function = TaskFunction(self._limited if self.files is None else self._written, [*self.names])
        table, conf = self.state.metadata.table_uuid, _conf()
        if self.files is None:
            try:
                rows = [*function(batches)]
            except UnsupportedError as error:  # raised by the driver, since Spark repeats tasks that raise errors
                return Report(table, conf, None, problem=error)
            return Report(table, conf, pa.Table.from_batches(rows) if rows else None)
        files = pa.Table.from_batches(function(batches), self.files.result_schema)
        problems = [ValidationError(text) for text in files.column(PROBLEM).drop_null().to_pylist()]
        written = files.filter(files.column(PROBLEM).is_null()).drop_columns([PROBLEM])
        return Report(table, conf, written, self.files.writer, self.files.name, next(iter(problems), None))

    @property
    def _table(self) -> str:
        return self.state.metadata.location

    def _written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.files is not None
        with named_on_failure(self._table, f"*-{self.files.name}-*"):
            yield from self.files.write_apart(map(self._arranged, self._groups(batches)))

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yield groups of rows that go to separate files: all rows, or as many as are sorted in memory."""
        assert self.files is not None
        if not self.state.metadata.sort_order().fields:
            yield batches
            return
        group, size = [], 0
        for batch in batches:
            group.append(batch)
            size += batch.nbytes
            if size >= self.files.options.shuffled_bytes:
                yield pa.Table.from_batches(group).combine_chunks().to_batches()
                group, size = [], 0
        if group:
            yield pa.Table.from_batches(group).combine_chunks().to_batches()

    def _arranged(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with their partition values, each batch in the sort order."""
        assert self.files is not None
        metadata = self.state.metadata
        schema, order = metadata.schema(), metadata.sort_order().fields
        for batch in batches:
            rows = arranged(pa.Table.from_batches([batch]), self.state, self.files.columns, schema, order)
            yield from rows.to_batches()

    def _limited(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size = 0
        for batch in batches:
            size += batch.nbytes
            refuse_many(size, self._table)
            yield batch


def refuse_many(size: int, table: str) -> None:
    """Raise UnsupportedError for rows of an upsert that are too large for the driver."""
    if size > MOST_UPSERTED:
        problem = (
            f"the rows of an upsert have more than {MOST_UPSERTED >> 20} MiB in Arrow, the most that a write takes"
        )
        raise UnsupportedError(f"{table}: {problem}: use table.upsert(df, ...), in foreachBatch for a stream")


def _conf() -> dict[str, str]:
    """Return what the task's context contains about the query and the session."""
    context = TaskContext.get()
    values = {name: context and context.getLocalProperty(name) for name in (_QUERY, *SESSION_WAP)}
    return {name: value for name, value in values.items() if value}


def _without_history(table: Table) -> TableState:
    """Return the table without the parts that grow with each commit. No files are opened through it."""
    history = ("snapshots", "snapshot_log", "metadata_log", "statistics", "partition_statistics")
    without: dict[str, Any] = {"refs": {}, "current_snapshot_id": None} | {name: [] for name in history}
    return TableState(NoSession(), LocalFiles(), table.metadata.model_copy(update=without), None)


# -- What the driver commits ------------------------------------------------------------------------------------------


@dataclass
class Sink:
    """A write: `tasks` when it is planned, and `commit` or `abort` at its end.

    Attributes:
        options: its options.
        catalogs: the catalogs of Spark's configuration.
        schema: the type of the rows.
        overwrites: whether the rows replace others.
    """

    options: SinkOptions
    catalogs: Catalogs = field(repr=False)
    schema: StructType
    overwrites: bool

    @cached_property
    def tasks(self) -> SinkTasks:
        """What tasks do, for the newest version of the table; see `SinkTasks.of`."""
        return SinkTasks.of(self.options, self.options.open(self.catalogs), self.schema, overwrites=self.overwrites)

    def commit(self, reports: Sequence[Report | None], epoch: int | None = None) -> None:
        """Commit what tasks report.

        Args:
            reports: the reports of all tasks.
            epoch: the batch of a stream, which is committed once.

        Raises:
            SparkmetaError: see `Table.append` and `Table.upsert`. Data files are deleted, unless they may be committed.
        """
        ended = [report for report in reports if report is not None]
        for more in reversed(range(_UPSERTS if self.options.mode == UPSERT else 1)):
            try:
                self._commit(ended, epoch)
            except CommitConflictError:
                if not more:
                    raise
                _log.info(
                    "%s: other commits have changed what was compared: the upsert is made again", self.options.path
                )
            else:
                return

    def _commit(self, reports: Sequence[Report], epoch: int | None) -> None:
        try:
            transaction = self._changed(reports, epoch)
        except BaseException:
            _discard(reports)
            raise
        if transaction is not None:
            if transaction.repetition_of is not None:
                _discard(reports)
            transaction.commit()

    def abort(self, reports: Sequence[Report | None]) -> None:
        """Delete the data files of tasks, unless all have ended: then a commit has begun, which deletes what it can."""
        if None not in reports or self.options.mode == UPSERT:
            return
        ended = [report for report in reports if report is not None]
        _discard(ended)
        names = {report.name for report in ended}
        # The copy of the sink that ends a batch of a stream has not planned the batch.
        if (planned := vars(self).get("tasks")) is not None:
            names.add(planned.files.name)
        pattern = ", ".join(f"*-{name}-*" for name in sorted(names)) or "like the files of the table"
        _log.warning("%s: files named %s may be left of tasks that did not end", self.options.path, pattern)

    def _changed(self, reports: Sequence[Report], epoch: int | None) -> RowTransaction[Table] | None:
        """Return the transaction with the change; None if there is nothing to change."""
        for problem in (report.problem for report in reports if report.problem is not None):
            raise problem
        parts = [report.rows for report in reports if report.rows is not None]
        rows = pa.concat_tables(parts) if parts else None
        # An empty batch stays empty when it is repeated.
        if rows is None or (epoch is not None and not len(rows) and not self.overwrites):
            return None
        table, conf = self.options.open(self.catalogs), reports[0].conf
        if table.metadata.table_uuid != reports[0].table:
            raise ValidationError(f"{table.location()}: another table has replaced it since the write began")
        refuse_session_wap(table.metadata, conf, self.options.branch)
        properties = self.options.snapshot_properties | ({} if epoch is None else _epoch(conf, epoch))
        transaction, branch = table.transaction(), self.options.branch
        if self.options.mode == UPSERT:
            refuse_many(rows.nbytes, table.location())
            return transaction._upsert_few(rows, self.options.key_columns, branch, properties)
        written = WrittenRows(rows)
        if not self.overwrites:
            return transaction.append(written, branch=branch, snapshot_properties=properties)
        if self.options.overwrite_mode == DYNAMIC:
            return transaction.dynamic_partition_overwrite(written, branch=branch, snapshot_properties=properties)
        return transaction.overwrite(written, branch=branch, snapshot_properties=properties)


def _discard(reports: Iterable[Report]) -> None:
    for report in reports:
        report.discard()


def _epoch(conf: Mapping[str, str], epoch: int) -> dict[str, str]:
    """Return the properties that make the snapshot of a batch the only one of its epoch."""
    if _QUERY not in conf:
        raise UnsupportedError("this Spark does not tell tasks which query they belong to: write by foreachBatch")
    return {STREAM: conf[_QUERY], EPOCH: str(epoch)}
