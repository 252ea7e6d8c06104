"""Leases on the maintenance of tables, so that two runs don't do the same work.

A lease is a table property that names the run and the time at which the lease ends. Without leases, two runs would do
no harm: one of them would lose its commits. The leases of a killed run end by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate

from sparkmeta.commit.attempts import commit_steps
from sparkmeta.errors import CommitConflictError
from sparkmeta.spec.updates import update_table_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.operations.table_operations import TableT
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

LEASE: Final = "sparkmeta.maintenance.lease"
"""The table property of a lease: the run, and the time at which the lease ends."""
LONGEST: Final = timedelta(days=1)
"""The longest duration of a lease. A property with a later end is no lease."""


class LeasedError(CommitConflictError):
    """Another run maintains the table."""


@dataclass(frozen=True)
class Lease:
    """The lease of a run on the tables that it maintains.

    Attributes:
        run_id: the run, without spaces.
        duration: how long a lease lasts, at most `LONGEST`. It is extended before each commit in its second half.
    """

    run_id: str
    duration: timedelta

    def take(self, table: TableT) -> TableT:
        """Take the lease of a table, or extend it, and return the table.

        Raises:
            LeasedError: another run holds the lease.
        """
        now = datetime.now(UTC)
        run_id, end = lease_of(table.metadata.properties)
        if run_id == self.run_id and end - now > self.duration / 2:
            return table
        return commit_steps(table, [_Take(self.run_id, now, now + self.duration)])

    def give_back(self, table: TableT) -> TableT:
        """End the lease of this run on a table, and return the table. A lease that has ended stays unchanged."""
        step = _GiveBack(self.run_id, datetime.now(UTC))
        return commit_steps(table, [step]) if step.has_lease(table.metadata) else table


def lease_of(properties: Mapping[str, str]) -> tuple[str, datetime]:
    """Return the run that holds the lease of a table, and its end, which has passed if there is no valid lease."""
    run_id, _, text = properties.get(LEASE, "").partition(" ")
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        return "", datetime.min.replace(tzinfo=UTC)
    return run_id, end if end.tzinfo is not None else end.replace(tzinfo=UTC)


@dataclass(frozen=True)
class _Take:
    run_id: str
    now: datetime
    end: datetime

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        metadata = state.metadata
        run_id, end = lease_of(metadata.properties)
        if run_id != self.run_id and self.now < end <= self.now + LONGEST:
            until = end.isoformat(timespec="seconds")
            raise LeasedError(f"{metadata.location}: run {run_id} maintains it until {until} ({LEASE})")
        text = f"{self.run_id} {self.end.isoformat(timespec='seconds')}"
        return update_table_metadata(metadata, (SetPropertiesUpdate(updates={LEASE: text}),))


@dataclass(frozen=True)
class _GiveBack:
    run_id: str
    now: datetime

    def has_lease(self, metadata: TableMetadata) -> bool:
        """Return whether the run holds the lease of a table."""
        run_id, end = lease_of(metadata.properties)
        return run_id == self.run_id and end > self.now

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        if not self.has_lease(state.metadata):
            return state.metadata
        return update_table_metadata(state.metadata, (RemovePropertiesUpdate(removals=[LEASE]),))
