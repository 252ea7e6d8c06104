"""Measure what each operation takes on a tree: time, memory of each kind of process, and shuffled bytes.

    python -m tests.benchmarks.operations 10000000 [--only append] [--minutes 15]

The operations run one after another on a table of `growth`, whose leaves are hard links. Each runs in a new process
with a Spark session of its own, and is stopped if it takes too long or too much memory. Results are added to
build/bench/operations-<entries>.json. With `--lists`, the table has that many Avro manifests instead. With `--cluster`,
executors are processes of a standalone cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from tests.benchmarks.growth import Growth, questions
from tests.benchmarks.many_manifests import ManyManifests
from tests.benchmarks.memory import MIB, heap_use, peak_resident_set
from tests.benchmarks.timing import consume
from tests.benchmarks.workload import BUILD, ROOT
from tests.cluster import HOSTS, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Table

MOST_WRITTEN = 100_000_000
"""Entries up to which a tree has entries of its own. Each leaf of a larger one stands there several times."""
NEW_FILES = 100_000
PART_ENTRIES = 10_000_000
_LATER_MS = 4_000_000_000_000
_KINDS = ("driver", "jvm", "workers")
_MOST_MIB = 20 << 10


# -- the operations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """A table, and what the operations take of it."""

    spark: SparkSession
    growth: Growth | ManyManifests

    @cached_property
    def table(self) -> Table:
        import sparkmeta as sm

        return sm.load_table(self.growth.folder.as_uri(), spark=self.spark)

    @property
    def numbers(self) -> Growth:
        """The tree from whose numbers the entries are made."""
        assert isinstance(self.growth, Growth)
        return self.growth.source

    def where(self, question: str) -> str:
        """Return the filter of a question of `growth`."""
        return questions(self.numbers)[question][0]

    def path(self, number: str) -> str:
        """Return an SQL expression of the path of an entry with this number."""
        leaves = f"{number} div {min(self.numbers.leaf_entries, self.numbers.entries)}"
        part = f"({leaves}) * 100 div {self.numbers.leaves}"
        return f"concat('file:///warehouse/growth/data/part=', {part}, '/', lpad({number}, 12, '0'), '.parquet')"

    def first_path(self) -> DataFrame:
        """Return the path of a file of `ManyManifests`."""
        path = "'file:///warehouse/many/data/part=p00050/M0024000-00007.parquet' AS file_path"
        return self.spark.range(1).selectExpr(path)

    def new_files(self, count: int) -> DataFrame:
        """Return files whose bounds no filter of `growth` selects: their columns, except the partition's, are -1."""
        part = "'p00075'" if isinstance(self.growth, ManyManifests) else self.where("one partition").split("=")[1]
        path = "concat('file:///warehouse/growth/data/new/', uuid(), '.parquet') AS file_path"
        bounds = {2: f"X'{'FF' * 8}'"} | ({} if isinstance(self.growth, ManyManifests) else {3: f"X'{'FF' * 4}'"})
        columns = (
            path, "'parquet' AS file_format", "0 AS spec_id", "1L AS record_count",
            f"named_struct('part', {part}) AS partition", "1L AS file_size_in_bytes",
            f"map({', '.join(f'{column}, 1L' for column in bounds)}) AS value_counts",
            f"map({', '.join(f'{column}, 0L' for column in bounds)}) AS null_value_counts",
            *(f"map({', '.join(f'{column}, {bound}' for column, bound in bounds.items())}) AS {name}"
              for name in ("lower_bounds", "upper_bounds")),
        )  # fmt: skip
        return self.spark.range(count).selectExpr(*columns)

    def spread_paths(self, count: int) -> DataFrame:
        """Return the paths of files that are spread over the table."""
        step = self.numbers.entries // count
        return self.spark.range(0, step * count, step).selectExpr(f"{self.path('id')} AS file_path")

    def commit(self, change: Callable[[Any], Any]) -> str:
        with self.table.transaction() as tx:
            change(tx.update_snapshot())
        return "committed"

    def planned(self, row_filter: str = "true") -> str:
        consume(self.table.scan(row_filter).plan_files())
        return "consumed"

    def maintained(self, plan: Any) -> str:
        plan.commit()
        return json.dumps(plan.result()["committed"])

    def orphans(self) -> str:
        """Search an inventory that has a file more for each thousand of the table."""
        paths = f"{self.path('id')} AS file_path", "timestamp'2020-01-01' AS last_modified"
        inventory = self.spark.range(self.numbers.entries + self.numbers.entries // 1_000).selectExpr(*paths)
        return str(self.table.maintenance.remove_orphan_files(files=inventory, location="file:///warehouse/growth")
                   .summary())  # fmt: skip


Run = Callable[[Bench], object]

# name -> the operation, and the largest number of entries for which it is measured. Later ones see what earlier ones
# have committed.
OPERATIONS: dict[str, tuple[Run, int]] = {
    "count the rows of a plan": (lambda it: it.table.scan().plan_files().count(), 10**9),
    "count_files()": (lambda it: it.table.scan().count_files(), 10**9),
    "plan every file": (lambda it: it.planned(), 10**8),
    "plan a file, clustered": (lambda it: it.planned(it.where("needle, clustered")), 10**9),
    "plan a file, unclustered": (lambda it: it.planned(it.where("needle, unclustered")), 10**9),
    "plan a partition": (lambda it: it.planned(it.where("one partition")), 10**9),
    "arrow.plan_files() of a partition": (
        lambda it: len(it.table.scan(it.where("one partition")).arrow.plan_files()), 10**9
    ),
    "plan_tasks() of a partition": (lambda it: it.table.scan(it.where("one partition")).plan_tasks().count(), 10**9),
    "report() of a scan": (lambda it: str(it.table.scan().report()), 10**8),
    "inspect.files(), paths only": (lambda it: it.table.inspect.files(columns=["file_path"]).count(), 10**9),
    "inspect.files(), every column": (lambda it: consume(it.table.inspect.files()), 10**7),
    "inspect.partitions()": (lambda it: consume(it.table.inspect.partitions()), 10**9),
    "inspect.manifests()": (lambda it: consume(it.table.inspect.manifests()), 10**9),
    "append a file": (lambda it: it.commit(lambda update: update.append(it.new_files(1))), 10**9),
    "append 100,000 files": (lambda it: it.commit(lambda update: update.append(it.new_files(NEW_FILES))), 10**9),
    "delete a file by path": (lambda it: it.commit(lambda update: update.delete(it.spread_paths(1))), 10**9),
    "delete 100,000 files by path": (
        lambda it: it.commit(lambda update: update.delete(it.spread_paths(NEW_FILES))), 10**9
    ),
    "delete a file by a filter": (
        lambda it: it.commit(lambda update: update.delete(row_filter=it.where("needle, unclustered"))), 10**9
    ),
    "delete a partition": (lambda it: it.commit(lambda update: update.delete(row_filter="part = 25")), 10**9),
    "file_changes() since the first snapshot": (lambda it: it.table.file_changes(1).count(), 10**9),
    "health()": (lambda it: str(it.table.maintenance.health()), 10**9),
    "check()": (lambda it: it.table.check().count(), 10**9),
    "compute_partition_stats()": (lambda it: it.maintained(it.table.maintenance.compute_partition_stats()), 10**9),
    "remove_orphan_files(): plan from an inventory": (lambda it: it.orphans(), 10**8),
    "expire_snapshots() of these commits": (
        lambda it: it.maintained(it.table.maintenance.expire_snapshots(older_than=_LATER_MS)), 10**9
    ),
    "compact_manifests() of 10 million entries": (
        lambda it: it.maintained(it.table.maintenance.compact_manifests(max_entries=PART_ENTRIES)), 10**9
    ),
    "compact_manifests() of a partition, sorted anew": (
        lambda it: it.maintained(
            it.table.maintenance.compact_manifests(row_filter="part = 75", cluster_by=["needle"])), 10**9
    ),
    "compact_manifests(), sorted anew": (
        lambda it: it.maintained(it.table.maintenance.compact_manifests(cluster_by=["needle"])), 10**8
    ),
    "expire_snapshots() after compaction": (
        lambda it: it.maintained(it.table.maintenance.expire_snapshots(older_than=_LATER_MS)), 10**9
    ),
    "rewrite_table_path()": (
        lambda it: it.maintained(
            it.table.maintenance.rewrite_table_path(f"file://{it.growth.folder}", "file:///moved")), 10**7
    ),
    "downgrade(3)": (lambda it: it.maintained(it.table.maintenance.downgrade(3)), 10**7),
}  # fmt: skip


LIST_OPERATIONS: dict[str, Run] = {
    "count_files()": lambda it: it.table.scan().count_files(),
    "plan a partition": lambda it: it.planned("part = 'p00075'"),
    "arrow.plan_files() of a partition": lambda it: len(it.table.scan("part = 'p00075'").arrow.plan_files()),
    "count the rows of a plan": lambda it: it.table.scan().plan_files().count(),
    "plan every file": lambda it: it.planned(),
    "inspect.manifests()": lambda it: consume(it.table.inspect.manifests()),
    "inspect.partitions()": lambda it: consume(it.table.inspect.partitions()),
    "append a file": lambda it: it.commit(lambda update: update.append(it.new_files(1))),
    "append a second file": lambda it: it.commit(lambda update: update.append(it.new_files(1))),
    "delete a file by path": lambda it: it.commit(lambda update: update.delete(it.first_path())),
    "delete a partition": lambda it: it.commit(lambda update: update.delete(row_filter="part = 'p00025'")),
    "health()": lambda it: str(it.table.maintenance.health()),
    "check()": lambda it: it.table.check().count(),
    "expire_snapshots(): plan": lambda it: str(it.table.maintenance.expire_snapshots(older_than=_LATER_MS).summary()),
    "rewrite_manifests()": lambda it: it.maintained(it.table.maintenance.rewrite_manifests()),
    "expire_snapshots() after the rewrite": lambda it: it.maintained(
        it.table.maintenance.expire_snapshots(older_than=_LATER_MS)
    ),
    "upgrade(4, compact=True)": lambda it: it.maintained(it.table.maintenance.upgrade(4, compact=True)),
}


# -- measuring ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What an operation takes.

    Attributes:
        cpu: CPU seconds by kind of process.
        memory: Peak in MiB by kind of process since it began: the resident set of the driver's Python process and of
            the JVM; the sum over Python's workers, in which each shared page counts once.
        heap: Peak of the JVM's heap in MiB.
        shuffled: MiB that stages wrote for other stages.
        spilled: MiB that stages spilled to disk.
        stopped: Why the operation was stopped or failed; empty if it ended.
    """

    entries: int
    operation: str
    seconds: float
    cpu: dict[str, float]
    memory: dict[str, int]
    heap: int = 0
    shuffled: int = 0
    spilled: int = 0
    result: str = ""
    stopped: str = ""


def measure(size: int, kind: str, operation: str, heap: str, minutes: float) -> Measured:
    """Run an operation in a new process, and stop it after some minutes or at 20 GiB.

    Args:
        kind: the option of the command that tells the table or where executors are; or nothing.
    """
    command = [sys.executable, "-m", "tests.benchmarks.operations", str(size), "--run", operation]
    command += [kind] if kind else []
    log = results_file(size, kind).with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen([*command, "--heap", heap], stdout=errors, stderr=errors, cwd=ROOT)
    start, peak, stopped, cpu = time.monotonic(), dict.fromkeys(_KINDS, 0.0), "", dict.fromkeys(_KINDS, 0.0)
    while process.poll() is None:
        seconds = time.monotonic() - start
        members = family(process.pid)
        used, cpu = memory(members), cpu_seconds(members)
        peak = {kind: max(peak[kind], used[kind]) for kind in _KINDS}
        if sum(used.values()) > _MOST_MIB:
            stopped = f"more than {_MOST_MIB >> 10} GiB of memory"
        elif seconds > minutes * 60:
            stopped = f"more than {minutes:.0f} minutes"
        if stopped:
            for pid in [*members][::-1]:
                os.kill(pid, signal.SIGKILL)
            process.wait()
        time.sleep(0.3)
    lines = log.read_text().splitlines()
    sizes = {kind: int(size) for kind, size in peak.items()}
    if stopped or process.returncode:
        stopped = stopped or next((line for line in reversed(lines) if "rror" in line), "failed")[:400]
        return Measured(size, operation, time.monotonic() - start, cpu, sizes, stopped=stopped)
    answer = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    sizes["driver"] = answer.pop("driver")
    return Measured(size, operation, memory=sizes, **answer)


def results_file(size: int, kind: str) -> Path:
    return BUILD / f"operations{kind.removeprefix('-')}-{size}.json"


@contextmanager
def cluster_config(is_wanted: bool) -> Iterator[dict[str, str]]:
    """Yield the configuration of sessions on a standalone cluster of two executors, which runs until the end.

    Each executor has one core and a heap of 1 GiB. The result is empty if no cluster is wanted.
    """
    if not is_wanted:
        yield {}
        return
    with TemporaryDirectory() as folder, standalone_cluster(Path(folder)) as cluster:
        yield {"spark.master": cluster.master, "spark.executor.memory": "1g", "spark.driver.host": HOSTS[0]}


def run_in_this_process(
    table: Growth | ManyManifests, operation: Run, heap: str, cluster: Mapping[str, str]
) -> dict[str, Any]:
    """Run an operation in this process, and return the fields of `Measured` that this process knows.

    Args:
        cluster: see `cluster_config`.
    """
    from sparkmeta import local_session

    config = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.retainedStages": "100000",
        "spark.ui.retainedTasks": "1000", **cluster,
    }  # fmt: skip
    spark = local_session("sparkmeta benchmarks", cores=2, memory=heap, config=config)
    spark.range(10).count()
    before, start = cpu_seconds(family(os.getpid())), time.perf_counter()
    result = operation(Bench(spark, table))
    seconds, after = time.perf_counter() - start, cpu_seconds(family(os.getpid()))
    stages = _stages(spark)
    return {
        "seconds": seconds,
        "cpu": {kind: after[kind] - before[kind] for kind in _KINDS},
        "driver": peak_resident_set() // MIB,
        "heap": heap_use(spark)[0] // MIB,
        "shuffled": sum(stage["shuffleWriteBytes"] for stage in stages) // MIB,
        "spilled": sum(stage["diskBytesSpilled"] for stage in stages) // MIB,
        "result": str(result),
    }


def _stages(spark: SparkSession) -> list[dict[str, Any]]:
    context = spark.sparkContext
    with urllib.request.urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages") as answer:
        return json.load(answer)  # type: ignore[no-any-return]


Family = dict[int, tuple[str, list[str]]]
"""The kinds of processes, and the fields of their `stat`, by their ids. Parents come first."""


def family(pid: int) -> Family:
    """Return a process and its descendants."""
    processes = {int(path.name): _stat(path) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    members = {pid: ("driver", processes.get(pid, []))}
    below = defaultdict(list)
    for child, fields in processes.items():
        if fields:
            below[int(fields[1])].append(child)
    waiting = below[pid]
    while waiting:
        child = waiting.pop(0)
        members[child] = ("jvm" if _name(child) == "java" else "workers", processes[child])
        waiting += below[child]
    return members


def cpu_seconds(members: Family) -> dict[str, float]:
    """Return the CPU seconds of processes so far, by kind. Ended workers count."""
    seconds = dict.fromkeys(_KINDS, 0.0)
    for kind, fields in members.values():
        # An ended Java process would count the whole of its workers.
        ticks = fields[11:15] if kind == "workers" else fields[11:13]
        seconds[kind] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return seconds


def memory(members: Family) -> dict[str, float]:
    """Return the memory of processes in MiB, by kind. Workers share pages: each counts once."""
    sizes = dict.fromkeys(_KINDS, 0.0)
    for member, (kind, _) in members.items():
        try:
            if kind == "workers":
                lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
                sizes[kind] += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
            else:
                pages = int(Path(f"/proc/{member}/statm").read_text().split()[1])
                sizes[kind] += pages * os.sysconf("SC_PAGE_SIZE") / MIB
        except (OSError, StopIteration):
            continue
    return sizes


def _stat(process: Path) -> list[str]:
    """Return the fields of a process from its state on; none if it has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@click.command()
@click.argument("size", type=int)
@click.option("--only", default="", help="Only operations whose names contain one of these texts, divided by `|`.")
@click.option("--keep", is_flag=True, help="Keep the table as the last run has left it.")
@click.option("--minutes", default=15.0, show_default=True, help="Stop an operation after this time.")
@click.option("--heap", default="4g", show_default=True, help="Heap of each JVM, e.g. 4g.")
@click.option("--lists", "kind", flag_value="--lists", help="SIZE is the number of Avro manifests of a v2 table.")
@click.option("--cluster", "kind", flag_value="--cluster", help="Run on a cluster of two executors of 1 GiB each.")
@click.option("--run", "run", default="", hidden=True)
def main(size: int, only: str, keep: bool, minutes: float, heap: str, kind: str | None, run: str) -> None:
    """Measure each operation on a tree of SIZE files."""
    lists = kind == "--lists"
    table = ManyManifests(size) if lists else Growth(size, copy="operations", repeats=max(1, size // MOST_WRITTEN))
    operations = (
        LIST_OPERATIONS if lists else {name: of for name, (of, max_size) in OPERATIONS.items() if size <= max_size}
    )
    if run:
        with cluster_config(kind == "--cluster") as config:
            answer = run_in_this_process(table, operations[run], heap, config)
        sys.stdout.write("\n" + json.dumps(answer) + "\n")
        return
    if not keep:
        shutil.rmtree(table.folder, ignore_errors=True)
        table.location()
    path = results_file(size, kind or "")
    results = {row["operation"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    for name in operations:
        if not any(text in name for text in only.split("|")):
            continue
        measured = measure(size, kind or "", name, heap, minutes)
        results[name] = asdict(measured)
        path.write_text(json.dumps([*results.values()], indent=1) + "\n")
        cpu, sizes = (
            " + ".join(f"{values[kind]:.0f}" for kind in _KINDS) for values in (measured.cpu, measured.memory)
        )
        sys.stdout.write(
            f"{name:<48} {measured.seconds:7.1f} s  cpu {cpu} s  {sizes} MiB (heap {measured.heap})  "
            f"shuffled {measured.shuffled}, spilled {measured.spilled}  {measured.stopped or measured.result[:150]!r}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
