"""Expressions over rows, with the operators and functions of pyspark's Column.

Spark evaluates an expression by its text, and the driver by its operation (`entries.evaluate`).

On classic Spark, each operation on a Column is a call into the JVM, and a plan takes thousands. These expressions stay
in Python until the whole expression is passed to Spark.
"""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,:;/=+*#@(){}[]<>|&!?^~%")
_SEPARATOR: Final = "\x00"
_NAMES: Final = re.compile(r"`(?:[^`]|``)+`|[^.`]+")


class Sql:
    """An expression of Spark SQL, as for `expr`, that does not depend on session settings.

    Attributes:
        text: the expression for Spark.
        operation: a name in `entries.evaluate`; None if only Spark evaluates the expression.
        operands: what the operation applies to: expressions, and names, values or types.
    """

    __slots__ = ("operands", "operation", "text")

    def __init__(self, text: str, operation: str | None = None, *operands: Any) -> None:
        self.text = text
        self.operation = operation
        self.operands = operands

    def column(self) -> Column:
        """Return a Column for the session, classic or Connect."""
        from pyspark.sql import functions as F

        return F.expr(self.text)

    def alias(self, name: str) -> Aliased:
        return Aliased(self, name)

    def __repr__(self) -> str:
        return f"Sql({self.text})"

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Sql:  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: object) -> Sql:  # type: ignore[override]
        return ~self._with("=", other)

    def __lt__(self, other: object) -> Sql:
        return self._with("<", other)

    def __le__(self, other: object) -> Sql:
        return self._with("<=", other)

    def __gt__(self, other: object) -> Sql:
        return self._with(">", other)

    def __ge__(self, other: object) -> Sql:
        return self._with(">=", other)

    def __add__(self, other: object) -> Sql:
        return self._with("+", other)

    def __sub__(self, other: object) -> Sql:
        return self._with("-", other)

    def __mul__(self, other: object) -> Sql:
        return self._with("*", other)

    def __truediv__(self, other: object) -> Sql:
        return self._with("/", other)

    def __floordiv__(self, other: object) -> Sql:
        return self._with("div", other)

    def __mod__(self, other: object) -> Sql:
        return self._with("%", other)

    def __and__(self, other: object) -> Sql:
        return self._with("AND", other)

    def __or__(self, other: object) -> Sql:
        return self._with("OR", other)

    def __invert__(self) -> Sql:
        return Sql(f"(NOT {self.text})", "NOT", self)

    def _with(self, operator: str, other: object) -> Sql:
        right = _sql(other)
        return Sql(f"({self.text} {operator} {right.text})", operator, self, right)

    def __getitem__(self, key: str | int | Sql) -> Sql:
        """Return a field of a struct, or the element of an array at an index from 0."""
        if isinstance(key, str):
            return Sql(f"{self.text}.{quoted(key)}", "field", self, key)
        index = _sql(key)
        return Sql(f"{self.text}[{index.text}]", "get", self, index)

    def isNull(self) -> Sql:  # noqa: N802  named like Column's, and so below
        return Sql(f"({self.text} IS NULL)", "IS NULL", self)

    def isNotNull(self) -> Sql:  # noqa: N802
        return Sql(f"({self.text} IS NOT NULL)", "IS NOT NULL", self)

    def eqNullSafe(self, other: object) -> Sql:  # noqa: N802
        return self._with("<=>", other)

    def startswith(self, prefix: str) -> Sql:
        return call("startswith", self, prefix)

    def isin(self, values: Iterable[object]) -> Sql:
        literals = [_sql(value) for value in values]
        texts = ", ".join(value.text for value in literals)
        return Sql(f"({self.text} IN ({texts}))", "IN", self, *literals) if literals else lit(False)

    def cast(self, kind: str | DataType) -> Sql:
        return Sql(f"CAST({self.text} AS {kind if isinstance(kind, str) else _type_text(kind)})", "CAST", self, kind)


