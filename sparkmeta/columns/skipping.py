"""Whether a file can hold rows that match a filter, or nothing but such rows: decided from its column stats."""

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
from pyiceberg.types import PrimitiveType, UUIDType

from sparkmeta.columns import sql
from sparkmeta.columns.comparison import is_floating, prefix_end
from sparkmeta.columns.field_stats import IN_LIMIT, ColumnStats, FieldStats
from sparkmeta.columns.predicate import COMPARISONS
from sparkmeta.columns.pushdown import BoundTest, Conditions, join_conditions
from sparkmeta.columns.residual import residual
from sparkmeta.columns.summaries import FieldSummary, summary_might_match
from sparkmeta.columns.templates import ColumnLiteral, fold_truth
from sparkmeta.columns.tree import fold
from sparkmeta.columns.truth import Truth, all_of, any_of, as_column, negated

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from sparkmeta.columns.sql import Sql

__all__ = ["FieldStats", "FieldSummary", "might_match", "must_match", "residual", "summary_might_match"]


def might_match(bound: BooleanExpression, stats: Callable[[int], FieldStats], record_count: Sql) -> Sql:
    """Whether a file may hold a row that satisfies a filter (Iceberg's InclusiveMetricsEvaluator).

    Args:
        bound: bound and free of NOT.
        stats: field id -> what is known of the field's values in the file.
        record_count: rows in the file; null or negative where that is not known, which keeps the file.

    Returns a Sql that is never null, and false only where no row matches. NaN is not counted as greater than a
    number here. Tests of bounds also stand in conjuncts of their own, ``bound IS NULL OR bound <= literal``, which
    Spark pushes into Parquet.
    """
    known = _by_field(stats, record_count)
    kept = fold_truth(bound, lambda leaf: _might(leaf, known))
    tests = fold(bound, lambda leaf, _negated: _bound_tests(leaf, known), join_conditions)
    counted = sql.coalesce(record_count, sql.lit(-1))
    # Spark draws out what these conditions have in common, and then pushes none, unless one can't be looked into.
    exact = sql.coalesce(as_column(any_of(counted < 0, kept)), sql.lit(False))
    pushed = (any_of(record_count.isNull(), record_count < 0, test.truth()) for test in tests)
    return as_column(all_of(counted != 0, *pushed, exact))


def must_match(
    bound: BooleanExpression,
    stats: Callable[[int], FieldStats],
    record_count: Sql,
    top_level_ids: Container[int],
    proven: Callable[[BoundPredicate], Sql] | None = None,
) -> Sql:
    """Whether all rows of a file satisfy a filter (Iceberg's StrictMetricsEvaluator).

    Arguments are as for ``might_match``; ``top_level_ids`` are the fields that are not inside of a struct: of others
    nothing but NaN tests can be proven. ``proven``: what else proves a predicate of all rows, such as the partition
    tuple. Returns a Sql that is never null, and true only where every row matches.
    Null and NaN counts that are not known prove nothing, and neither does a negative record count.
    """
    known = _by_field(stats, record_count)

    def certain(leaf: BooleanExpression) -> Truth:
        by_stats = _must(leaf, known, top_level_ids)
        if proven is None or not isinstance(leaf, BoundPredicate):
            return by_stats
        templated = isinstance(leaf, BoundLiteralPredicate) and isinstance(leaf.literal, ColumnLiteral)
        return by_stats if templated else any_of(by_stats, proven(leaf))

    exact = fold_truth(bound, certain)
    counted = sql.coalesce(record_count, sql.lit(-1))
    return as_column(any_of(counted == 0, all_of(counted > 0, exact)))


def _by_field(stats: Callable[[int], FieldStats], record_count: Sql) -> Callable[[BoundPredicate], ColumnStats]:
    found: dict[int, ColumnStats] = {}

    def of(predicate: BoundPredicate) -> ColumnStats:
        field = predicate.term.ref().field
        if field.field_id not in found:
            # Files have no stats of structs, lists and maps themselves.
            unknown = FieldStats(*[None] * len(FieldStats._fields))
            known = stats(field.field_id) if isinstance(field.field_type, PrimitiveType) else unknown
            found[field.field_id] = ColumnStats(known, record_count, field.field_type)
        return found[field.field_id]

    return of


def _might(leaf: BooleanExpression, known: Callable[[BoundPredicate], ColumnStats]) -> Truth:
    if not isinstance(leaf, BoundPredicate):
        return isinstance(leaf, AlwaysTrue)
    stats = known(leaf)
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
        return all_of(stats.has_values, len(leaf.value_set) > IN_LIMIT or stats.range_has(leaf.value_set))
    some = negated(stats.all_null) if isinstance(leaf, BoundStartsWith) else stats.has_values
    return all_of(some, *(test.truth() for test in _tests(leaf, stats)))


def _tests(leaf: BoundPredicate, stats: ColumnStats) -> tuple[BoundTest, ...]:
    """What the bounds of a file must satisfy so that it may hold a row that matches."""
    match leaf:
        case BoundIn() if len(leaf.value_set) <= IN_LIMIT:
            values = leaf.value_set
            at_least = BoundTest(stats, operator.ge, min(values), needs_lower=True)
            return BoundTest(stats, operator.le, max(values)), at_least
        case BoundStartsWith():
            prefix, end = leaf.literal.value, prefix_end(leaf.literal.value)
            at_least = BoundTest(stats, operator.ge, prefix, needs_lower=True)
            return (at_least,) if end is None else (BoundTest(stats, operator.lt, end), at_least)
        case BoundLessThan() | BoundLessThanOrEqual() | BoundGreaterThan() | BoundGreaterThanOrEqual():
            return (BoundTest(stats, COMPARISONS[type(leaf)], leaf.literal.value),)
        case BoundEqualTo():
            value = leaf.literal.value
            return BoundTest(stats, operator.le, value), BoundTest(stats, operator.ge, value)
    return ()


def _bound_tests(leaf: BooleanExpression, known: Callable[[BoundPredicate], ColumnStats]) -> Conditions:
    """The tests that Spark can push down: not those of floating point numbers and UUIDs, of unusual order."""
    if not isinstance(leaf, BoundPredicate):
        return ()
    stats = known(leaf)
    if is_floating(stats.field_type) or isinstance(stats.field_type, UUIDType):
        return ()
    return tuple(test for test in _tests(leaf, stats) if test.bound.column is not None)


def _must(
    leaf: BooleanExpression, known: Callable[[BoundPredicate], ColumnStats], top_level_ids: Container[int]
) -> Truth:
    if not isinstance(leaf, BoundPredicate):
        return isinstance(leaf, AlwaysTrue)
    stats = known(leaf)
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
    return all_of(stats.no_null, stats.no_nan, _must_hold(leaf, stats))


def _must_hold(leaf: BoundPredicate, stats: ColumnStats) -> Truth:
    """Whether all values satisfy a predicate, if none is null or NaN."""
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
    """Whether no value equals the literals, or starts with the prefix; nulls and NaNs never do."""
    match leaf:
        case BoundNotStartsWith():
            prefix, end = leaf.literal.value, prefix_end(leaf.literal.value)
            above = False if end is None else stats.lower.proves(operator.ge, end)
            return any_of(above, stats.upper.proves(operator.lt, prefix))
        case BoundNotIn():
            lacks = stats.range_lacks(leaf.value_set)
        case BoundLiteralPredicate():
            lacks = stats.range_lacks([leaf.literal.value])
        case _:
            raise TypeError(f"not a predicate that Iceberg has: {leaf}")
    return any_of(stats.all_nan, all_of(negated(stats.lower.nan), lacks))
