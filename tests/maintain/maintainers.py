"""Processes that write to and maintain one table in a folder: `python -m tests.maintain.maintainers role folder ...`.

The role `write` appends manifests that were written beforehand, one for each step, without Spark. `maintain` runs the
maintenance jobs in turns, each on the newest state, until the folder has a file `stop`. `convert` upgrades the table to
a tree and downgrades it again, until then too.
"""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparkmeta as sm
from sparkmeta import local_session
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.errors import CommitFailedError, SparkmetaError
from tests.commit.list_committers import AppendManifest
from tests.commit.places import open_operations
from tests.commit.tree_committers import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: dict[str, Any] = {
    "rewrite_manifests": lambda table: table.maintenance.rewrite_manifests(target_manifest_bytes=3_000),
    "expire_snapshots": lambda table: table.maintenance.expire_snapshots(
        older_than=datetime.now(UTC) + timedelta(hours=1), retain_last=3
    ),
    "remove_orphan_files": lambda table: table.maintenance.remove_orphan_files(),
    "rewrite_data_files": lambda table: table.maintenance.rewrite_data_files(rewrite_all=True),
    "compute_partition_stats": lambda table: table.maintenance.compute_partition_stats(),
    "compute_table_stats": lambda table: table.maintenance.compute_table_stats(),
    "remove_dangling_deletes": lambda table: table.maintenance.remove_dangling_deletes(),
    "rewrite_position_delete_files": lambda table: table.maintenance.rewrite_position_delete_files(rewrite_all=True),
}

CONVERSIONS: dict[str, Any] = {
    "upgrade": lambda table: table.maintenance.upgrade(4, compact=True),
    "downgrade": lambda table: table.maintenance.downgrade(3),
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
    """Run the jobs in random order, and print the outcome of each."""
    chance = random.Random(seed)
    spark = session()
    while not (folder / "stop").exists():
        for name in chance.sample(sorted(JOBS), len(JOBS)):
            carry_out(spark, folder, name, JOBS[name])


def convert(folder: Path, _: int) -> None:
    """Convert the table to the other format version, repeatedly."""
    spark = session()
    while not (folder / "stop").exists():
        version = sm.load_table(f"file://{folder}/table", spark=spark).metadata.format_version
        name = "upgrade" if version < 4 else "downgrade"
        carry_out(spark, folder, name, CONVERSIONS[name])


def session() -> SparkSession:
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    spark = local_session("maintainers", cores=1, memory="1g", config=quick)
    print("ready", flush=True)  # noqa: T201
    return spark


def carry_out(spark: SparkSession, folder: Path, name: str, job: Any) -> None:
    """Plan and commit a job on the table's newest state, and print its outcome."""
    try:
        job(sm.load_table(f"file://{folder}/table", spark=spark)).commit()
        outcome = "done"
    except SparkmetaError as error:
        outcome = f"{type(error).__name__} {error}"
    print(name, outcome, flush=True)  # noqa: T201


if __name__ == "__main__":
    role, where, *numbers = sys.argv[1:]
    {"write": write, "maintain": maintain, "convert": convert}[role](Path(where), *map(int, numbers))
