"""Appends of several threads and processes to one table: they are committed together, in turn, and none is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.commit import group_commit, process_turns
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.sql import SqlOperations
from tests.maintain.test_expire import files_below

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.schema([("id", pa.int64()), ("part", pa.int64())])
LAYOUTS = [(1, "proposal"), (2, "proposal"), (3, "proposal"), (4, "proposal"), (4, "iceberg")]
THREADS = 6


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "part": [number % 2 for number in ids]}, ROWS)


def opened(folder: Path, kind: str = "hadoop") -> sm.Catalog:
    properties = {"hadoop": {}, "sql": {"uri": f"sqlite:///{folder}/catalog.db"}}[kind]
    return sm.load_catalog("c", type=kind, warehouse=folder.as_uri(), **properties)


def new_table(
    folder: Path, version: int = 2, layout: str = "proposal", *, kind: str = "hadoop", **properties: str
) -> sm.Table:
    catalog = opened(folder, kind)
    catalog.create_namespace("db")
    texts = {"write.tree.layout": layout} if version == 4 else {}
    texts |= {name.replace("__", ".").replace("_", "-"): text for name, text in properties.items()}
    return catalog.create_table("db.t", ROWS, partition_by=["part"], format_version=version, properties=texts)


def ids(table: sm.Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("id").to_pylist())


def data_files(table: sm.Table) -> set[str]:
    return {str(path) for path in files_below(Path(table.location().removeprefix("file://"), "data"))}


class Gate:
    """Holds the next commit of this process to a file system table until `opened` is set.

    Attributes:
        commits: the number of commits that were tried.
        does: called in place of the commits that follow the gate, if it is set.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened, self.commits = threading.Event(), threading.Event(), 0
        self.does: Any = None
        gate, commit = self, FileSystemOperations.commit

        def held(*arguments: Any) -> Any:
            gate.commits += 1
            if gate.commits == 1:
                gate.reached.set()
                assert gate.opened.wait(30)
            elif gate.does is not None:
                return gate.does(lambda: commit(*arguments))
            return commit(*arguments)

        monkeypatch.setattr(FileSystemOperations, "commit", held)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def behind_a_gate(
    monkeypatch: pytest.MonkeyPatch, changes: list[Any], *, does: Any = None, waits: bool = True
) -> tuple[list[Any], Gate]:
    """Run changes in threads, all but the first while the first commits. Return their results or errors.

    Args:
        does: see `Gate`.
        waits: whether the others wait for the first one.
    """
    gate = Gate(monkeypatch)
    gate.does = does
    results: list[Any] = [None] * len(changes)

    def run(number: int) -> None:
        try:
            results[number] = changes[number]()
        except BaseException as error:  # noqa: BLE001  the test looks at it
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(changes))]
    threads[0].start()
    assert gate.reached.wait(30)
    for thread in threads[1:]:
        thread.start()
    if waits:
        until(lambda: sum(len(queue.waiting) for queue in group_commit._queues.of_table.values()) == len(changes) - 1)
    else:
        for thread in threads[1:]:
            thread.join(60)
    gate.opened.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results, gate


