"""What commands print: rows as a bounded table of text or as JSON lines, facts as text or one JSON document."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.measure import Measurement
from rich.status import Status
from rich.table import Table as TextTable
from rich.text import Text

from sparkmeta.storage.location import normalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

PIPED_WIDTH = 160
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_CELL = 300
_PATH, _SHORTEST_PATH = 70, 40
_LONGEST_LIST = 4
_ANY_WIDTH = 100_000

# Spark's JSON with nothing lost: nulls are written, and times to the microsecond.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True)
class TextColumn:
    """A column of a text table.

    name: its heading. expression: Spark SQL over the rows' columns; empty for the column of that name.
    reads: the column that the expression reads, where it is not the expression itself.
    kind: how values are written: ``plain``, ``id`` (1234), ``count`` (1,234), ``bytes`` (1.2 MiB),
    ``time`` or ``path``.
    """

    name: str
    expression: str = ""
    kind: str = "plain"
    reads: str = ""

    @property
    def source(self) -> str:
        """The column of the rows that has to be there for it."""
        return self.reads or self.expression or self.name

    @property
    def column(self) -> Column:
        from pyspark.sql import functions as F

        return (F.expr(self.expression) if self.expression else F.col(self.name)).alias(self.name)


class OutputConsole(Console):
    """Standard output, as wide as text may be. A reader that is gone is a BrokenPipeError, as for other writes."""

    def __init__(self) -> None:
        super().__init__(file=sys.stdout, width=text_width(), highlight=False)

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  rich calls this while it handles the error


def drop_unread_output() -> bool:
    """Whether standard output is a pipe that nobody reads any more; if so, what is still to be written goes nowhere."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return True


# -- rows -----------------------------------------------------------------------------------------------------------


def print_rows(rows: DataFrame, columns: Sequence[TextColumn], limit: int, base: str = "", *, more: str = "") -> None:
    """The first `limit` rows as a table no wider than the terminal; paths below `base` without it.

    more: what to say where there are more rows.
    """
    shown = rows.select(*(column.column for column in columns)).limit(limit + 1).toArrow().to_pylist()
    console = print_table(shown[:limit], columns, base)
    if len(shown) > limit:
        console.print(Text(f"... the first {limit:,} rows{more}", style="dim"), soft_wrap=True)
    if shown and base and any(column.kind == "path" for column in columns):
        console.print(Text(f"paths are below {_printable(base)}", style="dim"), soft_wrap=True)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[TextColumn], base: str = "") -> Console:
    """Rows that are here as a table no wider than the terminal; gives the console that it is on."""
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
    """To how many characters paths are shortened so that a table gets narrower by so many: the longest ones first."""
    paths = [column.name for column in columns if column.kind == "path"]
    widths = [max((len(cell(row[name], "path", base)) for row in rows), default=0) for name in paths]
    fitting = (one for one in range(_PATH, _SHORTEST_PATH, -1) if sum(max(0, w - one) for w in widths) >= too_wide)
    return next(fitting, _SHORTEST_PATH)


def text_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[TextColumn], base: str, longest_path: int = _PATH
) -> TextTable:
    """Rows as a rich table, one line each; where they are too wide, text gives way to numbers."""
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
    """The width of text: that of COLUMNS or of the terminal, else one that suits a file."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if sys.stdout.isatty() else _piped_width()


def _piped_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else PIPED_WIDTH


def print_json_rows(rows: DataFrame, limit: int | None) -> None:
    """Every row, or the first `limit`, as a JSON object a line; Spark's tasks write the JSON."""
    from pyspark.sql import functions as F

    print_lines(rows.select(F.to_json(F.struct("*"), JSON_OPTIONS)), limit)


def print_lines(rows: DataFrame, limit: int | None) -> None:
    """Every row of one text column, or the first `limit`, a line each; the driver holds a partition at a time."""
    for line in (rows if limit is None else rows.limit(limit)).toLocalIterator(prefetchPartitions=True):
        sys.stdout.write(f"{line[0]}\n")


# -- facts ----------------------------------------------------------------------------------------------------------


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Names and values, a pair a line; a list is a line for each of its items."""
    console = OutputConsole()
    console.print(Text(_printable(title), style="bold"), soft_wrap=True)
    table = TextTable(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        items = value if isinstance(value, list) else [value]
        for number, item in enumerate(items or ["none"]):
            table.add_row("" if number else name, Text(cell(item)))
    console.print(table)


def print_json(value: object) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


# -- cells ----------------------------------------------------------------------------------------------------------


def cell(value: object, kind: str = "plain", base: str = "", longest_path: int = _PATH) -> str:
    """A value as one line of text without control characters."""
    if value is None:
        return "null"
    if kind == "count" and isinstance(value, int):
        return f"{value:,}"
    if kind == "bytes" and isinstance(value, int):
        return size(value)
    if kind == "path":
        return _middle_out(_printable(_below(str(value), base)), longest_path)
    return _shortened(_printable(_plain(value)))


def size(count: int) -> str:
    """Bytes for people: 1536 is 1.5 KiB."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def timestamp(moment: datetime) -> str:
    """A time as text: in UTC and with a Z where it has a zone, to the second, millisecond or microsecond."""
    utc = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    digits = "auto" if utc.microsecond % 1000 else "milliseconds" if utc.microsecond else "seconds"
    return utc.isoformat(sep=" ", timespec=digits) + ("Z" if moment.tzinfo else "")


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
    more = [f"... {len(parts) - _LONGEST_LIST:,} more"] if len(parts) > _LONGEST_LIST else []
    return f"[{', '.join([*parts[:_LONGEST_LIST], *more])}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def _below(path: str, base: str) -> str:
    """The path from its base on, however the two are spelt; the whole path where it is elsewhere."""
    inside = f"{normalize(base)}/"
    known = normalize(path)
    return known[len(inside) :] if base and known.startswith(inside) else path


def _middle_out(path: str, longest: int) -> str:
    """A long path by its two ends, which tell files apart."""
    head = (longest - 1) // 2
    return path if len(path) <= longest else f"{path[:head]}…{path[1 + head - longest :]}"


def _printable(text: str) -> str:
    """The text with what could move a terminal's cursor written as escapes."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


# -- progress -------------------------------------------------------------------------------------------------------


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A moving line on stderr while something takes its time; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    # A descriptor of its own: the session's start sends the process's stderr elsewhere for a while.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal, Status(text, console=Console(file=terminal)):
        yield
