"""The partition of an existing file, where its folders and its rows are hard to compare."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    TimestampNanoType,
    TimestamptzNanoType,
    TimestamptzType,
)

import sparkmeta as sm
from tests.write.test_add_files import new_table, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

IDS = pa.array([1, 2], pa.int64())


def partitioned(spark: SparkSession, folder: Path, kind: IcebergType, bucket: int | None = None) -> sm.Table:
    """A table of columns id and p, partitioned by p, or by buckets p_bucket of p."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", kind))
    field = PartitionField(2, 1000, IdentityTransform(), "p")
    if bucket:
        field = PartitionField(2, 1000, BucketTransform(bucket), "p_bucket")
    spec = PartitionSpec(field)
    return new_table(spark, folder, spec, schema=schema)


def partitions(table: sm.Table) -> list[Any]:
    assert not table.check().collect()
    rows = table.inspect.data_files().select("partition.*").toArrow()
    return sorted(rows.column(0).to_pylist(), key=repr)


def test_folders_of_instants(spark: SparkSession, tmp_path: Path) -> None:
    """A folder gives an instant only with an offset: Spark writes times of a zone that the folder does not name."""
    table = partitioned(spark, tmp_path, TimestamptzType())
    folders = ("p=2026-01-31T10%3A00%3A00%2B00%3A00", "p=2026-01-31+11%3A00%3A00%2B01%3A00")
    table = table.add_files([write(tmp_path / folder / "1.parquet", id=IDS) for folder in folders])
    instant = datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert partitions(table) == [instant] * 2
    assert {row.p.timestamp() for row in table.scan().to_df().collect()} == {instant.timestamp()}
    local = write(tmp_path / "p=2026-01-31 11%3A00%3A00" / "1.parquet", id=IDS)
    problem = "can't be parsed as timestamptz: expected an offset from UTC"
    with pytest.raises(sm.ValidationError, match=f"folder p=2026-01-31 11%3A00%3A00: {problem}"):
        table.add_files([local])


def test_folder_that_sparkmeta_writes_for_an_instant(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1L id, TIMESTAMP'2026-01-31 10:00:00.5 UTC' p")
    table = partitioned(spark, tmp_path, TimestamptzType()).append(rows)
    paths = [row.file_path for row in table.inspect.data_files().collect()]
    other = partitioned(spark, tmp_path / "other", TimestamptzType()).add_files(paths)
    assert partitions(other) == partitions(table)


@pytest.mark.parametrize("kind", [TimestampNanoType(), TimestamptzNanoType()])
def test_folders_of_nanoseconds(spark: SparkSession, tmp_path: Path, kind: IcebergType) -> None:
    zone = "%2B00%3A00" if isinstance(kind, TimestamptzNanoType) else ""
    path = write(tmp_path / f"p=2026-01-31T10%3A00%3A00.000000001{zone}" / "1.parquet", id=IDS)
    table = partitioned(spark, tmp_path, kind).add_files([path])
    assert partitions(table) == [1_769_853_600_000_000_001]


def test_nans_are_not_rows_of_the_partition_of_a_number(spark: SparkSession, tmp_path: Path) -> None:
    table = partitioned(spark, tmp_path, DoubleType())
    both = pa.array([1.0, float("nan")])
    for name in ("m/1.parquet", "m/1.orc", "p=1.0/1.parquet", "p=NaN/1.parquet"):
        with pytest.raises(sm.ValidationError, match="partitions of p: 1 of 2 values of column p are NaN"):
            table.add_files([write(tmp_path / name, id=IDS, p=both)])
    nans = pa.array([float("nan")] * 2)
    with pytest.raises(sm.ValidationError, match=r"p is 1\.0 according to the file's folder, but nan in its rows"):
        table.add_files([write(tmp_path / "p=1.0" / "2.parquet", id=IDS, p=nans)])
    names = ("m/3.parquet", "m/3.orc", "p=NaN/3.parquet")
    paths = [write(tmp_path / name, id=IDS, p=nans) for name in names]
    paths += [write(tmp_path / name, id=IDS, p=pa.array([1.0, 1.0])) for name in ("m/4.parquet", "p=1.0/4.parquet")]
    table = table.add_files(paths)
    assert [str(value) for value in partitions(table)] == ["1.0", "1.0", "nan", "nan", "nan"]
    assert table.scan("p = 1.0").to_df().count() == 4
    assert table.scan("p is nan").to_df().count() == 6


def test_files_without_rows_are_of_the_partition_of_their_folder(spark: SparkSession, tmp_path: Path) -> None:
    table = partitioned(spark, tmp_path, LongType())
    columns = {"id": pa.array([], pa.int64()), "p": pa.array([], pa.int64())}
    paths = [write(tmp_path / name, **columns) for name in ("p=3/1.parquet", "p=3/1.orc", "p=null/2.parquet")]
    assert partitions(table.add_files([*paths, write(tmp_path / "3.parquet", **columns)])) == [3, 3, None, None]


def test_folders_of_other_transforms_do_not_fill_a_column(spark: SparkSession, tmp_path: Path) -> None:
    table = partitioned(spark, tmp_path, LongType(), 8)
    wrong = write(tmp_path / "p_bucket=3" / "1.parquet", id=IDS)
    problem = "p_bucket is 3 according to the file's folder, but null in its rows"
    with pytest.raises(sm.ValidationError, match=f"p_bucket=3/1.parquet: partition field {problem}"):
        table.add_files([wrong])
    assert partitions(table.add_files([write(tmp_path / "p_bucket=null" / "1.parquet", id=IDS)])) == [None]
