"""The upgrade of table metadata to format version 4 with the metadata tree, and back (semantics N29, N30; 8.2-18)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.schema import index_by_id

from sparkmeta.errors import ValidationError
from sparkmeta.spec.entry import LAYOUT_REVISION, LAYOUT_REVISION_KEY
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.metadata import serialize_table_metadata, table_metadata_from_json
from sparkmeta.spec.metadata_model import TableMetadata, TableMetadataV1, TableMetadataV4
from sparkmeta.spec.partitioning import partition_sources, partition_spec_to_json, sort_order_to_json
from sparkmeta.spec.schema import schema_to_json
from sparkmeta.spec.table_expressions import add_expressions

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


def undo_upgrade(metadata: TableMetadataV4, version: int) -> TableMetadata:
    """The metadata of an upgraded table as of an earlier version, or of version 4 without the tree.

    Ids that expressions had are not given again.

    Raises ValidationError for a snapshot that has a root, and for a column or a partition field that the version has no
    place for.
    """
    for snapshot in metadata.snapshots:
        if snapshot.root_manifest is not None or (snapshot.manifest_list or "").lower().endswith(".parquet"):
            raise ValidationError(f"{metadata.location}: snapshot {snapshot.snapshot_id} has a root manifest")
    if version < 3:
        _refuse_since_version_3(metadata, version)
    document = json.loads(serialize_table_metadata(metadata))
    dropped = {LAYOUT_REVISION_KEY, "expressions", *(_SINCE_VERSION_3 if version < 3 else ())}
    specs = [partition_spec_to_json(spec) for spec in metadata.partition_specs]
    document |= {"format-version": version, "partition-specs": specs}
    if version == 1:
        dropped |= {"last-sequence-number"}
        document["schema"] = schema_to_json(metadata.schema())
        document["partition-spec"] = partition_spec_to_json(metadata.spec())["fields"]
    remaining = {key: value for key, value in document.items() if key not in dropped}
    return table_metadata_from_json(JsonNode(remaining, f"{metadata.location}/metadata/undone.metadata.json"))


_SINCE_VERSION_3 = ("next-row-id", "encryption-keys")
_TYPES_SINCE_VERSION_3 = ("variant", "unknown", "timestamp_ns", "timestamptz_ns", "geometry", "geography")


def _refuse_since_version_3(metadata: TableMetadata, version: int) -> None:
    """ValidationError for what the schemas and specs have that earlier versions don't know."""
    where = f"{metadata.location}: version {version} has no place for"
    for column in (column for schema in metadata.schemas for column in index_by_id(schema).values()):
        if str(column.field_type).startswith(_TYPES_SINCE_VERSION_3):
            raise ValidationError(f"{where} column {column.name} of type {column.field_type}")
        if column.initial_default is not None or column.write_default is not None:
            raise ValidationError(f"{where} the default of column {column.name}")
    for spec in metadata.partition_specs:
        for field, sources in zip(spec.fields, partition_sources(spec), strict=True):
            if len(sources) > 1:
                raise ValidationError(f"{where} partition field {field.name}, which is computed of several columns")


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
