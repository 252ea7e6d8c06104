"""Tables with odd but valid metadata have their rows, and Java's plans where Java reads them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.expr.predicate import parse_filter
from tests.peers.java import Java
from tests.peers.odd_metadata import FILTERS, ROWS, OddTable, odd_table
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

TABLES = 25
EPOCH = dt.date(1970, 1, 1)


@pytest.mark.parametrize("group", range(20 if SOAK else 1))
def test_odd_metadata_is_read_as_java_reads_it(group: int, tmp_path: Path, spark: SparkSession) -> None:
    catalog = SqlCatalog("odd", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    java, both = Java(spark), 0
    for seed in range(group * TABLES, (group + 1) * TABLES):
        odd = odd_table(catalog, seed)
        table = sm.load_table(odd.location, spark=spark)
        everything = planned(table, None, seed)
        assert sorted(map(str, table.scan().to_arrow().column("id").to_pylist())) == sorted(
            str(row["id"]) for row in ROWS
        ), told(seed, odd)
        for place, row_filter in enumerate(FILTERS):
            ours = planned(table, row_filter, seed + place)
            theirs = javas(java, odd, row_filter)
            assert ours <= everything, told(seed, odd)
            if odd.regular:
                assert theirs is not None
                # Java's evaluators put null first, and keep the partitions of null (test_plan_java.py).
                more = {path for path in theirs - ours if "=null" not in path}
                assert ours <= theirs, f"{row_filter}: {told(seed, odd)}"
                assert not more, f"{row_filter}: {told(seed, odd)}"
                both += 1
            expected = {str(row["id"]) for row in ROWS if matches(row, place)}
            matching = {str(value) for value in table.scan(row_filter).to_arrow().column("id").to_pylist()}
            assert matching == expected, f"{row_filter}: {told(seed, odd)}"
    assert both > TABLES  # that Java reads most of them


def planned(table: sm.Table, row_filter: str | None, turn: int) -> set[str]:
    """The planned files; every eighth time from manifests that tasks decode."""
    scan = table.scan(row_filter) if row_filter else table.scan()
    if turn % 8:
        return {row["file_path"] for row in scan.iter_files()}
    table.state.spark.conf.set("spark.sparkmeta.driver-manifest-bytes", "0")
    try:
        return {row["file_path"] for row in scan.plan_files().select("file_path").collect()}
    finally:
        table.state.spark.conf.unset("spark.sparkmeta.driver-manifest-bytes")


def javas(java: Java, odd: OddTable, row_filter: str) -> set[str] | None:
    """Java's plan; None if it fails, as it does for bounds of a wrong length."""
    if not odd.regular:
        return None
    try:
        return set(java.table(odd.location).paths(parse_filter(row_filter)))
    except (Py4JJavaError, PySparkException) as error:
        raise AssertionError(f"{odd.done}: {error}") from error


def matches(row: dict[str, Any], place: int) -> bool:
    """Whether a row is of FILTERS[place]."""
    number, text = row["id"], row["s"]
    if number is None:
        return place == 4
    return [
        number == 3,
        text >= "y",
        row["a"] == 1,
        row["d"] < (dt.date(2022, 1, 10) - EPOCH).days,
        False,
        number > 2,
        number in (1, 2) or row["a"] == 1,
    ][place]


def told(seed: int, odd: OddTable) -> str:
    return f"seed {seed}: {odd.location}: {odd.done}"
