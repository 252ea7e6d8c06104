"""What tests of many tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sparkmeta.session import SessionSource
from tests.command_line import invoke
from tests.fleet.catalogs import catalog_of, properties_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is started or used."""

    def refuse(_: SessionSource) -> Any:
        raise AssertionError("a session was asked for")

    monkeypatch.setattr(SessionSource, "get", refuse)
    monkeypatch.setattr(SessionSource, "running", lambda _: None)


@pytest.fixture
def command(tmp_path: Path) -> Any:
    catalog_of("sql", tmp_path)
    properties = [part for pair in properties_of("sql", tmp_path).items() for part in ("--property", "=".join(pair))]

    def run(*arguments: str, code: int = 0) -> Any:
        result = invoke(["health", "--catalog", "prod", *properties, *arguments])
        assert result.exit_code == code, result.output
        return result

    return run
