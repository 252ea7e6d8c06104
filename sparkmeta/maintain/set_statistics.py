"""Register a snapshot's statistics file in the table's metadata, replacing its previous one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate

from sparkmeta.edit.attempts import commit_steps
from sparkmeta.errors import CommitConflictError, proves_failure
from sparkmeta.spec.metadata import snapshot_of
from sparkmeta.spec.snapshot import PartitionStatisticsFile, StatisticsFile
from sparkmeta.spec.updates import update_table_metadata
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from sparkmeta.operations.base_table import TableT
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class _SetStatistics:
    """The step of the commit. The file depends only on the snapshot, so each attempt uses the same one."""

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
        named = {"partition-statistics" if is_of_partitions else "statistics": self.file.model_dump(by_alias=True)}
        return update_table_metadata(metadata, (kind.model_validate(named),))


def commit_statistics(table: TableT, file: StatisticsFile | PartitionStatisticsFile) -> TableT:
    """Register a new file and return the new table. If that fails, delete the file.

    Raises:
        CommitConflictError: the snapshot has expired.
        CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
        CommitStateUnknownError: the commit may have succeeded; the file is kept.
    """
    try:
        return commit_steps(table, [_SetStatistics(file)])
    except Exception as error:
        if proves_failure(error):
            discard(table.state.files, [file.statistics_path])
        raise


def state_of(table: TableT, snapshot_id: int | None) -> TableState:
    """Return the table's state at a snapshot, by default the current one.

    Raises:
        NoSuchSnapshotError: the table does not have the snapshot.
        ValidationError: the id is not a whole number.
    """
    if snapshot_id is None:
        return table.state
    return table.state.at(snapshot_of(table.metadata, snapshot_id))
