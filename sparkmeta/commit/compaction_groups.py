"""Choose the leaves and files of a root that a compaction rewrites, in groups, with reasons. No Spark, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import live_counts
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.expr.arrays import whole
from sparkmeta.manifests.v4.root import Root, in_files, one_of
from sparkmeta.manifests.v4.write import leaf_count
from sparkmeta.spec.entry import ContentType

# -- Ranges of leaves in the order of the clustering columns ----------------------------------------------------------


_Longs = np.ndarray[Any, np.dtype[np.int64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]
# Ranks before and after all bounds.
_START, _END = -1, 1 << 40


@dataclass(frozen=True)
class LeafRanges:
    """Leaves as intervals of ranks in the lexicographic order of the clustering columns.

    A leaf with equal ranks is a point. Intervals that only touch, and equal points, don't overlap, since no order of
    the files would separate them.

    Attributes:
        lower: rank of each leaf's lower bounds.
        upper: rank of each leaf's upper bounds.
        unknown: whether a leaf extends to an end of the order because some of its files have no bounds.
    """

    lower: _Longs
    upper: _Longs
    unknown: _Bools

    def of(self, rows: _Longs) -> LeafRanges:
        """Return the ranges of the given rows."""
        return LeafRanges(self.lower[rows], self.upper[rows], self.unknown[rows])

    @cached_property
    def order(self) -> _Longs:
        """The rows, sorted by the starts of their intervals."""
        return np.lexsort((self.upper, self.lower))

    @cached_property
    def overlaps(self) -> _Longs:
        """The number of other leaves that each leaf overlaps."""
        starts, ends = np.sort(self.lower), np.sort(self.upper)
        after = len(starts) - np.searchsorted(starts, self.upper, "left")
        before = np.searchsorted(ends, self.lower, "right")
        is_point = self.lower == self.upper
        points = np.sort(self.lower[is_point])
        equal_points = np.searchsorted(points, self.lower, "right") - np.searchsorted(points, self.lower, "left")
        # A point is neither before nor after equal points and itself, but has been counted as both.
        overlaps = len(starts) - after - before + np.where(is_point, equal_points, 0)
        return np.where(is_point, overlaps, overlaps - 1)

    def components(self) -> list[_Longs]:
        """Return groups of leaves that overlap no leaf of another group; groups and leaves are sorted."""
        if not len(self.lower):
            return []
        order = self.order
        reach = np.maximum.accumulate(self.upper[order])
        starts_component = self.lower[order][1:] >= reach[:-1]
        return np.split(order, np.flatnonzero(starts_component) + 1)

    def mean_overlaps(self) -> float:
        """Return the mean number of other leaves that a leaf overlaps; 0.0 without leaves."""
        return float(np.mean(self.overlaps)) if len(self.lower) else 0.0


def leaf_ranges(leaves: pa.Table, keys: Sequence[int], sources: frozenset[int] = frozenset()) -> LeafRanges:
    """Return the ranges of a root's entries for leaves.

    Args:
        keys: ids of the stats that determine the order of leaves.
        sources: ids of stats that hold partition values. A null partition value comes after all others.
    """
    stats = leaves.column(CONTENT_STATS)
    bounds = [_ranks(_children(stats, key), key in sources) for key in keys if _has(stats, key)]
    if not bounds:
        nothing = np.zeros(len(leaves), np.int64)
        return LeafRanges(nothing, nothing, nothing.astype(bool))
    lower, upper = (np.stack(part, axis=1) for part in zip(*bounds, strict=True))
    differs = lower != upper
    first_difference = np.where(differs.any(axis=1), differs.argmax(axis=1), len(bounds))
    is_behind = np.arange(len(bounds)) > first_difference[:, None]
    unknown = (((lower == _START) | (upper == _END)) & ~is_behind).any(axis=1)
    lower, upper = np.where(is_behind, _START, lower), np.where(is_behind, _END, upper)
    ranks = _tuple_ranks(np.concatenate([lower, upper]))
    return LeafRanges(ranks[: len(leaves)], ranks[len(leaves) :], unknown)


def _has(stats: pa.ChunkedArray, key: int) -> bool:
    return bool(stats.type.get_field_index(str(key)) >= 0)


def _children(stats: pa.ChunkedArray, key: int) -> Mapping[str, pa.Array]:
    values = whole(pc.struct_field(stats, str(key)))
    return dict(zip((child.name for child in values.type), values.flatten(), strict=True))


def _ranks(stats: Mapping[str, pa.Array], is_source: bool) -> tuple[_Longs, _Longs]:
    """Return ranks of the lower and upper bounds among all bounds. Unknown and inverted bounds extend to the ends."""
    lower, upper = stats["lower_bound"], stats["upper_bound"]
    nulls, values = stats["null_value_count"], stats["value_count"]
    distinct = pc.unique(pa.concat_arrays([lower, upper])).drop_null()
    ordered = distinct.take(pc.sort_indices(distinct))
    lower_ranks = pc.fill_null(pc.index_in(lower, ordered), _START).to_numpy(zero_copy_only=False).astype(np.int64)
    upper_ranks = pc.index_in(upper, ordered).cast(pa.int64())
    upper_ranks = pc.fill_null(upper_ranks, _END).to_numpy(zero_copy_only=False).astype(np.int64)
    is_inverted = lower_ranks > upper_ranks
    lower_ranks, upper_ranks = np.where(is_inverted, _START, lower_ranks), np.where(is_inverted, _END, upper_ranks)
    end = len(ordered)
    only_null = pc.fill_null(pc.and_(pc.equal(nulls, values), pc.greater(values, 0)), False)
    only_null = pc.and_(only_null, lower.is_null()).to_numpy(zero_copy_only=False)
    lower_ranks, upper_ranks = np.where(only_null, end, lower_ranks), np.where(only_null, end, upper_ranks)
    if is_source:
        has_nulls = pc.fill_null(pc.greater(nulls, 0), True).to_numpy(zero_copy_only=False)
        upper_ranks = np.where(has_nulls & (upper_ranks < end), end, upper_ranks)
    return lower_ranks, upper_ranks


def _tuple_ranks(rows: np.ndarray[Any, np.dtype[np.int64]]) -> _Longs:
    """Return dense ranks of rows in lexicographic order."""
    if not len(rows):
        return np.zeros(0, np.int64)
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    steps = np.concatenate([[0], np.any(ordered[1:] != ordered[:-1], axis=1).cumsum()])
    ranks = np.empty(len(rows), np.int64)
    ranks[order] = steps
    return ranks


# -- Groups of leaves, within the limits of a compaction --------------------------------------------------------------


class Reason(StrEnum):
    """Why a leaf or a file of the root is rewritten.

    Attributes:
        LAYOUT: it has the layout of versions 1 to 3, or may have another library's.
        MASKED: many of its entries are masked.
        SMALL: it is merged with its neighbours.
        OVERLAP: too many leaves overlap it in the order of the clustering columns.
        ROOT: the root holds too many files.
        AFFINITY: its data leaf is split, or the data files of its deletion vectors are in few leaves.
    """

    LAYOUT = "layout"
    MASKED = "masked"
    SMALL = "small"
    OVERLAP = "overlap"
    ROOT = "root"
    AFFINITY = "affinity"


@dataclass(frozen=True)
class CompactionLimits:
    """The limits of a compaction. See `CompactionOptions`, and `TreeOptions` for `affiliated_deletes`.

    Attributes:
        fewest_merged: the minimum number of small leaves that are merged.
    """

    target_bytes: int
    min_masked_ratio: float
    min_leaf_ratio: float
    max_overlap: int
    max_root_files: int | None
    affiliated_deletes: int
    max_entries: int | None = None
    max_bytes: int | None = None
    fewest_merged: int = 2


@dataclass(frozen=True)
class Group:
    """Leaves and files that are rewritten together: data of one spec, or deletes of all specs.

    Attributes:
        leaves: row numbers in the root's table, in the order of the clustering columns.
        files: row numbers in the root's table.
        parts: the expected number of new leaves.
        exchanged: whether Spark sorts entries across tasks; otherwise one task reads the whole group.
        gain: the benefit of rewriting the group, for comparisons.
    """

    content: ContentType
    spec_id: int | None
    leaves: tuple[int, ...]
    files: tuple[int, ...] = ()
    parts: int = 1
    exchanged: bool = False
    gain: float = 0.0


@dataclass(frozen=True)
class CompactionGroups:
    """The groups that a compaction rewrites.

    Attributes:
        reasons: row number in the root's table -> why it is rewritten.
    """

    groups: tuple[Group, ...] = ()
    reasons: Mapping[int, tuple[Reason, ...]] = field(default_factory=dict)

    def of(self, groups: Sequence[Group]) -> CompactionGroups:
        """Return the choice restricted to the given groups."""
        ordinals = {ordinal for group in groups for ordinal in (*group.leaves, *group.files)}
        return CompactionGroups(
            tuple(groups), {ordinal: reasons for ordinal, reasons in self.reasons.items() if ordinal in ordinals}
        )

    @property
    def data(self) -> list[Group]:
        return [group for group in self.groups if group.content == ContentType.DATA_MANIFEST]

    @property
    def deletes(self) -> Group | None:
        """All delete leaves and deletes of the root, which are rewritten together."""
        return next((group for group in self.groups if group.content == ContentType.DELETE_MANIFEST), None)


# -- Choose the leaves and files that a compaction rewrites -----------------------------------------------------------
# Leaves are chosen by their root entries alone: size, bounds, and the number of masked entries.


_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Scope:
    """The part of a root that may be rewritten.

    Attributes:
        usable: row numbers, in the root's table, of leaves and files that may be rewritten.
        owners: row numbers of data leaves that delete leaves may be affiliated with.
        keys: spec id -> ids of the stats that determine the order of its leaves.
        sources: spec id -> ids of the stats that hold partition values.
        flushed: locations of leaves that a flush wrote. A flush does not affiliate deletes.
        old: row numbers of leaves in the layout of versions 1 to 3.
        foreign: row numbers of leaves that other libraries may have written. Tasks, not Spark, read their statistics.
        rewrites_all: whether to rewrite all leaves, even those that don't benefit.
        colocates: whether data entries in leaves contain their deletion vectors.
    """

    root: Root
    usable: frozenset[int]
    owners: frozenset[int]
    keys: Mapping[int, Sequence[int]]
    sources: Mapping[int, frozenset[int]]
    limits: CompactionLimits
    flushed: frozenset[str] = frozenset()
    old: frozenset[int] = frozenset()
    foreign: frozenset[int] = frozenset()
    rewrites_all: bool = False
    colocates: bool = False

    @cached_property
    def masked(self) -> Mapping[str, int]:
        return {location: dv["record_count"] for location, dv in self.root.manifest_dv_of.items()}

    def tree_bytes(self, ordinals: _Array, sizes: _Array) -> _Array:
        """Return the sizes of leaves in the tree's layout. Sizes of leaves in the old layout are estimates."""
        return np.where(_members(ordinals, self.old), sizes * _CONVERTED_SHARE, sizes).astype(np.int64)

    def leaves(self, content: ContentType, spec_id: int | None = None) -> _Leaves:
        table = in_files(self.root.leaves)
        table = table.filter(one_of(table, [content]))
        if spec_id is not None:
            table = table.filter(pc.equal(table.column("partition_spec_id"), spec_id))
        return _Leaves(table, self)

    def files(self, *kinds: ContentType) -> pa.Table:
        """Return the root's own live files that may be rewritten, with their row number as `ordinal`."""
        files = self.root.of(kinds)
        return files.filter(pc.is_in(files.column("ordinal"), pa.array(sorted(self.usable), pa.int64())))


