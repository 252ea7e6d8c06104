"""Define the commands that print metadata tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.output import (
    TextColumn,
    print_json_rows,
    print_json_table,
    print_rows,
    print_values,
    progress,
    table_values,
)
from sparkmeta.cli.source import (
    SnapshotChoice,
    Source,
    names,
    takes_snapshot,
    takes_source,
)
from sparkmeta.columns.sql import quoted
from sparkmeta.errors import SparkmetaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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
    """The printed form of a metadata table.

    Attributes:
        help: The help text of the command.
        text: The columns of the text output.
        of_snapshot: Whether the table describes one snapshot, which options choose. If not, it is a function of
            `inspect.history`.
        of_files: Whether the table is read from manifest entries. Only their needed columns are decoded.
    """

    help: str
    text: tuple[TextColumn, ...]
    of_snapshot: bool = True
    of_files: bool = False


METADATA_TABLES = {
    "files": MetadataTable(
        "Print the live data files and delete files of a snapshot.",
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
        "Print the manifest entries of a snapshot, including those of deleted files.",
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
        "Print the manifests of a snapshot, with the number of their files.",
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
        "Print the partitions of a snapshot, with the number of files and rows.",
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
        "Print the snapshots of the table.",
        (
            TextColumn("committed_at", kind="time"),
            TextColumn("snapshot_id", kind="id"),
            TextColumn("parent_id", kind="id"),
            TextColumn("operation"),
            TextColumn("added", kind="count", summary="added-data-files"),
            TextColumn("deleted", kind="count", summary="deleted-data-files"),
            TextColumn("files", kind="count", summary="total-data-files"),
            TextColumn("delete files", kind="count", summary="total-delete-files"),
            TextColumn("records", kind="count", summary="total-records"),
        ),
        of_snapshot=False,
    ),
    "refs": MetadataTable(
        "Print the branches and tags of the table.",
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
class RowOptions:
    """The options that select and format the rows to print.

    Attributes:
        as_json: Print JSON lines instead of a text table.
        columns: The columns to print, with nested fields after a dot. Empty for the default.
        where: A Spark SQL condition.
        limit: The number of rows to print. None for the default.
    """

    as_json: bool
    columns: tuple[str, ...]
    where: str | None
    limit: int | None

    def __post_init__(self) -> None:
        if not self.as_json and self.limit is not None and self.limit > MOST_TEXT_ROWS:
            raise click.UsageError(f"--limit above {MOST_TEXT_ROWS:,} needs --output json")

    @property
    def given(self) -> list[str]:
        """The options for rows and columns that the command line has."""
        values = {"--where": self.where, "--columns": self.columns or None, "--limit": self.limit}
        return [name for name, value in values.items() if value is not None]

    def read_columns(self, text: Sequence[TextColumn], leaves: Iterable[str]) -> list[str] | None:
        """Return the columns to read; None for all columns.

        Args:
            text: the columns of the text output.
            leaves: the full names of the table's leaf columns.
        """
        if self.where is not None or (self.as_json and not self.columns):
            return None
        return [_decoded(name, leaves) for name in self.columns] or [column.source for column in text]

    def print_table(self, rows: pa.Table, text: Sequence[TextColumn]) -> None:
        """Print the rows of an Arrow table as `print` does. The options need no Spark."""
        if self.as_json:
            print_json_table(rows.select(self.columns or rows.column_names), self.limit)
        else:
            columns = [TextColumn(name) for name in self.columns] or text
            print_values(table_values(rows), columns, self.limit or TEXT_ROWS, more=_MORE)

    def needs_spark(self, columns: Iterable[str]) -> bool:
        """Return whether only Spark can evaluate the options for rows with these columns."""
        names = set(self.columns)
        return self.where is not None or len(names) < len(self.columns) or not names <= set(columns)

    def print(self, rows: DataFrame, text: Sequence[TextColumn], base: str) -> None:
        """Print rows.

        Args:
            rows: The rows.
            text: The default columns of the text output.
            base: A folder. Paths below it are printed relative to it in the text output.
        """
        matching = rows if self.where is None else rows.where(self.where)
        paths = [_path(name.replace("`", ""), rows.schema) or name for name in self.columns]
        if self.as_json:
            with progress("Reading"):
                print_json_rows(matching.select(*paths) if paths else matching, self.limit)
        else:
            named = [TextColumn(name, path) for name, path in zip(self.columns, paths, strict=True)]
            with progress("Reading"):
                print_rows(matching, named or text, self.limit or TEXT_ROWS, base, more=_MORE)


def _decoded(name: str, leaves: Iterable[str]) -> str:
    """Return the smallest part of a column that can be decoded separately: a field of some structs, or the column."""
    from sparkmeta.inspect.files import READABLE_METRICS

    name = name.replace("`", "")
    metrics = [full for full in (f"{READABLE_METRICS}.{leaf}" for leaf in leaves) if f"{name}.".startswith(f"{full}.")]
    if metrics:
        return max(metrics, key=len)
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] in {"data_file", READABLE_METRICS} else 1])


def _path(name: str, row: StructType) -> str | None:
    """Return the name of a column or nested field in Spark, with backticks; None if a row does not have it.

    Args:
        name: the names of the fields, with dots between them and possibly in them.
        row: the existing fields.
    """
    for field in sorted(row.fields, key=lambda field: len(field.name), reverse=True):
        if name == field.name:
            return quoted(field.name)
        if name.startswith(f"{field.name}.") and isinstance(field.dataType, type(row)):
            below = _path(name[len(field.name) + 1 :], field.dataType)
            if below is not None:
                return f"{quoted(field.name)}.{below}"
    return None


def takes_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--output` to a command. The command gets it as `as_json`."""

    @wraps(command)
    def with_output(output: str, **arguments: Any) -> Any:
        return command(as_json=output == "json", **arguments)

    choice = click.Choice(["text", "json"])
    return click.option("--output", "-o", type=choice, default="text", show_default=True, help="Format of the output.")(
        with_output
    )


