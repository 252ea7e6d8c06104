"""Run all benchmarks, print tables and write build/bench/results-<date>.json: `python -m tests.benchmarks`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click
from rich.console import Console

from tests.benchmarks import contenders as planners
from tests.benchmarks.decode import compare_decoders, data_manifests
from tests.benchmarks.deletes import compare_deletes
from tests.benchmarks.growth import Growth
from tests.benchmarks.growth import measure as measure_growth
from tests.benchmarks.memory import measure_in_new_process
from tests.benchmarks.report import Results, print_decodings, print_deletes, print_growth, print_memory, print_plans
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import Plan, Timer
from tests.benchmarks.trees import iceberg_tree_location, tree_location
from tests.benchmarks.workload import BUILD, QUERIES, SMALL, WORKLOADS, Query, Workload, metadata_location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

PEER_SCALE = 1 / 15
"""100,000 files, which pyiceberg plans in a few seconds."""
DELETE_SCALE = 2 / 3
"""A million files."""


@dataclass(frozen=True)
class Run:
    """Which parts of the benchmark run, with which sizes and how often."""

    scale: float = 1.0
    peer_scale: float = PEER_SCALE
    delete_scale: float = DELETE_SCALE
    warmups: int = 3
    repeats: int = 5
    heap: str = "4g"
    parts: tuple[str, ...] = ("plan", "small", "peer", "decode", "deletes", "growth", "memory")
    growth: tuple[int, ...] = (1_000_000, 10_000_000)
    memory_scales: tuple[float, ...] = (0.1, 1.0)
    memory_heap: str = "1g"
    manifests: int = 4
    keepers: bool = True


QUICK = Run(
    scale=0.1,
    peer_scale=0.02,
    delete_scale=0.1,
    warmups=0,
    repeats=1,
    memory_scales=(0.02, 0.1),
    manifests=1,
    keepers=False,
    growth=(1_000_000,),
)

console = Console(width=None if sys.stdout.isatty() else 150)


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the files, one run each, cold only: a few minutes.")
@click.option("--scale", type=float, help="1 is 1.5 million data files.")
@click.option("--warmups", type=int, help="Runs of each plan before it is measured.")
@click.option("--repeats", type=int, help="Measured runs of each plan; the median counts.")
@click.option("--heap", help="Of the one JVM that all contenders share, e.g. 4g.")
@click.option("--part", "parts", multiple=True, type=click.Choice(Run().parts), help="Only this part; repeatable.")
def main(quick: bool, parts: tuple[str, ...], **options: float | str | None) -> None:
    """Plan tables of 1.5 million files with Iceberg's Java library, pyiceberg and sparkmeta, in one run."""
    chosen = {name: value for name, value in options.items() if value is not None}
    run = replace(QUICK if quick else Run(), **chosen)  # type: ignore[arg-type]
    run = replace(run, parts=parts or run.parts)
    results = Results(asdict(run))
    for _ in measure(run, results):
        path = results.write(BUILD)
    console.print(f"written: {path}")


def measure(run: Run, results: Results) -> Iterator[None]:
    """Run the parts one after the other; yield after each table that was printed and added to `results`."""
    if {"plan", "small", "peer", "deletes"} & set(run.parts):
        spark = bench_session(run.heap)
        for plans in compare_planners(spark, run):
            results.plans.extend(plans)
            print_plans(console, plans)
            yield
        if "deletes" in run.parts:
            location = table(Workload(3, "none", run.delete_scale))
            results.deletes = compare_deletes(spark, location, BUILD / "deletes")
            print_deletes(console, results.deletes)
            yield
        spark.stop()
    if "decode" in run.parts:
        location = table(Workload(2, "none", run.scale))
        results.decodings = compare_decoders(data_manifests(location, run.manifests), run.repeats)
        print_decodings(console, results.decodings)
        yield
    if "growth" in run.parts:
        spark = bench_session(run.heap)
        for tree in [Growth(entries, masked) for entries in run.growth for masked in (False, True)]:
            with console.status(f"a tree of {tree.entries:,} files"):
                results.growth += measure_growth(spark, tree, run.repeats)
        print_growth(console, results.growth)
        yield
        spark.stop()
    if "memory" in run.parts:
        locations = [table(Workload(3, "dv", scale)) for scale in run.memory_scales]
        results.memory = [measure_in_new_process(location, run.memory_heap) for location in locations]
        print_memory(console, results.memory)
        yield


def compare_planners(spark: SparkSession, run: Run) -> Iterator[list[Plan]]:
    """Yield the plans of one table after the other."""
    trees: dict[str, str] = {}
    iceberg_trees: dict[str, str] = {}
    ours, java = planners.Sparkmeta(spark), planners.IcebergJava(spark)
    tree = planners.SparkmetaTree(spark, trees)
    cached = planners.SparkmetaCached(spark, str(BUILD / "cache"))
    iceberg_tree = planners.SparkmetaIcebergTree(spark, iceberg_trees)
    contenders = [java, planners.IcebergJavaDistributed(spark), ours, tree, iceberg_tree, cached]
    if run.keepers:
        contenders += [planners.IcebergJavaCached(spark), planners.SparkmetaOpen(spark)]
        contenders += [planners.SparkmetaArrow(spark), planners.SparkmetaTreeArrow(spark, trees)]
        contenders += [planners.SparkmetaIcebergTreeArrow(spark, iceberg_trees)]
    timer = Timer(spark, run.warmups, run.repeats)
    if "plan" in run.parts:
        for version, deletes in WORKLOADS:
            workload = Workload(version, deletes, run.scale)
            with console.status(f"making the trees of {workload.name}, {workload.files:,} files"):
                trees[table(workload)] = tree_location(spark, workload)
                iceberg_trees[table(workload)] = iceberg_tree_location(spark, workload)
            yield plans_of(timer, contenders, workload)
    if "small" in run.parts:
        for workload, queries in SMALL:
            trees[table(workload)] = tree_location(spark, workload)
            iceberg_trees[table(workload)] = iceberg_tree_location(spark, workload)
            yield plans_of(timer, [planners.Pyiceberg(), *contenders], workload, queries)
    if "peer" in run.parts:
        for version, deletes in WORKLOADS[:2]:
            yield plans_of(timer, [planners.Pyiceberg(), java, ours], Workload(version, deletes, run.peer_scale))


def plans_of(
    timer: Timer, contenders: Sequence[planners.Contender], workload: Workload, queries: Sequence[Query] = QUERIES
) -> list[Plan]:
    """Plan each query on one table with every contender."""
    location = table(workload)
    plans: list[Plan] = []
    for query in queries:
        with console.status(f"{workload.name}, {workload.files:,} files: {query.name}"):
            plans += timer.compare(contenders, workload, location, query)
    return plans


def table(workload: Workload) -> str:
    """Return the location of the table's metadata JSON; write the table if it does not exist yet."""
    with console.status(f"making the table {workload.name}, {workload.files:,} files"):
        start = time.perf_counter()
        location = metadata_location(workload)
        if (seconds := time.perf_counter() - start) > 1:
            console.print(f"made the table v{workload.format_version} of {workload.files:,} files in {seconds:.0f} s")
    return location


if __name__ == "__main__":
    main()
