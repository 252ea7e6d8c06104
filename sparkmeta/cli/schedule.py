"""Maintain the tables of a configuration, table after table. If a table fails, the others still run."""

from __future__ import annotations

import re
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmeta.catalog import load_catalog
from sparkmeta.checks import TEXT, Options, Rule, option_fields, required_options, rule_of
from sparkmeta.entries.relation import head
from sparkmeta.errors import NoSuchTableError, SparkmetaError, ValidationError, is_conflict, problem_line, shown
from sparkmeta.fleet.listing import Listing, has_wildcard, matches
from sparkmeta.inspect.check import violations
from sparkmeta.inspect.partition_statistics import has_partitions
from sparkmeta.maintain.health import examine
from sparkmeta.maintain.health_findings import HealthOptions
from sparkmeta.maintain.maintenance import options_of
from sparkmeta.maintain.upgrade import can_upgrade
from sparkmeta.spec.metadata import has_tree
from sparkmeta.storage.location import normalize
from sparkmeta.table import load_table
from sparkmeta.text import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog
    from sparkmeta.fleet.listing import Identifier
    from sparkmeta.maintain.health_findings import Finding
    from sparkmeta.table import Table


# -- Maintenance jobs, in their order ---------------------------------------------------------------------------------
# A new operation of `table.maintenance` becomes a job by one line in `JOBS`.


ALWAYS = "always"
"""An option of every job: run it even if health does not find it necessary. Its plan may still be empty."""

