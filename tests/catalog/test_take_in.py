"""Tables of the files in a folder: of several writers and formats, read by sparkmeta, Spark and Iceberg's library."""

from __future__ import annotations

import json
import math
import uuid
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, StringType
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import (
    NoSuchNamespaceError,
    NotFoundError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
)
from tests.catalog.silent_servers import silent_server
from tests.command_line import invoke
from tests.conftest import configured
from tests.rows.comparison import row_texts, typed_columns
from tests.s3 import BUCKET, FILE_IOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog
    from tests.s3 import S3Server

BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}
ROWS = """
    SELECT id, CAST(id AS INT) AS i, concat('v', id) AS v, CAST(id AS DECIMAL(9, 2)) AS price,
        IF(id = 4, NULL, named_struct('x', id, 'l', array(id, NULL))) AS s, map('k', named_struct('y', id)) AS m,
        TIMESTAMP_NTZ'2026-01-01 10:00:00.5' AS ntz,
        IF(id = 3, NULL, concat('x y/%=ü+', id % 2)) AS p, DATE'2026-01-01' + CAST(id % 2 AS INT) AS d,
        CAST(id % 3 AS INT) AS n
    FROM range(10)
"""


@pytest.fixture(params=["driver", "tasks"])
def in_each_place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Have the driver list and open few files, and then tasks."""
    with configured(spark, BY_TASKS if request.param == "tasks" else {}):
        yield


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return sm.load_catalog("taking", type="hadoop", warehouse=str(tmp_path / "warehouse"))


def sql_catalog(folder: Path) -> Catalog:
    folder.mkdir(exist_ok=True)
    catalog = sm.load_catalog("sql", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/w")
    catalog.create_namespace("db")
    return catalog


# -- Writers ----------------------------------------------------------------------------------------------------------


def by_spark(spark: SparkSession, folder: Path, file_format: str = "parquet") -> None:
    rows = spark.sql(ROWS).drop(*(["ntz"] if file_format == "orc" else []))
    rows.repartition(2).write.partitionBy("p", "d", "n").format(file_format).save(str(folder))


def by_pandas(_: SparkSession, folder: Path) -> None:
    frame = pd.DataFrame({"id": range(6), "v": list("abcdef"), "p": ["x y", "%/=ü", None] * 2, "n": [1, 2**40] * 3})
    frame.to_parquet(folder, partition_cols=["p", "n"])


def by_duckdb(_: SparkSession, folder: Path) -> None:
    rows = "SELECT i AS id, {'a': i, 'b': [i]} AS s, 'x y/%=ü' || i % 2 AS p, DATE '2026-01-01' + i::INT AS d"
    duckdb.sql(f"COPY ({rows} FROM range(5) t(i)) TO '{folder}' (FORMAT PARQUET, PARTITION_BY (p, d))")


WRITERS: dict[str, Callable[[SparkSession, Path], None]] = {
    "Spark": by_spark,
    "Spark, ORC": lambda spark, folder: by_spark(spark, folder, "orc"),
    "pandas": by_pandas,
    "DuckDB": by_duckdb,
}


@pytest.mark.java
@pytest.mark.parametrize("writer", WRITERS)
def test_folders_of_each_writer(
    spark: SparkSession, tmp_path: Path, java_warehouse: str, writer: str, in_each_place: None
) -> None:
    """Rows and types are the ones that Spark reads from the folder, for sparkmeta and for Java."""
    folder, name = tmp_path / "source", f"t{uuid.uuid4().hex[:8]}"
    WRITERS[writer](spark, folder)
    source = spark.read.format("orc" if "ORC" in writer else "parquet").load(str(folder))
    if not writer.startswith("Spark"):
        # Spark reads other writers' folders as Latin-1.
        source = source.withColumn("p", F.expr("decode(encode(p, 'ISO-8859-1'), 'UTF-8')"))
    catalog = sm.load_catalog("java", type="hadoop", warehouse=java_warehouse)
    plan = catalog.snapshot_table(str(folder), f"taken.{name}", spark=spark)
    assert not catalog.table_exists(f"taken.{name}"), "nothing changes before the commit"
    assert plan.summary().records == source.count()
    files = sorted(row.file_path for row in plan.to_df().collect())
    assert files == sorted(str(path) for path in folder.rglob("part*") if path.is_file()) or writer != "Spark"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    table = plan.commit()
    assert plan.commit() is table
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not table.check().collect()
    assert typed_columns(table.scan().to_df()) == typed_columns(source)
    assert row_texts(table.scan().to_df()) == row_texts(source)
    by_java = spark.table(f"java.taken.{name}")
    assert row_texts(by_java) == row_texts(source)
    assert {"snapshot": "true", "gc.enabled": "false"}.items() <= table.properties.items()

    spark.sql(f"INSERT INTO java.taken.{name} SELECT * FROM java.taken.{name} LIMIT 1")
    assert table.refresh().scan().count() == source.count() + 1
    before_rewrite = row_texts(spark.table(f"java.taken.{name}"))
    spark.sql(f"CALL java.system.rewrite_data_files(`table` => 'taken.{name}', options => map('rewrite-all', 'true'))")
    assert row_texts(table.refresh().scan().to_df()) == before_rewrite


@pytest.mark.java
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_format_versions(spark: SparkSession, tmp_path: Path, java_warehouse: str, version: int) -> None:
    by_spark(spark, tmp_path / "source")
    catalog, name = sm.load_catalog("java", type="hadoop", warehouse=java_warehouse), f"t{uuid.uuid4().hex[:8]}"
    plan = catalog.snapshot_table(str(tmp_path / "source"), f"taken.{name}", format_version=version, spark=spark)
    table, source = plan.commit(), spark.read.parquet(str(tmp_path / "source"))
    assert (table.metadata.format_version, len(table.metadata.snapshots)) == (version, 1)
    assert not table.check().collect()
    assert row_texts(table.scan().to_df()) == row_texts(source)
    assert row_texts(table.scan("d = '2026-01-02' and n = 0").to_df()) == row_texts(
        source.where("d = '2026-01-02' AND n = 0")
    )
    if version < 4:
        assert row_texts(spark.table(f"java.taken.{name}")) == row_texts(source)


def write_avro(path: Path, fields: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema({"type": "record", "name": "r", "fields": fields}), rows)


@pytest.mark.java
def test_formats_in_one_folder(spark: SparkSession, tmp_path: Path, java_warehouse: str, in_each_place: None) -> None:
    """Columns are merged by name: promoted, missing and new ones, also in structs. Hidden and empty files are none."""
    folder = tmp_path / "source"
    write_avro(
        folder / "k=1" / "1.avro",
        [
            {"name": "id", "type": "int"},
            {"name": "s", "type": {"type": "record", "name": "s", "fields": [{"name": "a", "type": ["null", "int"]}]}},
        ],
        [{"id": 1, "s": {"a": 7}}],
    )
    (folder / "k=2").mkdir()
    longs = pa.table({"id": pa.array([2], pa.int64()), "f": pa.array([0.5], pa.float32())})
    pq.write_table(longs, folder / "k=2" / "2.parquet")
    struct = pa.array([{"b": "x", "a": 8}], pa.struct([("b", pa.string()), ("a", pa.int64())]))
    doubles = pa.table({"f": pa.array([1.5]), "s": struct, "id": pa.array([3], pa.int32())})
    orc.write_table(doubles, str(folder / "k=2" / "3.orc"))
    decimals = [pa.array([Decimal("1.50")], pa.decimal128(digits, 2)) for digits in (5, 9)]
    for number, values in enumerate(decimals, 4):
        pq.write_table(pa.table({"d": values}), folder / "k=2" / f"{number}.parquet")
    pq.write_table(longs.slice(0, 0), folder / "k=2" / "none.parquet")
    (folder / "k=2" / "empty.parquet").write_bytes(b"")
    for hidden in (
        "_SUCCESS",
        "k=2/4.parquet._COPYING_",
        ".3.orc.crc",
        "_temporary/0/1.parquet",
        "k=2/_1.parquet",
        ".hidden/k=9/1.parquet",
    ):
        (folder / hidden).parent.mkdir(parents=True, exist_ok=True)
        (folder / hidden).write_text("x")
    catalog, name = sm.load_catalog("java", type="hadoop", warehouse=java_warehouse), f"t{uuid.uuid4().hex[:8]}"
    plan = catalog.snapshot_table(f"file://{folder}/", f"taken.{name}", spark=spark)
    assert plan.summary().files == {"AVRO": 1, "ORC": 1, "PARQUET": 4}
    table = plan.commit()
    assert [(field.name, str(field.field_type), field.required) for field in table.schema().fields] == [
        ("id", "long", False),
        ("s", "struct<6: a: optional long, 7: b: optional string>", False),
        ("f", "double", False),
        ("d", "decimal(9, 2)", False),
        ("k", "int", False),
    ]
    rows = [
        (1, (7, None), None, None, 1),
        (2, None, 0.5, None, 2),
        (3, (8, "x"), 1.5, None, 2),
        (None, None, None, Decimal("1.50"), 2),
        (None, None, None, Decimal("1.50"), 2),
    ]
    for frame in (table.scan().to_df(), spark.table(f"java.taken.{name}")):
        assert sorted((tuple(row) for row in frame.collect()), key=repr) == sorted(rows, key=repr)


FOLDERS = {
    "int": (["1", "007", "-5"], IntegerType(), [1, 7, -5]),
    "long": (["1", "2147483648"], LongType(), [1, 2**31]),
    "least": (["-2147483648"], IntegerType(), [-(2**31)]),
    "double": (["1", "1.5", "2e3", ".5", "1."], DoubleType(), [1.0, 1.5, 2000.0, 0.5, 1.0]),
    "date": (["2026-01-31", "__HIVE_DEFAULT_PARTITION__"], DateType(), [date(2026, 1, 31), None]),
    "no date": (["2026-02-31"], StringType(), ["2026-02-31"]),
    "mixed": (["1", "2026-01-31"], StringType(), ["1", "2026-01-31"]),
    "text": (["null", "a%20b+c", ""], StringType(), ["null", "a b+c", ""]),
    "nulls": (["__HIVE_DEFAULT_PARTITION__"], StringType(), [None]),
    "time": (["2026-01-31 10%3A00%3A00"], StringType(), ["2026-01-31 10:00:00"]),
    "large": (["9223372036854775808", "1" * 30], StringType(), ["9223372036854775808", "1" * 30]),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_types_of_folders(spark: SparkSession, tmp_path: Path, catalog: Catalog, case: str) -> None:
    names, kind, values = FOLDERS[case]
    for number, name in enumerate(names):
        file = tmp_path / "source" / f"k={name}" / "1.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), file)
    table = catalog.snapshot_table(str(tmp_path / "source"), "db.t", spark=spark).commit()
    assert table.schema().find_type("k") == kind
    assert [row.k for row in table.scan().to_df().orderBy("id").collect()] == values


def test_folders_above_the_source_do_not_count(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    folder = tmp_path / "id=7" / "source"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"name": ["a"]}), folder / "x=1.parquet")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = catalog.snapshot_table(str(folder), "db.t", schema=schema, spark=spark).commit()
    assert table.spec().is_unpartitioned()
    assert table.scan().to_df().collect() == [(None, "a")]


def test_chosen_schema_and_partitions(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    """A schema says what folders mean; other partition fields follow from the rows."""
    for day in ("2026-01-01", "2026-02-01"):
        file = tmp_path / "source" / f"at={day} 10%3A00%3A00" / "1.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"day": [date.fromisoformat(day)]}), file)
    schema = pa.schema([("day", pa.date32()), ("at", pa.timestamp("us"))])
    plan = catalog.snapshot_table(
        str(tmp_path / "source"), "db.t", schema=schema, partition_by=["at", "month(day)"], spark=spark
    )
    table = plan.commit()
    assert sorted(row.partition.day_month for row in plan.to_df().collect()) == [56 * 12, 56 * 12 + 1]
    assert sorted(str(row.at) for row in table.scan().to_df().collect()) == [
        "2026-01-01 10:00:00",
        "2026-02-01 10:00:00",
    ]
    assert table.scan("day < '2026-02-01'").count_files() == 1


def test_instants_of_int96(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    folder = str(tmp_path / "source")
    with configured(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
        spark.sql("SELECT TIMESTAMP'2026-01-01 10:00:00.5' ts, array(TIMESTAMP'2026-01-01 10:00:00') l").write.parquet(
            folder
        )
    table = catalog.snapshot_table(folder, "db.t", spark=spark).commit()
    assert str(table.schema().find_type("ts")) == "timestamptz"
    assert row_texts(table.scan().to_df()) == row_texts(spark.read.parquet(folder))


# -- Catalogs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sql", "rest"])
def any_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Catalog, str]:
    """A catalog that locates tables, and a namespace in it."""
    if request.param == "sql":
        return sql_catalog(tmp_path / "sql"), "db"
    catalog = sm.load_catalog("rest", type="rest", uri=request.getfixturevalue("rest_uri"))
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    return catalog, namespace


def test_catalogs(spark: SparkSession, tmp_path: Path, any_catalog: tuple[Catalog, str]) -> None:
    """A snapshot leaves the files of its source alone; a migrated table deletes them."""
    catalog, namespace = any_catalog
    by_spark(spark, tmp_path / "source")
    source = spark.read.parquet(str(tmp_path / "source"))
    expected = row_texts(source)
    plan = catalog.snapshot_table(
        f"file://{tmp_path}/source",
        f"{namespace}.t",
        location=f"file://{tmp_path}/copy",
        properties={"a": "b"},
        spark=spark,
    )
    assert not catalog.table_exists(f"{namespace}.t")
    assert not (tmp_path / "copy").exists()
    table = plan.commit()
    assert (table.metadata.location, table.properties["a"]) == (f"file://{tmp_path}/copy", "b")
    assert len(table.metadata.snapshots) == 1
    assert row_texts(catalog.load_table(f"{namespace}.t", spark).scan().to_df()) == expected
    with pytest.raises(ValidationError, match=r"gc\.enabled"):
        table.maintenance.expire_snapshots()
    with pytest.raises(TableAlreadyExistsError, match="t: the table already exists"):
        catalog.migrate_table(f"file://{tmp_path}/source", f"{namespace}.t", spark=spark)

    table = catalog.migrate_table(f"file://{tmp_path}/source", f"{namespace}.m", spark=spark).commit()
    assert table.metadata.location == f"file://{tmp_path}/source"
    assert {"migrated": "true"}.items() <= table.properties.items()
    assert row_texts(table.scan().to_df()) == expected
    table = table.append(spark.sql(ROWS).limit(1)).delete("n = 0")
    assert row_texts(table.scan().to_df().where("n = 0")) == []
    assert not table.check().collect()


def test_a_table_that_others_create_meanwhile(
    spark: SparkSession, tmp_path: Path, any_catalog: tuple[Catalog, str]
) -> None:
    """The commit fails, and deletes only its own files."""
    catalog, namespace = any_catalog
    by_spark(spark, tmp_path / "source")
    location = f"file://{tmp_path}/copy"
    plans = [
        catalog.snapshot_table(f"{tmp_path}/source", f"{namespace}.t", location=location, spark=spark) for _ in range(2)
    ]
    table = plans[0].commit()
    files = {*(tmp_path / "copy").rglob("*")}
    with pytest.raises(TableAlreadyExistsError, match="t"):
        plans[1].commit()
    assert {*(tmp_path / "copy").rglob("*")} == files
    assert not table.refresh().check().collect()


def test_migration_in_a_warehouse(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    """A catalog of folders takes a source at the table's own place."""
    by_spark(spark, tmp_path / "warehouse" / "db" / "t")
    expected = row_texts(spark.read.parquet(str(tmp_path / "warehouse" / "db" / "t")))
    with pytest.raises(UnsupportedError, match=r"other: the folder of the table is .*/db/other: it can't be .*/db/t"):
        catalog.migrate_table(f"{tmp_path}/warehouse/db/t", "db.other", spark=spark)
    table = catalog.migrate_table(f"file:{tmp_path}/warehouse/db/t", "db.t", spark=spark).commit()
    assert row_texts(table.scan().to_df()) == expected
    with pytest.raises(UnsupportedError, match="belongs to an Iceberg table, whose current files"):
        catalog.snapshot_table(f"{tmp_path}/warehouse/db/t", "db.again", spark=spark)


