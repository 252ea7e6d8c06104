"""Define the command that rewrites data files, and the options that it shares with the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from sparkmeta.cli.output import TextColumn, progress
from sparkmeta.cli.plans import carry_out
from sparkmeta.cli.source import Source, takes_source
from sparkmeta.cli.tables import RowOptions, takes_row_options
from sparkmeta.inspect.units import counted

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
    carry_out(plan, row_options, REWRITTEN_FILES, _rewritten, files=files, commit=commit, doing="Rewriting data files")


def _rewritten(committed: Mapping[str, Any]) -> list[str]:
    became = f"{counted(committed['rewritten_data_files'], 'data file')} became {committed['added_data_files']:,}"
    lines = [f"{became} in {counted(committed['commits'], 'commit')}"]
    if committed["failed_commits"]:
        failed = counted(committed["failed_commits"], "commit")
        files = counted(committed["failed_data_files"], "data file")
        were = "was" if committed["failed_data_files"] == 1 else "were"
        lines.append(f"{failed} failed, {files} {were} not rewritten")
    return lines
