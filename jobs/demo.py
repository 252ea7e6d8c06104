"""`make demo`: lets another library write a table of some thousand small files, looks at its metadata, plans its scans.

Then it makes a table of format version 4 of its own, commits to it, and draws its metadata tree.

It needs nothing but this project. Where `make jars` has brought Iceberg's Java runtime, that writes the table, with
delete files and deletion vectors; else pyiceberg does, without.
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
from rich.console import Console

import sparkmeta as sm
from sparkmeta.cli.commands import PLANNED_FILES, TASKS
from sparkmeta.cli.describe import facts
from sparkmeta.cli.output import TextColumn, print_facts, print_rows, progress, text_width
from sparkmeta.cli.session import cli_session
from sparkmeta.cli.tables import METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


ROOT = Path(__file__).resolve().parent.parent
TWO_DAYS = "ts >= '2025-03-10T00:00:00' and ts < '2025-03-12T00:00:00' and country in ('NO', 'SE')"
BY_STATS = "order_id = 40000"
CHANGES = (
    TextColumn("change", "change_type"),
    TextColumn("snapshot_id"),
    TextColumn("file_path", kind="path"),
    TextColumn("records", "record_count", "count"),
)


class Story:
    """The demo's telling: headings, remarks, and the time that each thing took."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, width=text_width(), highlight=False)
        self.since = time.perf_counter()

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.rule(text, align="left")

    def did(self, text: str) -> None:
        """Something that is done, with the seconds since the last one."""
        now = time.perf_counter()
        self.console.print(f"{now - self.since:6.1f} s  {text}", markup=False, soft_wrap=True)
        self.since = now

    def command(self, text: str) -> None:
        self.console.print(f"$ {text}", style="green", markup=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tells the whole story. Returns the exit code."""
    parser = argparse.ArgumentParser(description="A table of some thousand files, its metadata and its plans.")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo", help="made anew by every run")
    parser.add_argument("--jars", type=Path, default=ROOT / "build" / "jars", help="where Iceberg's Java runtime is")
    parser.add_argument("--months", type=int, choices=range(1, 13), default=12, metavar="N", help="of orders, 1 to 12")
    asked = parser.parse_args(arguments)
    try:
        tell(asked.folder.resolve(), iceberg_jar(asked.jars), asked.months)
    except sm.SparkmetaError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def iceberg_jar(folder: Path) -> Path | None:
    """Iceberg's runtime for the Spark that is installed, if it is in the folder."""
    spark_version = ".".join(pyspark.__version__.split(".")[:2])
    return next(iter(sorted(folder.glob(f"iceberg-spark-runtime-{spark_version}_*.jar"))), None)


def tell(folder: Path, jar: Path | None, months: int) -> None:
    """Makes the table, then looks at it."""
    story = Story()
    warehouse = folder / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    story.heading("A table of some thousand small files")
    with progress("Starting Spark"):
        spark = cli_session(demo_table.java_config(jar, warehouse) if jar else {}, None, show_log=False)
    story.did(f"Spark {spark.version} started on this machine")
    with progress("Writing the table"):
        location = (
            demo_table.write_with_java(spark, warehouse, months, story.did)
            if jar
            else demo_table.write_with_pyiceberg(warehouse, months, story.did)
        )
    look(sm.load_table(location, spark=spark), story)
    story.heading("A table of format version 4: its metadata is a tree")
    with progress("Writing the table"):
        shutil.rmtree(folder / "trees", ignore_errors=True)
        tree = demo_tree.write_tree(spark, folder / "trees", story.did)
    look_at_tree(tree, story)
    go_on(location, tree.location(), story)


def look(table: sm.Table, story: Story) -> None:
    """Prints what the table is made of, and three plans."""
    story.heading("What it is: table.metadata")
    print_facts(table.full_name, facts(table))
    for name, rows in (("snapshots", 20), ("manifests", 20), ("files", 8), ("partitions", 8)):
        story.heading(f"Its metadata as DataFrames: table.inspect.{name}()")
        print_rows(getattr(table.inspect, name)(), METADATA_TABLES[name].text, rows, table.location())
    plan(table, story, "", "A scan of everything")
    plan(table, story, TWO_DAYS, "Two days in two countries: manifests and files skipped by partition")
    plan(table, story, BY_STATS, "One order, in a column that is no partition: files skipped by min and max")
    story.heading("A scan of everything as splits packed into tasks: table.scan().plan_tasks()")
    print_rows(table.scan().plan_tasks(), TASKS, 4)


def look_at_tree(table: sm.Table, story: Story) -> None:
    """Prints a plan of a V4 table, what its commits changed, and the tree."""
    plan(table, story, "order_id < 3000 and country in ('AT', 'SE')", "Its scans are planned as those of other tables")
    story.heading("What its commits changed: table.file_changes(from, to)")
    show_changes(table)
    story.heading("The tree: table.draw()")
    story.console.print(table.draw().text, markup=False, soft_wrap=True)


def show_changes(table: sm.Table) -> None:
    """Prints what the last two commits did, by snapshot."""
    snapshots = table.snapshots()
    changes = table.file_changes(snapshots[-3].snapshot_id, snapshots[-1].snapshot_id)
    print_rows(changes, CHANGES, 20, table.location())


def plan(table: sm.Table, story: Story, row_filter: str, title: str) -> None:
    """Prints one scan's first files and its report."""
    story.heading(title)
    story.command(f'table.scan("{row_filter}").plan_files()' if row_filter else "table.scan().plan_files()")
    scan = table.scan(row_filter) if row_filter else table.scan()
    story.since = time.perf_counter()
    print_rows(scan.plan_files(), PLANNED_FILES, 6, table.location())
    story.did("planned and shown")
    for line in str(scan.report()).splitlines():
        story.console.print(line, markup=False, soft_wrap=True)


def go_on(location: str, tree: str, story: Story) -> None:
    """What to try next."""
    story.heading("Go on from here")
    for command in _next_commands(location, tree):
        story.command(command)


def _next_commands(location: str, tree: str) -> Iterator[str]:
    program = Path(sys.executable).parent / "sparkmeta"
    shown = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
    table = location.removeprefix("file://")
    yield f"{shown} describe {table}"
    yield f"{shown} files {table} --where 'content > 0' --limit 5"
    yield f'{shown} plan {table} --filter "{BY_STATS}" --report'
    yield f"{shown} plan {table} --output json | head -1"
    yield f"{shown} tree {tree.removeprefix('file://')} --svg tree.svg"


if __name__ == "__main__":
    sys.exit(main())
