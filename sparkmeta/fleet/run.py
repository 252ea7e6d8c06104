"""Maintain tables side by side: examine all of them, and run the jobs that they need, most gain per cost first.

A run has no state of its own. If it is killed, the next one examines the tables again and finds what is left.
"""

from __future__ import annotations

import queue
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sparkmeta.errors import is_conflict, problem_line
from sparkmeta.fleet.examined import figures_of
from sparkmeta.fleet.jobs import (
    ALWAYS,
    COMMITTED,
    CONFLICT,
    DEFERRED,
    FAILED,
    JOBS,
    LEASED,
    NOTHING,
    PLANNED,
    UNSUITABLE,
    Check,
)
from sparkmeta.fleet.lease import Lease, LeasedError
from sparkmeta.fleet.limits import Budget
from sparkmeta.fleet.policy import jobs_of
from sparkmeta.maintain.health import examine
from sparkmeta.text import counted

if TYPE_CHECKING:
    from sparkmeta.fleet.events import Lineage
    from sparkmeta.fleet.jobs import Job
    from sparkmeta.fleet.limits import RunLimits
    from sparkmeta.maintain.health_findings import Finding, HealthOptions
    from sparkmeta.table import Table

# Maximum number of times that a job is planned, if other commits make its plans obsolete.
_ATTEMPTS: Final = 3
# The gain of a finding, and the bytes that cost as much as a job itself.
_WEIGHTS: Final = {"high": 9, "medium": 3, "low": 1}
_JOB_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class TableTask:
    """A table to maintain.

    Attributes:
        name: its identifier, joined by dots, or its location; a name or pattern that chooses no table.
        catalog: its catalog; None if it was given by location.
        jobs: the jobs of the configuration, with their options.
        thresholds: the thresholds of health.
        load: loads it. Raises the reason why it can't be chosen or loaded.
    """

    name: str
    catalog: str | None
    jobs: Mapping[str, Mapping[str, Any]]
    thresholds: HealthOptions
    load: Callable[[], Table]


@dataclass(frozen=True)
class JobResult:
    """The outcome of a job on a table.

    Attributes:
        table: its identifier, joined by dots, or its location; a name or pattern that chooses no table.
        catalog: the table's catalog; None if it was given by location.
        job: the job; `health` if the table could not be chosen, loaded or examined; `report` for the figures of a
            changed table, before and after.
        status: `committed`, `planned` (nothing is committed in a dry run), `nothing to do`, `not applicable` (to tables
            of this format version), `deferred` (a limit of the run is reached), `leased` (another run maintains the
            table), `conflict` (other commits came first: run again) or `failed`.
        findings: the findings that make the job necessary.
        plan: the plan in numbers; for a report, the figures `before` and `after`.
        committed: the committed changes, possibly before an error.
        error: the error, or why the job is deferred, in one line.
    """

    table: str
    catalog: str | None
    job: str
    status: str
    findings: list[str] = field(default_factory=list)
    plan: dict[str, Any] | None = None
    committed: Any = None
    error: str | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the values of the result by name, in JSON-compatible types."""
        return asdict(self)


HEALTH, REPORT = "health", "report"
"""The jobs in results of tables that can't be loaded or examined, and in figures before and after."""


def run_tasks(
    tasks: Sequence[TableTask],
    *,
    limits: RunLimits,
    commit: bool,
    log: Callable[[str], None],
    lineage: Lineage | None = None,
) -> Iterator[JobResult]:
    """Maintain tables, and yield a result for each table and job.

    All tables are examined first. Tables with the most severe findings for the bytes concerned come first, and tables
    without findings last. Jobs of a table run in the order of `JOBS`, each on the result of the previous job. A job
    runs if the table's health makes it necessary, if its plan decides that, if it is for another branch than main, or
    with the option `always`. If a table fails, the others still run.

    If the caller stops before the last result, no further job begins to commit.

    Args:
        tasks: the tables.
        limits: the limits of the run.
        commit: whether plans are committed.
        log: takes text about the progress, from several threads.
        lineage: takes events of commits.
    """
    lease = Lease(uuid.uuid4().hex[:12], limits.lease) if commit and limits.lease is not None else None
    run = _Run(Budget(limits), commit, log, lease, lineage)
    pool = ThreadPoolExecutor(limits.side_by_side, thread_name_prefix="sparkmeta-maintain")
    try:
        examined = []
        for table in pool.map(run.examine, tasks):
            yield from table.results
            if table.jobs:
                examined.append(table)
        run.budget.begin()
        yield from run.maintained(pool, sorted(examined, key=lambda table: -table.gain_per_cost))
    finally:
        run.budget.stop()
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Examined:
    """A table that was examined.

    Attributes:
        task: the table.
        jobs: its jobs, except a check; none if it could not be examined.
        findings: what health found.
        figures: its figures.
        results: the results so far.
    """

    task: TableTask
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[JobResult, ...] = ()

    @property
    def gain_per_cost(self) -> float:
        """The weight of the findings that the jobs mend, for the bytes concerned."""
        mended = [finding for finding in self.findings if finding.job in self.jobs]
        size = sum(finding.bytes or 0 for finding in mended)
        return sum(_WEIGHTS.get(finding.severity, 1) for finding in mended) / (_JOB_BYTES + size)


