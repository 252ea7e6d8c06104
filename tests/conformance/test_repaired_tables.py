"""Tables that other libraries wrote: sound ones have no damage, and damaged copies are mended as Java sees it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.storage.location import local_path
from tests.conformance.test_moved_tables import LACKING, NAMES, UNREAD, move
from tests.maintain.test_repair import change_entries, data_files, files_of, list_of, rewrite_avro, with_repeated
from tests.peers import corpus as peers
from tests.peers.slices import slice_of
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus

# Tables that lack files, or have delete files that are not newer than any data file.
DAMAGED = (*LACKING, "spec_name_clash", "data_rewritten", "equality_across_specs")
SOUND = [name for name in peers.names(without=("made_up", "encrypted")) if not name.startswith(DAMAGED)]
# Tables that lack files of older snapshots, or that only their catalog may change.
UNMOVED = (*DAMAGED, *UNREAD, "sort_orders", "duplicated", "pyiceberg")
WITH_FILES = [name for name in NAMES if not name.startswith(UNMOVED) and not name.endswith("_v4")]


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(SOUND))
def test_sound_tables_have_no_damage(name: str, corpus: Corpus, spark: SparkSession) -> None:
    table = sm.load_table(corpus.table(name).metadata_location, spark=spark)
    if table.metadata.format_version == 4:
        with pytest.raises(sm.UnsupportedError, match="format version 4"):
            table.maintenance.repair()
    else:
        assert table.maintenance.repair().to_df().collect() == []


def copy_of(name: str, corpus: Corpus, spark: SparkSession, folder: Path) -> sm.Table:
    """Return a copy of a table with all of its files, which a test may damage."""
    peer = corpus.table(name)
    if "not_spark" in peer.recipe.tags:
        pytest.skip("Iceberg's Spark integration lacks a type of the table")
    copied = move(sm.load_table(peer.metadata_location, spark=spark), f"file://{corpus.folder}", folder / "copy")
    return sm.load_table(copied.metadata.location, spark=spark)


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(WITH_FILES))
def test_lost_files(name: str, corpus: Corpus, spark: SparkSession, tmp_path: Path) -> None:
    """The rows of other files are as Java read them before the damage."""
    table = copy_of(name, corpus, spark, tmp_path)
    paths = sorted(table.inspect.arrow.data_files()["file_path"].to_pylist())
    lost, cut = paths[:1], paths[1:2]
    if not lost:
        pytest.skip("the table is empty")
    columns = [column.name for column in table.schema().fields]
    before = corpus.java.table(table.metadata_location, "before").rows(columns=("*", "_file AS file_of_the_row"))
    as_ours = table.scan().select(*columns, "_file").to_df().withColumnRenamed("_file", "file_of_the_row")
    expected, expected_of_ours = (
        row_texts(rows.where(~F.col("file_of_the_row").isin(lost + cut)).drop("file_of_the_row"))
        for rows in (before, as_ours)
    )
    lost_rows = {path: count_of(table, path) for path in lost + cut}
    for path in lost:
        Path(local_path(path)).unlink()
    for path in cut:
        data = Path(local_path(path)).read_bytes()
        Path(local_path(path)).write_bytes(data[: len(data) // 2])
    kinds = ["lost-data-files", "unreadable-data-files"]
    plan = table.maintenance.repair(kinds)
    assert {row.file_path: row.lost_records for row in plan.to_df().collect()} == lost_rows
    assert plan.summary().lost_rows == sum(lost_rows.values())
    mended = plan.commit()
    assert row_texts(corpus.java.table(mended.metadata_location, "mended").rows()) == expected
    assert row_texts(mended.scan().to_df()) == expected_of_ours
    assert mended.maintenance.repair(kinds).summary().is_empty


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(WITH_FILES))
def test_lost_manifests_and_wrong_lists(name: str, corpus: Corpus, spark: SparkSession, tmp_path: Path) -> None:
    """A manifest is lost, and the list counts the entries of the others wrongly."""
    table = copy_of(name, corpus, spark, tmp_path)
    manifests = [row["path"] for row in table.inspect.arrow.manifests().to_pylist() if row["content"] == 0]
    lost_files = files_of(table, manifests[0]) if manifests else []
    if not lost_files or not table.current_snapshot().manifest_list:
        pytest.skip("the head has no manifest with files, or no manifest list")
    before = corpus.java.table(table.metadata_location, "before").rows(columns=("*", "_file AS file_of_the_row"))
    others = before.where(~F.col("file_of_the_row").isin(lost_files)).drop("file_of_the_row")
    expected = row_texts(others)
    Path(local_path(manifests[0])).unlink()
    rewrite_avro(list_of(table), count_more)
    damaged = sm.load_table(table.metadata.location, spark=spark)
    assert damaged.maintenance.repair().summary().damage.keys() == {"lost-manifests"}
    mended = damaged.maintenance.repair(["lost-manifests"]).commit()
    plan = mended.maintenance.repair(["wrong-manifest-counts"])
    assert {row.file_path for row in plan.to_df().collect()} <= {*mended.inspect.arrow.manifests()["path"].to_pylist()}
    mended = plan.commit()
    left = mended.maintenance.repair(["lost-manifests", "wrong-manifest-counts"]).summary()
    # Branches and tags keep their snapshots.
    assert set(left.lost_snapshots) <= {ref.snapshot_id for ref in mended.metadata.refs.values()}
    assert left.damage.keys() <= {"lost-manifests"}
    assert row_texts(corpus.java.table(mended.metadata_location, "mended").rows()) == expected


# Tables whose manifests fastavro, by which the test changes them, can't read: it lacks the codecs here, and Java writes
# fixed partition values in another way than their schema says. Files of a dropped source can't be appended again.
UNCHANGED = ("manifest_snappy", "manifest_zstd", "identity_fx", "spec_dropped_source")


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of([name for name in WITH_FILES if not name.startswith(UNCHANGED)]))
def test_wrong_entries(name: str, corpus: Corpus, spark: SparkSession, tmp_path: Path) -> None:
    """Entries have wrong sizes, counts and bounds, a file is listed twice, and the hint is gone."""
    table = copy_of(name, corpus, spark, tmp_path)
    if not table.inspect.arrow.data_files().num_rows or not table.current_snapshot().manifest_list:
        pytest.skip("the table is empty, or has no manifest list")
    expected = row_texts(corpus.java.table(table.metadata_location, "before").rows())
    table = with_repeated(table, data_files(table)[:1])
    change_entries(table, mislead)
    (Path(local_path(table.metadata.location)) / "metadata" / "version-hint.text").unlink()
    damaged = sm.load_table(table.metadata.location, spark=spark)
    kinds = ["wrong-sizes", "wrong-counts", "wrong-statistics", "repeated-files", "version-hint"]
    plan = damaged.maintenance.repair(kinds)
    assert {"wrong-sizes", "wrong-counts", "repeated-files", "version-hint"} <= plan.summary().damage.keys()
    assert plan.summary().lost_rows == 0
    mended = plan.commit()
    assert mended.maintenance.repair(kinds).summary().is_empty
    assert row_texts(corpus.java.table(mended.metadata_location, "mended").rows()) == expected


def mislead(entry: dict[str, Any]) -> None:
    """Make the size, count and bounds in the entry of a data file wrong."""
    file = entry["data_file"]
    file["file_size_in_bytes"] += 9
    file["record_count"] += 3
    file["lower_bounds"], file["upper_bounds"] = file.get("upper_bounds"), file.get("lower_bounds")


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of([name for name in WITH_FILES if name in peers.names("deletes")]))
def test_lost_deletes(name: str, corpus: Corpus, spark: SparkSession, tmp_path: Path) -> None:
    """Rows come back, and no row is lost."""
    table = copy_of(name, corpus, spark, tmp_path)
    deletes = sorted(set(table.inspect.arrow.delete_files()["file_path"].to_pylist()))
    if not deletes:
        pytest.skip("the table has no deletes any more")
    before = row_texts(corpus.java.table(table.metadata_location, "before").rows())
    Path(local_path(deletes[0])).unlink()
    plan = table.maintenance.repair(["lost-delete-files"])
    assert {row.file_path for row in plan.to_df().collect()} == {deletes[0]}
    mended = plan.commit()
    after = row_texts(corpus.java.table(mended.metadata_location, "mended").rows())
    assert not Counter(before) - Counter(after)
    assert len(after) == mended.scan().count()


def count_more(row: dict[str, Any]) -> None:
    """Change the number of deleted entries that a manifest list counts."""
    name = next((name for name in ("deleted_files_count", "deleted_data_files_count") if name in row), None)
    if name is not None:
        row[name] = (row[name] or 0) + 7


def count_of(table: sm.Table, path: str) -> int:
    files = table.inspect.arrow.data_files()
    return dict(zip(files["file_path"].to_pylist(), files["record_count"].to_pylist(), strict=True))[path]
