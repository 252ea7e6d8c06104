"""Filters of very many values: each row has its residual, and the plan has it once."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from sparkmeta.plan.filter import SharedTexts
from tests.plans import explained
from tests.trees import BY_PART, TreeTable, data

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

VALUES = range(5_000)
LISTED = f"id in ({', '.join(map(str, VALUES))})"


@pytest.fixture
def table(tmp_path: Path) -> TreeTable:
    tree = TreeTable(tmp_path, BY_PART)
    tree.snapshot(added=[tree.leaf("m", data("x:a1"), data("x:a2"), data("x:b", "b"))])
    return tree


def test_each_row_has_its_residual_and_the_plan_has_it_once(table: TreeTable, spark: SparkSession) -> None:
    plan = table.load(spark).scan(f"part = 'a' or {LISTED}").plan_files()
    residuals = {row["file_path"]: json.loads(row["residual"]) for row in plan.collect()}
    assert residuals == {
        "x:a1": True,
        "x:a2": True,
        "x:b": {"type": "in", "term": "id", "values": list(VALUES)},
    }
    assert not re.search(r"4998, ?4999", described(plan))


def test_tasks_have_residuals_too(table: TreeTable, spark: SparkSession) -> None:
    tasks = table.load(spark).scan(LISTED).plan_tasks().selectExpr("inline(tasks)").collect()
    assert len(tasks) == 3
    assert all(json.loads(task["residual"])["values"] == list(VALUES) for task in tasks)


def test_short_texts_are_literals() -> None:
    texts = SharedTexts()
    assert texts.literal("short").text == "'short'"
    assert texts.literal("x" * 20_000).text == texts.literal("x" * 20_000).text
    assert texts.literal("y" * 20_000).text != texts.literal("x" * 20_000).text


def described(frame: DataFrame) -> str:
    """The logical and physical plans of a query as Spark describes them."""
    return explained(frame)
