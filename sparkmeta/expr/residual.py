"""Residual filters: the part of a filter that a partition tuple does not decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, BoundPredicate

from sparkmeta.expr import sql
from sparkmeta.expr.conditions import Junction, depth, fold
from sparkmeta.expr.expression_json import (
    FALSE_JSON,
    TRUE_JSON,
    expression_to_json,
    junction_parts,
    junction_to_json,
    leaf_to_json,
)
from sparkmeta.expr.predicate import row_predicate, with_promoted_dates
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.transforms import projections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.types import PrimitiveType

Text = Sql | str
"""Expression JSON, or SQL for it if it depends on the partition tuple."""

Literal = Callable[[str], Sql]

_CHUNK: Final = 32
_DECIDED_LIMIT: Final = 200
_DEPTH_LIMIT: Final = 20


def residual(
    bound: BooleanExpression,
    spec: PartitionSpec,
    value: Callable[[int], Sql],
    literal: Literal = sql.lit,
    types: Mapping[int, PrimitiveType] = MappingProxyType({}),
) -> Sql:
    """Return the residual of a filter for the rows of a partition (Iceberg's ResidualEvaluator).

    Args:
        bound: a bound filter without NOT.
        spec: the partition spec of the tuple.
        value: partition field id -> the field's value in bound form.
        literal: returns the Sql of a constant text.
        types: see ``with_promoted_dates``, for predicates that the tuple decides.

    Returns:
        A string Sql with Iceberg's expression JSON, which is equivalent to the filter for rows of the partition.
        Predicates that the tuple decides are removed; it is ``true`` if all rows match. A filter with more than 200
        predicates on source columns of the spec, or with more than 20 alternating levels of AND and OR, is returned
        unchanged.
    """
    if _decidable(bound, spec) > _DECIDED_LIMIT or depth(bound) > _DEPTH_LIMIT:
        return literal(expression_to_json(bound))
    text = fold(bound, lambda leaf, _negated: _leaf(leaf, spec, value, literal, types), partial(_join, literal))
    return literal(text) if isinstance(text, str) else text


def _decidable(bound: BooleanExpression, spec: PartitionSpec) -> int:
    """Return the number of predicates that a tuple may decide."""
    sources = {field.source_id for field in spec.fields}

    def count(leaf: BooleanExpression, _negated: bool) -> int:
        return isinstance(leaf, BoundPredicate) and leaf.term.ref().field.field_id in sources

    return fold(bound, count, lambda _junction, counts: sum(counts))


def _leaf(
    leaf: BooleanExpression,
    spec: PartitionSpec,
    value: Callable[[int], Sql],
    literal: Literal,
    types: Mapping[int, PrimitiveType],
) -> Text:
    text, leaf = leaf_to_json(leaf), with_promoted_dates(leaf, types)
    if not isinstance(leaf, BoundPredicate):
        return text
    decisions = [
        (row_predicate(projected, value, strict=True), TRUE_JSON)
        for projected in projections(leaf, spec, strict=True)
        if not isinstance(projected, AlwaysFalse)
    ] + [
        (~row_predicate(projected, value), FALSE_JSON)
        for projected in projections(leaf, spec, strict=False)
        if not isinstance(projected, AlwaysTrue)
    ]
    return _first(decisions, text, literal)


def _first(decisions: Sequence[tuple[Sql, str]], otherwise: str, literal: Literal) -> Text:
    if not decisions:
        return otherwise
    (condition, text), *other_decisions = decisions
    chosen = sql.when(condition, sql.lit(text))
    for condition, text in other_decisions:
        chosen = chosen.when(condition, sql.lit(text))
    return chosen.otherwise(literal(otherwise))


def _join(literal: Literal, junction: Junction, operands: list[Text]) -> Text:
    neutral, absorbing = (TRUE_JSON, FALSE_JSON) if junction is And else (FALSE_JSON, TRUE_JSON)
    terms = [operand for operand in operands if isinstance(operand, Sql) or operand != neutral]
    if any(isinstance(operand, str) and operand == absorbing for operand in terms):
        return absorbing
    merged = _merge_constants(junction, terms)
    while len(merged) > 1:
        starts = range(0, len(merged), _CHUNK)
        merged = [_join_columns(literal, junction, merged[start : start + _CHUNK]) for start in starts]
    return merged[0] if merged else neutral


def _merge_constants(junction: Junction, operands: list[Text]) -> list[Text]:
    merged: list[Text] = []
    for constant, run in groupby(operands, lambda operand: isinstance(operand, str)):
        texts = list(run)
        merged += [junction_to_json(junction, [str(text) for text in texts])] if constant else texts
    return merged


def _join_columns(literal: Literal, junction: Junction, operands: Sequence[Text]) -> Text:
    """Join operands by a fold over an array, so that each occurs once in the SQL."""
    if len(operands) == 1:
        return operands[0]
    neutral, absorbing = (TRUE_JSON, FALSE_JSON) if junction is And else (FALSE_JSON, TRUE_JSON)
    before, between, after = (sql.lit(text) for text in junction_parts(junction))

    def join(left: Sql, right: Sql) -> Sql:
        return (
            sql.when((left == absorbing) | (right == absorbing), sql.lit(absorbing))
            .when(left == neutral, right)
            .when(right == neutral, left)
            .otherwise(sql.concat(before, left, between, right, after))
        )

    texts = [literal(operand) if isinstance(operand, str) else operand for operand in operands]
    return sql.aggregate(sql.array(*texts), sql.lit(neutral), join)
