"""Streams into tables whose processes are killed, and that start again from their checkpoint: nothing twice or lost.

The slice kills Python's processes, both in tasks and where batches are planned and committed. The soak also kills
drivers with their JVM, copies the table by its changelog, and runs maintenance beside.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, CommitFailedError
from sparkmeta.spec.summary import summary_of
from tests.data_source.sink_tables import (
    SCHEMA,
    SPEC,
    UPSERT,
    Batches,
    arrow,
    data_files,
    live_files,
    row,
    rows_of,
)
from tests.local_files import local_path
from tests.maintain.test_expire import soon
from tests.processes import workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

# The batches of a stream and their rows, and how many processes are killed.
SLICE, LONG = (6, 20, 3), (300, 200, 20)
# The number of subsequent files without a common key.
APART = 7
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
            # If a driver dies, Spark's source of files may put several into the next batch, which has a key once.
            known = range(self.batches.count % APART, APART * rows + len(self.model), APART)
            keys = rng.sample(known, rows)  # type: ignore[assignment]
        new = [row(key, rng.choice("abc"), str(self.batches.count)) for key in keys]
        self.model |= {each["id"]: each for each in new}
        self.batches.add(*new)

    @property
    def done(self) -> int:
        """The number of batches that Spark has recorded as committed."""
        return 1 + max((-1, *numbered(self.batches.folder / "checkpoint" / "commits")))

    def check(self, *, are_some_lost: bool = False) -> None:
        """Check the rows and the batches. Some batches may have expired, or be part of others."""
        table = self.batches.table
        assert rows_of(table) == [self.model[key] for key in sorted(self.model)]
        assert live_files(table) <= data_files(table)
        epochs = [summary_of(each).get("idempotency.version") for each in table.snapshots()]
        epochs = [epoch for epoch in epochs if epoch is not None]
        assert len(epochs) == len(set(epochs))
        assert table.committed_version(self.batches.query) == self.done - 1
        assert are_some_lost or len(epochs) == self.done == self.batches.count


@contextmanager
def killing(rng: random.Random, kills: list[int], limit: int) -> Iterator[None]:
    """Kill one of Spark's Python processes after a while, unless as many as `limit` are killed."""
    ended = Event()

    def kill() -> None:
        known = len(kills)
        while len(kills) == known < limit and not ended.wait(rng.uniform(0.1, 1)):
            with suppress(ProcessLookupError, IndexError):  # there is no process yet
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


@pytest.mark.classic
@pytest.mark.parametrize(("version", "mode"), [(4, "append"), (3, "upsert")])
def test_workers_are_killed(spark: SparkSession, tmp_path: Path, version: int, mode: str, soak: bool) -> None:
    count, rows, kill_count = LONG if soak else SLICE
    sm.register(spark)
    case, rng, kills = Case(spark, tmp_path, version, mode), random.Random(version), list[int]()
    for _ in range(count):
        case.add(rng, rows)
    while True:
        with killing(rng, kills, kill_count):
            try:
                case.batches.run(**case.options)
            except PySparkException:
                continue
        if kills:
            break
        case.add(rng, rows)
    case.check()
    left = data_files(case.batches.table) - {local_path(path) for path in all_files(case.batches.table)}
    assert len(left) <= len(kills) * 6  # files of a task


def all_files(table: sm.Table) -> list[str]:
    paths: list[str] = table.inspect.arrow.all_files().column("file_path").to_pylist()
    return paths


# -- Drivers are killed -----------------------------------------------------------------------------------------------


# The batches, their rows, and how many kills: 1,000, 20 and 30 unless the variable says something else.
KILLED = [int(number) for number in os.environ.get("SPARKMETA_KILLED", "1000,20,30").split(",")]
# Rows that are deleted beside the stream, one at a time.
DOOMED = 50
# The snapshots that maintenance retains.
RETAINED = 5


