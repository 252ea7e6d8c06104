"""Read and write table metadata files of format versions 1 to 4 without loss (table spec, Table Metadata)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START
from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.checks import WHOLE
from sparkmeta.errors import CorruptFileError, NoSuchSnapshotError, NoSuchTableError, UnsupportedError
from sparkmeta.spec.json_node import (
    JsonNode,
    check_unique_ids,
    decompressed,
    json_object,
    json_text,
    json_value,
    parse_json,
)
from sparkmeta.spec.locations import (
    ABSOLUTE_REVISION,
    LAYOUT_REVISION,
    LAYOUT_REVISION_KEY,
    RELATIVE_LOCATIONS_KEY,
    Locations,
    is_absolute,
    place_of,
    with_locations,
)
from sparkmeta.spec.metadata_model import (
    AnySnapshot,
    MetadataLogEntry,
    Snapshot,
    SnapshotRef,
    StoredSnapshots,
    TableMetadata,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
    TableMetadataV4,
    locations_of,
    snapshot_model,
    stored_snapshot,
)
from sparkmeta.spec.partitioning import (
    MAX_STATS_FIELD_ID,
    Expression,
    expressions_by_key,
    expressions_from_json,
    partition_spec_from_json,
    resolved_spec_json,
    sort_order_from_json,
    spec_keys,
)
from sparkmeta.spec.schema import schema_from_json
from sparkmeta.spec.table_properties import ENCRYPTION_KEY_ID, METADATA_PATH, TREE_LAYOUT
from sparkmeta.spec.tree_layout import ICEBERG, PROPOSAL, TreeLayout
from sparkmeta.spec.view_metadata import is_view_json

if TYPE_CHECKING:
    import uuid

    from pyiceberg.partitioning import PartitionSpec

__all__ = [
    "LAYOUT_REVISION",
    "LAYOUT_REVISION_KEY",
    "MAIN",
    "NEWEST_FORMAT_VERSION",
    "MetadataLogEntry",
    "Snapshot",
    "SnapshotRef",
    "TableMetadata",
    "TableMetadataV1",
    "TableMetadataV2",
    "TableMetadataV3",
    "TableMetadataV4",
    "has_tree",
    "is_encrypted",
    "parse_table_metadata",
    "parse_table_uuid",
    "refuse_encrypted",
    "serialize_table_metadata",
    "snapshot_of",
    "table_metadata_from_json",
]


# -- Expressions of a table -------------------------------------------------------------------------------------------


def add_expressions(metadata: TableMetadataV4, spec: PartitionSpec) -> TableMetadataV4:
    """Return the metadata with an expression for every field of a spec.

    An existing expression is used if its source ids, transform, partition field id and name agree with the field.
    New expressions get ids from last-column-id + 1 on, and last-column-id advances (semantics 17.7).

    Args:
        metadata: The table's metadata.
        spec: A partition spec, which the metadata need not contain.

    Raises:
        UnsupportedError: A new id would be too large for content_stats.
    """
    by_key = expressions_by_key(metadata.expressions)
    added: list[Expression] = []
    last_id = _last_id(metadata)
    for key, partition_field in zip(spec_keys(spec), spec.fields, strict=True):
        if key not in by_key:
            last_id += 1
            if not isinstance(partition_field.transform, IdentityTransform | VoidTransform):
                _check_stats_id(metadata, f"partition field {partition_field.name}", last_id)
            sources, transform, partition_field_id, name = key
            by_key[key] = Expression(
                expr_id=last_id,
                source_ids=sources,
                transform=transform,
                name=name,
                partition_field_id=partition_field_id,
            )
            added.append(by_key[key])
    if not added:
        return metadata
    return metadata.model_copy(update={"expressions": [*metadata.expressions, *added], "last_column_id": last_id})


def with_expression(metadata: TableMetadataV4, source_id: int, transform: str, name: str) -> TableMetadataV4:
    """Return the metadata with a virtual expression, which has the next id; see `add_expressions`.

    Raises:
        UnsupportedError: the id would be too large for content_stats.
    """
    expr_id = _last_id(metadata) + 1
    _check_stats_id(metadata, f"expression {name}", expr_id)
    expression = Expression(expr_id=expr_id, source_ids=(source_id,), transform=transform, name=name)
    return metadata.model_copy(update={"expressions": [*metadata.expressions, expression], "last_column_id": expr_id})


def check_expressions(metadata: TableMetadataV4, location: str) -> None:
    """Check the ids of a table's expressions.

    Raises:
        CorruptFileError: An expression has the id of a column, or an id above last-column-id.
    """
    column_ids = _column_ids(metadata)
    for i, expression in enumerate(metadata.expressions):
        path, expr_id = f"expressions[{i}].expr-id", expression.expr_id
        if expr_id in column_ids:
            raise CorruptFileError(location, path, expr_id, "a column has the same id")
        if expr_id > metadata.last_column_id:
            raise CorruptFileError(location, path, expr_id, f"last-column-id is only {metadata.last_column_id}")


def _column_ids(metadata: TableMetadataV4) -> set[int]:
    return {field_id for schema in metadata.schemas for field_id in schema.field_ids}


def _last_id(metadata: TableMetadataV4) -> int:
    return max([metadata.last_column_id, *_column_ids(metadata)])


def _check_stats_id(metadata: TableMetadataV4, subject: str, expr_id: int) -> None:
    if expr_id > MAX_STATS_FIELD_ID:
        raise UnsupportedError(
            f"{metadata.location}: {subject} would get id {expr_id}, and statistics support only ids up to "
            f"{MAX_STATS_FIELD_ID}: last-column-id is {metadata.last_column_id}"
        )


# -- Metadata files (table spec, Table Metadata) ----------------------------------------------------------------------


NEWEST_FORMAT_VERSION = 4
MAIN = "main"


_VERSIONS: dict[int, type[TableMetadata]] = {
    1: TableMetadataV1,
    2: TableMetadataV2,
    3: TableMetadataV3,
    4: TableMetadataV4,
}

# The metadata in use, by location and hash of the file. The same files are loaded repeatedly: by a service for each
# request, by a commit for each attempt.
_parsed: WeakValueDictionary[tuple[str, bytes], TableMetadata] = WeakValueDictionary()


def note_parsed(data: bytes, location: str, metadata: TableMetadata) -> None:
    """Cache the metadata of a file that this process writes, so that loading the file does not parse it."""
    _parsed[location, hashlib.sha256(data).digest()] = metadata


def parse_table_metadata(data: bytes, location: str) -> TableMetadata:
    """Return the table metadata in a metadata file. The file is not parsed again while its metadata is in use.

    Args:
        data: The bytes of the file, plain or compressed with gzip.
        location: The file, for error messages and for tables whose location is not in the file.

    Raises:
        NoSuchTableError: The file is the metadata of a view.
        CorruptFileError: The file is not valid table metadata, contradicts itself, or has a relative location before
            format version 4.
        UnsupportedError: The format version or the layout of the metadata tree is newer than this library.
    """
    key = location, hashlib.sha256(data).digest()
    if (metadata := _parsed.get(key)) is None:
        text = json_text(decompressed(data, location), location)
        del data  # Large files take much memory.
        metadata = _parsed[key] = table_metadata_from_json(JsonNode(_document(text, location), location))
    return metadata


# Later versions may have relative locations, whose text can't be written back unchanged.
_IS_STORED = re.compile(r'"format-version"\s*:\s*[123]\b')


def _document(text: str, location: str) -> Any:
    """Return the JSON of a metadata file, with `StoredSnapshots` if there are snapshots and none is unusual."""
    if _IS_STORED.search(text):
        try:
            document = json_object(text, "snapshots", stored_snapshot)
        except (ValueError, RecursionError):
            # If the document is invalid, the next line or table_metadata_from_json raises the error.
            return json_value(text, location)
        if document.get("format-version") in (1, 2, 3):
            return document | {"snapshots": StoredSnapshots(document["snapshots"])}
    return json_value(text, location)


def table_metadata_from_json(node: JsonNode) -> TableMetadata:
    """Return the table metadata in the JSON document of a metadata file.

    Raises:
        CorruptFileError: See parse_table_metadata.
        UnsupportedError: See parse_table_metadata.
    """
    location = node.location
    if is_view_json(node):
        raise NoSuchTableError(f"{location}: it is a view: load it with load_view")
    version = node.get("format-version").integer()
    if version > NEWEST_FORMAT_VERSION:
        raise UnsupportedError(f"{location}: format-version is {version}: the newest known is {NEWEST_FORMAT_VERSION}")
    if version not in _VERSIONS:
        node.get("format-version").fail("there is no such version")
    defaults = _defaults(node, version)
    complete = _absolute(_with_current_location(JsonNode(node.object() | defaults, location)), version)
    metadata = _validated(_VERSIONS[version], _typed(complete), location)
    metadata.model_fields_set.difference_update(_field_name(metadata, key) for key in defaults)
    _check_snapshots(metadata, location)
    if isinstance(metadata, TableMetadataV4):
        check_expressions(metadata, location)
    return metadata


def parse_table_uuid(data: bytes, location: str) -> uuid.UUID | None:
    """Return the table-uuid of a metadata file. This is faster than parsing the whole file.

    Returns:
        The UUID, or None if the file has none, as format version 1 allows.

    Raises:
        CorruptFileError: The file is not JSON, or the UUID is invalid.
    """
    if (metadata := _parsed.get((location, hashlib.sha256(data).digest()))) is not None:
        return metadata.table_uuid
    node = parse_json(decompressed(data, location), location).optional("table-uuid")
    return None if node is None else node.uuid()


def has_tree(metadata: TableMetadata) -> bool:
    """Return whether a table has a metadata tree, not manifest lists."""
    return tree_layout(metadata) is not None


def tree_layout(metadata: TableMetadata) -> TreeLayout | None:
    """Return the layout of a table's metadata tree; None for manifest lists.

    The proposal's layout has a revision in the metadata. The Iceberg project's layout has none: it is recognized by the
    table property `write.tree.layout`, or by a snapshot with a root.
    """
    if not isinstance(metadata, TableMetadataV4):
        return None
    if metadata.layout_revision is not None:
        return PROPOSAL
    is_named = str(metadata.properties.get(TREE_LAYOUT, "")).lower() == ICEBERG.name
    return ICEBERG if is_named or any(snapshot.has_root for snapshot in reversed(metadata.snapshots)) else None


def lacks_definitions(metadata: TableMetadata, earlier: TableMetadata) -> bool:
    """Return whether schemas or partition specs of an earlier version of a table are missing, as after an expiry."""
    return bool(
        {schema.schema_id for schema in earlier.schemas} - {schema.schema_id for schema in metadata.schemas}
        or {spec.spec_id for spec in earlier.partition_specs} - {spec.spec_id for spec in metadata.partition_specs}
    )


def ancestors_of(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Return a snapshot and its ancestors that the table still has, newest first.

    Raises:
        CorruptFileError: a snapshot is its own ancestor.
    """
    return map(snapshot_model, lineage_of(metadata, snapshot_id))


