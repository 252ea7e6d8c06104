"""Upgrade and downgrade table metadata (table spec, Appendix E; semantics 17.7 and 19.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.spec.expiry import Expired, without_expired
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.locations import (
    LAYOUT_REVISION,
    LAYOUT_REVISION_KEY,
    RELATIVE_LOCATIONS_KEY,
    Locations,
    with_locations,
)
from sparkmeta.spec.metadata import (
    add_expressions,
    has_tree,
    serialize_table_metadata,
    table_metadata_from_json,
    tree_layout,
)
from sparkmeta.spec.metadata_model import Snapshot, TableMetadata, TableMetadataV1, TableMetadataV4
from sparkmeta.spec.metadata_rules import refuse_unsupported
from sparkmeta.spec.partitioning import partition_spec_to_json, sort_order_to_json
from sparkmeta.spec.schema import schema_to_json
from sparkmeta.spec.table_properties import TREE_LAYOUT, choice_property
from sparkmeta.spec.tree_layout import ICEBERG, LAYOUTS, PROPOSAL, TreeLayout

if TYPE_CHECKING:
    import uuid

    from sparkmeta.spec.metadata import TableMetadata


# -- Upgrade table metadata, and undo it (table spec, Appendix E) -----------------------------------------------------
# Trees follow semantics 17.7 and 19.2.


# Keys that repeat the current schema and spec for readers that don't know the lists.
_ONLY_V1 = {"schema", "partition-spec"}
_SINCE_VERSION_3 = ("next-row-id", "encryption-keys")


def upgrade_metadata(metadata: TableMetadata, table_uuid: uuid.UUID | None = None) -> TableMetadataV4:
    """Return the metadata in format version 4, with a metadata tree.

    The table property `write.tree.layout` chooses the tree's layout. The proposal's has an expression for each field of
    every partition spec. Snapshots keep their manifest lists, and all locations stay absolute. Metadata of version 4
    without a tree, as Iceberg 1.12.0 writes it, is upgraded in the same way. Metadata of a tree is returned unchanged.

    Args:
        metadata: Metadata of any version.
        table_uuid: The UUID of the table if the metadata has none, as version 1 allows.

    Raises:
        ValidationError: The table has no UUID, and none is passed, the property is invalid, or the location of a table
            in the layout of the Iceberg project lacks a scheme.
    """
    upgraded = cast("TableMetadataV4", _in_version(metadata, 4, table_uuid))
    choice_property(upgraded.properties, TREE_LAYOUT, tuple(LAYOUTS), location=upgraded.location)
    if tree_layout(upgraded) == ICEBERG:
        _refuse_lost_scheme(upgraded.location)
        return upgraded
    return _with_revision(upgraded)


def _with_revision(metadata: TableMetadataV4) -> TableMetadataV4:
    """Return the metadata of a tree in the proposal's layout."""
    for spec in metadata.partition_specs:
        metadata = add_expressions(metadata, spec)
    return metadata.model_copy(update={"layout_revision": LAYOUT_REVISION, "expressions": metadata.expressions})


def in_layout(metadata: TableMetadataV4, layout: TreeLayout) -> TableMetadataV4:
    """Return the metadata of a tree with another layout for its next roots. Its snapshots keep their roots.

    The expressions of the proposal's layout stay, since earlier roots need them.

    Args:
        metadata: The metadata of a tree.
        layout: The layout of the next roots.

    Raises:
        ValidationError: The location of a table in the layout of the Iceberg project lacks a scheme.
        UnsupportedError: The tree has the first revision of the proposal's layout.
    """
    if tree_layout(metadata) == layout:
        return metadata
    named = metadata.model_copy(update={"properties": {**metadata.properties, TREE_LAYOUT: layout.name}})
    if layout == PROPOSAL:
        return _with_revision(named)
    _refuse_lost_scheme(metadata.location)
    if metadata.layout_revision != LAYOUT_REVISION:
        raise UnsupportedError(
            f"{metadata.location}: {LAYOUT_REVISION_KEY} is {metadata.layout_revision}: only trees of revision "
            f"{LAYOUT_REVISION} can be converted, since relative locations mean something else in earlier ones"
        )
    changed = named.model_copy(update={"layout_revision": None})
    changed.model_fields_set.discard("layout_revision")
    return changed


