"""An upgrade is undone if no commit has made a root: the table is as before, for Java too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, NestedField, TimestampNanoType

import sparkmeta as sm
from sparkmeta.errors import ValidationError
from tests.maintain.test_upgrade_plan import empty_table
from tests.peers.file_maker import local_path
from tests.write.test_changes import frame, new_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fields about the metadata file itself, and ids of expressions.
CHANGING = {"last-updated-ms", "metadata-log", "last-column-id", "next-row-id"}
MISSING_IS_EMPTY: dict[str, Any] = {
    "encryption-keys": [],
    "refs": {},
    "statistics": [],
    "partition-statistics": [],
    "properties": {},
}


def document(table: sm.Table) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(Path(local_path(table.metadata_location)).read_text())
    remaining = {key: value for key, value in (MISSING_IS_EMPTY | written).items() if key not in CHANGING}
    return remaining | {"current-snapshot-id": written.get("current-snapshot-id") or -1}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_metadata_is_as_it_was(spark: SparkSession, tmp_path: Path, version: int) -> None:
    before = empty_table(spark, tmp_path / "t", version)
    upgraded = before.maintenance.upgrade(4).commit()
    plan = upgraded.maintenance.undo_upgrade()
    assert f"format version {version}" in str(plan)
    assert upgraded.refresh().format_version == 4
    undone = plan.commit()
    assert plan.commit() is undone
    assert undone.format_version == undone.refresh().format_version == version
    # The metadata has the lists that early writers of version 1 omit.
    remaining = document(before).keys() - {"schema", "partition-spec"}
    assert {key: document(undone)[key] for key in remaining} == {key: document(before)[key] for key in remaining}
    assert version == 1 or document(undone).keys() == remaining
    assert (undone.schemas(), undone.specs()) == (before.schemas(), before.specs())
    assert undone.metadata.last_column_id >= before.metadata.last_column_id
    again = undone.maintenance.upgrade(4).commit()
    assert document(again)["partition-specs"] != document(undone)["partition-specs"]


def test_changes_since_the_upgrade_stay(spark: SparkSession, tmp_path: Path) -> None:
    upgraded = empty_table(spark, tmp_path / "t", 2).maintenance.upgrade(4).commit()
    with upgraded.transaction() as tx:
        tx.set_properties({"a": "b"})
        tx.update_schema().add_column("more", IntegerType()).commit()
    undone = upgraded.refresh().maintenance.undo_upgrade().commit()
    assert undone.format_version == 2
    assert undone.properties["a"] == "b"
    more = undone.schema().find_field("more")
    assert more.field_id == undone.metadata.last_column_id


def test_a_root_is_the_end_of_the_way_back(spark: SparkSession, tmp_path: Path) -> None:
    upgraded = empty_table(spark, tmp_path / "t", 2).maintenance.upgrade(4).commit()
    plan = upgraded.maintenance.undo_upgrade()
    with upgraded.transaction() as tx:
        tx.update_snapshot()
    written = upgraded.refresh()
    snapshot = written.current_snapshot()
    assert snapshot is not None
    problem = f"snapshot {snapshot.snapshot_id} has a root manifest"
    with pytest.raises(ValidationError, match=problem):
        written.maintenance.undo_upgrade()
    with pytest.raises(ValidationError, match=problem):
        plan.commit()
    assert written.refresh().metadata_location == written.metadata_location


def test_what_an_earlier_version_has_no_place_for(spark: SparkSession, tmp_path: Path) -> None:
    upgraded = empty_table(spark, tmp_path / "t", 2).maintenance.upgrade(4).commit()
    with upgraded.transaction() as tx:
        tx.update_schema().add_column("ns", TimestampNanoType()).commit()
    with pytest.raises(ValidationError, match="version 2 does not support column ns of type timestamp_ns"):
        upgraded.refresh().maintenance.undo_upgrade()
    assert upgraded.refresh().maintenance.undo_upgrade(3).commit().format_version == 3


@pytest.mark.parametrize(
    ("version", "lower", "problem"), [(3, 2, "has first-row-id"), (2, 1, "last-sequence-number is")]
)
def test_a_lower_version_than_before(
    spark: SparkSession, tmp_path: Path, version: int, lower: int, problem: str
) -> None:
    """Row ids would start over, and sequence numbers would have no field."""
    catalog = sm.load_catalog("folders", type="hadoop", warehouse=str(tmp_path))
    schema = Schema(NestedField(1, "id", LongType()))
    table = catalog.create_table("db.t", schema, format_version=version, spark=spark)
    table.append(spark.createDataFrame([(1,)], "id long"))
    table = table.refresh().maintenance.upgrade(4).commit()
    with pytest.raises(sm.ValidationError, match=problem):
        table.maintenance.undo_upgrade(lower)
    assert table.maintenance.undo_upgrade(version).commit().metadata.format_version == version


def test_the_version_is_named_where_the_log_does_not_say_it(spark: SparkSession, tmp_path: Path) -> None:
    before = empty_table(spark, tmp_path / "t", 2)
    upgraded = before.maintenance.upgrade(4).commit()
    Path(local_path(before.metadata_location)).unlink()
    with pytest.raises(ValidationError, match="pass it as format_version"):
        upgraded.maintenance.undo_upgrade()
    with pytest.raises(ValidationError, match="there is no format version 5"):
        upgraded.maintenance.undo_upgrade(5)
    assert upgraded.maintenance.undo_upgrade(2).commit().format_version == 2


def test_a_table_that_was_not_upgraded(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no metadata tree"):
        empty_table(spark, tmp_path / "t", 2).maintenance.undo_upgrade()


@pytest.mark.java
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_java_reads_and_writes_the_table_again(version: int, spark: SparkSession, java_warehouse: str) -> None:
    name = f"java.undone.v{version}"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, s STRING) USING iceberg PARTITIONED BY (s, bucket(4, id)) "
        f"TBLPROPERTIES ('format-version' = '{version}')"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'a'), (3, 'b')")
    catalog = sm.load_catalog("undone", type="hadoop", warehouse=java_warehouse)
    table = catalog.load_table(f"undone.v{version}", spark=spark)
    upgraded = table.maintenance.upgrade(4).commit()
    with pytest.raises(Exception, match=r"(?s)."):
        spark.sql(f"SELECT * FROM {name}").collect()
    undone = upgraded.maintenance.undo_upgrade().commit()
    assert undone.format_version == version
    rows = [tuple(row) for row in spark.sql(f"SELECT * FROM {name} ORDER BY id").collect()]
    assert rows == [(1, "a"), (2, "a"), (3, "b")]
    spark.sql(f"INSERT INTO {name} VALUES (4, 'c')")
    spark.sql(f"DELETE FROM {name} WHERE id = 2")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN more INT")
    rows = [tuple(row) for row in spark.sql(f"SELECT * FROM {name} ORDER BY id").collect()]
    assert rows == [(1, "a", None), (3, "b", None), (4, "c", None)]
    assert undone.refresh().scan("s = 'c'").plan_files().count() == 1


@pytest.mark.parametrize("limit", ["0", "100"])
def test_files_of_an_append_that_began_on_another_upgrade(spark: SparkSession, tmp_path: Path, limit: str) -> None:
    """The second upgrade assigns other ids to expressions than the append has written partitions under."""
    properties = {"write.tree.direct-files": limit}
    table = new_table(
        spark, tmp_path, PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket")), **properties
    )
    table = table.append(frame(spark, [(1, "a", 1)]))
    stale: Any = table.transaction()
    stale.append(frame(spark, [(2, "a", 2)]))
    table = table.maintenance.downgrade(3).commit()
    with table.update_schema() as update:
        update.add_column("added", LongType())
    table.refresh().maintenance.upgrade(4).commit()
    after = stale.commit()
    assert not after.check().collect()
    assert [row.id for row in after.scan("id = 2").to_df().collect()] == [2]
