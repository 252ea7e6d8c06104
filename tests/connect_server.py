"""A Spark Connect server that shares neither process nor files with its client, as on a cluster.

Its workers have a copy of the package. In the server's mount namespace, folders of the client are empty: the checkout's
`sparkmeta` and `tests`, and whatever else is to be hidden. pytest's temporary folders are shared on purpose, since most
tests write their tables there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from sparkmeta.java import spark_java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parent.parent
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SPARK_HOME = Path(pyspark.__file__).parent
# A user namespace lets anybody mount.
_NAMESPACE = ["unshare", "--map-root-user", "--mount"]
_HIDE = 'set -e; while [ "$1" != -- ]; do mount -t tmpfs none "$1"; shift; done; shift; exec "$@"'
_END_WITH_CLIENT = ["setpriv", "--pdeathsig", "TERM"]
# Modules of tests that workers import.
_OF_WORKERS = ("python_daemon.py", "logging_reader.py")
_SECONDS = 120
LOG = "log"
"""The name of the server's log in its folder."""


@contextmanager
def connect_server(folder: Path, options: Mapping[str, str], hidden: Sequence[Path]) -> Iterator[str]:
    """The URL of a new server; skips the test where the machine has no mount namespaces.

    Args:
        folder: of the server alone: its working folder, home and scratch folders.
        options: Spark settings of the server.
        hidden: folders of the client that are empty for the server.
    """
    if not _has_namespaces():
        pytest.skip("no mount namespaces, which hide the client's files from a Connect server")
    _install(folder / "lib")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = dict(options) | {"spark.connect.grpc.binding.port": str(port)}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", SERVER]
    command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    folders = [str(path) for path in (ROOT / "sparkmeta", ROOT / "tests", *hidden)]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [*_NAMESPACE, "sh", "-c", _HIDE, "sh", *folders, "--", *_END_WITH_CLIENT, *command, "spark-internal"],
            cwd=folder,
            env=_environment(folder),
            stdout=log,
            stderr=log,
        )
    try:
        _wait(process, port, folder / LOG)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = [*_NAMESPACE, "mount", "-t", "tmpfs", "none", str(ROOT / "tests")]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def _install(library: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sparkmeta", library / "sparkmeta", ignore=ignored)
    (library / "tests").mkdir()
    for module in _OF_WORKERS:
        shutil.copy(ROOT / "tests" / module, library / "tests")


def _environment(folder: Path) -> dict[str, str]:
    """Return the server's environment, which has nothing of the client's but what names programs."""
    (folder / "tmp").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        # Java then reads the names of files as UTF-8.
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "JAVA_HOME": str(spark_java_home()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(folder / "tmp"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={folder / 'tmp'} " + os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(folder / "lib"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when the server accepts connections."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the Connect server has not started:\n" + log.read_text()[-2000:])
