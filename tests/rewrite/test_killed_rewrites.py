"""Processes are killed while they commit a rewrite: the table is as before or after it, and what is left are orphans.

A process starts for each kill. Rewrites of manifests need no Spark. Rewrites of data files start a session, and are in
the soak only.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta import local_session
from tests.local_files import local_path
from tests.maintain.test_expire import files_below, planned_paths, soon
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
SCHEMA = Schema(NestedField(1, "id", LongType()))
FILES = 6
REWRITES: dict[str, Any] = {
    "manifests": lambda table: table.maintenance.rewrite_manifests(),
    "data": lambda table: table.maintenance.rewrite_data_files(rewrite_all=True),
}
# The rewrites of a version, and how many processes of each are killed.
CASES = [(2, "manifests", 10 if SOAK else 3)]
CASES += [(2, "data", 10), (4, "data", 20)] if SOAK else []


def new_table(folder: Path, version: int) -> sm.Table:
    catalog = sm.load_catalog("killed", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    properties = {"commit.manifest-merge.enabled": "false"}
    table = catalog.create_table("db.t", SCHEMA, format_version=version, properties=properties)
    for number in range(FILES):
        table = table.append(pa.table({"id": pa.array([2 * number, 2 * number + 1], pa.int64())}))
    return table.delete("id = 3")


def start(location: str, rewrite: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.rewrite.test_killed_rewrites", location, rewrite]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def reached(table: sm.Table) -> set[str]:
    """Return the paths of the files that a table's metadata names."""
    inspect, log = table.inspect.arrow, table.metadata.metadata_log
    paths = {table.metadata_location, *(entry.metadata_file for entry in log)}
    paths |= {path for each in table.snapshots() for path in (each.manifest_list, each.root_manifest) if path}
    paths |= {*inspect.all_files().column("file_path").to_pylist(), *inspect.all_manifests().column("path").to_pylist()}
    hint = f"{local_path(table.location())}/metadata/version-hint.text"
    return {local_path(path) for path in paths} | {hint}


@pytest.mark.parametrize(("version", "rewrite", "kills"), CASES)
def test_rewrites_are_killed(spark: SparkSession, tmp_path: Path, version: int, rewrite: str, kills: int) -> None:
    table, chance = new_table(tmp_path, version), random.Random(version)
    location, longest, outcomes = str(table.location()), 0.0, list[tuple[bool, bool]]()
    expected = [number for number in range(2 * FILES) if number != 3]
    for number in range(kills + 1):
        snapshot, process = table.refresh().current_snapshot(), start(location, rewrite)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "planned\n"
            began = time.monotonic()
            if not number:  # the first one is not killed, and shows how long a commit takes
                assert process.stdout.readline() == "committed\n"
                longest = time.monotonic() - began
                assert process.wait(300) == 0
            else:
                time.sleep(chance.uniform(0, longest))
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
            process.wait()
        table = sm.load_table(location, spark=spark)
        assert sorted(table.scan().to_arrow().column("id").to_pylist()) == expected
        assert not table.arrow.check().num_rows
        left = files_below(Path(local_path(location))) - reached(table)
        orphans = planned_paths(table.maintenance.remove_orphan_files(older_than=soon(), force=True).to_df())
        assert orphans == left
        outcomes.append((process.returncode == -signal.SIGKILL, table.current_snapshot() != snapshot))
        # The next rewrite has something to do.
        expected.append(1000 + number)
        table = table.append(pa.table({"id": pa.array([expected[-1]], pa.int64())}))
    print(f"v{version} {rewrite}, killed and committed: {outcomes}")  # noqa: T201
    assert outcomes[0] == (False, True)
    # A kill after the commit may come too late.
    assert (True, False) in outcomes


if __name__ == "__main__":
    where, kind = sys.argv[1:]
    session = local_session("rewrites", cores=1, memory="1g") if kind == "data" else None
    plan = REWRITES[kind](sm.load_table(where, spark=session))
    print("planned", flush=True)  # noqa: T201
    plan.commit()
    print("committed", flush=True)  # noqa: T201
