"""Transactions: several changes of a table that one commit makes together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self

from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.sorting import UpdateSortOrder

from sparkmeta.commit.manage_snapshots import ManageSnapshots
from sparkmeta.commit.snapshot_update import SnapshotUpdate
from sparkmeta.edit.attempts import Step, commit_steps
from sparkmeta.operations.base_table import TableT
from sparkmeta.spec.updates import UpdateSpec, update_table_metadata

if TYPE_CHECKING:
    from types import TracebackType

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

# Changes of branches and tags: tables of every format version take them.
_OF_REFS = (SetSnapshotRefUpdate, RemoveSnapshotRefUpdate)


@dataclass
class _MetadataStep:
    """Updates of pyiceberg's models, and what they require of the table's metadata."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]

    def apply(self, state: TableState) -> TableMetadata:
        for requirement in self.requirements:
            requirement.validate(state.metadata)
        return update_table_metadata(state.metadata, self.updates)


@dataclass
class Transaction(Generic[TableT]):
    """Changes that become visible together; used as `with table.transaction() as tx:`, or ended by `commit`.

    Nothing is written before it ends. Files that a commit writes and does not use are deleted once its outcome is
    known.

    Attributes:
        table: the version that the changes are based on.
        autocommit: end with the first of pyiceberg's builders that does.
    """

    table: TableT
    autocommit: bool = False
    _steps: list[Step] = field(default_factory=list)
    _metadata: TableMetadata | None = None
    _done: TableT | None = None

    # -- what can be changed ----------------------------------------------------------------------------------------

    def update_snapshot(
        self, branch: str = "main", snapshot_properties: Mapping[str, str] | None = None
    ) -> SnapshotUpdate:
        """Begin a new snapshot of a branch. Its methods name files, and take effect when the transaction commits.

        Raises UnsupportedError for a table that is no V4 tree.
        """
        update = SnapshotUpdate(self.table.state, branch, dict(snapshot_properties or {}))
        self._add_snapshot(update)
        return update

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return pyiceberg's builder of schema changes; its own `commit` or context ends it."""
        return UpdateSchema(self, allow_incompatible_changes, case_sensitive)  # type: ignore[arg-type]

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return pyiceberg's builder of a partition spec; its own `commit` or context ends it."""
        return UpdateSpec(self, case_sensitive)  # type: ignore[arg-type]

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return pyiceberg's builder of a sort order; its own `commit` or context ends it."""
        return UpdateSortOrder(self, case_sensitive)  # type: ignore[arg-type]

    def manage_snapshots(self) -> ManageSnapshots:
        """Return pyiceberg's builder of branches and tags; its own `commit` or context ends it.

        It has `fast_forward` and `cherry_pick` as well.
        """
        return ManageSnapshots(self)  # type: ignore[arg-type]

    def set_properties(self, properties: Mapping[str, Any] | None = None, **values: Any) -> Self:
        """Set table properties."""
        updates = {key: str(value) for key, value in {**(properties or {}), **values}.items()}
        self._apply((SetPropertiesUpdate(updates=updates),))
        return self

    def remove_properties(self, *names: str) -> Self:
        """Remove table properties."""
        self._apply((RemovePropertiesUpdate(removals=list(names)),))
        return self

    # -- what pyiceberg's builders ask for ---------------------------------------------------------------------------

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the changes so far, without new snapshots."""
        return self._metadata or self.table.metadata

    def _apply(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Self:
        self._stage(updates, requirements)
        if self.autocommit:
            self.commit()
        return self

    def _stage(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Self:
        if not all(isinstance(update, _OF_REFS) for update in updates):
            self.table.refuse_lists()
        return self._add(_MetadataStep(tuple(updates), tuple(requirements))) if updates else self

    def _add(self, step: Step) -> Self:
        """Add a step that changes metadata only; later changes see it."""
        self._metadata = step.apply(replace(self.table.state, metadata=self.table_metadata))
        self._steps.append(step)
        return self

    def _add_snapshot(self, step: Step) -> None:
        """Add a step that makes a snapshot when the transaction commits."""
        self.table.refuse_lists()
        self._steps.append(step)

    def _set_ref_snapshot(
        self, snapshot_id: int, ref_name: str, **fields: Any
    ) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        known = self.table_metadata.refs.get(ref_name)
        given = {key: value for key, value in fields.items() if value is not None}
        update = SetSnapshotRefUpdate.model_validate({"snapshot-id": snapshot_id, "ref-name": ref_name, **given})
        requirement = {"ref": ref_name, "snapshot-id": known.snapshot_id if known else None}
        return (update,), (AssertRefSnapshotId.model_validate(requirement),)

    # -- the end ----------------------------------------------------------------------------------------------------

    def commit(self) -> TableT:
        """Make all changes as one commit, and return the table as it is then.

        Raises:
            CommitFailedError: other commits came first each time (`commit.retry.num-retries`).
            CommitConflictError: what was to change has been changed by another commit.
            CommitStateUnknownError: the commit may have succeeded; nothing that it wrote is deleted.
            ValidationError: a change that does not fit the table.
        """
        if self._done is None:
            self._done = commit_steps(self.table, self._steps) if self._steps else self.table
        return self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