# The size of a leaf, as a share of the Avro manifest that it is converted from.
_CONVERTED_SHARE = 0.5


def _members(ordinals: _Array, members: frozenset[int]) -> _Array:
    return np.isin(ordinals, np.asarray(sorted(members), np.int64))


@dataclass(frozen=True)
class _Leaves:
    """Columns of leaves as arrays."""

    table: pa.Table
    scope: Scope

    def __len__(self) -> int:
        return len(self.table)

    def _longs(self, name: str) -> _Array:
        return np.asarray(self.table.column(name).to_pylist(), np.int64)

    @cached_property
    def ordinals(self) -> _Array:
        return self._longs("ordinal")

    @cached_property
    def usable(self) -> _Array:
        return _members(self.ordinals, self.scope.usable)

    @cached_property
    def is_due(self) -> _Array:
        """Whether a leaf is always rewritten: if all leaves are, or if it has another layout."""
        others = self.scope.old | self.scope.foreign
        return self.usable if self.scope.rewrites_all else self.usable & _members(self.ordinals, others)

    @cached_property
    def owners(self) -> list[str | None]:
        owners: list[str | None] = self.table.column("referenced_file").to_pylist()
        return owners

    @cached_property
    def locations(self) -> list[str]:
        locations: list[str] = self.table.column("location").to_pylist()
        return locations

    @cached_property
    def masked(self) -> _Array:
        return np.asarray([self.scope.masked.get(location, 0) for location in self.locations], np.int64)

    @cached_property
    def records(self) -> _Array:
        return self._longs("record_count")

    @cached_property
    def live(self) -> _Array:
        return np.asarray(live_counts(self.table).to_pylist(), np.int64) - self.masked

    @cached_property
    def bytes(self) -> _Array:
        return self._longs("file_size_in_bytes")

    @cached_property
    def live_bytes(self) -> _Array:
        return self.scope.tree_bytes(self.ordinals, self.bytes) * self.live // np.maximum(self.records, 1)

    @cached_property
    def was_added(self) -> _Array:
        """Whether a commit wrote the leaf for its new files, so that no flush or compaction has sorted it."""
        counts = pc.struct_field(self.table.column("manifest_stats"), "added_files_count")
        return np.asarray(counts.to_pylist(), np.int64) > 0

    @cached_property
    def was_flushed(self) -> _Array:
        locations = self.table.column("location").to_pylist()
        return np.asarray([location in self.scope.flushed for location in locations], bool)

    @cached_property
    def is_masked(self) -> _Array:
        masked_records = self.records - self.live
        return (masked_records > 0) & (
            masked_records >= self.scope.limits.min_masked_ratio * np.maximum(self.records, 1)
        )

    @cached_property
    def is_small(self) -> _Array:
        return self.live_bytes < self.scope.limits.min_leaf_ratio * self.scope.limits.target_bytes

    def parts(self, rows: _Array) -> int:
        """Return the number of new leaves that replace some rows."""
        return leaf_count(int(self.live[rows].sum()), int(self.live_bytes[rows].sum()), self.scope.limits.target_bytes)


