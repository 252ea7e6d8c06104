"""Tables from schemas of Spark and Arrow, with layouts in words, in all catalogs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from pyspark.sql import types as spark_types

import sparkmeta as sm

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SPARK = spark_types.StructType(
    [
        spark_types.StructField("id", spark_types.LongType(), False, {"comment": "of the event"}),
        spark_types.StructField("ts", spark_types.TimestampType()),
        spark_types.StructField("at", spark_types.TimestampNTZType()),
        spark_types.StructField("day", spark_types.DateType()),
        spark_types.StructField("small", spark_types.ShortType()),
        spark_types.StructField("price", spark_types.DecimalType(9, 2)),
        spark_types.StructField("a.b", spark_types.StringType()),
        spark_types.StructField("in", spark_types.StructType([spark_types.StructField("x", spark_types.BinaryType())])),
        spark_types.StructField("many", spark_types.ArrayType(spark_types.DoubleType(), False)),
        spark_types.StructField("by", spark_types.MapType(spark_types.StringType(), spark_types.BooleanType())),
    ]
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("ts", pa.timestamp("us", "UTC")),
        ("at", pa.timestamp("us")),
        ("day", pa.date32()),
        ("small", pa.int16()),
        ("price", pa.decimal128(9, 2)),
        ("a.b", pa.large_string()),
        ("in", pa.struct([("x", pa.binary())])),
        ("many", pa.list_(pa.field("element", pa.float64(), nullable=False))),
        ("by", pa.map_(pa.string(), pa.bool_())),
    ]
)
COLUMNS = """table {
  1: id: required long
  2: ts: optional timestamptz
  3: at: optional timestamp
  4: day: optional date
  5: small: optional int
  6: price: optional decimal(9, 2)
  7: a.b: optional string
  8: in: optional struct<11: x: optional binary>
  9: many: optional list<double>
  10: by: optional map<string, boolean>
}"""
FIELDS = ["day(ts)", "bucket(16, id)", "truncate(4, `a.b`)", "small", "years(day)", "in.x"]
ORDER = ["ts DESC", "bucket(4, id) NULLS LAST", "`a.b`"]


@pytest.mark.parametrize("schema", [SPARK, ARROW], ids=["spark", "arrow"])
@pytest.mark.parametrize("kind", ["hadoop", "sql", "rest"])
def test_a_new_table(kind: str, schema: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    properties = {"warehouse": tmp_path.as_uri()}
    if kind == "rest":
        properties = {"uri": request.getfixturevalue("rest_uri")}
    elif kind == "sql":
        properties |= {"uri": f"sqlite:///{tmp_path}/catalog.db"}
    catalog = sm.load_catalog(kind, type=kind, **properties)
    namespace = f"new_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.t", schema, partition_by=FIELDS, sort_by=ORDER)
    assert str(table.schema()).replace(" (of the event)", "") == COLUMNS
    assert table.schema().find_field("id").doc == ("of the event" if schema is SPARK else None)
    assert [(field.name, str(field.transform), field.source_id) for field in table.spec().fields] == [
        ("ts_day", "day", 2), ("id_bucket_16", "bucket[16]", 1), ("a.b_trunc_4", "truncate[4]", 7),
        ("small", "identity", 5), ("day_year", "year", 4), ("in.x", "identity", 11),
    ]  # fmt: skip
    assert [str(field) for field in table.sort_order().fields] == [
        "2 DESC NULLS LAST", "bucket[4](1) ASC NULLS LAST", "7 ASC NULLS FIRST",
    ]  # fmt: skip
    assert catalog.create_table_if_not_exists(f"{namespace}.t", schema, partition_by=["id"]).spec() == table.spec()


def test_a_table_from_a_dataframe(tmp_path: Path, spark: SparkSession) -> None:
    """Its rows fit the table, types that Iceberg lacks included."""
    rows = spark.sql(
        "SELECT id, cast(id AS short) AS s, timestamp_seconds(id) AS ts, array(struct(id)) AS a FROM range(10)"
    )
    catalog = sm.load_catalog("files", type="hadoop", warehouse=tmp_path.as_uri())
    table = catalog.create_table("ns.t", rows.schema, partition_by=["bucket(3, id)"], spark=spark).append(rows)
    assert table.scan("id >= 5").count() == 5
    arrow = table.scan().to_arrow()
    assert catalog.create_table("ns.u", arrow.schema).append(arrow).scan().count() == 10


WRONG: dict[str, dict[str, Any]] = {
    r"schema is \[1\]: expected a Schema of pyiceberg or Arrow, or a StructType of Spark": {"schema": [1]},
    "schema: column i: Iceberg has no type for Spark's interval": {
        "schema": spark_types.StructType([spark_types.StructField("i", spark_types.DayTimeIntervalType())])
    },
    "schema: Column 'x' has an unsupported type: decimal256": {"schema": pa.schema([("x", pa.decimal256(50, 2))])},
    "version 2 does not support column x of type timestamp_ns": {"schema": pa.schema([("x", pa.timestamp("ns"))])},
    "version 2 does not support column x of type variant": {
        "schema": spark_types.StructType([spark_types.StructField("x", spark_types.VariantType())])
    },
    r"partition_by is \['nope'\]: no column 'nope' in the table": {"partition_by": ["nope"]},
    r"partition_by is \['day\(id\)'\]: values of type long have no transform day": {"partition_by": ["day(id)"]},
    r"partition_by is \['hash\(id\)'\]: hash\(id\) is not a transform of a column": {"partition_by": ["hash(id)"]},
    "column many of type list<double> can't be partitioned by": {"partition_by": ["many"]},
    "column by of type map<string, boolean> can't be sorted by": {"sort_by": ["by"]},
    "partition_by is 'id': expected a list of strings": {"partition_by": "id"},
    r"sort_by is \['id', ''\]: a part of it is empty": {"sort_by": ["id", ""]},
    "partition field 'id': there are several of this name": {"partition_by": ["id", "id"]},
    "partition_by and partition_spec are both given": {
        "partition_by": ["id"],
        "partition_spec": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id")),
    },
    "sort_by and sort_order are both given": {
        "sort_by": ["id"],
        "sort_order": SortOrder(SortField(1, IdentityTransform())),
    },
}


@pytest.mark.parametrize("problem", WRONG)
def test_what_is_refused(problem: str, tmp_path: Path) -> None:
    catalog = sm.load_catalog("files", type="hadoop", warehouse=tmp_path.as_uri())
    schema = Schema(NestedField(1, "id", LongType())) if "_spec" in problem or "_order" in problem else ARROW
    with pytest.raises(sm.ValidationError, match=f"{tmp_path}/ns/t: (.*: )?{problem}"):
        catalog.create_table("ns.t", **{"schema": schema, **WRONG[problem]})
    assert not catalog.table_exists("ns.t")
