"""Filters select the same rows as Spark SQL for the same text, on tables of many layouts.

A comparison with null is unknown, as is its NOT. NaN is greater than all numbers, and UUIDs are ordered as their text.
"""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, NestedField, StringType, StructType, UUIDType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.expr.expression_json import expression_from_json
from tests.conftest import configured
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sparkmeta import Scan

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "d", DoubleType()),
    NestedField(
        5, "p", StructType(NestedField(6, "x", IntegerType(), required=True), NestedField(7, "y", StringType()))
    ),
    NestedField(8, "day", DateType()),
    NestedField(9, "u", UUIDType()),
)
# Column -> its type, and the values that its rows repeat.
VALUES = {
    "n": ("INT", "NULL", "1", "2", "-3", "NULL"),
    "s": ("STRING", "'a'", "NULL", "'ab'", "'b'"),
    "d": ("DOUBLE", "0.0D", "NULL", "double('NaN')", "-0.0D", "1.5D", "NULL", "double('NaN')"),
    "p": (
        "STRUCT<x: INT, y: STRING>",
        "NULL", "named_struct('x', 1, 'y', NULL)", "named_struct('x', 2, 'y', 'a')",
    ),
    "day": ("DATE", "DATE'1969-12-31'", "NULL", "DATE'2026-01-31'"),
    "u": (
        "STRING", "NULL",
        *(f"'{first}000000-0000-0000-{second}00-000000000000'"
          for first in ("00", "7f", "80", "ff") for second in ("00", "80")),
    ),
}  # fmt: skip
COUNT = 60


# -- filters --------------------------------------------------------------------------------------------------------

LITERALS = {
    "id": ("3", "40"),
    "n": ("1", "2", "0", "99999999999", "1.5"),
    "s": ("'a'", "'ab'", "'c'"),
    "p.x": ("1", "7"),
    "p.y": ("'a'",),
    "day": ("'1969-12-31'", "'2026-01-31'"),
}
DOUBLES = ("0.0", "1.5", "2.5")
UUIDS = tuple(f"'{half}000000-0000-0000-0000-000000000000'" for half in ("00", "7f", "80", "c0", "ff"))
# Iceberg's Java library loses NaN in ranges, since bounds leave it out, and may order UUIDs by signed halves.
RANGES = [
    f"{name} {sign} {value}" for name, values in (("d", DOUBLES), ("u", UUIDS)) for value in values
    for sign in ("<", "<=", ">", ">=")
] + ["d between 0.0 and 1.5", f"u not in ({UUIDS[0]}, {UUIDS[2]})"]  # fmt: skip
LEAVES = [
    *(f"{name} {sign} {value}" for name, values in LITERALS.items() for value in values
      for sign in ("=", "!=", "!=", "<", "<=", ">", ">=")),
    *(f"{name} {word}in ({', '.join(values)})" for name, values in {**LITERALS, "d": DOUBLES}.items()
      for word in ("", "not ", "not ") if len(values) > 1),
    *(f"d {sign} {value}" for value in DOUBLES for sign in ("=", "!=")),
    *(f"{name} {word}like '{prefix}%'" for name in ("s", "p.y") for prefix in ("a", "ab") for word in ("", "not ")),
    *(f"{name} is {word}null" for name in (*LITERALS, "d", "p") for word in ("", "not ")),
    "d is nan", "d is not nan", "n between 0 and 1", "true", "false",
]  # fmt: skip
JUNCTIONS = ("({} and {})", "({} or {})", "not ({})", "not ({} or {})", "not ({} and {})")


def random_filter(rng: random.Random, leaves: Sequence[str], depth: int = 3) -> str:
    """Return a random tree of AND, OR and NOT over leaves."""
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(leaves)
    return rng.choice(JUNCTIONS).format(*(random_filter(rng, leaves, depth - 1) for _ in range(2)))


def random_filters(layout: Layout, purpose: str, count: int) -> list[str]:
    rng = random.Random(f"{layout.name} {purpose}")
    leaves = LEAVES if purpose == "java" else [*LEAVES, *RANGES]
    return [random_filter(rng, leaves) for _ in range(count * (20 if SOAK else 1))]


