"""What tests of rows share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import configured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def tasks_open_files(spark: SparkSession) -> Iterator[None]:
    """On Spark Connect, tasks read with Arrow only where a setting says that they can open files."""
    with configured(spark, {"spark.sparkmeta.executor-reads": "direct"}):
        yield
