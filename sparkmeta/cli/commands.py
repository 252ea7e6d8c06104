"""The command line, and the commands that look at tables and views, such as `describe` and `plan`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli import catalog, changes
from sparkmeta.cli.doctor import doctor
from sparkmeta.cli.maintain import COMMANDS, OPERATIONS, cache, health, maintain, upgrade
from sparkmeta.cli.output import (
    TextColumn,
    drop_unread_output,
    error_line,
    print_facts,
    print_json,
    print_lines,
    print_table,
    progress,
    time_text,
)
from sparkmeta.cli.serve import serve
from sparkmeta.cli.source import (
    VERBOSE,
    CatalogSource,
    ScanOptions,
    SnapshotChoice,
    Source,
    few_collections,
    takes_catalog,
    takes_scan_options,
    takes_snapshot,
    takes_source,
    without_pandas,
)
from sparkmeta.cli.tables import (
    METADATA_TABLES,
    RowOptions,
    metadata_command,
    takes_output,
    takes_row_options,
    text_columns,
)
from sparkmeta.expr import sql
from sparkmeta.text import byte_size, partition_terms, printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.schema import Schema

    from sparkmeta.catalog import Catalog
    from sparkmeta.catalog.base import Identifier
    from sparkmeta.scan import Scan
    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.table import Table
    from sparkmeta.views.view import View


# -- Describe a table by its metadata file ----------------------------------------------------------------------------


_TOTALS = {
    "records": "total-records",
    "data_files": "total-data-files",
    "data_file_bytes": "total-files-size",
    "delete_files": "total-delete-files",
    "position_deletes": "total-position-deletes",
    "equality_deletes": "total-equality-deletes",
}
_REFS_SHOWN = 20


def description(table: Table) -> dict[str, Any]:
    """Return the description of a table for `--output json`.

    Totals come from the summary of the current snapshot; they are None if it lacks them.
    """
    metadata = table.metadata
    return {
        "name": table.full_name,
        "location": table.location(),
        "format_version": table.format_version,
        "table_uuid": str(metadata.table_uuid),
        "metadata_location": table.metadata_location,
        "last_updated_at": time_text(metadata.last_updated_ms),
        "schema": columns(table.schema()),
        "partition_spec": [str(part) for part in _partition_fields(table)],
        "sort_order": [str(field) for field in table.sort_order().fields],
        "current_snapshot": _snapshot(table.current_snapshot()),
        "totals": _totals(table.current_snapshot()),
        "snapshots": len(table.snapshots()),
        "refs": {
            name: {"type": str(ref.snapshot_ref_type), "snapshot_id": ref.snapshot_id}
            for name, ref in table.refs().items()
        },
        "properties": dict(table.properties),
    }


def facts(table: Table) -> dict[str, object]:
    """Return the description for text output: a line or a list of lines by label."""
    known = description(table)
    return {
        "location": known["location"],
        "metadata file": known["metadata_location"],
        "format version": known["format_version"],
        "uuid": known["table_uuid"],
        "last updated": known["last_updated_at"],
        "current snapshot": _snapshot_line(known["current_snapshot"]),
        "holds": _totals_line(known["totals"]),
        "snapshots": known["snapshots"],
        "refs": _limited([f"{name} ({ref['type']}) -> {ref['snapshot_id']}" for name, ref in known["refs"].items()]),
        "partitioned by": known["partition_spec"] or "nothing",
        "sorted by": known["sort_order"] or "nothing",
        "columns": [column_line(column) for column in known["schema"]],
        "properties": property_lines(known["properties"]),
    }


def columns(schema: Schema) -> list[dict[str, Any]]:
    """Return the columns of a schema for `--output json`."""
    return [
        {
            "id": field.field_id,
            "name": field.name,
            "type": str(field.field_type),
            "required": field.required,
            "doc": field.doc,
        }
        for field in schema.fields
    ]


def column_line(column: Mapping[str, Any]) -> str:
    """Return the line of a column for text output."""
    return f"{column['id']:>3}  {column['name']}: {column['type']}{' required' if column['required'] else ''}"


def property_lines(properties: Mapping[str, str]) -> list[str] | str:
    """Return the lines of properties for text output."""
    return [f"{name} = {value}" for name, value in sorted(properties.items())] or "none"


def _partition_fields(table: Table) -> list[str]:
    terms = partition_terms(table.spec(), table.schema())
    return [f"{field.name} = {term}" for field, term in zip(table.spec().fields, terms, strict=True)]


def _snapshot(snapshot: Snapshot | None) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": time_text(snapshot.timestamp_ms),
        "operation": snapshot.operation,
    }


def _totals(snapshot: Snapshot | None) -> dict[str, int | None]:
    from sparkmeta.spec.summary import summary_number

    return {name: summary_number(snapshot, key) for name, key in _TOTALS.items()}


def _snapshot_line(snapshot: Mapping[str, Any] | None) -> str:
    if snapshot is None:
        return "none: the table is empty"
    return f"{snapshot['snapshot_id']} ({snapshot['operation'] or 'unknown operation'} at {snapshot['committed_at']})"


def _totals_line(totals: Mapping[str, int | None]) -> str:
    shown = {name: "an unknown number of" if count is None else f"{count:,}" for name, count in totals.items()}
    data = totals["data_file_bytes"]
    weight = "" if data is None else f" ({byte_size(data)})"
    deletes = f"{shown['delete_files']} delete files" if totals["delete_files"] != 0 else "no delete files"
    return f"{shown['records']} records in {shown['data_files']} data files{weight}; {deletes}"


def _limited(lines: list[str]) -> list[str]:
    more = len(lines) - _REFS_SHOWN
    return lines if more <= 0 else [*lines[:_REFS_SHOWN], f"... {more:,} more"]


# -- Define the command `view` ----------------------------------------------------------------------------------------


@click.command()
@click.argument("name", metavar="VIEW")
@click.option("--sql", "dialect", metavar="DIALECT", help="Print only the query in this SQL dialect.")
@click.option("--translate", is_flag=True, help="With --sql: if there is no such query, have sqlglot translate one.")
@takes_output
@takes_catalog
def view(source: CatalogSource, name: str, dialect: str | None, translate: bool, as_json: bool) -> None:
    """Show the queries, columns, versions and properties of a view."""
    if dialect is None and translate:
        raise click.UsageError("--translate needs --sql")
    if dialect is not None and as_json:
        raise click.UsageError("--sql prints text: it takes no --output json")
    with progress("Opening the view"):
        opened = source.open_catalog().load_view(name)
    if dialect is not None:
        click.echo(opened.sql(dialect, translate=translate))
    elif as_json:
        print_json(_description(opened))
    else:
        print_facts(opened.full_name, _facts(opened))


def _description(view: View) -> dict[str, Any]:
    version = view.current_version()
    return {
        "name": view.full_name,
        "location": view.location(),
        "view_uuid": None if view.uuid() is None else str(view.uuid()),
        "metadata_location": view.metadata_location,
        "schema": columns(view.schema()),
        "queries": {query.dialect: query.sql for query in version.sql_representations},
        "default_catalog": version.default_catalog,
        "default_namespace": list(version.default_namespace),
        "current_version_id": version.version_id,
        "versions": [
            {
                "version_id": known.version_id,
                "created_at": time_text(known.timestamp_ms),
                "schema_id": known.schema_id,
                "dialects": [query.dialect for query in known.sql_representations],
                "summary": dict(known.summary),
            }
            for known in view.versions
        ],
        "history": [
            {"made_current_at": time_text(entry.timestamp_ms), "version_id": entry.version_id}
            for entry in view.history()
        ],
        "properties": view.properties,
    }


def _facts(view: View) -> dict[str, object]:
    known = _description(view)
    versions = ((each["version_id"], ", ".join(each["dialects"]), each["created_at"]) for each in known["versions"])
    return {
        "location": known["location"],
        "metadata file": known["metadata_location"],
        "uuid": known["view_uuid"] or "none",
        **{f"query in {dialect}": text.splitlines() for dialect, text in known["queries"].items()},
        "columns": [column_line(column) for column in known["schema"]],
        "default catalog": known["default_catalog"] or "the view's own",
        "default namespace": ".".join(known["default_namespace"]) or "none",
        "current version": known["current_version_id"],
        "versions": [f"{version_id} ({dialects} at {time})" for version_id, dialects, time in versions],
        "history": [f"{entry['version_id']} since {entry['made_current_at']}" for entry in known["history"]],
        "properties": property_lines(known["properties"]),
    }


# -- The commands `namespaces`, `tables` and `views` ------------------------------------------------------------------


@click.command()
@click.argument("namespace", metavar="[NAMESPACE]", default="")
@takes_output
@takes_catalog
def namespaces(source: CatalogSource, namespace: str, as_json: bool) -> None:
    """List the namespaces of a catalog, or the namespaces directly in NAMESPACE."""
    with progress("Listing namespaces"):
        identifiers = source.open_catalog().list_namespaces(namespace)
    _print(identifiers, as_json)


@click.command()
@click.argument("namespace", metavar="[NAMESPACE]", default="")
@takes_output
@takes_catalog
def tables(source: CatalogSource, namespace: str, as_json: bool) -> None:
    """List the tables directly in NAMESPACE, or in all namespaces of a catalog."""
    with progress("Listing tables"):
        catalog = source.open_catalog()
        identifiers = list(_listed(catalog, catalog.list_tables, namespace))
    _print(identifiers, as_json)


@click.command()
@click.argument("namespace", metavar="[NAMESPACE]", default="")
@takes_output
@takes_catalog
def views(source: CatalogSource, namespace: str, as_json: bool) -> None:
    """List the views directly in NAMESPACE, or in all namespaces of a catalog."""
    with progress("Listing views"):
        catalog = source.open_catalog()
        identifiers = list(_listed(catalog, catalog.list_views, namespace))
    _print(identifiers, as_json)


def _listed(
    catalog: Catalog, list_names: Callable[[Identifier], Iterable[tuple[str, ...]]], namespace: str
) -> Iterator[tuple[str, ...]]:
    """Yield the identifiers that a function lists for a namespace, or for all namespaces if it is empty."""
    if namespace:
        yield from list_names(namespace)
        return
    namespaces = catalog.list_namespaces()
    while namespaces:
        below = namespaces.pop(0)
        yield from list_names(below)
        namespaces = [*catalog.list_namespaces(below), *namespaces]


def _print(identifiers: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        print_json(identifiers)
        return
    for identifier in identifiers:
        click.echo(printable(".".join(identifier)))


# -- The commands `describe`, `plan` and `tree` -----------------------------------------------------------------------
# `cli.maintain` and `cli.tables` have the other commands.


PLANNED_FILES = (
    TextColumn("file_path", kind="path"),
    TextColumn("format", "file_format"),
    TextColumn("partition"),
    TextColumn("records", "record_count", "count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
    TextColumn("sequence", "data_sequence_number", "id"),
    TextColumn("deletes", sql.size(sql.col("deletes")), "count"),
)
SCHEMA_COLUMNS = (
    TextColumn("id", kind="id"),
    TextColumn("name"),
    TextColumn("type"),
    TextColumn("required"),
    TextColumn("doc"),
)
TASKS = (
    TextColumn("size", "size_in_bytes", "bytes"),
    TextColumn("files", "files_count", "count"),
    TextColumn("splits", sql.size(sql.col("tasks")), "count"),
    TextColumn("records", sql.total(sql.col("tasks"), lambda task: task["record_count"]), "count"),
    TextColumn("deletes", sql.total(sql.col("tasks"), lambda task: sql.size(task["deletes"])), "count"),
)


class _Commands(click.Group):
    """A group whose commands report errors in one line on stderr, with exit code 1, or with --verbose as tracebacks.

    A command ends silently if the reader of its output has closed the pipe, but finishes its commits first. Names may
    have underscores. The names of methods and metadata tables name their commands, too.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("_", "-")
        return super().get_command(ctx, name) or super().get_command(ctx, _OTHER_NAMES.get(name, name))

    def invoke(self, ctx: click.Context) -> Any:
        if sys.stdout is None:  # the descriptor was closed when the process started
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        try:
            with few_collections(), without_pandas():
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
    with progress("Opening the table"):
        table = source.open()
    if as_json:
        print_json(description(table))
    else:
        print_facts(table.full_name, facts(table))


