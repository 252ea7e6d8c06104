"""Parse row filters, bind them to a schema, and evaluate them on values."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import (
    AlwaysFalse,
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
    In,
    IsNaN,
    IsNull,
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    StartsWith,
    UnaryPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import Literal, LongLiteral, StringLiteral, literal
from pyiceberg.types import PrimitiveType, StringType

from sparkmeta.errors import InvalidFilterError, shown
from sparkmeta.expr import sql
from sparkmeta.expr.conditions import (
    Comparison,
    Junction,
    Truth,
    as_column,
    compare,
    depth,
    fold,
    fold_truth,
    is_floating,
    junction_of,
    one_of,
)
from sparkmeta.expr.expression_json import expression_to_json
from sparkmeta.expr.filter_text import as_text, parse_text
from sparkmeta.expr.functions import function_value
from sparkmeta.expr.predicate_terms import (
    FieldReference,
    SchemaFields,
    TransformedColumn,
    TransformReference,
    bound_transform,
)
from sparkmeta.expr.types import Place, place_literal
from sparkmeta.spec.functions import Function
from sparkmeta.spec.iso_times import DAY_MICROS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.expressions import BoundReference, UnboundTerm
    from pyiceberg.schema import Schema

    from sparkmeta.expr.sql import Sql

__all__ = [
    "bind_filter",
    "expression_to_json",
    "parse_filter",
    "referenced_ids",
    "referenced_names",
    "row_predicate",
    "with_promoted_dates",
]

MAX_DEPTH: Final = 100
"""Maximum number of alternating levels of AND and OR, since Spark's analysis is recursive."""

COMPARISONS: Final[dict[type[BoundLiteralPredicate], Comparison]] = {
    BoundLessThan: operator.lt,
    BoundLessThanOrEqual: operator.le,
    BoundGreaterThan: operator.gt,
    BoundGreaterThanOrEqual: operator.ge,
    BoundEqualTo: operator.eq,
}
_UPWARD: Final = (BoundGreaterThan, BoundGreaterThanOrEqual)
_DOWNWARD: Final = (BoundLessThan, BoundLessThanOrEqual)
_WITHOUT_NAN: Final = (*_DOWNWARD, BoundEqualTo, BoundIn, BoundNotNaN)
# (Place of a literal beyond the finite floats, whether it is a lower limit) -> the comparison with the greatest or
# least finite float that replaces the comparison with the literal. Infinities, and NaN, which is greater than all
# others, are beyond these floats.
_BEYOND_FLOATS: Final[Mapping[tuple[Place, bool], type[BoundPredicate]]] = {
    (Place.ABOVE_MAX, False): BoundLessThanOrEqual,
    (Place.ABOVE_MAX, True): BoundGreaterThan,
    (Place.BELOW_MIN, False): BoundLessThan,
    (Place.BELOW_MIN, True): BoundGreaterThanOrEqual,
}


def parse_filter(row_filter: str | BooleanExpression) -> BooleanExpression:
    """Parse a filter string in pyiceberg's syntax; return an expression unchanged.

    Raises:
        InvalidFilterError: invalid text, or neither; the message names it and the problem.
    """
    if isinstance(row_filter, str):
        return parse_text(row_filter)
    if not isinstance(row_filter, BooleanExpression):
        expected = "expected a filter string or an expression of pyiceberg"  # type: ignore[unreachable]
        raise InvalidFilterError(f"the filter is {shown(row_filter)}: {expected}")
    return row_filter


