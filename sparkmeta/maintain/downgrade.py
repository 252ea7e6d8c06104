"""Downgrade a table with metadata trees to format version 3 with manifest lists."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, write_manifest_list
from sparkmeta.avro.write import manifest_codec
from sparkmeta.checks import Options, described
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.lists import list_properties, manifest_format, stamped, with_row_ids
from sparkmeta.commit.new_snapshot import SnapshotNames, next_row_id
from sparkmeta.commit.options import ListOptions
from sparkmeta.entries.live import live_count
from sparkmeta.entries.projection import FILE_COLUMNS, MANIFEST
from sparkmeta.errors import UnsupportedError, ValidationError, shown, translated_errors
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.bounds import ANY
from sparkmeta.maintain.plans import PlanSummary, TablePlan
from sparkmeta.maintain.rewrite_manifests import CONTENTS
from sparkmeta.manifests.sorted_manifests import EntryTasks, file_count, key_columns, range_count
from sparkmeta.manifests.v4.tree_manifests import MASKED
from sparkmeta.operations.table_operations import TableT, metadata_folder, refuse_read_only
from sparkmeta.progress import tracked
from sparkmeta.session import local_frame
from sparkmeta.snapshot.search import live_files
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.upgrade import (
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

    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import TableMetadataV4


# -- Choose the manifests of a downgrade ------------------------------------------------------------------------------
# Avro leaves of branches and tags stay, and other leaves are written again. Heads share most of their leaves. Leaves
# that the same heads contain, masked by the same deletion vectors, form a group, whose entries are written once.


# The values that a leaf's entries depend on: its location, the inherited values, and the deletion vector that masks it.
LeafKey = tuple[Any, ...]

_REQUIRED = [
    field.name for field in MANIFEST_FILE_SCHEMA if field.name.endswith(("_count", "sequence_number", "snapshot_id"))
]


@dataclass(frozen=True)
class Head:
    """A snapshot with a tree that branches or tags refer to.

    Attributes:
        state: the table at the snapshot.
        refs: the names of the branches and tags.
    """

    state: TableState
    refs: tuple[str, ...]

    @property
    def snapshot_id(self) -> int:
        assert self.state.snapshot is not None
        return self.state.snapshot.snapshot_id

    @property
    def tree(self) -> Tree:
        assert self.state.tree is not None
        return self.state.tree

    @cached_property
    def is_kept(self) -> pa.Array:
        """A mask of the state's manifests that a manifest list can name: unmasked Avro manifests with all counts."""
        manifests, listed = self.state.manifests, self.state.manifest_files
        is_complete = reduce(pc.and_, (whole(listed.column(name)).is_valid() for name in _REQUIRED))
        of_root = pa.repeat(False, len(manifests) - len(listed))
        is_avro = pc.equal(whole(manifests.column("file_format")), "AVRO")
        is_whole = pc.equal(whole(manifests.column(MASKED)), 0)
        return pc.and_(pc.and_(is_avro, is_whole), pa.concat_arrays([is_complete, of_root]))

    @cached_property
    def unchanged(self) -> pa.Table:
        """The Avro leaves that stay unchanged, as `MANIFEST_FILE_SCHEMA`."""
        listed = self.state.manifest_files
        rows = listed.filter(self.is_kept.slice(0, len(listed)))
        index, sources = rows.schema.get_field_index("partitions"), self.tree.sources
        fields = {
            spec_id: [kind == ANY or field_id in dict(sources[spec_id]) for field_id, kind in spec_fields]
            for spec_id, spec_fields in self.state.types.spec_fields.items()
        }
        summaries = [
            summary if _is_known(summary, fields[spec_id]) else None
            for summary, spec_id in zip(
                rows.column(index).to_pylist(), rows.column("partition_spec_id").to_pylist(), strict=True
            )
        ]
        return rows.set_column(index, rows.schema.field(index), pa.array(summaries, rows.schema.field(index).type))

    @cached_property
    def rewritten(self) -> dict[LeafKey, int]:
        """The leaves whose entries are written to new manifests -> their small ids in the state."""
        masks = {row[MANIFEST]: tuple(row.values()) for row in self.tree.manifest_dvs.to_pylist()}
        names = [MANIFEST, "location", "content_type", "version_info", "first_row_id"]
        manifests = self.state.manifests.filter(pc.invert(self.is_kept)).select(names)
        keys: dict[LeafKey, int] = {}
        for row in manifests.to_pylist():
            manifest, version = row[MANIFEST], row["version_info"] or {}
            inherited = (version.get("snapshot_id"), version.get("sequence_number"), row["first_row_id"])
            # Small ids differ between roots.
            mask = masks[manifest][1:] if manifest in masks else None
            keys[row["location"], row["content_type"], inherited, mask] = manifest
        return keys


