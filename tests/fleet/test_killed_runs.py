"""Runs of `sparkmeta maintain` that are killed at random: the next ones finish, and no table is worse."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sparkmeta.fleet.lease import LEASE, lease_of
from tests.fleet.test_run import Fleet, ids

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20261130
JOBS = """
[jobs.rewrite_data_files]
min_input_files = 2
[jobs.expire_snapshots]
older_than = '0m'
retain_last = 1
[jobs.remove_orphan_files]
older_than = '2d'
[jobs.compact_manifests]
[jobs.rewrite_manifests]
"""


def process(config: Path, output: Path) -> subprocess.Popen[bytes]:
    """Begin a run that appends its results to a file, and its log to one beside it."""
    command = [sys.executable, "-m", "sparkmeta", "maintain", "--config", str(config), "--commit"]
    with output.open("ab") as out, output.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=out, stderr=log, env=os.environ)


def test_runs_are_killed(tmp_path: Path, soak: bool) -> None:
    """A run after some that were killed finishes; rows stay, and each table has a file, a snapshot and no lease."""
    tables, kills, rng = (200, 40, random.Random(SEED)) if soak else (12, 3, random.Random(SEED))
    fleet = Fleet(tmp_path)
    for number in range(tables):
        fleet.table(f"t{number:03}", files=4 + number % 3, version=2 + number % 3)
    # Leases last a minute at least: too long for the slice.
    config = fleet.config("side_by_side = 4\n" + 'lease = "1m"' * soak, JOBS)
    output = tmp_path / "results.jsonl"
    output.touch()
    for _ in range(kills):
        run = process(config, output)
        time.sleep(rng.uniform(1.5, 6))
        run.send_signal(signal.SIGKILL)
        run.wait()
    leased = sum(LEASE in fleet.load(f"t{number:03}").properties for number in range(tables))
    assert leased <= 4 * kills
    # The leases of killed runs end by themselves.
    deadline = time.monotonic() + timedelta(minutes=3).total_seconds()
    statuses = {"leased"}
    while "leased" in statuses and time.monotonic() < deadline:
        seen = output.stat().st_size
        assert process(config, output).wait() in (0, 3), output.with_suffix(".log").read_text()[-2_000:]
        with output.open() as results:
            results.seek(seen)
            statuses = {json.loads(line)["status"] for line in results}
        time.sleep(5 if "leased" in statuses else 0)
    assert statuses <= {"committed", "nothing to do", "not applicable"}
    for number in range(tables):
        table = fleet.load(f"t{number:03}")
        assert ids(table) == list(range(4 + number % 3))
        assert (len(table.inspect.arrow.files()), len(table.snapshots())) == (1, 1)
        assert lease_of(table.properties)[1] < datetime.now(UTC)
        assert not table.arrow.check().to_pylist()
