"""Read, write and change view metadata by the rules of the view spec and Iceberg's Java library."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyiceberg.schema import Schema

from sparkmeta.checks import instance_of
from sparkmeta.errors import CorruptFileError, NoSuchViewError, UnsupportedError, ValidationError, shown
from sparkmeta.spec.json_node import JsonNode, check_unique_ids, decompressed, parse_json
from sparkmeta.spec.schema import schema_from_json, schema_to_json
from sparkmeta.spec.table_properties import refuse_invalid_retries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID


# -- View metadata files (view spec) ----------------------------------------------------------------------------------
# Files of the spec's first draft are read too: their versions have schema, default catalog and namespace in the SQL
# representation, and the view has no UUID.


NEWEST_VIEW_FORMAT = 1

_VIEW_UUID = "view-uuid"
_CURRENT_SCHEMA_ID = "current-schema-id"
_VIEW_KEYS = {
    "format-version", _VIEW_UUID, "location", "current-version-id", "versions", "version-log", "schemas", "properties"
}  # fmt: skip
_VERSION_KEYS = {
    "version-id", "schema-id", "timestamp-ms", "summary", "representations", "default-catalog", "default-namespace"
}  # fmt: skip
_SQL = "sql"


@dataclass(frozen=True)
class SQLViewRepresentation:
    """The query of a view in one SQL dialect.

    Attributes:
        unknown: The JSON keys that this library does not know.
    """

    type: ClassVar[str] = _SQL

    sql: str
    dialect: str
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherRepresentation:
    """A representation of a type that this library does not know. Its JSON object is kept."""

    type: str
    unknown: Mapping[str, Any]


@dataclass(frozen=True)
class ViewVersion:
    """A version of a view: its queries, and the catalog, namespace and schema that they refer to.

    Attributes:
        default_catalog: The catalog of tables that the queries name without one. None for the view's own.
        default_namespace: The namespace of tables that the queries name without one.
        unknown: The JSON keys that this library does not know.
    """

    version_id: int
    schema_id: int
    timestamp_ms: int
    summary: Mapping[str, str]
    representations: tuple[SQLViewRepresentation | OtherRepresentation, ...]
    default_namespace: tuple[str, ...]
    default_catalog: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sql_representations(self) -> list[SQLViewRepresentation]:
        return [
            representation
            for representation in self.representations
            if isinstance(representation, SQLViewRepresentation)
        ]

    def sql_for(self, dialect: str) -> SQLViewRepresentation | None:
        """Return the query in a dialect, of any case, or None."""
        queries = (sql for sql in self.sql_representations if sql.dialect.casefold() == dialect.casefold())
        return next(queries, None)


@dataclass(frozen=True)
class ViewHistoryEntry:
    """The time at which a version became the current one."""

    timestamp_ms: int
    version_id: int
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewMetadata:
    """The content of a view metadata file.

    Attributes:
        view_uuid: None in files of the spec's first draft.
        unknown: The JSON keys that this library does not know.
    """

    view_uuid: UUID | None
    location: str
    schemas: tuple[Schema, ...]
    current_version_id: int
    versions: tuple[ViewVersion, ...]
    version_log: tuple[ViewHistoryEntry, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def version_by_id(self, version_id: int) -> ViewVersion | None:
        return next((version for version in self.versions if version.version_id == version_id), None)

    def current_version(self) -> ViewVersion:
        """Return the current version.

        Raises:
            CorruptFileError: The view does not have it.
        """
        if (version := self.version_by_id(self.current_version_id)) is None:
            ids = [version.version_id for version in self.versions]
            raise CorruptFileError(
                self.location, "current-version-id", self.current_version_id, f"versions has only {ids}"
            )
        return version

    def schema(self, version: ViewVersion | None = None) -> Schema:
        """Return the schema of a version, by default the current one.

        Raises:
            CorruptFileError: The view does not have it.
        """
        schema_id = (version or self.current_version()).schema_id
        for schema in self.schemas:
            if schema.schema_id == schema_id:
                return schema
        ids = [schema.schema_id for schema in self.schemas]
        raise CorruptFileError(self.location, "schema-id", schema_id, f"schemas has only {ids}")


def parse_view_metadata(data: bytes, location: str) -> ViewMetadata:
    """Return the view metadata in a metadata file.

    A missing current version or schema is an error only when it is used, as in Iceberg's Java library.

    Args:
        data: The bytes of the file, plain or compressed with gzip.
        location: The file, for error messages.

    Raises:
        NoSuchViewError: The file is the metadata of a table.
        CorruptFileError: The file is not valid view metadata, or contradicts itself.
        UnsupportedError: The format version is newer than this library.
    """
    return view_metadata_from_json(parse_json(decompressed(data, location), location))


def is_view_json(node: JsonNode) -> bool:
    """Return whether a metadata file is a view's, not a table's."""
    return "version-log" in node.object() or _VIEW_UUID in node.object()


def view_metadata_from_json(node: JsonNode) -> ViewMetadata:
    """Return the view metadata in the JSON document of a metadata file; see `parse_view_metadata`."""
    if "last-column-id" in node.object():
        raise NoSuchViewError(f"{node.location}: it is a table: load it with load_table")
    version = node.get("format-version").integer()
    if version > NEWEST_VIEW_FORMAT:
        raise UnsupportedError(
            f"{node.location}: format-version is {version}: the newest known of views is {NEWEST_VIEW_FORMAT}"
        )
    if version < 1:
        node.get("format-version").fail("there is no such version")
    view_uuid, properties = node.optional(_VIEW_UUID), node.optional("properties")
    is_draft = view_uuid is None
    schemas = list(node.get("schemas").items() if node.has("schemas") or not is_draft else ())
    versions = list(node.get("versions").items())
    check_unique_ids(((child, child.get("version-id").integer()) for child in versions), "version-id")
    metadata = ViewMetadata(
        view_uuid=None if view_uuid is None else view_uuid.uuid(),
        location=node.get("location").text(),
        schemas=tuple(schema_from_json(child.object(), child.location, child.path) for child in schemas),
        current_version_id=node.get("current-version-id").integer(),
        versions=tuple(view_version_from_json(_lifted(child, node) if is_draft else child) for child in versions),
        version_log=tuple(_log_entry(child) for child in node.get("version-log").items()),
        properties={} if properties is None else properties.texts(),
        unknown=_unknown(node, _VIEW_KEYS),
    )
    check_unique_ids(zip(schemas, (schema.schema_id for schema in metadata.schemas), strict=True), "schema-id")
    return metadata


def serialize_view_metadata(metadata: ViewMetadata) -> str:
    """Return the JSON of a metadata file, including keys that this library does not know."""
    document: dict[str, Any] = {"format-version": NEWEST_VIEW_FORMAT}
    if metadata.view_uuid is not None:
        document[_VIEW_UUID] = str(metadata.view_uuid)
    document |= {
        "location": metadata.location,
        "current-version-id": metadata.current_version_id,
        "versions": [view_version_to_json(version) for version in metadata.versions],
        "version-log": [
            {"timestamp-ms": entry.timestamp_ms, "version-id": entry.version_id} | dict(entry.unknown)
            for entry in metadata.version_log
        ],
        "schemas": [schema_to_json(schema) for schema in metadata.schemas],
    }
    if metadata.properties:
        document["properties"] = dict(metadata.properties)
    return json.dumps(document | dict(metadata.unknown))


def view_version_to_json(version: ViewVersion) -> dict[str, Any]:
    """Return the JSON object of a version."""
    document: dict[str, Any] = {
        "version-id": version.version_id,
        "timestamp-ms": version.timestamp_ms,
        "schema-id": version.schema_id,
        "summary": dict(version.summary),
        "default-namespace": list(version.default_namespace),
        "representations": [_representation_json(representation) for representation in version.representations],
    }
    if version.default_catalog is not None:
        document["default-catalog"] = version.default_catalog
    return document | dict(version.unknown)


def lifted_view(metadata: ViewMetadata, view_uuid: UUID) -> ViewMetadata:
    """Convert metadata of the view spec's first draft to the form of the spec, which writers need."""
    return replace(metadata, view_uuid=view_uuid, unknown=_without(metadata.unknown, {_CURRENT_SCHEMA_ID}))


