"""The swap of a SQL catalog: conflicts of its row, and a COMMIT without a response."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from sparkmeta.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from sparkmeta.operations.sql import SqlOperations
from sparkmeta.storage.files import LocalFiles
from tests.commit.places import open_operations, place
from tests.commit.tables import appended, new_table, with_properties
from tests.faults import FaultyFiles, Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from sparkmeta.operations.table_operations import TableVersion

DOWN = OperationalError("", {}, Exception("the server is gone"))


@pytest.fixture(params=["sqlite", "postgres"])
def swap(request: pytest.FixtureRequest, tmp_path: Path) -> SqlOperations:
    postgres = request.getfixturevalue("postgres") if request.param == "postgres" else None
    swap = open_operations(place(request.param, tmp_path, postgres), tmp_path)
    assert isinstance(swap, SqlOperations)
    return swap


@pytest.fixture
def base(swap: SqlOperations) -> TableVersion:
    return create(swap)


def create(swap: SqlOperations, **properties: str) -> TableVersion:
    return swap.commit(None, new_table(table_location(swap), properties))


def table_location(swap: SqlOperations) -> str:
    return f"{swap.catalog.properties['warehouse']}/table"


def row(swap: SqlOperations) -> dict[str, Any]:
    with swap.catalog.engine.connect() as connection:
        result = connection.execute(
            text("SELECT * FROM iceberg_tables WHERE table_namespace = :name"), {"name": swap.identifier[0]}
        )
        return dict(result.mappings().one())


def files(swap: SqlOperations) -> set[str]:
    return {path.name for path in Path(f"{table_location(swap).removeprefix('file://')}/metadata").iterdir()}


def on_commit(monkeypatch: pytest.MonkeyPatch, swap: SqlOperations, act: Callable[[Any, Any], None]) -> None:
    """Replace the driver's COMMIT of the first transaction by ``act``, which receives the real one."""
    dialect: Any = swap.catalog.engine.dialect
    real = dialect.do_commit
    calls: list[object] = []

    def do_commit(connection: Any) -> None:
        calls.append(connection)
        return act(real, connection) if len(calls) == 1 else real(connection)

    monkeypatch.setattr(dialect, "do_commit", do_commit)


def test_the_row(swap: SqlOperations, base: TableVersion) -> None:
    assert row(swap) == {
        "catalog_name": "tests",
        "table_namespace": swap.identifier[0],
        "table_name": "table",
        "metadata_location": base.metadata_location,
        "previous_metadata_location": None,
        "iceberg_type": "TABLE",
    }
    after = swap.commit(base, appended(base.metadata))
    assert row(swap) | {"metadata_location": "", "previous_metadata_location": ""} == {
        "catalog_name": "tests",
        "table_namespace": swap.identifier[0],
        "table_name": "table",
        "metadata_location": "",
        "previous_metadata_location": "",
        "iceberg_type": "TABLE",
    }
    assert row(swap)["metadata_location"] == after.metadata_location
    assert row(swap)["previous_metadata_location"] == base.metadata_location


def test_the_layout_before_views(tmp_path: Path) -> None:
    """Catalogs that Java created without jdbc.schema-version=V1 have no column iceberg_type."""
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{tmp_path}/catalog.db"
    SqlCatalog("tests", uri=uri)
    first = open_operations(uri, tmp_path)
    assert isinstance(first, SqlOperations)
    with first.catalog.engine.begin() as connection:
        connection.execute(text("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type"))
    swap = open_operations(uri, tmp_path)
    assert isinstance(swap, SqlOperations)
    base = create(swap)
    assert swap.commit(base, appended(base.metadata)) == swap.refresh()
    assert "iceberg_type" not in row(swap)


def test_a_view_is_no_table(swap: SqlOperations, base: TableVersion) -> None:
    with swap.catalog.engine.begin() as connection:
        namespace = {"name": swap.identifier[0]}
        connection.execute(text("UPDATE iceberg_tables SET iceberg_type='VIEW' WHERE table_namespace=:name"), namespace)
    before = files(swap)
    with pytest.raises(NoSuchTableError, match="there is no such table in the catalog tests"):
        swap.refresh()
    with pytest.raises(NoSuchTableError):
        swap.commit(base, appended(base.metadata))
    assert row(swap)["metadata_location"] == base.metadata_location
    assert files(swap) == before
    with pytest.raises(TableAlreadyExistsError):
        create(swap)