_TIME = re.compile(r"(\d+)\s*(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# DataFrames and snapshots are not for configurations.
_NOT_CONFIGURABLE = {"files", "snapshot_id", "snapshot_ids"}


_Options = Mapping[str, Any]


def _of_all(_table: Table, _options: _Options) -> bool:
    return True


def _of_trees(table: Table, _options: _Options) -> bool:
    return has_tree(table.metadata)


def _of_lists(table: Table, _options: _Options) -> bool:
    return not has_tree(table.metadata) and table.format_version < 4


def _takes_rows(table: Table, _options: _Options) -> bool:
    return has_tree(table.metadata) or table.format_version < 4


def _has_deletes(table: Table, options: _Options) -> bool:
    return _takes_rows(table, options) and table.format_version > 1


def _of_earlier_version(table: Table, options: _Options) -> bool:
    return can_upgrade(table.metadata, options["format_version"])


def _has_partitions(table: Table, _options: _Options) -> bool:
    return has_partitions(table.state)


@dataclass(frozen=True)
class Job:
    """A maintenance operation.

    Attributes:
        name: the name of a method of `Maintenance`, which returns a plan.
        by_plan: whether its plan decides if there is anything to do. If not, the job is planned only if a finding names
            it.
        suits: returns whether the job, with its options, is possible for a table. If not, the job is skipped.
    """

    name: str
    by_plan: bool = False
    suits: Callable[[Table, _Options], bool] = _of_all

    @property
    def kind(self) -> type[Options]:
        """The class of its options."""
        return options_of(self.name)

    @property
    def options(self) -> dict[str, str]:
        """The names of its options -> their annotated types."""
        named = {each.name: str(each.type) for each in option_fields(self.kind) if each.name not in _NOT_CONFIGURABLE}
        return {**named, ALWAYS: "bool"}

    def check_types(self, options: Mapping[str, Any], place: str) -> None:
        """Raise ValidationError for an unknown option, or a value of a wrong type.

        Args:
            place: the place of the options in the configuration.
        """
        known = self.options
        for name, value in options.items():
            if name not in known:
                listed = ", ".join(sorted(known))
                raise ValidationError(f"{place}.{name} is {shown(value)}: unknown option; the options are {listed}")
            _rule(known[name]).check(f"{place}.{name}", value)

    def check_values(self, options: Mapping[str, Any]) -> None:
        """Check values of the right types as far as possible without a table.

        Raises:
            ValidationError: a value is out of range.
            InvalidFilterError: a filter is not valid.
        """
        self.kind(**self._arguments(options)).check()

    def applies(self, table: Table, options: Mapping[str, Any]) -> bool:
        """Return whether the job is possible for a table. If not, it is skipped."""
        return self.suits(table, {**required_options(self.kind), **options})

    def plan(self, table: Table, options: Mapping[str, Any]) -> Any:
        """Return the plan of the job for a table."""
        return getattr(table.maintenance, self.name)(**self._arguments(options))

    def _arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        named = {**required_options(self.kind), **options}
        return {name: _value(value, self.options[name]) for name, value in named.items() if name != ALWAYS}


@dataclass(frozen=True)
class _NoOptions(Options):
    """The options of a job that has none."""


@dataclass(frozen=True)
class Check(Job):
    """The check of the current snapshot's metadata, which changes nothing. It fails if there are contradictions."""

    name: str = "check"

    @property
    def kind(self) -> type[Options]:
        return _NoOptions

    def outcome(self, table: Table) -> dict[str, Any]:
        """Return the status, and the first contradictions as the plan."""
        rows = head(violations(table.state).frame(), _MOST_CONTRADICTIONS + 1).to_pylist()
        if not rows:
            return {"status": NOTHING}
        is_abridged = len(rows) > _MOST_CONTRADICTIONS
        count = f"more than {_MOST_CONTRADICTIONS}" if is_abridged else f"{len(rows)}"
        first = f"{rows[0]['location']}: {rows[0]['rule']}: {rows[0]['problem']}"
        error = f"contradictions in the metadata: {count}, such as {first}"
        return {"status": FAILED, "plan": {"contradictions": rows[:_MOST_CONTRADICTIONS]}, "error": error}


JOBS = (
    Check(),
    Job("upgrade", by_plan=True, suits=_of_earlier_version),
    Job("downgrade", by_plan=True, suits=_of_trees),
    Job("expire_rows", by_plan=True, suits=_takes_rows),
    Job("convert_equality_deletes", suits=_has_deletes),
    Job("rewrite_data_files", suits=_takes_rows),
    Job("rewrite_position_delete_files", suits=_has_deletes),
    Job("remove_dangling_deletes", suits=_has_deletes),
    Job("compact_manifests", suits=_of_trees),
    Job("rewrite_manifests", suits=_of_lists),
    Job("expire_snapshots", by_plan=True),
    Job("remove_orphan_files", by_plan=True),
    Job("compute_partition_stats", by_plan=True, suits=_has_partitions),
    Job("compute_table_stats", by_plan=True),
)
BY_NAME = {job.name: job for job in JOBS}


def job_name(text: str) -> str:
    """Return the name of a job by its name in a configuration, which may be the name of its command."""
    name = text.replace("-", "_")
    return "compact_manifests" if name == "compact" else name


_WORDS = {"true": True, "false": False}
_WHOLE = re.compile(r"-?\d+")


def from_text(value: Any, annotation: str) -> Any:
    """Convert a configuration's text to an annotated type. Return other values, and texts that don't fit, unchanged."""
    if not isinstance(value, str):
        return value
    kinds = annotation.split(" | ")
    if "bool" in kinds:
        return _WORDS.get(value, value)
    if "int" in kinds:
        return int(value) if _WHOLE.fullmatch(value) else value
    if "float" in kinds:
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _is_duration(value: Any) -> bool:
    try:
        return isinstance(value, str) and isinstance(_value(value, "datetime"), datetime)
    except OverflowError:  # before the year 1
        return False


_DURATION = Rule("a duration such as 36h or 7d", _is_duration)


def _rule(annotation: str) -> Rule:
    """Return the rule of an option in a configuration. Times are durations there, and expressions are texts."""
    return _DURATION if "datetime" in annotation else rule_of(annotation) or TEXT


def _value(value: Any, annotation: str) -> Any:
    """Return an option's value for the method: durations are times before now."""
    match = _TIME.fullmatch(value) if isinstance(value, str) and "datetime" in annotation else None
    return value if match is None else datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})


# -- Read and check the configuration ---------------------------------------------------------------------------------
# It is a TOML or YAML file. All of it is checked before anything runs.


_THRESHOLDS = {field.name: str(field.type) for field in fields(HealthOptions)}


@dataclass(frozen=True)
class TableGroup:
    """Tables that are maintained in the same way.

    Attributes:
        catalog: the name of their catalog; None for tables named by location.
        names: identifiers, with `*` and `?` for any characters.
        excluded: identifiers of tables that are left out.
        locations: the folders of tables without a catalog.
        jobs: job -> its options.
        thresholds: the thresholds of health.
    """

    catalog: str | None
    names: tuple[str, ...]
    excluded: tuple[str, ...]
    locations: tuple[str, ...]
    jobs: Mapping[str, Mapping[str, Any]]
    thresholds: HealthOptions


