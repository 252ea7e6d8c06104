"""Changes of rows that meet a concurrent commit."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import IntegerType, StringType

import sparkmeta as sm
from tests.write.list_files import unreached_files
from tests.write.test_changes import BY_PART, SCHEMA, Rows, frame

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FIRST: Rows = [(1, "a", 1), (2, "a", 2), (7, "b", 7)]


@pytest.fixture
def table(interpreted: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA, BY_PART, format_version=2, spark=interpreted)
    return table.append(frame(interpreted, FIRST).coalesce(1))


def new_table(spark: SparkSession, folder: Path, kind: str, request: pytest.FixtureRequest, **options: Any) -> sm.Table:
    """Create a table in a file system catalog, or in the REST catalog."""
    catalog_properties = (
        {"warehouse": str(folder)} if kind == "hadoop" else {"uri": request.getfixturevalue("rest_uri")}
    )
    catalog = sm.load_catalog("rows", type=kind, **catalog_properties)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    return catalog.create_table(f"{namespace}.t", SCHEMA, spark=spark, **options)


def rows_of(table: sm.Table) -> Rows:
    return sorted(map(tuple, table.scan().to_df().collect()))


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_others_add_a_file_that_matches_partly(table: sm.Table, change: str) -> None:
    """Whole files were to be removed: the change has to start again, and leaves no files behind."""
    stale: Any = table.transaction()
    if change == "delete":
        stale.delete("id < 5")
    else:
        stale.overwrite(frame(table.state.spark, [(3, "a", 3)]), "id < 5")
    others = table.append(frame(table.state.spark, [(4, "a", 4), (9, "a", 9)]).coalesce(1))
    with pytest.raises(sm.CommitConflictError, match="some of its rows may not match id < 5: others have committed"):
        stale.commit()
    assert table.refresh().metadata_location == others.metadata_location
    assert not unreached_files(others)
    assert rows_of(others.delete("id < 5")) == [(7, "b", 7), (9, "a", 9)]


def test_others_add_a_file_that_matches(table: sm.Table) -> None:
    """A delete of whole files is made as of its commit, like Java's, unless the caller isolates it."""
    stale: Any = table.transaction()
    stale.delete("id < 5")
    isolated: Any = table.transaction()
    isolated.delete("id < 5", isolation="serializable")
    table.append(frame(table.state.spark, [(3, "a", 3), (9, "b", 9)]).coalesce(1))
    with pytest.raises(sm.CommitConflictError, match="added data that may match"):
        isolated.commit()
    assert rows_of(stale.commit()) == [(7, "b", 7), (9, "b", 9)]


def test_others_add_a_row_that_an_overwrite_would_leave(table: sm.Table) -> None:
    spark = table.state.spark
    stale, isolated = (table.transaction() for _ in range(2))
    stale.overwrite(frame(spark, [(2, "new", 0)]), "id = 2")
    isolated.overwrite(frame(spark, [(2, "new", 0)]), "id = 2", isolation="snapshot")
    table.append(frame(spark, [(2, "others", 0)]))
    with pytest.raises(sm.CommitConflictError, match="added data that may match"):
        stale.commit()
    assert rows_of(isolated.commit()) == [(1, "a", 1), (2, "new", 0), (2, "others", 0), (7, "b", 7)]


def test_others_delete_the_same_files(table: sm.Table) -> None:
    isolated: Any = table.transaction()
    isolated.delete("id < 5", isolation="serializable")
    table.delete("part = 'a'")
    assert rows_of(isolated.commit()) == [(7, "b", 7)]


@pytest.mark.parametrize("stale_filter", ["n < 9", "n = 1"])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_others_rename_a_column_of_the_filter(table: sm.Table, stale_filter: str, is_replaced: bool) -> None:
    """A new column with the old name has nothing to do with the change, whether whole files match or rows."""
    stale: Any = table.transaction()
    stale.delete(stale_filter)
    with table.update_schema() as update:
        update.rename_column("n", "old")
    table = table.refresh()
    if is_replaced:
        with table.update_schema() as update:
            update.add_column("n", IntegerType())
        table = table.refresh()
    columns = "id BIGINT, part STRING, old INT" + (", n INT" if is_replaced else "")
    row = (3, "a", 1, 7) if is_replaced else (3, "a", 1)
    others = table.append(table.state.spark.createDataFrame([row], columns))
    with pytest.raises(sm.CommitConflictError, match="others have renamed, deleted or replaced column 'n'"):
        stale.commit()
    assert table.refresh().metadata_location == others.metadata_location


def test_others_rename_another_column(table: sm.Table) -> None:
    stale: Any = table.transaction()
    stale.delete("n = 1")
    with table.update_schema() as update:
        update.rename_column("part", "old")
    table.refresh().append(table.state.spark.sql("SELECT 3L id, 'b' old, 3 n"))
    assert rows_of(stale.commit()) == [(2, "a", 2), (3, "b", 3), (7, "b", 7)]


@pytest.mark.parametrize("change", ["delete", "rewrite"])
def test_others_delete_rows_and_upgrade(interpreted: SparkSession, tmp_path: Path, change: str) -> None:
    """The upgrade makes no snapshot: the deletes are in the manifest list from which the tree is made."""
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    properties = {"write.delete.mode": "merge-on-read", "write.delete.isolation-level": "snapshot"}
    table: Any = catalog.create_table("db.u", SCHEMA, format_version=3, properties=properties, spark=interpreted)
    table = table.append(frame(interpreted, [(i, "a", i) for i in range(6)]).coalesce(1))
    stale: Any
    if change == "delete":
        stale = table.transaction()
        stale.delete("id = 5")
    else:
        stale = table.maintenance.rewrite_data_files(rewrite_all=True)
        assert stale.summary()
    table.delete("id = 5").maintenance.upgrade(4).commit()
    with pytest.raises(sm.CommitConflictError, match=r"deletion vector|deleted rows"):
        stale.commit()
    assert rows_of(table.refresh()) == [(i, "a", i) for i in range(5)]


