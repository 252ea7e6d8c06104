"""Reads of changelogs by the data source, and the plans of changes that its options choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.changes.change_plans import ChangedSnapshot, ChangePlans
from sparkmeta.changes.file_changes import snapshots_between
from sparkmeta.data_source import tables
from sparkmeta.data_source.options import CHANGELOG, whole
from sparkmeta.data_source.tables import Read
from sparkmeta.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkmeta.data_source.options import ReadOptions
    from sparkmeta.table import Table


def read_of(options: ReadOptions, table: Table) -> Read:
    """Return a read of a table or of its changelog; see `tables.read_of`."""
    return ChangelogRead(options, table) if options.table.lower() == CHANGELOG else tables.read_of(options, table)


def plans_of(options: ReadOptions, table: Table) -> ChangePlans:
    """Return the plans of a table's changes.

    Raises:
        InvalidArgumentError: an option is not for changes, or a column is not in the table.
        ValidationError: a column has the name of a changelog's column.
    """
    if options.chooses_snapshot and options.branch is None and options.ref is None:
        raise InvalidArgumentError("changes are read of a branch: snapshot-id, tag and as-of-timestamp name none")
    plans = ChangePlans(options.scan(table), options.table.lower() == CHANGELOG)
    scan = plans.scan
    if scan.ref is not None and scan.state.metadata_ref(scan.ref).snapshot_ref_type != "branch":
        raise InvalidArgumentError(f"{table.location()}: changes are read of a branch: {scan.ref} is a tag")
    plans.select(options.column_names or [field.name for field in scan.schema().fields])
    return plans


class ChangelogRead(Read):
    """A read of the changelog of a range of snapshots, as by `Table.changelog`."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        ids = {"start-snapshot-id": options.start_snapshot_id, "end-snapshot-id": options.end_snapshot_id}
        start, end = (None if text is None else whole(name, text) for name, text in ids.items())
        plans = plans_of(options, table)
        head = plans.scan.snapshot()
        if end is None and head is not None:
            end = head.snapshot_id
        self.planning = plans, start, end
        self.row_type = plans.row_type

    def select(self, columns: Sequence[str]) -> None:
        """Read only these columns."""
        plans, _, _ = self.planning
        plans.select(columns)

    def shares(self) -> list[Any]:
        plans, start, end = self.planning
        snapshots = snapshots_between(plans.scan.state.metadata, start, end)
        return plans.shares((ChangedSnapshot(snapshot), 0, None) for snapshot in snapshots)

    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:  # noqa: ARG002
        yield from share.rows()
