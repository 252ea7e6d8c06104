"""Processes write to a table while others maintain it, and are killed: no live file is lost, and a re-run finishes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.handmade import data
from tests.maintain.maintainers import CONVERSIONS, JOBS
from tests.maintain.test_expire import files_below
from tests.maintain.test_orphans import FIVE_DAYS, plant
from tests.peers.classic import classic_environment
from tests.peers.slices import SOAK
from tests.rows.comparison import row_texts
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
WRITERS = 2
# Steps per writer, maintainers, and the total number of killed ones.
SHORT, LONG = (2, 1, 1), (150, 2, 25)
# The number of converting processes that are killed.
KILLS = 25
LONGEST = 1800


def table_of(folder: Path, steps: int) -> RowTable:
    """Return files with position deletes, orphans, and an uncommitted manifest for each step of each writer."""
    table = RowTable(folder, version=2, summaries=True)
    for part in ("a", "b"):
        files = [
            table.data(f"{part}{number}.parquet", rows(10 * number, 4), partition={"part": part}) for number in (1, 2)
        ]
        table.add(0, 1, *files)
        for number, position in enumerate((0, 2, 3)):
            pairs = [(file, position) for file in files]
            table.add(1, 1, table.positions(f"{part}-{number}-d.parquet", *pairs, partition={"part": part}))
    table.write()
    for worker in range(WRITERS):
        for step in range(1, steps + 1):
            stored = table.data(f"{worker}-{step}.parquet", rows(row_of(worker, step), 1))["data_file"]
            facts = {name: stored[name] for name in ("file_format", "file_size_in_bytes", "record_count")}
            entry = data(stored["file_path"], None, **facts)
            written = table._manifest(1_000, 0, 0, [entry])["manifest_path"].removeprefix("file://")
            Path(written).rename(folder / "metadata" / f"{worker}-{step}.avro")
    return table


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def row_of(worker: int, step: int) -> int:
    return 1_000 * (worker + 1) + step


def start(role: str, folder: Path, *numbers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.maintain.maintainers", role, str(folder), *map(str, numbers)]
    with (folder / "outcomes").open("a") as outcomes:
        return subprocess.Popen(
            command, cwd=ROOT, env=classic_environment() | {"PYTHONPATH": str(ROOT)}, stdout=outcomes,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and the JVM that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def outcomes(folder: Path) -> list[str]:
    return (folder / "outcomes").read_text().splitlines()


def wait_for(condition: Any) -> Iterator[None]:
    end = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < end, "the processes hang"
        yield
        time.sleep(0.05)


def test_writers_and_maintainers(spark: SparkSession, tmp_path: Path, soak: bool) -> None:
    steps, maintainers, kills = LONG if soak else SHORT
    folder, chance = tmp_path / "table", random.Random(3)
    table_of(folder, steps)
    orphans = plant(folder, "data/orphan-1", "data/orphan-2")
    for path in orphans:
        os.utime(path, (time.time() - FIVE_DAYS,) * 2)
    location = f"file://{folder}"
    expected = [*sm.load_table(location, spark=spark).scan().to_df().select("id").toLocalIterator()]
    working = [start("maintain", tmp_path, seed) for seed in range(maintainers)]
    writers: list[subprocess.Popen[str]] = []
    try:
        for _ in wait_for(lambda: outcomes(tmp_path).count("ready") >= maintainers):
            assert all(process.poll() is None for process in working)
        writers = [start("write", tmp_path, worker, steps) for worker in range(WRITERS)]
        for seed in range(kills):
            time.sleep(chance.uniform(0.2, 3))
            chosen = chance.randrange(maintainers)
            kill(working[chosen])
            if soak:
                working[chosen] = start("maintain", tmp_path, 100 + seed)
        finished = len(outcomes(tmp_path))
        for _ in wait_for(lambda: not soak or len(outcomes(tmp_path)) >= finished + 40):
            assert all(process.poll() is None for process in working)
        for writer in writers:
            assert writer.wait(LONGEST) == 0
        (tmp_path / "stop").touch()
        if soak:
            assert all(process.wait(LONGEST) == 0 for process in working)
    finally:
        for process in (*working, *writers):
            kill(process)
    check(spark, location, expected, steps)
    for job in JOBS.values():
        job(sm.load_table(location, spark=spark)).commit()
    check(spark, location, expected, steps)
    assert not orphans & files_below(folder)
    assert sm.load_table(location, spark=spark).maintenance.remove_dangling_deletes().summary().is_empty
    print(f"{len(outcomes(tmp_path))} outcomes, {kills} kills")  # noqa: T201


@pytest.mark.skipif(not SOAK, reason="takes minutes: SPARKMETA_SOAK=1 runs it")
def test_killed_conversions(spark: SparkSession, tmp_path: Path) -> None:
    """Each process converts the table to V4 and back, repeatedly, until it is killed and a new one continues.

    The first one is killed after both conversions, and the others at a random time.
    """
    folder, chance = tmp_path / "table", random.Random(5)
    table_of(folder, 0)
    location = f"file://{folder}"
    expected = [*sm.load_table(location, spark=spark).scan().to_df().select("id").toLocalIterator()]
    both = 0.0
    for seed in range(KILLS):
        process = start("convert", tmp_path, seed)
        try:
            for _ in wait_for(lambda seed=seed: outcomes(tmp_path).count("ready") > seed):
                assert process.poll() is None
            began = time.monotonic()
            for _ in wait_for(lambda: len(outcomes(tmp_path)) > len(CONVERSIONS)):
                assert process.poll() is None
            both = both or time.monotonic() - began
            time.sleep(chance.uniform(0, both))
        finally:
            kill(process)
        check(spark, location, expected, 0)
    reached = Counter(line.split()[0] for line in outcomes(tmp_path))
    print(f"{reached}, {KILLS} kills")  # noqa: T201
    assert all(reached[name] for name in CONVERSIONS)
    assert not [line for line in outcomes(tmp_path) if line != "ready" and not line.endswith(" done")]
    for _ in range(2):
        version = sm.load_table(location, spark=spark).metadata.format_version
        CONVERSIONS["upgrade" if version < 4 else "downgrade"](sm.load_table(location, spark=spark)).commit()
        check(spark, location, expected, 0)


def check(spark: SparkSession, location: str, expected: list[Any], steps: int) -> None:
    """Check that every snapshot can be read, and that the newest has all rows."""
    table = sm.load_table(location, spark=spark)
    appended = [row_of(worker, step) for worker in range(WRITERS) for step in range(1, steps + 1)]
    now = sorted(int(row[0] or 0) for row in row_texts(table.scan().to_df().select("id")))
    assert now == sorted([*(row.id for row in expected), *appended])
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_df().count() >= len(expected)
