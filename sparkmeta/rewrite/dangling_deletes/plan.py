"""The plan to remove dangling deletes, and the step that commits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.commit.removal import Removal, removal_of
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.list_options import ListOptions
from sparkmeta.edit.lists import NewList, without_manifests
from sparkmeta.edit.new_snapshot import NewSnapshot, branch_head, with_root
from sparkmeta.edit.next_root import TreeChange
from sparkmeta.edit.rewrite_plan import RewritePlan, RewriteStep, RewriteSummary, rewritten_by_others
from sparkmeta.edit.rewritten_manifests import ManifestRewriter
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.edit.tally import KindCount
from sparkmeta.errors import UnsupportedError
from sparkmeta.operations.base_table import TableT
from sparkmeta.rewrite.dangling_deletes.search import dangling_deletes, public_rows
from sparkmeta.spec.entry import FileKind
from sparkmeta.spec.metadata import has_tree, refuse_encrypted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class DanglingDeletesSummary(RewriteSummary):
    """The dangling deletes of a branch in numbers.

    Attributes:
        manifests: the number of manifests, and roots, that list them.
        records: the number of deletes in the files.
        bytes: the bytes of the files, of deletion vectors those of the blobs.
    """

    manifests: int
    position_delete_files: int
    equality_delete_files: int
    deletion_vectors: int
    records: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.manifests

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: all deletes apply to live data files"
        kinds = (
            f"{self.position_delete_files} position delete files, {self.equality_delete_files} equality delete files "
            f"and {self.deletion_vectors} deletion vectors"
        )
        return "\n".join(
            [
                f"{self.table}: {kinds} apply to no live data file",
                f"  {self.records} deletes in {self.bytes} bytes, listed by {self.manifests} manifests",
            ]
        )


@dataclass(frozen=True)
class DanglingDeletesPlan(RewritePlan[TableT]):
    """A plan to remove the entries of deletes that apply to no live data file, carried out by `commit`.

    If other commits came first, the commit determines the dangling deletes of the newest snapshot again. It raises
    CommitConflictError if none are left.
    """

    @cached_property
    def _entries(self) -> DataFrame:
        return dangling_deletes(self._state)

    @cached_property
    def _removal(self) -> Removal:
        return removal_of(self._entries, self._state)

    def files(self) -> DataFrame:
        """Return a row for each dangling delete, with columns of `inspect.delete_files`.

        Also data_sequence_number, manifest_path and manifest_pos. Lazy, except that the driver reads small manifests.
        """
        return public_rows(self._entries, self._state)

    def summary(self) -> DanglingDeletesSummary:
        """Return the plan in numbers. Runs jobs, once."""
        removal = self._removal
        counts = removal.tally.counts
        files = {kind: counts.get(kind, KindCount()).files for kind in FileKind}
        return DanglingDeletesSummary(
            table=self.table.full_name,
            snapshot_id=self._state.snapshot.snapshot_id if self._state.snapshot else None,
            manifests=len(removal.masks) + bool(removal.keys),
            position_delete_files=files[FileKind.POSITION_DELETES],
            equality_delete_files=files[FileKind.EQUALITY_DELETES],
            deletion_vectors=files[FileKind.DELETION_VECTOR],
            records=sum(count.records for count in counts.values()),
            bytes=sum(count.size for count in counts.values()),
        )

    def step(self) -> RewriteStep | None:
        if self.summary().is_empty:
            return None
        return _DanglingStep(self.branch, self.properties, self._state, self._removal)


@dataclass
class _DanglingStep(RewriteStep):
    """Removes the dangling deletes in the head of each attempt."""

    planned_on: TableState
    planned: Removal

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        refuse_rewrite(head.metadata)
        base = base_root(head) if has_tree(head.metadata) else None
        state = head if base is None else with_root(head, base)
        removal = self.planned
        if state.snapshot != self.planned_on.snapshot:
            removal = removal_of(dangling_deletes(state), state)
        if not (removal.masks or removal.keys):
            raise rewritten_by_others(head)
        if base is not None and base.root is not None:
            new = NewSnapshot(state, base, self.branch, self.names)
            counts = ManifestCounts(kept=len(base.root.leaves))
            change = TreeChange(removed=removal.keys, masks=removal.masks)
            return new.commit(change, self.summary(head, counts, removed=removal.tally))
        options = ListOptions.of(head.metadata)
        rewriter = ManifestRewriter(head, self.names.snapshot_id, self.names.file("m"), options.target_bytes)
        listed = head.manifest_files
        unchanged = without_manifests(listed, removal.masks.keys())
        manifests = rewriter.without_entries(listed, removal.masks)
        self.names.written.update(manifests.column("manifest_path").to_pylist())
        counts = ManifestCounts(len(manifests), len(unchanged), len(manifests))
        summary = self.summary(head, counts, removed=removal.tally)
        return NewList(head, self.branch, self.names).commit(pa.concat_tables([manifests, unchanged]), summary())


def plan_removal(table: TableT, branch: str, properties: Mapping[str, str]) -> DanglingDeletesPlan[TableT]:
    """See `Maintenance.remove_dangling_deletes`."""
    table.refuse_read_only()
    refuse_rewrite(table.metadata)
    head = branch_head(table.state, branch)
    state = with_root(head, base_root(head)) if has_tree(head.metadata) else head
    return DanglingDeletesPlan(table, branch, properties, state)


def refuse_rewrite(metadata: TableMetadata) -> None:
    """Refuse tables whose delete manifests can't be rewritten.

    Raises:
        UnsupportedError: they are encrypted, or in manifest lists of format version 4.
    """
    if metadata.format_version > 3 and not has_tree(metadata):
        raise UnsupportedError(
            f"{metadata.location}: its manifest lists are of format version {metadata.format_version}: commits need a "
            "metadata tree, which `sparkmeta upgrade` or table.maintenance.upgrade(4) makes"
        )
    refuse_encrypted(metadata, "whose manifests can't be rewritten")
