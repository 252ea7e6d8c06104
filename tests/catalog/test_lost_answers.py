"""Renames and registrations whose answer is lost: the catalog is asked for the outcome."""

from __future__ import annotations

import sqlite3
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog

import sparkmeta as sm
from tests.catalog.silent_servers import Server, silent_server
from tests.catalog.test_operations import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def rename(catalog: sm.Catalog, table: sm.Table) -> sm.Table:
    return catalog.rename_table(table.name(), f"{table.name()[0]}.new")


def register(catalog: sm.Catalog, table: sm.Table) -> sm.Table:
    return catalog.register_table(f"{table.name()[0]}.new", table.metadata_location)


REQUESTS = {"renamed": rename, "registered": register}


@pytest.fixture(params=["SQL", "REST"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return silent_server(request.param, request, tmp_path, monkeypatch)


@pytest.fixture
def catalog(server: Server) -> sm.Catalog:
    return sm.load_catalog("tests", **server.properties)


@pytest.fixture
def table(spark: SparkSession, catalog: sm.Catalog) -> sm.Table:
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    no_waits = {"commit.status-check.min-wait-ms": "0"}
    return catalog.create_table(f"{namespace}.old", SCHEMA, properties=no_waits, spark=spark)


@pytest.mark.parametrize("asked", REQUESTS)
def test_a_lost_answer(server: Server, catalog: sm.Catalog, table: sm.Table, asked: str) -> None:
    server.break_down(table, is_done=True, is_last=False)
    after = REQUESTS[asked](catalog, table)
    assert (after.name()[1], after.metadata_location) == ("new", table.metadata_location)
    assert catalog.table_exists(table.name()) is (asked == "registered")


@pytest.mark.parametrize("asked", REQUESTS)
@pytest.mark.parametrize(
    ("is_done", "is_last"), [(False, False), (False, True), (True, True)], ids=["lost", "down", "done and down"]
)
def test_an_unknown_outcome(
    server: Server, catalog: sm.Catalog, table: sm.Table, asked: str, is_done: bool, is_last: bool
) -> None:
    server.break_down(table, is_done=is_done, is_last=is_last)
    with pytest.raises(sm.CommitStateUnknownError, match=rf"^ns_\w+\.\w+ may have been {asked}( to ns_\w+\.new)?: "):
        REQUESTS[asked](catalog, table)
    server.mend()
    assert catalog.table_exists((table.name()[0], "new")) is is_done


@pytest.mark.parametrize("server", ["SQL"], indirect=True)
@pytest.mark.parametrize("asked", REQUESTS)
def test_a_statement_that_fails(
    catalog: sm.Catalog, table: sm.Table, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was committed."""
    operations: Any = table.operations
    execute = operations.catalog.engine.dialect.do_execute

    def locked(cursor: Any, statement: str, *arguments: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            raise sqlite3.OperationalError("database is locked")
        execute(cursor, statement, *arguments)

    monkeypatch.setattr(operations.catalog.engine.dialect, "do_execute", locked)
    with pytest.raises(sm.CatalogError, match="database is locked"):
        REQUESTS[asked](catalog, table)
    assert catalog.list_tables(table.name()[0]) == [table.name()]


@pytest.mark.parametrize("server", ["SQL"], indirect=True)
@pytest.mark.parametrize("asked", REQUESTS)
def test_a_catalog_that_is_down(
    catalog: sm.Catalog, table: sm.Table, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog gets no request that changes it."""
    operations: Any = table.operations
    engine = operations.catalog.engine

    def fail(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("the server is gone")

    monkeypatch.setattr(engine.dialect, "connect", fail)
    engine.dispose()
    with pytest.raises(sm.CatalogError, match="the server is gone"):
        REQUESTS[asked](catalog, table)


class Elsewhere(NoopCatalog):
    """A catalog of no kind that sparkmeta knows, whose answers to changes are lost."""

    is_done = True

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self.rows = SqlCatalog(name, **properties)

    def namespace_exists(self, namespace: Any) -> bool:
        return self.rows.namespace_exists(namespace)

    def load_table(self, identifier: Any) -> Any:
        return self.rows.load_table(identifier)

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> Any:
        self._lose(self.rows.rename_table, from_identifier, to_identifier)

    def register_table(self, identifier: Any, metadata_location: str, overwrite: bool = False) -> Any:
        self._lose(self.rows.register_table, identifier, metadata_location, overwrite)

    def _lose(self, change: Any, *arguments: Any) -> None:
        if self.is_done:
            change(*arguments)
        raise ConnectionResetError("the connection was reset")


@pytest.mark.parametrize("server", ["SQL"], indirect=True)
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("asked", REQUESTS)
def test_other_catalogs(
    server: Server, table: sm.Table, asked: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "is_done", is_done)
    implementation = {"type": "", "py-catalog-impl": f"{__name__}.{Elsewhere.__name__}"}
    catalog = sm.load_catalog("tests", **{**server.properties, **implementation})
    if is_done:
        assert REQUESTS[asked](catalog, table).metadata_location == table.metadata_location
        return
    with pytest.raises(sm.CommitStateUnknownError, match=rf" may have been {asked}\b.*: the connection was reset"):
        REQUESTS[asked](catalog, table)
