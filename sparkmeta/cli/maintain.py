"""The commands that maintain tables. They print a plan, and carry it out with `--commit`."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import click

from sparkmeta.cli.output import (
    TextColumn,
    print_json,
    print_table,
    progress,
    text_ids,
    timestamp,
    unread_output_dropped,
)
from sparkmeta.cli.source import VERBOSE, KeyValue, Source, Timestamp, names, takes_source
from sparkmeta.cli.tables import RowOptions, takes_output, takes_row_options
from sparkmeta.errors import SparkmetaError, ValidationError, translated_errors
from sparkmeta.inspect.excerpt import printable_lines
from sparkmeta.inspect.human import byte_size, counted
from sparkmeta.manifests.cache import DAY_MS, CachedFolder, ManifestCache, cache_contents, delete_cached
from sparkmeta.storage.files import Files, IOFiles, LocalFiles
from sparkmeta.storage.location import escape_glob, is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.cli.schedule import MaintenanceConfig
    from sparkmeta.maintain.orphans import OrphanPlan
    from sparkmeta.table import Table


# -- Print a maintenance plan, commit it, and print the outcome, for all commands that change a table -----------------


UNCHANGED = "nothing is changed without --commit"


class Plan(Protocol):
    """A plan of `table.maintenance`."""

    @property
    def table(self) -> Table: ...

    def files(self) -> DataFrame: ...

    def summary(self) -> Any: ...

    def commit(self) -> Any: ...

    def result(self) -> dict[str, Any]: ...


def carry_out(
    plan: Plan,
    row_options: RowOptions,
    columns: tuple[TextColumn, ...],
    outcome: Callable[[Mapping[str, Any]], Iterable[str]],
    *,
    files: bool,
    commit: bool,
    doing: str,
) -> None:
    """Print a plan, and commit it if that is asked for.

    Args:
        plan: the plan.
        row_options: how rows are printed.
        columns: the columns of `plan.files()` in text.
        outcome: lines about the part `committed` of the plan's result.
        files: whether to print the plan's files; without `commit` nothing else. As JSON, the result is a line too.
        commit: whether to commit.
        doing: the name of the commit's progress.
    """
    if files:
        with unread_output_dropped(sys.stdout) if commit else nullcontext():
            row_options.print(plan.files(), columns, plan.table.location())
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
            for line in outcome(result["committed"]):
                click.echo(printable_lines(line))
        elif not commit and not getattr(summary, "is_empty", False):
            click.echo(UNCHANGED)

    if commit:
        with printed_on_failure(plan, print_result), progress(doing):
            plan.commit()
    print_result()


@contextmanager
def printed_on_failure(plan: Plan, print_result: Callable[[], None]) -> Iterator[None]:
    """Print a plan's result if its commit in the block fails after parts of the plan were committed."""
    try:
        yield
    except Exception:
        if getattr(plan, "is_partly_committed", False):
            with unread_output_dropped(sys.stdout):
                print_result()
        raise


# -- Define the command that rewrites data files, and the options that it shares with the job -------------------------


