"""A retried commit writes only a new root, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, CommitFailedError
from sparkmeta.manifests.v4.root import LEAVES
from sparkmeta.storage.files import LocalFiles
from tests.commit.tables import with_properties
from tests.commit.test_transaction import SCHEMA, SPEC, commit, files, live, vectors, written

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
Change = Callable[[Any], Any]

LEAF_LIMITS = {"write.tree.direct-files": "0", "write.tree.inline-vector-bytes": "0"}
ROOT_LIMITS = {"write.tree.direct-files": "100", "write.tree.flush-data-files": "2"}


@pytest.fixture
def empty(spark: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    quick = {"commit.retry.min-wait-ms": "1"}
    return catalog.create_table("db.t", SCHEMA, SPEC, properties=quick, format_version=4, spark=spark)


def orphans(table: sm.Table) -> set[str]:
    """Return the metadata files that neither a snapshot nor a version of the table names."""
    used = {"version-hint.text", *(path.rpartition("/")[2] for path in metadata_files(table))}
    for snapshot in table.snapshots():
        state = table.state.at(snapshot)
        assert state.tree is not None
        locations = state.tree.root.table.column("location").drop_null().to_pylist()
        used |= {location.rpartition("/")[2] for location in (*locations, snapshot.root_manifest)}
    return {name for name in written(table) if name not in used and not name.startswith(".")}


def metadata_files(table: sm.Table) -> list[str]:
    return [table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)]


def named(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(f"/data/f{number}",) for number in ids], "file_path string")


def leaves(table: sm.Table) -> set[str]:
    assert table.state.tree is not None
    return set(table.state.tree.root.of(LEAVES).column("location").to_pylist())


def test_a_search_opens_only_what_others_wrote(
    empty: sm.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = commit(empty, lambda tx: tx.set_properties(LEAF_LIMITS))
    for number in range(6):
        table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, number)))  # noqa: B023
    stale, known = table, leaves(table)
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 7)))
    opened: list[str] = []
    read_range = LocalFiles.read_range

    def counted(self: LocalFiles, location: str, offset: int, size: int) -> bytes:
        opened.append(location)
        return read_range(self, location, offset, size)

    monkeypatch.setattr(LocalFiles, "read_range", counted)
    table = commit(stale, lambda tx: tx.update_snapshot().delete(named(spark, 2, 4)))
    assert live(table) == ["f0", "f1", "f3", "f5", "f7"]
    # The footer and some columns of each leaf are read once. Nothing of the other commit's leaf is read: all files were
    # found.
    first = [location for location in opened if location in known]
    assert len({*opened}) <= len(known) + 1
    assert first == opened[: len(first)]


@pytest.mark.parametrize("limits", [LEAF_LIMITS, ROOT_LIMITS], ids=["leaves", "root"])
@pytest.mark.parametrize("change", ["append", "delete", "filter", "vectors", "partitions"])
def test_nothing_stays_of_an_attempt_that_lost(
    empty: sm.Table, spark: SparkSession, tmp_path: Path, limits: dict[str, str], change: str
) -> None:
    table = commit(empty, lambda tx: tx.set_properties(limits))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0, 1, 2)))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 3, part="b")))
    changes: dict[str, tuple[Change, list[str]]] = {
        "append": (
            lambda tx: tx.update_snapshot().append(files(spark, 5, 6)),
            ["f0", "f1", "f2", "f3", "f5", "f6", "f9"],
        ),
        "delete": (lambda tx: tx.update_snapshot().delete(named(spark, 1)), ["f0", "f2", "f3", "f9"]),
        "filter": (lambda tx: tx.update_snapshot().delete(row_filter="s = 'b'"), ["f0", "f1", "f2", "f9"]),
        "vectors": (
            lambda tx: tx.update_snapshot().row_delta(deletes=vectors(spark, tmp_path, "v.puffin", f1=[1], f2=[3])),
            ["f0", "f1", "f2", "f3", "f9"],
        ),
        "partitions": (
            lambda tx: tx.update_snapshot().replace_partitions(files(spark, 7, part="b")),
            ["f0", "f1", "f2", "f7", "f9"],
        ),
    }
    run, expected = changes[change]
    stale = table
    commit(table, lambda tx: tx.update_snapshot().append(files(spark, 9, part="c")))
    table = commit(stale, run)
    assert live(table) == expected
    assert orphans(table) == set()
    assert [row.asDict() for row in table.check().collect()] == []


def test_a_flush_that_no_longer_fits_is_deleted(empty: sm.Table, spark: SparkSession) -> None:
    """The other commit removed a file that the first attempt had moved into a leaf."""
    table = commit(empty, lambda tx: tx.set_properties(ROOT_LIMITS))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0, 1, 2)))
    stale = table
    commit(table, lambda tx: tx.update_snapshot().delete(named(spark, 1)))
    table = commit(stale, lambda tx: tx.update_snapshot().append(files(spark, 5)))
    assert live(table) == ["f0", "f2", "f5"]
    assert not leaves(table)
    assert orphans(table) == set()


@pytest.mark.parametrize("direct", ["0", "100"])
def test_nothing_stays_of_a_commit_that_failed(empty: sm.Table, spark: SparkSession, direct: str) -> None:
    """Leaves, Puffin files and roots of all attempts are deleted, since none was committed."""
    limits = {**LEAF_LIMITS, "write.tree.direct-files": direct, "commit.retry.num-retries": "0"}
    table = commit(empty, lambda tx: tx.set_properties(limits))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0, 1, 2)))
    stale = table
    table = commit(table, lambda tx: tx.update_snapshot().delete(named(spark, 1)))
    before = written(table)
    with pytest.raises(CommitFailedError):
        commit(stale, lambda tx: tx.update_snapshot().append(files(spark, 5)).delete(named(spark, 2)))
    assert written(table) == before
    assert live(table.refresh()) == ["f0", "f2"]


def test_a_failed_transaction_can_be_committed_again(empty: sm.Table, spark: SparkSession) -> None:
    """Its files are deleted, so it writes them again."""
    table = commit(empty, lambda tx: tx.set_properties(LEAF_LIMITS))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0)))
    tx = table.transaction()
    tx.update_snapshot().append(files(spark, 5, 6)).delete(named(spark, 9))
    with pytest.raises(sm.ValidationError, match="/data/f9 is not a live file"):
        tx.commit()
    other = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 9)))
    again = other.transaction()
    again._steps = tx._steps
    table = again.commit()
    assert live(table) == ["f0", "f5", "f6"]
    assert orphans(table) == set()


def with_property(table: sm.Table, name: str, value: str) -> sm.Table:
    """Return the table with a property that another library has set."""
    version = table.operations.commit(table.version, with_properties(table.metadata, **{name: value}))
    return table.at(version)


def test_a_success_that_can_not_be_checked_at_first_keeps_its_files(
    empty: sm.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication gets no response, and a property of the check is invalid."""
    table = with_property(empty, "commit.status-check.num-retries", "x")
    publish = LocalFiles.publish

    def lost(self: LocalFiles, location: str, data: bytes) -> None:
        publish(self, location, data)
        raise OSError("timeout")

    monkeypatch.setattr(LocalFiles, "publish", lost)
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0)))
    assert live(table.refresh()) == ["f0"]


