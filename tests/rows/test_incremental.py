"""Rows that snapshots appended, compared with incremental reads of Iceberg's Spark runtime."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.errors import NoSuchSnapshotError, ValidationError
from tests.peers.java import Java
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java


def history(spark: SparkSession, version: int) -> Workshop:
    """Return a table with appends between all other operations.

    It has files of two formats, an added column, and a dropped partition field.
    """
    shop = Workshop(Java(spark), f"incremental_v{version}")
    shop.create("id INT, p STRING", "p", version=version, properties=MERGE_ON_READ)
    shop.insert("1, 'a'", "2, 'b'")
    shop.insert("3, 'a'")
    shop.sql("DELETE FROM {t} WHERE id = 1")
    shop.set(write__format__default="avro")
    shop.insert("4, 'a'", "5, null")
    shop.sql("ALTER TABLE {t} ADD COLUMN x INT")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD p")
    shop.insert("6, 'b', 7")
    shop.sql("UPDATE {t} SET x = 8 WHERE id = 4")
    shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    shop.call("rewrite_manifests", "use_caching => false")
    shop.insert("9, 'c', 10")
    return shop


@pytest.fixture(scope="module", params=[2, 3])
def shop(request: pytest.FixtureRequest, spark: SparkSession) -> Workshop:
    return history(spark, request.param)


def appended_by_java(shop: Workshop, start: int, end: int) -> DataFrame:
    options = {"start-snapshot-id": str(start), "end-snapshot-id": str(end)}
    return shop.spark.read.format("iceberg").options(**options).load(shop.sql_name)


def test_appended_rows(shop: Workshop, spark: SparkSession) -> None:
    table = sm.load_table(shop.metadata_location, spark=spark)
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    for start, end in [*combinations(ids[::3], 2), *pairwise(ids)]:
        ours, theirs = table.incremental(start, end).to_df(), appended_by_java(shop, start, end)
        assert typed_columns(ours) == typed_columns(theirs)
        assert row_texts(ours) == row_texts(theirs), (start, end)


def test_the_whole_history(shop: Workshop, spark: SparkSession) -> None:
    """Rows that were deleted later are included, and rewritten rows are not repeated."""
    scan = sm.load_table(shop.metadata_location, spark=spark).incremental(None).select("id", "_spec_id")
    assert sorted(tuple(row) for row in scan.to_df().collect()) == [
        (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 1), (9, 1),
    ]  # fmt: skip
    assert [row.id for row in scan.filter("p = 'a' and id > 1").to_df().orderBy("id").collect()] == [3, 4]
    scan.create_temp_view("appended")
    assert spark.sql("SELECT count(*) FROM appended").collect() == [(7,)]


def test_a_tree(spark: SparkSession, tmp_path: Path) -> None:
    """Each commit appended its own file, in the root or in a leaf, whatever was deleted later."""
    shop = Workshop(Java(spark), "appended_to_a_tree")
    shop.create("id INT")
    for index in range(3):
        shop.insert(str(index))
    source = sm.load_table(shop.metadata_location, spark=spark)
    catalog = sm.load_catalog("trees", type="hadoop", warehouse=f"file://{tmp_path}", spark=spark)
    tree = catalog.create_table("n.t", source.schema(), format_version=4)
    files = source.inspect.data_files().orderBy("file_path")
    heads: list[int] = []
    for index in range(3):
        with tree.transaction() as tx:
            tx.update_snapshot().append(files.offset(index).limit(1))
        tree = catalog.load_table("n.t")
        heads.append(tree.metadata.current_snapshot_id)
    with tree.transaction() as tx:
        tx.update_snapshot().delete(files.limit(1))
    tree = catalog.load_table("n.t")
    everything = [row.id for row in tree.incremental(None).to_df().orderBy("id").collect()]
    assert everything == [0, 1, 2]
    parts = [tree.incremental(start, end).to_df().collect() for start, end in pairwise([None, *heads])]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert sorted(row.id for part in parts for row in part) == everything
    assert tree.incremental(heads[-1]).to_df().collect() == []


def test_invalid_ranges(shop: Workshop, spark: SparkSession) -> None:
    table = sm.load_table(shop.metadata_location, spark=spark)
    first, *_, last = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    assert table.incremental(last, last).to_df().collect() == []
    with pytest.raises(NoSuchSnapshotError):
        table.incremental(first, 5).to_df()
    with pytest.raises(ValidationError, match="is not an ancestor"):
        table.incremental(last, first).to_df()
