"""Read and write partition specs, sort orders and the expressions of V4, and derive partition types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyiceberg import transforms
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import NestedField, StringType, StructType

from sparkmeta.errors import ValidationError
from sparkmeta.spec.functions import Function, function_of
from sparkmeta.spec.json_node import JsonNode, KeepsJson, check_unique_ids
from sparkmeta.spec.transforms import (
    BUCKET_HASH,
    WITH_WIDTH,
    ColumnsBucket,
    SeveralColumnsBucket,
    UnknownTransform,
    field_sources,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    ExpressionKey = tuple[tuple[int, ...], str, int | None, str | None]


# -- Partition specs, sort orders and partition types -----------------------------------------------------------------


_HASH_KEY: Final = "bucket-hash"
_WITHOUT_WIDTH: dict[str, Callable[[], transforms.Transform[Any, Any]]] = {
    "identity": transforms.IdentityTransform,
    "year": transforms.YearTransform,
    "month": transforms.MonthTransform,
    "day": transforms.DayTransform,
    "hour": transforms.HourTransform,
    "void": transforms.VoidTransform,
}


class TableSpec(KeepsJson, PartitionSpec):
    """A partition spec that keeps its JSON object."""


class TableSortOrder(KeepsJson, SortOrder):
    """A sort order that keeps its JSON object."""


def partition_spec_from_json(data: Mapping[str, Any], location: str = "spec", path: str = "") -> TableSpec:
    """Return the partition spec in a JSON object ``{"spec-id": ..., "fields": [...]}``.

    A transform that is unknown or has several source columns becomes an UnknownTransform, see `transform_from_json`. If
    no field has a field-id, as in files of early writers, ids are assigned from 1000 on.

    Args:
        data: The JSON object.
        location: The file, for error messages.
        path: The path of the object in the file, for error messages.

    Raises:
        CorruptFileError: A field is missing or invalid.
    """
    node = JsonNode(data, location, path)
    entries = list(node.get("fields").items())
    fields = [_partition_field(entry, PARTITION_FIELD_ID_START + i) for i, entry in enumerate(entries)]
    if len({entry.has("field-id") for entry in entries}) > 1:
        node.get("fields").fail("some of its fields have a field-id and some do not")
    check_unique_ids(
        ((entry, field.field_id) for entry, field in zip(entries, fields, strict=True)), "partition field id"
    )
    arguments: dict[str, Any] = {"spec-id": node.get("spec-id").integer()}
    spec = TableSpec(*fields, **arguments)
    spec._json = node.object()
    return spec


def partition_spec_to_json(spec: PartitionSpec) -> dict[str, Any]:
    """Return the JSON object of a spec: the object that it was read from, if there is one."""
    if isinstance(spec, TableSpec) and spec._json is not None:
        return spec._json
    return {"spec-id": spec.spec_id, "fields": [_partition_field_json(field) for field in spec.fields]}


def partition_sources(spec: PartitionSpec) -> list[tuple[int, ...]]:
    """Return the ids of all source columns of each field of a spec.

    pyiceberg's partition fields have only the first one.
    """
    return [source_ids(JsonNode(field)) for field in partition_spec_to_json(spec)["fields"]]


def source_ids(node: JsonNode) -> tuple[int, ...]:
    """Return the ids of the source columns of a partition field or sort field.

    They are in ``source-ids``, or in ``source-id`` if there is only one.

    Raises:
        CorruptFileError: The field has no source column.
    """
    sources = node.optional("source-ids")
    if sources is None:
        return (node.get("source-id").integer(),)
    return tuple(source.integer() for source in sources.items()) or sources.fail("a transform has a source column")


def transform_from_json(node: JsonNode) -> transforms.Transform[Any, Any]:
    """Return the transform of a partition field or sort field.

    An unknown transform becomes an UnknownTransform, and so does one of several columns. Of these, only a
    ColumnsBucket can be computed.

    Raises:
        CorruptFileError: The transform or its source column is missing, or its width is out of range.
    """
    text = node.get("transform").text()
    if text.lower() == "void":
        return transforms.VoidTransform()
    match = WITH_WIDTH.fullmatch(text)
    if match and not 0 < int(match[2]) < 1 << 31:
        node.get("transform").fail("its width is out of range")
    if len(sources := source_ids(node)) > 1:
        if match is None or match[1].lower() != "bucket":
            return UnknownTransform(text, sources)
        has_hash = node.value.get(_HASH_KEY) == BUCKET_HASH
        return ColumnsBucket(int(match[2]), sources) if has_hash else SeveralColumnsBucket(text, sources)
    if match:
        return transforms.parse_transform(f"{match[1].lower()}[{int(match[2])}]")
    transform = _WITHOUT_WIDTH.get(text.lower())
    return transform() if transform is not None else UnknownTransform(text)


def sort_order_from_json(data: Mapping[str, Any], location: str = "sort order", path: str = "") -> TableSortOrder:
    """Return the sort order in a JSON object ``{"order-id": ..., "fields": [...]}``.

    Args:
        data: The JSON object.
        location: The file, for error messages.
        path: The path of the object in the file, for error messages.

    Raises:
        CorruptFileError: A field is missing or invalid.
    """
    node = JsonNode(data, location, path)
    fields = [_sort_field(field) for field in node.get("fields").items()]
    arguments: dict[str, Any] = {"order-id": node.get("order-id").integer()}
    order = TableSortOrder(*fields, **arguments)
    order._json = node.object()
    return order


def sort_order_to_json(order: SortOrder) -> dict[str, Any]:
    """Return the JSON object of a sort order: the object that it was read from, if there is one."""
    if isinstance(order, TableSortOrder) and order._json is not None:
        return order._json
    return {"order-id": order.order_id, "fields": [_sort_field_json(field) for field in order.fields]}


def spec_partition_type(spec: PartitionSpec, schemas: Sequence[Schema], current: Schema | None = None) -> StructType:
    """Return the partition type of one spec: a struct of its fields, all optional.

    Source columns are looked up in the current schema, then in the others from newest to oldest: dropped columns still
    have a type. A field whose source column is in no schema has type unknown.

    Args:
        spec: The partition spec.
        schemas: All schemas of the table.
        current: The current schema of the table.
    """
    return StructType(*(_partition_struct_field(field, schemas, current) for field in spec.fields))


def partition_type(
    specs: Iterable[PartitionSpec],
    schemas: Sequence[Schema],
    current: Schema | None = None,
    *,
    active_only: bool = False,
) -> StructType:
    """Return the partition type of a table: a struct of the partition fields of all specs, in order of their ids.

    A field has its name in the newest spec that contains it, and its type in the newest spec in which it is not void.
    Source columns are looked up as in ``spec_partition_type``.

    Args:
        specs: All partition specs of the table.
        schemas: All schemas of the table.
        current: The current schema of the table.
        active_only: Leave out fields whose source column is not in the current schema, as Iceberg's metadata tables do.

    Raises:
        ValidationError: Specs have different fields with the same id. This can happen only in tables of version 1.
    """
    merged: dict[int, PartitionField] = {}
    names: dict[int, str] = {}
    for spec in sorted(specs, key=lambda spec: spec.spec_id, reverse=True):
        for field in spec.fields:
            if active_only and (current is None or field.source_id not in current.field_ids):
                continue
            names.setdefault(field.field_id, field.name)
            merged[field.field_id] = _merged(merged.get(field.field_id), field)
    fields = (_partition_struct_field(merged[field_id], schemas, current) for field_id in sorted(merged))
    return StructType(*(NestedField(f.field_id, names[f.field_id], f.field_type, required=False) for f in fields))


def with_unique_ids(specs: Mapping[int, PartitionSpec], default_spec_id: int) -> dict[int, PartitionSpec]:
    """Return specs in which each partition field id belongs to one field. Version 1 does not require this.

    If several fields share an id, the field of the default spec keeps it, or else the field of the newest spec. The
    other fields get unused ids, and the JSON of their specs stays the same. A field may be void in some specs.
    """
    newest_first = sorted(specs.values(), key=lambda spec: (spec.spec_id != default_spec_id, -spec.spec_id))
    assigned: dict[int, list[tuple[PartitionField, int]]] = {}
    next_id = max((field.field_id for spec in newest_first for field in spec.fields), default=0) + 1
    unique: dict[int, PartitionSpec] = {}
    for spec in newest_first:
        ids = []
        for field in spec.fields:
            assigned_fields = assigned.setdefault(field.field_id, [])
            index = next((index for index, (other, _) in enumerate(assigned_fields) if _is_same(other, field)), None)
            if index is not None:
                other, field_id = assigned_fields[index]
                assigned_fields[index] = (field if _is_void(other) else other, field_id)
            else:
                field_id = next_id if assigned_fields else field.field_id
                next_id += bool(assigned_fields)
                assigned_fields.append((field, field_id))
            ids.append(field_id)
        unique[spec.spec_id] = _with_field_ids(spec, ids)
    return {spec_id: unique[spec_id] for spec_id in specs}


def _with_field_ids(spec: PartitionSpec, ids: Sequence[int]) -> PartitionSpec:
    if ids == [field.field_id for field in spec.fields]:
        return spec
    fields = (field.model_copy(update={"field_id": field_id}) for field, field_id in zip(spec.fields, ids, strict=True))
    arguments: dict[str, Any] = {"spec-id": spec.spec_id}
    renumbered = TableSpec(*fields, **arguments)
    renumbered._json = partition_spec_to_json(spec)
    return renumbered


def _is_same(field: PartitionField, other: PartitionField) -> bool:
    """Return whether fields with equal ids are the same: their sources are equal, and their transforms unless void."""
    same = field.transform == other.transform or _is_void(field) or _is_void(other)
    return field.source_id == other.source_id and same


def _merged(newer: PartitionField | None, older: PartitionField) -> PartitionField:
    if newer is None:
        return older
    if not _is_same(newer, older):
        raise ValidationError(f"partition field id {older.field_id} is given to both {newer} and {older}")
    return older if _is_void(newer) else newer


def _is_void(field: PartitionField) -> bool:
    return isinstance(field.transform, transforms.VoidTransform)


def _partition_struct_field(field: PartitionField, schemas: Sequence[Schema], current: Schema | None) -> NestedField:
    source = source_type(field.source_id, schemas, current) or StringType()
    kind = field.transform.result_type(source)
    return NestedField(field.field_id, field.name, kind, required=False)


def source_type(source_id: int, schemas: Sequence[Schema], current: Schema | None = None) -> IcebergType | None:
    """Return the type of a column in the current schema, or in the newest schema that has it; None if none has it."""
    newest_first = sorted(schemas, key=lambda schema: schema.schema_id, reverse=True)
    for schema in [current, *newest_first] if current is not None else newest_first:
        if source_id in schema.field_ids:
            return schema.find_type(source_id)
    return None


def _partition_field(node: JsonNode, next_id: int) -> PartitionField:
    field_id = node.optional("field-id")
    return PartitionField(
        source_id=source_ids(node)[0],
        field_id=field_id.integer() if field_id else next_id,
        transform=transform_from_json(node),
        name=node.get("name").text(),
    )


def _sort_field(node: JsonNode) -> SortField:
    direction, null_order = node.get("direction"), node.get("null-order")
    if direction.text() not in {"asc", "desc"}:
        direction.fail("a sort direction is asc or desc")
    if null_order.text() not in {"nulls-first", "nulls-last"}:
        null_order.fail("a null order is nulls-first or nulls-last")
    return SortField(
        source_id=source_ids(node)[0],
        transform=transform_from_json(node),
        direction=SortDirection(direction.value),
        null_order=NullOrder(null_order.value),
    )


def _partition_field_json(field: PartitionField) -> dict[str, Any]:
    return {
        "name": field.name,
        **_transform_json(field),
        "field-id": field.field_id,
    }


def _sort_field_json(field: SortField) -> dict[str, Any]:
    return {
        **_transform_json(field),
        "direction": field.direction.value,
        "null-order": field.null_order.value,
    }


def _transform_json(field: PartitionField | SortField) -> dict[str, Any]:
    """Return the transform, its source columns, and the hash of several columns.

    All format versions have `source-ids` instead of `source-id` for several columns. Iceberg 1.12.0 would read a field
    with both as a transform of the first column, and lose rows.
    """
    by_hash = {_HASH_KEY: BUCKET_HASH} if isinstance(field.transform, ColumnsBucket) else {}
    return {"transform": str(field.transform), **_sources_json(field_sources(field)), **by_hash}


# -- Expressions of V4 tables -----------------------------------------------------------------------------------------
# Expression ids and column ids share one id space. In the metadata file, ``expressions`` is a list that the fields of
# partition specs refer to (semantics 17.7, 17.8):
#
# - an expression: ``{"expr-id": 12, "expr": {"source-id": 9, "transform": "day"}, "partition-field-id": 1000}``
# - a virtual one: ``{"expr-id": 14, "expr": {"source-id": 11, "transform": "lower", "name": "lower_str"}}``
# - partition specs: ``[{"spec-id": 0, "fields": [{"expr-id": 12}, {"expr-id": 13}]}, {"spec-id": 1}]``
#
# An expression without ``partition-field-id`` is virtual: no spec refers to it, and its ``expr`` is preserved as read.
# ``partition-field-id`` may also be inside ``expr``. Iceberg 1.12.0 writes all partition fields in full; such a field
# is written in full again until its spec gets expressions. In tables with a metadata tree, a spec without fields, such
# as spec 1 above, is written without the key ``fields``, so that Iceberg 1.12.0 refuses the table (semantics 19.1). In
# memory, specs never refer to expressions: only this module deals with ``expr-id``.


MAX_STATS_FIELD_ID = 999_949
"""The largest id of a column or expression that can have content_stats."""

_PARTITION_FIELD_KEYS = ("name", "transform", "source-id", "source-ids", "field-id")


class Expression(KeepsJson):
    """A transform of source columns.

    Attributes:
        expr_id: The id of the expression. Unless the transform is identity, content_stats has its values under this id.
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

    @property
    def function(self) -> Function | None:
        """The function of a virtual expression; None if it has another transform."""
        return function_of(self.transform) if self.partition_field_id is None and self.transform else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.expr_id, self.source_ids, self.name))


