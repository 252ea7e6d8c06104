"""Upgrade a table to a later format version or to the metadata tree, and revert an upgrade to the tree."""

from __future__ import annotations

import time
import uuid
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table.refs import SnapshotRefType

from sparkmeta.checks import Options, described, one_of, option
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.compaction import CompactionOptions
from sparkmeta.entries.live import live_count
from sparkmeta.errors import CommitConflictError, NotFoundError, ValidationError
from sparkmeta.maintain.compact_manifests import PLANNED, CompactionPlan, CompactionSummary, compaction_of
from sparkmeta.maintain.plans import PlanSummary, TablePlan
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.session import local_frame
from sparkmeta.spec.metadata import has_tree, parse_table_metadata, refuse_encrypted
from sparkmeta.spec.metadata_model import TableMetadataV4
from sparkmeta.spec.upgrade import undo_upgrade, upgrade_lists, upgrade_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.partitioning import Expression


# -- Upgrade the format version (table spec, Appendix E) --------------------------------------------------------------
# A table gets a later format version, or the metadata tree of version 4. Only table metadata is replaced. Snapshots
# keep their manifest lists, and manifests keep their layout. The first snapshot of version 3 assigns row ids to the
# manifests that it lists.
#
# For a tree, every partition field gets an expression (semantics 17.7, 19.2). The first commit to a branch converts
# the list of its head to a root. Manifests keep their layout until a compaction, which can be part of the same commit.


TREE_VERSION = 4
_VERSIONS = (2, 3, TREE_VERSION)


@dataclass(frozen=True)
class BranchSummary:
    """The head of a branch. Its manifests stay unchanged.

    Attributes:
        data_files: live data files; None if a list of format version 1 does not count them.
        delete_files: live delete files; None if a list of format version 1 does not count them.
    """

    name: str
    snapshot_id: int
    data_manifests: int
    delete_manifests: int
    data_files: int | None
    delete_files: int | None

    def __str__(self) -> str:
        files = " and ".join(
            f"{'an unknown number of' if count is None else count} {kind} files in {manifests} manifests"
            for kind, count, manifests in (
                ("data", self.data_files, self.data_manifests),
                ("delete", self.delete_files, self.delete_manifests),
            )
        )
        return f"branch {self.name}, snapshot {self.snapshot_id}: {files}"


