"""Operations on a table of 100 files run few Spark tasks, whatever the session's settings are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.small_operations import costs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MOST_TASKS = 22


@pytest.mark.classic
@pytest.mark.parametrize("version", [2, 3, 4])
def test_tasks_of_small_operations(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """In a session with Spark's default number of tasks."""
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    tasks = {name: cost.tasks for name, cost in costs(spark, tmp_path, version)}
    assert {name: count for name, count in tasks.items() if count > MOST_TASKS} == {}