def in_spark(text: str) -> str:
    """Return the filter in Spark SQL, which has no IS NAN."""
    return text.replace("d is not nan", "not isnan(d)").replace("d is nan", "isnan(d)")


# -- tables ---------------------------------------------------------------------------------------------------------

MODE, FORMAT, DIRECT = "write.delete.mode", "write.format.default", "write.tree.direct-files"
METRICS = "write.metadata.metrics.default"
PARTITIONS = {
    "whole": PartitionSpec(),
    "s": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "s")),
    "prefix": PartitionSpec(PartitionField(3, 1000, TruncateTransform(1), "s_trunc")),
    "bucket": PartitionSpec(PartitionField(2, 1000, BucketTransform(2), "n_bucket")),
    "d": PartitionSpec(
        PartitionField(4, 1000, IdentityTransform(), "d"), PartitionField(9, 1001, VoidTransform(), "v")
    ),
    "u": PartitionSpec(PartitionField(9, 1000, IdentityTransform(), "u")),
    "u_bucket": PartitionSpec(PartitionField(9, 1000, BucketTransform(3), "u_bucket")),
}


@dataclass(frozen=True)
class Layout:
    """The storage of a table, and the process that reads its manifests."""

    version: int
    partitions: str
    way: str
    mode: str
    data_format: str = "parquet"
    in_root: bool = True
    metrics: str = "full"

    @property
    def name(self) -> str:
        suffix = "" if self.in_root else "_leaves"
        return f"v{self.version}_{self.partitions}_{self.mode[:4]}_{self.data_format}_{self.way}{suffix}"

    def __str__(self) -> str:
        return self.name


WAYS = {
    "driver": {},
    "tasks": {"spark.sparkmeta.driver-manifest-bytes": "0", "spark.sparkmeta.executor-reads": "direct"},
    "spark": {"spark.sparkmeta.driver-manifest-bytes": "0", "spark.sparkmeta.executor-reads": "spark"},
}
LAYOUTS = [
    Layout(2, "whole", "spark", "merge-on-read"),
    Layout(2, "s", "driver", "copy-on-write", "avro"),
    Layout(3, "prefix", "driver", "merge-on-read"),
    Layout(3, "bucket", "tasks", "copy-on-write", "orc"),
    Layout(4, "s", "tasks", "merge-on-read", in_root=False),
    Layout(4, "whole", "driver", "copy-on-write", "orc"),
    Layout(4, "bucket", "spark", "copy-on-write", in_root=False),
    Layout(3, "d", "driver", "merge-on-read", metrics="none"),
    Layout(2, "u", "tasks", "copy-on-write", "avro"),
    Layout(4, "d", "driver", "copy-on-write", in_root=False),
    Layout(4, "u_bucket", "spark", "merge-on-read", metrics="counts"),
]


@dataclass
class Case:
    table: sm.Table
    rows: DataFrame

    def expected(self, filters: Sequence[str]) -> list[list[int]]:
        """Return the ids that Spark selects for each filter."""
        chosen = [f"coalesce({in_spark(text)}, false) AS c{index}" for index, text in enumerate(filters)]
        rows = self.rows.selectExpr("id", *chosen).collect()
        return [sorted(row.id for row in rows if row[f"c{index}"]) for index in range(len(filters))]


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def layout(request: pytest.FixtureRequest) -> Layout:
    chosen: Layout = request.param
    return chosen


