"""The maintenance of a table by its own properties.

`sparkmeta.maintenance.JOB.OPTION` is an option of a job, which then runs for the table even if the configuration does
not name it. `sparkmeta.maintenance.JOB` is `true` or `false`: whether the job runs for the table. A property takes
precedence over the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sparkmeta.errors import SparkmetaError, ValidationError, shown
from sparkmeta.expr.filter_text import listed_names
from sparkmeta.fleet.jobs import BY_NAME, from_text, job_name, refuse_both_ways
from sparkmeta.fleet.lease import LEASE

if TYPE_CHECKING:
    from collections.abc import Mapping

POLICY: Final = "sparkmeta.maintenance."
"""The beginning of the names of table properties with policies."""

# Options that could delete files of other tables, or files that are being written.
_NOT_OF_TABLES = {"location", "force", "shared_location", "prefix_mismatch_mode", "equal_schemes", "equal_authorities"}


def jobs_of(configured: Mapping[str, Mapping[str, Any]], properties: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the jobs of a table, with their options.

    Args:
        configured: the jobs of the table's group in the configuration.
        properties: the properties of the table.

    Raises:
        ValidationError: a property names no job or option, or has a wrong value.
    """
    jobs, switches = {name: dict(options) for name, options in configured.items()}, dict[str, bool]()
    names: dict[tuple[str, str], str] = {}
    for name, text in sorted(properties.items()):
        if not name.startswith(POLICY) or name == LEASE:
            continue
        job, _, option = name.removeprefix(POLICY).partition(".")
        job, option = job_name(job), option.replace("-", "_")
        problem = f"table property {name} is {shown(text)}"
        _refuse(job, option, problem)
        if (other := names.setdefault((job, option), name)) != name:
            raise ValidationError(f"{problem}: the property {other} says the same: expected one of them")
        options = jobs.setdefault(job, {})
        if option:
            options[option] = _value(text, BY_NAME[job].options.get(option, "str"))
            BY_NAME[job].check_types(options, f"table property {POLICY}{job}")
        elif isinstance(switch := from_text(text.lower(), "bool"), bool):
            switches[job] = switch
        else:
            raise ValidationError(f"{problem}: expected true or false")
    chosen = {job: options for job, options in jobs.items() if switches.get(job, True)}
    if names:
        refuse_both_ways(chosen, "the configuration with the table's properties")
    for job in chosen.keys() & {job for job, _ in names}:
        try:
            BY_NAME[job].check_values(chosen[job])
        except SparkmetaError as error:
            raise ValidationError(f"table property {POLICY}{job}: {error}") from error
    return chosen


def _refuse(job: str, option: str, problem: str) -> None:
    """Raise ValidationError for a job that is unknown, and an option that tables must not have."""
    if job not in BY_NAME:
        raise ValidationError(f"{problem}: unknown job; the jobs are {', '.join(BY_NAME)}")
    if option in _NOT_OF_TABLES:
        raise ValidationError(f"{problem}: only the configuration may have this option")


def _value(text: str, annotation: str) -> Any:
    return listed_names(text) if annotation.startswith("Sequence[str]") else from_text(text, annotation)
