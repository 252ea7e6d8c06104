"""The target of a write: a branch, or a staged snapshot that is on no branch until it is published.

A session writes to tables with the property `write.wap.enabled` (write, audit, publish) as Iceberg's Spark writer does:
with `spark.wap.branch`, it writes to this branch and reads it; with `spark.wap.id`, it stages a snapshot with this id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH

from sparkmeta.checks import NAME
from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.settings import setting
from sparkmeta.spec.metadata import ancestors_of
from sparkmeta.spec.summary import summary_of
from sparkmeta.spec.table_properties import flag_property

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata

WAP_ID, PUBLISHED_WAP_ID = "wap.id", "published-wap-id"
_ENABLED = "write.wap.enabled"
_SESSION_ID, _SESSION_BRANCH = SESSION_WAP = ("spark.wap.id", "spark.wap.branch")


@dataclass(frozen=True)
class WriteTarget:
    """Where the snapshot of a write goes.

    Attributes:
        branch: the branch. A staged snapshot is based on its head and does not move it.
        wap_id: the id of a staged snapshot; None if the branch moves.
        creates: whether the write creates the branch, at the head of main, if it does not exist.
    """

    branch: str
    wap_id: str | None = None
    creates: bool = False

    def head(self, state: TableState) -> TableState:
        """Return the table at the snapshot that the write continues.

        Raises:
            ValidationError: the branch does not exist and is not created, or is a tag.
        """
        from sparkmeta.commit.new_snapshot import branch_head  # readers of tables don't import commit code

        return branch_head(state, self._base(state.metadata))

    def head_id(self, metadata: TableMetadata) -> int | None:
        """Return the id of the snapshot that the write continues; None if there is none."""
        head = metadata.snapshot_by_name(self._base(metadata))
        return None if head is None else head.snapshot_id

    def history(self, metadata: TableMetadata) -> Iterator[Snapshot]:
        """Yield the snapshot already staged with the id, then the snapshots that the write continues, newest first."""
        if self.wap_id is not None:
            yield from staged_snapshots(metadata, self.wap_id)
        yield from ancestors_of(metadata, self.head_id(metadata))

    def _base(self, metadata: TableMetadata) -> str:
        return MAIN_BRANCH if self.creates and self.branch not in metadata.refs else self.branch

    def refuse_used_id(self, metadata: TableMetadata) -> None:
        """Raise ValidationError if a snapshot already has the id: only one snapshot can be published by an id."""
        for snapshot in metadata.snapshots if self.wap_id is not None else ():
            if self.wap_id in wap_ids(snapshot):
                problem = f"{_SESSION_ID} is {shown(self.wap_id)}, which snapshot {snapshot.snapshot_id} has already"
                raise ValidationError(f"{metadata.location}: {problem}: expected a new id for each snapshot")


def write_target(state: TableState, branch: str | None) -> WriteTarget:
    """Return the target of a write.

    Args:
        state: the table, in the session that writes.
        branch: the branch that the caller names; None for the session's branch or main. As in Iceberg's Spark writer,
            the caller's branch takes precedence over the session's, and a snapshot may be staged on it.

    Raises:
        ValidationError: the session has both a branch and an id, or an empty one.
    """
    wap_id, session_branch = _session_wap(state)
    if branch is not None:
        return WriteTarget(branch, wap_id)
    _refuse_both(state, wap_id, session_branch)
    if session_branch is not None:
        return WriteTarget(session_branch, creates=True)
    return WriteTarget(MAIN_BRANCH, wap_id)


def staged_snapshots(metadata: TableMetadata, wap_id: str) -> list[Snapshot]:
    """Return the snapshots that were staged with an id."""
    return [snapshot for snapshot in metadata.snapshots if summary_of(snapshot).get(WAP_ID) == wap_id]


def wap_ids(snapshot: Snapshot) -> set[str]:
    """Return the id that a snapshot was staged with, and the id of the staged snapshot that it published."""
    summary = summary_of(snapshot)
    return {summary[name] for name in (WAP_ID, PUBLISHED_WAP_ID) if name in summary}


def session_branch_to_read(state: TableState) -> str | None:
    """Return the branch that a session reads instead of main, if it exists.

    Raises:
        ValidationError: as `write_target`.
    """
    wap_id, branch = _session_wap(state)
    _refuse_both(state, wap_id, branch)
    return branch if branch in state.metadata.refs else None


def _session_wap(state: TableState) -> tuple[str | None, str | None]:
    """Return the session's id and branch for a table."""
    properties, location = state.metadata.properties, state.metadata.location
    if _ENABLED not in properties:
        return None, None
    session = state.sessions.running()
    wap_id, branch = setting(session, _SESSION_ID), setting(session, _SESSION_BRANCH)
    if wap_id is None and branch is None:
        return None, None
    if not flag_property(properties, _ENABLED, default=False, location=location):
        return None, None
    for name, value in ((_SESSION_ID, wap_id), (_SESSION_BRANCH, branch)):
        if value is not None:
            NAME.check(f"{location}: {name}", value)
    return wap_id, branch


def refuse_session_wap(metadata: TableMetadata, conf: Mapping[str, str], branch: str | None) -> None:
    """Raise UnsupportedError if a session would write to another target than a process without the session.

    Args:
        metadata: the table.
        conf: the session's configuration.
        branch: the branch that the caller names.
    """
    if not flag_property(metadata.properties, _ENABLED, default=False, location=metadata.location):
        return
    if _SESSION_ID in conf or (_SESSION_BRANCH in conf and branch is None):
        name = _SESSION_ID if _SESSION_ID in conf else _SESSION_BRANCH
        instead = "append in Python" if name == _SESSION_ID else "name the branch by the option branch"
        raise UnsupportedError(
            f"{metadata.location}: {name} is {shown(conf[name])}, which this write can't see: {instead}"
        )


def _refuse_both(state: TableState, wap_id: str | None, branch: str | None) -> None:
    if wap_id is not None and branch is not None:
        problem = f"{_SESSION_ID} is {shown(wap_id)} and {_SESSION_BRANCH} is {shown(branch)}: expected one of them"
        raise ValidationError(f"{state.metadata.location}: {problem}")
