"""Read table properties, whose values are text, as numbers, flags and choices."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparkmeta.checks import FLAG, Rule, at_least, one_of
from sparkmeta.errors import ValidationError, shown

METADATA_PATH = "write.metadata.path"
"""The folder of new metadata files, roots and manifests; by default, that of the table with the name `metadata`."""

RELATIVE_LOCATIONS = "write.tree.relative-locations"
"""Whether files of a metadata tree name files relative to the table's location; true by default."""

_MOST, _MOST_DIGITS = 2**63 - 1, 19


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
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    if not is_number or not least <= int(text) <= _MOST:
        raise _error(name, text, at_least(least), location)
    return int(text)


def fraction_property(
    properties: Mapping[str, str], name: str, default: float, *, location: str | None = None
) -> float:
    """Return a property that is a number between 0 and 1, without these; see `number_property`."""
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
