"""Schema changes of tables: what the new schema has of types and defaults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, ListType, MapType, NestedField, StringType, StructType

from sparkmeta.errors import InvalidChangeError, ValidationError
from sparkmeta.spec.metadata import TableMetadata, parse_table_metadata, serialize_table_metadata
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.schema import schema_from_json
from sparkmeta.spec.update_schema import UpdateSchema
from sparkmeta.spec.updates import UpdateSpec, update_table_metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table.update import TableUpdate
    from pyiceberg.types import IcebergType

LOCATION = "s3://bucket/db/t"


class Change:
    """A transaction of schema changes."""

    def __init__(self, *fields: dict[str, Any]) -> None:
        schema = schema_from_json({"type": "struct", "fields": [{"required": False} | field for field in fields]})
        self.table_metadata = created(schema)

    def _apply(self, updates: tuple[TableUpdate, ...], _requirements: Any = ()) -> None:
        self.table_metadata = update_table_metadata(self.table_metadata, updates)


def created(schema: Schema) -> TableMetadata:
    return new_metadata(LOCATION, schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, {}, 3)


def fields_of(metadata: TableMetadata) -> list[dict[str, Any]]:
    """Return the fields of the current schema after the metadata was written and read again."""
    text = serialize_table_metadata(metadata)
    assert serialize_table_metadata(parse_table_metadata(text.encode(), LOCATION)) == text
    document = json.loads(text)
    schemas = {schema["schema-id"]: schema for schema in document["schemas"]}
    fields: list[dict[str, Any]] = schemas[document["current-schema-id"]]["fields"]
    return fields


def after(change: Callable[[UpdateSchema], Any], *fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a table after a change of the given fields."""
    transaction = Change(*fields)
    builder = UpdateSchema(transaction)  # type: ignore[arg-type]
    change(builder)
    builder.commit()
    return fields_of(transaction.table_metadata)


NUMBER = {"id": 1, "name": "n", "type": "int"}


def list_of_struct(name: str, list_id: int, *fields: dict[str, Any]) -> dict[str, Any]:
    element = {"type": "struct", "fields": list(fields)}
    kind = {"type": "list", "element-id": list_id + 1, "element": element, "element-required": False}
    return {"id": list_id, "name": name, "required": False, "type": kind}


def test_a_struct_in_a_list_may_have_no_fields() -> None:
    number = NUMBER | {"required": False}
    empty = list_of_struct("l", 2)
    assert fields_of(created(schema_from_json({"type": "struct", "fields": [number, empty]}))) == [number, empty]
    struct = list_of_struct("l", 2, {"id": 4, "name": "e", "required": False, "type": "int"})
    assert after(lambda update: update.delete_column("l.e"), NUMBER, struct) == [number, empty]
    renamed = after(lambda update: update.rename_column("n", "m"), NUMBER, empty)
    assert renamed == [number | {"name": "m"}, empty]
    kind = ListType(1, StructType(), element_required=False, element_type=StructType())
    assert after(lambda update: update.add_column("l", kind), NUMBER) == [number, empty]
    with_field = after(lambda update: update.add_column(("l", "e"), IntegerType()), NUMBER, empty)
    assert with_field == [number, struct]


NANOS = "2017-11-16T22:31:08.123456789"
WITH_DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("int", 5, 6),
    ("decimal(9, 2)", "14.20", "14.21"),
    ("date", "2026-01-31", "2026-02-01"),
    ("timestamp_ns", NANOS, NANOS),
    ("timestamptz_ns", f"{NANOS}+00:00", f"{NANOS}+00:00"),
    ({"type": "struct", "fields": [NUMBER | {"id": 2, "required": False, "initial-default": 5}]}, {}, {}),
]


@pytest.mark.parametrize(("kind", "initial", "write"), WITH_DEFAULTS, ids=str)
def test_a_column_keeps_its_defaults(kind: Any, initial: Any, write: Any) -> None:
    column = {"id": 1, "name": "a", "required": False, "type": kind, "initial-default": initial, "write-default": write}
    assert after(lambda update: update.rename_column("a", "b"), column) == [column | {"name": "b"}]
    assert after(lambda update: update.update_column("a", doc="x"), column) == [column | {"doc": "x"}]
    emptied = after(lambda update: update.set_default_value("a", None).rename_column("a", "b"), column)
    assert emptied == [{key: value for key, value in column.items() if key != "write-default"} | {"name": "b"}]
    required = column | {"required": True}
    assert after(lambda update: update.make_column_optional("a"), required) == [column]
    with pytest.raises(ValueError, match=f"^{LOCATION}: column a is required: its default value can't be removed"):
        after(lambda update: update.set_default_value("a", None), required)


@pytest.mark.parametrize(("kind", "initial", "write"), WITH_DEFAULTS, ids=str)
def test_a_new_column_has_the_defaults_of_its_schema(kind: Any, initial: Any, write: Any) -> None:
    defaults = {"initial-default": initial, "write-default": write}
    column = {"id": 2, "name": "a", "required": True, "type": kind} | defaults
    if isinstance(kind, dict):
        field = kind["fields"][0] | {"id": 3}
        column["type"] = kind | {"fields": [field]}
    union = schema_from_json({"type": "struct", "fields": [column]})
    assert after(lambda update: update.union_by_name(union), NUMBER)[1:] == [column]


