"""Metadata trees through a service: what Spark SQL and pyiceberg read of them, and that they can't change them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import sparkmeta as sm
from tests.conformance.test_trees import tree_of
from tests.frames import local_frame
from tests.maintain.clones import clone
from tests.peers import corpus as peers
from tests.peers.file_maker import local_path
from tests.peers.slices import SOAK
from tests.rows.comparison import row_texts, typed_columns
from tests.service.serving import Client, LocatedTables, pyiceberg_catalog, served, spark_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

TREES = [
    ("deletes_by_file_v3", "masked"),
    ("equality_by_java_v3", "root"),
    *(
        [(name, layout) for name in ("types_v2", "spec_evolution_v2", "equality_types_v2", "deletes_by_file_v3")
         for layout in ("root", "leaves", "masked", "affiliated", "flushed")] if SOAK else []
    ),
]  # fmt: skip
UPGRADED = ("upgraded_with_deletes_v3", "hostile_values_v3", "defaults_v3", "identity_others_v3") if SOAK else ()


@pytest.fixture(scope="module")
def tables() -> LocatedTables:
    return LocatedTables({})


@pytest.fixture(scope="module")
def service(spark: SparkSession, tables: LocatedTables) -> Iterator[sm.Service]:
    with served(tables, spark) as running:
        yield running


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, service: sm.Service) -> Iterator[str]:
    with spark_catalog(spark, service) as name:
        yield name


class Clients(NamedTuple):
    """The service, and what asks it: the name of Spark's catalog."""

    tables: LocatedTables
    service: sm.Service
    catalog: str


@pytest.fixture(scope="module")
def clients(tables: LocatedTables, service: sm.Service, catalog: str) -> Clients:
    return Clients(tables, service, catalog)


@pytest.fixture(scope="module")
def evolved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, tables: LocatedTables) -> sm.Table:
    """An upgraded tree with a mask, a branch, a tag, a column that was renamed, and one that was added since."""
    corpus = peers.Corpus(spark)
    table = clone(corpus.table("deletes_by_file_v3"), tmp_path_factory.mktemp("trees") / "evolved")
    table = table.maintenance.upgrade(4).commit()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "before").commit()
    table = table.refresh()
    table = without_files(table, "p = 'a'", 1)
    table.update_schema().rename_column("x", "renamed").commit()
    table = table.refresh()
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "work").commit()
    table = without_files(table.refresh(), "p = 'b'", 2, branch="work")
    table.update_schema().add_column("added", LongType()).commit()
    tables.locations["evolved"] = table.location()
    return table.refresh()


def without_files(table: sm.Table, row_filter: str, count: int, branch: str = "main") -> sm.Table:
    """The table after some files were removed from a branch."""
    paths = sorted(row.file_path for row in table.scan(row_filter).plan_files().select("file_path").collect())
    gone = local_frame(table.state.spark, pa.table({"file_path": paths[:count]}))
    with table.transaction() as tx:
        tx.update_snapshot(branch=branch).delete(gone)
    return table.refresh()


@pytest.mark.parametrize(("name", "layout"), TREES)
def test_clients_read_trees(name: str, layout: str, corpus, clients: Clients, tmp_path):
    spark = corpus.spark
    peer = corpus.table(name)
    source = sm.load_table(peer.metadata_location, spark=spark)
    entries = source.inspect.entries(columns=["status", "sequence_number", "data_file"]).where("status < 2")
    tree = tree_of(peer, entries.select("data_file.*", "sequence_number").localCheckpoint(), layout, tmp_path / "tree")
    assert_served(f"{name}_{layout}", tree, clients)


@pytest.mark.parametrize("name", UPGRADED)
def test_clients_read_upgraded_tables(name: str, corpus, clients: Clients, tmp_path):
    tree = clone(corpus.table(name), tmp_path / "tree").maintenance.upgrade(4).commit()
    assert_served(f"{name}_upgraded", tree, clients)