def view_version_from_json(node: JsonNode) -> ViewVersion:
    """Return the version in a JSON object.

    Raises:
        CorruptFileError: A field is missing or invalid, or two queries have the same dialect.
    """
    default_catalog = node.optional("default-catalog")
    check_unique_ids(_dialects(node.get("representations")), "the dialect")
    return ViewVersion(
        version_id=node.get("version-id").integer(),
        schema_id=node.get("schema-id").integer(),
        timestamp_ms=node.get("timestamp-ms").integer(),
        summary=node.get("summary").texts(),
        representations=tuple(_representation(child) for child in node.get("representations").items()),
        default_namespace=tuple(name.text() for name in node.get("default-namespace").items()),
        default_catalog=None if default_catalog is None else default_catalog.text(),
        unknown=_unknown(node, _VERSION_KEYS),
    )


def _dialects(representations: JsonNode) -> Iterator[tuple[JsonNode, str]]:
    for node in representations.items():
        if node.get("type").text() == _SQL:
            yield node.get("dialect"), node.get("dialect").text().casefold()


def _lifted(version: JsonNode, view: JsonNode) -> JsonNode:
    """Return a version of the spec's first draft, completed with the keys of its first SQL representation.

    If neither has a schema id, it is the id of the only schema.
    """
    sql = (child for child in version.get("representations").items() if child.object().get("type") == _SQL)
    first_sql = next(sql, None)
    schemas = list(view.get("schemas").items()) if view.has("schemas") else []
    ids = [schema.object().get("schema-id", 0) for schema in schemas] or [0]
    only_id = ids[0] if len(ids) == 1 else None
    schema_id = view.object().get(_CURRENT_SCHEMA_ID, only_id)
    lifted: dict[str, Any] = {"default-namespace": [], "schema-id": schema_id}
    for key in ("schema-id", "default-catalog", "default-namespace"):
        if first_sql is not None and first_sql.has(key):
            lifted[key] = first_sql.value[key]
    return JsonNode(lifted | version.object(), version.location, version.path)


