"""Changes name the snapshot that they have read, or a deletion vector that the same transaction has added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.write.test_changes import SCHEMA, Rows, frame

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

ROWS: Rows = [(i, "a", i) for i in range(6)]


@pytest.fixture
def catalog(tmp_path: Path) -> sm.Catalog:
    return sm.load_catalog("read", type="hadoop", warehouse=str(tmp_path))


def table_of(spark: SparkSession, catalog: Any, version: int, mode: str = "merge-on-read") -> Any:
    properties = {"write.delete.mode": mode, "write.update.mode": mode}
    table = catalog.create_table("db.t", SCHEMA, format_version=version, properties=properties, spark=spark)
    return table.append(frame(spark, ROWS).coalesce(1))


def on_branch(table: Any, branch: str, row_filter: str) -> tuple[DataFrame, DataFrame]:
    """Delete rows on a new branch, and return the delete files and the data files there."""
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, branch).commit()
    table = table.refresh().delete(row_filter, branch=branch)
    inspect, head = table.inspect, table.snapshot_by_name(branch).snapshot_id
    return inspect.delete_files(snapshot_id=head), inspect.data_files(snapshot_id=head)


def rows_of(table: Any) -> Rows:
    return sorted(map(tuple, table.scan().to_df().collect()))


@pytest.mark.core
@pytest.mark.parametrize("version", [3, 4])
def test_a_vector_of_the_same_transaction(interpreted: SparkSession, catalog: sm.Catalog, version: int) -> None:
    """The vector is replaced if the change names it. A change that does not name it has not read it."""
    table = table_of(interpreted, catalog, version)
    first, second = (on_branch(table, branch, "id = 1")[0] for branch in ("b", "c"))
    table = table.refresh()

    blind = table.transaction()
    blind.update_snapshot().row_delta(deletes=first)
    blind.update_snapshot().row_delta(deletes=second)
    with pytest.raises(sm.CommitConflictError, match="added a deletion vector for the same data file"):
        blind.commit()
    assert rows_of(table.refresh()) == ROWS

    aware = table.transaction()
    aware.update_snapshot().row_delta(deletes=first)
    aware.update_snapshot().rewrite(first.select("file_path", "content_offset"), deletes=second)
    table = aware.commit()
    assert rows_of(table) == [row for row in ROWS if row[0] != 1]
    assert table.inspect.delete_files().select("file_path").collect() == second.select("file_path").collect()


def test_deletes_of_compacted_files(interpreted: SparkSession, catalog: sm.Catalog) -> None:
    """Position deletes were written for files that have been compacted since the snapshot was read."""
    table = table_of(interpreted, catalog, 2)
    read = table.current_snapshot().snapshot_id
    deletes, data = on_branch(table, "b", "id = 3")
    table = table.refresh().maintenance.rewrite_data_files(rewrite_all=True).commit()
    change = table.transaction()
    update = change.update_snapshot().row_delta(deletes=deletes)
    update.validate_data_files_exist(data).validate_no_conflicts("id = 3", from_snapshot_id=read, isolation="snapshot")
    with pytest.raises(sm.CommitConflictError, match="removed a data file that the new position deletes are about"):
        change.commit()
    assert rows_of(table.refresh()) == ROWS


def test_replaced_files_have_new_deletes(interpreted: SparkSession, catalog: sm.Catalog) -> None:
    """A file is replaced by its rows as of an older snapshot.

    They include a row that was deleted since, outside of the filter.
    """
    table = table_of(interpreted, catalog, 2, "copy-on-write")
    read = table.current_snapshot().snapshot_id
    old = table.inspect.data_files()
    new = on_branch(table, "b", "id = 5")[1]
    table = table.refresh().equality_delete(frame(interpreted, [(2, "a", None)]).select("id"), ["id"])
    change = table.transaction()
    update = change.update_snapshot().row_delta(added=new, removed=old.select("file_path"))
    update.validate_no_conflicts("id = 5", from_snapshot_id=read)
    with pytest.raises(sm.CommitConflictError, match="deletes"):
        change.commit()
    assert rows_of(table.refresh()) == [row for row in ROWS if row[0] != 2]


def test_two_snapshots_of_one_update(interpreted: SparkSession, catalog: sm.Catalog) -> None:
    table = table_of(interpreted, catalog, 2)
    first = table.current_snapshot().snapshot_id
    second = table.append(frame(interpreted, ROWS)).current_snapshot().snapshot_id
    update = table.transaction().update_snapshot().validate_no_conflicts(from_snapshot_id=first)
    update.validate_no_conflicts(from_snapshot_id=first)
    with pytest.raises(sm.ValidationError, match=f"from_snapshot_id is {second} and was {first}: they must be equal"):
        update.validate_no_conflicts(from_snapshot_id=second)
