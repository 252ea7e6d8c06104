"""Read and write schemas without loss, with all types of the table spec (table spec, Appendix C).

pyiceberg's own JSON codec lacks variants and the defaults of nanosecond timestamps, and expects quotes around a
geometry's CRS.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field
from pyiceberg import types as t
from pyiceberg.conversions import from_json, to_json
from pyiceberg.schema import Schema
from pyiceberg.utils.datetime import timestamp_to_nanos, timestamptz_to_nanos, to_human_timestamp

from sparkmeta.errors import first_line
from sparkmeta.spec.iso_times import iso_date, iso_days, iso_nanos, iso_timestamp
from sparkmeta.spec.json_node import JsonNode, KeepsJson, check_unique_ids
from sparkmeta.spec.partitioning import partition_spec_from_json, partition_type, spec_partition_type

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyiceberg.typedef import TableVersion

__all__ = [
    "TableSchema",
    "VariantType",
    "id_of_column",
    "list_of",
    "partition_spec_from_json",
    "partition_type",
    "path_to",
    "pruned",
    "schema_from_json",
    "schema_to_json",
    "spec_partition_type",
    "type_from_json",
    "type_to_json",
]


class VariantType(t.PrimitiveType):
    """The type of semi-structured values, from format version 3 on. Planning does not use its bounds."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        return 3


class TableSchema(KeepsJson, Schema):
    """A schema that keeps its JSON object."""


_TYPES: dict[str, t.PrimitiveType] = {
    str(kind): kind
    for kind in (
        t.BooleanType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType(), t.DateType(), t.TimeType(),
        t.TimestampType(), t.TimestamptzType(), t.TimestampNanoType(), t.TimestamptzNanoType(), t.StringType(),
        t.UUIDType(), t.BinaryType(), t.UnknownType(), VariantType(),
    )
}  # fmt: skip
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_GEOMETRY = re.compile(r"geometry\s*(?:\(\s*([^)]*?)\s*\))?", re.IGNORECASE)
_GEOGRAPHY = re.compile(r"geography\s*(?:\(\s*([^,)]*?)\s*(?:,\s*(\w*)\s*)?\))?", re.IGNORECASE)

_NANOS = t.TimestampNanoType | t.TimestamptzNanoType
_DATES = t.DateType | t.TimestampType | t.TimestamptzType
# The first characters of years that Python's dates do not have.
_FAR_YEARS = ("+", "-", "0000")
_NESTED = t.StructType | t.ListType | t.MapType
# Types whose defaults must be null.
_WITHOUT_DEFAULT = t.GeometryType | t.GeographyType | t.UnknownType | VariantType
_MAX_DEPTH = 64


