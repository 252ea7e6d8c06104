"""The number of new files that the plan of a rewrite tells, against the files that its commit writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("kind", pa.string())])
PARTS = ["a", "b", None, "c"]


def appended(table: sm.Table, times: int) -> sm.Table:
    for _ in range(times):
        table = table.append(pa.table({"id": range(4), "part": PARTS, "kind": ["x", "x", "y", "x"]}, SCHEMA))
    return table


@pytest.mark.parametrize(
    ("first", "change", "expected"),
    [
        (["part"], None, 4),
        (["part"], lambda spec: spec.add_field("kind"), 8),
        (["part"], lambda spec: spec.remove_field("part"), 1),
    ],
    ids=["one spec", "a finer spec", "a coarser spec"],
)
def test_a_plan_counts_files_by_partition_and_spec(
    spark: SparkSession, tmp_path: Path, first: list[str], change: Callable[[Any], object] | None, expected: int
) -> None:
    catalog = sm.load_catalog("local", type="hadoop", warehouse=str(tmp_path))
    table = appended(catalog.create_table("db.t", SCHEMA, partition_by=first), 2)
    if change is not None:
        spec = table.update_spec()
        change(spec)
        spec.commit()
        table = appended(table.refresh(), 2)
    plan = sm.load_table(table.location(), spark=spark).maintenance.rewrite_data_files(min_input_files=2)
    assert plan.summary().new_files == expected
    plan.commit()
    committed = plan.result()["committed"]
    assert committed["rewritten_data_files"] == plan.summary().data_files
    assert committed["added_data_files"] == expected


def test_files_without_a_partition_are_counted_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Their group has the files of the null partition too, and what partitions their rows have is unknown."""
    catalog = sm.load_catalog("local", type="hadoop", warehouse=str(tmp_path))
    table = appended(catalog.create_table("db.t", SCHEMA), 2)
    table.update_spec().add_field("part").commit()
    table = appended(table.refresh(), 2)
    plan = sm.load_table(table.location(), spark=spark).maintenance.rewrite_data_files(min_input_files=2)
    assert (plan.summary().groups, plan.summary().new_files) == (4, 5)
