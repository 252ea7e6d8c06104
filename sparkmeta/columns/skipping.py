"""Decide from column stats whether a file may have matching rows, or has only matching rows."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from pyiceberg.expressions import (
    AlwaysTrue,
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
from pyiceberg.types import PrimitiveType

from sparkmeta.columns import sql
from sparkmeta.columns.bound_tests import AllOf, AnyOf, BoundTest
from sparkmeta.columns.comparison import prefix_end
from sparkmeta.columns.conditions import ColumnLiteral, Truth, all_of, any_of, as_column, fold_truth, negated
from sparkmeta.columns.field_stats import ColumnStats, FieldStats, FieldSummary, SummaryStats
from sparkmeta.columns.implied_tests import FEW, IN_LIMIT, leaf_tests, stats_tests
from sparkmeta.columns.predicate import COMPARISONS

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from sparkmeta.columns.sql import Sql


def might_match(bound: BooleanExpression, stats: Callable[[int], FieldStats], record_count: Sql) -> Sql:
    """Return whether a file may have a row that satisfies a filter (Iceberg's InclusiveMetricsEvaluator).

    Args:
        bound: a bound filter without NOT.
        stats: field id -> the stats of the field in the file.
        record_count: the number of rows in the file. If it is null or negative, which is unknown, the file may match.

    Returns:
        A Sql that is never null, and false only if no row matches. NaN is not greater than a number here. Tests of
        bounds are also separate conjuncts, ``bound IS NULL OR bound <= literal``, which Spark pushes into Parquet.
    """
    known = _KnownStats(stats, record_count)
    may_hold = fold_truth(bound, lambda leaf: _might(leaf, known.of))
    counted = sql.coalesce(record_count, sql.lit(-1))
    # Spark would extract common parts of these conditions, and then push none. `coalesce` hides one of them.
    exact = sql.coalesce(as_column(any_of(counted < 0, may_hold)), sql.lit(False))
    tests = _pushed(stats_tests(bound), known)
    pushed = (any_of(record_count.isNull(), record_count < 0, test) for test in tests)
    return as_column(all_of(counted != 0, *pushed, exact))


def summary_might_match(bound_partition_predicate: BooleanExpression, summary: Callable[[int], FieldSummary]) -> Sql:
    """Return whether a manifest may list a file whose tuple satisfies a predicate (Iceberg's ManifestEvaluator).

    Args:
        bound_partition_predicate: an inclusive projection onto the manifest's spec.
        summary: partition field id -> the field's summary. A field without one (null contains_null) may match.

    Returns:
        A Sql that is never null. A summary without bounds means that all values are null or NaN.
    """

    def of_leaf(leaf: BooleanExpression) -> Truth:
        if not isinstance(leaf, BoundPredicate):
            return isinstance(leaf, AlwaysTrue)
        field = leaf.term.ref().field
        stats = SummaryStats(summary(field.field_id), field.field_type)
        return any_of(stats.summary.contains_null.isNull(), _might(leaf, lambda _: stats))

    return as_column(fold_truth(bound_partition_predicate, of_leaf))


def must_match(
    bound: BooleanExpression,
    stats: Callable[[int], FieldStats],
    record_count: Sql,
    top_level_ids: Container[int],
    proven: Callable[[BoundPredicate], Sql] | None = None,
) -> Sql:
    """Return whether all rows of a file satisfy a filter (Iceberg's StrictMetricsEvaluator).

    Args:
        bound: see ``might_match``.
        stats: see ``might_match``.
        record_count: see ``might_match``.
        top_level_ids: the fields that are not inside a struct. For other fields, only NaN tests can be proven.
        proven: returns whether a predicate is known to be true of all rows, such as by the partition tuple.

    Returns:
        A Sql that is never null, and true only if every row matches. Unknown counts prove nothing.
    """
    known = _KnownStats(stats, record_count)

    def certain(leaf: BooleanExpression) -> Truth:
        by_stats = _must(leaf, known, top_level_ids)
        if proven is None or not isinstance(leaf, BoundPredicate):
            return by_stats
        templated = isinstance(leaf, BoundLiteralPredicate) and isinstance(leaf.literal, ColumnLiteral)
        return by_stats if templated else any_of(by_stats, proven(leaf))

    exact = fold_truth(bound, certain)
    counted = sql.coalesce(record_count, sql.lit(-1))
    return as_column(any_of(counted == 0, all_of(counted > 0, exact)))


class _KnownStats:
    """The stats of the columns of a filter."""

    def __init__(self, stats: Callable[[int], FieldStats], record_count: Sql) -> None:
        self._stats = stats
        self._record_count = record_count
        self._by_id: dict[int, ColumnStats] = {}

    def of(self, predicate: BoundPredicate) -> ColumnStats:
        """Return the stats of a predicate's column."""
        field = predicate.term.ref().field
        if field.field_id not in self._by_id:
            # Structs, lists and maps themselves have no stats.
            unknown = FieldStats(*[None] * len(FieldStats._fields))
            known = self._stats(field.field_id) if isinstance(field.field_type, PrimitiveType) else unknown
            self._by_id[field.field_id] = ColumnStats(known, self._record_count, field.field_type)
        return self._by_id[field.field_id]

    def by_id(self, field_id: int) -> ColumnStats:
        """Return the stats of a column by the id of its field."""
        return self._by_id[field_id]


def _pushed(tests: AllOf, known: _KnownStats) -> list[Truth]:
    """Return a limited number of tests of bounds as conditions that Spark pushes into Parquet."""
    simple = [test for test in tests.tests if isinstance(test, BoundTest)]
    choices = [test.choices for test in tests.tests if isinstance(test, AnyOf)]
    conditions = [known.by_id(test.field_id).either_passes(test) for test in simple]
    return conditions + [any_of(*(all_of(*_pushed(choice, known)) for choice in any_of_)) for any_of_ in choices[:FEW]]


def _might(leaf: BooleanExpression, stats_of: Callable[[BoundPredicate], ColumnStats]) -> Truth:
    if not isinstance(leaf, BoundPredicate):
        return isinstance(leaf, AlwaysTrue)
    stats = stats_of(leaf)
    match leaf:
        case BoundIsNull():
            return negated(stats.no_null)
        case BoundNotNull():
            return negated(stats.all_null)
        case BoundIsNaN():
            return negated(any_of(stats.all_null, stats.no_nan))
        case BoundNotNaN():
            return negated(stats.every_row_nan)
        case BoundNotEqualTo():
            return negated(stats.single_value([leaf.literal.value]))
        case BoundNotIn():
            return negated(stats.single_value(leaf.value_set))
        case BoundNotStartsWith():
            prefix = leaf.literal.value
            return negated(all_of(stats.no_null, stats.lower.starts_with(prefix), stats.upper.starts_with(prefix)))
    return _might_hold(leaf, stats)


def _might_hold(leaf: BoundPredicate, stats: ColumnStats) -> Truth:
    if isinstance(leaf, BoundIn):
        in_range = len(leaf.value_set) > IN_LIMIT or stats.range_has(leaf.value_set)
    else:
        in_range = all_of(*(stats.passes(test) for test in leaf_tests(leaf)))
    return all_of(stats.may_hold(leaf), any_of(stats.inverted, in_range))


def _must(leaf: BooleanExpression, known: _KnownStats, top_level_ids: Container[int]) -> Truth:
    if not isinstance(leaf, BoundPredicate):
        return isinstance(leaf, AlwaysTrue)
    stats = known.of(leaf)
    match leaf:
        case BoundIsNaN():
            return stats.every_row_nan
        case BoundNotNaN():
            return any_of(stats.no_nan, stats.all_null)
    if leaf.term.ref().field.field_id not in top_level_ids:
        return False
    match leaf:
        case BoundIsNull():
            return stats.all_null
        case BoundNotNull():
            return stats.no_null
        case BoundNotEqualTo() | BoundNotIn() | BoundNotStartsWith():
            return any_of(stats.all_null, _must_not_hold(leaf, stats))
    return all_of(stats.no_null, stats.no_nan, negated(stats.inverted), _must_hold(leaf, stats))


def _must_hold(leaf: BoundPredicate, stats: ColumnStats) -> Truth:
    """Return whether all values satisfy a predicate, provided that none is null or NaN."""
    match leaf:
        case BoundLessThan() | BoundLessThanOrEqual():
            return stats.upper.proves(COMPARISONS[type(leaf)], leaf.literal.value)
        case BoundGreaterThan() | BoundGreaterThanOrEqual():
            return stats.lower.proves(COMPARISONS[type(leaf)], leaf.literal.value)
        case BoundEqualTo():
            return stats.single_value([leaf.literal.value])
        case BoundIn():
            return stats.single_value(leaf.value_set)
        case BoundStartsWith():
            prefix = leaf.literal.value
            return all_of(stats.lower.starts_with(prefix), stats.upper.starts_with(prefix))
    raise TypeError(f"not a predicate that Iceberg has: {leaf}")


def _must_not_hold(leaf: BoundPredicate, stats: ColumnStats) -> Truth:
    """Return whether no value equals the literals, or starts with the prefix. Nulls and NaNs never do."""
    match leaf:
        case BoundNotStartsWith():
            prefix, end = leaf.literal.value, prefix_end(leaf.literal.value)
            above = False if end is None else stats.lower.proves(operator.ge, end)
            return all_of(negated(stats.inverted), any_of(above, stats.upper.proves(operator.lt, prefix)))
        case BoundNotIn():
            lacks = stats.range_lacks(leaf.value_set)
        case BoundLiteralPredicate():
            lacks = stats.range_lacks([leaf.literal.value])
        case _:
            raise TypeError(f"not a predicate that Iceberg has: {leaf}")
    return any_of(stats.all_nan, all_of(negated(stats.lower.nan), negated(stats.inverted), lacks))