def expression_from_json(data: Mapping[str, Any], location: str = "expression", path: str = "") -> Expression:
    """Return the expression in a JSON object.

    Args:
        data: The JSON object, in one of the forms above.
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
    """Return the JSON object of an expression: the object that it was read from, if there is one."""
    if expression._json is not None:
        return expression._json
    expr = _sources_json(expression.source_ids) | {"transform": expression.transform, "name": expression.name}
    document = {"expr-id": expression.expr_id, "expr": {key: value for key, value in expr.items() if value is not None}}
    if expression.partition_field_id is not None:
        document["partition-field-id"] = expression.partition_field_id
    return document


def resolved_spec_json(
    spec: JsonNode, expressions: Iterable[Expression], *, may_lack_fields: bool = False
) -> dict[str, Any]:
    """Return the JSON of a partition spec, with references to expressions replaced by complete partition fields.

    Args:
        spec: The partition spec in the metadata file.
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
    if (expression := expression_of(expressions, spec, partition_field)) is not None:
        return expression.expr_id
    raise ValidationError(
        f"partition field {partition_field.field_id} ({partition_field.name}) of spec {spec.spec_id}: "
        "the table's metadata has no expression for it"
    )


def expression_of(
    expressions: Iterable[Expression], spec: PartitionSpec, partition_field: PartitionField
) -> Expression | None:
    """Return the expression for a field of a spec; None if there is none, or the field is not in the spec."""
    by_key = expressions_by_key(expressions)
    keys = (key for field, key in zip(spec.fields, spec_keys(spec), strict=True) if field == partition_field)
    return next((by_key[key] for key in keys if key in by_key), None)


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
    """Return a key that is equal for equal expressions and for their partition field."""
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
