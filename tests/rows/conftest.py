"""Fixtures of the tests of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import configured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def tasks_open_files(spark: SparkSession) -> Iterator[None]:
    """Set that tasks can open files, since on Spark Connect they otherwise don't read with Arrow."""
    with configured(spark, {"spark.sparkmeta.executor-reads": "direct"}):
        yield
