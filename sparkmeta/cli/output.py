"""Print rows as a text table or JSON lines, facts as text or a JSON document, and errors in one line."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as TextTable
from rich.text import Text

from sparkmeta.errors import SparkmetaError, command_line_message, first_line, from_spark
from sparkmeta.expr import sql
from sparkmeta.progress import progress as shown_progress
from sparkmeta.storage.location import normalize
from sparkmeta.text import byte_size, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased, Sql


# -- Describe errors in one line, for commands and jobs ---------------------------------------------------------------


def report_error(program: str, error: Exception) -> None:
    """Print an error of a job in one line. Raises the error if it is a bug of sparkmeta."""
    if (line := _known_line(error)) is None:
        raise error
    print(f"{program}: {line}", file=sys.stderr)  # noqa: T201


def error_line(error: Exception, hint: str) -> str:
    """Return one line that describes an error to users.

    Args:
        error: the error.
        hint: the text to add to errors whose first line says little: errors of Spark, and bugs of sparkmeta.
    """
    return _known_line(error, hint) or f"{type(error).__name__}: {printable(first_line(error))}{hint}"


def _known_line(error: Exception, hint: str = "") -> str | None:
    """Return the line of an error; None if the error is a bug of sparkmeta."""
    known = error if isinstance(error, SparkmetaError) else from_spark(error)
    if known is not None:
        return printable(command_line_message(known) or first_line(known))
    from pyspark.errors import PySparkException

    module = type(error).__module__
    if module == "pyiceberg.exceptions" or isinstance(error, OSError):
        return printable(first_line(error))
    if isinstance(error, PySparkException) or module == "py4j.protocol":
        return f"Spark: {printable(first_line(error))}{hint}"
    return None


# -- Print rows and facts, as text or JSON ----------------------------------------------------------------------------


PIPED_WIDTH = 160
_CELL = 300
_PATH, _SHORTEST_PATH = 70, 40
_MAX_ITEMS = 4
_ANY_WIDTH = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SNAPSHOT_ID = re.compile(r"(?:\w+_)?snapshot_ids?|parent_id|snapshots_removed")
"""Names of fields with ids of snapshots, which have 64 bits."""

OF_ROWS = ("partition", "readable_metrics")
"""Names of structs with values of a table's rows, whose fields may have any names."""

# Options for lossless JSON: Spark writes nulls, and times in microseconds.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True)
class TextColumn:
    """A column of a text table.

    Attributes:
        name: The heading.
        expression: The path of a column of the rows, or an expression over them. Empty for the column ``name``.
        kind: The format of the values: ``plain``, ``id`` (1234), ``count`` (1,234), ``bytes`` (1.2 MiB), ``time`` or
            ``path``.
        reads: The column that the expression reads, if the expression is not a column.
    """

    name: str
    expression: str | Sql = ""
    kind: str = "plain"
    reads: str = ""

    @property
    def source(self) -> str:
        """The column of the rows that the text column needs."""
        return self.reads or (self.expression if isinstance(self.expression, str) else "") or self.name

    @property
    def column(self) -> Aliased:
        expression = self.expression
        if isinstance(expression, str):
            expression = sql.col(expression) if expression else sql.col(sql.quoted(self.name))
        return expression.alias(self.name)


class OutputConsole(Console):
    """A console on standard output.

    It raises BrokenPipeError if the reader has closed the pipe. Rich would exit the process.
    """

    def __init__(self) -> None:
        super().__init__(file=sys.stdout, width=text_width(), highlight=False)

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  rich calls this while it handles the error


@contextmanager
def unread_output_dropped(output: TextIO) -> Iterator[None]:
    """Discard output, in the rest of the block and later, once its reader has closed the pipe."""
    try:
        yield
        output.flush()
    except BrokenPipeError:
        if not drop_unread_output(output):
            raise


def drop_unread_output(output: TextIO) -> bool:
    """Discard pending and later output to a stream if it is a pipe that its reader has closed.

    Returns:
        Whether it is such a pipe.
    """
    try:
        descriptor = output.fileno()
    except OSError:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)
    return True


# -- Rows -----------------------------------------------------------------------------------------------------------