REWRITTEN_FILES = (
    TextColumn("group", "file_group", "count"),
    TextColumn("path", "file_path", "path"),
    TextColumn("spec", "spec_id"),
    TextColumn("rows", "record_count", "count"),
    TextColumn("deletes", "delete_files", "count"),
    TextColumn("deleted", "deleted_records", "count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)

TEXTS = {
    "strategy": "binpack (the default) or sort",
    "sort-order": "the order for sort, such as 'id DESC NULLS LAST' or 'zorder(x, y)' (default: the table's)",
    "rewrite-job-order": "the order of groups: bytes-asc, bytes-desc, files-asc, files-desc or none",
}
NUMBERS: dict[str, tuple[type, str]] = {
    "target-file-size-bytes": (int, "size of new files"),
    "min-file-size-bytes": (int, "smaller files are rewritten"),
    "max-file-size-bytes": (int, "larger files are rewritten"),
    "min-input-files": (int, "the least number of small files in a group (default: 5)"),
    "delete-file-threshold": (int, "rewrite files with this many deletes"),
    "delete-ratio-threshold": (float, "rewrite files with this share of deleted rows (default: 0.3)"),
    "max-file-group-size-bytes": (int, "size of a group of files (default: 100 GiB)"),
    "max-file-group-input-files": (int, "maximum files in a group"),
    "max-files-to-rewrite": (int, "the most files to rewrite"),
    "max-concurrent-file-group-rewrites": (int, "maximum groups in a Spark job"),
    "partial-progress-max-commits": (int, "maximum commits (default: 10)"),
    "partial-progress-max-failed-commits": (int, "how many commits may fail"),
    "output-spec-id": (int, "the partition spec of new files (default: the table's)"),
    "compression-factor": (float, "how many times larger sorted files get"),
}
FLAGS = {
    "rewrite-all": "rewrite all files",
    "partial-progress-enabled": "commit groups in several commits",
    "remove-dangling-deletes": "also remove deletes that apply to no data file afterwards",
}


def _takes_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, text in reversed(TEXTS.items()):
        command = click.option(f"--{name}", metavar="TEXT", help=f"{text[0].upper()}{text[1:]}.")(command)
    for name, (kind, text) in reversed(NUMBERS.items()):
        command = click.option(f"--{name}", type=kind, metavar="N", help=f"{text[0].upper()}{text[1:]}.")(command)
    for name, text in reversed(FLAGS.items()):
        command = click.option(f"--{name}", is_flag=True, help=f"{text[0].upper()}{text[1:]}.")(command)
    return command


@click.command("rewrite-data-files")
@click.option("--filter", "row_filter", metavar="FILTER", help="Only files that may hold these rows.")
@_takes_options
@click.option(
    "--use-starting-sequence-number/--no-starting-sequence-number", default=True, show_default=True,
    help="Whether new files have the sequence number of the snapshot that is rewritten.",
)  # fmt: skip
@click.option("--branch", default="main", show_default=True, help="The branch to commit to.")
@click.option("--files", is_flag=True, help="Print the files to rewrite, with their groups.")
@click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")
@takes_row_options
@takes_source
def rewrite_data_files(source: Source, row_options: RowOptions, files: bool, commit: bool, **options: Any) -> None:
    """Rewrite data files to a suitable size, without deleted rows, optionally sorted.

    Options are named as those of Iceberg's procedure. Prints the plan. Nothing changes without --commit.
    """
    given = {name: value for name, value in options.items() if value is not None}
    with progress("Opening the table"):
        plan = source.open().maintenance.rewrite_data_files(**given)
    carry_out(
        plan, row_options, REWRITTEN_FILES, _rewritten_data, files=files, commit=commit, doing="Rewriting data files"
    )


def _rewritten_data(committed: Mapping[str, Any]) -> list[str]:
    became = f"{counted(committed['rewritten_data_files'], 'data file')} became {committed['added_data_files']:,}"
    lines = [f"{became} in {counted(committed['commits'], 'commit')}"]
    if committed["failed_commits"]:
        failed = counted(committed["failed_commits"], "commit")
        files = counted(committed["failed_data_files"], "data file")
        were = "was" if committed["failed_data_files"] == 1 else "were"
        lines.append(f"{failed} failed, {files} {were} not rewritten")
    return lines


# -- Define the commands that maintain a table, and change it with `--commit` -----------------------------------------


PLANNED = (
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("reasons", "array_join(reasons, ', ')"),
    TextColumn("group", kind="count"),
    TextColumn("entries", kind="count"),
    TextColumn("masked", "masked_entries", "count"),
    TextColumn("overlaps", kind="count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)

REWRITTEN = (
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("spec", "spec_id"),
    TextColumn("live", "live_files", "count"),
    TextColumn("deleted", "deleted_files", "count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)

DELETES = (
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("data file", "referenced_data_file", "path"),
    TextColumn("spec", "spec_id"),
    TextColumn("sequence", "data_sequence_number"),
    TextColumn("deletes", "record_count", "count"),
    TextColumn("size", "coalesce(content_size_in_bytes, file_size_in_bytes)", "bytes"),
)

UNREACHABLE = (
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)

LEAVES = (
    TextColumn("snapshot", "snapshot_id"),
    TextColumn("content"),
    TextColumn("path", "file_path", "path"),
    TextColumn("action"),
    TextColumn("live", "live_files", "count"),
    TextColumn("masked", "masked_files", "count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)

SNAPSHOT_AGE = "default: by the table property history.expire.max-snapshot-age-ms, or else 5 days ago"
SNAPSHOTS_TO_KEEP = "default: the table property history.expire.min-snapshots-to-keep, or else 1"
INVENTORY = "Parquet files with file_path, last_modified and optionally size"


@click.command("compact")
@click.option("--filter", "row_filter", metavar="FILTER", help="Only leaves that may hold files for these rows.")
@click.option("--cluster-by", metavar="A,B", help="Columns and partition fields to sort the entries by.")
@click.option("--target-leaf-bytes", type=int, metavar="N", help="Target size of leaves.")
@click.option("--max-entries", type=int, metavar="N", help="Limit of data leaf entries to rewrite.")
@click.option("--max-bytes", type=int, metavar="N", help="Limit of data leaf bytes to rewrite.")
@click.option("--max-overlap", type=int, default=3, show_default=True, help="Maximum leaves that one may overlap.")
@click.option("--max-root-files", type=int, default=100, show_default=True, help="Maximum root files of a kind.")
@click.option("--branch", default="main", show_default=True, help="The branch to commit to.")
@click.option("--files", is_flag=True, help="Print the leaves and files of the plan, with reasons.")
@click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")
@takes_row_options
@takes_source
def compact(source: Source, row_options: RowOptions, files: bool, commit: bool, **options: Any) -> None:
    """Compact a tree: merge small leaves, drop masked entries, sort entries.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.compact_manifests(**_options(**options))
    outcome = _rewritten("leaves")
    carry_out(plan, row_options, PLANNED, outcome, files=files, commit=commit, doing="Rewriting leaves")


@click.command("rewrite-manifests")
@click.option("--filter", "row_filter", metavar="FILTER", help="Only manifests that may hold files for these rows.")
@click.option("--spec-id", type=int, metavar="N", help="Only manifests of this partition spec.")
@click.option("--sort-by", metavar="A,B", help="Partition fields to sort the files by.")
@click.option("--target-manifest-bytes", type=int, metavar="N", help="Target size of manifests.")
@click.option("--branch", default="main", show_default=True, help="The branch to commit to.")
@click.option("--files", is_flag=True, help="Print the manifests of the plan.")
@click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")
@takes_row_options
@takes_source
def rewrite_manifests(source: Source, row_options: RowOptions, files: bool, commit: bool, **options: Any) -> None:
    """Sort the Avro manifests of a table of version 1 to 3 by partition.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.rewrite_manifests(**_options(**options))
    outcome = _rewritten("manifests")
    carry_out(plan, row_options, REWRITTEN, outcome, files=files, commit=commit, doing="Rewriting manifests")


def _options(row_filter: str | None, **options: Any) -> dict[str, Any]:
    """Return the arguments of a plan: lists are split at commas, and a missing filter is left out."""
    lists = {name: names(value) for name, value in options.items() if name in _LISTS and value is not None}
    return options | lists | ({} if row_filter is None else {"row_filter": row_filter})


_LISTS = {"cluster_by", "sort_by"}


def _rewritten(what: str) -> Callable[[Mapping[str, Any]], list[str]]:
    def outcome(committed: Mapping[str, Any]) -> list[str]:
        replaced, created = committed["manifests_replaced"], committed["manifests_created"]
        return [f"snapshot {committed['snapshot_id']}: {replaced} {what} became {created}"]

    return outcome


@click.command("expire-snapshots")
@click.option("--older-than", type=Timestamp(), help=f"Expire snapshots from before this time ({SNAPSHOT_AGE}).")
@click.option(
    "--retain-last", type=int, metavar="N",
    help=f"Snapshots of each branch that stay whatever their age ({SNAPSHOTS_TO_KEEP}).",
)  # fmt: skip
@click.option("--snapshot-id", "snapshot_ids", type=int, multiple=True, help="A snapshot that expires; repeatable.")
@click.option("--clean-expired-metadata", is_flag=True, help="Also remove unused schemas and partition specs.")
@click.option(
    "--cleanup", type=click.Choice(["all", "metadata", "none"]), default="all", show_default=True,
    help="Which files to delete.",
)  # fmt: skip
@click.option("--files", is_flag=True, help="Print the files that are no longer needed.")
@click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")
@takes_row_options
@takes_source
def expire_snapshots(source: Source, row_options: RowOptions, files: bool, commit: bool, **options: Any) -> None:
    """Remove old snapshots of a table, and the files that only they need.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.expire_snapshots(**options)
    carry_out(plan, row_options, UNREACHABLE, _deleted, files=files, commit=commit, doing="Expiring snapshots")


@click.command("remove-orphan-files")
@click.option("--older-than", type=Timestamp(), help="Only files from before this time (default: 3 days).")
@click.option("--location", metavar="FOLDER", help="The folder to search, instead of the table's.")
@click.option("--inventory", metavar="PARQUET", help=f"{INVENTORY}, instead of a listing.")
@click.option(
    "--prefix-mismatch-mode", type=click.Choice(["error", "ignore", "delete"]), default="error", show_default=True,
    help="What to do with files that the table has under another scheme or authority.",
)  # fmt: skip
@click.option(
    "--equal-scheme",
    "equal_schemes",
    type=KeyValue(),
    multiple=True,
    help="Equal schemes, as in s3a,s3n=s3; repeatable.",
)
@click.option("--equal-authority", "equal_authorities", type=KeyValue(), multiple=True, help="a,b=c; repeatable.")
@click.option("--force", is_flag=True, help="Permit --older-than to be less than 24 hours ago.")
@click.option("--shared-location", is_flag=True, help="Delete files of another table that has the same location.")
@click.option("--files", is_flag=True, help="Print the files that the table does not need.")
@click.option("--commit", is_flag=True, help="Delete the files, instead of only printing the plan.")
@takes_row_options
@takes_source
def remove_orphan_files(source: Source, row_options: RowOptions, files: bool, commit: bool, **options: Any) -> None:
    """Delete files in a table's folder that the table does not need.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = orphan_plan(source.open(), **options)
    carry_out(plan, row_options, UNREACHABLE, _deleted, files=files, commit=commit, doing="Deleting files")


def orphan_plan(
    table: Table,
    inventory: str | None = None,
    equal_schemes: Iterable[tuple[str, str]] = (),
    equal_authorities: Iterable[tuple[str, str]] = (),
    **options: Any,
) -> OrphanPlan[Table]:
    """Return the plan to delete orphans; see `Maintenance.remove_orphan_files`.

    Args:
        table: the table.
        inventory: the location of a Parquet file or folder with an inventory.
        equal_schemes: pairs of schemes.
        equal_authorities: pairs of authorities.
        options: further options of the plan.
    """
    files = None
    if inventory is not None:
        with translated_errors():
            files = table.state.spark.read.parquet(escape_glob(inventory))
    return table.maintenance.remove_orphan_files(
        files=files, equal_schemes=dict(equal_schemes), equal_authorities=dict(equal_authorities), **options
    )


def _deleted(committed: Mapping[str, Any]) -> list[str]:
    if "files" not in committed:
        return []
    counts = f"{sum(committed['files'].values())} files deleted, {committed['failed']} not deleted"
    return [counts, *(f"  {problem}" for problem in committed["problems"])]


@click.command("remove-dangling-deletes")
@click.option("--branch", default="main", show_default=True, help="The branch to commit to.")
@click.option("--files", is_flag=True, help="Print the deletes that apply to no data file.")
@click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")
@takes_row_options
@takes_source
def remove_dangling_deletes(source: Source, row_options: RowOptions, branch: str, files: bool, commit: bool) -> None:
    """Remove delete files and deletion vectors that apply to no data file.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.remove_dangling_deletes(branch=branch)
    outcome = _rewritten("delete manifests")
    carry_out(plan, row_options, DELETES, outcome, files=files, commit=commit, doing="Rewriting delete manifests")


@click.command("rewrite-position-delete-files")
@click.option("--filter", "row_filter", metavar="FILTER", help="Only deletes of partitions that may hold these rows.")
@click.option("--target-file-size-bytes", type=int, metavar="N", help="Target size of delete files.")
@click.option("--min-file-size-bytes", type=int, metavar="N", help="Smaller delete files are merged.")
@click.option("--max-file-size-bytes", type=int, metavar="N", help="Larger position delete files are divided.")
@click.option("--min-input-files", type=int, default=5, show_default=True, help="Minimum small files to merge.")
@click.option("--rewrite-all", is_flag=True, help="Rewrite all position deletes.")
@click.option("--branch", default="main", show_default=True, help="The branch to commit to.")
@click.option("--files", is_flag=True, help="Print the deletes to rewrite.")
@click.option("--commit", is_flag=True, help="Commit the plan, instead of only printing it.")
@takes_row_options
@takes_source
def rewrite_position_delete_files(
    source: Source, row_options: RowOptions, files: bool, commit: bool, **options: Any
) -> None:
    """Merge small position delete files, or replace them with deletion vectors from format version 3 on.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.rewrite_position_delete_files(**_options(**options))
    outcome = _rewritten("delete manifests")
    carry_out(plan, row_options, DELETES, outcome, files=files, commit=commit, doing="Rewriting delete manifests")


@click.command("upgrade")
@click.option("--format-version", type=int, default=4, show_default=True, help="The format version to upgrade to.")
@click.option("--compact", is_flag=True, help="Also compact the manifests of the main branch, in the same commit.")
@click.option("--commit", is_flag=True, help="Commit the upgrade, instead of only printing it.")
@takes_output
@takes_source
def upgrade(source: Source, format_version: int, compact: bool, commit: bool, as_json: bool) -> None:
    """Upgrade a table to format version 2 or 3, or to a metadata tree of version 4.

    The table's content does not change. No manifest is rewritten without --compact. Other libraries can't read a tree
    afterwards.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.upgrade(format_version, compact=compact)
        summary = plan.summary()
    upgraded = None
    if commit:
        with progress("Upgrading"):
            upgraded = plan.commit().metadata_location
    if as_json:
        expressions = [expression.model_dump(mode="json", by_alias=True) for expression in summary.expressions]
        print_json({"plan": asdict(summary) | {"expressions": expressions}, "committed": upgraded})
    else:
        click.echo(printable_lines(str(summary)))
        click.echo(UNCHANGED if upgraded is None else printable_lines(f"written: {upgraded}"))


@click.command("downgrade")
@click.option("--format-version", type=int, default=3, show_default=True, help="The format version to downgrade to.")
@click.option("--files", is_flag=True, help="Print the leaves of branches and tags, kept or rewritten.")
@click.option("--commit", is_flag=True, help="Commit the downgrade, instead of only printing it.")
@takes_row_options
@takes_source
def downgrade(source: Source, row_options: RowOptions, format_version: int, files: bool, commit: bool) -> None:
    """Downgrade a metadata tree to format version 3, with manifest lists.

    Branches and tags keep their snapshots; other snapshots with a tree leave the table. Iceberg's Java library reads
    and writes the table afterwards.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.downgrade(format_version)
    carry_out(plan, row_options, LEAVES, _metadata_written, files=files, commit=commit, doing="Writing manifests")


def _metadata_written(committed: Mapping[str, Any]) -> list[str]:
    return [f"written: {committed['metadata_location']}"]


# -- Define the commands that compute statistics of a snapshot, and register them with `--commit` ---------------------


DATA_FILES = (
    TextColumn("file_path", kind="path"),
    TextColumn("format", "file_format"),
    TextColumn("records", "record_count", "count"),
    TextColumn("size", "file_size_in_bytes", "bytes"),
)


@click.command("compute-partition-stats")
@click.option("--snapshot-id", type=int, metavar="N", help="The snapshot, instead of the current one.")
@click.option("--full", is_flag=True, help="Read all manifests, and replace statistics that the snapshot has.")
@click.option("--files", is_flag=True, help="Print the manifests to read.")
@click.option("--commit", is_flag=True, help="Compute and register the statistics, instead of only printing the plan.")
@takes_row_options
@takes_source
def compute_partition_stats(
    source: Source, row_options: RowOptions, snapshot_id: int | None, full: bool, files: bool, commit: bool
) -> None:
    """Count files, rows and deletes of each partition in a statistics file.

    If an ancestor of the snapshot has such a file, only manifests written by later snapshots are read.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.compute_partition_stats(snapshot_id, full=full)
    carry_out(plan, row_options, UNREACHABLE, _registered, files=files, commit=commit, doing="Computing statistics")


@click.command("compute-table-stats")
@click.option("--snapshot-id", type=int, metavar="N", help="The snapshot, instead of the current one.")
@click.option("--columns", metavar="A,B", help="The columns to count, instead of all of primitive types.")
@click.option("--files", is_flag=True, help="Print the data files to read.")
@click.option("--commit", is_flag=True, help="Compute and register the statistics, instead of only printing the plan.")
@partial(takes_row_options, columns=False)
@takes_source
def compute_table_stats(
    source: Source, row_options: RowOptions, snapshot_id: int | None, columns: str | None, files: bool, commit: bool
) -> None:
    """Count the distinct values of columns, with theta sketches in a Puffin file. Reads the rows.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.compute_table_stats(snapshot_id, None if columns is None else names(columns))
    carry_out(plan, row_options, DATA_FILES, _registered, files=files, commit=commit, doing="Computing statistics")


def _registered(committed: Mapping[str, Any]) -> list[str]:
    counts = committed.get("distinct_values", {})
    return [f"written: {committed['statistics_path']}", *(f"  {name}: {count}" for name, count in counts.items())]


# -- Define the command `health` --------------------------------------------------------------------------------------


_THRESHOLDS = (
    click.option("--max-overlap", type=int, metavar="N", help="Mean number of other manifests that one may overlap."),
    click.option("--min-small-files", type=int, metavar="N", help="Small files at which a partition is reported."),
    click.option("--small-file-ratio", type=float, metavar="SHARE", help="Files below this share of the target size."),
    click.option("--max-deleted-ratio", type=float, metavar="SHARE", help="Share of deleted rows to report."),
    click.option("--max-excess-stats-ratio", type=float, metavar="SHARE", help="Share of excess metrics to report."),
    click.option("--max-ref-age-days", type=int, metavar="DAYS", help="Age at which branches and tags are reported."),
    click.option("--max-metadata-json-bytes", type=int, metavar="N", help="Maximum size of the metadata file."),
)


def _takes_thresholds(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_THRESHOLDS):
        command = option(command)
    return command


@click.command("health")
@click.option("--columns", metavar="A,B", help="Columns to measure overlaps of, instead of those of the sort order.")
@_takes_thresholds
@click.option(
    "--html", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a page with pictures."
)
@takes_output
@takes_source
def health(source: Source, columns: str | None, html: str | None, as_json: bool, **thresholds: Any) -> None:
    """Report what maintenance a table needs, and why. Nothing changes."""
    from sparkmeta.maintain.health import examine
    from sparkmeta.maintain.health_findings import HealthOptions

    given = {name: value for name, value in thresholds.items() if value is not None}
    chosen = None if columns is None else names(columns)
    with progress("Opening the table"):
        table = source.open()
    with progress("Examining the table"):
        report = examine(table, HealthOptions(chosen, **given), _arguments(source))
    if html is not None:
        report.save(html)
        click.echo(f"written: {html}", err=True)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(printable_lines(str(report)))


def _arguments(source: Source) -> str:
    """Return the arguments that name the table on a command line, without properties, which may be secret."""
    catalog = "" if source.catalog is None else f"--catalog {shlex.quote(source.catalog)} "
    return f"{catalog}{shlex.quote(source.table)}"


# -- Define the command `maintain`, and print its results for it and for `jobs/maintain.py` ---------------------------


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
@click.option("--conf", type=KeyValue(), multiple=True, help="A Spark setting. Repeatable.")
@click.option("--remote", metavar="URL", help="A Spark Connect server (sc://host:port). [env: SPARK_REMOTE]")
@click.option("--verbose", "-v", is_flag=True, help="Show Spark's log and tracebacks on stderr.")
@click.pass_context
def maintain(
    ctx: click.Context, path: str, commit: bool, conf: tuple[tuple[str, str], ...], remote: str | None, verbose: bool
) -> None:
    """Maintain the tables of a configuration: run the jobs that their health makes necessary.

    Prints a JSON object for each table and job on stdout, and what it does on stderr. Nothing changes without --commit.

    Exit codes: 0 success, 1 a table or job failed and the others were maintained, 2 invalid arguments or configuration,
    3 a job lost to other commits and nothing failed.
    """
    from sparkmeta.cli.schedule import read_config
    from sparkmeta.cli.source import cli_session

    ctx.meta[VERBOSE] = verbose
    try:
        config = read_config(path)
    except ValidationError as error:
        raise click.UsageError(str(error)) from error
    spark = cli_session(dict(conf), remote, show_log=verbose)
    ctx.exit(print_results(config, spark, commit=commit))


def print_results(config: MaintenanceConfig, spark: SparkSession, *, commit: bool) -> int:
    """Maintain the tables of a configuration, print results and progress, and return the exit code.

    With `commit`, all tables are maintained even if the reader of the output closes the pipe.
    """
    from sparkmeta.cli.schedule import exit_code, run_maintenance

    statuses = set()
    for result in run_maintenance(config, spark, commit=commit, log=_log):
        statuses.add(result.status)
        with unread_output_dropped(sys.stdout) if commit else nullcontext():
            sys.stdout.write(json.dumps(text_ids(result.to_dict()), ensure_ascii=False, default=str) + "\n")
            sys.stdout.flush()
    return exit_code(statuses)


def _log(line: str) -> None:
    with unread_output_dropped(sys.stderr):
        sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {printable_lines(line)}\n")


# -- Implement `sparkmeta cache`, which lists and prunes manifest caches ----------------------------------------------


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
    "--property", "properties", type=KeyValue(), multiple=True, help="A property of pyiceberg's FileIO. Repeatable."
)


@cache.command()
@takes_output
@_takes_properties
@_takes_folder
def info(folder: str, properties: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Show the number and size of cached manifests, by the folder of the manifests."""
    rows = [_row(cached) for cached in cache_contents(_manifest_cache(folder, properties)).folders]
    if as_json:
        print_json(rows)
    else:
        print_table([{column.name: row[column.source] for column in _COLUMNS} for row in rows], _COLUMNS)


def _number_of_days(_: click.Context, __: click.Parameter, days: float) -> float:
    if not math.isfinite(days * DAY_MS):
        raise click.BadParameter(f"{days} is not a number of days.")
    return days


@cache.command()
@click.option("--older-than", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS",
              callback=_number_of_days, help="Age of the files to delete; 0 empties the cache.")  # fmt: skip
@click.option("--commit", is_flag=True, help="Delete the files. Without this, only their number is printed.")
@_takes_properties
@_takes_folder
def prune(folder: str, properties: tuple[tuple[str, str], ...], older_than: float, commit: bool) -> None:
    """Delete old, damaged and duplicate files. No plan may read the cache meanwhile."""
    manifest_cache, now = _manifest_cache(folder, properties), int(time.time() * 1000)
    files = cache_contents(manifest_cache).superfluous(now - int(older_than * DAY_MS), now)
    failures = delete_cached(manifest_cache, files) if commit else []
    total = byte_size(sum(status.length for status in files))
    if failures:
        raise SparkmetaError(f"{failures[0].location}: {failures[0].reason} ({len(failures):,} files are still there)")
    click.echo(f"{len(files):,} files, {total}: {'deleted' if commit else 'would be deleted (--commit)'}")


def _manifest_cache(folder: str, properties: tuple[tuple[str, str], ...]) -> ManifestCache:
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
