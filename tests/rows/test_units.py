"""Columns whose values have another unit in some files, and files that lack the column of their partition."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimeType

import sparkmeta as sm
from sparkmeta.service.rest_tasks import to_rest_tasks
from tests.avro.avro_files import field as avro_field
from tests.handmade import SNAPSHOT_ID, HandmadeTable, data, position_deletes
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
# The column's types in the table's schemas, the file's values, and the first row's value.
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
    # Spark skips names that begin with _, so that tasks read these files.
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


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    changed: set[str] = set()

    def change(name: str, value: str) -> None:
        changed.add(f"spark.sparkmeta.{name}")
        spark.conf.set(f"spark.sparkmeta.{name}", value)

    yield change
    for name in changed:
        spark.conf.unset(name)


def by_date(folder: Path, later: str, kind: type[HandmadeTable] = HandmadeTable) -> HandmadeTable:
    """Return a table partitioned by a date, which is promoted before the position deletes are written."""
    by_v = {"source-id": 2, "field-id": 1000, "name": "v", "transform": "identity"}
    kinds = ({"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-micros"})
    tuples = {number: [avro_field("v", 1000, ["null", kind])] for number, kind in enumerate(kinds)}
    table = kind(folder, specs=((), (by_v,)), schemas=(column("date"), column(later)), tuples=tuples)
    table.add(0, 1, *(data(f"file:///t/{day}", partition={"v": day}) for day in (18_262, 18_263, None)))
    at = DAY * (10**6 if later == "timestamp" else 10**9)
    return table.add(1, 1, position_deletes("file:///t/deletes", 3, partition={"v": at}))


def planned(table: sm.Table, row_filter: str) -> dict[str, int]:
    """Return the number of deletes by the names of planned files."""
    rows = table.scan(row_filter).plan_files().collect()
    return {row.file_path.rpartition("/")[2]: len(row.deletes) for row in rows}


FILES = {
    "v = '2020-01-01T00:00:00'": {"18262": 1},
    "v > '2020-01-01T00:00:00'": {"18263": 0},
    "v < '2020-01-01T00:00:00'": {},
    "v is null": {"None": 0},
    "true": {"18262": 1, "18263": 0, "None": 0},
}


@pytest.mark.parametrize("change", ["none", "rewritten", "upgraded", "cached", "by tasks"])
@pytest.mark.parametrize("later", ["timestamp", "timestamp_ns"])
def test_partitions_of_a_promoted_date(
    later: str, change: str, spark: SparkSession, tmp_path: Path, setting: Callable[[str, str], None]
) -> None:
    """Manifests from before the promotion contain days, whichever process reads them."""
    by_date(tmp_path / "t", later).write()
    table = sm.load_table(f"file://{tmp_path}/t", spark=spark)
    if change == "cached":
        setting("manifest-cache", (tmp_path / "cache").as_uri())
        assert planned(table, "true") == FILES["true"]
    if change == "by tasks":
        setting("driver-manifest-bytes", "0")
    if change == "rewritten":
        table = table.maintenance.rewrite_manifests().commit()
    if change == "upgraded":
        table = table.maintenance.upgrade(4).commit()
    assert {row_filter: planned(table, row_filter) for row_filter in FILES} == FILES


def by_date_bounds(folder: Path, later: str) -> HandmadeTable:
    """Return a table like `by_date`, unpartitioned: the date is in bounds."""
    table = HandmadeTable(folder, specs=((),), schemas=(column("date"), column(later)))
    for day in (18_262, 18_263):
        bounds = {name: [{"key": 2, "value": day.to_bytes(4, "little")}] for name in ("lower_bounds", "upper_bounds")}
        counts = {"value_counts": [{"key": 2, "value": 10}], "null_value_counts": [{"key": 2, "value": 0}]}
        table.add(0, 0, data(f"file:///t/{day}", **bounds, **counts))
    return table


@pytest.mark.parametrize("make", [by_date, by_date_bounds])
@pytest.mark.parametrize("later", ["timestamp", "timestamp_ns"])
def test_filters_on_a_date_that_was_promoted_later(
    later: str, make: Callable[[Path, str], HandmadeTable], spark: SparkSession, tmp_path: Path
) -> None:
    """Time travel reads a snapshot with the date. Values in manifests have the table's type."""
    location = Path(make(tmp_path, later).write().removeprefix("file://"))
    metadata = json.loads(location.read_text())
    metadata["snapshots"][0]["schema-id"] = 0
    location.write_text(json.dumps(metadata))
    table = sm.load_table(str(location), spark=spark)
    nulls, dates = {"None"} if make is by_date else set(), {"18262", "18263"}
    for row_filter, expected in {
        "v = '2020-01-01'": {"18262"},
        "v in ('2020-01-02', '2021-01-01')": {"18263"},
        "v not in ('2020-01-02', '2021-01-01')": {"18262"},
        "v != '2020-01-01'": {"18263"},
        "v > '2020-01-01'": {"18263"},
        "v <= '1800-01-01'": set(),
        "v > '1800-01-01'": dates,
        "v > '2300-01-01'": set(),
        "v < '2300-01-01'": dates,
        "v is null": nulls,
        "id = 1 or v = '2020-01-01'": dates | nulls,
        " or ".join(f"v = '20{year}-01-02'" for year in range(10, 30)): {"18263"},
    }.items():
        scan = table.scan(row_filter, snapshot_id=SNAPSHOT_ID)
        assert {row.file_path.rpartition("/")[2] for row in scan.plan_files().collect()} == expected, row_filter
        tasks = [json.loads(row.task) for row in to_rest_tasks(scan).collect()]
        assert len(tasks) == len(expected), row_filter
        if make is by_date and row_filter == "v > '1800-01-01'":
            assert {task["residual-filter"] for task in tasks} == {True}


class ParquetManifests(HandmadeTable):
    """A table with data manifests in Parquet, with the layout of versions 1 to 3, whose dates are dates."""

    def _manifest(self, number: int, content: int, spec_id: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
        row = super()._manifest(number, content, spec_id, entries)
        if content:
            return row
        tuples = pa.struct([with_id(pa.field("v", pa.date32()), 1000)])
        texts, numbers = {"file_path": 100, "file_format": 101}, {"record_count": 103, "file_size_in_bytes": 104}
        fields = [with_id(pa.field(name, pa.string()), field_id) for name, field_id in texts.items()]
        fields += [with_id(pa.field(name, pa.int64()), field_id) for name, field_id in numbers.items()]
        file = pa.struct([*fields, with_id(pa.field("partition", tuples), 102)])
        counts = {"snapshot_id": 1, "sequence_number": 3, "file_sequence_number": 4}
        schema = [with_id(pa.field(name, pa.int64()), field_id) for name, field_id in counts.items()]
        schema += [with_id(pa.field("status", pa.int32()), 0), with_id(pa.field("data_file", file), 2)]
        path = self.folder / "metadata" / f"m{number}.parquet"
        pq.write_table(pa.Table.from_pylist(entries, pa.schema(schema)), path)
        return {**row, "manifest_path": f"file://{path}", "manifest_length": path.stat().st_size}


@pytest.mark.parametrize("later", ["timestamp", "timestamp_ns"])
def test_partitions_of_a_promoted_date_in_parquet_manifests(later: str, spark: SparkSession, tmp_path: Path) -> None:
    table = sm.load_table(by_date(tmp_path, later, ParquetManifests).write(), spark=spark)
    assert {row_filter: planned(table, row_filter) for row_filter in FILES} == FILES


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
