"""Make a new snapshot from a branch's root and a change: its summary, root and metadata."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from sparkmeta.checks import NAME
from sparkmeta.commit.leaves import spill_manifest_dvs
from sparkmeta.commit.next_root import LoadBlob, Stamp, TreeChange, next_root
from sparkmeta.commit.options import TreeOptions
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.v4.iceberg_writer import Moves
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.write import encode_root
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.spec.metadata_model import Snapshot
from sparkmeta.spec.summary import SnapshotSummaryBuilder, UpdateMetrics
from sparkmeta.spec.updates import update_table_metadata
from sparkmeta.storage.content import FileRange, read_ranges
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkmeta.commit.base_root import BaseRoot
    from sparkmeta.entries.tally import Tally
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import Summary


# -- The summary of a snapshot ----------------------------------------------------------------------------------------


_REPLACE_PARTITIONS = {"replace-partitions": "true"}


@dataclass(frozen=True)
class LeafCounts:
    """The numbers of leaves that a commit created, kept and replaced.

    Attributes:
        entries: entries in leaves that a compaction wrote; None without a compaction.
    """

    created: int = 0
    unchanged: int = 0
    replaced: int = 0
    entries: int | None = None

    def plus(self, other: LeafCounts) -> LeafCounts:
        """Return the sum of these counts and the other counts."""
        entry_counts = [count for count in (self.entries, other.entries) if count is not None]
        counts = (self.created + other.created, self.unchanged + other.unchanged, self.replaced + other.replaced)
        return LeafCounts(*counts, sum(entry_counts) if entry_counts else None)


def snapshot_summary(
    operation: str,
    added: Tally,
    removed: Tally,
    parent: Snapshot | None,
    properties: Mapping[str, str],
    manifests: LeafCounts,
    *,
    replaces_partitions: bool = False,
) -> Summary:
    """Return the summary of a snapshot (semantics 10.1).

    Raises:
        ValidationError: a property has the name of a computed property, or a rewrite adds more rows than it removes.
    """
    metrics = UpdateMetrics()
    for kind, count in added.counts.items():
        metrics.add_files(kind, count.files, count.records, count.size)
    for kind, count in removed.counts.items():
        metrics.remove_files(kind, count.files, count.records, count.size)
    changed_partitions = added.plus(removed).partitions
    builder = SnapshotSummaryBuilder(
        metrics,
        changed_partition_count=None if changed_partitions is None else len(changed_partitions),
        manifests_created=manifests.created,
        manifests_kept=manifests.unchanged,
        manifests_replaced=manifests.replaced,
        entries_processed=manifests.entries,
        properties={**properties, **(_REPLACE_PARTITIONS if replaces_partitions else {})},
    )
    return builder.build(operation, parent)


# -- Write the root and metadata of a new snapshot --------------------------------------------------------------------


_RETENTION = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")


@dataclass
class SnapshotNames:
    """The id of a new snapshot and the files that attempts to commit it have written.

    Attributes:
        snapshot_id: the id, which attempts share unless the table gains a snapshot with the same id.
        attempts: the number of attempts.
        written: locations of the files that attempts have written, except roots.
        used: the written files that the last attempt's root references.
        ids: the snapshot ids of all attempts, which are prefixes of their files' names.
        spilled: manifest DVs that attempts have moved into Puffin files; see `spill_manifest_dvs`.
        lists: locations of the manifest lists of attempts that have not failed yet.
        discarded: whether the written files have been deleted and must not be used.
    """

    snapshot_id: int = 0
    attempts: int = 0
    written: set[str] = field(default_factory=set)
    used: frozenset[str] = frozenset()
    ids: set[int] = field(default_factory=set)
    spilled: dict[tuple[str, bytes], Mapping[str, Any]] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)
    discarded: bool = False

    def next_attempt(self, metadata: TableMetadata) -> None:
        """Begin an attempt on a version of the metadata, with a new id if one of its snapshots has the current id."""
        self.attempts += 1
        if not self.snapshot_id or metadata.snapshot_by_id(self.snapshot_id) is not None:
            self.snapshot_id = _new_snapshot_id(metadata)
            self.ids.add(self.snapshot_id)

    def file(self, purpose: str) -> str:
        """Return a unique name for a file of this attempt."""
        return f"{self.snapshot_id}-{self.attempts}-{purpose}-{uuid.uuid4()}"

    def noted(self, manifests: pa.Table) -> pa.Table:
        """Note that an attempt has written manifests, rows of `MANIFEST_FILE_SCHEMA`, and return them."""
        self.written.update(manifests.column("manifest_path").to_pylist())
        return manifests


@dataclass(frozen=True)
class NewSnapshot:
    """A snapshot with a root, based on `base`, the root of `state`. If `branch` is None, no branch moves to it."""

    state: TableState
    base: BaseRoot
    branch: str | None
    names: SnapshotNames

    def write(self, change: TreeChange, summary: Callable[[], Summary]) -> TableMetadata:
        """Write the root with the change applied and return the table's metadata with its snapshot."""
        state, base, metadata = self.state, self.base, self.state.metadata
        options = TreeOptions.of(metadata)
        first_row_id = next_row_id(metadata)
        stamp = Stamp(self.names.snapshot_id, metadata.last_sequence_number + 1, first_row_id + base.assigned_row_ids)
        edited_root = next_root(
            base.root, change, stamp, tree_schema(state.types.stats_types), blob_loader(state, change.masks)
        )
        table = edited_root.table
        if state.layout.has_mask_files:
            table = spill_manifest_dvs(table, state, options, self.names.file("vectors"), self.names.spilled)
        locations = frozenset(table.column("location").drop_null().to_pylist())
        self.names.written.update(
            self._new_leaf_locations(change), (dv["location"] for dv in self.names.spilled.values())
        )
        self.names.used = locations.intersection(self.names.written)
        location = join(metadata_folder(metadata), f"{self.names.file('root')}.parquet")
        moves = Moves.of(change.replaced, change.moved_out, state.types.locations)
        state.files.write_new(location, encode_root(table, state.layout, state.types, moves, stamp, base.properties))
        fields = {
            "snapshot-id": stamp.snapshot_id,
            "sequence-number": stamp.sequence_number,
            "root-manifest": location,
            "summary": summary(),
            "first-row-id": first_row_id,
            "added-rows": base.assigned_row_ids + edited_root.assigned_row_ids,
        }
        return with_snapshot(state, self.branch, fields)

    @staticmethod
    def _new_leaf_locations(change: TreeChange) -> Iterator[str]:
        """Yield the locations of new leaves in a change."""
        for leaves in (change.added_leaves, change.existing):
            if leaves is not None:
                yield from leaves.column("location").to_pylist()


