"""The driver in Arrow, tasks in Python, and Spark's own sources make the same plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import SparkmetaError, translated_errors
from sparkmeta.plan.files import plan_schema
from sparkmeta.scan import Scan
from tests.conftest import configured
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

BYTES, READS = "spark.sparkmeta.driver-manifest-bytes", "spark.sparkmeta.executor-reads"
BY_TASKS, BY_SPARK = ({BYTES: "0", READS: reads} for reads in ("direct", "spark"))
FILTERS = 3


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
