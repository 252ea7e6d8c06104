"""Read and write expressions as Iceberg's expression JSON."""

from __future__ import annotations

import json
import math
import uuid
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyiceberg import expressions
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundLiteralPredicate,
    BoundPredicate,
    BoundSetPredicate,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    StartsWith,
    UnaryPredicate,
)
from pyiceberg.transforms import BucketTransform, TruncateTransform, UnknownTransform, parse_transform

from sparkmeta.errors import InvalidFilterError, UnsupportedError, shown
from sparkmeta.expr.conditions import Junction, balanced, fold
from sparkmeta.expr.predicate_terms import AppliedTransform, FieldReference, TransformedColumn, TransformReference
from sparkmeta.spec.functions import function_of
from sparkmeta.spec.iso_times import iso_date, iso_time, iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.expressions import UnboundTerm


# -- Write expression JSON --------------------------------------------------------------------------------------------


_OPERATORS: Final[dict[str, Any]] = {
    "is-null": IsNull,
    "not-null": NotNull,
    "is-nan": IsNaN,
    "not-nan": NotNaN,
    "lt": LessThan,
    "lt-eq": LessThanOrEqual,
    "gt": GreaterThan,
    "gt-eq": GreaterThanOrEqual,
    "eq": EqualTo,
    "not-eq": NotEqualTo,
    "starts-with": StartsWith,
    "not-starts-with": NotStartsWith,
    "in": In,
    "not-in": NotIn,
}
_OPERATIONS: Final = {getattr(expressions, f"Bound{kind.__name__}"): name for name, kind in _OPERATORS.items()}
_NANOS: Final = 1_000_000_000
TRUE_JSON: Final = "true"
FALSE_JSON: Final = "false"


def expression_to_json(bound: BooleanExpression) -> str:
    """Return Iceberg's expression JSON of a bound, NOT-free expression (literals: table spec, Appendix D)."""
    return fold(bound, lambda leaf, _negated: leaf_to_json(leaf), junction_to_json)


def junction_parts(junction: Junction) -> tuple[str, str, str]:
    """Return the texts before, between and after the operands of AND or OR."""
    return f'{{"type":"{"and" if junction is And else "or"}","left":', ',"right":', "}"


def junction_to_json(junction: Junction, operands: Sequence[str]) -> str:
    """Return the JSON of operands, given as JSON, joined pairwise."""
    before, between, after = junction_parts(junction)
    return balanced(operands, lambda left, right: f"{before}{left}{between}{right}{after}")


def sanitized_json(bound: BooleanExpression) -> str:
    """Return the JSON of a bound, NOT-free expression with its values hidden, since they may be personal data.

    As in reports of Iceberg's Java library, texts replace them: a hash for strings and bytes, the kind of value for
    other types.
    """
    return fold(bound, lambda leaf, _negated: leaf_to_json(leaf, _hidden), junction_to_json)


def leaf_to_json(leaf: BooleanExpression, shown_as: Callable[[str], Callable[[Any], Any]] | None = None) -> str:
    """Return the JSON of a predicate, TRUE or FALSE.

    Args:
        leaf: the predicate.
        shown_as: returns the function that formats values of a type; by default, they are as in the specification.
    """
    if not isinstance(leaf, BoundPredicate):
        return TRUE_JSON if isinstance(leaf, AlwaysTrue) else FALSE_JSON
    reference = leaf.term.ref()
    name = reference.name if isinstance(reference, FieldReference) else reference.field.name
    node: dict[str, Any] = {"type": _OPERATIONS[type(leaf)], "term": name}
    if isinstance(reference, TransformReference):
        node["term"] = {"type": "transform", "transform": str(reference.transform), "term": name}
    to_json = (shown_as or _value_to_json)(str(reference.field.field_type))
    match leaf:
        case BoundLiteralPredicate():
            node["value"] = to_json(leaf.literal.value)
        case BoundSetPredicate():
            node["values"] = [to_json(value) for value in sorted(leaf.value_set)]
    return json.dumps(node, ensure_ascii=False, separators=(",", ":"))


