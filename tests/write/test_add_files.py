"""Add existing files to a table: metrics, partitions and checks, compared with Iceberg's procedure and pyiceberg."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType

import sparkmeta as sm
from tests.maintain.test_expire import opened
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import Workshop
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "price", DecimalType(9, 2)),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "name"), PartitionField(3, 1001, MonthTransform(), "day_month")
)

COLUMNS = {
    "id": ("BIGINT", "id"),
    "small": ("INT", "CAST(IF(id % 5 = 0, NULL, id - 50) AS INT)"),
    "f": ("FLOAT", "CAST(IF(id % 7 = 0, 'NaN', id * 0.5) AS FLOAT)"),
    "d": ("DOUBLE", "CAST(IF(id % 2 = 0, -0.0D, 0.0D) AS DOUBLE)"),
    "flag": ("BOOLEAN", "id % 2 = 0"),
    "price": ("DECIMAL(9, 2)", "CAST(id - 10 AS DECIMAL(9, 2))"),
    "wide": ("DECIMAL(38, 4)", "CAST(id * -1000000007 AS DECIMAL(38, 4))"),
    "day": ("DATE", "DATE'2026-01-01' + CAST(id % 40 AS INT)"),
    "ntz": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2026-01-01 00:00:00.123456' + make_dt_interval(0, 0, 0, id)"),
    "name": ("STRING", "concat('a long text with the number ', id)"),
    "bin": ("BINARY", "CAST(concat('bytes that are longer ', id) AS BINARY)"),
    "empty": ("STRING", "CAST(NULL AS STRING)"),
    "st": ("STRUCT<x: INT, y: STRING>", "struct(CAST(id AS INT) AS x, CAST(id AS STRING) AS y)"),
    "list": ("ARRAY<INT>", "array(CAST(id AS INT), NULL)"),
    "map": ("MAP<STRING, INT>", "map('k', CAST(id AS INT))"),
}
MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def described(table: sm.Table) -> list[dict[str, Any]]:
    rows = table.inspect.data_files().toArrow().to_pylist()
    rows = [row | {name: dict(row[name] or ()) for name in MAPS} for row in rows]
    return sorted(rows, key=lambda row: row["file_path"])


@pytest.mark.java
def test_entries_beside_iceberg_and_pyiceberg(spark: SparkSession, tmp_path: Path) -> None:
    values = ", ".join(f"{value} AS {name}" for name, (_, value) in COLUMNS.items())
    source = tmp_path / "source"
    spark.sql(f"SELECT {values} FROM range(0, 100, 1, 2)").write.option("parquet.block.size", "4096").parquet(
        str(source)
    )
    paths = sorted(str(path) for path in source.glob("*.parquet"))
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    ours, theirs = (Workshop(Java(spark), name) for name in ("added_by_us", "added_by_iceberg"))
    for shop in (ours, theirs):
        shop.create(columns)
    opened(ours).add_files(paths)
    theirs.call("add_files", f"source_table => '`parquet`.`{source}`'")
    added, by_iceberg = described(opened(ours)), described(opened(theirs))
    assert len(added) == 2
    for mine, other in zip(added, by_iceberg, strict=True):
        # Iceberg's procedure adds schemes to paths, and no split offsets.
        assert other["file_path"] == f"file:{mine['file_path']}"
        assert (mine["split_offsets"], other["split_offsets"]) == ([4], None)
        assert {key: value for key, value in mine.items() if key not in ("file_path", "split_offsets")} == {
            key: value for key, value in other.items() if key not in ("file_path", "split_offsets")
        }
    assert row_texts(ours.sql("SELECT * FROM {t}")) == row_texts(theirs.sql("SELECT * FROM {t}"))

    catalog = SqlCatalog("py", uri="sqlite://", warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace("db")
    by_python = catalog.create_table("db.t", opened(ours).schema())
    by_python.add_files(paths)
    mapped = [table.properties["schema.name-mapping.default"] for table in (opened(ours), by_python)]
    assert json.loads(mapped[0]) == json.loads(mapped[1])
    nested = set(range(13, 21))
    for mine, other in zip(added, described(sm.Table.from_pyiceberg(by_python, spark)), strict=True):
        for key in ("file_path", "record_count", "file_size_in_bytes", "column_sizes", "split_offsets", "partition"):
            assert mine.get(key) == other.get(key)
        for key in MAPS[1:]:
            # pyiceberg counts values in lists and maps, and has no bounds in structs. It takes NaN for a bound, and the
            # sign of a zero from the footer.
            odd = nested | ({3, 4} if "bounds" in key else set())
            left, right = ({k: v for k, v in entry[key].items() if k not in odd} for entry in (mine, other))
            assert left == right, key


# -- partitions and checks, on trees ----------------------------------------------------------------------------------


def new_table(
    spark: SparkSession,
    folder: Path,
    spec: PartitionSpec,
    *,
    schema: Schema = SCHEMA,
    version: int = 4,
    **properties: str,
) -> sm.Table:
    catalog = sm.load_catalog("added", type="hadoop", warehouse=str(folder / "w"))
    catalog.create_namespace("db")
    return catalog.create_table("db.t", schema, spec, format_version=version, properties=properties, spark=spark)


def write(path: Path, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if path.suffix == ".orc":
        orc.write_table(table, path)
    else:
        pq.write_table(table, path, row_group_size=2)
    return str(path)


def days(*texts: str | None) -> pa.Array:
    return pa.array([None if text is None else date.fromisoformat(text) for text in texts])


def test_partitions_by_folders_and_by_bounds(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, SPEC)
    ids = pa.array([1, 2, 3], pa.int64())
    in_folder = [
        write(
            tmp_path / "in" / "name=a%20b+c" / "day_month=2026-01" / "1.parquet", id=ids, day=days(*["2026-01-05"] * 3)
        ),
        write(tmp_path / "in" / "name=__HIVE_DEFAULT_PARTITION__" / "2.parquet", id=ids, day=days(*["2026-02-05"] * 3)),
    ]
    by_bounds = [
        write(
            tmp_path / "b" / "3.parquet",
            id=ids,
            name=["x", "x", "x"],
            day=days("2026-03-01", "2026-03-31", "2026-03-02"),
        ),
        write(tmp_path / "b" / "4.parquet", id=ids, name=pa.nulls(3, pa.string()), day=pa.nulls(3, pa.date32())),
        write(
            tmp_path / "b" / "5.orc", id=ids, name=["é" * 20] * 3, day=days("2026-04-01", "2026-04-30", "2026-04-02")
        ),
        # The column is missing, so its values are null.
        write(tmp_path / "b" / "6.parquet", id=ids, day=days(*["1969-12-31"] * 3)),
    ]
    frame = spark.createDataFrame([(path, 1) for path in in_folder], "path STRING, size INT")
    table = table.add_files(frame).add_files(by_bounds, snapshot_properties={"job": "7"})
    assert not table.check().collect()
    rows = {Path(row.file_path).name: row for row in table.inspect.data_files().collect()}
    assert {name: tuple(row.partition) for name, row in rows.items()} == {
        "1.parquet": ("a b+c", 672), "2.parquet": (None, 673), "3.parquet": ("x", 674), "4.parquet": (None, None),
        "5.orc": ("é" * 20, 675), "6.parquet": (None, -1),
    }  # fmt: skip
    assert dict(rows["5.orc"].value_counts) == {1: 3, 2: 3, 3: 3}
    assert len(rows["3.parquet"].split_offsets) == 2
    rows_of_name = table.scan("name = 'a b+c'").to_df().collect()
    assert sorted((row.id, row.name) for row in rows_of_name) == [(1, "a b+c"), (2, "a b+c"), (3, "a b+c")]
    assert table.scan("day >= '2026-03-01' and id > 1").to_df().count() == 4
    assert table.current_snapshot().summary["job"] == "7"
    mapping = json.loads(table.properties["schema.name-mapping.default"])
    assert [entry["names"] for entry in mapping] == [["id"], ["name"], ["day"], ["price"]]


@pytest.mark.parametrize("folder", ["first+name=Ann", "first%20name=Ann", "first name=Ann"])
def test_a_folder_of_a_field_with_a_space(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    table = new_table(spark, tmp_path, PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "first name")))
    table = table.add_files([write(tmp_path / folder / "1.parquet", id=pa.array([1], pa.int64()))])
    assert [tuple(row.partition) for row in table.inspect.data_files().collect()] == [("Ann",)]


def test_files_with_field_ids_need_no_name_mapping(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, PartitionSpec()).append(spark.sql("SELECT 1L id, 'a' name"))
    (path,) = [row.file_path for row in table.inspect.data_files().collect()]
    other = new_table(spark, tmp_path / "other", PartitionSpec())
    other = other.add_files([path], check_other_tables=False)
    assert "schema.name-mapping.default" not in other.properties
    assert [tuple(row) for row in other.scan().to_df().collect()] == [(1, "a", None, None)]
    ours, theirs = described(other)[0], described(table)[0]
    differing = {key for key in ours if ours[key] != theirs[key]}
    # Footers do not count NaNs.
    assert differing <= {"nan_value_counts", "first_row_id"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"id": pa.array([1], pa.int64()), "name": pa.array([1])},
             "type of column name is 'long': the table has type string (field id 2)"),
    "zone": ({"id": pa.array([1], pa.int64()), "day": pa.array([1], pa.timestamp("us"))},
             "type of column day is 'timestamp': the table has type date (field id 3)"),
    "scale": ({"id": pa.array([1], pa.int64()), "price": pa.array([None], pa.decimal128(9, 3))},
              "type of column price is 'decimal(9, 3)': the table has type decimal(9, 2) (field id 4)"),
    "unknown": ({"id": pa.array([1], pa.int64()), "nope": pa.array([1])},
                "column nope of type long is not in the table"),
    "missing": ({"name": ["a"]}, "the file lacks this required column (field id 1), which has no default"),
    "null": ({"id": pa.array([1, None], pa.int64())}, "column id is required, and has nulls in 1 rows"),
    "mixed": ({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]},
              "rows are of several partitions: name is identity of column name, whose values are from 'a' to 'b'"),
    "some": ({"id": pa.array([1, 2], pa.int64()), "name": ["a", None]},
             "rows are of several partitions of name: 1 of 2 values of column name are null"),
    "month": ({"id": pa.array([1, 2], pa.int64()), "name": ["a", "a"], "day": days("2026-01-31", "2026-02-01")},
              "rows are of several partitions: day_month is month of column day"),
    "name=b/folder": ({"id": pa.array([1], pa.int64()), "name": ["a"]},
                      "partition field name is 'b' according to the file's folder, but 'a' in its rows"),
    "day_month=x/folder": ({"id": pa.array([1], pa.int64())}, "folder day_month=x: can't be parsed as int"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "orc"] if SOAK else ["parquet"])
def test_files_that_do_not_fit(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Each error names the file; for several files, the first one."""
    table = new_table(spark, tmp_path, SPEC)
    good = write(tmp_path / f"good.{kind}", id=pa.array([1], pa.int64()), name=["a"])
    for name, (columns, problem) in WRONG.items():
        path = write(tmp_path / f"{name}.{kind}", **columns)
        with pytest.raises(sm.ValidationError, match=rf"{name}.{kind}") as caught:
            table.add_files([good, path])
        assert str(caught.value).startswith(path), name
        assert problem in str(caught.value) or kind == "orc", name
    narrow = json.dumps([{"field-id": 1, "names": ["id"]}])
    with pytest.raises(sm.ValidationError, match="column name of type string is not in the table's name mapping"):
        new_table(spark, tmp_path / "narrow", SPEC, **{"schema.name-mapping.default": narrow}).add_files([good])
    with pytest.raises(sm.NotFoundError, match=r"nothing.parquet: there is no such file"):
        table.add_files([good, str(tmp_path / "nothing.parquet")])
    (tmp_path / f"torn.{kind}").write_bytes(b"PAR1 torn")
    with pytest.raises(sm.ValidationError, match="torn"):
        table.add_files([str(tmp_path / f"torn.{kind}")])
    assert table.refresh().current_snapshot() is None
    assert "schema.name-mapping.default" not in table.refresh().properties


