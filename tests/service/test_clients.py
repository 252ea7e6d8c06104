"""What Spark SQL and pyiceberg read through a service is what they read themselves, of every table of the corpus."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from pyiceberg.table import StaticTable

import sparkmeta as sm
from sparkmeta.service.rest_tasks import INEXPRESSIBLE
from tests.maintain.clones import clone
from tests.peers import corpus as peers
from tests.peers import tables_partitions
from tests.peers.expressions import equivalent
from tests.peers.filters import filters
from tests.peers.java import At, JavaTable, elements, iterate
from tests.peers.slices import FILTERS, SOAK
from tests.rows.comparison import row_texts, typed_columns
from tests.service.serving import LocatedTables, pyiceberg_catalog, served, spark_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.peers.corpus import PeerTable

T = TypeVar("T")

pytestmark = pytest.mark.java

# A few tables of different kinds are enough for the slice.
ROWS = (
    "identity_others_v3",
    "days_and_bucket_v1",
    "deletes_by_file_v2",
    "schema_evolution_v3",
    "branches_and_tags_v4",
    "identity_d_v2",
    "[b]{r}_v2",
)
PLANS = ("days_and_bucket_v1", "spec_evolution_v2", "deletes_by_file_v2")
NAMES = [name for name in peers.names(without=("not_spark",)) if not name.startswith("equality_void")]
READABLE = [name for name in NAMES if name not in peers.names("made_up")]
# Tables that Java itself does not read.
JAVA_REFUSES = ("equality_evolved",)
MOST_FILTERS = FILTERS if SOAK else 3


@pytest.fixture(scope="module")
def tables() -> LocatedTables:
    return LocatedTables({})


@pytest.fixture(scope="module")
def service(spark: SparkSession, tables: LocatedTables) -> Iterator[sm.Service]:
    with served(tables, spark) as running:
        yield running


@pytest.fixture(scope="module")
def name_of_catalog(spark: SparkSession, service: sm.Service) -> Iterator[str]:
    with spark_catalog(spark, service) as name:
        yield name


def peer_of(name: str, corpus: peers.Corpus, tables: LocatedTables) -> PeerTable:
    peer = corpus.table(name)
    tables.locations[name] = peer.metadata_location
    return peer


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def inexpressible(table: sm.Table) -> bool:
    """Whether the partition of a file has a value that JSON has not."""
    partitions = [row.partition.asDict() for row in table.scan().plan_files().select("partition").distinct().collect()]
    values = [value for partition in partitions for value in partition.values()]
    return any(isinstance(value, float) and not math.isfinite(value) for value in values)


def outcome(ask: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result of a call, or its error."""
    try:
        return ask(), None
    except Exception as error:  # noqa: BLE001  clients raise anything
        return None, error


@pytest.mark.parametrize("name", READABLE if SOAK else ROWS)
def test_spark_reads_the_rows(name: str, corpus: peers.Corpus, spark: SparkSession, tables, name_of_catalog: str):
    if name.startswith(JAVA_REFUSES):
        pytest.skip("Java reads it neither way")
    peer = peer_of(name, corpus, tables)
    expected, unreadable = outcome(lambda: table_rows(peer.java.rows()))
    rows, error = outcome(lambda: table_rows(spark.table(f"{name_of_catalog}.db.{quoted(name)}")))
    if unreadable is not None:
        assert error is not None
    elif error is None:
        assert rows == expected
    else:
        assert INEXPRESSIBLE in str(error), error
        assert inexpressible(sm.load_table(peer.metadata_location, spark=spark))


def table_rows(frame: DataFrame) -> tuple[Any, Any]:
    return typed_columns(frame), row_texts(frame)


@pytest.mark.parametrize("name", READABLE if SOAK else ROWS)
def test_pyiceberg_reads_the_rows(name: str, corpus: peers.Corpus, spark: SparkSession, tables, service: sm.Service):
    peer = peer_of(name, corpus, tables)
    table = sm.load_table(peer.metadata_location, spark=spark)
    expected, unreadable = outcome(lambda: arrow_rows(StaticTable.from_metadata(peer.metadata_location)))
    rows, error = outcome(lambda: arrow_rows(pyiceberg_catalog(service).load_table(("db", name))))
    if error is not None:
        told = INEXPRESSIBLE in str(error) and ("unknown transforms" in str(error) or inexpressible(table))
        # pyiceberg gets no null of a partition, which it needs of files that lack the column.
        lacks = isinstance(error, IndexError) and "imported" in name
        assert unreadable is not None or told or lacks, error
    elif unreadable is None:
        assert rows == expected
    else:
        assert rows is not None
        assert len(rows) == table.scan().count()


