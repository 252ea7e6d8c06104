"""Change view metadata by the rules of Iceberg's Java library: new versions, rollback, properties, expiry.

Each function returns the metadata that one commit writes.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from sparkmeta.checks import instance_of
from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.spec.retries import refuse_invalid_retries
from sparkmeta.spec.schema import schema_from_json, schema_to_json
from sparkmeta.spec.view_metadata import OtherRepresentation, ViewHistoryEntry, ViewMetadata, lifted_view

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sparkmeta.spec.view_metadata import ViewVersion

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
    """Make a version current, a new one unless the view has an equal one, and add properties.

    Versions are equal if they differ in their ids and times at most. Old versions expire: the property
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
    removed = set(removals)
    properties = {key: value for key, value in base.properties.items() if key not in removed}
    return _built(base, _with_properties(replace(base, properties=properties), updates))


def same_definition(left: ViewVersion, right: ViewVersion) -> bool:
    """Return whether two versions differ in their ids and times at most."""
    return replace(left, version_id=0, timestamp_ms=0) == replace(right, version_id=0, timestamp_ms=0)


def same_columns(left: Schema, right: Schema) -> bool:
    """Return whether two schemas differ in their ids at most."""
    return left.fields == right.fields and set(left.identifier_field_ids) == set(right.identifier_field_ids)


def _with_properties(base: ViewMetadata, updates: Mapping[str, str]) -> ViewMetadata:
    refuse_invalid_retries(updates, _place(base))
    return replace(base, properties={**base.properties, **updates})


def _with_version(base: ViewMetadata, schema: Schema, version: ViewVersion) -> ViewMetadata:
    _check_representations(_place(base), version)
    instance_of(Schema).check(f"{base.location}: schema", schema)
    schema_id = next((known.schema_id for known in base.schemas if same_columns(known, schema)), None)
    schemas = base.schemas
    if schema_id is None:
        schema_id = max((known.schema_id for known in schemas), default=-1) + 1
        schemas = (*schemas, schema_from_json(schema_to_json(schema) | {"schema-id": schema_id}))
    version = replace(version, schema_id=schema_id)
    version_id = next((known.version_id for known in base.versions if same_definition(known, version)), None)
    versions = base.versions
    if version_id is None:
        version_id = max((known.version_id for known in versions), default=_FIRST_VERSION_ID - 1) + 1
        versions = (*versions, replace(version, version_id=version_id))
    changed = replace(base, schemas=schemas, versions=versions)
    return _built(base, _with_current(changed, version_id, version.timestamp_ms))


def _check_representations(location: str, version: ViewVersion) -> None:
    for representation in version.representations:
        if isinstance(representation, OtherRepresentation):
            raise UnsupportedError(
                f"{location}: a representation of type {shown(representation.type)} can't be written"
            )
    dialects = _dialects(version)
    if not dialects:
        raise ValidationError(f"{location}: a view needs a query: there is no SQL representation")
    if repeated := next((dialect for dialect in dialects if dialects.count(dialect) > 1), None):
        raise ValidationError(f"{location}: two queries have the dialect {shown(repeated)}")


def _place(metadata: ViewMetadata) -> str:
    """Return the view's location for error messages; servers choose those of new views."""
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
    before, after = _dialects(base.current_version()), _dialects(new.current_version())
    if dropped := [dialect for dialect in before if dialect not in after]:
        raise ValidationError(
            f"{new.location}: version {new.current_version_id} lacks the dialects {dropped} of the current version: "
            f"add their queries, or set the property {DROP_DIALECT_ALLOWED} to true"
        )


def _dialects(version: ViewVersion) -> list[str]:
    return [sql.dialect.casefold() for sql in version.sql_representations]


def _history_entries(metadata: ViewMetadata) -> int:
    text = metadata.properties.get(HISTORY_ENTRIES, str(_DEFAULT_ENTRIES))
    if not _POSITIVE.fullmatch(text):
        raise ValidationError(
            f"{_place(metadata)}: the property {HISTORY_ENTRIES} is {shown(text)}: expected a positive whole number"
        )
    return int(text)


def _without_old_versions(metadata: ViewMetadata, entries: int) -> ViewMetadata:
    """Keep the current version and those with the highest ids, and the log after the last entry of another one."""
    current = metadata.current_version_id
    others = sorted({version.version_id for version in metadata.versions} - {current}, reverse=True)
    ids = {current, *others[: entries - 1]}
    return replace(
        metadata,
        versions=tuple(version for version in metadata.versions if version.version_id in ids),
        version_log=_unbroken(metadata.version_log, ids),
    )


def _unbroken(log: Sequence[ViewHistoryEntry], ids: Collection[int]) -> tuple[ViewHistoryEntry, ...]:
    last_gap = max((place for place, entry in enumerate(log) if entry.version_id not in ids), default=-1)
    return tuple(log[last_gap + 1 :])
