"""`ScanPlan`: how the files of a scan are planned, on the driver or by Spark.

The methods of `Scan`, the service, the data sources and scans of snapshot ranges share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from sparkmeta.entries.relation import exploded
from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.expr.filter_text import as_text
from sparkmeta.expr.predicate_terms import has_transforms
from sparkmeta.plan.choose import Choice, Readings, choose, readings
from sparkmeta.plan.files import count_files, plan_schema, planned_files
from sparkmeta.plan.prune import PrunedManifests, prune_manifests
from sparkmeta.plan.tasks import PARTITION_JSON, SplitPlanning, partition_json, plan_tasks, task_json
from sparkmeta.reports import ScanResult
from sparkmeta.snapshot.search import live_files

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.reports import Reports
    from sparkmeta.rows.read import RowScan
    from sparkmeta.spec.metadata import Snapshot

# Iceberg's read options and the table properties that they override.
SPLIT_OPTIONS = {
    "target_size": ("split-size", "read.split.target-size"),
    "lookback": ("lookback", "read.split.planning-lookback"),
    "open_file_cost": ("file-open-cost", "read.split.open-file-cost"),
}


@dataclass(frozen=True)
class ScanPlan:
    """The plan of a scan.

    Attributes:
        filter: the filter, bound to the schema, and the snapshot that is read.
        row_filter: the filter as it was given.
        projection: the columns to read.
        metadata_columns: the metadata columns to read.
        options: Iceberg's read options.
        reports: receives reports on plans; None for no reports.
    """

    filter: ScanFilter
    row_filter: BooleanExpression
    projection: Schema
    metadata_columns: tuple[str, ...]
    options: Mapping[str, str]
    reports: Reports | None

    @cached_property
    def pruned(self) -> PrunedManifests:
        """The manifests that may have matching files. Reads the manifest list or the tree's root."""
        return prune_manifests(self.filter)

    @cached_property
    def choice(self) -> Choice:
        """The choice of where manifests are read and how deletes are matched; see `plan.choose`."""
        return replace(choose(self.pruned, self._readings), reporter=self._report)

    @cached_property
    def _readings(self) -> Readings:
        return readings(self.pruned)

    @property
    def by_driver(self) -> bool:
        """Whether the driver reads all manifests. It may still leave the matching of many deletes to Spark."""
        return self._readings.by_driver

    @property
    def rows(self) -> RowScan:
        """The rows and columns to read, also for scans of snapshot ranges.

        Raises:
            UnsupportedError: the filter has a transform.
        """
        from sparkmeta.rows.read import RowScan

        if has_transforms(self.filter.row_filter):
            raise UnsupportedError(f"transforms in filters select files to plan, not rows: {as_text(self.row_filter)}")
        return RowScan(self.filter, self.projection, self.metadata_columns)

    # -- files and tasks --------------------------------------------------------------------------------------------

    def files(self) -> Relation:
        """Return the rows of `Scan.plan_files`, as an Arrow table if the driver plans them."""
        return planned_files(self.choice)

    def tasks(self, *extra: Aliased) -> Relation:
        """Return the rows of `Scan.plan_tasks`, as an Arrow table if the driver plans them.

        Args:
            extra: further text columns of the files.
        """
        row_type = plan_schema(self.filter.state)
        for column in extra:
            row_type = row_type.add(column.name, "string")
        return plan_tasks(planned_files(self.choice, *extra), row_type, self._splitting)

    def task_json(self) -> Relation:
        """Return the rows of `Scan.plan_task_json`, as an Arrow table if the driver plans them."""
        tasks = self.tasks(partition_json(self.filter.state).alias(PARTITION_JSON))
        return task_json(exploded(tasks, "tasks"), self.filter.state, self.projection)

    @property
    def _splitting(self) -> SplitPlanning:
        properties, chosen = self.filter.state.metadata.properties, dict[str, int]()
        for name, keys in SPLIT_OPTIONS.items():
            for source, key in zip((self.options, properties), keys, strict=True):
                if key in source and name not in chosen:
                    chosen[name] = _positive(key, source[key])
        return SplitPlanning(**chosen)

    def count_files(self) -> int:
        """Count the files without reading or checking deletes; see `Scan.count_files`."""
        pruned, started = self.pruned, time.perf_counter()
        files = count_files(pruned)
        self._report(lambda: ScanResult(files), pruned.seconds + time.perf_counter() - started)
        return files

    def most_files(self) -> int | None:
        """Return an upper bound on the number of files: the live files in the manifests. None if it is unknown.

        Runs no job.
        """
        counts = live_files(self.pruned.data)
        return None if counts.null_count else pc.sum(counts).as_py() or 0

    # -- reports ----------------------------------------------------------------------------------------------------

    def _report(self, result: Callable[[], ScanResult | None], seconds: float) -> None:
        """Send Iceberg's report on a plan; see `Choice.report`."""
        from sparkmeta.plan.report import plan_metrics

        self._send(lambda: plan_metrics(self.pruned, result()), seconds, self.filter.state.snapshot)

    def report_changes(
        self, result: Callable[[], ScanResult], seconds: float, start: int | None, end: Snapshot | None
    ) -> None:
        """Send Iceberg's report on a plan of what a range of snapshots changed.

        Args:
            result: returns the sums over the planned files.
            seconds: how long planning took.
            start: the snapshot before the range; None if it begins with the first one.
            end: the last snapshot of the range; None for an empty table.
        """
        from sparkmeta.plan.report import result_metrics

        metadata = {} if start is None else {"from-snapshot-id": str(start)}
        self._send(lambda: result_metrics(result()), seconds, end, metadata)

    def _send(
        self,
        metrics: Callable[[], dict[str, Any]],
        seconds: float,
        snapshot: Snapshot | None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        from sparkmeta.plan.report import metrics_report

        if self.reports is None or snapshot is None:
            return
        self.reports.send(
            lambda: self.filter.state.settings,
            lambda: metrics_report(self.filter, self.projection, snapshot.snapshot_id, metrics(), seconds, metadata),
        )


def _positive(name: str, text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 20 or not 0 < int(text) < 2**63:
        raise ValidationError(f"{name} is {text!r}: expected a whole number above 0, below 2^63")
    return int(text)
