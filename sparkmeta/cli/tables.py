"""The commands that print one metadata table each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.output import TextColumn, print_json_rows, print_rows, progress
from sparkmeta.cli.source import Moment, Source, takes_moment, takes_source
from sparkmeta.errors import SparkmetaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from sparkmeta.table import Table

TEXT_ROWS = 20
MOST_TEXT_ROWS = 10_000
_MORE = "; --limit N shows more, --output json all"

_PARTITION = TextColumn("partition")
_ADDED, _EXISTING, _DELETED = (
    TextColumn(name, f"{name}_data_files_count + {name}_delete_files_count", "count")
    for name in ("added", "existing", "deleted")
)


@dataclass(frozen=True)
class MetadataTable:
    """A metadata table as the command line shows it.

    text: its columns as text. of_snapshot: it is of one snapshot, and takes one. of_files: it is read from manifest
    entries, and takes the columns to decode.
    """

    help: str
    text: tuple[TextColumn, ...]
    of_snapshot: bool = True
    of_files: bool = False


METADATA_TABLES = {
    "files": MetadataTable(
        "The live data files and delete files of a snapshot.",
        (
            TextColumn("content", "element_at(array('data', 'position', 'equality'), content + 1)", reads="content"),
            TextColumn("file_path", kind="path"),
            TextColumn("format", "file_format"),
            _PARTITION,
            TextColumn("records", "record_count", "count"),
            TextColumn("size", "file_size_in_bytes", "bytes"),
        ),
        of_files=True,
    ),
    "entries": MetadataTable(
        "The manifest entries of a snapshot, those of deleted files too.",
        (
            TextColumn("status", "element_at(array('existing', 'added', 'deleted'), status + 1)", reads="status"),
            TextColumn("snapshot_id", kind="id"),
            TextColumn("sequence", "sequence_number", "id"),
            TextColumn(
                "content",
                "element_at(array('data', 'position', 'equality'), data_file.content + 1)",
                reads="data_file.content",
            ),
            TextColumn("file_path", "data_file.file_path", "path"),
            TextColumn("partition", "data_file.partition"),
            TextColumn("records", "data_file.record_count", "count"),
        ),
        of_files=True,
    ),
    "manifests": MetadataTable(
        "The manifests of a snapshot, with the number of files that they list.",
        (
            TextColumn("content", "element_at(array('data', 'deletes'), content + 1)"),
            TextColumn("path", kind="path"),
            TextColumn("length", kind="bytes"),
            TextColumn("spec", "partition_spec_id", "id"),
            TextColumn("added_snapshot_id", kind="id"),
            _ADDED,
            _EXISTING,
            _DELETED,
        ),
    ),
    "partitions": MetadataTable(
        "The partitions of a snapshot, with their files and rows.",
        (
            _PARTITION,
            TextColumn("spec", "spec_id", "id"),
            TextColumn("records", "record_count", "count"),
            TextColumn("files", "file_count", "count"),
            TextColumn("size", "total_data_file_size_in_bytes", "bytes"),
            TextColumn("position deletes", "position_delete_record_count", "count"),
            TextColumn("equality deletes", "equality_delete_record_count", "count"),
            TextColumn("last_updated_at", kind="time"),
        ),
    ),
    "snapshots": MetadataTable(
        "The snapshots that the table still has.",
        (
            TextColumn("committed_at", kind="time"),
            TextColumn("snapshot_id", kind="id"),
            TextColumn("parent_id", kind="id"),
            TextColumn("operation"),
            TextColumn("added", "cast(summary['added-data-files'] as bigint)", "count"),
            TextColumn("deleted", "cast(summary['deleted-data-files'] as bigint)", "count"),
            TextColumn("files", "cast(summary['total-data-files'] as bigint)", "count"),
            TextColumn("delete files", "cast(summary['total-delete-files'] as bigint)", "count"),
            TextColumn("records", "cast(summary['total-records'] as bigint)", "count"),
        ),
        of_snapshot=False,
    ),
    "refs": MetadataTable(
        "The branches and tags.",
        (
            TextColumn("name"),
            TextColumn("type"),
            TextColumn("snapshot_id", kind="id"),
            TextColumn("max_reference_age_in_ms", kind="count"),
            TextColumn("min_snapshots_to_keep", kind="count"),
            TextColumn("max_snapshot_age_in_ms", kind="count"),
        ),
        of_snapshot=False,
    ),
}


@dataclass(frozen=True)
class Shown:
    """How rows are to be printed."""

    as_json: bool
    columns: tuple[str, ...]
    where: str | None
    limit: int | None

    def __post_init__(self) -> None:
        if not self.as_json and self.limit is not None and self.limit > MOST_TEXT_ROWS:
            raise click.UsageError(f"--limit above {MOST_TEXT_ROWS:,} needs --output json")

    def read_columns(self, text: Sequence[TextColumn]) -> list[str] | None:
        """The columns that are needed; None for all."""
        if self.where is not None or (self.as_json and not self.columns):
            return None
        return [_decoded(name) for name in self.columns] or [column.source for column in text]

    def print(self, rows: DataFrame, text: Sequence[TextColumn], base: str) -> None:
        """The rows on stdout; `text` are the columns of a table unless others are asked for."""
        chosen = rows if self.where is None else rows.where(self.where)
        if self.as_json:
            with progress("Reading"):
                print_json_rows(chosen.select(*self.columns) if self.columns else chosen, self.limit)
        else:
            named = [TextColumn(name) for name in self.columns]
            with progress("Reading"):
                print_rows(chosen, named or text, self.limit or TEXT_ROWS, base, more=_MORE)


def _decoded(name: str) -> str:
    """The part of a column that can be decoded without the rest of it: a field of these structs, else all of it."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] in {"data_file", "readable_metrics"} else 1])