@dataclass(frozen=True)
class LeafGroup:
    """Leaves that belong to the same heads. Their entries are written once.

    Attributes:
        heads: the heads, in the order of their sequence numbers. New manifests belong to the first.
        keys: the leaves.
    """

    heads: tuple[Head, ...]
    keys: frozenset[LeafKey]

    @property
    def state(self) -> TableState:
        return self.heads[0].state

    @cached_property
    def manifests(self) -> pa.Table:
        """The leaves as rows of the `manifests` of the first head."""
        ids = pa.array([self.heads[0].rewritten[key] for key in self.keys], pa.int32())
        manifests = self.state.manifests
        return manifests.filter(pc.is_in(manifests.column(MANIFEST), ids))


def table_heads(state: TableState) -> tuple[Head, ...]:
    """Return the heads of a table's branches and tags that have a tree, in the order of their sequence numbers."""
    names: dict[int, list[str]] = {}
    for name, ref in sorted(state.metadata.refs.items()):
        names.setdefault(ref.snapshot_id, []).append(name)
    heads = tree_snapshots(state.metadata).heads
    return tuple(Head(state.at(snapshot), tuple(names[snapshot.snapshot_id])) for snapshot in heads)


def leaf_groups(heads: Sequence[Head]) -> list[LeafGroup]:
    """Return the leaves to write, grouped by the heads that contain them."""
    holders: dict[LeafKey, list[int]] = {}
    for index, head in enumerate(heads):
        for key in head.rewritten:
            holders.setdefault(key, []).append(index)
    keys: dict[tuple[int, ...], set[LeafKey]] = {}
    for key, indices in holders.items():
        keys.setdefault(tuple(indices), set()).add(key)
    return [
        LeafGroup(tuple(heads[index] for index in indices), frozenset(of_heads)) for indices, of_heads in keys.items()
    ]


def refuse_unknown_transforms(state: TableState, spec_ids: Iterable[int]) -> None:
    """Raise UnsupportedError for a partition spec whose tuples can't be written."""
    for spec_id in sorted(set(spec_ids)):
        if unwritable := state.types.unwritable_fields.get(spec_id):
            raise UnsupportedError(
                f"{state.metadata.location}: partition spec {spec_id} has a transform or source column that is not "
                f"known, of field {unwritable[0]}: its files can't be written to other manifests"
            )


def _is_known(summary: Sequence[dict[str, Any]], has_values: Sequence[bool]) -> bool:
    """Return whether a root knows the bounds of a leaf's partition values.

    In a manifest list, a field without bounds has only nulls. In a root it may be unknown.
    """
    return all(
        not valued or field["lower_bound"] is not None for field, valued in zip(summary, has_values, strict=True)
    )


# -- Write the entries of leaves to Avro manifests --------------------------------------------------------------------


@dataclass(frozen=True)
class GroupJob:
    """Writes the entries of a group of leaves.

    Attributes:
        name: the beginning of the names of new manifests.
    """

    group: LeafGroup
    name: str

    def run(self) -> pa.Table:
        """Write the manifests, and return their rows of `MANIFEST_FILE_SCHEMA`.

        Raises:
            UnsupportedError: tasks can't open the table's files, or partition values can't be written.
            CorruptFileError: a leaf is damaged.
            ValidationError: the leaves changed while they were read.
        """
        with translated_errors():
            specs = self._specs().collect()
            refuse_unknown_transforms(self.group.state, (row.spec_id for row in specs))
            written = [self._write(**row.asDict()) for row in specs]
        return pa.concat_tables([MANIFEST_FILE_SCHEMA.empty_table(), *written])

    def _specs(self) -> DataFrame:
        """Return a row for each content and partition spec of the live entries."""
        frame = self._live(self.group.manifests, ("content_type", "partition_spec_id", "first_row_id"))
        content = F.when(F.col("content_type") == int(ContentType.DATA), 0).otherwise(1).alias("content")
        return frame.groupBy(content, F.col("partition_spec_id").alias("spec_id")).agg(
            F.count("*").alias("entries"),
            F.count("first_row_id").alias("with_row_ids"),
            F.min("first_row_id").alias("first_row_id"),
        )

    def _write(self, content: int, spec_id: int, entries: int, with_row_ids: int, first_row_id: int | None) -> pa.Table:
        state, types = self.group.state, self.group.state.types
        kind = ContentType.DELETE_MANIFEST if content else ContentType.DATA_MANIFEST
        form = manifest_format(state, kind, spec_id, self.name, format_version=LIST_VERSION)
        snapshot = state.snapshot
        assert snapshot is not None
        manifests = self._by_content[content]
        stats = {*types.column_types, *([DELETE_FILE_PATH_ID] if content else [])}
        of_spec = F.col("partition_spec_id") == spec_id
        frame = self._live(manifests, FILE_COLUMNS, stats).where(of_spec)
        keys = tuple(field_id for field_id, _ in form.partition)
        key_rows = key_columns(self._live(manifests, ("partition_spec_id",)).where(of_spec), keys)
        tasks = EntryTasks(form, keys, snapshot.snapshot_id)
        ranges = range_count(entries, len(types.column_types), form.target_bytes)
        table = tasks.run(frame, tasks.cut_rows, key_rows, entries, ranges)
        if (count := file_count(table)) != entries:
            raise ValidationError(
                f"{state.metadata.location}: partition spec {spec_id} has {entries} live files in snapshot "
                f"{snapshot.snapshot_id}: {count} were written"
            )
        # All entries with row ids have their own row ids.
        row_id = first_row_id if content == 0 and with_row_ids == entries else None
        return stamped(table, snapshot.snapshot_id, snapshot.sequence_number or 0, row_id)

    @cached_property
    def _by_content(self) -> tuple[pa.Table, pa.Table]:
        """The leaves of data files and the leaves of deletes."""
        manifests = self.group.manifests
        is_data = pc.equal(manifests.column("content_type"), int(ContentType.DATA_MANIFEST))
        return manifests.filter(is_data), manifests.filter(pc.invert(is_data))

    def _live(self, manifests: pa.Table, columns: Any, stats: Any = ()) -> DataFrame:
        state = self.group.state
        return state.live_entries(manifests, state.projection({*columns, "version_info"}, stats))


