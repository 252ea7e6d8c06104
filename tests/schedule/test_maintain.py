"""`sparkmeta maintain` and `jobs/maintain.py`: a configuration of several tables; one table is broken."""

from __future__ import annotations

import json
import runpy
import shutil
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.cli.schedule import choose_tables, read_config, run_maintenance
from sparkmeta.errors import CatalogError, ValidationError
from sparkmeta.fleet.jobs import JOBS
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.session import SessionSource
from sparkmeta.storage.files import LocalFiles
from tests.command_line import invoke
from tests.commit.test_transaction import SCHEMA, SPEC
from tests.handmade import HandmadeTable, data, long_bounds
from tests.local_files import local_path
from tests.maintain.test_compact import EAGER, append, delete, seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
JOBS_FOLDER = ROOT / "jobs"


def warehouse(spark: SparkSession, folder: Path) -> Any:
    """A catalog of the trees db.a, with small leaves, db.b, without any, and db.broken, which has lost its root."""
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(folder))
    for name in ("a", "b", "broken"):
        table = catalog.create_table(f"db.{name}", SCHEMA, SPEC, properties=EAGER, format_version=4, spark=spark)
        for number in range(1 if name == "b" else 3):
            table = append(table, 10 * number, 10 * number + 1)
    for root in (folder / "db" / "broken" / "metadata").glob("*root*"):
        root.unlink()
    return catalog


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


CONFIG = """
[catalogs.test]
type = "hadoop"
warehouse = "{folder}/tables"
[jobs.compact_manifests]
[jobs.rewrite_manifests]
[jobs.expire_snapshots]
older_than = "0m"
[[tables]]
catalog = "test"
names = ["db.*"]
[[tables]]
locations = ["{folder}/nowhere"]
"""