# -- Errors -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_migrated_once(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "source" / "1.parquet", id=[1])
    catalog, source = sql_catalog(tmp_path / "sql"), f"file://{tmp_path}/source"
    plans = [catalog.migrate_table(source, f"db.t{number}", spark=spark) for number in range(2)]
    plans[0].commit()
    problem = f"source: the folder {source} is an Iceberg table already, which may own the files"
    with pytest.raises(UnsupportedError, match=problem):
        plans[1].commit()
    with pytest.raises(UnsupportedError, match=problem):
        catalog.migrate_table(source, "db.again", spark=spark)
    write(tmp_path / "source" / "below" / "1.parquet", id=[1])
    with pytest.raises(UnsupportedError, match=f"below: {problem[len('source: ') :]}"):
        catalog.migrate_table(f"{source}/below", "db.below", spark=spark)
    assert not catalog.table_exists("db.t1")


def test_properties_of_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    """A table never deletes files of its source, and writes none among them."""
    write(tmp_path / "source" / "1.parquet", id=[1])
    catalog, source = sql_catalog(tmp_path / "sql"), f"file://{tmp_path}/source"
    role = {"gc.enabled": "true", "snapshot": "false"}
    plan = catalog.snapshot_table(source, "db.t", properties=role, spark=spark)
    assert plan.table.properties["gc.enabled"] == "false"
    assert plan.table.properties["snapshot"] == "true"
    for name in ("write.data.path", "write.metadata.path", "write.object-storage.path"):
        with pytest.raises(ValidationError, match=f"t: {name} is {tmp_path}/source/new, inside the folder {source} of"):
            catalog.snapshot_table(source, "db.t", properties={name: f"{tmp_path}/source/new"}, spark=spark)


