"""Change schemas as pyiceberg does, together with the table properties that name columns."""

from __future__ import annotations

import inspect
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from pydantic import ValidationError as PydanticError
from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import validate_partition_name
from pyiceberg.schema import (
    Schema,
    _SetFreshIDs,
    index_by_id,
    index_name_by_id,
    pre_order_visit,
    visit,
    visit_with_partner,
)
from pyiceberg.table import TableProperties
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertLastAssignedFieldId,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.table.update.schema import TABLE_ROOT_ID, PartnerIdByNameAccessor, _ApplyChanges, _UnionByNameVisitor
from pyiceberg.table.update.schema import UpdateSchema as IcebergUpdateSchema
from pyiceberg.table.update.sorting import UpdateSortOrder as IcebergUpdateSortOrder
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    PrimitiveType,
    StringType,
    StructType,
)

from sparkmeta.errors import CorruptFileError, InvalidChangeError, SparkmetaError, ValidationError, first_line, shown
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.schema import default_text, list_of, type_from_json
from sparkmeta.spec.transform_text import Terms, transform_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import NameMapping
    from pyiceberg.table.update import TableUpdate, UpdatesAndRequirements
    from pyiceberg.transforms import Transform
    from pyiceberg.typedef import TableVersion
    from pyiceberg.types import NestedField

    Defaults = tuple[Any, Any]


# -- Errors of pyiceberg's builders -----------------------------------------------------------------------------------


_Builder = TypeVar("_Builder", bound=type)


def names_table(builder: _Builder) -> _Builder:
    """Make a subclass of a pyiceberg builder raise InvalidChangeError, with the table's location, for its errors."""
    for name, method in inspect.getmembers(builder, inspect.isfunction):
        # Both `commit` and the end of a `with` block call `_commit` to compute the changes.
        if name == "_commit" or (not name.startswith("_") and name != "commit"):
            setattr(builder, name, _naming_table(method))
    return builder


