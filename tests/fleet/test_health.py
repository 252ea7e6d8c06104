"""`catalog.health()`: a row for each table, whatever is wrong with others, with and without Spark."""

from __future__ import annotations

import gc
import json
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest

import sparkmeta as sm
from sparkmeta.catalog.filesystem import FileSystemCatalog
from sparkmeta.errors import NoSuchTableError, ValidationError
from tests.command_line import invoke
from tests.conftest import configured
from tests.fleet.broken import WAYS
from tests.fleet.catalogs import VERSIONS, catalog_of, new_table, properties_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def by_name(health: Any) -> dict[str, dict[str, Any]]:
    return {row["table"]: row for row in health.to_arrow().to_pylist()}


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hadoop", "sql", "in-memory"])
@pytest.mark.usefixtures("no_session")
def test_a_row_for_each_table(tmp_path: Path, kind: str) -> None:
    catalog = catalog_of(kind, tmp_path)
    tables = {f"db.v{version}": new_table(catalog, f"db.v{version}", version) for version in VERSIONS}
    new_table(catalog, "db.empty", appends=0)
    health = catalog.health(min_small_files=2)
    rows = by_name(health)
    assert rows.keys() == {*tables, "db.empty"}
    for name, table in tables.items():
        row, report = rows[name], table.maintenance.health(min_small_files=2)
        assert (row["format_version"], row["data_files"], row["records"]) == (int(name[-1]), 4, 4)
        assert (row["data_bytes"], row["partitions"], row["snapshots"]) == (report.entries.bytes, 2, 2)
        assert row["manifests"] == report.layout.data_manifests
        assert row["plan_bytes"] == report.layout.data_bytes + report.list_bytes
        assert (row["severity"], row["finding_count"], row["error"]) == ("medium", 1, None)
        assert [(each["finding"], each["severity"], each["gain"]) for each in row["findings"]] == [
            (finding.finding, "medium", finding.gain) for finding in report.list_findings
        ]
        assert row["findings"][0]["command"].startswith(f"sparkmeta rewrite-data-files --catalog prod {name} ")
    empty = rows["db.empty"]
    assert (empty["severity"], empty["data_files"], empty["overlap"], empty["findings"]) == (None, 0, None, [])
    assert [table.table for table in health.tables][-1] == "db.empty", "the healthy table is last"
    assert health.headline == "prod: 5 tables, 4 need maintenance"


@pytest.mark.parametrize("version", VERSIONS)
def test_large_tables_by_jobs(spark: SparkSession, tmp_path: Path, version: int) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    for number in range(3):
        new_table(catalog, f"db.t{number}", version)
    expected = [{**row, "seconds": 0} for row in catalog.health(min_small_files=2).to_arrow().to_pylist()]
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        health = catalog.health(spark=spark, min_small_files=2)
    assert [{**row, "seconds": 0} for row in health.to_arrow().to_pylist()] == expected
    df = health.to_df()
    assert df.columns == health.to_arrow().column_names
    assert [row.table for row in df.where("data_files = 4").collect()] == ["db.t0", "db.t1", "db.t2"]


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.usefixtures("no_session")
def test_each_broken_table_is_a_row(tmp_path: Path, version: int) -> None:
    catalog = catalog_of("sql", tmp_path)
    for name, (break_table, _) in WAYS.items():
        break_table(new_table(catalog, f"db.{name}", version))
    new_table(catalog, "db.good", version)
    health = catalog.health()
    rows = by_name(health)
    assert rows["db.good"]["error"] is None
    for name, (_, error) in WAYS.items():
        row = rows[f"db.{name}"]
        assert (row["severity"], row["data_files"], row["findings"]) == ("error", None, [])
        assert re.search(error, row["error"]), (name, row["error"])
        assert f"db/{name}" in row["error"]
        assert "\n" not in row["error"]
    assert health.headline == f"prod: {1 + len(WAYS)} tables, 0 need maintenance, {len(WAYS)} can't be examined"
    assert {table.table for table in health.tables[: len(WAYS)]} == {f"db.{name}" for name in WAYS}
    assert health.to_html().count("<summary") == 1 + len(WAYS)


