"""Run the jobs of a configuration, table after table. The failure of a table leaves the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sparkmeta.catalog import load_catalog
from sparkmeta.errors import CommitConflictError, CommitFailedError, SparkmetaError, from_spark
from sparkmeta.maintain.health.examine import examine
from sparkmeta.schedule.jobs import ALWAYS, JOBS, Job
from sparkmeta.table import load_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog
    from sparkmeta.maintain.health.report import HealthReport
    from sparkmeta.schedule.config import MaintenanceConfig, TableGroup
    from sparkmeta.table import Table

COMMITTED, PLANNED, NOTHING, UNSUITABLE = "committed", "planned", "nothing to do", "not applicable"
CONFLICT, FAILED = "conflict", "failed"

# How often a job is planned if other commits make its plan obsolete.
_ATTEMPTS = 3
_CONFLICTS = (CommitConflictError, CommitFailedError)


@dataclass(frozen=True)
class JobResult:
    """The outcome of a job on a table.

    Attributes:
        catalog: the table's catalog; None if it was given by location.
        job: the job, or `health` if the table could not be loaded or examined.
        status: `committed`, `planned` (nothing is committed in a dry run), `nothing to do`, `not applicable` (not to
            tables of this format version), `conflict` (other commits came first: run again) or `failed`.
        findings: what makes the job necessary.
        plan: the plan in numbers.
        committed: what was committed, maybe before an error.
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
    table run in the order of `JOBS`, each on what the one before left.

    Args:
        config: the configuration.
        spark: the session.
        commit: whether plans are committed, unless the configuration says `dry_run`.
        log: takes lines that say what is being done.
    """
    for group in config.tables:
        maintained = _Group(group, config, spark, commit and not config.dry_run, log)
        yield from maintained.results()


def exit_code(statuses: set[str]) -> int:
    """Return the exit code for the statuses of all results: 1 if one failed, 3 after a conflict, else 0."""
    return 1 if FAILED in statuses else 3 if CONFLICT in statuses else 0


@dataclass(frozen=True)
class _Group:
    group: TableGroup
    config: MaintenanceConfig
    spark: SparkSession
    commit: bool
    log: Callable[[str], None]

    def results(self) -> Iterator[JobResult]:
        group = self.group
        if group.catalog is None:
            for location in group.locations:
                yield from self._maintained(location, lambda name: load_table(name, self.spark))
            return
        try:
            catalog = load_catalog(group.catalog, **self.config.catalogs.get(group.catalog, {}))
            problems: list[JobResult] = []
            names = self._names(catalog, problems)
        except Exception as error:  # noqa: BLE001  the other tables are maintained all the same
            yield self._logged(self._failed(", ".join(group.names), error))
            return
        yield from map(self._logged, problems)
        if not names and not problems:
            self.log(f"{group.catalog}: no table is named {', '.join(group.names)}")
        for place, name in enumerate(names, 1):
            self.log(f"{group.catalog}: {name}: table {place} of {len(names)}")
            yield from self._maintained(name, lambda name: catalog.load_table(name, self.spark))

    def _failed(self, name: str, error: Exception) -> JobResult:
        return JobResult(name, self.group.catalog, "health", FAILED, error=_line(error))

    def _names(self, catalog: Catalog, problems: list[JobResult]) -> list[str]:
        """Return the identifiers of the group's tables. The catalog is listed only if a name has a wildcard.

        Args:
            problems: takes a result for each namespace that can't be listed.
        """
        plain = [name for name in self.group.names if not _is_pattern(name)]
        patterns = [name for name in self.group.names if _is_pattern(name)]
        listed = [".".join(name) for name in self._all_tables(catalog, problems)] if patterns else []
        matching = [name for name in listed if any(fnmatchcase(name, pattern) for pattern in patterns)]
        names = dict.fromkeys([*plain, *sorted(matching)])
        return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in self.group.excluded)]

    def _all_tables(self, catalog: Catalog, problems: list[JobResult]) -> Iterator[tuple[str, ...]]:
        namespaces = list(catalog.list_namespaces())
        while namespaces:
            namespace = namespaces.pop()
            try:
                yield from catalog.list_tables(namespace)
                namespaces += catalog.list_namespaces(namespace)
            except Exception as error:  # noqa: BLE001  tables of other namespaces are maintained all the same
                problems.append(self._failed(".".join((*namespace, "*")), error))

    def _maintained(self, name: str, load: Callable[[str], Table]) -> Iterator[JobResult]:
        started = time.perf_counter()
        try:
            table = load(name)
            report = examine(table, self.group.thresholds)
        except Exception as error:  # noqa: BLE001
            seconds = round(time.perf_counter() - started, 3)
            yield self._logged(
                JobResult(name, self.group.catalog, "health", FAILED, error=_line(error), seconds=seconds)
            )
            return
        self.log(f"{name}: {report.headline}, in {report.seconds} s")
        for job in JOBS:
            if job.name in self.group.jobs:
                result, table = self._run(job, name, table, report)
                yield self._logged(result)

    def _logged(self, result: JobResult) -> JobResult:
        problem = f": {result.error}" if result.error else ""
        self.log(f"{result.table}: {result.job}: {result.status}{problem}")
        return result

    def _run(self, job: Job, name: str, table: Table, report: HealthReport) -> tuple[JobResult, Table]:
        started = time.perf_counter()
        configured = self.group.jobs[job.name]
        # Health examines main.
        on_main = configured.get("branch", "main") == "main"
        findings = [finding for finding in report.list_findings if on_main and finding.job == job.name]
        options = {name: value for finding in findings for name, value in finding.options.items()} | configured
        facts: dict[str, Any] = {"status": NOTHING}
        try:
            # Another job may have changed the table's format.
            table = table.refresh()
            if not job.applies(table, configured):
                facts = {"status": UNSUITABLE}
            elif findings or not on_main or job.by_plan or configured.get(ALWAYS, False):
                facts = self._planned(job, table, options)
                table = table.refresh()
        except Exception as error:  # noqa: BLE001
            facts = _failure(error)
        seconds = round(time.perf_counter() - started, 3)
        kinds = [finding.finding for finding in findings]
        return JobResult(name, self.group.catalog, job.name, findings=kinds, seconds=seconds, **facts), table

    def _planned(self, job: Job, table: Table, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plan a job, and commit it. If other commits make the plan obsolete, plan again.

        A plan that failed after it had committed a part is reported with this part, and not repeated.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            plan = job.plan(table, options)
            summary = plan.summary()
            if getattr(summary, "is_empty", False):
                return {"status": NOTHING, "plan": plan.result()["plan"]}
            for line in str(summary).splitlines():
                self.log(f"  {line}")
            if not self.commit:
                return {"status": PLANNED, "plan": plan.result()["plan"]}
            try:
                plan.commit()
                outcome = {"status": COMMITTED}
            except Exception as error:
                if getattr(plan, "is_partly_committed", False):
                    outcome = _failure(error)
                elif attempt == _ATTEMPTS or not isinstance(error, _CONFLICTS):
                    raise
                else:
                    table = table.refresh()
                    continue
            result = plan.result()
            return {**outcome, "plan": result["plan"], "committed": result["committed"]}
        raise AssertionError("unreachable")


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _failure(error: Exception) -> dict[str, str]:
    """Return the status and the error of a job that failed."""
    return {"status": CONFLICT if isinstance(error, _CONFLICTS) else FAILED, "error": _line(error)}


def _line(error: Exception) -> str:
    """Return an error in one line."""
    known = from_spark(error) or error
    text = " ".join(str(known).splitlines()[:1]) or "no message"
    return text if isinstance(known, SparkmetaError) else f"{type(known).__name__}: {text}"
