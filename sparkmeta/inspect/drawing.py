"""Drawings of metadata trees for notebooks and `print`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

from sparkmeta.inspect.draw_svg import svg_of
from sparkmeta.inspect.draw_text import text_of
from sparkmeta.inspect.excerpt import Excerpt


@dataclass(frozen=True, repr=False)
class Drawing(Excerpt):
    """A drawing of the metadata tree of a snapshot."""

    @cached_property
    def text(self) -> str:
        """The tree as lines of text."""
        return text_of(self)

    @cached_property
    def svg(self) -> str:
        """The tree as an SVG document, in the style of the V4 proposal's figures."""
        return svg_of(self)

    def save(self, path: str | Path) -> None:
        """Write the drawing to a local file: text if its name ends with `.txt`, else SVG."""
        content = f"{self.text}\n" if str(path).endswith(".txt") else self.svg
        Path(path).write_text(content, encoding="utf-8")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Drawing({self.title}: {self.entries:,} entries)"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """Return the SVG in an element that scrolls if it is wider than the notebook."""
        return f'<div style="overflow-x: auto" title="{escape(self.title)}">{self.svg}</div>'
