"""Comparisons of bounds and partition values that a filter implies.

They are made on the driver (`implied_tests`), and pickled for tasks; this module imports neither Spark nor pyiceberg.
It evaluates tests on Arrow arrays, and `ColumnStats.passes` evaluates them in SQL. Undecidable values pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

Source = Literal["partition", "lower_bound", "upper_bound", "contains_null"]
# (source, field id, Iceberg type name) -> the values, dates and times as numbers; None if they have another type.
Columns = Callable[[Source, int, str], pa.Array | None]

# (upward, inclusive) -> the comparison of a value with the limit.
_OPERATIONS: Final = {
    (True, True): operator.ge,
    (True, False): operator.gt,
    (False, True): operator.le,
    (False, False): operator.lt,
}
_ARROW: Final[dict[Any, Callable[..., pa.BooleanArray]]] = {
    operator.ge: pc.greater_equal,
    operator.gt: pc.greater,
    operator.le: pc.less_equal,
    operator.lt: pc.less,
}


@dataclass(frozen=True)
class BoundTest:
    """A comparison `value >= limit` (upward) or `value <= limit`, or `>` and `<` if not inclusive.

    Attributes:
        source: the kind of value that is compared.
        field_id: the id of the column or partition field.
        type_name: the Iceberg type of the limit. Dates and times are compared as numbers.
        upward: see above.
        inclusive: see above.
        limit: a literal, or in SQL an expression.
        waived_by: a source of the same field; if it is null, everything passes.
        null_passes: whether null passes.
    """

    source: Source
    field_id: int
    type_name: str
    upward: bool
    inclusive: bool
    limit: Any
    waived_by: Source | None = None
    null_passes: bool = True

    @property
    def operation(self) -> Callable[[Any, Any], Any]:
        """The comparison, a function of the operator module."""
        return _OPERATIONS[self.upward, self.inclusive]

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for tests which differ only in the limit."""
        return self.source, self.field_id, self.upward, self.waived_by, self.null_passes

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Return which values pass; None if all do."""
        values = columns(self.source, self.field_id, self.type_name)
        waiver = None if self.waived_by is None else columns(self.waived_by, self.field_id, self.type_name)
        if values is None or (self.waived_by is not None and waiver is None):
            return None
        try:
            limit = pa.scalar(self.limit, values.type)
        except (pa.ArrowException, OverflowError):
            return None
        passed = pc.fill_null(_ARROW[self.operation](values, limit), self.null_passes)
        return passed if waiver is None else pc.or_(passed, waiver.is_null())


@dataclass(frozen=True)
class AllOf:
    """A conjunction of tests. Without tests, everything passes."""

    tests: tuple[BoundTest | AnyOf, ...] = ()

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Return which rows pass; None if all do."""
        passed: pa.BooleanArray | None = None
        for test in self.tests:
            of_test = test.passes(columns)
            if of_test is not None:
                passed = of_test if passed is None else pc.and_(passed, of_test)
        return passed


@dataclass(frozen=True)
class AnyOf:
    """A disjunction of conjunctions."""

    choices: tuple[AllOf, ...]

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Return which rows pass; None if all do."""
        passed: pa.BooleanArray | None = None
        for choice in self.choices:
            of_choice = choice.passes(columns)
            if of_choice is None:
                return None
            passed = of_choice if passed is None else pc.or_(passed, of_choice)
        return passed
