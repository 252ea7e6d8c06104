"""Faults amid changes of rows of tables with manifest lists: the table has the old or the new rows, and all its files.

`make test` runs one fault for each kind of change. SPARKMETA_STEPS runs that number for each on each kind of table,
chosen with SPARKMETA_SEED, and SPARKMETA_SOAK=1 runs all.
"""

from __future__ import annotations

import errno
import os
import random
import re
import zlib
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.types import LongType
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitStateUnknownError, SparkmetaError, proves_failure
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.write import deletes
from tests.commit.tables import QUICK
from tests.faults import Fault, FaultyFiles, FaultyWriter, Killed, Kind, faults, tasks_use, through
from tests.local_files import local_path
from tests.maintain.test_expire import files_below, planned_paths
from tests.peers.slices import SOAK
from tests.write.list_files import reached_files
from tests.write.test_changes import BY_PART, MODES, SCHEMA, Rows, frame, ordinary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

STEPS, SEED = int(os.environ.get("SPARKMETA_STEPS", "0")), os.environ.get("SPARKMETA_SEED", "1")
KINDS = [(1, MODES[0]), *((version, mode) for version in (2, 3) for mode in MODES)]
BASE: Rows = [row for row in ordinary(0, 20) if row[0] != 1]
NEW: Rows = ordinary(30, 36)
KEYED: Rows = [(4, "b", 1), (100, "c", 3)]


# -- changes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A change of the rows `BASE`.

    Attributes:
        rows: the rows afterwards.
        snapshots: the number of snapshots that the change makes.
        since: the first format version with the change.
    """

    run: Callable[[sm.Table], Any]
    rows: Rows
    snapshots: int = 1
    since: int = 1


def rows(table: sm.Table, values: Rows) -> DataFrame:
    return frame(table.state.spark, values).coalesce(1)


def merge(table: sm.Table) -> Any:
    merge = table.merge(rows(table, KEYED), ["id"]).when_matched("target.n > 10").delete()
    return merge.when_not_matched().insert_all().merge()


def two_changes(table: sm.Table) -> Any:
    with table.transaction() as tx:
        tx.delete("id >= 4 and id < 6")
        tx.append(rows(table, NEW))
        tx.set_properties({"changed": "yes"})


CASES = {
    "append": Case(lambda table: table.append(rows(table, NEW)), [*BASE, *NEW]),
    "overwrite": Case(
        lambda table: table.overwrite(rows(table, NEW), "part = 'a' or id = 13"),
        [*(row for row in BASE if row[1] != "a" and row[0] != 13), *NEW],
    ),
    "delete": Case(
        lambda table: table.delete("part = 'a' or id = 13"),
        [row for row in BASE if row[1] != "a" and row[0] != 13],
    ),
    "update": Case(
        lambda table: table.update({"n": F.lit(-1)}, "id < 5"),
        [(i, part, -1 if i < 5 else n) for i, part, n in BASE],
    ),
    "upsert": Case(
        lambda table: table.upsert(rows(table, KEYED), ["id"]), [*(row for row in BASE if row[0] != 4), *KEYED]
    ),
    "merge": Case(merge, [*(row for row in BASE if row[0] != 4), KEYED[1]]),
    "equality_delete": Case(
        lambda table: table.equality_delete(rows(table, KEYED), ["id"]), [row for row in BASE if row[:2] != (4, "b")],
        since=2,
    ),
    "rewrite_data_files": Case(
        lambda table: table.maintenance.rewrite_data_files(rewrite_all=True).commit(), BASE
    ),
    "two changes": Case(two_changes, [*(row for row in BASE if not 4 <= row[0] < 6), *NEW], snapshots=2),
    "schema": Case(lambda table: table.update_schema().add_column("x", LongType()).commit(), BASE, snapshots=0),
}  # fmt: skip


# -- a table that is put back -----------------------------------------------------------------------------------------


@dataclass
class Stage:
    """A table before a change, to which it can be reset."""

    spark: SparkSession
    location: str
    contents: dict[str, bytes]

    @staticmethod
    def of(spark: SparkSession, folder: Path, version: int, mode: str) -> Stage:
        """Create a table with two appends and a deleted row, whose changes are made in a mode."""
        catalog = sm.load_catalog("test", type="hadoop", warehouse=str(folder))
        catalog.create_namespace("db")
        properties = QUICK | {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
        properties |= {"commit.retry.min-wait-ms": "1"}
        table = catalog.create_table(
            "db.t", SCHEMA, BY_PART, format_version=version, properties=properties, spark=spark
        )
        for first in (0, 10):
            table = table.append(rows(table, ordinary(first, first + 10)))
        table = table.delete("id = 1")
        stage = Stage(spark, table.location(), {})
        stage.contents = stage.read()
        return stage

    @property
    def folder(self) -> Path:
        return Path(local_path(self.location))

    def read(self) -> dict[str, bytes]:
        return {path: Path(path).read_bytes() for path in files_below(self.folder)}

    def reset(self) -> None:
        files = files_below(self.folder)
        for path in files - self.contents.keys():
            Path(path).unlink()
        for path, data in self.contents.items():
            if path not in files or Path(path).stat().st_size != len(data) or path.endswith((".text", ".json")):
                Path(path).write_bytes(data)

    def table(self) -> sm.Table:
        return sm.load_table(self.location, spark=self.spark)

    def orphans(self) -> set[str]:
        """Return the orphans that the table's own search finds."""
        soon = datetime.now(UTC) + timedelta(hours=1)
        return planned_paths(self.table().maintenance.remove_orphan_files(older_than=soon, force=True).to_df())