@pytest.fixture(scope="module")
def case(layout: Layout, spark: SparkSession, java_warehouse: str) -> Case:
    """Return a case of some files with all kinds of rows, and one of nulls."""
    catalog = sm.load_catalog("java", type="hadoop", warehouse=java_warehouse)
    catalog.create_namespace_if_not_exists("nulls")
    properties = {MODE: layout.mode, FORMAT: layout.data_format, DIRECT: "100" if layout.in_root else "0"}
    properties[METRICS] = layout.metrics
    table = catalog.create_table(
        f"nulls.{layout.name}", SCHEMA, PARTITIONS[layout.partitions],
        format_version=layout.version, properties=properties, spark=spark,
    )  # fmt: skip
    columns = [
        f"CAST(element_at(array({', '.join(values)}), CAST(id % {len(values)} + 1 AS INT)) AS {kind}) AS {name}"
        for name, (kind, *values) in VALUES.items()
    ]
    mixed = spark.range(COUNT).selectExpr("id", *columns).localCheckpoint()
    nulls = [f"CAST(NULL AS {kind}) AS {name}" for name, (kind, *_) in VALUES.items()]
    only_nulls = spark.range(COUNT, COUNT + 2).selectExpr("id", *nulls)
    table = table.append(mixed.repartition(3, "s")).append(only_nulls.coalesce(1))
    rows = mixed.unionByName(only_nulls)
    return Case(table, rows)


def ids_of(scans: Sequence[Scan]) -> list[list[int]]:
    """Return the ids that each scan reads, by one job."""
    frames = [scan.select("id").to_df().withColumn("place", F.lit(index)) for index, scan in enumerate(scans)]
    rows = reduce(DataFrame.unionAll, frames).collect()
    return [sorted(row.id for row in rows if row.place == index) for index in range(len(scans))]


# -- tests ----------------------------------------------------------------------------------------------------------


def test_scans(case: Case, layout: Layout, spark: SparkSession) -> None:
    filters = random_filters(layout, "scans", 12)
    expected = case.expected(filters)
    with configured(spark, WAYS[layout.way]):
        scans = [case.table.scan(text) for text in filters]
        for text, ids, wanted in zip(filters, ids_of(scans), expected, strict=True):
            assert ids == wanted, text
        for index in range(0, len(filters), 6):
            assert scans[index].count() == len(expected[index]), filters[index]
            check_residuals(scans[index + 1], filters[index + 1], expected[index + 1])


def check_residuals(scan: Scan, text: str, wanted: list[int]) -> None:
    """Check that the residuals of files select the same rows in two-valued evaluation."""
    residuals = {row.file_path: row.residual for row in scan.plan_files().collect()}
    rows: list[int] = []
    for residual in sorted(set(residuals.values())):
        of_residual = replace(scan, row_filter=expression_from_json(json.loads(residual)), two_valued=True)
        selected = of_residual.select("id", "_file").to_df().collect()
        rows += [row.id for row in selected if residuals.get(row._file) == residual]
    assert sorted(rows) == wanted, text


def test_deletes(case: Case, layout: Layout, spark: SparkSession) -> None:
    filters = random_filters(layout, "deletes", 20)
    expected = zip(filters, case.expected(filters), strict=True)
    chosen = [(text, ids) for text, ids in expected if COUNT // 4 < len(ids) < COUNT]
    assert chosen
    with configured(spark, WAYS[layout.way]):
        for text, deleted in chosen if SOAK else chosen[:1]:
            table = case.table.refresh()
            branch = f"b{len(table.refs())}"
            table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, branch).commit()
            scan = table.refresh().delete(text, branch=branch).scan().use_ref(branch)
            left = [number for number in range(COUNT + 2) if number not in deleted]
            assert ids_of([scan]) == [left], text
            assert scan.count() == len(left), text


@pytest.mark.java
def test_iceberg_selects_the_same(case: Case, layout: Layout, spark: SparkSession) -> None:
    if layout.version == 4:
        pytest.skip("Java reads no trees")
    filters = random_filters(layout, "java", 3)
    for text, wanted in zip(filters, case.expected(filters), strict=True):
        theirs = spark.sql(f"SELECT id FROM java.nulls.{layout.name} WHERE {in_spark(text)}").collect()
        assert sorted(row.id for row in theirs) == wanted, text


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> sm.Table:
    """Return a table with files of the rows (1, a), (2, null), and (3, null), (4, null), and (5, b), (6, b)."""
    catalog = sm.load_catalog("small", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))
    table = catalog.create_table("db.t", schema, format_version=2, properties={MODE: "copy-on-write"}, spark=spark)
    for values in ("(1, 'a'), (2, NULL)", "(3, NULL), (4, NULL)", "(5, 'b'), (6, 'b')"):
        rows = spark.sql(f"SELECT CAST(c1 AS BIGINT) id, CAST(c2 AS STRING) s FROM VALUES {values} AS t(c1, c2)")
        table = table.append(rows.coalesce(1))
    return table


