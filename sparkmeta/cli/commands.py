"""The command line: what is in this module, in `cli.cache` and `cli.maintain`, and metadata tables that are looked at
much."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.cache import cache
from sparkmeta.cli.maintain import compact, rewrite_manifests, upgrade
from sparkmeta.cli.output import (
    TextColumn,
    drop_unread_output,
    print_facts,
    print_json,
    print_lines,
    progress,
)
from sparkmeta.cli.source import VERBOSE, Moment, Question, Source, takes_moment, takes_question, takes_source
from sparkmeta.cli.tables import METADATA_TABLES, Shown, metadata_command, takes_output, takes_rows, text_columns
from sparkmeta.errors import SparkmetaError, from_spark

if TYPE_CHECKING:
    from sparkmeta.scan import Scan
    from sparkmeta.table import Table

PLANNED_FILES = (
    TextColumn("file_path", kind="path"),
    TextColumn("format", "file_format"),
    TextColumn("partition"),
    TextColumn("records", "record_count", "count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
    TextColumn("sequence", "data_sequence_number", "id"),
    TextColumn("deletes", "size(deletes)", "count"),
)
TASKS = (
    TextColumn("size", "size_in_bytes", "bytes"),
    TextColumn("files", "files_count", "count"),
    TextColumn("splits", "size(tasks)", "count"),
    TextColumn("records", "aggregate(tasks, 0L, (sum, task) -> sum + task.record_count)", "count"),
    TextColumn("deletes", "aggregate(tasks, 0L, (sum, task) -> sum + size(task.deletes))", "count"),
)


class _Commands(click.Group):
    """A group whose commands end with one line on stderr and exit code 1 for what is an error of ours.

    Where nobody reads what they print they end quietly.
    """

    def invoke(self, ctx: click.Context) -> Any:
        if sys.stdout is None:  # its descriptor was closed before this process began
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and drop_unread_output():
                ctx.exit(0)
            message = None if ctx.meta.get(VERBOSE) else error_line(error)
            if message is None:
                raise
            raise click.ClickException(message) from error
        return result


def error_line(error: Exception) -> str | None:
    """What a user needs to know of an error, in one line; None for one that is nobody's but ours to explain."""
    ours = error if isinstance(error, SparkmetaError) else from_spark(error)
    if ours is not None:
        return _one_line(str(ours))
    from pyspark.errors import PySparkException

    module = type(error).__module__
    if module == "pyiceberg.exceptions" or isinstance(error, OSError):
        return _one_line(str(error))
    if isinstance(error, PySparkException) or module == "py4j.protocol":
        return f"Spark: {_one_line(str(error).strip())} (--verbose shows all of it)"
    return None


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()[:1])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="sparkmeta", message="sparkmeta %(version)s")
def main() -> None:
    """Look at the metadata of Apache Iceberg tables, plan their scans, and compact it, with Spark.

    TABLE is a table's folder or one of its metadata files, or with --catalog NAME an identifier in a catalog.

    \b
      sparkmeta describe /warehouse/db/events
      sparkmeta files /warehouse/db/events --where "file_size_in_bytes < 1000000" --output json
      sparkmeta plan --catalog prod db.events --filter "ts >= '2026-01-01' and id = 7" --report
      sparkmeta tree /warehouse/db/events --svg tree.svg
      sparkmeta compact /warehouse/db/events --commit
      sparkmeta rewrite-manifests /warehouse/db/events --commit
      sparkmeta upgrade /warehouse/db/events --format-version 4 --commit

    Exit codes: 0 done, 1 the table can't be read or the question is wrong (one line on stderr says why), 2 usage.
    """  # noqa: D301  the character that tells click to leave the lines alone


@main.command()
@takes_output
@takes_source
def describe(source: Source, as_json: bool) -> None:
    """Schema, partitioning, snapshots and properties of a table, from its metadata file."""
    from sparkmeta.cli.describe import description, facts

    with progress("Opening the table"):
        table = source.open()
    if as_json:
        print_json(description(table))
    else:
        print_facts(table.full_name, facts(table))


@main.command()
@click.option("--tasks", is_flag=True, help="Print the files as splits packed into tasks, one task a row.")
@click.option("--task-json", is_flag=True, help="Print the splits as Iceberg's File Scan Task JSON, one a line.")
@click.option("--report", is_flag=True, help="Print what planning scans and skips, and why, instead of the files.")
@click.option("--count", is_flag=True, help="Print how many files there are, instead of the files.")
@takes_question
@takes_rows
@takes_source
def plan(source: Source, question: Question, shown: Shown, **views: bool) -> None:
    """The data files, each with its deletes, that a scan has to read."""
    chosen = [view for view, wanted in views.items() if wanted]
    if len(chosen) > 1:
        raise click.UsageError("--tasks, --task-json, --report and --count exclude each other")
    if views["count"] and (shown.where is not None or shown.columns or shown.limit is not None):
        raise click.UsageError("--count counts all files of the plan: it takes no --where, --columns or --limit")
    with progress("Opening the table"):
        table = source.open()
        scan = question.scan(table)
    _PLAN_VIEWS[chosen[0] if chosen else "files"](table, scan, shown)


def _print_files(table: Table, scan: Scan, shown: Shown) -> None:
    shown.print(scan.plan_files(), text_columns(table, PLANNED_FILES), table.location())


def _print_tasks(table: Table, scan: Scan, shown: Shown) -> None:
    shown.print(scan.plan_tasks(), TASKS, table.location())


def _print_task_json(_: Table, scan: Scan, shown: Shown) -> None:
    with progress("Planning"):
        print_lines(scan.plan_task_json(), shown.limit)


def _print_report(_: Table, scan: Scan, shown: Shown) -> None:
    with progress("Planning"):
        report = scan.report()
    if shown.as_json:
        print_json(report.to_dict())
    else:
        click.echo(str(report))


def _print_count(_: Table, scan: Scan, shown: Shown) -> None:
    with progress("Counting"):
        count = scan.count_files()
    if shown.as_json:
        print_json({"files": count})
    else:
        click.echo(str(count))


@main.command()
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write an SVG drawing there."
)
@takes_moment
@takes_source
def tree(source: Source, moment: Moment, svg: str | None) -> None:
    """The metadata tree of a snapshot: root, leaves, files and deletion vectors, of a large one an excerpt."""
    with progress("Opening the table"):
        table = source.open()
        snapshot_id = moment.of(table)
    with progress("Reading the tree"):
        drawing = table.draw(snapshot_id)
    if svg is None:
        click.echo(drawing.text)
    else:
        Path(svg).write_text(drawing.svg, encoding="utf-8")
        click.echo(f"written: {svg}", err=True)


_PLAN_VIEWS = {
    "files": _print_files,
    "tasks": _print_tasks,
    "task_json": _print_task_json,
    "report": _print_report,
    "count": _print_count,
}

main.add_command(cache)
main.add_command(compact)
main.add_command(rewrite_manifests)
main.add_command(upgrade)
for _name, _shown_as in METADATA_TABLES.items():
    main.add_command(metadata_command(_name, _shown_as))
