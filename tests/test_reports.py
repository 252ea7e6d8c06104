"""Metrics reports on plans and commits: what they say, who gets them, and that a reporter's failure harms nothing."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta import reports as instruments
from sparkmeta.data_source.changes import read_of
from sparkmeta.data_source.options import ReadOptions
from sparkmeta.errors import SettingError
from sparkmeta.operations import rest
from sparkmeta.service.rest_tasks import to_rest_tasks
from sparkmeta.session import NoSession
from sparkmeta.table import open_metadata
from tests.conftest import configured
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds
from tests.local_files import local_path
from tests.peers import corpus as peers
from tests.peers.java import iterate
from tests.peers.slices import slice_of
from tests.rest.proxy import SILENT, Fault, Way
from tests.service import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.rest.proxy import Proxy

REPORTER = "spark.sparkmeta.metrics-reporter"
# The instruments of Iceberg's Java and Go libraries.
NAMES = {
    *(f"iceberg.scan.{name}" for name in (
        "planning.duration", "result.data_files", "result.delete_files", "data_manifests.total",
        "data_manifests.scanned", "data_manifests.skipped", "delete_manifests.total", "delete_manifests.scanned",
        "delete_manifests.skipped", "file_size.bytes", "delete_file_size.bytes", "data_files.skipped",
    )),
    *(f"iceberg.commit.{name}" for name in (
        "duration", "attempts", "manifests.created", "manifests.replaced", "manifests.kept",
        "manifest_entries.processed", "file_size.added_bytes", "file_size.removed_bytes", "file_size.total_bytes",
    )),
    *(f"iceberg.commit.{kind}.{change}" for change in ("added", "removed", "total") for kind in (
        "data_files", "delete_files", "records", "positional_deletes", "equality_deletes",
    )),
}  # fmt: skip

Report = dict[str, Any]
reports: list[Report] = []


@pytest.fixture
def heard(spark: SparkSession) -> Iterator[list[Report]]:
    """The reports that a callable gets in a test."""
    # The name by which the package finds this module.
    sys.modules["reports_of_test"] = module = ModuleType("reports_of_test")
    module.reports = reports  # type: ignore[attr-defined]
    with configured(spark, {REPORTER: "reports_of_test:reports.append"}):
        yield reports
    reports.clear()
    del sys.modules["reports_of_test"]


def values(report: Report) -> dict[str, int]:
    """The counters of a report."""
    return {name: figure["value"] for name, figure in report["metrics"].items() if "value" in figure}


def until(is_done: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


# -- Ranges of snapshots ----------------------------------------------------------------------------------------------


def test_ranges_of_snapshots(tmp_path: Path, spark: SparkSession, heard: list[Report]) -> None:
    """The files of changelogs and appends, as the reads of the data source plan them in a process without a session."""
    catalog = sm.load_catalog("files", type="hadoop", warehouse=tmp_path.as_uri())
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    table = catalog.create_table("ns.t", schema, spark=spark).append(ROWS)
    first = table.current_snapshot()
    assert first is not None
    table = table.append(ROWS).delete("id < 9")
    last = table.current_snapshot()
    assert last is not None
    heard.clear()
    table.changelog(first.snapshot_id).filter("id > 0").select("id").to_df()
    table.changelog(None, first.snapshot_id).to_df()
    table.incremental(first.snapshot_id).to_df()
    options = ReadOptions.of(
        {"path": table.location(), "table": "changelog", "start-snapshot-id": str(first.snapshot_id)}
    )
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("SPARKMETA_METRICS_REPORTER", "reports_of_test:reports.append")
        read_of(options, options.open({})).shares()
    assert {report["report-type"] for report in heard} == {"scan-report"}
    assert [report["snapshot-id"] for report in heard] == [last.snapshot_id, first.snapshot_id, *[last.snapshot_id] * 2]
    assert [report["metadata"].get("from-snapshot-id") for report in heard] == [
        str(first.snapshot_id), None, *[str(first.snapshot_id)] * 2
    ]  # fmt: skip
    assert [values(report)["result-data-files"] for report in heard] == [3, 1, 1, 3]
    assert all(values(report)["total-file-size-in-bytes"] > 0 for report in heard)
    assert heard[0]["filter"]["type"] == "gt"
    assert heard[0]["projected-field-names"] == ["id"]


# -- Failures ---------------------------------------------------------------------------------------------------------


def test_failures(location: str, tmp_path: Path, spark: SparkSession, heard: list[Report]) -> None:
    """One report for each plan and commit that fails, after its last attempt."""
    catalog = sm.load_catalog("files", type="hadoop", warehouse=f"{tmp_path.as_uri()}/warehouse")
    schema, retries = Schema(NestedField(1, "id", LongType(), required=False)), {"commit.retry.num-retries": "1"}
    table = catalog.create_table("ns.t", schema, properties=retries, spark=spark).append(ROWS)
    with pytest.raises(sm.CommitFailedError):
        replace(table, operations=Losing(table.operations)).append(ROWS)
    scan = sm.load_table(location, spark=spark).scan()
    for manifest in scan.state.manifests.column("location").to_pylist():
        Path(local_path(manifest)).unlink()
    for plan in (lambda scan: scan.arrow.plan_files(), sm.Scan.to_df):
        with pytest.raises(sm.NotFoundError):
            plan(scan)
    kinds = [(report["report-type"], report.get("error-type")) for report in heard]
    scans = [("scan-failure", "NotFoundError")] * 2
    assert kinds == [("commit-report", None), ("commit-failure", "CommitFailedError"), *scans]
    assert heard[1]["table-name"] == heard[0]["table-name"]
    assert heard[1]["error-message"] == "always"
    assert heard[1]["metrics"]["attempts"] == {"unit": "count", "value": 2}
    assert {"total-duration", "attempts"} == {*heard[1]["metrics"]}
    assert {*heard[2]["metrics"]} == {"total-planning-duration"}


@dataclass(frozen=True)
class Losing:
    """Operations whose commits lose."""

    operations: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operations, name)

    def commit(self, *_: Any) -> Any:
        raise sm.CommitFailedError("always")


# -- Plans ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table with deletes and two data manifests. The filter `part = 'a'` skips one of them."""
    table = HandmadeTable(tmp_path, summaries=True)
    of = {"partition": {"part": "a"}}
    table.add(0, 1, *(data(f"file:///t/{place}", **of, **long_bounds(place, place)) for place in range(4)))
    table.add(0, 1, data("file:///t/b", partition={"part": "b"}))
    table.add(1, 1, deletion_vector("file:///t/0", **of), equality_deletes("file:///t/d", **of))
    return table.write()


