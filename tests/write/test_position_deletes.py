"""Changes of rows write position delete files to tables of format version 2, like Iceberg's Spark runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.write import deletes
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.write.test_changes import BY_PART, SCHEMA, frame, ordinary

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("either_way")

GRANULARITIES = ("file", "partition")
# Fields that depend on names, locations and codecs. We also name the data file, unlike Java's writers of version 2.
_OURS = ("file_path", "file_size_in_bytes", "column_sizes", "referenced_data_file", "readable_metrics", "lower_bounds",
         "upper_bounds")  # fmt: skip


def new_table(spark: SparkSession, folder: Path, **properties: str) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    named = MERGE_ON_READ | {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return catalog.create_table("db.t", SCHEMA, BY_PART, format_version=2, properties=named, spark=spark)


def append(table: sm.Table, key: int) -> sm.Table:
    return table.append(frame(table.state.spark, [(key, "b", 0)]))


def update(tx: sm.RowTransaction) -> None:
    tx.update({"n": -1}, "id = 1")


def rewrite_of(row_filter: str) -> Callable[[sm.Table], sm.Table]:
    """Return a copy-on-write of the files with matching rows."""

    def rewrite(table: sm.Table) -> sm.Table:
        with table.transaction() as tx:
            tx.set_properties({"write.update.mode": "copy-on-write"})
        return tx.commit().update({"n": 5}, row_filter)

    return rewrite


def delete_files(table: sm.Table) -> list[dict[str, Any]]:
    return table.inspect.delete_files().orderBy("partition", "record_count").toArrow().to_pylist()


@pytest.mark.java
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_files_are_those_of_java(spark: SparkSession, granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if granularity == "partition":
        monkeypatch.setattr(deletes, "_DRIVER_BYTES", -1)  # tasks write them
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    theirs, ours = (Workshop(Java(spark), f"{name}_deletes_{granularity}", catalog_name="java") for name in "ab")
    tables = []
    for shop in (theirs, ours):
        properties = MERGE_ON_READ | {"write.delete.granularity": granularity}
        shop.create("id BIGINT, part STRING, n INT", "part", version=2, properties=properties)
        for start in (0, 20):
            shop.insert(*(f"{i}, '{'ab'[i % 2]}', {i}" for i in range(start, start + 20)))
    theirs.sql("DELETE FROM {t} WHERE id IN (3, 4, 6, 8, 27)")
    tables = [sm.load_table(str(shop.folder), spark=spark) for shop in (theirs, ours)]
    tables[1] = tables[1].delete("id in (3, 4, 6, 8, 27)")
    peers, written = map(delete_files, tables)
    assert [{name: row[name] for name in row if name not in _OURS} for row in written] == [
        {name: row[name] for name in row if name not in _OURS} for row in peers
    ]
    for peer, file in zip(peers, written, strict=True):
        for name in ("lower_bounds", "upper_bounds", "column_sizes"):
            assert dict(file[name] or ()).keys() == dict(peer[name] or ()).keys()
        content = pq.read_table(local_path(file["file_path"]))
        assert content.equals(content.sort_by([("file_path", "ascending"), ("pos", "ascending")]))
        paths = content.column("file_path").unique().to_pylist()
        assert file["referenced_data_file"] == (paths[0] if len(paths) == 1 else None)
        if len(paths) == 1:
            positions = content.column("pos").to_pylist()
            ends = [int.from_bytes(dict(file[name])[2147483545], "little") for name in ("lower_bounds", "upper_bounds")]
            assert ends == [positions[0], positions[-1]]
            assert {dict(file[name])[2147483546] for name in ("lower_bounds", "upper_bounds")} == {paths[0].encode()}
    summaries = [dict(table.current_snapshot().summary.additional_properties) for table in tables]
    for name in ("added-delete-files", "added-position-deletes", "total-position-deletes", "changed-partition-count"):
        assert summaries[1][name] == summaries[0][name]
    # Java continues: it merges older deletes of a single data file into the new file.
    ours.sql("REFRESH TABLE {t}")
    ours.sql("DELETE FROM {t} WHERE id = 10")
    assert sorted(row.id for row in ours.sql("SELECT id FROM {t}").collect()) == [
        i for i in range(40) if i not in {3, 4, 6, 8, 10, 27}
    ]
    after = tables[1].refresh().delete("id = 12")
    assert sum(row["record_count"] for row in delete_files(after)) == 7
    assert len(delete_files(after)) == len(peers) + (0 if granularity == "file" else 2)


# name -> (change in progress, concurrent change, whether the first is refused), as Spark validates (semantics 12.7).
Change = Callable[[Any], Any]
CONFLICTS: dict[str, tuple[Change, Change, bool]] = {
    "deletes of rows of one file": (lambda tx: tx.delete("id = 1"), lambda t: t.delete("id = 4"), False),
    "a file with rows to delete is replaced": (
        lambda tx: tx.delete("id = 1", isolation="snapshot"), rewrite_of("id = 4"), True
    ),
    "another file is replaced": (lambda tx: tx.delete("id = 1"), rewrite_of("id = 2"), False),
    "a file with rows to delete is deleted": (lambda tx: tx.delete("id = 1"), lambda t: t.delete("part = 'b'"), False),
    "a file with rows to update is deleted": (update, lambda t: t.delete("part = 'b'"), True),
    "rows to update are deleted": (update, lambda t: t.delete("id = 4"), True),
    "matching rows are added": (lambda tx: tx.delete("id = 1"), lambda t: append(t, 1), True),
    "matching rows are added, by snapshot": (
        lambda tx: tx.delete("id = 1", isolation="snapshot"), lambda t: append(t, 1), False
    ),
    "other rows are added": (lambda tx: tx.delete("id = 1"), lambda t: append(t, 100), False),
}  # fmt: skip
EVERY_RUN = ("a file with rows to delete is replaced", "a file with rows to delete is deleted")


@pytest.mark.parametrize("granularity", GRANULARITIES if SOAK else GRANULARITIES[:1])
@pytest.mark.parametrize("case", CONFLICTS if SOAK else EVERY_RUN)
def test_conflicts(spark: SparkSession, tmp_path: Path, case: str, granularity: str) -> None:
    change, other, refused = CONFLICTS[case]
    table = new_table(spark, tmp_path, write__delete__granularity=granularity)
    table = table.append(frame(spark, ordinary(0, 12)).coalesce(1)).delete("id = 7")
    stale = table.transaction()
    change(stale)
    after = other(table)
    if refused:
        with pytest.raises(sm.CommitConflictError):
            stale.commit()
        assert table.refresh().metadata_location == after.metadata_location
    else:
        left = set(map(tuple, after.scan().to_df().collect())) - {ordinary(1, 2)[0]}
        assert set(map(tuple, stale.commit().scan().to_df().collect())) == left


# (version, granularity, whether a new partition field has the name of a removed one)
DROPPED = [(2, "file", True), (2, "partition", False), (3, "file", False), (4, "file", True)]
MORE_DROPPED = [(2, "file", False), (2, "partition", True), (3, "file", True), (4, "file", False)]


@pytest.mark.java
@pytest.mark.parametrize(("version", "granularity", "reuses_name"), DROPPED + MORE_DROPPED if SOAK else DROPPED)
def test_partitions_of_dropped_columns(
    spark: SparkSession, version: int, granularity: str, reuses_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes keep their data files' partitions, if the columns are dropped or another field has their name."""
    if granularity == "partition":
        monkeypatch.setattr(deletes, "_DRIVER_BYTES", -1)  # tasks write them
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    name = f"dropped_{version}_{granularity}_{reuses_name}"
    shop = Workshop(Java(spark), name, catalog_name="java")
    properties = MERGE_ON_READ | {"write.delete.granularity": granularity}
    shop.create("id BIGINT, part STRING, f DOUBLE", "part, f", version=min(version, 3), properties=properties)
    shop.insert(*(f"{i}, '{'ab'[i % 2]}', {'-0.0D' if i < 4 else '1.0E-7D'}" for i in range(12)))
    for column in ("part", "f"):
        shop.sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {column}")
    shop.sql("ALTER TABLE {t} DROP COLUMNS part, f")
    if reuses_name:
        shop.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id) AS part")
    table = sm.load_table(str(shop.folder), spark=spark)
    if version == 4:
        table = table.maintenance.upgrade(4).commit()

    def assert_rows(table: sm.Table, *ids: int) -> None:
        assert sorted(row.id for row in table.scan().to_df().collect()) == list(ids)
        if version == 4:
            assert not table.check().collect()
        else:
            shop.sql("REFRESH TABLE {t}")
            assert sorted(row.id for row in shop.sql("SELECT id FROM {t}").collect()) == list(ids)

    assert_rows(table := table.delete("id = 1 or id = 2"), 0, *range(3, 12))
    assert_rows(table := table.update({"id": 30}, "id = 3"), 0, *range(4, 12), 30)
    merge = table.merge(spark.createDataFrame([(4,)], "id BIGINT"), ["id"])
    assert_rows(table := merge.when_matched().update({"id": 40}).merge(), 0, *range(5, 12), 30, 40)
    table = table.maintenance.rewrite_position_delete_files(rewrite_all=True).commit()
    assert_rows(table, 0, *range(5, 12), 30, 40)