def test_other_tables_keep_their_rows(swap: SqlOperations, base: TableVersion) -> None:
    other = SqlOperations(swap.catalog, (*swap.identifier[:-1], "other"), LocalFiles())
    location = table_location(swap)
    theirs = other.commit(None, new_table(f"{location}-other"))
    swap.commit(base, appended(base.metadata))
    assert other.refresh() == theirs


def test_no_such_namespace(swap: SqlOperations) -> None:
    nowhere = SqlOperations(swap.catalog, (f"no{uuid.uuid4().hex}", "table"), LocalFiles())
    with pytest.raises(NoSuchNamespaceError, match="there is no such namespace"):
        create(nowhere)


def test_metadata_elsewhere(swap: SqlOperations, tmp_path: Path) -> None:
    base = create(swap, **{"write.metadata.path": f"file://{tmp_path}/elsewhere"})
    after = swap.commit(base, appended(base.metadata))
    assert after.metadata_location.startswith(f"file://{tmp_path}/elsewhere/00001-")
    assert swap.refresh() == after


@pytest.mark.parametrize(
    ("name", "number"), [("00041-x.metadata.json", "00042"), ("any.json", "00000"), ("99999-x.json", "100000")]
)
def test_numbers_of_versions(swap: SqlOperations, base: TableVersion, tmp_path: Path, name: str, number: str) -> None:
    registered = f"file://{tmp_path}/{name}"
    LocalFiles().write_new(registered, LocalFiles().read(base.metadata_location))
    swap.catalog.drop_table(swap.identifier)
    swap.catalog.register_table(swap.identifier, registered)
    base = swap.refresh()
    assert base.metadata_location == registered
    after = swap.commit(base, appended(base.metadata))
    assert Path(after.metadata_location).name.partition("-")[0] == number


# -- a COMMIT that nobody answers ----------------------------------------------------------------------------------


def lost(real: Any, connection: Any) -> None:
    real(connection)
    raise DOWN


