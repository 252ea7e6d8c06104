"""Transactions: several changes of a table, made together by one swap of its metadata, and tried again when another
commit came first (table spec, Optimistic Concurrency)."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from sparkmeta.commit.manage_snapshots import ManageSnapshots
from sparkmeta.commit.snapshot_update import SnapshotUpdate
from sparkmeta.commit.swap import metadata_folder
from sparkmeta.errors import (
    CommitFailedError,
    NoSuchTableError,
    SparkmetaError,
    UnsupportedError,
    ValidationError,
    from_spark,
)
from sparkmeta.spec.metadata_model import TableMetadataV4
from sparkmeta.spec.updates import UpdateSpec, update_table_metadata

if TYPE_CHECKING:
    from types import TracebackType

    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.table.update.sorting import UpdateSortOrder

    from sparkmeta.commit.new_snapshot import SnapshotNames
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table

_log = logging.getLogger(__name__)

# Changes of branches and tags: tables of every format version take them.
_OF_REFS = (SetSnapshotRefUpdate, RemoveSnapshotRefUpdate)


class Step(Protocol):
    """A change that a commit makes; made anew on each state of the table that the commit is tried on.

    A step that writes files has `names`, a `SnapshotNames`.
    """

    def apply(self, state: TableState) -> TableMetadata:
        """The metadata that it makes of the state's metadata."""


@dataclass
class _MetadataStep:
    """Updates of pyiceberg's models, and what must hold of the table's metadata for them."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]

    def apply(self, state: TableState) -> TableMetadata:
        for requirement in self.requirements:
            requirement.validate(state.metadata)
        return update_table_metadata(state.metadata, self.updates)


@dataclass
class Transaction:
    """Changes that become visible together; used as `with table.transaction() as tx:`, or ended by `commit`.

    Nothing is written before its end. What a commit writes and does not use is deleted once its outcome is known.
    """

    table: Table
    _steps: list[Step] = field(default_factory=list)
    _metadata: TableMetadata | None = None
    _done: Table | None = None

    # -- what can be changed ----------------------------------------------------------------------------------------

    def update_snapshot(
        self, branch: str = "main", snapshot_properties: Mapping[str, str] | None = None
    ) -> SnapshotUpdate:
        """One new snapshot of a branch; its methods name the files, and take effect when the transaction commits.

        Raises UnsupportedError for a table that is no V4 tree.
        """
        update = SnapshotUpdate(self.table.state, branch, dict(snapshot_properties or {}))
        self._add_snapshot(update)
        return update

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """pyiceberg's builder of schema changes; its own `commit` or context ends it."""
        from pyiceberg.table.update.schema import UpdateSchema

        return UpdateSchema(self, allow_incompatible_changes, case_sensitive)  # type: ignore[arg-type]

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """pyiceberg's builder of a partition spec; its own `commit` or context ends it."""
        return UpdateSpec(self, case_sensitive)  # type: ignore[arg-type]

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """pyiceberg's builder of a sort order; its own `commit` or context ends it."""
        from pyiceberg.table.update.sorting import UpdateSortOrder

        return UpdateSortOrder(self, case_sensitive)  # type: ignore[arg-type]

    def manage_snapshots(self) -> ManageSnapshots:
        """pyiceberg's builder of branches and tags, with `fast_forward` and `cherry_pick`; its own `commit` or context
        ends it."""
        return ManageSnapshots(self)  # type: ignore[arg-type]

    def set_properties(self, properties: Mapping[str, Any] | None = None, **values: Any) -> Self:
        """Sets table properties."""
        updates = {key: str(value) for key, value in {**(properties or {}), **values}.items()}
        self._apply((SetPropertiesUpdate(updates=updates),))
        return self

    def remove_properties(self, *names: str) -> Self:
        """Removes table properties."""
        self._apply((RemovePropertiesUpdate(removals=list(names)),))
        return self

    # -- what pyiceberg's builders ask for ---------------------------------------------------------------------------

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the changes so far, but for new snapshots."""
        return self._metadata or self.table.metadata

    def _apply(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Self:
        if not all(isinstance(update, _OF_REFS) for update in updates):
            refuse_older(self.table)
        return self._add(_MetadataStep(tuple(updates), tuple(requirements)))

    def _add(self, step: Step) -> Self:
        """A step that changes metadata alone, so that the changes after it see it."""
        self._metadata = step.apply(replace(self.table.state, metadata=self.table_metadata))
        self._steps.append(step)
        return self

    def _add_snapshot(self, step: Step) -> None:
        """A step that makes a snapshot, when the transaction commits."""
        refuse_older(self.table)
        self._steps.append(step)

    def _stage(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Self:
        return self._apply(updates, requirements)

    def _set_ref_snapshot(
        self, snapshot_id: int, ref_name: str, **fields: Any
    ) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        known = self.table_metadata.refs.get(ref_name)
        given = {key: value for key, value in fields.items() if value is not None}
        update = SetSnapshotRefUpdate.model_validate({"snapshot-id": snapshot_id, "ref-name": ref_name, **given})
        requirement = {"ref": ref_name, "snapshot-id": known.snapshot_id if known else None}
        return (update,), (AssertRefSnapshotId.model_validate(requirement),)

    # -- the end ----------------------------------------------------------------------------------------------------

    def commit(self) -> Table:
        """Makes all changes, as one commit; the table as it is then.

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


