"""Relations have the same rows on the driver as in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmeta.entries import relation
from sparkmeta.expr import sql
from tests.frames import local_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sparkmeta.entries.relation import Relation

KEY = pa.struct([("spec", pa.int32()), ("day", pa.int64())])
ENTRIES = pa.table(
    {
        "path": ["a", "b", "c", "d"],
        "key": pa.array([{"spec": 0, "day": 1}, {"spec": 0, "day": None}, {"spec": 1, "day": None}, None], KEY),
        "bytes": pa.array([5, None, 7, 5], pa.int64()),
        "metrics": pa.array([[{"id": 1, "size": 2}, {"id": 2, "size": None}], [], None, [{"id": 1, "size": 3}]],
                            pa.list_(pa.struct([("id", pa.int32()), ("size", pa.int64())]))),
    }
)  # fmt: skip
GROUPS = pa.table(
    {
        "group": pa.array([{"spec": 0, "day": None}, {"spec": 0, "day": 1}, {"spec": 2, "day": None}], KEY),
        "files": pa.array([20, 10, 30], pa.int64()),
    }
)
KNOWN = pa.table({"path": ["c", "a", "e"], "bytes": pa.array([7, 6, None], pa.int64())})
COUNT = pa.schema([pa.field("rows", pa.int64())])
BYTES = sql.col("bytes")
AGGREGATES = [
    sql.call("sum", BYTES).alias("sum"),
    sql.call("sum", 1).alias("rows"),
    sql.call("min", BYTES).alias("min"),
    sql.call("max", sql.col("path")).alias("max"),
]


OPERATIONS: dict[str, Callable[[Callable[[pa.Table], Relation]], Any]] = {
    "totals": lambda place: relation.totals(place(ENTRIES), AGGREGATES),
    "totals of nothing": lambda place: relation.totals(place(ENTRIES.slice(0, 0)), AGGREGATES),
    "exploded": lambda place: relation.exploded(place(ENTRIES), "metrics"),
    "beside by struct": lambda place: relation.beside(place(ENTRIES), place(GROUPS), "key", "group"),
    "beside none": lambda place: relation.beside(place(ENTRIES), place(GROUPS.slice(0, 0)), "key", "group"),
    "matching": lambda place: relation.matching(place(ENTRIES), place(KNOWN), {"path": "path"}),
    "not matching": lambda place: relation.matching(
        place(ENTRIES), place(KNOWN), {"path": "path", "bytes": "bytes"}, absent=True
    ),
    "largest": lambda place: relation.largest(place(ENTRIES), ["bytes", "path"], 3),
    "ordered": lambda place: relation.limited(relation.ordered(place(KNOWN), ["path"]), 2),
    "values": lambda place: {"values": sorted(relation.values(place(ENTRIES)))},
    "distinct rows": lambda place: relation.distinct_rows(place(ENTRIES), ["bytes"]),
    "mapped together": lambda place: relation.mapped_together(
        place(KNOWN), lambda table: pa.table({"rows": pa.array([len(table)], pa.int64())}), COUNT
    ),
    "with types": lambda place: relation.with_types(place(KNOWN), {"path": pa.field("path", pa.string())}),
    "elements": lambda place: {"elements": relation.may_have_elements(place(ENTRIES), "metrics")},
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_are_those_of_spark(name: str, spark: SparkSession) -> None:
    in_arrow, there = OPERATIONS[name](lambda rows: rows), OPERATIONS[name](lambda rows: local_frame(spark, rows))
    if isinstance(in_arrow, dict):
        assert in_arrow == there
        return
    rows = [relation.collected(each).to_pylist() for each in (in_arrow, there)]
    if name not in ("largest", "ordered"):
        rows = [sorted(each, key=str) for each in rows]
    assert rows[0] == rows[1]
    assert rows[0] or name == "beside none"
