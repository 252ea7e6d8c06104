"""Compute the partition statistics of a snapshot, and commit them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import StructType
from pyspark.sql import functions as F

from sparkmeta.changes.file_changes import ADDED, CHANGE, SNAPSHOT, EntryChanges
from sparkmeta.checks import option
from sparkmeta.entries.projection import PARTITION
from sparkmeta.entries.relation import at_most_one, frame_of
from sparkmeta.errors import NoSuchSnapshotError, NotFoundError, UnsupportedError, ValidationError, translated_errors
from sparkmeta.inspect.files import refuse_unknown_transforms
from sparkmeta.inspect.partition_statistics import rows_of_file, statistics_file, statistics_schema
from sparkmeta.maintain.partition_statistics_tasks import (
    ENTRY_COLUMNS,
    SIGN,
    SUMS,
    UPDATER,
    WRITTEN,
    PartitionSums,
    StatisticsWriter,
)
from sparkmeta.maintain.plans import SnapshotPlanSummary
from sparkmeta.maintain.rewrite_manifests import public_manifests
from sparkmeta.maintain.table_statistics import SnapshotOptions, StatisticsPlan, state_of
from sparkmeta.operations.table_operations import TableT, metadata_folder, refuse_read_only
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.avro_name import avro_name
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import ancestors_of, refuse_encrypted
from sparkmeta.spec.metadata_model import PartitionStatisticsFile
from sparkmeta.storage.files import executor_writer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot


# -- The rows of a partition statistics file --------------------------------------------------------------------------
# - full: SELECT spec, partition, sum(live files) FROM all entries of the snapshot
# - incremental: the same FROM the rows of an ancestor's file UNION ALL added entries UNION ALL (-) removed entries
#
# Tasks sum entries in Arrow, and one task merges the sums and writes the file. The values are the same as from
# Iceberg's Java library. A removed file counts as an update of its partition: in a full computation as long as the
# snapshot's manifests name it, in an incremental computation always.


_COLUMNS = ("version_info", *ENTRY_COLUMNS)
# Keys of summaries of snapshots that removed files.
_REMOVED = ("deleted-data-files", "removed-delete-files")
_CONTENTS = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)


@dataclass(frozen=True)
class Base:
    """The start of an incremental computation.

    Attributes:
        file: the statistics file of an ancestor.
        snapshots: the snapshots since that ancestor, oldest first.
    """

    file: PartitionStatisticsFile
    snapshots: tuple[Snapshot, ...]


def changes_since(state: TableState, snapshots: Iterable[Snapshot]) -> EntryChanges:
    """Return the entries that snapshots added and removed. Reads their manifest lists, or roots."""
    changes = EntryChanges(state, state.projection(_COLUMNS))
    for snapshot in snapshots:
        changes.add(snapshot)
    return changes


def full_sums(state: TableState) -> DataFrame:
    """Return the sums of the snapshot's entries, as `SUMS`."""
    sums = partition_sums(state)
    # A root has DELETED entries of its own files only. Removed entries of its leaves are masked.
    function = sums.of_all if state.tree is None else sums.of_live
    frame = state.reader.map_entries(state.manifests, state.projection(_COLUMNS), function, SUMS)
    removed = [] if state.tree is None else _removed(state)
    return at_most_one([frame, *(_changed(sums, removed_files, F.lit(0)) for removed_files in removed)])[0]


def _removed(state: TableState) -> list[DataFrame]:
    """Return the files that a tree's snapshot removed; none if they are unknown because its parent has expired."""
    snapshot = state.snapshot
    assert snapshot is not None
    # Leaves that a compaction dropped need not be read.
    if snapshot.summary and not any(snapshot.summary.get(key) for key in _REMOVED):
        return []
    try:
        changes = changes_since(state, [snapshot])
    except (NoSuchSnapshotError, ValidationError):
        return []
    return [frame_of(rows, state) for content in _CONTENTS for rows in changes.removed(content)]