def assert_served(name: str, tree: sm.Table, clients: Clients) -> None:
    """Both clients read what `to_df` reads; pyiceberg refuses equality deletes."""
    clients.tables.locations[name] = tree.location()
    spark, catalog = tree.state.spark, clients.catalog
    ours, theirs = tree.scan().to_df(), spark.table(f"{catalog}.db.{name}")
    expected = row_texts(ours)
    assert expected or name.startswith("equality_types"), "these delete all rows"
    assert typed_columns(theirs) == typed_columns(ours)
    assert row_texts(theirs) == expected
    assert spark.sql(f"SELECT count(*) FROM {catalog}.db.{name}").collect()[0][0] == len(expected)
    read = pyiceberg_catalog(clients.service).load_table(("db", name)).scan()
    if tree.scan().plan_files().where("exists(deletes, d -> d.content = 2)").isEmpty():
        assert read.to_arrow().num_rows == len(expected)
    else:
        with pytest.raises(NotImplementedError, match="equality deletes"):
            read.to_arrow()


def test_clients_travel_in_time(evolved: sm.Table, spark: SparkSession, catalog: str, service: sm.Service):
    served_table = pyiceberg_catalog(service).load_table("db.evolved")
    for snapshot in evolved.snapshots() if SOAK else evolved.snapshots()[-2:-1]:
        scan = evolved.scan(snapshot_id=snapshot.snapshot_id)
        query = f"SELECT * FROM {catalog}.db.evolved VERSION AS OF {snapshot.snapshot_id}"
        assert row_texts(spark.sql(query)) == row_texts(scan.to_df())
        assert served_table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == scan.count()
    counts = set()
    for ref in evolved.refs():
        rows = row_texts(spark.sql(f"SELECT * FROM {catalog}.db.evolved VERSION AS OF '{ref}'"))
        assert rows == row_texts(evolved.scan().use_ref(ref).to_df()), ref
        counts.add(len(rows))
    assert len(counts) == 3


CONDITIONS = ["added IS NULL AND id < 10", "p = 'a'", "p IS NULL", "renamed < 12", "added = 3", "id < 4 AND p = 'b'"]


@pytest.mark.parametrize("condition", CONDITIONS if SOAK else CONDITIONS[:1])
def test_spark_filters_trees(condition: str, evolved: sm.Table, spark: SparkSession, catalog: str):
    """Names are the table's, also of columns that are newer than the snapshot."""
    expected = row_texts(evolved.scan().to_df().where(condition))
    assert row_texts(spark.sql(f"SELECT * FROM {catalog}.db.evolved WHERE {condition}")) == expected
    by_branch = row_texts(evolved.scan().use_ref("work").to_df().where(condition))
    assert (
        row_texts(spark.sql(f"SELECT * FROM {catalog}.db.evolved VERSION AS OF 'work' WHERE {condition}")) == by_branch
    )


def test_spark_counts_limits_and_reads_metadata_columns(evolved: sm.Table, spark: SparkSession, catalog: str):
    table = f"{catalog}.db.evolved"
    columns = "_file, _pos, _spec_id, _partition.p AS part, _row_id"
    selected = ("_file", "_pos", "_spec_id", "_partition", "_row_id")
    ours = (
        evolved.scan(selected_fields=selected)
        .to_df()
        .selectExpr("_file", "_pos", "_spec_id", "_partition.p AS part", "_row_id")
    )
    assert row_texts(spark.sql(f"SELECT {columns} FROM {table}")) == row_texts(ours)
    for count in (0, 1, 5, 1000) if SOAK else (5,):
        rows = spark.sql(f"SELECT id FROM {table} LIMIT {count}").collect()
        assert len(rows) == min(count, evolved.scan().count())
        by_partition = spark.sql(f"SELECT id FROM {table} WHERE p = 'a' LIMIT {count}").collect()
        assert len(by_partition) == min(count, evolved.scan("p = 'a'").count())
    with pytest.raises(Exception, match="_last_updated_sequence_number"):
        spark.sql(f"SELECT _last_updated_sequence_number FROM {table}").collect()


