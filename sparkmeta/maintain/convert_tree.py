"""Convert metadata trees between the layouts of the proposal and of the Iceberg project, without their data files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.refs import SnapshotRefType
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.checks import Options, described, one_of
from sparkmeta.commit.attempts import Step, commit_steps
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction import CompactionOptions, scope_of
from sparkmeta.commit.compaction_groups import Group
from sparkmeta.commit.compaction_job import RewriteJob
from sparkmeta.commit.leaves import (
    DELETE_ENTRY_BYTES,
    converted_deletes,
    leaf_frame,
    named_owners,
    with_owners,
    write_affiliated,
)
from sparkmeta.commit.moved_files import VECTOR_PATH, vector_columns
from sparkmeta.commit.new_snapshot import LeafCounts, NewSnapshot, with_root
from sparkmeta.commit.next_root import TreeChange, file_keys
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.entries.relation import select, where
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.expr import sql
from sparkmeta.maintain.compact_manifests import CONTENT_NAMES
from sparkmeta.maintain.plans import PlanSummary, RewriteStep, TablePlan
from sparkmeta.manifests.v4.colocated import VECTOR
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.root import FILES, LEAVES, in_files
from sparkmeta.manifests.v4.root import one_of as has_kind
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.session import local_frame, materialize
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.tree_layout import LAYOUTS, TreeLayout
from sparkmeta.spec.upgrade import in_layout, tree_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


# -- The plan ---------------------------------------------------------------------------------------------------------


PLANNED = pa.schema(
    [
        pa.field("branch", pa.string()),
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("entries", pa.int64()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
"""The columns of `ConversionPlan.to_df`."""


@dataclass(frozen=True)
class ConversionSummary(PlanSummary):
    """The changes that a conversion makes; `str` formats them.

    Attributes:
        layout: the new layout.
        branches: the branches whose heads are converted. Each gets a `replace` snapshot.
        leaves: the leaves that are written again, counted once for each branch.
        files: the files of roots that move into leaves.
        earlier_snapshots: the number of snapshots whose trees keep their layout.
        tags: the tags that refer to such a snapshot.
    """

    layout: str
    branches: tuple[str, ...]
    leaves: int
    files: int
    earlier_snapshots: int
    tags: tuple[str, ...]

    def __str__(self) -> str:
        branches = ", ".join(self.branches) or "no branch has a snapshot"
        lines = [
            f"{self.table}: its metadata tree gets the layout {self.layout}",
            f"  branches: {branches}; {self.leaves} leaves and {self.files} files of roots are written to new leaves",
        ]
        if self.earlier_snapshots:
            lines.append(f"  {self.earlier_snapshots} earlier snapshots keep their layout until they expire")
        if self.tags:
            lines.append(f"  tags on earlier snapshots: {', '.join(self.tags)}")
        if LAYOUTS[self.layout].colocates:
            lines.append("  the sequence numbers of deletion vectors are lost: the layout has none")
        return "\n".join(lines)


@dataclass(frozen=True)
class ConversionPlan(TablePlan[TableT]):
    """A plan to convert a table's trees to another layout, carried out by `commit`.

    Attributes:
        layout: the new layout.
    """

    _doing = "Converting leaves"

    layout: str

    def to_df(self) -> DataFrame:
        """Return a row for each leaf and file of a root that is written to new leaves. Runs no job.

        Columns: branch, content ("data leaf", "delete leaf", "data file", "delete file"), file_path, entries,
        file_size_in_bytes.
        """
        return local_frame(self.table.state.spark, self._planned)

    def summary(self) -> ConversionSummary:
        """Return the changes in numbers. Reads the roots of the branches' heads. Runs no job."""
        metadata = self.table.metadata
        earlier = {snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.has_root}
        is_leaf = pc.match_substring(self._planned.column("content"), "leaf")
        leaves = pc.sum(is_leaf).as_py() or 0
        return ConversionSummary(
            self.table.full_name,
            self.layout,
            tuple(self._heads),
            leaves,
            len(self._planned) - leaves,
            len(earlier),
            tuple(
                sorted(
                    name
                    for name, ref in metadata.refs.items()
                    if ref.snapshot_ref_type == SnapshotRefType.TAG and ref.snapshot_id in earlier
                )
            ),
        )

    @cached_property
    def _heads(self) -> dict[str, TableState]:
        return dict(_heads(self.table.state, LAYOUTS[self.layout]))

    @cached_property
    def _planned(self) -> pa.Table:
        rows = [
            {
                "branch": branch,
                "content": CONTENT_NAMES[ContentType(row["content_type"])],
                "file_path": row["location"],
                "entries": row["record_count"] if row["content_type"] in LEAVES else 1,
                "file_size_in_bytes": row["file_size_in_bytes"],
            }
            for branch, head in self._heads.items()
            for row in _converted_rows(head).select(_ROW_COLUMNS).to_pylist()
        ]
        return pa.Table.from_pylist(rows, schema=PLANNED)

    def _commit(self) -> TableT:
        steps: list[Step] = [self]
        steps += [_ConversionStep(branch, {}) for branch in self._heads]
        return commit_steps(self.table, steps)

    def apply(self, state: TableState) -> TableMetadata:
        """Return the metadata of a state with the new layout. For `commit`."""
        layout = LAYOUTS[self.layout]
        if self._heads.keys() != dict(_heads(state, layout)).keys():
            raise CommitConflictError(f"{state.metadata.location}: others have changed branches: plan again")
        changed = in_layout(tree_metadata(state.metadata), layout)
        return changed.model_copy(update={"last_updated_ms": max(int(time.time() * 1000), changed.last_updated_ms)})


