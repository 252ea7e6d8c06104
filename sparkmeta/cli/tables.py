"""Define the commands that print metadata tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.output import JSON_OPTIONS, TextColumn, print_lines, print_rows, progress, with_text_ids
from sparkmeta.cli.source import (
    SnapshotChoice,
    Source,
    names,
    takes_snapshot,
    takes_source,
)
from sparkmeta.errors import SparkmetaError
from sparkmeta.expr import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from sparkmeta.entries.relation import HasSession, Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.inspect.metadata_rows import MetadataRows
    from sparkmeta.table import Table


TEXT_ROWS = 20
MOST_TEXT_ROWS = 10_000
_MORE = "; --limit N shows more, --output json all"

_PARTITION = TextColumn("partition")
_ADDED, _EXISTING, _DELETED = (
    TextColumn(name, sql.col(f"{name}_data_files_count") + sql.col(f"{name}_delete_files_count"), "count")
    for name in ("added", "existing", "deleted")
)
_CONTENTS = ("data", "position", "equality")


def _summary(name: str, key: str) -> TextColumn:
    return TextColumn(name, sql.number_of_key(sql.col("summary"), key), "count")


@dataclass(frozen=True)
class MetadataTable:
    """The printed form of a metadata table.

    Attributes:
        help: The help text of the command.
        text: The columns of the text output.
        of_snapshot: Whether the table describes one snapshot, which options choose. If not, it is a function of
            `inspect.history`.
        of_files: Whether the table is read from manifest entries. Only their needed columns are decoded.
        command: The name of the command, if it differs from the name of the table.
        by_time: Whether the rows are in the order of time, so that `--limit` prints the last ones.
    """

    help: str
    text: tuple[TextColumn, ...]
    of_snapshot: bool = True
    of_files: bool = False
    command: str | None = None
    by_time: bool = False


METADATA_TABLES = {
    "files": MetadataTable(
        "Print the live data files and delete files of a snapshot.",
        (
            TextColumn("content", sql.lookup(_CONTENTS, sql.col("content")), reads="content"),
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
            TextColumn("status", sql.lookup(("existing", "added", "deleted"), sql.col("status")), reads="status"),
            TextColumn("snapshot_id", kind="id"),
            TextColumn("sequence", "sequence_number", "id"),
            TextColumn("content", sql.lookup(_CONTENTS, sql.col("data_file.content")), reads="data_file.content"),
            TextColumn("file_path", "data_file.file_path", "path"),
            TextColumn("partition", "data_file.partition"),
            TextColumn("records", "data_file.record_count", "count"),
        ),
        of_files=True,
    ),
    "manifests": MetadataTable(
        "Print the manifests of a snapshot, with the number of their files.",
        (
            TextColumn("content", sql.lookup(("data", "deletes"), sql.col("content"))),
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
            _summary("added", "added-data-files"),
            _summary("deleted", "deleted-data-files"),
            _summary("files", "total-data-files"),
            _summary("delete files", "total-delete-files"),
            _summary("records", "total-records"),
        ),
        of_snapshot=False,
        by_time=True,
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
    "history": MetadataTable(
        "Print the changes of the current snapshot of the table.",
        (
            TextColumn("made_current_at", kind="time"),
            TextColumn("snapshot_id", kind="id"),
            TextColumn("parent_id", kind="id"),
            TextColumn("is_current_ancestor"),
        ),
        of_snapshot=False,
        by_time=True,
    ),
    "metadata_log_entries": MetadataTable(
        "Print the metadata files of the table, the current one last.",
        (
            TextColumn("timestamp", kind="time"),
            TextColumn("file", kind="path"),
            TextColumn("snapshot_id", "latest_snapshot_id", "id"),
            TextColumn("schema_id", "latest_schema_id", "id"),
            TextColumn("sequence", "latest_sequence_number", "id"),
        ),
        of_snapshot=False,
        command="metadata-log",
        by_time=True,
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
        """The options for rows and columns that were given on the command line."""
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

    def print(
        self,
        rows: Relation,
        text: Sequence[TextColumn],
        base: str,
        source: HasSession,
        *,
        newest: bool = False,
        of_metadata: bool = True,
    ) -> bool:
        """Print rows. An Arrow table needs Spark only for options that Arrow can't evaluate.

        Args:
            rows: The rows.
            text: The default columns of the text output.
            base: A folder. Paths below it are printed relative to it in the text output.
            source: An object that has a session or can start one.
            newest: Whether a limit keeps the last rows, which are few, instead of the first ones.
            of_metadata: Whether columns with names such as `snapshot_id` contain ids of snapshots, which are text in
                JSON.

        Returns:
            Whether there are rows.

        Raises:
            InvalidArgumentError: An Arrow table lacks a column that an option names.
        """
        from sparkmeta.entries.relation import select, tail

        with progress("Reading"):
            matching = self._matching(rows, source)
            named, matching = self._named(matching, source)
            if newest and self.as_json and self.limit is not None:
                matching = tail(matching, self.limit)
            if not self.as_json:
                return print_rows(matching, named or text, self.limit or TEXT_ROWS, base, more=_MORE, newest=newest)
            if named:
                # As in Spark, a nested field has its own name.
                fields = [column.column.alias(sql.last_name(column.column)) for column in named]
                matching = select(matching, fields)
            return print_json_rows(matching, self.limit, with_ids=of_metadata)

    def _matching(self, rows: Relation, source: HasSession) -> Relation:
        """Return the rows that meet the condition."""
        if self.where is None:
            return rows
        import pyarrow as pa

        from sparkmeta.entries.relation import frame_of, where

        if isinstance(rows, pa.Table):
            from sparkmeta.cli.row_filter import arrow_condition

            if (condition := arrow_condition(self.where, rows.schema)) is not None:
                return where(rows, condition)
        return frame_of(rows, source).where(self.where)

    def _named(self, rows: Relation, source: HasSession) -> tuple[list[TextColumn], Relation]:
        """Return the selected columns, and the rows, which become a DataFrame if only Spark can find a column."""
        if not self.columns:
            return [], rows
        import pyarrow as pa

        from sparkmeta.arrow_types import arrow_schema
        from sparkmeta.entries.relation import frame_of
        from sparkmeta.entries.relation import names as columns_of

        names = [name.replace("`", "") for name in self.columns]
        is_table = isinstance(rows, pa.Table)
        fields = [_path(name, rows.schema if is_table else arrow_schema(rows.schema)) for name in names]
        if is_table and any(field is None for field in fields):
            from sparkmeta.cli.row_filter import refuse_unknown

            refuse_unknown(names, columns_of(rows))
            rows = frame_of(rows, source)
        return [TextColumn(name, field or name) for name, field in zip(self.columns, fields, strict=True)], rows


def print_json_rows(rows: Relation, limit: int | None, *, with_ids: bool = True) -> bool:
    """Print rows as JSON objects, one per line. Spark's tasks make the JSON of a DataFrame.

    Args:
        rows: The rows.
        limit: The number of rows to print. None prints all.
        with_ids: Whether a DataFrame may have ids of snapshots, which become texts.

    Returns:
        Whether there are rows.
    """
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        from sparkmeta.cli.arrow_json import json_lines

        for line in json_lines(rows if limit is None else rows.slice(0, limit)):
            sys.stdout.write(f"{line}\n")
        return len(rows) > 0
    from pyspark.sql import functions as F

    shown = with_text_ids(rows) if with_ids else rows
    return print_lines(shown.select(F.to_json(F.struct("*"), JSON_OPTIONS)), limit)


def _decoded(name: str, leaves: Iterable[str]) -> str:
    """Return the smallest part of a column that can be decoded separately: a field of some structs, or the column."""
    from sparkmeta.plan.file_columns import READABLE_METRICS

    name = name.replace("`", "")
    metrics = [full for full in (f"{READABLE_METRICS}.{leaf}" for leaf in leaves) if f"{name}.".startswith(f"{full}.")]
    if metrics:
        return max(metrics, key=len)
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] in {"data_file", READABLE_METRICS} else 1])


def _path(name: str, fields: Iterable[pa.Field]) -> Sql | None:
    """Return a column or nested field by its name; None if there is none.

    Args:
        name: the names of the fields, with dots between them and possibly in them.
        fields: the existing fields.
    """
    import pyarrow as pa

    for field in sorted(fields, key=lambda field: len(field.name), reverse=True):
        if name == field.name:
            return sql.col(sql.quoted(field.name))
        if name.startswith(f"{field.name}.") and pa.types.is_struct(field.type):
            below = _path(name[len(field.name) + 1 :], field.type)
            if below is not None:
                return sql.col(f"{sql.quoted(field.name)}.{below.text}")
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
        # A command with the flag --files prints rows only if the flag is set.
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
            arguments: dict[str, Any] = {} if choice is None else {"snapshot_id": choice.snapshot_id_in(table)}
            if metadata_table.of_files:
                from sparkmeta.plan.file_columns import leaf_columns

                arguments["columns"] = row_options.read_columns(text, leaf_columns(table.state.types.typing_schema))
            rows = _rows(table, name, metadata_table, arguments)
        row_options.print(rows, text, table.location(), table.state, newest=metadata_table.by_time)

    options = takes_row_options(takes_source(run))
    return click.command(metadata_table.command or name, help=metadata_table.help)(
        takes_snapshot(options) if metadata_table.of_snapshot else options
    )


def text_columns(table: Table, columns: Sequence[TextColumn]) -> list[TextColumn]:
    """Return the columns of the text output, without partition and spec if the table is unpartitioned."""
    of_partitions = [column for column in columns if column.name in {"partition", "spec"}]
    if not of_partitions or table.state.types.partition_type.fields:
        return list(columns)
    return [column for column in columns if column not in of_partitions]


def _rows(table: Table, name: str, metadata_table: MetadataTable, arguments: dict[str, Any]) -> Relation:
    if table.state.sessions.given is None and not metadata_table.of_snapshot:
        from sparkmeta.inspect import history

        return history.table_of(name, table.state, table.metadata_location)
    from sparkmeta.inspect.inspect_table import InspectRows

    inspect = InspectRows(table.state, table.metadata_location)
    try:
        rows: MetadataRows = getattr(inspect, name)(**arguments)
    except SparkmetaError:
        raise
    except ValueError as error:
        raise SparkmetaError(str(error)) from error
    return rows.relation() if table.state.sessions.given is None else rows.frame()
