"""The commands that maintain tables. They print a plan, and carry it out with `--commit`."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.checks import about_option, option_fields, required_options, rule_of_option, usual_value
from sparkmeta.cli.output import (
    TextColumn,
    print_json,
    print_table,
    progress,
    text_ids,
    timestamp,
    unread_output_dropped,
)
from sparkmeta.cli.source import (
    KEY_VALUE,
    CatalogSource,
    Parsed,
    Source,
    key_value,
    names,
    takes_session,
    takes_source,
    takes_tables,
)
from sparkmeta.cli.tables import RowOptions, takes_output, takes_row_options
from sparkmeta.errors import SparkmetaError, ValidationError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.spec.iso_times import moment_of
from sparkmeta.storage.files import Files, IOFiles, LocalFiles
from sparkmeta.storage.location import escape_glob, is_local
from sparkmeta.text import byte_size, counted, printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from dataclasses import Field

    from sparkmeta.cli.schedule import MaintenanceConfig
    from sparkmeta.fleet.health import FleetHealth
    from sparkmeta.maintain.health import HealthReport
    from sparkmeta.maintain.plans import Plan
    from sparkmeta.manifests.cache import CachedFolder, ManifestCache
    from sparkmeta.session import SessionSource
    from sparkmeta.table import Table


# -- Print a plan, commit it, and print the outcome -------------------------------------------------------------------


UNCHANGED = "nothing is changed without --commit"


def carry_out(plan: Any, row_options: RowOptions, operation: MaintenanceCommand, *, files: bool, commit: bool) -> None:
    """Print a plan, and commit it if requested.

    Args:
        plan: the plan.
        row_options: how rows are printed.
        operation: the operation of the plan.
        files: whether to print the plan's files, and nothing else unless `commit` is set. In JSON, the result is also a
            line.
        commit: whether to commit.
    """
    if files:
        with unread_output_dropped(sys.stdout) if commit else nullcontext():
            row_options.print(plan.to_df(), operation.columns, plan.table.location(), plan.table.state)
        if not commit:
            return
    with progress("Planning"):
        summary = plan.summary()

    def print_result() -> None:
        result = plan.result()
        if row_options.as_json:
            print_json(result, in_a_line=files)
            return
        click.echo(printable_lines(str(summary)))
        if result["committed"] is not None:
            for line in operation.outcome(result["committed"]):
                click.echo(printable_lines(line))
        elif not commit and not summary.is_empty:
            click.echo(UNCHANGED)

    if commit:
        from sparkmeta.maintain.plans import progress_of

        with printed_on_failure(plan, print_result), progress(progress_of(plan)):
            plan.commit()
    print_result()


@contextmanager
def printed_on_failure(plan: Plan[Any, Any], print_result: Callable[[], None]) -> Iterator[None]:
    """Print a plan's result if its commit in the block fails after parts of the plan were committed."""
    try:
        yield
    except Exception:
        if plan.is_partly_committed:
            with unread_output_dropped(sys.stdout):
                print_result()
        raise


# -- Options of operations, for commands and jobs ---------------------------------------------------------------------


# Annotated type -> the parser of a value, its placeholder in help, and whether the option is repeatable.
_KINDS: dict[str, tuple[Callable[[str], Any], str, bool]] = {
    "int": (int, "N", False),
    "float": (float, "N", False),
    "datetime": (moment_of, "TIME", False),
    "Sequence[str]": (names, "A,B", False),
    "Iterable[int]": (int, "N", True),
    "Mapping[str, str]": (key_value, "KEY=VALUE", True),
    "BooleanExpression": (str, "FILTER", False),
    "DataFrame": (str, "PARQUET", False),
}
_FLAGS = {
    "row_filter": "--filter",
    "files": "--inventory",
    "snapshot_ids": "--snapshot-id",
    "snapshot_properties": "--snapshot-property",
    "equal_schemes": "--equal-scheme",
    "equal_authorities": "--equal-authority",
}


