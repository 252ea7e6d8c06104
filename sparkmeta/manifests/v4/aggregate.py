"""Aggregate the entries of a leaf to the root's entry for it. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import extremes, kept_rows, whole
from sparkmeta.entries.counts import manifest_counts
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.manifests.v4.root import is_live
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.stats import COUNTS


def leaf_row(
    entries: pa.Table, location: str, size: int, sources: Collection[int], unordered: Collection[int] = ()
) -> pa.Table:
    """Return the root's entry for a leaf, a row of `tree_schema`.

    The commit sets its version, affinity and first row id.

    Args:
        entries: the leaf's entries, rows of `tree_schema`. They have one partition spec, and are either data files or
            delete files.
        size: the leaf's file size in bytes.
        sources: ids of the stats that hold the spec's partition values. A null upper bound of these equals the lower
            one; if both are null, the value is null.
        unordered: ids of stats whose bounds have no agreed order (UUIDs). They are aggregated only if all are equal.
    """
    live = kept_rows(entries, is_live(entries))
    data = bool(len(entries)) and entries.column("content_type")[0].as_py() == ContentType.DATA
    row: dict[str, Any] = {
        "content_type": int(ContentType.DATA_MANIFEST if data else ContentType.DELETE_MANIFEST),
        "location": location,
        "file_format": "parquet",
        "partition_spec_id": entries.column("partition_spec_id")[0].as_py(),
        "record_count": len(entries),
        "file_size_in_bytes": size,
        "manifest_stats": manifest_counts(entries),
    }
    without_stats = pa.Table.from_pylist([row], schema=entries.schema.remove(len(entries.schema) - 1))
    stats = whole(live.column(CONTENT_STATS))
    kind = entries.schema.field(CONTENT_STATS).type
    children = [
        _aggregate(values, field.type, int(field.name) in sources, int(field.name) in unordered)
        for field, values in zip(kind, stats.flatten(), strict=True)
    ]
    aggregate = pa.StructArray.from_arrays(children, fields=list(kind)) if children else pa.array([{}], kind)
    return without_stats.append_column(entries.schema.field(CONTENT_STATS), aggregate)


def _aggregate(stats: pa.StructArray, kind: pa.StructType, is_source: bool, unordered: bool) -> pa.StructArray:
    """Return a column's stats over all files, a struct array of one row; null if no file has any."""
    values = dict(zip((field.name for field in kind), stats.flatten(), strict=True))
    if stats.null_count == len(stats):
        return pa.nulls(1, kind)
    lower, upper = values["lower_bound"], values["upper_bound"]
    if is_source:
        upper = pc.coalesce(upper, lower)
    counts = {name: _total(values[name]) for name in COUNTS}
    contributes = pc.invert(_without_values(values, lower, stats, is_source))
    least = _extreme(lower, contributes, unordered, smallest=True)
    greatest = _extreme(upper, contributes, unordered, smallest=False)
    if unordered and least != greatest:
        least = greatest = pa.scalar(None, lower.type)
    tight = values["tight_bounds"].filter(contributes)
    all_tight = len(tight) > 0 and tight.null_count == 0 and pc.all(tight).as_py()
    row = {"lower_bound": least, "upper_bound": greatest, "tight_bounds": pa.scalar(all_tight or None, pa.bool_())}
    row |= counts
    children = [
        pa.array([row[field.name].as_py()], field.type) if field.name in row else pa.nulls(1, field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def _total(counts: pa.Array) -> pa.Scalar:
    return pa.scalar(None if counts.null_count else pc.sum(counts).as_py() or 0, pa.int64())


def _without_values(values: dict[str, pa.Array], lower: pa.Array, stats: pa.StructArray, is_source: bool) -> pa.Array:
    """Return which files hold only nulls and NaNs. They do not contribute to bounds."""
    missing = reduce(pc.add, (pc.fill_null(values[name], 0) for name in COUNTS[1:]))
    empty = pc.fill_null(pc.equal(missing, values["value_count"]), False)
    if is_source:
        empty = pc.or_(empty, pc.and_(stats.is_valid(), lower.is_null()))
    return pc.and_(empty, lower.is_null())


def _extreme(bounds: pa.Array, contributes: pa.Array, unordered: bool, *, smallest: bool) -> pa.Scalar:
    chosen = bounds.filter(contributes)
    nan = pa.types.is_floating(chosen.type) and pc.any(pc.is_nan(chosen)).as_py()
    unknown = pa.scalar(None, chosen.type)
    if not len(chosen) or chosen.null_count or nan:
        return unknown
    if unordered:
        return chosen[0] if len(pc.unique(chosen)) == 1 else unknown
    least, greatest = extremes(chosen)
    return least if smallest else greatest
