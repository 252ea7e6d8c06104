"""A standalone cluster of Spark's own on this machine: a master and two workers, each a process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from sparkmeta.java import spark_java_home

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Those of the workers; speculation needs two."""
_SECONDS = 60
_END_WITH_TESTS = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The URL of the master of a cluster whose workers have a core and 1 GiB each.

    folder: for what workers write.
    """
    with socket.socket() as free:
        free.bind((HOSTS[0], 0))
        port = free.getsockname()[1]
    master, run = f"spark://{HOSTS[0]}:{port}", Path(pyspark.__file__).parent / "bin" / "spark-class"
    shared = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(spark_java_home())}
    # The memory of the daemons; executors have their own.
    shared |= {"SPARK_DAEMON_MEMORY": "256m"}
    processes: list[subprocess.Popen[bytes]] = []

    def start(host: str, name: str, *arguments: str) -> None:
        command = [
            *_END_WITH_TESTS,
            str(run),
            f"org.apache.spark.deploy.{name}",
            "--host",
            host,
            "--webui-port",
            "0",
            *arguments,
        ]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = shared | {"SPARK_LOCAL_IP": host}
        processes.append(subprocess.Popen(command, env=environment, start_new_session=True, **quiet))

    try:
        start(HOSTS[0], "master.Master", "--port", str(port))
        # A worker that finds no master tries again only after ten seconds.
        _wait_for(port)
        for host in HOSTS:
            start(host, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", f"{folder}/{host}", master)
        yield master
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((HOSTS[0], port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"no master at port {port} after {_SECONDS} s")