def test_duplicates(spark: SparkSession, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.parquet", id=pa.array([1], pa.int64()), name=["a"]) for number in range(3)]
    table = new_table(spark, tmp_path, SPEC)
    with pytest.raises(sm.ValidationError, match=r"/1.parquet is given twice"):
        table.add_files([paths[0], paths[1], f"file://{paths[1]}"])
    table = table.add_files(paths[:2])
    with pytest.raises(sm.ValidationError, match=r"0.parquet, .*1.parquet are in the table already"):
        table.add_files([f"file:{path}" for path in paths])
    for folder in (f"{tmp_path}/", f"{tmp_path}/.", f"FILE://host{tmp_path}", f"{tmp_path}/x/.."):
        with pytest.raises(sm.ValidationError, match=r"0.parquet is in the table already"):
            table.add_files([f"{folder}/0.parquet"])
    frame = spark.createDataFrame([(paths[2],), (f"{tmp_path}//2.parquet",)], "path STRING")
    with pytest.raises(sm.ValidationError, match=r"2.parquet is given twice"):
        table.add_files(frame)
    with pytest.raises(sm.CommitConflictError, match="is in the table already"):
        table.add_files(paths, check_duplicate_files=False)
    with table.transaction() as tx:
        tx.add_files(paths[2:]).append(spark.sql("SELECT 5L id"))
    assert table.refresh().scan().count() == 4
    for wrong, problem in (
        (paths[0], "they are a list of paths"),
        ([1], "a path of the files to add is 1: expected a string"),
        (spark.range(1), "column id of the files to add is bigint, not string"),
        (spark.sql("SELECT 'a' a, 'b' b"), "expected file_path or path, or a single column"),
    ):
        with pytest.raises(sm.ValidationError, match=problem):
            table.add_files(wrong)


def test_a_void_field_of_a_dropped_column(spark: SparkSession, tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = new_table(spark, tmp_path, spec, version=1).append(spark.sql("SELECT 1L id, 'a' name"))
    table.update_spec().remove_field("name").commit()
    table.refresh().update_schema().delete_column("name").commit()
    path = write(tmp_path / "name=b" / "1.parquet", id=pa.array([7], pa.int64()))
    table = table.refresh().add_files([path])
    assert sorted(row.id for row in table.scan().to_df().collect()) == [1, 7]


@pytest.mark.parametrize(("version", "direct_files"), [(1, ""), (2, ""), (3, ""), (4, "100"), (4, "0")])
def test_duplicates_at_the_commit(spark: SparkSession, tmp_path: Path, version: int, direct_files: str) -> None:
    """A commit refuses paths that other commits, or earlier changes of its transaction, have added."""
    paths = [write(tmp_path / f"{number}.parquet", id=pa.array([1], pa.int64()), name=["a"]) for number in range(3)]
    properties = {"write.tree.direct-files": direct_files} if direct_files else {}
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = new_table(spark, tmp_path, spec, version=version, **properties).add_files(paths[:1])
    with pytest.raises(sm.CommitConflictError, match=r"/0\.parquet is in the table already"):
        table.add_files(paths, check_duplicate_files=False)
    late = table.transaction().add_files(paths[1:2])
    table.add_files(paths[1:2])
    with pytest.raises(sm.CommitConflictError, match=r"/1\.parquet is in the table already"):
        late.commit()
    twice = table.refresh().transaction().add_files(paths[2:]).add_files(paths[2:])
    with pytest.raises(sm.CommitConflictError, match=r"/2\.parquet is in the table already"):
        twice.commit()
    assert table.refresh().scan().count() == 2


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("others", ["spelling", "partition spec"])
def test_others_add_the_same_file(interpreted: SparkSession, tmp_path: Path, version: int, others: str) -> None:
    path = write(tmp_path / "1.parquet", id=pa.array([1], pa.int64()), name=["a"])
    table = new_table(interpreted, tmp_path, SPEC, version=version, **{"write.tree.direct-files": "0"})
    stale, unchecked = (table.transaction().add_files([path], check_duplicate_files=check) for check in (True, False))
    if others == "partition spec":
        table.update_spec().add_field("id", "bucket[2]").commit()
    table = table.refresh().add_files([f"file://{path}" if others == "spelling" else path])
    with pytest.raises(sm.CommitConflictError, match=r"/1\.parquet is in the table already"):
        stale.commit()
    assert table.refresh().metadata_location == table.metadata_location
    assert unchecked.commit().scan().count_files() == 2


def test_many_files(spark: SparkSession, tmp_path: Path) -> None:
    """There are more files than a commit keeps on the driver. No job collects them."""
    paths = [
        write(tmp_path / f"name={'abc'[number % 3]}" / f"{number}.parquet", id=pa.array([number], pa.int64()))
        for number in range(300 if not SOAK else 3_000)
    ]
    table = new_table(spark, tmp_path, SPEC, **{"write.tree.direct-files": "100"}).add_files(paths)
    assert not table.check().collect()
    assert table.scan("id >= 100 and name = 'b'").count_files() == sum(1 for n in range(100, len(paths)) if n % 3 == 1)
    assert table.scan().to_df().selectExpr("sum(id)").first()[0] == sum(range(len(paths)))