def arrow_rows(table: Any) -> list[str]:
    return sorted(map(repr, table.scan().to_arrow().to_pylist()))


@pytest.mark.parametrize("name", NAMES if SOAK else PLANS)
def test_java_gets_the_plan_of_every_filter(
    name: str, corpus: peers.Corpus, spark: SparkSession, tables, name_of_catalog
):
    peer = peer_of(name, corpus, tables)
    table = sm.load_table(peer.metadata_location, spark=spark)
    java = corpus.java
    served_table = JavaTable(java, java.catalog_table(f"{name_of_catalog}.db.{quoted(name)}"))
    if "RESTTable" not in served_table.table.getClass().getName():
        assert "unknown_transform" in peer.recipe.tags
        return
    for row_filter in filters(peer, MOST_FILTERS):
        scan = table.scan(row_filter.expression, case_sensitive=row_filter.case_sensitive)
        scan = replace(scan, two_valued=True)  # The client's filter has the protocol's meaning of null.
        planned, error = outcome(lambda: java_plan(served_table, row_filter))  # noqa: B023  called at once
        if planned is None:
            told = INEXPRESSIBLE in str(error) and inexpressible(table)
            assert told or "different in different engines" in str(error), (row_filter, error)
            continue
        rows = scan.plan_files().collect()
        assert sorted(path for path, _, _ in planned) == sorted(row.file_path for row in rows), row_filter
        expected = {row.file_path: row for row in rows}
        overflows = any("truncate" in str(field.transform) for spec in table.specs().values() for field in spec.fields)
        for path, deletes, residual in planned:
            row = expected[path]
            assert deletes == [(delete.file_path, delete.content_offset, delete.record_count) for delete in row.deletes]
            # Clients can't read infinities, and filter rows themselves. See `java_errs` for the least integers.
            least = re.search(r"-2147483648|-9223372036854775808", row.residual)
            if "Infinity" not in row.residual and not (overflows and least):
                assert equivalent(residual, row.residual, peer.schema, row_filter.case_sensitive), row_filter


def java_plan(table: JavaTable, row_filter: Any) -> list[tuple[str, list[Any], str]]:
    scan = table.scan(row_filter.expression, case_sensitive=row_filter.case_sensitive)
    return [
        (
            task.file().location(),
            [(each.location(), each.contentOffset(), each.recordCount()) for each in elements(task.deletes())],
            table.java.expressions.toJson(task.residual()),
        )
        for task in iterate(scan.planFiles())
    ]


@pytest.mark.parametrize("name", peers.names("history", without=("made_up",)) if SOAK else ["branches_and_tags_v3"])
def test_spark_travels_in_time(name: str, corpus: peers.Corpus, spark: SparkSession, tables, name_of_catalog: str):
    peer = peer_of(name, corpus, tables)
    table_name = f"{name_of_catalog}.db.{quoted(name)}"
    versions: list[tuple[At, object]] = [(At(snapshot_id=each), each) for each in peer.java.snapshot_ids]
    versions += [(At(ref=ref), f"'{ref}'") for ref in sm.load_table(peer.metadata_location, spark=spark).refs()]
    for at, version in versions:
        expected, unreadable = outcome(lambda: row_texts(peer.java.rows(at)))  # noqa: B023
        query = f"SELECT * FROM {table_name} VERSION AS OF {version}"
        rows, error = outcome(lambda: row_texts(spark.sql(query)))  # noqa: B023
        if error is None:
            assert rows == expected, version
        else:
            assert unreadable is not None or "the table's current schema" in str(error), (version, error)


