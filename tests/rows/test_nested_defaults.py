"""Defaults of fields in structs, lists and maps, and of nested types: read from old files, and written to new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    GeometryType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UnknownType,
)
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.schema import VariantType, schema_from_json, schema_to_json
from tests.peers.java import Java
from tests.peers.workshop import Workshop
from tests.rows.test_default_types import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

X = NestedField(1, "x", LongType())
# The places of structs that get fields, as paths of fields.
PLACES: dict[str, tuple[str, ...]] = {"s": ("s",), "n": ("n", "q"), "l": ("l",), "m": ("m",)}
OLD = [
    {
        "id": 1,
        "s": {"x": 1},
        "n": {"q": {"x": 1}},
        "l": [{"x": 1}, None, {"x": 2}],
        "m": [("a", {"x": 1}), ("b", None)],
    },
    {"id": 2, "s": None, "n": {"q": None}, "l": [], "m": []},
    {"id": 3, "s": {"x": 3}, "n": None, "l": None, "m": None},
]
# Types that Python's values of rows show as in `DEFAULTS`.
KINDS = {f"d{index}": kind for index, kind in enumerate(DEFAULTS)}


def inside(kind: Any) -> StructType:
    return StructType(NestedField(kind, "x", LongType()))


SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "s", inside(20)),
    NestedField(3, "n", StructType(NestedField(30, "q", inside(31)))),
    NestedField(4, "l", ListType(40, inside(41), element_required=False)),
    NestedField(5, "m", MapType(50, StringType(), 51, inside(52), value_required=False)),
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("x", pa.int64())])),
        ("n", pa.struct([("q", pa.struct([("x", pa.int64())]))])),
        ("l", pa.list_(pa.struct([("x", pa.int64())]))),
        ("m", pa.map_(pa.string(), pa.struct([("x", pa.int64())]))),
    ]
)


def old_rows(start: int = 0) -> pa.Table:
    return pa.Table.from_pylist([row | {"id": row["id"] + start} for row in OLD], ARROW)


def added_to(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return a row with fields added to each of its structs."""

    def of(value: Any) -> Any:
        return None if value is None else value | fields

    n = row["n"]
    return row | {
        "s": of(row["s"]),
        "n": None if n is None else {"q": of(n["q"])},
        "l": None if row["l"] is None else [of(item) for item in row["l"]],
        "m": None if row["m"] is None else [(key, of(item)) for key, item in row["m"]],
    }


