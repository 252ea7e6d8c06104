"""The pictures of a health report as SVG, which takes its colours from the classes of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from sparkmeta.health.history import SnapshotPoint
from sparkmeta.health.overlap_bars import PlacedBar
from sparkmeta.inspect import svg
from sparkmeta.inspect.units import byte_size

WIDTH = 560
_TOP, _RIGHT, _PLOT = 14, 16, 170
_WIDE_RIGHT = 28
_ROW, _MOST_LABELS = 22, 222
_TICKS = 4
_MOST_MAP_HEIGHT, _MOST_BAR = 190, 10
# Files below this size share a bar.
_LEAST_EXPONENT = 10


@dataclass(frozen=True)
class Row:
    """A row of horizontal bars.

    Attributes:
        text: what is written behind the bar.
        title: what is shown while a pointer is on it.
        marked: whether it has the colour of findings.
    """

    label: str
    value: float
    text: str
    title: str = ""
    marked: bool = False


def size_bars(sizes: Sequence[tuple[int, int, int]], small_bytes: int, target_bytes: int) -> str:
    """Draw the number of files by size, in powers of two, with the target size. Small files are marked."""
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
        height = _PLOT * files / top
        kind = "mark" if 1 << (exponent + 1) <= small_bytes else "bar"
        span = f"{_edge(exponent)} to {_edge(exponent + 1)}" if exponent > _LEAST_EXPONENT else "less than 2 KiB"
        title = f"{span}: {files:,} files, {byte_size(size)}"
        x = left + (exponent - first) * step
        parts.append(svg.rect(x + 1, _TOP + _PLOT - height, max(step - 2, 1), height, title, class_=kind, rx="1.5"))
    every = max(1, round(58 / step))
    for exponent in range(first, last + 2):
        if (exponent - first) % every == 0:
            x = left + (exponent - first) * step
            label = _edge(exponent) if exponent > _LEAST_EXPONENT else "0"
            parts.append(svg.text(x, _TOP + _PLOT + 17, label, class_="tick", text_anchor="middle"))
    x = left + (min(target, last) - first) * step + step * (target_bytes / (1 << target) - 1 if target <= last else 0)
    parts.append(svg.line(x, _TOP - 4, x, _TOP + _PLOT, class_="goal"))
    end = x > WIDTH / 2
    parts.append(svg.text(x + (-5 if end else 5), _TOP + 6, f"target {byte_size(target_bytes)}", class_="note",
                          text_anchor="end" if end else "start"))  # fmt: skip
    return _figure(parts, _TOP + _PLOT + 26, "Data files by size")


def overlap_map(bars: Sequence[PlacedBar]) -> str:
    """Draw manifests as bars in the order of the clustering columns; those that overlap are above each other."""
    rows = max((bar.row for bar in bars), default=0) + 1
    pitch = min(_MOST_BAR + 3, _MOST_MAP_HEIGHT / rows)
    height = max(pitch * rows, 24)
    space = WIDTH - 2 * _RIGHT
    parts = [svg.rect(_RIGHT - 6, _TOP - 6, space + 12, height + 12, class_="field", rx="4")]
    for bar in bars:
        width = max(2.0, (bar.end - bar.start) * space - 1)
        x = min(_RIGHT + bar.start * space, _RIGHT + space - width)
        kind = "bar" if bar.row == 0 else "mark"
        parts.append(svg.rect(x, _TOP + bar.row * pitch, width, max(pitch - min(3, pitch / 4), 0.8), class_=kind))
    parts.append(svg.text(_RIGHT, _TOP + height + 22, "first values", class_="tick"))
    parts.append(svg.text(WIDTH - _RIGHT, _TOP + height + 22, "last values", class_="tick", text_anchor="end"))
    return _figure(parts, _TOP + height + 30, "Overlapping manifests")


def row_bars(rows: Sequence[Row], longest: float, name: str, goal: tuple[float, str] | None = None) -> str:
    """Draw values as horizontal bars from zero.

    Args:
        longest: the value of a bar of full length.
        name: the name of the picture.
        goal: a value that is drawn as a line, and its label.
    """
    texts = 7.0 * max((len(row.text) for row in rows), default=0) + 10
    labels = min(_MOST_LABELS, 7.0 * max((len(row.label) for row in rows), default=0) + 14)
    space = WIDTH - labels - _RIGHT - texts
    top = _TOP + (14 if goal else 0)
    parts = []
    for place, row in enumerate(rows):
        y = top + place * _ROW
        width = space * min(1.0, row.value / longest) if longest else 0.0
        parts.append(svg.text(labels - 8, y + 11, _cut(row.label), row.label, class_="label", text_anchor="end"))
        parts.append(svg.rect(labels, y + 1, space, 12, class_="field", rx="2"))
        parts.append(svg.rect(labels, y + 1, width, 12, row.title, class_="mark" if row.marked else "bar", rx="2"))
        parts.append(svg.text(WIDTH - _RIGHT, y + 11, row.text, class_="value", text_anchor="end"))
    if goal is not None and longest:
        x = labels + space * min(1.0, goal[0] / longest)
        parts.append(svg.line(x, top - 6, x, top + len(rows) * _ROW - 4, class_="goal"))
        parts.append(svg.text(x, top - 10, goal[1], class_="note", text_anchor="middle"))
    return _figure(parts, top + len(rows) * _ROW + 4, name)


def snapshot_line(points: Sequence[SnapshotPoint]) -> str:
    """Draw the bytes of live files, or else their number, at each snapshot over time. Expiring ones are marked."""
    by_bytes = all(point.bytes is not None for point in points)
    show = byte_size if by_bytes else _number
    values = [(point.bytes if by_bytes else point.files) or 0 for point in points]
    top, ticks = _ticks(max([*values, 1]), 1024 if by_bytes else 1000)
    left = _left(ticks, show)
    begin, end = points[0].timestamp_ms, points[-1].timestamp_ms
    space = WIDTH - left - _RIGHT

    def place(point: SnapshotPoint) -> float:
        return left + (space * (point.timestamp_ms - begin) / (end - begin) if end > begin else space)

    heights = [_TOP + _PLOT * (1 - value / top) for value in values]
    parts = _grid(left, ticks, top, show)
    commands = f"M{place(points[0]):.1f} {heights[0]:.1f}"
    for (_, point), height in zip(pairwise(points), heights[1:], strict=True):
        commands += f"H{place(point):.1f}V{height:.1f}"
    parts.append(svg.path(f"{commands}V{_TOP + _PLOT}H{place(points[0]):.1f}Z", class_="area"))
    parts.append(svg.path(commands, class_="line"))
    for point, value in zip(points, values, strict=True):
        what = "expires" if point.expires else "stays"
        title = f"{_time(point.timestamp_ms)}: {show(value)}, {what}"
        kind = "mark" if point.expires else "bar"
        parts.append(svg.rect(place(point) - 1, _TOP + _PLOT + 3, 2, 8, title, class_=kind))
    days = [("start", left, begin), ("end", WIDTH - _RIGHT, end)]
    if end - begin > 2:
        days.insert(1, ("middle", left + space / 2, (begin + end) // 2))
    for anchor, x, moment in days if end > begin else days[-1:]:
        parts.append(svg.text(x, _TOP + _PLOT + 26, _time(moment), class_="tick", text_anchor=anchor))
    return _figure(parts, _TOP + _PLOT + 34, "Live data files over time")


# -- parts of pictures ------------------------------------------------------------------------------------------------


def _figure(parts: Sequence[str], height: float, name: str) -> str:
    return svg.document(parts, WIDTH, height, role="img", aria_label=name)


def _grid(left: float, ticks: Sequence[float], top: float, show: Callable[[float], str]) -> list[str]:
    parts = []
    for tick in ticks:
        y = _TOP + _PLOT * (1 - tick / top)
        parts.append(svg.line(left, y, WIDTH - _RIGHT, y, class_="axis" if not tick else "grid"))
        parts.append(svg.text(left - 7, y + 4, show(tick), class_="tick", text_anchor="end"))
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


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _cut(label: str) -> str:
    return label if len(label) <= 31 else f"{label[:15]}…{label[-15:]}"
