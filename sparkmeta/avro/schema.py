"""Resolve the writer's schema of a v1 to v3 manifest by field ids.

Names in a manifest are only informational, and Avro's encoding has no names. Every field is therefore renamed to its
id, `f<id>`. Logical types are removed: values are read as ints and bytes, and Arrow gives them their types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa

from sparkmeta.columns.bounds import day_units
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, METRICS_MAPS, PARTITION_FIELD_ID

MAX_DEPTH = 12

_KEPT = ("type", "name", "items", "values", "size")
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
_SMALLEST = {"null": 0, "float": 4, "double": 8}

Keep = Callable[[int], bool]


@dataclass(frozen=True)
class ManifestSchema:
    """The schema of a manifest's entries.

    Attributes:
        entry: the record schema with fields named by id.
        writer: fastavro's parsed form of it.
        fields: field ids of the entry.
        file_fields: field ids of data_file.
        partition_fields: field ids of the partition tuple.
        partition_ints: those of them with the Avro type int.
    """

    entry: dict[str, Any]
    writer: dict[str, Any]
    fields: frozenset[int]
    file_fields: frozenset[int]
    partition_fields: frozenset[int]
    partition_ints: frozenset[int]
    location: str

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
        return parse({**entry, "fields": fields}, self.location)


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
        location,
    )


def _is_int(kind: Any) -> bool:
    """Return whether a type is int, optionally null."""
    return [branch for branch in (kind if isinstance(kind, list) else [kind]) if branch != "null"] == ["int"]


def bytes_for_fixed(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema with partition fields of type fixed as bytes; None if there are none.

    Iceberg's Java library declares such fields as fixed, but writes and reads them with a length, like bytes. Decimals
    and UUIDs, which are fixed with a logical type, are written as declared.
    """

    def of_tuple(record: dict[str, Any]) -> dict[str, Any]:
        names: set[str] = set()
        return _with_types(record, lambda kind: _bytes_for_fixed(kind, names))

    other = _with_tuples(schema, of_tuple)
    return other if other != schema else None


def with_partition_ids(schema: dict[str, Any], ids: Mapping[int, int]) -> dict[str, Any]:
    """Return the schema of manifest entries with other ids of partition fields: id -> new id."""

    def of_tuple(record: dict[str, Any]) -> dict[str, Any]:
        fields = [
            {**field, "field-id": ids[field["field-id"]]}
            if isinstance(field, dict) and field.get("field-id") in ids
            else field
            for field in record.get("fields") or ()
        ]
        return {**record, "fields": fields}

    return _with_tuples(schema, of_tuple)


def _with_tuples(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of manifest entries with a changed record of partition fields."""

    def of_file(record: dict[str, Any]) -> dict[str, Any]:
        return _with_types(record, lambda kind: _map_record(kind, change), PARTITION_FIELD_ID)

    return _with_types(schema, lambda kind: _map_record(kind, of_file), DATA_FILE_FIELD_ID)


def _bytes_for_fixed(kind: Any, names: set[str]) -> Any:
    """Return a type with fixed types as bytes.

    Args:
        names: names of fixed types so far, by which later fields may refer to them. New ones are added.
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
    attributes = {key: schema[key] for key in _KEPT if key in schema}
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


def _named_once(schema: Any, known: set[str]) -> Any:
    if isinstance(schema, list):
        branches = [_named_once(branch, known) for branch in schema]
        return "null" if branches == ["null", "null"] else branches
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "fixed":
        if schema["name"] in known:
            return schema["name"]
        known.add(schema["name"])
    named = {key: value for key, value in schema.items() if key not in _NESTED}
    for key in _NESTED:
        if key in schema:
            value = schema[key]
            named[key] = [_named_once(f, known) for f in value] if key == "fields" else _named_once(value, known)
    return named


_NESTED = ("type", "items", "values", "fields")


def smallest_size(kind: Any, sizes: Mapping[str, int]) -> int:
    """Return the least size of a value in bytes, given the sizes of fixed types by name."""
    if isinstance(kind, list):
        return 1 + min((smallest_size(branch, sizes) for branch in kind), default=0)
    if not isinstance(kind, dict):
        return sizes.get(kind) or _SMALLEST.get(kind, 1)
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
    """Raise CorruptFileError for an array whose items take no bytes, of which a few bytes could claim any number."""
    if isinstance(schema, dict) and schema.get("type") == "array" and not smallest_size(schema["items"], sizes):
        raise CorruptFileError(location, "avro.schema", schema["items"], "an array of nothing has no end")
    for part in _parts(schema):
        _check_items(part, sizes, location)


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