def takes_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--output`, handed over as `as_json`."""

    @wraps(command)
    def with_output(output: str, **given: Any) -> Any:
        return command(as_json=output == "json", **given)

    choice = click.Choice(["text", "json"])
    return click.option("--output", "-o", type=choice, default="text", show_default=True, help="Form of the output.")(
        with_output
    )


def takes_rows(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which rows and columns to print and how, handed over as `shown`."""

    @wraps(command)
    def with_shown(as_json: bool, columns: str | None, where: str | None, limit: int | None, **given: Any) -> Any:
        names = tuple(name.strip() for name in columns.split(",")) if columns else ()
        return command(shown=Shown(as_json, names, where, limit), **given)

    rows = f"Rows to print. [default: {TEXT_ROWS} as text, all as JSON]"
    limited = click.option("--limit", type=click.IntRange(min=1), metavar="N", help=rows)
    chosen = click.option(
        "--where", metavar="SQL", help="Only rows that meet this Spark SQL condition on the output's columns."
    )
    named = click.option("--columns", metavar="A,B", help="Only these columns, by their names in the JSON output.")
    return takes_output(named(chosen(limited(with_shown))))


def metadata_command(name: str, shown_as: MetadataTable) -> click.Command:
    """The command that prints one metadata table."""

    def run(source: Source, shown: Shown, moment: Moment | None = None) -> None:
        with progress("Opening the table"):
            table = source.open()
            text = text_columns(table, shown_as.text)
            asked: dict[str, Any] = {} if moment is None else {"snapshot_id": moment.of(table)}
            if shown_as.of_files:
                asked["columns"] = shown.read_columns(text)
            rows = _rows(table, name, asked)
        shown.print(rows, text, table.location())

    options = takes_rows(takes_source(run))
    return click.command(name, help=shown_as.help)(takes_moment(options) if shown_as.of_snapshot else options)


def text_columns(table: Table, columns: Sequence[TextColumn]) -> list[TextColumn]:
    """The columns of a text table; those of partitions only where the table has any."""
    partitioned = bool(table.state.types.partition_type.fields)
    return [column for column in columns if partitioned or column.name not in {"partition", "spec"}]


def _rows(table: Table, name: str, asked: dict[str, Any]) -> DataFrame:
    try:
        rows: DataFrame = getattr(table.inspect, name)(**asked)
    except SparkmetaError:
        raise
    except ValueError as error:
        raise SparkmetaError(str(error)) from error
    return rows
