"""Tables on an S3-compatible server: read, planned, inspected, committed and compacted there."""

from __future__ import annotations

import time
import traceback
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta import settings
from sparkmeta.catalog.iceberg import IcebergCatalog
from sparkmeta.errors import FileAccessError, from_spark
from sparkmeta.session import is_connect
from tests.conftest import configured
from tests.plans import explained
from tests.s3 import ACCESS_KEY, BUCKET, FILE_IOS, SECRET_KEY, SESSION_TOKEN, S3Server, methods
from tests.serverless import refuse
from tests.small_table import IDENTIFIER, LOADS, ROWS, orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sparkmeta import Catalog, Table

FILES = 2 * LOADS
"""Data files of a table with the loads of `orders`: one for each country."""
# With the driver, and with tasks.
CLIENTS = [("pyarrow", "0"), ("fsspec", "64m")]
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "country", StringType()), NestedField(3, "note", StringType())
)
BY_COUNTRY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "country"))


@pytest.fixture
def warehouse() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4()}"


def sql_catalog(s3: S3Server, folder: Path, warehouse: str, client: str) -> IcebergCatalog:
    """A catalog whose table `IDENTIFIER` pyiceberg has written."""
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse, "py-io-impl": FILE_IOS[client]}
    catalog = sm.load_catalog("tests", type="sql", **properties, **s3.properties)
    assert isinstance(catalog, IcebergCatalog)
    catalog.pyiceberg.create_namespace("shop")
    table = catalog.pyiceberg.create_table(IDENTIFIER, SCHEMA, partition_spec=BY_COUNTRY)
    for load in range(LOADS):
        table.append(orders(load))
    return catalog


def paths(table: Table, row_filter: str = "true") -> list[str]:
    return sorted(row.file_path for row in table.scan(row_filter).plan_files().select("file_path").collect())


@pytest.mark.connect
@pytest.mark.parametrize(("client", "driver_bytes"), CLIENTS)
def test_a_table_of_a_catalog(
    spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str, client: str, driver_bytes: str
) -> None:
    """Spark has no file system for s3: all is opened by the catalog's FileIO, on the driver and in tasks."""
    catalog = sql_catalog(s3, tmp_path, warehouse, client)
    with configured(
        spark, {"spark.sparkmeta.driver-manifest-bytes": driver_bytes, "fs.s3a.impl": "no.such.FileSystem"}
    ):
        table = catalog.load_table(IDENTIFIER, spark)
        assert len(paths(table)) == FILES
        assert len(paths(table, "country = 'NO' and id >= 20")) == 1
        assert table.inspect.manifests().count() == LOADS
        assert table.scan("id >= 15").to_df().count() == LOADS * ROWS - 15

        tree = tree_of(catalog, table)
        assert tree.inspect.manifests().count() == 1, "a leaf, written by a task"
        assert paths(tree) == paths(table)
        gone = paths(tree, "id >= 20")
        tree = commit(tree, "delete", spark.createDataFrame([(path,) for path in gone], "file_path string"))
        left = sorted(set(paths(table)) - set(gone))
        assert paths(tree) == left
        tree.maintenance.compact_manifests(min_masked_ratio=0.02, min_leaf_ratio=1.0).commit()
        compacted = tree.refresh()
        assert compacted.current_snapshot() != tree.current_snapshot()
        assert paths(compacted) == left
        assert compacted.inspect.files().count() == len(left)
        assert compacted.check().count() == 0
        local = tmp_path / "local.parquet"
        with catalog.pyiceberg.load_table(IDENTIFIER).io.new_input(left[0]).open() as stream:
            local.write_bytes(stream.read())
        copied = compacted.inspect.files().where(f"file_path = '{left[0]}'")
        both = commit(compacted, "append", copied.withColumn("file_path", F.lit(local.as_uri())))
        rows = both.scan().select("id", "_file").to_df().groupBy("_file").count().collect()
        assert {row["_file"] for row in rows} == {*left, local.as_uri()}, "files of two stores"
        assert paths(table.maintenance.upgrade(4).commit()) == paths(table)


