"""Report scans and commits as Iceberg's metrics reports: to a REST catalog, a logger, OpenTelemetry or a callable.

A report is the decoded JSON of the REST protocol's `ReportMetricsRequest`. Its `report-type` is `scan-report` or
`commit-report`. Its `metrics` are counters and timers by the names of Iceberg's Java library.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from sparkmeta.settings import Settings
    from sparkmeta.spec.metadata import Snapshot

Report = dict[str, Any]
Reporter = Callable[[Report], object]

LOG: Final = "log"
OPEN_TELEMETRY: Final = "opentelemetry"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reports:
    """Where the reports on a table go.

    Attributes:
        table: the table's name.
        catalog: sends a report to the table's catalog; None if the catalog takes none.
    """

    table: str
    catalog: Reporter | None = None

    def send(self, settings: Callable[[], Settings], report: Callable[[], Report]) -> None:
        """Send a report to the catalog and to the reporters of the settings. Failures are logged.

        Args:
            settings: returns the settings, which name reporters.
            report: makes the report. It is called only if anything takes it.
        """
        with self._logged("no metrics report was made"):
            reporters = settings().metrics_reporter.split(",")
            takers: dict[str, Reporter] = {} if self.catalog is None else {"its catalog": self.catalog}
            takers |= {name: partial(_send_to, name) for name in map(str.strip, reporters) if name}
            made = {**report(), "table-name": self.table} if takers else {}
            for name, taker in takers.items():
                with self._logged(f"a metrics report was not sent to {name}"):
                    taker(made)

    @contextmanager
    def _logged(self, problem: str) -> Iterator[None]:
        """Log an error: the scan or commit has succeeded."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            _log.warning("%s: %s: %s: %s", self.table, problem, type(error).__name__, error)


def _send_to(name: str, report: Report) -> None:
    """Send a report to a reporter that the settings name."""
    if name == LOG:
        _log.info("%s", json.dumps(report))
    elif name == OPEN_TELEMETRY:
        _record(report)
    else:
        module, _, path = name.partition(":")
        attrgetter(path)(import_module(module))(report)


class ScanResult(NamedTuple):
    """The result of a plan. None means unknown to the driver.

    Attributes:
        data_files: the number of planned files.
        data_bytes: their size.
        delete_files: the number of deletes that apply to them, counted once per data file.
        delete_bytes: the size of these. The size of a deletion vector is the length of its blob.
    """

    data_files: int | None = None
    data_bytes: int | None = None
    delete_files: int | None = None
    delete_bytes: int | None = None


# -- The parts of reports ---------------------------------------------------------------------------------------------


def counter(value: int, unit: str = "count") -> dict[str, Any]:
    """Return a counter of a report."""
    return {"unit": unit, "value": value}


def timer(seconds: float) -> dict[str, Any]:
    """Return a timer of a report that has measured once."""
    return {"count": 1, "time-unit": "nanoseconds", "total-duration": round(seconds * 1e9)}


def environment() -> dict[str, str]:
    """Return the metadata of a report: the engine."""
    from importlib.metadata import version

    return {"engine-name": "sparkmeta", "engine-version": version("sparkmeta")}


class _Figure(NamedTuple):
    """A figure of a commit report.

    Attributes:
        key: its key in a snapshot's summary.
        instrument: its name in OpenTelemetry, after `iceberg.commit.`.
        unit: of the counter.
    """

    key: str
    instrument: str
    unit: str = "count"


