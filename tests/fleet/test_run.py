"""`sparkmeta maintain` over many tables: order, limits, leases, policies of tables, and events."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.cli.schedule import exit_code, read_config, run_maintenance
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.fleet.lease import LEASE, Lease, LeasedError
from sparkmeta.fleet.limits import Budget, RunLimits, Window
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.session import SessionSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkmeta.fleet.run import JobResult

ROWS = pa.schema([("id", pa.int64()), ("part", pa.int64())])
# Health finds five small files in a partition.
THRESHOLDS = "[thresholds]\nmin_small_files = 4\n"
JOBS = "[jobs.rewrite_data_files]\nmin_input_files = 2\n[jobs.expire_snapshots]\nolder_than = '0m'\nretain_last = 1\n"


def refuse_sessions() -> Any:
    raise AssertionError("a session was started")


ALONE = SessionSource(start=refuse_sessions)


class Fleet:
    """Tables in a folder, and a configuration that maintains them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog: Any = sm.load_catalog("c", type="hadoop", warehouse=str(folder / "tables"))

    def table(self, name: str, files: int, version: int = 2, **properties: str) -> sm.Table:
        """Create a table of small files, each by a commit of its own."""
        named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
        table = self.catalog.create_table(f"db.{name}", ROWS, format_version=version, properties=named)
        for number in range(files):
            table = table.append(pa.table({"id": [number], "part": [0]}, ROWS))
        return table

    def load(self, name: str) -> sm.Table:
        return self.catalog.load_table(f"db.{name}")

    def config(self, run: str = "", jobs: str = JOBS) -> Path:
        path = self.folder / "maintenance.toml"
        tables = f'[catalogs.c]\ntype = "hadoop"\nwarehouse = "{self.folder}/tables"\n'
        path.write_text(f'[run]\n{run}\n{tables}{THRESHOLDS}{jobs}[[tables]]\ncatalog = "c"\nnames = ["db.*"]\n')
        return path

    def run(self, run: str = "", jobs: str = JOBS, **options: Any) -> list[JobResult]:
        """Maintain the tables without Spark."""
        config = read_config(self.config(run, jobs))
        return list(run_maintenance(config, ALONE, **{"commit": True, "log": lambda _: None, **options}))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def statuses(results: list[JobResult]) -> dict[tuple[str, str], str]:
    return {(result.table.removeprefix("db."), result.job): result.status for result in results}


def ids(table: sm.Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("id").to_pylist())


# -- Order, and tables side by side -----------------------------------------------------------------------------------


@pytest.mark.parametrize("side_by_side", [1, 4])
def test_tables_side_by_side(fleet: Fleet, side_by_side: int) -> None:
    """Each table's jobs run in their order, and its rows stay."""
    for number in range(8):
        fleet.table(f"t{number}", files=4 + number % 2, version=2 + number % 3)
    results = fleet.run(f"side_by_side = {side_by_side}")
    jobs: dict[str, list[str]] = {}
    for result in results:
        assert result.status == "committed", result
        jobs.setdefault(result.table, []).append(result.job)
    assert jobs == {f"db.t{number}": ["rewrite_data_files", "expire_snapshots", "report"] for number in range(8)}
    for number in range(8):
        table = fleet.load(f"t{number}")
        assert ids(table) == list(range(4 + number % 2))
        assert len(table.inspect.arrow.files()) == len(table.snapshots()) == 1
        assert not table.arrow.check().to_pylist()
    assert {result.status for result in fleet.run()} == {"nothing to do"}


def test_tables_with_most_gain_come_first(fleet: Fleet) -> None:
    fleet.table("a_healthy", files=1)
    fleet.table("b_small_files", files=5)
    results = fleet.run(commit=False)
    assert [result.table for result in results if result.job == "rewrite_data_files"] == [
        "db.b_small_files",
        "db.a_healthy",
    ]


def test_figures_before_and_after(fleet: Fleet) -> None:
    fleet.table("changed", files=5)
    fleet.table("same", files=1)
    (report,) = [result for result in fleet.run() if result.job == "report"]
    assert report.table == "db.changed"
    assert report.plan is not None
    figures = [(report.plan[when]["data_files"], report.plan[when]["snapshots"]) for when in ("before", "after")]
    assert figures == [(5, 5), (1, 1)]


# -- Limits -----------------------------------------------------------------------------------------------------------


