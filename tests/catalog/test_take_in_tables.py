"""Tables of the files of Spark's own tables, compared with Iceberg's procedure, and what they share afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.errors import NoSuchTableError, UnsupportedError, ValidationError
from tests.catalog.test_take_in import sql_catalog
from tests.conftest import configured
from tests.maintain.test_expire import soon
from tests.peers.file_maker import local_path
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog

COLUMNS = "id BIGINT, v STRING COMMENT 'a value', s STRUCT<x: INT>, p STRING, d DATE, b BOOLEAN, n DECIMAL(9, 2)"
VALUES = """
    (1, 'a', named_struct('x', 1), 'x y/%=ü+', DATE'2026-01-01', true, 1.5BD),
    (2, NULL, NULL, NULL, NULL, NULL, NULL),
    (3, 'c', named_struct('x', NULL), 'null', DATE'2026-02-01', false, -2.25BD),
    (4, 'd', named_struct('x', 4), 'null', DATE'2026-02-01', false, -2.25BD)
"""


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """The name of a table in Spark's own catalog."""
    table = f"source_{uuid.uuid4().hex[:8]}"
    yield table
    spark.sql(f"DROP TABLE IF EXISTS {table}")


@pytest.fixture
def catalog(java_warehouse: str) -> Catalog:
    return sm.load_catalog("java", type="hadoop", warehouse=java_warehouse)


def create(spark: SparkSession, name: str, folder: Path | None = None, file_format: str = "parquet") -> None:
    location = "" if folder is None else f"LOCATION 'file://{folder}'"
    spark.sql(
        f"CREATE TABLE {name} ({COLUMNS}) USING {file_format} PARTITIONED BY (p, d, b, n) {location} "
        "TBLPROPERTIES ('team' = 'them')"
    )
    spark.sql(f"INSERT INTO {name} VALUES {VALUES}")


def described(table: sm.Table) -> list[tuple[str, object, int]]:
    """Return the files of a table: name, partition and number of rows."""
    rows = table.inspect.data_files().select("file_path", "partition", "record_count").collect()
    return sorted((Path(local_path(path)).name, repr(partition), count) for path, partition, count in rows)


@pytest.mark.java
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("kind", ["external", "managed"])
def test_beside_icebergs_procedure(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, name: str, kind: str, file_format: str
) -> None:
    """Both tables have the same rows, files and partitions, also if partitions are elsewhere."""
    create(spark, name, tmp_path / "source" if kind == "external" else None, file_format)
    spark.sql(
        f"ALTER TABLE {name} ADD PARTITION (p = 'e', d = DATE'2026-03-03', b = true, n = 1BD) "
        f"LOCATION 'file://{tmp_path}/else where/p=wrong'"
    )
    spark.sql(f"INSERT INTO {name} VALUES (5, 'e', NULL, 'e', DATE'2026-03-03', true, 1BD)")
    if kind == "external":
        # A partition that the catalog does not know.
        spark.sql("SELECT 9L id").write.format(file_format).save(str(tmp_path / "source/p=x/d=2026-01-01/b=true/n=1"))
    source = spark.table(name)
    assert source.count() == 5
    plan = catalog.snapshot_table(f"spark_catalog.default.{name}", f"taken.{name}", spark=spark)
    assert str(plan.summary()).startswith(f"taken.{name}: 4 files of spark_catalog.default.{name} with 5 rows and ")
    table = plan.commit()
    assert not table.check().collect()
    assert typed_columns(table.scan().to_df()) == typed_columns(source)
    assert row_texts(table.scan().to_df()) == row_texts(source) == row_texts(spark.table(f"java.taken.{name}"))
    assert [spec_field.name for spec_field in table.spec().fields] == ["p", "d", "b", "n"]
    assert (table.properties["team"], table.schema().find_field("v").doc) == ("them", "a value")

    other = f"taken.{name}_java"
    spark.sql(f"CALL java.system.snapshot('spark_catalog.default.{name}', 'java.{other}')")
    theirs = catalog.load_table(other, spark)
    assert row_texts(theirs.scan().to_df()) == row_texts(source)
    assert described(theirs) == described(table)
    assert theirs.properties["gc.enabled"] == table.properties["gc.enabled"] == "false"
    assert theirs.schema().as_struct() == table.schema().as_struct()
    assert theirs.spec() == table.spec()


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_partitions_of_instants(spark: SparkSession, tmp_path: Path, catalog: Catalog, name: str, zone: str) -> None:
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        spark.sql(
            f"CREATE TABLE {name} (id BIGINT, t TIMESTAMP, l TIMESTAMP_NTZ, f DOUBLE) USING parquet "
            f"PARTITIONED BY (t, l, f) LOCATION 'file://{tmp_path}/source'"
        )
        values = [
            "1, TIMESTAMP'2026-07-01 10:00:00.5', TIMESTAMP_NTZ'2026-07-01 10:00:00', 1e10",
            "2, NULL, NULL, double('NaN')",
            "3, TIMESTAMP'1969-12-31 23:59:59', NULL, double('-inf')",
        ]
        spark.sql(f"INSERT INTO {name} VALUES {', '.join(f'({row})' for row in values)}")
        table = catalog.snapshot_table(name, f"taken.{name}", spark=spark).commit()
        assert row_texts(table.scan().to_df()) == row_texts(spark.table(name))


