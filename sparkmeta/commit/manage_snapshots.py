"""`ManageSnapshots`: pyiceberg's builder of branches and tags, extended with the operations of Java's builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update.snapshot import ManageSnapshots as IcebergManageSnapshots
from pyspark.sql import functions as F

from sparkmeta.changes.file_changes import ADDED, CHANGE_TYPE, REMOVED, file_changes
from sparkmeta.checks import NAME
from sparkmeta.commit.conflicts import refuse_new_data
from sparkmeta.commit.new_snapshot import branch_head, branch_update
from sparkmeta.commit.removed_files import NotLiveError
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.write_target import PUBLISHED_WAP_ID, WAP_ID, WriteTarget, staged_snapshots, wap_ids
from sparkmeta.errors import CommitConflictError, ValidationError, shown
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import ancestors_of, snapshot_of
from sparkmeta.spec.summary import recorded, recording_properties, summary_of
from sparkmeta.spec.update_schema import names_table
from sparkmeta.spec.updates import update_table_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.attempts import Step
    from sparkmeta.commit.new_snapshot import SnapshotNames
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, SnapshotRef, TableMetadata

SOURCE_SNAPSHOT = "source-snapshot-id"
_REPLACE_PARTITIONS = "replace-partitions"
# The maxima of Java's int and long.
_MAX_SNAPSHOTS, _MAX_MILLISECONDS = (1 << 31) - 1, (1 << 63) - 1


class _Steps(Protocol):
    """The transaction that collects a builder's steps."""

    @property
    def table_metadata(self) -> TableMetadata: ...

    def _add(self, step: Step) -> object: ...

    def _set_ref_snapshot(self, snapshot_id: int, ref_name: str, **fields: Any) -> tuple[Any, Any]: ...

    def _add_snapshot(self, step: Step) -> None: ...


