"""The driver in Arrow, tasks in Python, and Spark's own sources make the same plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.arrow_types import spark_schema
from tests.conftest import configured
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import slice_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.scan import Scan

pytestmark = pytest.mark.java

BYTES, READS = "spark.sparkmeta.driver-manifest-bytes", "spark.sparkmeta.executor-reads"
WAYS = {"driver": {}, "tasks": {BYTES: "0", READS: "direct"}, "spark": {BYTES: "0", READS: "spark"}}
FILTERS = 6


@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_plans_are_the_same(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    plans: dict[str, list[Any]] = {}
    for way, settings in WAYS.items():
        with configured(spark, settings):
            table = sm.load_table(peer.metadata_location, spark=spark)
            scans = [table.scan()] + [
                table.scan(row_filter=row_filter.expression, case_sensitive=row_filter.case_sensitive)
                for row_filter in filters(peer, FILTERS)
            ]
            plans[way] = [planned(scan) for scan in scans]
    assert plans["driver"] == plans["tasks"] == plans["spark"]


def planned(scan: Scan) -> Any:
    """The rows of a plan by file, after a check that both forms of it are the same; or its error."""
    try:
        table = scan.plan_files_arrow()
    except sm.errors.SparkmetaError as error:
        return type(error), str(error)
    frame = scan.plan_files()
    assert spark_schema(table.schema).simpleString() == frame.schema.simpleString()
    rows = sorted(table.to_pylist(), key=str)
    assert rows == sorted(pa.Table.to_pylist(frame.toArrow()), key=str)
    assert scan.count_files() == len(rows)
    return rows
