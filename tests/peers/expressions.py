"""pyiceberg expressions as Iceberg's JSON, with SQL's meaning of null, and whether two JSONs mean the same."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import struct
import uuid
from decimal import ROUND_HALF_UP, Decimal
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from pyiceberg import expressions as e
from pyiceberg.expressions import literals as lit
from pyiceberg.types import (
    DateType,
    DecimalType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UnknownType,
)

from tests.peers.values import comparable, nanos, python_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.schema import Schema

OPERATIONS: dict[type[e.BooleanExpression], str] = {
    e.IsNull: "is-null",
    e.NotNull: "not-null",
    e.IsNaN: "is-nan",
    e.NotNaN: "not-nan",
    e.EqualTo: "eq",
    e.NotEqualTo: "not-eq",
    e.LessThan: "lt",
    e.LessThanOrEqual: "lt-eq",
    e.GreaterThan: "gt",
    e.GreaterThanOrEqual: "gt-eq",
    e.StartsWith: "starts-with",
    e.NotStartsWith: "not-starts-with",
    e.In: "in",
    e.NotIn: "not-in",
}
NEGATED = {
    "is-null": "not-null",
    "is-nan": "not-nan",
    "eq": "not-eq",
    "lt": "gt-eq",
    "lt-eq": "gt",
    "starts-with": "not-starts-with",
    "in": "not-in",
}
NEGATED |= {opposite: operator for operator, opposite in NEGATED.items()}


# --- pyiceberg to JSON that Java reads without a schema -------------------------------------------------------------


def filter_json(expression: e.BooleanExpression) -> str:
    """Iceberg's JSON of an unbound expression, in the untyped form that Java's ExpressionParser reads.

    Literals keep their kind (integer, floating point, text, boolean), so that Java binds them by its own rules: dates
    are days, times and timestamps are microseconds, decimals and uuids are text, binary values are hexadecimal text.
    """
    return _text(_tree(expression))


@singledispatch
def _tree(expression: e.BooleanExpression) -> Any:
    if isinstance(expression, e.AlwaysTrue | e.AlwaysFalse):
        return isinstance(expression, e.AlwaysTrue)
    node: dict[str, Any] = {"type": OPERATIONS[type(expression)], "term": expression.term.name}  # type: ignore[attr-defined]
    if isinstance(expression, e.SetPredicate):
        return node | {"values": [_literal(item) for item in expression.literals]}
    return node | {"value": _literal(expression.literal)} if isinstance(expression, e.LiteralPredicate) else node


@_tree.register
def _(expression: e.And) -> Any:
    return {"type": "and", "left": _tree(expression.left), "right": _tree(expression.right)}


@_tree.register
def _(expression: e.Or) -> Any:
    return {"type": "or", "left": _tree(expression.left), "right": _tree(expression.right)}


@_tree.register
def _(expression: e.Not) -> Any:
    return {"type": "not", "child": _tree(expression.child)}


def _literal(literal: lit.Literal[Any]) -> Any:
    if isinstance(literal, lit.UUIDLiteral):
        return str(uuid.UUID(bytes=literal.value))
    if isinstance(literal, lit.DecimalLiteral):
        return str(literal.value)
    return literal.value.hex() if isinstance(literal.value, bytes) else literal.value


def _text(tree: Any) -> str:
    """JSON text; infinities as numbers too large for a double, which is what Jackson makes infinities of."""
    return json.dumps(tree).replace("-Infinity", "-1e999").replace("Infinity", "1e999")


# --- null -----------------------------------------------------------------------------------------------------------


def with_null_tests(expression: Any, negated: bool = False) -> e.BooleanExpression:
    """The expression with which Java selects what SQL selects, although a null satisfies its !=, NOT IN and NOT LIKE.

    As in the filters that Spark pushes down, a null test comes before each of these predicates.
    """
    if isinstance(expression, e.Not):
        return with_null_tests(expression.child, not negated)
    if isinstance(expression, e.And | e.Or):
        junction = e.And if isinstance(expression, e.And) != negated else e.Or
        return junction(with_null_tests(expression.left, negated), with_null_tests(expression.right, negated))
    leaf = ~expression if negated else expression
    accepts_null = isinstance(leaf, e.NotEqualTo | e.NotIn | e.NotStartsWith)
    return e.And(e.NotNull(leaf.term), leaf) if accepts_null else leaf


# --- meaning --------------------------------------------------------------------------------------------------------


def equivalent(left: str, right: str, schema: Schema, case_sensitive: bool = True) -> bool:
    """Whether two expressions in Iceberg's JSON hold for the same rows of every table with this schema.

    NOT is pushed to the leaves, literals are compared as values of the field's type (typed and untyped JSON are both
    understood), and what stands between the leaves is compared by truth table. A True is right; leaves that could
    imply each other are taken as independent, but for IS NULL and NOT NULL.
    """
    left_meaning, right_meaning = (_meaning(json.loads(text), schema, case_sensitive) for text in (left, right))
    return left_meaning == right_meaning or _same_table(left_meaning, right_meaning)


def _meaning(tree: Any, schema: Schema, case_sensitive: bool, negate: bool = False) -> Any:
    """True, False, an atom ("leaf", ...) or ("and" | "or", frozenset of such)."""
    if isinstance(tree, bool):
        return tree != negate
    kind = tree["type"]
    if kind == "not":
        return _meaning(tree["child"], schema, case_sensitive, not negate)
    if kind not in ("and", "or"):
        return _leaf(NEGATED[kind] if negate else kind, tree, schema, case_sensitive)
    children = [_meaning(tree[side], schema, case_sensitive, negate) for side in ("left", "right")]
    return _combine({"and": "or", "or": "and"}[kind] if negate else kind, children)


def _combine(kind: str, children: Iterable[Any]) -> Any:
    absorbing = kind == "or"
    flat: set[Any] = set()
    for child in children:
        if child is absorbing:
            return absorbing
        if child is not (not absorbing):
            flat |= child[1] if child[0] == kind else {child}
    if not flat:
        return not absorbing
    return next(iter(flat)) if len(flat) == 1 else (kind, frozenset(flat))


def _leaf(operation: str, tree: Any, schema: Schema, case_sensitive: bool) -> Any:
    term = tree["term"]
    name = term["term"] if isinstance(term, dict) else term
    field = _field(schema, name, case_sensitive)
    if operation in ("is-null", "not-null") and _never_null(schema, field.field_id):
        return operation == "not-null"
    if isinstance(field.field_type, UnknownType) and operation in ("is-null", "not-null"):
        return operation == "is-null"
    values = tree["values"] if "values" in tree else [tree["value"]] if "value" in tree else None
    if values is None:
        return ("leaf", operation, field.field_id, None)
    return _literal_leaf(operation, field.field_id, [_bound(value, field.field_type) for value in values])


def _field(schema: Schema, name: str, case_sensitive: bool) -> NestedField:
    try:
        return schema.find_field(name)
    except ValueError:
        return schema.find_field(name, case_sensitive)


def _never_null(schema: Schema, field_id: int) -> bool:
    chain = [field_id]
    while (parent := schema._lazy_id_to_parent.get(chain[-1])) is not None:
        chain.append(parent)
    return all(schema.find_field(each).required for each in chain)


def _literal_leaf(operation: str, field_id: int, values: Sequence[Any]) -> Any:
    """A leaf with literals, folded as binding does: beyond the type's range, empty and single sets."""
    negative = operation.startswith("not-")
    if operation in ("in", "not-in"):
        within = frozenset(value for value in values if value not in ("above", "below"))
        if len(within) > 1:
            return ("leaf", operation, field_id, within)
        return ("leaf", "not-eq" if negative else "eq", field_id, within) if within else negative
    (value,) = values
    if value in ("above", "below"):
        return negative or operation in (("lt", "lt-eq") if value == "above" else ("gt", "gt-eq"))
    return ("leaf", operation, field_id, frozenset({value}))


