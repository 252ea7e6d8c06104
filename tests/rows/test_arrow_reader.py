"""Rows that Spark tasks read in Python equal those that Iceberg's Spark runtime reads, type by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.rows.arrow_reader import read_by_tasks
from tests.peers import corpus as peers
from tests.peers.slices import slice_of
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.scan import Scan
    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

# Tables whose rows are not all alike: types, formats, evolutions, deletes, names, and files of other origin.
TAGS = ("types", "formats", "defaults", "schema", "deletes", "equality", "imported", "names", "locations", "retyped")
# In `equality_void` a delete file was written over a data file.
NAMES = sorted(
    {name for tag in TAGS for name in peers.names(tag, without=("made_up", "not_spark"))}
    - {"equality_void_v2", "equality_void_v3"}
)
# Iceberg's Java library finds two columns of one name where deletes compare a dropped column whose name is used again.
REFUSED_BY_JAVA = {"equality_evolved_v2", "equality_evolved_v3"}


def rows_of(scan: Scan, *metadata_columns: str) -> DataFrame:
    return read_by_tasks(scan._filter, scan.plan_files(), scan.projection(), metadata_columns)


@pytest.mark.parametrize("name", slice_of(NAMES))
def test_rows(name: str, corpus: Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    ours, theirs = rows_of(sm.load_table(peer.metadata_location, spark=spark).scan()), peer.java.rows()
    assert typed_columns(ours) == typed_columns(theirs)
    if name in REFUSED_BY_JAVA:
        assert ours.collect()
        return
    assert comparable(ours, name) == comparable(theirs, name)


def comparable(frame: DataFrame, name: str) -> list[tuple[str | None, ...]]:
    """Java's ORC reader takes a batch of zeros of both signs for a repeated value."""
    rows = row_texts(frame)
    if "orc" not in name:
        return rows
    return sorted((tuple("0.0" if text == "-0.0" else text for text in row) for row in rows), key=repr)
