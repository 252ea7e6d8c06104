"""Count the distinct values of a snapshot's columns, and register statistics files."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate
from pyiceberg.types import PrimitiveType

from sparkmeta.changes.changelog import fields_of_rows
from sparkmeta.checks import Options, Rule, are_texts, option
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.errors import (
    CommitConflictError,
    UnsupportedError,
    ValidationError,
    hint_at,
    proves_failure,
    shown,
    translated_errors,
)
from sparkmeta.maintain.plans import SnapshotPlan, SnapshotPlanSummary
from sparkmeta.maintain.sketches import SKETCH_SCHEMA, ColumnSketches, merge_sketches
from sparkmeta.operations.table_operations import TableT, metadata_folder, refuse_read_only
from sparkmeta.plan.choose import choose
from sparkmeta.plan.files import count_files, plan_files
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.progress import planning
from sparkmeta.rows.read import RowScan, read_rows
from sparkmeta.session import map_arrow
from sparkmeta.spec.metadata import refuse_encrypted, snapshot_of
from sparkmeta.spec.metadata_model import PartitionStatisticsFile, StatisticsFile
from sparkmeta.spec.puffin import BLOB_TYPE, NDV, Blob, PuffinFile, ThetaSketch, write_puffin
from sparkmeta.spec.schema import pruned
from sparkmeta.spec.updates import update_table_metadata
from sparkmeta.storage.location import join
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata


# -- Register a snapshot's statistics file ----------------------------------------------------------------------------
# The file replaces the snapshot's previous statistics file in the table's metadata.


@dataclass(frozen=True)
class _SetStatistics:
    """The step of the commit. The file depends only on the snapshot, so all attempts use the same file."""

    file: StatisticsFile | PartitionStatisticsFile

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        metadata, snapshot_id = state.metadata, self.file.snapshot_id
        if metadata.snapshot_by_id(snapshot_id) is None:
            raise CommitConflictError(
                f"{metadata.location}: snapshot {snapshot_id} has expired: it can't get statistics"
            )
        is_of_partitions = isinstance(self.file, PartitionStatisticsFile)
        kind = SetPartitionStatisticsUpdate if is_of_partitions else SetStatisticsUpdate
        named = {"partition-statistics" if is_of_partitions else "statistics": self.file}
        return update_table_metadata(metadata, (kind.model_validate(named),))


@dataclass(frozen=True)
class StatisticsPlan(SnapshotPlan[TableT]):
    """A plan to compute statistics of a snapshot, carried out by `commit`.

    The file is written once, even if other commits come first. `commit` raises CommitConflictError if the snapshot has
    expired.
    """

    _figures: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @abstractmethod
    def _write(self) -> tuple[StatisticsFile | PartitionStatisticsFile, dict[str, Any]] | None:
        """Compute the statistics and write the file; return None if there are none to compute.

        Returns:
            The file, and its figures for `result`.
        """

    def _commit(self) -> TableT:
        written = self._write()
        if written is None:
            return self.table
        file, figures = written
        try:
            table = commit_steps(self.table, [_SetStatistics(file)])
        except Exception as error:
            if proves_failure(error):
                discard(self._state.files, [file.statistics_path])
            raise
        size = file.file_size_in_bytes
        self._figures.update(statistics_path=file.statistics_path, file_size_in_bytes=size, **figures)
        return table

    def _outcome(self) -> dict[str, Any] | None:
        outcome = super()._outcome()
        return outcome | self._figures if outcome and self._figures else None


@dataclass(frozen=True)
class SnapshotOptions(Options):
    """The options of operations on one snapshot."""

    snapshot_id: int | None = option(None, "the snapshot. Defaults to the current one.")


def state_of(table: TableT, snapshot_id: int | None) -> TableState:
    """Return the table's state at a snapshot, by default the current one.

    Raises:
        NoSuchSnapshotError: the table does not have the snapshot.
        ValidationError: the id is not a whole number.
    """
    if snapshot_id is None:
        return table.state
    return table.state.at(snapshot_of(table.metadata, snapshot_id))


# -- The plan to count distinct values --------------------------------------------------------------------------------


# Primitive types whose values Spark can't return.
_UNSUPPORTED = ("unknown", "geometry", "geography", "variant")


@dataclass(frozen=True)
class TableStatsSummary(SnapshotPlanSummary):
    """The snapshot and columns that statistics are computed for; `str` formats them.

    Attributes:
        columns: the names of the columns.
        data_files: the number of data files that are read.
        is_current: whether the snapshot already has sketches of all these columns. A commit replaces them.
    """

    columns: tuple[str, ...]
    data_files: int
    is_current: bool

    @property
    def is_empty(self) -> bool:
        return self.snapshot_id is None

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return f"{self.table}: the table is empty"
        listed = ", ".join(self.columns)
        return (
            f"{self.table}: distinct values of {len(self.columns)} columns in {self.data_files} data files of snapshot "
            f"{self.snapshot_id} are counted\n  {listed}"
        )


@dataclass(frozen=True)
class TableStatsPlan(StatisticsPlan[TableT]):
    """A plan to compute table statistics, carried out by `commit`."""

    _doing = "Computing statistics"

    _columns: dict[str, int]

    def to_df(self) -> DataFrame:
        """Return a row for each data file that is read, with the columns of `Scan.plan_files`, lazily."""
        return plan_files(choose(prune_manifests(self._filter)))

    @planning
    def summary(self) -> TableStatsSummary:
        """Return the plan in numbers, without a job if manifests have counts."""
        snapshot_id = self._snapshot_id
        data_files = count_files(prune_manifests(self._filter))
        is_current = self._sketched(snapshot_id) >= {(field_id,) for field_id in self._columns.values()}
        return TableStatsSummary(self.table.full_name, snapshot_id, tuple(self._columns), data_files, is_current)

    def _sketched(self, snapshot_id: int | None) -> set[tuple[int, ...]]:
        """Return the ids of the columns for which a snapshot has sketches."""
        files = (file for file in self.table.metadata.statistics if file.snapshot_id == snapshot_id)
        blobs = (blob for file in files for blob in file.blob_metadata if blob.snapshot_id == snapshot_id)
        return {tuple(blob.fields) for blob in blobs if blob.type == BLOB_TYPE}

    @property
    def _schema(self) -> Schema:
        return self._state.types.snapshot_schema

    @property
    def _filter(self) -> ScanFilter:
        return ScanFilter(self._state, AlwaysTrue(), self._schema)

    def sketches(self) -> DataFrame:
        """Return a row for each column: field_id int, sketch binary (a compact theta sketch). Plans the scan.

        Tasks sketch the rows that they read; other tasks merge the sketches of each column.

        Raises:
            ValidationError: metadata or deletes contradict each other.
        """
        projection = pruned(self._schema, set(self._columns.values()))
        rows = read_rows(RowScan(self._filter, projection), choose(prune_manifests(self._filter)))
        fields = fields_of_rows(projection)
        named = rows.toDF(*(f"c{index}" for index in range(len(projection.fields))))
        values = named.select(
            *(fields[field_id].alias(f"value_{field_id}").column() for field_id in self._columns.values())
        )
        parts = map_arrow(values, ColumnSketches(tuple(self._columns.values())).sketch, SKETCH_SCHEMA)
        return map_arrow(parts.repartition("field_id"), merge_sketches, SKETCH_SCHEMA)

    def _write(self) -> tuple[StatisticsFile, dict[str, Any]] | None:
        snapshot = self._state.snapshot
        if snapshot is None:
            return None
        with translated_errors():
            rows = self.sketches().toArrow().to_pylist()
        sketches = {row["field_id"]: ThetaSketch.from_bytes(row["sketch"]) for row in rows}
        # No task ran if the snapshot has no rows.
        empty = ThetaSketch()
        blobs = [_blob(snapshot, field_id, sketches.get(field_id, empty)) for field_id in self._columns.values()]
        puffin = write_puffin(blobs)
        name = f"{snapshot.snapshot_id}-{uuid.uuid4()}.stats"
        location = join(metadata_folder(self._state.metadata), name)
        self._state.files.write_new(location, puffin.data)
        distinct = {name: int(sketches.get(field_id, empty).estimate) for name, field_id in self._columns.items()}
        return _statistics_file(snapshot, location, puffin), {"distinct_values": distinct}


def _blob(snapshot: Snapshot, field_id: int, sketch: ThetaSketch) -> Blob:
    properties = {NDV: str(int(sketch.estimate))}
    numbers = snapshot.snapshot_id, snapshot.sequence_number or 0
    return Blob(BLOB_TYPE, sketch.to_bytes(), (field_id,), *numbers, compression_codec="zstd", properties=properties)


def _statistics_file(snapshot: Snapshot, location: str, puffin: PuffinFile) -> StatisticsFile:
    blobs = [
        {
            "type": blob.type,
            "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number,
            "fields": list(blob.fields),
            "properties": blob.properties,
        }
        for blob in puffin.blobs
    ]
    fields = {
        "snapshot-id": snapshot.snapshot_id,
        "statistics-path": location,
        "file-size-in-bytes": len(puffin.data),
        "file-footer-size-in-bytes": puffin.footer_size,
        "blob-metadata": blobs,
    }
    return StatisticsFile.model_validate(fields)


_NAMES = Rule("the names of columns", lambda value: are_texts(value) and len(value) > 0)


@dataclass(frozen=True)
class TableStatsOptions(SnapshotOptions):
    """See `Maintenance.compute_table_stats`."""

    columns: Sequence[str] | None = option(
        None,
        "names of columns in the snapshot's schema, with dots for struct fields. Defaults to all top-level columns of "
        "primitive types.",
        _NAMES,
    )


def plan_table_stats(table: TableT, options: TableStatsOptions) -> TableStatsPlan[TableT]:
    """See `Maintenance.compute_table_stats`."""
    options.check()
    state = state_of(table, options.snapshot_id)
    refuse_encrypted(table.metadata, "and statistics files can't be")
    refuse_read_only(table)
    return TableStatsPlan(table, state, _chosen(state, options.columns))


def _chosen(state: TableState, columns: Sequence[str] | None) -> dict[str, int]:
    """Return the ids of columns by name; by default, of the top-level columns of primitive types."""
    schema, location = state.types.snapshot_schema, state.metadata.location
    if columns is None:
        chosen = {field.name: field.field_id for field in schema.fields if _is_countable(field.field_type)}
        if not chosen:
            raise ValidationError(f"{location}: no column has a type whose distinct values can be counted")
        return chosen
    chosen = {}
    for name in columns:
        try:
            column = schema.find_field(name)
        except ValueError as error:
            problem = f"no column {shown(name)} in the schema{hint_at(name, schema.column_names)}"
            raise ValidationError(f"{location}: {problem}") from error
        if not _is_countable(column.field_type):
            raise UnsupportedError(
                f"{location}: column {name} is of type {column.field_type}: it has no distinct values"
            )
        if column.field_id not in fields_of_rows(schema):
            raise UnsupportedError(f"{location}: column {name} is in a list or map: its values can't be counted")
        chosen[name] = column.field_id
    return chosen


def _is_countable(kind: Any) -> bool:
    return isinstance(kind, PrimitiveType) and not str(kind).startswith(_UNSUPPORTED)