@dataclass(frozen=True)
class UpgradeSummary(PlanSummary):
    """The changes that an upgrade makes, and the files that it keeps; `str` formats them.

    Attributes:
        expressions: the new expressions. Only trees have expressions.
        snapshots: the number of snapshots, which keep their manifest lists.
        compaction: the compaction of the main branch; None if the upgrade does not compact.
    """

    from_version: int
    to_version: int
    specs: int
    expressions: tuple[Expression, ...]
    snapshots: int
    branches: tuple[BranchSummary, ...]
    compaction: CompactionSummary | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, in JSON-compatible types."""
        expressions = [expression.model_dump(mode="json", by_alias=True) for expression in self.expressions]
        return super().to_dict() | {"expressions": expressions}

    def __str__(self) -> str:
        becomes = f"{self.table}: format version {self.from_version} becomes {self.to_version}"
        listed = [f"{self.snapshots} snapshots keep their manifest lists", *(f"  {branch}" for branch in self.branches)]
        if self.to_version < TREE_VERSION:
            return "\n".join([becomes, *listed, f"{_NEEDS[self.to_version]} from then on"])
        return "\n".join(
            [
                f"{becomes}, with a metadata tree",
                f"{len(self.expressions)} new expressions for {self.specs} partition specs",
                *(
                    f"  expression {expression.expr_id}: {_expression_text(expression)}"
                    for expression in self.expressions
                ),
                *listed,
                "Iceberg's Java library refuses the table from then on",
                *self._manifests,
            ]
        )

    @property
    def _manifests(self) -> list[str]:
        if self.compaction is not None:
            return [str(self.compaction)]
        if not any(branch.data_manifests or branch.delete_manifests for branch in self.branches):
            return []
        next_step = "compact_manifests gives them the tree's layout, which plans read faster"
        return [f"no manifest is rewritten: {next_step}; an upgrade with the option compact does both"]


_NEEDS = {
    2: "Engines that read only version 1 refuse the table",
    3: "Engines that read only versions 1 and 2 refuse the table, and deletes are deletion vectors",
}


@dataclass(frozen=True)
class UpgradePlan(TablePlan[TableT]):
    """A plan to upgrade a table, carried out by `commit`.

    A compaction has its snapshot in the same commit. `commit` raises CommitConflictError if another commit has upgraded
    the table.

    Attributes:
        to_version: the format version that the table gets.
        compact: whether to compact the manifests of the main branch in the same commit.
    """

    _doing = "Upgrading"

    to_version: int = TREE_VERSION
    compact: bool = False
    _table_uuid: uuid.UUID = field(default_factory=uuid.uuid4)

    def to_df(self) -> DataFrame:
        """Return the rows of the compaction's plan; none without a compaction, which rewrites no file. Runs no job.

        The columns are as in the plans of `compact_manifests`.
        """
        return (
            local_frame(self.table.state.spark, PLANNED.empty_table())
            if self.compaction is None
            else self.compaction.to_df()
        )

    def summary(self) -> UpgradeSummary:
        """Return the changes and the files that are kept. Reads the manifest lists of the branches' heads.

        Runs no job unless the plan compacts manifests and the table has delete manifests. The job then reads the kinds
        of deletes.
        """
        return self._summary

    @cached_property
    def compaction(self) -> CompactionPlan[TableT] | None:
        """The plan of the compaction; None if the upgrade does not compact."""
        if not self.compact:
            return None
        upgraded = replace(self.table.state, metadata=self.apply(self.table.state))
        return compaction_of(self.table, upgraded, CompactionOptions())

    @cached_property
    def _summary(self) -> UpgradeSummary:
        metadata, upgraded = self.table.metadata, self.apply(self.table.state)
        known_ids = {expression.expr_id for expression in getattr(metadata, "expressions", [])}
        return UpgradeSummary(
            table=self.table.full_name,
            from_version=metadata.format_version,
            to_version=self.to_version,
            specs=len(metadata.partition_specs),
            expressions=tuple(
                expression for expression in getattr(upgraded, "expressions", ()) if expression.expr_id not in known_ids
            ),
            snapshots=len(metadata.snapshots),
            branches=tuple(_branches(self.table.state)),
            compaction=None if self.compaction is None else self.compaction.summary(),
        )

    def _commit(self) -> TableT:
        compaction = None if self.compaction is None else self.compaction.step()
        return commit_steps(self.table, [self] if compaction is None else [self, compaction])

    def apply(self, state: TableState) -> TableMetadata:
        """Return the upgraded metadata of a state. For `commit`."""
        try:
            _refuse(state.metadata, self.to_version)
        except ValidationError as error:
            raise CommitConflictError(str(error)) from error
        upgraded = self._upgraded(state.metadata)
        now = max(int(time.time() * 1000), upgraded.last_updated_ms)
        return upgraded.model_copy(update={"last_updated_ms": now})

    def _upgraded(self, metadata: TableMetadata) -> TableMetadata:
        if self.to_version == TREE_VERSION:
            return upgrade_metadata(metadata, self._table_uuid)
        return upgrade_lists(metadata, self.to_version, self._table_uuid)


@dataclass(frozen=True)
class UpgradeOptions(Options):
    """See `Maintenance.upgrade`."""

    format_version: int = field(
        metadata=described("the new format version: 2, 3 or 4.", one_of(*_VERSIONS), TREE_VERSION)
    )
    _: KW_ONLY
    compact: bool = option(
        False,
        "also compact the manifests of the main branch of a tree, in the same commit. `undo_upgrade` is impossible "
        "after that.",
    )

    def check(self) -> None:
        """See `Options.check`."""
        super().check()
        if self.compact and self.format_version != TREE_VERSION:
            raise ValidationError(f"compact is true: only an upgrade to version {TREE_VERSION} compacts")


def plan_upgrade(table: TableT, options: UpgradeOptions) -> UpgradePlan[TableT]:
    """See `Maintenance.upgrade`."""
    options.check()
    version = options.format_version
    _refuse(table.metadata, version)
    refuse_read_only(table, as_tree=version == TREE_VERSION)
    return UpgradePlan(table, version, options.compact)


def can_upgrade(metadata: TableMetadata, format_version: int) -> bool:
    """Return whether a table has an earlier format version, or the same version without a tree."""
    return not has_tree(metadata) and metadata.format_version < format_version + (format_version == TREE_VERSION)


def _refuse(metadata: TableMetadata, format_version: int) -> None:
    if has_tree(metadata):
        raise ValidationError(f"{metadata.location}: the table has the metadata tree of format version 4 already")
    if not can_upgrade(metadata, format_version):
        raise ValidationError(
            f"{metadata.location}: the table has format version {metadata.format_version} already: an upgrade to "
            f"{format_version} is impossible"
        )
    if format_version == TREE_VERSION:
        refuse_encrypted(metadata, "which metadata trees can't be")


def _branches(state: TableState) -> list[BranchSummary]:
    heads = [
        (name, state.metadata.snapshot_by_id(ref.snapshot_id))
        for name, ref in sorted(state.metadata.refs.items())
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH
    ]
    return [_branch(name, state.at(head)) for name, head in heads if head is not None]


def _branch(name: str, head: TableState) -> BranchSummary:
    assert head.snapshot is not None
    data, deletes = head.data_manifests, head.delete_manifests
    return BranchSummary(
        name, head.snapshot.snapshot_id, len(data), len(deletes), live_count(data), live_count(deletes)
    )


def _expression_text(expression: Expression) -> str:
    columns = ", ".join(map(str, expression.source_ids))
    return f"{expression.transform} of column {columns}, partition field {expression.name}"


# -- Revert an upgrade to the metadata tree ---------------------------------------------------------------------------
# This is possible as long as no commit has written a root.


@dataclass(frozen=True)
class UndoUpgradeSummary(PlanSummary):
    """The format version that a table returns to.

    Attributes:
        snapshots: the number of snapshots, which keep their manifest lists.
    """

    to_version: int
    snapshots: int

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.table}: the metadata tree becomes format version {self.to_version} again",
                f"{self.snapshots} snapshots keep their manifest lists; changes since the upgrade stay",
            ]
        )


@dataclass(frozen=True)
class UndoUpgradePlan(TablePlan[TableT]):
    """A plan to revert an upgrade, carried out by `commit`, which raises ValidationError if a snapshot has a root.

    Attributes:
        to_version: the format version before the upgrade.
    """

    to_version: int

    def __str__(self) -> str:
        return str(self.summary())

    def to_df(self) -> DataFrame:
        """Return no rows, since only the table's metadata changes. The only column is file_path."""
        return local_frame(self.table.state.spark, pa.schema([pa.field("file_path", pa.string())]).empty_table())

    def summary(self) -> UndoUpgradeSummary:
        """Return the plan in numbers."""
        return UndoUpgradeSummary(self.table.full_name, self.to_version, len(self.table.metadata.snapshots))

    def _commit(self) -> TableT:
        return commit_steps(self.table, [self])

    def apply(self, state: TableState) -> TableMetadata:
        """Return the metadata of a state in the earlier format version. For `commit`."""
        undone = undo_upgrade(_tree_metadata(state.metadata), self.to_version)
        now = max(int(time.time() * 1000), undone.last_updated_ms)
        return undone.model_copy(update={"last_updated_ms": now})