def test_the_rows_are_on_main(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path / "source" / "1.parquet", id=[1])
    for name, setting in (("db.a", "spark.wap.id"), ("db.b", "spark.wap.branch")):
        with configured(spark, {setting: "audit"}):
            plan = catalog.snapshot_table(
                str(tmp_path / "source"), name, properties={"write.wap.enabled": "true"}, spark=spark
            )
            assert [*plan.commit().metadata.refs] == ["main"]


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def refused(catalog: Catalog, folder: Path, spark: SparkSession, **options: Any) -> str:
    with pytest.raises(ValidationError) as info:
        catalog.snapshot_table(str(folder), "db.t", spark=spark, **options).summary()
    assert not catalog.table_exists("db.t")
    return str(info.value)


def test_files_that_contradict_each_other(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, in_each_place: None
) -> None:
    write(tmp_path / "a" / "1.parquet", s=[{"x": 1}])
    write(tmp_path / "a" / "2.parquet", s=[{"x": "text"}])
    problem = "column s.x is of the type string, but of long in other files"
    assert f"{tmp_path}/a/2.parquet: {problem}" in refused(catalog, tmp_path / "a", spark)

    write(tmp_path / "b" / "k=1" / "1.parquet", id=[1])
    write(tmp_path / "b" / "2.parquet", id=[1])
    assert "the folders above them differ: none and k=..." in refused(catalog, tmp_path / "b", spark)

    write(tmp_path / "c" / "k=1" / "1.parquet", id=[1], k=[2])
    problem = "partition field k is 1 according to the file's folder, but 2 in its rows"
    assert f"{tmp_path}/c/k=1/1.parquet: {problem}" in refused(catalog, tmp_path / "c", spark)

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "notes").write_text("text")
    assert f"{tmp_path}/d/notes: the file is not Parquet, ORC or Avro" in refused(catalog, tmp_path / "d", spark)

    write(tmp_path / "e" / "1.parquet", u=pa.array([1], pa.uint64()))
    spark.sql("SELECT parse_json('1') AS v").write.parquet(str(tmp_path / "v"))
    assert "column v: variants can't be taken in" in refused(catalog, tmp_path / "v", spark)
    spark.sql("SELECT array(TIMESTAMP_NTZ'2026-01-01 10:00:00') AS l").write.orc(str(tmp_path / "ntz"))
    assert "column element: Iceberg has no type for timestamp_ntz in ORC" in refused(catalog, tmp_path / "ntz", spark)
    assert "column u: Iceberg has no type for uint64" in refused(catalog, tmp_path / "e", spark)

    schema = pa.schema([("id", pa.int64())])
    assert "a/1.parquet" in refused(catalog, tmp_path / "a", spark, schema=schema)
    assert "no column 'k' in the table" in refused(catalog, tmp_path / "c", spark, schema=schema)
    assert not (tmp_path / "warehouse").exists(), "nothing is written"


