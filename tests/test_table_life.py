from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.table_life import LIVES, Life

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("version", "form", "mode", "layout"), LIVES)
def test_the_life_of_a_table(
    spark: SparkSession, tmp_path: Path, version: int, form: str, mode: str, layout: str
) -> None:
    Life(spark, tmp_path, version, form, mode, layout).lead()
