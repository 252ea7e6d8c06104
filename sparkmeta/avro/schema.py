"""Resolve writers' schemas of manifests by field ids, and make them canonical, with all types written out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.bounds import day_units
from sparkmeta.spec.entry import (
    DATA_FILE_FIELD_ID,
    ENTRY_NAMES,
    FILE_NAMES,
    LIST_NAMES,
    METRICS_MAPS,
    PARTITION_FIELD_ID,
    PARTITION_SUMMARIES_ID,
    SUMMARY_NAMES,
)

# -- Resolve a manifest's schema by field ids -------------------------------------------------------------------------
# Names in a manifest are only informational, and Avro's encoding has no names. Every field is therefore renamed to its
# id, `f<id>`. Logical types are removed: values are read as ints and bytes, and Arrow gives them their types.


MAX_DEPTH = 12

_ATTRIBUTES = ("type", "name", "items", "values", "size")
ARROW_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
"""The Arrow types of Avro's primitive types."""
_SMALLEST_SIZES = {"null": 0, "float": 4, "double": 8}

Keep = Callable[[int], bool]


@dataclass(frozen=True, eq=False)
class ManifestSchema:
    """The schema of a manifest's entries. Manifests with the same schema share it.

    Attributes:
        entry: the record schema with fields named by id.
        writer: fastavro's parsed form of it.
        fields: field ids of the entry.
        file_fields: field ids of data_file.
        partition_fields: field ids of the partition tuple.
        partition_ints: ids of partition fields with the Avro type int.
    """

    entry: dict[str, Any]
    writer: dict[str, Any]
    fields: frozenset[int]
    file_fields: frozenset[int]
    partition_fields: frozenset[int]
    partition_ints: frozenset[int]

    def holds_days(self, field_id: int, type_name: str) -> bool:
        """Return whether values of a partition field are dates from before their promotion to its type.

        Avro's dates are ints, and timestamps are longs.
        """
        return field_id in self.partition_ints and day_units(type_name) is not None

    def projected(self, keep: Keep, keep_partition: Keep) -> dict[str, Any]:
        """Return a reader schema with the fields of the entry and data_file that `keep` selects.

        Partition fields are selected by `keep_partition`.
        """

        def prune(record: dict[str, Any], test: Keep) -> dict[str, Any]:
            return {**record, "fields": [field for field in record["fields"] if test(field_id_of(field))]}

        def prune_file(record: dict[str, Any]) -> dict[str, Any]:
            pruned = prune(record, lambda field_id: keep(field_id) or field_id == PARTITION_FIELD_ID)
            fields = []
            for field in pruned["fields"]:
                if field_id_of(field) != PARTITION_FIELD_ID:
                    fields.append(field)
                elif self.partition_fields and any(map(keep_partition, self.partition_fields)):
                    fields.append({**field, "type": _map_record(field["type"], lambda r: prune(r, keep_partition))})
            return {**pruned, "fields": fields}

        entry = prune(self.entry, lambda field_id: keep(field_id) or field_id == DATA_FILE_FIELD_ID)
        fields = [
            field
            if field_id_of(field) != DATA_FILE_FIELD_ID
            else {**field, "type": _map_record(field["type"], prune_file)}
            for field in entry["fields"]
        ]
        return parse({**entry, "fields": fields}, "")


def manifest_schema(schema: dict[str, Any], location: str) -> ManifestSchema:
    """Resolve the schema of manifest entries by field ids.

    Raises:
        CorruptFileError: a field without an id, nesting deeper than `MAX_DEPTH`, no data_file, or not an Avro schema.
    """
    entry = by_field_ids(schema, location)
    file_record = record_of(entry, DATA_FILE_FIELD_ID, location)
    if file_record is None:
        raise CorruptFileError(location, "avro.schema", "data_file", "field 2 (data_file) is not a record")
    partition = record_of(file_record, PARTITION_FIELD_ID, location)
    partition_fields = partition["fields"] if partition else []
    for field in file_record["fields"]:
        field_id = field_id_of(field)
        if field_id in METRICS_MAPS and not _is_metrics_map(field["type"]):
            raise CorruptFileError(location, "avro.schema", METRICS_MAPS[field_id][0], "not a map of int keys")
    return ManifestSchema(
        entry,
        parse(entry, location),
        frozenset(map(field_id_of, entry["fields"])),
        frozenset(map(field_id_of, file_record["fields"])),
        frozenset(map(field_id_of, partition_fields)),
        frozenset(field_id_of(field) for field in partition_fields if _is_int(field["type"])),
    )


