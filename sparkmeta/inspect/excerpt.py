"""The excerpt of a metadata tree that a drawing shows, and its form as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.storage.location import file_name
from sparkmeta.text import columns, middle_out, printable

# -- The excerpt of a tree --------------------------------------------------------------------------------------------
# Text in metadata can't be trusted: this module makes names printable, and the drawings escape them.


KINDS = {
    ContentType.DATA: "data file",
    ContentType.POSITION_DELETES: "position deletes",
    ContentType.EQUALITY_DELETES: "equality deletes",
    ContentType.DATA_MANIFEST: "data manifest",
    ContentType.DELETE_MANIFEST: "delete manifest",
    ContentType.MANIFEST_DELETION_VECTOR: "manifest DV",
}
_PLURALS = {kind: name if name.endswith("deletes") else f"{name}s" for kind, name in KINDS.items()}
_LONGEST_LOCATION = 300


@dataclass(frozen=True)
class Entry:
    """An entry of a manifest to draw.

    Attributes:
        ordinal: its ordinal in the manifest.
        label: its short name in the drawing; empty for a file, which is shown by its file name.
        notes: facts about it.
        refers: the location of the file or manifest that it refers to.
        masked_by: labels of the deletion vectors that mask it.
    """

    kind: ContentType
    status: Status
    ordinal: int
    location: str = ""
    label: str = ""
    notes: tuple[str, ...] = ()
    refers: str | None = None
    masked_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.label or self.file

    @property
    def what(self) -> str:
        """The kind in words."""
        if self.kind == ContentType.POSITION_DELETES and self.label:
            return "deletion vector"
        return KINDS[self.kind]

    @cached_property
    def file(self) -> str:
        """The name of the file without its folders."""
        return printable(file_name(self.location)) if self.location else ""

    @property
    def is_leaf(self) -> bool:
        return self.kind in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)

    @property
    def where(self) -> str:
        """The full location, for tooltips."""
        text = printable(self.location[:_LONGEST_LOCATION])
        return text if len(self.location) <= _LONGEST_LOCATION else f"{text}…"


@dataclass(frozen=True)
class Node:
    """An entry of the root and, for a manifest, some of its entries.

    Attributes:
        left_out: a line about the manifest's other entries.
    """

    entry: Entry
    rows: tuple[Entry, ...] = ()
    left_out: str = ""


@dataclass(frozen=True)
class Excerpt:
    """The part of a snapshot's metadata tree to draw.

    Attributes:
        title: a line about the snapshot.
        root: "root manifest" or "manifest list"; empty for a table without snapshots.
        location: the location of the root.
        entries: the number of its entries.
        nodes: the entries to draw, in the root's order.
        left_out: a line about the others, for each kind.
    """

    title: str
    root: str = ""
    location: str = ""
    entries: int = 0
    nodes: tuple[Node, ...] = ()
    left_out: tuple[str, ...] = ()


def counted(kinds: Iterable[tuple[ContentType, Status]]) -> tuple[str, ...]:
    """Describe omitted entries, in a line for each kind: `9,992 more data manifests: 2 added, 9,990 existing`."""
    by_kind: dict[ContentType, Counter[Status]] = {}
    for kind, status in kinds:
        by_kind.setdefault(kind, Counter())[status] += 1
    return tuple(
        f"{sum(counts.values()):,} more {_named(kind, sum(counts.values()))}: {_by_status(counts)}"
        for kind, counts in sorted(by_kind.items(), key=lambda item: _ORDER.index(item[0]))
    )


_ORDER = (
    ContentType.DATA_MANIFEST,
    ContentType.DELETE_MANIFEST,
    ContentType.MANIFEST_DELETION_VECTOR,
    ContentType.DATA,
    ContentType.EQUALITY_DELETES,
    ContentType.POSITION_DELETES,
)


def _named(kind: ContentType, count: int) -> str:
    return KINDS[kind] if count == 1 else _PLURALS[kind]


def _by_status(counts: Counter[Status]) -> str:
    return ", ".join(
        f"{counts[status]:,} {status.name.lower()}"
        for status in (Status.ADDED, Status.EXISTING, Status.DELETED)
        if counts[status]
    )


# -- Draw an excerpt as text ------------------------------------------------------------------------------------------


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