def test_folders_that_are_no_sources(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        with pytest.raises(NotFoundError, match=f"/{folder}: there is no data file below it"):
            catalog.snapshot_table(f"{tmp_path}/{folder}", "db.t", spark=spark)
    for name, kind in (("_spark_metadata/0", "streaming output of Spark"), (".hoodie/x", "a Hudi table")):
        write(tmp_path / kind / "1.parquet", id=[1])
        (tmp_path / kind / name).parent.mkdir()
        (tmp_path / kind / name).write_text("{}")
        with pytest.raises(UnsupportedError, match=f"/{name} belongs to {kind}, whose current files are not all"):
            catalog.snapshot_table(f"{tmp_path}/{kind}", "db.t", spark=spark)
    write(tmp_path / "source" / "1.parquet", id=[1])
    tables = sql_catalog(tmp_path / "sql")
    for location in ("source", "source/t", ""):
        with pytest.raises(
            ValidationError, match=f"location is {tmp_path}/{location}.*neither may be inside the other"
        ):
            tables.snapshot_table(f"file:{tmp_path}/source", "db.t", location=f"{tmp_path}/{location}", spark=spark)
    with pytest.raises(ValidationError, match="source is '': expected a name"):
        catalog.snapshot_table("", "db.t", spark=spark)
    with pytest.raises(NoSuchNamespaceError, match="none"):
        tables.snapshot_table(str(tmp_path / "source"), "none.t", spark=spark)


def test_folders_in_tables_of_other_formats(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    for log, kind in (("_delta_log", "a Delta table"), (".hoodie", "a Hudi table"), ("_spark_metadata", "streaming")):
        folder = tmp_path / f"of{log}"
        write(folder / "x" / "k=1" / "1.parquet", id=[1])
        (folder / log).mkdir()
        (folder / log / "0").write_text("{}")
        with pytest.raises(UnsupportedError, match=f"k=1: it is in the folder {folder} of {kind}"):
            catalog.snapshot_table(f"{folder}/x/k=1", "db.t", spark=spark)


def test_null_folders_of_required_columns(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path / "source" / "k=__HIVE_DEFAULT_PARTITION__" / "1.parquet", id=[1])
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("k", pa.int32(), nullable=False)])
    problem = refused(catalog, tmp_path / "source", spark, schema=schema)
    assert "/1.parquet: folder k=__HIVE_DEFAULT_PARTITION__ is null, but column k is required" in problem


