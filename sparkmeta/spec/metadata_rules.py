"""Refuse schemas, partition specs, sort orders and properties that a table must not have."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.schema import index_by_id
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import DecimalType, GeographyType, GeometryType, StructType, UnknownType

from sparkmeta.errors import CorruptFileError, ValidationError, shown
from sparkmeta.spec.partitioning import (
    partition_spec_from_json,
    partition_spec_to_json,
    sort_order_from_json,
    sort_order_to_json,
)
from sparkmeta.spec.schema import VariantType, column_default, schema_from_json, schema_to_json
from sparkmeta.spec.transforms import field_sources, is_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.types import IcebergType, NestedField


# -- What a format version does not support ---------------------------------------------------------------------------


_TYPES_SINCE_VERSION_3 = ("variant", "unknown", "timestamp_ns", "timestamptz_ns", "geometry", "geography")


def refuse_unsupported(version: int, schemas: Iterable[Schema], location: str) -> None:
    """Raise ValidationError if a schema needs a later format version.

    Args:
        version: The format version of a table.
        schemas: Its schemas.
        location: Its location, for error messages.
    """
    if version >= 3:
        return
    problem = f"{location}: version {version} does not support"
    for column in (column for schema in schemas for column in index_by_id(schema).values()):
        if str(column.field_type).startswith(_TYPES_SINCE_VERSION_3):
            raise ValidationError(f"{problem} column {column.name} of type {column.field_type}")
        if column.initial_default is not None or column.write_default is not None:
            raise ValidationError(f"{problem} the default of column {column.name}")


# -- Reserved table properties (semantics 11.4) -----------------------------------------------------------------------
# They are never stored, since their values follow from the rest of the metadata.


VERSION_PROPERTY: Final = "format-version"

_RESERVED: Final = frozenset({
    VERSION_PROPERTY,
    "uuid",
    "snapshot-count",
    "current-snapshot-id",
    "current-snapshot-summary",
    "current-snapshot-timestamp-ms",
    "current-schema",
    "default-partition-spec",
    "default-sort-order",
})  # fmt: skip


def unreserved(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a new table stores.

    As in Java, reserved properties are dropped: engines show them, and users copy what they see.
    """
    return {name: value for name, value in properties.items() if name not in _RESERVED}


def refuse_reserved(properties: Mapping[str, str], table: str) -> None:
    """Refuse to set reserved properties of a table.

    Args:
        properties: The properties to set.
        table: The table's name, for the error.

    Raises:
        ValidationError: A property is reserved.
    """
    for name, value in properties.items():
        if name == VERSION_PROPERTY:
            raise ValidationError(
                f"{table}: {name} is {shown(value)}: it can't be set as a property: table.maintenance.upgrade "
                "changes the format version"
            )
        if name in _RESERVED:
            raise ValidationError(
                f"{table}: the table property {name} is {shown(value)}: it is reserved, and follows from the metadata"
            )


# -- Parts that readers would refuse ----------------------------------------------------------------------------------


def refuse_unreadable(
    location: str,
    schemas: Iterable[Schema] = (),
    specs: Iterable[PartitionSpec] = (),
    sort_orders: Iterable[SortOrder] = (),
) -> None:
    """Raise ValidationError if readers would refuse a part of new metadata, or would not know a transform.

    This includes partition fields without a unique name.

    Args:
        location: The table's location, for error messages.
        schemas: New schemas.
        specs: New partition specs.
        sort_orders: New sort orders.
    """
    for schema in schemas:
        _refuse_fields(location, schema, _read(location, schema_from_json, schema_to_json(schema), "schema"))
    for spec in specs:
        _refuse_names(location, spec)
        read = _read(location, partition_spec_from_json, partition_spec_to_json(spec), "partition spec")
        _refuse_unknown(location, spec.fields, read.fields, "partition spec")
    for order in sort_orders:
        read = _read(location, sort_order_from_json, sort_order_to_json(order), "sort order")
        _refuse_unknown(location, order.fields, read.fields, "sort order")


