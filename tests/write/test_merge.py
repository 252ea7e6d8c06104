"""Merges are compared with Spark SQL's MERGE INTO by Iceberg's runtime, and on V4 trees with a model in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
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
from tests.peers.slices import SOAK
from tests.peers.workshop import Workshop
from tests.write.test_changes import MODES, frame, new_table, ordinary, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

Merging = sm.Merge[sm.Table]
# Rows of the source: a matched row to update, one to delete, one that no clause is about, a new row, one that is not
# added, and nulls in the key.
SOURCE = """VALUES (3, 'moved', 3, 'U'), (4, 'x', 4, 'D'), (5, 'y', 5, '-'), (100, 'b', 1, 'U'), (101, 'c', 2, '-'),
    (NULL, 'n', 9, 'U')"""
INSERT = "WHEN NOT MATCHED AND s.op = 'U' AND s.id IS NOT NULL THEN INSERT (id, part, n) VALUES (s.id, s.part, s.n)"

# name -> a merge in Spark SQL, and the same one by a builder.
MERGES: dict[str, tuple[str, Callable[[Merging], Merging]]] = {
    "matched": (
        """WHEN MATCHED AND s.op = 'D' THEN DELETE
           WHEN MATCHED AND s.op = 'U' THEN UPDATE SET n = t.n + s.n, part = s.part""",
        lambda merge: merge.when_matched("source.op = 'D'").delete().when_matched("source.op = 'U'").update(
            {"n": F.col("target.n") + F.col("source.n"), "part": F.col("source.part")}
        ),
    ),
    "not matched": (
        INSERT,
        lambda merge: merge.when_not_matched("source.op = 'U' AND source.id IS NOT NULL").insert_all(),
    ),
    "all kinds": (
        f"""WHEN MATCHED THEN UPDATE SET n = s.n {INSERT}
            WHEN NOT MATCHED BY SOURCE AND t.id < 10 THEN UPDATE SET n = -1
            WHEN NOT MATCHED BY SOURCE AND t.id > 25 THEN DELETE""",
        lambda merge: merge.when_matched().update({"n": F.col("source.n")})
        .when_not_matched("source.op = 'U' AND source.id IS NOT NULL").insert(
            {name: F.col(f"source.{name}") for name in ("id", "part", "n")}
        )
        .when_not_matched_by_source("target.id < 10").update({"n": -1})
        .when_not_matched_by_source(F.col("target.id") > 25).delete(),
    ),
}  # fmt: skip
TABLES = [(3, "merge-on-read"), (2, "merge-on-read"), (3, "copy-on-write"), (1, "copy-on-write"), (2, "copy-on-write")]


def source(spark: SparkSession) -> DataFrame:
    return spark.sql(f"SELECT * FROM {SOURCE} AS s(id, part, n, op)").selectExpr(
        "CAST(id AS BIGINT) id", "part", "n", "op"
    )


@pytest.mark.java
@pytest.mark.parametrize(("version", "mode"), TABLES if SOAK else TABLES[:2])
def test_rows_are_those_of_spark_sql(spark: SparkSession, version: int, mode: str) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    lineage = ("_row_id", "_last_updated_sequence_number") if version > 2 else ()
    theirs, ours = (Workshop(Java(spark), f"merge_{name}_{version}_{mode[0]}", catalog_name="java") for name in "ab")
    for shop in (theirs, ours):
        shop.create("id BIGINT, part STRING, n INT", "part", version=version, properties={"write.merge.mode": mode})
        for start in (0, 15):
            shop.insert(*(f"{i}, '{'ab'[i % 2]}', {i}" for i in range(start, start + 15)))
    source(spark).createOrReplaceTempView("merge_source")
    for clauses, build in MERGES.values() if SOAK else [MERGES["matched"], MERGES["all kinds"]]:
        table = sm.load_table(str(ours.folder), spark=spark)
        known = ids(table) if lineage else {}
        table = build(table.merge(source(spark), ["id"])).merge()
        theirs.sql(f"MERGE INTO {{t}} t USING merge_source s ON t.id = s.id {clauses}")
        ours.sql("REFRESH TABLE {t}")
        columns = ", ".join(("id", "part", "n", *lineage[1:]))
        expected = sorted(map(tuple, theirs.sql(f"SELECT {columns} FROM {{t}}").collect()), key=repr)
        assert sorted(map(tuple, ours.sql(f"SELECT {columns} FROM {{t}}").collect()), key=repr) == expected
        read = table.scan(selected_fields=("id", "part", "n", *lineage[1:])).to_df().collect()
        assert sorted(map(tuple, read), key=repr) == expected
        if lineage:
            peer = sm.load_table(str(theirs.folder), spark=spark)
            moved = {key: row_id for key, row_id in ids(table).items() if key in known}
            assert moved == {key: row_id for key, row_id in ids(peer).items() if key in known}
            assert len(set(ids(table).values())) == len(expected)


def ids(table: sm.Table) -> dict[int, int]:
    """Return the row id of each row by its key."""
    return {row[0]: row[1] for row in table.scan(selected_fields=("id", "_row_id")).to_df().collect()}


KEYS = st.integers(0, 11)
SOURCES = st.dictionaries(KEYS, st.tuples(st.sampled_from("abz"), st.integers(0, 9)), max_size=8)


@st.composite
def clauses(draw: st.DrawFn) -> list[tuple[str, int, str]]:
    """Draw clauses in order: the kind, a bound that n of the row must exceed, and the action."""
    drawn = []
    for kind, actions in (
        ("matched", ("update", "update_all", "delete")),
        ("not_matched", ("insert", "insert_all")),
        ("not_matched_by_source", ("update", "delete")),
    ):
        of_kind = st.tuples(st.just(kind), st.integers(-1, 8), st.sampled_from(actions))
        drawn += draw(st.lists(of_kind, max_size=2))
    return drawn or [("matched", -1, "update_all")]


def merged(rows: dict[int, tuple[str, int]], given_rows: dict[int, tuple[str, int]], chosen: Any) -> dict[int, Any]:
    """Return the rows of a merge by key, according to the model."""

    def clause_for(kind: str, n: int) -> str | None:
        return next((action for clause_kind, bound, action in chosen if clause_kind == kind and n > bound), None)

    result = {}
    for key, (part, n) in rows.items():
        kind = "matched" if key in given_rows else "not_matched_by_source"
        action = clause_for(kind, n)
        if action == "update":
            result[key] = (part, n + 100)
        elif action == "update_all":
            result[key] = given_rows[key]
        elif action is None:
            result[key] = (part, n)
    for key, (part, n) in given_rows.items():
        action = clause_for("not_matched", n) if key not in rows else None
        if action is not None:
            result[key] = (part, n) if action == "insert_all" else ("new", n)
    return result


@pytest.mark.parametrize("mode", MODES if SOAK else MODES[:1])
def test_trees_against_a_model(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    start = {key: ("ab"[key % 2], key) for key in range(8)}
    table = new_table(spark, tmp_path, write__merge__mode=mode)
    table = table.append(frame(spark, [(key, *row) for key, row in start.items()]))
    model = start

    @settings(
        max_examples=25 if SOAK else 3, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(SOURCES, clauses())
    def check(given_rows: dict[int, tuple[str, int]], chosen: list[tuple[str, int, str]]) -> None:
        nonlocal table, model
        merge = table.merge(frame(spark, [(key, *row) for key, row in given_rows.items()]), "id")
        for kind, bound, action in chosen:
            side = "source" if kind == "not_matched" else "target"
            when = getattr(merge, f"when_{kind}")(f"{side}.n > {bound}")
            values = {
                "update": {"n": F.col("target.n") + 100},
                "insert": {"id": F.col("source.id"), "part": "new", "n": F.col("source.n")},
            }
            merge = getattr(when, action)(*([values[action]] if action in values else []))
        model = merged(model, given_rows, chosen)
        table = merge.merge()
        assert rows_of(table) == sorted([(key, *row) for key, row in model.items()], key=repr)

    check()


def test_what_is_refused_and_what_is_not(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path).append(frame(spark, ordinary(0, 6)))
    twice = frame(spark, [(1, "a", 1), (1, "b", 2), (9, "b", 2), (9, "b", 3)])
    merge = table.merge(twice, "id")
    by_source, several = merge.when_not_matched_by_source, F.explode(F.array("source.n"))
    begun: dict[str, Merging] = {
        "needs at least one clause": merge,
        "precedes others of its kind": merge.when_matched().delete().when_matched().update_all(),
        r"row 0 of .* matches 2 rows of the source.*'id': 1": merge.when_matched("source.n > 5").delete(),
        "column no of the key is not in both the rows and": table.merge(twice, ["no"]).when_matched().delete(),
        r"clause 1 \(when_matched\): the condition is bigint": merge.when_matched("source.id").delete(),
        r"clause 1 \(when_matched\): .*nothing": merge.when_matched("nothing = 1").delete(),
        r"clause 1 \(when_not_matched_by_source\): .*source": merge.when_not_matched_by_source("source.n = 1").delete(),
        r"clause 1 \(when_not_matched_by_source\): .*AMBIGUOUS": by_source("id > 1").delete(),
        r"clause 1 \(when_not_matched_by_source\): n: .*AMBIGUOUS": by_source().update({"n": F.col("id")}),
        r"clause 1 \(when_matched\): .*GROUP": merge.when_matched("sum(source.n) > 1").delete(),
        r"clause 1 \(when_matched\): n: .*GENERATOR": merge.when_matched().update({"n": several}),
        r"clause 1 \(when_matched\): n: .*window functions": merge.when_matched().update({"n": F.expr(
            "row_number() OVER (ORDER BY source.n)"
        )}),
        r"clause 1 \(when_matched\): .*PARSE": merge.when_matched("source.n ==== 1 (").delete(),
        r"clause 1 \(when_matched\): n: .*": merge.when_matched().update({"n": F.col("other.n")}),
        "assigned column no is not in the table": merge.when_matched().update({"no": 1}),
        "n: 'n \\+ 1' does not fit int; an expression is a Column": merge.when_matched().update({"n": "n + 1"}),
        "n: 5000000000 does not fit int": merge.when_matched().update({"n": 5_000_000_000}),
        "column id is required .* gets no value": merge.when_not_matched().insert({"n": 1}),
        "column n of the rows is string": table.merge(
            spark.sql("SELECT 1L id, 'x' n"), "id"
        ).when_matched().update_all(),
    }  # fmt: skip
    for problem, refused in begun.items():
        with pytest.raises(sm.ValidationError, match=problem):
            refused.merge()
    assert table.refresh().metadata_location == table.metadata_location
    # A row that matches twice may be deleted, if nothing else could become of it; and rows are added as often.
    after = merge.when_matched().delete().when_not_matched().insert_all().merge()
    assert sorted(row[0] for row in rows_of(after)) == [0, 2, 3, 4, 5, 9, 9]
    # A condition instead of keys. Columns that the source lacks stay.
    pairs = spark.sql("SELECT 2 low, 4 high, 'changed' part")
    on = F.col("target.id").between(F.col("source.low"), F.col("source.high"))
    after = after.merge(pairs, on).when_matched().update_all().merge()
    assert [row[0] for row in rows_of(after) if row[1] == "changed"] == [2, 3, 4]
    snapshots = len(after.snapshots())
    after = after.merge(pairs, "target.id = source.low + 1000").when_matched().delete().merge()
    assert len(after.snapshots()) == snapshots
    with after.transaction() as tx:
        tx.set_properties({"owner": "x"})
        tx.merge(pairs, on, snapshot_properties={"job": "7"}).when_matched().delete().merge()
    after = after.refresh()
    assert sorted(row[0] for row in rows_of(after)) == [0, 5, 9, 9]
    assert after.current_snapshot().summary["job"] == "7"
    assert after.properties["owner"] == "x"


UPPER = "0A1B2C3D-0000-4000-8000-00000000000F"
OTHER = "f0000000-0000-4000-8000-0000d3c2b1a0"


@pytest.mark.parametrize(("kind", "key"), [("string", UPPER), ("binary", bytearray(UUID(UPPER).bytes))])
def test_keys_are_uuids(spark: SparkSession, tmp_path: Path, kind: str, key: object) -> None:
    """Text in upper case and bytes equal the UUIDs of the table."""
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "id", UUIDType()), NestedField(2, "n", IntegerType()))
    table = catalog.create_table("db.t", schema, format_version=3, spark=spark)
    table = table.append(spark.sql(f"SELECT '{UPPER.lower()}' id, 1 n UNION ALL SELECT '{OTHER}', 2"))
    rows = spark.createDataFrame([(key, "of another type")], f"id {kind}, n string")
    merge = table.merge(rows, ["id"])
    table = merge.when_matched().update({"n": 10}).when_not_matched().insert({"id": F.col("source.id")}).merge()
    others = (OTHER, 2)
    assert sorted(map(tuple, table.scan().to_df().collect())) == [(UPPER.lower(), 10), others]
    table = table.upsert(spark.createDataFrame([(key, 20)], f"id {kind}, n int"), ["id"])
    assert sorted(map(tuple, table.scan().to_df().collect())) == [(UPPER.lower(), 20), others]
    with pytest.raises(sm.ValidationError, match=r"two of the rows have the key"):
        table.upsert(spark.createDataFrame([(UPPER, 1), (UPPER.lower(), 2)], "id string, n int"), ["id"])
    deleted = table.merge(rows, ["id"]).when_matched().delete().merge()
    assert [tuple(row) for row in deleted.scan().to_df().collect()] == [others]
    deleted = table.refresh().append(spark.sql(f"SELECT '{UPPER}' id, 3 n"))
    deleted = deleted.equality_delete(rows.select("id"), ["id"])
    assert [tuple(row) for row in deleted.scan().to_df().collect()] == [others]


def test_upsert_of_structs_and_lists_with_maps(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    of_numbers = MapType(5, StringType(), 6, IntegerType())
    schema = Schema(
        NestedField(1, "id", IntegerType()),
        NestedField(2, "st", StructType(NestedField(3, "m", of_numbers))),
        NestedField(4, "li", ListType(7, MapType(8, StringType(), 9, IntegerType()))),
    )
    table = catalog.create_table("db.t", schema, format_version=3, spark=spark)
    text = "SELECT id, named_struct('m', map('a', n)) st, array(map('b', n)) li FROM VALUES {} AS v(id, n)"
    table = table.append(spark.sql(text.format("(1, 1), (2, 2)")))
    table = table.upsert(spark.sql(text.format("(2, 20), (3, 30)")), ["id"])
    assert sorted((row.id, row.st.m, row.li) for row in table.scan().to_df().collect()) == [
        (id_, {"a": n}, [{"b": n}]) for id_, n in ((1, 1), (2, 20), (3, 30))
    ]


def test_a_source_of_constants(spark: SparkSession, tmp_path: Path) -> None:
    """A merge updates and adds rows. Spark knows the values of the source during planning."""
    catalog = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path))
    layout = Schema(NestedField(1, "id", LongType()), NestedField(2, "n", IntegerType()))
    table = catalog.create_table("db.t", layout, format_version=2, spark=spark)
    table = table.append(spark.createDataFrame([(0, 0), (1, 10), (2, 20)], "id BIGINT, n INT"))
    for key in (1, 7):
        source = spark.sql(f"SELECT {key}L AS id, 5 AS n")
        table = table.merge(source, on=["id"]).when_matched().update_all().when_not_matched().insert_all().merge()
    assert sorted(map(tuple, table.scan().to_df().collect())) == [(0, 0), (1, 5), (2, 20), (7, 5)]


@pytest.mark.parametrize("case", ["updates", "deletes", "condition"])
def test_columns_that_need_not_be_read(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """The data of a column is damaged. A merge that does not need its old values succeeds."""
    table = new_table(spark, tmp_path, PartitionSpec(), write__merge__mode="merge-on-read")
    table = table.append(frame(spark, ordinary(0, 20)).coalesce(1))
    (path,) = (row.file_path for row in table.inspect.data_files().select("file_path").collect())
    with pq.ParquetFile(location := path.removeprefix("file:")) as file:
        chunk = file.metadata.row_group(0).column(2)
        assert chunk.path_in_schema == "n"
    with Path(location).open("r+b") as data:
        data.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        data.write(bytes(chunk.total_compressed_size))
    merge = table.merge(source(spark).where("op = 'U' AND id < 20").drop("op"), "id")
    if case == "updates":
        table = merge.when_matched("source.n > 0").update_all().when_not_matched().insert_all().merge()
    elif case == "deletes":
        table = merge.when_matched("source.n > 0").delete().merge()
    else:
        with pytest.raises(Exception, match=Path(location).name):
            merge.when_matched("target.n > 0").update_all().merge()
        return
    deleted = table.inspect.delete_files().select("record_count").collect()
    assert [row.record_count for row in deleted] == [1]


def test_a_key_named_count(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path))
    layout = Schema(NestedField(1, "count", LongType()), NestedField(2, "n", IntegerType()))
    table = catalog.create_table("db.t", layout, format_version=2, spark=spark)
    table = table.append(spark.sql("SELECT 1L `count`, 1 n")).upsert(
        spark.sql("SELECT * FROM VALUES (1L, 5), (2L, 6) AS v(`count`, n)"), ["count"]
    )
    twice = spark.sql("SELECT * FROM VALUES (2L, 8), (2L, 9) AS v(`count`, n)")
    with pytest.raises(sm.ValidationError, match=r"two of the rows have the key \{'count': 2\}"):
        table.upsert(twice, ["count"])
    table = table.merge(twice, "count").when_matched().delete().merge()
    assert list(map(tuple, table.scan().to_df().collect())) == [(1, 5)]


def test_a_key_after_the_year_9999(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path))
    layout = Schema(NestedField(1, "day", DateType()), NestedField(2, "n", IntegerType()))
    table = catalog.create_table("db.t", layout, spark=spark)
    twice = spark.sql("SELECT date_add(date'9999-12-31', 1) day, n FROM VALUES (1), (2) AS v(n)")
    with pytest.raises(sm.ValidationError, match=r"two of the rows have the key \{'day': '\+10000-01-01'\}"):
        table.upsert(twice, ["day"])


def test_insertions_and_other_commits(spark: SparkSession, tmp_path: Path) -> None:
    """Only added rows conflict with rows that a merge inserts."""
    table = new_table(spark, tmp_path)
    for rows in ([(1, "a", 1), (9, "a", 9)], [(2, "a", 2), (8, "a", 8)]):
        table = table.append(frame(spark, rows).coalesce(1))

    def begun() -> sm.RowTransaction:
        return table.transaction().upsert(frame(spark, [(5, "a", 5)]), ["id"])

    late = begun()
    table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert [row[0] for row in rows_of(late.commit())] == [1, 2, 5, 8, 9]
    table = table.refresh().delete("id = 5")
    late = begun()
    table.append(frame(spark, [(5, "a", 6)]))
    with pytest.raises(sm.CommitConflictError, match="added data that may match"):
        late.commit()