# -- The plan to downgrade a table to format version 3 ----------------------------------------------------------------


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
"""The columns of `DowngradePlan.to_df`."""

KEEP, WRITE = "keep", "write"


@dataclass(frozen=True)
class HeadSummary:
    """A snapshot with a tree that gets a manifest list.

    Attributes:
        refs: the branches and tags that refer to the snapshot.
        live_files: the number of data files, delete files and deletion vectors; None if it is unknown.
        manifests_kept: Avro manifests that the manifest list names unchanged.
        leaves_written: leaves, including the root, whose entries are written to Avro manifests.
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
        loss = "; the snapshot becomes a `replace` snapshot without a parent: incremental reads across it fail"
        suffix = "" if self.keeps_parent else loss
        return (
            f"{', '.join(self.refs)}: snapshot {self.snapshot_id} with {files} live files keeps "
            f"{self.manifests_kept} Avro manifests, and {self.leaves_written} leaves are rewritten{suffix}"
        )


@dataclass(frozen=True)
class DowngradeSummary(PlanSummary):
    """The changes and losses of a downgrade; `str` formats them.

    Attributes:
        snapshots: the number of snapshots that stay, including snapshots with a new manifest list.
        snapshots_removed: the ids of snapshots with a tree that no branch or tag refers to.
        statistics_removed: the number of statistics files of removed snapshots.
        properties_removed: the names of table properties that apply only to trees.
        leaves_written: the number of rewritten leaves, including roots. A leaf is counted once for all heads.
    """

    from_version: int
    to_version: int
    snapshots: int
    snapshots_removed: tuple[int, ...]
    statistics_removed: int
    properties_removed: tuple[str, ...]
    leaves_written: int
    heads: tuple[HeadSummary, ...]

    def __str__(self) -> str:
        removed_count = len(self.snapshots_removed)
        removed_text = (
            f"{removed_count} snapshots with a tree and {self.statistics_removed} statistics files leave the table"
        )
        properties = ", ".join(self.properties_removed)
        return "\n".join(
            [
                f"{self.table}: format version {self.from_version} becomes {self.to_version}, with manifest lists",
                f"  {removed_text}; {self.snapshots} snapshots stay",
                *(f"  {head}" for head in self.heads),
                *([f"  properties removed: {properties}"] if properties else []),
                "No file is deleted; Iceberg's Java library reads and writes the table from then on",
            ]
        )


@dataclass(frozen=True)
class DowngradePlan(TablePlan[TableT]):
    """A plan to downgrade a table, carried out by `commit`.

    After a conflict, written manifests are reused if branches and tags still need them. `commit` raises ValidationError
    if another commit has downgraded the table.
    """

    _doing = "Writing manifests"

    _heads: tuple[Head, ...]

    def to_df(self) -> DataFrame:
        """Return a row for each leaf and root that branches and tags need, without a job.

        Columns: snapshot_id, content ("data", "deletes"), file_path, action ("keep" for Avro manifests that stay
        unchanged, "write" for entries that are written to Avro manifests), live_files, masked_files,
        file_size_in_bytes.
        """
        tables = [PLANNED.empty_table(), *map(_planned, self._heads)]
        return local_frame(self.table.state.spark, pa.concat_tables(tables))

    def summary(self) -> DowngradeSummary:
        """Return the changes and losses, without a job. Reads the roots of branches and tags."""
        metadata = tree_metadata(self.table.metadata)
        removed_ids = {snapshot.snapshot_id for snapshot in tree_snapshots(metadata).others}
        statistics = [*metadata.statistics, *metadata.partition_statistics]
        return DowngradeSummary(
            table=self.table.full_name,
            from_version=metadata.format_version,
            to_version=LIST_VERSION,
            snapshots=len(metadata.snapshots) - len(removed_ids),
            snapshots_removed=tuple(sorted(removed_ids)),
            statistics_removed=sum(file.snapshot_id in removed_ids for file in statistics),
            properties_removed=tuple(sorted(name for name in metadata.properties if name.startswith(TREE_PROPERTIES))),
            leaves_written=sum(len(group.keys) for group in leaf_groups(self._heads)),
            heads=tuple(map(_head_summary, self._heads)),
        )

    def _commit(self) -> TableT:
        return commit_steps(self.table, [_DowngradeStep(self.table.metadata, self._heads)])


@dataclass
class _DowngradeStep:
    """Writes manifests once for each group of leaves. Each attempt writes manifest lists that name them.

    Attributes:
        planned_on: the metadata with the planned heads.
        written: the leaves of a group, and their head -> the group's manifests.
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
        for group in tracked(groups, DowngradePlan._doing, state.sessions):
            rows, row_id = with_row_ids(self._written(group), row_id)
            for head in group.heads:
                manifests[head.snapshot_id].append(rows)
        lists = {}
        for head in heads:
            rows, row_id = with_row_ids(pa.concat_tables([*manifests[head.snapshot_id], head.unchanged]), row_id)
            lists[head.snapshot_id] = self._write_list(head, metadata, rows)
        manifest_paths = (rows.column("manifest_path").to_pylist() for tables in manifests.values() for rows in tables)
        self.names.used = frozenset(lists.values()).union(*manifest_paths)
        return downgraded_metadata(metadata, lists, row_id, int(time.time() * 1000))

    def _written(self, group: LeafGroup) -> pa.Table:
        key = (group.keys, group.heads[0].snapshot_id)
        if key not in self.written:
            self.written[key] = self.names.noted(GroupJob(group, self.names.file("m")).run())
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
    ListOptions.of(state.metadata)
    task_reader(state)


