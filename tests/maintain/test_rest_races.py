"""Others commit to a table of a REST catalog while maintenance is planned or committed: nothing live is lost.

The catalog's requirements say less than a swap of the whole metadata file: it accepts commits whose base is outdated.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError
from sparkmeta.operations.rest import RestOperations
from tests.maintain.test_lost_answers import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", LongType()))
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
# The times of the other commits: after the plan, or after the table was loaded again to commit it.
WHEN = ["planned", "sent"]


@pytest.fixture
def table(rest_uri: str, spark: SparkSession) -> sm.Table:
    """Return a table with three rows in its first snapshot. Its second snapshot replaces them by two others."""
    catalog = sm.load_catalog("tests", type="rest", uri=rest_uri)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    table = catalog.create_table((namespace, "t"), SCHEMA, BY_PART, spark=spark)
    table = table.append(rows(table, 0, 1, 2))
    return table.overwrite(rows(table, 10, 11))


def rows(table: sm.Table, *ids: int) -> DataFrame:
    return table.state.spark.createDataFrame([(number, 0) for number in ids], "id BIGINT, part BIGINT").coalesce(1)


def ids(table: sm.Table, **options: int) -> list[int]:
    return sorted(row.id for row in table.scan(**options).to_df().collect())


def commit_while(plan: Any, others: Callable[[], object], when: str, monkeypatch: pytest.MonkeyPatch) -> sm.Table:
    """Commit a plan after other commits, and return the catalog's current version."""
    plan.summary()
    if when == "planned":
        others()
        after: sm.Table = plan.commit().refresh()
        return after
    send, waiting = RestOperations.commit, [others]

    def sent_after(self: RestOperations, *args: object) -> object:
        if waiting:
            waiting.pop()()
        return send(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RestOperations, "commit", sent_after)
    return plan.commit().refresh()


@pytest.mark.parametrize("when", WHEN)
def test_a_branch_goes_back(table: sm.Table, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    plan = table.maintenance.expire_snapshots(older_than=now())
    after = commit_while(
        plan, lambda: table.refresh().manage_snapshots().rollback_to_snapshot(first).commit(), when, monkeypatch
    )
    assert [snapshot.snapshot_id for snapshot in after.snapshots()] == [first]
    assert ids(after) == [0, 1, 2]
    assert plan.result()["committed"]["files"]["data file"] == 1, "that of the second snapshot"
    assert second not in {snapshot.snapshot_id for snapshot in after.snapshots()}


@pytest.mark.parametrize("when", WHEN)
def test_a_tag_moves_to_an_expiring_snapshot(table: sm.Table, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.manage_snapshots().create_tag(second, "keep").commit()
    table = table.refresh()
    plan = table.maintenance.expire_snapshots(older_than=now())
    after = commit_while(plan, lambda: table.manage_snapshots().replace_tag("keep", first).commit(), when, monkeypatch)
    assert after.refs()["keep"].snapshot_id == first
    assert ids(after, snapshot_id=first) == [0, 1, 2]


def test_a_new_tag_of_an_expiring_snapshot(table: sm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    first = table.snapshots()[0].snapshot_id
    plan = table.maintenance.expire_snapshots(older_than=now())
    after = commit_while(
        plan, lambda: table.manage_snapshots().create_tag(first, "keep").commit(), "planned", monkeypatch
    )
    assert after.refs()["keep"].snapshot_id == first
    assert ids(after, snapshot_id=first) == [0, 1, 2]


@pytest.mark.parametrize("when", WHEN)
def test_a_new_branch_of_an_expiring_snapshot(table: sm.Table, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol can't require that there is no such branch. Its files stay even if its oldest snapshot expires."""
    first = table.snapshots()[0].snapshot_id

    def branch_off() -> None:
        table.manage_snapshots().create_branch(first, "b").commit()
        table.refresh().append(rows(table, 3), branch="b")

    plan = table.maintenance.expire_snapshots(older_than=now(), retain_last=1)
    after = commit_while(plan, branch_off, when, monkeypatch)
    assert ids(after, snapshot_id=after.refs()["b"].snapshot_id) == [0, 1, 2, 3]
    assert ids(after) == [10, 11]


@pytest.mark.parametrize("when", WHEN)
def test_a_staged_snapshot_is_published(table: sm.Table, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    table = table.refresh().append(rows(table, 20), branch="audit")
    staged = table.refs()["audit"].snapshot_id
    table.manage_snapshots().remove_branch("audit").commit()
    table = table.refresh().append(rows(table, 30))
    plan = table.maintenance.expire_snapshots(older_than=now(), retain_last=10)
    after = commit_while(plan, lambda: table.manage_snapshots().cherry_pick(staged).commit(), when, monkeypatch)
    assert ids(after) == [10, 11, 20, 30]


def test_a_snapshot_expires_before_it_is_published(table: sm.Table) -> None:
    first = table.snapshots()[0].snapshot_id
    table.refresh().maintenance.expire_snapshots(older_than=now()).commit()
    with pytest.raises(sm.SparkmetaError, match=str(first)):
        table.manage_snapshots().cherry_pick(first).commit()
    assert ids(table.refresh()) == [10, 11]


@pytest.mark.parametrize("when", WHEN)
def test_an_old_spec_comes_into_use(table: sm.Table, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table.update_spec().add_field("id", "bucket[4]").commit()
    table = table.refresh().overwrite(rows(table, 20, 21))
    plan = table.maintenance.expire_snapshots(older_than=now(), clean_expired_metadata=True)

    def rewrite() -> None:
        table.refresh().maintenance.rewrite_data_files(rewrite_all=True, output_spec_id=0).commit()

    after = commit_while(plan, rewrite, when, monkeypatch)
    assert 0 in after.specs()
    assert ids(after) == [20, 21]


@pytest.mark.parametrize("when", WHEN)
def test_statistics_of_a_snapshot_that_expires(table: sm.Table, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol can't require that the snapshot exists.

    Statistics without a snapshot are removed by the next expiry.
    """
    plan = table.maintenance.compute_partition_stats()

    def expire() -> None:
        table.overwrite(rows(table, 5)).maintenance.expire_snapshots(older_than=now(), cleanup="none").commit()

    if when == "planned":
        with pytest.raises(CommitConflictError, match="has expired: it can't get statistics"):
            commit_while(plan, expire, when, monkeypatch)
        assert not table.refresh().metadata.partition_statistics
        return
    stale = commit_while(plan, expire, when, monkeypatch)
    (file,) = stale.metadata.partition_statistics
    again = stale.maintenance.expire_snapshots(older_than=now())
    assert again.commit().refresh().metadata.partition_statistics == []
    assert again.result()["committed"]["files"] == {"partition statistics file": 1}
    assert not Path(file.statistics_path.removeprefix("file:")).exists()