def _refuse_lost_scheme(location: str) -> None:
    """Raise ValidationError if the location of a table has no scheme, which the Iceberg project's layout requires."""
    if location.startswith("/"):
        raise ValidationError(
            f"the location of the table is {location}: with {TREE_LAYOUT}={ICEBERG}, it has a scheme, as in "
            f"file://{location}"
        )


def upgrade_lists(metadata: TableMetadata, version: int, table_uuid: uuid.UUID | None = None) -> TableMetadata:
    """Return the metadata in format version 2 or 3, with the same snapshots and manifest lists (Appendix E).

    Sequence numbers begin at 0, which all files of version 1 have. Row ids begin at 0 too. Files have no row ids until
    a snapshot that lists them is committed.

    Args:
        metadata: Metadata of an earlier version.
        version: 2 or 3.
        table_uuid: The UUID of the table if the metadata has none, as version 1 allows.

    Raises:
        ValidationError: The metadata is not of an earlier version, or has no UUID, and none is passed.
    """
    if version <= metadata.format_version:
        raise ValidationError(
            f"{metadata.location}: the table has format version {metadata.format_version}, which can't become {version}"
        )
    return _in_version(metadata, version, table_uuid)


def _in_version(metadata: TableMetadata, version: int, table_uuid: uuid.UUID | None) -> TableMetadata:
    """Return the metadata in a later version, with the fields that it requires."""
    document = json.loads(serialize_table_metadata(metadata))
    if isinstance(metadata, TableMetadataV1):
        document = {key: value for key, value in document.items() if key not in _ONLY_V1} | _lists(metadata)
    if metadata.table_uuid is None:
        if table_uuid is None:
            raise ValidationError(
                f"{metadata.location}: table-uuid is None: version {version} needs one, and none is given"
            )
        document["table-uuid"] = str(table_uuid)
    document |= {"format-version": version, "current-snapshot-id": metadata.current_snapshot_id}
    if version == 4:
        locations = Locations.of(metadata.location, version)
        if metadata.format_version < version:
            locations = locations.before_version_4
        document = with_locations(document, lambda value, path: locations.resolve(value, metadata.location, path))
    document.setdefault("last-sequence-number", 0)
    if version >= 3:
        document.setdefault("next-row-id", 0)
    # If the document has no table location, it follows from this one.
    return table_metadata_from_json(JsonNode(document, f"{metadata.location}/metadata/upgrade.metadata.json"))


def undo_upgrade(metadata: TableMetadataV4, version: int) -> TableMetadata:
    """Return the metadata of an upgraded table in its previous format version.

    The ids of its expressions are never reused: last-column-id stays the same.

    Args:
        metadata: The metadata of a tree.
        version: The format version to return to. 4 removes only the tree.

    Raises:
        ValidationError: A snapshot has a root manifest, or the version does not support row ids, sequence numbers or a
            column of the table.
    """
    for snapshot in metadata.snapshots:
        if snapshot.has_root:
            raise ValidationError(f"{metadata.location}: snapshot {snapshot.snapshot_id} has a root manifest")
        if snapshot.first_row_id is not None and version < 3:
            problem = f"snapshot {snapshot.snapshot_id} has first-row-id, which format version {version} lacks"
            raise ValidationError(f"{metadata.location}: {problem}")
    if metadata.last_sequence_number > 0 and version < 2:
        number = metadata.last_sequence_number
        raise ValidationError(f"{metadata.location}: last-sequence-number is {number}: in format version 1 it is 0")
    refuse_unsupported(version, metadata.schemas, metadata.location)
    document = json.loads(serialize_table_metadata(metadata))
    removed_keys = {
        LAYOUT_REVISION_KEY,
        RELATIVE_LOCATIONS_KEY,
        "expressions",
        *(_SINCE_VERSION_3 if version < 3 else ()),
    }
    specs = [partition_spec_to_json(spec) for spec in metadata.partition_specs]
    document |= {"format-version": version, "partition-specs": specs}
    if version == 1:
        removed_keys |= {"last-sequence-number"}
        document["schema"] = schema_to_json(metadata.schema())
        document["partition-spec"] = partition_spec_to_json(metadata.spec())["fields"]
    remaining = {key: value for key, value in document.items() if key not in removed_keys}
    properties = document.get("properties", {})
    remaining["properties"] = {name: text for name, text in properties.items() if name != TREE_LAYOUT}
    return table_metadata_from_json(JsonNode(remaining, f"{metadata.location}/metadata/undone.metadata.json"))


