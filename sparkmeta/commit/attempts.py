"""Attempts to commit steps on the newest version of a table, and plans that are committed as such steps."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from sparkmeta.checks import NAME, Options, option
from sparkmeta.commit.new_snapshot import LeafCounts, SnapshotNames, branch_head, snapshot_summary
from sparkmeta.entries.tally import Tally
from sparkmeta.errors import (
    CommitConflictError,
    CommitFailedError,
    NotFoundError,
    SparkmetaError,
    first_line,
    is_from_spark,
    proves_failure,
    translated_errors,
)
from sparkmeta.operations.table_operations import TableT, metadata_folder, new_snapshot_ids
from sparkmeta.progress import progress
from sparkmeta.reports import COMMIT, commit_report, failures_reported
from sparkmeta.spec.summary import summary_number, summary_properties
from sparkmeta.spec.table_properties import commit_retries
from sparkmeta.spec.updates import without_intermediate
from sparkmeta.storage.writing import discard
from sparkmeta.text import fact_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.spec.metadata_model import Summary


# -- Attempts on the newest version of a table ------------------------------------------------------------------------
# Steps are applied until an attempt is committed (table spec, Optimistic Concurrency). The files of failed attempts are
# deleted.


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
    """See `commit_steps`. `tried` gets the numbers of attempts."""
    table.refuse_read_only()
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

    A catalog that accepts updates would not notice that, for example, a snapshot to publish has expired.
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


# -- Plans: nothing changes before their commit -----------------------------------------------------------------------


DoneT = TypeVar("DoneT")


@dataclass(frozen=True)
class PlanSummary:
    """A plan in numbers; `str` formats them."""

    table: str

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, in JSON-compatible types."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True)
class Plan(ABC, Generic[TableT, DoneT]):
    """A plan to maintain a table, carried out by `commit`.

    Attributes:
        doing: what a commit does, for its progress.
    """

    doing: ClassVar[str] = "Committing"

    table: TableT
    _committed: list[DoneT] = field(default_factory=list, init=False, repr=False, compare=False)

    @abstractmethod
    def summary(self) -> PlanSummary:
        """Return the plan in numbers."""

    def commit(self) -> DoneT:
        """Carry out the plan once and return the new table, or the same table for an empty plan.

        Changes of concurrent commits are kept. Retries reuse the files that earlier attempts have written.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitConflictError: other commits have made the plan obsolete. Make a new plan.
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            NotFoundError: a file that the plan needs is missing.
            CorruptFileError: a file is damaged.
            ValidationError: the table or a file does not fit the plan.
        """
        if not self._committed:
            with progress(self.doing, self.table.state.sessions):
                self._committed.append(self._commit())
        return self._committed[0]

    @abstractmethod
    def _commit(self) -> DoneT:
        """Carry out the plan."""

    @property
    def is_partly_committed(self) -> bool:
        """Whether `commit` raised an error after it had committed part of the plan."""
        return False

    def _repr_html_(self) -> str:
        """Describe the plan in a notebook by its options. Runs no job, as `summary` may."""
        names = [
            attribute.name
            for attribute in fields(self)
            if attribute.name != "table" and not attribute.name.startswith("_")
        ]
        options = {name: getattr(self, name) for name in names}
        facts = {"table": self.table.full_name, **options, "committed": "yes" if self._committed else "no"}
        return fact_table(type(self).__name__, facts)

    def result(self) -> dict[str, Any]:
        """Return the summary and the committed changes (null before the commit), in JSON-compatible types."""
        return {"table": self.table.metadata.location, "plan": self.summary().to_dict(), "committed": self._outcome()}

    @abstractmethod
    def _outcome(self) -> dict[str, Any] | None:
        """Return the committed changes; None if nothing was committed."""


@dataclass(frozen=True)
class TablePlan(Plan[TableT, TableT]):
    """A plan whose commit makes a new version of the table."""

    def _outcome(self) -> dict[str, Any] | None:
        return {"metadata_location": self._committed[0].metadata_location} if self._committed else None


@dataclass(frozen=True)
class SnapshotPlanSummary(PlanSummary):
    """A plan for a snapshot in numbers; `str` formats them.

    Attributes:
        snapshot_id: the snapshot that the plan is for; None if there is none.
    """

    snapshot_id: int | None


@dataclass(frozen=True)
class SnapshotPlan(TablePlan[TableT]):
    """A plan for the table at a snapshot."""

    _state: TableState

    @property
    def _snapshot_id(self) -> int | None:
        return None if self._state.snapshot is None else self._state.snapshot.snapshot_id


# -- Plans that rewrite a branch without changing its rows ------------------------------------------------------------


_COUNTS = ("manifests_created", "manifests_replaced", "manifests_kept", "entries_processed")


@dataclass(frozen=True)
class BranchOptions(Options):
    """The options of operations that commit a snapshot to a branch."""

    _: KW_ONLY
    branch: str = option("main", "the branch to commit to.", NAME)
    snapshot_properties: Mapping[str, str] | None = option(None, "extra properties for the snapshot's summary.")

    def check(self) -> None:
        """See `Options.check`."""
        summary_properties(self.snapshot_properties)
        super().check()


OptionsT = TypeVar("OptionsT", bound=BranchOptions)


@dataclass(frozen=True)
class RewritePlan(SnapshotPlan[TableT], Generic[TableT, OptionsT]):
    """A plan to rewrite files of a branch, carried out by `commit`."""

    options: OptionsT

    @property
    def branch(self) -> str:
        """The branch to commit to."""
        return self.options.branch

    @cached_property
    def properties(self) -> dict[str, str]:
        """Extra properties for the snapshot's summary."""
        return summary_properties(self.options.snapshot_properties)

    @abstractmethod
    def files(self) -> DataFrame:
        """Return one row per file to rewrite."""

    @abstractmethod
    def step(self) -> Step | None:
        """Return the step that creates the snapshot; None if there is nothing to do."""

    def _commit(self) -> TableT:
        step = self.step()
        return self.table if step is None else commit_steps(self.table, [step])

    def _outcome(self) -> dict[str, Any] | None:
        after = self._committed[0].metadata.snapshot_by_name(self.branch) if self._committed else None
        return _committed_counts(self._state.snapshot, after)


