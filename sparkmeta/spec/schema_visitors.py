"""Change the types of schemas as pyiceberg does, but keep defaults and lists of structs without fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyiceberg.schema import Schema, _SetFreshIDs, pre_order_visit
from pyiceberg.table.update.schema import _ApplyChanges
from pyiceberg.types import ListType, MapType, StructType

from sparkmeta.spec.schema import list_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.types import IcebergType, NestedField

    Defaults = tuple[Any, Any]


def with_fresh_ids(schema: Schema) -> Schema:
    """Return a schema with field ids from 1 on, in pyiceberg's order."""
    return cast("Schema", pre_order_visit(schema, _FreshIds()))


def type_with_fresh_ids(kind: IcebergType, next_id: Callable[[], int]) -> IcebergType:
    """Return a type with new field ids, in pyiceberg's order."""
    return pre_order_visit(kind, _FreshIds(next_id))


def with_defaults(schema: Schema, defaults: Mapping[int, Defaults]) -> Schema:
    """Return a schema whose fields have other defaults.

    Args:
        schema: The schema.
        defaults: The initial and the write default by field id. A field that is not among them keeps its own.
    """
    fields = cast("StructType", _type_with_defaults(schema.as_struct(), defaults)).fields
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def _type_with_defaults(kind: IcebergType, defaults: Mapping[int, Defaults]) -> IcebergType:
    if isinstance(kind, StructType):
        return StructType(*(_field_with_defaults(field, defaults) for field in kind.fields))
    if isinstance(kind, ListType):
        return list_of(kind.element_id, _type_with_defaults(kind.element_type, defaults), kind.element_required)
    if isinstance(kind, MapType):
        key, value = (_type_with_defaults(each, defaults) for each in (kind.key_type, kind.value_type))
        return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
    return kind


def _field_with_defaults(field: NestedField, defaults: Mapping[int, Defaults]) -> NestedField:
    initial, write = defaults.get(field.field_id, (field.initial_default, field.write_default))
    changes = {"initial_default": initial, "write_default": write}
    return field.model_copy(update={"field_type": _type_with_defaults(field.field_type, defaults), **changes})


class _FreshIds(_SetFreshIDs):
    def struct(self, struct: StructType, field_results: list[Callable[[], IcebergType]]) -> StructType:
        ids = [self._get_and_increment(field.field_id) for field in struct.fields]
        # Without pydantic's validation, which fails for defaults that pyiceberg can't decode.
        return StructType(
            *(
                field.model_copy(update={"field_id": field_id, "field_type": result()})
                for field, field_id, result in zip(struct.fields, ids, field_results, strict=True)
            )
        )

    def list(self, list_type: ListType, element_result: Callable[[], IcebergType]) -> ListType:
        return list_of(self._get_and_increment(list_type.element_id), element_result(), list_type.element_required)


class ApplyChanges(_ApplyChanges):
    """Visitor that applies the changes of an update to a schema."""

    def list(self, list_type: ListType, element_result: IcebergType | None) -> IcebergType | None:
        element = self.field(list_type.element_field, element_result)
        if element is None:
            raise ValueError(f"Cannot delete element type from list: {element_result}")
        update = self._updates.get(list_type.element_id)
        return list_of(list_type.element_id, element, list_type.element_required if update is None else update.required)
