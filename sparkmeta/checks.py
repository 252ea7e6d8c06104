"""Check the values of options. An error names the option, its value and what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sparkmeta.errors import ValidationError, shown


@dataclass(frozen=True)
class Rule:
    """The values that an option may have.

    Attributes:
        expected: the values in words, for an error message.
        fits: whether a value is one of them.
    """

    expected: str
    fits: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        """Raise ValidationError for a value that does not fit.

        Args:
            name: the name of the option.
            value: its value.
        """
        if not self.fits(value):
            raise ValidationError(f"{name} is {shown(value)}: expected {self.expected}")


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def are_texts(values: Any) -> bool:
    """Return whether a value is a collection of strings."""
    return (
        isinstance(values, Collection) and not isinstance(values, str) and all(isinstance(text, str) for text in values)
    )


def _are_pairs(values: Any) -> bool:
    return isinstance(values, Mapping) and are_texts(values.keys()) and are_texts(values.values())


FLAG = Rule("true or false", lambda value: isinstance(value, bool))
WHOLE = Rule("a whole number", is_whole)
TEXT = Rule("a string", lambda value: isinstance(value, str))
SHARE = Rule("a share above 0, up to 1", lambda value: is_number(value) and 0 < value <= 1)
POSITIVE = Rule("a number above 0", lambda value: is_number(value) and value > 0)
NAME = Rule("a name", lambda value: isinstance(value, str) and value != "")
NAMES = Rule("a list of strings", are_texts)
OPTIONS = Rule("a mapping of names to values", lambda value: isinstance(value, Mapping) and are_texts(value.keys()))

_BY_TYPE = {
    "bool": FLAG,
    "int": WHOLE,
    "float": Rule("a number", is_number),
    "str": TEXT,
    "Sequence[str]": NAMES,
    "Mapping[str, str]": Rule("a mapping of strings to strings", _are_pairs),
}


def at_least(least: int) -> Rule:
    """Return the rule of whole numbers from a least one on."""
    return Rule(f"a whole number of {least} or more", lambda value: is_whole(value) and value >= least)


def between(least: int, most: int) -> Rule:
    """Return the rule of whole numbers from a least to a greatest one."""
    return Rule(f"a whole number from {least} to {most}", lambda value: is_whole(value) and least <= value <= most)


def one_of(*allowed: Any) -> Rule:
    """Return the rule of some strings or whole numbers."""
    *others, last = map(str, allowed)
    kind = type(allowed[0])
    return Rule(f"{', '.join(others)} or {last}", lambda value: isinstance(value, kind) and value in allowed)


def instance_of(kind: type) -> Rule:
    """Return the rule of instances of a class."""
    return Rule(f"a {kind.__name__} of {kind.__module__}", lambda value: isinstance(value, kind))


def names_of(what: str) -> Rule:
    """Return the rule of one or more different names."""
    return Rule(f"names of {what}, each once", lambda value: are_texts(value) and 0 < len(set(value)) == len([*value]))


def string_map(name: str, values: Any) -> dict[str, str]:
    """Return a copy of a mapping of strings to strings; an empty one for None.

    Args:
        name: the name of the option.
        values: its value.

    Raises:
        ValidationError: it is not a mapping, or a key or value is not a string.
    """
    if not isinstance(values, Mapping | None):
        raise ValidationError(f"{name} is {shown(values)}: expected a mapping of strings to strings")
    for key, value in (values or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValidationError(f"{name}[{shown(key)}] is {shown(value)}: keys and values are strings")
    return dict(values or {})


def property_texts(name: str, properties: Any) -> dict[str, str]:
    """Return properties of a table, view or namespace as text; see `string_map`.

    Numbers become text, and flags `true` or `false`, as in pyiceberg.
    """
    if isinstance(properties, Mapping):
        properties = {
            key: str(value).lower() if isinstance(value, int | float) else value for key, value in properties.items()
        }
    return string_map(name, properties)


def rule_of(annotation: str) -> Rule | None:
    """Return the rule for values of an annotated type other than None; None if the type has no rule."""
    kinds = [kind for kind in annotation.split(" | ") if kind != "None"]
    return _BY_TYPE.get(kinds[0]) if len(kinds) == 1 else None


def check_options(options: Any, rules: Mapping[str, Rule]) -> None:
    """Check the fields of a dataclass by their rules, or else by the rules of their annotated types.

    None fits where the annotation allows it.

    Args:
        options: the instance of the dataclass.
        rules: field -> its rule.

    Raises:
        ValidationError: a value does not fit.
    """
    for each in fields(options):
        value, annotation = getattr(options, each.name), str(each.type)
        rule = rules.get(each.name) or rule_of(annotation)
        if rule is not None and not (value is None and annotation.endswith("| None")):
            rule.check(each.name, value)
