"""Demonstrate sparkmeta on two tables (`make demo`).

Another library writes a table of some thousand small files. The demo shows its metadata and plans scans. Then sparkmeta
creates a table of format version 4, commits to it, and draws its metadata tree.

Iceberg's Java runtime writes the first table if `make jars` has fetched it. Otherwise pyiceberg does, which writes no
delete files.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import demo_table
import demo_tree
import pyspark
from pyiceberg.catalog import load_catalog
from rich.console import Console

import sparkmeta as sm
from sparkmeta.cli.commands import PLANNED_FILES, TASKS, facts
from sparkmeta.cli.output import TextColumn, print_facts, print_rows, progress, text_width
from sparkmeta.cli.source import cli_session
from sparkmeta.cli.tables import METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


ROOT = Path(__file__).resolve().parent.parent
TWO_DAYS = "ts >= '2025-03-10T00:00:00' and ts < '2025-03-12T00:00:00' and country in ('NO', 'SE')"
BY_STATS = "order_id = 40000"
IN_SWEDEN = "order_id < 3000 and country = 'SE'"
CHANGES = (
    TextColumn("change", "change_type"),
    TextColumn("snapshot_id"),
    TextColumn("file_path", kind="path"),
    TextColumn("records", "record_count", "count"),
)


class Output:
    """The console output: headings, commands and steps with their duration."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, width=text_width(), highlight=False)
        self.since = time.perf_counter()

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.rule(text, align="left")

    def step(self, text: str) -> None:
        """Print a finished step, with the seconds since the previous step."""
        now = time.perf_counter()
        self.console.print(f"{now - self.since:6.1f} s  {text}", markup=False, soft_wrap=True)
        self.since = now

    def command(self, text: str) -> None:
        self.console.print(f"$ {text}", style="green", markup=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(description="A table of some thousand files, its metadata and its plans.")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo", help="replaced by every run")
    parser.add_argument("--jars", type=Path, default=ROOT / "build" / "jars", help="where Iceberg's Java runtime is")
    parser.add_argument("--months", type=int, choices=range(1, 13), default=12, metavar="N", help="months of orders")
    args = parser.parse_args(arguments)
    try:
        run(args.folder.resolve(), iceberg_jar(args.jars), args.months)
    except sm.SparkmetaError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def iceberg_jar(folder: Path) -> Path | None:
    """Return the jar of Iceberg's runtime for the installed Spark in a folder; None if there is none."""
    spark_version = ".".join(pyspark.__version__.split(".")[:2])
    return next(iter(sorted(folder.glob(f"iceberg-spark-runtime-{spark_version}_*.jar"))), None)


def run(folder: Path, jar: Path | None, months: int) -> None:
    """Write both tables and show them."""
    output = Output()
    warehouse = folder / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    output.heading("A table of some thousand small files")
    with progress("Starting Spark"):
        spark = cli_session(demo_table.java_config(jar, warehouse) if jar else {}, None, show_log=False)
    output.step(f"Spark {spark.version} started on this machine")
    with progress("Writing the table"):
        location = (
            demo_table.write_with_java(spark, warehouse, months, output.step)
            if jar
            else demo_table.write_with_pyiceberg(warehouse, months, output.step)
        )
    show_table(sm.load_table(location, spark=spark), output)
    output.heading("A table of format version 4: its metadata is a tree")
    with progress("Writing the table"):
        shutil.rmtree(folder / "trees", ignore_errors=True)
        tree = demo_tree.write_tree(spark, folder / "trees", output.step)
    show_tree(tree, output)
    show_service(folder / "trees", output)
    print_next_commands(location, tree.location(), output)


def show_table(table: sm.Table, output: Output) -> None:
    """Print the metadata of a table, and three plans."""
    output.heading("The table: table.metadata")
    print_facts(table.full_name, facts(table))
    for name, rows in (("snapshots", 20), ("manifests", 20), ("files", 8), ("partitions", 8)):
        output.heading(f"Its metadata as DataFrames: table.inspect.{name}()")
        print_rows(getattr(table.inspect, name)(), METADATA_TABLES[name].text, rows, table.location())
    plan(table, output, "", "A scan of everything")
    plan(table, output, TWO_DAYS, "Two days in two countries: manifests and files skipped by partition")
    plan(table, output, BY_STATS, "One order, by a column that is not a partition column: files skipped by min and max")
    output.heading("A scan of everything as splits packed into tasks: table.scan().plan_tasks()")
    print_rows(table.scan().plan_tasks(), TASKS, 4)


def show_tree(table: sm.Table, output: Output) -> None:
    """Print a plan of a metadata tree, the changes of its commits, and a drawing."""
    plan(table, output, "order_id < 3000 and country in ('AT', 'SE')", "A scan of the tree")
    output.heading("The changes of its commits: table.file_changes(from, to)")
    show_changes(table)
    output.heading("The tree: table.draw()")
    output.console.print(table.draw().text, markup=False, soft_wrap=True)


def show_service(warehouse: Path, output: Output) -> None:
    """Query the tree with pyiceberg through a service that plans for it, since pyiceberg can't read trees."""
    output.heading("Another engine reads the tree through a service: sm.serve(catalog)")
    catalog = sm.load_catalog("demo", type="hadoop", warehouse=warehouse.as_uri())
    with sm.serve(catalog, port=0) as service:
        output.command(f"load_catalog('served', type='rest', uri='{service.uri}').load_table('{demo_table.NAME}')")
        served = load_catalog("served", type="rest", uri=service.uri).load_table(demo_table.NAME)
        output.since = time.perf_counter()
        rows = served.scan(IN_SWEDEN, selected_fields=("order_id", "amount")).to_arrow()
        output.step(f"pyiceberg read {len(rows)} rows where {IN_SWEDEN}")


def show_changes(table: sm.Table) -> None:
    """Print the files that the last two commits added and removed."""
    snapshots = table.snapshots()
    changes = table.file_changes(snapshots[-3].snapshot_id, snapshots[-1].snapshot_id)
    print_rows(changes, CHANGES, 20, table.location())


def plan(table: sm.Table, output: Output, row_filter: str, title: str) -> None:
    """Print the first files of a scan and its report."""
    output.heading(title)
    output.command(f'table.scan("{row_filter}").plan_files()' if row_filter else "table.scan().plan_files()")
    scan = table.scan(row_filter) if row_filter else table.scan()
    output.since = time.perf_counter()
    print_rows(scan.plan_files(), PLANNED_FILES, 6, table.location())
    output.step("planned and shown")
    for line in str(scan.report()).splitlines():
        output.console.print(line, markup=False, soft_wrap=True)


def print_next_commands(location: str, tree: str, output: Output) -> None:
    """Print commands to try next."""
    output.heading("Next, try")
    for command in _next_commands(location, tree):
        output.command(command)


def _next_commands(location: str, tree: str) -> Iterator[str]:
    program = Path(sys.executable).parent / "sparkmeta"
    command = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
    table = location.removeprefix("file://")
    yield f"{command} describe {table}"
    yield f"{command} files {table} --where 'content > 0' --limit 5"
    yield f'{command} plan {table} --filter "{BY_STATS}" --report'
    yield f"{command} plan {table} --output json | head -1"
    yield f"{command} tree {tree.removeprefix('file://')} --svg tree.svg"


if __name__ == "__main__":
    sys.exit(main())
