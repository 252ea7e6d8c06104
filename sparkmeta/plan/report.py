"""Report what planning a scan read and skipped, and by which rule."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import index_by_id
from pyiceberg.types import PrimitiveType, StructType

from sparkmeta.charts import Row, figure, row_bars
from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.relation import totals
from sparkmeta.expr import sql
from sparkmeta.expr.expression_json import sanitized_json
from sparkmeta.plan.files import planned_files
from sparkmeta.plan.filter import DELETES, data_projection, stats_match, tuple_matches
from sparkmeta.plan.prune import PrunedManifests
from sparkmeta.reports import ScanResult, counter, environment, timer
from sparkmeta.snapshot.search import live_files, live_manifests
from sparkmeta.text import byte_size, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.schema import Schema

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.plan.choose import Choice
    from sparkmeta.plan.filter import ScanFilter


@dataclass(frozen=True)
class ManifestCounts:
    """The number and size of manifests of one content, and why some were not opened."""

    total: int
    total_bytes: int
    skipped_no_live_files: int
    skipped_by_partition: int
    scanned: int
    scanned_bytes: int


@dataclass(frozen=True)
class EntryCounts:
    """Counts of the data entries of the scanned manifests, by the rule that skipped them."""

    scanned: int
    skipped_deleted: int
    skipped_by_partition: int
    skipped_by_stats: int
    planned: int


@dataclass(frozen=True, repr=False)
class ScanReport:
    """The report on a scan's plan. Sizes are bytes, timings seconds.

    Attributes:
        planned_bytes: data bytes of the planned files.
        delete_files: deletes attached to data files, counted once per data file.
        strategy: how deletion vectors are matched, join or colocated, and why (see the setting `planning`).
        manifest_pruning_seconds: the time to prune the manifests and choose the strategy.
        planning_seconds: the same plus the time to run the plan and the counts of this report.
    """

    table: str
    snapshot_id: int | None
    row_filter: str
    data_manifests: ManifestCounts
    delete_manifests: ManifestCounts
    data_entries: EntryCounts
    planned_bytes: int
    files_with_deletes: int
    delete_files: int
    strategy: str
    manifest_pruning_seconds: float
    planning_seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        """Return the report as a JSON object."""
        return json.dumps(self.to_dict())

    def __repr__(self) -> str:
        entries = self.data_entries
        counts = f"{entries.planned:,} of {entries.scanned:,} files in {self.data_manifests.scanned:,} manifests"
        return f"ScanReport({self.table}, {self.row_filter}: {counts})"

    def _repr_html_(self) -> str:
        """Show as a funnel which rule skipped how many manifests and files."""
        manifests, deletes, entries = self.data_manifests, self.delete_manifests, self.data_entries
        skipped_manifests = {
            "no live files": manifests.skipped_no_live_files,
            "skipped by partition": manifests.skipped_by_partition,
        }
        skipped_files = {
            "deleted": entries.skipped_deleted,
            "skipped by partition": entries.skipped_by_partition,
            "skipped by statistics": entries.skipped_by_stats,
        }
        skipped_deletes = {
            "no live deletes": deletes.skipped_no_live_files,
            "skipped by partition": deletes.skipped_by_partition,
        }
        rows = [
            *_funnel("data manifests", manifests.total, skipped_manifests, "opened", manifests.scanned),
            *_funnel("files in them", entries.scanned, skipped_files, "planned", entries.planned),
            *_funnel("delete manifests", deletes.total, skipped_deletes, "opened", deletes.scanned),
        ]
        note = (
            f"{counted(entries.planned, 'file')} of {byte_size(self.planned_bytes)}, {self.files_with_deletes:,} with "
            f"deletes, planned in {self.planning_seconds:.2f} s. {self.strategy}"
        )
        return figure(f"{self.table}: {self.row_filter}", note, row_bars(rows, 1.0, "What the plan skipped"))

    def __str__(self) -> str:
        return "\n".join([f"scan of {self.table}, snapshot {self.snapshot_id}", *_lines(self.to_dict(), "  ")[3:]])


def _funnel(label: str, total: int, skipped: dict[str, int], left: str, count: int) -> Iterator[Row]:
    """Yield a bar for the total, for the part that each rule skips, and for the rest. Yield none if the total is 0."""
    if not total:
        return
    yield Row(label, 1.0, f"{total:,}", gap=True)
    remaining = total
    for rule, by_rule in skipped.items():
        remaining -= by_rule
        if by_rule:
            yield Row(rule, by_rule / total, f"{by_rule:,}", marked=True, start=remaining / total)
    yield Row(left, count / total, f"{count:,}")


def _lines(values: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}: " + ", ".join(f"{key} {item:,}" for key, item in value.items()))
        else:
            lines.append(f"{indent}{name}: {value:,.3f}" if isinstance(value, float) else f"{indent}{name}: {value:,}"
                         if isinstance(value, int) else f"{indent}{name}: {value}")  # fmt: skip
    return lines


def scan_report(choice: Choice, row_filter: str) -> ScanReport:
    """Run the plan of a choice and count the entries of its manifests. For many manifests, runs jobs.

    Args:
        choice: how the scan is planned.
        row_filter: the scan's filter as text.
    """
    started, pruned = time.perf_counter(), choice.pruned
    pruning_seconds = pruned.seconds + choice.seconds
    state = pruned.filter.state
    entries = _count_entries(pruned)
    planned = _count_planned(choice)
    return ScanReport(
        table=state.metadata.location,
        snapshot_id=state.snapshot.snapshot_id if state.snapshot else None,
        row_filter=row_filter,
        data_manifests=_counts(state.data_manifests, pruned.data),
        delete_manifests=_counts(state.delete_manifests, pruned.deletes),
        data_entries=entries,
        **planned,
        strategy=choice.strategy,
        manifest_pruning_seconds=pruning_seconds,
        planning_seconds=pruning_seconds + time.perf_counter() - started,
    )


# As in Java, lists and maps are projected by their elements.
_PROJECTED = (PrimitiveType, StructType)


def metrics_report(
    scan_filter: ScanFilter,
    projection: Schema,
    snapshot_id: int,
    metrics: Mapping[str, Any],
    seconds: float,
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return Iceberg's report on a plan, without the table's name. Runs no job.

    Args:
        scan_filter: the filter.
        projection: the columns that are read.
        snapshot_id: the snapshot that is read; the last one of several.
        metrics: the counters; see `plan_metrics` and `result_metrics`.
        seconds: how long planning took on the driver.
        metadata: further metadata of the report.
    """
    fields = index_by_id(projection).items()
    ids = sorted(field_id for field_id, field in fields if isinstance(field.field_type, _PROJECTED))
    return {
        "report-type": "scan-report",
        "snapshot-id": snapshot_id,
        "filter": json.loads(sanitized_json(scan_filter.row_filter)),
        "schema-id": scan_filter.schema.schema_id,
        "projected-field-ids": ids,
        "projected-field-names": [projection.find_column_name(field_id) for field_id in ids],
        "metrics": {"total-planning-duration": timer(seconds), **metrics},
        "metadata": {**environment(), **(metadata or {})},
    }