@dataclass(frozen=True)
class State:
    """The state of a table's folder.

    Attributes:
        reached: the files that its metadata names.
        there: the files in the folder.
    """

    rows: Rows
    snapshots: int
    metadata_location: str
    reached: set[str]
    there: set[str]

    @staticmethod
    def of(stage: Stage, table: sm.Table | None = None) -> State:
        """Read a table, and check that every file that it names has its recorded size."""
        table = table or stage.table()
        paths = reached_files(table) | {f"{stage.folder}/metadata/version-hint.text"}
        columns = ("id", "part", "n", *(["_row_id"] if table.metadata.format_version > 2 else []))
        read = sorted(map(tuple, table.scan(selected_fields=columns).to_df().collect()), key=repr)
        if len(columns) > 3:
            ids = {row[3] for row in read}
            assert len(ids) == len(read)
            assert all(row_id < table.metadata.next_row_id for row_id in ids)
        there = files_below(stage.folder)
        return State([row[:3] for row in read], len(table.snapshots()), table.metadata_location, paths, there)


@pytest.fixture(scope="module")
def stages(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Stage]:
    """Return the tables that tests have requested, by version and mode."""
    return {}


@pytest.fixture
def stage_of(
    interpreted: SparkSession, stages: dict[tuple[int, str], Stage], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[int, str]], Stage]:
    def stage(kind: tuple[int, str]) -> Stage:
        if kind not in stages:
            stages[kind] = Stage.of(interpreted, tmp_path_factory.mktemp("lists"), *kind)
        stages[kind].reset()
        return stages[kind]

    return stage


def cases() -> Iterator[Any]:
    """Yield all changes on tables of all kinds, or each change on a table of one kind."""
    for name, case in CASES.items():
        kinds = [kind for kind in KINDS if kind[0] >= case.since]
        chosen = kinds if SOAK or STEPS else [kinds[zlib.crc32(name.encode()) % len(kinds)]]
        for version, mode in chosen:
            yield pytest.param(name, (version, mode), id=f"{name}-v{version}-{mode}")


def some_of(candidates: Sequence[Any], name: str, few: int) -> Sequence[Any]:
    """Return `few` of the faults, or SPARKMETA_STEPS, chosen with the name as the seed; all in the long form."""
    count = STEPS or (len(candidates) if SOAK else few)
    return random.Random(f"{name} {SEED}").sample(candidates, min(count, len(candidates)))


def attempt(run: Callable[[], object]) -> str:
    """Return the outcome of a change: killed, unknown, failed or committed."""
    try:
        run()
    except Killed:
        return "killed"
    except CommitStateUnknownError:
        return "unknown"
    except (SparkmetaError, OSError, PySparkException):
        return "failed"
    return "committed"


# Operations that find and delete files of a failed change.
CLEANING = {"list", "delete_many"}
# The kinds of left-over files for which the table's own search has been tested.
SEARCHED: set[frozenset[str]] = set()


def check(stage: Stage, case: Case, before: State, outcome: str, said: str, log: str) -> State:
    """Check that the table is unchanged or the change complete, and left-over files are orphans that the log names."""
    after = State.of(stage)
    done = after.metadata_location != before.metadata_location
    assert after.snapshots == before.snapshots + (case.snapshots if done else 0), said
    assert after.rows == (sorted(case.rows, key=repr) if done else before.rows), said
    assert done or outcome != "committed", said
    assert not done or outcome != "failed", said
    left = after.there - after.reached
    kinds = frozenset(kind_of(path) for path in left)
    if kinds and kinds not in SEARCHED:
        SEARCHED.add(kinds)
        assert stage.orphans() == left, said
    if outcome != "killed":
        unnamed = [path for path in left if not is_named(path, log)]
        assert not unnamed, said
    return after


def kind_of(path: str) -> str:
    """Return the kind of a file, by its name."""
    return re.sub(r"[0-9a-f-]{8,}|\d+", "#", Path(path).name)