def test_a_table_without_files(spark: SparkSession, catalog: Catalog, name: str) -> None:
    create(spark, name)
    spark.sql(f"TRUNCATE TABLE {name}")
    plan = catalog.snapshot_table(name, f"taken.{name}", spark=spark)
    assert plan.summary().files == {}
    table = plan.commit()
    assert (table.metadata.snapshots, table.scan().count()) == ([], 0)
    assert table.append(spark.table(name)).scan().count() == 0


def test_migration(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The table stays when the table of Spark's catalog is dropped, and deletes files that nobody needs."""
    create(spark, name, tmp_path / "source")
    rows = row_texts(spark.table(name))
    catalog = sql_catalog(tmp_path / "sql")
    plan = catalog.migrate_table(name, "db.t", spark=spark)
    assert plan.result()["committed"] is None
    table = plan.commit()
    assert plan.result()["committed"] == {"metadata_location": table.metadata_location}
    assert Path(local_path(table.metadata.location)) == tmp_path / "source"
    assert row_texts(spark.table(name)) == rows
    spark.sql(f"DROP TABLE {name}")
    assert row_texts(table.scan().to_df()) == rows
    table = table.delete("id = 1")
    table.maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()
    assert len([*(tmp_path / "source").glob("p=*/**/*.parquet")]) == 3 - 1
    assert table.refresh().scan().count() == len(rows) - 1


def test_managed_tables_are_not_migrated(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Otherwise, dropping the source would delete the files of the new table."""
    create(spark, name)
    catalog = sql_catalog(tmp_path)
    with pytest.raises(
        UnsupportedError, match=f"{name}: Spark manages the table, so that DROP TABLE deletes its files"
    ):
        catalog.migrate_table(name, "db.t", spark=spark)
    assert not catalog.table_exists("db.t")


def test_tables_whose_files_others_own(spark: SparkSession, tmp_path: Path, name: str) -> None:
    catalog, folder = sql_catalog(tmp_path / "sql"), tmp_path / "source"
    create(spark, name, folder)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('external.table.purge' = 'true')")
    with pytest.raises(UnsupportedError, match=f"{name}: external.table.purge is true, so that DROP TABLE deletes"):
        catalog.migrate_table(name, "db.t", spark=spark)
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('external.table.purge')")
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020}.json").write_text("{}")
    with pytest.raises(UnsupportedError, match=f"{name}: it is in the folder file:.*{folder} of a Delta table"):
        catalog.migrate_table(name, "db.t", spark=spark)
    (folder / "_delta_log").rename(folder / "p=null" / "_delta_log")
    with pytest.raises(UnsupportedError, match=f"{name}: .*/p=null/_delta_log/.*json belongs to a Delta table"):
        catalog.migrate_table(name, "db.t", spark=spark)
    (folder / "p=null" / "_delta_log" / f"{0:020}.json").unlink()
    plans = [catalog.migrate_table(name, f"db.t{number}", spark=spark) for number in range(2)]
    plans[0].commit()
    with pytest.raises(UnsupportedError, match=f"the folder .*{folder} is an Iceberg table already"):
        plans[1].commit()
    with pytest.raises(UnsupportedError, match=f"the folder .*{folder} is an Iceberg table already"):
        catalog.migrate_table(name, "db.t", spark=spark)


def test_properties_of_the_source(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Properties of Spark's table itself are not copied, nor ones that would have the new table write into it."""
    create(spark, name, tmp_path / "source")
    copied = {"write.parquet.compression-codec": "zstd", "numbers": "1"}
    others = {"EXTERNAL": "TRUE", "transient_lastDdlTime": "1", "numFiles": "4", "serialization.format": "1"}
    others |= {"external.table.purge": "true", "write.data.path": f"{tmp_path}/source/new", "gc.enabled": "true"}
    texts = ", ".join(f"'{key}' = '{value}'" for key, value in {**copied, **others}.items())
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({texts})")
    table = sql_catalog(tmp_path / "sql").snapshot_table(name, "db.t", spark=spark).table
    assert copied.items() <= table.properties.items()
    assert {key: table.properties[key] for key in others if key in table.properties} == {"gc.enabled": "false"}


def test_defaults_of_existing_rows(spark: SparkSession, tmp_path: Path, catalog: Catalog, name: str) -> None:
    create(spark, name, tmp_path / "source")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN c INT DEFAULT 7")
    assert spark.table(name).where("c = 7").count() == 4
    with pytest.raises(UnsupportedError, match=f"{name}: column c has a default for existing rows, which their files"):
        catalog.snapshot_table(name, f"taken.{name}", spark=spark)


def test_partitions_in_the_folder_of_the_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, k INT) USING parquet PARTITIONED BY (k) LOCATION 'file://{tmp_path}/source'"
    )
    spark.sql("SELECT 1L id").coalesce(1).write.parquet(str(tmp_path / "new" / "elsewhere"))
    spark.sql(f"ALTER TABLE {name} ADD PARTITION (k = 1) LOCATION 'file://{tmp_path}/new/elsewhere'")
    catalog = sql_catalog(tmp_path / "sql")
    for location in (tmp_path / "new", tmp_path / "new" / "elsewhere" / "t"):
        plan = catalog.snapshot_table(name, "db.t", location=str(location), spark=spark)
        with pytest.raises(ValidationError, match=f"t: location is {location}, and .* is a file of {name}"):
            plan.commit()


