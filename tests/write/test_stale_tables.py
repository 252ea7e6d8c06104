"""Writes by a `Table` of a version that has since been cleaned up by an expiry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from sparkmeta.errors import CommitConflictError
from tests.write.test_changes import BY_PART, frame, ordinary
from tests.write.test_equality_deletes import new_table, sorted_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    import sparkmeta as sm


def expired(table: sm.Table) -> sm.Table:
    """Expire all but the last snapshot, and the schemas and specs that it does not need."""
    older_than = int(time.time() * 1000) + 1_000
    plan = table.refresh().maintenance.expire_snapshots(older_than=older_than, clean_expired_metadata=True)
    return plan.commit()


def unpartitioned(table: sm.Table) -> sm.Table:
    with table.update_spec() as update:
        update.remove_field("part")
    return table.refresh()


def rows_of(table: sm.Table) -> list[tuple[object, ...]]:
    return sorted_rows(table.scan().to_df().collect())


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("written_before", [True, False])
def test_files_of_a_removed_partition_spec(
    version: int, written_before: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Metadata trees keep all specs, so that only their commit succeeds."""
    stale = new_table(spark, tmp_path, version)
    transaction = stale.transaction()
    if written_before:
        transaction.append(frame(spark, ordinary(0, 4)))
    table = expired(unpartitioned(stale).append(frame(spark, ordinary(4, 8))))
    if not written_before:
        transaction.append(frame(spark, ordinary(0, 4)))
    if version == 4:
        assert rows_of(transaction.commit()) == sorted_rows(ordinary(0, 8))
        return
    assert table.specs().keys() == {1}
    files = {path.name for path in tmp_path.rglob("*.avro")}
    with pytest.raises(CommitConflictError, match="others have removed schemas or partition specs"):
        transaction.commit()
    assert {path.name for path in tmp_path.rglob("*.avro")} == files
    assert rows_of(table.refresh().append(frame(spark, ordinary(0, 4)))) == sorted_rows(ordinary(0, 8))


@pytest.mark.parametrize("version", [2, 3])
def test_rewritten_files_of_a_removed_partition_spec(version: int, spark: SparkSession, tmp_path: Path) -> None:
    stale = unpartitioned(new_table(spark, tmp_path, version).append(frame(spark, ordinary(0, 8))))
    stale = stale.overwrite(frame(spark, ordinary(0, 4))).append(frame(spark, ordinary(4, 8)))
    plan = stale.maintenance.rewrite_data_files(output_spec_id=0, rewrite_all=True)
    assert expired(stale).specs().keys() == {1}
    with pytest.raises(CommitConflictError, match="others have removed schemas or partition specs"):
        plan.commit()
    assert rows_of(stale.refresh()) == sorted_rows(ordinary(0, 8))


@pytest.mark.parametrize("version", [2, 3])
def test_equality_deletes_of_a_dropped_column(version: int, spark: SparkSession, tmp_path: Path) -> None:
    """An expiry keeps a schema with the column, by which the delete's values are compared."""
    table = new_table(spark, tmp_path, version, UNPARTITIONED_PARTITION_SPEC).append(frame(spark, ordinary(0, 8)))
    table = table.equality_delete(frame(spark, ordinary(0, 2)).select("n"), ["n"])
    table.update_schema().delete_column("n").commit()
    rows = rows_of(table.refresh().append(frame(spark, ordinary(8, 10)).select("id", "part")))
    assert len(rows) < 10
    cleaned = expired(table)
    assert rows_of(cleaned) == rows
    rewritten = cleaned.maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert rows_of(rewritten) == rows


@pytest.mark.parametrize("version", [2, 3])
def test_equality_deletes_of_a_column_whose_schema_is_removed(
    version: int, spark: SparkSession, tmp_path: Path
) -> None:
    stale = new_table(spark, tmp_path, version, UNPARTITIONED_PARTITION_SPEC)
    transaction = stale.transaction().equality_delete(frame(spark, ordinary(0, 2)).select("n"), ["n"])
    stale.update_schema().delete_column("n").commit()
    table = expired(stale.refresh().append(frame(spark, ordinary(0, 4)).select("id", "part")))
    with pytest.raises(CommitConflictError, match="others have removed schemas or partition specs"):
        transaction.commit()
    assert len(rows_of(table.refresh())) == 4


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_expired_snapshot(version: int, spark: SparkSession, tmp_path: Path) -> None:
    """The first attempt would read the deleted manifests of a snapshot."""
    stale = new_table(spark, tmp_path, version, BY_PART).append(frame(spark, ordinary(0, 4)))
    table = expired(stale.append(frame(spark, ordinary(4, 8))))
    assert len(table.metadata.snapshots) == 1
    assert rows_of(stale.append(frame(spark, ordinary(8, 10)))) == sorted_rows(ordinary(0, 10))
