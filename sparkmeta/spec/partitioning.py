"""Partition specs and sort orders, and the types of the tuples that specs give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyiceberg import transforms
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.types import IntegerType, NestedField, StructType, UnknownType

from sparkmeta.errors import ValidationError
from sparkmeta.spec.json_node import JsonNode, KeepsJson, refuse_twice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_WITH_WIDTH = re.compile(r"(bucket|truncate)\[(\d+)\]", re.IGNORECASE)
_PLAIN: dict[str, Callable[[], transforms.Transform[Any, Any]]] = {
    "identity": transforms.IdentityTransform,
    "year": transforms.YearTransform,
    "month": transforms.MonthTransform,
    "day": transforms.DayTransform,
    "hour": transforms.HourTransform,
    "void": transforms.VoidTransform,
}


class UnknownTransform(transforms.UnknownTransform[Any, Any]):
    """A transform that can't be computed: kept by its text, and it projects to nothing. Its values are text."""

    root: str  # type: ignore[assignment]

    def __init__(self, transform: str) -> None:
        super(transforms.UnknownTransform, self).__init__(root=transform)
        self._transform = transform

    def can_transform(self, source: IcebergType) -> bool:  # noqa: ARG002
        """True: what can't be known is no reason to refuse a table."""
        return True


class SeveralColumnsBucket(UnknownTransform):
    """`bucket[n]` of several columns (table spec, version 3, Partition Transforms): its values are int."""

    def result_type(self, source: IcebergType) -> IntegerType:  # type: ignore[override]  # noqa: ARG002
        return IntegerType()


def has_unknown_values(transform: transforms.Transform[Any, Any]) -> bool:
    """Whether nothing is known of a transform's values, not even their type."""
    return isinstance(transform, UnknownTransform) and not isinstance(transform, SeveralColumnsBucket)


class TableSpec(KeepsJson, PartitionSpec):
    """A partition spec as it was read."""


class TableSortOrder(KeepsJson, SortOrder):
    """A sort order as it was read."""


def partition_spec_from_json(data: Mapping[str, Any], location: str = "spec", path: str = "") -> TableSpec:
    """The spec in a JSON object ``{"spec-id": ..., "fields": [...]}``.

    A transform that is unknown or takes several source columns becomes an UnknownTransform on the first of them.
    Fields without field-id, as first versions wrote them, are counted from 1000.
    Raises CorruptFileError that names ``location``, the field below ``path`` and its value.
    """
    node = JsonNode(data, location, path)
    entries = list(node.get("fields").items())
    fields = [_partition_field(entry, PARTITION_FIELD_ID_START + i) for i, entry in enumerate(entries)]
    if len({entry.has("field-id") for entry in entries}) > 1:
        node.get("fields").fail("some of its fields have a field-id and some do not")
    refuse_twice(((entry, field.field_id) for entry, field in zip(entries, fields, strict=True)), "partition field id")
    known: dict[str, Any] = {"spec-id": node.get("spec-id").integer()}
    spec = TableSpec(*fields, **known)
    spec._json = node.object()
    return spec


def partition_spec_to_json(spec: PartitionSpec) -> dict[str, Any]:
    """The JSON object of a spec: the one it was read from, if it was."""
    if isinstance(spec, TableSpec) and spec._json is not None:
        return spec._json
    return {"spec-id": spec.spec_id, "fields": [_partition_field_json(field) for field in spec.fields]}


def partition_sources(spec: PartitionSpec) -> list[tuple[int, ...]]:
    """The source columns of each field of a spec; all of them where its JSON names several."""
    entries = partition_spec_to_json(spec)["fields"]
    return [source_ids(JsonNode(entry)) for entry in entries]


def source_ids(node: JsonNode) -> tuple[int, ...]:
    """The source columns: of ``source-id``, which Iceberg's Java library writes for one, else of ``source-ids``.

    Raises CorruptFileError where a field of a spec or sort order names none.
    """
    several = node.optional("source-ids")
    if several is None:
        return (node.get("source-id").integer(),)
    return tuple(source.integer() for source in several.items()) or several.fail("a transform has a source column")


def transform_from_json(node: JsonNode) -> transforms.Transform[Any, Any]:
    """The transform that a field of a spec or sort order names, known or not.

    Raises CorruptFileError where it has no text or source column, or a width out of range.
    """
    text = node.get("transform").text()
    if text.lower() == "void":
        return transforms.VoidTransform()
    match = _WITH_WIDTH.fullmatch(text)
    if match and not 0 < int(match[2]) < 1 << 31:
        node.get("transform").fail("its width is out of range")
    if len(source_ids(node)) > 1:
        is_bucket = match is not None and match[1].lower() == "bucket"
        return SeveralColumnsBucket(text) if is_bucket else UnknownTransform(text)
    if match:
        return transforms.parse_transform(f"{match[1].lower()}[{int(match[2])}]")
    plain = _PLAIN.get(text.lower())
    return plain() if plain is not None else UnknownTransform(text)