_OF_COMMIT: Final = {
    "added-data-files": _Figure("added-data-files", "data_files.added"),
    "removed-data-files": _Figure("deleted-data-files", "data_files.removed"),
    "total-data-files": _Figure("total-data-files", "data_files.total"),
    "added-delete-files": _Figure("added-delete-files", "delete_files.added"),
    "added-equality-delete-files": _Figure("added-equality-delete-files", "delete_files.equality.added"),
    "added-positional-delete-files": _Figure("added-position-delete-files", "delete_files.positional.added"),
    "added-dvs": _Figure("added-dvs", "dvs.added"),
    "removed-delete-files": _Figure("removed-delete-files", "delete_files.removed"),
    "removed-equality-delete-files": _Figure("removed-equality-delete-files", "delete_files.equality.removed"),
    "removed-positional-delete-files": _Figure("removed-position-delete-files", "delete_files.positional.removed"),
    "removed-dvs": _Figure("removed-dvs", "dvs.removed"),
    "total-delete-files": _Figure("total-delete-files", "delete_files.total"),
    "added-records": _Figure("added-records", "records.added"),
    "removed-records": _Figure("deleted-records", "records.removed"),
    "total-records": _Figure("total-records", "records.total"),
    "added-files-size-bytes": _Figure("added-files-size", "file_size.added_bytes", "bytes"),
    "removed-files-size-bytes": _Figure("removed-files-size", "file_size.removed_bytes", "bytes"),
    "total-files-size-bytes": _Figure("total-files-size", "file_size.total_bytes", "bytes"),
    "added-positional-deletes": _Figure("added-position-deletes", "positional_deletes.added"),
    "removed-positional-deletes": _Figure("removed-position-deletes", "positional_deletes.removed"),
    "total-positional-deletes": _Figure("total-position-deletes", "positional_deletes.total"),
    "added-equality-deletes": _Figure("added-equality-deletes", "equality_deletes.added"),
    "removed-equality-deletes": _Figure("removed-equality-deletes", "equality_deletes.removed"),
    "total-equality-deletes": _Figure("total-equality-deletes", "equality_deletes.total"),
    "manifests-created": _Figure("manifests-created", "manifests.created"),
    "manifests-replaced": _Figure("manifests-replaced", "manifests.replaced"),
    "manifests-kept": _Figure("manifests-kept", "manifests.kept"),
    "manifest-entries-processed": _Figure("entries-processed", "manifest_entries.processed"),
}


def commit_report(snapshot: Snapshot, attempts: int, seconds: float) -> Report:
    """Return the report on the commit of a snapshot: the figures of its summary, without the table's name.

    Args:
        snapshot: what was committed.
        attempts: how often the commit was tried.
        seconds: how long the commit took.
    """
    numbers = {name: (summary_number(snapshot, figure.key), figure.unit) for name, figure in _OF_COMMIT.items()}
    return {
        "report-type": "commit-report",
        "snapshot-id": snapshot.snapshot_id,
        "sequence-number": snapshot.sequence_number or 0,
        "operation": snapshot.operation or "",
        "metrics": {
            "total-duration": timer(seconds),
            "attempts": counter(attempts),
            **{name: counter(number, unit) for name, (number, unit) in numbers.items() if number is not None},
        },
        "metadata": environment(),
    }


# -- OpenTelemetry ----------------------------------------------------------------------------------------------------
# The process owns the SDK and its exporters. Without an SDK the API drops what it is given.


# The instruments of scan reports, after `iceberg.scan.`.
_OF_SCAN: Final = {
    "total-planning-duration": "planning.duration",
    "result-data-files": "result.data_files",
    "result-delete-files": "result.delete_files",
    "total-data-manifests": "data_manifests.total",
    "total-delete-manifests": "delete_manifests.total",
    "scanned-data-manifests": "data_manifests.scanned",
    "scanned-delete-manifests": "delete_manifests.scanned",
    "skipped-data-manifests": "data_manifests.skipped",
    "skipped-delete-manifests": "delete_manifests.skipped",
    "total-file-size-in-bytes": "file_size.bytes",
    "total-delete-file-size-in-bytes": "delete_file_size.bytes",
    "skipped-data-files": "data_files.skipped",
}
_INSTRUMENTS: Final[Mapping[str, str]] = {
    **{name: f"iceberg.scan.{instrument}" for name, instrument in _OF_SCAN.items()},
    **{name: f"iceberg.commit.{figure.instrument}" for name, figure in _OF_COMMIT.items()},
    "total-duration": "iceberg.commit.duration",
    "attempts": "iceberg.commit.attempts",
}


def _record(report: Report) -> None:
    """Record the figures of a report. Their attributes have few values, so no snapshot ids."""
    attributes = {"iceberg.table.name": report["table-name"]}
    if "operation" in report:
        attributes["iceberg.operation"] = report["operation"]
    for record, value in _recorded(report["metrics"]):
        record(value, attributes)


def _recorded(metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Callable[..., None], float]]:
    """Yield the figures of a report, each with the function that records it."""
    for name, figure in metrics.items():
        if "total-duration" in figure:
            yield _instrument("histogram", _INSTRUMENTS[name], "ms").record, figure["total-duration"] / 1e6
            continue
        # Totals of a table are not added up over its commits.
        is_total = _INSTRUMENTS[name].startswith("iceberg.commit.") and name.startswith("total-")
        unit = "By" if figure["unit"] == "bytes" else ""
        instrument = _instrument("gauge" if is_total else "counter", _INSTRUMENTS[name], unit)
        yield (instrument.set if is_total else instrument.add), figure["value"]


@cache
def _instrument(kind: str, name: str, unit: str) -> Any:
    from opentelemetry.metrics import get_meter

    return getattr(get_meter("sparkmeta"), f"create_{kind}")(name, unit)