def choose(scope: Scope) -> CompactionGroups:
    """Return the groups that a compaction rewrites.

    If the limits do not allow all groups, the groups that save the most leaves per entry are chosen.
    """
    reasons: dict[int, list[Reason]] = {}
    candidates: list[Group] = []
    specs = scope.root.leaves.column("partition_spec_id").to_pylist()
    excess_files = _excess_root_files(scope, ContentType.DATA)
    for spec_id in sorted({*specs, *excess_files.column("partition_spec_id").to_pylist()}):
        file_ordinals = (
            excess_files.filter(pc.equal(excess_files.column("partition_spec_id"), spec_id))
            .column("ordinal")
            .to_pylist()
        )
        candidates += _SpecChoice(scope, spec_id, reasons).groups(tuple(file_ordinals))
    data_groups = _affordable_groups(candidates, scope)
    deletes = _deletes(scope, data_groups, reasons)
    groups = [*data_groups, *([] if deletes is None else [deletes])]
    return CompactionGroups(
        (), {ordinal: tuple(dict.fromkeys(all_reasons)) for ordinal, all_reasons in reasons.items()}
    ).of(groups)


def choose_merges(scope: Scope) -> CompactionGroups:
    """Return the groups that a commit may compact in addition to its own change.

    Each group becomes one data leaf or none, so that no delete leaves have to be rewritten.
    """
    limits = replace(scope.limits, max_root_files=None, max_overlap=len(scope.root.table), fewest_merged=_FEWEST_MERGED)
    choice = choose(replace(scope, limits=limits))
    return choice.of([group for group in choice.data if not group.exchanged and group.parts <= 1])


