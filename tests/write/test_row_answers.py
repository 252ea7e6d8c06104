"""Changes of rows of tables whose catalog does not respond: they are complete or not made, and lose no file."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitStateUnknownError
from tests.catalog.silent_servers import Server, silent_server
from tests.maintain.test_expire import planned_paths, soon
from tests.peers.slices import SOAK
from tests.write.test_changes import MODES
from tests.write.test_list_faults import CASES, Stage, State, is_named

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CHANGES = ("append", "overwrite", "delete", "update", "upsert", "merge", "equality_delete", "two changes")


@dataclass(frozen=True)
class Case:
    """A change of a table of a catalog.

    Attributes:
        is_last: whether the catalog does not respond after the commit either.
    """

    catalog: str
    version: int
    mode: str
    change: str
    is_done: bool
    is_last: bool

    def __str__(self) -> str:
        answered = "unanswered" if self.is_last else "answered later"
        return f"{self.catalog}-v{self.version}-{self.mode}-{self.change}-{'done' * self.is_done}-{answered}"


ALL = [
    Case(catalog, version, mode, change, is_done, is_last)
    for is_last in (False, True)
    for is_done in (False, True)
    for catalog in ("SQL", "REST")
    for version, mode in ((2, MODES[1]), (3, MODES[1]), (2, MODES[0]))
    for change in CHANGES
]
SLICE = [
    Case("SQL", 2, MODES[1], "update", is_done=False, is_last=True),
    Case("SQL", 2, MODES[1], "merge", is_done=True, is_last=False),
    Case("REST", 3, MODES[1], "upsert", is_done=True, is_last=True),
    Case("REST", 2, MODES[0], "two changes", is_done=False, is_last=False),
]


@pytest.fixture(scope="module")
def stages() -> dict[tuple[int, str], Stage]:
    """Return the tables that tests have requested, by version and mode."""
    return {}


@pytest.fixture
def server(case: Case, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return silent_server(case.catalog, request, tmp_path, monkeypatch)


@pytest.mark.parametrize("case", ALL if SOAK else SLICE, ids=str)
def test_a_change_whose_answer_is_lost(
    case: Case,
    server: Server,
    stages: dict[tuple[int, str], Stage],
    interpreted: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind, change = (case.version, case.mode), CASES[case.change]
    if kind not in stages:
        stages[kind] = Stage.of(interpreted, tmp_path_factory.mktemp("answers"), *kind)
    stage = stages[kind]
    stage.reset()
    base = stage.table()
    catalog = sm.load_catalog("tests", **server.properties)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    table: Any = catalog.register_table(f"{namespace}.t", base.metadata_location, interpreted)
    before = State.of(stage, table)
    server.break_down(table, is_done=case.is_done, is_last=case.is_last)
    if case.is_last:
        with pytest.raises(CommitStateUnknownError, match="may have been committed"):
            change.run(table)
    else:
        change.run(table)
    server.mend()
    after = State.of(stage, table.refresh())
    committed = case.is_done or not case.is_last
    assert after.rows == (sorted(change.rows, key=repr) if committed else before.rows)
    assert after.snapshots == before.snapshots + committed * change.snapshots
    left = after.there - after.reached - stage.contents.keys()
    if not case.is_last:
        assert not left, "files of the attempt whose commit was refused"
        return
    # A REST catalog writes the metadata files.
    expected = {"avro"} if case.catalog == "REST" else {"avro", "json"}
    assert case.is_done or {path.rpartition(".")[2] for path in left} >= expected, "nothing was deleted"
    assert all(is_named(path, caplog.text) for path in left)
    orphans = planned_paths(table.refresh().maintenance.remove_orphan_files(older_than=soon(), force=True).to_df())
    assert orphans - stage.contents.keys() == left
    if not case.is_done:
        change.run(table.refresh())
        assert State.of(stage, table.refresh()).rows == sorted(change.rows, key=repr)