def refuse_unfit(
    location: str, schema: Schema, specs: Iterable[PartitionSpec] = (), sort_orders: Iterable[SortOrder] = ()
) -> None:
    """Raise ValidationError for a partition or sort field whose transform does not fit its column.

    Args:
        location: The table's location, for error messages.
        schema: The current schema. Fields of columns that it lacks are not checked.
        specs: New partition specs.
        sort_orders: New sort orders.
    """
    for spec in specs:
        for field in spec.fields:
            _refuse_transform(location, schema, field, f"partition field {shown(field.name)}")
    for order in sort_orders:
        for sort_field in order.fields:
            _refuse_transform(location, schema, sort_field, "sort field")


def _refuse_names(location: str, spec: PartitionSpec) -> None:
    """Raise ValidationError for partition fields without a name, or with the same one."""
    names: set[str] = set()
    for field in spec.fields:
        if not field.name or field.name in names:
            problem = "its name is empty" if not field.name else "there are several of this name"
            raise ValidationError(f"{location}: partition field {shown(field.name)}: {problem}")
        names.add(field.name)


def _refuse_transform(location: str, schema: Schema, field: PartitionField | SortField, subject: str) -> None:
    transform = field.transform
    if isinstance(transform, VoidTransform) or is_unknown(transform):
        return
    for source in field_sources(field):
        name = schema.find_column_name(source)
        if name is None:
            continue
        kind = schema.find_type(source)
        try:
            schema.accessor_for_field(source)
        except ValueError as error:
            raise ValidationError(f"{location}: {subject}: column {name} is inside a list or a map") from error
        if not transform.can_transform(kind) or isinstance(kind, VariantType | GeometryType | GeographyType):
            raise ValidationError(f"{location}: {subject}: {transform} does not fit column {name} of type {kind}")


def _refuse_fields(location: str, schema: Schema, read: Schema) -> None:
    """Raise ValidationError for required fields of type unknown, and for defaults that readers would change."""
    read_fields = index_by_id(read)
    for field_id, field in index_by_id(schema).items():
        name = schema.find_column_name(field_id)
        if field.required and isinstance(field.field_type, UnknownType):
            raise ValidationError(f"{location}: {name} is of type unknown: it must be optional")
        read_field = read_fields[field_id]
        defaults = (field.initial_default, read_field.initial_default), (field.write_default, read_field.write_default)
        for default, read_default in defaults:
            if default is not None and (read_default is None or not _fits(default, field.field_type)):
                problem = f"it is no value of type {field.field_type} that can be a default"
                raise ValidationError(f"{location}: the default value of {name} is {shown(default)}: {problem}")
        for key in ("initial_default", "write_default"):
            if (missing := _missing_in_default(field, key)) is not None:
                problem = f"its field {missing} is required and has no default"
                raise ValidationError(f"{location}: the default value of {name} is {getattr(field, key)}: {problem}")


def _missing_in_default(field: NestedField, key: str) -> str | None:
    """Return the name of a required field for which neither the struct's default nor the field's has a value."""
    kind, default = field.field_type, getattr(field, key)
    if not isinstance(kind, StructType) or default is None:
        return None
    values = dict(column_default(kind, default))
    lacking = (child for child in kind.fields if values.get(child.field_id, getattr(child, key)) is None)
    return next((child.name for child in lacking if child.required), None)


def _fits(default: Any, kind: IcebergType) -> bool:
    """Return whether JSON can represent a float, and whether a decimal fits the precision and scale of its type."""
    if isinstance(default, float):
        return math.isfinite(default)
    if not isinstance(default, Decimal) or not isinstance(kind, DecimalType):
        return True
    _, digits, exponent = default.as_tuple()
    return (
        isinstance(exponent, int) and -exponent <= kind.scale and len(digits) + exponent <= kind.precision - kind.scale
    )


def _read(location: str, reader: Callable[[dict[str, Any]], Any], data: dict[str, Any], part: str) -> Any:
    try:
        return reader(data)
    except CorruptFileError as error:
        raise ValidationError(
            f"{location}: {error.field} of the new {part} is {error.value}: {error.problem}"
        ) from error


def _refuse_unknown(
    location: str,
    fields: Iterable[PartitionField | SortField],
    read_fields: Iterable[PartitionField | SortField],
    part: str,
) -> None:
    for index, (field, read_field) in enumerate(zip(fields, read_fields, strict=True)):
        if isinstance(read_field.transform, UnknownTransform) and not isinstance(field.transform, UnknownTransform):
            raise ValidationError(
                f"{location}: fields[{index}].transform of the new {part} is '{field.transform}': there is no such "
                "transform"
            )
