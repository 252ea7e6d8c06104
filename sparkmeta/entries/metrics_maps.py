"""Convert between `content_stats` and the metrics maps of v1 to v3 manifests. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type, decode_bounds, encode_bounds, known_bounds
from sparkmeta.entries.arrays import with_plain_types
from sparkmeta.entries.projection import CONTENT_STATS, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import METRICS_MAP_IDS, METRICS_MAPS, STATS_SOURCES
from sparkmeta.spec.stats import BOUNDS

# Metrics map -> the corresponding child of `content_stats`. V4 has no column_sizes.
MAP_CHILDREN = {METRICS_MAPS[map_id][0]: child for child, map_id in STATS_SOURCES.items()}


VALUE_SIZES = "avg_value_sizes"
"""A column of new files beside the metrics maps: field id -> average size in memory of the column's values in bytes."""

VALUE_SIZES_TYPE = pa.map_(pa.int32(), pa.field("value", pa.int32(), nullable=False))


def map_type(name: str) -> pa.MapType:
    """Return the Arrow type of a metrics map."""
    return pa.map_(pa.int32(), pa.field("value", METRICS_MAPS[METRICS_MAP_IDS[name]][1], nullable=False))


def has_metrics_maps(projection: EntryProjection) -> bool:
    """Return whether a projection names metrics maps."""
    return not METRICS_MAP_IDS.keys().isdisjoint(projection.columns)


def stats_for_maps(projection: EntryProjection, column_types: Mapping[int, str]) -> EntryProjection:
    """Return a projection with the stats of all columns instead of its metrics maps."""
    stats = {**column_types, **dict(projection.stats)}
    columns = tuple(name for name in projection.columns if name not in METRICS_MAP_IDS)
    return replace(projection, columns=columns, stats=tuple(sorted(stats.items())), entry_filter=None)


