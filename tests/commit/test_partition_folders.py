"""Files named by path alone are searched for first in leaves with the partition that the path's folders name."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import DateType, DecimalType, IntegerType, NestedField, StringType, TimestampType

import sparkmeta as sm
from sparkmeta.storage.files import LocalFiles
from tests.commit.test_transaction import commit

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "text", StringType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "at", TimestampType()),
    NestedField(4, "price", DecimalType(5, 2)),
    NestedField(5, "number", IntegerType()),
)
FEW = {"write.tree.direct-files": "0", "write.tree.inline-vector-bytes": "0"}

# Partition field, its values in two leaves, and the folders of these values.
CASES: dict[str, tuple[PartitionField, tuple[Any, Any], tuple[str, str], str]] = {
    "text": (PartitionField(1, 1000, IdentityTransform(), "p q"), ("a/b=c", "d"), ("p+q=a%2Fb%3Dc", "p+q=d"), "string"),
    "plus": (PartitionField(1, 1000, IdentityTransform(), "p+q"), ("a+b", "d"), ("p+q=a+b", "p+q=d"), "string"),
    "null": (PartitionField(1, 1000, IdentityTransform(), "p"), (None, "d"), ("p=null", "p=d"), "string"),
    "hive null": (PartitionField(5, 1000, IdentityTransform(), "p"), (None, 7), (
        "p=__HIVE_DEFAULT_PARTITION__", "p=7"), "int"),
    "date": (PartitionField(2, 1000, IdentityTransform(), "p"), (date(2026, 1, 31), date(1960, 1, 1)), (
        "p=2026-01-31", "p=1960-01-01"), "date"),
    "decimal": (PartitionField(4, 1000, IdentityTransform(), "p"), ("1.50", "2.00"), ("p=1.50", "p=2.00"),
                "decimal(5,2)"),
    "bucket": (PartitionField(1, 1000, BucketTransform(16), "p"), (3, 11), ("p=3", "p=11"), "int"),
    "truncate": (PartitionField(5, 1000, TruncateTransform(10), "p"), (-10, 20), ("p=-10", "p=20"), "int"),
    "year": (PartitionField(3, 1000, YearTransform(), "p"), (56, -10), ("p=2026", "p=1960"), "int"),
    "month": (PartitionField(3, 1000, MonthTransform(), "p"), (56 * 12 + 10, 0), ("p=2026-11", "p=1970-01"), "int"),
    "day": (PartitionField(3, 1000, DayTransform(), "p"), (date(2026, 1, 31), date(2026, 2, 1)), (
        "p=2026-01-31", "p=2026-02-01"), "date"),
    "hour": (PartitionField(3, 1000, HourTransform(), "p"), (25, -1), ("p=1970-01-02-01", "p=1969-12-31-23"), "int"),
}  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the leaves that this process reads, which grows."""
    locations: list[str] = []
    read_range = LocalFiles.read_range

    def logged(self: LocalFiles, location: str, offset: int, size: int) -> bytes:
        if location not in locations:
            locations.append(location)
        return read_range(self, location, offset, size)

    monkeypatch.setattr(LocalFiles, "read_range", logged)
    return locations


def two_leaves(spark: SparkSession, folder: Path, case: str) -> tuple[sm.Table, list[str]]:
    """Create a table with a leaf of 50 files for each of two partitions, and return it with their folders."""
    field, values, folders, kind = CASES[case]
    table = sm.load_catalog("test", type="hadoop", warehouse=str(folder)).create_table(
        "db.t", SCHEMA, PartitionSpec(field), properties=FEW, format_version=4, spark=spark
    )
    for value, name in zip(values, folders, strict=True):
        text = "NULL" if value is None else f"'{value}'"
        files = spark.range(50).selectExpr(
            f"concat('file:/data/{name}/', id, '.parquet') AS file_path", "'parquet' AS file_format", "0 AS spec_id",
            f"named_struct('{field.name}', CAST({text} AS {kind})) AS partition",
            "1L AS record_count", "100L AS file_size_in_bytes",
        )  # fmt: skip
        table = commit(table, lambda tx: tx.update_snapshot().append(files))  # noqa: B023
    return table, [*folders]


def delete(spark: SparkSession, table: sm.Table, path: str) -> sm.Table:
    removed = spark.createDataFrame([(path,)], "file_path string")
    return commit(table, lambda tx: tx.update_snapshot().delete(removed))


@pytest.mark.parametrize("case", CASES)
def test_only_the_leaf_of_the_folders_is_opened(
    spark: SparkSession, tmp_path: Path, opened: list[str], case: str
) -> None:
    table, folders = two_leaves(spark, tmp_path, case)
    for folder in folders:
        opened.clear()
        table = delete(spark, table, f"file:/data/{folder}/33.parquet")
        assert len(opened) == 1
    assert table.scan().count_files() == 98


def test_a_file_whose_folders_name_another_partition_is_found(
    spark: SparkSession, tmp_path: Path, opened: list[str]
) -> None:
    table, _ = two_leaves(spark, tmp_path, "bucket")
    odd = table.scan().plan_files().limit(1).selectExpr(
        "'file:/data/p=11/moved.parquet' AS file_path", "file_format", "spec_id", "named_struct('p', 5) AS partition",
        "record_count", "file_size_in_bytes",
    )  # fmt: skip
    table = commit(table, lambda tx: tx.update_snapshot().append(odd))
    opened.clear()
    table = delete(spark, table, "file:/data/p=11/moved.parquet")
    assert len(opened) > 1
    assert table.scan().count_files() == 100


@pytest.mark.parametrize("folder", ["", "p=", "p=eleven", "p=99999999999", "q=11", "p=11=12", "P=11"])
def test_folders_that_name_no_partition(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    table, _ = two_leaves(spark, tmp_path, "bucket")
    with pytest.raises(sm.errors.ValidationError, match=r"gone\.parquet is not a live file of the table"):
        delete(spark, table, f"file:/data/{folder}/gone.parquet")


def test_a_table_without_partitions(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("db.t", SCHEMA, properties=FEW, format_version=4, spark=spark)
    files = spark.range(9).selectExpr(
        "concat('file:/data/p=1/', id, '.parquet') AS file_path", "'parquet' AS file_format",
        "1L AS record_count", "100L AS file_size_in_bytes",
    )  # fmt: skip
    table = commit(table, lambda tx: tx.update_snapshot().append(files))
    table = delete(spark, table, "file:/data/p=1/3.parquet")
    assert table.scan().count_files() == 8
