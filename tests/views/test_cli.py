"""The commands `views` and `view`, which need no Spark session here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sparkmeta import load_catalog
from tests.command_line import invoke

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = Schema(NestedField(1, "id", LongType()))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    catalog = load_catalog("local", type="hadoop", warehouse=f"file://{tmp_path}/w")
    view = catalog.create_view("db.v", SCHEMA, {"trino": 'SELECT "id"\nFROM t'}, properties={"comment": "c"})
    view.replace({"trino": 'SELECT "id" FROM t'})

    def run(*arguments: str, code: int = 0) -> str:
        options = ("--catalog", "local", "--property", "type=hadoop", "--property", f"warehouse={tmp_path}/w")
        result = invoke((*arguments, *options))
        assert result.exit_code == code, result.output + repr(result.exception)
        return result.output

    return run


def test_views(run: Callable[..., str]) -> None:
    assert json.loads(run("views", "db", "-o", "json")) == [["db", "v"]]
    assert run("views") == run("views", "db") == "db.v\n"
    assert run("views", "other") == run("tables") == ""


def test_view(run: Callable[..., str]) -> None:
    text = " ".join(run("view", "db.v").split())
    for line in ('query in trino SELECT "id" FROM t', "id: long", "comment = c", "current version 2", "1 (trino at"):
        assert line in text
    known = json.loads(run("view", "db.v", "--output", "json"))
    assert known["queries"] == {"trino": 'SELECT "id" FROM t'}
    assert [entry["version_id"] for entry in known["history"]] == [1, 2]
    assert (known["default_catalog"], known["default_namespace"]) == (None, ["db"])


def test_a_query(run: Callable[..., str]) -> None:
    assert run("view", "db.v", "--sql", "trino") == 'SELECT "id" FROM t\n'
    assert "db.v: no query in the dialect 'spark', only in ['trino']: --translate translates" in run(
        "view", "db.v", "--sql", "spark", code=1
    )
    pytest.importorskip("sqlglot")
    assert run("view", "db.v", "--sql", "spark", "--translate") == "SELECT `id` FROM t\n"
    assert "--translate needs --sql" in run("view", "db.v", "--translate", code=2)


def test_errors(run: Callable[..., str]) -> None:
    assert "there is no view" in run("view", "db.absent", code=1)
