"""Settings: how they are written, and that each of them changes what a plan does."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from io import StringIO
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta import Settings
from sparkmeta.errors import SettingError
from sparkmeta.settings import PREFIX, environment_conf, from_conf, settings
from tests.conftest import configured
from tests.handmade import HandmadeTable, data, deletion_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

FILES = 60


@dataclass(frozen=True)
class Planned:
    """What shows how a table was planned."""

    explained: str
    strategy: str
    cached_parts: int


CACHE = "<a folder>"
# Per setting: a value, what it does to a plan and nothing else does, and the other settings that this takes.
EFFECTS: dict[str, tuple[str, Callable[[Planned], bool], Mapping[str, str]]] = {
    "executor_reads": ("spark", lambda planned: "binaryFile" in planned.explained, {}),
    "split_manifest_bytes": ("1k", lambda planned: planned.cached_parts > 2, {"manifest_cache": CACHE}),
    "driver_manifest_bytes": ("0", lambda planned: "MapInArrow" in planned.explained, {}),
    "planning": ("join", lambda planned: planned.strategy.startswith("join"), {}),
    "manifest_cache": (CACHE, lambda planned: planned.cached_parts > 0, {}),
}


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of one manifest of data files, which has several Avro blocks, and one of deletion vectors."""
    table = HandmadeTable(tmp_path_factory.mktemp("settings"), block_bytes=2_000, summaries=True)
    of = {"partition": {"part": "a"}}
    table.add(0, 1, *(data(f"file:///t/{number}", **of) for number in range(FILES)))
    table.add(1, 1, *(deletion_vector(f"file:///t/{number}", **of) for number in range(6)))
    return table.write()


def plan_under(values: Mapping[str, str], location: str, spark: SparkSession, cache: Path) -> Planned:
    names = {
        PREFIX + name.replace("_", "-"): cache.as_uri() if text == CACHE else text for name, text in values.items()
    }
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        scan = sm.load_table(location, spark=spark).scan()
        plan = scan.plan_files()
        assert len(plan.collect()) == FILES
        with redirect_stdout(StringIO()) as explained:
            plan.explain()
        return Planned(explained.getvalue(), scan.report().strategy, len(list(cache.rglob("*.parquet"))))
    finally:
        for name in names:
            spark.conf.unset(name)


# How rows are read: tests/rows/test_to_df.py and tests/rows/test_damage.py.
OF_ROWS = {"data_file_footers", "file_handover"}
# Who hears of plans: tests/test_reports.py.
OF_REPORTS = {"metrics_reporter"}


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Settings)} - OF_ROWS - OF_REPORTS))
def test_every_setting_changes_how_a_table_is_planned(
    name: str, location: str, spark: SparkSession, tmp_path: Path
) -> None:
    value, has_effect, others = EFFECTS[name]
    assert not has_effect(plan_under(others, location, spark, tmp_path / "without"))
    assert has_effect(plan_under({**others, name: value}, location, spark, tmp_path / "with"))


def test_defaults(spark: SparkSession) -> None:
    assert settings(spark) == Settings()


def test_the_session_decides(spark: SparkSession) -> None:
    spark.conf.set("spark.sparkmeta.executor-reads", "SPARK")
    try:
        assert settings(spark).executor_reads == "spark"
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("7b", 7), ("2k", 2048), ("2 m", None), ("1GB", 1 << 30), ("-1", None)]
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(
            SettingError, match=r"spark\.sparkmeta\.split-manifest-bytes is '.*': expected a whole number"
        ):
            from_conf({"split-manifest-bytes": text})
    else:
        assert from_conf({"split-manifest-bytes": text}).split_manifest_bytes == size


def test_choices() -> None:
    with pytest.raises(SettingError, match=r"'never': expected one of auto, direct, spark"):
        from_conf({"executor-reads": "never"})


def test_settings_of_the_environment(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKMETA_DRIVER_MANIFEST_BYTES", "2m")
    monkeypatch.setenv("SPARKMETA_SOMETHING_ELSE", "1")
    assert settings(None) == Settings(driver_manifest_bytes=2 << 20)
    assert settings(spark) == Settings()
    assert environment_conf() == {"spark.sparkmeta.driver-manifest-bytes": "2m"}
    monkeypatch.setenv("SPARKMETA_PLANNING", "never")
    with pytest.raises(SettingError, match=r"^SPARKMETA_PLANNING is 'never': expected one of auto, join, colocated"):
        settings(None)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"spark\.sparkmeta\.split-manifests is not a setting"):
        from_conf({"split-manifests": "1"})


WHAT_GROUPS: dict[str, Callable[[sm.Table], object]] = {
    "all files": lambda table: table.inspect.all_files().count(),
    "position deletes": lambda table: table.inspect.position_deletes().count(),
    "health": lambda table: table.maintenance.health(),
    "a plan": lambda table: table.scan().plan_files().count(),
}


@pytest.mark.parametrize("name", WHAT_GROUPS)
def test_keys_of_groups_are_kept(spark: SparkSession, location: str, name: str) -> None:
    table = sm.load_table(location, spark=spark)
    setting = "spark.sql.retainGroupColumns"
    with configured(spark, {setting: "false"}), pytest.raises(SettingError, match=f"^{setting} is false: Spark leaves"):
        WHAT_GROUPS[name](table)
    with configured(spark, {setting: "true"}):
        table.scan().plan_files()