# Each partitions the corpus' rows of edges by one transform of a column: table -> (column, transform or "").
SINGLE = {
    f"{unit}_{key}_v2": (key, "" if unit == "identity" else unit)
    for unit, keys in {
        "identity": tables_partitions.KEYS,
        "bucket": ("id", "l", "dec", "day", "ts", "s"),
        "truncate": ("id", "l", "dec", "s"),
        "years": ("day", "ts", "ntz"),
        "months": ("day", "ts", "ntz"),
        "days": ("day", "ts", "ntz"),
        "hours": ("ts", "ntz"),
    }.items()
    for key in keys
}
FUNCTIONS = {"bucket": "bucket(3, {0})", "truncate": "truncate({1}, {0})"}
COMPARISONS = ("{} = {}", "{} < {}", "{} <= {}", "{} > {}", "{} >= {}", "{} != {}", "{} <=> {}", "NOT ({} < {})")
# Spark compares binary values, and names no partition by them, so that they are read unchanged.
SOME = ("identity_id_v2", "days_ts_v2", "truncate_s_v2")


def predicates(name: str) -> list[str]:
    """Conditions on a partition column, and on its transform, which is {catalog}.system.days(...)."""
    key, unit = SINGLE[name]
    values = [value for value in tables_partitions.VALUES[key] if value != "null" and "NaN" not in value]
    conditions = [shape.format(key, value) for value in values for shape in COMPARISONS]
    conditions += [f"{key} IS NULL", f"{key} IS NOT NULL", f"{key} IN ({values[0]}, {values[2]})"]
    conditions += [f"NOT ({key} IN ({values[0]}, {values[2]}))", f"{key} = {values[0]} OR {key} IS NULL"]
    if unit:
        call = "{catalog}.system." + FUNCTIONS.get(unit, f"{unit}({{0}})").format(key, 2 if key == "s" else 10)
        steps = [call.replace(f"{key})", f"{value})") for value in values[:5]]
        conditions += [shape.format(call, step) for step in steps for shape in COMPARISONS]
        conditions += [f"{call} IS NULL", f"NOT ({call} IN ({steps[0]}, {steps[1]}))"]
    return conditions


def java_errs(name: str, condition: str) -> bool:
    """Whether Iceberg's Java library itself selects other rows than Spark, which leaves whole partitions to it.

    Its != of a transform holds for null, its infinity exceeds NaN, and its truncation of the least integers overflows.
    """
    key, unit = SINGLE[name]
    return "{catalog}" in condition or "Infinity" in condition or (unit == "truncate" and key in ("id", "l"))


@pytest.mark.parametrize("kind", ["lists", "tree"])
@pytest.mark.parametrize("name", SINGLE if SOAK else SOME)
def test_spark_leaves_partitions_to_the_plan(
    name: str, kind: str, corpus: peers.Corpus, spark: SparkSession, tables, name_of_catalog: str, tmp_path
):
    """Spark drops conditions that select whole partitions. What it gets must be exact, before 1970 too."""
    peer = peer_of(name, corpus, tables)
    if kind == "tree":
        tables.locations[f"tree_{name}"] = clone(peer, tmp_path / "tree").maintenance.upgrade(4).commit().location()
    table_name = f"{name_of_catalog}.db.{'tree_' * (kind == 'tree')}{name}"
    peer.java.rows().localCheckpoint().createOrReplaceTempView("whole_rows")
    conditions = predicates(name)
    chosen = conditions if SOAK else random.Random(f"{name} {kind}").sample(conditions, 3)
    refused = 0
    for condition in chosen:
        query = f"SELECT * FROM {table_name} WHERE {condition.format(catalog=name_of_catalog)}"
        rows, error = outcome(lambda: row_texts(spark.sql(query)))  # noqa: B023
        if rows is None:
            assert INEXPRESSIBLE in str(error), (condition, error)
            refused += 1
            continue
        whole, local = (
            f"SELECT * FROM {source} WHERE {condition.format(catalog='corpus')}"
            for source in ("whole_rows", f"corpus.peers.{name}")
        )
        if rows != row_texts(spark.sql(whole)):
            assert java_errs(name, condition), condition
            assert rows == row_texts(spark.sql(local)), condition
    assert refused < len(chosen) or SINGLE[name][0] in ("f", "d"), chosen