PLANS: dict[str, Callable[[sm.Scan], Any]] = {
    "plan_files": sm.Scan.plan_files,
    "arrow.plan_files": lambda scan: scan.arrow.plan_files(),
    "plan_tasks": sm.Scan.plan_tasks,
    "arrow.plan_task_json": lambda scan: scan.arrow.plan_task_json(),
    "to_rest_tasks": to_rest_tasks,
    "to_df": sm.Scan.to_df,
    "report": sm.Scan.report,
    "count_files": sm.Scan.count_files,
}
# Bytes and deletes are known with the planned files.
MANIFESTS = {
    "total-data-manifests": 2, "scanned-data-manifests": 1, "skipped-data-manifests": 1,
    "total-delete-manifests": 1, "scanned-delete-manifests": 1, "skipped-delete-manifests": 0,
}  # fmt: skip
FILES = {"result-data-files": 2, "skipped-data-files": 2}
DELETES = {"result-delete-files": 3, "total-file-size-in-bytes": 200, "total-delete-file-size-in-bytes": 240}
# If Spark makes these plans, the driver knows only their manifests.
LAZY = {"plan_files", "plan_tasks", "arrow.plan_task_json", "to_rest_tasks", "report"}


@pytest.mark.parametrize("way", ["driver", "spark"])
@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str, way: str, location: str, spark: SparkSession, heard: list[Report]) -> None:
    """Expect one report for each plan. It is made without a job, so the result of a lazy plan is not in it."""
    with configured(spark, {} if way == "driver" else {"spark.sparkmeta.driver-manifest-bytes": "1"}):
        scan = sm.load_table(location, spark=spark).scan("part = 'a' and id < 2").select("part")
        if name == "to_df":
            with pytest.raises(sm.NotFoundError):  # there are no files
                PLANS[name](scan).count()
        else:
            PLANS[name](scan)
    report, *failures = heard
    assert [failure["error-type"] for failure in failures] == (["NotFoundError"] if name == "to_df" else [])
    known = MANIFESTS | (FILES if way == "driver" or name not in LAZY else {})
    if name != "count_files" and (way == "driver" or name not in LAZY):
        known |= DELETES
    assert values(report) == known
    assert report["report-type"] == "scan-report"
    assert report["snapshot-id"] == scan.snapshot().snapshot_id  # type: ignore[union-attr]
    assert (report["projected-field-ids"], report["projected-field-names"]) == ([2], ["part"])
    assert report["metrics"]["total-planning-duration"]["total-duration"] > 0


