"""Tests of bounds that a filter implies, few and simple enough for Spark to push them into Parquet."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.expressions import And

from sparkmeta.columns.truth import Truth, all_of, any_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sparkmeta.columns.comparison import Comparison
    from sparkmeta.columns.field_stats import Bound, ColumnStats
    from sparkmeta.columns.tree import Junction

_FEW: Final = 8


class BoundTest(NamedTuple):
    """``bound IS NULL OR bound <operation> value``: lt and le test the lower bound, gt and ge the upper one."""

    stats: ColumnStats
    operation: Comparison
    value: Any
    needs_lower: bool = False
    """Whether the test is waived where the lower bound is unknown."""

    @property
    def of_lower(self) -> bool:
        return self.operation in (operator.lt, operator.le)

    @property
    def bound(self) -> Bound:
        return self.stats.lower if self.of_lower else self.stats.upper

    def truth(self) -> Truth:
        waived = self.stats.lower.unknown if self.needs_lower else False
        return any_of(waived, self.bound.allows(self.operation, self.value))


class AnyOf(NamedTuple):
    """At least one of several lists of conditions holds."""

    choices: tuple[tuple[Condition, ...], ...]

    def truth(self) -> Truth:
        return any_of(*(all_of(*(condition.truth() for condition in choice)) for choice in self.choices))


Condition = BoundTest | AnyOf
Conditions = tuple[Condition, ...]


def join_conditions(junction: Junction, operands: Sequence[Conditions]) -> Conditions:
    """What AND or OR of conditions implies; of many it is one range for each column."""
    if junction is And:
        return _of_all(operands)
    if not all(operands):
        return ()
    return (AnyOf(tuple(operands)),) if len(operands) <= _FEW else _hull(operands)


def _of_all(operands: Iterable[Conditions]) -> Conditions:
    conditions = [condition for operand in operands for condition in operand]
    tests = _by_bound(condition for condition in conditions if isinstance(condition, BoundTest))
    choices = [condition for condition in conditions if isinstance(condition, AnyOf)]
    return (*(_extreme(same, min) for same in tests.values()), *choices[:_FEW])


def _hull(operands: Sequence[Conditions]) -> Conditions:
    """The loosest test of each bound that all operands test."""
    tests = [_by_bound(condition for condition in operand if isinstance(condition, BoundTest)) for operand in operands]
    common = [key for key in tests[0] if all(key in test for test in tests)]
    return tuple(_extreme([one for test in tests for one in test[key]], max) for key in common)


def _by_bound(tests: Iterable[BoundTest]) -> dict[tuple[int, bool, bool], list[BoundTest]]:
    found = defaultdict(list)
    for test in tests:
        found[id(test.stats), test.of_lower, test.needs_lower].append(test)
    return dict(found)


def _extreme(tests: Sequence[BoundTest], choose: Callable[..., BoundTest]) -> BoundTest:
    """The tightest (min) or loosest (max) of tests of one bound."""
    if tests[0].of_lower:
        return choose(tests, key=lambda test: (test.value, test.operation is operator.le))
    loosest = min if choose is max else max
    return loosest(tests, key=lambda test: (test.value, test.operation is operator.gt))
