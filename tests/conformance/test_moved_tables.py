"""Tables that `rewrite_table_path` has moved are read by Iceberg's Java library as before, without their old files.

Each table of the corpus moves twice, and its files at the place between are gone when it is read: a location that was
left unchanged names a missing file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from tests.conformance import tree_corpus
from tests.maintain.test_rewrite_table_path import assert_recorded_sizes
from tests.peers import corpus as peers
from tests.peers.java import At
from tests.peers.slices import slice_of
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus

# These lack some data files and can't be copied, or record wrong sizes of their files, as `equality_void`.
LACKING = ("unusual_types", "manifests_many", "manifests_merged", "equality_void")
NAMES = [name for name in peers.names(without=("made_up", "encrypted")) if not name.startswith(LACKING)]
# Iceberg's Spark integration can't read two columns of one name, one dropped and compared by equality deletes.
UNREAD = ("equality_evolved",)


def move(table: sm.Table, source: str, target: Path) -> sm.Table:
    """Move a table's files below `source`, and return the table at its new location."""
    places = {"target_prefix": f"file://{target}", "staging_location": f"file://{target} staged"}
    plan = table.maintenance.rewrite_table_path(source, copy_files=True, **places)
    result = plan.commit()
    assert result.copied == result.listed == plan.to_df().count()
    return sm.load_table(result.metadata_location, spark=table.state.spark)


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(NAMES))
def test_rows_and_plans(name: str, corpus: Corpus, spark: SparkSession, tmp_path: Path) -> None:
    peer = corpus.table(name)
    table = sm.load_table(peer.metadata_location, spark=spark)
    between, target = tmp_path / "bet ween", tmp_path / "target"
    first = move(table, f"file://{corpus.folder}", between)
    moved = move(first, f"file://{between}", target)
    shutil.rmtree(between)
    assert len(moved.arrow.check()) == len(table.arrow.check())
    assert_recorded_sizes(moved)
    deletes = moved.inspect.arrow.delete_files()
    for bounds in [*deletes["lower_bounds"].to_pylist(), *deletes["upper_bounds"].to_pylist()]:
        path = dict(bounds or ()).get(DELETE_FILE_PATH_ID)
        assert path is None or path.startswith(f"file://{target}/".encode())
    java = corpus.java.table(moved.metadata_location, "moved")

    def below(folder: Path, paths: list[str]) -> list[str]:
        return sorted(path.partition(str(folder))[2] for path in paths)

    for snapshot_id in peer.java.snapshot_ids:
        at = At(snapshot_id=snapshot_id)
        assert below(target, java.paths(at=at)) == below(corpus.folder, peer.java.paths(at=at))
    if not name.startswith(UNREAD) and "not_spark" not in peer.recipe.tags:
        assert row_texts(java.rows()) == row_texts(peer.java.rows())
    assert row_texts(moved.scan().to_df()) == row_texts(table.scan().to_df())


@pytest.mark.parametrize(("group", "name"), tree_corpus.NAMES)
def test_trees_of_the_iceberg_project(spark: SparkSession, tmp_path: Path, group: str, name: str) -> None:
    """All snapshots have the same rows and planned files at the second place."""
    tree_corpus.unpack_tables()
    answer = tree_corpus.answers()[f"{group}/{name}.json"]
    table = sm.load_table(answer["metadata_file"], spark=spark)
    between, target = tmp_path / "between", tmp_path / "target"
    first = move(table, str(tree_corpus.TABLES), between)
    moved = move(first, f"file://{between}", target)
    shutil.rmtree(between)
    assert len(moved.arrow.check()) == len(table.arrow.check())
    assert_recorded_sizes(moved)
    for snapshot in table.metadata.snapshots:
        before, after = (each.scan(snapshot_id=snapshot.snapshot_id) for each in (table, moved))
        assert planned_files(after, f"file://{target}") == planned_files(before, f"file:{tree_corpus.TABLES}")
        assert sorted(map(repr, after.to_arrow().to_pylist())) == sorted(map(repr, before.to_arrow().to_pylist()))


def planned_files(scan: sm.Scan, place: str) -> list[str]:
    """Return the planned files and deletes below a place, without the sizes of files that are rewritten."""
    files = scan.arrow.plan_files().drop_columns(["manifest_path"]).to_pylist()
    for delete in (delete for file in files for delete in file["deletes"]):
        del delete["file_size_in_bytes"]
    return sorted(json.dumps(file, default=repr).replace(place, "") for file in files)
