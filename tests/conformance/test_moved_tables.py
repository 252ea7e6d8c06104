"""Tables that `rewrite_table_path` has moved are read by Iceberg's Java library as before, without their old files.

Each table of the corpus moves twice, and its files at the place between are gone when it is read: a location that was
left unchanged names a missing file.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.peers import corpus as peers
from tests.peers.java import At
from tests.peers.slices import slice_of
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

NAMES = peers.names(without=("made_up", "encrypted"))
# Iceberg's Spark integration can't read two columns of one name, one dropped and compared by equality deletes.
UNREAD = ("equality_evolved",)


def move(table: sm.Table, source: str, target: Path) -> sm.Table:
    """Move a table's files below `source`, and return the table at its new location."""
    plan = table.maintenance.rewrite_table_path(source, f"file://{target}", copy_files=True)
    result = plan.commit()
    shutil.rmtree(result.staging_location.removeprefix("file://"))
    assert result.copied == result.listed == plan.to_df().count()
    return sm.load_table(result.metadata_location, spark=table.state.spark)


@pytest.mark.parametrize("name", slice_of(NAMES))
def test_rows_and_plans(name: str, corpus: Corpus, spark: SparkSession, tmp_path: Path) -> None:
    peer = corpus.table(name)
    table = sm.load_table(peer.metadata_location, spark=spark)
    between, target = tmp_path / "bet ween", tmp_path / "target"
    first = move(table, f"file://{corpus.folder}", between)
    moved = move(first, f"file://{between}", target)
    shutil.rmtree(between)
    assert len(moved.arrow.check()) == len(table.arrow.check())
    java = corpus.java.table(moved.metadata_location, "moved")

    def below(folder: Path, paths: list[str]) -> list[str]:
        return sorted(path.partition(str(folder))[2] for path in paths)

    for snapshot_id in peer.java.snapshot_ids:
        at = At(snapshot_id=snapshot_id)
        assert below(target, java.paths(at=at)) == below(corpus.folder, peer.java.paths(at=at))
    if not name.startswith(UNREAD) and "not_spark" not in peer.recipe.tags:
        assert row_texts(java.rows()) == row_texts(peer.java.rows())
    assert row_texts(moved.scan().to_df()) == row_texts(table.scan().to_df())
