"""Metrics of written files, against a model in plain Python, for random columns, batches and modes."""

from __future__ import annotations

import math
import struct
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import orc
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, NestedField, StringType, UUIDType

import sparkmeta as sm
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, FULL, NO_METRICS
from sparkmeta.write.metrics import FileMetrics, metric_leaves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan])),
    "string": (pa.string(), st.text(max_size=6) | st.text("a\ud7ff\U0010ffff", min_size=2, max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=6) | st.binary(min_size=2, max_size=5).map(lambda b: b"\xff" * len(b))),
    "fixed[5]": (pa.binary(5), st.binary(min_size=5, max_size=5)),
    "uuid": (pa.binary(16), st.binary(min_size=16, max_size=16)),
    "boolean": (pa.bool_(), st.booleans()),
}
TRUNCATED = ("string", "binary")
MODES = st.sampled_from([NO_METRICS, COUNTS_ONLY, 1, 2, 3, 16, FULL])


def cut_up(value: Any, length: int) -> Any:
    """The least text or bytes of a length that is greater than all that begin with the value's beginning."""
    if not isinstance(value, str | bytes) or len(value) <= length:
        return value
    prefix = list(value[:length])
    while prefix:
        last = prefix.pop()
        if isinstance(value, bytes):
            if last < 255:
                return bytes([*prefix, last + 1])
        elif ord(last) < 0x10FFFF:
            code = 0xE000 if ord(last) == 0xD7FF else ord(last) + 1
            return "".join([*prefix, chr(code)])
    return None


def encoded(value: Any, name: str) -> bytes:
    match name:
        case "int":
            return struct.pack("<i", value)
        case "long":
            return struct.pack("<q", value)
        case "double":
            return struct.pack("<d", value)
        case "boolean":
            return b"\1" if value else b"\0"
    return value.encode() if isinstance(value, str) else value


def order(value: Any) -> Any:
    return (value, math.copysign(1, value)) if isinstance(value, float) else value


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, int, list[list[Any]], bool]:
    name = draw(st.sampled_from(sorted(TYPES)))
    values = st.lists(st.none() | TYPES[name][1], max_size=8)
    return name, draw(MODES), draw(st.lists(values, min_size=1, max_size=3)), draw(st.booleans())


@settings(max_examples=300)
@given(columns())
@example(("double", 16, [[0.0, 1.0]], False))
@example(("double", 16, [[-0.0, -1.0]], False))
@example(("double", 16, [[0.0], [-0.0]], True))
def test_metrics_of_a_column(case: tuple[str, int, list[list[Any]], bool]) -> None:
    name, length, batches, nested = case
    kind, _ = TYPES[name]
    leaf = IcebergColumn("v", 1, name)
    tops = (IcebergColumn("s", 9, "struct", (leaf,)),) if nested else (leaf,)
    metrics = FileMetrics(metric_leaves(tops, {1: length, 9: 16}))
    for batch in batches:
        array = pa.array(batch, kind)
        if nested:  # a null is a null struct here
            array = pa.StructArray.from_arrays([array], ["v"], mask=array.is_null())
        metrics.add(pa.table({tops[0].name: array}))
    everything = [value for batch in batches for value in batch]
    present = [value for value in everything if value is not None]
    numbers = [value for value in present if not (isinstance(value, float) and math.isnan(value))]
    if length == NO_METRICS:
        assert metrics.counts() == {"value_counts": {}, "null_value_counts": {}, "nan_value_counts": {}}
        return
    nans = {1: len(present) - len(numbers)} if name == "double" else {}
    assert metrics.counts() == {
        "value_counts": {1: len(everything)},
        "null_value_counts": {1: len(everything) - len(present)},
        "nan_value_counts": nans,
    }
    sizes = [len(value.encode() if isinstance(value, str) else value) for value in present] if name in TRUNCATED else []
    assert metrics.value_sizes() == ({1: math.ceil(sum(sizes) / len(sizes))} if sizes else {})
    bounds = metrics.bounds()
    if length == COUNTS_ONLY or not numbers:
        assert bounds == {"lower_bounds": {}, "upper_bounds": {}}
        return
    least, greatest = min(numbers, key=order), max(numbers, key=order)
    lower = least[:length] if name in TRUNCATED else least
    assert bounds["lower_bounds"] == {1: encoded(lower, name)}
    upper = cut_up(greatest, length) if name in TRUNCATED else greatest
    assert bounds["upper_bounds"] == ({} if upper is None else {1: encoded(upper, name)})


@pytest.mark.parametrize("kind", ["list", "map"])
def test_nothing_inside_of_lists_and_maps_has_metrics(kind: str) -> None:
    children = (
        (IcebergColumn("element", 2, "int"),)
        if kind == "list"
        else (IcebergColumn("key", 2, "string"), IcebergColumn("value", 3, "int"))
    )
    assert not metric_leaves((IcebergColumn("c", 1, kind, children),), dict.fromkeys((1, 2, 3), 16))


def test_average_sizes_of_values_are_those_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    """What codecs and dictionaries make of them does not matter. A Parquet file that exists is not read."""
    catalog = sm.load_catalog("sizes", type="hadoop", warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", Schema(NestedField(1, "s", StringType())), format_version=4, spark=spark)
    rows = pa.table({"s": ["éé"] * 1000 + ["ééé"] * 1000 + [None]})
    for suffix, write in (("parquet", pq.write_table), ("orc", orc.write_table)):
        write(rows, tmp_path / f"1.{suffix}")
    table = table.append(spark.sql("SELECT IF(id % 2 = 0, 'éé', 'ééé') s FROM range(2000)").coalesce(1))
    table = table.add_files([str(tmp_path / "1.orc"), str(tmp_path / "1.parquet")])
    snapshot = table.current_snapshot()
    assert snapshot is not None
    root = snapshot.root_manifest or ""
    entries = pq.read_table(root.removeprefix("file://"), columns=["location", "content_stats"]).to_pylist()
    sizes: dict[str, list[int | None]] = {}
    for each in entries:
        sizes.setdefault(Path(each["location"]).suffix, []).append(
            each["content_stats"]["1"]["avg_value_size_in_bytes"]
        )
    assert sizes == {".parquet": [5, None], ".orc": [5]}


@pytest.mark.parametrize("version", [2, 4])
def test_bounds_of_uuids_and_fixed_values_are_whole(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """Only text and binary may be truncated, in files that are written and in files that are added."""
    schema = Schema(NestedField(1, "u", UUIDType()), NestedField(2, "f", FixedType(20)))
    catalog = sm.load_catalog("bounds", type="hadoop", warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace("db")
    properties = {"write.metadata.metrics.default": "truncate(8)"}
    table = catalog.create_table("db.t", schema, format_version=version, properties=properties, spark=spark)
    value, text = bytes(range(1, 17)), str(uuid.UUID(bytes=bytes(range(1, 17))))
    table = table.append(spark.createDataFrame([(text, bytearray(range(20)))], "u STRING, f BINARY"))
    path = tmp_path / "added.parquet"
    fixed = pa.array([bytes(range(20))], pa.binary(20))
    pq.write_table(pa.table({"u": pa.array([value], pa.binary(16)), "f": fixed}), path)
    table = table.add_files([str(path)])
    whole = [(1, value), (2, bytes(range(20)))]
    for file in table.inspect.data_files().select("lower_bounds", "upper_bounds").collect():
        assert [sorted(map(tuple, bounds.items())) for bounds in file] == [whole, whole]
    assert table.scan(f"u = '{text}'").to_df().count() == 2