def _value_to_json(type_name: str) -> Callable[[Any], Any]:
    return _VALUES.get(type_name.partition("(")[0].partition("[")[0], lambda value: value)


def _hidden(type_name: str) -> Callable[[Any], str]:
    kind = type_name.partition("(")[0].partition("[")[0]
    if kind in ("string", "uuid", "fixed", "binary"):
        return lambda value: f"(hash-{zlib.crc32(value if isinstance(value, bytes) else str(value).encode()):08x})"
    if kind in ("int", "long", "float", "double", "decimal"):
        return lambda value: f"({len(str(abs(int(value))))}-digit-{kind})" if math.isfinite(value) else f"({kind})"
    return lambda _: f"({kind})"


def _double(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _float(value: float) -> float | str:
    return _double(float(str(np.float32(value))))


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "float": _float,
    "double": _double,
    "decimal": lambda value: format(value, "f"),
    "date": iso_date,
    "time": iso_time,
    "timestamp": iso_timestamp,
    "timestamptz": lambda micros: f"{iso_timestamp(micros)}+00:00",
    "timestamp_ns": lambda nanos: iso_timestamp(nanos, _NANOS),
    "timestamptz_ns": lambda nanos: f"{iso_timestamp(nanos, _NANOS)}+00:00",
    "uuid": lambda value: str(uuid.UUID(bytes=value)),
    "fixed": lambda value: value.hex().upper(),
    "binary": lambda value: value.hex().upper(),
}


# -- Read expression JSON (REST catalog spec, Predicate) --------------------------------------------------------------


# Comparison -> the equivalent comparison with its sides exchanged.
_EXCHANGED: Final = {"lt": "gt", "lt-eq": "gt-eq", "gt": "lt", "gt-eq": "lt-eq", "eq": "eq", "not-eq": "not-eq"}
_JUNCTIONS: Final[dict[str, Any]] = {"and": And, "or": Or}


def expression_from_json(tree: object) -> BooleanExpression:
    """Return the unbound filter in a decoded JSON value.

    Literals keep their kind, as in Iceberg's Java library: integers for dates (days) and timestamps (micros), text for
    decimals, UUIDs, ISO dates and times, and hexadecimal bytes. Binding the filter decides what they mean.

    Raises:
        InvalidFilterError: the value is not an expression.
        UnsupportedError: it contains a function, a reference by id, or a literal with a type of its own.
    """
    pending: list[Any] = [tree]
    results: list[BooleanExpression] = []
    while pending:
        node = pending.pop()
        if isinstance(node, _Join):
            node.apply(results)
            continue
        kind = _kind(node)
        if kind in _JUNCTIONS:
            pending += [_Join(_JUNCTIONS[kind], 2), _member(node, "right"), _member(node, "left")]
        elif kind == "not":
            pending += [_Join(Not, 1), _member(node, "child")]
        else:
            results.append(_leaf(kind, node))
    return results[0]


class _Join:
    """The step that joins the operands that have been read."""

    def __init__(self, kind: Any, count: int) -> None:
        self.kind, self.count = kind, count

    def apply(self, results: list[BooleanExpression]) -> None:
        results[-self.count :] = [self.kind(*results[-self.count :])]


def _kind(node: object) -> str:
    if isinstance(node, bool):
        return str(node).lower()
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise _problem(node, "it is neither true nor false, nor an object with a type")
    kind: str = node["type"].lower().replace("_", "-")
    if kind == "literal":
        return str(_boolean(node)).lower()
    return kind


def _boolean(node: dict[str, Any]) -> bool:
    value = _member(node, "value")
    if not isinstance(value, bool):
        raise _problem(node, "a literal used as a filter must be true or false")
    return value


def _leaf(kind: str, node: Any) -> BooleanExpression:
    if kind in ("true", "false"):
        return AlwaysTrue() if kind == "true" else AlwaysFalse()
    try:
        if kind in _OPERATORS:
            return _predicate(kind, node)
    except (TypeError, ValueError, ArithmeticError, ValidationError) as problem:
        if isinstance(problem, InvalidFilterError):
            raise
        raise _problem(node, str(problem)) from problem
    raise _problem(node, f"there is no operator {shown(kind)}")


