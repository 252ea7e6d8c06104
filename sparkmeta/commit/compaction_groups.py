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

from sparkmeta.entries.arrays import live_counts, whole
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.manifests.v4.root import Root, one_of
from sparkmeta.manifests.v4.write import leaf_count
from sparkmeta.spec.entry import ContentType

# -- Ranges of leaves in the order of the clustering columns ----------------------------------------------------------


_Longs = np.ndarray[Any, np.dtype[np.int64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]
_LEAST, _MOST = -1, 1 << 40


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
        """The rows sorted by the beginning of their intervals."""
        return np.lexsort((self.upper, self.lower))

    @cached_property
    def overlaps(self) -> _Longs:
        """The number of other leaves that each leaf overlaps."""
        starts, ends = np.sort(self.lower), np.sort(self.upper)
        after = len(starts) - np.searchsorted(starts, self.upper, "left")
        before = np.searchsorted(ends, self.lower, "right")
        is_point = self.lower == self.upper
        points = np.sort(self.lower[is_point])
        same = np.searchsorted(points, self.lower, "right") - np.searchsorted(points, self.lower, "left")
        # A point is neither before nor after equal points and itself, but has been counted as both.
        overlaps = len(starts) - after - before + np.where(is_point, same, 0)
        return np.where(is_point, overlaps, overlaps - 1)

    def components(self) -> list[_Longs]:
        """Return groups of leaves that overlap no leaf of another group; groups and leaves are sorted."""
        if not len(self.lower):
            return []
        order = self.order
        reach = np.maximum.accumulate(self.upper[order])
        begins = self.lower[order][1:] >= reach[:-1]
        return np.split(order, np.flatnonzero(begins) + 1)

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
    apart = lower != upper
    first = np.where(apart.any(axis=1), apart.argmax(axis=1), len(bounds))
    behind = np.arange(len(bounds)) > first[:, None]
    unknown = (((lower == _LEAST) | (upper == _MOST)) & ~behind).any(axis=1)
    lower, upper = np.where(behind, _LEAST, lower), np.where(behind, _MOST, upper)
    ranks = _tuple_ranks(np.concatenate([lower, upper]))
    return LeafRanges(ranks[: len(leaves)], ranks[len(leaves) :], unknown)


def _has(stats: pa.ChunkedArray, key: int) -> bool:
    return bool(stats.type.get_field_index(str(key)) >= 0)


def _children(stats: pa.ChunkedArray, key: int) -> Mapping[str, pa.Array]:
    values = whole(pc.struct_field(stats, str(key)))
    return dict(zip((child.name for child in values.type), values.flatten(), strict=True))


def _ranks(stats: Mapping[str, pa.Array], is_source: bool) -> tuple[_Longs, _Longs]:
    """Return ranks of the lower and upper bounds among all bounds. Unknown bounds extend to the ends."""
    lower, upper = stats["lower_bound"], stats["upper_bound"]
    nulls, values = stats["null_value_count"], stats["value_count"]
    known = pc.unique(pa.concat_arrays([lower, upper])).drop_null()
    ordered = known.take(pc.sort_indices(known))
    rows = len(lower)
    low = pc.fill_null(pc.index_in(lower, ordered), _LEAST).to_numpy(zero_copy_only=False).astype(np.int64)
    high = pc.index_in(upper, ordered).cast(pa.int64())
    high = pc.fill_null(high, _MOST).to_numpy(zero_copy_only=False).astype(np.int64)
    end = len(ordered)
    only_null = pc.fill_null(pc.and_(pc.equal(nulls, values), pc.greater(values, 0)), False)
    only_null = pc.and_(only_null, lower.is_null()).to_numpy(zero_copy_only=False)
    low, high = np.where(only_null, end, low), np.where(only_null, end, high)
    if is_source:
        some = pc.fill_null(pc.greater(nulls, 0), True).to_numpy(zero_copy_only=False)
        high = np.where(some & (high < end), end, high)
    assert len(low) == rows
    return low, high


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
        LAYOUT: it has the layout of versions 1 to 3.
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
        exchanged: whether entries are sorted among tasks; otherwise one task reads the whole group.
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
        """Return the choice of only the given groups."""
        chosen = {place for group in groups for place in (*group.leaves, *group.files)}
        return CompactionGroups(tuple(groups), {place: why for place, why in self.reasons.items() if place in chosen})

    @property
    def data(self) -> list[Group]:
        return [group for group in self.groups if group.content == ContentType.DATA_MANIFEST]

    @property
    def deletes(self) -> Group | None:
        """All delete leaves and deletes of the root, which are rewritten together."""
        return next((group for group in self.groups if group.content == ContentType.DELETE_MANIFEST), None)


# -- Choose the leaves and files that a compaction rewrites -----------------------------------------------------------
# Leaves are chosen by their root entry alone: size, bounds, and the number of masked entries.


_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Scope:
    """The part of a root that may be rewritten.

    Attributes:
        usable: row numbers, in the root's table, of leaves and files that may be rewritten.
        owners: row numbers of data leaves that delete leaves may be affiliated with.
        keys: spec id -> ids of the stats that determine the order of its leaves.
        sources: spec id -> ids of the stats that hold partition values.
        flushed: leaves that a flush wrote, which does not affiliate deletes.
        old: row numbers of leaves in the layout of versions 1 to 3.
        every: whether all leaves are rewritten, not only leaves that gain by it.
    """

    root: Root
    usable: frozenset[int]
    owners: frozenset[int]
    keys: Mapping[int, Sequence[int]]
    sources: Mapping[int, frozenset[int]]
    limits: CompactionLimits
    flushed: frozenset[str] = frozenset()
    old: frozenset[int] = frozenset()
    every: bool = False

    @cached_property
    def masked(self) -> Mapping[str, int]:
        return {location: dv["record_count"] for location, dv in self.root.manifest_dv_of.items()}

    def tree_bytes(self, places: _Array, sizes: _Array) -> _Array:
        """Return the sizes of leaves in the tree's layout. Sizes of leaves in the old layout are estimates."""
        return np.where(_members(places, self.old), sizes * _CONVERTED_SHARE, sizes).astype(np.int64)

    def leaves(self, content: ContentType, spec_id: int | None = None) -> _Leaves:
        table = self.root.leaves
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


def _members(places: _Array, chosen: frozenset[int]) -> _Array:
    return np.isin(places, np.asarray(sorted(chosen), np.int64))


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
    def places(self) -> _Array:
        return self._longs("ordinal")

    @cached_property
    def usable(self) -> _Array:
        return _members(self.places, self.scope.usable)

    @cached_property
    def is_due(self) -> _Array:
        """Whether a leaf is always rewritten: if all leaves are, or if it has the layout of versions 1 to 3."""
        return self.usable if self.scope.every else self.usable & _members(self.places, self.scope.old)

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
        return self.scope.tree_bytes(self.places, self.bytes) * self.live // np.maximum(self.records, 1)

    @cached_property
    def was_added(self) -> _Array:
        """Whether a commit wrote a leaf for its new files. No flush or compaction has sorted such a leaf."""
        counts = pc.struct_field(self.table.column("manifest_stats"), "added_files_count")
        return np.asarray(counts.to_pylist(), np.int64) > 0

    @cached_property
    def was_flushed(self) -> _Array:
        locations = self.table.column("location").to_pylist()
        return np.asarray([location in self.scope.flushed for location in locations], bool)

    @cached_property
    def is_masked(self) -> _Array:
        dead = self.records - self.live
        return (dead > 0) & (dead >= self.scope.limits.min_masked_ratio * np.maximum(self.records, 1))

    @cached_property
    def is_small(self) -> _Array:
        return self.live_bytes < self.scope.limits.min_leaf_ratio * self.scope.limits.target_bytes

    def parts(self, rows: _Array) -> int:
        """Return the number of new leaves that replace some rows."""
        return leaf_count(int(self.live[rows].sum()), int(self.live_bytes[rows].sum()), self.scope.limits.target_bytes)


def choose(scope: Scope) -> CompactionGroups:
    """Return the groups that a compaction rewrites.

    If the limits do not allow all groups, the ones that save most leaves per entry are chosen.
    """
    reasons: dict[int, list[Reason]] = {}
    units: list[Group] = []
    specs = scope.root.leaves.column("partition_spec_id").to_pylist()
    in_root = _full_root(scope, ContentType.DATA)
    for spec_id in sorted({*specs, *in_root.column("partition_spec_id").to_pylist()}):
        of_spec = in_root.filter(pc.equal(in_root.column("partition_spec_id"), spec_id)).column("ordinal").to_pylist()
        units += _SpecChoice(scope, spec_id, reasons).units(tuple(of_spec))
    taken = _within(units, scope)
    deletes = _deletes(scope, taken, reasons)
    groups = [*taken, *([] if deletes is None else [deletes])]
    return CompactionGroups((), {place: tuple(dict.fromkeys(why)) for place, why in reasons.items()}).of(groups)


def choose_merges(scope: Scope) -> CompactionGroups:
    """Return the groups that a commit may also compact: data leaves that become one leaf or none.

    These groups don't require that delete leaves are rewritten.
    """
    limits = replace(scope.limits, max_root_files=None, max_overlap=len(scope.root.table), fewest_merged=_FEWEST_MERGED)
    choice = choose(replace(scope, limits=limits))
    return choice.of([group for group in choice.data if not group.exchanged and group.parts <= 1])


# Leaves that exceed the target size by more than this factor are sorted among tasks.
_LARGE = 8
# A commit that adds a leaf must not rewrite the last one each time.
_FEWEST_MERGED = 8


def _full_root(scope: Scope, *kinds: ContentType) -> pa.Table:
    """Return the root's files of the given kinds if there are too many, else no rows."""
    files, most = scope.files(*kinds), scope.limits.max_root_files
    return files if most is not None and len(files) > most else files.slice(0, 0)


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

    def units(self, files: tuple[int, ...]) -> list[Group]:
        for place in files:
            self._give(place, Reason.ROOT)
        overlapping = self._overlapping()
        overlapping += self._oversized({int(row) for rows in overlapping for row in rows})
        exchanged = [self._group(rows, exchanged=True) for rows in overlapping]
        if exchanged and files:
            exchanged[0] = replace(exchanged[0], files=files)
        elif files:
            exchanged = [Group(ContentType.DATA_MANIFEST, self.spec_id, (), files, gain=1.0)]
        busy = {int(row) for rows in overlapping for row in rows}
        return exchanged + [self._group(rows) for rows in self._bins(busy)]

    def _give(self, place: int, reason: Reason) -> None:
        self.reasons.setdefault(place, []).append(reason)

    def _overlapping(self) -> list[_Array]:
        """Return leaves that overlap too many others, in groups within the limits.

        Sorted leaves with files without bounds are left out, since sorting them again would not help.
        """
        leaves, limits = self.leaves, self.scope.limits
        sorted_before = ~leaves.was_added & ~leaves.is_due & self.ranges.unknown
        fit = np.flatnonzero(leaves.usable & ~sorted_before & (leaves.live > 0))
        ranges = self.ranges.of(fit)
        overlapping = []
        for component in ranges.components():
            if len(component) > 1 and ranges.overlaps[component].max() > limits.max_overlap:
                rows = fit[self._affordable(component, ranges, fit)]
                if len(rows) > 1:
                    overlapping.append(rows)
                    for row in rows:
                        self._give(int(leaves.places[row]), Reason.OVERLAP)
                    for row in rows[leaves.is_due[rows]]:
                        self._give(int(leaves.places[row]), Reason.LAYOUT)
        return overlapping

    def _oversized(self, busy: set[int]) -> list[_Array]:
        """Return leaves of the layout of versions 1 to 3 that are too large for one task, in one group."""
        leaves, limits = self.leaves, self.scope.limits
        large = leaves.is_due & (leaves.live_bytes > _LARGE * limits.target_bytes)
        rows = np.asarray([row for row in np.flatnonzero(large).tolist() if row not in busy], np.int64)
        fits = _fits(leaves.live[rows].sum(), leaves.bytes[rows].sum(), limits)
        if not len(rows) or not fits:
            return []
        for row in rows:
            self._give(int(leaves.places[row]), Reason.LAYOUT)
        return [rows]

    def _affordable(self, component: _Array, ranges: LeafRanges, fit: _Array) -> _Array:
        """Return the part of a component that the limits allow: the leaves around the leaf that overlaps most."""
        leaves, limits = self.leaves, self.scope.limits
        if _fits(leaves.live[fit[component]].sum(), leaves.bytes[fit[component]].sum(), limits):
            return component
        deepest = component[ranges.overlaps[component].argmax()]
        around = component[(ranges.lower[component] < ranges.upper[deepest])
                           & (ranges.upper[component] > ranges.lower[deepest])]  # fmt: skip
        around = around[np.argsort(-ranges.overlaps[around], kind="stable")]
        entries, sizes = np.cumsum(leaves.live[fit[around]]), np.cumsum(leaves.bytes[fit[around]])
        fits = np.array([_fits(count, size, limits) for count, size in zip(entries, sizes, strict=True)], bool)
        chosen: _Array = around[fits]
        return np.take(chosen, np.argsort(ranges.lower[chosen], kind="stable"))

    def _bins(self, busy: set[int]) -> list[_Array]:
        """Return runs of small or masked neighbours of about a leaf's size, within the limits."""
        leaves, limits = self.leaves, self.scope.limits
        worth = leaves.usable & (leaves.is_small | leaves.is_masked | leaves.is_due)
        bins: list[list[int]] = [[]]
        for row in self.ranges.order.tolist():
            usable = worth[row] and row not in busy
            full = leaves.live_bytes[np.asarray(bins[-1], np.int64)].sum() >= limits.target_bytes
            extended = np.asarray([*bins[-1], row])
            if not usable or full or not _fits(leaves.live[extended].sum(), leaves.bytes[extended].sum(), limits):
                bins.append([])
            if usable:
                bins[-1].append(row)
        return [
            rows for leaf_rows in bins if leaf_rows and (rows := self._worthwhile(np.asarray(leaf_rows))) is not None
        ]

    def _worthwhile(self, rows: _Array) -> _Array | None:
        leaves = self.leaves
        if leaves.parts(rows) < len(rows) >= self.scope.limits.fewest_merged:
            for row in rows[leaves.is_small[rows]]:
                self._give(int(leaves.places[row]), Reason.SMALL)
        else:
            rows = rows[leaves.is_masked[rows] | leaves.is_due[rows]]
            if not len(rows):
                return None
        for row in rows[leaves.is_masked[rows]]:
            self._give(int(leaves.places[row]), Reason.MASKED)
        for row in rows[leaves.is_due[rows]]:
            self._give(int(leaves.places[row]), Reason.LAYOUT)
        return rows

    def _group(self, rows: _Array, *, exchanged: bool = False) -> Group:
        leaves = self.leaves
        parts = leaves.parts(rows)
        converted = int(leaves.is_due[rows].sum())
        freed = float((1 - leaves.live[rows] / np.maximum(leaves.records[rows], 1)).sum())
        gain = len(rows) - parts + freed + converted
        if exchanged:
            gain += float(self.ranges.overlaps[rows].sum())
        places = tuple(leaves.places[rows].tolist())
        return Group(ContentType.DATA_MANIFEST, self.spec_id, places, (), parts, exchanged, gain)


def _fits(entries: int, size: int, limits: CompactionLimits) -> bool:
    too_many = limits.max_entries is not None and entries > limits.max_entries
    return not too_many and (limits.max_bytes is None or size <= limits.max_bytes)


def _within(units: Iterable[Group], scope: Scope) -> list[Group]:
    """Return the groups that fit the limits together, by gain per entry."""
    all_leaves = scope.leaves(ContentType.DATA_MANIFEST)
    entries = dict(zip(all_leaves.places.tolist(), all_leaves.live.tolist(), strict=True))
    sizes = dict(zip(all_leaves.places.tolist(), all_leaves.bytes.tolist(), strict=True))

    def cost(group: Group) -> int:
        return int(sum(entries[leaf] for leaf in group.leaves)) + len(group.files)

    taken: list[Group] = []
    total, size = 0, 0
    for group in sorted(units, key=lambda group: (-group.gain / (cost(group) or 1e-9), group.leaves)):
        group_size = sum(sizes[leaf] for leaf in group.leaves if entries[leaf])
        if _fits(total + cost(group), size + group_size, scope.limits):
            taken.append(group)
            total, size = total + cost(group), size + group_size
    return taken


# -- Deletes --------------------------------------------------------------------------------------------------------


def _deletes(scope: Scope, data: Sequence[Group], reasons: dict[int, list[Reason]]) -> Group | None:
    """Return the group of delete leaves and the root's deletes to rewrite."""
    leaves = scope.leaves(ContentType.DELETE_MANIFEST)
    chosen: dict[int, list[Reason]] = {}

    def give(rows: Iterable[int], reason: Reason) -> None:
        for row in rows:
            if leaves.usable[row]:
                chosen.setdefault(int(row), []).append(reason)

    divided = _divided(scope, data)
    give((row for row, owner in enumerate(leaves.owners) if owner in divided), Reason.AFFINITY)
    give(np.flatnonzero(leaves.is_masked), Reason.MASKED)
    give(np.flatnonzero(leaves.is_due), Reason.LAYOUT)
    small: dict[tuple[str | None, int], list[int]] = {}
    specs = leaves.table.column("partition_spec_id").to_pylist()
    for row in np.flatnonzero(leaves.is_small & leaves.usable).tolist():
        small.setdefault((leaves.owners[row], specs[row]), []).append(row)
    for rows in small.values():
        if leaves.parts(np.asarray(rows)) < len(rows):
            give(rows, Reason.SMALL)
    give(_scattered(scope, leaves), Reason.AFFINITY)
    in_root = (
        _full_root(scope, ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES).column("ordinal").to_pylist()
    )
    for row, why in chosen.items():
        reasons.setdefault(int(leaves.places[row]), []).extend(why)
    for place in in_root:
        reasons.setdefault(place, []).append(Reason.ROOT)
    taken = np.asarray(sorted(chosen), np.int64)
    if not len(taken) and not in_root:
        return None
    places = tuple(leaves.places[taken].tolist())
    parts = leaves.parts(taken)
    return Group(
        ContentType.DELETE_MANIFEST, None, places, tuple(in_root), parts, exchanged=True, gain=len(taken) - parts
    )


def _divided(scope: Scope, data: Sequence[Group]) -> set[str]:
    """Return the data leaves whose files may move to several leaves."""
    locations = scope.root.table.column("location")
    several = [group for group in data if group.exchanged or group.parts > 1]
    return {locations[place].as_py() for group in several for place in group.leaves}


def _scattered(scope: Scope, leaves: _Leaves) -> list[int]:
    """Return unaffiliated delete leaves with enough deletes for at least one affiliated delete leaf.

    Leaves that a compaction left unaffiliated are left out.
    """
    scattered = []
    for spec_id, sources in scope.sources.items():
        data = scope.leaves(ContentType.DATA_MANIFEST, spec_id)
        of_spec = pc.equal(leaves.table.column("partition_spec_id"), spec_id).to_pylist()
        unplaced = leaves.was_added | leaves.was_flushed
        rows = [row for row, yes in enumerate(of_spec) if yes and unplaced[row] and leaves.owners[row] is None]
        if not rows or not len(data):
            continue
        merged = pa.concat_tables([data.table, leaves.table.take(pa.array(rows, pa.int64()))])
        ranges = leaf_ranges(merged, sorted(sources), sources)
        for number, row in enumerate(rows, len(data)):
            apart = (ranges.lower[: len(data)] > ranges.upper[number]) | (
                ranges.upper[: len(data)] < ranges.lower[number]
            )
            near = int((~apart).sum())
            if near and leaves.live[row] >= scope.limits.affiliated_deletes * near:
                scattered.append(row)
    return scattered
