"""Find out which manifests may share a partition with others, by their summaries and statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.bounds import ANY, as_numbers
from sparkmeta.manifests.v4.layout import TupleSources
from sparkmeta.spec.entry import BOUNDS, COUNTS, ContentType

Flags = np.ndarray[Any, np.dtype[np.bool_]]
# Writers disagree on the order of floats and UUIDs: only equal bounds can be relied on.
_FLOATS = ("float", "double")
_UNORDERED = (*_FLOATS, "uuid")
SpecFields = Mapping[int, Sequence[tuple[int, str]]]
# (manifests, spec id, partition field id) -> the field's summary in each manifest.
_Summaries = Callable[[pa.Table, int, int], pa.StructArray]


def overlaps(data: pa.Table, deletes: pa.Table, spec_fields: SpecFields) -> Flags:
    """Return whether each pair of a data and a delete manifest may list files of a common partition.

    This is sound for deletes that apply only within their own spec and partition (table spec, Scan Planning).

    Args:
        data: rows of `manifests_of_list`.
        deletes: rows of `manifests_of_list`.
        spec_fields: spec id -> its fields' (partition field id, type name).

    Returns:
        A matrix with one row per data manifest and one column per delete manifest.
    """
    return _overlaps(data, deletes, spec_fields, _listed_summaries)


def leaf_overlaps(data: pa.Table, deletes: pa.Table, spec_fields: SpecFields, sources: TupleSources) -> Flags:
    """Return the matrix of `overlaps` for leaves of a tree and data files, by the stats that hold partition values.

    Args:
        data: columns of `tree_schema`.
        deletes: columns of `tree_schema`.
        spec_fields: spec id -> its fields' (partition field id, type name).
        sources: spec id -> (partition field id, id of its stats).
    """
    stats_of = {spec_id: dict(fields) for spec_id, fields in sources.items()}
    with_stats = {
        spec_id: [field for field in fields if field[0] in stats_of[spec_id]] for spec_id, fields in spec_fields.items()
    }
    return _overlaps(data, deletes, with_stats, partial(_leaf_summaries, stats_of))


def _overlaps(data: pa.Table, deletes: pa.Table, spec_fields: SpecFields, summaries: _Summaries) -> Flags:
    specs = [manifests.column("partition_spec_id").to_numpy() for manifests in (data, deletes)]
    flags = np.zeros((len(data), len(deletes)), np.bool_)
    for spec_id, fields in spec_fields.items():
        rows, columns = (np.flatnonzero(ids == spec_id) for ids in specs)
        if len(rows) and len(columns):
            may_share = np.ones((len(rows), len(columns)), np.bool_)
            for field_id, name in fields:
                if name != ANY:
                    left, right = (summaries(manifests, spec_id, field_id) for manifests in (data, deletes))
                    may_share &= _may_share_value(left.take(pa.array(rows)), right.take(pa.array(columns)), name)
            flags[np.ix_(rows, columns)] = may_share
    return flags


def _listed_summaries(manifests: pa.Table, _: int, field_id: int) -> pa.StructArray:
    return pc.struct_field(manifests.column(SUMMARIES).combine_chunks(), [str(field_id)])


def _leaf_summaries(
    sources: Mapping[int, Mapping[int, int]], manifests: pa.Table, spec_id: int, field_id: int
) -> pa.StructArray:
    """Convert stats to a partition summary; null if they don't bound the values.

    A file may have only a lower bound; if it has no bound, its value is null or NaN. A leaf without bounds contains
    only nulls and NaNs if their counts cover all of its values; otherwise its bounds are unknown.
    """
    stats = pc.struct_field(whole(manifests.column(CONTENT_STATS)), [str(sources[spec_id][field_id])])
    lower, upper, values, nulls, nans = (pc.struct_field(stats, [name]) for name in (*BOUNDS, *COUNTS))
    is_file = pc.equal(whole(manifests.column("content_type")), int(ContentType.DATA))
    is_null_or_nan = pc.and_(is_file, lower.is_null())
    only_missing = pc.fill_null(pc.equal(pc.add(pc.fill_null(nulls, 0), pc.fill_null(nans, 0)), values), False)
    unknown = pc.and_(pc.and_(lower.is_null(), pc.invert(is_file)), pc.invert(only_missing))
    children = {
        "contains_null": pc.or_(is_null_or_nan, pc.fill_null(pc.greater(nulls, 0), True)),
        "contains_nan": pc.or_(is_null_or_nan, pc.fill_null(pc.greater(nans, 0), True)),
        "lower_bound": lower,
        "upper_bound": pc.if_else(is_file, pc.coalesce(upper, lower), upper),
    }
    return pa.StructArray.from_arrays([*children.values()], names=[*children], mask=pc.or_(stats.is_null(), unknown))


def _may_share_value(data: pa.StructArray, deletes: pa.StructArray, type_name: str) -> Flags:
    """Return whether each pair of a data and a delete summary may have a value in common."""
    lower, upper = _ranks(data, deletes)
    data_rows, delete_rows = slice(None, len(data)), slice(len(data), None)
    broken = lower > upper
    if type_name not in _UNORDERED:
        not_above = np.less_equal.outer(lower[data_rows], upper[delete_rows])
        may_share = not_above & np.greater_equal.outer(upper[data_rows], lower[delete_rows])
    else:
        single = lower == upper
        both_single = np.logical_and.outer(single[data_rows], single[delete_rows])
        may_share = ~both_single | np.equal.outer(lower[data_rows], lower[delete_rows])
    bounded = lower >= 0
    flags: Flags = np.logical_and.outer(bounded[data_rows], bounded[delete_rows]) & may_share
    names = ("contains_null", "contains_nan") if type_name in _FLOATS else ("contains_null",)
    for name in names:
        flags |= np.logical_and.outer(_may_contain(data, name), _may_contain(deletes, name))
    unknown: Flags = np.logical_or.outer(
        _unknown(data, names) | broken[data_rows], _unknown(deletes, names) | broken[delete_rows]
    )
    return flags | unknown


def _may_contain(summaries: pa.StructArray, name: str) -> Flags:
    return np.asarray(pc.fill_null(pc.struct_field(summaries, [name]), True))


def _unknown(summaries: pa.StructArray, flags: Iterable[str]) -> Flags:
    """Return whether each summary of a field is missing, or has missing or invalid bounds or flags."""
    bounds = [pc.struct_field(summaries, [name]) for name in ("lower_bound", "upper_bound")]
    lower, upper = (np.asarray(values.is_valid()) for values in bounds)
    has_content = np.logical_or.reduce([lower, *(_may_contain(summaries, name) for name in flags)])
    nan = np.logical_or.reduce([np.asarray(_is_nan(values)) for values in bounds])
    unknown: Flags = (lower != upper) | ~has_content | nan | np.asarray(summaries.is_null())
    return unknown


def _is_nan(values: pa.Array) -> pa.Array:
    floating = pa.types.is_floating(values.type)
    return pc.fill_null(pc.is_nan(values), False) if floating else pa.repeat(False, len(values))


def _ranks(data: pa.StructArray, deletes: pa.StructArray) -> list[np.ndarray[Any, Any]]:
    """Return all lower bounds and all upper bounds as integers in the same order; -1 for a missing bound."""
    columns = [
        pc.struct_field(summaries, [name]) for name in ("lower_bound", "upper_bound") for summaries in (data, deletes)
    ]
    bounds = pa.concat_arrays([as_numbers(column) for column in columns])
    if pa.types.is_floating(bounds.type):  # writers disagree on the order of -0.0 and 0.0, and NaN is not a bound
        bounds = pc.if_else(pc.is_nan(bounds), None, pc.add(bounds, 0.0))
    encoded = bounds.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    ranks = np.empty(len(values) + 1, np.int64)
    ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values))
    ranks[-1] = -1
    codes = encoded.indices.fill_null(len(values)).to_numpy()
    return np.split(ranks[codes], 2)