def test_metadata_tables_of_spark(evolved: sm.Table, spark: SparkSession, catalog: str):
    """Metadata tables of the metadata file work; metadata tables of manifests fail, and are never empty."""
    snapshots = spark.sql(f"SELECT snapshot_id FROM {catalog}.db.evolved.snapshots").collect()
    assert len(snapshots) == len(evolved.snapshots())
    assert spark.sql(f"SELECT name FROM {catalog}.db.evolved.refs").count() == len(evolved.refs())
    for name in ("files", "manifests", "entries", "partitions", "all_data_files", "position_deletes"):
        with pytest.raises(Exception, match="sparkmeta-tree"):
            spark.sql(f"SELECT * FROM {catalog}.db.evolved.{name}").collect()


STATEMENTS = (
    "INSERT INTO {t} (id, p) VALUES (1, 'a')",
    "INSERT OVERWRITE {t} SELECT * FROM {t}",
    "DELETE FROM {t} WHERE id = 1",
    "DELETE FROM {t} WHERE p = 'a'",
    "UPDATE {t} SET id = 2 WHERE id = 1",
    "MERGE INTO {t} USING (SELECT 1 AS i) s ON {t}.id = s.i WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE {t}",
    "ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')",
    "ALTER TABLE {t} UNSET TBLPROPERTIES ('write.format.default')",
    "ALTER TABLE {t} ADD COLUMN more INT",
    "ALTER TABLE {t} CREATE BRANCH other",
    "ALTER TABLE {t} DROP TAG before",
    "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)",
    "ALTER TABLE {t} RENAME TO {c}.db.other",
    "DROP TABLE {t}",
    "DROP TABLE {t} PURGE",
    "CREATE TABLE {c}.db.other (i INT) USING iceberg",
    "CREATE OR REPLACE TABLE {t} (i INT) USING iceberg",
    "CREATE TABLE {c}.db.other USING iceberg AS SELECT * FROM {t}",
    "CREATE NAMESPACE {c}.other",
    "DROP NAMESPACE {c}.db",
    "CALL {c}.system.expire_snapshots(`table` => 'db.evolved', older_than => TIMESTAMP '2099-01-01', retain_last => 1)",
    "CALL {c}.system.remove_orphan_files(`table` => 'db.evolved', older_than => TIMESTAMP '2020-01-01')",
    "CALL {c}.system.remove_orphan_files(`table` => 'db.evolved', dry_run => true)",
    "CALL {c}.system.rewrite_data_files(`table` => 'db.evolved', options => map('rewrite-all', 'true'))",
    "CALL {c}.system.rewrite_manifests(`table` => 'db.evolved')",
    "CALL {c}.system.rewrite_position_delete_files(`table` => 'db.evolved', options => map('rewrite-all', 'true'))",
    "CALL {c}.system.rollback_to_snapshot('db.evolved', {first})",
    "CALL {c}.system.set_current_snapshot('db.evolved', {first})",
    "CALL {c}.system.fast_forward('db.evolved', 'main', 'work')",
    "CALL {c}.system.cherrypick_snapshot('db.evolved', {first})",
    "CALL {c}.system.publish_changes('db.evolved', 'x')",
    "CALL {c}.system.compute_table_stats(`table` => 'db.evolved')",
    "CALL {c}.system.compute_partition_stats(`table` => 'db.evolved')",
    "CALL {c}.system.add_files(`table` => 'db.evolved', source_table => '`parquet`.`{folder}`')",
    "CALL {c}.system.create_changelog_view(`table` => 'db.evolved')",
)


