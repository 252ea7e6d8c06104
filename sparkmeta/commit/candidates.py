"""Which leaves of a tree may hold an entry, by what is known of it: its manifest, or its partition."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.manifests.layout import whole
from sparkmeta.manifests.manifest_list import SUMMARIES
from sparkmeta.manifests.projection import CONTENT_STATS, PARTITION
from sparkmeta.manifests.tree import IN_ROOT
from sparkmeta.plan.overlap import overlaps
from sparkmeta.plan.prune import live_manifests
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.state import TableState

# Pairs of a partition and a leaf that are compared at most; beyond that all leaves are candidates.
_MOST_PAIRS = 50_000_000

_SPEC = "partition_spec_id"


def live_leaves(state: TableState, content: ContentType) -> pa.Table:
    """The manifests of one content, rows of `state.roots`, that hold live entries; the root's own files are one."""
    return live_manifests(state.manifests(content))


def named_leaves(leaves: pa.Table, locations: Collection[str]) -> pa.Table:
    """The leaves of these locations."""
    return leaves.filter(pc.is_in(leaves.column("location"), pa.array(sorted(locations), pa.string())))


def leaves_of_partitions(state: TableState, leaves: pa.Table, partitions: pa.Table) -> pa.Table:
    """The leaves whose statistics do not rule out that they hold an entry of some partitions.

    Args:
        leaves: rows of `state.roots`.
        partitions: `partition_spec_id` and, where the table has partition fields, `partition`, a struct of the values
            by partition field id.
    """
    distinct = _distinct(partitions)
    if not len(distinct) or not len(leaves):
        return leaves.slice(0, 0)
    if len(distinct) * len(leaves) > _MOST_PAIRS:
        return leaves.filter(pc.is_in(leaves.column(_SPEC), distinct.column(_SPEC).combine_chunks()))
    met = overlaps(_tuple_summaries(state, distinct), _leaf_summaries(state, leaves), state.spec_fields).any(axis=0)
    # The root's own files are of any spec, whatever the one that their row names.
    return leaves.filter(pc.or_(pa.array(met), pc.equal(leaves.column("file_format"), IN_ROOT)))


def leaves_meeting(state: TableState, leaves: pa.Table, others: pa.Table) -> pa.Table:
    """The leaves whose statistics do not rule out that they share a partition with others.

    Args:
        leaves: rows of `state.roots`.
        others: root entries of leaves, rows of `tree_schema`.
    """
    if len(leaves) * len(others) > _MOST_PAIRS:
        return leaves.filter(pc.is_in(leaves.column(_SPEC), others.column(_SPEC).combine_chunks()))
    met = overlaps(_leaf_summaries(state, others), _leaf_summaries(state, leaves), state.spec_fields).any(axis=0)
    return leaves.filter(pc.or_(pa.array(met), pc.equal(leaves.column("file_format"), IN_ROOT)))


def _distinct(partitions: pa.Table) -> pa.Table:
    if PARTITION not in partitions.column_names:
        return partitions.select([_SPEC]).group_by([_SPEC]).aggregate([])
    values = whole(partitions.column(PARTITION))
    names = [field.name for field in values.type]
    flat = pa.Table.from_arrays([whole(partitions.column(_SPEC)), *values.flatten()], names=[_SPEC, *names])
    grouped = flat.group_by([_SPEC, *names]).aggregate([])
    children = [whole(grouped.column(name)) for name in names]
    struct = pa.StructArray.from_arrays(children, names=names) if names else pa.array([{}] * len(grouped))
    return pa.table({_SPEC: grouped.column(_SPEC), PARTITION: struct})


def _tuple_summaries(state: TableState, partitions: pa.Table) -> pa.Table:
    """Partitions as manifests that hold nothing else, with partition summaries."""
    values = whole(partitions.column(PARTITION)) if PARTITION in partitions.column_names else None
    fields = {}
    for field_id in state.partition_fields:
        value = pc.struct_field(values, str(field_id)) if values is not None else pa.nulls(len(partitions))
        nan = pc.is_nan(value) if pa.types.is_floating(value.type) else pa.repeat(False, len(value))
        bound = pc.if_else(pc.fill_null(nan, False), pa.scalar(None, value.type), value)
        fields[str(field_id)] = _summary(bound, bound, value.is_null(), pc.fill_null(nan, False))
    return _with_summaries(partitions, fields)


def _leaf_summaries(state: TableState, leaves: pa.Table) -> pa.Table:
    """Leaves with the statistics of their partition values as partition summaries; unknown ones are null."""
    stats = whole(leaves.column(CONTENT_STATS))
    fields = {}
    for field_id, type_name in state.partition_fields.items():
        kind = bound_arrow_type(type_name)
        summary = pa.nulls(len(leaves), _summary_type(kind))
        for spec_id, sources in state.tuple_sources.items():
            source = dict(sources).get(field_id)
            if source is not None:
                of_spec = pc.equal(whole(leaves.column(_SPEC)), spec_id)
                summary = pc.if_else(of_spec, _stats_summary(pc.struct_field(stats, str(source)), kind), summary)
        fields[str(field_id)] = summary
    return _with_summaries(leaves, fields)


def _stats_summary(stats: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    def may_hold(count: str) -> pa.Array:
        known = pc.struct_field(stats, count)
        return pc.or_kleene(known.is_null(), pc.greater(known, 0))

    lower, upper = (pc.struct_field(stats, name).cast(kind) for name in ("lower_bound", "upper_bound"))
    nulls, nans = may_hold("null_value_count"), may_hold("nan_value_count")
    return _summary(lower, pc.coalesce(upper, lower), nulls, nans, missing=stats.is_null())


def _summary_type(kind: pa.DataType) -> pa.StructType:
    flags = [pa.field("contains_null", pa.bool_()), pa.field("contains_nan", pa.bool_())]
    return pa.struct([*flags, pa.field("lower_bound", kind), pa.field("upper_bound", kind)])


def _summary(lower: Any, upper: Any, nulls: Any, nans: Any, missing: Any = None) -> pa.StructArray:
    return pa.StructArray.from_arrays([nulls, nans, lower, upper], fields=list(_summary_type(lower.type)), mask=missing)


def _with_summaries(manifests: pa.Table, fields: dict[str, pa.StructArray]) -> pa.Table:
    count = len(manifests)
    struct = pa.StructArray.from_arrays(list(fields.values()), names=list(fields)) if fields else pa.array([{}] * count)
    return pa.table({_SPEC: manifests.column(_SPEC), SUMMARIES: struct})
