"""The configuration of maintenance: read and check it, choose its tables, and run their jobs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmeta.catalog import load_catalog
from sparkmeta.catalog.base import with_sessions
from sparkmeta.checks import Rule, at_least
from sparkmeta.errors import NoSuchTableError, SparkmetaError, ValidationError, shown
from sparkmeta.fleet.events import Lineage, RunMetrics, is_url
from sparkmeta.fleet.jobs import BY_NAME, CONFLICT, FAILED, LEASED, duration, from_text, job_name, refuse_both_ways
from sparkmeta.fleet.lease import LONGEST
from sparkmeta.fleet.limits import RunLimits, Window
from sparkmeta.fleet.listing import Listing, has_wildcard, matches
from sparkmeta.fleet.run import TableTask, run_tasks
from sparkmeta.maintain.health_findings import HealthOptions
from sparkmeta.storage.location import normalize
from sparkmeta.table import open_location

if TYPE_CHECKING:
    from sparkmeta.catalog import Catalog
    from sparkmeta.fleet.listing import Identifier
    from sparkmeta.fleet.run import JobResult
    from sparkmeta.session import SessionSource
    from sparkmeta.table import Table


# -- Read and check the configuration ---------------------------------------------------------------------------------
# It is a TOML or YAML file. All of it is checked before anything runs.


_THRESHOLDS = {each.name: str(each.type) for each in fields(HealthOptions)}


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and duration(value) is not None


def _is_lease(value: Any) -> bool:
    age = duration(value) if isinstance(value, str) else None
    return age is not None and 0 < age.total_seconds() <= LONGEST.total_seconds()


def _is_window(value: Any) -> bool:
    return isinstance(value, str) and Window.of(value) is not None


def _is_target(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and (is_url(value) or "://" not in value)


_TIME = Rule("a duration such as 30m, 36h or 7d", _is_time)
_WINDOW = Rule("a time of the day in UTC such as 22:00-06:00", _is_window)
_WHOLE = at_least(1)
_TARGET = Rule("an http or https URL, or a local file", _is_target)
_RUN: Mapping[str, tuple[str, Rule]] = {
    "side_by_side": ("int", _WHOLE),
    "max_bytes_in_flight": ("int", _WHOLE),
    "max_bytes": ("int", _WHOLE),
    "max_time": ("str", _TIME),
    "window": ("str", _WINDOW),
    "lease": ("str", Rule("a duration of at most a day, such as 30m", _is_lease)),
    "lineage": ("str", _TARGET),
    "metrics": ("str", _TARGET),
}
"""The keys of `[run]` -> their annotated types, and their rules."""


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
        tables: the groups.
        limits: the limits of a run.
        lineage: the OpenLineage endpoint or file that gets events; None for none.
        metrics: the push gateway or file of Prometheus that gets metrics; None for none.
    """

    dry_run: bool
    catalogs: Mapping[str, Mapping[str, str]]
    tables: tuple[TableGroup, ...]
    limits: RunLimits = field(default_factory=RunLimits)
    lineage: str | None = None
    metrics: str | None = None


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
        parsed,
        {"dry_run": "bool"},
        run=_typed_run,
        thresholds=_typed_thresholds,
        jobs=_typed_jobs,
        tables=_typed_groups,
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


def _typed_run(values: Any) -> Any:
    return _typed(values, {name: annotation for name, (annotation, _) in _RUN.items()})


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
    _known(document, ("dry_run", "run", "catalogs", "thresholds", "jobs", "tables"), file, "")
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
    run = _table(document, "run", file, "")
    limits = _limits(run, file)
    return MaintenanceConfig(dry_run, catalogs, tuple(read), limits, run.get("lineage"), run.get("metrics"))


def _limits(run: Mapping[str, Any], file: str) -> RunLimits:
    _known(run, [*_RUN], file, "run")
    for name, value in run.items():
        _RUN[name][1].check(f"{file}: run.{name}", value)
    return RunLimits(
        run.get("side_by_side", 1),
        run.get("max_bytes_in_flight"),
        run.get("max_bytes"),
        duration(run["max_time"]) if "max_time" in run else None,
        Window.of(run["window"]) if "window" in run else None,
        duration(run["lease"]) if "lease" in run else None,
    )


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
    refuse_both_ways(chosen, f"{file}: {place}.jobs")
    for name, options in chosen.items():
        try:
            BY_NAME[name].check_values(options)
        except SparkmetaError as error:
            raise ValidationError(f"{file}: {place}.jobs.{name}: {error}") from error
    merged = {**thresholds, **_table(group, "thresholds", file, place)}
    health = _thresholds(merged, file, f"{place}.thresholds")
    return TableGroup(catalog, names, excluded, locations, chosen, health)


