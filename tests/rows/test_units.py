"""Columns whose values files may have in another unit, and files that lack the column of their partition."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimeType

import sparkmeta as sm
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAY = 1_577_836_800
DATE = dt.date(2020, 1, 1)
TIME = dt.time(1)


def column(kind: str) -> tuple[dict[str, Any], ...]:
    return (
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "v", "required": False, "type": kind},
    )


def file(values: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array([1, 2], pa.int64()), "v": values})


STAMPS = [dt.datetime(2020, 1, 1), None]  # noqa: DTZ001
# Types of the column in the table's schemas, the file's values, and the first row's value.
CASES: dict[str, tuple[tuple[str, ...], pa.Array, Any]] = {
    "date to timestamp_ns": (("date", "timestamp_ns"), pa.array([DATE, None]), DAY * 10**9),
    "date to timestamp": (("date", "timestamp"), pa.array([DATE, None]), STAMPS[0]),
    "micros in timestamp_ns": (("timestamp_ns",), pa.array(STAMPS, pa.timestamp("us")), DAY * 10**9),
    "nanos": (("timestamp_ns",), pa.array(STAMPS, pa.timestamp("ns")), DAY * 10**9),
    "millis in timestamptz_ns": (("timestamptz_ns",), pa.array(STAMPS, pa.timestamp("ms", "UTC")), DAY * 10**9),
    "time of millis": (("time",), pa.array([TIME, None], pa.time32("ms")), 3_600_000_000),
    "time of micros": (("time",), pa.array([TIME, None], pa.time64("us")), 3_600_000_000),
}


@pytest.mark.parametrize("case", CASES)
def test_units(case: str, spark: SparkSession, tmp_path: Path) -> None:
    types, values, expected = CASES[case]
    table = RowTable(tmp_path, schemas=tuple(map(column, types)), specs=((),))
    # Spark passes over names that begin with _: tasks read them.
    files = [table.data(name, file(values)) for name in ("a.parquet", "_a.parquet")]
    loaded = table.add(0, 0, *files).load(spark)
    rows = loaded.scan().to_df().toArrow().to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows if row["id"] == 1) == [(1, expected)] * 2
    assert [row["v"] for row in rows if row["id"] == 2] == [None, None]


@pytest.mark.parametrize("name", ["a.parquet", "_a.parquet"])
def test_an_equality_delete_of_a_promoted_date(name: str, spark: SparkSession, tmp_path: Path) -> None:
    table = RowTable(tmp_path, schemas=(column("date"), column("timestamp_ns")), specs=((),))
    table.add(0, 0, table.data(name, file(pa.array([DATE, None]))))
    table.add(1, 0, table.keys("keys.parquet", pa.table({"v": pa.array([DAY * 10**9], pa.timestamp("ns"))}), [2]))
    assert [row.id for row in table.load(spark).scan().to_df().collect()] == [2]


def with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(field_id)})


@pytest.mark.parametrize("version", [2, 4])
def test_add_files_without_the_column_of_their_partition(version: int, spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "p", StringType()), NestedField(3, "t", TimeType())
    )
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace("db")
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    table = catalog.create_table("db.t", schema, spec, format_version=version, spark=spark)
    fields = [with_id(pa.field("id", pa.int64()), 1), with_id(pa.field("t", pa.time32("ms")), 3)]
    folder = tmp_path / "p=x"
    folder.mkdir()
    rows = pa.table([pa.array([1, 2], pa.int64()), pa.array([TIME, None], pa.time32("ms"))], schema=pa.schema(fields))
    pq.write_table(rows, folder / "a.parquet")
    table = table.add_files([f"file://{folder}/a.parquet"])
    assert sorted(map(tuple, table.scan("p = 'x'").to_df().collect())) == [(1, "x", 3_600_000_000), (2, "x", None)]
    assert table.scan("t = '01:00:00'").to_df().count() == table.scan("t = '01:00:00'").count() == 1
    table = table.delete("id = 1")
    assert list(map(tuple, table.scan().to_df().collect())) == [(2, "x", None)]
    assert table.inspect.partitions().select("partition.p").collect() == [("x",)]