def print_rows(
    rows: Relation,
    columns: Sequence[TextColumn],
    limit: int,
    base: str = "",
    *,
    more: str = "",
    newest: bool = False,
) -> bool:
    """Print the first rows, or the last ones, as a table that fits the terminal.

    Args:
        rows: The rows.
        columns: The columns of the table.
        limit: The number of rows to print.
        base: A folder. Paths below it are printed relative to it.
        more: A hint that is printed if there are more rows.
        newest: Whether the rows are few and in the order of time, so that the last ones are printed.

    Returns:
        Whether there are rows.
    """
    from sparkmeta.entries.relation import head, select, tail

    selected = select(rows, [column.column for column in columns])
    printed = table_values(tail(selected, limit + 1) if newest else head(selected, limit + 1))
    console = print_table(printed[-limit:] if newest else printed[:limit], columns, base)
    if len(printed) > limit:
        end = "newest" if newest else "first"
        console.print(Text(f"... the {end} {limit:,} rows{more}", style="dim"), soft_wrap=True)
    if printed and base and any(column.kind == "path" for column in columns):
        console.print(Text(f"paths are below {printable(base)}", style="dim"), soft_wrap=True)
    return bool(printed)


def table_values(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows of Python values. Dates and times whose year Python does not support are text."""
    try:
        values: list[dict[str, Any]] = rows.to_pylist()
    except (OverflowError, ValueError):
        values = [
            dict(zip(rows.column_names, map(_value, row), strict=True)) for row in zip(*rows.columns, strict=True)
        ]
    return values


def _value(scalar: pa.Scalar) -> Any:
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.MapScalar):
        return [tuple(map(_value, entry.values())) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [*map(_value, scalar.values)]
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(part) for name, part in scalar.items()}
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _time_text(scalar)


def _time_text(scalar: pa.Scalar) -> str:
    """Return a date or a time of any year as text, in UTC if it has a zone."""
    import numpy as np
    import pyarrow as pa

    if not isinstance(scalar, pa.TimestampScalar):
        return str(np.datetime64(scalar.value, "D"))
    text = str(np.datetime64(scalar.value, scalar.type.unit)).replace("T", " ").removesuffix(".000000")
    return f"{text}Z" if scalar.type.tz else text


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[TextColumn], base: str = "") -> Console:
    """Print rows as a table that fits the terminal, and return the console."""
    console = OutputConsole()
    table = text_table(rows, columns, base)
    too_wide = Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum - console.width
    if too_wide > 0:
        table = text_table(rows, columns, base, _longest_path(rows, columns, base, too_wide))
    console.print(table)
    if not rows:
        console.print(Text("no rows", style="dim"))
    return console


def _longest_path(rows: Sequence[Mapping[str, Any]], columns: Sequence[TextColumn], base: str, too_wide: int) -> int:
    """Return the maximum length of paths that makes a table narrower by `too_wide` characters."""
    paths = [column.name for column in columns if column.kind == "path"]
    widths = [max((len(cell(row[name], "path", base)) for row in rows), default=0) for name in paths]
    lengths = range(_PATH, _SHORTEST_PATH, -1)
    fitting = (length for length in lengths if sum(max(0, width - length) for width in widths) >= too_wide)
    return next(fitting, _SHORTEST_PATH)


def text_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[TextColumn], base: str, longest_path: int = _PATH
) -> TextTable:
    """Return a rich table with one line per row. If it is too wide, text is truncated, but not numbers."""
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column.kind in {"count", "bytes", "id"}
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(_line(column.name), justify=justify, no_wrap=number or column.kind == "time")
    for row in rows:
        table.add_row(*(_line(cell(row[column.name], column.kind, base, longest_path)) for column in columns))
    return table


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def text_width() -> int:
    """Return the width of text output: from the terminal or COLUMNS, or else PIPED_WIDTH."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if sys.stdout.isatty() else _piped_width()


def _piped_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else PIPED_WIDTH


def with_text_ids(rows: DataFrame) -> DataFrame:
    """Return rows in which the ids of snapshots are text, since readers such as jq round numbers of 64 bits."""
    from pyspark.sql import functions as F

    fields = rows.schema.fields
    kinds = [_text_id_type(field.name, field.dataType) for field in fields]
    if kinds == [field.dataType for field in fields]:
        return rows
    # By position, since a column may occur twice.
    names = [f"_{index}" for index in range(len(fields))]
    texts = [F.col(name).cast(kind) for name, kind in zip(names, kinds, strict=True)]
    return rows.toDF(*names).select(*texts).toDF(*rows.columns)


def _text_id_type(name: str, kind: DataType) -> DataType:
    """Return a column's type with text for the ids of snapshots in it, but not in values of the table's rows."""
    from pyspark.sql import types as spark

    if isinstance(kind, spark.LongType) and SNAPSHOT_ID.fullmatch(name):
        return spark.StringType()
    if isinstance(kind, spark.StructType) and name not in OF_ROWS:
        fields = kind.fields
        return spark.StructType(
            [
                spark.StructField(field.name, _text_id_type(field.name, field.dataType), field.nullable)
                for field in fields
            ]
        )
    return kind


def print_lines(rows: Relation, limit: int | None) -> bool:
    """Print rows of one text, a line per row. The driver holds one partition of a DataFrame at a time.

    Args:
        rows: The rows.
        limit: The number of rows to print. None prints all.

    Returns:
        Whether there are rows.
    """
    from sparkmeta.entries.relation import limited, values

    any_printed = False
    for text in values(rows if limit is None else limited(rows, limit)):
        any_printed = True
        sys.stdout.write(f"{text}\n")
    return any_printed


# -- Facts ----------------------------------------------------------------------------------------------------------


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print labels and values, one pair per line. A list has one line per item."""
    console = OutputConsole()
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
    table = TextTable(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        items = value if isinstance(value, list) else [value]
        for number, item in enumerate(items or ["none"]):
            table.add_row("" if number else name, Text(cell(item)))
    console.print(table)


def print_json(value: object, *, in_a_line: bool = False) -> None:
    """Print a JSON document, indented or in a line."""
    sys.stdout.write(json.dumps(text_ids(value), indent=None if in_a_line else 2, ensure_ascii=False) + "\n")


def text_ids(value: Any, name: str = "") -> Any:
    """Return a JSON value in which the ids of snapshots are text; see `with_text_ids`."""
    if isinstance(value, Mapping):
        return {key: text_ids(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [text_ids(part, name) for part in value]
    is_id = isinstance(value, int) and not isinstance(value, bool) and SNAPSHOT_ID.fullmatch(name)
    return str(value) if is_id else value


# -- Cells ----------------------------------------------------------------------------------------------------------


def cell(value: object, kind: str = "plain", base: str = "", longest_path: int = _PATH) -> str:
    """Format a value as one line of text without control characters."""
    if value is None:
        return "null"
    if kind == "count" and isinstance(value, int):
        return f"{value:,}"
    if kind == "bytes" and isinstance(value, int):
        return byte_size(value)
    if kind == "path":
        return _middle_out(printable(_below(str(value), base)), longest_path)
    return _shortened(printable(_plain(value)))


def timestamp(moment: datetime) -> str:
    """Format a time, with as many digits as it needs.

    A time with a zone is converted to UTC and ends in Z.
    """
    utc = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    digits = "auto" if utc.microsecond % 1000 else "milliseconds" if utc.microsecond else "seconds"
    return utc.isoformat(sep=" ", timespec=digits) + ("Z" if moment.tzinfo else "")


def time_text(milliseconds: int) -> str:
    """Return a time in milliseconds since 1970 as text."""
    try:
        return timestamp(_EPOCH + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return f"{milliseconds} ms after 1970"


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, bytes):
        return f"0x{value[:_CELL].hex()}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_plain(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return _listed([f"{part[0]}: {_plain(part[1])}" if isinstance(part, tuple) else _plain(part) for part in value])
    return value.isoformat() if isinstance(value, date) else "null" if value is None else str(value)


def _listed(parts: Sequence[str]) -> str:
    more = [f"... {len(parts) - _MAX_ITEMS:,} more"] if len(parts) > _MAX_ITEMS else []
    return f"[{', '.join([*parts[:_MAX_ITEMS], *more])}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def _below(path: str, base: str) -> str:
    """Return a path relative to its base, even if their spellings differ, or the path itself if it is elsewhere."""
    inside = f"{normalize(base)}/"
    known = normalize(path)
    return known[len(inside) :] if base and known.startswith(inside) else path


def _middle_out(path: str, longest: int) -> str:
    """Shorten a long path in its middle, since its ends distinguish files."""
    head = (longest - 1) // 2
    return path if len(path) <= longest else f"{path[:head]}…{path[1 + head - longest :]}"


# -- Progress -------------------------------------------------------------------------------------------------------


def progress(text: str) -> AbstractContextManager[object]:
    """Show an animated status line on stderr if it is a terminal."""
    return shown_progress(text, on_terminal=True)
