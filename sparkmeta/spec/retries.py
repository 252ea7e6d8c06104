"""How often commits, and checks of their outcome, are repeated: properties commit.retry.*, commit.status-check.*."""

from __future__ import annotations

import logging
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

_COMMIT: Final = "commit.retry."
_CHECK: Final = "commit.status-check."
_COMMIT_DEFAULTS: Final = {"num-retries": 4, "min-wait-ms": 100, "max-wait-ms": 60_000, "total-timeout-ms": 1_800_000}
_CHECK_DEFAULTS: Final = {"num-retries": 3, "min-wait-ms": 1_000, "max-wait-ms": 60_000, "total-timeout-ms": 1_800_000}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_MOST: Final = (1 << 31) - 1
_EXPECTED: Final = f"expected a whole number up to {_MOST}"


@dataclass(frozen=True)
class Retries:
    """Limits of repetitions, none of which is negative."""

    count: int
    least_wait_ms: int
    most_wait_ms: int
    total_ms: int

    def longest_wait_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait after an attempt, by exponential backoff. The first attempt is 0."""
        return min(self.most_wait_ms, self.least_wait_ms << min(attempt, 32))

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt: exponential backoff with jitter."""
        return random.uniform(0.5, 1.0) * self.longest_wait_ms(attempt) / 1000


def commit_retries(properties: Mapping[str, str]) -> Retries:
    """Return how often a commit that came second is repeated. Invalid properties are ignored with a warning."""
    return _retries(properties, _COMMIT, _COMMIT_DEFAULTS)


def status_checks(properties: Mapping[str, str]) -> Retries:
    """Return how often an unknown outcome is checked again. Invalid properties are ignored with a warning."""
    return _retries(properties, _CHECK, _CHECK_DEFAULTS)


def refuse_invalid_retries(properties: Mapping[str, str], location: str) -> None:
    """Raise ValidationError if properties to set have a value that is ignored.

    Negative numbers count as 0, as in Java for the number of retries.
    """
    for name, value in properties.items():
        prefix = next((prefix for prefix in (_COMMIT, _CHECK) if name.startswith(prefix)), None)
        if prefix is not None and name.removeprefix(prefix) in _COMMIT_DEFAULTS and _integer(str(value)) is None:
            raise ValidationError(f"{location}: the table property {name} is {shown(value)}: {_EXPECTED}")


def _retries(properties: Mapping[str, str], prefix: str, defaults: Mapping[str, int]) -> Retries:
    values = []
    for name, default in defaults.items():
        text = properties.get(prefix + name)
        value = default if text is None else _integer(text)
        if value is None:
            _log.warning("the table property %s is %s: %s: it is ignored", prefix + name, shown(text), _EXPECTED)
            value = default
        values.append(max(0, value))
    return Retries(*values)


def _integer(text: str) -> int | None:
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and abs(value) <= _MOST else None
