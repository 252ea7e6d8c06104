"""Tables in numbers and findings, as they were examined at one time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sparkmeta.maintain.health_findings import SEVERITIES
from sparkmeta.text import counted

if TYPE_CHECKING:
    from sparkmeta.maintain.health import HealthReport
    from sparkmeta.maintain.health_findings import Finding
    from sparkmeta.session import SessionSource

FIGURES: Final = {
    "format_version": "version of the table format",
    "data_files": "live data files",
    "records": "records of live data files",
    "data_bytes": "bytes of live data files",
    "partitions": "partitions with live data files",
    "manifests": "manifests with live files",
    "plan_bytes": "bytes of manifests and their list or root, which a plan without a filter reads",
    "overlap": "other manifests that a manifest overlaps on average, by the field in which it overlaps fewest",
    "deletion_vectors": "live deletion vectors",
    "position_delete_files": "live position delete files",
    "equality_delete_files": "live equality delete files",
    "snapshots": "snapshots that have not expired",
    "unneeded_bytes": "estimated bytes of files that only snapshots due to expire need, and of dangling deletes",
}
"""The figures of a table and what they count. A null says that nothing was to be measured."""

_FINDING = pa.struct(
    [("finding", pa.string()), ("severity", pa.string()), ("items", pa.int64()), ("bytes", pa.int64()),
     ("problem", pa.string()), ("gain", pa.string()), ("job", pa.string()), ("command", pa.string())]
)  # fmt: skip
ROWS: Final = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("finding_count", pa.int32()),
        *(pa.field(name, pa.float64() if name == "overlap" else pa.int64()) for name in FIGURES),
        pa.field("seconds", pa.float64()),
        pa.field("findings", pa.list_(_FINDING)),
        pa.field("error", pa.string()),
    ]
)
"""The columns of a table's row, without what got worse."""

TREND: Final = {
    "data_files": "data files",
    "data_bytes": "data",
    "manifests": "manifests",
    "deletion_vectors": "deletion vectors",
    "position_delete_files": "position deletes",
    "equality_delete_files": "equality deletes",
    "snapshots": "snapshots",
    "unneeded_bytes": "unneeded",
    "finding_count": "findings",
}
"""The columns that are drawn over time, and their titles."""

ERROR: Final = "error"
# The most pressing first.
_ORDER = (ERROR, *SEVERITIES, None)
# A finding is worse if it concerns more than this multiple of its former items.
_WORSE = 1.2


@dataclass(frozen=True)
class TableHealth:
    """The health of a table in numbers and findings, without the data from which they were computed.

    Attributes:
        table: its name.
        figures: the values of `FIGURES`; empty if the table could not be examined.
        findings: its findings.
        error: why it could not be examined; None if it was.
        seconds: the time to load and examine it.
        page: the compressed page of the table.
    """

    table: str
    figures: Mapping[str, float | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    seconds: float = 0.0
    page: bytes = field(default=b"", repr=False)

    @property
    def severity(self) -> str | None:
        """`error`, or the severity of the worst finding; None for a healthy table."""
        kinds = {ERROR} if self.error is not None else {finding.severity for finding in self.findings}
        return next((severity for severity in _ORDER if severity in kinds), None)

    def row(self) -> dict[str, Any]:
        """Return the values of `ROWS`."""
        findings = [{name.name: getattr(finding, name.name) for name in _FINDING} for finding in self.findings]
        return {
            "table": self.table,
            "severity": self.severity,
            "finding_count": len(self.findings),
            **{name: self.figures.get(name) for name in FIGURES},
            "seconds": self.seconds,
            "findings": findings,
            "error": self.error,
        }

    @property
    def line(self) -> str:
        """The error, or the kinds of findings."""
        return self.error or ", ".join(finding.finding for finding in self.findings) or "healthy"


@dataclass(frozen=True)
class Past:
    """Earlier runs.

    Attributes:
        run_at: the time of the newest one; None if there is none.
        rows: table -> its newest row.
        trends: table -> its figures in the last runs, the oldest first.
    """

    run_at: datetime | None = None
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trends: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Examined:
    """The health of a catalog's tables, the most pressing first.

    Attributes:
        catalog: the name of the catalog.
        pattern: the pattern that chose the tables.
        examined_at: the time at which the examination began.
        seconds: its duration.
        tables: the health of each table.
        past: earlier runs of the history; None without one.
    """

    catalog: str
    pattern: str
    examined_at: datetime
    seconds: float
    tables: tuple[TableHealth, ...]
    sessions: SessionSource = field(compare=False)
    past: Past | None = field(default=None, compare=False)

    @property
    def headline(self) -> str:
        """The result in one line."""
        failed = sum(table.error is not None for table in self.tables)
        unhealthy = sum(bool(table.findings) for table in self.tables)
        errors = f", {failed:,} can't be examined" if failed else ""
        needs = "needs" if unhealthy == 1 else "need"
        return f"{self.catalog}: {counted(len(self.tables), 'table')}, {unhealthy:,} {needs} maintenance{errors}"

    def worse(self) -> dict[str, list[str]]:
        """Return what got worse since the newest earlier run of each table, by the names of tables.

        A change for the worse is a new error, a new finding, or a finding that concerns over a fifth more items. Tables
        without an earlier run or such a change are left out.
        """
        past = {} if self.past is None else self.past.rows
        changes = {table.table: _worse(table, past[table.table]) for table in self.tables if table.table in past}
        return {name: lines for name, lines in changes.items() if lines}


def _worse(table: TableHealth, before: Mapping[str, Any]) -> list[str]:
    if before["error"] is not None:
        return []
    if table.error is not None:
        return [f"can't be examined: {table.error}"]
    items = {finding["finding"]: finding["items"] for finding in before["findings"] or ()}
    changes = [(finding.finding, items.get(finding.finding), finding.items) for finding in table.findings]
    return [
        f"{kind}: {count:,} items, new" if former is None else f"{kind}: {former:,} to {count:,} items"
        for kind, former, count in changes
        if former is None or count > former * _WORSE
    ]


def rank(table: TableHealth) -> tuple[Any, ...]:
    """Return the sort key of a table: errors first, then by severity, findings and files."""
    return _ORDER.index(table.severity), -len(table.findings), -(table.figures.get("data_files") or 0), table.table


def figures_of(report: HealthReport) -> dict[str, float | None]:
    """Return the values of `FIGURES` of a table's report."""
    entries, layout, history = report.entries, report.layout, report.history
    specs = Counter({depth.spec_id: depth.manifests for depth in layout.depths})
    spec_id = next((spec for spec, _ in specs.most_common(1)), None)
    return {
        "format_version": report.state.metadata.format_version,
        "data_files": entries.files,
        "records": entries.records,
        "data_bytes": entries.bytes,
        "partitions": entries.partitions,
        "manifests": layout.data_manifests + layout.delete_manifests,
        "plan_bytes": layout.data_bytes + layout.delete_bytes + report.list_bytes,
        "overlap": min((depth.overlaps for depth in layout.depths if depth.spec_id == spec_id), default=None),
        "deletion_vectors": entries.deletes.vectors,
        "position_delete_files": entries.deletes.position_files,
        "equality_delete_files": entries.deletes.equality_files,
        "snapshots": history.snapshots,
        "unneeded_bytes": history.pinned_bytes + entries.dangling.bytes,
    }