RANGES: dict[type[IcebergType], int] = {IntegerType: 2**31, DateType: 2**31, LongType: 2**63}
MAX_FLOAT = (2 - 2**-23) * 2.0**127


def is_beyond(value: Any, field_type: IcebergType) -> bool:
    """Whether a literal lies outside the finite values of a type."""
    if isinstance(value, int) and (limit := RANGES.get(type(field_type))):
        return not -limit <= value < limit
    return isinstance(field_type, FloatType) and abs(float(value)) > MAX_FLOAT


def _bound(value: Any, field_type: IcebergType) -> Any:
    """The literal as a value of the type, in comparable form; "above" and "below" where it lies outside."""
    if is_beyond(value, field_type):
        return "above" if float(value) > 0 else "below"
    match field_type:
        case FloatType():
            return comparable(struct.unpack("f", struct.pack("f", value))[0])
        case DecimalType():
            number = Decimal(str(value))
            return str((number if isinstance(value, str) else _rescaled(number, field_type.scale)).normalize())
        case DateType():
            return value if isinstance(value, int) else (dt.date.fromisoformat(value) - dt.date(1970, 1, 1)).days
        case TimestampType() | TimestamptzType():
            return value if isinstance(value, int) else nanos(value) // 1000
        case TimestampNanoType() | TimestamptzNanoType():
            return value * 1000 if isinstance(value, int) else nanos(value)
    return comparable(python_value(value, field_type))


def _rescaled(number: Decimal, scale: int) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)


def _same_table(left: Any, right: Any) -> bool:
    atoms = sorted(_atoms(left) | _atoms(right), key=repr)
    if len(atoms) <= 12:
        rows: Iterable[Sequence[bool]] = itertools.product((False, True), repeat=len(atoms))
    else:
        rng = random.Random(7)
        rows = ([rng.random() < share for _ in atoms] for share in (0.05, 0.2, 0.5, 0.8, 0.95) for _ in range(400))
    truths = (_consistent(dict(zip(atoms, row, strict=True))) for row in rows)
    return all(_holds(left, truth) == _holds(right, truth) for truth in truths)


def _consistent(truth: dict[Any, bool]) -> dict[Any, bool]:
    """The truth of the leaves, where a value is either null or not."""
    not_null = {atom: (*atom[:1], "not-null", *atom[2:]) for atom in truth if atom[1] == "is-null"}
    return truth | {atom: not truth[other] for atom, other in not_null.items() if other in truth}


def _atoms(tree: Any) -> set[Any]:
    if isinstance(tree, bool):
        return set()
    return {tree} if tree[0] == "leaf" else set().union(*map(_atoms, tree[1]))


def _holds(tree: Any, truth: dict[Any, bool]) -> bool:
    if isinstance(tree, bool) or tree[0] == "leaf":
        return truth.get(tree, tree is True)
    return (all if tree[0] == "and" else any)(_holds(child, truth) for child in tree[1])
