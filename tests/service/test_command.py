"""Services in processes of their own, which are ended and killed; what the command and its job refuse."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from sparkmeta.cli.serve import serve_options
from sparkmeta.errors import SettingError
from sparkmeta.service.access import check_options, one_token
from tests.command_line import invoke
from tests.handmade import HandmadeTable, data
from tests.service.serving import Client, eventually, served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

JOB = Path(__file__).parent.parent.parent / "jobs" / "serve.py"
TOKEN = "a-token-of-many-characters"
FILES, PAGE = 60, 6
_SERVING = re.compile(r"serving on (http://\S+)")


class Process:
    """A service in a process of its own.

    Attributes:
        uri: its address.
    """

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self._log = log
        with log.open("w") as stream:
            self._process = subprocess.Popen([sys.executable, *command], stderr=stream, env=os.environ | environment)
        eventually(lambda: self._process.poll() is not None or _SERVING.search(self.log) is not None)
        address = _SERVING.search(self.log)
        assert address is not None, self.log
        self.uri = address[1]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self, sent: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self._process.send_signal(sent)
        return self._process.wait(300)


@contextmanager
def process(command: Sequence[str], log: Path, **environment: str) -> Iterator[Process]:
    running = Process(command, log, **environment)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


def test_a_service_ends_after_what_it_answers(tmp_path: Path):
    """It needs no session before it plans."""
    lines = (
        "import logging, sparkmeta as sm",
        "from tests.service.serving import LocatedTables",
        "logging.basicConfig(level=logging.INFO)",
        "service = sm.serve(LocatedTables({}), object(), port=0)",
        "logging.info('the spool is %s', service.spool)",
        "service.run()",
        "logging.info('returned')",
    )
    with process(["-c", "; ".join(lines)], tmp_path / "log") as service:
        assert requests.get(f"{service.uri}/v1/namespaces", timeout=300).json() == {"namespaces": [["db"]]}
        assert requests.get(f"{service.uri}/healthz", timeout=300).status_code == 503
        assert service.end(signal.SIGTERM) == 0
        (spool,) = re.findall(r"the spool is (\S+)", service.log)
        assert not Path(spool).exists()
        assert service.log.rstrip().endswith("returned")
        assert '"endpoint": "namespaces", "path": "/v1/namespaces", "status": 200' in service.log


def test_a_service_is_killed(tmp_path: Path, spark: SparkSession, soak: bool):
    """A replica goes on with the pages of its plans, and so does the service once it has started again."""
    table = HandmadeTable(tmp_path / "warehouse" / "db" / "t")
    table.add(0, 1, *(data(f"file:///t/{number:03}.parquet", record_count=10) for number in range(FILES)))
    location = table.write()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    catalog = ["--property", "type=hadoop", "--property", f"warehouse={tmp_path / 'warehouse'}"]
    options = ["--port", "0", "--wait-seconds", "300", "--page-tasks", str(PAGE), "--spool", str(tmp_path / "spool")]
    users = ["--token-file", str(tmp_path / "token")]
    command = ["-m", "sparkmeta", "serve", "--catalog", "local", *catalog, *options, *users]
    secret = {"SPARKMETA_SERVE_SECRET": "of all the replicas"}
    shared: dict[str, Any] = {"spool": str(tmp_path / "spool"), "secret": secret["SPARKMETA_SERVE_SECRET"].encode()}

    def fetched(asked: Client, plan: dict[str, Any]) -> int:
        return len(asked.fetched("t", plan["plan-tasks"])) + len(plan.get("file-scan-tasks", []))

    with process(command, tmp_path / "log", **secret) as service:
        assert requests.get(f"{service.uri}/v1/config", timeout=300).status_code == 401
        client = Client(service, Authorization=f"Bearer {TOKEN}")
        plan = client.plan("t").json()
        assert len(plan["plan-tasks"]) >= FILES // PAGE - 1
        client.tasks("t", plan["plan-tasks"][0])
        with ThreadPoolExecutor(1) as pool:
            interrupted = pool.submit(client.plan, "t", filter={"type": "not-null", "term": "id"})
            eventually(lambda: interrupted.done() or len(list((tmp_path / "spool").iterdir())) > 1)
            service.end(signal.SIGKILL)
            error = interrupted.exception()
        assert error is None or isinstance(error, requests.RequestException)
        assert TOKEN not in service.log
    with served({"t": location}, spark, principals=one_token(TOKEN), page_tasks=PAGE, **shared) as replica:
        beside = Client(replica, Authorization=f"Bearer {TOKEN}")
        assert fetched(beside, plan) == FILES
        assert len(beside.planned("t", filter={"type": "not-null", "term": "id"})) == FILES
        if soak:
            with process(command, tmp_path / "log", **secret) as service:
                again = Client(service, Authorization=f"Bearer {TOKEN}")
                assert fetched(again, plan) == fetched(beside, again.plan("t").json()) == FILES
                assert service.end(signal.SIGTERM) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "needs a bearer token"),
        (["--token-file", "nothing"], "nothing: No such file or directory"),
        (["--token-file", "a", "--principals", "b"], "are mutually exclusive"),
        (["--principal-header", "X-User"], "anybody can send a header"),
        (["--slots", "0"], "slots is 0"),
    ],
)
def test_what_the_command_and_the_job_refuse(
    arguments: list[str], message: str, spark: SparkSession, tmp_path: Path, capsys
):
    properties = ["--property", "type=hadoop", "--property", f"warehouse={tmp_path}", "--catalog", "local"]
    result = invoke(["serve", *properties, *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert runpy.run_path(str(JOB))["main"]([*properties, *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_secret_of_replicas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARKMETA_SERVE_SECRET", "a secret of all replicas")
    assert serve_options({}).secret == b"a secret of all replicas"
    monkeypatch.setenv("SPARKMETA_SERVE_SECRET", "short")
    with pytest.raises(SettingError, match="the secret has 5 bytes"):
        check_options(serve_options({}))
    monkeypatch.delenv("SPARKMETA_SERVE_SECRET")
    assert serve_options({}).secret != serve_options({}).secret
