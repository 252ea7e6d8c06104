"""Expressions of V4 table metadata: what partition fields are computed by, under ids of the columns' own id space.

The key ``expressions`` of the metadata file is a list; a partition spec's fields refer to it (semantics N30, C28-C31):

    "expressions": [
      {"expr-id": 12, "expr": {"source-id": 9, "transform": "day", "name": "ts_day"}, "partition-field-id": 1000},
      {"expr-id": 13, "expr": {"source-ids": [2, 3], "transform": "zorder", "name": "z"}, "partition-field-id": 1001},
      {"expr-id": 14, "expr": {"source-id": 11, "transform": "lower", "name": "lower_str"}}
    ],
    "partition-specs": [{"spec-id": 0, "fields": [{"expr-id": 12}, {"expr-id": 13}]}, {"spec-id": 1}]

An expression without ``partition-field-id`` is virtual: no spec refers to it, and what its ``expr`` says is kept as it
is. ``partition-field-id`` is read inside ``expr`` as well. A field that is written in full, as Iceberg 1.12.0 writes
every one, stays so until its spec gets expressions. A spec of no fields, like 1 above, has no ``fields`` in a table
with the metadata tree, so that no such table is taken by Iceberg 1.12.0 for one of its own (C41). In memory a spec is
an ordinary one either way; this codec alone knows ``expr-id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.errors import ValidationError
from sparkmeta.spec.json_node import JsonNode, KeepsJson, refuse_twice
from sparkmeta.spec.partitioning import partition_sources, partition_spec_to_json, source_ids, transform_from_json

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    ExpressionKey = tuple[tuple[int, ...], str, int | None, str | None]

MAX_STATS_FIELD_ID = 999_949
"""The largest id of a column or expression that content_stats has room for."""

_OF_A_FIELD = ("name", "transform", "source-id", "source-ids", "field-id")


class Expression(KeepsJson):
    """One expression: a transform of source columns, with the id under which its values' stats stand.

    partition_field_id: of the partition field that it computes; None for a virtual one, of which ``transform`` and
    ``name`` may be None and ``source_ids`` empty, where its JSON has another form.
    """

    expr_id: int
    source_ids: tuple[int, ...] = ()
    transform: str | None = None
    name: str | None = None
    partition_field_id: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.expr_id, self.source_ids, self.name))


def expression_from_json(data: Mapping[str, Any], location: str = "expression", path: str = "") -> Expression:
    """The expression in a JSON object, as the module says.

    Raises CorruptFileError that names ``location``, the field below ``path`` and its value.
    """
    node = JsonNode(data, location, path)
    expr = node.get("expr")
    partition_field_id = node.optional("partition-field-id") or expr.optional("partition-field-id")
    if partition_field_id is not None:
        transform_from_json(expr)
        expr.get("name")
    name, transform = expr.optional("name"), expr.optional("transform")
    expression = Expression(
        expr_id=node.get("expr-id").integer(),
        source_ids=source_ids(expr) if expr.has("source-id") or expr.has("source-ids") else (),
        transform=transform.text() if transform else None,
        name=name.text() if name else None,
        partition_field_id=partition_field_id.integer() if partition_field_id else None,
    )
    expression._json = node.object()
    return expression


def expressions_from_json(node: JsonNode) -> list[Expression]:
    """The expressions in a JSON array. Raises CorruptFileError where one is none, or is there twice."""
    nodes = list(node.items())
    expressions = [expression_from_json(one.object(), one.location, one.path) for one in nodes]
    refuse_twice(((one, made.expr_id) for one, made in zip(nodes, expressions, strict=True)), "expr-id")
    seen: dict[ExpressionKey, int] = {}
    for one, made in zip(nodes, expressions, strict=True):
        if made.partition_field_id is not None and (first := seen.setdefault(_key(made), made.expr_id)) != made.expr_id:
            one.fail(f"it says the same as expression {first}")
    return expressions


def expression_to_json(expression: Expression) -> dict[str, Any]:
    """The JSON object of an expression: the one it was read from, if it was."""
    if expression._json is not None:
        return expression._json
    expr = _sources_json(expression.source_ids) | {"transform": expression.transform, "name": expression.name}
    written = {"expr-id": expression.expr_id, "expr": {key: value for key, value in expr.items() if value is not None}}
    if expression.partition_field_id is not None:
        written["partition-field-id"] = expression.partition_field_id
    return written


def resolved_spec_json(
    spec: JsonNode, expressions: Iterable[Expression], *, may_lack_fields: bool = False
) -> dict[str, Any]:
    """The JSON of a partition spec with each reference to an expression replaced by the field that it stands for.

    may_lack_fields: as `without_no_fields` writes it.

    Raises CorruptFileError where there is no such expression, it is virtual, or the field contradicts it.
    """
    by_id = {expression.expr_id: expression for expression in expressions}
    if not spec.has("fields") and may_lack_fields:
        return spec.object() | {"fields": []}
    fields = [
        _resolved(entry, by_id) if entry.has("expr-id") else entry.object() for entry in spec.get("fields").items()
    ]
    return spec.object() | {"fields": fields}


def referring_spec_json(spec: PartitionSpec, expressions: Iterable[Expression]) -> dict[str, Any]:
    """The JSON of a partition spec whose fields refer to expressions, but for those that have none."""
    by_key = expressions_by_key(expressions)
    ordinary = partition_spec_to_json(spec)
    found = (by_key.get(key) for key in spec_keys(spec))
    fields = [
        entry if expression is None else {"expr-id": expression.expr_id} | _unknown(entry)
        for entry, expression in zip(ordinary["fields"], found, strict=True)
    ]
    return ordinary | {"fields": fields}


def without_no_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a partition spec as a table with the metadata tree has it: without ``fields`` that are none."""
    return {key: value for key, value in spec.items() if key != "fields" or value}


