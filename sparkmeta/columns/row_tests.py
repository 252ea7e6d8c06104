"""Tests of rows that Arrow evaluates, as `row_predicate` does in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundStartsWith,
)

from sparkmeta.columns.bounds import as_numbers
from sparkmeta.columns.conditions import fold

# -- Tests of rows in Arrow -------------------------------------------------------------------------------------------
# The driver makes them (`arrow_filter`), and pickles them for tasks.


Operation = Literal["is_null", "is_nan", "lt", "le", "gt", "ge", "one_of", "starts_with"]
# Field id -> its values.
Values = Callable[[int], pa.Array]

_COMPARISONS: Final[dict[str, Callable[..., pa.BooleanArray]]] = {
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}


@dataclass(frozen=True)
class RowTest:
    """A test of a column; a null passes `is_null` and negated tests only.

    Attributes:
        operation: the test.
        field_id: the column.
        literals: the literals that its values are compared with; dates and times as numbers.
        negated: whether a value passes if the operation does not hold.
    """

    operation: Operation
    field_id: int
    literals: tuple[Any, ...] = ()
    negated: bool = False

    def passes(self, values: Values) -> pa.BooleanArray:
        """Return whether each row passes; without nulls."""
        column = values(self.field_id)
        is_null = self.operation == "is_null"
        holds = column.is_null() if is_null else pc.fill_null(self._holds(as_numbers(column)), False)
        return pc.invert(holds) if self.negated else holds

    def _holds(self, column: pa.Array) -> pa.BooleanArray:
        if self.operation == "is_nan":
            return pc.is_nan(column)
        if self.operation == "starts_with":
            return pc.starts_with(column, self.literals[0])
        if self.operation == "one_of":
            # Arrow's `is_in` tells -0.0 from 0.0.
            if len(self.literals) > 1 and not pa.types.is_floating(column.type):
                return pc.is_in(column, pa.array(self.literals, column.type))
            return reduce(pc.or_, (pc.equal(column, pa.scalar(literal, column.type)) for literal in self.literals))
        holds = _COMPARISONS[self.operation](column, pa.scalar(self.literals[0], column.type))
        # As in Spark, NaN is greater than all other numbers.
        if pa.types.is_floating(column.type) and self.operation in ("gt", "ge"):
            return pc.or_(holds, pc.is_nan(column))
        return holds


@dataclass(frozen=True)
class Junction:
    """All or any of several tests. Without parts, "all" passes and "any" does not.

    Attributes:
        parts: the tests.
        is_and: whether all must pass.
    """

    parts: tuple[RowTest | Junction, ...]
    is_and: bool

    def passes(self, values: Values) -> pa.BooleanArray | bool:
        """Return whether each row passes, without nulls; or whether all do."""
        passed: pa.BooleanArray | bool = self.is_and
        join = pc.and_ if self.is_and else pc.or_
        for part in self.parts:
            of_part = part.passes(values)
            if isinstance(of_part, bool):
                if of_part != self.is_and:
                    return of_part
            else:
                passed = of_part if isinstance(passed, bool) else join(passed, of_part)
        return passed


# -- Turn filters into tests of rows ----------------------------------------------------------------------------------


# Types whose values Arrow compares as Spark does.
_TYPES: Final = frozenset({"int", "long", "double", "date", "timestamp", "timestamptz", "string"})
_OPERATIONS: Final[dict[type[BoundLiteralPredicate], Operation]] = {
    BoundLessThan: "lt",
    BoundLessThanOrEqual: "le",
    BoundGreaterThan: "gt",
    BoundGreaterThanOrEqual: "ge",
    BoundEqualTo: "one_of",
    BoundStartsWith: "starts_with",
}


def row_tests(bound: BooleanExpression) -> Junction | None:
    """Return a filter as tests of rows; None if it has a predicate that only Spark evaluates.

    Args:
        bound: a bound filter without NOT.
    """

    def join(junction: type[BooleanExpression], parts: list[RowTest | Junction | None]) -> Junction | None:
        tests = tuple(part for part in parts if part is not None)
        return Junction(tests, junction is And) if len(tests) == len(parts) else None

    tests = fold(bound, lambda leaf, _negated: _test(leaf), join)
    return Junction((tests,), is_and=True) if isinstance(tests, RowTest) else tests


def _test(leaf: BooleanExpression) -> RowTest | Junction | None:
    if not isinstance(leaf, BoundPredicate):
        return Junction((), is_and=isinstance(leaf, AlwaysTrue))
    field = leaf.term.ref().field
    match leaf:
        case BoundIsNull() | BoundNotNull():
            return RowTest("is_null", field.field_id, negated=isinstance(leaf, BoundNotNull))
        case BoundNotEqualTo() | BoundNotIn() | BoundNotStartsWith():
            test = _test(~leaf)
            return RowTest(test.operation, test.field_id, test.literals, True) if isinstance(test, RowTest) else None
    if str(field.field_type) not in _TYPES:
        return None
    match leaf:
        case BoundIsNaN() | BoundNotNaN():
            return RowTest("is_nan", field.field_id, negated=isinstance(leaf, BoundNotNaN))
        case BoundIn():
            return RowTest("one_of", field.field_id, tuple(leaf.value_set))
        case BoundLiteralPredicate() if type(leaf) in _OPERATIONS:
            return RowTest(_OPERATIONS[type(leaf)], field.field_id, (leaf.literal.value,))
    return None
