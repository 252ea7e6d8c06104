"""Metrics maps of v1-v3 files and typed stats: one made of the other, and back."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkmeta.entries.manifest_records import MAP_CHILDREN, map_type, stats_of_maps, with_metrics_maps
from sparkmeta.entries.projection import EntryProjection, stats_struct
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import bound_arrow_type

ROUNDS = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
TYPES = {1: "long", 2: "string", 7: "double"}
COUNT_MAPS = ("value_counts", "null_value_counts", "nan_value_counts")

LONGS = st.integers(-(2**63), 2**63 - 1).map(lambda number: struct.pack("<q", number))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(str.encode)
DOUBLES = st.floats(allow_nan=False).map(lambda number: struct.pack("<d", number))
COUNTS = st.dictionaries(st.sampled_from(sorted(TYPES)), st.integers(0, 2**63 - 1))
BOUNDS = st.fixed_dictionaries({}, optional={1: LONGS, 2: TEXTS, 7: DOUBLES})
METRICS = st.fixed_dictionaries(
    {name: st.none() | (BOUNDS if name.endswith("_bounds") else COUNTS) for name in MAP_CHILDREN}
)


def maps_of(files: list[dict[str, Any]]) -> dict[str, pa.Array]:
    return {
        name: pa.array(
            [None if metrics.get(name) is None else list(metrics[name].items()) for metrics in files], map_type(name)
        )
        for name in MAP_CHILDREN
    }


def as_maps(stats: dict[int, dict[str, pa.Array]], types: dict[int, str], rows: int) -> list[dict[str, Any]]:
    """Stats as the maps that `with_metrics_maps` makes of them."""
    projection = EntryProjection.of(("record_count", *MAP_CHILDREN), stats={1: "long"})
    structs = []
    for field_id, kind in sorted(types.items()):
        full = stats_struct(bound_arrow_type(kind))
        children = [stats.get(field_id, {}).get(child.name, pa.nulls(rows, child.type)) for child in full]
        structs.append((str(field_id), pa.StructArray.from_arrays(children, fields=list(full))))
    whole = pa.StructArray.from_arrays([values for _, values in structs], names=[name for name, _ in structs])
    columns = {"record_count": pa.array(range(rows), pa.int64()), "content_stats": whole}
    columns |= {"manifest": pa.array([3] * rows, pa.int32()), "ordinal": pa.array(range(rows), pa.int64())}
    batch = pa.RecordBatch.from_pydict(columns)
    batches = list(with_metrics_maps(projection, frozenset(types), [batch]))
    assert [batch_with_maps.schema for batch_with_maps in batches] == [projection.schema]
    assert batches[0].column("record_count").to_pylist() == list(range(rows))
    metrics: list[dict[str, Any]] = batches[0].select(list(MAP_CHILDREN)).to_pylist()
    return metrics


@ROUNDS
@given(st.lists(METRICS, min_size=1, max_size=6))
def test_there_and_back(files: list[dict[str, Any]]) -> None:
    stats = stats_of_maps(maps_of(files), TYPES, len(files), "/t")
    maps = as_maps(stats, TYPES, len(files))
    for file, back in zip(files, maps, strict=True):
        for name in MAP_CHILDREN:
            assert dict(back[name] or ()) == (file[name] or {}), name
            assert back[name] is None or back[name] == sorted(back[name])  # by id, and none that is empty
            assert back[name] != []


@ROUNDS
@given(st.lists(METRICS, min_size=2, max_size=6), st.integers(1, 5))
def test_slices(files: list[dict[str, Any]], start: int) -> None:
    """Only visible rows of arrays with an offset count, as in some of Spark's batches."""
    maps = {name: values.slice(start) for name, values in maps_of(files).items()}
    rest = files[start:]
    stats = stats_of_maps(maps, TYPES, len(rest), "/t")
    from_rest = stats_of_maps(maps_of(rest), TYPES, len(rest), "/t")
    assert {
        field_id: {name: values.to_pylist() for name, values in children.items()}
        for field_id, children in stats.items()
    } == {
        field_id: {name: values.to_pylist() for name, values in children.items()}
        for field_id, children in from_rest.items()
    }


def test_columns_that_are_not_requested_are_skipped() -> None:
    maps = maps_of([{"value_counts": {1: 5, 9: 3}, "lower_bounds": {9: b"not a long"}}])
    stats = stats_of_maps(maps, {1: "long"}, 1, "/t")
    assert {
        field_id: {name: values.to_pylist() for name, values in some.items()} for field_id, some in stats.items()
    } == {1: {"value_count": [5]}}


def test_keys_of_null_maps_are_not_read() -> None:
    """A null map may have entries behind it in its buffers."""
    whole = maps_of([{"value_counts": {1: 5}}, {"value_counts": {1: 6}}, {"value_counts": {1: 7}}])["value_counts"]
    validity = pa.array([True, False, True]).buffers()[1]
    hidden = pa.Array.from_buffers(whole.type, 3, [validity, *whole.buffers()[1:2]], children=[maps_entries(whole)])
    assert hidden.to_pylist() == [[(1, 5)], None, [(1, 7)]]
    stats = stats_of_maps({"value_counts": hidden}, {1: "long"}, 3, "/t")
    assert stats[1]["value_count"].to_pylist() == [5, None, 7]


def maps_entries(maps: pa.MapArray) -> pa.StructArray:
    fields = [pa.field("key", pa.int32(), nullable=False), pa.field("value", maps.type.item_type, nullable=False)]
    return pa.StructArray.from_arrays([maps.keys, maps.items], fields=fields)


def test_an_invalid_bound() -> None:
    maps = maps_of([{"lower_bounds": {1: b"abc"}}])
    with pytest.raises(CorruptFileError, match=r"/t: lower_bounds\[1\].*616263.*long"):
        stats_of_maps(maps, TYPES, 1, "/t")


def test_column_sizes_are_no_part_of_stats() -> None:
    projection = EntryProjection.of(("column_sizes", "value_counts"))
    full = stats_struct(pa.int64())
    values = pa.array([{"value_count": 4}], full)
    columns = {"content_stats": pa.StructArray.from_arrays([values], names=["1"])}
    columns |= {"manifest": pa.array([0], pa.int32()), "ordinal": pa.array([0], pa.int64())}
    batch = next(with_metrics_maps(projection, frozenset({1}), [pa.RecordBatch.from_pydict(columns)]))
    assert batch.column("column_sizes").to_pylist() == [None]
    assert batch.column("value_counts").to_pylist() == [[(1, 4)]]
