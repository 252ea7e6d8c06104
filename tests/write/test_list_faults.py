"""Faults amid changes of rows of tables with manifest lists: the table has the old or the new rows, and all its files.

`make test` runs one fault for each kind of change. SPARKMETA_SOAK=1 runs all, or SPARKMETA_STEPS of each change and
table, chosen with SPARKMETA_SEED.
"""

from __future__ import annotations

import os
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyiceberg.types import LongType
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitStateUnknownError, SparkmetaError
from sparkmeta.session import local_frame
from sparkmeta.storage.location import local_path
from tests.commit.tables import QUICK
from tests.faults import Fault, FaultyFiles, FaultyWriter, Killed, Kind, faults, tasks_use, through
from tests.maintain.test_expire import files_below, planned_paths
from tests.peers.slices import SOAK
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
    """A change of the rows `BASE`. snapshots: how many it makes."""

    run: Callable[[sm.Table], Any]
    rows: Rows
    snapshots: int = 1
    since: int = 1


def rows(table: sm.Table, given: Rows) -> DataFrame:
    return frame(table.state.spark, given).coalesce(1)


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
        lambda table: table.overwrite(rows(table, NEW), "part = 'a' or id = 4"),
        [*(row for row in BASE if row[1] != "a" and row[0] != 4), *NEW],
    ),
    "delete": Case(
        lambda table: table.delete("part = 'a' or id = 4"),
        [row for row in BASE if row[1] != "a" and row[0] != 4],
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
    """A table before a change, to which it can be put back."""

    spark: SparkSession
    location: str
    contents: dict[str, bytes]
    shapes: set[frozenset[str]] = field(default_factory=set)

    @staticmethod
    def of(spark: SparkSession, folder: Path, version: int, mode: str) -> Stage:
        """Two appends, and a deleted row, of a table whose changes are made in a mode."""
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
        stage.contents = {path: Path(path).read_bytes() for path in files_below(stage.folder)}
        return stage

    @property
    def folder(self) -> Path:
        return Path(local_path(self.location))

    def reset(self) -> None:
        there = files_below(self.folder)
        for path in there - self.contents.keys():
            Path(path).unlink()
        for path, data in self.contents.items():
            if path not in there or Path(path).stat().st_size != len(data) or path.endswith((".text", ".json")):
                Path(path).write_bytes(data)

    def table(self) -> sm.Table:
        return sm.load_table(self.location, spark=self.spark)

    def orphans(self) -> set[str]:
        """As the table's own search finds them."""
        soon = datetime.now(UTC) + timedelta(hours=1)
        return planned_paths(self.table().maintenance.remove_orphan_files(older_than=soon, force=True).files())


@dataclass(frozen=True)
class State:
    """What is in a table's folder. reached: the files that its metadata names."""

    rows: Rows
    snapshots: int
    version: int
    reached: set[str]
    there: set[str]

    @staticmethod
    def of(stage: Stage) -> State:
        """Read a table; every file that it names is there, of the size that is noted for it."""
        table = stage.table()
        reached = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            assert snapshot.manifest_list is not None
            reached.add(snapshot.manifest_list)
            for manifest in avro_records(snapshot.manifest_list):
                reached.add(manifest["manifest_path"])
                assert Path(local_path(manifest["manifest_path"])).stat().st_size == manifest["manifest_length"]
                for entry in avro_records(manifest["manifest_path"]):
                    file = entry["data_file"]
                    size = Path(local_path(file["file_path"])).stat().st_size
                    assert size == file["file_size_in_bytes"], file["file_path"]
                    reached.add(file["file_path"])
        paths = {local_path(location) for location in reached} | {f"{stage.folder}/metadata/version-hint.text"}
        columns = ("id", "part", "n", *(["_row_id"] if table.metadata.format_version > 2 else []))
        read = sorted(map(tuple, table.scan(selected_fields=columns).to_df().collect()), key=repr)
        if len(columns) > 3:
            ids = {row[3] for row in read}
            assert len(ids) == len(read)
            assert all(row_id < table.metadata.next_row_id for row_id in ids)
        version = int(re.findall(r"/v(\d+)\.", table.metadata_location)[0])
        there = files_below(stage.folder)
        assert paths - {f"{stage.folder}/metadata/version-hint.text"} <= there
        return State([row[:3] for row in read], len(table.snapshots()), version, paths, there)


def avro_records(location: str) -> list[Any]:
    with Path(local_path(location)).open("rb") as file:
        return list(fastavro.reader(file))


@pytest.fixture(scope="module")
def stages(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Stage]:
    """The tables that were asked for so far, by version and mode."""
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
    """All changes on tables of all kinds, or each change on a table of one kind."""
    for name, case in CASES.items():
        kinds = [kind for kind in KINDS if kind[0] >= case.since]
        chosen = kinds if SOAK else [kinds[zlib.crc32(name.encode()) % len(kinds)]]
        for version, mode in chosen:
            yield pytest.param(name, (version, mode), id=f"{name}-v{version}-{mode}")


def some_of(candidates: Sequence[Any], name: str, few: int) -> Sequence[Any]:
    """So many of the faults, chosen with the name as the seed; in the long form all, or SPARKMETA_STEPS."""
    count = (STEPS or len(candidates)) if SOAK else few
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


def check(stage: Stage, case: Case, before: State, outcome: str, said: str, log: str) -> State:
    """The table is unchanged or the change is whole; what is left over are orphans, and named in the log."""
    after = State.of(stage)
    done = after.version > before.version
    assert after.version == before.version + done, said
    assert after.snapshots == before.snapshots + (case.snapshots if done else 0), said
    assert after.rows == (sorted(case.rows, key=repr) if done else before.rows), said
    assert done or outcome != "committed", said
    assert not done or outcome != "failed", said
    left = after.there - after.reached
    shape = frozenset(re.sub(r"[0-9a-f-]{20,}|\d+", "#", path.removeprefix(str(stage.folder))) for path in left)
    if shape and shape not in stage.shapes:
        stage.shapes.add(shape)
        assert stage.orphans() == left, said
    if outcome != "killed":
        unnamed = [path for path in left if not is_named(path, log)]
        assert not unnamed, said
    return after


def is_named(path: str, log: str) -> bool:
    """Whether a log names a file, or the part of its name that all files of a write have."""
    name = Path(path).name
    return name in log or any(write in name for write in re.findall(r"files named \*-([0-9a-f-]+)-\* may be left", log))


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
    of_tasks = [Fault(n, way, what) for n, what in enumerate(written) for way in (Kind.FAILS, Kind.ANSWER_LOST)]
    whole = State.of(stage)
    assert whole.rows == sorted(case.rows, key=repr)
    assert whole.there == whole.reached
    candidates = [*(("driver", fault) for fault in of_driver), *(("task", fault) for fault in of_tasks)]
    outcomes: dict[str, int] = {}
    for who, fault in some_of(candidates, f"{name} {kind}", 1):
        stage.reset()
        sound.forget()
        caplog.clear()
        tasks_use(monkeypatch, FaultyWriter(folder=str(tmp_path), fault=fault) if who == "task" else sound)
        driver = FaultyFiles(fault=fault if who == "driver" else None)
        table = through(stage.table(), driver)
        outcome = attempt(lambda table=table: case.run(table))  # type: ignore[misc]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        said = f"{name} {kind}: {who} {fault}: {outcome}"
        after = check(stage, case, before, outcome, said, caplog.text)
        assert not {local_path(location) for location in driver.deleted} & after.reached, said
        if after.version == before.version:
            tasks_use(monkeypatch, sound)
            case.run(through(stage.table(), FaultyFiles()))
            again = State.of(stage)
            assert again.rows == whole.rows, said
    print(f"{name} {kind}: {len(candidates)} faults, of which ran {outcomes}")  # noqa: T201  the figures of `make soak`
