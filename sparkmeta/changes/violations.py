"""Violations of rules, the rows of `check`. Without Spark: tasks import this."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from sparkmeta.errors import shown

VIOLATIONS = pa.schema([pa.field(name, pa.string()) for name in ("rule", "location", "value", "problem")])


class Broken(NamedTuple):
    """A violation of a rule: a field and value of the file or manifest at a location."""

    location: str | None
    field: str
    value: Any
    problem: str


def violation(rule: str, broken: Broken) -> dict[str, str | None]:
    """Return a row of `VIOLATIONS`."""
    value = f"{broken.field} is {shown(broken.value)}"
    return {"rule": rule, "location": broken.location, "value": value, "problem": broken.problem}
