"""Which of the manifests that a scan opens are read together by one task, so that no entry is shuffled, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.manifests.manifest_list import live_count, live_counts
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, OWN_ENTRIES
from sparkmeta.plan.deletes import BROADCAST_DELETES, all_vectors, only_vectors, vector_projection
from sparkmeta.plan.overlap import Flags, leaf_overlaps, overlaps
from sparkmeta.plan.prune import data_projection, wanted_entries
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.plan.prune import ScanFilter
    from sparkmeta.state import TableState

# Vectors that are few enough to be broadcast are joined where they stand beside many data entries of a tree: a task
# that reads leaves together takes longer for each entry than Spark's reader does, and the join longer for each vector
# and at all.
_FEW_ENTRIES = 250_000
_ENTRIES_A_VECTOR = 10

# How many vectors a task may hold beside the data manifest that it reads, how often one may be decoded on average, how
# many manifests may stand beside others, and how many pairs are looked at to tell: beyond that, Spark joins.
_MOST_HELD = 250_000
_MOST_DECODED = 2
_MOST_PAIRS = 50_000
_MOST_COMPARED = 10_000_000


@dataclass(frozen=True)
class Colocation:
    """Which of a scan's manifests tasks read together, and why.

    data, deletes: manifests that belong together; none where the vectors are joined by Spark. beside: small id of a
    data manifest -> those of the delete manifests that are read with it, in the order in which tasks had better have
    them. other_data, other_deletes: the rest. reason: of the choice, for the report. only_vectors: whether all deletes
    are deletion vectors; None where that is not known. vectors: those that may be of use, where the driver has read
    them already.
    """

    data: pa.Table
    deletes: pa.Table
    other_data: pa.Table
    other_deletes: pa.Table
    reason: str
    beside: Mapping[int, Sequence[int]] = field(default_factory=dict)
    only_vectors: bool | None = None
    vectors: pa.Table | None = None

    @property
    def used(self) -> bool:
        return len(self.deletes) > 0


def consumed_deletes(scan_filter: ScanFilter, data: pa.Table, deletes: pa.Table) -> pa.Table:
    """The delete manifests of a tree that may hold deletes of the data manifests that a scan opens."""
    state = scan_filter.state
    consumed = deletes_by_affinity(state, data, deletes)
    return consumed if scan_filter.keeps_all else deletes_by_partition(state, data, consumed)


def deletes_by_affinity(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Table:
    """The delete manifests without those that are affiliated to other live data leaves than some.

    One that is affiliated to no live leaf is as good as unaffiliated (semantics of the V4 proposal: affinity is a hint
    of the writer's, and a lost one must not bring rows back).
    """
    if state.tree is None or not len(deletes):
        return deletes
    target = deletes.column("referenced_file").combine_chunks()
    leaves = state.tree.root.leaves
    live = leaves.filter(pc.equal(leaves.column("content_type"), int(ContentType.DATA_MANIFEST))).column("location")
    affiliated = pc.is_in(target, live.combine_chunks(), skip_nulls=True)
    opened = pc.is_in(target, data.column("location").combine_chunks(), skip_nulls=True)
    return deletes.filter(pc.or_(opened, pc.invert(affiliated)))


def deletes_by_partition(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Table:
    """The delete manifests but for unaffiliated leaves that have no partition in common with data manifests.

    Deletes of unpartitioned specs may be global, and are all kept.
    """
    if state.tree is None or not len(deletes):
        return deletes
    locations, targets = (
        manifests.column(name) for manifests, name in ((data, "location"), (deletes, "referenced_file"))
    )
    opened = pc.is_in(targets.combine_chunks(), locations.combine_chunks(), skip_nulls=True)
    partitioned = [spec_id for spec_id, sources in state.tuple_sources.items() if sources]
    of_spec = pc.is_in(deletes.column("partition_spec_id").combine_chunks(), pa.array(partitioned, pa.int32()))
    is_leaf = pc.not_equal(deletes.column("file_format").combine_chunks(), IN_ROOT)
    tested = pc.and_(pc.and_(is_leaf, of_spec), pc.invert(opened))
    candidates, columns = deletes.filter(tested), ["content_type", "partition_spec_id", CONTENT_STATS]
    in_leaves = pc.not_equal(data.column("file_format"), IN_ROOT)
    rows = [data.filter(in_leaves).select(columns)]
    if len(rows[0]) < len(data):
        rows.append(state.tree.root.of(OWN_ENTRIES[ContentType.DATA_MANIFEST]).select(columns))
    files = pa.concat_tables(rows)
    if not len(candidates) or len(files) * len(candidates) > _MOST_COMPARED:
        return deletes
    met = leaf_overlaps(files, candidates, state.spec_fields, state.tuple_sources).any(axis=0)
    needed = pc.is_in(deletes.column(MANIFEST), candidates.column(MANIFEST).filter(pa.array(met)).combine_chunks())
    return deletes.filter(pc.or_(pc.invert(tested), needed.combine_chunks()))


def colocation(scan_filter: ScanFilter, data: pa.Table, deletes: pa.Table) -> Colocation:
    """Which of the manifests that a scan opens to read together: see the setting `planning`."""
    state = scan_filter.state
    joined = Colocation(data.slice(0, 0), deletes.slice(0, 0), data, deletes, "")
    if not len(data) or not len(deletes):
        return replace(joined, other_deletes=joined.deletes, reason="join: the scan opens no delete manifest")
    if state.settings.planning == "join":
        return replace(joined, reason="join: the setting planning says so")
    if state.reader is None:
        return replace(joined, reason="join: executors can't open files themselves")
    return _by_affinity(state, joined) if state.tree is not None else _by_partition(scan_filter, joined)


def _by_affinity(state: TableState, joined: Colocation) -> Colocation:
    """Leaves of a tree: delete leaves name the data leaf that they belong to."""
    data, deletes = joined.other_data, joined.other_deletes
    affiliated = _affiliated(state, data, deletes)
    if not pc.any(affiliated).as_py():
        return replace(joined, reason="join: no delete leaf is affiliated to a data leaf that the scan opens")
    chosen = deletes.filter(affiliated)
    vectors = live_count(chosen) or 0
    together = pc.is_in(data.column("location"), chosen.column("referenced_file").combine_chunks())
    entries = live_count(data.filter(together))
    many = entries is None or entries > _FEW_ENTRIES + _ENTRIES_A_VECTOR * vectors
    if state.settings.planning == "auto" and vectors <= BROADCAST_DELETES and many:
        return replace(joined, reason=f"join: {vectors:,} deletion vectors are few enough to be broadcast")
    why = f"colocated: {vectors:,} deletion vectors stand in {len(chosen):,} delete leaves affiliated to data leaves"
    leaves = data.filter(together)
    ids = dict(zip(leaves.column("location").to_pylist(), leaves.column(MANIFEST).to_pylist(), strict=True))
    beside: dict[int, list[int]] = {one: [] for one in ids.values()}
    for one, target in zip(*(chosen.column(name).to_pylist() for name in (MANIFEST, "referenced_file")), strict=True):
        beside[ids[target]].append(one)
    others = data.filter(pc.invert(together)), deletes.filter(pc.invert(affiliated))
    return Colocation(leaves, chosen, *others, why, beside)


def _affiliated(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Array:
    """Which delete leaves belong to a data leaf that is opened, both in the layout of trees."""
    assert state.tree is not None
    targets = data.filter(state.tree.has_tree_layout(data)).column("location").combine_chunks()
    return pc.and_(state.tree.has_tree_layout(deletes), pc.is_in(deletes.column("referenced_file"), targets))


def _by_partition(scan_filter: ScanFilter, joined: Colocation) -> Colocation:
    """Avro manifests: a vector applies within its spec and partition, and summaries tell who may share some."""
    state, data, deletes = scan_filter.state, joined.other_data, joined.other_deletes
    if any(one != "AVRO" for side in (data, deletes) for one in side.column("file_format").unique().to_pylist()):
        return replace(joined, reason="join: there are manifests that are no Avro files")
    vectors = _read_here(scan_filter, data, deletes)
    if not (only_vectors(state, deletes, by_job=True) if vectors is None else all_vectors(vectors)):
        what = "have no deletion vectors" if state.metadata.format_version < 3 else "list more than deletion vectors"
        return replace(joined, reason=f"join: the delete manifests that are opened {what}", only_vectors=False)
    none = data.slice(0, 0), deletes.slice(0, 0)
    if vectors is not None:
        why = f"colocated: {len(vectors):,} deletion vectors are so few that the driver reads them"
        return Colocation(data, deletes, *none, why, only_vectors=True, vectors=vectors)
    joined = replace(joined, only_vectors=True)
    counts = live_counts(deletes)
    if counts.null_count:
        return replace(joined, reason="join: the manifest list does not count its entries")
    if len(data) * len(deletes) > _MOST_COMPARED:
        return replace(joined, reason=f"join: {len(deletes):,} delete manifests are too many to compare partitions")
    found = overlaps(data, deletes, state.spec_fields)
    if not found.any():
        return replace(joined, other_deletes=none[1], reason="join: no deletion vector is of a partition that is read")
    order, decoded, held = _in_order(found, counts.to_numpy())
    total = pc.sum(counts).as_py()
    costly = held > _MOST_HELD or decoded > _MOST_DECODED * total + _MOST_HELD
    if np.count_nonzero(found) > _MOST_PAIRS or (costly and state.settings.planning == "auto"):
        return replace(joined, reason=f"join: partitions tell too little of where {total:,} deletion vectors belong")
    ids, places = deletes.column(MANIFEST).to_numpy(), data.column(MANIFEST).to_numpy()
    beside = {int(places[row]): ids[found[row]].tolist() for row in order if found[row].any()}
    together, needed = pa.array(found.any(axis=1)), pa.array(found.any(axis=0))
    others = data.filter(pc.invert(together)), none[1]
    why = f"colocated: {total:,} deletion vectors are read beside the data manifests of their partitions"
    return Colocation(data.filter(together), deletes.filter(needed), *others, why, beside, only_vectors=True)


def _read_here(scan_filter: ScanFilter, data: pa.Table, deletes: pa.Table) -> pa.Table | None:
    """The deletes, where the driver reads data and deletes, as they are few; None else, and where no vectors can be."""
    state, both = scan_filter.state, pa.concat_tables([data, deletes])
    of_data = replace(data_projection(scan_filter), wanted=wanted_entries(scan_filter))
    if state.metadata.format_version < 3 or not state.fit_driver(both, of_data):
        return None
    if state.manifest_cache is not None and state.parts_at_hand(data, of_data) is None:
        return None
    return state.entries_here(deletes, vector_projection(scan_filter))


def _in_order(found: Flags, vectors: np.ndarray[Any, Any]) -> tuple[list[int], int, int]:
    """Rows of `overlaps`, so ordered that neighbours share delete manifests; how many vectors a task decodes that reads
    all, and how many it holds at once at most."""
    kinds, kind = np.unique(np.packbits(found, axis=1), axis=0, return_inverse=True)
    sets = np.unpackbits(kinds, axis=1, count=found.shape[1]).astype(np.bool_)
    anew = sets.copy()
    anew[1:] &= ~sets[:-1]
    order = np.argsort(kind.ravel(), kind="stable").tolist()
    return order, int((anew @ vectors).sum()), int((sets @ vectors).max(initial=0))
