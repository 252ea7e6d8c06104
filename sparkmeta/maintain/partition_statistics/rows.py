"""The rows of a partition statistics file, as an aggregation of entries.

    full         SELECT spec, partition, sum(live files) FROM all entries of the snapshot
    incremental  the same FROM rows of an ancestor's file UNION ALL what snapshots added UNION ALL (-) what they removed

Tasks sum entries in Arrow (`sums.py`), and one task merges the sums and writes the file. The values are those of
Iceberg's Java library. A removed file counts as an update of its partition: in a full computation as long as the
snapshot's manifests name it, in an incremental one always.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.changes.entry_changes import ADDED, CHANGE, SNAPSHOT, EntryChanges, at_most_one
from sparkmeta.entries.projection import PARTITION
from sparkmeta.errors import NoSuchSnapshotError, ValidationError
from sparkmeta.inspect.partition_statistics import rows_of_file
from sparkmeta.maintain.partition_statistics.sums import ENTRY_COLUMNS, SIGN, SUMS, UPDATER, PartitionSums
from sparkmeta.session import map_arrow
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.spec.snapshot import PartitionStatisticsFile
    from sparkmeta.state import TableState

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
    # A root has DELETED entries of its own files only; those of its leaves are masked.
    function = sums.of_all if state.tree is None else sums.of_live
    frame = state.reader.map_entries(state.manifests, state.projection(_COLUMNS), function, SUMS)
    removed = [] if state.tree is None else _removed(state)
    return at_most_one([frame, *(_changed(sums, each, F.lit(0)) for each in removed)])[0]


def _removed(state: TableState) -> list[DataFrame]:
    """Return the files that a tree's snapshot removed; none if its parent has expired and they are not known."""
    snapshot = state.snapshot
    assert snapshot is not None
    # Leaves that a compaction dropped need not be read.
    if snapshot.summary and not any(snapshot.summary.get(key) for key in _REMOVED):
        return []
    try:
        changes = changes_since(state, [snapshot])
    except (NoSuchSnapshotError, ValidationError):
        return []
    return [frame for content in _CONTENTS for frame in changes.removed(content)]


def incremental_sums(state: TableState, base: Base, changes: EntryChanges) -> DataFrame:
    """Return the sums of an ancestor, and those of the changes of later snapshots, as `SUMS`.

    Args:
        changes: `changes_since` of the base's snapshots.
    """
    sums, sign = partition_sums(state), F.when(F.col(CHANGE) == ADDED, F.lit(1)).otherwise(F.lit(-1))
    stored = map_arrow(rows_of_file(state, base.file.statistics_path), sums.of_statistics, SUMS)
    frames = (frame for content in _CONTENTS for frame in changes.of_content(content))
    return at_most_one([stored, *(_changed(sums, frame, sign) for frame in frames)])[0]


def partition_sums(state: TableState) -> PartitionSums:
    """Return the tasks that sum the table's entries."""
    by_age = sorted(state.metadata.snapshots, key=lambda each: (each.timestamp_ms, each.sequence_number or 0))
    snapshots = tuple((each.snapshot_id, each.timestamp_ms) for each in by_age)
    fields = state.types.partition_type.fields
    return PartitionSums(tuple((each.field_id, str(each.field_type)) for each in fields), snapshots)


def _changed(sums: PartitionSums, entries: DataFrame, sign: Column) -> DataFrame:
    """Return the sums of the entries that snapshots changed, by `SNAPSHOT`, as `SUMS`.

    Args:
        sign: 1 to count an entry, -1 to subtract it, 0 for an update only.
    """
    columns = (*ENTRY_COLUMNS, PARTITION, sign.alias(SIGN), F.col(SNAPSHOT).alias(UPDATER))
    return map_arrow(entries.select(*columns), sums.of_changes, SUMS)
