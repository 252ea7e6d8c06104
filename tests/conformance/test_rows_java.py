"""Rows of the corpus equal those that Iceberg's Spark runtime reads, column by column and type by type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.rows.arrow_reader import read_by_tasks
from sparkmeta.storage.location import local_path
from tests.peers import corpus as peers
from tests.peers.slices import slice_of
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

# Without tables whose data files are not what the metadata say, and those of types that Iceberg's Spark integration
# lacks. Of some tables data files do not exist.
NAMES = [name for name in peers.names(without=("made_up", "not_spark")) if not name.startswith("equality_void")]
# Java can't read two columns of one name, one dropped and compared by equality deletes: our two readers are compared.
JAVA_REFUSES = "equality_evolved"


@pytest.mark.parametrize("name", slice_of(NAMES))
def test_rows(name: str, corpus: Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    scan = sm.load_table(peer.metadata_location, spark=spark).scan()
    ours, theirs = scan.to_df(), peer.java.rows()
    assert typed_columns(ours) == typed_columns(theirs)
    if not all(Path(local_path(file.file_path)).exists() for file in scan.plan_files().collect()):
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST|there is no such file"):
            ours.collect()
        return
    if name.startswith(JAVA_REFUSES):
        theirs = read_by_tasks(scan._filter, scan.plan_files(), scan.projection())
    assert _comparable(row_texts(ours), name) == _comparable(row_texts(theirs), name)


def _comparable(rows: list[tuple[str | None, ...]], name: str) -> list[tuple[str | None, ...]]:
    """Java's ORC reader takes a batch of zeros of both signs for a repeated value."""
    if "orc" not in name:
        return rows
    return sorted((tuple("0.0" if text == "-0.0" else text for text in row) for row in rows), key=repr)
