"""Plan and commit the compaction of a metadata tree's manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction import CompactionOptions, scope_of
from sparkmeta.commit.compaction_groups import CompactionGroups, Reason, Scope, choose, leaf_ranges
from sparkmeta.commit.compaction_job import Rewritten, rebase, rewrite
from sparkmeta.commit.new_snapshot import LeafCounts, NewSnapshot, blob_loader, branch_head, with_root
from sparkmeta.commit.next_root import TreeChange
from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.entries.relation import collected, grouped, where
from sparkmeta.errors import CommitConflictError
from sparkmeta.expr import sql
from sparkmeta.maintain.plans import RewritePlan, RewriteStep, SnapshotPlanSummary, rewritten_by_others
from sparkmeta.manifests.v4.root import in_files
from sparkmeta.operations.table_operations import TableT, refuse_lists, refuse_read_only
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import refuse_encrypted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


PLANNED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("spec_id", pa.int32()),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("gain", pa.string()),
        pa.field("group", pa.int32()),
        pa.field("group_parts", pa.int32()),
        pa.field("entries", pa.int64()),
        pa.field("masked_entries", pa.int64()),
        pa.field("overlaps", pa.int32()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
"""The columns of `CompactionPlan.to_df`."""

CONTENT_NAMES = {
    ContentType.DATA: "data file",
    ContentType.POSITION_DELETES: "delete file",
    ContentType.EQUALITY_DELETES: "delete file",
    ContentType.DATA_MANIFEST: "data leaf",
    ContentType.DELETE_MANIFEST: "delete leaf",
}
"""The content of leaves and files of a root in the rows of plans."""

_ROOT_COLUMNS = ["content_type", "location", "partition_spec_id", "record_count", "file_size_in_bytes"]


@dataclass(frozen=True)
class OldLayout:
    """The leaves of a tree that are in the layout of versions 1 to 3, as after an upgrade.

    A compaction leaves position delete files of version 2 in the manifests that list them, since new leaves can't hold
    them (semantics 19.3). It also leaves manifests whose partition values come from unknown transforms.

    Attributes:
        convertible: the leaves that can be converted, rows of `TableState.manifests`.
        position_deletes: location of a delete manifest that stays -> the number of its live position delete files.
        unknown_transforms: locations of manifests that stay since a field of their spec has an unknown transform.
    """

    convertible: pa.Table | None = None
    position_deletes: Mapping[str, int] = field(default_factory=dict)
    unknown_transforms: tuple[str, ...] = ()


def old_layout(state: TableState) -> OldLayout:
    """Return the leaves of a tree in the layout of versions 1 to 3.

    Reads the delete manifests among the leaves, since a manifest list does not record which kinds of deletes they
    contain. A job reads them if there are many.
    """
    assert state.tree is not None
    old_leaves = state.manifests.filter(state.tree.has_old_layout(state.manifests))
    unknown_specs = pa.array(state.types.unwritable_fields, pa.int32())
    is_unknown = pc.is_in(old_leaves.column("partition_spec_id"), unknown_specs)
    known_leaves = old_leaves.filter(pc.invert(is_unknown))
    counts = _position_delete_files(state, known_leaves)
    is_convertible = pc.invert(pc.is_in(known_leaves.column("location"), pa.array(list(counts), pa.string())))
    if state.layout.colocates:
        # Leaves of such a layout have deletion vectors only in the entries of data files.
        is_data = pc.equal(known_leaves.column("content_type"), int(ContentType.DATA_MANIFEST))
        is_convertible = pc.and_(is_convertible, is_data)
    return OldLayout(
        known_leaves.filter(is_convertible),
        counts,
        tuple(old_leaves.filter(is_unknown).column("location").to_pylist()),
    )


def _position_delete_files(state: TableState, manifests: pa.Table) -> dict[str, int]:
    """Return the number of live position delete files in each manifest that lists any. Skips deletion vectors."""
    deletes = manifests.filter(pc.equal(manifests.column("content_type"), int(ContentType.DELETE_MANIFEST)))
    if not len(deletes):
        return {}
    projection = EntryProjection.of(("content_type", "file_format", "version_info"))
    is_file = (
        (sql.col("content_type") == int(ContentType.POSITION_DELETES))
        & (sql.col("file_format") != "PUFFIN")
        & is_live_entry()
    )
    files = where(state.relation(deletes, projection), is_file)
    counted = grouped(files, sql.columns(MANIFEST), [sql.call("sum", 1).alias("count")])
    counts = collected(counted)
    by_id = dict(zip(deletes.column(MANIFEST).to_pylist(), deletes.column("location").to_pylist(), strict=True))
    return {by_id[row[MANIFEST]]: row["count"] for row in counts.sort_by(MANIFEST).to_pylist()}


@dataclass(frozen=True)
class CompactionSummary(SnapshotPlanSummary):
    """The numbers of a compaction, computed from the root alone.

    Attributes:
        data_leaves: the data leaves to rewrite.
        delete_leaves: the delete leaves to rewrite.
        converted_leaves: the data and delete leaves that have the layout of versions 1 to 3 or of another library.
        moved_files: the files that move from the root into leaves.
        leaves_after: the expected number of new leaves.
        entries: the entries to read.
        masked: the masked entries, which are dropped.
        bytes: the bytes to read.
        overlaps: the mean number of other leaves that a data leaf overlaps in the order of the clustering columns.
        reasons: the number of leaves and files by reason.
        position_deletes: manifest that keeps its layout -> the number of its live position delete files of version 2.
            The manifest stays unchanged, since the leaves of a tree can't list such files.
        unknown_transforms: manifests that keep their layout since their partition spec has an unknown transform.
    """

    data_leaves: int
    delete_leaves: int
    converted_leaves: int
    moved_files: int
    leaves_after: int
    entries: int
    masked: int
    bytes: int
    overlaps: float
    reasons: Mapping[str, int]
    position_deletes: Mapping[str, int] = field(default_factory=dict)
    unknown_transforms: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.data_leaves or self.delete_leaves or self.moved_files)

    def __str__(self) -> str:
        return "\n".join([*self._rewritten, *self._unchanged])

    @property
    def _rewritten(self) -> list[str]:
        if self.is_empty:
            return [f"{self.table}: its manifests need no compaction"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        before = f"{self.data_leaves} data leaves, {self.delete_leaves} delete leaves and {self.moved_files} root files"
        return [
            f"{self.table}: {before} become about {self.leaves_after} leaves",
            *self._converted,
            f"  {self.entries} entries in {self.bytes} bytes are read, {self.masked} of them masked",
            f"  reasons: {reasons}",
            f"  a data leaf overlaps {self.overlaps:.1f} others, at the mean",
        ]

    @property
    def _converted(self) -> list[str]:
        if not self.converted_leaves:
            return []
        others = "the layout of versions 1 to 3 or of another library"
        return [f"  {self.converted_leaves} leaves have {others} and get the tree's"]

    @property
    def _unchanged(self) -> list[str]:
        files = sum(self.position_deletes.values())
        lines = [
            (self.position_deletes, f"{files} position delete files of version 2 stay"),
            (self.unknown_transforms, "files of specs with unknown transforms stay"),
        ]
        return [f"  {text} in {named(list(manifests))}" for manifests, text in lines if manifests]


def named(locations: Sequence[str]) -> str:
    """Return the number of manifests as text, with the names of the first ones."""
    first_locations, unnamed_count = locations[:_MOST_NAMED], len(locations) - _MOST_NAMED
    more = f" and {unnamed_count} more" if unnamed_count > 0 else ""
    return f"{len(locations)} manifests: {', '.join(first_locations)}{more}"


# Maximum number of manifests that a summary names.
_MOST_NAMED = 3


@dataclass(frozen=True)
class CompactionPlan(RewritePlan[TableT, CompactionOptions]):
    """A plan to compact manifests, carried out by `commit`."""

    _doing = "Rewriting leaves"

    _scope: Scope | None
    _old: OldLayout = field(default_factory=OldLayout)

    def to_df(self) -> DataFrame:
        """Return one row for each leaf or root file to rewrite. Runs no job.

        Columns: content ("data leaf", "delete leaf", "data file", "delete file"), file_path, spec_id, reasons
        (see `Reason`), gain (the benefit, in words), group (rows with the same number are rewritten together),
        group_parts (the expected number of new leaves), entries, masked_entries, overlaps (the number of overlapping
        leaves in the order of the clustering columns), file_size_in_bytes.
        """
        table = pa.Table.from_pylist(self._rows, schema=PLANNED)
        return local_frame(self.table.state.spark, table)

    def summary(self) -> CompactionSummary:
        """Return the plan in numbers. Runs no job."""
        rows, choice = self._rows, self._choice
        kinds = Counter(row["content"] for row in rows)
        return CompactionSummary(
            table=self.table.full_name,
            snapshot_id=self._snapshot_id,
            data_leaves=kinds["data leaf"],
            delete_leaves=kinds["delete leaf"],
            converted_leaves=sum(Reason.LAYOUT in row["reasons"] for row in rows),
            moved_files=kinds["data file"] + kinds["delete file"],
            leaves_after=sum(group.parts for group in choice.groups),
            entries=sum(row["entries"] for row in rows),
            masked=sum(row["masked_entries"] for row in rows),
            bytes=sum(row["file_size_in_bytes"] or 0 for row in rows if row["content"].endswith("leaf")),
            overlaps=round(self._mean_overlaps, 2),
            reasons=dict(Counter(reason for row in rows for reason in row["reasons"])),
            position_deletes=self._old.position_deletes,
            unknown_transforms=self._old.unknown_transforms,
        )

    def step(self) -> RewriteStep | None:
        """See `RewritePlan.step`."""
        if self._scope is None or not self._choice.groups:
            return None
        return _CompactionStep(self.branch, self.properties, self._state, self._scope, self._choice)

    @cached_property
    def _choice(self) -> CompactionGroups:
        return CompactionGroups() if self._scope is None else choose(self._scope)

    @property
    def _mean_overlaps(self) -> float:
        return sum(self._overlaps.values()) / len(self._overlaps) if self._overlaps else 0.0

    @cached_property
    def _overlaps(self) -> dict[int, int]:
        """The number of other leaves that overlap each data leaf, by row number in the root."""
        scope, overlaps = self._scope, dict[int, int]()
        if scope is None:
            return overlaps
        for spec_id in sorted(set(scope.root.leaves.column("partition_spec_id").to_pylist())):
            leaves = scope.leaves(ContentType.DATA_MANIFEST, spec_id)
            ranges = leaf_ranges(leaves.table, scope.keys[spec_id], scope.sources[spec_id])
            overlaps.update(zip(leaves.ordinals.tolist(), ranges.overlaps.tolist(), strict=True))
        return overlaps

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        if self._scope is None:
            return []
        masked, root = self._scope.masked, self._scope.root.table
        rows = []
        for number, group in enumerate(self._choice.groups):
            ordinals = pa.array([*group.leaves, *group.files], pa.int64())
            for ordinal, row in zip(
                ordinals.to_pylist(), root.select(_ROOT_COLUMNS).take(ordinals).to_pylist(), strict=True
            ):
                is_leaf = row["content_type"] in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
                masked_entries = masked.get(row["location"], 0) if is_leaf else 0
                reasons = self._choice.reasons.get(ordinal, ())
                overlaps = self._overlaps.get(ordinal)
                rows.append(
                    {
                        "content": CONTENT_NAMES[ContentType(row["content_type"])],
                        "file_path": row["location"],
                        "spec_id": row["partition_spec_id"],
                        "reasons": [str(reason) for reason in reasons],
                        "gain": _gain(reasons, masked_entries, overlaps, len(group.leaves), group.parts),
                        "group": number,
                        "group_parts": group.parts,
                        "entries": row["record_count"] if is_leaf else 1,
                        "masked_entries": masked_entries,
                        "overlaps": overlaps,
                        "file_size_in_bytes": row["file_size_in_bytes"],
                    }
                )
        return rows


def _gain(reasons: tuple[Reason, ...], masked: int, overlaps: int | None, leaves: int, parts: int) -> str:
    texts = {
        Reason.LAYOUT: "becomes columnar, so that Spark reads and skips entries by themselves",
        Reason.MASKED: f"{masked} masked entries go",
        Reason.SMALL: f"one of {leaves} leaves that become {parts}",
        Reason.OVERLAP: f"overlaps {overlaps} other leaves",
        Reason.ROOT: "leaves the root, which every commit copies",
        Reason.AFFINITY: "its deletion vectors follow their data files",
    }
    return "; ".join(texts[reason] for reason in reasons)


@dataclass
class _CompactionStep(RewriteStep):
    """The step of a compaction. It writes leaves once; each attempt rebases them on the newest root."""

    planned_on: TableState
    scope: Scope
    choice: CompactionGroups
    rewritten: list[Rewritten] | None = None

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        if not head.types.has_tuples_of(self.planned_on.types):
            location = head.metadata.location
            raise CommitConflictError(f"{location}: its upgrade gives its expressions other ids by now: plan again")
        if self.rewritten is None:
            self.rewritten = rewrite(self.planned_on, self.scope, self.choice, self.names.file("compact"))
            self.names.written.update(*(group.new_leaves.column("location").to_pylist() for group in self.rewritten))
        base = base_root(head)
        if base.root is None:
            raise CommitConflictError(f"{head.metadata.location}: the branch no longer has a snapshot")
        state = with_root(head, base)
        rebased = rebase(state, base.root, self.rewritten, blob_loader(head))
        if rebased.left_out == len(self.rewritten):
            raise rewritten_by_others(head)
        counts = rebased.counts.plus(LeafCounts(unchanged=len(in_files(base.root.leaves))))
        new = NewSnapshot(state, base, self.branch, self.names)
        return new.write(rebased.into(TreeChange()), self.summary(head, counts))


def plan_compaction(table: TableT, options: CompactionOptions) -> CompactionPlan[TableT]:
    """See `Maintenance.compact_manifests`."""
    refuse_lists(table.metadata, table.full_name)
    refuse_read_only(table)
    refuse_encrypted(table.metadata, "which metadata trees can't be")
    options.check()
    return compaction_of(table, table.state, options)


def compaction_of(table: TableT, upgraded: TableState, options: CompactionOptions) -> CompactionPlan[TableT]:
    """Return the plan to compact a table in its current state, or in its state after an upgrade."""
    head = branch_head(upgraded, options.branch)
    base = base_root(head)
    state = with_root(head, base)
    if base.root is None:
        return CompactionPlan(table, state, options, None)
    layout = old_layout(state)
    scope = scope_of(state, base.root, options, convertible=layout.convertible)
    return CompactionPlan(table, state, options, scope, layout)
