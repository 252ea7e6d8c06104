"""Catalogs that carry out a commit or not, and do not answer."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from tests.rest.proxy import Fault, Proxy, Way

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    import sparkmeta as sm


class SqlServer:
    """A SQL catalog whose COMMIT of the next transaction may fail, or lose its answer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.monkeypatch = monkeypatch

    def break_down(self, table: sm.Table, *, is_done: bool, is_last: bool) -> None:
        """Let the next commit be carried out or not, and its answer be lost; `is_last`: and those to all questions."""
        catalog: Any = table.operations
        engine = catalog.catalog.engine
        real, down = engine.dialect.do_commit, sqlite3.OperationalError("the server is gone")

        def fail(*_: object) -> Any:
            raise down

        def do_commit(connection: Any) -> None:
            if is_done:
                real(connection)
            else:
                connection.rollback()
            self.monkeypatch.setattr(engine.dialect, "do_commit", fail if is_last else real)
            if is_last:
                self.monkeypatch.setattr(engine.dialect, "do_execute", fail)
            raise down

        self.monkeypatch.setattr(engine.dialect, "do_commit", do_commit)

    def mend(self) -> None:
        self.monkeypatch.undo()


class RestServer:
    """Iceberg's own REST catalog behind a proxy, which refuses the next POST, or loses its answer."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.properties = {"type": "rest", "uri": proxy.uri}

    def break_down(self, table: sm.Table, *, is_done: bool, is_last: bool) -> None:
        self.proxy.faults.append(Fault(Way.ANSWER_LOST if is_done else Way.REFUSED, is_last=is_last))

    def mend(self) -> None:
        assert not self.proxy.faults, "the job has sent no commit"
        self.proxy.is_down = False


Server = SqlServer | RestServer


def silent_server(
    catalog: str, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Server:
    """Return a SQL or REST catalog."""
    return SqlServer(folder, monkeypatch) if catalog == "SQL" else RestServer(request.getfixturevalue("proxy"))