def bind_filter(
    row_filter: BooleanExpression,
    schema: Schema,
    case_sensitive: bool = True,
    *,
    transforms: bool = False,
    two_valued: bool = False,
) -> BooleanExpression:
    """Bind a filter's columns and literals to a schema, with NOT pushed to the predicates (table spec, Scan Planning).

    The filter has SQL's meaning: a comparison with null is unknown, as is its NOT, and an unknown row is not selected.
    NaN is greater than all numbers. Bound predicates have the meaning of Iceberg's expressions, where a null satisfies
    ``!=``, NOT IN and NOT LIKE, and files and partitions of NaN may be left out by ``>`` and ``>=``. These predicates
    are therefore joined to a test: ``s != 'a'`` becomes ``s IS NOT NULL AND s != 'a'``, and ``x > 1`` becomes
    ``x > 1 OR x IS NAN``.

    Args:
        row_filter: an unbound filter, with full names of columns (``struct.field``).
        schema: the schema.
        case_sensitive: whether names are case-sensitive.
        transforms: whether predicates on transforms of columns (`predicate_terms`) are possible. Rows can't be tested
            for them, only partitions.
        two_valued: whether the filter has the meaning of Iceberg's expressions already, so that no test is added.

    Returns:
        Bound predicates over ``FieldReference`` terms, joined by balanced trees of ANDs and ORs. Null tests that the
        schema decides are replaced by TRUE or FALSE, and comparisons with literals out of the type's range by FALSE
        or, since a null satisfies none, by null tests.

    Raises:
        InvalidFilterError: an unknown or ambiguous column, a literal that can't be converted to the column's type, an
            operator that the type does not support, or a filter nested too deeply.
    """
    if (levels := depth(row_filter)) > MAX_DEPTH:
        raise InvalidFilterError(f"ANDs and ORs alternate over {levels} levels in the filter; {MAX_DEPTH} work")
    fields = SchemaFields(schema, case_sensitive)
    join = junction_of if two_valued else _join
    return fold(row_filter, lambda leaf, negated: _bind(leaf, negated, fields, transforms, two_valued), join)


def _join(junction: Junction, operands: Sequence[BooleanExpression]) -> BooleanExpression:
    return junction_of(junction, list(_without_repeated_tests(junction, operands)))


def _without_repeated_tests(junction: Junction, operands: Sequence[BooleanExpression]) -> Iterator[BooleanExpression]:
    """Yield the operands without added tests that another operand makes superfluous.

    For a null test of an AND, this is the same test; in an OR, IS NULL of the same column. For a NaN test of an OR, it
    is the same test; in an AND, a predicate that NaN does not satisfy.
    """
    null_tests, nan_tests = (BoundNotNull, _WITHOUT_NAN) if junction is And else (BoundIsNull, BoundIsNaN)
    tested = {operand.term for operand in operands if isinstance(operand, null_tests)}
    decided = {operand.term for operand in operands if isinstance(operand, nan_tests)}
    for operand in operands:
        match operand:
            case And(left=BoundNotNull(term=term), right=BoundNotEqualTo() | BoundNotIn() | BoundNotStartsWith()):
                yield operand.right if term in tested else operand
                if junction is And:
                    tested.add(term)
            case Or(left=BoundGreaterThan() | BoundGreaterThanOrEqual(), right=BoundIsNaN(term=term)):
                yield operand.left if term in decided else operand
                if junction is Or:
                    decided.add(term)
            case _:
                yield operand


def _bind(
    leaf: BooleanExpression, negated: bool, fields: SchemaFields, transforms: bool, two_valued: bool
) -> BooleanExpression:
    if isinstance(leaf, AlwaysTrue | AlwaysFalse):
        return ~leaf if negated else leaf
    term = leaf.term if isinstance(leaf, UnboundPredicate) else None
    is_transform = isinstance(term, TransformedColumn) and (transforms or isinstance(term.transform, Function))
    if not isinstance(leaf, UnboundPredicate) or not (is_transform or isinstance(term, Reference)):
        raise InvalidFilterError(f"not a predicate that could be bound to a schema: {shown(leaf)}")
    predicate = ~leaf if negated else leaf
    field = _field(leaf.term, fields)
    accepts_null = isinstance(predicate, NotEqualTo | NotIn | NotStartsWith)
    null_test = _bound(BoundNotNull, field) if accepts_null and not two_valued else AlwaysTrue()
    try:
        match predicate:
            case UnaryPredicate():
                return _bind_unary(predicate, field)
            case In() | NotIn():
                return And(null_test, _bind_set(predicate, field))
            case LiteralPredicate():
                comparison = And(null_test, _bind_comparison(predicate, field))
                return comparison if two_valued else _or_nan(comparison, field)
    except (TypeError, ValueError) as problem:
        column = str(term) if is_transform else f"column {field.name}"
        raise InvalidFilterError(f"{as_text(leaf)}: {column} has type {field.field.field_type}: {problem}") from None
    raise InvalidFilterError(f"not a predicate that Iceberg has: {shown(leaf)}")


