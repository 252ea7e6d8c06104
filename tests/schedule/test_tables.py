"""`sparkmeta maintain`: which tables the groups of a configuration choose, and which group a table has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.commit.test_transaction import SCHEMA
from tests.schedule.test_maintain import command, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CONFIG = '[catalogs.c]\ntype = "hadoop"\nwarehouse = "{folder}/tables"\n[jobs.upgrade]\nformat_version = 3\n'
NAMES = ("db.a", "db.b", ("db", "c.d"), "odd.p[1]", "odd.x*y", "odd.xzy")


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    catalog: Any = sm.load_catalog("c", type="hadoop", warehouse=f"{folder}/tables")
    for name in NAMES:
        catalog.create_table(name, SCHEMA, format_version=2, spark=spark)
    return folder


def group(*names: str, more: str = "") -> str:
    return f"[[tables]]\ncatalog = 'c'\nnames = {list(names)!r}\n{more}\n"


def outcome(folder: Path, *groups: str) -> tuple[int, dict[str, str]]:
    """The exit code, and for each table the version that it would be upgraded to, or the error."""
    config = written(folder / "c.toml", CONFIG.format(folder=folder) + "".join(groups))
    code, results, _ = command("--config", str(config))
    assert len({result["table"] for result in results}) == len(results)
    return code, {result["table"]: result["error"] or f"version {result['plan']['to_version']}" for result in results}


def error_of(folder: Path, table: str, *groups: str) -> str:
    code, results = outcome(folder, *groups)
    assert code == 1
    return results[table]


TO_3, TO_4 = "version 3", "version 4"
OTHER = "jobs.upgrade.format_version = 4"


@pytest.mark.parametrize("names", [("db.a", "db.*"), ("db.*", "db.a")])
def test_an_exact_name_comes_before_a_pattern(folder: Path, names: tuple[str, str]) -> None:
    expected = dict.fromkeys(("db.b", "db.c.d"), TO_3)
    groups = {"db.*": group("db.*"), "db.a": group("db.a", more=OTHER)}
    assert outcome(folder, *(groups[name] for name in names)) == (0, expected | {"db.a": TO_4})
    groups["db.a"] = group("db.a", more="jobs.upgrade = false")
    assert outcome(folder, *(groups[name] for name in names)) == (0, expected)
    assert outcome(folder, group("*.a", "db.a", "db.?")) == (0, dict.fromkeys(("db.a", "db.b"), TO_3))


def test_a_table_of_two_groups_is_not_maintained(folder: Path) -> None:
    """The other tables of these groups are."""
    code, results = outcome(folder, group("db.*"), group("*.a", more=OTHER))
    assert (code, results.pop("db.a").partition(": expected")[0]) == (
        1,
        "db.a: tables[0] ('db.*') and tables[1] ('*.a') choose it",
    )
    assert results == dict.fromkeys(("db.b", "db.c.d"), TO_3)
    excluded = group("db.*", more="exclude = ['*.a']")
    assert outcome(folder, excluded, group("*.a", more=OTHER)) == (0, results | {"db.a": TO_4})
    assert "tables[1] ('db.a') and tables[2] ('db.a')" in error_of(folder, "db.a", group("db.*"), *[group("db.a")] * 2)
    location = f"{folder}/tables/db/a"
    of_folders = [f"[[tables]]\nlocations = [{text!r}]\n" for text in (location, f"file://{location}/")]
    assert "tables[0]" in error_of(folder, location, *of_folders)


def test_names_and_patterns_without_a_table(folder: Path) -> None:
    """They are failures, unless their tables belong to another group or are excluded."""
    code, results = outcome(folder, group("bd.*", "db.nothing", "db.a"))
    assert (code, results.pop("db.a")) == (1, TO_3)
    assert results.pop("bd.*") == "bd.*: no table of c has this name"
    assert "there is no Iceberg table" in results.pop("db.nothing")
    assert not results
    assert outcome(folder, group("db.a"), group("*.a")) == (0, {"db.a": TO_3})
    assert outcome(folder, group("db.a", "*.b", more="exclude = ['db.b']")) == (0, {"db.a": TO_3})


def test_names_that_look_like_patterns(folder: Path) -> None:
    assert outcome(folder, group("odd.p[1]")) == (0, {"odd.p[1]": TO_3})
    assert outcome(folder, group("odd.p[?]")) == (0, {"odd.p[1]": TO_3})
    assert outcome(folder, group("odd.x*y")) == (0, {"odd.x*y": TO_3})
    assert outcome(folder, group("odd.x*"), group("odd.x*y", more=OTHER)) == (0, {"odd.xzy": TO_3, "odd.x*y": TO_4})
    assert outcome(folder, group("odd.*", more="exclude = ['odd.p[1]', 'odd.x?y']"))[0] == 0


def test_a_name_with_a_dot(folder: Path) -> None:
    assert outcome(folder, group("*.d")) == (0, {"db.c.d": TO_3})
    assert outcome(folder, group("db.c.d"), group("db.*", more=OTHER))[1]["db.c.d"] == TO_3