def _jobs(jobs: Mapping[str, Any], file: str, place: str) -> dict[str, Any]:
    """Return job -> options, or false for a job that does not run for the tables."""
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
    load: Callable[[], Table]

    @property
    def task(self) -> TableTask:
        """The task of maintaining the table."""
        return TableTask(self.name, self.group.catalog, self.group.jobs, self.group.thresholds, self.load)


def choose_tables(config: MaintenanceConfig, sessions: SessionSource) -> list[ChosenTable]:
    """Return the tables of all groups, in their order, each once.

    A group that names a table exactly takes precedence over groups that name it by a pattern. Catalogs are listed, and
    groups are compared, before any table is opened.
    """
    listings: dict[str, _Listed | Exception] = {}
    choices: dict[object, list[ChosenTable]] = {}
    for place, group in enumerate(config.tables):
        if group.catalog is None:
            for location in {normalize(location): location for location in group.locations}.values():
                table = ChosenTable(location, place, group, location, True, partial(open_location, location, sessions))
                choices.setdefault(normalize(location), []).append(table)
            continue
        if group.catalog not in listings:
            listings[group.catalog] = _listed(config, group.catalog, sessions)
        for key, table in _group_tables(place, group, listings[group.catalog]):
            choices.setdefault((group.catalog, key), []).append(table)
    return sorted(map(_most_specific, choices.values()), key=lambda table: table.place)


def _most_specific(tables: list[ChosenTable]) -> ChosenTable:
    exact = [table for table in tables if table.is_exact] or tables
    if len(exact) == 1:
        return exact[0]
    groups = " and ".join(f"tables[{table.place}] ({table.pattern!r})" for table in exact)
    problem = f"{exact[0].name}: {groups} choose it: expected its exact name in one group only, or an exclusion"
    return replace(exact[0], load=_refusal(ValidationError(problem)))


def _refusal(error: Exception) -> Callable[[], Table]:
    def load() -> Table:
        raise error

    return load


# -- Catalogs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Listed:
    """A catalog and its tables, which are listed only if a name in the configuration has a wildcard."""

    catalog: Catalog
    listing: Listing


def _listed(config: MaintenanceConfig, name: str, sessions: SessionSource) -> _Listed | Exception:
    """List a catalog; return the error if it can't be loaded."""
    try:
        catalog = with_sessions(load_catalog(name, **config.catalogs.get(name, {})), sessions)
    except Exception as error:  # noqa: BLE001  tables of other catalogs are maintained all the same
        return error
    names = [text for group in config.tables if group.catalog == name for text in group.names]
    return _Listed(catalog, Listing.of(catalog) if any(map(has_wildcard, names)) else Listing([], {}))


def _group_tables(
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


def run_maintenance(
    config: MaintenanceConfig,
    sessions: SessionSource,
    *,
    commit: bool,
    log: Callable[[str], None],
) -> Iterator[JobResult]:
    """Maintain the tables of a configuration, and yield a result for each table and job; see `run_tasks`.

    Options of jobs come from the table's properties, the configuration, and the findings of health that name the job,
    in this order of precedence.

    Args:
        config: the configuration.
        sessions: where the session comes from. It is asked when a table or job needs Spark.
        commit: whether plans are committed, unless the configuration says `dry_run`.
        log: takes lines about the progress, from several threads.
    """
    tasks = [table.task for table in choose_tables(config, sessions)]
    lineage = None if config.lineage is None else Lineage(config.lineage)
    commits = commit and not config.dry_run
    metrics = None if config.metrics is None else RunMetrics(config.metrics)
    try:
        for result in run_tasks(tasks, limits=config.limits, commit=commits, log=log, lineage=lineage):
            if metrics is not None:
                metrics.count(result.job, result.status, result.seconds)
            yield result
    finally:
        if metrics is not None:
            metrics.push()


def exit_code(statuses: set[str]) -> int:
    """Return the exit code for the statuses of all results: 1 after a failure, 3 if others came first, else 0."""
    return 1 if FAILED in statuses else 3 if statuses & {CONFLICT, LEASED} else 0
