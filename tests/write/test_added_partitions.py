"""The partition of an existing file, when its folders and its rows are hard to compare."""

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
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    TimestamptzType,
)

import sparkmeta as sm
from sparkmeta.write.add_files import existing_files
from tests.maintain.test_expire import opened
from tests.peers.java import Java
from tests.peers.workshop import Workshop
from tests.rows.comparison import row_texts
from tests.write.test_add_files import new_table, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

IDS = pa.array([1, 2], pa.int64())


def partitioned(spark: SparkSession, folder: Path, kind: IcebergType, bucket: int | None = None) -> sm.Table:
    """Create a table of columns id and p, partitioned by p, or by buckets of p in a field p_bucket."""
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
    """A folder names an instant only with an offset: Spark writes times of a zone that the folder does not name."""
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
    other = partitioned(spark, tmp_path / "other", TimestamptzType()).add_files(paths, check_other_tables=False)
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


# -- folders of partition fields --------------------------------------------------------------------------------------

ONE = pa.array([1], pa.int64())
REGIONS = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "city", StringType())
)


def by_region(name: str = "region") -> PartitionSpec:
    return PartitionSpec(PartitionField(2, 1000, IdentityTransform(), name))


def test_folders_of_a_column_or_field(interpreted: SparkSession, tmp_path: Path) -> None:
    """A folder has the name of the column, as in Hive, Spark and Java's procedure, or of the field."""
    folders: dict[str, dict[str, str | None]] = {
        "region": {
            "region=x": "x", "Region=x": "x", "%72egion=a%2Fb%20c": "a/b c", "region=__HIVE_DEFAULT_PARTITION__": None,
            "region=x/batch=7": "x", "region=y/region=x": "x",
        },
        "reg": {"region=x": "x", "reg=x": "x", "REG=x": "x", "reg=x/region=x": "x"},
    }  # fmt: skip
    for name, expected in folders.items():
        table = new_table(interpreted, tmp_path / name, by_region(name), schema=REGIONS)
        files = {
            write(tmp_path / "in" / name / folder / "1.parquet", id=ONE): value for folder, value in expected.items()
        }
        table = table.add_files([*files])
        rows = table.scan(selected_fields=("region", "_file")).to_df().collect()
        assert {row._file: row.region for row in rows} == files
        parts = table.inspect.data_files().select("file_path", f"partition.{name}").collect()
        assert {row.file_path: row[name] for row in parts} == files


UNFIT = {
    "area=x": "folder area=x: no partition field has this name, and the file lacks column region: "
    "expected a folder region=... or reg=...",
    # No other value would fill this column.
    "region=x/city=y": "folder city=y: the file lacks this column, which is no identity field",
    "region=x/reg=y": "folders region=x and reg=y are both of the partition field reg",
    # Another column has the field's name in another case.
    "CITY=x": "folder CITY=x: the file lacks this column, which is no identity field",
}


def test_folders_that_fit_nothing(interpreted: SparkSession, tmp_path: Path) -> None:
    table = new_table(interpreted, tmp_path, by_region("reg"), schema=REGIONS)
    other = new_table(interpreted, tmp_path / "other", by_region("CITY"), schema=REGIONS)
    for folder, problem in UNFIT.items():
        # The driver does the tasks' work, since each call of add_files would run jobs.
        tasks = existing_files((other if folder == "CITY=x" else table).state, check_other_tables=True)
        for suffix in ("parquet", "orc"):
            path = write(tmp_path / "in" / folder / f"1.{suffix}", id=ONE)
            (described,) = tasks.describe([pa.record_batch({"file_path": [path]})])
            (text,) = described["problem"].to_pylist()
            assert text is not None, folder
            assert text.startswith(f"{path}: {problem}")
    with pytest.raises(sm.ValidationError, match="folder area=x: no partition field has this name"):
        table.add_files([str(tmp_path / "in" / "area=x" / "1.parquet")])
    assert table.refresh().current_snapshot() is None
    # A column in the file needs no folder.
    paths = [
        write(tmp_path / "in" / folder / "2.parquet", id=ONE, region=["x"], city=["y"])
        for folder in ("area=x", "region=x/city=y", "area=y/reg=x")
    ]
    assert partitions(table.add_files(paths)) == ["x"] * 3