def _or_nan(comparison: BooleanExpression, field: FieldReference) -> BooleanExpression:
    """Add the NaN test to a bound comparison that is true for NaN, which statistics leave out."""
    selects_nan = isinstance(comparison, _UPWARD) and is_floating(field.field.field_type)
    return Or(comparison, _bound(BoundIsNaN, field)) if selects_nan else comparison


def _field(term: UnboundTerm, fields: SchemaFields) -> FieldReference:
    if isinstance(term, TransformedColumn):
        return bound_transform(term, fields.find(term.name))
    assert isinstance(term, Reference)
    return fields.find(term.name)


def _bind_unary(predicate: UnaryPredicate, field: FieldReference) -> BooleanExpression:
    if isinstance(predicate, IsNaN | NotNaN) and not is_floating(field.field.field_type):
        raise TypeError(f"values of type {field.field.field_type} are never NaN")
    if isinstance(predicate, IsNull | NotNull) and str(field.field.field_type) == "unknown":
        return AlwaysTrue() if isinstance(predicate, IsNull) else AlwaysFalse()
    return _bound(predicate.as_bound, field)


def _bind_comparison(predicate: LiteralPredicate, field: FieldReference) -> BooleanExpression:
    primitive = _primitive(field)
    if isinstance(predicate, StartsWith | NotStartsWith) and not isinstance(primitive, StringType):
        raise TypeError(f"values of type {primitive} have no prefix")
    value, place = place_literal(predicate.literal, primitive)
    kind: Any = predicate.as_bound
    if place is Place.AT:
        return _bound(kind, field, literal(value))
    if kind is BoundEqualTo:
        return AlwaysFalse()
    if kind is BoundNotEqualTo:
        return AlwaysTrue()
    if place is Place.JUST_ABOVE:
        return _bound(BoundGreaterThan if kind in _UPWARD else BoundLessThanOrEqual, field, literal(value))
    if is_floating(primitive):
        return _bound(_BEYOND_FLOATS[place, kind in _UPWARD], field, literal(value))
    holds = kind in (_DOWNWARD if place is Place.ABOVE_MAX else _UPWARD)
    return _bound(BoundNotNull, field) if holds else AlwaysFalse()


def _bind_set(predicate: In | NotIn, field: FieldReference) -> BooleanExpression:
    primitive = _primitive(field)
    placed = [(original, *place_literal(original, primitive)) for original in predicate.literals]
    values = {_literal(original, value) for original, value, place in placed if place is Place.AT}
    return _bound(predicate.as_bound, field, values)


def _literal(original: Literal[Any], value: Any) -> Literal[Any]:
    """Return the literal of a value: the original if it has this value, since creating many literals takes time."""
    is_same = isinstance(original, LongLiteral | StringLiteral) and original.value is value
    return original if is_same else literal(value)


def _bound(kind: Any, *arguments: Any) -> BooleanExpression:
    """Return a bound predicate, or the simpler predicate or constant to which pyiceberg reduces it."""
    bound: BooleanExpression = kind(*arguments)
    return bound


def with_promoted_dates(bound: BooleanExpression, types: Mapping[int, PrimitiveType]) -> BooleanExpression:
    """Rebind a filter's predicates on dates to the types that the columns were promoted to.

    Args:
        bound: a bound filter without NOT.
        types: column id -> ``timestamp`` or ``timestamp_ns``, of promoted columns.
    """
    if not types:
        return bound

    def promoted(leaf: BooleanExpression, _negated: bool) -> BooleanExpression:
        reference = leaf.term.ref() if isinstance(leaf, BoundPredicate) else None
        if not isinstance(reference, FieldReference) or reference.field.field_id not in types:
            return leaf
        promoted_field = reference.field.model_copy(update={"field_type": types[reference.field.field_id]})
        field = FieldReference(promoted_field, reference.accessor, reference.name)
        match leaf:
            case BoundIn() | BoundNotIn():
                placed = (place_literal(LongLiteral(day * DAY_MICROS), _primitive(field)) for day in leaf.value_set)
                return _bound(type(leaf), field, {literal(value) for value, place in placed if place is Place.AT})
            case BoundLiteralPredicate():
                midnight = LongLiteral(leaf.literal.value * DAY_MICROS)
                return _bind_comparison(leaf.as_unbound(Reference(field.name), midnight), field)
        return _bound(type(leaf), field)

    return fold(bound, promoted, junction_of)