def _naming_table(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except SparkmetaError:
            raise
        except (TypeError, ValueError, iceberg.ValidationError) as error:
            location = self._transaction.table_metadata.location
            raise InvalidChangeError(f"{location}: {first_line(error)}") from error

    return named


@names_table
class UpdateSortOrder(IcebergUpdateSortOrder):
    """pyiceberg's builder of a sort order.

    Transforms are texts such as `bucket(16)`, or transforms of pyiceberg. A text may also name the column, as in
    `asc("bucket(16, id)")`. A builder without columns removes the order.
    """

    def asc(
        self,
        source_column_name: str,
        transform: str | Transform[Any, Any] | None = None,
        null_order: NullOrder = NullOrder.NULLS_LAST,
    ) -> UpdateSortOrder:
        return self._add_term(source_column_name, transform, SortDirection.ASC, null_order)

    def desc(
        self,
        source_column_name: str,
        transform: str | Transform[Any, Any] | None = None,
        null_order: NullOrder = NullOrder.NULLS_LAST,
    ) -> UpdateSortOrder:
        return self._add_term(source_column_name, transform, SortDirection.DESC, null_order)

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        # pyiceberg makes the order with the largest id the default, but the order without columns has the id 0.
        added = [update.sort_order.order_id for update in updates if isinstance(update, AddSortOrderUpdate)]
        defaults = tuple(SetDefaultSortOrderUpdate.model_validate({"sort-order-id": order_id}) for order_id in added)
        return (*updates[:-1], *defaults) if added else updates, requirements

    def _add_term(
        self, term: str, transform: str | Transform[Any, Any] | None, direction: SortDirection, nulls: NullOrder
    ) -> UpdateSortOrder:
        metadata = self._transaction.table_metadata
        if transform is None:
            where = f"{metadata.location}: {direction.name.lower()}({term!r})"
            column, parsed = Terms(metadata.schema(), where, "sorted", self._case_sensitive).transformed(term)
            source_id = column.field_id
        else:
            source_id, parsed = self._column_name_to_id(term), transform_of(transform)
        self._add_sort_field(source_id, parsed, direction, nulls)
        return self


# -- Changes of types -------------------------------------------------------------------------------------------------


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
        defaults: The initial and the write default by field id. Other fields keep their defaults.
    """
    fields = cast("StructType", _type_with_defaults(schema.as_struct(), defaults)).fields
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def _type_with_defaults(kind: IcebergType, defaults: Mapping[int, Defaults]) -> IcebergType:
    if isinstance(kind, StructType):
        return StructType(*(_field_with_defaults(field, defaults) for field in kind.fields))
    if isinstance(kind, ListType):
        return list_of(kind.element_id, _type_with_defaults(kind.element_type, defaults), kind.element_required)
    if isinstance(kind, MapType):
        key, value = (_type_with_defaults(child, defaults) for child in (kind.key_type, kind.value_type))
        return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
    return kind


def _field_with_defaults(field: NestedField, defaults: Mapping[int, Defaults]) -> NestedField:
    initial, write = defaults.get(field.field_id, (field.initial_default, field.write_default))
    changes = {"initial_default": initial, "write_default": write}
    return field.model_copy(update={"field_type": _type_with_defaults(field.field_type, defaults), **changes})


class _FreshIds(_SetFreshIDs):
    def struct(self, struct: StructType, field_results: list[Callable[[], IcebergType]]) -> StructType:
        ids = [self._get_and_increment(field.field_id) for field in struct.fields]
        for field in struct.fields:
            # A default with values names their fields by id, but in the new schema these ids belong to other fields.
            if isinstance(field.field_type, StructType) and {field.initial_default, field.write_default} - {None, "{}"}:
                problem = "the default of a struct is {} or null, since its fields have their own defaults"
                raise ValidationError(f"column {field.name} has a default with values: {problem}")
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


# -- Changes of schemas and of properties that name columns -----------------------------------------------------------


# The prefixes of column properties. The full name of the column follows.
_COLUMN_PREFIXES = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.bloom-filter-fpp.column.",
    "write.parquet.bloom-filter-ndv.column.",
    "write.parquet.stats-enabled.column.",
)


@dataclass(frozen=True)
class _AssertColumnProperties:
    """The requirement that the name mapping and the properties of columns still equal the ones of an update's base."""

    properties: dict[str, str]

    def validate(self, metadata: TableMetadata) -> None:
        """Raise CommitFailedException if the table has other values."""
        current = _column_properties(metadata.properties)
        changed_keys = [key for key in current | self.properties if current.get(key) != self.properties.get(key)]
        if changed_keys:
            raise CommitFailedException(f"another commit has changed the property {min(changed_keys)}")


def _default_tuples(kind: IcebergType, value: Any, required: bool = True) -> Any:
    """Return a default that a caller passed, in the form of `column_default`. Raises ValueError if it does not fit."""
    if value is None and not required:
        return None
    match kind:
        case StructType():
            if value != {}:
                raise ValueError("the default of a struct is {}, with the defaults of its fields, or None")
            return ()
        case ListType() if isinstance(value, list | tuple):
            return tuple(_default_tuples(kind.element_type, item, kind.element_required) for item in value)
        case MapType() if isinstance(value, dict):
            keys = [_default_tuples(kind.key_type, key) for key in value]
            items = (_default_tuples(kind.value_type, item, kind.value_required) for item in value.values())
            return tuple(zip(keys, items, strict=True))
        case PrimitiveType() if value is not None:
            return literal(value).to(kind).value
    raise ValueError(f"expected a value of type {kind}")


@names_table
class UpdateSchema(IcebergUpdateSchema):
    """pyiceberg's builder of schema changes, with the rules of Java's builder and further ones.

    - It requires that no other commit assigns ids of columns or changes properties of columns in the meantime.
    - The name mapping gets the names of new and renamed columns.
    - Properties of a renamed column get its new name. Properties of a deleted column are removed.
    - Default values beyond the range of their type are refused. pyiceberg replaces them with the nearest value.
    - A decimal keeps its scale, and strings, bytes and fixed values keep their type, since readers of data files do not
      convert them.
    - A primitive type may be given by its name in Iceberg, such as "long" or "decimal(9, 2)".
    - Nothing is added to a column that is deleted.
    - The name of a former partition column can be given to a new column, once the column and its partition field are
      gone.
    - Defaults of every type are kept, also for fields of a new struct and for new columns of a union.
    - If a float column becomes a double column, its defaults become the doubles that its rows have.
    """

    def __init__(
        self, transaction: Transaction, allow_incompatible_changes: bool = False, case_sensitive: bool = True
    ) -> None:
        mapping = _name_mapping(transaction)
        super().__init__(transaction, allow_incompatible_changes, case_sensitive, name_mapping=mapping)
        columns = index_by_id(self._schema).items()
        self._defaults = {field_id: (column.initial_default, column.write_default) for field_id, column in columns}
        # pyiceberg can't change a column with a default that it can't decode.
        self._schema = with_defaults(self._schema, dict.fromkeys(self._defaults, (None, None)))

    def add_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType | str,
        doc: str | None = None,
        required: bool = False,
        default_value: Any = None,
    ) -> UpdateSchema:
        field_type = self._type(path, field_type)
        self._refuse_out_of_range(path, field_type, default_value)
        if not isinstance(path, str):
            self._refuse_deleted(path[:-1])
        if field_type.is_primitive:
            super().add_column(path, field_type, doc, required, default_value)
            return self
        default = self._nested_default(path, field_type, default_value)
        # pyiceberg accepts no default of a nested type, but a required column needs one.
        super().add_column(path, StructType(), doc, required and default is None)
        kind = type_with_fresh_ids(field_type, self.assign_new_column_id)
        defaults = {"initial_default": default, "write_default": default}
        self._change_added(path, field_type=kind, required=required, **defaults)
        return self

    def update_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType | str | None = None,
        required: bool | None = None,
        doc: str | None = None,
    ) -> UpdateSchema:
        if field_type is not None:
            field_type = self._type(path, field_type)
        column = self._schema.find_field(_full_name(path), self._case_sensitive)
        old_type = column.field_type
        if field_type is not None and not self._allow_incompatible_changes and not _may_become(old_type, field_type):
            raise self._error(path, f"is of type {old_type}: it can't become {field_type}")
        super().update_column(path, field_type, required, doc)
        if isinstance(old_type, FloatType) and isinstance(field_type, DoubleType):
            initial, write = self._defaults[column.field_id]
            self._defaults[column.field_id] = _widened(initial), _widened(write)
        return self

    def set_default_value(self, path: str | tuple[str, ...], default_value: Any) -> UpdateSchema:
        column = self._schema.find_field(_full_name(path), self._case_sensitive)
        self._refuse_out_of_range(path, column.field_type, default_value)
        initial, write = self._defaults[column.field_id]
        default = self._nested_default(path, column.field_type, default_value)
        if default is not None:
            if column.field_id in self._deletes:
                raise self._error(path, "will be deleted: it can't get a default value")
            self._defaults[column.field_id] = initial, default
            return self
        if default_value is None and write is not None and column.required and not self._allow_incompatible_changes:
            raise ValueError(f"column {_full_name(path)} is required: its default value can't be removed")
        super().set_default_value(path, default_value)
        if (updated := self._updates.get(column.field_id)) is not None:
            self._defaults[column.field_id] = initial, updated.write_default
        return self

    def union_by_name(self, new_schema: Schema | pa.Schema, format_version: TableVersion = 2) -> UpdateSchema:
        schema = Catalog._convert_schema_if_needed(new_schema, format_version=format_version)
        visitor = _Union(update_schema=self, existing_schema=self._schema, case_sensitive=self._case_sensitive)
        partners = PartnerIdByNameAccessor(partner_schema=self._schema, case_sensitive=self._case_sensitive)
        visit_with_partner(schema, TABLE_ROOT_ID, visitor, partners)  # type: ignore[misc]
        return self

    def _add_field(self, path: tuple[str, ...], field: NestedField) -> None:
        """Add a column with the defaults of a field of another schema."""
        for default in (field.initial_default, field.write_default):
            self._refuse_out_of_range(path, field.field_type, default)
        needs_default = field.required and field.initial_default is None
        self.add_column(path, field.field_type, field.doc, required=needs_default)
        changes = {"initial_default": field.initial_default, "write_default": field.write_default}
        self._change_added(path, required=field.required, **changes)

    def _change_added(self, path: str | tuple[str, ...], **changes: Any) -> None:
        """Change parts of the column that was added last."""
        field_id = self._added_name_to_id[_full_name(path)]
        fields = next(fields for fields in self._adds.values() if fields[-1].field_id == field_id)
        fields[-1] = fields[-1].model_copy(update=changes)

    def _apply(self) -> Schema:
        metadata = self._transaction.table_metadata
        changes = ApplyChanges(self._adds, self._updates, self._deletes, self._moves)
        fields = cast("StructType", visit(self._schema, changes)).fields
        schema = Schema(*fields)
        for partition_field in (field for spec in metadata.partition_specs for field in spec.fields):
            name, transform, source_id = partition_field.name, partition_field.transform, partition_field.source_id
            # A column may take the name of a partition field whose own column is gone.
            if source_id in schema.field_ids:
                validate_partition_name(name, transform, source_id, schema, set())
        identifiers = [self._identifier_id(schema, name) for name in self._identifier_field_names]
        schema_id = 1 + max(schema.schema_id for schema in metadata.schemas)
        return with_defaults(Schema(*fields, schema_id=schema_id, identifier_field_ids=identifiers), self._defaults)

    def _identifier_id(self, schema: Schema, name: str) -> int:
        try:
            return schema.find_field(name, self._case_sensitive).field_id
        except ValueError as error:
            raise ValueError(f"{name} is an identifier field: change these fields before it is deleted") from error

    def _type(self, path: str | tuple[str, ...], type_or_name: IcebergType | str) -> IcebergType:
        """Return a type, which may be passed by its name if it is primitive."""
        if isinstance(type_or_name, IcebergType):
            return type_or_name
        with suppress(CorruptFileError):
            return type_from_json(JsonNode(type_or_name))
        names = "a type of pyiceberg, or the name of a primitive one, such as long, string, decimal(9, 2) or date"
        raise self._error(path, f"has the type {shown(type_or_name)}: expected {names}")

    def _refuse_out_of_range(self, path: str | tuple[str, ...], kind: IcebergType, value: Any) -> None:
        if not isinstance(kind, IntegerType | LongType | FloatType | DoubleType) or not isinstance(value, int | float):
            return
        is_within = math.isfinite(value) if isinstance(kind, DoubleType) else kind.min <= value <= kind.max
        if not is_within:
            problem = f"the default value of {_full_name(path)} is {shown(value)}: it is out of the range of {kind}"
            raise ValidationError(f"{self._transaction.table_metadata.location}: {problem}")

    def _nested_default(self, path: str | tuple[str, ...], kind: IcebergType, value: Any) -> str | None:
        """Return the JSON text of a default of a nested type; None if there is none, or for a primitive type.

        Fields of structs have their own defaults, so that the only default of a struct is `{}`.
        """
        if kind.is_primitive or value is None:
            return None
        try:
            return default_text(kind, _default_tuples(kind, value))
        except (TypeError, ValueError) as error:
            problem = f"the default value of {_full_name(path)} is {shown(value)}: {first_line(error)}"
            raise ValidationError(f"{self._transaction.table_metadata.location}: {problem}") from error

    def _refuse_deleted(self, parents: tuple[str, ...]) -> None:
        """Raise ValidationError if the parent of a new column, or a parent of that, is deleted by this update."""
        names = {self._schema.find_column_name(field_id) for field_id in self._deletes}
        for depth in range(1, len(parents) + 1):
            if ".".join(parents[:depth]) in names:
                raise self._error(parents[:depth], "will be deleted: nothing can be added to it")

    def _error(self, path: str | tuple[str, ...], problem: str) -> ValidationError:
        return ValidationError(f"{self._transaction.table_metadata.location}: column {_full_name(path)} {problem}")

    def _commit(self) -> UpdatesAndRequirements:
        # An earlier change of the transaction may have set it since the builder was created.
        self._name_mapping = _name_mapping(self._transaction)
        updates, requirements = super()._commit()
        if not any(isinstance(update, AddSchemaUpdate | SetCurrentSchemaUpdate) for update in updates):
            return updates, requirements
        metadata = self._transaction.table_metadata
        ids = AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id})
        unchanged: Any = _AssertColumnProperties(_column_properties(metadata.properties))
        changed = _property_updates(metadata.properties, self._schema, self._apply())
        return (*updates, *changed), (*requirements, ids, unchanged)


