"""Pieces of SVG documents. All texts are escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def document(parts: Iterable[str], width: float, height: float, **attributes: str) -> str:
    """Return an SVG document of a size in pixels, that scales with the attribute `viewBox`."""
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}", "viewBox": f"0 0 {width:.0f} {height:.0f}"}
    return f'<svg xmlns="http://www.w3.org/2000/svg"{_attributes(size | attributes)}>{"".join(parts)}</svg>'


def rect(x: float, y: float, width: float, height: float, title: str = "", **attributes: str) -> str:
    """Return a rectangle; its title is shown while a pointer is on it."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    return f"<rect{_attributes(place | attributes)}>{_title(title)}</rect>"


def text(x: float, y: float, content: str, title: str = "", **attributes: str) -> str:
    """Return a line of text."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    return f"<text{_attributes(place | attributes)}>{_title(title)}{escape(content)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, **attributes: str) -> str:
    """Return a straight line."""
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return f"<line{_attributes(ends | attributes)}/>"


def path(commands: str, **attributes: str) -> str:
    """Return a path."""
    return f"<path{_attributes({'d': commands} | attributes)}/>"


def _title(title: str) -> str:
    return f"<title>{escape(title)}</title>" if title else ""


def _attributes(values: dict[str, str]) -> str:
    """Return attributes; their names have a dash for an underscore, but for one at their end (`class_`)."""
    return "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in values.items())
