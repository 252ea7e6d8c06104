"""The metadata of a table that does not exist yet."""

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
# The one that Iceberg's own libraries make unless they are asked for another.
_DEFAULT_VERSION = 2
_VERSION_PROPERTY = "format-version"
# What every new table says of itself (semantics 3.3-8).
_ALWAYS = {"write.parquet.compression-codec": "zstd"}


def new_metadata(
    location: str,
    schema: Schema,
    spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str],
    format_version: int | None = None,
) -> TableMetadata:
    """Make the metadata of an empty table, with new ids of columns and partition fields, from 1 and 1000 on.

    Args:
        properties: of the table; `format-version` chooses the version, as in Iceberg's own libraries, and is not kept.
        format_version: 2 (the default), 3, or 4, which has the metadata tree.

    Raises:
        UnsupportedError: another format version.
        ValidationError: the property and `format_version` differ.
    """
    format_version = _version(location, properties, format_version)
    made = new_table_metadata(
        schema, spec, sort_order, location, {**_ALWAYS, **properties, _VERSION_PROPERTY: str(_DEFAULT_VERSION)}
    )
    document = json.loads(made.model_dump_json())
    for entry, sources in zip(document["partition-specs"][0]["fields"], partition_sources(spec), strict=True):
        if len(sources) > 1:  # pyiceberg's fields know the first alone
            del entry["source-id"]
            columns = (schema.find_column_name(source) for source in sources)
            entry["source-ids"] = [made.schema().find_field(str(column)).field_id for column in columns]
    document.get("properties", {}).pop(_VERSION_PROPERTY, None)
    if format_version == 3:
        document |= {"format-version": 3, "next-row-id": 0}
    metadata = parse_table_metadata(json.dumps(document).encode(), f"{location}/metadata/new.metadata.json")
    return upgrade_metadata(metadata) if format_version == 4 else metadata


def _version(location: str, properties: Mapping[str, str], format_version: int | None) -> int:
    text = properties.get(_VERSION_PROPERTY)
    asked = str(format_version if text is None else text)
    if format_version is not None and asked != str(format_version):
        raise ValidationError(
            f"{location}: the property format-version is {shown(asked)}, and format_version is {format_version}"
        )
    version = str(_DEFAULT_VERSION) if text is None and format_version is None else asked
    if version not in map(str, _VERSIONS):
        raise UnsupportedError(f"{location}: tables of format version {shown(version)} are not made: 2, 3 and 4 are")
    return int(version)