def incremental_sums(state: TableState, base: Base, changes: EntryChanges) -> DataFrame:
    """Return the sums of an ancestor, and the sums of later snapshots' changes, as `SUMS`.

    Args:
        changes: `changes_since` of the base's snapshots.
    """
    sums, sign = partition_sums(state), F.when(F.col(CHANGE) == ADDED, F.lit(1)).otherwise(F.lit(-1))
    stored = map_arrow(rows_of_file(state, base.file.statistics_path), sums.of_statistics, SUMS)
    frames = (frame for content in _CONTENTS for frame in changes.of_content(content))
    return at_most_one([stored, *(_changed(sums, frame, sign) for frame in frames)])[0]


def partition_sums(state: TableState) -> PartitionSums:
    """Return the tasks that sum the table's entries."""
    by_age = sorted(
        state.metadata.snapshots, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.sequence_number or 0)
    )
    snapshots = tuple((snapshot.snapshot_id, snapshot.timestamp_ms) for snapshot in by_age)
    fields = state.types.partition_type.fields
    return PartitionSums(tuple((field.field_id, str(field.field_type)) for field in fields), snapshots)


def _changed(sums: PartitionSums, entries: DataFrame, sign: Column) -> DataFrame:
    """Return the sums of the entries that snapshots changed, by `SNAPSHOT`, as `SUMS`.

    Args:
        sign: 1 to count an entry, -1 to subtract it, 0 for an update only.
    """
    columns = (*ENTRY_COLUMNS, PARTITION, sign.alias(SIGN), F.col(SNAPSHOT).alias(UPDATER))
    return map_arrow(entries.select(*columns), sums.of_changes, SUMS)


# -- The plan to compute partition statistics -------------------------------------------------------------------------


FULL, INCREMENTAL, NONE = "full", "incremental", "none"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartitionStatsSummary(SnapshotPlanSummary):
    """The computation of a snapshot's statistics in numbers; `str` formats it.

    Attributes:
        method: `full`, from all entries; `incremental`, from an ancestor's statistics and later changes; `none` if the
            snapshot has statistics.
        base_snapshot_id: the ancestor, or the snapshot itself if it has statistics.
        snapshots: the number of snapshots since the ancestor.
        manifests: the number of manifests to read, including a tree's root.
        bytes: the bytes of these manifests.
    """

    method: str
    base_snapshot_id: int | None
    snapshots: int
    manifests: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        return self.method == NONE

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return f"{self.table}: the table is empty"
        if self.is_empty:
            return f"{self.table}: snapshot {self.snapshot_id} has partition statistics"
        since = f", from the statistics of snapshot {self.base_snapshot_id} and the {self.snapshots} snapshots since"
        text = f"partition statistics of snapshot {self.snapshot_id} are computed"
        return (
            f"{self.table}: {text}{since if self.method == INCREMENTAL else ' in full'}\n"
            f"  {self.manifests} manifests with {self.bytes} bytes are read"
        )


