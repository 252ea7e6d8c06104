"""Make the metadata of new tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyiceberg.table.metadata import new_table_metadata

from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.spec.metadata import parse_table_metadata
from sparkmeta.spec.partitioning import partition_sources
from sparkmeta.spec.upgrade import upgrade_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

    from sparkmeta.spec.metadata import TableMetadata

_VERSIONS = (2, 3, 4)
# The default of Iceberg's own libraries.
_DEFAULT_VERSION = 2
_VERSION_PROPERTY = "format-version"
# Properties of every new table (semantics 3.3-8).
_DEFAULT_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


def new_metadata(
    location: str,
    schema: Schema,
    spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str],
    format_version: int | None = None,
) -> TableMetadata:
    """Make the metadata of an empty table.

    Columns get new ids from 1 on, partition fields from 1000 on.

    Args:
        location: The table's location.
        schema: The schema.
        spec: The partition spec.
        sort_order: The sort order.
        properties: The table's properties. As in Iceberg's own libraries, `format-version` chooses the format version
            and is not stored as a property.
        format_version: 2 (the default), 3, or 4, which has a metadata tree.

    Raises:
        UnsupportedError: New tables can't have this format version.
        ValidationError: The property `format-version` and the argument differ.
    """
    format_version = _version(location, properties, format_version)
    properties = {**_DEFAULT_PROPERTIES, **properties, _VERSION_PROPERTY: str(_DEFAULT_VERSION)}
    new = new_table_metadata(schema, spec, sort_order, location, properties)
    document = json.loads(new.model_dump_json())
    for entry, sources in zip(document["partition-specs"][0]["fields"], partition_sources(spec), strict=True):
        if len(sources) > 1:  # pyiceberg keeps only the first one
            del entry["source-id"]
            columns = (schema.find_column_name(source) for source in sources)
            entry["source-ids"] = [new.schema().find_field(str(column)).field_id for column in columns]
    document.get("properties", {}).pop(_VERSION_PROPERTY, None)
    if format_version == 3:
        document |= {"format-version": 3, "next-row-id": 0}
    metadata = parse_table_metadata(json.dumps(document).encode(), f"{location}/metadata/new.metadata.json")
    return upgrade_metadata(metadata) if format_version == 4 else metadata


def _version(location: str, properties: Mapping[str, str], format_version: int | None) -> int:
    text = properties.get(_VERSION_PROPERTY)
    requested = str(format_version if text is None else text)
    if format_version is not None and requested != str(format_version):
        raise ValidationError(
            f"{location}: the property format-version is {shown(requested)}, and format_version is {format_version}"
        )
    version = str(_DEFAULT_VERSION) if text is None and format_version is None else requested
    if version not in map(str, _VERSIONS):
        raise UnsupportedError(
            f"{location}: a new table can't have format version {shown(version)}: 2, 3 and 4 are supported"
        )
    return int(version)