@dataclass(frozen=True)
class _Run:
    budget: Budget
    commit: bool
    log: Callable[[str], None]
    lease: Lease | None
    lineage: Lineage | None

    def examine(self, task: TableTask) -> _Examined:
        """Load, check and examine a table."""
        started, results = time.perf_counter(), []
        try:
            table = task.load()
            jobs = jobs_of(task.jobs, table.metadata.properties)
            # Check first: health can't examine some of the damage that a check names.
            if (options := jobs.pop(Check.name, None)) is not None:
                results.append(_TableRun(self, _Examined(task, {Check.name: options}), table).result(Check()))
            if not jobs:
                return _Examined(task, results=tuple(results))
            report = examine(table, task.thresholds)
        except Exception as error:  # noqa: BLE001  the other tables are maintained all the same
            return _Examined(task, results=(*results, self.failed(task, HEALTH, error, started)))
        self.log(f"{task.name}: {report.headline}, in {report.seconds} s")
        return _Examined(task, jobs, report.list_findings, figures_of(report), tuple(results))

    def maintained(self, pool: ThreadPoolExecutor, tables: Sequence[_Examined]) -> Iterator[JobResult]:
        """Run the jobs of tables in threads, and yield the results as they come."""
        results: queue.SimpleQueue[JobResult | None] = queue.SimpleQueue()

        def work(number: int, examined: _Examined) -> None:
            try:
                self.log(f"{examined.task.name}: table {number} of {len(tables)}")
                for result in self._results(examined):
                    results.put(result)
            finally:
                results.put(None)

        futures = [pool.submit(work, number, table) for number, table in enumerate(tables, 1)]
        for _ in futures:
            while (result := results.get()) is not None:
                yield result
        for future in futures:
            future.result()

    def _results(self, examined: _Examined) -> Iterator[JobResult]:
        task, started = examined.task, time.perf_counter()
        try:
            table = task.load()
        except Exception as error:  # noqa: BLE001
            yield self.failed(task, HEALTH, error, started)
            return
        table_run = _TableRun(self, examined, table)
        try:
            for job in JOBS:
                if job.name in examined.jobs and not self.budget.is_stopped:
                    yield table_run.result(job)
        finally:
            table_run.give_back()
        if table_run.has_changed:
            yield table_run.report()

    def logged(self, result: JobResult) -> JobResult:
        """Log a result, and return it."""
        problem = f": {result.error}" if result.error else ""
        self.log(f"{result.table}: {result.job}: {result.status}{problem}")
        return result

    def failed(self, task: TableTask, job: str, error: Exception, started: float) -> JobResult:
        """Return the result of a table that can't be loaded or examined."""
        self.log_traceback(task.name, error)
        seconds = since(started)
        return self.logged(JobResult(task.name, task.catalog, job, FAILED, error=problem_line(error), seconds=seconds))

    def log_traceback(self, table: str, error: Exception) -> None:
        """Log where an error was raised."""
        self.log_lines(table, "".join(traceback.format_exception(error)))

    def log_lines(self, table: str, text: str) -> None:
        """Log several lines about a table by one call, so that no line of another thread is between them."""
        self.log("\n".join([f"{table}:", *(f"  {line}" for line in text.splitlines())]))


