"""Conclusions from the stats of a column in a file, and from the summary of a partition field in a manifest."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.expressions import BoundGreaterThan, BoundGreaterThanOrEqual, BoundStartsWith
from pyiceberg.types import IcebergType, PrimitiveType, UUIDType

from sparkmeta.columns import sql
from sparkmeta.columns.comparison import Comparison, compare, compare_signed, is_floating, one_of
from sparkmeta.columns.conditions import Truth, all_of, any_of, negated
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import literal_array

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyiceberg.expressions import BoundPredicate

    from sparkmeta.columns.bound_tests import BoundTest

_UNBOUNDED: Final = ("unknown", "variant", "geometry", "geography")


class FieldStats(NamedTuple):
    """Stats of a column in a file, with bounds in bound form; None or null if unknown."""

    lower_bound: Sql | None
    upper_bound: Sql | None
    value_count: Sql | None
    null_value_count: Sql | None
    nan_value_count: Sql | None


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
        known = isinstance(field_type, PrimitiveType) and not str(field_type).startswith(_UNBOUNDED)
        self.column = column if known else None
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
        return any_of(self.unknown, compare(operation, self.column, value, self.primitive))

    def proves(self, operation: Comparison, value: Any) -> Truth:
        """Return whether the bound is known, and the comparison with a literal certainly holds."""
        if self.column is None:
            return False
        return all_of(
            negated(self.nan), _certainly(compare(operation, self.column, value, self.primitive, strict=True))
        )

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
        """Whether the lower bound is above the upper one, so that they prove nothing."""
        if self.lower.column is None or self.upper.column is None:
            return False
        above = all_of(_certainly(self.lower.column > self.upper.column), negated(self.lower.nan))
        if not isinstance(self.field_type, UUIDType):
            return above
        signed = compare_signed(operator.gt, self.lower.column, self.upper.column)
        return all_of(above, _certainly(signed))

    @cached_property
    def all_null(self) -> Truth:
        return _known_equal(self.stats.value_count, self.stats.null_value_count)

    @cached_property
    def no_null(self) -> Truth:
        """Whether no row is null. Rows with a null parent struct are null, and may be missing in the counts."""
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
        """Return whether a bound or the other one passes a test, or the bound is unknown.

        For ordered bounds this is `passes`. Unlike a comparison of the bounds, Spark pushes it into Parquet.
        """
        other = self.upper if test.source == "lower_bound" else self.lower
        if other.column is None:
            return self.passes(test)
        by_other = compare(test.operation, other.column, test.limit, other.primitive)
        return any_of(self.passes(test), all_of(other.column.isNotNull(), by_other))

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
