"""Processes that write to and maintain one table in a folder: `python -m tests.maintain.maintainers role folder ...`.

`write` appends manifests that exist before, one for each step, without Spark. `maintain` does the maintenance jobs in
turns, each on the newest state, until there is a file `stop` in the folder.
"""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sparkmeta as sm
from sparkmeta.edit.attempts import commit_steps
from sparkmeta.errors import CommitFailedError, SparkmetaError
from sparkmeta.session import local_session
from tests.commit.list_committers import AppendManifest
from tests.commit.places import open_operations
from tests.commit.tree_committers import opened

JOBS: dict[str, Any] = {
    "rewrite_manifests": lambda table: table.maintenance.rewrite_manifests(target_manifest_bytes=3_000),
    "expire_snapshots": lambda table: table.maintenance.expire_snapshots(
        older_than=datetime.now(UTC) + timedelta(hours=1), retain_last=3
    ),
    "remove_orphan_files": lambda table: table.maintenance.remove_orphan_files(),
    "remove_dangling_deletes": lambda table: table.maintenance.remove_dangling_deletes(),
    "rewrite_position_delete_files": lambda table: table.maintenance.rewrite_position_delete_files(rewrite_all=True),
}


def write(folder: Path, worker: int, steps: int) -> None:
    """Append the manifests of a worker, each once."""
    swap, name = open_operations("", folder), f"worker.{worker}"
    while True:
        table = opened(swap)
        step = int(table.properties.get(name, "0")) + 1
        if step > steps:
            return
        try:
            commit_steps(table, [AppendManifest(worker, step)])
        except CommitFailedError:
            time.sleep(random.uniform(0, 0.1))


def maintain(folder: Path, seed: int) -> None:
    """Do the jobs in random order, and say of each what became of it."""
    chance = random.Random(seed)
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    spark = local_session("maintainers", cores=1, memory="1g", config=quick)
    print("ready", flush=True)  # noqa: T201
    while not (folder / "stop").exists():
        for name in chance.sample(sorted(JOBS), len(JOBS)):
            try:
                JOBS[name](sm.load_table(f"file://{folder}/table", spark=spark)).commit()
                outcome = "done"
            except SparkmetaError as error:
                outcome = f"{type(error).__name__} {error}"
            print(name, outcome, flush=True)  # noqa: T201


if __name__ == "__main__":
    role, where, *numbers = sys.argv[1:]
    {"write": write, "maintain": maintain}[role](Path(where), *map(int, numbers))
