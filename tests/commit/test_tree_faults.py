"""Faults at every file operation of commits to a tree: the table has the old or the new state, with all its files.

`make test` runs a seeded few for each kind of commit, and SPARKMETA_SOAK=1 all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.errors import CommitFailedError, CommitStateUnknownError
from sparkmeta.manifests.v4.layout import read_manifest
from sparkmeta.manifests.v4.root import Root, read_root
from sparkmeta.storage.files import LocalFiles
from sparkmeta.storage.writing import is_temporary
from tests.commit.tables import QUICK
from tests.commit.test_transaction import SCHEMA, SPEC, commit, files
from tests.commit.tree_model import Reading, Store
from tests.faults import Fault, FaultyFiles, FaultyWriter, Killed, Kind, faults, tasks_use, through

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[[sm.Table, "SparkSession"], Any]


@dataclass(frozen=True)
class Case:
    """A kind of commit.

    Attributes:
        files: the number of data files before the commit; `commits` have added them.
        writes: the least number of leaves that tasks write.
        live: the names of the live files after the commit.
        leaves: the number of leaves after the commit.
    """

    properties: Mapping[str, int]
    files: int
    run: Run
    live: set[str]
    leaves: int = 0
    writes: int = 0
    commits: int = 1


def _append(*ids: int) -> Run:
    return lambda table, spark: commit(table, lambda tx: tx.update_snapshot().append(files(spark, *ids)))


def _delete(*ids: int) -> Run:
    paths = ", ".join(f"('/data/f{number}')" for number in ids)
    gone = f"SELECT * FROM VALUES {paths} AS t(file_path)"
    return lambda table, spark: commit(table, lambda tx: tx.update_snapshot().delete(spark.sql(gone)))


def _compact(table: sm.Table, _: SparkSession) -> None:
    table.maintenance.compact_manifests(min_leaf_ratio=1.0).commit()


def _names(*ids: int) -> set[str]:
    return {f"/data/f{number}" for number in ids}


CASES = {
    "small append": Case({}, 2, _append(7, 8), _names(0, 1, 7, 8)),
    "append of leaves": Case({"direct-files": 1}, 1, _append(7, 8), _names(0, 7, 8), leaves=1, writes=1),
    "delete in the root": Case({}, 3, _delete(0, 2), _names(1)),
    "delete in leaves": Case({"direct-files": 1, "inline-vector-bytes": 0}, 3, _delete(1), _names(0, 2), leaves=1),
    "flush": Case({"flush-data-files": 1}, 3, _append(7), _names(0, 1, 2, 7), leaves=1, writes=1),
    "compaction": Case({"direct-files": 1}, 4, _compact, _names(0, 1, 2, 3), leaves=1, writes=1, commits=2),
}


@dataclass
class Stage:
    """A table before a commit, to which it can be reset."""

    spark: SparkSession
    case: Case
    location: str
    scratch: Path
    initial_files: Mapping[str, bytes]

    @staticmethod
    def of(spark: SparkSession, case: Case, folder: Path) -> Stage:
        catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(folder))
        limits = {f"write.tree.{name}": str(value) for name, value in case.properties.items()}
        properties = QUICK | limits | {"commit.retry.min-wait-ms": "1"}
        table = catalog.create_table("db.t", SCHEMA, SPEC, properties=properties, format_version=4, spark=spark)
        for first in range(case.commits):
            _append(*range(first, case.files, case.commits))(sm.load_table(table.location(), spark=spark), spark)
        place = Path(table.location().removeprefix("file:")) / "metadata"
        initial_files = {path.name: path.read_bytes() for path in place.iterdir()}
        return Stage(spark, case, table.location(), folder, initial_files)

    @property
    def folder(self) -> Path:
        return Path(self.location.removeprefix("file:")) / "metadata"

    def reset(self) -> None:
        for path in self.folder.iterdir():
            if path.name not in self.initial_files:
                path.unlink()
        for name, data in self.initial_files.items():
            (self.folder / name).write_bytes(data)
        FaultyWriter(folder=str(self.scratch)).forget()

    def commit(self, driver: FaultyFiles) -> None:
        table = sm.load_table(self.location, spark=self.spark)
        table = through(table, driver)
        self.case.run(table, self.spark)


def all_faults(stage: Stage, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, Fault]]:
    """Yield the faults of the driver and of the tasks."""
    writer = FaultyWriter(folder=str(stage.scratch))
    tasks_use(patch, writer)
    stage.reset()
    for fault in list(faults(stage.commit)):
        yield "driver", fault
    written = len(writer.operations)
    assert written >= stage.case.writes
    assert bool(written) == bool(stage.case.writes)
    for number in range(written):
        for kind in (Kind.FAILS, Kind.ANSWER_LOST):
            yield "task", Fault(number, kind, "write_new")


@pytest.mark.parametrize("name", CASES)
def test_each_fault_of_a_commit(
    interpreted: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, soak: bool
) -> None:
    stage = Stage.of(interpreted, CASES[name], tmp_path)
    old, commits = _names(*range(CASES[name].files)), CASES[name].commits
    before = TableState.of(stage)
    candidates = list(all_faults(stage, monkeypatch))
    kinds: dict[str, int] = {}
    for process, fault in candidates if soak else some_of(candidates, name):
        stage.reset()
        tasks_use(monkeypatch, FaultyWriter(folder=str(tmp_path), fault=fault if process == "task" else None))
        driver = FaultyFiles(fault=fault if process == "driver" else None)
        outcome = attempt(stage, driver)
        kinds[outcome] = kinds.get(outcome, 0) + 1
        description = f"{name}: {process} {fault}: {outcome}"
        after = TableState.of(stage)
        done = after.snapshots > commits
        assert after.snapshots == commits + done, description
        assert after.live == (CASES[name].live if done else old), description
        assert done or outcome != "committed", description
        assert not done or outcome != "failed", description
        assert after.leaves == (CASES[name].leaves if done else before.leaves), description
        assert not driver.deleted & after.reached, description
        tasks_use(monkeypatch, FaultyWriter(folder=str(tmp_path)))
        if not done:
            stage.commit(FaultyFiles())
        last = TableState.of(stage)
        assert (last.live, last.snapshots, last.leaves) == (CASES[name].live, commits + 1, CASES[name].leaves), (
            description
        )
        assert not last.orphans & {f"{stage.location}/metadata/{file}" for file in stage.initial_files}, description
        assert all(is_of_a_commit(path) for path in last.orphans), description
    print(f"{name}: {len(candidates)} faults; these ran: {kinds}")  # noqa: T201  the figures of `make soak`


def some_of(candidates: list[tuple[str, Fault]], name: str) -> list[tuple[str, Fault]]:
    """Return two of the faults of writes, chosen with the name as the seed."""
    writes = [(process, fault) for process, fault in candidates if fault.operation in ("write_new", "publish")]
    return random.Random(name).sample(writes, 2)


def attempt(stage: Stage, driver: FaultyFiles) -> str:
    """Return the outcome of a commit: killed, unknown, failed or committed."""
    try:
        stage.commit(driver)
    except Killed:
        return "killed"
    except CommitStateUnknownError:
        return "unknown"
    except (CommitFailedError, OSError, PySparkException):
        return "failed"
    return "committed"


@dataclass(frozen=True)
class TableState:
    """The state of a table, by the files in its folder.

    Attributes:
        leaves: the number of leaves of the last snapshot.
        reached: the files that the metadata names.
        orphans: all other files.
    """

    live: set[str]
    snapshots: int
    leaves: int
    reached: set[str]
    orphans: set[str]

    @staticmethod
    def of(stage: Stage) -> TableState:
        table, disk = sm.load_table(stage.location, spark=stage.spark), LocalFiles()
        reached = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        live, leaves = set[str](), 0
        for snapshot in table.snapshots():
            assert snapshot.root_manifest is not None
            stamp = (snapshot.snapshot_id, snapshot.sequence_number, snapshot.first_row_id)
            data = disk.read(snapshot.root_manifest)
            types = table.state.types
            root = read_root(data, types.tree_types, snapshot.root_manifest, stamp, types.locations)
            reached |= {snapshot.root_manifest, *named_by(root)}
            live, leaves = {key.location for key in reading_of(root, table).live()}, len(root.leaves)
        assert all(disk.exists(path) for path in reached)
        reached.add(f"{stage.location}/metadata/version-hint.text")
        files = {f"{stage.location}/metadata/{path.name}" for path in stage.folder.iterdir()}
        return TableState(live, len(table.snapshots()), leaves, reached, files - reached)


def named_by(root: Root) -> set[str]:
    """Return the leaves of a root, and the Puffin files of their deletion vectors."""
    rows = root.table.select(["content_type", "location"]).to_pylist()
    return {row["location"] for row in rows if row["content_type"] in (3, 4, 5) and row["location"]}


def reading_of(root: Root, table: sm.Table) -> Reading:
    store, disk = Store(), LocalFiles()
    for leaf in root.leaves.column("location").to_pylist():
        store.leaves[leaf] = read_manifest(disk.read(leaf), table.state.types.stats_types, leaf)[0]
    rows = root.table.to_pylist()
    for row in rows:
        if row["content_type"] == 5 and row["location"]:
            vector = row["deletion_vector"]
            blob = disk.read(row["location"])[vector["offset"] :][: vector["size_in_bytes"]]
            store.blobs[row["location"], vector["offset"]] = blob
    return Reading(rows, store)


def is_of_a_commit(location: str) -> bool:
    """Return whether a file has a name of commits: a search for orphans may delete it when it is old."""
    name = location.rpartition("/")[2]
    kinds = ("-root-", "-leaf-", "-flush-", "-vectors-", "-compact-")
    return is_temporary(name) or any(kind in name for kind in kinds)