def with_metrics_maps(
    projection: EntryProjection, columns: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of entries with stats of `columns` as batches of `projection.schema` with its metrics maps."""
    for raw in batches:
        batch = with_plain_types(raw)
        stats = batch.column(CONTENT_STATS)
        by_id = {int(field.name): values for field, values in zip(stats.type, stats.flatten(), strict=True)}
        mapped = {field_id: by_id[field_id] for field_id in sorted(columns)}
        arrays = []
        for field in projection.schema:
            if field.name in METRICS_MAP_IDS:
                arrays.append(metrics_map(field.name, mapped, len(batch)))
            elif field.name == CONTENT_STATS:
                structs = [by_id[field_id] for field_id, _ in projection.stats]
                arrays.append(pa.StructArray.from_arrays(structs, fields=list(field.type)))
            else:
                arrays.append(batch.column(field.name))
        yield pa.RecordBatch.from_arrays(arrays, schema=projection.schema)


def metrics_map(name: str, stats: Mapping[int, pa.StructArray], rows: int) -> pa.Array:
    """Return the map of one metric over all columns; null if a file has no value of it."""
    child, kind = MAP_CHILDREN.get(name), map_type(name)
    if child is None or not stats:
        return pa.nulls(rows, kind)
    columns = {field_id: pc.struct_field(values, child) for field_id, values in stats.items()}
    if kind.item_type == pa.binary():
        columns = {field_id: encode_bounds(values) for field_id, values in columns.items()}
    present = np.stack([values.is_valid().to_numpy(zero_copy_only=False) for values in columns.values()], axis=1)
    ids = np.fromiter(columns, np.int32)
    # From values by column to values by row.
    order = np.arange(len(ids) * rows).reshape(len(ids), rows).T[present]
    items = pa.concat_arrays(list(columns.values())).take(pa.array(order))
    keys = np.broadcast_to(ids, (rows, len(ids)))[present]
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    maps = pa.MapArray.from_arrays(pa.array(offsets), pa.array(keys, pa.int32()), items)
    empty = ~present.any(axis=1)
    return _masked(maps.cast(kind), np.asarray(empty))


def _masked(maps: pa.MapArray, empty: np.ndarray[Any, Any]) -> pa.Array:
    return pc.if_else(pa.array(~empty), maps, pa.scalar(None, maps.type)) if empty.any() else maps


def stats_of_maps(
    maps: Mapping[str, pa.Array], types: Mapping[int, str], rows: int, location: str, *, lenient: bool = False
) -> dict[int, dict[str, pa.Array]]:
    """Return metrics maps as typed stats: column id -> child of `content_stats` -> values.

    Columns without any metrics are left out.

    Args:
        maps: metrics maps by name.
        types: the ids of the columns to return, and their Iceberg types.
        location: the location of the metrics, for errors.
        lenient: whether a bound that is not a value of its column's type is null.

    Raises:
        CorruptFileError: a bound is not a value of its column's type, unless `lenient`.
    """
    stats: dict[int, dict[str, pa.Array]] = {}
    for name, values in maps.items():
        if (child := MAP_CHILDREN.get(name)) is None:
            continue
        is_bound = child in BOUNDS
        for field_id, raw in column_metric(values, types, rows):
            metric = raw
            if is_bound:
                metric = _decoded(raw, types[field_id], f"{location}: {name}[{field_id}]", lenient=lenient)
            stats.setdefault(field_id, {})[child] = metric
    return stats


def derived_stats(metrics: Mapping[str, pa.Array], type_name: str, sizes: pa.Array | None) -> dict[str, pa.Array]:
    """Return children of `content_stats` that metrics maps don't have.

    Bounds of types that writers never truncate are tight.

    Args:
        metrics: the metrics of a column.
        type_name: its Iceberg type name.
        sizes: the average sizes of its values in memory; None if they are unknown.
    """
    derived = {}
    if all(bound in metrics for bound in BOUNDS) and type_name.startswith(_NEVER_TRUNCATED):
        derived["tight_bounds"] = true_where(pc.and_(*(metrics[bound].is_valid() for bound in BOUNDS)))
    if sizes is not None and type_name in _VARIABLE_WIDTH:
        derived["avg_value_size_in_bytes"] = pc.if_else(pc.greater_equal(sizes, 0), sizes, None)
    return derived


def column_metric(maps: pa.MapArray, types: Mapping[int, str], rows: int) -> Iterator[tuple[int, pa.Array]]:
    """Yield the values of a metrics map for each column that has any."""
    if maps.null_count == len(maps):
        return
    keys, items, places = _flat(maps)
    for field_id in np.unique(keys).tolist():
        if field_id in types:
            of_field = np.flatnonzero(keys == field_id)
            item_of_row = np.full(rows, -1, np.int64)
            item_of_row[places[of_field]] = of_field
            yield field_id, items.take(pa.array(item_of_row, mask=item_of_row < 0))


_VARIABLE_WIDTH = ("string", "binary")
# Types whose bounds no writer changes. Those of floats may be zeros of the other sign.
_NEVER_TRUNCATED = ("boolean", "int", "long", "date", "time", "decimal")


def true_where(mask: pa.Array) -> pa.Array:
    """Return true where the mask is true, else null."""
    return pc.if_else(mask, pa.scalar(True), pa.scalar(None, pa.bool_()))


def _flat(maps: pa.MapArray) -> tuple[np.ndarray[Any, Any], pa.Array, np.ndarray[Any, Any]]:
    """Return the keys and items of a map array, and the row of each."""
    offsets = maps.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    sizes = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    if sizes.sum() != last - first:
        return _flat(maps.take(pa.array(range(len(maps)))))
    keys = maps.keys.slice(first, last - first).to_numpy(zero_copy_only=False)
    return keys, maps.items.slice(first, last - first), np.repeat(np.arange(len(maps)), sizes)


def _decoded(raw: pa.Array, type_name: str, where: str, *, lenient: bool) -> pa.Array:
    try:
        decode = known_bounds if lenient else decode_bounds
        return decode(raw.cast(pa.binary()), type_name).cast(bound_arrow_type(type_name))
    except ValueError as error:
        value = next((scalar.as_py() for scalar in raw if scalar.is_valid), None)
        raise CorruptFileError(where, "value", value, str(error)) from error