def _representation(node: JsonNode) -> SQLViewRepresentation | OtherRepresentation:
    kind = node.get("type").text()
    if kind != _SQL:
        return OtherRepresentation(kind, _unknown(node, {"type"}))
    unknown = _unknown(node, {"type", "sql", "dialect"})
    return SQLViewRepresentation(node.get("sql").text(), node.get("dialect").text(), unknown)


def _representation_json(representation: SQLViewRepresentation | OtherRepresentation) -> dict[str, Any]:
    document = {"type": representation.type}
    if isinstance(representation, SQLViewRepresentation):
        document |= {"sql": representation.sql, "dialect": representation.dialect}
    return document | dict(representation.unknown)


def _log_entry(node: JsonNode) -> ViewHistoryEntry:
    unknown = _unknown(node, {"timestamp-ms", "version-id"})
    return ViewHistoryEntry(node.get("timestamp-ms").integer(), node.get("version-id").integer(), unknown)


def _unknown(node: JsonNode, known: set[str]) -> dict[str, Any]:
    return _without(node.object(), known)


def _without(values: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


# -- Changes of view metadata -----------------------------------------------------------------------------------------
# Each function returns the metadata that one commit writes.


HISTORY_ENTRIES = "version.history.num-entries"
DROP_DIALECT_ALLOWED = "replace.drop-dialect.allowed"

_DEFAULT_ENTRIES = 10
_POSITIVE = re.compile(r"0*[1-9][0-9]{0,8}")
_FIRST_VERSION_ID = 1


def new_view(location: str, schema: Schema, version: ViewVersion, properties: Mapping[str, str]) -> ViewMetadata:
    """Make the metadata of a view with one version.

    Args:
        location: The view's location.
        schema: The schema of its rows. Its field ids are kept.
        version: The version, whose ids are assigned here.
        properties: The view's properties.

    Raises:
        ValidationError: The version has no query or two in a dialect, or a property has an invalid value.
        UnsupportedError: The version has a representation of another type than SQL.
    """
    empty = ViewMetadata(uuid.uuid4(), location, (), 0, (), (), {})
    return _with_version(_with_properties(empty, properties), schema, version)


def replace_view(
    base: ViewMetadata, schema: Schema, version: ViewVersion, properties: Mapping[str, str] | None = None
) -> ViewMetadata:
    """Make a version current, and add properties. The version is added unless the view has an equal one.

    Versions are equal if they differ at most in their ids and times. Old versions expire: the property
    `version.history.num-entries` says how many to keep.

    Raises:
        ValidationError: See `new_view`; or the version lacks a dialect of the current one, and the property
            `replace.drop-dialect.allowed` is not true.
        UnsupportedError: See `new_view`.
    """
    return _with_version(_with_properties(base, properties or {}), schema, version)


def roll_back_view(base: ViewMetadata, version_id: int, timestamp_ms: int) -> ViewMetadata:
    """Make an earlier version current again.

    Raises:
        ValidationError: The view does not have the version, or see `replace_view`.
    """
    if base.version_by_id(version_id) is None:
        ids = [version.version_id for version in base.versions]
        raise ValidationError(f"{base.location}: there is no version {version_id}, only {ids}")
    return _built(base, _with_current(base, version_id, timestamp_ms))


def set_view_properties(base: ViewMetadata, updates: Mapping[str, str], removals: Iterable[str] = ()) -> ViewMetadata:
    """Set and remove properties.

    Raises:
        ValidationError: A property has an invalid value.
    """
    removed_keys = set(removals)
    properties = {key: value for key, value in base.properties.items() if key not in removed_keys}
    return _built(base, _with_properties(replace(base, properties=properties), updates))


def same_definition(left: ViewVersion, right: ViewVersion) -> bool:
    """Return whether two versions differ at most in their ids and times."""
    return replace(left, version_id=0, timestamp_ms=0) == replace(right, version_id=0, timestamp_ms=0)


def same_columns(left: Schema, right: Schema) -> bool:
    """Return whether two schemas differ at most in their ids."""
    return left.fields == right.fields and set(left.identifier_field_ids) == set(right.identifier_field_ids)


def _with_properties(base: ViewMetadata, updates: Mapping[str, str]) -> ViewMetadata:
    refuse_invalid_retries(updates, _label(base))
    return replace(base, properties={**base.properties, **updates})


def _with_version(base: ViewMetadata, schema: Schema, version: ViewVersion) -> ViewMetadata:
    _check_representations(_label(base), version)
    instance_of(Schema).check(f"{base.location}: schema", schema)
    schema_id = next((existing.schema_id for existing in base.schemas if same_columns(existing, schema)), None)
    schemas = base.schemas
    if schema_id is None:
        schema_id = max((existing.schema_id for existing in schemas), default=-1) + 1
        schemas = (*schemas, schema_from_json(schema_to_json(schema) | {"schema-id": schema_id}))
    version = replace(version, schema_id=schema_id)
    version_id = next((existing.version_id for existing in base.versions if same_definition(existing, version)), None)
    versions = base.versions
    if version_id is None:
        version_id = max((existing.version_id for existing in versions), default=_FIRST_VERSION_ID - 1) + 1
        versions = (*versions, replace(version, version_id=version_id))
    extended = replace(base, schemas=schemas, versions=versions)
    return _built(base, _with_current(extended, version_id, version.timestamp_ms))


def _check_representations(location: str, version: ViewVersion) -> None:
    for representation in version.representations:
        if isinstance(representation, OtherRepresentation):
            raise UnsupportedError(
                f"{location}: a representation of type {shown(representation.type)} can't be written"
            )
    dialects = _version_dialects(version)
    if not dialects:
        raise ValidationError(f"{location}: a view needs a query: there is no SQL representation")
    if repeated := next((dialect for dialect in dialects if dialects.count(dialect) > 1), None):
        raise ValidationError(f"{location}: two queries have the dialect {shown(repeated)}")


def _label(metadata: ViewMetadata) -> str:
    """Return the view's location for error messages; a server chooses the location of a new view."""
    return metadata.location or "new view"


def _with_current(base: ViewMetadata, version_id: int, timestamp_ms: int) -> ViewMetadata:
    if version_id == base.current_version_id:
        return base
    entry = ViewHistoryEntry(timestamp_ms, version_id)
    return replace(base, current_version_id=version_id, version_log=(*base.version_log, entry))


def _built(base: ViewMetadata, new: ViewMetadata) -> ViewMetadata:
    _check_dropped_dialects(base, new)
    entries = _history_entries(new)
    expired = _without_old_versions(new, entries) if len(new.versions) > entries else new
    return expired if expired.view_uuid is not None else lifted_view(expired, uuid.uuid4())


def _check_dropped_dialects(base: ViewMetadata, new: ViewMetadata) -> None:
    if not base.versions or new.properties.get(DROP_DIALECT_ALLOWED, "").lower() == "true":
        return
    before, after = _version_dialects(base.current_version()), _version_dialects(new.current_version())
    if dropped := [dialect for dialect in before if dialect not in after]:
        raise ValidationError(
            f"{new.location}: version {new.current_version_id} lacks the dialects {dropped} of the current version: "
            f"add their queries, or set the property {DROP_DIALECT_ALLOWED} to true"
        )


def _version_dialects(version: ViewVersion) -> list[str]:
    return [sql.dialect.casefold() for sql in version.sql_representations]


def _history_entries(metadata: ViewMetadata) -> int:
    text = metadata.properties.get(HISTORY_ENTRIES, str(_DEFAULT_ENTRIES))
    if not _POSITIVE.fullmatch(text):
        raise ValidationError(
            f"{_label(metadata)}: the property {HISTORY_ENTRIES} is {shown(text)}: expected a positive whole number"
        )
    return int(text)


def _without_old_versions(metadata: ViewMetadata, entries: int) -> ViewMetadata:
    """Keep the current version and the ones with the highest ids, and the log after the last entry of a removed one."""
    current = metadata.current_version_id
    other_ids = sorted({version.version_id for version in metadata.versions} - {current}, reverse=True)
    ids = {current, *other_ids[: entries - 1]}
    return replace(
        metadata,
        versions=tuple(version for version in metadata.versions if version.version_id in ids),
        version_log=_unbroken(metadata.version_log, ids),
    )


def _unbroken(log: Sequence[ViewHistoryEntry], ids: Collection[int]) -> tuple[ViewHistoryEntry, ...]:
    last_gap = max((index for index, entry in enumerate(log) if entry.version_id not in ids), default=-1)
    return tuple(log[last_gap + 1 :])
