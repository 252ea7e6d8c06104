"""Commits that lose to others again and again: each attempt looks only at what came since the last one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[sm.Table], Any]

ROWS = pa.schema([("id", pa.int64()), ("part", pa.int64())])
LOSSES = 6


def rows(*ids: int, part: int = 0) -> pa.Table:
    return pa.table({"id": ids, "part": [part] * len(ids)}, ROWS)


def new_table(folder: Path, version: int) -> sm.Table:
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(folder))
    properties = {
        "write.delete.mode": "merge-on-read",
        "commit.retry.num-retries": "20",
        "commit.retry.min-wait-ms": "1",
    }
    table = catalog.create_table("db.t", ROWS, partition_by=["part"], format_version=version, properties=properties)
    return table.append(rows(*range(10)))


class Overtaken:
    """Commits something else before each of the next commits of a table."""

    def __init__(
        self, table: sm.Table, monkeypatch: pytest.MonkeyPatch, changes: list[Callable[[sm.Table], Any]]
    ) -> None:
        self.table, self.changes, self.commit = table, changes, FileSystemOperations.commit
        self.attempts, self.is_other = 0, False
        overtaken = self

        def commit(*arguments: Any) -> Any:
            if not overtaken.is_other:
                overtaken.attempts += 1
                if overtaken.changes:
                    overtaken.is_other = True
                    try:
                        overtaken.changes.pop(0)(overtaken.table.refresh())
                    finally:
                        overtaken.is_other = False
            return overtaken.commit(*arguments)

        monkeypatch.setattr(FileSystemOperations, "commit", commit)


def appended(number: int) -> Change:
    return lambda table: table.append(rows(100 + number, part=1))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_others_wrote_is_read_once(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt reads the lists or roots of commits that came since the last attempt, not those before."""
    table = new_table(tmp_path, version)
    overtaken = Overtaken(table, monkeypatch, [appended(number) for number in range(LOSSES)])
    read, reads = LocalFiles.read, Counter[str]()

    def counted(files: LocalFiles, location: str) -> bytes:
        if not overtaken.is_other and ("snap-" in location or "root" in location):
            reads[location] += 1
        return read(files, location)

    monkeypatch.setattr(LocalFiles, "read", counted)
    after = table.delete("id = 3", isolation="serializable")
    assert overtaken.attempts == LOSSES + 1
    assert sorted(after.scan().to_arrow().column("id").to_pylist()) == sorted(
        {*range(10), *range(100, 100 + LOSSES)} - {3}
    )
    assert reads
    assert max(reads.values()) <= 4, reads


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("place", [0, 3, LOSSES])
def test_a_conflict_is_seen_whenever_it_comes(
    tmp_path: Path, version: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path, version)
    changes = [appended(number) for number in range(LOSSES)]
    changes.insert(place, lambda table: table.append(rows(3)))
    overtaken = Overtaken(table, monkeypatch, changes)
    with pytest.raises(CommitConflictError, match="added data that may match"):
        table.delete("id = 3", isolation="serializable")
    assert overtaken.attempts == place + 1
    assert sorted(table.refresh().scan("id = 3").to_arrow().column("id").to_pylist()) == [3, 3]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("place", [0, 2])
def test_a_transaction_of_two_snapshots(
    tmp_path: Path, version: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second change looks at what others committed before the first one's snapshot, in each attempt."""
    table = new_table(tmp_path, version)
    changes = [appended(number) for number in range(3)]
    changes.insert(place, lambda table: table.append(rows(50, part=2)))
    Overtaken(table, monkeypatch, changes)
    (removed,) = table.inspect.arrow.data_files().column("file_path").to_pylist()
    transaction = table.transaction()
    transaction.append(rows(7, part=7))
    update = transaction.update_snapshot()
    update.delete(pa.table({"file_path": [removed]})).validate_no_conflicts("part = 2", isolation="serializable")
    with pytest.raises(CommitConflictError, match="added data that may match"):
        transaction.commit()
    assert 50 in table.refresh().scan().to_arrow().column("id").to_pylist()


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_branch_that_is_set_back(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history no longer has the last attempt's head, and what came instead is looked at."""
    table = new_table(tmp_path, version)
    first = table.current_snapshot()
    assert first is not None

    def set_back(table: sm.Table) -> None:
        with table.manage_snapshots() as snapshots:
            snapshots.set_current_snapshot(first.snapshot_id)

    changes: list[Change] = [appended(1), set_back, lambda table: table.append(rows(3))]
    Overtaken(table, monkeypatch, changes)
    with pytest.raises(CommitConflictError, match="added data that may match"):
        table.delete("id = 3", isolation="serializable")