def test_a_budget_of_bytes(fleet: Fleet) -> None:
    """A job that would pass it is deferred; smaller ones still run, and the next run goes on."""
    for name in ("a", "b", "c"):
        fleet.table(name, files=5)
    size = sum(fleet.load("a").inspect.arrow.files().column("file_size_in_bytes").to_pylist())
    limit = 2 * size + size // 2
    results = fleet.run(f"max_bytes = {limit}", jobs="[jobs.rewrite_data_files]\n")
    assert Counter(statuses(results).values()) == {"committed": 4, "deferred": 1}
    (deferred,) = [result for result in results if result.status == "deferred"]
    assert (
        deferred.error
        == f"it reads {size} bytes, and the run has used {2 * size} of {2 * size + size // 2} (max_bytes)"
    )
    again = fleet.run("max_bytes = 1", jobs="[jobs.rewrite_data_files]\n")
    assert statuses(again)[deferred.table.removeprefix("db."), "rewrite_data_files"] == "committed"


def test_a_job_that_loses_counts_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan becomes obsolete, and a second one is committed within the budget."""
    fleet.table("a", files=5)
    fleet.table("b", files=5)
    size = sum(fleet.load("a").inspect.arrow.files().column("file_size_in_bytes").to_pylist())

    def overtaken(*_: Any) -> Any:
        monkeypatch.setattr(FileSystemOperations, "commit", original)
        raise CommitConflictError("others were faster")

    original = FileSystemOperations.commit
    monkeypatch.setattr(FileSystemOperations, "commit", overtaken)
    results = fleet.run(f"max_bytes = {2 * size}", jobs="[jobs.rewrite_data_files]\n")
    assert set(statuses(results).values()) == {"committed"}


def test_rows_that_are_read_count(fleet: Fleet) -> None:
    """A file with old and new rows is read; a file with old ones is not."""
    rows = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    old, new = (datetime(year, 1, 1, tzinfo=UTC) for year in (2000, 2100))
    for name in ("a", "b"):
        table = fleet.catalog.create_table(f"db.{name}", rows)
        for moments in ([old, old], [old, new]):
            table = table.append(pa.table({"id": [1, 2], "at": moments}, rows))
    jobs = "[jobs.expire_rows]\ncolumn = 'at'\nolder_than = '1d'\n"
    assert sorted(statuses(fleet.run("max_bytes = 1", jobs)).values()) == ["committed", "committed", "deferred"]
    assert sorted(statuses(fleet.run("max_bytes = 1", jobs + "whole_files = true\n")).values()).count("deferred") == 0


def test_a_job_that_waits_does_not_begin_late(fleet: Fleet) -> None:
    """It waits for the bytes in flight, and the time of the run passes."""
    budget = Budget(RunLimits(max_bytes_in_flight=1, max_time=timedelta(seconds=0.2)))
    refusals: list[str | None] = []

    def job() -> None:
        with budget.reading(1) as refusal:
            refusals.append(refusal)

    thread = threading.Thread(target=job)
    with budget.reading(1) as refusal:
        assert refusal is None
        thread.start()
        time.sleep(0.4)
    thread.join(30)
    assert refusals == ["the run has passed its max_time of 0:00:00.200000"]
    with Budget(RunLimits(max_bytes_in_flight=1)).reading(1):
        pass


def test_no_job_begins_after_the_caller_has_stopped(fleet: Fleet) -> None:
    for name in "abcd":
        fleet.table(name, files=5)
    text = "side_by_side = 2\nmax_bytes_in_flight = 1"
    run = run_maintenance(read_config(fleet.config(text)), ALONE, commit=True, log=lambda _: None)
    next(run)
    run.close()
    before = {name: fleet.load(name).metadata_location for name in "abcd"}
    time.sleep(1)
    assert {name: fleet.load(name).metadata_location for name in "abcd"} == before
    assert sum(len(fleet.load(name).snapshots()) == 5 for name in "abcd") >= 1


@pytest.mark.parametrize("limit", ["window", "max_time"])
def test_no_job_begins_outside_the_time(fleet: Fleet, limit: str) -> None:
    before = fleet.table("a", files=5).metadata_location
    now = datetime.now(UTC)
    later, latest = (f"{now + timedelta(hours=hours):%H:%M}" for hours in (2, 3))
    text = f'window = "{later}-{latest}"' if limit == "window" else 'max_time = "0m"'
    results = fleet.run(text)
    assert {result.status for result in results} == {"deferred"}
    assert fleet.load("a").metadata_location == before
    assert all(limit in (result.error or "") for result in results)
    assert {result.status for result in fleet.run(text, commit=False)} == {"planned"}


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
     ("01:30-02:00", ["01:30", "01:59"], ["02:00", "01:29"])],
)  # fmt: skip
def test_windows(window: str, inside: list[str], outside: list[str]) -> None:
    begin, end = (datetime.strptime(text, "%H:%M").time() for text in window.split("-"))  # noqa: DTZ007
    for texts, expected in ((inside, True), (outside, False)):
        for text in texts:
            moment = datetime.fromisoformat(f"2026-03-01T{text}:00+00:00")
            assert Window(begin, end).has(moment) is expected, text
            assert Window(begin, end).has(moment.astimezone(tz=None)) is expected, text


def test_bytes_in_flight() -> None:
    """Jobs wait for each other; a job above the limit runs alone."""
    budget, sizes = Budget(RunLimits(max_bytes_in_flight=10)), [4, 4, 4, 25, 1, 9, 10, 3]
    lock, in_flight, seen = threading.Lock(), list[int](), list[list[int]]()

    def job(size: int) -> None:
        with budget.reading(size) as refusal:
            assert refusal is None
            with lock:
                in_flight.append(size)
                seen.append([*in_flight])
            time.sleep(0.01)
            with lock:
                in_flight.remove(size)

    threads = [threading.Thread(target=job, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == len(sizes)
    assert all(sum(running) <= 10 or len(running) == 1 for running in seen)
    assert any(len(running) > 1 for running in seen)


# -- Leases -----------------------------------------------------------------------------------------------------------


def test_two_runs_do_not_meet_on_a_table(fleet: Fleet) -> None:
    fleet.table("taken", files=5)
    fleet.table("free", files=5)
    fleet.table("idle", files=1)
    idle = fleet.load("idle").metadata_location
    other = Lease("other", timedelta(hours=1))
    other.take(fleet.load("taken"))
    done = statuses(fleet.run('lease = "30m"'))
    assert (done["taken", "rewrite_data_files"], done["taken", "expire_snapshots"]) == ("leased", "leased")
    assert (done["free", "rewrite_data_files"], done["free", "expire_snapshots"]) == ("committed", "committed")
    assert fleet.load("idle").metadata_location == idle, "no lease without a job to do"
    assert len(fleet.load("taken").inspect.arrow.files()) == 5
    assert LEASE not in fleet.load("free").properties
    assert fleet.load("taken").properties[LEASE].startswith("other ")

    other.give_back(fleet.load("taken"))
    assert statuses(fleet.run('lease = "30m"'))["taken", "rewrite_data_files"] == "committed"
    assert LEASE not in fleet.load("taken").properties


def test_a_lease_ends_by_itself(fleet: Fleet) -> None:
    table = fleet.table("t", files=1)
    Lease("killed", timedelta(seconds=-1)).take(table)
    leased = Lease("next", timedelta(minutes=1)).take(table.refresh())
    assert leased.properties[LEASE].startswith("next ")
    assert Lease("next", timedelta(minutes=1)).take(leased) is leased, "it is new"
    assert Lease("next", timedelta(minutes=5)).take(leased).properties[LEASE] > leased.properties[LEASE]
    with pytest.raises(LeasedError, match="run next maintains it until"):
        Lease("third", timedelta(minutes=1)).take(leased.refresh())
    assert Lease("third", timedelta(minutes=1)).give_back(leased.refresh()).properties[LEASE].startswith("next ")


def test_a_lease_that_ended_stays(fleet: Fleet) -> None:
    """Another run may take it meanwhile. A lease beyond the longest duration is none."""
    killed = Lease("killed", timedelta(seconds=-1))
    table = killed.take(fleet.table("t", files=5))
    assert killed.give_back(table) is table
    with table.transaction() as change:
        change.set_properties({LEASE: "forever 9999-12-31T23:59:59+00:00"})
    assert "leased" not in statuses(fleet.run('lease = "1m"')).values()
    assert LEASE not in fleet.load("t").properties


def test_a_lease_is_taken_before_each_commit(fleet: Fleet) -> None:
    """Another run takes the lease of a table while it waits to be committed."""
    fleet.table("t", files=5)
    taken: list[str] = []

    def log(text: str) -> None:
        if "become about" in text:  # the plan is made
            Lease("other", timedelta(hours=1)).take(fleet.load("t"))
            taken.append(text)

    results = fleet.run('lease = "1m"', jobs="[jobs.rewrite_data_files]\n", log=log)
    assert taken
    assert {result.status for result in results} == {"leased"}
    assert exit_code({"leased", "committed"}) == 3


def test_runs_that_take_a_lease_at_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run takes it after this one has looked, and before it commits."""
    table, commit = fleet.table("t", files=1), FileSystemOperations.commit

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(FileSystemOperations, "commit", commit)
        Lease("faster", timedelta(hours=1)).take(table.refresh())
        return commit(*arguments)

    monkeypatch.setattr(FileSystemOperations, "commit", overtaken)
    with pytest.raises(LeasedError, match="faster"):
        Lease("slower", timedelta(hours=1)).take(table)