@dataclass(frozen=True)
class MaintenanceConfig:
    """A configuration of maintenance.

    Attributes:
        dry_run: whether nothing is committed, regardless of the command line.
        catalogs: catalog -> its properties, in addition to pyiceberg's configuration.
        tables: the groups, in the order of maintenance.
    """

    dry_run: bool
    catalogs: Mapping[str, Mapping[str, str]]
    tables: tuple[TableGroup, ...]


def read_config(path: str | Path) -> MaintenanceConfig:
    """Read the configuration in a file: TOML, or YAML if its name ends with `.yaml` or `.yml`.

    Raises:
        ValidationError: the file does not exist or can't be parsed, or a key, job or option is unknown or has a wrong
            value.
    """
    return _config(_parsed(Path(path)), str(path))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"{path}: it can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path}: it can't be read: {error}") from error
    if path.suffix in (".yaml", ".yml"):
        return _yaml(text, path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(f"{path}: it is not valid TOML: {error}") from error


def _yaml(text: str, path: Path) -> dict[str, Any]:
    """Parse YAML by pyiceberg's parser, which reads scalars as texts. Keys determine the numbers and booleans."""
    import strictyaml

    try:
        parsed = strictyaml.load(text, label=str(path)).data
    except strictyaml.YAMLError as error:
        raise ValidationError(f"{path}: it is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(parsed, dict):
        raise ValidationError(f"{path} is {shown(parsed)}: expected keys and values")
    typed: dict[str, Any] = _typed(
        parsed, {"dry_run": "bool"}, thresholds=_typed_thresholds, jobs=_typed_jobs, tables=_typed_groups
    )
    return typed


def _typed(values: Any, annotations: Mapping[str, str], **parts: Callable[[Any], Any]) -> Any:
    """Convert the texts of YAML by the annotated types of their keys.

    Args:
        values: key -> text. A value that is not a mapping is returned unchanged, and refused later.
        annotations: key -> its type. Texts of other keys are strings.
        parts: key -> the function that converts its value.
    """
    if not isinstance(values, dict):
        return values
    return {
        key: parts[key](value) if key in parts else from_text(value, annotations.get(key, "str"))
        for key, value in values.items()
    }


def _typed_groups(groups: Any) -> Any:
    if not isinstance(groups, list):
        return groups
    return [_typed(group, {}, thresholds=_typed_thresholds, jobs=_typed_jobs) for group in groups]


def _typed_thresholds(values: Any) -> Any:
    return _typed(values, _THRESHOLDS)


def _typed_jobs(jobs: Any) -> Any:
    if not isinstance(jobs, dict):
        return jobs
    return {name: _typed_options(job_name(name), options) for name, options in jobs.items()}


def _typed_options(job: str, options: Any) -> Any:
    if options == "":  # nothing after the job's name
        return {}
    if job in BY_NAME and isinstance(options, dict):
        return _typed(options, BY_NAME[job].options)
    return from_text(options, "bool")


def _config(document: Mapping[str, Any], file: str) -> MaintenanceConfig:
    _known(document, ("dry_run", "catalogs", "thresholds", "jobs", "tables"), file, "")
    dry_run = document.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise ValidationError(f"{file}: dry_run is {shown(dry_run)}: expected true or false")
    catalogs = {
        name: _properties(properties, file, f"catalogs.{name}")
        for name, properties in _table(document, "catalogs", file, "").items()
    }
    common = _jobs(_table(document, "jobs", file, ""), file, "jobs")
    thresholds = _table(document, "thresholds", file, "")
    _thresholds(thresholds, file, "thresholds")
    groups = document.get("tables", [])
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise ValidationError(f"{file}: tables is {shown(groups)}: expected one or more [[tables]]")
    read = [_group(group, common, thresholds, file, f"tables[{place}]") for place, group in enumerate(groups)]
    return MaintenanceConfig(dry_run, catalogs, tuple(read))


def _group(
    group: Mapping[str, Any], common: Mapping[str, Any], thresholds: Mapping[str, Any], file: str, place: str
) -> TableGroup:
    _known(group, ("catalog", "names", "exclude", "locations", "jobs", "thresholds"), file, place)
    catalog = group.get("catalog")
    if catalog is not None and not isinstance(catalog, str):
        raise ValidationError(f"{file}: {place}.catalog is {shown(catalog)}: expected the name of a catalog")
    names, excluded, locations = (_texts(group, key, file, place) for key in ("names", "exclude", "locations"))
    if (catalog is None) != (not names) or (catalog is None) == (not locations):
        problem = "expected a catalog with names, or else locations"
        raise ValidationError(f"{file}: {place} has {', '.join(group) or 'no keys'}: {problem}")
    jobs: dict[str, Any] = dict(common)
    for name, options in _jobs(_table(group, "jobs", file, place), file, f"{place}.jobs").items():
        jobs[name] = options if options is False else {**(jobs.get(name) or {}), **options}
    chosen = {name: options for name, options in jobs.items() if options is not False}
    if {"upgrade", "downgrade"} <= chosen.keys():
        raise ValidationError(f"{file}: {place}.jobs has upgrade and downgrade: expected one of them")
    for name, options in chosen.items():
        try:
            BY_NAME[name].check_values(options)
        except SparkmetaError as error:
            raise ValidationError(f"{file}: {place}.jobs.{name}: {error}") from error
    merged = {**thresholds, **_table(group, "thresholds", file, place)}
    health = _thresholds(merged, file, f"{place}.thresholds")
    return TableGroup(catalog, names, excluded, locations, chosen, health)


def _jobs(jobs: Mapping[str, Any], file: str, place: str) -> dict[str, Any]:
    """Return job -> options, or false for a job that tables don't get."""
    named: dict[str, Any] = {}
    for text, options in jobs.items():
        name = job_name(text)
        if name not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ValidationError(f"{file}: {place}.{text} is {shown(options)}: unknown job; the jobs are {known}")
        if name in named:
            raise ValidationError(f"{file}: {place}.{text}: the job {name} is there twice")
        named[name] = options
        if options is False:
            continue
        if not isinstance(options, dict):
            raise ValidationError(f"{file}: {place}.{text} is {shown(options)}: expected options, or false")
        BY_NAME[name].check_types(options, f"{file}: {place}.{text}")
    return named


def _thresholds(values: Mapping[str, Any], file: str, place: str) -> HealthOptions:
    _known(values, [*_THRESHOLDS], file, place)
    options = HealthOptions(**values)
    try:
        options.check()
    except ValidationError as error:
        raise ValidationError(f"{file}: {place}.{error}") from error
    return options


# -- Values -----------------------------------------------------------------------------------------------------------


def _known(values: Mapping[str, Any], keys: Sequence[str], file: str, place: str) -> None:
    for key, value in values.items():
        if key not in keys:
            where = f"{place}.{key}" if place else key
            raise ValidationError(f"{file}: {where} is {shown(value)}: unknown key; the keys are {', '.join(keys)}")


def _table(values: Mapping[str, Any], key: str, file: str, place: str) -> dict[str, Any]:
    value = values.get(key, {})
    if not isinstance(value, dict):
        raise ValidationError(
            f"{file}: {f'{place}.{key}' if place else key} is {shown(value)}: expected keys and values"
        )
    return value


def _texts(values: Mapping[str, Any], key: str, file: str, place: str) -> tuple[str, ...]:
    value = values.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise ValidationError(f"{file}: {place}.{key} is {shown(value)}: expected a list of strings")
    return tuple(value)


def _properties(values: Any, file: str, place: str) -> dict[str, str]:
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        # The error does not show values, which may be secret.
        raise ValidationError(f"{file}: {place}: expected properties with string values")
    return dict(values)


# -- Choose the tables of a configuration and their groups ------------------------------------------------------------


@dataclass(frozen=True)
class ChosenTable:
    """A table of a group.

    Attributes:
        name: its identifier, joined by dots, or its location.
        place: the place of the group in the configuration.
        group: the group.
        pattern: the name or location in the group that chooses the table.
        is_exact: whether `pattern` is the table's own name or location.
        load: opens the table. If a name or catalog chooses no table, or several groups choose it, `load` raises an
            error that says so.
    """

    name: str
    place: int
    group: TableGroup
    pattern: str
    is_exact: bool
    load: Callable[[SparkSession], Table]


def choose_tables(config: MaintenanceConfig) -> list[ChosenTable]:
    """Return the tables of all groups, in their order, each once.

    A group that names a table exactly takes it from groups that name it by a pattern. Catalogs are listed, and groups
    are compared, before a table is opened.
    """
    listings: dict[str, _Listed | Exception] = {}
    choices: dict[object, list[ChosenTable]] = {}
    for place, group in enumerate(config.tables):
        if group.catalog is None:
            for location in {normalize(location): location for location in group.locations}.values():
                table = ChosenTable(location, place, group, location, True, partial(load_table, location))
                choices.setdefault(normalize(location), []).append(table)
            continue
        if group.catalog not in listings:
            listings[group.catalog] = _listed(config, group.catalog)
        for key, table in _of_catalog(place, group, listings[group.catalog]):
            choices.setdefault((group.catalog, key), []).append(table)
    return sorted(map(_most_specific, choices.values()), key=lambda table: table.place)


def _most_specific(tables: list[ChosenTable]) -> ChosenTable:
    exact = [table for table in tables if table.is_exact] or tables
    if len(exact) == 1:
        return exact[0]
    groups = " and ".join(f"tables[{table.place}] ({table.pattern!r})" for table in exact)
    problem = f"{exact[0].name}: {groups} choose it: expected its exact name in one group only, or an exclusion"
    return replace(exact[0], load=_refusal(ValidationError(problem)))


def _refusal(error: Exception) -> Callable[[SparkSession], Table]:
    def load(_: SparkSession) -> Table:
        raise error

    return load


# -- Catalogs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Listed:
    """A catalog and its tables, which are listed only if a name in the configuration has a wildcard."""

    catalog: Catalog
    listing: Listing


def _listed(config: MaintenanceConfig, name: str) -> _Listed | Exception:
    """List a catalog; return the error if it can't be loaded."""
    try:
        catalog = load_catalog(name, **config.catalogs.get(name, {}))
    except Exception as error:  # noqa: BLE001  tables of other catalogs are maintained all the same
        return error
    names = [text for group in config.tables if group.catalog == name for text in group.names]
    return _Listed(catalog, Listing.of(catalog) if any(map(has_wildcard, names)) else Listing([], {}))


def _of_catalog(
    place: int, group: TableGroup, listed: _Listed | Exception
) -> Iterator[tuple[Identifier | str, ChosenTable]]:
    """Yield the tables of a catalog's group, with a key that is equal for the same table in other groups."""

    def failed(name: str, error: Exception) -> ChosenTable:
        return ChosenTable(name, place, group, name, True, _refusal(error))

    if isinstance(listed, Exception):
        yield f"catalog of {place}", failed(", ".join(group.names), listed)
        return
    listing = listed.listing
    unlisted: dict[str, Exception] = {}
    chosen: dict[Identifier, tuple[str, bool]] = {}
    for name in sorted(group.names, key=has_wildcard):
        exact = listing.exact(name)
        identifiers = exact or listing.matching(name)
        problems = {} if exact else listing.problems_of(name)
        unlisted |= problems
        if not identifiers and not problems:
            missing = NoSuchTableError(f"{name}: no table of {group.catalog} has this name")
            yield f"{place} {name}", failed(name, missing)
        for identifier in identifiers:
            chosen.setdefault(identifier, (name, bool(exact)))
    yield from ((f"{place} {pattern}", failed(pattern, error)) for pattern, error in unlisted.items())
    for identifier, (name, is_exact) in chosen.items():
        if not any(matches(identifier, pattern) for pattern in group.excluded):
            load = partial(listed.catalog.load_table, identifier)
            yield identifier, ChosenTable(".".join(identifier), place, group, name, is_exact, load)


# -- Run the jobs of a configuration ----------------------------------------------------------------------------------
# Tables are maintained one after another. If a table fails, the others still run.


COMMITTED, PLANNED, NOTHING, UNSUITABLE = "committed", "planned", "nothing to do", "not applicable"
CONFLICT, FAILED = "conflict", "failed"

# Maximum number of contradictions in a result.
_MOST_CONTRADICTIONS = 100
# Maximum number of plans of a job, if other commits make them obsolete.
_ATTEMPTS = 3


@dataclass(frozen=True)
class JobResult:
    """The outcome of a job on a table.

    Attributes:
        table: its identifier, joined by dots, or its location; a name or pattern that chooses no table.
        catalog: the table's catalog; None if it was given by location.
        job: the job, or `health` if the table could not be chosen, loaded or examined.
        status: `committed`, `planned` (nothing is committed in a dry run), `nothing to do`, `not applicable` (to tables
            of this format version), `conflict` (other commits came first: run again) or `failed`.
        findings: the findings that make the job necessary.
        plan: the plan in numbers.
        committed: the committed changes, possibly before an error.
        error: the error, in one line.
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


def run_maintenance(
    config: MaintenanceConfig, spark: SparkSession, *, commit: bool, log: Callable[[str], None]
) -> Iterator[JobResult]:
    """Maintain the tables of a configuration, and yield a result for each table and job.

    A job runs if the table's health makes it necessary, if it is for another branch than main, or with the option
    `always`. Its options come from the configuration and from the findings that name it; the configuration takes
    precedence. Jobs of a table run in the order of `JOBS`, each on the result of the previous job.

    Args:
        config: the configuration.
        spark: the session.
        commit: whether plans are committed, unless the configuration says `dry_run`.
        log: takes lines about the progress.
    """
    tables = choose_tables(config)
    for place, chosen in enumerate(tables, 1):
        log(f"{chosen.name}: table {place} of {len(tables)}")
        yield from _Maintained(chosen, spark, commit and not config.dry_run, log).results()


def exit_code(statuses: set[str]) -> int:
    """Return the exit code for the statuses of all results: 1 after a failure, 3 after a conflict, else 0."""
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
            # Health can't examine what a check may name.
            if Check.name in group.jobs:
                result, table = self._run(Check(), table, ())
                yield self._logged(result)
            report = examine(table, group.thresholds)
        except Exception as error:  # noqa: BLE001  the other tables are maintained all the same
            seconds = round(time.perf_counter() - started, 3)
            self._log_traceback(error)
            yield self._logged(
                JobResult(name, group.catalog, "health", FAILED, error=problem_line(error), seconds=seconds)
            )
            return
        self.log(f"{name}: {report.headline}, in {report.seconds} s")
        for job in JOBS:
            if job.name in group.jobs and not isinstance(job, Check):
                result, table = self._run(job, table, report.list_findings)
                yield self._logged(result)

    def _logged(self, result: JobResult) -> JobResult:
        problem = f": {result.error}" if result.error else ""
        self.log(f"{result.table}: {result.job}: {result.status}{problem}")
        return result

    def _run(self, job: Job, table: Table, found_by_health: Sequence[Finding]) -> tuple[JobResult, Table]:
        started = time.perf_counter()
        name, group = self.chosen.name, self.chosen.group
        configured = group.jobs[job.name]
        # Health examines main.
        on_main = configured.get("branch", "main") == "main"
        findings = [finding for finding in found_by_health if on_main and finding.job == job.name]
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
            elif isinstance(job, Check):
                facts = job.outcome(table)
            elif findings or not on_main or job.by_plan or configured.get(ALWAYS, False):
                facts = self._planned(job, table, options)
        except Exception as error:  # noqa: BLE001
            facts = self._failure(error)
        seconds = round(time.perf_counter() - started, 3)
        kinds = [finding.finding for finding in findings]
        return JobResult(name, group.catalog, job.name, findings=kinds, seconds=seconds, **facts), table

    def _planned(self, job: Job, table: Table, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plan a job, and commit it. If other commits make the plan obsolete, plan again.

        If a plan fails after it has committed a part, this part is reported, and the job is not repeated.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            plan = job.plan(table, options)
            summary = plan.summary()
            if summary.is_empty or getattr(summary, "is_current", False):
                return {"status": NOTHING, "plan": plan.result()["plan"]}
            for line in str(summary).splitlines():
                self.log(f"  {line}")
            if not self.commit:
                return {"status": PLANNED, "plan": plan.result()["plan"]}
            failure: dict[str, str] = {}
            try:
                plan.commit()
            except Exception as error:
                if plan.is_partly_committed:
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
            return {"status": CONFLICT, "error": problem_line(error)}
        self._log_traceback(error)
        return {"status": FAILED, "error": problem_line(error)}

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
