"""The page of a health report: one HTML document without scripts, links or other files, of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from sparkmeta.health.charts import Row, overlap_map, row_bars, size_bars, snapshot_line
from sparkmeta.health.partitions import partition_text
from sparkmeta.inspect.units import byte_size, counted

if TYPE_CHECKING:
    from sparkmeta.health.entries import PartitionFigures
    from sparkmeta.health.examined import Examined
    from sparkmeta.health.findings import Finding

_MOST_DEPTHS = 12
# Most characters of a text from the table.
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


# -- pictures ---------------------------------------------------------------------------------------------------------


def _figures(report: Examined) -> Iterator[str]:
    entries, layout, limits = report.entries, report.layout, report.limits
    if entries.sizes:
        note = f"Data files by size in powers of two. Below {byte_size(limits.small_bytes)} they are small (orange)."
        yield _figure("Files by size", note, size_bars(entries.sizes, limits.small_bytes, limits.target_bytes))
    if layout.bars:
        drawn = f"{len(layout.bars):,} of {layout.mapped:,} data manifests" if len(layout.bars) < layout.mapped else (
            counted(layout.mapped, "data manifest"))  # fmt: skip
        note = f"{drawn} in the order of the partition fields. Those that overlap an earlier one are orange."
        yield _figure("Overlap of manifests", note, overlap_map(layout.bars))
    if entries.densest:
        partitions = counted(len(entries.densest), "partition")
        note = f"Rows deleted by deletes of single data files, in the {partitions} with the largest share."
        goal = (limits.max_deleted_ratio, f"{limits.max_deleted_ratio:.0%}")
        rows = [_dense(report, row) for row in entries.densest]
        yield _figure("Deleted rows by partition", note, row_bars(rows, 1.0, "Deleted rows by partition", goal))
    if entries.crowded:
        note = f"Files below {byte_size(limits.small_bytes)}, in the partitions with the most of them."
        rows = [
            Row(partition_text(report.state, row), row.small_files, f"{row.small_files:,}", _title(row), marked=True)
            for row in entries.crowded
        ]
        yield _figure("Small files by partition", note, row_bars(rows, rows[0].value, "Small files by partition"))
    if report.history.points:
        note = f"{counted(report.history.snapshots, 'snapshot')}; orange ticks expire by the table's properties."
        yield _figure("Snapshots over time", note, snapshot_line(report.history.points))
    yield _bytes(report)
    if layout.depths:
        yield _depths(report)


def _bytes(report: Examined) -> str:
    kinds = {kind: size for kind, size in report.bytes_by_kind.items() if kind != "data files"}
    rows = [Row(kind, size, byte_size(size)) for kind, size in kinds.items()]
    note = f"In addition to {byte_size(report.entries.bytes)} of data files, for the current snapshot."
    return _figure("Bytes by kind", note, row_bars(rows, max([*kinds.values(), 1]), "Bytes by kind"))


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
        for depth in depths[:_MOST_DEPTHS]
    ]  # fmt: skip
    head = "".join(f"<th{_align(place)}>{name}</th>" for place, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{_align(place)}>{_text(str(cell))}</td>' for place, cell in enumerate(row))}</tr>"
        for row in rows
    )
    note = f"How many others a data manifest overlaps{', of the first fields' if len(depths) > _MOST_DEPTHS else ''}."
    return _figure("Clustering depth", note, f"<table><tr>{head}</tr>{body}</table>")


def _align(place: int) -> str:
    """Return the class of a cell: the first two columns are text, the others numbers."""
    return ' class="n"' if place > 1 else ""


def _figure(title: str, note: str, picture: str) -> str:
    return f"<figure><figcaption><h2>{_text(title)}</h2><p>{_text(note)}</p></figcaption>{picture}</figure>"


def _text(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