def sort_order_from_json(data: Mapping[str, Any], location: str = "sort order", path: str = "") -> TableSortOrder:
    """The sort order in a JSON object ``{"order-id": ..., "fields": [...]}``; raises CorruptFileError."""
    node = JsonNode(data, location, path)
    fields = [_sort_field(field) for field in node.get("fields").items()]
    known: dict[str, Any] = {"order-id": node.get("order-id").integer()}
    order = TableSortOrder(*fields, **known)
    order._json = node.object()
    return order


def sort_order_to_json(order: SortOrder) -> dict[str, Any]:
    """The JSON object of a sort order: the one it was read from, if it was."""
    if isinstance(order, TableSortOrder) and order._json is not None:
        return order._json
    return {"order-id": order.order_id, "fields": [_sort_field_json(field) for field in order.fields]}


def spec_partition_type(spec: PartitionSpec, schemas: Sequence[Schema], current: Schema | None = None) -> StructType:
    """The type of the tuples of one spec: its fields, all optional.

    Args:
        spec: gives names and ids.
        schemas: the table's; a source column is looked up in ``current`` first, then from the newest one back, so
            that a dropped column still has a type. A source column that is in none of them gives type unknown.
        current: the table's current schema.
    """
    return StructType(*(_partition_struct_field(field, schemas, current) for field in spec.fields))


def partition_type(
    specs: Iterable[PartitionSpec],
    schemas: Sequence[Schema],
    current: Schema | None = None,
    *,
    active_only: bool = False,
) -> StructType:
    """The type that holds the tuples of all specs: every partition field that any of them has, in order of its id.

    A field is named as in the newest spec that has it, and typed by the newest one in which it is not void. Source
    columns are looked up as in ``spec_partition_type``.

    Args:
        specs: the table's.
        schemas: the table's.
        current: the table's current schema.
        active_only: leave out fields whose source column ``current`` does not have, as Iceberg's metadata tables do.

    Raises ValidationError where two specs give one field id to different fields, which only tables of version 1 can.
    """
    chosen: dict[int, PartitionField] = {}
    names: dict[int, str] = {}
    for spec in sorted(specs, key=lambda spec: spec.spec_id, reverse=True):
        for field in spec.fields:
            if active_only and (current is None or field.source_id not in current._lazy_id_to_field):
                continue
            names.setdefault(field.field_id, field.name)
            chosen[field.field_id] = _merged(chosen.get(field.field_id), field)
    fields = (_partition_struct_field(chosen[field_id], schemas, current) for field_id in sorted(chosen))
    return StructType(*(NestedField(f.field_id, names[f.field_id], f.field_type, required=False) for f in fields))


def _merged(newer: PartitionField | None, older: PartitionField) -> PartitionField:
    if newer is None:
        return older
    same = newer.transform == older.transform or _is_void(newer) or _is_void(older)
    if newer.source_id != older.source_id or not same:
        raise ValidationError(f"partition field id {older.field_id} is given to both {newer} and {older}")
    return older if _is_void(newer) else newer


def _is_void(field: PartitionField) -> bool:
    return isinstance(field.transform, transforms.VoidTransform)


def _partition_struct_field(field: PartitionField, schemas: Sequence[Schema], current: Schema | None) -> NestedField:
    source = _source_type(field.source_id, schemas, current)
    kind = UnknownType() if source is None else field.transform.result_type(source)
    return NestedField(field.field_id, field.name, kind, required=False)


def _source_type(source_id: int, schemas: Sequence[Schema], current: Schema | None) -> IcebergType | None:
    newest_first = sorted(schemas, key=lambda schema: schema.schema_id, reverse=True)
    for schema in [current, *newest_first] if current is not None else newest_first:
        if (source := schema._lazy_id_to_field.get(source_id)) is not None:
            return source.field_type
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
        "transform": str(field.transform),
        "source-id": field.source_id,
        "field-id": field.field_id,
    }


def _sort_field_json(field: SortField) -> dict[str, Any]:
    return {
        "transform": str(field.transform),
        "source-id": field.source_id,
        "direction": field.direction.value,
        "null-order": field.null_order.value,
    }
