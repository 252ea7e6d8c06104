"""Functions of a column that filters can test, and whose values can have statistics in metadata trees.

The proposal names only `lower`, and no document defines what the functions return. This module defines it, so that
every process can prune by statistics that another process computed.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Final

from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    IcebergType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from sparkmeta.errors import shown

_CASES: Final = {"lower": str.lower, "upper": str.upper}
EXTRACTED: Final[dict[str, PrimitiveType]] = {
    "boolean": BooleanType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
}
"""The types of values that can be extracted from variants, by name."""

_BASIC_PLANE: Final = 0x10000
_STEP: Final = re.compile(r"""\.([A-Za-z_]\w*)|\['([^']*)'\]|\["([^"]*)"\]""")
_VARIANT_GET: Final = re.compile(r"variant_get\[(?P<path>.+),(?P<kind>\w+)\]", re.DOTALL)
_TEXT: Final = r"'(?:[^'\\]|''|\\.)*+'"
_NAME: Final = r'"(?:[^"\\]|\\.)*+"'
_PLAIN_NAME: Final = re.compile(r"[\w$.]+")
_ARGUMENTS: Final = re.compile(rf"\s*,\s*({_TEXT})\s*,\s*({_TEXT})\s*", re.DOTALL)


@dataclass(frozen=True)
class Cased:
    """The function `lower` or `upper` of a text.

    Each letter is converted on its own, whatever its language and its position in the word. Letters that Unicode 3.2
    lacks, and letters whose counterpart has several characters, stay unchanged: `lower` keeps İ, and `upper` keeps ß.

    Attributes:
        name: the name of the function.
    """

    name: str

    def can_transform(self, source: IcebergType) -> bool:
        """Return whether the function applies to values of a type."""
        return isinstance(source, StringType)

    def result_type(self, source: IcebergType) -> StringType:  # noqa: ARG002
        """Return the type of the function's values."""
        return StringType()

    def of(self, column: str) -> str:
        """Return the call of the function on a column, as filters spell it."""
        return f"{self.name}({_quoted(column)})"

    def default_name(self, column: str) -> str:
        """Return the default name of an expression for a column."""
        return f"{self.name}_{column}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class VariantGet:
    """The function `variant_get` of a variant: the value at a path if it has the given type, otherwise null.

    A `long` is an integer of any width, but not a decimal. A `double` is any number.

    Attributes:
        path: the names of the fields, from the outermost object down.
        kind: the name of the type, in `EXTRACTED`.
    """

    path: tuple[str, ...]
    kind: str

    def can_transform(self, source: IcebergType) -> bool:
        """Return whether the function applies to values of a type."""
        return str(source) == "variant"

    def result_type(self, source: IcebergType) -> PrimitiveType:  # noqa: ARG002
        """Return the type of the function's values."""
        return EXTRACTED[self.kind]

    @property
    def spelled_path(self) -> str:
        """The path in the syntax of Spark's variant functions."""
        return "$" + "".join(f'["{name}"]' if "'" in name else f"['{name}']" for name in self.path)

    def of(self, column: str) -> str:
        """Return the call of the function on a column, as filters spell it."""
        path = self.spelled_path.replace("'", "''")
        return f"variant_get({_quoted(column)}, '{path}', '{self.kind}')"

    def default_name(self, column: str) -> str:
        """Return the default name of an expression for a column."""
        return "_".join((column, *self.path, self.kind))

    def __str__(self) -> str:
        return f"variant_get[{self.spelled_path},{self.kind}]"


Function = Cased | VariantGet


def _quoted(column: str) -> str:
    """Return the name of a column as filters spell it: in quotes unless it is plain."""
    return column if _PLAIN_NAME.fullmatch(column) else '"{}"'.format(re.sub(r'(["\\])', r"\\\1", column))


@cache
def letters(name: str) -> tuple[str, str]:
    """Return the letters that `lower` or `upper` replaces, and their replacements in the same order."""
    category, convert = unicodedata.ucd_3_2_0.category, _CASES[name]
    pairs = ((letter, convert(letter)) for letter in map(chr, range(_BASIC_PLANE)))
    replaced = [
        (letter, other)
        for letter, other in pairs
        if letter != other and len(other) == 1 and "Cn" not in (category(letter), category(other))
    ]
    return "".join(letter for letter, _ in replaced), "".join(other for _, other in replaced)


def function_of(transform: str) -> Function | None:
    """Return the function that an expression's transform names, such as `lower`; None if it names no function."""
    if transform in _CASES:
        return Cased(transform)
    match = _VARIANT_GET.fullmatch(transform)
    try:
        return variant_get(match["path"], match["kind"]) if match else None
    except ValueError:
        return None


NAMES: Final = (*_CASES, "variant_get")
"""The names of the functions."""

CALL: Final = (
    rf"(?P<function>(?i:{'|'.join(NAMES)}))\s*\(\s*(?P<column>{_NAME}|[\w$.]+)"
    rf"(?P<arguments>(?:[^()'\"]|{_TEXT})*+)\)"
)
"""A regular expression for the call of a function. It needs `re.DOTALL`."""


def call_of(text: str) -> tuple[Function, str]:
    """Return the function and the name of the column in a call, such as `lower(name)`.

    A name in double quotes may contain any character.

    Raises:
        ValueError: the text is not a call of a function, or the function does not accept the arguments.
    """
    match = re.fullmatch(CALL, text.strip(), re.DOTALL)
    if match is None:
        raise ValueError(f"{shown(text)} is not a function of a column: expected one of {', '.join(NAMES)}")
    name, column, arguments = match["function"].lower(), match["column"], match["arguments"]
    if column[0] == '"':
        column = re.sub(r"\\(.)", r"\1", column[1:-1], flags=re.DOTALL)
    if name in _CASES:
        if arguments.strip():
            raise ValueError(f"{shown(text)}: {name} takes a column only")
        return Cased(name), column
    values = _ARGUMENTS.fullmatch(arguments)
    if values is None:
        example = "variant_get(v, '$.a.b', 'long')"
        raise ValueError(f"{shown(text)}: variant_get takes a column, a path and a type, such as {example}")
    return variant_get(*(value[1:-1].replace("''", "'") for value in values.groups())), column


def variant_get(path: str, kind: str) -> VariantGet:
    """Return the function that extracts values from variants.

    Args:
        path: names of fields, such as `$.a.b` and `$['a']["b"]`.
        kind: the name of a type in `EXTRACTED`.

    Raises:
        ValueError: the path or the name of the type is invalid.
    """
    steps = [*_STEP.finditer(path, 1)]
    if not steps or path[0] != "$" or "".join(["$", *(step[0] for step in steps)]) != path:
        raise ValueError(f"the path {shown(path)} is not one of names of fields, such as $.a.b or $['a']['b']")
    if kind not in EXTRACTED:
        raise ValueError(f"the type {shown(kind)} is not one of {', '.join(EXTRACTED)}")
    return VariantGet(tuple(next(name for name in step.groups() if name is not None) for step in steps), kind)
