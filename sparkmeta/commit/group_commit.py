"""Commit the appends of several threads together.

While a thread commits to a table, appends of other threads wait. The first of them then commits for all that wait, so
threads of one process do not lose to each other, and share the work of a commit.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sparkmeta.commit.attempts import Step, commit_steps
from sparkmeta.commit.process_turns import commit_in_turn
from sparkmeta.commit.snapshot_update import DATA, AddedPart, SnapshotStep
from sparkmeta.errors import CommitFailedError, CommitStateUnknownError, proves_failure
from sparkmeta.operations.table_operations import TableT, TableVersion
from sparkmeta.spec.table_properties import flag_property

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.spec.metadata import TableMetadata

SHARE_SNAPSHOTS: Final = "write.append.share-snapshots"
"""Whether appends that are committed together become one snapshot; false by default."""


@dataclass(eq=False)
class _Append:
    """An append that waits for its commit.

    Attributes:
        table: the version that it was made for.
        step: makes its snapshot.
        woken: set when `version` or `error` is known, or when the thread must commit itself.
        version: the version of the table that contains the append.
        error: why the append failed.
        leads: whether the thread commits for all appends that wait.
    """

    table: BaseTable
    step: SnapshotStep
    woken: threading.Event = field(default_factory=threading.Event)
    version: TableVersion | None = None
    error: BaseException | None = None
    leads: bool = False


class _Queues:
    """The queues of tables to which a thread of this process commits."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all queues."""
        self.lock = threading.Lock()
        self.of_table: dict[Hashable, _Queue] = {}


_queues = _Queues()
if hasattr(os, "register_at_fork"):
    # A forked process does not contain the threads of its parent.
    os.register_at_fork(after_in_child=_queues.clear)


class _Queue:
    """The appends to a table that wait while a thread commits.

    Attributes:
        waiting: the appends, in the order in which they came.
        joined: notified when an append joins them.
        latest: the version that the last group committed.
        size: the number of appends in the last group.
        seconds: how long its commit took.
    """

    def __init__(self) -> None:
        self.waiting: list[_Append] = []
        self.joined = threading.Condition(_queues.lock)
        self.latest: TableVersion | None = None
        self.size, self.seconds = 1, 0.0

    def group(self, leader: _Append) -> list[_Append]:
        """Return the appends to commit. Wait for as many as in the last group, but no longer than its commit took.

        The threads of the last group have begun their next appends. Without the wait, 16 threads commit groups of 1 and
        of 15 in turn, which takes 1.2 times the CPU time.
        """
        with self.joined:
            self.joined.wait_for(lambda: len(self.waiting) + 1 >= self.size, self.seconds)
            group = [leader, *self.waiting]
            self.waiting.clear()
        self.size = len(group)
        return group


def commit_in_group(table: TableT, steps: Sequence[Step]) -> TableT:
    """Commit steps as `commit_steps` does, together with appends of other threads if all of them add few files.

    Each append becomes a snapshot, in the order in which they came. With `write.append.share-snapshots`, appends to one
    branch with the same snapshot properties become one snapshot. If the commit provably fails, each is committed alone.
    """
    step = steps[0]
    if len(steps) > 1 or not isinstance(step, SnapshotStep) or not step.is_small_append:
        return commit_steps(table, steps)
    append, key = _Append(table, step), _key(table)
    with _queues.lock:
        queue = _queues.of_table.get(key)
        if queue is None:
            queue = _queues.of_table[key] = _Queue()
            append.leads = True
        else:
            queue.waiting.append(append)
            queue.joined.notify()
    if not append.leads:
        try:
            append.woken.wait()
        except BaseException:
            _leave(append, key, queue)
            raise
    if append.leads:
        try:
            _lead(append, queue)
        finally:
            _hand_over(key, queue)
    if append.error is not None:
        raise append.error
    return commit_steps(table, steps) if append.version is None else table.at(append.version)


def _key(table: BaseTable) -> Hashable:
    """Return a key that tables have in common if one of them can commit for the other."""
    operations, metadata = table.operations, table.metadata
    catalog = getattr(operations, "catalog", None)
    return type(operations), catalog, metadata.table_uuid, metadata.location


def _lead(leader: _Append, queue: _Queue) -> None:
    """Commit the appends that wait."""
    group = queue.group(leader)
    started = time.monotonic()
    try:
        versions = [append.table.version for append in group] + ([queue.latest] if queue.latest else [])
        newest = max(versions, key=lambda version: version.metadata.last_updated_ms)
        committed = commit_in_turn(
            leader.table.at(newest), lambda table: commit_steps(table, _steps(group, table.metadata))
        )
        queue.latest = committed.version
        queue.seconds = time.monotonic() - started
        for append in group:
            append.version = queue.latest
    except BaseException as error:  # noqa: BLE001  each thread raises it
        if len(group) == 1 or not proves_failure(error) or isinstance(error, CommitFailedError):
            for append in group:
                append.error = error if append is leader else _copied(error)
    finally:
        for append in group:
            append.woken.set()


def _copied(error: BaseException) -> BaseException:
    """Return the error to raise in a thread whose append another thread failed to commit."""
    if not isinstance(error, Exception):
        return CommitStateUnknownError(f"the thread that committed was stopped by {type(error).__name__}")
    copied = copy.copy(error)
    copied.__cause__ = error
    return copied


def _leave(append: _Append, key: Hashable, queue: _Queue) -> None:
    """Withdraw an append whose thread was interrupted."""
    with _queues.lock:
        if append in queue.waiting:
            queue.waiting.remove(append)
    if append.leads:
        _hand_over(key, queue)


def _hand_over(key: Hashable, queue: _Queue) -> None:
    """Let the first append that waits lead, or remove the queue."""
    with _queues.lock:
        if not queue.waiting:
            del _queues.of_table[key]
            return
        successor = queue.waiting.pop(0)
        successor.leads = True
    successor.woken.set()


def _steps(group: Sequence[_Append], metadata: TableMetadata) -> Sequence[SnapshotStep]:
    """Return the steps that make the snapshots of appends to a version of the table."""
    if not flag_property(metadata.properties, SHARE_SNAPSHOTS, default=False, location=metadata.location):
        return [append.step for append in group]
    joinable: dict[Hashable, list[SnapshotStep]] = {}
    for append in group:
        changes = append.step.changes
        joinable.setdefault((changes.target, frozenset(changes.properties.items())), []).append(append.step)
    return [steps[0] if len(steps) == 1 else _joined(steps) for steps in joinable.values()]


def _joined(steps: Sequence[SnapshotStep]) -> SnapshotStep:
    """Return a step that makes one snapshot of several appends."""
    first = steps[0].changes
    joined = SnapshotStep(first.started, first.target, first.properties)
    by_schema: dict[pa.Schema, list[pa.Table]] = {}
    for files in (files for step in steps for files in step.changes.appended_tables):
        by_schema.setdefault(files.schema, []).append(files)
    joined.changes.added += [AddedPart(pa.concat_tables(tables), DATA) for tables in by_schema.values()]
    joined.changes.are_new = all(step.changes.are_new for step in steps)
    return joined
