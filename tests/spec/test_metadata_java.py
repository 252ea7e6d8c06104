"""Metadata that Iceberg's own library wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sparkmeta.operations.metadata_files import latest_metadata
from sparkmeta.spec.metadata import parse_table_metadata, serialize_table_metadata
from sparkmeta.spec.schema import partition_type
from sparkmeta.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java
TABLE = "java.spec.metadata_v{}"


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def version(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[int]:
    version: int = request.param
    table = TABLE.format(version)
    alter = f"ALTER TABLE {table}"
    spark.sql(
        f"CREATE TABLE {table} (id INT, at TIMESTAMP, name STRING, price DECIMAL(9,2)) USING iceberg "
        f"PARTITIONED BY (bucket(4, id), days(at), name) TBLPROPERTIES ('format-version'='{version}')"
    )
    for statement in (
        f"INSERT INTO {table} VALUES (1, TIMESTAMP '2024-02-29 01:02:03', 'ü', 1.5)",
        f"{alter} CREATE TAG before",
        f"{alter} REPLACE PARTITION FIELD days(at) WITH months(at) AS at_month",
        f"{alter} DROP PARTITION FIELD name",
        f"{alter} ALTER COLUMN id TYPE BIGINT",
        f"{alter} WRITE ORDERED BY bucket(8, id) DESC NULLS LAST, at",
        f"INSERT INTO {table} VALUES (2, NULL, NULL, NULL)",
        f"{alter} DROP PARTITION FIELD bucket(4, id)",
        f"{alter} CREATE BRANCH audit",
    ):
        spark.sql(statement)
    yield version
    spark.sql(f"DROP TABLE {table}")


@pytest.fixture
def location(version: int, java_warehouse: str) -> str:
    return latest_metadata(LocalFiles(), f"{java_warehouse}/spec/metadata_v{version}").location


def test_nothing_is_lost(version: int, location: str) -> None:
    data = LocalFiles().read(location)
    metadata = parse_table_metadata(data, location)
    assert metadata.format_version == version
    assert json.loads(serialize_table_metadata(metadata)) == json.loads(data)
    assert set(metadata.refs) == {"main", "before", "audit"}


def test_the_partition_type_is_java_s(version: int, location: str, spark: SparkSession) -> None:
    metadata = parse_table_metadata(LocalFiles().read(location), location)
    kind = partition_type(metadata.partition_specs, metadata.schemas, metadata.schema(), active_only=True)
    shown = spark.table(f"{TABLE.format(version)}.files").schema["partition"].dataType
    assert [field.name for field in kind.fields] == shown.fieldNames()
    names = {"long": "bigint", "decimal(9, 2)": "decimal(9,2)"}
    assert [names.get(str(field.field_type), str(field.field_type)) for field in kind.fields] == [
        field.dataType.simpleString() for field in shown.fields
    ]


def test_a_partition_field_of_a_dropped_column(spark: SparkSession, java_warehouse: str) -> None:
    table = "java.spec.dropped"
    spark.sql(f"CREATE TABLE {table} (id INT, name STRING) USING iceberg PARTITIONED BY (name, bucket(2, id))")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD name")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN name")
    location = latest_metadata(LocalFiles(), f"{java_warehouse}/spec/dropped").location
    metadata = parse_table_metadata(LocalFiles().read(location), location)
    every = partition_type(metadata.partition_specs, metadata.schemas, metadata.schema())
    assert [(field.name, str(field.field_type)) for field in every.fields] == [("name", "string"), ("id_bucket", "int")]
    active = partition_type(metadata.partition_specs, metadata.schemas, metadata.schema(), active_only=True)
    shown = spark.table(f"{table}.files").schema["partition"].dataType
    spark.sql(f"DROP TABLE {table}")
    assert [field.name for field in active.fields] == shown.fieldNames()