_DELETES = (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)
# Leaves that exceed the target size by more than this factor are sorted across tasks.
_LARGE = 8
# A commit that adds a leaf must not rewrite the last one each time.
_FEWEST_MERGED = 8


def _excess_root_files(scope: Scope, *kinds: ContentType) -> pa.Table:
    """Return the root's files of some kinds if they exceed the limit, otherwise no rows."""
    files, limit = scope.files(*kinds), scope.limits.max_root_files
    return files if limit is not None and len(files) > limit else files.slice(0, 0)


@dataclass(frozen=True)
class _SpecChoice:
    """Chooses groups of one spec's data leaves."""

    scope: Scope
    spec_id: int
    reasons: dict[int, list[Reason]]

    @cached_property
    def leaves(self) -> _Leaves:
        return self.scope.leaves(ContentType.DATA_MANIFEST, self.spec_id)

    @cached_property
    def ranges(self) -> LeafRanges:
        keys, sources = self.scope.keys[self.spec_id], self.scope.sources[self.spec_id]
        return leaf_ranges(self.leaves.table, keys, sources)

    def groups(self, files: tuple[int, ...]) -> list[Group]:
        for ordinal in files:
            self._add_reason(ordinal, Reason.ROOT)
        overlapping = self._overlapping()
        overlapping += self._oversized({int(row) for rows in overlapping for row in rows})
        exchanged = [self._group(rows, exchanged=True) for rows in overlapping]
        if exchanged and files:
            exchanged[0] = replace(exchanged[0], files=files)
        elif files:
            exchanged = [Group(ContentType.DATA_MANIFEST, self.spec_id, (), files, gain=1.0)]
        grouped_rows = {int(row) for rows in overlapping for row in rows}
        return exchanged + [self._group(rows) for rows in self._bins(grouped_rows)]

    def _add_reason(self, ordinal: int, reason: Reason) -> None:
        self.reasons.setdefault(ordinal, []).append(reason)

    def _overlapping(self) -> list[_Array]:
        """Return leaves that overlap too many others, in groups within the limits.

        Sorted leaves with files without bounds are left out, since sorting them again would not help.
        """
        leaves, limits = self.leaves, self.scope.limits
        sorted_before = ~leaves.was_added & ~leaves.is_due & self.ranges.unknown
        candidates = np.flatnonzero(leaves.usable & ~sorted_before & (leaves.live > 0))
        ranges = self.ranges.of(candidates)
        overlapping = []
        for component in ranges.components():
            if len(component) > 1 and ranges.overlaps[component].max() > limits.max_overlap:
                rows = candidates[self._affordable(component, ranges, candidates)]
                if len(rows) > 1:
                    overlapping.append(rows)
                    for row in rows:
                        self._add_reason(int(leaves.ordinals[row]), Reason.OVERLAP)
                    for row in rows[leaves.is_due[rows]]:
                        self._add_reason(int(leaves.ordinals[row]), Reason.LAYOUT)
        return overlapping

    def _oversized(self, grouped_rows: set[int]) -> list[_Array]:
        """Return leaves of another layout that are too large for one task, in one group."""
        leaves, limits = self.leaves, self.scope.limits
        is_large = leaves.is_due & (leaves.live_bytes > _LARGE * limits.target_bytes)
        rows = np.asarray([row for row in np.flatnonzero(is_large).tolist() if row not in grouped_rows], np.int64)
        is_affordable = _fits(leaves.live[rows].sum(), leaves.bytes[rows].sum(), limits)
        if not len(rows) or not is_affordable:
            return []
        for row in rows:
            self._add_reason(int(leaves.ordinals[row]), Reason.LAYOUT)
        return [rows]

    def _affordable(self, component: _Array, ranges: LeafRanges, candidates: _Array) -> _Array:
        """Return the part of a component that the limits allow: the leaves around the leaf that overlaps most."""
        leaves, limits = self.leaves, self.scope.limits
        if _fits(leaves.live[candidates[component]].sum(), leaves.bytes[candidates[component]].sum(), limits):
            return component
        most_overlapping = component[ranges.overlaps[component].argmax()]
        neighbors = component[(ranges.lower[component] < ranges.upper[most_overlapping])
                              & (ranges.upper[component] > ranges.lower[most_overlapping])]  # fmt: skip
        neighbors = neighbors[np.argsort(-ranges.overlaps[neighbors], kind="stable")]
        entries, sizes = np.cumsum(leaves.live[candidates[neighbors]]), np.cumsum(leaves.bytes[candidates[neighbors]])
        is_affordable = np.array([_fits(count, size, limits) for count, size in zip(entries, sizes, strict=True)], bool)
        affordable: _Array = neighbors[is_affordable]
        return np.take(affordable, np.argsort(ranges.lower[affordable], kind="stable"))

    def _bins(self, grouped_rows: set[int]) -> list[_Array]:
        """Return runs of small or masked neighbours of about a leaf's size, within the limits."""
        leaves, limits = self.leaves, self.scope.limits
        is_worthwhile = leaves.usable & (leaves.is_small | leaves.is_masked | leaves.is_due)
        bins: list[list[int]] = [[]]
        for row in self.ranges.order.tolist():
            is_usable = is_worthwhile[row] and row not in grouped_rows
            is_full = leaves.live_bytes[np.asarray(bins[-1], np.int64)].sum() >= limits.target_bytes
            extended = np.asarray([*bins[-1], row])
            if not is_usable or is_full or not _fits(leaves.live[extended].sum(), leaves.bytes[extended].sum(), limits):
                bins.append([])
            if is_usable:
                bins[-1].append(row)
        return [
            rows for leaf_rows in bins if leaf_rows and (rows := self._worthwhile(np.asarray(leaf_rows))) is not None
        ]

    def _worthwhile(self, rows: _Array) -> _Array | None:
        leaves = self.leaves
        if leaves.parts(rows) < len(rows) >= self.scope.limits.fewest_merged:
            for row in rows[leaves.is_small[rows]]:
                self._add_reason(int(leaves.ordinals[row]), Reason.SMALL)
        else:
            rows = rows[leaves.is_masked[rows] | leaves.is_due[rows]]
            if not len(rows):
                return None
        for row in rows[leaves.is_masked[rows]]:
            self._add_reason(int(leaves.ordinals[row]), Reason.MASKED)
        for row in rows[leaves.is_due[rows]]:
            self._add_reason(int(leaves.ordinals[row]), Reason.LAYOUT)
        return rows

    def _group(self, rows: _Array, *, exchanged: bool = False) -> Group:
        leaves = self.leaves
        parts = leaves.parts(rows)
        converted_count = int(leaves.is_due[rows].sum())
        masked_shares = float((1 - leaves.live[rows] / np.maximum(leaves.records[rows], 1)).sum())
        gain = len(rows) - parts + masked_shares + converted_count
        if exchanged:
            gain += float(self.ranges.overlaps[rows].sum())
        ordinals = tuple(leaves.ordinals[rows].tolist())
        return Group(ContentType.DATA_MANIFEST, self.spec_id, ordinals, (), parts, exchanged, gain)


