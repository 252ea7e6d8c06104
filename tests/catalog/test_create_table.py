"""Which format version a new table has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


@pytest.fixture(params=["hadoop", "sql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> sm.Catalog:
    uri = {"uri": f"sqlite:///{tmp_path}/catalog.db"} if request.param == "sql" else {}
    catalog = sm.load_catalog("new", type=request.param, warehouse=f"file://{tmp_path}", **uri)
    if request.param == "sql":
        catalog.pyiceberg.create_namespace("ns")  # type: ignore[attr-defined]
    return catalog


@pytest.mark.parametrize(
    ("argument", "written", "version"), [(None, None, 2), (3, None, 3), (4, None, 4), (None, "3", 3), (4, "4", 4)]
)
def test_the_version_of_a_new_table(
    spark: SparkSession, catalog: sm.Catalog, argument: int | None, written: str | None, version: int
) -> None:
    properties = {"owner": "me"} | ({"format-version": written} if written else {})
    table = catalog.create_table("ns.t", SCHEMA, properties=properties, format_version=argument, spark=spark)
    assert table.format_version == version
    assert table.refresh().properties == {"owner": "me", "write.parquet.compression-codec": "zstd"}


@pytest.mark.parametrize(
    ("argument", "written", "kind", "problem"),
    [
        (1, None, sm.UnsupportedError, "format version '1'"),
        (5, None, sm.UnsupportedError, "format version '5'"),
        (None, "two", sm.UnsupportedError, "format version 'two'"),
        (3, "2", sm.ValidationError, "the property format-version is '2', and format_version is 3"),
    ],
)
def test_versions_that_are_refused(
    spark: SparkSession,
    catalog: sm.Catalog,
    argument: int | None,
    written: str | None,
    kind: type[Exception],
    problem: str,
) -> None:
    properties = {"format-version": written} if written else {}
    with pytest.raises(kind, match=problem):
        catalog.create_table("ns.t", SCHEMA, properties=properties, format_version=argument, spark=spark)
    assert catalog.list_tables("ns") == []
