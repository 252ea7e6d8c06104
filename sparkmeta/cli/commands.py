"""Define the command line and its commands `describe`, `plan` and `tree`.

The other commands are in `cli.cache`, `cli.catalogs`, `cli.health`, `cli.maintain`, `cli.serve`, `cli.statistics`,
`cli.tables`, `cli.upkeep` and `cli.view`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.cache import cache
from sparkmeta.cli.catalogs import namespaces, tables, views
from sparkmeta.cli.errors import error_line
from sparkmeta.cli.health import health
from sparkmeta.cli.maintain import (
    compact,
    downgrade,
    expire_snapshots,
    remove_dangling_deletes,
    remove_orphan_files,
    rewrite_manifests,
    rewrite_position_delete_files,
    upgrade,
)
from sparkmeta.cli.output import (
    TextColumn,
    drop_unread_output,
    print_facts,
    print_json,
    print_lines,
    progress,
)
from sparkmeta.cli.rewrite_data import rewrite_data_files
from sparkmeta.cli.serve import serve
from sparkmeta.cli.source import (
    VERBOSE,
    ScanOptions,
    SnapshotChoice,
    Source,
    takes_scan_options,
    takes_snapshot,
    takes_source,
)
from sparkmeta.cli.statistics import compute_partition_stats, compute_table_stats
from sparkmeta.cli.tables import (
    METADATA_TABLES,
    RowOptions,
    metadata_command,
    takes_output,
    takes_row_options,
    text_columns,
)
from sparkmeta.cli.upkeep import maintain
from sparkmeta.cli.view import view
from sparkmeta.inspect.excerpt import printable_lines

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
    """A group whose commands report errors in one line on stderr, with exit code 1, or with --verbose as tracebacks.

    A command ends silently if the reader of its output has closed the pipe, but not before its commits.
    """

    def invoke(self, ctx: click.Context) -> Any:
        if sys.stdout is None:  # the descriptor was closed when the process started
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and drop_unread_output(sys.stdout):
                ctx.exit(0)
            if ctx.meta.get(VERBOSE):
                raise
            raise click.ClickException(error_line(error, " (--verbose shows all of it)")) from error
        return result


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="sparkmeta", message="sparkmeta %(version)s")
def main() -> None:
    """Query the metadata of Apache Iceberg tables, plan scans, and compact manifests, with Spark.

    TABLE is a table's folder or one of its metadata files, or with --catalog NAME an identifier in a catalog.

    \b
      sparkmeta describe /warehouse/db/events
      sparkmeta files /warehouse/db/events --where "file_size_in_bytes < 1000000" --output json
      sparkmeta plan --catalog prod db.events --filter "day >= '2026-01-01' and id = 7" --report
      sparkmeta tree /warehouse/db/events --svg tree.svg
      sparkmeta health /warehouse/db/events --html health.html
      sparkmeta compact /warehouse/db/events --commit
      sparkmeta rewrite-manifests /warehouse/db/events --commit
      sparkmeta upgrade /warehouse/db/events --format-version 4 --commit
      sparkmeta view --catalog prod db.daily_events --sql spark
      sparkmeta serve --catalog prod --port 8181

    Exit codes: 0 success, 1 the table can't be read or the request is invalid (one line on stderr says why), 2 usage.
    """  # noqa: D301  \b keeps click from joining the lines


@main.command()
@takes_output
@takes_source
def describe(source: Source, as_json: bool) -> None:
    """Show schema, partitioning, snapshots and properties, from the metadata file alone."""
    from sparkmeta.cli.describe import description, facts

    with progress("Opening the table"):
        table = source.open()
    if as_json:
        print_json(description(table))
    else:
        print_facts(table.full_name, facts(table))


@main.command()
@click.option("--tasks", is_flag=True, help="Print tasks of packed splits instead of files.")
@click.option("--task-json", is_flag=True, help="Print the splits as Iceberg's File Scan Task JSON, one per line.")
@click.option("--report", is_flag=True, help="Print what planning scans and skips, and why, instead of files.")
@click.option("--count", is_flag=True, help="Print the number of files instead of the files.")
@takes_scan_options
@takes_row_options
@takes_source
def plan(source: Source, scan_options: ScanOptions, row_options: RowOptions, **views: bool) -> None:
    """Plan a scan: print the data files to read, with their deletes."""
    selected = [view for view, is_set in views.items() if is_set]
    if len(selected) > 1:
        raise click.UsageError("--tasks, --task-json, --report and --count are mutually exclusive")
    view = selected[0] if selected else "files"
    for name in row_options.given:
        if name not in _ROW_OPTIONS.get(view, row_options.given):
            raise click.UsageError(f"--{view.replace('_', '-')} takes no {name}: it covers the whole plan")
    with progress("Opening the table"):
        table = source.open()
        scan = scan_options.scan(table)
    _PLAN_VIEWS[view](table, scan, row_options)


def _print_files(table: Table, scan: Scan, row_options: RowOptions) -> None:
    row_options.print(scan.plan_files(), text_columns(table, PLANNED_FILES), table.location())


def _print_tasks(table: Table, scan: Scan, row_options: RowOptions) -> None:
    row_options.print(scan.plan_tasks(), TASKS, table.location())


def _print_task_json(_: Table, scan: Scan, row_options: RowOptions) -> None:
    with progress("Planning"):
        print_lines(scan.plan_task_json(), row_options.limit)


def _print_report(_: Table, scan: Scan, row_options: RowOptions) -> None:
    with progress("Planning"):
        report = scan.report()
    if row_options.as_json:
        print_json(report.to_dict())
    else:
        click.echo(printable_lines(str(report)))


def _print_count(_: Table, scan: Scan, row_options: RowOptions) -> None:
    with progress("Counting"):
        count = scan.count_files()
    if row_options.as_json:
        print_json({"files": count})
    else:
        click.echo(str(count))


@main.command()
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write an SVG drawing to this file.",
)
@takes_snapshot
@takes_source
def tree(source: Source, choice: SnapshotChoice, svg: str | None) -> None:
    """Draw the metadata tree of a snapshot, abridged if it is large."""
    with progress("Opening the table"):
        table = source.open()
        snapshot_id = choice.snapshot_id_in(table)
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

# The options for rows of views that do not take all of them.
_ROW_OPTIONS = {"task_json": ["--limit"], "report": [], "count": []}

main.add_command(cache)
main.add_command(namespaces)
main.add_command(tables)
main.add_command(health)
main.add_command(maintain)
main.add_command(compact)
main.add_command(rewrite_manifests)
main.add_command(expire_snapshots)
main.add_command(remove_dangling_deletes)
main.add_command(rewrite_data_files)
main.add_command(rewrite_position_delete_files)
main.add_command(remove_orphan_files)
main.add_command(compute_partition_stats)
main.add_command(compute_table_stats)
main.add_command(upgrade)
main.add_command(downgrade)
main.add_command(serve)
main.add_command(view)
main.add_command(views)
for _name, _metadata_table in METADATA_TABLES.items():
    main.add_command(metadata_command(_name, _metadata_table))
