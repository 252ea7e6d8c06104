"""`python -m tests.benchmarks.maintain`: `sparkmeta maintain` over small tables, one after another and side by side.

The tables are in two namespaces, and have five files of 100 rows each, which a run merges, and expires snapshots. They
are on this machine's disk, and in an S3-compatible server (moto, in this process) whose requests each take longer. The
contenders take turns, without Spark, each with new tables: a process with a table at once or four, two processes of the
same configuration with leases, and two with a namespace each. Prints for each contender the wall time, how many times
as fast it is as one table after another (the median of the rounds), and the CPU time of all processes and of the
busiest one. On a busy machine, only CPU times can be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

import sparkmeta as sm
from tests.s3 import BUCKET, FILE_IOS, s3_server

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS = pa.schema([("id", pa.int64()), ("part", pa.int64())])
FILES = 5
ALL = "['a.*', 'b.*']"


@dataclass(frozen=True)
class Contender:
    """A way to maintain all tables.

    Attributes:
        name: what is printed.
        limits: the limits of each run.
        names: the names of the tables of each process, as in the configuration.
    """

    name: str
    limits: str
    names: tuple[str, ...] = (ALL,)

    @property
    def has_leases(self) -> bool:
        return "lease" in self.limits


CONTENDERS = (
    Contender("1 at once", "side_by_side = 1"),
    Contender("4 at once", "side_by_side = 4"),
    Contender("2 processes with leases, 2 at once", "side_by_side = 2\nlease = '10m'", (ALL, ALL)),
    Contender("2 processes, a namespace each, 2 at once", "side_by_side = 2", ("['a.*']", "['b.*']")),
)


@dataclass(frozen=True)
class Cost:
    """What a contender took: seconds of wall time, and CPU seconds of each process."""

    wall: float
    cpu: tuple[float, ...]


def make_tables(tables: int, properties: Mapping[str, str]) -> None:
    """Create the tables, half of them in each namespace."""
    catalog: Any = sm.load_catalog("bench", **properties)
    for namespace in ("a", "b"):
        catalog.create_namespace(namespace)
    for number in range(tables):
        # Both namespaces have tables of both format versions.
        table = catalog.create_table(f"{'ab'[number % 2]}.t{number:04}", ROWS, format_version=2 + number // 2 % 2)
        for load in range(FILES):
            ids = list(range(load * 100, load * 100 + 100))
            table = table.append(pa.table({"id": ids, "part": [0] * 100}, ROWS))


def begin(folder: Path, place: int, limits: str, names: str, properties: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Begin a run that writes its results to a file of the folder."""
    catalog = "\n".join(f'"{name}" = "{value}"' for name, value in properties.items())
    config = folder / f"{place}.toml"
    config.write_text(
        f"[run]\n{limits}\n[catalogs.bench]\n{catalog}\n[thresholds]\nmin_small_files = 4\n"
        "[jobs.rewrite_data_files]\nmin_input_files = 2\n"
        "[jobs.expire_snapshots]\nolder_than = '0m'\nretain_last = 1\n"
        f"[[tables]]\ncatalog = 'bench'\nnames = {names}\n"
    )
    command = [sys.executable, "-m", "sparkmeta", "maintain", "--config", str(config), "--commit"]
    with (folder / f"{place}.jsonl").open("wb") as results, (folder / f"{place}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=results, stderr=log, env=os.environ)


def maintain(folder: Path, contender: Contender, tables: int, properties: Mapping[str, str]) -> Cost:
    """Maintain the tables, and return the cost. Each table must be rewritten once."""
    started, cpu = time.perf_counter(), []
    runs = [begin(folder, place, contender.limits, names, properties) for place, names in enumerate(contender.names)]
    for place, run in enumerate(runs):
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        assert run.returncode in ((0, 3) if contender.has_leases else (0,)), (folder / f"{place}.log").read_text()
        cpu.append(usage.ru_utime + usage.ru_stime)
    seconds = time.perf_counter() - started
    lines = [line for place in range(len(runs)) for line in (folder / f"{place}.jsonl").read_text().splitlines()]
    outcomes = Counter((result["job"], result["status"]) for result in map(json.loads, lines))
    assert outcomes["rewrite_data_files", "committed"] == tables, outcomes
    assert contender.has_leases or {status for _, status in outcomes} == {"committed"}, outcomes
    return Cost(seconds, tuple(cpu))


def measure(place: str, contender: Contender, tables: int, delay: float) -> Cost:
    """Make tables on disk or in S3, and maintain them."""
    with tempfile.TemporaryDirectory() as text, s3_server() as store:
        folder = Path(text)
        of_store = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/bench",
                    "py-io-impl": FILE_IOS["pyarrow"], **store.properties}  # fmt: skip
        properties = {"type": "hadoop", "warehouse": f"{folder}/tables"} if place == "disk" else of_store
        make_tables(tables, properties)
        with store.counted(delay):
            return maintain(folder, contender, tables, properties)


@click.command()
@click.option("--tables", default=60, show_default=True)
@click.option("--delay", default=0.03, show_default=True, help="Seconds that each request to the store takes longer.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--place", "places", type=click.Choice(["disk", "S3"]), multiple=True, default=["disk", "S3"])
def main(tables: int, delay: float, rounds: int, places: tuple[str, ...]) -> None:
    for place in places:
        costs: dict[str, list[Cost]] = {contender.name: [] for contender in CONTENDERS}
        for number in range(rounds):
            for contender in CONTENDERS[:: -1 if number % 2 else 1]:
                costs[contender.name].append(measure(place, contender, tables, delay))
        first = costs[CONTENDERS[0].name]
        click.echo(f"{place}: {tables} tables, {rounds} rounds, load {os.getloadavg()[1]:.1f}")
        for name, taken in costs.items():
            wall = median(cost.wall for cost in taken)
            faster = median(base.wall / cost.wall for base, cost in zip(first, taken, strict=True))
            in_all, busiest = (median(of(cost.cpu) for cost in taken) for of in (sum, max))
            click.echo(
                f"  {name:42}{wall:6.1f} s {faster:5.2f}x   CPU {in_all:5.1f} s, busiest process {busiest:5.1f} s"
            )


if __name__ == "__main__":
    main()