@dataclass(frozen=True)
class LineOption:
    """An option of an operation on a command line: a field of the operation's class of options."""

    defined: Field[Any]

    @property
    def name(self) -> str:
        return self.defined.name

    @property
    def default(self) -> Any:
        return usual_value(self.defined)

    @property
    def is_switch(self) -> bool:
        return self.defined.type == "bool"

    @property
    def flag(self) -> str:
        return _FLAGS.get(self.name, f"--{self.name.replace('_', '-')}")

    @property
    def off_flag(self) -> str:
        """The flag that turns off a switch whose default is true."""
        return f"--no-{self.name.removeprefix('use_').replace('_', '-')}"

    @property
    def kind(self) -> tuple[Callable[[str], Any], str, bool]:
        """The parser of a value, its placeholder in help, and whether the option is repeatable."""
        return _KINDS.get(str(self.defined.type).partition(" | ")[0], (str, "TEXT", False))

    @property
    def choices(self) -> tuple[str, ...]:
        rule = rule_of_option(self.defined)
        return () if rule is None else rule.choices

    @property
    def help(self) -> str:
        description = about_option(self.defined).replace("`", "")
        text = f"{description[0].upper()}{description[1:]}"
        if self.kind[2]:
            return f"{text} Repeatable."
        if self.default is None or self.is_switch or self.name == "row_filter":
            return text
        default = byte_size(self.default) if self.name.endswith("_bytes") else self.default
        return f"{text} [default: {default}]"

    def option(self) -> click.Option:
        """Return the option of a command."""
        names = [self.flag, _PARAMETER + self.name]
        if self.is_switch:
            flag = f"{self.flag}/{self.off_flag}" if self.default else self.flag
            return click.Option([flag, *names[1:]], is_flag=True, default=self.default, help=self.help)
        parse, metavar, is_repeatable = self.kind
        parser: Any = parse if isinstance(parse, type) else Parsed(metavar.lower(), parse)
        kind, shown = (click.Choice(self.choices), None) if self.choices else (parser, metavar)
        return click.Option(names, type=kind, metavar=shown, multiple=is_repeatable, help=self.help)


# The prefix of parameters of operations, since commands have other parameters with the same names.
_PARAMETER = "option_"


def line_options(operation: str) -> list[LineOption]:
    """Return the options of a method of `Maintenance`."""
    from sparkmeta.maintain.maintenance import options_of

    return [LineOption(each) for each in option_fields(options_of(operation))]


class OperationCommand(click.Command):
    """A command with the options of a method of `Maintenance`, which is imported when the command is chosen."""

    def __init__(self, *args: Any, operation: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.operation = operation

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*self._options, *super().get_params(ctx)]

    @cached_property
    def _options(self) -> list[click.Option]:
        return [option.option() for option in line_options(self.operation)]