@pytest.mark.usefixtures("no_session")
def test_what_is_held(tmp_path: Path) -> None:
    """The states of tables, which hold their entries, are gone when other tables are at work."""
    states: WeakSet[Any] = WeakSet()
    largest = 0

    class Watched(FileSystemCatalog):
        def load_table(self, *arguments: Any, **named: Any) -> Any:
            nonlocal largest
            gc.collect()
            largest = max(largest, len(states))
            table = super().load_table(*arguments, **named)
            states.add(table.operations)
            return table

    catalog = Watched("prod", f"file://{tmp_path}")
    for number in range(6):
        new_table(catalog, f"db.t{number}", appends=1)
    gc.collect()
    states.clear()
    largest = 0
    health = catalog.health(at_once=2)
    gc.collect()
    assert len(health.tables) == 6
    assert len(states) == 0
    assert largest <= 2


# -- which tables -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_session")
def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    for name in ("db.a", "db.b", "other.a", "other.p[1]"):
        new_table(catalog, name, appends=0)

    def chosen(*pattern: str) -> list[str]:
        return [table.table for table in catalog.health(*pattern).tables]

    assert chosen() == ["db.a", "db.b", "other.a", "other.p[1]"]
    assert chosen("db.*") == ["db.a", "db.b"]
    assert chosen("*.a") == ["db.a", "other.a"]
    assert chosen("other.p[1]") == chosen("other.p[?]") == ["other.p[1]"]
    with pytest.raises(NoSuchTableError, match=r"bd\.\*: no table of prod has this name"):
        catalog.health("bd.*")
    (missing,) = catalog.health("db.none").tables
    assert "there is no Iceberg table" in missing.error
    listed = FileSystemCatalog.list_tables

    def partly(self: Any, namespace: Any) -> Any:
        if namespace == ("other",):
            raise PermissionError("denied")
        return listed(self, namespace)

    monkeypatch.setattr(FileSystemCatalog, "list_tables", partly)
    problem, *others = catalog.health().tables
    assert (problem.table, problem.error) == ("other.*", "PermissionError: denied")
    assert [table.table for table in others] == ["db.a", "db.b"]
    assert [(table.table, table.error) for table in catalog.health("other.a").tables] == [("other.a", None)]


def test_arguments(tmp_path: Path) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    new_table(catalog, "db.a", appends=0)
    with pytest.raises(ValidationError, match="at_once is 0: expected a whole number of 1 or more"):
        catalog.health(at_once=0)
    with pytest.raises(ValidationError, match="max_overlap is -1"):
        catalog.health(max_overlap=-1)
    with pytest.raises(ValidationError, match="pattern is ''"):
        catalog.health("")


# -- what it writes ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_session")
def test_texts(tmp_path: Path) -> None:
    catalog = catalog_of("sql", tmp_path)
    new_table(catalog, "db.<b>", appends=2)
    new_table(catalog, 'db.q"\\', appends=0)
    WAYS["empty_metadata"][0](new_table(catalog, "db.broken"))
    health = catalog.health(min_small_files=2)
    assert [line.split()[:2] for line in str(health).splitlines()[1:]] == [
        ["error", "db.broken"], ["medium", "db.<b>"], ['db.q"\\', "healthy"],
    ]  # fmt: skip
    document = json.loads(health.to_json())
    assert (document["catalog"], document["pattern"]) == ("prod", "*")
    assert document["tables"] == json.loads(json.dumps(health.to_arrow().to_pylist()))
    text = health.to_prometheus()
    assert 'sparkmeta_table_data_files{catalog="prod",table="db.<b>"} 4\n' in text
    assert 'sparkmeta_table_data_files{catalog="prod",table="db.q\\"\\\\"} 0\n' in text
    assert 'sparkmeta_table_examination_failed{catalog="prod",table="db.broken"} 1\n' in text
    small = 'sparkmeta_table_finding_items{catalog="prod",table="db.<b>",finding="small_files",severity="medium"} 4\n'
    assert small in text
    sample = re.compile(r'[a-z_]+\{([a-z]+="([^"\\]|\\.)*",?)*\} [0-9.]+')
    lines = text.removesuffix("\n").split("\n")
    assert all(sample.fullmatch(line) for line in lines if not line.startswith("#"))
    metrics = [line.partition("{")[0] for line in lines if not line.startswith("#")]
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == [*dict.fromkeys(metrics)]
    for name, content in {"f.txt": f"{health}\n", "f.json": health.to_json(), "f.prom": text}.items():
        health.save(tmp_path / name)
        assert (tmp_path / name).read_text() == content
    health.save(tmp_path / "f.prom", "json")
    assert (tmp_path / "f.prom").read_text() == health.to_json()
    with pytest.raises(ValidationError, match="kind is 'pdf': expected text, json, prometheus or html"):
        health.save(tmp_path / "f", "pdf")
    assert not [*tmp_path.glob(".f*")]