# -- Policies of tables -----------------------------------------------------------------------------------------------


def test_properties_come_before_the_configuration(fleet: Fleet) -> None:
    fleet.table("never", files=5, sparkmeta__maintenance__rewrite_data_files="false")
    fleet.table("later", files=5, sparkmeta__maintenance__expire_snapshots__retain_last="3")
    rows = fleet.table("rows", files=1)
    with rows.transaction() as change:
        change.set_properties({"sparkmeta.maintenance.compute-table-stats": "true"})
    done = statuses(fleet.run(commit=False, jobs=JOBS))
    assert ("never", "rewrite_data_files") not in done
    assert done["never", "expire_snapshots"] == "planned"
    assert done["rows", "compute_table_stats"] == "planned"
    fleet.run()
    assert len(fleet.load("never").inspect.arrow.files()) == 5
    assert len(fleet.load("later").snapshots()) == 3


WRONG = {
    "sparkmeta.maintenance.sweep": ("true", "unknown job"),
    "sparkmeta.maintenance.expire_snapshots": ("maybe", "expected true or false"),
    "sparkmeta.maintenance.expire_snapshots.retain_last": ("0", "retain_last is 0"),
    "sparkmeta.maintenance.expire_snapshots.older_than": ("yesterday", "expected a duration"),
    "sparkmeta.maintenance.expire_snapshots.size": ("1", "unknown option"),
    "sparkmeta.maintenance.rewrite_data_files.min_input_files": ("few", "min_input_files is 'few'"),
    "sparkmeta.maintenance.expire_rows": ("true", "column is None"),
    "sparkmeta.maintenance.remove_orphan_files.location": ("/elsewhere", "only the configuration"),
    "sparkmeta.maintenance.remove_orphan_files.force": ("true", "only the configuration"),
    "sparkmeta.maintenance.remove-orphan-files.shared-location": ("true", "only the configuration"),
    "sparkmeta.maintenance.remove_orphan_files.prefix_mismatch_mode": ("delete", "only the configuration"),
}


