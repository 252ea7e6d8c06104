"""Read table properties as numbers, flags and choices, and as limits of retries."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sparkmeta.checks import FLAG, Rule, at_least, one_of
from sparkmeta.errors import ValidationError, shown

# -- Table properties as numbers, flags and choices -------------------------------------------------------------------


ENCRYPTION_KEY_ID = "encryption.key-id"
"""The master key of an encrypted table, in a key management service."""
METADATA_PATH = "write.metadata.path"
"""The folder of new metadata files, roots and manifests; by default, `metadata` in the table's location."""

RELATIVE_LOCATIONS = "write.tree.relative-locations"
"""Whether files of a metadata tree name files relative to the table's location; true by default."""

_MAX_LONG, _MAX_DIGITS = 2**63 - 1, 19

TREE_LAYOUT = "write.tree.layout"
"""The layout of the metadata tree of a new or upgraded table of format version 4: `proposal` or `iceberg`."""


def number_property(
    properties: Mapping[str, str], name: str, default: int, *, least: int = 0, location: str | None = None
) -> int:
    """Return a property that is a whole number.

    Args:
        properties: the table's properties.
        name: the name of the property.
        default: the value of a property that is not set.
        least: the least number that is valid.
        location: the location or name of the table, for errors.

    Raises:
        ValidationError: the value is not such a number.
    """
    text = properties.get(name)
    if text is None:
        return default
    # int() raises its own error for thousands of digits.
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    if not is_number or not least <= int(text) <= _MAX_LONG:
        raise _error(name, text, at_least(least), location)
    return int(text)


def fraction_property(
    properties: Mapping[str, str], name: str, default: float, *, location: str | None = None
) -> float:
    """Return a property that is a number between 0 and 1, exclusive; see `number_property`."""
    text = properties.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise _error(name, text, Rule("a number above 0 and below 1", lambda _: True), location)
    return value


def flag_property(properties: Mapping[str, str], name: str, *, default: bool, location: str | None = None) -> bool:
    """Return a property that is true or false, in any case; see `number_property`."""
    text = properties.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise _error(name, text, FLAG, location)
    return text.lower() == "true"


def choice_property(
    properties: Mapping[str, str],
    name: str,
    allowed: tuple[str, ...],
    *,
    default: str | None = None,
    location: str | None = None,
) -> str:
    """Return a property that is one of the allowed values, in any case; see `number_property`.

    Without `default`, it is the first of the allowed values.
    """
    text = properties.get(name)
    if text is None:
        return allowed[0] if default is None else default
    if text.lower() not in allowed:
        raise _error(name, text, one_of(*allowed), location)
    return text.lower()


def _error(name: str, text: str, rule: Rule, location: str | None) -> ValidationError:
    table = "" if location is None else f"{location}: "
    return ValidationError(f"{table}the table property {name} is {shown(text)}: expected {rule.expected}")


# -- Retries of commits and of checks of their outcome ----------------------------------------------------------------


_log = logging.getLogger(__name__)

_COMMIT: Final = "commit.retry."
_CHECK: Final = "commit.status-check."
_COMMIT_DEFAULTS: Final = {"num-retries": 4, "min-wait-ms": 100, "max-wait-ms": 60_000, "total-timeout-ms": 1_800_000}
_CHECK_DEFAULTS: Final = {"num-retries": 3, "min-wait-ms": 1_000, "max-wait-ms": 60_000, "total-timeout-ms": 1_800_000}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_MAX_INTEGER: Final = (1 << 31) - 1
_EXPECTED: Final = f"expected a whole number up to {_MAX_INTEGER}"


@dataclass(frozen=True)
class Retries:
    """The limits of retries: their number, the waits between them and the total time. No value is negative."""

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
    """Return the limits for retrying a commit that lost to a concurrent one. Invalid properties cause a warning."""
    return _retries(properties, _COMMIT, _COMMIT_DEFAULTS)


def status_checks(properties: Mapping[str, str]) -> Retries:
    """Return the limits for checking an unknown outcome. Invalid properties cause a warning."""
    return _retries(properties, _CHECK, _CHECK_DEFAULTS)


def refuse_invalid_retries(properties: Mapping[str, str], location: str) -> None:
    """Raise ValidationError if properties to set have a value that commits would ignore.

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
    return value if value is not None and abs(value) <= _MAX_INTEGER else None