@pytest.mark.parametrize("name", ["num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms"])
@pytest.mark.parametrize("value", ["x", "9" * 5000])
def test_invalid_retries_are_refused_when_they_are_set(empty: sm.Table, name: str, value: str) -> None:
    key = f"commit.retry.{name}"
    with pytest.raises(sm.ValidationError, match=f"the table property {key} is '{value[:9]}.*expected a whole number"):
        commit(empty, lambda tx: tx.set_properties({key: value}))
    assert empty.refresh().metadata_location == empty.metadata_location
    # Other libraries set such values nevertheless.
    table = with_property(empty, key, value)
    assert commit(table, lambda tx: tx.set_properties(a="b")).properties["a"] == "b"
    assert key not in commit(table, lambda tx: tx.remove_properties(key)).properties


def test_a_negative_number_of_retries_is_none(empty: sm.Table, spark: SparkSession) -> None:
    table = commit(empty, lambda tx: tx.set_properties({"commit.retry.num-retries": "-1"}))
    commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0)))
    with pytest.raises(CommitFailedError):
        commit(table, lambda tx: tx.update_snapshot().append(files(spark, 1)))


def test_a_file_that_another_commit_removed(empty: sm.Table, spark: SparkSession) -> None:
    table = commit(empty, lambda tx: tx.set_properties(LEAF_LIMITS))
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 0, 1)))
    stale = table
    table = commit(table, lambda tx: tx.update_snapshot().delete(named(spark, 1)))
    with pytest.raises((CommitConflictError, sm.ValidationError), match="/data/f1 is not a live file"):
        commit(stale, lambda tx: tx.update_snapshot().delete(named(spark, 1)))
    assert live(table.refresh()) == ["f0"]


def test_a_root_that_loses_what_it_gains_stays_flat(empty: sm.Table, spark: SparkSession) -> None:
    """Each commit appends a day and drops another: leaves without live entries leave the root without a compaction."""
    table = commit(empty, lambda tx: tx.set_properties({"write.tree.direct-files": "0"}))
    sizes = []
    for day in range(1000 if SOAK else 8):
        table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, day, part=f"{day:04d}")))  # noqa: B023
        if day >= 2:
            old = f"s = '{day - 2:04d}'"
            table = commit(table, lambda tx: tx.update_snapshot().delete(row_filter=old))  # noqa: B023
            assert table.state.tree is not None
            sizes.append(len(table.state.tree.root.table))
    assert set(sizes) == {sizes[-1]}
    assert len(live(table)) == 2
