"""Packing of splits into tasks, against a model in plain Python: Iceberg's bin packing with a lookback."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.types import IcebergType, NestedField

import sparkmeta as sm
from sparkmeta.expr import sql
from sparkmeta.plan.tasks import SplitPlanning, pack, single_value
from tests.handmade import HandmadeTable, data, deletion_vector
from tests.properties.cases import by_both

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FILE = pa.schema(
    [
        ("start", pa.int64()),
        ("length", pa.int64()),
        ("file_path", pa.string()),
        ("file_size_in_bytes", pa.int64()),
        ("split_offsets", pa.list_(pa.int64())),
        ("deletes", pa.list_(pa.struct([("content_size_in_bytes", pa.int64()), ("file_size_in_bytes", pa.int64())]))),
    ]
)
WHOLE = pa.schema([("tasks", pa.list_(pa.struct(list(FILE))))])


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.sampled_from([0, 1, 99, 100, 101, 250]) | st.integers(0, 500))
    ascending = st.lists(st.integers(0, max(size, 1)), max_size=4, unique=True).map(sorted)
    offsets = draw(st.none() | ascending | st.lists(st.integers(0, size + 2), max_size=4))
    vectors = st.builds(lambda size: {"content_size_in_bytes": size, "file_size_in_bytes": 1000}, st.integers(1, 40))
    others = st.builds(lambda size: {"content_size_in_bytes": None, "file_size_in_bytes": size}, st.integers(1, 40))
    return {
        "start": 0,
        "length": size,
        "file_path": draw(st.sampled_from("abcdef")),
        "file_size_in_bytes": size,
        "split_offsets": offsets,
        "deletes": draw(st.lists(vectors | others, max_size=3)),
    }


def splits_of(file: dict[str, Any], splitting: SplitPlanning) -> list[tuple[dict[str, Any], int, int, int]]:
    """The file, first byte, length and weight of each split."""
    size, offsets = file["file_size_in_bytes"], file["split_offsets"] or []
    usable = offsets and offsets[-1] < size and all(a < b for a, b in pairwise(offsets))
    starts = offsets if usable else [*range(0, size, splitting.target_size)]
    sizes = [each["content_size_in_bytes"] or each["file_size_in_bytes"] for each in file["deletes"]]
    least = (1 + len(sizes)) * splitting.open_file_cost
    ends = [*starts[1:], size]
    return [
        (file, start, end - start, max(end - start + sum(sizes), least))
        for start, end in zip(starts, ends, strict=False)
    ]


@dataclass
class Bin:
    weight: int = 0
    splits: list[tuple[dict[str, Any], int, int]] = field(default_factory=list)


def packed(partition: list[dict[str, Any]], splitting: SplitPlanning) -> list[Bin]:
    open_bins: list[Bin] = []
    closed: list[Bin] = []
    for file in partition:
        for *split, weight in splits_of(file, splitting):
            fitting = next((each for each in open_bins if each.weight + weight <= splitting.target_size), None)
            if fitting is None:
                open_bins.append(fitting := Bin())
            fitting.weight += weight
            fitting.splits.append(tuple(split))  # type: ignore[arg-type]
            if len(open_bins) > splitting.lookback:
                heaviest = max(open_bins, key=lambda each: each.weight)
                open_bins.remove(heaviest)
                closed.append(heaviest)
    return closed + open_bins


def row_of(bin_: Bin) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = []
    for file, start, length in bin_.splits:
        before = tasks[-1] if tasks else None
        if before and before["file_path"] == file["file_path"] and before["start"] + before["length"] == start:
            before["length"] += length
        else:
            tasks.append({**file, "start": start, "length": length})
    paths = {task["file_path"] for task in tasks}
    return {"size_in_bytes": sum(task["length"] for task in tasks), "files_count": len(paths), "tasks": tasks}


OPTIONS = st.builds(
    SplitPlanning, st.sampled_from([50, 100, 300]), st.sampled_from([1, 2, 10]), st.sampled_from([0, 1, 10, 60])
)
TWICE = {"file_path": "a", "file_size_in_bytes": 300, "split_offsets": [0, 100], "deletes": [], "start": 0, "length": 0}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(files(), max_size=12), min_size=1, max_size=3), OPTIONS)
@example([[TWICE], [TWICE]], SplitPlanning(1000, 2, 0))
def test_bins(batches: list[list[dict[str, Any]]], splitting: SplitPlanning) -> None:
    """A partition whose rows come in several batches, each row with a whole file."""
    arrow = [pa.RecordBatch.from_pylist([{"tasks": [file]} for file in batch], WHOLE) for batch in batches]
    rows = [row for bins in pack(splitting, arrow) for row in bins.to_pylist()]
    assert rows == [row_of(each) for each in packed([file for batch in batches for file in batch], splitting)]


def test_tasks_have_every_byte_once(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path)
    sizes = {f"file:///t/{number}.parquet": 100 + 37 * number for number in range(40)}
    table.add(0, 1, *(data(path, file_size_in_bytes=size) for path, size in sizes.items()))
    table.add(1, 1, *(deletion_vector(path) for path in [*sizes][::3]))
    options = {"split-size": "300", "file-open-cost": "10"}
    plan = sm.load_table(table.write(), spark=spark).scan(options=options)
    tasks = plan.plan_tasks().collect()
    assert sum(task.size_in_bytes for task in tasks) == sum(sizes.values())
    ranges = sorted((split.file_path, split.start, split.length) for task in tasks for split in task.tasks)
    read = {path: [each[1:] for each in ranges if each[0] == path] for path in sizes}
    for path, size in sizes.items():
        assert read[path][0][0] == 0
        assert all(start + length == after for (start, length), (after, _) in pairwise(read[path]))
        assert sum(read[path][-1]) == size
    deletes = {split.file_path: len(split.deletes) for task in tasks for split in task.tasks}
    assert deletes == {path: int(place % 3 == 0) for place, path in enumerate(sizes)}


SINGLE_VALUES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("date", pa.date32(), [0, -1, 11_016, -719_162, 2_932_896, 2_932_897]),
    ("timestamp", pa.timestamp("us"), [0, -1, 1_500_000, 86_400_000_000 * 365 + 10, -62_135_596_800_000_000]),
    ("timestamptz", pa.timestamp("us", "UTC"), [0, -1, 1_500_000, 86_400_000_000 * 365 + 10]),
    ("timestamp_ns", pa.int64(), [0, -1, 1_500_000_000, 2**63 - 1]),
    ("timestamptz_ns", pa.int64(), [0, -1, 1_500_000_000]),
    ("time", pa.int64(), [0, 1, 86_399_999_999]),
    ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-1234567.89"), Decimal("0.01")]),
    ("decimal(38, 20)", pa.decimal128(38, 20), [Decimal("1E-20"), Decimal("-123456789012345678.5")]),
    ("binary", pa.binary(), [b"", bytes(range(250, 256))]),
    ("fixed[2]", pa.binary(), [b"\x00\xff"]),
    ("uuid", pa.binary(), [bytes(16), bytes(range(16))]),
    ("string", pa.string(), ["", "\u00e9'\""]),
    ("long", pa.int64(), [2**63 - 1, -5]),
    ("boolean", pa.bool_(), [True, False]),
]


def test_values_are_the_same_text_in_spark_and_in_arrow(spark: SparkSession) -> None:
    longest = max(len(values) for _, _, values in SINGLE_VALUES)
    columns = {"place": pa.array(range(longest + 1))}
    for name, kind, values in SINGLE_VALUES:
        ticks = pa.int32() if pa.types.is_date(kind) else pa.int64()
        padded = pa.array(
            [*values, *[None] * (longest + 1 - len(values))], ticks if pa.types.is_temporal(kind) else kind
        )
        columns[name] = padded.view(kind) if pa.types.is_temporal(kind) else padded
    texts = [single_value(sql.col(f"`{name}`"), iceberg_type(name)) for name, _, _ in SINGLE_VALUES]
    results = by_both(spark, pa.table(columns), texts)
    assert results[0][:2] == ["1970-01-01", "1969-12-31"]
    assert results[5][:3] == ["00:00:00.000000", "00:00:00.000001", "23:59:59.999999"]


def iceberg_type(name: str) -> IcebergType:
    return NestedField.model_validate({"id": 1, "name": "x", "required": False, "type": name}).field_type
