"""`python -m tests.benchmarks.batches`: batches of ten rows, each a commit, by a process, by threads, by processes.

sparkmeta appends to tables of versions 2 and 4, by file system, SQL and REST catalogs. Peers are pyiceberg, by SQL and
REST catalogs, and Iceberg's Java library, by file system and REST catalogs, on version 2. Each contender
appends for some seconds to a table of its own; contenders take turns. Afterwards the table must have the rows of all
batches. Prints batches a second, the longest time of a batch, and CPU time a batch: of each run, and at the end of the
best of the rounds. A run takes longer than it appends: processes start, and losers wait until they win.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tests.benchmarks.report import write_runs
from tests.benchmarks.workload import BUILD, class_path, spark_jars
from tests.rest.server import rest_server

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())])
BATCH = 10
NAME = "db.t"
# Losers try again until they win.
RETRIES = {"commit.retry.num-retries": "100"}


def batch() -> pa.Table:
    numbers = range(BATCH)
    return pa.table({"id": numbers, "name": [f"n{i}" for i in numbers], "v": [i / 2 for i in numbers]}, ROWS)


def properties(kind: str, place: str) -> dict[str, str]:
    """Return the properties of a catalog: its warehouse, or the URI of a REST catalog."""
    if kind == "rest":
        return {"type": "rest", "uri": place}
    uri = {"uri": f"sqlite:///{place.removeprefix('file://')}/catalog.db"} if kind == "sql" else {}
    return {"type": kind, "warehouse": place, **uri}


@dataclass(frozen=True)
class Contender:
    """Who appends.

    Attributes:
        library: `sparkmeta`, `pyiceberg` or `java`.
        kind: the catalog: `hadoop`, `sql` or `rest`.
        version: the format version.
        processes: the number of processes.
        threads: the threads of each.
        shares: whether waiting appends become one snapshot.
    """

    library: str
    kind: str
    version: int
    processes: int = 1
    threads: int = 1
    shares: bool = False

    @property
    def texts(self) -> list[str]:
        """The library, the catalog, the version, the processes and threads, and whose snapshots are."""
        sizes = [f"{self.processes} x {self.threads}", "shared" if self.shares else "own"]
        return [self.library, self.kind, str(self.version), *sizes]

    def command(self, place: str, seconds: float) -> list[str]:
        """Return the command of a process."""
        numbers = [str(seconds), str(self.threads)]
        if self.library == "java":
            java = ["java", "-Xmx1g", "-cp", f"{class_path()}:{spark_jars()}", "BatchAppender"]
            return [*java, self.kind, place, *numbers]
        return [sys.executable, "-m", "tests.benchmarks.batches", "--worker", self.library, self.kind, place, *numbers]


@dataclass(frozen=True)
class Run:
    """What a contender did in a round.

    Attributes:
        batches: batches a second.
        lost: batches that lost all attempts.
        longest: the longest time of a batch, in seconds.
        cpu: milliseconds of CPU time of the processes, a batch. A REST server is not counted.
        fewest: the batches of the process that committed the fewest, as a share of the mean.
        snapshots: the number of snapshots.
        started: seconds until all processes were ready.
        elapsed: seconds from then until the last of them had ended.
        load: the load average of the machine after the run.
    """

    contender: Contender
    batches: float
    lost: int
    longest: float
    cpu: float
    fewest: float
    snapshots: int
    started: float
    elapsed: float
    load: float

    @property
    def figures(self) -> dict[str, str]:
        return {
            "batches/s": f"{self.batches:.1f}",
            "longest, s": f"{self.longest:.2f}",
            "CPU, ms": f"{self.cpu:.1f}",
            "fewest": f"{self.fewest:.2f}",
            "lost": str(self.lost),
            "start, s": f"{self.started:.0f}",
            "appends, s": f"{self.elapsed:.0f}",
            "load": f"{self.load:.0f}",
        }


def contenders() -> Iterator[Contender]:
    for kind in ("hadoop", "sql", "rest"):
        versions = (2, 4) if kind != "rest" else (2,)
        for processes, threads in ((1, 1), (1, 16), (8, 1)):
            for version in versions:
                yield Contender("sparkmeta", kind, version, processes, threads)
                if threads > 1:
                    yield Contender("sparkmeta", kind, version, processes, threads, shares=True)
            if kind != "hadoop" and processes == threads == 1:
                yield Contender("pyiceberg", kind, 2, processes, threads)
            if kind != "sql":
                yield Contender("java", kind, 2, processes, threads)


def measured(contender: Contender, seconds: float, rest: str) -> Run:
    """Let a contender append, and check the rows of the table."""
    import sparkmeta as sm

    folder = BUILD / "batches" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    place = rest if contender.kind == "rest" else folder.as_uri()
    catalog = sm.load_catalog("c", **properties(contender.kind, place))
    if catalog.namespace_exists("db"):
        catalog.drop_table(NAME)
    else:
        catalog.create_namespace("db")
    texts = {**RETRIES, "write.append.share-snapshots": str(contender.shares).lower()}
    catalog.create_table(NAME, ROWS, format_version=contender.version, properties=texts)
    command, begin = contender.command(place, seconds), time.monotonic()
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True))
            for _ in range(contender.processes)
        ]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        start = time.monotonic()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [process.stdout.readline().split() for process in processes]
        elapsed = time.monotonic() - start
    done = [int(answer[0]) for answer in answers]
    table = catalog.load_table(NAME)
    rows = table.scan().count()
    assert rows == (sum(done) + contender.processes) * BATCH, f"{contender}: {rows} rows of {done} batches"
    return Run(
        contender,
        sum(done) / elapsed,
        sum(int(answer[1]) for answer in answers),
        max(float(answer[2]) for answer in answers),
        sum(float(answer[3]) for answer in answers) / sum(done) * 1_000,
        min(done) * len(done) / sum(done),
        len(table.snapshots()),
        start - begin,
        elapsed,
        os.getloadavg()[0],
    )


def work(library: str, kind: str, place: str, seconds: float, threads: int) -> None:
    """Append batches for some seconds; see BatchAppender.java."""
    import sparkmeta as sm

    lost_errors: tuple[type[Exception], ...] = (sm.CommitFailedError,)
    catalog: Any
    if library == "pyiceberg":
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import CommitFailedException

        catalog, lost_errors = load_catalog("c", **properties(kind, place)), (CommitFailedException,)
    else:
        catalog = sm.load_catalog("c", **properties(kind, place))
    rows, done, lost, longest = batch(), [0] * threads, [0] * threads, [0.0] * threads
    table = catalog.load_table(NAME)
    table.append(rows)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    start, cpu = time.monotonic(), time.process_time()

    def append(thread: int) -> None:
        mine = catalog.load_table(NAME)
        while time.monotonic() - start < seconds:
            begin = time.monotonic()
            try:
                mine = mine.append(rows) or mine
                done[thread] += 1
            except lost_errors:
                lost[thread] += 1
                mine = mine.refresh()
            longest[thread] = max(longest[thread], time.monotonic() - begin)

    workers = [threading.Thread(target=append, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    cpu = time.process_time() - cpu
    sys.stdout.write(f"{sum(done)} {sum(lost)} {max(longest):.3f} {cpu:.3f}\n")


def show(runs: list[Run]) -> None:
    """Print the best round of each contender."""
    table = Table("appends", "catalog", "version", "processes x threads", "snapshots")
    for name in runs[0].figures:
        table.add_column(name, justify="right")
    for contender in dict.fromkeys(run.contender for run in runs):
        best = max((run for run in runs if run.contender == contender), key=lambda run: run.batches)
        table.add_row(*contender.texts, *best.figures.values())
    Console(width=140).print(table)


@click.command()
@click.option("--worker", nargs=5, type=str, help="What a process does; for this benchmark itself.")
@click.option("--seconds", default=8.0, show_default=True, help="How long each contender appends.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--only", default="", help="Measure the contenders whose printed description matches this expression.")
def main(worker: tuple[str, ...], seconds: float, rounds: int, only: str) -> None:
    """Measure appends of batches of ten rows."""
    if worker:
        library, kind, place, worker_seconds, threads = worker
        work(library, kind, place, float(worker_seconds), int(threads))
        return
    chosen = [contender for contender in contenders() if re.search(only, ", ".join(contender.texts))]
    if not chosen:
        raise click.UsageError(f"no contender's description matches {only!r}")
    runs = []
    with rest_server((BUILD / "batches" / "rest").as_uri()) as rest:
        for _ in range(rounds):
            for contender in chosen:
                runs.append(run := measured(contender, seconds, rest))
                texts = (f"{name} {figure}" for name, figure in run.figures.items())
                click.echo(f"{', '.join(contender.texts)}: {'; '.join(texts)}")
    show(runs)
    write_runs(BUILD, "batches", runs)


if __name__ == "__main__":
    main()
