"""Nested values are assigned by the names of their fields, and columns may have any name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, SparkSession

POINT = StructType(NestedField(11, "x", LongType(), required=True), NestedField(12, "y", DoubleType()))
PAIR = StructType(NestedField(32, "a", LongType()), NestedField(33, "b", LongType()))
NAMED = StructType(NestedField(43, "u", UUIDType()), NestedField(44, "t", StringType()))
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "point", POINT),
    NestedField(3, "points", ListType(31, PAIR, element_required=False)),
    NestedField(4, "named", MapType(41, StringType(), 42, NAMED, value_required=False)),
)
ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
ROWS = f"""VALUES
    (1L, named_struct('x', 1L, 'y', 1.5D), array(named_struct('a', 1L, 'b', 2L)),
     map('k', named_struct('u', '{ID}', 't', 'v'))),
    (2L, NULL, NULL, NULL),
    (3L, named_struct('x', 3L, 'y', NULL), array(NULL), map('k', NULL)) AS t(id, point, points, named)"""
# The same fields in another order and with smaller types, except for an absent one.
POINT_BY_NAME = "named_struct('y', 2.5F, 'x', 7)"
POINTS_BY_NAME = "array(named_struct('b', 8, 'a', 9), NULL)"
NAMED_BY_NAME = f"map('m', named_struct('u', unhex('{ID.replace('-', '')}')), 'n', NULL)"


@pytest.fixture(params=[2, 4])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    properties = {f"write.{operation}.mode": "merge-on-read" for operation in ("update", "delete", "merge")}
    table = catalog.create_table("db.t", SCHEMA, format_version=request.param, properties=properties, spark=spark)
    return table.append(spark.sql(f"SELECT * FROM {ROWS}"))


def row_of(table: sm.Table, key: int) -> Any:
    (row,) = table.scan(f"id = {key}").to_df().drop("id").collect()
    return row.asDict(recursive=True)


CHANGED = {
    "point": {"x": 7, "y": 2.5},
    "points": [{"a": 9, "b": 8}, None],
    "named": {"m": {"u": ID, "t": None}, "n": None},
}


def by_name() -> dict[str, Column]:
    return {"point": F.expr(POINT_BY_NAME), "points": F.expr(POINTS_BY_NAME), "named": F.expr(NAMED_BY_NAME)}


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_update(table: sm.Table, mode: str) -> None:
    before = [row_of(table, key) for key in (2, 3)]
    with table.transaction() as tx:
        tx.set_properties({"write.update.mode": mode})
    table = table.refresh()
    table = table.update(by_name(), "id = 1")
    assert row_of(table, 1) == CHANGED
    assert [row_of(table, key) for key in (2, 3)] == before


def test_merge_with_values(table: sm.Table, spark: SparkSession) -> None:
    merge = table.merge(spark.sql("SELECT 3L id UNION ALL SELECT 9L"), "id")
    table = (
        merge.when_matched()
        .update(by_name())
        .when_not_matched()
        .insert({"id": F.col("source.id"), **by_name()})
        .merge()
    )
    assert row_of(table, 3) == row_of(table, 9) == CHANGED


def test_merge_of_whole_rows(table: sm.Table, spark: SparkSession) -> None:
    source = spark.sql(
        f"""SELECT id, {NAMED_BY_NAME} named, {POINTS_BY_NAME} points, IF(id = 2, NULL, {POINT_BY_NAME}) point
            FROM VALUES (2L), (3L), (9L) AS s(id)"""
    )
    table = table.merge(source, "id").when_matched().update_all().when_not_matched().insert_all().merge()
    assert row_of(table, 3) == row_of(table, 9) == CHANGED
    assert row_of(table, 2) == {**CHANGED, "point": None}


def test_upsert(table: sm.Table, spark: SparkSession) -> None:
    source = spark.sql(f"SELECT explode(array(1L, 9L)) id, {POINT_BY_NAME} point, {NAMED_BY_NAME} named")
    table = table.upsert(source, ["id"])
    assert row_of(table, 9) == {**CHANGED, "points": None}
    assert row_of(table, 1) == {**CHANGED, "points": [{"a": 1, "b": 2}]}


def test_values_that_do_not_fit(table: sm.Table, spark: SparkSession) -> None:
    snapshots = len(table.snapshots())
    for value, problem in {
        "named_struct('x', 1, 'z', 2)": "column point.z is not in the table, which has 'x', 'y'",
        "named_struct('y', 1D)": "column point.x is required and has no write default, and the rows lack it",
        "named_struct('x', 'a')": "column point.x of the rows is string: the table has type long",
        "1": "column point of the rows is int: the table has type struct",
        "nowhere": "point: .*UNRESOLVED_COLUMN",
    }.items():
        with pytest.raises(sm.ValidationError, match=problem):
            table.update({"point": F.expr(value)}, "id = 1")
        merge = table.merge(spark.sql("SELECT 1L id"), "id").when_matched().update({"point": F.expr(value)})
        with pytest.raises(sm.ValidationError, match=rf"clause 1 \(when_matched\): {problem}"):
            merge.merge()
    for literal in ({"x": 1}, object()):
        with pytest.raises(sm.ValidationError, match=r"point: .*(literal|Literal)"):
            table.update({"point": literal}, "id = 1")
    with pytest.raises(sm.ValidationError, match=r"point\.x is required"):
        table.update({"point": F.expr("named_struct('x', CAST(NULL AS BIGINT))")}, "id = 1")
    assert len(table.refresh().snapshots()) == snapshots


def test_uuid_values(table: sm.Table) -> None:
    value = F.create_map(F.lit("k"), F.struct(F.lit(str(UUID(ID)).upper()).alias("u")))
    assert row_of(table.update({"named": value}, "id = 1"), 1)["named"] == {"k": {"u": ID, "t": None}}


@pytest.mark.parametrize("version", [2, 4])
def test_names_with_dots_and_quotes(version: int, spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "a.b", LongType()), NestedField(2, "c`d", IntegerType()), NestedField(3, "e f,(g)", StringType())
    )
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema, format_version=version, spark=spark)
    names = ["a.b", "c`d", "e f,(g)"]

    def rows() -> list[tuple[Any, ...]]:
        return sorted(map(tuple, table.scan().to_df().collect()))

    table = table.append(
        spark.createDataFrame([(1, 10, "x"), (2, 20, "y"), (3, 30, "z")], schema="a BIGINT, b INT, c STRING").toDF(
            *names
        )
    )
    table = table.update({"c`d": F.col("`c``d`") + 1, "e f,(g)": "new"}, EqualTo("a.b", 1))
    assert rows() == [(1, 11, "new"), (2, 20, "y"), (3, 30, "z")]
    table = table.delete(EqualTo("a.b", 2))
    source = spark.createDataFrame([(3, 33, "u"), (4, 40, "i")], schema="a BIGINT, b INT, c STRING").toDF(*names)
    table = table.upsert(source, ["a.b"])
    expected = [(1, 11, "new"), (3, 33, "u"), (4, 40, "i")]
    assert rows() == expected
    for order in ("`a.b` DESC", "`e f,(g)`, `c``d` DESC", "zorder(`a.b`, `c``d`)"):
        plan = table.maintenance.rewrite_data_files(strategy="sort", sort_order=order, rewrite_all=True)
        plan.commit()
        table = table.refresh()
        assert rows() == expected
        assert table.scan().plan_files().count() == 1
    table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    table = table.refresh()
    assert rows() == expected


def test_partitions_of_nested_defaults(spark: SparkSession, tmp_path: Path) -> None:
    """A field that rows lack has its write default, but is null if its struct is."""
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA, format_version=3, spark=spark)
    table.update_schema().add_column(("point", "z"), IntegerType(), default_value=5).commit()
    table.refresh().update_spec().add_field("point.z", IdentityTransform(), "z").commit()
    table = table.refresh().append(spark.sql(f"SELECT id, point FROM {ROWS}"))
    files = table.inspect.data_files().selectExpr("partition.z", "record_count").collect()
    assert sorted(map(tuple, files), key=repr) == [(5, 2), (None, 1)]
    for row_filter, ids in (("point.z is null", {2}), ("point.z = 5", {1, 3})):
        assert {row.id for row in table.scan(row_filter).to_df().collect()} == ids


def test_nested_lists_without_elements(spark: SparkSession, tmp_path: Path) -> None:
    """Spark passes the lists in empty lists without offsets, which crashed Python workers."""
    strings = ListType(12, StringType(), element_required=False)
    longs = MapType(32, StringType(), 33, ListType(34, LongType()))
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "lists", ListType(11, strings, element_required=False)),
        NestedField(3, "maps", ListType(21, MapType(22, StringType(), 23, StringType()), element_required=False)),
        NestedField(4, "point", StructType(NestedField(31, "m", longs))),
    )
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema, spark=spark)
    lists, maps = "ARRAY<ARRAY<STRING>>", "ARRAY<MAP<STRING, STRING>>"
    point = "STRUCT<m: MAP<STRING, ARRAY<BIGINT>>>"
    empty = f"CAST(array() AS {lists}) AS lists, CAST(array() AS {maps}) AS maps, CAST(NULL AS {point}) AS point"
    nulls = f"CAST(NULL AS {lists}) AS lists, CAST(NULL AS {maps}) AS maps, CAST(named_struct('m', map()) AS {point})"
    for number, values in enumerate((empty, f"{nulls} AS point", empty)):
        table = table.append(spark.sql(f"SELECT id + 3 * {number} AS id, {values} FROM range(3)"))
    table = table.update({"id": F.col("id") + 10}, "id < 2")
    sorting = {"strategy": "sort", "sort_order": "id desc", "rewrite_all": True}
    table.maintenance.rewrite_data_files(**sorting).commit()
    table = table.refresh()
    rows = {row["id"]: (row["lists"], row["maps"], row["point"]) for row in table.scan().to_df().collect()}
    assert sorted(rows) == [*range(2, 9), 10, 11]
    assert [rows[2], rows[10]] == [([], [], None)] * 2
    assert rows[3] == (None, None, ({},))


NESTED = "id BIGINT, p STRUCT<x: INT, q: STRUCT<y: STRING, `z.z`: DOUBLE>, l: ARRAY<INT>>, s STRING"
FULL = "named_struct('x', 1, 'q', named_struct('y', 'a', 'z.z', 1.5D), 'l', array(1))"
WITHOUT_Q = "named_struct('x', 3, 'q', null, 'l', null)"


@pytest.mark.java
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_fields_of_structs_are_assigned_as_in_sql(spark: SparkSession, mode: str) -> None:
    """A null struct becomes a struct whose other fields are null."""
    properties = {f"write.{command}.mode": mode for command in ("update", "merge")}
    shops = [Workshop(Java(spark), f"assigned_{side}_{mode}".replace("-", "_")) for side in ("ours", "sql")]
    for shop in shops:
        shop.create(NESTED, version=3, properties=properties)
        shop.sql(f"INSERT INTO {{t}} VALUES (1, {FULL}, 'a'), (2, NULL, 'b'), (3, {WITHOUT_Q}, 'c'), (4, NULL, 'd')")
    ours, sql = shops
    table = sm.load_catalog("java").load_table(f"peers.{ours.name}", spark)
    source = spark.sql("SELECT 2L AS id, 20 AS v UNION ALL SELECT 9L, 90")
    source.createOrReplaceTempView("assigned_source")
    table = table.update({"p.x": 5, "p.q.y": F.col("s"), "s": "new"}, "id < 3").update({"p.q.z.z": 7})
    table = (
        table.merge(source, ["id"])
        .when_matched().update({"p.x": F.col("source.v")})
        .when_not_matched_by_source("target.id = 3")
        .update({"p.x": F.expr("target.p.x + 1"), "p.q": F.expr("named_struct('z.z', 1F, 'y', 'm')")})
        .when_not_matched().insert({"id": F.col("source.id")})
        .merge()
    )  # fmt: skip
    sql.sql("UPDATE {t} SET p.x = 5, p.q.y = s, s = 'new' WHERE id < 3")
    sql.sql("UPDATE {t} SET p.q.`z.z` = 7")
    sql.sql(
        "MERGE INTO {t} t USING assigned_source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.p.x = s.v "
        "WHEN NOT MATCHED THEN INSERT (id, p, s) VALUES (s.id, null, null) WHEN NOT MATCHED BY SOURCE AND t.id = 3 "
        "THEN UPDATE SET t.p.x = t.p.x + 1, t.p.q = named_struct('y', 'm', 'z.z', 1.0D)"
    )
    rows = sorted(table.scan().to_df().collect(), key=repr)
    assert rows == sorted(sql.sql("SELECT * FROM {t}").collect(), key=repr)
    assert len(rows) == 5


def test_fields_that_are_not_assigned(table: sm.Table) -> None:
    whole = {"point": F.expr("named_struct('x', 1L, 'y', 1D)")}
    calls = {
        "point and point.x, a field of it, are both assigned": lambda: table.update({**whole, "point.x": 1}),
        "points.element.a is inside points, which is no struct": lambda: table.update({"points.element.a": 1}),
        "assigned column point.z is not in the table: did you mean": lambda: table.update({"point.z": 1}),
        "point.x: 'abc' does not fit long": lambda: table.update({"point.x": "abc"}),
        "point.x is a field of point: an insert assigns whole columns": lambda: (
            table.merge(table.scan().to_df(), ["id"]).when_not_matched().insert({"point.x": 1}).merge()
        ),
    }
    for problem, call in calls.items():
        with pytest.raises(sm.ValidationError, match=problem):
            call()
    with pytest.raises(sm.ValidationError, match=r"point\.x"):  # required, and null in the row whose struct was
        table.update({"point.y": 1.5})
