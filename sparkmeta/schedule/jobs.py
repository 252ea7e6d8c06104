"""The maintenance jobs that a configuration may name, in the order in which they run.

A new operation of `table.maintenance` becomes a job by one line in `JOBS`. Its options are those of its method.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import ValidationError, shown
from sparkmeta.maintain.maintenance import Maintenance
from sparkmeta.maintain.upgrade import can_upgrade
from sparkmeta.spec.metadata import has_tree

if TYPE_CHECKING:
    from sparkmeta.maintain.health.report import HealthReport
    from sparkmeta.table import Table

ALWAYS = "always"
"""An option of every job: run it even if health does not find it necessary. Its plan may still be empty."""

_DURATION = re.compile(r"(\d+)\s*(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# DataFrames and snapshots are not for configurations.
_NOT_CONFIGURABLE = {"self", "files", "snapshot_id", "snapshot_ids"}


def _found(job: Job, report: HealthReport) -> bool:
    return any(finding.job == job.name for finding in report.list_findings)


def _by_plan(job: Job, report: HealthReport) -> bool:  # noqa: ARG001  the plan decides
    return True


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
    return not table.spec().is_unpartitioned()


@dataclass(frozen=True)
class Job:
    """A maintenance operation.

    Attributes:
        name: the name of a method of `Maintenance`, which returns a plan.
        is_needed: whether a report makes it necessary. By default, a finding names the job; `_by_plan` leaves it to the
            job's plan and its options.
        suits: whether it can be done to a table, with its options; if not, it is passed over.
        defaults: options that its method requires.
    """

    name: str
    is_needed: Callable[[Job, HealthReport], bool] = _found
    suits: Callable[[Table, _Options], bool] = _of_all
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """The names of its options -> their annotated types."""
        parameters = inspect.signature(getattr(Maintenance, self.name)).parameters
        return {name: str(kind.annotation) for name, kind in parameters.items() if name not in _NOT_CONFIGURABLE}

    def check(self, options: Mapping[str, Any], place: str) -> None:
        """Raise ValidationError for an unknown option, or for a value of a wrong type.

        Args:
            place: where the options are in the configuration.
        """
        known = self.options
        for name, value in options.items():
            if name == ALWAYS:
                if not isinstance(value, bool):
                    raise ValidationError(f"{place}.{name} is {shown(value)}: expected true or false")
            elif name not in known:
                listed = ", ".join(sorted([*known, ALWAYS]))
                raise ValidationError(f"{place}.{name} is {shown(value)}: unknown option; the options are {listed}")
            elif not _fits(value, known[name]):
                raise ValidationError(f"{place}.{name} is {shown(value)}: expected {_what(known[name])}")

    def applies(self, table: Table, options: Mapping[str, Any]) -> bool:
        """Return whether the job can be done to a table; if not, it is passed over."""
        return self.suits(table, {**self.defaults, **options})

    def plan(self, table: Table, options: Mapping[str, Any]) -> Any:
        """Return the plan of the job for a table."""
        named = {**self.defaults, **options}
        given = {name: _value(value, self.options[name]) for name, value in named.items() if name != ALWAYS}
        return getattr(table.maintenance, self.name)(**given)


JOBS = (
    Job("upgrade", _by_plan, _of_earlier_version, {"format_version": 4}),
    Job("downgrade", _by_plan, _of_trees, {"format_version": 3}),
    Job("rewrite_data_files", suits=_takes_rows),
    Job("rewrite_position_delete_files", suits=_has_deletes),
    Job("remove_dangling_deletes", suits=_has_deletes),
    Job("compact_manifests", suits=_of_trees),
    Job("rewrite_manifests", suits=_of_lists),
    Job("expire_snapshots", _by_plan),
    Job("remove_orphan_files", _by_plan),
    Job("compute_partition_stats", _by_plan, _has_partitions),
    Job("compute_table_stats", _by_plan),
)
BY_NAME = {job.name: job for job in JOBS}


def _fits(value: Any, annotation: str) -> bool:
    """Return whether a value of a configuration file has a type that an annotation names."""
    kinds = annotation.split(" | ")
    if "datetime" in kinds:
        return isinstance(value, str) and _DURATION.fullmatch(value) is not None
    return any(_has_type(value, kind) for kind in kinds)


def _has_type(value: Any, kind: str) -> bool:
    if kind in _OF_TEXTS:
        texts = [*value, *value.values()] if isinstance(value, dict) else value
        return isinstance(value, _OF_TEXTS[kind]) and all(isinstance(text, str) for text in texts)
    return isinstance(value, _KINDS.get(kind, ())) and isinstance(value, bool) == (kind == "bool")


_KINDS: dict[str, type | tuple[type, ...]] = {"bool": bool, "int": int, "float": (int, float), "str": str}
_OF_TEXTS: dict[str, type] = {"Sequence[str]": list, "Mapping[str, str]": dict}


def _what(annotation: str) -> str:
    if "datetime" in annotation:
        return "a duration such as 36h or 7d"
    words = {"Sequence": "a list of strings", "Mapping": "a table of keys and values", "bool": "true or false"}
    words |= {"float": "a number", "int": "a whole number", "str": "a string"}
    return next((text for name, text in words.items() if name in annotation), annotation)


def _value(value: Any, annotation: str) -> Any:
    """Return an option's value for the method: durations are times before now."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) and "datetime" in annotation else None
    return value if match is None else datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
