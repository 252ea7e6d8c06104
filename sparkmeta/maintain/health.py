"""The report of a table's health: its figures, pictures and page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.errors import ValidationError
from sparkmeta.inspect import draw_svg
from sparkmeta.inspect.text import byte_size, counted
from sparkmeta.maintain.health_findings import FINDINGS, Examination, Finding
from sparkmeta.maintain.health_measures import (
    EntryFigures,
    History,
    Layout,
    PlacedBar,
    SmallFileLimits,
    SnapshotPoint,
    measure_entries,
    measure_history,
    measure_layout,
    partition_text,
)
from sparkmeta.maintain.rewrite_position_deletes import DeleteRewriteOptions
from sparkmeta.progress import progress
from sparkmeta.session import local_frame
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.table_properties import number_property

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.maintain.health_findings import HealthOptions
    from sparkmeta.maintain.health_measures import PartitionFigures
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.state import TableState


@dataclass(frozen=True, repr=False)
class Examined:
    """A table in numbers, and the findings.

    Attributes:
        table: the table's name.
        state: the table's state that was examined.
        examined_at: the time of the examination.
        seconds: the duration of the examination.
        list_findings: the findings.
        limits: sizes and ratios beyond which there is a finding.
        entries: the live entries in numbers.
        layout: the manifests in numbers.
        history: the snapshots in numbers.
        list_bytes: the size of the manifest list or root.
    """

    table: str
    state: TableState = field(compare=False)
    metadata_location: str
    examined_at: datetime
    seconds: float
    list_findings: tuple[Finding, ...]
    limits: SmallFileLimits
    entries: EntryFigures
    layout: Layout
    history: History
    list_bytes: int

    @property
    def is_healthy(self) -> bool:
        """Whether there is no finding."""
        return not self.list_findings

    @property
    def headline(self) -> str:
        """The result in one line."""
        if self.is_healthy:
            return f"{self.table} is healthy: it needs no maintenance"
        return f"{self.table} needs maintenance: {counted(len(self.list_findings), 'finding')}"

    @cached_property
    def bytes_by_kind(self) -> dict[str, int]:
        """The bytes of the current snapshot's files and of the table's metadata, by kind of file."""
        return {
            "data files": self.entries.bytes,
            "deletes": self.entries.deletes.bytes,
            "data manifests": self.layout.data_bytes,
            "delete manifests": self.layout.delete_bytes,
            "manifest list" if self.state.tree is None else "root": self.list_bytes,
            "metadata JSON": self.history.metadata_json_bytes,
            "statistics": self.history.statistics_bytes,
        }


# -- The pictures of a health report as SVG ---------------------------------------------------------------------------
# Their colours come from the classes of the page.


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
        text: the text behind the bar.
        title: the text that is shown while a pointer is on the bar.
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
        parts.append(
            draw_svg.rect(x + 1, _TOP + _PLOT - height, max(step - 2, 1), height, title, class_=kind, rx="1.5")
        )
    every = max(1, round(58 / step))
    for exponent in range(first, last + 2):
        if (exponent - first) % every == 0:
            x = left + (exponent - first) * step
            label = _edge(exponent) if exponent > _LEAST_EXPONENT else "0"
            parts.append(draw_svg.text(x, _TOP + _PLOT + 17, label, class_="tick", text_anchor="middle"))
    x = left + (min(target, last) - first) * step + step * (target_bytes / (1 << target) - 1 if target <= last else 0)
    parts.append(draw_svg.line(x, _TOP - 4, x, _TOP + _PLOT, class_="goal"))
    end = x > WIDTH / 2
    parts.append(draw_svg.text(x + (-5 if end else 5), _TOP + 6, f"target {byte_size(target_bytes)}", class_="note",
                          text_anchor="end" if end else "start"))  # fmt: skip
    return _figure(parts, _TOP + _PLOT + 26, "Data files by size")


def overlap_map(bars: Sequence[PlacedBar]) -> str:
    """Draw manifests as bars in the order of the clustering columns. Overlapping manifests are above each other."""
    rows = max((bar.row for bar in bars), default=0) + 1
    pitch = min(_MOST_BAR + 3, _MOST_MAP_HEIGHT / rows)
    height = max(pitch * rows, 24)
    space = WIDTH - 2 * _RIGHT
    parts = [draw_svg.rect(_RIGHT - 6, _TOP - 6, space + 12, height + 12, class_="field", rx="4")]
    for bar in bars:
        width = max(2.0, (bar.end - bar.start) * space - 1)
        x = min(_RIGHT + bar.start * space, _RIGHT + space - width)
        kind = "bar" if bar.row == 0 else "mark"
        parts.append(draw_svg.rect(x, _TOP + bar.row * pitch, width, max(pitch - min(3, pitch / 4), 0.8), class_=kind))
    parts.append(draw_svg.text(_RIGHT, _TOP + height + 22, "first values", class_="tick"))
    parts.append(draw_svg.text(WIDTH - _RIGHT, _TOP + height + 22, "last values", class_="tick", text_anchor="end"))
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
        parts.append(draw_svg.text(labels - 8, y + 11, _cut(row.label), row.label, class_="label", text_anchor="end"))
        parts.append(draw_svg.rect(labels, y + 1, space, 12, class_="field", rx="2"))
        parts.append(draw_svg.rect(labels, y + 1, width, 12, row.title, class_="mark" if row.marked else "bar", rx="2"))
        parts.append(draw_svg.text(WIDTH - _RIGHT, y + 11, row.text, class_="value", text_anchor="end"))
    if goal is not None and longest:
        x = labels + space * min(1.0, goal[0] / longest)
        parts.append(draw_svg.line(x, top - 6, x, top + len(rows) * _ROW - 4, class_="goal"))
        parts.append(draw_svg.text(x, top - 10, goal[1], class_="note", text_anchor="middle"))
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
    parts.append(draw_svg.path(f"{commands}V{_TOP + _PLOT}H{place(points[0]):.1f}Z", class_="area"))
    parts.append(draw_svg.path(commands, class_="line"))
    for point, value in zip(points, values, strict=True):
        what = "expires" if point.expires else "stays"
        title = f"{_time(point.timestamp_ms)}: {show(value)}, {what}"
        kind = "mark" if point.expires else "bar"
        parts.append(draw_svg.rect(place(point) - 1, _TOP + _PLOT + 3, 2, 8, title, class_=kind))
    days = [("start", left, begin), ("end", WIDTH - _RIGHT, end)]
    if end - begin > 2:
        days.insert(1, ("middle", left + space / 2, (begin + end) // 2))
    for anchor, x, moment in days if end > begin else days[-1:]:
        parts.append(draw_svg.text(x, _TOP + _PLOT + 26, _time(moment), class_="tick", text_anchor=anchor))
    return _figure(parts, _TOP + _PLOT + 34, "Live data files over time")


# -- Parts of pictures ------------------------------------------------------------------------------------------------


def _figure(parts: Sequence[str], height: float, name: str) -> str:
    return draw_svg.document(parts, WIDTH, height, role="img", aria_label=name)


def _grid(left: float, ticks: Sequence[float], top: float, show: Callable[[float], str]) -> list[str]:
    parts = []
    for tick in ticks:
        y = _TOP + _PLOT * (1 - tick / top)
        parts.append(draw_svg.line(left, y, WIDTH - _RIGHT, y, class_="axis" if not tick else "grid"))
        parts.append(draw_svg.text(left - 7, y + 4, show(tick), class_="tick", text_anchor="end"))
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


# -- The page of a health report --------------------------------------------------------------------------------------
# It is one HTML document of bounded size, without scripts, links or other files.


_MOST_PAGE_DEPTHS = 12
# Maximum number of characters of a text from the table.
_LONGEST = 400

# Blue and orange differ for every kind of colour blindness, also in brightness.
_STYLE = """
.sm-health { --page: #f6f7f9; --panel: #ffffff; --ink: #1d2733; --soft: #5a6775; --rule: #dfe4ea; --field: #eef1f5;
  --bar: #3f7fae; --mark: #d9822b; --goal: #1d2733; --good: #2f7d5b; background: var(--page); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; padding: 24px; }
@media (prefers-color-scheme: dark) { .sm-health { --page: #12171d; --panel: #1a2129; --ink: #e4e9ef; --soft: #9aa7b5;
  --rule: #2d3743; --field: #232c36; --bar: #6aa9d8; --mark: #f0a04b; --goal: #e4e9ef; --good: #6cc39a; } }
.sm-health * { box-sizing: border-box; }
.sm-health main { max-width: 1240px; margin: 0 auto; }
.sm-health h1 { font-size: 22px; line-height: 1.3; margin: 0 0 2px; overflow-wrap: anywhere; }
.sm-health h2 { font-size: 15px; margin: 0 0 2px; }
.sm-health p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.sm-health .facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 12px;
  margin: 18px 0; }
.sm-health .facts div { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: 10px 14px; }
.sm-health .facts b { display: block; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; }
.sm-health .facts span { color: var(--soft); font-size: 12.5px; }
.sm-health section, .sm-health figure { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: 16px 18px; margin: 0 0 14px; }
.sm-health .finding { border-left: 4px solid var(--mark); }
.sm-health .healthy { border-left: 4px solid var(--good); }
.sm-health dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 8px 0 0; }
.sm-health dt { color: var(--soft); }
.sm-health dd { margin: 0; overflow-wrap: anywhere; }
.sm-health code { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--field);
  border-radius: 4px; padding: 1px 6px; overflow-wrap: anywhere; }
