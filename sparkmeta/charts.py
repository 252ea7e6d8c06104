"""Charts as SVG: bars, sizes, overlaps and times.

Charts have no style sheet, script or id, so that several may share a page. Texts and lines have the colour of the text
around the chart. Bars are blue or orange: both stand out from light and dark backgrounds, and they differ for every
kind of colour blindness. All texts are made printable and escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

from sparkmeta.text import byte_size, middle_out, printable

BLUE, ORANGE = "#3f87b9", "#d07b22"

_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, sans-serif"
# A picture that is an image or a file does not see the text around it.
_ALONE = "color:#1f2328;background:#ffffff"
_FIELD = {"fill_opacity": ".08"}
_TICK = {"font_size": "11", "fill_opacity": ".75"}
_GRID, _AXIS = ({"stroke": "currentColor", "stroke_opacity": opacity} for opacity in (".15", ".6"))
_GOAL = {"stroke": "currentColor", "stroke_dasharray": "3 3"}


# -- Pieces of SVG ----------------------------------------------------------------------------------------------------


def document(parts: Iterable[str], width: float, height: float, style: str = "", **attributes: str) -> str:
    """Return an SVG document of a size in pixels, that scales with the attribute `viewBox`."""
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}", "viewBox": f"0 0 {width:.0f} {height:.0f}"}
    values = size | ({"style": style} if style else {}) | attributes
    return f'<svg xmlns="http://www.w3.org/2000/svg"{_attributes(values)}>{"".join(parts)}</svg>'


def rect(x: float, y: float, width: float, height: float, title: str = "", **attributes: str) -> str:
    """Return a rectangle; its title is shown while a pointer is on it."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    return f"<rect{_attributes(place | attributes)}>{_title(title)}</rect>"