def test_a_policy_in_two_spellings(fleet: Fleet) -> None:
    table = fleet.table("t", files=5)
    with table.transaction() as change:
        change.set_properties({
            "sparkmeta.maintenance.expire_snapshots.retain_last": "5",
            "sparkmeta.maintenance.expire-snapshots.retain-last": "1",
        })  # fmt: skip
    (result,) = fleet.run()
    assert (result.job, result.status) == ("health", "failed")
    assert "says the same" in (result.error or "")


def test_a_list_in_a_policy(fleet: Fleet) -> None:
    table = fleet.table("t", files=1)
    with table.transaction() as change:
        change.set_properties({"sparkmeta.maintenance.compute_table_stats.columns": "id, part"})
    done = {result.job: result for result in fleet.run(jobs="")}
    assert done["compute_table_stats"].status == "committed"
    assert {*done["compute_table_stats"].committed["distinct_values"]} == {"id", "part"}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_properties(fleet: Fleet, name: str) -> None:
    """They are an error of the table, on which nothing is done; other tables are maintained."""
    text, problem = WRONG[name]
    table = fleet.table("wrong", files=5)
    with table.transaction() as change:
        change.set_properties({name: text})
    fleet.table("right", files=5)
    results = fleet.run()
    (result,) = [result for result in results if result.table == "db.wrong"]
    assert (result.job, result.status) == ("health", "failed")
    assert result.error is not None
    assert name.rpartition(".")[0] in result.error
    assert problem in result.error
    assert len(fleet.load("wrong").inspect.arrow.files()) == 5
    assert statuses(results)["right", "rewrite_data_files"] == "committed"


# -- Events and metrics -----------------------------------------------------------------------------------------------