def test_an_unfiltered_lazy_plan_knows_the_number_of_its_files(
    location: str, spark: SparkSession, heard: list[Report], by_spark: None
) -> None:
    sm.load_table(location, spark=spark).scan().plan_files()
    assert values(heard[0])["result-data-files"] == 5


def test_filters_without_values(location: str, spark: SparkSession, heard: list[Report]) -> None:
    table = sm.load_table(location, spark=spark)
    table.scan("id in (7, 1234) and part = 'secret' or ratio > 12.5 and part is null").count_files()
    text = json.dumps(heard[0]["filter"])
    assert "secret" not in text
    assert "1234" not in text
    assert '["(1-digit-long)", "(4-digit-long)"]' in text
    assert '"(2-digit-double)"' in text


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_plans_as_in_java(name: str, corpus: peers.Corpus, spark: SparkSession, heard: list[Report]) -> None:
    """Java's own report on the same plan has the same figures, and Java reads ours."""
    peer = corpus.table(name)
    table = sm.load_table(peer.metadata_location, spark=spark)
    if table.current_snapshot() is None:
        pytest.skip("an empty table has no plans")
    metrics = peer.java.java.iceberg.metrics
    reporter = metrics.InMemoryMetricsReporter()
    files = sum(1 for _ in iterate(peer.java.scan().metricsReporter(reporter).planFiles()))
    theirs = json.loads(metrics.ScanReportParser.toJson(reporter.scanReport()))
    table.scan().arrow.plan_files()
    (report,) = heard
    # Java leaves out some elements of lists and maps that are structs.
    assert {*theirs["projected-field-ids"]} <= {*report["projected-field-ids"]}
    assert {*theirs["projected-field-names"]} <= {*report["projected-field-names"]}
    ours = report | {"metrics": {key: figure for key, figure in report["metrics"].items() if "unit" in figure}}
    theirs["metrics"] = {key: theirs["metrics"][key] for key in ours["metrics"]}
    for key in ("report-type", "metadata", "table-name", "projected-field-ids", "projected-field-names"):
        del ours[key]
    assert ours == {key: theirs[key] for key in ours}
    read = json.loads(metrics.ScanReportParser.toJson(metrics.ScanReportParser.fromJson(json.dumps(report))))
    assert {**read, "report-type": "scan-report"} == report
    assert values(report)["result-data-files"] == files


# -- Commits, and who gets reports ------------------------------------------------------------------------------------


ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def namespace(proxy: Proxy) -> Iterator[str]:
    yield f"reports_{uuid.uuid4().hex[:8]}"
    proxy.reports.clear()
    proxy.report_fault = None


def new_table(proxy: Proxy, namespace: str, **properties: str) -> sm.Table:
    catalog = sm.load_catalog("rest", type="rest", uri=proxy.uri, **properties)
    catalog.create_namespace(namespace)
    return catalog.create_table(f"{namespace}.t", Schema(NestedField(1, "id", LongType(), required=False)))