def text(x: float, y: float, content: str, title: str = "", **attributes: str) -> str:
    """Return a line of text."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    return f"<text{_attributes(place | attributes)}>{_title(title)}{escape(printable(content))}</text>"


def line(x1: float, y1: float, x2: float, y2: float, **attributes: str) -> str:
    """Return a straight line."""
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return f"<line{_attributes(ends | attributes)}/>"


def path(commands: str, **attributes: str) -> str:
    """Return a path."""
    return f"<path{_attributes({'d': commands} | attributes)}/>"


def _title(title: str) -> str:
    return f"<title>{escape(printable(title))}</title>" if title else ""


def _attributes(values: dict[str, str]) -> str:
    """Return attributes. An underscore in a name becomes a dash."""
    return "".join(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in values.items())


def figure(title: str, note: str, picture: str) -> str:
    """Return a picture with a title and a note as HTML for a notebook."""
    texts = f"<b>{escape(printable(title[:300]))}</b><br>{escape(printable(note[:300]))}"
    return f'<figure style="margin:0"><figcaption>{texts}</figcaption>{picture}</figure>'


def standalone(picture: str) -> str:
    """Return a chart with colours of its own, for a file or an image."""
    return picture.replace('style="', f'style="{_ALONE};', 1)


# -- Charts -----------------------------------------------------------------------------------------------------------


WIDTH = 560
_TOP, _RIGHT, _PLOT = 14, 16, 150
_WIDE_RIGHT = 28
_ROW, _GAP, _MOST_LABELS = 22, 10, 240
# The mean width of a character in wide fonts.
_CHARACTER = 7.4
_TICKS = 4
_MOST_MAP_HEIGHT, _MOST_BAR = 190, 10
# Milliseconds of a part of a time -> the length of times that end with this part.
_TIME_LENGTHS = (
    (86_400_000, len("2026-01-31")),
    (60_000, len("2026-01-31 12:00")),
    (1000, len("2026-01-31 12:00:00")),
    (0, len("2026-01-31 12:00:00.000")),
)
# The last one that a date can have.
_LAST_SECOND = 253_402_300_799
# Files below this size share a bar.
_LEAST_EXPONENT = 10


@dataclass(frozen=True)
class Row:
    """A row of horizontal bars.

    Attributes:
        text: the text behind the bar.
        title: the text that is shown while a pointer is on the bar.
        marked: whether the bar is orange.
        start: the value at which the bar starts.
        gap: whether there is some space above the row.
    """

    label: str
    value: float
    text: str
    title: str = ""
    marked: bool = False
    start: float = 0.0
    gap: bool = False


@dataclass(frozen=True)
class Span:
    """A bar in a map of overlaps.

    Attributes:
        start: its start in the order, from 0 to 1.
        end: its end in the order, from 0 to 1.
        row: the row of the map that has the bar.
        marked: the share of the bar that is orange, from 0 to 1.
        title: the text that is shown while a pointer is on the bar.
    """

    start: float
    end: float
    row: int
    marked: float = 0.0
    title: str = ""


@dataclass(frozen=True)
class Moment:
    """A snapshot in a chart of the history.

    Attributes:
        bytes: the bytes of its live files; None if its summary does not say.
        marked: whether its tick is orange.
        refs: the branches and tags that point to it.
    """

    timestamp_ms: int
    files: int | None
    bytes: int | None
    marked: bool = False
    refs: tuple[str, ...] = ()


def row_bars(rows: Sequence[Row], longest: float, name: str, goal: tuple[float, str] | None = None) -> str:
    """Draw values as horizontal bars.

    Args:
        longest: the value at the end of the rows.
        name: the name of the picture.
        goal: a value that is drawn as a line, and its label.
    """
    texts = _CHARACTER * max((len(row.text) for row in rows), default=0) + 10
    labels = min(_MOST_LABELS, _CHARACTER * max((len(row.label) for row in rows), default=0) + 14)
    space = WIDTH - labels - _RIGHT - texts
    top = y = _TOP + (14 if goal else 0)
    parts = []
    for row in rows:
        y += _GAP * row.gap
        start, width = (space * min(1.0, value / longest) if longest else 0.0 for value in (row.start, row.value))
        colour = ORANGE if row.marked else BLUE
        parts.append(text(labels - 8, y + 11, middle_out(row.label, 31), row.label, text_anchor="end"))
        parts.append(rect(labels, y + 1, space, 12, rx="2", **_FIELD))
        if width:
            # Otherwise a bar of few items among millions is not seen.
            width = max(width, 1.0)
            start = min(start, space - width)
            parts.append(rect(labels + start, y + 1, width, 12, row.title, fill=colour, rx="2"))
        parts.append(text(WIDTH - _RIGHT, y + 11, row.text, text_anchor="end"))
        y += _ROW
    if goal is not None and longest:
        x = labels + space * min(1.0, goal[0] / longest)
        parts.append(line(x, top - 6, x, y - 4, **_GOAL))
        parts.append(text(x, top - 10, goal[1], text_anchor="middle", **_TICK))
    return _chart(parts, y + 4, name)


def size_columns(sizes: Sequence[tuple[int, int, int]], small_bytes: int, target_bytes: int) -> str:
    """Draw the number of files by size, in powers of two, with the target size. Small files are orange."""
    counts: dict[int, tuple[int, int]] = {}
    for exponent, files, size in sizes:
        place = max(exponent, _LEAST_EXPONENT)
        before = counts.get(place, (0, 0))
        counts[place] = (before[0] + files, before[1] + size)
    target = max(target_bytes.bit_length() - 1, _LEAST_EXPONENT)
    first, last = min([*counts, target]), max([*counts, target])
    top, ticks = _ticks(max((files for files, _ in counts.values()), default=1))
    left = _left(ticks, _number)
    step = (WIDTH - left - _WIDE_RIGHT) / (last - first + 1)
    parts = _grid(left, ticks, top, _number)
    for exponent, (files, size) in sorted(counts.items()):
        height = max(_PLOT * files / top, 1.0)
        colour = ORANGE if 1 << (exponent + 1) <= small_bytes else BLUE
        span = f"{_edge(exponent)} to {_edge(exponent + 1)}" if exponent > _LEAST_EXPONENT else "less than 2 KiB"
        title = f"{span}: {files:,} files, {byte_size(size)}"
        x = left + (exponent - first) * step
        parts.append(rect(x + 1, _TOP + _PLOT - height, max(step - 2, 1), height, title, fill=colour, rx="1.5"))
    every = max(1, round(58 / step))
    for exponent in range(first, last + 2):
        if (exponent - first) % every == 0:
            x = left + (exponent - first) * step
            label = _edge(exponent) if exponent > _LEAST_EXPONENT else "0"
            parts.append(text(x, _TOP + _PLOT + 17, label, text_anchor="middle", **_TICK))
    x = left + (min(target, last) - first) * step + step * (target_bytes / (1 << target) - 1 if target <= last else 0)
    parts.append(line(x, _TOP - 4, x, _TOP + _PLOT, **_GOAL))
    end = x > WIDTH / 2
    label = f"target {byte_size(target_bytes)}"
    parts.append(text(x + (-5 if end else 5), _TOP + 6, label, text_anchor="end" if end else "start", **_TICK))
    return _chart(parts, _TOP + _PLOT + 26, "Data files by size")


def overlap_map(spans: Sequence[Span], name: str) -> str:
    """Draw ranges as bars in their order. Bars above each other overlap."""
    rows = max((span.row for span in spans), default=0) + 1
    pitch = min(_MOST_BAR + 3, _MOST_MAP_HEIGHT / rows)
    height = max(pitch * rows, 24)
    space = WIDTH - 2 * _RIGHT
    parts = [rect(_RIGHT - 6, _TOP - 6, space + 12, height + 12, rx="4", **_FIELD)]
    thick = max(pitch - min(3, pitch / 4), 0.8)
    for span in spans:
        width = max(2.0, (span.end - span.start) * space - 1)
        x, y = min(_RIGHT + span.start * space, _RIGHT + space - width), _TOP + span.row * pitch
        marked = width * span.marked
        if marked < width:
            parts.append(rect(x, y, width - marked, thick, span.title, fill=BLUE))
        if marked:
            parts.append(rect(x + width - marked, y, marked, thick, span.title, fill=ORANGE))
    parts.append(text(_RIGHT, _TOP + height + 22, "first values", **_TICK))
    parts.append(text(WIDTH - _RIGHT, _TOP + height + 22, "last values", text_anchor="end", **_TICK))
    return _chart(parts, _TOP + height + 30, name)


def timeline(moments: Sequence[Moment]) -> str:
    """Draw the bytes of live files, or else their number, at each snapshot over time, and where branches and tags are.

    Args:
        moments: the snapshots by time, at least one.
    """
    by_bytes = all(moment.bytes is not None for moment in moments)
    show = byte_size if by_bytes else _number
    values = [(moment.bytes if by_bytes else moment.files) or 0 for moment in moments]
    top, ticks = _ticks(max([*values, 1]), 1024 if by_bytes else 1000)
    left = _left(ticks, show)
    begin, end = moments[0].timestamp_ms, moments[-1].timestamp_ms
    space = WIDTH - left - _RIGHT

    def place(moment: Moment) -> float:
        return left + (space * (moment.timestamp_ms - begin) / (end - begin) if end > begin else space)

    heights = [_TOP + _PLOT * (1 - value / top) for value in values]
    parts = _grid(left, ticks, top, show)
    commands = f"M{place(moments[0]):.1f} {heights[0]:.1f}"
    for (_, moment), height in zip(pairwise(moments), heights[1:], strict=True):
        commands += f"H{place(moment):.1f}V{height:.1f}"
    bottom = _TOP + _PLOT
    parts.append(path(f"{commands}V{bottom}H{place(moments[0]):.1f}Z", fill=BLUE, fill_opacity=".2"))
    parts.append(path(commands, fill="none", stroke=BLUE, stroke_width="1.8", stroke_linejoin="round"))
    for moment, value in zip(moments, values, strict=True):
        title = f"{_time(moment.timestamp_ms)}: {show(value)}{', expires' if moment.marked else ''}"
        parts.append(rect(place(moment) - 1, bottom + 3, 2, 8, title, fill=ORANGE if moment.marked else BLUE))
    times = [begin, (begin + end) // 2, end] if end - begin > 2 else [begin, end]
    anchors = {begin: "start", end: "end"}
    for time, label in zip(times, _time_labels(times), strict=True):
        x = left + (space * (time - begin) / (end - begin) if end > begin else space)
        if label:
            parts.append(text(x, bottom + 26, label, text_anchor=anchors.get(time, "middle"), **_TICK))
    flags, height = _flags([(place(moment), ref) for moment in moments for ref in moment.refs], bottom + 34)
    return _chart([*parts, *flags], height, "Live data files over time")


def sparkline(values: Sequence[float | None], name: str) -> str:
    """Draw values in their order as a small line from zero to the largest, with a dot at the last. Nulls are gaps."""
    width, height, top = 150, 34, max((value for value in values if value is not None), default=0) or 1
    step = (width - 8) / max(len(values) - 1, 1)
    points = [(4 + place * step, height - 4 - (height - 8) * value / top)
              for place, value in enumerate(values) if value is not None]  # fmt: skip
    breaks = [place == 0 or values[place - 1] is None for place, value in enumerate(values) if value is not None]
    commands = "".join(
        f"{'M' if begins else 'L'}{x:.1f} {y:.1f}" for (x, y), begins in zip(points, breaks, strict=True)
    )
    parts = [line(4, height - 4, width - 4, height - 4, **_GRID)]
    if points:
        parts.append(path(commands, fill="none", stroke=BLUE, stroke_width="1.8", stroke_linejoin="round"))
        x, y = points[-1]
        parts.append(rect(x - 2, y - 2, 4, 4, fill=BLUE, rx="2"))
    return document(parts, width, height, role="img", aria_label=name, fill="currentColor")


_MOST_FLAGS, _FLAG = 5, 15


def _flags(refs: Sequence[tuple[float, str]], top: float) -> tuple[list[str], float]:
    """Draw the names of branches and tags below a chart, and return the height below them.

    Args:
        refs: the x coordinate of each, in ascending order, and its name.
    """
    ends: list[float] = []
    parts, left_out = [], 0
    for x, name in refs:
        label = middle_out(name, 28)
        width = 6.4 * len(label) + 14
        begin = x if x + width <= WIDTH else x - width
        row = next((row for row, end in enumerate(ends) if end <= begin), len(ends))
        if row == _MOST_FLAGS:
            left_out += 1
            continue
        ends[row : row + 1] = [begin + width]
        y = top + row * _FLAG
        away = 1 if begin == x else -1
        parts.append(path(f"M{x:.1f} {y + 9:.1f}l-3 -6h6z", fill=BLUE))
        anchor = "start" if away > 0 else "end"
        parts.append(text(x + 6 * away, y + 10, label, name, text_anchor=anchor, **_TICK))
    y = top + len(ends) * _FLAG
    if left_out:
        parts.append(text(WIDTH - _RIGHT, y + 10, f"and {left_out:,} more", text_anchor="end", **_TICK))
        y += _FLAG
    return parts, y + (4 if parts else 0)


# -- Parts of charts --------------------------------------------------------------------------------------------------


def _chart(parts: Sequence[str], height: float, name: str) -> str:
    style = "max-width:100%;height:auto;font-variant-numeric:tabular-nums"
    looks = {"fill": "currentColor", "font_family": _FONT, "font_size": "12"}
    return document(parts, WIDTH, height, style, role="img", aria_label=name, **looks)


def _grid(left: float, ticks: Sequence[float], top: float, show: Callable[[float], str]) -> list[str]:
    parts = []
    for tick in ticks:
        y = _TOP + _PLOT * (1 - tick / top)
        parts.append(line(left, y, WIDTH - _RIGHT, y, **(_GRID if tick else _AXIS)))
        parts.append(text(left - 7, y + 4, show(tick), text_anchor="end", **_TICK))
    return parts


def _left(ticks: Sequence[float], show: Callable[[float], str]) -> float:
    return 6.6 * max(len(show(tick)) for tick in ticks) + 14


def _ticks(largest: float, base: int = 1000) -> tuple[float, list[float]]:
    """Return the end of an axis from zero, and round values on it."""
    unit = 1
    while largest / unit >= base:
        unit *= base
    step = next(
        size * unit for size in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000) if size * unit * _TICKS >= largest
    )
    count = max(1, -int(-largest // step))
    return float(step * count), [float(step * place) for place in range(count + 1)]


def _number(value: float) -> str:
    for unit, name in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _edge(exponent: int) -> str:
    return byte_size(1 << exponent).replace(".0 ", " ")


def _time(timestamp_ms: int, length: int = len("2026-01-31 12:00")) -> str:
    """Format a time. The length says to which part of it."""
    bounded = min(max(timestamp_ms, 0), _LAST_SECOND * 1000)
    shown = datetime.fromtimestamp(bounded // 1000, UTC).replace(microsecond=bounded % 1000 * 1000)
    return shown.strftime("%Y-%m-%d %H:%M:%S.%f")[:length]


def _time_labels(times: Sequence[int]) -> list[str]:
    """Return labels of ascending times, as exact as needed to tell them apart. The label of a repetition is empty."""
    span = times[-1] - times[0]
    length = next(length for step, length in _TIME_LENGTHS if span >= len(times) * step)
    labels = [_time(time, length) if span else _time(time) for time in times]
    return [label if label not in labels[place + 1 :] else "" for place, label in enumerate(labels)]