@pytest.mark.connect
def test_a_serverless_session(
    spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is done with the few settings that Databricks serverless has, and without keeping rows.

    Manifests are read as large ones, which the driver leaves to Spark.
    """
    if not is_connect(spark):
        pytest.skip("serverless sessions are Spark Connect's")
    parse = settings.from_conf
    monkeypatch.setattr(settings, "from_conf", lambda values: replace(parse(values), driver_manifest_bytes=1))
    refused = refuse(spark, monkeypatch)
    catalog = sql_catalog(s3, tmp_path, warehouse, "fsspec")
    table = catalog.load_table(IDENTIFIER, spark)
    assert len(paths(table, "country = 'NO' and id >= 20")) == 1
    assert table.inspect.partitions().count() == 2
    assert table.scan("id >= 15").to_df().count() == LOADS * ROWS - 15
    rewritten = table.maintenance.rewrite_manifests().commit()
    assert rewritten.inspect.manifests().count() == 1

    tree = tree_of(catalog, table)
    gone = paths(tree, "id >= 20")
    tree = commit(tree, "delete", tree.inspect.files().where(F.col("file_path").isin(gone)))
    assert paths(tree) == sorted(set(paths(table)) - set(gone))
    tree.maintenance.compact_manifests(min_masked_ratio=0.02, min_leaf_ratio=1.0).commit()
    assert len(paths(tree.refresh())) == FILES - len(gone)
    replaced = tree.refresh().inspect.files().where("partition.country = 'NO'").limit(1)
    replaced = replaced.withColumn("file_path", F.lit(f"{warehouse}/another.parquet"))
    tree = commit(tree.refresh(), "replace_partitions", replaced)
    assert paths(tree, "country = 'NO'") == [f"{warehouse}/another.parquet"]

    # Lists and leaves are read, and what they free is counted, before they are deleted.
    later = int(time.time() * 1000) + 3_600_000
    expiry = tree.maintenance.expire_snapshots(older_than=later)
    expired = expiry.commit()
    deleted = expiry.result()["committed"]["files"]
    assert deleted == expiry.summary().files
    assert deleted["root"] == len(tree.metadata.snapshots) - 1
    store = catalog.pyiceberg.load_table(IDENTIFIER).io
    with store.new_output(f"{expired.location()}/data/left.parquet").create() as stream:
        stream.write(b"left by a failed job")
    orphans = expired.maintenance.remove_orphan_files(older_than=later, force=True)
    assert orphans.commit().files == orphans.summary().files == {"data": 1}
    (leaf, *_) = [row.path for row in expired.inspect.manifests().collect()]
    third = replaced.withColumn("file_path", F.lit(f"{warehouse}/third.parquet"))
    newest = commit(commit(expired, "append", third), "delete", third)
    store.delete(leaf)
    with pytest.raises(sm.NotFoundError, match=leaf):
        newest.maintenance.expire_snapshots(older_than=later).commit()
    assert newest.refresh().metadata_location == newest.metadata_location
    with store.new_output(leaf).create() as stream:
        stream.write(b"damaged")
    with pytest.raises(sm.ValidationError, match=leaf):
        catalog.purge_table("shop.tree", spark).commit()
    assert catalog.table_exists("shop.tree")

    with pytest.raises(AnalysisException, match="CONFIG_NOT_AVAILABLE"):
        spark.conf.set("spark.sparkmeta.planning", "join")
    assert {"localCheckpoint", "get spark.sparkmeta.planning", "set spark.sparkmeta.planning"} <= {*refused}
    settings_of_ours = {"spark.sparkmeta.planning", "spark.sql.execution.arrow.maxBytesPerBatch"}
    assert {what.removeprefix("set ") for what in refused if what.startswith("set")} == settings_of_ours


def tree_of(catalog: Catalog, table: Table) -> Table:
    """A tree in the same catalog with the files of a table, in a leaf."""
    properties, spark = {"write.tree.direct-files": "2"}, table.state.spark
    tree = catalog.create_table(
        "shop.tree", table.schema(), table.spec(), properties=properties, format_version=4, spark=spark
    )
    return commit(tree, "append", table.inspect.files())


def commit(table: Table, change: str, files: object) -> Table:
    with table.transaction() as tx:
        getattr(tx.update_snapshot(), change)(files)
    return table.refresh()


@pytest.mark.usefixtures("s3a")
def test_a_folder_that_spark_opens(spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str) -> None:
    """Spark opens the folder by s3a, though its metadata names files by s3."""
    catalog = sql_catalog(s3, tmp_path, warehouse, "pyarrow")
    folder = catalog.load_table(IDENTIFIER, spark).location().replace("s3://", "s3a://")
    table = sm.load_table(folder, spark)
    assert table.metadata_location.startswith("s3a://")
    assert len(paths(table)) == FILES
    assert all(path.startswith("s3://") for path in paths(table))
    assert len(paths(table, "country = 'NO' and id >= 20")) == 1
    assert table.inspect.files().count() == FILES
    for way in ("log", "paths"):
        with configured(spark, {"spark.sparkmeta.file-handover": way}):
            assert table.scan("id >= 15").to_df().count() == LOADS * ROWS - 15
    assert sm.load_table(folder.replace("s3a://", "s3n://"), spark).inspect.manifests().count() == LOADS


@pytest.mark.usefixtures("s3a", "by_spark")
def test_leaves_that_spark_opens(spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str) -> None:
    """Those of a catalog's tree too, for which the plan then has Spark's scan of Parquet files."""
    catalog = sql_catalog(s3, tmp_path, warehouse, "fsspec")
    table = catalog.load_table(IDENTIFIER, spark)
    tree = tree_of(catalog, table)
    assert paths(tree) == paths(table)
    plan = explained(tree.scan().plan_files())
    assert "FileScan parquet" in plan
    for direct in ("direct", "auto"):
        with configured(spark, {"spark.sparkmeta.executor-reads": direct}):
            again = catalog.load_table("shop.tree", spark)
            assert paths(again) == paths(table)
            assert ("FileScan parquet" in explained(again.scan().plan_files())) == (direct == "auto")
    # Spark passes over an empty file, as a failed upload may leave.
    (leaf,) = [row.path for row in tree.inspect.manifests().collect()]
    catalog.pyiceberg.load_table(IDENTIFIER).io.new_output(leaf).create(overwrite=True).close()
    with pytest.raises(PySparkException) as raised:
        paths(tree)
    error = from_spark(raised.value)
    assert isinstance(error, sm.NotFoundError)
    assert leaf in str(error)


@pytest.mark.parametrize("was_open", [False, True], ids=["never open", "open before"])
def test_a_location_that_spark_can_not_open(
    request: pytest.FixtureRequest, spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str, was_open: bool
) -> None:
    """The error is one line that names the location, not Spark's spelling of it, and suggests a catalog."""
    location = sql_catalog(s3, tmp_path, warehouse, "pyarrow").load_table(IDENTIFIER, spark).metadata_location
    if was_open:
        request.getfixturevalue("s3a")
        assert sm.load_table(location, spark).metadata_location == location
    with (
        # Without the cache, which may have the bucket's file system of an earlier test.
        configured(spark, {"fs.s3a.impl": "no.such.FileSystem", "fs.s3a.impl.disable.cache": "true"}),
        pytest.raises(
            sm.UnsupportedError, match=f"^{location}: Spark has no file system.*open the table through a cat"
        ) as caught,
    ):
        sm.load_table(location, spark)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.connect
def test_credentials_of_the_environment_stay_with_the_driver(
    spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks get a catalog's properties alone. The error says so, and the driver reads on."""
    sql_catalog(s3, tmp_path, warehouse, "fsspec")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": warehouse, "s3.endpoint": s3.url}
    catalog = sm.load_catalog("tests", type="sql", **properties, **{"py-io-impl": FILE_IOS["fsspec"]})
    table = catalog.load_table(IDENTIFIER, spark)
    assert len(paths(table)) == FILES
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        with pytest.raises(Exception, match=r"(?i)credentials") as caught:
            paths(catalog.load_table(IDENTIFIER, spark))
        known = from_spark(caught.value)
    assert isinstance(known, FileAccessError)
    assert "s3://" in str(known)
    assert "properties" in str(known)
    assert SECRET_KEY not in str(caught.value)


@pytest.mark.connect
def test_credentials_are_in_no_plan_or_text(
    spark: SparkSession,
    s3: S3Server,
    tmp_path: Path,
    warehouse: str,
    caplog: pytest.LogCaptureFixture,
    server_log: Path,
) -> None:
    """The logs of all libraries, and of the separate Connect server."""
    caplog.set_level("DEBUG", "sparkmeta")
    caplog.set_level("INFO")
    catalog = sql_catalog(s3, tmp_path, warehouse, "fsspec")
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        table = catalog.load_table(IDENTIFIER, spark)
        tree = tree_of(catalog, table)
        shown = [repr(part) for part in (catalog, table, table.state, table.state.access, table.operations)]
        for opened in (table, tree):
            scan = opened.scan("id >= 20")
            frames = (scan.plan_files(), scan.plan_tasks(), scan.to_df(), opened.inspect.files())
            shown += [*map(explained, frames), str(scan.report()), scan.report().to_json(), str(opened.draw())]
            shown += [opened._repr_html_(), repr(scan), opened.metadata.model_dump_json()]
        refused = s3.faulty(refuses=lambda request: 403 if request.method == "GET" else 0)
        with refused, pytest.raises(Exception, match="FileAccessError") as caught:
            table.inspect.files().collect()
    shown += ["".join(traceback.format_exception(caught.value)), str(from_spark(caught.value))]
    assert "***" in shown[-1]
    lake = sm.load_catalog("lake", type="hadoop", warehouse=warehouse, **s3.properties)
    shown += [repr(lake), caplog.text, (tmp_path / "catalog.db").read_bytes().decode("latin-1")]
    if server_log.exists():
        shown.append(server_log.read_text())
        assert "***" in shown[-1], "the log of a task that failed"
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert [text[max(text.index(secret) - 200, 0) :][:400] for text in shown if secret in text] == []


@pytest.mark.connect
def test_tables_of_a_warehouse(spark: SparkSession, s3: S3Server, warehouse: str, tmp_path: Path) -> None:
    """Conditional writes commit, without a catalog beside the store."""
    files = sql_catalog(s3, tmp_path, warehouse, "pyarrow").load_table(IDENTIFIER, spark).inspect.files()
    lake = sm.load_catalog("lake", type="hadoop", warehouse=f"{warehouse}/lake", **s3.properties)
    table = lake.create_table("db.t", SCHEMA, BY_COUNTRY, format_version=4, spark=spark)
    table = commit(table, "append", files)
    assert len(paths(lake.load_table("db.t", spark))) == FILES
    assert lake.list_tables("db") == [("db", "t")]
    assert lake.list_namespaces() == [("db",)]
    assert table.refresh().metadata_location.endswith("/v2.metadata.json")
    with pytest.raises(sm.TableAlreadyExistsError):
        lake.create_table("db.t", SCHEMA, BY_COUNTRY, format_version=4, spark=spark)


@pytest.mark.parametrize(("client", "driver_bytes"), CLIENTS)
def test_requests_of_a_plan(
    spark: SparkSession, s3: S3Server, tmp_path: Path, warehouse: str, client: str, driver_bytes: str
) -> None:
    """The metadata, the list, and each manifest that the filter leaves, once."""
    catalog = sql_catalog(s3, tmp_path, warehouse, client)
    each = {"GET": 1} if client == "fsspec" else {"HEAD": 1, "GET": 1}
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": driver_bytes}):
        for row_filter, files in (("true", 2 + LOADS), ("country > 'X'", 2)):
            with s3.counted() as sent:
                catalog.load_table(IDENTIFIER, spark).scan(row_filter).plan_files().collect()
            assert methods(sent) == {method: count * files for method, count in each.items()}, row_filter
        tree_of(catalog, catalog.load_table(IDENTIFIER, spark))
        with s3.counted() as sent:
            paths(catalog.load_table("shop.tree", spark))
        opened = {request.key for request in sent if request.method == "GET"}
        assert len(opened) == 3, f"the metadata, the root, a leaf: {opened}"
        assert methods(sent) == {method: count * 3 for method, count in each.items()}
