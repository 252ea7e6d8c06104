"""Which delete manifests may hold deletes of a data manifest's partitions, told by their partition summaries alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import ANY
from sparkmeta.manifests.entries import as_numbers
from sparkmeta.manifests.manifest_list import SUMMARIES

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# Types whose order writers may not share: only equal bounds say something.
_FLOATS = ("float", "double")
_UNORDERED = (*_FLOATS, "uuid")


def overlaps(data: pa.Table, deletes: pa.Table, spec_fields: Mapping[int, Sequence[tuple[int, str]]]) -> Flags:
    """A row a data manifest, a column a delete manifest: False where no partition can have files in both.

    data, deletes: rows of `root_entries`. spec_fields: spec id -> its fields' (partition field id, type name).

    Sound for deletes that apply within their own spec and partition only (table spec, Scan Planning).
    """
    specs = [roots.column("partition_spec_id").to_numpy() for roots in (data, deletes)]
    found = np.zeros((len(data), len(deletes)), np.bool_)
    for spec_id, fields in spec_fields.items():
        rows, columns = (np.flatnonzero(one == spec_id) for one in specs)
        if len(rows) and len(columns):
            meet = np.ones((len(rows), len(columns)), np.bool_)
            for field_id, name in fields:
                if name != ANY:
                    one, other = _summaries(data, rows, field_id), _summaries(deletes, columns, field_id)
                    meet &= _meet(one, other, name)
            found[np.ix_(rows, columns)] = meet
    return found


def _summaries(roots: pa.Table, places: np.ndarray[Any, Any], field_id: int) -> pa.StructArray:
    return pc.struct_field(roots.column(SUMMARIES).combine_chunks(), [str(field_id)]).take(pa.array(places))


def _meet(one: pa.StructArray, other: pa.StructArray, type_name: str) -> Flags:
    """Where the values of two summaries may have one in common."""
    lower, upper = _ranks(one, other)
    mine, theirs = slice(None, len(one)), slice(len(one), None)
    broken = lower > upper
    if type_name not in _UNORDERED:
        meet = np.less_equal.outer(lower[mine], upper[theirs]) & np.greater_equal.outer(upper[mine], lower[theirs])
    else:
        single = lower == upper
        meet = ~np.logical_and.outer(single[mine], single[theirs]) | np.equal.outer(lower[mine], lower[theirs])
    bounded = lower >= 0
    found: Flags = np.logical_and.outer(bounded[mine], bounded[theirs]) & meet
    flags = ("contains_null", "contains_nan") if type_name in _FLOATS else ("contains_null",)
    for name in flags:
        found |= np.logical_and.outer(_may(one, name), _may(other, name))
    unknown: Flags = np.logical_or.outer(_unknown(one, flags) | broken[mine], _unknown(other, flags) | broken[theirs])
    return found | unknown


def _may(summaries: pa.StructArray, name: str) -> Flags:
    return np.asarray(pc.fill_null(pc.struct_field(summaries, [name]), True))


def _unknown(summaries: pa.StructArray, flags: Iterable[str]) -> Flags:
    """Where there is no summary, or one that says of no value what it is."""
    bounds = [pc.struct_field(summaries, [name]) for name in ("lower_bound", "upper_bound")]
    lower, upper = (np.asarray(one.is_valid()) for one in bounds)
    said = np.logical_or.reduce([lower, *(_may(summaries, name) for name in flags)])
    nan = np.logical_or.reduce([np.asarray(_is_nan(one)) for one in bounds])
    unknown: Flags = (lower != upper) | ~said | nan | np.asarray(summaries.is_null())
    return unknown


def _is_nan(values: pa.Array) -> pa.Array:
    floating = pa.types.is_floating(values.type)
    return pc.fill_null(pc.is_nan(values), False) if floating else pa.repeat(False, len(values))


def _ranks(one: pa.StructArray, other: pa.StructArray) -> list[np.ndarray[Any, Any]]:
    """The lower and the upper bounds of both as numbers of the same order; -1 where there is none."""
    parts = [pc.struct_field(part, [name]) for name in ("lower_bound", "upper_bound") for part in (one, other)]
    bounds = pa.concat_arrays([as_numbers(part) for part in parts])
    if pa.types.is_floating(bounds.type):  # writers disagree on the order of -0.0 and 0.0, and NaN is no bound
        bounds = pc.if_else(pc.is_nan(bounds), None, pc.add(bounds, 0.0))
    encoded = bounds.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    ranks = np.empty(len(values) + 1, np.int64)
    ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values))
    ranks[-1] = -1
    codes = encoded.indices.fill_null(len(values)).to_numpy()
    return np.split(ranks[codes], 2)
