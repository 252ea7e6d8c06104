"""The plan to downgrade a table with metadata trees to format version 3, and the step that commits it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import write_manifest_list
from sparkmeta.avro.write import manifest_codec
from sparkmeta.edit.attempts import commit_steps
from sparkmeta.edit.lists import list_properties, with_row_ids
from sparkmeta.edit.new_snapshot import SnapshotNames, next_row_id
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.entries.counts import live_count, live_counts
from sparkmeta.errors import ValidationError, shown
from sparkmeta.maintain.downgrade.heads import (
    Head,
    LeafGroup,
    LeafKey,
    leaf_groups,
    refuse_unknown_transforms,
    table_heads,
)
from sparkmeta.maintain.downgrade.job import GroupJob
from sparkmeta.manifests.v4.tree_manifests import MASKED
from sparkmeta.operations.base_table import TableT
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.rewrite.manifests.groups import CONTENTS, ManifestRewriteOptions, target_bytes
from sparkmeta.session import local_frame
from sparkmeta.spec.downgrade import (
    LIST_VERSION,
    TREE_PROPERTIES,
    downgraded_metadata,
    keeps_changes,
    tree_metadata,
    tree_snapshots,
)
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import TableMetadataV4
    from sparkmeta.state import TableState

PLANNED = pa.schema(
    [
        pa.field("snapshot_id", pa.int64()),
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("action", pa.string()),
        pa.field("live_files", pa.int64()),
        pa.field("masked_files", pa.int64()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
"""The columns of `DowngradePlan.files`."""

KEEP, WRITE = "keep", "write"


@dataclass(frozen=True)
class HeadSummary:
    """A snapshot with a tree that gets a manifest list.

    Attributes:
        refs: its branches and tags.
        live_files: its data files, delete files and deletion vectors.
        manifests_kept: Avro manifests that the manifest list names as they are.
        leaves_written: leaves, the root included, whose entries are written to Avro manifests.
        keeps_parent: whether the snapshot keeps its operation and parent.
    """

    snapshot_id: int
    refs: tuple[str, ...]
    live_files: int | None
    manifests_kept: int
    leaves_written: int
    keeps_parent: bool

    def __str__(self) -> str:
        files = "an unknown number of" if self.live_files is None else self.live_files
        lost = "; the snapshot becomes a `replace` snapshot without a parent: incremental reads across it fail"
        changed = "" if self.keeps_parent else lost
        return (
            f"{', '.join(self.refs)}: snapshot {self.snapshot_id} with {files} live files keeps "
            f"{self.manifests_kept} Avro manifests, and {self.leaves_written} leaves are rewritten{changed}"
        )


@dataclass(frozen=True)
class DowngradeSummary:
    """The changes and losses of a downgrade; `str` formats them.

    Attributes:
        snapshots: the number of snapshots that stay, those with a new manifest list included.
        snapshots_removed: the ids of snapshots with a tree that no branch or tag refers to.
        statistics_removed: the number of their statistics files.
        properties_removed: names of table properties that only trees have.
        leaves_written: leaves, roots included, that are rewritten, each counted once for all heads.
    """

    table: str
    from_version: int
    to_version: int
    snapshots: int
    snapshots_removed: tuple[int, ...]
    statistics_removed: int
    properties_removed: tuple[str, ...]
    leaves_written: int
    heads: tuple[HeadSummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, as for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        gone = len(self.snapshots_removed)
        removed = f"{gone} snapshots with a tree and {self.statistics_removed} statistics files leave the table"
        properties = ", ".join(self.properties_removed)
        return "\n".join(
            [
                f"{self.table}: format version {self.from_version} becomes {self.to_version}, with manifest lists",
                f"  {removed}; {self.snapshots} snapshots stay",
                *(f"  {head}" for head in self.heads),
                *([f"  properties removed: {properties}"] if properties else []),
                "No file is deleted; Iceberg's Java library reads and writes the table from then on",
            ]
        )


@dataclass(frozen=True)
class DowngradePlan(Generic[TableT]):
    """A plan to downgrade a table, carried out by `commit`."""

    table: TableT
    _heads: tuple[Head, ...]
    _committed: list[TableT] = field(default_factory=list, init=False, repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return a row for each leaf and root that branches and tags need, without a job.

        Columns: snapshot_id, content ("data", "deletes"), file_path, action ("keep" for Avro manifests that stay as
        they are, "write" for entries that are written to Avro manifests), live_files, masked_files, file_size_in_bytes.
        """
        tables = [PLANNED.empty_table(), *map(_planned, self._heads)]
        return local_frame(self.table.state.spark, pa.concat_tables(tables))

    def summary(self) -> DowngradeSummary:
        """Return the changes and losses, without a job. Reads the roots of branches and tags."""
        metadata = tree_metadata(self.table.metadata)
        gone = {snapshot.snapshot_id for snapshot in tree_snapshots(metadata).others}
        statistics = [*metadata.statistics, *metadata.partition_statistics]
        return DowngradeSummary(
            table=self.table.full_name,
            from_version=metadata.format_version,
            to_version=LIST_VERSION,
            snapshots=len(metadata.snapshots) - len(gone),
            snapshots_removed=tuple(sorted(gone)),
            statistics_removed=sum(file.snapshot_id in gone for file in statistics),
            properties_removed=tuple(sorted(name for name in metadata.properties if name.startswith(TREE_PROPERTIES))),
            leaves_written=sum(len(group.keys) for group in leaf_groups(self._heads)),
            heads=tuple(map(_head_summary, self._heads)),
        )

    def commit(self) -> TableT:
        """Write the manifests and lists, commit the metadata of format version 3, and return the new table.

        After a conflict, the written manifests are reused as far as branches and tags still need them.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitStateUnknownError: the commit may have succeeded; none of its files are deleted.
            ValidationError: the table has been downgraded meanwhile.
            CorruptFileError: a leaf is damaged.
        """
        if not self._committed:
            step = _DowngradeStep(self.table.metadata, self._heads)
            self._committed.append(commit_steps(self.table, [step]))
        return self._committed[0]

    def result(self) -> dict[str, Any]:
        """Return the summary and the new metadata file, null before the commit, as for JSON."""
        committed = {"metadata_location": self._committed[0].metadata_location} if self._committed else None
        return {"table": self.table.metadata.location, "plan": self.summary().to_dict(), "committed": committed}


