"""Define the commands that compute statistics of a snapshot, and register them with `--commit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparkmeta.cli.maintain import UNCHANGED, UNREACHABLE, names
from sparkmeta.cli.output import TextColumn, print_json, progress
from sparkmeta.cli.source import Source, takes_source
from sparkmeta.cli.tables import RowOptions, takes_row_options

if TYPE_CHECKING:
    from sparkmeta.maintain.partition_statistics.plan import PartitionStatsPlan
    from sparkmeta.maintain.table_statistics.plan import TableStatsPlan
    from sparkmeta.table import Table

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

    If an ancestor of the snapshot has such a file, only manifests are read that later snapshots wrote.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        plan = source.open().maintenance.compute_partition_stats(snapshot_id, full=full)
    _act(plan, row_options, UNREACHABLE, files=files, commit=commit)


@click.command("compute-table-stats")
@click.option("--snapshot-id", type=int, metavar="N", help="The snapshot, instead of the current one.")
@click.option("--column-names", metavar="A,B", help="The columns to count, instead of all of primitive types.")
@click.option("--files", is_flag=True, help="Print the data files to read.")
@click.option("--commit", is_flag=True, help="Compute and register the statistics, instead of only printing the plan.")
@takes_row_options
@takes_source
def compute_table_stats(
    source: Source,
    row_options: RowOptions,
    snapshot_id: int | None,
    column_names: str | None,
    files: bool,
    commit: bool,
) -> None:
    """Count the distinct values of columns, with theta sketches in a Puffin file. Reads the rows.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Opening the table"):
        columns = names(column_names) if column_names else None
        plan = source.open().maintenance.compute_table_stats(snapshot_id, columns)
    _act(plan, row_options, DATA_FILES, files=files, commit=commit)


def _act(
    plan: PartitionStatsPlan[Table] | TableStatsPlan[Table],
    row_options: RowOptions,
    columns: tuple[TextColumn, ...],
    *,
    files: bool,
    commit: bool,
) -> None:
    if files:
        row_options.print(plan.files(), columns, plan.table.location())
        if not commit:
            return
    if commit:
        with progress("Computing statistics"):
            plan.commit()
    result = plan.result()
    if row_options.as_json:
        print_json(result)
        return
    click.echo(str(plan.summary()))
    committed = result["committed"]
    if committed is not None:
        click.echo(f"written: {committed['statistics_path']}")
        for name, count in committed.get("distinct_values", {}).items():
            click.echo(f"  {name}: {count}")
    elif not plan.summary().is_empty and not commit:
        click.echo(UNCHANGED)
