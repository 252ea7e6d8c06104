"""Which format version a new table has."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    UnknownType,
)

import sparkmeta as sm
from sparkmeta.spec.schema import VariantType
from tests.frames import local_frame
from tests.peers.java import Java
from tests.peers.twins import comparable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


UNFIT: list[tuple[IcebergType, Transform[Any, Any]]] = [
    (FloatType(), BucketTransform(4)),
    (BooleanType(), BucketTransform(4)),
    (IntegerType(), DayTransform()),
    (DateType(), HourTransform()),
    (DateType(), TruncateTransform(4)),
    (FixedType(4), TruncateTransform(2)),
    (StringType(), YearTransform()),
    (StructType(NestedField(2, "x", IntegerType())), IdentityTransform()),
]


def column_of(kind: IcebergType, transform: Transform[Any, Any], source: int = 1) -> dict[str, Any]:
    """A column `at`, and a partition field of it, or of the field with another id."""
    spec = PartitionSpec(PartitionField(source, 1000, transform, "p"))
    return {"schema": Schema(NestedField(1, "at", kind)), "partition_spec": spec}


def of_version_3(kind: IcebergType, **field: Any) -> dict[str, Any]:
    return {"schema": Schema(NestedField(1, "at", kind, **field)), "format_version": 3}


@pytest.fixture(params=["hadoop", "sql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> sm.Catalog:
    uri = {"uri": f"sqlite:///{tmp_path}/catalog.db"} if request.param == "sql" else {}
    catalog = sm.load_catalog("new", type=request.param, warehouse=f"file://{tmp_path}", **uri)
    catalog.create_namespace("ns")
    return catalog


@pytest.mark.parametrize(
    ("argument", "written", "version"),
    [(None, None, 2), (1, None, 1), (3, None, 3), (4, None, 4), (None, "1", 1), (None, "3", 3), (4, "4", 4)],
)
def test_the_version_of_a_new_table(
    spark: SparkSession, catalog: sm.Catalog, argument: int | None, written: str | None, version: int
) -> None:
    properties = {"owner": "me"} | ({"format-version": written} if written else {})
    table = catalog.create_table("ns.t", SCHEMA, properties=properties, format_version=argument, spark=spark)
    assert table.format_version == version
    assert table.refresh().properties == {"owner": "me", "write.parquet.compression-codec": "zstd"}


NO_TEXT: list[tuple[Any, str]] = [
    ({"a": None}, "properties['a'] is None: keys and values are strings"),
    ({5: "x"}, "properties[5] is 'x': keys and values are strings"),
    ([1], "properties is [1]: expected a mapping of strings to strings"),
    ("ab", "properties is 'ab': expected a mapping of strings to strings"),
]


@pytest.mark.parametrize(("properties", "problem"), NO_TEXT)
def test_properties_that_are_no_text(spark: SparkSession, catalog: sm.Catalog, properties: Any, problem: str) -> None:
    with pytest.raises(sm.ValidationError, match=re.escape(f"ns/t: {problem}")):
        catalog.create_table("ns.t", SCHEMA, properties=properties, spark=spark)
    assert not catalog.table_exists("ns.t")
    with pytest.raises(sm.ValidationError, match=re.escape(f"other: {problem}")):
        catalog.create_namespace("other", properties)
    assert not catalog.namespace_exists("other")


OTHER_TYPES: list[tuple[tuple[Any, ...], str]] = [
    (("id long",), "schema is 'id long': expected a Schema of pyiceberg or Arrow"),
    ((SCHEMA, ["id"]), "partition_spec is ['id']: expected a PartitionSpec of pyiceberg.partitioning"),
    ((SCHEMA, PartitionSpec(), "id"), "sort_order is 'id': expected a SortOrder of pyiceberg.table.sorting"),
    (
        (SCHEMA, PartitionSpec(PartitionField(99, 1000, IdentityTransform(), "x"))),
        "1000: x: identity(99): the schema has no column with the id 99",
    ),
]


@pytest.mark.parametrize(("arguments", "problem"), OTHER_TYPES)
def test_layouts_of_other_types(
    spark: SparkSession, catalog: sm.Catalog, arguments: tuple[Any, ...], problem: str
) -> None:
    with pytest.raises(sm.ValidationError, match=re.escape(problem)):
        catalog.create_table("ns.t", *arguments, spark=spark)
    assert not catalog.table_exists("ns.t")


RESERVED = (
    "uuid", "snapshot-count", "current-snapshot-id", "current-snapshot-summary", "current-snapshot-timestamp-ms",
    "current-schema", "default-partition-spec", "default-sort-order",
)  # fmt: skip


def test_reserved_properties_are_not_stored(spark: SparkSession, catalog: sm.Catalog) -> None:
    """As in Iceberg's Java library."""
    properties = {**dict.fromkeys(RESERVED, "7"), "owner": "me"}
    table = catalog.create_table("ns.t", SCHEMA, properties=properties, spark=spark)
    assert table.properties == {"owner": "me", "write.parquet.compression-codec": "zstd"}
    for name in RESERVED:
        with pytest.raises(sm.ValidationError, match=f"^ns.t: the table property {name} is '9': it is reserved"):
            table.transaction().set_properties({"owner": "you", name: "9"})
    assert table.refresh().metadata_location == table.metadata_location