def test_names_of_columns(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    """Names that differ only in case are an error, unless the session distinguishes them, and so are equal ones."""
    write(tmp_path / "files" / "1.parquet", s=[{"id": 1}])
    write(tmp_path / "files" / "2.parquet", s=[{"ID": 2}])
    problem = "the names of columns s.id and s.ID differ only in case: spark.sql.caseSensitive=true permits it"
    assert f"{tmp_path}/files/2.parquet: {problem}" in refused(catalog, tmp_path / "files", spark)
    write(tmp_path / "folder" / "k=5" / "1.parquet", K=[1])
    assert "1.parquet: the names of columns K and k differ" in refused(catalog, tmp_path / "folder", spark)
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        plan = catalog.snapshot_table(str(tmp_path / "folder"), "db.t", spark=spark)
        assert [column.name for column in plan.table.schema().fields] == ["K", "k"]

    write(tmp_path / "twice" / "a=1" / "a=2" / "1.parquet", id=[1])
    assert "a=1/a=2/1.parquet: two columns have the name a" in refused(catalog, tmp_path / "twice", spark)
    write(tmp_path / "none" / "=1" / "1.parquet", id=[1])
    assert "/=1/1.parquet: a folder above it has no name before the =" in refused(catalog, tmp_path / "none", spark)
    write(tmp_path / "dot" / "1.parquet", **{"a.b": [1], "a": [{"b": 1}]})
    assert "/dot/1.parquet: Invalid schema, multiple fields for name a.b" in refused(catalog, tmp_path / "dot", spark)


def test_nan_is_a_partition(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path / "source" / "f=NaN" / "1.parquet", id=[1])
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64())])
    table = catalog.snapshot_table(str(tmp_path / "source"), "db.t", schema=schema, spark=spark).commit()
    assert math.isnan(table.scan().to_df().first().f)


