"""The options of a compaction of a metadata tree, and the scope that they choose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.checks import SHARE, at_least, names_of, option
from sparkmeta.commit.compaction_groups import CompactionLimits, Scope
from sparkmeta.commit.leaves import partition_stats
from sparkmeta.commit.options import BranchOptions, TreeOptions
from sparkmeta.entries.projection import MANIFEST, ORDINAL
from sparkmeta.errors import ValidationError, hint_at
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.manifests.v4.root import FILES, Root, in_files, one_of, version
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.filter import ScanFilter, matching_entries
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.snapshot.state import TableState


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
        convertible: leaves in the layout of versions 1 to 3 that may be rewritten, rows of `state.manifests`. With
            them, leaves of other libraries may be rewritten. If None, only leaves of this package may be.

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
    foreign = leaves.slice(0, 0) if convertible is None else _foreign_leaves(state)
    usable = _usable(state, root, pa.concat_tables([leaves, old_leaves, foreign]), options.row_filter, set(busy))
    old_ordinals, foreign_ordinals = (frozenset(table.column(MANIFEST).to_pylist()) for table in (old_leaves, foreign))
    return Scope(
        root,
        usable,
        frozenset(owners),
        keys,
        sources,
        limits,
        _flushed(state, root),
        old_ordinals,
        foreign_ordinals,
        colocates=state.layout.colocates,
    )


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
    largest = max((size // count for size, count in sizes if count and count >= _MIN_MEASURED_ENTRIES), default=0)
    if target < largest:
        raise ValidationError(
            f"{state.metadata.location}: target_leaf_bytes is {target}: one entry takes {largest} bytes already"
        )
    return target


# Leaves with fewer entries consist mostly of their footer.
_MIN_MEASURED_ENTRIES = 100


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
            schema = state.metadata.schema()
            known = [schema.find_column_name(column) for column in schema.field_ids if _has_bounds(state, column)]
            fields = [field.name for spec in state.specs.values() for field in spec.fields]
            hint = hint_at(name, dict.fromkeys(filter(None, [*known, *fields])))
            problem = f"no column or partition field {name!r} with bounds in the table{hint}"
            raise ValidationError(f"{state.metadata.location}: cluster_by: {problem}")
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
    """Return the rows of `state.manifests` for leaves of the root's layout."""
    assert state.tree is not None
    manifests = in_files(state.manifests)
    leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
    return leaves.filter(state.tree.has_layout_of_root(leaves))


def _foreign_leaves(state: TableState) -> pa.Table:
    """Return the rows of `state.manifests` for leaves of other libraries, if the root has this package's layout."""
    assert state.tree is not None
    manifests = in_files(state.manifests)
    return manifests.filter(state.tree.is_foreign(manifests)) if state.layout.spark_reads else manifests.slice(0, 0)


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
