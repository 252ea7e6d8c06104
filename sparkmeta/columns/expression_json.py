"""Write bound expressions as Iceberg's expression JSON, which its ExpressionParser reads."""

from __future__ import annotations

import json
import math
import uuid
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyiceberg.expressions import (
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
    BoundSetPredicate,
    BoundStartsWith,
)

from sparkmeta.columns.fields import FieldReference
from sparkmeta.columns.junctions import Junction, balanced, fold
from sparkmeta.columns.transform_terms import TransformReference
from sparkmeta.spec.iso_times import iso_date, iso_time, iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPERATIONS: Final[dict[type[BoundPredicate], str]] = {
    BoundIsNull: "is-null",
    BoundNotNull: "not-null",
    BoundIsNaN: "is-nan",
    BoundNotNaN: "not-nan",
    BoundLessThan: "lt",
    BoundLessThanOrEqual: "lt-eq",
    BoundGreaterThan: "gt",
    BoundGreaterThanOrEqual: "gt-eq",
    BoundEqualTo: "eq",
    BoundNotEqualTo: "not-eq",
    BoundStartsWith: "starts-with",
    BoundNotStartsWith: "not-starts-with",
    BoundIn: "in",
    BoundNotIn: "not-in",
}
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


def leaf_to_json(leaf: BooleanExpression) -> str:
    """Return the JSON of a predicate, TRUE or FALSE."""
    if not isinstance(leaf, BoundPredicate):
        return TRUE_JSON if isinstance(leaf, AlwaysTrue) else FALSE_JSON
    reference = leaf.term.ref()
    name = reference.name if isinstance(reference, FieldReference) else reference.field.name
    node: dict[str, Any] = {"type": _OPERATIONS[type(leaf)], "term": name}
    if isinstance(reference, TransformReference):
        node["term"] = {"type": "transform", "transform": str(reference.transform), "term": name}
    to_json = _value_to_json(str(reference.field.field_type))
    match leaf:
        case BoundLiteralPredicate():
            node["value"] = to_json(leaf.literal.value)
        case BoundSetPredicate():
            node["values"] = [to_json(value) for value in sorted(leaf.value_set)]
    return json.dumps(node, ensure_ascii=False, separators=(",", ":"))


def _value_to_json(type_name: str) -> Callable[[Any], Any]:
    return _VALUES.get(type_name.partition("(")[0].partition("[")[0], lambda value: value)


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