# -- The command line -------------------------------------------------------------------------------------------------


def test_commands(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "source" / "k=1" / "1.parquet", id=[1, 2])
    database = f"sqlite:///{tmp_path}/sql/catalog.db"
    catalog = sql_catalog(tmp_path / "sql")
    in_catalog = ["--catalog", "sql", "--property", "type=sql", "--property", f"uri={database}"]
    command = ["snapshot-table", str(tmp_path / "source"), "db.t", *in_catalog, "--location", str(tmp_path / "t")]
    result = invoke([*command, "--files", "--columns", "record_count", "-o", "json"])
    assert (result.exit_code, result.stdout) == (0, '{"record_count":2}\n'), result.output
    result = invoke(command)
    assert result.stdout.splitlines()[1:] == [
        "  PARQUET: 1 files",
        f"  2 columns, partitioned by k, at {tmp_path}/t",
        "nothing is changed without --commit",
    ]
    assert not catalog.table_exists("db.t")
    options = ["--partition-by", "k", "--partition-by", "truncate(10, id)", "--set", "a=b", "--format-version", "3"]
    result = invoke([*command, *options, "--commit"])
    table = catalog.load_table("db.t", spark)
    assert result.stdout.splitlines()[-1] == f"written: {table.metadata_location}"
    assert (table.metadata.format_version, table.properties["a"], table.scan().count()) == (3, "b", 2)
    assert [spec_field.name for spec_field in table.spec().fields] == ["k", "id_trunc_10"]
    result = invoke(["migrate-table", str(tmp_path / "source"), "db.m", *in_catalog, "--commit", "-o", "json"])
    migrated = catalog.load_table("db.m", spark)
    assert json.loads(result.stdout)["committed"] == {"metadata_location": migrated.metadata_location}
    assert migrated.metadata.location == str(tmp_path / "source")
    result = invoke(["migrate-table", str(tmp_path / "none"), "db.n", *in_catalog])
    assert result.exit_code == 1
    assert "/none: there is no data file below it" in result.stderr


