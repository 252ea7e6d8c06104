"""The driver in Arrow, tasks in Python, and Spark's own sources make the same plans and metadata tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.arrow_types import arrow_schema
from sparkmeta.errors import SparkmetaError, translated_errors
from sparkmeta.plan.files import plan_schema
from sparkmeta.scan import Scan
from sparkmeta.session import local_frame
from tests.conftest import configured
from tests.inspect.comparison import assert_same_rows, collected
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.java import METADATA_TABLES
from tests.peers.slices import SOAK, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

BYTES, READS = "spark.sparkmeta.driver-manifest-bytes", "spark.sparkmeta.executor-reads"
BY_TASKS, BY_SPARK = ({BYTES: "0", READS: reads} for reads in ("direct", "spark"))
FILTERS = 3
# The slice compares metadata tables of every so many of its tables, and those that other code makes.
EVERY_NTH = 1 if SOAK else 4
ONCE = ("entries", "files", "partitions", "all_files", "all_manifests", "position_deletes")
INSPECTED = METADATA_TABLES if SOAK else ONCE
BY_SOURCES = INSPECTED if SOAK else ("entries", "position_deletes")


@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_plans_are_the_same(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)

    def scans() -> list[Scan]:
        table = sm.load_table(peer.metadata_location, spark=spark)
        chosen = filters(peer, FILTERS)
        return [table.scan()] + [table.scan(each.expression, case_sensitive=each.case_sensitive) for each in chosen]

    expected = [planned(Scan.plan_files_arrow, scan) for scan in scans()]
    for settings in ({}, BY_TASKS, BY_SPARK):
        with configured(spark, settings):
            assert [planned(by_frame, scan) for scan in scans()] == expected


def by_frame(scan: Scan) -> pa.Table:
    frame = scan.plan_files()
    with translated_errors():
        rows = frame.toArrow()
    assert frame.schema.simpleString() == plan_schema(scan.state).simpleString()
    return rows


def planned(plan: Callable[[Scan], pa.Table], scan: Scan) -> Any:
    """Return the rows of a plan in the order of their text, or its error."""
    try:
        return sorted(plan(scan).to_pylist(), key=str)
    except SparkmetaError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", slice_of(peers.names())[::EVERY_NTH])
def test_metadata_tables_are_the_same(name: str, corpus: peers.Corpus, interpreted: SparkSession) -> None:
    location, spark = corpus.table(name).metadata_location, interpreted

    def inspect() -> sm.InspectTable:
        return sm.load_table(location, spark=spark).inspect

    by_driver = {kind: metadata_table(inspect(), kind) for kind in INSPECTED}
    tables = {kind: table for kind, table in by_driver.items() if not isinstance(table, tuple)}
    frames = {("driver", kind): local_frame(spark, table) for kind, table in tables.items()}
    for kind, table in tables.items():
        assert arrow_schema(getattr(inspect(), kind)().schema) == table.schema, kind
    for way, settings, kinds in (("tasks", BY_TASKS, INSPECTED), ("Spark", BY_SPARK, BY_SOURCES)):
        with configured(spark, settings):
            for kind in kinds:
                if way == "Spark" and kind.startswith("all_") and inspect()._state.has_trees:
                    continue
                if kind in tables:
                    frames[way, kind] = getattr(inspect(), kind)()
                    assert arrow_schema(frames[way, kind].schema) == tables[kind].schema, (way, kind)
                else:
                    assert metadata_table(inspect(), kind) == by_driver[kind]
    rows = collected(frames)
    for way, kind in frames:
        assert_same_rows(rows["driver", kind], rows[way, kind], f"{name}.{kind} by {way}")


def metadata_table(inspect: sm.InspectTable, kind: str) -> Any:
    """Return a metadata table, or its error."""
    try:
        return getattr(inspect.arrow, kind)()
    except SparkmetaError as error:
        return type(error), str(error)
