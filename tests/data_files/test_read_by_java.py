"""Iceberg's Java library and pyiceberg read data files that we wrote, pruned by our metrics and partition values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.table import StaticTable

import sparkmeta as sm
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.write.files import write_files
from tests.data_files.java_append import append_by_java
from tests.peers.java import Java
from tests.peers.workshop import Workshop
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

COLUMNS = (
    "id BIGINT, s STRING, ts TIMESTAMP, ntz TIMESTAMP_NTZ, day DATE, dec DECIMAL(20,3), d DOUBLE, b BINARY, "
    "st STRUCT<x: INT, y: ARRAY<STRING>>, m MAP<STRING, INT>, `odd-name` INT"
)
QUERY = """
    SELECT id, IF(id % 11 = 0, null, concat('text ', id % 37)) s, timestamp_seconds(id * 40000) ts,
        CAST(timestamp_micros(id * 977777777) AS TIMESTAMP_NTZ) ntz, date_add(date'1969-12-20', CAST(id AS INT)) day,
        CAST(id * 1.5 AS DECIMAL(20,3)) dec, IF(id % 13 = 0, double('NaN'), id / 7D) d,
        CAST(CAST(id AS STRING) AS BINARY) b,
        IF(id % 3 = 0, null, named_struct('x', CAST(id AS INT), 'y', array('a', null))) st,
        map('k', CAST(id AS INT)) m, CAST(id % 5 AS INT) `odd-name`
    FROM range(300)
"""
SPECS = {
    "unpartitioned": "",
    "by_transforms": "bucket(4, s), days(ts), truncate(100, id)",
    "by_values": "`odd-name`, months(ntz), years(day), truncate(50, dec), truncate(6, s)",
}
FILTERS = (
    "id = 7",
    "s = 'text 5'",
    "ts >= '1970-01-05T00:00:00+00:00'",
    "d is nan",
    "s is null",
    "dec < 20.000",
    '"odd-name" = 2',
)


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_and_plans(spark: SparkSession, spec: str, version: int, file_format: str, soak: bool) -> None:
    sliced = {"unpartitioned": (3, "orc"), "by_transforms": (2, "parquet"), "by_values": (1, "avro")}
    if not soak and (version, file_format) != sliced[spec]:
        pytest.skip("one version and format for each spec")
    java = Java(spark)
    shop = Workshop(java, f"written_{spec}_v{version}_{file_format}", catalog_name="java")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    shop.create(
        COLUMNS,
        SPECS[spec],
        version=version,
        properties={"write.distribution-mode": "hash", "write.format.default": file_format},
    )
    rows = spark.sql(QUERY)
    table = sm.load_table(shop.metadata_location, spark=spark)
    append_by_java(shop, write_files(table.state, rows).toArrow())
    assert row_texts(shop.sql("SELECT * FROM {t}")) == row_texts(rows)
    table = sm.load_table(shop.metadata_location, spark=spark)
    assert row_texts(table.scan().to_df()) == row_texts(rows)
    peer = java.table(shop.metadata_location)
    for row_filter in FILTERS:
        unpruned = set(peer.paths(parse_filter(row_filter)))
        matching = table.scan(row_filter, selected_fields=("_file",)).to_arrow().column("_file")
        assert set(matching.to_pylist()) <= unpruned, row_filter
        assert len(matching), row_filter
        if spec != "unpartitioned":
            assert len(unpruned) < len(peer.paths()), row_filter
    if file_format != "parquet":
        return
    # pyiceberg reads the same rows; of other formats it reads no files of these types.
    arrow = StaticTable.from_metadata(shop.metadata_location).scan().to_arrow()
    assert sorted(arrow.column("id").to_pylist()) == [*range(300)]
    assert arrow.column("st").null_count == 100


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_zeros_of_both_signs_as_partitions(spark: SparkSession, kind: str) -> None:
    """Java takes each for a value of its own, and skips manifests by the bounds of their partitions."""
    shop = Workshop(Java(spark), f"zeros_{kind}", catalog_name="java")
    shop.create(f"f {kind}, id INT", "f")
    rows = spark.sql("SELECT * FROM VALUES (double('-0.0'), 1), (double('0.0'), 2), (double('-0.0'), 3)")
    table = sm.load_table(str(shop.folder), spark=spark)
    table.append(rows.selectExpr(f"CAST(col1 AS {kind}) AS f", "col2 AS id"))
    shop.sql("REFRESH TABLE {t}")
    for zero, ids in (("0.0", [2]), ("-0.0", [1, 3])):
        answer = shop.sql(f"SELECT id FROM {{t}} WHERE f = CAST('{zero}' AS {kind})").collect()
        assert sorted(row.id for row in answer) == ids
    assert {row.id for row in table.refresh().scan("f = 0.0").to_df().collect()} == {1, 2, 3}


def test_times_before_1970_in_orc(spark: SparkSession) -> None:
    """Java reads the same rows, even if it filters by the statistics of stripes."""
    shop = Workshop(Java(spark), "early_orc", catalog_name="java")
    shop.create(
        "id INT, ts TIMESTAMP, ntz TIMESTAMP_NTZ, l ARRAY<TIMESTAMP>, m MAP<INT, TIMESTAMP_NTZ>, s STRUCT<t:TIMESTAMP>",
        properties={"write.format.default": "orc"},
    )
    micros = [
        -14_000_000_000_000_001, -618_148_799_999_999, -618_148_799_750_000, -618_148_799_000_001, -618_148_799_000_000,
        -1_999_999, -1_999_000, -1_500_000, -1_001_000, -1_000_001, -1_000_000, -999_999, -999_001, 0, 1, 500_000,
    ]  # fmt: skip
    rows = spark.createDataFrame([*enumerate(micros)], "id INT, micros BIGINT").selectExpr(
        "id", "timestamp_micros(micros) ts", "CAST(timestamp_micros(micros) AS TIMESTAMP_NTZ) ntz",
        "array(null, ts) l", "map(1, ntz) m", "named_struct('t', ts) s",
    )  # fmt: skip
    sm.load_table(str(shop.folder), spark=spark).append(rows.coalesce(1))
    shop.sql("REFRESH TABLE {t}")
    assert row_texts(shop.sql("SELECT * FROM {t}")) == row_texts(rows)
    assert row_texts(sm.load_table(str(shop.folder), spark=spark).scan().to_df()) == row_texts(rows)
    for place, value in enumerate(micros):
        for operator, ids in (("<", [*range(place)]), ("=", [place]), (">", [*range(place + 1, len(micros))])):
            answer = shop.sql(f"SELECT id FROM {{t}} WHERE ts {operator} timestamp_micros({value})").collect()
            assert sorted(row.id for row in answer) == ids
