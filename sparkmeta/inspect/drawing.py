"""What a drawing of a metadata tree shows, apart from how: a snapshot, its root, and an excerpt of what stands below.

All of it is text that anybody may have put into a table's metadata, so names are made printable here, and escaped where
they are drawn.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.storage.location import file_name

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
    """An entry of a manifest, as it is drawn.

    label: its short name in this drawing; empty for a file that goes by its own. ordinal: its row in its manifest.
    notes: facts about it. refers: the location of the file or manifest that it is about. masked_by: labels of the
    deletion vectors that take it out of its manifest. key: what `refers` of others names it by.
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
        """Its kind in words."""
        if self.kind == ContentType.POSITION_DELETES and self.label:
            return "deletion vector"
        return KINDS[self.kind]

    @cached_property
    def file(self) -> str:
        """The name of its file, without the folders."""
        return printable(file_name(self.location)) if self.location else ""

    @property
    def is_leaf(self) -> bool:
        return self.kind in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)

    @property
    def where(self) -> str:
        """The whole location, for a reader who wants to find it."""
        text = printable(self.location[:_LONGEST_LOCATION])
        return text if len(self.location) <= _LONGEST_LOCATION else f"{text}…"


@dataclass(frozen=True)
class Node:
    """An entry of the root and, of a manifest, some of its own entries. left_out: what of these is not drawn."""

    entry: Entry
    rows: tuple[Entry, ...] = ()
    left_out: str = ""


@dataclass(frozen=True, repr=False)
class Drawing:
    """The metadata tree of one snapshot, as a notebook shows it.

    title: the snapshot, in a line. root: what kind of file its tree hangs from, a root manifest or a manifest list;
    empty for a table without snapshot. nodes: the entries that are drawn, in the root's order. left_out: the others, a
    line for each kind.
    """

    title: str
    root: str = ""
    location: str = ""
    entries: int = 0
    nodes: tuple[Node, ...] = ()
    left_out: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """The tree as lines of text."""
        from sparkmeta.inspect.draw_text import text_of

        return text_of(self)

    @cached_property
    def svg(self) -> str:
        """The tree as an SVG document, in the manner of the V4 document's figures."""
        from sparkmeta.inspect.draw_svg import svg_of

        return svg_of(self)

    def save(self, path: str | Path) -> None:
        """Writes the drawing to a local file: text where its name ends with `.txt`, else SVG."""
        content = f"{self.text}\n" if str(path).endswith(".txt") else self.svg
        Path(path).write_text(content, encoding="utf-8")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Drawing({self.title}: {self.entries:,} entries)"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """The SVG, to be scrolled where it is wider than the notebook."""
        return f'<div style="overflow-x: auto" title="{escape(self.title)}">{self.svg}</div>'


def counted(kinds: Iterable[tuple[ContentType, Status]]) -> tuple[str, ...]:
    """Entries that are left out, a line for each kind: `9,992 more data manifests: 2 added, 9,990 existing`."""
    found: dict[ContentType, Counter[Status]] = {}
    for kind, status in kinds:
        found.setdefault(kind, Counter())[status] += 1
    return tuple(
        f"{sum(counts.values()):,} more {_named(kind, sum(counts.values()))}: {_by_status(counts)}"
        for kind, counts in sorted(found.items(), key=lambda one: _ORDER.index(one[0]))
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


def printable(text: str) -> str:
    """The text with what could move a cursor, or turn the direction of writing, as escapes."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def columns(text: str) -> int:
    """How many columns of a fixed-width font a text takes."""
    return sum(_columns(one) for one in text)


def _columns(one: str) -> int:
    if unicodedata.combining(one):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


def middle_out(text: str, most: int) -> str:
    """A text by its two ends, which tell files apart, in at most so many columns."""
    if columns(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{_taken(text, most - 1 - half)}…{_taken(text[::-1], half)[::-1]}"


def _taken(text: str, most: int) -> str:
    taken = 0
    for index, one in enumerate(text):
        taken += _columns(one)
        if taken > most:
            return text[:index]
    return text