@pytest.mark.usefixtures("no_session")
def test_the_page(tmp_path: Path) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    for name, appends in {"db.a": 1, "db.b": 3, "db.c": 2}.items():
        new_table(catalog, name, appends=appends)
    health = catalog.health(min_small_files=2)
    page = health.to_html()
    assert not re.search(r"<script|<link|<img|src=|url\(|@import", page)
    orders = {
        re.search(r'<span title="([^"]*)"', row)[1]: dict(re.findall(r"--(\w+):(\d+)", row))  # type: ignore[index]
        for row in page.split("<details")[1:]
    }
    assert [*orders] == ["db.b", "db.c", "db.a"], "by findings, then files"
    assert {name: order["data_files"] for name, order in orders.items()} == {"db.b": "0", "db.c": "1", "db.a": "2"}
    assert {name: order["table"] for name, order in orders.items()} == {"db.a": "0", "db.b": "1", "db.c": "2"}
    for key in orders["db.a"]:
        assert f"input[value={key}]:checked) details {{ order: var(--{key}) }}" in page
        assert f'value="{key}"' in page
    assert page.count("Snapshots over time") == 3, "the page of each table"
    new_table(catalog, "db.<i>", appends=0)
    assert "<i>" not in catalog.health().to_html()
    cell = health._repr_html_()
    assert "Snapshots over time" not in cell
    assert cell.count("<summary") == 3


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command(command: Any, tmp_path: Path) -> None:
    catalog = sm.load_catalog("prod", **properties_of("sql", tmp_path))
    new_table(catalog, "db.a")
    catalog.create_namespace("sales")
    new_table(catalog, "sales.b")
    assert command().stdout.splitlines()[0] == "prod: 2 tables, 0 need maintenance"
    assert command("db.*", "--min-small-files", "2").stdout.splitlines() == [
        "prod: 1 table, 1 needs maintenance", "  medium  db.a  small_files",
    ]  # fmt: skip
    files = {name: str(tmp_path / name) for name in ("page.html", "fleet.prom")}
    result = command("*", "--html", files["page.html"], "--prometheus", files["fleet.prom"], "--output", "json")
    assert [table["table"] for table in json.loads(result.stdout)["tables"]] == ["db.a", "sales.b"]
    assert result.stderr.splitlines() == [f"written: {file}" for file in files.values()]
    assert "</html>" in (tmp_path / "page.html").read_text()
    assert 'sparkmeta_table_snapshots{catalog="prod",table="db.a"} 2\n' in (tmp_path / "fleet.prom").read_text()
    assert command("db.a").stdout.startswith("db.a is healthy"), "the report of one table"
    assert "prod: 1 table" in command("db.a", "--prometheus", files["fleet.prom"]).stdout
    WAYS["no_metadata"][0](catalog.load_table("sales.b"))
    assert "  error   sales.b  " in command(code=1).stdout
    assert "no table of prod" in command("bd.*", code=1).stderr


def test_wrong_usage(tmp_path: Path) -> None:
    result = invoke(["health"])
    assert (result.exit_code, "Missing argument 'TABLE'" in result.stderr) == (2, True)
    result = invoke(["health", str(tmp_path), "--prometheus", str(tmp_path / "p.prom")])
    assert (result.exit_code, "--prometheus needs --catalog" in result.stderr) == (2, True)
