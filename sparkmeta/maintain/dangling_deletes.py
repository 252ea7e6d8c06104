"""Find the delete entries that apply to no live data file, by the rules of scan planning (semantics 6.1 to 6.6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.lists import ManifestRewriter, NewList, without_manifests
from sparkmeta.commit.new_snapshot import LeafCounts, NewSnapshot, branch_head, with_root
from sparkmeta.commit.next_root import TreeChange
from sparkmeta.commit.options import BranchOptions
from sparkmeta.commit.removed_files import Removal, removal_of
from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.projection import DV_COLUMNS
from sparkmeta.entries.relation import (
    beside,
    broadcast,
    frame_of,
    grouped,
    names,
    select,
    some_columns,
    where,
    with_columns,
)
from sparkmeta.entries.tally import KindCount
from sparkmeta.expr import sql
from sparkmeta.maintain.plans import RewritePlan, RewriteStep, SnapshotPlanSummary, rewritten_by_others
from sparkmeta.operations.table_operations import TableT, refuse_lists_of_version_4, refuse_read_only
from sparkmeta.plan.deletes.rules import SEQUENCE, data_path, is_dv, is_global_delete, partition_key
from sparkmeta.plan.filter import manifest_path, public_partition
from sparkmeta.progress import planning
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.file_kind import FileKind
from sparkmeta.spec.metadata import has_tree, refuse_encrypted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

ENTRY_COLUMNS = (*DV_COLUMNS, "equality_ids")
"""The columns of delete entries that `public_rows` needs."""

# The scopes of a delete entry, and the least sequence number of the live data files in each scope.
_PATH, _PARTITION, _TABLE = "deleted_path", "deleted_partition", "deleted_table"
_OF_FILE, _OF_PARTITION, _OF_TABLE = "oldest_of_file", "oldest_of_partition", "oldest_of_table"
_DATA_PATH, _DATA_PARTITION, _DATA_TABLE, _NUMBER = "data_path", "data_partition", "data_table", "number"


def dangling_deletes(state: TableState) -> Relation:
    """Return the live delete entries that apply to no live data file of the snapshot; a DataFrame is lazy.

    Statistics are not considered. Position deletes that a deletion vector of their file supersedes are not considered
    either. Deletes that contradict the rules of planning stay, such as a deletion vector that is older than its data
    file.
    """
    projection = state.projection(ENTRY_COLUMNS, {DELETE_FILE_PATH_ID})
    entries = where(state.relation(live_manifests(state.delete_manifests), projection), is_live_entry())
    scopes = data_path().alias(_PATH), partition_key(state).alias(_PARTITION), sql.lit(1).alias(_TABLE)
    data = _data(state)
    by_file = _oldest(data, _DATA_PATH, _OF_FILE)
    by_partition = _oldest(data, _DATA_PARTITION, _OF_PARTITION)
    compared = beside(with_columns(entries, *scopes), by_file, _PATH, _DATA_PATH)
    compared = beside(compared, by_partition, _PARTITION, _DATA_PARTITION)
    compared = beside(compared, broadcast(_oldest(data, _DATA_TABLE, _OF_TABLE)), _TABLE, _DATA_TABLE)
    return some_columns(where(compared, ~_applies(state)), names(entries))


def _data(state: TableState) -> Relation:
    """Return the scopes and the sequence number of each live data file; unknown numbers are 0."""
    projection = state.projection(("location", "partition_spec_id", "version_info"))
    entries = where(state.relation(live_manifests(state.data_manifests), projection), is_live_entry())
    columns = {
        _DATA_PATH: sql.col("location"),
        _DATA_PARTITION: partition_key(state),
        _DATA_TABLE: sql.lit(1),
        _NUMBER: sql.coalesce(sql.col(SEQUENCE), 0),
    }
    return select(entries, sql.named(columns))


def _oldest(data: Relation, scope: str, name: str) -> Relation:
    """Return the least sequence number of the data files in each value of a scope."""
    return grouped(data, sql.columns(scope), [sql.call("min", sql.col(_NUMBER)).alias(name)])


def _applies(state: TableState) -> Sql:
    """Return SQL for whether a delete entry, joined with the least sequence numbers, may apply to a live data file."""
    by_partition = sql.when(is_global_delete(state), sql.col(_OF_TABLE)).otherwise(sql.col(_OF_PARTITION))
    oldest = sql.when(sql.col(_PATH).isNotNull(), sql.col(_OF_FILE)).otherwise(by_partition)
    is_equality = sql.col("content_type") == int(ContentType.EQUALITY_DELETES)
    sequence = sql.col(SEQUENCE)
    newer = sql.when(is_equality, oldest < sequence).otherwise(is_dv() | (oldest <= sequence))
    return oldest.isNotNull() & sql.coalesce(newer, True)


def public_rows(entries: Relation, state: TableState) -> DataFrame:
    """Return delete entries of `ENTRY_COLUMNS` as rows of `inspect.delete_files`, with their manifest and position."""
    blob = sql.col("deletion_vector")
    columns = {
        "content": sql.col("content_type"),
        "file_path": sql.col("location"),
        "file_format": sql.col("file_format"),
        "spec_id": sql.col("partition_spec_id"),
        **({"partition": public_partition(state)} if state.types.partition_type.fields else {}),
        "record_count": sql.col("record_count"),
        "file_size_in_bytes": sql.col("file_size_in_bytes"),
        "equality_ids": sql.col("equality_ids"),
        "referenced_data_file": sql.col("referenced_file"),
        "content_offset": blob["offset"],
        "content_size_in_bytes": blob["size_in_bytes"],
        "data_sequence_number": sql.col(SEQUENCE),
        "manifest_path": manifest_path(state.delete_manifests, sql.col("manifest")),
        "manifest_pos": sql.col("ordinal"),
    }
    return frame_of(select(entries, sql.named(columns)), state)


# -- The plan to remove dangling deletes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DanglingDeletesSummary(SnapshotPlanSummary):
    """The dangling deletes of a branch in numbers.

    Attributes:
        manifests: the number of manifests and roots that list the deletes.
        records: the number of deletes in the files.
        bytes: the bytes of the files, or of the blobs of deletion vectors.
    """

    manifests: int
    position_delete_files: int
    equality_delete_files: int
    deletion_vectors: int
    records: int
    bytes: int

    @property
    def is_empty(self) -> bool:
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
class DanglingDeletesPlan(RewritePlan[TableT, BranchOptions]):
    """A plan to remove the entries of deletes that apply to no live data file, carried out by `commit`.

    If other commits came first, the commit determines the dangling deletes of the newest snapshot again. It raises
    CommitConflictError if none are left.
    """

    _doing = "Rewriting delete manifests"

    @cached_property
    def _entries(self) -> Relation:
        return dangling_deletes(self._state)

    @cached_property
    def _removal(self) -> Removal:
        return removal_of(self._entries, self._state)

    def to_df(self) -> DataFrame:
        """Return a row for each dangling delete, with columns of `inspect.delete_files`.

        Further columns are data_sequence_number, manifest_path and manifest_pos. The result is lazy, except that the
        driver reads small manifests.
        """
        return public_rows(self._entries, self._state)

    @planning
    def summary(self) -> DanglingDeletesSummary:
        """Return the plan in numbers. Runs jobs, once."""
        removal = self._removal
        counts = removal.tally.counts
        files = {kind: counts.get(kind, KindCount()).files for kind in FileKind}
        return DanglingDeletesSummary(
            table=self.table.full_name,
            snapshot_id=self._snapshot_id,
            manifests=len(removal.masks) + bool(removal.keys),
            position_delete_files=files[FileKind.POSITION_DELETES],
            equality_delete_files=files[FileKind.EQUALITY_DELETES],
            deletion_vectors=files[FileKind.DELETION_VECTOR],
            records=sum(count.records for count in counts.values()),
            bytes=sum(count.size for count in counts.values()),
        )

    def step(self) -> RewriteStep | None:
        """See `RewritePlan.step`."""
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
            new_snapshot = NewSnapshot(state, base, self.branch, self.names)
            counts = LeafCounts(unchanged=len(base.root.leaves))
            change = TreeChange(removed=removal.keys, masks=removal.masks)
            return new_snapshot.write(change, self.summary(head, counts, removed=removal.tally))
        listed = head.manifest_files
        unchanged = without_manifests(listed, removal.masks.keys())
        manifests = ManifestRewriter(head, self.names).without_entries(listed, removal.masks)
        counts = LeafCounts(len(manifests), len(unchanged), len(manifests))
        summary = self.summary(head, counts, removed=removal.tally)
        return NewList(head, self.branch, self.names).write(pa.concat_tables([manifests, unchanged]), summary())


def plan_removal(table: TableT, options: BranchOptions) -> DanglingDeletesPlan[TableT]:
    """See `Maintenance.remove_dangling_deletes`."""
    options.check()
    refuse_read_only(table)
    refuse_rewrite(table.metadata)
    head = branch_head(table.state, options.branch)
    state = with_root(head, base_root(head)) if has_tree(table.metadata) else head
    return DanglingDeletesPlan(table, state, options)


def refuse_rewrite(metadata: TableMetadata) -> None:
    """Refuse tables whose delete manifests can't be rewritten.

    Raises:
        UnsupportedError: the table is encrypted, or has manifest lists of format version 4.
    """
    refuse_lists_of_version_4(metadata, metadata.location)
    refuse_encrypted(metadata, "whose manifests can't be rewritten")