def test_numbers_in_properties_become_text(spark: SparkSession, catalog: sm.Catalog) -> None:
    properties: dict[str, Any] = {"format-version": 3, "a": 5, "b": True}
    table = catalog.create_table("ns.t", SCHEMA, properties=properties, spark=spark)
    assert (table.format_version, table.properties["a"], table.properties["b"]) == (3, "5", "true")


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.update_spec().add_field("at", "bucket[0]", "b"), "'bucket.0.' is not a transform"),
        (lambda t: t.update_spec().add_field("at", BucketTransform(-1), "b"), "'bucket.-1.': there is no such"),
        (
            lambda t: t.update_sort_order().asc("at", TruncateTransform(1 << 40)),
            "sort order is 'truncate.1099511627776",
        ),
        (lambda t: t.update_schema().add_column("x", DecimalType(5, 9)), "new schema is 'decimal.5, 9.'"),
        (lambda t: t.update_schema().add_column("x", FixedType(-1)), "new schema is 'fixed.-1.'"),
        (
            lambda t: t.update_sort_order().asc("tags.element", IdentityTransform()),
            "sort field: column tags.element is inside a list or a map",
        ),
    ],
    ids=["bucket", "negative", "sort", "decimal", "fixed", "element"],
)
def test_changes_that_make_a_table_unreadable(
    spark: SparkSession, catalog: sm.Catalog, version: int, change: Callable[[sm.Table], Any], problem: str
) -> None:
    schema = Schema(NestedField(1, "at", LongType()), NestedField(2, "tags", ListType(3, LongType())))
    table = catalog.create_table("ns.t", schema, format_version=version, spark=spark)
    with pytest.raises(sm.ValidationError, match=f"ns/t: .*{problem}"):
        change(table).commit()
    assert table.refresh().metadata_location == table.metadata_location


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.update_spec().add_identity("x"), "partition field 'x'"),
        (lambda t: t.update_sort_order().asc("x", IdentityTransform()), "sort field"),
    ],
    ids=["spec", "sort"],
)
def test_variants_have_no_order_and_no_partitions(
    spark: SparkSession, catalog: sm.Catalog, change: Callable[[sm.Table], Any], what: str
) -> None:
    table = catalog.create_table("ns.t", Schema(NestedField(1, "x", VariantType())), format_version=3, spark=spark)
    with pytest.raises(sm.ValidationError, match=f"{what}: identity does not fit column x of type"):
        change(table).commit()
    assert table.refresh().metadata_location == table.metadata_location


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"partition_spec": PartitionSpec(PartitionField(1, 1000, BucketTransform(0), "b"))}, "'bucket.0.'"),
        ({"sort_order": SortOrder(SortField(1, transform=TruncateTransform(-5)))}, "'truncate.-5.': there is no such"),
        ({"schema": Schema(NestedField(1, "at", DecimalType(5, 9)))}, "'decimal.5, 9.'"),
        ({"properties": {"commit.retry.num-retries": "many"}}, "commit.retry.num-retries is 'many'"),
        *((column_of(kind, transform), "partition field 'p': .* does not fit column at") for kind, transform in UNFIT),
        (column_of(ListType(2, LongType()), IdentityTransform(), 2), "column at.element is inside a list or a map"),
        ({"sort_order": SortOrder(SortField(1, transform=DayTransform()))}, "sort field: day does not fit column at"),
        (
            {"partition_spec": PartitionSpec(*(PartitionField(1, n, BucketTransform(n), "b") for n in (1000, 1001)))},
            "partition field 'b': there are several of this name",
        ),
        ({"partition_spec": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), ""))}, "its name is empty"),
        (of_version_3(UnknownType(), required=True), "at is of type unknown: it must be optional"),
        (of_version_3(ListType(2, UnknownType(), element_required=True)), "at.element is of type unknown"),
        (of_version_3(DoubleType(), initial_default=float("inf")), "the default value of at is inf"),
        (of_version_3(FloatType(), write_default=float("nan")), "the default value of at is nan"),
        (of_version_3(DecimalType(3, 2), write_default=Decimal("123.4")), "the default value of at is Decimal"),
    ],
    ids=str,
)
def test_unreadable_tables(spark: SparkSession, catalog: sm.Catalog, part: dict[str, Any], problem: str) -> None:
    parts = {"schema": Schema(NestedField(1, "at", LongType()))} | part
    with pytest.raises(sm.ValidationError, match=f"ns/t: .*{problem}"):
        catalog.create_table("ns.t", spark=spark, **parts)
    assert not catalog.table_exists("ns.t")


