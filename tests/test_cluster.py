"""Lives of tables on a standalone cluster: tasks run in other processes than the driver, and some twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import HOSTS, standalone_cluster
from tests.peers.slices import SOAK
from tests.table_life import ON_CLUSTERS

ROOT = Path(__file__).parent.parent
LONGEST = 7200


@pytest.mark.jvm
@pytest.mark.skipif(not SOAK, reason="takes half an hour: SPARKMETA_SOAK=1 runs it")
def test_lives_on_a_cluster(tmp_path: Path) -> None:
    """In a separate process, with Spark's settings instead of the tests' session's."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    with standalone_cluster(tmp_path / "workers") as master:
        done = subprocess.run(
            [sys.executable, "-m", "tests.table_life", master, str(tmp_path)], cwd=ROOT, text=True,
            env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=LONGEST,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    hosts, *lives = done.stdout.splitlines()
    assert hosts.split() == [*HOSTS]
    assert lives == [" ".join(map(str, life)) for life in ON_CLUSTERS]