def plan_metrics(pruned: PrunedManifests, result: ScanResult | None) -> dict[str, Any]:
    """Return the counters of a plan.

    Args:
        pruned: the scan and its manifests.
        result: the planned files; None if only tasks know them.
    """
    state, result = pruned.filter.state, result or ScanResult()
    counts = live_files(pruned.data)
    live = None if counts.null_count else pc.sum(counts, min_count=0).as_py()
    files = live if result.data_files is None and pruned.filter.keeps_all else result.data_files
    skipped = None if live is None or files is None else live - files
    return {
        **_manifest_metrics("data", _counts(state.data_manifests, pruned.data)),
        **_manifest_metrics("delete", _counts(state.delete_manifests, pruned.deletes)),
        **result_metrics(result._replace(data_files=files)),
        **({} if skipped is None else {"skipped-data-files": counter(skipped)}),
    }


def result_metrics(result: ScanResult) -> dict[str, Any]:
    """Return the counters of planned files that are known."""
    known = {
        "result-data-files": (result.data_files, "count"),
        "result-delete-files": (result.delete_files, "count"),
        "total-file-size-in-bytes": (result.data_bytes, "bytes"),
        "total-delete-file-size-in-bytes": (result.delete_bytes, "bytes"),
    }
    return {name: counter(value, unit) for name, (value, unit) in known.items() if value is not None}


def _manifest_metrics(kind: str, counts: ManifestCounts) -> dict[str, Any]:
    return {
        f"total-{kind}-manifests": counter(counts.total),
        f"scanned-{kind}-manifests": counter(counts.scanned),
        f"skipped-{kind}-manifests": counter(counts.total - counts.scanned),
    }


def _counts(manifests: pa.Table, opened: pa.Table) -> ManifestCounts:
    live = live_manifests(manifests)
    return ManifestCounts(
        total=len(manifests),
        total_bytes=_bytes(manifests),
        skipped_no_live_files=len(manifests) - len(live),
        skipped_by_partition=len(live) - len(opened),
        scanned=len(opened),
        scanned_bytes=_bytes(opened),
    )


def _bytes(manifests: pa.Table) -> int:
    return pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0


def _count_entries(pruned: PrunedManifests) -> EntryCounts:
    """Count the entries by the first rule that skips each of them, in one aggregation."""
    scan_filter = pruned.filter
    every_entry = replace(data_projection(scan_filter), entry_filter=None)
    entries = scan_filter.state.relation(pruned.data, every_entry)
    live, tuples, stats = is_live_entry(), tuple_matches(scan_filter), stats_match(scan_filter)
    counts = {
        "scanned": sql.call("sum", 1),
        "skipped_deleted": sql.count_if(~live),
        "skipped_by_partition": sql.count_if(live & ~tuples),
        "skipped_by_stats": sql.count_if(live & tuples & ~stats),
        "planned": sql.count_if(live & tuples & stats),
    }
    return EntryCounts(**_totals(entries, counts))


def _count_planned(choice: Choice) -> dict[str, int]:
    files = planned_files(choice)
    deletes = sql.size(sql.col(DELETES))
    counts = {
        "planned_bytes": sql.call("sum", sql.col("file_size_in_bytes")),
        "files_with_deletes": sql.count_if(deletes > 0),
        "delete_files": sql.call("sum", deletes),
    }
    return _totals(files, counts)


def _totals(rows: Relation, counts: Mapping[str, Sql]) -> dict[str, int]:
    """Return sums by their names; 0 for no rows."""
    return {name: count or 0 for name, count in totals(rows, sql.named(counts)).items()}
