"""What snapshots of Iceberg's Java library changed is the difference of their files, whatever they did to manifests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.peers.java import Java
from tests.peers.workshop import MERGE_ON_READ, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java

KEY = ("content", "file_path", "content_offset")
MERGING = {"commit.manifest.min-count-to-merge": "3", "commit.manifest-merge.enabled": "true"}


def history(spark: SparkSession, version: int) -> Workshop:
    """Appends whose manifests are merged; files removed whole, by rows and by overwrites; everything rewritten."""
    shop = Workshop(Java(spark), f"file_changes_v{version}")
    deletes = MERGE_ON_READ if version > 1 else {}
    shop.create("id INT, p STRING", "p", version=version, properties=MERGING | deletes)
    for start in range(0, 40, 10):
        shop.insert(*(f"{start + n}, '{'abc'[n % 3]}'" for n in range(9)))
    shop.sql("DELETE FROM {t} WHERE p = 'c'")
    shop.sql("DELETE FROM {t} WHERE id IN (0, 1, 10)")
    shop.sql("DELETE FROM {t} WHERE id IN (3, 4, 11, 20)")
    shop.call("rewrite_manifests", "use_caching => false")
    shop.insert("50, 'a'", "51, 'd'")
    if version > 1:
        shop.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
    shop.sql("UPDATE {t} SET id = id + 100 WHERE id = 50")
    shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    shop.sql("INSERT OVERWRITE {t} SELECT 60, 'd'")
    shop.insert("70, 'b'")
    shop.sql("DELETE FROM {t}")
    shop.insert("80, 'a'")
    shop.insert("81, 'a'")
    return shop


def files(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, frame.select(*KEY).collect()))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_changes_are_the_difference_of_files(version: int, spark: SparkSession) -> None:
    shop = history(spark, version)
    table = sm.load_table(shop.metadata_location, spark=spark)
    before: Counter[tuple[Any, ...]] = Counter()
    operations = set()
    everything = table.file_changes(None).select("snapshot_id", "change_type", *KEY).collect()
    for snapshot in table.metadata.snapshots:
        operations.add(str(snapshot.summary.operation))
        after = files(table.inspect.files(snapshot_id=snapshot.snapshot_id))
        changes = table.file_changes(snapshot.parent_snapshot_id, snapshot.snapshot_id)
        what = f"snapshot {len(operations)}: {snapshot.summary}"
        assert files(changes.where("change_type = 'added'")) == after - before, what
        assert files(changes.where("change_type = 'removed'")) == before - after, what
        of_snapshot = [tuple(row)[1:] for row in everything if row.snapshot_id == snapshot.snapshot_id]
        assert Counter(of_snapshot) == Counter(map(tuple, changes.select("change_type", *KEY).collect())), what
        before = after
    assert len(operations) >= 4
    assert {row.content for row in everything} == ({0} if version == 1 else {0, 1})
