"""Read the rows that snapshots appended: the files that each one added, ignoring deletes and later changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sparkmeta.changes.entry_changes import SNAPSHOT, EntryChanges, at_most_one
from sparkmeta.changes.history import snapshots_between
from sparkmeta.plan.filter import data_projection, may_match
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.plan.rows import NO_DELETES, shown_deletes
from sparkmeta.rows.planned import PlannedFiles, RowPlan, plan_of_entries
from sparkmeta.rows.read import RowScan, empty_rows, rows_of
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.spec.metadata import Snapshot

_APPEND = "append"


def read_appended(scan: RowScan, from_exclusive: int | None, to_inclusive: int | None) -> DataFrame:
    """Return the rows that a range of snapshots appended.

    As in Iceberg's Java library, these are the rows of files added by snapshots of the operation `append`. Changes by
    other operations are ignored, and rows may have been deleted since. The plan runs at once.

    Args:
        scan: The rows and columns to read.
        from_exclusive: None for the whole history.
        to_inclusive: None for the current snapshot.

    Raises:
        NoSuchSnapshotError: The table does not have one of the snapshots.
        ValidationError: The first is not an ancestor of the second, or the history between them has expired.
    """
    entries = appended_entries(scan.filter, from_exclusive, to_inclusive)
    if entries is None:
        return empty_rows(scan)
    return rows_of(scan, PlannedFiles.of([plan_of_entries(entries, scan.state, SNAPSHOT)], scan.state))


def appended_entries(
    scan_filter: ScanFilter, from_exclusive: int | None, to_inclusive: int | None, columns: Iterable[str] = ()
) -> DataFrame | None:
    """Return the entries of the files that snapshots appended, without deletes; None if there are none.

    Other arguments and errors are those of `read_appended`.

    Args:
        columns: columns of entries in addition to those that planning needs.
    """
    snapshots = snapshots_between(scan_filter.state.metadata, from_exclusive, to_inclusive)
    appends = [snapshot for snapshot in snapshots if snapshot.operation == _APPEND]
    changes = entry_changes(scan_filter, appends, columns)
    return matching_without_deletes(changes.added(ContentType.DATA_MANIFEST), scan_filter)


def entry_changes(scan_filter: ScanFilter, snapshots: Iterable[Snapshot], columns: Iterable[str] = ()) -> EntryChanges:
    """Return added and removed files by snapshot, oldest first, from manifests that may list files for the filter."""
    keep = partial(matching_manifests, scan_filter=scan_filter)
    changes = EntryChanges(scan_filter.state, data_projection(scan_filter, columns=columns), keep=keep)
    for snapshot in snapshots:
        changes.add(snapshot)
    return changes


def without_deletes(entries: Sequence[DataFrame], scan_filter: ScanFilter) -> RowPlan | None:
    """Return a plan of the entries of `EntryChanges` that may match a filter, without deletes.

    Args:
        entries: data entries, with the `SNAPSHOT` that changed them.
        scan_filter: the filter.

    Returns:
        None for no entries.
    """
    matching = matching_without_deletes(entries, scan_filter)
    return None if matching is None else plan_of_entries(matching, scan_filter.state, SNAPSHOT)


def matching_without_deletes(entries: Sequence[DataFrame], scan_filter: ScanFilter) -> DataFrame | None:
    """Return the entries that may match a filter, with an empty array of deletes; None for no entries."""
    for frame in at_most_one(entries):
        return frame.where(may_match(scan_filter).text).selectExpr("*", shown_deletes(NO_DELETES))
    return None
