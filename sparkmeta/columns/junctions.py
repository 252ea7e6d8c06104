"""Traverse boolean expression trees of any depth and width without recursion."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, Not, Or

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
            junction, operands_of = _chain(node, bool(detail))
            pending.append((junction, len(operands_of)))
            pending.extend(reversed(operands_of))
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
    rest = [operand for operand in operands if operand is not neutral]
    return balanced(rest, junction) if rest else neutral


def depth(expression: BooleanExpression) -> int:
    """Return the number of alternating levels of AND and OR: 0 for a predicate, 1 for a chain of predicates."""
    return fold(expression, lambda _leaf, _negated: 0, lambda _junction, operands: 1 + max(operands))
