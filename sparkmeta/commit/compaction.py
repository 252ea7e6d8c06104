"""The plan of a compaction of a metadata tree, its options, and the step that commits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyspark.sql import functions as F

from sparkmeta.checks import SHARE, at_least, names_of, option
from sparkmeta.columns.predicate import parse_filter
from sparkmeta.commit.attempts import BranchOptions, RewritePlan, RewriteStep, SnapshotPlanSummary, rewritten_by_others
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction_groups import CompactionGroups, CompactionLimits, Reason, Scope, choose, leaf_ranges
from sparkmeta.commit.compaction_job import Rewritten, rebase, rewrite
from sparkmeta.commit.leaves import partition_stats
from sparkmeta.commit.new_snapshot import LeafCounts, NewSnapshot, blob_loader, branch_head, with_root
from sparkmeta.commit.next_root import TreeChange
from sparkmeta.commit.options import TreeOptions
from sparkmeta.entries.arrays import is_live_entry
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.manifests.v4.root import FILES, Root, one_of, version
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.operations.table_operations import TableT
from sparkmeta.plan.filter import ScanFilter, matching_entries
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


# -- The options of a compaction --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompactionOptions(BranchOptions):
    """See `Maintenance.compact_manifests`."""

    row_filter: BooleanExpression | str = option(
        AlwaysTrue(), "rewrite only leaves that may hold matching files, and matching files of the root."
    )
    _: KW_ONLY
    cluster_by: Sequence[str] | None = option(
        None,
        "columns and partition fields by which entries are sorted. Defaults to a spec's partition fields and the "
        "columns of the table's sort order.",
        names_of("columns or partition fields"),
    )
    target_leaf_bytes: int | None = option(
        None, "target size of a leaf. Defaults to the table's `write.tree.leaf-target-bytes`.", at_least(1)
    )
    max_entries: int | None = option(
        None,
        "maximum entries of data leaves to rewrite. Groups that save the most leaves come first.",
        at_least(1),
    )
    max_bytes: int | None = option(None, "maximum bytes of data leaves to rewrite.", at_least(1))
    min_masked_ratio: float = option(0.1, "rewrite leaves with at least this share of masked entries.", SHARE)
    min_leaf_ratio: float = option(
        0.5, "merge neighbouring leaves that are smaller than this share of the target size.", SHARE
    )
    max_overlap: int = option(3, "sort leaves if one overlaps more than this number of others.", at_least(0))
    max_root_files: int | None = option(
        100,
        "maximum files of a kind (data or deletes) in the root; more are moved into leaves. None to move no files.",
        at_least(0),
    )

    def check(self) -> None:
        """See `Options.check`. Raises InvalidFilterError for a filter that is not valid."""
        super().check()
        parse_filter(self.row_filter)


def scope_of(
    state: TableState,
    root: Root,
    options: CompactionOptions,
    busy: Collection[str] = (),
    *,
    files: bool = True,
    convertible: pa.Table | None = None,
) -> Scope:
    """Return the part of a state's root that a compaction may rewrite, and the limits.

    Args:
        root: the state's root.
        busy: leaves not to rewrite.
        files: whether files of the root itself may move.
        convertible: leaves in the layout of versions 1 to 3 that may be rewritten, rows of `state.manifests`.

    Raises:
        ValidationError: an option is not valid for the table.
        InvalidFilterError: the filter is not valid for the table.
    """
    options.check()
    tree = TreeOptions.of(state.metadata)
    limits = CompactionLimits(
        target_bytes=_target_bytes(options, tree, root, state),
        min_masked_ratio=options.min_masked_ratio,
        min_leaf_ratio=options.min_leaf_ratio,
        max_overlap=options.max_overlap,
        max_root_files=options.max_root_files if files else None,
        affiliated_deletes=tree.affiliated_deletes,
        max_entries=options.max_entries,
        max_bytes=options.max_bytes,
    )
    keys = cluster_keys(state, options.cluster_by)
    sources = partition_stats(state)
    leaves = _tree_leaves(state)
    owners = leaves.filter(one_of(leaves, [ContentType.DATA_MANIFEST])).column(MANIFEST).to_pylist()
    old_leaves = leaves.slice(0, 0) if convertible is None else convertible
    usable = _usable(state, root, pa.concat_tables([leaves, old_leaves]), options.row_filter, set(busy))
    old_ordinals = frozenset(old_leaves.column(MANIFEST).to_pylist())
    return Scope(root, usable, frozenset(owners), keys, sources, limits, _flushed(state, root), old_ordinals)


def _flushed(state: TableState, root: Root) -> frozenset[str]:
    """Return the leaves of carried-over files that no compaction wrote, if their snapshots have not expired."""
    writers = {snapshot.snapshot_id for snapshot in state.metadata.snapshots if snapshot.operation != "replace"}
    added = pc.greater(pc.struct_field(root.leaves.column("manifest_stats"), "added_files_count"), 0)
    carried = root.leaves.filter(pc.invert(added))
    rows = zip(carried.column("location").to_pylist(), version(carried, "snapshot_id").to_pylist(), strict=True)
    return frozenset(location for location, snapshot_id in rows if snapshot_id in writers)


def _target_bytes(options: CompactionOptions, tree: TreeOptions, root: Root, state: TableState) -> int:
    target = options.target_leaf_bytes
    if target is None:
        return tree.leaf_target_bytes
    leaves = root.leaves
    sizes = zip(leaves.column("file_size_in_bytes").to_pylist(), leaves.column("record_count").to_pylist(), strict=True)
    largest = max((size // count for size, count in sizes if count and count >= _MANY_ENTRIES), default=0)
    if target < largest:
        raise ValidationError(
            f"{state.metadata.location}: target_leaf_bytes is {target}: one entry takes {largest} bytes already"
        )
    return target


# Leaves with fewer entries consist mostly of their footer.
_MANY_ENTRIES = 100


def cluster_keys(state: TableState, names: Sequence[str] | None) -> dict[int, tuple[int, ...]]:
    """Return the ids of the stats that determine the order of leaves, by spec id.

    Args:
        names: columns and partition fields. Defaults to a spec's partition fields and the columns of the sort order.

    Raises:
        ValidationError: a name is neither a column nor a partition field, or the column has no bounds.
    """
    if names is not None:
        return _named_keys(state, names)
    sort_columns = [field.source_id for field in state.metadata.sort_order().fields]
    ids = {
        spec_id: [source for _, source in pairs] + sort_columns for spec_id, pairs in state.types.tuple_sources.items()
    }
    return {
        spec_id: tuple(key for key in dict.fromkeys(keys) if _has_bounds(state, key)) for spec_id, keys in ids.items()
    }


def _has_bounds(state: TableState, key: int) -> bool:
    return key in state.types.stats_types


def _named_keys(state: TableState, names: Sequence[str]) -> dict[int, tuple[int, ...]]:
    keys: dict[int, list[int]] = {spec_id: [] for spec_id in state.types.tuple_sources}
    for name in names:
        is_known = False
        for spec_id, pairs in state.types.tuple_sources.items():
            key = _key(state, spec_id, dict(pairs), name)
            if key is not None:
                keys[spec_id].append(key)
                is_known = True
        if not is_known:
            raise ValidationError(
                f"{state.metadata.location}: cluster_by names {name!r}: the table has no such column or partition "
                "field, or one without bounds"
            )
    return {spec_id: tuple(dict.fromkeys(of_spec)) for spec_id, of_spec in keys.items()}


def _key(state: TableState, spec_id: int, sources: dict[int, int], name: str) -> int | None:
    """Return the id of the stats of a column, or else of a partition field of one spec."""
    schema = state.metadata.schema()
    column = next((column for column in schema.field_ids if schema.find_column_name(column) == name), None)
    if column is not None:
        return column if _has_bounds(state, column) else None
    field = next((field for field in state.specs[spec_id].fields if field.name == name), None)
    return None if field is None else sources.get(field.field_id)


def _tree_leaves(state: TableState) -> pa.Table:
    """Return the rows of `state.manifests` for leaves of the V4 layout."""
    assert state.tree is not None
    manifests = state.manifests
    leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
    return leaves.filter(state.tree.has_tree_layout(leaves))


def _usable(
    state: TableState, root: Root, leaves: pa.Table, row_filter: BooleanExpression | str, busy: set[str]
) -> frozenset[int]:
    """Return the row numbers in the root of leaves and files that the filter may match."""
    scan = ScanFilter.of(state, row_filter)
    matching = matching_manifests(leaves, scan)
    ordinals = [
        ordinal
        for ordinal, location in zip(
            matching.column(MANIFEST).to_pylist(), matching.column("location").to_pylist(), strict=True
        )
        if location not in busy
    ]
    if scan.keeps_all:
        return frozenset([*ordinals, *root.of(FILES).column("ordinal").to_pylist()])
    in_root = state.manifests.filter(pc.equal(state.manifests.column("file_format"), IN_ROOT))
    entries = matching_entries(state.entries(in_root, state.projection(_FILTER_COLUMNS, scan.undecided_ids)), scan)
    return frozenset([*ordinals, *entries.select(ORDINAL).toArrow().column(ORDINAL).to_pylist()])


_FILTER_COLUMNS = ("content_type", "location", "version_info", "partition_spec_id", "record_count")


# -- Which leaves of versions 1 to 3 can be converted -----------------------------------------------------------------
# After an upgrade, a tree has leaves in the layout of versions 1 to 3. A compaction leaves position delete files of
# version 2 in the manifests that list them, since new leaves can't hold them (semantics 19.3). It also leaves manifests
# whose partition values come from unknown transforms.


@dataclass(frozen=True)
class OldLayout:
    """The leaves of a root in the layout of versions 1 to 3.

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

    Runs a job that reads the delete manifests among the leaves, since a manifest list does not say what kinds of
    deletes they hold.
    """
    assert state.tree is not None
    old_leaves = state.manifests.filter(state.tree.has_old_layout(state.manifests))
    unknown_specs = pa.array(state.types.unwritable_fields, pa.int32())
    is_unknown = pc.is_in(old_leaves.column("partition_spec_id"), unknown_specs)
    known_leaves = old_leaves.filter(pc.invert(is_unknown))
    counts = _position_delete_files(state, known_leaves)
    return OldLayout(
        known_leaves.filter(pc.invert(pc.is_in(known_leaves.column("location"), pa.array(list(counts), pa.string())))),
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
        (F.col("content_type") == int(ContentType.POSITION_DELETES))
        & (F.col("file_format") != "PUFFIN")
        & is_live_entry().column()
    )
    counts = state.entries(deletes, projection).where(is_file).groupBy(MANIFEST).count().toArrow()
    by_id = dict(zip(deletes.column(MANIFEST).to_pylist(), deletes.column("location").to_pylist(), strict=True))
    return {by_id[row[MANIFEST]]: row["count"] for row in counts.sort_by(MANIFEST).to_pylist()}


# -- The plan of a compaction, and the step that commits it -----------------------------------------------------------


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
"""The columns of `CompactionPlan.files`."""

_CONTENTS = {
    ContentType.DATA: "data file",
    ContentType.POSITION_DELETES: "delete file",
    ContentType.EQUALITY_DELETES: "delete file",
    ContentType.DATA_MANIFEST: "data leaf",
    ContentType.DELETE_MANIFEST: "delete leaf",
}


@dataclass(frozen=True)
class CompactionSummary(SnapshotPlanSummary):
    """The numbers of a compaction, computed from the root alone.

    Attributes:
        data_leaves: the data leaves to rewrite.
        delete_leaves: the delete leaves to rewrite.
        converted_leaves: the data and delete leaves that have the layout of versions 1 to 3.
        moved_files: the files that move from the root into leaves.
        leaves_after: the expected number of new leaves.
        entries: the entries to read.
        masked: the masked entries, which are dropped.
        bytes: the bytes to read.
        overlaps: the mean number of other leaves that a data leaf overlaps in the order of the clustering columns.
        reasons: the number of leaves and files by reason.
        position_deletes: manifest that keeps its layout -> its live position delete files of version 2. These and the
            manifest's other deletes stay, since a tree has deletion vectors instead.
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
        return [f"  {self.converted_leaves} leaves have the layout of versions 1 to 3 and get the tree's"]

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

    doing = "Rewriting leaves"

    _scope: Scope | None
    _old: OldLayout = field(default_factory=OldLayout)

    def files(self) -> DataFrame:
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
                        "content": _CONTENTS[ContentType(row["content_type"])],
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


_ROOT_COLUMNS = ["content_type", "location", "partition_spec_id", "record_count", "file_size_in_bytes"]


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
        counts = rebased.counts.plus(LeafCounts(kept=len(base.root.leaves)))
        new = NewSnapshot(state, base, self.branch, self.names)
        return new.commit(rebased.into(TreeChange()), self.summary(head, counts))


def plan_compaction(table: TableT, options: CompactionOptions) -> CompactionPlan[TableT]:
    """See `Maintenance.compact_manifests`."""
    table.refuse_lists()
    table.refuse_read_only()
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
