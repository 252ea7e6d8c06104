"""Change schemas, and with them the table properties that name columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError as PydanticError
from pyiceberg.schema import index_name_by_id
from pyiceberg.table import TableProperties
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertLastAssignedFieldId,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema as IcebergUpdateSchema
from pyiceberg.types import FloatType, IntegerType, LongType

from sparkmeta.errors import ValidationError, first_line, shown
from sparkmeta.spec.builders import names_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyiceberg.table import Transaction
    from pyiceberg.table.name_mapping import NameMapping
    from pyiceberg.table.update import TableUpdate, UpdatesAndRequirements
    from pyiceberg.types import IcebergType

# Properties of a column, whose keys end with its full name.
_OF_COLUMNS = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.bloom-filter-fpp.column.",
    "write.parquet.bloom-filter-ndv.column.",
    "write.parquet.stats-enabled.column.",
)


@names_table
class UpdateSchema(IcebergUpdateSchema):
    """pyiceberg's builder of schema changes, which does what Java's does besides.

    - It requires that no other commit has assigned ids of columns meanwhile.
    - The name mapping gets the names of new and renamed columns.
    - Properties of a renamed column get its new name, and those of a deleted column are removed.
    - Default values beyond the range of their type are refused. pyiceberg takes the nearest value of the type.
    """

    def __init__(
        self, transaction: Transaction, allow_incompatible_changes: bool = False, case_sensitive: bool = True
    ) -> None:
        mapping = _name_mapping(transaction)
        super().__init__(transaction, allow_incompatible_changes, case_sensitive, name_mapping=mapping)

    def add_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType,
        doc: str | None = None,
        required: bool = False,
        default_value: Any = None,
    ) -> UpdateSchema:
        self._refuse_out_of_range(path, field_type, default_value)
        super().add_column(path, field_type, doc, required, default_value)
        return self

    def set_default_value(self, path: str | tuple[str, ...], default_value: Any) -> UpdateSchema:
        name = path if isinstance(path, str) else ".".join(path)
        self._refuse_out_of_range(path, self._schema.find_field(name, self._case_sensitive).field_type, default_value)
        super().set_default_value(path, default_value)
        return self

    def _refuse_out_of_range(self, path: str | tuple[str, ...], kind: IcebergType, value: Any) -> None:
        if not isinstance(kind, IntegerType | LongType | FloatType) or not isinstance(value, int | float):
            return
        if value < kind.min or value > kind.max:
            name = path if isinstance(path, str) else ".".join(path)
            raise ValidationError(
                f"{self._transaction.table_metadata.location}: the default value of {name} is {shown(value)}: it is "
                f"out of the range of {kind}"
            )

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        if not any(isinstance(update, AddSchemaUpdate | SetCurrentSchemaUpdate) for update in updates):
            return updates, requirements
        metadata = self._transaction.table_metadata
        ids = AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id})
        changed = _property_updates(metadata.properties, self._schema, self._apply())
        return (*updates, *changed), (*requirements, ids)


def _name_mapping(transaction: Transaction) -> NameMapping | None:
    metadata = transaction.table_metadata
    try:
        return metadata.name_mapping()
    except PydanticError as error:
        raise ValidationError(
            f"{metadata.location}: {TableProperties.DEFAULT_NAME_MAPPING} is not a name mapping: {first_line(error)}"
        ) from error


def _property_updates(properties: Mapping[str, str], old: Schema, new: Schema) -> list[TableUpdate]:
    """Return the updates of properties of columns that have another name in the new schema, or are not in it."""
    old_names, new_names = index_name_by_id(old), index_name_by_id(new)
    moved = {name: new_names.get(field_id) for field_id, name in old_names.items() if new_names.get(field_id) != name}
    removed, added = [], {}
    for key, value in properties.items():
        prefix = next((prefix for prefix in _OF_COLUMNS if key.startswith(prefix)), None)
        if prefix is None or (name := key.removeprefix(prefix)) not in moved:
            continue
        removed.append(key)
        if (new_name := moved[name]) is not None:
            added[prefix + new_name] = value
    updates: list[TableUpdate] = []
    if removed:
        updates.append(RemovePropertiesUpdate(removals=removed))
    if added:
        updates.append(SetPropertiesUpdate(updates=added))
    return updates