class Aliased(Sql):
    """An expression with a name in a struct or a selection."""

    __slots__ = ("name",)

    def __init__(self, value: Sql, name: str) -> None:
        super().__init__(value.text, value.operation, *value.operands)
        self.name = name

    def column(self) -> Column:
        return super().column().alias(self.name)

    @property
    def selected(self) -> str:
        """The text for `selectExpr`."""
        return f"{self.text} AS {quoted(self.name)}"


class Case(Sql):
    """CASE WHEN ... THEN ...; null if no condition holds, unless `otherwise` is called."""

    __slots__ = ()

    def __init__(self, *branches: Sql) -> None:
        super().__init__(f"(CASE{_when(branches)} END)", "CASE", *branches)

    def when(self, condition: Sql, value: object) -> Case:
        return Case(*self.operands, condition, _sql(value))

    def otherwise(self, value: object) -> Sql:
        other = _sql(value)
        return Sql(f"(CASE{_when(self.operands)} ELSE {other.text} END)", "CASE", *self.operands, other)


def _when(branches: Sequence[Sql]) -> str:
    pairs = zip(branches[::2], branches[1::2], strict=True)
    return "".join(f" WHEN {condition.text} THEN {value.text}" for condition, value in pairs)


def col(path: str) -> Sql:
    """Return a column or a nested field, named as for pyspark's `col`: with dots, and backticks around odd names."""
    names = [name[1:-1].replace("``", "`") if name[0] == "`" else name for name in _NAMES.findall(path)]
    column = Sql(quoted(names[0]), "column", names[0])
    for name in names[1:]:
        column = column[name]
    return column


def last_name(path: Sql) -> str:
    """Return the name of the last field of a path."""
    name: str = path.operands[-1]
    return name


def texts(columns: Iterable[Aliased]) -> list[str]:
    """Return named columns as texts for `selectExpr`."""
    return [column.selected for column in columns]


def quoted(name: str) -> str:
    """Quote a name with backticks."""
    return f"`{name.replace('`', '``')}`"


def lit(value: bool | str | float | None) -> Sql:
    """Return a literal. Integers are int if they fit, else bigint."""
    return Sql(_literal(value), "literal", value)


def _literal(value: bool | str | float | None) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if -(2**31) < value < 2**31 else f"CAST('{value}' AS BIGINT)"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case str():
            return string_literal(value)
    raise TypeError(f"no literal of {type(value)}")


def string_literal(text: str) -> str:
    """Return a SQL string literal that does not depend on settings for escapes."""
    return f"'{text}'" if _PLAIN.issuperset(text) else f"CAST(X'{text.encode().hex()}' AS STRING)"


def call(name: str, *arguments: object) -> Sql:
    """Return a call of a function of Spark SQL."""
    operands = [_sql(argument) for argument in arguments]
    return Sql(f"{name}({', '.join(operand.text for operand in operands)})", name, *operands)


def when(condition: Sql, value: object) -> Case:
    """Return a CASE with its first branch."""
    return Case(condition, _sql(value))


def chain(operator: str, operands: Sequence[Sql]) -> Sql:
    """Join operands by AND or OR, without nesting: Spark balances the chain, and is slow to parse parentheses."""
    if len(operands) == 1:
        return operands[0]
    return Sql(f"({f' {operator} '.join(operand.text for operand in operands)})", operator, *operands)


def struct(*fields: Aliased) -> Sql:
    """Return a struct of fields."""
    text = ", ".join(f"{string_literal(field.name)}, {field.text}" for field in fields)
    return Sql(f"named_struct({text})", "struct", *fields)


array: Final = partial(call, "array")
array_contains: Final = partial(call, "array_contains")
coalesce: Final = partial(call, "coalesce")
concat: Final = partial(call, "concat")
isnan: Final = partial(call, "isnan")
raise_error: Final = partial(call, "raise_error")
size: Final = partial(call, "size")


def number_of_key(texts: Sql, key: str) -> Sql:
    """Return the number in a map of texts; null if there is no such key, or its text is no whole number of 64 bits."""
    return Sql(f"try_cast({texts.text}[{string_literal(key)}] AS bigint)", "number of key", texts, key)