@dataclass
class _TableRun:
    """A table whose jobs run one after another."""

    run: _Run
    examined: _Examined
    table: Table
    has_changed: bool = False

    def result(self, job: Job) -> JobResult:
        """Run a job, and return its result."""
        started, task = time.perf_counter(), self.examined.task
        configured = self.examined.jobs[job.name]
        # Health examines main.
        on_main = configured.get("branch", "main") == "main"
        findings = [finding for finding in self.examined.findings if on_main and finding.job == job.name]
        options = {name: value for finding in findings for name, value in finding.options.items()}
        if "target_file_size_bytes" in configured:
            # Health compares files with the table's target.
            options.pop("min_file_size_bytes", None)
        options |= configured
        facts: dict[str, Any] = {"status": NOTHING}
        try:
            # Other jobs and runs may have changed the table.
            self.table = self.table.refresh()
            if not job.applies(self.table, configured):
                facts = {"status": UNSUITABLE}
            elif isinstance(job, Check):
                facts = job.outcome(self.table)
            elif self.run.commit and (refusal := self.run.budget.refusal()) is not None:
                facts = {"status": DEFERRED, "error": refusal}
            elif findings or not on_main or job.by_plan or configured.get(ALWAYS, False):
                facts = self._planned(job, options)
        except Exception as error:  # noqa: BLE001
            facts = self._failure(error)
        kinds = [finding.finding for finding in findings]
        result = JobResult(task.name, task.catalog, job.name, findings=kinds, seconds=since(started), **facts)
        return self.run.logged(result)

    def _planned(self, job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plan a job, and commit it. If other commits make the plan obsolete, plan again.

        If a plan fails after it has committed a part, this part is reported, and the job is not repeated.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            plan = job.plan(self.table, options)
            summary = plan.summary()
            if summary.is_empty or getattr(summary, "is_current", False):
                return {"status": NOTHING, "plan": plan.result()["plan"]}
            self.run.log_lines(self.examined.task.name, str(summary))
            if not self.run.commit:
                return {"status": PLANNED, "plan": plan.result()["plan"]}
            try:
                with self.run.budget.reading(job.reads(summary)) as refusal:
                    if refusal is not None:
                        return {"status": DEFERRED, "plan": plan.result()["plan"], "error": refusal}
                    return self._committed(job, plan)
            except Exception as error:
                if isinstance(error, LeasedError) or attempt == _ATTEMPTS or not is_conflict(error):
                    raise
            self.table = self.table.refresh()
            if not job.applies(self.table, options):
                return {"status": UNSUITABLE}
        raise AssertionError("unreachable")

    def _committed(self, job: Job, plan: Any) -> dict[str, Any]:
        """Commit a plan, and return its outcome. A failure after a part was committed is part of the outcome."""
        if self.run.lease is not None:
            self.run.lease.take(self.table.refresh())
        task, failure, location = self.examined.task, {}, self.table.metadata.location
        lineage = self.run.lineage
        ended = None if lineage is None else lineage.began(task.catalog, task.name, job.name, location)
        error_line = None
        try:
            plan.commit()
        except Exception as error:
            error_line = problem_line(error)
            if not plan.is_partly_committed:
                raise
            failure = self._failure(error)
        finally:
            if ended is not None:
                ended(error=error_line)
        result = plan.result()
        self.has_changed |= result["committed"] is not None
        outcome = failure or _outcome(result["committed"])
        return {**outcome, "plan": result["plan"], "committed": result["committed"]}

    def _failure(self, error: Exception) -> dict[str, str]:
        """Return the status and the error of a job that failed."""
        status = LEASED if isinstance(error, LeasedError) else CONFLICT if is_conflict(error) else FAILED
        if status == FAILED:
            self.run.log_traceback(self.examined.task.name, error)
        return {"status": status, "error": problem_line(error)}

    def give_back(self) -> None:
        """End the lease. If this fails, it ends by itself."""
        if self.run.lease is None:
            return
        try:
            self.table = self.run.lease.give_back(self.table.refresh())
        except Exception as error:  # noqa: BLE001
            self.run.log(f"{self.examined.task.name}: the lease is not given back: {problem_line(error)}")

    def report(self) -> JobResult:
        """Examine the table again, and return the figures before and after."""
        started, task = time.perf_counter(), self.examined.task
        try:
            after = figures_of(examine(self.table.refresh(), task.thresholds))
        except Exception as error:  # noqa: BLE001
            return self.run.failed(task, REPORT, error, started)
        figures = {"before": dict(self.examined.figures), "after": after}
        return self.run.logged(
            JobResult(task.name, task.catalog, REPORT, COMMITTED, plan=figures, seconds=since(started))
        )


def since(started: float) -> float:
    """Return the seconds since a time of `time.perf_counter`."""
    return round(time.perf_counter() - started, 3)


def _outcome(committed: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the status of a job whose commit raised no error, possibly after commits of some parts failed."""
    if committed is None:
        return {"status": NOTHING}
    if not (failed := committed.get("failed_commits")):
        return {"status": COMMITTED}
    files = counted(committed["failed_data_files"], "data file")
    return {"status": FAILED, "error": f"{counted(failed, 'commit')} failed: {files} not rewritten"}
