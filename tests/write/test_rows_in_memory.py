"""Types of rows in memory: the driver reads Arrow, pandas and the Arrow stream interface, without a session."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import sparkmeta as sm
from sparkmeta.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.types import IcebergType

    from sparkmeta import Table

NOON, NANOS = time(12, 0, 0, 5), 1_700_000_000_123_456_789
KEY = uuid.UUID(int=5)
ZONED = pa.timestamp("ms", "Europe/Oslo")
TIMES = pa.array([[NOON, None]], pa.large_list(pa.time64("us")))
# Type of a column -> rows in memory, and the value in the file.
TAKEN: list[tuple[IcebergType, pa.Array, Any]] = [
    (IntegerType(), pa.array([200], pa.uint8()), 200),
    (LongType(), pa.array([2**32 - 1], pa.uint32()), 2**32 - 1),
    (FloatType(), pa.array([0.5], pa.float16()), 0.5),
    (DoubleType(), pa.array([0.5], pa.float32()), 0.5),
    (DecimalType(9, 2), pa.array([Decimal("1.50")], pa.decimal128(5, 2)), Decimal("1.50")),
    (StringType(), pa.array(["a"], pa.string_view()), "a"),
    (StringType(), pa.array(["a"]).dictionary_encode(), "a"),
    (StringType(), pa.DictionaryArray.from_arrays([0], pa.array(["a"], pa.string_view())), "a"),
    (BinaryType(), pa.array([b"a"], pa.large_binary()), b"a"),
    (FixedType(2), pa.array([b"ab"], pa.binary(2)), b"ab"),
    (UUIDType(), pa.array([KEY.bytes], pa.uuid()), KEY),
    (UUIDType(), pa.array([str(KEY).upper()]), KEY),
    (DateType(), pa.array([date(2026, 1, 31)], pa.date64()), date(2026, 1, 31)),
    (TimeType(), pa.array([NOON], pa.time64("ns")), NOON),
    (TimeType(), pa.array([time(12)], pa.time32("s")), time(12)),
    (TimestampType(), pa.array([datetime(2026, 1, 31)], pa.timestamp("s")), datetime(2026, 1, 31)),  # noqa: DTZ001
    (TimestamptzType(), pa.array([1_000], ZONED), pd.Timestamp(1, unit="s", tz="UTC")),
    (TimestampNanoType(), pa.array([NANOS], pa.timestamp("ns")), pd.Timestamp(NANOS)),
    (TimestampNanoType(), pa.array([1], pa.timestamp("ms")), pd.Timestamp(1_000_000)),
    (ListType(1002, TimeType(), element_required=False), TIMES, [NOON, None]),
    (
        MapType(1003, StringType(), 1004, LongType(), value_required=False),
        pa.array([[("k", 1)]], pa.map_(pa.large_string(), pa.uint16())),
        [("k", 1)],
    ),
    (
        StructType(NestedField(1005, "b", TimestampNanoType()), NestedField(1006, "a", LongType())),
        pa.array([{"a": 1}], pa.struct([("a", pa.int8())])),
        {"b": None, "a": 1},
    ),
]  # fmt: skip


def new_table(tmp_path: Path, *columns: IcebergType) -> Table:
    lake = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path))
    lake.create_namespace("db")
    fields = [NestedField(1 + 10 * index, f"c{index}", kind) for index, kind in enumerate(columns)]
    return lake.create_table("db.t", Schema(*fields), format_version=3)


def written(table: Table) -> list[dict[str, Any]]:
    paths = table.scan().arrow.plan_files().column("file_path").to_pylist()
    return [row for path in paths for row in pq.read_table(path.removeprefix("file://")).to_pylist()]


def test_types_that_are_taken(tmp_path: Path) -> None:
    table = new_table(tmp_path, *(kind for kind, _, _ in TAKEN))
    rows = pa.table({f"c{index}": values for index, (_, values, _) in enumerate(TAKEN)})
    (row,) = written(table.append(rows))
    for (kind, values, expected), value in zip(TAKEN, row.values(), strict=True):
        assert value == expected, (kind, values.type)


@pytest.mark.parametrize(
    ("kind", "rows", "problem"),
    [
        (LongType(), pa.array([1], pa.uint64()), "column c0 of the rows is uint64, which is no value of .* type long"),
        (IntegerType(), pa.array([1], pa.int64()), "column c0 of the rows is bigint: the table has type int"),
        (TimestampType(), pa.array([NANOS], pa.timestamp("ns")), "column c0 of the rows is .*ns.: .* would lose data"),
        (TimestampType(), pa.array([1], ZONED), "column c0 of the rows is timestamp: the table has type timestamp, "),
        (LongType(), pa.array([[1]]), "column c0 of the rows is array<bigint>: the table has type long"),
        (DecimalType(9, 2), pa.array([Decimal("1e40")], pa.decimal256(60, 2)), "is decimal256"),
        (UUIDType(), pa.array(["x"]), "column c0 of type uuid: 'x' is not a UUID"),
        (FixedType(2), pa.array([b"abc"]), "c0 of type .*: b'abc' has 3 bytes, not 2"),
    ],
)
def test_types_that_are_refused(tmp_path: Path, kind: IcebergType, rows: pa.Array, problem: str) -> None:
    table = new_table(tmp_path, kind)
    for change in (table.append, table.overwrite, lambda given: table.upsert(given, ["c0"])):
        with pytest.raises(ValidationError, match=problem):
            change(pa.table({"c0": rows}))
    assert not list(Path(tmp_path).rglob("data/*"))


class Stream:
    """Rows of another library."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.rows.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "make", [pd.DataFrame, lambda rows: Stream(pa.table(rows)), lambda rows: pa.table(rows).to_batches()[0]]
)
def test_rows_of_other_libraries(tmp_path: Path, make: Callable[[dict[str, list[Any]]], Any]) -> None:
    table = new_table(tmp_path, LongType(), StringType())
    rows = make({"c1": ["b", "a"], "c0": [2, 1]})
    assert written(table.append(rows)) == [{"c0": 2, "c1": "b"}, {"c0": 1, "c1": "a"}]


def test_rows_of_pandas_that_are_no_table(tmp_path: Path) -> None:
    table = new_table(tmp_path, LongType(), StringType())
    frame = pd.DataFrame({"c0": [1.0, None], "c1": [1, "a"]})
    with pytest.raises(ValidationError, match=r"the rows: .*c1"):
        table.append(frame)
    with pytest.raises(ValidationError, match="column c0 of the rows is double: the table has type long"):
        table.append(frame.drop(columns="c1"))
    indexed = pd.DataFrame({"c0": [7]}, index=["x"])
    assert written(table.append(indexed)) == [{"c0": 7, "c1": None}]
