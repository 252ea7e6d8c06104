"""Filters on columns that hold structs, lists and maps: no stats are known of these themselves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.errors import InvalidFilterError
from tests.small_table import small_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = {
    "st is null": {"type": "is-null", "term": "st"},
    "not (st is null)": {"type": "not-null", "term": "st"},
    "li is not null": {"type": "not-null", "term": "li"},
    "ma is null": {"type": "is-null", "term": "ma"},
}


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    """Two files: one with values, one with nulls."""
    catalog = small_catalog(tmp_path_factory.mktemp("nested"))
    catalog.create_namespace("db")
    kinds = {
        "id": pa.int64(),
        "st": pa.struct([("x", pa.int64())]),
        "li": pa.list_(pa.int64()),
        "ma": pa.map_(pa.string(), pa.int64()),
    }
    schema = pa.schema(list(kinds.items()))
    written = catalog.create_table("db.t", schema)
    written.append(pa.Table.from_pylist([{"id": 1, "st": {"x": 1}, "li": [1], "ma": {"a": 1}}], schema))
    written.append(pa.Table.from_pylist([{"id": 2}], schema))
    return sm.load_table(catalog.load_table("db.t").metadata_location, spark=spark)


@pytest.mark.parametrize("row_filter", TESTS)
def test_a_null_test_keeps_every_file_and_stays(row_filter: str, table: sm.Table) -> None:
    rows = table.scan(row_filter).plan_files().select("residual").collect()
    assert [json.loads(row["residual"]) for row in rows] == [TESTS[row_filter]] * 2
    assert table.scan(f"{row_filter} and id = 1").plan_files().count() == 1
    assert table.scan(f"{row_filter} and st.x = 1").plan_files().count() == 1


@pytest.mark.parametrize("row_filter", ["st = 1", "li in (1, 2)", "ma is nan"])
def test_other_tests_are_refused(row_filter: str, table: sm.Table) -> None:
    with pytest.raises(InvalidFilterError, match=r"can only be tested for null|are never NaN"):
        table.scan(row_filter).plan_files()