@names_table
class ManageSnapshots(IcebergManageSnapshots):
    """pyiceberg's builder of branches and tags, extended with the operations of Java's builder.

    It ends with `commit` or its `with` block. As in Java, it is an error to create a branch or tag that exists, to
    remove one that does not exist, or to remove main. A ref that moves or is renamed keeps its current retention.
    """

    _transaction: _Steps  # type: ignore[assignment]

    def create_tag(self, snapshot_id: int, tag_name: str, max_ref_age_ms: int | None = None) -> Self:
        """Create a tag.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: the name is empty or another branch or tag has it, or a limit is out of range.
        """
        self._refuse_existing(tag_name, snapshot_id)
        self._refuse_limits(max_ref_age_ms=max_ref_age_ms)
        super().create_tag(snapshot_id, tag_name, max_ref_age_ms)
        return self

    def create_branch(
        self,
        snapshot_id: int,
        branch_name: str,
        max_ref_age_ms: int | None = None,
        max_snapshot_age_ms: int | None = None,
        min_snapshots_to_keep: int | None = None,
    ) -> Self:
        """Create a branch.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: the name is empty or another branch or tag has it, or a limit is out of range.
        """
        self._refuse_existing(branch_name, snapshot_id)
        self._refuse_limits(
            max_ref_age_ms=max_ref_age_ms,
            max_snapshot_age_ms=max_snapshot_age_ms,
            min_snapshots_to_keep=min_snapshots_to_keep,
        )
        super().create_branch(snapshot_id, branch_name, max_ref_age_ms, max_snapshot_age_ms, min_snapshots_to_keep)
        return self

    def remove_tag(self, tag_name: str) -> Self:
        """Remove a tag. Raises ValidationError if there is no such tag."""
        self._ref(tag_name, SnapshotRefType.TAG)
        super().remove_tag(tag_name)
        return self

    def remove_branch(self, branch_name: str) -> Self:
        """Remove a branch. Raises ValidationError if there is no such branch, or it is main."""
        self._branch_but_main(branch_name, "removed")
        super().remove_branch(branch_name)
        return self

    def rename_branch(self, branch_name: str, new_name: str) -> Self:
        """Rename a branch.

        Raises:
            ValidationError: there is no such branch, it is main, or the new name is empty or a branch or tag has it.
        """
        ref = self._branch_but_main(branch_name, "renamed")
        self._refuse_existing(new_name, ref.snapshot_id)
        self._set(new_name, ref, retention_of=branch_name)
        super().remove_branch(branch_name)
        return self

    def replace_tag(self, tag_name: str, snapshot_id: int) -> Self:
        """Move a tag to another snapshot.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: there is no such tag.
        """
        return self._set(tag_name, self._ref(tag_name, SnapshotRefType.TAG), snapshot_id)

    def replace_branch(self, branch_name: str, snapshot_id: int) -> Self:
        """Move a branch to another snapshot, which need not descend from its head.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: there is no such branch.
        """
        return self._set(branch_name, self._ref(branch_name, SnapshotRefType.BRANCH), snapshot_id)

    def set_min_snapshots_to_keep(self, branch_name: str, min_snapshots_to_keep: int) -> Self:
        """Set how many snapshots of a branch expiry keeps. Raises ValidationError for tags and unknown branches."""
        self._refuse_limits(min_snapshots_to_keep=min_snapshots_to_keep)
        ref = self._ref(branch_name, SnapshotRefType.BRANCH)
        return self._set(branch_name, ref, min_snapshots_to_keep=min_snapshots_to_keep)

    def set_max_snapshot_age_ms(self, branch_name: str, max_snapshot_age_ms: int) -> Self:
        """Set how long expiry keeps snapshots of a branch. Raises ValidationError for tags and unknown branches."""
        self._refuse_limits(max_snapshot_age_ms=max_snapshot_age_ms)
        ref = self._ref(branch_name, SnapshotRefType.BRANCH)
        return self._set(branch_name, ref, max_snapshot_age_ms=max_snapshot_age_ms)

    def set_max_ref_age_ms(self, name: str, max_ref_age_ms: int) -> Self:
        """Set how long expiry keeps a branch or tag. Raises ValidationError for unknown ones."""
        self._refuse_limits(max_ref_age_ms=max_ref_age_ms)
        return self._set(name, self._ref(name), max_ref_age_ms=max_ref_age_ms)

    def _set(self, name: str, ref: SnapshotRef, snapshot_id: int | None = None, **fields: Any) -> Self:
        """Move a branch or tag, change its retention, or create one like it."""
        if snapshot_id is not None:
            snapshot_of(self._transaction.table_metadata, snapshot_id)
        target, kind = ref.snapshot_id if snapshot_id is None else snapshot_id, ref.snapshot_ref_type
        update, requirement = self._transaction._set_ref_snapshot(target, name, type=kind, **fields)
        self._updates += update
        self._requirements += requirement
        return self

    def _refuse_existing(self, name: str, snapshot_id: int) -> None:
        self._commit_if_ref_updates_exist()
        snapshot_of(self._transaction.table_metadata, snapshot_id)
        if not name:
            raise ValidationError(f"{self._transaction.table_metadata.location}: the name of a branch or tag is empty")
        if (ref := self._transaction.table_metadata.refs.get(name)) is not None:
            raise ValidationError(
                f"{self._transaction.table_metadata.location}: there is a {ref.snapshot_ref_type} {name!r} already: "
                f"replace_{ref.snapshot_ref_type} moves it"
            )

    def _ref(self, name: str, kind: SnapshotRefType | None = None) -> SnapshotRef:
        """Return a branch or tag with the builder's changes so far."""
        self._commit_if_ref_updates_exist()
        metadata = self._transaction.table_metadata
        ref = metadata.refs.get(name)
        kind_text = "branch or tag" if kind is None else str(kind)
        if ref is None:
            raise ValidationError(f"{metadata.location} has no {kind_text} {name!r}")
        if kind is not None and ref.snapshot_ref_type is not kind:
            raise ValidationError(f"{metadata.location}: {name!r} is a {ref.snapshot_ref_type}: expected a {kind_text}")
        return ref

    def _refuse_limits(self, **limits: Any) -> None:
        """Raise ValidationError for a limit below 1, or above what Java's readers can hold."""
        for name, value in limits.items():
            maximum = _MAX_SNAPSHOTS if name == "min_snapshots_to_keep" else _MAX_MILLISECONDS
            if value is not None and (type(value) is not int or not 1 <= value <= maximum):
                location = self._transaction.table_metadata.location
                raise ValidationError(
                    f"{location}: {name} is {shown(value)}: expected a whole number from 1 to {maximum}"
                )

    def _branch_but_main(self, name: str, change: str) -> SnapshotRef:
        if name == MAIN_BRANCH:
            raise ValidationError(f"{self._transaction.table_metadata.location}: the branch main can't be {change}")
        return self._ref(name, SnapshotRefType.BRANCH)

    def fast_forward(self, branch: str, to: str) -> Self:
        """Move a branch to the snapshot of another branch or tag, which must descend from the branch's head.

        A missing branch is created. Only table metadata changes; every format version is supported.

        Raises:
            ValidationError: `to` does not exist, `branch` is a tag, or its head is not an ancestor of the snapshot.
        """
        self._commit_if_ref_updates_exist()
        self._transaction._add(FastForward(branch, to))
        return self

    def cherry_pick(self, snapshot_id: int) -> Self:
        """Apply the changes of a snapshot that is not on main to main (semantics 12.8).

        If the head of main is the snapshot's parent, main is fast-forwarded. Otherwise, the data files of an append are
        added. A dynamic partition overwrite replaces the same files, if it started from an ancestor of main and no data
        has been added to its partitions since. The new snapshot's summary has `source-snapshot-id`, and
        `published-wap-id` with the `wap.id` of the source. It records the same idempotency key as the source.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            UnsupportedError: the table is encrypted and its format version is not 3, or it has manifest lists of
                format version 4.
            ValidationError: at commit: main already has the snapshot, its `wap.id` or its idempotency key, or the
                snapshot has another operation.
            CommitConflictError: at commit: files or partitions that the snapshot replaced have changed.
        """
        self._commit_if_ref_updates_exist()
        snapshot_of(self._transaction.table_metadata, snapshot_id)
        self._transaction._add_snapshot(CherryPick(snapshot_id))
        return self

    def publish_changes(self, wap_id: str) -> Self:
        """Cherry-pick the snapshot that was staged with an id; see `cherry_pick`.

        Raises:
            ValidationError: no snapshot has the id as its `wap.id`, or several have. Otherwise as `cherry_pick`.
        """
        location = self._transaction.table_metadata.location
        NAME.check(f"{location}: wap_id", wap_id)
        staged = [snapshot.snapshot_id for snapshot in staged_snapshots(self._transaction.table_metadata, wap_id)]
        if len(staged) != 1:
            problem = f"the snapshots {staged} are staged with it" if staged else "no snapshot is staged with it"
            raise ValidationError(f"{location}: wap_id is {shown(wap_id)}: {problem}: expected one")
        return self.cherry_pick(staged[0])


