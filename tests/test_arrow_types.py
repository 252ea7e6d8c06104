"""Types of Arrow and Spark: what Spark makes of each, in the PySpark that runs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.schema import Schema
from pyspark.sql.types import (
    CalendarIntervalType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

import sparkmeta as sm
from sparkmeta.arrow_types import arrow_schema, arrow_type_of, spark_schema, spark_type_of
from sparkmeta.session import map_arrow
from tests.frames import local_frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# A value and what Spark calls its type, by Arrow type.
PRIMITIVES: list[tuple[pa.DataType, object, str]] = [
    (pa.null(), None, "void"),
    (pa.bool_(), True, "boolean"),
    (pa.int8(), -1, "tinyint"),
    (pa.int16(), 2, "smallint"),
    (pa.int32(), 3, "int"),
    (pa.int64(), 1 << 40, "bigint"),
    (pa.float32(), 0.5, "float"),
    (pa.float64(), 0.1, "double"),
    (pa.decimal128(20, 3), Decimal("12345678901234567.125"), "decimal(20,3)"),
    (pa.string(), "å", "string"),
    (pa.binary(), b"\x00", "binary"),
    (pa.date32(), date(1969, 12, 31), "date"),
    (pa.timestamp("us"), NOON.replace(tzinfo=None), "timestamp_ntz"),
    (pa.timestamp("us", "UTC"), NOON, "timestamp"),
]
FIELDS = [pa.field(f"c{place}", kind) for place, (kind, _, _) in enumerate(PRIMITIVES)]
VALUES = {f"c{place}": value for place, (_, value, _) in enumerate(PRIMITIVES)}
SCHEMA = pa.schema(
    [
        *FIELDS,
        pa.field("required", pa.int64(), nullable=False),
        pa.field("nested", pa.struct(FIELDS)),
        pa.field("list", pa.list_(pa.field("element", pa.timestamp("us", "UTC"), nullable=False))),
        pa.field("map", pa.map_(pa.string(), pa.struct([pa.field("at", pa.timestamp("us", "UTC"))]))),
    ]
)
ROWS = [
    {**VALUES, "required": 1, "nested": VALUES, "list": [NOON], "map": [("a", {"at": NOON}), ("b", None)]},
    {"required": 2, "list": [], "map": []},
]


@pytest.mark.connect
def test_values_pass_through_spark(spark: SparkSession) -> None:
    table = pa.Table.from_pylist(ROWS, SCHEMA)

    # A local function: Spark sends it whole, also to workers without this module.
    def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert [field.type for field in batch.schema] == [field.type for field in table.schema]
            yield batch

    frame = local_frame(spark, table)
    assert [kind for _, kind in frame.dtypes[: len(PRIMITIVES)]] == [name for _, _, name in PRIMITIVES]
    assert frame.schema == spark_schema(SCHEMA)
    for returned in (frame, map_arrow(frame, unchanged, SCHEMA)):
        assert returned.toArrow().to_pylist() == table.to_pylist()


def test_types_are_each_other() -> None:
    assert arrow_schema(spark_schema(SCHEMA)).equals(SCHEMA, check_metadata=True)
    row_type = StructType([StructField("v", VariantType(), False), StructField("d", DecimalType(38, 0))])
    assert spark_schema(arrow_schema(row_type)) == row_type
    # Types that sessions with other settings return.
    assert spark_type_of(pa.large_string()) == StringType()
    assert spark_type_of(pa.timestamp("us", "Asia/Tokyo")).typeName() == "timestamp"


@pytest.mark.connect
def test_a_variant_is_one_in_tasks(spark: SparkSession) -> None:
    row_type = StructType([StructField("v", VariantType())])
    variants = spark.sql("SELECT parse_json('{\"a\": 1}') AS v")
    read = map_arrow(variants, iter, row_type)
    assert read.selectExpr("variant_get(v, '$.a', 'int') AS a").toArrow().to_pylist() == [{"a": 1}]
    assert arrow_schema(row_type).field("v").type == variants.toArrow().schema.field("v").type


def test_types_without_a_counterpart() -> None:
    with pytest.raises(TypeError, match=r"^time64\[us\] has no Spark type$"):
        spark_type_of(pa.time64("us"))
    with pytest.raises(TypeError, match=r"^interval has no Arrow type$"):
        arrow_type_of(StructType([StructField("x", LongType()), StructField("y", CalendarIntervalType())]))


def test_required_fields_of_null_structs(spark: SparkSession) -> None:
    """Arrow has nulls there, at any depth, which Spark's DataFrames can't have."""
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))])
    kind = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("flag", pa.bool_(), nullable=False),
            pa.field("optional", inner),
            pa.field("required", inner, nullable=False),
            pa.field("list", pa.list_(inner), nullable=False),
            pa.field("map", pa.map_(pa.string(), inner), nullable=False),
        ]
    )
    some = {"x": 3, "at": None}
    row = {"id": 1, "text": "a", "flag": True, "optional": None, "required": some, "list": [None, some]}
    value = row | {"map": [("k", None), ("l", some)]}
    values = pa.chunked_array([pa.array([None, value, None, value], kind).slice(1, 2), pa.nulls(2, kind)])
    rows = pa.table([values], pa.schema([pa.field("row", kind)]))
    shown = [None if each is None else each.asDict(recursive=True) for (each,) in local_frame(spark, rows).collect()]
    assert shown == [row | {"map": {"k": None, "l": some}}, None, None, None]


@pytest.mark.parametrize("kind", ["list", "map"])
def test_required_fields_of_elements(spark: SparkSession, kind: str) -> None:
    struct = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))])
    some = {"x": 3, "at": None}
    values, shown = [None, [], [None, some]], [None, [], [None, some]]
    if kind == "map":
        values, shown = [None, [], [("a", None), ("b", some)]], [None, {}, {"a": None, "b": some}]
    column = pa.array(values, pa.list_(struct) if kind == "list" else pa.map_(pa.string(), struct))
    frame = local_frame(spark, pa.table({"value": column}))
    assert [row.asDict(recursive=True)["value"] for row in frame.collect()] == shown


def test_rows_of_null_structs_with_required_fields(tmp_path: Path) -> None:
    point = types.StructType(
        types.NestedField(2, "x", types.IntegerType(), required=True), types.NestedField(3, "y", types.IntegerType())
    )
    catalog = sm.load_catalog("structs", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("db.t", Schema(types.NestedField(1, "point", point)))
    rows = [{"point": {"x": 1, "y": None}}, {"point": None}, {"point": {"x": 2, "y": 3}}]
    kind = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())])
    table = table.append(pa.Table.from_pylist(rows, pa.schema([("point", kind)])))
    assert table.scan().to_arrow().to_pylist() == rows
    assert table.scan("point.x = 2").to_arrow().to_pylist() == rows[2:]
