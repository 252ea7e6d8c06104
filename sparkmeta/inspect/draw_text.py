"""Draw an excerpt as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkmeta.inspect.excerpt import columns, middle_out, printable
from sparkmeta.storage.location import file_name

if TYPE_CHECKING:
    from sparkmeta.inspect.excerpt import Entry, Excerpt, Node

_LONGEST_NAME = 48
_LONGEST_FILE = 40
_LAST, _OTHER = ("└─ ", "   "), ("├─ ", "│  ")


def text_of(excerpt: Excerpt) -> str:
    """Return the tree with a line for each entry, below its manifest."""
    if not excerpt.root:
        return excerpt.title
    name = middle_out(printable(file_name(excerpt.location)), _LONGEST_NAME)
    count = f"{excerpt.entries:,} {'entry' if excerpt.entries == 1 else 'entries'}"
    lines = [excerpt.title, f"{_LAST[0]}{excerpt.root} {name}: {count}".replace("  ", " ")]
    cells = _aligned([_root_cells(node.entry) for node in excerpt.nodes])
    items = [(cell, _below(node)) for cell, node in zip(cells, excerpt.nodes, strict=True)]
    items += [(f"… {line}", []) for line in excerpt.left_out]
    return "\n".join([*lines, *(f"{_LAST[1]}{line}" for line in _tree(items))])


def _tree(items: Sequence[tuple[str, list[str]]]) -> list[str]:
    lines = []
    for number, (line, below) in enumerate(items):
        first, rest = _LAST if number == len(items) - 1 else _OTHER
        lines += [f"{first}{line}".rstrip(), *(f"{rest}{line_below}" for line_below in below)]
    return lines


def _below(node: Node) -> list[str]:
    items: list[tuple[str, list[str]]] = [(line, []) for line in _aligned([_row_cells(row) for row in node.rows])]
    if node.left_out:
        items.append((f"… {node.left_out}", []))
    return _tree(items)


def _root_cells(entry: Entry) -> list[str]:
    file = f"({middle_out(entry.file, _LONGEST_FILE)})" if entry.label and entry.file else ""
    name = middle_out(entry.name, _LONGEST_NAME)
    return [name, entry.what, entry.status.name, "; ".join((*entry.notes, *([file] if file else [])))]


def _row_cells(entry: Entry) -> list[str]:
    masked = [f"masked by {', '.join(entry.masked_by)}"] if entry.masked_by else []
    return [
        f"{entry.ordinal:,}",
        middle_out(entry.name, _LONGEST_NAME),
        entry.what,
        entry.status.name,
        "; ".join((*entry.notes, *masked)),
    ]


def _aligned(rows: Sequence[list[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(columns(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