def files_of(table: sm.Table) -> dict[int, str]:
    """Return the file of each row, by the row's id."""
    return {row.id: row._file for row in table.scan().select("id", "_file").to_df().collect()}


def test_metadata_decides_as_rows_do(small: sm.Table) -> None:
    """A file of nulls is not planned, one without nulls is deleted unread, and one without matches is not rewritten."""
    files = files_of(small)
    planned = {row.file_path: json.loads(row.residual) for row in small.scan("not s = 'a'").plan_files().collect()}
    assert planned.keys() == {files[1], files[5]}
    not_null, not_a = {"type": "not-null", "term": "s"}, {"type": "not-eq", "term": "s", "value": "a"}
    assert all(residual == {"type": "and", "left": not_null, "right": not_a} for residual in planned.values())
    assert files_of(small.delete("s != 'a'")) == {number: files[number] for number in (1, 2, 3, 4)}
    rewrite = small.maintenance.rewrite_data_files("s != 'a'", rewrite_all=True)
    assert {row.file_path for row in rewrite.to_df().collect()} == planned.keys()


def test_every_operation_selects_the_same(spark: SparkSession, small: sm.Table) -> None:
    start = small.current_snapshot().snapshot_id
    appended = small.incremental(None).filter("s != 'a'").to_df().collect()
    assert sorted(row.id for row in appended) == [5, 6]
    table = small.update({"id": 0}, "s not in ('a', 'c')").update({"id": 7}, "id = 4")
    assert sorted(row.id for row in table.scan().to_df().collect()) == [0, 0, 1, 2, 3, 7]
    for text, ids in (("s != 'a'", [0, 0, 5, 6]), ("not (s = 'b' or id = 7)", []), ("s is null", [4, 7])):
        changes = table.changelog(start).filter(text).to_df().collect()
        assert sorted(row.id for row in changes) == ids, text
    table = table.overwrite(spark.sql("SELECT 9L id, 'c' s"), "s not like 'a%'")
    assert sorted(row.id for row in table.scan().to_df().collect()) == [1, 2, 3, 7, 9]


def test_conflicts_are_those_of_iceberg(spark: SparkSession, small: sm.Table) -> None:
    """Others' null rows conflict with a validated `!=`, as they match Java's two-valued expression."""
    more = spark.sql("SELECT 7L id, CAST(NULL AS STRING) s").coalesce(1)
    for text, conflicts in (("s != 'a'", True), ("not s like 'a%'", True), ("s > 'a'", False)):
        transaction = small.refresh().transaction()
        transaction.delete("id = 1000").update_snapshot().validate_no_conflicts(text)
        small.refresh().append(more)
        with pytest.raises(sm.CommitConflictError) if conflicts else nullcontext():
            transaction.commit()


@pytest.mark.java
def test_rewrites_choose_the_files_that_iceberg_chooses(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "rewrites_and_nulls")
    shop.create("id BIGINT, s STRING")
    shop.insert_files(["1L, 'a'", "2L, NULL"], ["3L, NULL", "4L, NULL"], ["5L, 'b'"], ["6L, 'a'"])
    table = sm.load_table(str(shop.folder), spark=spark)
    for text in ("s <> 'a'", "NOT (s IN ('a', 'c') OR id = 1)", "NOT s LIKE 'b%'"):
        ours = table.maintenance.rewrite_data_files(text, rewrite_all=True).to_df().count()
        assert 0 < ours < 4
        head = shop.snapshot_id()
        theirs = shop.call("rewrite_data_files", f"`where` => \"{text}\", options => map('rewrite-all', 'true')")
        assert theirs[0].rewritten_data_files_count == ours, text
        shop.call("rollback_to_snapshot", f"snapshot_id => {head}")
