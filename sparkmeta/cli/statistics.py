"""Define the commands that compute statistics of a snapshot, and register them with `--commit`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.maintain import UNREACHABLE
from sparkmeta.cli.output import TextColumn, progress
from sparkmeta.cli.plans import carry_out
from sparkmeta.cli.source import Source, names, takes_source
from sparkmeta.cli.tables import RowOptions, takes_row_options

if TYPE_CHECKING:
    from collections.abc import Mapping

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
