"""Change the types of schemas as pyiceberg does, but keep defaults and lists of structs without fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyiceberg.schema import _SetFreshIDs, pre_order_visit
from pyiceberg.table.update.schema import _ApplyChanges
from pyiceberg.types import ListType, StructType

from sparkmeta.spec.schema import list_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType


def with_fresh_ids(schema: Schema) -> Schema:
    """Return a schema with field ids from 1 on, in pyiceberg's order."""
    return cast("Schema", pre_order_visit(schema, _FreshIds()))


def type_with_fresh_ids(kind: IcebergType, next_id: Callable[[], int]) -> IcebergType:
    """Return a type with new field ids, in pyiceberg's order."""
    return pre_order_visit(kind, _FreshIds(next_id))


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
