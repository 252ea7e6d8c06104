"""Find the tree leaves or listed manifests that may hold an entry, by the manifest it names or by its partition."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.overlap import leaf_overlaps, overlaps
from sparkmeta.plan.prune import live_manifests
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.stats import BOUNDS, COUNTS

if TYPE_CHECKING:
    from sparkmeta.state import TableState

# Maximum number of (partition, leaf) pairs to compare; beyond it, all leaves of the spec are candidates.
_MOST_PAIRS = 50_000_000

_SPEC = "partition_spec_id"


def live_leaves(state: TableState, content: ContentType) -> pa.Table:
    """Return the manifests of one content type that hold live entries, the root included, as rows of `manifests`."""
    return live_manifests(state.data_manifests if content == ContentType.DATA_MANIFEST else state.delete_manifests)


def root_manifests(state: TableState) -> pa.Table:
    """Return the rows of `state.manifests` that describe files listed in the root itself."""
    return state.manifests.filter(pc.equal(state.manifests.column("file_format"), IN_ROOT))


def named_leaves(leaves: pa.Table, locations: Collection[str]) -> pa.Table:
    """Return the leaves at the given locations."""
    return leaves.filter(pc.is_in(leaves.column("location"), pa.array(sorted(locations), pa.string())))


def leaves_of_partitions(state: TableState, leaves: pa.Table, partitions: pa.Table) -> pa.Table:
    """Return the leaves that may hold entries of the given partitions, by their statistics.

    Args:
        leaves: rows of `state.manifests`.
        partitions: has `partition_spec_id` and, if the table has partition fields, `partition`, a struct of the values
            by partition field id. Other columns are ignored.
    """
    distinct = _distinct(partitions)
    if not len(distinct) or not len(leaves):
        return leaves.slice(0, 0)
    if CONTENT_STATS in leaves.column_names:
        return leaves_sharing_partitions(state, leaves, _as_files(state, distinct))
    return manifests_sharing_partitions(state, leaves, _as_manifests(state, distinct))


def manifests_sharing_partitions(state: TableState, manifests: pa.Table, others: pa.Table) -> pa.Table:
    """Return the manifests of a list that may share a partition with others, by their partition summaries.

    Args:
        manifests: rows of `manifests_of_list`.
        others: rows of the same form.
    """
    if SUMMARIES not in manifests.column_names or len(manifests) * len(others) > _MOST_PAIRS:
        return manifests.filter(pc.is_in(manifests.column(_SPEC), whole(others.column(_SPEC))))
    return manifests.filter(pa.array(overlaps(others, manifests, state.types.spec_fields).any(axis=0)))


def leaves_sharing_partitions(state: TableState, leaves: pa.Table, entries: pa.Table) -> pa.Table:
    """Return the leaves that may share a partition with other entries, by their statistics.

    The root's own files may be in any partition.

    Args:
        leaves: rows of `state.manifests`.
        entries: entries of files or of other leaves, rows of `tree_schema`.
    """
    if len(entries) * len(leaves) > _MOST_PAIRS:
        return leaves.filter(pc.is_in(leaves.column(_SPEC), entries.column(_SPEC).combine_chunks()))
    overlaps = leaf_overlaps(entries, leaves, state.types.spec_fields, state.types.tuple_sources).any(axis=0)
    return leaves.filter(pc.or_(pa.array(overlaps), pc.equal(leaves.column("file_format"), IN_ROOT)))


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


def _as_manifests(state: TableState, partitions: pa.Table) -> pa.Table:
    """Return one manifest per partition, with the summaries that it would have."""
    specs = whole(partitions.column(_SPEC))
    if PARTITION not in partitions.column_names:
        return pa.table({_SPEC: specs})
    values = whole(partitions.column(PARTITION))
    children = []
    for field_id, name in sorted(state.types.partition_fields.items()):
        value = pc.struct_field(values, str(field_id)).cast(bound_arrow_type(name))
        nan = (
            pc.fill_null(pc.is_nan(value), False) if pa.types.is_floating(value.type) else pa.repeat(False, len(value))
        )
        bound = pc.if_else(nan, pa.scalar(None, value.type), value)
        names = ["contains_null", "contains_nan", "lower_bound", "upper_bound"]
        children.append(pa.StructArray.from_arrays([value.is_null(), nan, bound, bound], names=names))
    names = [str(field_id) for field_id in sorted(state.types.partition_fields)]
    return pa.table({_SPEC: specs, SUMMARIES: pa.StructArray.from_arrays(children, names)})


def _as_files(state: TableState, partitions: pa.Table) -> pa.Table:
    """Return one data file per partition, with the stats that hold the partition's values."""
    rows, specs = len(partitions), whole(partitions.column(_SPEC))
    values: dict[int, pa.Array] = {}
    for spec_id, fields in state.types.tuple_sources.items():
        of_spec = pc.equal(specs, spec_id)
        for field_id, source in fields:
            kind = bound_arrow_type(state.types.stats_types[source])
            value = pc.struct_field(whole(partitions.column(PARTITION)), str(field_id)).cast(kind)
            values[source] = pc.if_else(of_spec, value, values.get(source, pa.nulls(rows, kind)))
    structs = [_file_stats(values[source]) for source in values]
    stats = pa.StructArray.from_arrays(structs, names=[*map(str, values)]) if structs else pa.array([{}] * rows)
    kinds = pa.repeat(pa.scalar(int(ContentType.DATA), pa.int32()), rows)
    return pa.table({"content_type": kinds, _SPEC: specs, CONTENT_STATS: stats})


def _file_stats(values: pa.Array) -> pa.StructArray:
    if pa.types.is_floating(values.type):  # NaN is not a bound
        values = pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(None, values.type), values)
    unknown = pa.nulls(len(values), pa.int64())
    none_if_bounded = pc.if_else(values.is_valid(), pa.scalar(0, pa.int64()), unknown)  # neither nulls nor NaNs
    counts = {"value_count": unknown, "null_value_count": none_if_bounded, "nan_value_count": none_if_bounded}
    return pa.StructArray.from_arrays([values, values, *map(counts.get, COUNTS)], names=[*BOUNDS, *COUNTS])
