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

from sparkmeta.checks import TEXT, Rule, rule_of
from sparkmeta.compact.options import CompactionOptions
from sparkmeta.errors import ValidationError, shown
from sparkmeta.inspect.partition_statistics import has_partitions
from sparkmeta.maintain.downgrade.plan import check_downgrade
from sparkmeta.maintain.expiry_options import ExpiryOptions
from sparkmeta.maintain.maintenance import Maintenance
from sparkmeta.maintain.orphans.options import OrphanOptions
from sparkmeta.maintain.table_statistics.plan import check_columns
from sparkmeta.maintain.upgrade import can_upgrade, check_upgrade
from sparkmeta.rewrite.data_files.options import DataRewriteOptions
from sparkmeta.rewrite.manifests.groups import ManifestRewriteOptions
from sparkmeta.rewrite.position_deletes.options import DeleteRewriteOptions
from sparkmeta.spec.metadata import has_tree

if TYPE_CHECKING:
    from sparkmeta.table import Table

ALWAYS = "always"
"""An option of every job: run it even if health does not find it necessary. Its plan may still be empty."""

_TIME = re.compile(r"(\d+)\s*(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# DataFrames and snapshots are not for configurations.
_NOT_CONFIGURABLE = {"self", "files", "snapshot_id", "snapshot_ids"}
# Options of which only the type can be checked without a table.
_OF_COMMITS = {"branch", "snapshot_properties"}


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


def _checked_by(kind: type[Any]) -> Callable[..., None]:
    return lambda **options: kind(**options).check()


def _by_types(**_options: Any) -> None:
    return None


@dataclass(frozen=True)
class Job:
    """A maintenance operation.

    Attributes:
        name: the name of a method of `Maintenance`, which returns a plan.
        by_plan: whether its plan decides if there is anything to do. If not, the job is planned if a finding names it.
        suits: whether it can be done to a table, with its options; if not, it is passed over.
        defaults: options that its method requires.
        refuse: raises an error for values of options out of range, as the plan does, without a table. By default, their
            types suffice.
    """

    name: str
    by_plan: bool = False
    suits: Callable[[Table, _Options], bool] = _of_all
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refuse: Callable[..., None] = _by_types

    @property
    def options(self) -> dict[str, str]:
        """The names of its options -> their annotated types."""
        parameters = inspect.signature(getattr(Maintenance, self.name)).parameters
        named = {name: str(kind.annotation) for name, kind in parameters.items() if name not in _NOT_CONFIGURABLE}
        return {**named, ALWAYS: "bool"}

    def check_types(self, options: Mapping[str, Any], place: str) -> None:
        """Raise ValidationError for an unknown option, or a value of a wrong type.

        Args:
            place: where the options are in the configuration.
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
        self.refuse(**{name: value for name, value in self._arguments(options).items() if name not in _OF_COMMITS})

    def applies(self, table: Table, options: Mapping[str, Any]) -> bool:
        """Return whether the job can be done to a table; if not, it is passed over."""
        return self.suits(table, {**self.defaults, **options})

    def plan(self, table: Table, options: Mapping[str, Any]) -> Any:
        """Return the plan of the job for a table."""
        return getattr(table.maintenance, self.name)(**self._arguments(options))

    def _arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        named = {**self.defaults, **options}
        return {name: _value(value, self.options[name]) for name, value in named.items() if name != ALWAYS}


JOBS = (
    Job("upgrade", by_plan=True, suits=_of_earlier_version, defaults={"format_version": 4}, refuse=check_upgrade),
    Job("downgrade", by_plan=True, suits=_of_trees, defaults={"format_version": 3}, refuse=check_downgrade),
    Job("rewrite_data_files", suits=_takes_rows, refuse=_checked_by(DataRewriteOptions)),
    Job("rewrite_position_delete_files", suits=_has_deletes, refuse=_checked_by(DeleteRewriteOptions)),
    Job("remove_dangling_deletes", suits=_has_deletes),
    Job("compact_manifests", suits=_of_trees, refuse=_checked_by(CompactionOptions)),
    Job("rewrite_manifests", suits=_of_lists, refuse=_checked_by(ManifestRewriteOptions)),
    Job("expire_snapshots", by_plan=True, refuse=_checked_by(ExpiryOptions)),
    Job("remove_orphan_files", by_plan=True, refuse=_checked_by(OrphanOptions)),
    Job("compute_partition_stats", by_plan=True, suits=_has_partitions),
    Job("compute_table_stats", by_plan=True, refuse=check_columns),
)
BY_NAME = {job.name: job for job in JOBS}


_WORDS = {"true": True, "false": False}
_WHOLE = re.compile(r"-?\d+")


def from_text(value: Any, annotation: str) -> Any:
    """Convert a configuration's text to an annotated type. Return it unchanged if it does not fit, and other values."""
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
    """Return the rule of an option in a configuration, where times are durations and expressions are texts."""
    return _DURATION if "datetime" in annotation else rule_of(annotation) or TEXT


def _value(value: Any, annotation: str) -> Any:
    """Return an option's value for the method: durations are times before now."""
    match = _TIME.fullmatch(value) if isinstance(value, str) and "datetime" in annotation else None
    return value if match is None else datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
