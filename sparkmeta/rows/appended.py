"""Rows that snapshots appended: the files that each one added, without deletes, whatever became of them since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sparkmeta.changes.history import snapshots_between
from sparkmeta.columns import sql
from sparkmeta.plan.choose import choose
from sparkmeta.plan.entries import read_entries
from sparkmeta.plan.files import planned_rows
from sparkmeta.plan.match import match_deletes
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.rows.planned import PlannedFiles, partition_column
from sparkmeta.rows.read import RowScan, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.spec.metadata import Snapshot

_APPEND = "append"
# Ids are positive.
_NO_SNAPSHOT = -1


def read_appended(scan: RowScan, from_exclusive: int | None, to_inclusive: int | None) -> DataFrame:
    """Return the rows that the snapshots after one, up to another, appended.

    As in Iceberg's Java library, these are the rows of the files that snapshots of the operation `append` added. What
    other operations changed is not looked at, and rows may have been deleted since. The plan runs at once.

    Args:
        scan: What to read.
        from_exclusive: None for the whole history.
        to_inclusive: None for the current snapshot.

    Raises:
        NoSuchSnapshotError: The table does not have one of the snapshots.
        ValidationError: The first is no ancestor of the second, or the history between them has expired.
    """
    snapshots = snapshots_between(scan.state.metadata, from_exclusive, to_inclusive)
    appends = [snapshot for snapshot in snapshots if snapshot.operation == _APPEND]
    return rows_of(scan, PlannedFiles.of(_plan_appended(scan.filter, appends), scan.state))


def _plan_appended(scan_filter: ScanFilter, snapshots: Iterable[Snapshot]) -> DataFrame:
    """Return rows of `plan_rows` for the files that snapshots added and that may hold matching rows."""
    state = scan_filter.state
    frames = [
        _plan_added(replace(scan_filter, state=state.at(snapshot)), snapshot.snapshot_id) for snapshot in snapshots
    ]
    return reduce(DataFrame.unionByName, frames or [_plan_added(scan_filter, _NO_SNAPSHOT)])


def _plan_added(scan_filter: ScanFilter, snapshot_id: int) -> DataFrame:
    pruned = prune_manifests(scan_filter)
    data = pruned.data.filter(written_by(pruned.data, snapshot_id))
    entries = read_entries(choose(replace(pruned, data=data, deletes=pruned.deletes.slice(0, 0))))
    is_new = sql.col("version_info.snapshot_id") == snapshot_id
    added = replace(entries, data=entries.data.where(is_new.text))
    return planned_rows(match_deletes(added), partition_column(scan_filter.state))


def written_by(manifests: pa.Table, snapshot_id: int) -> pa.Array:
    """Return which manifests a snapshot wrote, or may have: the root of a tree, which lists files itself, has no id."""
    writers = pc.struct_field(manifests.column("version_info"), "snapshot_id")
    return pc.fill_null(pc.equal(writers, snapshot_id), True)