@dataclass(frozen=True)
class FastForward:
    """A step of a transaction: see `ManageSnapshots.fast_forward`."""

    branch: str
    to: str

    def apply(self, state: TableState) -> TableMetadata:
        """Return the table's metadata with the branch at its new head."""
        metadata = state.metadata
        ref, target = metadata.refs.get(self.branch), metadata.refs.get(self.to)
        if target is None:
            raise ValidationError(f"{metadata.location} has no branch or tag {self.to!r}")
        if ref is not None and ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
            raise ValidationError(f"{metadata.location}: {self.branch!r} is a tag: only branches are fast-forwarded")
        ancestors = {snapshot.snapshot_id for snapshot in ancestors_of(metadata, target.snapshot_id)}
        if ref is not None and ref.snapshot_id not in ancestors:
            raise ValidationError(
                f"{metadata.location}: can't fast-forward {self.branch!r} to {self.to!r}: its head {ref.snapshot_id} "
                f"is not an ancestor of {target.snapshot_id}"
            )
        if ref is not None and ref.snapshot_id == target.snapshot_id:
            return metadata
        return update_table_metadata(metadata, (branch_update(metadata, self.branch, target.snapshot_id),))


@dataclass
class CherryPick:
    """A step of a transaction: see `ManageSnapshots.cherry_pick`."""

    snapshot_id: int
    _copy: _Copy | None = None

    @property
    def names(self) -> SnapshotNames | None:
        """The names of the files that the step writes; None if it writes none. For `Transaction`."""
        return None if self._copy is None else self._copy.step.names

    def apply(self, state: TableState) -> TableMetadata:
        """Return the table's metadata with the changes on main. Attempts share the files that a copy has written."""
        picked = snapshot_of(state.metadata, self.snapshot_id)
        head = branch_head(state, MAIN_BRANCH)
        history = [] if head.snapshot is None else [*ancestors_of(state.metadata, head.snapshot.snapshot_id)]
        copied = _is_append(picked) or _is_dynamic_overwrite(picked)
        if copied:
            _refuse_published(head, history, picked)
        if picked.parent_snapshot_id == (head.snapshot.snapshot_id if head.snapshot else None):
            return update_table_metadata(
                state.metadata, (branch_update(state.metadata, MAIN_BRANCH, picked.snapshot_id),)
            )
        _refuse_ancestor(head, history, picked)
        if not copied:
            raise ValidationError(
                f"{_name(head, picked)} is {picked.operation}: only appends and dynamic partition overwrites can be "
                "cherry-picked, and what is based on the head of main"
            )
        self._copy = self._copy or _Copy.of(state, picked)
        return self._copy.apply(state, head, history)


