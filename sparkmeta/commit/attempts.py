"""Attempts to commit steps on the newest version of a table.

Steps are applied until an attempt is committed (table spec, Optimistic Concurrency). The files of failed attempts are
deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sparkmeta.commit.new_snapshot import SnapshotNames
from sparkmeta.errors import (
    CommitFailedError,
    NotFoundError,
    SparkmetaError,
    first_line,
    is_from_spark,
    proves_failure,
    translated_errors,
)
from sparkmeta.operations.table_operations import TableT, metadata_folder, new_snapshot_ids, refuse_read_only
from sparkmeta.reports import COMMIT, commit_report, failures_reported
from sparkmeta.session import batches_of_entries
from sparkmeta.spec.table_properties import commit_retries
from sparkmeta.spec.updates import without_intermediate
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


_log = logging.getLogger(__name__)

_MAY_BE_LEFT = "may be left of a commit that failed"


class Step(Protocol):
    """A change of a table, which each attempt of a commit applies to the newest version.

    A step that writes files has the attribute `names`, a `SnapshotNames`. A step that may have an idempotency key has
    the method `repeats(metadata)`, which returns whether the table has recorded the key.
    """

    def apply(self, state: TableState) -> TableMetadata:
        """Return the changed metadata of a table's state."""


def commit_steps(table: TableT, steps: Sequence[Step]) -> TableT:
    """Apply steps to a table in order and commit the result. Retry if another commit came first.

    If the table has recorded the idempotency key of a step, nothing is committed.

    Returns:
        The table after the commit.

    Raises:
        CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
        CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
        UnsupportedError: the table can't be committed to.
    """
    tried: list[int] = []
    with failures_reported(table.state.reports, lambda: table.state.settings, COMMIT, lambda: len(tried)):
        return _committed(table, steps, tried)


def _committed(table: TableT, steps: Sequence[Step], tried: list[int]) -> TableT:
    """Do the work of `commit_steps`, and append the number of each attempt to `tried`."""
    refuse_read_only(table)
    retries = commit_retries(table.metadata.properties)
    started = time.monotonic()
    table = _current(table, steps)
    for attempt in range(retries.count + 1):
        tried.append(attempt)
        metadata = table.metadata
        try:
            with translated_errors():
                if _is_repetition(steps, metadata):
                    _discard_attempts(table, steps)
                    return table
                with batches_of_entries(table.state.sessions.running()):
                    for step in steps:
                        metadata = step.apply(replace(table.state, metadata=metadata))
            metadata = without_intermediate(metadata, table.metadata)
        except Exception as error:  # noqa: BLE001  raised unless the table is outdated
            table = _newer_after(error, table, metadata, steps, may_retry=attempt < retries.count)
            continue
        try:
            committed = table.operations.commit(table.version, metadata)
        except CommitFailedError:
            _discard_snapshots(table, metadata, steps)
            waited = time.monotonic() - started
            if attempt == retries.count or waited * 1000 > retries.total_ms:
                _discard_attempts(table, steps)
                raise
            time.sleep(retries.wait(attempt))
            table = _refreshed(table, steps)
        except Exception as error:
            _discard_failed(table, steps, error)
            raise
        else:
            _discard_unused(table, steps)
            _report(table, metadata, attempt + 1, time.monotonic() - started)
            return table.at(committed)
    raise AssertionError("unreachable")


def _report(base: BaseTable, committed: TableMetadata, attempts: int, seconds: float) -> None:
    """Report on the snapshots that a commit has added."""
    if (reports := base.state.reports) is None:
        return
    for snapshot_id in sorted(new_snapshot_ids(base.version, committed)):
        snapshot = committed.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        reports.send(lambda: base.state.settings, partial(commit_report, snapshot, attempts, seconds))


def _is_repetition(steps: Sequence[Step], metadata: TableMetadata) -> bool:
    """Return whether the table has recorded the idempotency key of one of the steps."""
    return any(step.repeats(metadata) for step in steps if hasattr(step, "repeats"))