@pytest.fixture(params=["parquet", "orc", "avro"])
def table(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    modes = {f"write.{operation}.mode": "copy-on-write" for operation in ("delete", "update", "merge")}
    properties = {"write.format.default": request.param, **modes}
    return catalog.create_table("db.t", SCHEMA, properties=properties, format_version=3, spark=spark).append(old_rows())


def evolved(table: sm.Table, without: tuple[str, ...] = ()) -> sm.Table:
    """Return the table after the structs got a field of each type, with a default."""
    current = schema_to_json(table.schema())
    ids = iter(range(100, 1000))
    for place in PLACES.values():
        fields = struct_at(current, place)
        for name, kind in ((name, kind) for name, kind in KINDS.items() if kind not in without):
            default = DEFAULTS[kind][0]
            field = {"id": next(ids), "name": name, "required": False, "type": kind}
            fields.append(field | {"initial-default": default, "write-default": default})
    update = table.update_schema()
    update.union_by_name(schema_from_json(current))
    update.commit()
    return table.refresh()


def struct_at(schema: dict[str, Any], place: tuple[str, ...]) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = schema["fields"]
    for name in place:
        kind = next(field for field in fields if field["name"] == name)["type"]
        fields = (kind.get("element") or kind.get("value") or kind)["fields"]
    return fields


def read_both(table: sm.Table, *selected: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows as Arrow and as Spark return them."""
    scan = table.scan(selected_fields=selected or ("*",))
    for rows in (scan.to_arrow(), scan.to_df().toArrow()):
        yield sorted(rows.to_pylist(), key=lambda row: row["id"])


VALUES = {name: DEFAULTS[kind][1] for name, kind in KINDS.items()}


def test_fields_of_every_type(table: sm.Table, spark: SparkSession) -> None:
    table = evolved(table)
    expected = [added_to(row, VALUES) for row in OLD]
    for rows in read_both(table):
        assert rows == expected
    # New rows lack the fields, as rows of Arrow and of Spark.
    table = table.append(old_rows(10)).append(spark.createDataFrame(old_rows(20)))
    expected = [added_to(row | {"id": row["id"] + start}, VALUES) for start in (0, 10, 20) for row in OLD]
    for rows in read_both(table):
        assert rows == expected
    for name in ("d0", "d13", "d5"):
        for rows in read_both(table, "id", f"s.{name}", f"l.{name}", f"m.value.{name}", f"n.q.{name}"):
            assert rows == [only(row, name) for row in expected]


def only(row: dict[str, Any], name: str) -> dict[str, Any]:
    return added_to(
        {
            "id": row["id"],
            "s": row["s"] and {},
            "n": row["n"] and {"q": row["n"]["q"] and {}},
            "l": row["l"] and [item and {} for item in row["l"]],
            "m": row["m"] and [(key, item and {}) for key, item in row["m"]],
        },
        {name: VALUES[name]},
    )


def with_nested(table: sm.Table) -> sm.Table:
    """Return the table after every struct got a struct, a list and a map with defaults, and the table a struct."""
    table.update_schema().add_column(
        "top",
        StructType(
            NestedField(1, "a", IntegerType(), required=True, initial_default=7, write_default=8),
            NestedField(2, "b", StringType()),
            NestedField(3, "c", inside(4)).model_copy(update={"initial_default": "{}", "write_default": "{}"}),
        ),
        required=True,
        default_value={},
    ).commit()
    update = table.refresh().update_schema()
    for place in PLACES.values():
        y = NestedField(1, "y", IntegerType(), initial_default=5, write_default=6)
        kind = StructType(y, NestedField(2, "z", StringType()))
        update.add_column((*place, "st"), kind, default_value={})
        update.add_column(
            (*place, "li"), ListType(1, IntegerType(), element_required=False), default_value=[1, None, 3]
        )
        update.add_column((*place, "ma"), MapType(1, StringType(), 2, LongType()), default_value={"k": 1})
        update.add_column((*place, "ll"), ListType(1, kind, element_required=False), default_value=[{}])
        update.add_column((*place, "no"), ListType(1, IntegerType()), default_value=())
    update.commit()
    return table.refresh()


TOP = {"a": 7, "b": None, "c": {"x": None}}
NESTED = {"st": {"y": 5, "z": None}, "li": [1, None, 3], "ma": [("k", 1)], "ll": [{"y": 5, "z": None}], "no": []}
WRITTEN = NESTED | {"st": {"y": 6, "z": None}, "ll": [{"y": 6, "z": None}]}


def test_defaults_of_nested_types(table: sm.Table, spark: SparkSession) -> None:
    table = with_nested(table)
    old = [added_to(row, NESTED) | {"top": TOP} for row in OLD]
    for rows in read_both(table):
        assert rows == old
    for rows in read_both(table, "id", "top.c", "s.st.y"):
        assert rows == [{"id": row["id"], "top": {"c": {"x": None}}, "s": row["s"] and {"st": {"y": 5}}} for row in old]
    table = table.append(old_rows(10)).append(spark.createDataFrame(old_rows(20)))
    new_top = TOP | {"a": 8}
    new = [added_to(row | {"id": row["id"] + start}, WRITTEN) | {"top": new_top} for start in (10, 20) for row in OLD]
    for rows in read_both(table):
        assert rows == [*old, *new]
    assert table.scan("top.a = 8 and s.st.y = 6").to_df().count() == 4
    assert table.scan("top.a = 7").to_arrow().num_rows == 3

    # Rows that are written again keep what they have.
    table = table.update({"s": F.struct(F.lit(9).cast("bigint").alias("x"))}, "id = 1")
    old[0]["s"] = {"x": 9} | WRITTEN
    source = spark.sql("SELECT explode(array(3L, 31L)) id, named_struct('x', 4L) s")
    table = table.upsert(source, ["id"])
    old[2]["s"] = {"x": 4} | WRITTEN
    inserted = {"id": 31, "s": {"x": 4} | WRITTEN, "n": None, "l": None, "m": None, "top": new_top}
    table = table.merge(spark.sql("SELECT 32L id"), "id").when_not_matched().insert({"id": F.col("source.id")}).merge()
    for rows in read_both(table):
        assert rows == [*old, *new, inserted, inserted | {"id": 32, "s": None}]


def test_partitions_by_a_default_inside_a_default(table: sm.Table, spark: SparkSession) -> None:
    table = with_nested(table)
    table.update_spec().add_identity("s.st.y").add_identity("top.a").commit()
    table = table.refresh().append(old_rows(10)).append(spark.createDataFrame(old_rows(20)))
    for rows in read_both(table, "id", "top.a", "s.st.y"):
        assert [(row["top"]["a"], row["s"] and row["s"]["st"]["y"]) for row in rows] == [
            (7, 5), (7, None), (7, 5), *[(8, 6), (8, None), (8, 6)] * 2
        ]  # fmt: skip
    assert {row.id for row in table.scan("s.st.y = 6").to_df().collect()} == {11, 13, 21, 23}
    assert {row.id for row in table.scan("top.a = 7").to_df().collect()} == {1, 2, 3}


def test_a_new_write_default(table: sm.Table) -> None:
    table = with_nested(table)
    update = table.update_schema()
    update.set_default_value(("l", "element", "li"), [9]).set_default_value(("s", "st"), None)
    update.set_default_value(("n", "q", "st", "y"), 10).commit()
    table = table.refresh().append(old_rows(10))
    for rows in read_both(table):
        assert rows[:3] == [added_to(row, NESTED) | {"top": TOP} for row in OLD]
        first = added_to(OLD[0] | {"id": 11}, WRITTEN) | {"top": TOP | {"a": 8}}
        for item in first["l"]:
            if item is not None:
                item["li"] = [9]
        first["s"]["st"] = None
        first["n"]["q"]["st"] = {"y": 10, "z": None}
        assert rows[3] == first


@pytest.mark.parametrize("table", ["parquet"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "default", "problem"),
    [
        (inside(1), {"x": 1}, r"the default of a struct is \{\}, with the defaults of its fields, or None"),
        (inside(1), 5, r"the default of a struct is \{\}"),
        (ListType(1, IntegerType()), 5, "expected a value of type list<int>"),
        (ListType(1, IntegerType()), ["a"], "Could not convert"),
        (ListType(1, IntegerType()), [None], "expected a value of type int"),
        (MapType(1, StringType(), 2, IntegerType()), [1], "expected a value of type map<string, int>"),
    ],
)
def test_defaults_that_do_not_fit(kind: Any, default: Any, problem: str, table: sm.Table) -> None:
    with pytest.raises(sm.ValidationError, match=rf"the default value of s\.new is .*: .*{problem}"):
        table.update_schema().add_column(("s", "new"), kind, default_value=default)


@pytest.mark.parametrize("table", ["parquet"], indirect=True)
def test_required_fields_without_a_default(table: sm.Table) -> None:
    kind = StructType(NestedField(1, "a", IntegerType(), required=True))
    problem = r"the default value of new is \{\}: its field a is required and has no default"
    with pytest.raises(sm.ValidationError, match=problem):
        table.update_schema().add_column("new", kind, default_value={}).commit()
    table.update_schema().add_column("new", kind).commit()
    with pytest.raises(sm.ValidationError, match=problem):
        table.refresh().update_schema().set_default_value("new", {}).commit()


@pytest.mark.parametrize(
    ("kind", "default", "problem"),
    [
        ("variant", 1, "a default of type variant must be null"),
        ("unknown", 1, "a default of type unknown must be null"),
        ("geometry", "00", r"a default of type geometry.* must be null"),
        ({"type": "list", "element-id": 2, "element": "int", "element-required": True}, [None], "it is required"),
        ({"type": "list", "element-id": 2, "element": "int", "element-required": True}, {}, "an array is expected"),
        ({"type": "struct", "fields": []}, [], "an object is expected"),
        (
            {"type": "struct", "fields": [{"id": 2, "name": "a", "type": "int", "required": False}]},
            {"2": "x"},
            r"\.2 is 'x': not a valid default for type int",
        ),
        (
            {"type": "map", "key-id": 2, "key": "string", "value-id": 3, "value": "int", "value-required": False},
            {"keys": ["a"], "values": []},
            "it has 1 keys and 0 values",
        ),
    ],
)
def test_defaults_that_the_spec_forbids(kind: Any, default: Any, problem: str) -> None:
    field = {"id": 1, "name": "a", "required": False, "type": kind, "write-default": default}
    with pytest.raises(CorruptFileError, match=rf"schema: fields\[0\]\.write-default.*{problem}"):
        schema_from_json({"type": "struct", "schema-id": 0, "fields": [field]})


@pytest.mark.parametrize("kind", [UnknownType(), VariantType(), GeometryType()])
def test_a_new_table_has_no_default_that_the_spec_forbids(kind: Any, tmp_path: Path) -> None:
    field = NestedField(2, "b", kind).model_copy(update={"write_default": "1"})
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    with pytest.raises(sm.ValidationError, match="write-default of the new schema is '1': a default of type"):
        catalog.create_table("db.t", Schema(X, field), format_version=3)


def test_a_new_table_has_no_values_in_the_default_of_a_struct(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "s", inside(2)).model_copy(update={"write_default": '{"2": 1}'}))
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    with pytest.raises(sm.ValidationError, match="column s has a default with values: the default of a struct is"):
        catalog.create_table("db.t", schema, format_version=3)


# -- Iceberg's Java library -------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.classic
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_iceberg_reads_the_same_rows(file_format: str, spark: SparkSession) -> None:
    """Java can't read defaults of ORC files, nor defaults of nested types, which its schemas refuse."""
    java = Java(spark)
    shop = Workshop(java, f"nested_defaults_{file_format}")
    inner = "STRUCT<x: BIGINT>"
    shop.create(
        f"id BIGINT, s {inner}, n STRUCT<q: {inner}>, l ARRAY<{inner}>, m MAP<STRING, {inner}>",
        version=3,
        properties={"write.format.default": file_format},
    )
    spark.createDataFrame(old_rows()).writeTo(shop.sql_name).append()
    # Spark has no such types.
    table = evolved(sm.load_table(str(shop.table.location()), spark=spark), ("time", "timestamp_ns", "timestamptz_ns"))
    of_java = java.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java.session, shop.sql_name)
    types, lit = java.iceberg.types.Types, java.iceberg.expressions.Expressions.lit
    of_java.updateSchema().addColumn("m.value", "j", types.IntegerType.get(), lit(12)).commit()
    table = table.refresh().append(old_rows(10))
    shop.sql("REFRESH TABLE {t}")
    theirs = sorted(spark.table(shop.sql_name).toArrow().to_pylist(), key=lambda row: row["id"])
    assert len(theirs) == 6
    for rows in read_both(table):
        assert rows == theirs