def _committed_counts(before: Snapshot | None, after: Snapshot | None) -> dict[str, Any] | None:
    """Return the id of a branch's new head and the counts in its summary; None if the head has not changed."""
    if after is None or after.summary is None or (before is not None and after.snapshot_id == before.snapshot_id):
        return None
    counts = {name: summary_number(after, name.replace("_", "-")) for name in _COUNTS}
    return {"snapshot_id": after.snapshot_id} | {name: count for name, count in counts.items() if count is not None}


@dataclass
class RewriteStep(ABC):
    """The step of a plan's commit. Manifests are written once; each attempt applies them to a branch's head."""

    branch: str
    properties: Mapping[str, str]
    names: SnapshotNames = field(default_factory=SnapshotNames, init=False)

    @abstractmethod
    def apply_to(self, head: TableState) -> TableMetadata:
        """Return the table's metadata with the snapshot on a branch's head."""

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        head = branch_head(state, self.branch)
        self.names.next_attempt(head.metadata)
        return self.apply_to(head)

    def summary(
        self,
        head: TableState,
        counts: LeafCounts,
        properties: Mapping[str, str] | None = None,
        removed: Tally | None = None,
        added: Tally | None = None,
    ) -> Callable[[], Summary]:
        """Return a function that builds the snapshot's summary, which counts manifests and changed files."""
        all_properties, tallies = {**self.properties, **(properties or {})}, (added or Tally(), removed or Tally())
        return lambda: snapshot_summary("replace", *tallies, head.snapshot, all_properties, counts)


def rewritten_by_others(state: TableState) -> CommitConflictError:
    """Return the error for a plan whose manifests have all been rewritten by other commits."""
    return CommitConflictError(
        f"{state.metadata.location}: other commits have rewritten the manifests that were to be rewritten, or assigned "
        "row ids to their files: plan again"
    )
