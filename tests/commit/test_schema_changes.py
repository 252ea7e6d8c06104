"""Changes of schemas and partition specs that pyiceberg's builders allow, and Iceberg's Java library refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    UUIDType,
)

import sparkmeta as sm
from sparkmeta.errors import InvalidChangeError, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "part", StringType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    return catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)


@pytest.mark.parametrize(
    ("kind", "value", "error", "problem"),
    [
        (
            DecimalType(3, 2),
            "123.45",
            ValidationError,
            "the default value of n is Decimal.'123.45'.: it is no value of",
        ),
        (DecimalType(3, 2), "0.125", InvalidChangeError, "Could not convert"),
        (FixedType(3), b"ab", InvalidChangeError, "Could not convert|Cannot convert"),
        (TimestampNanoType(), "2026-01-31T00:00:00", InvalidChangeError, "t: "),
        (IntegerType(), True, InvalidChangeError, "Cannot convert BooleanLiteral into int"),
    ],
    ids=str,
)
def test_default_values_that_do_not_fit(
    table: sm.Table, kind: Any, value: Any, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        table.update_schema().add_column("n", kind, default_value=value).commit()
    assert len(table.refresh().schema().fields) == len(table.schema().fields)


TYPES = {"d": DecimalType(9, 2), "s": StringType(), "b": BinaryType(), "f": FixedType(16), "n": IntegerType()}


@pytest.mark.parametrize(
    ("name", "kind", "allowed"),
    [
        ("d", DecimalType(12, 2), True),
        ("d", DecimalType(12, 4), False),
        ("d", DecimalType(9, 0), False),
        ("s", BinaryType(), False),
        ("b", StringType(), False),
        ("f", UUIDType(), False),
        ("n", LongType(), True),
    ],
    ids=str,
)
def test_types_that_a_column_may_become(
    spark: SparkSession, table: sm.Table, name: str, kind: Any, allowed: bool
) -> None:
    with table.update_schema() as update:
        for column, old in TYPES.items():
            update.add_column(f"x{column}", old)
    table, name = table.refresh(), f"x{name}"
    if not allowed:
        with pytest.raises(ValidationError, match=f"column {name} is of type .*: it can't become"):
            table.update_schema().update_column(name, kind)
        return
    table.update_schema().update_column(name, kind).commit()
    assert table.refresh().schema().find_field(name).field_type == kind


def test_a_union_keeps_the_scale_of_a_decimal(table: sm.Table) -> None:
    table.update_schema().add_column("d", DecimalType(9, 2)).commit()
    with pytest.raises(ValidationError, match=r"column d is of type .*: it can't become"):
        table.refresh().update_schema().union_by_name(Schema(NestedField(1, "d", DecimalType(12, 4))))


def test_columns_in_a_struct_that_is_deleted(table: sm.Table) -> None:
    with table.update_schema() as update:
        update.add_column("st", StructType(NestedField(90, "x", LongType())))
    table = table.refresh()
    with pytest.raises(ValidationError, match="column st will be deleted: nothing can be added to it"):
        table.update_schema().delete_column("st").add_column(("st", "z"), LongType())


def test_a_new_partition_field_with_the_name_of_a_removed_one(table: sm.Table) -> None:
    with table.update_spec() as spec:
        spec.add_field("id", "bucket[4]", "b")
    with table.refresh().update_spec() as spec:
        spec.remove_field("b").add_field("id", "bucket[8]", "b")
    names = [(field.name, str(field.transform)) for field in table.refresh().spec().fields]
    assert names[-1] == ("b", "bucket[8]")
