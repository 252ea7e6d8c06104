"""Traverse expression trees without recursion, and write conditions as SQL that Spark pushes into Parquet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundLiteralPredicate,
    BoundNotStartsWith,
    BoundStartsWith,
    BoundUnaryPredicate,
    Not,
    Or,
)
from pyiceberg.expressions.literals import Literal
from pyiceberg.types import DoubleType, FloatType, IcebergType, PrimitiveType, UUIDType

from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import bound_type, literal_array, typed_literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


# -- Traverse expression trees ----------------------------------------------------------------------------------------


T = TypeVar("T")
Junction = type[And] | type[Or]


def fold(
    expression: BooleanExpression,
    leaf: Callable[[BooleanExpression, bool], T],
    join: Callable[[Junction, list[T]], T],
) -> T:
    """Fold an expression bottom-up, with NOT pushed to the leaves by De Morgan's laws.

    Args:
        expression: any pyiceberg expression.
        leaf: called with each predicate or constant, and whether it is negated.
        join: called with ``And`` or ``Or``, and the results of all operands of a chain of it (two or more).
    """
    pending: list[tuple[BooleanExpression, bool] | tuple[Junction, int]] = [(expression, False)]
    results: list[T] = []
    while pending:
        node, detail = pending.pop()
        if isinstance(node, type):
            operands = results[-detail:]
            results[-detail:] = [join(node, operands)]
        elif isinstance(node, And | Or):
            junction, chain_operands = _chain(node, bool(detail))
            pending.append((junction, len(chain_operands)))
            pending.extend(reversed(chain_operands))
        elif isinstance(node, Not):
            pending.append((node.child, not detail))
        else:
            results.append(leaf(node, bool(detail)))
    return results[0]


def _chain(node: And | Or, negated: bool) -> tuple[Junction, list[tuple[BooleanExpression, bool]]]:
    """Return all operands, from left to right, of nested ANDs (or ORs) that are a chain after NOT is pushed down."""
    junction = _junction(node, negated)
    operands: list[tuple[BooleanExpression, bool]] = []
    pending: list[tuple[BooleanExpression, bool]] = [(node, negated)]
    while pending:
        child, negated = pending.pop()
        if isinstance(child, Not):
            pending.append((child.child, not negated))
        elif isinstance(child, And | Or) and _junction(child, negated) is junction:
            pending += [(child.right, negated), (child.left, negated)]
        else:
            operands.append((child, negated))
    return junction, operands


def _junction(node: And | Or, negated: bool) -> Junction:
    return And if isinstance(node, And) != negated else Or


def balanced(operands: Sequence[T], join: Callable[[T, T], T]) -> T:
    """Join operands pairwise, in order, to a tree of logarithmic depth."""
    level = list(operands)
    while len(level) > 1:
        pairs = [join(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def junction_of(junction: Junction, operands: Sequence[BooleanExpression]) -> BooleanExpression:
    """Return the operands as a balanced tree of ``And`` or ``Or``; TRUE and FALSE are absorbed."""
    neutral, absorbing = (AlwaysTrue(), AlwaysFalse()) if junction is And else (AlwaysFalse(), AlwaysTrue())
    if any(operand is absorbing for operand in operands):
        return absorbing
    terms = [operand for operand in operands if operand is not neutral]
    return balanced(terms, junction) if terms else neutral


def depth(expression: BooleanExpression) -> int:
    """Return the number of alternating levels of AND and OR: 0 for a predicate, 1 for a chain of predicates."""
    return fold(expression, lambda _leaf, _negated: 0, lambda _junction, operands: 1 + max(operands))


# -- Comparisons that Spark may push into Parquet ---------------------------------------------------------------------


Comparison = Callable[[Any, Any], Any]

# Spark passes dates and instants to Parquet as java.sql.Date and Timestamp, whose calendar skips ten days of 1582 and
# overflows near the ends of the range. Before 1900, a pushed comparison may drop rows or fail.
_PUSHED_FROM_DAY: Final = -25_567
_DAY_MICROS: Final = 86_400_000_000

_LAST_BEFORE_SURROGATES: Final = 0xD7FF
_FIRST_AFTER_SURROGATES: Final = 0xE000
_LAST_CODE_POINT: Final = 0x10FFFF


def unpushed(column: Sql) -> Sql:
    """Return the value of a column as an expression that Spark can't push into Parquet, and does not simplify.

    Spark writes a pushed literal with the precision that a decimal has in the file. A file from before the column was
    widened may have a lower one, with which literals overflow: Spark then skips row groups with matches, or fails.
    """
    return sql.call("greatest", column, None)


def is_floating(field_type: IcebergType) -> bool:
    """Return whether values of a type may be NaN."""
    return isinstance(field_type, FloatType | DoubleType)


def identity(value: Sql, kind: IcebergType | str) -> Sql:
    """Return a value that is equal in Spark if partition values are: floats as text, since -0.0 is not 0.0."""
    return value.cast("string") if str(kind) in ("float", "double") else value


def compare(operation: Comparison, column: Sql, value: Any, primitive: PrimitiveType) -> Sql:
    """Compare a column in bound form with a literal or another column, by a function of the operator module.

    The result is null if the column is null. Values are ordered as in Spark: NaN is the greatest number, -0.0 equals
    0.0, and UUIDs are ordered by unsigned bytes.
    """
    left, (right,) = _sides(column, [value], primitive)
    compared: Sql = operation(left, right)
    return compared


def one_of(column: Sql, values: Collection[Any], primitive: PrimitiveType) -> Sql:
    """Return whether a column in bound form equals one of the literals; null if the column is null."""
    left, literals = _sides(column, values, primitive)
    return left.isin(literals)


def _sides(column: Sql, values: Collection[Any], primitive: PrimitiveType) -> tuple[Sql, list[Sql]]:
    """Return a column and the literals, written so that Spark pushes comparisons into Parquet only if that is safe."""
    if any(isinstance(value, Sql) for value in values):
        return _unsigned_zero(column, primitive) if is_floating(primitive) else column, list(values)
    match str(primitive):
        case "date" if min(values) < _PUSHED_FROM_DAY:
            return sql.call("unix_date", column), [sql.lit(value) for value in values]
        case "timestamptz" if min(values) < _PUSHED_FROM_DAY * _DAY_MICROS:
            return sql.call("unix_micros", column), [sql.lit(value).cast("bigint") for value in values]
    if is_floating(primitive):
        return _unsigned_zero(column, primitive), [typed_literal(value + 0.0, primitive) for value in values]
    return column, [typed_literal(value, primitive) for value in values]


def _unsigned_zero(column: Sql, primitive: PrimitiveType) -> Sql:
    """Replace -0.0 by 0.0. This also keeps Spark from using Parquet statistics, which ignore NaN and order zeros."""
    return column + sql.lit(0.0).cast(bound_type(primitive))


def prefix_end(prefix: str) -> str | None:
    """Return the least string that is greater than every string with a prefix; None if there is none."""
    for end in range(len(prefix), 0, -1):
        code_point = ord(prefix[end - 1])
        if code_point < _LAST_CODE_POINT:
            following = _FIRST_AFTER_SURROGATES if code_point == _LAST_BEFORE_SURROGATES else code_point + 1
            return prefix[: end - 1] + chr(following)
    return None


# -- Conditions as SQL ------------------------------------------------------------------------------------------------
# Spark needs minutes and gigabytes to compile a condition with thousands of terms. Operands that differ only in their
# literals therefore become a lambda over an array of literals.


# A condition as SQL, or a constant.
Truth = Sql | bool

# Minimum number of such operands that become a lambda.
_MIN_LITERALS: Final = 16


def all_of(*conditions: Truth) -> Truth:
    """Return whether all conditions hold."""
    if any(condition is False for condition in conditions):
        return False
    columns = [condition for condition in conditions if isinstance(condition, Sql)]
    return sql.chain("AND", columns) if columns else True


def any_of(*conditions: Truth) -> Truth:
    """Return whether any condition holds."""
    if any(condition is True for condition in conditions):
        return True
    columns = [condition for condition in conditions if isinstance(condition, Sql)]
    return sql.chain("OR", columns) if columns else False


def negated(condition: Truth) -> Truth:
    """Return whether a condition, which must not be null, does not hold."""
    return not condition if isinstance(condition, bool) else ~condition


def as_column(condition: Truth) -> Sql:
    """Return a condition as a boolean Sql."""
    return sql.lit(condition) if isinstance(condition, bool) else condition


def fold_truth(bound: BooleanExpression, leaf: Callable[[BooleanExpression], Truth]) -> Truth:
    """Return whether a bound, NOT-free expression holds.

    Args:
        bound: the expression.
        leaf: returns whether a predicate or constant holds. The literal of a comparison may have a Sql as its value.
    """
    shapes: dict[Any, int] = {}

    def make(expression: BooleanExpression, _negated: bool) -> _Part:
        return _Part(_shape_of_leaf(expression, shapes), expression)

    return fold(bound, make, lambda junction, parts: _join(junction, parts, leaf, shapes)).truth(leaf)


class ColumnLiteral(Literal[Any]):
    """A literal whose value is an expression, an element of an array in a lambda."""

    def __init__(self, column: Sql) -> None:
        super(Literal, self).__init__(column)  # skips the check of the value's type

    def to(self, type_var: object) -> Literal[Any]:
        raise TypeError(f"a literal in an array is bound already, not to be converted to {type_var}")


@dataclass(frozen=True)
class _Part:
    """A part of an expression.

    Attributes:
        shape: a number that is equal for parts which differ only in their literals.
        content: a predicate or constant, a junction with its parts, or the condition if it has been built.
    """

    shape: int
    content: BooleanExpression | tuple[Junction, list[_Part]] | Truth

    def truth(self, leaf: Callable[[BooleanExpression], Truth], literals: Iterator[Sql] | None = None) -> Truth:
        """Return the condition, with its literals replaced by `literals` unless these are None."""
        match self.content:
            case (junction, parts):
                return _junction_truth(junction, [part.truth(leaf, literals) for part in parts])
            case BoundLiteralPredicate() as predicate if literals is not None:
                return leaf(type(predicate)(predicate.term, ColumnLiteral(next(literals))))
            case BooleanExpression() as expression:
                return leaf(expression)
        return self.content

    def literals(self) -> Iterator[tuple[Any, PrimitiveType]]:
        match self.content:
            case (_, parts):
                for part in parts:
                    yield from part.literals()
            case BoundLiteralPredicate() as predicate:
                value, primitive = predicate.literal.value, predicate.term.ref().field.field_type
                assert isinstance(primitive, PrimitiveType)
                yield (value + 0.0 if isinstance(value, float) else value), primitive


def _junction_truth(junction: Junction, truths: list[Truth]) -> Truth:
    return (all_of if junction is And else any_of)(*truths)


def _shape_of_leaf(leaf: BooleanExpression, shapes: dict[Any, int]) -> int:
    """Return the shape of a leaf: one for each operator and column of null tests and comparisons, else a new one.

    Tests of the bounds of UUIDs depend on the digits of the literal.
    """
    if not isinstance(leaf, BoundLiteralPredicate | BoundUnaryPredicate):
        return _number(shapes, object())
    if isinstance(leaf, BoundStartsWith | BoundNotStartsWith):
        return _number(shapes, object())
    field = leaf.term.ref().field
    # Transforms and functions of columns share an id, but each has its own name.
    key = object() if isinstance(field.field_type, UUIDType) else (type(leaf), field.field_id, field.name)
    return _number(shapes, key)


def _number(shapes: dict[Any, int], key: object) -> int:
    return shapes.setdefault(key, len(shapes))


def _join(
    junction: Junction, parts: list[_Part], leaf: Callable[[BooleanExpression], Truth], shapes: dict[Any, int]
) -> _Part:
    groups: dict[int, list[_Part]] = defaultdict(list)
    for part in parts:
        groups[part.shape].append(part)
    if max(len(group) for group in groups.values()) < _MIN_LITERALS:
        return _Part(_number(shapes, (junction, *(part.shape for part in parts))), (junction, parts))
    truths: list[Truth] = []
    for group in groups.values():
        if len(group) >= _MIN_LITERALS:
            truths.append(_over_literals(junction, group, leaf))
        else:
            truths += [part.truth(leaf) for part in group]
    return _Part(_number(shapes, object()), _junction_truth(junction, truths))


def _over_literals(junction: Junction, group: list[_Part], leaf: Callable[[BooleanExpression], Truth]) -> Truth:
    """Join parts of one shape by a lambda over an array of their literals."""
    rows = [list(part.literals()) for part in group]
    width = len(rows[0])
    if width == 0:
        return group[0].truth(leaf)

    def holds(row: Sql) -> Sql:
        columns = iter([row] if width == 1 else [row[f"_{index}"] for index in range(width)])
        return as_column(group[0].truth(leaf, columns))

    return (sql.forall if junction is And else sql.exists)(literal_array(rows), holds)