def takes_operation(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the options of an `OperationCommand` to its function as `options`."""

    @wraps(command)
    def with_options(**arguments: Any) -> Any:
        names = [name for name in arguments if name.startswith(_PARAMETER)]
        options = {name.removeprefix(_PARAMETER): arguments.pop(name) for name in names}
        return command(options=options, **arguments)

    return with_options


def call_operation(table: Table, operation: str, arguments: Mapping[str, Any]) -> Any:
    """Call a method of `Maintenance` with the arguments of a command line. Missing arguments are None or empty."""
    known = {option.name: option for option in line_options(operation)}
    values = {name: value for name, value in arguments.items() if value is not None and value != ()}
    values = {name: dict(value) if known[name].kind[0] is key_value else value for name, value in values.items()}
    if "files" in values:
        with translated_errors():
            values["files"] = table.state.spark.read.parquet(escape_glob(values["files"]))
    from sparkmeta.maintain.maintenance import options_of

    return getattr(table.maintenance, operation)(**required_options(options_of(operation)) | values)


# -- The commands that maintain a table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaintenanceCommand:
    """A method of `Maintenance` as a command and as a job.

    Attributes:
        about: the effect of the method.
        outcome: returns lines about the part `committed` of the plan's result.
        columns: the columns of `plan.to_df()` in text.
        files: the kind of the rows of `plan.to_df()`.
        command: the name of the command, if it differs from the name of the method.
        has_columns: whether the method has an option `columns`.
    """

    about: str
    outcome: Callable[[Mapping[str, Any]], Iterable[str]]
    columns: tuple[TextColumn, ...]
    files: str
    command: str | None = None
    has_columns: bool = False


def _rewritten_data(committed: Mapping[str, Any]) -> list[str]:
    became = f"{counted(committed['rewritten_data_files'], 'data file')} became {committed['added_data_files']:,}"
    lines = [f"{became} in {counted(committed['commits'], 'commit')}"]
    if committed["failed_commits"]:
        failed = counted(committed["failed_commits"], "commit")
        files = counted(committed["failed_data_files"], "data file")
        were = "was" if committed["failed_data_files"] == 1 else "were"
        lines.append(f"{failed} failed, {files} {were} not rewritten")
    return lines


def _rewritten(what: str) -> Callable[[Mapping[str, Any]], list[str]]:
    def outcome(committed: Mapping[str, Any]) -> list[str]:
        replaced, created = committed["manifests_replaced"], committed["manifests_created"]
        return [f"snapshot {committed['snapshot_id']}: {replaced} {what} became {created}"]

    return outcome


def _deleted(committed: Mapping[str, Any]) -> list[str]:
    if "files" not in committed:
        return []
    counts = f"{sum(committed['files'].values())} files deleted, {committed['failed']} not deleted"
    return [counts, *(f"  {problem}" for problem in committed["problems"])]


def _removed_rows(committed: Mapping[str, Any]) -> list[str]:
    files, deletes = counted(committed["deleted_data_files"], "data file"), committed["added_position_deletes"]
    rows = f"{committed['deleted_records']:,} rows of removed files, {deletes:,} by deletes of positions"
    return [f"snapshot {committed['snapshot_id']}: {files} removed; deleted: {rows}"]


def metadata_written(committed: Mapping[str, Any]) -> list[str]:
    """Return the line about a new metadata file; see `MaintenanceCommand.outcome`."""
    return [f"written: {committed['metadata_location']}"]


def _moved(committed: Mapping[str, Any]) -> list[str]:
    lines = [f"written: {committed['rewritten']} files to {committed['staging_location']}"]
    copied = committed["copied"]
    if copied is None:
        return [*lines, f"to copy: {committed['listed']} files, listed in {committed['file_list']}"]
    return [*lines, f"copied: {copied} of {committed['listed']} files; the others were there"]


def _registered(committed: Mapping[str, Any]) -> list[str]:
    counts = committed.get("distinct_values", {})
    return [f"written: {committed['statistics_path']}", *(f"  {name}: {count}" for name, count in counts.items())]


_DELETES = (
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("data file", "referenced_data_file", "path"),
    TextColumn("spec", "spec_id"),
    TextColumn("sequence", "data_sequence_number"),
    TextColumn("deletes", "record_count", "count"),
    TextColumn("size", sql.coalesce(sql.col("content_size_in_bytes"), sql.col("file_size_in_bytes")), "bytes"),
)
_SIZES = (
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)

OPERATIONS = {
    "rewrite_data_files": MaintenanceCommand(
        "Rewrite data files to a suitable size, without deleted rows, optionally sorted.\n\nOptions are named as "
        "in Iceberg's procedure.",
        _rewritten_data,
        (
            TextColumn("group", "file_group", "count"),
            TextColumn("path", "file_path", "path"),
            TextColumn("spec", "spec_id"),
            TextColumn("rows", "record_count", "count"),
            TextColumn("deletes", "delete_files", "count"),
            TextColumn("deleted", "deleted_records", "count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "files to rewrite, with their groups",
    ),
    "compact_manifests": MaintenanceCommand(
        "Compact a tree: merge small leaves, drop masked entries, sort entries.",
        _rewritten("leaves"),
        (
            TextColumn("content"),
            TextColumn("path", "file_path", "path"),
            TextColumn("reasons", sql.call("array_join", sql.col("reasons"), ", ")),
            TextColumn("group", kind="count"),
            TextColumn("entries", kind="count"),
            TextColumn("masked", "masked_entries", "count"),
            TextColumn("overlaps", kind="count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "leaves and files of the plan, with reasons",
        "compact",
    ),
    "rewrite_manifests": MaintenanceCommand(
        "Sort the Avro manifests of a table of version 1 to 3 by partition.",
        _rewritten("manifests"),
        (
            TextColumn("content"),
            TextColumn("path", "file_path", "path"),
            TextColumn("spec", "spec_id"),
            TextColumn("live", "live_files", "count"),
            TextColumn("deleted", "deleted_files", "count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "manifests of the plan",
    ),
    "expire_snapshots": MaintenanceCommand(
        "Remove old snapshots of a table, and the files that only they need.",
        _deleted,
        _SIZES,
        "files that are no longer needed",
    ),
    "expire_rows": MaintenanceCommand(
        "Delete the rows that are older than a time, by a column of dates or timestamps.\n\nFiles whose rows are all "
        "older are removed without being opened.",
        _removed_rows,
        (
            TextColumn("path", "file_path", "path"),
            TextColumn("all rows", "all_rows"),
            TextColumn("rows", "record_count", "count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "files that may have rows to delete",
    ),
    "remove_orphan_files": MaintenanceCommand(
        "Delete files in a table's folder that the table does not need.",
        _deleted,
        _SIZES,
        "files that the table does not need",
    ),
    "remove_dangling_deletes": MaintenanceCommand(
        "Remove delete files and deletion vectors that apply to no data file.",
        _rewritten("delete manifests"),
        _DELETES,
        "deletes that apply to no data file",
    ),
    "rewrite_position_delete_files": MaintenanceCommand(
        "Merge small position delete files, or replace them with deletion vectors from format version 3 on.",
        _rewritten("delete manifests"),
        _DELETES,
        "deletes to rewrite",
    ),
    "convert_equality_deletes": MaintenanceCommand(
        "Replace equality deletes by deletion vectors, or by position delete files in format version 2.",
        _rewritten("delete manifests"),
        _DELETES,
        "equality delete files to convert",
    ),
    "repair": MaintenanceCommand(
        "Find damage: files that are gone, and entries that contradict their files or each other.\n\n`--kinds` names "
        "the kinds to mend.",
        metadata_written,
        (
            TextColumn("damage"),
            TextColumn("content"),
            TextColumn("path", "file_path", "path"),
            TextColumn("problem"),
            TextColumn("lost", "lost_records", "count"),
        ),
        "damaged files, entries and manifests",
    ),
    "rewrite_table_path": MaintenanceCommand(
        "Write a table's metadata for another location, and list the files to copy there.\n\nThe table itself does not "
        "change.",
        _moved,
        (
            TextColumn("content"),
            TextColumn("from", "source_path", "path"),
            TextColumn("to", "target_path", "path"),
            TextColumn("rewritten"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "files to copy, and where to",
    ),
    "downgrade": MaintenanceCommand(
        "Downgrade a metadata tree to format version 3, with manifest lists.\n\nBranches and tags keep their "
        "snapshots; other snapshots with a tree leave the table. Iceberg's Java library reads and writes the table "
        "afterwards.",
        metadata_written,
        (
            TextColumn("snapshot", "snapshot_id"),
            TextColumn("content"),
            TextColumn("path", "file_path", "path"),
            TextColumn("action"),
            TextColumn("live", "live_files", "count"),
            TextColumn("masked", "masked_files", "count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "leaves of branches and tags, kept or rewritten",
    ),
    "convert_tree": MaintenanceCommand(
        "Convert a metadata tree to the layout of the proposal, or to the one of the Iceberg project.\n\nThe head of "
        "each branch gets a snapshot in the new layout; earlier snapshots keep theirs.",
        metadata_written,
        (
            TextColumn("branch"),
            TextColumn("content"),
            TextColumn("path", "file_path", "path"),
            TextColumn("entries", kind="count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "leaves and files of roots to write to new leaves",
    ),
    "compute_partition_stats": MaintenanceCommand(
        "Count files, rows and deletes of each partition in a statistics file.\n\nIf an ancestor of the snapshot has "
        "such a file, only manifests written by later snapshots are read.",
        _registered,
        _SIZES,
        "manifests to read",
    ),
    "compute_table_stats": MaintenanceCommand(
        "Count the distinct values of columns, with theta sketches in a Puffin file. Reads the rows.",
        _registered,
        (
            TextColumn("file_path", kind="path"),
            TextColumn("format", "file_format"),
            TextColumn("records", "record_count", "count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        "data files to read",
        has_columns=True,
    ),
}
_UNCOMMITTED = "Prints the plan. Nothing changes without --commit."


def _command(name: str, operation: MaintenanceCommand) -> click.Command:
    def run(source: Source, row_options: RowOptions, options: Mapping[str, Any], files: bool, commit: bool) -> None:
        with progress("Opening the table"):
            plan = call_operation(source.open(), name, options)
        carry_out(plan, row_options, operation, files=files, commit=commit)

    command = takes_row_options(takes_source(takes_operation(run)), columns=not operation.has_columns)
    command = click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")(command)
    command = click.option("--files", is_flag=True, help=f"Print the {operation.files}.")(command)
    shown = operation.command or name.replace("_", "-")
    also = "" if shown == name.replace("_", "-") else f"\n\nIts other name is {name.replace('_', '-')}."
    about = f"{operation.about}\n\n{_UNCOMMITTED}{also}"
    return click.command(shown, cls=OperationCommand, operation=name, help=about)(command)


COMMANDS = [_command(name, operation) for name, operation in OPERATIONS.items()]


@click.command("upgrade", cls=OperationCommand, operation="upgrade")
@click.option("--commit", is_flag=True, help="Commit the upgrade, instead of only printing it.")
@takes_output
@takes_source
@takes_operation
def upgrade(source: Source, options: Mapping[str, Any], commit: bool, as_json: bool) -> None:
    """Upgrade a table to format version 2 or 3, or to a metadata tree of version 4.

    The table's content does not change. No manifest is rewritten without --compact. Other libraries can't read a tree
    afterwards.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = call_operation(source.open(), "upgrade", options)
        summary = plan.summary()
    upgraded = None
    if commit:
        from sparkmeta.maintain.plans import progress_of

        with progress(progress_of(plan)):
            upgraded = plan.commit().metadata_location
    if as_json:
        print_json({"plan": summary.to_dict(), "committed": upgraded})
    else:
        click.echo(printable_lines(str(summary)))
        click.echo(UNCHANGED if upgraded is None else printable_lines(f"written: {upgraded}"))


# -- Define the command `health` --------------------------------------------------------------------------------------


_takes_file = partial(click.option, type=click.Path(dir_okay=False, writable=True), metavar="FILE")


@click.command("health", cls=OperationCommand, operation="health")
@_takes_file("--html", help="Write a page with pictures.")
@_takes_file("--prometheus", help="With --catalog: write the figures in Prometheus' text format.")
@click.option("--history", metavar="TABLE", help="With --catalog: append the run to this table; print what got worse.")
@takes_output
@takes_tables
@takes_operation
@click.pass_context
def health(
    ctx: click.Context,
    source: Source,
    options: Mapping[str, Any],
    html: str | None,
    prometheus: str | None,
    history: str | None,
    as_json: bool,
) -> None:
    """Report what maintenance a table needs, and why. Nothing changes.

    With --catalog, TABLE may be a pattern such as 'sales.*', by default '*'. Then all tables that it matches are
    examined, and a table that can't be is reported with its error.

    Exit codes: 0 success, 1 a table could not be examined, 2 invalid arguments.
    """
    from sparkmeta.fleet.listing import has_wildcard
    from sparkmeta.maintain.health import examine
    from sparkmeta.maintain.health_findings import HealthOptions

    thresholds = {name: value for name, value in options.items() if value is not None}
    if source.catalog is not None and (has_wildcard(source.table) or prometheus or history):
        ctx.exit(_fleet_health(source, thresholds, html, prometheus, history, as_json=as_json))
    if prometheus or history:
        raise click.UsageError(f"--{'prometheus' if prometheus else 'history'} needs --catalog")
    with progress("Opening the table"):
        table = source.open()
    with progress("Examining the table"):
        report = examine(table, HealthOptions(**thresholds), _arguments(source))
    _save(report, html)
    if as_json:
        print_json(report.to_dict())
    else:
        # Users of the command line have no use for Python calls.
        findings = tuple(replace(finding, call=None) for finding in report.list_findings)
        click.echo(printable_lines(str(replace(report, list_findings=findings))))


def _fleet_health(
    source: Source,
    thresholds: Mapping[str, Any],
    html: str | None,
    prometheus: str | None,
    history: str | None,
    *,
    as_json: bool,
) -> int:
    """Examine several tables, print the result, and return the exit code."""
    with progress("Opening the catalog"):
        catalog = source.open_catalog()
    with progress("Examining tables"):
        report = catalog.health(source.table, history=history, **thresholds)
    _save(report, html)
    if prometheus is not None:
        report.save(prometheus, "prometheus")
        click.echo(f"written: {prometheus}", err=True)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(printable_lines(str(report)))
    return int(any(table.error is not None for table in report.tables))


def _save(report: HealthReport | FleetHealth, html: str | None) -> None:
    if html is not None:
        report.save(html)
        click.echo(f"written: {html}", err=True)


def _arguments(source: Source) -> str:
    """Return the arguments that name the table on a command line, without properties, which may be secret."""
    catalog = "" if source.catalog is None else f"--catalog {shlex.quote(source.catalog)} "
    return f"{catalog}{shlex.quote(source.table)}"


# -- The command `maintain`, and its printed results ------------------------------------------------------------------


@click.command("maintain")
@click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The configuration, in TOML or YAML.",
)
@click.option("--commit", is_flag=True, help="Commit plans, instead of only printing them.")
@takes_session
@click.pass_context
def maintain(ctx: click.Context, path: str, commit: bool, source: CatalogSource) -> None:
    """Maintain the tables of a configuration: run the jobs that their health makes necessary.

    Prints a JSON object for each table and job on stdout, and its progress on stderr. Nothing changes without --commit.
    Spark starts when a table or job needs it.

    Exit codes: 0 success, 1 a table or job failed and the others were maintained, 2 invalid arguments or configuration,
    3 other commits or runs came first and nothing failed.
    """
    from sparkmeta.cli.schedule import read_config

    try:
        config = read_config(path)
    except ValidationError as error:
        raise click.UsageError(str(error)) from error
    ctx.exit(print_results(config, source.sessions(), commit=commit))


