"""Decide from column stats whether a file may have matching rows, or has only matching rows."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from pyiceberg.types import BinaryType, IcebergType, PrimitiveType, UUIDType

from sparkmeta.expr import sql
from sparkmeta.expr.bounds import UNORDERED, AllOf, AnyOf, BoundTest
from sparkmeta.expr.conditions import (
    ColumnLiteral,
    Comparison,
    Truth,
    all_of,
    any_of,
    as_column,
    compare,
    fold_truth,
    is_floating,
    negated,
    one_of,
    prefix_end,
)
from sparkmeta.expr.implied_tests import FEW, IN_LIMIT, leaf_tests, stats_tests
from sparkmeta.expr.predicate import COMPARISONS
from sparkmeta.expr.predicate_terms import NO_FIELD, path_of
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import literal_array, spark_type, typed_literal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container


# -- Conclusions from column stats and partition summaries ------------------------------------------------------------


_UNBOUNDED: Final = ("unknown", *UNORDERED)

# UUIDs are compared by unsigned bytes. Bounds may also be the least and the greatest UUID in the order of
# java.util.UUID, which compares two signed halves. If the first bit of both bounds is the same, the first halves have
# one order, but other UUIDs with a bound's first half may have a lower or a higher second half.
_HALF: Final = 8
_LEAST_HALF, _GREATEST_HALF = bytes(_HALF), b"\xff" * _HALF
_FIRST_NEGATIVE: Final = typed_literal(b"\x80", BinaryType())


class FieldStats(NamedTuple):
    """Stats of a column in a file, with bounds in bound form; None or null if unknown."""

    lower_bound: Sql | None
    upper_bound: Sql | None
    value_count: Sql | None
    null_value_count: Sql | None
    nan_value_count: Sql | None


UNKNOWN_STATS: Final = FieldStats(*[None] * len(FieldStats._fields))


class FieldSummary(NamedTuple):
    """The summary of a partition field in a manifest, with bounds in bound form; all null if there is none."""

    contains_null: Sql
    contains_nan: Sql
    lower_bound: Sql
    upper_bound: Sql


class Bound:
    """A lower or upper bound, which is unknown if it is missing or NaN.

    Args:
        column: the bound; None if there is none.
        field_type: the column's type.
    """

    def __init__(self, column: Sql | None, field_type: IcebergType) -> None:
        has_bounds = isinstance(field_type, PrimitiveType) and not str(field_type).startswith(_UNBOUNDED)
        self.column = column if has_bounds else None
        self.field_type = field_type

    @property
    def primitive(self) -> PrimitiveType:
        assert isinstance(self.field_type, PrimitiveType)
        return self.field_type

    @cached_property
    def nan(self) -> Truth:
        if self.column is None or not is_floating(self.field_type):
            return False
        return sql.isnan(self.column)

    @cached_property
    def unknown(self) -> Truth:
        return True if self.column is None else any_of(self.column.isNull(), self.nan)

    def allows(self, operation: Comparison, value: Any) -> Truth:
        """Return whether the bound is unknown, or the comparison with a literal may hold."""
        if self.column is None:
            return True
        if isinstance(self.field_type, UUIDType):
            is_lower = operation in (operator.lt, operator.le)
            value = value[:_HALF] + (_GREATEST_HALF if is_lower else _LEAST_HALF)
            operation = operator.le if is_lower else operator.ge
        return any_of(self.unknown, compare(operation, self.column, value, self.primitive))

    def proves(self, operation: Comparison, value: Any) -> Truth:
        """Return whether the bound is known, and the comparison with a literal certainly holds."""
        if self.column is None:
            return False
        if isinstance(self.field_type, UUIDType):
            is_lower = operation in (operator.gt, operator.ge)
            value = value[:_HALF] + (_GREATEST_HALF if is_lower else _LEAST_HALF)
            operation = operator.gt if is_lower else operator.lt
        return all_of(negated(self.nan), _certainly(compare(operation, self.column, value, self.primitive)))

    def starts_with(self, prefix: str) -> Truth:
        return False if self.column is None else _certainly(self.column.startswith(prefix))

    def is_one_of(self, values: Collection[Any]) -> Truth:
        return False if self.column is None else _certainly(one_of(self.column, values, self.primitive))


class ColumnStats:
    """Conclusions from the stats of a column. They are never null.

    Args:
        stats: the column's stats.
        record_count: the number of rows in the file.
        field_type: the column's type.
    """

    def __init__(self, stats: FieldStats, record_count: Sql, field_type: IcebergType) -> None:
        self.stats = stats
        self.record_count = record_count
        self.field_type = field_type
        self.lower = Bound(stats.lower_bound, field_type)
        self.upper = Bound(stats.upper_bound, field_type)

    @cached_property
    def inverted(self) -> Truth:
        """Whether the bounds prove nothing about ranges, because the lower bound is above the upper one.

        A single bound of UUIDs proves nothing either, since it does not show their order.
        """
        is_uuid = isinstance(self.field_type, UUIDType)
        if self.lower.column is None or self.upper.column is None:
            return is_uuid
        if is_uuid:
            return negated(_certainly(self.lower.column <= self.upper.column))
        return all_of(_certainly(self.lower.column > self.upper.column), negated(self.lower.nan))

    def excludes(self, uuids: Collection[bytes]) -> Truth:
        """Return whether the bounds of UUIDs are in signed order, and all the UUIDs are outside of them.

        The values are then at least the lower bound, which is negative, or at most the upper one, which is not.
        """
        lower, upper = self.lower, self.upper
        if lower.column is None or upper.column is None:
            return False
        inside = any_of(*(any_of(lower.allows(operator.le, uuid), upper.allows(operator.ge, uuid)) for uuid in uuids))
        signed = all_of(lower.column >= _FIRST_NEGATIVE, upper.column < _FIRST_NEGATIVE)
        return all_of(_certainly(as_column(signed)), negated(inside))

    @cached_property
    def all_null(self) -> Truth:
        return _known_equal(self.stats.value_count, self.stats.null_value_count)

    @cached_property
    def no_null(self) -> Truth:
        """Whether no row is null. Rows with a null parent struct are null, and may be missing from the counts."""
        return all_of(_known_zero(self.stats.null_value_count), negated(self._some_uncounted))

    @cached_property
    def all_nan(self) -> Truth:
        """Whether all counted values are NaN."""
        return _known_equal(self.stats.value_count, self.stats.nan_value_count)

    @cached_property
    def every_row_nan(self) -> Truth:
        return all_of(self.all_nan, negated(self._some_uncounted))

    @cached_property
    def no_nan(self) -> Truth:
        return negated(is_floating(self.field_type)) or _known_zero(self.stats.nan_value_count)

    @cached_property
    def has_values(self) -> Truth:
        """Whether there may be a value that is neither null nor NaN."""
        return negated(any_of(self.all_null, self.all_nan if is_floating(self.field_type) else False))

    @cached_property
    def _some_uncounted(self) -> Truth:
        if self.stats.value_count is None:
            return False
        return _certainly(self.stats.value_count < self.record_count)

    def may_hold(self, leaf: BoundPredicate) -> Truth:
        """Return whether there may be a value for which a comparison, an IN or a prefix is true."""
        return negated(self.all_null) if isinstance(leaf, BoundStartsWith) else self.has_values

    def passes(self, test: BoundTest) -> Truth:
        """Return whether a bound passes a test, or is unknown."""
        waived = False if test.waived_by is None else self.lower.unknown
        bound = self.lower if test.source == "lower_bound" else self.upper
        return any_of(waived, bound.allows(test.operation, test.limit))

    def either_passes(self, test: BoundTest) -> Truth:
        """Return whether a bound or its counterpart passes a test, or the bound is unknown.

        For ordered bounds this is `passes`. Unlike a comparison of the bounds, Spark pushes it into Parquet.
        """
        counterpart = self.upper if test.source == "lower_bound" else self.lower
        if counterpart.column is None:
            return self.passes(test)
        by_counterpart = compare(test.operation, counterpart.column, test.limit, counterpart.primitive)
        return any_of(self.passes(test), all_of(counterpart.column.isNotNull(), by_counterpart))

    def range_has(self, values: Collection[Any]) -> Truth:
        """Return whether one of the literals is within the bounds. An unknown lower bound allows all of them."""
        lower, upper = self.lower, self.upper
        if lower.column is None:
            return True
        if isinstance(self.field_type, UUIDType):
            within = any_of(
                *(all_of(lower.allows(operator.le, uuid), upper.allows(operator.ge, uuid)) for uuid in values)
            )
        else:
            literals = literal_array([(value, lower.primitive)] for value in values)
            within = sql.exists(literals, lambda value: _within(value, lower.column, upper))
        return any_of(lower.unknown, within)

    def single_value(self, values: Collection[Any]) -> Truth:
        """Return whether every row certainly has the same value, and it is one of the literals."""
        return all_of(self.no_null, self.no_nan, self.one_value(values))

    def one_value(self, values: Collection[Any]) -> Truth:
        """Return whether the bounds are equal, and one of the literals. Rows may also be null or NaN."""
        return all_of(self._equal_bounds, self.lower.is_one_of(values))

    @cached_property
    def _equal_bounds(self) -> Truth:
        if self.lower.column is None or self.upper.column is None:
            return False
        return _certainly(self.lower.column == self.upper.column)

    def range_lacks(self, values: Collection[Any]) -> Truth:
        """Return whether every literal is certainly outside the bounds."""
        return all_of(
            *(any_of(self.lower.proves(operator.gt, value), self.upper.proves(operator.lt, value)) for value in values)
        )


class SummaryStats(ColumnStats):
    """Conclusions from the summary of a partition field; null if there is none.

    Args:
        summary: the field's summary.
        field_type: the field's type.
    """

    def __init__(self, summary: FieldSummary, field_type: IcebergType) -> None:
        bounds = FieldStats(summary.lower_bound, summary.upper_bound, None, None, None)
        super().__init__(bounds, sql.lit(1), field_type)
        self.summary = summary
        self.all_null = all_of(summary.contains_null, summary.lower_bound.isNull(), self.no_nan)
        self.no_null = ~summary.contains_null
        all_nan = summary.contains_nan.eqNullSafe(True) & ~summary.contains_null & summary.lower_bound.isNull()
        self.every_row_nan = all_nan

    @cached_property
    def no_nan(self) -> Truth:
        return True if not is_floating(self.field_type) else self.summary.contains_nan.eqNullSafe(False)

    def may_hold(self, leaf: BoundPredicate) -> Truth:
        """Return whether there is a value that is neither null nor NaN. Without bounds, there is none."""
        upward = isinstance(leaf, BoundGreaterThan | BoundGreaterThanOrEqual)
        return (self.summary.upper_bound if upward else self.summary.lower_bound).isNotNull()

    def passes(self, test: BoundTest) -> Truth:
        """Return whether a bound passes a test. A summary has both bounds or none."""
        return super().passes(replace(test, waived_by=None))


def _within(value: Sql, lower: Sql | None, upper: Bound) -> Sql:
    below = True if upper.column is None else any_of(upper.unknown, value <= upper.column)
    within = all_of(True if lower is None else value >= lower, below)
    assert isinstance(within, Sql)
    return within


def _certainly(condition: Sql) -> Sql:
    return sql.coalesce(condition, sql.lit(False))


def _known_zero(count: Sql | None) -> Truth:
    return False if count is None else count.eqNullSafe(0)


def _known_equal(count: Sql | None, other: Sql | None) -> Truth:
    if count is None or other is None:
        return False
    return count.eqNullSafe(other) & _certainly(count >= 0)


# -- May a file match? Does all of it match? --------------------------------------------------------------------------


def might_match(bound: BooleanExpression, stats: Callable[[int], FieldStats], record_count: Sql) -> Sql:
    """Return whether a file may have a row that satisfies a filter (Iceberg's InclusiveMetricsEvaluator).

    Args:
        bound: a bound filter without NOT.
        stats: field id -> the stats of the field in the file.
        record_count: the number of rows in the file. If it is null or negative, which is unknown, the file may match.

    Returns:
        A Sql that is never null, and false only if no row matches. NaN is not greater than a number here; a filter that
        selects NaN has a test for it (`bind_filter`). Tests of bounds are also separate conjuncts, ``bound IS NULL OR
        bound <= literal``, which Spark pushes into Parquet. They are implied, except for bounds in the wrong order, and
        the driver does not evaluate them.
    """
    filter_stats = _FilterStats(stats, record_count)
    may_hold = fold_truth(bound, lambda leaf: _might(leaf, filter_stats.of))
    counted = sql.coalesce(record_count, sql.lit(-1))
    # Spark would extract common parts of these conditions, and then push none. `coalesce` hides one of them.
    exact = sql.coalesce(as_column(any_of(counted < 0, may_hold)), sql.lit(False))
    tests = _pushed(stats_tests(bound), filter_stats)
    pushed = [any_of(record_count.isNull(), record_count < 0, test) for test in tests]
    in_arrow = as_column(all_of(counted != 0, exact))
    return sql.spelled(as_column(all_of(counted != 0, *pushed, exact)), in_arrow.operation, *in_arrow.operands)


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
    filter_stats = _FilterStats(stats, record_count)

    def certain(leaf: BooleanExpression) -> Truth:
        by_stats = _must(leaf, filter_stats, top_level_ids)
        if proven is None or not isinstance(leaf, BoundPredicate):
            return by_stats
        templated = isinstance(leaf, BoundLiteralPredicate) and isinstance(leaf.literal, ColumnLiteral)
        return by_stats if templated else any_of(by_stats, proven(leaf))

    exact = fold_truth(bound, certain)
    counted = sql.coalesce(record_count, sql.lit(-1))
    return as_column(any_of(counted == 0, all_of(counted > 0, exact)))


class _FilterStats:
    """The stats of the columns of a filter."""

    def __init__(self, stats: Callable[[int], FieldStats], record_count: Sql) -> None:
        self._stats = stats
        self._record_count = record_count
        self._by_key: dict[tuple[int, str, str], ColumnStats] = {}

    def of(self, predicate: BoundPredicate) -> ColumnStats:
        """Return the stats of a predicate's column."""
        field, path = predicate.term.ref().field, path_of(predicate)
        if field.field_id == NO_FIELD:
            return ColumnStats(UNKNOWN_STATS, self._record_count, field.field_type)
        key = field.field_id, path, str(field.field_type)
        if key not in self._by_key:
            # Structs, lists and maps themselves have no stats.
            field_stats = self._stats(field.field_id) if isinstance(field.field_type, PrimitiveType) else UNKNOWN_STATS
            field_stats = _variant_field_stats(field_stats, path, field.field_type) if path else field_stats
            self._by_key[key] = ColumnStats(field_stats, self._record_count, field.field_type)
        return self._by_key[key]

    def of_test(self, test: BoundTest) -> ColumnStats:
        """Return the stats of the column of a test."""
        return self._by_key[test.field_id, test.path, test.type_name]


def _variant_field_stats(stats: FieldStats, path: str, kind: IcebergType) -> FieldStats:
    """Return the stats of a field of variants. Only tasks and the driver know its bounds, not Spark."""
    unknown = sql.lit(None).cast(spark_type(kind))
    lower, upper = (
        None if bound is None else sql.spelled(unknown, "bound of field", bound, path, str(kind))
        for bound in (stats.lower_bound, stats.upper_bound)
    )
    return UNKNOWN_STATS._replace(lower_bound=lower, upper_bound=upper)


def _pushed(tests: AllOf, filter_stats: _FilterStats) -> list[Truth]:
    """Return a limited number of tests of bounds as conditions that Spark pushes into Parquet."""
    simple = [test for test in tests.tests if isinstance(test, BoundTest)]
    choices = [test.choices for test in tests.tests if isinstance(test, AnyOf)]
    conditions = [filter_stats.of_test(test).either_passes(test) for test in simple]
    return conditions + [
        any_of(*(all_of(*_pushed(choice, filter_stats)) for choice in alternatives)) for alternatives in choices[:FEW]
    ]


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
    inverted = stats.inverted
    if isinstance(stats.field_type, UUIDType) and isinstance(leaf, BoundEqualTo | BoundIn):
        uuids = leaf.value_set if isinstance(leaf, BoundIn) else {leaf.literal.value}
        inverted = all_of(inverted, len(uuids) > IN_LIMIT or negated(stats.excludes(uuids)))
    return all_of(stats.may_hold(leaf), any_of(inverted, in_range))


def _must(leaf: BooleanExpression, filter_stats: _FilterStats, top_level_ids: Container[int]) -> Truth:
    if not isinstance(leaf, BoundPredicate):
        return isinstance(leaf, AlwaysTrue)
    stats = filter_stats.of(leaf)
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
