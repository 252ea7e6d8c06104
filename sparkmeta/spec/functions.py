"""Functions of a column that filters can test, and that expressions of trees keep statistics of.

No document defines the results of functions; the proposal only names `lower`. This module fixes them, so that every
process can prune by statistics that another one has computed.
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

    Each letter is replaced by itself, in any language and at any place in a word. Letters that Unicode 3.2 lacks, and
    letters whose counterpart has several characters, stay: `lower` leaves İ, and `upper` leaves ß.

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
        """Return the call of the function for a column, as in filters."""
        return f"{self.name}({_quoted(column)})"

    def default_name(self, column: str) -> str:
        """Return the name of an expression."""
        return f"{self.name}_{column}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class VariantGet:
    """The function `variant_get` of a variant: the value of a field of objects, if it has a type, otherwise null.

    A `long` is a whole number of any width, but no decimal. A `double` is any number.

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
        """The path, which Spark's functions of variants understand."""
        return "$" + "".join(f'["{name}"]' if "'" in name else f"['{name}']" for name in self.path)

    def of(self, column: str) -> str:
        """Return the call of the function for a column, as in filters."""
        path = self.spelled_path.replace("'", "''")
        return f"variant_get({_quoted(column)}, '{path}', '{self.kind}')"

    def default_name(self, column: str) -> str:
        """Return the name of an expression."""
        return "_".join((column, *self.path, self.kind))

    def __str__(self) -> str:
        return f"variant_get[{self.spelled_path},{self.kind}]"


Function = Cased | VariantGet


def _quoted(column: str) -> str:
    """Return the name of a column as in filters."""
    return column if _PLAIN_NAME.fullmatch(column) else '"{}"'.format(re.sub(r'(["\\])', r"\\\1", column))


@cache
def letters(name: str) -> tuple[str, str]:
    """Return the letters that `lower` or `upper` replaces, and their replacements in the same order."""
    earliest, change = unicodedata.ucd_3_2_0, _CASES[name]
    pairs = ((letter, change(letter)) for letter in map(chr, range(_BASIC_PLANE)))
    replaced = [
        (letter, other)
        for letter, other in pairs
        if letter != other and len(other) == 1 and "Cn" not in (earliest.category(letter), earliest.category(other))
    ]
    return "".join(letter for letter, _ in replaced), "".join(other for _, other in replaced)


def function_of(transform: str) -> Function | None:
    """Return the function with a text in expressions, such as `lower`; None if there is none."""
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
"""The call of a function, as a regular expression with `re.DOTALL`."""


def call_of(text: str) -> tuple[Function, str]:
    """Return the function and the name of the column in a call, such as `lower(name)`.

    A name in double quotes may have any characters.

    Raises:
        ValueError: it is no call of a function, or the arguments are not the function's.
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
        ValueError: the path is no such path, or there is no such type.
    """
    steps = [*_STEP.finditer(path, 1)]
    if not steps or path[0] != "$" or "".join(["$", *(step[0] for step in steps)]) != path:
        raise ValueError(f"the path {shown(path)} is not one of names of fields, such as $.a.b or $['a']['b']")
    if kind not in EXTRACTED:
        raise ValueError(f"the type {shown(kind)} is not one of {', '.join(EXTRACTED)}")
    return VariantGet(tuple(next(name for name in step.groups() if name is not None) for step in steps), kind)
