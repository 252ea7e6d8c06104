"""Make the metadata of new tables."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.partitioning import PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder, assign_fresh_sort_order_ids

from sparkmeta.checks import instance_of, property_texts
from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.metadata import table_metadata_from_json, tree_layout
from sparkmeta.spec.metadata_rules import (
    VERSION_PROPERTY,
    refuse_unfit,
    refuse_unreadable,
    refuse_unsupported,
    unreserved,
)
from sparkmeta.spec.partitioning import partition_spec_to_json, sort_order_to_json
from sparkmeta.spec.schema import schema_to_json
from sparkmeta.spec.table_properties import RELATIVE_LOCATIONS, flag_property, refuse_invalid_retries
from sparkmeta.spec.transforms import UnknownTransform, field_sources
from sparkmeta.spec.tree_layout import PROPOSAL
from sparkmeta.spec.update_schema import with_fresh_ids
from sparkmeta.spec.upgrade import upgrade_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.spec.metadata import TableMetadata, TableMetadataV4

_Fields = TypeVar("_Fields", PartitionSpec, SortOrder)

_VERSIONS = (1, 2, 3, 4)
_NEWEST_WITH_LISTS = 3
# Lists that tables of every version write, even without elements.
_EMPTY_LISTS = ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics")
# The default of Iceberg's own libraries.
_DEFAULT_VERSION = 2
# Properties of every new table (semantics 11.4).
_DEFAULT_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


def new_metadata(
    location: str,
    schema: Schema,
    spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str] | None,
    format_version: int | None = None,
) -> TableMetadata:
    """Make the metadata of an empty table.

    Columns get new ids from 1 on, partition fields from 1000 on.

    Args:
        location: The table's location.
        schema: The schema.
        spec: The partition spec.
        sort_order: The sort order.
        properties: The table's properties. As in Iceberg's own libraries, `format-version` chooses the format version.
            Reserved properties, including this one, are not stored.
        format_version: 1, 2 (the default), 3, or 4, which has a metadata tree.

    Raises:
        UnsupportedError: New tables can't have this format version.
        ValidationError: The property `format-version` and the argument differ, the format version does not support a
            column or partition field, or a column, partition field, sort field or property is invalid.
    """
    _refuse_other_types(location, schema, spec, sort_order)
    properties = property_texts(f"{location}: properties", properties)
    version = _version(location, properties, format_version)
    refuse_unsupported(version, [schema], location)
    refuse_unreadable(location, [schema], [spec], [sort_order])
    refuse_invalid_retries(properties, location)
    new_schema = with_fresh_ids(schema)
    try:
        new_spec = assign_fresh_partition_spec_ids(spec, schema, new_schema)
        new_spec = _with_fresh_sources(new_spec, schema, new_schema)
        new_order = assign_fresh_sort_order_ids(sort_order, schema, new_schema)
        new_order = _with_fresh_sources(new_order, schema, new_schema)
    except ValueError as error:
        raise ValidationError(f"{location}: {error}") from error
    refuse_unfit(location, new_schema, [new_spec], [new_order])
    schema_json, spec_json = schema_to_json(new_schema), partition_spec_to_json(new_spec)
    document: dict[str, Any] = {
        "format-version": min(version, _NEWEST_WITH_LISTS),
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-updated-ms": int(time.time() * 1000),
        "last-column-id": new_schema.highest_field_id,
        "schemas": [schema_json],
        "current-schema-id": new_schema.schema_id,
        "partition-specs": [spec_json],
        "default-spec-id": new_spec.spec_id,
        "last-partition-id": new_spec.last_assigned_field_id,
        "sort-orders": [sort_order_to_json(new_order)],
        "default-sort-order-id": new_order.order_id,
        "properties": {**_DEFAULT_PROPERTIES, **unreserved(properties)},
        "current-snapshot-id": None,
        **{key: [] for key in _EMPTY_LISTS},
        "refs": {},
    }
    if version == 1:
        document |= {"schema": schema_json, "partition-spec": spec_json["fields"]}
    else:
        document["last-sequence-number"] = 0
    if version >= 3:
        document["next-row-id"] = 0
    metadata = table_metadata_from_json(JsonNode(document, f"{location}/metadata/new.metadata.json"))
    return _tree(upgrade_metadata(metadata)) if version > _NEWEST_WITH_LISTS else metadata


def _tree(metadata: TableMetadataV4) -> TableMetadataV4:
    """Return the metadata of a new tree.

    It has relative locations unless the table property says otherwise. The Iceberg project's prototype does not resolve
    them, so in its layout the default is absolute locations.
    """
    default = tree_layout(metadata) == PROPOSAL
    if not flag_property(metadata.properties, RELATIVE_LOCATIONS, default=default, location=metadata.location):
        return metadata
    return metadata.model_copy(update={"relative_locations": True})


def _with_fresh_sources(fields: _Fields, schema: Schema, new_schema: Schema) -> _Fields:
    """Return a spec or an order with the new ids of all source columns; pyiceberg changes only the first one."""
    renumbered = []
    for field in fields.fields:
        transform = field.transform
        if isinstance(transform, UnknownTransform) and transform.sources:
            names = [schema.find_column_name(source) or "" for source in transform.sources]
            transform = transform.of_columns([new_schema.find_field(name).field_id for name in names])
        renumbered.append(field.model_copy(update={"transform": transform}))
    return fields.model_copy(update={"fields": tuple(renumbered)})


def _refuse_other_types(location: str, schema: Any, spec: Any, sort_order: Any) -> None:
    """Refuse arguments of other types than pyiceberg's, and fields whose source columns the schema lacks."""
    instance_of(Schema).check(f"{location}: schema", schema)
    instance_of(PartitionSpec).check(f"{location}: partition_spec", spec)
    instance_of(SortOrder).check(f"{location}: sort_order", sort_order)
    for field in (*spec.fields, *sort_order.fields):
        for source in field_sources(field):
            if source not in schema.field_ids:
                raise ValidationError(f"{location}: {field}: the schema has no column with the id {source}")


def _version(location: str, properties: Mapping[str, str], format_version: int | None) -> int:
    text = properties.get(VERSION_PROPERTY)
    requested = str(format_version if text is None else text)
    if format_version is not None and requested != str(format_version):
        raise ValidationError(
            f"{location}: the property format-version is {shown(requested)}, and format_version is {format_version}"
        )
    version = str(_DEFAULT_VERSION) if text is None and format_version is None else requested
    if version not in map(str, _VERSIONS):
        raise UnsupportedError(
            f"{location}: a new table can't have format version {shown(version)}: 1, 2, 3 and 4 are supported"
        )
    return int(version)