@pytest.mark.parametrize("change", ["delete", "equality_delete", "overwrite"])
def test_others_roll_back(table: sm.Table, change: str) -> None:
    spark, first = table.state.spark, table.state.snapshot
    assert first is not None
    table = table.append(frame(spark, [(9, "a", 9)]))
    stale: Any = table.transaction()
    if change == "delete":
        stale.delete("id = 1")
    elif change == "equality_delete":
        stale.equality_delete(frame(spark, [(1, "a", None)]), ["id"])
    else:
        stale.overwrite(frame(spark, [(1, "a", 0)]), "id = 1", isolation="snapshot")
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(sm.CommitConflictError, match="can't tell what was committed since"):
        stale.commit()
    assert rows_of(table.refresh()) == FIRST


@pytest.mark.parametrize("change", ["delete", "update"])
@pytest.mark.parametrize("version", [3, 4])
def test_others_upgrade(table: sm.Table, change: str, version: int) -> None:
    """Position deletes in Parquet files can't be added after an upgrade."""
    table = table.transaction().set_properties({f"write.{change}.mode": "merge-on-read"}).commit()
    stale: Any = table.transaction()
    if change == "delete":
        stale.delete("id = 1")
    else:
        stale.update({"n": 0}, "id = 1")
    table.maintenance.upgrade(version).commit()
    with pytest.raises(sm.CommitConflictError, match="others have upgraded the table since"):
        stale.commit()
    assert rows_of(table.refresh()) == FIRST


@pytest.mark.parametrize("part", ["a", "b"])
def test_others_add_a_key_that_is_deleted(table: sm.Table, part: str) -> None:
    """A key is deleted in its partition: only data that is added there is a conflict."""
    stale: Any = table.transaction()
    stale.equality_delete(frame(table.state.spark, [(2, "a", None)]), ["id"], isolation="serializable")
    table.append(frame(table.state.spark, [(2, part, 3)]))
    if part == "a":
        with pytest.raises(sm.CommitConflictError, match="added data that may match"):
            stale.commit()
    else:
        assert rows_of(stale.commit()) == [(1, "a", 1), (2, "b", 3), (7, "b", 7)]


@pytest.mark.parametrize(("kind", "version"), [("hadoop", 3), ("hadoop", 4), ("rest", 3)])
@pytest.mark.parametrize("others", ["id <= 3", "id = 1", "id = 5"])
def test_others_delete_rows_of_the_same_file(
    interpreted: SparkSession, tmp_path: Path, kind: str, version: int, others: str, request: pytest.FixtureRequest
) -> None:
    """It is a conflict, whether or not the other deletion vector has more positions than ours."""
    properties = {"write.delete.mode": "merge-on-read", "write.delete.isolation-level": "snapshot"}
    table: Any = new_table(interpreted, tmp_path, kind, request, format_version=version, properties=properties)
    table = table.append(frame(interpreted, [(i, "a", i) for i in range(6)]).coalesce(1))
    stale = table.transaction()
    stale.delete("id = 5")
    after = table.delete(others)
    with pytest.raises(sm.CommitConflictError, match="added a deletion vector for the same data file"):
        stale.commit()
    assert len(rows_of(table.refresh())) == len(rows_of(after)) < 6


# -- name mappings ----------------------------------------------------------------------------------------------------
MAPPING = "schema.name-mapping.default"


def existing(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "part": ["a"], **columns}), path)
    return str(path)


@pytest.mark.parametrize("kind", ["hadoop", "rest"])
def test_others_add_a_name_mapping(
    interpreted: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """The other commit's mapping is kept, so that columns added since are read."""
    table = new_table(interpreted, tmp_path, kind, request)
    stale: Any = table.transaction().add_files([existing(tmp_path / "1.parquet", n=pa.array([3], pa.int32()))])
    with table.transaction() as tx:
        tx.set_properties({MAPPING: table.schema().name_mapping.model_dump_json()})
        tx.update_schema().add_column("c", StringType()).commit()
    table.refresh().add_files([existing(tmp_path / "2.parquet", c=["read"])])
    committed = stale.commit()
    assert sorted(map(tuple, committed.scan().to_df().select("n", "c").collect()), key=repr) == [
        (3, None), (None, "read"),
    ]  # fmt: skip


def test_others_add_a_name_mapping_without_a_column(table: sm.Table, tmp_path: Path) -> None:
    stale: Any = table.transaction().add_files([existing(tmp_path / "1.parquet", n=pa.array([3], pa.int32()))])
    others = table.transaction().set_properties({MAPPING: json.dumps([{"field-id": 1, "names": ["id"]}])}).commit()
    with pytest.raises(sm.CommitConflictError, match="which the added files rely on"):
        stale.commit()
    assert table.refresh().metadata_location == others.metadata_location


@pytest.mark.parametrize("name", [MAPPING, "write.metadata.metrics.column.n"])
def test_others_change_a_property_of_columns(table: sm.Table, name: str) -> None:
    stale = table.update_schema().rename_column("n", "m")
    mapping = [{"field-id": 3, "names": ["n", "old"]}]
    others = table.transaction().set_properties({name: json.dumps(mapping) if name == MAPPING else "full"}).commit()
    with pytest.raises(sm.CommitConflictError, match=f"another commit has changed the property {name}"):
        stale.commit()
    assert table.refresh().metadata_location == others.metadata_location