@dataclass
class _Copy:
    """A new snapshot of main with the changes of another one.

    Attributes:
        picked: the other snapshot.
        step: makes the new one.
        added: the data files that the snapshot added.
    """

    picked: Snapshot
    step: SnapshotStep
    added: DataFrame

    @staticmethod
    def of(state: TableState, picked: Snapshot) -> _Copy:
        changes = file_changes(state, picked.parent_snapshot_id, picked.snapshot_id)
        data = changes.where(F.col("content") == int(ContentType.DATA))
        added = data.where(F.col(CHANGE_TYPE) == ADDED)
        properties = {SOURCE_SNAPSHOT: str(picked.snapshot_id)} | recording_properties(picked)
        if wap_id := summary_of(picked).get(WAP_ID):
            properties[PUBLISHED_WAP_ID] = wap_id
        step = SnapshotStep(state, WriteTarget(MAIN_BRANCH), properties)
        update = SnapshotUpdate(step)
        if _is_append(picked):
            update.append(added)
        else:
            update.overwrite(added, data.where(F.col(CHANGE_TYPE) == REMOVED).select("file_path"))
        return _Copy(picked, step, added)

    def apply(self, state: TableState, head: TableState, history: list[Snapshot]) -> TableMetadata:
        if _is_dynamic_overwrite(self.picked):
            start = self.picked.parent_snapshot_id
            if start is not None and start not in {snapshot.snapshot_id for snapshot in history}:
                problem = f"overwrites partitions of snapshot {start}, which is not an ancestor of main"
                raise CommitConflictError(f"{_name(head, self.picked)} {problem}")
            refuse_new_data(head, self.added, start)
        try:
            return self.step.apply(state)
        except NotLiveError as error:
            raise CommitConflictError(f"{error} any more") from error


# -- Snapshots ------------------------------------------------------------------------------------------------------


def _refuse_published(head: TableState, history: list[Snapshot], picked: Snapshot) -> None:
    wap_id = summary_of(picked).get(WAP_ID)
    for snapshot in history if wap_id else ():
        if wap_id in wap_ids(snapshot):
            raise ValidationError(f"{_name(head, picked)} has the wap.id {wap_id!r}: it is published already")


def _refuse_ancestor(head: TableState, history: list[Snapshot], picked: Snapshot) -> None:
    keys = recorded(picked)
    for snapshot in history:
        if snapshot.snapshot_id == picked.snapshot_id:
            raise ValidationError(f"{_name(head, picked)} is an ancestor of main already")
        if summary_of(snapshot).get(SOURCE_SNAPSHOT) == str(picked.snapshot_id):
            raise ValidationError(f"{_name(head, picked)} is on main already, as snapshot {snapshot.snapshot_id}")
        if key := next((key for key in recorded(snapshot) if key in keys), None):
            problem = f"has the idempotency key {key}, which snapshot {snapshot.snapshot_id} on main has"
            raise ValidationError(f"{_name(head, picked)} {problem}: its changes are on main already")


def _is_append(snapshot: Snapshot) -> bool:
    return snapshot.operation == "append"


def _is_dynamic_overwrite(snapshot: Snapshot) -> bool:
    return snapshot.operation == "overwrite" and summary_of(snapshot).get(_REPLACE_PARTITIONS) == "true"


def _name(state: TableState, snapshot: Snapshot) -> str:
    return f"{state.metadata.location}: snapshot {snapshot.snapshot_id}"