def listing(folder: str) -> dict[str, tuple[int, int]]:
    """Every file below a folder, with its size and time."""
    paths = (path for path in Path(local_path(folder)).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def folders_of(table: sm.Table) -> tuple[str, str]:
    """The folder of a tree, and a folder of its data files, which another table has written."""
    path = table.scan().plan_files().select("file_path").take(1)[0].file_path
    return table.location(), path.rpartition("/")[0]


def files_in(folders: tuple[str, str]) -> dict[str, tuple[int, int]]:
    """The files of a tree, and of the table whose data files it has."""
    return listing(folders[0]) | listing(folders[1].rpartition("/data/")[0])


def test_nothing_that_spark_tries_changes_a_tree(evolved: sm.Table, spark: SparkSession, catalog: str):
    folders, first = folders_of(evolved), evolved.snapshots()[0].snapshot_id
    before = files_in(folders)
    names = {"c": catalog, "t": f"{catalog}.db.evolved", "first": first, "folder": folders[1]}
    for statement in STATEMENTS:
        text = statement.format(**names)
        try:
            rows = spark.sql(text).collect()
        except Exception:  # noqa: BLE001  each fails in its own way
            pass
        else:
            harmless = "create_changelog_view" in text  # a view, whose rows are not read yet
            assert harmless, (text, rows)
        assert files_in(folders) == before, text
    assert evolved.refresh().metadata_location == evolved.metadata_location
    assert row_texts(spark.table(names["t"])) == row_texts(evolved.scan().to_df())


def test_refusals_say_why(evolved: sm.Table, spark: SparkSession, catalog: str):
    with pytest.raises(Exception, match="this-catalog-is-read-only--write-through-the-catalog-that-owns-the-table"):
        spark.sql(f"INSERT INTO {catalog}.db.evolved (id, p) VALUES (1, 'a')")
    with pytest.raises(Exception, match=r"does not support endpoint|read-only"):
        spark.sql(f"ALTER TABLE {catalog}.db.evolved SET TBLPROPERTIES ('a' = 'b')")


def test_nothing_that_pyiceberg_tries_changes_a_tree(evolved: sm.Table, service: sm.Service):
    folders = folders_of(evolved)
    before = files_in(folders)
    catalog = pyiceberg_catalog(service)
    table = catalog.load_table("db.evolved")
    rows = table.scan(limit=2).to_arrow()
    source = next(path for path in before if path.startswith(local_path(folders[1])))
    attempts: dict[str, Any] = {
        "append": lambda: table.append(rows),
        "overwrite": lambda: table.overwrite(rows),
        "delete": lambda: table.delete("id = 1"),
        "delete a partition": lambda: table.delete("p = 'a'"),
        "upsert": lambda: table.upsert(rows, join_cols=["id"]),
        "dynamic overwrite": lambda: table.dynamic_partition_overwrite(rows),
        "add files": lambda: table.add_files([f"file://{source}"]),
        "properties": lambda: table.transaction().set_properties(a="b").commit_transaction(),
        "schema": lambda: table.update_schema().delete_column("id").commit(),
        "tag": lambda: table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "x").commit(),
        "expire": lambda: table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit(),
        "drop": lambda: catalog.drop_table("db.evolved"),
        "purge": lambda: catalog.purge_table("db.evolved"),
        "rename": lambda: catalog.rename_table("db.evolved", "db.other"),
        "create": lambda: catalog.create_table("db.other", pa.schema([("i", pa.int32())])),
        "namespace": lambda: catalog.create_namespace("other"),
    }
    for what, attempt in attempts.items():
        with pytest.raises(Exception):  # noqa: B017, PT011  each fails in its own way
            attempt()
        assert files_in(folders) == before, what


def test_metadata_as_clients_see_them(evolved: sm.Table, service: sm.Service):
    answer = Client(service).request("GET", "/v1/namespaces/db/tables/evolved").json()
    metadata = answer["metadata"]
    assert answer["config"] == {"scan-planning-mode": "server"}
    assert metadata["format-version"] == 3
    assert not {"expressions", "tree-layout-revision"} & set(metadata)
    lists = [snapshot["manifest-list"] for snapshot in metadata["snapshots"]]
    assert len(set(lists)) == len(evolved.snapshots())
    assert all(location.startswith("sparkmeta-tree://") for location in lists)
    assert not any("root-manifest" in snapshot for snapshot in metadata["snapshots"])
    assert set(metadata["refs"]) == {"main", "before", "work"}
