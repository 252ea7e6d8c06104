"""Run the jobs of a configuration, table after table. If a table fails, the others still run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import SparkmetaError, from_spark, is_conflict
from sparkmeta.health.examine import examine
from sparkmeta.inspect.units import counted
from sparkmeta.schedule.jobs import ALWAYS, JOBS, Job
from sparkmeta.schedule.tables import ChosenTable, choose_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.health.report import HealthReport
    from sparkmeta.schedule.config import MaintenanceConfig
    from sparkmeta.table import Table

COMMITTED, PLANNED, NOTHING, UNSUITABLE = "committed", "planned", "nothing to do", "not applicable"
CONFLICT, FAILED = "conflict", "failed"

# How often a job is planned if other commits make its plan obsolete.
_ATTEMPTS = 3


@dataclass(frozen=True)
class JobResult:
    """The outcome of a job on a table.

    Attributes:
        table: its identifier, joined by dots, or its location; a name or pattern that chooses no table.
        catalog: the table's catalog; None if it was given by location.
        job: the job, or `health` if the table could not be chosen, loaded or examined.
        status: `committed`, `planned` (nothing is committed in a dry run), `nothing to do`, `not applicable` (not to
            tables of this format version), `conflict` (other commits came first: run again) or `failed`.
        findings: what makes the job necessary.
        plan: the plan in numbers.
        committed: what was committed, possibly before an error.
        error: what failed, in one line.
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
        """Return the result by name, as for JSON."""
        return asdict(self)


def run_maintenance(
    config: MaintenanceConfig, spark: SparkSession, *, commit: bool, log: Callable[[str], None]
) -> Iterator[JobResult]:
    """Maintain the tables of a configuration, and yield a result for each table and job.

    A job runs if the table's health makes it necessary, if it is for another branch than main, or with the option
    `always`. Its options are those of the findings that name it and, before them, those of the configuration. Jobs of a
    table run in the order of `JOBS`, each on the result of the one before.

    Args:
        config: the configuration.
        spark: the session.
        commit: whether plans are committed, unless the configuration says `dry_run`.
        log: takes lines that say what is being done.
    """
    tables = choose_tables(config)
    for place, chosen in enumerate(tables, 1):
        log(f"{chosen.name}: table {place} of {len(tables)}")
        yield from _Maintained(chosen, spark, commit and not config.dry_run, log).results()


def exit_code(statuses: set[str]) -> int:
    """Return the exit code for the statuses of all results: 1 if one failed, 3 after a conflict, else 0."""
    return 1 if FAILED in statuses else 3 if CONFLICT in statuses else 0


@dataclass(frozen=True)
class _Maintained:
    chosen: ChosenTable
    spark: SparkSession
    commit: bool
    log: Callable[[str], None]

    def results(self) -> Iterator[JobResult]:
        name, group = self.chosen.name, self.chosen.group
        started = time.perf_counter()
        try:
            table = self.chosen.load(self.spark)
            report = examine(table, group.thresholds)
        except Exception as error:  # noqa: BLE001  the other tables are maintained all the same
            seconds = round(time.perf_counter() - started, 3)
            self._log_traceback(error)
            yield self._logged(JobResult(name, group.catalog, "health", FAILED, error=_line(error), seconds=seconds))
            return
        self.log(f"{name}: {report.headline}, in {report.seconds} s")
        for job in JOBS:
            if job.name in group.jobs:
                result, table = self._run(job, table, report)
                yield self._logged(result)

    def _logged(self, result: JobResult) -> JobResult:
        problem = f": {result.error}" if result.error else ""
        self.log(f"{result.table}: {result.job}: {result.status}{problem}")
        return result

    def _run(self, job: Job, table: Table, report: HealthReport) -> tuple[JobResult, Table]:
        started = time.perf_counter()
        name, group = self.chosen.name, self.chosen.group
        configured = group.jobs[job.name]
        # Health examines main.
        on_main = configured.get("branch", "main") == "main"
        findings = [finding for finding in report.list_findings if on_main and finding.job == job.name]
        options = {name: value for finding in findings for name, value in finding.options.items()}
        if "target_file_size_bytes" in configured:
            # Health compares files with the table's target.
            options.pop("min_file_size_bytes", None)
        options |= configured
        facts: dict[str, Any] = {"status": NOTHING}
        try:
            # Other jobs and runs may have changed the table.
            table = table.refresh()
            if not job.applies(table, configured):
                facts = {"status": UNSUITABLE}
            elif findings or not on_main or job.by_plan or configured.get(ALWAYS, False):
                facts = self._planned(job, table, options)
        except Exception as error:  # noqa: BLE001
            facts = self._failure(error)
        seconds = round(time.perf_counter() - started, 3)
        kinds = [finding.finding for finding in findings]
        return JobResult(name, group.catalog, job.name, findings=kinds, seconds=seconds, **facts), table

    def _planned(self, job: Job, table: Table, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plan a job, and commit it. If other commits make the plan obsolete, plan again.

        A plan that failed after it had committed a part is reported with this part, and not repeated.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            plan = job.plan(table, options)
            summary = plan.summary()
            if getattr(summary, "is_empty", False) or getattr(summary, "is_current", False):
                return {"status": NOTHING, "plan": plan.result()["plan"]}
            for line in str(summary).splitlines():
                self.log(f"  {line}")
            if not self.commit:
                return {"status": PLANNED, "plan": plan.result()["plan"]}
            failure: dict[str, str] = {}
            try:
                plan.commit()
            except Exception as error:
                if getattr(plan, "is_partly_committed", False):
                    failure = self._failure(error)
                elif attempt == _ATTEMPTS or not is_conflict(error):
                    raise
                else:
                    table = table.refresh()
                    if not job.applies(table, options):
                        return {"status": UNSUITABLE}
                    continue
            result = plan.result()
            outcome = failure or _outcome(result["committed"])
            return {**outcome, "plan": result["plan"], "committed": result["committed"]}
        raise AssertionError("unreachable")

    def _failure(self, error: Exception) -> dict[str, str]:
        """Return the status and the error of a job that failed."""
        if is_conflict(error):
            return {"status": CONFLICT, "error": _line(error)}
        self._log_traceback(error)
        return {"status": FAILED, "error": _line(error)}

    def _log_traceback(self, error: Exception) -> None:
        for line in "".join(traceback.format_exception(error)).splitlines():
            self.log(f"  {line}")


def _outcome(committed: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the status of a job whose commit raised no error, possibly after commits of some parts failed."""
    failed = (committed or {}).get("failed_commits")
    if committed is None or not failed:
        return {"status": COMMITTED}
    files = counted(committed["failed_data_files"], "data file")
    return {"status": FAILED, "error": f"{counted(failed, 'commit')} failed: {files} not rewritten"}


def _line(error: Exception) -> str:
    """Return an error in one line."""
    known = from_spark(error) or error
    text = " ".join(str(known).splitlines()[:1]) or "no message"
    return text if isinstance(known, SparkmetaError) else f"{type(known).__name__}: {text}"