def _predicate(kind: str, node: dict[str, Any]) -> BooleanExpression:
    operator = _OPERATORS[kind]
    if issubclass(operator, LiteralPredicate):
        return _comparison(kind, node)
    is_unary = issubclass(operator, UnaryPredicate)
    if is_unary:
        _refuse_members(node, "value", "values")
    term = _term(_operand(node, "child"))
    predicate: BooleanExpression = operator(term) if is_unary else operator(term, _values(node))
    return predicate


def _comparison(kind: str, node: dict[str, Any]) -> BooleanExpression:
    _refuse_members(node, "values")
    if "term" in node or "value" in node:
        term, value = _member(node, "term"), _member(node, "value")
    else:
        term, value = _member(node, "left"), _member(node, "right")
        if not _is_term(term) and _is_term(value):
            if kind not in _EXCHANGED:
                raise _problem(node, "the column comes first")
            term, value, kind = value, term, _EXCHANGED[kind]
        if _is_term(value):
            raise UnsupportedError(f"the filter {shown(node)} compares two columns")
    comparison: BooleanExpression = _OPERATORS[kind](_term(term), _literal(value))
    return comparison


def _operand(node: dict[str, Any], name: str) -> Any:
    return node["term"] if "term" in node else _member(node, name)


def _values(node: dict[str, Any]) -> list[Any]:
    _refuse_members(node, "value")
    values = _member(node, "values")
    if isinstance(values, dict) and values.get("type") == "literals":
        raise UnsupportedError(f"the filter {shown(node)} has literals with a type of their own")
    if not isinstance(values, list):
        raise _problem(node, "values must be a list")
    return [_literal(value) for value in values]


def _is_term(node: object) -> bool:
    return isinstance(node, dict) and node.get("type") in ("reference", "transform", "apply")


def _term(node: object) -> UnboundTerm:
    if isinstance(node, str):
        return Reference(node)
    match node:
        case {"type": "reference", "term": str(name)} | {"type": "reference", "name": str(name)}:
            return Reference(name)
        case {
            "type": "transform",
            "transform": str(transform),
            "term": str(name) | {"type": "reference", "term": str(name)},
        }:
            return TransformedColumn(_transform(transform), name)
        case {"type": "reference", "id": _} | {"type": "apply"}:
            raise UnsupportedError(f"unsupported column reference {shown(node)}: expected a column or its transform")
    raise _problem(node, "it names no column")


def _transform(text: str) -> AppliedTransform:
    if (function := function_of(text)) is not None:
        return function
    try:
        transform = parse_transform(text.lower())
    except ValueError as error:
        raise InvalidFilterError(f"can't read the filter: transform {shown(text)}: {error}") from error
    if isinstance(transform, UnknownTransform):
        raise InvalidFilterError(f"can't read the filter: unknown transform {shown(text)}")
    if isinstance(transform, BucketTransform | TruncateTransform):
        parameter = transform.num_buckets if isinstance(transform, BucketTransform) else transform.width
        if not 1 <= parameter < 1 << 31:
            raise InvalidFilterError(f"can't read the filter: transform {shown(text)}: expected 1 to {(1 << 31) - 1}")
    return transform


def _literal(node: object) -> Any:
    if isinstance(node, dict) and node.get("type") == "literal":
        if "data-type" in node:
            raise UnsupportedError(f"the filter has {shown(node)}, a literal with a type of its own")
        node = _member(node, "value")
    if not isinstance(node, bool | int | float | str):
        raise _problem(node, "it is not a literal")
    if isinstance(node, float) and math.isnan(node):
        raise _problem(node, "NaN can't be compared; use is-nan")
    return node


def _member(node: dict[str, Any], name: str) -> Any:
    if name not in node:
        raise _problem(node, f"{name} is missing")
    return node[name]


def _refuse_members(node: dict[str, Any], *names: str) -> None:
    for name in names:
        if name in node:
            raise _problem(node, f"the operator takes no {name}")


def _problem(node: object, problem: str) -> InvalidFilterError:
    return InvalidFilterError(f"can't read the filter: {shown(node)}: {problem}")
