"""Rows of the corpus equal those that Iceberg's Spark runtime reads, column by column and type by type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.rows.arrow_reader import read_by_tasks
from tests.conftest import configured
from tests.local_files import local_path
from tests.peers import corpus as peers
from tests.peers.slices import SOAK, slice_of
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

# Without tables whose data files contradict or are missing from the metadata, or have types that Iceberg's Spark
# integration lacks.
NAMES = [name for name in peers.names(without=("made_up", "not_spark")) if not name.startswith("equality_void")]
# Java can't read two columns of one name, one dropped and compared by equality deletes: our two readers are compared.
JAVA_REFUSES = "equality_evolved"


# What users set, and what else changes how Spark reads Parquet or shows values.
SETTINGS: dict[str, dict[str, str]] = {
    "ANSI off": {"spark.sql.ansi.enabled": "false"},
    "west of UTC": {"spark.sql.session.timeZone": "America/St_Johns"},
    "east of UTC": {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "case": {"spark.sql.caseSensitive": "true"},
    "rows, not vectors": {"spark.sql.parquet.enableVectorizedReader": "false"},
}
ALL = {name: value for values in SETTINGS.values() for name, value in values.items()}
SLICE = ("types_v2", "deletes_by_file_v3", "equality_types_v2", "upgraded_with_deletes_v4", "defaults_v3")
CASES = [(name, settings) for settings in SETTINGS for name in NAMES] if SOAK else [(name, "all") for name in SLICE]


@pytest.mark.parametrize("name", slice_of(NAMES))
def test_rows(name: str, corpus: Corpus, spark: SparkSession) -> None:
    _assert_same_rows(name, corpus, spark)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_rows_under_settings(name: str, settings: str, corpus: Corpus, spark: SparkSession) -> None:
    with configured(spark, SETTINGS.get(settings, ALL)):
        _assert_same_rows(name, corpus, spark)


def _assert_same_rows(name: str, corpus: Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    scan = sm.load_table(peer.metadata_location, spark=spark).scan()
    ours, theirs = scan.to_df(), peer.java.rows()
    assert typed_columns(ours) == typed_columns(theirs)
    if not all(Path(local_path(file.file_path)).exists() for file in scan.plan_files().collect()):
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST|there is no such file"):
            ours.collect()
        return
    if name.startswith(JAVA_REFUSES):
        theirs = read_by_tasks(scan.plan.filter, scan.plan_files(), scan.projection())
    assert _comparable(row_texts(ours), name) == _comparable(row_texts(theirs), name)


def _comparable(rows: list[tuple[str | None, ...]], name: str) -> list[tuple[str | None, ...]]:
    """Java's ORC reader takes a batch of zeros of both signs for a repeated value."""
    if "orc" not in name:
        return rows
    return sorted((tuple("0.0" if text == "-0.0" else text for text in row) for row in rows), key=repr)
