"""Streams into tables whose processes are killed, and that start again from their checkpoint: nothing twice or lost.

The slice kills Python's processes, both in tasks and where batches are planned and committed. The soak also kills
drivers with their JVM, and runs maintenance beside.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.errors import SparkmetaError
from sparkmeta.spec.summary import summary_of
from sparkmeta.storage.location import local_path
from tests.data_source.sink_tables import SCHEMA, SPEC, UPSERT, Batches, data_files, live_files, row, rows_of
from tests.maintain.test_expire import soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# The batches of a stream and their rows, and how many processes are killed.
SLICE, LONG = (6, 20, 3), (300, 200, 20)
ROOT = Path(__file__).parent.parent.parent


class Case:
    """A stream into a table, and what the table has at its end."""

    def __init__(self, spark: SparkSession, folder: Path, version: int, mode: str) -> None:
        catalog = sm.load_catalog("killed", type="hadoop", warehouse=str(folder))
        catalog.create_namespace("db")
        properties = {
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "10",
        }
        table = catalog.create_table("db.t", SCHEMA, SPEC, format_version=version, properties=properties)
        self.batches, self.mode, self.model = Batches(spark, folder, table.location()), mode, dict[int, Any]()
        self.options = UPSERT if mode == "upsert" else {}

    def add(self, rng: random.Random, rows: int) -> None:
        keys = range(len(self.model), len(self.model) + rows)
        if self.mode == "upsert":
            keys = rng.sample(range(len(self.model) + rows), rows)  # type: ignore[assignment]
        new = [row(key, rng.choice("abc"), str(self.batches.count)) for key in keys]
        self.model |= {each["id"]: each for each in new}
        self.batches.add(*new)

    def check(self, expired: bool = False) -> None:
        table = self.batches.table
        assert rows_of(table) == [self.model[key] for key in sorted(self.model)]
        assert live_files(table) <= data_files(table)
        assert table.committed_version(self.batches.query) == self.batches.count - 1
        epochs = [summary_of(each).get("idempotency.version") for each in table.snapshots()]
        epochs = [epoch for epoch in epochs if epoch is not None]
        assert len(epochs) == len(set(epochs))
        assert expired or len(epochs) == self.batches.count


@contextmanager
def killing(rng: random.Random, kills: list[int], most: int) -> Iterator[None]:
    """Kill one of Spark's Python processes after a while, unless as many as `most` are killed."""
    ended = Event()

    def kill() -> None:
        if len(kills) < most and not ended.wait(rng.uniform(0.3, 2)):
            with suppress(ProcessLookupError, IndexError):
                pid = rng.choice(workers(os.getpid()))
                os.kill(pid, signal.SIGKILL)
                kills.append(pid)

    thread = Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def workers(root: int) -> list[int]:
    """Return the processes that Python's daemons below a process have forked."""
    parents, daemons = {}, set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal():
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                    daemons.add(int(entry.name))
    below, new = {root}, {root}
    while new := {pid for pid, parent in parents.items() if parent in new}:
        below |= new
    return sorted(pid for pid in below & daemons if parents[pid] in daemons)


@pytest.mark.classic
@pytest.mark.parametrize(("version", "mode"), [(4, "append"), (3, "upsert")])
def test_workers_are_killed(spark: SparkSession, tmp_path: Path, version: int, mode: str, soak: bool) -> None:
    count, rows, most = LONG if soak else SLICE
    sm.register(spark)
    case, rng, kills = Case(spark, tmp_path, version, mode), random.Random(version), list[int]()
    for _ in range(count):
        case.add(rng, rows)
    while True:
        with killing(rng, kills, most):
            try:
                case.batches.run(**case.options)
            except PySparkException:
                continue
        break
    case.check()
    assert kills
    left = data_files(case.batches.table) - {local_path(path) for path in all_files(case.batches.table)}
    assert len(left) <= len(kills) * 6  # files of a task


def all_files(table: sm.Table) -> list[str]:
    paths: list[str] = table.inspect.arrow.all_files().column("file_path").to_pylist()
    return paths


@pytest.mark.classic
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_drivers_are_killed(spark: SparkSession, tmp_path: Path, mode: str, soak: bool) -> None:
    """Beside the stream into a tree, another process expires its snapshots and compacts it."""
    if not soak:
        pytest.skip("drivers take long to start: SPARKMETA_SOAK=1 runs it")
    count, rows, most = LONG
    case, rng, kills = Case(spark, tmp_path, 4, mode), random.Random(7), 0
    for _ in range(count):
        case.add(rng, rows)
    command = [sys.executable, "-m", "tests.data_source.sink_tables"]
    arguments = [str(tmp_path), case.batches.location, json.dumps(case.options)]
    sizes: list[tuple[int, int]] = []
    while True:
        driver = subprocess.Popen([*command, *arguments], cwd=ROOT, start_new_session=True)
        deadline = time.monotonic() + (rng.uniform(8, 40) if kills < most else 1e9)
        while driver.poll() is None and time.monotonic() < deadline:
            maintain(case.batches.table, spark)
            sizes.append(metadata_sizes(case.batches.table))
            time.sleep(1)
        if driver.poll() == 0:
            break
        for pid in [*workers(driver.pid), driver.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        kills += 1
    case.check(expired=True)
    assert kills >= 1
    half = len(sizes) // 2
    for kind in range(2):
        first, second = (max(size[kind] for size in part) for part in (sizes[:half], sizes[half:]))
        assert second < 2 * first, sizes


def maintain(table: sm.Table, spark: SparkSession) -> None:
    with suppress(SparkmetaError):
        opened = sm.load_table(table.location(), spark=spark)
        opened.maintenance.expire_snapshots(older_than=soon(), retain_last=5).commit()
        opened.refresh().maintenance.rewrite_data_files().commit()


def metadata_sizes(table: sm.Table) -> tuple[int, int]:
    """Return the sizes of the metadata file and of the root."""
    table = table.refresh()
    head = table.current_snapshot()
    root = 0 if head is None else Path(local_path(head.root_manifest or "")).stat().st_size
    return Path(local_path(table.metadata_location)).stat().st_size, root
