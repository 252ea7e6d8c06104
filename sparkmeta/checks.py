"""Define options, and check their values. An error names the option, its value and what is expected."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from dataclasses import Field

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")
OptionsT = TypeVar("OptionsT", bound="Options")

# -- The rules of values ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """The values that an option may have.

    Attributes:
        expected: the values in words, for an error message.
        fits: whether a value is one of them.
        choices: the values, if they are a few strings.
    """

    expected: str
    fits: Callable[[Any], bool]
    choices: tuple[str, ...] = ()

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
    """Return the rule of whole numbers of at least `least`."""
    return Rule(f"a whole number of {least} or more", lambda value: is_whole(value) and value >= least)


def between(least: int, greatest: int) -> Rule:
    """Return the rule of whole numbers from `least` to `greatest`, both included."""
    return Rule(
        f"a whole number from {least} to {greatest}", lambda value: is_whole(value) and least <= value <= greatest
    )


def one_of(*allowed: Any) -> Rule:
    """Return the rule of a few strings or whole numbers."""
    *others, last = map(str, allowed)
    kind = type(allowed[0])
    expected, choices = f"{', '.join(others)} or {last}", allowed if kind is str else ()
    return Rule(expected, lambda value: isinstance(value, kind) and value in allowed, choices)


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
    """Return the rule for the values of an annotated type, ignoring None; None if the type has no rule."""
    kinds = [kind for kind in annotation.split(" | ") if kind != "None"]
    return _BY_TYPE.get(kinds[0]) if len(kinds) == 1 else None


# -- Options: dataclasses from which the arguments of methods, commands and jobs are made -----------------------------

_ABOUT, _RULE, _USUAL = "about", "rule", "usual"


def option(default: ValueT, about: str, rule: Rule | None = None) -> ValueT:
    """Define an option: the value of a field in the body of a class of `Options`.

    Args:
        default: its default.
        about: what it means, in the words of a docstring.
        rule: the rule of its values. Defaults to the rule of the annotated type.
    """
    return field(default=default, metadata=described(about, rule))


def described(about: str, rule: Rule | None = None, usual: Any = None) -> dict[str, Any]:
    """Return the `metadata` of a field that is an option without a default.

    Args:
        about: see `option`.
        rule: see `option`.
        usual: the value that commands, jobs and configurations use if none is given.
    """
    return {_ABOUT: about, _RULE: rule, _USUAL: usual}


@dataclass(frozen=True)
class Options:
    """The options of an operation. Each field is defined by `option`, and only there."""

    def check(self) -> None:
        """Check all values that can be checked without a table.

        None is valid where the annotation allows it. An option without a rule has the rule of its annotated type.

        Raises:
            ValidationError: a value is out of range or of the wrong type.
        """
        for definition in fields(self):
            value, annotation = getattr(self, definition.name), str(definition.type)
            rule = rule_of_option(definition) or rule_of(annotation)
            if rule is not None and not (value is None and annotation.endswith("| None")):
                rule.check(definition.name, value)


def rule_of_option(definition: Field[Any]) -> Rule | None:
    """Return the rule of an option; None for the rule of its annotated type."""
    rule: Rule | None = definition.metadata[_RULE]
    return rule


def about_option(definition: Field[Any]) -> str:
    """Return what an option means."""
    return str(definition.metadata[_ABOUT])


def usual_value(definition: Field[Any]) -> Any:
    """Return the default of an option, or the value that commands, jobs and configurations use if it has none."""
    return definition.metadata[_USUAL] if definition.default is MISSING else definition.default


def required_options(kind: type[Options]) -> dict[str, Any]:
    """Return the usual values of the options without a default, by name."""
    return {definition.name: usual_value(definition) for definition in fields(kind) if definition.default is MISSING}


def option_fields(kind: type[Options]) -> list[Field[Any]]:
    """Return the fields of a class of options: positional ones, then keywords of the class, then inherited ones."""
    inherited = {definition.name for base in kind.__bases__ if issubclass(base, Options) for definition in fields(base)}
    return sorted(
        fields(kind), key=lambda definition: (definition.kw_only, definition.kw_only and definition.name in inherited)
    )


def takes_options(
    kind: Callable[P, OptionsT],
) -> Callable[[Callable[[SelfT, OptionsT], ResultT]], Callable[Concatenate[SelfT, P], ResultT]]:
    """Return a decorator of a method that takes options. Callers pass the fields of their class as arguments.

    The method's docstring gets a section that describes them. The attribute `options` of the method is the class.
    """
    options: Any = kind

    def decorated(method: Callable[[SelfT, OptionsT], ResultT]) -> Callable[Concatenate[SelfT, P], ResultT]:
        @wraps(method)
        def with_options(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
            return method(self, kind(*args, **kwargs))

        called: Any = with_options
        signature = inspect.signature(method)
        self_parameter, _ = signature.parameters.values()
        arguments = inspect.signature(options).parameters
        parameters = (arguments[definition.name] for definition in option_fields(options))
        called.__signature__ = signature.replace(parameters=[self_parameter, *parameters])
        called.__doc__ = _documented(inspect.getdoc(method) or "", options)
        called.options = options
        return with_options

    return decorated


def _documented(docstring: str, kind: type[Options]) -> str:
    """Return a docstring with a section of arguments before the section of errors."""
    texts = (f"{definition.name}: {about_option(definition)}" for definition in option_fields(kind))
    # Names with hyphens stay whole.
    wrapper = textwrap.TextWrapper(112, "    ", "        ", break_on_hyphens=False)
    section = "\n".join(["Args:", *map(wrapper.fill, texts)])
    text, raises, errors = docstring.partition("\n\nRaises:")
    return f"{text}\n\n{section}{raises}{errors}"