@dataclass(frozen=True)
class PartitionStatsPlan(StatisticsPlan[TableT]):
    """A plan to compute partition statistics, carried out by `commit`.

    A task merges the sums of other tasks, and writes one Parquet file, sorted by partition. If an ancestor's file can't
    be read, the statistics are computed in full.
    """

    _doing = "Computing statistics"

    _method: str
    _base: Base | None

    @cached_property
    def _changes(self) -> EntryChanges:
        assert self._base is not None
        return changes_since(self._state, self._base.snapshots)

    @cached_property
    def _manifests(self) -> pa.Table:
        if self._method == NONE:
            return self._state.manifests.slice(0, 0)
        return self._changes.manifests() if self._method == INCREMENTAL else self._state.manifests

    def to_df(self) -> DataFrame:
        """Return a row for each manifest that is read, without a job. Reads manifest lists or roots.

        Columns: content ("data", "deletes"), file_path, file_size_in_bytes.
        """
        return local_frame(self._state.spark, public_manifests(self._manifests))

    def summary(self) -> PartitionStatsSummary:
        """Return the plan in numbers, without a job. Reads manifest lists or roots."""
        sizes = self._manifests.column("file_size_in_bytes").to_pylist()
        base_id = self._base.file.snapshot_id if self._base is not None else None
        return PartitionStatsSummary(
            table=self.table.full_name,
            snapshot_id=self._snapshot_id,
            method=self._method,
            base_snapshot_id=base_id,
            snapshots=len(self._base.snapshots) if self._base is not None else 0,
            manifests=len(sizes),
            bytes=sum(size or 0 for size in sizes),
        )

    def _write(self) -> tuple[PartitionStatisticsFile, dict[str, Any]] | None:
        if self._method == NONE:
            return None
        if self._method == INCREMENTAL:
            assert self._base is not None
            path = self._base.file.statistics_path
            try:
                with translated_errors():
                    return self._write_sums(incremental_sums(self._state, self._base, self._changes), INCREMENTAL, path)
            except (ValidationError, NotFoundError) as error:
                if path not in str(error):
                    raise
                _log.warning("%s: computing all partition statistics: %s", self.table.full_name, error)
        with translated_errors():
            return self._write_sums(full_sums(self._state), FULL, None)

    def _write_sums(
        self, sums: DataFrame, method: str, base: str | None
    ) -> tuple[PartitionStatisticsFile, dict[str, Any]] | None:
        state = self._state
        assert state.snapshot is not None
        snapshot_id = state.snapshot.snapshot_id
        writer = StatisticsWriter(
            executor_writer(state.files),
            partition_sums(state),
            metadata_folder(state.metadata),
            f"partition-stats-{snapshot_id}",
            _file_schema(state),
            base,
        )
        for file in map_arrow(sums.repartition(1), writer.write, WRITTEN).toArrow().to_pylist():
            fields = {
                "snapshot-id": snapshot_id,
                "statistics-path": file["location"],
                "file-size-in-bytes": file["length"],
            }
            figures = {"partitions": file["partitions"], "method": method}
            return PartitionStatisticsFile.model_validate(fields), figures
        return None


def _file_schema(state: TableState) -> pa.Schema:
    """Return the file's schema. Partition fields have their names in Avro, as in Java's files."""
    partition, *columns = statistics_schema(state).fields
    fields = (field.model_copy(update={"name": avro_name(field.name)}) for field in state.types.partition_type.fields)
    partition = partition.model_copy(update={"field_type": StructType(*fields)})
    return schema_to_pyarrow(Schema(partition, *columns))


@dataclass(frozen=True)
class PartitionStatsOptions(SnapshotOptions):
    """See `Maintenance.compute_partition_stats`."""

    _: KW_ONLY
    full: bool = option(
        False, "compute everything from the snapshot's entries and replace the snapshot's file, if any."
    )


def plan_partition_stats(table: TableT, options: PartitionStatsOptions) -> PartitionStatsPlan[TableT]:
    """See `Maintenance.compute_partition_stats`."""
    options.check()
    state = state_of(table, options.snapshot_id)
    statistics_schema(state)
    refuse_unknown_transforms(state)
    _refuse_shared_ids(state)
    refuse_encrypted(table.metadata, "and statistics files can't be")
    refuse_read_only(table)
    task_reader(state)
    if state.snapshot is None:
        return PartitionStatsPlan(table, state, NONE, None)
    base = None if options.full else _newest_base(state)
    if base is None:
        return PartitionStatsPlan(table, state, FULL, None)
    return PartitionStatsPlan(table, state, INCREMENTAL if base.snapshots else NONE, base)


def _refuse_shared_ids(state: TableState) -> None:
    """Refuse tables whose partition specs use a field id for different fields, as old tables of version 1 may."""
    for spec_id, pairs in state.types.partition_ids:
        for field_id, unique_id in pairs:
            if field_id != unique_id:
                raise UnsupportedError(
                    f"{state.metadata.location}: partition field id {field_id} of spec {spec_id} is another field in "
                    "another spec: partition statistics can't tell them apart"
                )


def _newest_base(state: TableState) -> Base | None:
    """Return the statistics of the snapshot, or of its nearest ancestor with any; None if there are none."""
    assert state.snapshot is not None
    since: list[Snapshot] = []
    for snapshot in ancestors_of(state.metadata, state.snapshot.snapshot_id):
        file = statistics_file(state.metadata, snapshot.snapshot_id)
        if file is not None:
            return Base(file, tuple(reversed(since)))
        since.append(snapshot)
    return None
