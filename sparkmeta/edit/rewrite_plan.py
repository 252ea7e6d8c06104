"""Plans that rewrite manifests. Nothing changes before the commit, which creates one snapshot with the same files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from sparkmeta.edit.attempts import commit_steps
from sparkmeta.edit.new_snapshot import SnapshotNames, branch_head
from sparkmeta.edit.summary import ManifestCounts, snapshot_summary
from sparkmeta.edit.tally import Tally
from sparkmeta.errors import CommitConflictError
from sparkmeta.operations.base_table import TableT
from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.edit.attempts import Step
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState

_COUNTS = ("manifests_created", "manifests_replaced", "manifests_kept", "entries_processed")


@dataclass(frozen=True)
class RewriteSummary(ABC):
    """The numbers of a plan; `str` formats them."""

    table: str
    snapshot_id: int | None

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, in JSON-compatible types."""
        return asdict(self)


@dataclass(frozen=True)
class RewritePlan(ABC, Generic[TableT]):
    """A plan to rewrite manifests of a branch, carried out by `commit`."""

    table: TableT
    branch: str
    properties: Mapping[str, str]
    _state: TableState
    _committed: list[TableT] = field(default_factory=list, init=False, repr=False, compare=False)

    @abstractmethod
    def files(self) -> DataFrame:
        """Return one row per manifest to rewrite. Runs no job."""

    @abstractmethod
    def summary(self) -> RewriteSummary:
        """Return the plan in numbers. Runs no job."""

    @abstractmethod
    def step(self) -> Step | None:
        """Return the step that creates the snapshot; None if there is nothing to do."""

    def commit(self) -> TableT:
        """Write the manifests and commit a snapshot with them. Return the new table, or the same for an empty plan.

        Changes of concurrent commits are kept. Retries reuse the written manifests and write only the root or manifest
        list again.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitConflictError: other commits have rewritten all of the manifests, or assigned row ids to their files.
                Make a new plan.
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            ValidationError: a manifest does not hold as many files as the table's metadata says.
        """
        if not self._committed:
            step = self.step()
            self._committed.append(self.table if step is None else commit_steps(self.table, [step]))
        return self._committed[0]

    def result(self) -> dict[str, Any]:
        """Return the summary and the commit's counts (null before it) in JSON-compatible types."""
        after = self._committed[0].metadata.snapshot_by_name(self.branch) if self._committed else None
        committed = _committed_counts(self._state.snapshot, after)
        return {"table": self.table.metadata.location, "plan": self.summary().to_dict(), "committed": committed}


def _committed_counts(before: Snapshot | None, after: Snapshot | None) -> dict[str, Any] | None:
    """Return the id of a branch's new head and the counts in its summary; None if the head is unchanged."""
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
        counts: ManifestCounts,
        properties: Mapping[str, str] | None = None,
        removed: Tally | None = None,
        added: Tally | None = None,
    ) -> Callable[[], Summary]:
        """Return a function that builds the snapshot's summary, which counts manifests and changed files."""
        merged, tallies = {**self.properties, **(properties or {})}, (added or Tally(), removed or Tally())
        return lambda: snapshot_summary("replace", *tallies, head.snapshot, merged, counts)


def rewritten_by_others(state: TableState) -> CommitConflictError:
    """Return the error for a plan whose manifests have all been rewritten by other commits."""
    return CommitConflictError(
        f"{state.metadata.location}: other commits have rewritten the manifests that were to be rewritten, or assigned "
        "row ids to their files: plan again"
    )