.sm-health .figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 14px;
  margin-top: 6px; }
.sm-health figure { margin: 0; min-width: 0; }
.sm-health figcaption p { font-size: 12.5px; margin-bottom: 8px; }
.sm-health svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", sans-serif; }
.sm-health svg .bar { fill: var(--bar); } .sm-health svg .mark { fill: var(--mark); }
.sm-health svg .field { fill: var(--field); }
.sm-health svg .tick, .sm-health svg .note { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.sm-health svg .label { fill: var(--ink); }
.sm-health svg .value { fill: var(--ink); font-variant-numeric: tabular-nums; }
.sm-health svg .grid { stroke: var(--rule); } .sm-health svg .axis { stroke: var(--soft); }
.sm-health svg .goal { stroke: var(--goal); stroke-dasharray: 3 3; }
.sm-health svg .area { fill: var(--bar); fill-opacity: .16; }
.sm-health svg .line { fill: none; stroke: var(--bar); stroke-width: 1.8; stroke-linejoin: round; }
.sm-health table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.sm-health th { text-align: left; color: var(--soft); font-weight: 500; font-size: 12.5px; }
.sm-health th, .sm-health td { padding: 4px 8px 4px 0; border-bottom: 1px solid var(--rule); text-align: left; }
.sm-health td.n, .sm-health th.n { text-align: right; }
"""


def page(report: Examined) -> str:
    """Return the whole document."""
    title = f"{report.table}: {'healthy' if report.is_healthy else counted(len(report.list_findings), 'finding')}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{_text(title)}</title></head>"
        f'<body style="margin: 0">{page_body(report)}</body></html>\n'
    )


def page_body(report: Examined) -> str:
    """Return the report as an element for a document or a notebook, with its own styles."""
    snapshot = report.state.snapshot
    of = f"snapshot {snapshot.snapshot_id}, " if snapshot else "no snapshot, "
    when = report.examined_at.strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f'<div class="sm-health"><style>{_STYLE}</style><main>',
        f"<h1>{_text(report.headline)}</h1>",
        f"<p>{_text(report.state.metadata.location)}</p>",
        f"<p>format version {report.state.metadata.format_version}, {of}examined {when} in {report.seconds:.1f} s</p>",
        f'<div class="facts">{"".join(_facts(report))}</div>',
        *(_finding(number, finding) for number, finding in enumerate(report.list_findings, 1)),
        *(['<section class="healthy"><h2>Nothing to do</h2><p>No threshold is exceeded.</p></section>']
          if report.is_healthy else []),
        f'<div class="figures">{"".join(_figures(report))}</div>',
        "</main></div>",
    ]  # fmt: skip
    return "".join(parts)


def _facts(report: Examined) -> Iterator[str]:
    entries, layout = report.entries, report.layout
    facts = {
        "data files": f"{entries.files:,}",
        "records": f"{entries.records:,}",
        "of data": byte_size(entries.bytes),
        "partitions": f"{entries.partitions:,}",
        "deletes": f"{entries.deletes.files:,}",
        "manifests": f"{layout.data_manifests + layout.delete_manifests:,}",
        "of manifests": byte_size(layout.data_bytes + layout.delete_bytes + report.list_bytes),
        "snapshots": f"{report.history.snapshots:,}",
    }
    for name, value in facts.items():
        yield f"<div><b>{value}</b><span>{name}</span></div>"


def _finding(number: int, finding: Finding) -> str:
    rows = {"costs": _text(finding.cost), "gains": _text(finding.gain)}
    rows |= {"call": f"<code>{_text(finding.call)}</code>"} if finding.call else {}
    rows |= {"command": f"<code>{_text(finding.command)}</code>"} if finding.command else {}
    described = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows.items())
    title = finding.finding.replace("_", " ")
    return (
        f'<section class="finding"><h2>{number}. {_text(title)}</h2><div>{_text(finding.problem)}</div>'
        f"<dl>{described}</dl></section>"
    )


# -- Pictures ---------------------------------------------------------------------------------------------------------


def _figures(report: Examined) -> Iterator[str]:
    entries, layout, limits = report.entries, report.layout, report.limits
    if entries.sizes:
        note = f"Data files by size in powers of two. Below {byte_size(limits.small_bytes)} they are small (orange)."
        yield _html_figure("Files by size", note, size_bars(entries.sizes, limits.small_bytes, limits.target_bytes))
    if layout.bars:
        drawn = f"{len(layout.bars):,} of {layout.mapped:,} data manifests" if len(layout.bars) < layout.mapped else (
            counted(layout.mapped, "data manifest"))  # fmt: skip
        note = f"{drawn} in the order of the partition fields. Those that overlap an earlier one are orange."
        yield _html_figure("Overlap of manifests", note, overlap_map(layout.bars))
    if entries.densest:
        partitions = counted(len(entries.densest), "partition")
        note = f"Rows deleted by deletes of single data files, in the {partitions} with the largest share."
        goal = (limits.max_deleted_ratio, f"{limits.max_deleted_ratio:.0%}")
        rows = [_dense(report, row) for row in entries.densest]
        yield _html_figure("Deleted rows by partition", note, row_bars(rows, 1.0, "Deleted rows by partition", goal))
    if entries.crowded:
        note = f"Files below {byte_size(limits.small_bytes)}, in the partitions with the most of them."
        rows = [
            Row(partition_text(report.state, row), row.small_files, f"{row.small_files:,}", _title(row), marked=True)
            for row in entries.crowded
        ]
        yield _html_figure("Small files by partition", note, row_bars(rows, rows[0].value, "Small files by partition"))
    if report.history.points:
        note = f"{counted(report.history.snapshots, 'snapshot')}; orange ticks expire by the table's properties."
        yield _html_figure("Snapshots over time", note, snapshot_line(report.history.points))
    yield _bytes(report)
    if layout.depths:
        yield _depths(report)


def _bytes(report: Examined) -> str:
    kinds = {kind: size for kind, size in report.bytes_by_kind.items() if kind != "data files"}
    rows = [Row(kind, size, byte_size(size)) for kind, size in kinds.items()]
    note = f"In addition to {byte_size(report.entries.bytes)} of data files, for the current snapshot."
    return _html_figure("Bytes by kind", note, row_bars(rows, max([*kinds.values(), 1]), "Bytes by kind"))


def _dense(report: Examined, row: PartitionFigures) -> Row:
    ratio = row.deleted_ratio
    title = f"{row.deleted:,} of {row.records:,} rows in {row.files:,} files"
    marked = ratio >= report.limits.max_deleted_ratio
    return Row(partition_text(report.state, row), ratio, f"{ratio:.1%}", title, marked)


def _title(row: PartitionFigures) -> str:
    return f"{row.files:,} files, {byte_size(row.bytes)}"


def _depths(report: Examined) -> str:
    depths = report.layout.depths
    names = ("field", "kind", "spec", "manifests", "mean", "most")
    rows = [
        (depth.name, depth.kind, depth.spec_id, f"{depth.manifests:,}", f"{depth.overlaps:,.1f}",
         f"{depth.most_overlaps:,}")
        for depth in depths[:_MOST_PAGE_DEPTHS]
    ]  # fmt: skip
    head = "".join(f"<th{_align(place)}>{name}</th>" for place, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{_align(place)}>{_text(str(cell))}</td>' for place, cell in enumerate(row))}</tr>"
        for row in rows
    )
    note = (
        f"How many others a data manifest overlaps{', of the first fields' if len(depths) > _MOST_PAGE_DEPTHS else ''}."
    )
    return _html_figure("Clustering depth", note, f"<table><tr>{head}</tr>{body}</table>")


def _align(place: int) -> str:
    """Return the class of a cell: the first two columns are text, the others numbers."""
    return ' class="n"' if place > 1 else ""


def _html_figure(title: str, note: str, picture: str) -> str:
    return f"<figure><figcaption><h2>{_text(title)}</h2><p>{_text(note)}</p></figcaption>{picture}</figure>"


def _text(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


# -- The report of a table's health -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class HealthReport(Examined):
    """The state of a table's metadata, and the maintenance that it needs.

    `print` shows it as text, a notebook as a page with pictures.
    """

    def findings(self) -> DataFrame:
        """Return a row for each finding, without a job.

        Columns: finding (its kind), items and bytes (of the objects concerned; bytes are null if unknown), problem,
        cost (of a plan), gain (by maintenance), job (the maintenance operation), call and command for the job (null if
        only another library can do it).
        """
        rows = [asdict(finding) for finding in self.list_findings]
        return local_frame(self.state.spark, pa.Table.from_pylist(rows, schema=FINDINGS))

    def to_dict(self) -> dict[str, Any]:
        """Return all values of the report by name, in JSON-compatible types."""
        snapshot = self.state.snapshot
        entries, layout, history = self.entries, self.layout, self.history
        return {
            "table": self.table,
            "location": self.state.metadata.location,
            "metadata_location": self.metadata_location,
            "format_version": self.state.metadata.format_version,
            "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
            "examined_at": self.examined_at.isoformat(timespec="milliseconds"),
            "seconds": self.seconds,
            "healthy": self.is_healthy,
            "findings": [asdict(finding) for finding in self.list_findings],
            "bytes": self.bytes_by_kind,
            "data_files": {
                "files": entries.files,
                "records": entries.records,
                "partitions": entries.partitions,
                "sizes": [{"from_bytes": 1 << exponent, "files": files, "bytes": size}
                          for exponent, files, size in entries.sizes],
                "most_small_files": [self._partition(row) for row in entries.crowded],
            },
            "deletes": {
                **asdict(entries.deletes),
                "dangling": asdict(entries.dangling),
                "densest_partitions": [self._partition(row) for row in entries.densest],
            },
            "manifests": {
                "data": layout.data_manifests,
                "deletes": layout.delete_manifests,
                "masked_entries": layout.masked,
                "root_files": layout.root_files,
                "sizes": [{"from_bytes": 1 << exponent, "manifests": count} for exponent, count in layout.sizes],
                "overlaps": [asdict(depth) for depth in layout.depths],
            },
            "snapshots": {
                "snapshots": history.snapshots,
                "expired": history.expired,
                "expired_refs": list(history.expired_refs),
                "pinned_bytes": history.pinned_bytes,
                "old_refs": list(history.old_refs),
            },
            "column_metrics": {
                "sampled_manifests": entries.stats.manifests,
                "columns": {str(key): asdict(column) for key, column in sorted(entries.stats.columns.items())},
            },
        }  # fmt: skip

    def _partition(self, row: Any) -> dict[str, Any]:
        return {
            "partition": partition_text(self.state, row),
            "files": row.files,
            "records": row.records,
            "small_files": row.small_files,
            "deleted": row.deleted,
            "deleted_ratio": round(row.deleted_ratio, 4),
        }

    # -- Text --------------------------------------------------------------------------------------------------------

    @property
    def figures(self) -> tuple[str, ...]:
        """The table in few numbers, one line each."""
        entries, layout, history = self.entries, self.layout, self.history
        deletes = (
            f"{entries.deletes.vectors:,} deletion vectors, {entries.deletes.position_files:,} position and "
            f"{entries.deletes.equality_files:,} equality delete files"
        )
        manifests = (
            f"{layout.data_manifests:,} data and {layout.delete_manifests:,} delete manifests, "
            f"{counted(history.snapshots, 'snapshot')}"
        )
        sizes = ", ".join(f"{kind} {byte_size(size)}" for kind, size in self.bytes_by_kind.items() if size)
        depths = [
            f"manifests overlap {depth.overlaps:.1f} others by {depth.kind} {depth.name} (spec {depth.spec_id})"
            for depth in layout.depths[:_MOST_DEPTHS]
        ]
        return (
            f"{entries.files:,} data files in {counted(entries.partitions, 'partition')}, {entries.records:,} records",
            deletes,
            manifests,
            *depths,
            sizes,
        )

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {line}" for line in self.figures)]
        for number, finding in enumerate(self.list_findings, 1):
            lines += ["", f"{number}. {finding.finding}: {finding.problem}"]
            lines += [f"   costs    {finding.cost}", f"   gains    {finding.gain}"]
            lines += [f"   call     {finding.call}"] if finding.call else []
            lines += [f"   command  {finding.command}"] if finding.command else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"HealthReport({self.headline})"

    # -- Pictures ----------------------------------------------------------------------------------------------------

    @cached_property
    def html(self) -> str:
        """The report as one page that needs no network."""
        return page(self)

    def save(self, path: str | Path) -> None:
        """Write the report to a local file: text if its name ends with `.txt`, else a page."""
        content = f"{self}\n" if str(path).endswith(".txt") else self.html
        Path(path).write_text(content, encoding="utf-8")

    def _repr_html_(self) -> str:
        return page_body(self)


# Maximum number of fields whose overlaps the text shows.
_MOST_DEPTHS = 8


# -- Measure a table, and make the report of its health ---------------------------------------------------------------


_TARGET, _TARGET_BYTES = "write.target-file-size-bytes", 512 << 20


def examine(table: BaseTable, options: HealthOptions, source: str | None = None) -> HealthReport:
    """Examine a table; see `Maintenance.health`.

    Args:
        source: the arguments that name the table on a command line. Defaults to its location, or to its identifier in a
            catalog whose name is not known.
    """
    options.check()
    state = table.state
    state.sessions.running()  # raises SessionError if the caller's session was stopped
    refuse_encrypted(table.metadata, "so that its manifests can't be read")
    with progress("Examining the table", state.sessions):
        return _examined(table, options, source)


def _examined(table: BaseTable, options: HealthOptions, source: str | None) -> HealthReport:
    state = table.state
    limits = _limits(state, options)
    columns = _columns(state, options)
    started = time.perf_counter()
    history = measure_history(table, options.max_ref_age_days, int(time.time() * 1000))
    # The leaves of a tree have bounds of columns in the root.
    entries = measure_entries(state, limits, () if state.tree is not None else tuple(columns))
    layout = measure_layout(state, columns, entries.bounds)
    findings = Examination(table, options, limits, entries, layout, history, source or _source(table)).findings()
    return HealthReport(
        table=table.full_name,
        state=state,
        metadata_location=table.metadata_location,
        examined_at=datetime.now(UTC),
        seconds=round(time.perf_counter() - started, 3),
        list_findings=findings,
        limits=limits,
        entries=entries,
        layout=layout,
        history=history,
        list_bytes=_list_bytes(state),
    )


def _source(table: BaseTable) -> str:
    name = shlex.quote(table.full_name)
    return name if len(table.identifier) == 1 else f"--catalog NAME {name}"


def _limits(state: TableState, options: HealthOptions) -> SmallFileLimits:
    target = number_property(state.metadata.properties, _TARGET, _TARGET_BYTES, least=1)
    # The size below which a rewrite chooses files is less than the target.
    small = min(int(target * options.small_file_ratio), target - 1)
    puffin = DeleteRewriteOptions().sizes(state.metadata.properties)
    return SmallFileLimits(target, small, options.min_small_files, options.max_deleted_ratio, puffin)


def _columns(state: TableState, options: HealthOptions) -> dict[int, str]:
    """Return the ids and names of the columns whose overlaps are measured."""
    schema, known = state.metadata.schema(), state.types.primitive_fields
    if options.columns is None:
        ids = dict.fromkeys(field.source_id for field in state.metadata.sort_order().fields)
        return {field_id: schema.find_column_name(field_id) or str(field_id) for field_id in ids if field_id in known}
    by_name = {schema.find_column_name(field_id): field_id for field_id in known}
    for name in options.columns:
        if name not in by_name:
            raise ValidationError(f"{state.metadata.location}: columns names {name!r}: no such column has bounds")
    return {by_name[name]: name for name in options.columns}


def _list_bytes(state: TableState) -> int:
    """Return the size of the manifest list or root; 0 for a table without one."""
    snapshot = state.snapshot
    location = None if snapshot is None else snapshot.manifests_location
    return 0 if location is None else state.files.length(location)