def _newer_after(
    error: Exception, table: TableT, attempted: TableMetadata, steps: Sequence[Step], *, may_retry: bool
) -> TableT:
    """Return a newer version of the table if the attempt failed because files of its version are gone.

    An expiry may have deleted the files. If the attempt failed for another reason, raise its error, which proves that
    nothing was committed.
    """
    newest = _refreshed(table, steps) if may_retry and isinstance(error, NotFoundError) else table
    if newest.version != table.version:
        _discard_snapshots(table, attempted, steps)
        return newest
    _discard_attempts(table, steps)
    if is_from_spark(error):
        # Tasks of the failed job may still be running.
        _log_names(table, steps, _MAY_BE_LEFT)
    if proves_failure(error):
        raise error
    raise SparkmetaError(f"{table.metadata.location}: nothing was committed: {first_line(error)}") from error


def _current(table: TableT, steps: Sequence[Step]) -> TableT:
    """Return the version of the table for the first attempt.

    Refresh the table if its catalog accepts updates rather than whole metadata. Such a catalog would not notice that,
    for example, a snapshot to publish has expired.
    """
    return table if table.operations.replaces_metadata else _refreshed(table, steps)


def _refreshed(table: TableT, steps: Sequence[Step]) -> TableT:
    """Return the newest version of the table. If it can't be loaded, delete the files of attempts."""
    try:
        return table.refresh()
    except Exception:
        _discard_attempts(table, steps)
        raise


def _discard_unused(table: BaseTable, steps: Sequence[Step]) -> None:
    """Delete the files of attempts that the commit does not use."""
    unused = [location for names in _names(steps) for location in sorted(names.written - names.used)]
    discard(table.state.files, unused)


def _discard_failed(table: BaseTable, steps: Sequence[Step], error: Exception) -> None:
    """Delete the files of attempts if an error proves that nothing was committed; otherwise log their names."""
    if proves_failure(error):
        _discard_attempts(table, steps)
    else:
        _log_names(table, steps, "stay, since they may be committed")


def _discard_attempts(table: BaseTable, steps: Sequence[Step]) -> None:
    """Delete all files of attempts. None of the attempts has been committed.

    Files are found by listing names, since tasks of a failed job may have written files that they did not report.
    """
    files, folder = table.state.files, metadata_folder(table.metadata)
    for names in _names(steps):
        names.discarded = True
        for snapshot_id in names.ids:
            try:
                locations = [status.location for status in files.list(folder, f"{snapshot_id}-*")]
            except Exception as error:  # noqa: BLE001 - unlisted files become orphans
                _log.warning("%s: not listed: %s", folder, error)
                _log_names(table, steps, _MAY_BE_LEFT)
                locations = sorted(names.written)
            discard(files, locations)
        discard(files, sorted(names.lists))


def _log_names(table: BaseTable, steps: Sequence[Step], outcome: str) -> None:
    """Log the name patterns of the files that attempts have written, which are orphans unless committed."""
    ids = [snapshot_id for names in _names(steps) for snapshot_id in sorted(names.ids)]
    if ids:
        patterns = ", ".join(f"{snapshot_id}-*, snap-{snapshot_id}-*" for snapshot_id in ids)
        _log.warning("%s: files named %s %s", metadata_folder(table.metadata), patterns, outcome)


def _names(steps: Sequence[Step]) -> Iterator[SnapshotNames]:
    """Yield the names of the steps that write files."""
    for step in steps:
        names = getattr(step, "names", None)
        if names is not None:
            yield names


def _discard_snapshots(table: BaseTable, failed: TableMetadata, steps: Sequence[Step]) -> None:
    """Delete the roots and manifest lists of an attempt that is known to have failed."""
    known_ids = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    new_snapshots = (snapshot for snapshot in failed.snapshots if snapshot.snapshot_id not in known_ids)
    locations = (snapshot.manifests_location for snapshot in new_snapshots)
    discard(table.state.files, [location for location in locations if location])
    for names in _names(steps):
        names.lists.clear()