class _Union(_UnionByNameVisitor):
    """pyiceberg's visitor of the schema of a union, which passes on the defaults of new columns."""

    update_schema: UpdateSchema

    def _add_column(self, parent_id: int, field: NestedField) -> None:
        parent = self.existing_schema.find_column_name(parent_id)
        self.update_schema._add_field((field.name,) if parent is None else (parent, field.name), field)


def _full_name(path: str | tuple[str, ...]) -> str:
    return path if isinstance(path, str) else ".".join(path)


def _may_become(old: IcebergType, new: IcebergType) -> bool:
    """Return False for promotions that pyiceberg allows only so that it can read files of other writers."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale
    return old == new or not isinstance(old, StringType | BinaryType | FixedType)


def _widened(default: float | None) -> float | None:
    """Return the double of a float column's default, whose JSON may have fewer digits."""
    return None if default is None else float(np.float32(default))


def _name_mapping(transaction: Transaction) -> NameMapping | None:
    metadata = transaction.table_metadata
    try:
        return metadata.name_mapping()
    except PydanticError as error:
        raise ValidationError(
            f"{metadata.location}: {TableProperties.DEFAULT_NAME_MAPPING} is not a name mapping: {first_line(error)}"
        ) from error


def _column_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a change of the schema may have to change."""
    prefixes = (TableProperties.DEFAULT_NAME_MAPPING, *_COLUMN_PREFIXES)
    return {key: value for key, value in properties.items() if key.startswith(prefixes)}


def _property_updates(properties: Mapping[str, str], old: Schema, new: Schema) -> list[TableUpdate]:
    """Return the updates of properties of renamed and deleted columns."""
    old_names, new_names = index_name_by_id(old), index_name_by_id(new)
    moved = {name: new_names.get(field_id) for field_id, name in old_names.items() if new_names.get(field_id) != name}
    removed, added = [], {}
    for key, value in properties.items():
        prefix = next((prefix for prefix in _COLUMN_PREFIXES if key.startswith(prefix)), None)
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