# -- Threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("kind", ["hadoop", "sql"])
@pytest.mark.parametrize(("version", "layout"), LAYOUTS)
def test_threads_that_append(tmp_path: Path, version: int, layout: str, kind: str, shares: bool) -> None:
    """Each thread sees its rows in the table that its append returns."""
    created = new_table(tmp_path, version, layout, kind=kind, write__append__share_snapshots=str(shares))

    def work(worker: int) -> None:
        table = created if worker % 2 else created.refresh()
        for step in range(4):
            batch = [worker * 100 + step * 10 + index for index in range(5)]
            table = table.append(rows(*batch))
            assert set(batch) <= set(ids(table))

    with ThreadPoolExecutor(THREADS) as pool:
        [*pool.map(work, range(THREADS))]
    table = created.refresh()
    assert ids(table) == sorted(w * 100 + s * 10 + i for w in range(THREADS) for s in range(4) for i in range(5))
    assert not table.arrow.check().to_pylist()
    snapshots = table.snapshots()
    assert len(snapshots) < 24 if shares else len(snapshots) == 24
    assert sum(int(s.summary["added-records"]) for s in snapshots if s.summary) == 120
    numbers = [snapshot.sequence_number for snapshot in snapshots]
    assert version == 1 or numbers == [*range(1, len(snapshots) + 1)]
    if version >= 3:
        row_ids = table.scan(selected_fields=("_row_id",)).to_arrow().column("_row_id").to_pylist()
        assert sorted(row_ids) == [*range(120)]


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(("version", "layout"), LAYOUTS)
def test_appends_that_wait_are_committed_together(
    tmp_path: Path, version: int, layout: str, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One metadata file has all of them; other snapshot properties and branches have snapshots of their own."""
    table = new_table(tmp_path, version, layout, write__append__share_snapshots=str(shares)).append(rows(0))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "b").commit()
    table = table.refresh()
    changes: list[Any] = [lambda number=number: table.append(rows(number)) for number in (1, 2, 3)]
    # Another object of the same table.
    changes.append(lambda: opened(tmp_path).load_table("db.t").append(rows(4)))
    changes.append(lambda: table.append(rows(5), snapshot_properties={"job": "x"}))
    changes.append(lambda: table.append(rows(6), branch="b"))
    results, gate = behind_a_gate(monkeypatch, changes)
    assert [type(result) for result in results] == [sm.Table] * 6
    assert gate.commits == 2
    table = table.refresh()
    assert len({result.metadata_location for result in results}) == 2
    assert results[-1].metadata_location == table.metadata_location
    assert ids(table) == [0, 1, 2, 3, 4, 5]
    assert sorted(table.scan(snapshot_id=table.metadata.refs["b"].snapshot_id).to_arrow()["id"].to_pylist()) == [0, 6]
    jobs = [snapshot.summary["job"] for snapshot in table.snapshots() if snapshot.summary]
    assert [job for job in jobs if job] == ["x"]
    assert len(table.snapshots()) == (5 if shares else 7)
    assert not table.arrow.check().to_pylist()


def test_an_append_that_fails_does_not_harm_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path).append(rows(0))
    described = table.inspect.arrow.files()
    changes = [lambda number=number: table.append(rows(number)) for number in (1, 2)]

    def again() -> Any:
        with table.transaction() as tx:
            tx.update_snapshot().append(described)

    for shares in ("false", "true"):
        table = table.refresh()
        table.transaction().set_properties({"write.append.share-snapshots": shares}).commit()
        table = table.refresh()
        with monkeypatch.context() as patch:
            results, _ = behind_a_gate(patch, [changes[0], again, changes[1]])
        assert isinstance(results[0], sm.Table)
        assert isinstance(results[1], sm.ValidationError)
        assert described["file_path"][0].as_py() in str(results[1])
        assert isinstance(results[2], sm.Table)
    table = table.refresh()
    assert ids(table) == [0, 1, 1, 2, 2]
    assert len(data_files(table)) == 5
    assert not table.arrow.check().to_pylist()


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
def test_all_threads_get_an_unknown_outcome(tmp_path: Path, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted: the table has the rows although each thread got the error."""
    table = new_table(tmp_path, write__append__share_snapshots=str(shares))

    def unknown(commit: Any) -> Any:
        commit()
        raise sm.CommitStateUnknownError("no answer")

    changes = [lambda number=number: table.append(rows(number)) for number in range(4)]
    results, _ = behind_a_gate(monkeypatch, changes, does=unknown)
    assert [type(result) for result in results] == [sm.Table, *[sm.CommitStateUnknownError] * 3]
    assert len({id(error) for error in results}) == 4
    assert ids(table.refresh()) == [0, 1, 2, 3]


def test_all_threads_get_a_lost_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files are deleted, and nothing is tried again."""
    table = new_table(tmp_path, commit__retry__num_retries="0")

    def lost(_: Any) -> Any:
        raise sm.CommitFailedError("another commit came first")

    changes = [lambda number=number: table.append(rows(number)) for number in range(4)]
    results, gate = behind_a_gate(monkeypatch, changes, does=lost)
    assert [type(result) for result in results] == [sm.Table, *[sm.CommitFailedError] * 3]
    assert gate.commits == 2
    table = table.refresh()
    assert ids(table) == [0]
    assert len(data_files(table)) == 1


def test_the_thread_that_commits_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others don't wait for ever, and know that the outcome is unknown. Later appends are committed."""
    table = new_table(tmp_path)

    def interrupted(commit: Any) -> Any:
        commit()
        raise KeyboardInterrupt

    changes = [lambda number=number: table.append(rows(number)) for number in range(4)]
    with monkeypatch.context() as patch:
        results, _ = behind_a_gate(patch, changes, does=interrupted)
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["CommitStateUnknownError", "CommitStateUnknownError", "KeyboardInterrupt", "Table"]
    assert ids(table.refresh().append(rows(9))) == [0, 1, 2, 3, 9]


@pytest.mark.parametrize("interrupted", [1, 2], ids=["next", "last"])
def test_a_thread_that_waits_is_interrupted(tmp_path: Path, interrupted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, whether or not it would have committed for them."""
    table, waits = new_table(tmp_path), threading.Event.wait
    threads: list[threading.Thread] = []

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if len(threads) > interrupted and threading.current_thread() is threads[interrupted]:
            until(lambda: group_size() == 2)
            raise KeyboardInterrupt
        return waits(event, timeout)

    def group_size() -> int:
        return sum(len(queue.waiting) for queue in group_commit._queues.of_table.values())

    gate, errors = Gate(monkeypatch), list[type[BaseException]]()

    def append(number: int) -> None:
        try:
            table.append(rows(number))
        except BaseException as error:  # noqa: BLE001  the test looks at it
            errors.append(type(error))

    threads += [threading.Thread(target=append, args=(number,)) for number in range(3)]
    threads[0].start()
    assert gate.reached.wait(30)
    monkeypatch.setattr(threading.Event, "wait", wait)
    threads[1].start()
    until(lambda: group_size() == 1)
    threads[2].start()
    threads[interrupted].join(30)
    assert group_size() == 1
    gate.opened.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert errors == [KeyboardInterrupt]
    assert ids(table.refresh().append(rows(9))) == sorted({0, 1, 2, 9} - {interrupted})


def test_tables_of_a_catalog_that_are_loaded_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their appends are committed together as well. A table that can't be committed to raises its error."""
    new_table(tmp_path, kind="sql")
    catalog = opened(tmp_path, "sql")
    gate, commit = threading.Barrier(2), SqlOperations.commit
    monkeypatch.setattr(SqlOperations, "commit", lambda *arguments: (gate.wait(30), commit(*arguments))[1])
    started = [threading.Thread(target=catalog.load_table("db.t").append, args=(rows(0),))]
    started[0].start()
    until(lambda: bool(group_commit._queues.of_table))
    for number in (1, 2):
        started.append(threading.Thread(target=catalog.load_table("db.t").append, args=(rows(number),)))
        started[number].start()
    until(lambda: sum(len(queue.waiting) for queue in group_commit._queues.of_table.values()) == 2)
    gate.wait(30)
    gate.wait(30)
    for thread in started:
        thread.join(30)
    monkeypatch.undo()
    table = catalog.load_table("db.t")
    assert ids(table) == [0, 1, 2]
    assert len({entry.timestamp_ms for entry in table.metadata.metadata_log}) == 2, "created, and the first commit"
    with pytest.raises(sm.UnsupportedError, match="opened by its path"):
        sm.load_table(table.metadata_location).append(rows(1))


def test_a_process_that_is_forked_while_a_thread_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has no thread to wait for."""
    table = new_table(tmp_path)
    gate = Gate(monkeypatch)
    thread = threading.Thread(target=lambda: table.append(rows(0)))
    thread.start()
    assert gate.reached.wait(30)
    monkeypatch.setattr(process_turns, "_LONGEST", 0.1)
    child = multiprocessing.get_context("fork").Process(target=lambda: table.append(rows(1)))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    gate.opened.set()
    thread.join(60)
    assert ids(table.refresh()) == [0, 1]


def test_other_changes_are_committed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes, keys and transactions of several steps neither wait for appends nor join them."""
    table = new_table(tmp_path, 3, commit__retry__min_wait_ms="1").append(rows(0, 2))

    def two() -> Any:
        with table.transaction() as tx:
            tx.append(rows(5)).append(rows(6))

    changes = [
        lambda: table.append(rows(1)),
        lambda: table.delete("id = 0"),
        lambda: table.append(rows(3), idempotency_key=("loader", 1)),
        two,
    ]
    results, gate = behind_a_gate(monkeypatch, changes, waits=False)
    assert [error for error in results if isinstance(error, Exception)] == []
    assert gate.commits >= 5, "the first one lost to the others"
    assert ids(table.refresh()) == [1, 2, 3, 5, 6]


# -- Processes --------------------------------------------------------------------------------------------------------


WORKER = """
import sys, time
import pyarrow as pa
import sparkmeta as sm
from concurrent.futures import ThreadPoolExecutor
from tests.commit.test_group_commit import opened, rows
from pathlib import Path
folder, kind, worker, threads, steps = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
table = opened(folder, kind).load_table("db.t")
def work(thread):
    first = (worker * 100 + thread) * 1_000_000
    done = folder / f"done-{worker}-{thread}"
    lines = done.read_text().splitlines() if done.exists() else []
    mine, start = table, int(lines[-1].split()[1]) + 1 if lines else 0
    with done.open("a") as log:
        for step in range(start, steps):
            log.write(f"begin {step}\\n")
            log.flush()
            mine = mine.append(rows(first + step))
            log.write(f"done {step}\\n")
            log.flush()
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(work, range(threads)))
"""


def started(folder: Path, kind: str, worker: int, threads: int, steps: int) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    numbers = [str(number) for number in (worker, threads, steps)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), kind, *numbers], cwd=root, env=environment)


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("kind", ["hadoop", "sql"])
@pytest.mark.parametrize("version", [2, 4])
def test_processes_that_are_killed(tmp_path: Path, version: int, kind: str, shares: bool, soak: bool) -> None:
    """Each acknowledged append is in the table once, and one that was under way at a kill at most once."""
    table = new_table(
        tmp_path, version, kind=kind, write__append__share_snapshots=str(shares), commit__retry__num_retries="50",
        commit__retry__min_wait_ms="10", commit__retry__max_wait_ms="200",
        write__metadata__delete_after_commit__enabled="true", write__metadata__previous_versions_max="5",
    )  # fmt: skip
    workers, threads, steps, kills = (4, 4, 160, 40) if soak else (2, 3, 12, 2)
    chance = random.Random(version)
    processes = [started(tmp_path, kind, worker, threads, steps) for worker in range(workers)]
    for _ in range(kills):
        time.sleep(chance.uniform(1, 4))
        victim = chance.randrange(workers)
        processes[victim].send_signal(signal.SIGKILL)
        processes[victim].wait()
        processes[victim] = started(tmp_path, kind, victim, threads, steps)
    assert [process.wait(1_800) for process in processes] == [0] * workers
    table = table.refresh()
    in_table = ids(table)
    assert len(in_table) == len({*in_table})
    for worker in range(workers):
        for thread in range(threads):
            lines = [line.split() for line in (tmp_path / f"done-{worker}-{thread}").read_text().splitlines()]
            first = (worker * 100 + thread) * 1_000_000
            committed = {first + int(step) for word, step in lines if word == "done"}
            begun = {first + int(step) for word, step in lines}
            mine = {number for number in in_table if number // 1_000_000 == worker * 100 + thread}
            assert committed <= mine <= begun
            assert mine >= {first + step for step in range(steps)} - (begun - committed)
    assert not table.arrow.check().to_pylist()


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of locks, which other tests don't use."""
    folder = tmp_path / "turns"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_process_waits_for_its_turn(tmp_path: Path, turns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It then begins with the version of the other process, so that it does not lose; and waits only for some time."""
    fcntl = pytest.importorskip("fcntl")
    table = new_table(tmp_path / "w").append(rows(0))
    (lock,) = [path for path in turns.rglob("*") if path.is_file()]
    assert lock.read_text() == table.metadata_location
    other = table.append(rows(1))
    attempts: list[str] = []
    commit = FileSystemOperations.commit
    monkeypatch.setattr(
        FileSystemOperations, "commit", lambda *args: (attempts.append(args[1].metadata_location), commit(*args))[1]
    )
    table = table.append(rows(2))
    assert attempts == [other.metadata_location]
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: table.append(rows(3)))
        waiting.start()
        until(lambda: len(data_files(table)) == 4)
        time.sleep(0.1)
        assert len(attempts) == 1
        fcntl.flock(held, fcntl.LOCK_UN)
        waiting.join(30)
        assert len(attempts) == 2
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(process_turns, "_LONGEST", 0.1)
        table = table.append(rows(4))
    assert ids(table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("damage", ["folder", "text", "missing", "unreadable", "full"])
def test_locks_that_can_not_be_used(tmp_path: Path, turns: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append needs no lock, and succeeds if its version can't be recorded."""
    table = new_table(tmp_path / "w").append(rows(0))
    (lock,) = [path for path in turns.rglob("*") if path.is_file()]
    if damage == "text":
        lock.write_bytes(b"\xff\x00 no location")
    elif damage in ("unreadable", "full"):

        def refused(*_: object) -> int:
            raise OSError("no space left on device")

        monkeypatch.setattr(os, "pread" if damage == "unreadable" else "pwrite", refused)
    else:
        lock.unlink()
    if damage == "folder":
        lock.mkdir()
    if damage == "missing":
        lock.parent.rmdir()
        lock.parent.write_bytes(b"a file")
    assert ids(table.append(rows(1)).append(rows(2))) == [0, 1, 2]