@pytest.mark.parametrize(
    ("argument", "written", "kind", "problem"),
    [
        (0, None, sm.UnsupportedError, "format version '0'"),
        (5, None, sm.UnsupportedError, "format version '5'"),
        (None, "two", sm.UnsupportedError, "format version 'two'"),
        (3, "2", sm.ValidationError, "the property format-version is '2', and format_version is 3"),
    ],
)
def test_versions_that_are_refused(
    spark: SparkSession,
    catalog: sm.Catalog,
    argument: int | None,
    written: str | None,
    kind: type[Exception],
    problem: str,
) -> None:
    properties = {"format-version": written} if written else {}
    with pytest.raises(kind, match=problem):
        catalog.create_table("ns.t", SCHEMA, properties=properties, format_version=argument, spark=spark)
    assert catalog.list_tables("ns") == []


NESTED = Schema(
    NestedField(7, "id", LongType(), required=True),
    NestedField(3, "at", TimestampType()),
    NestedField(
        9,
        "tags",
        ListType(21, StructType(NestedField(30, "k", StringType(), doc="a key"), NestedField(12, "v", LongType()))),
    ),
    NestedField(10, "by_name", MapType(40, StringType(), 41, LongType(), value_required=False)),
    NestedField(11, "s", StructType(NestedField(50, "x", StringType(), required=True))),
    identifier_field_ids=[7],
)
LAYOUT = (
    PartitionSpec(PartitionField(3, 5, MonthTransform(), "at_month"), PartitionField(7, 9, BucketTransform(4), "b")),
    SortOrder(SortField(50, transform=IdentityTransform()), order_id=3),
)