def _fits(entries: int, size: int, limits: CompactionLimits) -> bool:
    too_many = limits.max_entries is not None and entries > limits.max_entries
    return not too_many and (limits.max_bytes is None or size <= limits.max_bytes)


def _affordable_groups(candidates: Iterable[Group], scope: Scope) -> list[Group]:
    """Return the groups that fit the limits together, by gain per entry."""
    all_leaves = scope.leaves(ContentType.DATA_MANIFEST)
    entries = dict(zip(all_leaves.ordinals.tolist(), all_leaves.live.tolist(), strict=True))
    sizes = dict(zip(all_leaves.ordinals.tolist(), all_leaves.bytes.tolist(), strict=True))

    def cost(group: Group) -> int:
        return int(sum(entries[leaf] for leaf in group.leaves)) + len(group.files)

    affordable: list[Group] = []
    total, size = 0, 0
    for group in sorted(candidates, key=lambda group: (-group.gain / (cost(group) or 1e-9), group.leaves)):
        group_size = sum(sizes[leaf] for leaf in group.leaves if entries[leaf])
        if _fits(total + cost(group), size + group_size, scope.limits):
            affordable.append(group)
            total, size = total + cost(group), size + group_size
    return affordable


# -- Deletes --------------------------------------------------------------------------------------------------------