_ROW_COLUMNS = ["content_type", "location", "record_count", "file_size_in_bytes"]


def _heads(state: TableState, layout: TreeLayout) -> Iterator[tuple[str, TableState]]:
    """Yield the branches whose heads have a tree in another layout, and the table at the head."""
    for name, ref in sorted(state.metadata.refs.items()):
        snapshot = state.metadata.snapshot_by_id(ref.snapshot_id)
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH and snapshot is not None:
            head = state.at(snapshot)
            if head.tree is not None and head.tree.root.layout != layout:
                yield name, head


def _converted_rows(head: TableState) -> pa.Table:
    """Return the root's entries of leaves and files that a conversion writes to new leaves, with their `ordinal`."""
    if head.tree is None:
        return tree_schema(head.types.stats_types).empty_table()
    root = head.tree.root
    leaves = in_files(head.manifests)
    in_layout_of_root = leaves.filter(head.tree.has_layout_of_root(leaves)).column(MANIFEST)
    rows = in_files(root.of([*LEAVES, *FILES]))
    ordinals = pc.is_in(rows.column("ordinal"), in_layout_of_root.combine_chunks().cast(pa.int64()))
    return rows.filter(pc.or_(ordinals, has_kind(rows, FILES)))


# -- Write the leaves of a branch -------------------------------------------------------------------------------------


@dataclass
class _ConversionStep(RewriteStep):
    """The step that gives the head of a branch a root in the table's layout. Leaves are written once for each head."""

    _written: tuple[int, pa.Table] | None = field(default=None, init=False)

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        base = base_root(head, converts=True)
        if base.root is None or head.snapshot is None:
            raise CommitConflictError(f"{head.metadata.location}: branch {self.branch} no longer has a snapshot")
        state = with_root(head, base)
        if self._written is None or self._written[0] != head.snapshot.snapshot_id:
            leaves = _Conversion(state, self.names.file("convert")).leaves()
            self._written = head.snapshot.snapshot_id, leaves
            self.names.written.update(leaves.column("location").to_pylist())
        new_leaves = self._written[1]
        rows = _converted_rows(state)
        is_file = has_kind(rows, FILES)
        replaced = frozenset(rows.filter(pc.invert(is_file)).column("location").to_pylist())
        change = TreeChange(dropped=replaced, moved=frozenset(file_keys(rows.filter(is_file))), existing=new_leaves)
        unchanged = len(in_files(base.root.leaves)) - len(replaced)
        counts = LeafCounts(
            len(new_leaves), unchanged, len(replaced), pc.sum(new_leaves.column("record_count")).as_py() or 0
        )
        return NewSnapshot(state, base, self.branch, self.names).write(change, self.summary(head, counts))


