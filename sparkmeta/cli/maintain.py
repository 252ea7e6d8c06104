"""Define the commands that maintain a table, and change it with `--commit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.output import TextColumn, print_json, progress
from sparkmeta.cli.plans import UNCHANGED, carry_out
from sparkmeta.cli.source import KeyValue, Source, Timestamp, names, takes_source
from sparkmeta.cli.tables import RowOptions, takes_output, takes_row_options
from sparkmeta.errors import translated_errors
from sparkmeta.inspect.excerpt import printable_lines
from sparkmeta.storage.location import escape_glob

if TYPE_CHECKING:
    from sparkmeta.maintain.orphans.plan import OrphanPlan
    from sparkmeta.table import Table

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