def empty_array(element: Sql) -> Sql:
    """Return an empty array with the type of `element`, since `array()` has strings under a legacy setting."""
    return call("slice", array(element), 1, 0)


def exists(values: Sql, holds: Callable[[Sql], Sql]) -> Sql:
    """Return whether a condition holds for an element of an array."""
    return _higher("exists", values, holds)


def forall(values: Sql, holds: Callable[[Sql], Sql]) -> Sql:
    """Return whether a condition holds for all elements of an array."""
    return _higher("forall", values, holds)


def filter(values: Sql, holds: Callable[[Sql], Sql]) -> Sql:  # noqa: A001  named like pyspark's
    """Return the elements of an array for which a condition holds."""
    return _higher("filter", values, holds)


def transform(values: Sql, change: Callable[[Sql], Sql]) -> Sql:
    """Return an array with each element changed."""
    return _higher("transform", values, change)


def let(value: Sql, use: Callable[[Sql], Sql]) -> Sql:
    """Return an expression over a value that is computed once, even if it occurs several times."""
    with _Scope() as (variable, _):
        body = use(variable)
    return Sql(f"get(transform(array({value.text}), {variable.text} -> {body.text}), 0)", "let", value, variable, body)


def lookup(values: Sequence[str], index: Sql) -> Sql:
    """Return the text at an index from 0; null beyond the last.

    The texts are one literal that Spark folds into an array: it needs no join and stays small for any number of them.
    They must not contain the character NUL.
    """
    joined = string_literal(_SEPARATOR.join(values))
    text = f"get(split({joined}, {string_literal(_SEPARATOR)}), {index.text})"
    return Sql(text, "lookup", tuple(values), index)


def aggregate(values: Sql, start: Sql, join: Callable[[Sql, Sql], Sql]) -> Sql:
    """Return a fold of an array from the left."""
    with _Scope() as (left, right):
        body = join(left, right)
    text = f"aggregate({values.text}, {start.text}, ({left.text}, {right.text}) -> {body.text})"
    return Sql(text, "aggregate", values, start, left, right, body)


def columns(*names: str) -> list[Aliased]:
    """Return columns, each under its own name."""
    return [col(name).alias(name) for name in names]


def named(expressions: Mapping[str, Sql]) -> list[Aliased]:
    """Return expressions under their keys."""
    return [expression.alias(name) for name, expression in expressions.items()]


def count_if(condition: Sql) -> Sql:
    """Return the aggregate that counts the rows for which a condition is true."""
    return call("sum", when(condition, 1).otherwise(0))


def total(values: Sql, number: Callable[[Sql], Sql]) -> Sql:
    """Return the sum of a whole number over the elements of an array."""
    with _Scope() as (element, added):
        body = number(element)
    text = f"aggregate({values.text}, 0L, ({added.text}, {element.text}) -> {added.text} + {body.text})"
    return Sql(text, "total", values, element, body)


def _higher(function: str, values: Sql, of_element: Callable[[Sql], Sql]) -> Sql:
    with _Scope() as (element, _):
        body = of_element(element)
    return Sql(f"{function}({values.text}, {element.text} -> {body.text})", function, values, element, body)


class _Scope:
    """The variables of a lambda, named by its nesting level, so that equal lambdas have equal texts."""

    _open = threading.local()

    def __enter__(self) -> tuple[Sql, Sql]:
        depth = getattr(self._open, "depth", 0)
        self._open.depth = depth + 1
        return Sql(f"_x{depth}", "column", f"_x{depth}"), Sql(f"_y{depth}", "column", f"_y{depth}")

    def __exit__(self, *_: object) -> None:
        self._open.depth -= 1


def _type_text(kind: DataType) -> str:
    """Return a type as SQL spells it: `simpleString` leaves names unquoted, and fields out where there are many."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            fields = (f"{quoted(field.name)}: {_type_text(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{_type_text(kind.elementType)}>"
        case MapType():
            return f"map<{_type_text(kind.keyType)}, {_type_text(kind.valueType)}>"
    return kind.simpleString()


def _sql(value: Any) -> Sql:
    return value if isinstance(value, Sql) else lit(value)
