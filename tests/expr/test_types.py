from __future__ import annotations

import math
import uuid
from decimal import Decimal, Inexact
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg import types as t
from pyspark.sql.types import StructField, StructType

from sparkmeta.expr import sql
from sparkmeta.expr.bounds import bound_arrow_type, decode_bounds
from sparkmeta.expr.types import bound_type, literal_array, public_value, spark_type, typed_literal
from sparkmeta.spec.schema import VariantType
from tests.properties.cases import VALUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = (-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1)
EDGES: dict[t.PrimitiveType, list[Any]] = {
    t.BooleanType(): [True, False],
    t.IntegerType(): [-(2**31), -1, 0, 2**31 - 1],
    t.LongType(): [*LONG],
    t.FloatType(): [0.0, -0.0, math.inf, -math.inf, 3.4028234663852886e38, 1.401298464324817e-45],
    t.DoubleType(): [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1],
    t.DecimalType(9, 2): [Decimal("-9999999.99"), Decimal("0.00"), Decimal("1.50")],
    t.DecimalType(38, 38): [Decimal("-0." + "9" * 38), Decimal("0E-38")],
    t.DecimalType(38, 0): [Decimal(10**38 - 1)],
    t.DateType(): [-(2**31), -719_163, -141_430, -1, 0, 2_932_897, 2**31 - 1],
    t.TimeType(): [0, 86_399_999_999],
    t.TimestampType(): [*LONG, -62_167_219_200_000_001, -12_219_552_000_000_000, 253_402_300_800_000_000],
    t.TimestamptzType(): [*LONG, -12_219_552_000_000_000, -2_717_640_000_000_001],
    t.TimestampNanoType(): [*LONG],
    t.TimestamptzNanoType(): [*LONG],
    t.StringType(): ["", "it's \\ \"\n\t%_\x00", "\U0001f600\uffff", "X'00'"],
    t.UUIDType(): [bytes(16), b"\xff" * 16],
    t.FixedType(2): [b"\x00\xff"],
    t.BinaryType(): [b"", b"'\\\x00"],
}
ZONES = ["UTC", "America/New_York", "Asia/Kathmandu"]


@pytest.mark.parametrize("zone", ZONES)
def test_literals_are_exact_in_every_time_zone(spark: SparkSession, zone: str) -> None:
    """Each literal equals the value itself, read from Arrow without any literal."""
    cases = [(primitive, value) for primitive, values in EDGES.items() for value in values]
    arrays = [raw_array(primitive, value) for primitive, value in cases]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        names = [f"c{place}" for place in range(len(cases))]
        schema = StructType([StructField(name, bound_type(kind)) for name, (kind, _) in zip(names, cases, strict=True)])
        table = spark.createDataFrame(pa.table(arrays, names), schema)
        literals = [typed_literal(value, primitive) for primitive, value in cases]
        row = table.selectExpr(
            *(literal.eqNullSafe(sql.col(f"c{place}")).text for place, literal in enumerate(literals))
        ).first()
        kinds = [field.dataType for field in spark.range(1).selectExpr(*(literal.text for literal in literals)).schema]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert row is not None
    assert [case for case, equal in zip(cases, row, strict=True) if not equal] == []
    assert kinds == [bound_type(primitive) for primitive, _ in cases]


def raw_array(primitive: t.PrimitiveType, value: Any) -> pa.Array:
    kind = bound_arrow_type(str(primitive))
    if pa.types.is_timestamp(kind):
        return pa.array([value], pa.int64()).cast(kind)
    return pa.array([value], pa.int32()).cast(kind) if pa.types.is_date(kind) else pa.array([value], kind)


def test_a_literal_array_holds_what_single_literals_do(spark: SparkSession) -> None:
    for primitive, values in EDGES.items():
        single = sql.array(*(typed_literal(value, primitive) for value in values))
        pairs = literal_array([(value, primitive), (value, primitive)] for value in values)
        same = sql.transform(pairs, lambda pair: pair["_1"]) == single
        alike = literal_array([(value, primitive)] for value in values) == single
        row = spark.range(1).selectExpr(alike.text, same.text).first()
        assert row == (True, True), primitive


def test_a_decimal_is_never_rounded() -> None:
    with pytest.raises(Inexact):
        typed_literal(Decimal("1.005"), t.DecimalType(9, 2))


def test_bound_types_agree_with_decoded_bounds(spark: SparkSession) -> None:
    kinds = list(VALUES)
    table = pa.table([decode_bounds(pa.array([None], pa.binary()), str(kind)) for kind in kinds], list(map(str, kinds)))
    # Spark infers TIMESTAMP_NTZ from Arrow only with this setting.
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        inferred = [field.dataType for field in spark.createDataFrame(table).schema]
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert inferred == [bound_type(kind) for kind in kinds]


def test_spark_types() -> None:
    struct = t.StructType(
        t.NestedField(1, "id", t.UUIDType(), required=True),
        t.NestedField(2, "at", t.TimestamptzNanoType(), required=False),
        t.NestedField(3, "tags", t.ListType(4, t.TimeType(), element_required=True), required=False),
        t.NestedField(5, "m", t.MapType(6, t.StringType(), 7, t.FixedType(3), value_required=False), required=False),
        t.NestedField(8, "v", VariantType(), required=False),
        t.NestedField(9, "g", t.GeometryType(), required=False),
        t.NestedField(10, "u", t.UnknownType(), required=False),
    )
    converted = spark_type(struct)
    assert converted.simpleString() == (
        "struct<id:string,at:bigint,tags:array<bigint>,m:map<string,binary>,v:variant,g:binary,u:void>"
    )
    # A required field is null where its optional struct is.
    assert all(field.nullable for field in converted)
    assert (converted["tags"].dataType.containsNull, converted["m"].dataType.valueContainsNull) == (True, True)


def test_public_uuids_are_text(spark: SparkSession) -> None:
    value = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    table = spark.createDataFrame(pa.table({"u": pa.array([value.bytes, None], pa.binary())}))
    assert [row[0] for row in table.selectExpr(public_value(sql.col("u"), t.UUIDType()).text).collect()] == [
        str(value),
        None,
    ]
    assert public_value(sql.col("u"), t.BinaryType()).text == "`u`"
