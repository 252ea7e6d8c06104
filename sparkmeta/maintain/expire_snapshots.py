"""Expire snapshots and delete the files that only they need."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from sparkmeta.checks import Options, Rule, at_least, one_of, option
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.entries.relation import frame_of
from sparkmeta.errors import ValidationError, shown
from sparkmeta.inspect.history import snapshots as snapshot_rows
from sparkmeta.maintain.plans import PlanSummary, TablePlan
from sparkmeta.maintain.reachable import count_files, public_files, unreachable_files, used_specs
from sparkmeta.maintain.reachable_tasks import Deletion, delete_files
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.progress import planning, progress
from sparkmeta.session import local_frame
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.expiry import Expired, ExpiryRules, choose_expired, expired_ids, with_removed, without_expired
from sparkmeta.spec.metadata_model import StoredSnapshots
from sparkmeta.storage.files import executor_writer
from sparkmeta.text import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


# -- The options of `Maintenance.expire_snapshots` --------------------------------------------------------------------


ALL, METADATA, NONE = "all", "metadata", "none"


def _listed(values: Any) -> Any:
    """Return an iterable as a tuple, since a generator can be read only once; return any other value unchanged."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def _are_ids(values: Any) -> bool:
    """Return whether a value is a tuple of whole numbers, which may be numpy's."""
    if not isinstance(values, tuple):
        return False
    return all(isinstance(value, Integral) and not isinstance(value, bool) for value in values)