def takes_row_options(command: Callable[..., Any], *, columns: bool = True) -> Callable[..., Any]:
    """Add the options for rows and columns to a command. The command gets them as `row_options`.

    Args:
        command: the command.
        columns: whether `--columns` is one of them. If not, the command may have another option of this name.
    """

    @wraps(command)
    def with_row_options(as_json: bool, where: str | None, limit: int | None, **arguments: Any) -> Any:
        text = arguments.pop("columns") if columns else None
        options = RowOptions(as_json, tuple(names(text)) if text else (), where, limit)
        # A command with the flag --files prints rows only with this flag.
        if arguments.get("files") is False and options.given:
            raise click.UsageError(f"{options.given[0]} selects among the rows of --files, which is not given")
        return command(row_options=options, **arguments)

    limit_help = f"Number of rows to print. [default: {TEXT_ROWS} as text, all as JSON]"
    limit_option = click.option("--limit", type=click.IntRange(min=1), metavar="N", help=limit_help)
    where_option = click.option(
        "--where", metavar="SQL", help="Print only rows that meet this Spark SQL condition on the output's columns."
    )
    columns_option = click.option(
        "--columns", metavar="A,B", help="Print only these columns, by their names in the JSON output."
    )
    options = where_option(limit_option(with_row_options))
    return takes_output(columns_option(options) if columns else options)


def metadata_command(name: str, metadata_table: MetadataTable) -> click.Command:
    """Return the command that prints a metadata table."""

    def run(source: Source, row_options: RowOptions, choice: SnapshotChoice | None = None) -> None:
        with progress("Opening the table"):
            table = source.open()
            text = text_columns(table, metadata_table.text)
        if not metadata_table.of_snapshot and table.state.sessions.running() is None:
            from sparkmeta.inspect import history

            local: pa.Table = getattr(history, name)(table.state)
            if not row_options.needs_spark(local.column_names):
                row_options.print_table(local, text)
                return
        with progress("Opening the table"):
            arguments: dict[str, Any] = {} if choice is None else {"snapshot_id": choice.snapshot_id_in(table)}
            if metadata_table.of_files:
                from sparkmeta.inspect.files import leaf_columns

                arguments["columns"] = row_options.read_columns(text, leaf_columns(table.state.types.typing_schema))
            rows = _rows(table, name, arguments)
        row_options.print(rows, text, table.location())

    options = takes_row_options(takes_source(run))
    return click.command(name, help=metadata_table.help)(
        takes_snapshot(options) if metadata_table.of_snapshot else options
    )


def text_columns(table: Table, columns: Sequence[TextColumn]) -> list[TextColumn]:
    """Return the columns of the text output, without partition and spec if the table is unpartitioned."""
    of_partitions = [column for column in columns if column.name in {"partition", "spec"}]
    if not of_partitions or table.state.types.partition_type.fields:
        return list(columns)
    return [column for column in columns if column not in of_partitions]


def _rows(table: Table, name: str, arguments: dict[str, Any]) -> DataFrame:
    try:
        rows: DataFrame = getattr(table.inspect, name)(**arguments)
    except SparkmetaError:
        raise
    except ValueError as error:
        raise SparkmetaError(str(error)) from error
    return rows
