"""Expressions over rows, with the operators and functions of pyspark's Column.

An expression is a tree of operations. The driver evaluates it (`expr.evaluate`). Spark gets its text, which is
rendered when Spark needs it.

On classic Spark, each operation on a Column is a call into the JVM, and a plan needs thousands. These expressions stay
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

_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,:;/=+*#@(){}[]<>|&!?^~%")
_SEPARATOR: Final = "\x00"
_NAMES: Final = re.compile(r"`(?:[^`]|``)+`|[^.`]+")


class Sql:
    """An expression of Spark SQL, as for `expr`, that does not depend on session settings.

    Args:
        operation: a name in `expr.evaluate`, or a function of Spark SQL.
        operands: what the operation applies to: expressions, and names, values or types.
        text: the expression for Spark if it is not rendered from the operation.

    Attributes:
        operation: the operation.
        operands: its operands.
    """

    __slots__ = ("_text", "operands", "operation")

    def __init__(self, operation: str, *operands: Any, text: str | Callable[[], str] | None = None) -> None:
        self.operation = operation
        self.operands = operands
        self._text = text

    @property
    def text(self) -> str:
        """The expression for Spark."""
        if not isinstance(self._text, str):
            self._text = self._rendered() if self._text is None else self._text()
        return self._text

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # A function that renders text may not be picklable.
        text = self.text if callable(self._text) else self._text
        return None, {"operation": self.operation, "operands": self.operands, "_text": text}

    def _rendered(self) -> str:
        render = _TEXTS.get(self.operation)
        if render is None:
            return f"{self.operation}({', '.join(operand.text for operand in self.operands)})"
        return render(*self.operands)

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
        return Sql("NOT", self)

    def _with(self, operator: str, other: object) -> Sql:
        return Sql(operator, self, _sql(other))

    def __getitem__(self, key: str | int | Sql) -> Sql:
        """Return a field of a struct, or the element of an array at an index from 0."""
        return Sql("field", self, key) if isinstance(key, str) else Sql("element", self, _sql(key))

    def isNull(self) -> Sql:  # noqa: N802  named like Column's, and so below
        return Sql("IS NULL", self)

    def isNotNull(self) -> Sql:  # noqa: N802
        return Sql("IS NOT NULL", self)

    def eqNullSafe(self, other: object) -> Sql:  # noqa: N802
        return self._with("<=>", other)

    def startswith(self, prefix: str) -> Sql:
        return call("startswith", self, prefix)

    def isin(self, values: Iterable[object]) -> Sql:
        literals = [_sql(value) for value in values]
        return Sql("IN", self, *literals) if literals else lit(False)

    def cast(self, kind: str | DataType) -> Sql:
        return Sql("CAST", self, kind)


class Aliased(Sql):
    """An expression with a name in a struct or a selection."""

    __slots__ = ("name",)

    def __init__(self, value: Sql, name: str) -> None:
        super().__init__(value.operation, *value.operands, text=value._text)
        self.name = name

    def column(self) -> Column:
        return super().column().alias(self.name)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        _, slots = super().__getstate__()
        return None, slots | {"name": self.name}

    @property
    def selected(self) -> str:
        """The text for `selectExpr`."""
        return f"{self.text} AS {quoted(self.name)}"


class Case(Sql):
    """CASE WHEN ... THEN ...; null if no condition holds, unless `otherwise` is called."""

    __slots__ = ()

    def __init__(self, *branches: Sql) -> None:
        super().__init__("CASE", *branches)

    def when(self, condition: Sql, value: object) -> Case:
        return Case(*self.operands, condition, _sql(value))

    def otherwise(self, value: object) -> Sql:
        return Sql("CASE", *self.operands, _sql(value))


def col(path: str) -> Sql:
    """Return a column or a nested field, named as for pyspark's `col`: with dots, and backticks around odd names."""
    names = [name[1:-1].replace("``", "`") if name[0] == "`" else name for name in _NAMES.findall(path)]
    column = Sql("column", names[0])
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
    return Sql("literal", value)


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
    return f"'{text}'" if _SAFE.issuperset(text) else f"CAST(X'{text.encode().hex()}' AS STRING)"


def call(name: str, *arguments: object) -> Sql:
    """Return a call of a function of Spark SQL."""
    return Sql(name, *map(_sql, arguments))


def spelled(by_spark: Sql, operation: str, *operands: Any) -> Sql:
    """Return an expression that the driver evaluates by another operation than Spark, with equal results."""
    return Sql(operation, *operands, text=lambda: by_spark.text)


def spark_only(text: str | Callable[[], str]) -> Sql:
    """Return an expression that only Spark evaluates, by its text."""
    return Sql("expression of Spark", text=text)


def when(condition: Sql, value: object) -> Case:
    """Return a CASE with its first branch."""
    return Case(condition, _sql(value))


def nullable(value: Sql) -> Sql:
    """Return a value as nullable, as columns of files are. Spark drops the function when it optimizes a query."""
    return call("nullif", value, lit(None))


def chain(operator: str, operands: Sequence[Sql]) -> Sql:
    """Join operands by AND or OR, without nesting: Spark balances the chain, and is slow to parse parentheses."""
    return operands[0] if len(operands) == 1 else Sql(operator, *operands)


def struct(*fields: Aliased) -> Sql:
    """Return a struct of fields."""
    return Sql("struct", *fields)


