"""Tables of Iceberg's own REST catalog: what pyiceberg and Java wrote, what sparkmeta commits, and both read again."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.catalog.test_operations import SCHEMA
from tests.conftest import ICEBERG, configured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table as PyIcebergTable
    from pyspark.sql import SparkSession

    from sparkmeta.catalog.iceberg import IcebergCatalog

ROWS = pa.table(
    {"id": range(4), "name": list("abcd")}, schema=pa.schema([pa.field("id", pa.int64(), False), ("name", "string")])
)
LOADS = 4


@pytest.fixture
def catalog(rest_uri: str) -> IcebergCatalog:
    return sm.load_catalog("rest", type="rest", uri=rest_uri)  # type: ignore[return-value]


@pytest.fixture
def ns(catalog: IcebergCatalog) -> str:
    name = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(name)
    return name


@pytest.fixture(params=["1", "2"])
def theirs(request: pytest.FixtureRequest, catalog: IcebergCatalog, ns: str) -> PyIcebergTable:
    """A table to which pyiceberg has appended."""
    properties = {"format-version": request.param, "owner": "them"}
    table = catalog.pyiceberg.create_table(f"{ns}.t", SCHEMA, properties=properties)
    for _ in range(LOADS):
        table.append(ROWS)
    return table


def test_pyiceberg(spark: SparkSession, catalog: IcebergCatalog, theirs: PyIcebergTable) -> None:
    name = theirs.name()
    table = catalog.load_table(name, spark)
    assert table.scan().count_files() == LOADS
    plan = table.maintenance.rewrite_manifests()
    assert plan.summary().data_manifests == LOADS, "a dry run"
    assert table.refresh() is table, "nothing was committed"

    catalog.pyiceberg.load_table(name).transaction().set_properties(owner="others").commit_transaction()
    rewritten = plan.commit()
    assert rewritten.inspect.manifests().count() == 1
    assert rewritten.properties["owner"] == "others", "what has changed meanwhile stays"
    with rewritten.manage_snapshots() as refs:
        refs.create_tag(theirs.current_snapshot().snapshot_id, "before").create_branch(  # type: ignore[union-attr]
            rewritten.current_snapshot().snapshot_id,
            "audit",  # type: ignore[union-attr]
        )
    catalog.pyiceberg.load_table(name).append(ROWS)
    with rewritten.refresh().manage_snapshots() as refs:
        refs.fast_forward("audit", "main").remove_tag("before")

    read = catalog.pyiceberg.load_table(name)
    assert read.scan().to_arrow().num_rows == (LOADS + 1) * len(ROWS)
    assert set(read.refs()) == {"main", "audit"}
    assert read.refs()["audit"].snapshot_id == read.current_snapshot().snapshot_id
    assert [snapshot.summary.operation.value for snapshot in read.snapshots()] == ["append"] * 4 + ["replace", "append"]
    assert table.refresh().scan().count_files() == LOADS + 1
    with pytest.raises(sm.UnsupportedError, match=r"load it with a catalog of sparkmeta\.load_catalog"):
        sm.Table.from_pyiceberg(read, spark).maintenance.rewrite_manifests()


def test_a_concurrent_append(spark: SparkSession, catalog: IcebergCatalog, theirs: PyIcebergTable) -> None:
    """The commit is tried again on the version of another client."""
    plan = catalog.load_table(theirs.name(), spark).maintenance.rewrite_manifests()
    theirs.append(ROWS)
    committed = plan.commit()
    assert committed.inspect.manifests().count() == 2, "the one that was written, and the other client's"
    read = catalog.pyiceberg.load_table(theirs.name())
    assert read.scan().to_arrow().num_rows == (LOADS + 1) * len(ROWS)
    parents = [snapshot.parent_snapshot_id for snapshot in read.snapshots()]
    assert parents == [None, *(snapshot.snapshot_id for snapshot in read.snapshots()[:-1])], "history is linear"


def test_a_catalog_of_referenced_snapshots_loads_the_whole_history(
    spark: SparkSession, rest_uri: str, theirs: PyIcebergTable
) -> None:
    """Otherwise the files that only the other snapshots need would be taken for orphans."""
    loading = {"type": "rest", "uri": rest_uri, "snapshot-loading-mode": "refs"}
    catalog: IcebergCatalog = sm.load_catalog("rest", **loading)  # type: ignore[assignment]
    partial = catalog.pyiceberg.load_table(theirs.name())
    assert len(partial.snapshots()) == 1
    table = catalog.load_table(theirs.name(), spark)
    ids = [snapshot.snapshot_id for snapshot in theirs.refresh().snapshots()]
    for loaded in (table, table.refresh(), sm.Table.from_pyiceberg(partial, spark)):
        assert [snapshot.snapshot_id for snapshot in loaded.snapshots()] == ids
        assert loaded.scan(snapshot_id=ids[0]).count_files() == 1
    in_future = datetime.now(UTC) + timedelta(days=1)
    orphans = table.maintenance.remove_orphan_files(older_than=in_future, force=True)
    assert orphans.summary().is_empty
    expiry = table.maintenance.expire_snapshots(older_than=in_future, retain_last=2)
    assert expiry.summary().snapshots == LOADS - 2
    assert [snapshot.snapshot_id for snapshot in expiry.commit().snapshots()] == ids[-2:]


@pytest.fixture
def java(spark: SparkSession, rest_uri: str) -> Iterator[str]:
    """The name of a catalog of the session: Iceberg's Java client."""
    name = f"rest_{uuid.uuid4().hex[:8]}"
    values = {"": f"{ICEBERG}.SparkCatalog", ".type": "rest", ".uri": rest_uri, ".cache-enabled": "false"}
    with configured(spark, {f"spark.sql.catalog.{name}{key}": value for key, value in values.items()}):
        yield name


@pytest.mark.java
def test_java(spark: SparkSession, catalog: IcebergCatalog, ns: str, java: str) -> None:
    name = f"{java}.{ns}.t"
    spark.sql(f"CREATE TABLE {name} (id INT, s STRING) USING iceberg TBLPROPERTIES ('format-version'='3')")
    for number in range(3):
        spark.sql(f"INSERT INTO {name} VALUES ({number}, 'a'), ({number + 10}, 'b')")
    before = spark.sql(f"SELECT *, _row_id FROM {name}").collect()
    table = catalog.load_table(f"{ns}.t", spark)
    rewritten = table.maintenance.rewrite_manifests().commit()
    with rewritten.manage_snapshots() as refs:
        refs.create_tag(table.current_snapshot().snapshot_id, "before")  # type: ignore[union-attr]
    assert sorted(spark.sql(f"SELECT *, _row_id FROM {name}").collect()) == sorted(before)
    assert spark.sql(f"SELECT * FROM {name}.manifests").count() == 1
    spark.sql(f"INSERT INTO {name} VALUES (7, 'c')")
    assert spark.sql(f"SELECT * FROM {name} VERSION AS OF 'before'").count() == len(before)
    assert table.refresh().scan().count_files() == len(before) + 1

    ours = catalog.create_table(f"{ns}.ours", SCHEMA, format_version=3, spark=spark)
    spark.sql(f"INSERT INTO {java}.{ns}.ours VALUES (1, 'a')")
    assert ours.refresh().scan().to_df().collect() == [(1, "a")]
