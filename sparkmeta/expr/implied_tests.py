"""Derive simple tests of bounds, partition values and partition summaries from a filter."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundPredicate,
    BoundStartsWith,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from sparkmeta.expr.bounds import AllOf, AnyOf, BoundTest
from sparkmeta.expr.conditions import fold, prefix_end
from sparkmeta.expr.predicate_terms import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkmeta.expr.bounds import Source
    from sparkmeta.expr.conditions import Junction

# Types with one order in all writers, in Arrow and in Spark, unlike floating point numbers and UUIDs.
_ORDERED: Final = (
    BooleanType, IntegerType, LongType, DecimalType, DateType, TimeType, TimestampType, TimestamptzType,
    TimestampNanoType, TimestamptzNanoType, StringType, BinaryType, FixedType,
)  # fmt: skip
# Maximum number of alternatives that are tested one by one. For more, only the loosest limits are tested.
FEW: Final = 8
IN_LIMIT: Final = 200
"""Maximum number of literals of an IN that are compared with bounds, as in Iceberg."""

# (upward, inclusive, limit) of a test.
_Range = tuple[bool, bool, Any]


def stats_tests(bound: BooleanExpression) -> AllOf:
    """Return tests of bounds that every file with a matching row passes.

    They rule out no more than ``might_match``.

    Args:
        bound: a bound filter without NOT.
    """
    return fold(bound, partial(_ordered_tests, tests=leaf_tests), _join)


def partition_tests(bound: BooleanExpression) -> AllOf:
    """Return tests that a partition tuple passes if it satisfies a bound predicate without NOT."""
    return fold(bound, partial(_ordered_tests, tests=_value_tests), _join)


def leaf_tests(leaf: BooleanExpression) -> tuple[BoundTest, ...]:
    """Return tests of bounds that a file passes if a predicate, of any type, is true for one of its rows.

    A file without a lower bound passes the tests of an IN or a prefix.
    """
    if not isinstance(leaf, BoundPredicate) or (isinstance(leaf, BoundIn) and len(leaf.value_set) > IN_LIMIT):
        return ()
    waiver: Source | None = "lower_bound" if isinstance(leaf, BoundIn | BoundStartsWith) else None
    return tuple(
        BoundTest(_bound_of(limits), *_field(leaf), *limits, waiver if limits[0] else None, path_of(leaf))
        for limits in _ranges(leaf)
    )


def _value_tests(leaf: BoundPredicate) -> tuple[BoundTest, ...]:
    return tuple(BoundTest("partition", *_field(leaf), *limits) for limits in _ranges(leaf))


def _ordered_tests(
    leaf: BooleanExpression, _negated: bool, *, tests: Callable[[BoundPredicate], tuple[BoundTest, ...]]
) -> AllOf:
    return AllOf(tests(leaf)) if isinstance(leaf, BoundPredicate) and _is_ordered(leaf) else AllOf()


def _is_ordered(leaf: BoundPredicate) -> bool:
    return isinstance(leaf.term.ref().field.field_type, _ORDERED)


def _bound_of(limits: _Range) -> Source:
    return "upper_bound" if limits[0] else "lower_bound"


def _field(leaf: BoundPredicate) -> tuple[int, str]:
    field = leaf.term.ref().field
    return field.field_id, str(field.field_type)


def _ranges(leaf: BoundPredicate) -> Iterator[_Range]:
    """Yield the limits of the values that satisfy a predicate, if any."""
    match leaf:
        case BoundEqualTo():
            yield from ((upward, True, leaf.literal.value) for upward in (False, True))
        case BoundIn():
            yield from ((False, True, max(leaf.value_set)), (True, True, min(leaf.value_set)))
        case BoundStartsWith():
            if (end := prefix_end(leaf.literal.value)) is not None:
                yield False, False, end
            yield True, True, leaf.literal.value
        case BoundLessThan() | BoundLessThanOrEqual():
            yield False, isinstance(leaf, BoundLessThanOrEqual), leaf.literal.value
        case BoundGreaterThan() | BoundGreaterThanOrEqual():
            yield True, isinstance(leaf, BoundGreaterThanOrEqual), leaf.literal.value


# -- AND and OR -----------------------------------------------------------------------------------------------------


def _join(junction: Junction, operands: Sequence[AllOf]) -> AllOf:
    """Return the tests that AND or OR of tests implies; for many alternatives, one range per column."""
    if junction is And:
        tests = [test for operand in operands for test in operand.tests]
        tightest = (_extreme(tests_of_bound, tightest=True) for tests_of_bound in _by_key(tests).values())
        return AllOf((*tightest, *(test for test in tests if isinstance(test, AnyOf))))
    if not all(operand.tests for operand in operands):
        return AllOf()
    return AllOf((AnyOf(tuple(operands)),)) if len(operands) <= FEW else _hull(operands)


def _hull(operands: Sequence[AllOf]) -> AllOf:
    """Return the loosest test of each bound that all operands test."""
    by_key = [_by_key(operand.tests) for operand in operands]
    common = [key for key in by_key[0] if all(key in tests for tests in by_key)]
    return AllOf(tuple(_extreme([test for tests in by_key for test in tests[key]], tightest=False) for key in common))


def _by_key(tests: Iterable[BoundTest | AnyOf]) -> dict[Any, list[BoundTest]]:
    by_key = defaultdict(list)
    for test in tests:
        if isinstance(test, BoundTest):
            by_key[test.key].append(test)
    return dict(by_key)


def _extreme(tests: Sequence[BoundTest], *, tightest: bool) -> BoundTest:
    """Return the tightest or the loosest of several tests of a bound."""
    upward = tests[0].upward
    limits = [(test.limit, test.inclusive != upward) for test in tests]
    limit, inclusive = max(limits) if upward == tightest else min(limits)
    return replace(tests[0], limit=limit, inclusive=inclusive != upward)