def is_named(path: str, log: str) -> bool:
    """Return whether a log names a file, or has a pattern of its name."""
    name = Path(path).name
    patterns = [each for listed in re.findall(r"files named (.+?) (?:may|stay)", log) for each in listed.split(", ")]
    return name in log or any(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.mark.parametrize(("name", "kind"), [*cases()])
def test_each_fault_of_a_change(
    stage_of: Callable[[tuple[int, str]], Stage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    kind: tuple[int, str],
) -> None:
    stage, case, sound = stage_of(kind), CASES[name], FaultyWriter(folder=str(tmp_path))
    before = State.of(stage)
    assert before.rows == sorted(BASE, key=repr)
    tasks_use(monkeypatch, sound)
    of_driver = list(faults(lambda files: case.run(through(stage.table(), files))))
    written = sound.operations
    of_tasks = [
        Fault(n, way, operation) for n, operation in enumerate(written) for way in (Kind.FAILS, Kind.ANSWER_LOST)
    ]
    whole = State.of(stage)
    assert whole.rows == sorted(case.rows, key=repr)
    assert whole.there == whole.reached
    candidates = [*(("driver", fault) for fault in of_driver), *(("task", fault) for fault in of_tasks)]
    outcomes: dict[str, int] = {}
    for process, fault in some_of(candidates, f"{name} {kind}", 1):
        stage.reset()
        sound.forget()
        caplog.clear()
        tasks_use(monkeypatch, FaultyWriter(folder=str(tmp_path), fault=fault) if process == "task" else sound)
        driver = FaultyFiles(fault=fault if process == "driver" else None)
        table = through(stage.table(), driver)
        outcome = attempt(lambda table=table: case.run(table))  # type: ignore[misc]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        description = f"{name} {kind}: {process} {fault}: {outcome}"
        after = check(stage, case, before, outcome, description, caplog.text)
        assert not {local_path(location) for location in driver.deleted} & after.reached, description
        if outcome == "failed" and process == "driver" and not fault.lasting and fault.operation not in CLEANING:
            assert after.there == before.there, description
        is_unchanged = after.metadata_location == before.metadata_location
        if is_unchanged and (SOAK or STEPS or zlib.crc32(description.encode()) % 3 == 0):
            tasks_use(monkeypatch, sound)
            case.run(through(stage.table(), FaultyFiles()))
            again = State.of(stage)
            assert again.rows == whole.rows, description
    print(f"{name} {kind}: {len(candidates)} faults; these ran: {outcomes}")  # noqa: T201  the figures of `make soak`


# -- a full disk ------------------------------------------------------------------------------------------------------


@dataclass
class FullDisk(FaultyFiles):
    """Files on a disk that is full after a number of files whose names match a pattern.

    Attributes:
        room: the number of these files that fit.
    """

    pattern: str = "no file"
    room: int = 0
    is_full: bool = False

    def _do(self, name: str, location: str, act: Callable[[], Any]) -> Any:
        writes = name in {"write_new", "publish", "overwrite"}
        if writes and re.search(self.pattern, location):
            self.is_full |= not self.room
            self.room -= 1
        with no_room(writes and self.is_full):
            return super()._do(name, location, act)


class FullWriter(ExecutorWriter):
    """The tasks' writer on a full disk. The size of its data files is limited by /dev/full."""

    def open_new(self, location: str) -> Any:
        super().open_new(location).close()
        return pa.OSFile("/dev/full", "wb")

    def write_new(self, location: str, data: bytes) -> None:
        with no_room(True):
            super().write_new(location, data)


@contextmanager
def no_room(is_full: bool) -> Iterator[None]:
    """Let no file reach the disk, as a file system reports at the latest when a file is synced."""
    problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch("os.fsync", side_effect=problem) if is_full else nullcontext():
        yield


# The files to be written when the disk is full -> the pattern of the driver's files, or None for files of tasks.
FULL = {
    "data files": None,
    "deletes by tasks": None,
    "deletes": r"-deletes\.\w+$|\.puffin$",
    "manifest": r"/\d+-1-m-",
    "manifest list": "/snap-",
    "metadata": r"\.metadata\.json$",
}


@pytest.mark.parametrize("version", [2, 3] if SOAK or STEPS else [2])
def test_a_full_disk(
    stage_of: Callable[[tuple[int, str]], Stage],
    monkeypatch: pytest.MonkeyPatch,
    version: int,
) -> None:
    """Whichever file does not fit, the change fails and leaves no file and no changed one. With room, it succeeds."""
    stage, case = stage_of((version, MODES[1])), CASES["update"]
    for kind, pattern in FULL.items():
        change = (lambda table: table.delete("id > 4 and id < 9")) if kind == "deletes by tasks" else case.run
        with pytest.MonkeyPatch.context() as limits:
            limits.setattr(deletes, "_DRIVER_BYTES", -1 if kind == "deletes by tasks" else deletes._DRIVER_BYTES)
            tasks_use(limits, FullWriter() if pattern is None else ExecutorWriter())
            # The first of several position delete files is written.
            disk = FullDisk(pattern=pattern or "no file", room=int(kind == "deletes" and version == 2))
            with pytest.raises(Exception, match="No space left on device") as raised:
                change(through(stage.table(), disk))
        assert isinstance(raised.value, OSError), kind
        assert proves_failure(raised.value), kind
        assert disk.is_full is (pattern is not None), kind
        assert stage.read() == stage.contents, kind
    tasks_use(monkeypatch, ExecutorWriter())
    case.run(through(stage.table(), FullDisk()))
    assert State.of(stage).rows == sorted(case.rows, key=repr)
