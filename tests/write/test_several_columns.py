"""Partition fields of several columns: rows that are written, and the files that plans keep, in all format versions."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, IsNull
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

import sparkmeta as sm
from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.expr.predicate import bind_filter
from tests.expr.test_partition_values import VALUES
from tests.frames import local_frame
from tests.properties.cases import filters, matches, predicates
from tests.properties.test_projection import hashed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
LAYOUTS = {"1": {}, "2": {}, "3": {}, "4": {}, "4 iceberg": {"write.tree.layout": "iceberg"}}
A, S = IntegerType(), StringType()
PAIRS = Schema(NestedField(1, "a", A), NestedField(2, "s", S), NestedField(3, "x", LongType()))
ALL_A, ALL_S = [None, 0, 1, -7, 2**31 - 1], [None, "", "a", "ab", "日本"]


def bucket(count: int, kinds: Iterable[Any], values: Iterable[Any]) -> int | None:
    """Return the bucket of values, from the words of docs/layout.md."""
    parts = [hashed(kind, value) for kind, value in zip(kinds, values, strict=True) if value is not None]
    return (mmh3.hash(b"".join(parts)) & 0x7FFFFFFF) % count if parts else None


def pairs(start: int = 0) -> pa.Table:
    """Return each pair of values twice."""
    rows = [*product(ALL_A, ALL_S)] * 2
    a, s = zip(*rows, strict=True)
    number = pa.array(range(start, start + len(rows)), pa.int64())
    return pa.table({"a": pa.array(a, pa.int32()), "s": pa.array(s, pa.string()), "x": number})


def create(folder: Path, schema: Schema, layout: str, *terms: str, spark: SparkSession | None = None) -> sm.Table:
    catalog = sm.load_catalog("several", type="hadoop", warehouse=f"file://{folder}")
    version, properties = int(layout[0]), LAYOUTS[layout]
    return catalog.create_table(
        "ns.t", schema, partition_by=terms, format_version=version, properties=properties, spark=spark
    )


def tuples(table: sm.Table, row_filter: BooleanExpression | str = "true") -> list[tuple[Any, ...]]:
    """Return the partition tuples of the files in a plan."""
    planned = table.scan(row_filter).plan_files().toArrow().column("partition").to_pylist()
    return [tuple(partition.values()) for partition in planned]


# -- Rows and plans ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_spark", [False, True], ids=["arrow", "spark"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_all_types_are_in_their_buckets(
    spark: SparkSession, tmp_path: Path, layout: str, by_spark: bool
) -> None:
    """Fields of two, three and all types. Some columns are in a struct. Some values are null."""
    kinds = [kind for kind in VALUES if int(layout[0]) >= 3 or "_ns" not in str(kind)]
    columns = [NestedField(number, f"c{number}", kind) for number, kind in enumerate(kinds, 1)]
    schema = Schema(*columns[:-2], NestedField(50, "in", StructType(*columns[-2:])))
    names = [column.name if column in columns[:-2] else f"in.{column.name}" for column in columns]
    fields = [(3, names[:2]), (5, names[-3:]), (7, names[::-1]), *((2, [*pair]) for pair in pairwise(names))]
    terms = [f"bucket({count}, {', '.join(f'`{name}`' for name in chosen)})" for count, chosen in fields]
    table = create(tmp_path, schema, layout, *terms, spark=spark)

    count = 30
    taken = {
        name: [None if (row + place) % 5 == 0 or row == 17 else 7 * row % len(VALUES[kind][0]) for row in range(count)]
        for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }
    by_name = dict(zip(names, kinds, strict=True))
    arrays = {name: VALUES[kind][1].take(pa.array(taken[name], pa.int32())) for name, kind in by_name.items()}
    nested = [name for name in names if name.startswith("in.")]
    struct = pa.StructArray.from_arrays([arrays[name] for name in nested], [name[3:] for name in nested])
    rows = pa.table({**{name: arrays[name] for name in names if name not in nested}, "in": struct})

    table.append(local_frame(spark, rows) if by_spark else rows)
    table = table.refresh()
    values = {name: [None if at is None else VALUES[by_name[name]][0][at] for at in taken[name]] for name in names}
    expected = Counter(
        tuple(
            bucket(number, [by_name[name] for name in chosen], [values[name][row] for name in chosen])
            for number, chosen in fields
        )
        for row in range(count)
    )
    files = table.inspect.files().toArrow().to_pylist()
    written: Counter[tuple[Any, ...]] = Counter()
    for file in files:
        written[tuple(file["partition"].values())] += file["record_count"]
    assert written == expected
    assert table.scan().to_arrow().num_rows == count


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plans_hold_every_match_and_prune_what_buckets_exclude(
    spark: SparkSession, tmp_path: Path, layout: str, by_spark: None
) -> None:
    """Random filters, against each row. Equalities and nulls of all columns keep exactly their buckets."""
    table = create(tmp_path, PAIRS, layout, "bucket(11, a, s)", spark=spark)
    table.append(pairs())
    table = table.refresh()
    rows = pairs().to_pylist()
    everything = tuples(table)
    assert {value for (value,) in everything} == {bucket(11, (A, S), (row["a"], row["s"])) for row in rows}
    leaves = predicates("a", A, ALL_A[1:]) | predicates("s", S, ALL_S[1:]) | predicates("x", LongType(), [3, 20])
    tally: Counter[str] = Counter()

    @settings(max_examples=200 if SOAK else 12, deadline=None, derandomize=not SOAK, database=None)
    @given(row_filter=filters(leaves), some_a=chosen(ALL_A), some_s=chosen(ALL_S), more=leaves)
    def check(row_filter: BooleanExpression, some_a: list[Any], some_s: list[Any], more: BooleanExpression) -> None:
        both = And(one_of("a", some_a), one_of("s", some_s))
        for tested in (row_filter, both, And(both, more)):
            bound = bind_filter(tested, PAIRS)
            matching = [row for row in rows if matches(bound, {1: row["a"], 2: row["s"], 3: row["x"]})]
            planned = [value for (value,) in tuples(table, tested)]
            assert set(planned) >= {bucket(11, (A, S), (row["a"], row["s"])) for row in matching}, tested
            tally["skipped"] += len(everything) - len(planned)
            if tested is not row_filter:
                possible = {bucket(11, (A, S), pair) for pair in product(some_a, some_s)}
                assert set(planned) <= possible, tested
        expected = sum(row["a"] in some_a and row["s"] in some_s for row in rows)
        assert len(table.scan(both).to_arrow()) == expected

    check()
    assert tally["skipped"] > 20


def chosen(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)


def one_of(name: str, values: list[Any]) -> BooleanExpression:
    """Return the test that a column has one of some values, which may be null."""
    present = [value for value in values if value is not None]
    tests: list[BooleanExpression] = [In(name, present)] if present else []
    tests += [IsNull(name)] if None in values else []
    return tests[0] if len(tests) == 1 else tests[0] | tests[1]


def test_residuals_keep_the_filter(spark: SparkSession, tmp_path: Path) -> None:
    """Other values may have the same bucket."""
    table = create(tmp_path, PAIRS, "2", "bucket(2, a, s)", spark=spark)
    table.append(pairs())
    scan = table.refresh().scan("a = 1 and s = 'ab'")
    (residual,) = scan.plan_files().toArrow().column("residual").to_pylist()
    assert '"term":"a"' in residual
    assert '"term":"s"' in residual
    assert {(row["a"], row["s"]) for row in scan.to_arrow().to_pylist()} == {(1, "ab")}


# -- Other changes of rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["2", "3", "4"])
def test_rows_are_replaced_and_deleted_by_bucket(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = create(tmp_path, PAIRS, layout, "bucket(5, a, s)", spark=spark)
    table.append(pairs())
    whole = {(row["a"], row["s"], row["x"]) for row in pairs().to_pylist()}
    key = bucket(5, (A, S), (1, "a"))
    replaced = {row for row in whole if bucket(5, (A, S), row[:2]) == key}
    new = pa.table({"a": pa.array([1], pa.int32()), "s": ["a"], "x": [1000]})
    table.refresh().dynamic_partition_overwrite(new)
    expected = whole - replaced | {(1, "a", 1000)}
    assert set(map(tuple, (row.values() for row in table.refresh().scan().to_arrow().to_pylist()))) == expected
    table.refresh().delete("a = 0 and s = ''")
    table.refresh().delete("x = 1000")
    left = {row for row in expected if row[:2] != (0, "") and row[2] != 1000}
    assert {tuple(row.values()) for row in table.refresh().scan().to_arrow().to_pylist()} == left
    assert table.refresh().check().count() == 0


def test_keys_are_deleted_in_their_bucket(spark: SparkSession, tmp_path: Path) -> None:
    """Equality deletes need all source columns of the bucket."""
    table = create(tmp_path, PAIRS, "2", "bucket(5, a, s)", spark=spark)
    table.append(pairs())
    keys = pa.table({"a": pa.array([1, None], pa.int32()), "s": pa.array(["ab", "a"])})
    table.refresh().equality_delete(keys, ["a", "s"])
    left = {(row["a"], row["s"]) for row in table.refresh().scan().to_arrow().to_pylist()}
    assert left == {*product(ALL_A, ALL_S)} - {(1, "ab"), (None, "a")}
    plan = table.refresh().scan("a = 1 and s = 'ab'").plan_files().toArrow()
    assert [len(deletes) for deletes in plan.column("deletes").to_pylist()] == [1]
    with pytest.raises(ValidationError, match="partition field 'a_s_bucket_5' is made from column s, which the rows l"):
        table.refresh().equality_delete(keys.select(["a"]), ["a"])


@pytest.mark.parametrize("by_spark", [False, True], ids=["arrow", "spark"])
def test_rows_are_sorted_by_bucket(spark: SparkSession, tmp_path: Path, by_spark: bool) -> None:
    table = create(tmp_path, PAIRS, "2", spark=spark)
    table.update_sort_order().desc("bucket(5, s, a)").asc("x").commit()
    rows = pairs()
    table.refresh().append(local_frame(spark, rows).coalesce(1) if by_spark else rows)
    table = table.refresh()
    keys = [bucket(5, (S, A), (row["s"], row["a"])) for row in table.scan().to_arrow().to_pylist()]
    assert keys == sorted(keys, key=lambda key: -1 if key is None else key, reverse=True)
    (order,) = [order for order in table.metadata.sort_orders if order.fields]
    assert len(order.fields) == 2
    problem = r"a source of the sort order \(bucket\[5\]\(s, a\) DESC NULLS LAST, x ASC NULLS LAST\)"
    with pytest.raises(ValidationError, match=problem), table.update_schema() as update:
        update.delete_column("a")


# -- Metadata ---------------------------------------------------------------------------------------------------------


def stored(table: sm.Table) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    return document


def test_fields_survive_every_change_of_metadata(spark: SparkSession, tmp_path: Path) -> None:
    """Plans stay right and pruned as the spec evolves, the version changes, and the schema does."""
    table = create(tmp_path, PAIRS, "1", "bucket(4, a, s)", spark=spark)
    (field,) = stored(table)["partition-specs"][0]["fields"]
    assert field == {
        "name": "a_s_bucket_4", "transform": "bucket[4]", "source-ids": [1, 2], "field-id": 1000,
        "bucket-hash": "murmur3-concatenated",
    }  # fmt: skip
    assert "bucket[4](a, s)" in table._repr_html_()
    table.append(pairs())
    table = table.refresh().maintenance.upgrade(2).commit()
    table.update_spec().add_field("bucket(9, s, a)", None, "sa").rename_field("a_s_bucket_4", "four").commit()
    table.refresh().append(pairs(100))
    table = table.refresh().maintenance.upgrade(3).commit()
    with table.update_schema() as update:
        update.rename_column("s", "t").update_column("a", LongType())
    table.refresh().update_spec().remove_field("four").commit()
    table.refresh().append(renamed(pairs(200)))
    checks(table.refresh(), 3)
    table = table.refresh().maintenance.upgrade(4).commit()
    checks(table, 3)
    table.append(renamed(pairs(300)))
    table = table.refresh()
    checks(table, 4)
    document = stored(table)
    assert all(field["bucket-hash"] for spec in document["partition-specs"] for field in spec["fields"])
    assert [expression["expr"]["source-ids"] for expression in document["expressions"]] == [[1, 2], [1, 2], [2, 1]]
    table = table.maintenance.convert_tree("iceberg").commit()
    checks(table, 4)
    checks(table.maintenance.downgrade(3).commit(), 4)


def renamed(rows: pa.Table) -> pa.Table:
    return rows.rename_columns(["t" if name == "s" else name for name in rows.column_names]).set_column(
        0, "a", rows.column("a").cast(pa.int64())
    )


def checks(table: sm.Table, appends: int) -> None:
    for a, t in ((1, "a"), (-7, ""), (None, "ab"), (2**31 - 1, None), (None, None)):
        row_filter = And(one_of("a", [a]), one_of("t", [t]))
        rows = table.scan(row_filter).to_arrow().to_pylist()
        assert sorted(row["x"] % 100 for row in rows) == sorted(
            [index for index, row in enumerate(pairs().to_pylist()) if (row["a"], row["s"]) == (a, t)] * appends
        )
        assert table.scan(row_filter).plan_files().count() == appends


@pytest.mark.parametrize("by_hash", [None, "xor"])
def test_a_bucket_by_an_unknown_hash_is_not_pruned_or_written(
    spark: SparkSession, tmp_path: Path, by_hash: str | None
) -> None:
    """No specification defines the hash. A field of another writer, without its name, is only read."""
    table = create(tmp_path, PAIRS, "3", "bucket(4, a, s)", spark=spark)
    with table.transaction() as tx:
        tx.set_properties({"write.metadata.metrics.default": "none"})
    table.refresh().append(pairs())
    table = table.refresh()
    document = stored(table)
    document["partition-specs"][0]["fields"][0]["bucket-hash"] = by_hash
    if by_hash is None:
        del document["partition-specs"][0]["fields"][0]["bucket-hash"]
    Path(table.metadata_location.removeprefix("file://")).write_text(json.dumps(document))

    foreign = sm.load_table(table.location(), spark=spark)
    assert len(tuples(foreign, "a = 1 and s = 'ab'")) == len(tuples(foreign)) == 5
    assert len(foreign.scan(EqualTo("s", "ab")).to_arrow()) == 2 * len(ALL_A)
    before = {*tmp_path.rglob("*")}
    for rows in (pairs(), local_frame(spark, pairs())):
        with pytest.raises(UnsupportedError, match=r"no values of the transform bucket\[4\] of its partition spec"):
            foreign.append(rows)
    assert {*tmp_path.rglob("*")} == before
    target = create(tmp_path / "target", PAIRS, "3", "bucket(4, a, s)", spark=spark)
    with pytest.raises(ValidationError, match="no spec of this table has its fields"), target.transaction() as tx:
        tx.update_snapshot().append(foreign)
    with foreign.transaction() as tx:
        tx.set_properties({"a": "b"})
    tree = foreign.refresh().maintenance.upgrade(4).commit()
    assert len(tuples(tree, "a = 1 and s = 'ab'")) == 5
    (restored,) = stored(tree.maintenance.downgrade(3).commit())["partition-specs"][0]["fields"]
    assert restored == document["partition-specs"][0]["fields"][0]


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        ("bucket(4, a, d)", "values of type double have no transform"),
        ("bucket(4, a, a)", "a column of bucket.4, a, a. occurs twice"),
        ("truncate(4, a, s)", "is not a transform of a column"),
        ("bucket(a, s)", "is not a transform of a column"),
        ("bucket(4, a, y)", "no column 'y' in the table"),
    ],
)
def test_terms_that_are_no_bucket_are_refused(tmp_path: Path, term: str, problem: str) -> None:
    schema = Schema(*PAIRS.fields, NestedField(4, "d", DoubleType()))
    with pytest.raises(ValidationError, match=problem):
        create(tmp_path, schema, "2", term)
    table = create(tmp_path, schema, "2")
    with pytest.raises(ValidationError, match=problem):
        table.update_spec().add_field(term)
    with pytest.raises(ValidationError, match=problem):
        table.update_sort_order().asc(term)


def test_every_source_column_stays(tmp_path: Path) -> None:
    table = create(tmp_path, PAIRS, "3", "bucket(4, a, s)")
    for name in ("a", "s"):
        problem = f"column {name} can't be deleted: it is a source of the partition field a_s_bucket_4 = bucket"
        with pytest.raises(ValidationError, match=problem), table.update_schema() as update:
            update.delete_column(name)
    table.update_spec().remove_field("a_s_bucket_4").commit()
    with table.refresh().update_schema() as update:
        update.delete_column("s")
    assert [field.name for field in table.refresh().schema().fields] == ["a", "x"]


def test_a_bucket_of_one_column_is_another_field(tmp_path: Path) -> None:
    table = create(tmp_path, PAIRS, "3", "bucket(4, a, s)")
    with pytest.raises(ValidationError, match="Duplicate partition field"):
        table.update_spec().add_field("bucket(4, a, s)", None, "again")
    table.update_spec().remove_field("a_s_bucket_4").add_field("bucket(4, a)", None, "a_s_bucket_4").commit()
    table = table.refresh()
    assert [spec["fields"][0]["field-id"] for spec in stored(table)["partition-specs"]] == [1000, 1001]
    assert table.metadata.default_spec_id == 1


def test_paths_of_files_do_not_tell_the_bucket(spark: SparkSession, tmp_path: Path) -> None:
    table = create(tmp_path, PAIRS, "2", "bucket(4, a, s)", spark=spark)
    with pytest.raises(UnsupportedError, match=r"partition field a_s_bucket_4, bucket\[4\] of several columns, are"):
        table.add_files([f"file://{tmp_path}/a.parquet"])


@pytest.mark.java
@pytest.mark.parametrize("layout", ["1", "2", "3"])
def test_java_refuses_the_table(spark: SparkSession, java_warehouse: str, layout: str) -> None:
    """Iceberg 1.12.0 loads no table with such a field, rather than take it for a bucket of the first column."""
    folder = Path(java_warehouse.removeprefix("file://")) / f"several{layout}"
    table = create(folder, PAIRS, layout, "bucket(4, a, s)", spark=spark)
    table.append(pairs())
    target = table.location().removeprefix("file://")
    with pytest.raises(Exception, match="Cannot parse missing int: source-id"):
        spark.read.format("iceberg").load(target).count()
