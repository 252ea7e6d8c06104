"""Rows on a classic session and on Spark Connect: what a notebook does with a table of pyiceberg's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.small_table import ROWS, write_small_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> sm.Table:
    return sm.Table.from_pyiceberg(write_small_table(tmp_path), spark)


def test_rows(table: sm.Table) -> None:
    rows = table.scan("country = 'SE' and id >= 10", selected_fields=("id", "note", "_pos", "_spec_id")).to_df()
    assert sorted(map(tuple, rows.collect())) == [
        (number, f"note {number}", number // 2 % 5, 1) for number in range(10, 3 * ROWS, 2)
    ]


def test_counts_and_views(table: sm.Table, spark: SparkSession) -> None:
    assert table.scan().count() == 3 * ROWS
    assert table.scan("id < 7").count() == 7
    table.scan("id < 7").create_temp_view("few")
    assert spark.sql("SELECT sum(id) FROM few").collect() == [(21,)]
    assert table.scan().use_ref("first").to_arrow().num_rows == ROWS
