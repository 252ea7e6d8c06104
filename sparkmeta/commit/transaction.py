"""`Transaction`: several changes of a table in one commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from sparkmeta.checks import NAMES, property_texts
from sparkmeta.commit.attempts import Step
from sparkmeta.commit.group_commit import commit_in_group
from sparkmeta.commit.manage_snapshots import ManageSnapshots
from sparkmeta.commit.new_snapshot import RefUpdate, refuse_tag
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.write_target import write_target
from sparkmeta.errors import CommitConflictError, ValidationError, shown
from sparkmeta.operations.table_operations import TableT, refuse_lists_of_version_4
from sparkmeta.spec.metadata_rules import refuse_reserved
from sparkmeta.spec.summary import key_of, summary_properties
from sparkmeta.spec.update_expressions import UpdateExpressions
from sparkmeta.spec.update_schema import UpdateSchema, UpdateSortOrder
from sparkmeta.spec.updates import MetadataUpdate, UpdateSpec, update_table_metadata
from sparkmeta.storage.keys import refuse_encrypted_commit

if TYPE_CHECKING:
    from types import TracebackType

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata

_log = logging.getLogger(__name__)

# Changes of branches and tags, which tables of every format version support.
_REF_UPDATES = (SetSnapshotRefUpdate, RemoveSnapshotRefUpdate)


@dataclass
class _MetadataStep:
    """Changes of table metadata, as update and requirement models."""

    updates: tuple[MetadataUpdate, ...]
    requirements: tuple[TableRequirement, ...]

    def apply(self, state: TableState) -> TableMetadata:
        try:
            for requirement in self.requirements:
                requirement.validate(state.metadata)
        except CommitFailedException as error:
            raise CommitConflictError(f"{state.metadata.location}: {error}") from error
        metadata = state.metadata
        updates = [update.completed(metadata) if isinstance(update, RefUpdate) else update for update in self.updates]
        return update_table_metadata(metadata, updates)


@dataclass(repr=False)
class Transaction(Generic[TableT]):
    """Changes of a table in one commit, made by `commit` or the end of a `with table.transaction() as tx:` block.

    Nothing is written before the commit. Unused files of a commit are deleted once its outcome is known. After the
    commit, further changes raise ValidationError.

    Attributes:
        table: the version that the changes are based on.
        repetition_of: the snapshot that has recorded the idempotency key of the transaction; None as long as no such
            snapshot is known. If there is one, the transaction commits nothing.
    """

    table: TableT
    # Whether the first builder that ends commits the transaction. Later changes are refused.
    _autocommit: bool = False
    repetition_of: Snapshot | None = field(default=None, init=False)
    _steps: list[Step] = field(default_factory=list)
    _metadata: TableMetadata | None = None
    _done: TableT | None = None

    def __repr__(self) -> str:
        steps = ", ".join(type(step).__name__.strip("_") for step in self._steps) or "no steps"
        suffix = "" if self._done is None else ", committed"
        return f"{type(self).__name__}({self.table.full_name}: {steps}{suffix})"

    # -- Changes ------------------------------------------------------------------------------------------------------

    def update_snapshot(
        self,
        branch: str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        *,
        idempotency_key: tuple[str, int] | None = None,
    ) -> SnapshotUpdate:
        """Begin a new snapshot of a branch. Its file changes take effect when the transaction commits.

        Args:
            branch: the branch. It must exist, unless the table has no snapshots. Defaults to main, or in tables with
                `write.wap.enabled` to the session's `spark.wap.branch`. With `spark.wap.id`, the snapshot is staged.
            snapshot_properties: extra properties for the snapshot's summary.
            idempotency_key: an application and its version. If a snapshot of the branch has recorded this version or a
                later one, the transaction commits nothing; see `repetition_of`.

        Raises:
            UnsupportedError: the table is encrypted and its format version is not 3, or it has manifest lists of
                format version 4.
            EncryptionError: the table is encrypted, and a key is missing, refused or wrong.
            ValidationError: the branch is a tag, or a property is not a string; the transaction has another key; or a
                snapshot has the session's `spark.wap.id` already.
        """
        return SnapshotUpdate(self._snapshot_step(branch, snapshot_properties, idempotency_key))

    def _snapshot_step(
        self, branch: str | None, properties: Mapping[str, str] | None, idempotency_key: tuple[str, int] | None
    ) -> SnapshotStep:
        """Add the step of a new snapshot; see `update_snapshot`."""
        step = self._new_step(branch, properties, idempotency_key)
        if not step.repeats(self.table_metadata):
            step.target.refuse_used_id(self.table_metadata)
        self._add_snapshot(step)
        return step

    def _new_step(
        self, branch: str | None, properties: Mapping[str, str] | None, idempotency_key: tuple[str, int] | None
    ) -> SnapshotStep:
        """Return a step that the transaction does not have yet; see `update_snapshot`."""
        started, texts = replace(self.table.state, metadata=self.table_metadata), summary_properties(properties)
        target, key = write_target(started, branch), key_of(idempotency_key, texts)
        refuse_tag(started.metadata, target.branch)
        for step in self._steps:
            if not isinstance(step, SnapshotStep):
                continue
            if None not in (step.key, key) and step.key != key:
                problem = f"idempotency_key is {key}, and that of an earlier change is {step.key}"
                raise ValidationError(f"{self.table.full_name}: {problem}: expected one key for a transaction")
            if None not in (step.target.wap_id, target.wap_id):
                problem = f"an earlier change of the transaction makes the snapshot of wap.id {shown(target.wap_id)}"
                raise ValidationError(f"{self.table.full_name}: {problem}: commit it, and give the next one a new id")
        return SnapshotStep(started, target, texts, key)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return pyiceberg's builder of schema changes, which ends with its `commit` or its `with` block.

        Table properties that refer to columns are updated too: the name mapping, metrics modes and Bloom filters.
        """
        return UpdateSchema(self, allow_incompatible_changes, case_sensitive)  # type: ignore[arg-type]

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return pyiceberg's builder of a partition spec, which ends with its `commit` or its `with` block."""
        return UpdateSpec(self, case_sensitive)  # type: ignore[arg-type]

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return pyiceberg's builder of a sort order, which ends with its `commit` or its `with` block."""
        return UpdateSortOrder(self, case_sensitive)  # type: ignore[arg-type]

    def update_expressions(self, case_sensitive: bool = True) -> UpdateExpressions:
        """Return a builder of the expressions of a tree, which ends with its `commit` or its `with` block."""
        return UpdateExpressions(self, case_sensitive)  # type: ignore[arg-type]

    def manage_snapshots(self) -> ManageSnapshots:
        """Return pyiceberg's builder of branches and tags, extended with the operations of Java's builder.

        It ends with its `commit` or its `with` block.
        """
        return ManageSnapshots(self)  # type: ignore[arg-type]

    def set_properties(self, properties: Mapping[str, Any] | None = None, **values: Any) -> Self:
        """Set table properties.

        Raises:
            ValidationError: a key or value is not text; or a property is reserved, such as `format-version`, which
                `table.maintenance.upgrade` changes.
        """
        name = f"{self.table.full_name}: properties"
        updates = property_texts(name, properties) | property_texts(name, values)
        refuse_reserved(updates, self.table.full_name)
        self._apply((SetPropertiesUpdate(updates=updates),))
        return self

    def remove_properties(self, *names: str) -> Self:
        """Remove table properties. Missing ones are ignored. Raises ValidationError for a name that is not a string."""
        NAMES.check(f"{self.table.full_name}: names", names)
        self._apply((RemovePropertiesUpdate(removals=list(names)),))
        return self

    # -- The transaction that pyiceberg's builders expect ------------------------------------------------------------

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the changes so far, without new snapshots."""
        return self._metadata or self.table.metadata

    def _apply(self, updates: tuple[MetadataUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Self:
        self._stage(updates, requirements)
        if self._autocommit:
            self.commit()
        return self

    def _stage(self, updates: tuple[MetadataUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Self:
        if not all(isinstance(update, _REF_UPDATES) for update in updates):
            refuse_lists_of_version_4(self.table.metadata, self.table.full_name)
        return self._add(_MetadataStep(tuple(updates), tuple(requirements))) if updates else self

    def _add(self, step: Step) -> Self:
        """Add a step that changes only metadata. Later steps are based on it."""
        self._refuse_committed()
        self._metadata = step.apply(replace(self.table.state, metadata=self.table_metadata))
        self._steps.append(step)
        return self

    def _add_snapshot(self, step: Step) -> None:
        """Add a step that creates a snapshot when the transaction commits."""
        self._refuse_committed()
        refuse_lists_of_version_4(self.table.metadata, self.table.full_name)
        refuse_encrypted_commit(self.table.state.files, self.table_metadata)
        self._steps.append(step)

    def _set_ref_snapshot(
        self, snapshot_id: int, ref_name: str, **fields: Any
    ) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        ref = self.table_metadata.refs.get(ref_name)
        update = RefUpdate.model_validate({"ref-name": ref_name, "snapshot-id": snapshot_id, **fields})
        requirement = {"ref": ref_name, "snapshot-id": ref.snapshot_id if ref else None}
        return (update,), (AssertRefSnapshotId.model_validate(requirement),)

    # -- The end ----------------------------------------------------------------------------------------------------

    def commit(self) -> TableT:
        """Make all changes in one commit and return the resulting table. Repeated calls return the same table.

        If a branch has recorded the idempotency key of a change, nothing is committed; see `repetition_of`.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitConflictError: another commit changed the files that this transaction changes.
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            ValidationError: a change is not valid for the table.
        """
        if self._done is None:
            has_changes = bool(self._steps) and self.repetition_of is None
            self._done = commit_in_group(self.table, self._steps) if has_changes else self.table
            for step in self._steps:
                if isinstance(step, SnapshotStep):
                    step.closed = True
                    self.repetition_of = self.repetition_of or step.repetition_of
            if self.repetition_of is not None:
                recorded = f"snapshot {self.repetition_of.snapshot_id} has recorded its idempotency key"
                _log.warning("%s: the transaction commits nothing: %s", self.table.full_name, recorded)
        return self._done

    def _refuse_committed(self) -> None:
        if self._done is not None:
            raise ValidationError(
                f"{self.table.full_name}: the transaction is committed: begin another one for more changes"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