def _primitive(field: FieldReference) -> PrimitiveType:
    if not isinstance(field.field.field_type, PrimitiveType):
        raise TypeError(f"values of type {field.field.field_type} can only be tested for null")
    return field.field.field_type


def referenced_ids(bound: BooleanExpression) -> set[int]:
    """Return the ids of all fields in a bound expression, including the sources of transforms and functions."""
    ids: set[int] = set()

    def visit(leaf: BooleanExpression, _negated: bool) -> None:
        if isinstance(leaf, BoundPredicate):
            reference = leaf.term.ref()
            ids.add(reference.source_id if isinstance(reference, TransformReference) else reference.field.field_id)

    fold(bound, visit, lambda _junction, _operands: None)
    return ids


def referenced_names(row_filter: BooleanExpression) -> set[str]:
    """Return the names of all columns in an unbound filter."""
    names: set[str] = set()

    def visit(leaf: BooleanExpression, _negated: bool) -> None:
        if isinstance(leaf, UnboundPredicate) and isinstance(leaf.term, Reference | TransformedColumn):
            names.add(leaf.term.name)

    fold(row_filter, visit, lambda _junction, _operands: None)
    return names


def row_predicate(bound: BooleanExpression, value: Callable[[int], Sql], *, strict: bool = False) -> Sql:
    """Return whether a row, or a partition tuple, satisfies a bound filter; never null.

    A null satisfies only IS NULL, NOT IN, !=, NOT LIKE and NOT NAN. Numbers are compared as in Spark: NaN is greater
    than all others, and -0.0 equals 0.0.

    Args:
        bound: a bound filter without NOT.
        value: field id -> the field's value in bound form.
        strict: whether NaN is not greater than a number, so that ``>`` and ``>=`` are false for it.
    """
    return as_column(fold_truth(bound, lambda leaf: _row_truth(leaf, value, strict)))


def _row_truth(predicate: BooleanExpression, value: Callable[[int], Sql], strict: bool) -> Truth:
    if not isinstance(predicate, BoundPredicate):
        return isinstance(predicate, AlwaysTrue)
    column = _value(predicate.term.ref(), value)
    match predicate:
        case BoundIsNull():
            return column.isNull()
        case BoundNotNull():
            return column.isNotNull()
        case BoundIsNaN():
            return sql.isnan(column)
        case BoundNotNaN():
            return ~sql.isnan(column)
        case BoundNotEqualTo() | BoundNotIn() | BoundNotStartsWith():
            return column.isNull() | ~_holds(~predicate, column, strict)
    return column.isNotNull() & _holds(predicate, column, strict)


def _value(reference: BoundReference, value: Callable[[int], Sql]) -> Sql:
    if not isinstance(reference, TransformReference):
        return value(reference.field.field_id)
    assert isinstance(reference.transform, Function)
    return function_value(reference.transform, value(reference.source_id))


def _holds(predicate: BooleanExpression, column: Sql, strict: bool) -> Sql:
    """Return whether a non-null value satisfies a predicate with literals."""
    match predicate:
        case BoundStartsWith():
            return column.startswith(predicate.literal.value)
        case BoundIn():
            return one_of(column, predicate.value_set, field_type(predicate))
        case BoundLiteralPredicate():
            primitive = field_type(predicate)
            operation = COMPARISONS[type(predicate)]
            compared = compare(operation, column, predicate.literal.value, primitive)
            excludes_nan = strict and isinstance(predicate, _UPWARD) and is_floating(primitive)
            return compared & ~sql.isnan(column) if excludes_nan else compared
    raise InvalidFilterError(f"not a predicate that Iceberg has: {shown(predicate)}")


def field_type(predicate: BoundPredicate) -> PrimitiveType:
    """Return the type of the field in a predicate with literals."""
    primitive = predicate.term.ref().field.field_type
    assert isinstance(primitive, PrimitiveType)
    return primitive