def test_it_was_done(swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    on_commit(monkeypatch, swap, lost)
    after = swap.commit(base, appended(base.metadata))
    assert swap.refresh() == after


def test_invalid_properties_do_not_turn_a_success_into_a_failure(
    swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = swap.commit(base, with_properties(base.metadata, **{"commit.status-check.min-wait-ms": "x"}))

    on_commit(monkeypatch, swap, lost)
    after = swap.commit(base, appended(base.metadata))
    assert swap.refresh() == after


def test_it_was_not_done(swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise DOWN

    on_commit(monkeypatch, swap, failed)
    before = files(swap)
    with pytest.raises(CommitFailedError, match=r"metadata\.json was not committed: .*the server is gone"):
        swap.commit(base, appended(base.metadata))
    assert swap.refresh() == base
    assert files(swap) == before
    assert swap.commit(base, appended(base.metadata)) == swap.refresh()


def test_creation_was_done(swap: SqlOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    on_commit(monkeypatch, swap, lost)
    assert create(swap) == swap.refresh()


def test_creation_was_not_done(swap: SqlOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing row can't be locked, so the server may still have to execute the COMMIT."""

    def failed(*_: object) -> None:
        raise DOWN

    on_commit(monkeypatch, swap, failed)
    sqlite = swap.catalog.engine.dialect.name == "sqlite"
    with pytest.raises(CommitFailedError if sqlite else CommitStateUnknownError):
        create(swap)
    assert len(files(swap)) == (0 if sqlite else 1)


@pytest.mark.parametrize("properties_only", [False, True])
@pytest.mark.parametrize("won", [False, True])
def test_others_went_on(
    swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch, won: bool, properties_only: bool
) -> None:
    def act(real: Any, connection: Any) -> None:
        if won:
            real(connection)
        else:
            connection.rollback()
        current = swap.refresh()
        for _ in range(2):
            current = swap.commit(current, appended(current.metadata))
        raise DOWN

    on_commit(monkeypatch, swap, act)
    new = with_properties(base.metadata, mine="1") if properties_only else appended(base.metadata, mine="1")
    if won:
        after = swap.commit(base, new)
        assert after.metadata_location in {entry.metadata_file for entry in swap.refresh().metadata.metadata_log}
    else:
        before = files(swap)
        with pytest.raises(CommitFailedError, match="was not committed"):
            swap.commit(base, new)
        assert len(files(swap)) == len(before) + 2
    assert ("mine" in swap.refresh().metadata.properties) is won


@pytest.mark.parametrize("won", [False, True])
def test_others_went_on_beyond_the_log(swap: SqlOperations, monkeypatch: pytest.MonkeyPatch, won: bool) -> None:
    base = create(swap, **{"write.metadata.previous-versions-max": "1"})

    def act(real: Any, connection: Any) -> None:
        if won:
            real(connection)
        else:
            connection.rollback()
        current = swap.refresh()
        for _ in range(3):
            current = swap.commit(current, appended(current.metadata))
        raise DOWN

    on_commit(monkeypatch, swap, act)
    new = appended(base.metadata)
    if won:
        after = swap.commit(base, new)
        assert after.metadata.current_snapshot_id == new.current_snapshot_id
    else:
        with pytest.raises(CommitStateUnknownError):
            swap.commit(base, new)
        assert len(files(swap)) == 5


def test_nobody_answers(swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(real: Any, connection: Any) -> None:
        real(connection)
        monkeypatch.setattr(swap.catalog, "engine", _Down(swap.catalog.engine))
        raise DOWN

    engine = swap.catalog.engine
    on_commit(monkeypatch, swap, lost)
    with pytest.raises(CommitStateUnknownError, match=r"may have been committed.*the server is gone"):
        swap.commit(base, appended(base.metadata))
    monkeypatch.setattr(swap.catalog, "engine", engine)
    assert swap.refresh().metadata.last_sequence_number == 1


def test_the_process_dies(swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(real: Any, connection: Any) -> None:
        real(connection)
        raise Killed

    on_commit(monkeypatch, swap, dies)
    with pytest.raises(Killed):
        swap.commit(base, appended(base.metadata))
    assert swap.refresh().metadata.last_sequence_number == 1


def test_the_row_goes_away(swap: SqlOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(real: Any, connection: Any) -> None:
        real(connection)
        swap.catalog.drop_table(swap.identifier)
        raise DOWN

    on_commit(monkeypatch, swap, lost)
    before = files(swap)
    with pytest.raises(CommitStateUnknownError):
        swap.commit(base, appended(base.metadata))
    assert len(files(swap)) == len(before) + 1


class _Down:
    """An engine whose server is down."""

    def __init__(self, real: Engine) -> None:
        self.dialect = real.dialect

    def connect(self) -> None:
        raise DOWN


# -- sqlite ---------------------------------------------------------------------------------------------------------


def test_a_commit_that_a_reader_blocks(tmp_path: Path) -> None:
    """COMMIT fails, and its transaction stays open: a query on this connection would see it as committed."""
    swap = open_operations(f"sqlite:///{tmp_path}/catalog.db?timeout=0.1", tmp_path)
    assert isinstance(swap, SqlOperations)
    base = create(swap)
    reader = sqlite3.connect(f"{tmp_path}/catalog.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM iceberg_tables").fetchall()
    with pytest.raises(CommitFailedError, match="database is locked"):
        swap.commit(base, appended(base.metadata))
    reader.close()
    assert swap.refresh() == base
    assert swap.commit(base, appended(base.metadata)) == swap.refresh()


# -- PostgreSQL ----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(postgres: str, tmp_path: Path) -> SqlOperations:
    swap = open_operations(postgres, tmp_path)
    assert isinstance(swap, SqlOperations)
    return swap


def test_a_commit_that_is_still_under_way(server: SqlOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is lost before the server is done: the check waits for the lock, and does not see the base."""
    base = create(server)
    files = FaultyFiles()
    engine = server.catalog.engine
    late: list[threading.Timer] = []

    def slow(_: Any, connection: Any) -> None:
        connection.rollback()
        session = engine.raw_connection()
        written = {"new": files.operations[0][1], "old": base.metadata_location}
        session.cursor().execute(
            "UPDATE iceberg_tables SET metadata_location=%(new)s WHERE metadata_location=%(old)s", written
        )
        late.append(threading.Timer(0.5, session.driver_connection.commit))  # type: ignore[union-attr]
        late[0].start()
        raise DOWN

    on_commit(monkeypatch, server, slow)
    after = replace(server, files=files).commit(base, appended(base.metadata))
    late[0].join()
    assert server.refresh() == after


def test_the_server_ends_the_session(server: SqlOperations) -> None:
    """The server terminates the process of a pooled connection, and a later commit succeeds."""
    base = create(server)
    for _ in range(2):
        with server.catalog.engine.connect() as pooled, server.catalog.engine.connect() as other:
            pid = pooled.execute(text("SELECT pg_backend_pid()")).scalar()
            pooled.rollback()
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            other.rollback()
        for _ in range(3):
            try:
                base = server.commit(base, appended(base.metadata))
                break
            except CommitFailedError:
                assert server.refresh() == base
        assert server.refresh() == base