def _deletes(scope: Scope, data: Sequence[Group], reasons: dict[int, list[Reason]]) -> Group | None:
    """Return the group of delete leaves and the root's deletes to rewrite."""
    leaves = scope.leaves(ContentType.DELETE_MANIFEST)
    reasons_of_row: dict[int, list[Reason]] = {}

    def add_reason(rows: Iterable[int], reason: Reason) -> None:
        for row in rows:
            if leaves.usable[row]:
                reasons_of_row.setdefault(int(row), []).append(reason)

    split_leaves = _split_leaves(scope, data)
    add_reason((row for row, owner in enumerate(leaves.owners) if owner in split_leaves), Reason.AFFINITY)
    add_reason(np.flatnonzero(leaves.is_masked), Reason.MASKED)
    add_reason(np.flatnonzero(leaves.is_due), Reason.LAYOUT)
    small_rows: dict[tuple[str | None, int], list[int]] = {}
    specs = leaves.table.column("partition_spec_id").to_pylist()
    for row in np.flatnonzero(leaves.is_small & leaves.usable).tolist():
        small_rows.setdefault((leaves.owners[row], specs[row]), []).append(row)
    for rows in small_rows.values():
        if leaves.parts(np.asarray(rows)) < len(rows):
            add_reason(rows, Reason.SMALL)
    add_reason(_rows_to_affiliate(scope, leaves), Reason.AFFINITY)
    kinds = (ContentType.EQUALITY_DELETES,) if scope.colocates else _DELETES
    file_ordinals = _excess_root_files(scope, *kinds).column("ordinal").to_pylist()
    for row, row_reasons in reasons_of_row.items():
        reasons.setdefault(int(leaves.ordinals[row]), []).extend(row_reasons)
    for ordinal in file_ordinals:
        reasons.setdefault(ordinal, []).append(Reason.ROOT)
    chosen_rows = np.asarray(sorted(reasons_of_row), np.int64)
    if not len(chosen_rows) and not file_ordinals:
        return None
    ordinals = tuple(leaves.ordinals[chosen_rows].tolist())
    parts = leaves.parts(chosen_rows)
    return Group(
        ContentType.DELETE_MANIFEST,
        None,
        ordinals,
        tuple(file_ordinals),
        parts,
        exchanged=True,
        gain=len(chosen_rows) - parts,
    )


