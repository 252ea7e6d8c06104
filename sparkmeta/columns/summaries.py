"""Whether a manifest can hold files that match a partition predicate: decided from its partition summaries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.expressions import (
    AlwaysTrue,
    BooleanExpression,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
)

from sparkmeta.columns import sql
from sparkmeta.columns.comparison import is_floating
from sparkmeta.columns.conditions import Truth, all_of, any_of, as_column, fold_truth, negated
from sparkmeta.columns.field_stats import ColumnStats, FieldStats
from sparkmeta.columns.implied_tests import IN_LIMIT, leaf_tests
from sparkmeta.columns.sql import Sql

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyiceberg.types import IcebergType


class FieldSummary(NamedTuple):
    """The summary of one partition field in one manifest, bounds in bound form; all null where there is no summary."""

    contains_null: Sql
    contains_nan: Sql
    lower_bound: Sql
    upper_bound: Sql


def summary_might_match(bound_partition_predicate: BooleanExpression, summary: Callable[[int], FieldSummary]) -> Sql:
    """Whether a manifest may list a file whose partition tuple satisfies a predicate (Iceberg's ManifestEvaluator).

    Args:
        bound_partition_predicate: an inclusive projection onto the manifest's own spec.
        summary: partition field id -> the field's summary. A field without summary (null contains_null) might match.

    Returns a Sql that is never null. A summary without bounds says that all values are null or NaN.
    """
    truth = fold_truth(bound_partition_predicate, lambda leaf: _leaf(leaf, summary))
    return as_column(truth)


def _leaf(leaf: BooleanExpression, summary: Callable[[int], FieldSummary]) -> Truth:
    if not isinstance(leaf, BoundPredicate):
        return isinstance(leaf, AlwaysTrue)
    field = leaf.term.ref().field
    values = _Values(summary(field.field_id), field.field_type)
    return any_of(values.summary.contains_null.isNull(), _might(leaf, values))


class _Values:
    """What a summary says; null where the manifest has no summary."""

    def __init__(self, summary: FieldSummary, field_type: IcebergType) -> None:
        self.summary = summary
        bounds = FieldStats(summary.lower_bound, summary.upper_bound, None, None, None)
        self.stats = ColumnStats(bounds, sql.lit(1), field_type)
        self.no_bounds = summary.lower_bound.isNull()
        self.no_nan: Truth = True if not is_floating(field_type) else summary.contains_nan.eqNullSafe(False)
        self.all_null = all_of(summary.contains_null, self.no_bounds, self.no_nan)


def _might(leaf: BoundPredicate, values: _Values) -> Truth:
    summary = values.summary
    match leaf:
        case BoundIsNull():
            return summary.contains_null
        case BoundNotNull():
            return negated(values.all_null)
        case BoundIsNaN():
            return negated(any_of(values.all_null, values.no_nan))
        case BoundNotNaN():
            all_nan = summary.contains_nan.eqNullSafe(True) & ~summary.contains_null & values.no_bounds
            return ~all_nan
        case BoundNotEqualTo():
            return _might_differ([leaf.literal.value], values)
        case BoundNotIn():
            return _might_differ(leaf.value_set, values)
        case BoundNotStartsWith():
            prefix, stats = leaf.literal.value, values.stats
            return any_of(
                summary.contains_null, negated(all_of(stats.lower.starts_with(prefix), stats.upper.starts_with(prefix)))
            )
    decisive = (
        summary.upper_bound if isinstance(leaf, BoundGreaterThan | BoundGreaterThanOrEqual) else summary.lower_bound
    )
    return all_of(decisive.isNotNull(), _might_hold(leaf, values.stats))


def _might_differ(literals: Collection[object], values: _Values) -> Truth:
    return any_of(values.summary.contains_null, negated(values.no_nan), negated(values.stats.one_value(literals)))


def _might_hold(leaf: BoundPredicate, stats: ColumnStats) -> Truth:
    """Whether a value within the bounds may satisfy a predicate."""
    if isinstance(leaf, BoundIn):
        return len(leaf.value_set) > IN_LIMIT or stats.range_has(leaf.value_set)
    return all_of(*(stats.passes(replace(test, waived_by=None)) for test in leaf_tests(leaf)))
