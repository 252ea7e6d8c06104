"""`sparkmeta serve` in a process of its own, and what it and its job refuse."""

from __future__ import annotations

import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
from click.testing import CliRunner

from sparkmeta.cli import main
from sparkmeta.cli.serve import serve_options
from sparkmeta.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = Path(__file__).parent.parent.parent / "jobs" / "serve.py"
TOKEN = "a-token-of-many-characters"


def test_the_command_serves_until_it_is_stopped(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    warehouse = tmp_path / "warehouse"
    (warehouse / "db").mkdir(parents=True)
    command = [sys.executable, "-m", "sparkmeta", "serve", "--catalog", "local", "--port", str(port)]
    command += ["--property", "type=hadoop", "--property", f"warehouse={warehouse}"]
    command += ["--token-file", str(tmp_path / "token"), "--spool", str(tmp_path / "spool")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        answer = answered(f"http://127.0.0.1:{port}/v1/config", process)
        assert answer["overrides"] == {"scan-planning-mode": "server"}
        assert requests.get(f"http://127.0.0.1:{port}/v1/config", timeout=60).status_code == 401
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGTERM), log
    assert f"serving on http://127.0.0.1:{port}" in log
    assert '"endpoint": "config", "path": "/v1/config", "status": 200' in log
    assert TOKEN not in log


def answered(uri: str, process: subprocess.Popen[str]) -> dict[str, object]:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            answer = requests.get(uri, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        except requests.ConnectionError:
            time.sleep(0.2)
            continue
        assert answer.status_code == 200
        document: dict[str, object] = answer.json()
        return document
    raise AssertionError(f"the service does not answer: {process.poll()}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "needs a bearer token"),
        (["--token-file", "nothing"], "nothing: No such file or directory"),
        (["--token-file", "a", "--principals", "b"], "exclude each other"),
        (["--principal-header", "X-User"], "anybody can send a header"),
        (["--slots", "0"], "slots is 0"),
    ],
)
def test_what_the_command_and_the_job_refuse(
    arguments: list[str], message: str, spark: SparkSession, tmp_path: Path, capsys
):
    properties = ["--property", "type=hadoop", "--property", f"warehouse={tmp_path}", "--catalog", "local"]
    result = CliRunner().invoke(main, ["serve", *properties, *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert runpy.run_path(str(JOB))["main"]([*properties, *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_secret_of_replicas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARKMETA_SERVE_SECRET", "a secret of all replicas")
    assert serve_options({}).secret == b"a secret of all replicas"
    monkeypatch.setenv("SPARKMETA_SERVE_SECRET", "short")
    with pytest.raises(SettingError, match="the secret has 5 bytes"):
        serve_options({}).check()
    monkeypatch.delenv("SPARKMETA_SERVE_SECRET")
    assert serve_options({}).secret != serve_options({}).secret