def print_results(config: MaintenanceConfig, sessions: SessionSource, *, commit: bool) -> int:
    """Maintain the tables of a configuration, print results and progress, and return the exit code.

    With `commit`, all tables are maintained even if the reader of the output closes the pipe.
    """
    from sparkmeta.cli.schedule import exit_code, run_maintenance

    statuses = set()
    for result in run_maintenance(config, sessions, commit=commit, log=_log):
        statuses.add(result.status)
        with unread_output_dropped(sys.stdout) if commit else nullcontext():
            sys.stdout.write(json.dumps(text_ids(result.to_dict()), ensure_ascii=False, default=str) + "\n")
            sys.stdout.flush()
    return exit_code(statuses)


def _log(line: str) -> None:
    with unread_output_dropped(sys.stderr):
        sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {printable_lines(line)}\n")


# -- Implement `sparkmeta cache` --------------------------------------------------------------------------------------


_DAY_MS = 86_400_000
_COLUMNS = (
    TextColumn("manifests", kind="path"),
    TextColumn("leaves", kind="count"),
    TextColumn("size", "size_in_bytes", "bytes"),
    TextColumn("first", "first_written_at"),
    TextColumn("last", "last_written_at"),
)


@click.group()
def cache() -> None:
    """List or prune a manifest cache, the folder of spark.sparkmeta.manifest-cache."""