def test_sources_that_are_no_tables_of_files(spark: SparkSession, tmp_path: Path, catalog: Catalog, name: str) -> None:
    with pytest.raises(NoSuchTableError, match=f"{name}: there is no such table in Spark's catalog"):
        catalog.snapshot_table(name, f"taken.{name}", spark=spark)
    with pytest.raises(UnsupportedError, match="a b c: Spark's catalog does not describe it"):
        catalog.snapshot_table("a b c", f"taken.{name}", spark=spark)
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING csv LOCATION 'file://{tmp_path}/csv'")
    with pytest.raises(UnsupportedError, match=f"{name}: it is of the kind csv: expected a table of Parquet, ORC or"):
        catalog.snapshot_table(name, f"taken.{name}", spark=spark)
    spark.sql(f"CREATE VIEW {name}_view AS SELECT 1 id")
    with pytest.raises(UnsupportedError, match=f"{name}_view: it is of the kind view: expected a table"):
        catalog.snapshot_table(f"{name}_view", f"taken.{name}", spark=spark)
    spark.sql(f"DROP VIEW {name}_view")
    assert not catalog.table_exists(f"taken.{name}")


def test_files_that_are_in_two_partitions(spark: SparkSession, tmp_path: Path, catalog: Catalog, name: str) -> None:
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, k INT) USING parquet PARTITIONED BY (k) LOCATION 'file://{tmp_path}/source'"
    )
    spark.sql("SELECT 1L id").coalesce(1).write.parquet(str(tmp_path / "elsewhere"))
    for value in (1, 2):
        spark.sql(f"ALTER TABLE {name} ADD PARTITION (k = {value}) LOCATION 'file://{tmp_path}/elsewhere'")
    assert spark.table(name).count() == 2
    with pytest.raises(ValidationError, match=r"elsewhere/part-.*\.parquet is given twice"):
        catalog.snapshot_table(name, f"taken.{name}", spark=spark).summary()


@pytest.mark.jvm
def test_tables_of_hive(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.catalog.hive_tables", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_REMOTE", "SPARK_SUBMIT_OPTS")}
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], env=environment
    )
    assert process.returncode == 0, process.stderr
    *taken, refused = process.stdout.splitlines()
    assert taken == ["parquet: True", "avro: True"]
    problem = "it is of the kind org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe: expected a table of Parquet"
    assert problem in refused