array: Final = partial(call, "array")
array_contains: Final = partial(call, "array_contains")
coalesce: Final = partial(call, "coalesce")
concat: Final = partial(call, "concat")
isnan: Final = partial(call, "isnan")
raise_error: Final = partial(call, "raise_error")
size: Final = partial(call, "size")


def number_of_key(texts: Sql, key: str) -> Sql:
    """Return the number in a map of texts; null if there is no such key, or its text is not a 64-bit integer."""
    return Sql("number of key", texts, key)


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
        return Sql("let", value, variable, use(variable))


def lookup(values: Sequence[str], index: Sql) -> Sql:
    """Return the text at an index from 0; null before the first and beyond the last.

    The texts are one literal that Spark folds into an array: it needs no join and stays small for any number of them.
    They must not contain the character NUL.
    """
    return Sql("lookup", tuple(values), index)


def aggregate(values: Sql, start: Sql, join: Callable[[Sql, Sql], Sql]) -> Sql:
    """Return a fold of an array from the left."""
    with _Scope() as (left, right):
        return Sql("aggregate", values, start, left, right, join(left, right))


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
    # The sum is a variable of the text only.
    text = partial(_total_text, values, element, added, body)
    return Sql("total", values, element, body, text=text)


def _total_text(values: Sql, element: Sql, added: Sql, body: Sql) -> str:
    return f"aggregate({values.text}, 0L, ({added.text}, {element.text}) -> {added.text} + {body.text})"


def _higher(function: str, values: Sql, of_element: Callable[[Sql], Sql]) -> Sql:
    with _Scope() as (element, _):
        return Sql(function, values, element, of_element(element))


class _Scope:
    """The variables of a lambda, named by its nesting level, so that equal lambdas have equal texts."""

    _open = threading.local()

    def __enter__(self) -> tuple[Sql, Sql]:
        depth = getattr(self._open, "depth", 0)
        self._open.depth = depth + 1
        return Sql("column", f"_x{depth}"), Sql("column", f"_y{depth}")

    def __exit__(self, *_: object) -> None:
        self._open.depth -= 1


def _type_text(kind: DataType) -> str:
    """Return a type as SQL spells it.

    `simpleString` does not quote names, omits fields of large structs, and calls timestamps with a zone `timestamp`,
    which `spark.sql.timestampType` may turn into timestamps without a zone.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    match kind:
        case StructType():
            fields = (f"{quoted(field.name)}: {_type_text(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{_type_text(kind.elementType)}>"
        case MapType():
            return f"map<{_type_text(kind.keyType)}, {_type_text(kind.valueType)}>"
        case TimestampType():
            return "timestamp_ltz"
    return kind.simpleString()


def _sql(value: Any) -> Sql:
    return value if isinstance(value, Sql) else lit(value)


# -- The texts of operations ------------------------------------------------------------------------------------------
# Other operations are functions of Spark SQL, and their operands the arguments.


def _infix(operator: str, *operands: Sql) -> str:
    return f"({f' {operator} '.join(operand.text for operand in operands)})"


def _case_text(*branches: Sql) -> str:
    pairs = zip(branches[::2], branches[1::2], strict=False)
    whens = "".join(f" WHEN {condition.text} THEN {value.text}" for condition, value in pairs)
    otherwise = f" ELSE {branches[-1].text}" if len(branches) % 2 else ""
    return f"(CASE{whens}{otherwise} END)"


def _in_text(value: Sql, *literals: Sql) -> str:
    return f"({value.text} IN ({', '.join(literal.text for literal in literals)}))"


def _cast_text(value: Sql, kind: str | DataType) -> str:
    return f"CAST({value.text} AS {kind if isinstance(kind, str) else _type_text(kind)})"


def _struct_text(*fields: Aliased) -> str:
    return f"named_struct({', '.join(f'{string_literal(field.name)}, {field.text}' for field in fields)})"


def _lookup_text(values: Sequence[str], index: Sql) -> str:
    joined = string_literal(_SEPARATOR.join(values))
    return f"get(split({joined}, {string_literal(_SEPARATOR)}), {index.text})"


def _let_text(value: Sql, variable: Sql, body: Sql) -> str:
    return f"get(transform(array({value.text}), {variable.text} -> {body.text}), 0)"


def _fold_text(values: Sql, start: Sql, left: Sql, right: Sql, body: Sql) -> str:
    return f"aggregate({values.text}, {start.text}, ({left.text}, {right.text}) -> {body.text})"


def _lambda_text(function: str, values: Sql, element: Sql, body: Sql) -> str:
    return f"{function}({values.text}, {element.text} -> {body.text})"


_INFIX: Final = ("=", "<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "div", "%", "AND", "OR")
_TEXTS: Final[Mapping[str, Callable[..., str]]] = {
    **{operator: partial(_infix, operator) for operator in _INFIX},
    **{function: partial(_lambda_text, function) for function in ("exists", "forall", "filter", "transform")},
    "NOT": lambda value: f"(NOT {value.text})",
    "IS NULL": lambda value: f"({value.text} IS NULL)",
    "IS NOT NULL": lambda value: f"({value.text} IS NOT NULL)",
    "IN": _in_text,
    "CAST": _cast_text,
    "CASE": _case_text,
    "column": quoted,
    "literal": _literal,
    "field": lambda value, name: f"{value.text}.{quoted(name)}",
    "element": lambda value, index: f"{value.text}[{index.text}]",
    "struct": _struct_text,
    "number of key": lambda texts, key: f"try_cast({texts.text}[{string_literal(key)}] AS bigint)",
    "let": _let_text,
    "lookup": _lookup_text,
    "aggregate": _fold_text,
}
