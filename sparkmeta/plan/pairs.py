"""Pair data manifests with the delete manifests that may hold deletes of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.entries.live import live_counts
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST
from sparkmeta.manifests.v4.tree_manifests import FILE_TYPES, IN_ROOT
from sparkmeta.plan import costs
from sparkmeta.snapshot.overlaps import Flags, leaf_overlaps, overlaps
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.snapshot.state import TableState


# -- Delete manifests that may affect a partition ---------------------------------------------------------------------


def deletes_by_affinity(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Table:
    """Remove the delete manifests that are affiliated with live data leaves other than `data`.

    A delete manifest whose data leaf is not live counts as unaffiliated: affinity is only a hint (V4 proposal), and an
    outdated one must not make deleted rows reappear.
    """
    if state.tree is None or not len(deletes):
        return deletes
    target = deletes.column("referenced_file").combine_chunks()
    leaves = state.tree.root.leaves
    is_data = pc.equal(leaves.column("content_type"), int(ContentType.DATA_MANIFEST))
    live_paths = leaves.filter(is_data).column("location")
    affiliated = pc.is_in(target, live_paths.combine_chunks(), skip_nulls=True)
    opened = pc.is_in(target, data.column("location").combine_chunks(), skip_nulls=True)
    return deletes.filter(pc.or_(opened, pc.invert(affiliated)))


def deletes_by_partition(state: TableState, data: pa.Table, deletes: pa.Table) -> pa.Table:
    """Remove unaffiliated delete leaves that have no partition in common with `data`.

    All deletes of unpartitioned specs stay, since they may be global.
    """
    if state.tree is None or not len(deletes):
        return deletes
    locations, targets = (
        manifests.column(name) for manifests, name in ((data, "location"), (deletes, "referenced_file"))
    )
    opened = pc.is_in(targets.combine_chunks(), locations.combine_chunks(), skip_nulls=True)
    partitioned = [spec_id for spec_id, sources in state.types.tuple_sources.items() if sources]
    is_partitioned = pc.is_in(deletes.column("partition_spec_id").combine_chunks(), pa.array(partitioned, pa.int32()))
    is_leaf = pc.not_equal(deletes.column("file_format").combine_chunks(), IN_ROOT)
    tested = pc.and_(pc.and_(is_leaf, is_partitioned), pc.invert(opened))
    candidates, columns = deletes.filter(tested), ["content_type", "partition_spec_id", CONTENT_STATS]
    in_leaves = pc.not_equal(data.column("file_format"), IN_ROOT)
    rows = [data.filter(in_leaves).select(columns)]
    if len(rows[0]) < len(data):
        rows.append(state.tree.root.of(FILE_TYPES[ContentType.DATA_MANIFEST]).select(columns))
    files = pa.concat_tables(rows)
    if not len(candidates) or len(files) * len(candidates) > costs.COSTS.compared_pairs:
        return deletes
    matches = leaf_overlaps(files, candidates, state.types.spec_fields, state.types.tuple_sources).any(axis=0)
    needed = pc.is_in(deletes.column(MANIFEST), candidates.column(MANIFEST).filter(pa.array(matches)).combine_chunks())
    return deletes.filter(pc.or_(pc.invert(tested), needed.combine_chunks()))


# -- Pair data manifests with delete manifests ------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Data manifests with the delete manifests that may hold deletes of their files.

    Attributes:
        data: the data manifests that have such delete manifests.
        deletes: the delete manifests paired with these.
        other_data: the remaining data manifests.
        other_deletes: the delete manifests that may hold deletes for any data manifest.
        partners: small id of a data manifest -> small ids of its delete manifests, in a suitable order for tasks.
        decoded: the number of deletes decoded by a single task that reads all pairs.
        held: the maximum number of deletes that this task holds at once.
    """

    data: pa.Table
    deletes: pa.Table
    other_data: pa.Table
    other_deletes: pa.Table
    partners: Mapping[int, Sequence[int]]
    decoded: int = 0
    held: int = 0

    @property
    def count(self) -> int:
        """The number of pairs of manifests."""
        return sum(map(len, self.partners.values()))