def schema_from_json(data: Mapping[str, Any], location: str = "schema", path: str = "") -> TableSchema:
    """Return the schema in a JSON object.

    Args:
        data: The JSON object.
        location: The file, for error messages.
        path: The path of the object in the file, for error messages.

    Raises:
        CorruptFileError: A field is missing or invalid.
    """
    node = JsonNode(data, location, path)
    try:
        return _schema(node)
    except RecursionError:
        node.fail("its types are nested too deeply")


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Return the JSON object of a schema: the object that it was read from, if there is one."""
    if isinstance(schema, TableSchema) and schema._json is not None:
        return schema._json
    document: dict[str, Any] = {"type": "struct", "schema-id": schema.schema_id}
    if schema.identifier_field_ids:
        document["identifier-field-ids"] = list(schema.identifier_field_ids)
    return document | {"fields": [_field_json(field) for field in schema.fields]}


def type_from_json(node: JsonNode) -> t.IcebergType:
    """Return the type that a string or a JSON object describes.

    Raises:
        CorruptFileError: It is not a type of the table spec.
    """
    if isinstance(node.value, str):
        return _named_type(node)
    kind = node.get("type").text()
    if kind == "struct":
        return t.StructType(*(_field(field) for field in node.get("fields").items()))
    if kind == "list":
        element = type_from_json(node.get("element"))
        return list_of(node.get("element-id").integer(), element, node.get("element-required").boolean())
    if kind == "map":
        return t.MapType(
            node.get("key-id").integer(),
            type_from_json(node.get("key")),
            node.get("value-id").integer(),
            type_from_json(node.get("value")),
            node.get("value-required").boolean(),
        )
    return node.get("type").fail("not a type of the Iceberg table spec")


def list_of(element_id: int, element: t.IcebergType, element_required: bool) -> t.ListType:
    """Return a list type, whose elements may be structs without fields.

    Such a struct is falsy, so pyiceberg mistakes it for a missing argument and reads element_type instead.
    """
    return t.ListType(element_id, element, element_required=element_required, element_type=element)


def type_to_json(kind: t.IcebergType) -> str | dict[str, Any]:
    """Return the string or JSON object that describes a type."""
    if isinstance(kind, t.StructType):
        return {"type": "struct", "fields": [_field_json(field) for field in kind.fields]}
    if isinstance(kind, t.ListType):
        return {
            "type": "list",
            "element-id": kind.element_id,
            "element": type_to_json(kind.element_type),
            "element-required": kind.element_required,
        }
    if isinstance(kind, t.MapType):
        return {
            "type": "map",
            "key-id": kind.key_id,
            "key": type_to_json(kind.key_type),
            "value-id": kind.value_id,
            "value": type_to_json(kind.value_type),
            "value-required": kind.value_required,
        }
    return str(kind).replace("'", "")  # pyiceberg puts quotes around a CRS, the table spec does not


def _schema(node: JsonNode) -> TableSchema:
    fields = tuple(_field(field) for field in node.get("fields").items())
    schema_id = node.optional("schema-id")
    identifiers = node.optional("identifier-field-ids")
    check_unique_ids(((field_id, field_id.integer()) for field_id in _field_ids(node)), "field id")
    arguments: dict[str, Any] = {
        "schema-id": schema_id.integer() if schema_id else 0,
        "identifier-field-ids": [field_id.integer() for field_id in identifiers.items()] if identifiers else [],
    }
    try:
        schema = TableSchema(*fields, **arguments)
    except ValueError as error:
        node.fail(first_line(error))
    schema._json = node.object()
    return schema


def _named_type(node: JsonNode) -> t.PrimitiveType:
    text = node.text()
    if (kind := _TYPES.get(text.lower())) is not None:
        return kind
    if match := _FIXED.fullmatch(text.lower()):
        return t.FixedType(int(match[1]))
    if match := _DECIMAL.fullmatch(text.lower()):
        precision, scale = int(match[1]), int(match[2])
        if not (1 <= precision <= 38 and scale <= precision):
            node.fail("a decimal has a precision of 1 to 38 and a scale of at most its precision")
        return t.DecimalType(precision, scale)
    if match := _GEOMETRY.fullmatch(text):
        return t.GeometryType(_unquoted(match[1]) or t.DEFAULT_GEOMETRY_CRS)
    if match := _GEOGRAPHY.fullmatch(text):
        crs = _unquoted(match[1]) or t.DEFAULT_GEOGRAPHY_CRS
        return t.GeographyType(crs, match[2] or t.DEFAULT_GEOGRAPHY_ALGORITHM)
    return node.fail("not a type of the Iceberg table spec")


def _unquoted(text: str | None) -> str | None:
    return text.strip("'\"") if text else None


def _field(node: JsonNode) -> t.NestedField:
    kind = type_from_json(node.get("type"))
    doc = node.optional("doc")
    # Without pydantic's validation, which fails for defaults that pyiceberg can't decode.
    return t.NestedField.model_construct(
        field_id=node.get("id").integer(),
        name=node.get("name").text(),
        field_type=kind,
        required=node.get("required").boolean(),
        doc=doc.text() if doc else None,
        initial_default=_default(node, "initial-default", kind),
        write_default=_default(node, "write-default", kind),
    )


def _default(field: JsonNode, key: str, kind: t.IcebergType) -> Any:
    """Return a default in pyiceberg's representation.

    It is a Python value of the type, nanoseconds as int, or JSON text for nested types. For years that Python's dates
    do not have, it is the number of days or microseconds.
    """
    node = field.optional(key)
    if node is None:
        return None
    value = _single_value(node, kind)
    return json.dumps(node.value) if isinstance(kind, _NESTED) else value


def column_default(kind: t.IcebergType, default: Any) -> Any:
    """Convert a default from pyiceberg's representation: values of nested types become tuples instead of JSON text.

    A struct becomes pairs of field id and value, without the fields that keep their own defaults. A list becomes its
    elements, and a map becomes pairs of key and value.
    """
    is_text = isinstance(kind, _NESTED) and default is not None
    return _single_value(JsonNode(json.loads(default)), kind) if is_text else default


def default_text(kind: t.IcebergType, default: Any) -> str:
    """Return the JSON text of a default of a nested type, in the form of `column_default`."""
    return json.dumps(_default_json(kind, default))


def _single_value(node: JsonNode, kind: t.IcebergType) -> Any:
    """Return the value of a JSON single-value; see `column_default`."""
    match kind:
        case t.StructType():
            # Other ids belong to deleted fields.
            members = node.object()
            fields = [field for field in kind.fields if str(field.field_id) in members]
            ids = [field.field_id for field in fields]
            values = [_inside(node.member(str(field.field_id)), field.field_type, field.required) for field in fields]
            return tuple(zip(ids, values, strict=True))
        case t.ListType():
            return tuple(_inside(child, kind.element_type, kind.element_required) for child in node.items())
        case t.MapType():
            keys = [_inside(child, kind.key_type, True) for child in node.get("keys").items()]
            values = [_inside(child, kind.value_type, kind.value_required) for child in node.get("values").items()]
            if len(keys) != len(values):
                node.fail(f"it has {len(keys)} keys and {len(values)} values")
            return tuple(zip(keys, values, strict=True))
    if isinstance(kind, _WITHOUT_DEFAULT):
        node.fail(f"a default of type {kind} must be null")
    if not isinstance(node.value, _json_type(kind)) or isinstance(node.value, bool) != isinstance(kind, t.BooleanType):
        node.fail(f"not a valid default for type {kind}")
    try:
        return _decoded(kind, node.value)
    except (ArithmeticError, TypeError, ValueError) as error:
        node.fail(f"not a valid default for type {kind}: {first_line(error)}")


def _inside(node: JsonNode, kind: t.IcebergType, required: bool) -> Any:
    """Return a value inside a nested value."""
    if node.value is None:
        return node.fail("it is required") if required else None
    return _single_value(node, kind)


def _decoded(kind: t.IcebergType, value: Any) -> Any:
    if isinstance(kind, _DATES) and value.startswith(_FAR_YEARS):
        zoned = isinstance(kind, t.TimestamptzType)
        return iso_days(value) if isinstance(kind, t.DateType) else iso_nanos(value, zoned) // 1000
    if isinstance(kind, t.TimestampNanoType):
        return timestamp_to_nanos(value)
    if isinstance(kind, t.TimestamptzNanoType):
        return timestamptz_to_nanos(value)
    return from_json(cast("t.PrimitiveType", kind), value)


def _json_type(kind: t.IcebergType) -> type | tuple[type, ...]:
    if isinstance(kind, t.BooleanType | t.IntegerType | t.LongType):
        return int
    return (int, float) if isinstance(kind, t.FloatType | t.DoubleType) else str


def _field_json(field: t.NestedField) -> dict[str, Any]:
    document: dict[str, Any] = {"id": field.field_id, "name": field.name, "required": field.required}
    document["type"] = type_to_json(field.field_type)
    if field.doc is not None:
        document["doc"] = field.doc
    for key, value in (("initial-default", field.initial_default), ("write-default", field.write_default)):
        if value is not None:
            is_text = isinstance(field.field_type, _NESTED)
            document[key] = json.loads(value) if is_text else _default_json(field.field_type, value)
    return document


def _default_json(kind: t.IcebergType, value: Any) -> Any:
    """Return the JSON single-value of a default in the form of `column_default`."""
    if value is None:
        return None
    match kind:
        case t.StructType():
            types = {field.field_id: field.field_type for field in kind.fields}
            return {str(field_id): _default_json(types[field_id], item) for field_id, item in value}
        case t.ListType():
            return [_default_json(kind.element_type, item) for item in value]
        case t.MapType():
            keys = [_default_json(kind.key_type, key) for key, _ in value]
            return {"keys": keys, "values": [_default_json(kind.value_type, item) for _, item in value]}
    if isinstance(kind, _NANOS):
        micros, nanos = divmod(value, 1000)
        seconds = to_human_timestamp(micros - micros % 1_000_000)[:19]
        zone = "+00:00" if isinstance(kind, t.TimestamptzNanoType) else ""
        return f"{seconds}.{micros % 1_000_000:06}{nanos:03}{zone}"
    if isinstance(kind, _WITHOUT_DEFAULT):
        return value  # which readers refuse
    if isinstance(kind, _DATES) and isinstance(value, int):
        if isinstance(kind, t.DateType):
            return iso_date(value)
        return iso_timestamp(value) + ("+00:00" if isinstance(kind, t.TimestamptzType) else "")
    return to_json(cast("t.PrimitiveType", kind), value)


def _field_ids(kind: JsonNode, depth: int = 0) -> list[JsonNode]:
    """Return the nodes of all field ids below a type that is known to be valid."""
    if depth > _MAX_DEPTH:
        kind.fail("its types are nested too deeply")
    if isinstance(kind.value, str):
        return []
    if kind.has("fields"):
        fields = list(kind.get("fields").items())
        return [
            field_id for field in fields for field_id in (field.get("id"), *_field_ids(field.get("type"), depth + 1))
        ]
    children = [("element-id", "element")] if kind.has("element-id") else [("key-id", "key"), ("value-id", "value")]
    return [node for id_key, child in children for node in (kind.get(id_key), *_field_ids(kind.get(child), depth + 1))]


def path_to(schema: Schema, field_id: int) -> list[t.NestedField]:
    """Return the fields from the top of a schema to one of its fields."""
    parents = schema._lazy_id_to_parent
    path_ids = [field_id]
    while path_ids[-1] in parents:
        path_ids.append(parents[path_ids[-1]])
    return [schema.find_field(path_id) for path_id in reversed(path_ids)]


def id_of_column(schema: Schema, name: str) -> int | None:
    """Return the id of the column with a full name; None if there is none.

    A name may leave out the elements of lists and the values of maps, as in pyiceberg.
    """
    try:
        return schema.find_field(name).field_id
    except ValueError:
        return None


def pruned(schema: Schema, field_ids: Collection[int]) -> Schema:
    """Return a schema with only some of the fields, each with everything inside it, and their parents.

    Unlike in pyiceberg's `prune_columns`, parents keep their defaults. The keys of a map are never pruned.
    """
    kind = _pruned(schema.as_struct(), field_ids)
    identifiers = [field_id for field_id in schema.identifier_field_ids if field_id in field_ids]
    fields = kind.fields if isinstance(kind, t.StructType) else ()
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=identifiers)


def _pruned(kind: t.IcebergType, field_ids: Collection[int]) -> t.IcebergType | None:
    match kind:
        case t.StructType():
            fields = [field for child in kind.fields if (field := _pruned_field(child, field_ids)) is not None]
            return t.StructType(*fields) if fields else None
        case t.ListType():
            element = _pruned_field(kind.element_field, field_ids)
            return None if element is None else t.ListType(kind.element_id, element.field_type, kind.element_required)
        case t.MapType():
            if (value := _pruned_field(kind.value_field, field_ids)) is not None:
                return t.MapType(kind.key_id, kind.key_type, kind.value_id, value.field_type, kind.value_required)
            return kind if _pruned_field(kind.key_field, field_ids) is not None else None
    return None


def _pruned_field(field: t.NestedField, field_ids: Collection[int]) -> t.NestedField | None:
    if field.field_id in field_ids:
        return field
    kind = _pruned(field.field_type, field_ids)
    return None if kind is None else field.model_copy(update={"field_type": kind})