def plan_undo_upgrade(table: TableT, format_version: int | None) -> UndoUpgradePlan[TableT]:
    """See `Maintenance.undo_upgrade`."""
    metadata = _tree_metadata(table.metadata)
    if format_version is not None and format_version not in (1, 2, 3, 4):
        raise ValidationError(f"{table.full_name}: there is no format version {format_version} to go back to")
    version = _version_before(table.state) if format_version is None else format_version
    undo_upgrade(metadata, version)
    refuse_read_only(table)
    return UndoUpgradePlan(table, version)


def _tree_metadata(metadata: TableMetadata) -> TableMetadataV4:
    if not isinstance(metadata, TableMetadataV4) or not has_tree(metadata):
        raise ValidationError(f"{metadata.location}: the table has no metadata tree, so there is no upgrade to undo")
    return metadata


def _version_before(state: TableState) -> int:
    """Return the format version of the newest metadata file in the log that has no tree."""
    for entry in reversed(state.metadata.metadata_log):
        try:
            logged = parse_table_metadata(state.files.read(entry.metadata_file), entry.metadata_file)
        except NotFoundError:
            break
        if not has_tree(logged):
            return logged.format_version
    raise ValidationError(
        f"{state.metadata.location}: the metadata log does not show the table's format version before its "
        "upgrade: pass it as format_version"
    )
