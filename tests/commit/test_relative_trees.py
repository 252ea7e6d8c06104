"""Trees name their files relative to the table: a moved or copied folder is a table, independent of the original."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta.expr import sql
from sparkmeta.manifests.v4.spark import resolved
from sparkmeta.spec.locations import Locations
from tests.frames import local_frame
from tests.maintain.test_expire import files_below, soon
from tests.maintain.test_orphans import age
from tests.peers.file_maker import local_path
from tests.spec.test_locations import PATHS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType()))
IN_LEAVES = {"write.tree.direct-files": "0", "write.tree.inline-vector-bytes": "0"}


def changed(spark: SparkSession, table: sm.Table, first: int) -> sm.Table:
    """Return the table after appends, deletes by vectors and by paths, and masks of leaves in Puffin files."""
    for start in (first, first + 10):
        table.append(spark.range(start, start + 10).repartition(3))
        table = table.refresh()
    table.delete(f"id = {first + 1}")
    table = table.refresh()
    gone = table.scan().plan_files().orderBy("file_path").limit(1).select("file_path")
    with table.transaction() as tx:
        tx.update_snapshot().delete(gone)
    return table.refresh()


def ids(table: sm.Table) -> list[int]:
    return sorted(row.id for row in table.scan().to_df().collect())


def written(folder: Path) -> set[str]:
    """Return every location in manifests and in the current table metadata."""
    locations: set[str | None] = set()
    for manifest in folder.glob("metadata/*.parquet"):
        table = pq.read_table(manifest)
        for name in {"location", "referenced_file"}.intersection(table.column_names):
            locations.update(table.column(name).to_pylist())
    newest = max(folder.glob("metadata/v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    document = json.loads(newest.read_text())
    locations.update(snapshot.get("root-manifest") or snapshot["manifest-list"] for snapshot in document["snapshots"])
    locations.update(entry["metadata-file"] for entry in document["metadata-log"])
    return {location for location in locations if location}


@pytest.fixture(params=["", "file://"])
def tree(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> sm.Table:
    catalog: Any = sm.load_catalog("moved", type="hadoop", warehouse=f"{request.param}{tmp_path}", spark=spark)
    table = catalog.create_table("db.t", SCHEMA, format_version=4, properties=IN_LEAVES)
    return changed(spark, table, 0)


def test_a_copied_folder_is_a_table(spark: SparkSession, tree: sm.Table) -> None:
    folder = Path(local_path(tree.location()))
    assert {location.partition("/")[0] for location in written(folder)} == {"data", "metadata"}
    copied = folder.parent / "copy [x] %20"
    shutil.copytree(folder, copied)
    expected, before = ids(tree), files_below(folder)
    hidden = folder.rename(folder.parent / "hidden")
    copied_location = tree.location().replace("db/t", "db/copy [x] %20")
    for opened in (str(copied), f"file://{copied}"):
        copy = sm.load_table(opened, spark=spark)
        assert (copy.location(), ids(copy), copy.check().collect()) == (copied_location, expected, [])
        paths = [row.file_path for row in copy.scan().plan_files().collect()]
        assert paths
        assert all(path.startswith(f"{copied_location}/data/") for path in paths)
    hidden.rename(folder)
    copy = changed(spark, copy, 100)
    rows = ids(copy)
    copy.maintenance.compact_manifests().commit()
    age(copied)
    copy = sm.load_table(str(copied), spark=spark)
    copy.maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()
    copy = copy.refresh()
    assert copy.maintenance.remove_orphan_files().to_df().isEmpty()
    assert ids(copy) == rows
    assert copy.check().isEmpty()
    assert {location.partition("/")[0] for location in written(copied)} == {"data", "metadata"}
    original = sm.load_table(tree.location(), spark=spark)
    assert (original.location(), ids(original), files_below(folder)) == (tree.location(), expected, before)


def test_a_table_property_chooses_absolute_locations(spark: SparkSession, tree: sm.Table) -> None:
    folder = Path(local_path(tree.location()))
    before = written(folder)
    tree.transaction().set_properties({"write.tree.relative-locations": "false"}).commit()
    table = changed(spark, tree.refresh(), 100)
    new = {location for location in written(folder) - before if location.endswith((".parquet", ".puffin"))}
    assert new
    assert all(location.startswith(f"{tree.location()}/") for location in new)
    assert table.check().isEmpty()
    copied = folder.parent / "copy"
    shutil.copytree(folder, copied)
    assert sm.load_table(str(copied), spark=spark).location() == tree.location()
    with pytest.raises(sm.ValidationError, match=r"write.tree.relative-locations is 'maybe': expected true or false"):
        table.transaction().set_properties({"write.tree.relative-locations": "maybe"}).commit()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_upgraded_table_keeps_absolute_locations(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    catalog: Any = sm.load_catalog("kept", type="hadoop", warehouse=f"{scheme}{tmp_path}", spark=spark)
    table = catalog.create_table("db.t", SCHEMA, format_version=2)
    table.append(spark.range(5))
    tree = changed(spark, table.refresh().maintenance.upgrade(4, compact=True).commit(), 10)
    assert all(location.startswith(f"{tree.location()}/") for location in written(tmp_path / "db" / "t"))
    assert tree.check().isEmpty()
    copied = tmp_path / "db" / "copy"
    shutil.copytree(tmp_path / "db" / "t", copied)
    assert sm.load_table(str(copied), spark=spark).location() == tree.location()


def test_paths_are_found_as_they_were_given(spark: SparkSession, tree: sm.Table) -> None:
    files = "file_path string, file_format string, record_count long, file_size_in_bytes long"
    added = spark.createDataFrame([("/elsewhere/a.parquet", "PARQUET", 1, 100)], files)
    with tree.transaction() as tx:
        tx.update_snapshot().append(added)
    path = "file:///elsewhere/a.parquet" if tree.location().startswith("file:") else "/elsewhere/a.parquet"
    table = tree.refresh()
    assert table.inspect.files().where(f"file_path = '{path}'").count() == 1
    with pytest.raises(sm.ValidationError, match=r"a\.parquet"), table.transaction() as tx:
        tx.update_snapshot().append(added)
    with table.transaction() as tx:
        tx.update_snapshot().delete(added.select("file_path"))
    assert table.refresh().inspect.files().where(f"file_path = '{path}'").count() == 0


def test_new_files_are_named_by_absolute_locations(spark: SparkSession, tree: sm.Table) -> None:
    """A path without a scheme is local, as are the locations that a tree with a scheme records for it."""
    row = "SELECT '{}' file_path, 'parquet' file_format, 1L record_count, 9L file_size_in_bytes"
    with (
        pytest.raises(sm.ValidationError, match="of file data/x is 'data/x': it is not absolute"),
        tree.transaction() as tx,
    ):
        tx.update_snapshot().append(spark.sql(row.format("data/x")))
    with tree.transaction() as tx:
        tx.update_snapshot().append(spark.sql(row.format("/elsewhere/x")))
    paths = {row.file_path for row in tree.refresh().scan().plan_files().collect()}
    scheme = "file://" if tree.location().startswith("file:") else ""
    assert f"{scheme}/elsewhere/x" in paths


@pytest.mark.parametrize("place", ["s3://b/t", "file:/a/t/", "/a/t"])
def test_spark_resolves_as_python_does(spark: SparkSession, place: str) -> None:
    values = [None, *PATHS, f"{place}/data/a", f"{place}x/a", "data/part=1:2/a"]
    frame = local_frame(spark, pa.table({"v": pa.array(values, pa.string())}))
    for revision in (1, 2):
        locations = Locations.of(place, 4, revision)
        rows = frame.selectExpr("v", f"{resolved(sql.col('v'), locations).text} AS r").collect()
        assert {row.v: row.r for row in rows} == {
            value: value if value is None else locations.resolve(value, "f", "x") for value in values
        }