def command(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the results of jobs, and the log of `sparkmeta maintain`."""
    done = invoke(["maintain", *arguments])
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return done.exit_code, [result for result in results if result["job"] != "report"], done.stderr


def statuses(results: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    return {(result["table"].rpartition("/")[2], result["job"]): result["status"] for result in results}


def test_several_tables(spark: SparkSession, tmp_path: Path) -> None:
    catalog = warehouse(spark, tmp_path / "tables")
    config = str(written(tmp_path / "c.toml", CONFIG.format(folder=tmp_path)))
    before = {name: catalog.load_table(f"db.{name}", spark) for name in "ab"}
    rows = seen(before["a"])
    failed = {("db.broken", "health"): "failed", ("nowhere", "health"): "failed"}
    unsuitable = {(f"db.{name}", "rewrite_manifests"): "not applicable" for name in "ab"}

    code, results, log = command("--config", config)
    assert code == 1
    assert statuses(results) == failed | unsuitable | {
        ("db.a", "compact_manifests"): "planned",
        ("db.a", "expire_snapshots"): "planned",
        ("db.b", "compact_manifests"): "nothing to do",
        ("db.b", "expire_snapshots"): "nothing to do",
    }
    (compaction,) = [result for result in results if result["status"] == "planned" and result["job"].startswith("comp")]
    assert compaction["findings"] == ["small_manifests"]
    assert compaction["plan"]["data_leaves"] == 3
    assert "db.a: compact_manifests: planned" in log
    for name, table in before.items():
        assert catalog.load_table(f"db.{name}", spark).metadata_location == table.metadata_location
    dry = str(written(tmp_path / "dry.toml", "dry_run = true\n" + CONFIG.format(folder=tmp_path)))
    assert statuses(command("--config", dry, "--commit")[1]) == statuses(results)

    code, results, _ = command("--config", config, "--commit")
    assert code == 1
    done = statuses(results)
    assert (done["db.a", "compact_manifests"], done["db.a", "expire_snapshots"]) == ("committed", "committed")
    after = catalog.load_table("db.a", spark)
    assert seen(after) == rows
    assert len(after.snapshots()) == 1

    code, results, _ = command("--config", config, "--commit")
    assert {status for key, status in statuses(results).items() if key not in failed | unsuitable} == {"nothing to do"}
    shutil.rmtree(tmp_path / "tables" / "db" / "broken")
    healed = CONFIG.partition("[[tables]]\nlocations")[0].format(folder=tmp_path)
    assert command("--config", str(written(tmp_path / "healed.toml", healed)), "--commit")[0] == 0


def test_the_job_check(spark: SparkSession, tmp_path: Path) -> None:
    def checked(name: str, **bounds: Any) -> tuple[int, list[dict[str, Any]], str]:
        HandmadeTable(tmp_path / name, 3, summaries=True).add(0, 0, data("x:d0", **bounds)).write()
        text = f'[jobs.check]\n[[tables]]\nlocations = ["{tmp_path}/{name}"]\n'
        return command("--config", str(written(tmp_path / f"{name}.toml", text)))

    code, (result,), _ = checked("sound", **long_bounds(1, 5))
    assert (code, result["job"], result["status"]) == (0, "check", "nothing to do")
    code, (result,), log = checked("broken", **long_bounds(9, 2))
    assert (code, result["job"], result["status"]) == (1, "check", "failed")
    (row,) = result["plan"]["contradictions"]
    assert (row["rule"], row["location"].partition("/broken/")[0]) == ("bounds-order", tmp_path.as_uri())
    problem = f"1, such as {row['location']}: bounds-order: {row['problem']}"
    assert result["error"] == f"contradictions in the metadata: {problem}"
    assert "check: failed" in log


def test_check_names_what_health_can_not_read(spark: SparkSession, tmp_path: Path) -> None:
    HandmadeTable(tmp_path / "t", 3, summaries=True).add(0, 0, data("x:d0", **long_bounds(1, 5))).write()
    manifest = sm.load_table(str(tmp_path / "t"), spark=spark).inspect.arrow.manifests().column("path")[0].as_py()
    Path(local_path(manifest)).write_bytes(b"no manifest")
    text = f'[jobs.check]\n[jobs.expire_snapshots]\n[[tables]]\nlocations = ["{tmp_path}/t"]\n'
    code, (check, health), _ = command("--config", str(written(tmp_path / "t.toml", text)))
    assert (code, check["job"], check["status"]) == (1, "check", "failed")
    assert manifest in {row["location"] for row in check["plan"]["contradictions"]}
    assert (health["job"], health["status"]) == ("health", "failed")


class Listed:
    """A catalog whose namespace `a` can't be listed."""

    def list_namespaces(self, namespace: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        return [] if namespace else [("a",), ("b",)]

    def list_tables(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        if namespace == ("a",):
            raise PermissionError("a is not yours")
        return [(*namespace, "t")]

    def _with_sessions(self, _: SessionSource) -> Listed:
        return self

    def load_table(self, name: tuple[str, ...]) -> sm.Table:
        raise OSError(f"{name[-1]} is gone")


def test_catalogs_and_namespaces_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure is a result and a line of the log. Tables of other namespaces are loaded."""
    text = '[catalogs.c]\ntype = "hadoop"\n[[tables]]\ncatalog = "c"\nnames = ["*"]\n'
    config = read_config(written(tmp_path / "c.toml", text))
    for catalog, expected in (
        (lambda *_, **__: Listed(), {"a.*": "PermissionError: a is not yours", "b.t": "OSError: t is gone"}),
        (lambda *_, **__: 1 / 0, {"*": "ZeroDivisionError: division by zero"}),
    ):
        monkeypatch.setattr("sparkmeta.cli.schedule.load_catalog", catalog)
        logged = list[str]()
        results = list(run_maintenance(config, SessionSource(), commit=False, log=logged.append))
        assert {result.table: result.error for result in results} == expected
        assert {f"{table}: health: failed: {error}" for table, error in expected.items()} <= set(logged)
        assert "\n".join(logged).count("\n  Traceback (most recent call last):") >= len(expected)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b.t"], ["b.t"]),
        (["b.*"], ["b.t"]),
        (["b.?", "?.x"], ["a.*", "b.t"]),
        (["b.t", "a*"], ["a.*", "b.t"]),
        (["b*t"], ["b.t"]),
        (["a."], ["a."]),
        (["?."], ["?."]),
        (["?.?.?"], ["a.*"]),
        (["b.x*"], ["b.x*"]),
    ],
    ids=str,
)
def test_a_namespace_that_cannot_be_listed_fails_groups_with_a_pattern_for_it(
    names: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group before it has a pattern, so that the catalog is listed."""
    monkeypatch.setattr("sparkmeta.cli.schedule.load_catalog", lambda *_, **__: Listed())
    groups = [f"[[tables]]\ncatalog = 'c'\nnames = {texts!r}\n" for texts in (["*.none"], names)]
    tables = choose_tables(read_config(written(tmp_path / "c.toml", "".join(groups))), SessionSource())
    assert [table.name for table in tables if table.place == 0] == ["a.*"]
    assert sorted({table.name for table in tables if table.place == 1}) == expected


def test_a_table_that_cannot_be_loaded_after_a_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is committed, and the next one fails."""
    warehouse(spark, tmp_path / "tables")
    commit = FileSystemOperations.commit

    def no_answer(_: object) -> None:
        raise CatalogError("no answer")

    def last_commit(*arguments: Any) -> Any:
        monkeypatch.setattr(FileSystemOperations, "refresh", no_answer)
        return commit(*arguments)

    monkeypatch.setattr(FileSystemOperations, "commit", last_commit)
    text = CONFIG.format(folder=tmp_path).replace("db.*", "db.a").partition("[[tables]]\nlocations")[0]
    code, results, _ = command("--config", str(written(tmp_path / "c.toml", text)), "--commit")
    assert (code, [result["status"] for result in results]) == (1, ["committed", "failed", "failed"])
    assert results[0]["committed"]["manifests_replaced"] == 3
    assert results[1]["error"] == "no answer"


@pytest.mark.parametrize(
    ("kind", "status", "code", "plans"),
    [(PermissionError, "failed", 1, 1), (TimeoutError, "failed", 1, 1), (FileExistsError, "conflict", 3, 3)],
)
def test_only_a_commit_that_lost_to_another_is_a_conflict(
    kind: type[OSError],
    status: str,
    code: int,
    plans: int,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit whose metadata file can't be written has failed, and is not planned again."""
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    properties = {"commit.retry.num-retries": "0"}
    location = catalog.create_table("db.t", SCHEMA, format_version=4, properties=properties, spark=spark).location()
    config = f"[jobs.downgrade]\n[[tables]]\nlocations = [{location!r}]\n"
    tried = list[str]()

    def publish(_: object, file: str, _data: bytes) -> None:
        tried.append(file)
        raise kind("not written")

    monkeypatch.setattr(LocalFiles, "publish", publish)
    exit_code, (result,), _ = command("--config", str(written(tmp_path / "c.toml", config)), "--commit")
    assert (exit_code, result["status"], len(tried)) == (code, status, plans)
    assert result["error"].endswith("was not committed: not written")
    job = runpy.run_path(str(JOBS_FOLDER / "downgrade.py"))["main"]
    assert job(["--table", location, "--commit"]) == code


def test_an_upgrade_that_another_run_makes_first(spark: SparkSession, tmp_path: Path) -> None:
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("db.t", SCHEMA, format_version=2, spark=spark)
    text = f"[jobs.upgrade]\nformat_version = 3\n[[tables]]\nlocations = [{table.location()!r}]\n"
    config = read_config(written(tmp_path / "c.toml", text))

    def log(line: str) -> None:
        if "format version 2 becomes 3" in line:
            table.maintenance.upgrade(3).commit()

    (result,) = run_maintenance(config, SessionSource(spark), commit=True, log=log)
    assert (result.status, result.error) == ("not applicable", None)
    plan = table.maintenance.upgrade(3)
    with pytest.raises(sm.CommitConflictError, match="has format version 3 already"):
        plan.commit()


def test_two_maintenance_runs_at_once(spark: SparkSession, tmp_path: Path) -> None:
    catalog = warehouse(spark, tmp_path / "tables")
    table = delete(catalog.load_table("db.a", spark), 10)
    rows, logged = seen(table), list[str]()
    text = (
        CONFIG.format(folder=tmp_path).replace("db.*", "db.a").replace("0m", "1h").partition("[[tables]]\nlocations")[0]
    )
    config = read_config(written(tmp_path / "c.toml", text))

    def run(_: int) -> list[Any]:
        return list(run_maintenance(config, SessionSource(spark), commit=True, log=logged.append))

    with ThreadPoolExecutor(2) as threads:
        results = [result for results in threads.map(run, range(2)) for result in results]
    harmless = {"committed", "nothing to do", "not applicable", "conflict"}
    assert {result.status for result in results} <= harmless, logged
    assert "committed" in {result.status for result in results if result.job == "compact_manifests"}
    after = catalog.load_table("db.a", spark)
    assert seen(after) == rows
    assert after.check().collect() == []


def test_the_example_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a table in a catalog of folders. It names another that does not exist."""
    example = (ROOT / "conf" / "maintenance.toml").read_text()
    catalog: Any = sm.load_catalog("w", type="hadoop", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("shop.orders", SCHEMA, SPEC, format_version=4, properties=EAGER, spark=spark)
    append(append(table, 1, 2), 3, 4)
    config = written(tmp_path / "m.toml", example.replace("/warehouse", str(tmp_path / "warehouse")))
    job = runpy.run_path(str(JOBS_FOLDER / "maintain.py"))["main"]
    assert job(["--config", str(config), "--commit"]) == 1
    printed, log = capsys.readouterr()
    results = [json.loads(line) for line in printed.splitlines()]
    done = statuses(results)
    assert done["shop.orders", "compact_manifests"] == "committed"
    assert done["shop.orders", "remove_orphan_files"] == "nothing to do"
    assert done["logs.events", "health"] == "failed"
    assert "shop.orders: table 1 of 1" in log


# -- the configuration ------------------------------------------------------------------------------------------------

GROUP = "[[tables]]\nlocations = ['/t']\n"
PROBLEMS = {
    "retain = 1\n" + GROUP: "retain is 1: unknown key; the keys are dry_run",
    "dry_run = 'yes'\n" + GROUP: "dry_run is 'yes': expected true or false",
    "[jobs.vacuum]\n" + GROUP: "jobs.vacuum is {}: unknown job; the jobs are check, upgrade",
    "[jobs.expire_snapshots]\nkeep = 3\n" + GROUP: "jobs.expire_snapshots.keep is 3: unknown option; the options are",
    "[jobs.expire_snapshots]\nretain_last = '3'\n" + GROUP: "retain_last is '3': expected a whole number",
    "[jobs.expire_snapshots]\nolder_than = 5\n" + GROUP: "older_than is 5: expected a duration such as 36h or 7d",
    "[jobs.expire_snapshots]\nolder_than = 'old'\n" + GROUP: "older_than is 'old': expected a duration",
    "[jobs.expire_snapshots]\nalways = 1\n" + GROUP: "always is 1: expected true or false",
    "[jobs.remove_orphan_files]\nfiles = 'f'\n" + GROUP: "files is 'f': unknown option; the options are",
    "[jobs.compute_table_stats]\ncolumns = 'id'\n" + GROUP: "columns is 'id': expected a list of strings",
    "[jobs.compute_table_stats]\ncolumns = [1]\n" + GROUP: "columns is [1]: expected a list of strings",
    "[jobs.compact_manifests]\ncluster_by = 'ts'\n" + GROUP: "cluster_by is 'ts': expected a list of strings",
    "[jobs.remove_orphan_files]\nequal_schemes = 's3'\n" + GROUP: "is 's3': expected a mapping of strings to strings",
    "[jobs.remove_orphan_files]\nequal_schemes = { s3a = 1 }\n" + GROUP: "expected a mapping of strings to strings",
    "[jobs.upgrade]\nformat_version = 9\n" + GROUP: "tables[0].jobs.upgrade: format_version is 9: expected 2, 3 or 4",
    "[jobs.upgrade]\nformat_version = 3\ncompact = true\n" + GROUP: "jobs.upgrade: compact is true: only an upgrade to",
    "[jobs.downgrade]\nformat_version = 2\n" + GROUP: "jobs.downgrade: format_version is 2: expected 3",
    "[jobs.expire_snapshots]\ncleanup = 'some'\n" + GROUP: "cleanup is 'some': expected all, metadata or none",
    "[jobs.expire_snapshots]\nretain_last = 0\n" + GROUP: "retain_last is 0: expected a whole number of 1 or more",
    "[jobs.expire_snapshots]\nolder_than = '999999999d'\n" + GROUP: "older_than is '999999999d': expected a duration",
    "[jobs.remove_orphan_files]\nolder_than = '1h'\n" + GROUP: "less than 24 hours ago",
    "[jobs.remove_orphan_files]\nlocation = 'data'\n" + GROUP: "location is 'data': expected the URI or absolute path",
    "[jobs.rewrite_data_files]\nstrategy = 'zorder'\n" + GROUP: "strategy is 'zorder': expected binpack or sort",
    "[jobs.rewrite_data_files]\ntarget_file_size_bytes = -5\n"
    + GROUP: "target_file_size_bytes is -5: expected a whole",
    "[jobs.rewrite_data_files]\nrow_filter = 'id >'\n" + GROUP: "tables[0].jobs.rewrite_data_files: ",
    "[jobs.rewrite_position_delete_files]\nmin_input_files = 0\n"
    + GROUP: "min_input_files is 0: expected a whole number",
    "[jobs.compact_manifests]\nmin_leaf_ratio = 2\n" + GROUP: "min_leaf_ratio is 2: expected a share above 0, up to 1",
    "[jobs.rewrite_manifests]\ntarget_manifest_bytes = 0\n" + GROUP: "target_manifest_bytes is 0: expected a number of",
    "[jobs.compute_table_stats]\ncolumns = []\n" + GROUP: "columns is []: expected the names of columns",
    "[jobs.compact_manifests]\nmin_leaf_ratio = true\n" + GROUP: "min_leaf_ratio is True: expected a number",
    "[jobs]\nexpire_snapshots = true\n" + GROUP: "jobs.expire_snapshots is True: expected options, or false",
    "[jobs.upgrade]\n[jobs.downgrade]\n" + GROUP: "tables[0].jobs has upgrade and downgrade: expected one of them",
    "[thresholds]\nmax_overlap = -1\n" + GROUP: "thresholds.max_overlap is -1: expected a whole number",
    "[thresholds]\ndepth = 1\n" + GROUP: "thresholds.depth is 1: unknown key",
    "[catalogs.c]\nuri = 1\n" + GROUP: "catalogs.c: expected properties with string values",
    "dry_run = true": "tables is []: expected one or more [[tables]]",
    "[[tables]]\nnames = ['a.b']": "tables[0] has names: expected a catalog with names, or else locations",
    GROUP + "names = 'a.b'": "tables[0].names is 'a.b': expected a list of strings",
    GROUP + "jobs.expire_snapshots = { retain = 1 }": "tables[0].jobs.expire_snapshots.retain is 1",
    "tables = ": "it is not valid TOML",
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "bad.toml", text)
    with pytest.raises(ValidationError) as raised:
        read_config(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert PROBLEMS[text] in str(raised.value)


def test_nothing_runs_with_a_bad_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path / "bad.toml", "tabels = 1"))
    done = invoke(["maintain", "--config", path])
    assert done.exit_code == 2
    assert "tabels is 1: unknown key" in done.stderr
    job = runpy.run_path(str(JOBS_FOLDER / "maintain.py"))["main"]
    assert job(["--config", path]) == 2
    assert "tabels is 1" in capsys.readouterr().err
    assert job(["--config", str(tmp_path / "none.toml")]) == 2


def test_values_of_every_type(tmp_path: Path) -> None:
    text = """
[jobs.compute_table_stats]
columns = ["id"]
[jobs.remove_orphan_files]
equal_schemes = { "s3a,s3n" = "s3" }
older_than = "7d"
[jobs.compact_manifests]
cluster_by = ["id"]
min_leaf_ratio = 1
min_masked_ratio = 0.5
snapshot_properties = { job = "7" }
row_filter = "id > 1"
[[tables]]
locations = ["/t"]
"""
    (group,) = read_config(written(tmp_path / "m.toml", text)).tables
    assert group.jobs["compute_table_stats"] == {"columns": ["id"]}
    assert group.jobs["remove_orphan_files"]["equal_schemes"] == {"s3a,s3n": "s3"}


def test_yaml_says_the_same_as_toml(tmp_path: Path) -> None:
    toml = """
dry_run = true
[catalogs.c]
type = "hadoop"
warehouse = "/1"
[thresholds]
max_overlap = 5
small_file_ratio = 0.5
[jobs.expire_snapshots]
older_than = "7d"
retain_last = 2
[[tables]]
catalog = "c"
names = ["a.b", "c.*"]
jobs.compact_manifests = { always = true }
"""
    yaml = """
dry_run: true
catalogs:
  c:
    type: hadoop
    warehouse: /1
thresholds:
  max_overlap: 5
  small_file_ratio: 0.5
jobs:
  expire_snapshots:
    older_than: 7d
    retain_last: 2
tables:
  - catalog: c
    names:
      - a.b
      - c.*
    jobs:
      compact_manifests:
        always: true
"""
    assert read_config(written(tmp_path / "m.yaml", yaml)) == read_config(written(tmp_path / "m.toml", toml))
    for bad in ("a: b: c", yaml.replace("\n      - a.b\n      - c.*", ' ["a.b", "c.*"]')):
        with pytest.raises(ValidationError, match="it is not valid YAML"):
            read_config(written(tmp_path / "bad.yml", bad))


def test_a_job_without_options_in_yaml(tmp_path: Path) -> None:
    yaml = "jobs:\n  expire_snapshots:\n  rewrite_manifests:\n    always: true\n"
    yaml += "tables:\n  - locations:\n      - /t\n    jobs:\n      compact_manifests:\n      rewrite_manifests:\n"
    (group,) = read_config(written(tmp_path / "m.yaml", yaml)).tables
    assert group.jobs == {"expire_snapshots": {}, "rewrite_manifests": {"always": True}, "compact_manifests": {}}
    with pytest.raises(ValidationError, match="expire_snapshots is True: expected options, or false"):
        read_config(written(tmp_path / "bad.yaml", yaml.replace("expire_snapshots:", "expire_snapshots: true")))
    with pytest.raises(ValidationError, match=r"jobs\.vacuum is .*: unknown job"):
        read_config(written(tmp_path / "bad.yaml", yaml.replace("expire_snapshots:", "vacuum:")))


def test_types_of_yaml_are_those_of_options(tmp_path: Path) -> None:
    yaml = """
tables:
  - locations:
      - /t
    jobs:
      rewrite_data_files:
        branch: "2026"
        snapshot_properties:
          ticket: "4711"
        row_filter: "true"
        compression_factor: 1e-1
        delete_ratio_threshold: .5
        rewrite_all: true
        min_input_files: 2
      expire_snapshots: false
"""
    (group,) = read_config(written(tmp_path / "m.yaml", yaml)).tables
    assert group.jobs == {
        "rewrite_data_files": {
            "branch": "2026",
            "snapshot_properties": {"ticket": "4711"},
            "row_filter": "true",
            "compression_factor": 0.1,
            "delete_ratio_threshold": 0.5,
            "rewrite_all": True,
            "min_input_files": 2,
        }
    }
    with pytest.raises(ValidationError, match="min_input_files is 'few': expected a whole number"):
        read_config(written(tmp_path / "bad.yaml", yaml.replace("files: 2", "files: few")))


def test_options_of_a_group_are_checked_with_the_common_ones(tmp_path: Path) -> None:
    text = """
[jobs.remove_orphan_files]
older_than = "1h"
[jobs.rewrite_data_files]
sort_order = "id"
[[tables]]
locations = ["/t"]
jobs.remove_orphan_files.force = true
jobs.rewrite_data_files.strategy = "sort"
"""
    assert len(read_config(written(tmp_path / "m.toml", text)).tables) == 1
    with pytest.raises(
        ValidationError, match=r"tables\[0\].jobs.remove_orphan_files: older_than is .*less than 24 hours"
    ):
        read_config(written(tmp_path / "bad.toml", text.replace("force = true", "force = false")))


def test_statistics_of_partitions_of_an_older_spec(spark: SparkSession, tmp_path: Path) -> None:
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path / "tables"))
    table = append(catalog.create_table("db.t", SCHEMA, SPEC, format_version=2, spark=spark), 1, 2)
    with table.update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
    assert table.refresh().spec().is_unpartitioned()
    catalog.create_table("db.none", SCHEMA, format_version=2, spark=spark)
    config = f"""
[[tables]]
locations = ["{tmp_path}/tables/db/t", "{tmp_path}/tables/db/none"]
[jobs.compute_partition_stats]
"""
    code, results, _ = command("--config", str(written(tmp_path / "c.toml", config)), "--commit")
    assert code == 0
    assert [result["status"] for result in results] == ["committed", "not applicable"]


def test_jobs_and_thresholds_of_a_group_come_first(tmp_path: Path) -> None:
    text = """
[thresholds]
max_overlap = 5
min_small_files = 7
[jobs.expire_snapshots]
retain_last = 2
clean_expired_metadata = true
[jobs.remove_orphan_files]
[[tables]]
locations = ["/t"]
thresholds.max_overlap = 9
jobs.remove_orphan_files = false
jobs.expire_snapshots.retain_last = 3
"""
    (group,) = read_config(written(tmp_path / "m.toml", text)).tables
    assert group.jobs == {"expire_snapshots": {"retain_last": 3, "clean_expired_metadata": True}}
    assert (group.thresholds.max_overlap, group.thresholds.min_small_files) == (9, 7)


def test_every_job_of_the_example_exists_and_every_operation_is_a_job() -> None:
    example = tomllib.loads((ROOT / "conf" / "maintenance.toml").read_text())
    names = [job.name for job in JOBS]
    assert set(example["jobs"]) <= set(names)
    for name in set(names) - {"check"}:
        assert callable(getattr(sm.Maintenance, name))
    public = {name for name in vars(sm.Maintenance) if not name.startswith("_")} - {"table"}
    assert public - set(names) == {"health", "leaf_map", "undo_upgrade", "convert_tree", "rewrite_table_path", "repair"}


def test_upgrades_to_a_version(spark: SparkSession, tmp_path: Path) -> None:
    """Tables of the version, of a later one, and trees are passed over."""
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path / "tables"))
    for version in (1, 2, 3, 4):
        catalog.create_table(f"db.v{version}", SCHEMA, SPEC, format_version=version, spark=spark)
    config = f"""
[catalogs.lake]
type = "hadoop"
warehouse = "file://{tmp_path}/tables"
[[tables]]
catalog = "lake"
names = ["db.*"]
[jobs.upgrade]
format_version = 2
"""
    code, results, _ = command("--config", str(written(tmp_path / "c.toml", config)), "--commit")
    assert code == 0
    done = {name: status for (name, job), status in statuses(results).items() if job == "upgrade"}
    assert done == {"db.v1": "committed"} | dict.fromkeys(("db.v2", "db.v3", "db.v4"), "not applicable")
    assert [catalog.load_table(f"db.v{version}", spark).format_version for version in (1, 2, 3, 4)] == [
        2,
        2,
        3,
        4,
    ]