def pairs_by_affinity(state: TableState, data: pa.Table, deletes: pa.Table) -> Pairs:
    """Pair the leaves of a tree by affinity: a delete leaf names its data leaf."""
    assert state.tree is not None
    targets = data.filter(state.tree.has_layout_of_root(data)).column("location").combine_chunks()
    affiliated = pc.and_(state.tree.has_layout_of_root(deletes), pc.is_in(deletes.column("referenced_file"), targets))
    chosen = deletes.filter(affiliated)
    is_target = pc.is_in(data.column("location"), chosen.column("referenced_file").combine_chunks())
    leaves = data.filter(is_target)
    ids = dict(zip(leaves.column("location").to_pylist(), leaves.column(MANIFEST).to_pylist(), strict=True))
    partners: dict[int, list[int]] = {leaf: [] for leaf in ids.values()}
    columns = (chosen.column(name).to_pylist() for name in (MANIFEST, "referenced_file"))
    for delete_leaf, target in zip(*columns, strict=True):
        partners[ids[target]].append(delete_leaf)
    return Pairs(leaves, chosen, data.filter(pc.invert(is_target)), deletes.filter(pc.invert(affiliated)), partners)


def owners(state: TableState, deletes: pa.Table) -> dict[int, int]:
    """Map the small id of each affiliated delete leaf to the small id of its live data leaf."""
    if state.tree is None:
        return {}
    leaves, targets = state.data_manifests, deletes.column("referenced_file").combine_chunks()
    leaf_rows = pc.index_in(targets, leaves.column("location").combine_chunks(), skip_nulls=True)
    columns = (deletes.column(MANIFEST), leaves.column(MANIFEST).take(leaf_rows))
    pairs = zip(*(column.to_pylist() for column in columns), strict=True)
    return {delete_leaf: leaf for delete_leaf, leaf in pairs if leaf is not None}


def pairs_by_partition(state: TableState, data: pa.Table, deletes: pa.Table) -> Pairs:
    """Pair the manifests of a manifest list whose deletes are all DVs, which apply within their spec and partition.

    Delete manifests without a partner do not apply. If none has a partner, but the manifest list may give a wrong spec
    for one, all of them stay: reading them then raises an error. The manifest list must count the entries of all
    delete manifests.
    """
    meets = overlaps(data, deletes, state.types.spec_fields)
    if not meets.any() and len(state.specs) > 1 and _may_be_mislabelled(state, data, deletes):
        return Pairs(data.slice(0, 0), deletes.slice(0, 0), data, deletes, {})
    order, decoded, held = _in_order(meets, live_counts(deletes).to_numpy())
    delete_ids, data_ids = deletes.column(MANIFEST).to_numpy(), data.column(MANIFEST).to_numpy()
    partners = {int(data_ids[row]): delete_ids[meets[row]].tolist() for row in order if meets[row].any()}
    is_paired, is_needed = pa.array(meets.any(axis=1)), pa.array(meets.any(axis=0))
    return Pairs(
        data.filter(is_paired),
        deletes.filter(is_needed),
        data.filter(pc.invert(is_paired)),
        deletes.slice(0, 0),
        partners,
        decoded,
        held,
    )


def _may_be_mislabelled(state: TableState, data: pa.Table, unpaired: pa.Table) -> bool:
    """Return whether delete manifests without partners may be of another spec than the manifest list says.

    Tuples of another spec have no values for the fields of the listed spec. A manifest is therefore suspect if no data
    manifest has its spec, or if the summary of a field has no bounds.
    """
    specs = data.column("partition_spec_id").unique()
    if not pc.all(pc.is_in(unpaired.column("partition_spec_id"), specs)).as_py():
        return True
    for spec_id, fields in state.types.spec_fields.items():
        spec_manifests = unpaired.filter(pc.equal(unpaired.column("partition_spec_id"), spec_id))
        for field_id, _ in fields if len(spec_manifests) else ():
            if pc.struct_field(spec_manifests.column(SUMMARIES), [str(field_id), "lower_bound"]).null_count:
                return True
    return False


def _in_order(meets: Flags, dvs: np.ndarray[Any, Any]) -> tuple[list[int], int, int]:
    """Order the rows of `overlaps` so that neighbours share delete manifests.

    Args:
        meets: a matrix with one row per data manifest and one column per delete manifest.
        dvs: the number of DVs in each delete manifest.

    Returns:
        The ordered rows, the number of DVs decoded by a task that reads all, and the maximum that it holds at once.
    """
    kinds, kind = np.unique(np.packbits(meets, axis=1), axis=0, return_inverse=True)
    sets = np.unpackbits(kinds, axis=1, count=meets.shape[1]).astype(np.bool_)
    first_needed = sets.copy()
    first_needed[1:] &= ~sets[:-1]
    order = np.argsort(kind.ravel(), kind="stable").tolist()
    return order, int((first_needed @ dvs).sum()), int((sets @ dvs).max(initial=0))
