"""Processes that change rows of one table are killed and restarted: every change is complete, and made once.

The tests run only with SPARKMETA_SOAK=1, since each process takes some seconds to start.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.cluster import standalone_cluster
from tests.commit.tables import QUICK
from tests.maintain.test_expire import planned_paths, soon
from tests.peers.slices import SOAK
from tests.write.list_files import unreached_files
from tests.write.row_committers import changes_of, rows_after
from tests.write.test_changes import BY_PART, MODES, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
WORKERS, CHANGES, KILLS = 2, 24, 12
LONGEST = 1800


class Worker:
    """A process that changes rows, and the log of its output."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log = folder / f"worker-{number}.log"
        self.command = [
            sys.executable, "-m", "tests.write.row_committers", str(folder), str(number), str(CHANGES)
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.begun = self.said
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> int:
        return self.log.read_text().count("at ") if self.log.exists() else 0

    def kill(self) -> None:
        """Kill the process and the JVM that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.skipif(not SOAK, reason="takes minutes: SPARKMETA_SOAK=1 runs it")
@pytest.mark.parametrize(("version", "mode"), [(2, MODES[1]), (3, MODES[0]), (3, MODES[1])])
def test_processes_are_killed(spark: SparkSession, tmp_path: Path, version: int, mode: str) -> None:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    properties = QUICK | {f"write.{command}.mode": mode for command in ("delete", "update")}
    properties |= {"write.metadata.previous-versions-max": "1000", "commit.retry.min-wait-ms": "10"}
    table = catalog.create_table("db.t", SCHEMA, BY_PART, format_version=version, properties=properties, spark=spark)
    chance, killed, end = random.Random(5), 0, time.monotonic() + LONGEST
    workers = [Worker(tmp_path, number) for number in range(WORKERS)]
    try:
        while any(worker.process.poll() is None for worker in workers):
            assert time.monotonic() < end, "the processes hang"
            time.sleep(chance.uniform(0.1, 1.5))
            worker = chance.choice(workers)
            # Some time after it has printed that it begins a change.
            may_kill = killed < KILLS and worker.said > worker.begun and chance.random() < 0.3
            if may_kill and worker.process.poll() is None:
                worker.kill()
                killed += 1
                worker.start()
        assert [worker.process.returncode for worker in workers] == [0] * WORKERS
    finally:
        for worker in workers:
            worker.kill()
    assert killed == KILLS
    table = table.refresh()
    changes = [changes_of(table, number) for number in range(WORKERS)]
    assert changes == [[*range(CHANGES)]] * WORKERS
    done = [0] * WORKERS
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        worker_number, _, number = snapshot.summary.additional_properties["change"].partition("/")
        done[int(worker_number)] = int(number) + 1
        read = sorted(map(tuple, table.scan(snapshot_id=snapshot.snapshot_id).to_df().collect()))
        assert read == sorted(row for number, count in enumerate(done) for row in rows_after(number, count))
    left = unreached_files(table)
    orphans = planned_paths(table.maintenance.remove_orphan_files(older_than=soon(), force=True).to_df())
    assert orphans == left
    print(f"v{version} {mode}: {killed} kills, {len(left)} files left")  # noqa: T201


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of the master of a cluster."""
    with standalone_cluster(tmp_path) as cluster:
        yield cluster.master


@pytest.mark.jvm
@pytest.mark.skipif(not SOAK, reason="takes a minute: SPARKMETA_SOAK=1 runs it")
@pytest.mark.parametrize("kind", ["fails", "hangs"])
def test_tasks_are_tried_twice(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """An attempt of a task fails, or loses to a speculative one.

    No row is doubled, and a left-over file is an orphan.
    """
    master = "local[2, 3]" if kind == "fails" else request.getfixturevalue("cluster")
    done = subprocess.run(
        [sys.executable, "-m", "tests.write.retried_tasks", master, str(tmp_path), kind], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=LONGEST,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    expected = {i: int(i < 20) for i in range(40)} | dict.fromkeys(range(30, 50), 0)
    assert report["rows"] == [[i, n] for i, n in sorted(expected.items())]
    assert report["orphans"] == report["left"]
    assert kind == "hangs" or not report["left"], "an attempt that fails deletes its files"
    assert all(len(noted) > 2 for noted in report["notes"].values())
    print(master, f"{len(report['left'])} files left")  # noqa: T201
