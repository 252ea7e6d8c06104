"""Read the configuration of maintenance, TOML or YAML, and check all of it before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sparkmeta.errors import SparkmetaError, ValidationError, shown
from sparkmeta.health.options import HealthOptions
from sparkmeta.schedule.jobs import BY_NAME, from_text

_THRESHOLDS = {field.name: str(field.type) for field in fields(HealthOptions)}


@dataclass(frozen=True)
class TableGroup:
    """Tables that are maintained in the same way.

    Attributes:
        catalog: the name of their catalog; None for tables that are given by location.
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
        dry_run: whether nothing is committed, whatever the command line says.
        catalogs: catalog -> its properties, in addition to those of pyiceberg's configuration.
        tables: in the order in which they are maintained.
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
    """Parse YAML by pyiceberg's parser, to which all scalars are texts; keys say which are numbers and booleans."""
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
        values: key -> text. What is no mapping is returned unchanged; it is refused later.
        annotations: key -> its type; other texts are strings.
        parts: key -> what converts its value.
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
    return {name: _typed_options(name, options) for name, options in jobs.items()}


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
    for name, options in jobs.items():
        if name not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ValidationError(f"{file}: {place}.{name} is {shown(options)}: unknown job; the jobs are {known}")
        if options is False:
            continue
        if not isinstance(options, dict):
            raise ValidationError(f"{file}: {place}.{name} is {shown(options)}: expected options, or false")
        BY_NAME[name].check_types(options, f"{file}: {place}.{name}")
    return dict(jobs)


def _thresholds(values: Mapping[str, Any], file: str, place: str) -> HealthOptions:
    _known(values, [*_THRESHOLDS], file, place)
    options = HealthOptions(**values)
    try:
        options.check()
    except ValidationError as error:
        raise ValidationError(f"{file}: {place}.{error}") from error
    return options


# -- values -----------------------------------------------------------------------------------------------------------


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
        # Not their values, which may be secret.
        raise ValidationError(f"{file}: {place}: expected properties with string values")
    return dict(values)