def test_the_session_decides_about_case(interpreted: SparkSession, tmp_path: Path) -> None:
    fields = (
        NestedField(1, "id", LongType()),
        NestedField(2, "region", StringType()),
        NestedField(3, "REGION", StringType()),
    )
    spec = PartitionSpec(
        *(PartitionField(field_id, 998 + field_id, IdentityTransform(), f"f{field_id}") for field_id in (2, 3))
    )
    both = new_table(interpreted, tmp_path / "both", spec, schema=Schema(*fields))
    lower = new_table(interpreted, tmp_path, by_region(), schema=REGIONS)
    path = write(tmp_path / "in" / "Region=x" / "1.parquet", id=ONE)
    with pytest.raises(sm.ValidationError, match="folder Region=x may be of the partition fields f2 and f3"):
        both.add_files([path])
    exact = write(tmp_path / "in" / "REGION=a" / "region=b" / "1.parquet", id=ONE)
    assert [tuple(row)[1:] for row in both.add_files([exact]).scan().to_df().collect()] == [("b", "a")]
    interpreted.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(sm.ValidationError, match="folder Region=x: no partition field has this name"):
            lower.add_files([path])
    finally:
        interpreted.conf.unset("spark.sql.caseSensitive")


def test_a_field_of_a_struct(interpreted: SparkSession, tmp_path: Path) -> None:
    """The partition of a file that has the column is not null, whatever its format."""
    inside = StructType(NestedField(3, "x", LongType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inside))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "s.x"))
    table = new_table(interpreted, tmp_path, spec, schema=schema)
    column = pa.StructArray.from_arrays([pa.array([5], pa.int64())], names=["x"])
    paths = [write(tmp_path / f"1.{suffix}", id=ONE, s=column) for suffix in ("parquet", "orc")]
    assert partitions(table.add_files(paths)) == [5, 5]


@pytest.mark.java
def test_java_takes_the_same_folders(spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg's procedure reads folders by the name of the column too, whatever the field's name is."""
    for number, (column, folder) in enumerate([("region", "region"), ("region", "Region")]):
        source = tmp_path / str(number)
        write(source / f"{folder}=a b" / "1.parquet", id=ONE)
        ours, theirs = (Workshop(Java(spark), f"added_folders_{whose}_{number}") for whose in ("ours", "theirs"))
        for shop in (ours, theirs):
            shop.create(f"id BIGINT, {column} STRING", column)
        opened(ours).add_files([str(path) for path in source.rglob("*.parquet")])
        theirs.call("add_files", f"source_table => '`parquet`.`{source}`'")
        assert row_texts(ours.sql("SELECT * FROM {t}")) == row_texts(theirs.sql("SELECT * FROM {t}"))


# -- locations of files -----------------------------------------------------------------------------------------------


def test_files_of_other_tables(interpreted: SparkSession, tmp_path: Path) -> None:
    """Another table's expiry would delete them."""
    other = new_table(interpreted, tmp_path / "other", PartitionSpec(), schema=REGIONS)
    other = other.append(interpreted.sql("SELECT 1L id, 'a' region"))
    (path,) = [row.file_path for row in other.inspect.data_files().collect()]
    foreign = write(tmp_path / "other" / "w" / "db" / "t" / "deep" / "er" / "1.parquet", id=ONE)
    table = new_table(interpreted, tmp_path / "other" / "w" / "db" / "t" / "below", PartitionSpec(), schema=REGIONS)
    folder = str(tmp_path / "other" / "w" / "db" / "t")
    for path_or_uri in (path, foreign, f"file://{foreign}"):
        with pytest.raises(sm.ValidationError, match=f"is in the folder of another Iceberg table, .*{folder}, whose"):
            table.add_files([path_or_uri])
    nested = write(tmp_path / "other" / "w" / "db" / "t" / "below" / "w" / "db" / "t" / "data" / "1.parquet", id=ONE)
    beside = write(tmp_path / "metadata" / "1.parquet", id=ONE)
    table = table.add_files([nested, beside]).add_files([path], check_other_tables=False)
    with table.transaction() as tx:
        tx.add_files([foreign], check_other_tables=False)
    assert table.refresh().scan().count() == 4


def test_relative_paths(interpreted: SparkSession, tmp_path: Path) -> None:
    table = new_table(interpreted, tmp_path, PartitionSpec(), schema=REGIONS)
    with pytest.raises(sm.ValidationError, match=r"^in/1\.parquet: the path of a file to add is relative"):
        table.add_files(["in/1.parquet"])