def _split_leaves(scope: Scope, data: Sequence[Group]) -> set[str]:
    """Return the data leaves whose files may move to several leaves."""
    locations = scope.root.table.column("location")
    split_groups = [group for group in data if group.exchanged or group.parts > 1]
    return {locations[ordinal].as_py() for group in split_groups for ordinal in group.leaves}


def _rows_to_affiliate(scope: Scope, leaves: _Leaves) -> list[int]:
    """Return the rows of unaffiliated delete leaves with enough deletes for at least one affiliated delete leaf.

    A leaf that a compaction wrote is skipped: the compaction has found too few deletes for each data leaf.
    """
    scattered_rows = []
    for spec_id, sources in scope.sources.items():
        data = scope.leaves(ContentType.DATA_MANIFEST, spec_id)
        in_spec = pc.equal(leaves.table.column("partition_spec_id"), spec_id).to_pylist()
        is_uncompacted = leaves.was_added | leaves.was_flushed
        rows = [
            row
            for row, is_of_spec in enumerate(in_spec)
            if is_of_spec and is_uncompacted[row] and leaves.owners[row] is None
        ]
        if not rows or not len(data):
            continue
        merged = pa.concat_tables([data.table, leaves.table.take(pa.array(rows, pa.int64()))])
        ranges = leaf_ranges(merged, sorted(sources), sources)
        for number, row in enumerate(rows, len(data)):
            is_apart = (ranges.lower[: len(data)] > ranges.upper[number]) | (
                ranges.upper[: len(data)] < ranges.lower[number]
            )
            near_count = int((~is_apart).sum())
            if near_count and leaves.live[row] >= scope.limits.affiliated_deletes * near_count:
                scattered_rows.append(row)
    return scattered_rows