def stats_field_id(
    expressions: Iterable[Expression], spec: PartitionSpec, partition_field: PartitionField
) -> int | None:
    """The id under which a partition field's value stands in content_stats (C31).

    The source column's for an identity transform, else that of the field's expression; None for a void field, which
    has no value. Raises ValidationError where the field has no expression, or is none of the spec.
    """
    if isinstance(partition_field.transform, VoidTransform):
        return None
    if isinstance(partition_field.transform, IdentityTransform):
        return partition_field.source_id
    for known, key in zip(spec.fields, spec_keys(spec), strict=True):
        if known == partition_field and (expression := expressions_by_key(expressions).get(key)) is not None:
            return expression.expr_id
    raise ValidationError(
        f"partition field {partition_field.field_id} ({partition_field.name}) of spec {spec.spec_id}: "
        "the table's metadata has no expression for it"
    )


def _resolved(entry: JsonNode, by_id: Mapping[int, Expression]) -> dict[str, Any]:
    expression = by_id.get(entry.get("expr-id").integer())
    if expression is None:
        entry.get("expr-id").fail("there is no such expression")
    if expression.partition_field_id is None:
        entry.get("expr-id").fail("this expression has no partition-field-id")
    meant = {
        "name": expression.name,
        "transform": expression.transform,
        "field-id": expression.partition_field_id,
        **_sources_json(expression.source_ids),
    }
    if (entry.has("source-id") or entry.has("source-ids")) and source_ids(entry) != expression.source_ids:
        entry.fail(f"expression {expression.expr_id} has the source columns {list(expression.source_ids)}")
    for key in ("name", "transform", "field-id"):
        if entry.has(key) and entry.value[key] != meant[key]:
            entry.get(key).fail(f"expression {expression.expr_id} says {meant[key]!r}")
    unknown = _unknown(entry.object())
    unknown.pop("expr-id")
    return meant | unknown


def _unknown(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in _OF_A_FIELD}


def _sources_json(sources: tuple[int, ...]) -> dict[str, Any]:
    if len(sources) == 1:
        return {"source-id": sources[0]}
    return {"source-ids": list(sources)} if sources else {}


def expressions_by_key(expressions: Iterable[Expression]) -> dict[ExpressionKey, Expression]:
    """Return expressions of partition fields by what identifies them."""
    return {_key(expression): expression for expression in expressions if expression.partition_field_id is not None}


def _key(expression: Expression) -> ExpressionKey:
    """What two expressions, or an expression and a partition field, agree in where they are the same."""
    transform = transform_from_json(
        JsonNode({"transform": expression.transform, **_sources_json(expression.source_ids)})
    )
    return expression.source_ids, str(transform), expression.partition_field_id, expression.name


def spec_keys(spec: PartitionSpec) -> list[ExpressionKey]:
    """Return what identifies the expression of each field of a spec."""
    return [
        (sources, str(partition_field.transform), partition_field.field_id, partition_field.name)
        for sources, partition_field in zip(partition_sources(spec), spec.fields, strict=True)
    ]