NEW_FIELD = NestedField(9, "q", IntegerType(), required=True, initial_default=5, write_default=6)
NEW_TYPES: list[IcebergType] = [
    StructType(NEW_FIELD),
    ListType(8, StructType(NEW_FIELD), element_required=False),
    MapType(7, StringType(), 8, StructType(NEW_FIELD), value_required=False),
]


@pytest.mark.parametrize("kind", NEW_TYPES, ids=str)
def test_fields_of_a_new_column_have_the_defaults_of_its_type(kind: IcebergType) -> None:
    added = after(lambda update: update.add_column("a", kind), NUMBER)[1]
    written = json.dumps(added["type"])
    assert '"name": "q", "required": true, "type": "int", "initial-default": 5, "write-default": 6' in written


def test_a_union_adds_fields_with_defaults_to_a_struct() -> None:
    struct = {
        "id": 1,
        "name": "s",
        "required": False,
        "type": {"type": "struct", "fields": [NUMBER | {"id": 2, "required": False}]},
    }
    union = Schema(NestedField(1, "s", StructType(NEW_FIELD)))
    (changed,) = after(lambda update: update.union_by_name(union), struct)
    assert [(field["id"], field.get("write-default")) for field in changed["type"]["fields"]] == [(2, None), (3, 6)]


def test_a_new_default_replaces_the_write_default() -> None:
    column = NUMBER | {"required": True, "initial-default": 5, "write-default": 6}
    changed = after(lambda update: update.rename_column("n", "m").set_default_value("n", 7), column)
    assert changed == [column | {"name": "m", "write-default": 7}]


def test_the_default_of_a_float_is_the_same_number_as_a_double() -> None:
    column = {"id": 1, "name": "f", "required": False, "type": "float", "initial-default": 0.1, "write-default": 0.1}
    doubles = {"type": "double", "initial-default": 0.10000000149011612, "write-default": 0.10000000149011612}
    assert after(lambda update: update.update_column("f", DoubleType()), column) == [column | doubles]


def test_an_identifier_field_is_not_deleted() -> None:
    schema = Schema(NestedField(1, "n", IntegerType(), required=True), identifier_field_ids=[1])
    transaction = Change()
    transaction.table_metadata = created(schema)
    builder = UpdateSchema(transaction).delete_column("n")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"^{LOCATION}: n is an identifier field"):
        builder.commit()


def test_types_may_be_given_by_name() -> None:
    kinds = {
        "a": "long",
        "b": "DECIMAL(9, 2)",
        "c": "timestamptz",
        "d": "fixed[3]",
        "e": "variant",
        "f": "timestamp_ns",
    }

    def change(builder: UpdateSchema) -> None:
        for name, kind in kinds.items():
            builder.add_column(name, kind)
        builder.update_column("n", "long")

    fields = after(change, {"id": 1, "name": "n", "type": "int"})
    assert {field["name"]: field["type"] for field in fields} == kinds | {"n": "long", "b": "decimal(9, 2)"}
    for wrong in ("bigint", "list<string>", "", 5):
        with pytest.raises(
            ValidationError, match=rf"column w has the type {wrong!r}: expected a type of pyiceberg, or"
        ):
            after(lambda builder, kind=wrong: builder.add_column("w", kind), {"id": 1, "name": "n", "type": "int"})


@pytest.mark.parametrize("format_version", [1, 2, 3, 4])
def test_the_name_of_a_former_partition_column(format_version: int) -> None:
    """A new column may have the name once the old column and its partition field are dropped, and be partitioned by."""
    schema = Schema(NestedField(1, "id", "long"), NestedField(2, "trip", "string", required=False))  # type: ignore[arg-type]
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "trip"))
    transaction: Any = Change()
    transaction.table_metadata = new_metadata(LOCATION, schema, spec, UNSORTED_SORT_ORDER, {}, format_version)

    def of_schema(change: Callable[[UpdateSchema], Any]) -> None:
        change(builder := UpdateSchema(transaction))
        builder.commit()

    def of_spec(change: Callable[[UpdateSpec], Any]) -> None:
        change(builder := UpdateSpec(transaction))
        builder.commit()

    with pytest.raises(ValidationError, match=r"column trip can't be deleted.*remove_field\('trip'\)"):
        of_schema(lambda update: update.delete_column("trip"))
    of_spec(lambda update: update.remove_field("trip"))
    of_schema(lambda update: update.delete_column("trip"))
    of_schema(lambda update: update.add_column("trip", "string"))
    of_schema(lambda update: update.add_column("other", "int"))
    of_spec(lambda update: update.add_field("trip", IdentityTransform(), "trip"))
    of_schema(lambda update: update.rename_column("trip", "travel"))
    # What Java's library refuses: the partition field of this name has its column.
    with pytest.raises(InvalidChangeError, match="sourced from different field in schema: trip"):
        of_schema(lambda update: update.add_column("trip", "string"))
    metadata = transaction.table_metadata
    assert metadata.schema().column_names == ["id", "travel", "other"]
    text = serialize_table_metadata(metadata)
    assert serialize_table_metadata(parse_table_metadata(text.encode(), LOCATION)) == text
