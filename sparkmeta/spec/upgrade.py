"""The upgrade of table metadata to format version 4 with the metadata tree (semantics N29, N30; example 18)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from sparkmeta.errors import ValidationError
from sparkmeta.spec.entry import LAYOUT_REVISION
from sparkmeta.spec.expressions import add_expressions
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.metadata import serialize_table_metadata, table_metadata_from_json
from sparkmeta.spec.metadata_model import TableMetadata, TableMetadataV1, TableMetadataV4
from sparkmeta.spec.partitioning import partition_spec_to_json, sort_order_to_json
from sparkmeta.spec.schema import schema_to_json

if TYPE_CHECKING:
    import uuid

# They repeat the current schema and spec for the earliest readers.
_ONLY_V1 = {"schema", "partition-spec"}


def upgrade_metadata(metadata: TableMetadata, table_uuid: uuid.UUID | None = None) -> TableMetadataV4:
    """The metadata as of version 4: all that it says, and an expression for every field of every spec.

    Snapshots keep their manifest lists; nothing else is written or read. Metadata of version 4 without expressions, as
    Iceberg 1.12.0 writes it, is completed likewise, and metadata that has all of this is given back equal.

    Args:
        metadata: of any version.
        table_uuid: for a table of version 1 that has none; a table's own one is kept.

    Raises ValidationError for a table that has no UUID where none is given.
    """
    document = json.loads(serialize_table_metadata(metadata))
    if isinstance(metadata, TableMetadataV1):
        document = {key: value for key, value in document.items() if key not in _ONLY_V1} | _lists(metadata)
    if metadata.table_uuid is None:
        if table_uuid is None:
            raise ValidationError(f"{metadata.location}: table-uuid is None: version 4 needs one, and none is given")
        document["table-uuid"] = str(table_uuid)
    document |= {"format-version": 4, "current-snapshot-id": metadata.current_snapshot_id}
    document.setdefault("last-sequence-number", 0)
    document.setdefault("next-row-id", 0)
    # A location that is left to the place of the file is that of this one.
    place = f"{metadata.location}/metadata/upgrade.metadata.json"
    upgraded = cast("TableMetadataV4", table_metadata_from_json(JsonNode(document, place)))
    for spec in upgraded.partition_specs:
        upgraded = add_expressions(upgraded, spec)
    return upgraded.model_copy(update={"layout_revision": LAYOUT_REVISION, "expressions": upgraded.expressions})


def _lists(metadata: TableMetadataV1) -> dict[str, Any]:
    """What version 2 and later have in lists, each with its id, which version 1 may leave out."""
    return {
        "schemas": [schema_to_json(schema) | {"schema-id": schema.schema_id} for schema in metadata.schemas],
        "current-schema-id": metadata.current_schema_id,
        "partition-specs": [partition_spec_to_json(spec) for spec in metadata.partition_specs],
        "default-spec-id": metadata.default_spec_id,
        "last-partition-id": metadata.last_partition_id,
        "sort-orders": [sort_order_to_json(order) for order in metadata.sort_orders],
        "default-sort-order-id": metadata.default_sort_order_id,
    }