def refuse_older(table: Table) -> None:
    """UnsupportedError for a table that is no metadata tree."""
    metadata = table.metadata
    if not isinstance(metadata, TableMetadataV4) or metadata.layout_revision is None:
        version = metadata.format_version
        raise UnsupportedError(
            f"{table.name}: it is a table of format version {version} with manifest lists: commits need its metadata "
            "tree, to which `sparkmeta upgrade` or table.maintenance.upgrade(4) turns it"
        )


def commit_steps(table: Table, steps: Sequence[Step]) -> Table:
    """Commits what the steps make of the table, one after the other, as `Transaction.commit` says."""
    swap = table.committer()
    retry = _Retry.of(table.properties)
    started = time.monotonic()
    for attempt in range(retry.retries + 1):
        metadata = table.metadata
        try:
            for step in steps:
                metadata = step.apply(replace(table.state, metadata=metadata))
        except Exception as error:
            _discard_attempts(table, steps)
            told = None if isinstance(error, SparkmetaError) else from_spark(error)
            if told is not None:
                raise told from error
            raise
        try:
            swapped = swap.commit(table.metadata_location, table.metadata, metadata)
        except CommitFailedError:
            _discard_snapshots(table, metadata)
            waited = time.monotonic() - started
            if attempt == retry.retries or waited * 1000 > retry.total_ms:
                _discard_attempts(table, steps)
                raise
            time.sleep(retry.wait(attempt))
            table = table.refresh()
        except (ValidationError, UnsupportedError, NoSuchTableError):
            _discard_attempts(table, steps)
            raise
        else:
            _discard_unused(table, steps)
            return table.at(swapped.metadata_location, swapped.metadata)
    raise AssertionError("unreachable")


def _discard_unused(table: Table, steps: Sequence[Step]) -> None:
    """Delete what attempts have written and the commit did not use: no other one will."""
    unused = [location for names in _names(steps) for location in sorted(names.written - names.used)]
    discard(table.state.files, unused)


def _discard_attempts(table: Table, steps: Sequence[Step]) -> None:
    """Delete all that attempts have written, of which nothing was committed for certain.

    Tasks of a failed job may have written files that they had no way to tell of, so the names decide.
    """
    files, folder = table.state.files, metadata_folder(table.metadata)
    for names in _names(steps):
        names.discarded = True
        for snapshot_id in names.ids:
            try:
                locations = [status.location for status in files.list(folder, f"{snapshot_id}-*")]
            except Exception as error:  # noqa: BLE001 - a store that lists nothing leaves orphans
                _log.warning("%s: not listed: %s", folder, error)
                locations = sorted(names.written)
            discard(files, locations)


def _names(steps: Sequence[Step]) -> Iterator[SnapshotNames]:
    for step in steps:
        names = getattr(step, "names", None)
        if names is not None:
            yield names


def _discard_snapshots(table: Table, failed: TableMetadata) -> None:
    """Delete the roots and manifest lists that only an attempt has which was not committed for certain."""
    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    new = (snapshot for snapshot in failed.snapshots if snapshot.snapshot_id not in known)
    locations = (snapshot.root_manifest or snapshot.manifest_list for snapshot in new)
    discard(table.state.files, [location for location in locations if location])


def discard(files: Files, locations: Sequence[str]) -> None:
    """Deletes what no snapshot has, and none will. What can't be deleted is an orphan, and no reason to fail."""
    try:
        for kept in files.delete_many(locations) if locations else ():
            _log.warning("%s: not deleted: %s", *kept)
    except Exception as error:  # noqa: BLE001 - whatever it is
        _log.warning("%s: not deleted: %s", ", ".join(locations), error)


@dataclass(frozen=True)
class _Retry:
    """Table properties `commit.retry.*`."""

    retries: int = 4
    least_ms: int = 100
    most_ms: int = 60_000
    total_ms: int = 1_800_000

    @staticmethod
    def of(properties: Mapping[str, str]) -> _Retry:
        names = {
            "retries": "num-retries",
            "least_ms": "min-wait-ms",
            "most_ms": "max-wait-ms",
            "total_ms": "total-timeout-ms",
        }
        values: dict[str, int] = {}
        for name, key in names.items():
            text = properties.get(f"commit.retry.{key}")
            if text is not None:
                if not text.isdecimal():
                    raise ValidationError(f"the table property commit.retry.{key} is {text!r}: it takes a whole number")
                values[name] = int(text)
        return _Retry(**values)

    def wait(self, attempt: int) -> float:
        """Seconds to wait after an attempt, doubled each time, with a share of chance so that writers part."""
        longest: int = min(self.most_ms, self.least_ms * 2**attempt)
        return random.uniform(0.5, 1.0) * longest / 1000
