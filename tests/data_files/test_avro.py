"""Avro data files: every type and codec, read by Iceberg's Java library, and rewritten from and to other formats."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UUIDType,
)

import sparkmeta as sm
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.workshop import Workshop
from tests.rows.comparison import row_texts
from tests.write.test_files import EVERY_TYPE, QUERY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What EVERY_TYPE and its rows lack, with fields that have the ids that a new table gives them.
MORE_TYPES = (
    NestedField(101, "odd name", IntegerType()),
    NestedField(102, "ns", TimestampNanoType()),
    NestedField(103, "tzns", TimestamptzNanoType()),
    NestedField(104, "day", DateType()),
    NestedField(105, "flag", BooleanType()),
    NestedField(106, "real", FloatType()),
    NestedField(
        107, "by_struct",
        MapType(108, StructType(NestedField(109, "k", IntegerType(), required=True)), 110, DecimalType(38, 10),
                value_required=False),
    ),
    NestedField(111, "by_uuid", MapType(112, UUIDType(), 113, ListType(114, StringType(), element_required=False))),
)  # fmt: skip
MORE_QUERY = """
    *, CAST(id % 3 AS INT) `odd name`, id * 1000000007L ns, IF(id = 0, null, -CAST(id AS BIGINT)) tzns,
    date'1969-12-31' - CAST(id AS INT) day, id % 3 = 0 flag,
    IF(id = 7, float('NaN'), CAST(id AS FLOAT)) real,
    map(named_struct('k', CAST(id AS INT)), CAST(-id / 7 AS DECIMAL(38, 10)), named_struct('k', -1), null) by_struct,
    map(concat('00000000-0000-4000-8000-', lpad(hex(id), 12, '0')), array('a', null)) by_uuid
"""


def new_table(spark: SparkSession, folder: Path, version: int, schema: Schema, **properties: str) -> sm.Table:
    catalog = sm.load_catalog("files", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return catalog.create_table("db.t", schema, PartitionSpec(), format_version=version, properties=named, spark=spark)


def data_files(table: sm.Table) -> list[dict[str, Any]]:
    return list(table.inspect.data_files().toArrow().to_pylist())


@pytest.mark.java
def test_java_reads_the_values_of_parquet_files(spark: SparkSession) -> None:
    schema = Schema(*EVERY_TYPE.fields, *MORE_TYPES)
    rows = spark.sql(f"SELECT {MORE_QUERY} FROM ({QUERY}) WHERE id < 20").coalesce(1)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    java, read, ours = Java(spark), [], []
    for file_format in ("parquet", "avro"):
        shop = Workshop(java, f"types_in_{file_format}", catalog_name="java")
        fields = [json.loads(field.model_dump_json()) for field in schema.fields]
        shop.create_by_java(fields, version=3, properties={"write.format.default": file_format})
        table = sm.load_table(str(shop.folder), spark=spark).append(rows)
        ours.append(row_texts(table.scan().to_df()))
        records = java.records(table.metadata_location)
        read.append(sorted(records, key=lambda record: record.getField("id")))
    assert ours[0] == ours[1]
    assert len(read[0]) == 20
    for in_parquet, in_avro in zip(*read, strict=True):
        assert in_avro.equals(in_parquet), (in_avro.toString(), in_parquet.toString())


CODECS = {"gzip": "deflate", "snappy": "snappy", "zstd": "zstandard", "uncompressed": "null"}


@pytest.mark.java
def test_codecs_and_what_is_known_of_files(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StringType()))
    table = new_table(spark, tmp_path, 2, schema, write__format__default="avro")
    for place, codec in enumerate(CODECS):
        with table.transaction() as tx:
            tx.set_properties({"write.avro.compression-codec": codec, "write.avro.compression-level": "1"})
        rows = spark.range(place * 5000, place * 5000 + 5000, 1, 1).selectExpr(
            "id", "concat('a longer text ', id % 17) s"
        )
        table = table.refresh().append(rows)
    files = sorted(data_files(table), key=lambda file: dict(file["lower_bounds"])[1])
    headers = []
    for file in files:
        assert file["file_path"].endswith(".avro")
        assert file["file_format"] == "AVRO"
        assert dict(file["value_counts"]) == {1: 5000, 2: 5000}
        assert file["column_sizes"] is file["split_offsets"] is None
        data = Path(local_path(file["file_path"])).read_bytes()
        header = fastavro.reader(io.BytesIO(data)).metadata
        headers.append(header["avro.codec"])
        assert [field["field-id"] for field in json.loads(header["avro.schema"])["fields"]] == [1, 2]
        sync = data[-16:]
        assert data.count(sync) > 2
    assert sorted(headers) == sorted(CODECS.values())
    expected = [(i, f"a longer text {i % 17}") for i in range(20_000)]
    assert sorted(map(tuple, spark.read.format("iceberg").load(table.location()).collect())) == expected
    assert table.scan("id = 7").count_files() == 1
    # Java's own Avro files have no metrics but their number of rows.
    spark.sql("SELECT -1L id, 'x' s").write.format("iceberg").mode("append").save(table.location())
    table = table.refresh()
    (of_java,) = (file for file in data_files(table) if file["record_count"] == 1)
    assert of_java["file_format"] == "AVRO"
    assert not any(of_java[name] for name in ("value_counts", "lower_bounds", "column_sizes"))
    with table.transaction() as tx:
        tx.set_properties({"write.avro.compression-codec": "lzma"})
    with pytest.raises(sm.ValidationError, match="compression-codec is 'lzma': expected uncompressed, snappy"):
        table.refresh().append(spark.sql("SELECT 1L id"))


def test_files_roll_and_change_their_format(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StringType()))
    small = {"write__target_file_size_bytes": "60000", "write__avro__compression_codec": "uncompressed"}
    table = new_table(spark, tmp_path, 3, schema, write__format__default="avro", **small)
    table = table.append(spark.range(0, 10_000, 1, 1).selectExpr("id", "concat('text ', id % 17) s"))
    sizes = [file["file_size_in_bytes"] for file in data_files(table)]
    assert len(sizes) > 1
    assert max(sizes) < 90_000
    columns = ("id", "s", "_row_id", "_last_updated_sequence_number")
    rows = row_texts(table.scan(selected_fields=columns).to_df())
    for file_format in ("orc", "avro", "parquet"):
        with table.transaction() as tx:
            tx.set_properties({"write.format.default": file_format})
        table = table.refresh().maintenance.rewrite_data_files(rewrite_all=True).commit()
        assert {file["file_format"] for file in data_files(table)} == {file_format.upper()}
        assert row_texts(table.scan(selected_fields=columns).to_df()) == rows
    table = table.delete("id >= 100").update({"s": "new"}, "id = 5")
    assert sorted(map(tuple, table.scan().to_df().collect()))[5] == (5, "new")