def test_a_rest_catalog_gets_reports(proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's own server parses them, and refuses what is none. It gets no failures, which the protocol lacks."""
    table = new_table(proxy, namespace).append(ROWS).append(ROWS)
    table = table.delete("id = 2")
    with monkeypatch.context() as failing:
        failing.setattr("sparkmeta.scan.plan_files_arrow", None)
        with pytest.raises(TypeError):
            table.scan().arrow.plan_files()
    assert table.scan("id = 1").to_arrow().num_rows == 2
    until(lambda: len(proxy.reports) == 4)
    bodies = [body for body, status in proxy.reports if status < 300]
    assert len(bodies) == len(proxy.reports) == 4
    appended, _, deleted, scanned = bodies
    assert [report["operation"] for report in bodies[:3]] == ["append", "append", "overwrite"]
    assert [report["sequence-number"] for report in bodies[:3]] == [1, 2, 3]
    assert {report["table-name"] for report in bodies} == {f"{namespace}.t"}
    assert values(appended) | {"added-files-size-bytes": 0, "total-files-size-bytes": 0} == {
        "attempts": 1, "added-data-files": 1, "added-records": 3, "added-files-size-bytes": 0,
        "total-data-files": 1, "total-records": 3, "total-files-size-bytes": 0, "total-delete-files": 0,
        "total-positional-deletes": 0, "total-equality-deletes": 0,
        "manifests-created": 1, "manifests-kept": 0, "manifests-replaced": 0,
    }  # fmt: skip
    assert (values(deleted)["removed-data-files"], values(deleted)["total-records"]) == (2, 4)
    assert (scanned["snapshot-id"], values(scanned)["result-data-files"]) == (deleted["snapshot-id"], 1)
    if protocol.models() is not None:
        for report in bodies:
            model = "CommitReport" if report["report-type"] == "commit-report" else "ScanReport"
            document = {key: report[key] for key in report if key != "report-type"}
            assert protocol.problem(model, document | {"metrics": {}}) is None
            for figure in report["metrics"].values():
                kind = "TimerResult" if "count" in figure else "CounterResult"
                assert protocol.problem(kind, figure) is None
    operations = table.operations
    assert isinstance(operations, rest.RestOperations)
    with pytest.raises(sm.CatalogError):
        operations.report({**scanned, "snapshot-id": "none"})


def test_a_rest_catalog_may_forbid_reports(proxy: Proxy, namespace: str) -> None:
    new_table(proxy, namespace, **{"rest-metrics-reporting-enabled": "false"}).append(ROWS).scan().arrow.plan_files()
    table = sm.load_catalog("rest", type="rest", uri=proxy.uri).load_table(f"{namespace}.t")
    table.scan("id = 1").arrow.plan_files()
    until(lambda: bool(proxy.reports))
    assert [report["filter"]["type"] for report, _ in proxy.reports] == ["eq"]  # they are sent in order


@pytest.mark.parametrize("status", [500, 401, SILENT], ids=["fails", "refuses the token", "is silent"])
def test_a_catalog_that_takes_no_reports(
    status: int, proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Plans and commits don't wait for it. It is asked once, and again later; until then no reports are built."""

    def logged() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "sparkmeta.reports"]

    monkeypatch.setattr(rest, "_REPORT_SECONDS", 2)
    proxy.report_fault = Fault(Way.REFUSED, status)
    table = new_table(proxy, namespace).append(ROWS)
    assert logged() == [] or status != SILENT
    until(lambda: bool(logged()))
    with monkeypatch.context() as paused:
        paused.setattr("sparkmeta.plan.report.metrics_report", None)
        assert table.scan().arrow.plan_files().num_rows == 1
    assert len(proxy.reports) == 1
    (message,) = logged()
    assert "a metrics report was not sent to its catalog" in message
    proxy.report_fault = None
    monkeypatch.setattr(rest, "_pauses", {})
    table.scan().arrow.plan_files()
    until(lambda: len(proxy.reports) == 2)


def test_a_process_that_ends_sends_its_reports(proxy: Proxy, namespace: str) -> None:
    new_table(proxy, namespace, **{"rest-metrics-reporting-enabled": "false"}).append(ROWS)
    catalog = f"sm.load_catalog('rest', type='rest', uri={proxy.uri!r})"
    program = f"import sparkmeta as sm; {catalog}.load_table('{namespace}.t').scan().arrow.plan_files()"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert len(proxy.reports) == 1


def test_reports_beyond_a_number_are_dropped() -> None:
    outbox, begun, go_on, called = instruments.Outbox(1), Event(), Event(), list[str]()

    def first() -> None:
        begun.set()
        go_on.wait()

    assert outbox.put(first)
    begun.wait()
    assert outbox.put(lambda: called.append("second"))
    assert not outbox.put(lambda: called.append("third"))
    go_on.set()
    until(lambda: called == ["second"])
    assert outbox.put(lambda: called.append("fourth"))
    until(lambda: called == ["second", "fourth"])


def test_the_environment_names_reporters_of_processes_without_sessions(
    location: str, heard: list[Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data source plans in such a process."""
    table = open_metadata(location, NoSession())
    table.scan().arrow.plan_files()
    assert heard == []
    monkeypatch.setenv("SPARKMETA_METRICS_REPORTER", "reports_of_test:reports.append")
    table.scan().arrow.plan_files()
    assert len(heard) == 1


def test_reporters_of_the_settings(
    tmp_path: Path, spark: SparkSession, heard: list[Report], caplog: pytest.LogCaptureFixture
) -> None:
    """All of them get the report of a commit that lost once; a broken one harms neither the commit nor the others."""
    sm.load_catalog("files", type="hadoop", warehouse=tmp_path.as_uri()).create_table(
        "ns.t", Schema(NestedField(1, "id", LongType(), required=False))
    )
    location = f"{tmp_path.as_uri()}/ns/t"
    names = "nosuch:reporter, log, reports_of_test:reports.append, reports_of_test:missing"
    with configured(spark, {REPORTER: names}), caplog.at_level(logging.INFO, "sparkmeta.reports"):
        first, second = (sm.load_table(location, spark=spark) for _ in range(2))
        first.append(ROWS)
        # An append without a key would begin with the newest version.
        second.append(ROWS, idempotency_key=("loader", 1))
    assert [values(report)["attempts"] for report in heard] == [1, 2]
    assert values(heard[1])["total-data-files"] == 2
    logged = [record.getMessage() for record in caplog.records if record.name == "sparkmeta.reports"]
    assert [json.loads(text) for text in logged if text.startswith("{")] == heard
    assert sum("sent to nosuch:reporter: ModuleNotFoundError" in text for text in logged) == 2
    assert sum("sent to reports_of_test:missing: AttributeError" in text for text in logged) == 2
    with configured(spark, {REPORTER: "log,print"}), pytest.raises(SettingError, match="is 'log,print': expected"):
        sm.load_table(location, spark=spark).scan().arrow.plan_files()


class Meter:
    """What OpenTelemetry's API offers, and what its instruments have been given."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[str, str, float, dict[str, str]]] = {}

    def __getattr__(self, create: str) -> Callable[[str, str], Any]:
        kind = create.removeprefix("create_")

        def instrument(name: str, unit: str) -> Any:
            def record(value: float, attributes: dict[str, str]) -> None:
                self.given[name] = (kind, unit, value, attributes)

            method = {"counter": "add", "gauge": "set", "histogram": "record"}[kind]
            return type("Instrument", (), {method: staticmethod(record)})

        return instrument


def test_open_telemetry(location: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    monkeypatch.setattr("opentelemetry.metrics.get_meter", lambda _: meter)
    instruments._instrument.cache_clear()
    with configured(spark, {REPORTER: "opentelemetry"}):
        sm.load_table(location, spark=spark).scan("part = 'a'").arrow.plan_files()
        scans = {**meter.given}
        with monkeypatch.context() as failing:
            failing.setattr("sparkmeta.scan.plan_files_arrow", None)
            with pytest.raises(TypeError):
                sm.load_table(location, spark=spark).scan().arrow.plan_files()
        catalog = sm.load_catalog("files", type="hadoop", warehouse=f"{tmp_path.as_uri()}/warehouse")
        catalog.create_table("ns.t", Schema(NestedField(1, "id", LongType(), required=False)), spark=spark).append(ROWS)
    instruments._instrument.cache_clear()
    name = {"iceberg.table.name": location.partition("/metadata/")[0]}
    assert meter.given["iceberg.scan.result.data_files"] == ("counter", "", 4, name)
    assert scans["iceberg.scan.planning.duration"][:2] == ("histogram", "ms")
    assert scans["iceberg.scan.planning.duration"][3] == name
    assert meter.given["iceberg.scan.planning.duration"][3] == name | {"error.type": "TypeError"}
    kind, unit, added, attributes = meter.given["iceberg.commit.file_size.added_bytes"]
    assert (kind, unit, attributes["iceberg.operation"]) == ("counter", "By", "append")
    assert meter.given["iceberg.commit.file_size.total_bytes"][:3] == ("gauge", "By", added)
    assert {*meter.given} <= NAMES