@dataclass
class _DowngradeStep:
    """Writes manifests once for each group of leaves; each attempt makes manifest lists of them.

    Attributes:
        planned_on: the metadata with the planned heads.
        written: the leaves of a group, and the head that they belong to -> the group's manifests.
    """

    planned_on: TableMetadata
    planned: tuple[Head, ...]
    names: SnapshotNames = field(default_factory=SnapshotNames)
    written: dict[tuple[frozenset[LeafKey], int], pa.Table] = field(default_factory=dict)

    def apply(self, state: TableState) -> TableMetadata:
        """See `Step.apply`."""
        metadata = tree_metadata(state.metadata)
        heads = self.planned if metadata is self.planned_on else table_heads(state)
        groups = leaf_groups(heads)
        _refuse(state, groups)
        self.names.next_attempt(metadata)
        row_id = next_row_id(metadata)
        manifests: dict[int, list[pa.Table]] = {head.snapshot_id: [] for head in heads}
        for group in groups:
            rows, row_id = with_row_ids(self._written(group), row_id)
            for head in group.heads:
                manifests[head.snapshot_id].append(rows)
        lists = {}
        for head in heads:
            rows, row_id = with_row_ids(pa.concat_tables([*manifests[head.snapshot_id], head.kept]), row_id)
            lists[head.snapshot_id] = self._write_list(head, metadata, rows)
        used = (rows.column("manifest_path").to_pylist() for tables in manifests.values() for rows in tables)
        self.names.used = frozenset(lists.values()).union(*used)
        return downgraded_metadata(metadata, lists, row_id, int(time.time() * 1000))

    def _written(self, group: LeafGroup) -> pa.Table:
        key = (group.keys, group.heads[0].snapshot_id)
        if key not in self.written:
            target = target_bytes(group.state.metadata, ManifestRewriteOptions())
            self.written[key] = GroupJob(group, self.names.file("m"), target).run()
            self.names.written.update(self.written[key].column("manifest_path").to_pylist())
        return self.written[key]

    def _write_list(self, head: Head, metadata: TableMetadataV4, manifests: pa.Table) -> str:
        snapshot = head.state.snapshot
        assert snapshot is not None
        location = join(metadata_folder(metadata), f"{self.names.file('list')}.avro")
        parent_id = snapshot.parent_snapshot_id if keeps_changes(snapshot) else None
        numbers = snapshot.sequence_number or 0, snapshot.first_row_id or 0
        properties = list_properties(LIST_VERSION, snapshot.snapshot_id, parent_id, *numbers)
        data = write_manifest_list(manifests, LIST_VERSION, properties, metadata.location)
        self.names.written.add(location)
        head.state.files.write_new(location, data)
        return location


def _refuse(state: TableState, groups: Sequence[LeafGroup]) -> None:
    """Raise an error if manifests can't be written."""
    if not groups:
        return
    for group in groups:
        refuse_unknown_transforms(group.state, group.manifests.column("partition_spec_id").to_pylist())
    manifest_codec(state.metadata)
    target_bytes(state.metadata, ManifestRewriteOptions())
    task_reader(state)


def _planned(head: Head) -> pa.Table:
    manifests = head.state.manifests
    masked = manifests.column(MASKED).combine_chunks()
    columns: Mapping[str, Any] = {
        "snapshot_id": pa.repeat(pa.scalar(head.snapshot_id, pa.int64()), len(manifests)),
        "content": pa.array([CONTENTS[kind] for kind in manifests.column("content_type").to_pylist()], pa.string()),
        "file_path": manifests.column("location"),
        "action": pc.if_else(head.is_kept, KEEP, WRITE),
        "live_files": pc.subtract(live_counts(manifests), masked),
        "masked_files": masked,
        "file_size_in_bytes": manifests.column("file_size_in_bytes"),
    }
    return pa.table(columns, schema=PLANNED)


def _head_summary(head: Head) -> HeadSummary:
    manifests, snapshot = head.state.manifests, head.state.snapshot
    assert snapshot is not None
    live = live_count(manifests)
    return HeadSummary(
        snapshot_id=head.snapshot_id,
        refs=head.refs,
        live_files=None if live is None else live - (pc.sum(manifests.column(MASKED)).as_py() or 0),
        manifests_kept=len(head.kept),
        leaves_written=len(head.rewritten),
        keeps_parent=keeps_changes(snapshot),
    )


def plan_downgrade(table: TableT, format_version: int) -> DowngradePlan[TableT]:
    """See `Maintenance.downgrade`."""
    check_downgrade(format_version)
    tree_metadata(table.metadata)
    table.refuse_read_only()
    heads = table_heads(table.state)
    _refuse(table.state, leaf_groups(heads))
    return DowngradePlan(table, heads)


def check_downgrade(format_version: int) -> None:
    """Check the option of `Maintenance.downgrade`.

    Raises:
        ValidationError: it is another format version than 3.
    """
    if format_version != LIST_VERSION:
        raise ValidationError(
            f"format_version is {shown(format_version)}: expected {LIST_VERSION}; undo_upgrade returns to an earlier "
            "version, as long as no snapshot has a root"
        )