class Receiver:
    """A server that records requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def _take(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.requests.append((self.command, self.path, dict(self.headers), text))
                self.send_response(200)
                self.end_headers()

            do_POST = do_PUT = _take  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()


def test_events_of_commits(fleet: Fleet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit has an event of its begin and one of its end, by HTTP and in a file."""
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret")
    table = fleet.table("a", files=5)
    fleet.table("idle", files=1)
    fleet.run(f'lineage = "{receiver.url}/api/v1/lineage"')
    events = [json.loads(text) for _, _, _, text in receiver.requests]
    assert {(method, path) for method, path, _, _ in receiver.requests} == {("POST", "/api/v1/lineage")}
    assert {headers["Authorization"] for _, _, headers, _ in receiver.requests} == {"Bearer secret"}
    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        ("db.a.rewrite_data_files", "START"), ("db.a.rewrite_data_files", "COMPLETE"),
        ("db.a.expire_snapshots", "START"), ("db.a.expire_snapshots", "COMPLETE"),
    ]  # fmt: skip
    assert len({event["run"]["runId"] for event in events}) == 2
    assert all(event["outputs"] == [{"namespace": "file", "name": table.location()}] for event in events)
    assert all(datetime.fromisoformat(event["eventTime"]).tzinfo for event in events)

    fleet.table("b", files=5)
    fleet.run(f'lineage = "{fleet.folder}/events.jsonl"')
    written = [json.loads(line) for line in (fleet.folder / "events.jsonl").read_text().splitlines()]
    assert [event["eventType"] for event in written] == ["START", "COMPLETE"] * 2


def test_the_event_of_a_failure(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.table("a", files=5)

    def refuse(*_: Any) -> Any:
        raise ValidationError("it is not to be")

    monkeypatch.setattr(FileSystemOperations, "commit", refuse)
    results = fleet.run(f'lineage = "{fleet.folder}/events.jsonl"', jobs="[jobs.rewrite_data_files]\n")
    assert [result.status for result in results] == ["failed"]
    begin, end = (json.loads(line) for line in (fleet.folder / "events.jsonl").read_text().splitlines())
    assert (begin["eventType"], end["eventType"]) == ("START", "FAIL")
    assert end["run"]["facets"]["errorMessage"]["message"] == "it is not to be"


def test_metrics_of_a_run(fleet: Fleet, receiver: Receiver) -> None:
    fleet.table("a", files=5)
    fleet.run(f'metrics = "{fleet.folder}/maintain.prom"')
    text = (fleet.folder / "maintain.prom").read_text()
    assert 'sparkmeta_maintenance_results{job="rewrite_data_files",status="committed"} 1\n' in text
    assert "# TYPE sparkmeta_maintenance_ended_at_seconds gauge\n" in text
    fleet.run(f'metrics = "{receiver.url}"')
    ((method, path, _, pushed),) = receiver.requests
    assert (method, path) == ("PUT", "/metrics/job/sparkmeta_maintain")
    assert 'status="nothing to do"} 1\n' in pushed


def test_receivers_that_do_not_answer(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.table("a", files=5)
    results = fleet.run('lineage = "http://127.0.0.1:9/lineage"\nmetrics = "/nowhere/to/be.prom"')
    assert {result.status for result in results} == {"committed"}
    assert "http://127.0.0.1:9/lineage: not delivered" in caplog.text
    assert "/nowhere/to/be.prom: not delivered" in caplog.text
    assert caplog.text.count("lineage: not delivered") == 1, "it is asked once"


def test_no_password_is_logged(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.table("a", files=5)
    fleet.run('lineage = "http://user:s3cret@127.0.0.1:9/x"\nmetrics = "http://user:s3cret@127.0.0.1:9"')
    assert caplog.text.count("not delivered") == 2
    assert "s3cret" not in caplog.text


# -- The configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("side_by_side = 0", "run.side_by_side is 0: expected a whole number of 1 or more"),
        ("side_by_side = 'many'", "run.side_by_side is 'many'"),
        ("max_bytes = 1.5", "run.max_bytes is 1.5"),
        ("max_time = '2 weeks'", "run.max_time is '2 weeks': expected a duration"),
        ("window = '22-6h'", "run.window is '22-6h': expected a time of the day"),
        ("window = '22:00-22:00'", "run.window is '22:00-22:00'"),
        ("window = '22:00-06:00+02:00'", "run.window is '22:00-06:00.02:00'"),
        ("lease = 30", "run.lease is 30: expected a duration of at most a day"),
        ("lease = '0m'", "run.lease is '0m'"),
        ("lease = '2d'", "run.lease is '2d'"),
        ("lineage = 's3://bucket/events'", "run.lineage is 's3://bucket/events': expected an http or https URL"),
        ("speed = 'high'", "run.speed is 'high': unknown key; the keys are side_by_side"),
    ],
)
def test_wrong_limits(fleet: Fleet, text: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        read_config(fleet.config(text))


def test_limits_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run:\n  side_by_side: 3\n  max_time: 2h\n  window: 22:00-06:00\ntables:\n- locations:\n  - /t\n")
    limits = read_config(path).limits
    assert (limits.side_by_side, limits.max_time, str(limits.window)) == (3, timedelta(hours=2), "22:00-06:00")
