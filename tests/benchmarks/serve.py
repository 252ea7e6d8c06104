"""`python -m tests.benchmarks.serve`: plans through a service, beside Iceberg's Java library that plans by itself.

The clients are Iceberg's Java library in processes of their own, which count the CPU that they use. The service has a
table of format version 2, with and without a manifest cache, and a tree of the same files. It keeps no plans, but for a
last round, in which each plan was made before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Printed

import sparkmeta as sm
from tests.benchmarks.session import bench_session
from tests.benchmarks.trees import tree_location
from tests.benchmarks.workload import BUILD, QUERIES, Query, Workload, class_path, metadata_location, spark_jars
from tests.service.serving import LocatedTables

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE = "spark.sparkmeta.manifest-cache"
Measured = dict[str, list[tuple[float, float, int]]]


def planned(heap: str, repeats: int, queries: Sequence[Query], *where: str) -> Measured:
    """Plan every query in a new process, and return seconds, seconds of CPU and files of each run.

    The first run of a query is left out, unless it is the only one.
    """
    java = ["java", f"-Xmx{heap}", "-cp", f"{class_path()}:{spark_jars()}", "RestPlanner", *where, str(repeats + 1)]
    command = [*java, *(query.expression for query in queries)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    runs: Measured = defaultdict(list)
    for line in done.stdout.splitlines():
        place, seconds, cpu, files, _ = line.split()
        runs[queries[int(place)].name].append((float(seconds), float(cpu), int(files)))
    return {name: each[1:] or each for name, each in runs.items()}


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Runs of each plan; the median counts.")
@click.option("--heap", default="3g", show_default=True, help="Of the service's JVM.")
@click.option("--client-heap", default="2g", show_default=True, help="Of each client.")
@click.option("--query", "names", multiple=True, help="Only plans of this name.")
def main(scale: float, repeats: int, heap: str, client_heap: str, names: Sequence[str]) -> None:
    """Measure plans of clients of a service, and of clients that plan by themselves."""
    workload = Workload(2, "none", scale)
    location = metadata_location(workload)
    spark, console = bench_session(heap), Console()
    queries = [query for query in QUERIES if not names or query.name in names]
    results: dict[str, Measured] = {}

    def measure(name: str, *where: str) -> None:
        results[name] = planned(client_heap, repeats, queries, *where)
        shown_runs = {query: shown(runs) for query, runs in results[name].items()}
        console.print(f"{time.strftime('%X')} {name}: {shown_runs}")

    measure("Iceberg Java, local", "local", location)

    def serve(name: str, location: str, cached_bytes: int = 0) -> None:
        tables = LocatedTables({"t": location})
        with sm.serve(tables, spark, port=0, cached_bytes=cached_bytes, plan_seconds=3_600) as service:
            measure(name, "rest", service.uri, "db.t")

    serve("service, lists", location)
    spark.conf.set(CACHE, str(BUILD / "cache"))
    sm.load_table(location, spark=spark).scan().plan_files().write.format("noop").mode("overwrite").save()
    serve("service, lists, manifest cache", location)
    spark.conf.unset(CACHE)
    tree = tree_location(spark, workload)
    serve("service, tree", tree)
    serve("service, tree, the same plan again", tree, 1 << 28)
    report(results, queries, workload)
    path = BUILD / f"serve-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"files": workload.files, "results": results}, indent=1))
    console.print(f"written: {path}")
    spark.stop()


def report(results: dict[str, Measured], queries: Sequence[Query], workload: Workload) -> None:
    """Print the medians. All clients must have got the same number of files."""
    printed = Printed(title=f"{workload.files:,} files: seconds (CPU of the client)")
    printed.add_column("planned by")
    for query in queries:
        printed.add_column(query.name, justify="right")
        counts = {run[2] for measured in results.values() for run in measured[query.name]}
        assert counts == {workload.expected(query)[0]}, (query.name, counts)
    local = next(iter(results.values()))
    for name, measured in results.items():
        printed.add_row(name, *(shown(measured[query.name], local[query.name]) for query in queries))
    Console(width=140).print(printed)


def shown(runs: Sequence[tuple[Any, ...]], peer: Sequence[tuple[Any, ...]] | None = None) -> str:
    """Return seconds and CPU, and a peer's seconds and CPU divided by them."""
    (seconds, cpu), others = _medians(runs), _medians(peer or runs)
    factors = f" {others[0] / seconds:.1f}x ({others[1] / cpu:.0f}x)" if peer else ""
    return f"{seconds:.3f} ({cpu:.3f}){factors}"


def _medians(runs: Sequence[tuple[Any, ...]]) -> tuple[float, float]:
    seconds, cpu = (statistics.median(run[place] for run in runs) for place in (0, 1))
    return seconds, max(cpu, 0.0001)


if __name__ == "__main__":
    main()