def _is_int(kind: Any) -> bool:
    """Return whether a type is int, optionally null."""
    return [branch for branch in (kind if isinstance(kind, list) else [kind]) if branch != "null"] == ["int"]


def bytes_for_fixed(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema with partition fields of type fixed as bytes; None if there are none.

    Iceberg's Java library declares such fields as fixed, but writes and reads them with a length, like bytes. Decimals
    and UUIDs, which are fixed with a logical type, are encoded as declared.
    """

    def change_tuple(record: dict[str, Any]) -> dict[str, Any]:
        names: set[str] = set()
        return _with_types(record, lambda kind: _bytes_for_fixed(kind, names))

    changed_schema = _with_tuples(schema, change_tuple)
    return changed_schema if changed_schema != schema else None


def with_partition_ids(schema: dict[str, Any], ids: Mapping[int, int]) -> dict[str, Any]:
    """Return the schema of manifest entries with partition field ids replaced: id -> new id."""

    def change_tuple(record: dict[str, Any]) -> dict[str, Any]:
        fields = [
            {**field, "field-id": ids[field["field-id"]]}
            if isinstance(field, dict) and field.get("field-id") in ids
            else field
            for field in record.get("fields") or ()
        ]
        return {**record, "fields": fields}

    return _with_tuples(schema, change_tuple)


def _with_tuples(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of manifest entries with a changed record of partition fields."""

    def change_file(record: dict[str, Any]) -> dict[str, Any]:
        return _with_types(record, lambda kind: _map_record(kind, change), PARTITION_FIELD_ID)

    return _with_types(schema, lambda kind: _map_record(kind, change_file), DATA_FILE_FIELD_ID)


def _bytes_for_fixed(kind: Any, names: set[str]) -> Any:
    """Return a type with fixed types as bytes.

    Args:
        names: names of fixed types so far, since later fields may refer to them. New names are added.
    """
    if isinstance(kind, list):
        return [_bytes_for_fixed(branch, names) for branch in kind]
    if isinstance(kind, dict) and kind.get("type") == "fixed" and "logicalType" not in kind:
        names.add(str(kind.get("name")))
        return "bytes"
    return "bytes" if isinstance(kind, str) and kind in names else kind


def _with_types(record: dict[str, Any], change: Callable[[Any], Any], field_id: int | None = None) -> dict[str, Any]:
    """Return a record schema with changed types of its fields, or of the field with an id."""
    fields = [
        {**field, "type": change(field.get("type"))} if field_id in (None, field.get("field-id")) else field
        for field in record.get("fields") or ()
        if isinstance(field, dict)
    ]
    return {**record, "fields": fields}


def by_field_ids(schema: dict[str, Any], location: str) -> dict[str, Any]:
    """Return a record schema with fields named `f<field id>`, `k` and `v` in map records, without logical types."""
    if schema.get("type") != "record":
        raise CorruptFileError(location, "avro.schema", schema.get("type"), "not a record schema")
    renamed: dict[str, Any] = _rename(schema, location, 0)
    sizes = fixed_sizes(renamed)
    _check_references(renamed, sizes.keys(), location)
    _check_items(renamed, sizes, location)
    return renamed


def parse(schema: dict[str, Any], location: str) -> dict[str, Any]:
    """Return fastavro's parsed form of a schema. Raises CorruptFileError if it is invalid."""
    try:
        parsed = fastavro.parse_schema(schema)
    except Exception as error:
        raise CorruptFileError(location, "avro.schema", type(error).__name__, str(error)[:200]) from error
    assert isinstance(parsed, dict)
    return parsed


def _rename(schema: Any, location: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise CorruptFileError(location, "avro.schema", depth, "nested too deep")
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return [_rename(branch, location, depth + 1) for branch in schema]
    if not isinstance(schema, dict):
        raise CorruptFileError(location, "avro.schema", schema, "not an Avro schema")
    attributes = {key: schema[key] for key in _ATTRIBUTES if key in schema}
    kind = schema.get("type")
    if kind == "record":
        return {**attributes, "fields": _rename_fields(schema, location, depth)}
    if kind == "array":
        return {**attributes, "items": _rename_items(schema.get("items"), location, depth)}
    if kind == "map":
        return {**attributes, "values": _rename(schema.get("values"), location, depth + 1)}
    if kind == "fixed" and not (isinstance(schema.get("size"), int) and schema["size"] > 0):
        raise CorruptFileError(location, "avro.schema", schema.get("size"), "a fixed type needs a positive size")
    if isinstance(kind, (dict, list)):
        return _rename(kind, location, depth + 1)
    # Enums are encoded like ints.
    return {"fixed": attributes, "enum": "int"}.get(str(kind), kind)


def _rename_fields(record: dict[str, Any], location: str, depth: int) -> list[dict[str, Any]]:
    fields = _fields(record, location)
    renamed = []
    for field in fields:
        field_id = field.get("field-id")
        if not isinstance(field_id, int):
            raise CorruptFileError(location, "avro.schema", field.get("name"), "the field has no field-id")
        renamed.append({"name": f"f{field_id}", "type": _rename(field.get("type"), location, depth + 1)})
    if len({field["name"] for field in renamed}) != len(renamed):
        raise CorruptFileError(location, "avro.schema", record.get("name"), "two fields have one field-id")
    return renamed


def _rename_items(items: Any, location: str, depth: int) -> Any:
    """Rename the items of an array. A map with int keys is an array of records with fields named key and value."""
    if isinstance(items, dict) and items.get("type") == "record":
        fields = _fields(items, location)
        if [field.get("name") for field in fields] == ["key", "value"]:
            pair = [
                {"name": name, "type": _rename(field.get("type"), location, depth + 2)}
                for name, field in zip(("k", "v"), fields, strict=True)
            ]
            return {"type": "record", "name": items.get("name"), "fields": pair}
    return _rename(items, location, depth + 1)


def fixed_sizes(schema: Any) -> dict[str, int]:
    """Return the sizes of fixed types in a schema of `by_field_ids`, by name."""
    sizes: dict[str, int] = {}
    for part in _parts(schema):
        if isinstance(part, dict) and part.get("type") == "fixed":
            sizes[str(part.get("name"))] = part["size"]
        sizes |= fixed_sizes(part)
    return {name: size for name, size in sizes.items() if name not in ARROW_PRIMITIVES}


def named_once(schema: Any) -> Any:
    """Return a valid Avro schema: fixed types are defined once and then named, and a union of nulls is null."""
    return _named_once(schema, set())


def _named_once(schema: Any, defined: set[str]) -> Any:
    if isinstance(schema, list):
        branches = [_named_once(branch, defined) for branch in schema]
        return "null" if branches == ["null", "null"] else branches
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "fixed":
        if schema["name"] in defined:
            return schema["name"]
        defined.add(schema["name"])
    result = {key: value for key, value in schema.items() if key not in _NESTED}
    for key in _NESTED:
        if key in schema:
            value = schema[key]
            result[key] = [_named_once(f, defined) for f in value] if key == "fields" else _named_once(value, defined)
    return result


_NESTED = ("type", "items", "values", "fields")


def smallest_size(kind: Any, sizes: Mapping[str, int]) -> int:
    """Return the least size of a value in bytes, given the sizes of fixed types by name."""
    if isinstance(kind, list):
        return 1 + min((smallest_size(branch, sizes) for branch in kind), default=0)
    if not isinstance(kind, dict):
        return sizes.get(kind) or _SMALLEST_SIZES.get(kind, 1)
    if kind["type"] == "record":
        return sum(smallest_size(field["type"], sizes) for field in kind["fields"])
    return int(kind["size"]) if kind["type"] == "fixed" else 1


def _check_references(schema: Any, fixed: Collection[str], location: str) -> None:
    """Raise CorruptFileError for a reference to another type than a fixed one, which could be recursive."""
    for part in _parts(schema):
        if isinstance(part, str) and part not in ARROW_PRIMITIVES and part not in fixed:
            raise CorruptFileError(location, "avro.schema", part, "not a type")
        _check_references(part, fixed, location)


def _check_items(schema: Any, sizes: Mapping[str, int], location: str) -> None:
    """Raise CorruptFileError for an array whose items take no bytes: a few bytes could claim any number of items."""
    if isinstance(schema, dict) and schema.get("type") == "array" and not smallest_size(schema["items"], sizes):
        raise CorruptFileError(location, "avro.schema", schema["items"], "an array of nothing has no end")
    for part in _parts(schema):
        _check_items(part, sizes, location)


def refuse_unions(schema: Any, location: str) -> None:
    """Raise UnsupportedError for a union of several types: fastavro may encode a value as another one of them."""
    if isinstance(schema, list) and sum(branch != "null" for branch in schema) > 1:
        raise UnsupportedError(f"{location}: a field of entries is a union of several types, and can't be copied")
    for part in _parts(schema):
        refuse_unions(part, location)


def _parts(schema: Any) -> list[Any]:
    """Return the types that a type consists of."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    return [
        *(field["type"] for field in schema.get("fields", [])),
        *(schema[k] for k in ("items", "values") if k in schema),
    ]


def _fields(record: dict[str, Any], location: str) -> list[dict[str, Any]]:
    fields = record.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise CorruptFileError(location, "avro.schema", record.get("name"), "a record without fields")
    return fields


def field_id_of(field: dict[str, Any]) -> int:
    """Return the id of a field that `by_field_ids` has renamed."""
    return int(field["name"][1:])


def _is_metrics_map(kind: Any) -> bool:
    """Return whether a type is an array of pairs with an int key or an Avro map, optionally null."""
    branches = [branch for branch in (kind if isinstance(kind, list) else [kind]) if branch != "null"]
    if len(branches) != 1 or not isinstance(branches[0], dict):
        return False
    items = branches[0].get("items")
    if not isinstance(items, dict) or items.get("type") != "record":
        return "values" in branches[0]
    return [(field["name"], field["type"]) for field in items["fields"][:1]] == [("k", "int")]


def record_of(record: Mapping[str, Any], field_id: int, location: str) -> dict[str, Any] | None:
    """Return the record type of a field; None if there is no such field.

    Raises:
        CorruptFileError: the field is not a record.
    """
    for field in record["fields"]:
        if field_id_of(field) == field_id:
            kind = field["type"]
            branches = kind if isinstance(kind, list) else [kind]
            records = [branch for branch in branches if isinstance(branch, dict) and branch.get("type") == "record"]
            if len(records) != 1:
                raise CorruptFileError(location, "avro.schema", field_id, "the field is not a record")
            nested: dict[str, Any] = records[0]
            return nested
    return None


def _map_record(kind: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(kind, list):
        return [_map_record(branch, change) for branch in kind]
    return change(kind) if isinstance(kind, dict) and kind.get("type") == "record" else kind


# -- Canonical schemas ------------------------------------------------------------------------------------------------
# Avro lets a schema name a type once and refer to it later, in namespaces and by aliases, and some writers define a
# name again. Iceberg's fields have ids, but Java's library finds the fields of a schema without ids by their names.
# Decoders get a schema in which each type is written out where it is used.


# Field id (None for the file's record) -> the ids of the fields in its record, by name.
FieldNames = Mapping[int | None, Mapping[str, int]]

LIST_FIELDS: FieldNames = {None: LIST_NAMES, PARTITION_SUMMARIES_ID: SUMMARY_NAMES}
"""The fields of a manifest list."""

_NAMED = ("record", "error", "fixed", "enum")
_MAX_EXPANDED_DEPTH = 64
# Maximum types in a schema. Each reference counts as the types that it expands to.
_MAX_TYPES = 200_000
# Fields with neither an id nor a known name get ids from this number on, which no field of Iceberg has.
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
    """Return a schema with every named type written out where it is used, under a unique name.

    Raises:
        CorruptFileError: see `canonical_schema`.
    """
    while isinstance(schema.get("type"), dict):
        schema = schema["type"]
    expanded = _Expansion(location).of(schema, "", 0)
    assert isinstance(expanded, dict)
    return expanded


class _Expansion:
    """The expansion of a schema's types, in the order in which they are written."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._types = 0
        self._defined: dict[str, dict[str, Any] | None] = {}

    def of(self, schema: Any, space: str, depth: int) -> Any:
        """Return a type with its names resolved in a namespace."""
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
        name, namespace = str(schema.get("name")), schema.get("namespace")
        space = namespace if isinstance(namespace, str) else space
        if "." in name:
            space = name.rpartition(".")[0]
        aliases = schema.get("aliases")
        names = [_full(str(alias), space) for alias in (name, *(aliases if isinstance(aliases, list) else ()))]
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
        for full_name in (_full(name, space), name):
            if full_name in self._defined:
                definition = self._defined[full_name]
                if definition is None:
                    raise CorruptFileError(self._location, "avro.schema", name, "a type that contains itself")
                return self._copied(definition)
        raise CorruptFileError(self._location, "avro.schema", name, "not a type")

    def _copied(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self._copied(item) for item in part]
        if not isinstance(part, dict):
            return part
        self._count(0)
        copy = {key: self._copied(value) for key, value in part.items()}
        return {**copy, "name": self._new_name()} if part.get("type") in _NAMED else copy

    def _new_name(self) -> str:
        return f"t{self._types}"

    def _count(self, depth: int) -> None:
        self._types += 1
        if depth > _MAX_EXPANDED_DEPTH or self._types > _MAX_TYPES:
            raise CorruptFileError(self._location, "avro.schema", self._types, "its types are nested too deeply")


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _has_fields(record: dict[str, Any]) -> bool:
    fields = record.get("fields")
    return isinstance(fields, list) and all(isinstance(field, dict) for field in fields)


def _with_ids(kind: Any, parent: int | None, names: FieldNames, new_ids: Iterator[int]) -> Any:
    """Return the type of a field with the id `parent`, with ids of the fields in it."""
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
    fields: list[dict[str, Any]], ids_by_name: Mapping[str, int], names: FieldNames, new_ids: Iterator[int]
) -> list[dict[str, Any]]:
    numbers = [_number(field.get("field-id")) for field in fields]
    used_ids, result = set(numbers), []
    for field, number in zip(fields, numbers, strict=True):
        field_id = number
        if field_id is None:
            by_name = ids_by_name.get(str(field.get("name")))
            field_id = next(new_ids) if by_name is None or by_name in used_ids else by_name
            used_ids.add(field_id)
        result.append({**field, "field-id": field_id, "type": _with_ids(field.get("type"), field_id, names, new_ids)})
    return result


def _number(field_id: Any) -> int | None:
    """Return a field's id, which some writers store as text."""
    if isinstance(field_id, str) and field_id.isascii() and field_id.isdigit():
        return int(field_id)
    return field_id if isinstance(field_id, int) else None


def _pair(items: Any) -> Any:
    """Return the items of a map that is written as an array with the usual names of a key and a value."""
    if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != 2:
        return items
    fields = [{**field, "name": name} for name, field in zip(("key", "value"), items["fields"], strict=True)]
    return {**items, "fields": fields}