def with_snapshot(state: TableState, branch: str | None, fields: dict[str, Any]) -> TableMetadata:
    """Return the table's metadata with a new snapshot, a child of the state's snapshot.

    Args:
        branch: the branch whose head it becomes; None to move no branch.
        fields: the snapshot's JSON without its parent, time and schema.
    """
    metadata, parent = state.metadata, state.snapshot
    common: dict[str, Any] = {
        # If snapshots have equal times, time travel finds only the first.
        "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms + 1),
        "schema-id": metadata.current_schema_id,
    }
    if parent is not None:
        common["parent-snapshot-id"] = parent.snapshot_id
    snapshot = Snapshot.model_validate(fields | common)
    set_ref = () if branch is None else (branch_update(metadata, branch, snapshot.snapshot_id),)
    return update_table_metadata(metadata, (AddSnapshotUpdate(snapshot=snapshot), *set_ref))


def branch_update(metadata: TableMetadata, branch: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Return the update that sets or creates a branch. An existing branch keeps its retention."""
    update = {"ref-name": branch, "snapshot-id": snapshot_id, "type": "branch"}
    return RefUpdate.model_validate(update).completed(metadata)


class RefUpdate(SetSnapshotRefUpdate):
    """An update that sets or creates a branch or tag. Retention fields that are None stay unchanged.

    Attributes:
        retention_of: the branch or tag whose retention is adopted; None for the branch or tag that is set.
    """

    retention_of: str | None = None

    def completed(self, metadata: TableMetadata) -> SetSnapshotRefUpdate:
        """Return the update for a version of the metadata, with the unchanged retention fields filled in."""
        ref = metadata.refs.get(self.retention_of or self.ref_name)
        unset = [] if ref is None else [name for name in _RETENTION if getattr(self, name) is None]
        return self.model_copy(update={name: getattr(ref, name) for name in unset})


def branch_head(state: TableState, branch: str) -> TableState:
    """Return the state at a branch's head.

    Raises:
        ValidationError: the branch does not exist and is not main, or a tag has the name.
    """
    refuse_tag(state.metadata, branch)
    head = state.at(state.metadata.snapshot_by_name(branch))
    if head.snapshot is None and branch != "main" and state.metadata.current_snapshot() is not None:
        raise ValidationError(f"{state.metadata.location} has no branch {branch!r}")
    return head


def refuse_tag(metadata: TableMetadata, branch: str) -> None:
    """Raise ValidationError if a branch to commit to is a tag, which can't move, or its name is not text."""
    NAME.check("branch", branch)
    ref = metadata.refs.get(branch)
    if ref is not None and ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise ValidationError(f"{metadata.location}: {branch!r} is a tag, not a branch: it takes no new snapshots")


def with_root(head: TableState, base: BaseRoot) -> TableState:
    """Return the state with the root that a commit edits."""
    return head if base.root is None else replace(head, root=base.root)


def blob_loader(state: TableState, leaves: Collection[str] = ()) -> LoadBlob:
    """Return a function that reads the blobs of manifest DVs.

    Args:
        leaves: leaves whose DVs are prefetched by a few requests.
    """
    manifest_dvs = state.tree.root.manifest_dv_of if state.tree is not None and leaves else {}
    stored_dvs = [manifest_dvs[leaf] for leaf in leaves if leaf in manifest_dvs and manifest_dvs[leaf]["location"]]
    ranges = [_range_of(dv["location"], dv["deletion_vector"]) for dv in stored_dvs]
    blobs = {ranges[index]: blob for index, blob in read_ranges(state.files, ranges)} if ranges else {}

    def load(location: str, offset: int, size: int) -> bytes:
        prefetched = blobs.get(FileRange(location, offset, size))
        return state.files.read_range(location, offset, size) if prefetched is None else prefetched

    return load


def _range_of(location: str, blob: Mapping[str, Any]) -> FileRange:
    return FileRange(location, blob["offset"], blob["size_in_bytes"])


def _new_snapshot_id(metadata: TableMetadata) -> int:
    """Return a random positive 63-bit id that no snapshot has (semantics 11.1)."""
    while True:
        bits = uuid.uuid4().int
        snapshot_id = ((bits >> 64) ^ bits) & ((1 << 63) - 1)
        if snapshot_id and metadata.snapshot_by_id(snapshot_id) is None:
            return snapshot_id


def next_row_id(metadata: TableMetadata) -> int:
    """Return the table's next row id."""
    return int(getattr(metadata, "next_row_id", None) or 0)
