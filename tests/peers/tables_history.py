"""Tables with a history: branches, tags, staged commits, roll backs, rewrites, expired snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.peers.content_files import elements
from tests.peers.corpus import ALL_VERSIONS, add, recipe
from tests.peers.workshop import MERGE_ON_READ

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop


def letters(shop: Workshop, start: int, count: int = 4) -> None:
    shop.insert(*(f"{i}, '{'abc'[i % 3]}'" for i in range(start, start + count)))


def create(shop: Workshop, version: int, **properties: str) -> None:
    extra = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    shop.create("id INT, p STRING", "p", version=version, properties=MERGE_ON_READ | extra)


@recipe("history", "refs", versions=(1, 2, 3, 4))
def branches_and_tags(shop: Workshop, version: int) -> None:
    """Branches with commits of their own, tags, a branch with retention, a fast-forward; a schema change on main."""
    create(shop, version)
    letters(shop, 0)
    shop.sql("ALTER TABLE {t} CREATE TAG `first tag`")
    shop.sql("ALTER TABLE {t} CREATE BRANCH audit WITH SNAPSHOT RETENTION 3 SNAPSHOTS 7 DAYS")
    shop.sql("INSERT INTO {t}.branch_audit SELECT /*+ COALESCE(1) */ * FROM VALUES (100, 'a'), (101, 'z')")
    letters(shop, 10)
    if version > 1:
        shop.sql("DELETE FROM {t}.branch_audit WHERE id = 0")
    shop.sql("ALTER TABLE {t} CREATE TAG kept RETAIN 30 DAYS")
    shop.sql("ALTER TABLE {t} RENAME COLUMN id TO key")
    shop.sql("INSERT INTO {t}.branch_audit SELECT /*+ COALESCE(1) */ * FROM VALUES (102, 'a')")
    letters(shop, 20)
    shop.sql("ALTER TABLE {t} CREATE BRANCH old AS OF VERSION " + str(shop.table.snapshot("first tag").snapshotId()))
    shop.sql("ALTER TABLE {t} CREATE BRANCH ahead")
    shop.sql("INSERT INTO {t}.branch_ahead SELECT /*+ COALESCE(1) */ * FROM VALUES (200, 'b')")
    shop.call("fast_forward", "branch => 'main', `to` => 'ahead'")


@recipe("history", versions=(1, 2, 3))
def rolled_back(shop: Workshop, version: int) -> None:
    """Snapshots abandoned by a roll back and by setting the current one; new commits on the old state."""
    create(shop, version)
    letters(shop, 0)
    first = shop.snapshot_id()
    letters(shop, 4)
    letters(shop, 8)
    shop.call("rollback_to_snapshot", f"snapshot_id => {first}")
    letters(shop, 20)
    second = shop.snapshot_id()
    shop.sql("DELETE FROM {t} WHERE p = 'a'")
    shop.call("set_current_snapshot", f"snapshot_id => {second}")
    letters(shop, 30, 2)


@recipe("history", "staged", versions=(2, 3))
def staged(shop: Workshop, version: int) -> None:
    """Write-audit-publish: snapshots staged, one cherry-picked, one published, one left aside."""
    create(shop, version, write__wap__enabled="true")
    letters(shop, 0)
    for wap_id in ("w1", "w2", "w3"):
        shop.spark.conf.set("spark.wap.id", wap_id)
        try:
            letters(shop, int(wap_id[1]) * 10)
        finally:
            shop.spark.conf.unset("spark.wap.id")
    waps = {each.summary().get("wap.id"): each.snapshotId() for each in elements(shop.table.snapshots())}
    letters(shop, 50)
    shop.call("cherrypick_snapshot", f"snapshot_id => {waps['w1']}")
    shop.call("publish_changes", "wap_id => 'w2'")


@recipe("history", "staged")
def only_staged(shop: Workshop, version: int) -> None:
    """Snapshots, but no current one: everything was staged."""
    create(shop, version, write__wap__enabled="true")
    shop.spark.conf.set("spark.wap.id", "w1")
    try:
        letters(shop, 0)
    finally:
        shop.spark.conf.unset("spark.wap.id")


@recipe("history", "rewrites", "deletes", versions=(2, 3, 4))
def data_rewritten(shop: Workshop, version: int) -> None:
    """Compacted data files at an old sequence number, deletes left dangling, then more deletes and appends."""
    create(shop, version, write__delete__granularity="partition")
    for start in range(0, 24, 6):
        letters(shop, start, 6)
    shop.sql("DELETE FROM {t} WHERE id IN (0, 7, 12)")
    shop.row_delta(shop.equality_delete("eq.parquet", {"id": [3, 4]}, ["a"]))
    shop.call("rewrite_data_files", "`where` => 'p = \"a\"', options => map('rewrite-all', 'true')")
    shop.sql("DELETE FROM {t} WHERE id IN (9, 13)")
    letters(shop, 40)
    rewritten = "map('rewrite-all', 'true', 'use-starting-sequence-number', 'false')"
    shop.call("rewrite_data_files", f"`where` => 'p = \"b\"', options => {rewritten}")
    if version == 2:
        shop.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")


@recipe("history", "rewrites", "manifests", versions=ALL_VERSIONS)
def manifests_rewritten(shop: Workshop, version: int) -> None:
    """Manifests rewritten (EXISTING entries), files deleted from them (DELETED entries), appended to."""
    create(shop, version)
    for start in range(0, 20, 4):
        letters(shop, start)
    if version > 1:
        shop.sql("DELETE FROM {t} WHERE id IN (1, 5)")
    shop.call("rewrite_manifests", "use_caching => false")
    shop.sql("DELETE FROM {t} WHERE p = 'b'")
    letters(shop, 40)
    letters(shop, 44)
    shop.call("rewrite_manifests", "use_caching => false")


@recipe("history", "manifests", versions=(1, 2, 3))
def manifests_merged(shop: Workshop, version: int) -> None:
    """Manifests merged by commits: ADDED and EXISTING entries side by side, small manifests of two specs."""
    create(shop, version, commit__manifest__min_count_to_merge="3", commit__manifest_merge__enabled="true")
    for start in range(0, 20, 4):
        shop.table.newAppend().appendFile(made_up(shop, start)).commit()
    letters(shop, 100)
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    letters(shop, 104)
    letters(shop, 108)
    shop.sql("DELETE FROM {t} WHERE p = 'c'")


def made_up(shop: Workshop, number: int) -> object:
    return shop.content_file(
        {
            "file-path": shop.file_location(f"made-up-{number}.parquet"),
            "partition": ["abc"[number % 3]],
            "record-count": number + 1,
            "split-offsets": [4],
        }
    )


@recipe("history", "manifests", versions=(2, 4))
def manifests_many(shop: Workshop, version: int) -> None:
    """Twenty-five manifests of one file each."""
    create(shop, version, commit__manifest_merge__enabled="false")
    for number in range(25):
        shop.append(made_up(shop, number))


@recipe("history", "expired", versions=(1, 2, 3))
def expired(shop: Workshop, version: int) -> None:
    """Expired snapshots: parents that are gone, a log that was cut, a tag that kept one of them."""
    create(shop, version)
    for start in (0, 4, 8):
        letters(shop, start)
    shop.sql("ALTER TABLE {t} CREATE TAG kept")
    for start in (12, 16, 20):
        letters(shop, start)
    shop.sql("DELETE FROM {t} WHERE p = 'b'")
    shop.table.expireSnapshots().expireOlderThan(2**42).retainLast(2).commit()
    letters(shop, 30)


@recipe("history", "rewrites", versions=(1, 2, 3))
def overwritten(shop: Workshop, version: int) -> None:
    """Partitions replaced, overwritten by filter, truncated; then filled again."""
    create(shop, version)
    letters(shop, 0, 6)
    letters(shop, 6, 6)
    frame = shop.spark.sql("SELECT /*+ COALESCE(1) */ * FROM VALUES (100, 'a'), (101, 'd') AS v(id, p)")
    frame.writeTo(shop.sql_name).overwritePartitions()
    shop.sql("INSERT OVERWRITE {t} PARTITION (p = 'b') SELECT /*+ COALESCE(1) */ * FROM VALUES (200)")
    shop.sql("DELETE FROM {t} WHERE p = 'd'")
    shop.sql("TRUNCATE TABLE {t}")
    letters(shop, 50, 3)


@recipe("history", "empty", versions=ALL_VERSIONS)
def empty(shop: Workshop, version: int) -> None:
    """No snapshot at all."""
    create(shop, version)


@recipe("history", "empty", versions=(2, 3))
def emptied(shop: Workshop, version: int) -> None:
    """A snapshot without files: the last were deleted, and nothing was written in an empty commit."""
    create(shop, version)
    letters(shop, 0)
    shop.sql("DELETE FROM {t}")
    shop.table.newFastAppend().commit()


@recipe("history", "sorted", versions=(2, 3))
def sort_orders(shop: Workshop, version: int) -> None:
    """Sort orders that changed; files say which they have."""
    create(shop, version)
    letters(shop, 0)
    shop.sql("ALTER TABLE {t} WRITE LOCALLY ORDERED BY id")
    letters(shop, 4)
    shop.sql("ALTER TABLE {t} WRITE LOCALLY ORDERED BY p DESC, truncate(2, p), id")
    letters(shop, 8)
    for sort_order_id in (0, 1, 2):
        path = shop.file_location(f"sorted-{sort_order_id}.parquet")
        shop.append(shop.content_file({"file-path": path, "partition": ["a"], "sort-order-id": sort_order_id}))


def compressed(shop: Workshop, version: int, codec: str) -> None:
    create(shop, version, write__manifest__compression_codec=codec)
    letters(shop, 0)
    letters(shop, 4)
    shop.sql("DELETE FROM {t} WHERE id IN (1, 5)")


for _codec in ("gzip", "snappy", "zstd", "uncompressed"):
    for _version in (2, 3, 4):
        add(
            f"manifest_{_codec}_v{_version}",
            lambda shop, version, codec=_codec: compressed(shop, version, codec),
            _version,
            ("manifests", "codecs"),
            f"Manifests compressed by {_codec}.",
        )


@recipe("history", "metadata", versions=(2, 3, 4))
def metadata_gzip(shop: Workshop, version: int) -> None:
    """Metadata JSON compressed, after one that was not; old metadata files deleted."""
    create(shop, version, write__metadata__previous_versions_max="2")
    letters(shop, 0)
    shop.set(write__metadata__compression_codec="gzip", write__metadata__delete_after_commit__enabled="true")
    letters(shop, 4)
    letters(shop, 8)
    letters(shop, 12)


@recipe("history", "statistics", versions=(2, 3))
def statistics(shop: Workshop, version: int) -> None:
    """Table statistics and partition statistics beside the snapshots."""
    create(shop, version)
    letters(shop, 0)
    shop.call("compute_table_stats")
    letters(shop, 4)
    shop.call("compute_partition_stats")


@recipe("history", "schema", versions=(1, 2, 3))
def replaced(shop: Workshop, version: int) -> None:
    """The whole table replaced by another schema and spec under the same name; older snapshots remain."""
    create(shop, version)
    letters(shop, 0)
    letters(shop, 4)
    void_source = ", p STRING" if version == 1 else ""  # the void field that version 1 keeps needs its source
    shop.sql(
        f"REPLACE TABLE {{t}} (key BIGINT, other STRING{void_source}) USING iceberg PARTITIONED BY (truncate(3, other))"
    )
    shop.insert(*(f"{row}{', null' if void_source else ''}" for row in ("1, 'abcd'", "2, 'abce'", "3, null")))


@recipe("history", "schema", "retyped")
def replaced_retyped(shop: Workshop, version: int) -> None:
    """Replaced so that a column keeps its name and id but not its type: older bounds are of another type."""
    create(shop, version)
    letters(shop, 0)
    shop.sql("REPLACE TABLE {t} (p BIGINT, other STRING) USING iceberg PARTITIONED BY (truncate(3, other))")
    shop.insert("1, 'abcd'", "2, 'abce'", "3, null")


@recipe("history", "imported", versions=(1, 2, 3))
def imported(shop: Workshop, version: int) -> None:
    """Parquet files of another writer, added with a name mapping: no field ids in them, partitions from their paths."""
    create(shop, version)
    folder = f"{shop.folder}-source"
    source = shop.spark.sql("SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 'a'), (2, 'b c'), (3, null) AS v(id, p)")
    source.write.mode("overwrite").partitionBy("p").parquet(folder)
    letters(shop, 10)
    shop.call("add_files", f"source_table => '`parquet`.`{folder}`'")


@recipe("history", "duplicates", versions=(2, 3))
def duplicated(shop: Workshop, version: int) -> None:
    """One file appended twice: a plan reads it twice."""
    create(shop, version)
    for _ in range(2):
        shop.append(made_up(shop, 1))
    letters(shop, 0)