@dataclass(frozen=True)
class ExpiryOptions(Options):
    """See `Maintenance.expire_snapshots`."""

    _: KW_ONLY
    older_than: datetime | int | None = option(
        None,
        "expire snapshots from before this time. Defaults to the age by the table property "
        "history.expire.max-snapshot-age-ms, or else 5 days ago.",
    )
    retain_last: int | None = option(
        None,
        "the number of newest snapshots of a branch to keep regardless of age. Defaults to the table property "
        "history.expire.min-snapshots-to-keep, or else 1.",
        at_least(1),
    )
    snapshot_ids: Iterable[int] = option(
        (), "snapshots to expire regardless of age.", Rule("ids of snapshots", _are_ids)
    )
    clean_expired_metadata: bool = option(
        False,
        "also remove schemas and partition specs that no remaining snapshot uses. Schemas with columns that equality "
        "deletes may compare are kept. All are kept if a snapshot has a metadata tree.",
    )
    cleanup: str = option(
        ALL,
        "which files to delete: `all`, only `metadata` (lists, roots, manifests and statistics), or `none`.",
        one_of(ALL, METADATA, NONE),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshot_ids", _listed(self.snapshot_ids))

    def check(self) -> None:
        """See `Options.check`."""
        super().check()
        if self.older_than is not None:
            to_millis(self.older_than)


# -- `ExpiryPlan` -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpirySummary(PlanSummary):
    """The expired snapshots, branches and tags, and the files that they free; `str` formats them.

    Attributes:
        snapshots: the number of snapshots that expire.
        remaining: the number of snapshots that are kept.
        refs: the branches and tags that expire.
        files: content -> the number of files that are no longer needed.
        bytes: content -> the size of these files, as far as metadata records it.
        missing: the number of missing lists and manifests of expired snapshots. Files that they list are kept.
        schemas: the number of unused schemas that are removed from the metadata.
        partition_specs: the number of unused partition specs that are removed from the metadata.
    """

    snapshots: int
    remaining: int
    refs: tuple[str, ...]
    files: Mapping[str, int]
    bytes: Mapping[str, int]
    missing: int
    schemas: int
    partition_specs: int

    @property
    def is_empty(self) -> bool:
        return not (self.snapshots or self.refs or self.schemas or self.partition_specs)

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: none of its {self.remaining} snapshots expires"
        refs = f" and {len(self.refs)} branches and tags ({', '.join(self.refs)})" if self.refs else ""
        unused = f"  {counted(self.schemas, 'schema')} and {counted(self.partition_specs, 'partition spec')} removed"
        missing_text = (
            f"  {self.missing} lists and manifests of expired snapshots are missing; the files that they list stay"
        )
        return "\n".join(
            [
                f"{self.table}: {self.snapshots} snapshots{refs} to expire, {self.remaining} snapshots stay",
                f"  {sum(self.files.values())} files with {sum(self.bytes.values())} bytes are deleted",
                *(f"  {content}: {count} files, {self.bytes[content]} bytes" for content, count in self.files.items()),
                *([unused] if self.schemas or self.partition_specs else []),
                *([missing_text] if self.missing else []),
            ]
        )


@dataclass(frozen=True)
class ExpiryPlan(TablePlan[TableT]):
    """A plan to expire snapshots, carried out by `commit`."""

    _doing = "Expiring snapshots"

    rules: ExpiryRules
    cleanup: str
    _deleted: list[Deletion] = field(default_factory=list, init=False, repr=False, compare=False)

    # -- In pyiceberg's spelling --------------------------------------------------------------------------------------

    def older_than(self, timestamp: datetime | int) -> Self:
        """Return a plan that expires snapshots from before a time."""
        return self._with(older_than_ms=to_millis(timestamp))

    def by_id(self, snapshot_id: int) -> Self:
        """Return a plan that also expires a snapshot, regardless of its age."""
        return self.by_ids([snapshot_id])

    def by_ids(self, snapshot_ids: Iterable[int]) -> Self:
        """Return a plan that also expires snapshots, regardless of their age."""
        return self._with(snapshot_ids=(*self.rules.snapshot_ids, *snapshot_ids))

    def retain_last(self, count: int) -> Self:
        """Return a plan that keeps the newest snapshots of each branch, regardless of their age."""
        return self._with(retain_last=count)

    def _with(self, **changes: Any) -> Self:
        plan = replace(self, rules=replace(self.rules, **changes))
        choose_expired(self.table.metadata, plan.rules)
        return plan

    # -- The plan ----------------------------------------------------------------------------------------------------

    @cached_property
    def _expired(self) -> Expired:
        return choose_expired(self.table.metadata, self.rules)

    @cached_property
    def _step(self) -> _ExpiryStep:
        return _ExpiryStep(self.rules)

    @cached_property
    def _files(self) -> Relation:
        return _unreachable(self.table.state, self._expired, self.cleanup)

    def snapshots(self) -> DataFrame:
        """Return the snapshots that expire, with the columns of `table.inspect.snapshots()`. Runs no job."""
        metadata = self.table.metadata.model_copy(update={"snapshots": StoredSnapshots(self._expired.snapshots)})
        state = replace(self.table.state, metadata=metadata)
        return local_frame(state.spark, snapshot_rows(state))

    def to_df(self) -> DataFrame:
        """Return one row per file that is no longer needed. Runs jobs, unless the lists and manifests are few.

        Columns: content ("data file", "position delete file" with deletion vectors, "equality delete file",
        "manifest", "manifest list", "root", "manifest deletion vectors", "statistics file", "partition statistics
        file"), file_path, file_size_in_bytes (null if metadata does not record it).

        Raises:
            NotFoundError: a manifest or list of a remaining snapshot is missing.
        """
        return public_files(frame_of(self._files, self.table.state))

    @planning
    def summary(self) -> ExpirySummary:
        """Return the plan in numbers. Runs the jobs of `to_df`, and maybe another if it cleans metadata."""
        return self._summary

    @cached_property
    def _summary(self) -> ExpirySummary:
        counts = count_files(self._files)
        before, after = self.table.metadata, self._step.apply(self.table.state)
        return ExpirySummary(
            table=self.table.full_name,
            snapshots=len(self._expired.snapshots),
            remaining=len(before.snapshots) - len(self._expired.snapshots),
            refs=self._expired.refs,
            files=counts.files,
            bytes=counts.bytes,
            missing=counts.missing,
            schemas=len(before.schemas) - len(after.schemas),
            partition_specs=len(before.partition_specs) - len(after.partition_specs),
        )

    def commit(self) -> TableT:
        """Remove the snapshots from the table, then delete the files. Return the new table.

        If other commits came first, the snapshots to expire are chosen again by the same rules and the same time. Files
        of snapshots that others have added since stay. A file that can't be deleted becomes an orphan; this is not an
        error. After another error, `is_partly_committed` says whether the snapshots are removed. If so, the files are
        orphans, and another call deletes none.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitStateUnknownError: the commit may have succeeded; no file is deleted.
            NotFoundError: a manifest or list of a remaining snapshot is missing; no file is deleted.
        """
        if not self._committed:
            with progress(self._doing, self.table.state.sessions):
                if super().commit() is not self.table and self.cleanup != NONE:
                    self._deleted.append(self._delete())
        return self._committed[0]

    def _commit(self) -> TableT:
        if not self._step.changes(self.table.state):
            return self.table
        if self.cleanup != NONE:
            # Detect missing files of remaining snapshots before the commit: serverless sessions, which keep no rows of
            # `_files`, read them only to count. After the commit there is nothing left to count.
            self.summary()
        return commit_steps(self.table, [self._step])

    def _delete(self) -> Deletion:
        """Delete the files that only the removed snapshots need."""
        step, committed = self._step, self._committed[0]
        assert step.base is not None
        planned, count = self._files, None
        # A REST catalog accepts the commit although the catalog has snapshots that the commit's base lacks.
        base, after = step.base.metadata, committed.metadata
        has_added = any(snapshot.snapshot_id not in base.stored_by_id for snapshot in after.stored_snapshots)
        if has_added or base is not self.table.metadata:
            expired = choose_expired(base, self.rules)
            state = replace(step.base, metadata=with_removed(after, base))
            planned = _unreachable(state, expired, self.cleanup)
        else:
            count = sum(self.summary().files.values())
        return delete_files(planned, executor_writer(committed.state.files), committed.state, count)

    @property
    def is_partly_committed(self) -> bool:
        """Whether the snapshots are removed but their files could not be deleted."""
        has_changed = bool(self._committed) and self._committed[0] is not self.table
        return has_changed and self.cleanup != NONE and not self._deleted

    def _outcome(self) -> dict[str, Any] | None:
        outcome = super()._outcome()
        return outcome if outcome is None or not self._deleted else outcome | asdict(self._deleted[0])


@dataclass
class _ExpiryStep:
    """The step of the commit.

    Attributes:
        base: the state that the last attempt was applied to.
        changed: the metadata after that attempt.
    """

    rules: ExpiryRules
    base: TableState | None = None
    changed: TableMetadata | None = None

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        if self.changed is None or self.base is None or self.base.metadata is not state.metadata:
            self.base, self.changed = state, self._changed(state)
        return self.changed

    def _changed(self, state: TableState) -> TableMetadata:
        expired = choose_expired(state.metadata, self.rules)
        specs = used_specs(state, expired_ids(state.metadata, expired)) if self.rules.clean_metadata else None
        return without_expired(state.metadata, expired, specs, int(time.time() * 1000))

    def changes(self, state: TableState) -> bool:
        """Apply the step, and return whether it changes the metadata."""
        unchanged = {"last_updated_ms": state.metadata.last_updated_ms}
        return bool(self.apply(state).model_copy(update=unchanged) != state.metadata)


def _unreachable(state: TableState, expired: Expired, cleanup: str) -> Relation:
    ids = expired_ids(state.metadata, expired) if cleanup != NONE else ()
    return unreachable_files(state, ids, content_files=cleanup == ALL)


def to_millis(timestamp: datetime | int) -> int:
    """Convert a time to milliseconds since 1970.

    Raises:
        ValidationError: the time is a datetime without a time zone, or has another type.
    """
    if isinstance(timestamp, datetime) and timestamp.tzinfo is not None:
        return math.floor(timestamp.timestamp() * 1000)
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        return timestamp
    expected = "a datetime with a time zone, or milliseconds since 1970"
    raise ValidationError(f"older_than is {shown(timestamp)}: expected {expected}")


def plan_expiry(table: TableT, options: ExpiryOptions) -> ExpiryPlan[TableT]:
    """See `Maintenance.expire_snapshots`."""
    options.check()
    refuse_read_only(table)
    if options.cleanup != NONE:
        task_reader(table.state)
    rules = ExpiryRules(
        int(time.time() * 1000),
        None if options.older_than is None else to_millis(options.older_than),
        options.retain_last,
        tuple(options.snapshot_ids),
        options.clean_expired_metadata,
    )
    choose_expired(table.metadata, rules)
    return ExpiryPlan(table, rules, options.cleanup)
