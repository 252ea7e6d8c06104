"""Report scans and commits as Iceberg's metrics reports: to a REST catalog, a logger, OpenTelemetry or a callable.

A report is the decoded JSON of the REST protocol's `ReportMetricsRequest`. Its `report-type` is `scan-report` or
`commit-report`. Its `metrics` are counters and timers by the names of Iceberg's Java library.

The protocol has no reports on failures. These have a form of their own, `scan-failure` or `commit-failure`, and are not
sent to catalogs.
"""

from __future__ import annotations

import atexit
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from queue import Full, Queue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sparkmeta.errors import first_line
from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from sparkmeta.settings import Settings
    from sparkmeta.spec.metadata import Snapshot

Report = dict[str, Any]
Reporter = Callable[[Report], object]

LOG: Final = "log"
OPEN_TELEMETRY: Final = "opentelemetry"

# The maximum number of reports that wait for catalogs, and how long the process waits for them when it exits.
_MOST_WAITING: Final = 100
_EXIT_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class ReportedCatalog(Protocol):
    """A catalog that may accept reports on a table."""

    def takes_reports(self) -> bool:
        """Return whether the catalog accepts reports at present."""

    def report(self, report: Report) -> None:
        """Send a report."""


@dataclass(frozen=True)
class Reports:
    """Where the reports on a table go.

    Attributes:
        table: the table's name.
        catalog: the table's catalog; None if its kind accepts no reports.
    """

    table: str
    catalog: ReportedCatalog | None = None

    def send(self, settings: Callable[[], Settings], report: Callable[[], Report], *, is_failure: bool = False) -> None:
        """Send a report to the reporters of the settings, and hand it to the thread that sends to catalogs.

        Failures to send it are logged.

        Args:
            settings: returns the settings, which name reporters.
            report: returns the report. It is called only if there is a receiver.
            is_failure: whether it is a report on a failure, which catalogs don't accept.
        """
        with self._logged("there is no metrics report"):
            names = [name for name in map(str.strip, settings().metrics_reporter.split(",")) if name]
            catalog = None if is_failure or self.catalog is None or not self.catalog.takes_reports() else self.catalog
            if not names and catalog is None:
                return
            content = {**report(), "table-name": self.table}
            if catalog is not None:
                # A copy, since callables may change what they get.
                send = partial(self._send, "its catalog", catalog.report, deepcopy(content))
                if not _outbox.put(send):
                    _log.warning("%s: dropped a metrics report, since too many wait for catalogs", self.table)
            for name in names:
                self._send(name, partial(_send_to, name), content)

    def _send(self, name: str, reporter: Reporter, report: Report) -> None:
        with self._logged(f"a metrics report was not sent to {name}"):
            reporter(report)

    @contextmanager
    def _logged(self, problem: str) -> Iterator[None]:
        """Log an error, which must not fail the scan or commit."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            _log.warning("%s: %s: %s: %s", self.table, problem, type(error).__name__, error)


class Outbox:
    """Calls functions one after the other in a daemon thread, so that nothing else waits for them.

    When the process exits, it waits for them for at most a second.

    Args:
        limit: the maximum number of functions that wait.
    """

    def __init__(self, limit: int) -> None:
        self._waiting: Queue[Callable[[], None]] = Queue(limit)
        self._lock = Lock()
        self._thread: Thread | None = None

    def put(self, function: Callable[[], None]) -> bool:
        """Queue a function, which must not raise an error. Return whether there was room for it."""
        try:
            self._waiting.put_nowait(function)
        except Full:
            return False
        with self._lock:
            # A forked process has no thread.
            if self._thread is None or not self._thread.is_alive():
                if self._thread is None:
                    atexit.register(self._flush)
                self._thread = Thread(target=self._run, name="sparkmeta-reports", daemon=True)
                self._thread.start()
        return True

    def _run(self) -> None:
        while True:
            function = self._waiting.get()
            try:
                function()
            finally:
                self._waiting.task_done()

    def _flush(self) -> None:
        is_done = self._waiting.all_tasks_done
        with is_done:
            is_done.wait_for(lambda: not self._waiting.unfinished_tasks, _EXIT_SECONDS)


_outbox = Outbox(_MOST_WAITING)


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

    @staticmethod
    def total(results: Iterable[ScanResult]) -> ScanResult:
        """Add up results without unknown values."""
        return ScanResult(*map(sum, zip(ScanResult(0, 0, 0, 0), *results, strict=True)))


# -- The parts of reports ---------------------------------------------------------------------------------------------


def counter(value: int, unit: str = "count") -> dict[str, Any]:
    """Return a counter of a report."""
    return {"unit": unit, "value": value}


def timer(seconds: float) -> dict[str, Any]:
    """Return a timer of a report, with a single measurement."""
    return {"count": 1, "time-unit": "nanoseconds", "total-duration": round(seconds * 1e9)}


def environment() -> dict[str, str]:
    """Return the metadata of a report: the engine."""
    return {"engine-name": "sparkmeta", "engine-version": _version()}


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("sparkmeta")


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


_COMMIT_FIGURES: Final = {
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
    numbers = {name: (summary_number(snapshot, figure.key), figure.unit) for name, figure in _COMMIT_FIGURES.items()}
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


# -- Failures ---------------------------------------------------------------------------------------------------------


@contextmanager
def failures_reported(
    reports: Reports | None, settings: Callable[[], Settings], kind: str, attempts: Callable[[], int] | None = None
) -> Iterator[None]:
    """Report on an error that the block raises.

    Args:
        reports: where reports go; None for nowhere.
        settings: see `Reports.send`.
        kind: `SCAN` or `COMMIT`.
        attempts: returns how often a commit was tried.
    """
    started = time.monotonic()
    try:
        yield
    except Exception as error:
        if reports is not None:
            seconds, tried = time.monotonic() - started, None if attempts is None else attempts()
            reports.send(settings, partial(_failure, kind, error, seconds, tried), is_failure=True)
        raise


def _failure(kind: str, error: Exception, seconds: float, attempts: int | None) -> Report:
    return {
        "report-type": f"{kind}-failure",
        "error-type": type(error).__name__,
        "error-message": first_line(error),
        "metrics": {
            _DURATIONS[kind]: timer(seconds),
            **({} if attempts is None else {"attempts": counter(attempts)}),
        },
        "metadata": environment(),
    }


SCAN: Final = "scan"
COMMIT: Final = "commit"
_DURATIONS: Final = {SCAN: "total-planning-duration", COMMIT: "total-duration"}


# -- OpenTelemetry ----------------------------------------------------------------------------------------------------
# The process owns the SDK and its exporters. Without an SDK, the API drops all figures.


# The instruments of scan reports, after `iceberg.scan.`.
_SCAN_INSTRUMENTS: Final = {
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
    **{name: f"iceberg.scan.{instrument}" for name, instrument in _SCAN_INSTRUMENTS.items()},
    **{name: f"iceberg.commit.{figure.instrument}" for name, figure in _COMMIT_FIGURES.items()},
    "total-duration": "iceberg.commit.duration",
    "attempts": "iceberg.commit.attempts",
}


def _record(report: Report) -> None:
    """Record the figures of a report. Attributes must have few distinct values, so they include no snapshot ids."""
    attributes = {"iceberg.table.name": report["table-name"]}
    if "operation" in report:
        attributes["iceberg.operation"] = report["operation"]
    if "error-type" in report:
        attributes["error.type"] = report["error-type"]
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
