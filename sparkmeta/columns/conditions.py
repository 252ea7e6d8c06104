"""Conditions of filters as SQL: constants are folded, chains stay flat, and wide filters become lambdas.

Spark takes minutes and gigabytes to compile a condition with thousands of terms. Operands that differ only in their
literals therefore become a lambda over an array of literals.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    BoundLiteralPredicate,
    BoundNotStartsWith,
    BoundStartsWith,
    BoundUnaryPredicate,
)
from pyiceberg.expressions.literals import Literal
from pyiceberg.types import PrimitiveType, UUIDType

from sparkmeta.columns import sql
from sparkmeta.columns.junctions import Junction, fold
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import literal_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A condition as SQL, or a constant.
Truth = Sql | bool

_WORTHWHILE: Final = 16


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
        """Return the condition, with its literals replaced by `literals` if given."""
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
    """Return the shape of a leaf: one for each operator and column of null tests and comparisons, else a new one."""
    if not isinstance(leaf, BoundLiteralPredicate | BoundUnaryPredicate):
        return _number(shapes, object())
    if isinstance(leaf, BoundStartsWith | BoundNotStartsWith):
        return _number(shapes, object())
    field = leaf.term.ref().field
    return _number(shapes, object() if isinstance(field.field_type, UUIDType) else (type(leaf), field.field_id))


def _number(shapes: dict[Any, int], key: object) -> int:
    return shapes.setdefault(key, len(shapes))


def _join(
    junction: Junction, parts: list[_Part], leaf: Callable[[BooleanExpression], Truth], shapes: dict[Any, int]
) -> _Part:
    groups: dict[int, list[_Part]] = defaultdict(list)
    for part in parts:
        groups[part.shape].append(part)
    if max(len(group) for group in groups.values()) < _WORTHWHILE:
        return _Part(_number(shapes, (junction, *(part.shape for part in parts))), (junction, parts))
    truths = [
        truth
        for group in groups.values()
        for truth in ([_spread(junction, group, leaf)] if len(group) >= _WORTHWHILE else [p.truth(leaf) for p in group])
    ]
    return _Part(_number(shapes, object()), _junction_truth(junction, truths))


def _spread(junction: Junction, group: list[_Part], leaf: Callable[[BooleanExpression], Truth]) -> Truth:
    rows = [list(part.literals()) for part in group]
    width = len(rows[0])
    if width == 0:
        return group[0].truth(leaf)

    def holds(row: Sql) -> Sql:
        columns = iter([row] if width == 1 else [row[f"_{place}"] for place in range(width)])
        return as_column(group[0].truth(leaf, columns))

    return (sql.forall if junction is And else sql.exists)(literal_array(rows), holds)
