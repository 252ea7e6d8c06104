"""Make a writer's schema canonical: every type is written out in its place, and every field has an id.

Avro lets a schema name a type once and refer to it later, in namespaces and by aliases, and some writers define a name
again. Iceberg's fields have ids, but Java's library finds the fields of a schema without ids by their names. Decoders
get the schema as each place means it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from sparkmeta.avro.schema import ARROW_PRIMITIVES
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import (
    DATA_FILE_FIELD_ID,
    ENTRY_NAMES,
    FILE_NAMES,
    LIST_NAMES,
    PARTITION_FIELD_ID,
    PARTITION_SUMMARIES_ID,
    SUMMARY_NAMES,
)

# Id of a field, None for the file's record -> name -> id of the fields of its record.
FieldNames = Mapping[int | None, Mapping[str, int]]

LIST_FIELDS: FieldNames = {None: LIST_NAMES, PARTITION_SUMMARIES_ID: SUMMARY_NAMES}
"""The fields of a manifest list."""

_NAMED = ("record", "error", "fixed", "enum")
_DEEPEST = 64
# Most types in a schema, in which each reference counts as the types that it stands for.
_MOST_TYPES = 200_000
# Fields that neither have an id nor a known name get ids from here on, which no field of Iceberg has.
_WITHOUT_ID = 1 << 31


def manifest_fields(partition: Mapping[str, int]) -> FieldNames:
    """Return the fields of a manifest, given the names and ids of its partition fields."""
    return {None: ENTRY_NAMES, DATA_FILE_FIELD_ID: FILE_NAMES, PARTITION_FIELD_ID: partition}


def canonical_schema(schema: dict[str, Any], location: str, names: FieldNames) -> dict[str, Any]:
    """Return a record schema without references to named types, in which every field has an id.

    Args:
        schema: the writer's schema.
        location: the file, for errors.
        names: the ids of fields that have none in the schema.

    Raises:
        CorruptFileError: a reference to a type that is not defined before, a type that contains itself, or more types
            than any manifest has.
    """
    expanded = expanded_schema(schema, location)
    filled = _with_ids(expanded, None, names, itertools.count(_WITHOUT_ID))
    assert isinstance(filled, dict)
    return filled


def expanded_schema(schema: dict[str, Any], location: str) -> dict[str, Any]:
    """Return a schema with every named type written out where it is used, under a name of its own.

    Raises:
        CorruptFileError: see `canonical_schema`.
    """
    while isinstance(schema.get("type"), dict):
        schema = schema["type"]
    expanded = _Expansion(location).of(schema, "", 0)
    assert isinstance(expanded, dict)
    return expanded


class _Expansion:
    """Expands the types of a schema in the order in which they are written."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._types = 0
        self._defined: dict[str, dict[str, Any] | None] = {}

    def of(self, schema: Any, space: str, depth: int) -> Any:
        """Return a type as it is meant in a namespace."""
        self._count(depth)
        if isinstance(schema, str):
            return schema if schema in ARROW_PRIMITIVES else self._referenced(schema, space)
        if isinstance(schema, list):
            return [self.of(branch, space, depth + 1) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in _NAMED:
            return self._definition(schema, space, depth)
        if isinstance(kind, dict | list):
            return {**schema, "type": self.of(kind, space, depth + 1)}
        if isinstance(kind, str) and kind not in (*ARROW_PRIMITIVES, "array", "map"):
            return self._referenced(kind, space)
        parts = {key: self.of(schema[key], space, depth + 1) for key in ("items", "values") if key in schema}
        return {**schema, **parts}

    def _definition(self, schema: dict[str, Any], space: str, depth: int) -> dict[str, Any]:
        name, written = str(schema.get("name")), schema.get("namespace")
        space = written if isinstance(written, str) else space
        if "." in name:
            space = name.rpartition(".")[0]
        aliases = schema.get("aliases")
        names = [_full(str(each), space) for each in (name, *(aliases if isinstance(aliases, list) else ()))]
        self._defined |= dict.fromkeys(names)
        kind = "record" if schema["type"] == "error" else schema["type"]
        definition = {**schema, "type": kind, "name": self._new_name()}
        if kind == "record":
            if not _has_fields(schema):
                raise CorruptFileError(self._location, "avro.schema", name, "a record without fields")
            definition["fields"] = [
                {**field, "type": self.of(field.get("type"), space, depth + 1)} for field in schema["fields"]
            ]
        self._defined |= dict.fromkeys(names, definition)
        return definition

    def _referenced(self, name: str, space: str) -> Any:
        """Return a copy of the type that was last defined by a name."""
        for full in (_full(name, space), name):
            if full in self._defined:
                definition = self._defined[full]
                if definition is None:
                    raise CorruptFileError(self._location, "avro.schema", name, "a type that contains itself")
                return self._copied(definition)
        raise CorruptFileError(self._location, "avro.schema", name, "not a type")

    def _copied(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self._copied(each) for each in part]
        if not isinstance(part, dict):
            return part
        self._count(0)
        copy = {key: self._copied(value) for key, value in part.items()}
        return {**copy, "name": self._new_name()} if part.get("type") in _NAMED else copy

    def _new_name(self) -> str:
        return f"t{self._types}"

    def _count(self, depth: int) -> None:
        self._types += 1
        if depth > _DEEPEST or self._types > _MOST_TYPES:
            raise CorruptFileError(self._location, "avro.schema", self._types, "its types are nested too deeply")


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _has_fields(record: dict[str, Any]) -> bool:
    fields = record.get("fields")
    return isinstance(fields, list) and all(isinstance(field, dict) for field in fields)


def _with_ids(kind: Any, parent: int | None, names: FieldNames, new_ids: Iterator[int]) -> Any:
    """Return a type with ids of fields, those of a field whose id is `parent`."""
    if isinstance(kind, list):
        return [_with_ids(branch, parent, names, new_ids) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    if kind.get("type") == "record":
        return {**kind, "fields": _fields_with_ids(kind["fields"], names.get(parent, {}), names, new_ids)}
    parts = {key: _with_ids(kind[key], parent, names, new_ids) for key in ("items", "values") if key in kind}
    if isinstance(kind.get("type"), dict | list):
        parts["type"] = _with_ids(kind["type"], parent, names, new_ids)
    if "items" in parts and kind.get("logicalType") == "map":
        parts["items"] = _pair(parts["items"])
    return {**kind, **parts}


def _fields_with_ids(
    fields: list[dict[str, Any]], known: Mapping[str, int], names: FieldNames, new_ids: Iterator[int]
) -> list[dict[str, Any]]:
    written = [_number(field.get("field-id")) for field in fields]
    taken, result = set(written), []
    for field, number in zip(fields, written, strict=True):
        field_id = number
        if field_id is None:
            by_name = known.get(str(field.get("name")))
            field_id = next(new_ids) if by_name is None or by_name in taken else by_name
            taken.add(field_id)
        result.append({**field, "field-id": field_id, "type": _with_ids(field.get("type"), field_id, names, new_ids)})
    return result


def _number(field_id: Any) -> int | None:
    """Return a field's id, which some writers make a text."""
    if isinstance(field_id, str) and field_id.isascii() and field_id.isdigit():
        return int(field_id)
    return field_id if isinstance(field_id, int) else None


def _pair(items: Any) -> Any:
    """Return the items of a map that is written as an array with the usual names of a key and a value."""
    if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != 2:
        return items
    fields = [{**field, "name": name} for name, field in zip(("key", "value"), items["fields"], strict=True)]
    return {**items, "fields": fields}
