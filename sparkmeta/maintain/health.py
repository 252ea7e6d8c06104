"""The report of a table's health: its figures, pictures and page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.charts import Row, Span, overlap_map, row_bars, size_columns, timeline
from sparkmeta.errors import ValidationError, hint_at
from sparkmeta.maintain.health_findings import FINDINGS, Examination, Finding
from sparkmeta.maintain.health_measures import (
    EntryFigures,
    History,
    Layout,
    SmallFileLimits,
    measure_entries,
    measure_history,
    measure_layout,
    partition_text,
)
from sparkmeta.maintain.rewrite_position_deletes import DeleteRewriteOptions
from sparkmeta.progress import progress
from sparkmeta.session import local_frame
from sparkmeta.spec.table_properties import number_property
from sparkmeta.text import byte_size, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.maintain.health_findings import HealthOptions
    from sparkmeta.maintain.health_measures import PartitionFigures
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState


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


# -- The page of a health report --------------------------------------------------------------------------------------
# It is one HTML document of bounded size, without scripts, links or other files.


_MOST_PAGE_DEPTHS = 12
# Maximum number of characters of a text from the table.
_LONGEST = 400

# The page has the colours of the notebook or the browser around it, light or dark, and the bars of charts.
STYLE = """
.sm-health { --soft: color-mix(in srgb, currentColor 72%, transparent);
  --rule: color-mix(in srgb, currentColor 18%, transparent); --panel: color-mix(in srgb, currentColor 4%, transparent);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; padding: 16px; }
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
.sm-health .finding { border-left: 4px solid #d07b22; }
.sm-health .healthy { border-left: 4px solid #3a9b6e; }
.sm-health dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 8px 0 0; }
.sm-health dt { color: var(--soft); }
.sm-health dd { margin: 0; overflow-wrap: anywhere; }
.sm-health code { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  background: color-mix(in srgb, currentColor 9%, transparent);
  border-radius: 4px; padding: 1px 6px; overflow-wrap: anywhere; }
.sm-health .figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 14px;
  margin-top: 6px; }
.sm-health figure { margin: 0; min-width: 0; }
.sm-health figcaption p { font-size: 12.5px; margin-bottom: 8px; }
.sm-health svg { display: block; }
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
    return f'<div class="sm-health"><style>{STYLE}</style><main>{page_parts(report)}</main></div>'


def page_parts(report: Examined) -> str:
    """Return the elements of the page. `STYLE` styles them within an element of the class `sm-health`."""
    snapshot = report.state.snapshot
    version = f"format version {report.state.metadata.format_version}"
    version += f", snapshot {snapshot.snapshot_id}" if snapshot else ", no snapshot"
    when = report.examined_at.strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"<h1>{_text(report.headline)}</h1>",
        f"<p>{_text(report.state.metadata.location)}</p>",
        f"<p>{version}, examined {when} in {report.seconds:.1f} s</p>",
        f'<div class="facts">{"".join(_facts(report))}</div>',
        *(_finding(number, finding) for number, finding in enumerate(report.list_findings, 1)),
        *(['<section class="healthy"><h2>Nothing to do</h2><p>No threshold is exceeded.</p></section>']
          if report.is_healthy else []),
        f'<div class="figures">{"".join(_figures(report))}</div>',
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
        yield _html_figure("Files by size", note, size_columns(entries.sizes, limits.small_bytes, limits.target_bytes))
    if layout.bars:
        drawn = f"{len(layout.bars):,} of {layout.mapped:,} data manifests" if len(layout.bars) < layout.mapped else (
            counted(layout.mapped, "data manifest"))  # fmt: skip
        note = f"{drawn} in the order of the partition fields. Those that overlap an earlier one are orange."
        spans = [Span(bar.start, bar.end, bar.row, marked=float(bar.row > 0)) for bar in layout.bars]
        yield _html_figure("Overlap of manifests", note, overlap_map(spans, "Overlapping manifests"))
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
    if report.history.moments:
        note = f"{counted(report.history.snapshots, 'snapshot')}; orange ticks expire by the table's properties."
        yield _html_figure("Snapshots over time", note, timeline(report.history.moments))
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
    head = "".join(f"<th{_align(column)}>{name}</th>" for column, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{_align(column)}>{_text(str(cell))}</td>' for column, cell in enumerate(row))}</tr>"
        for row in rows
    )
    note = (
        f"How many others a data manifest overlaps{', of the first fields' if len(depths) > _MOST_PAGE_DEPTHS else ''}."
    )
    return _html_figure("Clustering depth", note, f"<table><tr>{head}</tr>{body}</table>")


def _align(column: int) -> str:
    """Return the class of a cell: the first two columns are text, the others numbers."""
    return ' class="n"' if column > 1 else ""


def _html_figure(title: str, note: str, picture: str) -> str:
    return f"<figure><figcaption><h2>{_text(title)}</h2><p>{_text(note)}</p></figcaption>{picture}</figure>"


def _text(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


# -- The report of a table's health -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrowReport:
    """The findings of a report as an Arrow table in memory.

    Attributes:
        report: the report.
    """

    report: HealthReport

    def findings(self) -> pa.Table:
        """Return the rows of `HealthReport.findings`."""
        return pa.Table.from_pylist([asdict(finding) for finding in self.report.list_findings], schema=FINDINGS)


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
        return local_frame(self.state.spark, self.arrow.findings())

    @property
    def arrow(self) -> ArrowReport:
        """The rows of `findings` as an Arrow table, without Spark: `report.arrow.findings()`."""
        return ArrowReport(self)

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
        """The table's main figures, one line each."""
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
        source: the arguments that name the table on a command line; see `source_of` for the default.
    """
    options.check()
    state = table.state
    state.sessions.running()  # raises SessionError if the caller's session was stopped
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
    findings = Examination(table, options, limits, entries, layout, history, source or source_of(table)).findings()
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


def source_of(table: BaseTable) -> str:
    """Return the arguments that name a table on a command line.

    They are its location, or its identifier in a catalog whose name is not known.
    """
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
            hint = hint_at(name, filter(None, by_name))
            raise ValidationError(f"{state.metadata.location}: no column {name!r} with bounds in the schema{hint}")
    return {by_name[name]: name for name in options.columns}


def _list_bytes(state: TableState) -> int:
    """Return the size of the manifest list or root; 0 for a table without one."""
    snapshot = state.snapshot
    location = None if snapshot is None else snapshot.manifests_location
    return 0 if location is None else state.files.length(location)
