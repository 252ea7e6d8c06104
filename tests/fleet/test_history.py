"""The history of `catalog.health()`: what each run appends, and what got worse since the last one."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import ValidationError
from sparkmeta.fleet import health as health_module
from sparkmeta.fleet import history as history_module
from tests.command_line import invoke
from tests.fleet.broken import WAYS
from tests.fleet.catalogs import ROWS, catalog_of, new_table, properties_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HISTORY = "ops.table_health"


def run(catalog: Any, pattern: str = "db.*", **options: Any) -> Any:
    return catalog.health(pattern, history=HISTORY, min_small_files=4, max_overlap=100, **options)


@pytest.mark.parametrize(("kind", "version"), [("hadoop", 1), ("hadoop", 4), ("sql", 2), ("sql", 3)])
@pytest.mark.usefixtures("no_session")
def test_what_got_worse(tmp_path: Path, kind: str, version: int) -> None:
    catalog = catalog_of(kind, tmp_path)
    tables = {name: new_table(catalog, f"db.{name}", version) for name in ("a", "b", "c", "same")}
    tables["b"] = tables["b"].append(ROWS).append(ROWS)
    first = run(catalog)
    assert first.worse() == {}
    assert "worse" not in str(first)
    assert [row["worse"] for row in first.to_arrow().to_pylist()] == [[]] * 4
    # A table gets a finding, one gets more of it, one breaks, and one is new.
    tables["a"].append(ROWS).append(ROWS)
    tables["b"].append(ROWS)
    WAYS["no_metadata" if kind == "sql" else "no_list"][0](tables["c"])
    new_table(catalog, "db.new", version, appends=4)
    second = run(catalog)
    worse = second.worse()
    assert worse.keys() == {"db.a", "db.b", "db.c"}
    assert worse["db.a"] == ["small_files: 8 items, new"]
    assert worse["db.b"] == ["small_files: 8 to 10 items"]
    assert "can't be examined: " in worse["db.c"][0]
    assert "worse since the last run: db.a: small_files: 8 items, new" in str(second)
    assert {row["table"]: row["worse"] for row in second.to_arrow().to_pylist()} == {
        "db.new": [], "db.same": [], **worse
    }  # fmt: skip
    assert "<h2>Worse since " in second.to_html()
    # Nothing has changed since, also for the table that is still broken.
    third = run(catalog)
    assert third.worse() == {}
    assert "<p>Nothing.</p>" in third.to_html()
    rows = catalog.load_table(HISTORY).scan().to_arrow()
    assert len(rows) == 4 + 5 + 5
    stored = [row for row in rows.to_pylist() if row["examined_at"] == second.examined_at]
    expected = [
        {name: value for name, value in row.items() if name != "worse"} for row in second.to_arrow().to_pylist()
    ]
    assert sorted(
        [{name: row[name] for name in expected[0]} for row in stored], key=lambda row: row["table"]
    ) == sorted(expected, key=lambda row: row["table"])


@pytest.mark.usefixtures("no_session")
def test_a_fifth_more_is_not_worse(tmp_path: Path) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    table = new_table(catalog, "db.a", appends=5)
    run(catalog)
    table = table.append(ROWS)
    assert run(catalog).worse() == {}, "from 10 files to 12"
    table.append(ROWS).append(ROWS)
    assert run(catalog).worse() == {"db.a": ["small_files: 12 to 16 items"]}


@pytest.mark.usefixtures("no_session")
def test_the_page_draws_the_last_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    table = new_table(catalog, "db.a", appends=1)
    begin = datetime.now(UTC) - timedelta(days=60)
    moments = iter(begin + timedelta(days=day) for day in range(40))

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:  # noqa: ARG003
            return next(moments)

    monkeypatch.setattr(health_module, "datetime", Clock)
    monkeypatch.setattr(history_module, "_MOST_RUNS", 4)
    for _ in range(7):
        health = run(catalog)
    table.append(ROWS)
    page = run(catalog).to_html()
    assert "data files, 5 runs: 2 to 4" in page
    drawn = re.search(r'aria-label="data files".*?<path d="([^"]*)"', page)
    assert drawn is not None
    heights = [float(height) for height in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn[1])]
    assert len(heights) == 5
    assert heights[0] == heights[-2] > heights[-1], "higher is nearer to the top"
    # A rewrite puts many runs into a file.
    catalog.load_table(HISTORY).maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert "data files, 5 runs: 2 to 4" in run(catalog).to_html()
    assert run(catalog, "db.a").past.run_at > health.examined_at


def test_with_a_session(spark: SparkSession, tmp_path: Path) -> None:
    """With a session of the caller."""
    catalog = catalog_of("sql", tmp_path)
    new_table(catalog, "db.a", appends=2)
    run(catalog, spark=spark)
    catalog.load_table("db.a").append(ROWS).append(ROWS)
    assert run(catalog, spark=spark).worse() == {"db.a": ["small_files: 8 items, new"]}


@pytest.mark.usefixtures("no_session")
def test_another_table_is_refused(tmp_path: Path) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    new_table(catalog, "db.a")
    before = catalog.load_table("db.a").metadata_location
    with pytest.raises(ValidationError, match=r"history is 'db\.a': the table has no column examined_at"):
        catalog.health(history="db.a")
    assert catalog.load_table("db.a").metadata_location == before


def test_the_command(command: Any, tmp_path: Path) -> None:
    catalog = sm.load_catalog("prod", **properties_of("sql", tmp_path))
    table = new_table(catalog, "db.a", appends=1)
    arguments = ("db.a", "--history", HISTORY, "--min-small-files", "2")
    assert command(*arguments).stdout.splitlines()[1:] == ["          db.a  healthy"]
    table.append(ROWS)
    assert command(*arguments).stdout.splitlines()[1:] == [
        "  medium  db.a  small_files", "worse since the last run: db.a: small_files: 4 items, new",
    ]  # fmt: skip
    (row,) = json.loads(command(*arguments, "--output", "json").stdout)["tables"]
    assert row["worse"] == []
    result = invoke(["health", str(tmp_path), "--history", HISTORY])
    assert (result.exit_code, "--history needs --catalog" in result.stderr) == (2, True)