class Pipeline(Case):
    """A stream into a tree, and its changelog into a copy, whose driver is another process."""

    def __init__(self, spark: SparkSession, folder: Path, mode: str) -> None:
        super().__init__(spark, folder, 4, mode)
        table = self.batches.table
        catalog = sm.load_catalog("killed", type="hadoop", warehouse=str(folder))
        copy = catalog.create_table("db.copy", SCHEMA, SPEC, format_version=4, properties=table.properties)
        self.copy, self.folder, self.sizes = copy.location(), folder, list[dict[str, int]]()
        self.doomed = [-1 - number for number in range(DOOMED)]
        table.append(arrow(*(row(key, "abc"[key % 3], "doomed") for key in self.doomed)))

    def start(self) -> subprocess.Popen[bytes]:
        """Start a driver, with a log of its own."""
        self.log = self.folder / f"driver-{len([*self.folder.glob('driver-*.log')])}.log"
        arguments = [str(self.folder), self.batches.location, self.copy, json.dumps(self.options)]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.data_source.sink_tables", *arguments],
                cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def maintain(self, spark: SparkSession) -> None:
        """Expire snapshots that no stream needs, compact both tables, and delete a row."""
        table, copy = (sm.load_table(location, spark=spark) for location in (self.batches.location, self.copy))
        jobs = [
            lambda: copy.maintenance.expire_snapshots(older_than=soon(), retain_last=RETAINED).commit(),
            lambda: self._expire(table),
            *(each.maintenance.rewrite_data_files().commit for each in (table, copy)),
            lambda: self._delete(table.refresh()),
        ]
        for job in jobs:
            with suppress(CommitFailedError, CommitConflictError):  # lost to the streams
                job()

    def _expire(self, table: sm.Table) -> None:
        """Expire snapshots that the changelog has read."""
        offsets = sorted(numbered(self.batches.copied / "offsets"))
        if len(offsets) < 2:
            return
        # A driver that starts reads the last batch again.
        text = (self.batches.copied / "offsets" / str(offsets[-2])).read_text()
        snapshot = table.refresh().metadata.snapshot_by_id(json.loads(text.splitlines()[-1])["snapshot_id"])
        assert snapshot is not None, text
        table.refresh().maintenance.expire_snapshots(older_than=snapshot.timestamp_ms, retain_last=RETAINED).commit()

    def _delete(self, table: sm.Table) -> None:
        if self.doomed:
            table.delete(f"id = {self.doomed[-1]}")
            self.doomed.pop()

    def measure(self) -> None:
        """Note the sizes of the metadata files and the roots."""
        size = {"seconds": round(time.monotonic()), "batches": self.done}
        for name, location in (("table", self.batches.location), ("copy", self.copy)):
            table = sm.load_table(location)
            size[f"{name} snapshots"] = len(table.snapshots())
            size[f"{name} metadata"] = Path(local_path(table.metadata_location)).stat().st_size
            if (head := table.current_snapshot()) is not None:
                size[f"{name} root"] = Path(local_path(head.root_manifest or "")).stat().st_size
        self.sizes.append(size)
        print(json.dumps(size), flush=True)  # noqa: T201  the soak is watched

    def run(self, rng: random.Random, kills: list[int], maintenance: Future[None]) -> list[str]:
        """Run drivers until one ends, and kill one whenever the number of batches reaches the next one of `kills`.

        Return what was killed. Raises what the maintenance raises.
        """
        killed: list[str] = []
        while True:
            driver, before = self.start(), len(killed)
            try:
                while driver.poll() is None:
                    if maintenance.done():
                        maintenance.result()
                    if len(killed) < len(kills) and self.done >= kills[len(killed)]:
                        time.sleep(rng.uniform(0, 3))
                        killed.append(rng.choice(["driver", "worker", "both"]))
                        print("killed:", kill(driver, killed[-1], rng), flush=True)  # noqa: T201
                    time.sleep(0.2)
            finally:
                kill(driver, "both", rng)
            if driver.returncode == 0:
                return killed
            if len(killed) == before:
                # Others may win against a batch. Whoever runs the stream starts it again.
                text = self.log.read_text()
                assert re.search(r"errors\.Commit(Conflict|Failed)Error: ", text), text[-20_000:]
                print("lost to other commits:", self.log, flush=True)  # noqa: T201


def numbered(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def kill(driver: subprocess.Popen[bytes], what: str, rng: random.Random) -> str:
    """Kill a driver with its JVM, one of its Python workers, or the driver and all workers."""
    pids = workers(driver.pid)
    for pid in {"driver": [], "worker": rng.sample(pids, min(len(pids), 1)), "both": pids}[what]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if what != "worker":
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return what


@contextmanager
def maintained(pipeline: Pipeline, spark: SparkSession) -> Iterator[Future[None]]:
    """Maintain and measure the tables in a thread. Raises what the maintenance raises."""
    ended = Event()

    def maintain() -> None:
        while not ended.wait(5):
            pipeline.maintain(spark)
            pipeline.measure()

    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(maintain)
        try:
            yield running
        finally:
            ended.set()
        running.result()


@pytest.mark.classic
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_drivers_are_killed(spark: SparkSession, tmp_path: Path, mode: str, soak: bool) -> None:
    """A stream into a tree, and out of it as a changelog into a second tree, while other processes change the first."""
    if not soak:
        pytest.skip("drivers take long to start: SPARKMETA_SOAK=1 runs it")
    count, rows, kill_count = KILLED
    pipeline, rng = Pipeline(spark, tmp_path, mode), random.Random(7)
    for _ in range(count):
        pipeline.add(rng, rows)
    with maintained(pipeline, spark) as maintenance:
        killed = pipeline.run(rng, sorted(rng.sample(range(count * 9 // 10), kill_count)), maintenance)
    sm.load_table(pipeline.batches.location, spark=spark).delete("id < 0")
    assert pipeline.start().wait() == 0, pipeline.log.read_text()[-20_000:]
    pipeline.check(are_some_lost=True)
    assert rows_of(sm.load_table(pipeline.copy)) == rows_of(pipeline.batches.table)
    assert len(killed) == kill_count
    # Sizes are flat once both tables have the snapshots that maintenance retains.
    sizes = [each for each in pipeline.sizes if min(each["table snapshots"], each["copy snapshots"]) >= RETAINED]
    halves = sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]
    for name in ("table metadata", "table root", "copy metadata", "copy root"):
        first, second = (max(each[name] for each in half) for half in halves)
        assert second < 2 * first, (name, pipeline.sizes)
