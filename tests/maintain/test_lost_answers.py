"""Maintenance of tables whose catalog does not respond: no file that may be live is deleted, and a re-run finishes."""

from __future__ import annotations

import uuid
import zlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm
from sparkmeta.errors import CommitStateUnknownError
from tests.catalog.silent_servers import Server, silent_server
from tests.maintain.test_expire import files_below
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "part", StringType()))
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "write.metadata.previous-versions-max": "100"}


def now() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


JOBS: dict[str, Callable[[sm.Table], Any]] = {
    "expire_snapshots": lambda table: table.maintenance.expire_snapshots(older_than=now(), retain_last=2),
    "rewrite_position_delete_files": lambda table: table.maintenance.rewrite_position_delete_files(rewrite_all=True),
    "rewrite_data_files": lambda table: table.maintenance.rewrite_data_files(rewrite_all=True),
    "compute_partition_stats": lambda table: table.maintenance.compute_partition_stats(),
    "compute_table_stats": lambda table: table.maintenance.compute_table_stats(),
}
LIST_JOBS = JOBS | {
    "remove_dangling_deletes": lambda table: table.maintenance.remove_dangling_deletes(),
    "rewrite_manifests": lambda table: table.maintenance.rewrite_manifests(),
    "upgrade": lambda table: table.maintenance.upgrade(4, compact=True),
}
TREE_JOBS = JOBS | {
    "compact_manifests": lambda table: table.maintenance.compact_manifests(max_root_files=0),
    "downgrade": lambda table: table.maintenance.downgrade(3),
}


@dataclass(frozen=True)
class Stored:
    """A table on disk: the files of its folder with their contents, and its metadata file."""

    folder: Path
    contents: dict[Path, bytes]
    metadata_location: str

    def restore(self) -> None:
        """Write missing files, and remove new ones."""
        for path in map(Path, files_below(self.folder)):
            if path not in self.contents:
                path.unlink()
        for path, content in self.contents.items():
            if not path.exists():
                path.write_bytes(content)


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Stored]:
    """Return a table of each kind, by its format version: with appends, deletes of rows, and on v2 dangling deletes."""
    return {version: create(spark, tmp_path_factory.mktemp(f"v{version}"), version) for version in (2, 4)}


def create(spark: SparkSession, folder: Path, version: int) -> Stored:
    catalog = sm.load_catalog("base", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    location = f"file://{folder}/table"
    table = catalog.create_table(
        "db.t", SCHEMA, BY_PART, location=location, format_version=version, properties=MERGE_ON_READ, spark=spark
    )
    for start in (0, 10, 20):
        rows = [(number, "abc"[number % 3]) for number in range(start, start + 10)]
        table = table.append(spark.createDataFrame(rows, "id BIGINT, part STRING").coalesce(1))
    table = table.delete("id = 3 or id = 13")
    table = table.maintenance.rewrite_data_files("part = 'a'", rewrite_all=True).commit()
    table = table.delete("id = 4 or id = 6").delete("id = 24")
    contents = {path: path.read_bytes() for path in map(Path, files_below(folder / "table"))}
    return Stored(folder / "table", contents, table.metadata_location)


@pytest.fixture
def server(case: Case, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return silent_server(case.catalog, request, tmp_path, monkeypatch)


@pytest.fixture
def table(case: Case, server: Server, stored: dict[int, Stored], spark: SparkSession) -> sm.Table:
    """Return the stored table, under a new name in the catalog."""
    base = stored[case.version]
    base.restore()
    catalog = sm.load_catalog("tests", **server.properties)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    return catalog.register_table(f"{namespace}.t", base.metadata_location, spark)


@dataclass(frozen=True)
class Case:
    """A job on a table of a catalog."""

    catalog: str
    version: int
    job: str

    def __str__(self) -> str:
        return f"{self.catalog}-v{self.version}-{self.job}"

    def commit(self, table: sm.Table) -> sm.Table:
        after: sm.Table = (TREE_JOBS if self.version == 4 else LIST_JOBS)[self.job](table).commit()
        return after


# REST catalogs can't hold trees.
CASES = [
    *(Case("SQL", 2, job) for job in LIST_JOBS),
    *(Case("SQL", 4, job) for job in TREE_JOBS),
    *(Case("REST", 2, job) for job in LIST_JOBS if job != "upgrade"),
]
SLICE = CASES if SOAK else [case for case in CASES if zlib.crc32(str(case).encode()) % 9 == 0]


def rows_of(table: sm.Table) -> dict[int, Counter[Any]]:
    """Return the rows of each snapshot."""
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    return {
        snapshot_id: Counter(map(tuple, table.scan(snapshot_id=snapshot_id).to_df().collect())) for snapshot_id in ids
    }


def check(table: sm.Table, before: dict[int, Counter[Any]], current: int) -> None:
    """Check that the newest snapshot has the rows of the current one, and older snapshots their own rows."""
    after = rows_of(table)
    newest = table.current_snapshot()
    assert newest is not None
    assert after[newest.snapshot_id] == before[current]
    assert all(rows == before[snapshot_id] for snapshot_id, rows in after.items() if snapshot_id in before)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("case", SLICE, ids=str)
def test_an_unknown_outcome(case: Case, server: Server, table: sm.Table, stored: Any, is_done: bool) -> None:
    """The catalog goes down before it has reported whether the commit was executed."""
    folder, before, current = stored[case.version].folder, rows_of(table), table.metadata.current_snapshot_id
    files = files_below(folder)
    server.break_down(table, is_done=is_done, is_last=True)
    with pytest.raises(CommitStateUnknownError, match="may have been committed"):
        case.commit(table)
    server.mend()
    assert files <= files_below(folder), "nothing is deleted"
    later = table.refresh()
    assert (later.metadata_location != table.metadata_location) is is_done
    check(later, before, current)
    if is_done and case.job in ("upgrade", "downgrade"):
        return
    check(case.commit(later), before, current)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("case", SLICE, ids=str)
def test_a_lost_answer(case: Case, server: Server, table: sm.Table, is_done: bool) -> None:
    """The job looks up whether its commit was executed, and continues, or commits once more."""
    before, current = rows_of(table), table.metadata.current_snapshot_id
    server.break_down(table, is_done=is_done, is_last=False)
    after = case.commit(table)
    server.mend()
    assert after.metadata_location == table.refresh().metadata_location != table.metadata_location
    check(after, before, current)
