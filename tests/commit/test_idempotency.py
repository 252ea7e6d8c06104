"""A commit with an idempotency key happens once, however often it is repeated, and after any failure."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitStateUnknownError, SparkmetaError, ValidationError
from sparkmeta.spec.summary import summary_of
from tests.commit.tables import QUICK
from tests.commit.test_transaction import SCHEMA, SPEC, files
from tests.faults import Fault, FaultyFiles, FaultyWriter, Killed, Kind, faults, tasks_use, through
from tests.maintain.test_expire import files_below, soon

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from sparkmeta import Transaction

QUERY, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
# The number of faults in the slice, for each kind of table.
SLICE = 8
Key = tuple[str, int]


@pytest.fixture(params=[3, 4])
def table(request: pytest.FixtureRequest, interpreted: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    properties = QUICK | {"commit.retry.min-wait-ms": "1"}
    return catalog.create_table(
        "db.t", SCHEMA, SPEC, properties=properties, format_version=request.param, spark=interpreted
    )


def add(
    table: sm.Table,
    number: int,
    key: Any = None,
    properties: Mapping[str, str] | None = None,
    branch: str | None = None,
) -> Transaction[sm.Table]:
    """Return a committed transaction that adds a file."""
    with table.transaction() as tx:
        tx.update_snapshot(branch, properties, idempotency_key=key).append(files(table.state.spark, number))
    return tx


def numbers(table: sm.Table) -> list[int]:
    paths = [row.file_path for row in table.inspect.data_files().select("file_path").collect()]
    return sorted(int(path.removeprefix("/data/f")) for path in paths)


def head(table: sm.Table, ref: str = "main") -> int:
    return table.refs()[ref].snapshot_id


def test_versions_count_in_the_history_of_a_branch(table: sm.Table, caplog: pytest.LogCaptureFixture) -> None:
    folder, empty = Path(table.location().removeprefix("file:")), table
    first = table = add(table, 1, ("app", 5)).commit()
    assert {"idempotency.application": "app", "idempotency.version": "5"}.items() <= summary_of(
        table.current_snapshot()
    ).items()
    before = files_below(folder)
    # A stale table finds the commit when its own one is refused.
    for version, base in ((5, table), (4, table), (5, empty), (0, empty)):
        caplog.clear()
        tx = add(base, 2, ("app", version))
        assert tx.repetition_of is not None
        assert tx.repetition_of.snapshot_id == head(table)
        assert tx.commit().metadata == table.metadata
        assert f"snapshot {head(table)} has recorded its idempotency key" in caplog.text
    assert files_below(folder) == before
    tx = add(table, 2, ("app", 6))
    assert tx.repetition_of is None
    table = add(tx.commit(), 3, ("another", 0)).commit()
    table = add(table, 4).commit()
    assert numbers(table) == [1, 2, 3, 4]
    assert [table.committed_version(name) for name in ("app", "another", "none")] == [6, 0, None]
    table.manage_snapshots().create_branch(head(first), "old").commit()
    table = add(table.refresh(), 5, ("app", 6), branch="old").commit()
    assert table.committed_version("app", branch="old") == 6
    assert table.committed_version("another", branch="old") is None
    # A commit can be repeated after a rollback, or after its snapshot has expired.
    table.manage_snapshots().replace_branch("main", head(first)).commit()
    table = add(table.refresh(), 6, ("another", 0)).commit()
    assert numbers(table) == [1, 6]
    table = add(table, 7).commit().maintenance.expire_snapshots(older_than=soon()).commit()
    assert table.committed_version("another") is None


def test_a_query_and_its_epoch_are_a_key(table: sm.Table) -> None:
    table = add(table, 1, properties={QUERY: "q", EPOCH: "3"}).commit()
    for key, properties in (
        (None, {QUERY: "q", EPOCH: "3"}),
        (None, {QUERY: "q", EPOCH: "2"}),
        (("q", 3), None),
        (("q", 3), {QUERY: "q", EPOCH: "3"}),
    ):
        assert add(table, 2, key, properties).commit() is table
    table = add(table, 2, properties={QUERY: "q"}).commit()
    table = add(table, 3, properties={QUERY: "q", EPOCH: "4"}).commit()
    table = add(table, 4, ("q", 5)).commit()
    assert add(table, 5, properties={QUERY: "q", EPOCH: "5"}).commit() is table
    assert numbers(table) == [1, 2, 3, 4]
    # Snapshots of other writers may have any value there.
    table = add(table, 5, properties={"idempotency.version": "x"}).commit()
    assert table.committed_version("q") == 5


def stream(table: sm.Table, epoch: int, number: int, branch: str = "main") -> Transaction[sm.Table]:
    """Return the committed transaction of a batch that adds a file."""
    return add(table, number, properties={QUERY: "q", EPOCH: str(epoch)}, branch=branch)


def expired(table: sm.Table) -> sm.Table:
    return table.refresh().maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()


def test_an_epoch_outlives_its_snapshot(table: sm.Table) -> None:
    table = stream(table, 3, 1).commit()
    first = head(table)
    table = expired(add(table, 2).commit())
    assert [snapshot.snapshot_id for snapshot in table.snapshots()] == [head(table)] != [first]
    for epoch in (2, 3):
        tx = stream(table, epoch, 3)
        assert tx.repetition_of is not None
        assert (tx.repetition_of.snapshot_id, tx.commit()) == (first, table)
    assert add(table, 3, ("q", 3)).commit() is table
    assert [table.committed_version(name) for name in ("q", "other")] == [3, None]
    table.manage_snapshots().create_branch(head(table), "other").commit()
    assert stream(table.refresh(), 3, 4, "other").repetition_of is None
    second = head(table)
    table = stream(table.refresh(), 4, 3).commit()
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    table = stream(table.refresh(), 4, 5).commit()
    assert numbers(table) == [1, 2, 5]


@pytest.mark.parametrize("table", [1, 3], indirect=True)
def test_an_epoch_of_a_tagged_snapshot_behind_expired_ones(table: sm.Table) -> None:
    """The tagged snapshot still exists, but the branch's history does not reach it.

    Version 1 is upgraded on the way.
    """
    table = stream(table, 10, 1).commit()
    tagged = head(table)
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    table = add(table.refresh(), 2).commit()
    if table.format_version == 1:
        table = table.maintenance.upgrade(2).commit()
    table = expired(add(table, 3).commit())
    assert {snapshot.snapshot_id for snapshot in table.snapshots()} == {tagged, head(table)}
    assert table.committed_version("q") == 10
    tx = stream(table, 10, 4)
    assert tx.repetition_of == table.snapshot_by_id(tagged)
    assert tx.commit() is table
    table = stream(table, 11, 4).commit()
    assert numbers(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("table", [1, 3], indirect=True)
def test_epochs_are_done_again_after_a_rollback_and_an_expiry(table: sm.Table) -> None:
    """The branch is rolled back to a snapshot that records an earlier epoch, or none."""
    table = stream(table, 1, 1).commit()
    first = head(table)
    table = stream(stream(table, 2, 2).commit(), 3, 3).commit()
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table = expired(table)
    assert [snapshot.snapshot_id for snapshot in table.snapshots()] == [first]
    assert table.committed_version("q") == 1
    assert stream(table, 1, 4).commit() is table
    table = expired(add(stream(table, 2, 5).commit(), 6).commit())
    other = head(table)
    assert table.committed_version("q") == 2
    table = stream(table, 3, 7).commit()
    undone = head(table)
    table.manage_snapshots().rollback_to_snapshot(other).commit()
    table = add(table.refresh(), 8).commit()
    for current in (table, table.maintenance.expire_snapshots(snapshot_ids=[undone]).commit()):
        assert current.committed_version("q") is None
    table = stream(table, 3, 9).commit()
    other = head(table)
    table = stream(table, 5, 10).commit()
    table.manage_snapshots().rollback_to_snapshot(other).commit()
    # The history decides, even for a snapshot without a property, since Iceberg's own sink sets none.
    table = expired(add(table.refresh(), 11, ("q", 4)).commit())
    assert len(table.snapshots()) == 1
    table = stream(table, 5, 12).commit()
    assert numbers(table) == [1, 5, 6, 8, 9, 11, 12]


@pytest.mark.parametrize(
    ("key", "properties", "problem"),
    [
        *((key, None, "idempotency_key is .*: expected a tuple of") for key in (
            "app", ("app",), ("app", "1"), ("app", -1), ("app", True), ("app", 1 << 63), ("", 1), (1, 1), ["app", 1]
        )),
        (None, {QUERY: "q", EPOCH: "x"}, "epochId'] is 'x': expected a whole number"),
        (None, {QUERY: "q", EPOCH: str(1 << 63)}, "expected a whole number"),
        (("q", 1), {QUERY: "q", EPOCH: "2"}, r"idempotency_key is \('q', 1\), and .* the key \('q', 2\)"),
    ],
)  # fmt: skip
def test_keys_that_can_not_be(table: sm.Table, key: Any, properties: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        add(table, 1, key, properties)
    with pytest.raises(ValidationError, match=problem):
        table.delete("id = 1", idempotency_key=key, snapshot_properties=properties)
    assert table.refresh() == table


def test_a_transaction_is_repeated_as_a_whole(table: sm.Table) -> None:
    spark, key = table.state.spark, ("app", 1)

    def run(base: sm.Table, number: int) -> Transaction[sm.Table]:
        with base.transaction() as tx:
            tx.update_snapshot().append(files(spark, number))
            for other in (number + 1, number + 2):
                tx.update_snapshot(idempotency_key=key).append(files(spark, other))
            tx.set_properties({"by": str(number)})
        return tx

    tx = run(table, 1)
    done = tx.commit()
    assert tx.repetition_of is None
    assert (numbers(done), done.properties["by"]) == ([1, 2, 3], "1")
    for base in (done, table):
        assert run(base, 4).commit().metadata == done.metadata
    tx = done.transaction()
    tx.update_snapshot(idempotency_key=key)
    with pytest.raises(ValidationError, match=r"is \('app', 2\).* change is \('app', 1\): expected one key"):
        tx.update_snapshot(idempotency_key=("app", 2))


def test_what_is_picked_keeps_its_key(table: sm.Table) -> None:
    table = add(table, 1).commit()
    table.manage_snapshots().create_branch(head(table), "audit").commit()
    table = add(table.refresh(), 2, ("app", 1), branch="audit").commit()
    table = add(table, 3).commit()
    picked = head(table, "audit")
    table.manage_snapshots().cherry_pick(picked).commit()
    table = table.refresh()
    assert numbers(table) == [1, 2, 3]
    assert add(table, 4, ("app", 1)).commit() is table
    table = add(table, 5, ("app", 2), branch="audit").commit()
    table = add(table, 6, ("app", 2)).commit()
    with pytest.raises(ValidationError, match=r"has the idempotency key \('app', 2\), which snapshot \d+ on main has"):
        table.manage_snapshots().cherry_pick(head(table, "audit")).commit()


def test_a_commit_is_made_once_whatever_fails(
    table: sm.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool
) -> None:
    """The commit is repeated after each fault, with the table before it and with the table after it."""
    spark, location = table.state.spark, table.location()
    expected: list[int] = []

    def once(number: int, driver: FaultyFiles) -> None:
        add(through(sm.load_table(location, spark=spark), driver), number, ("app", number))

    def counted(driver: FaultyFiles) -> None:
        expected.append(len(expected))
        once(expected[-1], driver)

    tasks_use(monkeypatch, FaultyWriter(folder=str(tmp_path)))
    counted(FaultyFiles())
    candidates = [*faults(counted)]
    for fault in candidates if soak else random.Random(table.format_version).sample(candidates, SLICE):
        number = len(expected)
        expected.append(number)
        stale = sm.load_table(location, spark=spark)
        with suppress(OSError, SparkmetaError, Killed):
            once(number, FaultyFiles(fault=fault))
        for base in (stale, sm.load_table(location, spark=spark)):
            table = add(base, number, ("app", number)).commit()
            assert numbers(table) == expected, str(fault)
        assert len(table.snapshots()) == len(expected)


def test_rows_are_appended_once_after_a_lost_answer(
    table: sm.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, location, key = table.state.spark, table.location(), ("app", 1)
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, s STRING").coalesce(1)
    tasks_use(monkeypatch, FaultyWriter(folder=str(tmp_path)))
    counting = FaultyFiles()
    other = sm.load_table(add(table, 1, ("app", 0)).commit().location(), spark=spark)
    through(other, counting).append(rows)
    publish = next(index for index, (name, _) in enumerate(counting.operations) if name == "publish")
    for stale in (False, True):
        base = sm.load_table(location, spark=spark)
        lost = through(base, FaultyFiles(fault=Fault(publish, Kind.ANSWER_LOST, lasting=True)))
        with pytest.raises(CommitStateUnknownError):
            lost.append(rows, idempotency_key=key)
        newest = sm.load_table(location, spark=spark)
        before = files_below(Path(location.removeprefix("file:")))
        with (base if stale else newest).transaction() as tx:
            tx.append(rows, idempotency_key=key)
        assert tx.repetition_of == newest.current_snapshot()
        assert tx.commit().metadata == newest.metadata
        assert files_below(Path(location.removeprefix("file:"))) == before
        key = ("app", 2)
