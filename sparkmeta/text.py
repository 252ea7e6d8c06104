"""Format numbers and texts of metadata for people."""

from __future__ import annotations

import unicodedata
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField, SortOrder

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_size(count: float) -> str:
    """Format a number of bytes, such as 1536 as 1.5 KiB."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count:.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """Format a number with a noun, such as `1 file` or `2,000 files`. The plural of the noun ends in s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def partition_terms(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the fields of a partition spec as terms, such as `day(ts)`."""
    return [f"{field.transform}({_source_names(field, schema)})" for field in spec.fields]


def _source_names(field: PartitionField | SortField, schema: Schema) -> str:
    # Only the transforms in spec/transforms.py may have several sources.
    sources = getattr(field.transform, "sources", ()) or (field.source_id,)
    return ", ".join(schema.find_column_name(source) or str(source) for source in sources)


def sort_terms(order: SortOrder, schema: Schema) -> list[str]:
    """Return the fields of a sort order as terms, such as `ts DESC NULLS LAST`."""
    terms = []
    for field in order.fields:
        name = _source_names(field, schema)
        column = name if str(field.transform) == "identity" else f"{field.transform}({name})"
        terms.append(f"{column} {field.direction.name} {field.null_order.name.replace('_', ' ')}")
    return terms


def fact_table(caption: str, facts: Mapping[str, object]) -> str:
    """Return an HTML table of values by their names, each cut to 300 characters."""
    left = 'style="text-align:left;padding:2px 8px"'  # notebooks align cells to the right
    cells = ((name, escape(printable(str(value)[:300]))) for name, value in facts.items())
    rows = "".join(f"<tr><th {left}>{name}</th><td {left}>{value}</td></tr>" for name, value in cells)
    return f"<table><caption>{escape(printable(caption[:300]))}</caption>{rows}</table>"


def code(shown: object) -> str:
    """Return an object's `repr` as HTML, cut to 500 characters."""
    return f"<code>{escape(printable(repr(shown)[:500]))}</code>"


def printable(text: str) -> str:
    """Escape characters that could move the cursor or change the writing direction."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Escape a text as `printable` does, but for the ends of its lines."""
    return "\n".join(map(printable, text.split("\n")))


def columns(text: str) -> int:
    """Return the number of columns that a text takes in a fixed-width font."""
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def middle_out(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns in the middle, since the ends distinguish files."""
    if columns(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{_prefix(text, width - 1 - half)}…{_prefix(text[::-1], half)[::-1]}"


def _prefix(text: str, width: int) -> str:
    """Return the longest prefix of a text that fits into `width` columns."""
    prefix_width = 0
    for index, char in enumerate(text):
        prefix_width += _columns(char)
        if prefix_width > width:
            return text[:index]
    return text