@pytest.mark.java
@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_is_that_of_java(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """Ids, the keys of each version, and empty lists."""
    java = Java(spark)
    iceberg = java.iceberg
    schema = iceberg.SchemaParser.fromJson(NESTED.model_dump_json())
    spec = iceberg.PartitionSpecParser.fromJson(schema, LAYOUT[0].model_dump_json())
    order = iceberg.SortOrderParser.fromJson(schema, LAYOUT[1].model_dump_json())
    tables = iceberg.hadoop.HadoopTables(java.session.sessionState().newHadoopConf())
    properties = {"format-version": str(version), "owner": "me"}
    tables.create(schema, spec, order, properties, f"file://{tmp_path}/java")
    catalog = sm.load_catalog("new", type="hadoop", warehouse=f"file://{tmp_path}", spark=spark)
    catalog.create_table("ns.t", NESTED, *LAYOUT, properties=properties, spark=spark)
    ours, theirs = (
        json.loads((tmp_path / folder / "metadata" / "v1.metadata.json").read_text()) for folder in ("ns/t", "java")
    )
    assert comparable(ours) == comparable(theirs)
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("version", [3, 4])
def test_columns_of_version_3(spark: SparkSession, catalog: sm.Catalog, version: int) -> None:
    """Nanoseconds, and defaults of columns at any depth, under new ids."""
    inner = NestedField(8, "x", IntegerType(), initial_default=1, write_default=2)
    schema = Schema(
        NestedField(5, "at", TimestampNanoType()),
        NestedField(6, "s", StructType(inner)),
        NestedField(7, "list", ListType(9, StructType(NestedField(10, "y", StringType(), write_default="z")))),
        NestedField(11, "n", LongType(), required=True, initial_default=7, write_default=8, doc="counts"),
    )
    table = catalog.create_table("ns.t", schema, format_version=version, spark=spark).refresh()

    def defaults(name: str) -> tuple[Any, ...]:
        field = table.schema().find_field(name)
        return field.field_id, field.initial_default, field.write_default, field.doc

    names = ("at", "s", "list", "n", "s.x", "list.element.y")
    assert list(map(defaults, names)) == [
        (1, None, None, None), (2, None, None, None), (3, None, None, None), (4, 7, 8, "counts"),
        (5, 1, 2, None), (7, None, "z", None),
    ]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (NestedField(1, "at", TimestampNanoType()), "column at of type timestamp_ns"),
        (NestedField(1, "n", IntegerType(), initial_default=1), "the default of column n"),
    ],
)
def test_columns_that_need_version_3(
    spark: SparkSession, catalog: sm.Catalog, version: int, column: NestedField, problem: str
) -> None:
    with pytest.raises(sm.ValidationError, match=f"version {version} does not support {problem}"):
        catalog.create_table("ns.t", Schema(column), format_version=version, spark=spark)
    assert catalog.list_tables("ns") == []


@pytest.fixture(params=["hadoop", "sql", "rest"])
def upgrading(request: pytest.FixtureRequest, tmp_path: Path) -> sm.Catalog:
    if request.param == "rest":
        rest = sm.load_catalog("new", type="rest", uri=request.getfixturevalue("rest_uri"))
        rest.create_namespace("upgrading")
        return rest
    uri = {"uri": f"sqlite:///{tmp_path}/catalog.db"} if request.param == "sql" else {}
    catalog = sm.load_catalog("new", type=request.param, warehouse=f"file://{tmp_path}", **uri)
    catalog.create_namespace("upgrading")
    return catalog


def test_from_version_1_to_3(spark: SparkSession, upgrading: sm.Catalog) -> None:
    """Rows are written in every version, and get sequence numbers and row ids when a snapshot has them."""
    table = upgrading.create_table("upgrading.t", SCHEMA, format_version=1, spark=spark)
    ids: list[int] = []

    def append(table: sm.Table) -> sm.Table:
        ids.append(len(ids))
        return table.append(local_frame(spark, pa.table({"id": pa.array(ids[-1:], pa.int64())})))

    table = append(append(table))
    for version in (2, 3):
        table = table.maintenance.upgrade(version).commit()
        assert (table.format_version, table.refresh().format_version) == (version, version)
        assert sorted(row.id for row in table.scan().to_df().collect()) == ids
        table = append(table)
    numbers = {row.id: row.number for row in table.scan().select("id", "_last_updated_sequence_number").to_df()
               .withColumnRenamed("_last_updated_sequence_number", "number").collect()}  # fmt: skip
    assert numbers == {0: 0, 1: 0, 2: 1, 3: 2}
    row_ids = [row["_row_id"] for row in table.scan().select("_row_id").to_df().collect()]
    assert sorted(row_ids) == ids
    assert table.metadata.next_row_id == len(ids)  # type: ignore[union-attr]