def _lists(metadata: TableMetadataV1) -> dict[str, Any]:
    """Return the lists of schemas, specs and sort orders of version 2 and later.

    Each schema has its id, which version 1 may lack.
    """
    return {
        "schemas": [schema_to_json(schema) | {"schema-id": schema.schema_id} for schema in metadata.schemas],
        "current-schema-id": metadata.current_schema_id,
        "partition-specs": [partition_spec_to_json(spec) for spec in metadata.partition_specs],
        "default-spec-id": metadata.default_spec_id,
        "last-partition-id": metadata.last_partition_id,
        "sort-orders": [sort_order_to_json(order) for order in metadata.sort_orders],
        "default-sort-order-id": metadata.default_sort_order_id,
    }


# -- Downgrade trees to manifest lists of format version 3 ------------------------------------------------------------


LIST_VERSION = 3
"""The newest format version without metadata trees."""

TREE_PROPERTIES = "write.tree."
"""The prefix of table properties that only metadata trees have."""

_WITHOUT_REMOVALS = ("append", "replace")
# The prefixes of keys in a summary that describe changes.
_CHANGES = ("added-", "changed-", "deleted-", "removed-", "manifests-", "entries-", "replace-partitions")


@dataclass(frozen=True)
class TreeSnapshots:
    """The snapshots with a root, in the order of their sequence numbers.

    Attributes:
        heads: the snapshots that branches and tags refer to. They get manifest lists.
        others: all other snapshots, which are removed from the table.
    """

    heads: tuple[Snapshot, ...]
    others: tuple[Snapshot, ...]


def tree_snapshots(metadata: TableMetadata) -> TreeSnapshots:
    """Return the snapshots of a table that have a root."""
    referenced = {ref.snapshot_id for ref in metadata.refs.values()}
    with_roots = sorted(
        (snapshot for snapshot in metadata.snapshots if snapshot.has_root),
        key=lambda snapshot: snapshot.sequence_number or 0,
    )
    return TreeSnapshots(
        tuple(snapshot for snapshot in with_roots if snapshot.snapshot_id in referenced),
        tuple(snapshot for snapshot in with_roots if snapshot.snapshot_id not in referenced),
    )


def tree_metadata(metadata: TableMetadata) -> TableMetadataV4:
    """Return the metadata, checked to be that of a table with a tree.

    Raises:
        ValidationError: the table has no tree.
    """
    if not isinstance(metadata, TableMetadataV4) or not has_tree(metadata):
        raise ValidationError(
            f"{metadata.location}: the table has no metadata tree, but manifest lists of format version "
            f"{metadata.format_version}: there is nothing to downgrade"
        )
    return metadata


def keeps_changes(snapshot: Snapshot) -> bool:
    """Return whether a snapshot removed no file, so that a manifest list of live files shows all its changes."""
    return snapshot.operation in _WITHOUT_REMOVALS


def downgraded_metadata(
    metadata: TableMetadataV4, lists: Mapping[int, str], next_row_id: int, now_ms: int
) -> TableMetadata:
    """Return the metadata in format version 3.

    Heads keep their ids, times and statistics. A head that removed files becomes a `replace` without a parent: its
    manifest list does not name these files, and scans of changes must not miss them silently.

    Args:
        metadata: the metadata of a tree.
        lists: snapshot id -> manifest list of each of `TreeSnapshots.heads`.
        next_row_id: the table's next row id.
        now_ms: the time of the change, in milliseconds since 1970.
    """
    removed = tree_snapshots(metadata).others
    remaining = without_expired(metadata, Expired(removed, ()), None, now_ms)
    snapshots = [
        _with_list(snapshot, lists[snapshot.snapshot_id]) if snapshot.has_root else snapshot
        for snapshot in remaining.snapshots
    ]
    properties = {key: text for key, text in metadata.properties.items() if not key.startswith(TREE_PROPERTIES)}
    changes = {"snapshots": snapshots, "properties": properties, "next_row_id": next_row_id}
    return undo_upgrade(cast("TableMetadataV4", remaining.model_copy(update=changes)), LIST_VERSION)


def _with_list(snapshot: Snapshot, location: str) -> Snapshot:
    document: dict[str, Any] = snapshot.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    document.pop("root-manifest", None)
    document["manifest-list"] = location
    if not keeps_changes(snapshot):
        document.pop("parent-snapshot-id", None)
        summary = document.get("summary", {})
        document["summary"] = {key: text for key, text in summary.items() if not key.startswith(_CHANGES)}
        document["summary"]["operation"] = "replace"
    return Snapshot.model_validate(document)
