"""A standalone cluster of Spark's own on this machine: a master and two workers, each a process."""

from __future__ import annotations

import compileall
import os
import py_compile
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

import sparkmeta as sm
from sparkmeta.java import spark_java_home
from tests.processes import below, executors, workers

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Those of the workers; speculation needs two."""
ENVIRONMENT = "environment"
_SECONDS = 60
_END_WITH_TESTS = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
_STARVED_SECONDS = 5


class Cluster:
    """A master and workers. What they run can be killed.

    Attributes:
        folder: where each worker has a folder.
        master: the URL of the master.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.master = folder, f"spark://{HOSTS[0]}:{port}"
        # Executors have the environment of their worker. They are to find no package by that of the tests.
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._environment |= {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(spark_java_home())}
        # The memory of the daemons; executors have their own. An application goes on, however often they die.
        options = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-Dspark.deploy.maxExecutorRetries=-1"}
        self._environment |= options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start(HOSTS[0], "master.Master", "--port", str(port))
            # A worker that finds no master tries again only after ten seconds.
            _wait_for(port)
            for host in HOSTS:
                self._start_worker(host)
        except BaseException:
            self.stop()
            raise

    def _start_worker(self, host: str) -> None:
        size = ["--cores", "1", "--memory", "1g", "--work-dir", f"{self.folder}/{host}"]
        self._start(host, "worker.Worker", *size, self.master)

    def _start(self, host: str, name: str, *arguments: str) -> None:
        run = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        command = [*_END_WITH_TESTS, *run, "--host", host, "--webui-port", "0", *arguments]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        environment = self._environment | {"SPARK_LOCAL_IP": host}
        self._processes[name if name == "master.Master" else host] = subprocess.Popen(command, env=environment, **quiet)

    def kill(self, what: str, chance: random.Random) -> bool:
        """Kill a "worker", an "executor" or a process of "python"; or let an executor "starve", and then kill it.

        A killed worker takes its executor with it, and a new one starts. Return False if there is nothing to kill.
        """
        host = chance.choice(HOSTS)
        root = self._processes[host]
        if what == "worker":
            _kill_group(root)
            self._start_worker(host)
            return True
        chosen = (workers if what == "python" else executors)(root.pid)
        if not chosen:
            return False
        pid = chance.choice(chosen)
        if what == "starve":
            for each in (pid, *below(pid)):
                with suppress(OSError):
                    # It keeps what it has, and gets no more.
                    resource.prlimit(each, resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
            time.sleep(_STARVED_SECONDS)
        with suppress(ProcessLookupError):  # also if it has died of hunger
            os.kill(pid, signal.SIGKILL)
        return True

    def stop(self) -> None:
        for process in self._processes.values():
            _kill_group(process)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose workers have a core and 1 GiB each.

    folder: for what workers write.
    """
    with socket.socket() as free:
        free.bind((HOSTS[0], 0))
        port = free.getsockname()[1]
    cluster = Cluster(folder, port)
    try:
        yield cluster
    finally:
        cluster.stop()


def packed_environment(folder: Path) -> Path:
    """Return the archive of a Python environment with the package, which is how clusters get it.

    See docs/guides/platforms.md. The dependencies are in the environment of the tests.
    """
    place = folder / ENVIRONMENT
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    shutil.copytree(Path(sm.__file__).parent, packages / "sparkmeta", ignore=shutil.ignore_patterns("__pycache__"))
    # As pip does; each executor would do it again.
    compileall.compile_dir(packages, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    # A line of such a file adds a folder to the path, but not the files of this kind in it.
    (packages / "dependencies.pth").write_text(str(Path(pyspark.__file__).parent.parent))
    archive = folder / f"{ENVIRONMENT}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(place, ".")
    return archive


def _kill_group(process: subprocess.Popen[bytes]) -> None:
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