_takes_folder = click.argument("folder", metavar="FOLDER")
_takes_properties = click.option(
    "--property", "properties", type=KEY_VALUE, multiple=True, help="A property of pyiceberg's FileIO. Repeatable."
)


@cache.command()
@takes_output
@_takes_properties
@_takes_folder
def info(folder: str, properties: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Show the number and size of cached manifests, by the folder of the manifests."""
    from sparkmeta.manifests.cache import cache_contents

    rows = [_row(cached) for cached in cache_contents(_manifest_cache(folder, properties)).folders]
    if as_json:
        print_json(rows)
    else:
        print_table([{column.name: row[column.source] for column in _COLUMNS} for row in rows], _COLUMNS)


def _number_of_days(_: click.Context, __: click.Parameter, days: float) -> float:
    if not math.isfinite(days * _DAY_MS):
        raise click.BadParameter(f"{days} is not a number of days.")
    return days


@cache.command()
@click.option("--older-than", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS",
              callback=_number_of_days, help="Age of the files to delete; 0 empties the cache.")  # fmt: skip
@click.option("--commit", is_flag=True, help="Delete the files. Without this, only their number is printed.")
@_takes_properties
@_takes_folder
def prune(folder: str, properties: tuple[tuple[str, str], ...], older_than: float, commit: bool) -> None:
    """Delete old, damaged and duplicate files. No plan may read the cache at the same time."""
    from sparkmeta.manifests.cache import cache_contents, delete_cached

    manifest_cache, now = _manifest_cache(folder, properties), int(time.time() * 1000)
    files = cache_contents(manifest_cache).superfluous(now - int(older_than * _DAY_MS), now)
    failures = delete_cached(manifest_cache, files) if commit else []
    total = byte_size(sum(status.length for status in files))
    if failures:
        raise SparkmetaError(f"{failures[0].location}: {failures[0].reason} ({len(failures):,} files are still there)")
    click.echo(f"{len(files):,} files, {total}: {'deleted' if commit else 'would be deleted (--commit)'}")


def _manifest_cache(folder: str, properties: tuple[tuple[str, str], ...]) -> ManifestCache:
    from sparkmeta.manifests.cache import ManifestCache

    return ManifestCache(folder, _files(folder, dict(properties)), None)


def _files(folder: str, properties: dict[str, str]) -> Files:
    if is_local(folder):
        return LocalFiles()
    from pyiceberg.io import load_file_io

    return IOFiles(load_file_io(properties, folder))


def _row(folder: CachedFolder) -> dict[str, Any]:
    first, last = map(_time, folder.written_ms or (None, None))
    return {
        "manifests": folder.manifests,
        "leaves": len(folder.leaves),
        "size_in_bytes": folder.size_in_bytes,
        "first_written_at": first,
        "last_written_at": last,
    }


def _time(millis: int | None) -> str | None:
    return None if millis is None else timestamp(datetime.fromtimestamp(millis / 1000, UTC))