# -- Stores and servers -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("kind", FILE_IOS)
def test_a_folder_on_s3(spark: SparkSession, s3: S3Server, tmp_path: Path, kind: str) -> None:
    root = f"s3://{BUCKET}/take-{uuid.uuid4()}"
    properties = s3.io(kind).properties | {"py-io-impl": FILE_IOS[kind]}
    for number, name in enumerate(("k=a%20b+ü", "k=__HIVE_DEFAULT_PARTITION__", "_hidden")):
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [number]}), buffer)
        with s3.io(kind).new_output(f"{root}/source/{name}/1.parquet").create() as stream:
            stream.write(buffer.getvalue().to_pybytes())
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = sm.load_catalog("taking", type="sql", uri=uri, warehouse=f"{root}/w", **properties)
    catalog.create_namespace("db")
    table = catalog.snapshot_table(f"{root}/source", "db.t", spark=spark).commit()
    assert table.metadata.location.startswith(f"{root}/w")
    assert sorted(row.file_path for row in table.inspect.data_files().collect()) == [
        f"{root}/source/k=__HIVE_DEFAULT_PARTITION__/1.parquet",
        f"{root}/source/k=a%20b+ü/1.parquet",
    ]
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [{"id": 0, "k": "a b+ü"}, {"id": 1, "k": None}]
    with pytest.raises(NotFoundError, match="/none: there is no data file below it"):
        catalog.snapshot_table(f"{root}/none", "db.n", spark=spark)


@pytest.mark.parametrize("server_kind", ["SQL", "REST"])
@pytest.mark.parametrize(
    ("is_done", "is_last"), [(True, False), (False, False), (False, True), (True, True)],
    ids=["lost answer", "lost", "down", "done and down"],
)  # fmt: skip
def test_a_lost_answer(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server_kind: str,
    is_done: bool,
    is_last: bool,
) -> None:
    """The outcome is found, or unknown: then nothing is deleted."""
    server = silent_server(server_kind, request, tmp_path, monkeypatch)
    catalog, namespace = sm.load_catalog("tests", **server.properties), f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    write(tmp_path / "source" / "1.parquet", id=[1])
    no_waits = {"commit.status-check.min-wait-ms": "0", "commit.retry.min-wait-ms": "0"}
    location, name = f"file://{tmp_path}/t", f"{namespace}.t"
    plan = catalog.snapshot_table(f"{tmp_path}/source", name, location=location, properties=no_waits, spark=spark)
    operations: Any = plan.table.operations
    server.break_down(SimpleNamespace(operations=operations.operations), is_done=is_done, is_last=is_last)
    if not is_last:
        assert plan.commit().scan().count() == 1
    else:
        with pytest.raises(sm.CommitStateUnknownError, match=r"may have been committed"):
            plan.commit()
        server.mend()
        assert catalog.table_exists(name) is is_done
        assert [*(tmp_path / "t" / "metadata").glob("*.avro")]
    if is_done or not is_last:
        assert not catalog.load_table(name, spark).check().collect()