@dataclass(frozen=True)
class _Conversion:
    """Writes the entries of a tree to leaves of the layout that the table's metadata names.

    Attributes:
        state: the table at the head of a branch.
        name: the beginning of the names of new leaves.
    """

    state: TableState
    name: str

    def leaves(self) -> pa.Table:
        """Write the leaves, and return the root's entries for them. Runs jobs."""
        to_iceberg = self._job.form.layout.colocates
        data = self._entries(ContentType.DATA_MANIFEST, ContentType.DATA)
        if not to_iceberg:
            data_leaves = self._written(data)
            return pa.concat_tables([data_leaves, *self._deletes_beside(data_leaves)])
        schema = spark_schema(self._job.rewriting([]).schema)
        with_vectors = data.drop(VECTOR).join(self._vectors, F.col("location") == F.col(VECTOR_PATH), "left")
        parts = [with_vectors.select(*schema.names)]
        if self._rows_of(ContentType.DELETE_MANIFEST, ContentType.EQUALITY_DELETES):
            deletes = self._entries(ContentType.DELETE_MANIFEST, ContentType.EQUALITY_DELETES)
            parts.append(deletes.where(F.col("content_type") == int(ContentType.EQUALITY_DELETES)))
        return pa.concat_tables([self._job.form.schema.empty_table(), *map(self._written, parts)])

    @cached_property
    def _job(self) -> RewriteJob:
        root = self.state.root
        assert root is not None
        scope = scope_of(self.state, root, CompactionOptions(max_root_files=None))
        return RewriteJob(self.state, scope, task_reader(self.state), self.name)

    @cached_property
    def _rows(self) -> pa.Table:
        return _converted_rows(self.state)

    def _rows_of(self, *kinds: ContentType) -> list[int]:
        ordinals: list[int] = self._rows.filter(has_kind(self._rows, kinds)).column("ordinal").to_pylist()
        return ordinals

    def _entries(self, leaves: ContentType, files: ContentType) -> DataFrame:
        """Return the live entries of leaves of one content, and the entries of the root's own files of one kind."""
        return self._job.entries(Group(leaves, None, tuple(self._rows_of(leaves)), tuple(self._rows_of(files))))

    @cached_property
    def _deletes(self) -> pa.Table:
        """The delete manifests with the layout of the root, and the root itself, rows of `state.manifests`."""
        manifests, tree = self.state.delete_manifests, self.state.tree
        assert tree is not None
        in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
        return manifests.filter(pc.or_(in_root, tree.has_layout_of_root(manifests)))

    @property
    def _vectors(self) -> DataFrame:
        """The live deletion vectors as values of the column `vector`, with the path of their data file."""
        projection = EntryProjection.of(
            ("content_type", "location", "version_info", "deletion_vector", "record_count", "referenced_file")
        )
        entries = self.state.live_entries(self._deletes, projection)
        vectors = where(entries, is_kind(ContentType.POSITION_DELETES))
        return select(vectors, vector_columns(Status.EXISTING, sql.col("version_info.snapshot_id")))

    def _deletes_beside(self, data_leaves: pa.Table) -> Iterator[pa.Table]:
        """Write deletes to leaves. Many deletes of one data leaf's files go to a leaf affiliated with it."""
        if not len(self._deletes):
            return
        state, form = self.state, self._job.form
        if not len(data_leaves):
            yield self._written(converted_deletes(state, self._deletes))
            return
        locations = dict(enumerate(data_leaves.column("location").to_pylist()))
        entries = leaf_frame(state, data_leaves, EntryProjection.of(("location", "version_info")))
        deletes = materialize(
            with_owners(converted_deletes(state, self._deletes), named_owners(state, entries, locations))
        )
        least = self._job.scope.limits.affiliated_deletes
        unaffiliated, affiliated = write_affiliated(deletes, form, least, DELETE_ENTRY_BYTES)
        yield affiliated
        yield self._written(unaffiliated.drop("owner"))

    def _written(self, entries: DataFrame) -> pa.Table:
        """Write entries to leaves in the order of their partitions and paths."""
        return self._job.write_entries(entries, self._rows_of(*LEAVES))


# -- Options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvertTreeOptions(Options):
    """See `Maintenance.convert_tree`."""

    layout: str = field(
        metadata=described("the new layout: `proposal` or `iceberg`, the Iceberg project's.", one_of(*LAYOUTS))
    )


def plan_conversion(table: TableT, options: ConvertTreeOptions) -> ConversionPlan[TableT]:
    """See `Maintenance.convert_tree`."""
    options.check()
    refuse_read_only(table)
    refuse_encrypted(table.metadata, "which metadata trees can't be")
    metadata = tree_metadata(table.metadata)
    layout = LAYOUTS[options.layout]
    in_layout(metadata, layout)
    if table.state.layout == layout and not dict(_heads(table.state, layout)):
        raise ValidationError(f"{metadata.location}: its metadata tree has the layout {options.layout} already")
    return ConversionPlan(table, options.layout)
