"""Read and write the expressions of V4 table metadata, which compute the values of partition fields.

Expression ids and column ids share one id space. In the metadata file, ``expressions`` is a list that the fields of
partition specs refer to (semantics 17.7, 17.8):

    "expressions": [
      {"expr-id": 12, "expr": {"source-id": 9, "transform": "day", "name": "ts_day"}, "partition-field-id": 1000},
      {"expr-id": 13, "expr": {"source-ids": [2, 3], "transform": "zorder", "name": "z"}, "partition-field-id": 1001},
      {"expr-id": 14, "expr": {"source-id": 11, "transform": "lower", "name": "lower_str"}}
    ],
    "partition-specs": [{"spec-id": 0, "fields": [{"expr-id": 12}, {"expr-id": 13}]}, {"spec-id": 1}]

An expression without ``partition-field-id`` is virtual: no spec refers to it, and its ``expr`` is preserved as read.
``partition-field-id`` may also be inside ``expr``. Iceberg 1.12.0 writes all partition fields in full; such a field is
written in full again until its spec gets expressions. In tables with a metadata tree, a spec without fields, such as
spec 1 above, is written without the key ``fields``, so that Iceberg 1.12.0 refuses the table (semantics 19.1).
In memory, specs never refer to expressions: only this module deals with ``expr-id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.errors import ValidationError
from sparkmeta.spec.json_node import JsonNode, KeepsJson, check_unique_ids
from sparkmeta.spec.partitioning import partition_sources, partition_spec_to_json, source_ids, transform_from_json

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    ExpressionKey = tuple[tuple[int, ...], str, int | None, str | None]

MAX_STATS_FIELD_ID = 999_949
"""The largest id of a column or expression that can have content_stats."""

_PARTITION_FIELD_KEYS = ("name", "transform", "source-id", "source-ids", "field-id")


class Expression(KeepsJson):
    """A transform of source columns.

    Attributes:
        expr_id: The id of the expression, under which content_stats has its values unless the transform is identity.
        source_ids: The source columns. May be empty if the expression is virtual.
        transform: The transform. May be None if the expression is virtual.
        name: The name of the partition field. May be None if the expression is virtual.
        partition_field_id: The partition field that the expression computes, or None if the expression is virtual.
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
    """Return the expression in a JSON object.

    Args:
        data: The JSON object, see the module's docstring.
        location: The file, for error messages.
        path: The path of the object in the file, for error messages.

    Raises:
        CorruptFileError: A field is missing or invalid.
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
    """Return the expressions in a JSON array.

    Raises:
        CorruptFileError: An expression is invalid, or equals an earlier one or has its id.
    """
    nodes = list(node.items())
    expressions = [expression_from_json(entry.object(), entry.location, entry.path) for entry in nodes]
    pairs = list(zip(nodes, expressions, strict=True))
    check_unique_ids(((entry, expression.expr_id) for entry, expression in pairs), "expr-id")
    first_ids: dict[ExpressionKey, int] = {}
    for entry, expression in pairs:
        if expression.partition_field_id is None:
            continue
        first_id = first_ids.setdefault(_key(expression), expression.expr_id)
        if first_id != expression.expr_id:
            entry.fail(f"it equals expression {first_id}")
    return expressions


def expression_to_json(expression: Expression) -> dict[str, Any]:
    """Return the JSON object of an expression; if it was read from one, that object."""
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
    """Return the JSON of a partition spec, with references to expressions replaced by complete partition fields.

    Args:
        spec: The partition spec as it is in the metadata file.
        expressions: The expressions of the table.
        may_lack_fields: Whether the spec may lack the key ``fields``, see `without_empty_fields`.

    Raises:
        CorruptFileError: A referenced expression is missing or virtual, or the partition field contradicts it.
    """
    by_id = {expression.expr_id: expression for expression in expressions}
    if not spec.has("fields") and may_lack_fields:
        return spec.object() | {"fields": []}
    fields = [
        _resolved(entry, by_id) if entry.has("expr-id") else entry.object() for entry in spec.get("fields").items()
    ]
    return spec.object() | {"fields": fields}


def referring_spec_json(spec: PartitionSpec, expressions: Iterable[Expression]) -> dict[str, Any]:
    """Return the JSON of a partition spec whose fields refer to expressions.

    Fields that have no expression are written in full.
    """
    by_key = expressions_by_key(expressions)
    complete = partition_spec_to_json(spec)
    fields = [
        entry if (expression := by_key.get(key)) is None else {"expr-id": expression.expr_id} | _unknown_keys(entry)
        for entry, key in zip(complete["fields"], spec_keys(spec), strict=True)
    ]
    return complete | {"fields": fields}


def without_empty_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a partition spec without the key ``fields`` if there are none, as in metadata trees."""
    return {key: value for key, value in spec.items() if key != "fields" or value}


def stats_field_id(
    expressions: Iterable[Expression], spec: PartitionSpec, partition_field: PartitionField
) -> int | None:
    """Return the id under which content_stats has a partition field's value (semantics 17.2).

    Returns:
        For an identity transform the id of the source column, otherwise the id of the field's expression. None for a
        void field, which has no values.

    Raises:
        ValidationError: The field has no expression, or is not in the spec.
    """
    if isinstance(partition_field.transform, VoidTransform):
        return None
    if isinstance(partition_field.transform, IdentityTransform):
        return partition_field.source_id
    for field, key in zip(spec.fields, spec_keys(spec), strict=True):
        if field == partition_field and (expression := expressions_by_key(expressions).get(key)) is not None:
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
    field = {
        "name": expression.name,
        "transform": expression.transform,
        "field-id": expression.partition_field_id,
        **_sources_json(expression.source_ids),
    }
    if (entry.has("source-id") or entry.has("source-ids")) and source_ids(entry) != expression.source_ids:
        entry.fail(f"expression {expression.expr_id} has the source columns {list(expression.source_ids)}")
    for key in ("name", "transform", "field-id"):
        if entry.has(key) and entry.value[key] != field[key]:
            entry.get(key).fail(f"expression {expression.expr_id} has {field[key]!r}")
    unknown = _unknown_keys(entry.object())
    unknown.pop("expr-id")
    return field | unknown


def _unknown_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in _PARTITION_FIELD_KEYS}


def _sources_json(sources: tuple[int, ...]) -> dict[str, Any]:
    if len(sources) == 1:
        return {"source-id": sources[0]}
    return {"source-ids": list(sources)} if sources else {}


def expressions_by_key(expressions: Iterable[Expression]) -> dict[ExpressionKey, Expression]:
    """Return the expressions of partition fields by their keys."""
    return {_key(expression): expression for expression in expressions if expression.partition_field_id is not None}


def _key(expression: Expression) -> ExpressionKey:
    """Return the key that equal expressions have in common with each other and with their partition field."""
    transform = transform_from_json(
        JsonNode({"transform": expression.transform, **_sources_json(expression.source_ids)})
    )
    return expression.source_ids, str(transform), expression.partition_field_id, expression.name


def spec_keys(spec: PartitionSpec) -> list[ExpressionKey]:
    """Return the key of each field of a spec, which is also the key of its expression."""
    return [
        (sources, str(partition_field.transform), partition_field.field_id, partition_field.name)
        for sources, partition_field in zip(partition_sources(spec), spec.fields, strict=True)
    ]
