"""Plans of maintenance: nothing changes before their commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sparkmeta.commit.attempts import Step, commit_steps
from sparkmeta.commit.new_snapshot import LeafCounts, SnapshotNames, branch_head, snapshot_summary
from sparkmeta.commit.options import BranchOptions
from sparkmeta.entries.tally import Tally
from sparkmeta.errors import CommitConflictError
from sparkmeta.operations.table_operations import TableT
from sparkmeta.progress import progress
from sparkmeta.spec.summary import summary_number, summary_properties
from sparkmeta.text import fact_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.spec.metadata_model import Summary


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
    """A plan to maintain a table, carried out by `commit`. Nothing changes before that.

    All maintenance operations return plans, and so do `purge_table`, `snapshot_table` and `migrate_table` of a
    `Catalog`. Some plans have further members, which the reference of `Maintenance` names.

    Attributes:
        table: the table.
    """

    # What a commit does, shown as its progress.
    _doing: ClassVar[str] = "Committing"

    table: TableT
    _committed: list[DoneT] = field(default_factory=list, init=False, repr=False, compare=False)

    @abstractmethod
    def summary(self) -> PlanSummary:
        """Return the plan in numbers, which `print` formats and `to_dict()` returns by name. May run jobs.

        `is_empty` of the numbers says whether there is nothing to do.
        """

    @abstractmethod
    def to_df(self) -> DataFrame:
        """Return one row for each file that the plan rewrites, reads for statistics, or deletes. May run jobs.

        Each plan has its own columns. All have `file_path`.
        """

    def commit(self) -> DoneT:
        """Carry out the plan once and return the new table, or the same table for an empty plan.

        Plans that delete files, but do not change the table, return what was deleted.

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
            with progress(self._doing, self.table.state.sessions):
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


def progress_of(plan: Plan[Any, Any]) -> str:
    """Return the text that is shown while a plan is committed."""
    return plan._doing


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


_COUNTS = ("manifests_created", "manifests_replaced", "manifests_kept", "entries_processed")


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
