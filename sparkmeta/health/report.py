"""The report of a table's health: as a DataFrame, text, JSON, and a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.health.examined import Examined
from sparkmeta.health.findings import FINDINGS
from sparkmeta.health.page import page, page_body
from sparkmeta.health.partitions import partition_text
from sparkmeta.inspect.units import byte_size, counted
from sparkmeta.session import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, repr=False)
class HealthReport(Examined):
    """The state of a table's metadata, and the maintenance that it needs.

    `print` shows it as text, a notebook as a page with pictures.
    """

    def findings(self) -> DataFrame:
        """Return a row for each finding, without a job.

        Columns: finding (its kind), items and bytes (of what it is about; bytes are null if unknown), problem, cost
        (of a plan), gain (by maintenance), job (the maintenance operation), call and command that do it (null if only
        another library does).
        """
        rows = [asdict(finding) for finding in self.list_findings]
        return local_frame(self.state.spark, pa.Table.from_pylist(rows, schema=FINDINGS))

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report by name, as for JSON."""
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

    # -- text --------------------------------------------------------------------------------------------------------

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

    # -- pictures ----------------------------------------------------------------------------------------------------

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


# Most fields whose overlaps the text shows.
_MOST_DEPTHS = 8
