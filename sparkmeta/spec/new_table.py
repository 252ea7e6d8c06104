"""The metadata of a table that does not exist yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyiceberg.table.metadata import new_table_metadata

from sparkmeta.errors import UnsupportedError
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
# What every new table says of itself (semantics 3.3-8).
_ALWAYS = {"write.parquet.compression-codec": "zstd"}


def new_metadata(
    location: str,
    schema: Schema,
    spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str],
    format_version: int,
) -> TableMetadata:
    """An empty table's metadata; ids of columns and partition fields are given anew, from 1 and 1000 on.

    Version 4 has the metadata tree. Raises UnsupportedError for another version than 2, 3 and 4.
    """
    if format_version not in _VERSIONS:
        raise UnsupportedError(f"{location}: tables of format version {format_version} are not made: 2, 3 and 4 are")
    made = new_table_metadata(schema, spec, sort_order, location, {**_ALWAYS, **properties, "format-version": "2"})
    document = json.loads(made.model_dump_json())
    for entry, sources in zip(document["partition-specs"][0]["fields"], partition_sources(spec), strict=True):
        if len(sources) > 1:  # pyiceberg's fields know the first alone
            del entry["source-id"]
            columns = (schema.find_column_name(source) for source in sources)
            entry["source-ids"] = [made.schema().find_field(str(column)).field_id for column in columns]
    document.get("properties", {}).pop("format-version", None)
    if format_version == 3:
        document |= {"format-version": 3, "next-row-id": 0}
    metadata = parse_table_metadata(json.dumps(document).encode(), f"{location}/metadata/new.metadata.json")
    return upgrade_metadata(metadata) if format_version == 4 else metadata