def lineage_of(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[AnySnapshot]:
    """Yield the same as `ancestors_of`, for work that needs only the attributes of `StoredSnapshot`."""
    seen: set[int] = set()
    while snapshot_id is not None and (snapshot := metadata.stored_by_id.get(snapshot_id)) is not None:
        if snapshot_id in seen:
            problem = "the snapshot is its own ancestor"
            raise CorruptFileError(metadata.location, "parent-snapshot-id", snapshot_id, problem)
        seen.add(snapshot_id)
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def snapshot_of(metadata: TableMetadata, snapshot_id: int, name: str = "snapshot_id") -> Snapshot:
    """Return the snapshot with an id.

    Args:
        metadata: the metadata.
        snapshot_id: the id.
        name: the name of the argument with the id, for errors.

    Raises:
        NoSuchSnapshotError: the table lacks the snapshot.
        ValidationError: the id is not a whole number.
    """
    WHOLE.check(name, snapshot_id)
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NoSuchSnapshotError(f"{metadata.location} has no snapshot {snapshot_id}")
    return snapshot


def is_encrypted(metadata: TableMetadata) -> bool:
    """Return whether a table has an encryption key for its files or for a snapshot's."""
    keys = metadata.encryption_keys if isinstance(metadata, TableMetadataV3) else []
    encrypted = any(snapshot.key_id is not None for snapshot in metadata.stored_snapshots)
    return bool(keys) or encrypted or ENCRYPTION_KEY_ID in metadata.properties


def refuse_encrypted(metadata: TableMetadata, why: str) -> None:
    """Raise UnsupportedError for an encrypted table, with a message that ends with `why`."""
    if is_encrypted(metadata):
        raise UnsupportedError(f"{metadata.location}: the table is encrypted, {why}")


def serialize_table_metadata(metadata: TableMetadata) -> str:
    """Return the JSON of a metadata file, including fields that this library does not know."""
    return metadata.model_dump_json()


def metadata_file_text(metadata: TableMetadata, base: TableMetadata | None, location: str) -> bytes:
    """Return the JSON of a metadata file to write, with relative locations if the table has them.

    The text is parsed as readers parse it, to validate it. Snapshots and log entries that the base shares are skipped.

    Args:
        metadata: the metadata to write.
        base: metadata that was read or written before; None to parse everything.
        location: the file to write, for errors.

    Raises:
        CorruptFileError, ValueError: no reader could read the file.
    """
    may_be_relative = isinstance(metadata, TableMetadataV4) and (metadata.layout_revision or 0) > ABSOLUTE_REVISION
    locations = locations_of(metadata) if may_be_relative else None
    text = metadata.written(locations).encode()
    if base is None or locations_of(base) != locations_of(metadata):
        parse_table_metadata(text, location)
    else:
        parse_table_metadata(metadata.without_parts_of(base).written(locations).encode(), location)
        _check_snapshots(metadata, location)
    return text


def _with_current_location(node: JsonNode) -> JsonNode:
    """Return the document with the table's location: the folder of the file if the table has been moved or copied.

    Only trees with relative locations can be moved. Their metadata files are in the table's folder.
    """
    folder, _, name = node.location.rpartition("/metadata/")
    properties = node.optional("properties")
    has_folder = properties is not None and METADATA_PATH in properties.object()
    if node.value.get(RELATIVE_LOCATIONS_KEY) is not True or not folder or "/" in name or has_folder:
        return node
    recorded = node.get("location").text()
    return JsonNode(node.value | {"location": place_of(folder, recorded)}, node.location)


def _absolute(node: JsonNode, version: int) -> JsonNode:
    """Return the document with absolute locations of files."""
    table, file = node.get("location").text(), node.location
    if not is_absolute(table):
        node.get("location").fail("the location of a table is absolute")
    revision = node.optional(LAYOUT_REVISION_KEY)
    locations = Locations.of(table, version, None if revision is None else revision.integer())
    return JsonNode(with_locations(node.object(), lambda value, path: locations.resolve(value, file, path)), file)


def _defaults(node: JsonNode, version: int) -> dict[str, Any]:
    """Return values for the missing keys that have a default."""
    defaults: dict[str, Any] = _v1_defaults(node) if version == 1 else {}
    if version >= 4 and not node.has("location"):
        defaults["location"] = node.location.rpartition("/")[0].removesuffix("/metadata") or "/"
    if not node.has("refs"):
        defaults["refs"] = {}
    return defaults


def _v1_defaults(node: JsonNode) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    if not node.has("schemas"):
        schema = node.get("schema").object()
        defaults |= {"schemas": [schema], "current-schema-id": schema.get("schema-id", 0)}
    elif not node.has("schema"):
        current = node.get("current-schema-id").integer()
        schemas = (schema for schema in node.get("schemas").items() if schema.object().get("schema-id", 0) == current)
        defaults["schema"] = next(schemas, node.get("schemas")).value
    if not node.has("partition-specs"):
        fields = [field.value for field in node.get("partition-spec").items()]
        defaults |= {"partition-specs": [{"spec-id": 0, "fields": fields}], "default-spec-id": 0}
    if not node.has("last-partition-id"):
        defaults["last-partition-id"] = _last_partition_id(JsonNode(node.object() | defaults, node.location))
    if not node.has("sort-orders"):
        defaults |= {"sort-orders": [{"order-id": 0, "fields": []}], "default-sort-order-id": 0}
    return defaults


def _last_partition_id(node: JsonNode) -> int:
    specs = (
        partition_spec_from_json(spec.value, spec.location, spec.path) for spec in node.get("partition-specs").items()
    )
    return max((spec.last_assigned_field_id for spec in specs), default=PARTITION_FIELD_ID_START - 1)


_LOGS: Final = ("snapshot-log", "metadata-log")


def _typed(node: JsonNode) -> dict[str, Any]:
    """Return the document with schemas, specs, sort orders and the UUID decoded, after a check of their ids."""
    # Java's parser accepts null as an empty log.
    typed = {key: value for key, value in node.object().items() if value is not None or key not in _LOGS}
    typed["schemas"] = [schema_from_json(n.object(), n.location, n.path) for n in node.get("schemas").items()]
    typed |= _typed_specs(node)
    typed["sort-orders"] = [
        sort_order_from_json(n.object(), n.location, n.path) for n in node.get("sort-orders").items()
    ]
    _check_current(node, "schemas", "current-schema-id", [schema.schema_id for schema in typed["schemas"]])
    _check_current(node, "partition-specs", "default-spec-id", [spec.spec_id for spec in typed["partition-specs"]])
    _check_current(node, "sort-orders", "default-sort-order-id", [order.order_id for order in typed["sort-orders"]])
    if "schema" in typed and typed["format-version"] == 1:
        typed["schema"] = schema_from_json(node.get("schema").object(), node.location, "schema")
    if typed.get("current-snapshot-id") == -1:
        typed["current-snapshot-id"] = None
    if (current := typed.get("current-snapshot-id")) is not None:
        # Some writers omit the branch main, which other readers add too.
        typed["refs"] = {MAIN: {"snapshot-id": current, "type": "branch"}} | node.get("refs").object()
    if (table_uuid := node.optional("table-uuid")) is not None:
        typed["table-uuid"] = table_uuid.uuid()
    return typed


def _typed_specs(node: JsonNode) -> dict[str, Any]:
    """Return the decoded partition specs, and for version 4 the expressions that they refer to."""
    specs = list(node.get("partition-specs").items())
    if node.get("format-version").integer() < 4:
        return {"partition-specs": [partition_spec_from_json(n.object(), n.location, n.path) for n in specs]}
    _check_layout(node)
    expressions = expressions_from_json(node.get("expressions")) if node.has("expressions") else []
    is_tree = node.optional(LAYOUT_REVISION_KEY) is not None
    resolved = [(resolved_spec_json(n, expressions, may_lack_fields=is_tree), n.location, n.path) for n in specs]
    typed: dict[str, Any] = {"partition-specs": [partition_spec_from_json(*spec) for spec in resolved]}
    return typed | ({"expressions": expressions} if node.has("expressions") else {})


def _check_layout(node: JsonNode) -> None:
    revision = node.optional(LAYOUT_REVISION_KEY)
    if revision is None:
        return
    if revision.integer() > LAYOUT_REVISION:
        problem = f"the newest layout of the metadata tree that is known is {LAYOUT_REVISION}"
        raise UnsupportedError(f"{node.location}: {LAYOUT_REVISION_KEY} is {revision.value}: {problem}")
    if revision.integer() < 1:
        revision.fail("there is no such layout")


def _check_current(node: JsonNode, list_key: str, id_key: str, ids: list[int]) -> None:
    check_unique_ids(zip(node.get(list_key).items(), ids, strict=True), "id")
    if node.get(id_key).integer() not in ids:
        node.get(id_key).fail(f"{list_key} has only {ids[:20]}")


def _validated(model: type[TableMetadata], typed: dict[str, Any], location: str) -> TableMetadata:
    try:
        return model.model_validate(typed)
    except PydanticError as error:
        details = error.errors(include_url=False, include_context=False)[0]
        missing = details["type"] == "missing"
        raise CorruptFileError(
            location,
            _path(details["loc"]),
            None if missing else details["input"],
            "it is required" if missing else details["msg"],
        ) from None
    except ValidationError as error:
        raise CorruptFileError(location, "refs", typed.get("refs"), str(error)) from None


def _path(steps: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def _field_name(metadata: TableMetadata, alias: str) -> str:
    fields = type(metadata).model_fields.items()
    return next((name for name, field in fields if field.alias == alias), alias)


def _check_snapshots(metadata: TableMetadata, location: str) -> None:
    seen: set[int] = set()
    for i, snapshot in enumerate(metadata.stored_snapshots):
        if snapshot.snapshot_id in seen:
            raise CorruptFileError(location, f"snapshots[{i}].snapshot-id", snapshot.snapshot_id, "it is given twice")
        if (snapshot.sequence_number or 0) > metadata.last_sequence_number:
            limit = f"last-sequence-number is only {metadata.last_sequence_number}"
            raise CorruptFileError(location, f"snapshots[{i}].sequence-number", snapshot.sequence_number, limit)
        seen.add(snapshot.snapshot_id)
    current = metadata.current_snapshot_id
    if current is not None and current not in seen:
        raise CorruptFileError(location, "current-snapshot-id", current, "there is no such snapshot")
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in seen:
            raise CorruptFileError(location, f"refs.{name}.snapshot-id", ref.snapshot_id, "there is no such snapshot")
    main = metadata.refs.get(MAIN)
    if main is not None and main.snapshot_id != current:
        raise CorruptFileError(location, "refs.main.snapshot-id", main.snapshot_id, f"current-snapshot-id is {current}")
