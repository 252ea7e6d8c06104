"""Convert the columns to read, and the table metadata that tasks need, to a form for tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.name_mapping import MappedField, NameMapping, parse_mapping_from_json
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from sparkmeta.errors import ValidationError, shown
from sparkmeta.rows.resolve import Column, MappedName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.partitioning import PartitionSpec

    from sparkmeta.spec.metadata import TableMetadata

NAME_MAPPING = "schema.name-mapping.default"
"""The table property with the name mapping."""


def projected_column(field: NestedField) -> Column:
    """Return a field of a schema as a `Column`."""
    kind = field.field_type
    children = tuple(map(projected_column, child_fields(kind)))
    return Column(field.name, field.field_id, type_name(kind), children, field.required, field.initial_default)


def type_name(kind: IcebergType) -> str:
    """Return the name of a type in the form used by `Column`."""
    match kind:
        case StructType():
            return "struct"
        case ListType():
            return "list"
        case MapType():
            return "map"
    return str(kind)


def child_fields(kind: IcebergType) -> tuple[NestedField, ...]:
    """Return the fields of a nested type; none for a primitive type."""
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return kind.key_field, kind.value_field
    return ()


def name_mapping(metadata: TableMetadata) -> tuple[MappedName, ...] | None:
    """Return the table's name mapping; None if it has none.

    Raises:
        ValidationError: The table property is not a name mapping.
    """
    text = metadata.properties.get(NAME_MAPPING)
    if text is None:
        return None
    try:
        mapping: NameMapping = parse_mapping_from_json(text)
    except ValueError as error:
        problem = str(error).splitlines()[0]
        raise ValidationError(f"{metadata.location}: {NAME_MAPPING} is {shown(text)}: {problem}") from error
    return _mapped(mapping.root)


def _mapped(fields: Iterable[MappedField]) -> tuple[MappedName, ...]:
    return tuple(MappedName(tuple(field.names), field.field_id, _mapped(field.fields)) for field in fields)


def identity_sources(spec: PartitionSpec) -> dict[int, int]:
    """Return the ids of a spec's identity partition fields by source column id."""
    identities = (field for field in spec.fields if isinstance(field.transform, IdentityTransform))
    return {field.source_id: field.field_id for field in identities}