@main.command()
@takes_output
@takes_source
def schema(source: Source, as_json: bool) -> None:
    """Show the columns of the table's current schema, from the metadata file alone."""
    with progress("Opening the table"):
        listed = columns(source.open().schema())
    if as_json:
        print_json(listed)
    else:
        print_table(listed, SCHEMA_COLUMNS)


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
    with progress("Planning"):
        rows = scan.plan_files() if _by_spark(scan) else scan.plan.files()
    row_options.print(rows, text_columns(table, PLANNED_FILES), table.location(), table.state)


def _print_tasks(table: Table, scan: Scan, row_options: RowOptions) -> None:
    with progress("Planning"):
        tasks = scan.plan_tasks() if _by_spark(scan) else scan.plan.tasks()
    row_options.print(tasks, TASKS, table.location(), table.state)


def _print_task_json(_: Table, scan: Scan, row_options: RowOptions) -> None:
    with progress("Planning"):
        tasks = scan.plan_task_json() if _by_spark(scan) else scan.plan.task_json()
        print_lines(tasks, row_options.limit)


def _by_spark(scan: Scan) -> bool:
    """Return whether an option asks for Spark, which then makes and prints the rows."""
    return scan.state.sessions.given is not None


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

# The names of methods and metadata tables -> the names of their commands, where they differ.
_OTHER_NAMES = {
    name.replace("_", "-"): command
    for name, command in (
        *((name, operation.command) for name, operation in OPERATIONS.items()),
        *((name, metadata_table.command) for name, metadata_table in METADATA_TABLES.items()),
    )
    if command is not None
}

# The row options of views that do not accept all of them.
_ROW_OPTIONS = {"task_json": ["--limit"], "report": [], "count": []}

_ALONE = (cache, doctor, namespaces, tables, health, maintain, upgrade, serve, view, views)
for _command in (*_ALONE, *COMMANDS, *changes.COMMANDS, *catalog.COMMANDS):
    main.add_command(_command)
for _name, _metadata_table in METADATA_TABLES.items():
    main.add_command(metadata_command(_name, _metadata_table))
