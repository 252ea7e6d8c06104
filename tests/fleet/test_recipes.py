"""The recipes in docs/scheduling.md: each runs the command or job of maintenance with arguments that it takes."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml

import sparkmeta as sm
from tests.command_line import invoke

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
CONFIG = "/etc/sparkmeta/maintenance.toml"


def recipe(title: str, language: str) -> str:
    """The code of a recipe."""
    text = (ROOT / "docs" / "scheduling.md").read_text()
    section = text.partition(f"\n## {title}")[2].partition("\n## ")[0]
    (code,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(code)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a table that needs nothing, and one whose snapshots expire."""
    rows = pa.table({"id": [1]})
    catalog = sm.load_catalog("c", type="hadoop", warehouse=f"{tmp_path}/tables")
    catalog.create_table("db.idle", rows.schema).append(rows)
    catalog.create_table("db.busy", rows.schema).append(rows).append(rows)
    path = tmp_path / "maintenance.toml"
    path.write_text(
        f'[catalogs.c]\ntype = "hadoop"\nwarehouse = "{tmp_path}/tables"\n'
        '[jobs.expire_snapshots]\nolder_than = "0m"\n[[tables]]\ncatalog = "c"\nnames = ["db.*"]\n'
    )
    return path


def carried_out(command: Sequence[str], config: Path) -> list[str]:
    """Run a command of a recipe with a configuration, and return the statuses of its results."""
    program, *arguments = [text.replace(CONFIG, str(config)) for text in command]
    assert Path(program).name == "sparkmeta"
    result = invoke(arguments)
    assert result.exit_code == 0, result.output
    return sorted(json.loads(line)["status"] for line in result.stdout.splitlines())


DONE = ["committed", "committed", "nothing to do"]


def test_cron(config: Path) -> None:
    code = recipe("Every night, by cron", "sh")
    command = shlex.split(code.partition("exec ")[2].partition(">>")[0])
    assert carried_out([text for text in command if text.strip()], config) == DONE


def test_kubernetes(config: Path) -> None:
    job = yaml.safe_load(recipe("Kubernetes", "yaml"))
    assert (job["kind"], job["spec"]["concurrencyPolicy"]) == ("CronJob", "Forbid")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert carried_out(container["command"], config) == DONE
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert [mounts[volume["name"]] for volume in pod["volumes"]] == [str(Path(CONFIG).parent)]


class Anything:
    """A class of a scheduler that records how it is called."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options
        calls.append(self)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


calls: list[Anything] = []


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Anything]]:
    """Stand-ins for the modules of Airflow and Dagster, which are not installed."""
    names = {
        "airflow": [], "airflow.sdk": ["DAG"], "airflow.providers": [], "airflow.providers.apache": [],
        "airflow.providers.apache.spark": [], "airflow.providers.apache.spark.operators": [],
        "airflow.providers.apache.spark.operators.spark_submit": ["SparkSubmitOperator"],
        "dagster": ["AssetExecutionContext", "Definitions", "MaterializeResult", "ScheduleDefinition"],
    }  # fmt: skip
    for name, classes in names.items():
        module = types.ModuleType(name)
        for each in classes:
            setattr(module, each, type(each, (Anything,), {}))
        if name == "dagster":
            module.asset = lambda function: function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    calls.clear()
    yield calls
    calls.clear()


def job_arguments(arguments: Sequence[str], config: Path) -> list[str]:
    """The arguments of jobs/maintain.py, with a configuration in place of the recipe's."""
    return [str(config) if text.endswith("maintenance.toml") else text for text in arguments]


def test_airflow(scheduler: list[Anything], config: Path) -> None:
    exec(recipe("Airflow", "python"), {})
    dag, operator = scheduler
    assert dag.options["max_active_runs"] == 1
    assert (ROOT / "jobs" / Path(operator.options["application"]).name).exists()
    arguments = job_arguments(operator.options["application_args"], config)
    assert carried_out(["sparkmeta", "maintain", *arguments], config) == DONE


def test_databricks(config: Path) -> None:
    job = json.loads(recipe("Databricks", "json"))
    task = job["tasks"][0]["spark_python_task"]
    assert (ROOT / "jobs" / Path(task["python_file"]).name).exists()
    assert carried_out(["sparkmeta", "maintain", *job_arguments(task["parameters"], config)], config) == DONE
    bundle = yaml.safe_load((ROOT / "conf" / "databricks.yml").read_text())
    assert bundle["resources"]["jobs"]


def test_dagster(scheduler: list[Anything], config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The asset runs the command, and has the numbers of results."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    names: dict[str, Any] = {}
    exec(recipe("Dagster", "python"), names)
    assert [call.options["cron_schedule"] for call in scheduler if "cron_schedule" in call.options] == ["30 2 * * *"]
    names["COMMAND"][:] = [text.replace(CONFIG, str(config)) for text in names["COMMAND"]]
    result = names["maintained_tables"](None)
    assert result.options["metadata"] == {"committed": 2, "nothing to do": 1}
