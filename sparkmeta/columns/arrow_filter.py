"""Turn bound filters into tests of rows that Arrow evaluates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundStartsWith,
)

from sparkmeta.columns.junctions import fold
from sparkmeta.columns.row_tests import Junction, RowTest

if TYPE_CHECKING:
    from sparkmeta.columns.row_tests import Operation

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
        known = tuple(part for part in parts if part is not None)
        return Junction(known, junction is And) if len(known) == len(parts) else None

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
        case BoundIn():
            return RowTest("one_of", field.field_id, tuple(leaf.value_set))
        case BoundLiteralPredicate() if type(leaf) in _OPERATIONS:
            return RowTest(_OPERATIONS[type(leaf)], field.field_id, (leaf.literal.value,))
    return None
