"""The tests of Arrow arrays that a filter implies: fewer than ``might_match`` makes, and quicker."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import (
    AlwaysTrue,
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

from sparkmeta.columns.array_tests import AllOf, AnyOf, ArrayTest
from sparkmeta.columns.comparison import prefix_end
from sparkmeta.columns.field_stats import IN_LIMIT
from sparkmeta.columns.tree import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkmeta.columns.array_tests import Source
    from sparkmeta.columns.tree import Junction

# Of one order for everyone, and compared in Arrow as in Spark. Floating point numbers and UUIDs are not.
_ORDERED: Final = (
    IntegerType, LongType, DecimalType, DateType, TimeType, TimestampType, TimestamptzType, TimestampNanoType,
    TimestamptzNanoType, StringType, BinaryType, FixedType,
)  # fmt: skip
_FEW: Final = 8
# Of a test: upward, inclusive, limit.
_Range = tuple[bool, bool, Any]


def stats_tests(bound: BooleanExpression) -> AllOf:
    """What the bounds of a file satisfy that holds a row for which a filter, bound and free of NOT, is true.

    No more than ``might_match`` rules out: it does not look at an IN of very many values either.
    """
    return _tests(bound, _of_bounds, IN_LIMIT)


def partition_tests(bound: BooleanExpression) -> AllOf:
    """What a partition tuple satisfies for which a predicate of its values, bound and free of NOT, is true."""
    return _tests(bound, lambda leaf, one: ArrayTest("partition", *_field(leaf), *one))


def _of_bounds(leaf: BoundPredicate, one: _Range) -> ArrayTest:
    upward = one[0]
    waived: Source | None = "lower_bound" if upward and isinstance(leaf, BoundIn | BoundStartsWith) else None
    return ArrayTest("upper_bound" if upward else "lower_bound", *_field(leaf), *one, waived)


def summary_tests(bound: BooleanExpression) -> AllOf | None:
    """What the partition summaries of a manifest satisfy that ``summary_might_match`` keeps, and of no other.

    None where the predicate, an inclusive projection onto the manifest's own spec, has more to it than few comparisons
    of values with an order.
    """
    return fold(bound, lambda leaf, _negated: _of_summary(leaf), _join_summaries)


def _of_summary(leaf: BooleanExpression) -> AllOf | None:
    if isinstance(leaf, AlwaysTrue):
        return AllOf()
    if not isinstance(leaf, BoundPredicate) or not isinstance(leaf.term.ref().field.field_type, _ORDERED):
        return None
    if isinstance(leaf, BoundIn):
        if len(leaf.value_set) > _FEW:
            return None
        values = [((False, True, one), (True, True, one)) for one in leaf.value_set]
        return AllOf((AnyOf(tuple(AllOf(tuple(_summary_test(leaf, limit) for limit in limits)) for limits in values)),))
    ranges = tuple(_ranges(leaf))
    if not ranges or (isinstance(leaf, BoundStartsWith) and len(ranges) == 1):
        return None
    return AllOf(tuple(_summary_test(leaf, one) for one in ranges))


def _summary_test(leaf: BoundPredicate, one: _Range) -> ArrayTest:
    """A summary without bounds is of a manifest without values; one that is not there says nothing."""
    upward, decisive = one[0], isinstance(leaf, BoundGreaterThan | BoundGreaterThanOrEqual)
    source: Source = "upper_bound" if upward else "lower_bound"
    return ArrayTest(source, *_field(leaf), *one, "contains_null", null_passes=upward and not decisive)


def _join_summaries(junction: Junction, operands: Sequence[AllOf | None]) -> AllOf | None:
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands) or len(known) > _FEW:
        return None
    return _join(junction, known)


def _field(leaf: BoundPredicate) -> tuple[int, str]:
    field = leaf.term.ref().field
    return field.field_id, str(field.field_type)


def _tests(
    bound: BooleanExpression, make: Callable[[BoundPredicate, _Range], ArrayTest], in_limit: int | None = None
) -> AllOf:
    def of_leaf(leaf: BooleanExpression, _negated: bool) -> AllOf:
        if not isinstance(leaf, BoundPredicate) or not isinstance(leaf.term.ref().field.field_type, _ORDERED):
            return AllOf()
        if in_limit is not None and isinstance(leaf, BoundIn) and len(leaf.value_set) > in_limit:
            return AllOf()
        return AllOf(tuple(make(leaf, one) for one in _ranges(leaf)))

    return fold(bound, of_leaf, _join)


def _ranges(leaf: BoundPredicate) -> Iterator[_Range]:
    """The limits of the values that satisfy a predicate; none where it has none."""
    match leaf:
        case BoundEqualTo():
            yield from ((upward, True, leaf.literal.value) for upward in (False, True))
        case BoundIn():
            yield from ((False, True, max(leaf.value_set)), (True, True, min(leaf.value_set)))
        case BoundStartsWith():
            yield True, True, leaf.literal.value
            if (end := prefix_end(leaf.literal.value)) is not None:
                yield False, False, end
        case BoundLessThan() | BoundLessThanOrEqual():
            yield False, isinstance(leaf, BoundLessThanOrEqual), leaf.literal.value
        case BoundGreaterThan() | BoundGreaterThanOrEqual():
            yield True, isinstance(leaf, BoundGreaterThanOrEqual), leaf.literal.value


def _join(junction: Junction, operands: Sequence[AllOf]) -> AllOf:
    if junction is And:
        return AllOf(tuple(test for operand in operands for test in operand.tests))
    if not all(operand.tests for operand in operands):
        return AllOf()
    return AllOf((AnyOf(tuple(operands)),)) if len(operands) <= _FEW else _hull(operands)


def _hull(operands: Sequence[AllOf]) -> AllOf:
    """Of many alternatives the loosest limits that all of them have."""
    found: dict[Any, list[ArrayTest]] = defaultdict(list)
    for operand in operands:
        for key, tests in _by_key(operand).items():
            found[key].append(tests[0])
    return AllOf(tuple(_loosest(tests) for tests in found.values() if len(tests) == len(operands)))


def _by_key(operand: AllOf) -> dict[Any, list[ArrayTest]]:
    tests: dict[Any, list[ArrayTest]] = defaultdict(list)
    for test in operand.tests:
        if isinstance(test, ArrayTest):
            tests[test.key].append(test)
    return tests


def _loosest(tests: Sequence[ArrayTest]) -> ArrayTest:
    upward = tests[0].upward
    limits = [(test.limit, test.inclusive != upward) for test in tests]
    limit, inclusive = min(limits) if upward else max(limits)
    return replace(tests[0], limit=limit, inclusive=inclusive != upward)
