"""Filters on columns that hold structs, lists and maps: no stats are known of these themselves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

import sparkmeta as sm
from sparkmeta.errors import InvalidFilterError
from tests.costs import limit
from tests.small_table import small_catalog
from tests.trees import STATS, TreeTable, data, equality_deletes, stats

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.fixture(params=["few", "many"])
def _many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes that are too many for the driver are grouped by Spark."""
    if request.param == "many":
        limit(monkeypatch, broadcast_deletes=0, driver_deletes=0)


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
@pytest.mark.parametrize(
    ("of_data", "of_delete", "applies"),
    [(6, 9, True), (6, 10, False), (10, 9, False), (10, 10, False)],
)
def test_rows_of_a_null_struct_are_deleted_by_a_null_key(
    tmp_path: Path, spark: SparkSession, of_data: int, of_delete: int, applies: bool, required: bool
) -> None:
    """The stats of a nested column count no row whose struct is null: these are the nulls that both files have."""
    nested = StructType(NestedField(4, "x", LongType(), required=required))
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "st", nested)
    )
    tree = TreeTable(tmp_path / "t", schema=schema, types=STATS | {4: "long"})

    def of_x(lower: int, upper: int, values: int) -> dict[str, object]:
        counts = {"value_count": values, "null_value_count": 0}
        return stats("a") | {"4": {"lower_bound": lower, "upper_bound": upper, **counts}}

    tree.snapshot(added=[data("x:d1", content_stats=of_x(1, 5, of_data))])
    eq = equality_deletes("x:eq", content_stats=of_x(6, 9, of_delete)).with_fields(equality_ids=[4])
    tree.snapshot(existing=[data("x:d1", content_stats=of_x(1, 5, of_data))], added=[eq])
    (planned,) = tree.load(spark).scan().plan_files().select("deletes.file_path").collect()
    assert planned["file_path"] == (["x:eq"] if applies else [])