def _planned(head: Head) -> pa.Table:
    manifests = head.state.manifests
    masked = manifests.column(MASKED).combine_chunks()
    columns: Mapping[str, Any] = {
        "snapshot_id": pa.repeat(pa.scalar(head.snapshot_id, pa.int64()), len(manifests)),
        "content": pa.array([CONTENTS[kind] for kind in manifests.column("content_type").to_pylist()], pa.string()),
        "file_path": manifests.column("location"),
        "action": pc.if_else(head.is_kept, KEEP, WRITE),
        "live_files": live_files(manifests),
        "masked_files": masked,
        "file_size_in_bytes": manifests.column("file_size_in_bytes"),
    }
    return pa.table(columns, schema=PLANNED)


def _head_summary(head: Head) -> HeadSummary:
    manifests, snapshot = head.state.manifests, head.state.snapshot
    assert snapshot is not None
    live_total = live_count(manifests)
    return HeadSummary(
        snapshot_id=head.snapshot_id,
        refs=head.refs,
        live_files=None if live_total is None else live_total - (pc.sum(manifests.column(MASKED)).as_py() or 0),
        manifests_kept=len(head.unchanged),
        leaves_written=len(head.rewritten),
        keeps_parent=keeps_changes(snapshot),
    )


@dataclass(frozen=True)
class DowngradeOptions(Options):
    """See `Maintenance.downgrade`."""

    format_version: int = field(metadata=described("the new format version, which must be 3.", usual=LIST_VERSION))

    def check(self) -> None:
        """See `Options.check`."""
        if self.format_version != LIST_VERSION:
            raise ValidationError(
                f"format_version is {shown(self.format_version)}: expected {LIST_VERSION}; undo_upgrade returns to an "
                "earlier version, as long as no snapshot has a root"
            )


def plan_downgrade(table: TableT, options: DowngradeOptions) -> DowngradePlan[TableT]:
    """See `Maintenance.downgrade`."""
    options.check()
    refuse_read_only(table)
    refuse_encrypted(table.metadata, "which metadata trees can't be")
    tree_metadata(table.metadata)
    heads = table_heads(table.state)
    _refuse(table.state, leaf_groups(heads))
    return DowngradePlan(table, heads)
