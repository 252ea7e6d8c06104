"""The examples of the README and of the documentation's pages run, and the outputs that they show are real.

Blocks of a page share their names. `sm`, `spark`, `catalog` and `table` exist from the start; the table is
`shop.orders` of a catalog `prod`. `/warehouse` stands for a temporary folder. A `text` block after an example is its
output. A comment before an example that can't run says why: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyiceberg.utils.config import Config

import sparkmeta as sm
from tests.command_line import invoke

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# The examples of other pages need tables that the pages describe in words.
FOLDERS = ("start", "how", "guides", "reference")
_BLOCK = re.compile(
    r"(?:<!-- (not run: .+?) -->\n)?^(?P<indent> *)```(\w*)[^\n]*\n(.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#[^)]*)?\)")
# What differs from run to run: ids, UUIDs, times and sizes.
_NUMBER = re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f-]{27}|[\d,.]*\d)\b|-+|…")


class Block(NamedTuple):
    line: int
    language: str
    source: str
    reason: str | None
    shown: str | None


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, each with the output that follows it."""
    text = page.read_text(encoding="utf-8")
    matches = [*_BLOCK.finditer(text)]
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        shown = None
        if following is not None and following[3] == "text" and not text[match.end() : following.start()].strip():
            shown = following[4]
        source = re.sub(f"^{match['indent']}", "", match[4], flags=re.MULTILINE)
        yield Block(text[: match.start()].count("\n") + 2, match[3], source, match[1], shown)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def runs(page: Path) -> bool:
    return page.name == "README.md" or page.relative_to(DOCS).parts[0] in FOLDERS


def orders(day: int) -> pa.Table:
    """A day's orders: 25 in each of two countries."""
    ids = range(day * 50, (day + 1) * 50)
    midnight = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "country": ["NO" if order % 2 else "SE" for order in ids],
            "ts": pa.array([midnight + timedelta(minutes=order % 50) for order in ids], pa.timestamp("us", "UTC")),
            "note": pa.array([None if order % 3 else f"note {order}" for order in ids], pa.string()),
        }
    )


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of a warehouse, and the place that the warehouse has to be at."""
    folder = tmp_path_factory.mktemp("docs")
    catalog = sm.load_catalog("prod", **properties_of(folder / "warehouse"))
    catalog.create_namespace("shop")
    columns = ("order_id", LongType()), ("country", StringType()), ("ts", TimestamptzType()), ("note", StringType())
    schema = Schema(*(NestedField(place, name, kind) for place, (name, kind) in enumerate(columns, 1)))
    table = catalog.create_table("shop.orders", schema)
    with table.update_spec() as spec:
        spec.add_field("ts", "day").add_field("country", "identity")
    table = table.refresh()
    for day in range(3):
        table = table.append(spark.createDataFrame(orders(day)))
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "first").commit()
    (folder / "warehouse").rename(folder / "copy")
    return folder


def properties_of(warehouse: Path) -> dict[str, str]:
    warehouse.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": warehouse.as_uri()}


@pytest.fixture
def warehouse(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the table `shop.orders` of the catalog `prod`, as no page has changed it yet."""
    folder = written / "warehouse"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(written / "copy", folder)
    for key, value in properties_of(folder).items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{key.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    return folder


def command(line: str) -> str:
    """The output of a `sparkmeta` command, which may end with a pipe to jq."""
    arguments, *piped = re.split(r" \| (?=jq )", line)
    result = invoke(shlex.split(arguments.removeprefix("sparkmeta ")))
    assert result.exit_code == 0, f"{line}: {result.output}{result.exception!r}"
    if not piped or shutil.which("jq") is None:
        return result.stdout
    done = subprocess.run(shlex.split(piped[0]), input=result.stdout, capture_output=True, text=True, check=True)
    return done.stdout


def alike(text: str) -> list[list[str]]:
    """The words of an output, without what differs from run to run."""
    return [words for line in text.splitlines() if (words := _NUMBER.sub("#", line).split())]


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=name_of)
def test_examples_run(page: Path, warehouse: Path, spark: SparkSession) -> None:
    todo = [block for block in blocks(page) if block.language in ("python", "bash") and block.reason is None]
    catalog = sm.load_catalog("prod")
    names: dict[str, Any] = {"sm": sm, "spark": spark, "catalog": catalog, "table": catalog.load_table("shop.orders")}
    for block in todo:
        source, printed = block.source.replace("/warehouse", str(warehouse)), StringIO()
        with redirect_stdout(printed):
            if block.language == "bash":
                printed.writelines(command(line) for line in source.splitlines())
            else:
                exec(compile(source, f"{name_of(page)}:{block.line}", "exec"), names)
        if block.shown is not None:
            output = printed.getvalue().replace(str(warehouse), "/warehouse")
            assert alike(output) == alike(block.shown), f"{name_of(page)}:{block.line} prints\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_are_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.source)
        elif block.language == "json":
            json.loads(block.source)


def test_blocks_in_lists_are_indented_by_four_columns() -> None:
    """MkDocs takes a list, table or example that is indented by less out of the list."""
    less = re.compile(r"^ {1,3}(?:[-*] |\d+\. |\||```).*", re.MULTILINE)
    texts = {
        page: _BLOCK.sub(lambda block: f"{block['indent']}```", page.read_text(encoding="utf-8")) for page in PAGES
    }
    assert {name_of(page): less.findall(text) for page, text in texts.items() if less.search(text)} == {}


def test_links_of_the_readme_lead_to_files() -> None:
    readme = ROOT / "README.md"
    linked = {target for target in _LINK.findall(readme.read_text()) if target}
    assert {target for target in linked if not (ROOT / target).exists()} == set()
    assert len(readme.read_text().splitlines()) <= 150


def test_pages_describe_each_table_property_that_the_code_reads() -> None:
    """Names with a prefix that a constant holds are not found."""
    name = re.compile(r'"((?:write|read|commit|history|gc|schema\.name-mapping)\.[a-z0-9.-]*[a-z])"')
    sources = (path for path in (ROOT / "sparkmeta").rglob("*.py") if path.parent.name != "sparkmeta")
    known = {key for path in sources for key in name.findall(path.read_text(encoding="utf-8"))}
    described = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(known) > 30
    assert {key for key in known if f"`{key}`" not in described} == set()


def test_a_complete_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (yaml,) = (block.source for block in blocks(DOCS / "catalogs.md") if block.language == "yaml")
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.replace("/warehouse", str(tmp_path)))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    sm.load_catalog("local").create_namespace("shop")
    assert (tmp_path / "shop" / "namespace.json").exists()
