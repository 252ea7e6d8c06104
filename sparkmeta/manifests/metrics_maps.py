"""Metrics as v1-v3 manifests keep them, maps by field id, made of `content_stats` and turned into it.

Free of Spark: tasks import this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type, decode_bounds, encode_bounds
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.projection import CONTENT_STATS, EntryProjection
from sparkmeta.spec.entry import METRICS_MAP_IDS, METRICS_MAPS, STATS_SOURCES
from sparkmeta.spec.stats import BOUNDS

# Metrics map -> the child of `content_stats` that it is made of; column_sizes is no part of V4.
MAP_CHILDREN = {METRICS_MAPS[map_id][0]: child for child, map_id in STATS_SOURCES.items()}


def map_type(name: str) -> pa.MapType:
    """The Arrow type of a metrics map."""
    return pa.map_(pa.int32(), pa.field("value", METRICS_MAPS[METRICS_MAP_IDS[name]][1], nullable=False))


def has_metrics_maps(projection: EntryProjection) -> bool:
    """Return whether a projection names metrics maps."""
    return not METRICS_MAP_IDS.keys().isdisjoint(projection.columns)


def stats_for_maps(projection: EntryProjection, column_types: Mapping[int, str]) -> EntryProjection:
    """Return a projection with the stats of all columns instead of its metrics maps, which are made of them."""
    stats = {**column_types, **dict(projection.stats)}
    columns = tuple(name for name in projection.columns if name not in METRICS_MAP_IDS)
    return EntryProjection(columns, projection.partition, tuple(sorted(stats.items())))


def with_metrics_maps(
    projection: EntryProjection, columns: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Batches of entries with stats of `columns`, as batches of `projection.schema`, the maps that it names filled."""
    for raw in batches:
        batch = raw.cast(pa.schema([field.with_type(_plain(field.type)) for field in raw.schema]))
        stats = batch.column(CONTENT_STATS)
        by_id = {int(field.name): values for field, values in zip(stats.type, stats.flatten(), strict=True)}
        chosen = {one: by_id[one] for one in sorted(columns)}
        arrays = []
        for field in projection.schema:
            if field.name in METRICS_MAP_IDS:
                arrays.append(_metrics_map(field.name, chosen, len(batch)))
            elif field.name == CONTENT_STATS:
                kept = [by_id[one] for one, _ in projection.stats]
                arrays.append(pa.StructArray.from_arrays(kept, fields=list(field.type)))
            else:
                arrays.append(batch.column(field.name))
        yield pa.RecordBatch.from_arrays(arrays, schema=projection.schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as this package's schemas have it: settings of the session give timestamps other zones and texts larger
    offsets."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _metrics_map(name: str, stats: Mapping[int, pa.StructArray], rows: int) -> pa.Array:
    """The map of one metric over all columns; null where a file has no value of it."""
    child, kind = MAP_CHILDREN.get(name), map_type(name)
    if child is None or not stats:
        return pa.nulls(rows, kind)
    columns = {one: pc.struct_field(values, child) for one, values in stats.items()}
    if kind.item_type == pa.binary():
        columns = {one: encode_bounds(values) for one, values in columns.items()}
    present = np.stack([values.is_valid().to_numpy(zero_copy_only=False) for values in columns.values()], axis=1)
    ids = np.fromiter(columns, np.int32)
    # Values stand column after column; an entry takes its own by row.
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
    maps: Mapping[str, pa.Array], types: Mapping[int, str], rows: int, location: str
) -> dict[int, dict[str, pa.Array]]:
    """Metrics maps by name as typed stats: column id -> child of `content_stats` -> values.

    types: the columns that are wanted, and their Iceberg types. Columns that no row has a metric of are left out.

    Raises:
        CorruptFileError: a bound that is no value of its column's type; `location` names where it stands.
    """
    found: dict[int, dict[str, pa.Array]] = {}
    for name, values in maps.items():
        if (child := MAP_CHILDREN.get(name)) is None:
            continue
        is_bound = child in BOUNDS
        for field_id, raw in column_metric(values, types, rows):
            metric = _decoded(raw, types[field_id], f"{location}: {name}[{field_id}]") if is_bound else raw
            found.setdefault(field_id, {})[child] = metric
    return found


def derived_stats(
    metrics: Mapping[str, pa.Array], type_name: str, sizes: pa.Array | None, rows: int
) -> dict[str, pa.Array]:
    """What follows from a column's metrics: children of `content_stats` that metrics maps don't have.

    Bounds of a type that writers never truncate are tight. The bytes that a column of texts or bytes takes in a file
    tell the average of its values, as they are encoded.
    """
    derived = {}
    if all(bound in metrics for bound in BOUNDS) and type_name.startswith(_NEVER_TRUNCATED):
        derived["tight_bounds"] = true_where(pc.and_(*(metrics[bound].is_valid() for bound in BOUNDS)))
    if sizes is not None and type_name in _VARIABLE_WIDTH:
        derived["avg_value_size_in_bytes"] = _average_sizes(sizes, metrics, rows)
    return derived


def column_metric(maps: pa.MapArray, types: Mapping[int, str], rows: int) -> Iterator[tuple[int, pa.Array]]:
    """A metric of each of these columns that some row has one of, from its map."""
    if maps.null_count == len(maps):
        return
    keys, items, places = _flat(maps)
    for field_id in np.unique(keys).tolist():
        if field_id in types:
            chosen = np.flatnonzero(keys == field_id)
            taken = np.full(rows, -1, np.int64)
            taken[places[chosen]] = chosen
            yield field_id, items.take(pa.array(taken, mask=taken < 0))


_VARIABLE_WIDTH = ("string", "binary")
# Types whose bounds every writer keeps as they are. Those of floats may be zeros of another sign.
_NEVER_TRUNCATED = ("boolean", "int", "long", "date", "time", "decimal")


def true_where(mask: pa.Array) -> pa.Array:
    """True where the mask is, else null: not known."""
    return pc.if_else(mask, pa.scalar(True), pa.scalar(None, pa.bool_()))


def _average_sizes(sizes: pa.Array, metrics: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The bytes of a column in a file by its values that are not null, rounded up; null where either is not known."""
    unknown = pa.nulls(rows, pa.int64())
    values = metrics.get("value_count", unknown)
    values = pc.subtract(values, pc.fill_null(metrics.get("null_value_count", unknown), 0))
    values = pc.if_else(pc.greater(values, 0), values, None)
    average = pc.divide(pc.add(sizes, pc.subtract(values, 1)), values)
    fits = pc.and_(pc.greater_equal(sizes, 0), pc.less_equal(average, _LARGEST_SIZE))
    return pc.if_else(fits, average, None).cast(pa.int32())


_LARGEST_SIZE = (1 << 31) - 1


def _flat(maps: pa.MapArray) -> tuple[np.ndarray[Any, Any], pa.Array, np.ndarray[Any, Any]]:
    """A map array's keys, its items, and the row of each."""
    offsets = maps.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    sizes = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    if sizes.sum() != last - first:
        return _flat(maps.take(pa.array(range(len(maps)))))
    keys = maps.keys.slice(first, last - first).to_numpy(zero_copy_only=False)
    return keys, maps.items.slice(first, last - first), np.repeat(np.arange(len(maps)), sizes)


def _decoded(raw: pa.Array, type_name: str, where: str) -> pa.Array:
    try:
        return decode_bounds(raw.cast(pa.binary()), type_name).cast(bound_arrow_type(type_name))
    except ValueError as error:
        value = next((one.as_py() for one in raw if one.is_valid), None)
        raise CorruptFileError(where, "value", value, str(error)) from error
