"""The jobs of maintenance, in their order, and their options in configurations and table properties."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sparkmeta.checks import TEXT, Options, Rule, option_fields, required_options, rule_of
from sparkmeta.entries.relation import head
from sparkmeta.errors import ValidationError, shown
from sparkmeta.inspect.check import violations
from sparkmeta.inspect.partition_statistics import has_partitions
from sparkmeta.maintain.maintenance import options_of
from sparkmeta.maintain.upgrade import can_upgrade
from sparkmeta.spec.metadata import has_tree

if TYPE_CHECKING:
    from sparkmeta.maintain.expire_rows import RowExpirySummary
    from sparkmeta.table import Table


COMMITTED, PLANNED, NOTHING, UNSUITABLE = "committed", "planned", "nothing to do", "not applicable"
CONFLICT, FAILED, LEASED, DEFERRED = "conflict", "failed", "leased", "deferred"

# Maximum number of contradictions in a result.
_MOST_CONTRADICTIONS = 100


# -- Maintenance jobs, in their order ---------------------------------------------------------------------------------
# A new operation of `table.maintenance` becomes a job by one line in `JOBS`.


ALWAYS = "always"
"""An option of every job: run it even if health does not find it necessary. Its plan may still be empty."""

_DURATION_TEXT = re.compile(r"(\d+)\s*(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# Configurations can't contain DataFrames or snapshots.
_NOT_CONFIGURABLE = {"files", "snapshot_id", "snapshot_ids"}


_Options = Mapping[str, Any]


def _suits_all(_table: Table, _options: _Options) -> bool:
    return True


def _has_tree(table: Table, _options: _Options) -> bool:
    return has_tree(table.metadata)


def _has_lists(table: Table, _options: _Options) -> bool:
    return not has_tree(table.metadata) and table.format_version < 4


def _accepts_rows(table: Table, _options: _Options) -> bool:
    return has_tree(table.metadata) or table.format_version < 4


def _has_deletes(table: Table, options: _Options) -> bool:
    return _accepts_rows(table, options) and table.format_version > 1


def _is_earlier_version(table: Table, options: _Options) -> bool:
    return can_upgrade(table.metadata, options["format_version"])


def _has_partitions(table: Table, _options: _Options) -> bool:
    return has_partitions(table.state)


def _no_bytes(_summary: Any) -> int:
    return 0


def _all_bytes(summary: Any) -> int:
    size: int = getattr(summary, "bytes", 0) + getattr(summary, "data_bytes", 0)
    return size


def _other_bytes(summary: RowExpirySummary) -> int:
    return summary.other_bytes if summary.reads_files else 0


@dataclass(frozen=True)
class Job:
    """A maintenance operation.

    Attributes:
        name: the name of a method of `Maintenance`, which returns a plan.
        by_plan: whether its plan decides if there is anything to do. If not, the job is planned only if a finding names
            it.
        suits: returns whether the job, with its options, is possible for a table. If not, the job is skipped.
        reads: returns the bytes of the files that a plan reads, by its summary.
    """

    name: str
    by_plan: bool = False
    suits: Callable[[Table, _Options], bool] = _suits_all
    reads: Callable[[Any], int] = _no_bytes

    @property
    def kind(self) -> type[Options]:
        """The class of its options."""
        return options_of(self.name)

    @property
    def options(self) -> dict[str, str]:
        """The names of its options -> their annotated types."""
        named = {
            option.name: str(option.type) for option in option_fields(self.kind) if option.name not in _NOT_CONFIGURABLE
        }
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
    """The options of a job without options."""


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
    Job("upgrade", by_plan=True, suits=_is_earlier_version),
    Job("downgrade", by_plan=True, suits=_has_tree),
    Job("expire_rows", by_plan=True, suits=_accepts_rows, reads=_other_bytes),
    Job("convert_equality_deletes", suits=_has_deletes, reads=_all_bytes),
    Job("rewrite_data_files", suits=_accepts_rows, reads=_all_bytes),
    Job("rewrite_position_delete_files", suits=_has_deletes, reads=_all_bytes),
    Job("remove_dangling_deletes", suits=_has_deletes),
    Job("compact_manifests", suits=_has_tree, reads=_all_bytes),
    Job("rewrite_manifests", suits=_has_lists, reads=_all_bytes),
    Job("expire_snapshots", by_plan=True),
    Job("remove_orphan_files", by_plan=True),
    Job("compute_partition_stats", by_plan=True, suits=_has_partitions),
    Job("compute_table_stats", by_plan=True, reads=_all_bytes),
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


def duration(text: str) -> timedelta | None:
    """Return a duration of minutes, hours or days, such as `36h`; None for other texts, or if it is too long."""
    match = _DURATION_TEXT.fullmatch(text)
    try:
        return None if match is None else timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        return None


def _is_duration(value: Any) -> bool:
    try:
        return isinstance(value, str) and isinstance(_value(value, "datetime"), datetime)
    except OverflowError:  # before the year 1
        return False


_DURATION: Final = Rule("a duration such as 36h or 7d", _is_duration)


def _rule(annotation: str) -> Rule:
    """Return the rule of an option in a configuration. Times are durations there, and expressions are texts."""
    return _DURATION if "datetime" in annotation else rule_of(annotation) or TEXT


def _value(value: Any, annotation: str) -> Any:
    """Return an option's value for the method: durations are times before now."""
    age = duration(value) if isinstance(value, str) and "datetime" in annotation else None
    return value if age is None else datetime.now(UTC) - age


def refuse_both_ways(jobs: Collection[str], place: str) -> None:
    """Raise ValidationError if a table is to be upgraded and downgraded."""
    if {"upgrade", "downgrade"} <= {*jobs}:
        raise ValidationError(f"{place} has upgrade and downgrade: expected one of them")
